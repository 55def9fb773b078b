//! TLS 1.3 between two ends that share a key (RFC 8446 §2.2, §4.2.11): both sides of the
//! handshake, without certificates.
//!
//! rustls has no external pre-shared keys, and the OpenSSL callbacks that a safe wrapper offers
//! support SHA-256 only. TLS 1.3 without certificates has five messages; they are implemented
//! here, over the crate's own records and keys. The result is a
//! [`RecordLayer`](crate::RecordLayer).
//!
//! ```text
//!  Client::new ─ ClientHello ─► Server::advance ─ ServerHello, {EncryptedExtensions, Finished} ─►
//!  Client::advance ─ {Finished} ─► Server::advance          (or HelloRetryRequest in between)
//! ```
//!
//! Only psk_dhe_ke is supported: the key authenticates, and X25519, P-256 or P-384 make the
//! secrets, so that a key that leaks later decrypts no earlier connection. No 0-RTT, no tickets.

mod client;
mod error;
mod exchange;
mod messages;
mod records;
mod schedule;
mod server;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use error::PskError;
pub use server::{Accepted, Server};

use zeroize::Zeroizing;

pub use crate::expand::Hash;
use crate::suite::{Suite, TLS13};

/// Longest accepted identity, bytes: two NQNs of 223 bytes and a digest fit.
pub const IDENTITY_BYTES_MAX: usize = 1024;
/// Shortest accepted key, bytes: RFC 9257 §6 requires that much entropy.
pub const KEY_BYTES_MIN: usize = 16;
/// Longest accepted key, bytes.
pub const KEY_BYTES_MAX: usize = 64;

impl Hash {
    pub(crate) fn suite(self) -> &'static Suite {
        let number = match self {
            Hash::Sha256 => 0x1301,
            Hash::Sha384 => 0x1302,
        };
        // Both are in the table; the fallback to the first entry is unreachable.
        Suite::find(TLS13, number).unwrap_or_else(Suite::first)
    }
}

/// A shared key, and its identity.
#[derive(Clone)]
pub struct Psk {
    /// Sent in the clear.
    pub identity: Vec<u8>,
    /// The secret.
    pub key: Zeroizing<Vec<u8>>,
    /// The hash of the key, and therefore its suite.
    pub hash: Hash,
}

impl core::fmt::Debug for Psk {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let identity = String::from_utf8_lossy(&self.identity);
        f.debug_struct("Psk").field("identity", &identity).field("hash", &self.hash).finish()
    }
}

impl Psk {
    fn check(&self) -> Result<(), PskError> {
        if !(1..=IDENTITY_BYTES_MAX).contains(&self.identity.len()) {
            return Err(PskError::Key("its identity is empty or too long"));
        }
        if !(KEY_BYTES_MIN..=KEY_BYTES_MAX).contains(&self.key.len()) {
            return Err(PskError::Key("it is shorter than 16 bytes or longer than 64"));
        }
        Ok(())
    }
}
