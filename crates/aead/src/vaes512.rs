//! VAES and VPCLMULQDQ on vectors of 512 bits: sixteen blocks at a time, ciphered and hashed in one
//! pass.
//!
//! A piece that starts within a block is looked at from where the block starts. The octets before
//! it are masked: not read, not written, and zero in the hash, to which they were added when they
//! came. The same at its end. So a piece has no head and tail to be done octet by octet: it costs
//! the batches of sixteen blocks that it touches.

use std::arch::asm;
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
/// What the blocks of a batch are multiplied by.
type Powers = [[u8; BLOCK_BYTES]; BLOCKS];

/// What changes from batch to batch.
struct State<'a> {
    /// Counter blocks of the next four blocks, the counters with their low octets first.
    counters: __m512i,
    /// The hash, octets reversed.
    hash: __m128i,
    /// What is to be hashed with the next batch: there is nothing to wait for in it then.
    pending: Vectors,
    /// And multiplied by.
    powers: &'a Powers,
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
        pending: [_mm512_setzero_si512(); VECTORS],
        powers: keys.powers(0),
    };

    // From here all is counted from the start of the block that the piece starts in.
    let skip = at.skip();
    let mut left = skip + bytes;
    let (mut from, mut to) = (from.wrapping_sub(skip), to.wrapping_sub(skip));
    let (masks, powers) = edge(keys, skip, left);
    // SAFETY: the octets from `skip` on can be read and written, others are masked.
    unsafe { batch::<ROUNDS, MODE, true>(&rounds, powers, &mut state, from, to, masks) };
    let powers = keys.powers(BLOCKS);
    loop {
        (from, to) = (from.wrapping_add(BATCH_BYTES), to.wrapping_add(BATCH_BYTES));
        left = left.saturating_sub(BATCH_BYTES);
        if left < BATCH_BYTES {
            break;
        }
        // SAFETY: `left` octets can be read and written from here on.
        unsafe { batch::<ROUNDS, MODE, false>(&rounds, powers, &mut state, from, to, ALL) };
    }
    if left > 0 {
        let (masks, powers) = edge(keys, 0, left);
        // SAFETY: `left` octets can be read and written, others are masked.
        unsafe { batch::<ROUNDS, MODE, false>(&rounds, powers, &mut state, from, to, masks) };
    }
    if MODE == ENCRYPT {
        state.absorb();
    }
    if MODE != KEYSTREAM {
        at.hash = octets(state.hash).to_be_bytes();
    }
}

/// The masks for octets `skip` to `end` of a batch, and what its blocks are multiplied by.
#[target_feature(enable = "bmi2")]
#[inline]
fn edge(keys: &Keys, skip: usize, end: usize) -> ([u64; VECTORS], &Powers) {
    let mut masks = [0; VECTORS];
    for (index, mask) in masks.iter_mut().enumerate() {
        let in_vector = end.saturating_sub(index * VECTOR_BYTES).min(VECTOR_BYTES);
        *mask = _bzhi_u64(!0, in_vector as u32);
    }
    masks[0] &= !0 << skip;
    (masks, keys.powers(end.min(BATCH_BYTES) / BLOCK_BYTES))
}

/// Sixteen blocks at `from`, of which the octets in `masks` are meant; `FIRST` where nothing is
/// pending.
///
/// # Safety
/// As [`run`], for the octets in `masks`.
#[target_feature(enable = "aes,pclmulqdq,avx,bmi2,avx512f,avx512bw,vaes,vpclmulqdq")]
#[inline]
unsafe fn batch<'a, const ROUNDS: usize, const MODE: u8, const FIRST: bool>(
    rounds: &[__m512i; 15],
    powers: &'a Powers,
    state: &mut State<'a>,
    from: *const u8,
    to: *mut u8,
    masks: [u64; VECTORS],
) {
    let mut data = [_mm512_setzero_si512(); VECTORS];
    for index in 0..VECTORS {
        let from = from.wrapping_add(index * VECTOR_BYTES).cast();
        // SAFETY: of the vector only the octets in the mask are read, which the caller may read.
        data[index] = unsafe { _mm512_maskz_loadu_epi8(masks[index], from) };
    }
    if MODE == DECRYPT || MODE == AUTHENTICATE {
        (state.pending, state.powers) = (data, powers);
    }
    if MODE == AUTHENTICATE {
        return state.absorb();
    }
    let stream = match MODE == DECRYPT || MODE == ENCRYPT && !FIRST {
        true => state.stream::<ROUNDS, true>(rounds),
        false => state.stream::<ROUNDS, false>(rounds),
    };
    for index in 0..VECTORS {
        let to = to.wrapping_add(index * VECTOR_BYTES).cast();
        data[index] = _mm512_xor_si512(data[index], stream[index]);
        // SAFETY: of the vector only the octets in the mask are written, which the caller may write.
        unsafe { _mm512_mask_storeu_epi8(to, masks[index], data[index]) };
    }
    if MODE == ENCRYPT {
        for index in 0..VECTORS {
            data[index] = _mm512_maskz_mov_epi8(masks[index], data[index]);
        }
        (state.pending, state.powers) = (data, powers);
    }
}

/// The sums of the parts of products.
struct Sums {
    low: __m512i,
    cross: __m512i,
    high: __m512i,
}

impl Sums {
    /// Adds the product of four blocks and their powers.
    #[target_feature(enable = "avx512f,avx512bw,vpclmulqdq")]
    #[inline]
    fn add(&mut self, block: __m512i, power: __m512i) {
        self.low = _mm512_xor_si512(self.low, _mm512_clmulepi64_epi128(block, power, 0x00));
        self.high = _mm512_xor_si512(self.high, _mm512_clmulepi64_epi128(block, power, 0x11));
        let left = _mm512_clmulepi64_epi128(block, power, 0x01);
        let right = _mm512_clmulepi64_epi128(block, power, 0x10);
        self.cross = _mm512_ternarylogic_epi64(self.cross, left, right, 0x96);
    }

    /// The sum of all, reduced.
    #[target_feature(enable = "pclmulqdq,avx,avx512f")]
    #[inline]
    fn reduce(self) -> __m128i {
        let [low, cross, high] = [self.low, self.cross, self.high].map(|sum| {
            let half =
                _mm256_xor_si256(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
            _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extractf128_si256(half, 1))
        });
        reduce(low, cross, high)
    }
}

impl State<'_> {
    /// Four of the pending blocks, octets reversed, and what they are multiplied by.
    #[target_feature(enable = "avx512f,avx512bw")]
    #[inline]
    fn factors(&self, index: usize) -> (__m512i, __m512i) {
        let reversed = _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let reversed = _mm512_broadcast_i32x4(reversed);
        let mut blocks = _mm512_shuffle_epi8(self.pending[index], reversed);
        if index == 0 {
            blocks = _mm512_xor_si512(blocks, _mm512_zextsi128_si512(self.hash));
        }
        let powers = &self.powers.as_flattened().as_chunks::<VECTOR_BYTES>().0[index];
        // SAFETY: the chunk has as many octets as the vector.
        (blocks, unsafe { _mm512_loadu_si512(powers.as_ptr().cast()) })
    }

    /// Hashes what is pending, with one reduction.
    #[target_feature(enable = "pclmulqdq,avx,avx512f,avx512bw,vpclmulqdq")]
    #[inline]
    fn absorb(&mut self) {
        let zero = _mm512_setzero_si512();
        let mut sums = Sums { low: zero, cross: zero, high: zero };
        for index in (0..VECTORS).rev() {
            let (blocks, powers) = self.factors(index);
            sums.add(blocks, powers);
        }
        self.hash = sums.reduce();
    }

    /// The key stream of the next sixteen blocks. Where it is to `HASH` what is pending, that is
    /// done between the rounds, which wait for one another.
    #[target_feature(enable = "aes,pclmulqdq,avx,avx512f,avx512bw,vaes,vpclmulqdq")]
    #[inline]
    fn stream<const ROUNDS: usize, const HASH: bool>(&mut self, rounds: &[__m512i; 15]) -> Vectors {
        let zero = _mm512_setzero_si512();
        let four = _mm512_set_epi32(4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0);
        let mut blocks = [zero; VECTORS];
        for block in &mut blocks {
            let counters = _mm512_shuffle_epi8(self.counters, counter_order());
            *block = _mm512_xor_si512(counters, rounds[0]);
            self.counters = _mm512_add_epi32(self.counters, four);
        }
        let mut sums = Sums { low: zero, cross: zero, high: zero };
        // Written out, since a loop over registers has to be.
        macro_rules! rounds {
            ($($round:literal)*) => {$(
                if $round < ROUNDS {
                    for block in &mut blocks {
                        *block = _mm512_aesenc_epi128(*block, rounds[$round]);
                    }
                    in_step(&mut blocks);
                    if HASH && $round % 2 == 0 && $round / 2 <= VECTORS {
                        // The first blocks last: they wait for the batch before.
                        let (blocks, powers) = self.factors(VECTORS - $round / 2);
                        sums.add(blocks, powers);
                    }
                }
            )*};
        }
        rounds!(1 2 3 4 5 6 7 8 9 10 11 12 13);
        for block in &mut blocks {
            *block = _mm512_aesenclast_epi128(*block, rounds[ROUNDS]);
        }
        if HASH {
            self.hash = sums.reduce();
        }
        blocks
    }
}

/// Keeps the compiler from doing one block after the other, which would save it registers and make
/// each round wait for the one before.
#[target_feature(enable = "avx512f")]
#[inline]
fn in_step([first, second, third, fourth]: &mut Vectors) {
    // SAFETY: it does nothing with the four registers.
    unsafe {
        asm!(
            "/* {0} {1} {2} {3} */",
            inout(zmm_reg) * first,
            inout(zmm_reg) * second,
            inout(zmm_reg) * third,
            inout(zmm_reg) * fourth,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
}

/// Turns counters, the last word of each block, around.
#[target_feature(enable = "avx512f")]
#[inline]
fn counter_order() -> __m512i {
    _mm512_broadcast_i32x4(_mm_set_epi8(12, 13, 14, 15, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0))
}
