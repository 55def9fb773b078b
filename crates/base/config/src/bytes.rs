//! Amounts of bytes: `65536`, `"64KiB"`.

use std::fmt;
use std::str::FromStr;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

/// Units, largest first.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("KB", 1_000),
    ("B", 1),
];

/// An amount of bytes: in TOML an integer, or text with a unit of `B`, `KiB`, `MiB`, `GiB`, `TiB`,
/// `KB`, `MB`, `GB` or `TB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteSize(pub u64);

/// Text that is not an amount of bytes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not an amount of bytes; write a whole number and a unit, as in \"64KiB\"")]
pub struct ByteSizeError(String);

impl ByteSize {
    /// `count` KiB; saturates at the largest amount.
    pub const fn kib(count: u64) -> ByteSize {
        ByteSize(count.saturating_mul(1 << 10))
    }

    /// `count` MiB; saturates at the largest amount.
    pub const fn mib(count: u64) -> ByteSize {
        ByteSize(count.saturating_mul(1 << 20))
    }

    /// The amount in bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// The amount in bytes; saturates at the largest `usize`.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<ByteSize, ByteSizeError> {
        let wrong = || ByteSizeError(text.to_owned());
        let digits_end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(digits_end);
        let count: u64 = digits.parse().map_err(|_| wrong())?;
        let unit = match unit.trim_start_matches(' ') {
            "" if unit.is_empty() => "B",
            unit => unit,
        };
        let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit));
        let (_, factor) = known.ok_or_else(wrong)?;
        count.checked_mul(*factor).map(ByteSize).ok_or_else(wrong)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let binary = UNITS.iter().filter(|(name, _)| name.len() != 2);
        let exact = |unit: &&(&str, u64)| self.0 >= unit.1 && self.0.is_multiple_of(unit.1);
        let (name, factor) = binary.into_iter().find(exact).unwrap_or(&("B", 1));
        write!(f, "{}{name}", self.0 / factor)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
        deserializer.deserialize_any(ByteSizeVisitor)
    }
}

struct ByteSizeVisitor;

impl Visitor<'_> for ByteSizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an amount of bytes such as 65536 or \"64KiB\"")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<ByteSize, E> {
        let unsigned = u64::try_from(value);
        unsigned.map(ByteSize).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<ByteSize, E> {
        value.parse().map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::ByteSize;
    use proptest::prelude::*;

    #[test]
    fn units_are_parsed() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("64KiB", 65_536),
            ("64 kib", 65_536),
            ("1MiB", 1 << 20),
            ("2GB", 2_000_000_000),
            ("1TiB", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in ["", "KiB", "-1", "1.5MiB", "1 ", "64Kib x", "20000000TiB", "1KKiB", "1e3"] {
            let error = text.parse::<ByteSize>().unwrap_err();
            assert!(error.to_string().contains("64KiB"), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn text_is_read_back(bytes: u64) {
            prop_assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)));
        }
    }
}
