//! The model of a bad line: the fate of its n-th packet, as a pure function of a seed. The programs
//! of `crates/connection/steering/bpf/impair.bpf.c` compute the same function in the kernel.

use crate::Random;

/// Denominator of probabilities in millionths.
pub const WHOLE_PPM: u32 = 1_000_000;
/// Numbers that are reserved for the decisions about one packet.
const DECISIONS: u64 = 4;

/// A probability, as a threshold of uniform 32-bit numbers: those below it are hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chance(u64);

impl Chance {
    /// The probability `share`; below 0 and NaN are 0, above 1 is 1.
    pub fn of(share: f64) -> Chance {
        // Casts saturate, and convert NaN to 0.
        Chance((share.clamp(0.0, 1.0) * 4_294_967_296.0).round() as u64)
    }

    /// The probability in millionths.
    pub fn ppm(ppm: u32) -> Chance {
        Chance::of(f64::from(ppm) / f64::from(WHOLE_PPM))
    }

    /// The threshold, from 0 to 2^32.
    pub fn threshold(self) -> u64 {
        self.0
    }

    fn hits(self, number: u32) -> bool {
        u64::from(number) < self.0
    }
}

/// The impairments of one direction of a line, each decided by itself for each packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chances {
    /// A packet is lost.
    pub loss: Chance,
    /// A packet comes twice.
    pub duplicate: Chance,
    /// A packet is late, and others overtake it. The copy of a packet that comes twice is not.
    pub late: Chance,
    /// A packet is damaged.
    pub damage: Chance,
}

/// The decisions about one packet. Nothing else happens to a packet that is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// It is lost.
    pub is_lost: bool,
    /// It comes twice.
    pub is_doubled: bool,
    /// It is late.
    pub is_late: bool,
    /// It is damaged.
    pub is_damaged: bool,
}

impl Chances {
    /// The fate of packet `number`, counted from 0, of `direction` (0 or 1).
    pub fn fate(&self, seed: u64, direction: u8, number: u64) -> Fate {
        let number = number.wrapping_mul(2).wrapping_add(direction.into());
        let draw = |decision| draw(seed, number.wrapping_mul(DECISIONS).wrapping_add(decision));
        match self.loss.hits(draw(0)) {
            true => Fate { is_lost: true, ..Fate::default() },
            false => Fate {
                is_lost: false,
                is_doubled: self.duplicate.hits(draw(1)),
                is_late: self.late.hits(draw(2)),
                is_damaged: self.damage.hits(draw(3)),
            },
        }
    }
}

/// The upper half of output `at` of the generator that `seed` starts; 0 is before the first.
fn draw(seed: u64, at: u64) -> u32 {
    (Random::at(seed, at) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_of_2_to_the_32() {
        assert_eq!(Chance::of(f64::NAN).threshold(), 0);
        assert_eq!(Chance::of(0.25).threshold(), 1 << 30);
        assert_eq!(Chance::ppm(250_000), Chance::of(0.25));
        // Every 32-bit number is below this threshold.
        assert_eq!(Chance::of(2.0).threshold(), 1 << 32);
        assert!(Chance::ppm(WHOLE_PPM).hits(u32::MAX) && !Chance::default().hits(0));
    }

    #[test]
    fn draws_are_the_outputs_of_the_generator() {
        let mut random = Random::new(9);
        for at in 1..100 {
            assert_eq!(draw(9, at), (random.next() >> 32) as u32);
        }
    }

    #[test]
    fn a_fate_depends_on_the_seed_the_direction_and_the_number_only() {
        let all = |ppm| {
            let chance = Chance::ppm(ppm);
            Chances { loss: chance, duplicate: chance, late: chance, damage: chance }
        };
        let run = |seed, direction| -> Vec<Fate> {
            (0..10_000).map(|number| all(100_000).fate(seed, direction, number)).collect()
        };
        assert_eq!(run(7, 0), run(7, 0));
        assert!(run(7, 0) != run(7, 1) && run(7, 0) != run(8, 0));
        let fates = run(7, 0);
        let count = |is: fn(&Fate) -> bool| fates.iter().filter(|fate| is(fate)).count();
        for (found, due) in [
            (count(|fate| fate.is_lost), 1000),
            (count(|fate| fate.is_doubled), 900),
            (count(|fate| fate.is_late), 900),
            (count(|fate| fate.is_damaged), 900),
            // The decisions are independent.
            (count(|fate| fate.is_doubled && fate.is_late), 90),
        ] {
            assert!((due * 7 / 10..due * 13 / 10).contains(&found), "{found} instead of {due}");
        }
        assert!(fates.iter().all(|fate| !fate.is_lost || *fate == all(WHOLE_PPM).fate(0, 0, 0)));
        assert!((0..100).all(|number| all(0).fate(7, 0, number) == Fate::default()));
    }
}
