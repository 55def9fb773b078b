//! The last seconds of a function: the rate, the errors and the durations of its invocations.
//!
//! Sans-IO: the time is an input.

use std::time::{Duration, Instant};

/// The period of a part; the last two parts count.
pub const PART: Duration = Duration::from_secs(10);
/// Parts of a power of two: a quantile is at most an eighth above the true one.
const STEPS: u64 = 8;
/// Durations of 2^31 us (36 minutes) and more are counted as that.
const BITS_MAX: u64 = 31;
const BUCKETS: usize = (STEPS * BITS_MAX) as usize;

/// A summary of the last seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// Invocations in a second.
    pub rate_per_s: f64,
    /// Failed invocations in a second.
    pub errors_per_s: f64,
    /// The median of the durations, in microseconds; `None` without an invocation.
    pub p50_us: Option<u64>,
    /// The 99th of 100 parts, in microseconds.
    pub p99_us: Option<u64>,
}

#[derive(Clone, Debug)]
struct Part {
    counts: Box<[u32]>,
    errors: u64,
}

impl Default for Part {
    fn default() -> Part {
        Part { counts: vec![0; BUCKETS].into(), errors: 0 }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub struct Recent {
    /// The begin of everything, which limits the time that the rates are of.
    begin: Instant,
    /// The begin of the current part.
    since: Instant,
    now: Part,
    before: Part,
}

fn bucket(duration: Duration) -> usize {
    let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min((1 << BITS_MAX) - 1);
    match us.checked_ilog2() {
        Some(bits) if bits >= 3 => {
            let step = (us >> (bits - 3)) - STEPS;
            (u64::from(bits) * STEPS + step) as usize
        }
        _ => us as usize,
    }
}

/// The longest duration of a bucket, in microseconds.
fn longest_us(bucket: usize) -> u64 {
    let (bits, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
    match bits.checked_sub(3) {
        Some(shift) => ((STEPS + step + 1) << shift) - 1,
        None => bucket as u64,
    }
}

impl Recent {
    /// Without an invocation.
    pub fn new(now: Instant) -> Recent {
        Recent { begin: now, since: now, now: Part::default(), before: Part::default() }
    }

    /// Counts an invocation.
    pub fn add(&mut self, duration: Duration, is_error: bool, now: Instant) {
        self.pass(now);
        self.now.counts[bucket(duration)] += 1;
        self.now.errors += u64::from(is_error);
    }

    /// A summary of the current part and the one before.
    pub fn summary(&mut self, now: Instant) -> Summary {
        self.pass(now);
        let counts: Vec<u64> = self.now.counts.iter().zip(&*self.before.counts).map(sum).collect();
        let total: u64 = counts.iter().sum();
        let of = (now - self.since) + PART.min(self.since - self.begin);
        let of_s = of.as_secs_f64().max(1.0);
        let quantile = |percent: u64| {
            let rank = (total * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let found = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            found.map(longest_us)
        };
        Summary {
            rate_per_s: total as f64 / of_s,
            errors_per_s: (self.now.errors + self.before.errors) as f64 / of_s,
            p50_us: quantile(50),
            p99_us: quantile(99),
        }
    }

    fn pass(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.since).as_nanos() / PART.as_nanos();
        if passed == 0 {
            return;
        }
        let last = std::mem::take(&mut self.now);
        self.before = if passed == 1 { last } else { Part::default() };
        self.since += PART * u32::try_from(passed).unwrap_or(u32::MAX);
    }
}

fn sum((a, b): (&u32, &u32)) -> u64 {
    u64::from(*a) + u64::from(*b)
}

#[cfg(test)]
mod tests {
    use unlade_testkit::cases;

    use super::*;

    #[test]
    fn buckets_follow_each_other() {
        for us in (0..5000).chain([1 << 20, (1 << 31) - 1]) {
            let own = bucket(Duration::from_micros(us));
            assert!(own < BUCKETS && longest_us(own) >= us, "{us}");
            assert!(bucket(Duration::from_micros(us + 1)) >= own);
            assert!(longest_us(own) <= us + us / 8, "{us}: {}", longest_us(own));
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
    }

    #[test]
    fn the_last_seconds_are_those_of_a_slow_oracle() {
        cases(200, |random| {
            let begin = Instant::now();
            let (mut recent, mut all, mut at_ms) = (Recent::new(begin), Vec::new(), 0);
            for _ in 0..random.below(80) {
                at_ms += random.below(3000);
                let (us, is_error) = (1 + random.below(1 << 22), random.below(4) == 0);
                let now = begin + Duration::from_millis(at_ms);
                recent.add(Duration::from_micros(us), is_error, now);
                all.push((at_ms, us, is_error));
            }
            at_ms += random.below(30_000);
            let said = recent.summary(begin + Duration::from_millis(at_ms));
            // Whole parts: the current one, and the one before.
            let part_ms = PART.as_millis() as u64;
            let from_ms = (at_ms / part_ms).saturating_sub(1) * part_ms;
            let mut due: Vec<u64> =
                all.iter().filter(|(at, ..)| *at >= from_ms).map(|(_, us, _)| *us).collect();
            due.sort_unstable();
            let of_s = ((at_ms - from_ms) as f64 / 1e3).max(1.0);
            assert!((said.rate_per_s - due.len() as f64 / of_s).abs() < 1e-9);
            let errors = all.iter().filter(|(at, _, error)| *at >= from_ms && *error).count();
            assert!((said.errors_per_s - errors as f64 / of_s).abs() < 1e-9);
            for (found, percent) in [(said.p50_us, 50), (said.p99_us, 99)] {
                let rank = (due.len() * percent).div_ceil(100);
                let Some(exact) = rank.checked_sub(1).map(|at| due[at]) else {
                    assert_eq!(found, None);
                    continue;
                };
                let found = found.unwrap();
                assert!(found >= exact && found <= exact + exact / 8, "{found} {exact}");
            }
        });
    }
}
