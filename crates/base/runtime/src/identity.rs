//! The identity of a TLS listener: a certificate chain and its key, from PEM files.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;

/// Largest PEM file that is read, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Error of an identity, for the operator to correct.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
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

impl IdentityError {
    /// The files at these paths do not form an identity.
    pub fn of(certificate: &Path, key: &Path, error: unlade_tls::ConfigError) -> IdentityError {
        let (certificate, key) = (certificate.display().to_string(), key.display().to_string());
        IdentityError::Identity { certificate, key, error }
    }
}

/// A certificate chain, and the configuration of handshakes with it.
#[derive(Debug, Clone)]
pub struct Identity {
    /// The certificate, then its issuers.
    pub chain: Vec<CertificateDer<'static>>,
    /// The configuration; its secrets can be extracted.
    pub config: Arc<ServerConfig>,
}

/// Loads an identity whose handshakes offer the protocols `alpn`, the best first.
///
/// # Errors
/// A file cannot be read, or has the wrong content.
pub fn load(certificate: &Path, key: &Path, alpn: &[&[u8]]) -> Result<Identity, IdentityError> {
    let failed = |error| IdentityError::of(certificate, key, error);
    let (chain, private) =
        unlade_tls::config::identity_from_pem(&read(certificate)?, &read(key)?).map_err(failed)?;
    let config = unlade_tls::server_config(chain.clone(), private, alpn).map_err(failed)?;
    Ok(Identity { chain, config })
}

fn read(path: &Path) -> Result<Vec<u8>, IdentityError> {
    let failed = |error| IdentityError::Read { path: path.display().to_string(), error };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(PEM_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}
