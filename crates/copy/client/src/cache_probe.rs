//! Measures the cost of reading bytes that were just copied. They may be in the cache of this
//! core, of a near core or of a distant core. The placement of threads may change at any time,
//! especially in a virtual machine, so the measurement is repeated.

use std::time::Instant;

use crate::admission::nanos;

const LINE_BYTES: usize = 64;
/// Number of lines read before the clock starts: the first ones only show latency.
const LINES_BEFORE: usize = 8;
/// Maximum and minimum number of lines that are measured.
const LINES_MAX: usize = 256;
const LINES_MIN: usize = 32;

/// Nanoseconds per line for reading `len` bytes from `start` on sequentially; none if there are
/// too few bytes to measure.
///
/// # Safety
/// The bytes are valid for reads, and no thread writes them during the call.
#[cold]
pub(crate) unsafe fn line_ns(start: *const u8, len: usize) -> Option<f32> {
    let count = (len / LINE_BYTES).saturating_sub(LINES_BEFORE).min(LINES_MAX);
    if count < LINES_MIN {
        return None;
    }
    // SAFETY: within the bytes, as checked.
    unsafe {
        read_lines(start, LINES_BEFORE);
        let began = Instant::now();
        read_lines(start.add(LINES_BEFORE * LINE_BYTES), count);
        Some(nanos(began) as f32 / count as f32)
    }
}

/// # Safety
/// `count` lines from `start` on are valid for reads, and no thread writes them during the call.
unsafe fn read_lines(start: *const u8, count: usize) {
    for line in 0..count {
        // SAFETY: the caller's promise.
        unsafe { start.add(line * LINE_BYTES).read_volatile() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_ranges_are_not_measured() {
        let bytes = vec![1u8; (LINES_BEFORE + LINES_MIN) * LINE_BYTES];
        // SAFETY: the bytes of a vector.
        let (short, long) = unsafe {
            (line_ns(bytes.as_ptr(), bytes.len() - 1), line_ns(bytes.as_ptr(), bytes.len()))
        };
        assert!(short.is_none() && long.is_some_and(|ns| ns >= 0.0));
    }
}
