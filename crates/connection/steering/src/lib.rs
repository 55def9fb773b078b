//! Packet steering: eBPF programs deliver the packets of a flow to the owner that user space sets.
//!
//! - [`flow_entry`]: state of one flow in memory shared with the programs: changing the owner is a
//!   store, not a system call;
//! - [`tracking`]: validation of a client's segments before they update the tracked state;
//! - [`table`]: allocation of entries to flows;
//! - [`load`]: loads the programs and attaches them to the link;
//! - [`hold`]: holds packets that arrive while the flow has no owner, and replays them in order;
//! - [`windows`]: congestion windows of restored sockets;
//! - [`counts`]: counters of packets that the programs dropped or refused;
//! - [`stats`]: run time of the programs;
//! - [`strip`]: a link whose clients lack TCP options, for tests;
//! - [`impair`]: a link that loses, duplicates and delays packets, for tests;
//! - [`error`]: the error of all of these.
//!
//! File descriptors (tcx links, maps) bind all of this to the process: if it dies, the kernel
//! detaches the programs from the link, and packets go to the local stack again. Nothing is pinned,
//! so nothing stale can remain.

#[cfg(test)]
mod bench;
pub mod counts;
pub mod error;
pub mod flow_entry;
pub mod hold;
pub mod impair;
pub mod load;
#[cfg(test)]
mod program_tests;
mod raw_entry;
pub mod stats;
pub mod strip;
pub mod table;
pub mod tracking;
pub mod windows;

pub use counts::Counts;
pub use error::SteerError;
pub use flow_entry::{FlowEntry, Mac};
pub use hold::HoldLimits;
pub use load::{Hook, Steering, SteeringConfig};
pub use tracking::TrackedState;
pub use windows::Windows;
