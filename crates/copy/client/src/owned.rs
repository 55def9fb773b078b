//! Copies that own their buffers, so that they can outlive the submitting function.

use crate::copier::{Copier, CopyOptions, TASK_BYTES_MAX, Token};
use crate::error::CopyError;

/// A pending copy and its buffers.
///
/// Dropping it waits for the copy. Forgetting it leaks the buffers, so that they are not reused
/// during the copy.
#[derive(Debug)]
#[must_use = "the bytes are there only after `wait`"]
pub struct Owned<'c> {
    copier: &'c Copier,
    source: Vec<u8>,
    destination: Vec<u8>,
    /// One token for each [`TASK_BYTES_MAX`] bytes.
    first: Token,
    rest: Vec<Token>,
}

impl Copier {
    /// Queues a copy of `source` into `destination`, and owns both until it is complete. If the
    /// queue is full, the copy is synchronous.
    ///
    /// ```
    /// # let service = unlade_copy::Service::start(unlade_copy::Config::default())?;
    /// # let copier = unlade_copy::Copier::new(service.attach()?);
    /// let copy = copier.queue_owned(vec![7; 5000], vec![0; 5000]);
    /// // ... something else, also in another function ...
    /// let (source, destination) = copy.wait()?;
    /// assert_eq!(source, destination);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn queue_owned(&self, source: Vec<u8>, mut destination: Vec<u8>) -> Owned<'_> {
        assert_eq!(source.len(), destination.len(), "source and destination differ in length");
        let options = CopyOptions { queued: true, ..CopyOptions::default() };
        let (src, dst, len) = (source.as_ptr(), destination.as_mut_ptr(), source.len());
        let submit = |at: usize| {
            let part = (len - at).min(TASK_BYTES_MAX);
            // SAFETY: two vectors of `len` bytes, so they do not overlap. `Owned` has both,
            // returns them only from `wait`, and completes the copy before that and before it drops
            // them. Until then no other code touches or frees them.
            unsafe { self.submit_part(dst.add(at), src.add(at), part, len, &options) }
        };
        let first = submit(0);
        let rest = (TASK_BYTES_MAX..len).step_by(TASK_BYTES_MAX).map(submit).collect();
        Owned { copier: self, source, destination, first, rest }
    }
}

impl Owned<'_> {
    /// Returns true if all bytes are copied; does not wait, and does not help.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let all = 0..TASK_BYTES_MAX;
        self.copier.is_ready(&self.first, all.clone())
            && self.rest.iter().all(|token| self.copier.is_ready(token, all.clone()))
    }

    /// Waits for the copy, and returns the buffers: source and destination.
    ///
    /// # Errors
    /// [`CopyError`]: the copy could not be made. The buffers are lost then.
    pub fn wait(mut self) -> Result<(Vec<u8>, Vec<u8>), CopyError> {
        self.complete()?;
        Ok((std::mem::take(&mut self.source), std::mem::take(&mut self.destination)))
    }

    /// Completes every task, even after a failed one.
    fn complete(&self) -> Result<(), CopyError> {
        let all = 0..TASK_BYTES_MAX;
        let first = self.copier.sync(&self.first, all.clone());
        self.rest
            .iter()
            .fold(first, |before, token| before.and(self.copier.sync(token, all.clone())))
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // The error cannot be returned from `drop`.
        let _ = self.complete();
    }
}
