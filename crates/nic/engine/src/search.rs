//! Search for a plausible header in a stream whose message boundaries are unknown.

use unlade_net::SeqNumber;

use crate::l5p::{HEADER_BYTES_MAX, L5p};

/// Maximum number of header bytes in an earlier segment.
const CARRY_BYTES_MAX: usize = HEADER_BYTES_MAX - 1;

/// The last searched bytes, because a header may start in them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carry {
    /// The sequence number after the last of them.
    end: SeqNumber,
    have: u8,
    bytes: [u8; CARRY_BYTES_MAX],
}

impl Carry {
    pub const EMPTY: Carry = Carry { end: SeqNumber(0), have: 0, bytes: [0; CARRY_BYTES_MAX] };

    /// The bytes to search in a segment, preceded by the carried bytes if they are adjacent.
    pub fn join<'p, L: L5p>(&self, seq: SeqNumber, payload: &'p [u8]) -> Searched<'p> {
        let carried = if self.have > 0 && seq == self.end { usize::from(self.have) } else { 0 };
        let mut border = [0; 2 * CARRY_BYTES_MAX];
        border[..carried].copy_from_slice(&self.bytes[..carried]);
        let behind = payload.len().min(L::HEADER_BYTES - 1);
        border[carried..carried + behind].copy_from_slice(&payload[..behind]);
        Searched { start: seq - carried as u32, carried, border, payload }
    }

    /// Carries the last bytes of a search without a result.
    pub fn keep<L: L5p>(&mut self, searched: &Searched<'_>) {
        let end = searched.start + searched.bytes() as u32;
        // A retransmission of bytes that were already searched.
        if self.have > 0 && end == self.end {
            return;
        }
        let have = searched.bytes().min(L::HEADER_BYTES - 1);
        let first = searched.bytes() - have;
        for (index, byte) in self.bytes[..have].iter_mut().enumerate() {
            *byte = searched.byte(first + index);
        }
        self.end = end;
        self.have = have as u8;
    }
}

/// A segment, and the adjacent bytes before it that were too few for a header.
pub(crate) struct Searched<'p> {
    start: SeqNumber,
    carried: usize,
    /// The carried bytes and the first of the segment.
    border: [u8; 2 * CARRY_BYTES_MAX],
    payload: &'p [u8],
}

impl<'p> Searched<'p> {
    fn bytes(&self) -> usize {
        self.carried + self.payload.len()
    }

    fn byte(&self, index: usize) -> u8 {
        match index.checked_sub(self.carried) {
            Some(index) => self.payload[index],
            None => self.border[index],
        }
    }

    /// The index of the next plausible header at or after `from`.
    pub fn find<L: L5p>(&self, l5p: &L, from: usize) -> Option<usize> {
        let last = self.bytes().checked_sub(L::HEADER_BYTES)?;
        let split = from..self.carried.min(last + 1);
        let fits = |header: &[u8]| l5p.message_bytes(header).is_some();
        for index in split {
            if fits(&self.border[index..index + L::HEADER_BYTES]) {
                return Some(index);
            }
        }
        let inside = from.saturating_sub(self.carried);
        let windows = self.payload.get(inside..)?.windows(L::HEADER_BYTES);
        let index = windows.into_iter().position(fits)?;
        Some(self.carried + inside + index)
    }

    /// The sequence number of the byte `index`.
    pub fn seq(&self, index: usize) -> SeqNumber {
        self.start + index as u32
    }

    /// The bytes from `index` on, in two parts: carried ones, and the segment's.
    pub fn from(&self, index: usize) -> (&[u8], &'p [u8]) {
        let carried = &self.border[index.min(self.carried)..self.carried];
        (carried, &self.payload[index.saturating_sub(self.carried)..])
    }
}
