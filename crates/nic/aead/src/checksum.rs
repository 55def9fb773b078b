//! Partial sums of the Internet checksum (RFC 1071): one's complement sums of payloads.
//!
//! The module is in this crate because a device sums a payload directly after it has sealed it;
//! the sum must be cheap compared with sealing.

/// Length of a vector.
const VECTOR_BYTES: usize = 64;

/// Returns the sum of the 16-bit words of `bytes` in network byte order, an odd byte followed by a
/// zero, with carries added: below 2^16. Its complement is the checksum. Sums of parts can be
/// added if all parts but the last have an even length.
#[inline]
pub fn words(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
        // SAFETY: the features were detected.
        return unsafe { wide(bytes) };
    }
    lanes(bytes)
}

/// Adds the carries, and converts the sum to network byte order.
#[inline]
fn fold(mut sum: u64) -> u64 {
    sum = (sum & 0xffff_ffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16 & 0xffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    // The sum is independent of the byte order, except for its own bytes (RFC 1071 §2).
    u64::from(u16::from_be(sum as u16))
}

/// The implementation for every processor.
fn lanes(bytes: &[u8]) -> u64 {
    let (blocks, rest) = bytes.as_chunks::<VECTOR_BYTES>();
    let mut sums = [[0_u64; VECTOR_BYTES / 8]; 2];
    for block in blocks {
        let [low, high] = &mut sums;
        for ((low, high), word) in low.iter_mut().zip(high).zip(block.as_chunks::<8>().0) {
            let word = u64::from_ne_bytes(*word);
            *low += word & 0xffff_ffff;
            *high += word >> 32;
        }
    }
    let (words, odd) = rest.as_chunks::<2>();
    let mut sum: u64 = words.iter().map(|word| u64::from(u16::from_ne_bytes(*word))).sum();
    sum += odd.first().map_or(0, |&last| u64::from(u16::from_ne_bytes([last, 0])));
    fold(
        sum + sums
            .as_flattened()
            .iter()
            .map(|lane| (lane & 0xffff_ffff) + (lane >> 32))
            .sum::<u64>(),
    )
}

/// The implementation with vectors of 512 bits: the last one is masked, so no byte is added alone.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw")]
fn wide(bytes: &[u8]) -> u64 {
    use std::arch::x86_64::*;

    let (blocks, rest) = bytes.as_chunks::<VECTOR_BYTES>();
    let below = _mm512_set1_epi64(0xffff_ffff);
    let (mut low, mut high) = (_mm512_setzero_si512(), _mm512_setzero_si512());
    for block in blocks {
        // SAFETY: a block has the length of a vector.
        let words = unsafe { _mm512_loadu_si512(block.as_ptr().cast()) };
        low = _mm512_add_epi64(low, _mm512_and_si512(words, below));
        high = _mm512_add_epi64(high, _mm512_srli_epi64(words, 32));
    }
    let mask = (1_u64 << rest.len()) - 1;
    // SAFETY: only the bytes in the mask are read, and these are the bytes of the rest.
    let words = unsafe { _mm512_maskz_loadu_epi8(mask, rest.as_ptr().cast()) };
    low = _mm512_add_epi64(low, _mm512_and_si512(words, below));
    high = _mm512_add_epi64(high, _mm512_srli_epi64(words, 32));
    // Each lane adds fewer than 2^32 words for any buffer, so there is no overflow.
    fold(_mm512_reduce_add_epi64(_mm512_add_epi64(low, high)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds word by word, as in the RFC.
    fn slow(bytes: &[u8]) -> u64 {
        let mut sum = 0_u64;
        for word in bytes.chunks(2) {
            sum += u64::from(word[0]) << 8 | u64::from(*word.get(1).unwrap_or(&0));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum
    }

    #[test]
    fn every_length_at_every_place_has_the_sum_of_its_words() {
        let mut state = 1_u32;
        let noise: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(1600)
        .collect();
        let full = vec![0xff; 1600];
        for content in [noise, full, vec![0; 1600]] {
            for from in 0..70 {
                for bytes in (0..200).chain([1447, 1448, 1460]) {
                    let part = &content[from..from + bytes];
                    assert_eq!((words(part), lanes(part)), (slow(part), slow(part)), "{bytes}");
                }
            }
        }
        let much = vec![0xff; (1 << 20) + 1];
        assert_eq!((words(&much), lanes(&much)), (slow(&much), slow(&much)));
    }
}
