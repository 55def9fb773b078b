//! A body that is compared with the checksum its head states.

use unlade_s3::Head;

use super::digest::Digest;
use super::{Into, Local, Reader, TransportError};

/// Bytes of a region that are looked at together.
const LOOK_BYTES: usize = 16 * 1024;
/// Algorithms that SDKs compare, by their names in header fields, in their order.
const ALGORITHMS: &[&str] = &["crc32", "sha256", "sha1"];

/// The checksum of a whole body that a head states, where this end compares it: the algorithm's
/// name, and the sum in base64.
pub fn stated(head: &Head) -> Option<(&'static str, &str)> {
    // One of parts is a checksum of checksums, and ends with their number.
    let sum = |name: &str| head.header(&format!("x-amz-checksum-{name}"));
    ALGORITHMS.iter().find_map(|name| Some((*name, sum(name).filter(|sum| !sum.contains('-'))?)))
}

/// See the [module](self).
pub struct Checked {
    reader: Box<dyn Reader>,
    digest: Digest,
    due: String,
}

impl Checked {
    /// A body that is compared with its checksum, if the algorithm is known.
    pub fn over(reader: Box<dyn Reader>, algorithm: &str, due: &str) -> Box<dyn Reader> {
        let Some(digest) = Digest::new(algorithm) else { return reader };
        let mut checked = Checked { reader, digest, due: due.to_owned() };
        // What is empty is never read.
        if checked.reader.left_bytes() == Some(0) {
            checked.due = checked.digest.text();
        }
        Box::new(checked)
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
        match ended && self.digest.text() != self.due {
            true => Err(self.differs()),
            false => Ok(read),
        }
    }

    fn differs(&self) -> TransportError {
        let why = format!("the body is not that of its checksum {}", self.due);
        TransportError::broken("the store", why)
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
