//! The writer of OpenMetrics text (version 1.0.0). No other code prints a line of the format.

use std::fmt::{Arguments, Display, Write};

use crate::recording;

/// Approximate size of the text of a running process.
const TEXT_BYTES: usize = 32 * 1024;
/// Units that a name can end with.
const UNITS: [&str; 2] = ["seconds", "bytes"];

/// The type of a family whose samples are single values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A number that only grows.
    Counter,
    /// A current number or amount.
    Gauge,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        }
    }

    /// The end of the samples' names.
    fn suffix(self) -> &'static str {
        match self {
            Kind::Counter => "_total",
            Kind::Gauge => "",
        }
    }
}

/// The value of a metric without labels, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The family: the name of the sample without the suffix of its type.
    pub family: &'static str,
    /// The type of the family.
    pub kind: Kind,
    /// A sentence that describes the family.
    pub help: &'static str,
    /// The value.
    pub value: u64,
}

impl Reading {
    /// The value of a counter.
    pub fn counter(family: &'static str, help: &'static str, value: u64) -> Reading {
        Reading { family, kind: Kind::Counter, help, value }
    }

    /// The value of a gauge.
    pub fn gauge(family: &'static str, help: &'static str, value: u64) -> Reading {
        Reading { family, kind: Kind::Gauge, help, value }
    }
}

/// The labels of a sample: names and values.
pub type Labels<'a> = &'a [(&'a str, &'a str)];

/// OpenMetrics text of a process: the version that runs, then the families in the order in which
/// they are added.
#[derive(Debug)]
#[must_use]
pub struct OpenMetrics {
    text: String,
}

impl Default for OpenMetrics {
    fn default() -> OpenMetrics {
        OpenMetrics::new()
    }
}

impl OpenMetrics {
    /// Begins a text with the version that runs (`unlade_build_info`).
    pub fn new() -> OpenMetrics {
        let mut text = OpenMetrics { text: String::with_capacity(TEXT_BYTES) };
        text.head("unlade_build", "info", "The version that runs.");
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        text.samples("unlade_build", "_info").add(&labels, 1);
        text
    }

    /// Begins a family. `family` is the name without the suffix of the type; if it ends with a
    /// unit, the family has that unit. `help` is a sentence.
    pub fn family<'a>(&'a mut self, family: &'a str, kind: Kind, help: &str) -> Samples<'a> {
        self.head(family, kind.as_str(), help);
        self.samples(family, kind.suffix())
    }

    /// Begins a family of histograms, as [`family`](OpenMetrics::family) does.
    pub fn histogram<'a>(&'a mut self, family: &'a str, help: &str) -> Histograms<'a> {
        self.head(family, "histogram", help);
        Histograms { text: self, family }
    }

    /// Adds families with one sample each.
    pub fn readings(&mut self, readings: impl IntoIterator<Item = Reading>) {
        for Reading { family, kind, help, value } in readings {
            self.family(family, kind, help).add(&[], value);
        }
    }

    /// The complete text, terminated by `# EOF`: serve it as
    /// `application/openmetrics-text; version=1.0.0; charset=utf-8`.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.line(format_args!("# EOF"));
        recording::record(&self.text);
        self.text
    }

    fn head(&mut self, family: &str, kind: &str, help: &str) {
        self.line(format_args!("# TYPE {family} {kind}"));
        for unit in UNITS {
            // The unit is separate metadata, and the name must end in it.
            if family.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')) {
                self.line(format_args!("# UNIT {family} {unit}"));
            }
        }
        self.line(format_args!("# HELP {family} {}", Escaped(help)));
    }

    fn samples<'a>(&'a mut self, family: &'a str, suffix: &'static str) -> Samples<'a> {
        Samples { text: self, family, suffix }
    }

    fn line(&mut self, content: Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = self.text.write_fmt(content);
        self.text.push('\n');
    }
}

/// Adds the samples of a family.
#[derive(Debug)]
pub struct Samples<'a> {
    text: &'a mut OpenMetrics,
    family: &'a str,
    suffix: &'static str,
}

impl Samples<'_> {
    /// Adds a sample.
    pub fn add(&mut self, labels: Labels<'_>, value: impl Display) {
        let Samples { family, suffix, .. } = self;
        self.text.line(format_args!("{family}{suffix}{} {value}", Braced(labels, None)));
    }
}

/// Adds the histograms of a family.
#[derive(Debug)]
pub struct Histograms<'a> {
    text: &'a mut OpenMetrics,
    family: &'a str,
}

impl Histograms<'_> {
    /// Adds a histogram of `count` values with this `sum`. `buckets` are upper bounds in ascending
    /// order, and the number of values at or below each; the bucket without a bound follows them.
    pub fn add(
        &mut self,
        labels: Labels<'_>,
        buckets: impl IntoIterator<Item = (f64, u64)>,
        count: u64,
        sum: f64,
    ) {
        let family = self.family;
        for (bound, below) in buckets.into_iter().chain([(f64::INFINITY, count)]) {
            let braced = Braced(labels, Some(bound));
            self.text.line(format_args!("{family}_bucket{braced} {below}"));
        }
        let braced = Braced(labels, None);
        self.text.line(format_args!("{family}_count{braced} {count}"));
        self.text.line(format_args!("{family}_sum{braced} {sum}"));
    }
}

/// Labels in braces, with the upper bound of a bucket (the label `le`); nothing without labels.
struct Braced<'a>(Labels<'a>, Option<f64>);

impl Display for Braced<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Braced(labels, bound) = self;
        let mut before = '{';
        for (name, value) in *labels {
            write!(f, "{before}{name}=\"{}\"", Escaped(value))?;
            before = ',';
        }
        match bound {
            Some(bound) if bound.is_infinite() => write!(f, "{before}le=\"+Inf\"}}"),
            Some(bound) => write!(f, "{before}le=\"{bound:?}\"}}"),
            None if labels.is_empty() => Ok(()),
            None => f.write_char('}'),
        }
    }
}

/// A label's value or a help text, with the escapes of the format.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut rest = self.0;
        let is_special = |byte| matches!(byte, b'\\' | b'"' | b'\n');
        while let Some(at) = rest.bytes().position(is_special) {
            f.write_str(&rest[..at])?;
            f.write_str(match rest.as_bytes()[at] {
                b'\n' => "\\n",
                b'"' => "\\\"",
                _ => "\\\\",
            })?;
            rest = &rest[at + 1..];
        }
        f.write_str(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text after the version that runs, without the end.
    fn families(text: OpenMetrics) -> String {
        let text = text.finish();
        let (head, families) = text.split_once("\"} 1\n").unwrap();
        assert!(head.starts_with("# TYPE unlade_build info\n"), "{text}");
        families.strip_suffix("# EOF\n").expect("ends in # EOF").to_owned()
    }

    #[test]
    fn a_text_has_the_version_and_the_end() {
        let version = env!("CARGO_PKG_VERSION");
        let expected = format!(
            "# TYPE unlade_build info\n# HELP unlade_build The version that runs.\n\
             unlade_build_info{{version=\"{version}\"}} 1\n# EOF\n"
        );
        assert_eq!(OpenMetrics::new().finish(), expected);
    }

    #[test]
    fn labels_and_help_are_escaped() {
        let mut text = OpenMetrics::new();
        let mut family = text.family("unlade_x", Kind::Gauge, "A \"b\"\\c\nd.");
        family.add(&[("one", "a\\b\"c\nd"), ("two", "")], -3);
        family.add(&[("one", "é")], 4);
        let expected = "# TYPE unlade_x gauge\n# HELP unlade_x A \\\"b\\\"\\\\c\\nd.\n\
                        unlade_x{one=\"a\\\\b\\\"c\\nd\",two=\"\"} -3\nunlade_x{one=\"é\"} 4\n";
        assert_eq!(families(text), expected);
    }

    #[test]
    fn a_name_that_ends_with_a_unit_has_it() {
        let unit = |family| {
            let mut text = OpenMetrics::new();
            let _ = text.family(family, Kind::Counter, "A.");
            let text = families(text);
            let unit = text.lines().find_map(|line| line.strip_prefix("# UNIT "));
            unit.map(str::to_owned)
        };
        assert_eq!(unit("unlade_read_bytes").as_deref(), Some("unlade_read_bytes bytes"));
        assert_eq!(unit("unlade_wait_seconds").as_deref(), Some("unlade_wait_seconds seconds"));
        assert_eq!(unit("unlade_wait_nanoseconds"), None);
        assert_eq!(unit("unlade_bytes_read"), None);
        assert_eq!(unit("kilobytes"), None);
    }

    #[test]
    fn readings_have_the_suffix_of_their_type() {
        let mut text = OpenMetrics::new();
        text.readings([Reading::counter("unlade_a", "A.", 7), Reading::gauge("unlade_b", "B.", 0)]);
        let expected = "# TYPE unlade_a counter\n# HELP unlade_a A.\nunlade_a_total 7\n\
                        # TYPE unlade_b gauge\n# HELP unlade_b B.\nunlade_b 0\n";
        assert_eq!(families(text), expected);
    }

    #[test]
    fn a_histogram_ends_with_the_bucket_of_all_values() {
        let mut text = OpenMetrics::new();
        let buckets = [(1.024e-6, 1), (2.0, 3)];
        text.histogram("unlade_h", "H.").add(&[("stage", "s")], buckets, 4, 5.5);
        text.histogram("unlade_i", "I.").add(&[], [], 0, 0.0);
        let expected = "# TYPE unlade_h histogram\n# HELP unlade_h H.\n\
                        unlade_h_bucket{stage=\"s\",le=\"1.024e-6\"} 1\n\
                        unlade_h_bucket{stage=\"s\",le=\"2.0\"} 3\n\
                        unlade_h_bucket{stage=\"s\",le=\"+Inf\"} 4\n\
                        unlade_h_count{stage=\"s\"} 4\nunlade_h_sum{stage=\"s\"} 5.5\n\
                        # TYPE unlade_i histogram\n# HELP unlade_i I.\n\
                        unlade_i_bucket{le=\"+Inf\"} 0\nunlade_i_count 0\nunlade_i_sum 0\n";
        assert_eq!(families(text), expected);
    }
}
