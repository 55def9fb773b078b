//! Received bytes, until they are split into frames.

use zeroize::Zeroize;

use crate::DecodeError;

/// Bytes of a stream that are not decoded yet. A decoder with a limit for a frame bounds them: at
/// most one frame and the bytes of one read.
#[derive(Debug, Default)]
pub struct Frames {
    buffer: Vec<u8>,
    /// Number of decoded bytes at the front.
    start: usize,
    is_secret: bool,
}

impl Frames {
    /// An empty buffer for frames with secrets: all bytes of them are zeroised once they are
    /// decoded, moved, or dropped.
    pub fn secret() -> Frames {
        Frames { buffer: Vec::new(), start: 0, is_secret: true }
    }

    /// Appends received bytes.
    pub fn push(&mut self, bytes: &[u8]) {
        let rest = self.start..self.buffer.len();
        let needed = rest.len() + bytes.len();
        if self.is_secret && needed > self.buffer.capacity() {
            // A vector that grows by itself leaves its former memory as it is.
            let mut grown = Vec::with_capacity(needed.max(2 * self.buffer.capacity()));
            grown.extend_from_slice(&self.buffer[rest]);
            self.buffer.zeroize();
            self.buffer = grown;
        } else if self.start > 0 {
            let rest_bytes = rest.len();
            self.buffer.copy_within(rest, 0);
            if self.is_secret {
                self.buffer[rest_bytes..].zeroize();
            }
            self.buffer.truncate(rest_bytes);
        }
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame; `None` if more bytes are needed. `decode` returns the frame at the
    /// front of its input and the number of its bytes, or `None` if it is not complete.
    ///
    /// # Errors
    /// That of `decode`; no byte is taken.
    pub fn next_with<T>(
        &mut self,
        decode: impl FnOnce(&[u8]) -> Result<Option<(T, usize)>, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        let Some((frame, taken)) = decode(&self.buffer[self.start..])? else { return Ok(None) };
        if self.is_secret {
            self.buffer[self.start..self.start + taken].zeroize();
        }
        self.start += taken;
        Ok(Some(frame))
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        if self.is_secret {
            self.buffer.zeroize();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame: its length, then as many bytes.
    fn decode(input: &[u8]) -> Result<Option<(Vec<u8>, usize)>, DecodeError> {
        match input.split_first() {
            Some((255, _)) => Err(DecodeError::Checksum),
            Some((&length, rest)) => {
                Ok(rest.get(..length.into()).map(|frame| (frame.to_vec(), 1 + frame.len())))
            }
            None => Ok(None),
        }
    }

    #[test]
    fn frames_come_out_of_any_chunks() {
        let stream: Vec<u8> = (0..60).flat_map(|bytes| vec![bytes; 1 + bytes as usize]).collect();
        for frames in [Frames::default, Frames::secret] {
            for chunk in [1, 2, 7, 64, 4096] {
                let mut frames = frames();
                let mut found = Vec::new();
                for bytes in stream.chunks(chunk) {
                    frames.push(bytes);
                    while let Some(frame) = frames.next_with(decode).unwrap() {
                        found.push(frame);
                    }
                }
                let due: Vec<_> = (0..60).map(|bytes| vec![bytes; bytes.into()]).collect();
                assert_eq!(found, due, "chunks of {chunk}");
            }
        }
    }

    #[test]
    fn an_error_takes_no_byte() {
        let mut frames = Frames::default();
        frames.push(&[1, 9, 255, 3]);
        assert_eq!(frames.next_with(decode), Ok(Some(vec![9])));
        for _ in 0..2 {
            assert_eq!(frames.next_with(decode), Err(DecodeError::Checksum));
        }
    }

    #[test]
    fn secret_bytes_are_zeroised_behind_the_frames_that_remain() {
        let mut frames = Frames::secret();
        frames.buffer.reserve(64);
        frames.push(&[3, 7, 7, 7, 2, 8]);
        assert_eq!(frames.next_with(decode), Ok(Some(vec![7; 3])));
        assert_eq!(frames.buffer, [0, 0, 0, 0, 2, 8]);
        frames.push(&[8]);
        assert_eq!(frames.buffer, [2, 8, 8]);
        assert_eq!(frames.next_with(decode), Ok(Some(vec![8; 2])));
        assert_eq!(frames.buffer, [0; 3]);
    }
}
