//! Decisions about connections that change their owner: state machines without socket, clock or
//! thread.
//!
//! Use it wherever live connections move between hosts and each must have one owner at any instant,
//! whatever message, peer or channel fails. Events go in with `handle_*`, [`exporter::Action`]s
//! come out as a list in order, and a runtime carries them out; time is an argument, [`Millis`]
//! since an origin of the caller's choice. `tests/interleavings.rs` runs the machines through every
//! order of events.
//!
//! - [`exporter`]: state machine of one connection at the balancer: offer → ready → steer, return →
//!   relay or reclaim, with epochs, deadlines, and the way back on every failure;
//! - [`importer`]: state machine of one connection at a server: adopted → returned → discarded;
//! - [`late`]: bytes that a frozen socket received after its snapshot, for the new owner;
//! - [`shard`]: the server that owns an object's name;
//! - [`scope`]: the requests for which a connection may stay at its server;
//! - [`window`]: the congestion window that a restored connection starts with.
//!
//! ```
//! use unlade_handoff_protocol::frame::{Epoch, ReturnReason};
//! use unlade_migration::exporter::{Action, Choice, Exporter, MigrationFailure, Timing};
//! use unlade_migration::{Millis, ServerId};
//!
//! let (server, timing) = (ServerId(1), Timing { deadline_ms: 500, lease_ms: 10_000 });
//!
//! // There: the socket is frozen, the server gets its state, and owns it from READY on.
//! let (mut moving, actions) = Exporter::start(server, timing, Millis(0));
//! assert_eq!(actions, [Action::Hold, Action::Offer(server, Epoch(1))]);
//! let actions = moving.handle_ready(server, Epoch(1));
//! assert_eq!(actions, [Action::Redirect(server), Action::CloseLocal]);
//! assert!(moving.handle_ready(server, Epoch(1)).is_empty()); // repeated frames change nothing
//!
//! // And back: the next request belongs to another server.
//! let actions = moving.handle_return(server, Epoch(1), ReturnReason::NextRequest);
//! assert_eq!(actions, [Action::Hold, Action::Choose(ReturnReason::NextRequest)]);
//! assert_eq!(moving.choose(Choice::Home, Millis(900)), [Action::Rebuild(None)]);
//! assert!(moving.is_over());
//!
//! // A server whose channel breaks during an offer may own the connection until its lease is over.
//! let (mut moving, _) = Exporter::start(server, timing, Millis(0));
//! assert!(moving.handle_channel_down(server, Millis(100)).is_empty());
//! assert!(moving.handle_tick(Millis(10_099)).is_empty());
//! let actions = moving.handle_tick(Millis(10_100));
//! assert_eq!(actions, [Action::ThawLocal(MigrationFailure::ChannelDown)]);
//! ```
//!
//! # Limits
//! No I/O, no thread, no clock, no `unsafe`. It orders what runtimes do; it neither freezes a
//! socket nor sends a frame.
#![forbid(unsafe_code)]

pub mod exporter;
pub mod importer;
pub mod late;
pub mod scope;
pub mod shard;
pub mod window;

/// A point in time, milliseconds since the caller's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Millis(pub u64);

impl core::ops::Add<u32> for Millis {
    type Output = Millis;
    fn add(self, ms: u32) -> Millis {
        Millis(self.0 + u64::from(ms))
    }
}

/// Identifies a server within one balancer's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(pub u16);
