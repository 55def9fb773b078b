//! Properties of a controller and its namespaces: the data of Identify (NVMe Base §5.17, NVM
//! §4.1.5).

use super::fabrics::{NQN_FIELD_BYTES, Nqn};
use super::field::{array_at, ascii_at, put, put_ascii, u16_at, u32_at, u64_at};
use thiserror::Error;

/// Length of Identify data.
pub const IDENTIFY_BYTES: usize = 4096;
/// Maximum number of identifiers in a list of namespaces.
pub const LIST_ENTRIES_MAX: usize = IDENTIFY_BYTES / 4;

/// Data structure requested by Identify (CNS, NVMe Base figure 273).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum IdentifyKind {
    /// A namespace: [`IdentifyNamespace`].
    Namespace = 0x00,
    /// The controller: [`IdentifyController`].
    Controller = 0x01,
    /// The namespaces above a given identifier: [`encode_namespaces`].
    ActiveNamespaces = 0x02,
    /// The identifiers of a namespace: [`NamespaceNames`].
    Descriptors = 0x03,
    /// A namespace, specific to its command set; all zeroes if there is nothing specific.
    CommandSetNamespace = 0x05,
    /// The controller, specific to a command set; all zeroes if there is nothing specific.
    CommandSetController = 0x06,
    /// The namespaces of a command set above a given identifier: [`encode_namespaces`].
    CommandSetNamespaces = 0x07,
    /// Supported combinations of command sets: [`encode_command_sets`].
    CommandSets = 0x1c,
}

impl IdentifyKind {
    /// The kind with this number, if it is supported.
    pub fn from_number(number: u8) -> Option<IdentifyKind> {
        use IdentifyKind::*;
        let all = [
            Namespace,
            Controller,
            ActiveNamespaces,
            Descriptors,
            CommandSetNamespace,
            CommandSetController,
            CommandSetNamespaces,
            CommandSets,
        ];
        all.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Error in Identify data; the controller is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum IdentifyError {
    /// Shorter than [`IDENTIFY_BYTES`].
    #[error("identify data has {0} bytes, not {IDENTIFY_BYTES}")]
    Length(usize),
    /// An unsupported block size.
    #[error("blocks of 2^{0} bytes are not supported (2^9 to 2^16 are)")]
    BlockSize(u8),
    /// Blocks with metadata, which are not supported.
    #[error("blocks with {0} bytes of metadata are not supported")]
    Metadata(u16),
    /// The format in use has no descriptor.
    #[error("format {0} is not described")]
    Format(u8),
}

fn whole(bytes: &[u8]) -> Result<&[u8; IDENTIFY_BYTES], IdentifyError> {
    let start = bytes.get(..IDENTIFY_BYTES).ok_or(IdentifyError::Length(bytes.len()))?;
    start.try_into().map_err(|_| IdentifyError::Length(bytes.len()))
}

/// Controller type (CNTRLTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ControllerKind {
    /// A controller with I/O queues.
    Io = 1,
    /// A discovery controller.
    Discovery = 2,
}

/// Identify Controller (NVMe Base figure 275): the supported fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentifyController {
    /// SN, at most 20 characters.
    pub serial: String,
    /// MN, at most 40.
    pub model: String,
    /// FR, at most 8.
    pub firmware: String,
    /// CMIC bit 1: the subsystem may have several controllers.
    pub is_one_of_many: bool,
    /// MDTS: the maximum data transfer is 4096 bytes times 2 to this power; 0 means no limit.
    pub transfer_power: u8,
    /// CNTLID.
    pub controller: u16,
    /// VER, as in property VS.
    pub version: u32,
    /// OAES: supported asynchronous events.
    pub events: u32,
    /// CNTRLTYPE; the raw value if it is not a [`ControllerKind`].
    pub kind: u8,
    /// AERL: maximum number of outstanding event requests, zero-based.
    pub event_requests_zero_based: u8,
    /// ACL: maximum number of outstanding aborts, zero-based.
    pub aborts_zero_based: u8,
    /// LPA: bit 2 is support of offsets and long transfers of log pages.
    pub log_attributes: u8,
    /// ELPE: entries of the error log, zero-based.
    pub error_entries_zero_based: u8,
    /// KAS: granularity of the keep alive timer, 100 ms; 0 means not supported.
    pub keep_alive_grain: u16,
    /// MAXCMD: maximum number of outstanding commands in an I/O queue.
    pub commands_max: u16,
    /// NN: the largest namespace identifier.
    pub namespaces_max: u32,
    /// ONCS: optional commands. See the constants `ONCS_…`.
    pub commands: u16,
    /// VWC: bit 0 indicates a volatile write cache, which Flush writes back.
    pub write_cache: u8,
    /// SGLS.
    pub sgl: u32,
    /// SUBNQN; `None` if the field is not a valid name.
    pub subsystem: Option<Nqn>,
    /// IOCCSZ: command capsule size of I/O queues, units of 16 bytes.
    pub command_capsule_16: u32,
    /// IORCSZ: response capsule size of I/O queues, units of 16 bytes.
    pub response_capsule_16: u32,
    /// ICDOFF: offset of in-capsule data after the command, units of 16 bytes.
    pub in_capsule_offset_16: u16,
    /// MSDBD: maximum number of descriptors of a command.
    pub descriptors_max: u8,
}

/// ONCS: Compare.
pub const ONCS_COMPARE: u16 = 1;
/// ONCS: Dataset Management.
pub const ONCS_DATASET_MANAGEMENT: u16 = 1 << 2;
/// ONCS: Write Zeroes.
pub const ONCS_WRITE_ZEROES: u16 = 1 << 3;
/// SGLS: SGLs of any alignment.
pub const SGL_ANY_ALIGNMENT: u32 = 1;
/// SGLS: an offset as address, that is, data in capsules.
pub const SGL_OFFSET: u32 = 1 << 20;
/// SGLS: transport data blocks.
pub const SGL_TRANSPORT: u32 = 1 << 21;

impl IdentifyController {
    /// Parses the data.
    ///
    /// # Errors
    /// Too few bytes.
    pub fn parse(bytes: &[u8]) -> Result<IdentifyController, IdentifyError> {
        let bytes = whole(bytes)?;
        Ok(IdentifyController {
            serial: ascii_at(bytes, 4, 20),
            model: ascii_at(bytes, 24, 40),
            firmware: ascii_at(bytes, 64, 8),
            is_one_of_many: bytes[76] & 2 != 0,
            transfer_power: bytes[77],
            controller: u16_at(bytes, 78),
            version: u32_at(bytes, 80),
            events: u32_at(bytes, 92),
            kind: bytes[111],
            aborts_zero_based: bytes[258],
            event_requests_zero_based: bytes[259],
            log_attributes: bytes[261],
            error_entries_zero_based: bytes[262],
            keep_alive_grain: u16_at(bytes, 320),
            commands_max: u16_at(bytes, 514),
            namespaces_max: u32_at(bytes, 516),
            commands: u16_at(bytes, 520),
            write_cache: bytes[525],
            sgl: u32_at(bytes, 536),
            subsystem: Nqn::parse(&array_at::<NQN_FIELD_BYTES>(bytes, 768)).ok(),
            command_capsule_16: u32_at(bytes, 1792),
            response_capsule_16: u32_at(bytes, 1796),
            in_capsule_offset_16: u16_at(bytes, 1800),
            descriptors_max: bytes[1803],
        })
    }

    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; IDENTIFY_BYTES];
        put_ascii(&mut out, 4, 20, &self.serial);
        put_ascii(&mut out, 24, 40, &self.model);
        put_ascii(&mut out, 64, 8, &self.firmware);
        out[76] = u8::from(self.is_one_of_many) << 1;
        out[77] = self.transfer_power;
        put(&mut out, 78, &self.controller.to_le_bytes());
        put(&mut out, 80, &self.version.to_le_bytes());
        put(&mut out, 92, &self.events.to_le_bytes());
        out[111] = self.kind;
        out[258] = self.aborts_zero_based;
        out[259] = self.event_requests_zero_based;
        out[261] = self.log_attributes;
        out[262] = self.error_entries_zero_based;
        put(&mut out, 320, &self.keep_alive_grain.to_le_bytes());
        // SQES and CQES: minimum and maximum entry sizes of 2^6 and 2^4 bytes.
        out[512] = 0x66;
        out[513] = 0x44;
        put(&mut out, 514, &self.commands_max.to_le_bytes());
        put(&mut out, 516, &self.namespaces_max.to_le_bytes());
        put(&mut out, 520, &self.commands.to_le_bytes());
        out[525] = self.write_cache;
        put(&mut out, 536, &self.sgl.to_le_bytes());
        if let Some(subsystem) = &self.subsystem {
            put(&mut out, 768, &subsystem.encode());
        }
        put(&mut out, 1792, &self.command_capsule_16.to_le_bytes());
        put(&mut out, 1796, &self.response_capsule_16.to_le_bytes());
        put(&mut out, 1800, &self.in_capsule_offset_16.to_le_bytes());
        out[1803] = self.descriptors_max;
        out
    }

    /// Maximum in-capsule data of a command in an I/O queue, bytes.
    pub fn in_capsule_bytes(&self) -> u64 {
        (u64::from(self.command_capsule_16) * 16).saturating_sub(64)
    }

    /// Maximum data of a command, bytes, if there is a limit.
    pub fn transfer_bytes_max(&self) -> Option<u64> {
        let power = u32::from(self.transfer_power);
        (power > 0).then(|| 4096_u64.checked_shl(power).filter(|b| b >> power == 4096)).flatten()
    }
}

/// Identify Namespace (NVM figure 97): the supported fields. One format, without metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentifyNamespace {
    /// NSZE: number of blocks.
    pub blocks: u64,
    /// LBADS of the format in use: the block size is 2 to this power, 9 to 16.
    pub block_power: u8,
    /// DLFEAT bits 2:0: read behaviour of deallocated blocks; 1 is zeroes.
    pub deallocated_reads: u8,
    /// NMIC bit 0: several controllers may use it.
    pub is_shared: bool,
    /// NSATTR bit 0.
    pub is_read_only: bool,
    /// NGUID; all zeroes if there is none.
    pub guid: [u8; 16],
}

impl IdentifyNamespace {
    /// Parses the data. An inactive namespace has no blocks and a block size of 0.
    ///
    /// # Errors
    /// Too few bytes, or an unsupported format.
    pub fn parse(bytes: &[u8]) -> Result<IdentifyNamespace, IdentifyError> {
        let bytes = whole(bytes)?;
        let format = bytes[26] & 0xf;
        if format > bytes[25] {
            return Err(IdentifyError::Format(format));
        }
        let entry = 128 + 4 * usize::from(format);
        let (metadata, block_power) = (u16_at(bytes, entry), bytes[entry + 2]);
        let blocks = u64_at(bytes, 0);
        if metadata != 0 {
            return Err(IdentifyError::Metadata(metadata));
        }
        if blocks > 0 && !(9..=16).contains(&block_power) {
            return Err(IdentifyError::BlockSize(block_power));
        }
        Ok(IdentifyNamespace {
            blocks,
            block_power,
            deallocated_reads: bytes[33] & 7,
            is_shared: bytes[30] & 1 != 0,
            is_read_only: bytes[99] & 1 != 0,
            guid: array_at(bytes, 104),
        })
    }

    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; IDENTIFY_BYTES];
        // NSZE, NCAP, NUSE: the namespace is fully allocated.
        for at in [0, 8, 16] {
            put(&mut out, at, &self.blocks.to_le_bytes());
        }
        out[30] = self.is_shared.into();
        out[33] = self.deallocated_reads & 7;
        out[99] = self.is_read_only.into();
        put(&mut out, 104, &self.guid);
        out[130] = self.block_power;
        out
    }
}

/// Encodes the namespaces above `after`, from the ascending `numbers`.
pub fn encode_namespaces(numbers: impl IntoIterator<Item = u32>, after: u32) -> Vec<u8> {
    let mut out = vec![0; IDENTIFY_BYTES];
    let above = numbers.into_iter().filter(|number| *number > after);
    for (place, number) in out.chunks_exact_mut(4).zip(above) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    out
}

/// Encodes the supported combinations of command sets (NVMe Base figure 289): the NVM command set
/// alone.
pub fn encode_command_sets() -> Vec<u8> {
    let mut out = vec![0; IDENTIFY_BYTES];
    out[0] = 1;
    out
}

/// Parses a list of namespaces.
///
/// # Errors
/// Too few bytes.
pub fn parse_namespaces(bytes: &[u8]) -> Result<Vec<u32>, IdentifyError> {
    let bytes = whole(bytes)?;
    let numbers = bytes.chunks_exact(4).map(|entry| u32_at(entry, 0));
    Ok(numbers.take_while(|number| *number != 0).collect())
}

/// Identifiers of a namespace (NVMe Base §5.17.2.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceNames {
    /// NGUID.
    pub guid: Option<[u8; 16]>,
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// CSI: the command set; 0 is NVM.
    pub command_set: Option<u8>,
}

const NAME_GUID: u8 = 2;
const NAME_UUID: u8 = 3;
const NAME_COMMAND_SET: u8 = 4;

impl NamespaceNames {
    /// Parses the data. Other types of identifiers are skipped; the list ends at an identifier
    /// without a length, or beyond the data.
    ///
    /// # Errors
    /// Too few bytes.
    pub fn parse(bytes: &[u8]) -> Result<NamespaceNames, IdentifyError> {
        let mut rest = &whole(bytes)?[..];
        let mut names = NamespaceNames::default();
        while let Some((head, after)) = rest.split_at_checked(4) {
            let length = usize::from(head[1]);
            let Some((name, next)) = after.split_at_checked(length) else { break };
            match (head[0], length) {
                (_, 0) => break,
                (NAME_GUID, 16) => names.guid = Some(array_at(name, 0)),
                (NAME_UUID, 16) => names.uuid = Some(array_at(name, 0)),
                (NAME_COMMAND_SET, 1) => names.command_set = Some(name[0]),
                _ => {}
            }
            rest = next;
        }
        Ok(names)
    }

    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(IDENTIFY_BYTES);
        let mut name = |kind: u8, value: &[u8]| {
            out.extend_from_slice(&[kind, value.len() as u8, 0, 0]);
            out.extend_from_slice(value);
        };
        if let Some(guid) = &self.guid {
            name(NAME_GUID, guid);
        }
        if let Some(uuid) = &self.uuid {
            name(NAME_UUID, uuid);
        }
        if let Some(set) = self.command_set {
            name(NAME_COMMAND_SET, &[set]);
        }
        out.resize(IDENTIFY_BYTES, 0);
        out
    }
}
