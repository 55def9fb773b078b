//! AES-GCM over the RustCrypto crates.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256, Block};
use ghash::GHash;
use ghash::universal_hash::UniversalHash;

use crate::backend::mode::{AUTHENTICATE, DECRYPT, ENCRYPT};
use crate::chunk::Chunk;
use crate::progress::{BLOCK_BYTES, Progress, tag_block};

/// Number of counter blocks that are encrypted at a time.
const BATCH: usize = 32;

/// A key of either size. The crates zeroise their expanded keys.
pub(crate) enum Cipher {
    Aes128(Aes128),
    Aes256(Aes256),
}

/// An expanded key.
pub(crate) struct Keys {
    cipher: Cipher,
    /// In the initial state.
    hash: GHash,
}

impl Cipher {
    /// Creates a cipher for a key of 16 or 32 bytes; `None` for another length.
    pub(crate) fn new(key: &[u8]) -> Option<Cipher> {
        match key.len() {
            16 => Aes128::new_from_slice(key).ok().map(Cipher::Aes128),
            32 => Aes256::new_from_slice(key).ok().map(Cipher::Aes256),
            _ => None,
        }
    }

    fn encrypt(&self, blocks: &mut [Block]) {
        match self {
            Cipher::Aes128(cipher) => cipher.encrypt_blocks(blocks),
            Cipher::Aes256(cipher) => cipher.encrypt_blocks(blocks),
        }
    }

    /// Encrypts one block.
    pub(crate) fn block(&self, block: [u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
        let mut blocks = [Block::from(block)];
        self.encrypt(&mut blocks);
        let [block] = blocks;
        block.into()
    }
}

impl Keys {
    pub(crate) fn new(cipher: Cipher, hash_key: &[u8; BLOCK_BYTES]) -> Keys {
        Keys { cipher, hash: GHash::new(&(*hash_key).into()) }
    }

    /// The hash of the padded additional data.
    pub(crate) fn begin(&self, aad: &[u8]) -> [u8; BLOCK_BYTES] {
        let mut hash = [0; BLOCK_BYTES];
        self.absorb(&mut hash, 0, aad);
        self.pad(&mut hash, aad.len() % BLOCK_BYTES);
        hash
    }

    /// The tag of the message that ends at `at`.
    pub(crate) fn tag(&self, at: &Progress) -> [u8; BLOCK_BYTES] {
        let mut hash = at.hash;
        self.pad(&mut hash, at.skip());
        self.absorb(&mut hash, 0, &at.lengths());
        add(&mut hash, &self.cipher.block(tag_block(&at.nonce)));
        hash
    }

    /// Applies `MODE` to the next bytes of the message. The caller advances the offset.
    pub(crate) fn run<const MODE: u8>(&self, at: &mut Progress, piece: Chunk<'_>) {
        let skip = at.skip();
        let data = match piece {
            Chunk::InPlace(data) => data,
            Chunk::Between(from, to) => {
                to.copy_from_slice(from);
                to
            }
            Chunk::Read(data) => return self.absorb(&mut at.hash, skip, data),
        };
        if MODE == DECRYPT || MODE == AUTHENTICATE {
            self.absorb(&mut at.hash, skip, data);
        }
        if MODE != AUTHENTICATE {
            self.cipher(at, data);
        }
        if MODE == ENCRYPT {
            self.absorb(&mut at.hash, skip, data);
        }
    }

    /// Applies the key stream at the offset to `data`.
    fn cipher(&self, at: &Progress, data: &mut [u8]) {
        let first = u128::from_be_bytes(at.counter());
        // Within the limit of a message the low 32 bits do not overflow in a used block.
        let mut counter = first as u32;
        let mut skip = at.skip();
        let mut rest = data;
        while !rest.is_empty() {
            let count = (skip + rest.len()).div_ceil(BLOCK_BYTES).min(BATCH);
            let mut blocks = [Block::default(); BATCH];
            for block in &mut blocks[..count] {
                *block = (first >> 32 << 32 | u128::from(counter)).to_be_bytes().into();
                counter = counter.wrapping_add(1);
            }
            self.cipher.encrypt(&mut blocks[..count]);
            let take = rest.len().min(count * BLOCK_BYTES - skip);
            let (now, later) = rest.split_at_mut(take);
            let stream = Block::slice_as_flattened(&blocks[..count]);
            now.iter_mut().zip(&stream[skip..]).for_each(|(byte, key)| *byte ^= key);
            (rest, skip) = (later, 0);
        }
    }

    /// Adds `data`, whose first byte has the offset `skip` in its block, to `hash`.
    fn absorb(&self, hash: &mut [u8; BLOCK_BYTES], skip: usize, data: &[u8]) {
        let (head, rest) = data.split_at(data.len().min((BLOCK_BYTES - skip) % BLOCK_BYTES));
        add(&mut hash[skip..], head);
        if skip > 0 && skip + head.len() == BLOCK_BYTES {
            self.multiply(hash, &[]);
        }
        let (blocks, tail) = Block::slice_as_chunks(rest);
        if let Some((first, others)) = blocks.split_first() {
            add(hash, first);
            self.multiply(hash, others);
        }
        add(hash, tail);
    }

    /// Completes a block that has `skip` bytes, if any.
    fn pad(&self, hash: &mut [u8; BLOCK_BYTES], skip: usize) {
        if skip > 0 {
            self.multiply(hash, &[]);
        }
    }

    /// Multiplies `hash`, to which a block was added, and continues with `others`.
    fn multiply(&self, hash: &mut [u8; BLOCK_BYTES], others: &[Block]) {
        let mut state = self.hash.clone();
        state.update(&[(*hash).into()]);
        state.update(others);
        *hash = state.finalize().into();
    }
}

/// The product of two elements, in the representation of GHASH (SP 800-38D §6.3).
pub(crate) fn product(left: &[u8; BLOCK_BYTES], right: &[u8; BLOCK_BYTES]) -> [u8; BLOCK_BYTES] {
    let mut state = GHash::new(&(*left).into());
    state.update(&[(*right).into()]);
    state.finalize().into()
}

/// `base` to the power of `exponent`, which is public and not 0.
pub(crate) fn power(base: &[u8; BLOCK_BYTES], exponent: u64) -> [u8; BLOCK_BYTES] {
    let bits = u64::BITS - exponent.leading_zeros();
    let mut power = *base;
    for bit in (0..bits - 1).rev() {
        power = product(&power, &power);
        if exponent >> bit & 1 == 1 {
            power = product(&power, base);
        }
    }
    power
}

/// Exclusive-or over the common length.
pub(crate) fn add(to: &mut [u8], data: &[u8]) {
    to.iter_mut().zip(data).for_each(|(to, byte)| *to ^= byte);
}
