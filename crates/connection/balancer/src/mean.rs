//! Means that forget, for the estimates of `auto`.

/// A mean of all observations while there are few, then of the last `window`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mean {
    pub value: f64,
    pub count: f64,
}

impl Mean {
    /// Creates a mean with a guess, used until there is an observation.
    pub(crate) const fn prior(value: f64) -> Mean {
        Mean { value, count: 0.0 }
    }

    /// Adds an observation, one of the last `window`.
    pub(crate) fn learn(&mut self, observed: f64, window: f64) {
        self.count = (self.count + 1.0).min(window);
        self.value += (observed - self.value) / self.count;
    }

    /// Returns true if there is an observation.
    pub(crate) fn known(&self) -> bool {
        self.count > 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_goes_with_the_first_observation_and_old_ones_with_time() {
        let mut mean = Mean::prior(100.0);
        assert!(!mean.known());
        mean.learn(4.0, 8.0);
        assert_eq!((mean.value, mean.known()), (4.0, true));
        (0..100).for_each(|_| mean.learn(20.0, 8.0));
        assert!((mean.value - 20.0).abs() < 0.01, "{mean:?}");
    }
}
