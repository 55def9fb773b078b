//! Random tests that print how to repeat a failed case.

use std::ops::Range;
use std::time::UNIX_EPOCH;

use crate::Random;

/// Prints the seed that repeats the case, if the case fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with UNLADE_SEED={}", self.0);
        }
    }
}

/// The number in an environment variable.
///
/// # Panics
/// It is set, but not a number.
pub fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// The number of cases of a random test: `UNLADE_CASES`, or `usual`.
///
/// # Panics
/// `UNLADE_CASES` is not a number.
pub fn count(usual: u64) -> u64 {
    setting("UNLADE_CASES").unwrap_or(usual)
}

/// The seed of a test that is one long run: `UNLADE_SEED`, or the time. It is printed.
///
/// # Panics
/// `UNLADE_SEED` is not a number.
pub fn seed() -> u64 {
    let time = || UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
    let seed = setting("UNLADE_SEED").unwrap_or_else(time);
    println!("repeat with UNLADE_SEED={seed}");
    seed
}

/// The seeds of a random test: `UNLADE_SEED` alone, or [`count`]`(usual)` of them.
///
/// # Panics
/// One of the two variables is not a number.
pub fn seeds(usual: u64) -> Range<u64> {
    let only = setting("UNLADE_SEED");
    only.map_or_else(|| 0..count(usual), |seed| seed..seed.saturating_add(1))
}

/// Runs `case` with one of [`seeds`]`(usual)` after the other. The seed of a case that panics is
/// printed.
///
/// # Panics
/// A case panics, or one of the two variables is not a number.
pub fn cases(usual: u64, case: impl FnMut(&mut Random)) {
    run(seeds(usual), case);
}

fn run(seeds: Range<u64>, mut case: impl FnMut(&mut Random)) {
    for number in seeds {
        let seed = Seed(number);
        // Neighbouring seeds would have overlapping sequences.
        case(&mut Random::new(seed.0.wrapping_mul(0x2545_f491_4f6c_dd1d)));
    }
}

#[cfg(test)]
mod tests {
    use super::run;

    #[test]
    fn a_seed_repeats_its_case() {
        let mut all = Vec::new();
        run(0..20, |random| all.push(random.next()));
        let mut third = None;
        run(3..4, |random| third = Some(random.next()));
        assert_eq!((all.len(), third), (20, Some(all[3])));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 20);
    }
}
