//! The 4-tuple that names a TCP connection, seen from the service.

use std::net::{IpAddr, SocketAddr};

use crate::packet::EXTENSIONS_MAX;

/// An Ethernet header without VLAN tags.
const ETHERNET_BYTES: usize = 14;
/// Protocol number.
const TCP: u8 = 6;

/// The 4-tuple of a TCP connection: the client's address and the service's (virtual) address.
/// Both are of one family; IPv4-mapped IPv6 addresses are normalised to IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The end that opened the connection.
    pub client: SocketAddr,
    /// The address the client connected to.
    pub service: SocketAddr,
}

impl FlowKey {
    /// Makes the key of the connection from `client` to `service`, in canonical form.
    pub fn new(client: SocketAddr, service: SocketAddr) -> FlowKey {
        FlowKey { client: canonical(client), service: canonical(service) }
    }

    /// The flow of an Ethernet frame that a client sent; see [`FrameSegment::find`].
    pub fn of_frame(frame: &[u8]) -> Option<FlowKey> {
        FrameSegment::find(frame).map(|segment| segment.flow)
    }

    /// True for an IPv6 connection.
    pub fn is_ipv6(&self) -> bool {
        self.service.is_ipv6()
    }
}

/// The position of the TCP segment in an Ethernet frame. Lengths come from the headers: the frame
/// may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameSegment {
    /// The flow; the sender of the frame is the client.
    pub flow: FlowKey,
    /// Offset of the TCP header from the start of the frame.
    pub tcp_at: usize,
    /// Bytes of TCP header and payload.
    pub segment_bytes: usize,
}

impl FrameSegment {
    /// Finds the segment of a frame without VLAN tags: TCP over IPv4, with or without options, or
    /// over IPv6 with up to [`EXTENSIONS_MAX`] hop-by-hop, destination or routing headers. Returns
    /// `None` for any other frame, fragments included.
    pub fn find(frame: &[u8]) -> Option<FrameSegment> {
        let ip = frame.get(ETHERNET_BYTES..)?;
        let (source, destination, tcp_at, segment_bytes): (IpAddr, IpAddr, usize, usize) =
            match frame.get(12..14)? {
                [0x08, 0x00] => {
                    let (header, bytes) = find_in_ipv4(ip)?;
                    (field::<4>(ip, 12)?.into(), field::<4>(ip, 16)?.into(), header, bytes)
                }
                [0x86, 0xdd] => {
                    let (header, bytes) = find_in_ipv6(ip)?;
                    (field::<16>(ip, 8)?.into(), field::<16>(ip, 24)?.into(), header, bytes)
                }
                _ => return None,
            };
        let port = |at: usize| number(ip, tcp_at + at);
        let flow = FlowKey {
            client: SocketAddr::new(source, port(0)?),
            service: SocketAddr::new(destination, port(2)?),
        };
        Some(FrameSegment { flow, tcp_at: ETHERNET_BYTES + tcp_at, segment_bytes })
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn number(bytes: &[u8], at: usize) -> Option<u16> {
    field(bytes, at).map(u16::from_be_bytes)
}

/// Finds the TCP header in an IPv4 packet; returns its offset and the length of the segment.
fn find_in_ipv4(ip: &[u8]) -> Option<(usize, usize)> {
    const FRAGMENT: u16 = 0x3fff;
    let first = *ip.first()?;
    let header = usize::from(first & 0xf) * 4;
    let segment_bytes = usize::from(number(ip, 2)?).checked_sub(header)?;
    let is_segment = first >> 4 == 4 && header >= 20 && *ip.get(9)? == TCP;
    (is_segment && number(ip, 6)? & FRAGMENT == 0).then_some((header, segment_bytes))
}

/// The same in an IPv6 packet.
fn find_in_ipv6(ip: &[u8]) -> Option<(usize, usize)> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    let (mut next, mut at) = (*ip.get(6)?, 40);
    let mut left = usize::from(number(ip, 4)?);
    for _ in 0..=EXTENSIONS_MAX {
        let size = match next {
            TCP => return Some((at, left)),
            // The packet has not reached its final destination yet.
            ROUTING if *ip.get(at + 3)? != 0 => return None,
            HOP_BY_HOP | ROUTING | DESTINATION => (usize::from(*ip.get(at + 1)?) + 1) * 8,
            // An atomic fragment is a whole packet (RFC 6946).
            FRAGMENT if number(ip, at + 2)? & 0xfff9 == 0 => 8,
            _ => return None,
        };
        next = *ip.get(at)?;
        at += size;
        left = left.checked_sub(size)?;
    }
    None
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

impl core::fmt::Display for FlowKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} → {}", self.client, self.service)
    }
}

#[cfg(test)]
mod tests {
    use super::{EXTENSIONS_MAX, FlowKey, FrameSegment};

    fn flow(client: &str, service: &str) -> FlowKey {
        FlowKey::new(client.parse().unwrap(), service.parse().unwrap())
    }

    #[test]
    fn options_of_ipv4_are_skipped() {
        let mut frame = vec![0; 14 + 20 + 8 + 20 + 3];
        frame[12] = 8;
        frame[14] = 0x47;
        frame[16..18].copy_from_slice(&51u16.to_be_bytes());
        frame[23] = 6;
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
        frame[42..46].copy_from_slice(&[0, 5, 0, 80]);
        let found = FrameSegment::find(&frame).unwrap();
        assert_eq!((found.tcp_at, found.segment_bytes), (42, 23));
        assert_eq!(found.flow, flow("10.0.0.1:5", "10.0.0.2:80"));
        frame[20] = 0x20;
        assert_eq!(FrameSegment::find(&frame), None, "a fragment");
    }

    #[test]
    fn a_limited_number_of_ipv6_extension_headers_is_skipped() {
        let frame = |kinds: &[u8]| {
            let mut frame = vec![0; 14 + 40];
            frame[12..14].copy_from_slice(&[0x86, 0xdd]);
            let bytes = (kinds.len() * 16 + 20) as u16;
            frame[18..20].copy_from_slice(&bytes.to_be_bytes());
            frame[20] = *kinds.first().unwrap_or(&6);
            for at in 0..kinds.len() {
                let next = *kinds.get(at + 1).unwrap_or(&6);
                frame.extend([next, 1].iter().chain(&[0; 14]));
            }
            frame.extend([0, 5, 0, 80].iter().chain(&[0; 16]));
            frame
        };
        for count in 0..=EXTENSIONS_MAX {
            let frame = frame(&[60, 43, 0, 60][..count]);
            let found = FrameSegment::find(&frame).unwrap();
            assert_eq!((found.tcp_at, found.segment_bytes), (54 + 16 * count, 20));
            assert_eq!(found.flow, flow("[::]:5", "[::]:80"));
            for short in 0..frame.len() {
                let _ = FrameSegment::find(&frame[..short]);
            }
        }
        assert_eq!(FrameSegment::find(&frame(&[60; EXTENSIONS_MAX + 1])), None);
        assert_eq!(FrameSegment::find(&frame(&[50])), None, "IPsec");
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        let mapped =
            FlowKey::new("[::ffff:10.0.0.1]:5".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        assert_eq!(mapped.client, "10.0.0.1:5".parse().unwrap());
        assert!(!mapped.is_ipv6());
    }
}
