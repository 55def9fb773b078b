//! Receiving NVMe/TCP, plain or over TLS: device, TCP and an initiator with its buffers against
//! the peer's stream.

use std::collections::VecDeque;

use unlade_net::SeqNumber;
use unlade_testkit::Random;

use crate::composed::{self, Stats};
use crate::model::initiator::{Buffer, EventHandler, Live, Memory, OwnedEvent, Reading};
use crate::model::peer::random_bytes;
use crate::model::storage::{Shape, Stream, TAGS};
use crate::nvme::{Progress, target};
use crate::placement::{Placement, Placer, Registrar};
use crate::resync::{Request, Response};
use crate::rx::Rx;
use crate::software::composed::{ComposedPdus, ComposedResult, Opened};
use crate::software::pdus::{Input, PduResult, Pdus};
use crate::tls::{Tls, Version};

/// Fault rates of a case. Each fault occurs once in the given number of packets; 0 means never.
struct FaultRates {
    segment_bytes_max: u64,
    window_bytes: usize,
    lost: u64,
    doubled: u64,
    out_of_order: u64,
    /// A packet that the device processes, and TCP rejects.
    refused: u64,
    /// A packet with a changed byte that the device processes, and TCP rejects.
    shadowed: u64,
    /// A packet that was never sent, which TCP rejects.
    stray: u64,
    /// A packet with a changed byte, which TCP accepts.
    forged: u64,
    answer_steps_max: u64,
    newer_wins: bool,
    /// Software copies after the device has released the buffer.
    staging: bool,
    /// A command's buffer is replaced by another one.
    moved: u64,
    /// The peer sends unrequested data, which may reach a buffer.
    mistakes: bool,
}

fn sometimes(random: &mut Random, most: u64) -> u64 {
    if random.once_in(3) { 0 } else { 2 + random.below(most) }
}

fn happens(random: &mut Random, once_in: u64) -> bool {
    once_in > 0 && random.once_in(once_in)
}

impl FaultRates {
    fn random(
        random: &mut Random,
        stream: &Stream,
        shape: &Shape,
        segment_bytes_max: u64,
    ) -> FaultRates {
        let rare = |random: &mut Random, least: u64, most| {
            if random.once_in(5) { least + random.below(most) } else { 0 }
        };
        let both = stream.nvme.header_digest && stream.nvme.data_digest;
        let secure = stream.secret.is_some();
        // Changes on the path are detected by a tag or by digests.
        let forged = if secure || both { rare(random, 20, 200) } else { 0 };
        let stray = rare(random, 5, 60);
        let shadowed = rare(random, 3, 40);
        let staging = random.once_in(3) || stray > 0 || secure && forged > 0;
        let attacked = forged > 0 || stray > 0 || shadowed > 0;
        FaultRates {
            segment_bytes_max,
            window_bytes: (segment_bytes_max * (2 + random.below(30))) as usize,
            lost: sometimes(random, 30),
            doubled: sometimes(random, 30),
            out_of_order: sometimes(random, 20),
            refused: if random.once_in(4) { 2 + random.below(60) } else { 0 },
            shadowed,
            stray,
            forged,
            answer_steps_max: random.below(40),
            newer_wins: random.once_in(3),
            staging,
            moved: if attacked { 0 } else { sometimes(random, 30) },
            mistakes: shape.mistakes,
        }
    }

    /// Returns true if no packet is forged or inserted.
    fn is_honest(&self) -> bool {
        self.stray == 0 && self.forged == 0 && self.shadowed == 0
    }
}

/// The device's and software's protocol stacks.
enum Device {
    Plain(Box<Rx<Progress>>),
    Composed(Box<composed::rx::Rx>, Tls),
}

enum Software {
    Plain(Box<Pdus>),
    Composed(Box<ComposedPdus>),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Asked {
    Outer,
    Inner,
}

struct Segment {
    at: usize,
    bytes: Vec<u8>,
    forged: bool,
}

/// TCP's receive state: bytes, and the packet of each.
struct Tcp {
    bytes: Vec<u8>,
    packets: Vec<Option<u32>>,
    results: Vec<(usize, ComposedResult)>,
    next: usize,
}

impl Tcp {
    fn take(&mut self, at: usize, view: &[u8], result: ComposedResult, newer_wins: bool) {
        let packet = self.results.len() as u32;
        self.results.push((at, result));
        for (index, &byte) in view.iter().enumerate() {
            let at = at + index;
            if at >= self.next && (self.packets[at].is_none() || newer_wins) {
                self.packets[at] = Some(packet);
                self.bytes[at] = byte;
            }
        }
    }

    /// The next bytes from one packet, their offset in it, and its result.
    fn run(&self) -> Option<(std::ops::Range<usize>, usize, ComposedResult)> {
        let packet = self.packets.get(self.next).copied().flatten()?;
        let same = |&&other: &&Option<u32>| other == Some(packet);
        let count = self.packets[self.next..].iter().take_while(same).count();
        let (at, result) = self.results[packet as usize];
        Some((self.next..self.next + count, self.next - at, result))
    }
}

struct World<'r> {
    random: &'r mut Random,
    faults: FaultRates,
    stream: Stream,
    isn: SeqNumber,
    device: Device,
    software: Software,
    placement: Placement,
    memory: Memory,
    registrar: Registrar,
    live: Vec<Option<Live>>,
    by_tag: [Option<usize>; TAGS as usize],
    /// Number of commands issued.
    registered: usize,
    closing: VecDeque<(u64, usize)>,
    finished: usize,
    reading: Reading,
    stats: Stats,
    out: Vec<u8>,
    network: VecDeque<Segment>,
    tcp: Tcp,
    asked: VecDeque<(u64, Asked, Request)>,
    answered: VecDeque<(u64, Asked, Response)>,
    sent: usize,
    steps: u64,
    forged: bool,
    disturbed: bool,
}

/// One connection without TLS.
///
/// # Errors
/// A difference from the model.
pub(crate) fn plain(random: &mut Random) -> Result<Stats, String> {
    run(random, None)
}

/// One connection with TLS.
///
/// # Errors
/// A difference from the model.
pub(crate) fn secure(random: &mut Random) -> Result<Stats, String> {
    let version = if random.once_in(4) { Version::Tls12 } else { Version::Tls13 };
    run(random, Some(version))
}

fn run(random: &mut Random, version: Option<Version>) -> Result<Stats, String> {
    let sizes = [5, 30, 200, 1448, 1448, 5000];
    let scale = sizes[random.below(6) as usize];
    let data_sizes = [60, 600, 3000, 30_000];
    let stream_bytes = (scale as usize * 150).clamp(3000, 120_000);
    let shape = Shape {
        stream_bytes,
        data_bytes_max: data_sizes[random.below(4) as usize].min(stream_bytes / 8),
        record_bytes_max: [30, 500, 4000, 16_000][random.below(4) as usize],
        false_headers: random.once_in(3).then(|| 20 + random.below(500)),
        mistakes: random.once_in(3),
        other_records: random.once_in(3),
        between: false,
        padding: random.once_in(4),
        version,
    };
    let stream = Stream::random(random, &shape);
    let faults = FaultRates::random(random, &stream, &shape, scale);
    let total = stream.wire.len();
    let isn = match random.below(3) {
        0 => SeqNumber(random.next() as u32),
        _ => SeqNumber(0u32.wrapping_sub(random.below(total as u64) as u32)),
    };
    let (device, software) = match &stream.secret {
        None => {
            let pdus = Pdus::new(stream.nvme, isn);
            (Device::Plain(Box::new(Rx::new(isn, 0))), Software::Plain(Box::new(pdus)))
        }
        Some(secret) => {
            let rx = Box::new(composed::rx::Rx::new(isn, 0));
            let pdus = ComposedPdus::new(secret.tls(), stream.nvme, isn, 0);
            (Device::Composed(rx, secret.tls()), Software::Composed(Box::new(pdus)))
        }
    };
    let tcp =
        Tcp { bytes: vec![0; total], packets: vec![None; total], results: Vec::new(), next: 0 };
    let mut world = World {
        random,
        faults,
        isn,
        device,
        software,
        placement: Placement::new(usize::from(TAGS)),
        memory: Memory::default(),
        registrar: Registrar::new(usize::from(TAGS)),
        live: Vec::new(),
        by_tag: [None; TAGS as usize],
        registered: 0,
        closing: VecDeque::new(),
        finished: 0,
        reading: Reading::default(),
        stats: Stats::default(),
        out: vec![0; 1 << 16],
        network: VecDeque::new(),
        tcp,
        asked: VecDeque::new(),
        answered: VecDeque::new(),
        sent: 0,
        steps: 0,
        forged: false,
        disturbed: false,
        stream,
    };
    world.play()?;
    let counted = match &world.software {
        Software::Plain(pdus) => pdus.stats(),
        Software::Composed(pdus) => pdus.stats(),
    };
    world.stats.nvme.add(counted);
    Ok(world.stats)
}

impl World<'_> {
    fn total(&self) -> usize {
        self.stream.wire.len()
    }

    fn play(&mut self) -> Result<(), String> {
        let limit = 600 * (self.total() as u64 / self.faults.segment_bytes_max + 50);
        while self.tcp.next < self.total() || self.finished < self.stream.commands.len() {
            self.steps += 1;
            if self.steps > limit {
                // A changed length makes software wait for bytes that are never sent.
                let waits = self.tcp.next == self.sent && self.sent == self.gate();
                if waits && (self.forged || self.disturbed) {
                    return Ok(());
                }
                return Err(format!(
                    "hangs at {} of {}, {} sent, gate {}",
                    self.tcp.next,
                    self.total(),
                    self.sent,
                    self.gate()
                ));
            }
            self.register()?;
            let late = self.tcp.next > self.total() * 2 / 3;
            self.send(late);
            if let Some(segment) = self.deliver(late) {
                self.arrive(&segment)?;
            }
            if let Some(violation) = self.memory.violation.take() {
                return Err(violation);
            }
            self.talk();
            match self.read() {
                Ok(true) => (),
                // An error is correct after a change on the path.
                Ok(false) if self.forged || self.disturbed => return Ok(()),
                Ok(false) => return Err("a genuine stream ends with an error".to_owned()),
                Err(why) => return Err(why),
            }
            self.close()?;
        }
        Ok(())
    }

    /// Software registers commands as soon as their tags are free.
    fn register(&mut self) -> Result<(), String> {
        while let Some(command) = self.stream.commands.get(self.registered) {
            let Ok(registration) = self.registrar.register(command.tag) else { break };
            let bytes = command.content.len();
            let shared = !command.unknown;
            self.memory.buffers.push(Buffer { bytes: vec![0x5a; bytes], shared });
            let buffer = self.memory.buffers.len() - 1;
            self.memory.registered.insert(registration, buffer);
            if shared {
                let added = self.placement.add(registration, bytes as u32);
                added.map_err(|error| error.to_string())?;
            }
            self.by_tag[usize::from(command.tag)] = Some(self.registered);
            let staged = Vec::new();
            let (failed, closing) = (false, false);
            self.live.push(Some(Live { registration, buffer, next: 0, staged, failed, closing }));
            self.registered += 1;
        }
        Ok(())
    }

    /// Number of bytes that the peer may have sent by now.
    fn gate(&self) -> usize {
        self.stream.commands.get(self.registered).map_or(self.total(), |command| command.gate)
    }

    fn send(&mut self, late: bool) {
        if self.network.len() >= 12 {
            return;
        }
        let length = 1 + self.random.below(self.faults.segment_bytes_max) as usize;
        let window = (self.tcp.next + self.faults.window_bytes).min(self.gate());
        let again = match late {
            true => self.network.is_empty() && self.sent >= window,
            false => self.random.once_in(4),
        };
        if !again && self.sent < window {
            let end = (self.sent + length).min(window);
            self.put(self.sent, end);
            self.sent = end;
        } else if self.tcp.next < self.sent && (again || self.network.is_empty()) {
            let at = match late || self.random.once_in(2) {
                true => self.tcp.next,
                false => {
                    let back = self.tcp.next.saturating_sub(2 * length);
                    back + self.random.below((self.sent - back) as u64) as usize
                }
            };
            self.put(at, (at + length).min(self.sent));
        }
    }

    fn put(&mut self, at: usize, end: usize) {
        let mut bytes = self.stream.wire[at..end].to_vec();
        let forged = happens(self.random, self.faults.forged);
        if forged {
            let index = self.random.below(bytes.len() as u64) as usize;
            bytes[index] ^= 1 << self.random.below(8);
        }
        self.network.push_back(Segment { at, bytes, forged });
    }

    fn deliver(&mut self, late: bool) -> Option<Segment> {
        if late {
            return self.network.pop_front();
        }
        self.disturb();
        let mut index = 0;
        if happens(self.random, self.faults.out_of_order) {
            index = self.random.below(self.network.len() as u64) as usize;
        }
        let segment = self.network.remove(index)?;
        if happens(self.random, self.faults.doubled) {
            let Segment { at, forged, ref bytes } = segment;
            self.network.push_back(Segment { at, bytes: bytes.clone(), forged });
        }
        if happens(self.random, self.faults.lost) { None } else { Some(segment) }
    }

    fn expected(&self) -> SeqNumber {
        match &self.device {
            Device::Plain(rx) => rx.expected(),
            Device::Composed(rx, _) => rx.expected(),
        }
    }

    /// Injects packets that TCP rejects.
    fn disturb(&mut self) {
        if happens(self.random, self.faults.stray) {
            let distance = match self.random.below(3) {
                0 => self.sent as u32 + self.random.below(1 << 20) as u32,
                _ => self.random.below(2 * self.sent as u64 + 10) as u32,
            };
            let length = 1 + self.random.below(300) as usize;
            let payload = random_bytes(self.random, length);
            let expected = self.expected();
            self.device(self.isn + distance, &payload);
            self.disturbed |= self.expected() != expected;
        }
        if happens(self.random, self.faults.shadowed) {
            let at = self.expected().0.wrapping_sub(self.isn.0) as usize;
            let length = 1 + self.random.below(self.faults.segment_bytes_max) as usize;
            let Some(genuine) = self.stream.wire.get(at..(at + length).min(self.sent)) else {
                return;
            };
            let mut payload = genuine.to_vec();
            if payload.is_empty() {
                return;
            }
            let index = self.random.below(payload.len() as u64) as usize;
            let harmless = self.faults.staging || self.stream.nvme.header_digest;
            if harmless || self.stream.data_at(at + index).is_some() {
                payload[index] ^= 1 << self.random.below(8);
            }
            self.disturbed = true;
            self.device(self.isn + at as u32, &payload);
        }
    }

    /// The device processes a packet; returns its result, and the offset from which it applies.
    fn device(&mut self, seq: SeqNumber, payload: &[u8]) -> (ComposedResult, usize) {
        let mut placer = Placer::new(&mut self.placement, &mut self.memory);
        let (result, from, requests) = match &mut self.device {
            Device::Plain(rx) => {
                let stats = &mut self.stats.nvme;
                let nvme = &self.stream.nvme;
                let received =
                    rx.receive_placing(nvme, stats, (seq, payload), &mut [], &mut placer);
                let placed = placer.take();
                let pdus = PduResult { pass: received.pass, boundary: received.boundary, placed };
                let result = ComposedResult { tls: None, nvme: pdus };
                (result, 0, [received.request.map(|request| (Asked::Inner, request)), None])
            }
            Device::Composed(rx, tls) => {
                let stats = &mut self.stats;
                let protocols = (&*tls, &self.stream.nvme);
                let packet = (seq, payload);
                let received = rx.receive(protocols, stats, packet, &mut self.out, &mut placer);
                let result = ComposedResult::of(&received, placer.take());
                let outer = received.tls.request.map(|request| (Asked::Outer, request));
                let inner = received.nvme_request.map(|request| (Asked::Inner, request));
                (result, received.tls.from as usize, [outer, inner])
            }
        };
        for (who, request) in requests.into_iter().flatten() {
            let due = self.steps + self.random.below(self.faults.answer_steps_max + 1);
            self.asked.push_back((due, who, request));
        }
        (result, from)
    }

    fn arrive(&mut self, segment: &Segment) -> Result<(), String> {
        let payload = &segment.bytes[..];
        let (result, from) = self.device(self.isn + segment.at as u32, payload);
        if self.faults.is_honest() {
            self.check_placed(segment.at, &result)?;
            self.check_record(segment.at + from, &result)?;
        }
        if happens(self.random, self.faults.refused) && self.tcp.next < self.total() / 2 {
            return Ok(());
        }
        self.forged |= segment.forged;
        let (head, newer_wins) = (&payload[..from], self.faults.newer_wins);
        self.tcp.take(segment.at, head, ComposedResult::default(), newer_wins);
        let view = if result.tls.is_some() { &self.out[..payload.len()] } else { payload };
        let rest =
            ComposedResult { nvme: result.nvme.of(from as u32, payload.len() as u32), ..result };
        self.tcp.take(segment.at + from, &view[from..], rest, newer_wins);
        Ok(())
    }

    /// Checks that decrypted bytes were decrypted with their own record's parameters.
    fn check_record(&self, at: usize, result: &ComposedResult) -> Result<(), String> {
        let Some(worked) = result.tls else { return Ok(()) };
        let places = &self.stream.records;
        let index = places.partition_point(|place| place.range.end <= at);
        let place = places.get(index).ok_or("beyond the stream")?;
        let own = (self.isn + place.range.start as u32, index as u64);
        match own == (worked.message.start, worked.message.number) {
            true => Ok(()),
            false => Err(format!("byte {at} was taken for one of {worked:?}")),
        }
    }

    /// Checks that placed data is at its destination.
    fn check_placed(&self, at: usize, result: &ComposedResult) -> Result<(), String> {
        for placed in result.nvme.placed.as_slice() {
            for byte in [placed.start, placed.end - 1] {
                let Some((index, in_data)) = self.stream.data_at(at + byte as usize) else {
                    // In a record with another content type.
                    if self.stream.secret.is_some() {
                        continue;
                    }
                    return Err(format!("byte {} is no data", at + byte as usize));
                };
                let header = target(&self.stream.pdus[index].0.header).ok_or("no target")?;
                let right = (header.tag, header.offset as usize + in_data);
                let offset = (placed.offset + byte - placed.start) as usize;
                if right != (placed.registration.tag, offset) {
                    return Err(format!("{right:?} is placed at {placed:?}"));
                }
            }
        }
        Ok(())
    }

    /// Delivers requests and responses.
    fn talk(&mut self) {
        let steps = self.steps;
        while self.asked.front().is_some_and(|(due, ..)| *due <= steps) {
            let Some((_, who, request)) = self.asked.pop_front() else { break };
            match (&mut self.software, who) {
                (Software::Plain(pdus), _) => pdus.request(request),
                (Software::Composed(pdus), Asked::Outer) => pdus.records().request(request),
                (Software::Composed(pdus), Asked::Inner) => pdus.request(request),
            }
        }
        let responses = match &mut self.software {
            Software::Plain(pdus) => [(Asked::Inner, pdus.response()), (Asked::Outer, None)],
            Software::Composed(pdus) => {
                let outer = pdus.records().response();
                [(Asked::Inner, pdus.response()), (Asked::Outer, outer)]
            }
        };
        for (who, response) in responses {
            if let Some(response) = response {
                let due = steps + self.random.below(self.faults.answer_steps_max + 1);
                self.answered.push_back((due, who, response));
            }
        }
        while self.answered.front().is_some_and(|(due, ..)| *due <= steps) {
            let Some((_, who, response)) = self.answered.pop_front() else { break };
            match (&mut self.device, who) {
                (Device::Plain(rx), _) => rx.respond(&mut self.stats.nvme, &response),
                (Device::Composed(rx, _), Asked::Outer) => rx.respond(&mut self.stats, &response),
                (Device::Composed(rx, _), Asked::Inner) => {
                    rx.respond_nvme(&mut self.stats, &response)
                }
            };
        }
    }

    /// Software reads from TCP; returns false if the stream has ended with an error.
    fn read(&mut self) -> Result<bool, String> {
        while let Some((run, at, result)) = self.tcp.run() {
            let mut handler = EventHandler {
                stream: &self.stream,
                staging: self.faults.staging,
                excused: self.faults.forged > 0 || self.faults.mistakes,
                memory: &mut self.memory,
                live: &mut self.live,
                by_tag: &self.by_tag,
                reading: &mut self.reading,
                done: Vec::new(),
            };
            let bytes = &self.tcp.bytes[run.clone()];
            let slice = result.nvme.of(at as u32, (at + run.len()) as u32);
            let taken = match &mut self.software {
                Software::Plain(pdus) => {
                    let mut input = Input::new(bytes, slice);
                    let good = handler.take(|again| {
                        again.into_iter().for_each(|bytes| pdus.recheck(&bytes));
                        pdus.next(&mut input).map(|event| event.map(OwnedEvent::of)).ok()
                    })?;
                    good.then_some(run.len())
                }
                Software::Composed(pdus) => {
                    let result = ComposedResult { tls: result.tls, nvme: slice };
                    let taken = pdus.push(bytes, &result).ok();
                    match pdus.open(&mut self.stats.tls) {
                        Err(_) => None,
                        Ok(None) | Ok(Some(Opened::Other(..))) => taken,
                        Ok(Some(Opened::Pdus(mut content))) => {
                            let good = handler.take(|again| {
                                again.into_iter().for_each(|bytes| content.recheck(&bytes));
                                content.event().map(|event| event.map(OwnedEvent::of)).ok()
                            })?;
                            taken.filter(|_| good)
                        }
                    }
                }
            };
            let done = std::mem::take(&mut handler.done);
            for command in done {
                self.withdraw(command)?;
            }
            let Some(taken) = taken else { return Ok(false) };
            self.tcp.next += taken;
        }
        Ok(true)
    }

    /// Withdraws the buffer of a completed command.
    fn withdraw(&mut self, command: usize) -> Result<(), String> {
        let Some(live) = self.live[command].as_mut() else { return Ok(()) };
        if !std::mem::replace(&mut live.closing, true) {
            let withdrawn = self.registrar.withdraw(live.registration);
            withdrawn.map_err(|error| error.to_string())?;
            let due = self.steps + self.random.below(20);
            self.closing.push_back((due, command));
        }
        Ok(())
    }

    /// Completes withdrawals, and checks the content of the buffers.
    fn close(&mut self) -> Result<(), String> {
        while self.closing.front().is_some_and(|(due, _)| *due <= self.steps) {
            let Some((_, command)) = self.closing.pop_front() else { break };
            let Some(live) = self.live[command].take() else { continue };
            let spec = &self.stream.commands[command];
            if !spec.unknown {
                self.placement.remove(live.registration).map_err(|error| error.to_string())?;
            }
            let freed = self.registrar.acknowledged(live.registration);
            freed.map_err(|error| error.to_string())?;
            self.by_tag[usize::from(spec.tag)] = None;
            let buffer = &mut self.memory.buffers[live.buffer];
            buffer.shared = false;
            for (at, bytes) in &live.staged {
                buffer.bytes[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            if !live.failed && buffer.bytes != spec.content {
                let at = buffer.bytes.iter().zip(&spec.content).position(|(a, b)| a != b);
                return Err(format!("command {command}: byte {at:?} is not what was sent"));
            }
            buffer.bytes = Vec::new();
            self.finished += 1;
        }
        self.move_buffer()
    }

    /// Registers another buffer for an active command under its tag.
    fn move_buffer(&mut self) -> Result<(), String> {
        if !happens(self.random, self.faults.moved) || self.registered == 0 {
            return Ok(());
        }
        let command =
            self.registered - 1 - self.random.below(4).min(self.registered as u64 - 1) as usize;
        let spec = &self.stream.commands[command];
        let Some(live) = self.live[command].as_mut().filter(|live| !live.closing) else {
            return Ok(());
        };
        if spec.unknown {
            return Ok(());
        }
        let moved = (|| {
            self.registrar.withdraw(live.registration)?;
            self.placement.remove(live.registration)?;
            self.registrar.acknowledged(live.registration)?;
            let registration = self.registrar.register(spec.tag)?;
            self.placement.add(registration, spec.content.len() as u32)?;
            Ok(registration)
        })();
        let moved: Result<_, crate::placement::PlacementError> = moved;
        live.registration = moved.map_err(|error| error.to_string())?;
        let old = &mut self.memory.buffers[live.buffer];
        old.shared = false;
        let bytes = old.bytes.clone();
        self.memory.buffers.push(Buffer { bytes, shared: true });
        live.buffer = self.memory.buffers.len() - 1;
        self.memory.registered.insert(live.registration, live.buffer);
        Ok(())
    }
}
