//! Ablation tests: without any one of the rules, a comparison with the model fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use unlade_testkit::Random;

use crate::network::runs;
use crate::rule::{OFF, Rule};
use crate::{receive, recover};

/// Number of random cases within which a disabled rule must cause a failure.
const CASES: u64 = 3000;

fn must_be_found(rule: Rule, run: fn(&mut Random)) {
    OFF.set(Some(rule));
    let fails = |seed: &u64| {
        let seed = seed.wrapping_mul(0x2545_f491_4f6c_dd1d);
        catch_unwind(AssertUnwindSafe(|| run(&mut Random::new(seed)))).is_err()
    };
    let found = (0..unlade_testkit::count(CASES)).find(fails);
    OFF.set(None);
    let Some(seed) = found else { panic!("no case fails without {rule:?}") };
    println!("{rule:?}: case {seed} fails");
}

macro_rules! rules {
    ($($name:ident: $rule:ident $run:path,)*) => {
        $(#[test] fn $name() { must_be_found(Rule::$rule, $run); })*
    };
}

rules! {
    first_wins: FirstWins receive::tests::compare,
    edge: Edge receive::tests::compare,
    karn: Karn recover::tests::compare,
    reordering: Reordering recover::tests::compare,
    probe: Probe runs::any_case,
}
