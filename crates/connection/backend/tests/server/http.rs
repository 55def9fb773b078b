//! The object server over real sockets, with a raw client, and with curl if it is installed.

use std::io::{Read, Write};
use std::process::Command;
use std::time::Duration;

use unlade_testkit::malformed;

use crate::common::{self, Client, Fixture, Response, fixture, fixture_with};

fn get(client: &mut Client, target: &str, fields: &str) -> Response {
    client.exchange("GET", target, fields, b"")
}

#[test]
fn an_object_comes_whole_with_what_describes_it() {
    let fixture = fixture();
    let content = fixture.write("dir/page.html", 100_000);
    let mut client = fixture.client();
    let response = get(&mut client, "/dir/page.html", "");
    assert_eq!((response.status, response.body), (200, content));
    assert_eq!(response.fields["content-type"], "text/html; charset=utf-8");
    assert_eq!(response.fields["content-length"], "100000");
    assert_eq!(response.fields["accept-ranges"], "bytes");
    assert!(response.fields["etag"].starts_with('"'));
    assert!(response.fields["date"].ends_with(" GMT"));
    assert!(response.fields["last-modified"].ends_with(" GMT"));
    let head = client.exchange("HEAD", "/dir/page.html?query=ignored", "", b"");
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.fields["content-length"], "100000");
}

#[test]
fn an_empty_object_is_an_object() {
    let fixture = fixture();
    fixture.write("empty", 0);
    let mut client = fixture.client();
    for fields in ["", "Range: bytes=-1\r\n"] {
        let response = get(&mut client, "/empty", fields);
        assert_eq!((response.status, response.body.len()), (200, 0));
    }
    assert_eq!(get(&mut client, "/empty", "Range: bytes=0-\r\n").status, 416);
}

#[test]
fn ranges_are_cut_out_exactly() {
    let fixture = fixture();
    let content = fixture.write("data", 10_000);
    let mut client = fixture.client();
    for (range, from, to) in [
        ("0-499", 0, 500),
        ("500-999", 500, 1000),
        ("-500", 9500, 10_000),
        ("9500-", 9500, 10_000),
        ("9999-20000", 9999, 10_000),
    ] {
        let response = get(&mut client, "/data", &format!("Range: bytes={range}\r\n"));
        assert_eq!(response.status, 206, "{range}");
        assert_eq!(response.body, content[from..to], "{range}");
        let expected = format!("bytes {from}-{}/10000", to - 1);
        assert_eq!(response.fields["content-range"], expected);
    }
    let outside = get(&mut client, "/data", "Range: bytes=10000-\r\n");
    assert_eq!((outside.status, outside.fields["content-range"].as_str()), (416, "bytes */10000"));
    let several = get(&mut client, "/data", "Range: bytes=0-1,5-6\r\n");
    assert_eq!((several.status, several.body), (200, content.clone()));
    // Range applies only to GET (RFC 9110 §14.2).
    let head = client.exchange("HEAD", "/data", "Range: bytes=0-1\r\n", b"");
    assert_eq!((head.status, head.fields["content-length"].as_str()), (200, "10000"));
}

#[test]
fn conditions_are_honoured() {
    let fixture = fixture();
    fixture.write("x", 10);
    let mut client = fixture.client();
    let first = get(&mut client, "/x", "");
    let (etag, date) = (first.fields["etag"].clone(), first.fields["last-modified"].clone());
    let mut status = |fields: String| get(&mut client, "/x", &fields).status;
    assert_eq!(status(format!("If-None-Match: {etag}\r\n")), 304);
    assert_eq!(status(format!("If-None-Match: \"a\", W/{etag}\r\n")), 304);
    assert_eq!(status("If-None-Match: \"a\"\r\n".into()), 200);
    assert_eq!(status("If-None-Match: *\r\n".into()), 304);
    assert_eq!(status(format!("If-Match: {etag}\r\n")), 200);
    assert_eq!(status("If-Match: \"a\"\r\n".into()), 412);
    assert_eq!(status(format!("If-Modified-Since: {date}\r\n")), 304);
    assert_eq!(status("If-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n".into()), 200);
    assert_eq!(status("If-Unmodified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n".into()), 412);
    assert_eq!(status(format!("If-Range: {etag}\r\nRange: bytes=0-0\r\n")), 206);
    assert_eq!(status("If-Range: \"a\"\r\nRange: bytes=0-0\r\n".into()), 200);
    let fields = format!("If-None-Match: {etag}\r\n");
    let unchanged = get(&mut client, "/x", &fields);
    assert_eq!((unchanged.fields["etag"].as_str(), unchanged.body.len()), (etag.as_str(), 0));
}

#[test]
fn an_object_is_put_read_replaced_and_deleted() {
    let fixture = fixture();
    let mut client = fixture.client();
    let created = client.exchange("PUT", "/a/b/new.txt", "", b"first");
    assert_eq!((created.status, created.body.len()), (201, 0));
    let read = get(&mut client, "/a/b/new.txt", "");
    assert_eq!((read.status, read.body.as_slice()), (200, &b"first"[..]));
    assert_eq!(read.fields["etag"], created.fields["etag"]);
    let replaced = client.exchange("PUT", "/a/b/new.txt", "", b"second");
    assert_eq!(replaced.status, 204);
    assert_ne!(replaced.fields["etag"], created.fields["etag"]);
    // Also on other connections, served by any worker.
    for _ in 0..8 {
        let read = get(&mut fixture.client(), "/a/b/new.txt", "");
        assert_eq!(read.body, b"second");
    }
    let stale = format!("If-Match: {}\r\n", created.fields["etag"]);
    assert_eq!(client.exchange("PUT", "/a/b/new.txt", &stale, b"third").status, 412);
    assert_eq!(client.exchange("DELETE", "/a/b/new.txt", &stale, b"").status, 412);
    let only_new = "If-None-Match: *\r\n";
    assert_eq!(client.exchange("PUT", "/a/b/new.txt", only_new, b"third").status, 412);
    assert_eq!(client.exchange("DELETE", "/a/b/new.txt", "", b"").status, 204);
    assert_eq!(client.exchange("DELETE", "/a/b/new.txt", "", b"").status, 404);
    assert_eq!(get(&mut client, "/a/b/new.txt", "").status, 404);
    assert_eq!(client.exchange("PUT", "/a/b/new.txt", only_new, b"third").status, 201);
}

#[test]
fn uploads_come_chunked_or_after_an_invitation() {
    let fixture = fixture();
    let mut client = fixture.client();
    client.send(b"PUT /c HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5;x=y\r\nhe");
    client.send(b"llo\r\n6\r\n world\r\n0\r\nTrailer: t\r\n\r\n");
    assert_eq!(client.read_response("PUT").status, 201);
    assert_eq!(get(&mut client, "/c", "").body, b"hello world");

    client.send(b"PUT /d HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(client.read_response("PUT").status, 100);
    client.send(b"abc");
    assert_eq!(client.read_response("PUT").status, 201);
    assert_eq!(get(&mut client, "/d", "").body, b"abc");
    // No 100 for a body that would be refused.
    let refused = "If-None-Match: *\r\nExpect: 100-continue\r\nContent-Length: 3\r\n";
    client.send(format!("PUT /d HTTP/1.1\r\nHost: a\r\n{refused}\r\n").as_bytes());
    assert_eq!(client.read_response("PUT").status, 412);
}

#[test]
fn a_large_upload_comes_back_the_same() {
    let fixture = fixture();
    let content = common::noise(3 << 20, 5);
    let mut client = fixture.client();
    assert_eq!(client.exchange("PUT", "/large.bin", "", &content).status, 201);
    assert_eq!(std::fs::read(fixture.root().join("large.bin")).unwrap(), content);
    assert_eq!(get(&mut client, "/large.bin", "").body, content);
}

#[test]
fn refusals_have_the_right_status_and_keep_the_connection_where_they_can() {
    let fixture = fixture_with(|config| config.object_bytes_max = unlade_config::ByteSize(1000));
    fixture.write("dir/x", 1);
    let mut client = fixture.client();
    for (method, target, fields, body, expected) in [
        ("GET", "/missing", "", &b""[..], 404),
        ("GET", "/dir", "", b"", 404),
        ("GET", "/dir/", "", b"", 404),
        ("GET", "/", "", b"", 404),
        ("GET", "/dir/x/y", "", b"", 404),
        ("GET", "/.unlade-staging/1", "", b"", 404),
        ("GET", "/a%zz", "", b"", 400),
        ("GET", "/a/../dir/x", "", b"", 400),
        ("POST", "/dir/x", "", b"abc", 405),
        ("PATCH", "/dir/x", "", b"", 405),
        ("BREW", "/dir/x", "", b"", 501),
        ("PUT", "/dir", "", b"abc", 409),
        ("PUT", "/dir/x/y", "", b"abc", 409),
        ("PUT", "/y", "Content-Range: bytes 0-2/9\r\n", b"abc", 400),
        ("PUT", "/y", "Content-Encoding: gzip\r\n", b"abc", 415),
        ("PUT", "/y", "If-Match: nonsense\r\n", b"abc", 400),
        ("PUT", "/../y", "", b"abc", 400),
        ("DELETE", "/dir", "", b"", 404),
        ("PUT", "/big", "", &[0; 1001], 413),
        ("GET", "/dir/x", "", b"a body nobody asked for", 200),
        ("OPTIONS", "/dir/x", "", b"", 204),
        ("OPTIONS", "*", "", b"", 204),
    ] {
        let response = client.exchange(method, target, fields, body);
        assert_eq!(response.status, expected, "{method} {target} {fields}");
        if matches!(expected, 405) || method == "OPTIONS" {
            assert_eq!(response.fields["allow"], "GET, HEAD, PUT, DELETE, OPTIONS");
        }
        assert!(!response.fields.contains_key("connection"), "{method} {target}");
    }
    client.send(b"PUT /y HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(client.read_response("PUT").status, 411);
    assert_eq!(std::fs::read_dir(fixture.root().join(".unlade-staging")).unwrap().count(), 0);
}

#[test]
fn bodies_that_are_too_large_or_malformed_end_the_connection_after_an_answer() {
    let fixture = fixture_with(|config| config.object_bytes_max = unlade_config::ByteSize(100_000));
    for (message, expected) in [
        (&b"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 100001\r\n\r\n"[..], 413),
        (b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 99999\r\n\r\n", 405),
    ] {
        let mut client = fixture.client();
        client.send(message);
        let response = client.read_response("PUT");
        assert_eq!((response.status, response.fields["connection"].as_str()), (expected, "close"));
        client.expect_end();
    }
    let mut client = fixture.client();
    client.send(b"PUT /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = [b"10000\r\n".to_vec(), vec![7; 0x10000], b"\r\n".to_vec()].concat();
    client.send(&chunk);
    client.send(&chunk);
    assert_eq!(client.read_response("PUT").status, 413);
    assert_eq!(get(&mut fixture.client(), "/x", "").status, 404);
}

#[test]
fn heads_that_are_not_acceptable_are_answered_and_counted() {
    let fixture = fixture();
    let long = "x".repeat(20_000);
    for (head, expected) in [
        (
            "GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".into(),
            400,
        ),
        ("GET /x HTTP/1.1\nHost: a\n\n".into(), 400),
        ("GET /x HTTP/1.1\r\n\r\n".into(), 400),
        ("GET /x HTTP/2.5\r\nHost: a\r\n\r\n".into(), 505),
        ("PUT /x HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n".into(), 417),
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), 414),
        (format!("GET / HTTP/1.1\r\nHost: a\r\nX: {long}\r\n\r\n"), 431),
        ("\u{16}\u{3}\u{1}".into(), 400),
    ] {
        let mut client = fixture.client();
        client.send(head.as_bytes());
        let response = client.read_response("GET");
        assert_eq!(response.status, expected, "{head:.60}");
        client.expect_end();
    }
    assert_eq!(
        fixture.meter().value(unlade_metrics::Event::ObjectHeadRefused("bare_lf".into())),
        1
    );
    assert_eq!(
        fixture.meter().value(unlade_metrics::Event::ObjectHeadRefused("missing_host".into())),
        1
    );
}

#[test]
fn every_reason_for_refusing_a_head_is_counted() {
    let fixture = fixture();
    for (head, reason) in malformed::request_heads() {
        let event = unlade_metrics::Event::ObjectHeadRefused(reason.into());
        let before = fixture.meter().value(event);
        let mut client = fixture.client();
        client.send(head.as_bytes());
        assert!((400..600).contains(&client.read_response("GET").status), "{reason}");
        client.expect_end();
        assert_eq!(fixture.meter().value(event), before + 1, "{reason}");
    }
}

#[test]
fn pipelined_requests_are_answered_in_order_whatever_the_cuts() {
    let fixture = fixture();
    let small = fixture.write("small", 100);
    let large = fixture.write("large", 300_000);
    let mut message = Vec::new();
    for at in 0..200 {
        message.extend_from_slice(match at % 4 {
            0 => &b"GET /small HTTP/1.1\r\nHost: a\r\n\r\n"[..],
            1 => b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n",
            2 => b"PUT /put HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nGET ",
            _ => b"GET /missing HTTP/1.1\r\nHost: a\r\n\r\n",
        });
    }
    let mut client = fixture.client();
    let mut writer = client.writer();
    let sender = std::thread::spawn(move || {
        for piece in message.chunks(37) {
            writer.write_all(piece).unwrap();
        }
    });
    for at in 0..200 {
        let method = if at % 4 == 2 { "PUT" } else { "GET" };
        let response = client.read_response(method);
        match at % 4 {
            0 => assert_eq!(response.body, small),
            1 => assert_eq!(response.body, large),
            2 => assert!(matches!(response.status, 201 | 204)),
            _ => assert_eq!(response.status, 404),
        }
    }
    sender.join().unwrap();
}

#[test]
fn a_head_may_come_byte_by_byte() {
    let fixture = fixture();
    fixture.write("x", 3);
    let mut client = fixture.client();
    let filler = "y".repeat(900);
    let head = format!("GET /x HTTP/1.1\r\nHost: a\r\nFiller: {filler}\r\n\r\n");
    for byte in head.as_bytes() {
        client.send(&[*byte]);
    }
    assert_eq!(client.read_response("GET").status, 200);
}

#[test]
fn connections_persist_as_the_client_wishes() {
    let fixture = fixture();
    fixture.write("x", 3);
    let mut closing = fixture.client();
    let response = get(&mut closing, "/x", "Connection: close\r\n");
    assert_eq!((response.status, response.fields["connection"].as_str()), (200, "close"));
    closing.expect_end();
    let mut old = fixture.client();
    old.send(b"GET /x HTTP/1.0\r\n\r\n");
    assert_eq!(old.read_response("GET").fields["connection"], "close");
    old.expect_end();
    let mut old = fixture.client();
    for _ in 0..2 {
        old.send(b"GET /x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert_eq!(old.read_response("GET").fields["connection"], "keep-alive");
    }
}

#[test]
fn slow_idle_and_stalled_clients_are_dropped() {
    let fixture = fixture_with(|config| {
        config.head_timeout = Duration::from_secs(2);
        config.idle_timeout = Duration::from_secs(2);
        config.body_timeout = Duration::from_secs(2);
        config.write_timeout = Duration::from_secs(2);
    });
    fixture.write_zeros("huge", 64 << 20);
    fixture.client().expect_end();
    let mut slow = fixture.client();
    slow.send(b"GET / HT");
    assert_eq!(slow.read_response("GET").status, 408);
    slow.expect_end();
    let mut stalled = fixture.client();
    stalled.send(b"PUT /x HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n123");
    assert_eq!(stalled.read_response("PUT").status, 408);
    stalled.expect_end();
    let mut deaf = fixture.client();
    deaf.send(b"GET /huge HTTP/1.1\r\nHost: a\r\n\r\n");
    fixture.until(|meter| meter.value(unlade_metrics::Event::BackendStalled) == 1);
    // A slow client that keeps reading is not counted as stalled.
    let mut reading = fixture.client();
    reading.send(b"GET /huge HTTP/1.1\r\nHost: a\r\nRange: bytes=0-33554431\r\n\r\n");
    let (mut left, mut buffer, mut pauses) = (32 << 20, vec![0; 1 << 20], 40);
    while left > 0 {
        if pauses > 0 {
            pauses -= 1;
            std::thread::sleep(Duration::from_millis(100));
        }
        let count = reading.writer().read(&mut buffer).unwrap();
        assert_ne!(count, 0, "{left} bytes are missing");
        left -= count.min(left);
    }
}

#[test]
fn connections_beyond_the_limit_are_turned_away_with_an_answer() {
    let fixture = fixture_with(|config| config.connections_max = 2);
    fixture.write("x", 1);
    let mut held = [fixture.client(), fixture.client()];
    for client in &mut held {
        assert_eq!(get(client, "/x", "").status, 200);
    }
    let mut third = fixture.client();
    assert_eq!(third.read_response("GET").status, 503);
    third.expect_end();
    drop(held);
    fixture.until(|meter| meter.gauge(unlade_metrics::Gauge::BackendConnections) == 0);
    assert_eq!(get(&mut fixture.client(), "/x", "").status, 200);
}

#[test]
fn a_drain_finishes_what_is_in_flight_and_closes_what_idles() {
    let fixture = fixture();
    let content = fixture.write("huge", 32 << 20);
    fixture.write("x", 1);
    let mut idle = fixture.client();
    assert_eq!(get(&mut idle, "/x", "").status, 200);
    let mut busy = fixture.client();
    busy.send(b"GET /huge HTTP/1.1\r\nHost: a\r\n\r\n");
    fixture.until(|meter| meter.gauge(unlade_metrics::Gauge::BackendConnections) == 2);
    fixture.control().drain();
    idle.expect_end();
    let response = busy.read_response("GET");
    assert_eq!(response.body, content);
    busy.expect_end();
    assert_eq!(fixture.join(), unlade_runtime::Ended::Finished);
}

#[test]
fn a_reload_changes_the_limits() {
    let fixture = fixture();
    let mut client = fixture.client();
    assert_eq!(client.exchange("PUT", "/x", "", b"123456").status, 201);
    let mut config = (*fixture.control().config()).clone();
    config.object_bytes_max = unlade_config::ByteSize(5);
    fixture.control().reload(config);
    // Workers apply a reload asynchronously.
    let refused = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(2));
        client.exchange("PUT", "/x", "", b"123456").status == 413
    });
    assert!(refused);
}

#[test]
fn the_admin_endpoint_counts_and_tells_health() {
    let fixture = fixture_with(|config| config.admin = Some(common::any_port()));
    fixture.write("x", 1234);
    let mut client = fixture.client();
    get(&mut client, "/x", "");
    get(&mut client, "/missing", "");
    let admin = fixture.admin().unwrap();
    let mut scraper = Client::connect(admin);
    // A response is counted after it is sent, which may be after the client has received it.
    let expected = [
        "unlade_backend_requests_total{class=\"2xx\"} 1",
        "unlade_backend_requests_total{class=\"4xx\"} 1",
        "unlade_backend_ordinary_bytes_total 12",
    ];
    let mut metrics = String::new();
    let counted = (0..500).any(|_| {
        metrics = String::from_utf8(get(&mut scraper, "/metrics", "").body).unwrap();
        let has = |line: &&str| metrics.lines().any(|had| had.starts_with(*line));
        expected.iter().all(has) || {
            std::thread::sleep(Duration::from_millis(2));
            false
        }
    });
    assert!(counted, "{metrics}");
    assert_eq!(get(&mut scraper, "/healthz", "").status, 200);
    fixture.control().drain();
    let draining = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(2));
        let health = Client::try_connect(admin).map(|mut c| get(&mut c, "/healthz", "").status);
        health.is_none_or(|status| status == 503)
    });
    assert!(draining);
}

#[test]
fn a_file_cut_short_while_it_is_sent_is_not_passed_off_as_whole() {
    let fixture = fixture();
    fixture.write_zeros("shrinking", 64 << 20);
    let mut client = fixture.client();
    client.send(b"GET /shrinking HTTP/1.1\r\nHost: a\r\n\r\n");
    let mut first = [0; 1];
    client.writer().read_exact(&mut first).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(fixture.root().join("shrinking"));
    file.unwrap().set_len(1 << 20).unwrap();
    let mut rest = Vec::new();
    client.writer().read_to_end(&mut rest).ok();
    assert!(rest.len() < 64 << 20);
    fixture.until(|meter| meter.value(unlade_metrics::Event::BackendBroken) == 1);
}

#[test]
fn curl_agrees() {
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("skipped: curl is not installed");
        return;
    }
    let fixture: Fixture = fixture();
    let content = common::noise(200_000, 9);
    let local = fixture.root().join("upload.src");
    std::fs::write(&local, &content).unwrap();
    let url = format!("http://{}/curl/up%20load.bin", fixture.http());
    let curl = |arguments: &[&str]| {
        let output = Command::new("curl").args(["-sS"]).args(arguments).arg(&url).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let code = ["-o", "/dev/null", "-w", "%{http_code}"];
    let upload = local.to_str().unwrap();
    assert_eq!(curl(&[&code[..], &["-T", upload]].concat()), b"201");
    let chunked = ["-T", upload, "-H", "Transfer-Encoding: chunked"];
    assert_eq!(curl(&[&code[..], &chunked].concat()), b"204");
    assert_eq!(curl(&[]), content);
    assert_eq!(curl(&["-r", "1000-1999"]), content[1000..2000]);
    assert_eq!(curl(&["-r", "-10"]), content[199_990..]);
    assert_eq!(curl(&[&code[..], &["-I"]].concat()), b"200");
    assert_eq!(curl(&[&code[..], &["-X", "DELETE"]].concat()), b"204");
    assert_eq!(curl(&code), b"404");
}

#[test]
fn a_silent_connection_is_closed_and_counted() {
    let fixture = fixture_with(|config| config.idle_timeout = Duration::from_millis(50));
    fixture.write("a", 10);
    let mut client = fixture.client();
    assert_eq!(client.exchange("GET", "/a", "", b"").status, 200);
    fixture.until(|meter| meter.value(unlade_metrics::Event::BackendIdleTimeout) == 1);
    client.expect_end();
}
