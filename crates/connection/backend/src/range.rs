//! Range requests (RFC 9110 §14): selects the part of an object that a Range field requests.

/// Selected part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selection {
    /// The whole object, with 200: there is no Range field, or it is ignored (another unit,
    /// malformed, several ranges).
    Full,
    /// `bytes` bytes (at least 1) from `offset`, with 206.
    Part {
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// 416: the range selects no byte of the object.
    Unsatisfiable,
}

/// Evaluates a Range field's value for an object of `object_bytes` bytes.
///
/// Several ranges or a malformed field select the whole object, as §14.2 allows.
pub fn select(field: &[u8], object_bytes: u64) -> Selection {
    let Some(spec) = only_spec(field) else { return Selection::Full };
    let Some(dash) = spec.iter().position(|byte| *byte == b'-') else { return Selection::Full };
    let (first, last) = (spec.get(..dash).unwrap_or(&[]), spec.get(dash + 1..).unwrap_or(&[]));
    match (first.is_empty(), last.is_empty()) {
        (true, true) => Selection::Full,
        (true, false) => number(last).map_or(Selection::Full, |bytes| suffix(bytes, object_bytes)),
        (false, true) => {
            number(first).map_or(Selection::Full, |first| span(first, u64::MAX, object_bytes))
        }
        (false, false) => match (number(first), number(last)) {
            (Some(first), Some(last)) if first <= last => span(first, last, object_bytes),
            _ => Selection::Full,
        },
    }
}

/// Returns the only range of a `bytes=` field, without empty list elements (RFC 9110 §5.6.1).
fn only_spec(field: &[u8]) -> Option<&[u8]> {
    let equals = field.iter().position(|byte| *byte == b'=')?;
    let (unit, set) = (field.get(..equals)?, field.get(equals + 1..)?);
    if !unit.trim_ascii().eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let mut specs = set.split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let mut filled = specs.by_ref().filter(|spec| !spec.is_empty());
    let only = filled.next()?;
    filled.next().is_none().then_some(only)
}

/// Parses a decimal number; values above 64 bits saturate.
fn number(digits: &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for byte in digits {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit <= 9)?;
        value = value.saturating_mul(10).saturating_add(u64::from(digit));
    }
    Some(value)
}

fn span(first: u64, last: u64, object_bytes: u64) -> Selection {
    if first >= object_bytes {
        return Selection::Unsatisfiable;
    }
    let last = last.min(object_bytes - 1);
    Selection::Part { offset: first, bytes: last - first + 1 }
}

fn suffix(bytes: u64, object_bytes: u64) -> Selection {
    match (bytes.min(object_bytes), bytes) {
        (_, 0) => Selection::Unsatisfiable,
        // A suffix of an empty object is satisfiable, but Content-Range cannot express an empty
        // range.
        (0, _) => Selection::Full,
        (part, _) => Selection::Part { offset: object_bytes - part, bytes: part },
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn part(offset: u64, bytes: u64) -> Selection {
        Selection::Part { offset, bytes }
    }

    #[test]
    fn the_examples_of_rfc_9110() {
        assert_eq!(select(b"bytes=0-499", 10_000), part(0, 500));
        assert_eq!(select(b"bytes=500-999", 10_000), part(500, 500));
        assert_eq!(select(b"bytes=-500", 10_000), part(9500, 500));
        assert_eq!(select(b"bytes=9500-", 10_000), part(9500, 500));
        assert_eq!(select(b"bytes=0-0", 10_000), part(0, 1));
        assert_eq!(select(b"bytes=0-0,-1", 10_000), Selection::Full);
    }

    #[test]
    fn edges() {
        assert_eq!(select(b"bytes=0-", 0), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=-0", 10), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=-1", 0), Selection::Full);
        assert_eq!(select(b"bytes=-99", 10), part(0, 10));
        assert_eq!(select(b"bytes=10-", 10), Selection::Unsatisfiable);
        assert_eq!(select(b"bytes=9-99999999999999999999999999", 10), part(9, 1));
        assert_eq!(select(b"bytes=99999999999999999999999999-", 10), Selection::Unsatisfiable);
        assert_eq!(select(b"BYTES= 2-3 ,,", 10), part(2, 2));
    }

    #[test]
    fn what_is_no_range_is_ignored() {
        for field in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=a-b",
            "bytes=5-2",
            "bytes=1",
            "lines=0-1",
            "bytes=1-2-3",
            "bytes=+1-2",
            "bytes=1 -2",
            "=0-1",
            "bytes=,",
            "bytes=--1",
        ] {
            assert_eq!(select(field.as_bytes(), 10), Selection::Full, "{field}");
        }
    }

    /// Reference implementation: the offsets of the selected bytes.
    fn oracle(first: Option<u64>, last: Option<u64>, object_bytes: u64) -> Vec<u64> {
        (0..object_bytes)
            .filter(|at| match (first, last) {
                (Some(first), Some(last)) => *at >= first && *at <= last,
                (Some(first), None) => *at >= first,
                (None, Some(suffix)) => object_bytes - at <= suffix,
                (None, None) => true,
            })
            .collect()
    }

    proptest! {
        #[test]
        fn agrees_with_byte_by_byte_choice(
            first in proptest::option::of(0u64..40),
            last in proptest::option::of(0u64..40),
            object_bytes in 0u64..32,
        ) {
            let text = |side: Option<u64>| side.map(|n| n.to_string()).unwrap_or_default();
            let field = format!("bytes={}-{}", text(first), text(last));
            let chosen = oracle(first, last, object_bytes);
            match select(field.as_bytes(), object_bytes) {
                Selection::Full => {
                    let ignored = (first.is_none() && last.is_none())
                        || matches!((first, last), (Some(f), Some(l)) if l < f)
                        || (object_bytes == 0 && first.is_none() && last > Some(0));
                    prop_assert!(ignored, "{} of {}", field, object_bytes);
                }
                Selection::Unsatisfiable => prop_assert!(chosen.is_empty()),
                Selection::Part { offset, bytes } => {
                    let got: Vec<u64> = (offset..offset + bytes).collect();
                    prop_assert_eq!(got, chosen);
                }
            }
        }

        #[test]
        fn any_bytes_are_harmless(field in proptest::collection::vec(any::<u8>(), 0..40),
                                   object_bytes: u64) {
            if let Selection::Part { offset, bytes } = select(&field, object_bytes) {
                prop_assert!(bytes > 0 && offset.checked_add(bytes).unwrap() <= object_bytes);
            }
        }
    }
}
