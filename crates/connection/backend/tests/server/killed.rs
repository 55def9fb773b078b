//! A server killed within an upload: this test starts itself as a child and kills it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use unlade_backend::store::STAGING;
use unlade_backend::{BackendConfig, Server};

use crate::common;

const ROOT: &str = "UNLADE_TEST_KILLED_ROOT";

/// Runs the server of the child process. Without the variable the test does nothing.
#[test]
fn child() {
    let Ok(root) = std::env::var(ROOT) else { return };
    let mut config = BackendConfig::new(common::any_port(), root.into());
    config.workers = 1;
    let same = config.clone();
    let server = Server::bind(config).unwrap();
    println!("\nserving {}", server.http());
    server.run(true, || Ok(same.clone())).unwrap();
}

/// A server in its own process, killed on drop.
struct Process {
    child: Child,
    http: SocketAddr,
}

impl Process {
    fn start(root: &Path) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::child", "--nocapture"])
            .env(ROOT, root)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let http = lines
            .map(Result::unwrap)
            .find_map(|line| line.strip_prefix("serving ").map(|at| at.parse().unwrap()))
            .unwrap();
        Process { child, http }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn staged(root: &Path) -> Vec<u64> {
    let entries = std::fs::read_dir(root.join(STAGING)).unwrap();
    entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect()
}

#[test]
fn half_an_upload_is_never_seen_and_is_swept_by_the_next_server() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::write(root.join("x"), b"old content").unwrap();
    let first = Process::start(root);
    let mut upload = TcpStream::connect(first.http).unwrap();
    upload.write_all(b"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n").unwrap();
    upload.write_all(&[7; 500]).unwrap();
    let start = Instant::now();
    while staged(root) != [500] {
        assert!(start.elapsed() < Duration::from_secs(30), "{:?}", staged(root));
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(first);
    assert_eq!(upload.read(&mut [0; 1]).unwrap_or(0), 0, "no answer came");
    assert_eq!(std::fs::read(root.join("x")).unwrap(), b"old content");
    assert_eq!(staged(root), [500]);

    let second = Process::start(root);
    assert!(staged(root).is_empty());
    let mut client = common::Client::connect(second.http);
    assert_eq!(client.exchange("GET", "/x", "", b"").body, b"old content");
    assert_eq!(client.exchange("PUT", "/x", "", b"new").status, 204);
    drop(second);
    assert_eq!(std::fs::read(root.join("x")).unwrap(), b"new");
}
