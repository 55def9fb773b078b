//! A terminator without a device, over the loopback, and clients that end in unusual ways.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore, ServerConfig};

use super::relay::{Relayed, relay};
use super::{handshake, stream};

const NAME: &str = "peer.example";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes behind a mistake.
const JUNK_BYTES: usize = 300 << 10;

fn identity() -> (Arc<ServerConfig>, CertificateDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let key: PrivateKeyDer<'_> = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
    (record::server_config(vec![certificate.clone()], key, &[]).unwrap(), certificate)
}

/// Terminates one connection, whose server answers when the client has ended. Returns how the
/// relay ended, and nothing where there was no handshake.
fn terminate(config: Arc<ServerConfig>) -> (SocketAddr, JoinHandle<Option<io::Result<Relayed>>>) {
    let backend = TcpListener::bind("127.0.0.1:0").unwrap();
    let there = backend.local_addr().unwrap();
    thread::spawn(move || {
        let (mut tcp, _) = backend.accept().unwrap();
        let mut all = Vec::new();
        if tcp.read_to_end(&mut all).is_ok() {
            let _ = tcp.write_all(&all);
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let here = listener.local_addr().unwrap();
    let terminator = thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            listener.set_nonblocking(true).unwrap();
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (tcp, _) = listener.accept().await.unwrap();
            let established = match handshake::accept(tcp, config).await {
                Ok(established) => established,
                Err(failure) => {
                    failure.part().await;
                    return None;
                }
            };
            let plain = tokio::net::TcpStream::connect(there).await.unwrap();
            let opened = stream::open(established, None).await.unwrap();
            Some(relay(opened, plain).await)
        })
    });
    (here, terminator)
}

fn connect(at: SocketAddr) -> TcpStream {
    let tcp = TcpStream::connect(at).unwrap();
    tcp.set_read_timeout(Some(PATIENCE)).unwrap();
    tcp.set_write_timeout(Some(PATIENCE)).unwrap();
    tcp
}

/// A client whose handshake is over but for its Finished, which is not sent yet.
fn client(at: SocketAddr, certificate: CertificateDer<'static>) -> (ClientConnection, TcpStream) {
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = NAME.try_into().unwrap();
    let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut tcp = connect(at);
    connection.write_tls(&mut tcp).unwrap();
    while connection.is_handshaking() {
        assert!(connection.read_tls(&mut tcp).unwrap() > 0);
        connection.process_new_packets().unwrap();
    }
    (connection, tcp)
}

/// All that the client has to send.
fn output(connection: &mut ClientConnection) -> Vec<u8> {
    let mut out = Vec::new();
    while connection.wants_write() {
        connection.write_tls(&mut out).unwrap();
    }
    out
}

#[test]
fn an_end_that_comes_with_the_finished_is_not_lost() {
    let (config, certificate) = identity();
    let (at, terminator) = terminate(config);
    let (mut connection, mut tcp) = client(at, certificate);
    connection.writer().write_all(b"all there is").unwrap();
    connection.send_close_notify();
    let all = output(&mut connection);
    tcp.write_all(&all).unwrap();
    // The client has ended in TLS only, and waits for the answer.
    let mut answer = Vec::new();
    let ended = loop {
        let got = connection.read_tls(&mut tcp).expect("the answer comes");
        connection.process_new_packets().unwrap();
        match connection.reader().read_to_end(&mut answer) {
            Ok(_) => break got,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        assert!(got > 0, "no close_notify");
    };
    assert!(ended > 0 && answer == b"all there is");
    tcp.shutdown(Shutdown::Write).unwrap();
    let relayed = terminator.join().unwrap().unwrap().unwrap();
    assert_eq!((relayed.inward_bytes, relayed.outward_bytes), (12, 12));
}

/// Sends `first` and much behind it at once, and reads to the end of the connection.
fn send_and_read(mut tcp: TcpStream, first: Vec<u8>) -> io::Result<Vec<u8>> {
    let mut other = tcp.try_clone().unwrap();
    let writer = thread::spawn(move || {
        let _ = other.write_all(&[first, vec![0x5a; JUNK_BYTES]].concat());
    });
    let mut all = Vec::new();
    let read = tcp.read_to_end(&mut all).map(|_| all);
    writer.join().unwrap();
    read
}

#[test]
fn an_alert_for_a_bad_handshake_is_not_overtaken_by_a_reset() {
    let (config, _) = identity();
    let (at, terminator) = terminate(config);
    // A ClientHello of one byte.
    let hello = vec![22, 3, 1, 0, 5, 1, 0, 0, 1, 0xff];
    let all = send_and_read(connect(at), hello).expect("an orderly end behind the alert");
    assert!(matches!(all[..], [21, 3, 3, 0, 2, 2, _]), "{all:?}");
    assert!(terminator.join().unwrap().is_none());
}

#[test]
fn an_alert_for_a_bad_record_is_not_overtaken_by_a_reset() {
    let (config, certificate) = identity();
    let (at, terminator) = terminate(config);
    let (mut connection, mut tcp) = client(at, certificate);
    let finished = output(&mut connection);
    tcp.write_all(&finished).unwrap();
    let too_long = vec![23, 3, 3, 0x50, 0];
    let all = send_and_read(tcp, too_long).expect("an orderly end behind the alert");
    let mut rest = &all[..];
    let alert = loop {
        assert!(connection.read_tls(&mut rest).unwrap() > 0, "no alert");
        if let Err(error) = connection.process_new_packets() {
            break error;
        }
    };
    assert_eq!(alert, rustls::Error::AlertReceived(AlertDescription::RecordOverflow));
    // Where the record comes together with the Finished, the handshake ends by it.
    assert!(!matches!(terminator.join().unwrap(), Some(Ok(_))));
}
