//! The page of the configuration files, from the documented files in `--help`.

use std::fmt::Write as _;

use serde::Deserialize;
use unlade_agent::AgentConfig;
use unlade_backend::BackendConfig;
use unlade_balancer::BalancerConfig;
use unlade_copy_service::daemon::DaemonConfig;
use unlade_fn_gateway::GatewayConfig;
use unlade_fn_model::manifest::Manifest;
use unlade_fn_sandbox::process::ProcessConfig;
use unlade_fn_sandbox::qemu::QemuConfig;
use unlade_fn_worker::WorkerConfig;
use unlade_nic_inline::tls_proxy::Config as NicConfig;
use unlade_nvme::target::TargetConfig;

use crate::keys::{self, Step};
use crate::page;

const HEAD: &str = "\
# Configuration

A test generates this page from the `--help` of the daemons, and checks that it has every key that
they accept: `UNLADE_BLESS=1 cargo test -p unlade --test reference` writes it.

The files are TOML. A value is the default of its key, unless the comment names another default, or
says that the value is an example or that the key is required. Durations are texts such as `250ms`,
`5s` or `1h 30m`; sizes are numbers of bytes, or texts such as `64KiB`. An unknown key is an error
that names the line and the nearest known key. `--check` of each daemon checks a file.
";

/// A documented file.
struct File {
    /// The command, with the help that has the file.
    command: &'static [&'static str],
    /// The beginning of the line above the file.
    title: &'static str,
    /// The name of the file.
    name: &'static str,
    /// The purpose of the file.
    about: &'static str,
    /// The keys that are accepted.
    keys: fn() -> Vec<Vec<Step>>,
    /// Checks that the file parses.
    parse: fn(&str) -> Result<(), String>,
    /// Tables that have the keys of another table: they need not be repeated.
    repeated: &'static [&'static str],
    /// Keys without effect, accepted for old files.
    ineffective: &'static [&'static str],
    /// Keys that the file names in a comment.
    commented: &'static [&'static str],
    /// Keys that the file does not have yet. A key that it has is an error here.
    missing: &'static [&'static str],
}

fn parse<T: for<'de> Deserialize<'de>>(text: &str) -> Result<(), String> {
    unlade_config::parse::<T>(text, "--help").map(drop).map_err(|error| error.to_string())
}

/// The keys of a gateway: the tables of the isolations are read by their own structures.
fn gateway_keys() -> Vec<Vec<Step>> {
    let below = |name, keys: Vec<Vec<Step>>| {
        let isolation = [Step::Key("isolation"), Step::Key(name)];
        keys.into_iter().map(move |key| [&isolation[..], &key].concat())
    };
    let process = below("process", keys::of::<ProcessConfig>());
    let qemu = below("qemu", keys::of::<QemuConfig>());
    keys::of::<GatewayConfig>().into_iter().chain(process).chain(qemu).collect()
}

const FILES: &[File] = &[
    File {
        command: &["lb"],
        title: "An lb.toml with every key",
        name: "lb.toml",
        about: "`unlade lb --config lb.toml`",
        keys: keys::of::<BalancerConfig>,
        parse: parse::<BalancerConfig>,
        repeated: &["listener[].timeouts"],
        ineffective: &[],
        commented: &[],
        missing: &[],
    },
    File {
        command: &["backend"],
        title: "A backend.toml with every key",
        name: "backend.toml",
        about: "`unlade backend --config backend.toml`",
        keys: keys::of::<BackendConfig>,
        parse: parse::<BackendConfig>,
        repeated: &[],
        ineffective: &["idle_return"],
        commented: &[],
        missing: &[],
    },
    File {
        command: &["agent"],
        title: "An agent.toml with every key",
        name: "agent.toml",
        about: "`unlade agent --config agent.toml`",
        keys: keys::of::<AgentConfig>,
        parse: parse::<AgentConfig>,
        repeated: &[],
        ineffective: &[],
        commented: &[],
        missing: &[],
    },
    File {
        command: &["copyd"],
        title: "A copyd.toml",
        name: "copyd.toml",
        about: "`unlade copyd --config copyd.toml`",
        keys: keys::of::<DaemonConfig>,
        parse: parse::<DaemonConfig>,
        repeated: &[],
        ineffective: &[],
        commented: &[],
        missing: &[],
    },
    File {
        command: &["nic", "run"],
        title: "A nic.toml",
        name: "nic.toml",
        about: "`unlade nic run --config nic.toml`",
        keys: keys::of::<NicConfig>,
        parse: parse::<NicConfig>,
        repeated: &[],
        ineffective: &[],
        commented: &[],
        missing: &[],
    },
    File {
        command: &["nvme", "target"],
        title: "A target.toml",
        name: "target.toml",
        about: "`unlade nvme target --config target.toml`",
        keys: keys::of::<TargetConfig>,
        parse: parse::<TargetConfig>,
        repeated: &[],
        ineffective: &[],
        commented: &[],
        missing: &[],
    },
    File {
        command: &["fn", "serve"],
        title: "An fn.toml",
        name: "fn.toml",
        about: "`unlade fn serve --config fn.toml`",
        keys: gateway_keys,
        parse: parse::<GatewayConfig>,
        // Those of a worker.toml.
        repeated: &[
            "tenant.NAME.store",
            "tenant.NAME.services",
            "tenant.NAME.limits",
            "tenant.NAME.instance",
            "tenant.NAME.copies",
        ],
        ineffective: &[],
        commented: &[
            "allow_remote",
            "isolation.qemu.root",
            "workers_admin",
            "tenant.NAME.keys[].access_key_id",
            "tenant.NAME.keys[].secret_access_key",
            "principal.NAME.keys[].access_key_id",
            "principal.NAME.keys[].secret_access_key",
        ],
        missing: &[],
    },
    File {
        command: &["fn", "serve"],
        title: "A function.toml",
        name: "function.toml",
        about: "In the directory of a function, for `unlade fn deploy` and `functions` of fn.toml",
        keys: keys::of::<Manifest>,
        parse: parse::<Manifest>,
        repeated: &[],
        ineffective: &[],
        commented: &["python"],
        missing: &[],
    },
    File {
        command: &["fn", "worker"],
        title: "A worker.toml",
        name: "worker.toml",
        about: "`unlade fn worker --config worker.toml`",
        keys: keys::of::<WorkerConfig>,
        parse: parse::<WorkerConfig>,
        repeated: &[],
        ineffective: &[],
        commented: &[],
        missing: &[],
    },
    File {
        command: &["fn", "worker"],
        title: "A shared.toml",
        name: "shared.toml",
        about: "`unlade fn worker --shared shared.toml`",
        keys: shared_keys,
        parse: parse::<toml::Table>,
        repeated: &[],
        ineffective: &[],
        commented: &[],
        missing: &[],
    },
];

/// The keys of the list of tenants. Its structure is private to the worker: the message about an
/// unknown key lists them.
fn shared_keys() -> Vec<Vec<Step>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shared.toml");
    std::fs::write(&file, "zzzzzzzz = 1\n").unwrap();
    let mut worker = std::process::Command::new(env!("CARGO_BIN_EXE_unlade"));
    let output = worker.args(["fn", "worker", "--check", "--shared"]).arg(&file).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    let (_, known) = message.split_once("known are ").unwrap_or_else(|| panic!("{message}"));
    let known: Vec<Vec<Step>> = known
        .split('`')
        .skip(1)
        .step_by(2)
        .map(|key| vec![Step::Key(String::leak(key.to_owned()))])
        .collect();
    let log = keys::of::<unlade_runtime::logs::LogConfig>();
    known
        .into_iter()
        .chain(log.into_iter().map(|key| [&[Step::Key("log")], &key[..]].concat()))
        .collect()
}

/// The documented file in the help of its command.
fn documented(file: &File) -> String {
    let command: Vec<String> = file.command.iter().map(|word| (*word).to_owned()).collect();
    let help = page::help(env!("CARGO_BIN_EXE_unlade"), &command);
    let mut lines = help.lines().skip_while(|line| !line.starts_with(file.title));
    assert!(
        lines.by_ref().any(|line| line.ends_with(':')),
        "unlade {} --help has no line `{} …:`",
        file.command.join(" "),
        file.title
    );
    let lines = lines.map_while(|line| line.strip_prefix("  "));
    lines.map(|line| format!("{line}\n")).collect()
}

/// The page.
pub fn page() -> String {
    let mut text = HEAD.to_owned();
    for file in FILES {
        // Writing to a string does not fail.
        let _ = write!(text, "\n## {}\n\n{}:\n\n", file.name, file.about);
        let _ = write!(text, "```toml\n{}```\n", documented(file));
    }
    text.push_str("\n## unlade fn store\n\nIt has no file: [its options](commands.md) are all.\n");
    text
}

/// Every documented file parses, and has every key that its daemon accepts.
pub fn assert_complete() {
    let mut problems = String::new();
    for file in FILES {
        let text = documented(file);
        if let Err(error) = (file.parse)(&text) {
            // Writing to a string does not fail.
            let _ = writeln!(problems, "{}: {error}", file.name);
            continue;
        }
        let document = toml::Value::Table(toml::from_str(&text).unwrap());
        let keys = (file.keys)();
        assert!(!keys.is_empty(), "{}", file.name);
        for path in keys {
            let key = keys::render(&path);
            if let Some(problem) = problem(file, &text, has(&document, &path), &key) {
                let _ = writeln!(problems, "{}: the key {key} {problem}", file.name);
            }
        }
    }
    assert!(
        problems.is_empty(),
        "in the --help of the daemons, wrapped at 100 columns:\n{problems}"
    );
}

/// The problem with a key, if any; `is_there` if the file sets the key.
fn problem(file: &File, text: &str, is_there: bool, key: &str) -> Option<&'static str> {
    let is_in = |list: &[&str]| list.contains(&key);
    let last = key.rsplit(['.', ']']).next().unwrap_or(key);
    let mut words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let is_repeated = file.repeated.iter().any(|table| key.starts_with(table));
    match is_there {
        true => is_in(file.missing).then_some("is there: take it from the list of missing keys"),
        false if is_repeated || is_in(file.ineffective) || is_in(file.missing) => None,
        false if is_in(file.commented) && words.any(|word| word == last) => None,
        false => Some("is missing"),
    }
}

fn has(value: &toml::Value, path: &[Step]) -> bool {
    let Some((first, rest)) = path.split_first() else { return true };
    match (first, value) {
        (Step::Key(key), toml::Value::Table(table)) => {
            table.get(*key).is_some_and(|v| has(v, rest))
        }
        (Step::Named, toml::Value::Table(table)) => table.values().any(|value| has(value, rest)),
        (Step::Item, toml::Value::Array(array)) => array.iter().any(|value| has(value, rest)),
        _ => false,
    }
}

/// The walk through the structures finds keys of every kind of table.
pub fn assert_walk() {
    let keys: Vec<String> =
        keys::of::<BalancerConfig>().iter().map(|key| keys::render(key)).collect();
    for key in
        ["workers", "log.level", "listener[].tls.key", "pool.NAME.trust.ca", "pool.NAME.servers"]
    {
        assert!(keys.iter().any(|found| found == key), "{key}: {keys:?}");
    }
}
