//! Simulation of a bad line around any port: frames are lost, duplicated, damaged, delayed or
//! reordered. Each direction has its own random source with a seed, so that a run can be
//! repeated.

use std::collections::VecDeque;

use super::{Frame, Port};
use unlade_nic_inline::impair;
pub use unlade_nic_inline::impair::{HELD_MAX, ImpairStats, Impairment, WHOLE};

/// One direction.
struct Lane {
    line: impair::Lane<Frame>,
    ready: VecDeque<Frame>,
}

impl Lane {
    fn new(impairment: Impairment, seed: u64, direction: u8) -> Lane {
        Lane { line: impair::Lane::new(impairment, seed, direction), ready: VecDeque::new() }
    }

    /// Takes a frame; `port` provides frames for copies, and takes lost ones back.
    fn take(&mut self, mut frame: Frame, now_ns: u64, port: &mut impl Port) {
        if self.line.is_lost() {
            return port.recycle(frame);
        }
        if self.line.is_doubled() {
            let mut copy = port.empty();
            match copy.copy_from(frame.as_slice()) {
                true => self.hold(copy, now_ns, port),
                false => port.recycle(copy),
            }
        }
        self.line.damage(frame.as_mut_slice());
        self.hold(frame, now_ns, port);
    }

    fn hold(&mut self, frame: Frame, now_ns: u64, port: &mut impl Port) {
        let Some(wait) = self.line.wait() else { return self.ready.push_back(frame) };
        let bytes = frame.room_bytes();
        if let Some(frame) = self.line.hold(frame, bytes, wait, now_ns) {
            port.recycle(frame);
        }
    }

    /// Moves frames whose delay is over to the ready queue.
    fn release(&mut self, now_ns: u64) {
        self.line.release(now_ns, |frame| self.ready.push_back(frame));
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
    /// Wraps `port`: sent frames are impaired by `out`, received ones by `incoming`.
    pub fn new(port: P, out: Impairment, incoming: Impairment, seed: u64) -> Impair<P> {
        let (out, incoming) = (Lane::new(out, seed, 0), Lane::new(incoming, seed, 1));
        Impair { port, out, incoming, now_ns: 0 }
    }

    /// Counters of sent frames, and of received ones.
    pub fn stats(&self) -> (ImpairStats, ImpairStats) {
        (self.out.line.stats(), self.incoming.line.stats())
    }

    fn flush(&mut self) {
        while self.port.room() > 0 {
            let Some(frame) = self.out.ready.pop_front() else { return };
            self.port.send(frame);
        }
    }
}

impl<P: Port> Port for Impair<P> {
    fn room(&mut self) -> usize {
        // A frame may be duplicated.
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
        self.incoming.ready.pop_front()
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

    /// Sends `count` numbered frames through a line, and returns the received ones in order.
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
        let passed = stats.taken - stats.lost + stats.duplicated - stats.overflowed;
        assert_eq!(passed, came.len() as u64);
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
