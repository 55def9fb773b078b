//! Measurements and decisions for the copies of one site and one class of lengths.

use super::ledger::Ledger;
use super::recent::Recent;
use super::request::{Choice, Costs, QueuedTiming, Request, Verdict, lines};
use super::view::{Cause, State, View, WINDOW_PERCENT};

/// Part of the inline time below which a site begins to queue. It uses another core too.
pub const ENTER: f32 = 0.88;
/// Part of the inline time above which a site no longer queues.
pub const LEAVE: f32 = 0.97;

/// Number of inline copies that are measured first. The very first one meets cold caches and new
/// pages.
pub const FIRST_COPIES: u8 = 4;
/// Number of queued copies of a trial that are measured, and of those before them that are not:
/// the service has just woken up, and its caches are cold.
const TRIAL_COPIES: u8 = 6;
const WARM_UP_COPIES: u8 = 2;
/// A trial pays if this part of its waits, in percent, is short enough. One thread that loses its
/// processor once does not decide; all waits count afterwards.
const TRIAL_PERCENT: usize = 70;
/// Runs of copies of at least this length are shorter: their measurement costs little, and a
/// program makes fewer of them.
const LONG_BYTES: u64 = 64 << 10;
const LONG_RUN_COPIES: u16 = 32;
/// After this number of runs in a row in which shorter copies would gain nothing by queueing, runs are
/// longer by this factor: a timed copy costs what many short ones do.
pub const SETTLED_RUNS: u8 = 16;
const SETTLED_FACTOR: u16 = 8;
/// A site that queues makes one inline copy in this number of runs, to measure it again.
const REFRESH_RUNS: u8 = 16;
/// A site leaves after this number of losing runs in excess of others.
const LOSING_RUNS: u8 = 2;
/// Maximum number of runs between two trials.
const BACKOFF_RUNS_MAX: u16 = 256;
/// Waits count as at most this multiple of an inline copy; the ledger has all of them.
const WAIT_MAX: f32 = 8.0;

/// Expected time of a submission.
const SUBMIT_NS: f32 = 40.0;
/// Expected time from a submission to the first copied byte, while the service is awake.
pub const HANDOFF_NS: f32 = 200.0;
/// Time of the system call that wakes the service, and time until the service runs.
const WAKE_NS: f32 = 8_000.0;
const WAKE_LATENCY_NS: f32 = 60_000.0;
/// Expected time to read a line that the service wrote. It is a good case: a trial measures it.
const LINE_NS: f32 = 0.4;
/// Of a copy of this length or more, the waiter makes half.
const SHARED_BYTES: u64 = 64 << 10;
/// Number of copies that look whether the woken service is awake, before it is woken again. It
/// sleeps again soon if no copy comes.
const WAKING_COPIES: u16 = 64;

/// Stage of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Copies are inline, for this number of runs at least.
    Inline { runs: u16 },
    /// Queued copies are measured: number of coming ones that do not count and that count.
    Trial { warm_up: u8, left: u8 },
    /// Copies are queued. Losing runs in excess of others, and runs since an inline copy.
    Queue { losing: u8, runs: u8 },
}

impl Default for Stage {
    fn default() -> Stage {
        Stage::Inline { runs: 0 }
    }
}

/// State of one site and class of lengths. All times are in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(super) struct Class {
    stage: Stage,
    /// An inline copy alone, and with the reading of its bytes.
    copy: Recent,
    inline: Recent,
    window: Recent,
    /// A queued copy without its wait: the submission, and the reading of its bytes.
    base: Recent,
    /// Waits of a trial.
    waits: Recent,
    /// Mean wait of a queued copy.
    wait_ns: f32,
    /// Waits since the mean was taken.
    run_wait_ns: f32,
    /// Copies of a run.
    run: u16,
    /// Time to read a line that the service wrote, where no sample says it.
    remote_line_ns: f32,
    /// Runs in a row without an expected gain.
    settled_runs: u8,
    /// Number of runs between two trials.
    backoff: u16,
    /// Number of further copies during which the woken service may become awake.
    waking: u16,
    ledger: Ledger,
    /// Times of the submissions; no decision uses them alone.
    submit: Recent,
    /// The last expected time of a queued copy.
    forecast_ns: f32,
    cause: Cause,
}

impl Class {
    pub fn decide(&mut self, costs: &Costs, request: &Request) -> Choice {
        let Some(inline_ns) = self.inline_ns() else { return Choice::inline(0) };
        self.ledger.fit(inline_ns);
        let long_run = if request.bytes >= LONG_BYTES { LONG_RUN_COPIES } else { u16::MAX };
        self.run = request.run.clamp(1, long_run);
        self.remote_line_ns = costs.remote_line_ns;
        let run = self.run - 1;
        let choice = match self.stage {
            Stage::Inline { runs: 0 } => self.consider(costs, request, inline_ns),
            Stage::Inline { runs } => {
                self.stage = Stage::Inline { runs: runs - 1 };
                Choice::inline(run)
            }
            _ if !self.ledger.affords(0.0) => {
                self.leave(Cause::Allowance);
                Choice::inline(run)
            }
            _ if !self.is_worth_waking(costs, request, inline_ns) => self.wake(run),
            Stage::Trial { .. } => {
                self.cause = Cause::Trial;
                Choice::queue(0)
            }
            Stage::Queue { losing, runs } => self.go_on(request, inline_ns, losing, runs),
        };
        self.ledger.earn(inline_ns * (1.0 + f32::from(choice.copies)));
        choice
    }

    /// Decides whether to begin a trial.
    fn consider(&mut self, costs: &Costs, request: &Request, inline_ns: f32) -> Choice {
        let run = self.run - 1;
        let awake = Request { is_awake: true, ..*request };
        self.forecast_ns = self.forecast(&awake, inline_ns);
        let pays = self.forecast_ns <= ENTER * inline_ns;
        if !pays {
            self.cause = Cause::Forecast;
            return self.settle(request);
        }
        self.settled_runs = 0;
        if !self.ledger.affords(0.0) {
            self.cause = Cause::Allowance;
            return Choice::inline(run);
        }
        if !self.is_worth_waking(costs, request, inline_ns) {
            return self.wake(run);
        }
        self.stage = Stage::Trial { warm_up: WARM_UP_COPIES, left: TRIAL_COPIES };
        (self.base, self.waits) = (Recent::default(), Recent::default());
        (self.wait_ns, self.run_wait_ns) = (0.0, 0.0);
        self.cause = Cause::Trial;
        Choice::queue(0)
    }

    /// Copies inline, for a longer run if the site has long had no gain to expect.
    fn settle(&mut self, request: &Request) -> Choice {
        self.settled_runs = self.settled_runs.saturating_add(1);
        let is_settled = self.settled_runs > SETTLED_RUNS && request.bytes < LONG_BYTES;
        let factor = if is_settled { SETTLED_FACTOR } else { 1 };
        Choice::inline(self.run.saturating_mul(factor) - 1)
    }

    /// Wakes the service, if the allowance has that much, and copies inline meanwhile.
    fn wake(&mut self, run: u16) -> Choice {
        self.cause = Cause::Asleep;
        if self.waking > 0 {
            self.waking -= 1;
            return Choice::inline(0);
        }
        if !self.ledger.affords(WAKE_NS) {
            return Choice::inline(run);
        }
        self.ledger.charge(WAKE_NS);
        self.waking = WAKING_COPIES;
        Choice { wake: true, ..Choice::inline(0) }
    }

    /// Decides about the next run of a class that queues.
    fn go_on(&mut self, request: &Request, inline_ns: f32, losing: u8, runs: u8) -> Choice {
        self.waking = 0;
        let run = self.run - 1;
        let mean_ns = std::mem::take(&mut self.run_wait_ns) / f32::from(self.run);
        self.wait_ns += (mean_ns - self.wait_ns) / 2.0;
        let queued_ns = self.queued_ns().unwrap_or(0.0);
        let losing = match queued_ns > LEAVE * inline_ns {
            true => losing + 1,
            false => losing.saturating_sub(1),
        };
        if losing >= LOSING_RUNS {
            self.leave(Cause::Loses);
            return Choice::inline(run);
        }
        self.cause = Cause::Pays;
        // The likely gain of the copies of this run; waits are charged when they happen.
        self.ledger.charge((self.base.median().unwrap_or(0.0) - inline_ns) * f32::from(run));
        let runs = runs + 1;
        if runs >= REFRESH_RUNS {
            self.stage = Stage::Queue { losing, runs: 0 };
            self.backoff /= 2;
            return Choice { verdict: Verdict::Inline, ..Choice::queue(run) };
        }
        self.stage = Stage::Queue { losing, runs };
        // Earlier pending copies must be made within the window, too.
        let verdict = match self.forecast(request, inline_ns) > inline_ns {
            true if request.pending_bytes > 0 => Verdict::Inline,
            _ => Verdict::Queue,
        };
        Choice { verdict, ..Choice::queue(run) }
    }

    /// Returns true if the service is awake, or if a copy that is queued now wakes it and pays all
    /// the same.
    fn is_worth_waking(&self, costs: &Costs, request: &Request, inline_ns: f32) -> bool {
        let bytes = request.bytes.saturating_add(request.pending_bytes);
        let wakes = bytes >= costs.wake_pending_bytes_min;
        request.is_awake || wakes && self.pays(request, inline_ns)
    }

    fn pays(&self, request: &Request, inline_ns: f32) -> bool {
        self.forecast(request, inline_ns) <= ENTER * inline_ns
    }

    /// The expected time of a queued copy, before any was measured.
    fn forecast(&self, request: &Request, inline_ns: f32) -> f32 {
        let copy_ns = self.copy.median().unwrap_or(inline_ns);
        let queue_lens = 1.0 + request.pending_bytes as f32 / request.bytes.max(1) as f32;
        let (submit_ns, begin_ns) = match request.is_awake {
            true => (SUBMIT_NS, HANDOFF_NS),
            false => (WAKE_NS, WAKE_LATENCY_NS),
        };
        let window_ns = self.window_ns().unwrap_or(0.0);
        let wait_ns = (begin_ns + queue_lens * copy_ns - window_ns).max(0.0);
        let wait_ns = if request.bytes >= SHARED_BYTES { wait_ns / 2.0 } else { wait_ns };
        submit_ns + wait_ns + LINE_NS * lines(request.bytes)
    }

    fn inline_ns(&self) -> Option<f32> {
        self.inline.median().filter(|_| self.inline.count() >= FIRST_COPIES)
    }

    /// Time of a queued copy, as measured.
    fn queued_ns(&self) -> Option<f32> {
        self.base.median().map(|base_ns| base_ns + self.wait_ns)
    }

    /// Stops queueing, for longer each time.
    fn leave(&mut self, cause: Cause) {
        self.cause = cause;
        self.backoff = (2 * self.backoff).clamp(1, BACKOFF_RUNS_MAX);
        self.stage = Stage::Inline { runs: self.backoff };
    }

    pub fn usual(&self) -> Option<Verdict> {
        self.inline_ns()?;
        let is_queueing = matches!(self.stage, Stage::Queue { .. });
        Some(if is_queueing { Verdict::Queue } else { Verdict::Inline })
    }

    pub fn state(&self) -> State {
        match self.stage {
            _ if self.cause == Cause::Unmeasured => State::NotLearnt,
            Stage::Trial { .. } => State::Trial,
            Stage::Queue { .. } => State::Queued,
            Stage::Inline { .. } if self.cause == Cause::Allowance => State::Suspended,
            Stage::Inline { .. } => State::AtOnce,
        }
    }

    /// The state, with all that led to it.
    pub fn view(&self) -> View {
        let runs = if let Stage::Inline { runs } = self.stage { runs } else { 0 };
        View {
            state: self.state(),
            cause: self.cause,
            copy: self.copy,
            inline: self.inline,
            window: self.window,
            base: self.base,
            submit: self.submit,
            wait_ns: self.wait_ns,
            forecast_ns: self.forecast_ns,
            allowance_ns: self.ledger.allowance_ns(),
            lost_ns: self.ledger.lost_ns(),
            runs,
        }
    }

    pub fn window_ns(&self) -> Option<f32> {
        self.window.quantile(WINDOW_PERCENT)
    }

    pub fn observe_inline(&mut self, bytes: u64, copy_ns: f32, line_ns: Option<f32>) {
        self.copy.add(copy_ns);
        self.inline.add(copy_ns + lines(bytes) * line_ns.unwrap_or(0.0));
    }

    pub fn observe_window(&mut self, window_ns: f32) {
        if window_ns > HANDOFF_NS + 2.0 * self.window_ns().unwrap_or(0.0) {
            // The program has changed, perhaps.
            self.settled_runs = 0;
        }
        self.window.add(window_ns);
    }

    pub fn observe_queued(&mut self, bytes: u64, is_awake: bool, seen: &QueuedTiming) {
        let base_ns =
            seen.submit_ns as f32 + lines(bytes) * seen.line_ns.unwrap_or(self.remote_line_ns);
        let wait_ns = seen.wait_ns as f32;
        self.window.add(seen.window_ns as f32);
        self.submit.add(seen.submit_ns as f32);
        let Some(inline_ns) = self.inline_ns() else { return };
        self.ledger.charge(base_ns + wait_ns - inline_ns);
        match self.stage {
            // A trial measures a service that is awake, unless the copies are long enough to wake
            // it themselves; then they always do.
            Stage::Trial { warm_up, left } if warm_up > 0 => {
                self.stage = Stage::Trial { warm_up: warm_up - 1, left };
                return;
            }
            Stage::Queue { .. } if !is_awake => return,
            _ => {}
        }
        self.base.add(base_ns);
        self.waits.add(wait_ns);
        self.add_wait(wait_ns, inline_ns);
        let Stage::Trial { left, .. } = self.stage else { return };
        if left > 1 {
            self.stage = Stage::Trial { warm_up: 0, left: left - 1 };
            return;
        }
        self.run_wait_ns = 0.0;
        self.wait_ns = self.waits.quantile(TRIAL_PERCENT).unwrap_or(0.0);
        match self.queued_ns().is_some_and(|queued_ns| queued_ns < ENTER * inline_ns) {
            true => {
                self.stage = Stage::Queue { losing: 0, runs: 0 };
                self.cause = Cause::Pays;
            }
            false => self.leave(Cause::TrialLost),
        }
    }

    /// Records the wait of a copy that was not timed. Returns true if the usual decision changed.
    pub fn observe_late(&mut self, wait_ns: f32) -> bool {
        let Some(inline_ns) = self.inline_ns() else { return false };
        self.ledger.charge(wait_ns);
        self.add_wait(wait_ns, inline_ns);
        let base_ns = self.base.median().unwrap_or(inline_ns);
        // The run loses, even if no other of its copies is late.
        let allowed_ns = (LEAVE * inline_ns - base_ns).max(0.0) * f32::from(self.run);
        let affords = self.ledger.affords(0.0);
        let loses = self.run_wait_ns > allowed_ns || !affords;
        let is_queueing = matches!(self.stage, Stage::Queue { .. });
        if is_queueing && loses {
            self.leave(if affords { Cause::Late } else { Cause::Allowance });
        }
        is_queueing && loses
    }

    fn add_wait(&mut self, wait_ns: f32, inline_ns: f32) {
        self.run_wait_ns += wait_ns.min(WAIT_MAX * inline_ns);
    }
}
