//! Processor time of a migration: that of the balancer and of all servers together.

use super::figures::NAME_CHARS;
use crate::bench::cpu::Usage;
use crate::bench::figures::{median, median_by};
use crate::bench::window::{self, Asked};
use crate::lab::plan::Front;
use crate::lab::state::State;
use anyhow::Result;
use serde_json::{Map, Value};

/// Processor times of one case, a round each.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    rounds: Vec<Round>,
}

/// Processor times of a request, microseconds.
#[derive(Debug, Clone, Copy)]
struct Round {
    balancer_us: f64,
    servers_us: f64,
}

impl Round {
    fn total_us(&self) -> f64 {
        self.balancer_us + self.servers_us
    }
}

/// Runs `work` and meters the balancer that hands over and its servers meanwhile.
///
/// # Errors
/// Those of `work`; the lab runs no such balancer.
pub fn of<T>(state: &State, work: impl FnOnce() -> Result<T>) -> Result<(T, Usage)> {
    let meter = window::meter(state, Asked::Front(Front::Offload))?;
    let before = meter.read();
    let done = work()?;
    Ok((done, before.until(&meter.read())))
}

impl Cost {
    /// Adds a round of `requests` requests, each of which moved a connection.
    pub fn add(&mut self, usage: Usage, requests: u64) {
        let us = |ns: u64| ns as f64 / 1e3 / requests.max(1) as f64;
        let (balancer_us, servers_us) = (us(usage.front_ns), us(usage.servers_ns));
        self.rounds.push(Round { balancer_us, servers_us });
    }

    fn median_us(&self, of: impl Fn(&Round) -> f64) -> f64 {
        median_by(&self.rounds, of)
    }

    /// The median over rounds of this cost over that of `before`, both sides together; `None`
    /// without a round.
    pub fn ratio(&self, before: &Cost) -> Option<f64> {
        let pairs = self.rounds.iter().zip(&before.rounds);
        let ratios: Vec<f64> = pairs
            .filter(|(_, before)| before.total_us() > 0.0)
            .map(|(now, before)| now.total_us() / before.total_us())
            .collect();
        (!ratios.is_empty()).then(|| median(ratios))
    }

    /// `balancer_cpu_us`, `servers_cpu_us` and their sum `cpu_us`: medians over rounds, of a request.
    pub fn metrics(&self, into: &mut Map<String, Value>) {
        into.insert("balancer_cpu_us".to_owned(), self.median_us(|r| r.balancer_us).into());
        into.insert("servers_cpu_us".to_owned(), self.median_us(|r| r.servers_us).into());
        into.insert("cpu_us".to_owned(), self.median_us(Round::total_us).into());
    }

    /// A row of results.
    pub fn row(&self, name: &str) -> String {
        format!(
            "{name:<NAME_CHARS$}{:>10.1} us balancer {:>10.1} us servers",
            self.median_us(|round| round.balancer_us),
            self.median_us(|round| round.servers_us)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(rounds: &[(u64, u64)]) -> Cost {
        let mut cost = Cost::default();
        for &(front_ns, servers_ns) in rounds {
            cost.add(Usage { front_ns, servers_ns, ..Usage::default() }, 10);
        }
        cost
    }

    #[test]
    fn rounds_are_compared_with_the_round_beside_them() {
        let (now, before) = (
            cost(&[(100_000, 300_000), (200_000, 600_000)]),
            cost(&[(200_000, 600_000), (400_000, 1_200_000)]),
        );
        assert_eq!(now.ratio(&before), Some(0.5));
        assert_eq!(now.ratio(&Cost::default()), None);
        let mut metrics = Map::new();
        cost(&[(100_000, 300_000)]).metrics(&mut metrics);
        assert_eq!(metrics["balancer_cpu_us"], 10.0);
        assert_eq!(metrics["cpu_us"], 40.0);
    }
}
