//! A value: bytes that are stored, or that are still arriving.
//!
//! The CRLF that ends a value in a request is stored with it, because it also ends the value in
//! the answer.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use unlade_copy::ReceiveError;

use crate::copies::Arrival;
use crate::pool::Pool;

/// The end of a value on the wire.
pub(crate) const CRLF: &[u8] = b"\r\n";

/// A value; `I` is the type of an arriving one.
#[derive(Debug)]
pub(crate) struct Value<I> {
    /// The value with its CRLF; `None` if it could not be received.
    bytes: OnceCell<Option<Vec<u8>>>,
    incoming: RefCell<Option<I>>,
    /// The value was not followed by CRLF.
    has_bad_end: Cell<bool>,
    len: usize,
    pool: Rc<Pool>,
}

impl<I: Arrival> Value<I> {
    /// Copies `bytes` into a new value.
    pub fn copied(bytes: &[u8], pool: &Rc<Pool>) -> Value<I> {
        let mut buffer = pool.take(bytes.len() + CRLF.len());
        buffer.extend_from_slice(bytes);
        buffer.extend_from_slice(CRLF);
        let cell = OnceCell::from(Some(buffer));
        let (incoming, has_bad_end) = (RefCell::new(None), Cell::new(false));
        Value { bytes: cell, incoming, has_bad_end, len: bytes.len(), pool: Rc::clone(pool) }
    }

    /// Creates a value of `len` bytes and CRLF that is still arriving.
    pub fn arriving(incoming: I, len: usize, pool: &Rc<Pool>) -> Value<I> {
        let (incoming, has_bad_end) = (RefCell::new(Some(incoming)), Cell::new(false));
        Value { bytes: OnceCell::new(), incoming, has_bad_end, len, pool: Rc::clone(pool) }
    }

    /// Returns the length of the value, without its CRLF.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the value with its CRLF; `None` if it could not be received. Waits for it.
    pub fn with_crlf(&self) -> Option<&[u8]> {
        if self.bytes.get().is_none() {
            // The receiving connection gets the error; the others find that there is no value.
            let _ = self.sync();
        }
        self.bytes.get().and_then(|bytes| bytes.as_deref())
    }

    /// Returns true if the copy service is receiving the value.
    pub fn is_in_service(&self) -> bool {
        self.incoming.borrow().as_ref().is_some_and(I::is_in_service)
    }

    /// Waits for the value.
    ///
    /// # Errors
    /// [`ReceiveError`], for the first call only.
    pub fn sync(&self) -> Result<(), ReceiveError> {
        let Some(incoming) = self.incoming.take() else { return Ok(()) };
        let (bytes, result) = match incoming.sync() {
            Ok(bytes) => (Some(self.with_good_end(bytes)), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // Set only once: `incoming` was present.
        let _ = self.bytes.set(bytes);
        result
    }

    /// Replaces the end of the value by CRLF: other clients expect it, even if the sender sent
    /// other bytes.
    fn with_good_end(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if bytes.get(self.len..) != Some(CRLF) {
            self.has_bad_end.set(true);
            bytes.truncate(self.len);
            bytes.extend_from_slice(CRLF);
        }
        bytes
    }

    /// Returns true if the value was not followed by CRLF, which violates the protocol.
    pub fn has_bad_end(&self) -> bool {
        self.has_bad_end.get()
    }
}

impl<I> Drop for Value<I> {
    fn drop(&mut self) {
        if let Some(Some(buffer)) = self.bytes.take() {
            self.pool.give(buffer);
        }
    }
}
