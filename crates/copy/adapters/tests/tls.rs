//! TLS 1.3 whose records are received by the service and decrypted as they arrive.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use unlade_copy::{Config, Copier, CopyError, Inbound, Polling, Service};
use unlade_copy_adapters::Stream;

/// A socket whose receives the service makes.
struct Joined {
    reading: Stream,
    writing: UnixStream,
}

impl Joined {
    fn new(copier: &Arc<Copier>, socket: UnixStream, capacity: usize) -> Joined {
        let mut inbound = Inbound::new(Arc::clone(copier), socket.try_clone().unwrap(), capacity);
        inbound.set_first_bytes(1000);
        inbound.set_chunk_bytes(4096);
        inbound.set_always_queued(true);
        Joined { reading: Stream::new(inbound), writing: socket }
    }
}

impl Read for Joined {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.reading.read(out)
    }
}

impl Write for Joined {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writing.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writing.flush()
    }
}

fn configs() -> (Arc<ClientConfig>, Arc<ServerConfig>) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let versions = &[&rustls::version::TLS13];
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    (Arc::new(client), Arc::new(server))
}

fn client(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A service that is always awake, so that receives are queued.
fn service() -> Service {
    Service::start(Config { polling: Polling::Always, ..Config::default() }).unwrap()
}

#[test]
fn records_are_opened_while_the_next_are_received() {
    let service = service();
    let copier = Arc::new(Copier::new(service.attach().unwrap()));
    let (client_config, server_config) = configs();
    let (near, far) = UnixStream::pair().unwrap();
    let sent = pattern(3 << 20);
    let echo = std::thread::spawn(move || {
        let mut socket = far;
        let mut connection = ServerConnection::new(server_config).unwrap();
        let mut tls = rustls::Stream::new(&mut connection, &mut socket);
        let mut body = Vec::new();
        tls.read_to_end(&mut body).unwrap();
        tls.write_all(&body).unwrap();
        connection.send_close_notify();
        connection.complete_io(&mut socket).unwrap();
    });
    let mut socket = Joined::new(&copier, near, 100_000);
    let mut connection = client(&client_config);
    let mut tls = rustls::Stream::new(&mut connection, &mut socket);
    tls.write_all(&sent).unwrap();
    tls.conn.send_close_notify();
    tls.flush().unwrap();
    let mut received = Vec::new();
    tls.read_to_end(&mut received).unwrap();
    echo.join().unwrap();
    assert_eq!(received, sent);
    let stats = copier.stats().read();
    assert!(stats.queued > 0, "{stats:?}");
}

/// A server's records of one message, after a handshake in memory; and the client.
fn records(bytes: &[u8]) -> (ClientConnection, Vec<u8>) {
    let (client_config, server_config) = configs();
    let mut near = client(&client_config);
    let mut far = ServerConnection::new(server_config).unwrap();
    far.set_buffer_limit(None);
    while near.is_handshaking() || far.is_handshaking() {
        let mut flight = Vec::new();
        near.write_tls(&mut flight).unwrap();
        far.read_tls(&mut &flight[..]).unwrap();
        far.process_new_packets().unwrap();
        let mut flight = Vec::new();
        far.write_tls(&mut flight).unwrap();
        near.read_tls(&mut &flight[..]).unwrap();
        near.process_new_packets().unwrap();
    }
    far.writer().write_all(bytes).unwrap();
    let mut wire = Vec::new();
    while far.wants_write() {
        far.write_tls(&mut wire).unwrap();
    }
    (near, wire)
}

/// Bytes read before an error or the end.
fn open(mut tls: ClientConnection, socket: &mut impl Read) -> (Vec<u8>, Option<io::Error>) {
    let mut plain = Vec::new();
    loop {
        match tls.read_tls(socket) {
            Ok(0) => return (plain, None),
            Err(error) => return (plain, Some(error)),
            Ok(_) => {}
        }
        let state = match tls.process_new_packets() {
            Ok(state) => state,
            Err(error) => return (plain, Some(io::Error::other(error))),
        };
        let mut part = vec![0; state.plaintext_bytes_to_read()];
        tls.reader().read_exact(&mut part).unwrap();
        plain.extend(part);
    }
}

#[test]
fn a_byte_that_was_changed_gives_nothing_of_its_record() {
    let service = service();
    let copier = Arc::new(Copier::new(service.attach().unwrap()));
    let bytes = pattern(100_000);
    let (connection, mut wire) = records(&bytes);
    let (mut near, far) = UnixStream::pair().unwrap();
    // In the third record of 16 KiB and its overhead.
    let changed = 2 * (16_384 + 22) + 1000;
    wire[changed] ^= 1;
    let writer = std::thread::spawn(move || {
        // The other end may close before all is written.
        let _ = near.write_all(&wire);
    });
    let mut stream = Stream::new(Inbound::new(copier, far, 256 << 10));
    let (plain, error) = open(connection, &mut stream);
    assert_eq!(plain.len(), 2 * 16_384);
    assert_eq!(plain, bytes[..plain.len()]);
    assert!(error.is_some());
    drop(stream);
    writer.join().unwrap();
}

#[test]
fn a_truncated_stream_ends_early() {
    let service = service();
    let copier = Arc::new(Copier::new(service.attach().unwrap()));
    let bytes = pattern(100_000);
    let (connection, wire) = records(&bytes);
    let (mut near, far) = UnixStream::pair().unwrap();
    let writer = std::thread::spawn(move || {
        near.write_all(&wire[..50_000]).unwrap();
        near.shutdown(Shutdown::Write).unwrap();
    });
    let (plain, error) = open(connection, &mut Stream::new(Inbound::new(copier, far, 30_000)));
    writer.join().unwrap();
    // A short count is the end of the stream, which TLS detects as a truncation: there was no
    // close_notify.
    assert!(error.is_none(), "{error:?}");
    assert_eq!(plain, bytes[..3 * 16_384]);
}

#[test]
fn a_service_that_stops_leaves_the_stream_as_it_is() {
    let service = service();
    let copier = Arc::new(Copier::new(service.attach().unwrap()));
    let (mut near, far) = UnixStream::pair().unwrap();
    let bytes = pattern(2 << 20);
    let sent = bytes.clone();
    let writer = std::thread::spawn(move || near.write_all(&sent).unwrap());
    let mut stream = Stream::new(Inbound::new(copier, far, 64 << 10));
    let mut received = vec![0; 1 << 20];
    stream.read_exact(&mut received).unwrap();
    drop(service);
    match stream.read_to_end(&mut received) {
        Ok(_) => assert_eq!(received, bytes),
        // The stop has ended a receive: nothing behind it is used.
        Err(error) => {
            assert_eq!(received, bytes[..received.len()]);
            assert!(error.get_ref().is_some_and(|cause| cause.is::<CopyError>()), "{error:?}");
            assert!(stream.read(&mut [0; 10]).is_err());
        }
    }
    drop(stream);
    // It may have been broken in the middle.
    let _ = writer.join();
}
