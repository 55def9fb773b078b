//! A controller for I/O commands on a disk in memory, which can inject one fault.

use std::collections::{BTreeSet, VecDeque};

use unlade_aead::crc32c;
use unlade_nvme_wire::pdu::{Data, ReadyToTransfer, Terminate};
use unlade_nvme_wire::{
    Command, CommonHeader, Completion, DataPlace, Digests, IoOpcode, Pdu, Status,
};
use unlade_testkit::Random;

use super::super::queue::{DEPTH_MAX, QueueError, Settings};
use super::REGION_BLOCKS;

pub(super) const BLOCK_BYTES: usize = 512;

/// A fault of the controller, injected once, at the first occasion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// A completion of a command that is not in flight.
    UnknownId,
    /// A completion with another generation of the slot in use.
    StaleId,
    /// The same completion twice.
    TwiceCompleted,
    /// The same data twice.
    TwiceData,
    /// Data beyond the end.
    DataBeyond,
    /// Success before all data came.
    ShortRead,
    /// Success before all data was asked for.
    ShortWrite,
    /// Data for a write.
    DataForWrite,
    /// R2T for a read.
    ReadyForRead,
    /// R2T beyond the end.
    ReadyBeyond,
    /// The same R2T twice.
    TwiceReady,
    /// More R2T at a time than was allowed.
    TooManyReady,
    /// An R2T of length zero.
    EmptyReady,
    /// A byte of data changed, under a data digest.
    FlippedData,
    /// A byte of a header changed, under a header digest.
    FlippedHeader,
    /// A PDU type of hosts.
    HostPdu,
    /// Bytes that are not a PDU.
    Garbage,
    /// It ends the connection.
    Terminate,
    /// SUCCESS in data that is not the last.
    EarlySuccess,
}

type IsIt = fn(&QueueError) -> bool;

impl Fault {
    pub(super) const ALL: [Fault; 19] = [
        Fault::UnknownId,
        Fault::StaleId,
        Fault::TwiceCompleted,
        Fault::TwiceData,
        Fault::DataBeyond,
        Fault::ShortRead,
        Fault::ShortWrite,
        Fault::DataForWrite,
        Fault::ReadyForRead,
        Fault::ReadyBeyond,
        Fault::TwiceReady,
        Fault::TooManyReady,
        Fault::EmptyReady,
        Fault::FlippedData,
        Fault::FlippedHeader,
        Fault::HostPdu,
        Fault::Garbage,
        Fault::Terminate,
        Fault::EarlySuccess,
    ];

    /// The errors that may report it.
    pub(super) fn errors(self) -> &'static [IsIt] {
        use QueueError as E;
        match self {
            Fault::UnknownId | Fault::StaleId | Fault::TwiceCompleted => {
                &[|e| matches!(e, E::UnknownCommand(_))]
            }
            Fault::TwiceData
            | Fault::DataBeyond
            | Fault::DataForWrite
            | Fault::ReadyForRead
            | Fault::ReadyBeyond
            | Fault::EmptyReady
            | Fault::TwiceReady => &[|e| matches!(e, E::OutOfRange(_))],
            Fault::ShortRead | Fault::ShortWrite => &[|e| matches!(e, E::Incomplete(_))],
            Fault::TooManyReady => &[|e| matches!(e, E::LimitExceeded(_))],
            Fault::FlippedHeader => &[|e| matches!(e, E::HeaderDigest)],
            // Detected when the command ends, or at once if its header is read as another one's.
            Fault::FlippedData => &[],
            // It has no response flag: its command is unknown, or the PDU is unexpected.
            Fault::HostPdu => &[|e| matches!(e, E::Unexpected(_)), |e| matches!(e, E::Malformed)],
            Fault::Garbage | Fault::EarlySuccess => &[|e| matches!(e, E::Malformed)],
            Fault::Terminate => &[|e| matches!(e, E::Terminated { status: 2, .. })],
        }
    }
}

struct Work {
    command: Command,
    /// Position of its bytes on the disk.
    start: usize,
    bytes: usize,
    /// Parts that are still to be sent or requested.
    parts: VecDeque<(usize, usize)>,
    /// Requested and not received.
    waiting: Vec<(u16, usize, usize)>,
    is_write: bool,
    fails: bool,
    received: Vec<u8>,
}

pub(super) struct Model {
    settings: Settings,
    pub(super) disk: Vec<u8>,
    incoming: Vec<u8>,
    pub(super) outgoing: VecDeque<u8>,
    work: Vec<Work>,
    pub(super) fault: Option<Fault>,
    /// Regions of failed commands.
    pub(super) failed: BTreeSet<usize>,
    pub(super) flipped: u32,
    next_tag: u16,
    /// Length of the parts of data.
    part_bytes: usize,
    uses_success_flag: bool,
    alignment_bytes: usize,
}

fn is_due(fault: &mut Option<Fault>, this: Fault) -> bool {
    if *fault == Some(this) {
        *fault = None;
        return true;
    }
    false
}

impl Model {
    pub(super) fn new(settings: Settings, blocks: usize, random: &mut Random) -> Model {
        Model {
            settings,
            disk: (0..blocks * BLOCK_BYTES).map(|_| random.next() as u8).collect(),
            incoming: Vec::new(),
            outgoing: VecDeque::new(),
            work: Vec::new(),
            fault: None,
            failed: BTreeSet::new(),
            flipped: 0,
            next_tag: random.next() as u16,
            part_bytes: [64, 512, 1000, 4096][random.below(4) as usize],
            uses_success_flag: random.once_in(2),
            alignment_bytes: 4 << random.below(4),
        }
    }

    /// Takes bytes of the host; any error in them is a bug of the queue.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
        while self.incoming.len() >= 8 {
            let common = CommonHeader::parse(&self.incoming).unwrap();
            let Settings { digests, alignment_bytes, .. } = self.settings;
            common.agrees_with(digests, alignment_bytes).unwrap();
            let layout = common.layout();
            if self.incoming.len() < layout.bytes {
                return;
            }
            let whole: Vec<u8> = self.incoming.drain(..layout.bytes).collect();
            let digest_at = |at: usize| u32::from_le_bytes(whole[at..at + 4].try_into().unwrap());
            if layout.has_header_digest {
                let head = &whole[..layout.header_bytes];
                assert_eq!(crc32c::update(0, head), digest_at(layout.header_bytes));
            }
            let data = &whole[layout.data.clone()];
            if layout.has_data_digest {
                assert_eq!(crc32c::update(0, data), digest_at(layout.data.end));
            }
            match Pdu::parse(&common, &whole).unwrap() {
                Pdu::CommandCapsule(entry) => self.command(Command::new(entry), data),
                Pdu::HostData(header) => self.data(&header, data),
                other => panic!("the host sends {other:?}"),
            }
        }
    }

    fn command(&mut self, command: Command, data: &[u8]) {
        let bytes = command.block_count() as usize * BLOCK_BYTES;
        let start = command.first_block() as usize * BLOCK_BYTES;
        let is_write = command.opcode() == IoOpcode::Write as u8;
        assert!(self.work.iter().all(|work| work.command.id() != command.id()), "in use");
        let in_capsule = is_write && bytes <= self.settings.in_capsule_bytes as usize;
        let place = command.data().unwrap();
        assert_eq!(place.bytes() as usize, bytes);
        assert_eq!(matches!(place, DataPlace::InCapsule { offset: 0, .. }), in_capsule);
        assert_eq!(data.len(), if in_capsule { bytes } else { 0 });
        let step = self.part_bytes;
        let all = (0..bytes).step_by(step).map(|at| (at, step.min(bytes - at)));
        let parts = if in_capsule { VecDeque::new() } else { all.collect() };
        let received = if in_capsule { data.to_vec() } else { vec![0; bytes] };
        let (waiting, fails) = (Vec::new(), false);
        let work = Work { command, start, bytes, parts, waiting, is_write, fails, received };
        self.work.push(work);
    }

    fn data(&mut self, header: &Data, data: &[u8]) {
        let work = self.work.iter_mut().find(|work| work.command.id() == header.command_id);
        let work = work.expect("data of a command in work");
        let waits = work.waiting.iter().position(|wait| wait.0 == header.transfer_tag);
        let wait = &mut work.waiting[waits.expect("a transfer that was asked for")];
        assert!(data.len() <= self.settings.data_bytes_max as usize);
        assert_eq!(header.offset as usize, wait.1, "in order");
        work.received[wait.1..wait.1 + data.len()].copy_from_slice(data);
        wait.1 += data.len();
        wait.2 -= data.len();
        assert_eq!(header.is_last, wait.2 == 0);
        if header.is_last {
            work.waiting.remove(waits.unwrap());
        }
    }

    fn send(&mut self, pdu: &Pdu, data: &[u8], flip_data: bool, flip_header: bool) {
        let digests = self.settings.digests;
        let common = pdu.common(data.len(), digests, self.alignment_bytes);
        let layout = common.layout();
        let mut out = Vec::new();
        pdu.write(&common, &mut out);
        if layout.has_header_digest {
            let digest = crc32c::update(0, &out);
            out.extend_from_slice(&digest.to_le_bytes());
        }
        if flip_header {
            out[20] ^= 0x10;
        }
        out.resize(layout.head_bytes(), 0);
        out.extend_from_slice(data);
        if layout.has_data_digest {
            out.extend_from_slice(&crc32c::update(0, data).to_le_bytes());
        }
        if flip_data {
            out[layout.data.start] ^= 1;
            self.flipped += 1;
        }
        self.outgoing.extend(out);
    }

    fn send_plain(&mut self, pdu: &Pdu) {
        self.send(pdu, &[], false, false);
    }

    fn respond(&mut self, id: u16, status: Status) {
        self.send_plain(&Pdu::ResponseCapsule(Completion::new(id, status).encode()));
    }

    /// Makes one step for one command, or injects the fault.
    pub(super) fn work(&mut self, random: &mut Random) {
        if self.lie_at_any_time(random) || self.work.is_empty() {
            return;
        }
        let number = random.below(self.work.len() as u64) as usize;
        if self.lie_about(number) {
            return;
        }
        // A command whose data was changed must end with that error.
        let may_fail = self.flipped == 0 && self.work[number].waiting.is_empty();
        if may_fail && random.once_in(40) {
            self.work[number].fails = true;
        }
        if self.work[number].fails {
            let work = self.work.swap_remove(number);
            self.failed.insert(work.start / BLOCK_BYTES / REGION_BLOCKS);
            return self.respond(work.command.id(), Status::INTERNAL);
        }
        match self.work[number].is_write {
            true => self.work_on_write(number, random),
            false => self.work_on_read(number, random),
        }
    }

    fn work_on_write(&mut self, number: usize, random: &mut Random) {
        let most = self.settings.transfers_max as usize;
        let work = &mut self.work[number];
        if work.waiting.len() < most && !work.parts.is_empty() {
            // Parts are requested in any order.
            let any = random.below(work.parts.len() as u64) as usize;
            let (at, bytes) = work.parts.swap_remove_back(any).unwrap();
            return self.ask(number, at, bytes);
        }
        if work.parts.is_empty() && work.waiting.is_empty() {
            let work = self.work.swap_remove(number);
            self.disk[work.start..work.start + work.bytes].copy_from_slice(&work.received);
            self.complete(work.command.id());
        }
    }

    fn ask(&mut self, number: usize, at: usize, bytes: usize) {
        self.next_tag = self.next_tag.wrapping_add(1);
        let work = &mut self.work[number];
        work.waiting.push((self.next_tag, at, bytes));
        let ready = ReadyToTransfer {
            command_id: work.command.id(),
            transfer_tag: self.next_tag,
            offset: at as u32,
            bytes: bytes as u32,
        };
        self.send_plain(&Pdu::ReadyToTransfer(ready));
    }

    fn complete(&mut self, id: u16) {
        let flip = self.settings.digests.header && is_due(&mut self.fault, Fault::FlippedHeader);
        let entry = Completion::new(id, Status::SUCCESS).encode();
        self.send(&Pdu::ResponseCapsule(entry), &[], false, flip);
        if is_due(&mut self.fault, Fault::TwiceCompleted) {
            self.respond(id, Status::SUCCESS);
        }
    }

    fn work_on_read(&mut self, number: usize, random: &mut Random) {
        let work = &mut self.work[number];
        let any = random.below(work.parts.len() as u64) as usize;
        let Some((at, bytes)) = work.parts.swap_remove_back(any) else { return };
        let (id, start) = (work.command.id(), work.start);
        let is_last = work.parts.is_empty();
        let is_success = is_last && self.uses_success_flag;
        self.send_data(id, start, at, bytes, (is_last, is_success));
        if is_last {
            self.work.swap_remove(number);
            if !is_success {
                self.complete(id);
            }
        }
    }

    fn send_data(
        &mut self,
        id: u16,
        start: usize,
        at: usize,
        bytes: usize,
        (is_last, is_success): (bool, bool),
    ) {
        let flip = self.settings.digests.data && is_due(&mut self.fault, Fault::FlippedData);
        let data = self.disk[start + at..start + at + bytes].to_vec();
        let header = Data {
            command_id: id,
            transfer_tag: 0,
            offset: at as u32,
            bytes: bytes as u32,
            is_last,
            is_success,
        };
        self.send(&Pdu::ControllerData(header), &data, flip, false);
        // Not if the command ends with it.
        if !is_last && is_due(&mut self.fault, Fault::TwiceData) {
            self.send(&Pdu::ControllerData(header), &data, false, false);
        }
    }

    /// Injects faults that need no particular command.
    fn lie_at_any_time(&mut self, random: &mut Random) -> bool {
        let free = |id: u16| self.work.iter().all(|work| work.command.id() != id);
        let pdu = match self.fault {
            Some(Fault::UnknownId) => {
                let id = random.next() as u16;
                // Without a slot of that number it cannot match.
                if id & (DEPTH_MAX - 1) < self.settings.depth || !free(id) {
                    return false;
                }
                Pdu::ResponseCapsule(Completion::new(id, Status::SUCCESS).encode())
            }
            Some(Fault::HostPdu) => Pdu::CommandCapsule([0; 64]),
            Some(Fault::Terminate) => {
                Pdu::ControllerTerminate(Terminate { status: 2, information: 7 })
            }
            Some(Fault::Garbage) => {
                self.fault = None;
                self.outgoing.extend([0x55; 16]);
                return true;
            }
            _ => return false,
        };
        self.fault = None;
        let digests = match pdu {
            Pdu::ControllerTerminate(_) => Digests::NONE,
            _ => self.settings.digests,
        };
        let before = core::mem::replace(&mut self.settings.digests, digests);
        self.send_plain(&pdu);
        self.settings.digests = before;
        true
    }

    /// Injects the fault into this command, if it fits.
    fn lie_about(&mut self, number: usize) -> bool {
        let Some(fault) = self.fault else { return false };
        let work = &self.work[number];
        let (id, bytes, parts) = (work.command.id(), work.bytes, work.parts.len());
        let asks = work.is_write && parts > 0;
        let ready = |offset: usize, bytes: usize| {
            let (offset, bytes) = (offset as u32, bytes as u32);
            let ready = ReadyToTransfer { command_id: id, transfer_tag: 9, offset, bytes };
            Pdu::ReadyToTransfer(ready)
        };
        let data = |offset: usize, bytes: usize, is_last: bool, is_success: bool| {
            let (offset, bytes) = (offset as u32, bytes as u32);
            let tag = 0;
            let data =
                Data { command_id: id, transfer_tag: tag, offset, bytes, is_last, is_success };
            Pdu::ControllerData(data)
        };
        let (pdu, content) = match (fault, work.is_write) {
            (Fault::StaleId, _) => {
                let stale = Completion::new(id ^ DEPTH_MAX, Status::SUCCESS);
                (Pdu::ResponseCapsule(stale.encode()), 0)
            }
            (Fault::ShortRead, false) if parts > 0 => {
                (Pdu::ResponseCapsule(Completion::new(id, Status::SUCCESS).encode()), 0)
            }
            (Fault::ShortWrite, true) if asks => {
                (Pdu::ResponseCapsule(Completion::new(id, Status::SUCCESS).encode()), 0)
            }
            (Fault::DataBeyond, false) => (data(bytes - 4, 8, false, false), 8),
            (Fault::DataForWrite, true) => (data(0, 8, false, false), 8),
            (Fault::EarlySuccess, false) if parts > 0 => {
                let at = work.parts[0].0;
                (data(at, 8, false, true), 8)
            }
            (Fault::ReadyForRead, false) => (ready(0, 8), 0),
            (Fault::ReadyBeyond, true) => (ready(bytes, 8), 0),
            (Fault::EmptyReady, true) => (ready(0, 0), 0),
            (Fault::TwiceReady, true) if asks && !work.waiting.is_empty() => {
                (ready(work.waiting[0].1, 1), 0)
            }
            (Fault::TooManyReady, true) => return self.ask_for_too_much(number),
            _ => return false,
        };
        self.fault = None;
        self.send(&pdu, &vec![7; content], false, false);
        true
    }

    fn ask_for_too_much(&mut self, number: usize) -> bool {
        let most = self.settings.transfers_max as usize;
        if self.work[number].parts.len() <= most || !self.work[number].waiting.is_empty() {
            return false;
        }
        self.fault = None;
        for _ in 0..=most {
            let (at, bytes) = self.work[number].parts.pop_front().unwrap();
            self.ask(number, at, bytes);
        }
        true
    }
}
