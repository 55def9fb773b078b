//! Samples of nanoseconds, and the clock's own share of them.

use std::time::Instant;

/// The middle of `samples`; 0 of none.
pub fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    match samples.len() {
        0 => 0.0,
        n if n % 2 == 1 => samples[n / 2],
        n => (samples[n / 2 - 1] + samples[n / 2]) / 2.0,
    }
}

/// Nanoseconds between two times.
pub fn ns(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_nanos() as f64
}

/// What two readings of the clock, one after the other, are apart.
pub fn clock_ns() -> f64 {
    let mut samples: Vec<f64> = (0..2001)
        .map(|_| {
            let from = Instant::now();
            ns(from, Instant::now())
        })
        .collect();
    median(&mut samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_samples() {
        assert_eq!(median(&mut []), 0.0);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(clock_ns() < 1e6);
    }
}
