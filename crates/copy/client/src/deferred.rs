//! Copies that are put off until something looks at them, and that are never made if nothing does.
//!
//! They stay with the client: no task, no service. Every operation of the client asks this table
//! first. A copy out of a deferred destination reads from the deferred source instead; a copy that
//! covers a deferred destination drops the deferred copy; every other meeting has the deferred
//! copy made. No deferred copy depends on another one, since they meet when they are deferred.
//!
//! A send of a deferred destination reads the deferred source, too. Until the socket has taken the
//! bytes, they are in the table once more, as a deferred copy to spare memory of the send: what
//! changes them has this copy made, and the rest is sent from there.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::held::HeldSend;

/// Maximum number of deferred copies; the oldest one is made when there are more.
const DEFERRED_MAX: usize = 16;
/// Maximum number of pieces of a send that reads past deferred copies.
pub(crate) const PIECES_MAX: usize = 8;
/// Maximum number of sends that are not over and read past deferred copies.
const SENDS_MAX: usize = 16;

/// A copy.
#[derive(Clone, Debug)]
pub(crate) struct Deferral {
    /// Unique in the client.
    pub id: u64,
    pub dst: usize,
    pub src: usize,
    pub len: usize,
    /// The program named this source; false if another deferred copy was read past.
    pub is_direct: bool,
    /// For bytes that a send reads at `src`: the send, and the number of its place. The copy is one
    /// to the spare memory of the send, from where they are sent if it is made.
    pub sent: Option<(Arc<HeldSend>, usize)>,
}

/// Places of bytes that deferred copies would write, or have left as they are.
pub(crate) type Pieces = SmallVec<[Piece; 2]>;

/// A part of the bytes that a send needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Its address: in the source of a deferred copy, or where the program sees it.
    pub address: usize,
    pub len: usize,
    pub is_past_copy: bool,
}

impl Deferral {
    pub fn written(&self) -> Range<usize> {
        self.dst..self.dst + self.len
    }

    pub fn read(&self) -> Range<usize> {
        self.src..self.src + self.len
    }

    /// Returns true if the copy reads any of `len` bytes.
    pub fn meets_source(&self, address: usize, len: usize) -> bool {
        meet(&self.read(), &(address..address + len))
    }

    /// Returns true if the copy writes any of `len` bytes.
    pub fn meets_destination(&self, address: usize, len: usize) -> bool {
        meet(&self.written(), &(address..address + len))
    }
}

/// Returns true if the ranges have a common byte.
pub(crate) fn meet(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start.max(other.start) < one.end.min(other.end)
}

fn covers(outer: &Range<usize>, inner: &Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The deferred copies of a client.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// Number of copies and sends in the table, and of sends.
    count: AtomicUsize,
    sends: AtomicUsize,
    /// Begin and end of the part of memory that has all their destinations, and all their sources.
    written: [AtomicUsize; 2],
    read: [AtomicUsize; 2],
    table: Mutex<Table>,
}

fn store(bounds: &[AtomicUsize; 2], ranges: impl Iterator<Item = Range<usize>>) {
    let all = ranges.reduce(|one, other| one.start.min(other.start)..one.end.max(other.end));
    let all = all.unwrap_or_default();
    bounds[0].store(all.start, Ordering::Relaxed);
    bounds[1].store(all.end, Ordering::Relaxed);
}

/// A locked table. Whoever has it makes copies, so that no other thread finds a copy neither
/// deferred nor made.
#[derive(Debug, Default)]
pub(crate) struct Table {
    copies: Vec<Deferral>,
    /// Sends that read at sources of these copies; they stay until the socket has taken them.
    sends: Vec<Arc<HeldSend>>,
    last_id: u64,
    dropped: Dropped,
}

/// Copies that were never made.
#[derive(Debug, Default)]
struct Dropped {
    copies: u64,
    bytes: u64,
}

impl Dropped {
    fn add(&mut self, copy: &Deferral) {
        self.copies += 1;
        self.bytes += copy.len as u64;
    }
}

impl Deferred {
    /// Returns true if there are deferred copies that this thread may know of.
    #[inline]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) != 0
    }

    /// Returns true if there are sends, which may be over.
    #[inline]
    pub fn has_sends(&self) -> bool {
        self.sends.load(Ordering::Relaxed) != 0
    }

    /// Changes the table.
    pub fn with<T>(&self, change: impl FnOnce(&mut Table) -> T) -> T {
        let mut table = self.lock();
        let value = change(&mut table);
        self.count.store(table.copies.len() + table.sends.len(), Ordering::Relaxed);
        self.sends.store(table.sends.len(), Ordering::Relaxed);
        let made = table.copies.iter().filter(|copy| copy.sent.is_none());
        store(&self.written, made.map(Deferral::written));
        store(&self.read, table.copies.iter().map(Deferral::read));
        value
    }

    /// Returns false if no deferred copy that this thread may know of writes any of these bytes,
    /// nor, with `readers`, reads any.
    #[inline]
    pub fn may_touch(&self, bytes: &Range<usize>, readers: bool) -> bool {
        let meets = |bounds: &[AtomicUsize; 2]| {
            let [start, end] = bounds.each_ref().map(|bound| bound.load(Ordering::Relaxed));
            meet(&(start..end), bytes)
        };
        self.any() && (meets(&self.written) || readers && meets(&self.read))
    }

    /// Returns true if this copy is still deferred.
    pub fn has(&self, id: u64) -> bool {
        self.any() && self.lock().copies.iter().any(|copy| copy.id == id)
    }

    /// Copies that were dropped, and their bytes.
    pub fn dropped(&self) -> (u64, u64) {
        let table = self.lock();
        (table.dropped.copies, table.dropped.bytes)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Takes the copies that `is_due` names, and has them made.
    pub fn make(&mut self, is_due: impl Fn(&Deferral) -> bool, make: impl Fn(&Deferral)) {
        self.copies.retain(|copy| {
            let is_due = is_due(copy);
            if is_due {
                make(copy);
            }
            !is_due
        });
    }

    /// Prepares a copy of `len` bytes from `src` to `dst` that is made now: has those made that it
    /// meets, drops those that it covers, and returns the address to copy from.
    pub fn precede(
        &mut self,
        dst: usize,
        src: usize,
        len: usize,
        make: impl Fn(&Deferral),
    ) -> usize {
        let (written, read) = (dst..dst + len, src..src + len);
        let mut from = src;
        let count = &mut self.dropped;
        self.copies.retain(|copy| {
            if meet(&copy.written(), &read) {
                let past = copy.src.wrapping_add(src.wrapping_sub(copy.dst));
                let is_whole = covers(&copy.written(), &read);
                if is_whole && !meet(&(past..past.wrapping_add(len)), &written) {
                    from = past;
                } else {
                    make(copy);
                    return false;
                }
            }
            if covers(&written, &copy.written()) {
                count.add(copy);
                return false;
            }
            let meets = meet(&copy.written(), &written) || meet(&copy.read(), &written);
            if meets {
                make(copy);
            }
            !meets
        });
        from
    }

    /// Defers a copy, after [`Table::precede`]. Returns its number.
    pub fn defer(&mut self, dst: usize, src: usize, len: usize, make: impl Fn(&Deferral)) -> u64 {
        let from = self.precede(dst, src, len, &make);
        let is_copy = |copy: &Deferral| copy.sent.is_none();
        if self.copies.iter().filter(|copy| is_copy(copy)).count() >= DEFERRED_MAX
            && let Some(oldest) = self.copies.iter().position(is_copy)
        {
            make(&self.copies.remove(oldest));
        }
        self.last_id += 1;
        self.copies.push(Deferral {
            id: self.last_id,
            dst,
            src: from,
            len,
            is_direct: from == src,
            sent: None,
        });
        self.last_id
    }

    /// The places of bytes as the program would see them, in order. `None` if no deferred copy
    /// writes any of them.
    pub fn pieces(&self, bytes: &Range<usize>) -> Option<Pieces> {
        let mut copies: SmallVec<[&Deferral; 4]> =
            self.copies.iter().filter(|copy| meet(&copy.written(), bytes)).collect();
        if copies.is_empty() {
            return None;
        }
        // Their destinations do not meet.
        copies.sort_unstable_by_key(|copy| copy.dst);
        let (mut pieces, mut at) = (Pieces::new(), bytes.start);
        let mut push = |address, len, is_past_copy| {
            if len > 0 {
                pieces.push(Piece { address, len, is_past_copy });
            }
        };
        for copy in copies {
            let (from, to) = (copy.dst.max(at), copy.written().end.min(bytes.end));
            push(at, from - at, false);
            push(copy.src + (from - copy.dst), to - from, true);
            at = to;
        }
        push(at, bytes.end - at, false);
        Some(pieces)
    }

    /// The deferred copy that writes exactly these bytes, from a source that the program named.
    pub fn exactly(&self, bytes: &Range<usize>) -> Option<&Deferral> {
        self.copies.iter().find(|copy| copy.written() == *bytes && copy.is_direct)
    }

    /// Returns true if one more send may read these pieces.
    pub fn may_hold(&self, pieces: &[Piece]) -> bool {
        self.sends.len() < SENDS_MAX && pieces.len() <= PIECES_MAX
    }

    /// Adds a send that reads these pieces. A change of one of them has it saved before.
    pub fn hold(&mut self, send: &Arc<HeldSend>, pieces: &[Piece]) {
        let mut dst = send.spare();
        for (number, piece) in pieces.iter().enumerate() {
            self.last_id += 1;
            let (id, sent) = (self.last_id, Some((Arc::clone(send), number)));
            let (src, len) = (piece.address, piece.len);
            self.copies.push(Deferral { id, dst, src, len, is_direct: true, sent });
            dst += piece.len;
        }
        self.sends.push(Arc::clone(send));
    }

    /// Drops the sends that are over.
    pub fn drop_sent(&mut self, is_over: impl Fn(&HeldSend) -> bool) {
        if self.sends.is_empty() {
            return;
        }
        self.sends.retain(|send| !is_over(send));
        let is_left = |send: &Arc<HeldSend>| self.sends.iter().any(|left| Arc::ptr_eq(left, send));
        self.copies.retain(|copy| copy.sent.as_ref().is_none_or(|(send, _)| is_left(send)));
    }

    /// Drops a copy that nobody will look at. Returns false if it is not deferred any more.
    pub fn drop_copy(&mut self, id: u64) -> bool {
        let Some(at) = self.copies.iter().position(|copy| copy.id == id) else { return false };
        self.dropped.add(&self.copies.remove(at));
        true
    }

    /// Drops the copies into bytes that nobody will look at.
    pub fn discard(&mut self, bytes: &Range<usize>) {
        let count = &mut self.dropped;
        self.copies.retain(|copy| {
            let is_covered = covers(bytes, &copy.written());
            if is_covered {
                count.add(copy);
            }
            !is_covered
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use unlade_testkit::Random;

    const BYTES: usize = 64;

    /// A memory in which copies are deferred, and one in which all are made at once.
    struct Memories {
        deferring: RefCell<Vec<u8>>,
        plain: Vec<u8>,
        table: Table,
        /// Deferred copies that were abandoned: their destinations may differ, until written.
        undefined: Vec<bool>,
    }

    impl Memories {
        fn new() -> Memories {
            let bytes: Vec<u8> = (0..BYTES as u8).collect();
            Memories {
                deferring: RefCell::new(bytes.clone()),
                plain: bytes,
                table: Table::default(),
                undefined: vec![false; BYTES],
            }
        }

        fn step(&mut self, random: &mut Random) {
            let Memories { deferring, plain, table, undefined } = self;
            let make = |copy: &Deferral| {
                deferring.borrow_mut().copy_within(copy.read(), copy.dst);
            };
            let len = 1 + random.below(16_usize);
            let place = |random: &mut Random| random.below(BYTES - len + 1);
            let (dst, src) = (place(random), place(random));
            let is_valid = dst.abs_diff(src) >= len;
            match random.below(10) {
                0..4 if is_valid => {
                    table.defer(dst, src, len, make);
                    plain.copy_within(src..src + len, dst);
                    let taken = undefined[src..src + len].to_vec();
                    undefined[dst..dst + len].copy_from_slice(&taken);
                }
                4..6 if is_valid => {
                    let from = table.precede(dst, src, len, make);
                    deferring.borrow_mut().copy_within(from..from + len, dst);
                    plain.copy_within(src..src + len, dst);
                    let taken = undefined[src..src + len].to_vec();
                    undefined[dst..dst + len].copy_from_slice(&taken);
                }
                6 => {
                    // The program syncs for a write, and writes.
                    let range = dst..dst + len;
                    let is_due = |copy: &Deferral| {
                        meet(&copy.written(), &range) || meet(&copy.read(), &range)
                    };
                    table.make(is_due, make);
                    let byte = random.below(256_u64) as u8;
                    deferring.borrow_mut()[range.clone()].fill(byte);
                    plain[range.clone()].fill(byte);
                    undefined[range].fill(false);
                }
                7 if random.below(4) == 0 => {
                    let range = dst..dst + len;
                    let discarded =
                        table.copies.iter().filter(|copy| covers(&range, &copy.written()));
                    discarded.for_each(|copy| undefined[copy.written()].fill(true));
                    table.discard(&range);
                }
                7 if random.below(4) == 0 => {
                    if let Some(copy) = table.copies.first().cloned() {
                        assert!(table.drop_copy(copy.id) && !table.drop_copy(copy.id));
                        undefined[copy.written()].fill(true);
                    }
                }
                8 | 9 => {
                    // A send reads past the copies.
                    let range = dst..dst + len;
                    let seen = table.pieces(&range).unwrap_or_else(|| {
                        let is_past_copy = false;
                        Pieces::from_iter([Piece { address: dst, len, is_past_copy }])
                    });
                    let places =
                        seen.iter().flat_map(|piece| piece.address..piece.address + piece.len);
                    let deferring = deferring.borrow();
                    assert_eq!(places.clone().count(), len);
                    for (at, place) in range.zip(places) {
                        assert!(undefined[at] || deferring[place] == plain[at], "byte {at}");
                    }
                }
                _ => {
                    let range = dst..dst + len;
                    table.make(|copy| meet(&copy.written(), &range), make);
                    let deferring = deferring.borrow();
                    for at in range {
                        assert!(undefined[at] || deferring[at] == plain[at], "byte {at}");
                    }
                }
            }
        }
    }

    #[test]
    fn memory_is_as_if_every_copy_were_made_at_once() {
        let seed = unlade_testkit::seed();
        let mut dropped = 0;
        for round in 0..2000 {
            let mut random = Random::numbered(seed, round);
            let mut memories = Memories::new();
            for _ in 0..40 {
                memories.step(&mut random);
            }
            let Memories { deferring, plain, mut table, undefined } = memories;
            // None depends on another: any order is right.
            table.copies.reverse();
            table.make(|_| true, |copy| deferring.borrow_mut().copy_within(copy.read(), copy.dst));
            dropped += table.dropped.copies;
            let deferring = deferring.into_inner();
            for at in 0..BYTES {
                assert!(undefined[at] || deferring[at] == plain[at], "byte {at}, round {round}");
            }
        }
        assert!(dropped > 1000, "{dropped}");
    }

    #[test]
    fn the_bounds_have_all_copies() {
        let deferred = Deferred::default();
        let bytes = |start: usize| start..start + 10;
        assert!(!deferred.may_touch(&(0..usize::MAX), true));
        let first = deferred.with(|table| table.defer(1000, 5000, 100, |_| {}));
        deferred.with(|table| table.defer(3000, 9000, 100, |_| {}));
        for (start, written, read) in
            [(985, false, false), (995, true, false), (3095, true, false), (3100, false, false)]
                .into_iter()
                .chain([(4995, false, true), (9095, false, true), (9100, false, false)])
        {
            assert_eq!(deferred.may_touch(&bytes(start), false), written, "{start}");
            assert_eq!(deferred.may_touch(&bytes(start), true), written || read, "{start}");
        }
        deferred.with(|table| table.drop_copy(first));
        assert!(!deferred.may_touch(&bytes(1000), true) && deferred.has(first + 1));
        deferred.with(|table| table.discard(&(3000..3100)));
        assert!(!deferred.may_touch(&(0..usize::MAX), true) && !deferred.any());
    }

    #[test]
    fn chains_read_from_the_first_source() {
        let made = RefCell::new(Vec::new());
        let make = |copy: &Deferral| made.borrow_mut().push(copy.id);
        let mut table = Table::default();
        let first = table.defer(1000, 5000, 100, make);
        let second = table.defer(2000, 1010, 50, make);
        assert_eq!(table.precede(3000, 2020, 30, make), 5030);
        assert!(made.borrow().is_empty() && table.copies.len() == 2);
        // Part of the source is not deferred.
        assert_eq!(table.precede(3000, 1090, 20, make), 1090);
        assert_eq!(made.take(), [first]);
        // The destination is covered.
        table.precede(1990, 9000, 70, make);
        assert!(made.borrow().is_empty() && table.copies.is_empty());
        assert_eq!((table.dropped.copies, table.dropped.bytes), (1, 50));
        assert!(second > first && !table.drop_copy(second));
        // Back to where it came from.
        let back = table.defer(1000, 5000, 100, make);
        assert_eq!(table.precede(5000, 1000, 100, make), 1000);
        assert_eq!(made.take(), [back]);
        for number in 0..DEFERRED_MAX + 2 {
            table.defer(100_000 + 1000 * number, 5000, 100, make);
        }
        assert_eq!((made.borrow().len(), table.copies.len()), (2, DEFERRED_MAX));
    }
}
