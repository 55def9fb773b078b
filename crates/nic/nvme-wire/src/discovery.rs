//! The discovery log page (NVMe Base §5.16.1.23).

use super::fabrics::{NQN_FIELD_BYTES, Nqn, NqnError};
use super::field::{array_at, ascii_at, put, put_ascii, u16_at, u64_at};
use thiserror::Error;

/// LID of the page.
pub const LOG_DISCOVERY: u8 = 0x70;
/// Length of the page's header, and of each entry.
pub const RECORD_BYTES: usize = 1024;
/// Maximum number of entries that are parsed.
pub const ENTRIES_MAX: u64 = 4096;

const TRANSPORT_TCP: u8 = 3;
const FAMILY_IPV4: u8 = 1;
const FAMILY_IPV6: u8 = 2;

/// Error in a received page; the controller is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DiscoveryError {
    /// The page is shorter than its header, or than its entries.
    #[error("a discovery log page of {0} bytes ends early")]
    Truncated(usize),
    /// More entries than [`ENTRIES_MAX`].
    #[error("{0} discovery entries are more than {ENTRIES_MAX}")]
    TooMany(u64),
    /// RECFMT is not 0.
    #[error("discovery log pages of format {0} are not known here")]
    Format(u16),
    /// An entry's subsystem name is invalid.
    #[error("a discovery entry's subsystem: {0}")]
    Subsystem(#[from] NqnError),
}

/// The header of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryHeader {
    /// GENCTR: changes whenever the page changes.
    pub generation: u64,
    /// NUMREC.
    pub entries: u64,
}

impl DiscoveryHeader {
    /// Parses the header.
    ///
    /// # Errors
    /// [`DiscoveryError`].
    pub fn parse(bytes: &[u8]) -> Result<DiscoveryHeader, DiscoveryError> {
        if bytes.len() < RECORD_BYTES {
            return Err(DiscoveryError::Truncated(bytes.len()));
        }
        match (u16_at(bytes, 16), u64_at(bytes, 8)) {
            (0, entries @ 0..=ENTRIES_MAX) => {
                Ok(DiscoveryHeader { generation: u64_at(bytes, 0), entries })
            }
            (0, entries) => Err(DiscoveryError::TooMany(entries)),
            (format, _) => Err(DiscoveryError::Format(format)),
        }
    }
}

/// Subsystem type of an entry (SUBTYPE).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// Another discovery subsystem.
    Referral,
    /// A subsystem with namespaces.
    Nvm,
    /// This discovery subsystem.
    Current,
    /// Another type.
    Other(u8),
}

/// Transport security of a TCP entry (TSAS SECTYPE, NVMe/TCP figure 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// Plain TCP.
    None,
    /// TLS 1.3 (TLS 1.2 is no longer allowed).
    Tls13,
    /// Another type.
    Other(u8),
}

/// An entry of the page, for TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryEntry {
    /// Subsystem type.
    pub kind: EntryKind,
    /// TRTYPE is TCP, and ADRFAM is IPv4 or IPv6. Other entries are parsed but not usable.
    pub is_tcp: bool,
    /// TREQ bits 1:0: 0 not specified, 1 secure channel required, 2 not required.
    pub secure_channel: u8,
    /// PORTID.
    pub port_id: u16,
    /// CNTLID.
    pub controller: u16,
    /// ASQSZ: maximum size of the admin queue, entries.
    pub admin_queue_size: u16,
    /// TRSVCID: the port.
    pub service: String,
    /// SUBNQN.
    pub subsystem: Nqn,
    /// TRADDR: the address.
    pub address: String,
    /// TSAS.
    pub security: Security,
}

impl DiscoveryEntry {
    /// Parses an entry.
    ///
    /// # Errors
    /// [`DiscoveryError`].
    pub fn parse(bytes: &[u8]) -> Result<DiscoveryEntry, DiscoveryError> {
        let bytes = bytes.get(..RECORD_BYTES).ok_or(DiscoveryError::Truncated(bytes.len()))?;
        let family_is_ip = [FAMILY_IPV4, FAMILY_IPV6].contains(&bytes[1]);
        Ok(DiscoveryEntry {
            kind: match bytes[2] {
                1 => EntryKind::Referral,
                2 => EntryKind::Nvm,
                3 => EntryKind::Current,
                other => EntryKind::Other(other),
            },
            is_tcp: bytes[0] == TRANSPORT_TCP && family_is_ip,
            secure_channel: bytes[3] & 3,
            port_id: u16_at(bytes, 4),
            controller: u16_at(bytes, 6),
            admin_queue_size: u16_at(bytes, 8),
            service: ascii_at(bytes, 32, 32),
            subsystem: Nqn::parse(&array_at::<NQN_FIELD_BYTES>(bytes, 256))?,
            address: ascii_at(bytes, 512, 256),
            security: match bytes[768] {
                0 => Security::None,
                2 => Security::Tls13,
                other => Security::Other(other),
            },
        })
    }

    /// Encodes the entry. An address with a colon is IPv6.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![0; RECORD_BYTES];
        out[0] = if self.is_tcp { TRANSPORT_TCP } else { 0 };
        out[1] = if self.address.contains(':') { FAMILY_IPV6 } else { FAMILY_IPV4 };
        out[2] = match self.kind {
            EntryKind::Referral => 1,
            EntryKind::Nvm => 2,
            EntryKind::Current => 3,
            EntryKind::Other(number) => number,
        };
        out[3] = self.secure_channel & 3;
        put(&mut out, 4, &self.port_id.to_le_bytes());
        put(&mut out, 6, &self.controller.to_le_bytes());
        put(&mut out, 8, &self.admin_queue_size.to_le_bytes());
        put_ascii(&mut out, 32, 32, &self.service);
        put(&mut out, 256, &self.subsystem.encode());
        put_ascii(&mut out, 512, 256, &self.address);
        out[768] = match self.security {
            Security::None => 0,
            Security::Tls13 => 2,
            Security::Other(number) => number,
        };
        out
    }
}

/// Encodes the complete page.
pub fn encode_page(generation: u64, entries: &[DiscoveryEntry]) -> Vec<u8> {
    let mut out = vec![0; RECORD_BYTES];
    put(&mut out, 0, &generation.to_le_bytes());
    put(&mut out, 8, &(entries.len() as u64).to_le_bytes());
    for entry in entries {
        out.extend_from_slice(&entry.encode());
    }
    out
}

/// Parses a complete page: its header and entries.
///
/// # Errors
/// [`DiscoveryError`].
pub fn parse_page(bytes: &[u8]) -> Result<(DiscoveryHeader, Vec<DiscoveryEntry>), DiscoveryError> {
    let header = DiscoveryHeader::parse(bytes)?;
    let all = bytes[RECORD_BYTES..].chunks_exact(RECORD_BYTES);
    if (all.len() as u64) < header.entries {
        return Err(DiscoveryError::Truncated(bytes.len()));
    }
    let entries = all.take(header.entries as usize).map(DiscoveryEntry::parse);
    Ok((header, entries.collect::<Result<_, _>>()?))
}
