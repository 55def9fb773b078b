//! Which copies are worth queueing: learnt by each client, for each place in the program that copies.
//!
//! Asking must cost next to nothing where the answer is no. So most answers are those of before;
//! one in [`SAMPLE_EVERY`] copies is timed, and the policy ([`unlade_copy_scheduler::admit`]) asked again.
//!
//! There are two levels. A thread has [`Hint`]s: the answer for the next copies of a place, found
//! without a lock. Places that meet in a set of hints take turns there and lose nothing by it: what
//! was learnt, and how many copies are left until one is timed, is in the client's [`Table`], which
//! all its threads share. So a copy that one thread submits and another one syncs is learnt from.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Instant;

use unlade_copy_scheduler::admit::{CLASSES, CallSite, Costs, QueuedTiming, Verdict, class_of};

/// Sets of hints of a thread, a power of two, and hints of a set.
const SETS: usize = 64;
const WAYS: usize = 2;
/// Sites that a client remembers, about a kilobyte each.
const SITES_MAX: usize = 512;
/// Where as many are remembered, one in so many copies of other sites makes the one that was not
/// asked for longest give way. The others are made at once.
const GIVE_WAY_EVERY: u32 = 64;
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

/// A site of a client, and a class of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place(u64);

impl Place {
    #[inline]
    fn of(client: u64, site: usize, len: usize) -> Place {
        let class = u64::from((len | 1).ilog2());
        // Multiplied so that the high bits depend on all; 0 is nobody's.
        let client = client.rotate_left(48);
        Place((site as u64 ^ client ^ class << 57).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    #[inline]
    fn set(self) -> usize {
        (self.0 >> 58) as usize % SETS
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

/// What is asked of the table.
#[derive(Clone, Copy, Debug)]
struct Question {
    place: Place,
    site: usize,
    len: u64,
    /// The thread had a hint, and has followed it as often as it was to be.
    is_due: bool,
}

/// What a thread knows of a place without asking the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// What to do.
    Usual { queue: bool },
    /// It is time to ask again.
    Due,
    /// Nothing: other places have the hints.
    Nothing,
}

thread_local! {
    static HINTS: [[Hint; WAYS]; SETS] = const {
        [const {
            [const {
                Hint { place: Cell::new(0), left: Cell::new(0), queue: Cell::new(false) }
            }; WAYS]
        }; SETS]
    };
}

/// A site, and what is to be done with its copies until one is timed, by class of length.
#[derive(Debug, Default)]
struct Entry {
    site: CallSite,
    usual: [Usual; CLASSES],
    /// The number of the question that it was asked last.
    asked: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Usual {
    left: u8,
    queue: bool,
}

/// The sites that a client remembers.
#[derive(Debug, Default)]
struct Memory {
    sites: HashMap<usize, Box<Entry>>,
    /// Questions that were asked.
    asked: u64,
    /// Of those for sites that there was no room for, since one gave way.
    refused: u32,
}

/// What a client has learnt.
#[derive(Debug)]
struct Table {
    memory: Memory,
    missed_bytes: u64,
    wake_bytes: u64,
    /// Copies to which the service, which was rung, may be awake.
    eager: u8,
    /// It was rung, and nothing has come of it yet.
    is_woken: bool,
}

impl Default for Table {
    fn default() -> Table {
        Table {
            memory: Memory::default(),
            missed_bytes: 0,
            wake_bytes: WAKE_BYTES_MIN,
            eager: 0,
            is_woken: false,
        }
    }
}

const COPY_AT_ONCE: Decision = Decision { queue: false, timed: false, wake: false, is_awake: true };
const QUEUE: Decision = Decision { queue: true, ..COPY_AT_ONCE };

/// What a client knows of the sites that use it.
#[derive(Debug)]
pub(crate) struct Sites {
    /// Which client, in the threads' hints.
    client: u64,
    table: Mutex<Table>,
}

impl Default for Sites {
    fn default() -> Sites {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Sites { client: NEXT.fetch_add(1, Ordering::Relaxed), table: Mutex::default() }
    }
}

impl Sites {
    /// About `len` bytes, [`INLINE_MAX_BYTES`](unlade_copy_scheduler::admit::INLINE_MAX_BYTES) or more, copied
    /// at `site`. `is_awake` says whether the service is awake, `pending` how many bytes are queued;
    /// they are asked only where it matters, and so are the machine's costs.
    #[inline(always)]
    pub fn decide(
        &self,
        site: usize,
        len: usize,
        is_awake: impl Fn() -> bool,
        pending: impl Fn() -> u64,
        costs: impl Fn() -> Costs,
    ) -> Decision {
        let place = Place::of(self.client, site, len);
        let known = Hint::known(place);
        match known {
            Known::Usual { queue: false } => COPY_AT_ONCE,
            Known::Usual { queue: true } if is_awake() => QUEUE,
            _ => {
                let is_due = known != Known::Nothing;
                let question = Question { place, site, len: len as u64, is_due };
                self.ask(&question, is_awake(), &pending, &costs)
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn ask(
        &self,
        question: &Question,
        is_awake: bool,
        pending: &dyn Fn() -> u64,
        costs: &dyn Fn() -> Costs,
    ) -> Decision {
        // Another thread asks: this copy need not.
        let Some(mut table) = self.table() else { return COPY_AT_ONCE };
        table.ask(question, is_awake, pending, costs)
    }

    /// Nobody waits for it: what is learnt of one copy is worth less than that.
    fn table(&self) -> Option<MutexGuard<'_, Table>> {
        match self.table.try_lock() {
            Ok(table) => Some(table),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn learn(&self, site: usize, learn: impl FnOnce(&mut CallSite)) {
        if let Some(mut table) = self.table()
            && let Some(entry) = table.memory.sites.get_mut(&site)
        {
            learn(&mut entry.site);
        }
    }

    /// A copy that was to be timed was made at once, in `copy_ns`; see [`CallSite::observe_inline`].
    pub fn learn_at_once(
        &self,
        (site, is_awake): (usize, bool),
        len: usize,
        copy_ns: u32,
        line_ns: Option<f32>,
    ) {
        self.learn(site, |site| site.observe_inline(len as u64, is_awake, copy_ns, line_ns));
    }

    /// A copy of `len` bytes that was to be timed was queued, and is synced now, by any thread.
    pub fn learn_queued(
        &self,
        (site, is_awake): (usize, bool),
        len: u32,
        seen: &QueuedTiming,
        costs: &Costs,
    ) {
        self.learn(site, |site| site.observe_queued(costs, len.into(), is_awake, seen));
    }

    /// What is usually done with such copies while the service is awake; none before it is known.
    #[cfg(test)]
    pub fn usual(&self, site: usize, len: usize) -> Option<Verdict> {
        self.table()?.memory.sites.get(&site)?.site.usual(len as u64, true)
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
    /// What was said of copies at a place.
    #[inline(always)]
    fn known(place: Place) -> Known {
        HINTS.with(|hints| {
            let set = &hints[place.set()];
            let Some(hint) = set.iter().find(|hint| hint.place.get() == place.0) else {
                return Known::Nothing;
            };
            let left = hint.left.get();
            if left == 0 {
                return Known::Due;
            }
            hint.left.set(left - 1);
            Known::Usual { queue: hint.queue.get() }
        })
    }

    /// Says it of the next copies, instead of what was said longest ago of another place.
    fn set(place: Place, usual: Usual) {
        HINTS.with(|hints| {
            let set = &hints[place.set()];
            let found = set.iter().position(|hint| hint.place.get() == place.0);
            for way in (1..=found.unwrap_or(WAYS - 1)).rev() {
                let (newer, older) = (&set[way - 1], &set[way]);
                older.place.set(newer.place.get());
                older.left.set(newer.left.get());
                older.queue.set(newer.queue.get());
            }
            set[0].place.set(place.0);
            set[0].left.set(usual.left);
            set[0].queue.set(usual.queue);
        });
    }
}

impl Entry {
    /// What is done with the next `left` copies, this thread's and, when they find no hint, others'.
    fn say(&mut self, place: Place, len: u64, left: u8, queue: bool) {
        let usual = Usual { left, queue };
        self.usual[class_of(len)] = usual;
        Hint::set(place, usual);
    }

    /// What was said, where it holds for one more copy.
    fn go_on(&mut self, place: Place, len: u64) -> Option<bool> {
        let Usual { left, queue } = self.usual[class_of(len)];
        let left = left.checked_sub(1)?;
        self.say(place, len, left, queue);
        Some(queue)
    }
}

impl Memory {
    /// A site, which may be new; none where there is no room for it.
    fn entry(&mut self, site: usize) -> Option<&mut Entry> {
        self.asked += 1;
        if self.sites.len() >= SITES_MAX && !self.sites.contains_key(&site) {
            self.make_room()?;
        }
        let entry = self.sites.entry(site).or_default();
        entry.asked = self.asked;
        Some(entry)
    }

    fn make_room(&mut self) -> Option<()> {
        self.refused += 1;
        if self.refused < GIVE_WAY_EVERY {
            return None;
        }
        self.refused = 0;
        let oldest = self.sites.iter().min_by_key(|(_, entry)| entry.asked).map(|(site, _)| *site);
        self.sites.remove(&oldest?).map(drop)
    }
}

impl Table {
    fn ask(
        &mut self,
        &Question { place, site, len, is_due }: &Question,
        is_awake: bool,
        pending: &dyn Fn() -> u64,
        costs: &dyn Fn() -> Costs,
    ) -> Decision {
        let Some(entry) = self.memory.entry(site) else { return COPY_AT_ONCE };
        if !is_due {
            match entry.go_on(place, len) {
                Some(false) => return COPY_AT_ONCE,
                Some(true) if is_awake => return QUEUE,
                _ => {}
            }
        }
        let (pending, costs) = (pending(), &costs());
        let usual = entry.site.usual(len, true);
        let queue = usual == Some(Verdict::Queue);
        if !is_awake && len + pending < costs.wake_min_bytes {
            // What is seen of a service that has to wake up first says nothing of one that is awake.
            let copies = if self.eager > 0 || queue { 1 } else { ASLEEP_EVERY };
            entry.say(place, len, copies - 1, queue);
            self.eager = self.eager.saturating_sub(1);
            let wake = self.should_wake(usual, len * u64::from(copies));
            // A copy at once takes as long whether the service sleeps or not.
            let timed = wake || usual.is_none();
            return Decision { wake, timed, is_awake: true, ..COPY_AT_ONCE };
        }
        if !is_awake {
            // Long copies are worth waking it for, or are not: that is learnt apart.
            entry.say(place, len, 0, queue);
            let queue = entry.site.decide(costs, len, false, pending) == Verdict::Queue;
            self.eager = self.eager.saturating_sub(1);
            let wake = self.should_wake(usual, len);
            return Decision { queue, timed: true, wake: wake && !queue, is_awake: false };
        }
        self.eager = 0;
        if std::mem::take(&mut self.is_woken) {
            match queue {
                // That was worth while.
                true => self.wake_bytes = (self.wake_bytes / 4).max(WAKE_BYTES_MIN),
                // It is awake for once: this is the time to see whether it still is not.
                false => entry.site.look_again(len),
            }
        }
        let verdict = entry.site.decide(costs, len, true, pending);
        // Until both ways are known every copy is timed.
        let is_settled = usual.is_some() && !entry.site.is_trying(len, true);
        entry.say(place, len, if is_settled { SAMPLE_EVERY - 1 } else { 0 }, queue);
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

    const LEN: usize = 64 << 10;
    const COPY_NS: u32 = 4_000;

    fn decide(sites: &Sites, site: usize, len: usize) -> Decision {
        sites.decide(site, len, || true, || 0, Costs::default)
    }

    fn learn(sites: &Sites, site: usize, len: usize, decision: Decision, window_ns: u32) {
        if decision.timed && decision.queue {
            let wait_ns = (COPY_NS + 200).saturating_sub(window_ns);
            let seen = QueuedTiming { submit_ns: 20, window_ns, wait_ns, line_ns: None };
            sites.learn_queued((site, true), len as u32, &seen, &Costs::default());
        } else if decision.timed {
            sites.learn_at_once((site, true), len, COPY_NS, None);
        }
    }

    /// A copy at a site that takes [`COPY_NS`] and is used `window_ns` later. What was decided.
    fn copy(sites: &Sites, site: usize, window_ns: u32) -> Decision {
        let decision = decide(sites, site, LEN);
        learn(sites, site, LEN, decision, window_ns);
        decision
    }

    /// Of 4000 copies at one site so many are queued.
    fn run(sites: &Sites, site: usize, window_ns: u32) -> usize {
        (0..4000).filter(|_| copy(sites, site, window_ns).queue).count()
    }

    #[test]
    fn sites_with_a_window_queue_and_others_do_not() {
        let sites = Sites::default();
        assert!(run(&sites, 0x1000, 10_000) > 3_800);
        assert!(run(&sites, 0x2000, 0) < 100);
    }

    #[test]
    fn sites_that_collide_keep_what_they_learnt() {
        // Three times as many as there are hints: some share a set, whatever the hash.
        let sites = Sites::default();
        let all = |round: usize| {
            let copies = (0..3 * SETS * WAYS).map(|number| (0x1000 + 16 * number, number % 2 == 0));
            let (mut timed, mut queued, mut count) = (0, [0, 0], 0);
            for (site, has_window) in copies {
                let decision = copy(&sites, site, if has_window { 10_000 } else { 0 });
                timed += usize::from(decision.timed);
                queued[usize::from(has_window)] += usize::from(decision.queue);
                count += 1;
            }
            assert!(round < 10_000);
            (timed, queued, count)
        };
        // Until all of them have settled.
        let settled = (0..2_000).map(all).last().unwrap();
        assert!(settled.2 > 300);
        let (mut timed, mut queued, mut count) = (0, [0, 0], 0);
        for round in 0..1_000 {
            let (more_timed, more_queued, more) = all(round);
            timed += more_timed;
            queued = [queued[0] + more_queued[0], queued[1] + more_queued[1]];
            count += more;
        }
        assert!(timed < count / 50, "{timed} of {count} copies were timed");
        assert!(queued[1] > count / 2 * 9 / 10, "{} of {} with a window", queued[1], count / 2);
        assert!(queued[0] < count / 2 / 10, "{} of {} without", queued[0], count / 2);
    }

    #[test]
    fn sites_beyond_those_that_are_remembered_are_copied_at_once() {
        let sites = Sites::default();
        let (mut timed, mut count) = (0, 0);
        for _ in 0..50 {
            for number in 0..4 * SITES_MAX {
                timed += usize::from(copy(&sites, 0x1000 + 16 * number, 10_000).timed);
                count += 1;
            }
            assert!(sites.table().unwrap().memory.sites.len() <= SITES_MAX);
        }
        // Those that are remembered are timed until they are known.
        assert!(timed < count / 2, "{timed} of {count}");
    }

    #[test]
    fn clients_do_not_learn_from_each_other() {
        let (first, second) = (Sites::default(), Sites::default());
        run(&first, 0x1000, 10_000);
        assert_eq!(first.usual(0x1000, LEN), Some(Verdict::Queue));
        assert_eq!(second.usual(0x1000, LEN), None);
        assert!(!decide(&second, 0x1000, LEN).queue);
    }

    #[test]
    fn what_another_thread_syncs_is_learnt() {
        let sites = Sites::default();
        for _ in 0..200 {
            let decision = decide(&sites, 0x1000, LEN);
            std::thread::scope(|scope| {
                scope.spawn(|| learn(&sites, 0x1000, LEN, decision, 10_000));
            });
        }
        assert_eq!(sites.usual(0x1000, LEN), Some(Verdict::Queue));
    }

    #[test]
    fn a_service_that_sleeps_is_woken_when_it_was_missed_long_enough() {
        let sites = Sites::default();
        let mut woken = Vec::new();
        for number in 0..300 {
            if sites.decide(0x9000, 64 << 10, || false, || 0, Costs::default).wake {
                woken.push(number);
            }
        }
        // Ever more rarely, while nothing comes of it; but a place of which nothing is known does
        // not wait for ever.
        assert_eq!(woken, [0, 23, 39, 71, 135, 199, 263]);
    }
}
