//! Chooses how the responses of a pool bypass this balancer's sockets, or if sealed ones do, by the time they
//! take. Sans-IO.
//!
//! Responses of similar lengths are a class. A class has a usual way. From time to time all of its
//! requests take another one for a moment (a trial): in so short a time the load is the same, and what
//! clients wait for is then a queue of that way. The other way becomes the usual one if responses take less
//! time by it. A trial that changes nothing makes the next one rarer.
//!
//! The time of a plain response ends with the client's last acknowledgement. For a sealed one this balancer may
//! take over the sealing ([`Way::Relay`]), and a response that is in its socket's buffer is not at the client.
//! Therefore the time of a sealed response ends with the client's next request. The pauses of clients are in
//! it, with both ways alike.

use std::fmt;
use std::time::Duration;

/// Classes of lengths: powers of four, from 8 KiB on.
const CLASSES: usize = 8;
/// Shortest response that can be late: the first bytes of such a one are relayed.
const LATE_CLASS: usize = 3;
/// From this class on, rules at the servers' hosts are the usual way until something is known.
const RULE_CLASS: usize = 4;
/// Fewest responses of a mean of the usual way, and of a trial.
const USUAL_MIN: u32 = 16;
const TRIED_MIN: u32 = 8;
/// A trial takes so many times as long as a response, within these bounds.
const TRIAL_RESPONSES: u32 = 4;
const TRIAL_MIN: Duration = Duration::from_millis(150);
const TRIAL_MAX: Duration = Duration::from_secs(4);
/// Trials last longer by up to this factor where responses are rare.
const STRETCH_MAX: u32 = 64;
/// From a trial to the next one, there are so many means of the usual way, each over as long a time as a trial;
/// twice as many with each trial that changes nothing, four times if responses clearly took longer. While there
/// are no responses, no time passes.
const PAUSE_MEANS: u32 = 4;
/// Most of them: as many as are within this time, ...
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// ... or these.
const PAUSE_MEANS_MAX: u32 = 24;
/// The part of a trial that belongs to what was under way.
const SETTLING: u32 = 4;
/// Another way becomes the usual one if its responses take at most this share of the time, by two trials
/// or more, ...
const SHARE_MAX: f64 = 0.95;
/// ... or this one, by one trial.
const SHARE_CLEAR: f64 = 0.6;
/// Responses clearly take longer from this share on.
const SHARE_WORSE: f64 = 1.25;
/// The share that is assumed if not nearly all responses of a trial end in time.
const SHARE_SLOW: f64 = 3.0;
/// So many times as long as a trial, responses behind such a one are not measured.
const SLOW_TRIALS: u32 = 4;
/// Weight of the newest trial, and of the newest mean of the usual way.
const NEWEST: f64 = 0.5;
/// A mean begins again with a value that differs by this factor.
const OTHER: f64 = 1.5;
/// If times change by this factor in so many means in sequence, trials are more frequent again.
const CHANGED: f64 = 2.0;
const CHANGED_MEANS: u32 = 4;
/// The means to the next trial are then divided by this.
const CHANGED_PAUSE: u32 = 4;

/// The ways of a response past the balancer's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// From its first byte on, as packets that this balancer's kernel sends on.
    Forward,
    /// From its first byte on, from the server's host.
    Early,
    /// Behind its first bytes, from the server's host.
    Late,
    /// Through this process, which seals it.
    Relay,
}

impl Way {
    /// Returns true if responses of a class can take it.
    fn is_for(self, class: usize, is_sealed: bool) -> bool {
        match self {
            Way::Forward => true,
            // A server's host takes no rule for the first bytes of a sealed response.
            Way::Early => !is_sealed,
            Way::Late => class >= LATE_CLASS,
            Way::Relay => is_sealed,
        }
    }

    /// Returns the way that is tried after it.
    fn next(self) -> Way {
        match self {
            Way::Forward => Way::Early,
            Way::Early => Way::Late,
            Way::Late => Way::Relay,
            Way::Relay => Way::Forward,
        }
    }
}

/// A way that was chosen for a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    /// The way.
    pub way: Way,
    /// The request came then, or was read then if the response is a sealed one.
    at: Duration,
    class: usize,
    is_sealed: bool,
    /// Number of the class's trial or pause whose responses are measured; `None`: this one is not.
    measured: Option<u32>,
}

impl Pick {
    /// Returns true if the time of the response ends with the client's next request.
    pub(crate) fn lasts_to_next_request(self) -> bool {
        self.is_sealed
    }
}

/// A change of the usual way of responses of similar lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    from: Way,
    to: Way,
    class: usize,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let from_kib = if self.class == 0 { 0 } else { 2 << (2 * self.class) };
        write!(f, "responses from {from_kib} KiB on: {:?}, not {:?}", self.to, self.from)
    }
}

/// The ways of a pool's responses.
#[derive(Clone, Debug)]
pub(crate) struct Ways {
    plain: [Class; CLASSES],
    sealed: [Class; CLASSES],
    /// A class is being tried until then. Not more than one is at a time: trials of two would be measured
    /// by each other's load.
    tried_until: Duration,
}

/// Responses of similar lengths.
#[derive(Clone, Copy, Debug)]
struct Class {
    usual: Way,
    /// Mean time of responses by it, microseconds.
    usual_us: Recent,
    /// That of the responses since `since`.
    newest: Sum,
    since: Duration,
    /// The mean at the time of the last trial, and the means in sequence that are far from it.
    usual_us_then: f64,
    changed_means: u32,
    /// Times by the other ways as shares of those by the usual one.
    shares: [Recent; 4],
    phase: Phase,
    /// Number of the phase.
    number: u32,
    /// Means from one trial to the next one, and those that are left.
    pause: u32,
    left: u32,
    /// Trials last longer by this factor.
    stretch: u32,
    /// The way that is tried next, unless it is the usual one.
    next: Way,
}

/// A mean that forgets, of means.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    value: f64,
    count: u32,
}

impl Recent {
    fn learn(&mut self, newest: f64) {
        let is_other = !(self.value / OTHER..=self.value * OTHER).contains(&newest);
        if is_other {
            // What was learnt is of another time.
            self.count = 0;
        }
        let weight = if self.count == 0 { 1.0 } else { NEWEST };
        self.value += (newest - self.value) * weight;
        self.count = self.count.saturating_add(1);
    }
}

/// Times of responses, microseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u32,
    sum_us: f64,
}

impl Sum {
    fn add(&mut self, us: f64) {
        self.count = self.count.saturating_add(1);
        self.sum_us += us;
    }

    fn mean_us(&self) -> f64 {
        self.sum_us / f64::from(self.count.max(1))
    }
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// Responses take the usual way, and are measured from then on.
    Usual {
        from: Duration,
    },
    Trial(Trial),
}

#[derive(Clone, Copy, Debug)]
struct Trial {
    way: Way,
    /// Responses whose requests come from then on are measured.
    from: Duration,
    /// The next requests take the usual way again.
    end: Duration,
    /// Responses that have not ended by then are slow.
    verdict: Duration,
    chosen: u32,
    /// Those that are over, complete or not.
    over: u32,
    ended: Sum,
}

impl Trial {
    fn length(&self) -> Duration {
        self.end.saturating_sub(self.from)
    }
}

impl Class {
    fn new(class: usize, is_sealed: bool) -> Class {
        let usual = match class {
            RULE_CLASS.. if is_sealed => Way::Late,
            RULE_CLASS.. => Way::Early,
            _ => Way::Forward,
        };
        Class {
            usual,
            usual_us: Recent::default(),
            newest: Sum::default(),
            since: Duration::ZERO,
            usual_us_then: 0.0,
            changed_means: 0,
            shares: [Recent::default(); 4],
            phase: Phase::Usual { from: Duration::ZERO },
            number: 0,
            pause: PAUSE_MEANS,
            left: PAUSE_MEANS,
            stretch: 1,
            next: usual.next(),
        }
    }

    fn share(&mut self, way: Way) -> &mut Recent {
        let [forward, early, late, relay] = &mut self.shares;
        match way {
            Way::Forward => forward,
            Way::Early => early,
            Way::Late => late,
            Way::Relay => relay,
        }
    }

    fn begin(&mut self, phase: Phase) {
        self.phase = phase;
        self.number = self.number.wrapping_add(1);
    }

    /// Returns the length of a trial, without what was under way before.
    fn trial_length(&self) -> Duration {
        let response = Duration::from_secs_f64((self.usual_us.value / 1e6).min(10.0));
        (response * TRIAL_RESPONSES * self.stretch).clamp(TRIAL_MIN, TRIAL_MAX)
    }

    /// Returns the time of a sealed response that counts.
    fn longest(&self) -> Duration {
        match self.phase {
            Phase::Trial(trial) => trial.length(),
            Phase::Usual { .. } if self.usual_us.count == 0 => TRIAL_MAX,
            Phase::Usual { .. } => self.trial_length(),
        }
    }

    /// Learns what a response by the usual way took.
    fn learn_usual(&mut self, took_us: f64, now: Duration) {
        self.newest.add(took_us);
        if self.newest.count >= USUAL_MIN && now >= self.since + self.trial_length() {
            self.usual_us.learn(self.newest.mean_us());
            (self.newest, self.since) = (Sum::default(), now);
            self.left = self.left.saturating_sub(1);
            self.look_for_change();
        }
    }

    /// Makes trials more frequent if times have changed.
    fn look_for_change(&mut self) {
        let then = self.usual_us_then;
        let is_same = (then / CHANGED..=then * CHANGED).contains(&self.usual_us.value);
        self.changed_means = if is_same || then == 0.0 { 0 } else { self.changed_means + 1 };
        if self.changed_means >= CHANGED_MEANS {
            (self.usual_us_then, self.changed_means) = (self.usual_us.value, 0);
            self.pause = (self.pause / CHANGED_PAUSE).max(PAUSE_MEANS);
            self.left = self.left.min(self.pause);
        }
    }

    /// Begins a trial if it is time for one. Returns the end of what it influences.
    fn try_another(&mut self, class: usize, is_sealed: bool, now: Duration) -> Option<Duration> {
        if self.left > 0 {
            return None;
        }
        let mut candidates = std::iter::successors(Some(self.next), |way| Some(way.next())).take(4);
        let way = candidates.find(|way| *way != self.usual && way.is_for(class, is_sealed))?;
        (self.next, self.usual_us_then, self.changed_means) = (way, self.usual_us.value, 0);
        let length = self.trial_length();
        let from = now + length / SETTLING;
        let end = from + length;
        let verdict = end + length;
        self.begin(Phase::Trial(Trial {
            way,
            from,
            end,
            verdict,
            chosen: 0,
            over: 0,
            ended: Sum::default(),
        }));
        Some(verdict + length)
    }

    /// Ends a trial whose responses have ended, or had time to.
    fn conclude(&mut self, mut trial: Trial, is_sealed: bool, now: Duration) {
        let length = trial.length();
        if is_sealed {
            // The clients of the others have not sent their next request for as long as counts.
            let missing = trial.chosen.saturating_sub(trial.ended.count);
            trial.ended.count += missing;
            trial.ended.sum_us += f64::from(missing) * length.as_secs_f64() * 1e6;
        }
        let is_slow = trial.over < trial.chosen - trial.chosen / 4;
        // A slow trial leaves a queue.
        let from = now + length * if is_slow { SLOW_TRIALS } else { 1 };
        self.begin(Phase::Usual { from });
        (self.newest, self.since) = (Sum::default(), from);
        let longest = PAUSE_MAX.div_duration_f64(length.max(TRIAL_MIN)) as u32;
        let most = longest.max(PAUSE_MEANS_MAX);
        // Responses that break off tell nothing: clients leave in crowds, too.
        let is_vague = !is_slow && trial.ended.count < trial.chosen / 2;
        if trial.chosen < TRIED_MIN || is_vague {
            self.stretch = (self.stretch * 2).min(STRETCH_MAX);
            self.pause = (self.pause * 2).min(most);
            self.left = self.pause;
            return;
        }
        self.stretch = (self.stretch / 2).max(1);
        let mean_us = trial.ended.mean_us();
        let share = if is_slow { SHARE_SLOW } else { mean_us / self.usual_us.value.max(1.0) };
        let known = self.share(trial.way);
        known.learn(share);
        let Recent { value: share, count } = *known;
        let is_open = share < SHARE_MAX;
        if share < SHARE_CLEAR || (is_open && count >= 2) {
            self.change(trial.way, share, mean_us);
            self.pause = PAUSE_MEANS;
        } else if is_open {
            // The same way is next, and soon.
            self.pause = PAUSE_MEANS;
        } else {
            self.next = trial.way.next();
            let factor = if share > SHARE_WORSE { 4 } else { 2 };
            self.pause = (self.pause * factor).min(most);
        }
        self.left = self.pause;
    }

    /// Makes another way the usual one: what is known of the others is relative to it.
    fn change(&mut self, way: Way, share: f64, mean_us: f64) {
        for other in &mut self.shares {
            other.value /= share;
            other.count = other.count.min(1);
        }
        *self.share(self.usual) = Recent { value: 1.0 / share, count: 1 };
        *self.share(way) = Recent::default();
        self.usual = way;
        (self.usual_us, self.usual_us_then) = (Recent { value: mean_us, count: 1 }, mean_us);
    }
}

impl Ways {
    /// Nothing is known.
    pub(crate) fn new() -> Ways {
        let classes = |is_sealed| std::array::from_fn(|class| Class::new(class, is_sealed));
        Ways { plain: classes(false), sealed: classes(true), tried_until: Duration::ZERO }
    }

    fn class(&mut self, class: usize, is_sealed: bool) -> &mut Class {
        let classes = if is_sealed { &mut self.sealed } else { &mut self.plain };
        // `class` is below CLASSES: see [`class_of`].
        &mut classes[class]
    }

    /// Chooses the way of a response of which so many bytes are expected. `now`: time since any origin;
    /// the request came `waited` before. The usual way of such responses may change with it.
    pub(crate) fn choose(
        &mut self,
        bytes: u64,
        is_sealed: bool,
        waited: Duration,
        now: Duration,
    ) -> (Pick, Option<Change>) {
        let number = class_of(bytes);
        let is_free = now >= self.tried_until;
        let class = self.class(number, is_sealed);
        let usual = class.usual;
        if let Phase::Trial(trial) = class.phase
            && now >= trial.verdict
        {
            class.conclude(trial, is_sealed, now);
        }
        let mut tried_until = None;
        if let Phase::Usual { .. } = class.phase
            && is_free
        {
            tried_until = class.try_another(number, is_sealed, now);
        }
        let (way, is_measured) = match &mut class.phase {
            Phase::Usual { from } => (class.usual, now >= *from),
            Phase::Trial(trial) if now < trial.end => {
                let is_measured = now >= trial.from;
                trial.chosen += u32::from(is_measured);
                (trial.way, is_measured)
            }
            Phase::Trial(_) => (class.usual, false),
        };
        let measured = is_measured.then_some(class.number);
        let is_changed = class.usual != usual;
        let change = is_changed.then_some(Change { from: usual, to: class.usual, class: number });
        self.tried_until = tried_until.unwrap_or(self.tried_until);
        let at = if is_sealed { now } else { now.saturating_sub(waited) };
        (Pick { way, at, class: number, is_sealed, measured }, change)
    }

    /// Returns the usual way of responses of so many bytes.
    pub(crate) fn usual(&mut self, bytes: u64, is_sealed: bool) -> Way {
        self.class(class_of(bytes), is_sealed).usual
    }

    /// Notes that a response is over, complete or not.
    pub(crate) fn end(&mut self, pick: Pick) {
        let class = self.class(pick.class, pick.is_sealed);
        if let Phase::Trial(trial) = &mut class.phase
            && pick.measured == Some(class.number)
        {
            trial.over = trial.over.saturating_add(1);
        }
    }

    /// Learns when the time of a response ended.
    pub(crate) fn learn(&mut self, pick: Pick, end: Duration) {
        let class = self.class(pick.class, pick.is_sealed);
        if pick.measured != Some(class.number) {
            return;
        }
        let mut took = end.saturating_sub(pick.at);
        if pick.is_sealed {
            // A trial does not see the end of a longer pause of a client.
            took = took.min(class.longest());
        }
        let took_us = took.as_secs_f64() * 1e6;
        match &mut class.phase {
            Phase::Usual { .. } => class.learn_usual(took_us, end),
            Phase::Trial(trial) => trial.ended.add(took_us),
        }
    }
}

/// Returns the class of responses of so many bytes.
fn class_of(bytes: u64) -> usize {
    ((bytes >> 13).checked_ilog2().map_or(0, |log| log as usize / 2 + 1)).min(CLASSES - 1)
}

#[cfg(test)]
mod tests;
