//! The scoreboard against a slow oracle that tracks each byte, and hand-written RACK cases.

use unlade_testkit::{Random, cases};

use super::*;

const START: SeqNumber = SeqNumber(u32::MAX - 5000);
const MSS: u32 = 100;
const RTT_NS: u64 = 10_000_000;

fn range(start: u32, end: u32) -> Range {
    Range { start: START + start, end: START + end }
}

fn path(ms: u64) -> Path {
    Path { now: Time::from_ms(ms), min_rtt_ns: RTT_NS, smoothed_ns: RTT_NS, recovering: false }
}

/// A scoreboard with the given number of segments, sent at once.
fn board(segments: u32) -> Scoreboard {
    let mut board = Scoreboard::new(START, MSS);
    board.sent(Time::from_ms(0), range(0, segments * MSS));
    board
}

fn acknowledge(board: &mut Scoreboard, ms: u64, ack: u32, blocks: &[(u32, u32)]) -> Delivered {
    let blocks: Vec<_> = blocks.iter().map(|&(start, end)| range(start, end)).collect();
    board.acknowledge(path(ms), START + ack, &blocks, |_| false)
}

fn lost(board: &Scoreboard) -> Vec<(i32, i32)> {
    let all = board.entries.iter().filter(|entry| entry.fate == Fate::Lost);
    all.map(|e| (e.range.start.since(START), e.range.end.since(START))).collect()
}

#[test]
fn a_hole_in_a_super_segment_is_lost_after_three_segments_behind_it() {
    let mut board = board(10);
    for behind in 1..=3 {
        acknowledge(&mut board, 10, 100, &[(200, 200 + behind * 100)]);
        let (bytes, next) = board.detect(path(10));
        if behind < 3 {
            assert_eq!(bytes, 0);
            assert_eq!(next.ns(), RTT_NS + RTT_NS / 4, "reordering is waited for");
        } else {
            assert_eq!((bytes, lost(&board)), (100, vec![(100, 200)]));
        }
    }
    assert_eq!((board.lost(), board.sacked(), board.in_flight()), (100, 300, 500));
}

#[test]
fn a_hole_is_lost_when_a_quarter_round_trip_is_over() {
    let mut board = board(10);
    acknowledge(&mut board, 10, 100, &[(200, 300)]);
    let (bytes, due) = board.detect(path(10));
    assert_eq!(bytes, 0);
    let path = Path { now: due, ..path(0) };
    assert_eq!(board.detect(path), (100, Time::NEVER));
}

#[test]
fn what_was_sent_again_is_lost_again_when_what_was_sent_later_arrives() {
    let mut board = board(10);
    acknowledge(&mut board, 10, 0, &[(500, 1000)]);
    board.detect(path(10));
    assert_eq!(board.send_again(Time::from_ms(10), 200), Some(range(0, 200)));
    assert_eq!(board.send_again(Time::from_ms(11), 1000), Some(range(200, 500)));
    assert_eq!((board.lost(), board.send_again(Time::from_ms(11), 100)), (0, None));
    acknowledge(&mut board, 21, 0, &[(200, 1000)]);
    let recovering = Path { recovering: true, ..path(21) };
    assert_eq!(board.detect(recovering).0, 200);
    assert_eq!(lost(&board), [(0, 200)]);
}

#[test]
fn an_arrival_of_the_first_copy_says_nothing_of_the_second() {
    let mut board = board(10);
    acknowledge(&mut board, 10, 0, &[(500, 1000)]);
    board.detect(path(10));
    board.send_again(Time::from_ms(30), 100);
    // The echoed timestamp is older than the retransmission.
    let blocks = [range(0, 100), range(500, 1000)];
    let before = (board.latest_at, board.latest_end);
    let said = board.acknowledge(path(31), START, &blocks, |at| at >= Time::from_ms(30));
    assert_eq!((said.rtt_ns, said.bytes), (None, 100));
    assert_eq!((board.latest_at, board.latest_end), before);
}

#[test]
fn reordering_that_was_seen_is_waited_for() {
    let mut board = board(10);
    acknowledge(&mut board, 10, 100, &[(300, 400)]);
    acknowledge(&mut board, 10, 100, &[(200, 400)]);
    assert!(board.reordered);
    acknowledge(&mut board, 10, 400, &[(500, 900)]);
    let (bytes, next) = board.detect(path(10));
    assert_eq!((bytes, next.ns()), (0, RTT_NS + RTT_NS / 4), "not after three segments");
    for _ in 0..3 {
        board.wait_longer();
    }
    assert_eq!(board.detect(path(10)).1.ns(), 2 * RTT_NS);
    for _ in 0..16 {
        board.recovered();
    }
    assert_eq!(board.detect(path(10)).1.ns(), RTT_NS + RTT_NS / 4);
}

#[test]
fn duplicates_are_recognised() {
    let mut board = board(10);
    assert!(acknowledge(&mut board, 10, 200, &[(0, 100)]).duplicate);
    assert!(acknowledge(&mut board, 10, 200, &[(400, 500), (300, 600)]).duplicate);
    assert_eq!(board.sacked(), 300);
    assert!(!acknowledge(&mut board, 10, 200, &[(300, 600)]).duplicate);
}

#[test]
fn blocks_that_cannot_be_are_ignored() {
    let mut board = board(10);
    for block in [(500, 400), (500, 500), (900, 1100), (5000, 6000)] {
        assert_eq!(acknowledge(&mut board, 10, 100, &[block]).bytes % 100, 0);
        assert_eq!((board.sacked(), board.in_flight()), (0, 900), "{block:?}");
    }
    let backwards = range(300, 200);
    board.sack(path(10), backwards, &|_| false, &mut Delivered::default());
    assert_eq!(board.sacked(), 0);
}

#[test]
fn a_peer_that_acknowledges_every_other_byte_is_limited() {
    let mut board = board(1000);
    for number in 0..SCOREBOARD_ENTRIES_MAX as u32 {
        acknowledge(&mut board, 10, 0, &[(1 + 2 * number, 2 + 2 * number)]);
    }
    assert!(board.entries.len() <= SCOREBOARD_ENTRIES_MAX);
    assert!(board.ignored > 0);
    acknowledge(&mut board, 10, 100_000, &[]);
    assert!(board.entries.is_empty() && board.is_clean());
}

#[test]
fn after_a_timeout_nothing_counts_as_arrived() {
    let mut board = board(10);
    acknowledge(&mut board, 10, 100, &[(300, 400)]);
    board.lose_all();
    assert_eq!((board.lost(), board.sacked(), board.in_flight()), (900, 0, 0));
    // Entries that the block divided are sent together.
    assert_eq!(board.send_again(Time::from_ms(20), 10_000), Some(range(100, 1000)));
}

#[test]
fn a_probe_is_the_last_segment() {
    let mut board = board(10);
    assert_eq!(board.send_last(Time::from_ms(20), MSS), Some(range(900, 1000)));
    assert_eq!(board.entries.len(), 2);
    assert_eq!(board.in_flight(), 1000);
}

#[test]
fn what_did_not_leave_is_lost_still() {
    let mut board = board(10);
    board.lose_all();
    let whole = board.send_again(Time::from_ms(20), 1000).unwrap();
    board.cut_short(whole, 300);
    assert_eq!((lost(&board), board.in_flight()), (vec![(300, 1000)], 300));
}

/// State of each unacknowledged byte.
#[derive(Clone, Copy, Debug)]
struct Byte {
    at: Time,
    fate: Fate,
    again: bool,
}

impl Byte {
    fn time_out(&mut self) {
        if self.fate == Fate::Sacked {
            // The send time is unknown.
            (self.at, self.again) = (Time::default(), true);
        }
        self.fate = Fate::Lost;
    }
}

/// The scoreboard of RFC 8985, with each byte as a segment.
struct Oracle {
    bytes: VecDeque<Byte>,
    una: u32,
    latest: (Time, u32),
    latest_rtt_ns: u64,
    highest: u32,
    reordered: bool,
}

impl Oracle {
    fn arrive(&mut self, now: Time, index: usize, highest: u32) {
        let byte = self.bytes[index];
        let end = self.una + index as u32 + 1;
        if byte.fate == Fate::Sacked {
            return;
        }
        let rtt_ns = now.ns_since(byte.at);
        if byte.again && rtt_ns < RTT_NS {
            return;
        }
        if (byte.at, end) > self.latest {
            self.latest = (byte.at, end);
            self.latest_rtt_ns = rtt_ns;
        }
        self.reordered |= !byte.again && end < highest;
    }

    fn count(&self, fate: Fate) -> u32 {
        self.bytes.iter().filter(|byte| byte.fate == fate).count() as u32
    }

    fn detect(&mut self, now: Time) {
        let behind = self.count(Fate::Sacked).div_ceil(MSS);
        let reorder_ns = if !self.reordered && behind >= DUPLICATES { 0 } else { RTT_NS / 4 };
        for (index, byte) in self.bytes.iter_mut().enumerate() {
            let end = self.una + index as u32 + 1;
            let earlier = (byte.at, end) < self.latest;
            let over = byte.at.ns() + self.latest_rtt_ns + reorder_ns <= now.ns();
            if byte.fate == Fate::OnItsWay && earlier && over {
                byte.fate = Fate::Lost;
            }
        }
    }
}

pub(crate) fn compare(random: &mut Random) {
    let mut board = Scoreboard::new(START, MSS);
    let mut oracle = Oracle {
        bytes: VecDeque::new(),
        una: 0,
        latest: (Time::default(), 0),
        latest_rtt_ns: 0,
        highest: 0,
        reordered: false,
    };
    let mut now = Time::from_ms(1);
    let mut end = 0;
    for _ in 0..random.below(60) {
        now = now.after_ns(random.below(3 * RTT_NS));
        match random.below(4) {
            0 => {
                let bytes = 1 + random.below(400) as u32;
                board.sent(now, range(end, end + bytes));
                let new = Byte { at: now, fate: Fate::OnItsWay, again: false };
                oracle.bytes.extend((0..bytes).map(|_| new));
                end += bytes;
            }
            1 => send_again(random, &mut board, &mut oracle, now),
            2 if random.once_in(5) => {
                board.lose_all();
                oracle.bytes.iter_mut().for_each(Byte::time_out);
            }
            _ => acknowledge_both(random, &mut board, &mut oracle, now, end),
        }
        same(&board, &oracle);
    }
}

fn send_again(random: &mut Random, board: &mut Scoreboard, oracle: &mut Oracle, now: Time) {
    let most = 1 + random.below(300) as u32;
    let first = oracle.bytes.iter().position(|byte| byte.fate == Fate::Lost);
    let sent = board.send_again(now, most);
    assert_eq!(sent.map(|range| range.start), first.map(|at| START + oracle.una + at as u32));
    let Some(range) = sent else { return };
    let first = first.unwrap();
    let lost = oracle.bytes.iter().skip(first).take_while(|byte| byte.fate == Fate::Lost);
    assert!(range.bytes() >= 1 && range.bytes() <= most.min(lost.count() as u32));
    for byte in oracle.bytes.iter_mut().skip(first).take(range.bytes() as usize) {
        *byte = Byte { at: now, fate: Fate::OnItsWay, again: true };
    }
}

fn acknowledge_both(
    random: &mut Random,
    board: &mut Scoreboard,
    oracle: &mut Oracle,
    now: Time,
    end: u32,
) {
    let outstanding = u64::from(end - oracle.una);
    let acked = if random.once_in(2) { 0 } else { random.below(outstanding + 1) as u32 };
    let ack = oracle.una + acked;
    let mut blocks = Vec::new();
    for _ in 0..random.below(4) {
        let start = ack + random.below(u64::from(end - ack) + 1) as u32;
        let last = start + random.below(u64::from(end - start) + 1) as u32;
        if start > ack && last > start {
            blocks.push((start, last));
        }
    }
    // As a receiver reports them: no duplicate.
    blocks.truncate(1);
    let path = Path { now, ..path(0) };
    let told: Vec<_> = blocks.iter().map(|&(start, last)| range(start, last)).collect();
    board.acknowledge(path, START + ack, &told, |_| false);
    for index in 0..acked as usize {
        // Bytes acknowledged in order are never after delivered bytes of the same entry.
        oracle.arrive(now, index, oracle.highest);
    }
    oracle.bytes.drain(..acked as usize);
    oracle.una = ack;
    oracle.highest = oracle.highest.max(ack);
    for (start, last) in blocks {
        let highest = oracle.highest;
        for at in start..last {
            let index = (at - ack) as usize;
            oracle.arrive(now, index, highest);
            oracle.bytes[index].fate = Fate::Sacked;
        }
        oracle.highest = oracle.highest.max(last);
    }
    board.detect(path);
    oracle.detect(now);
}

fn same(board: &Scoreboard, oracle: &Oracle) {
    let mut at = START + oracle.una;
    let mut again = 0;
    for entry in &board.entries {
        assert_eq!(entry.range.start, at);
        assert!(entry.range.bytes() > 0);
        again += usize::from(entry.again);
        for number in 0..entry.range.bytes() {
            let byte = oracle.bytes[(at + number).since(START + oracle.una) as usize];
            assert_eq!(entry.fate, byte.fate, "byte {}", (at + number).since(START));
        }
        at = entry.range.end;
    }
    assert_eq!(at.since(START + oracle.una) as usize, oracle.bytes.len());
    assert_eq!(again, board.again);
    assert_eq!(board.in_flight(), oracle.count(Fate::OnItsWay));
    assert_eq!(board.lost(), oracle.count(Fate::Lost));
    assert_eq!(board.sacked(), oracle.count(Fate::Sacked));
}

#[test]
fn random_acknowledgements_end_as_the_oracle_says() {
    cases(20_000, compare);
}
