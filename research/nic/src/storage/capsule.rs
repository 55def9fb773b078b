//! PDUs that an initiator gets, by their headers, and commands that it sends (NVMe/TCP Transport
//! Specification 1.0 §3.6, NVM Command Set Specification 1.0 §3.2).

use unlade_nvme_wire::pdu::{InitResponse, ReadyToTransfer};
use unlade_nvme_wire::{Command, CommonHeader, Completion, DataPlace, IoOpcode, Pdu, PduError};

/// Bytes of a command capsule without data and digest.
pub const CAPSULE_BYTES: usize = 72;

/// A command to read or write `data_bytes`, a whole number of blocks.
pub fn block_command(opcode: IoOpcode, nsid: u32, (slba, blocks): (u64, u32)) -> Command {
    Command::build(opcode as u8, 0, nsid).with_blocks(slba, blocks)
}

/// The capsule of `command`, which is `cid`; its data is there.
pub fn capsule(command: &Command, cid: u16, place: DataPlace) -> Pdu {
    let mut entry = *command.with_data(place).as_bytes();
    entry[2..4].copy_from_slice(&cid.to_le_bytes());
    Pdu::CommandCapsule(entry)
}

/// A PDU that an initiator gets, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// The controller agrees (ICResp).
    Initialised(InitResponse),
    /// Data of a command.
    Data {
        /// The command's identifier.
        cid: u16,
        /// Where in the command's data this belongs.
        offset: u32,
        /// It is the last data of the command.
        last: bool,
        /// The command is complete with it.
        success: bool,
    },
    /// The controller asks for data (R2T).
    Ready(ReadyToTransfer),
    /// A completion.
    Response(Completion),
    /// The controller ends the connection, for this reason (FES).
    Terminated(u16),
}

/// What the PDU with this header is; nothing where a controller does not send such.
///
/// # Errors
/// A field has a value that it must not have.
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
