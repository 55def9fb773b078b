//! Submission and completion queue entries (NVMe Base §3.3.3), and data descriptors.

use super::field::{array_at, put, u16_at, u32_at, u64_at};
use super::opcode::{Direction, FABRICS};
use super::pdu::{COMMAND_BYTES, COMPLETION_BYTES};
use super::status::Status;
use thiserror::Error;

/// Location of a command's data: its SGL descriptor (NVMe Base §4.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// In the capsule, `offset` bytes after the command (data block, subtype offset).
    InCapsule {
        /// Bytes after ICDOFF.
        offset: u64,
        /// Length in bytes.
        bytes: u32,
    },
    /// Sent in separate PDUs (transport data block).
    Transport {
        /// Length in bytes.
        bytes: u32,
    },
}

/// An unsupported descriptor; the host is at fault, and the command fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("SGL descriptor type {kind:#x}, subtype {subtype:#x} is not supported over TCP")]
pub struct DataPlaceError {
    /// The descriptor's type.
    pub kind: u8,
    /// Its subtype.
    pub subtype: u8,
}

const SGL_DATA_BLOCK: u8 = 0x0;
const SGL_TRANSPORT_BLOCK: u8 = 0x5;
const SUBTYPE_OFFSET: u8 = 0x1;
const SUBTYPE_TRANSPORT: u8 = 0xa;

impl DataPlace {
    /// Parses a descriptor.
    ///
    /// # Errors
    /// A descriptor type that NVMe/TCP does not define.
    pub fn parse(descriptor: &[u8; 16]) -> Result<DataPlace, DataPlaceError> {
        let bytes = u32_at(descriptor, 8);
        match (descriptor[15] >> 4, descriptor[15] & 0xf) {
            (SGL_DATA_BLOCK, SUBTYPE_OFFSET) => {
                Ok(DataPlace::InCapsule { offset: u64_at(descriptor, 0), bytes })
            }
            (SGL_TRANSPORT_BLOCK, SUBTYPE_TRANSPORT) => Ok(DataPlace::Transport { bytes }),
            (kind, subtype) => Err(DataPlaceError { kind, subtype }),
        }
    }

    /// Encodes the descriptor.
    pub fn encode(&self) -> [u8; 16] {
        let mut out = [0; 16];
        let (kind, subtype) = match self {
            DataPlace::InCapsule { offset, .. } => {
                put(&mut out, 0, &offset.to_le_bytes());
                (SGL_DATA_BLOCK, SUBTYPE_OFFSET)
            }
            DataPlace::Transport { .. } => (SGL_TRANSPORT_BLOCK, SUBTYPE_TRANSPORT),
        };
        put(&mut out, 8, &self.bytes().to_le_bytes());
        out[15] = kind << 4 | subtype;
        out
    }

    /// Number of data bytes.
    pub fn bytes(&self) -> u32 {
        match self {
            DataPlace::InCapsule { bytes, .. } | DataPlace::Transport { bytes } => *bytes,
        }
    }
}

/// A submission queue entry of 64 bytes, with accessors for the common fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    bytes: [u8; COMMAND_BYTES],
}

impl Command {
    /// An entry from received bytes.
    pub fn new(bytes: [u8; COMMAND_BYTES]) -> Command {
        Command { bytes }
    }

    /// An entry with an opcode, an identifier and a namespace; it uses SGLs, as fabrics requires.
    pub fn build(opcode: u8, id: u16, namespace: u32) -> Command {
        let mut bytes = [0; COMMAND_BYTES];
        bytes[0] = opcode;
        bytes[1] = 1 << 6;
        put(&mut bytes, 2, &id.to_le_bytes());
        put(&mut bytes, 4, &namespace.to_le_bytes());
        let command = Command { bytes };
        command.with_data(DataPlace::Transport { bytes: 0 })
    }

    /// Sets the data descriptor.
    #[must_use]
    pub fn with_data(mut self, place: DataPlace) -> Command {
        put(&mut self.bytes, 24, &place.encode());
        self
    }

    /// Sets command dword `number`, 10 to 15, to `value`; other numbers are ignored.
    #[must_use]
    pub fn with_dword(mut self, number: usize, value: u32) -> Command {
        if (10..16).contains(&number) {
            put(&mut self.bytes, number * 4, &value.to_le_bytes());
        }
        self
    }

    /// Sets first block and number of blocks (not zero-based here; at least one): the fields of
    /// Read, Write, Compare and Write Zeroes (NVM §3.2).
    #[must_use]
    pub fn with_blocks(self, first: u64, count: u32) -> Command {
        self.with_dword(10, first as u32)
            .with_dword(11, (first >> 32) as u32)
            .with_dword(12, count.saturating_sub(1) & 0xffff)
    }

    /// The entry's bytes.
    pub fn as_bytes(&self) -> &[u8; COMMAND_BYTES] {
        &self.bytes
    }

    pub(super) fn as_bytes_mut(&mut self) -> &mut [u8; COMMAND_BYTES] {
        &mut self.bytes
    }

    /// OPC.
    pub fn opcode(&self) -> u8 {
        self.bytes[0]
    }

    /// FUSE: 0 for a command that is not fused.
    pub fn fused(&self) -> u8 {
        self.bytes[1] & 3
    }

    /// CID.
    pub fn id(&self) -> u16 {
        u16_at(&self.bytes, 2)
    }

    /// FCTYPE of a fabrics command.
    pub fn fabrics_type(&self) -> u8 {
        self.bytes[4]
    }

    /// NSID.
    pub fn namespace(&self) -> u32 {
        u32_at(&self.bytes, 4)
    }

    /// Command dword 10 to 15; 0 for any other number.
    pub fn dword(&self, number: usize) -> u32 {
        if (10..16).contains(&number) { u32_at(&self.bytes, number * 4) } else { 0 }
    }

    /// Parses the data descriptor.
    ///
    /// # Errors
    /// A descriptor type that NVMe/TCP does not define.
    pub fn data(&self) -> Result<DataPlace, DataPlaceError> {
        DataPlace::parse(&array_at(&self.bytes, 24))
    }

    /// Direction of the data transfer.
    pub fn direction(&self) -> Direction {
        Direction::of(if self.opcode() == FABRICS { self.fabrics_type() } else { self.opcode() })
    }

    /// SLBA of Read, Write, Compare and Write Zeroes.
    pub fn first_block(&self) -> u64 {
        u64_at(&self.bytes, 40)
    }

    /// NLB of these commands, not zero-based here: 1 to 65,536.
    pub fn block_count(&self) -> u32 {
        (self.dword(12) & 0xffff) + 1
    }

    /// FUA of these commands: written data must be durable when the command completes.
    pub fn force_unit_access(&self) -> bool {
        self.dword(12) & 1 << 30 != 0
    }
}

/// A completion queue entry of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dwords 0 and 1: the command's result.
    pub result: u64,
    /// SQHD: the controller's head in the submission queue.
    pub submission_head: u16,
    /// SQID; reserved over fabrics.
    pub queue: u16,
    /// CID.
    pub command_id: u16,
    /// Status of the command.
    pub status: Status,
}

impl Completion {
    /// Creates a completion of a command.
    pub fn new(command_id: u16, status: Status) -> Completion {
        Completion { result: 0, submission_head: 0, queue: 0, command_id, status }
    }

    /// Parses an entry. Every bit pattern is valid.
    pub fn parse(bytes: &[u8; COMPLETION_BYTES]) -> Completion {
        Completion {
            result: u64_at(bytes, 0),
            submission_head: u16_at(bytes, 8),
            queue: u16_at(bytes, 10),
            command_id: u16_at(bytes, 12),
            status: Status::from_bits(u16_at(bytes, 14) >> 1),
        }
    }

    /// Encodes the entry; the phase tag is 0, as over fabrics.
    pub fn encode(&self) -> [u8; COMPLETION_BYTES] {
        let mut out = [0; COMPLETION_BYTES];
        put(&mut out, 0, &self.result.to_le_bytes());
        put(&mut out, 8, &self.submission_head.to_le_bytes());
        put(&mut out, 10, &self.queue.to_le_bytes());
        put(&mut out, 12, &self.command_id.to_le_bytes());
        put(&mut out, 14, &(self.status.bits() << 1).to_le_bytes());
        out
    }
}

/// Length of a range of Dataset Management (NVM §3.2.3).
pub const RANGE_BYTES: usize = 16;
/// Maximum number of ranges of one Dataset Management command.
pub const RANGES_MAX: usize = 256;
/// AD: the ranges may be deallocated (command dword 11).
pub const DEALLOCATE: u32 = 1 << 2;

/// A range of Dataset Management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRange {
    /// First block.
    pub first: u64,
    /// Number of blocks; may be 0.
    pub count: u32,
}

impl BlockRange {
    /// Parses a range.
    pub fn parse(bytes: &[u8; RANGE_BYTES]) -> BlockRange {
        BlockRange { first: u64_at(bytes, 8), count: u32_at(bytes, 4) }
    }

    /// Encodes the range.
    pub fn encode(&self) -> [u8; RANGE_BYTES] {
        let mut out = [0; RANGE_BYTES];
        put(&mut out, 4, &self.count.to_le_bytes());
        put(&mut out, 8, &self.first.to_le_bytes());
        out
    }
}
