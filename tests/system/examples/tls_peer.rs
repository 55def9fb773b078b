//! A peer with TLS in the kernel, and the plaintext peers of the same protocol.
//!
//!   tls_peer echo ADDRESS                                     sends back what it gets
//!   tls_peer exchange ADDRESS BYTES SEED                      sends a body and compares what comes
//!   tls_peer tls-echo ADDRESS VERSION SUITE CERT KEY          the two over TLS
//!   tls_peer tls-exchange ADDRESS VERSION SUITE CA NAME BYTES SEED
//!
//! rustls makes the handshake; its secrets go to the kernel.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{
    ClientConfig, ClientConnection, Connection, ConnectionTrafficSecrets, RootCertStore,
    ServerConfig, ServerConnection, SupportedProtocolVersion,
};
use unlade_sys::ktls::{self, Direction, Keys};
use unlade_testkit::Random;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Time limit of an operation in an emulated machine.
const PATIENCE: Duration = Duration::from_secs(120);
const HEADER_BYTES: usize = 5;
const READ_BYTES: usize = 32 * 1024;
/// The alert of an orderly end: warning, close_notify.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

static TLS12: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS12];
static TLS13: [&SupportedProtocolVersion; 1] = [&rustls::version::TLS13];

/// A connection in plaintext, or with TLS in the kernel.
struct Stream {
    tcp: TcpStream,
    tls: bool,
}

impl Stream {
    /// Reads the next bytes; none at an orderly end.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.tls {
            return (&self.tcp).read(buffer);
        }
        loop {
            match ktls::receive(&self.tcp, buffer)? {
                (ktls::APPLICATION_DATA, 0) => {}
                (ktls::APPLICATION_DATA, got) => return Ok(got),
                (ktls::ALERT, 2) if buffer[1] == CLOSE_NOTIFY[1] => return Ok(0),
                (22, _) => {} // Tickets.
                (0, _) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (kind, _) => return Err(io::Error::other(format!("a record of type {kind}"))),
            }
        }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.tcp).write_all(bytes)
    }

    fn finish(&self) -> io::Result<()> {
        if self.tls {
            ktls::send(&self.tcp, ktls::ALERT, &CLOSE_NOTIFY)?;
        }
        self.tcp.shutdown(Shutdown::Write)
    }

    fn echo(&self) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match self.receive(&mut buffer)? {
                0 => return self.finish(),
                got => self.send(&buffer[..got])?,
            }
        }
    }

    /// Sends a body while reading the same body.
    fn exchange(&self, body: &[u8]) -> Result<(), Failure> {
        let mut back = Vec::with_capacity(body.len());
        thread::scope(|scope| {
            let sent = scope.spawn(|| {
                // Chunks of all sizes result in records of all sizes.
                let mut sizes = Random::new(body.len() as u64);
                let mut rest = body;
                while !rest.is_empty() {
                    let bytes = (1 + sizes.below(40_000)).min(rest.len());
                    let (piece, after) = rest.split_at(bytes);
                    self.send(piece)?;
                    rest = after;
                }
                io::Result::Ok(())
            });
            let mut buffer = vec![0; READ_BYTES];
            while back.len() < body.len() {
                match self.receive(&mut buffer)? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    got => back.extend_from_slice(&buffer[..got]),
                }
            }
            sent.join().expect("the sender does not panic")
        })?;
        if back != body {
            return Err("what came back is not what was sent".into());
        }
        self.finish()?;
        match self.receive(&mut [0; 16])? {
            0 => Ok(()),
            more => Err(format!("{more} bytes more than were sent").into()),
        }
    }
}

/// Returns a provider with one cipher suite.
fn provider(suite: &str) -> Result<Arc<CryptoProvider>, Failure> {
    let mut provider = aws_lc_rs::default_provider();
    provider.cipher_suites.retain(|has| format!("{:?}", has.suite()) == suite);
    match provider.cipher_suites.len() {
        1 => Ok(Arc::new(provider)),
        _ => Err(format!("no suite {suite}").into()),
    }
}

fn versions(version: &str) -> Result<&'static [&'static SupportedProtocolVersion], Failure> {
    match version {
        "1.2" => Ok(&TLS12),
        "1.3" => Ok(&TLS13),
        _ => Err(format!("no version {version}").into()),
    }
}

fn client(version: &str, suite: &str, ca: &str, name: &str) -> Result<Connection, Failure> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca)?)?;
    let mut config = ClientConfig::builder_with_provider(provider(suite)?)
        .with_protocol_versions(versions(version)?)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.enable_secret_extraction = true;
    Ok(ClientConnection::new(Arc::new(config), name.to_owned().try_into()?)?.into())
}

fn server(version: &str, suite: &str, cert: &str, key: &str) -> Result<Arc<ServerConfig>, Failure> {
    let chain = vec![CertificateDer::from_pem_file(cert)?];
    let mut config = ServerConfig::builder_with_provider(provider(suite)?)
        .with_protocol_versions(versions(version)?)?
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key)?)?;
    config.enable_secret_extraction = true;
    Ok(Arc::new(config))
}

/// Performs the handshake record by record, so that rustls reads nothing that follows it.
fn handshake(mut tcp: TcpStream, mut connection: Connection) -> Result<Stream, Failure> {
    loop {
        while connection.wants_write() {
            connection.write_tls(&mut tcp)?;
        }
        if !connection.is_handshaking() {
            break;
        }
        let mut record = vec![0; HEADER_BYTES];
        tcp.read_exact(&mut record)?;
        let bytes = usize::from(u16::from_be_bytes([record[3], record[4]]));
        record.resize(HEADER_BYTES + bytes, 0);
        tcp.read_exact(&mut record[HEADER_BYTES..])?;
        let mut rest = &record[..];
        while !rest.is_empty() {
            connection.read_tls(&mut rest)?;
            if let Err(error) = connection.process_new_packets() {
                let _ = connection.write_tls(&mut tcp); // An alert.
                return Err(error.into());
            }
        }
    }
    let version = connection.protocol_version().map_or(0, u16::from);
    let secrets = connection.dangerous_extract_secrets()?;
    ktls::attach(&tcp)?;
    give(&tcp, Direction::Send, version, &secrets.tx)?;
    give(&tcp, Direction::Receive, version, &secrets.rx)?;
    Ok(Stream { tcp, tls: true })
}

/// Configures the kernel with the secrets of a direction.
fn give(
    tcp: &TcpStream,
    direction: Direction,
    version: u16,
    (number, secrets): &(u64, ConnectionTrafficSecrets),
) -> Result<(), Failure> {
    let (key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (key, iv),
        _ => return Err("not AES-GCM".into()),
    };
    let mut iv: [u8; 12] = iv.as_ref().try_into()?;
    if version == 0x0303 {
        // The next record number: the difference of the nonces used so far.
        let used = u64::from_be_bytes(iv[4..].try_into()?);
        iv[4..].copy_from_slice(&used.wrapping_add(*number).to_be_bytes());
    }
    let keys = Keys { version, key: key.as_ref(), iv, number: *number };
    Ok(ktls::set_keys(tcp, direction, &keys)?)
}

fn patient(tcp: TcpStream) -> io::Result<TcpStream> {
    tcp.set_nodelay(true)?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    tcp.set_write_timeout(Some(PATIENCE))?;
    Ok(tcp)
}

/// Serves until killed.
fn serve(
    address: &str,
    stream: impl Fn(TcpStream) -> Result<Stream, Failure> + Send + Sync + 'static,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(address)?;
    let stream = Arc::new(stream);
    loop {
        let tcp = patient(listener.accept()?.0)?;
        let stream = stream.clone();
        thread::spawn(move || {
            if let Err(error) = stream(tcp).and_then(|stream| Ok(stream.echo()?)) {
                eprintln!("echo: {error}");
            }
        });
    }
}

/// Connects, with retries until the other side is up.
fn reach(address: &str) -> Result<TcpStream, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match TcpStream::connect(address) {
            Ok(tcp) => return Ok(patient(tcp)?),
            Err(error) if Instant::now() > deadline => return Err(error.into()),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
}

fn body(bytes: &str, seed: &str) -> Result<Vec<u8>, Failure> {
    Ok(Random::new(seed.parse()?).bytes(bytes.parse()?))
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["echo", address] => serve(address, |tcp| Ok(Stream { tcp, tls: false })),
        ["exchange", address, bytes, seed] => {
            let stream = Stream { tcp: reach(address)?, tls: false };
            stream.exchange(&body(bytes, seed)?)
        }
        ["tls-echo", address, version, suite, cert, key] => {
            let config = server(version, suite, cert, key)?;
            serve(address, move |tcp| handshake(tcp, ServerConnection::new(config.clone())?.into()))
        }
        ["tls-exchange", address, version, suite, ca, name, bytes, seed] => {
            let connection = client(version, suite, ca, name)?;
            handshake(reach(address)?, connection)?.exchange(&body(bytes, seed)?)
        }
        _ => Err("see the head of tests/examples/tls_peer.rs".into()),
    }
}
