//! A TCP segment as the translation sees it.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

/// Most bytes of one splice: numbers that are further apart have no order (RFC 9293 §3.4).
pub const LENGTH_BYTES_MAX: u32 = 1 << 30;
/// Most blocks of a selective acknowledgement (RFC 2018 §3).
pub const SACK_BLOCKS_MAX: usize = 4;

/// Timestamps of a segment (RFC 7323 §3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The sender's clock.
    pub value: u32,
    /// The newest value that the sender has received.
    pub echo: u32,
}

impl Timestamps {
    /// Returns them with another echo, if that is newer.
    pub(crate) fn with_newer_echo(self, echo: Option<u32>) -> Timestamps {
        let newer = echo.filter(|echo| (self.echo.wrapping_sub(*echo) as i32) < 0);
        Timestamps { echo: newer.unwrap_or(self.echo), ..self }
    }
}

/// A range of a stream, from `start` up to `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: SeqNumber,
    /// The number behind the last byte.
    pub end: SeqNumber,
}

/// Blocks of a selective acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sack {
    blocks: [Range; SACK_BLOCKS_MAX],
    count: u8,
}

impl Sack {
    /// Appends a block; more than [`SACK_BLOCKS_MAX`] are ignored.
    pub fn push(&mut self, block: Range) {
        if let Some(free) = self.blocks.get_mut(usize::from(self.count)) {
            *free = block;
            self.count += 1;
        }
    }

    /// Returns the blocks.
    pub fn blocks(&self) -> &[Range] {
        &self.blocks[..usize::from(self.count)]
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the blocks, each through `change`; `None` removes one.
    pub(crate) fn map(&self, change: impl Fn(Range) -> Option<Range>) -> Sack {
        let mut mapped = Sack::default();
        self.blocks().iter().filter_map(|block| change(*block)).for_each(|b| mapped.push(b));
        mapped
    }

    /// Returns the parts of the blocks before `end`.
    pub(crate) fn before(&self, end: SeqNumber) -> Sack {
        self.map(|Range { start, end: to }| {
            start.before(end).then(|| Range { start, end: if to.before(end) { to } else { end } })
        })
    }

    /// Returns the parts of the blocks from `start` on.
    pub(crate) fn from(&self, start: SeqNumber) -> Sack {
        self.map(|Range { start: from, end }| {
            let from = if from.before(start) { start } else { from };
            from.before(end).then_some(Range { start: from, end })
        })
    }

    /// Returns the blocks with numbers that are smaller by `offset`.
    pub(crate) fn less(&self, offset: u32) -> Sack {
        self.map(|Range { start, end }| Some(Range { start: start - offset, end: end - offset }))
    }
}

/// The fields of a segment that a translation reads or changes. Addresses, ports, checksum and
/// payload belong to the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    /// Number of the first byte.
    pub seq: SeqNumber,
    /// Next byte that the sender expects; valid with ACK.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// The window field, scaled.
    pub window: u16,
    /// Bytes of the payload; several packets of it for a segment that the device is to divide.
    pub payload_bytes: u32,
    /// Timestamps, if both ends use them.
    pub timestamps: Option<Timestamps>,
    /// Selective acknowledgements.
    pub sack: Sack,
    /// A server's host has sent the payload to the client as well.
    pub is_copy: bool,
}

impl Segment {
    /// Returns the number behind the payload.
    pub fn end(&self) -> SeqNumber {
        self.seq + self.payload_bytes
    }

    /// Returns true if one of the bits is set.
    pub fn has_any(&self, flags: TcpFlags) -> bool {
        self.flags.0 & flags.0 != 0
    }

    /// Returns true for an acknowledgement without payload and other control bits.
    pub fn is_pure_ack(&self) -> bool {
        self.payload_bytes == 0 && is_plain(self.flags)
    }
}

/// Returns true if the bits are those of a segment of an established connection.
pub(crate) fn is_plain(flags: TcpFlags) -> bool {
    let others = TcpFlags::FIN | TcpFlags::SYN | TcpFlags::RST | TcpFlags::URG;
    flags.contains(TcpFlags::ACK) && flags.0 & others.0 == 0
}

/// Returns the later of two numbers.
pub(crate) fn later(a: SeqNumber, b: SeqNumber) -> SeqNumber {
    if a.before(b) { b } else { a }
}

/// Returns the earlier of two numbers.
pub(crate) fn earlier(a: SeqNumber, b: SeqNumber) -> SeqNumber {
    if a.before(b) { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_divided_at_a_number_that_wraps() {
        let range = |start: u32, end: u32| Range { start: SeqNumber(start), end: SeqNumber(end) };
        let mut sack = Sack::default();
        sack.push(range(u32::MAX - 20, u32::MAX - 10));
        sack.push(range(u32::MAX - 4, 6));
        let at = SeqNumber(1);
        let before = sack.before(at);
        assert_eq!(before.blocks(), [range(u32::MAX - 20, u32::MAX - 10), range(u32::MAX - 4, 1)]);
        assert_eq!(sack.from(at).blocks(), [range(1, 6)]);
        assert_eq!(sack.from(at).less(2).blocks(), [range(u32::MAX, 4)]);
        (0..9).for_each(|n| sack.push(range(n, n + 1)));
        assert_eq!(sack.blocks().len(), SACK_BLOCKS_MAX);
    }
}
