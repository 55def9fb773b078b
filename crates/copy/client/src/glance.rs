//! What it takes to read bytes that were just copied: they are in this core's cache, in that of
//! another core which is near, or which is far. Where threads run may change at any time, most of
//! all in a virtual machine, so this is looked at again and again.

use std::time::Instant;

use crate::site::nanos;

const LINE_BYTES: usize = 64;
/// Lines read before the clock is looked at: the first ones take as long as the way is.
const LINES_BEFORE: usize = 8;
/// At most, and at least so many lines are read for the figure.
const LINES_MAX: usize = 256;
const LINES_MIN: usize = 32;

/// Nanoseconds that it takes to read a line of `len` bytes from `start` on, one after the other; none
/// where they are too few to say.
///
/// # Safety
/// They are valid for reads, and nobody writes them meanwhile.
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
/// So many lines from `start` on are valid for reads, and nobody writes them meanwhile.
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
    fn few_bytes_say_nothing_and_many_do() {
        let bytes = vec![1u8; (LINES_BEFORE + LINES_MIN) * LINE_BYTES];
        // SAFETY: the bytes of a vector.
        let (short, long) = unsafe {
            (line_ns(bytes.as_ptr(), bytes.len() - 1), line_ns(bytes.as_ptr(), bytes.len()))
        };
        assert!(short.is_none() && long.is_some_and(|ns| ns >= 0.0));
    }
}
