//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

use super::PROTOCOL_TCP;

/// The checksum of `bytes` that ends in the complement: 0 where `bytes` contain a right one.
pub fn checksum(bytes: &[u8]) -> u16 {
    fold(sum(bytes))
}

/// The checksum of a TCP segment under the pseudo-header of its addresses (RFC 9293 §3.1, RFC 8200
/// §8.1): 0 where the segment contains a right one.
pub fn transport_checksum(source: IpAddr, destination: IpAddr, segment: &[u8]) -> u16 {
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    };
    let pseudo = address(source) + address(destination);
    fold(pseudo + u64::from(PROTOCOL_TCP) + segment.len() as u64 + sum(segment))
}

/// Sum of 16-bit words; 64 bits hold that of any buffer.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let whole: u64 = words.by_ref().map(|word| u64::from(super::be16(word, 0))).sum();
    let odd = words.remainder().first().map_or(0, |&last| u64::from(last) << 8);
    whole + odd
}

fn fold(mut sum: u64) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1071() {
        assert_eq!(checksum(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(checksum(&[0x01]), !0x0100);
        assert_eq!(checksum(&[]), 0xffff);
    }

    #[test]
    fn a_segment_as_linux_sent_it() {
        // SYN from 192.0.2.1:49152 to 192.0.2.2:80, sequence 1, window 64240, MSS 1460.
        let mut segment = [
            0xc0, 0x00, 0x00, 0x50, 0, 0, 0, 1, 0, 0, 0, 0, 0x60, 0x02, 0xfa, 0xf0, 0, 0, 0, 0, 2,
            4, 0x05, 0xb4,
        ];
        let (from, to) = ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
        let sum = transport_checksum(from, to, &segment);
        // Words by hand: addresses 0xc000+0x0201+0xc000+0x0202, protocol 6, length 24, segment.
        let words = 0xc000
            + 0x0201
            + 0xc000
            + 0x0202
            + 6
            + 24
            + 0xc000
            + 0x0050
            + 1
            + 0x6002
            + 0xfaf0
            + 0x0204
            + 0x05b4;
        assert_eq!(sum, !(((words & 0xffff) + (words >> 16)) as u16));
        segment[16..18].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(transport_checksum(from, to, &segment), 0);
    }
}
