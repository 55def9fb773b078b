//! Tasks that this process has queued and not completed, with their addresses, by slot.
//!
//! This memory is private to the process, so that a service in another process cannot change what
//! a waiter copies.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use unlade_shm::Ticket;
use unlade_shm::segment;

use crate::admission::Place;

/// Kind of a task: source and destination are memory or sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    #[default]
    Copy,
    /// The source is a socket.
    Receive,
    /// The destination is a socket.
    Send,
    /// Both are sockets.
    Forward,
}

/// One task, as recorded by its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queued {
    pub kind: Kind,
    /// An address, or a socket's number.
    pub dst: usize,
    /// An address, or a socket's number.
    pub src: usize,
    pub len_bytes: u32,
    pub granule_shift: u8,
    /// The task is deferred. A waiter that needs its bytes asks the service to read around it.
    pub is_lazy: bool,
    /// The task is part of a copy that exceeds the caches.
    pub streams: bool,
}

impl Queued {
    /// All segments of the task.
    pub fn all(&self) -> u32 {
        segment::bits_for(self.len_bytes, self.granule_shift)
    }

    /// Returns true if the destination is memory.
    pub fn writes(&self) -> bool {
        matches!(self.kind, Kind::Copy | Kind::Receive)
    }

    /// Memory written by the task; empty if the destination is a socket.
    pub fn written(&self) -> Range<usize> {
        let len = if self.writes() { self.len_bytes as usize } else { 0 };
        let start = if self.writes() { self.dst } else { 0 };
        start..start.saturating_add(len)
    }

    /// Segments that write to the `len` bytes from `address` on.
    pub fn writing(&self, address: usize, len: usize) -> u32 {
        if self.writes() { self.meeting(self.dst, address, len) } else { 0 }
    }

    /// Segments that read from the `len` bytes from `address` on.
    pub fn reading(&self, address: usize, len: usize) -> u32 {
        let reads = matches!(self.kind, Kind::Copy | Kind::Send);
        if reads { self.meeting(self.src, address, len) } else { 0 }
    }

    /// The source socket, if there is one.
    pub fn source_socket(&self) -> Option<usize> {
        matches!(self.kind, Kind::Receive | Kind::Forward).then_some(self.src)
    }

    /// The destination socket, if there is one.
    pub fn destination_socket(&self) -> Option<usize> {
        matches!(self.kind, Kind::Send | Kind::Forward).then_some(self.dst)
    }

    /// Returns true if both have the same source socket, or the same destination socket.
    pub fn shares_socket(&self, other: &Queued) -> bool {
        let is_same = |one: Option<usize>, other| one.is_some() && one == other;
        is_same(self.source_socket(), other.source_socket())
            || is_same(self.destination_socket(), other.destination_socket())
    }

    fn meeting(&self, side: usize, address: usize, len: usize) -> u32 {
        let end = (side + self.len_bytes as usize).min(address.saturating_add(len));
        let start = side.max(address);
        if start >= end {
            return 0;
        }
        let range = (start - side) as u32..(end - side) as u32;
        segment::bits_of_range(range, self.len_bytes, self.granule_shift)
    }
}

/// One slot. Only the thread that acquired the ticket writes; the ticket is stored last.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot {
    /// The ticket plus one; 0 while it is written.
    ticket: AtomicU64,
    dst: AtomicU64,
    src: AtomicU64,
    /// Length, granule shift, lazy, streams, kind.
    shape: AtomicU64,
    /// The ticket plus one of the timed copy that the words below describe; 0 if none is timed. It
    /// may be older than `ticket`, if the newer task is not timed.
    timed: AtomicU64,
    /// End of the submission, its duration (48 and 15 bits of nanoseconds), and a flag that the
    /// service was awake (1 bit). Written by the submitter, read by syncs.
    timing: AtomicU64,
    /// The packed place of the call; 0 if the admission did not choose.
    place: AtomicU64,
    /// 0 before the first sync; then the nanoseconds until that sync plus one, and those that
    /// syncs have waited (32 bits each).
    seen: AtomicU64,
}

/// Measurements of a timed copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Timed {
    pub timing: u64,
    pub place: Place,
    /// Time until the first sync, and time in syncs; none before the first sync.
    pub seen: Option<(u32, u32)>,
}

/// The tasks of one queue, by slot.
#[derive(Debug)]
pub(crate) struct Pending {
    slots: Box<[Slot]>,
    /// All tickets below are done; searches begin here.
    completed: AtomicU64,
}

impl Pending {
    /// Creates the table of a queue of `slots` slots, a power of two.
    pub fn new(slots: u32, tail: Ticket) -> Pending {
        let slots = (0..slots).map(|_| Slot::default()).collect();
        Pending { slots, completed: AtomicU64::new(tail.0) }
    }

    #[inline]
    fn slot(&self, ticket: Ticket) -> &Slot {
        &self.slots[ticket.0 as usize & (self.slots.len() - 1)]
    }

    /// Records a task, before its line is published. `place`: the packed place of a copy that the
    /// admission chose to queue, otherwise 0. A timed task that had the slot is taken before.
    #[inline]
    pub fn note(&self, ticket: Ticket, queued: &Queued, place: u64) {
        let slot = self.slot(ticket);
        slot.ticket.store(0, Ordering::Relaxed);
        // A reader that sees a new word must not see the old ticket afterwards.
        std::sync::atomic::fence(Ordering::Release);
        slot.dst.store(queued.dst as u64, Ordering::Relaxed);
        slot.src.store(queued.src as u64, Ordering::Relaxed);
        let shape = u64::from(queued.len_bytes)
            | u64::from(queued.granule_shift) << 32
            | u64::from(queued.is_lazy) << 40
            | u64::from(queued.streams) << 41
            | (queued.kind as u64) << 48;
        slot.shape.store(shape, Ordering::Relaxed);
        slot.place.store(place, Ordering::Relaxed);
        slot.ticket.store(ticket.0.wrapping_add(1), Ordering::Release);
    }

    /// The task of a ticket; none if another thread is about to record it, or its slot was reused.
    #[inline]
    pub fn get(&self, ticket: Ticket) -> Option<Queued> {
        let slot = self.slot(ticket);
        let expected = ticket.0.wrapping_add(1);
        if slot.ticket.load(Ordering::Acquire) != expected {
            return None;
        }
        let dst = slot.dst.load(Ordering::Relaxed) as usize;
        let src = slot.src.load(Ordering::Relaxed) as usize;
        let shape = slot.shape.load(Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::Acquire);
        let kind = match shape >> 48 {
            0 => Kind::Copy,
            1 => Kind::Receive,
            2 => Kind::Send,
            _ => Kind::Forward,
        };
        (slot.ticket.load(Ordering::Relaxed) == expected).then_some(Queued {
            kind,
            dst,
            src,
            len_bytes: shape as u32,
            granule_shift: (shape >> 32) as u8,
            is_lazy: shape >> 40 & 1 != 0,
            streams: shape >> 41 & 1 != 0,
        })
    }

    /// Records the submission time of a task, for its syncs.
    pub fn note_timing(&self, ticket: Ticket, timing: u64, place: Place) {
        let slot = self.slot(ticket);
        slot.timing.store(timing, Ordering::Relaxed);
        slot.place.store(place.to_bits(), Ordering::Relaxed);
        slot.seen.store(0, Ordering::Relaxed);
        slot.timed.store(ticket.0.wrapping_add(1), Ordering::Release);
    }

    /// Returns true if the task is timed.
    #[inline]
    pub fn is_timed(&self, ticket: Ticket) -> bool {
        self.slot(ticket).timed.load(Ordering::Acquire) == ticket.0.wrapping_add(1)
    }

    /// The timed task in the slot that `next` is about to reuse.
    #[inline]
    pub fn timed_before(&self, next: Ticket) -> Option<Ticket> {
        self.slot(next).timed.load(Ordering::Acquire).checked_sub(1).map(Ticket)
    }

    /// The recorded submission time of a timed task.
    pub fn timing(&self, ticket: Ticket) -> u64 {
        self.slot(ticket).timing.load(Ordering::Relaxed)
    }

    /// Adds the waiting time of a sync of a timed task. `window_ns` is the time since the
    /// submission; only the first sync stores it.
    pub fn add_wait(&self, ticket: Ticket, window_ns: u32, wait_ns: u32) {
        let add = |seen: u64| {
            let first = match seen >> 32 {
                0 => u64::from(window_ns.saturating_add(1)),
                first => first,
            };
            Some(first << 32 | u64::from((seen as u32).saturating_add(wait_ns)))
        };
        let _ = self.slot(ticket).seen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Takes the measurements of a task, once.
    pub fn take_timing(&self, ticket: Ticket) -> Option<Timed> {
        let slot = self.slot(ticket);
        let expected = ticket.0.wrapping_add(1);
        let timing = slot.timing.load(Ordering::Relaxed);
        let place = Place::from_bits(slot.place.load(Ordering::Relaxed));
        let seen = slot.seen.load(Ordering::Relaxed);
        let taken = slot.timed.compare_exchange(expected, 0, Ordering::AcqRel, Ordering::Relaxed);
        taken.ok()?;
        let seen = (seen != 0).then(|| ((seen >> 32) as u32 - 1, seen as u32));
        Some(Timed { timing, place: place?, seen })
    }

    /// The place of a task that the admission chose to queue.
    pub fn place(&self, ticket: Ticket) -> Option<Place> {
        let slot = self.slot(ticket);
        let place = Place::from_bits(slot.place.load(Ordering::Relaxed));
        place.filter(|_| slot.ticket.load(Ordering::Acquire) == ticket.0.wrapping_add(1))
    }

    /// All tickets below this one are done.
    #[inline]
    pub fn completed(&self) -> Ticket {
        Ticket(self.completed.load(Ordering::Acquire))
    }

    /// Records that all tickets below `ticket` are done.
    pub fn complete_below(&self, ticket: Ticket) {
        self.completed.fetch_max(ticket.0, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(dst: usize, src: usize, len_bytes: u32) -> Queued {
        let granule_shift = segment::granule_shift_for(len_bytes);
        let (is_lazy, streams) = (false, false);
        Queued { kind: Kind::Copy, dst, src, len_bytes, granule_shift, is_lazy, streams }
    }

    #[test]
    fn a_slot_returns_only_its_newest_task() {
        let pending = Pending::new(16, Ticket(0));
        assert_eq!(pending.get(Ticket(3)), None);
        let (first, second) = (queued(10, 20, 5), queued(30, 40, 70_000));
        pending.note(Ticket(3), &first, 0);
        assert_eq!(pending.get(Ticket(3)), Some(first));
        pending.note(Ticket(19), &second, 0);
        assert_eq!((pending.get(Ticket(3)), pending.get(Ticket(19))), (None, Some(second)));
    }

    #[test]
    fn segments_are_found_by_address() {
        let task = queued(0x10000, 0x50000, 4096);
        assert_eq!(task.all(), 0b1111);
        assert_eq!(task.writing(0x10000, 1), 0b0001);
        assert_eq!(task.writing(0x10000 + 1023, 2), 0b0011);
        assert_eq!(task.writing(0, usize::MAX), 0b1111);
        assert_eq!(task.writing(0x11000, 5), 0);
        assert_eq!(task.reading(0x10000, 4096), 0);
        assert_eq!(task.reading(0x50000 - 10, 11), 0b0001);
    }

    #[test]
    fn a_socket_number_is_not_an_address() {
        let pending = Pending::new(16, Ticket(0));
        let received = Queued { kind: Kind::Receive, is_lazy: true, ..queued(0x10000, 5, 4096) };
        let sent = Queued { kind: Kind::Send, ..queued(5, 0x10000, 4096) };
        for (ticket, queued) in [(Ticket(1), received), (Ticket(2), sent)] {
            pending.note(ticket, &queued, 0);
            assert_eq!(pending.get(ticket), Some(queued));
        }
        assert_eq!((received.source_socket(), received.destination_socket()), (Some(5), None));
        assert_eq!((sent.source_socket(), sent.destination_socket()), (None, Some(5)));
        let forward = Queued { kind: Kind::Forward, ..queued(5, 6, 4096) };
        pending.note(Ticket(3), &forward, 0);
        assert_eq!(pending.get(Ticket(3)), Some(forward));
        assert_eq!((forward.writing(0, usize::MAX), forward.reading(0, usize::MAX)), (0, 0));
        assert!(forward.shares_socket(&sent) && !forward.shares_socket(&received));
        assert_eq!((received.reading(0, usize::MAX), received.writing(0x10000, 1)), (0, 1));
        assert_eq!((sent.reading(0x10000, 1), sent.writing(0, usize::MAX)), (1, 0));
    }

    #[test]
    fn all_syncs_of_a_task_give_one_sample() {
        let pending = Pending::new(16, Ticket(0));
        assert!(!pending.is_timed(Ticket(0)) && pending.timed_before(Ticket(3)).is_none());
        let place = Place { site: 0x1000, class: 3 };
        pending.note_timing(Ticket(3), 77, place);
        assert!(pending.is_timed(Ticket(3)) && !pending.is_timed(Ticket(19)));
        assert_eq!(pending.timed_before(Ticket(19)), Some(Ticket(3)));
        assert_eq!(pending.take_timing(Ticket(19)), None);
        pending.add_wait(Ticket(3), 0, 5);
        pending.add_wait(Ticket(3), 900, 7);
        let timed = Timed { timing: 77, place, seen: Some((0, 12)) };
        assert_eq!(pending.take_timing(Ticket(3)), Some(timed));
        assert_eq!(pending.take_timing(Ticket(3)), None);
        pending.note_timing(Ticket(19), 78, place);
        assert_eq!(pending.take_timing(Ticket(19)).map(|timed| timed.seen), Some(None));
    }

    #[test]
    fn the_completed_ticket_never_decreases() {
        let pending = Pending::new(16, Ticket(7));
        pending.complete_below(Ticket(9));
        pending.complete_below(Ticket(8));
        assert_eq!(pending.completed(), Ticket(9));
    }
}
