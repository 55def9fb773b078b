//! Buffers that handlers free: each is used until the handler of a copy from it runs. The handler
//! overwrites it, so that a late read returns wrong bytes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Length of a buffer in bytes.
pub const BUFFER_BYTES: usize = 4096;
/// Byte written by a handler.
pub const FREED: u8 = 0xdd;

const FREE: u32 = 0;
const USED: u32 = 1;

/// Number of handlers that ran when they should not have.
static WRONG: AtomicU64 = AtomicU64::new(0);

/// One buffer; a handler's argument is its address.
#[derive(Debug)]
pub struct Buffer {
    state: AtomicU32,
    /// Address of the bytes.
    bytes: usize,
}

impl Buffer {
    /// Creates a free buffer.
    ///
    /// # Safety
    /// The [`BUFFER_BYTES`] bytes at this address live as long as the value, and are accessed only
    /// by its user and by copies.
    pub unsafe fn new(bytes: *mut u8) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(bytes, FREED, BUFFER_BYTES) };
        Buffer { state: AtomicU32::new(FREE), bytes: bytes.expose_provenance() }
    }

    fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.bytes)
    }

    /// Takes a buffer that is free. It must not have been written since its handler has run.
    pub fn take(&self) -> bool {
        let change = self.state.compare_exchange(FREE, USED, Ordering::Acquire, Ordering::Relaxed);
        if change.is_err() {
            return false;
        }
        // SAFETY: the caller owns the buffer now, and all accesses before are over: the copies'
        // client waited for them, or their handler ran.
        let bytes = unsafe { std::slice::from_raw_parts(self.pointer(), BUFFER_BYTES) };
        assert!(bytes.iter().all(|byte| *byte == FREED), "a freed buffer was written");
        true
    }

    /// Returns true if its handler has run.
    pub fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    /// The handler of a copy that may free it, and its argument.
    pub fn handler(&self) -> (usize, usize) {
        (free as *const () as usize, std::ptr::from_ref(self).expose_provenance())
    }
}

extern "C" fn free(buffer: usize) {
    // SAFETY: the arguments of handlers come from `Buffer::handler`, whose caller keeps the buffer
    // until its handler has run.
    let buffer = unsafe { &*std::ptr::with_exposed_provenance::<Buffer>(buffer) };
    if buffer.state.load(Ordering::Acquire) != USED {
        WRONG.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // SAFETY: a handler runs when the source is no longer in use: that is the tested property.
    unsafe { std::ptr::write_bytes(buffer.pointer(), FREED, BUFFER_BYTES) };
    if buffer.state.swap(FREE, Ordering::Release) != USED {
        WRONG.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number of handlers that ran twice.
pub fn wrong_handlers() -> u64 {
    WRONG.load(Ordering::Relaxed)
}
