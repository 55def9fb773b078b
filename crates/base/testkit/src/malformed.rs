//! Malformed HTTP/1.1 messages, one or more for each reason of `unlade_http::HeadError`.

/// A message and the reason for which a decoder refuses it.
pub type Malformed = (String, &'static str);

/// Longer than the default limits of a request's head and target.
const LONG_REQUEST_BYTES: usize = 20_000;
/// Longer than the limit of a response's head.
const LONG_RESPONSE_BYTES: usize = 70_000;
/// More lines than the default limit.
const MANY_LINES: usize = 2_000;

/// Header lines that requests and responses have in common: each breaks one rule.
const LINES: &[(&str, &str)] = &[
    ("X: a\nY: b\r\n", "bare_lf"),
    ("X: a\rb\r\n", "bare_cr"),
    ("X: a\r\n b\r\n", "obs_fold"),
    ("X : a\r\n", "space_before_colon"),
    ("X\0: a\r\n", "bad_header_name"),
    ("X: a\0b\r\n", "bad_header_value"),
    ("Content-Length: +3\r\n", "bad_content_length"),
    ("Content-Length: 3\r\nContent-Length: 3\r\n", "duplicate_content_length"),
    ("Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "length_and_transfer_encoding"),
    ("Transfer-Encoding: xchunked\r\n", "bad_transfer_encoding"),
    ("Transfer-Encoding: gzip, chunked\r\n", "unsupported_transfer_encoding"),
    ("Connection: a b\r\n", "bad_connection"),
];

/// Chunked bodies, without their heads.
const BODIES: &[(&str, &str)] = &[
    ("zz\r\nabc\r\n", "bad_chunk_size"),
    ("3;\u{1}\r\nabc\r\n0\r\n\r\n", "bad_chunk_extension"),
    ("3\r\nabcd\r\n0\r\n\r\n", "bad_chunk_delimiter"),
    ("0\r\nContent-Length: 3\r\n\r\n", "bad_trailer"),
];

/// Requests whose heads are malformed.
pub fn request_heads() -> Vec<Malformed> {
    let start = "GET / HTTP/1.1\r\nHost: a\r\n";
    let mut all: Vec<Malformed> =
        LINES.iter().map(|(lines, reason)| (format!("{start}{lines}\r\n"), *reason)).collect();
    let long = "x".repeat(LONG_REQUEST_BYTES);
    all.extend([
        (format!("{start}X: {long}\r\n\r\n"), "head_too_large"),
        (format!("{start}{}\r\n", "X: y\r\n".repeat(MANY_LINES)), "too_many_headers"),
        (format!("GET /{long} HTTP/1.1\r\nHost: a\r\n\r\n"), "target_too_long"),
        (format!("{} / HTTP/1.1\r\nHost: a\r\n\r\n", &long[..40]), "method_too_long"),
    ]);
    let rest = [
        ("GET / HTTP/2.0\r\nHost: a\r\n\r\n", "unsupported_version"),
        ("GET\r\nHost: a\r\n\r\n", "bad_request_line"),
        ("G{T / HTTP/1.1\r\nHost: a\r\n\r\n", "bad_method"),
        ("GET /\u{1} HTTP/1.1\r\nHost: a\r\n\r\n", "bad_target"),
        ("GET / HTTP/1.1\r\n\r\n", "missing_host"),
        ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "duplicate_host"),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "bad_host"),
        ("GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", "host_mismatch"),
        ("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", "transfer_encoding_on_http10"),
        ("GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", "unknown_expectation"),
    ];
    all.extend(rest.map(|(head, reason)| (head.to_owned(), reason)));
    all
}

/// Responses whose heads are malformed.
pub fn response_heads() -> Vec<Malformed> {
    let start = "HTTP/1.1 200 OK\r\n";
    let mut all: Vec<Malformed> =
        LINES.iter().map(|(lines, reason)| (format!("{start}{lines}\r\n"), *reason)).collect();
    all.extend([
        (format!("{start}X: {}\r\n\r\n", "x".repeat(LONG_RESPONSE_BYTES)), "head_too_large"),
        (format!("{start}{}\r\n", "X: y\r\n".repeat(MANY_LINES)), "too_many_headers"),
        ("HTTP/2.0 200 OK\r\n\r\n".to_owned(), "unsupported_version"),
        ("SSH-2.0-OpenSSH_9\r\n".to_owned(), "bad_status_line"),
        (
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
            "transfer_encoding_on_http10",
        ),
    ]);
    all
}

/// Malformed chunked bodies: what follows a head with `Transfer-Encoding: chunked`.
pub fn chunked_bodies() -> Vec<Malformed> {
    let mut all: Vec<Malformed> =
        BODIES.iter().map(|(body, reason)| ((*body).to_owned(), *reason)).collect();
    all.extend([
        (format!("3;{}\r\nabc\r\n0\r\n\r\n", "x".repeat(5_000)), "chunk_line_too_long"),
        (format!("0\r\nX: {}\r\n\r\n", "x".repeat(10_000)), "trailer_too_large"),
    ]);
    all
}
