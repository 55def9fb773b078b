//! IPv4 (RFC 791).

use std::net::Ipv4Addr;

use super::{PacketError, array, be16, byte, checksum};

/// A header without options.
const HEADER_BYTES_MIN: usize = 20;
/// In the flags and fragment offset: the packet may not be fragmented.
const DONT_FRAGMENT: u16 = 0x4000;
/// In the flags and fragment offset: more fragments, or an offset.
const FRAGMENT: u16 = 0x3fff;

/// A buffer that contains an IPv4 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv4View<T: AsRef<[u8]>> {
    buffer: T,
}

impl<T: AsRef<[u8]>> Ipv4View<T> {
    /// Checks that `buffer` contains a whole packet; bytes after it (Ethernet's padding) are
    /// ignored. The header's checksum is not checked: the NIC has checked it, or will write it.
    ///
    /// # Errors
    /// The buffer is not IPv4, or ends before a length that the header states.
    pub fn new(buffer: T) -> Result<Ipv4View<T>, PacketError> {
        let bytes = buffer.as_ref();
        if bytes.len() < HEADER_BYTES_MIN {
            return Err(PacketError::Truncated("the IPv4 header"));
        }
        if byte(bytes, 0) >> 4 != 4 {
            return Err(PacketError::BadVersion("the IPv4 header"));
        }
        let header = usize::from(byte(bytes, 0) & 0x0f) * 4;
        let total = usize::from(be16(bytes, 2));
        if header < HEADER_BYTES_MIN || total < header {
            return Err(PacketError::BadLength("the IPv4 header"));
        }
        match total <= bytes.len() {
            true => Ok(Ipv4View { buffer }),
            false => Err(PacketError::Truncated("the IPv4 packet")),
        }
    }

    /// Bytes of the header, options included.
    pub fn header_bytes(&self) -> usize {
        usize::from(byte(self.buffer.as_ref(), 0) & 0x0f) * 4
    }

    /// Bytes of the packet.
    pub fn total_bytes(&self) -> usize {
        be16(self.buffer.as_ref(), 2).into()
    }

    /// Differentiated services and ECN.
    pub fn tos(&self) -> u8 {
        byte(self.buffer.as_ref(), 1)
    }

    /// Identification.
    pub fn ident(&self) -> u16 {
        be16(self.buffer.as_ref(), 4)
    }

    /// The packet may not be fragmented.
    pub fn dont_fragment(&self) -> bool {
        be16(self.buffer.as_ref(), 6) & DONT_FRAGMENT != 0
    }

    /// The packet is a fragment of another one.
    pub fn is_fragment(&self) -> bool {
        be16(self.buffer.as_ref(), 6) & FRAGMENT != 0
    }

    /// Time to live.
    pub fn ttl(&self) -> u8 {
        byte(self.buffer.as_ref(), 8)
    }

    /// Protocol of the payload.
    pub fn protocol(&self) -> u8 {
        byte(self.buffer.as_ref(), 9)
    }

    /// Sender.
    pub fn source(&self) -> Ipv4Addr {
        array::<4>(self.buffer.as_ref(), 12).into()
    }

    /// Receiver.
    pub fn destination(&self) -> Ipv4Addr {
        array::<4>(self.buffer.as_ref(), 16).into()
    }

    /// Options, unparsed.
    pub fn options(&self) -> &[u8] {
        self.buffer.as_ref().get(HEADER_BYTES_MIN..self.header_bytes()).unwrap_or_default()
    }

    /// Returns true if the header's checksum is correct.
    pub fn checksum_ok(&self) -> bool {
        self.buffer.as_ref().get(..self.header_bytes()).is_some_and(|header| checksum(header) == 0)
    }

    /// The bytes after the header.
    pub fn payload(&self) -> &[u8] {
        self.buffer.as_ref().get(self.header_bytes()..self.total_bytes()).unwrap_or_default()
    }
}

/// The value of an IPv4 header without options, of a packet that is not a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Repr {
    /// Sender.
    pub source: Ipv4Addr,
    /// Receiver.
    pub destination: Ipv4Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Time to live.
    pub ttl: u8,
    /// Differentiated services and ECN.
    pub tos: u8,
    /// Identification.
    pub ident: u16,
    /// The packet may not be fragmented.
    pub dont_fragment: bool,
    /// Bytes of the payload.
    pub payload_bytes: usize,
}

impl Ipv4Repr {
    /// Reads the values from a view; options are omitted.
    ///
    /// # Errors
    /// The packet is a fragment.
    pub fn parse<T: AsRef<[u8]>>(view: &Ipv4View<T>) -> Result<Ipv4Repr, PacketError> {
        if view.is_fragment() {
            return Err(PacketError::Unsupported("an IPv4 fragment"));
        }
        Ok(Ipv4Repr {
            source: view.source(),
            destination: view.destination(),
            protocol: view.protocol(),
            ttl: view.ttl(),
            tos: view.tos(),
            ident: view.ident(),
            dont_fragment: view.dont_fragment(),
            payload_bytes: view.total_bytes() - view.header_bytes(),
        })
    }

    /// Appends the header, with its checksum, to `out`.
    ///
    /// # Errors
    /// The payload does not fit into a packet.
    pub fn emit(&self, out: &mut Vec<u8>) -> Result<(), PacketError> {
        let total = u16::try_from(HEADER_BYTES_MIN + self.payload_bytes)
            .map_err(|_| PacketError::TooLong { bytes: self.payload_bytes })?;
        let mut header = [0u8; HEADER_BYTES_MIN];
        header[0] = 0x45;
        header[1] = self.tos;
        header[2..4].copy_from_slice(&total.to_be_bytes());
        header[4..6].copy_from_slice(&self.ident.to_be_bytes());
        let flags = if self.dont_fragment { DONT_FRAGMENT } else { 0 };
        header[6..8].copy_from_slice(&flags.to_be_bytes());
        header[8] = self.ttl;
        header[9] = self.protocol;
        header[12..16].copy_from_slice(&self.source.octets());
        header[16..20].copy_from_slice(&self.destination.octets());
        let sum = checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        out.extend_from_slice(&header);
        Ok(())
    }
}
