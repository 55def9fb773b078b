//! OpenMetrics text (version 1.0.0).
//!
//! Written by hand: the metrics are arrays with names known at build time; a registry of boxed
//! metrics would be slower to update and not shorter.

use std::fmt::Write;

use crate::event::{FAMILIES, first_counter};
use crate::histogram;
use crate::recording::record_text;
use crate::registry::{Meter, Role};
use crate::{Gauge, Stage, stage};

/// The shortest duration that has a bucket in the text: 2^10 ns, about a microsecond.
const FIRST_BOUND_BITS: u32 = 10;
/// The longest duration that has a bucket: 2^35 ns, about 34 s.
const LAST_BOUND_BITS: u32 = 35;
/// Approximate size of the text of a running process.
const TEXT_BYTES: usize = 32 * 1024;

impl Meter {
    /// Renders the metrics as OpenMetrics text, terminated by `# EOF`: serve it as
    /// `application/openmetrics-text; version=1.0.0; charset=utf-8`.
    ///
    /// A stage that was never recorded is omitted.
    pub fn render(&self) -> String {
        let mut text = String::with_capacity(TEXT_BYTES);
        self.render_build(&mut text);
        self.render_counters(&mut text);
        self.render_gauges(&mut text);
        self.render_stages(&mut text);
        text.push_str("# EOF\n");
        record_text(&text);
        text
    }

    fn render_build(&self, text: &mut String) {
        head(text, "unlade_build", "info", "The version that runs.");
        line(
            text,
            format_args!("unlade_build_info{{version=\"{}\"}} 1", env!("CARGO_PKG_VERSION")),
        );
    }

    fn render_counters(&self, text: &mut String) {
        for (index, family) in FAMILIES.iter().enumerate() {
            let name = family.name;
            if !self.role.shows(name) {
                continue;
            }
            head(text, name, "counter", family.help);
            for value in 0..family.count {
                let count = self.counter(first_counter(index) + value);
                match family.label {
                    None => line(text, format_args!("{name}_total {count}")),
                    Some(label) => {
                        let of = (family.text)(value);
                        line(text, format_args!("{name}_total{{{label}=\"{of}\"}} {count}"));
                    }
                }
            }
        }
    }

    fn render_gauges(&self, text: &mut String) {
        for &gauge in Gauge::ALL.iter().filter(|gauge| self.role.shows(gauge.name())) {
            head(text, gauge.name(), "gauge", gauge.help());
            line(text, format_args!("{} {}", gauge.name(), self.gauge(gauge)));
        }
    }

    fn render_stages(&self, text: &mut String) {
        let mut open = "";
        for &stage in Stage::ALL {
            let counts = self.buckets(stage);
            let total: u64 = counts.iter().sum();
            if total == 0 {
                continue;
            }
            let name = stage.family();
            if name != open {
                head(text, name, "histogram", stage::help(name));
                open = name;
            }
            render_buckets(text, name, stage.as_str(), &counts);
            let (of, sum) = (stage.as_str(), self.sum(stage).as_secs_f64());
            line(text, format_args!("{name}_count{{stage=\"{of}\"}} {total}"));
            line(text, format_args!("{name}_sum{{stage=\"{of}\"}} {sum}"));
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
    let mut text = String::with_capacity(TEXT_BYTES);
    Meter::for_role(role).render_build(&mut text);
    for (index, family) in FAMILIES.iter().enumerate() {
        let name = family.name;
        if !role.shows(name) {
            continue;
        }
        head(&mut text, name, "counter", family.help);
        for (whose, meter) in meters.clone() {
            for value in 0..family.count {
                let count = meter.counter(first_counter(index) + value);
                let of = (family.text)(value);
                let more = family.label.map(|own| format!(",{own}=\"{of}\"")).unwrap_or_default();
                let labels = format_args!("{label}=\"{whose}\"{more}");
                line(&mut text, format_args!("{name}_total{{{labels}}} {count}"));
            }
        }
    }
    text.push_str("# EOF\n");
    record_text(&text);
    text
}

fn render_buckets(text: &mut String, name: &str, stage: &str, counts: &[u64]) {
    let mut below = 0;
    let mut next = 0;
    for bits in FIRST_BOUND_BITS..=LAST_BOUND_BITS {
        let bound_ns = 1u64 << bits;
        let end = histogram::bucket(bound_ns) + 1;
        below += counts.get(next..end).unwrap_or_default().iter().sum::<u64>();
        next = end;
        let le = bound_ns as f64 / 1e9;
        line(text, format_args!("{name}_bucket{{stage=\"{stage}\",le=\"{le:?}\"}} {below}"));
    }
    below += counts.get(next..).unwrap_or_default().iter().sum::<u64>();
    line(text, format_args!("{name}_bucket{{stage=\"{stage}\",le=\"+Inf\"}} {below}"));
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    line(text, format_args!("# TYPE {name} {kind}"));
    for unit in ["seconds", "bytes"] {
        // The unit is separate metadata, and the name must end in it.
        if name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')) {
            line(text, format_args!("# UNIT {name} {unit}"));
        }
    }
    line(text, format_args!("# HELP {name} {help}"));
}

/// Appends a line; writing to a string cannot fail.
fn line(text: &mut String, content: core::fmt::Arguments<'_>) {
    let _ = text.write_fmt(content);
    text.push('\n');
}
