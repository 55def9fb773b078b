//! Reads responses out of a byte stream: head, then as many body bytes as it announces. Sans-IO;
//! a body that is not verified need not pass through here at all.

use super::target::Sum;
use sha2::{Digest, Sha256};
use std::fmt;

/// Bytes of a response head.
const HEAD_BYTES_MAX: usize = 32 * 1024;
const HEADERS_MAX: usize = 64;

/// A fault in the server's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    Head,
    HeadTooLong,
    /// No usable Content-Length.
    Framing,
    /// Bytes that no request asked for.
    Unasked,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Malformed::Head => "a response head that is not HTTP/1.1",
            Malformed::HeadTooLong => "a response head without end",
            Malformed::Framing => "a response without a single valid Content-Length",
            Malformed::Unasked => "bytes that no request asked for",
        })
    }
}

impl std::error::Error for Malformed {}

/// A response that has arrived completely.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Finished {
    pub status: u16,
    pub body_bytes: u64,
    /// The server closes after it.
    pub closes: bool,
    /// Of the body, if it was asked for.
    pub sum: Option<Sum>,
}

#[derive(Debug)]
struct Body {
    head: Head,
    remaining_bytes: u64,
    hasher: Option<Sha256>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    status: u16,
    body_bytes: u64,
    closes: bool,
}

/// Where a connection is in its responses.
#[derive(Debug, Default)]
pub struct Reader {
    /// A head of which only the beginning has arrived.
    partial: Vec<u8>,
    body: Option<Body>,
    /// Body bytes of all responses so far.
    pub body_bytes: u64,
}

impl Reader {
    /// Takes bytes off the front of `input`, up to the end of one response. `hash` says whether
    /// that response is to be summed; it is asked once, when its head is complete.
    ///
    /// # Errors
    /// The bytes are no response; the connection is of no further use.
    pub fn read(
        &mut self,
        input: &mut &[u8],
        hash: impl FnOnce() -> bool,
    ) -> Result<Option<Finished>, Malformed> {
        if self.body.is_none() {
            match self.read_head(input)? {
                None => return Ok(None),
                Some(head) => {
                    let hasher = hash().then(Sha256::new);
                    self.body = Some(Body { head, remaining_bytes: head.body_bytes, hasher });
                }
            }
        }
        let Some(body) = &mut self.body else { return Ok(None) };
        let here = usize::try_from(body.remaining_bytes).unwrap_or(usize::MAX).min(input.len());
        let (bytes, rest) = input.split_at(here);
        if let Some(hasher) = &mut body.hasher {
            hasher.update(bytes);
        }
        *input = rest;
        body.remaining_bytes -= here as u64;
        self.body_bytes += here as u64;
        Ok(self.finish())
    }

    /// Body bytes that may be dropped unread.
    pub fn skippable_bytes(&self) -> u64 {
        match &self.body {
            Some(body) if body.hasher.is_none() => body.remaining_bytes,
            _ => 0,
        }
    }

    /// That `bytes` of the body were dropped unread.
    pub fn skipped(&mut self, bytes: u64) -> Option<Finished> {
        if let Some(body) = &mut self.body {
            body.remaining_bytes = body.remaining_bytes.saturating_sub(bytes);
            self.body_bytes += bytes;
        }
        self.finish()
    }

    /// Returns true if the next byte begins a response.
    pub fn is_between(&self) -> bool {
        self.body.is_none() && self.partial.is_empty()
    }

    fn finish(&mut self) -> Option<Finished> {
        let body = self.body.take_if(|body| body.remaining_bytes == 0)?;
        let Head { status, body_bytes, closes } = body.head;
        let sum = body.hasher.map(|hasher| hasher.finalize().into());
        Some(Finished { status, body_bytes, closes, sum })
    }

    fn read_head(&mut self, input: &mut &[u8]) -> Result<Option<Head>, Malformed> {
        if self.partial.is_empty() {
            if let Some((head, bytes)) = parse_head(input)? {
                *input = &input[bytes..];
                return Ok(Some(head));
            }
            self.partial.extend_from_slice(input);
            *input = &[];
        } else {
            let before = self.partial.len();
            let room = HEAD_BYTES_MAX.saturating_sub(before).min(input.len());
            self.partial.extend_from_slice(&input[..room]);
            if let Some((head, bytes)) = parse_head(&self.partial)? {
                // What was there before was no complete head, so its end is in `input`.
                *input = &input[bytes.saturating_sub(before)..];
                self.partial.clear();
                return Ok(Some(head));
            }
            *input = &input[room..];
        }
        match self.partial.len() >= HEAD_BYTES_MAX {
            true => Err(Malformed::HeadTooLong),
            false => Ok(None),
        }
    }
}

/// The head at the front of `bytes` and its length, once it is complete.
fn parse_head(bytes: &[u8]) -> Result<Option<(Head, usize)>, Malformed> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut response = httparse::Response::new(&mut headers);
    let length = match response.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(Malformed::Head),
    };
    let status = response.code.ok_or(Malformed::Head)?;
    let mut body_bytes = None;
    let mut closes = response.version == Some(0);
    for header in response.headers.iter() {
        if header.name.eq_ignore_ascii_case("content-length") {
            let text = std::str::from_utf8(header.value).map_err(|_| Malformed::Framing)?;
            let bytes = text.trim().parse::<u64>().map_err(|_| Malformed::Framing)?;
            if body_bytes.replace(bytes).is_some() {
                return Err(Malformed::Framing);
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            return Err(Malformed::Framing);
        } else if header.name.eq_ignore_ascii_case("connection") {
            closes |= header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let body_bytes = match (status, body_bytes) {
        (204 | 304, _) => 0,
        (_, Some(bytes)) => bytes,
        (_, None) => return Err(Malformed::Framing),
    };
    Ok(Some((Head { status, body_bytes, closes }, length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn response(body: &[u8]) -> Vec<u8> {
        let mut bytes =
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
        bytes.extend_from_slice(body);
        bytes
    }

    proptest! {
        /// However the stream is cut, the same responses come out.
        #[test]
        fn cuts_do_not_matter(
            bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..6),
            cuts in prop::collection::vec(1usize..50, 1..200),
        ) {
            let stream: Vec<u8> = bodies.iter().flat_map(|body| response(body)).collect();
            let mut reader = Reader::default();
            let mut sums = Vec::new();
            let (mut rest, mut cuts) = (&stream[..], cuts.iter().cycle());
            while !rest.is_empty() {
                let here = (*cuts.next().unwrap()).min(rest.len());
                let (mut piece, later) = rest.split_at(here);
                rest = later;
                while !piece.is_empty() {
                    if let Some(finished) = reader.read(&mut piece, || true).unwrap() {
                        sums.push(finished.sum.unwrap());
                    }
                }
            }
            let expected: Vec<Sum> =
                bodies.iter().map(|body| Sha256::digest(body).into()).collect();
            prop_assert_eq!(sums, expected);
            prop_assert!(reader.is_between());
        }

        #[test]
        fn hostile_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let mut reader = Reader::default();
            let mut input = &bytes[..];
            while !input.is_empty() {
                if reader.read(&mut input, || false).is_err() {
                    break;
                }
            }
        }
    }

    #[test]
    fn bodies_can_be_skipped() {
        let bytes = response(&[7; 100]);
        let mut reader = Reader::default();
        let mut input = &bytes[..bytes.len() - 60];
        assert_eq!(reader.read(&mut input, || false), Ok(None));
        assert_eq!(reader.skippable_bytes(), 60);
        assert_eq!(reader.skipped(59), None);
        let finished = reader.skipped(1).unwrap();
        assert_eq!((finished.status, finished.body_bytes, finished.sum), (200, 100, None));
        assert_eq!(reader.skippable_bytes(), 0);
    }

    #[test]
    fn framing_is_strict() {
        for (head, error) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Malformed::Framing),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\n",
                Malformed::Framing,
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", Malformed::Framing),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Malformed::Framing),
            ("SMTP ready\r\n\r\n", Malformed::Head),
        ] {
            assert_eq!(
                Reader::default().read(&mut head.as_bytes(), || false),
                Err(error),
                "{head}"
            );
        }
        let endless = vec![b'a'; HEAD_BYTES_MAX + 10];
        let head = [b"HTTP/1.1 200 OK\r\nX: ".as_slice(), &endless].concat();
        let mut reader = Reader::default();
        let mut outcome = Ok(None);
        for mut piece in head.chunks(1000) {
            outcome = reader.read(&mut piece, || false);
            if outcome.is_err() {
                break;
            }
        }
        assert_eq!(outcome, Err(Malformed::HeadTooLong));
    }
}
