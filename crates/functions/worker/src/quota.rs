//! The resource usage of a tenant's functions.

use std::cell::Cell;
use std::rc::Rc;

/// Bytes of a call's text that are not counted.
const TEXT_BYTES_FREE: u64 = 64 * 1024;
/// Factor by which text may grow when it is parsed: `[0],` is a value and a list of values.
const PARSED_FACTOR: u64 = 32;

/// Limits over all instances of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Calls in flight.
    pub calls_max: usize,
    /// Most bytes that the worker holds: bodies that are staged, prefetched or pending, and the
    /// parsed form of long parameter lists.
    pub held_bytes_max: u64,
}

/// The resources in use.
#[derive(Debug)]
pub struct Quota {
    limits: Limits,
    calls: Cell<usize>,
    held_bytes: Cell<u64>,
}

impl Quota {
    /// Creates a quota of which nothing is used.
    pub fn new(limits: Limits) -> Rc<Quota> {
        Rc::new(Quota { limits, calls: Cell::new(0), held_bytes: Cell::new(0) })
    }

    /// Reserves a call; `None` at the limit.
    pub fn call(self: &Rc<Quota>) -> Option<CallRoom> {
        if self.calls.get() >= self.limits.calls_max {
            return None;
        }
        self.calls.set(self.calls.get() + 1);
        Some(CallRoom { quota: self.clone() })
    }

    /// Reserves bytes; `None` at the limit.
    pub fn hold(self: &Rc<Quota>, bytes: u64) -> Option<HeldBytes> {
        let held = self.held_bytes.get().checked_add(bytes)?;
        if held > self.limits.held_bytes_max {
            return None;
        }
        self.held_bytes.set(held);
        Some(HeldBytes { quota: self.clone(), bytes })
    }

    /// Reserves the bytes of a call's body, and of its text if that is long; `None` at the limit.
    /// The text of one call takes at most half of the limit, so that it can pass when nothing else
    /// is held.
    pub fn hold_call(self: &Rc<Quota>, text_bytes: usize, body_bytes: u64) -> Option<HeldBytes> {
        let excess = (text_bytes as u64).saturating_sub(TEXT_BYTES_FREE);
        let parsed = excess.saturating_mul(PARSED_FACTOR).min(self.limits.held_bytes_max / 2);
        self.hold(body_bytes.checked_add(parsed)?)
    }

    /// Calls in flight.
    pub fn calls(&self) -> usize {
        self.calls.get()
    }

    /// Bytes that are held.
    pub fn held_bytes(&self) -> u64 {
        self.held_bytes.get()
    }
}

/// A reserved call, released when this is dropped.
#[derive(Debug)]
pub struct CallRoom {
    quota: Rc<Quota>,
}

impl Drop for CallRoom {
    fn drop(&mut self) {
        self.quota.calls.set(self.quota.calls.get() - 1);
    }
}

/// Reserved bytes, released when this is dropped.
#[derive(Debug)]
pub struct HeldBytes {
    quota: Rc<Quota>,
    bytes: u64,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.quota.held_bytes.set(self.quota.held_bytes.get() - self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_free_again() {
        let quota = Quota::new(Limits { calls_max: 1, held_bytes_max: 10 });
        let call = quota.call();
        assert!(call.is_some() && quota.call().is_none());
        drop(call);
        assert!(quota.call().is_some());
        let six = quota.hold(6).unwrap();
        assert!(quota.hold(5).is_none());
        assert!(quota.hold(u64::MAX).is_none());
        let four = quota.hold(4).unwrap();
        drop(six);
        assert_eq!(quota.held_bytes(), 4);
        drop(four);
        assert!(quota.hold(10).is_some());
    }

    #[test]
    fn long_texts_count_for_what_they_are_parsed_into() {
        let quota = Quota::new(Limits { calls_max: 1, held_bytes_max: 40 << 20 });
        drop(quota.hold_call(64 * 1024, 40 << 20).unwrap());
        let first = quota.hold_call(512 * 1024, 7).unwrap();
        assert_eq!(quota.held_bytes(), (14 << 20) + 7);
        let second = quota.hold_call(512 * 1024, 0).unwrap();
        assert!(quota.hold_call(512 * 1024, 0).is_none());
        drop((first, second));
        assert!(quota.hold_call(usize::MAX, 20 << 20).is_some());
        assert!(quota.hold_call(0, u64::MAX).is_none());
    }
}
