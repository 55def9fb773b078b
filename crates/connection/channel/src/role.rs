//! Roles within a pool: the members that may act as a balancer.
//!
//! All members have certificates of one authority. A balancer may have an agent open a connection
//! with any state, and gets back the TLS keys of the connections that it offered. A server must
//! not be able to do that. Therefore a balancer's certificate has the URI [`BALANCER_ROLE`] among
//! its subject alternative names, or the agent is configured with the names of its balancers.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, OtherError, SignatureScheme,
};
use thiserror::Error;
use webpki::EndEntityCert;

/// The subject alternative name, a URI, of a certificate that may act as a balancer.
pub const BALANCER_ROLE: &str = "unlade://role/balancer";

/// Reason why a member of the pool is not accepted as a balancer.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RoleError {
    /// The certificate does not have the role.
    #[error(
        "the certificate with the names [{names}] is not a balancer's; issue it with `openssl req \
         … -addext subjectAltName=IP:ADDRESS,URI:{BALANCER_ROLE} -addext \
         extendedKeyUsage=clientAuth`, or list one of its names in `balancers` of [agent]"
    )]
    NoRole {
        /// Its DNS names and URIs.
        names: String,
    },
    /// The configured names do not include it.
    #[error(
        "the certificate with the names [{names}] is not one of the configured balancers; add one of \
         its names to `balancers` of [agent] where it is to be one"
    )]
    NotListed {
        /// Its DNS names and URIs.
        names: String,
    },
    /// The certificate cannot be read.
    #[error("the certificate cannot be read: {0}")]
    Unreadable(String),
}

/// A name in `balancers` that no certificate can have.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("balancers: `{0}` is no host name, IP address or URI of a certificate")]
pub struct NameError(pub String);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Name {
    Host(ServerName<'static>),
    Uri(String),
}

/// The members that may act as a balancer. By default, those with [`BALANCER_ROLE`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balancers {
    names: Vec<Name>,
}

impl Balancers {
    /// Creates the list of members whose certificates have one of `names` as a subject alternative
    /// name: host names, IP addresses, URIs. The role does not count then. Without a name, the
    /// role alone counts.
    ///
    /// # Errors
    /// [`NameError`].
    pub fn named<S: AsRef<str>>(names: &[S]) -> Result<Balancers, NameError> {
        let name = |text: &S| {
            let text = text.as_ref();
            if text.contains("://") {
                return Ok(Name::Uri(text.to_owned()));
            }
            let host = match text.parse::<IpAddr>() {
                Ok(ip) => Some(ServerName::IpAddress(ip.into())),
                Err(_) => ServerName::try_from(text.to_owned()).ok(),
            };
            host.map(Name::Host).ok_or_else(|| NameError(text.to_owned()))
        };
        Ok(Balancers { names: names.iter().map(name).collect::<Result<_, _>>()? })
    }

    /// Checks that the certificate, which is of the pool's authority, may act as a balancer.
    ///
    /// # Errors
    /// [`RoleError`], with the remedy.
    pub fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), RoleError> {
        let parsed = EndEntityCert::try_from(certificate)
            .map_err(|error| RoleError::Unreadable(error.to_string()))?;
        let has_uri = |uri: &str| parsed.valid_uri_names().any(|name| name == uri);
        let has = |name: &Name| match name {
            Name::Uri(uri) => has_uri(uri),
            Name::Host(host) => parsed.verify_is_valid_for_subject_name(host).is_ok(),
        };
        let allowed = match self.names.is_empty() {
            true => has_uri(BALANCER_ROLE),
            false => self.names.iter().any(has),
        };
        let names = || {
            let all: Vec<&str> = parsed.valid_dns_names().chain(parsed.valid_uri_names()).collect();
            all.join(", ")
        };
        match allowed {
            true => Ok(()),
            false if self.names.is_empty() => Err(RoleError::NoRole { names: names() }),
            false => Err(RoleError::NotListed { names: names() }),
        }
    }
}

/// Identity of a peer, from its certificate: the subject, the DNS names and the URIs. A renewed
/// certificate has the same identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PeerIdentity(Arc<[u8]>);

impl PeerIdentity {
    /// Returns the identity in a certificate; `None` if it cannot be read.
    pub fn of(certificate: &CertificateDer<'_>) -> Option<PeerIdentity> {
        let parsed = EndEntityCert::try_from(certificate).ok()?;
        let mut names: Vec<&str> =
            parsed.valid_dns_names().chain(parsed.valid_uri_names()).collect();
        names.sort_unstable();
        let mut identity = (parsed.subject().len() as u32).to_be_bytes().to_vec();
        identity.extend_from_slice(parsed.subject());
        for name in names {
            // No such name contains a zero byte.
            identity.extend_from_slice(name.as_bytes());
            identity.push(0);
        }
        Some(PeerIdentity(identity.into()))
    }
}

/// Accepts certificates that `inner` accepts and that may act as a balancer.
#[derive(Debug)]
pub(crate) struct BalancerVerifier {
    pub(crate) inner: Arc<dyn ClientCertVerifier>,
    pub(crate) balancers: Balancers,
}

impl ClientCertVerifier for BalancerVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.inner.verify_client_cert(end_entity, intermediates, now)?;
        self.balancers.check(end_entity).map_err(|error| {
            rustls::Error::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(error))))
        })?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair, SanType};

    use super::*;

    fn certificate(subject: &str, names: &[SanType]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, subject);
        params.subject_alt_names = names.to_vec();
        let key = KeyPair::generate().unwrap();
        params.self_signed(&key).unwrap().der().clone()
    }

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().unwrap())
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().unwrap())
    }

    #[test]
    fn the_role_makes_a_balancer_and_nothing_else_does() {
        let by_role = Balancers::default();
        by_role.check(&certificate("lb", &[dns("lb"), uri(BALANCER_ROLE)])).unwrap();
        for names in [&[dns("s1.lab")][..], &[uri("unlade://role/server")], &[]] {
            let refused = by_role.check(&certificate("lb", names)).unwrap_err();
            assert!(matches!(refused, RoleError::NoRole { .. }), "{refused}");
            assert!(refused.to_string().contains("URI:unlade://role/balancer"), "{refused}");
        }
        let broken = by_role.check(&CertificateDer::from(vec![1, 2, 3])).unwrap_err();
        assert!(matches!(broken, RoleError::Unreadable(_)));
    }

    #[test]
    fn configured_names_stand_for_the_role() {
        let listed = Balancers::named(&["lb.lab", "10.0.0.3", "spiffe://lab/lb"]).unwrap();
        let address = SanType::IpAddress([10, 0, 0, 3].into());
        for name in [dns("lb.lab"), address, uri("spiffe://lab/lb")] {
            listed.check(&certificate("x", &[dns("other"), name])).unwrap();
        }
        let other = [dns("s1.lab"), SanType::IpAddress([10, 0, 0, 4].into()), uri(BALANCER_ROLE)];
        let refused = listed.check(&certificate("lb.lab", &other)).unwrap_err();
        assert!(matches!(refused, RoleError::NotListed { .. }), "{refused}");
        assert!(refused.to_string().contains("s1.lab"), "{refused}");
        let error = Balancers::named(&["lb lab"]).unwrap_err();
        assert_eq!(error, NameError("lb lab".to_owned()));
    }

    #[test]
    fn an_identity_outlives_its_certificate_and_is_one_peers() {
        let identity = |subject: &str, names: &[SanType]| {
            PeerIdentity::of(&certificate(subject, names)).unwrap()
        };
        let role = || uri(BALANCER_ROLE);
        // The key, the serial number and the order of the names differ.
        assert_eq!(identity("lb", &[dns("lb"), role()]), identity("lb", &[role(), dns("lb")]));
        assert_ne!(identity("lb", &[dns("lb"), role()]), identity("lb", &[dns("lb2"), role()]));
        assert_ne!(identity("lb", &[role()]), identity("s1", &[role()]));
    }
}
