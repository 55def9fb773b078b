//! Whether a copy is worth queueing: learnt for each call site and size.
//!
//! What counts is the time that the client sees: of a copy made at once, the copy; of a queued
//! one, submitting, waiting at the sync, and fetching from another core's cache what the service
//! wrote. A site whose bytes are used at once loses by queueing, always; one that does other work
//! first (its *window*) wins as soon as that is longer than the service takes. Which of both a site
//! is cannot be told beforehand, so both ways are tried, and the worse one is tried again ever more
//! rarely.

/// Shorter copies are made at once without further thought: they take less than queueing does where
/// their bytes are in a cache, and so little where not that learning about them costs too much.
pub const INLINE_MAX_BYTES: u64 = 4096;
/// A service that sleeps is woken for this much: waking takes the client several microseconds.
pub const WAKE_MIN_BYTES: u64 = 128 * 1024;
/// The worse way is tried at first once in so many times that it is asked what to do,
pub const EXPLORE_EVERY: u16 = 4;
/// and once in so many at last.
pub const EXPLORE_EVERY_MAX: u16 = 1024;
/// After a try that went better than the usual way does, it is tried so often before it counts as
/// the worse one again.
pub const TRIES: u8 = 24;

/// So many queued copies of those that are tried one after the other are not counted: the service has
/// just woken up, and finds cold caches.
const UNRIPE: u8 = 2;
/// Queueing is better where it takes less than this share of the time: it takes another core's time
/// as well.
const QUEUE_GAIN: f32 = 0.9;

/// Lengths from `1 << CLASS_MIN` bytes on have classes by powers of two.
const CLASS_MIN: u32 = 10;
/// How many classes of lengths there are. The last one has all longer ones: 1 MiB and more.
pub const CLASSES: usize = 11;
/// Copies made each way before they are compared: the first ones find cold caches, new pages, and a
/// service that is just waking up.
const SAMPLES_MIN: u8 = 6;
/// A new sample counts for one in so many.
const SAMPLES_REMEMBERED: f32 = 8.0;
/// A sample counts as at most so many times the mean: one in which the thread was off the processor
/// says nothing, and a rare way would not live it down.
const OUTLIER: f32 = 4.0;
/// Bytes of a cache line.
const LINE_BYTES: u64 = 64;

/// What depends on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Shorter copies are made at once.
    pub inline_max_bytes: u64,
    /// A sleeping service is woken for this much, with what is pending already.
    pub wake_min_bytes: u64,
    /// What a line costs more to read because another core wrote it, nanoseconds, when many are
    /// read one after the other.
    pub remote_line_ns: f32,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            inline_max_bytes: INLINE_MAX_BYTES,
            wake_min_bytes: WAKE_MIN_BYTES,
            remote_line_ns: 0.7,
        }
    }
}

/// What to do with a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Make it at once, when the pending copies that touch its bytes are synced.
    #[default]
    Inline,
    /// Queue it.
    Queue,
}

impl Verdict {
    fn other(self) -> Verdict {
        match self {
            Verdict::Inline => Verdict::Queue,
            Verdict::Queue => Verdict::Inline,
        }
    }
}

/// A mean that forgets.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    ns: f32,
    /// Samples; it stops counting at 255.
    samples: u8,
}

impl Mean {
    fn add(&mut self, sample_ns: f32) {
        let sample = if sample_ns.is_finite() { sample_ns.max(0.0) } else { return };
        if self.samples == 0 {
            self.ns = sample;
        } else {
            // The mean of a cheap thing may be 0; a nanosecond lets it grow again.
            let sample = sample.min(OUTLIER * self.ns.max(1.0));
            self.ns += (sample - self.ns) / SAMPLES_REMEMBERED.min(f32::from(self.samples) + 1.0);
        }
        self.samples = self.samples.saturating_add(1);
    }

    fn is_known(self) -> bool {
        self.samples >= SAMPLES_MIN
    }
}

/// Copies of about one length.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// What the client sees of a copy made at once, and of a queued one.
    inline: Mean,
    queued: Mean,
    /// The copy alone, made at once.
    copy: Mean,
    window: Mean,
    favourite: Verdict,
    /// Questions until the other way is tried.
    until_explored: u16,
    /// How many there are between two tries.
    explore_every: u16,
    /// Tries of the other way that are still to come, one after the other.
    tries: u8,
    /// Of the queued copies to come so many say nothing.
    unripe: u8,
}

impl Default for Class {
    fn default() -> Class {
        Class {
            inline: Mean::default(),
            queued: Mean::default(),
            copy: Mean::default(),
            window: Mean::default(),
            favourite: Verdict::Inline,
            until_explored: EXPLORE_EVERY,
            explore_every: EXPLORE_EVERY,
            tries: 0,
            unripe: UNRIPE,
        }
    }
}

/// What a client saw of a queued copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// Submitting it took so long.
    pub submit_ns: u32,
    /// So long passed from then to the first sync.
    pub window_ns: u32,
    /// The sync waited so long.
    pub wait_ns: u32,
    /// What it takes to read a line of it then, if that is known: where the service's core shares
    /// no cache with the client's, several times what it takes otherwise.
    pub line_ns: Option<f32>,
}

/// A place in a program that copies. The caller keeps a bounded table of them.
#[derive(Clone, Debug, Default)]
pub struct Site {
    awake: [Class; CLASSES],
    /// While the service sleeps: copies that are worth waking it for, at that price.
    asleep: [Class; CLASSES],
}

/// The class of copies of `len` bytes.
pub fn class_of(len: u64) -> usize {
    let power = (len | 1).ilog2().max(CLASS_MIN) - CLASS_MIN;
    (power as usize).min(CLASSES - 1)
}

impl Site {
    fn class(&self, len: u64, is_awake: bool) -> &Class {
        let classes = if is_awake { &self.awake } else { &self.asleep };
        &classes[class_of(len)]
    }

    fn class_mut(&mut self, len: u64, is_awake: bool) -> &mut Class {
        let classes = if is_awake { &mut self.awake } else { &mut self.asleep };
        &mut classes[class_of(len)]
    }

    /// What to do with a copy of `len` bytes, while `pending_bytes` are queued before it.
    pub fn decide(
        &mut self,
        costs: &Costs,
        len: u64,
        is_awake: bool,
        pending_bytes: u64,
    ) -> Verdict {
        let waking = !is_awake && pending_bytes.saturating_add(len) < costs.wake_min_bytes;
        if len < costs.inline_max_bytes || waking {
            return Verdict::Inline;
        }
        let class = self.class_mut(len, is_awake);
        if !class.inline.is_known() {
            return Verdict::Inline;
        }
        if !class.queued.is_known() {
            return Verdict::Queue;
        }
        class.prefer(len, pending_bytes)
    }

    /// What is done with copies of `len` bytes but for trials, while the service is awake or sleeps;
    /// none before both ways are known.
    pub fn usual(&self, len: u64, is_awake: bool) -> Option<Verdict> {
        let class = self.class(len, is_awake);
        (class.inline.is_known() && class.queued.is_known()).then_some(class.favourite)
    }

    /// The service is awake: now is the time to try the way that seemed worse for copies of `len`
    /// bytes.
    pub fn look_again(&mut self, len: u64) {
        self.class_mut(len, true).begin_tries(TRIES / 2);
    }

    /// Whether the way that seemed worse is being looked at again, so that this is to be asked for
    /// each copy of `len` bytes.
    pub fn is_trying(&self, len: u64, is_awake: bool) -> bool {
        self.class(len, is_awake).tries > 0
    }

    /// A copy was made at once, and took so long. `line_ns`, if known: what it takes to read a line
    /// of it then.
    pub fn observe_inline(&mut self, len: u64, is_awake: bool, copy_ns: u32, line_ns: Option<f32>) {
        let class = self.class_mut(len, is_awake);
        let seen_ns = copy_ns as f32 + lines(len) * line_ns.unwrap_or(0.0);
        class.copy.add(copy_ns as f32);
        class.inline.add(seen_ns);
        class.tried(Verdict::Inline, seen_ns);
    }

    /// A copy that was queued while the service was awake, or slept, was synced.
    pub fn observe_queued(&mut self, costs: &Costs, len: u64, is_awake: bool, seen: &Seen) {
        let class = self.class_mut(len, is_awake);
        class.window.add(seen.window_ns as f32);
        if class.unripe > 0 {
            class.unripe -= 1;
            return;
        }
        let line_ns = seen.line_ns.unwrap_or(costs.remote_line_ns);
        let seen_ns = seen.submit_ns as f32 + seen.wait_ns as f32 + lines(len) * line_ns;
        class.queued.add(seen_ns);
        class.tried(Verdict::Queue, seen_ns);
    }
}

fn lines(len: u64) -> f32 {
    len.div_ceil(LINE_BYTES) as f32
}

impl Class {
    fn begin_tries(&mut self, count: u8) {
        if self.tries == 0 {
            self.unripe = if self.favourite == Verdict::Inline { UNRIPE } else { 0 };
        }
        self.tries = self.tries.max(count);
    }

    /// The other way was tried: if it went well, it is worth another look soon.
    fn tried(&mut self, way: Verdict, seen_ns: f32) {
        let usual = match self.favourite {
            Verdict::Inline => self.inline,
            Verdict::Queue => self.queued,
        };
        let is_other = way != self.favourite && usual.is_known();
        if is_other && seen_ns < usual.ns {
            self.explore_every = EXPLORE_EVERY;
            self.tries = TRIES;
        } else if is_other {
            self.tries = self.tries.saturating_sub(TRIES / 4);
        }
    }

    fn prefer(&mut self, len: u64, pending_bytes: u64) -> Verdict {
        // What waits before it has to be copied within the window too.
        let queue_lens = (pending_bytes as f32 + len as f32) / len.max(1) as f32;
        let late_ns = self.copy.ns * queue_lens - self.window.ns;
        let queued_ns = self.queued.ns.max(late_ns);
        let better = match queued_ns < QUEUE_GAIN * self.inline.ns {
            true => Verdict::Queue,
            false => Verdict::Inline,
        };
        if better != self.favourite {
            self.favourite = better;
            self.explore_every = EXPLORE_EVERY;
            self.until_explored = EXPLORE_EVERY;
            self.tries = 0;
        }
        if self.tries > 0 {
            self.tries -= 1;
            return better.other();
        }
        self.until_explored = self.until_explored.saturating_sub(1);
        if self.until_explored > 0 {
            return better;
        }
        self.explore_every = self.explore_every.saturating_mul(2).min(EXPLORE_EVERY_MAX);
        self.until_explored = self.explore_every;
        self.begin_tries(TRIES / 4);
        better.other()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs =
        Costs { inline_max_bytes: 1024, wake_min_bytes: 128 << 10, remote_line_ns: 0.7 };

    /// A site whose copies take `copy_ns` anywhere and are used `window_ns` later.
    fn run(site: &mut Site, len: u64, copy_ns: u32, window_ns: u32, count: u32) -> (u32, f64) {
        let (mut queued, mut seen_ns) = (0, 0.0);
        for _ in 0..count {
            match site.decide(&COSTS, len, true, 0) {
                Verdict::Inline => {
                    site.observe_inline(len, true, copy_ns, None);
                    seen_ns += f64::from(copy_ns);
                }
                Verdict::Queue => {
                    let wait_ns = (copy_ns + 120).saturating_sub(window_ns);
                    let seen = Seen { submit_ns: 20, window_ns, wait_ns, line_ns: None };
                    site.observe_queued(&COSTS, len, true, &seen);
                    queued += 1;
                    seen_ns += f64::from(20 + wait_ns) + 0.7 * (len / 64) as f64;
                }
            }
        }
        (queued, seen_ns)
    }

    #[test]
    fn without_a_window_it_costs_almost_nothing() {
        for (len, copy_ns) in [(4096, 100), (65536, 1000), (1 << 20, 25_000)] {
            let (queued, seen_ns) = run(&mut Site::default(), len, copy_ns, 0, 20_000);
            assert!(queued < 100, "{queued}");
            let never = 20_000.0 * f64::from(copy_ns);
            assert!(seen_ns < 1.01 * never, "{seen_ns} instead of {never}");
        }
    }

    #[test]
    fn with_a_window_it_is_queued_where_that_pays() {
        for (len, copy_ns) in [(16384, 360), (65536, 1000), (1 << 22, 100_000)] {
            let (queued, _) = run(&mut Site::default(), len, copy_ns, 2 * copy_ns, 20_000);
            assert!(queued > 19_880, "{queued} of {len}");
        }
        // 64 remote lines cost more than the copy.
        let (queued, _) = run(&mut Site::default(), 4096, 40, 1000, 20_000);
        assert!(queued < 100, "{queued}");
    }

    #[test]
    fn a_site_that_changes_is_found_out() {
        let mut site = Site::default();
        run(&mut site, 65536, 1000, 0, 20_000);
        run(&mut site, 65536, 1000, 5000, 2 * u32::from(EXPLORE_EVERY_MAX));
        let (queued, _) = run(&mut site, 65536, 1000, 5000, 1000);
        assert!(queued > 950, "{queued}");
        run(&mut site, 65536, 1000, 0, 100);
        let (queued, _) = run(&mut site, 65536, 1000, 0, 1000);
        assert!(queued < 50, "{queued}");
    }

    #[test]
    fn lengths_do_not_learn_from_each_other() {
        let mut site = Site::default();
        run(&mut site, 65536, 1000, 5000, 1000);
        run(&mut site, 4096, 100, 0, 1000);
        assert_eq!(site.decide(&COSTS, 65536, true, 0), Verdict::Queue);
        assert_eq!(site.decide(&COSTS, 4096, true, 0), Verdict::Inline);
        assert_eq!(site.decide(&COSTS, 1023, true, 0), Verdict::Inline);
        assert!(class_of(u64::MAX) == CLASSES - 1 && class_of(0) == 0);
    }

    #[test]
    fn what_lines_cost_decides() {
        // 64 KiB that take 1.1 us to copy, with time enough; the service near, and far.
        for (line_ns, is_queued) in [(1.1, true), (3.5, false)] {
            let mut site = Site::default();
            for _ in 0..100 {
                site.observe_inline(65536, true, 1_100, Some(0.5));
                let line_ns = Some(line_ns);
                let seen = Seen { submit_ns: 50, window_ns: 9000, wait_ns: 20, line_ns };
                site.observe_queued(&COSTS, 65536, true, &seen);
            }
            site.decide(&COSTS, 65536, true, 0);
            assert_eq!(site.usual(65536, true) == Some(Verdict::Queue), is_queued);
        }
    }

    #[test]
    fn nobody_is_woken_for_little_and_a_backlog_counts() {
        let mut site = Site::default();
        run(&mut site, 65536, 1000, 5000, 1000);
        assert_eq!(site.decide(&COSTS, 65536, false, 0), Verdict::Inline);
        // With a backlog it may be worth it: learnt apart.
        assert_eq!(site.decide(&COSTS, 65536, false, 65536), Verdict::Inline);
        for _ in 0..SAMPLES_MIN {
            site.observe_inline(65536, false, 1000, None);
        }
        assert_eq!(site.decide(&COSTS, 65536, false, 65536), Verdict::Queue);
        assert_eq!(site.decide(&COSTS, 65536, false, 0), Verdict::Inline);
        assert_eq!(site.decide(&COSTS, 65536, true, 1 << 20), Verdict::Inline);
        assert_eq!(site.decide(&COSTS, 65536, true, u64::MAX), Verdict::Inline);
    }

    #[test]
    fn one_bad_moment_is_lived_down() {
        let mut site = Site::default();
        run(&mut site, 65536, 1000, 5000, 100);
        let late = Seen { submit_ns: 20, window_ns: 5000, wait_ns: u32::MAX, line_ns: None };
        site.observe_queued(&COSTS, 65536, true, &late);
        let (queued, _) = run(&mut site, 65536, 1000, 5000, 1000);
        assert!(queued > 900, "{queued}");
    }
}
