//! Mutual TLS between the machines of one pool. Both ends have a certificate of the pool's CA, and
//! the one that connects has the role of a balancer ([`crate::role`]).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use thiserror::Error;

use crate::role::{BalancerVerifier, Balancers, RoleError};

/// The files that make a machine a member of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustFiles {
    /// PEM file: the CA whose certificates are trusted.
    pub ca: PathBuf,
    /// PEM file: this machine's certificate, then its issuers.
    pub certificate: PathBuf,
    /// PEM file: this machine's private key.
    pub key: PathBuf,
}

/// Reason why the files do not make a machine a member.
#[derive(Debug, Error)]
pub enum TrustError {
    /// A file has the wrong content.
    #[error("{path}: {why}; it must be a PEM file with {what}")]
    File {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
        /// The error.
        why: String,
    },
    /// Key and certificate do not match, or the CA is unusable.
    #[error("certificate {certificate}: {source}")]
    Unusable {
        /// The certificate's file.
        certificate: PathBuf,
        /// The error of rustls.
        source: rustls::Error,
    },
    /// The CA cannot verify peers.
    #[error("CA {ca}: {why}")]
    Verifier {
        /// The CA's file.
        ca: PathBuf,
        /// The error.
        why: String,
    },
}

/// Membership of this machine in a pool, for connections to other members.
#[derive(Debug)]
pub struct Membership {
    /// TLS configuration of new channels.
    pub client: Arc<ClientConfig>,
    /// Differs if the content of the files does.
    pub mark: u64,
}

impl Membership {
    /// Reads `files`.
    ///
    /// # Errors
    /// [`TrustError`] names the file.
    pub fn load(files: &TrustFiles) -> Result<Membership, TrustError> {
        let identity = identity(files)?;
        let mark = identity.mark();
        Ok(Membership { client: client_of(identity, files)?, mark })
    }
}

/// Membership of this machine in a pool, for connections from other members.
#[derive(Debug)]
pub struct ServerTrust {
    /// TLS configuration of new channels.
    pub server: Arc<ServerConfig>,
    /// Differs if the content of the files does.
    pub mark: u64,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ServerTrust {
    /// Reads `files`; peers have to be among the `balancers`.
    ///
    /// # Errors
    /// [`TrustError`] names the file.
    pub fn load(files: &TrustFiles, balancers: &Balancers) -> Result<ServerTrust, TrustError> {
        let identity = identity(files)?;
        let mark = identity.mark();
        let (server, verifier) = server_of(identity, files, balancers)?;
        Ok(ServerTrust { server, mark, verifier })
    }

    /// Returns true if a peer, trusted earlier by the certificates `chain`, is still trusted.
    pub fn trusts(&self, chain: &[CertificateDer<'_>]) -> bool {
        let Some((own, issuers)) = chain.split_first() else { return false };
        self.verifier.verify_client_cert(own, issuers, UnixTime::now()).is_ok()
    }
}

struct Identity {
    roots: RootCertStore,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    authorities: Vec<CertificateDer<'static>>,
}

impl Identity {
    fn mark(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for certificate in self.authorities.iter().chain(&self.chain) {
            certificate.as_ref().hash(&mut hasher);
        }
        self.key.secret_der().hash(&mut hasher);
        hasher.finish()
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TrustError> {
    let failed = |why: String| {
        let what = "at least one certificate";
        TrustError::File { path: path.to_owned(), what, why }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| failed(error.to_string()))?;
    match chain.is_empty() {
        true => Err(failed("no certificate inside".to_owned())),
        false => Ok(chain),
    }
}

fn identity(files: &TrustFiles) -> Result<Identity, TrustError> {
    let mut roots = RootCertStore::empty();
    let authorities = certificates(&files.ca)?;
    for certificate in &authorities {
        roots
            .add(certificate.clone())
            .map_err(|source| TrustError::Unusable { certificate: files.ca.clone(), source })?;
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| TrustError::File {
        path: files.key.clone(),
        what: "a private key",
        why: error.to_string(),
    })?;
    Ok(Identity { roots, chain: certificates(&files.certificate)?, key, authorities })
}

/// Checks that the certificate of `files` has a balancer's role. Without it, agents accept it only
/// if they are configured with one of its names.
///
/// # Errors
/// [`TrustError`] names the file.
pub fn balancer_role(files: &TrustFiles) -> Result<Result<(), RoleError>, TrustError> {
    let chain = certificates(&files.certificate)?;
    Ok(chain.first().map_or(Ok(()), |certificate| Balancers::default().check(certificate)))
}

/// Returns the configuration of the side that connects: the balancer.
///
/// # Errors
/// [`TrustError`] names the file.
pub fn client_config(files: &TrustFiles) -> Result<Arc<ClientConfig>, TrustError> {
    client_of(identity(files)?, files)
}

fn client_of(identity: Identity, files: &TrustFiles) -> Result<Arc<ClientConfig>, TrustError> {
    let Identity { roots, chain, key, .. } = identity;
    let config = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|source| unusable(files, source))?;
    Ok(Arc::new(config))
}

/// Returns the configuration of the side that listens: the server's agent. It refuses in the
/// handshake a peer without a certificate of the CA, and one that is not among the `balancers`.
///
/// # Errors
/// [`TrustError`] names the file.
pub fn server_config(
    files: &TrustFiles,
    balancers: &Balancers,
) -> Result<Arc<ServerConfig>, TrustError> {
    Ok(server_of(identity(files)?, files, balancers)?.0)
}

type Verified = (Arc<ServerConfig>, Arc<dyn ClientCertVerifier>);

fn server_of(
    identity: Identity,
    files: &TrustFiles,
    balancers: &Balancers,
) -> Result<Verified, TrustError> {
    let Identity { roots, chain, key, .. } = identity;
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots))
        .build()
        .map_err(|why| TrustError::Verifier { ca: files.ca.clone(), why: why.to_string() })?;
    let verifier = Arc::new(BalancerVerifier { inner: verifier, balancers: balancers.clone() });
    let mut config = ServerConfig::builder_with_protocol_versions(&[&rustls::version::TLS13])
        .with_client_cert_verifier(verifier.clone())
        .with_single_cert(chain, key)
        .map_err(|source| unusable(files, source))?;
    // A resumed session would not present a certificate again.
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), verifier))
}

fn unusable(files: &TrustFiles, source: rustls::Error) -> TrustError {
    TrustError::Unusable { certificate: files.certificate.clone(), source }
}

/// Returns the name that the certificate of the machine at `ip` must have.
pub fn server_name(ip: IpAddr) -> ServerName<'static> {
    ServerName::IpAddress(ip.into())
}
