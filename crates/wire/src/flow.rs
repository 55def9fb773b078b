//! The 4-tuple that names a TCP connection, seen from the service.

use std::net::{IpAddr, SocketAddr};

/// A TCP connection's name: the client's address and the service's (virtual) address.
/// Both are of one family; IPv4-mapped IPv6 addresses are normalised to IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey {
    /// The far end that opened the connection.
    pub client: SocketAddr,
    /// The address the client connected to.
    pub service: SocketAddr,
}

impl FlowKey {
    /// Names the connection from `client` to `service`, in canonical form.
    pub fn new(client: SocketAddr, service: SocketAddr) -> FlowKey {
        FlowKey { client: canonical(client), service: canonical(service) }
    }

    /// The flow of an Ethernet frame that a client sent: TCP over IPv4 without options or
    /// fragments, or over IPv6 without extension headers. Nothing for any other frame.
    pub fn of_frame(frame: &[u8]) -> Option<FlowKey> {
        const TCP: u8 = 6;
        let ip = frame.get(14..)?;
        let (source, destination, tcp): (IpAddr, IpAddr, &[u8]) = match frame.get(12..14)? {
            [0x08, 0x00] if *ip.first()? == 0x45 && *ip.get(9)? == TCP => {
                let address = |at: usize| <[u8; 4]>::try_from(ip.get(at..at + 4)?).ok();
                (address(12)?.into(), address(16)?.into(), ip.get(20..)?)
            }
            [0x86, 0xdd] if *ip.get(6)? == TCP => {
                let address = |at: usize| <[u8; 16]>::try_from(ip.get(at..at + 16)?).ok();
                (address(8)?.into(), address(24)?.into(), ip.get(40..)?)
            }
            _ => return None,
        };
        let port = |at: usize| Some(u16::from_be_bytes([*tcp.get(at)?, *tcp.get(at + 1)?]));
        Some(FlowKey {
            client: SocketAddr::new(source, port(0)?),
            service: SocketAddr::new(destination, port(2)?),
        })
    }

    /// True for an IPv6 connection.
    pub fn is_ipv6(&self) -> bool {
        self.service.is_ipv6()
    }
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
    use super::FlowKey;

    #[test]
    fn mapped_addresses_are_ipv4() {
        let mapped =
            FlowKey::new("[::ffff:10.0.0.1]:5".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        assert_eq!(mapped.client, "10.0.0.1:5".parse().unwrap());
        assert!(!mapped.is_ipv6());
    }
}
