//! Autonomous NIC offload: the machines that let a device work on the messages of a protocol above
//! TCP while TCP stays in the host, unchanged ("Autonomous NIC offloads", ASPLOS 2021). Sans-IO: no
//! thread, clock, socket or queue; packets are arguments.
//!
//! What the device does, in the order that a packet meets it:
//! - [`context`], [`cache`]: what is kept of a flow, and which flows are in the device;
//! - [`l5p`]: what the machines know of a protocol; [`tls`] is one, [`nvme`] another;
//! - [`placement`]: where received data goes by itself;
//! - `framing`: where in its messages a stream is;
//! - [`rx`]: received packets, with `search` for streams whose messages are not known, and
//!   [`resync`], what is asked and answered then;
//! - [`tx`]: packets to send, with the driver's copy of where the device is;
//! - [`composed`]: NVMe/TCP over TLS, a machine of each.
//!
//! [`software`] is the host's part; [`stats`] counts for both.
#![forbid(unsafe_code)]

pub mod cache;
pub mod composed;
pub mod context;
mod framing;
pub mod l5p;
#[cfg(test)]
mod model;
#[cfg(test)]
mod mutants;
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
