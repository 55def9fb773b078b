//! The time of connections: an argument, relative to any past instant.

use core::ops::Add;
use core::time::Duration;

/// A point in time, nanoseconds after an instant chosen by the caller. It never decreases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

impl Time {
    /// Later than any event: a timer that is not set.
    pub const NEVER: Time = Time(u64::MAX);

    /// The time `ns` nanoseconds after the instant.
    pub const fn from_ns(ns: u64) -> Time {
        Time(ns)
    }

    /// The time `ms` milliseconds after the instant.
    pub const fn from_ms(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// Nanoseconds since the instant.
    pub const fn ns(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the instant.
    pub const fn ms(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Nanoseconds since `earlier`; 0 if that is later.
    pub const fn ns_since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The time `ns` nanoseconds later.
    pub(crate) const fn after_ns(self, ns: u64) -> Time {
        Time(self.0.saturating_add(ns))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, duration: Duration) -> Time {
        self.after_ns(ns(duration))
    }
}

/// The nanoseconds of a duration, saturating.
pub(crate) fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
