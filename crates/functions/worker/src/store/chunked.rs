//! The encoding of a body in `aws-chunked`: each chunk is signed, and the checksum follows the
//! last one (S3 API reference, "Signature calculations for the Authorization header: transferring
//! payload in multiple chunks", and the same "including trailing headers").
//!
//! The encoded length is known in advance. No clock, no socket.

use super::digest::Digest;
use super::sign::ChunkSigner;

/// Bytes of every chunk except the last. S3 requires at least 8 KiB.
pub const CHUNK_BYTES: usize = 256 * 1024;
/// Bytes of a signature in hexadecimal.
const SIGNATURE_BYTES: u64 = 64;
const SIGNATURE_FIELD: &str = ";chunk-signature=";
const TRAILER_SIGNATURE_FIELD: &str = "x-amz-trailer-signature:";

/// The encoding of a body.
#[derive(Debug)]
pub enum Framing {
    /// Without chunks.
    Plain,
    /// In chunks.
    Chunks {
        /// The signer of the chunks; `None` where TLS protects them.
        signer: Option<ChunkSigner>,
        /// The checksum that follows them.
        trailer: Option<Trailer>,
    },
}

/// A checksum that is sent after the body.
#[derive(Debug)]
pub struct Trailer {
    /// The name of the header field.
    name: String,
    digest: Digest,
}

impl Trailer {
    /// Creates the trailer of an algorithm of the API; `None` if the algorithm is unknown.
    pub fn new(algorithm: &str) -> Option<Trailer> {
        let name = format!("x-amz-checksum-{}", algorithm.to_ascii_lowercase());
        Some(Trailer { name, digest: Digest::new(algorithm)? })
    }

    /// The name of its header field.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// The encoder of one body.
#[derive(Debug)]
pub struct Encoder {
    framing: Framing,
    chunk_bytes: usize,
    body_bytes: u64,
    left_bytes: u64,
    /// Positions in the output of the open chunk's head and data.
    open: Option<(usize, usize)>,
}

impl Encoder {
    /// Creates an encoder of a body of `body_bytes`, in chunks of `chunk_bytes`.
    pub fn new(framing: Framing, body_bytes: u64, chunk_bytes: usize) -> Encoder {
        let left_bytes = body_bytes;
        Encoder { framing, chunk_bytes: chunk_bytes.max(1), body_bytes, left_bytes, open: None }
    }

    /// Length of the complete encoding.
    pub fn encoded_bytes(&self) -> u64 {
        let Framing::Chunks { signer, trailer } = &self.framing else { return self.body_bytes };
        let chunk = self.chunk_bytes as u64;
        let (whole, rest) = (self.body_bytes / chunk, self.body_bytes % chunk);
        let is_signed = signer.is_some();
        let around = |data: u64| head_bytes(data, is_signed) + data + 2;
        let mut all = whole * around(chunk) + if rest > 0 { around(rest) } else { 0 };
        // The last chunk has no data, and its second line end follows the trailer.
        all += head_bytes(0, is_signed) + 2;
        if let Some(Trailer { name, digest }) = trailer {
            all += (name.len() + 1 + digest.text().len() + 2) as u64;
            if is_signed {
                all += TRAILER_SIGNATURE_FIELD.len() as u64 + SIGNATURE_BYTES + 2;
            }
        }
        all
    }

    /// Data bytes that remain.
    pub fn left_bytes(&self) -> u64 {
        self.left_bytes
    }

    /// Data bytes of the next chunk; 0 after the last one.
    pub fn next_bytes(&self) -> usize {
        usize::try_from(self.left_bytes).unwrap_or(usize::MAX).min(self.chunk_bytes)
    }

    /// Reserves room for the head of the next chunk. [`Encoder::next_bytes`] of data must follow,
    /// then [`Encoder::close`].
    pub fn open(&mut self, out: &mut Vec<u8>) {
        let data = self.next_bytes() as u64;
        let head = match &self.framing {
            Framing::Plain => 0,
            Framing::Chunks { signer, .. } => head_bytes(data, signer.is_some()),
        };
        let start = out.len();
        out.resize(start + usize::try_from(head).unwrap_or_default(), 0);
        self.open = Some((start, out.len()));
    }

    /// Writes the head of the chunk whose data was appended.
    pub fn close(&mut self, out: &mut Vec<u8>) {
        let Some((start, data_at)) = self.open.take() else { return };
        let data = out.get(data_at..).unwrap_or_default();
        debug_assert_eq!(data.len(), self.next_bytes());
        self.left_bytes = self.left_bytes.saturating_sub(data.len() as u64);
        let Framing::Chunks { signer, trailer } = &mut self.framing else { return };
        if let Some(trailer) = trailer {
            trailer.digest.update(data);
        }
        let head = head(data.len(), signer.as_mut().map(|signer| signer.chunk(data)));
        if let Some(room) = out.get_mut(start..data_at) {
            room.copy_from_slice(head.as_bytes());
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Writes the end of the encoding after the last chunk's data.
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let Framing::Chunks { signer, trailer } = &mut self.framing else { return };
        let last = head(0, signer.as_mut().map(|signer| signer.chunk(b"")));
        out.extend_from_slice(last.as_bytes());
        if let Some(Trailer { name, digest }) = trailer {
            let field = format!("{name}:{}", digest.text());
            out.extend_from_slice(field.as_bytes());
            out.extend_from_slice(b"\r\n");
            if let Some(signer) = signer {
                let signature = signer.trailer(&format!("{field}\n"));
                let field = format!("{TRAILER_SIGNATURE_FIELD}{signature}\r\n");
                out.extend_from_slice(field.as_bytes());
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn head_bytes(data_bytes: u64, is_signed: bool) -> u64 {
    let digits = u64::from(data_bytes.max(1).ilog2() / 4 + 1);
    let signature = SIGNATURE_FIELD.len() as u64 + SIGNATURE_BYTES;
    digits + if is_signed { signature } else { 0 } + 2
}

fn head(data_bytes: usize, signature: Option<&str>) -> String {
    match signature {
        Some(signature) => format!("{data_bytes:x}{SIGNATURE_FIELD}{signature}\r\n"),
        None => format!("{data_bytes:x}\r\n"),
    }
}

#[cfg(test)]
mod tests;
