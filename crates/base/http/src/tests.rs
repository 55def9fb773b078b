//! Accepted and refused messages; the result does not depend on how the bytes arrive.

use proptest::prelude::*;

use super::*;

mod body;
mod smuggling;

fn request(text: &[u8]) -> Result<Option<RequestHead>, HeadError> {
    RequestHead::parse(text, &HeadLimits::default())
}

fn response(text: &[u8], method: Method) -> Result<Option<ResponseHead>, HeadError> {
    ResponseHead::parse(text, &HeadLimits::default(), method)
}

fn understood(text: &str) -> RequestHead {
    request(text.as_bytes()).unwrap().expect("the head is complete")
}

#[test]
fn a_plain_request_is_parsed() {
    let text = "GET /a/b?c=d?e HTTP/1.1\r\nHost: objects.lab:8443\r\naccept:  */* \t\r\nX-Empty:\r\n\r\nrest";
    let (head, buf) = (understood(text), text.as_bytes());
    assert_eq!(head.head_bytes(), text.len() - 4);
    assert_eq!((head.method(), head.method_text(buf)), (Method::Get, "GET"));
    assert_eq!(head.target(buf), "/a/b?c=d?e");
    assert_eq!((head.path(buf), head.query(buf)), ("/a/b", Some("c=d?e")));
    assert_eq!(head.host(buf), Some("objects.lab:8443"));
    assert_eq!(head.header(buf, "ACCEPT"), Some(&b"*/*"[..]));
    assert_eq!(head.header(buf, "x-empty"), Some(&b""[..]));
    assert_eq!(head.header(buf, "range"), None);
    let all: Vec<_> = head.headers(buf).collect();
    let due = [("Host", &b"objects.lab:8443"[..]), ("accept", b"*/*"), ("X-Empty", b"")];
    assert_eq!(all, due);
    assert_eq!(head.framing(), BodyFraming::None);
    assert!(head.keep_alive() && !head.is_http10() && !head.is_upgrade());
    assert!(!head.expects_continue());
}

#[test]
fn every_form_of_a_target_is_parsed() {
    let head = |line: &str| {
        let text = format!("{line}\r\nHost: a.example:80\r\n\r\n");
        let head = understood(&text);
        let buf = text.as_bytes();
        let parts = (head.target(buf), head.path(buf), head.host(buf));
        (parts.0.to_owned(), parts.1.to_owned(), parts.2.unwrap_or_default().to_owned())
    };
    let host = "a.example:80".to_owned();
    let due = |target: &str, path: &str| (target.to_owned(), path.to_owned(), host.clone());
    assert_eq!(head("GET / HTTP/1.1"), due("/", "/"));
    assert_eq!(head("GET //x/../y HTTP/1.1"), due("//x/../y", "//x/../y"));
    assert_eq!(head("GET http://a.example:80/x?y HTTP/1.1"), due("/x?y", "/x"));
    assert_eq!(head("GET HTTPS://A.Example:80 HTTP/1.1"), due("/", "/"));
    assert_eq!(head("OPTIONS * HTTP/1.1"), due("*", "*"));
    assert_eq!(head("OPTIONS http://a.example:80 HTTP/1.1"), due("*", "*"));
    assert_eq!(head("CONNECT a.example:80 HTTP/1.1"), due("a.example:80", ""));
    assert_eq!(head("PURGE /x HTTP/1.1"), due("/x", "/x"));
}

#[test]
fn methods_are_case_sensitive_and_unknown_ones_pass() {
    let methods = [
        ("GET", Method::Get),
        ("HEAD", Method::Head),
        ("PUT", Method::Put),
        ("POST", Method::Post),
        ("DELETE", Method::Delete),
        ("OPTIONS", Method::Options),
        ("PATCH", Method::Patch),
        ("TRACE", Method::Trace),
        ("get", Method::Other),
        ("M-SEARCH", Method::Other),
    ];
    for (name, method) in methods {
        let text = format!("{name} / HTTP/1.1\r\nHost: a\r\n\r\n");
        let head = understood(&text);
        assert_eq!((head.method(), head.method_text(text.as_bytes())), (method, name));
    }
    assert!(Method::Put.is_idempotent() && !Method::Post.is_idempotent());
}

#[test]
fn persistence_follows_version_and_connection() {
    let keeps = |version: &str, connection: &str| {
        understood(&format!("GET / HTTP/{version}\r\nHost: a\r\n{connection}\r\n")).keep_alive()
    };
    assert!(keeps("1.1", ""));
    assert!(!keeps("1.1", "Connection: close\r\n"));
    assert!(!keeps("1.1", "Connection: keep-alive, CLOSE\r\n"));
    assert!(!keeps("1.1", "Connection: x\r\nConnection: ,, close ,\r\n"));
    assert!(!keeps("1.0", ""));
    assert!(keeps("1.0", "Connection: Keep-Alive\r\n"));
    assert!(!keeps("1.0", "Connection: keep-alive\r\nConnection: close\r\n"));
}

#[test]
fn expectations_and_upgrades_are_seen_on_http11_only() {
    let head = |version: &str| {
        understood(&format!(
            "PUT /x HTTP/{version}\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-Continue\r\n\
             Connection: upgrade\r\nUpgrade: websocket\r\n\r\n"
        ))
    };
    assert!(head("1.1").expects_continue() && head("1.1").is_upgrade());
    assert!(!head("1.0").expects_continue() && !head("1.0").is_upgrade());
    assert!(!understood("GET / HTTP/1.1\r\nHost: a\r\nUpgrade: h2c\r\n\r\n").is_upgrade());
    let unknown = request(b"PUT / HTTP/1.1\r\nHost: a\r\nExpect: 42\r\n\r\n").unwrap_err();
    assert_eq!((unknown, unknown.status()), (HeadError::UnknownExpectation, 417));
}

#[test]
fn one_empty_line_before_a_request_is_tolerated() {
    let text = "\r\nGET /x HTTP/1.1\r\nHost: a\r\n\r\n";
    let head = understood(text);
    assert_eq!(head.head_bytes(), text.len());
    assert_eq!(head.path(text.as_bytes()), "/x");
    assert_eq!(request(b"\r\n\r\nGET / HTTP/1.1\r\n").unwrap_err(), HeadError::BadRequestLine);
    assert_eq!(request(b"\nGET / HTTP/1.1\r\n").unwrap_err(), HeadError::BareLf);
    assert_eq!(request(b"\r\n\nGET").unwrap_err(), HeadError::BareLf);
    assert_eq!(request(b"\rGET").unwrap_err(), HeadError::BareCr);
}

#[test]
fn http10_needs_no_host() {
    let text = "GET / HTTP/1.0\r\n\r\n";
    assert_eq!(understood(text).host(text.as_bytes()), None);
    assert!(understood(text).is_http10());
}

#[test]
fn limits_are_exact() {
    let limits = HeadLimits { head_bytes_max: 60, headers_max: 2, target_bytes_max: 8 };
    let parse = |text: &str| RequestHead::parse(text.as_bytes(), &limits).map(|h| h.is_some());
    assert_eq!(parse("GET /1234567 HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(true));
    assert_eq!(parse("GET /12345678 HTTP/1.1\r\nHost: a\r\n\r\n"), Err(HeadError::TargetTooLong));
    assert_eq!(parse("GET / HTTP/1.1\r\nHost: a\r\nA:\r\n\r\n"), Ok(true));
    assert_eq!(
        parse("GET / HTTP/1.1\r\nHost: a\r\nA:\r\nB:\r\n\r\n"),
        Err(HeadError::TooManyHeaders)
    );
    let of_bytes = |bytes: usize| {
        let frame = "GET / HTTP/1.1\r\nHost: a\r\nX: \r\n\r\n".len();
        parse(&format!("GET / HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n", "x".repeat(bytes - frame)))
    };
    assert_eq!(of_bytes(60), Ok(true));
    assert_eq!(of_bytes(61), Err(HeadError::HeadTooLarge));
    // An incomplete head is refused as soon as it cannot become acceptable.
    let endless = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(100));
    assert!(RequestHead::parse(&endless.as_bytes()[..59], &limits).unwrap().is_none());
    assert_eq!(parse(&endless[..60]), Err(HeadError::HeadTooLarge));
    let line = format!("GET /{}", "x".repeat(60));
    assert_eq!(parse(&line), Err(HeadError::TargetTooLong));
    // A line that was too long before its end is too long afterwards.
    let line = format!("GET /{} HTTP/1.1\r\n", "x".repeat(40));
    assert_eq!(parse(&line), Err(HeadError::TargetTooLong));
    assert_eq!(HeadError::TargetTooLong.status(), 414);
    assert_eq!(HeadError::HeadTooLarge.status(), 431);
    assert_eq!(HeadError::TooManyHeaders.status(), 431);
}

#[test]
fn many_headers_are_found() {
    let mut text = String::from("GET / HTTP/1.1\r\nHost: a\r\n");
    for number in 0..99 {
        text += &format!("X-{number}: {number}\r\n");
    }
    text += "\r\n";
    let head = understood(&text);
    assert_eq!(head.headers(text.as_bytes()).count(), 100);
    assert_eq!(head.header(text.as_bytes(), "x-98"), Some(&b"98"[..]));
}

#[test]
fn hop_by_hop_headers_are_dropped() {
    let text = "GET / HTTP/1.1\r\nHost: a\r\nConnection: X-Secret, host, Content-Length\r\n\
                Keep-Alive: 5\r\nTE: trailers\r\nUpgrade: x\r\nProxy-Connection: x\r\n\
                Proxy-Authorization: x\r\nX-Secret: 1\r\nX-Open: 2\r\nContent-Length: 3\r\n\r\n";
    let head = understood(text);
    let kept: Vec<_> = head.end_to_end_headers(text.as_bytes()).map(|(name, _)| name).collect();
    assert_eq!(kept, ["Host", "X-Open", "Content-Length"]);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X\r\n\r\n";
    let head = response(chunked.as_bytes(), Method::Get).unwrap().unwrap();
    let kept: Vec<_> = head.end_to_end_headers(chunked.as_bytes()).map(|(name, _)| name).collect();
    assert_eq!(kept, ["Trailer"]);
}

#[test]
fn responses_are_framed_by_rfc_9112_6_3() {
    let framing = |method, status: u16, fields: &str| {
        let text = format!("HTTP/1.1 {status} Reason\r\n{fields}\r\n");
        let head = response(text.as_bytes(), method).unwrap().unwrap();
        assert_eq!((head.status(), head.head_bytes()), (status, text.len()));
        (head.framing(), head.keep_alive())
    };
    let length = "Content-Length: 7\r\n";
    let chunked = "Transfer-Encoding: Chunked\r\n";
    assert_eq!(framing(Method::Get, 200, length), (BodyFraming::Length(7), true));
    assert_eq!(framing(Method::Get, 404, chunked), (BodyFraming::Chunked, true));
    assert_eq!(framing(Method::Get, 200, ""), (BodyFraming::UntilClose, false));
    assert_eq!(framing(Method::Head, 200, length), (BodyFraming::None, true));
    assert_eq!(framing(Method::Head, 200, chunked), (BodyFraming::None, true));
    assert_eq!(framing(Method::Get, 204, ""), (BodyFraming::None, true));
    assert_eq!(framing(Method::Get, 304, length), (BodyFraming::None, true));
    assert_eq!(framing(Method::Put, 100, ""), (BodyFraming::None, true));
    assert_eq!(framing(Method::Connect, 200, length), (BodyFraming::UntilClose, false));
    assert_eq!(framing(Method::Connect, 405, length), (BodyFraming::Length(7), true));
    assert_eq!(
        framing(Method::Get, 200, "Content-Length: 0\r\nConnection: close\r\n"),
        (BodyFraming::Length(0), false)
    );
}

#[test]
fn interim_responses_are_recognised() {
    let head = |status: u16| {
        response(format!("HTTP/1.1 {status} \r\n\r\n").as_bytes(), Method::Get).unwrap().unwrap()
    };
    assert!(head(100).is_interim() && head(103).is_interim());
    assert!(!head(101).is_interim() && !head(200).is_interim());
}

#[test]
fn http10_responses_close_without_keep_alive() {
    let keeps = |fields: &str| {
        let text = format!("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n{fields}\r\n");
        response(text.as_bytes(), Method::Get).unwrap().unwrap().keep_alive()
    };
    assert!(!keeps("") && keeps("Connection: keep-alive\r\n"));
}

#[test]
fn malformed_status_lines_are_refused() {
    let refused =
        |line: &str| response(format!("{line}\r\n\r\n").as_bytes(), Method::Get).unwrap_err();
    for line in [
        "HTTP/1.1",
        "HTTP/1.1 ",
        "HTTP/1.1 20",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1  200 OK",
        "HTTP/1.1 099 X",
        "HTTP/1.1 600 X",
        "HTTP/1.1 2x0 X",
        "HTTP/1.1 200OK",
        "HTTP/1.1 200 \x01",
        "HTTP/x.1 200 OK",
        "ICY 200 OK",
        " HTTP/1.1 200 OK",
    ] {
        assert_eq!(refused(line), HeadError::BadStatusLine, "{line:?}");
    }
    assert_eq!(refused("HTTP/2.0 200 OK"), HeadError::UnsupportedVersion);
    assert_eq!(response(b"\r\nHTTP/1.1", Method::Get).unwrap_err(), HeadError::BadStatusLine);
    assert!(response(b"HTTP/1.1 200\r\n\r\n", Method::Get).unwrap().is_some());
}

#[test]
fn the_end_of_a_head_is_found_in_pieces() {
    let text = b"GET / HTTP/1.1\r\nHost: a\r\n\r\nbody\r\n\r\n";
    for cut in 0..text.len() {
        let first = head_end(&text[..cut], 0);
        let found = first.or_else(|| head_end(text, cut));
        assert_eq!(found, Some(27), "cut at {cut}");
    }
    assert_eq!(head_end(b"\r\n\r", 0), None);
    assert_eq!(head_end(b"", 7), None);
}

#[test]
fn reasons_are_distinct_and_statuses_are_errors() {
    let mut reasons: Vec<_> = HeadError::ALL.iter().map(HeadError::reason).collect();
    reasons.sort_unstable();
    assert!(reasons.windows(2).all(|pair| pair[0] != pair[1]));
    assert!(HeadError::ALL.iter().all(|error| matches!(error.status(), 400..=599)));
}

#[test]
fn another_buffer_does_not_panic() {
    let head = understood("GET /long/path?query HTTP/1.1\r\nHost: objects.lab\r\n\r\n");
    for buf in [&b""[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
        assert_eq!(head.method_text(buf), "");
        assert_eq!((head.path(buf), head.query(buf), head.host(buf)), ("", None, Some("")));
        assert_eq!(head.headers(buf).count(), 1);
    }
}

fn token() -> impl Strategy<Value = String> {
    "[!#$%&'*+.^_`|~0-9A-Za-z-]{1,12}"
}

prop_compose! {
    /// A well-formed request, its target and its header lines.
    fn well_formed()(
        method in "[A-Z]{1,8}".prop_filter("CONNECT has a target of its own", |m| m != "CONNECT"),
        target in "/[!-\"$-~]{0,40}",
        fields in prop::collection::vec(("[Xx]-[a-z]{1,8}", "[!-~][ -~\u{e9}]{0,20}[!-~]"), 0..40),
    ) -> (String, String, Vec<(String, String)>) {
        let mut text = format!("{method} {target} HTTP/1.1\r\nHost: a\r\n");
        for (name, value) in &fields {
            text += &format!("{name}: {value}\r\n");
        }
        (text + "\r\n", target, fields)
    }
}

fn summary(head: &RequestHead, buf: &[u8]) -> String {
    let fields: Vec<_> = head.headers(buf).collect();
    let parts = (head.head_bytes(), head.method(), head.target(buf), head.host(buf), fields);
    format!("{parts:?} {:?} {}", head.framing(), head.keep_alive())
}

proptest! {
    #[test]
    fn written_heads_are_parsed((text, target, fields) in well_formed()) {
        let head = request(text.as_bytes()).unwrap().unwrap();
        let buf = text.as_bytes();
        prop_assert_eq!(head.target(buf), target);
        let read: Vec<_> = head.headers(buf).skip(1)
            .map(|(name, value)| (name.to_owned(), String::from_utf8(value.to_vec()).unwrap()))
            .collect();
        prop_assert_eq!(read, fields);
    }

    #[test]
    fn every_prefix_is_incomplete_and_what_follows_is_ignored(
        (text, _, _) in well_formed(), rest in prop::collection::vec(any::<u8>(), 0..40)
    ) {
        for cut in 0..text.len() {
            prop_assert!(request(&text.as_bytes()[..cut]).unwrap().is_none(), "cut at {cut}");
        }
        let whole = summary(&request(text.as_bytes()).unwrap().unwrap(), text.as_bytes());
        let longer = [text.as_bytes(), &rest].concat();
        prop_assert_eq!(summary(&request(&longer).unwrap().unwrap(), &longer), whole);
    }

    #[test]
    fn mutations_never_panic_and_have_one_result(
        (text, _, _) in well_formed(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        small: bool,
    ) {
        let mut bytes = text.into_bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let limits = match small {
            true => HeadLimits { head_bytes_max: 64, headers_max: 2, target_bytes_max: 8 },
            false => HeadLimits::default(),
        };
        let whole = RequestHead::parse(&bytes, &limits);
        for cut in 0..bytes.len() {
            // A prefix is either undecided or has the same result as the whole.
            match (RequestHead::parse(&bytes[..cut], &limits), &whole) {
                (Ok(None), _) => {}
                (Ok(Some(early)), Ok(Some(late))) => {
                    prop_assert_eq!(summary(&early, &bytes), summary(late, &bytes));
                }
                (Err(_), Err(_)) => {}
                (early, late) => prop_assert!(false, "{early:?} then {late:?}"),
            }
        }
        for method in [Method::Get, Method::Head] {
            let _ = ResponseHead::parse(&bytes, &limits, method);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = request(&bytes);
        let _ = response(&bytes, Method::Get);
        let response_like = [b"HTTP/1.1 200 OK\r\n", &bytes[..], b"\r\n\r\n"].concat();
        let _ = response(&response_like, Method::Get);
    }

    #[test]
    fn an_accepted_head_has_one_meaning(name in token(), value in "[\t -~]{0,20}") {
        // A header line of any name is found under that name and no other.
        let text = format!("GET / HTTP/1.0\r\n{name}:{value}\r\n\r\n");
        if let Ok(Some(head)) = request(text.as_bytes()) {
            let trimmed = value.trim_matches([' ', '\t']);
            prop_assert_eq!(head.header(text.as_bytes(), &name), Some(trimmed.as_bytes()));
            prop_assert_eq!(head.headers(text.as_bytes()).count(), 1);
        }
    }
}
