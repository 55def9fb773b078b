//! Checks the rendered text against the rules of OpenMetrics 1.0.0, and the values against the
//! counted events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use unlade_metrics::{
    CallEnd, Event, Gauge, Meter, Mode, REQUEST_HEAD_REASONS, REQUEST_REASONS, RESPONSE_REASONS,
    Role, Stage,
};
use unlade_testkit::malformed;

/// The samples of a valid text, by their names with their labels.
fn check(text: &str) -> BTreeMap<String, f64> {
    unlade_testkit::openmetrics::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn every_event_and_gauge_is_rendered() {
    let meter = Meter::new();
    for (count, event) in (1..).zip(Event::all()) {
        meter.add_n(event, count);
    }
    for (value, &gauge) in (-3..).zip(Gauge::ALL) {
        meter.gauge_set(gauge, value);
    }
    let samples = check(&meter.render());
    for (count, event) in (1u32..).zip(Event::all()) {
        let name = match event.label() {
            Some((key, value)) => format!("{}{{{key}=\"{value}\"}}", event.name()),
            None => event.name(),
        };
        assert_eq!(samples.get(&name), Some(&f64::from(count)), "{name}");
        assert!(!event.help().is_empty());
    }
    for (value, &gauge) in (-3i32..).zip(Gauge::ALL) {
        assert_eq!(samples.get(gauge.name()), Some(&f64::from(value)));
    }
}

#[test]
fn histograms_are_cumulative_and_consistent() {
    let meter = Meter::new();
    for us in [0u64, 1, 4, 30, 148, 225, 5_000, 200_000_000] {
        meter.record(Stage::Total, Duration::from_micros(us));
    }
    meter.record(Stage::Ship, Duration::from_nanos(1024));
    let text = meter.render();
    let samples = check(&text);
    let prefix = "unlade_migration_stage_seconds_bucket{stage=\"total\",le=\"";
    let mut buckets = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix(prefix)) {
        let (le, count) = line.split_once("\"} ").unwrap();
        let le = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
        buckets.push((le, count.parse::<u64>().unwrap()));
    }
    assert!(buckets.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
    assert_eq!(buckets.last(), Some(&(f64::INFINITY, 8)));
    let exact = |bound: f64| {
        let within = |us: &&u64| **us as f64 / 1e6 <= bound;
        [0u64, 1, 4, 30, 148, 225, 5_000, 200_000_000].iter().filter(within).count() as u64
    };
    for &(bound, count) in &buckets {
        assert_eq!(count, exact(bound), "le {bound}");
    }
    assert_eq!(samples["unlade_migration_stage_seconds_count{stage=\"total\"}"], 8.0);
    let sum = samples["unlade_migration_stage_seconds_sum{stage=\"total\"}"];
    assert!((sum - 200.005408).abs() < 1e-9, "{sum}");
    // An upper bound is inclusive.
    assert!(text.contains("stage=\"ship\",le=\"1.024e-6\"} 1"), "{text}");
    assert!(!text.contains("stage=\"hold\""), "a stage without a record is left out");
}

#[test]
fn a_role_sees_its_own_families() {
    let balancer = Meter::for_role(Role::Balancer).render();
    let backend = Meter::for_role(Role::Backend).render();
    check(&balancer);
    check(&backend);
    assert!(balancer.contains("unlade_lb_requests_total") && !balancer.contains("unlade_backend_"));
    assert!(backend.contains("unlade_backend_adoptions_total") && !backend.contains("unlade_lb_"));
    assert!(balancer.contains("unlade_held_packets") && backend.contains("unlade_held_packets"));
}

#[test]
fn counters_of_several_meters_are_told_by_a_label() {
    let meters = [Meter::of_thread(Role::Worker), Meter::of_thread(Role::Worker)];
    meters[0].add_n(Event::HostioRequest, 3);
    meters[1].add(Event::HostioCall(CallEnd::Done));
    let each = ["a", "b"].into_iter().zip(&meters);
    let samples = check(&unlade_metrics::render_each(Role::Worker, "tenant", each));
    assert_eq!(samples["unlade_hostio_requests_total{tenant=\"a\"}"], 3.0);
    assert_eq!(samples["unlade_hostio_requests_total{tenant=\"b\"}"], 0.0);
    let calls = |tenant: &str| {
        let end = CallEnd::Done.as_str();
        samples[&format!("unlade_hostio_calls_total{{tenant=\"{tenant}\",end=\"{end}\"}}")]
    };
    assert_eq!((calls("a"), calls("b")), (0.0, 1.0));
    assert!(!samples.keys().any(|name| name.starts_with("unlade_fn_")));
    // The same families as for one meter alone.
    let alone = check(&meters[0].render());
    assert_eq!(samples.len(), alone.len() * 2 - 1, "all but the build, twice");
}

#[test]
fn a_meter_of_one_thread_takes_what_others_count() {
    let meter = Arc::new(Meter::of_thread(Role::Worker));
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| meter.add(Event::HostioRequest));
        }
    });
    assert_eq!(check(&meter.render())["unlade_hostio_requests_total"], 10.0);
}

#[test]
fn threads_add_up() {
    let meter = Arc::new(Meter::new());
    let threads: Vec<_> = (0..11)
        .map(|_| {
            let meter = Arc::clone(&meter);
            std::thread::spawn(move || {
                for _ in 0..1_000 {
                    meter.add(Event::Request(Mode::Offload));
                    meter.record(Stage::Hold, Duration::from_micros(4));
                    meter.gauge_add(Gauge::OpenConnections, 1);
                    meter.gauge_add(Gauge::OpenConnections, -1);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(meter.value(Event::Request(Mode::Offload)), 11_000);
    assert_eq!(meter.value(Event::Request(Mode::Proxy)), 0);
    assert_eq!(meter.count(Stage::Hold), 11_000);
    assert_eq!(meter.sum(Stage::Hold), Duration::from_millis(44));
    assert_eq!(meter.gauge(Gauge::OpenConnections), 0);
    let median_ns = meter.quantile(Stage::Hold, 0.5).unwrap().as_nanos();
    assert!((3_920..=4_080).contains(&median_ns), "{median_ns}");
    assert_eq!(meter.quantile(Stage::Reclaim, 0.5), None);
}

#[test]
fn every_reason_of_a_refused_head_is_a_label() {
    let theirs: BTreeSet<&str> = unlade_http::HeadError::ALL.iter().map(|e| e.reason()).collect();
    let lists = [REQUEST_HEAD_REASONS, REQUEST_REASONS, RESPONSE_REASONS];
    let ours: BTreeSet<&str> =
        lists.iter().flat_map(|list| &list[..list.len() - 1]).copied().collect();
    assert_eq!(ours, theirs);
    for list in lists {
        assert_eq!(list.last(), Some(&"other"));
    }
    let heads = REQUEST_HEAD_REASONS.iter();
    assert!(heads.clone().all(|reason| REQUEST_REASONS.contains(reason)));
}

/// The lists of the labels are those of the malformed messages, which tests send to the products.
#[test]
fn every_reason_has_a_malformed_message() {
    let set = |of: &[Vec<(String, &'static str)>]| -> BTreeSet<&str> {
        of.iter().flatten().map(|(_, reason)| *reason).chain(["other"]).collect()
    };
    let list = |of: &[&'static str]| -> BTreeSet<&str> { of.iter().copied().collect() };
    let (requests, responses) = (malformed::request_heads(), malformed::response_heads());
    let bodies = malformed::chunked_bodies();
    assert_eq!(set(std::slice::from_ref(&requests)), list(REQUEST_HEAD_REASONS));
    assert_eq!(set(&[requests, bodies.clone()]), list(REQUEST_REASONS));
    assert_eq!(set(&[responses, bodies]), list(RESPONSE_REASONS));
}
