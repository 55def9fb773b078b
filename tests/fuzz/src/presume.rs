//! Records of any length through a network that loses and delays, a device that presumes record
//! numbers, and software.

use std::collections::BTreeMap;

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use unlade_net::SeqNumber;
use unlade_nic_engine::Stats;
use unlade_nic_engine::resync::{Request, Worked};
use unlade_nic_engine::rx::Rx;
use unlade_nic_engine::software::records::Records;
use unlade_nic_engine::tls::{Progress, Tls, Version};

/// Start of the stream; it crosses 2^32.
const START: SeqNumber = SeqNumber(u32::MAX - 2000);
const KEY: [u8; 16] = [5; 16];
const IV: [u8; 12] = [8; 12];
/// Bytes of plaintext of the usual record.
const USUAL_BYTES: usize = 90;
/// Most records, and steps, of one script.
const RECORDS_MAX: usize = 64;
const STEPS_MAX: usize = 256;

/// Steps of a script, by number; each has a length.
pub mod step {
    #![allow(missing_docs)]
    /// The next bytes reach the device and TCP.
    pub const NEXT: u8 = 0;
    /// The next bytes are lost.
    pub const LOSE: u8 = 1;
    /// The first bytes that TCP misses are sent again.
    pub const AGAIN: u8 = 2;
    /// Software reads, and answers.
    pub const READ: u8 = 3;
    /// Only the device receives the next bytes, one of them changed.
    pub const FORGE: u8 = 4;
    pub const COUNT: u8 = 5;
}

struct World {
    wire: Vec<u8>,
    /// Plaintexts.
    records: Vec<Vec<u8>>,
    tls: Tls,
    rx: Rx<Progress>,
    stats: Stats,
    software: Records,
    asked: Option<Request>,
    out: Vec<u8>,
    /// The segments that TCP has: by start, their bytes and the device's results.
    tcp: BTreeMap<usize, (Vec<u8>, Option<Worked>)>,
    sent: usize,
    read: usize,
    opened: usize,
    /// The device has received forged bytes.
    forged: bool,
    failed: bool,
}

/// Released bytes are those that the peer has sealed; and without forged bytes, all of them are
/// released. `data`: the number of records, a byte for the length of each (the upper half selects
/// the usual length), then steps with their lengths.
pub fn offload_presume(data: &[u8]) {
    let Some((&count, script)) = data.split_first() else { return };
    let (lengths, steps) = script.split_at(usize::from(count).min(RECORDS_MAX).min(script.len()));
    let tls = || Tls::new(Version::Tls13, &KEY, IV).expect("a key of 16 bytes");
    let (wire, records) = stream(lengths);
    let mut rx = Rx::new(START, 0);
    rx.presume(true);
    let mut world = World {
        out: vec![0; 256],
        wire,
        records,
        tls: tls(),
        rx,
        stats: Stats::default(),
        software: Records::new(tls(), START, 0),
        asked: None,
        tcp: BTreeMap::new(),
        sent: 0,
        read: 0,
        opened: 0,
        forged: false,
        failed: false,
    };
    for step in steps.chunks_exact(2).take(STEPS_MAX) {
        world.step(step[0] % step::COUNT, usize::from(step[1]).max(1));
    }
    world.end();
}

fn stream(lengths: &[u8]) -> (Vec<u8>, Vec<Vec<u8>>) {
    let key = UnboundKey::new(&AES_128_GCM, &KEY).expect("a key of 16 bytes");
    let key = LessSafeKey::new(key);
    let (mut wire, mut records) = (Vec::new(), Vec::new());
    for (number, &length) in lengths.iter().enumerate() {
        let length = if length < 128 { usize::from(length) + 1 } else { USUAL_BYTES };
        let plaintext = vec![number as u8 + 1; length];
        let header = [23, 3, 3, 0, (length + 16) as u8];
        let mut nonce = IV;
        nonce[11] ^= number as u8;
        let mut bytes = plaintext.clone();
        let nonce = Nonce::assume_unique_for_key(nonce);
        key.seal_in_place_append_tag(nonce, Aad::from(header), &mut bytes).expect("short");
        wire.extend(header);
        wire.extend(bytes);
        records.push(plaintext);
    }
    (wire, records)
}

impl World {
    fn step(&mut self, step: u8, length: usize) {
        let end = (self.sent + length).min(self.wire.len());
        match step {
            step::NEXT | step::LOSE => {
                if step == step::NEXT {
                    self.arrive(self.sent, end);
                }
                self.sent = end;
            }
            step::AGAIN => {
                let missing = self.missing();
                self.arrive(missing, (missing + length).min(self.sent));
            }
            step::READ => {
                self.read();
                if let Some(request) = self.asked.take() {
                    self.software.request(request);
                }
                if let Some(response) = self.software.response() {
                    self.rx.respond(&mut self.stats, &response);
                }
            }
            _ if self.sent < end => {
                let mut payload = self.wire[self.sent..end].to_vec();
                payload[length % (end - self.sent)] ^= 0x40;
                self.forged = true;
                self.device(self.sent, &payload);
            }
            _ => (),
        }
    }

    /// The first byte that TCP does not have.
    fn missing(&self) -> usize {
        let mut at = self.read;
        for (start, (bytes, _)) in self.tcp.range(self.read..) {
            if *start > at {
                break;
            }
            at = start + bytes.len();
        }
        at
    }

    fn device(&mut self, at: usize, payload: &[u8]) -> (usize, Option<Worked>) {
        let seq = START + at as u32;
        let received = self.rx.receive(&self.tls, &mut self.stats, seq, payload, &mut self.out);
        self.asked = received.request.or(self.asked);
        let from = received.from as usize;
        assert!(from <= payload.len());
        (if received.pass.is_some() { from } else { payload.len() }, received.worked())
    }

    /// The device and TCP receive bytes; TCP keeps those that it lacks.
    fn arrive(&mut self, at: usize, end: usize) {
        if at >= end {
            return;
        }
        let payload = self.wire[at..end].to_vec();
        let (from, worked) = self.device(at, &payload);
        let rest = self.out[from..payload.len()].to_vec();
        self.keep(at, &payload[..from], None);
        self.keep(at + from, &rest, worked);
    }

    fn keep(&mut self, at: usize, bytes: &[u8], worked: Option<Worked>) {
        for (index, byte) in bytes.iter().enumerate() {
            let at = at + index;
            let before = self.tcp.range(..=at).next_back();
            let has = before.is_some_and(|(start, (bytes, _))| at < start + bytes.len());
            if at >= self.read && !has {
                self.tcp.insert(at, (vec![*byte], worked));
            }
        }
    }

    fn read(&mut self) {
        while !self.failed {
            let Some((bytes, worked)) = self.tcp.remove(&self.read) else { return };
            self.read += bytes.len();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let taken = self.software.push(rest, worked);
                let Ok(taken) = taken else { return self.fail() };
                rest = &rest[taken..];
                match self.software.open(&mut self.stats) {
                    Err(_) => return self.fail(),
                    Ok(None) => (),
                    Ok(Some(record)) => {
                        assert_eq!(record.plaintext, self.records[self.opened]);
                        self.opened += 1;
                    }
                }
            }
        }
    }

    fn fail(&mut self) {
        assert!(self.forged, "a genuine stream ends with an error");
        self.failed = true;
    }

    /// All missing bytes arrive.
    fn end(&mut self) {
        while self.missing() < self.wire.len() {
            let missing = self.missing();
            self.sent = self.sent.max((missing + 200).min(self.wire.len()));
            self.arrive(missing, (missing + 200).min(self.wire.len()));
        }
        self.read();
        assert!(self.failed || self.opened == self.records.len());
    }
}

/// Scripts.
pub fn scripts() -> Vec<(&'static str, Vec<u8>)> {
    use step::{AGAIN, FORGE, LOSE, NEXT, READ};
    let usual = |count: u8| [&[count], &vec![255; usize::from(count)][..]].concat();
    let split = [&[9, 255, 255, 255][..], &[29, 38, 255, 255, 255, 255]].concat();
    let loss = [NEXT, 222, NEXT, 60, LOSE, 120, NEXT, 100, NEXT, 200];
    let repair = [AGAIN, 120, READ, 1, NEXT, 200, NEXT, 200];
    let wrong = [NEXT, 222, NEXT, 60, LOSE, 200, NEXT, 60, NEXT, 200];
    vec![
        ("presumed", [&usual(9)[..], &loss, &repair].concat()),
        ("wrong-by-one", [&split[..], &wrong, &repair].concat()),
        ("forged", [&usual(9)[..], &loss, &[FORGE, 30, NEXT, 90], &repair].concat()),
        ("lost-twice", [&usual(20)[..], &loss, &loss[4..], &loss[4..], &repair].concat()),
    ]
}
