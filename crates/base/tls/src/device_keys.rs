//! The keys that a device seals and opens with.

use core::fmt::Debug;

use unlade_net::state::DirectionSecrets;
use zeroize::Zeroizing;

/// A cipher that a device can seal and open with. The suite table names it for each such suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cipher {
    /// AES-128-GCM.
    Aes128Gcm,
    /// AES-256-GCM.
    Aes256Gcm,
}

/// The keys of one direction, for a device. Only [`RecordLayer::device_keys`](crate::RecordLayer::device_keys) makes them, and only
/// for a suite with a device's cipher: no other suite can reach a device. They are zeroised when
/// dropped, and not printed.
#[derive(Clone)]
pub struct Keys {
    cipher: Cipher,
    is_13: bool,
    key: Zeroizing<Vec<u8>>,
    iv: [u8; 12],
    number: u64,
}

impl Keys {
    pub(crate) fn new(cipher: Cipher, is_13: bool, secrets: &DirectionSecrets) -> Keys {
        let key = Zeroizing::new(secrets.key.clone());
        Keys { cipher, is_13, key, iv: secrets.iv, number: secrets.sequence }
    }

    /// The cipher.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Returns true for TLS 1.3, false for TLS 1.2.
    pub fn is_13(&self) -> bool {
        self.is_13
    }

    /// The key, of the cipher's length.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The part of nonces from the handshake: all 12 bytes, or the first four with TLS 1.2.
    pub fn iv(&self) -> [u8; 12] {
        self.iv
    }

    /// The number of earlier records under this key.
    pub fn number(&self) -> u64 {
        self.number
    }
}

impl Debug for Keys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Keys {{ {:?}, number: {}, .. }}", self.cipher, self.number)
    }
}
