//! The most recent samples of a quantity.

/// Number of samples that are kept.
const KEPT: usize = 9;

/// A ring of samples. Quantiles of it are robust against a thread that was preempted during a
/// sample.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent {
    samples: [f32; KEPT],
    /// Number of samples so far, at most 255.
    count: u8,
    next: u8,
}

impl Recent {
    pub fn add(&mut self, sample: f32) {
        if !sample.is_finite() {
            return;
        }
        self.samples[usize::from(self.next)] = sample.max(0.0);
        self.next = (self.next + 1) % KEPT as u8;
        self.count = self.count.saturating_add(1);
    }

    /// Number of samples so far, at most 255.
    pub fn count(&self) -> u8 {
        self.count
    }

    fn kept(&self) -> usize {
        usize::from(self.count).min(KEPT)
    }

    /// The sample below which about `percent` percent of the others are; none without samples.
    pub fn quantile(&self, percent: usize) -> Option<f32> {
        let mut sorted = self.samples;
        let sorted = &mut sorted[..self.kept()];
        sorted.sort_unstable_by(f32::total_cmp);
        sorted.get((sorted.len().saturating_sub(1)) * percent / 100).copied()
    }

    /// The middle sample; none without samples.
    pub fn median(&self) -> Option<f32> {
        self.quantile(50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_last_samples() {
        let mut recent = Recent::default();
        assert_eq!(recent.median(), None);
        recent.add(5.0);
        assert_eq!((recent.median(), recent.quantile(20)), (Some(5.0), Some(5.0)));
        (0..KEPT).for_each(|sample| recent.add(sample as f32));
        assert_eq!((recent.median(), recent.quantile(20)), (Some(4.0), Some(1.0)));
        // An outlier and a defective clock change nothing.
        [1e9, f32::NAN, -1.0].into_iter().for_each(|sample| recent.add(sample));
        assert_eq!(recent.median(), Some(5.0));
        assert_eq!(recent.count(), 3 + KEPT as u8);
        (0..1000).for_each(|_| recent.add(7.0));
        assert_eq!((recent.count(), recent.quantile(100)), (255, Some(7.0)));
    }
}
