//! Decisions about connections that change their owner; sans-IO: no socket, clock or thread.
//!
//! - [`exporter`]: state machine of one connection at the balancer: offer → ready → steer,
//!   return → relay or reclaim, with epochs, deadlines, and the way back on every failure;
//! - [`importer`]: state machine of one connection at a server: adopted → returned → discarded;
//! - [`late`]: bytes that a frozen socket received after its snapshot, for the new owner;
//! - [`shard`]: the server that owns an object's name;
//! - [`scope`]: the requests for which a connection may stay at its server;
//! - [`window`]: the congestion window that a restored connection starts with.
//!
//! Events go in with `handle_*`, actions come out as a list; the runtimes (`balancer`, `backend`)
//! carry them out. Time is an argument: [`Millis`] since an origin of the caller's choice.
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
