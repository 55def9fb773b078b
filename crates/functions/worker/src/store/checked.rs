//! A body reader that verifies the checksum of the response head.

use unlade_s3::Head;

use super::digest::Digest;
use super::transport::{Into, Local, Reader, TransportError};

/// Bytes of a region that are hashed in one step.
const LOOK_BYTES: usize = 16 * 1024;
/// Algorithms that SDKs verify, by their names in header fields, in their order of preference.
const ALGORITHMS: &[&str] = &["crc32", "sha256", "sha1"];

/// The checksum of a whole body in a response head, if this end verifies it: the name of the
/// algorithm, and the value in base64.
pub fn stated(head: &Head) -> Option<(&'static str, &str)> {
    // The checksum of a multipart object is a checksum of checksums, and ends with the number of
    // parts.
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
    /// Wraps a body so that its checksum is verified, if the algorithm is known.
    pub fn over(reader: Box<dyn Reader>, algorithm: &str, due: &str) -> Box<dyn Reader> {
        let Some(digest) = Digest::new(algorithm) else { return reader };
        let mut checked = Checked { reader, digest, due: due.to_owned() };
        // An empty body is never read, so it is verified now.
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
                // The guest may be changing the bytes already; the error then concerns only
                // itself.
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
