//! The balancer's side of a connection to a server.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use crate::clock::{Clock, PeerClock};
use crate::segment::{Segment, Timestamps, earlier, later};

/// Numbers that are further behind the next byte are not of this connection, or too old to matter.
const EDGE_BYTES_MAX: i32 = 1 << 30;

/// A connection of the balancer to a server. It lives as long as the connection, over any number of
/// responses that bypassed it.
///
/// Numbers of the response direction exist twice: the *server's*, and the *socket's*, which lack
/// the bytes that went to clients directly. All fields have the server's.
#[derive(Clone, Copy, Debug)]
pub struct ServerFlow {
    /// The server's number of a byte less the socket's.
    pub(crate) bypassed: u32,
    /// Behind the last byte that was given to the socket, in order.
    pub(crate) passed_end: SeqNumber,
    /// The newest acknowledgement that the server was sent.
    pub(crate) acked: SeqNumber,
    /// Behind the last byte that the server may send, whatever was lost of what it was told.
    pub(crate) granted: SeqNumber,
    /// Behind the last byte that the server may send by what it was told last.
    pub(crate) told: SeqNumber,
    /// Behind the last byte that the socket has room for.
    pub(crate) socket_edge: SeqNumber,
    /// Behind the last byte that the socket has sent.
    pub(crate) request_end: SeqNumber,
    /// The socket's window scale.
    pub(crate) scale: u8,
    /// Bytes that the server may send after a request, until a splice begins; 0: as many as the
    /// socket has room for.
    pub(crate) limit_bytes: u32,
    /// Behind the last of them.
    pub(crate) limit_end: SeqNumber,
    pub(crate) clock: Clock,
    pub(crate) peer_clock: PeerClock,
}

/// The values of a splice for a segment of the socket to the server, in the server's numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spliced {
    /// Behind the last byte that the client has room for.
    pub edge: SeqNumber,
    /// The client's newest acknowledgement.
    pub acked: SeqNumber,
    /// The newest value of the server's clock that the client has seen, if it is known.
    pub echo: Option<u32>,
}

impl ServerFlow {
    /// Creates the flow of a connection in which nothing but the SYNs was sent. `passed_end` and
    /// `request_end` are behind the two SYNs; `scale` is the socket's.
    pub fn new(passed_end: SeqNumber, request_end: SeqNumber, scale: u8) -> ServerFlow {
        ServerFlow {
            bypassed: 0,
            passed_end,
            acked: passed_end,
            granted: passed_end,
            told: passed_end,
            socket_edge: passed_end,
            request_end,
            scale,
            limit_bytes: 0,
            limit_end: passed_end,
            clock: Clock::default(),
            peer_clock: PeerClock::default(),
        }
    }

    /// Returns the server's number behind the last byte that was given to the socket.
    pub fn passed_end(&self) -> SeqNumber {
        self.passed_end
    }

    /// Returns the number behind the last byte that the socket has sent.
    pub fn request_end(&self) -> SeqNumber {
        self.request_end
    }

    /// Returns the socket's number of the next byte that it expects, if it has taken what it was
    /// given.
    pub fn socket_next(&self) -> SeqNumber {
        self.passed_end - self.bypassed
    }

    /// Limits the bytes that the server may send after each request, until a splice begins or the
    /// limit ends (0). Only so does the server wait at a known place: bytes that go to the client
    /// directly would overtake those that are still on their way to the balancer.
    pub fn limit(&mut self, bytes: u32) {
        self.limit_bytes = bytes;
        self.limit_end = self.passed_end + bytes;
    }

    /// Returns true if there is a limit.
    pub fn is_limited(&self) -> bool {
        self.limit_bytes > 0
    }

    /// Lets the server send `bytes` bytes behind those that the application has taken from the socket,
    /// the rest of a response that is relayed, and as many behind them as after any other response.
    /// `next` is the socket's number of the next one that it takes.
    pub fn extend(&mut self, next: SeqNumber, bytes: u32) {
        self.limit_end = next + self.bypassed + bytes + self.limit_bytes;
    }

    /// Returns the acknowledgement that tells the server of the socket's room after the limit has
    /// ended or was extended.
    pub fn room(&mut self, now_ms: u64) -> Segment {
        let edge = match self.limit_bytes {
            0 => self.socket_edge,
            _ => earlier(self.socket_edge, self.limit_end),
        };
        let window = self.window_to(edge, self.acked);
        self.grant(self.acked, window);
        self.ack(self.acked, window, now_ms)
    }

    /// Returns an acknowledgement.
    pub(crate) fn ack(&self, ack: SeqNumber, window: u16, now_ms: u64) -> Segment {
        let timestamps = self
            .clock
            .is_used()
            .then(|| Timestamps { value: self.clock.now(now_ms), echo: self.clock.peer() });
        Segment {
            seq: self.request_end,
            ack,
            flags: TcpFlags::ACK,
            window,
            timestamps,
            ..Segment::default()
        }
    }

    /// Returns a segment of the server for the socket. `None`: the segment is behind bytes that
    /// went to the client, or is one of them, or the socket has no room for it: the server sends as
    /// much as the client has room for. The socket would keep a part of it at most.
    pub(crate) fn for_socket(
        &mut self,
        segment: &Segment,
        is_spliced: bool,
        now_ms: u64,
    ) -> Option<Segment> {
        // The socket has no room for such bytes, or knows them already, and judges the segment.
        let is_known = !self.socket_edge.before(segment.end())
            && segment.seq.since(self.passed_end) >= -EDGE_BYTES_MAX;
        if is_known {
            self.peer_clock.note(segment.timestamps, now_ms);
            self.clock.received(segment.timestamps);
        }
        let mut seq = segment.seq;
        let occupies = segment.payload_bytes > 0
            || segment.has_any(TcpFlags::FIN | TcpFlags::SYN | TcpFlags::RST);
        if is_spliced && self.passed_end.before(seq) {
            if segment.has_any(TcpFlags::RST) {
                // The server has sent more than the socket knows; a reset is exact (RFC 5961 §3.2).
                seq = self.passed_end;
            } else if occupies {
                return None;
            } else {
                // An acknowledgement of the request, from behind the bytes sent. The socket accepts
                // it, but takes no timestamp from it (RFC 7323 §4.3): an older segment may follow.
                seq = self.passed_end + 1;
            }
        }
        if is_spliced && segment.payload_bytes > 0 && !is_known {
            return None;
        }
        if is_known && segment.payload_bytes > 0 && !segment.has_any(TcpFlags::SYN) {
            self.passed_end = later(self.passed_end, segment.end());
        }
        Some(Segment { seq: seq - self.bypassed, ..*segment })
    }

    /// Notes the room that the socket offers with a segment.
    pub(crate) fn note_room(&mut self, segment: &Segment) {
        let edge = segment.ack + self.bypassed + (u32::from(segment.window) << self.scale);
        self.socket_edge = later(self.socket_edge, edge);
    }

    /// Returns a segment of the socket for the server, whose room is noted.
    pub(crate) fn for_server(
        &mut self,
        segment: &Segment,
        spliced: Option<Spliced>,
        now_ms: u64,
    ) -> Segment {
        let mut shown = Segment {
            ack: segment.ack + self.bypassed,
            timestamps: self.clock.sent(segment.timestamps, now_ms),
            sack: segment.sack.map(|block| {
                Some(crate::segment::Range {
                    start: block.start + self.bypassed,
                    end: block.end + self.bypassed,
                })
            }),
            ..*segment
        };
        let is_new = segment.payload_bytes > 0 && self.request_end.before(segment.end());
        self.request_end = later(self.request_end, segment.end());
        if is_new && spliced.is_none() {
            // The last bytes of a response may have passed before the flow began, and reached the socket
            // afterwards.
            self.passed_end = later(self.passed_end, shown.ack);
            self.limit_end = self.passed_end + self.limit_bytes;
        }
        if let Some(Spliced { edge, acked, echo }) = spliced {
            if shown.ack.before(acked) {
                shown.timestamps = shown.timestamps.map(|times| times.with_newer_echo(echo));
            }
            shown.ack = later(shown.ack, acked);
            shown.window = self.window_to(edge, shown.ack);
        } else if self.limit_bytes > 0 && !segment.flags.contains(TcpFlags::SYN) {
            shown.window = shown.window.min(self.window_to(self.limit_end, shown.ack));
        }
        if !segment.flags.contains(TcpFlags::SYN) {
            self.grant(shown.ack, shown.window);
        }
        shown
    }

    /// Returns the window field that lets the server send up to `edge`.
    pub(crate) fn window_to(&self, edge: SeqNumber, ack: SeqNumber) -> u16 {
        let bytes = u32::try_from(edge.since(ack)).unwrap_or(0);
        u16::try_from(bytes >> self.scale).unwrap_or(u16::MAX)
    }

    /// Notes an acknowledgement for the server. Linux takes a smaller window only with an
    /// acknowledgement of new bytes: that a request has a new number (RFC 9293 §3.10.7.4, SND.WL1)
    /// does not help, since acknowledgements before it have the same one.
    pub(crate) fn grant(&mut self, ack: SeqNumber, window: u16) {
        let edge = ack + (u32::from(window) << self.scale);
        self.told = if self.acked.before(ack) { edge } else { later(self.told, edge) };
        self.acked = later(self.acked, ack);
        self.granted = later(self.granted, edge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Range, Sack};
    use crate::{ClientFlow, FromServer, Opened, Splice, Start, splice};

    /// A client that has 1000 of the socket, and a server from number 70 on.
    fn flows() -> (ClientFlow, ServerFlow) {
        let opened = Opened {
            sent_end: SeqNumber(1000),
            received: SeqNumber(5),
            window_bytes: 60_000,
            scale: 0,
            receive_bytes: 60_000,
            receive_scale: 0,
        };
        (ClientFlow::new(opened), ServerFlow::new(SeqNumber(70), SeqNumber(9), 0))
    }

    /// The begin of a response of 5000 bytes, behind what the client's socket has up to `written_end`.
    fn start(written_end: u32) -> Start {
        Start {
            next: SeqNumber(70),
            socket_next: SeqNumber(70),
            written_end: SeqNumber(written_end),
            received: SeqNumber(5),
            request_end: SeqNumber(109),
            segment_bytes: 0,
            length_bytes: Some(5000),
            expected_bytes: None,
            is_judged_here: false,
            is_sealed: false,
        }
    }

    #[test]
    fn bytes_that_passed_before_the_flow_began_do_not_close_the_window() {
        let (first, limit_bytes, behind_bytes) = (SeqNumber(0u32.wrapping_sub(100)), 4096, 32_553);
        let mut flow = ServerFlow::new(first, SeqNumber(9), 0);
        flow.limit(limit_bytes);
        let request = Segment {
            seq: SeqNumber(9),
            ack: first + behind_bytes,
            flags: TcpFlags::ACK,
            window: 60_000,
            payload_bytes: 10,
            ..Segment::default()
        };
        flow.note_room(&request);
        let shown = flow.for_server(&request, None, 0);
        assert_eq!((shown.ack, u32::from(shown.window)), (request.ack, limit_bytes));
        assert_eq!(flow.socket_next(), request.ack, "a splice can begin");
    }

    #[test]
    fn the_server_gets_the_echo_of_what_the_client_has_seen() {
        let (mut client, mut server) = flows();
        let segment = |seq, ack, value, echo| Segment {
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: TcpFlags::ACK,
            window: 60_000,
            timestamps: Some(Timestamps { value, echo }),
            ..Segment::default()
        };
        splice::receive_from_client(&mut client, &segment(5, 1000, 20, 800));
        splice::send_to_client(&mut client, &segment(1000, 5, 900, 20), 1000);
        splice::receive_from_server(&mut server, &segment(70, 9, 500_000, 30), 1000);
        splice::send_to_server(&mut server, &segment(9, 70, 40, 500_000), 1000);
        let start = start(1000);
        let (mut splice, rule) = Splice::begin(&mut client, &mut server, start, 1000).unwrap();
        // 200 ms later, from the server's host to the client.
        let sent = Segment { payload_bytes: 500, ..segment(70, 109, 500_200, 41) };
        let direct = rule.translate(&sent, SeqNumber(570)).unwrap();
        let seen = direct.timestamps.unwrap().value;
        let ack = segment(5, 1500, 25, seen);
        let arrived = splice.receive_from_client(&mut client, &mut server, &ack, 1201);
        let echo = |segment: Segment| segment.timestamps.unwrap().echo;
        assert_eq!(arrived.server.map(echo), Some(500_200));
        // The server's socket here knows of nothing newer than the beginning.
        let own = segment(109, 70, 241, 500_000);
        let shown = splice.send_to_server(&client, &mut server, &own, 1202);
        assert_eq!((shown.ack, echo(shown)), (SeqNumber(570), 500_200));
        // A client that echoes the future gets the server's clock no further than it is.
        let ack = segment(5, 2000, 26, seen + 70_000);
        let arrived = splice.receive_from_client(&mut client, &mut server, &ack, 1203);
        assert_eq!(arrived.server.map(echo), Some(500_203));
    }

    #[test]
    fn relayed_bytes_are_no_gap_for_the_server() {
        let (mut client, mut server) = flows();
        let segment = |seq, ack, payload_bytes| Segment {
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: TcpFlags::ACK,
            window: 60_000,
            payload_bytes,
            ..Segment::default()
        };
        let with_sack = |ack, start, end| {
            let mut sack = Sack::default();
            sack.push(Range { start: SeqNumber(start), end: SeqNumber(end) });
            Segment { sack, ..segment(5, ack, 0) }
        };
        splice::receive_from_client(&mut client, &segment(5, 1000, 0));
        // The balancer's socket has acknowledged nothing and has 200 bytes, which its application has
        // not taken; it will relay them to the client as 1000 to 1200.
        splice::send_to_server(&mut server, &segment(9, 70, 0), 1000);
        splice::receive_from_server(&mut server, &segment(70, 9, 200), 1000).unwrap();
        let start = Start { next: SeqNumber(70), socket_next: SeqNumber(270), ..start(1000) };
        let (mut splice, _) = Splice::begin(&mut client, &mut server, start, 1000).unwrap();
        let forwarded =
            splice.receive_from_server(&client, &mut server, &segment(270, 9, 500), 1001);
        assert!(matches!(forwarded, FromServer::Client(shown) if shown.seq == SeqNumber(1200)));
        // They arrive before the relayed ones. A gap would let the server send those again.
        let early = with_sack(1000, 1200, 1700);
        let arrived = splice.receive_from_client(&mut client, &mut server, &early, 1002);
        assert!(arrived.server.is_none_or(|ack| ack.sack.is_empty()));
        let part = with_sack(1100, 1200, 1700);
        let arrived = splice.receive_from_client(&mut client, &mut server, &part, 1003);
        assert!(arrived.server.is_some_and(|ack| ack.ack.0 == 170 && ack.sack.is_empty()));
        // A gap in what went past the socket is the server's.
        let lost = with_sack(1200, 1500, 1700);
        let arrived = splice.receive_from_client(&mut client, &mut server, &lost, 1004);
        let ack = arrived.server.unwrap();
        assert_eq!(ack.ack, SeqNumber(270));
        assert_eq!(ack.sack.blocks(), [Range { start: SeqNumber(570), end: SeqNumber(770) }]);
    }

    #[test]
    fn a_client_tells_of_bytes_that_left_before_its_flow_was_opened() {
        let ack = |ack| Segment {
            seq: SeqNumber(5),
            ack: SeqNumber(ack),
            flags: TcpFlags::ACK,
            window: 9_000,
            ..Segment::default()
        };
        // The socket has sent 500 bytes that the flow did not see, and all of them before the splice.
        let begin = |client: &mut ClientFlow, server: &mut ServerFlow| {
            let came = Segment { seq: SeqNumber(70), payload_bytes: 500, ..ack(9) };
            splice::receive_from_server(server, &came, 1000);
            let full = Segment { seq: SeqNumber(9), window: 0, ..ack(570) };
            splice::send_to_server(server, &full, 1000);
            let start = Start {
                next: SeqNumber(570),
                socket_next: SeqNumber(570),
                request_end: SeqNumber(9),
                ..start(1500)
            };
            Splice::begin(client, server, start, 1000).unwrap().0
        };
        for is_acked_before in [false, true] {
            let (mut client, mut server) = flows();
            splice::send_to_server(&mut server, &Segment { window: 500, ..ack(70) }, 1000);
            let granted = if is_acked_before {
                splice::receive_from_client(&mut client, &ack(1500));
                let mut splice = begin(&mut client, &mut server);
                splice.owed_ack(&client, &mut server, 1001)
            } else {
                let mut splice = begin(&mut client, &mut server);
                assert_eq!(splice.owed_ack(&client, &mut server, 1001), None);
                let arrived =
                    splice.receive_from_client(&mut client, &mut server, &ack(1500), 1002);
                // The socket lacks it.
                assert!(arrived.socket.is_some_and(|seen| seen.ack == SeqNumber(1500)));
                arrived.server
            };
            assert_eq!(granted.map(|ack| (ack.ack.0, ack.window)), Some((570, 9_000)));
        }
    }

    #[test]
    fn a_socket_with_bytes_left_gets_an_answer_to_its_probe() {
        let (mut client, mut server) = flows();
        let segment = |seq, ack| Segment {
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: TcpFlags::ACK,
            window: 60_000,
            ..Segment::default()
        };
        splice::receive_from_client(&mut client, &segment(5, 1000));
        // The socket has 300 bytes that come before the splice. It was told of a closed window, and
        // not of the acknowledgement that opened it, since that was for bytes of the server's host.
        let start = start(1300);
        let (mut splice, _) = Splice::begin(&mut client, &mut server, start, 1000).unwrap();
        let probe = segment(999, 5);
        let shown = splice.send_to_client(&mut client, &probe, 1200).unwrap();
        assert_eq!(shown.seq, probe.seq, "an old number has an answer");
        let answer = splice.receive_from_client(&mut client, &mut server, &segment(5, 1000), 1201);
        let told = answer.socket.unwrap();
        assert_eq!((told.ack, told.window), (SeqNumber(1000), 60_000));
        // Afterwards the server's host may be ahead, and the client ignores old numbers.
        let rest = Segment { payload_bytes: 300, ..segment(1000, 5) };
        splice.send_to_client(&mut client, &rest, 1202).unwrap();
        let shown = splice.send_to_client(&mut client, &segment(1300, 5), 1203).unwrap();
        assert_eq!(shown.seq, SeqNumber(1000 + 60_000 - 1));
    }
}
