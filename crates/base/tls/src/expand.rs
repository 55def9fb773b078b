//! HKDF-Expand-Label (RFC 8446 §7.1), for this crate and for others that derive keys as TLS 1.3
//! does.

use aws_lc_rs::{digest, hkdf, hmac};
use thiserror::Error;

/// The start of every label.
const PREFIX: &[u8] = b"tls13 ";
/// Longest label with its prefix, and longest context, bytes.
const TEXT_BYTES_MAX: usize = 255;

/// The hash of a key schedule; for a pre-shared key it determines the cipher suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    /// SHA-256, with TLS_AES_128_GCM_SHA256.
    Sha256,
    /// SHA-384, with TLS_AES_256_GCM_SHA384.
    Sha384,
}

impl Hash {
    /// HKDF with this hash.
    pub const fn hkdf(self) -> hkdf::Algorithm {
        match self {
            Hash::Sha256 => hkdf::HKDF_SHA256,
            Hash::Sha384 => hkdf::HKDF_SHA384,
        }
    }

    /// HMAC with this hash.
    pub const fn hmac(self) -> hmac::Algorithm {
        match self {
            Hash::Sha256 => hmac::HMAC_SHA256,
            Hash::Sha384 => hmac::HMAC_SHA384,
        }
    }

    pub(crate) const fn digest(self) -> &'static digest::Algorithm {
        match self {
            Hash::Sha256 => &digest::SHA256,
            Hash::Sha384 => &digest::SHA384,
        }
    }

    /// Bytes of a digest, and of a secret of the schedule.
    pub const fn bytes(self) -> usize {
        match self {
            Hash::Sha256 => 32,
            Hash::Sha384 => 48,
        }
    }
}

/// A length that HKDF-Expand-Label does not have; an error of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a secret, label, context or output of a length that HKDF refuses")]
pub struct ExpandError;

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Fills `out` from a secret of the schedule, which is as long as a digest.
///
/// # Errors
/// [`ExpandError`]; the content of `out` must not be used.
pub fn expand_label(
    hash: Hash,
    secret: &[u8],
    label: &[u8],
    context: &[u8],
    out: &mut [u8],
) -> Result<(), ExpandError> {
    // Prk::new_less_safe panics on a secret that is longer than a digest.
    if secret.len() != hash.bytes() {
        return Err(ExpandError);
    }
    expand_prk(&hkdf::Prk::new_less_safe(hash.hkdf(), secret), label, context, out)
}

/// As [`expand_label`], from a secret that the library keeps.
///
/// # Errors
/// As [`expand_label`].
pub fn expand_prk(
    secret: &hkdf::Prk,
    label: &[u8],
    context: &[u8],
    out: &mut [u8],
) -> Result<(), ExpandError> {
    let label_bytes = PREFIX.len() + label.len();
    if label_bytes > TEXT_BYTES_MAX || context.len() > TEXT_BYTES_MAX {
        return Err(ExpandError);
    }
    let length = u16::try_from(out.len()).map_err(|_| ExpandError)?.to_be_bytes();
    let info = [&length[..], &[label_bytes as u8], PREFIX, label, &[context.len() as u8], context];
    let expanded = secret.expand(&info, Length(out.len())).map_err(|_| ExpandError)?;
    expanded.fill(out).map_err(|_| ExpandError)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_that_do_not_fit_their_fields_are_refused() {
        let expand = |secret: usize, label: usize, context: usize, out: usize| {
            let (label, context) = (vec![b'a'; label], vec![1; context]);
            expand_label(Hash::Sha256, &vec![3; secret], &label, &context, &mut vec![0; out])
        };
        assert_eq!(expand(32, 249, 255, 255 * 32), Ok(()));
        for (secret, label, context, out) in
            [(48, 3, 0, 16), (31, 3, 0, 16), (32, 250, 0, 16), (32, 3, 256, 16), (32, 3, 0, 8161)]
        {
            assert_eq!(expand(secret, label, context, out), Err(ExpandError), "{label} {context}");
        }
    }
}
