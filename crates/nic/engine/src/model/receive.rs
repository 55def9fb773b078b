//! Receiving TLS: device, TCP and software against the peer's stream.

use std::collections::VecDeque;

use unlade_net::SeqNumber;
use unlade_testkit::Random;

use crate::Stats;
use crate::model::peer::{Shape, Stream, random_bytes};
use crate::resync::{Extent, Request, Response, Worked};
use crate::rx::Rx;
use crate::software::boundaries::REMEMBERED_MAX;
use crate::software::records::Records;
use crate::tls::{HEADER_BYTES, Progress, TAG_BYTES, Tls, Version};

/// Fault rates of a case.
struct FaultRates {
    segment_bytes_max: u64,
    window_bytes: usize,
    /// Each fault occurs once in the given number of packets; 0 means never.
    lost: u64,
    doubled: u64,
    out_of_order: u64,
    /// A packet that the device processes, and TCP rejects.
    refused: u64,
    /// A packet that was never sent, which TCP rejects.
    stray: u64,
    /// A packet with a changed byte, which TCP accepts.
    forged: u64,
    keepalive: u64,
    answer_steps_max: u64,
    /// Of duplicate bytes TCP keeps the last copy.
    newer_wins: bool,
    /// The device presumes numbers.
    presumes: bool,
}

fn sometimes(random: &mut Random, most: u64) -> u64 {
    if random.once_in(3) { 0 } else { 2 + random.below(most) }
}

fn happens(random: &mut Random, once_in: u64) -> bool {
    once_in > 0 && random.once_in(once_in)
}

impl FaultRates {
    fn random(random: &mut Random) -> FaultRates {
        let sizes = [3, 20, 200, 1448, 1448, 5000];
        let segment_bytes_max = sizes[random.below(6) as usize];
        FaultRates {
            segment_bytes_max,
            window_bytes: (segment_bytes_max * (2 + random.below(30))) as usize,
            lost: sometimes(random, 30),
            doubled: sometimes(random, 30),
            out_of_order: sometimes(random, 20),
            refused: if random.once_in(4) { 2 + random.below(60) } else { 0 },
            stray: if random.once_in(6) { 5 + random.below(60) } else { 0 },
            forged: if random.once_in(6) { 20 + random.below(200) } else { 0 },
            keepalive: sometimes(random, 20),
            answer_steps_max: random.below(40),
            newer_wins: random.once_in(3),
            presumes: random.once_in(2),
        }
    }

    /// Returns true if the device is expected to resynchronise soon.
    fn is_honest(&self) -> bool {
        self.stray == 0 && self.forged == 0
    }
}

struct Segment {
    at: usize,
    bytes: Vec<u8>,
    forged: bool,
}

/// TCP's receive state.
struct Tcp {
    bytes: Vec<u8>,
    have: Vec<bool>,
    worked: Vec<Option<Worked>>,
    next: usize,
    /// TCP, or only the device, has bytes that the peer did not send.
    deceived: bool,
}

impl Tcp {
    fn take(&mut self, at: usize, view: &[u8], worked: Option<Worked>, newer_wins: bool) {
        for (index, &byte) in view.iter().enumerate() {
            let at = at + index;
            if at >= self.next && (!self.have[at] || newer_wins) {
                self.have[at] = true;
                self.bytes[at] = byte;
                self.worked[at] = worked;
            }
        }
    }

    /// The next bytes with common metadata, and the metadata.
    fn run(&self) -> (std::ops::Range<usize>, Option<Worked>) {
        let mut said = self.worked.get(self.next).copied().flatten();
        let mut end = self.next;
        while end < self.have.len() && self.have[end] {
            said = match (said, self.worked[end]) {
                (None, None) => None,
                (Some(said), Some(next)) => match said.join(next) {
                    Some(both) => Some(both),
                    None => break,
                },
                _ => break,
            };
            end += 1;
        }
        (self.next..end, said)
    }
}

struct World<'r> {
    random: &'r mut Random,
    faults: FaultRates,
    stream: Stream,
    isn: SeqNumber,
    keys: Vec<Tls>,
    /// The device's current key.
    device_key: usize,
    rx: Rx<Progress>,
    stats: Stats,
    out: Vec<u8>,
    network: VecDeque<Segment>,
    tcp: Tcp,
    records: Records,
    released: usize,
    asked: VecDeque<(u64, Request)>,
    answered: VecDeque<(u64, Response)>,
    restart: Option<(u64, SeqNumber, u16)>,
    /// Number of bytes sent.
    sent: usize,
    steps: u64,
    /// Number of bytes sent when the faults ended.
    calm_from: Option<usize>,
    /// Bytes that the device got since the faults ended.
    calm_bytes: usize,
    /// Number of these bytes until the device was synchronised.
    back_after: Option<usize>,
    /// Packets since then that were not decrypted.
    missed: u64,
}

/// One connection.
///
/// # Errors
/// A difference from the model.
pub(crate) fn run(random: &mut Random) -> Result<Stats, String> {
    let version = if random.once_in(2) { Version::Tls12 } else { Version::Tls13 };
    let faults = FaultRates::random(random);
    let stream_bytes = (faults.segment_bytes_max as usize * 300).clamp(4000, 250_000);
    let sizes = [20, 300, 2000, 16384 - 256];
    let plaintext_bytes_max = sizes[random.below(4) as usize].min(stream_bytes / 16);
    let shape = Shape {
        stream_bytes,
        plaintext_bytes_max,
        false_headers: random.once_in(4).then(|| 20 + random.below(1500)),
        keys: if random.once_in(4) { 1 + random.below(2) as usize } else { 0 },
        regular: random.once_in(2),
    };
    let stream = Stream::random(random, version, &shape);
    // Most streams cross 2^32.
    let isn = match random.below(3) {
        0 => SeqNumber(random.next() as u32),
        _ => SeqNumber(0u32.wrapping_sub(random.below(stream_bytes as u64) as u32)),
    };
    let keys: Vec<Tls> = stream.secrets.iter().map(|secret| secret.tls()).collect();
    let total = stream.wire.len();
    let records = Records::new(stream.secrets[0].tls(), isn, stream.number);
    let tcp = Tcp {
        bytes: vec![0; total],
        have: vec![false; total],
        worked: vec![None; total],
        next: 0,
        deceived: false,
    };
    // A response arrives before software has forgotten the boundary.
    let asked_bytes = 2 * (faults.answer_steps_max + 2) * faults.segment_bytes_max;
    let remembered_bytes = REMEMBERED_MAX * total / stream.records.len();
    let soon = faults.is_honest()
        && shape.false_headers.is_none()
        && asked_bytes as usize + faults.window_bytes < remembered_bytes;
    let mut rx = Rx::new(isn, stream.number);
    rx.presume(faults.presumes);
    let mut world = World {
        random,
        faults,
        isn,
        keys,
        device_key: 0,
        rx,
        stats: Stats::default(),
        out: vec![0; 1 << 16],
        network: VecDeque::new(),
        tcp,
        records,
        released: 0,
        asked: VecDeque::new(),
        answered: VecDeque::new(),
        restart: None,
        sent: 0,
        steps: 0,
        calm_from: None,
        calm_bytes: 0,
        back_after: None,
        missed: 0,
        stream,
    };
    world.play(soon)?;
    Ok(world.stats)
}

impl World<'_> {
    fn total(&self) -> usize {
        self.stream.wire.len()
    }

    /// Returns true if the faults have ended and the device gets new bytes.
    fn is_calm(&mut self) -> bool {
        if self.calm_from.is_none() && self.tcp.next > self.total() / 2 {
            self.calm_from = Some(self.sent);
        }
        self.calm_from.is_some_and(|from| self.tcp.next >= from)
    }

    fn play(&mut self, soon: bool) -> Result<(), String> {
        let limit = 400 * (self.total() as u64 / self.faults.segment_bytes_max + 50);
        while self.tcp.next < self.total() {
            self.steps += 1;
            if self.steps > limit {
                return Err(format!("hangs at {} of {}", self.tcp.next, self.total()));
            }
            let late = self.tcp.next > self.total() / 2;
            self.send(late);
            let segment = self.deliver(late);
            if let Some(segment) = segment {
                self.arrive(&segment)?;
            }
            self.talk()?;
            match self.read() {
                Ok(()) => (),
                // An error is correct if TCP got bytes that were never sent.
                Err(_) if self.tcp.deceived => return Ok(()),
                Err(why) => return Err(why),
            }
        }
        if self.released != self.stream.records.len() && !self.tcp.deceived {
            return Err(format!("{} records released", self.released));
        }
        if soon {
            self.judge_return()?;
        }
        Ok(())
    }

    /// Checks that without loss the device resynchronises within a few records and a response
    /// time.
    fn judge_return(&self) -> Result<(), String> {
        let longest = self.stream.records.iter().map(|record| record.end - record.start).max();
        let steps = 2 * self.faults.answer_steps_max as usize + 10;
        let bound = 4 * longest.unwrap_or(0)
            + steps * self.faults.segment_bytes_max as usize
            + 2 * self.faults.window_bytes;
        match self.back_after {
            Some(bytes) if bytes <= bound && self.missed == 0 => Ok(()),
            // The second half was too short for a judgement.
            None if self.calm_bytes <= bound => Ok(()),
            back => Err(format!(
                "back after {back:?} of {} bytes, {bound} expected, {} packets missed",
                self.calm_bytes, self.missed
            )),
        }
    }

    fn send(&mut self, late: bool) {
        if self.network.len() >= 12 {
            return;
        }
        let length = 1 + self.random.below(self.faults.segment_bytes_max) as usize;
        let window = self.tcp.next + self.faults.window_bytes;
        let again = match late {
            true => self.network.is_empty() && self.sent >= window.min(self.total()),
            false => self.random.once_in(4),
        };
        if !again && self.sent < window.min(self.total()) {
            let end = (self.sent + length).min(self.total());
            self.put(self.sent, end);
            self.sent = end;
        } else if self.tcp.next < self.sent && (again || self.network.is_empty()) {
            // A retransmission with other segment boundaries.
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
        let mut forged = false;
        if happens(self.random, self.faults.forged) {
            let index = self.random.below(bytes.len() as u64) as usize;
            bytes[index] ^= 1 << self.random.below(8);
            forged = true;
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

    /// Injects packets that TCP rejects.
    fn disturb(&mut self) {
        let random = &mut *self.random;
        let (tls, stats, out) = (&self.keys[self.device_key], &mut self.stats, &mut self.out[..]);
        if happens(random, self.faults.keepalive) {
            let before = format!("{:?}", self.rx);
            let seq = self.isn + random.below(self.sent as u64 + 1) as u32;
            let received = self.rx.receive(tls, stats, seq, &[], out);
            assert_eq!((received.pass, received.request), (None, None));
            assert_eq!(before, format!("{:?}", self.rx), "an empty packet changes something");
            if self.tcp.next > 0 {
                let seq = self.isn + (self.tcp.next as u32 - 1);
                let received = self.rx.receive(tls, stats, seq, &[random.next() as u8], out);
                // The request is outdated, and is not delivered.
                if let Some(request) = received.request {
                    self.asked.push_back((self.steps, request));
                }
            }
        }
        if happens(random, self.faults.stray) {
            let distance = match random.below(3) {
                0 => self.sent as u32 + random.below(1 << 30) as u32,
                _ => random.below(2 * self.sent as u64 + 10) as u32,
            };
            let length = 1 + random.below(300) as usize;
            let mut payload = random_bytes(random, length);
            let at = random.below(length as u64) as usize;
            for (byte, mark) in payload[at..].iter_mut().zip([23, 3, 3, 0, 40]) {
                *byte = mark;
            }
            let expected = self.rx.expected();
            let received = self.rx.receive(tls, stats, self.isn + distance, &payload, out);
            self.tcp.deceived |= self.rx.expected() != expected;
            if let Some(request) = received.request {
                self.asked.push_back((self.steps, request));
            }
        }
    }

    fn arrive(&mut self, segment: &Segment) -> Result<(), String> {
        let seq = self.isn + segment.at as u32;
        let calm = self.is_calm();
        let next = segment.at == self.tcp.next;
        let tls = &self.keys[self.device_key];
        let payload = &segment.bytes[..];
        let received = self.rx.receive(tls, &mut self.stats, seq, payload, &mut self.out);
        if let Some(worked) = received.worked() {
            self.compare(segment, &worked, received.from as usize)?;
        }
        if let Some(request) = received.request {
            self.check_request(&request)?;
            let due = self.steps + self.random.below(self.faults.answer_steps_max + 1);
            self.asked.push_back((due, request));
        }
        if calm && next && self.restart.is_none() {
            self.missed += u64::from(self.back_after.is_some() && received.pass.is_none());
            self.calm_bytes += payload.len();
            if received.pass.is_some() && self.back_after.is_none() {
                self.back_after = Some(self.calm_bytes);
            }
        }
        self.tcp.deceived |= segment.forged;
        if happens(self.random, self.faults.refused) && self.tcp.next < self.total() / 2 {
            return Ok(());
        }
        let (from, newer_wins) = (received.from as usize, self.faults.newer_wins);
        let (head, rest) = match received.pass {
            Some(_) => (&payload[..from], &self.out[from..payload.len()]),
            None => (payload, &[][..]),
        };
        self.tcp.take(segment.at, head, None, newer_wins);
        self.tcp.take(segment.at + from, rest, received.worked(), newer_wins);
        Ok(())
    }

    /// Checks that decrypted bytes match the peer's, with headers, nonces and tags unchanged.
    fn compare(&self, segment: &Segment, worked: &Worked, from: usize) -> Result<(), String> {
        if !self.faults.is_honest() {
            return Ok(());
        }
        let (start, end) = (segment.at + from, segment.at + segment.bytes.len());
        let places = &self.stream.records;
        let first = places.partition_point(|place| place.end <= start);
        let Some(place) = places.get(first) else { return Err("beyond the stream".to_owned()) };
        let Extent { start: message, number, .. } = worked.message;
        let is_own = (message, number) == (self.isn + place.start as u32, self.number_of(first));
        match is_own || place.key != worked.pass.key {
            true => (),
            false if self.faults.presumes => return Ok(()),
            false => return Err(format!("byte {start} was taken for one of {worked:?}")),
        }
        for place in places[first..].iter().take_while(|place| place.start < end) {
            // Under the previous key the output is not plaintext, whatever the result is.
            if place.key != worked.pass.key {
                continue;
            }
            for at in place.start.max(start)..place.end.min(end) {
                let is_tag = at >= place.end - TAG_BYTES;
                let right = if is_tag { self.stream.wire[at] } else { self.stream.written[at] };
                if self.out[at - segment.at] != right {
                    return Err(format!("byte {at} was not decrypted rightly"));
                }
            }
        }
        Ok(())
    }

    /// The number of a record under its key.
    fn number_of(&self, index: usize) -> u64 {
        let places = &self.stream.records;
        let key = places[index].key;
        let first = places.partition_point(|place| place.key < key);
        let before = if key == 0 { self.stream.number } else { 0 };
        before + (index - first) as u64
    }

    /// Checks that the device requests only positions with a plausible header.
    fn check_request(&self, request: &Request) -> Result<(), String> {
        if !self.faults.is_honest() {
            return Ok(());
        }
        let at = request.tcpsn.0.wrapping_sub(self.isn.0) as usize;
        let header = self.stream.wire.get(at..).and_then(|bytes| bytes.get(..5));
        let header = header.ok_or("asks beyond the stream")?;
        let length = usize::from(header[3]) << 8 | usize::from(header[4]);
        let (least, most) = match self.stream.secrets[0].version {
            Version::Tls12 => (24, 18432),
            Version::Tls13 => (17, 16640),
        };
        match header[1..3] == [3, 3] && (least..=most).contains(&length) {
            true => Ok(()),
            false => Err(format!("asks for {header:?}")),
        }
    }

    /// Delivers requests, responses and keys.
    fn talk(&mut self) -> Result<(), String> {
        let steps = self.steps;
        while self.asked.front().is_some_and(|(due, _)| *due <= steps) {
            let (_, request) = self.asked.pop_front().ok_or("gone")?;
            self.records.request(request);
        }
        if let Some(response) = self.records.response() {
            let due = steps + self.random.below(self.faults.answer_steps_max + 1);
            self.answered.push_back((due, response));
        }
        while self.answered.front().is_some_and(|(due, _)| *due <= steps) {
            let (_, response) = self.answered.pop_front().ok_or("gone")?;
            self.rx.respond(&mut self.stats, &response);
        }
        if let Some((_, start, key)) = self.restart.take_if(|(due, ..)| *due <= steps) {
            self.rx.restart(start, 0, key);
            self.device_key = usize::from(key);
        }
        Ok(())
    }

    /// Software reads from TCP.
    fn read(&mut self) -> Result<(), String> {
        loop {
            if self.random.once_in(2) && self.skip() {
                self.follow_key();
                continue;
            }
            let (run, worked) = self.tcp.run();
            if run.is_empty() {
                return Ok(());
            }
            let taken = self.records.push(&self.tcp.bytes[run], worked);
            self.tcp.next += taken.map_err(|error| error.to_string())?;
            let opened = self.records.open(&mut self.stats).map_err(|error| error.to_string())?;
            let Some(record) = opened else { continue };
            let place = &self.stream.records[self.released];
            let prefix = self.stream.secrets[0].prefix_bytes();
            let right = &self.stream.written[place.start + prefix..place.end - TAG_BYTES];
            if record.plaintext != right {
                // Worse than an error: no disturbance excuses it.
                self.tcp.deceived = false;
                return Err(format!("record {} is not what was sent", self.released));
            }
            self.released += 1;
            self.follow_key();
        }
    }

    /// Takes the next record in place, if its metadata proves it authentic.
    fn skip(&mut self) -> bool {
        let Some(place) = self.stream.records.get(self.released) else { return false };
        let range = place.start..place.end;
        let whole =
            self.tcp.next == place.start && self.tcp.have[range.clone()].iter().all(|&have| have);
        // Software sees the header.
        let seen = &self.tcp.bytes[range.clone()];
        if !whole || seen[..HEADER_BYTES] != self.stream.wire[range.clone()][..HEADER_BYTES] {
            return false;
        }
        let worked = self.tcp.worked[range.clone()].iter().copied();
        let bytes = range.len() as u32;
        if self.records.skip_offloaded(&mut self.stats, bytes, worked).is_none() {
            return false;
        }
        let content = ..seen.len() - TAG_BYTES;
        let right = &self.stream.written[range.clone()][content];
        assert_eq!(&seen[content], right, "record {} is not what was sent", self.released);
        self.tcp.next = range.end;
        self.released += 1;
        true
    }

    /// Follows a key change of the peer.
    fn follow_key(&mut self) {
        let key = self.stream.records[self.released - 1].key;
        let next = self.stream.records.get(self.released);
        if let Some(next) = next.filter(|next| next.key != key) {
            let tls = self.stream.secrets[usize::from(next.key)].tls();
            let key = self.records.change_key(tls);
            let due = self.steps + self.random.below(self.faults.answer_steps_max + 1);
            self.restart = Some((due, self.records.start(), key));
        }
    }
}
