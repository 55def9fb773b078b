//! Finds the end of a body that passes through.

use crate::{BodyFraming, ChunkedScanner, HeadError};

/// The remaining part of a body.
#[derive(Debug)]
pub enum Body {
    /// This number of bytes.
    Length(u64),
    /// Chunks.
    Chunked(Box<ChunkedScanner>),
    /// All bytes until the sender closes.
    UntilClose,
    /// Nothing more.
    Done,
}

impl Body {
    /// Creates the state at the start of a body.
    pub fn new(framing: BodyFraming) -> Body {
        match framing {
            BodyFraming::None | BodyFraming::Length(0) => Body::Done,
            BodyFraming::Length(bytes) => Body::Length(bytes),
            BodyFraming::Chunked => Body::Chunked(Box::default()),
            BodyFraming::UntilClose => Body::UntilClose,
        }
    }

    /// Returns true if the whole body has passed.
    pub fn is_done(&self) -> bool {
        matches!(self, Body::Done)
    }

    /// Returns the number of bytes that may pass without inspection.
    pub fn blind_bytes(&self) -> u64 {
        match self {
            Body::Length(left) => *left,
            Body::Chunked(scanner) => scanner.data_bytes_due(),
            Body::UntilClose => u64::MAX,
            Body::Done => 0,
        }
    }

    /// Records that bytes of [`Body::blind_bytes`] passed without inspection.
    pub fn skip(&mut self, bytes: u64) {
        match self {
            Body::Length(left) => {
                *left = left.saturating_sub(bytes);
                if *left == 0 {
                    *self = Body::Done;
                }
            }
            Body::Chunked(scanner) => {
                scanner.skip(bytes);
            }
            Body::UntilClose | Body::Done => {}
        }
    }

    /// Inspects the next bytes; returns how many of them, framing included, belong to the body.
    ///
    /// # Errors
    /// Malformed chunks.
    pub fn advance(&mut self, input: &[u8]) -> Result<usize, HeadError> {
        self.advance_with(input, |_| {})
    }

    /// As [`Body::advance`]; passes the content, without framing, to `data`.
    ///
    /// # Errors
    /// Malformed chunks.
    pub fn advance_with(
        &mut self,
        input: &[u8],
        mut data: impl FnMut(&[u8]),
    ) -> Result<usize, HeadError> {
        match self {
            Body::Chunked(scanner) => {
                let progress = scanner.advance_with(input, data)?;
                if progress.done {
                    *self = Body::Done;
                }
                Ok(progress.consumed)
            }
            Body::Done => Ok(0),
            Body::Length(_) | Body::UntilClose => {
                let taken = usize::try_from(self.blind_bytes()).unwrap_or(usize::MAX);
                let taken = taken.min(input.len());
                data(input.get(..taken).unwrap_or_default());
                self.skip(taken as u64);
                Ok(taken)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_body_is_done_at_once() {
        for framing in [BodyFraming::None, BodyFraming::Length(0)] {
            assert!(Body::new(framing).is_done());
        }
        assert!(!Body::new(BodyFraming::UntilClose).is_done());
    }

    proptest! {
        #[test]
        fn bodies_end_where_they_end_however_they_are_cut(
            chunks in proptest::collection::vec(1usize..50, 0..6),
            cuts in proptest::collection::vec(1usize..40, 1..20),
            length in any::<bool>(),
            blind in any::<bool>(),
        ) {
            let (mut wire, mut content) = (Vec::new(), Vec::new());
            for (n, size) in chunks.iter().enumerate() {
                let data = vec![b'a' + n as u8; *size];
                content.extend_from_slice(&data);
                if !length {
                    wire.extend_from_slice(format!("{size:x}\r\n").as_bytes());
                }
                wire.extend_from_slice(&data);
                if !length {
                    wire.extend_from_slice(b"\r\n");
                }
            }
            let framing = match length {
                true => BodyFraming::Length(content.len() as u64),
                false => {
                    wire.extend_from_slice(b"0\r\n\r\n");
                    BodyFraming::Chunked
                }
            };
            let end = wire.len();
            wire.extend_from_slice(b"GET / HTTP/1.1\r\n");
            let mut body = Body::new(framing);
            let (mut at, mut seen) = (0, Vec::new());
            for cut in cuts.iter().cycle() {
                if body.is_done() {
                    break;
                }
                let due = body.blind_bytes().min(*cut as u64) as usize;
                if blind && due > 0 {
                    seen.extend_from_slice(&wire[at..at + due]);
                    body.skip(due as u64);
                    at += due;
                    continue;
                }
                let piece = &wire[at..(at + cut).min(wire.len())];
                at += body.advance_with(piece, |data| seen.extend_from_slice(data)).unwrap();
            }
            prop_assert_eq!(at, end);
            prop_assert_eq!(seen, content);
        }
    }
}
