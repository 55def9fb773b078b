//! Condition operators of policy documents: the comparison of one value of a request with one value
//! of a document.

use std::cmp::Ordering;
use std::net::IpAddr;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::facts::Facts;
use super::pattern::{Resolved, Template, matches, text};

/// A comparison of numbers or times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compare {
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// An operator without its negation and its additions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Text,
    TextIgnoringCase,
    Like,
    Number(Compare),
    Date(Compare),
    Bool,
    Address,
    Arn,
    Null,
}

/// A value in a document.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expected {
    Text(Template),
    Number(Number),
    /// Nanoseconds since 1970.
    Time(i128),
    Flag(bool),
    Network(Network),
    Arn(Box<[Template; ARN_PARTS]>),
}

/// The result of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    Yes,
    No,
    /// The host cannot tell.
    Unknown,
}

/// A finite number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Integer(i128),
    Other(f64),
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    bits: u128,
    is_v6: bool,
    prefix: u32,
}

/// Parts of an ARN.
pub(super) const ARN_PARTS: usize = 6;

impl From<bool> for Is {
    fn from(is: bool) -> Is {
        if is { Is::Yes } else { Is::No }
    }
}

impl Is {
    pub(super) fn not(self) -> Is {
        match self {
            Is::Yes => Is::No,
            Is::No => Is::Yes,
            Is::Unknown => Is::Unknown,
        }
    }

    /// Yes if one of them is.
    pub(super) fn any(all: impl IntoIterator<Item = Is>) -> Is {
        let mut found = Is::No;
        for is in all {
            match is {
                Is::Yes => return Is::Yes,
                Is::Unknown => found = Is::Unknown,
                Is::No => {}
            }
        }
        found
    }

    /// Yes if all of them are.
    pub(super) fn all(all: impl IntoIterator<Item = Is>) -> Is {
        Is::any(all.into_iter().map(Is::not)).not()
    }
}

/// Finds an operator by its name without `IfExists` and without a set; with its negation.
pub(super) fn find(name: &str) -> Option<(Operator, bool)> {
    let compare = |name: &str| {
        Some(match name {
            "Equals" => (Compare::Equal, false),
            "NotEquals" => (Compare::Equal, true),
            "LessThan" => (Compare::Less, false),
            "LessThanEquals" => (Compare::LessOrEqual, false),
            "GreaterThan" => (Compare::Greater, false),
            "GreaterThanEquals" => (Compare::GreaterOrEqual, false),
            _ => return None,
        })
    };
    Some(match name {
        "StringEquals" => (Operator::Text, false),
        "StringNotEquals" => (Operator::Text, true),
        "StringEqualsIgnoreCase" => (Operator::TextIgnoringCase, false),
        "StringNotEqualsIgnoreCase" => (Operator::TextIgnoringCase, true),
        "StringLike" => (Operator::Like, false),
        "StringNotLike" => (Operator::Like, true),
        "Bool" => (Operator::Bool, false),
        "IpAddress" => (Operator::Address, false),
        "NotIpAddress" => (Operator::Address, true),
        "ArnEquals" | "ArnLike" => (Operator::Arn, false),
        "ArnNotEquals" | "ArnNotLike" => (Operator::Arn, true),
        "Null" => (Operator::Null, false),
        _ => {
            let number = name.strip_prefix("Numeric").and_then(compare);
            let number = number.map(|(how, is_not)| (Operator::Number(how), is_not));
            let date = name.strip_prefix("Date").and_then(compare);
            return number.or(date.map(|(how, is_not)| (Operator::Date(how), is_not)));
        }
    })
}

impl Operator {
    /// Parses a value of a document. `is_known` tells the keys that may be variables; without it
    /// the value has none.
    ///
    /// # Errors
    /// The value is none of the operator.
    pub(super) fn parse(
        self,
        text: &str,
        is_known: Option<&dyn Fn(&str) -> bool>,
    ) -> Result<Expected, String> {
        let wrong = |due: &str| format!("{text:?} is not {due}");
        Ok(match self {
            Operator::Text | Operator::TextIgnoringCase => {
                Expected::Text(Template::parse(text, false, is_known)?)
            }
            Operator::Like => Expected::Text(Template::parse(text, true, is_known)?),
            Operator::Number(_) => {
                Expected::Number(Number::parse(text).ok_or_else(|| wrong("a number"))?)
            }
            Operator::Date(_) => Expected::Time(instant(text).ok_or_else(|| {
                wrong("a time: 2026-01-31T12:00:00Z, 2026-01-31, or seconds since 1970")
            })?),
            Operator::Bool | Operator::Null => {
                Expected::Flag(flag(text).ok_or_else(|| wrong("true or false"))?)
            }
            Operator::Address => Expected::Network(
                Network::parse(text).ok_or_else(|| wrong("an address or a range: 10.0.0.0/8"))?,
            ),
            Operator::Arn => {
                let parts: [&str; ARN_PARTS] =
                    arn_parts(text).try_into().map_err(|_| wrong("an ARN of six parts"))?;
                let template = |part: &str| Template::parse(part, true, is_known);
                let templates = parts.into_iter().map(template).collect::<Result<Vec<_>, _>>()?;
                let templates = templates.try_into().map_err(|_| wrong("an ARN of six parts"))?;
                Expected::Arn(Box::new(templates))
            }
        })
    }

    /// Compares a value of a request.
    pub(super) fn compare(self, value: &str, expected: &Expected, facts: &Facts) -> Is {
        match (self, expected) {
            (Operator::TextIgnoringCase, Expected::Text(template)) => {
                match template.resolve(facts) {
                    Resolved::Pattern(due) => {
                        (text(&due).to_lowercase() == value.to_lowercase()).into()
                    }
                    Resolved::Absent => Is::No,
                    Resolved::Unknown => Is::Unknown,
                }
            }
            (_, Expected::Text(template)) => like(template, value, facts),
            (Operator::Number(how), Expected::Number(due)) => {
                let found = Number::parse(value).and_then(|found| found.compare(*due));
                found.map_or(Is::Unknown, |order| how.is(order).into())
            }
            (Operator::Date(how), Expected::Time(due)) => {
                instant(value).map_or(Is::Unknown, |found| how.is(found.cmp(due)).into())
            }
            (_, Expected::Flag(due)) => {
                flag(value).map_or(Is::Unknown, |found| (found == *due).into())
            }
            (_, Expected::Network(network)) => match value.parse::<IpAddr>() {
                Ok(address) => network.has(address).into(),
                Err(_) => Is::Unknown,
            },
            (_, Expected::Arn(parts)) => {
                let found: Vec<&str> = value.splitn(ARN_PARTS, ':').collect();
                let is_arn = Is::from(found.len() == ARN_PARTS);
                let each = parts.iter().zip(&found).map(|(part, text)| like(part, text, facts));
                Is::all(std::iter::once(is_arn).chain(each))
            }
            // Values are parsed by their operator.
            (Operator::Number(_) | Operator::Date(_), _) => Is::Unknown,
            (_, Expected::Number(_) | Expected::Time(_)) => Is::Unknown,
        }
    }
}

/// The parts of an ARN with variables, whose colons divide nothing.
fn arn_parts(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut is_variable) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '{' if text[..at].ends_with('$') => is_variable = true,
            '}' => is_variable = false,
            ':' if !is_variable && parts.len() + 1 < ARN_PARTS => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
}

fn like(template: &Template, text: &str, facts: &Facts) -> Is {
    match template.resolve(facts) {
        Resolved::Pattern(pattern) => matches(&pattern, text).into(),
        Resolved::Absent => Is::No,
        Resolved::Unknown => Is::Unknown,
    }
}

impl Compare {
    fn is(self, order: Ordering) -> bool {
        match self {
            Compare::Equal => order.is_eq(),
            Compare::Less => order.is_lt(),
            Compare::LessOrEqual => order.is_le(),
            Compare::Greater => order.is_gt(),
            Compare::GreaterOrEqual => order.is_ge(),
        }
    }
}

fn flag(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

impl Number {
    fn parse(text: &str) -> Option<Number> {
        let is_plain = |c: char| c.is_ascii_digit() || "+-.eE".contains(c);
        if text.is_empty() || !text.chars().all(is_plain) {
            return None;
        }
        match text.parse() {
            Ok(integer) => Some(Number::Integer(integer)),
            Err(_) => {
                let other = text.parse::<f64>().ok().filter(|number| number.is_finite());
                other.map(Number::Other)
            }
        }
    }

    fn compare(self, other: Number) -> Option<Ordering> {
        let float = |number: Number| match number {
            Number::Integer(integer) => integer as f64,
            Number::Other(other) => other,
        };
        match (self, other) {
            (Number::Integer(a), Number::Integer(b)) => Some(a.cmp(&b)),
            (a, b) => float(a).partial_cmp(&float(b)),
        }
    }
}

/// Nanoseconds since 1970 of a time: seconds since 1970, a date, or a date and a time of ISO 8601.
fn instant(text: &str) -> Option<i128> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.len() > 4 {
        let seconds: i64 = text.parse().ok()?;
        return Some(OffsetDateTime::from_unix_timestamp(seconds).ok()?.unix_timestamp_nanos());
    }
    let full = match text.len() {
        // A year, a month, or a day begins at midnight.
        4 => format!("{text}-01-01T00:00:00Z"),
        7 => format!("{text}-01T00:00:00Z"),
        10 => format!("{text}T00:00:00Z"),
        // Seconds may be left out: 2026-01-31T12:00Z, 2026-01-31T12:00+01:00.
        17 | 22 if text.get(16..17) != Some(":") => {
            format!("{}:00{}", text.get(..16)?, text.get(16..)?)
        }
        _ => text.to_owned(),
    };
    Some(OffsetDateTime::parse(&full, &Rfc3339).ok()?.unix_timestamp_nanos())
}

impl Network {
    fn parse(text: &str) -> Option<Network> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let all = if address.is_ipv6() { 128 } else { 32 };
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let prefix = match prefix {
            None => all,
            Some(text) => text.parse().ok().filter(|n| is_number(text) && *n <= all)?,
        };
        Some(Network { bits: bits(address), is_v6: address.is_ipv6(), prefix })
    }

    fn has(self, address: IpAddr) -> bool {
        // A listener for both versions gives addresses of version 4 in those of version 6.
        let address = if self.is_v6 { address } else { address.to_canonical() };
        let length = if self.is_v6 { 128 } else { 32 };
        let shift = length - self.prefix;
        let start = |bits: u128| bits.checked_shr(shift).unwrap_or(0);
        address.is_ipv6() == self.is_v6 && start(bits(address)) == start(self.bits)
    }
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(name: &str, value: &str, expected: &str) -> Is {
        let (operator, is_not) = find(name).unwrap();
        let expected = operator.parse(expected, None).unwrap();
        let is = operator.compare(value, &expected, &Facts::default());
        if is_not { is.not() } else { is }
    }

    #[test]
    fn values_are_compared() {
        for (name, value, expected, is) in [
            ("StringEquals", "a", "a", true),
            ("StringEquals", "A", "a", false),
            ("StringEquals", "ab", "a*", false),
            ("StringNotEquals", "b", "a", true),
            ("StringEqualsIgnoreCase", "ÄB", "äb", true),
            ("StringEqualsIgnoreCase", "ab", "a*", false),
            ("StringNotEqualsIgnoreCase", "A", "a", false),
            ("StringLike", "abc", "a*c", true),
            ("StringLike", "Abc", "a*c", false),
            ("StringNotLike", "abc", "a?c", false),
            ("NumericEquals", "7", "7.0", true),
            ("NumericLessThan", "9", "10", true),
            ("NumericLessThanEquals", "10", "10", true),
            ("NumericGreaterThan", "-1", "0", false),
            ("NumericGreaterThanEquals", "9007199254740993", "9007199254740992", true),
            ("NumericEquals", "9007199254740993", "9007199254740992", false),
            ("NumericNotEquals", "1e3", "1000", false),
            ("DateLessThan", "2026-01-31T11:59:59Z", "2026-01-31T12:00Z", true),
            ("DateEquals", "2026-01-31T13:00:00+01:00", "2026-01-31T12:00:00Z", true),
            ("DateEquals", "0001700000000", "2023-11-14T22:13:20Z", true),
            ("DateGreaterThanEquals", "2026-01-31T00:00:00Z", "2026-01-31", true),
            ("DateGreaterThan", "2026-01-01T00:00:00.5Z", "2026", true),
            ("DateNotEquals", "2026-02-01T00:00:00Z", "2026-02", false),
            ("Bool", "TRUE", "true", true),
            ("Bool", "false", "true", false),
            ("IpAddress", "203.0.113.77", "203.0.113.0/24", true),
            ("IpAddress", "203.0.114.77", "203.0.113.0/24", false),
            ("IpAddress", "::ffff:203.0.113.77", "203.0.113.0/24", true),
            ("IpAddress", "10.0.0.1", "0.0.0.0/0", true),
            ("IpAddress", "2001:db8::1", "0.0.0.0/0", false),
            ("IpAddress", "2001:db8:1::1", "2001:db8::/32", true),
            ("NotIpAddress", "10.0.0.1", "10.0.0.1", false),
            ("ArnLike", "arn:aws:s3:::bucket", "arn:aws:s3:::buck*", true),
            ("ArnEquals", "arn:aws:s3:::bucket", "arn:*:s3:*:*:bucket", true),
            ("ArnLike", "arn:aws:sns:eu:1:t", "arn:aws:s*:1:t", false),
            ("ArnNotLike", "arn:aws:sns:eu:1:t", "arn:aws:sns:*:2:*", true),
            ("ArnLike", "bucket", "arn:aws:s3:::*", false),
        ] {
            if expected == "arn:aws:s*:1:t" {
                assert!(find(name).unwrap().0.parse(expected, None).is_err(), "five parts");
                continue;
            }
            assert_eq!(compared(name, value, expected), is.into(), "{name} {value} {expected}");
        }
    }

    #[test]
    fn a_variable_is_a_part_of_an_arn() {
        let known = |_: &str| true;
        let due = "arn:aws:iam::${aws:PrincipalAccount}:role/${aws:username, 'a:b'}";
        let due = Operator::Arn.parse(due, Some(&known)).unwrap();
        let facts = Facts::default().with("aws:PrincipalAccount", "1");
        let is = |value: &str| Operator::Arn.compare(value, &due, &facts);
        assert_eq!(is("arn:aws:iam::1:role/a:b"), Is::Yes);
        assert_eq!(is("arn:aws:iam::2:role/a:b"), Is::No);
        assert_eq!(is("arn:aws:iam::1:role/a"), Is::No);
    }

    #[test]
    fn what_cannot_be_compared_is_unknown() {
        for (name, value, expected) in [
            ("NumericLessThan", "many", "7"),
            ("NumericNotEquals", "inf", "7"),
            ("DateNotEquals", "today", "2026-01-01"),
            ("Bool", "yes", "true"),
            ("NotIpAddress", "host", "10.0.0.0/8"),
        ] {
            assert_eq!(compared(name, value, expected), Is::Unknown, "{name} {value}");
        }
    }

    #[test]
    fn values_that_are_none_are_refused() {
        for (name, value) in [
            ("NumericEquals", "nan"),
            ("NumericEquals", ""),
            ("NumericEquals", "7 "),
            ("DateEquals", "31.1.2026"),
            ("DateEquals", ""),
            ("DateEquals", "2026-13-01"),
            ("Bool", "1"),
            ("Null", "maybe"),
            ("IpAddress", "10.0.0.0/33"),
            ("IpAddress", "10.0.0.0/+8"),
            ("IpAddress", "10.0.0/8"),
            ("ArnLike", "*"),
        ] {
            assert!(find(name).unwrap().0.parse(value, None).is_err(), "{name} {value}");
        }
        for name in
            ["StringEqual", "stringEquals", "Numeric", "DateLike", "BinaryEquals", "IfExists"]
        {
            assert_eq!(find(name), None, "{name}");
        }
    }
}
