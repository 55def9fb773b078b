//! A function gateway with its worker and store processes, which tests can kill.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use http_body_util::Full;
use serde_json::Value;
use unlade_command::http::{self, Bounds, Request};
use unlade_fn_gateway::auth::sign_request;
use unlade_fn_gateway::config::KeyPair;
use unlade_fn_gateway::credentials;

use crate::unlade;

/// Time limit of an operation.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bounds of a request.
const BOUNDS: Bounds = Bounds { time: PATIENCE, body_bytes_max: 64 << 20 };

/// Returns the reason why functions cannot run here in sandboxed processes; `None` if they can.
pub fn skip_reason() -> Option<String> {
    if let Some(reason) = crate::unable(&[]) {
        return Some(reason);
    }
    let python = Path::new("/usr/bin/python3").exists();
    (!python).then(|| "no /usr/bin/python3".to_owned())
}

/// A gateway and its child processes.
#[derive(Debug)]
pub struct Gateway {
    process: Child,
    /// Address to which callers connect.
    pub address: SocketAddr,
    /// Text of its configuration.
    config: String,
    /// Directory of all files.
    pub dir: tempfile::TempDir,
    store: u16,
    /// The command that starts the gateway, before the gateway's own.
    wrapper: Vec<String>,
}

/// Response of a gateway.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Header fields, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Body.
    pub body: Vec<u8>,
}

impl std::fmt::Debug for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let body = String::from_utf8_lossy(&self.body);
        let start: String = body.chars().take(2000).collect();
        write!(f, "{} {:?} {start}", self.status, self.headers)
    }
}

impl Answer {
    /// Returns a header field.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// Returns the body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Returns true if the function succeeded.
    pub fn is_success(&self) -> bool {
        self.status == 200 && self.header("x-amz-function-error").is_none()
    }

    /// Returns the type of the error, of the function or of the gateway.
    pub fn error(&self) -> String {
        let kind = self.json()["errorType"].as_str().map(str::to_owned);
        kind.or_else(|| self.header("x-amzn-errortype").map(str::to_owned)).unwrap_or_default()
    }
}

/// Data of a gateway for signing requests: its state, and the tenants of functions.
#[derive(Debug, Default)]
struct Known {
    state: PathBuf,
    tenants: BTreeMap<String, String>,
}

/// Gateways by address.
static GATEWAYS: Mutex<BTreeMap<SocketAddr, Known>> = Mutex::new(BTreeMap::new());

fn known<T>(act: impl FnOnce(&mut BTreeMap<SocketAddr, Known>) -> T) -> T {
    act(&mut GATEWAYS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the keys of a tenant of the gateway at an address; None for an unknown address.
pub fn keys_of(address: SocketAddr, tenant: &str) -> Option<KeyPair> {
    let state = known(|all| all.get(&address).map(|known| known.state.clone()))?;
    let text = std::fs::read_to_string(credentials::file(&state)).ok()?;
    credentials::parse(&text).remove(tenant)
}

/// Returns the header fields that sign a request, with a key of the tenant of the named function
/// or, without one, of the default tenant.
///
/// # Panics
/// The request cannot be signed.
pub fn signed(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<(String, String)> {
    let function = path.split('/').nth(3).unwrap_or_default();
    let tenant = known(|all| all.get(&address)?.tenants.get(function).cloned());
    let Some(keys) = keys_of(address, tenant.as_deref().unwrap_or("default")) else {
        return Vec::new();
    };
    sign_with(&keys, address, method, path, headers, body)
}

fn sign_with(
    keys: &KeyPair,
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<(String, String)> {
    let host = address.to_string();
    let signed = sign_request(keys, (method, path, &host), headers, body, SystemTime::now());
    signed.expect("it can be signed")
}

/// Sends a request that is signed with these keys, on a new connection.
///
/// # Errors
/// The connection fails.
pub fn ask_as(
    keys: &KeyPair,
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let signed = sign_with(keys, address, method, path, headers, body);
    let own = signed.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    ask_plainly(
        address,
        method,
        path,
        &headers.iter().copied().chain(own).collect::<Vec<_>>(),
        body,
    )
}

/// Sends an HTTP request, signed if the address is a gateway's. It is an error if the connection
/// ends within the response.
///
/// # Errors
/// The connection fails.
pub fn ask(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let signed = signed(address, method, path, headers, body);
    let own = signed.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    ask_plainly(
        address,
        method,
        path,
        &headers.iter().copied().chain(own).collect::<Vec<_>>(),
        body,
    )
}

/// Sends an HTTP request without a signature. It is an error if the connection ends within the
/// response.
///
/// # Errors
/// The connection fails.
pub fn ask_plainly(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let host = address.to_string();
    let mut request = Request::builder().method(method).uri(path).header("host", &host);
    for (name, value) in headers.iter().chain(&[("connection", "close")]) {
        request = request.header(*name, *value);
    }
    let body = Full::new(Bytes::copy_from_slice(body));
    let request = request.body(body).map_err(std::io::Error::other)?;
    let answer = http::exchange(&host, request, BOUNDS).map_err(std::io::Error::other)?;
    let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
    let headers =
        answer.headers.iter().map(|(name, value)| (name.to_string(), text(value.as_bytes())));
    let (status, headers) = (answer.status.as_u16(), headers.collect());
    Ok(Answer { status, headers, body: answer.body.to_vec() })
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

impl Gateway {
    /// Starts a gateway with additional configuration.
    ///
    /// # Panics
    /// The gateway does not start.
    pub fn start(config: &str) -> Gateway {
        Gateway::start_by(&[], config)
    }

    /// Starts a gateway by a command that executes its arguments.
    ///
    /// # Panics
    /// The gateway does not start.
    pub fn start_by(wrapper: &[&str], config: &str) -> Gateway {
        // Socket names have a short maximum length.
        let dir = tempfile::Builder::new().prefix("ufn").tempdir().expect("a directory");
        let store = free_port();
        let wrapper: Vec<String> = wrapper.iter().map(|&word| word.to_owned()).collect();
        let (process, address) = spawn(dir.path(), &wrapper, config, store);
        Gateway { process, address, config: config.to_owned(), dir, store, wrapper }
    }

    /// Starts the gateway again at the same address.
    ///
    /// # Panics
    /// The gateway does not start.
    pub fn restart(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let spawned = spawn(self.dir.path(), &self.wrapper, &self.config, self.store);
        (self.process, self.address) = spawned;
    }

    /// Writes another configuration and reloads it.
    ///
    /// # Panics
    /// The configuration cannot be written.
    pub fn reload(&mut self, config: &str) {
        config.clone_into(&mut self.config);
        write_config(self.dir.path(), config);
        signal(self.pid(), "HUP");
    }

    /// Returns the gateway's process ID.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the gateway has ended; returns its exit status.
    ///
    /// # Panics
    /// The gateway does not end.
    pub fn ended(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().expect("it is a child") {
                return status.code();
            }
            assert!(begin.elapsed() < PATIENCE, "it ends");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Deploys a function with its code and manifest.
    ///
    /// # Panics
    /// The deployment fails.
    pub fn deploy(&self, name: &str, manifest: &str, code: &str) {
        let output = self.try_deploy(name, manifest, code);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Deploys a function and returns the command's output.
    ///
    /// # Panics
    /// The files cannot be written.
    pub fn try_deploy(&self, name: &str, manifest: &str, code: &str) -> std::process::Output {
        let source = self.dir.path().join("source").join(name);
        std::fs::create_dir_all(&source).expect("a directory");
        std::fs::write(source.join("app.py"), code).expect("a file");
        let tenant = manifest.lines().find_map(|line| line.strip_prefix("tenant = "));
        let tenant = tenant.unwrap_or("default").trim_matches('"').to_owned();
        let (function, own) = (name.to_owned(), tenant.clone());
        known(|all| all.entry(self.address).or_default().tenants.insert(function, own));
        let manifest = format!("handler = \"app.handler\"\n{manifest}");
        std::fs::write(source.join("function.toml"), manifest).expect("a file");
        let mut command = Command::new(unlade());
        command.args(["fn", "deploy", "--gateway", &format!("http://{}", self.address)]);
        command.args(["--tenant", &tenant, "--state"]).arg(self.dir.path());
        command.arg(source).output().expect("the command runs")
    }

    /// Deploys a function with a runtime of its own, and returns the command's output.
    ///
    /// # Panics
    /// The files cannot be written.
    pub fn try_deploy_bootstrap(
        &self,
        name: &str,
        manifest: &str,
        bootstrap: &[u8],
    ) -> std::process::Output {
        let source = self.dir.path().join("source").join(name);
        std::fs::create_dir_all(&source).expect("a directory");
        let program = source.join("bootstrap");
        std::fs::write(&program, bootstrap).expect("a file");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&program, mode).expect("its mode");
        self.try_deploy_source(name, &source, manifest)
    }

    /// Deploys the directory of a function with a runtime of its own, and returns the command's
    /// output.
    ///
    /// # Panics
    /// The manifest cannot be written.
    pub fn try_deploy_source(
        &self,
        name: &str,
        source: &Path,
        manifest: &str,
    ) -> std::process::Output {
        let (function, tenant) = (name.to_owned(), "default".to_owned());
        known(|all| all.entry(self.address).or_default().tenants.insert(function, tenant));
        let manifest = format!("handler = \"bootstrap\"\nruntime = \"provided\"\n{manifest}");
        std::fs::write(source.join("function.toml"), manifest).expect("a file");
        let mut command = Command::new(unlade());
        command.args(["fn", "deploy", "--gateway", &format!("http://{}", self.address)]);
        command.args(["--name", name, "--state"]).arg(self.dir.path());
        command.arg(source).output().expect("the command runs")
    }

    /// Invokes a function and waits for the response.
    ///
    /// # Errors
    /// The connection fails.
    pub fn try_invoke(
        &self,
        name: &str,
        event: &Value,
        headers: &[(&str, &str)],
    ) -> std::io::Result<Answer> {
        invoke(self.address, name, event, headers)
    }

    /// Invokes a function and waits for the response.
    ///
    /// # Panics
    /// There is no response.
    pub fn invoke(&self, name: &str, event: &Value) -> Answer {
        self.try_invoke(name, event, &[]).expect("an answer")
    }

    /// Returns the gateway's status document.
    ///
    /// # Panics
    /// There is no response.
    pub fn state(&self) -> Value {
        ask(self.address, "GET", "/unlade/v1/state", &[], b"").expect("an answer").json()
    }

    /// Waits for a tenant's worker and returns its process ID.
    ///
    /// # Panics
    /// No process starts in time.
    pub fn worker(&self, tenant: &str) -> u32 {
        let find = || {
            let keys = keys_of(self.address, tenant)?;
            let path = "/unlade/v1/state";
            let state = ask_as(&keys, self.address, "GET", path, &[], b"").ok()?.json();
            let workers = state["workers"].as_array()?;
            let own = workers.iter().find(|worker| worker["tenant"] == tenant)?;
            own["pid"].as_u64().map(|pid| pid as u32)
        };
        until("a worker", find)
    }

    /// Waits for the built-in store and returns its process ID.
    ///
    /// # Panics
    /// No process starts in time.
    pub fn store(&self) -> u32 {
        until("a store", || self.state()["store"]["pid"].as_u64().map(|pid| pid as u32))
    }

    /// Creates a bucket of the built-in store.
    ///
    /// # Panics
    /// The bucket cannot be created.
    pub fn bucket(&self, name: &str) {
        std::fs::create_dir_all(self.objects().join(name)).expect("a bucket");
    }

    /// Returns the directory that the built-in store serves.
    pub fn objects(&self) -> PathBuf {
        self.dir.path().join("objects")
    }

    /// Reads an object of the built-in store.
    pub fn object(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        std::fs::read(self.objects().join(bucket).join(key)).ok()
    }

    /// Puts an object into the built-in store's directory.
    ///
    /// # Panics
    /// The object cannot be written.
    pub fn put(&self, bucket: &str, key: &str, body: &[u8]) {
        let file = self.objects().join(bucket).join(key);
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("a bucket");
        std::fs::write(file, body).expect("an object");
    }
}

/// Invokes a function of the gateway at an address.
///
/// # Errors
/// The connection fails.
pub fn invoke(
    address: SocketAddr,
    name: &str,
    event: &Value,
    headers: &[(&str, &str)],
) -> std::io::Result<Answer> {
    let path = format!("/2015-03-31/functions/{name}/invocations");
    ask(address, "POST", &path, headers, event.to_string().as_bytes())
}

/// Waits until `find` returns a value.
///
/// # Panics
/// `find` returns nothing in time.
pub fn until<T>(what: &str, find: impl Fn() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Sends a signal to a process. `name` is as in kill(1).
///
/// # Panics
/// There is no such process.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status();
    assert!(status.expect("kill runs").success());
}

fn write_config(dir: &Path, config: &str) -> PathBuf {
    let file = dir.join("fn.toml");
    let log = if config.contains("[log]") { "" } else { "[log]\nlevel = \"error\"\n" };
    std::fs::write(&file, format!("{config}\n{log}")).expect("a configuration");
    file
}

fn spawn(dir: &Path, wrapper: &[String], config: &str, store: u16) -> (Child, SocketAddr) {
    let file = write_config(dir, config);
    let words = wrapper.iter().map(OsString::from).chain([OsString::from(unlade())]);
    let words: Vec<OsString> = words.collect();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command.args(["fn", "serve", "--listen", "127.0.0.1:0", "--config"]).arg(file);
    command.arg("--state").arg(dir).args(["--store-listen", &format!("127.0.0.1:{store}")]);
    // The previous process may still be draining.
    let begin = Instant::now();
    loop {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("the gateway starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("its output");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        if let Some(address) = line.trim().strip_prefix("http://") {
            let address = address.parse().expect("an address");
            known(|all| {
                let state = dir.to_owned();
                // After a restart it has the same functions.
                let before = all.extract_if(.., |_, known| known.state == state).last();
                let tenants = before.map(|(_, known)| known.tenants).unwrap_or_default();
                all.insert(address, Known { state, tenants })
            });
            return (process, address);
        }
        let _ = process.wait();
        assert!(begin.elapsed() < PATIENCE, "the gateway serves");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Ok(None) = self.process.try_wait() {
            signal(self.process.id(), "TERM");
            let begin = Instant::now();
            while matches!(self.process.try_wait(), Ok(None)) && begin.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A Zip archive of the files of a directory, in base64.
///
/// # Panics
/// They cannot be read, or there is no Python.
pub fn zip(directory: &Path) -> Value {
    let script = "import base64, io, os, sys, zipfile\n\
        out = io.BytesIO()\n\
        with zipfile.ZipFile(out, 'w') as archive:\n    \
            for name in os.listdir(sys.argv[1]):\n        \
                archive.write(os.path.join(sys.argv[1], name), name)\n\
        print(base64.b64encode(out.getvalue()).decode())";
    let output = Command::new("/usr/bin/python3").args(["-c", script]).arg(directory).output();
    String::from_utf8(output.unwrap().stdout).unwrap().trim().into()
}
