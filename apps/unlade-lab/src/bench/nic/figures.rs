//! Costs of a stream, as results and as rows of a table.

use super::super::figures::median_by;
use super::super::record::Sink;
use anyhow::Result;
use serde_json::{Map, Value};
use std::fmt;
use unlade_command::output::line;

/// Bytes of a GiB.
pub const GIB: f64 = (1_u64 << 30) as f64;

/// Times of a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// The host's processor time.
    pub host_ns_per_byte: f64,
    /// The engine's; not a number where it was not told apart.
    pub engine_ns_per_byte: f64,
    pub throughput_bytes_per_s: f64,
}

impl Cost {
    /// The median of each figure.
    pub fn medians(costs: &[Cost]) -> Cost {
        let of = |field: fn(&Cost) -> f64| median_by(costs, field);
        Cost {
            host_ns_per_byte: of(|cost| cost.host_ns_per_byte),
            engine_ns_per_byte: of(|cost| cost.engine_ns_per_byte),
            throughput_bytes_per_s: of(|cost| cost.throughput_bytes_per_s),
        }
    }
}

/// Writes a cost as a result.
///
/// # Errors
/// The file cannot be written.
pub fn write(sink: &mut Sink, case: &Value, mode: &str, cost: &Cost) -> Result<()> {
    sink.write(object(case), mode, metrics(cost))
}

/// The figures of a cost, by their names.
pub fn metrics(cost: &Cost) -> Map<String, Value> {
    let mut metrics = Map::new();
    for (name, value) in [
        ("host_cpu_ns_per_gib", cost.host_ns_per_byte * GIB),
        ("engine_cpu_ns_per_gib", cost.engine_ns_per_byte * GIB),
        ("throughput_bytes_per_s", cost.throughput_bytes_per_s),
    ] {
        if value.is_finite() {
            metrics.insert(name.to_owned(), value.into());
        }
    }
    metrics
}

/// Writes ratios, and prints them.
///
/// # Errors
/// The file or standard output cannot be written.
pub fn ratio(sink: &mut Sink, case: &Value, ratios: &[(String, f64)]) -> Result<()> {
    for (name, value) in ratios {
        line(format_args!("  {name} {value:.2}"))?;
    }
    let metrics = ratios.iter().map(|(name, value)| (name.clone(), (*value).into())).collect();
    sink.write(object(case), "ratio", metrics)
}

/// The members of a JSON object.
pub fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// A row for readers.
pub struct Row<'c> {
    pub mode: &'c str,
    pub cores: usize,
    pub cost: &'c Cost,
    pub record_bytes: usize,
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { mode, cores, cost, record_bytes } = self;
        let record_ns = |ns_per_byte: f64| ns_per_byte * *record_bytes as f64;
        let host_ns = record_ns(cost.host_ns_per_byte);
        write!(f, "  {mode:<10}{cores} core{}", if *cores == 1 { " " } else { "s" })?;
        write!(f, "{host_ns:>10.0} ns host")?;
        match cost.engine_ns_per_byte.is_finite() {
            true => write!(f, "{:>10.0} ns engine", record_ns(cost.engine_ns_per_byte))?,
            false => write!(f, "{:>20}", "")?,
        }
        write!(f, "{:>8.2} GB/s", cost.throughput_bytes_per_s / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_each_figure() {
        let cost = |host, engine, throughput| Cost {
            host_ns_per_byte: host,
            engine_ns_per_byte: engine,
            throughput_bytes_per_s: throughput,
        };
        let costs = [cost(1.0, 9.0, 5.0), cost(3.0, 7.0, 4.0), cost(2.0, 8.0, 6.0)];
        assert_eq!(Cost::medians(&costs), cost(2.0, 8.0, 5.0));
        let without = Cost { engine_ns_per_byte: f64::NAN, ..costs[0] };
        assert_eq!(metrics(&without).len(), 2);
        let row = Row { mode: "tcp", cores: 2, cost: &without, record_bytes: 100 };
        assert!(row.to_string().contains("100 ns host"), "{row}");
    }
}
