//! The state of flows and splices in memory that is shared with programs of the kernel.
//!
//! The layouts are those of `bpf/splice.h` in the crate `unlade-steering`.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use crate::client::ClientFlow;
use crate::clock::{Clock, PeerClock};
use crate::pooled::ServerFlow;
use crate::segment::{Range, SACK_BLOCKS_MAX, Sack, Segment, Timestamps};
use crate::splice::Splice;

/// `struct splice_clock`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawClock {
    pub(crate) is_used: u32,
    pub(crate) shift: u32,
    pub(crate) echoed: u32,
    pub(crate) peer: u32,
    pub(crate) value: u32,
    pub(crate) reserved: u32,
    pub(crate) at_ms: u64,
}

/// `struct splice_client`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawClient {
    pub(crate) bypassed: u32,
    pub(crate) sent_end: u32,
    pub(crate) acked: u32,
    pub(crate) socket_acked: u32,
    pub(crate) window_bytes: u32,
    pub(crate) window_max_bytes: u32,
    pub(crate) scale: u32,
    pub(crate) receive_max_bytes: u32,
    pub(crate) received: u32,
    pub(crate) window: u32,
    pub(crate) clock: RawClock,
}

/// `struct splice_server`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawServer {
    pub(crate) bypassed: u32,
    pub(crate) passed_end: u32,
    pub(crate) acked: u32,
    pub(crate) granted: u32,
    pub(crate) socket_edge: u32,
    pub(crate) request_end: u32,
    pub(crate) scale: u32,
    pub(crate) peer_seen: u32,
    pub(crate) peer_value: u32,
    pub(crate) reserved: u32,
    pub(crate) peer_at_ms: u64,
    pub(crate) clock: RawClock,
}

/// `struct splice_state`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSplice {
    pub(crate) is_active: u32,
    pub(crate) first: u32,
    pub(crate) end: u32,
    pub(crate) has_end: u32,
    pub(crate) delta: u32,
    pub(crate) is_complete: u32,
    pub(crate) owes_ack: u32,
    pub(crate) reserved: u32,
}

/// `struct splice_segment`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawSegment {
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u32,
    pub(crate) window: u32,
    pub(crate) payload_bytes: u32,
    pub(crate) has_timestamps: u32,
    pub(crate) value: u32,
    pub(crate) echo: u32,
    pub(crate) sack_count: u32,
    pub(crate) sack: [[u32; 2]; SACK_BLOCKS_MAX],
    pub(crate) reserved: u32,
}

const _: () = assert!(size_of::<RawClock>() == 32 && size_of::<RawClient>() == 72);
const _: () = assert!(size_of::<RawServer>() == 80 && size_of::<RawSplice>() == 32);
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
            reserved: 0,
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
            reserved: 0,
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
        })
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
            reserved: 0,
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
        }
    }
}
