//! Ablation tests: without any one of the rules, the model finds wrong bytes.

use unlade_testkit::Random;

use crate::model;
use crate::plan::Rule;

/// Number of random programs within which a missing rule must show.
const CASES: u64 = 6000;

fn must_be_found(rule: Rule) {
    let mut seeds = 0..unlade_testkit::count(CASES);
    let run = |seed| Some((seed, model::run(&mut Random::new(seed), Some(rule)).err()?));
    let Some((seed, why)) = seeds.find_map(run) else { panic!("no case needs {rule:?}") };
    println!("{rule:?}: case {seed} finds that {why}");
}

macro_rules! rules {
    ($($name:ident: $rule:ident,)*) => {
        $(#[test] fn $name() { must_be_found(Rule::$rule); })*
    };
}

rules! {
    read_after_write: ReadAfterWrite,
    write_after_write: WriteAfterWrite,
    write_after_read: WriteAfterRead,
    pin: Pin,
    recheck: Recheck,
    in_place: InPlace,
    newest_writer: NewestWriter,
    dependents_first: DependentsFirst,
    stream_order: StreamOrder,
    given_up: GivenUp,
    sole_taker: SoleTaker,
    nothing_between: NothingBetween,
    edges: Edges,
    drain: Drain,
    losses: Losses,
}
