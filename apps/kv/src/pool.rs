//! Pool of used buffers, whose pages are mapped. Both builds use it.

use std::cell::RefCell;
use std::collections::BTreeMap;

/// Smaller buffers are not pooled.
const BUFFER_BYTES_MIN: usize = 4 << 10;
/// Larger buffers are not pooled.
const BUFFER_BYTES_MAX: usize = 16 << 20;
/// Maximum number of unused bytes in the pool.
const KEPT_BYTES_MAX: usize = 64 << 20;

/// Unused buffers, by size.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    kept: RefCell<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    classes: BTreeMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
}

impl Pool {
    /// Returns an empty buffer with room for `len` bytes.
    pub fn take(&self, len: usize) -> Vec<u8> {
        if !(BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&len) {
            return Vec::with_capacity(len);
        }
        let class = class(len);
        let kept = &mut *self.kept.borrow_mut();
        match kept.classes.get_mut(&class).and_then(Vec::pop) {
            Some(buffer) => {
                kept.bytes -= class;
                buffer
            }
            None => Vec::with_capacity(class),
        }
    }

    /// Returns a buffer to the pool.
    pub fn give(&self, mut buffer: Vec<u8>) {
        let class = buffer.capacity();
        let kept = &mut *self.kept.borrow_mut();
        let is_ours =
            (BUFFER_BYTES_MIN..=BUFFER_BYTES_MAX).contains(&class) && class == self::class(class);
        if is_ours && kept.bytes + class <= KEPT_BYTES_MAX {
            buffer.clear();
            kept.bytes += class;
            kept.classes.entry(class).or_default().push(buffer);
        }
    }
}

/// Returns the capacity of a buffer for `len` bytes, at most a sixteenth above it.
fn class(len: usize) -> usize {
    let step = 1 << (len.ilog2() - 4);
    len.next_multiple_of(step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_come_back() {
        let pool = Pool::default();
        let mut buffer = pool.take(70_000);
        assert!((70_000..75_000).contains(&buffer.capacity()), "{}", buffer.capacity());
        buffer.push(1);
        let place = buffer.as_ptr();
        pool.give(buffer);
        let again = pool.take(70_001);
        assert!(again.is_empty() && again.as_ptr() == place);
        let other = pool.take(70_001);
        assert_ne!(other.as_ptr(), place);
    }

    #[test]
    fn the_pool_is_bounded() {
        let pool = Pool::default();
        for _ in 0..200 {
            pool.give(Vec::with_capacity(1 << 20));
        }
        assert_eq!(pool.kept.borrow().bytes, KEPT_BYTES_MAX);
        pool.give(Vec::with_capacity(100));
        pool.give(Vec::with_capacity(32 << 20));
        assert_eq!(pool.kept.borrow().bytes, KEPT_BYTES_MAX);
    }
}
