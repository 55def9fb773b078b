//! A controller that costs next to nothing: it finds PDUs or records in what a host sends by their
//! lengths, asks for data and completes commands. Data is not looked at, unless that is what it is for.

use super::host::secrets;
use anyhow::{Context, Result, ensure};
use std::time::Instant;
use unlade_aead::crc32c;
use unlade_nvme_wire::pdu::{InitResponse, ReadyToTransfer};
use unlade_nvme_wire::{CommonHeader, Completion, Digests, Pdu, PduKind, Status};
use unlade_research_nic::tls::keys::{KeysError, SoftKey};

/// Content of a record.
const RECORD_BYTES: usize = 16 << 10;
/// Bytes of data in one PDU of the host: what the stack's own limit is.
const PDU_DATA_BYTES: usize = unlade_research_nic::storage::send::PDU_DATA_BYTES_MAX as usize;

/// The data that hosts write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Writes {
    pub tls: bool,
    pub digests: Digests,
    pub write_bytes: usize,
    /// Data that goes with the command.
    pub in_capsule: bool,
    pub depth: u16,
}

/// The expected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Awaited {
    InitRequest,
    Connect,
    Commands,
}

/// The far end of one connection.
pub struct Controller {
    writes: Writes,
    /// To open with, and to seal with, and how many records were sealed.
    key: Option<SoftKey>,
    sealed: u64,
    /// Bytes of the header of a PDU or record that are there, and bytes behind it that are not.
    header: Vec<u8>,
    left: usize,
    unit_bytes: usize,
    awaited: Awaited,
    /// Bytes of units that are of the command whose data comes.
    data_bytes: usize,
    capsules: usize,
    completed: usize,
    /// All that came, where it is to be checked.
    heard: Option<Vec<u8>>,
    answer_ns: u128,
}

impl Controller {
    /// `checks`: keeps what comes, for [`Controller::check`].
    ///
    /// # Errors
    /// Keys do not fit.
    pub fn new(writes: Writes, checks: bool) -> Result<Controller, KeysError> {
        let key = if writes.tls { Some(SoftKey::new(&secrets())?) } else { None };
        Ok(Controller {
            writes,
            key,
            sealed: 0,
            header: Vec::new(),
            left: 0,
            unit_bytes: 0,
            awaited: Awaited::InitRequest,
            data_bytes: 0,
            capsules: 0,
            completed: 0,
            heard: checks.then(Vec::new),
            answer_ns: 0,
        })
    }

    /// Commands that are complete.
    pub fn completed(&self) -> usize {
        self.completed
    }

    /// Time spent on making answers.
    pub fn answer_ns(&self) -> u128 {
        self.answer_ns
    }

    fn record_overhead(&self) -> usize {
        self.key.as_ref().map_or(0, |key| key.prefix_bytes() + key.suffix_bytes())
    }

    /// Bytes that a PDU of so many takes.
    fn sent_bytes(&self, pdu_bytes: usize) -> usize {
        match self.key {
            Some(_) => pdu_bytes + pdu_bytes.div_ceil(RECORD_BYTES) * self.record_overhead(),
            None => pdu_bytes,
        }
    }

    fn digest_bytes(&self) -> usize {
        let Digests { header, data } = self.writes.digests;
        4 * usize::from(header) + 4 * usize::from(data)
    }

    /// Bytes of a command without data.
    fn capsule_bytes(&self) -> usize {
        self.sent_bytes(72 + 4 * usize::from(self.writes.digests.header))
    }

    /// Bytes that bring a command's data.
    fn transfer_bytes(&self) -> usize {
        let write_bytes = self.writes.write_bytes;
        if self.writes.in_capsule {
            return self.sent_bytes(72 + self.digest_bytes() + write_bytes);
        }
        let whole = write_bytes / PDU_DATA_BYTES;
        let rest = write_bytes % PDU_DATA_BYTES;
        let pdu = |bytes: usize| self.sent_bytes(24 + self.digest_bytes() + bytes);
        whole * pdu(PDU_DATA_BYTES) + if rest > 0 { pdu(rest) } else { 0 }
    }

    /// Takes the next bytes; appends answers to `out`, each as it is to be sent.
    pub fn take(&mut self, mut bytes: &[u8], out: &mut Vec<Vec<u8>>) {
        if let Some(heard) = &mut self.heard {
            heard.extend_from_slice(bytes);
        }
        let header_bytes = if self.writes.tls { 5 } else { 8 };
        while !bytes.is_empty() {
            if self.left == 0 {
                let missing = (header_bytes - self.header.len()).min(bytes.len());
                self.header.extend_from_slice(&bytes[..missing]);
                bytes = &bytes[missing..];
                if self.header.len() < header_bytes {
                    return;
                }
                self.unit_bytes = self.unit();
                self.header.clear();
                self.left = self.unit_bytes - header_bytes;
            }
            let taken = self.left.min(bytes.len());
            self.left -= taken;
            bytes = &bytes[taken..];
            if self.left == 0 {
                self.complete_unit(out);
            }
        }
    }

    fn unit(&self) -> usize {
        let header = &self.header;
        match self.writes.tls {
            true => 5 + usize::from(u16::from_be_bytes([header[3], header[4]])),
            false => u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize,
        }
    }

    /// The identifier of command `number`: an initiator has them in turn, and Connect has had the
    /// first.
    fn cid(&self, number: usize) -> u16 {
        ((number + 1) % usize::from(self.writes.depth)) as u16
    }

    fn complete_unit(&mut self, out: &mut Vec<Vec<u8>>) {
        match self.awaited {
            Awaited::InitRequest => {
                self.awaited = Awaited::Connect;
                let digests = self.writes.digests;
                let (version, alignment_bytes, data_bytes_max) = (0, 4, 1 << 20);
                let agreed = InitResponse { version, alignment_bytes, digests, data_bytes_max };
                self.answer(&Pdu::InitResponse(agreed), Digests::NONE, out);
            }
            Awaited::Connect => {
                self.awaited = Awaited::Commands;
                self.respond(0, out);
            }
            Awaited::Commands => self.command_unit(out),
        }
    }

    fn command_unit(&mut self, out: &mut Vec<Vec<u8>>) {
        if !self.writes.in_capsule && self.unit_bytes == self.capsule_bytes() {
            let command_id = self.cid(self.capsules);
            self.capsules += 1;
            let bytes = self.writes.write_bytes as u32;
            let ready = ReadyToTransfer { command_id, transfer_tag: 1, offset: 0, bytes };
            return self.answer(&Pdu::ReadyToTransfer(ready), self.writes.digests, out);
        }
        self.data_bytes += self.unit_bytes;
        if self.data_bytes >= self.transfer_bytes() {
            self.data_bytes = 0;
            let cid = self.cid(self.completed);
            self.completed += 1;
            self.respond(cid, out);
        }
    }

    fn respond(&mut self, cid: u16, out: &mut Vec<Vec<u8>>) {
        let entry = Completion::new(cid, Status::SUCCESS).encode();
        self.answer(&Pdu::ResponseCapsule(entry), self.writes.digests, out);
    }

    fn answer(&mut self, pdu: &Pdu, digests: Digests, out: &mut Vec<Vec<u8>>) {
        let begun = Instant::now();
        let mut bytes = pdu.without_data(digests);
        if pdu.common(0, digests, 4).layout().has_header_digest {
            let digest = crc32c::update(0, &bytes);
            bytes.extend(digest.to_le_bytes());
        }
        if let Some(key) = &self.key {
            let mut record = vec![0; bytes.len() + self.record_overhead()];
            let sealed = key.seal(self.sealed, 23, &bytes, &mut record);
            sealed.expect("a record that fits");
            self.sealed += 1;
            bytes = record;
        }
        out.push(bytes);
        self.answer_ns += begun.elapsed().as_nanos();
    }

    /// All that came is what a host sends that writes `content` again and again.
    ///
    /// # Errors
    /// It is not.
    pub fn check(&mut self, content: &[u8]) -> Result<()> {
        let heard = self.heard.take().context("nothing was kept")?;
        let bytes = self.opened(heard)?;
        let mut written = 0;
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let common = CommonHeader::parse(rest)?;
            let pdu = rest.get(..common.bytes as usize).context("all of a PDU")?;
            rest = &rest[pdu.len()..];
            if common.kind != PduKind::InitRequest {
                common.agrees_with(self.writes.digests, 4)?;
            }
            let layout = common.layout();
            let header = &pdu[..layout.header_bytes];
            if layout.has_header_digest {
                let digest = crc32c::update(0, header).to_le_bytes();
                ensure!(pdu[header.len()..header.len() + 4] == digest, "a header's digest");
            }
            let data = &pdu[layout.data.clone()];
            if layout.has_data_digest {
                let digest = crc32c::update(0, data).to_le_bytes();
                ensure!(pdu[layout.data.end..] == digest, "the digest of data");
            }
            // Connect has data, too.
            if written > 0 || data.len() != unlade_nvme_wire::fabrics::CONNECT_DATA_BYTES {
                let same =
                    data.iter().zip(content.iter().cycle()).all(|(left, right)| left == right);
                ensure!(same, "data is not what was written");
                written += data.len();
            }
        }
        let expected = self.completed * self.writes.write_bytes;
        ensure!(written == expected, "{written} bytes of data, not {expected}");
        Ok(())
    }

    /// The content of records.
    fn opened(&self, heard: Vec<u8>) -> Result<Vec<u8>> {
        let Some(key) = &self.key else { return Ok(heard) };
        let (mut content, mut number, mut rest) = (Vec::new(), 0, &heard[..]);
        while let [_, _, _, high, low, ..] = *rest {
            let bytes = 5 + usize::from(u16::from_be_bytes([high, low]));
            let record = rest.get(..bytes).context("all of a record")?;
            rest = &rest[bytes..];
            // Behind the content is its type, and a tag of 16 bytes.
            let mut plain = vec![0; bytes - key.prefix_bytes() - 16];
            key.open(number, record, &mut plain).context("opening a record")?;
            ensure!(plain.pop() == Some(23), "a record of data");
            content.extend(plain);
            number += 1;
        }
        Ok(content)
    }
}
