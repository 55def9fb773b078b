//! Admission: decides which copies are queued. Each client learns this for each call site of the
//! program.
//!
//! A decision must cost next to nothing if the copy is synchronous. Therefore decisions are
//! cached; one in [`RUN_COPIES`] copies is timed, and the policy
//! ([`unlade_copy_scheduler::admit`]) decides again.
//!
//! There are two levels. Each thread has [`Hint`]s: decisions for the next copies of a site, which
//! are found without a lock. Sites that collide in a set of hints evict each other without loss:
//! the measurements, and the number of copies until the next timed one, are in the client's
//! [`Table`], which all its threads share. A copy that one thread submits and another one syncs is
//! therefore measured, too.

use std::cell::Cell;
use std::collections::HashMap;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use once_cell::race::OnceNonZeroUsize;
use unlade_copy_scheduler::admit::{
    CLASSES, CallSite, Costs, QueuedTiming, RUN_COPIES, Request, State, Verdict, View, class_of,
};

use crate::explain::board;
use crate::explain::explainer::Explainer;
use crate::explain::{Board, Serving, SiteNames};

/// Shorter receives are synchronous, unless the program asks for a queued one: asking a socket for
/// the number of its bytes is a system call, too. Longer ones are queued without a measurement;
/// only `Inbound` measures, and counts from the end of its first, synchronous part.
pub(crate) const RECEIVE_BYTES_MIN: usize = 4 << 10;
/// Shorter sends are synchronous, unless the program asks for a queued one.
pub(crate) const SEND_BYTES_MIN: usize = 4 << 10;
/// Both for a daemon, whose thread for this client's sockets is woken for each system call.
pub(crate) const DAEMON_SOCKET_BYTES_MIN: usize = 64 << 10;
/// Shorter messages of a channel go in its ring.
pub(crate) const MESSAGE_BYTES_MIN: usize = 4 << 10;
/// Shorter rests of an [`Incoming`](crate::Incoming) are not offered to the service: the thread
/// that syncs receives them faster.
pub(crate) const REST_BYTES_MIN: usize = 16 << 10;

/// Number of hint sets of a thread, a power of two, and number of hints in a set.
const SETS: usize = 64;
const WAYS: usize = 2;
/// Maximum number of sites in a client's table.
const SITES_MAX: usize = 512;
/// If the table is full, one in this number of copies of unknown sites evicts the least recently
/// used site. The other copies are synchronous.
const EVICT_EVERY: u32 = 64;
/// Bits of a packed [`Place`] that hold the site; the class is above them.
const SITE_BITS: u32 = 59;
const SITE_MASK: usize = (1 << SITE_BITS) - 1;

/// Decision for one copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decision {
    pub queue: bool,
    /// Report the time of the copy to [`Admission::learn_at_once`] or [`Admission::learn_queued`].
    pub timed: bool,
    /// Wake the sleeping service. Only for a timed copy.
    pub wake: bool,
    /// The service is awake.
    pub is_awake: bool,
}

/// A call site, and a class of lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The lower bits of the site: those of any address of a process.
    pub site: usize,
    pub class: usize,
}

impl Place {
    /// The place of a copy of `whole_bytes`, which may be submitted in several tasks.
    #[inline]
    pub fn of(site: usize, whole_bytes: usize) -> Place {
        Place { site: site & SITE_MASK, class: class_of(whole_bytes as u64) }
    }

    /// Packs the place into a word; never 0.
    #[inline]
    pub fn to_bits(self) -> u64 {
        // One more than the class, so that a packed place is never 0.
        (self.class as u64 + 1) << SITE_BITS | self.site as u64
    }

    /// Unpacks a word; `None` for 0.
    pub fn from_bits(bits: u64) -> Option<Place> {
        let class = (bits >> SITE_BITS).checked_sub(1)? as usize;
        Some(Place { site: bits as usize & SITE_MASK, class })
    }
}

/// Key of a hint: a place, and the epoch of its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HintKey(u64);

impl HintKey {
    #[inline]
    fn of(epoch: u64, place: Place) -> HintKey {
        // Multiplied so that the high bits depend on all bits; 0 marks an empty hint.
        let epoch = epoch.rotate_left(40);
        HintKey((place.to_bits() ^ epoch).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    #[inline]
    fn set(self) -> usize {
        (self.0 >> 58) as usize % SETS
    }
}

/// Cached decision of a thread for one key. Plain cells keep the lookup cheap.
#[derive(Debug)]
struct Hint {
    key: Cell<u64>,
    /// Copies until the next one is timed.
    left: Cell<u16>,
    queue: Cell<bool>,
    /// Copies for which it was stored.
    given: Cell<u16>,
    /// Entry of the place in the table of the process, to count the copies.
    entry: Cell<board::Entry>,
}

/// Arguments of a query to the table.
#[derive(Clone, Copy, Debug)]
struct Query {
    key: HintKey,
    place: Place,
    /// Bytes of the task.
    len: u64,
    is_awake: bool,
    hint: HintLookup,
}

/// Result of a lookup in the thread's hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HintLookup {
    /// The cached decision.
    Cached { queue: bool },
    /// The hint is used up: ask the table.
    Due,
    /// No hint: other keys have evicted it.
    Missing,
}

thread_local! {
    static HINTS: [[Hint; WAYS]; SETS] = const {
        [const {
            [const {
                Hint {
                    key: Cell::new(0),
                    left: Cell::new(0),
                    queue: Cell::new(false),
                    given: Cell::new(0),
                    entry: Cell::new(0),
                }
            }; WAYS]
        }; SETS]
    };
}

/// A site, and the decisions for its next copies until one is timed, by class of length.
#[derive(Debug, Default)]
struct Entry {
    site: CallSite,
    usual: [CachedDecision; CLASSES],
    /// Entries in the table of the process.
    entries: [board::Entry; CLASSES],
    /// The number of the question that it was asked last.
    asked: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct CachedDecision {
    left: u16,
    queue: bool,
}

/// The sites of a client, and their measurements.
#[derive(Debug, Default)]
struct Table {
    sites: HashMap<usize, Box<Entry>>,
    /// Number of queries.
    asked: u64,
    /// Number of refused queries for unknown sites since the last eviction.
    refused: u32,
}

const COPY_AT_ONCE: Decision = Decision { queue: false, timed: false, wake: false, is_awake: true };
const QUEUE: Decision = Decision { queue: true, ..COPY_AT_ONCE };

/// Admission state of a client.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Part of the keys of hints: a number that no other client has or had. It changes when a
    /// decision changes that hints may still hold.
    epoch: AtomicU64,
    table: Mutex<Table>,
    explainer: Explainer,
}

impl Default for Admission {
    fn default() -> Admission {
        let epoch = AtomicU64::new(next_epoch());
        Admission { epoch, table: Mutex::default(), explainer: Explainer::default() }
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        if let Some(table) = self.table() {
            table.sites.values().for_each(|entry| self.explainer.release(&entry.entries));
        }
    }
}

fn next_epoch() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Admission {
    /// Admission whose decisions are explained in the table of the process.
    pub fn explained(serving: Serving) -> Admission {
        let mut admission = Admission::default();
        admission.explainer = Explainer::new(serving);
        admission
    }

    /// Kind of the program's sites, to name them.
    pub fn set_names(&mut self, names: SiteNames) {
        self.explainer.set_names(names);
    }

    /// A copy of `len` bytes was made at once, since it is too short to be queued.
    pub fn note_short(&self, place: Place, len: usize) {
        self.explainer.note_short(place.site, place.class, len as u64);
    }

    /// A copy that was to be queued was made at once: the queue is full, or, if it is not
    /// `is_reachable`, the service cannot access the memory.
    #[cold]
    pub fn note_unqueued(&self, place: Place, is_reachable: bool) {
        let Some(board) = self.explainer.board() else { return };
        let Some(table) = self.table() else { return };
        if let Some(entry) = table.sites.get(&place.site) {
            board.count_unqueued(entry.entries[place.class], is_reachable);
        }
    }

    /// Returns true when the client has been quiet for some looks: see [`Explainer`].
    pub fn is_introduced(&self) -> bool {
        self.explainer.is_introduced()
    }

    /// Decides for a copy of `len` bytes at `place`,
    /// [`QUEUED_BYTES_MIN`](unlade_copy_scheduler::admit::QUEUED_BYTES_MIN) or more. `is_awake`
    /// returns true if the service is awake, `pending` the number of queued bytes, `costs` the
    /// machine's costs. They are called only where they matter.
    #[inline(always)]
    pub fn decide(
        &self,
        place: Place,
        len: usize,
        is_awake: impl Fn() -> bool,
        pending: impl Fn() -> u64,
        costs: impl Fn() -> Costs,
    ) -> Decision {
        let key = HintKey::of(self.epoch.load(Ordering::Relaxed), place);
        let known = Hint::known(key);
        match known {
            HintLookup::Cached { queue: false } => COPY_AT_ONCE,
            HintLookup::Cached { queue: true } if is_awake() => QUEUE,
            hint => {
                let query = Query { key, place, len: len as u64, is_awake: is_awake(), hint };
                self.query(&query, &pending, &costs)
            }
        }
    }

    /// Number of copies at `place` that this thread makes at once before the next timed one, as far
    /// as it knows; none if it queues them.
    pub fn left_at_once(&self, place: Place) -> Option<u16> {
        Hint::left_at_once(HintKey::of(self.epoch.load(Ordering::Relaxed), place))
    }

    /// Has this thread ask the table about its next copy at `place`, and time it.
    pub fn expire(&self, place: Place) {
        Hint::expire(HintKey::of(self.epoch.load(Ordering::Relaxed), place));
    }

    #[cold]
    #[inline(never)]
    fn query(
        &self,
        query: &Query,
        pending: &dyn Fn() -> u64,
        costs: &dyn Fn() -> Costs,
    ) -> Decision {
        // Another thread uses the table: this copy does not wait for it.
        let Some(mut table) = self.table() else { return COPY_AT_ONCE };
        if matches!(query.hint, HintLookup::Cached { .. }) {
            // The hint did not decide about this copy.
            Hint::give_back(query.key);
        }
        table.query(query, pending, costs, &self.explainer)
    }

    /// Locks the table if it is free. One sample is not worth a wait.
    fn table(&self) -> Option<MutexGuard<'_, Table>> {
        match self.table.try_lock() {
            Ok(table) => Some(table),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn learn(&self, place: Place, learn: impl FnOnce(&mut Entry)) {
        if let Some(mut table) = self.table()
            && let Some(entry) = table.sites.get_mut(&place.site)
        {
            let before = entry.site.state(place.class);
            learn(entry);
            // A known site is written with its next decision.
            let now = entry.site.state(place.class);
            if now != before || matches!(now, State::NotLearnt | State::Trial) {
                entry.explain(&self.explainer, place, None, before);
            }
        }
    }

    /// A copy that was to be timed was made at once, in `copy_ns`; see
    /// [`CallSite::observe_inline`].
    pub fn learn_at_once(&self, place: Place, len: usize, copy_ns: u32, line_ns: Option<f32>) {
        self.learn(place, |entry| {
            entry.site.observe_inline(place.class, len as u64, copy_ns, line_ns);
        });
    }

    /// The bytes of a copy that was made at once are synced `window_ns` later.
    pub fn learn_window(&self, place: Place, window_ns: u32) {
        self.learn(place, |entry| entry.site.observe_window(place.class, window_ns));
    }

    /// Records a timed copy of `len` bytes that was queued and is synced now, by any thread.
    pub fn learn_queued(&self, (place, is_awake): (Place, bool), len: u32, seen: &QueuedTiming) {
        self.learn(place, |entry| {
            entry.site.observe_queued(place.class, len.into(), is_awake, seen);
        });
    }

    /// Records the wait for a queued copy that was not timed.
    pub fn learn_late(&self, place: Place, wait_ns: u32) {
        self.learn(place, |entry| {
            if entry.site.observe_late(place.class, wait_ns) {
                // The hints of all threads are obsolete.
                entry.usual[place.class] = CachedDecision::default();
                self.epoch.store(next_epoch(), Ordering::Relaxed);
            }
        });
    }

    /// The usual decision for such copies; none before it is known.
    #[cfg(test)]
    pub fn usual(&self, site: usize, len: usize) -> Option<Verdict> {
        self.table()?.sites.get(&site)?.site.usual(class_of(len as u64))
    }

    /// The window of a place, if one was recorded.
    #[cfg(test)]
    pub fn window_ns(&self, place: Place) -> Option<f32> {
        self.table()?.sites.get(&place.site)?.site.window_ns(place.class)
    }
}

/// Nanoseconds since `began`, minus the cost of reading the clock.
pub(crate) fn nanos(began: Instant) -> u32 {
    let took_ns = u32::try_from(began.elapsed().as_nanos()).unwrap_or(u32::MAX);
    took_ns.saturating_sub(clock_ns())
}

/// Cost of reading the clock, which is similar to that of a small copy.
fn clock_ns() -> u32 {
    const LOOKS: u32 = 32;
    // A child after fork(2) would wait for ever for a parent's thread in a `OnceLock`.
    static CLOCK_NS: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let measured = CLOCK_NS.get_or_init(|| {
        let began = Instant::now();
        let last = (1..LOOKS).fold(began, |_, _| Instant::now());
        let each_ns = last.duration_since(began).as_nanos() / u128::from(LOOKS - 1);
        NonZero::new(usize::try_from(each_ns).unwrap_or(1)).unwrap_or(NonZero::<usize>::MIN)
    });
    u32::try_from(measured.get()).unwrap_or(u32::MAX)
}

impl Hint {
    /// Looks up the hint for a key.
    #[inline(always)]
    fn known(key: HintKey) -> HintLookup {
        HINTS.with(|hints| {
            let set = &hints[key.set()];
            let Some(hint) = set.iter().find(|hint| hint.key.get() == key.0) else {
                return HintLookup::Missing;
            };
            let left = hint.left.get();
            if left == 0 {
                return HintLookup::Due;
            }
            hint.left.set(left - 1);
            HintLookup::Cached { queue: hint.queue.get() }
        })
    }

    /// Number of copies that the thread still makes at once by this hint; none if they are queued.
    fn left_at_once(key: HintKey) -> Option<u16> {
        HINTS.with(|hints| {
            let hint = hints[key.set()].iter().find(|hint| hint.key.get() == key.0)?;
            (!hint.queue.get()).then(|| hint.left.get())
        })
    }

    /// Lets the hint be used up.
    fn expire(key: HintKey) {
        HINTS.with(|hints| {
            let mut set = hints[key.set()].iter();
            if let Some(hint) = set.find(|hint| hint.key.get() == key.0) {
                hint.left.set(0);
            }
        });
    }

    /// Takes back a look at the hint that decided nothing.
    fn give_back(key: HintKey) {
        HINTS.with(|hints| {
            let mut set = hints[key.set()].iter();
            if let Some(hint) = set.find(|hint| hint.key.get() == key.0) {
                hint.left.set(hint.left.get().saturating_add(1));
            }
        });
    }

    /// Stores the hint for a key; evicts the oldest hint of the set, and counts its copies.
    fn set(key: HintKey, usual: CachedDecision, entry: board::Entry, board: Option<&Board>) {
        HINTS.with(|hints| {
            let set = &hints[key.set()];
            let found = set.iter().position(|hint| hint.key.get() == key.0);
            let last = found.unwrap_or(WAYS - 1);
            set[last].count(board);
            for way in (1..=last).rev() {
                let (newer, older) = (&set[way - 1], &set[way]);
                older.key.set(newer.key.get());
                older.left.set(newer.left.get());
                older.queue.set(newer.queue.get());
                older.given.set(newer.given.get());
                older.entry.set(newer.entry.get());
            }
            set[0].key.set(key.0);
            set[0].left.set(usual.left);
            set[0].queue.set(usual.queue);
            set[0].given.set(usual.left);
            set[0].entry.set(entry);
        });
    }

    /// Counts the copies for which the hint was used.
    fn count(&self, board: Option<&Board>) {
        let used = self.given.get().saturating_sub(self.left.get());
        if let Some(board) = board.filter(|_| used > 0) {
            board.count(self.entry.get(), self.queue.get(), used.into());
        }
    }
}

impl Entry {
    /// Stores the decision for the next `left` copies, of this thread and of threads without a
    /// hint.
    fn store(&mut self, key: HintKey, class: usize, usual: CachedDecision, board: Option<&Board>) {
        self.usual[class] = usual;
        Hint::set(key, usual, self.entries[class], board);
    }

    /// Reuses the stored decision for one more copy.
    fn reuse(&mut self, key: HintKey, class: usize, board: Option<&Board>) -> Option<bool> {
        let CachedDecision { left, queue } = self.usual[class];
        let usual = CachedDecision { left: left.checked_sub(1)?, queue };
        self.store(key, class, usual, board);
        Some(queue)
    }

    /// Writes the state of a class, of which `before` was the last one, into the table of the
    /// process. `bytes`: length of the copy that was decided about.
    fn explain(&mut self, explainer: &Explainer, place: Place, bytes: Option<u64>, before: State) {
        if explainer.board().is_some() {
            let view = self.site.view(place.class);
            self.explain_as(explainer, place, bytes, before, &view);
        }
    }

    fn explain_as(
        &mut self,
        explainer: &Explainer,
        place: Place,
        bytes: Option<u64>,
        before: State,
        view: &View,
    ) {
        let Place { site, class } = place;
        explainer.publish(&mut self.entries[class], (site, class), bytes, before, view);
    }
}

impl Table {
    /// Finds or inserts a site; none if there is no room.
    fn entry(&mut self, site: usize, explainer: &Explainer) -> Option<&mut Entry> {
        self.asked += 1;
        if self.sites.len() >= SITES_MAX && !self.sites.contains_key(&site) {
            self.make_room(explainer)?;
        }
        let entry = self.sites.entry(site).or_default();
        entry.asked = self.asked;
        Some(entry)
    }

    fn make_room(&mut self, explainer: &Explainer) -> Option<()> {
        self.refused += 1;
        if self.refused < EVICT_EVERY {
            return None;
        }
        self.refused = 0;
        let oldest = self.sites.iter().min_by_key(|(_, entry)| entry.asked).map(|(site, _)| *site);
        self.sites.remove(&oldest?).map(|entry| explainer.release(&entry.entries))
    }

    fn query(
        &mut self,
        &Query { key, place, len, is_awake, hint }: &Query,
        pending: &dyn Fn() -> u64,
        costs: &dyn Fn() -> Costs,
        explainer: &Explainer,
    ) -> Decision {
        let Some(entry) = self.entry(place.site, explainer) else { return COPY_AT_ONCE };
        let (pending_bytes, costs) = (pending(), &costs());
        let (class, board) = (place.class, explainer.board());
        let count = |entry: &Entry, is_queued: bool| {
            board.iter().for_each(|board| board.count(entry.entries[class], is_queued, 1));
        };
        if hint != HintLookup::Due
            && let Some(queue) = entry.reuse(key, class, board)
        {
            // A long copy wakes the service.
            let is_worth_it = is_awake || len + pending_bytes >= costs.wake_pending_bytes_min;
            if !queue || is_worth_it {
                count(entry, queue);
                return if queue { QUEUE } else { COPY_AT_ONCE };
            }
        }
        let before = entry.site.state(class);
        let request = Request { class, bytes: len, pending_bytes, is_awake, run: RUN_COPIES };
        let choice = entry.site.decide(costs, &request);
        match len < costs.queued_bytes_min {
            true => entry.explain_as(explainer, place, Some(len), State::AtOnce, &View::short()),
            false => entry.explain(explainer, place, Some(len), before),
        }
        let usual = CachedDecision { left: choice.copies, queue: choice.usual == Verdict::Queue };
        entry.store(key, class, usual, board);
        let queue = choice.verdict == Verdict::Queue;
        count(entry, queue);
        Decision { queue, timed: true, wake: choice.wake, is_awake }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: usize = 64 << 10;
    const COPY_NS: u32 = 4_000;

    fn decide(sites: &Admission, site: usize, len: usize) -> Decision {
        sites.decide(Place::of(site, len), len, || true, || 0, Costs::default)
    }

    fn learn(sites: &Admission, site: usize, len: usize, decision: Decision, window_ns: u32) {
        let place = Place::of(site, len);
        let wait_ns = (COPY_NS + 200).saturating_sub(window_ns);
        if decision.timed && decision.queue {
            let seen = QueuedTiming { submit_ns: 20, window_ns, wait_ns, line_ns: None };
            sites.learn_queued((place, true), len as u32, &seen);
        } else if decision.timed {
            sites.learn_at_once(place, len, COPY_NS, None);
            sites.learn_window(place, window_ns);
        } else if decision.queue && wait_ns > 0 {
            sites.learn_late(place, wait_ns);
        }
    }

    /// Simulates a copy at a site that takes [`COPY_NS`] and is used `window_ns` later. Returns
    /// the decision.
    fn copy(sites: &Admission, site: usize, window_ns: u32) -> Decision {
        let decision = decide(sites, site, LEN);
        learn(sites, site, LEN, decision, window_ns);
        decision
    }

    /// Number of queued copies among 4000 at one site.
    fn run(sites: &Admission, site: usize, window_ns: u32) -> usize {
        (0..4000).filter(|_| copy(sites, site, window_ns).queue).count()
    }

    #[test]
    fn a_place_is_packed_without_loss() {
        for (site, len) in [(0, 0), (0x7fff_ffff_f000, 4096), (usize::MAX, usize::MAX)] {
            let place = Place::of(site, len);
            assert_eq!(Place::from_bits(place.to_bits()), Some(place));
        }
        assert_eq!(Place::from_bits(0), None);
    }

    #[test]
    fn sites_with_a_window_queue_and_others_do_not() {
        let sites = Admission::default();
        assert!(run(&sites, 0x1000, 10_000) > 3_700);
        assert!(run(&sites, 0x2000, 0) < 100);
    }

    #[test]
    fn sites_that_collide_keep_what_they_learnt() {
        // Three times as many as there are hints: some share a set, whatever the hash.
        let sites = Admission::default();
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
        // Runs until all of them have settled.
        let settled = (0..2_000).map(all).last().unwrap();
        assert!(settled.2 > 300);
        let (mut timed, mut queued, mut count) = (0, [0, 0], 0);
        for round in 0..1_000 {
            let (more_timed, more_queued, more) = all(round);
            timed += more_timed;
            queued = [queued[0] + more_queued[0], queued[1] + more_queued[1]];
            count += more;
        }
        assert!(timed < count / 25, "{timed} of {count} copies were timed");
        assert!(queued[1] > count / 2 * 9 / 10, "{} of {} with a window", queued[1], count / 2);
        assert!(queued[0] < count / 2 / 10, "{} of {} without", queued[0], count / 2);
    }

    #[test]
    fn sites_beyond_the_table_are_synchronous() {
        let sites = Admission::default();
        let (mut timed, mut count) = (0, 0);
        for _ in 0..50 {
            for number in 0..4 * SITES_MAX {
                timed += usize::from(copy(&sites, 0x1000 + 16 * number, 10_000).timed);
                count += 1;
            }
            assert!(sites.table().unwrap().sites.len() <= SITES_MAX);
        }
        // Sites in the table are timed until they are known.
        assert!(timed < count / 2, "{timed} of {count}");
    }

    #[test]
    fn clients_do_not_learn_from_each_other() {
        let (first, second) = (Admission::default(), Admission::default());
        run(&first, 0x1000, 10_000);
        assert_eq!(first.usual(0x1000, LEN), Some(Verdict::Queue));
        assert_eq!(second.usual(0x1000, LEN), None);
        assert!(!decide(&second, 0x1000, LEN).queue);
    }

    #[test]
    fn a_sync_by_another_thread_is_recorded() {
        let sites = Admission::default();
        for _ in 0..200 {
            let decision = decide(&sites, 0x1000, LEN);
            std::thread::scope(|scope| {
                scope.spawn(|| learn(&sites, 0x1000, LEN, decision, 10_000));
            });
        }
        assert_eq!(sites.usual(0x1000, LEN), Some(Verdict::Queue));
    }

    #[test]
    fn a_site_whose_window_ends_stops_queueing_within_a_run() {
        let sites = Admission::default();
        run(&sites, 0x1000, 10_000);
        let other = run(&sites, 0x2000, 10_000);
        let queued = (0..1000).filter(|_| copy(&sites, 0x1000, 0).queue).count();
        assert!(queued < 140, "{queued} copies were late");
        // Its hints went, and those of other sites with them; their decisions did not.
        assert!(run(&sites, 0x2000, 10_000) >= other);
    }

    #[test]
    fn a_sleeping_service_is_woken_where_that_may_pay() {
        let wakes = |window_ns: u32| {
            let sites = Admission::default();
            let wake = |_| {
                // Short enough that the waiter is not expected to share the work.
                let (site, len) = (0x9000, LEN / 2);
                let place = Place::of(site, len);
                let decision = sites.decide(place, len, || false, || 0, Costs::default);
                learn(&sites, site, len, decision, window_ns);
                decision.wake
            };
            (0..20_000).filter(|at| wake(*at)).count()
        };
        assert_eq!(wakes(0), 0);
        // It does not wake up: the allowance ends the attempts.
        let count = wakes(10_000);
        assert!((2..250).contains(&count), "{count}");
    }
}
