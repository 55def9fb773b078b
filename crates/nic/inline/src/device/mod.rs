//! Attachment to the host's real TCP: a *bump in the wire* of a TAP device.
//!
//! ```text
//!  software ──records in the clear──► socket ─► kernel TCP ─► TAP ─► engine: seals ─► wire
//!  software ◄──bytes, as delivered── socket ◄─ kernel TCP ◄─ TAP ◄─ engine: opens ◄─ wire
//!      └───────── side channel: records, deliveries, questions, answers ──────┘
//! ```
//! The kernel is not aware of it. Information that a NIC would pass in descriptors goes through
//! memory that software and engine share, addressed by offsets in the stream.
//!
//! The modules, in the order in which a connection meets them:
//! - [`flow_table`]: the start of its streams, its offload, and its end;
//! - [`ended`]: nothing of it leaves in the clear afterwards;
//! - [`channel`]: software requests its offload;
//! - [`flow`]: the state that software and engine share;
//! - [`tx_records`]: the bytes of sent records: in memory, or in a file;
//! - [`delivery_log`]: how bytes were delivered, until software has read them;
//! - [`engine`]: the path of each frame, with [`segmentation`] for large ones;
//! - [`thread`]: the engine's thread and its two devices, with [`impair`] for the wire and
//!   [`capture`](crate::capture) to record it;
//! - [`reader`], [`writer`]: records from, and to, the kernel's socket;
//! - [`attached`]: all of it for runtimes that use [`unlade_tls::device`] only.

pub mod attached;
pub mod channel;
pub mod delivery_log;
pub mod ended;
#[cfg(test)]
mod ending_tests;
pub mod engine;
#[cfg(test)]
mod equivalence_tests;
pub mod flow;
pub mod flow_table;
pub mod impair;
pub mod reader;
pub mod segmentation;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod tx_records;
pub mod writer;

pub use channel::{Device, DeviceCounters};
pub use flow::Flow;
pub use flow_table::Offer;
pub use unlade_tls::device::Refused;

use unlade_nic_engine::Tls;
use unlade_nic_engine::tls::Version;
use unlade_tls::device::{Cipher, Keys};

/// One direction's keys in the form of the machines; `None` if they cannot use them.
pub fn static_state(keys: &Keys) -> Option<Tls> {
    let version = if keys.is_13() { Version::Tls13 } else { Version::Tls12 };
    // The machines have AES-GCM only, and derive the variant from the key's length, which
    // `Keys::of` has checked. Another cipher of a device does not compile here.
    let (Cipher::Aes128Gcm | Cipher::Aes256Gcm) = keys.cipher();
    Tls::new(version, keys.key(), keys.iv()).ok()
}
