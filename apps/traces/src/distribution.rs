//! Random distributions from a seeded generator.

use std::f64::consts::TAU;

use unlade_testkit::Random;

/// Mean above which a Poisson distribution is approximated by a normal one.
const POISSON_EXACT_MAX: f64 = 30.0;

/// Returns a standard normal number (Box and Muller, 1958).
pub fn normal(random: &mut Random) -> f64 {
    // Above 0, so the logarithm is finite.
    let radius = (-2.0 * (1.0 - random.unit()).ln()).sqrt();
    radius * (TAU * random.unit()).cos()
}

/// Log-normal distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogNormal {
    /// Mean of the logarithm.
    pub mean: f64,
    /// Standard deviation of the logarithm.
    pub deviation: f64,
}

impl LogNormal {
    /// Returns a random number of the distribution.
    pub fn draw(self, random: &mut Random) -> f64 {
        self.at(normal(random))
    }

    /// Returns the value that is `deviations` standard deviations from the median.
    pub fn at(self, deviations: f64) -> f64 {
        (self.mean + self.deviation * deviations).exp()
    }

    /// Returns the mean.
    pub fn average(self) -> f64 {
        (self.mean + self.deviation * self.deviation / 2.0).exp()
    }
}

/// Returns a Poisson-distributed number with this mean.
pub fn poisson(random: &mut Random, mean: f64) -> u32 {
    if mean > POISSON_EXACT_MAX {
        return (mean + mean.sqrt() * normal(random)).round().max(0.0) as u32;
    }
    let floor = (-mean).exp();
    let mut product = random.unit();
    let mut count = 0;
    while product > floor {
        product *= random.unit();
        count += 1;
    }
    count
}

/// Returns the shares of `count` ranks, proportional to the rank to the power of `-exponent`;
/// their sum is 1.
pub fn zipf(count: usize, exponent: f64) -> Vec<f64> {
    let weights: Vec<f64> = (1..=count).map(|rank| (rank as f64).powf(-exponent)).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / sum).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn average(count: usize, mut draw: impl FnMut() -> f64) -> f64 {
        (0..count).map(|_| draw()).sum::<f64>() / count as f64
    }

    #[test]
    fn averages_are_those_of_the_distributions() {
        let mut random = Random::new(5);
        let near = |found: f64, due: f64| (found - due).abs() < 0.05 * due.max(1.0);
        assert!(near(average(20_000, || normal(&mut random)), 0.0));
        assert!(near(average(20_000, || normal(&mut random).powi(2)), 1.0));
        for mean in [0.0, 0.3, 7.0, 29.0, 400.0] {
            let found = average(20_000, || f64::from(poisson(&mut random, mean)));
            assert!(near(found, mean), "{mean}: {found}");
        }
        let spread = LogNormal { mean: 1.0, deviation: 0.5 };
        assert!(near(average(20_000, || spread.draw(&mut random)), spread.average()));
        assert!(near(spread.at(0.0), 1f64.exp()));
    }

    #[test]
    fn shares_fall_and_add_up() {
        let shares = zipf(100, 1.1);
        assert!(shares.windows(2).all(|pair| pair[0] > pair[1]));
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((shares[0] / shares[1] - 2f64.powf(1.1)).abs() < 1e-9);
        assert!(zipf(0, 1.0).is_empty());
    }
}
