//! The version of a function: `$LATEST` or a number.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::lambda::LATEST;

/// See the [module](self). `$LATEST` is less than every number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Version {
    /// The one that deployments change.
    Latest,
    /// A published one, which nothing changes.
    Number(u64),
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Version::Latest => f.write_str(LATEST),
            Version::Number(number) => write!(f, "{number}"),
        }
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let number = || text.parse().ok().filter(|number: &u64| number.to_string() == text);
        match text {
            LATEST => Ok(Version::Latest),
            _ => number()
                .filter(|number| *number > 0)
                .map(Version::Number)
                .ok_or_else(|| format!("{text:?} is no version: a number, or {LATEST}")),
        }
    }
}

impl TryFrom<String> for Version {
    type Error = String;

    fn try_from(text: String) -> Result<Version, String> {
        text.parse()
    }
}

impl From<Version> for String {
    fn from(version: Version) -> String {
        version.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_latest_or_positive_numbers() {
        for text in ["$LATEST", "1", "18446744073709551615"] {
            assert_eq!(text.parse::<Version>().unwrap().to_string(), text);
        }
        for wrong in ["", "0", "01", "+1", "-1", "$latest", "18446744073709551616", "prod"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
        assert!(Version::Latest < Version::Number(1));
    }
}
