//! TLS of connections that are accepted directly, and the device that seals and opens records of
//! these and of adopted ones, where there is one (`tls = "nic"`).

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use unlade_metrics::{Event, OffloadRefusal, Stage};
use unlade_runtime::Stream;
use unlade_runtime::handshake;
use unlade_runtime::handshake::Failure;
use unlade_tls::device::{Begin, Refused};

use crate::config::HttpsConfig;
use crate::context::Context;
use crate::session::{OnDrain, Session};

/// The only application protocol.
const ALPN: &[u8] = b"http/1.1";
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
        error: unlade_tls::ConfigError,
    },
}

/// Loads the identity of the `[https]` table.
///
/// # Errors
/// A file that cannot be read, or that is not what it should be.
pub(crate) fn load(config: &HttpsConfig) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let wrong = |error| TlsError::Identity {
        certificate: config.certificate.display().to_string(),
        key: config.key.display().to_string(),
        error,
    };
    let (certificate, key) = (read(&config.certificate)?, read(&config.key)?);
    let (chain, key) = unlade_tls::config::identity_from_pem(&certificate, &key).map_err(wrong)?;
    unlade_tls::server_config(chain, key, &[ALPN]).map_err(wrong)
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |error| TlsError::Read { path: path.display().to_string(), error };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(PEM_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The handshake of an accepted connection; the device takes it over, if there is one and it can.
/// None where there is no connection: it was counted.
pub(crate) async fn accept(
    tcp: TcpStream,
    config: Arc<rustls::ServerConfig>,
    session: &mut Session,
) -> Option<Stream> {
    let context = session.context().clone();
    let begin = std::time::Instant::now();
    let limit = context.limits().head_timeout;
    let accepting = handshake::accept(tcp, config);
    let why = match session.within(limit, OnDrain::Finish, accepting).await {
        Ok(Ok(established)) => {
            context.meter.add(Event::BackendHandshake);
            context.meter.record(Stage::TlsHandshake, begin.elapsed());
            let bytes = (established.read_bytes, established.written_bytes);
            let mut stream = established.into_stream();
            offload(&mut stream, &context, Begin::Seen, bytes).await;
            return Some(stream);
        }
        Ok(Err(Failure::PlainHttp(_))) => "plain HTTP".to_owned(),
        Ok(Err(Failure::Handshake(error))) => error.to_string(),
        Ok(Err(Failure::Transport)) => "the connection ended".to_owned(),
        Err(_) => "it took too long".to_owned(),
    };
    context.meter.add(Event::BackendHandshakeFailed);
    tracing::debug!(why, "TLS handshake failed");
    None
}

/// Has the device take the records of a connection over, where there is a device; what it refuses
/// goes on in software.
pub(crate) async fn offload(
    stream: &mut Stream,
    context: &Context,
    begin: Begin,
    bytes: (u64, u64),
) {
    let Some(device) = context.device() else { return };
    match stream.offload(&*device, begin, bytes).await {
        Ok(()) => context.meter.add(Event::RecordsOffloaded),
        Err(refused) => {
            tracing::debug!(peer = %stream.peer(), %refused, "not offloaded");
            context.meter.add(Event::RecordsRefused(reason(refused)));
        }
    }
}

fn reason(refused: Refused) -> OffloadRefusal {
    match refused {
        Refused::Unknown => OffloadRefusal::Unknown,
        Refused::Duplicate => OffloadRefusal::Duplicate,
        Refused::Gone => OffloadRefusal::Gone,
        Refused::Unsupported => OffloadRefusal::Unsupported,
        Refused::Unbound => OffloadRefusal::Unbound,
    }
}
