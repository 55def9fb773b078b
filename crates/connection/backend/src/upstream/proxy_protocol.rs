//! Header of the PROXY protocol, version 2 (the specification of HAProxy, section 2.2).

use std::net::{IpAddr, SocketAddr};

/// First bytes of every header.
const SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_COMMAND: u8 = 0x21;
/// TCP over IPv4, and over IPv6.
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Returns the header that names the client and the address that it has connected to.
pub(crate) fn header(client: SocketAddr, service: SocketAddr) -> Vec<u8> {
    let mut out = Vec::with_capacity(52);
    out.extend_from_slice(&SIGNATURE);
    out.push(VERSION_COMMAND);
    match (client.ip().to_canonical(), service.ip().to_canonical()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            out.extend_from_slice(&[TCP4, 0, 12]);
            out.extend_from_slice(&from.octets());
            out.extend_from_slice(&to.octets());
        }
        (from, to) => {
            out.extend_from_slice(&[TCP6, 0, 36]);
            for ip in [from, to] {
                let ip = match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                out.extend_from_slice(&ip.octets());
            }
        }
    }
    out.extend_from_slice(&client.port().to_be_bytes());
    out.extend_from_slice(&service.port().to_be_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_addresses_and_ports_in_network_order() {
        let made = header("192.0.2.7:40000".parse().unwrap(), "10.0.0.1:443".parse().unwrap());
        let expected = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c\xc0\x00\x02\x07\x0a\x00\x00\x01\
                         \x9c\x40\x01\xbb";
        assert_eq!(made, expected);
    }

    #[test]
    fn addresses_of_ipv6_are_whole() {
        let made = header("[2001:db8::7]:1".parse().unwrap(), "[2001:db8::1]:80".parse().unwrap());
        assert_eq!((made.len(), &made[12..16]), (52, &[0x21, 0x21, 0, 36][..]));
        assert_eq!(made[16..20], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(made[48..], [0, 1, 0, 80]);
        let mapped =
            header("[::ffff:192.0.2.7]:1".parse().unwrap(), "10.0.0.1:80".parse().unwrap());
        assert_eq!(mapped[13], TCP4);
    }
}
