//! A value: bytes that are stored, or that are still arriving.
//!
//! The CRLF that ends a value in a request is stored with it, because it also ends the value in
//! the answer.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use unlade_copy::ReceiveError;

use crate::copies::Arrival;
use crate::parse::number;
use crate::pool::Pool;

/// The end of a value on the wire.
pub(crate) const CRLF: &[u8] = b"\r\n";

/// Longest text that Redis stores together with its header.
const EMBEDDED_BYTES_MAX: usize = 44;

/// A value could not be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

/// Origin of a value's bytes. It decides the encoding that Redis would have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The bytes are an argument or an integer.
    Whole,
    /// The bytes are the text of a number with a fraction.
    Text,
    /// The bytes were changed in parts.
    Edited,
}

/// A value; `I` is the type of an arriving one.
#[derive(Debug)]
pub(crate) struct Value<I> {
    /// The value with its CRLF; `None` if it could not be received.
    bytes: OnceCell<Option<Vec<u8>>>,
    incoming: RefCell<Option<I>>,
    /// The value was not followed by CRLF.
    has_bad_end: Cell<bool>,
    len: usize,
    origin: Origin,
    pool: Rc<Pool>,
}

impl<I: Arrival> Value<I> {
    /// Copies `bytes` into a new value.
    pub fn copied(bytes: &[u8], origin: Origin, pool: &Rc<Pool>) -> Value<I> {
        let mut buffer = pool.take(bytes.len() + CRLF.len());
        buffer.extend_from_slice(bytes);
        buffer.extend_from_slice(CRLF);
        let cell = OnceCell::from(Some(buffer));
        let (incoming, has_bad_end) = (RefCell::new(None), Cell::new(false));
        let (len, pool) = (bytes.len(), Rc::clone(pool));
        Value { bytes: cell, incoming, has_bad_end, len, origin, pool }
    }

    /// Creates a value of `len` bytes and CRLF that is still arriving.
    pub fn arriving(incoming: I, len: usize, pool: &Rc<Pool>) -> Value<I> {
        let (incoming, has_bad_end) = (RefCell::new(Some(incoming)), Cell::new(false));
        let (origin, pool) = (Origin::Whole, Rc::clone(pool));
        Value { bytes: OnceCell::new(), incoming, has_bad_end, len, origin, pool }
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

    /// Returns the value without its CRLF. Waits for it.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn bytes(&self) -> Result<&[u8], Lost> {
        let bytes = self.with_crlf().ok_or(Lost)?;
        Ok(&bytes[..self.len])
    }

    /// Copies the value. Waits for it.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn copy(&self) -> Result<Value<I>, Lost> {
        Ok(Value::copied(self.bytes()?, self.origin, &self.pool))
    }

    /// Changes the bytes of the value. Waits for it first.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn edit<T>(&mut self, change: impl FnOnce(&mut Vec<u8>) -> T) -> Result<T, Lost> {
        self.bytes()?;
        let buffer = self.bytes.get_mut().and_then(Option::as_mut).ok_or(Lost)?;
        buffer.truncate(self.len);
        let result = change(buffer);
        self.len = buffer.len();
        buffer.extend_from_slice(CRLF);
        self.origin = Origin::Edited;
        Ok(result)
    }

    /// Returns the name of the encoding that Redis would store these bytes in.
    ///
    /// # Errors
    /// [`Lost`].
    pub fn encoding(&self) -> Result<&'static str, Lost> {
        // The length decides without a wait.
        if self.origin == Origin::Edited || self.len > EMBEDDED_BYTES_MAX {
            return Ok("raw");
        }
        let is_integer = self.origin == Origin::Whole && number(self.bytes()?).is_some();
        Ok(if is_integer { "int" } else { "embstr" })
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
