//! Values that define the treatment of requests and their bodies.

use std::fmt;
use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::{Deserializer, Unexpected, Visitor};

/// Requests that a server answers before the connection comes home, where a route has no value.
pub const REQUESTS_PER_MIGRATION_DEFAULT: NonZeroU32 = NonZeroU32::new(64).unwrap();

/// `body`: method that moves the bodies of proxied requests and responses where both connections
/// are plain. With TLS they go through a buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BodyPath {
    /// The method that costs less processor time, by length.
    #[default]
    Auto,
    /// By splice(2), whatever the length, except for bytes that arrive with the head.
    Splice,
    /// Through a buffer: recv(2) and send(2).
    Copy,
}

/// `requests_per_migration`: a positive integer or `"unlimited"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestsPerMigration {
    /// The connection comes home after this many requests.
    Limited(NonZeroU32),
    /// The connection comes home when it is idle or closed, or belongs elsewhere.
    Unlimited,
}

impl Default for RequestsPerMigration {
    fn default() -> Self {
        RequestsPerMigration::Limited(REQUESTS_PER_MIGRATION_DEFAULT)
    }
}

impl RequestsPerMigration {
    /// Returns the number, `None` for no limit.
    pub fn limit(self) -> Option<NonZeroU32> {
        match self {
            RequestsPerMigration::Limited(requests) => Some(requests),
            RequestsPerMigration::Unlimited => None,
        }
    }
}

impl<'de> Deserialize<'de> for RequestsPerMigration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl Visitor<'_> for Either {
            type Value = RequestsPerMigration;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a positive integer or \"unlimited\"")
            }
            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Self::Value, E> {
                u32::try_from(value)
                    .ok()
                    .and_then(NonZeroU32::new)
                    .map(RequestsPerMigration::Limited)
                    .ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
            }
            fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Self::Value, E> {
                self.visit_i64(i64::try_from(value).unwrap_or(-1))
            }
            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Self::Value, E> {
                match value {
                    "unlimited" => Ok(RequestsPerMigration::Unlimited),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(Either)
    }
}
