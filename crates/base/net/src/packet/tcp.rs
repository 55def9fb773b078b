//! TCP segments (RFC 9293).

use core::ops::BitOr;
use std::net::IpAddr;

use super::{PacketError, be16, be32, byte, transport_checksum};
use crate::SeqNumber;

/// A header without options.
const HEADER_BYTES_MIN: usize = 20;

/// The control bits of a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TcpFlags(pub u8);

impl TcpFlags {
    /// The sender will send no more data.
    pub const FIN: TcpFlags = TcpFlags(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: TcpFlags = TcpFlags(0x02);
    /// Reset.
    pub const RST: TcpFlags = TcpFlags(0x04);
    /// Push.
    pub const PSH: TcpFlags = TcpFlags(0x08);
    /// The acknowledgement number is valid.
    pub const ACK: TcpFlags = TcpFlags(0x10);
    /// The urgent pointer is valid.
    pub const URG: TcpFlags = TcpFlags(0x20);
    /// ECN echo.
    pub const ECE: TcpFlags = TcpFlags(0x40);
    /// Congestion window reduced.
    pub const CWR: TcpFlags = TcpFlags(0x80);

    /// Returns true if every bit of `other` is set.
    pub fn contains(self, other: TcpFlags) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for TcpFlags {
    type Output = TcpFlags;
    fn bitor(self, other: TcpFlags) -> TcpFlags {
        TcpFlags(self.0 | other.0)
    }
}

/// One option of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpOption<'b> {
    /// Largest segment that the sender accepts, bytes.
    Mss(u16),
    /// Shift of the windows that the sender announces (RFC 7323 §2).
    WindowScale(u8),
    /// Selective acknowledgements are supported (RFC 2018 §2).
    SackPermitted,
    /// Selective acknowledgements: pairs of sequence numbers (RFC 2018 §3).
    Sack(&'b [u8]),
    /// Timestamps (RFC 7323 §3): the sender's clock, and the last received clock of its peer.
    Timestamps {
        /// The sender's clock.
        value: u32,
        /// The last received clock of its peer.
        echo: u32,
    },
    /// Any other, or one of the above with another length than it has.
    Other {
        /// The kind.
        kind: u8,
        /// The bytes after kind and length.
        data: &'b [u8],
    },
}

/// A buffer that contains a TCP segment.
#[derive(Clone, Copy, Debug)]
pub struct TcpView<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> TcpView<T> {
    /// Checks that `buffer`, the payload of an IP packet, contains a segment. The checksum is not
    /// checked: a NIC has, or has yet to write it.
    ///
    /// # Errors
    /// It ends inside the header.
    pub fn new(buffer: T) -> Result<TcpView<T>, PacketError> {
        let bytes = buffer.as_ref();
        if bytes.len() < HEADER_BYTES_MIN {
            return Err(PacketError::Truncated("the TCP header"));
        }
        let header = usize::from(byte(bytes, 12) >> 4) * 4;
        if header < HEADER_BYTES_MIN {
            return Err(PacketError::BadLength("the TCP header"));
        }
        match header <= bytes.len() {
            true => Ok(TcpView { buffer }),
            false => Err(PacketError::Truncated("the TCP options")),
        }
    }

    /// Port of the sender.
    pub fn source_port(&self) -> u16 {
        be16(self.buffer.as_ref(), 0)
    }

    /// Port of the receiver.
    pub fn destination_port(&self) -> u16 {
        be16(self.buffer.as_ref(), 2)
    }

    /// Sequence number.
    pub fn seq(&self) -> SeqNumber {
        SeqNumber(be32(self.buffer.as_ref(), 4))
    }

    /// Acknowledgement number; valid if ACK is set.
    pub fn ack(&self) -> SeqNumber {
        SeqNumber(be32(self.buffer.as_ref(), 8))
    }

    /// Control bits.
    pub fn flags(&self) -> TcpFlags {
        TcpFlags(byte(self.buffer.as_ref(), 13))
    }

    /// Window, unscaled.
    pub fn window(&self) -> u16 {
        be16(self.buffer.as_ref(), 14)
    }

    /// Urgent pointer; valid if URG is set.
    pub fn urgent(&self) -> u16 {
        be16(self.buffer.as_ref(), 18)
    }

    /// Bytes of the header, options included.
    pub fn header_bytes(&self) -> usize {
        usize::from(byte(self.buffer.as_ref(), 12) >> 4) * 4
    }

    /// The payload of the segment.
    pub fn payload(&self) -> &[u8] {
        self.buffer.as_ref().get(self.header_bytes()..).unwrap_or_default()
    }

    /// The options up to the end of the list, or to one whose length is malformed.
    pub fn options(&self) -> impl Iterator<Item = TcpOption<'_>> {
        let bytes = self.buffer.as_ref();
        OptionIter { rest: bytes.get(HEADER_BYTES_MIN..self.header_bytes()).unwrap_or_default() }
    }

    /// Returns true if the checksum is correct under these addresses.
    pub fn checksum_ok(&self, source: IpAddr, destination: IpAddr) -> bool {
        transport_checksum(source, destination, self.buffer.as_ref()) == 0
    }
}

struct OptionIter<'b> {
    rest: &'b [u8],
}

impl<'b> Iterator for OptionIter<'b> {
    type Item = TcpOption<'b>;

    fn next(&mut self) -> Option<TcpOption<'b>> {
        const END: u8 = 0;
        const NOP: u8 = 1;
        loop {
            let (&kind, behind) = self.rest.split_first()?;
            match kind {
                END => return None,
                NOP => self.rest = behind,
                _ => {
                    let length = usize::from(*behind.first()?);
                    let data = self.rest.get(2..length)?;
                    self.rest = self.rest.get(length..)?;
                    return Some(TcpOption::of(kind, data));
                }
            }
        }
    }
}

impl<'b> TcpOption<'b> {
    fn of(kind: u8, data: &'b [u8]) -> TcpOption<'b> {
        match (kind, data.len()) {
            (2, 2) => TcpOption::Mss(be16(data, 0)),
            (3, 1) => TcpOption::WindowScale(byte(data, 0)),
            (4, 0) => TcpOption::SackPermitted,
            (5, 8 | 16 | 24 | 32) => TcpOption::Sack(data),
            (8, 8) => TcpOption::Timestamps { value: be32(data, 0), echo: be32(data, 4) },
            _ => TcpOption::Other { kind, data },
        }
    }
}

/// The options that a generated segment can have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Largest segment that the sender accepts, bytes.
    pub mss: Option<u16>,
    /// Shift of the windows that the sender announces.
    pub window_scale: Option<u8>,
    /// Selective acknowledgements are supported.
    pub sack_permitted: bool,
    /// The sender's clock, and the last received clock of its peer.
    pub timestamps: Option<(u32, u32)>,
}

impl TcpOptions {
    /// Appends the options, padded to a multiple of four bytes.
    fn emit(&self, out: &mut Vec<u8>) {
        const NOP: u8 = 1;
        let start = out.len();
        if let Some(mss) = self.mss {
            out.extend_from_slice(&[2, 4]);
            out.extend_from_slice(&mss.to_be_bytes());
        }
        if let Some(shift) = self.window_scale {
            out.extend_from_slice(&[3, 3, shift]);
        }
        if self.sack_permitted {
            out.extend_from_slice(&[4, 2]);
        }
        if let Some((value, echo)) = self.timestamps {
            out.extend_from_slice(&[8, 10]);
            out.extend_from_slice(&value.to_be_bytes());
            out.extend_from_slice(&echo.to_be_bytes());
        }
        while !(out.len() - start).is_multiple_of(4) {
            out.push(NOP);
        }
    }
}

/// The value of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpRepr {
    /// Port of the sender.
    pub source_port: u16,
    /// Port of the receiver.
    pub destination_port: u16,
    /// Sequence number.
    pub seq: SeqNumber,
    /// Acknowledgement number; valid if ACK is set.
    pub ack: SeqNumber,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window, unscaled.
    pub window: u16,
    /// Urgent pointer; valid if URG is set.
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
}

impl TcpRepr {
    /// Reads the values from a view; options that [`TcpOptions`] lacks are omitted.
    pub fn parse<T: AsRef<[u8]>>(view: &TcpView<T>) -> TcpRepr {
        let mut options = TcpOptions::default();
        for option in view.options() {
            match option {
                TcpOption::Mss(mss) => options.mss = Some(mss),
                TcpOption::WindowScale(shift) => options.window_scale = Some(shift),
                TcpOption::SackPermitted => options.sack_permitted = true,
                TcpOption::Timestamps { value, echo } => options.timestamps = Some((value, echo)),
                TcpOption::Sack(_) | TcpOption::Other { .. } => {}
            }
        }
        TcpRepr {
            source_port: view.source_port(),
            destination_port: view.destination_port(),
            seq: view.seq(),
            ack: view.ack(),
            flags: view.flags(),
            window: view.window(),
            urgent: view.urgent(),
            options,
        }
    }

    /// Appends the segment with `payload`, and the checksum under these addresses, to `out`.
    pub fn emit(&self, source: IpAddr, destination: IpAddr, payload: &[u8], out: &mut Vec<u8>) {
        let mut options = Vec::new();
        self.options.emit(&mut options);
        let mut segment = Vec::with_capacity(HEADER_BYTES_MIN + options.len() + payload.len());
        segment.extend_from_slice(&self.source_port.to_be_bytes());
        segment.extend_from_slice(&self.destination_port.to_be_bytes());
        segment.extend_from_slice(&self.seq.0.to_be_bytes());
        segment.extend_from_slice(&self.ack.0.to_be_bytes());
        let words = (HEADER_BYTES_MIN + options.len()) / 4;
        segment.extend_from_slice(&[(words as u8) << 4, self.flags.0]);
        segment.extend_from_slice(&self.window.to_be_bytes());
        segment.extend_from_slice(&[0, 0]);
        segment.extend_from_slice(&self.urgent.to_be_bytes());
        segment.extend_from_slice(&options);
        segment.extend_from_slice(payload);
        let sum = transport_checksum(source, destination, &segment);
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(&segment);
    }

    /// Bytes of the header, options included.
    pub fn header_bytes(&self) -> usize {
        let mut options = Vec::new();
        self.options.emit(&mut options);
        HEADER_BYTES_MIN + options.len()
    }
}
