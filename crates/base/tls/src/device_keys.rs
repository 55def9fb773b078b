//! The keys that a device seals and opens with.

use core::fmt::Debug;

use zeroize::Zeroizing;

use crate::suite::{Cipher, DeviceCipher};

/// The keys of one direction, for a device. [`Keys::of`], which checks the suite's cipher, is the
/// only way to them, and the trait of a device takes nothing else: a connection with another suite
/// has no keys for a device. They are zeroised when dropped, and not printed.
#[derive(Clone)]
pub struct Keys {
    cipher: DeviceCipher,
    is_13: bool,
    key: Zeroizing<Vec<u8>>,
    iv: [u8; 12],
    number: u64,
}

impl Keys {
    /// The keys of a suite with `cipher`, before record `number`; `None` if no device supports the
    /// cipher, or if the key has another length than the cipher's.
    pub fn of(cipher: Cipher, is_13: bool, key: &[u8], iv: [u8; 12], number: u64) -> Option<Keys> {
        let for_device = cipher.device().filter(|_| key.len() == cipher.key_bytes())?;
        let key = Zeroizing::new(key.to_vec());
        Some(Keys { cipher: for_device, is_13, key, iv, number })
    }

    /// The cipher.
    pub fn cipher(&self) -> DeviceCipher {
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
