//! Migrations with requests in flight: the slowest, and what TCP retransmitted.

use super::figures::{OBJECT_BYTES, Reading, TIMEOUT, WARMUP_REQUESTS, fields, header, row};
use crate::bench::drive::{Drive, example, number};
use crate::bench::guard::LabGuard;
use crate::bench::orderly;
use crate::bench::record::Sink;
use crate::bench::stages::TOTAL;
use crate::bench::tcp::Census;
use crate::lab::plan::{HOST, Plan, Spec};
use anyhow::Result;
use serde_json::Map;
use unlade_command::output::line;

/// Requests in flight on each connection, and connections.
const PIPELINE: u32 = 8;
const CONNECTIONS: u32 = 4;

/// A load that has a migration for every request.
#[derive(Debug)]
pub struct Pipelined<'p> {
    pub paths: &'p [String],
    pub requests: u64,
    pub seed: u64,
}

impl Pipelined<'_> {
    /// Runs it in a lab of its own, over plain connections, TLS (`true`) or both. `orderly`: on
    /// one processor, from now on.
    ///
    /// # Errors
    /// The lab does not come up, or the load's program fails.
    pub fn run(
        &self,
        sink: &mut Sink,
        spec: Spec,
        protocols: &[bool],
        orderly: bool,
    ) -> Result<()> {
        if orderly {
            orderly::one_processor()?;
        }
        let lab = LabGuard::up("pipelined", spec)?;
        let plan = lab.state.plan();
        if orderly {
            orderly::without_probes(&plan)?;
        }
        for &tls in protocols {
            self.measure(&plan, sink, tls, orderly)?;
        }
        lab.down()
    }

    fn measure(&self, plan: &Plan, sink: &mut Sink, tls: bool, orderly: bool) -> Result<()> {
        let drive = Drive {
            host: HOST,
            tls,
            paths: self.paths,
            connections: CONNECTIONS,
            pipeline: PIPELINE,
            new_connection_every: None,
            timeout: TIMEOUT,
            seed: self.seed,
        };
        drive.run(plan, WARMUP_REQUESTS)?;
        let (before, counted) = (Reading::take(plan)?, Census::take(plan)?);
        let load = drive.run(plan, self.requests)?;
        let counted = Census::take(plan)?.since(&counted).total();
        let total = Reading::take(plan)?.since(&before).get(TOTAL);
        let scheme = if tls { "HTTPS" } else { "HTTP" };
        line(format_args!(
            "\n{scheme}, {CONNECTIONS} connections with {PIPELINE} requests in flight"
        ))?;
        line(header())?;
        line(row(TOTAL, &total))?;
        line(format_args!(
            "{} segments retransmitted, {} resets, {} errors",
            counted.retransmitted_segments,
            counted.sent_resets,
            number(&load, "errors")
        ))?;
        if number(&load, "errors") > 0 {
            line(format_args!("for example: {}", example(&load)))?;
        }
        let mut metrics = Map::new();
        total.metrics(TOTAL, &mut metrics);
        for (name, value) in [
            ("total_p999_ms", (total.quantile_us(0.999) / 1e3).into()),
            ("total_max_ms", (total.quantile_us(1.0) / 1e3).into()),
            ("migrations", total.count().into()),
            ("retransmitted_segments", counted.retransmitted_segments.into()),
            ("sent_resets", counted.sent_resets.into()),
            ("checksum_errors", counted.checksum_errors.into()),
        ] {
            metrics.insert(name.to_owned(), value);
        }
        for name in ["requests", "errors", "latency_p50_us", "latency_p999_us"] {
            metrics.insert(name.to_owned(), load.get(name).cloned().unwrap_or_default());
        }
        let case = serde_json::json!({
            "kind": "pipelined", "tls": tls, "servers": plan.spec.servers,
            "object_bytes": OBJECT_BYTES, "requests_per_migration": 1,
            "connections": CONNECTIONS, "pipeline": PIPELINE, "one_processor": orderly,
        });
        sink.write(fields(case), "offload", metrics)
    }
}
