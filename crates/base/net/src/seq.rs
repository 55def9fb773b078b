//! TCP sequence numbers (RFC 9293 §3.4): 32-bit, compared modulo 2^32.

use core::ops::{Add, Sub};

/// A TCP sequence number. Ordering is defined only between numbers less than 2^31 apart, so it
/// is offered as methods, not as `Ord`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SeqNumber(pub u32);

impl SeqNumber {
    /// Bytes from `earlier` to `self`; negative if `self` is the earlier one.
    pub fn since(self, earlier: SeqNumber) -> i32 {
        self.0.wrapping_sub(earlier.0) as i32
    }

    /// Returns true if `self` comes strictly before `other`.
    pub fn before(self, other: SeqNumber) -> bool {
        self.since(other) < 0
    }
}

impl Add<u32> for SeqNumber {
    type Output = SeqNumber;
    fn add(self, bytes: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_add(bytes))
    }
}

impl Sub<u32> for SeqNumber {
    type Output = SeqNumber;
    fn sub(self, bytes: u32) -> SeqNumber {
        SeqNumber(self.0.wrapping_sub(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::SeqNumber;

    #[test]
    fn order_survives_the_wrap() {
        let last = SeqNumber(u32::MAX);
        assert!(last.before(last + 1));
        assert_eq!((last + 5).since(last), 5);
        assert_eq!((last + 5) - 5, last);
        assert!(!last.before(last));
    }
}
