//! A balancer in this process, servers written by hand, and clients that see every byte.
#![allow(dead_code)]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use unlade_balancer::{Balancer, BalancerConfig, Handle};
use unlade_metrics::Event;

/// Longer than any step of these tests; a test that waits this long has failed.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A running balancer; ends when dropped.
pub struct Lb {
    pub addresses: Vec<SocketAddr>,
    pub handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Lb {
    /// Starts a balancer with the text of an `lb.toml`.
    pub fn new(text: &str) -> Lb {
        let config = BalancerConfig::parse(text, "test").unwrap();
        let balancer = Balancer::bind(config).unwrap();
        let (addresses, handle) = (balancer.addresses().to_vec(), balancer.handle());
        let thread = std::thread::spawn(move || balancer.run(false).unwrap());
        Lb { addresses, handle, thread: Some(thread) }
    }

    /// One listener on 127.0.0.1, one pool with `server`; `more` is put in front.
    pub fn before(server: SocketAddr, more: &str) -> Lb {
        Lb::new(&config(server, more))
    }

    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address())
    }

    pub fn count(&self, event: Event) -> u64 {
        self.handle.meter().value(event)
    }

    pub fn gauge(&self, gauge: unlade_metrics::Gauge) -> i64 {
        self.handle.meter().gauge(gauge)
    }

    /// Waits until `event` has been counted `n` times: events are counted after the client sees
    /// them.
    pub fn wait_for(&self, event: Event, n: u64) {
        let start = std::time::Instant::now();
        while self.count(event) < n {
            assert!(start.elapsed() < PATIENCE, "{event:?} is {}, not {n}", self.count(event));
            std::thread::sleep(Duration::from_millis(2));
        }
        assert_eq!(self.count(event), n, "{event:?}");
    }

    /// Waits for the end of a drain.
    pub fn join(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Lb {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

/// The text of a small `lb.toml`.
pub fn config(server: SocketAddr, more: &str) -> String {
    format!(
        "workers = 1\n{more}\n[[listener]]\naddress = \"127.0.0.1:0\"\n\
         [[route]]\npool = \"p\"\n[pool.p]\nservers = [\"{server}\"]\n"
    )
}

/// A server; a function handles each connection.
pub struct Server {
    pub address: SocketAddr,
    ending: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
}

impl Server {
    pub fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let ending = Arc::new(AtomicBool::new(false));
        let flag = ending.clone();
        // Used to close the connections that are open at the end.
        let open = Arc::new(Mutex::new(HashMap::new()));
        let serve = Arc::new(serve);
        let accepting = std::thread::spawn(move || {
            let mut threads = Vec::new();
            for stream in listener.incoming() {
                if flag.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(stream) = stream else { continue };
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_nodelay(true).unwrap();
                let key = threads.len();
                open.lock().unwrap().insert(key, stream.try_clone().unwrap());
                let (serve, open) = (serve.clone(), open.clone());
                threads.push(std::thread::spawn(move || {
                    serve(stream);
                    open.lock().unwrap().remove(&key);
                }));
            }
            for (_, stream) in open.lock().unwrap().drain() {
                let _ = stream.shutdown(Shutdown::Both);
            }
            for thread in threads {
                // A server that is cut off may panic; the test's assertions are what counts.
                let _ = thread.join();
            }
        });
        Server { address, ending, accepting: Some(accepting) }
    }

    /// A server that answers every request of every connection with `answer`.
    pub fn answering(answer: impl Fn(&Request) -> Vec<u8> + Send + Sync + 'static) -> Server {
        Server::new(move |stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut stream = stream;
            while let Some(request) = Request::read(&mut reader) {
                let answer = answer(&request);
                if stream.write_all(&answer).is_err() || answer.is_empty() {
                    return;
                }
                if !has_end(&answer) {
                    return;
                }
            }
        })
    }

    /// A server with responses at `/size/N`, `/chunked/N`, `/until-close/N`, `/head`, `/sha`.
    pub fn ordinary() -> Server {
        Server::answering(ordinary)
    }
}

/// Returns true if an answer of [`Server::answering`] states its end.
fn has_end(answer: &[u8]) -> bool {
    let head = String::from_utf8_lossy(answer).to_ascii_lowercase();
    let head = head.split("\r\n\r\n").next().unwrap_or_default().to_owned();
    head.contains("content-length:") || head.contains("chunked") || head.contains(" 204 ")
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.accepting.take() {
            let _ = thread.join();
        }
    }
}

/// A request as a server sees it.
#[derive(Clone, Debug)]
pub struct Request {
    pub head: String,
    pub body: Vec<u8>,
}

impl Request {
    pub fn read(reader: &mut impl BufRead) -> Option<Request> {
        let head = read_head(reader)?;
        let body = read_body(reader, &head, false);
        Some(Request { head, body })
    }

    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.head, name)
    }
}

pub fn read_head(reader: &mut impl BufRead) -> Option<String> {
    let mut head = String::new();
    loop {
        let mut line = Vec::new();
        let count = reader.read_until(b'\n', &mut line).ok()?;
        if count == 0 {
            return None;
        }
        head.push_str(std::str::from_utf8(&line).unwrap());
        if head.ends_with("\r\n\r\n") {
            return Some(head);
        }
    }
}

pub fn header(head: &str, name: &str) -> Option<String> {
    head.lines().skip(1).find_map(|line| {
        let (key, value) = line.split_once(':')?;
        key.eq_ignore_ascii_case(name).then(|| value.trim().to_owned())
    })
}

fn read_body(reader: &mut impl BufRead, head: &str, to_end: bool) -> Vec<u8> {
    let mut body = Vec::new();
    if let Some(length) = header(head, "content-length") {
        reader.take(length.parse().unwrap()).read_to_end(&mut body).unwrap();
        assert_eq!(body.len().to_string(), length, "the body is cut off");
    } else if header(head, "transfer-encoding").is_some() {
        loop {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            let size = u64::from_str_radix(line.trim(), 16).unwrap();
            let before = body.len();
            reader.take(size).read_to_end(&mut body).unwrap();
            assert_eq!((body.len() - before) as u64, size, "a chunk is cut off");
            line.clear();
            reader.read_line(&mut line).unwrap();
            assert_eq!(line, "\r\n");
            if size == 0 {
                break;
            }
        }
    } else if to_end {
        reader.read_to_end(&mut body).unwrap();
    }
    body
}

/// Returns `count` bytes without a short period.
pub fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect()
}

pub fn sha(bytes: &[u8]) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn with_length(status: &str, body: &[u8]) -> Vec<u8> {
    let mut out =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
    out.extend_from_slice(body);
    out
}

pub fn chunked(body: &[u8], chunk: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in body.chunks(chunk) {
        out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
        out.extend_from_slice(piece);
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"0\r\n\r\n");
    out
}

pub fn ordinary(request: &Request) -> Vec<u8> {
    let target = request.target().to_owned();
    let mut parts = target.trim_start_matches('/').split('/');
    let kind = parts.next().unwrap();
    let size = parts.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    let is_head = request.head.starts_with("HEAD ");
    match kind {
        "size" if is_head => {
            format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").into_bytes()
        }
        "size" => with_length("200 OK", &pattern(size)),
        "chunked" => {
            let mut out = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            out.extend_from_slice(&chunked(&pattern(size), 10_000));
            out
        }
        "until-close" => {
            let mut out = b"HTTP/1.1 200 OK\r\nX-Kind: until-close\r\n\r\n".to_vec();
            out.extend_from_slice(&pattern(size));
            out
        }
        "head" => with_length("200 OK", request.head.as_bytes()),
        "sha" => with_length("200 OK", sha(&request.body).as_bytes()),
        "empty" => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        _ => with_length("404 Not Found", b"no such thing"),
    }
}

/// An answer as a client sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn status(&self) -> u16 {
        self.head.split(' ').nth(1).unwrap().parse().unwrap()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        header(&self.head, name)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A client connection.
pub struct Client {
    pub stream: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Client { stream, reader }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends, as far as the balancer does not close the connection before.
    pub fn send_what_is_taken(&mut self, bytes: impl AsRef<[u8]>) {
        let _ = self.stream.write_all(bytes.as_ref());
    }

    /// Reads the head of an answer only.
    pub fn head(&mut self) -> Option<String> {
        read_head(&mut self.reader)
    }

    /// Reads an answer. `no_body`: it answers a HEAD.
    pub fn answer_to(&mut self, no_body: bool) -> Option<Answer> {
        let head = self.head()?;
        let status: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
        let no_body = no_body || matches!(status, 100..=199 | 204 | 304);
        let body = if no_body { Vec::new() } else { read_body(&mut self.reader, &head, true) };
        Some(Answer { head, body })
    }

    pub fn answer(&mut self) -> Answer {
        self.answer_to(false).expect("an answer")
    }

    pub fn get(&mut self, target: &str) -> Answer {
        self.send(format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n"));
        self.answer()
    }

    /// Reads this number of bytes.
    pub fn take(&mut self, count: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.reader.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads everything until the end; returns an error if the connection is reset.
    pub fn rest(&mut self) -> std::io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        self.reader.read_to_end(&mut rest)?;
        Ok(rest)
    }

    /// Asserts that the balancer has closed the connection in order.
    pub fn assert_closed(&mut self) {
        assert_eq!(self.rest().unwrap(), b"");
    }
}
