//! Send queue: bytes to send, and sent, unacknowledged bytes, as chunks from the caller, without a
//! copy.

use std::collections::VecDeque;

use thiserror::Error;
use unlade_net::SeqNumber;

use crate::payload::Payload;

/// Reason why bytes cannot be sent. The chunk is not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SendError {
    /// Too many bytes, or chunks, are unacknowledged; retry after an acknowledgement.
    #[error("too much is unacknowledged; send when some of it is")]
    Full,
    /// This end has closed, or the connection has ended.
    #[error("the connection takes no more bytes to send")]
    Closed,
}

struct Piece<S> {
    start: SeqNumber,
    bytes: u32,
    buffer: S,
}

/// The outgoing stream, from the oldest chunk with an unacknowledged byte.
pub(crate) struct SendQueue<S> {
    pieces: VecDeque<Piece<S>>,
    /// The chunk of the last gathered byte, or one before it: start of the next search.
    cursor: usize,
    acknowledged: SeqNumber,
    end: SeqNumber,
    bytes_max: u32,
    pieces_max: usize,
}

impl<S: Payload + Clone> SendQueue<S> {
    pub(crate) fn new(start: SeqNumber, bytes_max: u32, pieces_max: usize) -> SendQueue<S> {
        SendQueue {
            pieces: VecDeque::new(),
            cursor: 0,
            acknowledged: start,
            end: start,
            bytes_max,
            pieces_max,
        }
    }

    /// Appends a chunk, and returns its sequence number.
    #[inline]
    pub(crate) fn push(&mut self, buffer: S) -> Result<SeqNumber, SendError> {
        let bytes = buffer.bytes();
        if bytes > self.room_bytes() as usize || self.pieces.len() >= self.pieces_max {
            return Err(SendError::Full);
        }
        let start = self.end;
        if bytes > 0 {
            self.pieces.push_back(Piece { start, bytes: bytes as u32, buffer });
            self.end = start + bytes as u32;
        }
        Ok(start)
    }

    /// Number of bytes that can be appended.
    pub(crate) fn room_bytes(&self) -> u32 {
        self.bytes_max.saturating_sub(self.end.since(self.acknowledged) as u32)
    }

    /// Number of chunks that can be appended.
    pub(crate) fn room_pieces(&self) -> usize {
        self.pieces_max.saturating_sub(self.pieces.len())
    }

    /// The sequence number after the last byte.
    #[inline]
    pub(crate) fn end(&self) -> SeqNumber {
        self.end
    }

    /// The oldest unacknowledged byte.
    pub(crate) fn acknowledged(&self) -> SeqNumber {
        self.acknowledged
    }

    /// Acknowledges bytes before `until`: frees chunks that end before it.
    #[inline]
    pub(crate) fn acknowledge(&mut self, until: SeqNumber) {
        self.acknowledged = until;
        while let Some(piece) = self.pieces.front() {
            if (piece.start + piece.bytes).since(until) > 0 {
                return;
            }
            self.pieces.pop_front();
            self.cursor = self.cursor.saturating_sub(1);
        }
    }

    /// Index of the chunk with the byte `at`.
    fn find(&self, at: SeqNumber) -> usize {
        let ends_behind = |piece: &Piece<S>| (piece.start + piece.bytes).since(at) > 0;
        let starts_before = |piece: &Piece<S>| piece.start.since(at) <= 0;
        for index in [self.cursor, self.cursor + 1] {
            if self.pieces.get(index).is_some_and(|p| starts_before(p) && ends_behind(p)) {
                return index;
            }
        }
        self.pieces.partition_point(|piece| !ends_behind(piece))
    }

    /// Appends the bytes from `start` up to `end`, in at most `pieces_max` chunks, to `out`;
    /// returns the number of bytes.
    #[inline]
    pub(crate) fn gather(
        &mut self,
        start: SeqNumber,
        end: SeqNumber,
        pieces_max: usize,
        out: &mut Vec<S>,
    ) -> u32 {
        let first = self.find(start);
        let mut at = start;
        for (number, piece) in self.pieces.range(first..).take(pieces_max).enumerate() {
            let left = end.since(at);
            let front = at.since(piece.start);
            if left <= 0 || front < 0 {
                break;
            }
            let taken = (piece.bytes - front as u32).min(left as u32);
            let mut part = piece.buffer.clone();
            if taken < piece.bytes {
                part.skip(front as usize);
                part.truncate(taken as usize);
            }
            out.push(part);
            at = at + taken;
            self.cursor = first + number;
        }
        at.since(start) as u32
    }

    /// Frees everything.
    pub(crate) fn clear(&mut self) {
        self.pieces.clear();
        self.cursor = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    const START: SeqNumber = SeqNumber(u32::MAX - 7);

    fn queue(pieces: &[&'static [u8]]) -> SendQueue<Bytes> {
        let mut queue = SendQueue::new(START, 100, 8);
        for piece in pieces {
            queue.push(Bytes::from_static(piece)).unwrap();
        }
        queue
    }

    fn gathered(queue: &mut SendQueue<Bytes>, from: u32, to: u32, pieces: usize) -> Vec<Bytes> {
        let mut out = Vec::new();
        let bytes = queue.gather(START + from, START + to, pieces, &mut out);
        assert_eq!(bytes as usize, out.iter().map(Bytes::len).sum::<usize>());
        out
    }

    #[test]
    fn any_range_is_gathered_across_the_wrap() {
        let mut queue = queue(&[b"abcd", b"efghij", b"", b"klm"]);
        let all = b"abcdefghijklm";
        for from in 0..13 {
            for to in from..=13 {
                let due = &all[from as usize..to as usize];
                assert_eq!(gathered(&mut queue, from, to, 9).concat(), due, "{from}..{to}");
            }
        }
        assert_eq!(gathered(&mut queue, 2, 13, 2).concat(), b"cdefghij", "in two pieces");
        assert_eq!(gathered(&mut queue, 13, 14, 2), Vec::<Bytes>::new());
    }

    #[test]
    fn a_piece_stays_until_all_of_it_is_acknowledged() {
        let mut queue = queue(&[b"abcd", b"efghij"]);
        gathered(&mut queue, 5, 9, 2);
        queue.acknowledge(START + 3);
        assert_eq!(gathered(&mut queue, 0, 10, 9).concat(), b"abcdefghij");
        queue.acknowledge(START + 5);
        assert_eq!(queue.pieces.len(), 1);
        assert_eq!(gathered(&mut queue, 5, 10, 9).concat(), b"fghij");
        queue.acknowledge(START + 10);
        assert!(queue.pieces.is_empty());
        assert_eq!(queue.push(Bytes::from_static(b"x")), Ok(START + 10));
        assert_eq!(gathered(&mut queue, 10, 11, 9).concat(), b"x");
    }

    #[test]
    fn both_limits_refuse() {
        let mut queue = queue(&[b"x".as_slice(); 8]);
        assert_eq!(queue.push(Bytes::from_static(b"y")), Err(SendError::Full));
        queue.acknowledge(START + 1);
        assert_eq!(queue.room_bytes(), 93);
        assert_eq!(queue.push(Bytes::from(vec![0; 94])), Err(SendError::Full));
        assert_eq!(queue.push(Bytes::from(vec![0; 93])), Ok(START + 8));
        assert_eq!(queue.room_bytes(), 0);
    }
}
