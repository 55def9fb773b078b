//! Sends that read past deferred copies, and may be over long after the program changes the source.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use unlade_copy_service::HeldBytes;
use unlade_shm::Ticket;

/// A queued send, and memory for its bytes in case that their source changes.
#[derive(Debug)]
pub(crate) struct HeldSend {
    pub ticket: Ticket,
    /// All segments of the task.
    pub all: u32,
    pub bytes: Arc<HeldBytes>,
    /// `len` bytes, allocated as a boxed slice; not touched until they are needed.
    spare: NonNull<MaybeUninit<u8>>,
    len: usize,
}

// SAFETY: the spare memory belongs to this value. Only the client writes it, with its table of
// deferred copies locked, and other threads read only what was written and then named in `bytes`,
// behind a lock.
unsafe impl Send for HeldSend {}
// SAFETY: as above.
unsafe impl Sync for HeldSend {}

impl HeldSend {
    /// Creates a send of `len` bytes that are at the places of `bytes`.
    pub fn new(ticket: Ticket, all: u32, bytes: HeldBytes, len: usize) -> HeldSend {
        let spare = NonNull::from(Box::leak(Box::<[u8]>::new_uninit_slice(len))).cast();
        HeldSend { ticket, all, bytes: Arc::new(bytes), spare, len }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Address of the spare memory.
    pub fn spare(&self) -> usize {
        self.spare.as_ptr().expose_provenance()
    }
}

impl Drop for HeldSend {
    fn drop(&mut self) {
        let spare = NonNull::slice_from_raw_parts(self.spare, self.len);
        // SAFETY: allocated as such a box, and freed once. The task is over, so no thread reads it.
        drop(unsafe { Box::from_raw(spare.as_ptr()) });
    }
}
