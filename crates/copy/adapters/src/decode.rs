//! Decoding of Protocol Buffers from bytes that are still being copied or received (Copier, SOSP
//! 2025, §6.2.3).

use std::ops::Range;

use prost::Message;
use unlade_copy::CopyError;

use crate::reader::Reader;
use crate::source::Source;

/// Reason why a message was not decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Some of its bytes were not copied or received.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// The bytes are not a valid message of this type.
    #[error("the bytes are no such message: {0}")]
    Message(#[from] prost::DecodeError),
}

impl From<DecodeError> for std::io::Error {
    fn from(error: DecodeError) -> std::io::Error {
        match error {
            DecodeError::Copy(error) => error.into(),
            error @ DecodeError::Message(_) => {
                std::io::Error::new(std::io::ErrorKind::InvalidData, error)
            }
        }
    }
}

/// Decodes all bytes of `source` as one message; waits for each part when the decoder reads it.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<M: Message + Default>(source: &(impl Source + ?Sized)) -> Result<M, DecodeError> {
    decode_range(source, 0..source.len())
}

/// As [`decode`], for the bytes of `range`.
///
/// # Errors
/// [`DecodeError`].
///
/// # Panics
/// Panics if `range` is not within the source.
pub fn decode_range<M: Message + Default>(
    source: &(impl Source + ?Sized),
    range: Range<usize>,
) -> Result<M, DecodeError> {
    if source.is_ready(range.clone()) {
        // Decoders are about 5 % faster on one contiguous slice.
        return Ok(M::decode(source.sync(range)?)?);
    }
    let mut reader = Reader::of(source, range);
    let decoded = M::decode(&mut reader);
    // If bytes are missing, the decoded message is invalid, so check this first.
    reader.finish()?;
    Ok(decoded?)
}
