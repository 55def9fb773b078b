//! Sequences of typed values, as in messages of Binder (Copier, SOSP 2025, §5.2). They are written
//! to any byte sink, and read from untrusted bytes that may still be in transit.
//!
//! A value is a type byte and the value, little-endian. Strings and byte arrays have a length of
//! four bytes before them.

use std::io::{self, Write};

use unlade_copy::channel::Message;
use unlade_copy::{Inbound, Pending};

use crate::source::Source;

const I32: u8 = 1;
const I64: u8 = 2;
const STRING: u8 = 3;
const BYTES: u8 = 4;

/// Bytes that can be copied out at any offset. Another process may change them concurrently.
pub trait ReadAt {
    /// Number of bytes, copied already or still in transit.
    fn len(&self) -> usize;

    /// Returns true if there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for the bytes from `at` on, and copies them out.
    ///
    /// # Errors
    /// The bytes were not copied, or [`io::ErrorKind::UnexpectedEof`]: the range ends after the
    /// source.
    fn read_at(&self, at: usize, out: &mut [u8]) -> io::Result<()>;
}

fn copy_out(source: &(impl Source + ?Sized), at: usize, out: &mut [u8]) -> io::Result<()> {
    let end = at.checked_add(out.len()).filter(|end| *end <= source.len());
    let end = end.ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    out.copy_from_slice(source.sync(at..end)?);
    Ok(())
}

/// A copy of a scope.
impl ReadAt for Pending<'_> {
    fn len(&self) -> usize {
        Pending::len(self)
    }

    fn read_at(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        copy_out(self, at, out)
    }
}

/// Bytes received from a socket.
impl ReadAt for Inbound {
    fn len(&self) -> usize {
        Inbound::len(self)
    }

    fn read_at(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        copy_out(self, at, out)
    }
}

/// Bytes in memory.
impl ReadAt for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn read_at(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        copy_out(self, at, out)
    }
}

/// A message from another process.
impl ReadAt for Message<'_> {
    fn len(&self) -> usize {
        Message::len(self)
    }

    #[inline]
    fn read_at(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        Ok(Message::read_at(self, at, out)?)
    }
}

/// A value of a parcel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// 32 bits.
    I32(i32),
    /// 64 bits.
    I64(i64),
    /// Text.
    String(String),
    /// Bytes.
    Bytes(Vec<u8>),
}

/// Type of a value, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// 32 bits.
    I32,
    /// 64 bits.
    I64,
    /// Text.
    String,
    /// Bytes.
    Bytes,
}

impl Type {
    fn of(byte: u8) -> Option<Type> {
        match byte {
            I32 => Some(Type::I32),
            I64 => Some(Type::I64),
            STRING => Some(Type::String),
            BYTES => Some(Type::Bytes),
            _ => None,
        }
    }
}

/// Reason why a value cannot be read. All but [`ParcelError::Source`] are errors of the sender.
#[derive(Debug, thiserror::Error)]
pub enum ParcelError {
    /// The caller asked for another type.
    #[error("the value at byte {at} is {found:?}, not {wanted:?}")]
    Type {
        /// Offset of the value.
        at: usize,
        /// Type of the value.
        found: Type,
        /// Type that the caller asked for.
        wanted: Type,
    },
    /// The type byte is unknown.
    #[error("byte {at} is {found}, which is no type")]
    NoType {
        /// Offset of the type byte.
        at: usize,
        /// Value of the type byte.
        found: u8,
    },
    /// The parcel ends before the value does.
    #[error("the value at byte {at} ends after the parcel's {len} bytes")]
    Truncated {
        /// Offset of the value.
        at: usize,
        /// Length of the parcel in bytes.
        len: usize,
    },
    /// A string is not UTF-8.
    #[error("the string at byte {at} is not UTF-8")]
    Utf8 {
        /// Offset of the value.
        at: usize,
    },
    /// The bytes of the parcel were not copied or received.
    #[error("the bytes of the parcel: {0}")]
    Source(#[from] io::Error),
}

/// Writes a sequence of values.
#[derive(Debug)]
pub struct ParcelWriter<W> {
    to: W,
}

impl<W: Write> ParcelWriter<W> {
    /// Creates a writer to `to`.
    pub fn new(to: W) -> ParcelWriter<W> {
        ParcelWriter { to }
    }

    /// Writes a 32-bit integer.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn i32(&mut self, value: i32) -> io::Result<&mut Self> {
        let [a, b, c, d] = value.to_le_bytes();
        self.to.write_all(&[I32, a, b, c, d])?;
        Ok(self)
    }

    /// Writes a 64-bit integer.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn i64(&mut self, value: i64) -> io::Result<&mut Self> {
        let mut bytes = [I64; 9];
        bytes[1..].copy_from_slice(&value.to_le_bytes());
        self.to.write_all(&bytes)?;
        Ok(self)
    }

    /// Writes a string.
    ///
    /// # Errors
    /// Errors of the underlying writer; [`io::ErrorKind::InvalidInput`] if the string is 4 GiB or
    /// longer.
    pub fn string(&mut self, value: &str) -> io::Result<&mut Self> {
        self.with_length(STRING, value.as_bytes())
    }

    /// Writes a byte array.
    ///
    /// # Errors
    /// As [`ParcelWriter::string`].
    pub fn bytes(&mut self, value: &[u8]) -> io::Result<&mut Self> {
        self.with_length(BYTES, value)
    }

    /// Writes a value of any type.
    ///
    /// # Errors
    /// As [`ParcelWriter::string`].
    pub fn value(&mut self, value: &Value) -> io::Result<&mut Self> {
        match value {
            Value::I32(value) => self.i32(*value),
            Value::I64(value) => self.i64(*value),
            Value::String(value) => self.string(value),
            Value::Bytes(value) => self.bytes(value),
        }
    }

    fn with_length(&mut self, kind: u8, value: &[u8]) -> io::Result<&mut Self> {
        let len = u32::try_from(value.len()).map_err(|_| {
            io::Error::new(io::ErrorKind::InvalidInput, "4 GiB in one value; send several")
        })?;
        let [a, b, c, d] = len.to_le_bytes();
        self.to.write_all(&[kind, a, b, c, d])?;
        self.to.write_all(value)?;
        Ok(self)
    }

    /// Returns the underlying writer.
    pub fn into_inner(self) -> W {
        self.to
    }
}

/// Reads values in the order in which they were written, and waits for their bytes.
///
/// A value that cannot be read is not skipped: the next call reads it again.
///
/// ```
/// use unlade_copy_adapters::{ParcelReader, ParcelWriter};
///
/// let mut writer = ParcelWriter::new(Vec::new());
/// writer.i32(7)?.string("seven")?;
/// let parcel = writer.into_inner();
/// let mut reader = ParcelReader::new(&parcel[..]);
/// assert_eq!((reader.i32()?, reader.string()?), (7, "seven".to_owned()));
/// assert!(reader.is_at_end());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ParcelReader<'a, S: ?Sized> {
    source: &'a S,
    at: usize,
}

impl<'a, S: ReadAt + ?Sized> ParcelReader<'a, S> {
    /// Creates a reader at the beginning of `source`.
    pub fn new(source: &'a S) -> ParcelReader<'a, S> {
        ParcelReader { source, at: 0 }
    }

    /// Returns true if all values are read.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.source.len()
    }

    /// Reads a 32-bit integer.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn i32(&mut self) -> Result<i32, ParcelError> {
        let [_, value @ ..] = self.fixed::<5>(Type::I32)?;
        Ok(i32::from_le_bytes(value))
    }

    /// Reads a 64-bit integer.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn i64(&mut self) -> Result<i64, ParcelError> {
        let [_, value @ ..] = self.fixed::<9>(Type::I64)?;
        Ok(i64::from_le_bytes(value))
    }

    /// Reads a string.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn string(&mut self) -> Result<String, ParcelError> {
        let (value, end) = self.with_length(Type::String)?;
        let value = String::from_utf8(value).map_err(|_| ParcelError::Utf8 { at: self.at })?;
        self.at = end;
        Ok(value)
    }

    /// Reads a byte array.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn bytes(&mut self) -> Result<Vec<u8>, ParcelError> {
        let (value, end) = self.with_length(Type::Bytes)?;
        self.at = end;
        Ok(value)
    }

    /// Reads the next value of any type; none at the end.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn value(&mut self) -> Result<Option<Value>, ParcelError> {
        if self.is_at_end() {
            return Ok(None);
        }
        let mut byte = [0];
        self.source.read_at(self.at, &mut byte)?;
        Ok(Some(match self.known(byte[0])? {
            Type::I32 => Value::I32(self.i32()?),
            Type::I64 => Value::I64(self.i64()?),
            Type::String => Value::String(self.string()?),
            Type::Bytes => Value::Bytes(self.bytes()?),
        }))
    }

    fn known(&self, found: u8) -> Result<Type, ParcelError> {
        Type::of(found).ok_or(ParcelError::NoType { at: self.at, found })
    }

    fn check(&self, found: u8, wanted: Type) -> Result<(), ParcelError> {
        match self.known(found)? {
            found if found == wanted => Ok(()),
            found => Err(ParcelError::Type { at: self.at, found, wanted }),
        }
    }

    /// Offset of the end of `len` bytes from the value's start.
    fn end(&self, len: usize) -> Result<usize, ParcelError> {
        let (at, all) = (self.at, self.source.len());
        let end = at.checked_add(len).filter(|end| *end <= all);
        end.ok_or(ParcelError::Truncated { at, len: all })
    }

    fn head<const N: usize>(&self, wanted: Type) -> Result<[u8; N], ParcelError> {
        let mut head = [0; N];
        // Even a truncated value may have a type byte, which gives the more specific error.
        let most = N.min(self.source.len().saturating_sub(self.at));
        self.source.read_at(self.at, &mut head[..most])?;
        if most > 0 {
            self.check(head[0], wanted)?;
        }
        self.end(N)?;
        Ok(head)
    }

    fn fixed<const N: usize>(&mut self, wanted: Type) -> Result<[u8; N], ParcelError> {
        let value = self.head(wanted)?;
        self.at += N;
        Ok(value)
    }

    /// The bytes of a value with a length, and the offset of its end.
    fn with_length(&self, wanted: Type) -> Result<(Vec<u8>, usize), ParcelError> {
        let [_, len @ ..] = self.head::<5>(wanted)?;
        let len = u32::from_le_bytes(len) as usize;
        // Check the length before the allocation.
        let end = self.end(len.saturating_add(5))?;
        let mut value = vec![0; len];
        self.source.read_at(self.at + 5, &mut value)?;
        Ok((value, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values() -> impl Strategy<Value = Vec<Value>> {
        let value = prop_oneof![
            any::<i32>().prop_map(Value::I32),
            any::<i64>().prop_map(Value::I64),
            "\\PC{0,30}".prop_map(Value::String),
            proptest::collection::vec(any::<u8>(), 0..60).prop_map(Value::Bytes),
        ];
        proptest::collection::vec(value, 0..20)
    }

    fn written(values: &[Value]) -> Vec<u8> {
        let mut writer = ParcelWriter::new(Vec::new());
        for value in values {
            writer.value(value).unwrap();
        }
        writer.into_inner()
    }

    fn read(parcel: &[u8]) -> Result<Vec<Value>, ParcelError> {
        let mut reader = ParcelReader::new(parcel);
        std::iter::from_fn(|| reader.value().transpose()).collect()
    }

    proptest! {
        #[test]
        fn values_come_back(values in values()) {
            prop_assert_eq!(read(&written(&values)).unwrap(), values);
        }

        #[test]
        fn arbitrary_bytes_are_values_or_an_error(bytes in proptest::collection::vec(0u8..6, 0..80)) {
            if let Ok(values) = read(&bytes) {
                prop_assert_eq!(written(&values), bytes);
            }
        }

        #[test]
        fn a_truncated_value_is_an_error(values in values(), cut in 1usize..10) {
            let parcel = written(&values);
            prop_assume!(!parcel.is_empty());
            let cut = &parcel[..parcel.len().saturating_sub(cut)];
            if let Ok(found) = read(cut) {
                prop_assert!(found.len() < values.len());
                prop_assert_eq!(&found, &values[..found.len()]);
            }
        }
    }

    #[test]
    fn errors_have_an_offset_and_do_not_skip_the_value() {
        let parcel = written(&[Value::I32(1), Value::String("x".to_owned())]);
        let mut reader = ParcelReader::new(&parcel[..]);
        let wrong = ParcelError::Type { at: 0, found: Type::I32, wanted: Type::Bytes };
        assert_eq!(reader.bytes().unwrap_err().to_string(), wrong.to_string());
        assert_eq!(reader.i32().unwrap(), 1);
        assert!(matches!(reader.i64(), Err(ParcelError::Type { at: 5, .. })));
        assert_eq!(reader.string().unwrap(), "x");
        assert!(matches!(reader.i32(), Err(ParcelError::Truncated { at: 11, len: 11 })));
        assert!(matches!(read(&[9]), Err(ParcelError::NoType { at: 0, found: 9 })));
        assert!(matches!(read(&[3, 1, 0, 0, 0, 0xff]), Err(ParcelError::Utf8 { at: 0 })));
        let huge = [4, 0xff, 0xff, 0xff, 0xff, 0];
        assert!(matches!(read(&huge), Err(ParcelError::Truncated { at: 0, len: 6 })));
    }
}
