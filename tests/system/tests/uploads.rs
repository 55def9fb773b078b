//! Uploads on connections that move: a client that sends a body directly behind its last request
//! fills the receive queue of a server that gives the connection back.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use system_tests::counters::{Metrics, wait_for};
use system_tests::{Lab, needs, said, turn};
use unlade_sys::repair::unacknowledged_bytes;
use unlade_testkit::{Random, seed};

/// Time limit of a response, well below the server's `write_timeout` (30 s).
const PATIENCE: Duration = Duration::from_secs(20);
/// Maximum size of a receive queue in a snapshot, in bytes.
const SNAPSHOT_BYTES: usize = 2 << 20;
/// Longest stop of a server after which earlier control frames are still valid.
const STOPPED_MAX: Duration = Duration::from_millis(400);
/// Size of the first upload, large enough to open the client's window.
const FIRST_BYTES: usize = 16 << 20;
const ATTEMPTS: usize = 4;
/// Attempts on a loaded machine, where a window is often not filled in time.
const ATTEMPTS_MAX: usize = 60;

/// Stopped servers, continued on drop.
struct Stopped<'s>(&'s [Pid]);

impl Stopped<'_> {
    fn new(servers: &[Pid]) -> Stopped<'_> {
        let stopped = Stopped(servers);
        stopped.signal(Signal::STOP);
        stopped
    }

    fn signal(&self, signal: Signal) {
        for pid in self.0 {
            kill_process(*pid, signal).unwrap();
        }
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
    }
}

struct Uploader<'l> {
    lab: &'l Lab,
    servers: Vec<Pid>,
    host: &'static str,
    stream: TcpStream,
    read: Vec<u8>,
}

impl<'l> Uploader<'l> {
    /// Connects from the client's network namespace, in which the thread stays.
    fn connect(lab: &'l Lab, to: IpAddr, host: &'static str) -> Uploader<'l> {
        let all = lab.processes();
        let servers = all.iter().filter(|(name, _)| name.starts_with('s'));
        let pid = |pid: u64| Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        let servers = servers.map(|(_, number)| pid(*number)).collect();
        lab.enter("client");
        let stream = TcpStream::connect_timeout(&SocketAddr::new(to, 80), PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Uploader { lab, servers, host, stream, read: Vec::new() }
    }

    fn head(&self, method: &str, path: &str, bytes: usize) -> String {
        let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n", self.host);
        if method == "PUT" {
            let _ = write!(head, "Content-Length: {bytes}\r\n");
        }
        head + "\r\n"
    }

    /// Reads the status and body of the next response.
    fn response(&mut self) -> (u16, Vec<u8>) {
        let head_end = loop {
            if let Some(at) = self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            self.fill();
        };
        let head: Vec<u8> = self.read.drain(..head_end).collect();
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
        while self.read.len() < length {
            self.fill();
        }
        (status, self.read.drain(..length).collect())
    }

    fn fill(&mut self) {
        let mut buffer = vec![0; 256 * 1024];
        let count = self.stream.read(&mut buffer).unwrap_or_else(|error| {
            panic!("no response: {error}: {}", Metrics::read(self.lab, "s1").noteworthy())
        });
        assert_ne!(count, 0, "the connection ended instead of a response");
        self.read.extend_from_slice(&buffer[..count]);
    }

    fn put(&mut self, path: &str, body: &[u8]) {
        let head = self.head("PUT", path, body.len());
        self.stream.write_all(head.as_bytes()).unwrap();
        self.stream.write_all(body).unwrap();
        let (status, _) = self.response();
        assert!((200..300).contains(&status), "{path}: {status}");
    }

    /// Uploads while the server is stopped until more input has arrived than a snapshot can carry.
    /// Returns false if the client's window was too small for that.
    fn put_before_it_is_looked_at(&mut self, path: &str, body: &[u8]) -> bool {
        let head = self.head("PUT", path, body.len());
        let mut writer = self.stream.try_clone().unwrap();
        let written = &AtomicUsize::new(0);
        let had_come = std::thread::scope(|scope| {
            let stopped = Stopped::new(&self.servers);
            scope.spawn(move || {
                for piece in [head.as_bytes()].into_iter().chain(body.chunks(64 * 1024)) {
                    writer.write_all(piece).unwrap();
                    written.fetch_add(piece.len(), Ordering::SeqCst);
                }
            });
            // Acknowledged data is in the server's queue.
            let arrived = || {
                let written_bytes = written.load(Ordering::SeqCst);
                let waiting_bytes = unacknowledged_bytes(&self.stream).unwrap();
                written_bytes.saturating_sub(waiting_bytes) > SNAPSHOT_BYTES
            };
            let had_come = wait_for(STOPPED_MAX, arrived);
            drop(stopped);
            had_come
        });
        let (status, _) = self.response();
        assert!((200..300).contains(&status), "{path}: {status}");
        had_come
    }

    fn expect(&mut self, path: &str, content: &[u8]) {
        let head = self.head("GET", path, 0);
        self.stream.write_all(head.as_bytes()).unwrap();
        let (status, body) = self.response();
        assert_eq!((status, body.len()), (200, content.len()), "{path}");
        assert!(body == content, "{path}: other bytes");
    }
}

fn of_servers(lab: &Lab, counter: &str) -> u64 {
    let servers = lab.nodes().into_iter().filter(|node| node.starts_with('s'));
    servers.map(|server| Metrics::read(lab, &server).get(counter)).sum()
}

fn expect_nothing_broke(lab: &Lab) {
    for counter in [
        "unlade_backend_clients_stalled_total",
        "unlade_backend_connections_broken_total",
        "unlade_backend_leases_expired_total",
    ] {
        assert_eq!(of_servers(lab, counter), 0, "{counter}");
    }
    let balancer = Metrics::read(lab, "lb");
    assert_eq!(balancer.get("unlade_resets_sent_total"), 0, "{}", balancer.noteworthy());
    assert!(balancer.get("unlade_lb_migrations_completed_total") > 0, "nothing moved");
}

/// Runs `work` on a thread that may enter a node's network namespace.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        scope.spawn(work).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn an_upload_longer_than_a_snapshot_does_not_hang_when_its_connection_is_to_go_back() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let args = ["--servers", "1", "--objects", "small", "--fronts", "offload"];
    let lab = Lab::up(&[&args[..], &["--offload", "always"]].concat());
    lab.wait_channels();
    let [v4, v6] = lab.virtual_ips();
    let mut random = Random::new(seed());
    for address in [v4, v6] {
        let first = random.bytes(FIRST_BYTES);
        let second = random.bytes(3 << 20);
        apart(|| {
            let mut client = Uploader::connect(&lab, address, "one.objects.lab");
            let mut come = 0;
            for attempt in 0..ATTEMPTS_MAX {
                if attempt >= ATTEMPTS && come > 0 {
                    break;
                }
                // The first upload opens the window.
                client.put("/up/first", &first);
                come += usize::from(client.put_before_it_is_looked_at("/up/second", &second));
            }
            assert!(come > 0, "the window was always too small");
            client.expect("/up/first", &first);
            client.expect("/up/second", &second);
        });
    }
    expect_nothing_broke(&lab);
    let kept = of_servers(&lab, "unlade_backend_unread_kept_total");
    assert!(kept > 0, "{}", Metrics::read(&lab, "s1").noteworthy());
}

#[test]
fn an_upload_longer_than_a_snapshot_moves_to_the_server_of_its_object() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let args = ["--servers", "2", "--objects", "small", "--fronts", "offload"];
    let lab = Lab::up(&[&args[..], &["--offload", "always", "--policy", "sharded"]].concat());
    lab.wait_channels();
    let [v4, _] = lab.virtual_ips();
    let mut random = Random::new(seed());
    let first = random.bytes(FIRST_BYTES);
    // Enough names that some belong to each server.
    let bodies: Vec<(String, Vec<u8>)> =
        (0..12).map(|at| (format!("/up/{at}"), random.bytes(3 << 20))).collect();
    apart(|| {
        let mut client = Uploader::connect(&lab, v4, "unlimited.objects.lab");
        let mut come = 0;
        for attempt in 0..ATTEMPTS_MAX / bodies.len() {
            if attempt > 0 && come > 0 {
                break;
            }
            for (path, body) in &bodies {
                client.put("/up/first", &first);
                come += usize::from(client.put_before_it_is_looked_at(path, body));
            }
        }
        assert!(come > 0, "the window was always too small");
        for (path, body) in &bodies {
            client.expect(path, body);
        }
    });
    expect_nothing_broke(&lab);
    let moved = of_servers(&lab, "unlade_backend_unread_moved_total");
    assert!(moved > 0, "{}", Metrics::read(&lab, "s1").noteworthy());
}

#[test]
fn pipelined_uploads_do_not_hang() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let args = ["--servers", "2", "--objects", "small", "--fronts", "offload"];
    let lab = Lab::up(&[&args[..], &["--offload", "always"]].concat());
    lab.wait_channels();
    let [v4, _] = lab.virtual_ips();
    let mut random = Random::new(seed());
    let object = std::fs::read(lab.dir().join("objects/64KiB")).unwrap();
    for host in ["one.objects.lab", "eight.objects.lab"] {
        // The servers share a directory and cache an object for a moment.
        let name = |kind: &str, at: usize| format!("/up/{kind}{at}-{host}");
        let pair = [random.bytes(4 << 20), random.bytes(4 << 20)];
        // The uploads among the requests, with their bodies.
        let mixed: Vec<Option<Vec<u8>>> = (0..200)
            .map(|_| {
                let bytes = 1 + random.below(300_000);
                random.percent(50).then(|| random.bytes(bytes))
            })
            .collect();
        apart(|| {
            let mut client = Uploader::connect(&lab, v4, host);
            let mut text = Vec::new();
            for (at, body) in pair.iter().enumerate() {
                text.extend(client.head("PUT", &name("pair", at), body.len()).bytes());
                text.extend_from_slice(body);
            }
            for (at, body) in mixed.iter().enumerate() {
                let body = body.as_ref();
                let (method, path) = match body {
                    Some(_) => ("PUT", name("mixed", at)),
                    None => ("GET", "/64KiB".to_owned()),
                };
                text.extend(client.head(method, &path, body.map_or(0, Vec::len)).bytes());
                text.extend_from_slice(body.map_or(&[], Vec::as_slice));
            }
            let mut writer = client.stream.try_clone().unwrap();
            std::thread::scope(|scope| {
                scope.spawn(move || writer.write_all(&text).unwrap());
                for _ in &pair {
                    let (status, _) = client.response();
                    assert!((200..300).contains(&status), "{status}");
                }
                for (at, body) in mixed.iter().enumerate() {
                    let (status, answer) = client.response();
                    assert!((200..300).contains(&status), "request {at}: {status}");
                    assert!(body.is_some() || answer == object, "request {at}: other bytes");
                }
            });
            for (at, body) in pair.iter().enumerate() {
                client.expect(&name("pair", at), body);
            }
            for (at, body) in mixed.iter().enumerate() {
                if let Some(body) = body {
                    client.expect(&name("mixed", at), body);
                }
            }
        });
    }
    expect_nothing_broke(&lab);
}

#[test]
fn curl_uploads_one_large_file_after_another() {
    needs!("ip", "setsid", "curl");
    let _turn = turn();
    let args = ["--servers", "2", "--objects", "small", "--fronts", "offload"];
    let lab = Lab::up(&[&args[..], &["--offload", "always"]].concat());
    lab.wait_channels();
    let [v4, _] = lab.virtual_ips();
    let content = Random::new(seed()).bytes(FIRST_BYTES);
    let file = lab.dir().join("upload");
    std::fs::write(&file, &content).unwrap();
    let (file, to) = (file.display().to_string(), format!("one.objects.lab:80:{v4}"));
    let urls: Vec<String> = (0..8).map(|at| format!("http://one.objects.lab/up/{at}")).collect();
    let fixed = ["curl", "-sS", "-f", "--max-time", "100", "-H", "Expect:", "--resolve", &to];
    let uploads = urls.iter().flat_map(|url| ["-T", file.as_str(), url.as_str()]);
    let command: Vec<&str> = fixed.into_iter().chain(uploads).collect();
    let output = lab.exec("client", &command);
    assert!(output.status.success(), "{}", said(&output));
    for at in 0..urls.len() {
        let stored = std::fs::read(lab.dir().join(format!("objects/up/{at}"))).unwrap();
        assert!(stored == content, "/up/{at}: other bytes");
    }
    expect_nothing_broke(&lab);
}
