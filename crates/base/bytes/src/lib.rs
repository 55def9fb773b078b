//! Fields of binary protocols: bounded reading from a slice, appending to a vector.
//!
//! Use it for a wire format or a file format of your own whose input comes from a peer: a decoder
//! reads field after field, and every failure is one [`DecodeError`] that names the field and its
//! limit. Use `serde` instead where the format is given by a library.
//!
//! 1. [`Write`] appends to a `Vec<u8>`; numbers are big-endian, a *blob* is bytes after their
//!    32-bit length.
//! 2. [`Reader`] reads the same from the front of a slice, without a copy.
//!
//! ```
//! use unlade_bytes::{DecodeError, Reader, Write as _};
//!
//! let mut out = Vec::new();
//! out.put_u16(7);
//! out.put_blob(b"abc");
//!
//! let mut reader = Reader::new(&out);
//! assert_eq!(reader.u16(), Ok(7));
//! assert_eq!(reader.blob("name", 16), Ok(&b"abc"[..]));
//! assert_eq!(reader.finish(), Ok(()));
//!
//! // The limit is checked before anything is allocated or read.
//! let error = Reader::new(&out[2..]).blob("name", 2).unwrap_err();
//! assert_eq!(error, DecodeError::TooLong { what: "name", length: 3, limit: 2 });
//! assert_eq!(error.to_string(), "name: 3 bytes exceed the limit of 2");
//! ```
//!
//! # Limits
//! No I/O, no thread, no `unsafe`. There are no schemas, no optional fields and no little-endian
//! numbers.
#![forbid(unsafe_code)]

mod frames;

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

pub use frames::Frames;

/// An error in bytes from a peer. The peer is at fault in every variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The input ended inside a value.
    #[error("input ends inside a value")]
    Truncated,
    /// A length field exceeds its named limit.
    #[error("{what}: {length} bytes exceed the limit of {limit}")]
    TooLong {
        /// The field.
        what: &'static str,
        /// The length that the peer announced.
        length: usize,
        /// The named limit.
        limit: usize,
    },
    /// A field has a value that the format does not define.
    #[error("{what}: undefined value {value}")]
    Undefined {
        /// The field.
        what: &'static str,
        /// The value found.
        value: u64,
    },
    /// Bytes remain after the last field.
    #[error("{0} bytes remain after the last field")]
    Trailing(usize),
    /// The checksum does not match the content.
    #[error("checksum mismatch")]
    Checksum,
    /// The peer uses a protocol version that this build does not support.
    #[error("version {0} is not supported")]
    Version(u16),
}

/// Reads values from the front of a byte slice.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the front of `rest`.
    pub fn new(rest: &'a [u8]) -> Self {
        Reader { rest }
    }

    /// Returns the next `length` bytes.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    /// Reads one byte.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads two bytes.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// Reads four bytes.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    /// Reads eight bytes.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    /// Reads a byte that is 0 or 1; `what` names the field in the error.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Undefined { what, value: value.into() }),
        }
    }

    /// Reads bytes that follow a 32-bit length; the length must not exceed `limit`.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn blob(&mut self, what: &'static str, limit: usize) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()? as usize;
        if length > limit {
            return Err(DecodeError::TooLong { what, length, limit });
        }
        self.bytes(length)
    }

    /// Reads UTF-8 text that follows a 32-bit length; the length must not exceed `limit` bytes.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn text(&mut self, what: &'static str, limit: usize) -> Result<String, DecodeError> {
        let bytes = self.blob(what, limit)?;
        let text = core::str::from_utf8(bytes);
        text.map(str::to_owned).map_err(|_| DecodeError::Undefined { what, value: 0 })
    }

    /// Reads a hardware address.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn mac(&mut self) -> Result<[u8; 6], DecodeError> {
        self.array()
    }

    /// Reads a byte (4 or 6), an IP address of that version, and a port.
    ///
    /// # Errors
    /// The input is too short, or is not such a value.
    pub fn address(&mut self) -> Result<SocketAddr, DecodeError> {
        let ip: IpAddr = match self.u8()? {
            4 => self.array::<4>()?.into(),
            6 => self.array::<16>()?.into(),
            value => {
                return Err(DecodeError::Undefined { what: "address family", value: value.into() });
            }
        };
        Ok(SocketAddr::new(ip, self.u16()?))
    }

    /// Number of bytes that are left.
    pub fn rest(&self) -> usize {
        self.rest.len()
    }

    /// Succeeds if no byte is left.
    ///
    /// # Errors
    /// Bytes remain.
    pub fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

/// Appends values to a byte vector.
pub trait Write {
    /// Appends a byte.
    fn put_u8(&mut self, value: u8);
    /// Appends two bytes.
    fn put_u16(&mut self, value: u16);
    /// Appends four bytes.
    fn put_u32(&mut self, value: u32);
    /// Appends eight bytes.
    fn put_u64(&mut self, value: u64);
    /// Appends the length in 32 bits, then the bytes.
    fn put_blob(&mut self, value: &[u8]);
    /// Appends a byte 4 or 6, the IP address, the port.
    fn put_address(&mut self, value: SocketAddr);
}

impl Write for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    fn put_u16(&mut self, value: u16) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_be_bytes());
    }
    fn put_blob(&mut self, value: &[u8]) {
        self.put_u32(value.len() as u32);
        self.extend_from_slice(value);
    }
    fn put_address(&mut self, value: SocketAddr) {
        match value.ip() {
            IpAddr::V4(ip) => {
                self.put_u8(4);
                self.extend_from_slice(&ip.octets());
            }
            IpAddr::V6(ip) => {
                self.put_u8(6);
                self.extend_from_slice(&ip.octets());
            }
        }
        self.put_u16(value.port());
    }
}
