//! The Armv8 cryptography extension, on vectors of one block.

use std::arch::aarch64::*;

use crate::lanes::{Lanes, functions};
use crate::progress::BLOCK_BYTES;
use crate::schedule::ROUND_KEYS_MAX;

/// Vectors with AES and PMULL.
pub(crate) enum Armv8 {}

functions!(Armv8, "neon,aes");

impl Lanes for Armv8 {
    type Vector = uint8x16_t;

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn load(from: *const u8) -> uint8x16_t {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { vld1q_u8(from) }
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn store(to: *mut u8, vector: uint8x16_t) {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe { vst1q_u8(to, vector) }
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn xor(left: uint8x16_t, right: uint8x16_t) -> uint8x16_t {
        veorq_u8(left, right)
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn low(left: uint8x16_t, right: uint8x16_t) -> uint8x16_t {
        let left = vgetq_lane_u64(vreinterpretq_u64_u8(left), 0);
        let right = vgetq_lane_u64(vreinterpretq_u64_u8(right), 0);
        vreinterpretq_u8_p128(vmull_p64(left, right))
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn high(left: uint8x16_t, right: uint8x16_t) -> uint8x16_t {
        let left = vreinterpretq_p64_u8(left);
        let right = vreinterpretq_p64_u8(right);
        vreinterpretq_u8_p128(vmull_high_p64(left, right))
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn swap(vector: uint8x16_t) -> uint8x16_t {
        vextq_u8(vector, vector, 8)
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn up(vector: uint8x16_t) -> uint8x16_t {
        vextq_u8(vdupq_n_u8(0), vector, 8)
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn down(vector: uint8x16_t) -> uint8x16_t {
        vextq_u8(vector, vdupq_n_u8(0), 8)
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn count(vector: uint8x16_t, number: u32) -> uint8x16_t {
        let number = vsetq_lane_u32(number, vdupq_n_u32(0), 0);
        vreinterpretq_u8_u32(vaddq_u32(vreinterpretq_u32_u8(vector), number))
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn reverse(vector: uint8x16_t) -> uint8x16_t {
        let halves = vrev64q_u8(vector);
        vextq_u8(halves, halves, 8)
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn encrypt<const COUNT: usize>(
        blocks: &mut [uint8x16_t; COUNT],
        keys: &[[u8; BLOCK_BYTES]; ROUND_KEYS_MAX],
        rounds: usize,
    ) {
        // SAFETY: the caller upholds the contract of `Lanes`.
        unsafe {
            // An AES round of Armv8 begins with its round key; a round of FIPS 197 ends with it.
            for key in &keys[..rounds - 1] {
                let key = Self::load(key.as_ptr());
                for block in blocks.iter_mut() {
                    *block = vaesmcq_u8(vaeseq_u8(*block, key));
                }
            }
            let key = Self::load(keys[rounds - 1].as_ptr());
            let last = Self::load(keys[rounds].as_ptr());
            for block in blocks.iter_mut() {
                *block = veorq_u8(vaeseq_u8(*block, key), last);
            }
        }
    }

    #[target_feature(enable = "neon,aes")]
    #[inline]
    unsafe fn substitute(word: u32) -> u32 {
        // All columns are equal, so ShiftRows has no effect.
        let columns = vreinterpretq_u8_u32(vdupq_n_u32(word));
        let result = vaeseq_u8(columns, vdupq_n_u8(0));
        vgetq_lane_u32(vreinterpretq_u32_u8(result), 0)
    }
}
