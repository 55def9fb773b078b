//! What both backends of x86-64 do a block at a time.

use std::arch::x86_64::*;

use crate::progress::{BLOCK_BYTES, Progress, tag_block};
use crate::schedule::Keys;

/// The high half of the polynomial of POLYVAL.
const POLYNOMIAL: i64 = 0xC200_0000_0000_0000_u64 as i64;

/// Expands a key.
#[target_feature(enable = "aes,pclmulqdq,avx")]
pub(crate) fn expand(key: &[u8], hash_key: &[u8; BLOCK_BYTES]) -> Box<Keys> {
    Keys::new(
        key,
        hash_key,
        |word| {
            // All columns are equal, so that shifting the rows changes nothing.
            let columns = _mm_set1_epi32(word as i32);
            _mm_cvtsi128_si32(_mm_aesenclast_si128(columns, _mm_setzero_si128())) as u32
        },
        |left, right| octets(dot(vector(left), vector(right))),
    )
}

/// Hashes the additional data of a message, with its padding.
#[target_feature(enable = "aes,pclmulqdq,avx")]
pub(crate) fn begin(keys: &Keys, aad: &[u8]) -> [u8; BLOCK_BYTES] {
    let power = vector(u128::from_le_bytes(keys.powers::<1>(1)[0]));
    let mut hash = _mm_setzero_si128();
    for piece in aad.chunks(BLOCK_BYTES) {
        let mut block = [0; BLOCK_BYTES];
        block[..piece.len()].copy_from_slice(piece);
        hash = dot(_mm_xor_si128(hash, vector(u128::from_be_bytes(block))), power);
    }
    octets(hash).to_be_bytes()
}

/// The tag of the message that ends at `at`.
#[target_feature(enable = "aes,pclmulqdq,avx")]
pub(crate) fn tag(keys: &Keys, at: &Progress) -> [u8; BLOCK_BYTES] {
    let rounds = keys.rounds();
    let round = |index: usize| vector(u128::from_le_bytes(rounds[index]));
    let mut mask = _mm_xor_si128(vector(u128::from_le_bytes(tag_block(&at.nonce))), round(0));
    for index in 1..keys.round_count() {
        mask = _mm_aesenc_si128(mask, round(index));
    }
    mask = _mm_aesenclast_si128(mask, round(keys.round_count()));

    let power = vector(u128::from_le_bytes(keys.powers::<1>(1)[0]));
    let mut hash = vector(u128::from_be_bytes(at.hash));
    if at.skip() > 0 {
        hash = dot(hash, power);
    }
    hash = dot(_mm_xor_si128(hash, vector(u128::from_be_bytes(at.lengths()))), power);
    (octets(hash).swap_bytes() ^ octets(mask)).to_le_bytes()
}

/// The product of two elements of POLYVAL.
#[target_feature(enable = "pclmulqdq,avx")]
#[inline]
pub(crate) fn dot(left: __m128i, right: __m128i) -> __m128i {
    let low = _mm_clmulepi64_si128(left, right, 0x00);
    let high = _mm_clmulepi64_si128(left, right, 0x11);
    let cross = _mm_xor_si128(
        _mm_clmulepi64_si128(left, right, 0x01),
        _mm_clmulepi64_si128(left, right, 0x10),
    );
    reduce(low, cross, high)
}

/// Divides the sum of a product's parts by x^128, modulo the polynomial: half of it at a time, by
/// adding the multiple of the polynomial that makes the low half vanish.
#[target_feature(enable = "pclmulqdq,avx")]
#[inline]
pub(crate) fn reduce(low: __m128i, cross: __m128i, high: __m128i) -> __m128i {
    let polynomial = _mm_set1_epi64x(POLYNOMIAL);
    let low = _mm_xor_si128(low, _mm_slli_si128(cross, 8));
    let high = _mm_xor_si128(high, _mm_srli_si128(cross, 8));
    let swapped = _mm_shuffle_epi32(low, 0x4E);
    let low = _mm_xor_si128(swapped, _mm_clmulepi64_si128(low, polynomial, 0x00));
    let swapped = _mm_shuffle_epi32(low, 0x4E);
    let low = _mm_xor_si128(swapped, _mm_clmulepi64_si128(low, polynomial, 0x00));
    _mm_xor_si128(high, low)
}

/// A number as a vector, low octets first.
#[target_feature(enable = "avx")]
#[inline]
pub(crate) fn vector(number: u128) -> __m128i {
    _mm_set_epi64x((number >> 64) as i64, number as i64)
}

/// A vector as a number.
#[target_feature(enable = "avx")]
#[inline]
pub(crate) fn octets(vector: __m128i) -> u128 {
    let low = _mm_cvtsi128_si64(vector) as u64;
    let high = _mm_extract_epi64(vector, 1) as u64;
    u128::from(high) << 64 | u128::from(low)
}
