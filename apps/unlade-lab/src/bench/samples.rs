//! Samples of nanoseconds, and the clock's own share of them.

use std::time::Instant;

/// The mean of `samples` without the extreme ones; 0 of none. It is finer than the clock, which ticks
/// every 10 ns on many machines: most samples of a short time are one of two numbers of ticks, and the
/// share of each tells the time. So of many samples a sixteenth is left out at each end, of few ones a
/// quarter.
pub fn trimmed_mean(samples: &mut [f64]) -> f64 {
    const MANY: usize = 64;
    samples.sort_unstable_by(f64::total_cmp);
    let cut = samples.len() / if samples.len() < MANY { 4 } else { 16 };
    let middle = &samples[cut..samples.len() - cut];
    if middle.is_empty() { 0.0 } else { middle.iter().sum::<f64>() / middle.len() as f64 }
}

/// Nanoseconds between two times.
pub fn ns(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_nanos() as f64
}

/// Time between two consecutive readings of the clock.
pub fn clock_ns() -> f64 {
    let mut samples: Vec<f64> = (0..2001)
        .map(|_| {
            let from = Instant::now();
            ns(from, Instant::now())
        })
        .collect();
    trimmed_mean(&mut samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extreme_samples_are_left_out() {
        assert_eq!(trimmed_mean(&mut []), 0.0);
        assert_eq!(trimmed_mean(&mut [7.0]), 7.0);
        assert_eq!(trimmed_mean(&mut [900.0, 1.0, 4.0, 2.0, 3.0, 3.0, 3.0, 0.0]), 2.75);
        // 37 ns on a clock that ticks every 10 ns, and some interruptions.
        let mut ticks = [40.0; 70 + 2];
        ticks[..30].fill(30.0);
        ticks[70..].fill(1e6);
        assert!((trimmed_mean(&mut ticks) - 36.0).abs() < 1.5);
        assert!(clock_ns() < 1e6);
    }
}
