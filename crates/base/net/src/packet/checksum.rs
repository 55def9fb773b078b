//! The Internet checksum (RFC 1071).

use std::net::IpAddr;

use super::PROTOCOL_TCP;

/// The complemented Internet checksum of `bytes`: 0 if `bytes` contain a correct checksum.
pub fn checksum(bytes: &[u8]) -> u16 {
    fold(sum(bytes))
}

/// The checksum of a TCP segment under the pseudo-header of its addresses (RFC 9293 §3.1, RFC 8200
/// §8.1): 0 if the segment contains a correct checksum.
pub fn transport_checksum(source: IpAddr, destination: IpAddr, segment: &[u8]) -> u16 {
    transport_checksum_parts(source, destination, segment, &[])
}

/// The same for a segment in two parts, header and payload; the first part has an even length.
pub fn transport_checksum_parts(
    source: IpAddr,
    destination: IpAddr,
    header: &[u8],
    payload: &[u8],
) -> u16 {
    debug_assert!(header.len().is_multiple_of(2) || payload.is_empty(), "no word is in both parts");
    let bytes = (header.len() + payload.len()) as u64;
    fold(pseudo_header_words(source, destination) + bytes + sum(header) + sum(payload))
}

/// The pseudo-header's contribution to the sum of a TCP segment's words, without the segment's
/// length.
pub fn pseudo_header_words(source: IpAddr, destination: IpAddr) -> u64 {
    let address = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => sum(&ip.octets()),
        IpAddr::V6(ip) => sum(&ip.octets()),
    };
    address(source) + address(destination) + u64::from(PROTOCOL_TCP)
}

/// The sum of the 16-bit words of `bytes` with its carries, for [`checksum_of`].
pub fn words(bytes: &[u8]) -> u64 {
    sum(bytes)
}

/// The checksum for a sum of words, of one buffer or several.
pub fn checksum_of(words: u64) -> u16 {
    fold(words)
}

/// Bytes that are summed per iteration.
const BLOCK_BYTES: usize = 64;

/// Sum of 16-bit words; 64 bits suffice for any buffer.
///
/// The sum is the same in either byte order, except for the order of its own bytes (RFC 1071 §2).
/// Wide words are added in memory order; their carries are folded at the end.
fn sum(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<BLOCK_BYTES>();
    // Headers have at most a few blocks; the lanes would cost more than they save.
    let mut sum = if blocks.is_empty() { 0 } else { sum_blocks(blocks) };
    let (words, odd) = rest.as_chunks::<2>();
    sum += words.iter().map(|word| u64::from(u16::from_ne_bytes(*word))).sum::<u64>();
    sum += odd.first().map_or(0, |&last| u64::from(u16::from_ne_bytes([last, 0])));
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u64::from(u16::from_be(sum as u16))
}

/// Sum of 32-bit words, in lanes.
fn sum_blocks(blocks: &[[u8; BLOCK_BYTES]]) -> u64 {
    let mut low = [0u64; BLOCK_BYTES / 8];
    let mut high = [0u64; BLOCK_BYTES / 8];
    for block in blocks {
        for ((low, high), word) in low.iter_mut().zip(&mut high).zip(block.as_chunks::<8>().0) {
            let word = u64::from_ne_bytes(*word);
            *low += word & 0xffff_ffff;
            *high += word >> 32;
        }
    }
    low.iter().chain(&high).map(|lane| (lane & 0xffff_ffff) + (lane >> 32)).sum()
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
    fn a_segment_in_two_parts_has_the_checksum_of_the_whole() {
        let bytes: Vec<u8> = (0..3000u32).map(|at| ((at * at) >> 3) as u8).collect();
        let (source, destination) = ([10, 0, 0, 1].into(), [192, 168, 255, 2].into());
        for whole in [20, 21, 60, 85, 1468, 1469, 3000] {
            for at in [0, 2, 20, 60, 64, 130].into_iter().filter(|at| *at <= whole) {
                let (header, payload) = bytes[..whole].split_at(at);
                let parts = transport_checksum_parts(source, destination, header, payload);
                assert_eq!(parts, transport_checksum(source, destination, &bytes[..whole]));
            }
        }
    }

    #[test]
    fn long_buffers_sum_as_words_one_by_one() {
        let content: Vec<u8> =
            (0..4096u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect();
        for (start, length) in (0..200).map(|at| (at % 7, at * 19)).chain([(0, 64), (1, 4095)]) {
            let bytes = &content[start..start + length];
            let words: u64 = bytes
                .chunks(2)
                .map(|word| u64::from(word[0]) << 8 | word.get(1).map_or(0, |&low| low.into()))
                .sum();
            assert_eq!(checksum(bytes), fold(words), "{start} {length}");
        }
        assert_eq!(checksum(&[0xff; 4096]), 0);
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
