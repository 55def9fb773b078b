//! Reads over one connection of a stack, whose handshakes (TLS, ICReq, Connect) are behind it.

use std::collections::VecDeque;

use bytes::Bytes;
use offload::Nvme;
use tcp::Id;
use thiserror::Error;

use super::capsule::Read;
use super::reader::{Finished, Reader, StreamError};
use crate::driver::DriverError;
use crate::stack::{SecureError, Stack, WriteError};
use crate::tls::receive::ReceiveError;

/// Most commands at a time.
pub const DEPTH_MAX: u16 = 1023;

/// Settings of an initiator.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Digests, and limits.
    pub nvme: Nvme,
    /// The device checks digests and places data. Where there is TLS it has been told by
    /// [`Stack::secure_pdus`].
    pub offload: bool,
    /// The connection is secured.
    pub secured: bool,
    /// Most commands at a time, at most [`DEPTH_MAX`].
    pub depth: u16,
    /// The namespace.
    pub nsid: u32,
    /// Octets of a logical block.
    pub block_bytes: u32,
}

/// Why nothing is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ReadError {
    /// There are so many commands as there may be.
    #[error("all {0} commands are in use; wait for one to finish")]
    Depth(u16),
    /// It is no number of blocks, or too many.
    #[error("a buffer has to have a whole number of blocks, 1 to 65536")]
    Length,
    /// TCP takes no more.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Why the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum InitiatorError {
    /// Records are not right.
    #[error(transparent)]
    Records(#[from] ReceiveError),
    /// PDUs are not right.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The device takes no more commands.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// One connection's.
pub struct Initiator {
    id: Id,
    config: Config,
    reader: Reader,
    free: VecDeque<u16>,
}

impl Initiator {
    /// A PDU is what comes next, and what goes next.
    ///
    /// # Errors
    /// [`SecureError`]; without the offload it is possible.
    pub fn new(stack: &mut Stack, id: Id, config: Config) -> Result<Initiator, SecureError> {
        let depth = config.depth.clamp(1, DEPTH_MAX);
        let config = Config { depth, ..config };
        let mut start = stack.tcp().get(id).ok_or(SecureError::Unknown)?.read_at();
        if config.offload && !config.secured {
            start = stack.offload_pdus(id, config.nvme)?;
        }
        let reader = Reader::new(config.nvme, start, depth);
        Ok(Initiator { id, config, reader, free: (0..depth).collect() })
    }

    /// Reads from block `slba` on until `buffer` is full; returns the command's identifier.
    ///
    /// # Errors
    /// Why not, and the buffer.
    pub fn read(
        &mut self,
        stack: &mut Stack,
        slba: u64,
        buffer: Box<[u8]>,
    ) -> Result<u16, (ReadError, Box<[u8]>)> {
        let Config { nvme, nsid, block_bytes, depth, .. } = self.config;
        let blocks = (buffer.len() / block_bytes.max(1) as usize).wrapping_sub(1);
        let whole = buffer.len().is_multiple_of(block_bytes.max(1) as usize);
        let (Ok(nlb), Ok(data_bytes), true) =
            (u16::try_from(blocks), u32::try_from(buffer.len()), whole)
        else {
            return Err((ReadError::Length, buffer));
        };
        let Some(&cid) = self.free.front() else { return Err((ReadError::Depth(depth), buffer)) };
        let capsule = Read { cid, nsid, slba, nlb, data_bytes }.capsule(&nvme);
        if capsule.len() > stack.write_room_bytes(self.id) {
            return Err((WriteError::Full.into(), buffer));
        }
        if let Err(buffer) = self.reader.begin(cid, buffer) {
            return Err((ReadError::Depth(depth), buffer));
        }
        self.free.pop_front();
        if self.config.offload
            && let Some((registration, buffer)) = self.reader.lend(cid)
            && let Err((_, buffer)) = stack.register(self.id, registration, buffer)
        {
            // Without the device it is copied. No command waits for the buffer yet.
            let _ = self.reader.returned(registration, buffer);
        }
        // There is room. Should the connection have ended, the command is not answered.
        let _ = stack.write(self.id, Bytes::from(capsule));
        Ok(cid)
    }

    /// Takes what came; returns how many things that was.
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
        Ok(done)
    }

    /// A command that is complete; its identifier is used again.
    pub fn finished(&mut self) -> Option<Finished> {
        let finished = self.reader.finished()?;
        self.free.push_back(finished.cid);
        Some(finished)
    }

    /// What comes.
    pub fn reader(&self) -> &Reader {
        &self.reader
    }
}
