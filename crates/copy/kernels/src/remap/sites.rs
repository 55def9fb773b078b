//! Memory of the call sites at which pages could not be moved.

use std::sync::atomic::{AtomicU32, Ordering};

/// Number of slots. Sites that share one are treated alike.
const SLOTS: usize = 64;
/// After this number of failures in a row, only one copy in [`TRIED_EVERY`] is tried.
const FAILURES_MAX: u32 = 8;
const TRIED_EVERY: u32 = 64;

/// One site, or several that share a slot.
#[derive(Debug, Default)]
pub(crate) struct Site {
    /// Failures since the last move.
    failures: AtomicU32,
    untried: AtomicU32,
}

/// All sites.
#[derive(Debug)]
pub(crate) struct Sites([Site; SLOTS]);

impl Default for Sites {
    fn default() -> Sites {
        Sites(std::array::from_fn(|_| Site::default()))
    }
}

impl Sites {
    pub fn of(&self, site: usize) -> &Site {
        // Fibonacci hashing: the upper bits depend on all bits of the address.
        let hash = (site as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.0[(hash >> 58) as usize % SLOTS]
    }
}

impl Site {
    /// Returns true if this copy is to be tried.
    pub fn is_tried(&self) -> bool {
        self.failures.load(Ordering::Relaxed) < FAILURES_MAX
            || self.untried.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRIED_EVERY)
    }

    /// Notes that pages could not be moved.
    pub fn fail(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that pages were moved.
    pub fn succeed(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(site: &Site) -> usize {
        (0..2 * TRIED_EVERY).filter(|_| site.is_tried()).count()
    }

    #[test]
    fn sites_that_fail_are_tried_seldom_until_they_succeed() {
        let site = Site::default();
        assert_eq!(tried(&site), 2 * TRIED_EVERY as usize);
        (0..FAILURES_MAX).for_each(|_| site.fail());
        assert_eq!(tried(&site), 2);
        site.succeed();
        assert_eq!(tried(&site), 2 * TRIED_EVERY as usize);
    }
}
