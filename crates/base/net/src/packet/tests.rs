//! Written packets are read back; malformed packets are handled without panics.

use std::net::{IpAddr, SocketAddr};

use proptest::prelude::*;

use super::*;
use crate::{FlowKey, SeqNumber};

/// SYN-ACK from 10.0.0.2:80 to 10.0.0.1:40000 with the options of Linux: MSS 1460, SACK permitted,
/// timestamps, window scale 7.
const SYN_ACK: &str = "02000000000102000000000208004500003c0000400040\
                       0626ba0a0000020a00000100509c4012345678aabbccdda012fe88\
                       0000000002\
                       0405b40402080a0102030405060708010303 07";

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

#[test]
fn a_frame_from_linux_is_parsed() {
    let frame = hex(SYN_ACK);
    let ethernet = EthernetView::new(&frame).unwrap();
    assert_eq!(ethernet.destination(), [2, 0, 0, 0, 0, 1]);
    assert_eq!((ethernet.ether_type(), ethernet.vlan()), (ETHER_TYPE_IPV4, None));
    let ip = Ipv4View::new(ethernet.payload()).unwrap();
    assert!(ip.checksum_ok() && ip.dont_fragment() && !ip.is_fragment());
    assert_eq!((ip.ttl(), ip.options()), (64, &[][..]));
    let tcp = TcpView::new(ip.payload()).unwrap();
    let options: Vec<_> = tcp.options().collect();
    let due = [
        TcpOption::Mss(1460),
        TcpOption::SackPermitted,
        TcpOption::Timestamps { value: 0x0102_0304, echo: 0x0506_0708 },
        TcpOption::WindowScale(7),
    ];
    assert_eq!(options, due);
    let found = classify(&frame).unwrap();
    assert_eq!(found.flow.client, "10.0.0.2:80".parse().unwrap());
    assert_eq!(found.flow.service, "10.0.0.1:40000".parse().unwrap());
    assert_eq!(found.flags, TcpFlags::SYN | TcpFlags::ACK);
    assert_eq!((found.seq, found.ack), (SeqNumber(0x1234_5678), SeqNumber(0xaabb_ccdd)));
    assert_eq!((found.payload_bytes, found.sequence_bytes()), (0, 1));
    assert_eq!(FlowKey::of_frame(&frame), Some(found.flow));
}

#[test]
fn tags_options_and_padding_are_skipped() {
    let plain = hex(SYN_ACK);
    let tagged = [&plain[..12], &[0x81, 0, 0x20, 5], &plain[12..], &[0; 9]].concat();
    let found = classify(&tagged).unwrap();
    assert_eq!(found.flow, classify(&plain).unwrap().flow);
    assert_eq!(found.payload_bytes, 0);
    assert_eq!(EthernetView::new(&tagged).unwrap().vlan(), Some(0x2005));
    let mut optioned = [&plain[..34], &[1, 1, 1, 0], &plain[34..]].concat();
    optioned[14] = 0x46;
    optioned[17] += 4;
    assert_eq!(classify(&optioned).unwrap().flow, found.flow);
    let tag = [0x81, 0, 0, 1];
    let many = [&plain[..12], &tag, &tag, &tag, &plain[12..]].concat();
    assert!(matches!(EthernetView::new(&many), Err(PacketError::Unsupported(_))));
}

#[test]
fn fragments_and_other_protocols_are_not_classified() {
    let plain = hex(SYN_ACK);
    let edited = |at: usize, byte: u8| {
        let mut frame = plain.clone();
        frame[at] = byte;
        classify(&frame)
    };
    assert!(edited(14, 0x45).is_some());
    assert!(edited(20, 0x20).is_none(), "more fragments");
    assert!(edited(21, 0x01).is_none(), "a fragment's offset");
    assert!(edited(23, 17).is_none(), "UDP");
    assert!(edited(13, 0x06).is_none(), "ARP");
    assert!(edited(14, 0x65).is_none(), "another version than the frame states");
    assert!(edited(14, 0x44).is_none(), "a short header");
    assert!(edited(17, 0xff).is_none(), "more bytes than there are");
    assert!(edited(46, 0x40).is_none(), "a short TCP header");
    assert!(edited(46, 0xf0).is_none(), "a TCP header behind the end");
}

#[test]
fn extension_headers_are_skipped_as_far_as_they_can_be() {
    let flow = FlowKey::new("[fd00::1]:5".parse().unwrap(), "[fd00::2]:6".parse().unwrap());
    let packet = Segment::reset(flow, Direction::ToService, SeqNumber(9)).ip_packet().unwrap();
    let extended = |kind: u8, chain: &[u8]| {
        let mut packet = [&packet[..40], chain, &packet[40..]].concat();
        packet[6] = kind;
        let payload = (packet.len() - 40) as u16;
        packet[4..6].copy_from_slice(&payload.to_be_bytes());
        Ipv6View::new(packet).map(|view| (view.protocol(), view.payload().to_vec()))
    };
    let pad = [60, 0, 1, 4, 0, 0, 0, 0];
    let last = [PROTOCOL_TCP, 0, 1, 4, 0, 0, 0, 0];
    let due = Ok((PROTOCOL_TCP, packet[40..].to_vec()));
    assert_eq!(extended(PROTOCOL_TCP, &[]), due);
    assert_eq!(extended(0, &last), due);
    assert_eq!(extended(43, &[pad, pad, pad, last].concat()), due);
    let many = extended(0, &[pad, pad, pad, pad, last].concat());
    assert!(matches!(many, Err(PacketError::Unsupported(_))));
    assert_eq!(extended(44, &last), Err(PacketError::Unsupported("an IPv6 fragment")));
    assert!(matches!(extended(0, &[6, 200, 0, 0, 0, 0, 0, 0]), Err(PacketError::Truncated(_))));
}

#[test]
fn a_stray_segment_is_answered_by_the_reset_of_rfc_9293() {
    let flow = FlowKey::new("10.0.0.1:5".parse().unwrap(), "10.0.0.2:6".parse().unwrap());
    let stray = |flags, payload: &[u8]| {
        let mut segment = Segment::reset(flow, Direction::ToService, SeqNumber(u32::MAX));
        (segment.flags, segment.ack) = (flags, SeqNumber(77));
        let packet = Segment { payload, ..segment }.ip_packet().unwrap();
        let reset = Segment::reset_answering(&classify_ip(&packet).unwrap())?;
        Some((reset.flags, reset.seq, reset.ack, reset.direction))
    };
    let to_client = Direction::ToClient;
    let answer = stray(TcpFlags::ACK, b"data");
    assert_eq!(answer, Some((TcpFlags::RST, SeqNumber(77), SeqNumber(0), to_client)));
    let answer = stray(TcpFlags::SYN, b"");
    let due = (TcpFlags::RST | TcpFlags::ACK, SeqNumber(0), SeqNumber(0), to_client);
    assert_eq!(answer, Some(due));
    assert_eq!(stray(TcpFlags::RST | TcpFlags::ACK, b""), None);
}

#[test]
fn oversized_payloads_are_refused() {
    let flow = FlowKey::new("10.0.0.1:5".parse().unwrap(), "10.0.0.2:6".parse().unwrap());
    let payload = vec![0; 65_536];
    let of = |bytes: usize| Segment {
        payload: &payload[..bytes],
        ..Segment::reset(flow, Direction::ToClient, SeqNumber(0))
    };
    assert_eq!(of(65_535 - 40).ip_packet().unwrap().len(), 65_535);
    assert_eq!(of(65_535 - 39).ip_packet(), Err(PacketError::TooLong { bytes: 65_516 }));
    let mixed = FlowKey { client: "[::1]:1".parse().unwrap(), ..flow };
    let segment = Segment::reset(mixed, Direction::ToClient, SeqNumber(0));
    assert_eq!(segment.ip_packet(), Err(PacketError::MixedFamilies));
}

fn addresses() -> impl Strategy<Value = (IpAddr, IpAddr)> {
    prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (a.into(), b.into())),
        any::<([u8; 15], [u8; 15])>().prop_map(|(a, b)| {
            // A first byte that is not zero: not an IPv4-mapped address.
            let of = |rest: [u8; 15]| {
                let mut bytes = [0xfd; 16];
                bytes[1..].copy_from_slice(&rest);
                IpAddr::from(bytes)
            };
            (of(a), of(b))
        }),
    ]
}

prop_compose! {
    fn tcp_repr()(
        ports: (u16, u16), seq: u32, ack: u32, flags: u8, window: u16, urgent: u16,
        options: (Option<u16>, Option<u8>, bool, Option<(u32, u32)>),
    ) -> TcpRepr {
        TcpRepr {
            source_port: ports.0,
            destination_port: ports.1,
            seq: SeqNumber(seq),
            ack: SeqNumber(ack),
            flags: TcpFlags(flags),
            window,
            urgent,
            options: TcpOptions {
                mss: options.0,
                window_scale: options.1,
                sack_permitted: options.2,
                timestamps: options.3,
            },
        }
    }
}

proptest! {
    #[test]
    fn ethernet_is_read_back(
        destination: [u8; 6], source: [u8; 6], vlan: Option<u16>,
        ether_type in any::<u16>().prop_filter("a tag", |t| ![0x8100, 0x88a8].contains(t)),
    ) {
        let repr = EthernetRepr { destination, source, vlan, ether_type };
        let mut out = Vec::new();
        repr.emit(&mut out);
        let view = EthernetView::new(&out).unwrap();
        prop_assert_eq!(view.header_bytes(), out.len());
        prop_assert_eq!(EthernetRepr::parse(&view), repr);
    }

    #[test]
    fn ipv4_is_read_back(
        source: [u8; 4], destination: [u8; 4], protocol: u8, ttl: u8, tos: u8, ident: u16,
        dont_fragment: bool, payload_bytes in 0usize..200,
    ) {
        let repr = Ipv4Repr {
            source: source.into(), destination: destination.into(),
            protocol, ttl, tos, ident, dont_fragment, payload_bytes,
        };
        let mut out = Vec::new();
        repr.emit(&mut out).unwrap();
        out.resize(20 + payload_bytes + 3, 0);
        let view = Ipv4View::new(&out).unwrap();
        prop_assert!(view.checksum_ok());
        prop_assert_eq!(view.payload().len(), payload_bytes);
        prop_assert_eq!(Ipv4Repr::parse(&view), Ok(repr));
    }

    #[test]
    fn ipv6_is_read_back(
        source: [u8; 16], destination: [u8; 16], hop_limit: u8, traffic_class: u8,
        protocol in any::<u8>().prop_filter("an extension", |p| ![0, 43, 44, 60].contains(p)),
        flow_label in 0u32..1 << 20, payload_bytes in 0usize..200,
    ) {
        let repr = Ipv6Repr {
            source: source.into(), destination: destination.into(),
            protocol, hop_limit, traffic_class, flow_label, payload_bytes,
        };
        let mut out = Vec::new();
        repr.emit(&mut out).unwrap();
        out.resize(40 + payload_bytes + 3, 0);
        let view = Ipv6View::new(&out).unwrap();
        prop_assert_eq!(view.payload().len(), payload_bytes);
        prop_assert_eq!(Ipv6Repr::parse(&view), repr);
    }

    #[test]
    fn tcp_is_read_back_with_a_right_checksum(
        repr in tcp_repr(), (source, destination) in addresses(),
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let mut out = Vec::new();
        repr.emit(source, destination, &payload, &mut out);
        let view = TcpView::new(&out).unwrap();
        prop_assert!(view.checksum_ok(source, destination));
        prop_assert_eq!(view.payload(), &payload[..]);
        prop_assert_eq!(TcpRepr::parse(&view), repr);
        // The checksum detects any single-bit error.
        let bit = (repr.seq.0 as usize) % (out.len() * 8);
        out[bit / 8] ^= 1 << (bit % 8);
        prop_assert_ne!(transport_checksum(source, destination, &out), 0);
    }

    #[test]
    fn a_segment_is_classified_as_the_flow_it_was_made_of(
        repr in tcp_repr(), (client, service) in addresses(), to_service: bool,
        payload in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let flow = FlowKey::new(
            SocketAddr::new(client, repr.source_port), SocketAddr::new(service, repr.destination_port),
        );
        let direction = if to_service { Direction::ToService } else { Direction::ToClient };
        let segment = Segment {
            flow, direction, seq: repr.seq, ack: repr.ack, flags: repr.flags,
            window: repr.window, options: repr.options, payload: &payload,
        };
        let frame = segment.ethernet_frame([2; 6], [4; 6]).unwrap();
        let found = classify(&frame).unwrap();
        let seen = match to_service {
            true => flow,
            false => FlowKey { client: flow.service, service: flow.client },
        };
        prop_assert_eq!(found.flow, seen);
        prop_assert_eq!((found.seq, found.ack, found.flags), (repr.seq, repr.ack, repr.flags));
        prop_assert_eq!(&frame[found.payload_at..], &payload[..]);
        prop_assert_eq!(found.payload_bytes, payload.len());
        let ip = EthernetView::new(&frame).unwrap().payload().to_vec();
        prop_assert_eq!(segment.ip_packet().unwrap(), ip);
    }

    #[test]
    fn hostile_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..120), shape in 0usize..4,
    ) {
        // Some lengths are correct, so that the inner headers are parsed.
        let base = hex(SYN_ACK);
        let kept = [0, 14, 24, 34][shape].min(bytes.len());
        bytes[..kept].copy_from_slice(&base[..kept]);
        let _ = classify(&bytes);
        let _ = classify_ip(&bytes);
        if let Ok(view) = TcpView::new(&bytes) {
            let _ = (TcpRepr::parse(&view), view.options().count());
        }
        if let Ok(view) = Ipv4View::new(&bytes) {
            let _ = (Ipv4Repr::parse(&view), view.checksum_ok(), view.options());
        }
        if let Ok(view) = Ipv6View::new(&bytes) {
            let _ = (Ipv6Repr::parse(&view), view.payload());
        }
    }

    #[test]
    fn truncated_frames_are_not_classified(cut in 0usize..74) {
        let frame = hex(SYN_ACK);
        prop_assert_eq!(frame.len(), 74);
        prop_assert!(classify(&frame[..cut]).is_none());
    }
}
