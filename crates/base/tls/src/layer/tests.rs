//! Tests with both ends made by hand, which can send every kind of record.

use proptest::prelude::*;
use unlade_net::state::DirectionSecrets;

use super::*;
use crate::control::key_update;
use crate::keys::from_traffic_secret;
use crate::suite::{Cipher, DeviceCipher, SUITES, TLS12, TLS13};

/// (version, number) of a suite of each kind of record protection: every AEAD of each version.
fn kinds() -> Vec<(u16, u16)> {
    let mut kinds: Vec<_> = SUITES.iter().map(|suite| kind(suite.version, suite.cipher)).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// The first suite of `version` with `cipher`.
fn kind(version: u16, cipher: Cipher) -> (u16, u16) {
    let suite = SUITES.iter().find(|suite| suite.version == version && suite.cipher == cipher);
    let suite = suite.unwrap_or_else(|| panic!("no suite of {version:#06x} with {cipher:?}"));
    (suite.version, suite.number)
}

fn kind_13() -> (u16, u16) {
    kind(TLS13, Cipher::Aes128Gcm)
}

fn kind_12() -> (u16, u16) {
    kind(TLS12, Cipher::Aes128Gcm)
}

fn secrets(suite: &'static Suite, seed: u8, sequence: u64) -> DirectionSecrets {
    let mut secrets = if suite.is_13() {
        from_traffic_secret(suite, &vec![seed; suite.secret_bytes]).unwrap()
    } else {
        let key = vec![seed; suite.cipher.key_bytes()];
        DirectionSecrets { key, iv: [seed; 12], sequence: 0, traffic_secret: vec![] }
    };
    secrets.sequence = sequence;
    secrets
}

/// Server and client, both directions at `sequence`.
fn ends((version, number): (u16, u16), sequence: u64) -> (RecordLayer, RecordLayer) {
    let suite = Suite::find(version, number).unwrap();
    let mut snapshot = TlsSnapshot {
        version,
        suite: number,
        read: secrets(suite, 1, sequence),
        write: secrets(suite, 2, sequence),
        ciphertext: vec![],
    };
    let server = RecordLayer::from_snapshot(&snapshot).unwrap();
    core::mem::swap(&mut snapshot.read, &mut snapshot.write);
    (server, RecordLayer::for_side(Side::Client, &snapshot).unwrap())
}

/// A record of any type with any content.
fn record(from: &mut RecordLayer, content_type: u8, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    seal::append_record(&mut from.write, content_type, content, &mut out).unwrap();
    out
}

fn update(from: &mut RecordLayer, request_peer: bool) -> Vec<u8> {
    let mut out = Vec::new();
    assert!(from.update_keys(request_peer, &mut out).unwrap());
    out
}

fn receive(to: &mut RecordLayer, bytes: &[u8]) -> Result<Vec<u8>, RecordError> {
    let mut plaintext = Vec::new();
    to.receive(bytes, &mut plaintext).map(|_| plaintext)
}

fn sealed(from: &mut RecordLayer, plaintext: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    from.seal(plaintext, &mut out).unwrap();
    out
}

/// The layer refuses `bytes` permanently and sends an alert to the peer, `from`.
fn refused(to: &mut RecordLayer, from: &mut RecordLayer, bytes: &[u8]) -> RecordError {
    let mut plaintext = Vec::new();
    let error = to.receive(bytes, &mut plaintext).expect_err("must be refused");
    assert_eq!(to.receive(b"", &mut plaintext), Err(error), "the failure stays");
    let mut out = Vec::new();
    assert_eq!(to.output_pending(), error.alert().is_some());
    to.take_output(&mut out);
    assert!(!to.output_pending());
    if let Some(alert) = error.alert() {
        assert_eq!(receive(from, &out), Err(RecordError::AlertReceived(alert)));
    }
    let length = out.len();
    assert_eq!(to.seal(b"more", &mut out), Err(RecordError::Closed));
    to.close_notify(&mut out);
    to.take_output(&mut out);
    assert_eq!(out.len(), length, "nothing follows a fatal alert");
    error
}

#[test]
fn every_changed_byte_is_refused() {
    for kind in kinds() {
        let (_, mut client) = ends(kind, 7);
        let bytes = sealed(&mut client, b"content");
        for at in 0..bytes.len() {
            for flip in [1, 0x80] {
                let (mut server, mut client) = ends(kind, 7);
                let mut changed = bytes.clone();
                changed[at] ^= flip;
                // A longer length makes the record incomplete: fill it up.
                changed.resize(if at == 3 || at == 4 { 1 << 15 } else { changed.len() }, 0);
                let error = refused(&mut server, &mut client, &changed);
                assert_eq!(error.fault(), crate::Fault::Peer);
                if at >= 5 {
                    assert_eq!(error, RecordError::BadRecordMac { sequence: 7 });
                }
            }
        }
    }
}

#[test]
fn records_out_of_order_or_twice_are_refused() {
    for kind in kinds() {
        let (mut server, mut client) = ends(kind, 0);
        let (one, two) = (sealed(&mut client, b"1"), sealed(&mut client, b"2"));
        assert_eq!(receive(&mut server, &one).unwrap(), b"1");
        assert_eq!(
            refused(&mut server, &mut client, &one),
            RecordError::BadRecordMac { sequence: 1 }
        );
        let (mut server, _) = ends(kind, 0);
        assert!(receive(&mut server, &two).is_err());
    }
}

#[test]
fn content_before_a_bad_record_is_delivered() {
    let (mut server, mut client) = ends(kind_13(), 0);
    let mut bytes = sealed(&mut client, b"good");
    bytes.extend(sealed(&mut client, b"bad"));
    *bytes.last_mut().unwrap() ^= 1;
    let mut plaintext = b"before ".to_vec();
    assert!(server.receive(&bytes, &mut plaintext).is_err());
    assert_eq!(plaintext, b"before good");
}

#[test]
fn padding_of_tls_13_is_removed() {
    let (mut server, mut client) = ends(kind_13(), 0);
    // The type byte that `record` adds is 0, so it is padding; the real type is inside the
    // content.
    let mut bytes = record(&mut client, 0, b"content\x17\0\0\0");
    bytes.extend(record(&mut client, 0, &[&[23u8][..], &[0; 16383]].concat()));
    bytes.extend(record(&mut client, 23, &[0; 16384]));
    let plaintext = receive(&mut server, &bytes).unwrap();
    assert_eq!(plaintext, [b"content".as_slice(), &[0; 16384]].concat());
    let bytes = record(&mut client, 0, &[0; 100]);
    assert!(matches!(refused(&mut server, &mut client, &bytes), RecordError::UnexpectedMessage(_)));
}

#[test]
fn more_than_16_kib_of_plaintext_is_refused() {
    for kind in kinds() {
        for (content, may) in [(16384, true), (16385, false), (16384 + 200, false)] {
            let (mut server, mut client) = ends(kind, 0);
            let bytes = record(&mut client, 23, &vec![5; content]);
            if may {
                assert_eq!(receive(&mut server, &bytes).unwrap().len(), content);
            } else {
                let error = refused(&mut server, &mut client, &bytes);
                assert!(matches!(error, RecordError::RecordOverflow { .. }));
            }
        }
    }
}

#[test]
fn messages_out_of_place_are_refused() {
    for kind in kinds() {
        let is_13 = kind.0 == 0x0304;
        for content_type in 0..=255u8 {
            if content_type == APPLICATION_DATA {
                continue;
            }
            // KeyUpdate exists only in TLS 1.3; all other types are not handshake messages.
            let (mut server, mut client) = ends(kind, 0);
            let bytes = record(&mut client, content_type, &[11, 0, 0, 0, 0]);
            let error = refused(&mut server, &mut client, &bytes);
            assert!(
                matches!(error, RecordError::UnexpectedMessage(_) | RecordError::Decode(_)),
                "{is_13} {content_type} {error}"
            );
            let (mut server, mut client) = ends(kind, 0);
            let bytes = record(&mut client, content_type, &[]);
            refused(&mut server, &mut client, &bytes);
        }
        let (mut server, mut client) = ends(kind, 0);
        let bytes = record(&mut client, HANDSHAKE, &key_update(false));
        assert_eq!(receive(&mut server, &bytes).is_ok(), is_13);
        // A ticket is for clients.
        let (mut server, mut client) = ends(kind, 0);
        let ticket = record(&mut client, HANDSHAKE, &[4, 0, 0, 2, 9, 9]);
        refused(&mut server, &mut client, &ticket);
        let (mut server, mut client) = ends(kind, 0);
        let mut ticket = record(&mut server, HANDSHAKE, &[4, 0, 0, 2, 9, 9, 4, 0, 0, 1]);
        ticket.extend(record(&mut server, HANDSHAKE, &[8]));
        ticket.extend(sealed(&mut server, b"data"));
        assert_eq!(receive(&mut client, &ticket).is_ok(), is_13);
    }
}

#[test]
fn a_key_update_in_pieces_is_put_together_also_over_moves() {
    let (mut server, mut client) = ends(kind_13(), 0);
    let message = key_update(true);
    let next = client.write.next_generation().unwrap();
    let mut bytes = sealed(&mut client, b"before");
    for byte in message {
        bytes.extend(record(&mut client, HANDSHAKE, &[byte]));
    }
    client.write = next;
    bytes.extend(sealed(&mut client, b"after"));
    let mut plaintext = Vec::new();
    let mut pending = false;
    for byte in bytes {
        pending |= server.receive(&[byte], &mut plaintext).unwrap().output_pending;
        if !pending {
            server = RecordLayer::from_snapshot(&server.to_snapshot()).unwrap();
        }
    }
    assert_eq!(plaintext, b"beforeafter");
    let answer = sealed(&mut server, b"answer");
    assert_eq!(receive(&mut client, &answer).unwrap(), b"answer");
}

#[test]
fn nothing_may_stand_inside_or_behind_a_key_update() {
    let part = &key_update(false)[..3];
    for (content_type, content) in [(23, &b"data"[..]), (21, &[1, 0]), (23, b"")] {
        let (mut server, mut client) = ends(kind_13(), 0);
        let mut bytes = record(&mut client, HANDSHAKE, part);
        bytes.extend(record(&mut client, content_type, content));
        let error = refused(&mut server, &mut client, &bytes);
        assert!(matches!(error, RecordError::UnexpectedMessage(_)));
    }
    for tail in [&[24u8][..], &key_update(false)] {
        let (mut server, mut client) = ends(kind_13(), 0);
        let bytes = record(&mut client, HANDSHAKE, &[&key_update(false), tail].concat());
        let error = refused(&mut server, &mut client, &bytes);
        assert!(matches!(error, RecordError::UnexpectedMessage(_)));
    }
}

#[test]
fn floods_are_refused_at_their_limits() {
    let (mut server, mut client) = ends(kind_13(), 0);
    for round in 0..3 {
        for _ in 0..KEY_UPDATES_MAX {
            let bytes = update(&mut client, round == 1);
            receive(&mut server, &bytes).unwrap();
        }
        // Data between them resets the limit.
        let bytes = sealed(&mut client, b"data");
        receive(&mut server, &bytes).unwrap();
        for _ in 0..EMPTY_RECORDS_MAX {
            let bytes = record(&mut client, 23, b"");
            receive(&mut server, &bytes).unwrap();
        }
        let bytes = sealed(&mut client, b"data");
        receive(&mut server, &bytes).unwrap();
    }
    let mut flood = Vec::new();
    for _ in 0..=KEY_UPDATES_MAX {
        flood.extend(update(&mut client, false));
    }
    let owed = sealed(&mut server, b"");
    assert!(owed.is_empty());
    assert_eq!(server.receive(&flood, &mut Vec::new()), Err(RecordError::Flood("KeyUpdates")));

    for kind in [kind_13(), kind_12()] {
        let (mut server, mut client) = ends(kind, 0);
        let flood: Vec<u8> =
            (0..=EMPTY_RECORDS_MAX).flat_map(|_| record(&mut client, 23, b"")).collect();
        let error = refused(&mut server, &mut client, &flood);
        assert_eq!(error, RecordError::Flood("empty records"));
        let (mut server, mut client) = ends(kind, 0);
        let flood: Vec<u8> =
            (0..=WARNINGS_MAX).flat_map(|_| record(&mut client, ALERT, &[1, 90])).collect();
        let error = refused(&mut server, &mut client, &flood);
        assert_eq!(error, RecordError::Flood("warnings"));
    }
    // A message in a very large number of fragments.
    let (mut server, mut client) = ends(kind_12(), 0);
    let mut flood = record(&mut client, HANDSHAKE, &[1, 0, 0x3f, 0xff]);
    for _ in 0..FRAGMENTS_MAX {
        flood.extend(record(&mut client, HANDSHAKE, &[0]));
    }
    let error = refused(&mut server, &mut client, &flood);
    assert_eq!(error, RecordError::Flood("fragments of a message"));
}

#[test]
fn renegotiation_is_refused_with_a_warning_and_then_fatally() {
    let hello = [&[1, 0, 0, 200][..], &[7; 200]].concat();
    let (mut server, mut client) = ends(kind_12(), 0);
    // In two fragments, with a move between them.
    let bytes = record(&mut client, HANDSHAKE, &hello[..90]);
    receive(&mut server, &bytes).unwrap();
    let mut server = RecordLayer::from_snapshot(&server.to_snapshot()).unwrap();
    let mut bytes = record(&mut client, HANDSHAKE, &hello[90..]);
    bytes.extend(sealed(&mut client, b"data"));
    let mut plaintext = Vec::new();
    assert!(server.receive(&bytes, &mut plaintext).unwrap().output_pending);
    assert_eq!(plaintext, b"data");
    let mut out = Vec::new();
    server.take_output(&mut out);
    // A warning, so the connection goes on.
    assert_eq!(receive(&mut client, &out).unwrap(), b"");
    let bytes = sealed(&mut server, b"response");
    assert_eq!(receive(&mut client, &bytes).unwrap(), b"response");
    let bytes = record(&mut client, HANDSHAKE, &hello);
    let error = refused(&mut server, &mut client, &bytes);
    assert_eq!(error, RecordError::Flood("attempts to renegotiate"));
}

#[test]
fn keys_of_tls_13_change_before_their_limit() {
    let limit = |(version, number)| Suite::find(version, number).unwrap().records_soft;
    assert_eq!(limit(kind(TLS13, Cipher::Aes128Gcm)), 1 << 24);
    assert_eq!(limit(kind(TLS13, Cipher::Aes256Gcm)), 1 << 24);
    assert_eq!(limit(kind(TLS13, Cipher::ChaCha20Poly1305)), 1 << 62);
    for kind in kinds().into_iter().filter(|&(version, _)| version == TLS13) {
        let limit = limit(kind);
        let (mut server, mut client) = ends(kind, limit - 2);
        let content = vec![3; 16384 * 5];
        let bytes = sealed(&mut server, &content);
        // Two records, the KeyUpdate, three records.
        assert_eq!(server.write.sequence(), 3);
        assert_eq!(receive(&mut client, &bytes).unwrap(), content);
        assert!(!server.wants_close() && !server.output_pending());
        // In place, the caller must take the output first.
        let (mut server, mut client) = ends(kind, limit);
        assert!(server.output_pending());
        let layout = server.layout(1);
        let mut buffer = vec![b'x'; layout.sealed_bytes()];
        let early = server.seal_in_place(&mut buffer, &layout, 1);
        assert_eq!(early, Err(RecordError::OutputPending));
        let mut bytes = Vec::new();
        server.take_output(&mut bytes);
        let sealed_bytes = server.seal_in_place(&mut buffer, &layout, 1).unwrap();
        bytes.extend_from_slice(&buffer[..sealed_bytes]);
        assert_eq!(receive(&mut client, &bytes).unwrap(), b"x");
    }
}

#[test]
fn keys_of_tls_12_are_given_up_at_their_limit() {
    let (server, _) = ends(kind_12(), (1 << 24) - 1);
    assert!(!server.wants_close());
    let (version, number) = kind_12();
    let limit = Suite::find(version, number).unwrap().records_max;
    let (mut server, mut client) = ends(kind_12(), limit - 2);
    assert!(server.wants_close());
    let mut out = Vec::new();
    let error = server.seal(&[4; 16384 * 3], &mut out);
    assert_eq!(error, Err(RecordError::Exhausted { records: limit }));
    // Two whole records, and no plaintext of the third.
    assert_eq!(receive(&mut client, &out).unwrap(), [4; 16384 * 2]);
    let length = out.len();
    server.close_notify(&mut out);
    assert_eq!(out.len(), length);
}

#[test]
fn the_sequence_number_never_wraps() {
    let (version, number) = kind(TLS12, Cipher::ChaCha20Poly1305);
    let last = crate::suite::SEQUENCE_MAX - 1;
    let (mut server, mut client) = ends((version, number), last);
    assert_eq!(Suite::find(version, number).unwrap().records_max, last + 1);
    let bytes = sealed(&mut client, b"the last");
    assert_eq!(receive(&mut server, &bytes).unwrap(), b"the last");
    let more = client.seal(b"one more", &mut Vec::new());
    assert_eq!(more, Err(RecordError::Exhausted { records: last + 1 }));
    let read = receive(&mut server, &bytes);
    assert_eq!(read, Err(RecordError::Exhausted { records: last + 1 }));
    let snapshot = server.to_snapshot();
    assert!(matches!(RecordLayer::from_snapshot(&snapshot), Err(RecordError::Snapshot(_))));
}

#[test]
fn snapshots_that_make_no_sense_are_refused() {
    let (server, _) = ends(kind_13(), 0);
    let good = server.to_snapshot();
    let wrong = |change: fn(&mut TlsSnapshot)| {
        let mut snapshot = good.clone();
        change(&mut snapshot);
        assert!(
            matches!(RecordLayer::from_snapshot(&snapshot), Err(RecordError::Snapshot(_))),
            "{snapshot:?}"
        );
    };
    wrong(|snapshot| snapshot.version = 0x0303);
    wrong(|snapshot| snapshot.suite = 0x13ff);
    wrong(|snapshot| snapshot.suite = 0x1302);
    wrong(|snapshot| snapshot.read.key.push(0));
    wrong(|snapshot| snapshot.write.key.clear());
    wrong(|snapshot| snapshot.write.traffic_secret.clear());
    wrong(|snapshot| snapshot.read.sequence = u64::MAX);
}

#[test]
fn debug_output_tells_no_secret() {
    let (server, _) = ends(kind_13(), 9);
    assert_eq!(
        format!("{server:?}"),
        "RecordLayer { suite: \"TLS13_AES_128_GCM_SHA256\", read_sequence: 9, \
         write_sequence: 9, incoming_bytes: 0, .. }"
    );
}

/// An action of a peer, for random sessions.
#[derive(Clone, Debug)]
enum Act {
    Data(usize),
    Empty,
    Padded(usize, usize),
    Update(bool),
    Pieces(usize),
    Move,
    Reply(usize),
}

fn any_act() -> impl Strategy<Value = Act> {
    prop_oneof![
        (0usize..40000).prop_map(Act::Data),
        Just(Act::Empty),
        (0usize..500, 0usize..500).prop_map(|(content, padding)| Act::Padded(content, padding)),
        any::<bool>().prop_map(Act::Update),
        (1usize..5).prop_map(Act::Pieces),
        Just(Act::Move),
        (0usize..40000).prop_map(Act::Reply),
    ]
}

fn move_over(layer: &mut RecordLayer) {
    *layer = RecordLayer::for_side(layer.side, &layer.to_snapshot()).unwrap();
}

/// The client's bytes for `act`; `sent` collects the plaintext.
fn perform(act: &Act, client: &mut RecordLayer, sent: &mut Vec<u8>) -> Vec<u8> {
    let is_13 = client.write.suite().is_13();
    match *act {
        Act::Data(bytes) => {
            let data: Vec<u8> = (0..bytes).map(|at| at as u8 ^ sent.len() as u8).collect();
            sent.extend_from_slice(&data);
            sealed(client, &data)
        }
        Act::Empty => record(client, 23, b""),
        Act::Padded(content, padding) if is_13 => {
            sent.resize(sent.len() + content, b'p');
            let mut inner = vec![b'p'; content];
            inner.push(23);
            inner.resize(content + 1 + padding, 0);
            record(client, 0, &inner)
        }
        Act::Update(request) if is_13 => update(client, request),
        Act::Pieces(at) if is_13 => {
            let next = client.write.next_generation().unwrap();
            let message = key_update(true);
            let mut bytes = record(client, HANDSHAKE, &message[..at]);
            bytes.extend(record(client, HANDSHAKE, &message[at..]));
            client.write = next;
            bytes
        }
        _ => Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_session_in_any_pieces_with_any_moves(
        kind in proptest::sample::select(kinds()),
        acts in proptest::collection::vec(any_act(), 1..20),
        steps in proptest::collection::vec(1usize..5000, 1..10),
    ) {
        let (mut server, mut client) = ends(kind, 0);
        let (mut sent, mut got) = (Vec::new(), Vec::new());
        let mut steps = steps.iter().cycle();
        for act in &acts {
            let bytes = perform(act, &mut client, &mut sent);
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (part, tail) = rest.split_at((*steps.next().unwrap()).min(rest.len()));
                let received = server.receive(part, &mut got).unwrap();
                rest = tail;
                if !received.output_pending {
                    move_over(&mut server);
                }
            }
            prop_assert_eq!(server.incoming_bytes(), 0);
            match *act {
                Act::Move => {
                    let mut out = Vec::new();
                    server.take_output(&mut out);
                    prop_assert_eq!(receive(&mut client, &out).unwrap(), b"");
                    move_over(&mut server);
                    move_over(&mut client);
                }
                Act::Reply(bytes) => {
                    let reply = vec![bytes as u8; bytes];
                    let out = sealed(&mut server, &reply);
                    prop_assert_eq!(receive(&mut client, &out).unwrap(), reply);
                }
                _ => {}
            }
        }
        prop_assert_eq!(got, sent);
    }

    #[test]
    fn hostile_bytes_never_panic(
        kind in proptest::sample::select(kinds()),
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        header in any::<bool>(),
        step in 1usize..600,
    ) {
        let (mut server, _) = ends(kind, 0);
        let mut input = bytes;
        if header {
            let length = (input.len() as u16).to_be_bytes();
            input.splice(0..0, [23, 3, 3, length[0], length[1]]);
        }
        let mut plaintext = Vec::new();
        for part in input.chunks(step) {
            if server.receive(part, &mut plaintext).is_err() {
                break;
            }
        }
        prop_assert!(plaintext.is_empty());
        let mut out = Vec::new();
        server.take_output(&mut out);
        let _ = server.seal(b"more", &mut out);
        let _ = RecordLayer::from_snapshot(&server.to_snapshot());
    }

    #[test]
    fn hostile_content_never_panics(
        kind in proptest::sample::select(kinds()),
        records in proptest::collection::vec(
            (prop_oneof![Just(21u8), Just(22), Just(23), any::<u8>()],
             prop_oneof![
                 proptest::collection::vec(any::<u8>(), 0..40),
                 proptest::collection::vec(prop_oneof![Just(0u8), Just(1), Just(24)], 0..12),
             ]),
            1..20,
        ),
        to_client in any::<bool>(),
    ) {
        let (mut to, mut from) = ends(kind, 0);
        if to_client {
            core::mem::swap(&mut to, &mut from);
        }
        for (content_type, content) in records {
            // Follow the keys where the content was a KeyUpdate, as an attacker would.
            let bytes = record(&mut from, content_type, &content);
            let generation = to.read.secrets().traffic_secret.clone();
            if receive(&mut to, &bytes).is_err() {
                break;
            }
            if to.read.secrets().traffic_secret != generation {
                from.write = from.write.next_generation().unwrap();
            }
        }
        let mut out = Vec::new();
        to.close_notify(&mut out);
        let _ = receive(&mut from, &out);
    }
}

#[test]
fn a_gcm_suite_that_the_device_lacks_never_reaches_it() {
    let (mut server, mut client) = ends(kind(TLS12, Cipher::Aria128Gcm), 5);
    assert!(server.suite_name().contains("_GCM_"), "its name looks like one of the device's");
    assert!(server.device_keys().is_none() && client.device_keys().is_none());
    // In software it works, with the nonce in its table entry.
    let mut plaintext = Vec::new();
    let sealed = record(&mut client, APPLICATION_DATA, b"in software");
    assert_eq!(sealed.len(), 5 + 8 + 11 + 16);
    server.receive(&sealed, &mut plaintext).unwrap();
    assert_eq!(plaintext, b"in software");

    for suite in SUITES {
        let (server, _) = ends((suite.version, suite.number), 5);
        let keys = server.device_keys().map(|(read, write)| {
            assert_eq!((read.number(), write.number()), (5, 5));
            assert_eq!((read.is_13(), write.cipher()), (suite.version == TLS13, read.cipher()));
            (read.cipher(), read.key().len())
        });
        let expected = match suite.cipher {
            Cipher::Aes128Gcm => Some((DeviceCipher::Aes128Gcm, 16)),
            Cipher::Aes256Gcm => Some((DeviceCipher::Aes256Gcm, 32)),
            _ => None,
        };
        assert_eq!(keys, expected, "{}", suite.name);
    }
}

#[test]
fn a_record_opened_elsewhere_is_judged_as_one_opened_here() {
    // Padding counts: 16,385 bytes may be sealed with TLS 1.3, 16,384 with TLS 1.2.
    for (kind, most) in [(kind_13(), 16_385), (kind_12(), 16_384)] {
        let (mut server, _) = ends(kind, 0);
        let mut opened = vec![7; 100];
        opened.push(APPLICATION_DATA);
        opened.resize(most, 0);
        server.receive_opened(APPLICATION_DATA, &opened, &mut Vec::new()).unwrap();
        opened.push(0);
        let refused = server.receive_opened(APPLICATION_DATA, &opened, &mut Vec::new());
        assert!(matches!(refused, Err(RecordError::RecordOverflow { .. })), "{refused:?}");
        assert_eq!(server.failure(), refused.err());
    }
    let (mut server, _) = ends(kind_13(), 0);
    assert_eq!(server.check_header(&[23, 3, 3, 0x41, 0]), Ok(()));
    let refused = Err(RecordError::RecordOverflow { bytes: 16_641 });
    assert_eq!(server.check_header(&[23, 3, 3, 0x41, 1]), refused);
    assert!(server.output_pending(), "an alert is due");
}
