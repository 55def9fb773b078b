//! A strict parser of OpenMetrics text (version 1.0.0), for tests of programs that serve it.

use std::collections::{BTreeMap, BTreeSet};

/// Units that must be declared if a name ends with them.
const UNITS: [&str; 2] = ["seconds", "bytes"];

/// Checks a text; returns the values of all samples by their names with their labels, as written.
///
/// The rules are those of OpenMetrics 1.0.0 for the types counter, gauge, histogram and info, and
/// those of this project: each family has its type, then its unit if its name ends with one, then
/// its help, which is a sentence, then its samples, and a name begins with `unlade_`.
///
/// # Errors
/// The first line that breaks a rule, and the rule.
pub fn parse(text: &str) -> Result<BTreeMap<String, f64>, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the text does not end with # EOF")?;
    if !body.is_empty() && !body.ends_with('\n') {
        return Err("the line before # EOF does not end".to_owned());
    }
    let mut parser = Parser::default();
    for line in body.split_terminator('\n') {
        parser.line(line).map_err(|rule| format!("{line:?}: {rule}"))?;
    }
    parser.end_family()?;
    Ok(parser.samples)
}

#[derive(Default)]
struct Parser {
    /// Names of all families so far.
    families: BTreeSet<String>,
    family: Family,
    samples: BTreeMap<String, f64>,
}

/// The family whose samples are read.
#[derive(Default)]
struct Family {
    name: String,
    kind: String,
    unit: Option<String>,
    help: bool,
    samples: usize,
    /// Labels, last bound and last count of a histogram whose buckets are read.
    buckets: Option<(String, f64, f64)>,
}

impl Parser {
    fn line(&mut self, line: &str) -> Result<(), &'static str> {
        match line.strip_prefix("# ") {
            Some(metadata) => self.metadata(metadata),
            None => self.sample(line),
        }
    }

    fn metadata(&mut self, line: &str) -> Result<(), &'static str> {
        let mut words = line.splitn(3, ' ');
        let (Some(keyword), Some(name), Some(rest)) = (words.next(), words.next(), words.next())
        else {
            return Err("metadata needs a keyword, a name and a text");
        };
        if keyword == "TYPE" {
            return self.begin(name, rest);
        }
        let family = &mut self.family;
        if name != family.name {
            return Err("metadata of another family than the type before it");
        }
        if family.samples > 0 {
            return Err("metadata after a sample");
        }
        match keyword {
            "UNIT" if family.help || family.unit.is_some() => Err("the unit follows the type"),
            "UNIT" if !name.ends_with(&format!("_{rest}")) => Err("the name lacks the unit"),
            "UNIT" => {
                family.unit = Some(rest.to_owned());
                Ok(())
            }
            "HELP" if family.help => Err("a second help"),
            "HELP" if !unescape(rest)?.ends_with('.') => Err("the help is not a sentence"),
            "HELP" => {
                family.help = true;
                Ok(())
            }
            _ => Err("an unknown keyword"),
        }
    }

    fn begin(&mut self, name: &str, kind: &str) -> Result<(), &'static str> {
        self.end_family()?;
        if !name.starts_with("unlade_") || !is_name(name) {
            return Err("not a name of a family");
        }
        if !["counter", "gauge", "histogram", "info"].contains(&kind) {
            return Err("an unknown type");
        }
        if !self.families.insert(name.to_owned()) {
            return Err("the family is declared twice");
        }
        self.family = Family { name: name.to_owned(), kind: kind.to_owned(), ..Family::default() };
        Ok(())
    }

    /// Checks the family before the current line, if there is one.
    fn end_family(&self) -> Result<(), &'static str> {
        let Family { name, unit, help, samples, buckets, .. } = &self.family;
        let named = UNITS.into_iter().find(|unit| name.ends_with(&format!("_{unit}")));
        if name.is_empty() {
            return Ok(());
        }
        if unit.as_deref() != named {
            return Err("the family before lacks its unit");
        }
        if !help || *samples == 0 {
            return Err("the family before lacks its help or its samples");
        }
        if buckets.is_some() {
            return Err("the histogram before lacks its count");
        }
        Ok(())
    }

    fn sample(&mut self, line: &str) -> Result<(), &'static str> {
        let bare = line.split(['{', ' ']).next().unwrap_or_default();
        let (labels, value) = match line[bare.len()..].strip_prefix('{') {
            None => (Vec::new(), line[bare.len()..].strip_prefix(' ').ok_or("no value")?),
            Some(rest) => labels(rest)?,
        };
        let name =
            line.strip_suffix(&format!(" {value}")).ok_or("one space is before the value")?;
        let number: f64 = value.parse().map_err(|_| "the value is not a number")?;
        let family = &mut self.family;
        let suffix = bare.strip_prefix(family.name.as_str()).filter(|_| !family.name.is_empty());
        let suffix = suffix.ok_or("the sample is of another family than the type before it")?;
        if !family.help {
            return Err("a sample without help before it");
        }
        match (family.kind.as_str(), suffix) {
            ("gauge", "") => {}
            ("counter", "_total") if number >= 0.0 && number.is_finite() => {}
            ("info", "_info") if number == 1.0 => {}
            ("histogram", "_bucket" | "_count" | "_sum") => {
                family.part(suffix, &labels, number)?;
            }
            _ => return Err("a suffix or a value that the type does not have"),
        }
        family.samples += 1;
        match self.samples.insert(name.to_owned(), number) {
            None => Ok(()),
            Some(_) => Err("the sample appears twice"),
        }
    }
}

impl Family {
    /// Checks one line of a histogram: buckets in ascending order up to `+Inf`, then the count,
    /// which is that of the last bucket, then the sum.
    fn part(
        &mut self,
        suffix: &str,
        labels: &[(String, String)],
        value: f64,
    ) -> Result<(), &'static str> {
        let own: Vec<_> = labels.iter().filter(|(name, _)| name != "le").collect();
        let own = format!("{own:?}");
        let bound = labels.iter().find(|(name, _)| name == "le").map(|(_, bound)| bound.as_str());
        match (suffix, bound, self.buckets.take()) {
            ("_bucket", Some(bound), before) => {
                let bound = match bound {
                    "+Inf" => f64::INFINITY,
                    bound => bound.parse().map_err(|_| "the bound is not a number")?,
                };
                let ascends = before.is_none_or(|(labels, last, below)| {
                    labels == own && last < bound && below <= value
                });
                self.buckets = Some((own, bound, value));
                if ascends { Ok(()) } else { Err("the buckets do not ascend") }
            }
            ("_count", None, Some((labels, bound, below))) => {
                let is_complete = labels == own && bound.is_infinite() && below == value;
                if is_complete { Ok(()) } else { Err("the count is not that of the last bucket") }
            }
            ("_sum", None, None) => Ok(()),
            _ => Err("the parts of the histogram are not in their order"),
        }
    }
}

fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
    name.bytes().all(is_allowed) && name.starts_with(|first: char| first.is_ascii_lowercase())
}

/// Labels and their values, without escapes.
type Labels = Vec<(String, String)>;

/// Splits the text after an opening brace into the labels, without escapes, and the value.
fn labels(mut rest: &str) -> Result<(Labels, &str), &'static str> {
    let mut labels = Labels::new();
    loop {
        let (name, quoted) = rest.split_once("=\"").ok_or("a label has no value")?;
        if !is_name(name) || labels.iter().any(|(known, _)| known == name) {
            return Err("not a name of a label, or a label twice");
        }
        let end = closing_quote(quoted).ok_or("a label's value does not end")?;
        labels.push((name.to_owned(), unescape(&quoted[..end])?));
        rest = &quoted[end + 1..];
        if let Some(value) = rest.strip_prefix("} ") {
            return Ok((labels, value));
        }
        rest = rest.strip_prefix(',').ok_or("a comma or a brace is missing after a label")?;
    }
}

fn closing_quote(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        ends
    })
}

fn unescape(text: &str) -> Result<String, &'static str> {
    let mut plain = String::new();
    let mut rest = text.chars();
    while let Some(next) = rest.next() {
        match next {
            '"' => return Err("a quote without its escape"),
            '\\' => match rest.next() {
                Some('n') => plain.push('\n'),
                Some(same @ ('\\' | '"')) => plain.push(same),
                _ => return Err("an unknown escape"),
            },
            other => plain.push(other),
        }
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "# TYPE unlade_b info\n# HELP unlade_b The \\\"version\\\".\n\
        unlade_b_info{version=\"1\"} 1\n\
        # TYPE unlade_read_bytes counter\n# UNIT unlade_read_bytes bytes\n\
        # HELP unlade_read_bytes Bytes.\n\
        unlade_read_bytes_total{of=\"a\\\"} ,\\\\\",by=\"\"} 2\nunlade_read_bytes_total 3\n\
        # TYPE unlade_g gauge\n# HELP unlade_g Things.\nunlade_g -1\n\
        # TYPE unlade_h histogram\n# HELP unlade_h Times.\n\
        unlade_h_bucket{s=\"a\",le=\"1e-3\"} 1\nunlade_h_bucket{s=\"a\",le=\"+Inf\"} 2\n\
        unlade_h_count{s=\"a\"} 2\nunlade_h_sum{s=\"a\"} 0.5\n# EOF\n";

    #[test]
    fn a_good_text_has_its_samples() {
        let samples = parse(GOOD).unwrap();
        assert_eq!(samples.len(), 8);
        assert_eq!(samples["unlade_read_bytes_total{of=\"a\\\"} ,\\\\\",by=\"\"}"], 2.0);
        assert_eq!((samples["unlade_g"], samples["unlade_h_sum{s=\"a\"}"]), (-1.0, 0.5));
        assert!(parse("# EOF\n").unwrap().is_empty());
    }

    #[test]
    fn a_line_that_breaks_a_rule_is_an_error() {
        for (good, bad) in [
            ("# EOF\n", ""),
            ("0.5\n# EOF", "0.5# EOF"),
            ("unlade_g -1\n", "unlade_g -1\n\n"),
            ("unlade_g -1\n", "unlade_g -1\n# EOF\n"),
            ("unlade_g -1\n", ""),
            ("unlade_g -1\n", "unlade_g -1\nunlade_g 2\n"),
            ("unlade_g -1\n", "unlade_g  -1\n"),
            ("unlade_g -1\n", "unlade_g x\n"),
            ("unlade_g -1\n", "unlade_g_total 1\n"),
            ("unlade_g -1\n", "unlade_g -1\n# HELP unlade_g Things.\n"),
            ("# TYPE unlade_g gauge\n", ""),
            ("# TYPE unlade_g gauge\n", "# TYPE unlade_h gauge\n"),
            ("unlade_g", "unlade_b"),
            ("unlade_g", "g"),
            ("gauge", "summary"),
            ("# HELP unlade_g Things.\n", ""),
            ("Things.", "Things"),
            ("Things.", "\"Things\"."),
            ("# UNIT unlade_read_bytes bytes\n", ""),
            ("# UNIT unlade_read_bytes bytes\n", "# UNIT unlade_read_bytes seconds\n"),
            ("_total 3", " 3"),
            ("_total 3", "_total -3"),
            ("a\\\"} ", "a\"} "),
            ("a\\\"} ", "a\\x} "),
            (",by", ",of"),
            ("version=\"1\"} 1", "version=\"1\"} 2"),
            ("le=\"+Inf\"} 2", "le=\"+Inf\"} 0"),
            ("le=\"+Inf\"} 2", "le=\"1e-4\"} 2"),
            ("unlade_h_count{s=\"a\"} 2\n", "unlade_h_count{s=\"a\"} 3\n"),
            ("unlade_h_count{s=\"a\"} 2\n", ""),
        ] {
            let text = GOOD.replace(good, bad);
            assert_ne!(text, GOOD, "{good}");
            assert!(parse(&text).is_err(), "{good:?} -> {bad:?}:\n{text}");
        }
    }
}
