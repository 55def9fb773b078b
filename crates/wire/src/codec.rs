//! Big-endian primitives shared by [`crate::snapshot`] and [`crate::frame`].

use std::net::{IpAddr, SocketAddr};

use thiserror::Error;

/// Why bytes from a peer could not be understood. The peer is at fault in every variant.
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
        /// What the peer announced.
        length: usize,
        /// The named limit.
        limit: usize,
    },
    /// A field holds a value that the format does not define.
    #[error("{what}: undefined value {value}")]
    Undefined {
        /// The field.
        what: &'static str,
        /// The value found.
        value: u64,
    },
    /// Bytes are left over behind the last field.
    #[error("{0} bytes left over behind the last field")]
    Trailing(usize),
    /// The checksum does not match the content.
    #[error("checksum mismatch")]
    Checksum,
    /// The peer speaks a version that this build does not.
    #[error("version {0} is not supported")]
    Version(u16),
}

/// Reads values from the front of a byte slice.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(rest: &'a [u8]) -> Self {
        Reader { rest }
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (head, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    pub(crate) fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_be_bytes(self.array()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_be_bytes(self.array()?))
    }

    pub(crate) fn bool(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            value => Err(DecodeError::Undefined { what, value: value.into() }),
        }
    }

    /// Octets behind a 32-bit length that must not exceed `limit`.
    pub(crate) fn blob(
        &mut self,
        what: &'static str,
        limit: usize,
    ) -> Result<&'a [u8], DecodeError> {
        let length = self.u32()? as usize;
        if length > limit {
            return Err(DecodeError::TooLong { what, length, limit });
        }
        self.bytes(length)
    }

    /// UTF-8 behind a 32-bit length that must not exceed `limit` bytes.
    pub(crate) fn text(&mut self, what: &'static str, limit: usize) -> Result<String, DecodeError> {
        let bytes = self.blob(what, limit)?;
        let text = core::str::from_utf8(bytes);
        text.map(str::to_owned).map_err(|_| DecodeError::Undefined { what, value: 0 })
    }

    pub(crate) fn mac(&mut self) -> Result<[u8; 6], DecodeError> {
        self.array()
    }

    pub(crate) fn address(&mut self) -> Result<SocketAddr, DecodeError> {
        let ip: IpAddr = match self.u8()? {
            4 => self.array::<4>()?.into(),
            6 => self.array::<16>()?.into(),
            value => {
                return Err(DecodeError::Undefined { what: "address family", value: value.into() });
            }
        };
        Ok(SocketAddr::new(ip, self.u16()?))
    }

    pub(crate) fn rest(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn finish(self) -> Result<(), DecodeError> {
        match self.rest.len() {
            0 => Ok(()),
            left => Err(DecodeError::Trailing(left)),
        }
    }
}

/// Appends values to a byte vector.
pub(crate) trait Write {
    fn put_u8(&mut self, value: u8);
    fn put_u16(&mut self, value: u16);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_blob(&mut self, value: &[u8]);
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
