//! Packet steering: eBPF programs deliver the packets of a flow to the owner that user space sets.
//!
//! Use it to move a TCP connection within an L2 segment without losing a packet: packets are held
//! while the flow has no owner, and are replayed in order to the next one. A change of the owner is
//! a store in memory shared with the programs, not a system call.
//!
//! In the order in which a flow meets them:
//! - [`load`]: loads the programs and attaches them to the link;
//! - [`table`]: allocation of entries to flows;
//! - [`flow_entry`]: state of one flow in shared memory;
//! - [`tracking`]: validation of a client's segments before they update the tracked state;
//! - [`hold`]: holds packets that arrive while the flow has no owner, and replays them in order;
//! - [`windows`]: congestion windows of restored sockets;
//! - [`counts`]: counters of packets that the programs dropped or refused;
//! - [`direct`]: direct return at a server's host, for responses that bypass the balancer;
//! - [`stats`]: run time of the programs;
//! - [`strip`]: a link whose clients lack TCP options, for tests;
//! - [`impair`]: a link that loses, duplicates and delays packets, for tests;
//! - [`error`]: the error of all of these.
//!
//! ```no_run
//! use unlade_net::FlowKey;
//! use unlade_steering::{Hook, Steering, SteeringConfig};
//!
//! // Needs CAP_NET_ADMIN and CAP_BPF.
//! let steering = Steering::open(&SteeringConfig {
//!     interface: "eth0".to_owned(),
//!     flows_max: 100_000,
//!     hold: None,
//!     hook: Hook::Auto,
//! })?;
//! let flow = FlowKey::new("10.0.0.9:40000".parse()?, "10.0.0.1:443".parse()?);
//! let entry = steering.acquire(&flow)?;
//! entry.redirect([2, 0, 0, 0, 0, 0x21]); // from now on, packets go to this hardware address
//! // ... the server answers the client directly; the connection comes home:
//! entry.local();
//! println!("{:?}", entry.counters());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```no_run
//! use unlade_net::FlowKey;
//! use unlade_steering::{Hook, Steering, SteeringConfig};
//!
//! // Needs CAP_NET_ADMIN and CAP_BPF.
//! let steering = Steering::open(&SteeringConfig {
//!     interface: "eth0".to_owned(),
//!     flows_max: 100_000,
//!     hold: None,
//!     hook: Hook::Auto,
//! })?;
//! let flow = FlowKey::new("10.0.0.9:40000".parse()?, "10.0.0.1:443".parse()?);
//! let entry = steering.acquire(&flow)?;
//! entry.redirect([2, 0, 0, 0, 0, 0x21]); // from now on, packets go to this hardware address
//! // ... the server answers the client directly; the connection comes home:
//! entry.local();
//! println!("{:?}", entry.counters());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! File descriptors (tcx links, maps) bind all of this to the process: if it dies, the kernel
//! detaches the programs from the link, and packets go to the local stack again. Nothing is pinned,
//! so nothing stale can remain.
//!
//! # Limits
//! A link with Ethernet addresses; owners are in one L2 segment. Before Linux 6.6 a killed process
//! leaves its tc filter on the interface. Entries may be used from any thread. `unsafe` is confined
//! to the mapped tables and the system calls around them.

#[cfg(test)]
mod bench;
pub mod counts;
pub mod direct;
#[cfg(test)]
mod direct_tests;
pub mod error;
pub mod flow_entry;
#[cfg(test)]
mod head_tests;
pub mod hold;
pub mod impair;
pub mod load;
#[cfg(test)]
mod program_tests;
mod raw_entry;
pub mod splice;
mod splice_counts;
mod splice_frames;
mod splice_memory;
#[cfg(test)]
mod splice_vectors;
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
