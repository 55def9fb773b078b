//! Sources of bytes that can be read while they are still in transit.

use std::ops::Range;

use unlade_copy::{CopyError, Inbound, Pending};

/// Bytes of which any range can be waited for.
pub trait Source {
    /// Number of bytes, available or in transit.
    fn len(&self) -> usize;

    /// Returns true if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if the bytes of `range` are available; does not wait.
    fn is_ready(&self, range: Range<usize>) -> bool;

    /// Waits for the bytes of `range`, which is within [`Source::len`], and returns them.
    ///
    /// # Errors
    /// [`CopyError`]: the bytes were not copied or received.
    fn sync(&self, range: Range<usize>) -> Result<&[u8], CopyError>;
}

/// A copy of a scope.
impl Source for Pending<'_> {
    fn len(&self) -> usize {
        Pending::len(self)
    }

    #[inline]
    fn is_ready(&self, range: Range<usize>) -> bool {
        Pending::is_ready(self, range)
    }

    #[inline]
    fn sync(&self, range: Range<usize>) -> Result<&[u8], CopyError> {
        Pending::sync(self, range)
    }
}

/// Bytes received since the buffer was last emptied.
impl Source for Inbound {
    fn len(&self) -> usize {
        Inbound::len(self)
    }

    #[inline]
    fn is_ready(&self, range: Range<usize>) -> bool {
        Inbound::is_ready(self, range)
    }

    #[inline]
    fn sync(&self, range: Range<usize>) -> Result<&[u8], CopyError> {
        Inbound::sync(self, range)
    }
}

/// Bytes in memory.
impl Source for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    #[inline]
    fn is_ready(&self, _range: Range<usize>) -> bool {
        true
    }

    #[inline]
    fn sync(&self, range: Range<usize>) -> Result<&[u8], CopyError> {
        Ok(&self[range])
    }
}

/// End of the available bytes from `at` on, checked in steps of `step`, without waiting.
pub(crate) fn reach<S: Source + ?Sized>(source: &S, at: usize, end: usize, step: usize) -> usize {
    let mut reached = at;
    for _ in 0..LOOKS_MAX {
        let next = end.min(reached.saturating_add(step));
        if next == reached || !source.is_ready(reached..next) {
            break;
        }
        reached = next;
    }
    reached
}

/// Maximum number of progress checks after one wait.
const LOOKS_MAX: usize = 32;
/// Minimum number of bytes to wait for.
const STEP_BYTES_MIN: usize = 2 << 10;
/// Maximum number of waits for one copy: a task has as many segments.
const STEPS_MAX: usize = 32;

/// Number of bytes to wait for at a time, in a source of `len` bytes.
pub(crate) fn step_for(len: usize) -> usize {
    // Powers of two, like segment sizes, so that no segment is waited for twice.
    len.min(unlade_copy::TASK_BYTES_MAX).div_ceil(STEPS_MAX).next_power_of_two().max(STEP_BYTES_MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_segments_and_not_too_small() {
        let lens = [0, 1, 4 << 10, 64 << 10, (64 << 10) + 1, 1 << 20, 1 << 30];
        let steps = lens.map(step_for);
        assert_eq!(steps, [2048, 2048, 2048, 2048, 4096, 32 << 10, 32 << 10]);
    }

    #[test]
    fn only_available_bytes_are_reached() {
        struct Half;
        impl Source for Half {
            fn len(&self) -> usize {
                100
            }
            fn is_ready(&self, range: Range<usize>) -> bool {
                range.end <= 50
            }
            fn sync(&self, _range: Range<usize>) -> Result<&[u8], CopyError> {
                Ok(&[])
            }
        }
        assert_eq!(reach(&Half, 0, 100, 10), 50);
        assert_eq!(reach(&Half, 45, 100, 10), 45);
        assert_eq!(reach(&Half, 45, 48, 10), 48);
        assert_eq!(reach(&Half, 60, 100, 10), 60);
        assert_eq!(reach(&[0u8; 100][..], 3, 100, 1), 3 + LOOKS_MAX);
    }
}
