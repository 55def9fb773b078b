//! How far one message has come.

use std::fmt;

/// Bytes of a block of AES and of GHASH.
pub(crate) const BLOCK_BYTES: usize = 16;
/// Most bytes that one nonce protects (SP 800-38D §5.2.1.1): the 32-bit counter repeats after them.
pub const DATA_BYTES_MAX: u64 = (1 << 36) - 32;
/// The counter of the first block of data; 1 is that of the tag.
const COUNTER_FIRST: u64 = 2;

/// How far a message, or a part of one, has come: nonce, offset and hash. It is a value: a copy of
/// it can go on where the original went on too.
///
/// [`Key::begin`](crate::Key::begin) and [`Progress::part`] make one; it is used with one key. The
/// hash is not printed.
#[derive(Clone, Copy)]
pub struct Progress {
    /// GHASH of the blocks that are complete; bytes of the next one are added to it already.
    pub(crate) hash: [u8; BLOCK_BYTES],
    pub(crate) nonce: [u8; 12],
    /// It began with the additional data, of which there were `aad_bytes`.
    pub(crate) whole: bool,
    pub(crate) aad_bytes: u64,
    pub(crate) start: u64,
    pub(crate) offset: u64,
}

const _: () = assert!(size_of::<Progress>() <= 64);

impl Progress {
    /// A part of the message under `nonce` that starts after `offset` bytes of data, at any one.
    /// It has no tag of its own: [`Key::combine`](crate::Key::combine) adds it to what is before it.
    ///
    /// # Panics
    /// `offset` is more than [`DATA_BYTES_MAX`].
    pub fn part(nonce: &[u8; 12], offset: u64) -> Progress {
        assert!(offset <= DATA_BYTES_MAX, "a message has at most {DATA_BYTES_MAX} bytes");
        let hash = [0; BLOCK_BYTES];
        Progress { hash, nonce: *nonce, whole: false, aad_bytes: 0, start: offset, offset }
    }

    /// Bytes of data before the next one to be given.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of data before the first one that was given: 0, except for a part.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// True from [`Key::begin`](crate::Key::begin) on: what has a tag.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Bytes of the block at the offset that are behind us, 0 to 15.
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

    /// Refuses what would repeat a counter.
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
