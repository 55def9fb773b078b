//! Clients and servers that violate the protocol.

mod common;

use std::io::{BufReader, Write};
use std::time::Duration;

use common::*;
use unlade_metrics::{Event, UpstreamFailure};
use unlade_testkit::malformed;

/// Requests that two parsers could understand differently, or that are not requests, with the
/// status they are refused with and the reason that is counted.
const CORPUS: [(&str, u16, &str); 26] = [
    (
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        400,
        "duplicate_content_length",
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        400,
        "duplicate_content_length",
    ),
    ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3, 3\r\n\r\nabc", 400, "bad_content_length"),
    ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc", 400, "bad_content_length"),
    ("GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc", 400, "bad_content_length"),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "length_and_transfer_encoding",
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        400,
        "length_and_transfer_encoding",
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        400,
        "bad_transfer_encoding",
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        400,
        "bad_transfer_encoding",
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        501,
        "unsupported_transfer_encoding",
    ),
    (
        "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "bad_transfer_encoding",
    ),
    (
        "GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "transfer_encoding_on_http10",
    ),
    ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n", 400, "space_before_colon"),
    ("GET / HTTP/1.1\nHost: a\n\n", 400, "bare_lf"),
    ("GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n", 400, "bare_lf"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", 400, "obs_fold"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\rc\r\n\r\n", 400, "bare_cr"),
    ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "duplicate_host"),
    ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, "host_mismatch"),
    ("GET / HTTP/1.1\r\n\r\n", 400, "missing_host"),
    ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505, "unsupported_version"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX\0: b\r\n\r\n", 400, "bad_header_name"),
    ("GET / HTTP/1.1\r\nHost: a\r\nX: b\0c\r\n\r\n", 400, "bad_header_value"),
    ("GET / HTTP/1.1\r\nHost: a\r\nExpect: the-unexpected\r\n\r\n", 417, "unknown_expectation"),
    ("\x16\x03\x01\x02\x00\x01\x00\x01\x7c\x03\x03", 400, "bad_method"),
    ("GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n", 400, "bad_target"),
];

#[test]
fn what_could_smuggle_is_refused_counted_and_goes_no_further() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    for (request, status, reason) in CORPUS {
        let before = lb.count(Event::HeadRefused(reason.into()));
        let mut client = lb.connect();
        // The hidden second request must not be answered.
        client.send(format!("{request}GET /size/1 HTTP/1.1\r\nHost: a\r\n\r\n"));
        let answer = client.answer();
        assert_eq!(answer.status(), status, "{request:?}");
        assert_eq!(answer.header("connection").as_deref(), Some("close"));
        client.assert_closed();
        lb.wait_for(Event::HeadRefused(reason.into()), before + 1);
    }
    assert_eq!(lb.count(Event::UpstreamConnected), 0);
}

#[test]
fn every_reason_for_refusing_a_request_is_counted() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    let put = "PUT /sha HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    let bodies = malformed::chunked_bodies();
    let bodies = bodies.into_iter().map(|(body, reason)| (format!("{put}{body}"), reason));
    for (request, reason) in malformed::request_heads().into_iter().chain(bodies) {
        let before = lb.count(Event::HeadRefused(reason.into()));
        let mut client = lb.connect();
        client.send_what_is_taken(&request);
        lb.wait_for(Event::HeadRefused(reason.into()), before + 1);
    }
}

#[test]
fn every_reason_for_refusing_a_response_is_counted() {
    let start = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let bodies = malformed::chunked_bodies();
    let bodies = bodies.into_iter().map(|(body, reason)| (format!("{start}{body}"), reason));
    for (response, reason) in malformed::response_heads().into_iter().chain(bodies) {
        let server = Server::new(move |stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut stream = stream;
            if read_head(&mut reader).is_some() {
                // The balancer may close before it has read all.
                let _ = stream.write_all(response.as_bytes());
            }
        });
        let lb = Lb::before(server.address, "");
        let mut client = lb.connect();
        client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
        lb.wait_for(Event::ResponseRefused(reason.into()), 1);
    }
}

#[test]
fn chunks_that_are_malformed_never_complete_at_the_server() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "");
    let head = "PUT /sha HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in ["3\nabc\r\n0\r\n\r\n", "zz\r\nabc\r\n", "3\r\nabcd\r\n0\r\n\r\n", "-1\r\n\r\n"] {
        for split in [false, true] {
            let mut client = lb.connect();
            client.send(head);
            if split {
                client.send("1\r\nx\r\n");
                // The server has the head and the first chunk before the rest is sent.
                std::thread::sleep(Duration::from_millis(30));
            }
            client.send(body);
            assert_eq!(client.answer().status(), 400, "{body:?} {split}");
            client.assert_closed();
        }
    }
    assert_eq!(lb.count(Event::Request(unlade_metrics::Mode::Proxy)), 0);
}

#[test]
fn heads_and_targets_have_limits() {
    let server = Server::ordinary();
    let lb = Lb::before(
        server.address,
        "limits = { head_bytes_max = \"2KiB\", target_bytes_max = 100, headers_max = 10 }",
    );
    let long = "x".repeat(3000);
    let many = "X: y\r\n".repeat(11);
    for (request, status) in [
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nHost: a\r\n{many}\r\n"), 431),
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        (format!("GET /{} HTTP/1.1\r\nHost: a\r\n\r\n", &long[..100]), 414),
        (format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", &long[..40]), 501),
    ] {
        let mut client = lb.connect();
        client.send(&request);
        assert_eq!(client.answer().status(), status, "{}", &request[..40]);
        client.assert_closed();
    }
}

#[test]
fn a_body_beyond_the_limit_is_refused() {
    let server = Server::ordinary();
    let lb = Lb::before(server.address, "limits = { body_bytes_max = 1000 }");
    let mut client = lb.connect();
    client.send("PUT /sha HTTP/1.1\r\nHost: a\r\nContent-Length: 1001\r\n\r\nabc");
    assert_eq!(client.answer().status(), 413);
    client.assert_closed();
    let mut client = lb.connect();
    client.send("PUT /sha HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send("1\r\nx\r\n");
    std::thread::sleep(Duration::from_millis(30));
    client.send(chunked(&pattern(2000), 500));
    assert_eq!(client.answer().status(), 413);
    client.assert_closed();
}

#[test]
fn servers_that_break_the_rules_are_answered_for() {
    let huge = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(70_000));
    let hints = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(40);
    let cases: Vec<(String, UpstreamFailure)> = vec![
        (String::new(), UpstreamFailure::Closed),
        ("HTTP/1.1 200 OK\r\nContent-".into(), UpstreamFailure::Closed),
        ("SSH-2.0-OpenSSH_9\r\n".into(), UpstreamFailure::BadResponse),
        ("HTTP/1.1 OK\r\n\r\n".into(), UpstreamFailure::BadResponse),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
                .into(),
            UpstreamFailure::BadResponse,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd".into(),
            UpstreamFailure::BadResponse,
        ),
        ("HTTP/1.1 200 OK\nContent-Length: 3\n\nabc".into(), UpstreamFailure::BadResponse),
        (
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n".into(),
            UpstreamFailure::BadResponse,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n".into(),
            UpstreamFailure::BadResponse,
        ),
        (huge, UpstreamFailure::BadResponse),
        (hints, UpstreamFailure::BadResponse),
    ];
    for (answer, reason) in cases {
        let text = answer.clone();
        let server = Server::new(move |stream| {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut stream = stream;
            if read_head(&mut reader).is_some() {
                let _ = stream.write_all(text.as_bytes());
            }
        });
        let lb = Lb::before(server.address, "");
        let mut client = lb.connect();
        client.send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n");
        let mut last = client.answer();
        while last.status() == 103 {
            last = client.answer();
        }
        assert_eq!(last.status(), 502, "{:.60}", answer);
        assert_eq!(lb.count(Event::UpstreamFailed(reason)), 1, "{:.60}", answer);
    }
}

#[test]
fn an_answer_that_breaks_off_is_not_taken_for_whole() {
    let server = Server::new(|stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut stream = stream;
        let Some(head) = read_head(&mut reader) else { return };
        let answer = match head.split(' ').nth(1) {
            Some("/length") => "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
            Some("/large") => "HTTP/1.1 200 OK\r\nContent-Length: 10000000\r\n\r\nabc",
            Some("/chunked") => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
            _ => "HTTP/1.1 200 OK\r\n\r\nabc",
        };
        stream.write_all(answer.as_bytes()).unwrap();
        if head.contains("/reset") {
            // Long enough for the head to be on its way to the client.
            std::thread::sleep(Duration::from_millis(50));
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
    });
    let lb = Lb::before(server.address, "");
    for (path, expected) in [("/length", 1), ("/large", 2), ("/chunked", 3), ("/reset", 4)] {
        let mut client = lb.connect();
        client.send(format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n"));
        // The head may be lost with the reset; an orderly end must not be seen.
        let ended = client.rest();
        assert!(ended.is_err(), "{path}: {ended:?}");
        lb.wait_for(Event::UpstreamFailed(UpstreamFailure::Closed), expected);
    }
}

#[test]
fn bytes_behind_an_answer_are_given_to_nobody() {
    let server = Server::answering(|request| {
        let mut answer = ordinary(request);
        answer.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged");
        answer
    });
    let lb = Lb::before(server.address, "");
    let mut client = lb.connect();
    for _ in 0..5 {
        assert_eq!(client.get("/size/7").body, pattern(7));
    }
    assert_eq!(lb.count(Event::UpstreamReused), 0);
}

#[test]
fn a_server_that_says_nothing_is_given_up() {
    let server = Server::new(|stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = read_head(&mut reader) {
            if head.contains("/half") {
                let mut stream = &stream;
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc").unwrap();
            }
        }
    });
    let lb = Lb::before(
        server.address,
        "timeouts = { upstream_response = \"2s\", body_stall = \"2s\" }",
    );
    let mut client = lb.connect();
    assert_eq!(client.get("/x").status(), 504);
    assert_eq!(lb.count(Event::UpstreamFailed(UpstreamFailure::ResponseTimeout)), 1);
    let mut client = lb.connect();
    client.send("GET /half HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(client.rest().is_err());
    lb.wait_for(Event::UpstreamFailed(UpstreamFailure::ResponseTimeout), 2);
}
