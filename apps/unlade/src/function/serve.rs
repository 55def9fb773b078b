//! `unlade fn serve`: the gateway.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use serde::Deserialize;
use unlade_fn_gateway::GatewayConfig;
use unlade_fn_gateway::config::Workers;
use unlade_fn_gateway::serve::Parts;
use unlade_fn_model::isolation::Isolation;
use unlade_fn_model::manifest::Backend;
use unlade_fn_sandbox::process::{Launcher, Process, ProcessConfig};
use unlade_fn_sandbox::qemu::{Qemu, QemuConfig};

use crate::daemon;
use unlade_command::output::line;

pub(super) const LONG: &str = "\
Serves functions until SIGTERM or SIGINT; then nothing is accepted, what runs ends, and what is \
acknowledged is made durable first. SIGHUP reads limits, tenants and the directory `functions` \
anew. Everything not said has a default: without a configuration, functions are kept in \
/var/lib/unlade/fn, and so are the objects of the built-in S3 store. Requests are signed with a key of \
a tenant; where the configuration has none, a pair is made at the first start, which `unlade fn` reads \
by itself and `unlade fn env` prints. The gateway's address is printed when callers can come.";

pub(super) const HELP: &str = "\
An fn.toml, with the defaults:
  listen = \"127.0.0.1:9001\"       # requests are signed, not encrypted: others need allow_remote
  urls = \"127.0.0.1:9002\"         # function URLs and HTTP APIs; none where not said
  urls_domain = \"localhost\"       # of their host names
  urls_connections_max = 1024       # of their callers
  urls_timeout = \"1m\"             # to read a request of them, and for a write that waits
  authentication = \"keys\"         # or \"off\": every caller may do everything
  check_imports = true              # a function is served when its handler could be imported
  admin = \"127.0.0.1:9902\"        # /metrics, /healthz, /version; none where not said
  state = \"/var/lib/unlade/fn\"
  functions = \"./functions\"       # each directory with a function.toml; none where not said
  memory_max = \"12GiB\"            # of all instances; three quarters of the machine's
  instances_max = 1000
  starting_max = 8                  # instances of one function that start at once
  waiting_max = 1000                # invocations of a function that wait for an instance
  waiting_timeout = \"10s\"
  start_timeout = \"1m\"
  settle_timeout = \"1m\"           # until acknowledged writes are durable
  drain_timeout = \"30s\"
  python = \"/usr/bin/python3\"
  node = \"/usr/bin/node\"          # of functions in Node.js
  packages = []                     # directories that all functions have on sys.path
  scratch = \"512MiB\"              # /tmp of an instance, beside its memory
  store_listen = \"127.0.0.1:9000\" # the built-in store
  workers = \"per-tenant\"          # or \"shared\": one I/O worker, and one end, for all tenants
  # workers_admin = \"127.0.0.1:9903\"  # /metrics of a shared worker; none if absent
  metrics_functions_max = 1000      # functions with metrics of their own; the others share some
  [function_log]
  bytes_max = \"1MiB\"              # of the last lines of each function, for `unlade fn logs`
  lines_per_s = 2000                # of a function; more are dropped and counted
  [log]
  format = \"text\"                 # or \"json\"
  level = \"info\"
  [store]                           # another one: as in `unlade fn worker --help`
  endpoint = \"https://s3.example\"
  [services]                        # other than S3: as in `unlade fn worker --help`; `lambda` is
  aws = false                       # this gateway where nothing else is said
  [tenant.NAME]                     # besides `default`; with its own [tenant.NAME.store],
                                    # [tenant.NAME.services], .limits, .instance and .copies
  admin = \"127.0.0.1:9904\"        # /metrics of its worker; none if absent
  keys = []                         # { access_key_id = \"…\", secret_access_key = \"…\" }; none: a
                                    # pair is made: profile NAME of the file `credentials` in state
  modes = [\"offload\", \"prefetch\", \"sdk\"]  # which manifests may choose; \"tcp\" and \"stock\"
                                    # have a key of the store, \"stock\" has the host's network
  packages = []                     # directories that manifests may name, with those below them
  pythons = []                      # interpreters that manifests may choose
  [[tenant.NAME.role.statements]]   # the most that its functions may do; all where nothing is said
  effect = \"allow\"
  actions = [\"s3:*\"]
  resources = [\"photos/*\"]
  # [tenant.NAME.roles.writer]      # or a policy document in AWS's JSON, beside this file; so may
  # document = \"writer.json\"       # `role` of a tenant, and `role` of a function.toml
  [[tenant.NAME.roles.reader.statements]]  # a role that CreateFunction may name; `default` is
  effect = \"allow\"                # all of the store of the tenant
  actions = [\"s3:GetObject\"]
  resources = [\"photos/*\"]
  [principal.\"s3.amazonaws.com\"]  # a service that may invoke what resource policies allow it
  keys = []                         # as of a tenant
  [isolation.process]
  cgroup = \"unlade\"
  ids_first = 1879048192            # unused users and groups from this one on, 1024 a template
  processes_max = 256               # of an instance
  files_max = 1024
  spares = 2                        # roots and groups made in advance
  freeze = true                     # idle instances stand still, as in Lambda
  freeze_after_ms = 10              # once they are idle for this time
  start_timeout = \"1m\"            # of a function's import, and of an instance
  [isolation.qemu]
  accelerator = \"auto\"            # or \"kvm\", \"tcg\": software
  fetch = true                      # QEMU and a kernel from Debian, once, where they are not there
  # root = \"/\"                    # where they are, laid out as Debian's packages; not set, they
                                    # are fetched
  cache = \"/var/cache/unlade\"     # others than root: ~/.cache/unlade
  boot_timeout = \"2m\"             # of a template; its instances are restored
  restore_timeout = \"30s\"
  snapshot = true                   # false: every instance boots
  user_first = 2147418112           # QEMU runs as users from this one on

A function.toml; only the handler must be there:
  handler = \"app.handler\"
  runtime = \"python\"            # or \"nodejs\", \"provided\": an executable `bootstrap`
  tenant = \"default\"              # the one who deploys; of a directory, whose it is
  memory = \"128MiB\"
  scratch = \"512MiB\"              # of /tmp; not set, that of fn.toml
  timeout = \"30s\"
  isolation = \"process\"           # or \"qemu\": `unlade doctor` says what works
  mode = \"offload\"                # or \"prefetch\", \"sdk\"; \"tcp\"; \"stock\": any service;
                                    # fn.toml says which of these, of packages and of pythons
  writes = \"durable-reply\"        # or \"early-reply\"; \"sync\": a put waits for the store
  keys = \"refuse\"                 # or \"ignore\": keys in code are not used
  concurrency = 100
  keep_alive = \"10m\"
  hints = [\"models/{/name}.bin\"]  # objects it will read; {/POINTER} into the event
  packages = []
  # python = \"/usr/bin/python3.11\"  # the gateway's if absent; see `pythons` in fn.toml
  [preload]                         # into the template, where instances can share it
  handler = true
  modules = []
  [environment]
  NAME = \"value\"
  [[role.statements]]               # absent: all of the tenant's store, and no other service
  effect = \"allow\"
  actions = [\"s3:GetObject\", \"s3:PutObject\"]
  resources = [\"photos/*\"]";

/// Arguments of `unlade fn serve`.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// The configuration
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where callers connect, instead of the configuration's; port 0 is one that is free
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where everything is kept, instead of the configuration's
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Where the built-in store listens, instead of the configuration's
    #[arg(long, value_name = "ADDRESS")]
    store_listen: Option<SocketAddr>,
    /// One I/O worker for each tenant, or one for all, instead of the configuration's
    #[arg(long, value_name = "WHICH")]
    workers: Option<WorkersArg>,
    /// Say whether the configuration is valid, and exit
    #[arg(long)]
    check: bool,
}

/// `--workers`.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum WorkersArg {
    /// A process for each tenant
    PerTenant,
    /// One process for all tenants: less memory, and one end for all of them
    Shared,
}

impl WorkersArg {
    fn setting(self) -> Workers {
        match self {
            WorkersArg::PerTenant => Workers::PerTenant,
            WorkersArg::Shared => Workers::Shared,
        }
    }
}

/// `[isolation]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct IsolationConfig {
    process: ProcessConfig,
    qemu: QemuConfig,
}

/// Runs it.
///
/// # Errors
/// The configuration, or what stopped it.
pub(super) fn run(args: ServeArgs) -> Result<ExitCode> {
    let config = match &args.config {
        Some(path) => GatewayConfig::load(path)?,
        None => GatewayConfig::default(),
    };
    let state = args.state.as_ref().unwrap_or(&config.state);
    let state = std::path::absolute(state).context("the directory of --state")?;
    let (check, path) = (args.check, args.config.clone());
    let with_arguments = move |config: GatewayConfig| GatewayConfig {
        listen: args.listen.unwrap_or(config.listen),
        store_listen: args.store_listen.unwrap_or(config.store_listen),
        workers: args.workers.map_or(config.workers, WorkersArg::setting),
        state: state.clone(),
        ..config
    };
    let config = with_arguments(config);
    config.check()?;
    let isolation = config.isolation.clone().try_into().context("[isolation]")?;
    let log = config.log.clone();
    daemon::Start { check, log: &log }.run(
        "the configuration is valid",
        daemon::nothing_more,
        || {
            let executable = std::env::current_exe().context("where this program is")?;
            let backends = backends(isolation, &executable);
            let used = config.clone();
            let reload = Box::new(move || match &path {
                Some(path) => GatewayConfig::load(path).map(&with_arguments),
                None => Ok(used.clone()),
            });
            let parts = Parts { backends, executable, reload };
            Ok(unlade_fn_gateway::run(config, parts, |address| {
                line(format_args!("http://{address}")).map_err(std::io::Error::other)
            })?)
        },
    )
}

fn backends(
    config: IsolationConfig,
    executable: &std::path::Path,
) -> HashMap<Backend, Rc<dyn Isolation>> {
    let arguments = ["fn", "sandbox"].map(str::to_owned).to_vec();
    let init = ["fn", "init"].map(str::to_owned).to_vec();
    let launcher = Launcher { program: executable.to_owned(), arguments, init };
    let process: Rc<dyn Isolation> = Rc::new(Process::new(config.process, launcher));
    let qemu: Rc<dyn Isolation> = Rc::new(Qemu::new(config.qemu));
    HashMap::from([(Backend::Process, process), (Backend::Qemu, qemu)])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example `fn.toml` of the help text, without its indent.
    fn example() -> String {
        let (_, from) = HELP.split_once("An fn.toml, with the defaults:\n").unwrap();
        let (text, _) = from.split_once("\n\n").unwrap();
        text.lines().map(|line| format!("{}\n", line.trim_start())).collect()
    }

    #[test]
    fn the_example_of_the_help_is_valid_and_has_the_defaults() {
        let config: GatewayConfig = unlade_config::parse(&example(), "the help text").unwrap();
        config.check().unwrap();
        let isolation: IsolationConfig = config.isolation.clone().try_into().unwrap();
        assert_eq!(isolation.process, ProcessConfig::default());
        let cache = isolation.qemu.cache.clone();
        assert_eq!(isolation.qemu, QemuConfig { cache, ..QemuConfig::default() });
        // The keys without a default, for which the text has examples.
        let defaults = GatewayConfig {
            urls: config.urls,
            admin: config.admin,
            functions: config.functions.clone(),
            memory_max: config.memory_max,
            python: config.python.clone(),
            node: config.node.clone(),
            services: config.services.clone(),
            store: config.store.clone(),
            tenant: config.tenant.clone(),
            principal: config.principal.clone(),
            isolation: config.isolation.clone(),
            ..GatewayConfig::default()
        };
        assert_eq!(config, defaults);
        let store: Vec<&String> = config.store.iter().flat_map(|table| table.keys()).collect();
        assert_eq!(store, ["endpoint"]);
    }

    #[test]
    fn the_example_of_the_help_has_every_key_of_the_process_isolation() {
        let table = toml::Table::try_from(ProcessConfig::default()).unwrap();
        let text = example();
        let (_, process) = text.split_once("[isolation.process]\n").unwrap();
        let (process, _) = process.split_once("\n[").unwrap();
        for key in table.keys() {
            let has_it = process.lines().any(|line| line.starts_with(&format!("{key} = ")));
            assert!(has_it, "{key} is missing:\n{process}");
        }
    }
}
