//! The decoder of `aws-chunked`: the body of an SDK that signs its pieces, or sends a checksum after
//! them. Signatures and trailers are dropped: the host makes its own. No I/O.

use bytes::{Buf, Bytes, BytesMut};

/// Longest line: a size, and a signature.
const LINE_BYTES_MAX: usize = 1024;
/// Most bytes of all trailers.
const TRAILERS_BYTES_MAX: usize = 16 * 1024;
/// Most hexadecimal digits of a size: up to 2^40 - 1 bytes.
const DIGITS_MAX: usize = 10;

/// The body is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is not aws-chunked: {0}")]
pub struct Malformed(pub &'static str);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Before a size.
    Size,
    /// Within a piece.
    Piece { left: u64 },
    /// At the line end after a piece.
    PieceEnd,
    /// After the last size; the number of bytes of trailers so far.
    Trailers { bytes: usize },
    /// After the last line.
    End,
}

/// A decoder: bytes in, bytes of the object out.
#[derive(Debug)]
pub struct Decoder {
    state: State,
    input: BytesMut,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder { state: State::Size, input: BytesMut::new() }
    }
}

impl Decoder {
    /// Adds received bytes. Call [`Decoder::take`] until it returns `None` before the next ones, or
    /// they are collected without limit.
    pub fn push(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// Returns true behind the last line.
    pub fn is_done(&self) -> bool {
        self.state == State::End
    }

    /// The next bytes of the object; `None` if more input is needed, or at the end.
    ///
    /// # Errors
    /// The body is malformed, or goes on behind its end.
    pub fn take(&mut self) -> Result<Option<Bytes>, Malformed> {
        loop {
            match self.state {
                State::Piece { left } => {
                    let count = left.min(self.input.len() as u64);
                    if count == 0 {
                        return Ok(None);
                    }
                    let left = left - count;
                    self.state = if left == 0 { State::PieceEnd } else { State::Piece { left } };
                    // At most the length of the input.
                    return Ok(Some(self.input.split_to(count as usize).freeze()));
                }
                State::End if self.input.is_empty() => return Ok(None),
                State::End => return Err(Malformed("bytes behind its end")),
                _ => {
                    let Some(line) = self.line()? else { return Ok(None) };
                    self.state = self.after(&line)?;
                }
            }
        }
    }

    /// The next line without its end.
    fn line(&mut self) -> Result<Option<Bytes>, Malformed> {
        let window = self.input.get(..self.input.len().min(LINE_BYTES_MAX)).unwrap_or_default();
        match window.windows(2).position(|pair| pair == b"\r\n") {
            Some(at) => {
                let line = self.input.split_to(at).freeze();
                self.input.advance(2);
                Ok(Some(line))
            }
            None if window.len() == LINE_BYTES_MAX => Err(Malformed("a line is too long")),
            None => Ok(None),
        }
    }

    fn after(&self, line: &[u8]) -> Result<State, Malformed> {
        match self.state {
            State::PieceEnd if line.is_empty() => Ok(State::Size),
            State::PieceEnd => Err(Malformed("a piece is longer than its size")),
            State::Trailers { .. } if line.is_empty() => Ok(State::End),
            State::Trailers { bytes } => match bytes + line.len() {
                bytes if bytes > TRAILERS_BYTES_MAX => Err(Malformed("trailers are too long")),
                bytes => Ok(State::Trailers { bytes }),
            },
            _ => match size(line)? {
                0 => Ok(State::Trailers { bytes: 0 }),
                left => Ok(State::Piece { left }),
            },
        }
    }
}

/// `HEX`, or `HEX;chunk-signature=…`.
fn size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default();
    if !(1..=DIGITS_MAX).contains(&digits.len()) {
        return Err(Malformed("a size has one to ten digits"));
    }
    digits.iter().try_fold(0, |size, digit| {
        let digit = char::from(*digit).to_digit(16).ok_or(Malformed("a size is no number"))?;
        Ok(size << 4 | u64::from(digit))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use unlade_testkit::cases;

    /// Decodes input that arrives in pieces.
    fn decoded<'a>(
        pieces: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(Vec<u8>, bool), Malformed> {
        let (mut decoder, mut out) = (Decoder::default(), Vec::new());
        for piece in pieces {
            decoder.push(piece);
            while let Some(bytes) = decoder.take()? {
                out.extend_from_slice(&bytes);
            }
        }
        Ok((out, decoder.is_done()))
    }

    #[test]
    fn bodies_of_sdks_are_decoded() {
        let signed = b"4;chunk-signature=ab\r\nWiki\r\n5;chunk-signature=cd\r\npedia\r\n\
                       0;chunk-signature=ef\r\n\r\n";
        assert_eq!(decoded([&signed[..]]), Ok((b"Wikipedia".to_vec(), true)));
        let trailed = b"A\r\n0123456789\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        assert_eq!(decoded([&trailed[..]]), Ok((b"0123456789".to_vec(), true)));
        assert_eq!(decoded([&b"0\r\n\r\n"[..]]), Ok((Vec::new(), true)));
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for wrong in [
            "\r\n",
            "g\r\n",
            "-1\r\n",
            "12345678901\r\n",
            "1\r\nab\r\n",
            "0\r\n\r\nx",
            "1 \r\na\r\n",
        ] {
            assert!(decoded([wrong.as_bytes()]).is_err(), "{wrong:?}");
        }
        assert!(decoded([&[b'1'; LINE_BYTES_MAX][..]]).is_err());
        let trailers = format!("0\r\n{}", "a:b\r\n".repeat(TRAILERS_BYTES_MAX));
        assert!(decoded([trailers.as_bytes()]).is_err());
        assert_eq!(decoded([&b"5\r\nab"[..]]), Ok((b"ab".to_vec(), false)), "it breaks off");
    }

    #[test]
    fn a_body_is_the_same_however_it_is_cut() {
        cases(300, |random| {
            let length = random.below(3000_usize);
            let object = random.bytes(length);
            let mut sent = Vec::new();
            let mut rest = object.as_slice();
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(random.below(rest.len()) + 1);
                let extension = random.pick(&["", ";chunk-signature=00ff"]);
                sent.extend_from_slice(format!("{:x}{extension}\r\n", piece.len()).as_bytes());
                sent.extend_from_slice(piece);
                sent.extend_from_slice(b"\r\n");
                rest = after;
            }
            sent.extend_from_slice(random.pick(&["0\r\n\r\n", "0\r\na:b\r\n\r\n"]).as_bytes());
            let whole = decoded([sent.as_slice()]);
            assert_eq!(whole, Ok((object, true)));
            let step = random.below(70_usize) + 1;
            assert_eq!(decoded(sent.chunks(step)), whole);
            let cut = random.below(sent.len());
            assert!(decoded([&sent[..cut]]).is_ok_and(|(_, is_done)| !is_done));
        });
    }
}
