//! Processor placement of a service thread. The thread avoids the processor of the client that
//! rang for it: there the client would wait for the thread while the thread waits for the
//! processor.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// No client has rung yet.
const NOWHERE: u32 = u32::MAX;

/// Processor of the last ring.
#[derive(Debug)]
pub(crate) struct RingLocation(AtomicU32);

impl Default for RingLocation {
    fn default() -> RingLocation {
        RingLocation(AtomicU32::new(NOWHERE))
    }
}

impl RingLocation {
    /// Records the calling thread's processor.
    pub fn note(&self) {
        self.0.store(sched_getcpu() as u32, Ordering::Relaxed);
    }

    /// Moves the calling thread to another processor if it runs on the recorded one and its
    /// affinity permits another. On an error it stays.
    pub fn keep_off(&self) {
        let here = sched_getcpu();
        if self.0.load(Ordering::Relaxed) != here as u32 {
            return;
        }
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut others = allowed;
        if here >= CpuSet::MAX_CPU {
            return;
        }
        others.unset(here);
        // The first call moves the thread; the second restores its affinity.
        if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
            let _ = sched_setaffinity(None, &allowed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_leaves_the_ringers_processor_and_may_come_back() {
        let ring_location = RingLocation::default();
        let allowed = sched_getaffinity(None).unwrap();
        ring_location.keep_off();
        for _ in 0..100 {
            ring_location.note();
            ring_location.keep_off();
        }
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
        // Without another permitted processor it stays.
        let mut one = CpuSet::new();
        one.set(sched_getcpu());
        sched_setaffinity(None, &one).unwrap();
        ring_location.note();
        ring_location.keep_off();
        assert_eq!(sched_getaffinity(None).unwrap(), one);
    }
}
