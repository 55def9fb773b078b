//! The assignment of invocations to instances. An invocation gets the most recently used idle
//! instance. If there is none, a new instance starts, and the least recently used idle instances
//! of all functions are stopped to free memory for it. If that is not possible, the invocation
//! waits in a queue or is refused.
//!
//! Sans-IO: events and `now` are inputs, [`Action`]s are outputs, in the order of their execution.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// The number of a function, chosen by the caller.
pub type FunctionId = u64;
/// The number of an instance, chosen by the pool: never reused.
pub type InstanceId = u64;
/// The number of an invocation, chosen by the caller.
pub type InvocationId = u64;

/// Ticks without a start of warm instances, after one that failed.
const PAUSE_TICKS: u32 = 20;

/// The limits of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sum of the charges of all instances.
    pub memory_bytes_max: u64,
    /// Most instances of all functions.
    pub instances_max: usize,
    /// Most waiting invocations of one function.
    pub waiting_max: usize,
    /// Longest wait before an invocation is refused.
    pub waiting_timeout: Duration,
    /// Most instances of one function that start at a time.
    pub starting_max: usize,
}

/// The limits of one function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Most instances.
    pub concurrency: usize,
    /// Time after which an idle instance is stopped.
    pub keep_alive: Duration,
    /// The charge of an instance: its limit, or the measured memory.
    pub charge_bytes: u64,
    /// Instances that are started without an invocation, and not stopped by age or for others.
    pub warm: usize,
}

/// The reason why an invocation is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The function has reached its limit of instances, and its queue is full.
    Concurrency,
    /// There is no memory for another instance, and no instance can be stopped.
    Memory,
    /// The invocation has waited too long.
    Waited,
    /// An instance did not start.
    Start(String),
    /// The function was removed.
    Removed,
}

/// An action for the caller to execute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance; [`Pool::ready`] or [`Pool::gone`] follows.
    Start {
        /// The instance.
        instance: InstanceId,
        /// Its function.
        function: FunctionId,
    },
    /// Run an invocation in an idle instance; [`Pool::ready`] or [`Pool::gone`] follows.
    Run {
        /// The instance.
        instance: InstanceId,
        /// The invocation.
        invocation: InvocationId,
        /// True if it is the instance's first.
        is_first: bool,
    },
    /// Stop an instance; [`Pool::gone`] follows.
    Stop {
        /// The instance.
        instance: InstanceId,
    },
    /// Refuse an invocation.
    Refuse {
        /// The invocation.
        invocation: InvocationId,
        /// The reason.
        why: Refused,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Starting,
    Idle,
    Busy,
    Stopping,
}

#[derive(Clone, Copy, Debug)]
struct Member {
    function: FunctionId,
    state: State,
    /// Time at which it became idle; `None` if it is not idle.
    since: Option<Instant>,
    /// Sequence number of the time at which it became idle.
    turn: u64,
    charged_bytes: u64,
    has_run: bool,
}

#[derive(Debug)]
struct Waiting {
    invocation: InvocationId,
    until: Instant,
}

#[derive(Debug)]
struct Family {
    share: Share,
    /// Idle instances, ordered by `turn`.
    idle: BTreeMap<u64, InstanceId>,
    waiting: VecDeque<Waiting>,
    starting: usize,
    instances: usize,
    is_removed: bool,
    /// Ticks without a start of warm instances, after one that failed.
    pause_ticks: u32,
}

/// Instances of a function that are not stopping.
fn living(members: &BTreeMap<InstanceId, Member>, function: FunctionId) -> usize {
    let own = members.values().filter(|member| member.function == function);
    own.filter(|member| member.state != State::Stopping).count()
}

/// The number of instances of a function that may stop.
fn spare(members: &BTreeMap<InstanceId, Member>, function: FunctionId, family: &Family) -> usize {
    match family.share.warm {
        0 => usize::MAX,
        warm => living(members, function).saturating_sub(warm),
    }
}

/// The numbers of instances by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// Instances that have not greeted.
    pub starting: usize,
    /// Idle instances.
    pub idle: usize,
    /// Busy instances.
    pub busy: usize,
    /// Stopping instances.
    pub stopping: usize,
    /// Waiting invocations.
    pub waiting: usize,
    /// Sum of the charges.
    pub charged_bytes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Pool {
    limits: Limits,
    families: BTreeMap<FunctionId, Family>,
    members: BTreeMap<InstanceId, Member>,
    /// Functions with waiting invocations.
    hungry: BTreeSet<FunctionId>,
    charged_bytes: u64,
    next_instance: InstanceId,
    next_turn: u64,
}

impl Pool {
    /// Creates a pool without functions.
    pub fn new(limits: Limits) -> Pool {
        Pool {
            limits,
            families: BTreeMap::new(),
            members: BTreeMap::new(),
            hungry: BTreeSet::new(),
            charged_bytes: 0,
            next_instance: 1,
            next_turn: 0,
        }
    }

    /// Adds a function, or changes its limits.
    pub fn set(&mut self, function: FunctionId, share: Share) {
        let family = self.families.entry(function).or_insert_with(|| Family {
            share,
            idle: BTreeMap::new(),
            waiting: VecDeque::new(),
            starting: 0,
            instances: 0,
            is_removed: false,
            pause_ticks: 0,
        });
        family.share = share;
        family.is_removed = false;
    }

    /// Applies new limits. Existing instances stay until they are idle and others need their
    /// memory.
    pub fn limit(&mut self, limits: Limits) -> Vec<Action> {
        let mut actions = Vec::new();
        self.limits = limits;
        self.feed_all(&mut actions);
        actions
    }

    /// Sets the charge of a function's instances, including existing ones. A lower charge may free
    /// room for waiting invocations.
    pub fn charge(&mut self, function: FunctionId, charge_bytes: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(family) = self.families.get_mut(&function) else { return actions };
        family.share.charge_bytes = charge_bytes;
        for member in self.members.values_mut().filter(|member| member.function == function) {
            self.charged_bytes = self.charged_bytes - member.charged_bytes + charge_bytes;
            member.charged_bytes = charge_bytes;
        }
        self.feed_all(&mut actions);
        actions
    }

    /// Removes a function: waiting invocations are refused, idle instances stop, busy ones stop
    /// afterwards.
    pub fn remove(&mut self, function: FunctionId) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(family) = self.families.get_mut(&function) else { return actions };
        family.is_removed = true;
        self.hungry.remove(&function);
        for waiting in family.waiting.drain(..) {
            let why = Refused::Removed;
            actions.push(Action::Refuse { invocation: waiting.invocation, why });
        }
        let idle: Vec<InstanceId> = family.idle.values().copied().collect();
        if family.instances == 0 {
            self.families.remove(&function);
        }
        for instance in idle {
            self.stop(instance, &mut actions);
        }
        actions
    }

    /// Handles the arrival of an invocation.
    pub fn arrive(
        &mut self,
        function: FunctionId,
        invocation: InvocationId,
        now: Instant,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let refuse = |why| vec![Action::Refuse { invocation, why }];
        let Some(family) = self.families.get_mut(&function).filter(|family| !family.is_removed)
        else {
            return refuse(Refused::Removed);
        };
        // The most recently used instance has the warmest caches, and the others can expire.
        if let Some((_, instance)) = family.idle.pop_last() {
            self.run(instance, invocation, &mut actions);
            return actions;
        }
        // Invocations for which an instance is starting do not count as waiting for another's end.
        if family.waiting.len() >= self.limits.waiting_max + family.starting {
            return refuse(Refused::Concurrency);
        }
        let until = now + self.limits.waiting_timeout;
        family.waiting.push_back(Waiting { invocation, until });
        self.hungry.insert(function);
        self.feed_or_starve(function, &mut actions);
        actions
    }

    /// Handles an instance that can be invoked: it has greeted, or its handler has returned.
    pub fn ready(&mut self, instance: InstanceId, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        let turn = self.next_turn;
        let Some(member) = self.members.get_mut(&instance) else { return actions };
        let Some(family) = self.families.get_mut(&member.function) else { return actions };
        match member.state {
            State::Starting => family.starting -= 1,
            State::Busy => {}
            State::Idle | State::Stopping => return actions,
        }
        (member.state, member.since, member.turn) = (State::Idle, Some(now), turn);
        self.next_turn += 1;
        let function = member.function;
        if family.is_removed {
            self.stop(instance, &mut actions);
            return actions;
        }
        match family.waiting.pop_front() {
            Some(waiting) => {
                if family.waiting.is_empty() {
                    self.hungry.remove(&function);
                }
                self.run(instance, waiting.invocation, &mut actions);
            }
            None => {
                family.idle.insert(turn, instance);
                // Other functions may need its memory more.
                self.feed_all(&mut actions);
            }
        }
        actions
    }

    /// Handles a started instance that is ending, by itself or on request: it gets no further
    /// invocation. [`Pool::gone`] follows.
    pub fn ending(&mut self, instance: InstanceId) {
        let Some(member) = self.members.get_mut(&instance) else { return };
        match member.state {
            State::Idle => {
                if let Some(family) = self.families.get_mut(&member.function) {
                    family.idle.remove(&member.turn);
                }
            }
            State::Busy => {}
            State::Starting | State::Stopping => return,
        }
        member.state = State::Stopping;
    }

    /// Handles the end of an instance. If it never started, `why` is the reason, and the oldest
    /// waiting invocation of the function is refused with it.
    pub fn gone(&mut self, instance: InstanceId, why: Option<&str>) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(member) = self.members.remove(&instance) else { return actions };
        self.charged_bytes -= member.charged_bytes;
        let Some(family) = self.families.get_mut(&member.function) else { return actions };
        family.instances -= 1;
        match member.state {
            State::Starting => {
                family.starting -= 1;
                family.pause_ticks = PAUSE_TICKS;
                if let Some(waiting) = family.waiting.pop_front() {
                    let why = Refused::Start(why.unwrap_or("the instance ended").to_owned());
                    actions.push(Action::Refuse { invocation: waiting.invocation, why });
                }
            }
            State::Idle => {
                family.idle.remove(&member.turn);
            }
            State::Busy | State::Stopping => {}
        }
        if family.waiting.is_empty() {
            self.hungry.remove(&member.function);
        }
        if family.is_removed && family.instances == 0 {
            self.families.remove(&member.function);
        }
        self.feed_all(&mut actions);
        actions
    }

    /// Handles the passage of time: stops instances that were idle too long, and refuses
    /// invocations that waited too long, unless an instance of their function is starting, which
    /// has its own timeout.
    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        let mut actions = Vec::new();
        let mut old = Vec::new();
        for (function, family) in &mut self.families {
            let is_late = |first: &&Waiting| first.until <= now && family.starting == 0;
            while let Some(waiting) = family.waiting.front().filter(is_late) {
                let (invocation, why) = (waiting.invocation, Refused::Waited);
                actions.push(Action::Refuse { invocation, why });
                family.waiting.pop_front();
            }
            if family.waiting.is_empty() {
                self.hungry.remove(function);
            }
            let mut spare = spare(&self.members, *function, family);
            for instance in family.idle.values() {
                let since = self.members.get(instance).and_then(|member| member.since);
                let since = since.unwrap_or(now);
                if spare == 0 || now.saturating_duration_since(since) < family.share.keep_alive {
                    break;
                }
                spare -= 1;
                old.push(*instance);
            }
        }
        for instance in old {
            self.stop(instance, &mut actions);
        }
        self.warm_up(&mut actions);
        actions
    }

    /// The number of instances of a function that have started and are not stopping.
    pub fn available(&self, function: FunctionId) -> usize {
        let is_available = |state| matches!(state, State::Idle | State::Busy);
        let own = self.members.values().filter(|member| member.function == function);
        own.filter(|member| is_available(member.state)).count()
    }

    /// Starts the instances that are to be warm, within the limits.
    fn warm_up(&mut self, actions: &mut Vec<Action>) {
        let mut cold = Vec::new();
        for (function, family) in &mut self.families {
            if family.pause_ticks > 0 {
                family.pause_ticks -= 1;
            } else if family.share.warm > 0 && !family.is_removed {
                cold.push(*function);
            }
        }
        for function in cold {
            while let Some(family) = self.families.get(&function) {
                let share = family.share;
                let is_full = family.starting >= self.limits.starting_max
                    || family.instances >= share.concurrency
                    || living(&self.members, function) >= share.warm;
                if is_full || self.make_room(share.charge_bytes, actions).is_err() {
                    break;
                }
                self.start(function, share.charge_bytes, actions);
            }
        }
    }

    /// The numbers of instances by state.
    pub fn census(&self) -> Census {
        let mut census = Census { charged_bytes: self.charged_bytes, ..Census::default() };
        for member in self.members.values() {
            match member.state {
                State::Starting => census.starting += 1,
                State::Idle => census.idle += 1,
                State::Busy => census.busy += 1,
                State::Stopping => census.stopping += 1,
            }
        }
        census.waiting = self.families.values().map(|family| family.waiting.len()).sum();
        census
    }

    fn run(&mut self, instance: InstanceId, invocation: InvocationId, actions: &mut Vec<Action>) {
        let Some(member) = self.members.get_mut(&instance) else { return };
        member.state = State::Busy;
        let is_first = !std::mem::replace(&mut member.has_run, true);
        actions.push(Action::Run { instance, invocation, is_first });
    }

    fn stop(&mut self, instance: InstanceId, actions: &mut Vec<Action>) {
        let Some(member) = self.members.get_mut(&instance) else { return };
        if let Some(family) = self.families.get_mut(&member.function) {
            family.idle.remove(&member.turn);
        }
        member.state = State::Stopping;
        actions.push(Action::Stop { instance });
    }

    /// Starts instances for every function with waiting invocations.
    fn feed_all(&mut self, actions: &mut Vec<Action>) {
        for function in self.hungry.clone() {
            self.feed_or_starve(function, actions);
        }
    }

    /// Starts instances, or refuses. If the function has instances, one of them will become free;
    /// without any, waiting may be pointless.
    fn feed_or_starve(&mut self, function: FunctionId, actions: &mut Vec<Action>) {
        let Err(why) = self.feed(function, actions) else { return };
        if self.families.get(&function).is_some_and(|family| family.instances == 0) {
            self.starve(function, why, actions);
        }
    }

    /// Starts an instance for each waiting invocation of a function, within its limits.
    fn feed(&mut self, function: FunctionId, actions: &mut Vec<Action>) -> Result<(), Refused> {
        loop {
            let Some(family) = self.families.get(&function) else { return Ok(()) };
            let due = family.waiting.len().min(self.limits.starting_max);
            if family.starting >= due {
                return Ok(());
            }
            if family.instances >= family.share.concurrency {
                return Err(Refused::Concurrency);
            }
            let charged_bytes = family.share.charge_bytes;
            self.make_room(charged_bytes, actions)?;
            self.start(function, charged_bytes, actions);
        }
    }

    fn start(&mut self, function: FunctionId, charged_bytes: u64, actions: &mut Vec<Action>) {
        let Some(family) = self.families.get_mut(&function) else { return };
        family.starting += 1;
        family.instances += 1;
        self.charged_bytes += charged_bytes;
        let instance = self.next_instance;
        self.next_instance += 1;
        let (state, turn, has_run) = (State::Starting, u64::MAX, false);
        let member = Member { function, state, since: None, turn, charged_bytes, has_run };
        self.members.insert(instance, member);
        actions.push(Action::Start { instance, function });
    }

    /// Stops the least recently used idle instances until there is room. A stopping instance
    /// counts until it has ended, so a start may have to wait for that.
    fn make_room(&mut self, bytes: u64, actions: &mut Vec<Action>) -> Result<(), Refused> {
        let Limits { memory_bytes_max, instances_max, .. } = self.limits;
        let fits = |charged: u64, members: usize| {
            charged + bytes <= memory_bytes_max && members < instances_max
        };
        if fits(self.charged_bytes, self.members.len()) {
            return Ok(());
        }
        if bytes > memory_bytes_max {
            // No instance can be stopped.
            return Err(Refused::Memory);
        }
        let going = self.members.values().filter(|member| member.state == State::Stopping);
        let (mut charged, mut members) = (self.charged_bytes, self.members.len());
        for member in going {
            charged -= member.charged_bytes;
            members -= 1;
        }
        let mut idle: Vec<(u64, InstanceId, u64)> = Vec::new();
        for (function, family) in &self.families {
            // The least recently used ones are not those that are kept warm.
            let spare = spare(&self.members, *function, family);
            for (turn, instance) in family.idle.iter().take(spare) {
                let charged_bytes = self.members.get(instance).map_or(0, |own| own.charged_bytes);
                idle.push((*turn, *instance, charged_bytes));
            }
        }
        idle.sort_unstable();
        for (_, instance, charged_bytes) in idle {
            if fits(charged, members) {
                break;
            }
            charged -= charged_bytes;
            members -= 1;
            self.stop(instance, actions);
        }
        // After the end of a stopping instance gone() feeds again.
        Err(Refused::Memory)
    }

    /// Handles a function without instances that cannot start one: its invocations wait for
    /// instances that are stopping elsewhere, or are refused if there are none.
    fn starve(&mut self, function: FunctionId, why: Refused, actions: &mut Vec<Action>) {
        let frees = |member: &Member| member.state != State::Idle;
        let charge = self.families.get(&function).map_or(0, |family| family.share.charge_bytes);
        if charge <= self.limits.memory_bytes_max && self.members.values().any(frees) {
            return;
        }
        let Some(family) = self.families.get_mut(&function) else { return };
        for waiting in family.waiting.drain(..) {
            actions.push(Action::Refuse { invocation: waiting.invocation, why: why.clone() });
        }
        self.hungry.remove(&function);
    }
}

#[cfg(test)]
#[path = "pool/tests.rs"]
mod tests;
