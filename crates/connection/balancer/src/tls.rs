//! TLS of a listener: the identity, and the handshake that turns an accepted socket into a
//! [`Stream`].

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use unlade_runtime::Stream;
use unlade_runtime::handshake;
pub(crate) use unlade_runtime::handshake::Failure;

use crate::config::{TlsConfig, TlsVersion};

/// The only protocol offered: HTTP/2 connections cannot be handed over request by request.
const ALPN: &[u8] = b"http/1.1";
/// Largest PEM file that is read.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Error of an identity, for the operator to correct.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("{path}: {error}; give a PEM file that this user may read")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// The files do not form an identity.
    #[error("{certificate} with {key}: {error}")]
    Identity {
        /// The certificate's file.
        certificate: String,
        /// The key's file.
        key: String,
        /// The error.
        #[source]
        error: unlade_tls::ConfigError,
    },
}

/// Loads the identity of a listener.
///
/// # Errors
/// A file cannot be read, or has the wrong content.
pub(crate) fn load(config: &TlsConfig) -> Result<Arc<rustls::ServerConfig>, TlsError> {
    let identity = |error| TlsError::Identity {
        certificate: config.certificate.display().to_string(),
        key: config.key.display().to_string(),
        error,
    };
    let (chain, key) =
        unlade_tls::config::identity_from_pem(&read(&config.certificate)?, &read(&config.key)?)
            .map_err(identity)?;
    let both = unlade_tls::server_config(chain, key, &[ALPN]).map_err(identity)?;
    match config.min_version {
        TlsVersion::Tls12 => Ok(both),
        TlsVersion::Tls13 => only_13(&both).map_err(identity),
    }
}

/// Returns the same configuration for clients of TLS 1.3 only.
fn only_13(
    both: &rustls::ServerConfig,
) -> Result<Arc<rustls::ServerConfig>, unlade_tls::ConfigError> {
    let mut config = rustls::ServerConfig::builder_with_provider(both.crypto_provider().clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unlade_tls::ConfigError::Setup)?
        .with_no_client_auth()
        .with_cert_resolver(both.cert_resolver.clone());
    config.alpn_protocols.clone_from(&both.alpn_protocols);
    config.ignore_client_order = both.ignore_client_order;
    config.enable_secret_extraction = both.enable_secret_extraction;
    config.key_log = both.key_log.clone();
    config.max_early_data_size = both.max_early_data_size;
    config.ticketer = both.ticketer.clone();
    config.session_storage = both.session_storage.clone();
    config.send_tls13_tickets = both.send_tls13_tickets;
    Ok(Arc::new(config))
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |error| TlsError::Read { path: path.display().to_string(), error };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    io::Read::read_to_end(&mut io::Read::take(file, PEM_BYTES_MAX), &mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// Performs the handshake.
///
/// # Errors
/// Any [`Failure`].
pub(crate) async fn accept(
    tcp: TcpStream,
    config: Arc<rustls::ServerConfig>,
) -> Result<Stream, Failure> {
    Ok(handshake::accept(tcp, config).await?.into_stream())
}
