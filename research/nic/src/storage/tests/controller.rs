//! The far end: a controller with a disk in memory. It parses PDUs byte by byte, verifies each
//! digest with separate code, and answers in random order.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use crc32c::crc32c;
use unlade_nvme_wire::fabrics::{Connect, ConnectData};
use unlade_nvme_wire::opcode::FABRICS;
use unlade_nvme_wire::pdu::{Data, InitResponse, ReadyToTransfer};
use unlade_nvme_wire::{
    Command, CommonHeader, Completion, DataPlace, Digests, IoOpcode, Pdu, Status,
};

use unlade_testkit::Random;

/// Bytes of a block.
pub const BLOCK_BYTES: u32 = 512;
/// The controller's id.
pub const CONTROLLER: u16 = 0x1234;

/// Properties of the controller.
#[derive(Clone, Copy, Debug)]
pub struct ControllerConfig {
    /// Supported digests.
    pub digests: Digests,
    /// MAXH2CDATA.
    pub data_bytes_max: u32,
    /// CPDA.
    pub alignment_bytes: usize,
    /// Average number of PDUs between wrong data digests.
    pub wrong_once_in: Option<u64>,
    /// Average number of writes between failures, before or after the data has come.
    pub refused_once_in: Option<u64>,
}

/// A PDU to send.
pub struct ControllerPdu {
    pub pdu: Pdu,
    pub data: Bytes,
    /// True if its data digest is wrong.
    pub wrong: bool,
}

struct Reading {
    cid: u16,
    start: usize,
    sent: usize,
    wanted: usize,
}

struct Writing {
    cid: u16,
    start: usize,
    data: Vec<u8>,
    have: usize,
    /// The outstanding request: the transfer's tag and length.
    asked: Option<(u16, usize)>,
    refused: bool,
}

/// The far end.
pub struct Controller {
    habits: ControllerConfig,
    pub disk: Vec<u8>,
    /// The digests after the set-up.
    agreed: Digests,
    heard: Vec<u8>,
    reads: Vec<Reading>,
    writes: Vec<Writing>,
    out: VecDeque<ControllerPdu>,
    tags: u16,
    /// Identifiers of commands whose data was sent with a wrong digest, or that were refused.
    pub wrong: Vec<u16>,
    pub refused: Vec<u16>,
    /// Data in capsules, and for requests.
    pub in_capsule: u64,
    pub transferred: u64,
    /// Commands by opcode.
    pub commands: BTreeMap<u8, u64>,
    pub connected: bool,
}

impl Controller {
    pub fn new(habits: ControllerConfig, disk: Vec<u8>) -> Controller {
        Controller {
            habits,
            disk,
            agreed: Digests::NONE,
            heard: Vec::new(),
            reads: Vec::new(),
            writes: Vec::new(),
            out: VecDeque::new(),
            tags: 0,
            wrong: Vec::new(),
            refused: Vec::new(),
            in_capsule: 0,
            transferred: 0,
            commands: BTreeMap::new(),
            connected: false,
        }
    }

    pub fn agreed(&self) -> Digests {
        self.agreed
    }

    /// Takes bytes; returns true if digests were agreed.
    pub fn hear(&mut self, raw: &[u8], random: &mut Random) {
        self.heard.extend(raw);
        loop {
            let Ok(common) = CommonHeader::parse(&self.heard) else {
                assert!(self.heard.len() < 8, "no PDU: {:x?}", &self.heard[..8]);
                return;
            };
            let bytes = common.bytes as usize;
            if self.heard.len() < bytes {
                return;
            }
            let raw: Vec<u8> = self.heard.drain(..bytes).collect();
            common.agrees_with(self.agreed, self.habits.alignment_bytes).unwrap();
            let layout = common.layout();
            let header = &raw[..layout.header_bytes];
            if layout.has_header_digest {
                let digest = &raw[layout.header_bytes..layout.header_bytes + 4];
                assert_eq!(digest, crc32c(header).to_le_bytes(), "a header's digest");
            }
            let data = &raw[layout.data.clone()];
            if layout.has_data_digest {
                assert_eq!(raw[layout.data.end..], crc32c(data).to_le_bytes(), "data's digest");
            }
            self.take(Pdu::parse(&common, header).unwrap(), data, random);
        }
    }

    fn take(&mut self, pdu: Pdu, data: &[u8], random: &mut Random) {
        match pdu {
            Pdu::InitRequest(init) => {
                assert_eq!((init.version, init.transfers_max), (0, 1));
                let digests = init.digests.and(self.habits.digests);
                let ControllerConfig { data_bytes_max, alignment_bytes, .. } = self.habits;
                let answer = InitResponse { version: 0, alignment_bytes, digests, data_bytes_max };
                self.say(Pdu::InitResponse(answer), Bytes::new());
                self.agreed = digests;
            }
            Pdu::CommandCapsule(entry) => self.command(Command::new(entry), data, random),
            Pdu::HostData(said) => self.data(said, data),
            other => panic!("{other:?}"),
        }
    }

    fn say(&mut self, pdu: Pdu, data: Bytes) {
        self.out.push_back(ControllerPdu { pdu, data, wrong: false });
    }

    fn complete(&mut self, cid: u16, status: Status, result: u64) {
        let completion = Completion { result, ..Completion::new(cid, status) };
        self.say(Pdu::ResponseCapsule(completion.encode()), Bytes::new());
    }

    fn command(&mut self, command: Command, data: &[u8], random: &mut Random) {
        *self.commands.entry(command.opcode()).or_default() += 1;
        let cid = command.id();
        if command.opcode() == FABRICS {
            let connect = Connect::parse(&command);
            let names = ConnectData::parse(data).unwrap();
            assert_eq!((connect.queue, names.host_id), (1, [7; 16]));
            self.connected = true;
            return self.complete(cid, Status::SUCCESS, CONTROLLER.into());
        }
        assert!(self.connected);
        let start = command.first_block() as usize * BLOCK_BYTES as usize;
        let wanted = (command.block_count() * BLOCK_BYTES) as usize;
        let place = command.data().unwrap();
        assert_eq!(place.bytes() as usize, wanted);
        if command.opcode() == IoOpcode::Read as u8 {
            assert!(data.is_empty());
            return self.reads.push(Reading { cid, start, sent: 0, wanted });
        }
        assert_eq!(command.opcode(), IoOpcode::Write as u8);
        let in_capsule = place == DataPlace::InCapsule { offset: 0, bytes: wanted as u32 };
        assert_eq!(data.len(), if in_capsule { wanted } else { 0 });
        self.in_capsule += data.len() as u64;
        let refused = self.habits.refused_once_in.is_some_and(|times| random.once_in(times));
        let mut all = data.to_vec();
        all.resize(wanted, 0);
        let have = data.len();
        self.writes.push(Writing { cid, start, data: all, have, asked: None, refused });
    }

    fn data(&mut self, said: Data, data: &[u8]) {
        assert!(data.len() <= self.habits.data_bytes_max as usize);
        let writing = self.writes.iter_mut().find(|writing| writing.cid == said.command_id);
        // The data is of a write that was refused.
        let Some(writing) = writing else { return };
        let (tag, end) = writing.asked.expect("data that was asked for");
        assert_eq!((said.transfer_tag, said.offset as usize), (tag, writing.have));
        writing.data[writing.have..writing.have + data.len()].copy_from_slice(data);
        writing.have += data.len();
        self.transferred += data.len() as u64;
        assert!(writing.have <= end);
        assert_eq!(said.is_last, writing.have == end);
        if said.is_last {
            writing.asked = None;
        }
    }

    /// The next PDU, at random.
    pub fn next(&mut self, random: &mut Random) -> Option<ControllerPdu> {
        if self.out.is_empty() {
            match random.once_in(2) {
                true => self.read(random),
                false => self.write(random),
            }
        }
        self.out.pop_front()
    }

    fn read(&mut self, random: &mut Random) {
        let index = random.below(self.reads.len() as u64) as usize;
        let Some(reading) = self.reads.get_mut(index) else { return };
        let left = reading.wanted - reading.sent;
        let some = 1 + random.below(left as u64) as usize;
        let bytes = if random.once_in(3) { left } else { some };
        let from = reading.start + reading.sent;
        let data = Bytes::copy_from_slice(&self.disk[from..from + bytes]);
        let is_last = bytes == left;
        let is_success = is_last && random.once_in(2);
        let said = Data {
            command_id: reading.cid,
            transfer_tag: 0,
            offset: reading.sent as u32,
            bytes: bytes as u32,
            is_last,
            is_success,
        };
        reading.sent += bytes;
        let cid = reading.cid;
        if is_last {
            self.reads.remove(index);
        }
        let digest = self.agreed.data;
        let wrong = digest && self.habits.wrong_once_in.is_some_and(|times| random.once_in(times));
        if wrong {
            self.wrong.push(cid);
        }
        self.out.push_back(ControllerPdu { pdu: Pdu::ControllerData(said), data, wrong });
        if is_last && !is_success {
            self.complete(cid, Status::SUCCESS, 0);
        }
    }

    fn write(&mut self, random: &mut Random) {
        let index = random.below(self.writes.len() as u64) as usize;
        let Some(writing) = self.writes.get_mut(index) else { return };
        let left = writing.data.len() - writing.have;
        if (writing.refused && random.once_in(2)) || (left == 0 && writing.asked.is_none()) {
            let writing = self.writes.remove(index);
            let status = match writing.refused {
                true => Status::WRITE_PROTECTED,
                false => {
                    let end = writing.start + writing.data.len();
                    self.disk[writing.start..end].copy_from_slice(&writing.data);
                    Status::SUCCESS
                }
            };
            if writing.refused {
                self.refused.push(writing.cid);
            }
            return self.complete(writing.cid, status, 0);
        }
        if writing.asked.is_some() {
            return;
        }
        self.tags = self.tags.wrapping_add(1);
        let most = (left / 4) as u64;
        let bytes = if random.once_in(2) { left } else { 4 * (1 + random.below(most)) as usize };
        let bytes = bytes.min(left);
        writing.asked = Some((self.tags, writing.have + bytes));
        let ready = ReadyToTransfer {
            command_id: writing.cid,
            transfer_tag: self.tags,
            offset: writing.have as u32,
            bytes: bytes as u32,
        };
        self.say(Pdu::ReadyToTransfer(ready), Bytes::new());
    }
}

impl ControllerPdu {
    /// Its bytes, with digests by software.
    pub fn bytes(&self, digests: Digests) -> Vec<u8> {
        let common = self.pdu.common(self.data.len(), digests, 4);
        let layout = common.layout();
        let mut raw = Vec::new();
        self.pdu.write(&common, &mut raw);
        if layout.has_header_digest {
            let digest = crc32c(&raw);
            raw.extend(digest.to_le_bytes());
        }
        raw.extend(&self.data[..]);
        if layout.has_data_digest {
            raw.extend((crc32c(&self.data) ^ u32::from(self.wrong)).to_le_bytes());
        }
        raw
    }
}
