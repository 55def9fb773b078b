//! The objects and limits of all parts, readings of stages, and rows of results.

use crate::bench::stages::{Stages, Times};
use crate::lab::plan::{Node, Plan};
use crate::scrape;
use anyhow::Result;
use serde_json::{Map, Value};
use std::time::Duration;

/// Small, so that the migration is what is measured.
pub const OBJECT_BYTES: u64 = 4 << 10;
/// Requests before anything is measured.
pub const WARMUP_REQUESTS: u64 = 50;
pub const TIMEOUT: Duration = Duration::from_secs(10);
pub const NAME_CHARS: usize = 18;

/// Stages of the balancer, and of all servers together.
pub struct Reading {
    balancer: Stages,
    servers: Stages,
}

impl Reading {
    pub fn take(plan: &Plan) -> Result<Reading> {
        let read = |node| Stages::parse(&scrape::get(plan, node, "/stages")?);
        let mut servers = Stages::default();
        for node in plan.servers() {
            servers.add(&read(node)?);
        }
        Ok(Reading { balancer: read(Node::Lb)?, servers })
    }

    /// Times that the balancer recorded since `earlier`, and the servers' where it records none.
    pub fn since(&self, earlier: &Reading) -> Stages {
        let mut stages = self.balancer.since(&earlier.balancer);
        stages.complete(self.servers.since(&earlier.servers));
        stages
    }
}

pub fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

pub fn header() -> String {
    let names = ["p50 us", "p99 us", "p99.9 us", "mean us"];
    let cells: String = names.iter().map(|name| format!("{name:>10}")).collect();
    format!("{:<NAME_CHARS$}{cells}{:>10}", "", "count")
}

pub fn row(name: &str, times: &Times) -> String {
    let figures = [
        times.quantile_us(0.5),
        times.quantile_us(0.99),
        times.quantile_us(0.999),
        times.mean_us(),
    ];
    let cells: String = figures.iter().map(|us| format!("{us:>10.1}")).collect();
    format!("{name:<NAME_CHARS$}{cells}{:>10}", times.count())
}
