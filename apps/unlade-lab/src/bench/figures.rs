//! From samples to figures: medians over rounds, costs per byte, ratios, break-even. Pure.

use super::window::Sample;
use serde_json::{Map, Value};
use std::borrow::Borrow;

const GIB: f64 = 1_073_741_824.0;

/// Figures of one mode in one case: medians over its rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    pub throughput_bytes_per_s: f64,
    pub requests_per_s: f64,
    /// None where no request ended within a window.
    pub latency_p50_us: Option<f64>,
    pub latency_p99_us: Option<f64>,
    pub first_byte_p99_us: Option<f64>,
    /// The front's processes and BPF programs together.
    pub lb_cpu_ns_per_gib: f64,
    pub lb_bpf_ns_per_gib: f64,
    pub lb_cpu_ns_per_request: f64,
    pub server_cpu_ns_per_gib: f64,
    pub machine_cpu_ns_per_gib: f64,
    pub machine_busy_ratio: f64,
    pub client_cpu_ns_per_gib: f64,
    pub requests: f64,
    pub verified: f64,
    pub errors: f64,
    pub mismatches: f64,
    pub rounds: usize,
}

/// The middle value; the mean of the middle two of an even number; 0 of none. The order is
/// [`f64::total_cmp`]'s, which has NaN at an end.
pub fn median(values: impl IntoIterator<Item: Borrow<f64>>) -> f64 {
    let mut sorted: Vec<f64> = values.into_iter().map(|value| *value.borrow()).collect();
    sorted.sort_unstable_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (None, _) => 0.0,
        (Some(&upper), 1) => upper,
        (Some(&upper), _) => (upper + sorted.get(middle - 1).copied().unwrap_or(upper)) / 2.0,
    }
}

/// The [`median`] of one figure of each item.
pub fn median_by<T>(items: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    median(items.iter().map(figure))
}

impl Figures {
    pub fn of(samples: &[Sample]) -> Figures {
        let middle = |figure: fn(&Sample) -> f64| median_by(samples, figure);
        let total = |figure: fn(&Sample) -> f64| samples.iter().map(figure).sum::<f64>();
        Figures {
            throughput_bytes_per_s: middle(|s| s.throughput_bytes_per_s),
            requests_per_s: middle(|s| s.requests_per_s),
            latency_p50_us: latency(samples, |s| s.latency_p50_us),
            latency_p99_us: latency(samples, |s| s.latency_p99_us),
            first_byte_p99_us: latency(samples, |s| s.first_byte_p99_us).filter(|us| *us > 0.0),
            lb_cpu_ns_per_gib: middle(|s| per_gib(lb_ns(s), s)),
            lb_bpf_ns_per_gib: middle(|s| per_gib(s.usage.bpf_ns as f64, s)),
            // By requests' worth of bytes: a window ends in the middle of some.
            lb_cpu_ns_per_request: middle(|s| lb_ns(s) / s.requests.max(1.0)),
            server_cpu_ns_per_gib: middle(|s| per_gib(s.usage.servers_ns as f64, s)),
            machine_cpu_ns_per_gib: middle(|s| per_gib(s.usage.busy_ns as f64, s)),
            machine_busy_ratio: middle(|s| s.usage.busy_ratio),
            client_cpu_ns_per_gib: middle(|s| per_gib(s.client_ns, s)),
            requests: total(|s| s.requests),
            verified: total(|s| s.verified),
            errors: total(|s| s.errors),
            mismatches: total(|s| s.mismatches),
            rounds: samples.len(),
        }
    }

    pub fn metrics(&self) -> Map<String, Value> {
        let value = serde_json::json!({
            "throughput_bytes_per_s": self.throughput_bytes_per_s,
            "requests_per_s": self.requests_per_s,
            "latency_p50_us": self.latency_p50_us,
            "latency_p99_us": self.latency_p99_us,
            "first_byte_p99_us": self.first_byte_p99_us,
            "lb_cpu_ns_per_gib": self.lb_cpu_ns_per_gib,
            "lb_bpf_ns_per_gib": self.lb_bpf_ns_per_gib,
            "lb_cpu_ns_per_request": self.lb_cpu_ns_per_request,
            "server_cpu_ns_per_gib": self.server_cpu_ns_per_gib,
            "client_cpu_ns_per_gib": self.client_cpu_ns_per_gib,
            "machine_cpu_ns_per_gib": self.machine_cpu_ns_per_gib,
            "machine_busy_ratio": self.machine_busy_ratio,
            "requests": self.requests as u64,
            "verified": self.verified as u64,
            "errors": self.errors as u64,
            "mismatches": self.mismatches as u64,
            "rounds": self.rounds,
        });
        match value {
            Value::Object(map) => map,
            _ => Map::new(),
        }
    }
}

/// Median over the rounds in which a request ended.
fn latency(samples: &[Sample], figure: fn(&Sample) -> f64) -> Option<f64> {
    let answered: Vec<f64> = samples.iter().filter(|s| s.requests > 0.0).map(figure).collect();
    (!answered.is_empty()).then(|| median(answered))
}

fn lb_ns(sample: &Sample) -> f64 {
    (sample.usage.front_ns + sample.usage.bpf_ns) as f64
}

fn per_gib(ns: f64, sample: &Sample) -> f64 {
    ns / (sample.body_bytes.max(1.0) / GIB)
}

/// Offload against the proxies of the same case and rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    pub throughput_vs_best_proxy: f64,
    pub best_proxy: String,
    /// By name of the proxy.
    pub throughput_vs_each: Vec<(String, f64)>,
    pub lb_cpu_vs_haproxy: Option<f64>,
    pub lb_cpu_vs_proxy: Option<f64>,
    pub latency_p50_vs_best_proxy: Option<f64>,
    /// Of the ceiling: the servers with nothing in front.
    pub throughput_vs_direct: Option<f64>,
    /// Time to the first byte, of that of the servers with nothing in front.
    pub first_byte_p99_vs_direct: Option<f64>,
}

/// Compares; ratios are medians over rounds of the rounds' own ratios, so that a machine that
/// is slower for a while is so for both sides. `proxies`, and `direct` where it was measured, are
/// in the same order of rounds.
pub fn ratio(
    offload: &[Sample],
    proxies: &[(&str, &[Sample])],
    direct: Option<&[Sample]>,
) -> Option<Ratio> {
    let best = proxies.iter().max_by(|(_, a), (_, b)| {
        let of = |samples: &[Sample]| median_by(samples, |s| s.throughput_bytes_per_s);
        of(a).total_cmp(&of(b))
    })?;
    let paired = |other: &[Sample], figure: fn(&Sample) -> f64| {
        let pairs = offload.iter().zip(other);
        median(pairs.map(|(ours, theirs)| figure(ours) / figure(theirs).max(1e-9)))
    };
    let cpu_against = |name: &str| {
        let (_, samples) = proxies.iter().find(|(other, _)| *other == name)?;
        Some(paired(samples, |s| per_gib(lb_ns(s), s)))
    };
    Some(Ratio {
        throughput_vs_best_proxy: paired(best.1, |s| s.throughput_bytes_per_s),
        best_proxy: best.0.to_owned(),
        throughput_vs_each: proxies
            .iter()
            .map(|(name, other)| ((*name).to_owned(), paired(other, |s| s.throughput_bytes_per_s)))
            .collect(),
        lb_cpu_vs_haproxy: cpu_against("haproxy"),
        lb_cpu_vs_proxy: cpu_against("proxy"),
        latency_p50_vs_best_proxy: latency(offload, |s| s.latency_p50_us)
            .zip(latency(best.1, |s| s.latency_p50_us))
            .map(|(ours, theirs)| ours / theirs.max(1e-9)),
        throughput_vs_direct: direct.map(|other| paired(other, |s| s.throughput_bytes_per_s)),
        first_byte_p99_vs_direct: direct.map(|other| paired(other, |s| s.first_byte_p99_us)),
    })
}

impl Ratio {
    pub fn metrics(&self) -> Map<String, Value> {
        let mut map = Map::new();
        let ratio = self.throughput_vs_best_proxy.into();
        map.insert("throughput_ratio_vs_best_proxy".to_owned(), ratio);
        map.insert("best_proxy".to_owned(), self.best_proxy.clone().into());
        for (proxy, ratio) in &self.throughput_vs_each {
            map.insert(format!("throughput_ratio_vs_{proxy}"), (*ratio).into());
        }
        for (key, value) in [
            ("latency_p50_ratio_vs_best_proxy", self.latency_p50_vs_best_proxy),
            ("lb_cpu_ratio_vs_haproxy", self.lb_cpu_vs_haproxy),
            ("lb_cpu_ratio_vs_proxy", self.lb_cpu_vs_proxy),
            ("throughput_ratio_vs_direct", self.throughput_vs_direct),
            ("first_byte_p99_ratio_vs_direct", self.first_byte_p99_vs_direct),
        ] {
            if let Some(value) = value {
                map.insert(key.to_owned(), value.into());
            }
        }
        map
    }
}

/// The smallest measured size from which on every size has a throughput ratio of at least 1.
pub fn break_even_bytes(ratios: &[(u64, f64)]) -> Option<u64> {
    let mut sorted = ratios.to_vec();
    sorted.sort_by_key(|(bytes, _)| *bytes);
    let winning = sorted.iter().rev().take_while(|(_, ratio)| *ratio >= 1.0);
    winning.last().map(|(bytes, _)| *bytes)
}

#[cfg(test)]
mod tests {
    use super::super::cpu::Usage;
    use super::*;

    fn sample(throughput: f64, front_ns: u64, bytes: f64) -> Sample {
        Sample {
            throughput_bytes_per_s: throughput,
            body_bytes: bytes,
            requests: 1.0,
            usage: Usage { front_ns, ..Usage::default() },
            ..Sample::default()
        }
    }

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
        let none: [f64; 0] = [];
        assert_eq!(median(none), 0.0);
        assert_eq!(median([f64::MAX, f64::MIN, f64::NAN]), f64::MAX);
        assert_eq!(median([f64::INFINITY, 0.0, f64::NEG_INFINITY]), 0.0);
        for count in 0..9 {
            assert!(!median((0..count).map(f64::from)).is_nan(), "{count}");
        }
        assert_eq!(median_by(&[(1, 9.0), (2, 5.0), (3, 7.0)], |pair| pair.1), 7.0);
    }

    #[test]
    fn best_proxy_is_the_fastest_and_cpu_is_per_byte() {
        let offload = [sample(400.0, 10, GIB), sample(500.0, 10, GIB)];
        let nginx = [sample(100.0, 50, GIB), sample(100.0, 50, GIB)];
        // Half the bytes for the same time: twice the cost.
        let haproxy = [sample(90.0, 50, GIB / 2.0), sample(90.0, 50, GIB / 2.0)];
        let proxies: [(&str, &[Sample]); 2] = [("nginx", &nginx), ("haproxy", &haproxy)];
        let direct = [sample(800.0, 0, GIB), sample(1000.0, 0, GIB)];
        let ratio = ratio(&offload, &proxies, Some(&direct)).unwrap();
        assert_eq!(ratio.best_proxy, "nginx");
        assert_eq!(ratio.throughput_vs_best_proxy, 4.5);
        assert_eq!(ratio.lb_cpu_vs_haproxy, Some(0.1));
        assert_eq!(ratio.lb_cpu_vs_proxy, None);
        let metrics = ratio.metrics();
        assert_eq!(metrics["throughput_ratio_vs_best_proxy"], 4.5);
        assert_eq!(metrics["throughput_ratio_vs_haproxy"], 5.0);
        assert_eq!(metrics["throughput_ratio_vs_direct"], 0.5);
        assert!(super::ratio(&offload, &[], None).is_none());
    }

    #[test]
    fn break_even_holds_from_there_on() {
        let ratios = [(4096, 1.2), (16_384, 0.9), (65_536, 1.0), (1 << 20, 3.0)];
        assert_eq!(break_even_bytes(&ratios), Some(65_536));
        assert_eq!(break_even_bytes(&[(4096, 1.5)]), Some(4096));
        assert_eq!(break_even_bytes(&[(4096, 1.5), (8192, 0.5)]), None);
    }
}
