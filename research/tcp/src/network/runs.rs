//! Simulated transfers under different network conditions.

use core::time::Duration;

use unlade_testkit::{Random, cases};

use super::{Habits, Network, NetworkConditions};
use crate::{Algorithm, Config};

const READS_AT_ONCE: Habits =
    Habits { total: 0, piece_max: 20_000, read_every_us: 0, read_buffers: 0, closes_last: true };

fn sends(total: u64) -> Habits {
    Habits { total, closes_last: total == 0, ..READS_AT_ONCE }
}

fn any_config(random: &mut Random) -> Config {
    let pick = |random: &mut Random, all: &[u32]| all[random.below(all.len() as u64) as usize];
    Config {
        mss_bytes: pick(random, &[1460, 1460, 8960, 536, 100]) as u16,
        receive_buffer_bytes: pick(random, &[4 << 20, 1 << 20, 65_535, 10_000, 3000, 700]),
        send_buffer_bytes: pick(random, &[4 << 20, 1 << 20, 100_000, 5000]),
        send_pieces_max: pick(random, &[16_384, 20]) as usize,
        super_segment_bytes: pick(random, &[65_415, 65_415, 10_000, 1448]),
        gather_pieces_max: pick(random, &[64, 64, 3, 1]) as usize,
        algorithm: if random.once_in(3) { Algorithm::NewReno } else { Algorithm::Cubic },
        timestamps: !random.once_in(4),
        sack: !random.once_in(4),
        nagle: random.once_in(4),
        keepalive: random.once_in(4).then_some(Duration::from_secs(5)),
        timestamp_offset: random.next() as u32,
        ..Config::default()
    }
}

fn any_habits(random: &mut Random, closes_last: bool) -> Habits {
    let total_max = if random.once_in(3) { 1_000_000 } else { 60_000 };
    let piece_max = if random.once_in(3) { 300 } else { 30_000 };
    Habits {
        total: random.below(total_max),
        piece_max: 1 + random.below(piece_max) as usize,
        read_every_us: if random.once_in(2) { 0 } else { random.below(20_000) },
        read_buffers: 1 + random.below(50) as usize,
        closes_last,
    }
}

fn any_conditions(random: &mut Random) -> NetworkConditions {
    let bad = random.below(4);
    NetworkConditions {
        lost: random.below(1 + bad * 33),
        doubled: random.below(1 + bad * 20),
        late: random.below(1 + bad * 50),
        delay_us: 20 + random.below(20_000),
        jitter_us: if random.once_in(2) { 0 } else { random.below(3000) },
        coalesced: random.once_in(2),
    }
}

#[test]
fn every_byte_arrives_once_in_order_in_any_weather() {
    cases(400, any_case);
}

/// Random ends on a random network.
pub(crate) fn any_case(random: &mut Random) {
    let configs = [any_config(random), any_config(random)];
    let last = random.below(3);
    let habits = [any_habits(random, last == 0), any_habits(random, last == 1)];
    let (weather, both_ask) = (any_conditions(random), random.once_in(5));
    let mut network = Network::new(configs, habits, weather, both_ask, random.next());
    network.run(20_000);
}

#[test]
fn nothing_is_sent_twice_in_fair_weather() {
    let habits = [sends(8_000_000), sends(3_000_000)];
    let mut network =
        Network::new([Config::default(); 2], habits, NetworkConditions::FAIR, false, 1);
    network.run(60);
    for end in &network.ends {
        let stats = end.connection.stats();
        assert_eq!((stats.retransmitted_bytes, stats.timeouts, stats.recoveries), (0, 0, 0));
        assert_eq!(stats.out_of_order_in, 0);
    }
}

#[test]
fn bulk_is_predicted_and_sent_in_large_segments() {
    let habits = [sends(50_000_000), sends(0)];
    let weather = NetworkConditions { coalesced: true, ..NetworkConditions::FAIR };
    let mut network = Network::new([Config::default(); 2], habits, weather, false, 1);
    network.run(60);
    let [sender, receiver] = &network.ends;
    let (sent, received) = (sender.connection.stats(), receiver.connection.stats());
    assert!(sent.bytes_out / sent.segments_out > 30_000, "{sent:?}");
    for stats in [sent, received] {
        assert!(stats.predicted_in * 100 >= stats.segments_in * 90, "{stats:?}");
    }
}

#[test]
fn reordering_is_not_taken_for_loss() {
    // Every packet is delayed randomly within a quarter of the round-trip time.
    let weather =
        NetworkConditions { delay_us: 10_000, jitter_us: 2000, ..NetworkConditions::FAIR };
    let habits = [sends(5_000_000), sends(0)];
    let mut network = Network::new([Config::default(); 2], habits, weather, false, 3);
    network.run(600);
    let stats = network.ends[0].connection.stats();
    let share = stats.retransmitted_bytes as f64 / 5e6;
    assert!(network.ends[1].connection.stats().out_of_order_in > 500);
    assert!(share < 0.02, "{share}: {stats:?}");
}

#[test]
fn loss_is_repaired_without_the_timer() {
    let weather = NetworkConditions { lost: 10, delay_us: 5000, ..NetworkConditions::FAIR };
    let habits = [sends(5_000_000), sends(0)];
    let mut network = Network::new([Config::default(); 2], habits, weather, false, 4);
    network.run(600);
    let stats = network.ends[0].connection.stats();
    assert!(stats.recoveries > 5, "{stats:?}");
    assert!(stats.timeouts <= 2, "{stats:?}");
    // Approximately the lost bytes.
    assert!((30_000..150_000).contains(&stats.retransmitted_bytes), "{stats:?}");
}

#[test]
fn peers_without_options_lose_nothing() {
    cases(60, |random| {
        let weather =
            NetworkConditions { lost: 30, late: 20, delay_us: 3000, ..NetworkConditions::FAIR };
        let plain = Config {
            timestamps: false,
            sack: false,
            receive_buffer_bytes: 60_000,
            algorithm: Algorithm::NewReno,
            ..Config::default()
        };
        let habits = [sends(300_000), sends(100_000)];
        let mut network = Network::new([plain; 2], habits, weather, false, random.next());
        network.run(2000);
    });
}
