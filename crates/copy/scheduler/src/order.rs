//! What the plan gives out: bytes to copy, and what is done when they are.

use smallvec::SmallVec;

use crate::Ticket;
use crate::span::Segments;
use crate::task::Kind;

/// Names an order of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrderId(pub(crate) u64);

/// Bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Address they go to. Of a [`Kind::Sink`]: offset from the task's first byte.
    pub dst: u64,
    /// Address they come from. Of a [`Kind::Source`]: offset from the task's first byte.
    pub src: u64,
    /// Bytes.
    pub len: u64,
}

/// Segments that are claimed while an order reads past them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The task that is read past.
    pub ticket: Ticket,
    /// Its segments.
    pub bits: u32,
}

/// Segments that are done when so many bytes of a stream have come or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// The task.
    pub ticket: Ticket,
    /// Its segments, claimed for the order.
    pub bits: u32,
    /// How its bytes are divided,
    pub segments: Segments,
    /// and where its first byte is, from the first byte of the order's task.
    pub offset: i64,
}

impl Landing {
    /// The segments that are done when all bytes of the order's task before `position` have come
    /// or gone.
    pub fn arrived(&self, position: u64) -> u32 {
        let bytes = i64::try_from(position).unwrap_or(i64::MAX).saturating_sub(self.offset);
        self.segments.within(u64::try_from(bytes).unwrap_or(0)) & self.bits
    }
}

/// Bytes of a task that come from a stream and go to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inlet {
    /// The stream that they come from.
    pub stream: u64,
    /// Where they are, from the task's first byte.
    pub at: u64,
    /// Bytes.
    pub len: u64,
    /// Of a [`Kind::Sink`]: the address where a receive would have put the first of them. Where
    /// they cannot be sent they go there: they have to be taken out of their stream.
    pub home: u64,
}

/// The landings of an order.
pub type Landings = Vec<Landing>;
/// The pieces of an order.
pub type Pieces = SmallVec<[Piece; 4]>;
/// The pins of an order.
pub type Pins = SmallVec<[Pin; 2]>;

/// Something to copy: segments of one task, claimed for it.
///
/// The runtime copies the pieces, in any order (those of a stream: as they are), marks the segments
/// done in shared memory, and calls [`crate::plan::Plan::finished`]. No piece of an outstanding order writes
/// what a piece of another one reads or writes.
///
/// Of an order at a stream the [`Landing`]s say what is to be marked, of this task and of others
/// whose bytes come or go with it; each may be marked as soon as its bytes have.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its segments are claimed until it is finished"]
pub struct Order {
    /// Its name.
    pub id: OrderId,
    /// The task.
    pub ticket: Ticket,
    /// What the two sides of the task are.
    pub kind: Kind,
    /// The stream that it takes from ([`Kind::Source`]) or gives to; else `None`.
    pub stream: Option<u64>,
    /// Bytes of a [`Kind::Sink`] or [`Kind::Relay`] that come from a stream too.
    pub inlet: Option<Inlet>,
    /// The segments that are done afterwards: neighbours, and of a stream's task all.
    pub bits: u32,
    /// What to copy, in the order of the destination.
    pub pieces: Pieces,
    /// What is pinned for it. [`crate::plan::Plan::finished`] releases it.
    pub pins: Pins,
    /// Of an order at a stream: what is marked done when; its own task's comes first.
    pub landings: Landings,
    /// Of a [`Kind::Source`]: what else must be copied, from memory to memory, before others'
    /// landings are marked.
    pub copies: Vec<Piece>,
    /// Address of the task's first byte, if it is one.
    pub home: u64,
}
