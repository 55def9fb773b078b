//! The generator.

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random(u64);

/// Difference of two states in sequence.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

/// The output for a state.
fn mix(state: u64) -> u64 {
    let mut mixed = state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

impl Random {
    /// Makes the generator of `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Makes one of many independent generators of `seed`.
    pub fn numbered(seed: u64, number: u64) -> Random {
        let mut outer = Random::new(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
        Random::new(outer.next())
    }

    /// Output number `at` of the generator of `seed`, counted from 1: the same as that of the
    /// `at`-th call of [`Random::next`]. Output 0 precedes the first one.
    pub fn at(seed: u64, at: u64) -> u64 {
        mix(seed.wrapping_add(at.wrapping_mul(GAMMA)))
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "numbers without end are no sequence")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GAMMA);
        mix(self.0)
    }

    /// A number below `limit`, of any integer type of up to 64 bits; 0 if `limit` is 0. The bias
    /// is below 2⁻³² for limits below 2³².
    pub fn below<N: TryInto<u64> + TryFrom<u64>>(&mut self, limit: N) -> N {
        let limit: u64 = limit.try_into().unwrap_or(0);
        let number = if limit == 0 { 0 } else { self.next() % limit };
        N::try_from(number).unwrap_or_else(|_| unreachable!("less than a limit of the same type"))
    }

    /// From 0 to below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True in `part` of `whole` cases.
    ///
    /// # Panics
    /// `whole` is 0.
    pub fn chance(&mut self, part: u64, whole: u64) -> bool {
        self.next() % whole < part
    }

    /// True in `percent` of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.chance(percent, 100)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `all`.
    ///
    /// # Panics
    /// `all` is empty.
    pub fn pick<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }

    /// Fills `bytes` with random values.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// A vector of `count` random bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.fill(&mut bytes);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn it_is_splitmix64() {
        // The output of the authors' reference code for this seed.
        let mut random = Random::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
            4_593_380_528_125_082_431,
            16_408_922_859_458_223_821,
        ];
        assert_eq!([(); 5].map(|()| random.next()), expected);
    }

    #[test]
    fn same_seed_same_bytes() {
        let [a, b, c] = [7, 7, 8].map(|seed| Random::new(seed).bytes(37));
        assert_eq!(a, b);
        assert_ne!(a, c);
        assert_eq!(Random::new(7).bytes(30), a[..30]);
        assert_ne!(Random::numbered(7, 0), Random::numbered(7, 1));
    }

    #[test]
    fn below_keeps_its_bound_in_every_type() {
        let mut random = Random::new(1);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[random.below(seen.len())] += 1;
        }
        assert!(seen.iter().all(|&count| count > 100), "{seen:?}");
        assert!((0..1000).all(|_| random.below(3u8) < 3 && random.below(i32::MAX) >= 0));
        assert_eq!((random.below(0u64), random.below(-5), random.below(1u8)), (0, 0, 0));
    }

    #[test]
    fn chances_match_their_frequency() {
        let mut random = Random::new(2);
        let mut count =
            |is_so: fn(&mut Random) -> bool| (0..10_000).filter(|_| is_so(&mut random)).count();
        assert!((2700..3300).contains(&count(|random| random.percent(30))));
        assert!((60..140).contains(&count(|random| random.once_in(100))));
        assert!((4700..5300).contains(&count(|random| random.unit() < 0.5)));
        assert!((3000..3700).contains(&count(|random| random.pick(&[1, 2, 3]) == 2)));
        assert_eq!(count(|random| random.chance(0, 1000)), 0);
        assert_eq!(count(|random| (0.0..1.0).contains(&random.unit())), 10_000);
    }
}
