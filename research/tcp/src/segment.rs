//! What a segment says: the value of its header, and what is to be sent.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

/// Most blocks of a selective acknowledgement that fit into the options (RFC 2018 §3).
pub const SACK_BLOCKS_MAX: usize = 4;

/// The sender's clock, and the clock that it last saw (RFC 7323 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The clock it last saw; means something where the segment acknowledges.
    pub echo: u32,
}

/// Bytes of the stream, from `start` up to `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first of them.
    pub start: SeqNumber,
    /// Behind the last of them.
    pub end: SeqNumber,
}

impl Range {
    /// How many there are, where `end` is not before `start`.
    pub fn bytes(self) -> u32 {
        self.end.0.wrapping_sub(self.start.0)
    }
}

/// The blocks of a selective acknowledgement (RFC 2018 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SackBlocks {
    blocks: [Range; SACK_BLOCKS_MAX],
    count: u8,
}

impl SackBlocks {
    /// Adds a block at the end; false where there is no room.
    pub fn push(&mut self, block: Range) -> bool {
        let Some(free) = self.blocks.get_mut(usize::from(self.count)) else { return false };
        *free = block;
        self.count += 1;
        true
    }

    /// The blocks, in their order.
    pub fn as_slice(&self) -> &[Range] {
        &self.blocks[..usize::from(self.count)]
    }

    /// True where there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The value of a TCP header without ports, urgent pointer and checksum. Options that are not here
/// are not understood.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Sequence number of the first byte, or of SYN.
    pub seq: SeqNumber,
    /// Next byte that the sender waits for; counts where ACK is set.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window as it is in the header: shifted, but in segments with SYN.
    pub window: u16,
    /// Largest segment the sender takes, bytes.
    pub mss: Option<u16>,
    /// Shift of the windows that the sender announces (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// Selective acknowledgements are understood (RFC 2018 §2).
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Selective acknowledgements.
    pub sack: SackBlocks,
}

impl Header {
    /// Whether every bit of `flags` is set.
    pub fn has(&self, flags: TcpFlags) -> bool {
        self.flags.contains(flags)
    }

    /// Sequence space that SYN and FIN take beside the payload.
    pub fn control_bytes(&self) -> u32 {
        u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN))
    }

    /// The reset that answers a segment of a connection which does not exist, `payload_bytes` being
    /// its payload (RFC 9293 §3.10.7.1); none answers a reset.
    pub fn reset_answering(&self, payload_bytes: usize) -> Option<Header> {
        if self.has(TcpFlags::RST) {
            return None;
        }
        let mut reset = Header { seq: self.ack, flags: TcpFlags::RST, ..Header::default() };
        if !self.has(TcpFlags::ACK) {
            reset.seq = SeqNumber(0);
            reset.ack = self.seq + payload_bytes as u32 + self.control_bytes();
            reset.flags = TcpFlags::RST | TcpFlags::ACK;
        }
        Some(reset)
    }
}

/// A segment to send, perhaps a large one: who sends it cuts its payload after each `mss_bytes`. All
/// parts have the header's fields, but for the sequence number, which advances; FIN and PSH, which
/// the last one has; and CWR, which only the first has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header.
    pub header: Header,
    /// Bytes of payload; they are in the gather list.
    pub payload_bytes: u32,
    /// Most bytes of payload in one packet.
    pub mss_bytes: u16,
    /// Some of the payload was sent before.
    pub retransmission: bool,
}
