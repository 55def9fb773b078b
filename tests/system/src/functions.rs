//! A gateway of functions with everything that belongs to it, as processes that can be killed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use unlade_fn_gateway::auth::{KeyPair, sign_request};
use unlade_fn_gateway::credentials;

use crate::unlade;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why functions cannot run here in sandboxed processes; `None` when they can.
pub fn skip_reason() -> Option<String> {
    if let Some(reason) = crate::unable(&[]) {
        return Some(reason);
    }
    let python = Path::new("/usr/bin/python3").exists();
    (!python).then(|| "no /usr/bin/python3".to_owned())
}

/// A gateway, and what it has started.
#[derive(Debug)]
pub struct Gateway {
    process: Child,
    /// Where callers connect.
    pub address: SocketAddr,
    /// What was said in its configuration.
    config: String,
    /// Where everything is kept.
    pub dir: tempfile::TempDir,
    store: u16,
}

/// What a gateway answered.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status.
    pub status: u16,
    /// Its header fields, names in small letters.
    pub headers: Vec<(String, String)>,
    /// Its body.
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
    /// A header field.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; null where it is none.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// Whether the function succeeded.
    pub fn is_success(&self) -> bool {
        self.status == 200 && self.header("x-amz-function-error").is_none()
    }

    /// What kind of error it is, of the function or of the gateway.
    pub fn error(&self) -> String {
        let kind = self.json()["errorType"].as_str().map(str::to_owned);
        kind.or_else(|| self.header("x-amzn-errortype").map(str::to_owned)).unwrap_or_default()
    }
}

/// What is known of a gateway by who asks it: its state, and the tenants of functions.
#[derive(Debug, Default)]
struct Known {
    state: PathBuf,
    tenants: BTreeMap<String, String>,
}

/// Gateways by their addresses.
static GATEWAYS: Mutex<BTreeMap<SocketAddr, Known>> = Mutex::new(BTreeMap::new());

fn known<T>(act: impl FnOnce(&mut BTreeMap<SocketAddr, Known>) -> T) -> T {
    act(&mut GATEWAYS.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The keys of a tenant of the gateway at an address; nothing where it is no gateway's.
pub fn keys_of(address: SocketAddr, tenant: &str) -> Option<KeyPair> {
    let state = known(|all| all.get(&address).map(|known| known.state.clone()))?;
    let text = std::fs::read_to_string(credentials::file(&state)).ok()?;
    credentials::parse(&text).remove(tenant)
}

/// The header fields that sign a request, with a key of the tenant whose function it names, else of
/// the default one's.
///
/// # Panics
/// It cannot be signed.
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

/// Asks a gateway as the one who has these keys; a connection of its own.
///
/// # Errors
/// The connection's.
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

/// Asks over HTTP, with a signature where it is a gateway; an error where the connection ends
/// before the answer does.
///
/// # Errors
/// The connection's.
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

/// Asks over HTTP as nobody; an error where the connection ends before the answer does.
///
/// # Errors
/// The connection's.
pub fn ask_plainly(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        let _ = write!(head, "{name}: {value}\r\n");
    }
    let _ = write!(head, "content-length: {}\r\n\r\n", body.len());
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes)?;
    parse(&bytes).ok_or_else(|| std::io::Error::other("the answer breaks off"))
}

fn parse(bytes: &[u8]) -> Option<Answer> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let header = |line: &str| {
        let (name, value) = line.split_once(':')?;
        Some((name.to_ascii_lowercase(), value.trim().to_owned()))
    };
    let headers: Vec<_> = lines.filter_map(header).collect();
    let body = bytes[end + 4..].to_vec();
    let answer = Answer { status, headers, body };
    let length = answer.header("content-length").map_or(Ok(0), str::parse).ok()?;
    (answer.body.len() == length).then_some(answer)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

impl Gateway {
    /// Starts one with more of a configuration.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(config: &str) -> Gateway {
        // Names of sockets are short.
        let dir = tempfile::Builder::new().prefix("ufn").tempdir().expect("a directory");
        let store = free_port();
        let (process, address) = spawn(dir.path(), config, store);
        Gateway { process, address, config: config.to_owned(), dir, store }
    }

    /// Starts it again, where it was.
    ///
    /// # Panics
    /// It does not start.
    pub fn restart(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        (self.process, self.address) = spawn(self.dir.path(), &self.config, self.store);
    }

    /// Another configuration, which is read at once.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn reload(&mut self, config: &str) {
        config.clone_into(&mut self.config);
        write_config(self.dir.path(), config);
        signal(self.pid(), "HUP");
    }

    /// The gateway's process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits until the gateway has ended; its exit status.
    ///
    /// # Panics
    /// It does not end.
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

    /// A file of the function of a name, and its manifest; deployed.
    ///
    /// # Panics
    /// It is not deployed.
    pub fn deploy(&self, name: &str, manifest: &str, code: &str) {
        let output = self.try_deploy(name, manifest, code);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Deploys; what the command said.
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

    /// Invokes a function, and waits.
    ///
    /// # Errors
    /// The connection's.
    pub fn try_invoke(
        &self,
        name: &str,
        event: &Value,
        headers: &[(&str, &str)],
    ) -> std::io::Result<Answer> {
        invoke(self.address, name, event, headers)
    }

    /// Invokes a function, and waits.
    ///
    /// # Panics
    /// There is no answer.
    pub fn invoke(&self, name: &str, event: &Value) -> Answer {
        self.try_invoke(name, event, &[]).expect("an answer")
    }

    /// What the gateway says of itself.
    ///
    /// # Panics
    /// It says nothing.
    pub fn state(&self) -> Value {
        ask(self.address, "GET", "/unlade/v1/state", &[], b"").expect("an answer").json()
    }

    /// The process of a tenant's worker, once there is one.
    ///
    /// # Panics
    /// There is none in time.
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

    /// The process of the built-in store, once there is one.
    ///
    /// # Panics
    /// There is none in time.
    pub fn store(&self) -> u32 {
        until("a store", || self.state()["store"]["pid"].as_u64().map(|pid| pid as u32))
    }

    /// Makes a bucket of the built-in store.
    ///
    /// # Panics
    /// It cannot be made.
    pub fn bucket(&self, name: &str) {
        std::fs::create_dir_all(self.objects().join(name)).expect("a bucket");
    }

    /// The directory that the built-in store serves.
    pub fn objects(&self) -> PathBuf {
        self.dir.path().join("objects")
    }

    /// An object of the built-in store.
    pub fn object(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        std::fs::read(self.objects().join(bucket).join(key)).ok()
    }

    /// Puts an object into the built-in store's directory.
    ///
    /// # Panics
    /// It cannot be written.
    pub fn put(&self, bucket: &str, key: &str, body: &[u8]) {
        std::fs::write(self.objects().join(bucket).join(key), body).expect("an object");
    }
}

/// Invokes a function of the gateway at an address.
///
/// # Errors
/// The connection's.
pub fn invoke(
    address: SocketAddr,
    name: &str,
    event: &Value,
    headers: &[(&str, &str)],
) -> std::io::Result<Answer> {
    let path = format!("/2015-03-31/functions/{name}/invocations");
    ask(address, "POST", &path, headers, event.to_string().as_bytes())
}

/// Waits for something.
///
/// # Panics
/// It does not come.
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

/// Sends a signal to a process, by its name in kill(1).
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

fn spawn(dir: &Path, config: &str, store: u16) -> (Child, SocketAddr) {
    let file = write_config(dir, config);
    let mut command = Command::new(unlade());
    command.args(["fn", "serve", "--listen", "127.0.0.1:0", "--config"]).arg(file);
    command.arg("--state").arg(dir).args(["--store-listen", &format!("127.0.0.1:{store}")]);
    // One of before may still be draining.
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
                // Started again, it has the functions that it had.
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
