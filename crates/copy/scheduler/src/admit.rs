//! Admission: decides whether to queue a copy, from measurements for each call site and length.
//!
//! The cost is the time that the client sees. An inline copy costs the copy itself. A queued copy
//! costs its submission, the wait at the sync, and the transfer of the bytes from the other core's
//! cache. A call site that uses the bytes at once always loses by queueing. A call site that does
//! other work first (its *window*) gains as soon as the window is longer than the service takes.
//! The kind of a call site is not known in advance, so both ways are tried. The worse way is
//! retried at growing intervals.

/// Shorter copies are made inline, unless the program asks for a queued one. With cached bytes they
/// take less time than queueing does; otherwise the gain is smaller than the cost of measuring
/// them.
pub const QUEUED_BYTES_MIN: u64 = 4096;
/// Number of bytes from which a sleeping service is woken: a wake-up costs the client several
/// microseconds.
pub const WAKE_PENDING_BYTES_MIN: u64 = 128 * 1024;
/// Initial interval between trials of the worse way, in decisions.
pub const EXPLORE_EVERY: u16 = 4;
/// Maximum interval between trials of the worse way, in decisions.
pub const EXPLORE_EVERY_MAX: u16 = 1024;
/// Number of further trials after a trial of the worse way was cheaper than the usual way.
pub const TRIES: u8 = 24;

/// Number of queued copies at the start of a trial that are not measured, because the service has
/// just woken up and its caches are cold.
const WARM_UP_COPIES: u8 = 2;
/// Queueing must take less than this fraction of the inline time, because it uses another core
/// too.
const QUEUE_GAIN: f32 = 0.9;

/// Lengths of at least `1 << CLASS_MIN` bytes are classed by powers of two.
const CLASS_MIN: u32 = 10;
/// Number of length classes. The last class contains all copies of 1 MiB and more.
pub const CLASSES: usize = 11;
/// Number of copies measured for each way before the two are compared. The first copies meet cold
/// caches, new pages, and a service that is just waking up.
const SAMPLES_MIN: u8 = 6;
/// A new sample has the weight of one part in this number.
const SAMPLES_REMEMBERED: f32 = 8.0;
/// A sample counts as at most this multiple of the mean. A thread that was preempted during a
/// sample would otherwise distort the mean of a rare way for a long time.
const OUTLIER: f32 = 4.0;
/// Bytes in a cache line.
const LINE_BYTES: u64 = 64;

/// Costs that depend on the machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Shorter copies are made inline, unless the program asks for a queued one.
    pub queued_bytes_min: u64,
    /// Number of pending bytes, including this copy, from which a sleeping service is woken.
    pub wake_pending_bytes_min: u64,
    /// Additional time to read a cache line that another core wrote, in nanoseconds, for a
    /// sequence of lines.
    pub remote_line_ns: f32,
}

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            queued_bytes_min: QUEUED_BYTES_MIN,
            wake_pending_bytes_min: WAKE_PENDING_BYTES_MIN,
            remote_line_ns: 0.7,
        }
    }
}

/// Decision about a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// Copy at once, after a sync of the pending copies that touch the same bytes.
    #[default]
    Inline,
    /// Submit the copy to the service.
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

/// An exponentially weighted mean.
#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    ns: f32,
    /// Number of samples, at most 255.
    samples: u8,
}

impl Mean {
    fn add(&mut self, sample_ns: f32) {
        let sample = if sample_ns.is_finite() { sample_ns.max(0.0) } else { return };
        if self.samples == 0 {
            self.ns = sample;
        } else {
            // The mean of a cheap operation may be 0; one nanosecond lets it grow again.
            let sample = sample.min(OUTLIER * self.ns.max(1.0));
            self.ns += (sample - self.ns) / SAMPLES_REMEMBERED.min(f32::from(self.samples) + 1.0);
        }
        self.samples = self.samples.saturating_add(1);
    }

    fn is_known(self) -> bool {
        self.samples >= SAMPLES_MIN
    }
}

/// Measurements for copies of about one length.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// Client-visible time of an inline copy and of a queued copy.
    inline: Mean,
    queued: Mean,
    /// Time of an inline copy alone.
    copy: Mean,
    window: Mean,
    preferred: Verdict,
    /// Number of decisions before the next trial.
    until_explored: u16,
    /// Number of decisions between two trials.
    explore_every: u16,
    /// Number of trials that remain in the current sequence.
    tries: u8,
    /// Number of coming queued copies that are not measured.
    warm_up_copies: u8,
}

impl Default for Class {
    fn default() -> Class {
        Class {
            inline: Mean::default(),
            queued: Mean::default(),
            copy: Mean::default(),
            window: Mean::default(),
            preferred: Verdict::Inline,
            until_explored: EXPLORE_EVERY,
            explore_every: EXPLORE_EVERY,
            tries: 0,
            warm_up_copies: WARM_UP_COPIES,
        }
    }
}

/// Client-side measurements of a queued copy.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueuedTiming {
    /// Time of the submission.
    pub submit_ns: u32,
    /// Time between the submission and the first sync.
    pub window_ns: u32,
    /// Time that the sync waited.
    pub wait_ns: u32,
    /// Time to read a cache line of the result, if measured. It is several times longer if the
    /// service's core shares no cache with the client's core.
    pub line_ns: Option<f32>,
}

/// A call site in a program that copies. The caller keeps a bounded table of call sites.
#[derive(Clone, Debug, Default)]
pub struct CallSite {
    awake: [Class; CLASSES],
    /// Measurements while the service sleeps; they include the wake-up cost.
    asleep: [Class; CLASSES],
}

/// Returns the length class of a copy.
pub fn class_of(len: u64) -> usize {
    let power = (len | 1).ilog2().max(CLASS_MIN) - CLASS_MIN;
    (power as usize).min(CLASSES - 1)
}

impl CallSite {
    fn class(&self, len: u64, is_awake: bool) -> &Class {
        let classes = if is_awake { &self.awake } else { &self.asleep };
        &classes[class_of(len)]
    }

    fn class_mut(&mut self, len: u64, is_awake: bool) -> &mut Class {
        let classes = if is_awake { &mut self.awake } else { &mut self.asleep };
        &mut classes[class_of(len)]
    }

    /// Decides about a copy of `len` bytes while `pending_bytes` are queued before it.
    pub fn decide(
        &mut self,
        costs: &Costs,
        len: u64,
        is_awake: bool,
        pending_bytes: u64,
    ) -> Verdict {
        let waking = !is_awake && pending_bytes.saturating_add(len) < costs.wake_pending_bytes_min;
        if len < costs.queued_bytes_min || waking {
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

    /// Returns the decision for copies of `len` bytes outside of trials, while the service is
    /// awake or asleep. `None` until both ways are measured.
    pub fn usual(&self, len: u64, is_awake: bool) -> Option<Verdict> {
        let class = self.class(len, is_awake);
        (class.inline.is_known() && class.queued.is_known()).then_some(class.preferred)
    }

    /// Starts a trial of the worse way for copies of `len` bytes. The caller calls this while the
    /// service is awake.
    pub fn look_again(&mut self, len: u64) {
        self.class_mut(len, true).begin_tries(TRIES / 2);
    }

    /// Returns true while a trial of the worse way is in progress; the caller then asks for a
    /// decision on every copy of `len` bytes.
    pub fn is_trying(&self, len: u64, is_awake: bool) -> bool {
        self.class(len, is_awake).tries > 0
    }

    /// Records the duration of an inline copy. `line_ns`: the time to read a cache line of the
    /// result afterwards, if measured.
    pub fn observe_inline(&mut self, len: u64, is_awake: bool, copy_ns: u32, line_ns: Option<f32>) {
        let class = self.class_mut(len, is_awake);
        let seen_ns = copy_ns as f32 + lines(len) * line_ns.unwrap_or(0.0);
        class.copy.add(copy_ns as f32);
        class.inline.add(seen_ns);
        class.tried(Verdict::Inline, seen_ns);
    }

    /// Records a queued copy that was synced. `is_awake`: the state of the service at the
    /// submission.
    pub fn observe_queued(&mut self, costs: &Costs, len: u64, is_awake: bool, seen: &QueuedTiming) {
        let class = self.class_mut(len, is_awake);
        class.window.add(seen.window_ns as f32);
        if class.warm_up_copies > 0 {
            class.warm_up_copies -= 1;
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
            self.warm_up_copies =
                if self.preferred == Verdict::Inline { WARM_UP_COPIES } else { 0 };
        }
        self.tries = self.tries.max(count);
    }

    /// Records a trial; a good result makes the next trial come soon.
    fn tried(&mut self, way: Verdict, seen_ns: f32) {
        let usual = match self.preferred {
            Verdict::Inline => self.inline,
            Verdict::Queue => self.queued,
        };
        let is_other = way != self.preferred && usual.is_known();
        if is_other && seen_ns < usual.ns {
            self.explore_every = EXPLORE_EVERY;
            self.tries = TRIES;
        } else if is_other {
            self.tries = self.tries.saturating_sub(TRIES / 4);
        }
    }

    fn prefer(&mut self, len: u64, pending_bytes: u64) -> Verdict {
        // Earlier pending copies must be made within the window too.
        let queue_lens = (pending_bytes as f32 + len as f32) / len.max(1) as f32;
        let late_ns = self.copy.ns * queue_lens - self.window.ns;
        let queued_ns = self.queued.ns.max(late_ns);
        let better = match queued_ns < QUEUE_GAIN * self.inline.ns {
            true => Verdict::Queue,
            false => Verdict::Inline,
        };
        if better != self.preferred {
            self.preferred = better;
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
        Costs { queued_bytes_min: 1024, wake_pending_bytes_min: 128 << 10, remote_line_ns: 0.7 };

    /// Runs a call site whose copies take `copy_ns` either way and are used `window_ns` later.
    fn run(site: &mut CallSite, len: u64, copy_ns: u32, window_ns: u32, count: u32) -> (u32, f64) {
        let (mut queued, mut seen_ns) = (0, 0.0);
        for _ in 0..count {
            match site.decide(&COSTS, len, true, 0) {
                Verdict::Inline => {
                    site.observe_inline(len, true, copy_ns, None);
                    seen_ns += f64::from(copy_ns);
                }
                Verdict::Queue => {
                    let wait_ns = (copy_ns + 120).saturating_sub(window_ns);
                    let seen = QueuedTiming { submit_ns: 20, window_ns, wait_ns, line_ns: None };
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
            let (queued, seen_ns) = run(&mut CallSite::default(), len, copy_ns, 0, 20_000);
            assert!(queued < 100, "{queued}");
            let never = 20_000.0 * f64::from(copy_ns);
            assert!(seen_ns < 1.01 * never, "{seen_ns} instead of {never}");
        }
    }

    #[test]
    fn with_a_window_it_is_queued_where_that_pays() {
        for (len, copy_ns) in [(16384, 360), (65536, 1000), (1 << 22, 100_000)] {
            let (queued, _) = run(&mut CallSite::default(), len, copy_ns, 2 * copy_ns, 20_000);
            assert!(queued > 19_880, "{queued} of {len}");
        }
        // Reading 64 remote lines costs more than the copy.
        let (queued, _) = run(&mut CallSite::default(), 4096, 40, 1000, 20_000);
        assert!(queued < 100, "{queued}");
    }

    #[test]
    fn a_site_that_changes_is_found_out() {
        let mut site = CallSite::default();
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
        let mut site = CallSite::default();
        run(&mut site, 65536, 1000, 5000, 1000);
        run(&mut site, 4096, 100, 0, 1000);
        assert_eq!(site.decide(&COSTS, 65536, true, 0), Verdict::Queue);
        assert_eq!(site.decide(&COSTS, 4096, true, 0), Verdict::Inline);
        assert_eq!(site.decide(&COSTS, 1023, true, 0), Verdict::Inline);
        assert!(class_of(u64::MAX) == CLASSES - 1 && class_of(0) == 0);
    }

    #[test]
    fn the_cost_of_lines_decides() {
        // 64 KiB take 1.1 us to copy, and the window is long; the service is near, then far.
        for (line_ns, is_queued) in [(1.1, true), (3.5, false)] {
            let mut site = CallSite::default();
            for _ in 0..100 {
                site.observe_inline(65536, true, 1_100, Some(0.5));
                let line_ns = Some(line_ns);
                let seen = QueuedTiming { submit_ns: 50, window_ns: 9000, wait_ns: 20, line_ns };
                site.observe_queued(&COSTS, 65536, true, &seen);
            }
            site.decide(&COSTS, 65536, true, 0);
            assert_eq!(site.usual(65536, true) == Some(Verdict::Queue), is_queued);
        }
    }

    #[test]
    fn a_short_copy_wakes_no_service_and_a_backlog_counts() {
        let mut site = CallSite::default();
        run(&mut site, 65536, 1000, 5000, 1000);
        assert_eq!(site.decide(&COSTS, 65536, false, 0), Verdict::Inline);
        // With a backlog it may pay; that case is measured separately.
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
        let mut site = CallSite::default();
        run(&mut site, 65536, 1000, 5000, 100);
        let late =
            QueuedTiming { submit_ns: 20, window_ns: 5000, wait_ns: u32::MAX, line_ns: None };
        site.observe_queued(&COSTS, 65536, true, &late);
        let (queued, _) = run(&mut site, 65536, 1000, 5000, 1000);
        assert!(queued > 900, "{queued}");
    }
}
