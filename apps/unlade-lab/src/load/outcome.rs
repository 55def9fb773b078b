//! Outcome of a run, and its output.

use hdrhistogram::Histogram;
use std::time::Duration;

/// Longest latency that is told apart: ten minutes.
const LATENCY_US_MAX: u64 = 600_000_000;

/// Counts of one thread, or of all.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub requests: u64,
    pub body_bytes: u64,
    pub verified: u64,
    pub connections: u64,
    /// Bodies whose sum or length is not what it must be.
    pub mismatches: u64,
    pub bad_status: u64,
    pub malformed: u64,
    pub resets: u64,
    /// Connections closed with responses due.
    pub closed_early: u64,
    pub timeouts: u64,
    pub connect_failures: u64,
    pub tls_failures: u64,
    /// Time to the last byte of a response.
    pub latency_us: Histogram<u64>,
    /// Time to its first byte.
    pub first_byte_us: Histogram<u64>,
    /// One example of what went wrong.
    pub example: Option<String>,
}

impl Outcome {
    pub fn new() -> Outcome {
        // The bounds are valid, and if they were not a histogram that grows does as well.
        let latency_us = Histogram::new_with_bounds(1, LATENCY_US_MAX, 3)
            .or_else(|_| Histogram::new(3))
            .expect("three digits are a valid precision");
        Outcome {
            requests: 0,
            body_bytes: 0,
            verified: 0,
            connections: 0,
            mismatches: 0,
            bad_status: 0,
            malformed: 0,
            resets: 0,
            closed_early: 0,
            timeouts: 0,
            connect_failures: 0,
            tls_failures: 0,
            first_byte_us: latency_us.clone(),
            latency_us,
            example: None,
        }
    }

    /// A request that was answered.
    pub fn latency(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.latency_us.saturating_record(us.clamp(1, LATENCY_US_MAX));
    }

    /// The first byte of a response has come.
    pub fn first_byte(&mut self, latency: Duration) {
        let us = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        self.first_byte_us.saturating_record(us.clamp(1, LATENCY_US_MAX));
    }

    pub fn remember(&mut self, what: impl FnOnce() -> String) {
        self.example.get_or_insert_with(what);
    }

    /// Adds what another thread has seen.
    pub fn merge(&mut self, other: &Outcome) {
        self.requests += other.requests;
        self.body_bytes += other.body_bytes;
        self.verified += other.verified;
        self.connections += other.connections;
        self.mismatches += other.mismatches;
        self.bad_status += other.bad_status;
        self.malformed += other.malformed;
        self.resets += other.resets;
        self.closed_early += other.closed_early;
        self.timeouts += other.timeouts;
        self.connect_failures += other.connect_failures;
        self.tls_failures += other.tls_failures;
        // Same bounds everywhere, so nothing can be out of range.
        let _ = self.latency_us.add(&other.latency_us);
        let _ = self.first_byte_us.add(&other.first_byte_us);
        if self.example.is_none() {
            self.example.clone_from(&other.example);
        }
    }

    /// Everything that should not have been.
    pub fn errors(&self) -> u64 {
        self.mismatches
            + self.bad_status
            + self.malformed
            + self.resets
            + self.closed_early
            + self.timeouts
            + self.connect_failures
            + self.tls_failures
    }

    /// The figures as one JSON object; `elapsed` is the measured time, `cpu_ns` what this
    /// process used in it.
    pub fn json(&self, elapsed: Duration, cpu_ns: u64) -> serde_json::Value {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let quantile = |q: f64| self.latency_us.value_at_quantile(q);
        serde_json::json!({
            "elapsed_s": seconds,
            "requests": self.requests,
            "body_bytes": self.body_bytes,
            "throughput_bytes_per_s": self.body_bytes as f64 / seconds,
            "requests_per_s": self.requests as f64 / seconds,
            "latency_mean_us": self.latency_us.mean(),
            "latency_p50_us": quantile(0.5),
            "latency_p90_us": quantile(0.9),
            "latency_p99_us": quantile(0.99),
            "latency_p999_us": quantile(0.999),
            "latency_max_us": self.latency_us.max(),
            "first_byte_p50_us": self.first_byte_us.value_at_quantile(0.5),
            "first_byte_p99_us": self.first_byte_us.value_at_quantile(0.99),
            "client_cpu_ns": cpu_ns,
            "connections": self.connections,
            "verified": self.verified,
            "mismatches": self.mismatches,
            "bad_status": self.bad_status,
            "malformed": self.malformed,
            "resets": self.resets,
            "closed_early": self.closed_early,
            "timeouts": self.timeouts,
            "connect_failures": self.connect_failures,
            "tls_failures": self.tls_failures,
            "errors": self.errors(),
            "example_error": self.example,
        })
    }

    /// The figures for a reader.
    pub fn text(&self, elapsed: Duration) -> String {
        let seconds = elapsed.as_secs_f64().max(1e-9);
        let quantile = |q: f64| self.latency_us.value_at_quantile(q) as f64 / 1e3;
        let mut text = format!(
            "{:.1} MiB/s, {:.0} requests/s over {seconds:.2} s\n\
             latency ms: p50 {:.3}  p90 {:.3}  p99 {:.3}  p99.9 {:.3}  max {:.3}\n\
             {} requests on {} connections, {} bodies verified, {} errors",
            self.body_bytes as f64 / seconds / 1_048_576.0,
            self.requests as f64 / seconds,
            quantile(0.5),
            quantile(0.9),
            quantile(0.99),
            quantile(0.999),
            quantile(1.0),
            self.requests,
            self.connections,
            self.verified,
            self.errors(),
        );
        if self.errors() > 0 {
            text.push_str(&format!(
                "\nerrors: {} mismatches, {} bad statuses, {} malformed, {} resets, {} closed \
                 early, {} timeouts, {} failed connects, {} TLS failures",
                self.mismatches,
                self.bad_status,
                self.malformed,
                self.resets,
                self.closed_early,
                self.timeouts,
                self.connect_failures,
                self.tls_failures
            ));
        }
        if let Some(example) = &self.example {
            text.push_str(&format!("\nfor example: {example}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up() {
        let (mut a, mut b) = (Outcome::new(), Outcome::new());
        a.requests = 2;
        a.latency(Duration::from_micros(100));
        b.requests = 3;
        b.resets = 1;
        b.remember(|| "reset".to_owned());
        b.latency(Duration::from_secs(10_000));
        a.merge(&b);
        assert_eq!((a.requests, a.errors(), a.latency_us.len()), (5, 1, 2));
        let json = a.json(Duration::from_secs(2), 7);
        assert_eq!(json["requests_per_s"], 2.5);
        assert_eq!(json["example_error"], "reset");
        assert!(a.text(Duration::from_secs(2)).contains("1 resets"));
    }
}
