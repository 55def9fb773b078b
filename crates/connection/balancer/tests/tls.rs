//! TLS listeners, with the clients of rustls and OpenSSL.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::*;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned};
use unlade_balancer::BalancerConfig;
use unlade_metrics::Event;

/// A self-signed identity in `dir`.
fn identity(dir: &Path) -> CertificateDer<'static> {
    let made = rcgen::generate_simple_self_signed(vec!["objects.example".to_owned()]).unwrap();
    std::fs::write(dir.join("a.crt"), made.cert.pem()).unwrap();
    std::fs::write(dir.join("a.key"), made.signing_key.serialize_pem()).unwrap();
    made.cert.der().clone()
}

fn tls_config(server: SocketAddr, dir: &Path, min_version: &str) -> String {
    let (certificate, key) = (dir.join("a.crt"), dir.join("a.key"));
    let tls = format!(
        "address = \"127.0.0.1:0\"\ntls = {{ certificate = {certificate:?}, key = {key:?}, \
         min_version = \"{min_version}\" }}\n"
    );
    config(server, "").replace("address = \"127.0.0.1:0\"\n", &tls)
}

struct Setup {
    lb: Lb,
    dir: tempfile::TempDir,
    server: Server,
    certificate: CertificateDer<'static>,
}

fn setup(min_version: &str) -> Setup {
    let dir = tempfile::tempdir().unwrap();
    let certificate = identity(dir.path());
    let server = Server::ordinary();
    let lb = Lb::new(&tls_config(server.address, dir.path(), min_version));
    Setup { lb, dir, server, certificate }
}

type Tls = StreamOwned<ClientConnection, TcpStream>;

fn connect(
    address: SocketAddr,
    certificate: &CertificateDer<'static>,
    versions: &[&'static rustls::SupportedProtocolVersion],
    alpn: &[&[u8]],
) -> Tls {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
    let name = "objects.example".try_into().unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let tcp = TcpStream::connect(address).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    StreamOwned::new(connection, tcp)
}

const V12: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS12];
const V13: &[&rustls::SupportedProtocolVersion] = &[&rustls::version::TLS13];

/// GET over `tls` with `Connection: close`; the whole answer, which must end with close_notify.
fn get_and_close(tls: &mut Tls, target: &str) -> Vec<u8> {
    let request = format!("GET {target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    tls.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer).unwrap();
    answer
}

#[test]
fn both_versions_carry_bodies_of_every_size() {
    let setup = setup("1.2");
    for (versions, expected) in [(V12, ProtocolVersion::TLSv1_2), (V13, ProtocolVersion::TLSv1_3)] {
        for size in [0, 100, 16_384, 16_385, 300_000, 3_000_000] {
            let address = setup.lb.address();
            let mut tls = connect(address, &setup.certificate, versions, &[b"http/1.1"]);
            let answer = get_and_close(&mut tls, &format!("/size/{size}"));
            assert!(answer.ends_with(&pattern(size)), "{expected:?} {size}");
            assert_eq!(tls.conn.protocol_version(), Some(expected));
            assert_eq!(tls.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
        }
    }
    assert_eq!(setup.lb.count(Event::TlsHandshake), 12);
    assert_eq!(setup.lb.count(Event::BytesSpliced), 0);
}

#[test]
fn uploads_pipelining_and_the_scheme() {
    let setup = setup("1.2");
    let mut tls = connect(setup.lb.address(), &setup.certificate, V13, &[]);
    let body = pattern(2_000_000);
    let length = body.len();
    tls.write_all(
        format!("PUT /sha HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n").as_bytes(),
    )
    .unwrap();
    tls.write_all(&body).unwrap();
    tls.write_all(b"GET /head HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let rest = get_and_close(&mut tls, "/size/5");
    let text = String::from_utf8_lossy(&rest);
    assert!(text.contains(&sha(&body)));
    assert!(text.contains("X-Forwarded-Proto: https\r\n"), "{text}");
    assert!(rest.ends_with(&pattern(5)));
}

#[test]
fn http2_is_not_agreed_on() {
    let setup = setup("1.2");
    let mut both = connect(setup.lb.address(), &setup.certificate, V13, &[b"h2", b"http/1.1"]);
    get_and_close(&mut both, "/size/1");
    assert_eq!(both.conn.alpn_protocol(), Some(&b"http/1.1"[..]));
    let mut only = connect(setup.lb.address(), &setup.certificate, V13, &[b"h2"]);
    assert!(only.write_all(b"PRI * HTTP/2.0\r\n\r\n").is_err());
    setup.lb.wait_for(Event::TlsHandshakeFailed, 1);
}

#[test]
fn a_minimum_version_is_kept() {
    let setup = setup("1.3");
    let mut new = connect(setup.lb.address(), &setup.certificate, V13, &[]);
    assert!(get_and_close(&mut new, "/size/9").ends_with(&pattern(9)));
    let mut old = connect(setup.lb.address(), &setup.certificate, V12, &[]);
    assert!(old.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").is_err());
    setup.lb.wait_for(Event::TlsHandshakeFailed, 1);
}

#[test]
fn plain_http_on_a_tls_port_is_told_so() {
    let setup = setup("1.2");
    let mut client = setup.lb.connect();
    let answer = client.get("/");
    assert_eq!((answer.status(), answer.text()), (400, "this port speaks TLS; use https\n"));
    client.assert_closed();
    setup.lb.wait_for(Event::TlsHandshakeFailed, 1);
}

#[test]
fn garbage_and_silence_end_the_handshake() {
    let setup = setup("1.2");
    let mut garbage = setup.lb.connect();
    garbage.send([0x16, 3, 1, 0, 5, 1, 0, 0, 1, 0xff, 0, 0, 0]);
    // An alert may arrive before the end.
    let _ = garbage.rest();
    setup.lb.wait_for(Event::TlsHandshakeFailed, 1);
    let text = tls_config(setup.server.address, setup.dir.path(), "1.2")
        .replace("[[route]]", "timeouts = { handshake = \"50ms\" }\n[[route]]");
    let brief = Lb::new(&text);
    let mut silent = brief.connect();
    silent.assert_closed();
    brief.wait_for(Event::TlsHandshakeFailed, 1);
}

#[test]
fn a_truncated_answer_has_no_close_notify() {
    let dir = tempfile::tempdir().unwrap();
    let certificate = identity(dir.path());
    let server = Server::new(|mut stream| {
        let mut request = [0; 4096];
        let _ = stream.read(&mut request);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nabc");
    });
    let lb = Lb::new(&tls_config(server.address, dir.path(), "1.2"));
    let mut tls = connect(lb.address(), &certificate, V13, &[]);
    tls.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    assert!(tls.read_to_end(&mut Vec::new()).is_err());
}

#[test]
fn a_reload_changes_the_certificate() {
    let setup = setup("1.2");
    let address = setup.lb.address();
    get_and_close(&mut connect(address, &setup.certificate, V13, &[]), "/size/1");
    let renewed = identity(setup.dir.path());
    let text = tls_config(setup.server.address, setup.dir.path(), "1.2");
    setup.lb.handle.reload(BalancerConfig::parse(&text, "test").unwrap()).unwrap();
    let start = std::time::Instant::now();
    loop {
        let mut tls = connect(address, &renewed, V13, &[]);
        if tls.write_all(b"GET /size/1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").is_ok() {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "the old certificate is still shown");
    }
}

#[test]
fn openssl_and_curl_are_served() {
    let setup = setup("1.2");
    let address = setup.lb.address();
    let certificate = setup.dir.path().join("a.crt");
    let curl = Command::new("curl")
        .args(["-sS", "--max-time", "20", "--cacert"])
        .arg(&certificate)
        .args(["--resolve", &format!("objects.example:{}:127.0.0.1", address.port())])
        .arg(format!("https://objects.example:{}/size/200000", address.port()))
        .output();
    match curl {
        Ok(output) => {
            assert!(output.stdout == pattern(200_000), "{:?}", output.stderr);
        }
        Err(error) => println!("skipped: curl: {error}"),
    }
    for version in ["-tls1_2", "-tls1_3"] {
        let child = Command::new("openssl")
            .args(["s_client", "-quiet", "-ign_eof", version, "-connect", &address.to_string()])
            .args(["-servername", "objects.example", "-verify_return_error", "-CAfile"])
            .arg(&certificate)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::null())
            .spawn();
        let mut child = match child {
            Ok(child) => child,
            Err(error) => {
                println!("skipped: openssl: {error}");
                return;
            }
        };
        let request = b"GET /size/50000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        child.stdin.as_mut().unwrap().write_all(request).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.stdout.ends_with(&pattern(50_000)), "{version}");
    }
}

/// RFC 6455 over TLS: bytes both ways at the same time, and an end of one direction only.
#[test]
fn a_websocket_passes_over_tls() {
    let server = Server::new(|mut stream| {
        let mut reader = std::io::BufReader::new(stream.try_clone().unwrap());
        let request = Request::read(&mut reader).unwrap();
        assert_eq!(request.header("upgrade").unwrap(), "websocket");
        let agreed = "HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello";
        stream.write_all(agreed.as_bytes()).unwrap();
        let mut bytes = vec![0; 50_000];
        while let Ok(count @ 1..) = reader.read(&mut bytes) {
            stream.write_all(&bytes[..count]).unwrap();
        }
        stream.write_all(b"bye").unwrap();
    });
    let dir = tempfile::tempdir().unwrap();
    let certificate = identity(dir.path());
    let lb = Lb::new(&tls_config(server.address, dir.path(), "1.2"));
    for versions in [V12, V13] {
        let mut tls = connect(lb.address(), &certificate, versions, &[b"http/1.1"]);
        let ask =
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly";
        tls.write_all(ask.as_bytes()).unwrap();
        let head = read_head(&mut std::io::BufReader::with_capacity(1, &mut tls)).unwrap();
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        let mut greeting = [0; 10];
        tls.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting, b"helloearly");
        for size in [1, 16_384, 16_385, 200_000] {
            let sent = pattern(size);
            tls.write_all(&sent).unwrap();
            let mut back = vec![0; size];
            tls.read_exact(&mut back).unwrap();
            assert!(back == sent, "{size}");
        }
        tls.conn.send_close_notify();
        tls.conn.complete_io(&mut tls.sock).unwrap();
        let mut rest = Vec::new();
        tls.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"bye");
    }
    assert_eq!(lb.count(Event::TunnelOpened), 2);
    assert_eq!(lb.count(Event::TlsBroken), 0);
}

/// Bytes that are no record of the connection end it with an alert, and are counted.
#[test]
fn a_client_that_breaks_the_record_layer_is_closed() {
    let setup = setup("1.2");
    for (versions, due) in [(V12, 1), (V13, 2)] {
        let mut tls = connect(setup.lb.address(), &setup.certificate, versions, &[]);
        tls.write_all(b"GET /size/1 HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        let head = read_head(&mut std::io::BufReader::with_capacity(1, &mut tls)).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        // Application data whose authentication tag is wrong.
        tls.sock.write_all(&[&[23, 3, 3, 0, 64][..], &[9; 64]].concat()).unwrap();
        let error = tls.read_to_end(&mut Vec::new()).unwrap_err();
        assert!(error.to_string().contains("BadRecordMac"), "{error}");
        setup.lb.wait_for(Event::TlsBroken, due);
    }
}
