//! Diffie-Hellman over the supported groups (RFC 8446 §4.2.8).

use aws_lc_rs::agreement::{self, Algorithm, EphemeralPrivateKey, UnparsedPublicKey};
use aws_lc_rs::rand::SystemRandom;
use zeroize::Zeroizing;

use super::error::PskError;

/// A supported group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group(u16);

/// In order of preference.
pub(super) const GROUPS: [Group; 3] = [Group(0x001d), Group(0x0017), Group(0x0018)];

impl Group {
    /// The group with this number, if it is supported.
    pub(super) fn find(number: u16) -> Option<Group> {
        GROUPS.into_iter().find(|group| group.0 == number)
    }

    pub(super) fn number(self) -> u16 {
        self.0
    }

    fn algorithm(self) -> &'static Algorithm {
        match self.0 {
            0x001d => &agreement::X25519,
            0x0017 => &agreement::ECDH_P256,
            _ => &agreement::ECDH_P384,
        }
    }
}

/// This end's half of an exchange.
pub(super) struct KeyShare {
    pub(super) group: Group,
    pub(super) public: Vec<u8>,
    private: EphemeralPrivateKey,
}

impl KeyShare {
    pub(super) fn new(group: Group) -> Result<KeyShare, PskError> {
        let failed = |_| PskError::Internal("no key for the exchange could be made");
        let private = EphemeralPrivateKey::generate(group.algorithm(), &SystemRandom::new())
            .map_err(failed)?;
        let public = private.compute_public_key().map_err(failed)?.as_ref().to_vec();
        Ok(KeyShare { group, public, private })
    }

    /// Computes the secret shared with the owner of `theirs`.
    pub(super) fn agree(self, theirs: &[u8]) -> Result<Zeroizing<Vec<u8>>, PskError> {
        let refused = PskError::illegal("a key share that is no point of its group");
        let theirs = UnparsedPublicKey::new(self.group.algorithm(), theirs);
        agreement::agree_ephemeral(self.private, theirs, refused, |secret| {
            Ok(Zeroizing::new(secret.to_vec()))
        })
    }
}

/// Cryptographically random bytes.
pub(super) fn random() -> Result<[u8; 32], PskError> {
    let mut bytes = [0; 32];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| PskError::Internal("no randomness"))?;
    Ok(bytes)
}
