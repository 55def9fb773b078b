//! A response that is sealed for another machine's client.
//!
//! ```text
//!  bytes of an announced response ──► full records, the last one shorter ──┐
//!  other bytes ─────────────────────► header of a piece, records ──────────┴──► the owner of the client
//! ```

use std::io;

use unlade_tls::PLAINTEXT_BYTES_MAX;
use unlade_tls::delegation::{Sealer, records_of};
use unlade_tls::piece::{Piece, PieceEnd, PieceProof};

/// State of a response.
pub(crate) struct Sealing {
    sealer: Sealer,
    proof: PieceProof,
    /// Bytes of the announced piece that are lacking.
    due_bytes: u64,
    /// Bytes of it that do not fill a record yet.
    pending: Vec<u8>,
    /// Nothing may follow the announced piece.
    is_last: bool,
    /// The header of the announced piece is to be a segment of its own.
    is_apart: bool,
}

impl std::fmt::Debug for Sealing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealing").field("due_bytes", &self.due_bytes).finish_non_exhaustive()
    }
}

impl Sealing {
    /// `is_apart`: the header of a response that is announced is to be a segment of its own.
    pub(crate) fn new(sealer: Sealer, proof: PieceProof, is_apart: bool) -> Sealing {
        Sealing { sealer, proof, due_bytes: 0, pending: Vec::new(), is_last: false, is_apart }
    }

    /// Announces the whole rest of the response, which has so many bytes. Returns true if the header is to be
    /// sent before anything else, as a segment of its own.
    pub(crate) fn announce(
        &mut self,
        content_bytes: u64,
        end: PieceEnd,
        out: &mut Vec<u8>,
    ) -> bool {
        self.begin(content_bytes, Some(end), out);
        (self.due_bytes, self.is_last) = (content_bytes, true);
        self.is_apart
    }

    fn begin(&mut self, content_bytes: u64, end: Option<PieceEnd>, out: &mut Vec<u8>) {
        let bytes = self.sealer.sealed_bytes(content_bytes);
        let records = records_of(content_bytes);
        out.extend_from_slice(&self.proof.header(&Piece { bytes, records, end }));
    }

    /// Appends what is to be sent after `bytes`: for an announced response, only full records and the last
    /// one; otherwise, a piece.
    pub(crate) fn seal(&mut self, bytes: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if !self.is_last {
            if !bytes.is_empty() {
                self.begin(bytes.len() as u64, None, out);
                self.sealer.seal(bytes, out)?;
            }
            return Ok(());
        }
        let left_bytes = self.due_bytes.checked_sub(bytes.len() as u64);
        self.due_bytes = left_bytes.ok_or_else(|| differs("longer"))?;
        let mut rest = bytes;
        if !self.pending.is_empty() {
            let lacking_bytes = PLAINTEXT_BYTES_MAX - self.pending.len();
            let (first, behind) = rest.split_at(lacking_bytes.min(rest.len()));
            self.pending.extend_from_slice(first);
            rest = behind;
            if self.pending.len() == PLAINTEXT_BYTES_MAX || self.due_bytes == 0 {
                self.sealer.seal(&self.pending, out)?;
                self.pending.clear();
            }
        }
        let kept_bytes = if self.due_bytes > 0 { rest.len() % PLAINTEXT_BYTES_MAX } else { 0 };
        let (full, kept) = rest.split_at(rest.len() - kept_bytes);
        self.sealer.seal(full, out)?;
        self.pending.extend_from_slice(kept);
        Ok(())
    }

    /// Ends the response. Appends what is left to be sent.
    pub(crate) fn finish(mut self, end: PieceEnd, out: &mut Vec<u8>) -> io::Result<PieceProof> {
        if !self.is_last {
            self.begin(0, Some(end), out);
        }
        if self.due_bytes > 0 { Err(differs("shorter")) } else { Ok(self.proof) }
    }
}

fn differs(how: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the response is {how} than announced"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use unlade_net::state::{DirectionSecrets, TlsSnapshot};
    use unlade_tls::RecordLayer;
    use unlade_tls::client;

    use super::*;

    const KEY: [u8; 32] = [5; 32];
    const END: PieceEnd = PieceEnd { status: 206, keep_alive: true };

    fn snapshot() -> TlsSnapshot {
        let secrets = |seed: u8| DirectionSecrets {
            key: vec![seed; 16],
            iv: [seed; 12],
            sequence: 0,
            traffic_secret: vec![seed; 32],
        };
        let (read, write) = (secrets(1), secrets(2));
        TlsSnapshot { version: 0x0304, suite: 0x1301, read, write, ciphertext: vec![] }
    }

    /// The owner of a connection: takes the pieces apart, as a balancer does, and returns the records.
    fn pieces(mut input: &[u8]) -> (Vec<u8>, u64, Option<PieceEnd>) {
        let (mut proof, mut records, mut out) = (PieceProof::new(&KEY), 0, Vec::new());
        while let Some(piece) = proof.read(input).unwrap() {
            let behind = &input[unlade_tls::piece::PIECE_HEADER_BYTES..];
            let (sealed, rest) = behind.split_at(piece.bytes as usize);
            out.extend_from_slice(sealed);
            records += piece.records;
            input = rest;
            if let Some(end) = piece.end {
                assert!(input.is_empty());
                return (out, records, Some(end));
            }
        }
        (out, records, None)
    }

    proptest! {
        #[test]
        fn the_client_gets_the_bytes_and_the_owner_their_number(
            parts in proptest::collection::vec(0_usize..40_000, 1..8),
            apart in 0_usize..4,
            is_announced: bool,
        ) {
            let parts: Vec<Vec<u8>> =
                parts.iter().enumerate().map(|(at, bytes)| vec![at as u8; *bytes]).collect();
            let mut owner = RecordLayer::from_snapshot(&snapshot()).unwrap();
            let delegation = owner.delegate(1000).unwrap();
            let mut sealing =
                Sealing::new(Sealer::new(&delegation).unwrap(), PieceProof::new(&KEY), false);
            let mut out = Vec::new();
            for (at, part) in parts.iter().enumerate() {
                if at == apart && is_announced {
                    let rest: usize = parts[at..].iter().map(Vec::len).sum();
                    prop_assert!(!sealing.announce(rest as u64, END, &mut out));
                }
                sealing.seal(part, &mut out).unwrap();
            }
            sealing.finish(END, &mut out).unwrap();
            let (mut sent, records, end) = pieces(&out);
            prop_assert_eq!(end, Some(END));
            owner.resume(records);
            owner.seal(b"next", &mut sent).unwrap();
            let TlsSnapshot { read, write, .. } = snapshot();
            let theirs = TlsSnapshot { read: write, write: read, ..snapshot() };
            let mut client = client::from_snapshot(&theirs).unwrap();
            let mut seen = Vec::new();
            client.receive(&sent, &mut seen).unwrap();
            prop_assert!(seen == [parts.concat(), b"next".to_vec()].concat());
        }
    }

    #[test]
    fn another_length_than_announced_is_an_error() {
        let delegation = RecordLayer::from_snapshot(&snapshot()).unwrap().delegate(1000).unwrap();
        let begun = || {
            let mut out = Vec::new();
            let mut sealing =
                Sealing::new(Sealer::new(&delegation).unwrap(), PieceProof::new(&KEY), false);
            assert!(!sealing.announce(10, END, &mut out));
            sealing.seal(b"123456789", &mut out).unwrap();
            (sealing, out)
        };
        let (sealing, mut out) = begun();
        assert!(sealing.finish(END, &mut out).is_err());
        let (mut sealing, mut out) = begun();
        assert!(sealing.seal(b"01", &mut out).is_err());
        let (mut sealing, mut out) = begun();
        sealing.seal(b"0", &mut out).unwrap();
        assert!(sealing.seal(b"", &mut out).is_ok() && sealing.seal(b"1", &mut out).is_err());
    }
}
