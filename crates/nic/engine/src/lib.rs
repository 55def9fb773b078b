//! Autonomous NIC offload: the state machines with which a device processes the messages of a
//! protocol above TCP while TCP stays in the host, unchanged ("Autonomous NIC offloads", ASPLOS
//! 2021).
//!
//! Use it to build or to model such a device, in software, in a simulator or next to real hardware.
//! Packets are arguments: the machines have no thread, clock, socket or queue, and each call is one
//! packet of one flow.
//!
//! The device's part, in the order that a packet passes through it:
//! - [`context`], [`cache`]: per-flow state, and the set of flows whose state is in the device;
//! - [`l5p`]: the interface to a protocol; [`tls`] and [`nvme`] implement it;
//! - [`placement`]: direct placement of received data into registered buffers;
//! - `framing`: the position of a stream within its messages;
//! - [`rx`]: received packets, with `search` for streams whose message boundaries are unknown, and
//!   [`resync`], the resynchronisation requests and responses;
//! - [`tx`]: packets to send, with the driver's shadow of the device's state;
//! - [`composed`]: NVMe/TCP over TLS, with one state machine for each protocol.
//!
//! [`software`] is the host's part; [`stats`] counts for both.
//!
//! ```
//! use unlade_net::SeqNumber;
//! use unlade_nic_engine::rx::Rx;
//! use unlade_nic_engine::tls::{Progress, Version};
//! use unlade_nic_engine::tx::{Tx, Verdict};
//! use unlade_nic_engine::{Stats, Tls};
//!
//! let keys = Tls::new(Version::Tls13, &[7; 16], [1; 12])?;
//! let mut stats = Stats::default();
//!
//! // Software writes a record in the clear, with room for the tag.
//! let content = [0x5a; 3000];
//! let mut stream = vec![23, 3, 3];
//! stream.extend((content.len() as u16 + 17).to_be_bytes());
//! stream.extend(content);
//! stream.push(23); // the inner type
//! stream.extend([0; 16]);
//!
//! // Its packets are sealed as they leave ...
//! let (mut tx, mut seq) = (Tx::<Progress>::new(SeqNumber(0), 0, 0), SeqNumber(0));
//! for packet in stream.chunks_mut(1448) {
//!     assert_eq!(tx.transmit(&keys, &mut stats, seq, packet), Verdict::Send);
//!     seq = seq + packet.len() as u32;
//! }
//! assert_ne!(stream[5..3005], content);
//!
//! // ... and opened as they arrive.
//! let (mut rx, mut seq) = (Rx::<Progress>::new(SeqNumber(0), 0), SeqNumber(0));
//! let mut opened = Vec::new();
//! for packet in stream.chunks(1448) {
//!     let mut out = vec![0; packet.len()];
//!     let received = rx.receive(&keys, &mut stats, seq, packet, &mut out);
//!     assert!(received.pass.is_some(), "it was processed, and is authentic so far");
//!     opened.extend(out);
//!     seq = seq + packet.len() as u32;
//! }
//! assert_eq!(opened[5..3005], content);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Limits
//! AES-GCM only. On send the machine fails closed: a packet that it cannot seal is dropped. On
//! receive it fails open: after a loss a packet goes up as it came, until software has confirmed a
//! header ([`resync`]); software releases no byte of a record that nobody has verified. No I/O, no
//! thread, no `unsafe`.
#![forbid(unsafe_code)]

#[cfg(test)]
mod ablation_tests;
pub mod cache;
pub mod composed;
pub mod context;
mod framing;
pub mod l5p;
#[cfg(test)]
mod model;
pub mod nvme;
pub mod placement;
pub mod resync;
mod rule;
pub mod rx;
mod search;
pub mod software;
pub mod stats;
pub mod tls;
#[cfg(test)]
mod traps;
pub mod tx;

pub use nvme::Nvme;
pub use stats::Stats;
pub use tls::Tls;
