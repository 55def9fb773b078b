use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const ALL: [Way; 4] = [Way::Forward, Way::Early, Way::Late, Way::Relay];

/// Clients that ask again some time after they have a response, and queues that all responses of a way pass.
#[derive(Clone, Debug)]
struct World {
    clients: u32,
    bytes: u64,
    is_sealed: bool,
    /// Time of the processors that a response takes, by way.
    work_us: [f64; 4],
    /// Time of the balancer's link that a response takes, by way.
    link_us: [f64; 4],
    think_us: f64,
}

/// Queues: the processors, the link.
#[derive(Default)]
struct Queues {
    work: Duration,
    link: Duration,
}

impl World {
    /// Returns the end of a response by a way.
    fn respond(&self, queues: &mut Queues, way: Way, now: Duration) -> Duration {
        let us = |us: f64| Duration::from_secs_f64(us / 1e6);
        let index = ALL.iter().position(|other| *other == way).unwrap();
        queues.work = now.max(queues.work) + us(self.work_us[index]);
        queues.link = queues.work.max(queues.link) + us(self.link_us[index]);
        // A response that does not use the link does not wait for it.
        if self.link_us[index] > 0.0 { queues.link } else { queues.work }
    }

    /// Runs until `end` with the ways that `choose` returns. `learn` is told of the end of a response's time, and
    /// then, with `None`, of its end. Returns the responses after `from`, a second.
    fn run(
        &self,
        (from, end): (Duration, Duration),
        mut choose: impl FnMut(Duration) -> Pick,
        mut learn: impl FnMut(Pick, Option<Duration>),
    ) -> f64 {
        let mut queues = Queues::default();
        let mut timed = BTreeMap::new();
        let mut asks: BTreeMap<(Duration, u32), Option<Pick>> = BTreeMap::new();
        asks.extend((0..self.clients).map(|client| ((Duration::ZERO, client), None)));
        let mut responses = 0;
        // Events in the order of time: the end of a response, and the next request.
        while let Some(((now, client), pick)) = asks.pop_first()
            && now < end
        {
            match pick {
                Some(pick) => {
                    match pick.lasts_to_next_request() {
                        true => drop(timed.insert(client, pick)),
                        false => learn(pick, Some(now)),
                    }
                    learn(pick, None);
                    responses += u32::from(now >= from);
                    let think = Duration::from_secs_f64(self.think_us / 1e6);
                    asks.insert((now + think, client), None);
                }
                None => {
                    if let Some(pick) = timed.remove(&client) {
                        learn(pick, Some(now));
                    }
                    let pick = choose(now);
                    let ended = self.respond(&mut queues, pick.way, now);
                    asks.insert((ended, client), Some(pick));
                }
            }
        }
        f64::from(responses) / (end - from).as_secs_f64()
    }

    /// Returns the responses a second of the best way.
    fn best(&self, span: (Duration, Duration)) -> f64 {
        let fixed = |way: &Way| {
            let class = class_of(self.bytes);
            let is_sealed = self.is_sealed;
            let pick = |at| Pick { way: *way, at, class, is_sealed, measured: None };
            self.run(span, pick, |_, _| {})
        };
        let fit = ALL.iter().filter(|way| way.is_for(class_of(self.bytes), self.is_sealed));
        fit.map(fixed).fold(0.0, f64::max)
    }

    /// Returns the responses a second of the learnt way.
    fn learnt(&self, ways: &mut Ways, span: (Duration, Duration)) -> f64 {
        let ways = std::cell::RefCell::new(ways);
        let (bytes, is_sealed) = (self.bytes, self.is_sealed);
        let choose = |now| ways.borrow_mut().choose(bytes, is_sealed, Duration::ZERO, now).0;
        self.run(span, choose, |pick, end| match end {
            Some(end) => ways.borrow_mut().learn(pick, end),
            None => ways.borrow_mut().end(pick),
        })
    }
}

fn seconds(from: u64, to: u64) -> (Duration, Duration) {
    (Duration::from_secs(from), Duration::from_secs(to))
}

fn worlds() -> impl Strategy<Value = World> {
    let times = || proptest::array::uniform4(10.0..400.0f64);
    let link = prop_oneof![Just(0.0), 10.0..2000.0f64];
    let think = prop_oneof![Just(0.0), 100.0..50_000.0f64];
    (1u32..64, 0usize..7, any::<bool>(), times(), link, think).prop_map(
        |(clients, class, is_sealed, work_us, link, think_us)| {
            let bytes = 4096 << (2 * class);
            let link_us = [link, 0.0, link / 16.0, link];
            World { clients, bytes, is_sealed, work_us, link_us, think_us }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_learnt_way_is_within_a_tenth_of_the_best_one(world in worlds()) {
        let span = seconds(5, 20);
        let (best, learnt) = (world.best(span), world.learnt(&mut Ways::new(), span));
        prop_assert!(learnt >= 0.9 * best, "{learnt} of {best}");
    }

    #[test]
    fn no_sequence_of_events_breaks_it(
        events in proptest::collection::vec((any::<bool>(), 0..u64::MAX, any::<bool>(), 0u64..1 << 40), 1..300),
    ) {
        let (mut ways, mut picks) = (Ways::new(), Vec::new());
        let mut now = Duration::ZERO;
        for (is_end, bytes, is_sealed, at) in events {
            // Ends can be told late, and in another order.
            let when = now + Duration::from_nanos(at % (1 << 34));
            now = now.max(when);
            match (is_end, picks.is_empty()) {
                (true, false) => {
                    let pick = picks.swap_remove(at as usize % picks.len());
                    if is_sealed {
                        ways.learn(pick, when);
                    }
                    ways.end(pick);
                }
                _ => {
                    let (pick, _) = ways.choose(bytes, is_sealed, Duration::from_nanos(at), when);
                    prop_assert!(pick.way.is_for(class_of(bytes), is_sealed));
                    picks.push(pick);
                }
            }
        }
    }
}

/// A balancer whose link is full by packets that pass it.
fn full_link(bytes: u64) -> World {
    World {
        clients: 32,
        bytes,
        is_sealed: false,
        work_us: [20.0, 30.0, 35.0, 40.0],
        link_us: [1300.0, 0.0, 80.0, 1300.0],
        think_us: 0.0,
    }
}

#[test]
fn a_full_link_is_left() {
    for bytes in [16 << 10, 64 << 10, 1 << 20] {
        let (world, span) = (full_link(bytes), seconds(3, 10));
        let mut ways = Ways::new();
        let (best, learnt) = (world.best(span), world.learnt(&mut ways, span));
        assert!(learnt > 0.95 * best, "{bytes}: {learnt} of {best}");
        assert_eq!(ways.usual(bytes, false), Way::Early);
    }
}

#[test]
fn what_changes_is_learnt_again() {
    let mut ways = Ways::new();
    let bytes = 64 << 10;
    full_link(bytes).learnt(&mut ways, seconds(0, 5));
    assert_eq!(ways.usual(bytes, false), Way::Early);
    // The same link is ten times as fast, and rules cost more than packets.
    let work_us = [20.0, 60.0, 60.0, 60.0];
    let world = World { work_us, link_us: [0.0; 4], ..full_link(bytes) };
    let mut shifted = ways.clone();
    let later = Duration::from_secs(5);
    let cell = std::cell::RefCell::new(&mut shifted);
    let choose = |now| cell.borrow_mut().choose(bytes, false, Duration::ZERO, now + later).0;
    world.run(seconds(0, 30), choose, |pick, end| match end {
        Some(end) => cell.borrow_mut().learn(pick, end + later),
        None => cell.borrow_mut().end(pick),
    });
    assert_eq!(shifted.usual(bytes, false), Way::Forward);
}

#[test]
fn a_slow_trial_ends_in_time() {
    // By the other ways a response takes a hundred times as long.
    let world = World { work_us: [50.0, 5000.0, 5000.0, 5000.0], ..full_link(256 << 10) };
    let world = World { link_us: [0.0; 4], ..world };
    let span = seconds(3, 30);
    let (best, learnt) = (world.best(span), world.learnt(&mut Ways::new(), span));
    assert!(learnt > 0.8 * best, "{learnt} of {best}");
}

/// A balancer with time left, whose servers take long to seal.
fn slow_sealing(bytes: u64) -> World {
    let (work_us, link_us) = ([150.0, 150.0, 140.0, 80.0], [0.0; 4]);
    World { is_sealed: true, work_us, link_us, ..full_link(bytes) }
}

#[test]
fn responses_are_sealed_where_that_takes_less_time() {
    for (bytes, think_us) in [(4 << 10, 0.0), (64 << 10, 500.0), (1 << 20, 0.0)] {
        let (world, span) = (World { think_us, ..slow_sealing(bytes) }, seconds(5, 12));
        let mut ways = Ways::new();
        let (best, learnt) = (world.best(span), world.learnt(&mut ways, span));
        assert!(learnt > 0.95 * best, "{bytes}: {learnt} of {best}");
        assert_eq!(ways.usual(bytes, true), Way::Relay);
        // The balancer's link is full.
        let full = World { is_sealed: true, ..full_link(1 << 20) };
        let (best, learnt) = (full.best(span), full.learnt(&mut Ways::new(), span));
        assert!(learnt > 0.95 * best, "{bytes}: {learnt} of {best}");
    }
}

#[test]
fn pauses_of_clients_change_no_way() {
    // Nearly all of the time between two requests is the clients'; some pause much longer than others.
    for think_us in [100_000.0, 3_000_000.0, 20_000_000.0] {
        let world = World { think_us, clients: 200, ..slow_sealing(64 << 10) };
        let mut ways = Ways::new();
        world.learnt(&mut ways, seconds(0, 120));
        let usual = ways.usual(64 << 10, true);
        assert!(matches!(usual, Way::Forward | Way::Relay), "{usual:?}");
    }
    let (mut ways, mut changes) = (Ways::new(), 0);
    let mut due: BTreeMap<(Duration, u32), Option<Pick>> = BTreeMap::new();
    due.extend((0..200).map(|client| ((Duration::from_millis(client.into()), client), None)));
    for step in 0..200_000u64 {
        let Some(((now, client), pick)) = due.pop_first() else { break };
        if let Some(pick) = pick {
            ways.learn(pick, now);
        }
        let (pick, change) = ways.choose(64 << 10, true, Duration::ZERO, now);
        changes += u32::from(change.is_some());
        ways.end(pick);
        // Nine requests in sequence, then a pause of seconds.
        let pause_ms = if step % 10 == 9 { 2000 + step * 7919 % 3000 } else { 5 };
        due.insert((now + Duration::from_millis(pause_ms), client), Some(pick));
    }
    assert_eq!(changes, 0);
}

#[test]
fn responses_that_are_rare_take_the_first_way() {
    let mut ways = Ways::new();
    let mut forwarded = 0;
    for second in 0..1000 {
        let now = Duration::from_secs(second);
        let (pick, _) = ways.choose(64 << 10, false, Duration::ZERO, now);
        forwarded += u32::from(pick.way == Way::Forward);
        ways.learn(pick, now + Duration::from_millis(1));
        ways.end(pick);
    }
    assert!(forwarded > 900, "{forwarded}");
}

#[test]
fn a_trial_whose_clients_leave_tells_nothing() {
    let (mut ways, bytes) = (Ways::new(), 64 << 10);
    let mut trials = 0;
    for step in 0..100_000 {
        let now = Duration::from_millis(step);
        let (pick, _) = ways.choose(bytes, false, Duration::ZERO, now);
        match pick.way {
            Way::Forward => ways.learn(pick, now + Duration::from_millis(1)),
            _ => trials += 1,
        }
        ways.end(pick);
    }
    assert!(trials > 0);
    assert_eq!(ways.plain[class_of(bytes)].shares[1].count, 0);
}

#[test]
fn short_responses_and_sealed_ones_lack_a_way() {
    assert!(!Way::Late.is_for(class_of(64 << 10), false));
    assert!(Way::Late.is_for(class_of(128 << 10), false));
    assert!(!Way::Early.is_for(class_of(1 << 20), true));
    assert!(!Way::Relay.is_for(class_of(1 << 20), false));
    assert_eq!((class_of(0), class_of(8191), class_of(8192)), (0, 0, 1));
    assert_eq!(class_of(u64::MAX), CLASSES - 1);
}
