//! The object server over a TLS record layer, against rustls as the client.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, ServerName};
use unlade_backend::config::HttpsConfig;
use unlade_backend::store::Store;
use unlade_backend::{BackendConfig, Context, serve};
use unlade_metrics::Meter;
use unlade_runtime::Stream;
use unlade_tls::{Handshake, Progress};

use crate::common;

/// Serves one connection. Returns the listener's address and a client configuration that trusts it.
fn serve_one(root: std::path::PathBuf) -> (SocketAddr, rustls::ClientConfig) {
    let made = rcgen::generate_simple_self_signed(["objects.test".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let tls = unlade_tls::server_config(vec![certificate.clone()], key, &[b"http/1.1"]).unwrap();
    let listener = TcpListener::bind(common::any_port()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, async move {
            let config = BackendConfig::new(address, root.clone());
            let store = Arc::new(Store::open(&root, true).unwrap());
            let context: Rc<Context> = Context::new(&config, store, Arc::new(Meter::new()));
            let (mut tcp, _) = listener.accept().unwrap();
            let established = shake_hands(&mut tcp, tls);
            tcp.set_nonblocking(true).unwrap();
            let tcp = tokio::net::TcpStream::from_std(tcp).unwrap();
            serve::serve_connection(Stream::tls(tcp, established), context).await;
        });
    });
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    (address, client)
}

fn shake_hands(tcp: &mut TcpStream, config: Arc<rustls::ServerConfig>) -> unlade_tls::RecordLayer {
    let mut handshake = Handshake::new(config).unwrap();
    let (mut input, mut output) = (vec![0; 16 * 1024], Vec::new());
    loop {
        let count = tcp.read(&mut input).unwrap();
        assert_ne!(count, 0, "the client left within the handshake");
        let progress = handshake.advance(&input[..count], &mut output).unwrap();
        tcp.write_all(&output).unwrap();
        output.clear();
        if let Progress::Complete(established) = progress {
            return established.record;
        }
    }
}

/// Reads one response with a Content-Length.
fn response(stream: &mut impl Read) -> (String, Vec<u8>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).unwrap();
    (head, body)
}

#[test]
fn objects_cross_a_record_layer_unharmed() {
    let directory = tempfile::tempdir().unwrap();
    let content = common::noise(5_000_000, 3);
    std::fs::write(directory.path().join("large.bin"), &content).unwrap();
    let (address, config) = serve_one(directory.path().to_owned());
    let name = ServerName::try_from("objects.test").unwrap();
    let client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut stream = rustls::StreamOwned::new(client, TcpStream::connect(address).unwrap());

    stream.write_all(b"GET /large.bin HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
    let (head, body) = response(&mut stream);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(body == content);

    stream
        .write_all(b"GET /large.bin HTTP/1.1\r\nHost: a\r\nRange: bytes=262143-800000\r\n\r\n")
        .unwrap();
    let (head, body) = response(&mut stream);
    assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
    assert!(body == content[262_143..=800_000]);

    let length = content.len();
    let put = format!("PUT /copy HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
    stream.write_all(put.as_bytes()).unwrap();
    stream.write_all(&content).unwrap();
    stream.write_all(b"GET /copy HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").unwrap();
    assert!(response(&mut stream).0.starts_with("HTTP/1.1 201 "));
    assert!(response(&mut stream).1 == content);
    // The stream ends with close_notify: rustls reports a FIN without it as an error.
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
}

/// Plain HTTP, a broken record and a client that leaves are handshakes that fail.
#[test]
fn failed_handshakes_are_counted() {
    let identity = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["objects.test".to_owned()]).unwrap();
    let (certificate, key) = (identity.path().join("a.crt"), identity.path().join("a.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let fixture = common::fixture_with(|config| {
        config.https = Some(HttpsConfig { address: common::any_port(), certificate, key });
    });
    let address = fixture.https().unwrap();
    for (count, hello) in
        [(1, &b"GET / HTTP/1.1\r\n\r\n"[..]), (2, &[22, 3, 1, 0, 4, 9, 9, 9, 9]), (3, b"")]
    {
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(hello).unwrap();
        client.shutdown(std::net::Shutdown::Write).unwrap();
        let failed = unlade_metrics::Event::BackendHandshakeFailed;
        fixture.until(|meter| meter.value(failed) == count);
    }
}
