//! Rules of direct return.

use unlade_net::{FlowKey, SeqNumber};
use unlade_splice::Rule;
use unlade_splice::datagram::{Datagram, Grant, Key, TAG_AT, decode, encode, sealed};

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
                rule: Rule { end: None, clock: Some((9, 8)), ..rule },
                grant: None,
            },
        ),
    ]
    .map(|(name, datagram)| (name, encode(&datagram, &KEY).to_vec()))
}
