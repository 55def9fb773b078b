//! Headers of the records that the holder of a delegation has sealed.
//!
//! ```text
//!  0      4        6        8       16        24      40
//!  | magic | flags | status | bytes | records | proof |   then `bytes` bytes: `records` records
//! ```
//! Integers are in network order. The records are as for the owner's peer, and the header is readable, so that
//! a kernel on the way can tell where they end. The owner must not believe a false number of records: it
//! would use a nonce twice. So the header has a proof: the first half of an HMAC-SHA256 (RFC 2104) over the
//! number of the header on its connection (8 bytes) and the fields before the proof.

use aws_lc_rs::hmac;
use zeroize::Zeroizing;

use crate::error::RecordError;

/// Bytes of a header.
pub const PIECE_HEADER_BYTES: usize = 40;
/// Bytes of a key.
pub const PIECE_KEY_BYTES: usize = 32;

const MAGIC: [u8; 4] = *b"ULSP";
const FIELDS_BYTES: usize = 24;
const LAST: u16 = 1;
const KEEP_ALIVE: u16 = 2;

/// A part of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Bytes of the records that follow.
    pub bytes: u64,
    /// Number of these records.
    pub records: u64,
    /// The final status, and what happens to the peer's connection then; `None`: another piece follows.
    pub end: Option<PieceEnd>,
}

/// The end of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PieceEnd {
    /// The final status.
    pub status: u16,
    /// The response has told the peer that the connection persists.
    pub keep_alive: bool,
}

/// One side's key and number of headers on a connection.
pub struct PieceProof {
    key: hmac::Key,
    count: u64,
}

impl core::fmt::Debug for PieceProof {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("PieceProof").field("count", &self.count).finish_non_exhaustive()
    }
}

impl PieceProof {
    /// Creates the state of a new connection. Both sides have the key.
    pub fn new(key: &[u8; PIECE_KEY_BYTES]) -> PieceProof {
        PieceProof { key: hmac::Key::new(hmac::HMAC_SHA256, key), count: 0 }
    }

    /// Returns a key for a new connection.
    ///
    /// # Errors
    /// [`RecordError::Random`]: the system has no random bytes.
    pub fn random_key() -> Result<Zeroizing<[u8; PIECE_KEY_BYTES]>, RecordError> {
        let mut key = Zeroizing::new([0; PIECE_KEY_BYTES]);
        aws_lc_rs::rand::fill(&mut *key).map_err(|_| RecordError::Random)?;
        Ok(key)
    }

    /// Returns the header of the next piece.
    pub fn header(&mut self, piece: &Piece) -> [u8; PIECE_HEADER_BYTES] {
        let mut out = [0; PIECE_HEADER_BYTES];
        let flags = match piece.end {
            None => 0,
            Some(PieceEnd { keep_alive, .. }) => LAST | if keep_alive { KEEP_ALIVE } else { 0 },
        };
        let status = piece.end.map_or(0, |end| end.status);
        out[..4].copy_from_slice(&MAGIC);
        out[4..6].copy_from_slice(&flags.to_be_bytes());
        out[6..8].copy_from_slice(&status.to_be_bytes());
        out[8..16].copy_from_slice(&piece.bytes.to_be_bytes());
        out[16..24].copy_from_slice(&piece.records.to_be_bytes());
        let (fields, proof) = out.split_at_mut(FIELDS_BYTES);
        let tag = hmac::sign(&self.key, &numbered(self.count, fields));
        let half = proof.len();
        proof.copy_from_slice(&tag.as_ref()[..half]);
        self.count += 1;
        out
    }

    /// Reads the header of the next piece; `None`: it is not complete.
    ///
    /// # Errors
    /// [`RecordError::Piece`]: it is none, or somebody has changed it. The connection is to be reset.
    pub fn read(&mut self, input: &[u8]) -> Result<Option<Piece>, RecordError> {
        let Some((header, _)) = input.split_first_chunk::<PIECE_HEADER_BYTES>() else {
            return Ok(None);
        };
        let (fields, proof) = header.split_at(FIELDS_BYTES);
        let tag = hmac::sign(&self.key, &numbered(self.count, fields));
        let is_equal = subtle::ConstantTimeEq::ct_eq(&tag.as_ref()[..proof.len()], proof);
        if !bool::from(is_equal) {
            return Err(RecordError::Piece);
        }
        self.count += 1;
        let short = |at: usize| u16::from_be_bytes([fields[at], fields[at + 1]]);
        let (flags, status) = (short(4), short(6));
        let long = |at: usize| {
            fields[at..at + 8].iter().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte))
        };
        let end =
            (flags & LAST != 0).then_some(PieceEnd { status, keep_alive: flags & KEEP_ALIVE != 0 });
        Ok(Some(Piece { bytes: long(8), records: long(16), end }))
    }
}

fn numbered(count: u64, fields: &[u8]) -> [u8; 8 + FIELDS_BYTES] {
    let mut out = [0; 8 + FIELDS_BYTES];
    out[..8].copy_from_slice(&count.to_be_bytes());
    out[8..].copy_from_slice(fields);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pieces() -> impl Strategy<Value = Vec<Piece>> {
        let end = proptest::option::of((any::<u16>(), any::<bool>()));
        let piece = (any::<u64>(), any::<u64>(), end).prop_map(|(bytes, records, end)| {
            let end = end.map(|(status, keep_alive)| PieceEnd { status, keep_alive });
            Piece { bytes, records, end }
        });
        proptest::collection::vec(piece, 1..6)
    }

    proptest! {
        #[test]
        fn the_owner_reads_what_was_said(pieces in pieces(), key: [u8; 32], cut in 0..PIECE_HEADER_BYTES) {
            let (mut said, mut read) = (PieceProof::new(&key), PieceProof::new(&key));
            for piece in pieces {
                let header = said.header(&piece);
                prop_assert_eq!(read.read(&header[..cut]), Ok(None));
                prop_assert_eq!(read.read(&header), Ok(Some(piece)));
            }
        }

        #[test]
        fn a_change_is_found(
            pieces in pieces(),
            key: [u8; 32],
            at in 0..PIECE_HEADER_BYTES,
            bits in 1_u8..,
        ) {
            let (mut said, mut read) = (PieceProof::new(&key), PieceProof::new(&key));
            let mut header = said.header(&pieces[0]);
            header[at] ^= bits;
            prop_assert_eq!(read.read(&header), Err(RecordError::Piece));
        }

        #[test]
        fn a_header_of_another_place_is_refused(pieces in pieces(), key: [u8; 32]) {
            let (mut said, mut read) = (PieceProof::new(&key), PieceProof::new(&key));
            let first = said.header(&pieces[0]);
            prop_assert!(read.read(&first).is_ok());
            prop_assert_eq!(read.read(&first), Err(RecordError::Piece));
            let other = PieceProof::new(&[!key[0]; 32]).header(&pieces[0]);
            prop_assert_eq!(PieceProof::new(&key).read(&other), Err(RecordError::Piece));
        }
    }
}
