//! TLS of a listener: its identity, and the handshake that turns an accepted socket into a
//! [`Stream`].

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use record::{Handshake, HandshakeError, Progress};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use service::Stream;
use service::stream::Parts;
use tokio::net::TcpStream;

use crate::config::{TlsConfig, TlsVersion};

/// The only protocol offered: connections of HTTP/2 cannot be handed over request by request.
const ALPN: &[u8] = b"http/1.1";
/// Bytes read at once during a handshake.
const READ_BYTES: usize = 4096;
/// Largest PEM file that is read.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Why an identity cannot be used: the operator's to resolve.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: {error}; give a PEM file that this user may read")]
    Read {
        /// The file.
        path: String,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// The files are no identity.
    #[error("{certificate} with {key}: {error}")]
    Identity {
        /// The certificate's file.
        certificate: String,
        /// The key's file.
        key: String,
        /// What is wrong with them.
        #[source]
        error: record::ConfigError,
    },
}

/// Loads the identity of a listener.
///
/// # Errors
/// A file that cannot be read, or that is not what it should be.
pub(crate) fn load(config: &TlsConfig) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let identity = |error| TlsError::Identity {
        certificate: config.certificate.display().to_string(),
        key: config.key.display().to_string(),
        error,
    };
    let (chain, key) =
        record::config::identity_from_pem(&read(&config.certificate)?, &read(&config.key)?)
            .map_err(identity)?;
    match config.min_version {
        TlsVersion::Tls12 => record::server_config(chain, key, &[ALPN]),
        TlsVersion::Tls13 => certified(chain, key).and_then(|resolver| {
            record::config::server_config_with_resolver(Arc::new(resolver), &[ALPN])
        }),
    }
    .map_err(identity)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |error| TlsError::Read { path: path.display().to_string(), error };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, PEM_BYTES_MAX), &mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Only13, record::ConfigError> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain, key, &provider)
        .map(|key| Only13(Arc::new(key)))
        .map_err(record::ConfigError::Identity)
}

/// An identity for clients of TLS 1.3 only.
#[derive(Debug)]
struct Only13(Arc<CertifiedKey>);

impl ResolvesServerCert for Only13 {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        // Suites of TLS 1.3 are of no use to older versions, so who offers none speaks none.
        let speaks_13 =
            hello.cipher_suites().iter().any(|suite| matches!(u16::from(*suite), 0x1301..=0x1305));
        speaks_13.then(|| self.0.clone())
    }
}

/// Why a connection did not come about.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The client spoke HTTP without TLS; an answer in the clear can be read by it.
    PlainHttp(TcpStream),
    /// The client's or the configuration's fault; what was due to be said has been said.
    Handshake(HandshakeError),
    /// The transport's.
    Transport,
}

/// Performs the handshake.
///
/// # Errors
/// Any [`Failure`].
pub(crate) async fn accept(
    tcp: TcpStream,
    config: Arc<rustls::ServerConfig>,
    only_13: bool,
) -> Result<Stream, Failure> {
    let mut handshake = Handshake::new(config).map_err(Failure::Handshake)?;
    let mut input = Vec::with_capacity(READ_BYTES);
    let mut out = Vec::new();
    loop {
        input.clear();
        if read_some(&tcp, &mut input).await.map_err(|_| Failure::Transport)? == 0 {
            return Err(Failure::Transport);
        }
        let progress = handshake.advance(&input, &mut out);
        let sent = write_all(&tcp, &out).await;
        out.clear();
        match progress {
            Err(HandshakeError::NotTls { http: true, .. }) => return Err(Failure::PlainHttp(tcp)),
            Err(error) => return Err(Failure::Handshake(error)),
            Ok(_) if sent.is_err() => return Err(Failure::Transport),
            Ok(Progress::NeedsInput) => {}
            Ok(Progress::Complete(established)) => {
                let record = established.record;
                if only_13 && record.to_snapshot().version != 0x0304 {
                    let what = "a suite of TLS 1.3 in a hello of TLS 1.2";
                    return Err(Failure::Handshake(HandshakeError::Config(what.to_owned())));
                }
                return Ok(Stream::from_parts(Parts {
                    tcp,
                    record: Some(Box::new(record)),
                    input: established.plaintext,
                    ended: false,
                }));
            }
        }
    }
}

async fn read_some(tcp: &TcpStream, input: &mut Vec<u8>) -> io::Result<usize> {
    input.reserve(READ_BYTES);
    loop {
        match tcp.try_read_buf(input) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tcp.readable().await?,
            other => return other,
        }
    }
}

async fn write_all(tcp: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    use rustix::net::{SendFlags, send};
    while !bytes.is_empty() {
        let sent = tcp.try_io(tokio::io::Interest::WRITABLE, || {
            send(tcp.as_fd(), bytes, SendFlags::NOSIGNAL).map_err(io::Error::from)
        });
        match sent {
            Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tcp.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
