//! Which instance serves which invocation: the most recently used one that is idle, else a new one
//! if there is memory, for which the least recently used idle ones of all functions go; else the
//! invocation waits for its turn, or is refused.
//!
//! Sans-IO: events and `now` in, [`Action`]s out, in the order in which they are to be done.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// A function, by the caller's number.
pub type FunctionId = u64;
/// An instance, by the pool's number: never used twice.
pub type InstanceId = u64;
/// An invocation, by the caller's number.
pub type InvocationId = u64;

/// What a pool may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Memory of all instances, as they are charged.
    pub memory_bytes_max: u64,
    /// Instances of all functions.
    pub instances_max: usize,
    /// Invocations that wait, of one function.
    pub waiting_max: usize,
    /// How long one waits before it is refused.
    pub waiting_timeout: Duration,
    /// Instances of one function that are starting at a time.
    pub starting_max: usize,
}

/// What one function may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Most instances.
    pub concurrency: usize,
    /// How long an idle instance is kept.
    pub keep_alive: Duration,
    /// What an instance is charged with: its limit, or what was measured.
    pub charge_bytes: u64,
}

/// Why an invocation is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The function has as many instances as it may have, and others wait already.
    Concurrency,
    /// There is no memory for another instance, and nothing that could go.
    Memory,
    /// It has waited for too long.
    Waited,
    /// An instance did not start.
    Start(String),
    /// The function was removed.
    Removed,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Start an instance; [`Pool::ready`] or [`Pool::gone`] follows.
    Start {
        /// The one.
        instance: InstanceId,
        /// Of which function.
        function: FunctionId,
    },
    /// Run an invocation in an instance that is idle; [`Pool::ready`] or [`Pool::gone`] follows.
    Run {
        /// Where.
        instance: InstanceId,
        /// What.
        invocation: InvocationId,
        /// Whether it is the instance's first.
        is_first: bool,
    },
    /// Stop an instance; [`Pool::gone`] follows.
    Stop {
        /// Which.
        instance: InstanceId,
    },
    /// Tell the caller of an invocation.
    Refuse {
        /// Which.
        invocation: InvocationId,
        /// Why.
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
    /// When it became idle; not yet where nothing.
    since: Option<Instant>,
    /// The order in which instances became idle.
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
    /// Idle instances by the turn in which they became idle.
    idle: BTreeMap<u64, InstanceId>,
    waiting: VecDeque<Waiting>,
    starting: usize,
    instances: usize,
    is_removed: bool,
}

/// How many instances there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// That have not greeted.
    pub starting: usize,
    /// That wait for work.
    pub idle: usize,
    /// That work.
    pub busy: usize,
    /// That are going.
    pub stopping: usize,
    /// Invocations that wait.
    pub waiting: usize,
    /// What all are charged with.
    pub charged_bytes: u64,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Pool {
    limits: Limits,
    families: BTreeMap<FunctionId, Family>,
    members: BTreeMap<InstanceId, Member>,
    /// Functions whose invocations wait.
    hungry: BTreeSet<FunctionId>,
    charged_bytes: u64,
    next_instance: InstanceId,
    next_turn: u64,
}

impl Pool {
    /// A pool without functions.
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

    /// Adds a function, or changes what it may have.
    pub fn set(&mut self, function: FunctionId, share: Share) {
        let family = self.families.entry(function).or_insert_with(|| Family {
            share,
            idle: BTreeMap::new(),
            waiting: VecDeque::new(),
            starting: 0,
            instances: 0,
            is_removed: false,
        });
        family.share = share;
        family.is_removed = false;
    }

    /// Other limits from now on. What is there stays until it is idle and others need its place.
    pub fn limit(&mut self, limits: Limits) -> Vec<Action> {
        let mut actions = Vec::new();
        self.limits = limits;
        self.feed_all(&mut actions);
        actions
    }

    /// What an instance of a function is charged with from now on: those that are there, too. Where
    /// that is less there may be room for what waits.
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

    /// Removes a function: what waits is refused, what is idle stops, what is busy stops afterwards.
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

    /// An invocation has come.
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
        // The one that was used last has the warmest caches, and lets the others grow old.
        if let Some((_, instance)) = family.idle.pop_last() {
            self.run(instance, invocation, &mut actions);
            return actions;
        }
        // Those whose instance is starting do not wait for another's end.
        if family.waiting.len() >= self.limits.waiting_max + family.starting {
            return refuse(Refused::Concurrency);
        }
        let until = now + self.limits.waiting_timeout;
        family.waiting.push_back(Waiting { invocation, until });
        self.hungry.insert(function);
        self.feed_or_starve(function, &mut actions);
        actions
    }

    /// An instance can be invoked: it has greeted, or its handler has returned.
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
                // Others may need its memory more.
                self.feed_all(&mut actions);
            }
        }
        actions
    }

    /// An instance that has started is ending, by itself or told to: it is given to nobody any more.
    /// [`Pool::gone`] follows.
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

    /// An instance is no more. Where it never started, `why` says it, and the function's oldest
    /// waiting invocation is refused with that.
    pub fn gone(&mut self, instance: InstanceId, why: Option<&str>) -> Vec<Action> {
        let mut actions = Vec::new();
        let Some(member) = self.members.remove(&instance) else { return actions };
        self.charged_bytes -= member.charged_bytes;
        let Some(family) = self.families.get_mut(&member.function) else { return actions };
        family.instances -= 1;
        match member.state {
            State::Starting => {
                family.starting -= 1;
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

    /// Time has passed: instances that were idle for long stop, invocations that waited for long are
    /// refused, unless an instance of their function is starting, which has a limit of its own.
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
            for instance in family.idle.values() {
                let since = self.members.get(instance).and_then(|member| member.since);
                let since = since.unwrap_or(now);
                if now.saturating_duration_since(since) < family.share.keep_alive {
                    break;
                }
                old.push(*instance);
            }
        }
        for instance in old {
            self.stop(instance, &mut actions);
        }
        actions
    }

    /// How many there are.
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

    /// Starts instances for every function whose invocations wait.
    fn feed_all(&mut self, actions: &mut Vec<Action>) {
        for function in self.hungry.clone() {
            self.feed_or_starve(function, actions);
        }
    }

    /// Where instances are there, one of them will be free some time; else it may be hopeless.
    fn feed_or_starve(&mut self, function: FunctionId, actions: &mut Vec<Action>) {
        let Err(why) = self.feed(function, actions) else { return };
        if self.families.get(&function).is_some_and(|family| family.instances == 0) {
            self.starve(function, why, actions);
        }
    }

    /// Starts as many instances of a function as invocations wait for, if it may.
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
            let instance = self.next_instance;
            self.next_instance += 1;
            let Some(family) = self.families.get_mut(&function) else { return Ok(()) };
            family.starting += 1;
            family.instances += 1;
            self.charged_bytes += charged_bytes;
            let (state, turn, has_run) = (State::Starting, u64::MAX, false);
            let member = Member { function, state, since: None, turn, charged_bytes, has_run };
            self.members.insert(instance, member);
            actions.push(Action::Start { instance, function });
        }
    }

    /// Stops the least recently used idle instances until there is room. What is going counts until
    /// it has gone, so a start may have to wait for that.
    fn make_room(&mut self, bytes: u64, actions: &mut Vec<Action>) -> Result<(), Refused> {
        let Limits { memory_bytes_max, instances_max, .. } = self.limits;
        let fits = |charged: u64, members: usize| {
            charged + bytes <= memory_bytes_max && members < instances_max
        };
        if fits(self.charged_bytes, self.members.len()) {
            return Ok(());
        }
        if bytes > memory_bytes_max {
            // Nobody's end would help.
            return Err(Refused::Memory);
        }
        let going = self.members.values().filter(|member| member.state == State::Stopping);
        let (mut charged, mut members) = (self.charged_bytes, self.members.len());
        for member in going {
            charged -= member.charged_bytes;
            members -= 1;
        }
        let mut idle: Vec<(u64, InstanceId, u64)> = Vec::new();
        for (instance, member) in &self.members {
            if member.state == State::Idle {
                idle.push((member.turn, *instance, member.charged_bytes));
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
        // Where something goes, gone() feeds again.
        Err(Refused::Memory)
    }

    /// Nothing of a function is there, and nothing can be: its invocations wait for what is going
    /// elsewhere, or are refused where nothing is.
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
