//! Orders: bytes to copy, and the segments that are done afterwards.

use smallvec::SmallVec;

use crate::Ticket;
use crate::span::Segments;
use crate::task::Kind;

/// Identifies an order of one plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OrderId(pub(crate) u64);

/// Bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Destination address. For a [`Kind::Sink`]: offset from the task's first byte.
    pub dst: u64,
    /// Source address. For a [`Kind::Source`]: offset from the task's first byte.
    pub src: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Segments that are claimed while an order absorbs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The absorbed task.
    pub ticket: Ticket,
    /// Its segments.
    pub bits: u32,
}

/// Segments that are done when a given number of a stream's bytes have come or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentProgress {
    /// The task.
    pub ticket: Ticket,
    /// Its segments, claimed for the order.
    pub bits: u32,
    /// Division of the task into segments.
    pub segments: Segments,
    /// Offset of the task's first byte from the first byte of the order's task.
    pub offset: i64,
}

impl SegmentProgress {
    /// Returns the segments that are done when all bytes of the order's task before `position`
    /// have come or gone.
    pub fn arrived(&self, position: u64) -> u32 {
        let bytes = i64::try_from(position).unwrap_or(i64::MAX).saturating_sub(self.offset);
        self.segments.within(u64::try_from(bytes).unwrap_or(0)) & self.bits
    }
}

/// Bytes of a task that come from one stream and go to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInput {
    /// The source stream.
    pub stream: u64,
    /// Offset from the task's first byte.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
    /// For a [`Kind::Sink`]: the destination address of the receive. Bytes that cannot be sent go
    /// there, because they must be taken out of their stream.
    pub dst_base: u64,
}

/// Progress entries of an order.
pub type ProgressList = Vec<SegmentProgress>;
/// Chunks of an order.
pub type Chunks = SmallVec<[Chunk; 4]>;
/// Pins of an order.
pub type Pins = SmallVec<[Pin; 2]>;

/// A copy order: claimed segments of one task.
///
/// The runtime copies the chunks in any order (at a stream: in the given order), marks the
/// segments done in shared memory, and calls [`crate::plan::Plan::finished`]. No chunk of an
/// outstanding order writes bytes that a chunk of another one reads or writes.
///
/// For an order at a stream, the [`SegmentProgress`] entries list the segments to mark, of this
/// task and of the other tasks whose bytes come or go with it. Each segment may be marked as soon
/// as its bytes have come or gone.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "its segments are claimed until it is finished"]
pub struct Order {
    /// Identity of the order.
    pub id: OrderId,
    /// The task.
    pub ticket: Ticket,
    /// Kinds of the task's source and destination.
    pub kind: Kind,
    /// The stream that the order receives from ([`Kind::Source`]) or sends to; else `None`.
    pub stream: Option<u64>,
    /// Bytes of a [`Kind::Sink`] or [`Kind::Relay`] that come from a stream.
    pub stream_input: Option<StreamInput>,
    /// The segments that are done afterwards: adjacent ones; for a task at a stream all that
    /// remain.
    pub bits: u32,
    /// Bytes to copy, in the order of the destination.
    pub chunks: Chunks,
    /// Segments that are pinned for this order; [`crate::plan::Plan::finished`] releases them.
    pub pins: Pins,
    /// For an order at a stream: the segments to mark and when. The entry of the order's own task
    /// is the first.
    pub segment_progress: ProgressList,
    /// For a [`Kind::Source`]: additional copies from memory to memory, which precede the marking
    /// of other tasks' segments.
    pub copies: Vec<Chunk>,
    /// Address of the task's first destination byte, for a destination in memory.
    pub dst_base: u64,
}

/// Source locations of a run, by offset in the task, and the pins that keep them valid.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub chunks: Chunks,
    pub pins: Pins,
    /// Further tasks that are served by an order at a stream.
    pub segment_progress: ProgressList,
    /// Additional copies from memory to memory.
    pub copies: Vec<Chunk>,
    pub stream_input: Option<StreamInput>,
}
