//! Rules of direct return, and heads of responses.

use unlade_http::{BodyFraming, HeadLimits, Method, ResponseHead};
use unlade_net::{FlowKey, SeqNumber};
use unlade_splice::Rule;
use unlade_splice::datagram::{Datagram, Grant, Key, TAG_AT, decode, encode, sealed};
use unlade_splice::head::{HEAD_BYTES_MAX, fit};

/// The key of the target and its seeds.
pub const KEY: Key = Key { number: 7, secret: [3; 16] };

/// A datagram with the right tag, whatever its content, means the same after it is encoded again;
/// with the tag that it came with it is refused, or the same.
pub fn splice_datagram(data: &[u8]) {
    let as_it_came = decode(data, &KEY);
    let Some(content) = data.first_chunk::<TAG_AT>() else {
        assert!(as_it_came.is_err());
        return;
    };
    let meant = decode(&sealed(content, &KEY), &KEY);
    if let Ok(datagram) = meant {
        assert_eq!(decode(&encode(&datagram, &KEY), &KEY), Ok(datagram));
    }
    assert!(as_it_came.is_err() || as_it_came == meant);
}

/// A head that a client may get unchanged means the same to the parser of responses, and does not
/// depend on the bytes behind it.
pub fn splice_head(data: &[u8]) {
    let Some(head) = fit(data) else { return };
    let bytes = head.head_bytes as usize;
    assert_eq!(fit(&data[..bytes]), Some(head));
    assert!(bytes <= HEAD_BYTES_MAX && fit(&data[..bytes - 1]).is_none());
    let parsed = ResponseHead::parse(data, &HeadLimits::default(), Method::Get);
    let parsed = parsed.expect("it is well formed").expect("it is whole");
    assert_eq!((parsed.head_bytes(), parsed.keep_alive()), (bytes, true));
    assert_eq!(parsed.framing(), BodyFraming::Length(head.body_bytes.into()));
    let hops: Vec<_> = parsed.headers(data).map(|(name, _)| name).collect();
    let is_forwarded = |name: &&str| !unlade_http::is_hop_by_hop(name);
    let is_kept = |name: &&str| name.eq_ignore_ascii_case("connection") || is_forwarded(name);
    assert!(hops.iter().all(is_kept), "{hops:?}");
}

/// Heads as servers write them.
pub(crate) const HEADS: [(&str, &[u8]); 2] = [
    (
        "nginx",
        b"HTTP/1.1 200 OK\r\nServer: nginx\r\nContent-Type: text/plain\r\nContent-Length: 4096\r\n\
          Connection: keep-alive\r\nETag: \"65a-1000\"\r\nAccept-Ranges: bytes\r\n\r\n",
    ),
    (
        "range",
        b"HTTP/1.1 206 Partial Content\r\ncontent-length:7\r\nContent-Range: bytes 1-7/9\r\n\r\n",
    ),
];

/// Datagrams of both families.
pub(crate) fn seeds() -> [(&'static str, Vec<u8>); 2] {
    let flow = |client: &str, service: &str| {
        FlowKey::new(client.parse().expect("an address"), service.parse().expect("an address"))
    };
    let rule = Rule {
        first: SeqNumber(1),
        end: Some(SeqNumber(4097)),
        request_end: SeqNumber(77),
        delta: 4_000_000_000,
        ack: SeqNumber(5),
        window: 501,
        clock: None,
        awaits_head: true,
    };
    [
        (
            "v4",
            Datagram {
                counter: 1,
                server: flow("10.0.0.2:51000", "10.0.0.3:8080"),
                client: flow("192.0.2.7:40000", "198.51.100.1:80"),
                rule,
                grant: Some(Grant { ack: SeqNumber(1), window: 44, timestamps: None }),
            },
        ),
        (
            "v6",
            Datagram {
                counter: u64::MAX,
                server: flow("[2001:db8::2]:51000", "[2001:db8::3]:8080"),
                client: flow("[2001:db8::7]:40000", "[2001:db8:1::1]:80"),
                rule: Rule { end: None, clock: Some((9, 8)), awaits_head: false, ..rule },
                grant: None,
            },
        ),
    ]
    .map(|(name, datagram)| (name, encode(&datagram, &KEY).to_vec()))
}
