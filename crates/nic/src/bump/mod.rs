//! The attachment of the host's real TCP: a *bump in the wire* of a TAP device.
//!
//! ```text
//!  software ──records in the clear──► socket ─► kernel TCP ─► TAP ─► engine: seals ─► wire
//!  software ◄──octets, as delivered── socket ◄─ kernel TCP ◄─ TAP ◄─ engine: opens ◄─ wire
//!      └───────── side channel: records, deliveries, questions, answers ──────┘
//! ```
//! The kernel knows nothing of it. What a device would say in descriptors goes through memory that
//! software and engine share, by offsets in the stream.
//!
//! In the order in which a connection meets them:
//! - [`track`]: where its streams begin, and that nothing of it leaves in the clear at its end;
//! - [`channel`]: software asks for the offload of it;
//! - [`sides`]: what software and engine share of it;
//! - [`held`]: what has the octets of a record that was sent: memory, or a file;
//! - [`delivered`]: how octets were delivered, until software has read them;
//! - [`engine`]: what happens to each frame, with [`cut`] for large ones;
//! - [`thread`]: the engine's thread, its two devices, what [`impair`] does to the wire,
//!   and [`capture`](crate::capture) sees of it;
//! - [`reader`], [`writer`]: records from, and to, the kernel's socket;
//! - [`attached`]: all of it for runtimes that know [`record::device`] only.

pub mod attached;
pub mod channel;
pub mod cut;
pub mod delivered;
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
pub use record::device::Refused;
pub use sides::Flow;
pub use track::Offer;

use offload::Tls;
use offload::tls::Version;
use wire::snapshot::DirectionSecrets;

/// What the device needs of one direction's secrets; nothing where it cannot use them.
pub fn static_state(version: u16, secrets: &DirectionSecrets) -> Option<Tls> {
    let version = match version {
        0x0303 => Version::Tls12,
        0x0304 => Version::Tls13,
        _ => return None,
    };
    Tls::new(version, &secrets.key, secrets.iv).ok()
}
