//! A command to read, and what comes back (NVM Express Base Specification 2.0 §3.3.3 and §4.1, NVM
//! Command Set 1.0 §3.2.4, NVMe/TCP Transport Specification 1.0 §3.6.2).

use aead::crc32c;
use offload::Nvme;
use offload::nvme::{FLAG_HDGST, FLAG_LAST, FLAG_SUCCESS, Target, target, types};

/// Octets of a command capsule without data and digest.
pub const CAPSULE_BYTES: usize = 72;
/// Where in the capsule the submission queue entry is.
const ENTRY_AT: usize = 8;
/// Opcode of Read.
const READ: u8 = 0x02;
/// PSDT: an SGL says where data goes.
const SGL: u8 = 0x40;
/// A transport SGL data block: the data comes in C2HData.
const TRANSPORT_SGL: u8 = 0x5a;

/// What is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The command's identifier.
    pub cid: u16,
    /// The namespace.
    pub nsid: u32,
    /// The first logical block.
    pub slba: u64,
    /// How many blocks, less one.
    pub nlb: u16,
    /// Octets of all of them.
    pub data_bytes: u32,
}

impl Read {
    /// The capsule, with its digest where one was agreed on.
    pub fn capsule(&self, nvme: &Nvme) -> Vec<u8> {
        let mut capsule = vec![0; CAPSULE_BYTES];
        let pdu_bytes = CAPSULE_BYTES + if nvme.header_digest { 4 } else { 0 };
        capsule[0] = types::CAPSULE_CMD;
        capsule[1] = if nvme.header_digest { FLAG_HDGST } else { 0 };
        capsule[2] = CAPSULE_BYTES as u8;
        capsule[4..8].copy_from_slice(&(pdu_bytes as u32).to_le_bytes());
        let entry = &mut capsule[ENTRY_AT..];
        (entry[0], entry[1]) = (READ, SGL);
        entry[2..4].copy_from_slice(&self.cid.to_le_bytes());
        entry[4..8].copy_from_slice(&self.nsid.to_le_bytes());
        entry[32..36].copy_from_slice(&self.data_bytes.to_le_bytes());
        entry[39] = TRANSPORT_SGL;
        entry[40..48].copy_from_slice(&self.slba.to_le_bytes());
        entry[48..50].copy_from_slice(&self.nlb.to_le_bytes());
        if nvme.header_digest {
            let digest = crc32c::update(0, &capsule);
            capsule.extend(digest.to_le_bytes());
        }
        capsule
    }
}

/// A PDU that an initiator gets while it reads, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heading {
    /// Data of a command.
    Data {
        /// The command, and where in its data this belongs.
        target: Target,
        /// It is the last data of the command.
        last: bool,
        /// The command is complete with it.
        success: bool,
    },
    /// A completion.
    Response {
        /// The command's identifier.
        cid: u16,
        /// The status field without its phase; 0: success.
        status: u16,
    },
}

/// What the PDU with this header is; nothing where it has no place here.
pub fn heading(header: &[u8]) -> Option<Heading> {
    let word = |at: usize| Some(u16::from_le_bytes(*header.get(at..)?.first_chunk()?));
    match *header.first()? {
        types::C2H_DATA => {
            let flags = *header.get(1)?;
            let (last, success) = (flags & FLAG_LAST != 0, flags & FLAG_SUCCESS != 0);
            Some(Heading::Data { target: target(header)?, last, success })
        }
        types::CAPSULE_RESP => {
            Some(Heading::Response { cid: word(ENTRY_AT + 12)?, status: word(ENTRY_AT + 14)? >> 1 })
        }
        _ => None,
    }
}
