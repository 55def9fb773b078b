//! Frames of a peer, and of the kernel, through the engine with one connection under offload.

use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions, classify};
use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::Tls;
use unlade_nic_engine::tls::Version;
use unlade_nic_inline::device::Offer;
use unlade_nic_inline::device::engine::Engine;
use unlade_nic_inline::device::flow::Receiving;
use unlade_nic_inline::device::tx_records::{Content, SplitRecord};
use unlade_sys::vnet::VnetHeader;
use unlade_tls::device::Begin;

/// First sequence numbers of the streams of host and peer.
const HOST: u32 = u32::MAX - 200;
const PEER: u32 = u32::MAX - 300;
/// Bytes of a step before its content: kind, offset, length.
const STEP_BYTES: usize = 4;

/// A step of a script.
pub fn step(kind: u8, offset: u8, content: &[u8]) -> Vec<u8> {
    let [high, low] = (content.len() as u16).to_be_bytes();
    [&[kind, offset, high, low], content].concat()
}

fn name() -> FlowKey {
    let address = |text: &str| text.parse().expect("an address");
    FlowKey::new(address("10.9.0.1:443"), address("10.9.0.2:5000"))
}

fn frame(by_host: bool, flags: TcpFlags, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let direction = if by_host { Direction::ToService } else { Direction::ToClient };
    let (seq, ack, options) = (SeqNumber(seq), SeqNumber(ack), TcpOptions::default());
    let segment = Segment { flow: name(), direction, seq, ack, flags, window: 9, options, payload };
    segment.ethernet_frame([2; 6], [4; 6]).unwrap_or_default()
}

/// An announced record in the clear.
fn announced() -> Vec<u8> {
    let mut record = vec![23, 3, 3, 0, 60];
    record.extend([b'p'; 43]);
    record.push(23);
    record.extend([0; 16]);
    record
}

/// The same, with its content separate from header and tag.
fn announced_apart() -> SplitRecord {
    let mut head = announced();
    let mut content = head.split_off(5);
    let tail = content.split_off(43);
    SplitRecord::new((head.into(), tail.into()), Content::Memory(content.into()))
}

/// Frames from the wire are delivered unchanged or decrypted, at most once; the payload of the
/// connection never leaves in the clear.
pub fn inline_device(data: &[u8]) {
    let mut engine = Engine::new(false);
    let syn = frame(true, TcpFlags::SYN | TcpFlags::ACK, HOST - 1, PEER, &[]);
    let none = VnetHeader::default();
    engine.host_frame(0, &none, &mut syn.clone(), &mut |_: &VnetHeader, _: &[u8]| ());
    let state = || Tls::new(Version::Tls13, &[7; 16], [9; 12]).expect("a key of 16 bytes");
    let receiving = Receiving { tls: state(), offset: 0, number: 0, read: 0 };
    let (name, sending) = (name(), state());
    let begin = Begin::Seen;
    let offer = Offer { name, begin, sent_bytes: 0, sent_number: 0, sending, receiving };
    let flow = engine.table().create(0, offer).expect("the connection is known");
    flow.tx().push(announced().into()).expect("there is room");
    flow.tx().push_split(announced_apart()).expect("there is room");
    let mut rest = data;
    while let Some((&[kind, offset, high, low], behind)) = rest.split_first_chunk::<STEP_BYTES>() {
        let length = usize::from(u16::from_be_bytes([high, low])).min(behind.len());
        let (content, next) = behind.split_at(length);
        rest = next;
        let at = u32::from(offset);
        match kind % 5 {
            0 => up(&mut engine, content.to_vec()),
            1 => up(&mut engine, frame(false, TcpFlags::ACK, PEER.wrapping_add(at), HOST, content)),
            2 => down(&mut engine, content.to_vec()),
            3 => {
                let flags = TcpFlags(TcpFlags::ACK.0 | (kind & TcpFlags::FIN.0));
                down(&mut engine, frame(true, flags, HOST.wrapping_add(at), PEER, content));
            }
            _ => {
                let mut rx = flow.rx();
                rx.read(length, &mut Vec::new());
                rx.acknowledge(SeqNumber(PEER.wrapping_add(at)));
            }
        }
    }
}

fn up(engine: &mut Engine, frame: Vec<u8>) {
    let mut count = 0;
    let mut given = frame.clone();
    engine.wire_frame(
        0,
        &VnetHeader::default(),
        &mut given,
        &mut |header: &VnetHeader, up: &[u8]| {
            count += 1;
            assert!(header.checksum_at.is_some() || up == frame);
        },
    );
    assert!(count <= 1);
}

fn down(engine: &mut Engine, frame: Vec<u8>) {
    let before = classify(&frame).filter(|found| found.flow == name());
    let (mut given, mut leaked) = (frame.clone(), false);
    let mut wire = |_: &VnetHeader, out: &[u8]| {
        let Some(before) = before else { return };
        let clear = &frame[before.payload_at..][..before.payload_bytes];
        let sent = &out[before.payload_at..][..before.payload_bytes];
        // Headers stay unchanged, as do runs that are too short to distinguish.
        let mut both = clear.windows(8).zip(sent.windows(8));
        leaked |= both.any(|(clear, sent)| clear == b"pppppppp" && clear == sent);
    };
    engine.host_frame(0, &VnetHeader::default(), &mut given, &mut wire);
    // With another SYN it is another connection.
    assert!(!leaked || engine.table().offloaded() == 0);
}

/// The seeds.
pub fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    let record = announced();
    let plain = frame(false, TcpFlags::ACK, PEER, HOST, &record);
    let sent = frame(true, TcpFlags::ACK, HOST, PEER, &record);
    vec![
        ("received", [step(1, 0, &record), step(1, 0, &record), step(4, 60, &[0; 50])].concat()),
        ("lost", [step(1, 65, &record), step(1, 130, &record), step(0, 0, &plain)].concat()),
        ("sent", [step(3, 0, &record), step(3, 10, &record[10..40]), step(2, 0, &sent)].concat()),
        ("unknown", [step(3, 130, &record), step(3, 0, &record[1..])].concat()),
        ("apart", [step(3, 65, &record), step(3, 90, &record[25..]), step(3, 0, &record)].concat()),
    ]
}
