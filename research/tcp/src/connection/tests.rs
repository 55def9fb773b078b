//! Cases from the RFCs, with each segment written by hand.

use bytes::Bytes;

use super::*;
use crate::segment::{Range, SackBlocks, Timestamps, Transmit};

const ACK: TcpFlags = TcpFlags::ACK;
const SYN: TcpFlags = TcpFlags::SYN;
const RST: TcpFlags = TcpFlags::RST;
const FIN_ACK: TcpFlags = TcpFlags(TcpFlags::FIN.0 | ACK.0);
const SYN_ACK: TcpFlags = TcpFlags(SYN.0 | ACK.0);
/// Initial sequence numbers of this end and of the peer: bytes start one later.
const OWN: SeqNumber = SeqNumber(u32::MAX - 1);
const PEER: SeqNumber = SeqNumber(7000);

/// A connection and a scripted peer; sequence numbers are relative to SYN.
struct Tested {
    connection: Connection<Bytes>,
    now: Time,
    /// Window that the peer announces.
    window: u16,
}

/// A sent segment: flags, relative sequence and acknowledgement number, payload.
type Seen = (TcpFlags, i32, i32, String);

fn seen(flags: TcpFlags, seq: i32, ack: i32, payload: &str) -> Seen {
    (flags, seq, ack, payload.to_owned())
}

fn plain() -> Config {
    Config { timestamps: false, mss_bytes: 1000, ..Config::default() }
}

impl Tested {
    fn new(connection: Connection<Bytes>) -> Tested {
        Tested { connection, now: Time::from_ms(1000), window: 60_000 }
    }

    /// A connection opened by the peer, without timestamps.
    fn accepted(config: Config) -> Tested {
        let syn = Header {
            seq: PEER,
            flags: SYN,
            window: 60_000,
            mss: Some(1000),
            sack_permitted: true,
            ..Header::default()
        };
        let now = Time::from_ms(1000);
        let mut tested = Tested::new(Connection::accept(config, now, OWN, &syn).unwrap());
        assert_eq!(tested.take(), Some(seen(SYN_ACK, 0, 1, "")));
        tested.pass_ms(10);
        tested.give(ACK, 1, 1, "");
        assert_eq!(tested.connection.state(), State::Established);
        tested
    }

    fn asking(config: Config) -> Tested {
        let mut tested = Tested::new(Connection::connect(config, Time::from_ms(1000), OWN));
        assert_eq!(tested.take().unwrap().0, SYN);
        tested
    }

    fn header(&self, flags: TcpFlags, seq: i32, ack: i32) -> Header {
        Header {
            seq: PEER + seq as u32,
            ack: OWN + ack as u32,
            flags,
            window: self.window,
            ..Header::default()
        }
    }

    fn give(&mut self, flags: TcpFlags, seq: i32, ack: i32, payload: &str) {
        let header = self.header(flags, seq, ack);
        self.give_header(header, payload);
    }

    fn give_header(&mut self, header: Header, payload: &str) {
        let mut pieces = match payload {
            "" => vec![],
            text => vec![Bytes::copy_from_slice(text.as_bytes())],
        };
        self.connection.receive(self.now, &header, &mut pieces);
        assert!(pieces.is_empty());
    }

    fn transmit(&mut self) -> Option<(Transmit, Vec<u8>)> {
        let mut gather = Vec::new();
        let segment = self.connection.poll_transmit(self.now, &mut gather)?;
        let payload = gather.concat();
        assert_eq!(payload.len(), segment.payload_bytes as usize);
        Some((segment, payload))
    }

    fn take(&mut self) -> Option<Seen> {
        let (Transmit { header, .. }, payload) = self.transmit()?;
        let ack = if header.has(ACK) { header.ack.since(PEER) } else { 0 };
        let flags = TcpFlags(header.flags.0 & !TcpFlags::PSH.0);
        Some((flags, header.seq.since(OWN), ack, String::from_utf8(payload).unwrap()))
    }

    fn take_all(&mut self) -> Vec<Seen> {
        core::iter::from_fn(|| self.take()).collect()
    }

    fn send(&mut self, text: &str) {
        self.connection.send(Bytes::copy_from_slice(text.as_bytes())).unwrap();
    }

    fn send_bytes(&mut self, count: usize) {
        self.connection.send(Bytes::from(vec![b'.'; count])).unwrap();
    }

    fn read(&mut self) -> String {
        let mut all = Vec::new();
        while let Some((_, part)) = self.connection.read() {
            all.extend_from_slice(&part);
        }
        String::from_utf8(all).unwrap()
    }

    /// Advances to the next timer, and returns the segments sent then.
    fn wait(&mut self) -> Vec<Seen> {
        self.now = self.connection.poll_timeout().expect("a timer");
        self.connection.handle_timeout(self.now);
        self.take_all()
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now = Time::from_ns(self.now.ns() + ms * 1_000_000);
        self.connection.handle_timeout(self.now);
    }

    fn sack(&mut self, ack: i32, blocks: &[(u32, u32)]) {
        let mut header = self.header(ACK, 1, ack);
        let mut sack = SackBlocks::default();
        for &(start, end) in blocks {
            assert!(sack.push(Range { start: OWN + start, end: OWN + end }));
        }
        header.sack = sack;
        self.give_header(header, "");
    }
}

#[test]
fn active_open() {
    let mut tested = Tested::asking(plain());
    tested.give(SYN_ACK, 0, 1, "");
    assert_eq!(tested.connection.state(), State::Established);
    assert_eq!(tested.take_all(), [seen(ACK, 1, 1, "")]);
}

#[test]
fn syn_is_sent_again_and_given_up() {
    let mut tested = Tested::asking(plain());
    let mut seconds = Vec::new();
    for _ in 0..6 {
        let before = tested.now;
        assert_eq!(tested.wait(), [seen(SYN, 0, 0, "")]);
        seconds.push(tested.now.ns_since(before) / 1_000_000_000);
    }
    assert_eq!(seconds, [1, 2, 4, 8, 16, 32]);
    assert_eq!(tested.wait(), []);
    assert_eq!(tested.connection.error(), Some(ConnectionError::TimedOut));
}

#[test]
fn simultaneous_open() {
    let mut tested = Tested::asking(plain());
    tested.give(SYN, 0, 0, "");
    assert_eq!(tested.connection.state(), State::SynReceived);
    assert_eq!(tested.take_all(), [seen(SYN_ACK, 0, 1, "")]);
    tested.give(SYN_ACK, 0, 1, "");
    assert_eq!(tested.connection.state(), State::Established);
    assert_eq!(tested.take_all(), [seen(ACK, 1, 1, "")]);
}

#[test]
fn an_old_syn_ack_is_reset_and_the_right_one_counts() {
    // RFC 9293 §3.5.2, figure 9: acknowledgements of another incarnation.
    let mut tested = Tested::asking(plain());
    tested.give(SYN_ACK, 0, 77, "");
    assert_eq!(tested.take_all(), [seen(RST, 77, 0, "")]);
    tested.give(RST, 0, 0, "");
    assert_eq!(tested.connection.state(), State::SynSent, "a reset has to acknowledge SYN");
    tested.give(SYN_ACK, 0, 1, "");
    assert_eq!(tested.connection.state(), State::Established);
}

#[test]
fn a_refusal_is_told() {
    let mut tested = Tested::asking(plain());
    tested.give(TcpFlags(RST.0 | ACK.0), 0, 1, "");
    assert_eq!(tested.connection.state(), State::Closed);
    assert_eq!(tested.connection.error(), Some(ConnectionError::Refused));
}

#[test]
fn bytes_with_syn_arrive_once() {
    let mut tested = Tested::asking(plain());
    tested.give(SYN_ACK, 0, 1, "early");
    assert_eq!(tested.take_all(), [seen(ACK, 1, 6, "")]);
    tested.give(ACK, 1, 1, "early and late");
    assert_eq!(tested.read(), "early and late");
    let syn = Header { seq: PEER, flags: SYN, window: 100, ..Header::default() };
    let now = Time::from_ms(1);
    let mut accepted = Tested::new(Connection::accept(plain(), now, OWN, &syn).unwrap());
    assert_eq!(accepted.take_all(), [seen(SYN_ACK, 0, 1, "")], "they are asked for again");
    accepted.give(SYN, 0, 0, "early");
    assert_eq!(accepted.take_all(), [seen(SYN_ACK, 0, 1, "")], "SYN came again");
    accepted.give(ACK, 1, 1, "early");
    assert_eq!(accepted.read(), "early");
}

#[test]
fn what_no_syn_is_is_not_accepted() {
    let of = |flags| {
        let header = Header { flags, ..Header::default() };
        Connection::<Bytes>::accept(plain(), Time::default(), OWN, &header).is_some()
    };
    assert!(of(SYN) && !of(SYN_ACK) && !of(ACK) && !of(TcpFlags(SYN.0 | RST.0)));
}

#[test]
fn a_wrong_acknowledgement_of_syn_is_reset() {
    let syn = Header { seq: PEER, flags: SYN, window: 100, ..Header::default() };
    let connection = Connection::accept(plain(), Time::default(), OWN, &syn).unwrap();
    let mut tested = Tested::new(connection);
    tested.take_all();
    tested.give(ACK, 1, 9, "");
    assert_eq!(tested.take_all(), [seen(RST, 9, 0, "")]);
    assert_eq!(tested.connection.state(), State::SynReceived);
}

#[test]
fn bytes_in_order_are_acknowledged_at_once_or_soon() {
    let mut tested = Tested::accepted(Config { mss_bytes: 100, ..plain() });
    let full = "x".repeat(100);
    // The first segments are acknowledged immediately.
    for number in 0..16 {
        tested.give(ACK, 1 + 100 * number, 1, &full);
        assert_eq!(tested.take_all(), [seen(ACK, 1, 101 + 100 * number, "")]);
    }
    tested.give(ACK, 1601, 1, &full);
    assert_eq!(tested.take_all(), []);
    tested.give(ACK, 1701, 1, &full);
    assert_eq!(tested.take_all(), [seen(ACK, 1, 1801, "")], "every second segment");
    tested.give(ACK, 1801, 1, "little");
    assert_eq!(tested.take_all(), []);
    let before = tested.now;
    assert_eq!(tested.wait(), [seen(ACK, 1, 1807, "")]);
    assert_eq!(tested.now.ns_since(before), 40_000_000);
    // Several coalesced segments cause one acknowledgement.
    tested.give(ACK, 1807, 1, &"y".repeat(1000));
    assert_eq!(tested.take_all(), [seen(ACK, 1, 2807, "")]);
}

#[test]
fn a_hole_is_told_at_once_and_filled() {
    let mut tested = Tested::accepted(plain());
    tested.give(ACK, 4, 1, "def");
    let (segment, _) = tested.transmit().unwrap();
    assert_eq!(segment.header.ack, PEER + 1);
    let due = Range { start: PEER + 4, end: PEER + 7 };
    assert_eq!(segment.header.sack.as_slice(), [due]);
    tested.give(ACK, 1, 1, "abc");
    let (segment, _) = tested.transmit().unwrap();
    assert_eq!((segment.header.ack, segment.header.sack.is_empty()), (PEER + 7, true));
    assert_eq!(tested.read(), "abcdef");
}

#[test]
fn a_duplicate_is_told_with_its_bytes() {
    let mut tested = Tested::accepted(plain());
    tested.give(ACK, 1, 1, "abcdef");
    tested.take_all();
    tested.give(ACK, 3, 1, "cd");
    let (segment, _) = tested.transmit().unwrap();
    let due = Range { start: PEER + 3, end: PEER + 5 };
    assert_eq!((segment.header.ack, segment.header.sack.as_slice()), (PEER + 7, &[due][..]));
}

#[test]
fn bytes_outside_of_the_window_are_refused_and_the_window_is_told() {
    let mut tested = Tested::accepted(Config { receive_buffer_bytes: 10, ..plain() });
    tested.give(ACK, 11, 1, "beyond");
    assert_eq!(tested.take_all(), [seen(ACK, 1, 1, "")]);
    assert_eq!(tested.connection.stats().unacceptable_in, 1);
    tested.give(ACK, 5, 1, "efghijklmn");
    tested.give(ACK, 1, 1, "abcd");
    assert_eq!(tested.read(), "abcdefghij");
}

#[test]
fn a_full_window_closes_and_opens_again() {
    let mut tested = Tested::accepted(Config { receive_buffer_bytes: 10, ..plain() });
    tested.give(ACK, 1, 1, "abcdefghij");
    let (closed, _) = tested.transmit().unwrap();
    assert_eq!((closed.header.ack, closed.header.window), (PEER + 11, 0));
    // A segment outside of the window is rejected, but its acknowledgement is used.
    tested.send("answer");
    assert_eq!(tested.take_all(), [seen(ACK, 1, 11, "answer")]);
    tested.give(ACK, 11, 7, "k");
    assert_eq!(tested.connection.acknowledged(), OWN + 7);
    assert_eq!(tested.take_all(), [seen(ACK, 7, 11, "")]);
    assert_eq!(tested.read(), "abcdefghij");
    let (open, _) = tested.transmit().unwrap();
    assert_eq!((open.header.ack, open.header.window), (PEER + 11, 10));
}

#[test]
fn the_announced_edge_never_goes_back() {
    let mut tested = Tested::accepted(Config { receive_buffer_bytes: 1000, ..plain() });
    let mut edge = 1001;
    for number in 0..9 {
        tested.give(ACK, 1 + 100 * number, 1, &"x".repeat(100));
        if number == 4 {
            assert_eq!(tested.read().len(), 500);
        }
        while let Some((segment, _)) = tested.transmit() {
            let header = segment.header;
            let told = header.ack.since(PEER) + i32::from(header.window);
            assert!(told >= edge, "{told}");
            edge = told;
        }
    }
    assert!(edge >= 1501);
}

#[test]
fn a_closed_window_is_probed_for_ever_while_the_peer_answers() {
    let mut tested = Tested::accepted(plain());
    tested.window = 0;
    tested.give(ACK, 1, 1, "");
    tested.send("waiting");
    assert_eq!(tested.take_all(), []);
    for _ in 0..30 {
        // A byte that the peer already has: it answers, since that byte is outside of its window.
        assert_eq!(tested.wait(), [seen(ACK, 0, 1, "")]);
        tested.give(ACK, 1, 1, "");
    }
    assert!(tested.now > Time::from_ms(1_000_000));
    tested.window = 3;
    tested.give(ACK, 1, 1, "");
    assert_eq!(tested.take_all(), [], "little is not sent at once");
    assert_eq!(tested.wait(), [seen(ACK, 1, 1, "wai")]);
    tested.window = 100;
    tested.give(ACK, 1, 4, "");
    assert_eq!(tested.take_all(), [seen(ACK, 4, 1, "ting")]);
}

#[test]
fn a_peer_that_answers_no_probe_is_given_up() {
    let mut tested = Tested::accepted(plain());
    tested.window = 0;
    tested.give(ACK, 1, 1, "");
    tested.send("waiting");
    assert_eq!(tested.take_all(), []);
    for _ in 0..30 {
        if tested.connection.state() == State::Closed {
            break;
        }
        tested.wait();
    }
    assert_eq!(tested.connection.error(), Some(ConnectionError::TimedOut));
}

#[test]
fn a_window_that_shrinks_holds_back_and_loses_nothing() {
    let mut tested = Tested::accepted(plain());
    tested.send_bytes(3000);
    assert_eq!(tested.take_all().len(), 1);
    tested.send_bytes(3000);
    tested.window = 1000;
    tested.give(ACK, 1, 1001, "");
    assert_eq!(tested.take_all(), [], "2000 bytes are beyond the window");
    tested.window = 60_000;
    tested.give(ACK, 1, 3001, "");
    let sent = tested.take_all();
    assert_eq!((sent[0].1, sent[0].3.len()), (3001, 3000));
}

#[test]
fn segments_are_whole_but_for_the_last() {
    let mut tested = Tested::accepted(plain());
    tested.send_bytes(4300);
    let (segment, payload) = tested.transmit().unwrap();
    assert_eq!((payload.len(), segment.mss_bytes), (4300, 1000));
    assert!(segment.header.has(TcpFlags::PSH));
    tested.send_bytes(20_000);
    // The initial window is ten segments, of which four and a part are in flight.
    let (segment, payload) = tested.transmit().unwrap();
    assert_eq!(payload.len(), 5000);
    assert!(!segment.header.has(TcpFlags::PSH));
    assert!(tested.transmit().is_none());
}

#[test]
fn nagle_waits_with_short_segments() {
    let mut tested = Tested::accepted(Config { nagle: true, ..plain() });
    tested.send("a");
    assert_eq!(tested.take_all(), [seen(ACK, 1, 1, "a")]);
    tested.send("b");
    tested.send("c");
    assert_eq!(tested.take_all(), []);
    tested.give(ACK, 1, 2, "");
    assert_eq!(tested.take_all(), [seen(ACK, 2, 1, "bc")]);
}

#[test]
fn a_reset_counts_at_its_place_only() {
    // RFC 5961 §3.2.
    let mut tested = Tested::accepted(plain());
    tested.give(RST, 2, 0, "");
    assert_eq!(tested.take_all(), [seen(ACK, 1, 1, "")], "in the window: a challenge");
    tested.give(RST, 1_000_000_000, 0, "");
    assert_eq!(tested.take_all(), [], "outside: nothing");
    assert_eq!(tested.connection.state(), State::Established);
    tested.give(RST, 1, 0, "");
    assert_eq!(tested.connection.error(), Some(ConnectionError::Reset));
    assert_eq!(tested.take_all(), []);
}

#[test]
fn syn_in_a_connection_is_challenged() {
    // RFC 5961 §4.2.
    let mut tested = Tested::accepted(plain());
    for seq in [0, 1, 500] {
        tested.give(SYN, seq, 0, "");
        assert_eq!(tested.take_all(), [seen(ACK, 1, 1, "")]);
    }
    assert_eq!(tested.connection.state(), State::Established);
}

#[test]
fn acknowledgements_that_cannot_be_are_challenged() {
    // RFC 5961 §5.2.
    let mut tested = Tested::accepted(plain());
    tested.give(ACK, 1, 2, "ignored");
    assert_eq!(tested.take_all(), [seen(ACK, 1, 1, "")]);
    tested.give(ACK, 1, -70_000, "ignored");
    assert_eq!(tested.take_all(), [seen(ACK, 1, 1, "")]);
    assert_eq!(tested.read(), "");
    assert_eq!(tested.connection.stats().challenges_out, 2);
}

#[test]
fn challenges_are_limited() {
    let mut tested = Tested::accepted(plain());
    let mut answered = 0;
    for _ in 0..CHALLENGES_PER_S_MAX + 50 {
        tested.give(RST, 2, 0, "");
        answered += tested.take_all().len() as u32;
    }
    assert_eq!(answered, CHALLENGES_PER_S_MAX);
    tested.pass_ms(1000);
    tested.give(RST, 2, 0, "");
    assert_eq!(tested.take_all().len(), 1);
}

fn stamped(value: u32, echo: u32) -> Option<Timestamps> {
    Some(Timestamps { value, echo })
}

#[test]
fn an_old_clock_is_dropped_and_a_very_old_connection_goes_on() {
    // PAWS, RFC 7323 §5.3 and §5.5.
    let config = Config { timestamps: true, mss_bytes: 1000, ..Config::default() };
    let mut tested = Tested::asking(config);
    let syn_ack = tested.header(SYN_ACK, 0, 1);
    tested.give_header(Header { timestamps: stamped(100, 0), ..syn_ack }, "");
    tested.take_all();
    let give = |tested: &mut Tested, value, payload: &str| {
        let seq = 1 + tested.connection.stats().bytes_in as i32;
        let header = tested.header(ACK, seq, 1);
        tested.give_header(Header { timestamps: stamped(value, 0), ..header }, payload);
        tested.take_all().len()
    };
    assert_eq!(give(&mut tested, 105, "new"), 1);
    assert_eq!(give(&mut tested, 104, "old"), 1, "it is acknowledged");
    assert_eq!(give(&mut tested, 105, "same"), 1);
    assert_eq!(
        (tested.read().as_str(), tested.connection.stats().old_timestamps_in),
        ("newsame", 1)
    );
    let header = tested.header(ACK, 8, 1);
    tested.give_header(header, "without a clock");
    assert_eq!(tested.take_all(), [], "RFC 7323 §3.2");
    tested.now = Time::from_ns(tested.now.ns() + 25 * 24 * 3600 * 1_000_000_000);
    give(&mut tested, 3, "wrapped");
    assert_eq!(tested.read(), "wrapped");
}

#[test]
fn the_clock_of_a_segment_behind_a_hole_is_not_echoed() {
    // RFC 7323 §4.3: the echo is of the segment that the acknowledgement is for.
    let config = Config { timestamps: true, ..plain() };
    let mut tested = Tested::asking(config);
    let syn_ack = tested.header(SYN_ACK, 0, 1);
    tested.give_header(Header { timestamps: stamped(100, 0), ..syn_ack }, "");
    tested.take_all();
    let header = tested.header(ACK, 4, 1);
    tested.give_header(Header { timestamps: stamped(110, 0), ..header }, "def");
    let (segment, _) = tested.transmit().unwrap();
    assert_eq!(segment.header.timestamps.unwrap().echo, 100);
    let header = tested.header(ACK, 1, 1);
    tested.give_header(Header { timestamps: stamped(120, 0), ..header }, "abc");
    let (segment, _) = tested.transmit().unwrap();
    assert_eq!(segment.header.timestamps.unwrap().echo, 120);
}

#[test]
fn closing_here_first() {
    let mut tested = Tested::accepted(plain());
    tested.send("bye");
    tested.connection.close();
    assert_eq!(tested.connection.send(Bytes::from_static(b"x")), Err(SendError::Closed));
    assert_eq!(tested.take_all(), [seen(FIN_ACK, 1, 1, "bye")]);
    assert_eq!(tested.connection.state(), State::FinWait1);
    tested.give(ACK, 1, 5, "");
    assert_eq!(tested.connection.state(), State::FinWait2);
    tested.give(ACK, 1, 5, "still");
    tested.give(FIN_ACK, 6, 5, "");
    assert_eq!(tested.connection.state(), State::TimeWait);
    assert_eq!(tested.take_all(), [seen(ACK, 5, 7, "")]);
    assert_eq!(tested.read(), "still");
    assert!(tested.connection.is_read_to_end());
    // A repeated FIN: the acknowledgement was lost. A reset is ignored (RFC 1337).
    tested.give(FIN_ACK, 6, 5, "");
    assert_eq!(tested.take_all(), [seen(ACK, 5, 7, "")]);
    tested.give(RST, 7, 0, "");
    assert_eq!(tested.connection.state(), State::TimeWait);
    let before = tested.now;
    assert_eq!(tested.wait(), []);
    assert_eq!(tested.now.ns_since(before), 60_000_000_000);
    assert_eq!((tested.connection.state(), tested.connection.error()), (State::Closed, None));
}

#[test]
fn closing_there_first() {
    let mut tested = Tested::accepted(plain());
    tested.give(FIN_ACK, 1, 1, "bye");
    assert_eq!(tested.connection.state(), State::CloseWait);
    assert_eq!(tested.take_all(), [seen(ACK, 1, 5, "")]);
    tested.send("still");
    assert_eq!(tested.take_all(), [seen(ACK, 1, 5, "still")]);
    tested.connection.close();
    assert_eq!(tested.take_all(), [seen(FIN_ACK, 6, 5, "")]);
    assert_eq!(tested.connection.state(), State::LastAck);
    tested.give(ACK, 5, 7, "");
    assert_eq!((tested.connection.state(), tested.connection.error()), (State::Closed, None));
    assert_eq!(tested.read(), "bye");
}

#[test]
fn closing_at_once() {
    let mut tested = Tested::accepted(plain());
    tested.connection.close();
    assert_eq!(tested.take_all(), [seen(FIN_ACK, 1, 1, "")]);
    tested.give(FIN_ACK, 1, 1, "");
    assert_eq!(tested.connection.state(), State::Closing);
    assert_eq!(tested.take_all(), [seen(ACK, 2, 2, "")]);
    tested.give(ACK, 2, 2, "");
    assert_eq!(tested.connection.state(), State::TimeWait);
}

#[test]
fn fin_is_sent_again() {
    let mut tested = Tested::accepted(plain());
    tested.send("x");
    assert_eq!(tested.take_all().len(), 1);
    tested.give(ACK, 1, 2, "");
    tested.connection.close();
    assert_eq!(tested.take_all(), [seen(FIN_ACK, 2, 1, "")]);
    let again = loop {
        let sent = tested.wait();
        if !sent.is_empty() {
            break sent;
        }
    };
    assert_eq!(again, [seen(FIN_ACK, 2, 1, "")]);
    tested.give(ACK, 1, 3, "");
    assert_eq!(tested.connection.state(), State::FinWait2);
}

#[test]
fn fin_behind_a_hole_waits() {
    let mut tested = Tested::accepted(plain());
    tested.give(FIN_ACK, 4, 1, "def");
    assert_eq!(tested.connection.state(), State::Established);
    tested.give(ACK, 1, 1, "abc");
    assert_eq!(tested.connection.state(), State::CloseWait);
    assert_eq!(tested.take().unwrap().2, 8);
    assert_eq!(tested.read(), "abcdef");
}

#[test]
fn an_abort_is_told_and_a_closed_connection_resets() {
    let mut tested = Tested::accepted(plain());
    tested.send("never sent");
    tested.connection.abort();
    let reset = TcpFlags(RST.0 | ACK.0);
    assert_eq!(tested.take_all(), [seen(reset, 1, 1, "")]);
    assert_eq!(tested.connection.error(), Some(ConnectionError::Aborted));
    tested.give(ACK, 1, 1, "late");
    assert_eq!(tested.take_all(), [seen(RST, 1, 0, "")]);
    tested.give(RST, 1, 1, "");
    assert_eq!(tested.take_all(), []);
}

#[test]
fn a_lost_segment_is_sent_again_after_three_behind_it() {
    let mut tested = Tested::accepted(plain());
    tested.send_bytes(6000);
    assert_eq!(tested.take_all().len(), 1);
    tested.pass_ms(10);
    for behind in [3000, 4000] {
        tested.sack(1001, &[(2001, behind + 1)]);
        assert_eq!(tested.take_all(), []);
    }
    tested.sack(1001, &[(2001, 5001)]);
    let again = tested.take_all();
    assert_eq!((again.len(), again[0].1, again[0].3.len()), (1, 1001, 1000));
    let stats = tested.connection.stats();
    assert_eq!((stats.recoveries, stats.retransmitted_bytes, stats.timeouts), (1, 1000, 0));
    tested.give(ACK, 1, 6001, "");
    assert_eq!(tested.connection.phase, RecoveryPhase::Open);
}

#[test]
fn without_selective_acknowledgements_three_repeated_ones_do() {
    let mut tested = Tested::accepted(Config { sack: false, ..plain() });
    tested.send_bytes(6000);
    assert_eq!(tested.take_all().len(), 1);
    for repeated in 1..=3 {
        assert_eq!(tested.take_all(), [], "{repeated}");
        tested.give(ACK, 1, 1, "");
    }
    let again = tested.take_all();
    assert_eq!((again.len(), again[0].1, again[0].3.len()), (1, 1, 1000));
    // RFC 6582: after a partial acknowledgement the next segment is lost too.
    tested.give(ACK, 1, 2001, "");
    let again = tested.take_all();
    assert_eq!((again[0].1, again[0].3.len()), (2001, 1000));
    tested.give(ACK, 1, 6001, "");
    assert_eq!(tested.connection.phase, RecoveryPhase::Open);
}

#[test]
fn a_lost_tail_is_probed_before_the_timer() {
    let mut tested = Tested::accepted(plain());
    tested.send_bytes(1000);
    tested.take_all();
    tested.pass_ms(20);
    tested.give(ACK, 1, 1001, "");
    tested.send_bytes(5000);
    tested.take_all();
    let before = tested.now;
    let probe = tested.wait();
    let waited_ms = tested.now.ns_since(before) / 1_000_000;
    assert!(waited_ms < 60, "{waited_ms}");
    assert_eq!((probe.len(), probe[0].1, probe[0].3.len()), (1, 5001, 1000));
    // The probe is acknowledged: all bytes before it are lost.
    tested.pass_ms(20);
    tested.sack(1001, &[(5001, 6001)]);
    tested.pass_ms(20);
    let sent: usize = tested.take_all().iter().map(|again| again.3.len()).sum();
    let stats = tested.connection.stats();
    assert!(sent >= 1000, "{stats:?}");
    assert_eq!((stats.timeouts, stats.tail_probes, stats.recoveries), (0, 1, 1));
}

#[test]
fn the_timer_sends_one_segment_and_backs_off() {
    let mut tested = Tested::accepted(plain());
    tested.send_bytes(5000);
    tested.take_all();
    let mut waits_ms = Vec::new();
    for _ in 0..4 {
        let before = tested.now;
        let again = loop {
            let sent = tested.wait();
            if tested.connection.stats().timeouts as usize > waits_ms.len() {
                break sent;
            }
        };
        assert_eq!((again.len(), again[0].1, again[0].3.len()), (1, 1, 1000));
        waits_ms.push(tested.now.ns_since(before) / 1_000_000);
    }
    assert!(waits_ms[3] >= 7 * waits_ms[0], "{waits_ms:?}");
    assert!(tested.now < Time::from_ms(1_000_000));
}

#[test]
fn a_peer_that_acknowledges_nothing_is_given_up() {
    let mut tested = Tested::accepted(plain());
    tested.send("nobody hears");
    let before = tested.now;
    tested.take_all();
    let last = loop {
        let sent = tested.wait();
        if tested.connection.state() == State::Closed {
            break sent;
        }
    };
    assert_eq!(tested.connection.error(), Some(ConnectionError::TimedOut));
    assert_eq!(last.len(), 1, "a reset");
    assert!(tested.now.ns_since(before) >= 300_000_000_000);
}

#[test]
fn a_silent_peer_is_asked_and_given_up() {
    let keepalive = Some(core::time::Duration::from_secs(10));
    let mut tested = Tested::accepted(Config { keepalive, ..plain() });
    assert_eq!(tested.wait(), [seen(ACK, 0, 1, "")]);
    tested.give(ACK, 1, 1, "");
    let mut asked = 0;
    while tested.connection.state() != State::Closed {
        asked += tested.wait().len();
    }
    assert_eq!(tested.connection.error(), Some(ConnectionError::TimedOut));
    assert!((7..=9).contains(&asked), "{asked}");
}

#[test]
fn bytes_that_are_not_acknowledged_can_be_had_again() {
    let mut tested = Tested::accepted(plain());
    let start = tested.connection.send(Bytes::from_static(b"first ")).unwrap();
    tested.connection.send(Bytes::from_static(b"second")).unwrap();
    tested.take_all();
    assert_eq!(start, OWN + 1);
    tested.give(ACK, 1, 4, "");
    assert_eq!(tested.connection.acknowledged(), OWN + 4);
    let mut out = Vec::new();
    let bytes = tested.connection.unacknowledged(start, start + 12, &mut out);
    assert_eq!((bytes, out.concat().as_slice()), (12, &b"first second"[..]));
}

#[test]
fn segments_with_blocks_leave_room_for_them() {
    let mut tested = Tested::accepted(plain());
    tested.give(ACK, 4, 1, "def");
    tested.send_bytes(3000);
    let (segment, _) = tested.transmit().unwrap();
    assert_eq!(segment.mss_bytes, 1000 - 12);
    assert_eq!(segment.header.sack.as_slice().len(), 1);
}
