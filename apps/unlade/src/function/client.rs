//! `unlade fn deploy|list|invoke|remove|env`: what is asked of a gateway.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use http_body_util::Full;
use serde_json::Value;
use unlade_config::ByteSize;
use unlade_fn_gateway::auth::sign_request;
use unlade_fn_gateway::config::KeyPair;
use unlade_fn_gateway::credentials;
use unlade_fn_gateway::deploy::{MANIFEST, pack, resolve};
use unlade_fn_model::isolation::{Mode, Runtime};
use unlade_fn_model::manifest::{Backend, Manifest};

use unlade_command::http::{self, Answer, Bounds, HttpError, Method, Request};
use unlade_command::output::line;

pub(super) const DEPLOY_HELP: &str = "\
The directory has the function's Python files and, where more than the handler is to be said, a \
function.toml (`unlade fn serve --help`). What is said here goes before what is said there. The \
function is imported in a sandbox before it is served: where that fails the error is printed, the \
exit status is not 0, and what was deployed before goes on. The operator's configuration decides \
which tenants, modes, packages and interpreters a deployment may choose.";

/// Where the gateway is.
#[derive(Debug, Args)]
pub(super) struct GatewayArgs {
    /// The gateway
    #[arg(long, value_name = "URL", env = "AWS_ENDPOINT_URL_LAMBDA")]
    gateway: Option<String>,
    /// Where it keeps everything, the keys of tenants with it. Where this and --tenant are not said,
    /// and AWS_ENDPOINT_URL_LAMBDA is set, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are used
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Tenant of the functions
    #[arg(long)]
    tenant: Option<String>,
}

/// The default address of a gateway.
const GATEWAY: &str = "http://127.0.0.1:9001";
/// Where it keeps everything.
const STATE: &str = "/var/lib/unlade/fn";

/// Bounds of a request: an invocation may take 15 minutes, and wait for an instance before.
const BOUNDS: Bounds = Bounds { time: Duration::from_secs(3600), body_bytes_max: 64 << 20 };

impl GatewayArgs {
    fn address(&self) -> &str {
        self.gateway.as_deref().unwrap_or(GATEWAY)
    }

    /// Keys that sign requests; `None` where there are none.
    ///
    /// # Errors
    /// The keys that were named are not there.
    fn keys(&self) -> Result<Option<KeyPair>> {
        let is_named = self.state.is_some() || self.tenant.is_some();
        let environment = environment_keys();
        if environment.is_some() && self.gateway.is_some() && !is_named {
            return Ok(environment);
        }
        let path = credentials::file(self.state.as_deref().unwrap_or(Path::new(STATE)));
        let tenant = self.tenant.as_deref().unwrap_or(unlade_fn_gateway::config::DEFAULT_TENANT);
        let read = std::fs::read_to_string(&path);
        match read.as_ref().map(|text| credentials::parse(text).remove(tenant)) {
            Ok(Some(pair)) => Ok(Some(pair)),
            // Those of a configuration are its author's.
            _ if environment.is_some() => Ok(environment),
            Ok(None) if self.tenant.is_some() => {
                let path = path.display();
                bail!(
                    "{path}: there is no key of tenant {tenant}; set AWS_ACCESS_KEY_ID and \
                     AWS_SECRET_ACCESS_KEY"
                )
            }
            // A gateway without authentication has none; another one says what is missing.
            Err(error) if is_named && error.kind() != std::io::ErrorKind::NotFound => {
                bail!("{}: {error}", path.display())
            }
            Ok(None) | Err(_) => Ok(None),
        }
    }

    /// Asks the gateway, with a signature if there are keys.
    ///
    /// # Errors
    /// There is no answer.
    pub(super) fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Result<Answer> {
        ask(self.address(), self.keys()?.as_ref(), method, path, headers, body)
    }
}

fn environment_keys() -> Option<KeyPair> {
    let text = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let access_key_id = text("AWS_ACCESS_KEY_ID")?;
    Some(KeyPair { access_key_id, secret_access_key: text("AWS_SECRET_ACCESS_KEY")? })
}

/// Arguments of `unlade fn deploy`.
#[derive(Debug, Args)]
pub(super) struct DeployArgs {
    /// The function's directory
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Its name; the directory's where it is not said
    #[arg(long)]
    name: Option<String>,
    /// MODULE.FUNCTION
    #[arg(long)]
    handler: Option<String>,
    /// Memory limit of an instance, as 256MiB
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// How long an invocation may take, as 30s
    #[arg(long, value_name = "TIME")]
    timeout: Option<humantime::Duration>,
    /// A variable of its environment, NAME=VALUE; may be there several times
    #[arg(long = "env", value_name = "NAME=VALUE")]
    environment: Vec<String>,
    /// Sandbox of its instances
    #[arg(long, value_enum)]
    isolation: Option<IsolationArg>,
    /// Path to its objects: offload, prefetch, sdk, tcp, stock
    #[arg(long, value_parser = mode)]
    mode: Option<Mode>,
    /// A directory of packages; may be there several times
    #[arg(long, value_name = "DIR")]
    packages: Vec<PathBuf>,
    #[command(flatten)]
    gateway: GatewayArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IsolationArg {
    Process,
    Qemu,
}

fn mode(text: &str) -> Result<Mode, String> {
    let known = || Mode::ALL.map(Mode::name).join(", ");
    let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
    found.ok_or_else(|| format!("is none of {}", known()))
}

/// Arguments of `unlade fn invoke`.
#[derive(Debug, Args)]
pub(super) struct InvokeArgs {
    /// The function
    name: String,
    /// The event: JSON, @FILE, or - for standard input
    #[arg(long, default_value = "{}")]
    payload: String,
    /// Do not wait for the result
    #[arg(long)]
    event: bool,
    /// Print the end of its log, and where the time went, to standard error
    #[arg(long)]
    log: bool,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// Arguments of `unlade fn remove`.
#[derive(Debug, Args)]
pub(super) struct RemoveArgs {
    /// The function
    name: String,
    #[command(flatten)]
    gateway: GatewayArgs,
}

/// Arguments of `unlade fn env`.
#[derive(Debug, Args)]
pub(super) struct EnvArgs {
    /// Where the gateway keeps everything
    #[arg(long, value_name = "DIR", default_value = "/var/lib/unlade/fn")]
    state: PathBuf,
}

/// The answer, if it is a success.
///
/// # Errors
/// The gateway's reason.
pub(super) fn done(answer: Answer) -> Result<Answer> {
    if answer.status.is_success() {
        return Ok(answer);
    }
    let said: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
    let message = said.get("message").and_then(Value::as_str).unwrap_or("no reason was given");
    bail!("{message} ({})", answer.status.as_u16())
}

/// Asks a gateway, with a signature where there are keys.
///
/// # Errors
/// It is not there, or breaks off.
pub(crate) fn ask(
    gateway: &str,
    keys: Option<&KeyPair>,
    method: Method,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Answer> {
    let host = gateway.strip_prefix("http://").map(|host| host.trim_end_matches('/'));
    let host = host.with_context(|| format!("{gateway:?} is not http://HOST:PORT"))?;
    let body = body.into();
    let mut request = Request::builder().method(&method).uri(path).header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(keys) = keys {
        let what = (method.as_str(), path, host);
        let signed = sign_request(keys, what, headers, &body, SystemTime::now());
        for (name, value) in signed.map_err(|refusal| anyhow::anyhow!(refusal.message()))? {
            request = request.header(name, value);
        }
    }
    let request = request.body(Full::new(body))?;
    http::exchange(host, request, BOUNDS).map_err(|error| match error {
        HttpError::Connect { error, .. } => anyhow::Error::from(error)
            .context(format!("no gateway at {gateway}; start `unlade fn serve`")),
        other => anyhow::Error::from(other).context("the gateway breaks off"),
    })
}

fn manifest(args: &DeployArgs) -> Result<Manifest> {
    let path = args.directory.join(MANIFEST);
    let mut manifest = match path.exists() {
        true => unlade_config::load(&path)?,
        false => {
            let handler = args.handler.as_deref();
            let handler = handler.with_context(|| {
                format!(
                    "{} is not there: name the handler, as --handler app.handler",
                    path.display()
                )
            })?;
            Manifest::of_handler(handler)
        }
    };
    resolve(&mut manifest, &args.directory)?;
    if let Some(handler) = &args.handler {
        manifest.handler = handler.clone();
    }
    if let Some(tenant) = &args.gateway.tenant {
        manifest.tenant = Some(tenant.clone());
    }
    if let Some(memory) = &args.memory {
        manifest.memory = memory.parse::<ByteSize>().context("--memory")?;
    }
    if let Some(timeout) = args.timeout {
        manifest.timeout = Duration::from(timeout);
    }
    for pair in &args.environment {
        let (name, value) = pair.split_once('=').context("--env is NAME=VALUE")?;
        manifest.environment.insert(name.to_owned(), value.to_owned());
    }
    match args.isolation {
        Some(IsolationArg::Process) => manifest.isolation = Backend::Process,
        Some(IsolationArg::Qemu) => manifest.isolation = Backend::Qemu,
        None => {}
    }
    manifest.mode = args.mode.unwrap_or(manifest.mode);
    for directory in &args.packages {
        let found = directory.canonicalize();
        manifest.packages.push(found.with_context(|| directory.display().to_string())?);
    }
    manifest.check()?;
    if manifest.runtime == Runtime::Provided {
        let bootstrap = args.directory.join("bootstrap");
        if !bootstrap.is_file() {
            bail!("runtime = \"provided\" needs the executable {}", bootstrap.display());
        }
        return Ok(manifest);
    }
    if manifest.runtime == Runtime::Node {
        return node_handler(&args.directory, &manifest.handler).map(|()| manifest);
    }
    let module = manifest.handler.rsplit_once('.').map_or("", |(module, _)| module);
    let file = args.directory.join(module.replace('.', "/"));
    if !file.with_extension("py").exists() && !file.join("__init__.py").exists() {
        bail!("the handler {} has no file {}.py", manifest.handler, file.display());
    }
    Ok(manifest)
}

/// Checks that the file of a handler in Node.js exists.
fn node_handler(directory: &Path, handler: &str) -> Result<()> {
    let (folder, last) = handler.rsplit_once('/').unwrap_or((".", handler));
    let file = last.split('.').next().unwrap_or_default();
    let file = directory.join(folder).join(file);
    let is_there = |ending: &&str| PathBuf::from(format!("{}{ending}", file.display())).is_file();
    match ["", ".js", ".mjs", ".cjs"].iter().any(is_there) {
        true => Ok(()),
        false => bail!("the handler {handler} has no file {}.js, .mjs or .cjs", file.display()),
    }
}

fn name_of(directory: &Path) -> Result<String> {
    let path = directory.canonicalize().with_context(|| directory.display().to_string())?;
    let name = path.file_name().and_then(|name| name.to_str()).context("no name; use --name")?;
    Ok(name.to_owned())
}

/// Deploys a directory.
///
/// # Errors
/// The directory's, or the gateway's.
pub(super) fn deploy(args: &DeployArgs) -> Result<()> {
    let manifest = manifest(args)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(&args.directory)?,
    };
    let archive = pack(&args.directory, &manifest).context("the directory cannot be read")?;
    let path = format!("/unlade/v1/functions/{name}");
    done(args.gateway.ask(Method::PUT, &path, &[], archive)?)?;
    line(format_args!("{name}: deployed ({}, {})", manifest.handler, manifest.mode.name()))
}

/// Lists functions.
///
/// # Errors
/// The gateway's.
pub(super) fn list(args: &GatewayArgs) -> Result<()> {
    let answer = done(args.ask(Method::GET, "/2015-03-31/functions/", &[], "")?)?;
    let said: Value = serde_json::from_slice(&answer.body)?;
    for function in said["Functions"].as_array().into_iter().flatten() {
        let text = |name: &str| function[name].as_str().unwrap_or_default().to_owned();
        let (name, handler) = (text("FunctionName"), text("Handler"));
        let (memory, timeout) = (&function["MemorySize"], &function["Timeout"]);
        line(format_args!("{name:<40} {handler:<30} {memory} MiB, {timeout} s"))?;
    }
    Ok(())
}

/// Invokes a function; an exit status of 1 where it failed.
///
/// # Errors
/// It was not invoked.
pub(super) fn invoke(args: &InvokeArgs) -> Result<ExitCode> {
    let event = match args.payload.strip_prefix('@') {
        Some(file) => std::fs::read(file).with_context(|| file.to_owned())?,
        None if args.payload == "-" => {
            let mut event = Vec::new();
            std::io::Read::read_to_end(&mut std::io::stdin().lock(), &mut event)?;
            event
        }
        None => args.payload.clone().into_bytes(),
    };
    let kind = if args.event { "Event" } else { "RequestResponse" };
    let log = if args.log { "Tail" } else { "None" };
    let headers = [("x-amz-invocation-type", kind), ("x-amz-log-type", log)];
    let path = format!("/2015-03-31/functions/{}/invocations", args.name);
    let answer = done(args.gateway.ask(Method::POST, &path, &headers, event)?)?;
    let header = |name: &str| answer.headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(log) = header("x-amz-log-result") {
        use base64::Engine as _;
        let log = base64::engine::general_purpose::STANDARD.decode(log).unwrap_or_default();
        eprint!("{}", String::from_utf8_lossy(&log));
        let (origin, timings) = (header("x-unlade-origin"), header("x-unlade-timings"));
        eprintln!("{}: {}", origin.unwrap_or_default(), timings.unwrap_or_default());
    }
    if !args.event {
        line(format_args!("{}", String::from_utf8_lossy(&answer.body)))?;
    }
    let failed = header("x-amz-function-error").is_some();
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Removes a function.
///
/// # Errors
/// The gateway's.
pub(super) fn remove(args: &RemoveArgs) -> Result<()> {
    let path = format!("/2015-03-31/functions/{}", args.name);
    done(args.gateway.ask(Method::DELETE, &path, &[], "")?)?;
    line(format_args!("{}: removed", args.name))
}

/// Prints what clients need to know.
///
/// # Errors
/// There is no gateway's state.
pub(super) fn env(args: &EnvArgs) -> Result<()> {
    let path = args.state.join("env");
    let text = std::fs::read_to_string(&path);
    let text = text.with_context(|| {
        format!("{}: is a gateway serving with this --state, and are you its user?", path.display())
    })?;
    line(format_args!("{}", text.trim_end()))
}
