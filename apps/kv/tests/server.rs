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
            ("SELECT 15", "+OK"),
            ("DBSIZE", ":0"),
            ("SELECT 16", "-ERR DB index is out of range"),
            ("SELECT 0", "+OK"),
            ("CONFIG GET save", "*2\r\n$4\r\nsave\r\n$0\r\n"),
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
        let count = client.text("COMMAND COUNT").replace(':', "*");
        assert!(client.text("COMMAND").starts_with(&format!("{count}*10\r\n$3\r\nget\r\n")));
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

/// Every command that stores a word as it is takes one that arrives late, in a transaction too.
#[test]
fn large_values_of_every_command_that_stores_one() {
    each(|server| {
        let (mut client, mut other) = (server.client(), server.client());
        for (round, len) in [40_000, 100_000, 600_000].into_iter().enumerate() {
            let value = pattern(len, round);
            let requests: [&[&[u8]]; 6] = [
                &[b"SET", b"k", &value],
                &[b"SETEX", b"k", b"100", &value],
                &[b"PSETEX", b"k", b"100000", &value],
                &[b"SETNX", b"k", &value],
                &[b"GETSET", b"k", &value],
                &[b"SET", b"k", &value, b"GET"],
            ];
            for words in requests {
                other.text("DEL k");
                client.ask(words);
                assert!(other.ask(&[b"GET", b"k"]) == bulk(&value), "{:?}", words[0]);
                // The edits see the complete value.
                let end = client.ask(&[b"APPEND", b"k", b"end"]);
                assert_eq!(end, format!(":{}\r\n", len + 3).as_bytes());
                assert_eq!(other.ask(&[b"SETRANGE", b"k", b"1", b"12"]), end);
                let expected = [&value[..1], b"12", &value[3..], b"end"].concat();
                assert!(client.ask(&[b"GET", b"k"]) == bulk(&expected), "{:?}", words[0]);
            }
            assert_eq!(client.text("MULTI"), "+OK\r\n");
            assert_eq!(client.ask(&[b"SET", b"k", &value]), b"+QUEUED\r\n");
            assert_eq!(client.text("APPEND k x"), "+QUEUED\r\n");
            assert_eq!(other.text("DEL k"), ":1\r\n");
            let said = client.text("EXEC");
            assert_eq!(said, format!("*2\r\n+OK\r\n:{}\r\n", len + 1));
            assert!(other.ask(&[b"GET", b"k"]) == bulk(&[&value[..], b"x"].concat()));
        }
    });
}

/// An answer that is being sent stays as it was, even if its value is changed in parts.
#[test]
fn a_slow_reader_gets_the_value_before_its_edit() {
    each(|server| {
        let (mut slow, mut other) = (server.client(), server.client());
        let value = pattern(6 << 20, 5);
        assert_eq!(other.ask(&[b"SET", b"key", &value]), b"+OK\r\n");
        slow.send(&request(&[b"GET", b"key"]));
        let mut first = [0];
        std::io::Read::read_exact(&mut slow.stream, &mut first).unwrap();
        assert_eq!(other.ask(&[b"SETRANGE", b"key", b"6000000", b"changed"]), b":6291456\r\n");
        assert_eq!(other.ask(&[b"APPEND", b"key", b"more"]), b":6291460\r\n");
        let mut rest = vec![0; bulk(&value).len() - 1];
        std::io::Read::read_exact(&mut slow.stream, &mut rest).unwrap();
        assert!([&first[..], &rest].concat() == bulk(&value));
        let end = other.text("GETRANGE key -5 -1");
        assert_eq!(end.as_bytes(), bulk(&[&value[value.len() - 1..], b"more"].concat()));
    });
}

#[test]
fn answers_in_resp3() {
    each(|server| {
        let mut client = server.client();
        assert!(client.text("HELLO 3").starts_with("%7\r\n$6\r\nserver\r\n"));
        for (line, expected) in [
            ("GET none", "_"),
            ("CONFIG GET save", "%1\r\n$4\r\nsave\r\n$0\r\n"),
            ("DEBUG PROTOCOL true", "#t"),
            ("DEBUG PROTOCOL double", ",3.141"),
            ("DEBUG PROTOCOL push", ">2\r\n$16\r\nserver-cpu-usage\r\n:42"),
            ("DEBUG PROTOCOL map", "%3\r\n:0\r\n#f\r\n:1\r\n#t\r\n:2\r\n#f"),
            ("DEBUG PROTOCOL set", "~3\r\n:0\r\n:1\r\n:2"),
            ("WATCH a", "+OK"),
            ("SET a 1", "+OK"),
            ("MULTI", "+OK"),
            ("EXEC", "_"),
            ("LCS a none IDX", "%2\r\n$7\r\nmatches\r\n*0\r\n$3\r\nlen\r\n:0"),
        ] {
            assert_eq!(client.text(line), format!("{expected}\r\n"), "{line}");
        }
        assert!(client.text("INFO server").starts_with('='));
        assert!(client.text("DEBUG PROTOCOL attrib").starts_with("|1\r\n"));
        assert_eq!(client.text("RESET"), "+RESET\r\n");
        assert_eq!(client.text("GET none"), "$-1\r\n");
    });
}

#[test]
fn clients_see_name_and_end_each_other() {
    each(|server| {
        let (mut client, mut other) = (server.client(), server.client());
        assert_eq!(other.text("CLIENT SETNAME other"), "+OK\r\n");
        assert_eq!(other.text("CLIENT GETNAME"), "$5\r\nother\r\n");
        let list = client.text("CLIENT LIST");
        let line = list.lines().find(|line| line.contains(" name=other ")).unwrap();
        assert!(line.contains(" cmd=client|getname "), "{line}");
        let id = line.split(' ').find_map(|word| word.strip_prefix("id=")).unwrap();
        assert_eq!(client.text(&format!("CLIENT KILL ID {id}")), ":1\r\n");
        assert!(other.rest().is_empty());
        assert!(!client.text("CLIENT LIST").contains("name=other"));
        // The own connection ends behind the answer.
        assert_eq!(client.text("CLIENT KILL SKIPME no"), ":1\r\n");
        assert!(client.rest().is_empty());
    });
}

#[test]
fn answers_can_be_turned_off() {
    each(|server| {
        let mut client = server.client();
        for line in ["CLIENT REPLY SKIP", "GET none", "CLIENT REPLY OFF", "SET a 1", "no"] {
            client.send(format!("{line}\r\n").as_bytes());
        }
        assert_eq!(client.text("CLIENT REPLY ON"), "+OK\r\n");
        assert_eq!(client.text("GET a"), "$1\r\n1\r\n");
    });
}

#[test]
fn limits_and_statistics_are_set_at_run_time() {
    each(|server| {
        let (mut client, mut other) = (server.client(), server.client());
        assert_eq!(client.text("CONFIG SET proto-max-bulk-len 100 maxmemory 2kb"), "+OK\r\n");
        assert_eq!(
            client.text("SETRANGE k 99 xx"),
            "-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n"
        );
        other.send(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$101\r\n");
        assert_eq!(other.rest(), b"-ERR Protocol error: invalid bulk length\r\n");
        let mut said = String::new();
        for number in 0..40 {
            said = client.text(&format!("APPEND {number} x"));
        }
        assert_eq!(said, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
        assert!(client.text("CONFIG SET maxmemory 1tb").starts_with("-ERR CONFIG SET failed"));
        assert_eq!(client.text("CONFIG SET maxmemory 0"), "+OK\r\n");
        assert_eq!(client.text("APPEND k x"), ":1\r\n");
        assert_eq!(client.text("PSETEX k 1 x"), "+OK\r\n");
        while client.text("EXISTS k") == ":1\r\n" {}
        assert!(client.text("INFO stats").contains("expired_keys:1\r\n"));
        assert_eq!(client.text("WATCH k"), "+OK\r\n");
        assert!(client.text("INFO clients").contains("watching_clients:1\r\n"));
        assert_eq!(client.text("CONFIG RESETSTAT"), "+OK\r\n");
        assert!(client.text("INFO stats").contains("expired_keys:0\r\n"));
        assert!(client.text("INFO clients").contains("connected_clients:1\r\n"));
    });
}

/// The input buffer of a client that is silent is freed.
#[test]
fn a_silent_client_has_no_input_buffer() {
    each(|server| {
        let (mut silent, mut client) = (server.client(), server.client());
        assert_eq!(silent.text("CLIENT SETNAME silent"), "+OK\r\n");
        let free = |client: &mut common::Client| -> u64 {
            let list = client.text("CLIENT LIST");
            let line = list.lines().find(|line| line.contains(" name=silent ")).unwrap().to_owned();
            let free = line.split(' ').find_map(|word| word.strip_prefix("qbuf-free=")).unwrap();
            free.parse().unwrap()
        };
        assert!(free(&mut client) >= 16 << 10);
        while free(&mut client) > 0 {
            std::thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(silent.text("PING"), "+PONG\r\n");
    });
}
