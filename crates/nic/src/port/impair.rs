//! A bad line around any port: frames get lost, doubled, damaged, late, or out of order. Seeded, and
//! different in each direction, so that a run can be repeated.

use std::collections::VecDeque;

use random::Random;

use super::{Frame, Port};

/// Most frames that wait in one direction.
pub const HELD_MAX: usize = 4096;
/// Most frames that pass one that is put out of order.
const PASSED_MAX: u64 = 8;
/// A frame that is put out of order waits no longer, nanoseconds: perhaps none follows.
const PASSED_NS_MAX: u64 = 1_000_000;
/// Probabilities are parts of so many.
pub const WHOLE: u32 = 1_000_000;

/// What happens to the frames of one direction; probabilities in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// It is lost.
    pub loss_ppm: u32,
    /// It comes twice.
    pub duplicate_ppm: u32,
    /// One bit of it is another.
    pub corrupt_ppm: u32,
    /// Up to eight frames pass it.
    pub reorder_ppm: u32,
    /// It is on its way for so long, nanoseconds.
    pub delay_ns: u64,
}

/// What has happened; counts of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairStats {
    /// Went in.
    pub taken: u64,
    /// Were lost on purpose.
    pub lost: u64,
    /// Came twice.
    pub duplicated: u64,
    /// Were damaged.
    pub corrupted: u64,
    /// Were put out of order.
    pub reordered: u64,
    /// Came out.
    pub passed: u64,
    /// Were lost because too many waited.
    pub overflowed: u64,
}

struct Held {
    frame: Frame,
    /// Leaves when so many frames have been taken, or at that time; both where it is only late.
    after: u64,
    at_ns: u64,
    /// Waits for others to pass.
    passed: bool,
}

/// One direction.
struct Lane {
    impairment: Impairment,
    random: Random,
    held: VecDeque<Held>,
    ready: VecDeque<Frame>,
    stats: ImpairStats,
}

impl Lane {
    fn new(impairment: Impairment, seed: u64) -> Lane {
        let (held, ready) = (VecDeque::new(), VecDeque::new());
        Lane { impairment, random: Random::new(seed), held, ready, stats: ImpairStats::default() }
    }

    fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.random.chance(u64::from(ppm), u64::from(WHOLE))
    }

    /// Takes a frame; `port` gives one for a copy, and takes lost ones back.
    fn take(&mut self, mut frame: Frame, now_ns: u64, port: &mut impl Port) {
        self.stats.taken += 1;
        if self.happens(self.impairment.loss_ppm) {
            self.stats.lost += 1;
            return port.recycle(frame);
        }
        if self.happens(self.impairment.duplicate_ppm) {
            let mut copy = port.empty();
            if copy.copy_from(frame.as_slice()) {
                self.stats.duplicated += 1;
                self.hold(copy, now_ns, port);
            }
        }
        if self.happens(self.impairment.corrupt_ppm) && !frame.as_slice().is_empty() {
            let at = self.random.next() as usize % frame.as_slice().len();
            frame.as_mut_slice()[at] ^= 1 << (self.random.next() % 8);
            self.stats.corrupted += 1;
        }
        self.hold(frame, now_ns, port);
    }

    fn hold(&mut self, frame: Frame, now_ns: u64, port: &mut impl Port) {
        let delay_ns = self.impairment.delay_ns;
        let passed = self.happens(self.impairment.reorder_ppm);
        if !passed && delay_ns == 0 {
            return self.ready.push_back(frame);
        }
        if self.held.len() >= HELD_MAX {
            self.stats.overflowed += 1;
            return port.recycle(frame);
        }
        let mut at_ns = now_ns.saturating_add(delay_ns);
        let mut after = self.stats.taken;
        if passed {
            self.stats.reordered += 1;
            after += 1 + self.random.next() % PASSED_MAX;
            at_ns = at_ns.saturating_add(PASSED_NS_MAX);
        }
        self.held.push_back(Held { frame, after, at_ns, passed });
    }

    /// Frames whose time has come are ready.
    fn release(&mut self, now_ns: u64) {
        let mut index = 0;
        while let Some(held) = self.held.get(index) {
            let late = held.at_ns <= now_ns;
            let overtaken = held.passed
                && held.after <= self.stats.taken
                && held.at_ns.saturating_sub(PASSED_NS_MAX) <= now_ns;
            match late || overtaken {
                true => self.ready.extend(self.held.remove(index).map(|held| held.frame)),
                false => index += 1,
            }
        }
    }

    fn ready(&mut self) -> Option<Frame> {
        let frame = self.ready.pop_front();
        self.stats.passed += u64::from(frame.is_some());
        frame
    }
}

/// A port behind a bad line.
pub struct Impair<P> {
    port: P,
    out: Lane,
    incoming: Lane,
    now_ns: u64,
}

impl<P: Port> Impair<P> {
    /// What leaves through `port` suffers from `out`, what comes from `incoming`.
    pub fn new(port: P, out: Impairment, incoming: Impairment, seed: u64) -> Impair<P> {
        let (out, incoming) = (Lane::new(out, seed), Lane::new(incoming, !seed));
        Impair { port, out, incoming, now_ns: 0 }
    }

    /// What has happened to frames that left, and to those that came.
    pub fn stats(&self) -> (ImpairStats, ImpairStats) {
        (self.out.stats, self.incoming.stats)
    }

    fn flush(&mut self) {
        while self.port.room() > 0 {
            let Some(frame) = self.out.ready() else { return };
            self.port.send(frame);
        }
    }
}

impl<P: Port> Port for Impair<P> {
    fn room(&mut self) -> usize {
        // A frame may become two.
        self.port.room().saturating_sub(self.out.ready.len()) / 2
    }

    fn empty(&mut self) -> Frame {
        self.port.empty()
    }

    fn send(&mut self, frame: Frame) -> bool {
        if self.room() == 0 {
            self.port.recycle(frame);
            return false;
        }
        self.out.take(frame, self.now_ns, &mut self.port);
        self.out.release(self.now_ns);
        self.flush();
        true
    }

    fn receive(&mut self) -> Option<Frame> {
        while self.incoming.ready.is_empty() {
            let frame = self.port.receive()?;
            self.incoming.take(frame, self.now_ns, &mut self.port);
            self.incoming.release(self.now_ns);
        }
        self.incoming.ready()
    }

    fn recycle(&mut self, frame: Frame) {
        self.port.recycle(frame);
    }

    fn advance(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.port.advance(now_ns);
        self.out.release(now_ns);
        self.incoming.release(now_ns);
        self.flush();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::memory;

    /// Sends `count` numbered frames through a line, and returns what came in which order.
    fn sent(impairment: Impairment, seed: u64, count: u32) -> (Vec<u32>, ImpairStats) {
        let (left, mut right) = memory::pair(1024, 64);
        let mut line = Impair::new(left, impairment, Impairment::default(), seed);
        let mut came = Vec::new();
        let mut drain = |right: &mut memory::MemoryPort| {
            while let Some(frame) = right.receive() {
                came.push(u32::from_be_bytes(frame.as_slice().try_into().unwrap()));
                right.recycle(frame);
            }
        };
        for number in 0..count {
            line.advance(u64::from(number) * 1000);
            let mut frame = line.empty();
            frame.copy_from(&number.to_be_bytes());
            assert!(line.send(frame));
            drain(&mut right);
        }
        line.advance(u64::MAX / 2);
        drain(&mut right);
        (came, line.stats().0)
    }

    #[test]
    fn what_is_counted_is_what_happened() {
        let impairment = Impairment {
            loss_ppm: 50_000,
            duplicate_ppm: 30_000,
            reorder_ppm: 40_000,
            ..Impairment::default()
        };
        let (came, stats) = sent(impairment, 7, 20_000);
        assert_eq!(stats.taken, 20_000);
        assert_eq!(stats.passed, came.len() as u64);
        assert_eq!(stats.passed, stats.taken - stats.lost + stats.duplicated - stats.overflowed);
        assert!((800..1200).contains(&stats.lost), "{stats:?}");
        assert!((450..750).contains(&stats.duplicated), "{stats:?}");
        assert!(came.windows(2).any(|pair| pair[0] > pair[1]), "some are out of order");
        let passed = came.iter().enumerate().filter(|(at, number)| {
            came[..*at].iter().rev().take(400).any(|earlier| earlier > *number)
        });
        assert!(passed.count() as u64 <= stats.reordered);
    }

    #[test]
    fn the_same_seed_repeats_the_run_and_another_does_not() {
        let impairment = Impairment { loss_ppm: 100_000, ..Impairment::default() };
        assert_eq!(sent(impairment, 1, 1000), sent(impairment, 1, 1000));
        assert_ne!(sent(impairment, 1, 1000).0, sent(impairment, 2, 1000).0);
    }

    #[test]
    fn a_delay_keeps_the_order_and_a_good_line_changes_nothing() {
        let all: Vec<u32> = (0..500).collect();
        let late = Impairment { delay_ns: 20_000, ..Impairment::default() };
        assert_eq!(sent(late, 1, 500).0, all);
        assert_eq!(sent(Impairment::default(), 1, 500).0, all);
    }

    #[test]
    fn damage_is_one_bit() {
        let impairment = Impairment { corrupt_ppm: WHOLE, ..Impairment::default() };
        let (came, stats) = sent(impairment, 3, 200);
        assert_eq!(stats.corrupted, 200);
        assert!((0..).zip(came).all(|(sent, came): (u32, u32)| (sent ^ came).count_ones() == 1));
    }
}
