//! Every client gets the bytes of a relay, whichever way they take, and every simulation ends.

use std::time::Duration;

use splice_tests::{Conditions, Outcome, Plan, Simulation};
use unlade_research_tcp::Config;
use unlade_testkit::{Random, cases};

fn plan(random: &mut Random, conditions: Conditions) -> Plan {
    let depth = if random.below(2u64) == 0 { 1 } else { 4 };
    let socket = |random: &mut Random| Config {
        receive_buffer_bytes: 1 << (13 + random.below(8u64)),
        super_segment_bytes: if random.below(2u64) == 0 { 1460 } else { 60_000 },
        timestamp_offset: random.below(u64::from(u32::MAX)) as u32,
        ..Config::default()
    };
    let timestamps = random.below(4u64) > 0;
    let sack = random.below(4u64) > 0;
    let client = Config { timestamps, sack, ..socket(random) };
    Plan {
        clients: 1 + random.below(3u64) as usize,
        servers: 1 + random.below(3u64) as usize,
        requests: 1 + random.below(12u64) as usize,
        body_bytes_max: 1 << (4 + random.below(16u64)),
        depth,
        read_every_us: if random.below(3u64) == 0 { 3000 } else { 0 },
        splices: true,
        conditions,
        client,
        front: socket(random),
        back: Config { receive_buffer_bytes: 16 << 10, ..socket(random) },
        server: socket(random),
    }
}

#[test]
fn clean_lines_need_no_retransmission() {
    cases(150, |random| {
        let conditions = Conditions::CLEAN;
        // A slow reader delays acknowledgements, and so does a client whose next request is sent
        // already; tail loss probes follow (RFC 8985 §7).
        let plan = Plan { read_every_us: 0, depth: 1, ..plan(random, conditions) };
        // Direct bytes overtake relayed ones; without SACK that looks like a loss.
        let client = Config { delayed_ack: Duration::ZERO, sack: true, ..plan.client };
        // The balancer acknowledges the server's bytes at once.
        let back = Config { delayed_ack: Duration::ZERO, ..plan.back };
        let plan = Plan { client, back, ..plan };
        let (clients, requests) = (plan.clients, plan.requests);
        let outcome = Simulation::new(plan.clone(), random.clone()).run();
        assert_eq!(outcome.responses, clients * requests);
        // The socket would send such a request again, and no other one after some of them.
        assert_eq!(outcome.unacknowledged, 0, "{outcome:?} {plan:?}");
        let relayed =
            Simulation::new(Plan { splices: false, ..plan.clone() }, random.clone()).run();
        assert!(outcome.retransmitted <= relayed.retransmitted, "{outcome:?} {relayed:?} {plan:?}");
    });
}

#[test]
fn lost_doubled_and_late_packets_change_no_byte() {
    let mut all = Outcome::default();
    // A server's connection is closed in one of some hundred cases.
    cases(600, |random| {
        let mut share = || random.below(40u64);
        let conditions = Conditions {
            lost: share(),
            doubled: share(),
            late: 5 * share(),
            refused: share(),
            forgotten: share() / 2,
            ..Conditions::CLEAN
        };
        let plan = plan(random, conditions);
        let (clients, requests) = (plan.clients, plan.requests);
        let outcome = Simulation::new(plan, random.clone()).run();
        assert_eq!(outcome.responses, clients * requests);
        all.spliced += outcome.spliced;
        all.bypassed_bytes += outcome.bypassed_bytes;
        all.direct_segments += outcome.direct_segments;
        all.closed += outcome.closed;
        all.unfit += outcome.unfit;
        all.copies += outcome.copies;
        all.untouched += outcome.untouched;
        all.over += outcome.over;
        all.sealed += outcome.sealed;
        all.forwarded += outcome.forwarded;
        all.heads += outcome.heads;
        all.noted += outcome.noted;
        all.kept += outcome.kept;
    });
    // The lines above show nothing if responses are only relayed, or if nothing was refused.
    assert!(all.spliced > 0 && all.bypassed_bytes > 0 && all.direct_segments > 0, "{all:?}");
    assert!(all.closed > 0 && all.unfit > 0, "{all:?}");
    assert!(all.copies > 0 && all.untouched > 0 && all.over > 0, "{all:?}");
    assert!(all.sealed > 0, "{all:?}");
    assert!(all.forwarded > 0 && all.heads > 0 && all.noted > 0 && all.kept > 0, "{all:?}");
}

#[test]
fn responses_whose_hosts_forget_their_rules_stay_on_time() {
    let mut all = Outcome::default();
    cases(150, |random| {
        // Without a loss: a response that waits would have the time of many retransmission timers.
        let conditions = Conditions { forgotten: 100, ..Conditions::CLEAN };
        let plan = Plan { read_every_us: 0, ..plan(random, conditions) };
        let (clients, requests) = (plan.clients, plan.requests);
        let outcome = Simulation::new(plan.clone(), random.clone()).run();
        let relayed =
            Simulation::new(Plan { splices: false, ..plan.clone() }, random.clone()).run();
        assert_eq!(outcome.responses, clients * requests);
        // A delayed acknowledgement, and a timer for each response.
        let most_ms = 2 * relayed.took_ms + 300 * requests as u64;
        assert!(outcome.took_ms <= most_ms, "{outcome:?} {relayed:?} {plan:?}");
        all.forwarded += outcome.forwarded;
        all.heads += outcome.heads;
    });
    assert!(all.forwarded > 0, "{all:?}");
}

#[test]
fn segments_that_left_before_a_flow_was_opened_stop_nothing() {
    let mut all = Outcome::default();
    cases(300, |random| {
        let conditions = Conditions { unseen: 500, ..Conditions::CLEAN };
        let plan = plan(random, conditions);
        let (clients, requests) = (plan.clients, plan.requests);
        let outcome = Simulation::new(plan, random.clone()).run();
        assert_eq!(outcome.responses, clients * requests);
        all.unseen += outcome.unseen;
        all.spliced += outcome.spliced;
    });
    assert!(all.unseen > 0 && all.spliced > 0, "{all:?}");
}

#[test]
fn forged_segments_change_no_byte_and_stop_nothing() {
    cases(150, |random| {
        let conditions = Conditions { lost: 10, forged: 200, ..Conditions::CLEAN };
        let plan = plan(random, conditions);
        let (clients, requests) = (plan.clients, plan.requests);
        let outcome = Simulation::new(plan, random.clone()).run();
        assert_eq!(outcome.responses, clients * requests);
    });
}
