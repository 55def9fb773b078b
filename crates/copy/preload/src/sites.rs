//! Tables of call sites: a contest for each return address and class of lengths.
//!
//! A site is found without a lock. Its state is behind a lock that is only tried: a thread, or a
//! signal handler, that finds it taken uses the old way once.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Number of sites in a table.
pub const SITES_MAX: usize = 128;
/// Number of places at which one site may be.
const PROBES_MAX: usize = 8;

/// One site.
pub struct Site<T> {
    key: AtomicU64,
    is_locked: AtomicBool,
    state: UnsafeCell<T>,
}

// SAFETY: the state is accessed by the one thread that has set `is_locked`.
unsafe impl<T: Send> Sync for Site<T> {}

impl<T> Site<T> {
    /// Runs `use_state`, unless the site is in use.
    pub fn with<R>(&self, use_state: impl FnOnce(&mut T) -> R) -> Option<R> {
        if self.is_locked.swap(true, Ordering::Acquire) {
            return None;
        }
        // SAFETY: this thread alone has changed `is_locked` to true, and releases it below.
        let result = use_state(unsafe { &mut *self.state.get() });
        self.is_locked.store(false, Ordering::Release);
        Some(result)
    }
}

/// A table of sites.
pub struct Sites<T>(pub [Site<T>; SITES_MAX]);

impl<T: Send> Sites<T> {
    /// Returns the site of a return address and a class; `None` if the table is full.
    pub fn find(&self, address: usize, class: u8) -> Option<&Site<T>> {
        let key = (address as u64) << 6 | u64::from(class) | 1 << 63;
        let start = (key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as usize;
        for probe in 0..PROBES_MAX {
            let site = &self.0[(start + probe) % SITES_MAX];
            let found = match site.key.load(Ordering::Relaxed) {
                0 => site.key.compare_exchange(0, key, Ordering::Relaxed, Ordering::Relaxed),
                other => Err(other),
            };
            if found.is_ok() || found == Err(key) {
                return Some(site);
            }
        }
        None
    }

    /// Releases all locks: a child after fork(2) may have got them from a thread that it has not.
    pub fn release(&self) {
        for site in &self.0 {
            site.is_locked.store(false, Ordering::Release);
        }
    }
}

/// A site without a key, in the state `state`.
pub const fn vacant<T>(state: T) -> Site<T> {
    Site {
        key: AtomicU64::new(0),
        is_locked: AtomicBool::new(false),
        state: UnsafeCell::new(state),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sites_are_apart_until_the_table_is_full() {
        let sites = Sites([const { vacant(0_usize) }; SITES_MAX]);
        let mut refused = 0;
        for address in 1..=SITES_MAX * 2 {
            match sites.find(address * 16, 20) {
                Some(site) => {
                    assert_eq!(site.with(|state| std::mem::replace(state, address)), Some(0))
                }
                None => refused += 1,
            }
        }
        assert!(refused >= SITES_MAX, "{refused}");
        for address in 1..=SITES_MAX * 2 {
            if let Some(site) = sites.find(address * 16, 20) {
                assert_eq!(site.with(|state| *state), Some(address));
            }
        }
    }

    #[test]
    fn a_site_in_use_is_left_alone() {
        let sites = Sites([const { vacant(()) }; SITES_MAX]);
        let site = sites.find(4096, 20).unwrap();
        site.with(|()| {
            assert!(site.with(|()| ()).is_none());
            assert!(sites.find(4096, 21).unwrap().with(|()| ()).is_some());
        });
        assert!(site.with(|()| ()).is_some());
    }
}
