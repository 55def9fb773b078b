//! A body that is compared with the checksum its head states.

use crc_fast::{CrcAlgorithm, Digest};
use object::Head;

use super::body::crc32_text;
use super::{Into, Local, Reader, TransportError};

/// Octets of a region that are looked at together.
const LOOK_BYTES: usize = 16 * 1024;

/// The checksum of a whole body that a head states, where this end compares it.
pub fn stated(head: &Head) -> Option<&str> {
    // One of parts is a checksum of checksums, and ends with their number.
    head.header("x-amz-checksum-crc32").filter(|sum| !sum.contains('-'))
}

/// See the [module](self).
pub struct Checked {
    reader: Box<dyn Reader>,
    digest: Digest,
    due: String,
}

impl Checked {
    /// A body, and its checksum.
    pub fn new(reader: Box<dyn Reader>, due: &str) -> Checked {
        let digest = Digest::new(CrcAlgorithm::Crc32IsoHdlc);
        let mut checked = Checked { reader, digest, due: due.to_owned() };
        // What is empty is never read.
        if checked.reader.left_bytes() == Some(0) {
            checked.due = crc32_text(0);
        }
        checked
    }

    async fn step(&mut self, to: Into<'_>, bytes_max: usize) -> Result<usize, TransportError> {
        let read = match to {
            Into::Memory(out) => {
                let before = out.len();
                let read = self.reader.read(Into::Memory(out), bytes_max).await?;
                self.digest.update(out.get(before..).unwrap_or_default());
                read
            }
            Into::Region(region, at) => {
                let read = self.reader.read(Into::Region(region, at), bytes_max).await?;
                let mut look = [0; LOOK_BYTES];
                let mut seen = 0;
                // The guest may be changing them already: it has itself to thank for the error.
                while seen < read {
                    let piece = &mut look[..(read - seen).min(LOOK_BYTES)];
                    if region.copy_out(at + seen, piece).is_err() {
                        return Err(self.differs());
                    }
                    self.digest.update(piece);
                    seen += piece.len();
                }
                read
            }
        };
        let ended = self.reader.left_bytes() == Some(0) || (read == 0 && bytes_max > 0);
        match ended && crc32_text(self.digest.finalize() as u32) != self.due {
            true => Err(self.differs()),
            false => Ok(read),
        }
    }

    fn differs(&self) -> TransportError {
        let why = format!("the body is not that of its checksum {}", self.due);
        TransportError::Broken { host: "the store".to_owned(), why }
    }
}

impl Reader for Checked {
    fn left_bytes(&self) -> Option<u64> {
        self.reader.left_bytes()
    }

    fn read<'a>(
        &'a mut self,
        to: Into<'a>,
        bytes_max: usize,
    ) -> Local<'a, Result<usize, TransportError>> {
        Box::pin(self.step(to, bytes_max))
    }
}
