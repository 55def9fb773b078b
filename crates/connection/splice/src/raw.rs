//! The state of flows and splices in memory that is shared with programs of the kernel.
//!
//! The layouts are those of `bpf/splice.h` in the crate `unlade-steering`.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use crate::client::{ClientFlow, Hold};
use crate::clock::{Clock, PeerClock};
use crate::head::Head;
use crate::pooled::ServerFlow;
use crate::rule::Rule;
use crate::segment::{Range, SACK_BLOCKS_MAX, Sack, Segment, Timestamps};
use crate::splice::{Splice, Start, Unfit};

/// `struct splice_clock`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawClock {
    /// 1: the connection uses timestamps.
    pub is_used: u32,
    /// Value that the peer sees less the socket's, ms.
    pub shift: u32,
    /// The newest echo of the peer.
    pub echoed: u32,
    /// The newest value of the peer.
    pub peer: u32,
    /// The newest value.
    pub value: u32,
    /// Zero.
    pub reserved: u32,
    /// Time of `value`.
    pub at_ms: u64,
}

/// `struct splice_client`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawClient {
    /// The peer's number of a byte less the socket's.
    pub bypassed: u32,
    /// Behind the last byte that the socket has sent.
    pub sent_end: u32,
    /// The newest acknowledgement.
    pub acked: u32,
    /// The newest acknowledgement that the socket was given.
    pub socket_acked: u32,
    /// The window in `acked`.
    pub window_bytes: u32,
    /// The largest window of the client.
    pub window_max_bytes: u32,
    /// The window scale.
    pub scale: u32,
    /// The largest window of the socket.
    pub receive_max_bytes: u32,
    /// The socket's newest acknowledgement.
    pub received: u32,
    /// The window field.
    pub window: u32,
    /// 1: the socket has reset the connection.
    pub is_reset: u32,
    /// 1: the socket's next acknowledgement is kept; 2: one is.
    pub hold: u32,
    /// Timestamps that the peer sees.
    pub clock: RawClock,
}

/// `struct splice_server`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawServer {
    /// The peer's number of a byte less the socket's.
    pub bypassed: u32,
    /// Behind the last byte that was given to the socket.
    pub passed_end: u32,
    /// The newest acknowledgement.
    pub acked: u32,
    /// Behind the last byte that the server may send.
    pub granted: u32,
    /// Behind the last byte that the socket has room for.
    pub socket_edge: u32,
    /// Behind the last byte of the request.
    pub request_end: u32,
    /// The window scale.
    pub scale: u32,
    /// 1: `peer_value` is known.
    pub peer_seen: u32,
    /// The newest value of the server.
    pub peer_value: u32,
    /// Bytes that the server may send after a request; 0: as many as the socket has room for.
    pub limit_bytes: u32,
    /// Behind the last of them.
    pub limit_end: u32,
    /// Behind the last byte that the server may send by what it was told last.
    pub told: u32,
    /// Time of `peer_value`.
    pub peer_at_ms: u64,
    /// Timestamps that the peer sees.
    pub clock: RawClock,
}

/// `struct splice_state`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSplice {
    /// 1: there is a splice.
    pub is_active: u32,
    /// Number of the first byte that may bypass.
    pub first: u32,
    /// Behind the last byte.
    pub end: u32,
    /// 1: `end` is known.
    pub has_end: u32,
    /// The client's number of a byte less the server's.
    pub delta: u32,
    /// 1: the client has acknowledged everything.
    pub is_complete: u32,
    /// 1: the server lacks an acknowledgement.
    pub owes_ack: u32,
    /// 1: the head is not known yet.
    pub awaits_head: u32,
    /// Bytes of the head that went past the sockets; 0: there is none.
    pub head_bytes: u32,
    /// The balancer's clock less the server's, ms.
    pub clock_offset: u32,
    /// Bytes that came and were sent to the client.
    pub forwarded_bytes: u32,
    /// Bytes that are expected of a response whose head is judged at the balancer.
    pub early_bytes: u32,
    /// The acknowledgement in direct segments.
    pub rule_ack: u32,
    /// 1: the server has ended its connection.
    pub has_fin: u32,
    /// Status in the head.
    pub status: u32,
    /// 1: the head is the header of a sealed response.
    pub is_sealed: u32,
}

/// `struct splice_segment`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSegment {
    /// Number of the first byte.
    pub seq: u32,
    /// The acknowledgement.
    pub ack: u32,
    /// Control bits.
    pub flags: u32,
    /// The window field.
    pub window: u32,
    /// Bytes of the payload.
    pub payload_bytes: u32,
    /// 1: it has timestamps.
    pub has_timestamps: u32,
    /// The newest value.
    pub value: u32,
    /// The timestamp's echo.
    pub echo: u32,
    /// Number of blocks in `sack`.
    pub sack_count: u32,
    /// Start and end of each block.
    pub sack: [[u32; 2]; SACK_BLOCKS_MAX],
    /// 1: the payload is a copy.
    pub is_copy: u32,
}

const _: () = assert!(size_of::<RawClock>() == 32 && size_of::<RawClient>() == 80);
const _: () = assert!(size_of::<RawServer>() == 88 && size_of::<RawSplice>() == 64);
const _: () = assert!(size_of::<RawSegment>() == 72);

impl From<Clock> for RawClock {
    fn from(clock: Clock) -> RawClock {
        let Clock { is_used, shift, echoed, peer, value, at_ms } = clock;
        RawClock { is_used: is_used.into(), shift, echoed, peer, value, reserved: 0, at_ms }
    }
}

impl From<RawClock> for Clock {
    fn from(raw: RawClock) -> Clock {
        let RawClock { is_used, shift, echoed, peer, value, at_ms, .. } = raw;
        Clock { is_used: is_used != 0, shift, echoed, peer, value, at_ms }
    }
}

impl From<ClientFlow> for RawClient {
    fn from(flow: ClientFlow) -> RawClient {
        RawClient {
            bypassed: flow.bypassed,
            sent_end: flow.sent_end.0,
            acked: flow.acked.0,
            socket_acked: flow.socket_acked.0,
            window_bytes: flow.window_bytes,
            window_max_bytes: flow.window_max_bytes,
            scale: flow.scale.into(),
            receive_max_bytes: flow.receive_max_bytes,
            received: flow.received.0,
            window: flow.window.into(),
            is_reset: flow.is_reset.into(),
            hold: flow.hold as u32,
            clock: flow.clock.into(),
        }
    }
}

impl From<RawClient> for ClientFlow {
    fn from(raw: RawClient) -> ClientFlow {
        ClientFlow {
            bypassed: raw.bypassed,
            sent_end: SeqNumber(raw.sent_end),
            acked: SeqNumber(raw.acked),
            socket_acked: SeqNumber(raw.socket_acked),
            window_bytes: raw.window_bytes,
            window_max_bytes: raw.window_max_bytes,
            scale: raw.scale as u8,
            receive_max_bytes: raw.receive_max_bytes,
            received: SeqNumber(raw.received),
            window: raw.window as u16,
            is_reset: raw.is_reset != 0,
            hold: match raw.hold {
                1 => Hold::Armed,
                2 => Hold::Kept,
                _ => Hold::Off,
            },
            clock: raw.clock.into(),
        }
    }
}

impl From<ServerFlow> for RawServer {
    fn from(flow: ServerFlow) -> RawServer {
        let (peer_value, peer_at_ms) = flow.peer_clock.seen.unwrap_or_default();
        RawServer {
            bypassed: flow.bypassed,
            passed_end: flow.passed_end.0,
            acked: flow.acked.0,
            granted: flow.granted.0,
            socket_edge: flow.socket_edge.0,
            request_end: flow.request_end.0,
            scale: flow.scale.into(),
            peer_seen: flow.peer_clock.seen.is_some().into(),
            peer_value,
            limit_bytes: flow.limit_bytes,
            limit_end: flow.limit_end.0,
            told: flow.told.0,
            peer_at_ms,
            clock: flow.clock.into(),
        }
    }
}

impl From<RawServer> for ServerFlow {
    fn from(raw: RawServer) -> ServerFlow {
        let seen = (raw.peer_seen != 0).then_some((raw.peer_value, raw.peer_at_ms));
        ServerFlow {
            bypassed: raw.bypassed,
            passed_end: SeqNumber(raw.passed_end),
            acked: SeqNumber(raw.acked),
            granted: SeqNumber(raw.granted),
            socket_edge: SeqNumber(raw.socket_edge),
            request_end: SeqNumber(raw.request_end),
            scale: raw.scale as u8,
            limit_bytes: raw.limit_bytes,
            limit_end: SeqNumber(raw.limit_end),
            told: SeqNumber(raw.told),
            clock: raw.clock.into(),
            peer_clock: PeerClock { seen },
        }
    }
}

impl From<Splice> for RawSplice {
    fn from(splice: Splice) -> RawSplice {
        RawSplice {
            is_active: 1,
            first: splice.first.0,
            end: splice.end.unwrap_or_default().0,
            has_end: splice.end.is_some().into(),
            delta: splice.delta,
            is_complete: splice.is_complete.into(),
            owes_ack: splice.owes_ack.into(),
            awaits_head: splice.awaits_head.into(),
            head_bytes: splice.head.map_or(0, |head| head.head_bytes),
            clock_offset: splice.clock_offset,
            forwarded_bytes: splice.forwarded_bytes,
            early_bytes: splice.early_bytes,
            rule_ack: splice.rule_ack.0,
            has_fin: splice.has_fin.into(),
            status: splice.head.map_or(0, |head| head.status.into()),
            is_sealed: splice.is_sealed.into(),
        }
    }
}

impl From<RawSplice> for Option<Splice> {
    fn from(raw: RawSplice) -> Option<Splice> {
        (raw.is_active != 0).then(|| Splice {
            first: SeqNumber(raw.first),
            end: (raw.has_end != 0).then_some(SeqNumber(raw.end)),
            delta: raw.delta,
            is_complete: raw.is_complete != 0,
            owes_ack: raw.owes_ack != 0,
            awaits_head: raw.awaits_head != 0,
            head: (raw.head_bytes != 0).then(|| raw_head(&raw)),
            clock_offset: raw.clock_offset,
            forwarded_bytes: raw.forwarded_bytes,
            early_bytes: raw.early_bytes,
            rule_ack: SeqNumber(raw.rule_ack),
            has_fin: raw.has_fin != 0,
            is_sealed: raw.is_sealed != 0,
        })
    }
}

/// Returns the head of a splice that has one: the response ends behind its body.
fn raw_head(raw: &RawSplice) -> Head {
    let response_bytes = raw.end.wrapping_sub(raw.first);
    Head {
        status: raw.status as u16,
        head_bytes: raw.head_bytes,
        body_bytes: response_bytes.wrapping_sub(raw.head_bytes),
    }
}

impl From<Segment> for RawSegment {
    fn from(segment: Segment) -> RawSegment {
        let Timestamps { value, echo } = segment.timestamps.unwrap_or_default();
        let blocks = segment.sack.blocks();
        let mut sack = [[0; 2]; SACK_BLOCKS_MAX];
        for (raw, Range { start, end }) in sack.iter_mut().zip(blocks) {
            *raw = [start.0, end.0];
        }
        RawSegment {
            seq: segment.seq.0,
            ack: segment.ack.0,
            flags: segment.flags.0.into(),
            window: segment.window.into(),
            payload_bytes: segment.payload_bytes,
            has_timestamps: segment.timestamps.is_some().into(),
            value,
            echo,
            sack_count: blocks.len() as u32,
            sack,
            is_copy: segment.is_copy.into(),
        }
    }
}

impl From<RawSegment> for Segment {
    fn from(raw: RawSegment) -> Segment {
        let mut sack = Sack::default();
        for [start, end] in raw.sack.iter().take(raw.sack_count as usize) {
            sack.push(Range { start: SeqNumber(*start), end: SeqNumber(*end) });
        }
        let timestamps = Timestamps { value: raw.value, echo: raw.echo };
        Segment {
            seq: SeqNumber(raw.seq),
            ack: SeqNumber(raw.ack),
            flags: TcpFlags(raw.flags as u8),
            window: raw.window as u16,
            payload_bytes: raw.payload_bytes,
            timestamps: (raw.has_timestamps != 0).then_some(timestamps),
            sack,
            is_copy: raw.is_copy != 0,
        }
    }
}

/// `struct splice_start`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawStart {
    /// As in [`Start`].
    pub next: u32,
    /// As in [`Start`].
    pub socket_next: u32,
    /// As in [`Start`].
    pub written_end: u32,
    /// Behind the last byte of the request.
    pub request_end: u32,
    /// 1: `length_bytes` is known.
    pub has_length: u32,
    /// As in [`Start`].
    pub length_bytes: u32,
    /// As in [`Start`].
    pub segment_bytes: u32,
    /// 1: `expected_bytes` is known, and the head is awaited.
    pub awaits_head: u32,
    /// As in [`Start`].
    pub expected_bytes: u32,
    /// As in [`Start`].
    pub received: u32,
    /// 1: the head is judged at the balancer.
    pub is_judged_here: u32,
    /// 1: the head is the header of a sealed response.
    pub is_sealed: u32,
}

/// `struct splice_rule`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawRule {
    /// Number of the first byte that may bypass.
    pub first: u32,
    /// Behind the last byte.
    pub end: u32,
    /// 1: `end` is known.
    pub has_end: u32,
    /// Behind the last byte of the request.
    pub request_end: u32,
    /// The client's number of a byte less the server's.
    pub delta: u32,
    /// The acknowledgement.
    pub ack: u32,
    /// The window field.
    pub window: u32,
    /// 1: `clock_offset` and `echo` are valid.
    pub has_clock: u32,
    /// The balancer's clock less the server's, ms.
    pub clock_offset: u32,
    /// The timestamp's echo.
    pub echo: u32,
    /// 1: the rule awaits a head.
    pub awaits_head: u32,
    /// Zero.
    pub reserved: u32,
}

const _: () = assert!(size_of::<RawStart>() == 48 && size_of::<RawRule>() == 48);

impl From<Start> for RawStart {
    fn from(start: Start) -> RawStart {
        RawStart {
            next: start.next.0,
            socket_next: start.socket_next.0,
            written_end: start.written_end.0,
            request_end: start.request_end.0,
            has_length: start.length_bytes.is_some().into(),
            length_bytes: start.length_bytes.unwrap_or_default(),
            segment_bytes: start.segment_bytes,
            awaits_head: start.expected_bytes.is_some().into(),
            expected_bytes: start.expected_bytes.unwrap_or_default(),
            received: start.received.0,
            is_judged_here: start.is_judged_here.into(),
            is_sealed: start.is_sealed.into(),
        }
    }
}

impl From<RawRule> for Rule {
    fn from(raw: RawRule) -> Rule {
        Rule {
            first: SeqNumber(raw.first),
            end: (raw.has_end != 0).then_some(SeqNumber(raw.end)),
            request_end: SeqNumber(raw.request_end),
            delta: raw.delta,
            ack: SeqNumber(raw.ack),
            window: raw.window as u16,
            clock: (raw.has_clock != 0).then_some((raw.clock_offset, raw.echo)),
            awaits_head: raw.awaits_head != 0,
        }
    }
}

/// Returns the reason of `enum splice_unfit`; `None` for a splice that has begun.
pub fn unfit(code: u32) -> Option<Unfit> {
    [
        Unfit::Window,
        Unfit::Granted,
        Unfit::Timestamps,
        Unfit::Gap,
        Unfit::Over,
        Unfit::Long,
        Unfit::Segments,
    ]
    .get((code as usize).checked_sub(1)?)
    .copied()
}
