//! Samples of nanoseconds, and the clock's own share of them.

use std::time::Instant;

/// The mean of the middle half of `samples`; 0 of none. As deaf to outliers as the median, and
/// finer than the clock, which ticks every 10 ns on many machines.
pub fn middle_mean(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    let quarter = samples.len() / 4;
    let middle = &samples[quarter..samples.len() - quarter];
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
    middle_mean(&mut samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_samples() {
        assert_eq!(middle_mean(&mut []), 0.0);
        assert_eq!(middle_mean(&mut [7.0]), 7.0);
        assert_eq!(middle_mean(&mut [900.0, 1.0, 4.0, 2.0, 3.0, 3.0, 3.0, 0.0]), 2.75);
        assert!(clock_ns() < 1e6);
    }
}
