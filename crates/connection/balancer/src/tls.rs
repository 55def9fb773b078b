//! TLS of a listener: the identity, and the handshake that turns an accepted socket into a
//! [`Stream`].

use std::sync::Arc;

use tokio::net::TcpStream;
use unlade_runtime::Stream;
use unlade_runtime::handshake;
pub(crate) use unlade_runtime::handshake::Failure;
use unlade_runtime::identity::{self, IdentityError};

use crate::config::{TlsConfig, TlsVersion};

/// The only protocol offered: HTTP/2 connections cannot be handed over request by request.
const ALPN: &[u8] = b"http/1.1";

/// Loads the identity of a listener.
///
/// # Errors
/// A file cannot be read, or has the wrong content.
pub(crate) fn load(config: &TlsConfig) -> Result<Arc<rustls::ServerConfig>, IdentityError> {
    let TlsConfig { certificate, key, min_version } = config;
    let both = identity::load(certificate, key, &[ALPN])?.config;
    match min_version {
        TlsVersion::Tls12 => Ok(both),
        TlsVersion::Tls13 => {
            only_13(&both).map_err(|error| IdentityError::of(certificate, key, error))
        }
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
