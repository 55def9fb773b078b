//! Simulated call sites.

use unlade_testkit::cases;

use super::request::lines;
use super::*;

const COSTS: Costs =
    Costs { queued_bytes_min: 1024, wake_pending_bytes_min: 128 << 10, remote_line_ns: 0.7 };

/// The world around a call site.
#[derive(Clone, Copy)]
struct World {
    len: u64,
    /// An inline copy.
    copy_ns: u32,
    window_ns: u32,
    /// Reading a line of a queued copy.
    line_ns: f32,
    /// Time from the submission to the first copied byte.
    begin_ns: u32,
}

impl World {
    fn new(len: u64, copy_ns: u32, window_ns: u32) -> World {
        World { len, copy_ns, window_ns, line_ns: 0.5, begin_ns: 120 }
    }
}

/// Result of a simulation: number of queued copies, and time that the program saw.
#[derive(Debug, Default)]
struct Seen {
    queued: u32,
    ns: f64,
}

/// A site, and the decision that a thread remembers.
#[derive(Default)]
struct Simulated {
    site: CallSite,
    usual: Verdict,
    left: u16,
    wakes: u32,
    /// Number of decisions.
    asked: u32,
}

impl Simulated {
    /// Makes `count` copies. `noise` gives additional waits of queued copies.
    fn run(&mut self, world: World, count: u32, mut noise: impl FnMut(u32) -> u32) -> Seen {
        let class = class_of(world.len);
        let mut seen = Seen::default();
        for number in 0..count {
            let (verdict, timed) = match self.left {
                0 => {
                    let request = Request {
                        class,
                        bytes: world.len,
                        pending_bytes: 0,
                        is_awake: true,
                        run: RUN_COPIES,
                    };
                    let choice = self.site.decide(&COSTS, &request);
                    self.asked += 1;
                    (self.left, self.usual) = (choice.copies, choice.usual);
                    self.wakes += u32::from(choice.wake);
                    (choice.verdict, true)
                }
                left => {
                    self.left = left - 1;
                    (self.usual, false)
                }
            };
            if verdict == Verdict::Inline {
                seen.ns += f64::from(world.copy_ns);
                if timed {
                    self.site.observe_inline(class, world.len, world.copy_ns, None);
                    self.site.observe_window(class, world.window_ns);
                }
                continue;
            }
            let done_ns = world.begin_ns + world.copy_ns;
            let wait_ns = done_ns.saturating_sub(world.window_ns) + noise(number);
            let timing = QueuedTiming {
                submit_ns: 30,
                window_ns: world.window_ns,
                wait_ns,
                line_ns: Some(world.line_ns),
            };
            seen.queued += 1;
            seen.ns += f64::from(30 + wait_ns) + f64::from(world.line_ns * lines(world.len));
            if timed {
                self.site.observe_queued(class, world.len, true, &timing);
            } else if wait_ns > 0 && self.site.observe_late(class, wait_ns) {
                self.left = 0;
            }
        }
        seen
    }
}

#[test]
fn a_site_without_a_window_is_never_tried() {
    for (len, copy_ns) in [(4096, 100), (16384, 400), (32768, 1000)] {
        let mut site = Simulated::default();
        let seen = site.run(World::new(len, copy_ns, 0), 20_000, |_| 0);
        assert_eq!(seen.queued, 0);
    }
}

#[test]
fn a_site_without_a_gain_is_asked_less_and_less_and_notices_a_window_all_the_same() {
    let mut site = Simulated::default();
    let short = World::new(8192, 300, 0);
    let asked = |site: &mut Simulated, world: World, count: u32| {
        let before = site.asked;
        site.run(world, count, |_| 0);
        site.asked - before
    };
    let run = u32::from(RUN_COPIES);
    let settled = run * u32::from(SETTLED_RUNS);
    let first = asked(&mut site, short, settled);
    assert!((SETTLED_RUNS.into()..SETTLED_RUNS as u32 + 8).contains(&first), "{first}");
    let later = asked(&mut site, short, 10 * settled);
    assert!((20..30).contains(&later), "{later}: a run is eight times as long");
    // Several measurements are needed before the new window counts.
    let seen = site.run(World { window_ns: 3_000, ..short }, (8 + 12) * run, |_| 0);
    assert!(seen.queued > 0);
    // Long copies are always asked about.
    let long = World::new(64 << 10, 1_000, 0);
    let mut site = Simulated::default();
    site.run(long, 100_000, |_| 0);
    assert!(asked(&mut site, long, 3200) >= 100);
}

#[test]
fn a_window_is_used_after_a_few_copies() {
    for (len, copy_ns) in [(8192, 300), (16384, 400), (65536, 1000), (1 << 22, 100_000)] {
        let mut site = Simulated::default();
        let seen = site.run(World::new(len, copy_ns, 4 * copy_ns), 200, |_| 0);
        assert!(seen.queued > 180, "{} of {len}", seen.queued);
        let seen = site.run(World::new(len, copy_ns, 4 * copy_ns), 20_000, |_| 0);
        assert!(seen.queued > 19_900, "{} of {len}", seen.queued);
    }
}

#[test]
fn one_late_copy_does_not_decide_a_trial() {
    for late in 0..8 {
        let mut site = Simulated::default();
        let noise = |number: u32| if number == 4 + late { 20_000 } else { 0 };
        let seen = site.run(World::new(1 << 20, 30_000, 120_000), 60, noise);
        assert!(seen.queued > 50, "{late}: {seen:?}");
        // Every second copy is late by two copies: it does not pay.
        let mut site = Simulated::default();
        let noise = |number: u32| if number.is_multiple_of(2) { 60_000 } else { 0 };
        let seen = site.run(World::new(1 << 20, 30_000, 120_000), 2000, noise);
        assert!(seen.queued < 200, "{seen:?}");
    }
}

#[test]
fn the_cost_of_lines_decides() {
    // 64 KiB take 1.1 us to copy, and the window is long; the service is near, then far.
    for (line_ns, is_queued) in [(0.6, true), (3.5, false)] {
        let world = World { line_ns, ..World::new(65536, 1_100, 9_000) };
        let mut site = Simulated::default();
        site.run(world, 20_000, |_| 0);
        let seen = site.run(world, 10_000, |_| 0);
        assert_eq!(seen.queued > 9_900, is_queued, "{seen:?}");
        assert!(seen.ns < 1.02 * 1_100.0 * 10_000.0, "{seen:?}");
    }
}

#[test]
fn a_window_that_ends_is_noticed_within_some_copies() {
    let mut site = Simulated::default();
    site.run(World::new(65536, 1000, 5000), 20_000, |_| 0);
    let seen = site.run(World::new(65536, 1000, 0), 1000, |_| 0);
    assert!(seen.queued < 100, "{seen:?}");
    // It comes back.
    site.run(World::new(65536, 1000, 5000), 50_000, |_| 0);
    let seen = site.run(World::new(65536, 1000, 5000), 1000, |_| 0);
    assert!(seen.queued > 950, "{seen:?}");
}

#[test]
fn a_service_that_loses_its_processor_costs_little() {
    // Every thousandth wait lasts 3 ms: on average it costs three copies.
    for every in [10, 100, 1000, 10_000] {
        let world = World::new(65536, 1000, 5000);
        let mut site = Simulated::default();
        let noise = |number: u32| if number % every == every - 1 { 3_000_000 } else { 0 };
        let seen = site.run(world, 1_000_000, noise);
        let inline_ns = 1000.0 * 1e6;
        assert!(seen.ns < 1.025 * inline_ns + 3e6, "{every}: {seen:?}");
    }
}

/// A service that now and then loses its processor for milliseconds, and saves far more than it
/// costs: sites go on queueing, but for those whose first copies it meets.
#[test]
fn rare_stalls_of_the_service_do_not_end_queueing() {
    let stalls: [(u64, u64); 2] = [(100_000_000, 4_000_000), (20_000_000, 1_000_000)];
    let copies = [(64 << 10, 2_500), (256 << 10, 10_000), (1 << 20, 50_000), (4 << 20, 280_000)];
    let (mut queued, mut runs) = (0.0, 0.0);
    cases(4, |random| {
        for (len, copy_ns) in copies {
            for (every_ns, stall_ns_max) in stalls {
                let mut site = Simulated::default();
                let noise = |_| match random.below(every_ns) < u64::from(copy_ns) {
                    true => random.below(stall_ns_max) as u32,
                    false => 0,
                };
                let count = 2_000_000_000 / (5 * copy_ns);
                let seen = site.run(World::new(len, copy_ns, 4 * copy_ns), count, noise);
                queued += f64::from(seen.queued) / f64::from(count);
                runs += 1.0;
            }
        }
    });
    assert!(queued > 0.85 * runs, "{queued} of {runs}");
}

#[test]
fn lengths_do_not_learn_from_each_other() {
    let mut site = Simulated::default();
    site.run(World::new(65536, 1000, 5000), 1000, |_| 0);
    let (long, short) = (class_of(65536), class_of(4096));
    assert_eq!(site.site.usual(long), Some(Verdict::Queue));
    assert_eq!(site.site.usual(short), None);
    site.left = 0;
    site.run(World::new(4096, 100, 0), 1000, |_| 0);
    assert_eq!(site.site.usual(short), Some(Verdict::Inline));
    assert_eq!(site.site.usual(long), Some(Verdict::Queue));
    let shorter = Request { class: 0, bytes: 1023, pending_bytes: 0, is_awake: true, run: 10 };
    let choice = site.site.decide(&COSTS, &shorter);
    assert_eq!((choice.verdict, choice.copies), (Verdict::Inline, 9));
    assert!(class_of(u64::MAX) == CLASSES - 1 && class_of(0) == 0);
    assert_eq!((class_of(64 << 20), class_of(1 << 20)), (CLASSES - 1, 10));
}

#[test]
fn a_sleeping_service_is_woken_as_the_allowance_permits() {
    let class = class_of(65536);
    let mut site = CallSite::default();
    let (mut wakes, mut copies) = (0, 0_u32);
    while copies < 100_000 {
        let request =
            Request { class, bytes: 65536, pending_bytes: 0, is_awake: false, run: RUN_COPIES };
        let choice = site.decide(&COSTS, &request);
        assert_eq!(choice.verdict, Verdict::Inline);
        site.observe_inline(class, 65536, 1000, None);
        site.observe_window(class, 9000);
        copies += 1 + u32::from(choice.copies);
        wakes += u32::from(choice.wake);
    }
    // 2 % of the time of all copies, 8 us each.
    assert!((100..260).contains(&wakes), "{wakes}");
    // A copy long enough wakes it with its submission.
    let class = class_of(1 << 20);
    for _ in 0..10 {
        site.observe_inline(class, 1 << 20, 100_000, None);
        site.observe_window(class, 1_000_000);
    }
    let request =
        Request { class, bytes: 1 << 20, pending_bytes: 0, is_awake: false, run: RUN_COPIES };
    assert_eq!(site.decide(&COSTS, &request).verdict, Verdict::Queue);
    assert_eq!(site.window_ns(class), Some(1_000_000.0));
}

/// State and cause after `count` copies of a world.
fn after(world: World, count: u32, noise: impl FnMut(u32) -> u32) -> (State, Cause) {
    let mut site = Simulated::default();
    site.run(world, count, noise);
    let view = site.site.view(class_of(world.len));
    (view.state, view.cause)
}

#[test]
fn a_state_has_its_cause() {
    let long = World::new(1 << 20, 30_000, 120_000);
    assert_eq!(after(long, 3, |_| 0), (State::NotLearnt, Cause::Unmeasured));
    assert_eq!(after(long, 8, |_| 0), (State::Trial, Cause::Trial));
    assert_eq!(after(long, 1000, |_| 0), (State::Queued, Cause::Pays));
    assert_eq!(after(World::new(8192, 300, 100), 1000, |_| 0), (State::AtOnce, Cause::Forecast));
    // The lines of the result are far away, which only a trial shows.
    let far = World { line_ns: 1.5, ..World::new(65_536, 1_100, 9_000) };
    assert_eq!(after(far, 100, |_| 0), (State::AtOnce, Cause::TrialLost));
    // One wait that costs more than all that may be lost.
    let late = |number: u32| if number == 8 { 10_000_000 } else { 0 };
    assert_eq!(after(long, 20, late), (State::Suspended, Cause::Allowance));
    // The window ends within a run.
    let mut site = Simulated::default();
    let world = World::new(65_536, 1_000, 5_000);
    site.run(world, 1000, |_| 0);
    site.left = 31;
    site.run(World { window_ns: 0, ..world }, 20, |_| 0);
    assert_eq!(site.site.view(class_of(world.len)).cause, Cause::Late);
}

#[test]
fn a_view_agrees_with_the_decisions_that_it_explains() {
    cases(300, |random| {
        let mut site = CallSite::default();
        let class = class_of(65_536);
        let (mut lost_ns, mut window_ns, mut wait_ns) = (0.0, 9_000, 0);
        for _ in 0..200 {
            if random.below(20) == 0 {
                window_ns = random.below(20_000) as u32;
                wait_ns = random.below(4_000) as u32 * u32::from(random.below(2) == 0);
            }
            let (is_awake, pending_bytes) = (random.below(8) != 0, random.below(3) * 65_536);
            let request =
                Request { class, bytes: 65_536, pending_bytes, is_awake, run: RUN_COPIES };
            let choice = site.decide(&COSTS, &request);
            let view = site.view(class);
            let is_queueing = site.usual(class) == Some(Verdict::Queue);
            assert_eq!(view.state == State::Queued, is_queueing, "{view:?}");
            assert_eq!(view.state, site.state(class));
            let causes: &[Cause] = match view.state {
                State::NotLearnt => &[Cause::Unmeasured],
                State::Trial => &[Cause::Trial, Cause::Asleep],
                State::Queued => &[Cause::Pays, Cause::Asleep],
                State::Suspended => &[Cause::Allowance],
                State::AtOnce => {
                    &[Cause::Forecast, Cause::TrialLost, Cause::Loses, Cause::Late, Cause::Asleep]
                }
            };
            assert!(causes.contains(&view.cause), "{view:?}");
            if choice.verdict == Verdict::Queue {
                assert!(matches!(view.state, State::Trial | State::Queued), "{view:?}");
                assert!(matches!(view.cause, Cause::Trial | Cause::Pays), "{view:?}");
            }
            if view.cause == Cause::Forecast && view.runs == 0 {
                let inline_ns = view.inline.median().unwrap();
                assert!(view.forecast_ns > ENTER * inline_ns, "{view:?}");
            }
            if view.state == State::NotLearnt {
                assert!(view.inline.count() < FIRST_COPIES && choice.verdict == Verdict::Inline);
            }
            assert!(view.lost_ns >= lost_ns, "losses are never taken back");
            lost_ns = view.lost_ns;
            match choice.verdict {
                Verdict::Inline => {
                    site.observe_inline(class, 65_536, 1_000, None);
                    site.observe_window(class, window_ns);
                }
                Verdict::Queue => {
                    let seen =
                        QueuedTiming { submit_ns: 30, window_ns, wait_ns, line_ns: Some(0.1) };
                    site.observe_queued(class, 65_536, is_awake, &seen);
                }
            }
            if random.below(4) == 0 && wait_ns > 0 {
                site.observe_late(class, wait_ns);
            }
        }
    });
}

#[test]
fn lengths_of_a_class_are_those_that_are_classed_there() {
    for class in 0..CLASSES {
        let (start, end) = lengths_of(class);
        assert_eq!(class_of(start), class);
        match end {
            Some(end) => assert_eq!((class_of(end - 1), class_of(end)), (class, class + 1)),
            None => assert_eq!((class, class_of(u64::MAX)), (CLASSES - 1, class)),
        }
    }
}
