//! OpenSSL's own client over loopback, with its KeyUpdate commands, while the connection moves.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use common::*;
use rustls::SupportedCipherSuite;
use unlade_tls::{Handshake, Progress, RecordLayer};

/// Time limit for the other process.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns true if OpenSSL is installed; otherwise prints why the test is skipped.
fn openssl_is_here() -> bool {
    match Command::new("openssl").arg("version").output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            eprintln!("skipped: `openssl version` ends with {}", output.status);
            false
        }
        Err(error) => {
            eprintln!("skipped: openssl cannot be run: {error}");
            false
        }
    }
}

/// OpenSSL's name of `suite`.
fn openssl_name(suite: SupportedCipherSuite) -> String {
    // Names of rustls are those of IANA, except for the version in those of TLS 1.3.
    let iana = format!("{suite:?}").replacen("TLS13_", "TLS_", 1);
    let mut command = Command::new("openssl");
    command.args(["ciphers", "-stdname"]);
    if suite.tls13().is_some() {
        // Only the default ones are listed otherwise.
        command.args(["-ciphersuites", &iana]);
    }
    let output = command.arg("ALL:COMPLEMENTOFALL").output().unwrap();
    // A line: IANA's name, a dash, OpenSSL's name, properties.
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .find(|words| words.len() > 2 && words[0] == iana)
        .map(|words| words[2].to_string())
        .unwrap_or_else(|| {
            let error = String::from_utf8_lossy(&output.stderr);
            panic!("the installed OpenSSL lacks {iana}; {command:?} does not list it. {error}")
        })
}

/// A running `openssl s_client`; it is ended with the test.
struct SClient {
    child: Child,
    input: ChildStdin,
}

impl SClient {
    fn start(port: u16, arguments: &[&str]) -> SClient {
        let mut child = Command::new("openssl")
            .args(["s_client", "-connect", &format!("127.0.0.1:{port}"), "-servername", NAME])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        SClient { child, input }
    }

    /// Sends a line. Without -quiet, a line of one command letter is a command: K and k are
    /// KeyUpdates, Q ends. One write, because s_client drops bytes after a command in the same
    /// read, and sends those in another one.
    fn line(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }
}

impl Drop for SClient {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Server {
    tcp: TcpStream,
    record: RecordLayer,
    plaintext: Vec<u8>,
}

impl Server {
    fn accept(listener: &TcpListener, identity: &Identity, alpn: &[&[u8]]) -> Server {
        let mut tcp = accept(listener);
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut handshake = Handshake::new(server_config(identity, alpn)).unwrap();
        let mut buffer = vec![0; 4096];
        loop {
            let count = tcp.read(&mut buffer).unwrap();
            assert!(count > 0, "the client went away");
            let mut out = Vec::new();
            let progress = handshake.advance(&buffer[..count], &mut out).unwrap();
            tcp.write_all(&out).unwrap();
            if let Progress::Complete(done) = progress {
                assert_eq!(done.sni.as_deref(), Some(NAME));
                return Server { tcp, record: done.record, plaintext: done.plaintext };
            }
        }
    }

    /// Reads once and sends the pending output; returns false at close_notify.
    fn read(&mut self) -> bool {
        let mut buffer = vec![0; 4096];
        let count = self.tcp.read(&mut buffer).unwrap();
        assert!(count > 0, "FIN before close_notify");
        let received = self.record.receive(&buffer[..count], &mut self.plaintext).unwrap();
        let mut out = Vec::new();
        self.record.take_output(&mut out);
        self.tcp.write_all(&out).unwrap();
        self.record = moved(&self.record);
        !received.close_notify
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.plaintext.iter().position(|&byte| byte == b'\n') {
                let line = self.plaintext.drain(..=end).collect();
                return String::from_utf8(line).unwrap();
            }
            assert!(self.read(), "closed before the line was there");
        }
    }

    fn answer(&mut self, bytes: usize) {
        let mut out = Vec::new();
        self.record.seal(&vec![b'.'; bytes], &mut out).unwrap();
        self.tcp.write_all(&out).unwrap();
    }
}

/// Waits for the other process, with a time limit: it may have failed to start.
fn accept(listener: &TcpListener) -> TcpStream {
    listener.set_nonblocking(true).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((tcp, _)) => {
                tcp.set_nonblocking(false).unwrap();
                return tcp;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(Instant::now() < deadline, "s_client never connected");
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

#[test]
fn s_client_changes_keys_while_the_connection_moves() {
    if !openssl_is_here() {
        return;
    }
    for suite in suites().into_iter().filter(|suite| suite.tls13().is_some()) {
        let (listener, port) = listen();
        let name = openssl_name(suite);
        let mut client = SClient::start(port, &["-tls1_3", "-ciphersuites", &name]);
        let mut server = Server::accept(&listener, identity_for(suite), &[]);
        assert_eq!(server.record.suite_name(), format!("{suite:?}"));
        client.line("hello");
        assert_eq!(server.line(), "hello\n");
        server.answer(40_000);
        for (round, command) in ["K", "k", "K", "k", "k"].into_iter().enumerate() {
            let generation = |server: &Server| {
                let snapshot = server.record.to_snapshot();
                (snapshot.read.traffic_secret.clone(), snapshot.write.traffic_secret.clone())
            };
            let before = generation(&server);
            client.line(command);
            // The command is processed before the next line is read.
            while generation(&server).0 == before.0 {
                assert!(server.read());
            }
            // K requests a change of the server's key as well.
            assert_eq!(generation(&server).1 != before.1, command == "K", "{name} {command}");
            client.line(&format!("round {round}"));
            assert_eq!(server.line(), format!("round {round}\n"));
            server.answer(20_000);
        }
        client.line("Q");
        while server.read() {}
        let mut out = Vec::new();
        server.record.close_notify(&mut out);
        // The client may have ended already.
        let _ = server.tcp.write_all(&out);
    }
}

#[test]
fn s_client_speaks_tls_12_with_every_suite() {
    if !openssl_is_here() {
        return;
    }
    for suite in suites().into_iter().filter(|suite| suite.tls13().is_none()) {
        let (listener, port) = listen();
        let arguments = ["-tls1_2", "-cipher", &openssl_name(suite), "-alpn", "http/1.1"];
        let mut client = SClient::start(port, &arguments);
        let mut server = Server::accept(&listener, identity_for(suite), &[b"http/1.1"]);
        assert_eq!(server.record.suite_name(), format!("{suite:?}"));
        for round in 0..5 {
            client.line(&format!("round {round}"));
            assert_eq!(server.line(), format!("round {round}\n"));
            server.answer(50_000);
        }
        client.line("Q");
        while server.read() {}
    }
}

#[test]
fn s_client_is_refused_a_renegotiation() {
    if !openssl_is_here() {
        return;
    }
    let (listener, port) = listen();
    let mut client = SClient::start(port, &["-tls1_2"]);
    let mut server = Server::accept(&listener, ecdsa(), &[]);
    client.line("hello");
    assert_eq!(server.line(), "hello\n");
    client.line("R");
    // The warning is sent; OpenSSL then aborts the connection, with or without an alert.
    let mut buffer = vec![0; 4096];
    loop {
        let count = match server.tcp.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("{error}"),
        };
        if count == 0 {
            break;
        }
        let received = server.record.receive(&buffer[..count], &mut server.plaintext);
        let mut out = Vec::new();
        server.record.take_output(&mut out);
        let _ = server.tcp.write_all(&out);
        match received {
            Ok(received) if received.close_notify => break,
            Ok(_) => {}
            Err(error) => {
                assert!(matches!(error, unlade_tls::RecordError::AlertReceived(_)), "{error}");
                break;
            }
        }
    }
    assert!(server.plaintext.is_empty());
}
