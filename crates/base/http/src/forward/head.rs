//! Writes heads: of requests for the server, of responses for the client.
//!
//! Fields of one hop are not forwarded (RFC 9110 §7.6.1). Framing fields are written anew from the
//! parsed message, never copied, so that both sides agree on the end of the message.

use std::io::Write as _;

use crate::{BodyFraming, RequestHead, ResponseHead};

/// Properties of the client that a request carries to the server.
#[derive(Debug, Clone, Copy)]
pub struct ClientOrigin<'a> {
    /// The client's address as text.
    pub client: &'a str,
    /// It came over TLS.
    pub tls: bool,
    /// Replaces the host in a request of HTTP/1.0 without one.
    pub authority: &'a str,
    /// The protocols that the connection may change to, as the value of Upgrade.
    pub upgrade: Option<&'a str>,
}

/// Appends the head for the server.
///
/// X-Forwarded-For has the client's address appended to its present value. X-Forwarded-Proto and
/// X-Forwarded-Host are set here: values from the client are dropped.
pub fn request(head: &RequestHead, buf: &[u8], origin: &ClientOrigin<'_>, out: &mut Vec<u8>) {
    let host = head.host(buf).filter(|host| !host.is_empty()).unwrap_or(origin.authority);
    for part in [head.method_text(buf), " ", head.target(buf), " HTTP/1.1\r\nHost: ", host] {
        out.extend_from_slice(part.as_bytes());
    }
    out.extend_from_slice(b"\r\n");
    for (name, value) in head.end_to_end_headers(buf) {
        if !is_replaced(name) {
            header(name, value, out);
        }
    }
    if head.expects_continue() {
        header("Expect", b"100-continue", out);
    }
    out.extend_from_slice(b"X-Forwarded-For: ");
    for (_, value) in head.headers(buf).filter(|(name, _)| is_forwarded_for(name)) {
        if !value.is_empty() {
            out.extend_from_slice(value);
            out.extend_from_slice(b", ");
        }
    }
    out.extend_from_slice(origin.client.as_bytes());
    let proto = if origin.tls { "https" } else { "http" };
    for part in ["\r\nX-Forwarded-Proto: ", proto, "\r\nX-Forwarded-Host: ", host, "\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    framing(head.framing(), out);
    if let Some(protocols) = origin.upgrade {
        upgrade(protocols, out);
    }
    out.extend_from_slice(b"\r\n");
}

fn upgrade(protocols: &str, out: &mut Vec<u8>) {
    header("Connection", b"Upgrade", out);
    header("Upgrade", protocols.as_bytes(), out);
}

/// Appends the head of a 101 for the client, the last message of HTTP on the connection.
pub fn switching(head: &ResponseHead, buf: &[u8], protocol: &str, out: &mut Vec<u8>) {
    status_line(buf, out);
    for (name, value) in head.end_to_end_headers(buf) {
        // RFC 9110 §8.6: a 1xx has no length.
        if !name.eq_ignore_ascii_case("content-length") {
            header(name, value, out);
        }
    }
    upgrade(protocol, out);
    out.extend_from_slice(b"\r\n");
}

/// Returns true for header lines of a request that [`request`] writes itself.
fn is_replaced(name: &str) -> bool {
    match name.len() {
        4 => name.eq_ignore_ascii_case("host"),
        6 => name.eq_ignore_ascii_case("expect"),
        // Part of an upgrade to HTTP/2, which is never passed on.
        14 => {
            name.eq_ignore_ascii_case("content-length")
                || name.eq_ignore_ascii_case("http2-settings")
        }
        15 => is_forwarded_for(name),
        16 => name.eq_ignore_ascii_case("x-forwarded-host"),
        17 => name.eq_ignore_ascii_case("x-forwarded-proto"),
        _ => false,
    }
}

fn is_forwarded_for(name: &str) -> bool {
    name.eq_ignore_ascii_case("x-forwarded-for")
}

/// Properties of the client's connection after a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseTerms {
    /// The client uses HTTP/1.0: no chunks, and a connection persists only if both sides ask for
    /// it.
    pub http10: bool,
    /// The connection persists.
    pub keep_alive: bool,
}

/// Appends the head for the client.
pub fn response(head: &ResponseHead, buf: &[u8], terms: ResponseTerms, out: &mut Vec<u8>) {
    status_line(buf, out);
    // RFC 9110 §8.6: neither 1xx nor 204 has a length; a server's length is dropped.
    let lengthless = matches!(head.status(), 100..=199 | 204);
    for (name, value) in head.end_to_end_headers(buf) {
        let is_length = name.len() == 14 && name.eq_ignore_ascii_case("content-length");
        // Written below if there is a body. Without a body (HEAD, 304) it is information.
        let drop = is_length && (lengthless || head.framing() != BodyFraming::None);
        if !drop {
            header(name, value, out);
        }
    }
    if !(terms.http10 && head.framing() == BodyFraming::Chunked) {
        framing(head.framing(), out);
    }
    if !head.is_interim() {
        match (terms.keep_alive, terms.http10) {
            (false, _) => out.extend_from_slice(b"Connection: close\r\n"),
            (true, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
            (true, false) => {}
        }
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends the status line in our version: the server's may be 1.0.
fn status_line(buf: &[u8], out: &mut Vec<u8>) {
    let line = buf.split(|byte| *byte == b'\r').next().unwrap_or_default();
    out.extend_from_slice(b"HTTP/1.1");
    out.extend_from_slice(line.get(8..).unwrap_or_default());
    out.extend_from_slice(b"\r\n");
}

fn header(name: &str, value: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn framing(framing: BodyFraming, out: &mut Vec<u8>) {
    match framing {
        // Writing to a Vec does not fail.
        BodyFraming::Length(bytes) => drop(write!(out, "Content-Length: {bytes}\r\n")),
        BodyFraming::Chunked => out.extend_from_slice(b"Transfer-Encoding: chunked\r\n"),
        BodyFraming::None | BodyFraming::UntilClose => {}
    }
}

#[cfg(test)]
mod tests {
    use crate::{HeadLimits, Method};

    use super::*;

    const ORIGIN: ClientOrigin<'_> =
        ClientOrigin { client: "192.0.2.7", tls: true, authority: "10.0.0.21:8080", upgrade: None };

    fn forwarded(text: &str) -> String {
        let head = RequestHead::parse(text.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        let mut out = Vec::new();
        request(&head, text.as_bytes(), &ORIGIN, &mut out);
        // The forwarded head must itself be a request with the same end.
        let again = RequestHead::parse(&out, &HeadLimits::default()).unwrap().unwrap();
        assert_eq!(again.framing(), head.framing());
        String::from_utf8(out).unwrap()
    }

    fn answered(text: &str, method: Method, terms: ResponseTerms) -> String {
        let head = ResponseHead::parse(text.as_bytes(), &HeadLimits::default(), method);
        let mut out = Vec::new();
        response(&head.unwrap().unwrap(), text.as_bytes(), terms, &mut out);
        String::from_utf8(out).unwrap()
    }

    const KEEP: ResponseTerms = ResponseTerms { http10: false, keep_alive: true };

    #[test]
    fn a_request_loses_its_hop_and_gains_its_origin() {
        let text = "GET /a?b=1 HTTP/1.1\r\nHost: objects.example:8443\r\nAccept: */*\r\n\
                    Connection: keep-alive, X-Hop\r\nKeep-Alive: 5\r\nX-Hop: 1\r\nTE: trailers\r\n\
                    HTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\
                    X-Forwarded-For: 203.0.113.1\r\nX-Forwarded-Proto: gopher\r\n\
                    x-forwarded-for: 203.0.113.2\r\nUpgrade: h2c\r\n\r\n";
        assert_eq!(
            forwarded(text),
            "GET /a?b=1 HTTP/1.1\r\nHost: objects.example:8443\r\nAccept: */*\r\n\
             X-Forwarded-For: 203.0.113.1, 203.0.113.2, 192.0.2.7\r\n\
             X-Forwarded-Proto: https\r\nX-Forwarded-Host: objects.example:8443\r\n\r\n"
        );
    }

    #[test]
    fn bodies_are_framed_anew() {
        let chunked = forwarded("PUT /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        assert!(chunked.ends_with("\r\nTransfer-Encoding: chunked\r\n\r\n"), "{chunked}");
        let length = forwarded(
            "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        );
        assert_eq!(length.matches("Content-Length").count(), 1);
        assert!(length.contains("\r\nExpect: 100-continue\r\n"), "{length}");
    }

    #[test]
    fn a_nominated_length_or_host_is_not_lost() {
        let text = "PUT /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\
                    Connection: content-length, host\r\n\r\n";
        let out = forwarded(text);
        assert!(out.contains("Host: a\r\n") && out.contains("Content-Length: 5\r\n"), "{out}");
    }

    #[test]
    fn absolute_form_and_http10_become_ordinary_requests() {
        let absolute =
            forwarded("GET http://objects.example/a HTTP/1.1\r\nHost: objects.example\r\n\r\n");
        assert!(absolute.starts_with("GET /a HTTP/1.1\r\nHost: objects.example\r\n"));
        let old = forwarded("GET /a HTTP/1.0\r\n\r\n");
        assert!(old.starts_with("GET /a HTTP/1.1\r\nHost: 10.0.0.21:8080\r\n"), "{old}");
    }

    #[test]
    fn a_response_loses_its_hop() {
        let text = "HTTP/1.0 200 Fine indeed\r\nServer: x\r\nConnection: keep-alive, X-Hop\r\n\
                    X-Hop: 1\r\nContent-Length: 3\r\n\r\nabc";
        assert_eq!(
            answered(text, Method::Get, KEEP),
            "HTTP/1.1 200 Fine indeed\r\nServer: x\r\nContent-Length: 3\r\n\r\n"
        );
        let old = ResponseTerms { http10: true, keep_alive: true };
        assert!(answered(text, Method::Get, old).ends_with("Connection: keep-alive\r\n\r\n"));
        let close = ResponseTerms { keep_alive: false, ..KEEP };
        assert!(answered(text, Method::Get, close).ends_with("Connection: close\r\n\r\n"));
    }

    #[test]
    fn a_length_is_information_where_there_is_no_body() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(answered(head, Method::Head, KEEP), head);
        let cached = "HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(answered(cached, Method::Get, KEEP), cached);
        let empty = "HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(answered(empty, Method::Get, KEEP), "HTTP/1.1 204 No Content\r\n\r\n");
    }

    #[test]
    fn an_old_client_gets_no_chunks() {
        let text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let old = ResponseTerms { http10: true, keep_alive: false };
        assert_eq!(
            answered(text, Method::Get, old),
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
        );
        assert_eq!(answered(text, Method::Get, KEEP), text);
    }
}
