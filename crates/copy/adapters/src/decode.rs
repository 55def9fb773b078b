//! Protocol Buffers from bytes that are still on their way (Copier, SOSP 2025, §6.2.3).

use std::ops::Range;

use prost::Message;
use unlade_copy::CopyError;

use crate::reader::Reader;
use crate::source::Source;

/// Why there is no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Some of its bytes did not come.
    #[error(transparent)]
    Copy(#[from] CopyError),
    /// They are no such message.
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

/// Decodes the message that all bytes of `source` are, each part as it comes.
///
/// # Errors
/// [`DecodeError`].
pub fn decode<M: Message + Default>(source: &(impl Source + ?Sized)) -> Result<M, DecodeError> {
    decode_range(source, 0..source.len())
}

/// As [`decode`], of the bytes of `range`.
///
/// # Errors
/// [`DecodeError`].
///
/// # Panics
/// `range` is not within the source.
pub fn decode_range<M: Message + Default>(
    source: &(impl Source + ?Sized),
    range: Range<usize>,
) -> Result<M, DecodeError> {
    if source.is_ready(range.clone()) {
        // In one piece decoders are a twentieth faster.
        return Ok(M::decode(source.sync(range)?)?);
    }
    let mut reader = Reader::of(source, range);
    let decoded = M::decode(&mut reader);
    // Bytes that did not come make any message of what was decoded.
    reader.finish()?;
    Ok(decoded?)
}
