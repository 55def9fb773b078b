//! Receive queue: in-order bytes for the reader, and out-of-order bytes that wait for earlier
//! ones. Of duplicate bytes the first copy is kept.

use std::collections::VecDeque;

use unlade_net::SeqNumber;

use crate::payload::Payload;
use crate::rule::{Rule, holds};
use crate::segment::{Range, SackBlocks};

/// Maximum number of stored chunks, read or not: each one-byte segment takes memory for a chunk.
pub const RECEIVE_CHUNKS_MAX: usize = 16_384;
/// Maximum number of out-of-order chunks, and of holes between them.
pub const OUT_OF_ORDER_CHUNKS_MAX: usize = 4096;
/// Maximum number of reported blocks: more do not fit beside timestamps, except for a duplicate.
const REPORTED_MAX: usize = 3;

struct OutOfOrderChunk<R> {
    start: SeqNumber,
    buffer: R,
}

impl<R: Payload> OutOfOrderChunk<R> {
    fn end(&self) -> SeqNumber {
        self.start + self.buffer.bytes() as u32
    }
}

/// Result of adding a segment's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// Number of bytes that became readable.
    pub(crate) in_order: u32,
    /// An immediate acknowledgement is due: out of order, duplicate, or a filled hole.
    pub(crate) urgent: bool,
    /// Chunks that were dropped because of a limit.
    pub(crate) refused: u32,
}

/// The receive side of a stream.
pub(crate) struct Receive<R> {
    /// The next in-order byte (RCV.NXT, but for FIN).
    next: SeqNumber,
    ready: VecDeque<R>,
    /// Start of the first chunk in `ready`.
    read: SeqNumber,
    /// Sorted, without overlaps.
    held: VecDeque<OutOfOrderChunk<R>>,
    /// The ranges of the out-of-order bytes, merged and sorted.
    ranges: Vec<Range>,
    /// Starts of out-of-order arrivals, the most recent first (RFC 2018 §4).
    reported: [SeqNumber; REPORTED_MAX],
    /// Duplicate bytes of the last segment (RFC 2883).
    duplicate: Option<Range>,
    /// End of the stream.
    fin: Option<SeqNumber>,
    buffer_bytes: u32,
}

impl<R: Payload> Receive<R> {
    pub(crate) fn new(start: SeqNumber, buffer_bytes: u32) -> Receive<R> {
        Receive {
            next: start,
            ready: VecDeque::new(),
            read: start,
            held: VecDeque::new(),
            ranges: Vec::new(),
            reported: [start; REPORTED_MAX],
            duplicate: None,
            fin: None,
            buffer_bytes,
        }
    }

    /// The next in-order byte; FIN counts as one when all earlier bytes are there.
    #[inline]
    pub(crate) fn next(&self) -> SeqNumber {
        self.next + u32::from(self.finished())
    }

    /// Returns true if everything up to FIN has arrived.
    #[inline]
    pub(crate) fn finished(&self) -> bool {
        self.fin == Some(self.next)
    }

    /// Number of bytes that can be read.
    #[inline]
    pub(crate) fn ready_bytes(&self) -> u32 {
        self.next.since(self.read) as u32
    }

    /// Sequence number of the next byte to be read.
    pub(crate) fn read_at(&self) -> SeqNumber {
        self.read
    }

    /// Number of further bytes that can be received.
    #[inline]
    pub(crate) fn room_bytes(&self) -> u32 {
        self.buffer_bytes.saturating_sub(self.ready_bytes())
    }

    /// Returns true if no bytes are out of order, no FIN has come, and no duplicate is to be
    /// reported.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.held.is_empty() && self.fin.is_none() && self.duplicate.is_none()
    }

    /// Records the arrival of duplicate bytes.
    pub(crate) fn note_old(&mut self, start: SeqNumber, end: SeqNumber) {
        let end = if self.next.before(end) { self.next } else { end };
        self.duplicate = Some(Range { start, end });
    }

    /// The oldest unread bytes, and their sequence number.
    #[inline]
    pub(crate) fn read(&mut self) -> Option<(SeqNumber, R)> {
        let buffer = self.ready.pop_front()?;
        let at = self.read;
        self.read = at + buffer.bytes() as u32;
        Some((at, buffer))
    }

    /// Fast path: appends in-order bytes, while none are out of order and no FIN has come. Returns
    /// false, and takes nothing, if there is no room for the chunks.
    #[inline]
    pub(crate) fn append(&mut self, bytes: u32, pieces: &mut Vec<R>) -> bool {
        if self.ready.len() + pieces.len() > RECEIVE_CHUNKS_MAX {
            return false;
        }
        self.next = self.next + bytes;
        self.ready.extend(pieces.drain(..));
        true
    }

    /// Adds bytes from `seq` on; those before `edge` are in the window. `fin`: the stream ends
    /// after them.
    pub(crate) fn insert(
        &mut self,
        seq: SeqNumber,
        edge: SeqNumber,
        pieces: &mut Vec<R>,
        fin: bool,
    ) -> Arrived {
        let before = self.next;
        let was_contiguous = self.held.is_empty();
        let mut arrived = Arrived::default();
        let mut at = seq;
        self.duplicate = None;
        let end = seq + pieces.iter().map(|piece| piece.bytes() as u32).sum::<u32>();
        if fin {
            self.note_end(end, edge);
        }
        let edge = self.fin.map_or(edge, |fin| if fin.before(edge) { fin } else { edge });
        for piece in pieces.drain(..) {
            let bytes = piece.bytes() as u32;
            arrived.refused += u32::from(!self.place(at, edge, piece));
            at = at + bytes;
        }
        self.release_in_order();
        arrived.in_order = self.next.since(before) as u32;
        arrived.urgent = !was_contiguous || !self.held.is_empty() || self.duplicate.is_some();
        arrived
    }

    /// Records `end` as the end of the stream, if this is consistent.
    fn note_end(&mut self, end: SeqNumber, edge: SeqNumber) {
        let last = self.held.back().map_or(self.next, OutOfOrderChunk::end);
        if self.fin.is_none() && !end.before(last) && !edge.before(end) {
            self.fin = Some(end);
        }
    }

    /// Stores the new bytes of `buffer`. Returns false if some of them were dropped.
    fn place(&mut self, start: SeqNumber, edge: SeqNumber, mut buffer: R) -> bool {
        let mut start = start;
        let end = start + buffer.bytes() as u32;
        let beyond = match holds(Rule::Edge) {
            true => end.since(edge).clamp(0, buffer.bytes() as i32),
            false => 0,
        };
        buffer.truncate(buffer.bytes() - beyond as usize);
        let old = self.next.since(start).clamp(0, buffer.bytes() as i32);
        if old > 0 {
            self.note_duplicate(start, start + old as u32);
            buffer.skip(old as usize);
            start = start + old as u32;
        }
        if self.held.is_empty() && start == self.next && buffer.bytes() > 0 {
            return self.deliver(buffer);
        }
        self.hold(start, buffer)
    }

    fn deliver(&mut self, buffer: R) -> bool {
        if self.ready.len() + self.held.len() >= RECEIVE_CHUNKS_MAX {
            return false;
        }
        self.next = self.next + buffer.bytes() as u32;
        self.ready.push_back(buffer);
        true
    }

    /// Stores the bytes that fill gaps between out-of-order chunks.
    fn hold(&mut self, mut start: SeqNumber, mut buffer: R) -> bool {
        let mut index = self.held.partition_point(|held| held.end().since(start) <= 0);
        while buffer.bytes() > 0 {
            let bytes = buffer.bytes() as u32;
            let gap = match self.held.get(index) {
                Some(held) if held.start.since(start) <= 0 => {
                    let whole = held.buffer.bytes();
                    let known = bytes.min(held.end().since(start) as u32);
                    self.note_duplicate(start, start + known);
                    let again = buffer.split_front(known as usize);
                    if whole == again.bytes() && !holds(Rule::FirstWins) {
                        self.held[index].buffer = again;
                    }
                    start = start + known;
                    index += 1;
                    continue;
                }
                Some(held) => bytes.min(held.start.since(start) as u32),
                None => bytes,
            };
            let full = self.ready.len() + self.held.len() >= RECEIVE_CHUNKS_MAX;
            // The next in-order chunk is always accepted, because it makes others readable.
            let many = self.held.len() >= OUT_OF_ORDER_CHUNKS_MAX && start != self.next;
            if full || many {
                return false;
            }
            let part = buffer.split_front(gap as usize);
            self.held.insert(index, OutOfOrderChunk { start, buffer: part });
            self.add_range(Range { start, end: start + gap });
            start = start + gap;
            index += 1;
        }
        true
    }

    /// Moves chunks that are now in order to the readable ones.
    fn release_in_order(&mut self) {
        while self.held.front().is_some_and(|held| held.start == self.next) {
            if let Some(held) = self.held.pop_front() {
                self.next = held.end();
                self.ready.push_back(held.buffer);
            }
        }
        let gone = self.ranges.partition_point(|range| range.end.since(self.next) <= 0);
        self.ranges.drain(..gone);
    }

    fn add_range(&mut self, new: Range) {
        let index = self.ranges.partition_point(|range| range.end.since(new.start) < 0);
        let joins_next = |range: &Range| range.start == new.end;
        match self.ranges.get_mut(index) {
            Some(range) if range.end == new.start => {
                range.end = new.end;
                let end = self.ranges.get(index + 1).filter(|next| joins_next(next)).map(|r| r.end);
                if let Some(end) = end {
                    self.ranges[index].end = end;
                    self.ranges.remove(index + 1);
                }
            }
            Some(range) if joins_next(range) => range.start = new.start,
            _ => self.ranges.insert(index, new),
        }
        if self.block(self.reported[0]).is_none_or(|block| block != self.block_of(new)) {
            self.reported.rotate_right(1);
        }
        self.reported[0] = new.start;
    }

    fn block_of(&self, new: Range) -> Range {
        self.block(new.start).unwrap_or(new)
    }

    fn note_duplicate(&mut self, start: SeqNumber, end: SeqNumber) {
        if self.duplicate.is_none() && start != end {
            self.duplicate = Some(Range { start, end });
        }
    }

    /// The out-of-order range that contains `at`.
    fn block(&self, at: SeqNumber) -> Option<Range> {
        let index = self.ranges.partition_point(|range| range.end.since(at) <= 0);
        self.ranges.get(index).filter(|range| range.start.since(at) <= 0).copied()
    }

    /// The blocks to report (RFC 2018 §4): a duplicate first (RFC 2883 §4), then recent arrivals,
    /// the latest first, then other blocks. A duplicate is reported once.
    pub(crate) fn sack_blocks(&mut self) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if let Some(duplicate) = self.duplicate.take() {
            blocks.push(duplicate);
            // A duplicate of out-of-order bytes is followed by the block that contains it.
            if let Some(around) = self.block(duplicate.start) {
                blocks.push(around);
            }
        }
        let told = self.reported.iter().filter_map(|&at| self.block(at));
        for block in told.chain(self.ranges.iter().copied().take(REPORTED_MAX)) {
            if !blocks.as_slice().contains(&block) && !blocks.push(block) {
                break;
            }
        }
        blocks
    }
}

#[cfg(test)]
#[path = "receive_tests.rs"]
pub(crate) mod tests;
