//! The record layer against a client that has the keys and sends arbitrary records.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use unlade_net::state::{DirectionSecrets, TlsSnapshot};
use unlade_tls::{RecordError, RecordLayer};

/// Most steps of one script.
const STEPS_MAX: usize = 64;
/// The key of the client's direction.
const KEY: [u8; 16] = [7; 16];
/// The IV of the client's direction.
const IV: [u8; 12] = [9; 12];

/// Runs a script: its first byte selects the chunks into which the ciphertext is split; then
/// follow steps of a content type, a length, and that many bytes. Content type 0 sends the bytes
/// unchanged; any other seals them into one TLS 1.3 record.
///
/// The plaintext and the outcome must not depend on the chunks, nor on the layer moving to another
/// owner between them.
pub fn record(data: &[u8]) {
    let Some((&piece, script)) = data.split_first() else { return };
    let ciphertext = run(script);
    let whole = receive(&ciphertext, ciphertext.len().max(1), false);
    let pieces = receive(&ciphertext, usize::from(piece) + 1, false);
    assert_eq!(whole, pieces);
    let moved = receive(&ciphertext, usize::from(piece) + 1, true);
    let flooded = |outcome: &Outcome| matches!(outcome.1, Err(RecordError::Flood(_)));
    // The flood counters restart with each owner.
    if !flooded(&whole) && !flooded(&moved) {
        assert_eq!(whole, moved);
    }
}

/// The plaintext, and true if the client has sent close_notify, or the error.
type Outcome = (Vec<u8>, Result<bool, RecordError>);

fn receive(ciphertext: &[u8], piece: usize, moving: bool) -> Outcome {
    let mut layer = RecordLayer::from_snapshot(&snapshot()).expect("the secrets fit");
    let (mut plaintext, mut closed) = (Vec::new(), false);
    for piece in ciphertext.chunks(piece) {
        match layer.receive(piece, &mut plaintext) {
            Ok(received) => closed = received.close_notify,
            Err(error) => return (plaintext, Err(error)),
        }
        layer.take_output(&mut Vec::new());
        if moving && layer.is_movable() {
            let taken = layer.to_snapshot();
            layer = RecordLayer::from_snapshot(&taken).expect("its own snapshot");
            if let Err(error) = layer.process(&mut plaintext) {
                return (plaintext, Err(error));
            }
        }
    }
    (plaintext, Ok(closed))
}

fn snapshot() -> TlsSnapshot {
    let direction =
        || DirectionSecrets { key: KEY.to_vec(), iv: IV, sequence: 0, traffic_secret: vec![3; 32] };
    TlsSnapshot {
        version: 0x0304,
        suite: 0x1301,
        read: direction(),
        write: direction(),
        ciphertext: Vec::new(),
    }
}

fn run(mut script: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut sequence = 0u64;
    for _ in 0..STEPS_MAX {
        let [kind, length, rest @ ..] = script else { break };
        let (content, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        match kind {
            0 => out.extend_from_slice(content),
            kind => {
                seal(*kind, content, sequence, &mut out);
                sequence += 1;
            }
        }
        script = rest;
    }
    out
}

/// Seals one record (RFC 8446 §5.2).
fn seal(kind: u8, content: &[u8], sequence: u64, out: &mut Vec<u8>) {
    let mut nonce = IV;
    for (byte, number) in nonce[4..].iter_mut().zip(sequence.to_be_bytes()) {
        *byte ^= number;
    }
    let mut inner = [content, &[kind]].concat();
    let length = (inner.len() + AES_128_GCM.tag_len()) as u16;
    let [high, low] = length.to_be_bytes();
    let header = [0x17, 3, 3, high, low];
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &KEY).expect("the key's length"));
    let nonce = Nonce::assume_unique_for_key(nonce);
    key.seal_in_place_append_tag(nonce, Aad::from(header), &mut inner).expect("a short record");
    out.extend_from_slice(&header);
    out.extend_from_slice(&inner);
}
