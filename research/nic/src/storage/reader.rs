//! The receiving side: PDUs, and the states of commands.
//!
//! With the device a command's buffer is owned by the device until the command is complete.
//! Placed data is not copied; other data is kept as received until the buffer is back. If the
//! device has begun a digest and not finished it, the reader waits for the buffer, and computes
//! the digest of its content.

use std::collections::VecDeque;

use bytes::Buf;
use thiserror::Error;
use unlade_net::SeqNumber;
use unlade_nic_engine::Nvme;
use unlade_nic_engine::placement::{Registrar, Registration};
use unlade_nic_engine::resync::{Request, Response};
use unlade_nic_engine::software::pdus::{Event, Input, PduResult, Pdus};
use unlade_nic_engine::stats::Stats;
use unlade_nvme_wire::Digests;
use unlade_nvme_wire::pdu::InitResponse;

use super::capsule::{Heading, heading};
use super::error::StreamError;
use super::writer::Writer;
use crate::tls::receive::Chunk;

/// The error of a command; the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CommandError {
    /// The controller returned an error status.
    #[error("the controller answered with status {0:#x}")]
    Status(u16),
    /// A data digest is wrong.
    #[error("a data digest is wrong; read again")]
    DataDigest,
    /// Not all of the data has come, or was requested.
    #[error("the command is complete, and its data is not")]
    Short,
}

/// A completed command.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its identifier, which is free.
    pub cid: u16,
    /// Its buffer.
    pub buffer: Box<[u8]>,
    /// Its result; after an error the content of the buffer is invalid.
    pub result: Result<(), CommandError>,
    /// The returned value: dwords 0 and 1 of the completion.
    pub value: u64,
}

/// The location of a command's buffer.
enum Memory {
    Host(Box<[u8]>),
    Device(Registration),
    /// The device is to return it.
    Returning,
}

struct Command {
    memory: Memory,
    buffer_bytes: u32,
    /// Number of received data bytes.
    have_bytes: u32,
    /// Data that is not in the buffer yet, with its offset.
    aside: Vec<(u32, Chunk)>,
    corrupt: bool,
    /// `Some` once it is complete.
    result: Option<Result<(), CommandError>>,
    value: u64,
}

/// The command of the current PDU's data.
#[derive(Clone, Copy)]
struct Current {
    cid: u16,
    offset: u32,
    /// True if the PDU completes the command.
    completes: bool,
}

/// The reader of one connection.
pub struct Reader {
    pdus: Pdus,
    /// Indexed by identifier.
    commands: Vec<Option<Command>>,
    registrar: Registrar,
    current: Option<Current>,
    /// Unprocessed bytes, while a buffer is awaited.
    waiting: VecDeque<(SeqNumber, Chunk)>,
    /// Number of bytes of the PDU's data to verify when the buffer is back.
    recheck_bytes: Option<u32>,
    withdrawals: VecDeque<Registration>,
    finished: VecDeque<Finished>,
    copied_bytes: u64,
    writer: Writer,
    nvme: Nvme,
    /// While ICResp is awaited: the digests of the request.
    wanted: Option<Digests>,
    agreed: Option<InitResponse>,
}

impl Reader {
    /// Creates a reader for a PDU at `start`; identifiers are below `depth`.
    pub fn new(nvme: Nvme, start: SeqNumber, depth: u16) -> Reader {
        Reader {
            pdus: Pdus::new(nvme, start),
            commands: (0..depth).map(|_| None).collect(),
            registrar: Registrar::new(usize::from(depth)),
            current: None,
            waiting: VecDeque::new(),
            recheck_bytes: None,
            withdrawals: VecDeque::new(),
            finished: VecDeque::new(),
            copied_bytes: 0,
            writer: Writer::new(depth, nvme.data_bytes_max),
            nvme,
            wanted: None,
            agreed: None,
        }
    }

    /// Expects ICResp first, to a request for the digests `wanted`. Until then there are no
    /// digests.
    pub fn open(&mut self, wanted: Digests) {
        self.wanted = Some(wanted);
        self.pdus.agree(Nvme { header_digest: false, data_digest: false, ..self.nvme });
    }

    /// Takes the controller's ICResp, and the agreed parameters.
    pub fn agreed(&mut self) -> Option<(InitResponse, Nvme)> {
        self.agreed.take().map(|agreed| (agreed, self.nvme))
    }

    /// The sending side.
    pub fn writer(&mut self) -> &mut Writer {
        &mut self.writer
    }

    /// Starts the command `cid`, which reads into `buffer`; an empty buffer means no data.
    ///
    /// # Errors
    /// The buffer: the command exists already, or the identifier is out of bounds.
    pub fn begin(&mut self, cid: u16, buffer: Box<[u8]>) -> Result<(), Box<[u8]>> {
        let Ok(buffer_bytes) = u32::try_from(buffer.len()) else { return Err(buffer) };
        let Some(slot @ None) = self.commands.get_mut(usize::from(cid)) else { return Err(buffer) };
        let memory = Memory::Host(buffer);
        let (aside, corrupt, result, value) = (Vec::new(), false, None, 0);
        *slot =
            Some(Command { memory, buffer_bytes, have_bytes: 0, aside, corrupt, result, value });
        Ok(())
    }

    /// Takes the command's buffer, for registration with the device. [`Reader::returned`] takes
    /// it back, even if it is not registered after all. Returns `None` if the command has no
    /// buffer, or the device still has its identifier.
    pub fn lend(&mut self, cid: u16) -> Option<(Registration, Box<[u8]>)> {
        let command = self.commands.get_mut(usize::from(cid))?.as_mut()?;
        let Memory::Host(buffer) = &mut command.memory else { return None };
        let registration = self.registrar.register(cid).ok()?;
        let buffer = std::mem::take(buffer);
        command.memory = Memory::Device(registration);
        Some((registration, buffer))
    }

    /// Takes a registration whose buffer the device is to return.
    pub fn withdrawal(&mut self) -> Option<Registration> {
        self.withdrawals.pop_front()
    }

    /// Takes back a registration's buffer from the device.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn returned(
        &mut self,
        registration: Registration,
        mut buffer: Box<[u8]>,
    ) -> Result<(), StreamError> {
        // It may be returned without a request.
        let _ = self.registrar.withdraw(registration);
        let _ = self.registrar.acknowledged(registration);
        let cid = registration.tag;
        let Some(command) = command(&mut self.commands, cid) else { return Ok(()) };
        for (at, chunk) in command.aside.drain(..) {
            self.copied_bytes += put(&mut buffer, at, chunk.as_ref());
        }
        command.memory = Memory::Host(buffer);
        match command.result {
            Some(result) => self.finish(cid, result),
            None => self.resume(cid)?,
        }
        Ok(())
    }

    /// Continues if the awaited buffer is that of this command.
    fn resume(&mut self, cid: u16) -> Result<(), StreamError> {
        let Some(current) = self.current.filter(|current| current.cid == cid) else {
            return Ok(());
        };
        let Some(bytes) = self.recheck_bytes.take() else { return Ok(()) };
        self.recheck(current, bytes);
        self.run()
    }

    fn recheck(&mut self, current: Current, bytes: u32) {
        let command = command(&mut self.commands, current.cid);
        if let Some(Command { memory: Memory::Host(buffer), .. }) = command {
            let start = current.offset as usize;
            let raw = buffer.get(start..start + bytes as usize);
            self.pdus.recheck(raw.unwrap_or_default());
        }
    }

    /// Processes received bytes; the first has the sequence number `seq`.
    ///
    /// # Errors
    /// The stream has ended.
    pub fn receive(&mut self, seq: SeqNumber, chunk: Chunk) -> Result<(), StreamError> {
        self.waiting.push_back((seq, chunk));
        self.run()
    }

    /// Returns true if bytes wait for a buffer.
    pub fn is_waiting(&self) -> bool {
        self.recheck_bytes.is_some()
    }

    fn run(&mut self) -> Result<(), StreamError> {
        while self.recheck_bytes.is_none() {
            let Some((seq, mut chunk)) = self.waiting.pop_front() else { return Ok(()) };
            self.pdus.move_to(seq);
            let taken = self.take(&chunk)?;
            if self.recheck_bytes.is_some() {
                skip(&mut chunk, taken);
                self.waiting.push_front((seq + taken as u32, chunk));
            }
        }
        Ok(())
    }

    /// Processes bytes until a buffer has to be awaited; returns their number.
    fn take(&mut self, chunk: &Chunk) -> Result<usize, StreamError> {
        let raw = chunk.as_ref();
        let said = match chunk {
            Chunk::Placed(piece) => piece.pdus(),
            Chunk::Opened(_) => PduResult::default(),
        };
        let mut input = Input::new(raw, said);
        while let Some(event) = self.pdus.next(&mut input)? {
            let at = raw.len() - input.left();
            match event {
                Event::Header { header, data_bytes } => {
                    let found = heading(header)?.ok_or(StreamError::Unexpected)?;
                    self.header(found, data_bytes)?;
                }
                Event::Data { offset, bytes: raw, placed } => {
                    let start = at - raw.len();
                    self.data(offset, placed, chunk, start..at);
                }
                Event::Recheck { data_bytes } => self.begin_recheck(data_bytes),
                Event::End => self.end(true),
                Event::Corrupt => self.end(false),
            }
            if self.recheck_bytes.is_some() {
                return Ok(at);
            }
        }
        Ok(raw.len())
    }

    fn header(&mut self, found: Heading, data_bytes: u32) -> Result<(), StreamError> {
        match found {
            Heading::Initialised(agreed) => self.initialised(agreed),
            Heading::Terminated(status) => Err(StreamError::Terminated(status)),
            Heading::Ready(ready) => {
                self.open_command(ready.command_id)?;
                self.writer.ready(&ready)
            }
            Heading::Data { cid, offset, last, success } => {
                let command = self.open_command(cid)?;
                let fits = offset == command.have_bytes
                    && data_bytes > 0
                    && data_bytes <= command.buffer_bytes - command.have_bytes;
                if !fits || (success && !last) {
                    return Err(StreamError::Offset(cid));
                }
                command.have_bytes += data_bytes;
                self.current = Some(Current { cid, offset, completes: success });
                Ok(())
            }
            Heading::Response(completion) => {
                let cid = completion.command_id;
                self.open_command(cid)?.value = completion.result;
                let status = completion.status.bits();
                let result = if status == 0 { Ok(()) } else { Err(CommandError::Status(status)) };
                self.complete(cid, result);
                Ok(())
            }
        }
    }

    /// The incomplete command with this identifier.
    fn open_command(&mut self, cid: u16) -> Result<&mut Command, StreamError> {
        let command = command(&mut self.commands, cid).ok_or(StreamError::Command(cid))?;
        match command.result {
            Some(_) => Err(StreamError::Command(cid)),
            None => Ok(command),
        }
    }

    fn initialised(&mut self, agreed: InitResponse) -> Result<(), StreamError> {
        let wanted = self.wanted.take().ok_or(StreamError::Unexpected)?;
        if agreed.version != 0 {
            return Err(StreamError::Agreement("a version of the protocol that is not supported"));
        }
        if agreed.digests.and(wanted) != agreed.digests {
            return Err(StreamError::Agreement("digests that were not requested"));
        }
        self.nvme.header_digest = agreed.digests.header;
        self.nvme.data_digest = agreed.digests.data;
        self.agreed = Some(agreed);
        Ok(())
    }

    /// Processes data at `range` of the chunk.
    fn data(
        &mut self,
        offset: u32,
        placed: Option<Registration>,
        chunk: &Chunk,
        range: std::ops::Range<usize>,
    ) {
        let Some(current) = self.current else { return };
        let Some(command) = command(&mut self.commands, current.cid) else { return };
        let at = current.offset + offset;
        match &mut command.memory {
            Memory::Host(buffer) => {
                self.copied_bytes += put(buffer, at, &chunk.as_ref()[range]);
            }
            Memory::Device(registration) if placed == Some(*registration) => (),
            Memory::Device(_) | Memory::Returning => {
                let mut part = chunk.clone();
                skip(&mut part, range.start);
                truncate(&mut part, range.len());
                command.aside.push((at, part));
            }
        }
    }

    fn begin_recheck(&mut self, data_bytes: u32) {
        let Some(current) = self.current else { return };
        let Some(command) = command(&mut self.commands, current.cid) else { return };
        match command.memory {
            Memory::Host(_) => self.recheck(current, data_bytes),
            Memory::Device(registration) => {
                command.memory = Memory::Returning;
                self.withdraw(registration);
                self.recheck_bytes = Some(data_bytes);
            }
            Memory::Returning => self.recheck_bytes = Some(data_bytes),
        }
    }

    fn withdraw(&mut self, registration: Registration) {
        let _ = self.registrar.withdraw(registration);
        self.withdrawals.push_back(registration);
    }

    /// Processes the end of a PDU.
    fn end(&mut self, good: bool) {
        if self.agreed.is_some() {
            self.pdus.agree(self.nvme);
        }
        let Some(current) = self.current.take() else { return };
        let Some(command) = command(&mut self.commands, current.cid) else { return };
        command.corrupt |= !good;
        if current.completes {
            self.complete(current.cid, Ok(()));
        }
    }

    /// Completes a command for the controller's part.
    fn complete(&mut self, cid: u16, result: Result<(), CommandError>) {
        let given = self.writer.complete(cid);
        let Some(command) = command(&mut self.commands, cid) else { return };
        let whole = given && command.have_bytes == command.buffer_bytes;
        let result = match (result, command.corrupt) {
            (Ok(()), true) => Err(CommandError::DataDigest),
            (Ok(()), false) if !whole => Err(CommandError::Short),
            (result, _) => result,
        };
        command.result = Some(result);
        match command.memory {
            Memory::Host(_) => self.finish(cid, result),
            Memory::Device(registration) => {
                command.memory = Memory::Returning;
                self.withdraw(registration);
            }
            Memory::Returning => (),
        }
    }

    fn finish(&mut self, cid: u16, result: Result<(), CommandError>) {
        let slot = self.commands.get_mut(usize::from(cid));
        let command = slot.and_then(Option::take);
        if let Some(Command { memory: Memory::Host(buffer), value, .. }) = command {
            self.finished.push_back(Finished { cid, buffer, result, value });
        }
    }

    /// Takes a completed command.
    pub fn finished(&mut self) -> Option<Finished> {
        self.finished.pop_front()
    }

    /// Processes the device's question about the start of a PDU.
    pub fn request(&mut self, request: Request) {
        self.pdus.request(request);
    }

    /// Takes the pending answer for the device.
    pub fn response(&mut self) -> Option<Response> {
        self.pdus.response()
    }

    /// Counters of PDUs.
    pub fn stats(&self) -> &Stats {
        self.pdus.stats()
    }

    /// Number of bytes that were copied into buffers in software.
    pub fn copied_bytes(&self) -> u64 {
        self.copied_bytes
    }
}

fn command(commands: &mut [Option<Command>], cid: u16) -> Option<&mut Command> {
    commands.get_mut(usize::from(cid))?.as_mut()
}

/// Copies bytes into a buffer; returns their number, or 0 if they do not fit.
fn put(buffer: &mut [u8], at: u32, raw: &[u8]) -> u64 {
    let place = buffer.get_mut(at as usize..).and_then(|rest| rest.get_mut(..raw.len()));
    let Some(place) = place else { return 0 };
    place.copy_from_slice(raw);
    raw.len() as u64
}

fn skip(chunk: &mut Chunk, raw: usize) {
    match chunk {
        Chunk::Placed(piece) => piece.skip(raw),
        Chunk::Opened(opened) => opened.advance(raw),
    }
}

fn truncate(chunk: &mut Chunk, raw: usize) {
    match chunk {
        Chunk::Placed(piece) => piece.truncate(raw),
        Chunk::Opened(opened) => opened.truncate(raw),
    }
}
