//! Typed values in a row, as the messages of Binder have them (Copier, SOSP 2025, §5.2): written to
//! anything that takes bytes, read from bytes that are still on their way and that nobody vouches
//! for.
//!
//! A value is a byte for its type and the value, little-endian; a string or bytes have their length
//! before them, four bytes.

use std::io::{self, Write};

use unlade_copy::channel::Message;
use unlade_copy::{Inbound, Pending};

use crate::source::Source;

const I32: u8 = 1;
const I64: u8 = 2;
const STRING: u8 = 3;
const BYTES: u8 = 4;

/// Bytes that can be copied out of, at any place; who else has them may change them.
pub trait ReadAt {
    /// How many bytes there are, there or on their way.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies out the bytes from `at` on, when they are there.
    ///
    /// # Errors
    /// They will not be there, or [`io::ErrorKind::UnexpectedEof`]: there are not so many.
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

/// What was received.
impl ReadAt for Inbound {
    fn len(&self) -> usize {
        Inbound::len(self)
    }

    fn read_at(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        copy_out(self, at, out)
    }
}

/// Bytes that are there.
impl ReadAt for [u8] {
    fn len(&self) -> usize {
        <[u8]>::len(self)
    }

    fn read_at(&self, at: usize, out: &mut [u8]) -> io::Result<()> {
        copy_out(self, at, out)
    }
}

/// A message of another process.
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

/// What a value is, for messages about it.
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

/// Why a value is not read. All but [`ParcelError::Source`] are the sender's fault.
#[derive(Debug, thiserror::Error)]
pub enum ParcelError {
    /// Another type was asked for.
    #[error("the value at byte {at} is {found:?}, not {wanted:?}")]
    Type {
        /// Where.
        at: usize,
        /// What is there.
        found: Type,
        /// What was asked for.
        wanted: Type,
    },
    /// No type has this number.
    #[error("byte {at} is {found}, which is no type")]
    NoType {
        /// Where.
        at: usize,
        /// What is there.
        found: u8,
    },
    /// The parcel ends before the value does.
    #[error("the value at byte {at} ends after the parcel's {len} bytes")]
    Truncated {
        /// Where.
        at: usize,
        /// Bytes of the parcel.
        len: usize,
    },
    /// A string that is none.
    #[error("the string at byte {at} is not UTF-8")]
    Utf8 {
        /// Where.
        at: usize,
    },
    /// The bytes did not come.
    #[error("the bytes of the parcel: {0}")]
    Source(#[from] io::Error),
}

/// Writes values, one behind the other.
#[derive(Debug)]
pub struct ParcelWriter<W> {
    to: W,
}

impl<W: Write> ParcelWriter<W> {
    /// Writes to `to`.
    pub fn new(to: W) -> ParcelWriter<W> {
        ParcelWriter { to }
    }

    /// Writes a value.
    ///
    /// # Errors
    /// Those of what is written to.
    pub fn i32(&mut self, value: i32) -> io::Result<&mut Self> {
        let [a, b, c, d] = value.to_le_bytes();
        self.to.write_all(&[I32, a, b, c, d])?;
        Ok(self)
    }

    /// Writes a value.
    ///
    /// # Errors
    /// Those of what is written to.
    pub fn i64(&mut self, value: i64) -> io::Result<&mut Self> {
        let mut bytes = [I64; 9];
        bytes[1..].copy_from_slice(&value.to_le_bytes());
        self.to.write_all(&bytes)?;
        Ok(self)
    }

    /// Writes a value.
    ///
    /// # Errors
    /// Those of what is written to; [`io::ErrorKind::InvalidInput`] where it is 4 GiB or more.
    pub fn string(&mut self, value: &str) -> io::Result<&mut Self> {
        self.with_length(STRING, value.as_bytes())
    }

    /// Writes a value.
    ///
    /// # Errors
    /// As [`ParcelWriter::string`].
    pub fn bytes(&mut self, value: &[u8]) -> io::Result<&mut Self> {
        self.with_length(BYTES, value)
    }

    /// Writes a value.
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

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.to
    }
}

/// Reads values in the order in which they were written; waits for those that it reads.
///
/// A value that cannot be read is not skipped: the next attempt finds it again.
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
    /// Reads from the beginning of `source`.
    pub fn new(source: &'a S) -> ParcelReader<'a, S> {
        ParcelReader { source, at: 0 }
    }

    /// Whether all values are read.
    pub fn is_at_end(&self) -> bool {
        self.at >= self.source.len()
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn i32(&mut self) -> Result<i32, ParcelError> {
        let [_, value @ ..] = self.fixed::<5>(Type::I32)?;
        Ok(i32::from_le_bytes(value))
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn i64(&mut self) -> Result<i64, ParcelError> {
        let [_, value @ ..] = self.fixed::<9>(Type::I64)?;
        Ok(i64::from_le_bytes(value))
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn string(&mut self) -> Result<String, ParcelError> {
        let (value, end) = self.with_length(Type::String)?;
        let value = String::from_utf8(value).map_err(|_| ParcelError::Utf8 { at: self.at })?;
        self.at = end;
        Ok(value)
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`ParcelError`].
    pub fn bytes(&mut self) -> Result<Vec<u8>, ParcelError> {
        let (value, end) = self.with_length(Type::Bytes)?;
        self.at = end;
        Ok(value)
    }

    /// Reads whatever value comes next; none at the end.
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

    /// Where `len` bytes from the value's start end.
    fn end(&self, len: usize) -> Result<usize, ParcelError> {
        let (at, all) = (self.at, self.source.len());
        let end = at.checked_add(len).filter(|end| *end <= all);
        end.ok_or(ParcelError::Truncated { at, len: all })
    }

    fn head<const N: usize>(&self, wanted: Type) -> Result<[u8; N], ParcelError> {
        let mut head = [0; N];
        // What is there of a value that is cut off may still say that it is the wrong one.
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

    /// The bytes of a value with a length, and where it ends.
    fn with_length(&self, wanted: Type) -> Result<(Vec<u8>, usize), ParcelError> {
        let [_, len @ ..] = self.head::<5>(wanted)?;
        let len = u32::from_le_bytes(len) as usize;
        // No more is set aside than there are bytes.
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
        fn any_bytes_are_values_or_an_error(bytes in proptest::collection::vec(0u8..6, 0..80)) {
            if let Ok(values) = read(&bytes) {
                prop_assert_eq!(written(&values), bytes);
            }
        }

        #[test]
        fn what_is_cut_off_is_no_value(values in values(), cut in 1usize..10) {
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
    fn errors_say_where_and_leave_the_value() {
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
