//! The record layer against rustls' client: every suite, both versions, before and after a move.

mod common;

use common::*;
use rustls::ClientConnection;
use unlade_tls::{Established, RecordLayer};

/// Sends in both directions and compares.
fn exchange(server: &mut RecordLayer, client: &mut ClientConnection, bytes: usize, seed: u8) {
    let (request, response) = (pattern(bytes, seed), pattern(bytes * 2 + 1, !seed));
    let sealed = client_seal(client, &request);
    assert_eq!(open(server, &sealed), request);
    let sealed = seal(server, &response);
    assert_eq!(client_input(client, &sealed), response);
}

#[test]
fn data_passes_both_ways_before_and_after_a_move() {
    for suite in suites() {
        let (mut server, mut client) = connect(suite);
        assert_eq!(server.suite_name(), format!("{suite:?}"));
        for (round, bytes) in [1, 100, 16384, 16385, 70000].into_iter().enumerate() {
            exchange(&mut server, &mut client, bytes, round as u8);
            server = moved(&server);
            exchange(&mut server, &mut client, bytes, !(round as u8));
        }
    }
}

#[test]
fn a_record_in_parts_survives_a_move_after_every_byte() {
    for suite in suites() {
        let (mut server, mut client) = connect(suite);
        let sealed = client_seal(&mut client, b"GET / HTTP/1.1\r\n\r\n");
        let mut plaintext = Vec::new();
        for byte in sealed {
            let received = server.receive(&[byte], &mut plaintext).unwrap();
            assert!(!received.close_notify && !received.output_pending);
            server = moved(&server);
        }
        assert_eq!(plaintext, b"GET / HTTP/1.1\r\n\r\n");
        exchange(&mut server, &mut client, 10, 0);
    }
}

#[test]
fn ciphertext_of_the_snapshot_is_opened_by_the_next_owner() {
    let (mut server, mut client) = connect(suites()[0]);
    server.receive_spare().extend(client_seal(&mut client, b"one"));
    server.receive_spare().extend(client_seal(&mut client, b"two"));
    let mut server = moved(&server);
    let mut plaintext = Vec::new();
    server.process(&mut plaintext).unwrap();
    assert_eq!(plaintext, b"onetwo");
    assert_eq!(server.incoming_bytes(), 0);
}

/// The client's KeyUpdate (rustls always requests one in return).
fn client_key_update(client: &mut ClientConnection) -> Vec<u8> {
    client.refresh_traffic_keys().unwrap();
    client_output(client)
}

#[test]
fn key_updates_of_the_client_are_followed_and_answered() {
    for suite in suites().into_iter().filter(|suite| suite.tls13().is_some()) {
        let (mut server, mut client) = connect(suite);
        for round in 0..4 {
            let update = client_key_update(&mut client);
            let mut plaintext = Vec::new();
            let received = server.receive(&update, &mut plaintext).unwrap();
            assert!(received.output_pending && plaintext.is_empty());
            let mut out = Vec::new();
            server.take_output(&mut out);
            assert!(!out.is_empty() && !server.output_pending());
            assert!(client_input(&mut client, &out).is_empty());
            exchange(&mut server, &mut client, 1000, round);
            server = moved(&server);
            exchange(&mut server, &mut client, 1000, !round);
        }
    }
}

#[test]
fn a_pending_answer_is_sent_before_the_data() {
    let (mut server, mut client) = connect(suites()[0]);
    let mut bytes = client_key_update(&mut client);
    bytes.extend(client_key_update(&mut client));
    bytes.extend(client_seal(&mut client, b"request"));
    let mut plaintext = Vec::new();
    assert!(server.receive(&bytes, &mut plaintext).unwrap().output_pending);
    assert_eq!(plaintext, b"request");
    let before = server.to_snapshot().write.traffic_secret.clone();
    let sealed = seal(&mut server, b"response");
    // Two requests, one answer.
    assert_eq!(sealed.len(), (5 + 5 + 17) + (5 + 8 + 17));
    assert_ne!(server.to_snapshot().write.traffic_secret, before);
    assert_eq!(client_input(&mut client, &sealed), b"response");
}

#[test]
fn an_answer_not_taken_before_a_move_does_no_harm() {
    let (mut server, mut client) = connect(suites()[0]);
    let update = client_key_update(&mut client);
    assert!(server.is_movable());
    assert!(server.receive(&update, &mut Vec::new()).unwrap().output_pending);
    assert!(!server.is_movable());
    let mut server = moved(&server);
    assert!(!server.output_pending() && server.is_movable());
    exchange(&mut server, &mut client, 100, 3);
}

#[test]
fn our_key_updates_are_followed_by_the_client() {
    for suite in suites() {
        let (mut server, mut client) = connect(suite);
        for request_peer in [false, true, true, false] {
            let mut out = Vec::new();
            let updated = server.update_keys(request_peer, &mut out).unwrap();
            assert_eq!(updated, suite.tls13().is_some());
            assert_eq!(out.is_empty(), !updated);
            client_input(&mut client, &out);
            server = moved(&server);
            exchange(&mut server, &mut client, 500, 1);
        }
    }
}

#[test]
fn a_key_update_with_the_end_of_the_handshake_is_left_to_the_record_layer() {
    let suite = suites()[0];
    let identity = identity_for(suite);
    let config = server_config(identity, &[]);
    let mut client = client_of(client_config(identity, &[suite]));
    let mut server = unlade_tls::Handshake::new(config).unwrap();
    let mut out = Vec::new();
    server.advance(&client_output(&mut client), &mut out).unwrap();
    client_input(&mut client, &out);
    let mut last = client_output(&mut client);
    last.extend(client_key_update(&mut client));
    last.extend(client_seal(&mut client, b"request"));
    let mut out = Vec::new();
    let unlade_tls::Progress::Complete(done) = server.advance(&last, &mut out).unwrap() else {
        panic!("not complete");
    };
    let Established { mut record, plaintext, .. } = *done;
    assert_eq!(plaintext, b"request");
    // The answer follows the ticket in the handshake's last flight.
    assert!(!record.output_pending());
    client_input(&mut client, &out);
    exchange(&mut record, &mut client, 50, 9);
}

#[test]
fn close_notify_passes_both_ways() {
    for suite in suites() {
        let (mut server, mut client) = connect(suite);
        client.send_close_notify();
        let bytes = client_output(&mut client);
        let mut plaintext = Vec::new();
        assert!(server.receive(&bytes, &mut plaintext).unwrap().close_notify);
        assert!(!server.is_movable());
        // Later bytes are ignored, and the state stays.
        assert!(server.receive(b"nonsense", &mut plaintext).unwrap().close_notify);
        assert!(plaintext.is_empty());
        // The other direction is still open.
        let mut out = seal(&mut server, b"last words");
        server.close_notify(&mut out);
        let length = out.len();
        server.close_notify(&mut out);
        assert_eq!(out.len(), length, "said once only");
        assert_eq!(server.seal(b"more", &mut out), Err(unlade_tls::RecordError::Closed));
        assert_eq!(out.len(), length);
        assert_eq!(client_input(&mut client, &out), b"last words");
        let mut none = [0; 1];
        assert_eq!(std::io::Read::read(&mut client.reader(), &mut none).unwrap(), 0);
    }
}

#[test]
fn records_sealed_in_place_are_those_of_the_peer() {
    for suite in suites() {
        let (mut server, mut client) = connect(suite);
        for bytes in [0, 1, 16384, 16385, 50000] {
            let plaintext = pattern(bytes, 5);
            let layout = server.layout(bytes);
            let mut buffer = vec![0xee; layout.sealed_bytes() + 3];
            let mut rest = &plaintext[..];
            for slot in layout.slots(&mut buffer) {
                let (head, tail) = rest.split_at(slot.len());
                slot.copy_from_slice(head);
                rest = tail;
            }
            // Also if the file is shorter than it was.
            let filled = bytes - bytes / 3;
            let sealed = server.seal_in_place(&mut buffer, &layout, filled).unwrap();
            assert_eq!(client_input(&mut client, &buffer[..sealed]), plaintext[..filled]);
            let mut out = b"before".to_vec();
            let mut at = 0;
            server
                .seal_with(bytes, &mut out, |slot| {
                    slot.copy_from_slice(&plaintext[at..at + slot.len()]);
                    at += slot.len();
                    Ok(())
                })
                .unwrap();
            assert_eq!(&out[..6], b"before");
            assert_eq!(client_input(&mut client, &out[6..]), plaintext);
        }
        exchange(&mut server, &mut client, 10, 1);
    }
}

#[test]
fn a_fill_that_fails_uses_no_sequence_number() {
    let (mut server, mut client) = connect(suites()[0]);
    let mut out = b"before".to_vec();
    let mut calls = 0;
    let failed = server.seal_with(40000, &mut out, |_| {
        calls += 1;
        if calls == 2 { Err(std::io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    });
    assert_eq!(failed.unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
    assert_eq!(out, b"before");
    exchange(&mut server, &mut client, 10, 1);
}

#[test]
fn in_place_sealing_waits_for_control_records() {
    let (mut server, mut client) = connect(suites()[0]);
    let layout = server.layout(5);
    let mut buffer = vec![b'x'; layout.sealed_bytes()];
    let update = client_key_update(&mut client);
    server.receive(&update, &mut Vec::new()).unwrap();
    let before = buffer.clone();
    let refused = server.seal_in_place(&mut buffer, &layout, 5);
    assert_eq!(refused, Err(unlade_tls::RecordError::OutputPending));
    assert_eq!(buffer, before);
    let mut out = Vec::new();
    server.take_output(&mut out);
    let sealed = server.seal_in_place(&mut buffer, &layout, 5).unwrap();
    out.extend_from_slice(&buffer[..sealed]);
    assert_eq!(client_input(&mut client, &out), b"xxxxx");
    let short = server.seal_in_place(&mut buffer[1..], &layout, 5);
    assert!(matches!(short, Err(unlade_tls::RecordError::BufferLength { .. })));
    let much = server.seal_in_place(&mut buffer, &layout, 6);
    assert!(matches!(much, Err(unlade_tls::RecordError::BufferLength { .. })));
}
