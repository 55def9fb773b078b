//! Frames that are decoded mean what was encoded, and others are refused.

use super::*;
use proptest::prelude::*;

fn any_frame() -> impl Strategy<Value = Frame> {
    let id = || any::<u64>().prop_map(ConnectionId);
    let epoch = || any::<u32>().prop_map(Epoch);
    let blob = proptest::collection::vec(any::<u8>(), 0..300);
    let sealed = proptest::collection::vec(any::<u8>(), 0..DELEGATION_BYTES_MAX);
    let request = proptest::collection::vec(any::<u8>(), 0..300);
    let text = "[a-z/.]{0,20}";
    let terms = (any::<u32>(), any::<u32>(), any::<u32>()).prop_map(|(a, b, c)| Terms {
        scope: a,
        requests_max: b,
        idle_return_ms: c,
    });
    let usage = (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(a, b, c)| Usage {
        requests: a,
        sent_bytes: b,
        received_bytes: c,
    });
    let members = proptest::collection::vec((text, any::<u16>()), 0..4);
    let ring = proptest::option::of((members, any::<u16>()));
    let excluded = proptest::collection::vec(text, 0..4);
    prop_oneof![
        (text, any::<[u8; 6]>(), any::<u32>(), any::<u64>()).prop_map(
            |(name, mac, lease_ms, instance)| {
                Frame::Hello { version: PROTOCOL_VERSION, instance, name, mac, lease_ms }
            }
        ),
        proptest::collection::vec((id(), epoch()), 0..9).prop_map(Frame::Owned),
        (any::<u32>(), text, excluded.clone(), text, excluded, ring).prop_map(
            |(id, host, excluded_hosts, prefix, excluded, ring)| {
                Frame::Scope(Scope { id, host, excluded_hosts, prefix, excluded, ring })
            }
        ),
        (id(), epoch(), terms, blob.clone()).prop_map(|(id, epoch, terms, snapshot)| {
            Frame::Offer { id, epoch, terms, snapshot: snapshot.into() }
        }),
        (id(), epoch(), any::<[u32; 3]>()).prop_map(|(id, epoch, [a, b, c])| {
            Frame::Ready { id, epoch, restore_tcp_ns: a, restore_tls_ns: b, held_ns: c }
        }),
        (id(), epoch(), proptest::sample::select(RefuseReason::ALL))
            .prop_map(|(id, epoch, reason)| Frame::Refuse { id, epoch, reason }),
        (id(), epoch()).prop_map(|(id, epoch)| Frame::Recall { id, epoch }),
        (id(), epoch()).prop_map(|(id, epoch)| Frame::Abandon { id, epoch }),
        (id(), epoch(), any::<u32>(), blob.clone()).prop_map(|(id, epoch, at_bytes, bytes)| {
            Frame::Unread { id, epoch, at_bytes, bytes: bytes.into() }
        }),
        (
            (id(), epoch(), proptest::sample::select(ReturnReason::ALL), usage.clone()),
            (any::<u32>(), blob)
        )
            .prop_map(|((id, epoch, reason, usage), (unread_bytes, snapshot))| {
                let snapshot = snapshot.into();
                Frame::Return { id, epoch, reason, usage, unread_bytes, snapshot }
            }),
        (id(), epoch(), proptest::sample::select(CloseReason::ALL), usage)
            .prop_map(|(id, epoch, reason, usage)| Frame::Closed { id, epoch, reason, usage }),
        any::<u64>().prop_map(Frame::Ping),
        any::<u64>().prop_map(Frame::Pong),
        Just(Frame::Drain),
        any::<[u8; 32]>()
            .prop_map(|key| Frame::Sealing { version: SEALING_VERSION, key: key.to_vec().into() }),
        (any::<[u8; 4]>(), any::<[u8; 16]>(), any::<u16>(), sealed, request).prop_map(
            |(client, service, port, delegation, request)| Frame::Seal {
                is_apart: port % 2 == 1,
                client: (client, port).into(),
                service: (service, !port).into(),
                delegation: delegation.into(),
                request: request.into(),
            }
        ),
    ]
}

proptest! {
    #[test]
    fn frames_survive_any_split(
        frames in proptest::collection::vec(any_frame(), 1..6), chunk in 1usize..64,
    ) {
        let mut bytes = Vec::new();
        frames.iter().for_each(|frame| frame.encode(&mut bytes));
        let mut deframer = Deframer::default();
        let mut seen = Vec::new();
        for part in bytes.chunks(chunk) {
            deframer.push(part);
            while let Some(frame) = deframer.next_frame().unwrap() {
                seen.push(frame);
            }
        }
        prop_assert_eq!(seen, frames);
    }

    #[test]
    fn hostile_bytes_never_panic(kind in 0u8..20, body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = Vec::new();
        bytes.put_u32(body.len() as u32 + 1);
        bytes.put_u8(kind);
        bytes.extend_from_slice(&body);
        let _ = Frame::decode(&bytes);
        let _ = Frame::decode(&body);
    }
}

#[test]
fn an_announced_giant_is_refused_before_it_is_read() {
    let error = Frame::decode(&[0xff, 0xff, 0xff, 0xff]).unwrap_err();
    assert!(matches!(error, DecodeError::TooLong { what: "frame", .. }));
}
