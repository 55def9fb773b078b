//! Random numbers for tests: seeded, printed where a case fails, and repeatable.
//!
//! `UNLADE_CASES=10000` runs that many cases, `UNLADE_SEED=…` the one case that failed.

/// SplitMix64.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`; 0 where there is none.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// Says which seed repeats the case, if the case fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with UNLADE_SEED={}", self.0);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text}: not a number")))
}

/// How many cases a random test runs, of which `usual` without further words.
pub(crate) fn count(usual: u64) -> u64 {
    setting("UNLADE_CASES").unwrap_or(usual)
}

/// Runs `case` with one seed after the other.
pub(crate) fn cases(usual: u64, case: impl Fn(&mut Random)) {
    let only = setting("UNLADE_SEED");
    let seeds = only.map_or(0..count(usual), |seed| seed..seed + 1);
    for number in seeds {
        let seed = Seed(number);
        case(&mut Random::new(seed.0.wrapping_mul(0x2545_f491_4f6c_dd1d)));
    }
}
