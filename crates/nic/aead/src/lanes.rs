//! AES-GCM on vectors of one block, eight blocks at a time, for the instructions of a [`Lanes`].
//!
//! The functions are inlined into one with the target features (`functions!`), because a call
//! would pass vectors through memory, and a function with target features cannot be
//! `inline(always)`. They therefore have no target features, and are unsafe.

use crate::backend::mode::{AUTHENTICATE, DECRYPT, ENCRYPT, KEYSTREAM};
use crate::progress::{BLOCK_BYTES, Progress, tag_block};
use crate::schedule::{Keys, ROUND_KEYS_MAX};

/// Number of blocks of a batch.
const BLOCKS: usize = 8;
/// Length of a batch.
const BATCH_BYTES: usize = BLOCKS * BLOCK_BYTES;
/// The high half of the POLYVAL polynomial, as the low half of a vector.
const POLYNOMIAL: u128 = 0xC200_0000_0000_0000;

type Block = [u8; BLOCK_BYTES];

/// Instructions on vectors of one block.
///
/// # Safety
/// The processor must support the instructions of every method; `load` and `store` need sixteen
/// bytes that can be read or written.
pub(crate) trait Lanes {
    /// A vector.
    type Vector: Copy;
    /// Loads sixteen bytes.
    unsafe fn load(from: *const u8) -> Self::Vector;
    /// Stores sixteen bytes.
    unsafe fn store(to: *mut u8, vector: Self::Vector);
    /// Exclusive-or.
    unsafe fn xor(left: Self::Vector, right: Self::Vector) -> Self::Vector;
    /// The carry-less product of the low halves.
    unsafe fn low(left: Self::Vector, right: Self::Vector) -> Self::Vector;
    /// The carry-less product of the high halves.
    unsafe fn high(left: Self::Vector, right: Self::Vector) -> Self::Vector;
    /// Swaps low and high half.
    unsafe fn swap(vector: Self::Vector) -> Self::Vector;
    /// Moves the low half to the high one, and zeroes the low half.
    unsafe fn up(vector: Self::Vector) -> Self::Vector;
    /// Moves the high half to the low one, and zeroes the high half.
    unsafe fn down(vector: Self::Vector) -> Self::Vector;
    /// Adds to the first word, little-endian, modulo 2^32.
    unsafe fn count(vector: Self::Vector, number: u32) -> Self::Vector;
    /// Reverses the bytes.
    unsafe fn reverse(vector: Self::Vector) -> Self::Vector;
    /// Encrypts `COUNT` vectors with AES of the given number of rounds.
    unsafe fn encrypt<const COUNT: usize>(
        blocks: &mut [Self::Vector; COUNT],
        keys: &[Block; ROUND_KEYS_MAX],
        rounds: usize,
    );
    /// Applies the AES S-box to each byte.
    unsafe fn substitute(word: u32) -> u32;
}

/// Defines the functions of a backend with the given target features.
macro_rules! functions {
    ($lanes:ty, $features:literal) => {
        /// Expands a key of 16 or 32 bytes.
        #[target_feature(enable = $features)]
        pub(crate) fn expand(key: &[u8], hash_key: &[u8; 16]) -> Box<crate::schedule::Keys> {
            // SAFETY: the features are enabled.
            unsafe { crate::lanes::expand::<$lanes>(key, hash_key) }
        }

        /// The hash of the padded additional data.
        #[target_feature(enable = $features)]
        pub(crate) fn begin(keys: &crate::schedule::Keys, aad: &[u8]) -> [u8; 16] {
            // SAFETY: the features are enabled.
            unsafe { crate::lanes::begin::<$lanes>(keys, aad) }
        }

        /// The tag of the message that ends at `at`.
        #[target_feature(enable = $features)]
        pub(crate) fn tag(
            keys: &crate::schedule::Keys,
            at: &crate::progress::Progress,
        ) -> [u8; 16] {
            // SAFETY: the features are enabled.
            unsafe { crate::lanes::tag::<$lanes>(keys, at) }
        }

        /// Applies `MODE` to the `bytes` bytes at `from`, the next bytes of the message, and
        /// writes the result to `to`, which may be `from`. The caller advances the offset.
        ///
        /// # Safety
        /// `bytes` can be read at `from` and, unless `MODE` is to authenticate, written at `to`;
        /// `from` and `to` are equal, or do not overlap.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn run<const MODE: u8>(
            keys: &crate::schedule::Keys,
            at: &mut crate::progress::Progress,
            from: *const u8,
            to: *mut u8,
            bytes: usize,
        ) {
            // SAFETY: the features are enabled; the caller guarantees the rest.
            unsafe { crate::lanes::run::<$lanes, MODE>(keys, at, from, to, bytes) }
        }
    };
}
pub(crate) use functions;

/// Expands a key.
///
/// # Safety
/// The processor has the instructions of `L`. This applies to all functions below.
#[inline(always)]
pub(crate) unsafe fn expand<L: Lanes>(key: &[u8], hash_key: &Block) -> Box<Keys> {
    let substitute = |word| {
        // SAFETY: the caller guarantees the instructions.
        unsafe { L::substitute(word) }
    };
    let product = |left: &Block, right: &Block| {
        // SAFETY: the caller guarantees the instructions.
        unsafe { block::<L>(dot::<L>(vector::<L>(left), vector::<L>(right))) }
    };
    Keys::new(key, hash_key, substitute, product)
}

/// Hashes the additional data of a message.
#[inline(always)]
pub(crate) unsafe fn begin<L: Lanes>(keys: &Keys, aad: &[u8]) -> Block {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let power = vector::<L>(&keys.powers::<1>(1)[0]);
        let mut hash = vector::<L>(&[0; BLOCK_BYTES]);
        for piece in aad.chunks(BLOCK_BYTES) {
            let mut block = [0; BLOCK_BYTES];
            block[..piece.len()].copy_from_slice(piece);
            hash = dot::<L>(L::xor(hash, L::reverse(vector::<L>(&block))), power);
        }
        block::<L>(L::reverse(hash))
    }
}

/// The tag of the message that ends at `at`.
#[inline(always)]
pub(crate) unsafe fn tag<L: Lanes>(keys: &Keys, at: &Progress) -> Block {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let mut mask = [vector::<L>(&tag_block(&at.nonce))];
        L::encrypt(&mut mask, keys.rounds(), keys.round_count());
        let power = vector::<L>(&keys.powers::<1>(1)[0]);
        let mut hash = L::reverse(vector::<L>(&at.hash));
        if at.skip() > 0 {
            hash = dot::<L>(hash, power);
        }
        let lengths = L::reverse(vector::<L>(&at.lengths()));
        hash = dot::<L>(L::xor(hash, lengths), power);
        block::<L>(L::xor(L::reverse(hash), mask[0]))
    }
}

/// Processes a chunk. Incomplete batches, at its start and its end, go through a buffer.
#[inline(always)]
pub(crate) unsafe fn run<L: Lanes, const MODE: u8>(
    keys: &Keys,
    at: &mut Progress,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
) {
    // All offsets below are relative to the start of the block that contains the chunk's start.
    let mut skip = at.skip();
    let mut left = skip + bytes;
    let (mut from, mut to) = (from.wrapping_sub(skip), to.wrapping_sub(skip));
    // SAFETY: the caller guarantees the contract of `run`. Only the bytes from `skip` to `left`
    // are read and written, which is allowed; the buffer has the length of a batch.
    unsafe {
        let mut hash = L::reverse(vector::<L>(&at.hash));
        let mut counter = L::reverse(vector::<L>(&at.counter()));
        while left > 0 {
            let end = left.min(BATCH_BYTES);
            let powers = keys.powers(end / BLOCK_BYTES);
            if skip == 0 && end == BATCH_BYTES {
                if MODE == DECRYPT || MODE == AUTHENTICATE {
                    hash = absorb::<L>(hash, from, powers);
                }
                if MODE != AUTHENTICATE {
                    cipher::<L>(keys, counter, from, to);
                }
                if MODE == ENCRYPT {
                    hash = absorb::<L>(hash, to, powers);
                }
            } else {
                let mut buffer = [0; BATCH_BYTES];
                let place = buffer.as_mut_ptr();
                from.wrapping_add(skip).copy_to_nonoverlapping(place.add(skip), end - skip);
                if MODE == DECRYPT || MODE == AUTHENTICATE {
                    hash = absorb::<L>(hash, place, powers);
                }
                if MODE != AUTHENTICATE {
                    cipher::<L>(keys, counter, place, place);
                    place.add(skip).copy_to_nonoverlapping(to.wrapping_add(skip), end - skip);
                }
                if MODE == ENCRYPT {
                    place.write_bytes(0, skip);
                    place.add(end).write_bytes(0, BATCH_BYTES - end);
                    hash = absorb::<L>(hash, place, powers);
                }
            }
            (from, to) = (from.wrapping_add(BATCH_BYTES), to.wrapping_add(BATCH_BYTES));
            counter = L::count(counter, BLOCKS as u32);
            left -= end;
            skip = 0;
        }
        if MODE != KEYSTREAM {
            at.hash = block::<L>(L::reverse(hash));
        }
    }
}

/// Applies the key stream to a batch whose first counter is in `counter`, bytes reversed.
#[inline(always)]
unsafe fn cipher<L: Lanes>(keys: &Keys, counter: L::Vector, from: *const u8, to: *mut u8) {
    // SAFETY: the caller guarantees the instructions; a batch can be read and written.
    unsafe {
        let mut blocks = [counter; BLOCKS];
        for (index, block) in blocks.iter_mut().enumerate() {
            *block = L::reverse(L::count(counter, index as u32));
        }
        L::encrypt(&mut blocks, keys.rounds(), keys.round_count());
        for (index, block) in blocks.iter().enumerate() {
            let at = index * BLOCK_BYTES;
            L::store(to.wrapping_add(at), L::xor(*block, L::load(from.wrapping_add(at))));
        }
    }
}

/// Hashes a batch, with one reduction.
#[inline(always)]
unsafe fn absorb<L: Lanes>(
    hash: L::Vector,
    from: *const u8,
    powers: &[Block; BLOCKS],
) -> L::Vector {
    // SAFETY: the caller guarantees the instructions; a batch can be read.
    unsafe {
        let zero = vector::<L>(&[0; BLOCK_BYTES]);
        let (mut low, mut cross, mut high) = (zero, zero, zero);
        // The first block comes last, because it depends on the previous batch.
        for index in (0..BLOCKS).rev() {
            let mut block = L::reverse(L::load(from.wrapping_add(index * BLOCK_BYTES)));
            if index == 0 {
                block = L::xor(block, hash);
            }
            let power = vector::<L>(&powers[index]);
            let swapped = L::swap(power);
            low = L::xor(low, L::low(block, power));
            high = L::xor(high, L::high(block, power));
            cross = L::xor(cross, L::xor(L::low(block, swapped), L::high(block, swapped)));
        }
        reduce::<L>(low, cross, high)
    }
}

/// The product of two elements of POLYVAL.
#[inline(always)]
unsafe fn dot<L: Lanes>(left: L::Vector, right: L::Vector) -> L::Vector {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let swapped = L::swap(right);
        let cross = L::xor(L::low(left, swapped), L::high(left, swapped));
        reduce::<L>(L::low(left, right), cross, L::high(left, right))
    }
}

/// Divides the sum of a product's parts by x^128, modulo the polynomial: by x^64 twice, each time
/// adding the multiple of the polynomial that clears the low half.
#[inline(always)]
pub(crate) unsafe fn reduce<L: Lanes>(
    low: L::Vector,
    cross: L::Vector,
    high: L::Vector,
) -> L::Vector {
    // SAFETY: the caller guarantees the instructions.
    unsafe {
        let polynomial = vector::<L>(&POLYNOMIAL.to_le_bytes());
        let mut low = L::xor(low, L::up(cross));
        let high = L::xor(high, L::down(cross));
        for _ in 0..2 {
            low = L::xor(L::swap(low), L::low(low, polynomial));
        }
        L::xor(high, low)
    }
}

/// A block as a vector.
#[inline(always)]
pub(crate) unsafe fn vector<L: Lanes>(block: &Block) -> L::Vector {
    // SAFETY: the caller guarantees the instructions; a block has sixteen bytes.
    unsafe { L::load(block.as_ptr()) }
}

/// A vector as a block.
#[inline(always)]
pub(crate) unsafe fn block<L: Lanes>(vector: L::Vector) -> Block {
    let mut block = [0; BLOCK_BYTES];
    // SAFETY: the caller guarantees the instructions; a block has sixteen bytes.
    unsafe { L::store(block.as_mut_ptr(), vector) };
    block
}
