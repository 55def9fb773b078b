//! The load against small servers in this process.

use super::*;
use crate::lab::{objects, plan::ObjectTree};
use clap::Parser;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    load: LoadArgs,
}

fn load(words: &[&str]) -> (Outcome, Duration) {
    let line = Line::try_parse_from(["load"].iter().chain(words)).unwrap();
    let plan = Plan::new(&line.load).unwrap();
    run_threads(&plan, line.load.threads as usize, line.load.requests).unwrap()
}

/// Serves each connection with `serve` until the test ends; gives the URL.
fn server(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serve = Arc::new(serve);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let serve = serve.clone();
            std::thread::spawn(move || serve(stream));
        }
    });
    url
}

/// The path of the next request, if there is one.
fn next_path(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut first = String::new();
    let mut line = String::new();
    loop {
        line.clear();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        if line == "\r\n" {
            return first.split(' ').nth(1).map(str::to_owned);
        }
        if first.is_empty() {
            first.clone_from(&line);
        }
    }
}

fn serve_files(root: &Path, stream: TcpStream, damage: bool) {
    let mut out = stream.try_clone().unwrap();
    let mut reader = BufReader::new(stream);
    while let Some(path) = next_path(&mut reader) {
        let mut body = std::fs::read(root.join(path.trim_start_matches('/'))).unwrap();
        if let (true, Some(last)) = (damage, body.last_mut()) {
            *last ^= 1;
        }
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(&body)).is_err() {
            return;
        }
    }
}

struct Tree {
    dir: tempfile::TempDir,
    sums: String,
}

fn tree() -> Tree {
    let dir = tempfile::tempdir().unwrap();
    let sums = dir.path().join("SHA256SUMS");
    objects::create(ObjectTree::Small, &dir.path().join("objects"), &sums).unwrap();
    Tree { sums: sums.display().to_string(), dir }
}

#[test]
fn bodies_are_verified() {
    let tree = tree();
    let root = tree.dir.path().join("objects");
    let url = server(move |stream| serve_files(&root, stream, false));
    let paths = ["--path", "/64KiB", "--path", "/set/00", "--path", "/set/17", "--path", "/1MiB"];
    let run = |more: &[&str]| {
        let base = ["--url", &url, "--sha256sums", &tree.sums, "--requests", "200"];
        load(&[&base[..], &paths, more].concat()).0
    };
    let outcome = run(&["--connections", "5", "--pipeline", "4"]);
    assert_eq!((outcome.requests, outcome.verified, outcome.errors()), (200, 200, 0));
    let outcome = run(&["--verify", "sample:4", "--threads", "2", "--new-connection-every", "7"]);
    assert_eq!((outcome.requests, outcome.errors()), (200, 0), "{:?}", outcome.example);
    assert!((40..=60).contains(&outcome.verified), "{}", outcome.verified);
    assert!(outcome.connections >= 200 / 7);
    let copied = run(&["--verify", "never", "--copy-bodies", "--seed", "5"]);
    let dropped = run(&["--verify", "never", "--seed", "5", "--connections", "1"]);
    assert_eq!((copied.requests, dropped.requests, dropped.errors()), (200, 200, 0));
    let again = run(&["--verify", "never", "--seed", "5", "--connections", "1"]);
    assert_eq!(again.body_bytes, dropped.body_bytes);
}

#[test]
fn damage_is_found() {
    let tree = tree();
    let root = tree.dir.path().join("objects");
    let url = server(move |stream| serve_files(&root, stream, true));
    let words = ["--url", &url, "--path", "/4KiB", "--requests", "20", "--sha256sums", &tree.sums];
    let (outcome, _) = load(&words);
    assert_eq!((outcome.mismatches, outcome.verified), (20, 20));
    assert!(outcome.example.unwrap().contains("/4KiB"));
}

#[test]
fn ends_of_connections_are_told_apart() {
    let half = server(|mut stream| {
        let mut request = [0u8; 1];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf");
        // The rest of the request is read, or the close would be a reset.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let base = ["--path", "/x", "--connections", "2", "--duration", "2s"];
    let (outcome, _) = load(&[&["--url", &half][..], &base].concat());
    assert!(outcome.closed_early > 0 && outcome.requests == 0, "{outcome:?}");

    let polite = server(|stream| {
        let mut out = stream.try_clone().unwrap();
        let mut reader = BufReader::new(stream);
        let _ = next_path(&mut reader);
        let _ =
            out.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
        let _ = reader.read_to_end(&mut Vec::new());
    });
    let (outcome, _) = load(&[&["--url", &polite][..], &base].concat());
    assert!(outcome.requests > 2 && outcome.errors() == 0, "{outcome:?}");

    let silent = server(|mut stream| {
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let words = [&["--url", &silent][..], &base, &["--timeout", "60ms"]].concat();
    let (outcome, _) = load(&words);
    assert!(outcome.timeouts > 0, "{outcome:?}");

    let unasked = server(|mut stream| {
        let twice = b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n".repeat(2);
        let mut request = [0u8; 4096];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(&twice);
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let (outcome, _) = load(&[&["--url", &unasked][..], &base].concat());
    assert!(outcome.bad_status > 0 && outcome.malformed > 0, "{outcome:?}");
}

/// Serves TLS with a certificate for `localhost`, written to `ca`; gives the URL.
fn tls_server(root: std::path::PathBuf, ca: &Path) -> String {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(ca, issued.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(issued.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let url = server(move |stream| {
        let connection = rustls::ServerConnection::new(config.clone()).unwrap();
        let mut tls = rustls::StreamOwned::new(connection, stream);
        let mut request = [0u8; 4096];
        let mut answered = 0;
        while let Ok(bytes @ 1..) = tls.read(&mut request) {
            let text = String::from_utf8_lossy(&request[..bytes]).into_owned();
            for path in text.split("GET /").skip(1).filter_map(|rest| rest.split(' ').next()) {
                let body = std::fs::read(root.join(path)).unwrap();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
                if tls.write_all(head.as_bytes()).and_then(|()| tls.write_all(&body)).is_err() {
                    return;
                }
                answered += 1;
                if answered % 5 == 0 {
                    // The client must take the new key, and answer with its own.
                    tls.conn.refresh_traffic_keys().unwrap();
                }
            }
        }
    });
    url.replace("http://127.0.0.1", "https://localhost")
}

#[test]
fn tls_bodies_are_verified() {
    let tree = tree();
    let ca = tree.dir.path().join("ca.pem");
    let url = tls_server(tree.dir.path().join("objects"), &ca);
    let ca = ca.display().to_string();
    let address = url.replace("https://localhost", "127.0.0.1");
    let words = ["--url", &url, "--connect", &address, "--ca", &ca, "--sha256sums", &tree.sums];
    let what = ["--path", "/64KiB", "--path", "/set/05", "--path", "/1MiB", "--requests", "100"];
    for more in [&["--connections", "3"][..], &["--pipeline", "3", "--connections", "2"]] {
        let (outcome, _) = load(&[&words[..], &what, more].concat());
        assert_eq!((outcome.verified, outcome.errors()), (100, 0), "{:?}", outcome.example);
    }
    // The certificate of another host.
    let other = tree.dir.path().join("other.pem");
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&other, issued.cert.pem()).unwrap();
    let other = other.display().to_string();
    let words = ["--url", &url, "--connect", &address, "--ca", &other, "--path", "/4KiB"];
    let (outcome, _) = load(&[&words[..], &["--duration", "2s"]].concat());
    assert!(outcome.tls_failures > 0 && outcome.requests == 0, "{outcome:?}");
}

#[test]
fn nobody_there_is_counted_and_ends() {
    // A port that was free a moment ago.
    let url = {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let words = ["--url", &url, "--path", "/x", "--requests", "5", "--connections", "64"];
    let (outcome, _) = load(&words);
    assert!(outcome.connect_failures > 0 && outcome.requests == 0);
}

#[test]
fn arguments_that_do_not_go_together() {
    let plan = |words: &[&str]| {
        let line = Line::try_parse_from(["load"].iter().chain(words)).unwrap();
        Plan::new(&line.load).map(drop)
    };
    assert!(plan(&["--url", "http://127.0.0.1", "--path", "/x"]).is_ok());
    assert!(plan(&["--url", "http://127.0.0.1", "--path", "/x", "--verify", "all"]).is_err());
    assert!(plan(&["--url", "http://127.0.0.1"]).is_err());
    assert!("sample:0".parse::<Verify>().is_err());
}
