//! VAES and VPCLMULQDQ on vectors of 512 bits: sixteen blocks at a time, ciphered and hashed in
//! one pass; thirty-two for long chunks, so that eight vectors are in flight through the rounds,
//! and the hash is reduced half as often.
//!
//! A chunk that starts within a block is processed from the start of that block. The bytes before
//! the chunk are masked: not read, not written, and zero in the hash, to which they were already
//! added. The same applies to its end. A chunk therefore has no head and tail that are processed
//! byte by byte: its cost is that of the batches of sixteen blocks that it touches.

use std::arch::asm;
use std::arch::x86_64::*;

use crate::backend::mode::{AUTHENTICATE, DECRYPT, ENCRYPT, KEYSTREAM};
use crate::lanes::{Lanes, block, reduce, vector};
use crate::progress::{BLOCK_BYTES, Progress};
use crate::schedule::{Keys, POWERS};
use crate::x86_64::AesNi;

/// Length of a vector.
const VECTOR_BYTES: usize = 64;
/// Number of vectors of a batch.
const VECTORS: usize = 4;
/// Length of a batch.
const BATCH_BYTES: usize = VECTORS * VECTOR_BYTES;
/// Number of blocks of a batch.
const BLOCKS: usize = BATCH_BYTES / BLOCK_BYTES;
/// No byte is masked.
const ALL: [u64; VECTORS] = [!0; VECTORS];
/// Number of vectors of a long batch, without masked bytes.
const LONG_VECTORS: usize = 8;
/// Length of a long batch.
const LONG_BYTES: usize = LONG_VECTORS * VECTOR_BYTES;
/// Minimum length of a chunk with long batches.
const LONG_FROM_BYTES: usize = 4 * LONG_BYTES;
const _: () = assert!(LONG_BYTES / BLOCK_BYTES <= POWERS);

type Vectors = [__m512i; VECTORS];
type LongVectors = [__m512i; LONG_VECTORS];
/// The factors of the blocks of a batch.
#[derive(Clone, Copy)]
struct Powers<'k, const COUNT: usize> {
    powers: &'k [[u8; BLOCK_BYTES]; COUNT],
    /// The sums of the halves of the factors.
    halves: &'k [[u8; BLOCK_BYTES]; COUNT],
}

impl<'k, const COUNT: usize> Powers<'k, COUNT> {
    /// The factors of a batch of which the first `complete` blocks are complete.
    #[inline(always)]
    fn new(keys: &'k Keys, complete: usize) -> Powers<'k, COUNT> {
        Powers { powers: keys.powers(complete), halves: keys.halves(complete) }
    }

    /// The factors of the four blocks of vector `index`.
    ///
    /// # Safety
    /// The machine has AVX-512 F.
    #[inline(always)]
    unsafe fn vector(&self, index: usize) -> (__m512i, __m512i) {
        let four = |blocks: &[[u8; BLOCK_BYTES]; COUNT]| {
            let four: &[_; 4] = blocks[4 * index..].first_chunk().expect("a batch has vectors");
            // SAFETY: the caller guarantees AVX-512 F; four blocks have the length of a vector.
            unsafe { _mm512_loadu_si512(four.as_ptr().cast()) }
        };
        (four(self.powers), four(self.halves))
    }
}

type ShortPowers<'k> = Powers<'k, BLOCKS>;
type LongPowers<'k> = Powers<'k, { LONG_BYTES / BLOCK_BYTES }>;

/// State that changes from batch to batch.
struct State<'a> {
    /// Counter blocks of the next four blocks, with little-endian counters.
    counters: __m512i,
    /// The hash, bytes reversed.
    hash: __m128i,
    /// Blocks that are hashed during the next batch, where they cause no wait.
    pending: Vectors,
    /// The factors of `pending`.
    powers: ShortPowers<'a>,
}

/// Applies `MODE` to the `bytes` bytes at `from`, the next bytes of the message, and writes the
/// result to `to`, which may be `from`. The caller advances the offset.
///
/// # Safety
/// The machine has the features of [`Backend::Vaes512`](crate::Backend::Vaes512); `bytes` can be
/// read at `from` and, unless `MODE` is [`AUTHENTICATE`], written at `to`; `from` and `to` are
/// equal, or do not overlap.
pub(crate) unsafe fn run<const MODE: u8>(
    keys: &Keys,
    at: &mut Progress,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
) {
    match keys.round_count() {
        // SAFETY: the caller upholds the contract of this function, which is that of `pass`.
        10 => unsafe { pass::<10, MODE>(keys, at, from, to, bytes) },
        // SAFETY: the caller upholds the contract of this function, which is that of `pass`.
        _ => unsafe { pass::<14, MODE>(keys, at, from, to, bytes) },
    }
}

/// # Safety
/// As [`run`].
#[target_feature(enable = "aes,pclmulqdq,avx,avx512f,avx512bw,vaes,vpclmulqdq")]
unsafe fn pass<const ROUNDS: usize, const MODE: u8>(
    keys: &Keys,
    at: &mut Progress,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
) {
    let mut rounds = [_mm512_setzero_si512(); 15];
    for (round, key) in rounds[..=ROUNDS].iter_mut().zip(keys.rounds()) {
        // SAFETY: the features are enabled.
        *round = _mm512_broadcast_i32x4(unsafe { vector::<AesNi>(key) });
    }
    // SAFETY: the features are enabled.
    let (first, hash, order) = unsafe {
        let hash = AesNi::reverse(vector::<AesNi>(&at.hash));
        (vector::<AesNi>(&at.counter()), hash, counter_order())
    };
    let first = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(first), order);
    let ahead = _mm512_set_epi32(3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0);
    let mut state = State {
        counters: _mm512_add_epi32(first, ahead),
        hash,
        pending: [_mm512_setzero_si512(); VECTORS],
        powers: Powers::new(keys, 0),
    };

    // All offsets below are relative to the start of the block that contains the chunk's start.
    let skip = at.skip();
    let mut left = skip + bytes;
    let (mut from, mut to) = (from.wrapping_sub(skip), to.wrapping_sub(skip));
    if skip > 0 || left < LONG_FROM_BYTES {
        let (masks, powers) = edge(keys, skip, left);
        // SAFETY: the bytes from `skip` on can be read and written; the others are masked.
        unsafe { batch::<ROUNDS, MODE, true>(&rounds, powers, &mut state, from, to, masks) };
        (from, to) = (from.wrapping_add(BATCH_BYTES), to.wrapping_add(BATCH_BYTES));
        left = left.saturating_sub(BATCH_BYTES);
    }
    if left >= LONG_FROM_BYTES {
        let bytes = left - left % LONG_BYTES;
        // SAFETY: `left` bytes can be read and written from here on.
        unsafe { long::<ROUNDS, MODE>(&rounds, keys, &mut state, from, to, bytes) };
        (from, to) = (from.wrapping_add(bytes), to.wrapping_add(bytes));
        left -= bytes;
    }
    let powers = Powers::new(keys, BLOCKS);
    while left >= BATCH_BYTES {
        // SAFETY: `left` bytes can be read and written from here on.
        unsafe { batch::<ROUNDS, MODE, false>(&rounds, powers, &mut state, from, to, ALL) };
        (from, to) = (from.wrapping_add(BATCH_BYTES), to.wrapping_add(BATCH_BYTES));
        left -= BATCH_BYTES;
    }
    if left > 0 {
        let (masks, powers) = edge(keys, 0, left);
        // SAFETY: `left` bytes can be read and written; the others are masked.
        unsafe { batch::<ROUNDS, MODE, false>(&rounds, powers, &mut state, from, to, masks) };
    }
    if MODE == ENCRYPT {
        // SAFETY: the features are enabled.
        unsafe { state.absorb() };
    }
    if MODE != KEYSTREAM {
        // SAFETY: the features are enabled.
        at.hash = unsafe { block::<AesNi>(AesNi::reverse(state.hash)) };
    }
}

/// The masks for bytes `skip` to `end` of a batch, and the factors of its blocks.
#[inline(always)]
fn edge(keys: &Keys, skip: usize, end: usize) -> ([u64; VECTORS], ShortPowers<'_>) {
    let below = |bytes: usize| match bytes < VECTOR_BYTES {
        true => (1 << bytes) - 1,
        false => !0,
    };
    let mut masks = [0; VECTORS];
    for (index, mask) in masks.iter_mut().enumerate() {
        *mask = below(end.saturating_sub(index * VECTOR_BYTES));
    }
    masks[0] &= !0 << skip;
    (masks, Powers::new(keys, end.min(BATCH_BYTES) / BLOCK_BYTES))
}

// The functions below are inlined into `pass`, because calls would pass vectors through memory. A
// function with target features cannot be `inline(always)`; they therefore have none, and are
// unsafe.

/// Processes sixteen blocks at `from`, restricted to the bytes in `masks`; `FIRST` if nothing is
/// pending.
///
/// # Safety
/// As [`run`], for the bytes in `masks`.
#[inline(always)]
unsafe fn batch<'a, const ROUNDS: usize, const MODE: u8, const FIRST: bool>(
    rounds: &[__m512i; 15],
    powers: ShortPowers<'a>,
    state: &mut State<'a>,
    from: *const u8,
    to: *mut u8,
    masks: [u64; VECTORS],
) {
    // SAFETY: the caller guarantees the features. Only the bytes in the masks are read and
    // written, which the caller allows.
    unsafe {
        let mut data = [_mm512_setzero_si512(); VECTORS];
        for index in 0..VECTORS {
            let from = from.wrapping_add(index * VECTOR_BYTES).cast();
            data[index] = _mm512_maskz_loadu_epi8(masks[index], from);
        }
        if MODE == DECRYPT || MODE == AUTHENTICATE {
            (state.pending, state.powers) = (data, powers);
        }
        if MODE == AUTHENTICATE {
            return state.absorb();
        }
        let stream = match MODE == DECRYPT || MODE == ENCRYPT && !FIRST {
            true => state.stream_and_absorb::<ROUNDS>(rounds),
            false => state.stream::<ROUNDS>(rounds),
        };
        for index in 0..VECTORS {
            let to = to.wrapping_add(index * VECTOR_BYTES).cast();
            data[index] = _mm512_xor_si512(data[index], stream[index]);
            _mm512_mask_storeu_epi8(to, masks[index], data[index]);
        }
        if MODE == ENCRYPT {
            for index in 0..VECTORS {
                data[index] = _mm512_maskz_mov_epi8(masks[index], data[index]);
            }
            (state.pending, state.powers) = (data, powers);
        }
    }
}

/// Processes the `bytes` bytes at `from`, which are complete long batches and at least one;
/// nothing is pending afterwards.
///
/// # Safety
/// As [`run`].
#[inline(always)]
unsafe fn long<'a, const ROUNDS: usize, const MODE: u8>(
    rounds: &[__m512i; 15],
    keys: &'a Keys,
    state: &mut State<'a>,
    mut from: *const u8,
    mut to: *mut u8,
    bytes: usize,
) {
    let powers = LongPowers::new(keys, LONG_BYTES / BLOCK_BYTES);
    // SAFETY: the caller guarantees the features, and that `bytes` can be read and written.
    unsafe {
        if MODE == ENCRYPT {
            // The pending blocks of the previous batch have another size.
            state.absorb();
            (state.pending, state.powers) =
                ([_mm512_setzero_si512(); VECTORS], Powers::new(keys, 0));
        }
        let mut pending = [_mm512_setzero_si512(); LONG_VECTORS];
        for number in 0..bytes / LONG_BYTES {
            let mut data = [_mm512_setzero_si512(); LONG_VECTORS];
            for (index, data) in data.iter_mut().enumerate() {
                *data = _mm512_loadu_si512(from.add(index * VECTOR_BYTES).cast());
            }
            if MODE == DECRYPT || MODE == AUTHENTICATE {
                pending = data;
            }
            if MODE == AUTHENTICATE {
                state.absorb_long(&pending, powers);
            } else {
                let hashed = match MODE == DECRYPT || MODE == ENCRYPT && number > 0 {
                    true => Some((&pending, powers)),
                    false => None,
                };
                let stream = state.stream_long::<ROUNDS>(rounds, hashed);
                for (index, data) in data.iter_mut().enumerate() {
                    *data = _mm512_xor_si512(*data, stream[index]);
                    _mm512_storeu_si512(to.add(index * VECTOR_BYTES).cast(), *data);
                }
                if MODE == ENCRYPT {
                    pending = data;
                }
            }
            (from, to) = (from.wrapping_add(LONG_BYTES), to.wrapping_add(LONG_BYTES));
        }
        if MODE == ENCRYPT {
            state.absorb_long(&pending, powers);
        }
    }
}

impl State<'_> {
    /// Hashes a long batch, with one reduction.
    ///
    /// # Safety
    /// The features of [`pass`] are enabled. This applies to all functions below.
    #[inline(always)]
    unsafe fn absorb_long(&mut self, blocks: &LongVectors, powers: LongPowers<'_>) {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let mut sums = Sums::none();
            for index in (0..LONG_VECTORS).rev() {
                self.add_block(index, blocks[index], powers.vector(index), &mut sums);
            }
            self.hash = sums.reduce();
        }
    }

    /// The key stream of the next thirty-two blocks; `hashed` is hashed between the rounds.
    #[inline(always)]
    unsafe fn stream_long<const ROUNDS: usize>(
        &mut self,
        rounds: &[__m512i; 15],
        hashed: Option<(&LongVectors, LongPowers<'_>)>,
    ) -> LongVectors {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let mut blocks: LongVectors = self.count(rounds[0]);
            let mut sums = Sums::none();
            // Unrolled, because the vectors must stay in registers.
            macro_rules! rounds {
                ($($round:literal)*) => {$(
                    if $round < ROUNDS {
                        encrypt(&mut blocks, rounds[$round], &mut sums);
                        // The first blocks come last, because they depend on the previous batch.
                        if let Some((pending, powers)) = hashed && $round <= LONG_VECTORS {
                            const INDEX: usize = LONG_VECTORS.saturating_sub($round);
                            let powers = powers.vector(INDEX);
                            self.add_block(INDEX, pending[INDEX], powers, &mut sums);
                        }
                    }
                )*};
            }
            rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
            encrypt_last(&mut blocks, rounds[ROUNDS]);
            if hashed.is_some() {
                self.hash = sums.reduce();
            }
            blocks
        }
    }

    /// Hashes the pending blocks, with one reduction.
    #[inline(always)]
    unsafe fn absorb(&mut self) {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let mut sums = Sums::none();
            for index in (0..VECTORS).rev() {
                self.add(index, &mut sums);
            }
            self.hash = sums.reduce();
        }
    }

    /// Adds four of the pending blocks, multiplied by their powers, to `sums`.
    #[inline(always)]
    unsafe fn add(&self, index: usize, sums: &mut Sums) {
        // SAFETY: the caller guarantees the features.
        unsafe {
            self.add_block(index, self.pending[index], self.powers.vector(index), sums);
        }
    }

    /// Adds the four blocks of vector `index` of a batch, multiplied by `powers`, to `sums`; the
    /// previous hash is added to the very first block.
    #[inline(always)]
    unsafe fn add_block(
        &self,
        index: usize,
        blocks: __m512i,
        powers: (__m512i, __m512i),
        sums: &mut Sums,
    ) {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let reversed = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
            let reversed = _mm512_broadcast_i32x4(reversed);
            let mut blocks = _mm512_shuffle_epi8(blocks, reversed);
            if index == 0 {
                blocks = _mm512_xor_si512(blocks, _mm512_zextsi128_si512(self.hash));
            }
            sums.add(blocks, powers);
        }
    }

    /// The counters of the next blocks, with the first round key.
    #[inline(always)]
    unsafe fn count<const N: usize>(&mut self, first: __m512i) -> [__m512i; N] {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let four = _mm512_set_epi32(4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0);
            let mut blocks = [_mm512_setzero_si512(); N];
            for block in &mut blocks {
                let counters = _mm512_shuffle_epi8(self.counters, counter_order());
                *block = _mm512_xor_si512(counters, first);
                self.counters = _mm512_add_epi32(self.counters, four);
            }
            blocks
        }
    }

    /// The key stream of the next sixteen blocks.
    #[inline(always)]
    unsafe fn stream<const ROUNDS: usize>(&mut self, rounds: &[__m512i; 15]) -> Vectors {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let mut blocks: Vectors = self.count(rounds[0]);
            let mut sums = Sums::none();
            macro_rules! rounds {
                ($($round:literal)*) => {$(
                    if $round < ROUNDS {
                        encrypt(&mut blocks, rounds[$round], &mut sums);
                    }
                )*};
            }
            rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
            encrypt_last(&mut blocks, rounds[ROUNDS]);
            blocks
        }
    }

    /// As above, and hashes the pending blocks between the rounds, which depend on each other.
    #[inline(always)]
    unsafe fn stream_and_absorb<const ROUNDS: usize>(&mut self, rounds: &[__m512i; 15]) -> Vectors {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let mut blocks: Vectors = self.count(rounds[0]);
            let mut sums = Sums::none();
            // Unrolled, because the vectors must stay in registers.
            macro_rules! rounds {
                ($($round:literal)*) => {$(
                    if $round < ROUNDS {
                        encrypt(&mut blocks, rounds[$round], &mut sums);
                        // The first blocks come last, because they depend on the previous batch.
                        if $round % 2 == 0 && $round / 2 <= VECTORS {
                            self.add(VECTORS - $round / 2, &mut sums);
                        }
                    }
                )*};
            }
            rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
            encrypt_last(&mut blocks, rounds[ROUNDS]);
            self.hash = sums.reduce();
            blocks
        }
    }
}

/// Applies one AES round to a batch.
#[inline(always)]
unsafe fn encrypt<const N: usize>(blocks: &mut [__m512i; N], key: __m512i, sums: &mut Sums) {
    // SAFETY: the caller guarantees the features.
    unsafe {
        for block in blocks.iter_mut() {
            *block = _mm512_aesenc_epi128(*block, key);
        }
        for four in blocks.as_chunks_mut().0 {
            in_step(four, sums);
        }
    }
}

/// Prevents the compiler from processing one block after the other, which would need fewer
/// registers but make each round wait for the previous one.
#[target_feature(enable = "avx512f")]
#[inline]
fn in_step([first, second, third, fourth]: &mut Vectors, sums: &mut Sums) {
    // SAFETY: the empty assembly does not change the registers.
    unsafe {
        asm!("/* {0} {1} {2} {3} {4} {5} {6} */",
            inout(zmm_reg) *first, inout(zmm_reg) *second, inout(zmm_reg) *third,
            inout(zmm_reg) *fourth, inout(zmm_reg) sums.low, inout(zmm_reg) sums.cross,
            inout(zmm_reg) sums.high, options(pure, nomem, nostack, preserves_flags));
    }
}

/// Applies the last AES round.
#[inline(always)]
unsafe fn encrypt_last<const N: usize>(blocks: &mut [__m512i; N], key: __m512i) {
    for block in blocks {
        // SAFETY: the caller guarantees the features.
        *block = unsafe { _mm512_aesenclast_epi128(*block, key) };
    }
}

/// Shuffle constant that swaps the halves of blocks.
const SWAP: i32 = 0x4E;

/// The sums of the parts of products, by Karatsuba's method: three products of halves instead of
/// four, because these products dominate the run time.
struct Sums {
    low: __m512i,
    /// Of the products of sums of halves; it includes `low` and `high`.
    cross: __m512i,
    high: __m512i,
}

impl Sums {
    #[inline(always)]
    unsafe fn none() -> Sums {
        // SAFETY: the caller guarantees the features.
        let zero = unsafe { _mm512_setzero_si512() };
        Sums { low: zero, cross: zero, high: zero }
    }

    /// Adds the product of four blocks and their powers, with the precomputed sums of halves.
    #[inline(always)]
    unsafe fn add(&mut self, block: __m512i, (power, halves): (__m512i, __m512i)) {
        // SAFETY: the caller guarantees the features.
        unsafe {
            self.low = _mm512_xor_si512(self.low, _mm512_clmulepi64_epi128(block, power, 0x00));
            self.high = _mm512_xor_si512(self.high, _mm512_clmulepi64_epi128(block, power, 0x11));
            let block = _mm512_xor_si512(block, _mm512_shuffle_epi32(block, SWAP));
            let product = _mm512_clmulepi64_epi128(block, halves, 0x00);
            self.cross = _mm512_xor_si512(self.cross, product);
        }
    }

    /// The reduced sum.
    #[inline(always)]
    unsafe fn reduce(self) -> __m128i {
        // SAFETY: the caller guarantees the features.
        unsafe {
            let cross = _mm512_ternarylogic_epi64(self.cross, self.low, self.high, 0x96);
            reduce::<AesNi>(fold(self.low), fold(cross), fold(self.high))
        }
    }
}

/// The sum of the four blocks of a vector.
#[inline(always)]
unsafe fn fold(sum: __m512i) -> __m128i {
    // SAFETY: the caller guarantees the features.
    unsafe {
        let half = _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extractf128_si256(half, 1))
    }
}

/// Reverses the byte order of counters, the last word of each block.
#[inline(always)]
unsafe fn counter_order() -> __m512i {
    // SAFETY: the caller guarantees the features.
    unsafe {
        _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0))
    }
}
