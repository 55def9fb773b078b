//! Event invoke configurations: how asynchronous invocations of a qualifier are tried, and where their
//! ends are sent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::destination::Target;

/// Retries after an error of the function, where the configuration names none.
pub const RETRIES: u32 = 2;
/// Age up to which an event is tried, where the configuration names none.
pub const AGE_MAX: Duration = Duration::from_secs(6 * 3600);

/// See the [module](self). Absent values are the defaults.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventConfig {
    /// Retries after an error of the function.
    #[serde(default)]
    pub retries: Option<u32>,
    /// Age up to which an event is tried, in seconds.
    #[serde(default)]
    pub age_s: Option<u32>,
    /// The destination of successes.
    #[serde(default)]
    pub on_success: Option<Target>,
    /// The destination of failures.
    #[serde(default)]
    pub on_failure: Option<Target>,
    /// The time of the last change, in milliseconds since the UNIX epoch.
    #[serde(default)]
    pub modified_ms: u64,
}

impl EventConfig {
    /// Retries after an error of the function.
    pub fn retries(&self) -> u32 {
        self.retries.unwrap_or(RETRIES)
    }

    /// Age up to which an event is tried.
    pub fn age_max(&self) -> Duration {
        self.age_s.map_or(AGE_MAX, |age_s| Duration::from_secs(u64::from(age_s)))
    }
}

/// The parameters of a change. Absent ones stay as they are; a destination of `Some(None)` is removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventConfigChange {
    /// Retries after an error of the function.
    pub retries: Option<u32>,
    /// Age up to which an event is tried, in seconds.
    pub age_s: Option<u32>,
    /// The destination of successes.
    pub on_success: Option<Option<Target>>,
    /// The destination of failures.
    pub on_failure: Option<Option<Target>>,
}
