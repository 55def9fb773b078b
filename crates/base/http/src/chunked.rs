//! Scanner for the end of a chunked body (RFC 9112 §7.1).

use super::{HeadError, is_token_byte, is_value_byte};

/// Most bytes of a chunk's size line, extensions included.
pub const CHUNK_LINE_BYTES_MAX: usize = 256;
/// Most bytes of chunk extensions in one body.
pub const EXTENSION_BYTES_MAX: usize = 4096;
/// Most bytes of the trailer section, the final blank line not included.
pub const TRAILER_BYTES_MAX: usize = 8192;
/// Most digits of a chunk size.
const SIZE_DIGITS_MAX: u8 = 16;
/// Longest trailer name that is compared with the forbidden names.
const NAME_BYTES: usize = 20;

/// The result of a call to [`ChunkedScanner::advance`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkedProgress {
    /// Bytes at the front of the input that belong to the body, framing included. All of the
    /// input, unless the body has ended.
    pub consumed: usize,
    /// The body has ended with these bytes.
    pub done: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In the hexadecimal digits.
    Size,
    /// In the extensions.
    Extension,
    /// After the CR of a size line.
    SizeLf,
    /// In the data.
    Data,
    /// After the last byte of the data.
    DataCr,
    DataLf,
    /// At the start of a trailer line, or of the final blank line.
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    /// After the CR of the final blank line.
    FinalLf,
    Done,
}

/// Finds the end of a chunked body that arrives in chunks of any size, without I/O or buffering.
///
/// Strict: line ends are CRLF only, sizes are plain hexadecimal, and the trailer may not carry a
/// field that frames or routes the message.
#[derive(Clone, Debug)]
pub struct ChunkedScanner {
    state: State,
    /// The size in the size line; then, the number of data bytes that remain.
    chunk_bytes: u64,
    digits: u8,
    line_bytes: usize,
    extension_bytes: usize,
    trailer_bytes: usize,
    name: [u8; NAME_BYTES],
    name_bytes: usize,
}

impl Default for ChunkedScanner {
    fn default() -> ChunkedScanner {
        ChunkedScanner::new()
    }
}

impl ChunkedScanner {
    /// A scanner at the start of a body.
    pub fn new() -> ChunkedScanner {
        ChunkedScanner {
            state: State::Size,
            chunk_bytes: 0,
            digits: 0,
            line_bytes: 0,
            extension_bytes: 0,
            trailer_bytes: 0,
            name: [0; NAME_BYTES],
            name_bytes: 0,
        }
    }

    /// Returns true once the body has ended.
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Number of bytes of the current chunk's data that have not arrived: the caller may forward
    /// them without showing them to the scanner, and then calls [`skip`](ChunkedScanner::skip).
    pub fn data_bytes_due(&self) -> u64 {
        match self.state {
            State::Data => self.chunk_bytes,
            _ => 0,
        }
    }

    /// Records that `bytes` of the current chunk's data were forwarded without being shown to the
    /// scanner. At most [`data_bytes_due`](ChunkedScanner::data_bytes_due) bytes are skipped;
    /// returns the number of bytes skipped.
    pub fn skip(&mut self, bytes: u64) -> u64 {
        let taken = bytes.min(self.data_bytes_due());
        if taken > 0 {
            self.chunk_bytes -= taken;
            if self.chunk_bytes == 0 {
                self.state = State::DataCr;
            }
        }
        taken
    }

    /// Scans the next bytes of the body.
    ///
    /// # Errors
    /// The rule that the body breaks. The error is final, and the connection must be closed.
    pub fn advance(&mut self, input: &[u8]) -> Result<ChunkedProgress, HeadError> {
        self.advance_with(input, |_| {})
    }

    /// Scans the next bytes of the body, and calls `data` with each run of data bytes (not
    /// framing), in order. If the body is malformed, `data` has been called for the bytes before
    /// the error.
    ///
    /// # Errors
    /// The rule that the body breaks. The error is final, and the connection must be closed.
    pub fn advance_with<'i>(
        &mut self,
        input: &'i [u8],
        mut data: impl FnMut(&'i [u8]),
    ) -> Result<ChunkedProgress, HeadError> {
        let mut consumed = 0;
        while let Some((&byte, _)) = input.get(consumed..).and_then(<[u8]>::split_first) {
            match self.state {
                State::Done => break,
                State::Data => {
                    let rest = input.get(consumed..).unwrap_or_default();
                    let taken = self.skip(rest.len() as u64) as usize;
                    data(rest.get(..taken).unwrap_or_default());
                    consumed += taken;
                }
                _ => {
                    self.step(byte)?;
                    consumed += 1;
                }
            }
        }
        Ok(ChunkedProgress { consumed, done: self.is_done() })
    }

    /// Processes one byte of framing.
    fn step(&mut self, byte: u8) -> Result<(), HeadError> {
        self.state = match self.state {
            State::Size | State::Extension | State::SizeLf => self.size_line(byte)?,
            State::DataCr if byte == b'\r' => State::DataLf,
            State::DataLf if byte == b'\n' => State::Size,
            State::DataCr | State::DataLf => return Err(HeadError::BadChunkDelimiter),
            State::FinalLf if byte == b'\n' => State::Done,
            State::FinalLf => return Err(HeadError::BadTrailer),
            State::TrailerStart | State::TrailerName | State::TrailerValue | State::TrailerLf => {
                self.trailer(byte)?
            }
            State::Data | State::Done => self.state,
        };
        Ok(())
    }

    fn size_line(&mut self, byte: u8) -> Result<State, HeadError> {
        self.line_bytes += 1;
        if self.line_bytes > CHUNK_LINE_BYTES_MAX {
            return Err(HeadError::ChunkLineTooLong);
        }
        match (self.state, byte) {
            (State::Size, _) if byte.is_ascii_hexdigit() => self.size_digit(byte),
            (State::Size, b'\r') if self.digits > 0 => Ok(State::SizeLf),
            (State::Size, b';') if self.digits > 0 => Ok(State::Extension),
            (State::Size, _) => Err(HeadError::BadChunkSize),
            (State::Extension, b'\r') => Ok(State::SizeLf),
            (State::Extension, _) => {
                self.extension_bytes += 1;
                if self.extension_bytes > EXTENSION_BYTES_MAX {
                    return Err(HeadError::ChunkLineTooLong);
                }
                is_value_byte(byte).then_some(State::Extension).ok_or(HeadError::BadChunkExtension)
            }
            (_, b'\n') => {
                self.line_bytes = 0;
                self.digits = 0;
                Ok(if self.chunk_bytes == 0 { State::TrailerStart } else { State::Data })
            }
            _ => Err(HeadError::BadChunkDelimiter),
        }
    }

    fn size_digit(&mut self, byte: u8) -> Result<State, HeadError> {
        let digit = char::from(byte).to_digit(16).ok_or(HeadError::BadChunkSize)?;
        self.digits += 1;
        if self.digits > SIZE_DIGITS_MAX {
            return Err(HeadError::BadChunkSize);
        }
        // Zero here: the data of the previous chunk has been counted down.
        self.chunk_bytes = self.chunk_bytes << 4 | u64::from(digit);
        Ok(State::Size)
    }

    fn trailer(&mut self, byte: u8) -> Result<State, HeadError> {
        if self.state == State::TrailerStart && byte == b'\r' {
            return Ok(State::FinalLf);
        }
        self.trailer_bytes += 1;
        if self.trailer_bytes > TRAILER_BYTES_MAX {
            return Err(HeadError::TrailerTooLarge);
        }
        match (self.state, byte) {
            (State::TrailerStart | State::TrailerName, _) if is_token_byte(byte) => {
                if self.state == State::TrailerStart {
                    self.name_bytes = 0;
                }
                if let Some(slot) = self.name.get_mut(self.name_bytes) {
                    *slot = byte;
                }
                self.name_bytes += 1;
                Ok(State::TrailerName)
            }
            (State::TrailerName, b':') if !self.is_forbidden() => Ok(State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerValue, _) if is_value_byte(byte) => Ok(State::TrailerValue),
            (State::TrailerLf, b'\n') => Ok(State::TrailerStart),
            _ => Err(HeadError::BadTrailer),
        }
    }

    /// Returns true if the trailer's name is one that frames or routes the message (RFC 9110
    /// §6.5.1).
    fn is_forbidden(&self) -> bool {
        let name = self.name.get(..self.name_bytes).unwrap_or_default();
        [&b"transfer-encoding"[..], b"content-length", b"host", b"connection", b"upgrade"]
            .iter()
            .any(|forbidden| forbidden.eq_ignore_ascii_case(name))
    }
}
