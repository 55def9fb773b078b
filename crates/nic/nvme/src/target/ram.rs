//! Blocks in memory, in shared chunks that are read without a copy.
//!
//! A reader gets a reference to each chunk. A writer copies a chunk that is still referenced by a
//! reader (copy on write), so a reader's data does not change. Chunks that were never written, or
//! were discarded, take no memory.

use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Bytes of a chunk.
pub(crate) const CHUNK_BYTES: usize = 64 << 10;

/// A reference to bytes to send.
#[derive(Clone, Debug)]
pub(crate) struct ChunkSlice {
    memory: Arc<Vec<u8>>,
    range: Range<usize>,
}

impl ChunkSlice {
    /// Creates a reference to all of `data`.
    pub fn new(data: Vec<u8>) -> ChunkSlice {
        let range = 0..data.len();
        ChunkSlice { memory: Arc::new(data), range }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.memory.get(self.range.clone()).unwrap_or_default()
    }

    /// Splits off the first `count` bytes (or all); the rest remains.
    pub fn split_to(&mut self, count: usize) -> ChunkSlice {
        let at = (self.range.start + count).min(self.range.end);
        let range = self.range.start..at;
        self.range.start = at;
        ChunkSlice { memory: self.memory.clone(), range }
    }
}

/// Memory of a fixed size, zeroed at first.
#[derive(Debug)]
pub(crate) struct Ram {
    chunks: Vec<RwLock<Option<Arc<Vec<u8>>>>>,
}

/// The parts of a range within chunks: (chunk, range in it, range in the data).
fn places(offset: u64, bytes: u64) -> impl Iterator<Item = (usize, Range<usize>, Range<usize>)> {
    let (start, end) = (offset, offset + bytes);
    let mut at = start;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let chunk = at / CHUNK_BYTES as u64;
        let within = (at % CHUNK_BYTES as u64) as usize;
        let count = ((end - at).min((CHUNK_BYTES - within) as u64)) as usize;
        let done = (at - start) as usize;
        at += count as u64;
        Some((chunk as usize, within..within + count, done..done + count))
    })
}

fn zeroes() -> Arc<Vec<u8>> {
    static ZEROES: OnceLock<Arc<Vec<u8>>> = OnceLock::new();
    ZEROES.get_or_init(|| Arc::new(vec![0; CHUNK_BYTES])).clone()
}

impl Ram {
    /// Creates memory of at least `bytes` bytes.
    pub fn new(bytes: u64) -> Ram {
        let count = bytes.div_ceil(CHUNK_BYTES as u64) as usize;
        Ram { chunks: (0..count).map(|_| RwLock::new(None)).collect() }
    }

    /// References to the bytes of a range. Callers have checked it; beyond the end there are
    /// none.
    pub fn read(&self, offset: u64, bytes: usize) -> Vec<ChunkSlice> {
        let share = |(chunk, range, _): (usize, Range<usize>, _)| {
            let slot = self.chunks.get(chunk)?.read().unwrap_or_else(PoisonError::into_inner);
            let memory = slot.clone().unwrap_or_else(zeroes);
            Some(ChunkSlice { memory, range })
        };
        places(offset, bytes as u64).filter_map(share).collect()
    }

    /// Writes; earlier readers keep the old data.
    pub fn write(&self, offset: u64, data: &[u8]) {
        for (chunk, range, source) in places(offset, data.len() as u64) {
            let Some(slot) = self.chunks.get(chunk) else { return };
            let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
            let memory = slot.get_or_insert_with(|| Arc::new(vec![0; CHUNK_BYTES]));
            Arc::make_mut(memory)[range].copy_from_slice(&data[source]);
        }
    }

    /// Zeroes a range; whole chunks are freed.
    pub fn zero(&self, offset: u64, bytes: u64) {
        for (chunk, range, _) in places(offset, bytes) {
            let Some(slot) = self.chunks.get(chunk) else { return };
            let mut slot = slot.write().unwrap_or_else(PoisonError::into_inner);
            if range.len() == CHUNK_BYTES {
                *slot = None;
            } else if let Some(memory) = slot.as_mut() {
                Arc::make_mut(memory)[range].fill(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(pieces: &[ChunkSlice]) -> Vec<u8> {
        pieces.iter().flat_map(|piece| piece.bytes().to_vec()).collect()
    }

    #[test]
    fn what_is_written_is_read_across_chunks() {
        let ram = Ram::new(3 * CHUNK_BYTES as u64);
        let data: Vec<u8> = (0..2000).map(|i| (i % 251) as u8 + 1).collect();
        let at = CHUNK_BYTES as u64 - 1000;
        ram.write(at, &data);
        assert_eq!(all(&ram.read(at, 2000)), data);
        assert_eq!(ram.read(at, 2000).len(), 2);
        assert_eq!(all(&ram.read(at - 1, 2)), [0, 1]);
        assert!(ram.chunks[2].read().unwrap().is_none(), "it was not touched");
    }

    #[test]
    fn a_reader_keeps_what_it_has() {
        let ram = Ram::new(4096);
        ram.write(0, &[1; 4096]);
        let mut before = ram.read(0, 4096);
        ram.write(0, &[2; 4096]);
        let first = before[0].split_to(96);
        assert_eq!((first.bytes().len(), before[0].bytes().len()), (96, 4000));
        assert!(before[0].bytes().iter().all(|b| *b == 1));
        assert!(all(&ram.read(0, 4096)).iter().all(|b| *b == 2));
    }

    #[test]
    fn zeroing_gives_memory_back() {
        let ram = Ram::new(2 * CHUNK_BYTES as u64);
        ram.write(0, &vec![7; 2 * CHUNK_BYTES]);
        ram.zero(10, CHUNK_BYTES as u64 * 2 - 20);
        let now = all(&ram.read(0, 2 * CHUNK_BYTES));
        assert!(now[..10].iter().chain(&now[2 * CHUNK_BYTES - 10..]).all(|b| *b == 7));
        assert!(now[10..2 * CHUNK_BYTES - 10].iter().all(|b| *b == 0));
        ram.zero(0, CHUNK_BYTES as u64);
        assert!(ram.chunks[0].read().unwrap().is_none());
    }

    #[test]
    fn beyond_the_end_is_nothing() {
        let ram = Ram::new(4096);
        let end = CHUNK_BYTES as u64;
        ram.write(end, &[1; 10]);
        ram.zero(end, 10);
        assert!(ram.read(end, 10).is_empty());
    }
}
