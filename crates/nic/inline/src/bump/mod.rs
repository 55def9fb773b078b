//! The attachment of the host's real TCP: a *bump in the wire* of a TAP device.
//!
//! ```text
//!  software ──records in the clear──► socket ─► kernel TCP ─► TAP ─► engine: seals ─► wire
//!  software ◄──bytes, as delivered── socket ◄─ kernel TCP ◄─ TAP ◄─ engine: opens ◄─ wire
//!      └───────── side channel: records, deliveries, questions, answers ──────┘
//! ```
//! The kernel knows nothing of it. What a device would say in descriptors goes through memory that
//! software and engine share, by offsets in the stream.
//!
//! In the order in which a connection meets them:
//! - [`track`]: where its streams begin, whether it is offloaded, and when it has ended;
//! - [`ended`]: that nothing of it leaves in the clear afterwards;
//! - [`channel`]: software asks for the offload of it;
//! - [`sides`]: what software and engine share of it;
//! - [`held`]: what has the bytes of a record that was sent: memory, or a file;
//! - [`delivered`]: how bytes were delivered, until software has read them;
//! - [`engine`]: what happens to each frame, with [`cut`] for large ones;
//! - [`thread`]: the engine's thread, its two devices, what [`impair`] does to the wire,
//!   and [`capture`](crate::capture) sees of it;
//! - [`reader`], [`writer`]: records from, and to, the kernel's socket;
//! - [`attached`]: all of it for runtimes that know [`unlade_tls::device`] only.

#[cfg(test)]
mod alike_tests;
pub mod attached;
pub mod channel;
pub mod cut;
pub mod delivered;
pub mod ended;
#[cfg(test)]
mod ending_tests;
pub mod engine;
pub mod held;
pub mod impair;
pub mod reader;
pub mod sides;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod track;
pub mod writer;

pub use channel::{Counted, Device};
pub use sides::Flow;
pub use track::Offer;
pub use unlade_tls::device::Refused;

use unlade_nic_engine::Tls;
use unlade_nic_engine::tls::Version;
use unlade_tls::device::{Cipher, Keys};

/// One direction's keys as the machines take them; nothing where they cannot use them.
pub fn static_state(keys: &Keys) -> Option<Tls> {
    let version = if keys.is_13() { Version::Tls13 } else { Version::Tls12 };
    match keys.cipher() {
        // The machines have AES-GCM only, and see by the key's length which.
        Cipher::Aes128Gcm if keys.key().len() == 16 => (),
        Cipher::Aes256Gcm if keys.key().len() == 32 => (),
        Cipher::Aes128Gcm | Cipher::Aes256Gcm => return None,
    }
    Tls::new(version, keys.key(), keys.iv()).ok()
}
