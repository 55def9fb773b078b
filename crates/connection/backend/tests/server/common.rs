//! A server of a temporary directory, and a client that sends raw bytes.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use unlade_backend::{BackendConfig, BackendError, Server};
use unlade_metrics::Meter;
use unlade_runtime::{Control, Ended};

/// Time limit of a wait in a test.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server, drained on drop.
pub struct Fixture {
    directory: tempfile::TempDir,
    http: SocketAddr,
    https: Option<SocketAddr>,
    admin: Option<SocketAddr>,
    meter: Arc<Meter>,
    control: Control<BackendConfig>,
    thread: Option<JoinHandle<Result<Ended, BackendError>>>,
}

/// Returns a loopback address with any free port.
pub fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Starts a server with two workers.
pub fn fixture() -> Fixture {
    fixture_with(|_| {})
}

/// Starts a server with two workers and further configuration.
pub fn fixture_with(configure: impl FnOnce(&mut BackendConfig)) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let mut config = BackendConfig::new(any_port(), directory.path().to_owned());
    config.workers = 2;
    configure(&mut config);
    let same = config.clone();
    let server = Server::bind(config).unwrap();
    let (http, https, admin) = (server.http(), server.https(), server.admin());
    let (meter, control) = (server.meter(), server.control());
    let thread = std::thread::spawn(move || server.run(false, || Ok(same.clone())));
    Fixture { directory, http, https, admin, meter, control, thread: Some(thread) }
}

impl Fixture {
    pub fn root(&self) -> &Path {
        self.directory.path()
    }

    pub fn http(&self) -> SocketAddr {
        self.http
    }

    pub fn https(&self) -> Option<SocketAddr> {
        self.https
    }

    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    pub fn meter(&self) -> &Meter {
        &self.meter
    }

    pub fn control(&self) -> &Control<BackendConfig> {
        &self.control
    }

    pub fn client(&self) -> Client {
        Client::connect(self.http)
    }

    /// Writes an object of pseudorandom bytes directly to the directory.
    pub fn write(&self, name: &str, bytes: usize) -> Vec<u8> {
        let (path, content) = (self.root().join(name), noise(bytes, name.len() as u64));
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, &content).unwrap();
        content
    }

    /// Creates a sparse object of zeros.
    pub fn write_zeros(&self, name: &str, bytes: u64) {
        std::fs::File::create(self.root().join(name)).unwrap().set_len(bytes).unwrap();
    }

    /// Waits until the counters satisfy a predicate.
    pub fn until(&self, said: impl Fn(&Meter) -> bool) {
        let start = Instant::now();
        while !said(&self.meter) {
            assert!(start.elapsed() < PATIENCE, "waited in vain: {}", self.meter.render());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits for the end of a drain.
    pub fn join(mut self) -> Ended {
        self.thread.take().unwrap().join().unwrap().unwrap()
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.control.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join().unwrap();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// Returns pseudorandom bytes for a seed.
pub fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..bytes).map(|_| next()).collect()
}

/// A received response.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    /// Fields by lower-case name.
    pub fields: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

/// A client that sends raw bytes and reads one response at a time.
pub struct Client {
    tcp: TcpStream,
    read: Vec<u8>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        Client::try_connect(address).unwrap()
    }

    pub fn try_connect(address: SocketAddr) -> Option<Client> {
        let tcp = TcpStream::connect(address).ok()?;
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        tcp.set_nodelay(true).unwrap();
        Some(Client { tcp, read: Vec::new() })
    }

    /// Returns a handle of the socket, for writing.
    pub fn writer(&self) -> TcpStream {
        self.tcp.try_clone().unwrap()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.tcp.write_all(bytes).unwrap();
    }

    pub fn exchange(&mut self, method: &str, target: &str, fields: &str, body: &[u8]) -> Response {
        let mut message = format!("{method} {target} HTTP/1.1\r\nHost: objects\r\n{fields}");
        if method == "PUT" || !body.is_empty() {
            message.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        message.push_str("\r\n");
        self.send(message.as_bytes());
        self.send(body);
        self.read_response(method)
    }

    pub fn read_response(&mut self, method: &str) -> Response {
        let head_end = loop {
            if let Some(at) = self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            assert_ne!(self.fill(), 0, "the server closed instead of a response");
        };
        let head: Vec<u8> = self.read.drain(..head_end).collect();
        let head = String::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let fields: BTreeMap<String, String> = lines
            .map(|line| line.split_once(": ").unwrap())
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let bodiless = method == "HEAD" || matches!(status, 100 | 204 | 304);
        let length = match bodiless {
            true => 0,
            false => fields["content-length"].parse().unwrap(),
        };
        while self.read.len() < length {
            assert_ne!(self.fill(), 0, "the server closed within a body");
        }
        let body = self.read.drain(..length).collect();
        Response { status, fields, body }
    }

    /// Asserts that the server sends only the end of the stream.
    pub fn expect_end(&mut self) {
        assert!(self.read.is_empty(), "{:?}", String::from_utf8_lossy(&self.read));
        // The server waits for the client's FIN before it closes; a RST would be an error.
        self.tcp.shutdown(Shutdown::Write).unwrap_or_default();
        assert_eq!(self.fill(), 0);
    }

    fn fill(&mut self) -> usize {
        let mut buffer = vec![0; 256 * 1024];
        let count = self.tcp.read(&mut buffer).unwrap();
        self.read.extend_from_slice(&buffer[..count]);
        count
    }
}
