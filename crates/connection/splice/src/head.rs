//! Heads of responses that a server's host may send to a client before the balancer has seen them.
//!
//! Such a head goes to the client as the server wrote it, so it must be one that a proxy could have
//! written. The balancer and the server's host come to the same conclusion from the same bytes: the
//! program of the host (`bpf/response_head.h` in the crate `unlade-steering`) is tested against
//! [`fit`].

use crate::segment::LENGTH_BYTES_MAX;

/// Most bytes of such a head.
pub const HEAD_BYTES_MAX: usize = 1024;
/// Most digits of a length.
const DIGITS_MAX: usize = 10;
/// Bytes of a status line's start.
const STATUS_BYTES: usize = 13;

/// A head that is fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// 200 or 206.
    pub status: u16,
    /// Bytes of the head, with the empty line.
    pub head_bytes: u32,
    /// Bytes of the body.
    pub body_bytes: u32,
}

impl Head {
    /// Returns the bytes of the response.
    pub fn response_bytes(&self) -> u32 {
        self.head_bytes + self.body_bytes
    }
}

/// Returns the head at the start of a response to a GET if the client may get it unchanged:
/// - its status is 200 or 206, of HTTP/1.1;
/// - one Content-Length delimits the body, and nothing else does (RFC 9112 §6.3);
/// - no field is of one hop (RFC 9110 §7.6.1), except a Connection that is `keep-alive`: both
///   connections go on;
/// - it is whole, within [`HEAD_BYTES_MAX`] bytes, has visible characters, spaces and tabs only,
///   and names of letters, digits, `-` and `_`.
pub fn fit(bytes: &[u8]) -> Option<Head> {
    let bytes = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let mut lines = Lines(&bytes[..end]);
    let status = lines.next()?;
    if !matches!(status.get(..STATUS_BYTES)?, b"HTTP/1.1 200 " | b"HTTP/1.1 206 ")
        || !status.iter().copied().all(is_of_value)
    {
        return None;
    }
    let mut body_bytes = None;
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || !name.iter().copied().all(is_of_name) {
            return None;
        }
        if !value.iter().copied().all(is_of_value) {
            return None;
        }
        let start = value.iter().position(|byte| !matches!(byte, b' ' | b'\t'));
        let value = start.map_or(&[][..], |start| &value[start..]);
        match name.to_ascii_lowercase().as_slice() {
            b"content-length" if body_bytes.is_some() => return None,
            b"content-length" => body_bytes = Some(length(value)?),
            b"connection" if value.eq_ignore_ascii_case(b"keep-alive") => {}
            b"connection" | b"keep-alive" | b"te" | b"transfer-encoding" | b"upgrade" => {
                return None;
            }
            name if name.starts_with(b"proxy-") => return None,
            _ => {}
        }
    }
    let (head_bytes, body_bytes) = (end as u32 + 4, body_bytes?);
    let is_short = u64::from(head_bytes) + body_bytes <= u64::from(LENGTH_BYTES_MAX);
    let is_part = status.starts_with(b"HTTP/1.1 206");
    let status = if is_part { 206 } else { 200 };
    is_short.then_some(Head { status, head_bytes, body_bytes: body_bytes as u32 })
}

/// Lines, without the ends of lines.
struct Lines<'b>(&'b [u8]);

impl<'b> Iterator for Lines<'b> {
    type Item = &'b [u8];

    fn next(&mut self) -> Option<&'b [u8]> {
        if self.0.is_empty() {
            return None;
        }
        let end = self.0.windows(2).position(|two| two == b"\r\n");
        let (line, rest) =
            end.map_or((self.0, &[][..]), |end| (&self.0[..end], &self.0[end + 2..]));
        self.0 = rest;
        Some(line)
    }
}

fn is_of_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_')
}

fn is_of_value(byte: u8) -> bool {
    matches!(byte, b' '..=b'~' | b'\t')
}

fn length(value: &[u8]) -> Option<u64> {
    let is_number = (1..=DIGITS_MAX).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
    is_number.then(|| value.iter().fold(0, |n, digit| n * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(head: &str) -> Option<u32> {
        let found = fit(format!("{head}\r\n\r\nbody").as_bytes())?;
        assert_eq!(found.head_bytes as usize, head.len() + 4);
        Some(found.body_bytes)
    }

    #[test]
    fn a_head_of_a_server_is_fit() {
        let nginx = "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Thu, 26 Nov 2026 01:00:00 GMT\
                     \r\nContent-Type: text/plain\r\nContent-Length: 65536\r\nConnection: keep-alive\
                     \r\nETag: \"65a-1\"\r\nAccept-Ranges: bytes";
        assert_eq!(body(nginx), Some(65536));
        let part = "HTTP/1.1 206 Partial Content\r\nconnection:Keep-Alive\r\ncontent-length:\t 7\r\n\
                    Content-Range: bytes 1-7/9\r\nEmpty:";
        assert_eq!(body(part), Some(7));
        let whole = format!("{part}\r\n\r\n");
        assert_eq!(fit(whole.as_bytes()).map(|head| head.status), Some(206));
        assert_eq!(body("HTTP/1.1 200 OK\r\nContent-Length: 0"), Some(0));
    }

    #[test]
    fn other_heads_are_not() {
        let with = |field: &str| body(&format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n{field}"));
        assert_eq!(with("A: b"), Some(5));
        for field in [
            "Connection: close",
            "Connection: keep-alive, A",
            "Connection: keep-alive ",
            "Keep-Alive: timeout=5",
            "Transfer-Encoding: chunked",
            "Upgrade: h2c",
            "TE: trailers",
            "Proxy-Authenticate: Basic",
            "proxy-connection: keep-alive",
            "Content-Length: 5",
            "A : b",
            " folded",
            ": b",
            "no colon",
            "A: \u{1}",
            "A: \rb",
            "A: \nb",
            "B@: b",
            "A: caf\u{e9}",
        ] {
            assert_eq!(with(field), None, "{field:?}");
        }
        for status in ["HTTP/1.0 200 OK", "HTTP/1.1 204 OK", "HTTP/1.1 404 OK", "HTTP/1.1 200"] {
            assert_eq!(body(&format!("{status}\r\nContent-Length: 5")), None, "{status}");
        }
        for length in ["", " ", "x", "-1", "5 ", "5, 5", "00000000001", "1073741824"] {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}");
            assert_eq!(body(&head), None, "{length:?}");
        }
        assert_eq!(body("HTTP/1.1 200 OK\r\nServer: x"), None, "no length");
        assert_eq!(body("HTTP/1.1 200 OK"), None);
    }

    #[test]
    fn a_head_is_whole_and_has_a_most_length() {
        let filled = |bytes: usize| {
            let start = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nA: ";
            let fill = "b".repeat(bytes - start.len() - 4);
            format!("{start}{fill}\r\n\r\n").into_bytes()
        };
        let longest = filled(HEAD_BYTES_MAX);
        let head = Head { status: 200, head_bytes: HEAD_BYTES_MAX as u32, body_bytes: 5 };
        assert_eq!(fit(&longest), Some(head));
        assert_eq!(fit(&filled(HEAD_BYTES_MAX + 1)), None);
        (0..longest.len()).for_each(|count| assert_eq!(fit(&longest[..count]), None));
    }
}
