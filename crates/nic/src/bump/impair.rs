//! Frames that are lost, come late or come twice, one direction of a wire, repeatable by a seed.

use std::collections::VecDeque;
use std::str::FromStr;

use random::Random;
use thiserror::Error;

/// Most frames that are held back; more go on at once.
pub const HELD_MAX: usize = 64;
/// Most octets of such a frame.
const HELD_FRAME_BYTES_MAX: usize = 10_000;
/// A frame that is held back lets so many others pass, 1 to this.
const PASSED_MAX: u64 = 8;
/// It goes on after so long at the latest.
const HELD_MS: u64 = 3;
/// Percentages are counted in parts of so many.
const PARTS: u64 = 1_000_000;

/// How often what happens, in parts of a million.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Impairment {
    /// A frame is lost.
    pub loss: u32,
    /// A frame is held back while others pass.
    pub reorder: u32,
    /// A frame comes twice.
    pub duplicate: u32,
    /// Repeats a run.
    pub seed: u64,
}

/// What is not an impairment.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ImpairmentError {
    /// No `name=value`.
    #[error("{0:?} is not NAME=VALUE; for example loss=2%,reorder=2%,duplicate=1%,seed=7")]
    Shape(String),
    /// An unknown name.
    #[error("{0:?} is none of loss, reorder, duplicate, seed")]
    Name(String),
    /// No percentage, or number.
    #[error("{0}: {1:?} is not a percentage from 0% to 100%, or a number for the seed")]
    Value(String, String),
}

impl FromStr for Impairment {
    type Err = ImpairmentError;

    fn from_str(text: &str) -> Result<Impairment, ImpairmentError> {
        let mut impairment = Impairment::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let (name, value) =
                part.split_once('=').ok_or_else(|| ImpairmentError::Shape(part.to_owned()))?;
            let bad = || ImpairmentError::Value(name.to_owned(), value.to_owned());
            let parts = || {
                let percent: f64 = value.trim_end_matches('%').parse().map_err(|_| bad())?;
                let sensible = (0.0..=100.0).contains(&percent);
                sensible.then_some((percent * 10_000.0).round() as u32).ok_or_else(bad)
            };
            match name {
                "loss" => impairment.loss = parts()?,
                "reorder" => impairment.reorder = parts()?,
                "duplicate" => impairment.duplicate = parts()?,
                "seed" => impairment.seed = value.parse().map_err(|_| bad())?,
                other => return Err(ImpairmentError::Name(other.to_owned())),
            }
        }
        Ok(impairment)
    }
}

/// A frame that waits.
struct Held {
    frame: Vec<u8>,
    /// So many others pass first.
    passes: u64,
    due_ms: u64,
}

/// One direction of a wire.
pub struct Impaired {
    impairment: Impairment,
    random: Random,
    held: VecDeque<Held>,
    /// Frames that were lost.
    pub lost: u64,
    /// Frames that others have passed.
    pub reordered: u64,
    /// Frames that came twice.
    pub duplicated: u64,
}

impl Impaired {
    /// The direction with this number.
    pub fn new(impairment: Impairment, direction: u64) -> Impaired {
        let seed = impairment.seed ^ direction.wrapping_mul(0xd134_2543_de82_ef95);
        let random = Random::new(seed);
        Impaired { impairment, random, held: VecDeque::new(), lost: 0, reordered: 0, duplicated: 0 }
    }

    fn happens(&mut self, parts: u32) -> bool {
        self.random.chance(u64::from(parts), PARTS)
    }

    /// A frame enters; those that leave go to `out`.
    pub fn pass(&mut self, now_ms: u64, frame: &mut [u8], mut out: impl FnMut(&mut [u8])) {
        let Impairment { loss, reorder, duplicate, .. } = self.impairment;
        if self.happens(loss) {
            self.lost += 1;
        } else if self.happens(reorder)
            && self.held.len() < HELD_MAX
            && frame.len() <= HELD_FRAME_BYTES_MAX
        {
            self.reordered += 1;
            let passes = 1 + self.random.next() % PASSED_MAX;
            let due_ms = now_ms + HELD_MS;
            self.held.push_back(Held { frame: frame.to_vec(), passes, due_ms });
            return;
        } else {
            if self.happens(duplicate) && frame.len() <= HELD_FRAME_BYTES_MAX {
                self.duplicated += 1;
                let mut twin = frame.to_vec();
                out(frame);
                out(&mut twin);
            } else {
                out(frame);
            }
            self.held.iter_mut().for_each(|held| held.passes = held.passes.saturating_sub(1));
        }
        self.release(now_ms, out);
    }

    /// Lets frames go that have waited for long enough.
    pub fn release(&mut self, now_ms: u64, mut out: impl FnMut(&mut [u8])) {
        let mut index = 0;
        while let Some(held) = self.held.get(index) {
            if held.passes > 0 && held.due_ms > now_ms {
                index += 1;
            } else if let Some(mut held) = self.held.remove(index) {
                out(&mut held.frame);
            }
        }
    }

    /// True where frames wait.
    pub fn holds(&self) -> bool {
        !self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::{Impaired, Impairment};

    #[test]
    fn impairments_are_read_and_nonsense_is_refused() {
        let read: Impairment = "loss=2%,reorder=0.5%,duplicate=1,seed=7".parse().unwrap();
        let expected = Impairment { loss: 20_000, reorder: 5_000, duplicate: 10_000, seed: 7 };
        assert_eq!(read, expected);
        assert_eq!("".parse(), Ok(Impairment::default()));
        for wrong in ["loss", "loss=x", "loss=101%", "loss=-1%", "delay=3", "seed=1.5"] {
            assert!(wrong.parse::<Impairment>().is_err(), "{wrong}");
        }
    }

    fn run(text: &str) -> (Vec<u32>, Impaired) {
        let mut wire = Impaired::new(text.parse().unwrap(), 1);
        let mut out = Vec::new();
        let mut take = |frame: &mut [u8]| {
            out.push(u32::from_be_bytes(frame.try_into().unwrap()));
        };
        for number in 0..20_000u32 {
            wire.pass(0, &mut number.to_be_bytes(), &mut take);
        }
        wire.release(1000, &mut take);
        (out, wire)
    }

    #[test]
    fn every_frame_is_accounted_for_and_a_seed_repeats_a_run() {
        let (out, wire) = run("loss=2%,reorder=3%,duplicate=1%,seed=9");
        assert_eq!(out.len() as u64, 20_000 - wire.lost + wire.duplicated);
        assert!((300..500).contains(&wire.lost), "{}", wire.lost);
        assert!((450..750).contains(&wire.reordered), "{}", wire.reordered);
        assert!((120..280).contains(&wire.duplicated), "{}", wire.duplicated);
        let late = out.windows(2).filter(|pair| pair[1] < pair[0]).count() as u64;
        assert!(late > wire.reordered / 2);
        assert_eq!(run("loss=2%,reorder=3%,duplicate=1%,seed=9").0, out);
        assert_ne!(run("loss=2%,reorder=3%,duplicate=1%,seed=8").0, out);
    }

    #[test]
    fn without_impairment_nothing_changes() {
        assert!(run("").0.into_iter().eq(0..20_000));
    }
}
