//! Conditional requests (RFC 9110 §13): decides if a request applies to the object's current state.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Validators of an object (RFC 9110 §8.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Validators<'a> {
    /// The strong entity tag, with its quotes.
    pub etag: &'a [u8],
    /// Last-Modified, in seconds since 1970.
    pub modified_s: u64,
}

/// Result of evaluating a request's conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The request is processed.
    Proceed,
    /// The response is 304, to a GET or HEAD.
    NotModified,
    /// The response is 412.
    Failed,
    /// The response is 400: a condition of a PUT or DELETE is malformed, and ignoring it could lose
    /// data.
    Malformed,
}

/// The condition fields of one request. Lists may come in several lines.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Conditions {
    if_match: Vec<Vec<u8>>,
    if_none_match: Vec<Vec<u8>>,
    if_modified_since: Option<u64>,
    if_unmodified_since: Option<u64>,
    if_range: Option<Vec<u8>>,
}

/// Returns true for the fields that [`Conditions::read`] keeps. The check is cheap, for requests
/// without conditions.
pub fn is_condition(name: &str) -> bool {
    let (Some(prefix), Some(rest)) = (name.get(..3), name.get(3..)) else { return false };
    prefix.eq_ignore_ascii_case("if-")
        && ["match", "none-match", "modified-since", "unmodified-since", "range"]
            .iter()
            .any(|known| rest.eq_ignore_ascii_case(known))
}

impl Conditions {
    /// Reads the condition fields of a head. Invalid dates are ignored, as §13.1.3 and §13.1.4
    /// require.
    pub fn read<'b>(fields: impl Iterator<Item = (&'b str, &'b [u8])>) -> Conditions {
        let mut conditions = Conditions::default();
        for (name, value) in fields.filter(|(name, _)| is_condition(name)) {
            match name.to_ascii_lowercase().as_str() {
                "if-match" => conditions.if_match.push(value.to_vec()),
                "if-none-match" => conditions.if_none_match.push(value.to_vec()),
                "if-modified-since" => conditions.if_modified_since = date(value),
                "if-unmodified-since" => conditions.if_unmodified_since = date(value),
                _ => conditions.if_range = Some(value.to_vec()),
            }
        }
        conditions
    }

    /// Evaluates the conditions in the order of §13.2.2. `current` is None if the object does not
    /// exist; `reading` is true for GET and HEAD.
    pub fn evaluate(&self, current: Option<Validators<'_>>, reading: bool) -> Verdict {
        if !self.if_match.is_empty() {
            match list_matches(&self.if_match, current, Comparison::Strong) {
                Some(true) => {}
                None if !reading => return Verdict::Malformed,
                _ => return Verdict::Failed,
            }
        } else if let (Some(limit_s), Some(current)) = (self.if_unmodified_since, current)
            && current.modified_s > limit_s
        {
            return Verdict::Failed;
        }
        if !self.if_none_match.is_empty() {
            return match list_matches(&self.if_none_match, current, Comparison::Weak) {
                Some(true) if reading => Verdict::NotModified,
                Some(true) => Verdict::Failed,
                None if !reading => Verdict::Malformed,
                _ => Verdict::Proceed,
            };
        }
        match (self.if_modified_since, current) {
            (Some(since_s), Some(current)) if reading && current.modified_s <= since_s => {
                Verdict::NotModified
            }
            _ => Verdict::Proceed,
        }
    }

    /// Returns true if a Range field applies (§13.1.5): there is no If-Range, or it matches the
    /// object. A date matches only if it is a strong validator (§8.8.2.2), at least one second in
    /// the past at `now_s`.
    pub fn range_applies(&self, current: Validators<'_>, now_s: u64) -> bool {
        match self.if_range.as_deref().map(<[u8]>::trim_ascii) {
            None => true,
            Some(value) if value.starts_with(b"\"") => value == current.etag,
            Some(value) if value.starts_with(b"W/") => false,
            Some(value) => date(value) == Some(current.modified_s) && current.modified_s < now_s,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Comparison {
    Strong,
    Weak,
}

/// Returns true if any entity tag of the list (over all its lines) is the current one. Returns None
/// if a line is malformed and no tag matched.
fn list_matches(
    lines: &[Vec<u8>],
    current: Option<Validators<'_>>,
    comparison: Comparison,
) -> Option<bool> {
    let mut malformed = false;
    for line in lines {
        if line.trim_ascii() == b"*" {
            return Some(current.is_some());
        }
        let mut rest = line.trim_ascii();
        while !rest.is_empty() {
            let Some((weak, tag, after)) = next_tag(rest) else {
                malformed = true;
                break;
            };
            let comparable = comparison == Comparison::Weak || !weak;
            if comparable && current.is_some_and(|current| current.etag == tag) {
                return Some(true);
            }
            rest = after;
        }
    }
    (!malformed).then_some(false)
}

/// Parses one entity tag (§8.8.3): (is weak, tag with quotes, rest behind the comma).
fn next_tag(list: &[u8]) -> Option<(bool, &[u8], &[u8])> {
    let (weak, list) = match list.strip_prefix(b"W/") {
        Some(list) => (true, list),
        None => (false, list),
    };
    let inner = list.strip_prefix(b"\"")?;
    let close = inner.iter().position(|byte| *byte == b'"')?;
    if inner.get(..close)?.iter().any(|byte| *byte <= 0x20 || *byte == 0x7f) {
        return None;
    }
    let tag = list.get(..close + 2)?;
    let mut after = inner.get(close + 1..)?.trim_ascii_start();
    if !after.is_empty() {
        after = after.strip_prefix(b",")?;
        while let Some(next) = after.trim_ascii_start().strip_prefix(b",") {
            after = next;
        }
        after = after.trim_ascii_start();
    }
    Some((weak, tag, after))
}

/// Parses an HTTP date in any of its three forms (§5.6.7) into seconds since 1970.
fn date(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim_ascii();
    let time = httpdate::parse_http_date(text).ok()?;
    time.duration_since(UNIX_EPOCH).ok().map(|since| since.as_secs())
}

/// Converts a time into seconds since 1970.
pub fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Sun, 06 Nov 1994 08:49:37 GMT.
    const THEN_S: u64 = 784_111_777;
    const THEN: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const NOW: Option<Validators<'static>> =
        Some(Validators { etag: b"\"x1\"", modified_s: THEN_S });

    fn conditions(fields: &[(&str, &str)]) -> Conditions {
        Conditions::read(fields.iter().map(|(name, value)| (*name, value.as_bytes())))
    }

    fn read(fields: &[(&str, &str)]) -> Verdict {
        conditions(fields).evaluate(NOW, true)
    }

    fn write(fields: &[(&str, &str)], current: Option<Validators<'_>>) -> Verdict {
        conditions(fields).evaluate(current, false)
    }

    #[test]
    fn if_match_is_strong() {
        assert_eq!(read(&[("If-Match", "\"x1\"")]), Verdict::Proceed);
        assert_eq!(read(&[("If-Match", "\"a\", \"x1\"")]), Verdict::Proceed);
        assert_eq!(read(&[("If-Match", "\"a\""), ("if-match", "\"x1\"")]), Verdict::Proceed);
        assert_eq!(read(&[("If-Match", "W/\"x1\"")]), Verdict::Failed);
        assert_eq!(read(&[("If-Match", "\"a\"")]), Verdict::Failed);
        assert_eq!(write(&[("If-Match", "*")], NOW), Verdict::Proceed);
        assert_eq!(write(&[("If-Match", "*")], None), Verdict::Failed);
        assert_eq!(write(&[("If-Match", "\"x1\"")], None), Verdict::Failed);
    }

    #[test]
    fn if_none_match_is_weak() {
        assert_eq!(read(&[("If-None-Match", "\"x1\"")]), Verdict::NotModified);
        assert_eq!(read(&[("If-None-Match", "W/\"x1\"")]), Verdict::NotModified);
        assert_eq!(read(&[("If-None-Match", "\"a\",,\"x1\"")]), Verdict::NotModified);
        assert_eq!(read(&[("If-None-Match", "\"a\"")]), Verdict::Proceed);
        assert_eq!(read(&[("If-None-Match", "*")]), Verdict::NotModified);
        assert_eq!(write(&[("If-None-Match", "*")], NOW), Verdict::Failed);
        assert_eq!(write(&[("If-None-Match", "*")], None), Verdict::Proceed);
        assert_eq!(write(&[("If-None-Match", "\"x1\"")], NOW), Verdict::Failed);
    }

    #[test]
    fn dates_count_only_without_tags() {
        assert_eq!(read(&[("If-Modified-Since", THEN)]), Verdict::NotModified);
        assert_eq!(read(&[("If-Modified-Since", EARLIER)]), Verdict::Proceed);
        assert_eq!(read(&[("If-Modified-Since", "yesterday")]), Verdict::Proceed);
        assert_eq!(write(&[("If-Modified-Since", THEN)], NOW), Verdict::Proceed);
        let both = [("If-None-Match", "\"a\""), ("If-Modified-Since", THEN)];
        assert_eq!(read(&both), Verdict::Proceed);
        assert_eq!(write(&[("If-Unmodified-Since", EARLIER)], NOW), Verdict::Failed);
        assert_eq!(write(&[("If-Unmodified-Since", THEN)], NOW), Verdict::Proceed);
        assert_eq!(write(&[("If-Unmodified-Since", "soon")], NOW), Verdict::Proceed);
        let both = [("If-Match", "\"x1\""), ("If-Unmodified-Since", EARLIER)];
        assert_eq!(write(&both, NOW), Verdict::Proceed);
        let old_forms = ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"];
        for form in old_forms {
            assert_eq!(read(&[("If-Modified-Since", form)]), Verdict::NotModified, "{form}");
        }
    }

    #[test]
    fn lists_that_cannot_be_read_stop_only_what_changes_something() {
        for bad in ["x1", "\"x1", "\"a\" \"x1\"", "W/", "\"a b\""] {
            assert_eq!(read(&[("If-None-Match", bad)]), Verdict::Proceed, "{bad}");
            assert_eq!(write(&[("If-None-Match", bad)], NOW), Verdict::Malformed, "{bad}");
            assert_eq!(write(&[("If-Match", bad)], NOW), Verdict::Malformed, "{bad}");
        }
    }

    #[test]
    fn if_range_needs_a_strong_match() {
        let current = NOW.unwrap();
        let applies =
            |value: &str| conditions(&[("If-Range", value)]).range_applies(current, THEN_S + 1);
        assert!(conditions(&[]).range_applies(current, 0));
        assert!(applies("\"x1\"") && applies(THEN));
        assert!(!applies("\"x2\"") && !applies("W/\"x1\"") && !applies(EARLIER) && !applies("x1"));
        let dated = conditions(&[("If-Range", THEN)]);
        assert!(!dated.range_applies(current, THEN_S), "may still change within its second");
    }

    #[test]
    fn only_condition_fields_are_kept() {
        assert!(is_condition("IF-NONE-MATCH") && is_condition("if-range"));
        assert!(!is_condition("if") && !is_condition("if-x") && !is_condition("host"));
        assert_eq!(conditions(&[("Host", "a"), ("If-X", "b")]), Conditions::default());
    }

    proptest! {
        #[test]
        fn hostile_lists_are_harmless(list in proptest::collection::vec(any::<u8>(), 0..60)) {
            let fields = [("if-match", list.as_slice()), ("if-none-match", list.as_slice()),
                          ("if-range", list.as_slice()), ("if-modified-since", list.as_slice())];
            let read = Conditions::read(fields.into_iter());
            let _ = read.evaluate(NOW, true);
            let _ = read.evaluate(None, false);
            let _ = read.range_applies(NOW.unwrap(), 0);
        }

        #[test]
        fn a_tag_is_found_wherever_it_stands(
            others in proptest::collection::vec("[a-wyz]{1,5}", 0..6),
            at in 0usize..7,
            weak: bool,
        ) {
            let mut tags: Vec<String> = others.iter().map(|tag| format!("\"{tag}\"")).collect();
            let own = if weak { "W/\"x1\"" } else { "\"x1\"" };
            tags.insert(at.min(tags.len()), own.to_owned());
            let list = tags.join(" , ");
            prop_assert_eq!(read(&[("If-None-Match", &list)]), Verdict::NotModified);
            let expected = if weak { Verdict::Failed } else { Verdict::Proceed };
            prop_assert_eq!(read(&[("If-Match", &list)]), expected);
        }
    }
}
