//! Copies that own their buffers: for who does not stay in one function until they are made.

use crate::copier::{Copier, How, TASK_BYTES_MAX, Token};
use crate::error::CopyError;

/// A copy under way, and its buffers.
///
/// Dropped, it waits. Forgotten, it leaks the buffers: nobody else gets them while they are copied.
#[derive(Debug)]
#[must_use = "the bytes are there only after `wait`"]
pub struct Owned<'c> {
    copier: &'c Copier,
    source: Vec<u8>,
    destination: Vec<u8>,
    /// One task for each [`TASK_BYTES_MAX`].
    first: Token,
    rest: Vec<Token>,
}

impl Copier {
    /// Queues a copy of `source` into `destination`, and keeps both until it is made. Where the
    /// queue is full it is made at once.
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
    /// They differ in length.
    pub fn queue_owned(&self, source: Vec<u8>, mut destination: Vec<u8>) -> Owned<'_> {
        assert_eq!(source.len(), destination.len(), "source and destination differ in length");
        let how = How { queued: true, ..How::default() };
        let (src, dst, len) = (source.as_ptr(), destination.as_mut_ptr(), source.len());
        let submit = |at: usize| {
            let part = (len - at).min(TASK_BYTES_MAX);
            // SAFETY: two vectors of `len` bytes, so they do not overlap. Nobody touches or frees
            // them until the copy is settled: `Owned` has both, gives them away in `wait` only,
            // and settles before that and before it drops them.
            unsafe { self.submit_part(dst.add(at), src.add(at), part, len, &how) }
        };
        let first = submit(0);
        let rest = (TASK_BYTES_MAX..len).step_by(TASK_BYTES_MAX).map(submit).collect();
        Owned { copier: self, source, destination, first, rest }
    }
}

impl Owned<'_> {
    /// Whether all bytes are there; does not wait, and does not help.
    #[inline]
    pub fn is_ready(&self) -> bool {
        let all = 0..TASK_BYTES_MAX;
        self.copier.is_ready(&self.first, all.clone())
            && self.rest.iter().all(|token| self.copier.is_ready(token, all.clone()))
    }

    /// Waits, and gives the buffers back: source and destination.
    ///
    /// # Errors
    /// [`CopyError`]: the copy could not be made. The buffers are lost then.
    pub fn wait(mut self) -> Result<(Vec<u8>, Vec<u8>), CopyError> {
        self.settle()?;
        Ok((std::mem::take(&mut self.source), std::mem::take(&mut self.destination)))
    }

    /// Settles every task, also behind one that failed.
    fn settle(&self) -> Result<(), CopyError> {
        let all = 0..TASK_BYTES_MAX;
        let first = self.copier.sync(&self.first, all.clone());
        self.rest
            .iter()
            .fold(first, |before, token| before.and(self.copier.sync(token, all.clone())))
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // Nobody asks for the bytes any more, so an error is nobody's concern.
        let _ = self.settle();
    }
}
