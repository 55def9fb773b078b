//! Comparison of two ways of the same work, by pairs of samples; no clock, no I/O.
//!
//! A contest takes [`PAIRS`] pairs, in the order old, new, new, old. The new way wins if the median
//! of the ratios new to old is at most a limit. A rest follows, in which the winner is used. A
//! result that stays the same doubles the rest.

/// Number of pairs of samples in a contest.
pub const PAIRS: usize = 15;
/// Number of times that a rest may double.
const DOUBLINGS_MAX: u32 = 5;

/// One of the two ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The way of the program without the library.
    Old,
    /// The way of the library.
    New,
}

/// State of the comparison.
#[derive(Clone, Copy, Debug)]
pub struct Contest {
    costs: [[u64; PAIRS]; 2],
    samples: usize,
    winner: Way,
    rest: u64,
    doublings: u32,
    won: u32,
    held: u32,
    permille: u64,
}

impl Default for Contest {
    fn default() -> Self {
        Contest::new()
    }
}

impl Contest {
    /// A contest without samples; the old way is used outside of it.
    pub const fn new() -> Contest {
        Contest {
            costs: [[0; PAIRS]; 2],
            samples: 0,
            winner: Way::Old,
            rest: 0,
            doublings: 0,
            won: 0,
            held: 0,
            permille: 0,
        }
    }

    /// The way that has won last.
    pub fn winner(&self) -> Way {
        self.winner
    }

    /// Numbers of finished contests, and of those which the new way has won.
    pub fn results(&self) -> (u32, u32) {
        (self.held, self.won)
    }

    /// Median ratio, new to old in 1/1000, of the last contest; 0 before the first.
    pub fn permille(&self) -> u64 {
        self.permille
    }

    /// True between two contests.
    pub fn rests(&self) -> bool {
        self.rest > 0
    }

    /// Counts `units` of work in a rest.
    pub fn pass(&mut self, units: u64) {
        self.rest = self.rest.saturating_sub(units);
    }

    /// The way of the next sample.
    pub fn turn(&self) -> Way {
        let swapped = (self.samples / 2) % 2 == 1;
        match self.samples.is_multiple_of(2) != swapped {
            true => Way::Old,
            false => Way::New,
        }
    }

    /// Takes the cost of a sample of [`Contest::turn`]. The last one decides: `limit_permille` is the
    /// highest median ratio with which the new way wins, `rest` the first rest in units of work.
    /// Returns the winner of a contest that ends with this sample.
    pub fn record(&mut self, cost: u64, limit_permille: u64, rest: u64) -> Option<Way> {
        let way = self.turn();
        self.costs[way as usize][self.samples / 2] = cost;
        self.samples += 1;
        if self.samples < 2 * PAIRS {
            return None;
        }
        self.samples = 0;
        self.permille = self.median_permille();
        let winner = if self.permille <= limit_permille { Way::New } else { Way::Old };
        let is_first = self.held == 0;
        self.doublings = match !is_first && winner == self.winner {
            true => (self.doublings + 1).min(DOUBLINGS_MAX),
            false => 0,
        };
        self.held = self.held.saturating_add(1);
        self.won = self.won.saturating_add(u32::from(winner == Way::New));
        self.winner = winner;
        self.rest = rest.saturating_mul(1 << self.doublings);
        Some(winner)
    }

    fn median_permille(&self) -> u64 {
        let mut ratios = [0; PAIRS];
        for (pair, ratio) in ratios.iter_mut().enumerate() {
            let (old, new) = (self.costs[0][pair], self.costs[1][pair]);
            *ratio = new.saturating_mul(1000) / old.max(1);
        }
        ratios.sort_unstable();
        ratios[PAIRS / 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(contest: &mut Contest, cost: impl Fn(Way, usize) -> u64) -> Way {
        for sample in 0.. {
            if let Some(winner) = contest.record(cost(contest.turn(), sample), 970, 100) {
                return winner;
            }
        }
        unreachable!()
    }

    #[test]
    fn the_cheaper_way_wins_in_spite_of_outliers() {
        let mut contest = Contest::new();
        let noisy = |way, sample: usize| match (way, sample % 5) {
            (_, 4) => 90_000,
            (Way::Old, _) => 1000,
            (Way::New, _) => 900,
        };
        assert_eq!(hold(&mut contest, noisy), Way::New);
        assert!(contest.rests());
        assert_eq!((contest.results(), contest.permille()), ((1, 1), 900));
    }

    #[test]
    fn a_gain_below_the_limit_is_no_gain() {
        let cost = |way, _| if way == Way::Old { 1000 } else { 980 };
        assert_eq!(hold(&mut Contest::new(), cost), Way::Old);
        assert_eq!(hold(&mut Contest::new(), |_, _| 0), Way::New, "no cost at all is no loss");
    }

    #[test]
    fn drift_favours_neither_way() {
        let drift = |_, sample: usize| 1000 + 40 * sample as u64;
        assert_eq!(hold(&mut Contest::new(), drift), Way::Old);
    }

    #[test]
    fn rests_double_while_the_result_stays() {
        let mut contest = Contest::new();
        let worse = |way, _| if way == Way::Old { 1000 } else { 1100 };
        let mut rests = Vec::new();
        for _ in 0..8 {
            hold(&mut contest, worse);
            let mut units = 0;
            while contest.rests() {
                contest.pass(1);
                units += 1;
            }
            rests.push(units);
        }
        assert_eq!(rests, [100, 200, 400, 800, 1600, 3200, 3200, 3200]);
        hold(&mut contest, |way, _| if way == Way::Old { 1000 } else { 500 });
        contest.pass(99);
        assert!(contest.rests());
        contest.pass(1);
        assert!(!contest.rests());
        assert_eq!(contest.winner(), Way::New);
    }
}
