//! Tests of both builds, and of the offloaded one with a copy service, through sockets.

mod common;

use common::{bulk, each, pattern, request, start_with};
use std::time::Duration;
use unlade_kv::Limits;
use unlade_kv::run::Mode;

/// Returns true if an answer is `due` seconds left, or slightly less.
fn is_left(answer: &str, due: &str) -> bool {
    let number = |text: &str| text.strip_prefix(':')?.trim().parse::<i64>().ok();
    let (left, due) = (number(answer).unwrap_or(-1), number(due).unwrap_or(-1));
    left > 0 && (due - 20..=due).contains(&left)
}

#[test]
fn every_command() {
    each(|server| {
        let mut client = server.client();
        let mut check = |line: &str, expected: &str| {
            let got = client.text(line);
            let is_due = line.starts_with("TTL") && is_left(&got, expected);
            assert!(is_due || got == format!("{expected}\r\n"), "{line}: {got:?}, {expected}");
        };
        for (line, expected) in [
            ("PING", "+PONG"),
            ("ping hello", "$5\r\nhello"),
            ("PING a b", "-ERR wrong number of arguments for 'ping' command"),
            ("ECHO x", "$1\r\nx"),
            ("SET a 1", "+OK"),
            ("GET a", "$1\r\n1"),
            ("GET none", "$-1"),
            ("SET a 2 NX", "$-1"),
            ("SET a 3 XX", "+OK"),
            ("SET b 3 XX", "$-1"),
            ("SET b 4 NX EX 100", "+OK"),
            ("MGET a none b", "*3\r\n$1\r\n3\r\n$-1\r\n$1\r\n4"),
            ("TTL a", ":-1"),
            ("TTL none", ":-2"),
            ("TTL b", ":100"),
            ("PERSIST b", ":1"),
            ("PERSIST b", ":0"),
            ("TTL b", ":-1"),
            ("EXPIRE a 50", ":1"),
            ("TTL a", ":50"),
            ("EXPIRE none 50", ":0"),
            ("PEXPIRE a 70000", ":1"),
            ("TTL a", ":70"),
            ("SET a 5", "+OK"),
            ("TTL a", ":-1"),
            ("EXISTS a b a none", ":3"),
            ("DBSIZE", ":2"),
            ("EXPIRE a -1", ":1"),
            ("EXISTS a", ":0"),
            ("SET a 1 EX 0", "-ERR invalid expire time in 'set' command"),
            ("SET a 1 EX x", "-ERR value is not an integer or out of range"),
            ("SET a 1 NX XX", "-ERR syntax error"),
            ("SET a 1 EX", "-ERR syntax error"),
            ("EXPIRE b x", "-ERR value is not an integer or out of range"),
            ("GET", "-ERR wrong number of arguments for 'get' command"),
            ("NO a", "-ERR unknown command 'NO', with args beginning with: 'a' "),
            ("SELECT 0", "+OK"),
            ("SELECT 1", "-ERR DB index is out of range"),
            ("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n"),
            ("COMMAND COUNT", ":22"),
            ("COMMAND DOCS", "*0"),
            ("DEL a b none", ":1"),
            ("SET k v", "+OK"),
            ("FLUSHALL", "+OK"),
            ("DBSIZE", ":0"),
        ] {
            check(line, expected);
        }
        assert!(client.text("INFO").contains("# Keyspace"));
        assert!(client.text("INFO stats").contains("total_commands_processed:"));
        assert!(client.text("COMMAND").starts_with("*22\r\n*6\r\n$3\r\nget\r\n"));
        assert_eq!(client.text("QUIT"), "+OK\r\n");
        assert!(client.rest().is_empty());
    });
}

#[test]
fn keys_are_over_when_their_time_is() {
    each(|server| {
        let mut client = server.client();
        assert_eq!(client.text("SET a 1 PX 30"), "+OK\r\n");
        assert_eq!(client.text("SET b 1 PX 100000"), "+OK\r\n");
        while client.text("GET a") != "$-1\r\n" {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(client.text("DBSIZE"), ":1\r\n");
    });
}

/// Values of all lengths around the thresholds, with arbitrary bytes; another client reads them at
/// once.
#[test]
fn values_come_back_as_they_were() {
    each(|server| {
        let (mut writer, mut reader) = (server.client(), server.client());
        let edges = [8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10].into_iter();
        let around = edges.flat_map(|edge| edge - 3..edge + 3);
        let lengths = [0, 1, 2, 100, 511, 513].into_iter().chain(around);
        for len in lengths.chain([300_000, 1 << 20, (8 << 20) + 1]) {
            let value = pattern(len, len);
            assert_eq!(writer.ask(&[b"SET", b"key", &value]), b"+OK\r\n");
            assert!(reader.ask(&[b"GET", b"key"]) == bulk(&value), "{len} bytes");
            assert!(writer.ask(&[b"GET", b"key"]) == bulk(&value), "{len} bytes");
        }
        assert_eq!(writer.text("DBSIZE"), ":1\r\n");
    });
}

#[test]
fn requests_ahead_of_their_answers() {
    each(|server| {
        let mut client = server.client();
        let (mut sent, mut expected) = (Vec::new(), Vec::new());
        for round in 0..40usize {
            let value = pattern([3, 40_000, 5_000, 33_000, 70_000][round % 5], round);
            let key = format!("k{}", round % 7);
            let key = key.as_bytes();
            sent.extend(request(&[b"SET", key, &value]));
            expected.extend(b"+OK\r\n");
            sent.extend(request(&[b"GET", key]));
            expected.extend(bulk(&value));
            sent.extend(request(&[b"SET", key, &value, b"EX", b"100"]));
            expected.extend(b"+OK\r\n");
            sent.extend(request(&[b"SET", key, &value, b"NX"]));
            expected.extend(b"$-1\r\n");
            sent.extend(b"PING\r\n");
            expected.extend(b"+PONG\r\n");
        }
        let mut writer = client.stream.try_clone().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| std::io::Write::write_all(&mut writer, &sent).unwrap());
            let mut got = vec![0; expected.len()];
            std::io::Read::read_exact(&mut client.stream, &mut got).unwrap();
            assert!(got == expected);
        });
    });
}

/// A value that does not arrive is neither answered nor stored, and the key keeps its previous
/// value.
#[test]
fn a_client_that_dies_within_a_value() {
    each(|server| {
        let mut other = server.client();
        assert_eq!(other.text("SET key before"), "+OK\r\n");
        for cut in [60, 600, 20_000, 99_999, 100_041] {
            for reset in [false, true] {
                let mut client = server.client();
                let whole = request(&[b"SET", b"key", &pattern(100_000, 1)]);
                client.send(&whole[..cut.min(whole.len() - 1)]);
                client.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
                let answered = std::io::Read::read(&mut client.stream, &mut [0; 10]);
                assert!(answered.is_err(), "{cut}: {answered:?}");
                if reset {
                    let now = Some(Duration::ZERO);
                    rustix::net::sockopt::set_socket_linger(&client.stream, now).unwrap();
                }
            }
        }
        assert_eq!(other.text("GET key"), "$6\r\nbefore\r\n");
        let info = || server.client().text("INFO memory");
        while !info().contains("arriving_bytes:0\r\n") {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}

/// An acknowledged value is stored, even if the client resets the connection after the answer.
#[test]
fn an_answered_value_outlives_its_client() {
    each(|server| {
        for round in 0..20 {
            let value = pattern(60_000, round);
            let mut client = server.client();
            assert_eq!(client.ask(&[b"SET", b"key", &value]), b"+OK\r\n");
            rustix::net::sockopt::set_socket_linger(&client.stream, Some(Duration::ZERO)).unwrap();
            drop(client);
            assert!(server.client().ask(&[b"GET", b"key"]) == bulk(&value));
        }
    });
}

/// A value that does not end with CRLF is stored, but its client gets an error, and other clients
/// get a valid answer.
#[test]
fn bytes_behind_a_value_reach_no_other_client() {
    each(|server| {
        for len in [10, 50_000] {
            let value = pattern(len, 3);
            let mut client = server.client();
            let mut bytes = request(&[b"SET", b"key", &value]);
            let end = bytes.len() - 2;
            bytes[end..].copy_from_slice(b"!!");
            client.send(&bytes);
            let said = String::from_utf8(client.rest()).unwrap();
            assert!(
                said.ends_with("-ERR Protocol error: expected CRLF after an argument\r\n"),
                "{said}"
            );
            let got = server.client().ask(&[b"GET", b"key"]);
            assert!(got == b"$-1\r\n" || got == bulk(&value));
        }
    });
}

/// A value that is being sent stays the answer of its request, even if the key has changed.
#[test]
fn a_slow_reader_gets_what_it_asked_for() {
    each(|server| {
        let (mut slow, mut other) = (server.client(), server.client());
        let value = pattern(6 << 20, 9);
        assert_eq!(other.ask(&[b"SET", b"key", &value]), b"+OK\r\n");
        slow.send(&request(&[b"GET", b"key"]));
        // The first byte has come; the rest is in progress.
        let mut first = [0];
        std::io::Read::read_exact(&mut slow.stream, &mut first).unwrap();
        assert_eq!(other.ask(&[b"SET", b"key", &pattern(50_000, 2)]), b"+OK\r\n");
        assert_eq!(other.text("DEL key"), ":1\r\n");
        for number in 0..20u8 {
            assert_eq!(other.ask(&[b"SET", &[number], &pattern(6 << 20, 7)]), b"+OK\r\n");
        }
        let mut rest = vec![0; bulk(&value).len() - 1];
        std::io::Read::read_exact(&mut slow.stream, &mut rest).unwrap();
        assert!([&first[..], &rest].concat() == bulk(&value));
    });
}

/// The number of answers that the server stores for a client is bounded.
#[test]
fn a_client_that_does_not_read_is_not_read() {
    each(|server| {
        let mut client = server.client();
        let value = pattern(500_000, 4);
        assert_eq!(client.ask(&[b"SET", b"key", &value]), b"+OK\r\n");
        let asks = request(&[b"GET", b"key"]).repeat(200);
        let expected = bulk(&value);
        client.send(&asks);
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..200 {
            assert!(client.answer() == expected);
        }
    });
}

#[test]
fn limits_are_reported() {
    for mode in [Mode::Sync, Mode::Alone] {
        let limits = Limits {
            clients_max: 2,
            arguments_max: 5,
            key_bytes_max: 10,
            value_bytes_max: 100_000,
            memory_bytes_max: 200_000,
            ..Limits::default()
        };
        let server = start_with(mode, limits);
        let mut client = server.client();
        assert!(client.text("SET 12345678901 x").starts_with("-ERR a key of more than 10 bytes"));
        assert_eq!(client.ask(&[b"SET", b"a", &pattern(90_000, 1)]), b"+OK\r\n");
        assert_eq!(client.ask(&[b"SET", b"b", &pattern(90_000, 1)]), b"+OK\r\n");
        let said = client.text("SET c x");
        assert_eq!(said, "+OK\r\n");
        let mut second = server.client();
        second.send(&request(&[b"SET", b"c", &pattern(90_000, 1)])[..1000]);
        assert!(second.rest().starts_with(b"-OOM no memory for a value of 90000 bytes"));
        let mut second = server.client();
        assert_eq!(second.text("PING"), "+PONG\r\n");
        let mut third = server.client();
        assert_eq!(third.rest(), b"-ERR max number of clients reached\r\n");
        second.send(b"*6\r\n");
        assert_eq!(second.rest(), b"-ERR Protocol error: invalid multibulk length\r\n");
        client.send(b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$100001\r\n");
        assert_eq!(client.rest(), b"-ERR Protocol error: invalid bulk length\r\n");
    }
}

/// A server that is told to end has executed all answered requests, and ends although clients are
/// connected.
#[test]
fn it_ends_with_clients() {
    each(|server| {
        let mut client = server.client();
        assert_eq!(client.ask(&[b"SET", b"key", &pattern(60_000, 1)]), b"+OK\r\n");
        // The rest of a value never comes.
        let mut other = server.client();
        other.send(&request(&[b"SET", b"key", &pattern(60_000, 1)])[..40_000]);
        std::mem::forget(other);
    });
}
