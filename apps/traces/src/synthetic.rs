//! Synthetic traces: popularity by Zipf's law, days and nights, bursts, log-normal durations. They
//! have the same formats as the recorded ones, so that either can be used.
//!
//! The same plan makes the same trace on machines with identical `exp`, `ln` and `cos`.

use std::f64::consts::TAU;

use unlade_testkit::Random;

use crate::arrivals::{TooManyArrivals, arrivals};
use crate::azure2019::{Durations, Invocations, MINUTES_MAX, Memory, Trigger};
use crate::azure2021::Call;
use crate::distribution::{LogNormal, poisson, zipf};

/// Maximum number of functions of a plan.
pub const FUNCTIONS_MAX: u32 = 100_000;
/// Maximum average rate of a function, in invocations per minute.
pub const RATE_MAX: f64 = 1e6;
/// Numbers of functions of an application; one is chosen at random.
const APP_FUNCTIONS: [u32; 6] = [1, 1, 1, 2, 3, 8];
/// Maximum number of minutes between two runs of a timer.
const TIMER_MINUTES_MAX: f64 = 1440.0;

/// Error of a plan with an invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {due}")]
pub struct PlanError {
    /// Name of the field.
    pub what: &'static str,
    /// Valid values.
    pub due: &'static str,
}

/// Parameters of a trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Seed; the same seed makes the same trace.
    pub seed: u64,
    /// Number of functions.
    pub functions: u32,
    /// Number of minutes, starting at midnight.
    pub minutes: usize,
    /// Average number of invocations of all functions, before bursts.
    pub invocations_per_minute: f64,
    /// Inequality of the functions: their shares are proportional to the rank to the power of
    /// minus this.
    pub zipf_exponent: f64,
    /// Additional load of the busiest minute of a day, as a fraction of the average.
    pub diurnal: f64,
    /// Probability that a burst begins in a minute of a function.
    pub burst_chance: f64,
    /// Factor of the rate during a burst.
    pub burst_factor: f64,
    /// Average duration of a burst, in minutes.
    pub burst_minutes: f64,
    /// Distribution of the functions' median durations, in seconds. The default was fitted by
    /// Shahrad et al. ("Serverless in the Wild", USENIX ATC 2020) to averages of Azure's
    /// functions.
    pub durations: LogNormal,
    /// Standard deviation of the logarithm of a function's durations.
    pub duration_deviation: f64,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            seed: 1,
            functions: 100,
            minutes: 60,
            invocations_per_minute: 600.0,
            zipf_exponent: 1.0,
            diurnal: 0.4,
            burst_chance: 0.005,
            burst_factor: 8.0,
            burst_minutes: 3.0,
            durations: LogNormal { mean: -0.38, deviation: 2.36 },
            duration_deviation: 0.5,
        }
    }
}

impl Plan {
    fn check(&self) -> Result<(), PlanError> {
        let within = |value: f64, from: f64, to: f64| value >= from && value <= to;
        let checks = [
            ("functions", (1..=FUNCTIONS_MAX).contains(&self.functions), "1 to 100000"),
            ("minutes", (1..=MINUTES_MAX).contains(&self.minutes), "1 to 1440"),
            (
                "invocations_per_minute",
                within(self.invocations_per_minute, 0.0, RATE_MAX),
                "0 to 1e6",
            ),
            ("zipf_exponent", within(self.zipf_exponent, 0.0, 5.0), "0 to 5"),
            ("diurnal", within(self.diurnal, 0.0, 1.0), "0 to 1"),
            ("burst_chance", within(self.burst_chance, 0.0, 1.0), "0 to 1"),
            ("burst_factor", within(self.burst_factor, 0.0, 1e3), "0 to 1000"),
            ("burst_minutes", within(self.burst_minutes, 1.0, 1e3), "1 to 1000"),
            ("durations.mean", within(self.durations.mean, -20.0, 10.0), "-20 to 10"),
            ("durations.deviation", within(self.durations.deviation, 0.0, 5.0), "0 to 5"),
            ("duration_deviation", within(self.duration_deviation, 0.0, 5.0), "0 to 5"),
        ];
        match checks.into_iter().find(|(_, holds, _)| !holds) {
            Some((what, _, due)) => Err(PlanError { what, due }),
            None => Ok(()),
        }
    }

    /// Generates the trace.
    ///
    /// # Errors
    /// A field is out of range.
    pub fn make(&self) -> Result<Synthetic, PlanError> {
        self.check()?;
        let shares = zipf(self.functions as usize, self.zipf_exponent);
        let mut names = Names::of(self.seed);
        let functions = (0u64..).zip(shares).map(|(number, share)| {
            let mut random = Random::numbered(self.seed, number);
            let (owner, app, name) = names.next();
            let trigger = trigger(&mut random);
            let rate = share * self.invocations_per_minute;
            let per_minute = match trigger {
                Trigger::Timer => self.ticks(&mut random, rate),
                _ => self.counts(&mut random, rate),
            };
            let row = Invocations { owner, app, function: name, trigger, per_minute };
            let median = self.durations.draw(&mut random).clamp(1e-3, 600.0);
            let durations = LogNormal { mean: median.ln(), deviation: self.duration_deviation };
            // A wide distribution around 170 MiB, like the memory use of applications.
            let memory = LogNormal { mean: 170f64.ln(), deviation: 0.7 };
            Function { row, durations, memory_mib: memory.draw(&mut random) }
        });
        Ok(Synthetic { seed: self.seed, functions: functions.collect() })
    }

    /// Returns the runs of a timer: at equal distances, at most once per minute.
    fn ticks(&self, random: &mut Random, rate: f64) -> Vec<u32> {
        let distance = (1.0 / rate.max(1e-9)).clamp(1.0, TIMER_MINUTES_MAX).round() as usize;
        let first = random.below(distance);
        (0..self.minutes).map(|minute| u32::from(minute % distance == first)).collect()
    }

    fn counts(&self, random: &mut Random, rate: f64) -> Vec<u32> {
        let mut bursting = false;
        let count = |minute: usize| {
            bursting = match bursting {
                true => random.unit() >= 1.0 / self.burst_minutes,
                false => random.unit() < self.burst_chance,
            };
            let times = if bursting { self.burst_factor } else { 1.0 };
            poisson(random, rate * self.daylight(minute) * times)
        };
        (0..self.minutes).map(count).collect()
    }

    /// Returns the load of this minute relative to the average: minimal at midnight, maximal at
    /// noon.
    fn daylight(&self, minute: usize) -> f64 {
        1.0 - self.diurnal * (TAU * minute as f64 / MINUTES_MAX as f64).cos()
    }
}

fn trigger(random: &mut Random) -> Trigger {
    match random.below(100u32) {
        0..55 => Trigger::Http,
        55..70 => Trigger::Timer,
        70..85 => Trigger::Queue,
        85..92 => Trigger::Storage,
        92..95 => Trigger::Event,
        95..98 => Trigger::Orchestration,
        _ => Trigger::Others,
    }
}

/// Generator of identifiers that look like hashes, for applications with one or several functions.
struct Names {
    random: Random,
    owner: String,
    app: String,
    left: u32,
}

impl Names {
    fn of(seed: u64) -> Names {
        let random = Random::numbered(seed, u64::MAX);
        Names { random, owner: String::new(), app: String::new(), left: 0 }
    }

    fn hash(&mut self) -> String {
        (0..4).map(|_| format!("{:016x}", self.random.next())).collect()
    }

    fn next(&mut self) -> (String, String, String) {
        if self.left == 0 {
            (self.owner, self.app) = (self.hash(), self.hash());
            self.left = self.random.pick(&APP_FUNCTIONS);
        }
        self.left -= 1;
        (self.owner.clone(), self.app.clone(), self.hash())
    }
}

/// A function of a synthetic trace.
#[derive(Clone, Debug, PartialEq)]
struct Function {
    row: Invocations,
    durations: LogNormal,
    memory_mib: f64,
}

/// A synthetic trace.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    seed: u64,
    functions: Vec<Function>,
}

impl Synthetic {
    /// Returns rows of a 2019 file; the most popular function first.
    pub fn invocations(&self) -> Vec<Invocations> {
        self.functions.iter().map(|function| function.row.clone()).collect()
    }

    /// Returns rows of a 2019 file, computed from the distribution of each function.
    pub fn durations(&self) -> Vec<Durations> {
        // Distances of the percentiles from the median, in standard deviations; the ends are set
        // to three.
        const AT: [f64; 7] = [-3.0, -2.326_348, -0.674_490, 0.0, 0.674_490, 2.326_348, 3.0];
        let row = |function: &Function| {
            let at = |deviations: f64| 1e3 * function.durations.at(deviations);
            let Invocations { owner, app, function: name, .. } = &function.row;
            Durations {
                owner: owner.clone(),
                app: app.clone(),
                function: name.clone(),
                average_ms: 1e3 * function.durations.average(),
                count: function.row.total(),
                minimum_ms: at(-3.0),
                maximum_ms: at(3.0),
                percentiles_ms: AT.map(at),
            }
        };
        self.functions.iter().map(row).collect()
    }

    /// Returns rows of a 2019 file, one per application.
    pub fn memory(&self) -> Vec<Memory> {
        let mut rows: Vec<Memory> = Vec::new();
        for function in &self.functions {
            let Invocations { owner, app, .. } = &function.row;
            if rows.last().is_some_and(|last| last.app == *app) {
                continue;
            }
            let spread = LogNormal { mean: function.memory_mib.ln(), deviation: 0.1 };
            const AT: [f64; 8] = [-2.33, -1.64, -0.67, 0.0, 0.67, 1.64, 2.33, 3.0];
            rows.push(Memory {
                owner: owner.clone(),
                app: app.clone(),
                samples: function.row.per_minute.len() as u64,
                average_mib: spread.average(),
                percentiles_mib: AT.map(|deviations| spread.at(deviations)),
            });
        }
        rows
    }

    /// Returns rows of a 2021 file: each invocation, ordered by its end.
    ///
    /// # Errors
    /// There are too many invocations.
    pub fn calls(&self) -> Result<Vec<Call>, TooManyArrivals> {
        let rows = self.invocations();
        let begin = arrivals(&rows, 0..MINUTES_MAX, self.seed)?;
        let mut random = Random::numbered(self.seed, u64::MAX - 1);
        let mut calls: Vec<Call> = begin
            .into_iter()
            .filter_map(|arrival| {
                let function = self.functions.get(arrival.row as usize)?;
                let duration_s = function.durations.draw(&mut random);
                Some(Call {
                    app: function.row.app.clone(),
                    function: function.row.function.clone(),
                    end_s: arrival.at_us as f64 / 1e6 + duration_s,
                    duration_s,
                })
            })
            .collect();
        calls.sort_by(|a, b| a.end_s.total_cmp(&b.end_s));
        Ok(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::{Row, Rows, write};
    use std::fmt::Debug;
    use unlade_testkit::cases;

    fn round_trip<R: Row + PartialEq + Debug>(rows: &[R]) {
        let text = write(rows);
        let read: Vec<R> = Rows::of(text.as_bytes()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(read, rows);
    }

    #[test]
    fn what_is_made_can_be_read() {
        cases(20, |random| {
            let plan = Plan {
                seed: random.next(),
                functions: 1 + random.below(40u32),
                minutes: 1 + random.below(90usize),
                zipf_exponent: random.unit() * 2.0,
                diurnal: random.unit(),
                ..Plan::default()
            };
            let made = plan.make().unwrap();
            assert_eq!(plan.make().unwrap(), made, "the same seed");
            let rows = made.invocations();
            assert_eq!(
                (rows.len(), rows[0].per_minute.len()),
                (plan.functions as usize, plan.minutes)
            );
            round_trip(&rows);
            round_trip(&made.durations());
            round_trip(&made.memory());
            let calls = made.calls().unwrap();
            assert_eq!(calls.len() as u64, rows.iter().map(Invocations::total).sum::<u64>());
            round_trip(&calls);
        });
    }

    #[test]
    fn the_popular_the_day_and_bursts_are_seen() {
        let base = Plan { minutes: 1440, functions: 20, burst_chance: 0.0, ..Plan::default() };
        let totals = |plan: &Plan| -> Vec<u64> {
            let rows = plan.make().unwrap().invocations();
            rows.iter()
                .filter(|row| row.trigger != Trigger::Timer)
                .map(Invocations::total)
                .collect()
        };
        let calm = totals(&base);
        assert!(calm[0] > 5 * calm[calm.len() - 1], "{calm:?}");
        let rows = base.make().unwrap().invocations();
        let at = |minute: usize| -> u32 {
            rows.iter().flat_map(|row| &row.per_minute[minute..minute + 120]).sum()
        };
        assert!(f64::from(at(660)) > 1.5 * f64::from(at(0)), "noon and midnight");
        let bursty = totals(&Plan { burst_chance: 0.05, ..base });
        assert!(bursty.iter().sum::<u64>() > calm.iter().sum::<u64>() * 3 / 2);
    }

    #[test]
    fn plans_that_are_none_are_refused() {
        let refused = |plan: Plan| plan.make().unwrap_err().what;
        assert_eq!(refused(Plan { functions: 0, ..Plan::default() }), "functions");
        assert_eq!(refused(Plan { minutes: 1441, ..Plan::default() }), "minutes");
        assert_eq!(refused(Plan { diurnal: f64::NAN, ..Plan::default() }), "diurnal");
        let rate = Plan { invocations_per_minute: 1e9, ..Plan::default() };
        assert_eq!(refused(rate), "invocations_per_minute");
    }
}
