//! A value: bytes that are kept, or that may still be on their way.
//!
//! The CRLF that ends a value in a request is kept with it, for it ends the value in the answer.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use unlade_copy::ReceiveError;

use crate::copies::Arrival;
use crate::pool::Pool;

/// What ends a value on the wire.
pub(crate) const CRLF: &[u8] = b"\r\n";

/// A value; `I` is one on its way.
#[derive(Debug)]
pub(crate) struct Value<I> {
    /// With its CRLF; nothing where it could not be received.
    bytes: OnceCell<Option<Vec<u8>>>,
    incoming: RefCell<Option<I>>,
    /// Something else came where its CRLF should have been.
    has_bad_end: Cell<bool>,
    len: usize,
    pool: Rc<Pool>,
}

impl<I: Arrival> Value<I> {
    /// A copy of `bytes`.
    pub fn copied(bytes: &[u8], pool: &Rc<Pool>) -> Value<I> {
        let mut buffer = pool.take(bytes.len() + CRLF.len());
        buffer.extend_from_slice(bytes);
        buffer.extend_from_slice(CRLF);
        let cell = OnceCell::from(Some(buffer));
        let (incoming, has_bad_end) = (RefCell::new(None), Cell::new(false));
        Value { bytes: cell, incoming, has_bad_end, len: bytes.len(), pool: Rc::clone(pool) }
    }

    /// `len` bytes and CRLF on their way.
    pub fn arriving(incoming: I, len: usize, pool: &Rc<Pool>) -> Value<I> {
        let (incoming, has_bad_end) = (RefCell::new(Some(incoming)), Cell::new(false));
        Value { bytes: OnceCell::new(), incoming, has_bad_end, len, pool: Rc::clone(pool) }
    }

    /// Bytes of the value, without its CRLF.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The value with its CRLF; nothing where it could not be received. Waits for it.
    pub fn with_crlf(&self) -> Option<&[u8]> {
        if self.bytes.get().is_none() {
            // Whoever receives it is told what went wrong; the others that it is not there.
            let _ = self.sync();
        }
        self.bytes.get().and_then(|bytes| bytes.as_deref())
    }

    /// Whether somebody else receives it at present.
    pub fn is_elsewhere(&self) -> bool {
        self.incoming.borrow().as_ref().is_some_and(I::is_elsewhere)
    }

    /// Waits for the value.
    ///
    /// # Errors
    /// [`ReceiveError`], once.
    pub fn sync(&self) -> Result<(), ReceiveError> {
        let Some(incoming) = self.incoming.take() else { return Ok(()) };
        let (bytes, result) = match incoming.sync() {
            Ok(bytes) => (Some(self.with_good_end(bytes)), Ok(())),
            Err(error) => (None, Err(error)),
        };
        // It is set once: `incoming` was there.
        let _ = self.bytes.set(bytes);
        result
    }

    /// Other clients are sent what ends the value: it is what they expect, whatever this one sent.
    fn with_good_end(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        if bytes.get(self.len..) != Some(CRLF) {
            self.has_bad_end.set(true);
            bytes.truncate(self.len);
            bytes.extend_from_slice(CRLF);
        }
        bytes
    }

    /// Whether something else than CRLF came behind the value: the client does not speak the
    /// protocol.
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
