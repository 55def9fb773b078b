//! Simulation of a bad line: frames are lost, duplicated, damaged, delayed or reordered. The
//! decisions are those of [`unlade_testkit::line`], from a seed, so that a run can be repeated;
//! each direction is a [`Lane`].

use std::collections::VecDeque;
use std::str::FromStr;
use std::time::Duration;

use thiserror::Error;
use unlade_testkit::Random;
pub use unlade_testkit::line::WHOLE_PPM as WHOLE;
use unlade_testkit::line::{Chance, Chances, Fate};

/// Largest number of frames that wait in one direction.
pub const HELD_MAX: usize = 4096;
/// Largest number of bytes in them.
pub const HELD_BYTES_MAX: usize = 64 << 20;
/// Largest number of frames that overtake a reordered one.
const PASSED_MAX: u64 = 8;
/// Longest wait of a reordered frame in nanoseconds, in case no frame follows.
const PASSED_NS_MAX: u64 = 1_000_000;
/// The longest delay that can be configured.
pub const DELAY_MS_MAX: u64 = 10_000;

/// Impairments of one direction; probabilities in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// A frame is lost.
    pub loss_ppm: u32,
    /// A frame is duplicated.
    pub duplicate_ppm: u32,
    /// One bit of a frame is changed.
    pub corrupt_ppm: u32,
    /// A frame is overtaken by up to eight others.
    pub reorder_ppm: u32,
    /// Delay of all frames in nanoseconds.
    pub delay_ns: u64,
}

impl Impairment {
    /// The probabilities, as the model of a line has them.
    fn chances(&self) -> Chances {
        Chances {
            loss: Chance::ppm(self.loss_ppm),
            duplicate: Chance::ppm(self.duplicate_ppm),
            late: Chance::ppm(self.reorder_ppm),
            damage: Chance::ppm(self.corrupt_ppm),
        }
    }
}

/// An impairment in its text form, such as `loss=2%,reorder=0.5%,delay=3ms,seed=7`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seeded {
    /// The impairments of frames.
    pub impairment: Impairment,
    /// Seed of the random source; the same seed repeats a run.
    pub seed: u64,
}

/// A parse error of an impairment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImpairmentError {
    /// An entry is not `name=value`.
    #[error("{0:?} is not NAME=VALUE; for example loss=2%,reorder=2%,duplicate=1%,seed=7")]
    Shape(String),
    /// An unknown name.
    #[error("{0:?} is none of loss, reorder, duplicate, corrupt, delay, seed")]
    Name(String),
    /// The value is not a percentage or a number.
    #[error(
        "{0}: {1:?} is not a percentage from 0% to 100%, for the delay a time such as 10ms (at most \
         {DELAY_MS_MAX} ms), for the seed a number"
    )]
    Value(String, String),
}

impl FromStr for Seeded {
    type Err = ImpairmentError;

    fn from_str(text: &str) -> Result<Seeded, ImpairmentError> {
        let mut seeded = Seeded::default();
        let impairment = &mut seeded.impairment;
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| ImpairmentError::Shape(part.to_owned()))?;
            let bad = || ImpairmentError::Value(name.to_owned(), value.to_owned());
            let number = || value.parse::<u64>().map_err(|_| bad());
            let ppm = || {
                let percent: f64 = value.trim_end_matches('%').parse().map_err(|_| bad())?;
                let sensible = (0.0..=100.0).contains(&percent);
                sensible.then_some((percent * 10_000.0).round() as u32).ok_or_else(bad)
            };
            match name {
                "loss" => impairment.loss_ppm = ppm()?,
                "reorder" => impairment.reorder_ppm = ppm()?,
                "duplicate" => impairment.duplicate_ppm = ppm()?,
                "corrupt" => impairment.corrupt_ppm = ppm()?,
                "delay" => impairment.delay_ns = delay_ns(value).ok_or_else(bad)?,
                "seed" => seeded.seed = number()?,
                other => return Err(ImpairmentError::Name(other.to_owned())),
            }
        }
        Ok(seeded)
    }
}

/// A delay with a unit, such as `10ms` or `1.5ms 20us`; a number without a unit is milliseconds.
fn delay_ns(text: &str) -> Option<u64> {
    let max = Duration::from_millis(DELAY_MS_MAX);
    let delay = match text.parse() {
        Ok(ms) => Duration::from_millis(ms),
        Err(_) => humantime::parse_duration(text).ok()?,
    };
    (delay <= max).then_some(delay.as_nanos() as u64)
}

/// Counters of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImpairStats {
    /// Frames that went in.
    pub taken: u64,
    /// Lost on purpose.
    pub lost: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// Damaged.
    pub corrupted: u64,
    /// Reordered.
    pub reordered: u64,
    /// Lost because too many waited.
    pub overflowed: u64,
}

struct DelayedFrame<F> {
    frame: F,
    bytes: usize,
    /// Leaves when this number of frames has been taken, or at that time; both if it is only
    /// late.
    after: u64,
    at_ns: u64,
    /// True if it waits for others to overtake it.
    passed: bool,
}

/// One direction of a line, for waiting frames of type `F`.
///
/// For each frame the caller checks if it is [`lost`](Lane::is_lost),
/// [duplicated](Lane::is_doubled) or [damaged](Lane::damage), and if it, and its duplicate,
/// [waits](Lane::wait); frames whose wait is over are [released](Lane::release).
pub struct Lane<F> {
    chances: Chances,
    delay_ns: u64,
    seed: u64,
    direction: u8,
    /// That of the frame that went in last.
    fate: Fate,
    /// A copy of that frame is next.
    copy_is_next: bool,
    /// Source of the places of damage and the numbers of overtaking frames.
    random: Random,
    held: VecDeque<DelayedFrame<F>>,
    held_bytes: usize,
    stats: ImpairStats,
}

/// The delay of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    passed: bool,
}

impl<F> Lane<F> {
    /// Creates a direction, 0 or 1, without waiting frames.
    pub fn new(impairment: Impairment, seed: u64, direction: u8) -> Lane<F> {
        Lane {
            chances: impairment.chances(),
            delay_ns: impairment.delay_ns,
            seed,
            direction,
            fate: Fate::default(),
            copy_is_next: false,
            random: Random::numbered(seed, direction.into()),
            held: VecDeque::new(),
            held_bytes: 0,
            stats: ImpairStats::default(),
        }
    }

    /// Counters so far.
    pub fn stats(&self) -> ImpairStats {
        self.stats
    }

    /// Returns true if frames wait.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }

    /// Counts a frame that goes in, and decides its fate. Returns true if it is lost.
    pub fn is_lost(&mut self) -> bool {
        self.fate = self.chances.fate(self.seed, self.direction, self.stats.taken);
        self.copy_is_next = false;
        self.stats.taken += 1;
        self.stats.lost += u64::from(self.fate.is_lost);
        self.fate.is_lost
    }

    /// Returns true if the frame is to be duplicated; its copy [waits](Lane::wait) first.
    pub fn is_doubled(&mut self) -> bool {
        self.copy_is_next = self.fate.is_doubled;
        self.stats.duplicated += u64::from(self.fate.is_doubled);
        self.fate.is_doubled
    }

    /// Damages the frame if that is its fate.
    pub fn damage(&mut self, frame: &mut [u8]) {
        if self.fate.is_damaged && !frame.is_empty() {
            let at = self.random.below(frame.len());
            frame[at] ^= 1 << self.random.below(8u32);
            self.stats.corrupted += 1;
        }
    }

    /// The delay of the frame, or of its copy; `None` if it passes at once.
    pub fn wait(&mut self) -> Option<Wait> {
        let is_copy = core::mem::take(&mut self.copy_is_next);
        let passed = self.fate.is_late && !is_copy;
        (passed || self.delay_ns > 0).then_some(Wait { passed })
    }

    /// Queues a frame of `bytes` bytes; returns it, counted as lost, if too many wait.
    pub fn hold(&mut self, frame: F, bytes: usize, wait: Wait, now_ns: u64) -> Option<F> {
        if self.held.len() >= HELD_MAX || self.held_bytes + bytes > HELD_BYTES_MAX {
            self.stats.overflowed += 1;
            return Some(frame);
        }
        let passed = wait.passed;
        let mut at_ns = now_ns.saturating_add(self.delay_ns);
        let mut after = self.stats.taken;
        if passed {
            self.stats.reordered += 1;
            after += 1 + self.random.below(PASSED_MAX);
            at_ns = at_ns.saturating_add(PASSED_NS_MAX);
        }
        self.held_bytes += bytes;
        self.held.push_back(DelayedFrame { frame, bytes, after, at_ns, passed });
        None
    }

    /// Releases the frames whose delay is over.
    pub fn release(&mut self, now_ns: u64, mut out: impl FnMut(F)) {
        let mut index = 0;
        while let Some(held) = self.held.get(index) {
            let late = held.at_ns <= now_ns;
            let overtaken = held.passed
                && held.after <= self.stats.taken
                && held.at_ns.saturating_sub(PASSED_NS_MAX) <= now_ns;
            if !late && !overtaken {
                index += 1;
            } else if let Some(held) = self.held.remove(index) {
                self.held_bytes -= held.bytes;
                out(held.frame);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impairments_are_read_and_nonsense_is_refused() {
        let text = "loss=2%,reorder=0.5%,duplicate=1,corrupt=3%,delay=4,seed=7";
        let impairment = Impairment {
            loss_ppm: 20_000,
            reorder_ppm: 5_000,
            duplicate_ppm: 10_000,
            corrupt_ppm: 30_000,
            delay_ns: 4_000_000,
        };
        assert_eq!(text.parse(), Ok(Seeded { impairment, seed: 7 }));
        assert_eq!("".parse(), Ok(Seeded::default()));
        let wrong = ["loss", "loss=x", "loss=101%", "loss=-1%", "loss=NaN", "jitter=3", "seed=1.5"];
        let delays = ["delay=1%", "delay=10001", "delay=11s", "delay=", "delay=10 m s"];
        for wrong in wrong.into_iter().chain(delays) {
            assert!(wrong.parse::<Seeded>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_delay_with_a_unit_is_not_refused() {
        let delay_ns = |text: &str| text.parse::<Seeded>().unwrap().impairment.delay_ns;
        assert_eq!(delay_ns("delay=10ms"), 10_000_000);
        assert_eq!(delay_ns("delay=10"), 10_000_000);
        assert_eq!(delay_ns("delay=250us"), 250_000);
        assert_eq!(delay_ns("loss=1%,delay=10s,seed=1"), 10_000_000_000);
    }

    #[test]
    fn what_waits_has_limits_and_what_is_over_them_is_counted() {
        let late = Impairment { delay_ns: 5, ..Impairment::default() };
        let mut lane = Lane::new(late, 1, 0);
        let send = |lane: &mut Lane<u32>, frame: u32, bytes: usize| {
            assert!(!lane.is_lost() && !lane.is_doubled());
            let wait = lane.wait().unwrap();
            lane.hold(frame, bytes, wait, 0)
        };
        for number in 0..HELD_MAX as u32 {
            assert_eq!(send(&mut lane, number, 1), None);
        }
        assert_eq!(send(&mut lane, 9999, 1), Some(9999));
        let mut came = Vec::new();
        lane.release(4, |frame| came.push(frame));
        assert!(came.is_empty() && lane.holds());
        lane.release(5, |frame| came.push(frame));
        assert!(came.into_iter().eq(0..HELD_MAX as u32) && !lane.holds());
        assert_eq!(send(&mut lane, 1, HELD_BYTES_MAX), None);
        assert_eq!(send(&mut lane, 2, 1), Some(2));
        assert_eq!(lane.stats().overflowed, 2);
    }
}
