//! A copy task: its request, the reasons to refuse it, and its progress.

use std::num::NonZeroU16;

use thiserror::Error;

use crate::span::{GRANULE_SHIFT_MAX, SEGMENTS_MAX, Segments, Span};
use crate::{Micros, Ticket};

/// Maximum number of pending tasks of a client.
pub const TASKS_MAX: usize = 8192;

/// Kinds of a task's source and destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Memory to memory.
    #[default]
    Memory,
    /// Stream to memory (a receive from a socket). The source's `start` is the stream's number;
    /// only the destination is memory.
    Source,
    /// Memory to stream (a send to a socket). The destination's `start` is the stream's number;
    /// only the source is memory.
    Sink,
    /// Stream to stream; both starts are stream numbers.
    Relay,
}

/// A client's copy request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Destination of the bytes.
    pub dst: Span,
    /// Source of the bytes, of the same length as `dst`.
    pub src: Span,
    /// Base-2 logarithm of the segment size in bytes.
    pub granule_shift: u8,
    /// Makes the copy lazy: it is copied when another task needs it, when it is promoted, or at
    /// this time.
    pub lazy_until: Option<Micros>,
    /// Kinds of source and destination.
    pub kind: Kind,
    /// The client does not need the source's bytes afterwards; their value is then undefined.
    pub last_use: bool,
}

/// Reason to refuse a task. All but [`Refusal::Full`] are errors of the client; the task ends with
/// an error, and nothing else changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The maximum number of tasks is pending.
    #[error("{TASKS_MAX} copies are pending: submit again when some are done")]
    Full,
    /// The ticket is not above all earlier ones.
    #[error("ticket {} is not above all earlier ones: submit in the order of tickets", .0.0)]
    OutOfOrder(Ticket),
    /// Source and destination differ in length.
    #[error("{src_bytes} bytes into {dst_bytes}: give both the same length")]
    Lengths {
        /// Bytes of the source.
        src_bytes: u64,
        /// Bytes of the destination.
        dst_bytes: u64,
    },
    /// A range wraps.
    #[error("the bytes from {start:#x}, {len} of them, end behind the last address")]
    Wraps {
        /// First byte of the range.
        start: u64,
        /// Length of the range, in bytes.
        len: u64,
    },
    /// Source and destination have bytes in common.
    #[error("source and destination overlap: split the move as `shift::split` says")]
    Overlaps,
    /// No bytes, too many segments, or a shift that is too large.
    #[error(
        "{len} bytes in segments of 1 << {granule_shift}: give 1 byte or more, \
         {SEGMENTS_MAX} segments or fewer, a shift of {GRANULE_SHIFT_MAX} or less"
    )]
    Segments {
        /// Length of the task, in bytes.
        len: u64,
        /// Requested shift.
        granule_shift: u8,
    },
}

/// Reason why a task ends before it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The client does not need the task any more.
    Aborted,
    /// An address was bad.
    Failed,
    /// Needed bytes did not come out of a stream; the value is the runtime's reason.
    Lost(NonZeroU16),
}

/// A pending task.
#[derive(Debug)]
pub(crate) struct Task {
    pub ticket: Ticket,
    pub dst: Span,
    pub src: Span,
    pub segments: Segments,
    pub kind: Kind,
    pub last_use: bool,
    /// `None` if the task is an ordinary one.
    pub lazy_until: Option<Micros>,
    /// Segments that were seen done. This copy keeps a segment done even if a client clears its
    /// bit, and avoids reads of the shared cache line.
    pub done: u32,
    /// Segments that ended without a copy.
    pub gone: u32,
    /// Segments that outstanding orders copy.
    pub held: u32,
    /// Segments that outstanding orders absorb.
    pub pinned: u32,
    /// Segments that a client waits for.
    pub promoted: u32,
    /// Segments that end because their source bytes did not come.
    pub lost: u32,
    /// Lost segments that are already claimed for their ending.
    pub seized: u32,
    /// Reason of the loss.
    pub reason: Option<NonZeroU16>,
    pub ending: Option<Ending>,
    /// The task has retired; its slot is reused later.
    pub retired: bool,
}

impl Task {
    /// Validates a request.
    pub fn new(ticket: Ticket, request: &Request) -> Result<Task, Refusal> {
        let Request { dst, src, granule_shift, lazy_until, kind, last_use } = *request;
        if dst.len != src.len {
            return Err(Refusal::Lengths { src_bytes: src.len, dst_bytes: dst.len });
        }
        let len = dst.len;
        let segments =
            Segments::new(len, granule_shift).ok_or(Refusal::Segments { len, granule_shift })?;
        let task = Task {
            ticket,
            dst,
            src,
            segments,
            kind,
            last_use,
            lazy_until,
            done: 0,
            gone: 0,
            held: 0,
            pinned: 0,
            promoted: 0,
            lost: 0,
            seized: 0,
            reason: None,
            ending: None,
            retired: false,
        };
        for range in [task.writes(), task.reads()].into_iter().flatten() {
            if !range.fits() {
                return Err(Refusal::Wraps { start: range.start, len });
            }
        }
        if kind == Kind::Memory && dst.touches(src) {
            return Err(Refusal::Overlaps);
        }
        Ok(task)
    }

    /// Returns the memory that the task writes.
    pub fn writes(&self) -> Option<Span> {
        matches!(self.kind, Kind::Memory | Kind::Source).then_some(self.dst)
    }

    /// Returns the memory that the task reads.
    pub fn reads(&self) -> Option<Span> {
        matches!(self.kind, Kind::Memory | Kind::Sink).then_some(self.src)
    }

    /// Returns the streams that the task receives from and sends to.
    pub fn streams(&self) -> [Option<u64>; 2] {
        let takes = matches!(self.kind, Kind::Source | Kind::Relay);
        let gives = matches!(self.kind, Kind::Sink | Kind::Relay);
        [takes.then_some(self.src.start), gives.then_some(self.dst.start)]
    }

    /// Returns true if the task is copied as a whole, from the first missing byte to the last;
    /// this holds for all tasks at a stream.
    pub fn is_whole(&self) -> bool {
        self.kind != Kind::Memory
    }

    /// Returns the segments that are done or ended, as far as known.
    pub fn finished(&self) -> u32 {
        self.done | self.gone
    }

    /// Returns the segments that the plan may try to claim.
    pub fn free(&self) -> u32 {
        self.segments.all() & !(self.finished() | self.held | self.pinned | self.lost)
    }

    /// For a task at a stream: returns the rest of the task if the plan may try to claim it, else
    /// 0.
    pub fn suffix(&self) -> u32 {
        let open = self.segments.all() & !self.finished();
        if open & (self.held | self.pinned | self.lost) == 0 { open } else { 0 }
    }

    /// Returns the segments that write a byte of `range`.
    pub fn writing(&self, range: Span) -> u32 {
        self.writes().map_or(0, |dst| self.meeting(dst, range))
    }

    /// Returns the segments that read a byte of `range`.
    pub fn reading(&self, range: Span) -> u32 {
        self.reads().map_or(0, |src| self.meeting(src, range))
    }

    fn meeting(&self, side: Span, range: Span) -> u32 {
        let Some(met) = side.intersection(range) else { return 0 };
        self.segments.touching(met.start - side.start, met.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(dst: u64, src: u64, len: u64) -> Request {
        Request {
            dst: Span { start: dst, len },
            src: Span { start: src, len },
            granule_shift: 6,
            lazy_until: None,
            kind: Kind::Memory,
            last_use: false,
        }
    }

    fn refused(request: Request) -> Refusal {
        Task::new(Ticket(1), &request).unwrap_err()
    }

    #[test]
    fn bad_copies_are_refused_for_what_is_wrong() {
        assert!(Task::new(Ticket(1), &request(0, 100, 100)).is_ok());
        assert_eq!(refused(request(0, 99, 100)), Refusal::Overlaps);
        assert_eq!(refused(request(99, 0, 100)), Refusal::Overlaps);
        let start = u64::MAX - 10;
        assert_eq!(refused(request(start, 0, 100)), Refusal::Wraps { start, len: 100 });
        assert_eq!(refused(request(0, start, 100)), Refusal::Wraps { start, len: 100 });
        assert_eq!(refused(request(0, 9, 0)), Refusal::Segments { len: 0, granule_shift: 6 });
        let long = 32 * 64 + 1;
        let refusal = Refusal::Segments { len: long, granule_shift: 6 };
        assert_eq!(refused(request(0, 1 << 20, long)), refusal);
        let mut uneven = request(0, 100, 100);
        uneven.src.len = 99;
        assert_eq!(refused(uneven), Refusal::Lengths { src_bytes: 99, dst_bytes: 100 });
    }

    #[test]
    fn a_stream_number_is_no_address() {
        let mut send = request(u64::MAX, 0, 100);
        send.kind = Kind::Sink;
        let send = Task::new(Ticket(1), &send).unwrap();
        assert_eq!((send.streams(), send.writes()), ([None, Some(u64::MAX)], None));
        let mut receive = request(0, 5, 100);
        receive.kind = Kind::Source;
        let receive = Task::new(Ticket(2), &receive).unwrap();
        assert_eq!((receive.streams(), receive.reads()), ([Some(5), None], None));
        assert_eq!(receive.writing(Span { start: 70, len: 500 }), 0b10);
        let mut relay = request(u64::MAX, 5, 100);
        relay.kind = Kind::Relay;
        let relay = Task::new(Ticket(3), &relay).unwrap();
        assert_eq!(relay.streams(), [Some(5), Some(u64::MAX)]);
        assert_eq!((relay.reads(), relay.writes()), (None, None));
    }
}
