//! Decides which changes of protocol pass through this proxy (RFC 9110 §7.8). Sans-IO.
//!
//! `Upgrade` is a field of one hop: it is never passed on unchanged. Of the protocols that a
//! client offers, those that the route allows are offered to the server in one new field. The rest
//! is dropped; without an offer the server answers in HTTP/1.1. HTTP/2 is never allowed: requests
//! inside an upgraded connection would pass this proxy unread (RFC 9113 §3.1 has withdrawn it).

use unlade_http::{BodyFraming, RequestHead, ResponseHead};

/// Most bytes of the protocols offered to a server.
const OFFER_BYTES_MAX: usize = 256;
/// Protocols that no route can allow: each carries further requests of HTTP.
const HTTP: [&str; 4] = ["h2c", "h2", "h3", "http"];

/// Returns the protocols that a client's request may change to, as they are offered to the server;
/// `None` if it is to be answered in HTTP/1.1. `allowed` contains names in lower case.
///
/// A request with a body cannot change the protocol: the end of its body would depend on the
/// response.
pub(crate) fn offer(head: &RequestHead, buf: &[u8], allowed: &[String]) -> Option<String> {
    if !head.is_upgrade() || head.framing() != BodyFraming::None {
        return None;
    }
    let mut values = head.headers(buf).filter(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
    let (Some((_, value)), None) = (values.next(), values.next()) else { return None };
    let mut offered = String::new();
    for protocol in protocols(value)? {
        let name = name_of(protocol).to_ascii_lowercase();
        if is_http(&name) || !allowed.contains(&name) {
            continue;
        }
        if !offered.is_empty() {
            offered.push_str(", ");
        }
        offered.push_str(protocol);
    }
    (!offered.is_empty() && offered.len() <= OFFER_BYTES_MAX).then_some(offered)
}

/// Returns the protocol that a 101 changes to: exactly one, which was `offered`.
pub(crate) fn chosen<'b>(head: &ResponseHead, buf: &'b [u8], offered: &str) -> Option<&'b str> {
    let mut values = head.headers(buf).filter(|(name, _)| name.eq_ignore_ascii_case("upgrade"));
    let (Some((_, value)), None) = (values.next(), values.next()) else { return None };
    let mut names = protocols(value)?;
    let (Some(chosen), None) = (names.next(), names.next()) else { return None };
    let mut known = protocols(offered.as_bytes())?;
    known.any(|protocol| protocol.eq_ignore_ascii_case(chosen)).then_some(chosen)
}

/// Returns true for a name that a route can allow; `text` is in lower case.
pub(crate) fn is_allowable(text: &str) -> bool {
    is_protocol(text) && !text.contains('/') && !is_http(text)
}

fn is_http(name: &str) -> bool {
    HTTP.contains(&name)
}

/// Returns the elements of a list of protocols; `None` if one of them is invalid.
fn protocols(value: &[u8]) -> Option<impl Iterator<Item = &str>> {
    let text = std::str::from_utf8(value).ok()?;
    let elements = text.split(',').map(|part| part.trim_matches([' ', '\t']));
    let elements = elements.filter(|part| !part.is_empty());
    elements.clone().all(is_protocol).then_some(elements)
}

/// `protocol-name ["/" protocol-version]`, both tokens.
fn is_protocol(text: &str) -> bool {
    let token = |part: &str| {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        !part.is_empty() && part.bytes().all(is_token)
    };
    match text.split_once('/') {
        None => token(text),
        Some((name, version)) => token(name) && token(version),
    }
}

fn name_of(protocol: &str) -> &str {
    protocol.split_once('/').map_or(protocol, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use unlade_http::{HeadLimits, Method};

    use super::*;

    fn offered(fields: &str, allowed: &[&str]) -> Option<String> {
        let text = format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let head = RequestHead::parse(text.as_bytes(), &HeadLimits::default()).unwrap().unwrap();
        let allowed: Vec<String> = allowed.iter().map(|&name| name.to_owned()).collect();
        offer(&head, text.as_bytes(), &allowed)
    }

    #[test]
    fn only_what_the_route_allows_is_offered() {
        let websocket = &["websocket"][..];
        for (fields, expected) in [
            ("Connection: Upgrade\r\nUpgrade: websocket\r\n", Some("websocket")),
            ("Connection: keep-alive, upgrade\r\nUpgrade: WebSocket\r\n", Some("WebSocket")),
            ("Connection: Upgrade\r\nUpgrade: h2c, websocket, IRC/6.9\r\n", Some("websocket")),
            ("Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n", None),
            ("Connection: Upgrade\r\nUpgrade: H2C\r\n", None),
            // Not asked for of this hop, twice, with a body, or no list of protocols.
            ("Upgrade: websocket\r\n", None),
            ("Connection: Upgrade\r\n", None),
            ("Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: websocket\r\n", None),
            ("Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 3\r\n", None),
            ("Connection: Upgrade\r\nUpgrade: websocket\r\nTransfer-Encoding: chunked\r\n", None),
            ("Connection: Upgrade\r\nUpgrade: web socket\r\n", None),
            ("Connection: Upgrade\r\nUpgrade: websocket/\r\n", None),
        ] {
            assert_eq!(offered(fields, websocket).as_deref(), expected, "{fields}");
        }
        let two = "Connection: Upgrade\r\nUpgrade: spdy/3.1, tls-foo, websocket\r\n";
        assert_eq!(offered(two, &["spdy", "websocket"]).unwrap(), "spdy/3.1, websocket");
        assert_eq!(offered(two, &[]), None);
        // Not even if the route allows it.
        assert_eq!(offered("Connection: Upgrade\r\nUpgrade: h2c\r\n", &["h2c"]), None);
    }

    #[test]
    fn a_server_changes_to_one_protocol_that_was_offered() {
        let answered = |fields: &str| {
            let text = format!("HTTP/1.1 101 Switching Protocols\r\n{fields}\r\n");
            let head = ResponseHead::parse(text.as_bytes(), &HeadLimits::default(), Method::Get);
            let head = head.unwrap().unwrap();
            chosen(&head, text.as_bytes(), "spdy/3.1, websocket").map(str::to_owned)
        };
        assert_eq!(answered("Upgrade: WebSocket\r\n").unwrap(), "WebSocket");
        assert_eq!(answered("Upgrade: spdy/3.1\r\n").unwrap(), "spdy/3.1");
        for bad in [
            "",
            "Upgrade: h2c\r\n",
            "Upgrade: spdy/4\r\n",
            "Upgrade: websocket, spdy/3.1\r\n",
            "Upgrade: websocket\r\nUpgrade: websocket\r\n",
        ] {
            assert_eq!(answered(bad), None, "{bad}");
        }
    }

    #[test]
    fn no_route_can_allow_another_http() {
        for good in ["websocket", "irc", "tls-foo"] {
            assert!(is_allowable(good), "{good}");
        }
        for bad in ["h2c", "h2", "http", "", "web socket", "websocket/13"] {
            assert!(!is_allowable(bad), "{bad}");
        }
    }
}
