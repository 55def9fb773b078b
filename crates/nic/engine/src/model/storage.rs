//! The NVMe/TCP peer, plain or over TLS: commands whose data it sends in any order, and erroneous
//! data.

use std::ops::Range;

use unlade_testkit::Random;

use crate::Nvme;
use crate::model::pdus::{Pdu, agreed, any, data, pdu};
use crate::model::peer::{Secret, random_bytes};
use crate::nvme::types::{C2H_DATA, CAPSULE_RESP, H2C_DATA};
use crate::tls::Version;

/// Number of command tags.
pub(crate) const TAGS: u16 = 6;

/// Effect of a PDU on software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Unrelated to buffers.
    Nothing,
    /// Data of a command.
    Data(usize),
    /// Unrequested data: an error of the peer.
    Stray,
    /// The command is complete.
    Done(usize),
}

/// A command with its buffer's content.
pub(crate) struct Command {
    pub tag: u16,
    pub content: Vec<u8>,
    /// The first byte on the wire that must not be sent before the command is issued.
    pub gate: usize,
    /// The command is not registered with the device.
    pub unknown: bool,
}

/// Bounds of a record, in bytes on the wire.
pub(crate) struct RecordSpan {
    pub range: Range<usize>,
    /// Its content, in bytes of the inner stream, and the content's start on the wire.
    pub content: Range<usize>,
    pub content_at: usize,
}

/// The peer's complete stream.
pub(crate) struct Stream {
    pub nvme: Nvme,
    pub secret: Option<Secret>,
    pub pdus: Vec<(Pdu, Meaning)>,
    /// Starts of the PDUs in the inner stream.
    pub starts: Vec<usize>,
    pub commands: Vec<Command>,
    /// The form that software writes, and the form on the wire.
    pub written: Vec<u8>,
    pub wire: Vec<u8>,
    pub records: Vec<RecordSpan>,
    /// The inner stream in the form that software writes.
    pub inner_written: Vec<u8>,
}

/// Parameters of a random stream.
pub(crate) struct Shape {
    pub stream_bytes: usize,
    pub data_bytes_max: usize,
    pub record_bytes_max: usize,
    /// Average distance of false headers in the data, bytes.
    pub false_headers: Option<u64>,
    /// The peer sends erroneous data.
    pub mistakes: bool,
    /// Records with other content types.
    pub other_records: bool,
    /// Such records come only between PDUs.
    pub between: bool,
    /// Records that are padded.
    pub padding: bool,
    pub version: Option<Version>,
}

struct Open {
    command: usize,
    offset: usize,
}

impl Stream {
    pub fn random(random: &mut Random, shape: &Shape) -> Stream {
        let nvme = agreed(random);
        let mut stream = Stream {
            nvme,
            secret: shape.version.map(|version| Secret::random(random, version)),
            pdus: Vec::new(),
            starts: Vec::new(),
            commands: Vec::new(),
            written: Vec::new(),
            wire: Vec::new(),
            records: Vec::new(),
            inner_written: Vec::new(),
        };
        let starts = stream.talk(random, shape);
        match &stream.secret {
            None => {
                let join = |part: fn(&Pdu) -> &Vec<u8>| -> Vec<u8> {
                    stream.pdus.iter().flat_map(|(pdu, _)| part(pdu).clone()).collect()
                };
                (stream.written, stream.wire) = (join(|pdu| &pdu.written), join(|pdu| &pdu.wire));
                stream.inner_written = stream.written.clone();
                for (command, start) in stream.commands.iter_mut().zip(starts) {
                    command.gate = start;
                }
            }
            Some(_) => stream.seal(random, shape, &starts),
        }
        stream
    }

    /// Generates PDUs; returns the start of each command's first PDU in their stream.
    fn talk(&mut self, random: &mut Random, shape: &Shape) -> Vec<usize> {
        let pdu_type = if random.once_in(2) { C2H_DATA } else { H2C_DATA };
        let nvme = self.nvme;
        let mut open: Vec<Open> = Vec::new();
        let (mut starts, mut at) = (Vec::new(), 0);
        while at < shape.stream_bytes || !open.is_empty() {
            if at < shape.stream_bytes && open.len() < 4 && random.once_in(3) {
                self.open(random, shape, &mut open);
                starts.push(at);
            }
            let index = random.below(open.len() as u64) as usize;
            let (made, meaning) = match open.get_mut(index).filter(|_| !random.once_in(6)) {
                Some(_) if shape.mistakes && random.once_in(5) => {
                    (self.mistake(random, pdu_type, &open[index]), Meaning::Stray)
                }
                Some(current) => {
                    let command = &self.commands[current.command];
                    let left = command.content.len() - current.offset;
                    if left == 0 {
                        let mut fields = vec![0; 16];
                        fields[12..14].copy_from_slice(&command.tag.to_le_bytes());
                        let done = Meaning::Done(current.command);
                        open.swap_remove(index);
                        (pdu(&nvme, CAPSULE_RESP, &fields, &[], 0), done)
                    } else {
                        let length = (1 + random.below(left as u64) as usize).min(left);
                        let offset = current.offset;
                        let content = &command.content[offset..offset + length];
                        let made = data(&nvme, pdu_type, command.tag, offset as u32, content);
                        current.offset += length;
                        (made, Meaning::Data(current.command))
                    }
                }
                None => {
                    let length = random.below(shape.data_bytes_max as u64) as usize;
                    (any(random, &nvme, length.min(400)), Meaning::Nothing)
                }
            };
            self.starts.push(at);
            at += made.wire.len();
            self.pdus.push((made, meaning));
        }
        starts
    }

    fn open(&mut self, random: &mut Random, shape: &Shape, open: &mut Vec<Open>) {
        let used = |tag| open.iter().any(|open| self.commands[open.command].tag == tag);
        let Some(tag) = (0..TAGS).find(|tag| !used(*tag)) else { return };
        let length = 1 + random.below(shape.data_bytes_max as u64) as usize;
        let mut content = random_bytes(random, length);
        if let Some(once_in) = shape.false_headers {
            plant(random, &mut content, once_in);
        }
        open.push(Open { command: self.commands.len(), offset: 0 });
        let unknown = random.once_in(6);
        self.commands.push(Command { tag, content, gate: 0, unknown });
    }

    /// Erroneous data: unknown tag, beyond the buffer, or repeated.
    fn mistake(&self, random: &mut Random, pdu_type: u8, current: &Open) -> Pdu {
        let command = &self.commands[current.command];
        let length = command.content.len();
        let (tag, offset, bytes) = match random.below(4) {
            0 => (TAGS + random.below(9) as u16, 0, 1 + random.below(200) as usize),
            1 => (command.tag, length - random.below(length as u64) as usize, length + 1),
            2 => (command.tag, u32::MAX as usize - 5, 30),
            // Repeats earlier bytes, or the first bytes to come, with another content.
            _ if current.offset > 0 => {
                (command.tag, random.below(current.offset as u64) as usize, 1)
            }
            _ => (command.tag, length, 1),
        };
        data(&self.nvme, pdu_type, tag, offset as u32, &random_bytes(random, bytes))
    }

    /// Puts the PDUs into records. Each command starts with a new record.
    fn seal(&mut self, random: &mut Random, shape: &Shape, starts: &[usize]) {
        let Some(secret) = self.secret.clone() else { return };
        let sealed: Vec<u8> = self.pdus.iter().flat_map(|(pdu, _)| pdu.wire.clone()).collect();
        self.inner_written = self.pdus.iter().flat_map(|(pdu, _)| pdu.written.clone()).collect();
        let with_types = secret.version == Version::Tls13;
        let (mut at, mut number, mut next) = (0, 0, 0);
        while at < sealed.len() {
            while starts.get(next) == Some(&at) {
                self.commands[next].gate = self.wire.len();
                next += 1;
            }
            let is_between = self.starts.binary_search(&at).is_ok();
            let fits = with_types && shape.other_records && (is_between || !shape.between);
            if fits && random.once_in(8) {
                let length = 1 + random.below(40) as usize;
                let mut content = random_bytes(random, length);
                content.push(21 + random.below(2) as u8);
                self.put(&secret, &mut number, (at..at, &content, &content));
                continue;
            }
            let end = at + 1 + random.below(shape.record_bytes_max as u64) as usize;
            let mut cut = starts.get(next).copied().unwrap_or(sealed.len());
            if shape.between && random.once_in(4) {
                let behind = self.starts.partition_point(|start| *start <= at);
                cut = cut.min(self.starts.get(behind).copied().unwrap_or(cut));
            }
            let end = end.min(cut);
            let mut behind = Vec::new();
            if with_types {
                behind.push(23);
                if shape.padding && random.once_in(20) {
                    behind.resize(1 + random.below(30) as usize, 0);
                }
            }
            let written = [&self.inner_written[at..end], &behind].concat();
            let plaintext = [&sealed[at..end], &behind].concat();
            self.put(&secret, &mut number, (at..end, &written, &plaintext));
            at = end;
        }
    }

    fn put(&mut self, secret: &Secret, number: &mut u64, record: (Range<usize>, &[u8], &[u8])) {
        let (content, written, plaintext) = record;
        let (_, wire) = secret.record(*number, 7 + *number, plaintext);
        let (written, _) = secret.record(*number, 7 + *number, written);
        *number += 1;
        let start = self.wire.len();
        self.wire.extend(wire);
        self.written.extend(written);
        let range = start..self.wire.len();
        let content_at = start + secret.prefix_bytes();
        self.records.push(RecordSpan { range, content, content_at });
    }

    /// The PDU whose data contains the byte `at` on the wire, and the offset in its data.
    pub fn data_at(&self, at: usize) -> Option<(usize, usize)> {
        let inner = match self.secret {
            None => at,
            Some(_) => {
                let index = self.records.partition_point(|place| place.range.end <= at);
                let place = self.records.get(index)?;
                let end = place.content_at + place.content.len();
                if !(place.content_at..end).contains(&at) {
                    return None;
                }
                place.content.start + at - place.content_at
            }
        };
        let index = self.starts.partition_point(|start| *start <= inner) - 1;
        let (pdu, _) = &self.pdus[index];
        let data = self.starts[index] + pdu.ends[2]..self.starts[index] + pdu.ends[3];
        data.contains(&inner).then(|| (index, inner - data.start))
    }
}

/// Plants false headers of data PDUs.
fn plant(random: &mut Random, content: &mut [u8], once_in: u64) {
    let mut at = random.below(once_in) as usize;
    while at + 24 <= content.len() {
        let flags = 4 + random.below(4) as u8;
        let length = (24 + random.below(600)) as u32;
        content[at..at + 4].copy_from_slice(&[6 + random.below(2) as u8, flags, 24, 24]);
        content[at + 4..at + 8].copy_from_slice(&length.to_le_bytes());
        content[at + 8..at + 12].copy_from_slice(&[random.below(6) as u8, 0, 3, 0]);
        content[at + 12..at + 16].copy_from_slice(&[0; 4]);
        content[at + 16..at + 20].copy_from_slice(&(length - 24).to_le_bytes());
        at += 24 + random.below(once_in) as usize;
    }
}
