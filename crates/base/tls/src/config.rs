//! The configuration of a server: suites whose state can be moved, ALPN, tickets.

use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs as provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ResolvesServerCert;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use thiserror::Error;

use crate::capture::{CaptureName, CaptureSecrets};
use crate::suite::SUITES;

/// Most certificates in a chain.
pub const CHAIN_CERTIFICATES_MAX: usize = 16;

/// The reason why a server cannot be configured.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The text of the certificate or key is not PEM of the right kind.
    #[error("{what}: {source}; a PEM file is expected")]
    Pem {
        /// The text: certificate or key.
        what: &'static str,
        /// The error of the parser.
        source: rustls::pki_types::pem::Error,
    },
    /// No certificate, or too many.
    #[error("the chain holds {0} certificates; give the server's first, then its issuers")]
    Chain(usize),
    /// Certificate and key do not match, or the key is of an unknown kind.
    #[error("certificate and key: {0}; give the key of the chain's first certificate")]
    Identity(rustls::Error),
    /// The library refuses the combination, or lacks randomness.
    #[error("TLS cannot be set up: {0}")]
    Setup(rustls::Error),
}

/// The suites that a [`crate::RecordLayer`] supports, in the order of their table.
fn crypto_provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: SUITES.iter().filter_map(|suite| suite.rustls.copied()).collect(),
        ..provider::default_provider()
    }
}

/// Reads a certificate chain and a private key from PEM text.
///
/// # Errors
/// [`ConfigError::Pem`], [`ConfigError::Chain`].
pub fn identity_from_pem(
    certificate_pem: &[u8],
    key_pem: &[u8],
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConfigError> {
    let pem = |what| move |source| ConfigError::Pem { what, source };
    let chain = CertificateDer::pem_slice_iter(certificate_pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(pem("certificate"))?;
    check_chain(&chain)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(pem("private key"))?;
    Ok((chain, key))
}

fn check_chain(chain: &[CertificateDer<'static>]) -> Result<(), ConfigError> {
    match chain.len() {
        1..=CHAIN_CERTIFICATES_MAX => Ok(()),
        other => Err(ConfigError::Chain(other)),
    }
}

/// The configuration of a server with one identity, for [`crate::Handshake`].
///
/// `alpn`: the protocols offered, in order of preference (`http/1.1` if connections are to be
/// handed over); an empty list disables ALPN.
///
/// # Errors
/// Any [`ConfigError`].
pub fn server_config(
    certificate_chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, ConfigError> {
    check_chain(&certificate_chain)?;
    let certified = CertifiedKey::from_der(certificate_chain, key, &crypto_provider())
        .map_err(ConfigError::Identity)?;
    server_config_with_resolver(Arc::new(SingleCertAndKey::from(certified)), alpn)
}

/// As [`server_config`], with a certificate chosen for each client, e.g. by the requested name.
///
/// # Errors
/// [`ConfigError::Setup`].
pub fn server_config_with_resolver(
    resolver: Arc<dyn ResolvesServerCert>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, ConfigError> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(ConfigError::Setup)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(CaptureName(resolver)));
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.ignore_client_order = true;
    config.enable_secret_extraction = true;
    config.key_log = Arc::new(CaptureSecrets);
    // Early data could be a replay, because it precedes the proof that the client is live, and has
    // its own keys, which are not extracted.
    config.max_early_data_size = 0;
    // Tickets are sent with the handshake's last flight, before extraction. They are sealed for
    // this process (no state to look up, no lock between cores); one is enough for a client that
    // keeps its connection open.
    config.ticketer = provider::Ticketer::new().map_err(ConfigError::Setup)?;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 1;
    Ok(Arc::new(config))
}
