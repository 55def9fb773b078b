//! AES-NI and PCLMULQDQ, on vectors of one block.

use std::arch::x86_64::*;

use crate::lanes::{Lanes, functions};
use crate::progress::BLOCK_BYTES;
use crate::schedule::ROUND_KEYS_MAX;

/// Vectors with AES-NI and PCLMULQDQ, encoded as AVX.
pub(crate) enum AesNi {}

functions!(AesNi, "aes,pclmulqdq,avx");

impl Lanes for AesNi {
    type Vector = __m128i;

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn load(from: *const u8) -> __m128i {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { _mm_loadu_si128(from.cast()) }
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn store(to: *mut u8, vector: __m128i) {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { _mm_storeu_si128(to.cast(), vector) }
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn xor(left: __m128i, right: __m128i) -> __m128i {
        _mm_xor_si128(left, right)
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn low(left: __m128i, right: __m128i) -> __m128i {
        _mm_clmulepi64_si128(left, right, 0x00)
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn high(left: __m128i, right: __m128i) -> __m128i {
        _mm_clmulepi64_si128(left, right, 0x11)
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn swap(vector: __m128i) -> __m128i {
        _mm_shuffle_epi32(vector, 0x4E)
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn up(vector: __m128i) -> __m128i {
        _mm_slli_si128(vector, 8)
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn down(vector: __m128i) -> __m128i {
        _mm_srli_si128(vector, 8)
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn count(vector: __m128i, number: u32) -> __m128i {
        _mm_add_epi32(vector, _mm_cvtsi32_si128(number as i32))
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn reverse(vector: __m128i) -> __m128i {
        let order = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        _mm_shuffle_epi8(vector, order)
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn encrypt<const COUNT: usize>(
        blocks: &mut [__m128i; COUNT],
        keys: &[[u8; BLOCK_BYTES]; ROUND_KEYS_MAX],
        rounds: usize,
    ) {
        // SAFETY: a key has sixteen bytes.
        unsafe {
            let first = Self::load(keys[0].as_ptr());
            for block in blocks.iter_mut() {
                *block = _mm_xor_si128(*block, first);
            }
            for key in &keys[1..rounds] {
                let key = Self::load(key.as_ptr());
                for block in blocks.iter_mut() {
                    *block = _mm_aesenc_si128(*block, key);
                }
            }
            let last = Self::load(keys[rounds].as_ptr());
            for block in blocks.iter_mut() {
                *block = _mm_aesenclast_si128(*block, last);
            }
        }
    }

    #[target_feature(enable = "aes,pclmulqdq,avx")]
    #[inline]
    unsafe fn substitute(word: u32) -> u32 {
        // All columns are equal, so ShiftRows has no effect.
        let columns = _mm_set1_epi32(word as i32);
        _mm_cvtsi128_si32(_mm_aesenclast_si128(columns, _mm_setzero_si128())) as u32
    }
}
