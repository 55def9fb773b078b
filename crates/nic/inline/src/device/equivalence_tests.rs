//! A device and software open records alike: the same bytes, the same end of stream, the same
//! alert.

use std::sync::Arc;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use unlade_net::SeqNumber;
use unlade_net::state::{DirectionSecrets, TlsSnapshot};
use unlade_nic_engine::tls::Version;
use unlade_nic_engine::{Stats, Tls};
use unlade_testkit::Random;
use unlade_tls::{RecordError, RecordLayer};

use super::flow::{Flow, Receiving, RxOutcome, RxSide, TxSide};
use super::reader::Reader;

const KEY: [u8; 16] = [7; 16];
const IV: [u8; 12] = [9; 12];
/// Content types.
const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;
const HEARTBEAT: u8 = 24;

/// The sealed stream of a peer.
struct Peer {
    is_13: bool,
    number: u64,
    bytes: Vec<u8>,
}

impl Peer {
    /// A record that is authentic, with any header.
    fn seal(&mut self, header: [u8; 3], inner: &[u8]) {
        let number = self.number.to_be_bytes();
        let mut nonce = IV;
        let explicit: &[u8] = match self.is_13 {
            true => {
                nonce[4..].iter_mut().zip(number).for_each(|(byte, with)| *byte ^= with);
                &[]
            }
            false => {
                nonce[4..].copy_from_slice(&number);
                &number
            }
        };
        let payload_bytes = (explicit.len() + inner.len() + 16) as u16;
        let [high, low] = payload_bytes.to_be_bytes();
        let head = [header[0], header[1], header[2], high, low];
        let aad = match self.is_13 {
            true => head.to_vec(),
            false => [&number[..], &header[..], &(inner.len() as u16).to_be_bytes()[..]].concat(),
        };
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &KEY).unwrap());
        let mut sealed = inner.to_vec();
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(aad), &mut sealed).unwrap();
        self.bytes.extend(head);
        self.bytes.extend(explicit);
        self.bytes.extend(sealed);
        self.number += 1;
    }

    /// A valid record of this type.
    fn send(&mut self, content_type: u8, content: &[u8]) {
        match self.is_13 {
            true => self.seal([DATA, 3, 3], &[content, &[content_type]].concat()),
            false => self.seal([content_type, 3, 3], content),
        }
    }

    /// A header followed by bytes that are not a record.
    fn send_junk(&mut self, head: [u8; 3], payload_bytes: usize) {
        self.bytes.extend(head);
        self.bytes.extend((payload_bytes as u16).to_be_bytes());
        self.bytes.extend(std::iter::repeat_n(0x5a, payload_bytes));
    }
}

/// Number of protocol errors and unusual cases of [`inject_error`].
const KINDS: u64 = 19;

/// Adds a protocol error, or an unusual case, to the stream.
fn inject_error(peer: &mut Peer, kind: u64, random: &mut Random) {
    let any_type =
        [0, 19, CHANGE_CIPHER_SPEC, ALERT, HANDSHAKE, HEARTBEAT, 25, 255][random.below(8) as usize];
    let is_13 = peer.is_13;
    match kind {
        // One byte more than a record may have, and many more; all of it is authentic.
        0 => peer.send(DATA, &[1; 16_385]),
        1 => peer.send(DATA, &vec![1; 16_386 + random.below(200) as usize]),
        2 => peer.send(DATA, &vec![1; 16_640 + random.below(3000) as usize]),
        // The same size with TLS 1.3 by padding.
        3 if is_13 => {
            let inner_bytes = 16_380 + random.below(245) as usize;
            let mut inner = vec![1; 100];
            inner.push(DATA);
            inner.resize(inner_bytes, 0);
            peer.seal([DATA, 3, 3], &inner);
        }
        3 => peer.send(DATA, &[1; 16_384]),
        // Headers with lengths near the limits, without a record behind them.
        4 => {
            let near = [16_384, 16_401, 16_408, 16_640, 18_432, 65_000][random.below(6) as usize];
            peer.send_junk([DATA, 3, 3], near + random.below(3) as usize);
        }
        // Records that are too short to be valid.
        5 => peer.send_junk([DATA, 3, 3], random.below(30) as usize),
        // Other types, unsealed and sealed.
        6 => peer.send_junk([any_type, 3, 3], random.below(60) as usize),
        7 => peer.seal([any_type, 3, 3], &[1; 40][..random.below(40) as usize]),
        8 => peer.send(any_type, &[1; 40][..random.below(40) as usize]),
        // Other versions.
        9 => peer.seal([DATA, 3, random.below(6) as u8], &[1, 2, 3, DATA]),
        10 => peer.seal([DATA, random.below(256) as u8, 3], &[1, 2, 3, DATA]),
        // Empty content, once and more often than allowed.
        11 => (0..1 + random.below(60)).for_each(|_| peer.send(DATA, &[])),
        12 => peer.send([ALERT, HANDSHAKE][random.below(2) as usize], &[]),
        // No type, and an empty record.
        13 => peer.seal([DATA, 3, 3], &vec![0; random.below(20_000) as usize % 16_600]),
        // Alerts: close_notify, warnings, fatal ones, and invalid ones.
        14 => peer
            .send(ALERT, &[1 + random.below(3) as u8, [0, 40, 90, 100][random.below(4) as usize]]),
        15 => peer.send(ALERT, &vec![1; random.below(5) as usize]),
        // Handshake messages that are unexpected or truncated.
        16 => peer.send(HANDSHAKE, &[random.below(26) as u8, 0, 0, random.below(3) as u8, 9, 9]),
        17 => {
            peer.send(HANDSHAKE, &[1, 0]);
            peer.send(if random.below(2) == 0 { DATA } else { HANDSHAKE }, &[0, 1]);
        }
        // A changed byte, also in a header.
        _ => {
            let start = peer.bytes.len();
            peer.send(DATA, &vec![1; random.below(2000) as usize]);
            let at = start + random.below((peer.bytes.len() - start) as u64) as usize;
            peer.bytes[at] ^= 1 << random.below(8);
        }
    }
}

fn layer(is_13: bool) -> RecordLayer {
    let (version, suite, secret) =
        if is_13 { (0x0304, 0x1301, vec![1; 32]) } else { (0x0303, 0xc02f, Vec::new()) };
    let direction = || DirectionSecrets {
        key: KEY.to_vec(),
        iv: IV,
        sequence: 0,
        traffic_secret: secret.clone(),
    };
    let (read, write) = (direction(), direction());
    let snapshot = TlsSnapshot { version, suite, read, write, ciphertext: Vec::new() };
    let mut layer = RecordLayer::from_snapshot(&snapshot).unwrap();
    // Alerts stay readable here.
    layer.leave_sealing();
    layer
}

/// The result of a stream.
#[derive(Debug, PartialEq)]
struct StreamResult {
    plaintext: Vec<u8>,
    ended: Option<RecordError>,
    closed: bool,
    sent: Vec<u8>,
}

fn stream_result(
    mut layer: RecordLayer,
    pieces: &[Vec<u8>],
    mut receive: impl FnMut(&mut RecordLayer, &[u8], &mut Vec<u8>) -> Result<(), RecordError>,
) -> StreamResult {
    let mut plaintext = Vec::new();
    let ended = pieces.iter().find_map(|piece| receive(&mut layer, piece, &mut plaintext).err());
    let mut sent = Vec::new();
    layer.take_output(&mut sent);
    StreamResult { plaintext, ended, closed: layer.is_closed_by_peer(), sent }
}

/// The stream as the kernel gets it from a device. The device notes its deliveries in the flow.
/// Some segments come out of order.
fn delivered(flow: &Flow, bytes: &[u8], random: &mut Random, stats: &mut Stats) -> Vec<u8> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + 1 + random.below(1448) as usize).min(bytes.len());
        segments.push(at..end);
        at = end;
    }
    if random.below(2) == 0 {
        for index in 1..segments.len() {
            if random.below(12) == 0 {
                segments.swap(index - 1, index);
            }
        }
    }
    let mut kernel = bytes.to_vec();
    for segment in segments {
        let payload = &bytes[segment.clone()];
        let mut out = vec![0; payload.len()];
        let seq = SeqNumber(77) + segment.start as u32;
        if flow.receive(stats, seq, payload, &mut out) == RxOutcome::Decrypted {
            kernel[segment].copy_from_slice(&out);
        }
    }
    kernel
}

/// The stream in the chunks that a socket returns.
fn pieces(bytes: &[u8], ends: &[usize]) -> Vec<Vec<u8>> {
    let starts = [&[0], ends].concat();
    let ends = [ends, &[bytes.len()]].concat();
    starts.into_iter().zip(ends).map(|(start, end)| bytes[start..end].to_vec()).collect()
}

#[test]
fn a_device_and_software_say_the_same_of_whatever_a_peer_sends() {
    let (offloaded, alerts) = (std::cell::Cell::new(0), std::cell::RefCell::new(Vec::new()));
    unlade_testkit::cases(1500, |random| {
        let is_13 = random.below(2) == 0;
        let mut peer = Peer { is_13, number: 0, bytes: Vec::new() };
        let kind = random.below(KINDS);
        for _ in 0..random.below(4) {
            peer.send(DATA, &vec![3; random.below(3000) as usize]);
        }
        inject_error(&mut peer, kind, random);
        for _ in 0..random.below(3) {
            peer.send(DATA, &vec![4; random.below(500) as usize]);
        }
        let total = peer.bytes.len() as u64;
        let mut ends: Vec<usize> =
            (0..random.below(6)).map(|_| random.below(total) as usize).collect();
        ends.sort_unstable();

        let software =
            stream_result(layer(is_13), &pieces(&peer.bytes, &ends), |layer, piece, out| {
                layer.receive(piece, out).map(drop)
            });
        let version = if is_13 { Version::Tls13 } else { Version::Tls12 };
        let tls = || Tls::new(version, &KEY, IV).unwrap();
        let origin = SeqNumber(77);
        let receiving = Receiving { tls: tls(), offset: 0, number: 0, read: 0 };
        let rx = RxSide::new(origin, receiving, origin);
        let flow = Arc::new(Flow::new(TxSide::new(origin, 0, 0, tls()), rx));
        let mut stats = Stats::default();
        let kernel = delivered(&flow, &peer.bytes, random, &mut stats);
        let mut reader = Reader::new(flow, tls(), 0, 0, 0);
        let device = stream_result(layer(is_13), &pieces(&kernel, &ends), |layer, piece, out| {
            reader.receive(layer, piece, out).map(drop)
        });
        assert!(
            software == device,
            "kind {kind}, TLS 1.3: {is_13}\nsoftware {:?} {:?} {}\ndevice {:?} {:?} {}",
            (software.ended, software.closed),
            software.sent,
            software.plaintext.len(),
            (device.ended, device.closed),
            device.sent,
            device.plaintext.len(),
        );
        offloaded.set(offloaded.get() + reader.take_stats().0.records_offloaded);
        alerts.borrow_mut().extend(device.ended.map(|error| error.reason()));
    });
    let mut alerts = alerts.into_inner();
    alerts.sort_unstable();
    alerts.dedup();
    println!("{} records were offloaded whole; the ends: {alerts:?}", offloaded.get());
    if std::env::var_os("UNLADE_SEED").is_none() {
        assert!(offloaded.get() > 0);
        for reason in ["bad_record_mac", "record_overflow", "unexpected_message", "decode_error"] {
            assert!(alerts.contains(&reason), "{reason}");
        }
    }
}
