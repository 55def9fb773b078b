//! State of the processing of one message.

use std::fmt;

/// Length of a block of AES and of GHASH.
pub(crate) const BLOCK_BYTES: usize = 16;
/// Maximum data under one nonce, bytes (SP 800-38D §5.2.1.1): then the 32-bit counter repeats.
pub const DATA_BYTES_MAX: u64 = (1 << 36) - 32;
/// The counter of the first block of data; the tag uses 1.
const COUNTER_FIRST: u64 = 2;

/// State of a message, or of a part of one: nonce, offset and hash. It is a value: a copy can
/// continue independently of the original.
///
/// Created by [`Key::begin`](crate::Key::begin) and [`Progress::part`]; it is used with one key.
/// The hash is not printed.
#[derive(Clone, Copy)]
pub struct Progress {
    /// GHASH of the complete blocks; bytes of an incomplete block are already added.
    pub(crate) hash: [u8; BLOCK_BYTES],
    pub(crate) nonce: [u8; 12],
    /// True if it started with the additional data, of `aad_bytes` bytes.
    pub(crate) whole: bool,
    pub(crate) aad_bytes: u64,
    pub(crate) start: u64,
    pub(crate) offset: u64,
}

const _: () = assert!(size_of::<Progress>() <= 64);

impl Progress {
    /// Starts a part of the message under `nonce`, after `offset` bytes of data. It has no tag of
    /// its own: [`Key::combine`](crate::Key::combine) appends it to the preceding part.
    ///
    /// # Panics
    /// `offset` is more than [`DATA_BYTES_MAX`].
    pub fn part(nonce: &[u8; 12], offset: u64) -> Progress {
        assert!(offset <= DATA_BYTES_MAX, "a message has at most {DATA_BYTES_MAX} bytes");
        let hash = [0; BLOCK_BYTES];
        Progress { hash, nonce: *nonce, whole: false, aad_bytes: 0, start: offset, offset }
    }

    /// Offset of the next byte of data.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Offset of the first processed byte of data: 0, except for a part.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns true if it has a tag: it was started with [`Key::begin`](crate::Key::begin).
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Number of processed bytes of the current block, 0 to 15.
    pub(crate) fn skip(&self) -> usize {
        (self.offset % BLOCK_BYTES as u64) as usize
    }

    /// The counter block of the byte at the offset.
    pub(crate) fn counter(&self) -> [u8; BLOCK_BYTES] {
        counter_block(&self.nonce, self.offset)
    }

    /// The last block of the hash: lengths in bits (SP 800-38D §7.1).
    pub(crate) fn lengths(&self) -> [u8; BLOCK_BYTES] {
        let bits = u128::from(self.aad_bytes) << 67 | u128::from(self.offset) << 3;
        bits.to_be_bytes()
    }

    /// Panics if a counter would repeat.
    pub(crate) fn admit(&self, data_bytes: usize) {
        let room = DATA_BYTES_MAX - self.offset;
        assert!(data_bytes as u64 <= room, "a message has at most {DATA_BYTES_MAX} bytes");
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress")
            .field("start", &self.start)
            .field("offset", &self.offset)
            .field("whole", &self.whole)
            .finish_non_exhaustive()
    }
}

/// The counter block of the byte at `offset` of the data.
pub(crate) fn counter_block(nonce: &[u8; 12], offset: u64) -> [u8; BLOCK_BYTES] {
    let counter = offset / BLOCK_BYTES as u64 + COUNTER_FIRST;
    block_of(nonce, counter as u32)
}

/// The counter block of the tag (J0 of SP 800-38D §7.1).
pub(crate) fn tag_block(nonce: &[u8; 12]) -> [u8; BLOCK_BYTES] {
    block_of(nonce, 1)
}

fn block_of(nonce: &[u8; 12], counter: u32) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    block[..12].copy_from_slice(nonce);
    block[12..].copy_from_slice(&counter.to_be_bytes());
    block
}
