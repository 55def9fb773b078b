//! Both ends of a TLS connection: the near one decrypts records in place, the far one is rustls
//! with its own buffers.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::UnbufferedClientConnection;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
    SupportedProtocolVersion,
};
use unlade_copy::{Config, Copier, Inbound, Polling, Service};
use unlade_copy_adapters::tls::{Buffered, Feed, Opener, Session, TlsError};

pub const RECORD_BYTES: usize = 16_384;
/// Header, content type and tag of TLS 1.3.
pub const OVERHEAD_BYTES: usize = 22;

pub struct Configs {
    pub client: Arc<ClientConfig>,
    pub server: Arc<ServerConfig>,
}

pub fn configs(provider: CryptoProvider, version: &'static SupportedProtocolVersion) -> Configs {
    configs_with(provider, version, |_| {})
}

pub fn configs_with(
    provider: CryptoProvider,
    version: &'static SupportedProtocolVersion,
    change: impl FnOnce(&mut ServerConfig),
) -> Configs {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(provider);
    let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let mut server = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    change(&mut server);
    Configs { client: Arc::new(client), server: Arc::new(server) }
}

impl Configs {
    pub fn name() -> ServerName<'static> {
        ServerName::try_from("localhost").unwrap()
    }

    pub fn near_client(&self) -> UnbufferedClientConnection {
        UnbufferedClientConnection::new(Arc::clone(&self.client), Configs::name()).unwrap()
    }

    pub fn near_server(&self) -> UnbufferedServerConnection {
        UnbufferedServerConnection::new(Arc::clone(&self.server)).unwrap()
    }

    pub fn far_client(&self) -> Connection {
        ClientConnection::new(Arc::clone(&self.client), Configs::name()).unwrap().into()
    }

    pub fn far_server(&self) -> Connection {
        ServerConnection::new(Arc::clone(&self.server)).unwrap().into()
    }
}

pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A service that is always awake, so that receives are queued.
pub fn service() -> Service {
    Service::start(Config { polling: Polling::Always, ..Config::default() }).unwrap()
}

/// Chunks that are smaller than a record, and not a multiple of its parts.
pub fn inbound(service: &Service, socket: &UnixStream, capacity: usize) -> Inbound {
    let copier = Arc::new(Copier::new(service.attach().unwrap()));
    let mut inbound = Inbound::new(copier, socket.try_clone().unwrap(), capacity);
    inbound.set_first_bytes(1000);
    inbound.set_chunk_bytes(5000);
    inbound.set_always_queued(true);
    inbound
}

pub fn plain(socket: &UnixStream, capacity: usize) -> Buffered<UnixStream> {
    Buffered::new(socket.try_clone().unwrap(), capacity)
}

pub fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    for socket in [&near, &far] {
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    }
    (near, far)
}

/// The far end after its handshake; the near end's handshake runs on this thread meanwhile.
pub fn join<S: Session, F: Feed>(
    near: &mut Opener<S, F>,
    near_socket: &mut UnixStream,
    mut far: Connection,
    far_socket: &UnixStream,
) -> Connection {
    far.set_buffer_limit(None);
    let mut socket = far_socket.try_clone().unwrap();
    let shaken = std::thread::spawn(move || {
        while far.is_handshaking() {
            far.complete_io(&mut socket).unwrap();
        }
        while far.wants_write() {
            far.write_tls(&mut socket).unwrap();
        }
        far
    });
    near.handshake(near_socket).unwrap();
    shaken.join().unwrap()
}

/// Encoded output of `far`.
pub fn wire(far: &mut Connection) -> Vec<u8> {
    let mut wire = Vec::new();
    while far.wants_write() {
        far.write_tls(&mut wire).unwrap();
    }
    wire
}

pub fn records(far: &mut Connection, bytes: &[u8]) -> Vec<u8> {
    far.writer().write_all(bytes).unwrap();
    wire(far)
}

/// Data received by `far`, until it is `bytes` long or ends.
pub fn hear(far: &mut Connection, socket: &mut UnixStream, bytes: usize) -> Vec<u8> {
    let mut heard = Vec::new();
    while heard.len() < bytes {
        let is_end = far.read_tls(socket).unwrap() == 0;
        let state = far.process_new_packets().unwrap();
        let from = heard.len();
        heard.resize(from + state.plaintext_bytes_to_read(), 0);
        far.reader().read_exact(&mut heard[from..]).unwrap();
        if is_end || state.peer_has_closed() {
            break;
        }
    }
    heard
}

/// The TLS error inside `error`.
pub fn cause(error: &io::Error) -> &TlsError {
    error.get_ref().and_then(|cause| cause.downcast_ref()).expect("an error of TLS")
}
