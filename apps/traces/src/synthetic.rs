//! A trace that was never recorded: popularity by Zipf's law, days and nights, bursts, log-normal
//! durations. It is given out in the forms of the recorded ones, so that either can be used.
//!
//! The same plan makes the same trace on machines whose `exp`, `ln` and `cos` agree.

use std::f64::consts::TAU;

use unlade_testkit::Random;

use crate::arrivals::{TooMany, arrivals};
use crate::azure2019::{Durations, Invocations, MINUTES_MAX, Memory, Trigger};
use crate::azure2021::Call;
use crate::distribution::{LogNormal, poisson, zipf};

/// Most functions of a plan.
pub const FUNCTIONS_MAX: u32 = 100_000;
/// Most invocations of a function in a minute, on average.
pub const RATE_MAX: f64 = 1e6;
/// Functions of an application, one of these.
const APP_FUNCTIONS: [u32; 6] = [1, 1, 1, 2, 3, 8];
/// Most minutes between two runs of a timer.
const TIMER_MINUTES_MAX: f64 = 1440.0;

/// A plan is none. The caller's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} must be {due}")]
pub struct PlanError {
    /// Which field.
    pub what: &'static str,
    /// What it must be.
    pub due: &'static str,
}

/// What a trace is like.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The same seed, the same trace.
    pub seed: u64,
    /// How many functions.
    pub functions: u32,
    /// How long, from midnight on.
    pub minutes: usize,
    /// Invocations of all functions, on average, before bursts.
    pub invocations_per_minute: f64,
    /// How unequal functions are: shares fall with their rank to this power.
    pub zipf_exponent: f64,
    /// How much more than the average the busiest minute of a day has, of 1.
    pub diurnal: f64,
    /// How often a burst begins, of a function's minutes.
    pub burst_chance: f64,
    /// How many times the usual rate a burst has.
    pub burst_factor: f64,
    /// How many minutes it lasts, on average.
    pub burst_minutes: f64,
    /// Of the median durations of functions, in seconds. The default is what Shahrad et al.
    /// ("Serverless in the Wild", USENIX ATC 2020) fitted to averages of Azure's functions.
    pub durations: LogNormal,
    /// Deviation of the logarithm of a function's durations.
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

    /// Makes the trace.
    ///
    /// # Errors
    /// A field is out of its range.
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
            // Wide, as memory of applications is, around 170 MiB.
            let memory = LogNormal { mean: 170f64.ln(), deviation: 0.7 };
            Function { row, durations, memory_mib: memory.draw(&mut random) }
        });
        Ok(Synthetic { seed: self.seed, functions: functions.collect() })
    }

    /// A clock's runs: at equal distances, once a minute at most.
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

    /// How much of the average this minute has: least at midnight, most at noon.
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

/// Identifiers that look like hashes; applications with one or several functions.
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

/// A trace that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Synthetic {
    seed: u64,
    functions: Vec<Function>,
}

impl Synthetic {
    /// As in a file of 2019; the most popular function first.
    pub fn invocations(&self) -> Vec<Invocations> {
        self.functions.iter().map(|function| function.row.clone()).collect()
    }

    /// As in a file of 2019: what the distribution of each function says.
    pub fn durations(&self) -> Vec<Durations> {
        // Standard deviations from the median at which the percentiles lie; the ends at three.
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

    /// As in a file of 2019: one row an application.
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

    /// As in a file of 2021: each invocation, in the order in which they end.
    ///
    /// # Errors
    /// There are too many.
    pub fn calls(&self) -> Result<Vec<Call>, TooMany> {
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
