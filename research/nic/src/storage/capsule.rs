//! Parser of the headers of PDUs to an initiator, and builder of its commands (NVMe/TCP Transport
//! Specification 1.0 §3.6, NVM Command Set Specification 1.0 §3.2).

use unlade_nvme_wire::pdu::{InitResponse, ReadyToTransfer};
use unlade_nvme_wire::{Command, CommonHeader, Completion, DataPlace, IoOpcode, Pdu, PduError};

/// Bytes of a command capsule without data and digest.
pub const CAPSULE_BYTES: usize = 72;

/// Builds a command to read or write `data_bytes`, a whole number of blocks.
pub fn block_command(opcode: IoOpcode, nsid: u32, (slba, blocks): (u64, u32)) -> Command {
    Command::build(opcode as u8, 0, nsid).with_blocks(slba, blocks)
}

/// Builds the capsule of `command` with the identifier `cid`; its data is at `place`.
pub fn capsule(command: &Command, cid: u16, place: DataPlace) -> Pdu {
    let mut entry = *command.with_data(place).as_bytes();
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    Pdu::CommandCapsule(entry)
}

/// The header of a PDU to an initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// The controller accepts the connection (ICResp).
    Initialised(InitResponse),
    /// Data of a command.
    Data {
        /// The command's identifier.
        cid: u16,
        /// Offset in the command's data.
        offset: u32,
        /// True if it is the last data of the command.
        last: bool,
        /// True if it completes the command.
        success: bool,
    },
    /// The controller requests data (R2T).
    Ready(ReadyToTransfer),
    /// A completion.
    Response(Completion),
    /// The controller ends the connection, with this status (FES).
    Terminated(u16),
}

/// Parses the header of a PDU; `None` if controllers do not send this type.
///
/// # Errors
/// A field has an invalid value.
pub fn heading(header: &[u8]) -> Result<Option<Heading>, PduError> {
    let common = CommonHeader::parse(header)?;
    Ok(match Pdu::parse(&common, header)? {
        Pdu::InitResponse(agreed) => Some(Heading::Initialised(agreed)),
        Pdu::ControllerData(data) => Some(Heading::Data {
            cid: data.command_id,
            offset: data.offset,
            last: data.is_last,
            success: data.is_success,
        }),
        Pdu::ReadyToTransfer(ready) => Some(Heading::Ready(ready)),
        Pdu::ResponseCapsule(entry) => Some(Heading::Response(Completion::parse(&entry))),
        Pdu::ControllerTerminate(end) => Some(Heading::Terminated(end.status)),
        _ => None,
    })
}
