//! The current time as a Date field value, formatted once a second.

use std::cell::Cell;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::condition;

/// Length of an HTTP date such as `Sun, 06 Nov 1994 08:49:37 GMT`, in bytes.
pub const DATE_BYTES: usize = 29;

/// Cache of the formatted date, updated once a second.
#[derive(Debug)]
pub struct Clock {
    shown: Cell<(u64, [u8; DATE_BYTES])>,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { shown: Cell::new((0, format(0))) }
    }
}

impl Clock {
    /// Returns the seconds since 1970 and the current value of the Date field.
    pub fn now(&self) -> (u64, [u8; DATE_BYTES]) {
        self.at(condition::seconds(SystemTime::now()))
    }

    fn at(&self, now_s: u64) -> (u64, [u8; DATE_BYTES]) {
        if self.shown.get().0 != now_s {
            self.shown.set((now_s, format(now_s)));
        }
        self.shown.get()
    }
}

/// Formats an HTTP date (RFC 9110 §5.6.7). Times after the year 9999 show as its last second.
pub fn format(seconds: u64) -> [u8; DATE_BYTES] {
    /// Fri, 31 Dec 9999 23:59:59 GMT.
    const LAST_S: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_S));
    let mut date = [b' '; DATE_BYTES];
    for (to, from) in date.iter_mut().zip(httpdate::fmt_http_date(time).bytes()) {
        *to = from;
    }
    date
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_rfc_and_follow_the_second() {
        assert_eq!(&format(784_111_777), b"Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(&format(u64::MAX), b"Fri, 31 Dec 9999 23:59:59 GMT");
        let clock = Clock::default();
        assert_eq!(&clock.at(0).1, b"Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(&clock.at(1).1, b"Thu, 01 Jan 1970 00:00:01 GMT");
        assert_eq!(clock.at(1).0, 1);
    }
}
