//! An initiator: commands over one connection of a stack.

use std::collections::VecDeque;

use bytes::Bytes;
use thiserror::Error;
use unlade_nic_engine::Nvme;
use unlade_nvme_wire::{Command, DataPlace, Digests, IoOpcode, Pdu};
use unlade_research_tcp::Id;

use super::capsule::{block_command, capsule};
use super::error::StreamError;
use super::open::{Opening, Phase, request};
use super::reader::{CommandError, Finished, Reader};
use crate::driver::DriverError;
use crate::stack::{SecureError, Stack, WriteError};
use crate::tls::receive::ReceiveError;
use crate::tls::send::SendError;

/// Largest number of commands in flight.
pub const DEPTH_MAX: u16 = 1023;
/// Bytes of data of a Connect command, which are always in its capsule.
const CONNECT_BYTES: u32 = unlade_nvme_wire::fabrics::CONNECT_DATA_BYTES as u32;

/// Settings of an initiator.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Digests, and limits. [`Initiator::connect`] requests these digests; the limit is that of
    /// data in one received PDU.
    pub nvme: Nvme,
    /// True if the device computes digests, and places data. With TLS, [`Stack::secure_pdus`] has
    /// set it up.
    pub offload: bool,
    /// True if the connection is secured.
    pub secured: bool,
    /// Largest number of commands in flight, at most [`DEPTH_MAX`].
    pub depth: u16,
    /// The namespace.
    pub nsid: u32,
    /// Bytes of a logical block.
    pub block_bytes: u32,
}

/// The reason that a command is not submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// The controller has not answered yet.
    #[error("the queue is not connected yet; wait for it")]
    NotReady,
    /// All commands are in flight.
    #[error("all {0} commands are in use; wait for one to finish")]
    Depth(u16),
    /// The length is not a number of blocks, or too large.
    #[error("a buffer has to have a whole number of blocks, 1 to 65536")]
    Length,
    /// TCP accepts no more.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The reason of the connection's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InitiatorError {
    /// The records are invalid.
    #[error(transparent)]
    Records(#[from] ReceiveError),
    /// The PDUs are invalid.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The device accepts no more commands.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// The device does not support the agreed parameters.
    #[error(transparent)]
    Agree(#[from] SecureError),
    /// TCP accepts nothing, or keys are worn and cannot be changed.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The controller refuses this queue.
    #[error("the controller refuses the queue: {0}")]
    Refused(CommandError),
    /// The controller requires authentication.
    #[error("the controller requires in-band authentication, which is not supported")]
    Authentication,
}

/// Data of a command.
#[derive(Debug)]
pub enum Payload {
    /// None.
    None,
    /// Data from the controller; it fills this buffer.
    In(Box<[u8]>),
    /// Data to the controller.
    Out(Bytes),
}

/// The initiator of one connection.
pub struct Initiator {
    id: Id,
    config: Config,
    reader: Reader,
    free: VecDeque<u16>,
    phase: Phase,
    opening: Option<Box<Opening>>,
    in_capsule_bytes: u32,
}

impl Initiator {
    /// Creates an initiator for a connection that is set up already: the next bytes in both
    /// directions start a PDU, and the digests are agreed.
    ///
    /// # Errors
    /// [`SecureError`]; the call can be repeated without the offload.
    pub fn new(stack: &mut Stack, id: Id, config: Config) -> Result<Initiator, SecureError> {
        let depth = config.depth.clamp(1, DEPTH_MAX);
        let config = Config { depth, ..config };
        let mut start = stack.tcp().get(id).ok_or(SecureError::Unknown)?.read_at();
        if config.offload && !config.secured {
            start = stack.offload_pdus(id, config.nvme)?;
        }
        stack.frame_pdus(id, config.nvme)?;
        let mut reader = Reader::new(config.nvme, start, depth);
        reader.writer().agree(stack.pdu_data_bytes_max());
        let free = (0..depth).collect();
        let (phase, opening, in_capsule_bytes) = (Phase::Ready(0), None, 0);
        Ok(Initiator { id, config, reader, free, phase, opening, in_capsule_bytes })
    }

    /// Starts the set-up of a new connection as a queue: [`Initiator::poll`] continues it, until
    /// [`Initiator::controller`] returns the controller.
    ///
    /// # Errors
    /// As [`Initiator::new`], and errors of TCP.
    pub fn connect(
        stack: &mut Stack,
        id: Id,
        config: Config,
        opening: Opening,
    ) -> Result<Initiator, InitiatorError> {
        let wanted = Digests { header: config.nvme.header_digest, data: config.nvme.data_digest };
        let plain = Nvme { header_digest: false, data_digest: false, ..config.nvme };
        let mut initiator = Initiator::new(stack, id, Config { nvme: plain, ..config })?;
        // Over TLS the device's context starts without digests.
        stack.agree_pdus(id, plain, 4)?;
        initiator.reader.open(wanted);
        initiator.phase = Phase::Initialising;
        initiator.in_capsule_bytes = opening.in_capsule_bytes;
        initiator.opening = Some(Box::new(opening));
        stack.write_pdu(id, &request(wanted), Bytes::new())?;
        Ok(initiator)
    }

    /// The controller that has the queue (CNTLID), after the set-up.
    pub fn controller(&self) -> Option<u16> {
        match self.phase {
            Phase::Ready(controller) => Some(controller),
            Phase::Initialising | Phase::Connecting => None,
        }
    }

    /// Reads from block `slba` into the whole `buffer`; returns the command's identifier.
    ///
    /// # Errors
    /// The reason, with the buffer.
    pub fn read(
        &mut self,
        stack: &mut Stack,
        slba: u64,
        buffer: Box<[u8]>,
    ) -> Result<u16, (ReadError, Box<[u8]>)> {
        let Some(blocks) = self.blocks(buffer.len()) else {
            return Err((ReadError::Length, buffer));
        };
        let command = block_command(IoOpcode::Read, self.config.nsid, (slba, blocks));
        self.submit(stack, &command, Payload::In(buffer)).map_err(|(error, payload)| {
            let Payload::In(buffer) = payload else { return (error, Box::default()) };
            (error, buffer)
        })
    }

    /// Writes `data` from block `slba` on; returns the command's identifier. The data is not
    /// copied: it is referenced until it has arrived.
    ///
    /// # Errors
    /// The reason; nothing is written.
    pub fn write(&mut self, stack: &mut Stack, slba: u64, data: Bytes) -> Result<u16, ReadError> {
        let blocks = self.blocks(data.len()).ok_or(ReadError::Length)?;
        let command = block_command(IoOpcode::Write, self.config.nsid, (slba, blocks));
        self.submit(stack, &command, Payload::Out(data)).map_err(|(error, _)| error)
    }

    /// The number of blocks of `bytes` bytes, if it is a whole number, 1 to 65536.
    fn blocks(&self, bytes: usize) -> Option<u32> {
        let block_bytes = self.config.block_bytes.max(1) as usize;
        let blocks = u32::try_from(bytes / block_bytes).ok()?;
        let fits = bytes.is_multiple_of(block_bytes) && (1..=1 << 16).contains(&blocks);
        fits.then_some(blocks)
    }

    /// Submits a command, and fills in identifier and data pointer. Returns the identifier.
    ///
    /// # Errors
    /// The reason, with the payload.
    pub fn submit(
        &mut self,
        stack: &mut Stack,
        command: &Command,
        payload: Payload,
    ) -> Result<u16, (ReadError, Payload)> {
        match self.phase {
            Phase::Ready(_) => self.start(stack, command, payload, self.in_capsule_bytes),
            Phase::Initialising | Phase::Connecting => Err((ReadError::NotReady, payload)),
        }
    }

    fn start(
        &mut self,
        stack: &mut Stack,
        command: &Command,
        payload: Payload,
        in_capsule_bytes: u32,
    ) -> Result<u16, (ReadError, Payload)> {
        let depth = self.config.depth;
        let Some(&cid) = self.free.front() else { return Err((ReadError::Depth(depth), payload)) };
        let in_capsule_bytes = in_capsule_bytes.min(stack.pdu_data_bytes_max()) as usize;
        let (place, with) = match &payload {
            Payload::None => (DataPlace::Transport { bytes: 0 }, Bytes::new()),
            Payload::In(buffer) => (transport(buffer.len()), Bytes::new()),
            Payload::Out(data) if data.len() <= in_capsule_bytes => {
                let bytes = data.len() as u32;
                (DataPlace::InCapsule { offset: 0, bytes }, data.clone())
            }
            Payload::Out(data) => (transport(data.len()), Bytes::new()),
        };
        let given = !with.is_empty();
        if !stack.has_room_for_pdu(self.id, with.len()) {
            return Err((WriteError::Full.into(), payload));
        }
        let (buffer, out) = match payload {
            Payload::None => (Box::default(), None),
            Payload::In(buffer) => (buffer, None),
            Payload::Out(data) => (Box::default(), Some(data)),
        };
        if let Err(buffer) = self.reader.begin(cid, buffer) {
            let payload = out.map_or(Payload::In(buffer), Payload::Out);
            return Err((ReadError::Depth(depth), payload));
        }
        self.free.pop_front();
        match out {
            Some(data) => self.reader.writer().begin(cid, data, given),
            None => self.lend(stack, cid),
        }
        // There is room. If the connection has ended, the command is not answered.
        let _ = write(stack, self.id, &capsule(command, cid, place), with);
        Ok(cid)
    }

    /// Registers the command's buffer with the device.
    fn lend(&mut self, stack: &mut Stack, cid: u16) {
        if self.config.offload
            && let Some((registration, buffer)) = self.reader.lend(cid)
            && let Err((_, buffer)) = stack.register(self.id, registration, buffer)
        {
            // Without the device the data is copied. No command waits for the buffer yet.
            let _ = self.reader.returned(registration, buffer);
        }
    }

    /// Processes received bytes, and sends requested data; returns the number of items.
    ///
    /// # Errors
    /// The connection is to be aborted.
    pub fn poll(&mut self, stack: &mut Stack) -> Result<usize, InitiatorError> {
        let mut done = 0;
        while let Some(withdrawn) = stack.withdrawn(self.id) {
            done += 1;
            self.reader.returned(withdrawn.registration, withdrawn.buffer)?;
        }
        if let Some(question) = stack.question(self.id) {
            self.reader.request(question.request());
        }
        while !self.reader.is_waiting() {
            let Some((seq, chunk)) = stack.read_at(self.id)? else { break };
            done += 1;
            self.reader.receive(seq, chunk)?;
        }
        if let Some(response) = self.reader.response() {
            stack.answer(self.id, response);
        }
        while let Some(registration) = self.reader.withdrawal() {
            stack.withdraw(self.id, registration)?;
        }
        if self.opening.is_some() {
            done += self.continue_setup(stack)?;
        }
        Ok(done + self.send_requested(stack)?)
    }

    /// Sends data that the controller has requested, while there is room.
    fn send_requested(&mut self, stack: &mut Stack) -> Result<usize, InitiatorError> {
        let mut done = 0;
        while let Some(bytes) = self.reader.writer().next_bytes() {
            if !stack.has_room_for_pdu(self.id, bytes) {
                break;
            }
            let Some((said, data)) = self.reader.writer().take_next() else { break };
            done += 1;
            write(stack, self.id, &Pdu::HostData(said), data)?;
        }
        Ok(done)
    }

    /// Continues the set-up of the queue.
    fn continue_setup(&mut self, stack: &mut Stack) -> Result<usize, InitiatorError> {
        if let Some((agreed, nvme)) = self.reader.agreed() {
            self.config.nvme = nvme;
            stack.agree_pdus(self.id, nvme, agreed.alignment_bytes)?;
            let most = agreed.data_bytes_max.min(stack.pdu_data_bytes_max());
            self.reader.writer().agree(most & !3);
            let opening = self.opening.as_ref().map(|opening| opening.connect(self.config.depth));
            if let Some((command, data)) = opening {
                let payload = Payload::Out(data.into());
                let started = self.start(stack, &command, payload, CONNECT_BYTES);
                // Nothing is in transit: there is room, or the buffers are permanently too small.
                started.map_err(|_| InitiatorError::Write(WriteError::Full))?;
            }
            self.phase = Phase::Connecting;
            return Ok(1);
        }
        let Phase::Connecting = self.phase else { return Ok(0) };
        let Some(Finished { result, value, cid, .. }) = self.reader.finished() else {
            return Ok(0);
        };
        self.free.push_back(cid);
        result.map_err(InitiatorError::Refused)?;
        // AUTHREQ: bits 16 and 17.
        if value >> 16 & 3 != 0 {
            return Err(InitiatorError::Authentication);
        }
        self.phase = Phase::Ready(value as u16);
        self.opening = None;
        Ok(1)
    }

    /// Takes a completed command; its identifier may be reused.
    pub fn finished(&mut self) -> Option<Finished> {
        if self.opening.is_some() {
            return None;
        }
        let finished = self.reader.finished()?;
        self.free.push_back(finished.cid);
        Some(finished)
    }

    /// The receiving side.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}

fn transport(bytes: usize) -> DataPlace {
    DataPlace::Transport { bytes: bytes as u32 }
}

/// Sends a PDU, for which there is room; worn keys are changed.
fn write(stack: &mut Stack, id: Id, pdu: &Pdu, data: Bytes) -> Result<(), WriteError> {
    match stack.write_pdu(id, pdu, data.clone()) {
        Err(WriteError::Record(SendError::Worn)) => {
            stack.update_keys(id, false)?;
            stack.write_pdu(id, pdu, data)
        }
        done => done,
    }
}
