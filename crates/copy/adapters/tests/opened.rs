//! TLS records decrypted in their receive buffer, with the service and without.

mod ends;

use std::io::{self, BufRead, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use ends::{
    OVERHEAD_BYTES, RECORD_BYTES, cause, configs, configs_with, hear, inbound, join, pair, pattern,
    plain, records, service,
};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::version::{TLS12, TLS13};
use rustls::{AlertDescription, Connection};
use unlade_copy::{Copier, Inbound};
use unlade_copy_adapters::tls::{FEED_BYTES_MIN, Feed, Opener, Session, TlsError, in_place};

/// Bytes read before the end or an error.
fn all(tls: &mut impl BufRead) -> (Vec<u8>, Option<io::Error>) {
    let mut bytes = Vec::new();
    loop {
        match tls.fill_buf() {
            Ok([]) => return (bytes, None),
            Ok(part) => {
                bytes.extend_from_slice(part);
                let count = part.len();
                tls.consume(count);
            }
            Err(error) => return (bytes, Some(error)),
        }
    }
}

/// The far end echoes all data, in writes of many lengths, with occasional key updates.
fn echo(mut far: Connection, mut socket: UnixStream) {
    far.set_buffer_limit(None);
    while far.is_handshaking() {
        far.complete_io(&mut socket).unwrap();
    }
    let body = hear(&mut far, &mut socket, usize::MAX);
    let mut rest = &body[..];
    let mut round = 0;
    while !rest.is_empty() {
        let count = rest.len().min(1 + round * 5077 % 70_000);
        far.writer().write_all(&rest[..count]).unwrap();
        rest = &rest[count..];
        if round % 7 == 3 && far.protocol_version() == Some(rustls::ProtocolVersion::TLSv1_3) {
            far.refresh_traffic_keys().unwrap();
        }
        while far.wants_write() {
            far.write_tls(&mut socket).unwrap();
        }
        round += 1;
    }
    far.send_close_notify();
    while far.wants_write() {
        far.write_tls(&mut socket).unwrap();
    }
}

fn there_and_back<S: Session, F: Feed>(
    session: S,
    feed: F,
    far: Connection,
    mut near_socket: UnixStream,
    far_socket: UnixStream,
) -> Opener<S, F> {
    let sent = pattern(1 << 20);
    let mut near = Opener::new(session, feed);
    let far = join(&mut near, &mut near_socket, far, &far_socket);
    let echo = std::thread::spawn(move || echo(far, far_socket));
    near.seal(&sent).unwrap();
    near.close_notify().unwrap();
    near.send(&mut near_socket).unwrap();
    assert!(matches!(near.seal(b"more"), Err(TlsError::Closed)));
    let mut received = vec![0; 300_000];
    near.read_exact(&mut received).unwrap();
    let (rest, error) = all(&mut near);
    assert!(error.is_none(), "{error:?}");
    assert!(near.is_closed());
    received.extend(rest);
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    echo.join().unwrap();
    near
}

#[test]
fn every_way_gives_what_was_sent() {
    let service = service();
    for (lent, version) in [(true, &TLS13), (false, &TLS13), (true, &TLS12), (false, &TLS12)] {
        let provider = if lent { in_place(default_provider()) } else { default_provider() };
        let both = configs(provider, version);
        let capacity = 100_000;
        let (near, far) = pair();
        let feed = inbound(&service, &near, capacity);
        there_and_back(both.near_client(), feed, both.far_server(), near, far);
        let (near, far) = pair();
        let feed = inbound(&service, &near, capacity);
        there_and_back(both.near_server(), feed, both.far_client(), near, far);
        // With automatic selection, in the service and without.
        let (near, far) = pair();
        let mut feed = inbound(&service, &near, capacity);
        feed.set_always_queued(false);
        there_and_back(both.near_client(), feed, both.far_server(), near, far);
        let (near, far) = pair();
        let feed = plain(&near, capacity);
        there_and_back(both.near_client(), feed, both.far_server(), near, far);
        let (near, far) = pair();
        let feed = plain(&near, FEED_BYTES_MIN);
        there_and_back(both.near_server(), feed, both.far_client(), near, far);
    }
}

#[test]
fn plaintext_is_lent_where_it_was_received() {
    let service = service();
    let both = configs(in_place(default_provider()), &TLS13);
    let (mut near_socket, mut far_socket) = pair();
    let copier = Arc::new(Copier::new(service.attach().unwrap()));
    let socket = near_socket.try_clone().unwrap();
    let capacity = 10 * (RECORD_BYTES + OVERHEAD_BYTES);
    let mut feed = Inbound::new(Arc::clone(&copier), socket, capacity);
    feed.set_always_queued(true);
    let mut near = Opener::new(both.near_client(), feed);
    let mut far = join(&mut near, &mut near_socket, both.far_server(), &far_socket);
    let sent = pattern(8 * RECORD_BYTES);
    let wire = records(&mut far, &sent);
    let writer = std::thread::spawn(move || far_socket.write_all(&wire).unwrap());
    let mut before = None;
    let mut neighbours = 0;
    for record in sent.chunks(RECORD_BYTES) {
        let lent = near.fill_buf().unwrap();
        assert!(lent == record);
        let address = lent.as_ptr().addr();
        let distance = before.replace(address).map_or(0, |before| address.wrapping_sub(before));
        neighbours += usize::from(distance == RECORD_BYTES + OVERHEAD_BYTES);
        near.consume(RECORD_BYTES);
    }
    writer.join().unwrap();
    // Not in place only if the buffer was emptied between them, once or twice with the tickets.
    assert!(neighbours >= 5, "{neighbours}");
    let stats = copier.stats().read();
    assert!(stats.queued > 0, "{stats:?}");
}

#[test]
fn a_record_that_was_changed_is_not_lent() {
    let service = service();
    let both = configs(in_place(default_provider()), &TLS13);
    // A byte of the third record: of its header, its content, its tag.
    let tag = RECORD_BYTES + OVERHEAD_BYTES - 1;
    for (place, bits) in [(0, 0x41), (3, 0x41), (3, 0xff), (4, 1), (5, 1), (1000, 0x80), (tag, 1)] {
        let (mut near_socket, far_socket) = pair();
        let feed = inbound(&service, &near_socket, 256 << 10);
        let mut near = Opener::new(both.near_client(), feed);
        let mut far = join(&mut near, &mut near_socket, both.far_server(), &far_socket);
        let sent = pattern(100_000);
        let mut wire = records(&mut far, &sent);
        wire[2 * (RECORD_BYTES + OVERHEAD_BYTES) + place] ^= bits;
        let mut socket = far_socket.try_clone().unwrap();
        let writer = std::thread::spawn(move || {
            socket.write_all(&wire).unwrap();
            socket.shutdown(Shutdown::Write).unwrap();
        });
        let (bytes, error) = all(&mut near);
        assert!(bytes == sent[..2 * RECORD_BYTES], "{place}: {} bytes", bytes.len());
        let error = error.unwrap();
        assert!(matches!(cause(&error), TlsError::Tls(_)), "{place}: {error:?}");
        // The error is permanent.
        let again = near.fill_buf().unwrap_err();
        assert!(matches!(cause(&again), TlsError::Tls(_)), "{place}: {again:?}");
        // And the peer gets an alert.
        near.send(&mut near_socket).unwrap();
        writer.join().unwrap();
        let mut told = &far_socket;
        far.read_tls(&mut told).unwrap();
        let alert = far.process_new_packets().unwrap_err();
        assert!(matches!(alert, rustls::Error::AlertReceived(_)), "{place}: {alert:?}");
    }
}

#[test]
fn an_end_without_close_notify_is_none() {
    let service = service();
    let both = configs(in_place(default_provider()), &TLS13);
    // Within a header, within a record, and between two.
    for cut in [0, 3, 5, 10_000] {
        let (mut near_socket, mut far_socket) = pair();
        let feed = inbound(&service, &near_socket, 30_000);
        let mut near = Opener::new(both.near_client(), feed);
        let mut far = join(&mut near, &mut near_socket, both.far_server(), &far_socket);
        let sent = pattern(100_000);
        let mut wire = records(&mut far, &sent);
        wire.truncate(3 * (RECORD_BYTES + OVERHEAD_BYTES) + cut);
        let writer = std::thread::spawn(move || {
            far_socket.write_all(&wire).unwrap();
            far_socket.shutdown(Shutdown::Write).unwrap();
            far_socket
        });
        let (bytes, error) = all(&mut near);
        assert!(bytes == sent[..3 * RECORD_BYTES], "{cut}: {} bytes", bytes.len());
        let error = error.unwrap();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(matches!(cause(&error), TlsError::Truncated), "{cut}: {error:?}");
        assert!(!near.is_closed());
        writer.join().unwrap();
    }
}

#[test]
fn what_comes_behind_close_notify_is_nothing() {
    let both = configs(in_place(default_provider()), &TLS13);
    let (mut near_socket, mut far_socket) = pair();
    let mut near = Opener::new(both.near_server(), plain(&near_socket, 64 << 10));
    let mut far = join(&mut near, &mut near_socket, both.far_client(), &far_socket);
    let mut wire = records(&mut far, b"all");
    far.send_close_notify();
    far.write_tls(&mut wire).unwrap();
    wire.extend([23, 3, 3, 0, 40]);
    wire.extend([7; 40]);
    far_socket.write_all(&wire).unwrap();
    let (bytes, error) = all(&mut near);
    assert_eq!(bytes, b"all");
    assert!(error.is_none(), "{error:?}");
    assert_eq!(near.read(&mut [0; 10]).unwrap(), 0);
    // This end may still send.
    near.seal(b"good bye").unwrap();
    near.send(&mut near_socket).unwrap();
    assert_eq!(hear(&mut far, &mut far_socket, 8), b"good bye");
}

#[test]
fn an_alert_of_the_peer_is_an_error() {
    let service = service();
    let both = configs(in_place(default_provider()), &TLS13);
    let (mut near_socket, mut far_socket) = pair();
    let feed = inbound(&service, &near_socket, 64 << 10);
    let mut near = Opener::new(both.near_server(), feed);
    let mut far = join(&mut near, &mut near_socket, both.far_client(), &far_socket);
    let mut wire = records(&mut far, b"before");
    // The peer receives an invalid record, and sends an alert.
    far.read_tls(
        &mut &[23, 3, 3, 0, 20, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0][..],
    )
    .unwrap();
    far.process_new_packets().unwrap_err();
    far.write_tls(&mut wire).unwrap();
    far_socket.write_all(&wire).unwrap();
    let (bytes, error) = all(&mut near);
    assert_eq!(bytes, b"before");
    let error = error.unwrap();
    let expected = rustls::Error::AlertReceived(AlertDescription::BadRecordMac);
    assert!(matches!(cause(&error), TlsError::Tls(found) if *found == expected), "{error:?}");
}

#[test]
fn tickets_come_between_records() {
    let service = service();
    let both = configs_with(in_place(default_provider()), &TLS13, |server| {
        server.send_half_rtt_data = true;
        server.send_tls13_tickets = 3;
    });
    for is_served in [true, false] {
        let (mut near_socket, mut far_socket) = pair();
        let mut far = both.far_server();
        let writer = std::thread::spawn(move || {
            // Data with the server's first flight, then tickets, then data.
            far.read_tls(&mut far_socket).unwrap();
            far.process_new_packets().unwrap();
            far.writer().write_all(b"before, ").unwrap();
            while far.is_handshaking() || far.wants_write() {
                far.complete_io(&mut far_socket).unwrap();
            }
            far.writer().write_all(b"behind").unwrap();
            far.send_close_notify();
            far.complete_io(&mut far_socket).unwrap();
        });
        let session = both.near_client();
        let (bytes, error, tickets) = if is_served {
            let feed = inbound(&service, &near_socket, 64 << 10);
            let mut near = Opener::new(session, feed);
            near.handshake(&mut near_socket).unwrap();
            let (bytes, error) = all(&mut near);
            (bytes, error, near.session().tls13_tickets_received())
        } else {
            let mut near = Opener::new(session, plain(&near_socket, 64 << 10));
            near.handshake(&mut near_socket).unwrap();
            let (bytes, error) = all(&mut near);
            (bytes, error, near.session().tls13_tickets_received())
        };
        assert!(error.is_none(), "{error:?}");
        assert_eq!(bytes, b"before, behind");
        assert_eq!(tickets, 3);
        writer.join().unwrap();
    }
}

#[test]
fn a_key_update_is_followed_and_answered() {
    let service = service();
    let both = configs(in_place(default_provider()), &TLS13);
    let (mut near_socket, mut far_socket) = pair();
    let feed = inbound(&service, &near_socket, 64 << 10);
    let mut near = Opener::new(both.near_client(), feed);
    let mut far = join(&mut near, &mut near_socket, both.far_server(), &far_socket);
    for round in 0..5 {
        far.refresh_traffic_keys().unwrap();
        let wire = records(&mut far, b"of the new key");
        far_socket.write_all(&wire).unwrap();
        assert_eq!(near.fill_buf().unwrap(), b"of the new key", "{round}");
        near.consume(14);
        near.seal(b"so is this").unwrap();
        // A KeyUpdate of 27 bytes goes first.
        assert_eq!(near.output().len(), 10 + OVERHEAD_BYTES + 5 + OVERHEAD_BYTES, "{round}");
        near.send(&mut near_socket).unwrap();
        assert_eq!(hear(&mut far, &mut far_socket, 10), b"so is this", "{round}");
    }
}

/// Sends `wire` in chunks of many lengths, and reads after each.
fn drip<S: Session, F: Feed>(near: &mut Opener<S, F>, wire: &[u8], to: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut at, mut round) = (0, 1);
    while at < wire.len() {
        let count = (wire.len() - at).min(1 + round * round * 13 % 2500);
        to.write_all(&wire[at..at + count]).unwrap();
        at += count;
        round += 1;
        loop {
            match near.fill_buf() {
                Ok([]) => return bytes,
                Ok(part) => {
                    // Not all available bytes are consumed at once.
                    let taken = part.len().min(5000);
                    bytes.extend_from_slice(&part[..taken]);
                    near.consume(taken);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error:?}"),
            }
        }
    }
    panic!("no end: {} bytes", bytes.len())
}

#[test]
fn a_socket_that_does_not_wait_goes_on_where_it_was() {
    let service = service();
    let both = configs(in_place(default_provider()), &TLS13);
    for is_served in [true, false] {
        let (mut near_socket, mut far_socket) = pair();
        let sent = pattern(150_000);
        let session = both.near_client();
        let bytes = if is_served {
            let mut near = Opener::new(session, inbound(&service, &near_socket, 40_000));
            let mut far = join(&mut near, &mut near_socket, both.far_server(), &far_socket);
            near_socket.set_nonblocking(true).unwrap();
            let mut wire = records(&mut far, &sent);
            far.send_close_notify();
            far.write_tls(&mut wire).unwrap();
            drip(&mut near, &wire, &mut far_socket)
        } else {
            let mut near = Opener::new(session, plain(&near_socket, 40_000));
            let mut far = join(&mut near, &mut near_socket, both.far_server(), &far_socket);
            near_socket.set_nonblocking(true).unwrap();
            let mut wire = records(&mut far, &sent);
            far.send_close_notify();
            far.write_tls(&mut wire).unwrap();
            drip(&mut near, &wire, &mut far_socket)
        };
        assert!(bytes == sent, "{is_served}: {} of {} bytes", bytes.len(), sent.len());
    }
}

#[test]
fn a_record_that_exceeds_the_buffer_is_refused() {
    let both = configs(in_place(default_provider()), &TLS13);
    let (mut near_socket, mut far_socket) = pair();
    let mut near = Opener::new(both.near_server(), plain(&near_socket, 10_000));
    let mut far = join(&mut near, &mut near_socket, both.far_client(), &far_socket);
    far_socket.write_all(&records(&mut far, &pattern(20_000))).unwrap();
    let error = near.fill_buf().unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    let expected = RECORD_BYTES + OVERHEAD_BYTES;
    assert!(
        matches!(cause(&error), TlsError::TooLarge { bytes, capacity: 10_000 } if *bytes == expected),
        "{error:?}"
    );
}

#[test]
fn a_failed_handshake_is_told_to_the_peer() {
    let both = configs(in_place(default_provider()), &TLS13);
    let others = configs(in_place(default_provider()), &TLS13);
    let (mut near_socket, mut far_socket) = pair();
    let mut far = others.far_server();
    let server = std::thread::spawn(move || far.complete_io(&mut far_socket).unwrap_err());
    let mut near = Opener::new(both.near_client(), plain(&near_socket, 64 << 10));
    let error = near.handshake(&mut near_socket).unwrap_err();
    let unknown =
        |error: &TlsError| matches!(error, TlsError::Tls(rustls::Error::InvalidCertificate(_)));
    assert!(unknown(&error), "{error:?}");
    let told = server.join().unwrap();
    let told: &rustls::Error = told.get_ref().unwrap().downcast_ref().unwrap();
    assert!(matches!(told, rustls::Error::AlertReceived(_)), "{told:?}");
}

#[test]
fn other_connections_of_the_same_configuration_see_no_difference() {
    let once = in_place(default_provider());
    let both = configs(in_place(once), &TLS13);
    let (near_socket, far_socket) = pair();
    let server = both.far_server();
    let echo = std::thread::spawn(move || echo(server, far_socket));
    let Connection::Client(mut client) = both.far_client() else { unreachable!() };
    let mut socket = near_socket;
    let sent = pattern(500_000);
    let mut tls = rustls::Stream::new(&mut client, &mut socket);
    tls.write_all(&sent).unwrap();
    tls.conn.send_close_notify();
    tls.flush().unwrap();
    let mut received = Vec::new();
    tls.read_to_end(&mut received).unwrap();
    assert!(received == sent);
    echo.join().unwrap();
}
