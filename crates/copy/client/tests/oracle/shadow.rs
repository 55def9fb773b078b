//! Model of a memory by `memcpy`, updated with each operation, so that only the read bytes have to
//! be compared.

use std::collections::VecDeque;
use std::ops::Range;

/// Number of remembered writes: to determine the last writes of an aborted copy.
const LOG_MAX: usize = 256;
/// Mask of a known byte.
const KNOWN: u8 = 0xff;

/// Identifies a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

/// A memory's content. Bytes that an aborted or failed copy did not write are unknown, and so are
/// later copies of them.
#[derive(Debug)]
pub struct Shadow {
    bytes: Vec<u8>,
    masks: Vec<u8>,
    log: VecDeque<Range<usize>>,
    /// Moment of the log's first entry.
    begin: u64,
}

impl Shadow {
    /// Current content.
    pub fn of(bytes: &[u8]) -> Shadow {
        let masks = vec![KNOWN; bytes.len()];
        Shadow { bytes: bytes.to_vec(), masks, log: VecDeque::new(), begin: 0 }
    }

    fn note(&mut self, range: Range<usize>) -> Moment {
        self.log.push_back(range);
        if self.log.len() > LOG_MAX {
            self.log.pop_front();
            self.begin += 1;
        }
        Moment(self.begin + self.log.len() as u64 - 1)
    }

    /// Models a `memcpy` within the memory.
    pub fn copy(&mut self, dst: usize, src: usize, len: usize) -> Moment {
        self.bytes.copy_within(src..src + len, dst);
        self.masks.copy_within(src..src + len, dst);
        self.note(dst..dst + len)
    }

    /// Models a write by the program.
    pub fn fill(&mut self, range: Range<usize>, value: u8) -> Moment {
        self.bytes[range.clone()].fill(value);
        self.masks[range.clone()].fill(KNOWN);
        self.note(range)
    }

    /// Marks bytes as unknown.
    pub fn forget(&mut self, range: Range<usize>) {
        self.masks[range].fill(0);
    }

    /// Parts of `range`, written at `moment`, that were not overwritten since; none if the log is
    /// too short.
    pub fn unwritten_since(
        &self,
        moment: Moment,
        range: Range<usize>,
    ) -> Option<Vec<Range<usize>>> {
        let first = (moment.0 + 1).checked_sub(self.begin)?;
        let mut left = vec![range];
        for written in self.log.range(first as usize..) {
            if left.iter().any(|part| part.start < written.end && written.start < part.end) {
                let cut = |part: &Range<usize>| {
                    [part.start..part.end.min(written.start), part.start.max(written.end)..part.end]
                };
                left = left.iter().flat_map(cut).filter(|part| part.start < part.end).collect();
            }
        }
        Some(left)
    }

    /// The first byte from `at` on that is known and differs from `seen`.
    pub fn difference(&self, at: usize, seen: &[u8]) -> Option<usize> {
        let (bytes, masks) = (&self.bytes[at..][..seen.len()], &self.masks[at..][..seen.len()]);
        let differ = |((byte, mask), seen): ((&u8, &u8), &u8)| (byte ^ seen) & mask != 0;
        // Compares the whole first, which is faster.
        let wrong = |((byte, mask), seen): ((&u8, &u8), &u8)| (byte ^ seen) & mask;
        let any = bytes.iter().zip(masks).zip(seen).map(wrong).fold(0, |all, wrong| all | wrong);
        let place = || bytes.iter().zip(masks).zip(seen).position(differ);
        if any == 0 { None } else { place().map(|offset| at + offset) }
    }

    /// Returns true if all these bytes are known.
    pub fn is_known(&self, range: Range<usize>) -> bool {
        self.masks[range].iter().all(|mask| *mask == KNOWN)
    }
}

#[test]
fn later_writes_are_excluded() {
    let mut shadow = Shadow::of(&[1; 100]);
    let moment = shadow.copy(10, 50, 20);
    let since = |shadow: &Shadow, range| shadow.unwritten_since(moment, range).unwrap();
    assert_eq!(since(&shadow, 10..30), std::slice::from_ref(&(10..30)));
    shadow.fill(15..20, 7);
    assert_eq!(since(&shadow, 10..30), [10..15, 20..30]);
    shadow.fill(0..12, 7);
    shadow.fill(29..90, 7);
    assert_eq!(since(&shadow, 10..30), [12..15, 20..29]);
    assert!(since(&shadow, 30..30).is_empty());
    for _ in 0..LOG_MAX {
        shadow.fill(0..1, 0);
    }
    assert_eq!(shadow.unwritten_since(moment, 10..30), None);
}

#[test]
fn a_wrong_byte_is_found_where_it_is_known() {
    let mut shadow = Shadow::of(&[1; 100]);
    let mut seen = [1; 50];
    assert_eq!(shadow.difference(20, &seen), None);
    seen[7] = 2;
    assert_eq!(shadow.difference(20, &seen), Some(27));
    shadow.forget(27..28);
    assert_eq!(shadow.difference(20, &seen), None);
    assert!(!shadow.is_known(20..28) && shadow.is_known(0..27));
    // A copy of unknown bytes is unknown, too.
    shadow.copy(50, 25, 5);
    seen = [1; 50];
    seen[2] = 9;
    assert_eq!(shadow.difference(50, &seen), None);
    shadow.fill(52..53, 1);
    assert_eq!(shadow.difference(50, &seen), Some(52));
}
