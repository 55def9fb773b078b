//! Decisions of the copy service: which bytes are copied next, from which source, by which thread
//! and unit. No thread, no clock, no access to memory.
//!
//! Use it to schedule asynchronous copies with the result of `memcpy` in program order. Addresses
//! are opaque numbers of the caller; time is an argument, [`Micros`] since an origin of the
//! caller's choice. Each decision is a type of its own, so a scheduler of another kind can take the
//! ones it needs.
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
//! - [`share`]: the client that is served next, by group;
//! - [`dispatch`]: division of copies between units;
//! - [`scale`]: number of threads, and assignment of clients to them;
//! - [`idle`]: idle behaviour of a thread.
//!
//! A lazy copy A → B, then a copy B → C: the second one reads A (*absorption*), and B is not
//! written.
//!
//! ```
//! use std::collections::BTreeMap;
//!
//! use unlade_copy_scheduler::plan::{Absorb, Plan, Progress, Step};
//! use unlade_copy_scheduler::span::Span;
//! use unlade_copy_scheduler::task::{Kind, Request};
//! use unlade_copy_scheduler::{Micros, Ticket};
//!
//! /// The done and the claimed segments of each task; usually in memory shared with the client.
//! #[derive(Default)]
//! struct Segments(BTreeMap<Ticket, (u32, u32)>);
//!
//! impl Progress for Segments {
//!     fn done(&self, ticket: Ticket) -> u32 {
//!         self.0.get(&ticket).map_or(0, |bits| bits.0)
//!     }
//!     fn claim(&mut self, ticket: Ticket, bits: u32) -> u32 {
//!         let (done, claimed) = self.0.entry(ticket).or_default();
//!         let free = bits & !*done & !*claimed;
//!         *claimed |= free;
//!         free
//!     }
//!     fn release(&mut self, ticket: Ticket, bits: u32) {
//!         self.0.entry(ticket).or_default().1 &= !bits;
//!     }
//! }
//!
//! let (a, b, c) = (0x1000, 0x2000, 0x3000);
//! let copy = |dst, src, lazy_until| Request {
//!     dst: Span { start: dst, len: 256 },
//!     src: Span { start: src, len: 256 },
//!     granule_shift: 12,
//!     lazy_until,
//!     kind: Kind::Memory,
//!     last_use: false,
//! };
//! let (mut plan, mut segments) = (Plan::new(Absorb::Useful), Segments::default());
//! plan.submit(Ticket(1), &copy(b, a, Some(Micros(1_000))), Micros(0))?;
//! plan.submit(Ticket(2), &copy(c, b, None), Micros(0))?;
//!
//! let Step::Copy(order) = plan.next(&mut segments, Micros(1), 1 << 20) else {
//!     panic!("there is work")
//! };
//! assert_eq!(order.ticket, Ticket(2));
//! assert_eq!((order.chunks[0].dst, order.chunks[0].src), (c, a)); // not from B
//! segments.0.entry(Ticket(2)).or_default().0 |= order.bits; // the runtime has copied the chunks
//! plan.finished(order, &mut segments);
//! # Ok::<(), unlade_copy_scheduler::task::Refusal>(())
//! ```
//!
//! # Limits
//! At most [`plan::TASKS_MAX`] pending tasks of a client, and [`plan::WORK_MAX`] steps in one call,
//! whatever a hostile client does. A plan is used under a lock of the caller; orders are copied
//! outside it. No I/O, no `unsafe`.
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
