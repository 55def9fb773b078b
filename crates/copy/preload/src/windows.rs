//! Measurement of reads at one site: windows of processor time, in alternating ways; no clock.
//!
//! One thread measures at a time. Each window begins after some messages in its way, which are not
//! counted: they belong partly to the way before.

use crate::contest::{Contest, Way};

/// Messages before a window, and in a window.
const WARM_MESSAGES: u64 = 8;
const MESSAGES: u64 = 32;
/// First rest, in messages.
const REST_MESSAGES: u64 = 64 * 2 * crate::contest::PAIRS as u64 * (WARM_MESSAGES + MESSAGES);
/// Highest ratio of processor times at which reads are shortened.
const LIMIT_PERMILLE: u64 = 970;
/// Reads of other threads after which the measuring thread is held to be gone.
const FOREIGN_READS_MAX: u32 = 4096;

/// State of one site.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    contest: Contest,
    /// The thread that measures; 0 if none.
    thread: usize,
    foreign_reads: u32,
    is_warm: bool,
    bytes: u64,
    start_ns: u64,
}

impl Default for Windows {
    fn default() -> Self {
        Windows::new()
    }
}

impl Windows {
    /// A site before its first read.
    pub const fn new() -> Windows {
        Windows {
            contest: Contest::new(),
            thread: 0,
            foreign_reads: 0,
            is_warm: false,
            bytes: 0,
            start_ns: 0,
        }
    }

    /// The way of the read that comes now. `thread` is not 0, `class` the binary logarithm of the
    /// length of messages, `cpu_ns` the processor time of the thread. Returns also the winner of a
    /// contest that has ended.
    pub fn turn(
        &mut self,
        thread: usize,
        class: u8,
        cpu_ns: impl FnOnce() -> u64,
    ) -> (Way, Option<Way>) {
        if self.contest.rests() {
            return (self.contest.winner(), None);
        }
        if self.thread != thread {
            self.foreign_reads += 1;
            if self.thread != 0 && self.foreign_reads <= FOREIGN_READS_MAX {
                return (self.contest.winner(), None);
            }
            (self.thread, self.is_warm, self.bytes) = (thread, false, 0);
        }
        self.foreign_reads = 0;
        let messages = self.bytes >> class;
        let mut ended = None;
        if !self.is_warm && messages >= WARM_MESSAGES {
            (self.is_warm, self.bytes, self.start_ns) = (true, 0, cpu_ns());
        } else if self.is_warm && messages >= MESSAGES {
            let cost = (cpu_ns().saturating_sub(self.start_ns) << 20) / self.bytes;
            ended = self.contest.record(cost, LIMIT_PERMILLE, REST_MESSAGES << class);
            (self.is_warm, self.bytes) = (false, 0);
        }
        if ended.is_some() {
            self.thread = 0;
            return (self.contest.winner(), ended);
        }
        (self.contest.turn(), None)
    }

    /// Median ratio, new to old in 1/1000, of the last contest; 0 before the first.
    pub fn permille(&self) -> u64 {
        self.contest.permille()
    }

    /// Takes the bytes that a read has returned.
    pub fn got(&mut self, thread: usize, bytes: u64) {
        if self.contest.rests() {
            self.contest.pass(bytes);
        } else if self.thread == thread {
            self.bytes += bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 1 << 18;

    /// Reads `messages` in pieces; returns the numbers of messages in the new and in the old way.
    fn run(windows: &mut Windows, clock: &mut u64, messages: usize, costs: [u64; 2]) -> [u64; 2] {
        let mut counts = [0; 2];
        for _ in 0..messages {
            let (way, _) = windows.turn(1, 18, || *clock);
            counts[way as usize] += 1;
            *clock += costs[way as usize];
            windows.got(1, BYTES / 2);
            windows.turn(1, 18, || *clock);
            windows.got(1, BYTES / 2);
        }
        counts
    }

    #[test]
    fn a_gain_is_found_and_kept() {
        let (mut windows, mut clock) = (Windows::new(), 0);
        run(&mut windows, &mut clock, 1300, [30_000, 27_000]);
        let [old, new] = run(&mut windows, &mut clock, 50_000, [30_000, 27_000]);
        assert_eq!((old, new), (0, 50_000));
    }

    #[test]
    fn trials_that_lose_are_rare() {
        let (mut windows, mut clock) = (Windows::new(), 0);
        let [old, new] = run(&mut windows, &mut clock, 1_000_000, [30_000, 31_000]);
        assert!(new * 200 < old, "{new} of {old}");
        assert!(new > 2 * 500, "it is tried again: {new}");
    }

    #[test]
    fn a_change_is_noticed() {
        let (mut windows, mut clock) = (Windows::new(), 0);
        run(&mut windows, &mut clock, 100_000, [30_000, 20_000]);
        run(&mut windows, &mut clock, 400_000, [30_000, 40_000]);
        let [_, new] = run(&mut windows, &mut clock, 1000, [30_000, 40_000]);
        assert_eq!(new, 0);
    }

    #[test]
    fn a_thread_that_is_gone_is_replaced() {
        let mut windows = Windows::new();
        windows.turn(1, 18, || 0);
        for _ in 0..FOREIGN_READS_MAX {
            windows.turn(2, 18, || 0);
            windows.got(2, BYTES);
        }
        assert_eq!((windows.thread, windows.bytes), (1, 0));
        windows.turn(2, 18, || 0);
        windows.got(2, BYTES);
        assert_eq!((windows.thread, windows.bytes), (2, BYTES));
    }
}
