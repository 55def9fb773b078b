//! `host [":" port]`, strictly (RFC 9110 §7.2, RFC 3986 §3.2.2).

use std::net::Ipv6Addr;

/// Longest host name (RFC 1035 §2.3.4).
const HOST_BYTES_MAX: usize = 255;

/// Splits an authority into host and port; `None` if it is malformed.
///
/// Narrower than the generic syntax: no user information, no percent-encoding, no sub-delimiters,
/// no empty host, no empty port. None of these occurs in a host that resolves, and each has been
/// used to make two parties route one request differently.
pub(super) fn split(authority: &[u8]) -> Option<(&[u8], Option<u16>)> {
    let (host, rest) = match authority.strip_prefix(b"[") {
        Some(literal) => {
            let close = memchr::memchr(b']', literal)?;
            let address = core::str::from_utf8(&literal[..close]).ok()?;
            address.parse::<Ipv6Addr>().ok()?;
            authority.split_at_checked(close + 2)?
        }
        None => {
            let end = memchr::memchr(b':', authority).unwrap_or(authority.len());
            let (host, rest) = authority.split_at_checked(end)?;
            host.iter().all(|&byte| is_name_byte(byte)).then_some((host, rest))?
        }
    };
    if host.is_empty() || host.len() > HOST_BYTES_MAX {
        return None;
    }
    match rest.strip_prefix(b":") {
        Some(digits) => Some((host, Some(port(digits)?))),
        None => rest.is_empty().then_some((host, None)),
    }
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

fn port(digits: &[u8]) -> Option<u16> {
    if digits.is_empty() || digits.len() > 5 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    core::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn accepts_names_and_addresses() {
        assert_eq!(split(b"objects.lab"), Some((&b"objects.lab"[..], None)));
        assert_eq!(split(b"10.0.0.1:8080"), Some((&b"10.0.0.1"[..], Some(8080))));
        assert_eq!(split(b"[2001:db8::1]"), Some((&b"[2001:db8::1]"[..], None)));
        assert_eq!(split(b"[::1]:443"), Some((&b"[::1]"[..], Some(443))));
        assert_eq!(split(b"my_host~1-x"), Some((&b"my_host~1-x"[..], None)));
    }

    #[test]
    fn refuses_everything_else() {
        let long = [b'a'; 256];
        let refused: [&[u8]; 19] = [
            b"", b":80", b"a:", b"a:x", b"a:65536", b"a:+80", b"a:80:81", b"a b", b"user@a",
            b"a/b", b"a,b", b"a%20b", b"[::1", b"[::1]x", b"[]", b"[zz]", b"a\x00", b"::1", &long,
        ];
        for authority in refused {
            assert_eq!(split(authority), None, "{authority:?}");
        }
    }
}
