//! The metrics of each function, with labels for its tenant and its name. The number of functions
//! with samples of their own is limited; the others share one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use unlade_metrics::{Histograms, Kind, OpenMetrics};

/// The labels of functions beyond the limit.
pub const OTHER: &str = "other";
/// The upper bounds of the buckets of durations, in milliseconds.
const BOUNDS_MS: [u64; 17] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000,
    900_000,
];

/// A histogram of durations.
#[derive(Debug, Default)]
pub struct Durations {
    /// Durations above the previous bound, up to this one.
    buckets: [AtomicU64; BOUNDS_MS.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Durations {
    /// Counts a duration.
    pub fn add(&self, duration: Duration) {
        let us = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        if let Some(bucket) = BOUNDS_MS.iter().position(|bound_ms| us <= bound_ms * 1000) {
            self.buckets[bucket].fetch_add(1, Relaxed);
        }
        self.sum_us.fetch_add(us, Relaxed);
        self.count.fetch_add(1, Relaxed);
    }

    /// The number of durations.
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    fn render(&self, labels: &[(&str, &str)], histograms: &mut Histograms<'_>) {
        let count = self.count();
        let mut below = 0;
        let buckets = BOUNDS_MS.iter().zip(&self.buckets).map(|(bound_ms, bucket)| {
            below += bucket.load(Relaxed);
            // One that is counted right now is in a bucket before it is in the sum.
            (*bound_ms as f64 / 1e3, below.min(count))
        });
        histograms.add(labels, buckets, count, self.sum_us.load(Relaxed) as f64 / 1e6);
    }
}

/// The metrics of one function, over all of its versions. The gateway's thread updates them.
#[derive(Debug, Default)]
pub struct FunctionMeter {
    /// Answered invocations.
    pub invocations: AtomicU64,
    /// Invocations that failed.
    pub errors: AtomicU64,
    /// Invocations without an instance.
    pub throttles: AtomicU64,
    /// The time in the handler, of answered invocations.
    pub duration: Durations,
    /// The starts of instances.
    pub init_duration: Durations,
    /// Most memory of an instance, in bytes.
    pub memory_peak_bytes: AtomicU64,
    /// Bytes that came to its instances: events, and bodies of calls.
    pub received_bytes: AtomicU64,
    /// Bytes that came from its instances: results, and bodies of calls.
    pub sent_bytes: AtomicU64,
    /// Running invocations.
    pub running: AtomicU64,
    /// Lines of its log.
    pub log_lines: AtomicU64,
    /// Lines beyond the limit of its log's rate.
    pub log_lines_dropped: AtomicU64,
}

type Read = fn(&FunctionMeter) -> u64;

/// The families with one sample for each function.
const FAMILIES: [(&str, Kind, &str, Read); 9] = [
    (
        "unlade_fn_function_invocations",
        Kind::Counter,
        "Invocations of the function that were answered, with a result or an error.",
        |meter| meter.invocations.load(Relaxed),
    ),
    (
        "unlade_fn_function_errors",
        Kind::Counter,
        "Invocations of the function that failed: its error, its time, its instance, its writes, the host.",
        |meter| meter.errors.load(Relaxed),
    ),
    (
        "unlade_fn_function_throttles",
        Kind::Counter,
        "Invocations of the function that were refused because no instance was available.",
        |meter| meter.throttles.load(Relaxed),
    ),
    (
        "unlade_fn_function_concurrent_executions",
        Kind::Gauge,
        "Invocations of the function that have begun and are not answered.",
        |meter| meter.running.load(Relaxed),
    ),
    (
        "unlade_fn_function_memory_peak_bytes",
        Kind::Gauge,
        "The most memory that an instance of the function has had.",
        |meter| meter.memory_peak_bytes.load(Relaxed),
    ),
    (
        "unlade_fn_function_received_bytes",
        Kind::Counter,
        "Events, and bodies of calls, that came to instances of the function.",
        |meter| meter.received_bytes.load(Relaxed),
    ),
    (
        "unlade_fn_function_sent_bytes",
        Kind::Counter,
        "Results, and bodies of calls, that came from instances of the function.",
        |meter| meter.sent_bytes.load(Relaxed),
    ),
    (
        "unlade_fn_function_log_lines",
        Kind::Counter,
        "Lines that the function has printed.",
        |meter| meter.log_lines.load(Relaxed),
    ),
    (
        "unlade_fn_function_log_lines_dropped",
        Kind::Counter,
        "Lines that the function has printed beyond the limit of its log's rate.",
        |meter| meter.log_lines_dropped.load(Relaxed),
    ),
];

type Histogram = fn(&FunctionMeter) -> &Durations;

/// The families with a histogram for each function.
const HISTOGRAMS: [(&str, &str, Histogram); 2] = [
    (
        "unlade_fn_function_duration_seconds",
        "Time of answered invocations in the handler, including the way to it and back.",
        |meter| &meter.duration,
    ),
    (
        "unlade_fn_function_init_duration_seconds",
        "Time of the starts of the function's instances: its cold starts.",
        |meter| &meter.init_duration,
    ),
];

/// The tenant and the name of a function.
type Key = (String, String);

/// The metrics of all functions.
#[derive(Debug)]
pub struct FunctionMeters {
    functions_max: usize,
    meters: Mutex<BTreeMap<Key, Arc<FunctionMeter>>>,
    other: Arc<FunctionMeter>,
}

impl FunctionMeters {
    /// No function yet; at most `functions_max` get samples of their own.
    pub fn new(functions_max: usize) -> FunctionMeters {
        FunctionMeters { functions_max, meters: Mutex::default(), other: Arc::default() }
    }

    fn meters(&self) -> MutexGuard<'_, BTreeMap<Key, Arc<FunctionMeter>>> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The metrics of a function from now on; those of all others beyond the limit.
    pub fn add(&self, tenant: &str, function: &str) -> Arc<FunctionMeter> {
        let key = (tenant.to_owned(), function.to_owned());
        let mut meters = self.meters();
        match meters.get(&key) {
            Some(meter) => meter.clone(),
            None if meters.len() >= self.functions_max => self.other.clone(),
            None => meters.entry(key).or_default().clone(),
        }
    }

    /// Removes the samples of a function.
    pub fn remove(&self, tenant: &str, function: &str) {
        self.meters().remove(&(tenant.to_owned(), function.to_owned()));
    }

    /// Adds the families to the text of a process.
    pub fn render(&self, text: &mut OpenMetrics) {
        let meters = self.meters().clone();
        let mut all: Vec<(&str, &str, &FunctionMeter)> = meters
            .iter()
            .map(|((tenant, function), meter)| (tenant.as_str(), function.as_str(), &**meter))
            .collect();
        // A function beyond the limit has a reference, or had one.
        let is_used = FAMILIES.iter().any(|(.., read)| read(&self.other) > 0);
        let has_name = meters.contains_key(&(OTHER.to_owned(), OTHER.to_owned()));
        if is_used && !has_name {
            all.push((OTHER, OTHER, &self.other));
        }
        if all.is_empty() {
            return;
        }
        for (family, kind, help, read) in FAMILIES {
            let mut samples = text.family(family, kind, help);
            for (tenant, function, meter) in &all {
                samples.add(&[("tenant", tenant), ("function", function)], read(meter));
            }
        }
        for (family, help, histogram) in HISTOGRAMS {
            let mut histograms = text.histogram(family, help);
            for (tenant, function, meter) in &all {
                let labels = [("tenant", *tenant), ("function", *function)];
                histogram(meter).render(&labels, &mut histograms);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use unlade_testkit::openmetrics;

    use super::*;

    fn samples(meters: &FunctionMeters) -> BTreeMap<String, f64> {
        let mut text = OpenMetrics::new();
        meters.render(&mut text);
        openmetrics::parse(&text.finish()).unwrap().into_iter().collect()
    }

    fn of(tenant: &str, function: &str, name: &str) -> String {
        format!("unlade_fn_function_{name}{{tenant=\"{tenant}\",function=\"{function}\"}}")
    }

    #[test]
    fn a_function_has_samples_until_it_is_removed() {
        let meters = FunctionMeters::new(5);
        let one = meters.add("t", "f");
        one.invocations.fetch_add(2, Relaxed);
        for ms in [1, 2, 3, 1_000_000] {
            one.duration.add(Duration::from_millis(ms));
        }
        meters.add("t", "f").errors.fetch_add(1, Relaxed);
        let found = samples(&meters);
        assert_eq!(found[&of("t", "f", "invocations_total")], 2.0);
        assert_eq!(found[&of("t", "f", "errors_total")], 1.0);
        assert_eq!(found[&of("t", "f", "duration_seconds_count")], 4.0);
        assert_eq!(found[&of("t", "f", "duration_seconds_sum")], 1000.006);
        let bucket = |le: &str| {
            found[&format!(
                "unlade_fn_function_duration_seconds_bucket{{tenant=\"t\",function=\"f\",le=\"{le}\"}}"
            )]
        };
        let buckets = ["0.001", "0.002", "0.005", "900.0", "+Inf"].map(bucket);
        assert_eq!(buckets, [1.0, 2.0, 3.0, 3.0, 4.0]);
        meters.remove("t", "f");
        assert!(samples(&meters).keys().all(|sample| !sample.contains("function=")));
    }

    #[test]
    fn functions_beyond_the_limit_share_their_samples() {
        let meters = FunctionMeters::new(2);
        for (number, function) in ["a", "b", "c", "d"].iter().enumerate() {
            meters.add("t", function).throttles.fetch_add(1 << number, Relaxed);
        }
        let found = samples(&meters);
        assert_eq!(found[&of("t", "b", "throttles_total")], 2.0);
        assert_eq!(found[&of(OTHER, OTHER, "throttles_total")], 12.0);
        assert!(!found.contains_key(&of("t", "c", "throttles_total")));
        meters.remove("t", "a");
        meters.add("t", "e").throttles.fetch_add(32, Relaxed);
        assert_eq!(samples(&meters)[&of("t", "e", "throttles_total")], 32.0, "there is room again");
    }
}
