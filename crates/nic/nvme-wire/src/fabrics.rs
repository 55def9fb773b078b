//! Fabrics commands (NVMe Base §6): Connect, Property Get and Set, Disconnect; qualified names.

use super::command::Command;
use super::field::{array_at, put, u16_at, u32_at, u64_at};
use super::opcode::{FABRICS, FabricsType};
use std::fmt;
use thiserror::Error;

/// Length of the data of Connect.
pub const CONNECT_DATA_BYTES: usize = 1024;
/// Length of an NQN field.
pub const NQN_FIELD_BYTES: usize = 256;
/// Maximum length of an NQN, bytes (NVMe Base §4.5).
pub const NQN_BYTES_MAX: usize = 223;
/// The NQN of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// CNTLID in Connect: the controller is chosen by the target (dynamic controllers).
pub const CONTROLLER_DYNAMIC: u16 = 0xffff;

/// Error in an NQN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum NqnError {
    /// Empty, or longer than [`NQN_BYTES_MAX`].
    #[error("an NQN has 1 to {NQN_BYTES_MAX} bytes, not {0}")]
    Length(usize),
    /// Not UTF-8, or with control characters.
    #[error("an NQN is text without control characters")]
    Text,
    /// Without the prefix of NQNs.
    #[error("an NQN starts with `nqn.`")]
    Prefix,
}

/// The NVMe Qualified Name of a host or a subsystem.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Nqn(String);

impl Nqn {
    /// Validates a name.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn new(name: &str) -> Result<Nqn, NqnError> {
        if name.is_empty() || name.len() > NQN_BYTES_MAX {
            return Err(NqnError::Length(name.len()));
        }
        if name.chars().any(char::is_control) {
            return Err(NqnError::Text);
        }
        if !name.starts_with("nqn.") {
            return Err(NqnError::Prefix);
        }
        Ok(Nqn(name.to_owned()))
    }

    /// Parses a field: text, padded with zeroes.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn parse(field: &[u8; NQN_FIELD_BYTES]) -> Result<Nqn, NqnError> {
        let end = field.iter().position(|b| *b == 0).unwrap_or(NQN_FIELD_BYTES);
        Nqn::new(core::str::from_utf8(&field[..end]).map_err(|_| NqnError::Text)?)
    }

    /// Encodes the field.
    pub fn encode(&self) -> [u8; NQN_FIELD_BYTES] {
        let mut out = [0; NQN_FIELD_BYTES];
        put(&mut out, 0, self.0.as_bytes());
        out
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The fields of Connect (NVMe Base §6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// RECFMT; only 0 is defined.
    pub format: u16,
    /// QID: 0 is the admin queue.
    pub queue: u16,
    /// SQSIZE: size of the submission queue, entries, zero-based.
    pub queue_size_zero_based: u16,
    /// CATTR.
    pub attributes: u8,
    /// KATO, milliseconds; 0 disables the keep alive timer.
    pub keep_alive_ms: u32,
}

/// CATTR: the host ignores SQHD.
pub const ATTRIBUTE_NO_FLOW_CONTROL: u8 = 1 << 2;

impl Connect {
    /// Parses the fields of a Connect command.
    pub fn parse(command: &Command) -> Connect {
        let bytes = command.as_bytes();
        Connect {
            format: u16_at(bytes, 40),
            queue: u16_at(bytes, 42),
            queue_size_zero_based: u16_at(bytes, 44),
            attributes: bytes[46],
            keep_alive_ms: u32_at(bytes, 48),
        }
    }

    /// Encodes the command, without a data descriptor.
    pub fn command(&self, id: u16) -> Command {
        let mut command = fabrics(FabricsType::Connect, id);
        let bytes = command.as_bytes_mut();
        put(bytes, 40, &self.format.to_le_bytes());
        put(bytes, 42, &self.queue.to_le_bytes());
        put(bytes, 44, &self.queue_size_zero_based.to_le_bytes());
        bytes[46] = self.attributes;
        put(bytes, 48, &self.keep_alive_ms.to_le_bytes());
        command
    }
}

fn fabrics(kind: FabricsType, id: u16) -> Command {
    Command::build(FABRICS, id, u32::from(kind as u8))
}

/// The data of Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// HOSTID.
    pub host_id: [u8; 16],
    /// CNTLID: the controller of an I/O queue, otherwise [`CONTROLLER_DYNAMIC`].
    pub controller: u16,
    /// SUBNQN.
    pub subsystem: Nqn,
    /// HOSTNQN.
    pub host: Nqn,
}

/// Error in the data of Connect, with the offset of the wrong field for the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("connect data at byte {offset}: {reason}")]
pub struct ConnectDataError {
    /// Offset in the data, bytes.
    pub offset: u16,
    /// The error.
    pub reason: NqnError,
}

impl ConnectData {
    /// Parses the data.
    ///
    /// # Errors
    /// An invalid name, or too few bytes.
    pub fn parse(bytes: &[u8]) -> Result<ConnectData, ConnectDataError> {
        let fail = |offset| move |reason| ConnectDataError { offset, reason };
        if bytes.len() < CONNECT_DATA_BYTES {
            return Err(fail(0)(NqnError::Length(bytes.len())));
        }
        Ok(ConnectData {
            host_id: array_at(bytes, 0),
            controller: u16_at(bytes, 16),
            subsystem: Nqn::parse(&array_at(bytes, 256)).map_err(fail(256))?,
            host: Nqn::parse(&array_at(bytes, 512)).map_err(fail(512))?,
        })
    }

    /// Encodes the data.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; CONNECT_DATA_BYTES];
        put(&mut out, 0, &self.host_id);
        put(&mut out, 16, &self.controller.to_le_bytes());
        put(&mut out, 256, &self.subsystem.encode());
        put(&mut out, 512, &self.host.encode());
        out
    }
}

/// The result of a refused Connect: the invalid field (NVMe Base figure 384). `in_data` selects
/// whether `offset` is relative to the data or to the command.
pub fn invalid_parameter(offset: u16, in_data: bool) -> u64 {
    u64::from(offset) | u64::from(in_data) << 16
}

/// Properties of a fabrics controller (NVMe Base §3.1.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Property {
    /// CAP, eight bytes.
    Capabilities = 0x00,
    /// VS, four bytes.
    Version = 0x08,
    /// CC, four bytes.
    Configuration = 0x14,
    /// CSTS, four bytes.
    Status = 0x1c,
    /// NSSR, four bytes.
    SubsystemReset = 0x20,
}

impl Property {
    /// The property at an offset.
    pub fn from_offset(offset: u32) -> Option<Property> {
        use Property::*;
        [Capabilities, Version, Configuration, Status, SubsystemReset]
            .into_iter()
            .find(|property| *property as u32 == offset)
    }

    /// Returns true if it has eight bytes; otherwise it has four.
    pub fn is_wide(self) -> bool {
        self == Property::Capabilities
    }
}

/// The fields of Property Get and Property Set (NVMe Base §6.5, §6.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PropertyAccess {
    /// ATTRIB: eight bytes instead of four.
    pub is_wide: bool,
    /// OFST.
    pub offset: u32,
    /// VALUE for Set; 0 for Get.
    pub value: u64,
}

impl PropertyAccess {
    /// Parses the fields of a command. Returns `None` for an undefined size.
    pub fn parse(command: &Command) -> Option<PropertyAccess> {
        let bytes = command.as_bytes();
        let is_wide = match bytes[40] & 7 {
            0 => false,
            1 => true,
            _ => return None,
        };
        Some(PropertyAccess { is_wide, offset: u32_at(bytes, 44), value: u64_at(bytes, 48) })
    }

    /// Encodes Property Get.
    pub fn get(property: Property, id: u16) -> Command {
        let access =
            PropertyAccess { is_wide: property.is_wide(), offset: property as u32, value: 0 };
        access.command(FabricsType::PropertyGet, id)
    }

    /// Encodes Property Set.
    pub fn set(property: Property, value: u64, id: u16) -> Command {
        let access = PropertyAccess { is_wide: property.is_wide(), offset: property as u32, value };
        access.command(FabricsType::PropertySet, id)
    }

    fn command(&self, kind: FabricsType, id: u16) -> Command {
        let mut command = fabrics(kind, id);
        let bytes = command.as_bytes_mut();
        bytes[40] = self.is_wide.into();
        put(bytes, 44, &self.offset.to_le_bytes());
        put(bytes, 48, &self.value.to_le_bytes());
        command
    }
}

/// Disconnect (NVMe Base §6.4): ends the I/O queue that it is sent on.
pub fn disconnect(id: u16) -> Command {
    fabrics(FabricsType::Disconnect, id)
}
