//! Both sides against each other, and input that both must refuse.

use super::*;
use crate::layer::RecordLayer;

fn psk(hash: Hash, byte: u8) -> Psk {
    Psk { identity: b"NVMe0R01 host subsystem".to_vec(), key: vec![byte; 32].into(), hash }
}

/// Runs a handshake in chunks of a given size, with `change` applied to the bytes that the client
/// (true) or the server (false) sends.
fn run(
    client_psk: Psk,
    server_psk: Psk,
    piece_bytes: usize,
    mut change: impl FnMut(bool, &mut Vec<u8>),
) -> (Result<Option<RecordLayer>, PskError>, Result<Option<Accepted>, PskError>) {
    let mut to_server = Vec::new();
    let mut client = Client::new(client_psk, &mut to_server).unwrap();
    let mut server = Server::new(|identity: &[u8]| {
        (identity == server_psk.identity).then(|| server_psk.clone())
    });
    let (mut at_client, mut at_server) = (Ok(None), Ok(None));
    for _ in 0..6 {
        change(true, &mut to_server);
        let mut to_client = Vec::new();
        for piece in to_server.chunks(piece_bytes) {
            if matches!(at_server, Ok(None)) {
                at_server = server.advance(piece, &mut to_client);
            }
        }
        change(false, &mut to_client);
        to_server = Vec::new();
        for piece in to_client.chunks(piece_bytes) {
            if matches!(at_client, Ok(None)) {
                at_client = client.advance(piece, &mut to_server);
            }
        }
    }
    (at_client, at_server)
}

fn carry(from: &mut RecordLayer, to: &mut RecordLayer, text: &[u8]) {
    let (mut sealed, mut plain) = (Vec::new(), Vec::new());
    from.seal(text, &mut sealed).unwrap();
    to.receive(&sealed, &mut plain).unwrap();
    assert_eq!(plain, text);
}

#[test]
fn both_ends_agree_however_the_bytes_arrive() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        for piece_bytes in [1, 2, 5, 7, 64, 100_000] {
            let (client, server) = run(psk(hash, 7), psk(hash, 7), piece_bytes, |_, _| {});
            let (mut client, mut accepted) = (client.unwrap().unwrap(), server.unwrap().unwrap());
            assert_eq!(accepted.identity, psk(hash, 7).identity);
            assert_eq!(client.suite_name(), accepted.record.suite_name());
            carry(&mut client, &mut accepted.record, b"from the client");
            carry(&mut accepted.record, &mut client, b"from the server");
            let mut update = Vec::new();
            assert!(client.update_keys(true, &mut update).unwrap());
            accepted.record.receive(&update, &mut Vec::new()).unwrap();
            carry(&mut accepted.record, &mut client, b"after a KeyUpdate");
            carry(&mut client, &mut accepted.record, b"after a KeyUpdate");
        }
    }
}

#[test]
fn another_key_is_reported_at_both_ends() {
    for hash in [Hash::Sha256, Hash::Sha384] {
        let (client, server) = run(psk(hash, 7), psk(hash, 8), 100_000, |_, _| {});
        assert_eq!(server.unwrap_err(), PskError::WrongKey);
        let refused = client.unwrap_err();
        assert_eq!(refused, PskError::Refused(51));
        assert!(refused.to_string().contains("the keys differ"), "{refused}");
    }
}

#[test]
fn another_identity_is_reported_at_both_ends() {
    let other = Psk { identity: b"another".to_vec(), ..psk(Hash::Sha256, 7) };
    let (client, server) = run(other, psk(Hash::Sha256, 7), 100_000, |_, _| {});
    let unknown = server.unwrap_err();
    assert_eq!(unknown, PskError::UnknownIdentity { offered: "\"another\"".into() });
    assert_eq!(client.unwrap_err(), PskError::Refused(115));
}

#[test]
fn another_hash_has_nothing_in_common() {
    let (client, server) = run(psk(Hash::Sha256, 7), psk(Hash::Sha384, 7), 100_000, |_, _| {});
    assert!(matches!(server.unwrap_err(), PskError::Incompatible(_)));
    assert_eq!(client.unwrap_err(), PskError::Refused(40));
}

#[test]
fn a_key_that_is_too_short_or_unnamed_is_refused() {
    let short = Psk { key: vec![1; 15].into(), ..psk(Hash::Sha256, 7) };
    assert!(matches!(Client::new(short, &mut Vec::new()), Err(PskError::Key(_))));
    let unnamed = Psk { identity: Vec::new(), ..psk(Hash::Sha256, 7) };
    assert!(matches!(Client::new(unnamed, &mut Vec::new()), Err(PskError::Key(_))));
}

/// Flips each byte of each flight in turn: no end may complete with a connection that the other
/// end does not have, or panic.
#[test]
fn no_changed_byte_of_a_flight_is_taken() {
    for from_client in [true, false] {
        for at in 0..400 {
            let mut done = false;
            let mut immaterial = false;
            let (client, server) =
                run(psk(Hash::Sha256, 7), psk(Hash::Sha256, 7), 100_000, |is_client, flight| {
                    if is_client == from_client && !done && at < flight.len() {
                        done = true;
                        // The minor version of a plaintext record is ignored (RFC 8446 §5.1); the
                        // type and version of a message are not.
                        immaterial = at == 2;
                        flight[at] ^= 1;
                    }
                });
            if done && !immaterial {
                let both = matches!((&client, &server), (Ok(Some(_)), Ok(Some(_))));
                assert!(!both, "byte {at} of the {from_client} flight changed unnoticed");
            }
        }
    }
}

#[test]
fn plaintext_is_recognised() {
    let mut server = Server::new(|_: &[u8]| None);
    let mut out = Vec::new();
    assert_eq!(
        server.advance(b"GET / HTTP/1.1\r\n", &mut out).unwrap_err(),
        PskError::NotTls(b'G')
    );
    assert!(out.is_empty());
    assert_eq!(server.advance(b"", &mut out).unwrap_err(), PskError::Over);
}

#[test]
fn an_endless_handshake_is_ended() {
    let mut server = Server::new(|_: &[u8]| None);
    let mut out = Vec::new();
    // One message that never ends, in records of 1 KiB.
    let mut record = vec![22, 3, 3, 4, 0];
    record.extend_from_slice(&[1, 0, 0x3f, 0xf0]);
    record.resize(5 + 1024, 0);
    let mut ended = None;
    for _ in 0..64 {
        if let Err(error) = server.advance(&record, &mut out) {
            ended = Some(error);
            break;
        }
    }
    assert!(ended.is_some());
}
