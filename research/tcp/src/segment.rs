//! Segments: the value of a header, and a segment to send.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

/// Maximum number of selective acknowledgement blocks in the options (RFC 2018 §3).
pub const SACK_BLOCKS_MAX: usize = 4;

/// The sender's timestamp, and the echo of the receiver's (RFC 7323 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's timestamp.
    pub value: u32,
    /// The last timestamp that it received; valid with ACK.
    pub echo: u32,
}

/// A range of the stream, from `start` up to `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: SeqNumber,
    /// The sequence number after the last byte.
    pub end: SeqNumber,
}

impl Range {
    /// Number of bytes, if `end` is not before `start`.
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
    /// Appends a block; returns false if there is no room.
    pub fn push(&mut self, block: Range) -> bool {
        let Some(free) = self.blocks.get_mut(usize::from(self.count)) else { return false };
        *free = block;
        self.count += 1;
        true
    }

    /// The blocks, in order.
    pub fn as_slice(&self) -> &[Range] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Returns true if there is no block.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// The value of a TCP header without ports, urgent pointer and checksum. Other options are not
/// supported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Sequence number of the first byte, or of SYN.
    pub seq: SeqNumber,
    /// Next byte that the sender expects; valid with ACK.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field: scaled, except in segments with SYN.
    pub window: u16,
    /// The sender's maximum segment size, bytes.
    pub mss: Option<u16>,
    /// Window scale of the sender (RFC 7323 §2).
    pub window_scale: Option<u8>,
    /// Selective acknowledgements are supported (RFC 2018 §2).
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Selective acknowledgements.
    pub sack: SackBlocks,
}

impl Header {
    /// Returns true if every bit of `flags` is set.
    pub fn has(&self, flags: TcpFlags) -> bool {
        self.flags.contains(flags)
    }

    /// Sequence space of SYN and FIN.
    pub fn control_bytes(&self) -> u32 {
        u32::from(self.has(TcpFlags::SYN)) + u32::from(self.has(TcpFlags::FIN))
    }

    /// The reset that answers a segment without a connection and with `payload_bytes` of payload
    /// (RFC 9293 §3.10.7.1); a reset gets none.
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

/// A segment to send, possibly a super-segment whose payload is segmented after each `mss_bytes`.
/// All packets have the header's fields, except for the advancing sequence number; FIN and PSH,
/// which only the last one has; and CWR, which only the first has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The header.
    pub header: Header,
    /// Number of payload bytes; they are in the gather list.
    pub payload_bytes: u32,
    /// Maximum payload of one packet.
    pub mss_bytes: u16,
    /// Some of the payload was sent before.
    pub retransmission: bool,
}
