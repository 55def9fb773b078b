//! The durations of stages as JSON, for programs that compare two points in time.
//!
//! OpenMetrics has buckets of whole powers of two: enough to watch a service, too coarse to
//! measure a stage. This JSON has quantiles since the start of the process, and the fine buckets
//! that they are computed from, so that a reader can subtract an earlier reading.

use std::fmt::Write;

use crate::Stage;
use crate::histogram;
use crate::registry::Meter;

impl Meter {
    /// Every recorded stage, as one JSON object: maps its name to an object with `count`,
    /// `mean_us`, `p50_us`, `p99_us`, `p999_us`, `max_us` (quantiles and maximum with an error
    /// below 2 %), `sum_ns`, and `buckets_ns`, an array of pairs: the middle of a bucket, and its
    /// count.
    pub fn stages_json(&self) -> String {
        let mut text = String::from("{");
        for &stage in Stage::ALL {
            let counts = self.buckets(stage);
            let total: u64 = counts.iter().sum();
            if total == 0 {
                continue;
            }
            let comma = if text.len() > 1 { "," } else { "" };
            let quantile = |q: f64| {
                let bucket = histogram::quantile(&counts, q).unwrap_or(0);
                us(histogram::middle_ns(bucket) as f64)
            };
            let sum_ns = u64::try_from(self.sum(stage).as_nanos()).unwrap_or(u64::MAX);
            // Writing to a string does not fail.
            let _ = write!(
                text,
                "{comma}\n\"{}\":{{\"count\":{total},\"sum_ns\":{sum_ns},\"mean_us\":{},\
                 \"p50_us\":{},\"p99_us\":{},\"p999_us\":{},\"max_us\":{},\"buckets_ns\":[",
                stage.as_str(),
                us(sum_ns as f64 / total as f64),
                quantile(0.5),
                quantile(0.99),
                quantile(0.999),
                quantile(1.0),
            );
            let filled = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            for (place, (bucket, count)) in filled.enumerate() {
                let comma = if place > 0 { "," } else { "" };
                let _ = write!(text, "{comma}[{},{count}]", histogram::middle_ns(bucket));
            }
            text.push_str("]}");
        }
        text.push_str("\n}\n");
        text
    }
}

/// Microseconds, rounded to the significant digits.
fn us(ns: f64) -> f64 {
    ns.round() / 1e3
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn recorded_stages_are_rendered_with_their_buckets() {
        let meter = Meter::new();
        assert_eq!(serde_json::from_str::<serde_json::Value>(&meter.stages_json()).unwrap(), {
            serde_json::json!({})
        });
        for us in 1..=1000 {
            meter.record(Stage::Hold, Duration::from_micros(us));
        }
        meter.record(Stage::Reclaim, Duration::from_millis(3));
        let all: serde_json::Value = serde_json::from_str(&meter.stages_json()).unwrap();
        assert_eq!(all.as_object().unwrap().len(), 2);
        let hold = &all["hold"];
        assert_eq!(hold["count"], 1000);
        assert_eq!(hold["sum_ns"], 500_500_000);
        assert_eq!(hold["mean_us"], 500.5);
        for (name, us) in [("p50_us", 500.0), ("p99_us", 990.0), ("p999_us", 999.0)] {
            let told = hold[name].as_f64().unwrap();
            assert!((told - us).abs() <= us * 0.02, "{name}: {told}");
        }
        assert!((hold["max_us"].as_f64().unwrap() - 1000.0).abs() <= 20.0);
        let buckets = hold["buckets_ns"].as_array().unwrap();
        let counted: u64 = buckets.iter().map(|pair| pair[1].as_u64().unwrap()).sum();
        assert_eq!(counted, 1000);
        assert!(buckets.windows(2).all(|two| two[0][0].as_u64() < two[1][0].as_u64()));
        assert_eq!(all["reclaim"]["count"], 1);
    }
}
