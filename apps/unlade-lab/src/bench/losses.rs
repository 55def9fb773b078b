//! Where the offload loses: every ratio of a run that is on the wrong side of 1.

use super::record::Ratios;
use anyhow::Result;
use serde_json::{Map, Value};
use unlade_command::output::line;

/// Ratios that are shown as 1.00 are neither won nor lost.
const TIE: f64 = 0.005;

/// Returns true if a ratio of this name is a loss. Of throughput more is better, and of what software costs
/// in proportion to the offload; of anything else, time and memory, less is.
fn is_loss(name: &str, ratio: f64) -> bool {
    let more_is_better =
        ["throughput", "ops", "bytes_per_s", "speedup", "gcm_ratio", "host_cost_ratio"];
    match more_is_better.iter().any(|word| name.contains(word)) {
        true => ratio < 1.0 - TIE,
        false => ratio > 1.0 + TIE,
    }
}

/// `key=value` of all that was held fixed.
fn label(case: &Map<String, Value>) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let words: Vec<String> =
        case.iter().map(|(key, value)| format!("{key}={}", text(value))).collect();
    words.join(" ")
}

/// The losses among `ratios`, a line each, and how many ratios there are.
fn losses(ratios: &Ratios) -> (Vec<String>, usize) {
    let mut count = 0;
    let mut lost = Vec::new();
    for (case, metrics) in ratios {
        for (name, value) in metrics.iter().filter(|(name, _)| name.contains("ratio")) {
            let Some(ratio) = value.as_f64() else { continue };
            count += 1;
            if is_loss(name, ratio) {
                lost.push(format!("{ratio:>8.2}  {name:<36} {}", label(case)));
            }
        }
    }
    (lost, count)
}

/// Prints them.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(ratios: &Ratios) -> Result<()> {
    let (lost, count) = losses(ratios);
    line(format_args!("\nwhere it loses: {} of {count} ratios", lost.len()))?;
    lost.iter().try_for_each(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn losses_are_above_one_for_time_and_below_for_throughput() {
        assert!(is_loss("latency_ratio_vs_sync", 1.01) && !is_loss("latency_ratio_vs_sync", 0.9));
        assert!(is_loss("throughput_ratio_vs_memcpy", 0.99));
        assert!(!is_loss("throughput_ratio_vs_memcpy", 1.5));
        assert!(is_loss("cpu_ratio_vs_memcpy", 2.0));
        assert!(!is_loss("latency_ratio_vs_sync", 1.004));
        assert!(is_loss("host_cost_ratio_tx", 0.9) && !is_loss("gcm_ratio_vs_awslc", 1.3));
    }

    #[test]
    fn what_is_lost_is_said_with_its_case() {
        let map = |value: Value| value.as_object().cloned().unwrap();
        let ratios = vec![
            (map(json!({ "bytes": 512, "cache": "warm" })), map(json!({ "latency_ratio": 1.25 }))),
            (map(json!({ "bytes": 4096 })), map(json!({ "latency_ratio": 0.5, "rounds": 7 }))),
        ];
        let (lost, count) = losses(&ratios);
        assert_eq!((lost.len(), count), (1, 2));
        assert!(lost[0].contains("1.25") && lost[0].contains("bytes=512 cache=warm"), "{lost:?}");
    }
}
