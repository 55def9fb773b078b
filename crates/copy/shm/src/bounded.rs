//! A bounded ring of pairs of words, for any number of pushers and poppers: the cells of the
//! [`sync`](crate::sync) and [`handler`](crate::handler) rings.
//!
//! This is Dmitry Vyukov's bounded MPMC queue. A cell's sequence number is `position` when the
//! cell is free for the push at that position, and `position + 1` when it holds the pair pushed
//! there. A peer that writes wrong values can make the ring appear full or empty, or deliver wrong
//! pairs.

use crate::atomic::{AtomicU64, Ordering};

/// Maximum number of attempts of a push or pop that competes with other threads. After that, the
/// ring counts as full or empty; only a peer that manipulates the words causes more attempts.
const ATTEMPTS_MAX: u32 = 256;

/// The ring has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the ring is full; take something out, or do it yourself")]
pub struct Full;

/// A word on its own cache line.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct Cursor(pub(crate) AtomicU64);

/// Positions of the next push and the next pop.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct Cursors {
    head: Cursor,
    tail: Cursor,
}

#[derive(Debug, Default)]
#[repr(C, align(32))]
pub(crate) struct Cell {
    sequence: AtomicU64,
    pair: [AtomicU64; 2],
}

/// A ring; the number of its cells is a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounded<'a> {
    pub(crate) cursors: &'a Cursors,
    pub(crate) cells: &'a [Cell],
}

impl Bounded<'_> {
    #[inline]
    fn cell(&self, position: u64) -> &Cell {
        &self.cells[position as usize & (self.cells.len() - 1)]
    }

    /// Returns the difference between the cell's sequence and `position`.
    #[inline]
    fn lead(&self, position: u64) -> i64 {
        let sequence = self.cell(position).sequence.load(Ordering::Acquire);
        sequence.wrapping_sub(position) as i64
    }

    /// Takes the position of `cursor` whose cell has this lead; `None` if there is no such cell
    /// yet.
    fn take(&self, cursor: &AtomicU64, lead: i64) -> Option<u64> {
        let mut position = cursor.load(Ordering::Relaxed);
        for _ in 0..ATTEMPTS_MAX {
            let ahead = self.lead(position).wrapping_sub(lead);
            if ahead < 0 {
                return None;
            }
            if ahead > 0 {
                // Another thread took the position.
                position = cursor.load(Ordering::Relaxed);
                continue;
            }
            let next = position.wrapping_add(1);
            match cursor.compare_exchange_weak(position, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => return Some(position),
                Err(now) => position = now,
            }
        }
        None
    }

    /// Pushes a pair.
    pub(crate) fn push(&self, pair: [u64; 2]) -> Result<(), Full> {
        let position = self.take(&self.cursors.head.0, 0).ok_or(Full)?;
        let cell = self.cell(position);
        for (word, value) in cell.pair.iter().zip(pair) {
            word.store(value, Ordering::Relaxed);
        }
        cell.sequence.store(position.wrapping_add(1), Ordering::Release);
        Ok(())
    }

    /// Pops the oldest pair.
    pub(crate) fn pop(&self) -> Option<[u64; 2]> {
        let position = self.take(&self.cursors.tail.0, 1)?;
        let cell = self.cell(position);
        let pair = [0, 1].map(|at: usize| cell.pair[at].load(Ordering::Relaxed));
        let next_lap = position.wrapping_add(self.cells.len() as u64);
        cell.sequence.store(next_lap, Ordering::Release);
        Some(pair)
    }

    /// Returns true if there is a pair to pop; a hint.
    #[inline]
    pub(crate) fn has_pair(&self) -> bool {
        self.lead(self.cursors.tail.0.load(Ordering::Relaxed)) > 0
    }

    pub(crate) fn reset(&self) {
        self.cursors.head.0.store(0, Ordering::Relaxed);
        self.cursors.tail.0.store(0, Ordering::Relaxed);
        for (position, cell) in (0..).zip(self.cells) {
            cell.sequence.store(position, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn first_in_first_out_over_many_laps_and_never_more_than_fits() {
        let cursors = Cursors::default();
        let cells: Vec<Cell> = (0..4).map(|_| Cell::default()).collect();
        let ring = Bounded { cursors: &cursors, cells: &cells };
        ring.reset();
        assert_eq!(ring.pop(), None);
        for lap in 0..10 {
            for value in 0..4 {
                assert_eq!(ring.push([lap, value]), Ok(()));
            }
            assert_eq!(ring.push([0, 0]), Err(Full));
            assert!(ring.has_pair());
            for value in 0..4 {
                assert_eq!(ring.pop(), Some([lap, value]));
            }
            assert_eq!(ring.pop(), None);
            assert!(!ring.has_pair());
            assert_eq!(ring.push([9, 9]), Ok(()));
            assert_eq!(ring.pop(), Some([9, 9]));
        }
    }
}
