//! Messages from a controller to the initiator over the user-space TCP.

use bytes::Bytes;
use unlade_net::SeqNumber;
use unlade_nic_engine::Nvme;
use unlade_nvme_wire::pdu::{Data, InitResponse, ReadyToTransfer};
use unlade_nvme_wire::{Completion, Digests, Pdu, Status};
use unlade_research_nic::storage::reader::Reader;
use unlade_research_nic::tls::receive::Chunk;

const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 2;
const READ_BYTES: usize = 1024;
const WRITE_BYTES: usize = 2048;
/// Bytes of data in a PDU of the host.
const PDU_BYTES: u32 = 600;
/// Bits of the first byte of an input: digests, an answer to ICReq first, a device with the
/// buffer.
const HEADER_DIGEST: u8 = 1;
const DATA_DIGEST: u8 = 2;
const OPENS: u8 = 4;
const LENT: u8 = 8;
const START: SeqNumber = SeqNumber(u32::MAX - 100);

fn digests(choice: u8) -> Digests {
    Digests { header: choice & HEADER_DIGEST != 0, data: choice & DATA_DIGEST != 0 }
}

fn written() -> Bytes {
    (0..WRITE_BYTES).map(|at| (at * 7) as u8).collect()
}

fn reader(choice: u8) -> Reader {
    let Digests { header: header_digest, data: data_digest } = digests(choice);
    let nvme = Nvme { header_digest, data_digest, data_bytes_max: 4096 };
    let mut reader = Reader::new(nvme, START, 3);
    reader.writer().agree(PDU_BYTES);
    if choice & OPENS != 0 {
        reader.open(digests(choice));
    }
    for (cid, bytes) in [(READ, READ_BYTES), (WRITE, 0), (FLUSH, 0)] {
        reader.begin(cid, vec![0; bytes].into()).expect("an identifier that is free");
    }
    reader.writer().begin(WRITE, written(), false);
    reader
}

/// Outgoing bytes lie within the data, in order, and do not exceed the request.
fn give(reader: &mut Reader, given: &mut usize) {
    while let Some(bytes) = reader.writer().next_bytes() {
        let (said, data) = reader.writer().take_next().expect("a PDU");
        assert_eq!((said.command_id, said.offset as usize, data.len()), (WRITE, *given, bytes));
        assert_eq!((said.bytes as usize, data.len() <= PDU_BYTES as usize), (bytes, true));
        assert_eq!(data, written()[*given..*given + bytes]);
        *given += bytes;
    }
    assert!(*given <= WRITE_BYTES);
}

/// All observable results of an initiator that received `bytes` in chunks; `lent`: a device has
/// the buffer, places nothing, and returns it on request.
fn outcome(choice: u8, bytes: &[u8], chunk_bytes: usize, lent: bool) -> String {
    let mut reader = reader(choice);
    let mut device = if lent { reader.lend(READ) } else { None };
    let (mut seq, mut given, mut ended) = (START, 0, String::new());
    let mut finished = Vec::new();
    for piece in bytes.chunks(chunk_bytes) {
        let chunk = Chunk::Opened(Bytes::copy_from_slice(piece));
        let mut received = reader.receive(seq, chunk);
        seq = seq + piece.len() as u32;
        while let Some(registration) = reader.withdrawal() {
            let (lent, buffer) = device.take().expect("the device has it");
            assert_eq!(lent, registration);
            let returned = reader.returned(registration, buffer);
            received = received.and(returned);
        }
        assert!(!reader.is_waiting(), "nothing is left to wait for");
        give(&mut reader, &mut given);
        while let Some(done) = reader.finished() {
            if done.cid == WRITE && done.result.is_ok() {
                assert_eq!(given, WRITE_BYTES);
            }
            finished.push(format!("{done:?}"));
        }
        if let Err(error) = received {
            ended = format!("{error:?}");
            break;
        }
    }
    // A buffer that is lent makes its command finish a little later.
    finished.sort();
    // The number of bytes sent before a write was refused depends on timing.
    format!("{finished:?} {ended}")
}

/// The result does not depend on how the bytes arrive, nor on the owner of the buffers, except if
/// a controller requests data again before it has received any: that depends on timing.
pub fn nic_storage(data: &[u8]) {
    let Some((&choice, bytes)) = data.split_first() else { return };
    let whole = outcome(choice, bytes, usize::MAX, false);
    for (chunk_bytes, lent) in [(1, false), (usize::MAX, true), (13, choice & LENT != 0)] {
        let other = outcome(choice, bytes, chunk_bytes, lent);
        let waits = whole.contains("Transfers") || whole.contains("Short");
        assert!(whole == other || waits, "{whole} and {other}");
    }
}

struct Script {
    digests: Digests,
    bytes: Vec<u8>,
}

impl Script {
    fn say(mut self, pdu: Pdu, data: &[u8]) -> Script {
        let digests = match pdu {
            Pdu::InitResponse(_) => Digests::NONE,
            _ => self.digests,
        };
        let common = pdu.common(data.len(), digests, 4);
        let start = self.bytes.len();
        pdu.write(&common, &mut self.bytes);
        let header = crc32c::crc32c(&self.bytes[start..]);
        if common.layout().has_header_digest {
            self.bytes.extend(header.to_le_bytes());
        }
        self.bytes.extend(data);
        if common.layout().has_data_digest {
            self.bytes.extend(crc32c::crc32c(data).to_le_bytes());
        }
        self
    }

    fn data(self, offset: usize, bytes: usize, is_last: bool, is_success: bool) -> Script {
        let (command_id, transfer_tag, offset) = (READ, 0, offset as u32);
        let said =
            Data { command_id, transfer_tag, offset, bytes: bytes as u32, is_last, is_success };
        self.say(Pdu::ControllerData(said), &vec![0x44; bytes])
    }

    fn ready(self, offset: u32, bytes: u32) -> Script {
        let (command_id, transfer_tag) = (WRITE, 5);
        let ready = ReadyToTransfer { command_id, transfer_tag, offset, bytes };
        self.say(Pdu::ReadyToTransfer(ready), &[])
    }

    fn complete(self, cid: u16, status: Status) -> Script {
        self.say(Pdu::ResponseCapsule(Completion::new(cid, status).encode()), &[])
    }
}

/// Messages of a controller.
pub fn storage_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let script = |choice: u8| Script { digests: digests(choice), bytes: vec![choice] };
    let agreed = |digests| {
        let (version, alignment_bytes, data_bytes_max) = (0, 4, 4096);
        Pdu::InitResponse(InitResponse { version, alignment_bytes, digests, data_bytes_max })
    };
    let both = HEADER_DIGEST | DATA_DIGEST;
    let read = script(both | LENT).data(0, 600, false, false).data(600, 424, true, true);
    let opened = script(both | OPENS).say(agreed(Digests::BOTH), &[]);
    vec![
        ("read", read.complete(FLUSH, Status::SUCCESS).bytes),
        ("write", script(0).ready(0, 2048).complete(WRITE, Status::SUCCESS).bytes),
        ("refused", script(HEADER_DIGEST).complete(WRITE, Status::WRITE_PROTECTED).bytes),
        ("too-much", script(0).ready(0, 2049).bytes),
        ("opened", opened.data(0, 1024, true, false).complete(READ, Status::SUCCESS).bytes),
        ("not-asked-for", script(OPENS).say(agreed(Digests::BOTH), &[]).bytes),
    ]
}
