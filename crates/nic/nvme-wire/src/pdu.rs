//! PDUs (NVMe/TCP §3.6): headers, layout and validation.
//!
//! ```text
//! │ common header 8 │ rest of the header │ HDGST 4? │ padding? │ data │ DDGST 4? │
//! 0                 8                  HLEN                   PDO               PLEN
//! ```
//! A header is validated in two steps: the first eight bytes contain all lengths, then the
//! complete header is parsed. Digests are computed and checked by the caller.

use super::field::{array_at, put, u16_at, u32_at};
use std::ops::Range;
use thiserror::Error;

/// Length of the common header.
pub const COMMON_HEADER_BYTES: usize = 8;
/// Maximum length of a header (ICReq, ICResp).
pub const HEADER_BYTES_MAX: usize = 128;
/// Length of a digest (CRC32C, NVMe/TCP §3.3.1).
pub const DIGEST_BYTES: usize = 4;
/// Maximum length of a termination request: its header and that of the wrong PDU.
pub const TERM_BYTES_MAX: u32 = 152;
/// Maximum alignment of data that a side can request, bytes (HPDA and CPDA of 31).
pub const ALIGNMENT_BYTES_MAX: usize = 128;
/// Length of a command.
pub const COMMAND_BYTES: usize = 64;
/// Length of a completion.
pub const COMPLETION_BYTES: usize = 16;

/// Flag: a digest follows the header.
pub const FLAG_HEADER_DIGEST: u8 = 1;
/// Flag: a digest follows the data.
pub const FLAG_DATA_DIGEST: u8 = 1 << 1;
/// Flag: the last data of a transfer.
pub const FLAG_LAST: u8 = 1 << 2;
/// Flag: the last data of a successful command; no response follows.
pub const FLAG_SUCCESS: u8 = 1 << 3;

/// PDU type (NVMe/TCP figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PduKind {
    /// ICReq: the host initializes the connection.
    InitRequest = 0x00,
    /// ICResp: the controller's response.
    InitResponse = 0x01,
    /// H2CTermReq: the host reports a fatal error.
    HostTerminate = 0x02,
    /// C2HTermReq: the controller reports a fatal error.
    ControllerTerminate = 0x03,
    /// CapsuleCmd.
    CommandCapsule = 0x04,
    /// CapsuleResp.
    ResponseCapsule = 0x05,
    /// H2CData: data that the controller requested.
    HostData = 0x06,
    /// C2HData.
    ControllerData = 0x07,
    /// R2T: the controller requests data.
    ReadyToTransfer = 0x09,
}

impl PduKind {
    /// All types.
    pub const ALL: [PduKind; 9] = [
        PduKind::InitRequest,
        PduKind::InitResponse,
        PduKind::HostTerminate,
        PduKind::ControllerTerminate,
        PduKind::CommandCapsule,
        PduKind::ResponseCapsule,
        PduKind::HostData,
        PduKind::ControllerData,
        PduKind::ReadyToTransfer,
    ];

    /// The type with this number.
    pub fn from_number(number: u8) -> Option<PduKind> {
        PduKind::ALL.into_iter().find(|kind| *kind as u8 == number)
    }

    /// Length of its header.
    pub const fn header_bytes(self) -> usize {
        match self {
            PduKind::InitRequest | PduKind::InitResponse => 128,
            PduKind::CommandCapsule => COMMON_HEADER_BYTES + COMMAND_BYTES,
            _ => 24,
        }
    }

    /// Returns true if a host sends it; otherwise a controller does.
    pub const fn is_from_host(self) -> bool {
        matches!(
            self,
            PduKind::InitRequest
                | PduKind::HostTerminate
                | PduKind::CommandCapsule
                | PduKind::HostData
        )
    }

    /// Returns true if data can follow the header (for a termination: the header of the wrong
    /// PDU).
    const fn can_have_data(self) -> bool {
        matches!(
            self,
            PduKind::HostTerminate
                | PduKind::ControllerTerminate
                | PduKind::CommandCapsule
                | PduKind::HostData
                | PduKind::ControllerData
        )
    }

    /// Returns true if it has the negotiated digests (§3.3.1: initialization and termination have
    /// none).
    const fn can_have_digests(self) -> bool {
        !matches!(
            self,
            PduKind::InitRequest
                | PduKind::InitResponse
                | PduKind::HostTerminate
                | PduKind::ControllerTerminate
        )
    }

    const fn is_termination(self) -> bool {
        matches!(self, PduKind::HostTerminate | PduKind::ControllerTerminate)
    }

    fn flags_known(self) -> u8 {
        match self {
            PduKind::CommandCapsule => FLAG_HEADER_DIGEST | FLAG_DATA_DIGEST,
            PduKind::ResponseCapsule | PduKind::ReadyToTransfer => FLAG_HEADER_DIGEST,
            PduKind::HostData => FLAG_HEADER_DIGEST | FLAG_DATA_DIGEST | FLAG_LAST,
            PduKind::ControllerData => {
                FLAG_HEADER_DIGEST | FLAG_DATA_DIGEST | FLAG_LAST | FLAG_SUCCESS
            }
            _ => 0,
        }
    }
}

/// The digests of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// HDGST, after headers.
    pub header: bool,
    /// DDGST, after data.
    pub data: bool,
}

impl Digests {
    /// No digest.
    pub const NONE: Digests = Digests { header: false, data: false };
    /// Both digests.
    pub const BOTH: Digests = Digests { header: true, data: true };

    /// The digests that both sides request.
    pub fn and(self, other: Digests) -> Digests {
        Digests { header: self.header && other.header, data: self.data && other.data }
    }

    fn from_bits(bits: u8) -> Digests {
        Digests { header: bits & 1 != 0, data: bits & 2 != 0 }
    }

    fn bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }
}

/// Reason of a termination (FES, NVMe/TCP figures 19 and 21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum FatalStatus {
    /// A header field has an invalid value.
    InvalidHeader = 1,
    /// A PDU was received in the wrong state.
    Sequence = 2,
    /// A header digest is wrong.
    HeaderDigest = 3,
    /// Data is out of the requested range.
    DataOutOfRange = 4,
    /// A negotiated limit of R2T or data was exceeded.
    LimitExceeded = 5,
    /// A parameter is not supported.
    Unsupported = 6,
}

impl FatalStatus {
    /// The status with this number.
    pub fn from_number(number: u16) -> Option<FatalStatus> {
        use FatalStatus::*;
        [InvalidHeader, Sequence, HeaderDigest, DataOutOfRange, LimitExceeded, Unsupported]
            .into_iter()
            .find(|status| *status as u16 == number)
    }
}

/// Error in a PDU. The peer is at fault; the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PduError {
    /// Shorter than its header; the caller has not received all of it.
    #[error("a PDU's header ends early")]
    Truncated,
    /// A field has an invalid value.
    #[error("{what} at byte {offset} of a PDU's header: {value:#x} is not allowed there")]
    Field {
        /// The field's name.
        what: &'static str,
        /// Its offset in the header.
        offset: u8,
        /// Its value.
        value: u32,
    },
}

impl PduError {
    /// Status and information of the termination request (FES, FEI).
    pub fn fatal(self) -> (FatalStatus, u32) {
        match self {
            PduError::Truncated => (FatalStatus::InvalidHeader, 0),
            PduError::Field { offset, .. } => (FatalStatus::InvalidHeader, offset.into()),
        }
    }
}

fn wrong(what: &'static str, offset: u8, value: u32) -> PduError {
    PduError::Field { what, offset, value }
}

/// The common header, the first eight bytes (NVMe/TCP figure 10).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommonHeader {
    /// PDU-Type.
    pub kind: PduKind,
    /// FLAGS.
    pub flags: u8,
    /// PDO: offset of the data from the start of the PDU, bytes; 0 without data.
    pub data_offset: u8,
    /// PLEN: length of the PDU.
    pub bytes: u32,
}

impl CommonHeader {
    /// Parses and validates the first bytes of a PDU. The result has a valid [`Layout`].
    ///
    /// # Errors
    /// [`PduError`]: fewer than eight bytes, or an invalid field.
    pub fn parse(bytes: &[u8]) -> Result<CommonHeader, PduError> {
        let Some(bytes) = bytes.get(..COMMON_HEADER_BYTES) else { return Err(PduError::Truncated) };
        let kind = PduKind::from_number(bytes[0]).ok_or(wrong("PDU-Type", 0, bytes[0].into()))?;
        if usize::from(bytes[2]) != kind.header_bytes() {
            return Err(wrong("HLEN", 2, bytes[2].into()));
        }
        // Reserved flags are ignored (NVMe Base §1.4).
        let flags = bytes[1] & kind.flags_known();
        let header = CommonHeader { kind, flags, data_offset: bytes[3], bytes: u32_at(bytes, 4) };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<(), PduError> {
        let head = (self.kind.header_bytes() + self.digest_bytes(FLAG_HEADER_DIGEST)) as u32;
        if self.bytes < head {
            return Err(wrong("PLEN", 4, self.bytes));
        }
        if self.kind.is_termination() {
            let fits = self.bytes <= TERM_BYTES_MAX;
            return if fits { Ok(()) } else { Err(wrong("PLEN", 4, self.bytes)) };
        }
        if self.bytes == head {
            // Without data the flag of a data digest is ignored.
            return Ok(());
        }
        if !self.kind.can_have_data() {
            return Err(wrong("PLEN", 4, self.bytes));
        }
        let offset = u32::from(self.data_offset);
        if offset < head || !offset.is_multiple_of(4) {
            return Err(wrong("PDO", 3, offset));
        }
        match self.bytes.checked_sub(offset + self.digest_bytes(FLAG_DATA_DIGEST) as u32) {
            Some(data_bytes) if data_bytes > 0 => Ok(()),
            _ => Err(wrong("PLEN", 4, self.bytes)),
        }
    }

    fn digest_bytes(&self, flag: u8) -> usize {
        if self.flags & flag == 0 { 0 } else { DIGEST_BYTES }
    }

    /// Layout of the PDU.
    pub fn layout(&self) -> Layout {
        let header_bytes = self.kind.header_bytes();
        let has_header_digest = self.flags & FLAG_HEADER_DIGEST != 0;
        let head = header_bytes + self.digest_bytes(FLAG_HEADER_DIGEST);
        let bytes = self.bytes as usize;
        let (data, has_data_digest) = match self.kind.is_termination() {
            true => (head..bytes, false),
            false if bytes == head => (bytes..bytes, false),
            false => {
                let end = bytes - self.digest_bytes(FLAG_DATA_DIGEST);
                (usize::from(self.data_offset)..end, self.flags & FLAG_DATA_DIGEST != 0)
            }
        };
        Layout { header_bytes, has_header_digest, data, has_data_digest, bytes }
    }

    /// Validates the header against the connection's parameters: negotiated digests, and data
    /// alignment of `alignment_bytes`.
    ///
    /// # Errors
    /// [`PduError::Field`]: FLAGS or PDO.
    pub fn agrees_with(&self, digests: Digests, alignment_bytes: usize) -> Result<(), PduError> {
        if !self.kind.can_have_digests() {
            return Ok(());
        }
        let layout = self.layout();
        let digest_is_due = digests.data && !layout.data.is_empty();
        if layout.has_header_digest != digests.header || layout.has_data_digest != digest_is_due {
            return Err(wrong("FLAGS", 1, self.flags.into()));
        }
        if !layout.data.is_empty() && !layout.data.start.is_multiple_of(alignment_bytes.max(1)) {
            return Err(wrong("PDO", 3, self.data_offset.into()));
        }
        Ok(())
    }
}

/// Layout of a PDU, bytes from its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Length of the header; its digest follows directly.
    pub header_bytes: usize,
    /// True if there is a header digest.
    pub has_header_digest: bool,
    /// Range of the data, possibly empty.
    pub data: Range<usize>,
    /// True if there is a data digest, after the data.
    pub has_data_digest: bool,
    /// Length of the PDU.
    pub bytes: usize,
}

impl Layout {
    /// Number of bytes before the data: the header, its digest, padding.
    pub fn head_bytes(&self) -> usize {
        self.data.start
    }
}

/// ICReq (NVMe/TCP figure 13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitRequest {
    /// PFV; only 0 is defined.
    pub version: u16,
    /// HPDA: alignment of data that the controller sends, bytes, 4 to 128.
    pub alignment_bytes: usize,
    /// Digests that the host requests.
    pub digests: Digests,
    /// MAXR2T: maximum number of outstanding R2Ts of a command; not zero-based here.
    pub transfers_max: u32,
}

/// ICResp (NVMe/TCP figure 14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InitResponse {
    /// PFV.
    pub version: u16,
    /// CPDA: alignment of data that the host sends, bytes, 4 to 128.
    pub alignment_bytes: usize,
    /// Digests of the connection.
    pub digests: Digests,
    /// MAXH2CDATA: maximum data of one PDU of the host, bytes.
    pub data_bytes_max: u32,
}

/// H2CTermReq and C2HTermReq (NVMe/TCP figures 18 to 21), without the header of the wrong PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// FES, the raw value; [`FatalStatus`] has the defined ones.
    pub status: u16,
    /// FEI: offset of the wrong field in the header, or the received digest.
    pub information: u32,
}

/// H2CData and C2HData (NVMe/TCP figures 24 and 25).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// CCCID: the command.
    pub command_id: u16,
    /// TTAG: the controller's identifier of the transfer; 0 from a controller.
    pub transfer_tag: u16,
    /// DATAO: offset in the data of the command.
    pub offset: u32,
    /// DATAL: length in bytes.
    pub bytes: u32,
    /// True for the last PDU of the transfer.
    pub is_last: bool,
    /// True if the command has completed successfully; from a controller only.
    pub is_success: bool,
}

/// R2T (NVMe/TCP figure 26).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadyToTransfer {
    /// CCCID: the command.
    pub command_id: u16,
    /// TTAG: repeated in the data PDUs.
    pub transfer_tag: u16,
    /// R2TO: offset in the data of the command.
    pub offset: u32,
    /// R2TL: length in bytes.
    pub bytes: u32,
}

/// A parsed PDU header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// ICReq.
    InitRequest(InitRequest),
    /// ICResp.
    InitResponse(InitResponse),
    /// H2CTermReq.
    HostTerminate(Terminate),
    /// C2HTermReq.
    ControllerTerminate(Terminate),
    /// CapsuleCmd: the submission queue entry.
    CommandCapsule([u8; COMMAND_BYTES]),
    /// CapsuleResp: the completion queue entry.
    ResponseCapsule([u8; COMPLETION_BYTES]),
    /// H2CData.
    HostData(Data),
    /// C2HData.
    ControllerData(Data),
    /// R2T.
    ReadyToTransfer(ReadyToTransfer),
}

impl Pdu {
    /// Parses a header; `bytes` start with the complete header, and `common` is its parsed common
    /// part.
    ///
    /// # Errors
    /// [`PduError`]: too few bytes, or an invalid field.
    pub fn parse(common: &CommonHeader, bytes: &[u8]) -> Result<Pdu, PduError> {
        let head = bytes.get(..common.kind.header_bytes()).ok_or(PduError::Truncated)?;
        Ok(match common.kind {
            PduKind::InitRequest => Pdu::InitRequest(parse_init_request(head)?),
            PduKind::InitResponse => Pdu::InitResponse(parse_init_response(head)?),
            PduKind::HostTerminate => Pdu::HostTerminate(parse_terminate(head)),
            PduKind::ControllerTerminate => Pdu::ControllerTerminate(parse_terminate(head)),
            PduKind::CommandCapsule => Pdu::CommandCapsule(array_at(head, COMMON_HEADER_BYTES)),
            PduKind::ResponseCapsule => Pdu::ResponseCapsule(array_at(head, COMMON_HEADER_BYTES)),
            PduKind::HostData => Pdu::HostData(parse_data(common, head)?),
            PduKind::ControllerData => Pdu::ControllerData(parse_data(common, head)?),
            PduKind::ReadyToTransfer => Pdu::ReadyToTransfer(ReadyToTransfer {
                command_id: u16_at(head, 8),
                transfer_tag: u16_at(head, 10),
                offset: u32_at(head, 12),
                bytes: u32_at(head, 16),
            }),
        })
    }

    /// The PDU type.
    pub fn kind(&self) -> PduKind {
        match self {
            Pdu::InitRequest(_) => PduKind::InitRequest,
            Pdu::InitResponse(_) => PduKind::InitResponse,
            Pdu::HostTerminate(_) => PduKind::HostTerminate,
            Pdu::ControllerTerminate(_) => PduKind::ControllerTerminate,
            Pdu::CommandCapsule(_) => PduKind::CommandCapsule,
            Pdu::ResponseCapsule(_) => PduKind::ResponseCapsule,
            Pdu::HostData(_) => PduKind::HostData,
            Pdu::ControllerData(_) => PduKind::ControllerData,
            Pdu::ReadyToTransfer(_) => PduKind::ReadyToTransfer,
        }
    }

    /// The common header of this PDU with `data_bytes` of data, the connection's digests, and the
    /// alignment that the receiver requested. A length above the range of PLEN saturates; callers
    /// have far lower limits.
    pub fn common(
        &self,
        data_bytes: usize,
        digests: Digests,
        alignment_bytes: usize,
    ) -> CommonHeader {
        let kind = self.kind();
        let mut flags = 0;
        let mut offset = kind.header_bytes();
        if digests.header && kind.can_have_digests() {
            flags |= FLAG_HEADER_DIGEST;
            offset += DIGEST_BYTES;
        }
        if let Pdu::HostData(data) | Pdu::ControllerData(data) = self {
            flags |= if data.is_last { FLAG_LAST } else { 0 };
        }
        if matches!(self, Pdu::ControllerData(data) if data.is_success) {
            flags |= FLAG_SUCCESS;
        }
        if data_bytes == 0 {
            return CommonHeader { kind, flags, data_offset: 0, bytes: offset as u32 };
        }
        if kind.is_termination() {
            let bytes = u32::try_from(offset + data_bytes).unwrap_or(u32::MAX);
            return CommonHeader { kind, flags, data_offset: 0, bytes };
        }
        offset = offset.next_multiple_of(alignment_bytes.clamp(4, ALIGNMENT_BYTES_MAX));
        let mut bytes = offset + data_bytes;
        if digests.data && kind.can_have_digests() {
            flags |= FLAG_DATA_DIGEST;
            bytes += DIGEST_BYTES;
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        CommonHeader { kind, flags, data_offset: offset as u8, bytes }
    }

    /// Appends the header, without digest and padding.
    pub fn write(&self, common: &CommonHeader, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + common.kind.header_bytes(), 0);
        let head = &mut out[start..];
        head[0] = common.kind as u8;
        head[1] = common.flags;
        head[2] = common.kind.header_bytes() as u8;
        head[3] = common.data_offset;
        put(head, 4, &common.bytes.to_le_bytes());
        match self {
            Pdu::InitRequest(init) => {
                put(head, 8, &init.version.to_le_bytes());
                head[10] = zero_based_dwords(init.alignment_bytes);
                head[11] = init.digests.bits();
                put(head, 12, &init.transfers_max.saturating_sub(1).to_le_bytes());
            }
            Pdu::InitResponse(init) => {
                put(head, 8, &init.version.to_le_bytes());
                head[10] = zero_based_dwords(init.alignment_bytes);
                head[11] = init.digests.bits();
                put(head, 12, &init.data_bytes_max.to_le_bytes());
            }
            Pdu::HostTerminate(end) | Pdu::ControllerTerminate(end) => {
                put(head, 8, &end.status.to_le_bytes());
                put(head, 10, &end.information.to_le_bytes());
            }
            Pdu::CommandCapsule(entry) => put(head, 8, entry),
            Pdu::ResponseCapsule(entry) => put(head, 8, entry),
            Pdu::HostData(data) | Pdu::ControllerData(data) => {
                put(head, 8, &data.command_id.to_le_bytes());
                put(head, 10, &data.transfer_tag.to_le_bytes());
                put(head, 12, &data.offset.to_le_bytes());
                put(head, 16, &data.bytes.to_le_bytes());
            }
            Pdu::ReadyToTransfer(transfer) => {
                put(head, 8, &transfer.command_id.to_le_bytes());
                put(head, 10, &transfer.transfer_tag.to_le_bytes());
                put(head, 12, &transfer.offset.to_le_bytes());
                put(head, 16, &transfer.bytes.to_le_bytes());
            }
        }
    }

    /// Encodes the header of this PDU without data; the caller appends the digests.
    pub fn without_data(&self, digests: Digests) -> Vec<u8> {
        let common = self.common(0, digests, 4);
        let mut out = Vec::with_capacity(common.bytes as usize);
        self.write(&common, &mut out);
        out
    }
}

fn parse_init_request(head: &[u8]) -> Result<InitRequest, PduError> {
    Ok(InitRequest {
        version: u16_at(head, 8),
        alignment_bytes: alignment(head[10], "HPDA")?,
        digests: Digests::from_bits(head[11]),
        transfers_max: u32_at(head, 12).saturating_add(1),
    })
}

fn parse_init_response(head: &[u8]) -> Result<InitResponse, PduError> {
    let data_bytes_max = u32_at(head, 12);
    if data_bytes_max < 4096 {
        return Err(wrong("MAXH2CDATA", 12, data_bytes_max));
    }
    Ok(InitResponse {
        version: u16_at(head, 8),
        alignment_bytes: alignment(head[10], "CPDA")?,
        digests: Digests::from_bits(head[11]),
        data_bytes_max,
    })
}

fn parse_terminate(head: &[u8]) -> Terminate {
    Terminate { status: u16_at(head, 8), information: u32_at(head, 10) }
}

/// Parses a data PDU's header; DATAL must match the lengths of the PDU.
fn parse_data(common: &CommonHeader, head: &[u8]) -> Result<Data, PduError> {
    let data = Data {
        command_id: u16_at(head, 8),
        transfer_tag: u16_at(head, 10),
        offset: u32_at(head, 12),
        bytes: u32_at(head, 16),
        is_last: common.flags & FLAG_LAST != 0,
        is_success: common.flags & FLAG_SUCCESS != 0,
    };
    if data.bytes as usize != common.layout().data.len() {
        return Err(wrong("DATAL", 16, data.bytes));
    }
    Ok(data)
}

fn alignment(zero_based_dwords: u8, what: &'static str) -> Result<usize, PduError> {
    match zero_based_dwords {
        0..=31 => Ok((usize::from(zero_based_dwords) + 1) * 4),
        other => Err(wrong(what, 10, other.into())),
    }
}

fn zero_based_dwords(alignment_bytes: usize) -> u8 {
    (alignment_bytes.clamp(4, ALIGNMENT_BYTES_MAX) / 4 - 1) as u8
}
