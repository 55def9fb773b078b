//! Pre-shared keys with OpenSSL's own client and server as the peer, over loopback.
//!
//! OpenSSL's tools use a key with SHA-256 only; SHA-384 is tested between two of our own ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use unlade_tls::RecordLayer;
use unlade_tls::psk::{Client, Hash, Psk, PskError, Server};

const PATIENCE: Duration = Duration::from_secs(20);
const IDENTITY: &str = "NVMe0R01 nqn.2014-08.org.example:host nqn.2014-08.org.example:disk";
const KEY: [u8; 32] = [0x5a; 32];
const TLS: [&str; 3] = ["-tls1_3", "-ciphersuites", "TLS_AES_128_GCM_SHA256"];

fn openssl_is_here() -> bool {
    let here =
        Command::new("openssl").arg("version").output().is_ok_and(|out| out.status.success());
    if !here {
        println!("skipped: openssl cannot be run");
    }
    here
}

fn psk(key: [u8; 32]) -> Psk {
    Psk { identity: IDENTITY.into(), key: key.to_vec().into(), hash: Hash::Sha256 }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A process that ends with the test.
struct Tool(Child);

impl Tool {
    fn start(what: &str, arguments: &[&str]) -> Tool {
        let child = Command::new("openssl")
            .arg(what)
            .args(["-psk_identity", IDENTITY, "-psk", &hex(&KEY)])
            .args(TLS)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Tool(child)
    }

    fn say(&mut self, text: &str) {
        let input = self.0.stdin.as_mut().unwrap();
        input.write_all(text.as_bytes()).unwrap();
        input.flush().unwrap();
    }
}

impl Drop for Tool {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A connection with its record layer.
struct Link {
    tcp: TcpStream,
    record: RecordLayer,
    plaintext: Vec<u8>,
}

impl Link {
    fn send(&mut self, text: &[u8]) {
        let mut out = Vec::new();
        self.record.seal(text, &mut out).unwrap();
        self.tcp.write_all(&out).unwrap();
    }

    fn line(&mut self) -> String {
        loop {
            if let Some(end) = self.plaintext.iter().position(|&byte| byte == b'\n') {
                return String::from_utf8(self.plaintext.drain(..=end).collect()).unwrap();
            }
            // Bytes that came with the handshake are processed before the socket is read.
            self.record.process(&mut self.plaintext).unwrap();
            if !self.plaintext.contains(&b'\n') {
                self.pump();
            }
        }
    }

    /// Reads once, and sends the pending output.
    fn pump(&mut self) {
        let mut buffer = [0; 4096];
        let count = self.tcp.read(&mut buffer).unwrap();
        assert!(count > 0, "closed before the line was there");
        self.record.receive(&buffer[..count], &mut self.plaintext).unwrap();
        let mut out = Vec::new();
        self.record.take_output(&mut out);
        self.tcp.write_all(&out).unwrap();
    }
}

fn accept(listener: &TcpListener, key: [u8; 32]) -> Result<Link, PskError> {
    let (mut tcp, _) = listener.accept().unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut server =
        Server::new(|identity: &[u8]| (identity == IDENTITY.as_bytes()).then(|| psk(key)));
    let mut buffer = [0; 4096];
    loop {
        let count = tcp.read(&mut buffer).unwrap();
        assert!(count > 0, "the client went away");
        let mut out = Vec::new();
        let advanced = server.advance(&buffer[..count], &mut out);
        tcp.write_all(&out).unwrap();
        if let Some(accepted) = advanced? {
            assert_eq!(accepted.identity, IDENTITY.as_bytes());
            return Ok(Link { tcp, record: accepted.record, plaintext: Vec::new() });
        }
    }
}

fn connect(port: u16, key: [u8; 32]) -> Result<Link, PskError> {
    let mut tcp = TcpStream::connect(("127.0.0.1", port)).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut out = Vec::new();
    let mut client = Client::new(psk(key), &mut out)?;
    let mut buffer = [0; 4096];
    loop {
        tcp.write_all(&out).unwrap();
        out.clear();
        let count = tcp.read(&mut buffer).unwrap();
        assert!(count > 0, "the server went away");
        let advanced = client.advance(&buffer[..count], &mut out);
        tcp.write_all(&out).unwrap();
        out.clear();
        if let Some(record) = advanced? {
            return Ok(Link { tcp, record, plaintext: Vec::new() });
        }
    }
}

/// An s_server on a port that the kernel chooses; returns it with the port.
fn s_server(arguments: &[&str]) -> (Tool, u16) {
    let mut all = vec!["-accept", "127.0.0.1:0", "-nocert"];
    all.extend_from_slice(arguments);
    let mut tool = Tool::start("s_server", &all);
    let mut lines = BufReader::new(tool.0.stdout.take().unwrap()).lines();
    let port = loop {
        let line = lines.next().expect("s_server says where it listens").unwrap();
        if let Some(address) = line.strip_prefix("ACCEPT ") {
            break address.rsplit(':').next().unwrap().parse().unwrap();
        }
    };
    // The rest of its output must not block it.
    std::thread::spawn(move || lines.for_each(drop));
    (tool, port)
}

#[test]
fn s_client_with_the_key_is_served() {
    if !openssl_is_here() {
        return;
    }
    // The second client sends a share of an unsupported group, and receives a HelloRetryRequest.
    for groups in ["X25519", "P-521:P-384", "P-256"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut client = Tool::start("s_client", &["-connect", &address, "-groups", groups]);
        let mut link = accept(&listener, KEY).unwrap();
        client.say("hello from s_client\n");
        assert_eq!(link.line(), "hello from s_client\n");
        // K: a KeyUpdate that requests one from the peer.
        client.say("K\n");
        link.pump();
        client.say("still here\n");
        assert_eq!(link.line(), "still here\n");
        let mut out = Vec::new();
        assert!(link.record.update_keys(true, &mut out).unwrap());
        link.tcp.write_all(&out).unwrap();
        link.send(b"after our KeyUpdate\n");
        client.say("and here\n");
        assert_eq!(link.line(), "and here\n");
        let stdout = client.0.stdout.take().unwrap();
        let mut lines = BufReader::new(stdout).lines();
        assert!(lines.any(|line| line.unwrap() == "after our KeyUpdate"), "{groups}");
    }
}

#[test]
fn s_server_with_the_key_is_a_server() {
    if !openssl_is_here() {
        return;
    }
    // -rev answers each line reversed; with P-256 alone it requests another share.
    for groups in ["X25519", "P-256"] {
        let (_server, port) = s_server(&["-rev", "-groups", groups]);
        let mut link = connect(port, KEY).unwrap();
        link.send(b"stressed\n");
        assert_eq!(link.line(), "desserts\n");
        let mut out = Vec::new();
        assert!(link.record.update_keys(true, &mut out).unwrap());
        link.tcp.write_all(&out).unwrap();
        link.send(b"drawer\n");
        assert_eq!(link.line(), "reward\n");
    }
}

#[test]
fn another_key_is_a_clear_error_at_either_end() {
    if !openssl_is_here() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let _client = Tool::start("s_client", &["-connect", &address]);
    assert!(matches!(accept(&listener, [1; 32]), Err(PskError::WrongKey)));

    let (_server, port) = s_server(&["-rev"]);
    let Err(refused) = connect(port, [1; 32]) else { panic!("taken with another key") };
    assert!(matches!(refused, PskError::Refused(_)), "{refused}");
    assert!(refused.to_string().contains("the keys differ"), "{refused}");
}
