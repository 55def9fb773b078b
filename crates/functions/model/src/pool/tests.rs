use unlade_testkit::{Random, cases};

use super::*;

const LIMITS: Limits = Limits {
    memory_bytes_max: 10,
    instances_max: 8,
    waiting_max: 4,
    waiting_timeout: Duration::from_secs(10),
    starting_max: 3,
};

fn share(concurrency: usize, charge_bytes: u64) -> Share {
    Share { concurrency, keep_alive: Duration::from_secs(60), charge_bytes, warm: 0 }
}

fn started(actions: &[Action]) -> Vec<InstanceId> {
    let start = |action: &Action| match action {
        Action::Start { instance, .. } => Some(*instance),
        _ => None,
    };
    actions.iter().filter_map(start).collect()
}

#[test]
fn the_most_recently_used_instance_serves() {
    let (mut pool, now) = (Pool::new(LIMITS), Instant::now());
    pool.set(1, share(5, 1));
    let (a, b) = (pool.arrive(1, 1, now), pool.arrive(1, 2, now));
    let (a, b) = (started(&a)[0], started(&b)[0]);
    let run = |instance, invocation, is_first| Action::Run { instance, invocation, is_first };
    assert_eq!(pool.ready(a, now), [run(a, 1, true)]);
    assert_eq!(pool.ready(b, now), [run(b, 2, true)]);
    assert_eq!(pool.ready(b, now), []);
    assert_eq!(pool.ready(a, now), []);
    assert_eq!(pool.arrive(1, 3, now), [run(a, 3, false)], "a was the last to become idle");
    assert_eq!(pool.arrive(1, 4, now), [run(b, 4, false)]);
}

#[test]
fn the_least_recently_used_instance_makes_room() {
    let (mut pool, now) = (Pool::new(LIMITS), Instant::now());
    for (function, bytes) in [(1, 4), (2, 4), (3, 6)] {
        pool.set(function, share(5, bytes));
    }
    let first = started(&pool.arrive(1, 1, now))[0];
    let second = started(&pool.arrive(2, 2, now))[0];
    for instance in [second, first, second, first] {
        pool.ready(instance, now);
    }
    let actions = pool.arrive(3, 3, now);
    assert_eq!(actions, [Action::Stop { instance: second }], "one is enough");
    let actions = pool.gone(second, None);
    assert_eq!(started(&actions).len(), 1);
}

#[test]
fn nothing_is_stopped_for_what_never_fits() {
    let (mut pool, now) = (Pool::new(LIMITS), Instant::now());
    pool.set(1, share(5, 4));
    pool.set(2, share(5, 11));
    let idle = started(&pool.arrive(1, 1, now))[0];
    pool.ready(idle, now);
    pool.ready(idle, now);
    let why = Refused::Memory;
    assert_eq!(pool.arrive(2, 2, now), [Action::Refuse { invocation: 2, why }]);
    let is_first = false;
    assert_eq!(pool.arrive(1, 3, now), [Action::Run { instance: idle, invocation: 3, is_first }]);
}

#[test]
fn what_waits_is_fed_when_less_is_charged() {
    let (mut pool, now) = (Pool::new(LIMITS), Instant::now());
    pool.set(1, share(5, 8));
    pool.set(2, share(5, 4));
    assert_eq!(started(&pool.arrive(1, 1, now)).len(), 1);
    assert_eq!(pool.arrive(2, 2, now), [], "there is no room");
    assert_eq!(pool.charge(1, 7), []);
    assert_eq!(started(&pool.charge(1, 6)).len(), 1);
    assert_eq!(pool.census().charged_bytes, 10);
}

#[test]
fn an_instance_that_is_ending_is_given_to_nobody() {
    let (mut pool, now) = (Pool::new(LIMITS), Instant::now());
    pool.set(1, share(2, 1));
    let (a, b) = (pool.arrive(1, 1, now), pool.arrive(1, 2, now));
    let (a, b) = (started(&a)[0], started(&b)[0]);
    pool.ready(a, now);
    pool.ready(b, now);
    pool.ready(a, now);
    pool.ending(a);
    pool.ending(b);
    assert_eq!(pool.census(), Census { stopping: 2, charged_bytes: 2, ..Census::default() });
    assert_eq!(pool.arrive(1, 3, now), [], "it waits for the end of one");
    assert_eq!(pool.ready(b, now), [], "a reply that comes late");
    assert_eq!(started(&pool.gone(a, None)).len(), 1);
    assert_eq!(pool.gone(b, None), []);
    assert_eq!(
        pool.census(),
        Census { starting: 1, waiting: 1, charged_bytes: 1, ..Census::default() }
    );
}

#[test]
fn what_cannot_be_served_is_refused_with_its_reason() {
    let (mut pool, now) = (Pool::new(LIMITS), Instant::now());
    let refused = |invocation, why| vec![Action::Refuse { invocation, why }];
    assert_eq!(pool.arrive(9, 1, now), refused(1, Refused::Removed));
    pool.set(1, share(5, 11));
    assert_eq!(pool.arrive(1, 2, now), refused(2, Refused::Memory), "more than there is");
    pool.set(2, share(1, 1));
    let instance = started(&pool.arrive(2, 3, now))[0];
    for invocation in 4..8 {
        assert_eq!(pool.arrive(2, invocation, now), [], "four wait beside the one that starts");
    }
    assert_eq!(pool.arrive(2, 8, now), refused(8, Refused::Concurrency));
    let failed = pool.gone(instance, Some("no module named app"));
    assert_eq!(failed[0], refused(3, Refused::Start("no module named app".to_owned()))[0]);
    assert_eq!(started(&failed).len(), 1, "the next one may have more luck");
    assert_eq!(pool.tick(now + Duration::from_secs(11)), [], "one is starting");
    assert_eq!(pool.ready(started(&failed)[0], now).len(), 1);
    let late = pool.tick(now + Duration::from_secs(11));
    assert_eq!(late.len(), 3);
    assert!(late.iter().all(|a| matches!(a, Action::Refuse { why: Refused::Waited, .. })));
}

#[test]
fn idle_instances_grow_old_and_removed_functions_end() {
    let (mut pool, now) = (Pool::new(LIMITS), Instant::now());
    pool.set(1, share(5, 1));
    let (a, b) = (pool.arrive(1, 1, now), pool.arrive(1, 2, now));
    let (a, b) = (started(&a)[0], started(&b)[0]);
    pool.ready(a, now);
    pool.ready(b, now);
    pool.ready(a, now);
    assert_eq!(pool.tick(now + Duration::from_secs(59)), []);
    assert_eq!(pool.tick(now + Duration::from_secs(60)), [Action::Stop { instance: a }]);
    pool.gone(a, None);
    assert_eq!(pool.remove(1), []);
    assert_eq!(pool.arrive(1, 3, now)[0], Action::Refuse { invocation: 3, why: Refused::Removed });
    assert_eq!(pool.ready(b, now), [Action::Stop { instance: b }], "it finishes first");
    pool.gone(b, None);
    assert_eq!(pool.census(), Census::default());
}

#[test]
fn warm_instances_are_started_ahead_and_kept() {
    let (mut pool, now) = (Pool::new(LIMITS), Instant::now());
    pool.set(1, Share { warm: 2, ..share(3, 3) });
    pool.set(2, share(5, 5));
    let warm = started(&pool.tick(now));
    assert_eq!(warm.len(), 2);
    assert_eq!(pool.tick(now), [], "they are starting");
    for instance in &warm {
        assert_eq!(pool.ready(*instance, now), []);
    }
    assert_eq!((pool.available(1), pool.available(2)), (2, 0));
    let later = now + Duration::from_secs(100);
    assert_eq!(pool.tick(later), [], "age stops none");
    let why = Refused::Memory;
    assert_eq!(pool.arrive(2, 1, later), [Action::Refuse { invocation: 1, why }], "nor others");
    let run = Action::Run { instance: warm[1], invocation: 2, is_first: true };
    assert_eq!(pool.arrive(1, 2, later), [run]);
    pool.gone(warm[1], None);
    let again = started(&pool.tick(later));
    assert_eq!(again.len(), 1, "one that ends is replaced");
    pool.gone(again[0], Some("no"));
    assert_eq!(pool.tick(later), [], "after a failure it waits");
    let tried = (0..=PAUSE_TICKS).map(|_| started(&pool.tick(later)).len()).sum::<usize>();
    assert_eq!(tried, 1);
    pool.set(1, share(3, 3));
    assert_eq!(pool.tick(later).len(), 1, "an idle one grows old again");
}

/// A slow reference model of a gateway.
#[derive(Default)]
struct World {
    shares: BTreeMap<FunctionId, Share>,
    starting: BTreeMap<InstanceId, FunctionId>,
    /// Ordered by the time at which they became idle.
    idle: Vec<(InstanceId, FunctionId)>,
    busy: BTreeMap<InstanceId, (FunctionId, InvocationId)>,
    stopping: BTreeMap<InstanceId, FunctionId>,
    waiting: BTreeMap<InvocationId, FunctionId>,
    ended: BTreeSet<InvocationId>,
}

impl World {
    fn function_of(&self, instance: InstanceId) -> Option<FunctionId> {
        let idle = self.idle.iter().find(|(id, _)| *id == instance).map(|(_, function)| *function);
        self.starting
            .get(&instance)
            .or_else(|| self.stopping.get(&instance))
            .copied()
            .or_else(|| self.busy.get(&instance).map(|(function, _)| *function))
            .or(idle)
    }

    fn all(&self) -> Vec<FunctionId> {
        let idle = self.idle.iter().map(|(_, function)| *function);
        let busy = self.busy.values().map(|(function, _)| *function);
        let rest = self.starting.values().chain(self.stopping.values()).copied();
        idle.chain(busy).chain(rest).collect()
    }

    fn see(&mut self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::Start { instance, function } => {
                    assert!(self.function_of(*instance).is_none(), "numbers are not used twice");
                    self.starting.insert(*instance, *function);
                    let all = self.all();
                    let bytes: u64 = all.iter().map(|f| self.shares[f].charge_bytes).sum();
                    assert!(bytes <= LIMITS.memory_bytes_max, "memory");
                    assert!(all.len() <= LIMITS.instances_max, "instances");
                    let own = all.iter().filter(|f| *f == function).count();
                    assert!(own <= self.shares[function].concurrency, "concurrency");
                }
                Action::Run { instance, invocation, .. } => self.run(*instance, *invocation),
                Action::Stop { instance } => {
                    let at = self.idle.iter().position(|(id, _)| id == instance);
                    let (instance, function) = self.idle.remove(at.expect("only idle ones stop"));
                    self.stopping.insert(instance, function);
                    let stopping = self.stopping.values().filter(|f| **f == function).count();
                    let own = self.all().iter().filter(|f| **f == function).count();
                    let warm = self.shares[&function].warm;
                    assert!(own - stopping >= warm, "warm ones stay");
                }
                Action::Refuse { invocation, .. } => {
                    assert!(self.waiting.remove(invocation).is_some(), "it waited");
                    assert!(self.ended.insert(*invocation), "it is told once");
                }
            }
        }
    }

    fn run(&mut self, instance: InstanceId, invocation: InvocationId) {
        let function = self.waiting.remove(&invocation).expect("it waited, and runs once");
        let of_function = |(_, of): &&(InstanceId, FunctionId)| *of == function;
        let last = self.idle.iter().rev().find(of_function).expect("an idle one").0;
        assert_eq!(last, instance, "the most recently used");
        self.idle.retain(|(id, _)| *id != instance);
        self.busy.insert(instance, (function, invocation));
    }

    /// Checks that invocations of a function wait in the order of their arrival.
    fn check(&self, pool: &Pool) {
        let census = pool.census();
        let counts = (census.starting, census.idle, census.busy, census.stopping, census.waiting);
        let due = (
            self.starting.len(),
            self.idle.len(),
            self.busy.len(),
            self.stopping.len(),
            self.waiting.len(),
        );
        assert_eq!(counts, due);
        for (invocation, function) in &self.waiting {
            let idle = self.idle.iter().any(|(_, of)| of == function);
            assert!(!idle, "{invocation} waits beside an idle instance");
        }
        // A waiting invocation implies an instance that will become free or end.
        let moves = self.starting.len() + self.busy.len() + self.stopping.len();
        assert!(self.waiting.is_empty() || moves > 0, "nothing would ever happen");
    }
}

fn pick<'a, K, V>(random: &mut Random, from: &'a BTreeMap<K, V>) -> Option<&'a K> {
    let count = from.len() as u64;
    (count > 0).then(|| from.keys().nth(random.below(count) as usize).unwrap())
}

#[test]
fn every_invocation_runs_or_is_refused_once_within_the_limits() {
    cases(300, |random| {
        let (mut pool, mut world) = (Pool::new(LIMITS), World::default());
        let mut now = Instant::now();
        for function in 1..=3 {
            let mut share = share(1 + random.below(4) as usize, 1 + random.below(5));
            if random.below(3) == 0 {
                share.warm = random.below(share.concurrency as u64 + 1) as usize;
            }
            pool.set(function, share);
            world.shares.insert(function, share);
        }
        let mut next = 0;
        for _ in 0..200 {
            step(random, &mut pool, &mut world, &mut now, &mut next);
            world.check(&pool);
        }
        // After the end of all that runs, no invocation waits.
        for _ in 0..1000 {
            if world.waiting.is_empty() && world.busy.is_empty() {
                break;
            }
            finish(random, &mut pool, &mut world, now);
        }
        assert!(world.waiting.is_empty(), "all were served");
        assert_eq!(world.ended.len() as u64, next);
    });
}

fn step(
    random: &mut Random,
    pool: &mut Pool,
    world: &mut World,
    now: &mut Instant,
    next: &mut InvocationId,
) {
    match random.below(8) {
        0..4 => {
            let function = 1 + random.below(3);
            world.waiting.insert(*next, function);
            let actions = pool.arrive(function, *next, *now);
            *next += 1;
            world.see(&actions);
        }
        4..7 => finish(random, pool, world, *now),
        _ => {
            *now += Duration::from_secs(random.below(30));
            world.see(&pool.tick(*now));
        }
    }
}

fn finish(random: &mut Random, pool: &mut Pool, world: &mut World, now: Instant) {
    let actions = match random.below(4) {
        0 => {
            let Some(instance) = pick(random, &world.starting).copied() else { return };
            let function = world.starting.remove(&instance).unwrap();
            match random.below(8) {
                0 => pool.gone(instance, Some("no")),
                _ => {
                    world.idle.push((instance, function));
                    pool.ready(instance, now)
                }
            }
        }
        1 => {
            let Some(instance) = pick(random, &world.busy).copied() else { return };
            let (function, invocation) = world.busy.remove(&instance).unwrap();
            assert!(world.ended.insert(invocation));
            match random.below(8) {
                0 => pool.gone(instance, None),
                _ => {
                    world.idle.push((instance, function));
                    pool.ready(instance, now)
                }
            }
        }
        2 => {
            let Some(instance) = pick(random, &world.stopping).copied() else { return };
            world.stopping.remove(&instance);
            pool.gone(instance, None)
        }
        _ if !world.idle.is_empty() && random.below(8) == 0 => {
            let at = random.below(world.idle.len() as u64) as usize;
            let (instance, _) = world.idle.remove(at);
            pool.gone(instance, None)
        }
        _ => return,
    };
    world.see(&actions);
}
