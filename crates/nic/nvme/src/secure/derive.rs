//! Derivation of the TLS key and its identity from a configured key (NVMe/TCP 1.1 §3.6.1.3).
//!
//! ```text
//!  configured ─HKDF "HostNQN"─► retained ─HKDF "nvme-tls-psk"─► TLS PSK
//!                                  └─HMAC of both NQNs─► digest, in identities of version 1
//! ```

use aws_lc_rs::{hkdf, hmac};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use thiserror::Error;
use unlade_nvme_wire::Nqn;
use unlade_tls::expand::expand_prk;
use unlade_tls::psk::{Hash, Psk};
use zeroize::Zeroizing;

use super::key::{ConfiguredKey, Transform};

/// Longest context of HKDF-Expand-Label, bytes (RFC 8446 §7.1).
const CONTEXT_BYTES_MAX: usize = 255;
/// The suffix of the input of the version 1 digest, behind both NQNs.
const PROTOCOL: &str = "NVMe-over-Fabrics";

/// The form of a key's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdentityVersion {
    /// `NVMe0R01 HOSTNQN SUBNQN`.
    Zero,
    /// `NVMe1R01 HOSTNQN SUBNQN DIGEST`: of specification 1.1; the digest identifies the key.
    One,
}

/// The reason that no TLS key can be derived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeriveError {
    /// The identity is the context of a derivation, which is limited to 255 bytes.
    #[error("the NQNs are too long together for a key identity of version 0; use shorter ones")]
    TooLong,
    /// The library rejects a length.
    #[error("the key could not be derived")]
    Internal,
}

/// HKDF-Extract with a salt of zeros, then HKDF-Expand-Label (RFC 5869, RFC 8446 §7.1).
fn extract_and_expand(
    hash: Hash,
    key: &[u8],
    label: &str,
    context: &[u8],
    bytes: usize,
) -> Result<Zeroizing<Vec<u8>>, DeriveError> {
    if context.len() > CONTEXT_BYTES_MAX {
        return Err(DeriveError::TooLong);
    }
    let zeros = [0; 48];
    let secret = hkdf::Salt::new(hash.hkdf(), &zeros[..hash.bytes()]).extract(key);
    let mut out = Zeroizing::new(vec![0; bytes]);
    expand_prk(&secret, label.as_bytes(), context, &mut out).map_err(|_| DeriveError::Internal)?;
    Ok(out)
}

/// The hash that corresponds to a key's length.
fn hash_of(key: &ConfiguredKey) -> Hash {
    if key.bytes().len() == 48 { Hash::Sha384 } else { Hash::Sha256 }
}

fn retained(key: &ConfiguredKey, host: &Nqn) -> Result<Zeroizing<Vec<u8>>, DeriveError> {
    let hash = match key.transform() {
        Transform::None => return Ok(Zeroizing::new(key.bytes().to_vec())),
        Transform::Sha256 => Hash::Sha256,
        Transform::Sha384 => Hash::Sha384,
    };
    let bytes = key.bytes().len();
    extract_and_expand(hash, key.bytes(), "HostNQN", host.as_str().as_bytes(), bytes)
}

fn digest(hash: Hash, retained: &[u8], host: &Nqn, subsystem: &Nqn) -> String {
    let text = format!("{host} {subsystem} {PROTOCOL}");
    STANDARD.encode(hmac::sign(&hmac::Key::new(hash.hmac(), retained), text.as_bytes()))
}

/// The TLS key between `host` and `subsystem`, with its identity.
///
/// # Errors
/// [`DeriveError`].
pub fn tls_psk(
    key: &ConfiguredKey,
    host: &Nqn,
    subsystem: &Nqn,
    version: IdentityVersion,
) -> Result<Psk, DeriveError> {
    let hash = hash_of(key);
    let number = match hash {
        Hash::Sha256 => "01",
        Hash::Sha384 => "02",
    };
    let retained = retained(key, host)?;
    let (identity, context) = match version {
        IdentityVersion::Zero => {
            let identity = format!("NVMe0R{number} {host} {subsystem}");
            (identity.clone(), identity)
        }
        IdentityVersion::One => {
            let digest = digest(hash, &retained, host, subsystem);
            let identity = format!("NVMe1R{number} {host} {subsystem} {digest}");
            (identity, format!("{number} {digest}"))
        }
    };
    let key =
        extract_and_expand(hash, &retained, "nvme-tls-psk", context.as_bytes(), hash.bytes())?;
    Ok(Psk { identity: identity.into_bytes(), key, hash })
}

/// Returns the TLS key with the client's `identity`, if `key` yields it for the host in that
/// identity and `subsystem`. Servers use it, since they learn the host's NQN from the identity.
pub fn find(key: &ConfiguredKey, subsystem: &Nqn, identity: &[u8]) -> Option<Psk> {
    let text = core::str::from_utf8(identity).ok()?;
    let mut words = text.split(' ');
    let version = match words.next()?.get(..5)? {
        "NVMe0" => IdentityVersion::Zero,
        "NVMe1" => IdentityVersion::One,
        _ => return None,
    };
    let host = Nqn::new(words.next()?).ok()?;
    let psk = tls_psk(key, &host, subsystem, version).ok()?;
    (psk.identity == identity).then_some(psk)
}

/// The host's NQN in an identity that [`find`] has accepted.
pub fn host_of(identity: &[u8]) -> Option<Nqn> {
    Nqn::new(core::str::from_utf8(identity).ok()?.split(' ').nth(1)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nqn(name: &str) -> Nqn {
        Nqn::new(name).unwrap()
    }

    /// Identities that are published with other implementations. Their digest depends on the
    /// retained key, and therefore on the first derivation.
    #[test]
    fn published_identities_are_derived() {
        let cases = [
            (
                "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:",
                "NVMe1R01 nqn.psk-test-host nqn.psk-test-subsys \
                 iSbjiStwJ/1TrTvDlt2fjFmzvsytOJelidNnA+X5lEU=",
            ),
            (
                "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsD\
                 n8kXZQ==:",
                "NVMe1R02 nqn.psk-test-host nqn.psk-test-subsys \
                 QhW2+Rp6RzHlNtCslyRxMnwJ11tKKhz8JCAQpQ+XUD8f9td1VeH5h53yz2wKJG1a",
            ),
        ];
        let (host, subsystem) = (nqn("nqn.psk-test-host"), nqn("nqn.psk-test-subsys"));
        for (text, identity) in cases {
            let key = ConfiguredKey::parse(text).unwrap();
            let psk = tls_psk(&key, &host, &subsystem, IdentityVersion::One).unwrap();
            assert_eq!(String::from_utf8(psk.identity).unwrap(), identity);
        }
    }

    /// Compares with HKDF built from HMAC alone (RFC 5869 §2.2, §2.3: one block is enough).
    #[test]
    fn derivation_is_that_of_the_rfc() {
        let by_hand = |key: &[u8], label: &str, context: &str| {
            let extract = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &[0; 32]), key);
            let mut info = vec![0, 32, label.len() as u8];
            info.extend_from_slice(label.as_bytes());
            info.push(context.len() as u8);
            info.extend_from_slice(context.as_bytes());
            info.push(1);
            let key = hmac::Key::new(hmac::HMAC_SHA256, extract.as_ref());
            hmac::sign(&key, &info).as_ref().to_vec()
        };
        let (host, subsystem) = (nqn("nqn.h"), nqn("nqn.s"));
        let key = ConfiguredKey::new(&[7; 32], Transform::Sha256).unwrap();
        let retained = by_hand(&[7; 32], "tls13 HostNQN", "nqn.h");
        let expected = by_hand(&retained, "tls13 nvme-tls-psk", "NVMe0R01 nqn.h nqn.s");
        let psk = tls_psk(&key, &host, &subsystem, IdentityVersion::Zero).unwrap();
        assert_eq!(*psk.key, expected);
        let bare = ConfiguredKey::new(&[7; 32], Transform::None).unwrap();
        let psk = tls_psk(&bare, &host, &subsystem, IdentityVersion::Zero).unwrap();
        assert_eq!(*psk.key, by_hand(&[7; 32], "tls13 nvme-tls-psk", "NVMe0R01 nqn.h nqn.s"));
    }

    #[test]
    fn a_server_finds_both_versions_and_nothing_else() {
        let (host, subsystem) = (nqn("nqn.host"), nqn("nqn.subsystem"));
        let key = ConfiguredKey::generate(false).unwrap();
        for version in [IdentityVersion::Zero, IdentityVersion::One] {
            let psk = tls_psk(&key, &host, &subsystem, version).unwrap();
            let found = find(&key, &subsystem, &psk.identity).unwrap();
            assert_eq!(found.key, psk.key);
            assert_eq!(host_of(&psk.identity), Some(host.clone()));
            assert!(find(&key, &nqn("nqn.other"), &psk.identity).is_none());
        }
        for identity in
            ["", "NVMe0R01", "NVMe2R01 nqn.host nqn.subsystem", "NVMe", "\u{e9}\u{e9}\u{e9}"]
        {
            assert!(find(&key, &subsystem, identity.as_bytes()).is_none(), "{identity}");
        }
        assert!(find(&key, &subsystem, &[0xff; 20]).is_none());
        // An identity of another key: only version 1 identifies the key.
        let other = ConfiguredKey::generate(false).unwrap();
        let psk = tls_psk(&other, &host, &subsystem, IdentityVersion::One).unwrap();
        assert!(find(&key, &subsystem, &psk.identity).is_none());
    }

    #[test]
    fn names_that_do_not_fit_are_refused() {
        let long = nqn(&format!("nqn.{}", "a".repeat(200)));
        let key = ConfiguredKey::generate(false).unwrap();
        let refused = tls_psk(&key, &long, &long, IdentityVersion::Zero).unwrap_err();
        assert_eq!(refused, DeriveError::TooLong);
        assert!(tls_psk(&key, &long, &long, IdentityVersion::One).is_ok());
    }
}
