//! A program's memory, its model by `memcpy`, and a client of the service that must keep the two
//! equal.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

use unlade_copy::{Copier, CopyOptions, Token};
use unlade_testkit::Random;

use crate::buffers::{BUFFER_BYTES, Buffer, FREED};
use crate::shadow::{Moment, Shadow};

/// Number of buffers of a world that handlers free.
const BUFFERS: usize = 6;
/// Size of the scratch memory, the destination of aborted copies.
const SCRATCH_BYTES: usize = 2048;
/// Number of remembered copies: to overlap with, to sync, to abort.
const RECENT_MAX: usize = 24;
/// Progress of a copy is queried in this number of parts.
const PIECES: usize = 8;

/// A copy that was submitted.
#[derive(Clone, Copy)]
struct Recent {
    token: Token,
    dst: usize,
    src: usize,
    len: usize,
    moment: Moment,
}

/// See the [module](self). Layout of the memory: arena of the copies, scratch, buffers.
pub struct World<'c> {
    copier: &'c Copier,
    base: *mut u8,
    memory: Box<[u8]>,
    arena: usize,
    shadow: Shadow,
    buffers: Box<[Buffer]>,
    recent: VecDeque<Recent>,
    random: Random,
}

// SAFETY: the pointer is to the value's own memory.
unsafe impl Send for World<'_> {}

impl<'c> World<'c> {
    /// Creates a world with `arena` bytes for copies.
    pub fn new(copier: &'c Copier, arena: usize, seed: u64) -> World<'c> {
        let mut random = Random::new(seed);
        let bytes = arena + SCRATCH_BYTES + BUFFERS * BUFFER_BYTES;
        let mut memory: Box<[u8]> = (0..bytes).map(|_| random.next() as u8).collect();
        let base = memory.as_mut_ptr();
        // SAFETY: the bytes behind the scratch are used only here; `finish` waits for the buffers'
        // handlers.
        let buffer = |number| unsafe {
            Buffer::new(base.add(arena + SCRATCH_BYTES + number * BUFFER_BYTES))
        };
        let buffers = (0..BUFFERS).map(buffer).collect();
        let shadow = Shadow::of(&memory);
        World { copier, base, memory, arena, shadow, buffers, recent: VecDeque::new(), random }
    }

    /// Runs one operation.
    pub fn step(&mut self) {
        match self.random.below(1000) {
            0..500 => self.copy(),
            500..680 => self.read(),
            680..780 => self.write(),
            780..860 => self.sync_one(),
            860..920 => self.ask(),
            920..970 => self.hand_over(),
            970..980 => self.give_up(),
            980..990 => self.give_up_scratch(),
            990..991 => self.burst(),
            991..996 => _ = self.copier.run_handlers(),
            996..998 => self.copier.sync_all().unwrap(),
            _ => self.copier.sync_handlers().unwrap(),
        }
    }

    /// Completes everything, and compares it with the model.
    pub fn finish(mut self) {
        // Another thread may be running a handler that it took.
        let is_told = self.random.once_in(2);
        if is_told { self.copier.sync_all() } else { self.copier.sync_handlers() }.unwrap();
        let begin = Instant::now();
        while !self.buffers.iter().all(Buffer::is_free) {
            assert!(begin.elapsed() < Duration::from_secs(60), "every handler runs");
            if is_told {
                self.copier.run_handlers();
            }
            std::thread::yield_now();
        }
        let buffers = self.arena + SCRATCH_BYTES..self.memory.len();
        self.shadow.fill(buffers, FREED);
        assert_eq!(self.shadow.difference(0, &self.memory), None, "at the end");
    }

    fn length(&mut self) -> usize {
        length(&mut self.random, self.arena / 8)
    }

    fn range(&mut self) -> Range<usize> {
        let len = self.length();
        let start = self.random.below(self.arena - len + 1);
        start..start + len
    }

    /// A range near recent copies, to create chains and overlaps.
    fn related(&mut self, len: usize) -> usize {
        let last = self.arena - len;
        if self.recent.is_empty() || self.random.once_in(4) {
            return self.random.below(last + 1);
        }
        let recent = self.recent[self.random.below(self.recent.len())];
        let side = if self.random.once_in(4) { recent.src } else { recent.dst };
        let shift = match self.random.below(3) {
            0 => 0,
            1 => self.random.below(64),
            _ => self.random.below(recent.len),
        };
        let start = if self.random.once_in(3) { side.saturating_sub(shift) } else { side + shift };
        start.min(last)
    }

    fn options(&mut self) -> CopyOptions {
        let lazy_us = self.random.once_in(4).then(|| match self.random.below(4) {
            0 => 60_000_000,
            1 => u32::MAX,
            _ => self.random.below(2000) as u32,
        });
        let site = self.random.below(8);
        // Copies that are neither queued nor ever due stay with the client.
        let queued = lazy_us != Some(u32::MAX) && !self.random.once_in(8);
        CopyOptions { lazy_us, queued, site, ..CopyOptions::default() }
    }

    fn submit(&mut self, dst: usize, src: usize, len: usize, options: &CopyOptions) -> Recent {
        // SAFETY: both ranges are in the memory, and do not overlap; they are accessed only after
        // a sync, and `finish`, or the copier's end, waits for all.
        let token =
            unsafe { self.copier.submit(self.base.add(dst), self.base.add(src), len, options) };
        let moment = self.shadow.copy(dst, src, len);
        Recent { token, dst, src, len, moment }
    }

    fn remember(&mut self, recent: Recent) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(recent);
    }

    fn copy(&mut self) {
        let len = self.length();
        let (mut dst, mut src) = (self.related(len), self.related(len));
        if self.random.once_in(2) {
            std::mem::swap(&mut dst, &mut src);
        }
        if src.abs_diff(dst) < len {
            return;
        }
        let options = self.options();
        let recent = self.submit(dst, src, len, &options);
        self.remember(recent);
    }

    /// Bytes that a program reads there, after a wait for all writes.
    fn look(&self, range: Range<usize>, why: &str) {
        // SAFETY: in the memory, and no copy writes it.
        let seen = unsafe { std::slice::from_raw_parts(self.base.add(range.start), range.len()) };
        let wrong = self.shadow.difference(range.start, seen);
        assert_eq!(wrong, None, "{why} of {range:?}");
    }

    fn read(&mut self) {
        let range = self.range();
        self.copier.sync_range(self.base.addr() + range.start, range.len()).unwrap();
        self.look(range, "sync");
    }

    /// Fills a range that no copy accesses any more.
    fn fill(&mut self, range: Range<usize>) {
        let value = self.random.next() as u8;
        // SAFETY: in the memory, and no copy reads or writes it.
        unsafe { std::ptr::write_bytes(self.base.add(range.start), value, range.len()) };
        self.shadow.fill(range, value);
    }

    fn write(&mut self) {
        let range = self.range();
        self.copier.sync_for_write(self.base.addr() + range.start, range.len()).unwrap();
        self.look(range.clone(), "sync for write");
        self.fill(range);
    }

    fn one_of_late(&mut self) -> Option<Recent> {
        let count = self.recent.len();
        (count > 0).then(|| self.recent[self.random.below(count)])
    }

    /// A random part of a copy, as offsets from its start.
    fn part(&mut self, of: &Recent) -> Range<usize> {
        let start = self.random.below(of.len);
        start..start + 1 + self.random.below(of.len - start)
    }

    /// Ranges written by a part of a copy, and not overwritten since.
    fn look_at_part(&self, recent: &Recent, part: Range<usize>, why: &str) {
        let range = recent.dst + part.start..recent.dst + part.end;
        let left = self.shadow.unwritten_since(recent.moment, range).unwrap_or_default();
        left.into_iter().for_each(|range| self.look(range, why));
    }

    fn sync_one(&mut self) {
        let Some(recent) = self.one_of_late() else { return };
        let part = self.part(&recent);
        self.copier.sync(&recent.token, part.clone()).unwrap();
        self.look_at_part(&recent, part, "sync of a token");
    }

    fn ask(&mut self) {
        let Some(recent) = self.one_of_late() else { return };
        let part = self.part(&recent);
        if self.copier.is_ready(&recent.token, part.clone()) {
            self.look_at_part(&recent, part, "readiness");
        }
    }

    /// Copies to, from, and out of a buffer that the handler of the last one frees.
    fn hand_over(&mut self) {
        let number = self.random.below(BUFFERS);
        if !self.buffers[number].take() {
            return;
        }
        let start = self.arena + SCRATCH_BYTES + number * BUFFER_BYTES;
        self.shadow.fill(start..start + BUFFER_BYTES, FREED);
        self.fill(start..start + BUFFER_BYTES);
        for _ in 0..self.random.below(4) {
            let len = length(&mut self.random, BUFFER_BYTES);
            let inside = start + self.random.below(BUFFER_BYTES - len + 1);
            let outside = self.related(len);
            let options = self.options();
            let into = self.random.once_in(2);
            let (dst, src) = if into { (inside, outside) } else { (outside, inside) };
            let recent = self.submit(dst, src, len, &options);
            if self.random.once_in(8) {
                self.abort(&recent);
            }
        }
        let options =
            CopyOptions { handler: Some(self.buffers[number].handler()), ..self.options() };
        let dst = self.related(BUFFER_BYTES);
        let recent = self.submit(dst, start, BUFFER_BYTES, &options);
        // Sources of remembered copies are used again, so remove this one.
        if self.random.once_in(8) {
            self.abort(&recent);
        }
    }

    /// Aborts a copy, or its part that is not made yet.
    fn abort(&mut self, recent: &Recent) {
        if !recent.token.is_queued() {
            return;
        }
        let piece = recent.len.div_ceil(PIECES);
        let pieces = (0..recent.len).step_by(piece).map(|at| at..recent.len.min(at + piece));
        let copier = self.copier;
        let open: Vec<_> =
            pieces.filter(|piece| !copier.is_ready(&recent.token, piece.clone())).collect();
        let (dst, moment) = (recent.dst, recent.moment);
        let since = |piece: Range<usize>| {
            self.shadow.unwritten_since(moment, dst + piece.start..dst + piece.end)
        };
        let Some(lost) = open.into_iter().map(since).collect::<Option<Vec<_>>>() else { return };
        self.copier.abort(&recent.token);
        assert!(self.copier.is_ready(&recent.token, 0..recent.len), "completed");
        lost.into_iter().flatten().for_each(|range| self.shadow.forget(range));
    }

    fn give_up(&mut self) {
        if let Some(recent) = self.one_of_late() {
            self.abort(&recent);
        }
    }

    /// More lines than the service accepts at a time, and an abort of one of the last: tasks that
    /// depend on it follow.
    fn burst(&mut self) {
        for _ in 0..64 + self.random.below(64) {
            self.copy();
        }
        self.give_up();
    }

    /// After an abort the program owns the bytes again, immediately and permanently.
    fn give_up_scratch(&mut self) {
        let len = length(&mut self.random, SCRATCH_BYTES);
        let src = self.related(len);
        let options = self.options();
        let recent = self.submit(self.arena, src, len, &options);
        if self.random.once_in(4) {
            let part = self.part(&recent);
            self.copier.sync(&recent.token, part.clone()).unwrap();
            self.look_at_part(&recent, part, "sync before an abort");
        }
        if recent.token.is_queued() {
            self.abort(&recent);
        }
        self.fill(self.arena..self.arena + SCRATCH_BYTES);
        if self.random.once_in(2) {
            std::thread::yield_now();
        }
        self.look(self.arena..self.arena + SCRATCH_BYTES, "an abort");
    }
}

/// Mostly small, sometimes `most`.
fn length(random: &mut Random, most: usize) -> usize {
    let shift = random.below(most.ilog2() + 1);
    1 + random.below((most >> shift).max(1))
}
