//! The most recent samples of a quantity.

/// Number of samples that are kept.
const KEPT: usize = 9;
/// Number of words of [`Recent::to_words`].
pub const RECENT_WORDS: usize = KEPT + 1;

/// A ring of samples. Quantiles of it are robust against a thread that was preempted during a
/// sample.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Recent {
    samples: [f32; KEPT],
    /// Number of samples so far, at most 255.
    count: u8,
    next: u8,
}

impl Recent {
    /// Adds a sample. One that is not finite is ignored, a negative one counts as 0.
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

    /// Packs the samples, for a reader elsewhere.
    pub fn to_words(&self) -> [u32; RECENT_WORDS] {
        let mut words = [0; RECENT_WORDS];
        for (word, sample) in words.iter_mut().zip(self.samples) {
            *word = sample.to_bits();
        }
        words[KEPT] = u32::from(self.count) | u32::from(self.next) << 8;
        words
    }

    /// Unpacks samples; `None` if no [`Recent::to_words`] gives these words.
    pub fn from_words(words: &[u32; RECENT_WORDS]) -> Option<Recent> {
        let mut recent = Recent::default();
        for (sample, word) in recent.samples.iter_mut().zip(words) {
            *sample = Some(f32::from_bits(*word)).filter(|it| it.is_finite() && *it >= 0.0)?;
        }
        let [count, next, 0, 0] = words[KEPT].to_le_bytes() else { return None };
        (recent.count, recent.next) = (count, next);
        // Below 255 samples, the count says where the next one goes.
        let is_counted = count == u8::MAX || next == count % KEPT as u8;
        (usize::from(next) < KEPT && is_counted).then_some(recent)
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

    #[test]
    fn words_are_unpacked_as_they_were_packed() {
        let mut recent = Recent::default();
        for sample in 0..300 {
            assert_eq!(Recent::from_words(&recent.to_words()), Some(recent));
            recent.add(sample as f32);
        }
        let changed = |at: usize, word: u32| {
            let mut words = recent.to_words();
            words[at] = word;
            Recent::from_words(&words)
        };
        for bad in [f32::NAN, f32::INFINITY, -1.0] {
            assert_eq!(changed(3, bad.to_bits()), None);
        }
        assert_eq!((changed(KEPT, 9 << 8 | 255), changed(KEPT, 1 << 8 | 3)), (None, None));
        assert_eq!(changed(KEPT, 1 << 16), None);
    }
}
