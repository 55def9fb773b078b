//! Autonomous NIC offload: the state machines with which a device processes the messages of a
//! protocol above TCP while TCP stays in the host, unchanged ("Autonomous NIC offloads", ASPLOS
//! 2021). Sans-IO: no thread, clock, socket or queue; packets are arguments.
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
