//! VAES and VPCLMULQDQ on vectors of 512 bits: sixteen blocks at a time, ciphered and hashed in one
//! pass.
//!
//! A piece that starts within a block is looked at from where the block starts. The octets before
//! it are masked: not read, not written, and zero in the hash, to which they were added when they
//! came. The same at its end. So a piece has no head and tail to be done octet by octet: it costs
//! the batches of sixteen blocks that it touches.

use std::arch::x86_64::*;

use crate::backend::mode::{AUTHENTICATE, DECRYPT, ENCRYPT, KEYSTREAM};
use crate::progress::{BLOCK_BYTES, Progress};
use crate::schedule::Keys;
use crate::x86_64::{octets, reduce, vector};

/// Octets of a vector.
const VECTOR_BYTES: usize = 64;
/// Vectors of a batch.
const VECTORS: usize = 4;
/// Octets of a batch.
const BATCH_BYTES: usize = VECTORS * VECTOR_BYTES;
/// Blocks of a batch.
const BLOCKS: usize = BATCH_BYTES / BLOCK_BYTES;
/// No octet is masked.
const ALL: [u64; VECTORS] = [!0; VECTORS];

type Vectors = [__m512i; VECTORS];

/// What changes from batch to batch.
struct State {
    /// Counter blocks of the next four blocks, the counters with their low octets first.
    counters: __m512i,
    /// The hash, octets reversed.
    hash: __m128i,
}

/// Does what `MODE` says with the `bytes` octets at `from`, the next ones of the message, and
/// writes them to `to`, which may be `from`. The offset is the caller's to change.
///
/// # Safety
/// The machine has what [`Backend::Vaes512`](crate::Backend::Vaes512) needs; `bytes` can be read at
/// `from` and, unless `MODE` is [`AUTHENTICATE`], written at `to`; `from` and `to` are one place, or
/// do not overlap.
pub(crate) unsafe fn run<const MODE: u8>(
    keys: &Keys,
    at: &mut Progress,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
) {
    match keys.is_256() {
        // SAFETY: as the caller says.
        false => unsafe { pass::<10, MODE>(keys, at, from, to, bytes) },
        // SAFETY: as the caller says.
        true => unsafe { pass::<14, MODE>(keys, at, from, to, bytes) },
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "aes,pclmulqdq,avx,bmi2,avx512f,avx512bw,vaes,vpclmulqdq")]
unsafe fn pass<const ROUNDS: usize, const MODE: u8>(
    keys: &Keys,
    at: &mut Progress,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
) {
    let mut rounds = [_mm512_setzero_si512(); 15];
    for (round, key) in rounds[..=ROUNDS].iter_mut().zip(keys.rounds()) {
        *round = _mm512_broadcast_i32x4(vector(u128::from_le_bytes(*key)));
    }
    let first = _mm512_broadcast_i32x4(vector(u128::from_le_bytes(at.counter())));
    let mut state = State {
        counters: _mm512_add_epi32(
            _mm512_shuffle_epi8(first, counter_order()),
            _mm512_set_epi32(3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0),
        ),
        hash: vector(u128::from_be_bytes(at.hash)),
    };

    // From here all is counted from the start of the block that the piece starts in.
    let mut skip = at.skip();
    let mut left = skip + bytes;
    let (mut from, mut to) = (from.wrapping_sub(skip), to.wrapping_sub(skip));
    while left > 0 {
        if skip == 0 && left >= BATCH_BYTES {
            let powers = powers(keys, BLOCKS);
            while left >= BATCH_BYTES {
                // SAFETY: `left` octets can be read and written from here on.
                unsafe { batch::<ROUNDS, MODE>(&rounds, &powers, &mut state, from, to, ALL) };
                (from, to) = (from.wrapping_add(BATCH_BYTES), to.wrapping_add(BATCH_BYTES));
                left -= BATCH_BYTES;
            }
        } else {
            let end = left.min(BATCH_BYTES);
            let mut masks = [0; VECTORS];
            for (index, mask) in masks.iter_mut().enumerate() {
                let in_vector = end.saturating_sub(index * VECTOR_BYTES);
                *mask = _bzhi_u64(!0, in_vector.min(VECTOR_BYTES) as u32);
            }
            masks[0] &= !0 << skip;
            let powers = powers(keys, end / BLOCK_BYTES);
            // SAFETY: the octets from `skip` to `end` can be read and written, others are masked.
            unsafe { batch::<ROUNDS, MODE>(&rounds, &powers, &mut state, from, to, masks) };
            (from, to) = (from.wrapping_add(BATCH_BYTES), to.wrapping_add(BATCH_BYTES));
            left -= end;
            skip = 0;
        }
    }
    if MODE != KEYSTREAM {
        at.hash = octets(state.hash).to_be_bytes();
    }
}

/// Sixteen blocks at `from`, of which the octets in `masks` are meant.
///
/// # Safety
/// As [`run`], for the octets in `masks`.
#[target_feature(enable = "aes,pclmulqdq,avx,bmi2,avx512f,avx512bw,vaes,vpclmulqdq")]
#[inline]
unsafe fn batch<const ROUNDS: usize, const MODE: u8>(
    rounds: &[__m512i; 15],
    powers: &Vectors,
    state: &mut State,
    from: *const u8,
    to: *mut u8,
    masks: [u64; VECTORS],
) {
    let mut data = [_mm512_setzero_si512(); VECTORS];
    for (index, data) in data.iter_mut().enumerate() {
        let from = from.wrapping_add(index * VECTOR_BYTES).cast();
        // SAFETY: of the vector only the octets in the mask are read, which the caller may read.
        *data = unsafe { _mm512_maskz_loadu_epi8(masks[index], from) };
    }
    if MODE == AUTHENTICATE {
        state.hash = absorb(state.hash, data, powers);
        return;
    }
    let stream = stream::<ROUNDS>(rounds, &mut state.counters);
    let mut result = data;
    for (result, stream) in result.iter_mut().zip(stream) {
        *result = _mm512_xor_si512(*result, stream);
    }
    for (index, result) in result.iter().enumerate() {
        let to = to.wrapping_add(index * VECTOR_BYTES).cast();
        // SAFETY: of the vector only the octets in the mask are written, which the caller may write.
        unsafe { _mm512_mask_storeu_epi8(to, masks[index], *result) };
    }
    if MODE == DECRYPT {
        state.hash = absorb(state.hash, data, powers);
    }
    if MODE == ENCRYPT {
        for (result, mask) in result.iter_mut().zip(masks) {
            *result = _mm512_maskz_mov_epi8(mask, *result);
        }
        state.hash = absorb(state.hash, result, powers);
    }
}

/// The key stream of the next sixteen blocks.
#[target_feature(enable = "avx512f,avx512bw,vaes")]
#[inline]
fn stream<const ROUNDS: usize>(rounds: &[__m512i; 15], counters: &mut __m512i) -> Vectors {
    let four = _mm512_set_epi32(4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0);
    let mut blocks = [_mm512_setzero_si512(); VECTORS];
    for block in &mut blocks {
        *block = _mm512_xor_si512(_mm512_shuffle_epi8(*counters, counter_order()), rounds[0]);
        *counters = _mm512_add_epi32(*counters, four);
    }
    for round in &rounds[1..ROUNDS] {
        for block in &mut blocks {
            *block = _mm512_aesenc_epi128(*block, *round);
        }
    }
    for block in &mut blocks {
        *block = _mm512_aesenclast_epi128(*block, rounds[ROUNDS]);
    }
    blocks
}

/// Hashes sixteen blocks, with one reduction.
#[target_feature(enable = "pclmulqdq,avx,avx512f,avx512bw,vpclmulqdq")]
#[inline]
fn absorb(hash: __m128i, mut blocks: Vectors, powers: &Vectors) -> __m128i {
    let reversed = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    for block in &mut blocks {
        *block = _mm512_shuffle_epi8(*block, _mm512_broadcast_i32x4(reversed));
    }
    blocks[0] = _mm512_xor_si512(blocks[0], _mm512_zextsi128_si512(hash));
    let mut sums = [_mm512_setzero_si512(); 3];
    // The first vector last: it waits for the batch before.
    for (block, power) in blocks.into_iter().zip(*powers).rev() {
        let [low, cross, high] = &mut sums;
        *low = _mm512_xor_si512(*low, _mm512_clmulepi64_epi128(block, power, 0x00));
        *high = _mm512_xor_si512(*high, _mm512_clmulepi64_epi128(block, power, 0x11));
        let left = _mm512_clmulepi64_epi128(block, power, 0x01);
        let right = _mm512_clmulepi64_epi128(block, power, 0x10);
        *cross = _mm512_ternarylogic_epi64(*cross, left, right, 0x96);
    }
    let [low, cross, high] = sums.map(|sum| {
        let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extractf128_si256(half, 1))
    });
    reduce(low, cross, high)
}

/// What sixteen blocks are multiplied by, of which the first `complete` are complete.
#[target_feature(enable = "avx512f")]
#[inline]
fn powers(keys: &Keys, complete: usize) -> Vectors {
    let powers = keys.powers::<BLOCKS>(complete).as_flattened();
    let mut vectors = [_mm512_setzero_si512(); VECTORS];
    for (vector, octets) in vectors.iter_mut().zip(powers.as_chunks::<VECTOR_BYTES>().0) {
        // SAFETY: the chunk has as many octets as the vector.
        *vector = unsafe { _mm512_loadu_si512(octets.as_ptr().cast()) };
    }
    vectors
}

/// Turns counters, the last word of each block, around.
#[target_feature(enable = "avx512f")]
#[inline]
fn counter_order() -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0))
}
