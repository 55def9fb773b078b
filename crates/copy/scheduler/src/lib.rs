//! Decisions of the copy service: what is copied next, from where, by whom; sans-IO: no thread,
//! clock or memory access.
//!
//! How one client's copies get into order, in the order that the data meets it:
//! - [`span`]: ranges of bytes, and the segments that progress is told in;
//! - [`index`]: which pending tasks touch a range;
//! - [`task`]: one copy as it was asked for, and what is refused;
//! - [`plan`]: the client's queue; gives out [`plan::Order`]s, takes them back. The rules are
//!   written there. It is helped by `table` (the pending tasks), `resolve` (what must come first,
//!   and where the newest bytes are), `scatter` (where the bytes of a stream go), `promote`, `lazy`, `abort`, `lose`
//!   and `collect`.
//!
//! What is decided around it:
//! - [`shift`]: how a move whose ranges overlap becomes copies;
//! - [`admit`]: whether a copy is worth queueing at all;
//! - [`share`]: which client is served next;
//! - [`dispatch`]: which unit copies what;
//! - [`scale`]: how many threads serve, and whom;
//! - [`idle`]: what a thread does when there is nothing to do.
//!
//! Addresses are numbers of the caller's; time is an argument, [`Micros`] since an origin of the
//! caller's choice.
#![forbid(unsafe_code)]

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
#[cfg(test)]
mod mutants;
mod order;
pub mod plan;
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

/// Names a task of one client; its place in the order in which tasks were acquired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// Names a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);
