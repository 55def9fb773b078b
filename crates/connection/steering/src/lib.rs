//! Steering: which owner gets the packets of a flow, decided in eBPF, told from user space.
//!
//! - [`slot`]: one flow's state in memory shared with the programs: changing the owner is a store,
//!   not a system call;
//! - [`belief`]: which of a client's segments move what is known of its connection;
//! - [`table`]: which slots are in use, and by which flow;
//! - [`load`]: programs into the kernel and onto the link;
//! - [`hold`]: packets that arrive while nobody owns the flow, and their replay in order;
//! - [`windows`]: congestion windows of restored sockets;
//! - [`counts`]: what the programs dropped or refused;
//! - [`stats`]: what the programs cost;
//! - [`strip`]: a link whose clients lack TCP options, for tests;
//! - [`impair`]: a link that loses, doubles and delays packets, for tests.
//!
//! Everything is bound to this process by file descriptors (tcx links, maps): if it dies, the
//! kernel takes the programs off the link, and packets go to the local stack again. Nothing is
//! pinned, so nothing stale can be left behind.

pub mod belief;
#[cfg(test)]
mod bench;
pub mod counts;
pub mod hold;
pub mod impair;
pub mod load;
#[cfg(test)]
mod program_tests;
pub mod slot;
pub mod stats;
pub mod strip;
pub mod table;
pub mod windows;

pub use belief::Belief;
pub use counts::Counts;
pub use hold::HoldLimits;
pub use load::{Hook, SteerError, Steering, SteeringConfig};
pub use slot::{Mac, Slot};
pub use windows::Windows;
