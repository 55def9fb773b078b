//! Responses of the balancer itself.

use std::io::Write as _;

/// A response that refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// HTTP status.
    pub status: u16,
    /// One line for the client.
    pub why: &'static str,
}

impl Refusal {
    /// Creates a response with `status`.
    pub(crate) const fn new(status: u16, why: &'static str) -> Refusal {
        Refusal { status, why }
    }
}

/// Appends the complete response. `head_only`: the request was HEAD.
pub(crate) fn write(refusal: Refusal, keep_alive: bool, head_only: bool, out: &mut Vec<u8>) {
    let Refusal { status, why } = refusal;
    let connection = if keep_alive { "" } else { "Connection: close\r\n" };
    let extra = match status {
        405 => "Allow: GET, HEAD, PUT, POST, DELETE, OPTIONS, PATCH\r\n",
        503 => "Retry-After: 1\r\n",
        _ => "",
    };
    // Writing to a Vec does not fail.
    let _ = write!(
        out,
        "HTTP/1.1 {status} {}\r\nContent-Type: text/plain; charset=utf-8\r\n\
         Content-Length: {}\r\n{extra}{connection}\r\n",
        reason(status),
        why.len() + 1,
    );
    if !head_only {
        let _ = writeln!(out, "{why}");
    }
}

/// Returns the reason phrase of a status that this balancer sends.
fn reason(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Content Too Large",
        414 => "URI Too Long",
        417 => "Expectation Failed",
        431 => "Request Header Fields Too Large",
        501 => "Not Implemented",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole() {
        let mut out = Vec::new();
        write(Refusal::new(503, "no server"), false, false, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(
            text,
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\n\
             Content-Length: 10\r\nRetry-After: 1\r\nConnection: close\r\n\r\nno server\n"
        );
    }

    #[test]
    fn head_has_the_length_and_not_the_body() {
        let mut out = Vec::new();
        write(Refusal::new(404, "no route"), true, true, &mut out);
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("Content-Length: 9\r\n") && text.ends_with("\r\n\r\n"));
        assert!(!text.contains("Connection"));
    }

    #[test]
    fn every_status_of_the_parser_has_a_phrase() {
        for error in unlade_http::HeadError::ALL {
            assert_ne!(reason(error.status()), "Error");
        }
    }
}
