//! Delegations of records, and the headers of the pieces that are sealed with them.

use unlade_tls::delegation::{Delegation, Sealer, records_of};
use unlade_tls::piece::{PIECE_HEADER_BYTES, Piece, PieceEnd, PieceProof};

/// The key of the target and its seeds.
const KEY: [u8; 32] = [9; 32];

/// A delegation that is accepted has one encoding, and can be used; so does a header with the right proof.
pub fn sealing(data: &[u8]) {
    if let Ok(delegation) = Delegation::from_bytes(data) {
        assert_eq!(delegation.to_bytes().as_slice(), data);
        let mut sealer = Sealer::new(&delegation).expect("its key has the right length");
        let (content, mut out) = (&data[..data.len().min(20)], Vec::new());
        if sealer.seal(content, &mut out).is_ok() {
            assert_eq!(out.len() as u64, sealer.sealed_bytes(content.len() as u64));
            let records = records_of(content.len() as u64);
            let content_bytes = delegation.content_bytes(out.len() as u64, records);
            assert_eq!(content_bytes, Some(content.len() as u64));
        }
    }
    match PieceProof::new(&KEY).read(data) {
        Ok(None) => assert!(data.len() < PIECE_HEADER_BYTES),
        Ok(Some(piece)) => {
            let again = PieceProof::new(&KEY).header(&piece);
            assert_eq!(PieceProof::new(&KEY).read(&again), Ok(Some(piece)));
        }
        Err(_) => assert!(data.len() >= PIECE_HEADER_BYTES),
    }
}

/// Returns true if the target takes the bytes for something.
pub fn is_accepted(content: &[u8]) -> bool {
    Delegation::from_bytes(content).is_ok()
        || matches!(PieceProof::new(&KEY).read(content), Ok(Some(_)))
}

/// Delegations of both versions, and headers.
pub(crate) fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let delegation = |version: u16, suite: u16, key_bytes: usize| {
        let mut out = Vec::new();
        out.extend_from_slice(&version.to_be_bytes());
        out.extend_from_slice(&suite.to_be_bytes());
        out.extend_from_slice(&77_u64.to_be_bytes());
        out.extend_from_slice(&[5; 12]);
        out.extend_from_slice(&vec![6; key_bytes]);
        out
    };
    let header = |end| PieceProof::new(&KEY).header(&Piece { bytes: 16_406, records: 1, end });
    vec![
        ("tls13", delegation(0x0304, 0x1301, 16)),
        ("tls12", delegation(0x0303, 0xc030, 32)),
        ("more", header(None).to_vec()),
        ("last", header(Some(PieceEnd { status: 200, keep_alive: true })).to_vec()),
    ]
}
