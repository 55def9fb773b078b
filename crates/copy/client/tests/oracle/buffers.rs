//! Buffers that handlers free: each is used until the handler of a copy from it runs, and a
//! handler writes over it, so that who reads it later than he may reads nonsense.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes of a buffer.
pub const BUFFER_BYTES: usize = 4096;
/// What a handler writes.
pub const FREED: u8 = 0xdd;

const FREE: u32 = 0;
const USED: u32 = 1;

/// Handlers that ran when they should not have.
static WRONG: AtomicU64 = AtomicU64::new(0);

/// One buffer; a handler's argument is its address.
#[derive(Debug)]
pub struct Buffer {
    state: AtomicU32,
    /// Address of the bytes.
    bytes: usize,
}

impl Buffer {
    /// A free buffer.
    ///
    /// # Safety
    /// The [`BUFFER_BYTES`] bytes at this address live as long as the value, and are touched only
    /// by who takes it and by copies.
    pub unsafe fn new(bytes: *mut u8) -> Buffer {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::write_bytes(bytes, FREED, BUFFER_BYTES) };
        Buffer { state: AtomicU32::new(FREE), bytes: bytes.expose_provenance() }
    }

    fn pointer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.bytes)
    }

    /// Takes a buffer that is free. Nobody may have written it since its handler has run.
    pub fn take(&self) -> bool {
        let change = self.state.compare_exchange(FREE, USED, Ordering::Acquire, Ordering::Relaxed);
        if change.is_err() {
            return false;
        }
        // SAFETY: the buffer is the caller's now, and what touched it before is over: the copies'
        // client waited for it, or its handler ran.
        let bytes = unsafe { std::slice::from_raw_parts(self.pointer(), BUFFER_BYTES) };
        assert!(bytes.iter().all(|byte| *byte == FREED), "a freed buffer was written");
        true
    }

    /// Whether its handler has run.
    pub fn is_free(&self) -> bool {
        self.state.load(Ordering::Acquire) == FREE
    }

    /// The handler of a copy that may free it, and its argument.
    pub fn handler(&self) -> (usize, usize) {
        (free as *const () as usize, std::ptr::from_ref(self).expose_provenance())
    }
}

extern "C" fn free(buffer: usize) {
    // SAFETY: handlers' arguments come from `Buffer::handler`, whose caller keeps the buffer until
    // its handler has run.
    let buffer = unsafe { &*std::ptr::with_exposed_provenance::<Buffer>(buffer) };
    if buffer.state.load(Ordering::Acquire) != USED {
        WRONG.fetch_add(1, Ordering::Relaxed);
        return;
    }
    // SAFETY: a handler runs when nobody uses the source any more: that is what is tested.
    unsafe { std::ptr::write_bytes(buffer.pointer(), FREED, BUFFER_BYTES) };
    if buffer.state.swap(FREE, Ordering::Release) != USED {
        WRONG.fetch_add(1, Ordering::Relaxed);
    }
}

/// Handlers that ran twice, so far.
pub fn wrong_handlers() -> u64 {
    WRONG.load(Ordering::Relaxed)
}
