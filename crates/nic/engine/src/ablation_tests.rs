//! Ablation tests: without any one of the rules, a comparison with the model fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use unlade_testkit::Random;

use crate::model::{emission, exchange, receive, transmit};
use crate::rule::{OFF, Rule};

/// Number of random cases within which a disabled rule must cause a failure.
const CASES: u64 = 10_000;

fn must_be_found<S>(rule: Rule, run: fn(&mut Random) -> Result<S, String>) {
    OFF.set(Some(rule));
    let case = |seed| {
        // A panic counts as a failure.
        let run = || run(&mut Random::new(seed)).err();
        let found = catch_unwind(AssertUnwindSafe(run));
        Some((seed, found.unwrap_or_else(|_| Some("a panic".to_owned()))?))
    };
    let Some((seed, why)) = (0..unlade_testkit::count(CASES)).find_map(case) else {
        panic!("no case fails without {rule:?}")
    };
    println!("{rule:?}: case {seed} fails: {why}");
}

macro_rules! rules {
    ($($name:ident: $rule:ident $run:path,)*) => {
        $(#[test] fn $name() { must_be_found(Rule::$rule, $run); })*
    };
}

rules! {
    wrap: Wrap receive::run,
    wrap_sent: Wrap transmit::run,
    tail: Tail receive::run,
    length: Length receive::run,
    confirm: Confirm receive::run,
    generation: Generation receive::run,
    keepalive: Keepalive receive::run,
    failing: Failing receive::run,
    whole: Whole receive::run,
    restore: Restore receive::run,
    undo: Undo receive::run,
    fail_closed: FailClosed transmit::run,
    acknowledged: Acknowledged transmit::run,
    failing_pdus: Failing exchange::plain,
    whole_pdus: Whole exchange::plain,
    recheck: Recheck exchange::plain,
    bounds: Bounds exchange::plain,
    registration: Registration exchange::plain,
    fresh: Fresh exchange::plain,
    inner_type: InnerType exchange::secure,
    inner_gap: InnerGap exchange::secure,
    inner_replay: InnerReplay emission::secure,
    wrap_pdus: Wrap emission::plain,
    acknowledged_pdus: Acknowledged emission::secure,
    fail_closed_pdus: FailClosed emission::plain,
    inner_generation: Generation exchange::secure,
}
