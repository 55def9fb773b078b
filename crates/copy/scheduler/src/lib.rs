//! Decisions of the copy service: which bytes are copied next, from which source, by which thread
//! and unit. Sans-IO: no thread, clock or memory access.
//!
//! Order of one client's copies, in the order of the data flow:
//! - [`span`]: byte ranges, and the segments in which progress is reported;
//! - [`index`]: the pending tasks that touch a range;
//! - [`task`]: one copy as requested, and the reasons to refuse it;
//! - `progress`: access to the tasks' progress; `order`: the orders;
//! - [`plan`]: the client's queue, which issues [`plan::Order`]s and contains the rules. Its parts
//!   are `table` (the pending tasks), `resolve` (dependencies), `absorb` (location of the newest
//!   bytes), `scatter` (destinations of a stream's bytes), `promote`, `lazy`, `abort`, `lose` and
//!   `collect`.
//!
//! Decisions around the queue:
//! - [`shift`]: splits a move with overlapping ranges into copies;
//! - [`admit`]: inline or queued copy;
//! - [`share`]: the client that is served next;
//! - [`dispatch`]: division of copies between units;
//! - [`scale`]: number of threads, and assignment of clients to them;
//! - [`idle`]: idle behaviour of a thread.
//!
//! Addresses are opaque numbers of the caller. Time is an argument: [`Micros`] since an origin of
//! the caller's choice.
#![forbid(unsafe_code)]

#[cfg(test)]
mod ablation_tests;
mod abort;
mod absorb;
pub mod admit;
mod collect;
pub mod dispatch;
pub mod idle;
pub mod index;
mod lazy;
mod lose;
#[cfg(test)]
mod model;
mod order;
pub mod plan;
mod progress;
mod promote;
mod resolve;
pub mod scale;
mod scatter;
pub mod share;
pub mod shift;
pub mod span;
mod table;
pub mod task;

/// A point in time, microseconds since the caller's origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

/// Identifies a task of one client; the number is its position in the order of acquisition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Identifies a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);
