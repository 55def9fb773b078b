//! IPv6 (RFC 8200).

use std::net::Ipv6Addr;

use super::{PacketError, array, be16, be32, byte};

/// The fixed header.
const HEADER_BYTES: usize = 40;
/// Most extension headers that are skipped.
pub const EXTENSIONS_MAX: usize = 4;
/// Extension headers that can be skipped by their length: hop-by-hop options, routing,
/// destination options.
const SKIPPED: [u8; 3] = [0, 43, 60];
/// The fragment header.
const FRAGMENT: u8 = 44;

/// A buffer that contains an IPv6 packet.
#[derive(Clone, Copy, Debug)]
pub struct Ipv6View<T: AsRef<[u8]>> {
    buffer: T,
    /// Offset of the payload after the extension headers.
    payload_at: usize,
    protocol: u8,
}

impl<T: AsRef<[u8]>> Ipv6View<T> {
    /// Checks that `buffer` contains a whole packet; bytes after it are ignored.
    ///
    /// # Errors
    /// The buffer is not IPv6, ends before a length that a header states, or has extension headers
    /// that cannot be skipped (a fragment, or more than [`EXTENSIONS_MAX`]).
    pub fn new(buffer: T) -> Result<Ipv6View<T>, PacketError> {
        let bytes = buffer.as_ref();
        if bytes.len() < HEADER_BYTES {
            return Err(PacketError::Truncated("the IPv6 header"));
        }
        if byte(bytes, 0) >> 4 != 6 {
            return Err(PacketError::BadVersion("the IPv6 header"));
        }
        let total = HEADER_BYTES + usize::from(be16(bytes, 4));
        let packet = bytes.get(..total).ok_or(PacketError::Truncated("the IPv6 packet"))?;
        let (protocol, payload_at) = skip_extensions(packet)?;
        Ok(Ipv6View { buffer, payload_at, protocol })
    }

    /// Traffic class: differentiated services and ECN.
    pub fn traffic_class(&self) -> u8 {
        (be16(self.buffer.as_ref(), 0) >> 4) as u8
    }

    /// Flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        be32(self.buffer.as_ref(), 0) & 0x000f_ffff
    }

    /// Hop limit.
    pub fn hop_limit(&self) -> u8 {
        byte(self.buffer.as_ref(), 7)
    }

    /// Protocol of the payload after the extension headers.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Sender.
    pub fn source(&self) -> Ipv6Addr {
        array::<16>(self.buffer.as_ref(), 8).into()
    }

    /// Receiver.
    pub fn destination(&self) -> Ipv6Addr {
        array::<16>(self.buffer.as_ref(), 24).into()
    }

    /// Bytes of the packet.
    pub fn total_bytes(&self) -> usize {
        HEADER_BYTES + usize::from(be16(self.buffer.as_ref(), 4))
    }

    /// Bytes of the header, extension headers included.
    pub fn header_bytes(&self) -> usize {
        self.payload_at
    }

    /// The bytes after the extension headers.
    pub fn payload(&self) -> &[u8] {
        self.buffer.as_ref().get(self.payload_at..self.total_bytes()).unwrap_or_default()
    }
}

fn skip_extensions(packet: &[u8]) -> Result<(u8, usize), PacketError> {
    let mut protocol = byte(packet, 6);
    let mut at = HEADER_BYTES;
    for _ in 0..=EXTENSIONS_MAX {
        if protocol == FRAGMENT {
            return Err(PacketError::Unsupported("an IPv6 fragment"));
        }
        if !SKIPPED.contains(&protocol) {
            return Ok((protocol, at));
        }
        let [next, units] = *packet
            .get(at..at + 2)
            .and_then(|head| <&[u8; 2]>::try_from(head).ok())
            .ok_or(PacketError::Truncated("an IPv6 extension header"))?;
        at += 8 * (usize::from(units) + 1);
        if at > packet.len() {
            return Err(PacketError::Truncated("an IPv6 extension header"));
        }
        protocol = next;
    }
    Err(PacketError::Unsupported("a chain of many IPv6 extension headers"))
}

/// The value of an IPv6 header without extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Repr {
    /// Sender.
    pub source: Ipv6Addr,
    /// Receiver.
    pub destination: Ipv6Addr,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class: differentiated services and ECN.
    pub traffic_class: u8,
    /// Flow label; its lower 20 bits are written.
    pub flow_label: u32,
    /// Bytes of the payload.
    pub payload_bytes: usize,
}

impl Ipv6Repr {
    /// Reads the values from a view; extension headers are omitted.
    pub fn parse<T: AsRef<[u8]>>(view: &Ipv6View<T>) -> Ipv6Repr {
        Ipv6Repr {
            source: view.source(),
            destination: view.destination(),
            protocol: view.protocol(),
            hop_limit: view.hop_limit(),
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            payload_bytes: view.total_bytes() - view.header_bytes(),
        }
    }

    /// Appends the header to `out`.
    ///
    /// # Errors
    /// The payload does not fit into a packet.
    pub fn emit(&self, out: &mut Vec<u8>) -> Result<(), PacketError> {
        let payload = u16::try_from(self.payload_bytes)
            .map_err(|_| PacketError::TooLong { bytes: self.payload_bytes })?;
        let class = u32::from(self.traffic_class) << 20;
        let first = 6 << 28 | class | (self.flow_label & 0x000f_ffff);
        out.extend_from_slice(&first.to_be_bytes());
        out.extend_from_slice(&payload.to_be_bytes());
        out.extend_from_slice(&[self.protocol, self.hop_limit]);
        out.extend_from_slice(&self.source.octets());
        out.extend_from_slice(&self.destination.octets());
        Ok(())
    }
}
