//! The values of a meter as OpenMetrics text.
//!
//! The metrics are arrays with names known at build time; a registry of boxed metrics would be
//! slower to update and not shorter.

use crate::event::{FAMILIES, first_counter};
use crate::histogram;
use crate::openmetrics::{Kind, OpenMetrics};
use crate::registry::{Meter, Role};
use crate::{Gauge, Stage, stage};

/// The shortest duration that has a bucket in the text: 2^10 ns, about a microsecond.
const FIRST_BOUND_BITS: u32 = 10;
/// The longest duration that has a bucket: 2^35 ns, about 34 s.
const LAST_BOUND_BITS: u32 = 35;

impl Meter {
    /// Renders the metrics as OpenMetrics text, as [`OpenMetrics::finish`] returns it.
    ///
    /// A stage that was never recorded is omitted.
    pub fn render(&self) -> String {
        self.text().finish()
    }

    /// The text of [`render`](Meter::render), to which further families can be added.
    pub fn text(&self) -> OpenMetrics {
        let mut text = OpenMetrics::new();
        self.render_counters(&mut text);
        self.render_gauges(&mut text);
        self.render_stages(&mut text);
        text
    }

    fn render_counters(&self, text: &mut OpenMetrics) {
        for (index, family) in FAMILIES.iter().enumerate() {
            if !self.role.shows(family.name) {
                continue;
            }
            let mut samples = text.family(family.name, Kind::Counter, family.help);
            for value in 0..family.count {
                let count = self.counter(first_counter(index) + value);
                match family.label {
                    None => samples.add(&[], count),
                    Some(label) => samples.add(&[(label, (family.text)(value))], count),
                }
            }
        }
    }

    fn render_gauges(&self, text: &mut OpenMetrics) {
        for &gauge in Gauge::ALL.iter().filter(|gauge| self.role.shows(gauge.name())) {
            text.family(gauge.name(), Kind::Gauge, gauge.help()).add(&[], self.gauge(gauge));
        }
    }

    fn render_stages(&self, text: &mut OpenMetrics) {
        let counts = |&stage: &Stage| (stage, self.buckets(stage));
        let recorded = |(_, counts): &(Stage, Vec<u64>)| counts.iter().any(|&count| count > 0);
        let stages: Vec<_> = Stage::ALL.iter().map(counts).filter(recorded).collect();
        for stages in stages.chunk_by(|one, next| one.0.family() == next.0.family()) {
            let family = stages[0].0.family();
            let mut histograms = text.histogram(family, stage::help(family));
            for (stage, counts) in stages {
                let (count, sum) = (counts.iter().sum(), self.sum(*stage).as_secs_f64());
                histograms.add(&[("stage", stage.as_str())], cumulative(counts), count, sum);
            }
        }
    }
}

/// Renders the counters of several meters in one text, each with another value of a label: those
/// of the families of a role.
pub fn render_each<'a>(
    role: Role,
    label: &str,
    meters: impl Iterator<Item = (&'a str, &'a Meter)> + Clone,
) -> String {
    let mut text = OpenMetrics::new();
    for (index, family) in FAMILIES.iter().enumerate() {
        if !role.shows(family.name) {
            continue;
        }
        let mut samples = text.family(family.name, Kind::Counter, family.help);
        for (whose, meter) in meters.clone() {
            for value in 0..family.count {
                let count = meter.counter(first_counter(index) + value);
                match family.label {
                    None => samples.add(&[(label, whose)], count),
                    Some(own) => {
                        samples.add(&[(label, whose), (own, (family.text)(value))], count);
                    }
                }
            }
        }
    }
    text.finish()
}

/// The bounds of the buckets in seconds, and the number of durations at or below each.
fn cumulative(counts: &[u64]) -> impl Iterator<Item = (f64, u64)> {
    let mut below = 0;
    let mut next = 0;
    (FIRST_BOUND_BITS..=LAST_BOUND_BITS).map(move |bits| {
        let bound_ns = 1u64 << bits;
        let end = histogram::bucket(bound_ns) + 1;
        below += counts.get(next..end).unwrap_or_default().iter().sum::<u64>();
        next = end;
        (bound_ns as f64 / 1e9, below)
    })
}
