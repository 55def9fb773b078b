//! Which copies are worth queueing: learnt by each thread, for each place in the program that
//! copies.
//!
//! Asking must cost next to nothing where the answer is no. So most answers are those of before;
//! one in [`SAMPLE_EVERY`] copies is timed, and the policy ([`copyplan::admit`]) asked again.

use std::cell::RefCell;
use std::time::Instant;

use copyplan::admit::{Costs, Site, Verdict};

/// Places and lengths that a thread remembers; a power of two. Those that meet in a slot take turns.
const ENTRIES: usize = 64;
/// One in so many copies is timed.
const SAMPLE_EVERY: u8 = 16;
/// While the service sleeps, it is woken after so many bytes that were copied without it, ...
const WAKE_BYTES_MIN: u64 = 256 << 10;
/// ... and looked for with each of so many copies, ...
const EAGER: u8 = 64;
/// ... and later if waking it has not paid, up to so many.
const WAKE_BYTES_MAX: u64 = 64 << 20;

/// What to do with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub queue: bool,
    /// Tell how long it took: see [`Sites::learn_at_once`], [`Sites::learn_queued`].
    pub timed: bool,
    /// The service sleeps, and should not.
    pub wake: bool,
}

/// A place in the program, and a class of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place(pub u64);

impl Place {
    #[inline]
    pub fn of(site: usize, len: usize) -> Place {
        let class = u64::from((len | 1).ilog2());
        // Multiplied so that the high bits depend on all; 0 is nobody's.
        Place((site as u64 ^ class << 57).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    #[inline]
    fn index(self) -> usize {
        (self.0 >> 58) as usize % ENTRIES
    }
}

#[derive(Debug, Default)]
struct Entry {
    place: u64,
    /// Copies until the next one is timed.
    left: u8,
    queue: bool,
    site: Site,
}

/// What one thread has learnt.
#[derive(Debug, Default)]
struct Table {
    entries: Vec<Entry>,
    missed_bytes: u64,
    wake_bytes: u64,
    /// Copies to which the service, which was rung, may be awake.
    eager: u8,
}

thread_local! {
    static TABLE: RefCell<Table> = const {
        RefCell::new(Table { entries: Vec::new(), missed_bytes: 0, wake_bytes: WAKE_BYTES_MIN, eager: 0 })
    };
}

const COPY_AT_ONCE: Decision = Decision { queue: false, timed: false, wake: false };

/// What the calling thread knows.
#[derive(Debug, Default)]
pub(crate) struct Sites {
    costs: Costs,
}

impl Sites {
    /// About `len` bytes, [`INLINE_MAX_BYTES`](copyplan::admit::INLINE_MAX_BYTES) or more, copied
    /// at `site`. `state` says whether the service is awake, and how many bytes are queued; it is
    /// asked only where it matters.
    #[inline]
    pub fn decide(&self, site: usize, len: usize, state: impl FnOnce() -> (bool, u64)) -> Decision {
        TABLE.with_borrow_mut(|table| {
            let place = Place::of(site, len);
            let (is_awake, pending) = match table.entries.get_mut(place.index()) {
                Some(entry) if entry.place == place.0 && entry.left > 0 => {
                    entry.left -= 1;
                    if !entry.queue {
                        return COPY_AT_ONCE;
                    }
                    let (is_awake, pending) = state();
                    if is_awake {
                        return Decision { queue: true, ..COPY_AT_ONCE };
                    }
                    (is_awake, pending)
                }
                _ => state(),
            };
            table.ask(place, len as u64, is_awake, pending, &self.costs)
        })
    }

    /// A copy that was to be timed was made at once.
    pub fn learn_at_once(&self, site: usize, len: usize, began: Instant) {
        let took_ns = nanos(began);
        TABLE.with_borrow_mut(|table| {
            if let Some(entry) = table.entry(Place::of(site, len)) {
                entry.site.observe_inline(len as u64, took_ns);
            }
        });
    }

    /// A copy that was to be timed was queued, and is synced now.
    pub fn learn_queued(&self, timing: &Timing) {
        let Timing { place, len, submit_ns, window_ns, wait_ns } = *timing;
        TABLE.with_borrow_mut(|table| {
            let costs = &self.costs;
            if let Some(entry) = table.entry(place) {
                entry.site.observe_queued(costs, len.into(), submit_ns, window_ns, wait_ns);
            }
        });
    }
}

/// How long a queued copy took its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub place: Place,
    pub len: u32,
    pub submit_ns: u32,
    /// From its submission to its first sync.
    pub window_ns: u32,
    /// In that sync.
    pub wait_ns: u32,
}

/// Nanoseconds since.
pub(crate) fn nanos(began: Instant) -> u32 {
    u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX)
}

impl Table {
    fn entry(&mut self, place: Place) -> Option<&mut Entry> {
        self.entries.get_mut(place.index()).filter(|entry| entry.place == place.0)
    }

    #[cold]
    fn ask(
        &mut self,
        place: Place,
        len: u64,
        is_awake: bool,
        pending: u64,
        costs: &Costs,
    ) -> Decision {
        if self.entries.is_empty() {
            self.entries.resize_with(ENTRIES, Entry::default);
        }
        let entry = &mut self.entries[place.index()];
        if entry.place != place.0 {
            *entry = Entry { place: place.0, ..Entry::default() };
        }
        let usual = entry.site.usual(len);
        entry.queue = usual == Some(Verdict::Queue);
        if !is_awake {
            // What is seen of a service that has to wake up first says nothing of one that is awake.
            entry.left = SAMPLE_EVERY - 1;
            if entry.queue && len + pending >= costs.wake_min_bytes {
                return Decision { queue: true, ..COPY_AT_ONCE };
            }
            let copies = if self.eager > 0 { 1 } else { u64::from(SAMPLE_EVERY) };
            if self.eager > 0 {
                self.eager -= 1;
                entry.left = 0;
            }
            let wake = usual != Some(Verdict::Inline) && self.miss(len * copies);
            return Decision { wake, timed: usual.is_none(), ..COPY_AT_ONCE };
        }
        self.eager = 0;
        let queue = entry.site.decide(costs, len, is_awake, pending) == Verdict::Queue;
        // Until both ways are known every copy is timed.
        entry.left = if usual.is_some() { SAMPLE_EVERY - 1 } else { 0 };
        if queue {
            self.wake_bytes = (self.wake_bytes - self.wake_bytes / 8).max(WAKE_BYTES_MIN);
        }
        Decision { queue, timed: true, wake: false }
    }

    /// Counts bytes that a service awake might have copied. True where it should be woken.
    fn miss(&mut self, len: u64) -> bool {
        self.missed_bytes += len;
        if self.missed_bytes < self.wake_bytes {
            return false;
        }
        self.missed_bytes = 0;
        self.wake_bytes = (2 * self.wake_bytes).min(WAKE_BYTES_MAX);
        self.eager = EAGER;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// `count` copies at one site: each is used `window` after it is submitted, and takes `copy`.
    fn run(sites: &Sites, site: usize, len: usize, copy_ns: u32, window_ns: u32) -> u32 {
        let mut queued = 0;
        for _ in 0..4000 {
            let decision = sites.decide(site, len, || (true, 0));
            queued += u32::from(decision.queue);
            if decision.timed && decision.queue {
                let place = Place::of(site, len);
                let wait_ns = (copy_ns + 200).saturating_sub(window_ns);
                let timing = Timing { place, len: len as u32, submit_ns: 20, window_ns, wait_ns };
                sites.learn_queued(&timing);
            } else if decision.timed {
                let began = Instant::now().checked_sub(Duration::from_nanos(copy_ns.into()));
                sites.learn_at_once(site, len, began.unwrap());
            }
        }
        queued
    }

    #[test]
    fn sites_with_a_window_queue_and_others_do_not() {
        let sites = Sites::default();
        assert!(run(&sites, 0x1000, 64 << 10, 4_000, 10_000) > 3_800);
        assert!(run(&sites, 0x2000, 64 << 10, 4_000, 0) < 100);
    }

    #[test]
    fn a_service_that_sleeps_is_woken_when_it_was_missed_long_enough() {
        let sites = Sites::default();
        let mut woken = Vec::new();
        for number in 0..200 {
            if sites.decide(0x9000, 64 << 10, || (false, 0)).wake {
                woken.push(number);
            }
        }
        // Ever more rarely, while nothing comes of it.
        assert_eq!(woken, [0, 23, 39, 71, 135]);
    }
}
