//! Buffers for responses, kept by the worker. A connection has one only while it contains something.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::rc::Rc;

/// Size of a buffer: longer than the longest head.
pub(crate) const BUFFER_BYTES: usize = 128 * 1024;
/// Buffers that a worker keeps for the next use.
const FREE_MAX: usize = 16;

/// The free buffers of a worker.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: Rc<RefCell<Vec<Box<[u8]>>>>,
}

/// A buffer in use; it returns to the worker when dropped.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Box<[u8]>,
    home: Rc<RefCell<Vec<Box<[u8]>>>>,
}

impl Buffers {
    /// Returns a buffer of [`BUFFER_BYTES`] with unspecified content.
    pub(crate) fn take(&self) -> Buffer {
        let bytes = self.free.borrow_mut().pop();
        let bytes = bytes.unwrap_or_else(|| vec![0; BUFFER_BYTES].into_boxed_slice());
        Buffer { bytes, home: Rc::clone(&self.free) }
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.home.borrow_mut();
        if free.len() < FREE_MAX {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again_and_few_are_kept() {
        let buffers = Buffers::default();
        let first = buffers.take();
        let address = first.as_ptr();
        drop(first);
        assert_eq!(buffers.take().as_ptr(), address);
        let many: Vec<Buffer> = (0..FREE_MAX + 3).map(|_| buffers.take()).collect();
        drop(many);
        assert_eq!(buffers.free.borrow().len(), FREE_MAX);
    }
}
