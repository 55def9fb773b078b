//! TLS of the worker's clients: trusted authorities.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

use crate::config_error::{ConfigError, value};

/// Usual paths of the system's trusted certificate authorities.
const AUTHORITIES: &[&str] =
    &["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// The TLS configuration with the authorities of a file, or the system's; `key` names the file's
/// key.
///
/// # Errors
/// There are no authorities.
pub fn tls(ca: Option<&Path>, key: &'static str) -> Result<Arc<rustls::ClientConfig>, ConfigError> {
    let system = || AUTHORITIES.iter().map(PathBuf::from).find(|path| path.exists());
    let path = ca.map(Path::to_owned).or_else(system);
    let path = path.ok_or_else(|| value(key, "the system has no authorities; name a file"))?;
    let mut roots = rustls::RootCertStore::empty();
    let failed = |error: &dyn std::fmt::Display| value(key, format!("{path:?}: {error}"));
    for certificate in CertificateDer::pem_file_iter(&path).map_err(|e| failed(&e))? {
        // A bundle may contain certificates that the parser does not support; the others are
        // used.
        let _ = roots.add(certificate.map_err(|e| failed(&e))?);
    }
    if roots.is_empty() {
        return Err(value(key, format!("{path:?} has no certificate")));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| value(key, error))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
