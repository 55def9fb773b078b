//! A namespace as a block device: read, write and flush, with concurrent calls.

use std::ops::Range;

use bytes::Bytes;
use unlade_nvme_wire::identify::{
    IdentifyController, IdentifyKind, IdentifyNamespace, ONCS_WRITE_ZEROES,
};
use unlade_nvme_wire::{Command, IoOpcode, Status};

use super::controller::Controller;
use super::driver::{CommandError, Pending};
use super::error::DeviceError;
use super::queue::{DATA_BYTES_MAX, Failure, Payload};

/// Largest number of bytes of one command if the controller reports no limit.
const COMMAND_BYTES_MAX: u32 = 1 << 20;
/// Largest number of blocks of one command.
const BLOCKS_MAX: u64 = 1 << 16;
/// Commands of one call that are in flight concurrently.
const PARTS_MAX: usize = 32;

/// A namespace of a connected controller. Clones refer to the same one. Calls may be concurrent,
/// up to the queues' depth; concurrent writes of the same blocks complete in any order.
///
/// A call that is dropped before its end may or may not have been executed. Its resources are
/// kept until the controller has answered, so it never affects a later call.
#[derive(Clone, Debug)]
pub struct Namespace {
    controller: Controller,
    number: u32,
    block_power: u8,
    blocks: u64,
    is_read_only: bool,
    has_write_zeroes: bool,
    command_bytes_max: u32,
}

impl Controller {
    /// Opens a namespace.
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::NoNamespace`] if it does not exist.
    pub async fn namespace(&self, number: u32) -> Result<Namespace, DeviceError> {
        let format = match self.identify(IdentifyKind::Namespace, number).await {
            Ok(data) => IdentifyNamespace::parse(&data)?,
            Err(error) if is_no_namespace(&error) => return Err(self.no_namespace(number).await),
            Err(error) => return Err(error),
        };
        if format.blocks == 0 {
            return Err(self.no_namespace(number).await);
        }
        let identity = self.identity().await?;
        Namespace::new(self.clone(), number, &format, &identity)
    }
}

fn is_no_namespace(error: &DeviceError) -> bool {
    let DeviceError::Command(CommandError::Failed(Failure::Status(status))) = error else {
        return false;
    };
    status.is(Status::INVALID_NAMESPACE)
}

/// A part of a call: first block and bytes within the call's data.
struct Part {
    first: u64,
    bytes: Range<usize>,
}

impl Namespace {
    pub(super) fn new(
        controller: Controller,
        number: u32,
        format: &IdentifyNamespace,
        identity: &IdentifyController,
    ) -> Result<Namespace, DeviceError> {
        let limit = identity.transfer_bytes_max().unwrap_or(u64::from(COMMAND_BYTES_MAX));
        let most = limit.min(u64::from(DATA_BYTES_MAX)).min(BLOCKS_MAX << format.block_power);
        let command_bytes_max = (most >> format.block_power << format.block_power) as u32;
        if command_bytes_max == 0 || format.blocks.leading_zeros() < u32::from(format.block_power) {
            return Err(DeviceError::Misbehaved("its block size does not fit its limits"));
        }
        Ok(Namespace {
            controller,
            number,
            block_power: format.block_power,
            blocks: format.blocks,
            is_read_only: format.is_read_only,
            has_write_zeroes: identity.commands & ONCS_WRITE_ZEROES != 0,
            command_bytes_max,
        })
    }

    /// NSID.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u32 {
        1 << self.block_power
    }

    /// Bytes of the namespace.
    pub fn size_bytes(&self) -> u64 {
        self.blocks << self.block_power
    }

    /// Largest number of bytes of one command; longer calls are split.
    pub fn command_bytes_max(&self) -> u32 {
        self.command_bytes_max
    }

    /// Returns true if the namespace is read-only.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The controller of the namespace.
    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        let block_bytes = self.block_bytes();
        if (offset | bytes) & u64::from(block_bytes - 1) != 0 {
            return Err(DeviceError::Misaligned { offset, bytes, block_bytes });
        }
        let size_bytes = self.size_bytes();
        if offset.checked_add(bytes).is_none_or(|end| end > size_bytes) {
            return Err(DeviceError::OutOfRange { offset, bytes, size_bytes });
        }
        Ok(())
    }

    /// The commands of a call.
    fn parts(&self, offset: u64, bytes: usize) -> impl Iterator<Item = Part> + use<> {
        let (step, power) = (self.command_bytes_max as usize, self.block_power);
        (0..bytes).step_by(step).map(move |start| Part {
            first: (offset + start as u64) >> power,
            bytes: start..bytes.min(start + step),
        })
    }

    fn command(&self, opcode: IoOpcode, part: &Part) -> Command {
        let blocks = part.bytes.len() >> self.block_power;
        Command::build(opcode as u8, 0, self.number).with_blocks(part.first, blocks as u32)
    }

    /// Reads from `offset` into `buffer`, both multiples of the block size.
    ///
    /// # Errors
    /// [`DeviceError`]; the buffer's content is then undefined.
    pub async fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.check(offset, buffer.len() as u64)?;
        let mut submitted = Vec::new();
        let mut parts = self.parts(offset, buffer.len());
        loop {
            let batch: Vec<Part> = parts.by_ref().take(PARTS_MAX).collect();
            if batch.is_empty() {
                return Ok(());
            }
            for part in &batch {
                submitted.push(self.submit_read(part, Vec::new()).await?);
            }
            for (part, pending) in batch.iter().zip(submitted.drain(..)) {
                let data = self.finish_read(part, pending).await?;
                buffer[part.bytes.clone()].copy_from_slice(&data);
            }
        }
    }

    /// Reads from `offset` into `buffer`, which is taken and returned. If it fits into one
    /// command ([`Namespace::command_bytes_max`]), data is received directly into it.
    ///
    /// # Errors
    /// [`DeviceError`]; the buffer is then lost.
    pub async fn read_owned(&self, offset: u64, buffer: Vec<u8>) -> Result<Vec<u8>, DeviceError> {
        self.check(offset, buffer.len() as u64)?;
        if buffer.is_empty() {
            return Ok(buffer);
        }
        if buffer.len() > self.command_bytes_max as usize {
            let mut buffer = buffer;
            self.read(offset, &mut buffer).await?;
            return Ok(buffer);
        }
        let part = Part { first: offset >> self.block_power, bytes: 0..buffer.len() };
        let pending = self.submit_read(&part, buffer).await?;
        self.finish_read(&part, pending).await
    }

    /// Submits a read into `buffer`, or into a new one if its length differs.
    async fn submit_read(&self, part: &Part, mut buffer: Vec<u8>) -> Result<Pending, DeviceError> {
        buffer.resize(part.bytes.len(), 0);
        let command = self.command(IoOpcode::Read, part);
        Ok(self.controller.submit(command, Payload::In(buffer)).await?)
    }

    async fn finish_read(&self, part: &Part, pending: Pending) -> Result<Vec<u8>, DeviceError> {
        let mut answer = pending.answer().await;
        let mut attempts = 0;
        loop {
            match answer {
                Ok(answer) => return Ok(answer.data),
                Err(error) => self.controller.check_retry(error, &mut attempts)?,
            }
            answer = self.submit_read(part, Vec::new()).await?.answer().await;
        }
    }

    /// Writes `bytes` at `offset`, both multiples of the block size, without a copy.
    ///
    /// # Errors
    /// [`DeviceError`]; any part may have been written.
    pub async fn write(&self, offset: u64, bytes: Bytes) -> Result<(), DeviceError> {
        self.check(offset, bytes.len() as u64)?;
        if self.is_read_only {
            return Err(DeviceError::ReadOnly);
        }
        let mut parts = self.parts(offset, bytes.len());
        let mut submitted = Vec::new();
        loop {
            let batch: Vec<Part> = parts.by_ref().take(PARTS_MAX).collect();
            if batch.is_empty() {
                return Ok(());
            }
            for part in &batch {
                let command = self.command(IoOpcode::Write, part);
                let payload = Payload::Out(bytes.slice(part.bytes.clone()));
                submitted.push(self.controller.submit(command, payload).await?);
            }
            for (part, pending) in batch.iter().zip(submitted.drain(..)) {
                let command = self.command(IoOpcode::Write, part);
                let payload = Payload::Out(bytes.slice(part.bytes.clone()));
                self.finish(pending, command, payload).await?;
            }
        }
    }

    /// As [`Namespace::write`], with a copy of `bytes`.
    ///
    /// # Errors
    /// As [`Namespace::write`].
    pub async fn write_from(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write(offset, Bytes::copy_from_slice(bytes)).await
    }

    /// Makes all writes durable that were complete at the time of the call.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub async fn flush(&self) -> Result<(), DeviceError> {
        let command = Command::build(IoOpcode::Flush as u8, 0, self.number);
        let pending = self.controller.submit(command, Payload::None).await?;
        self.finish(pending, command, Payload::None).await
    }

    /// Writes zeroes without sending them.
    ///
    /// # Errors
    /// [`DeviceError`]; [`DeviceError::Unsupported`] if the controller lacks the command.
    pub async fn write_zeroes(&self, offset: u64, bytes: u64) -> Result<(), DeviceError> {
        self.check(offset, bytes)?;
        if self.is_read_only {
            return Err(DeviceError::ReadOnly);
        }
        if !self.has_write_zeroes {
            return Err(DeviceError::Unsupported("Write Zeroes"));
        }
        let (mut first, end) = (offset >> self.block_power, (offset + bytes) >> self.block_power);
        while first < end {
            let count = (end - first).min(BLOCKS_MAX);
            let command = Command::build(IoOpcode::WriteZeroes as u8, 0, self.number)
                .with_blocks(first, count as u32);
            let pending = self.controller.submit(command, Payload::None).await?;
            self.finish(pending, command, Payload::None).await?;
            first += count;
        }
        Ok(())
    }

    /// Waits for a command without input data, and repeats it if necessary.
    async fn finish(
        &self,
        pending: Pending,
        command: Command,
        payload: Payload,
    ) -> Result<(), DeviceError> {
        let mut answer = pending.answer().await;
        let mut attempts = 0;
        loop {
            match answer {
                Ok(_) => return Ok(()),
                Err(error) => self.controller.check_retry(error, &mut attempts)?,
            }
            answer = self.controller.submit(command, payload.clone()).await?.answer().await;
        }
    }
}
