//! A device's receivers, and software's assembler of NVMe/TCP PDUs, with a peer and a network that
//! send any bytes.

use unlade_net::SeqNumber;
use unlade_nic_engine::nvme::{self, types};
use unlade_nic_engine::placement::{Buffers, Placed, Placement, Placer, Registration};
use unlade_nic_engine::resync::{Request, Response};
use unlade_nic_engine::rx::Rx;
use unlade_nic_engine::software::composed::{ComposedPdus, ComposedResult, Opened};
use unlade_nic_engine::software::pdus::{Event, Input, PduError, Pdus};
use unlade_nic_engine::tls::{self, Tls, Version};
use unlade_nic_engine::tx::Tx;
use unlade_nic_engine::{Nvme, composed};

/// Bytes of each buffer.
const BUFFER_BYTES: u32 = 64;
/// Steps of one input.
const STEPS_MAX: usize = 256;
/// Bytes of a record's plaintext.
const PLAINTEXT_BYTES_MAX: usize = 200;
const START: SeqNumber = SeqNumber(u32::MAX - 100);

/// A received PDU: header, data, verdict.
type Seen = (Vec<u8>, Vec<u8>, Option<bool>);

/// The resulting PDUs do not depend on how their bytes arrive.
pub fn offload_pdus(data: &[u8]) {
    let Some((agreed, stream)) = data.split_first() else { return };
    let whole = pdus(*agreed, stream, stream.len());
    for step in [1, 7, 64] {
        assert_eq!(pdus(*agreed, stream, step), whole);
    }
}

fn agree(agreed: u8) -> Nvme {
    let (header_digest, data_digest) = (agreed & 1 != 0, agreed & 2 != 0);
    Nvme { header_digest, data_digest, data_bytes_max: 1024 }
}

fn pdus(agreed: u8, stream: &[u8], step: usize) -> (Vec<Seen>, Option<PduError>) {
    let mut pdus = Pdus::new(agree(agreed), START);
    let mut seen: Vec<Seen> = Vec::new();
    for bytes in stream.chunks(step.max(1)) {
        let mut input = Input::plain(bytes);
        loop {
            match pdus.next(&mut input) {
                Err(error) => {
                    assert_eq!(pdus.next(&mut input), Err(error), "it stays as it is");
                    return (seen, Some(error));
                }
                Ok(None) => break,
                Ok(Some(event)) => see(&mut seen, event),
            }
        }
        assert_eq!(input.left(), 0);
    }
    (seen, None)
}

fn see(seen: &mut Vec<Seen>, event: Event<'_>) {
    if let Event::Header { header, .. } = event {
        seen.push((header.to_vec(), Vec::new(), None));
        return;
    }
    let (_, data, verdict) = seen.last_mut().expect("a header comes first");
    assert_eq!(*verdict, None, "nothing follows the verdict");
    match event {
        Event::Data { offset, bytes, placed } => {
            assert_eq!((offset as usize, placed), (data.len(), None));
            data.extend(bytes);
        }
        Event::End => *verdict = Some(true),
        Event::Corrupt => *verdict = Some(false),
        Event::Header { .. } | Event::Recheck { .. } => unreachable!("no device"),
    }
}

/// Steps of a script, by number.
pub mod step {
    #![allow(missing_docs)]
    pub const NEXT: u8 = 0;
    pub const AT: u8 = 1;
    pub const SEAL: u8 = 2;
    pub const ANSWER: u8 = 3;
    pub const DENY: u8 = 4;
    pub const ADD: u8 = 5;
    pub const REMOVE: u8 = 6;
    pub const COUNT: u8 = 7;
}

/// The buffers, some of which are registered with the device.
#[derive(Default)]
struct Memory {
    shared: Vec<Registration>,
}

impl Buffers for Memory {
    fn place(&mut self, registration: Registration, offset: u32, bytes: &[u8]) -> bool {
        assert!(self.shared.contains(&registration), "{registration:?} is not the device's");
        let end = offset.checked_add(bytes.len() as u32).expect("an end");
        assert!(end <= BUFFER_BYTES && !bytes.is_empty());
        true
    }
}

enum Device {
    Tls(Box<Rx<tls::Progress>>),
    Nvme(Box<Rx<nvme::Progress>>),
    Composed(Box<composed::rx::Rx>),
}

struct World {
    device: Device,
    tls: Tls,
    nvme: Nvme,
    placement: Placement,
    memory: Memory,
    generation: u32,
    /// Sealed bytes that were not received.
    sealed: Vec<u8>,
    sealer: Tx<tls::Progress>,
    asked: Option<(bool, Request)>,
    stats: composed::Stats,
    out: Vec<u8>,
    software: ComposedPdus,
    /// All bytes so far arrived in order, and software has them.
    in_order: bool,
}

/// A device writes only to buffers that it has, within them, and reports the matching bytes of the
/// packet. `data` is a script: packets, answers, registrations.
pub fn offload_rx(data: &[u8]) {
    let Some((&kind, mut script)) = data.split_first() else { return };
    let tls = || Tls::new(Version::Tls13, &[3; 16], [1; 12]).expect("a key of 16 bytes");
    let nvme = agree(kind >> 2);
    let device = match kind & 3 {
        0 => Device::Tls(Box::new(Rx::new(START, 0))),
        1 => Device::Nvme(Box::new(Rx::new(START, 0))),
        _ => Device::Composed(Box::new(composed::rx::Rx::new(START, 0))),
    };
    let mut world = World {
        device,
        tls: tls(),
        nvme,
        placement: Placement::new(4),
        memory: Memory::default(),
        generation: 0,
        sealed: Vec::new(),
        sealer: Tx::new(START, 0, 0),
        asked: None,
        stats: composed::Stats::default(),
        out: vec![0; 1 << 10],
        software: ComposedPdus::new(tls(), nvme, START, 0),
        in_order: true,
    };
    for _ in 0..STEPS_MAX {
        let Some((&step, rest)) = script.split_first() else { break };
        script = rest;
        world.step(step % step::COUNT, &mut script);
    }
}

fn take<'s>(script: &mut &'s [u8], most: usize) -> &'s [u8] {
    let count = script.split_off_first().map_or(0, |count| usize::from(*count));
    let count = count.min(most).min(script.len());
    script.split_off(..count).unwrap_or_default()
}

impl World {
    fn step(&mut self, step: u8, script: &mut &[u8]) {
        match step {
            step::NEXT => {
                // The sealed bytes, or else those in the script.
                let mut bytes = take(script, 255).to_vec();
                if !self.sealed.is_empty() {
                    let count = (bytes.len() + 1).min(self.sealed.len());
                    bytes = self.sealed.drain(..count).collect();
                }
                self.packet(self.expected(), &bytes);
            }
            step::AT => {
                let distance = script.split_off_first().map_or(0, |byte| *byte as i8);
                let bytes = take(script, 255).to_vec();
                let seq = SeqNumber(self.expected().0.wrapping_add_signed(i32::from(distance)));
                self.packet(seq, &bytes);
            }
            step::SEAL => self.seal(take(script, PLAINTEXT_BYTES_MAX)),
            step::ANSWER | step::DENY => {
                let Some((inner, request)) = self.asked.take() else { return };
                let response = Response { request, number: (step == step::ANSWER).then_some(0) };
                match &mut self.device {
                    Device::Tls(rx) => rx.respond(&mut self.stats.tls, &response),
                    Device::Nvme(rx) => rx.respond(&mut self.stats.nvme, &response),
                    Device::Composed(rx) if inner => rx.respond_nvme(&mut self.stats, &response),
                    Device::Composed(rx) => rx.respond(&mut self.stats, &response),
                };
            }
            step::ADD => {
                let tag = script.split_off_first().map_or(0, |tag| u16::from(*tag % 6));
                self.generation += 1;
                let registration = Registration { tag, generation: self.generation };
                if self.placement.add(registration, BUFFER_BYTES).is_ok() {
                    self.memory.shared.push(registration);
                }
            }
            _ => {
                if let Some(registration) = self.memory.shared.pop() {
                    self.placement.remove(registration).expect("it is there");
                }
            }
        }
    }

    fn expected(&self) -> SeqNumber {
        match &self.device {
            Device::Tls(rx) => rx.expected(),
            Device::Nvme(rx) => rx.expected(),
            Device::Composed(rx) => rx.expected(),
        }
    }

    /// Lets the peer seal a record.
    fn seal(&mut self, plaintext: &[u8]) {
        let mut record = vec![23, 3, 3];
        record.extend((plaintext.len() as u16 + 17).to_be_bytes());
        record.extend(plaintext);
        record.push(23);
        record.extend([0; 16]);
        let (stats, seq) = (&mut self.stats.tls, self.sealer.expected());
        self.sealer.transmit(&self.tls, stats, seq, &mut record);
        self.sealed.extend(record);
    }

    fn packet(&mut self, seq: SeqNumber, payload: &[u8]) {
        let next = seq == self.expected();
        let mut placer = Placer::new(&mut self.placement, &mut self.memory);
        let (packet, out) = ((seq, payload), &mut self.out[..]);
        let (tls, nvme) = (&self.tls, &self.nvme);
        match &mut self.device {
            Device::Tls(rx) => {
                let received = rx.receive(tls, &mut self.stats.tls, seq, payload, out);
                self.asked = received.request.map(|request| (false, request)).or(self.asked);
            }
            Device::Nvme(rx) => {
                let stats = &mut self.stats.nvme;
                let received = rx.receive_placing(nvme, stats, packet, out, &mut placer);
                self.asked = received.request.map(|request| (true, request)).or(self.asked);
                within(placer.take().as_slice(), payload);
            }
            Device::Composed(rx) => {
                let received = rx.receive((tls, nvme), &mut self.stats, packet, out, &mut placer);
                let placed = placer.take();
                within(placed.as_slice(), payload);
                self.asked = received.tls.request.map(|request| (false, request)).or(self.asked);
                self.asked = received.nvme_request.map(|request| (true, request)).or(self.asked);
                let result = ComposedResult::of(&received, placed);
                self.in_order &= next && result.tls.is_some();
                if self.in_order {
                    let view = self.out[..payload.len()].to_vec();
                    self.read(&view, result);
                }
            }
        }
    }

    /// Passes software a packet that is next in order.
    fn read(&mut self, mut bytes: &[u8], mut result: ComposedResult) {
        while !bytes.is_empty() {
            let Ok(taken) = self.software.push(bytes, &result) else { return };
            bytes = &bytes[taken..];
            result.nvme = result.nvme.of(taken as u32, u32::MAX);
            match self.software.open(&mut self.stats.tls) {
                Err(_) => return,
                Ok(Some(Opened::Pdus(mut content))) => while let Ok(Some(_)) = content.event() {},
                Ok(_) => (),
            }
        }
    }
}

/// Checks that ranges are in order, and within the payload.
fn within(ranges: &[Placed], payload: &[u8]) {
    let mut behind = 0;
    for placed in ranges {
        assert!(behind <= placed.start && placed.start < placed.end);
        behind = placed.end;
    }
    assert!(behind as usize <= payload.len());
}

/// Streams for `offload_pdus`.
pub fn pdu_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut response = vec![types::CAPSULE_RESP, 0, 24, 0, 24, 0, 0, 0];
    response.resize(24, 1);
    let mixed = [&[0], &response[..], &read_data(0, 40), &response].concat();
    vec![
        ("no-digests", mixed),
        ("both-digests", [&[3], &read_data(3, 40)[..], &read_data(3, 1)].concat()),
        ("data-digest", [&[2], &read_data(2, 1000)[..]].concat()),
        ("too-long", [&[0], &read_data(0, 1025)[..]].concat()),
    ]
}

/// C2HData for tag 1.
fn read_data(agreed: u8, data_bytes: u32) -> Vec<u8> {
    let nvme = agree(agreed);
    let data = vec![0x33; data_bytes as usize];
    let data_start = if nvme.header_digest { 28 } else { 24 };
    let end = data_start + data_bytes + if nvme.data_digest { 4 } else { 0 };
    let mut pdu = vec![types::C2H_DATA, agreed & 3, 24, data_start as u8];
    pdu.extend(end.to_le_bytes());
    pdu.extend([1, 0, 0, 0, 0, 0, 0, 0]);
    pdu.extend(data_bytes.to_le_bytes());
    pdu.extend([0; 4]);
    if nvme.header_digest {
        pdu.extend(crc32c::crc32c(&pdu).to_le_bytes());
    }
    pdu.extend(&data);
    if nvme.data_digest {
        pdu.extend(crc32c::crc32c(&data).to_le_bytes());
    }
    pdu
}

/// Scripts for `offload_rx`.
pub fn rx_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let data = read_data(3, 40);
    let count = data.len() as u8;
    let next = |bytes: &[u8]| [&[step::NEXT, bytes.len() as u8], bytes].concat();
    let add = [step::ADD, 1];
    let seal = [&[step::SEAL, count], &data[..]].concat();
    let mut lost = vec![step::AT, 100, count];
    lost.extend(&data);
    vec![
        ("tls", [&[0], &seal[..], &next(&[0; 200])].concat()),
        ("nvme", [&[1 | 3 << 2], &add[..], &next(&data[..30]), &next(&data[30..])].concat()),
        ("nvme-lost", [&[1 | 3 << 2], &lost[..], &[step::ANSWER], &add, &next(&data)].concat()),
        ("nvme-removed", [&[13], &add[..], &next(&data[..40]), &[step::REMOVE]].concat()),
        ("composed", [&[2 | 3 << 2], &add[..], &seal, &next(&[0; 9]), &next(&[0; 150])].concat()),
    ]
}
