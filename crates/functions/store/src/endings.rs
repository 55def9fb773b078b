//! Uploads that end: one request at a time ends an upload.

use std::collections::HashSet;
use std::sync::{Condvar, Mutex, PoisonError};

/// The uploads that are being completed or aborted. A second request for one waits, because both
/// would make the object; those of other uploads go on, however long the first one takes.
#[derive(Default)]
pub struct Endings {
    running: Mutex<HashSet<String>>,
    ended: Condvar,
}

/// The right to end one upload.
pub struct Ending<'a> {
    endings: &'a Endings,
    id: &'a str,
}

impl Endings {
    /// Waits for the end of another request that ends this upload.
    pub fn begin<'a>(&'a self, id: &'a str) -> Ending<'a> {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let is_busy = |running: &mut HashSet<String>| running.contains(id);
        let waited = self.ended.wait_while(running, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).insert(id.to_owned());
        Ending { endings: self, id }
    }
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let running = self.endings.running.lock();
        running.unwrap_or_else(PoisonError::into_inner).remove(self.id);
        self.endings.ended.notify_all();
    }
}
