//! Expanded keys of the accelerated backends.

use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use crate::progress::BLOCK_BYTES;

/// Number of powers of the hash key: the number of blocks hashed per reduction.
pub(crate) const POWERS: usize = 32;
/// Number of round keys of AES-256.
pub(crate) const ROUND_KEYS_MAX: usize = 15;
/// The POLYVAL polynomial (RFC 8452 §3) without x^128. It is the neutral element of products that
/// are divided by x^128.
const ONE: u128 = 0xC200_0000_0000_0000_0000_0000_0000_0001;

type Block = [u8; BLOCK_BYTES];

/// Round keys, and powers of the hash key as elements of POLYVAL: byte-reversed GHASH (RFC 8452,
/// appendix A), which avoids a shift of every product by one bit.
#[repr(C, align(64))]
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Keys {
    /// H^32 to H^1, 1, and zeros. Read from the `n`th last power on, they multiply `n` complete
    /// blocks by their powers, keep the bytes of an incomplete block, and discard the blocks after
    /// it.
    powers: [Block; 2 * POWERS],
    /// The sum of the halves of each power, in both halves: for Karatsuba multiplication.
    halves: [Block; 2 * POWERS],
    rounds: [Block; ROUND_KEYS_MAX],
    is_256: bool,
}

impl Keys {
    /// Expands `key`, of 16 or 32 bytes, with the hash key `hash_key`. `substitute` applies the
    /// S-box to each byte of a word, `dot` is the product of POLYVAL.
    pub(crate) fn new(
        key: &[u8],
        hash_key: &Block,
        substitute: impl Fn(u32) -> u32,
        dot: impl Fn(&Block, &Block) -> Block,
    ) -> Box<Keys> {
        // Filled in place, so that no copy stays on the stack.
        let mut keys = Box::new(Keys {
            powers: [[0; BLOCK_BYTES]; 2 * POWERS],
            halves: [[0; BLOCK_BYTES]; 2 * POWERS],
            rounds: [[0; BLOCK_BYTES]; ROUND_KEYS_MAX],
            is_256: key.len() == 32,
        });
        keys.expand(key, substitute);
        keys.raise(hash_key, dot);
        keys
    }

    /// Expands the round keys (FIPS 197 §5.2).
    fn expand(&mut self, key: &[u8], substitute: impl Fn(u32) -> u32) {
        let (key_words, _) = key.as_chunks::<4>();
        let mut words = Zeroizing::new([0_u32; 4 * ROUND_KEYS_MAX]);
        for (word, bytes) in words.iter_mut().zip(key_words) {
            *word = u32::from_le_bytes(*bytes);
        }
        let (count, size) = (4 * (self.round_count() + 1), key_words.len());
        let mut constant = 1_u32;
        for at in size..count {
            let mut word = words[at - 1];
            if at % size == 0 {
                word = substitute(word).rotate_right(8) ^ constant;
                constant = (constant << 1) ^ ((constant >> 7) * 0x11B);
            } else if size > 6 && at % size == 4 {
                word = substitute(word);
            }
            words[at] = words[at - size] ^ word;
        }
        for (bytes, word) in
            self.rounds.as_flattened_mut().as_chunks_mut().0.iter_mut().zip(words.iter())
        {
            *bytes = word.to_le_bytes();
        }
    }

    /// Computes the powers of the hash key.
    fn raise(&mut self, hash_key: &Block, dot: impl Fn(&Block, &Block) -> Block) {
        let element = u128::from_be_bytes(*hash_key);
        let first = element << 1 ^ (element >> 127).wrapping_neg() & ONE;
        let first = Zeroizing::new(first.to_le_bytes());
        self.powers[POWERS - 1] = *first;
        for at in (0..POWERS - 1).rev() {
            self.powers[at] = dot(&self.powers[at + 1], &first);
        }
        self.powers[POWERS] = ONE.to_le_bytes();
        for (halves, power) in self.halves.iter_mut().zip(&self.powers) {
            let power = u128::from_le_bytes(*power);
            *halves = (power ^ power.rotate_left(64)).to_le_bytes();
        }
    }

    /// Number of rounds: 10 or 14.
    pub(crate) fn round_count(&self) -> usize {
        if self.is_256 { 14 } else { 10 }
    }

    /// The round keys; the first `round_count` plus one are valid.
    pub(crate) fn rounds(&self) -> &[Block; ROUND_KEYS_MAX] {
        &self.rounds
    }

    /// The factors of `COUNT` blocks of which the first `complete` are complete.
    ///
    /// # Panics
    /// `complete` or `COUNT` is above [`POWERS`].
    pub(crate) fn powers<const COUNT: usize>(&self, complete: usize) -> &[Block; COUNT] {
        let from = POWERS - complete;
        self.powers[from..].first_chunk().expect("there are twice as many")
    }

    /// The sums of these powers' halves.
    ///
    /// # Panics
    /// As [`Keys::powers`].
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn halves<const COUNT: usize>(&self, complete: usize) -> &[Block; COUNT] {
        let from = POWERS - complete;
        self.halves[from..].first_chunk().expect("there are twice as many")
    }
}
