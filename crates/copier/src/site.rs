//! Which copies are worth queueing: learnt by each thread, for each place in the program that
//! copies.
//!
//! Asking must cost next to nothing where the answer is no. So most answers are those of before;
//! one in [`SAMPLE_EVERY`] copies is timed, and the policy ([`copyplan::admit`]) asked again.

use std::cell::{Cell, RefCell};
use std::sync::OnceLock;
use std::time::Instant;

use copyplan::admit::{Costs, Seen, Site, Verdict};

/// Places and lengths that a thread remembers; a power of two. Those that meet in a slot take turns.
const ENTRIES: usize = 64;
/// One in so many copies is timed, which takes several times as long as a copy that is not.
const SAMPLE_EVERY: u8 = 128;
/// While the service sleeps, what is best is asked again after so many copies.
const ASLEEP_EVERY: u8 = 16;
/// While the service sleeps, it is woken after so many bytes that were copied without it, ...
const WAKE_BYTES_MIN: u64 = 256 << 10;
/// ... and looked for with each of so many copies, ...
const EAGER: u8 = 64;
/// ... and later if waking it has not paid, up to so many; eight times as many where copies are made
/// at once anyway, so that a place that has changed is found out.
const WAKE_BYTES_MAX: u64 = 64 << 20;
/// Where it is not known whether it pays, what was seen of other places does not count for more.
const WAKE_BYTES_NEW: u64 = 4 << 20;

/// What to do with a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub queue: bool,
    /// Tell how long it took: see [`Sites::learn_at_once`], [`Sites::learn_queued`].
    pub timed: bool,
    /// The service sleeps, and should not. Only where it is timed.
    pub wake: bool,
    /// It is awake.
    pub is_awake: bool,
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

/// What most copies need to know of a place. Plain cells, so that a thread finds them without
/// further ado.
#[derive(Debug)]
struct Hint {
    place: Cell<u64>,
    /// Copies until the next one is timed.
    left: Cell<u8>,
    queue: Cell<bool>,
}

/// What one thread has learnt.
#[derive(Debug, Default)]
struct Table {
    /// Of the place that the hint of this number is of.
    sites: Vec<Site>,
    missed_bytes: u64,
    wake_bytes: u64,
    /// Copies to which the service, which was rung, may be awake.
    eager: u8,
    /// It was rung, and nothing has come of it yet.
    is_woken: bool,
}

thread_local! {
    static HINTS: [Hint; ENTRIES] = const {
        [const { Hint { place: Cell::new(0), left: Cell::new(0), queue: Cell::new(false) } }; ENTRIES]
    };
    static TABLE: RefCell<Table> = const {
        RefCell::new(Table {
            sites: Vec::new(),
            missed_bytes: 0,
            wake_bytes: WAKE_BYTES_MIN,
            eager: 0,
            is_woken: false,
        })
    };
}

const COPY_AT_ONCE: Decision = Decision { queue: false, timed: false, wake: false, is_awake: true };
const QUEUE: Decision = Decision { queue: true, ..COPY_AT_ONCE };

/// What the calling thread knows.
#[derive(Debug, Default)]
pub(crate) struct Sites;

impl Sites {
    /// About `len` bytes, [`INLINE_MAX_BYTES`](copyplan::admit::INLINE_MAX_BYTES) or more, copied
    /// at `site`. `state` says whether the service is awake, and how many bytes are queued; it is
    /// asked only where it matters, and so are the machine's costs.
    #[inline(always)]
    pub fn decide(
        &self,
        site: usize,
        len: usize,
        state: impl Fn() -> (bool, u64),
        costs: impl Fn() -> Costs,
    ) -> Decision {
        let place = Place::of(site, len);
        match Hint::usual(place) {
            Some(false) => COPY_AT_ONCE,
            Some(true) if state().0 => QUEUE,
            _ => self.ask(place, len as u64, state(), &costs()),
        }
    }

    #[cold]
    #[inline(never)]
    fn ask(
        &self,
        place: Place,
        len: u64,
        (is_awake, pending): (bool, u64),
        costs: &Costs,
    ) -> Decision {
        TABLE.with_borrow_mut(|table| table.ask(place, len, is_awake, pending, costs))
    }

    /// A copy that was to be timed was made at once, in `copy_ns`; see [`Site::observe_inline`].
    pub fn learn_at_once(
        &self,
        (site, is_awake): (usize, bool),
        len: usize,
        copy_ns: u32,
        line_ns: Option<f32>,
    ) {
        TABLE.with_borrow_mut(|table| {
            if let Some(site) = table.site(Place::of(site, len)) {
                site.observe_inline(len as u64, is_awake, copy_ns, line_ns);
            }
        });
    }

    /// A copy of `len` bytes that was to be timed was queued, and is synced now.
    pub fn learn_queued(
        &self,
        (place, is_awake): (Place, bool),
        len: u32,
        seen: &Seen,
        costs: &Costs,
    ) {
        TABLE.with_borrow_mut(|table| {
            if let Some(site) = table.site(place) {
                site.observe_queued(costs, len.into(), is_awake, seen);
            }
        });
    }
}

/// Nanoseconds since, without what looking at the clock takes.
pub(crate) fn nanos(began: Instant) -> u32 {
    let took_ns = u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX);
    took_ns.saturating_sub(clock_ns())
}

/// What a look at the clock takes: as much as a small copy.
fn clock_ns() -> u32 {
    const LOOKS: u32 = 32;
    static CLOCK_NS: OnceLock<u32> = OnceLock::new();
    *CLOCK_NS.get_or_init(|| {
        let began = Instant::now();
        let last = (1..LOOKS).fold(began, |_, _| Instant::now());
        u32::try_from(last.duration_since(began).as_nanos()).unwrap_or(0) / (LOOKS - 1)
    })
}

impl Hint {
    /// What was said of copies at a place, if they need not ask again.
    #[inline(always)]
    fn usual(place: Place) -> Option<bool> {
        HINTS.with(|hints| {
            let hint = &hints[place.index()];
            let left = hint.left.get();
            if hint.place.get() != place.0 || left == 0 {
                return None;
            }
            hint.left.set(left - 1);
            Some(hint.queue.get())
        })
    }

    /// Says it of the next `left` copies.
    fn set(place: Place, left: u8, queue: bool) {
        HINTS.with(|hints| {
            let hint = &hints[place.index()];
            hint.place.set(place.0);
            hint.left.set(left);
            hint.queue.set(queue);
        });
    }

    fn is_of(place: Place) -> bool {
        HINTS.with(|hints| hints[place.index()].place.get() == place.0)
    }
}

impl Table {
    fn site(&mut self, place: Place) -> Option<&mut Site> {
        self.sites.get_mut(place.index()).filter(|_| Hint::is_of(place))
    }

    fn ask(
        &mut self,
        place: Place,
        len: u64,
        is_awake: bool,
        pending: u64,
        costs: &Costs,
    ) -> Decision {
        if self.sites.is_empty() {
            self.sites.resize_with(ENTRIES, Site::default);
        }
        let site = &mut self.sites[place.index()];
        if !Hint::is_of(place) {
            *site = Site::default();
        }
        let usual = site.usual(len, true);
        let queue = usual == Some(Verdict::Queue);
        if !is_awake && len + pending < costs.wake_min_bytes {
            // What is seen of a service that has to wake up first says nothing of one that is awake.
            let is_eager = self.eager > 0;
            let copies = if is_eager || queue { 1 } else { ASLEEP_EVERY };
            self.eager = self.eager.saturating_sub(1);
            Hint::set(place, copies - 1, queue);
            let wake = self.should_wake(usual, len * u64::from(copies));
            // A copy at once takes as long whether the service sleeps or not.
            let timed = wake || usual.is_none();
            return Decision { wake, timed, is_awake: true, ..COPY_AT_ONCE };
        }
        if !is_awake {
            // Long copies are worth waking it for, or are not: that is learnt apart.
            Hint::set(place, 0, queue);
            self.eager = self.eager.saturating_sub(1);
            let wake = self.should_wake(usual, len);
            let site = &mut self.sites[place.index()];
            let queue = site.decide(costs, len, false, pending) == Verdict::Queue;
            return Decision { queue, timed: true, wake: wake && !queue, is_awake: false };
        }
        self.eager = 0;
        if std::mem::take(&mut self.is_woken) {
            match queue {
                // That was worth while.
                true => self.wake_bytes = (self.wake_bytes / 4).max(WAKE_BYTES_MIN),
                // It is awake for once: this is the time to see whether it still is not.
                false => site.look_again(len),
            }
        }
        let verdict = site.decide(costs, len, true, pending);
        // Until both ways are known every copy is timed.
        let is_settled = usual.is_some() && !site.is_trying(len, true);
        Hint::set(place, if is_settled { SAMPLE_EVERY - 1 } else { 0 }, queue);
        let queue = verdict == Verdict::Queue;
        Decision { queue, timed: true, wake: false, is_awake: true }
    }

    /// Counts bytes that were copied without a service that sleeps; `usual` is what is done with such
    /// copies while it is awake. True where it should be woken.
    fn should_wake(&mut self, usual: Option<Verdict>, missed: u64) -> bool {
        match usual {
            Some(Verdict::Inline) => self.miss(missed / 8, WAKE_BYTES_MAX),
            Some(Verdict::Queue) => self.miss(missed, WAKE_BYTES_MAX),
            None => self.miss(missed, WAKE_BYTES_NEW),
        }
    }

    /// Counts bytes that a service awake might have copied. True where it should be woken, at the
    /// latest after `most`.
    fn miss(&mut self, len: u64, most: u64) -> bool {
        self.missed_bytes += len;
        if self.missed_bytes < self.wake_bytes.min(most) {
            return false;
        }
        self.missed_bytes = 0;
        self.wake_bytes = (2 * self.wake_bytes).min(WAKE_BYTES_MAX);
        (self.eager, self.is_woken) = (EAGER, true);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `count` copies at one site: each is used `window` after it is submitted, and takes `copy`.
    fn run(sites: &Sites, site: usize, len: usize, copy_ns: u32, window_ns: u32) -> u32 {
        let mut queued = 0;
        for _ in 0..4000 {
            let decision = sites.decide(site, len, || (true, 0), Costs::default);
            queued += u32::from(decision.queue);
            if decision.timed && decision.queue {
                let wait_ns = (copy_ns + 200).saturating_sub(window_ns);
                let seen = Seen { submit_ns: 20, window_ns, wait_ns, line_ns: None };
                sites.learn_queued(
                    (Place::of(site, len), true),
                    len as u32,
                    &seen,
                    &Costs::default(),
                );
            } else if decision.timed {
                sites.learn_at_once((site, true), len, copy_ns, None);
            }
        }
        queued
    }

    #[test]
    fn sites_with_a_window_queue_and_others_do_not() {
        let sites = Sites;
        assert!(run(&sites, 0x1000, 64 << 10, 4_000, 10_000) > 3_800);
        assert!(run(&sites, 0x2000, 64 << 10, 4_000, 0) < 100);
    }

    #[test]
    fn a_service_that_sleeps_is_woken_when_it_was_missed_long_enough() {
        let sites = Sites;
        let mut woken = Vec::new();
        for number in 0..300 {
            if sites.decide(0x9000, 64 << 10, || (false, 0), Costs::default).wake {
                woken.push(number);
            }
        }
        // Ever more rarely, while nothing comes of it; but a place of which nothing is known does
        // not wait for ever.
        assert_eq!(woken, [0, 23, 39, 71, 135, 199, 263]);
    }
}
