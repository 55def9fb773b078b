//! PDUs of NVMe/TCP (NVM Express over TCP Transport Specification 1.0 and 1.1, §3.6 of 1.1).
//!
//! ```text
//!  type │ flags │ HLEN │ PDO │ PLEN, 4 bytes │ rest of the header │ HDGST │ pad │ data │ DDGST
//!  └──────────── common header ───────────────┘                    ▲             ▲
//!  └────────────────────── HLEN ───────────────────────────────────┘             │
//!  └────────────────────── PDO ──────────────────────────────────────────────────┘
//! ```
//! Digests are CRC32C: HDGST of the header, DDGST of the data. On receive the device checks the
//! digests that are present, and writes data to registered buffers
//! ([`placement`](crate::placement)); the packet's bytes do not change. On transmit software
//! leaves four bytes for each digest, and the device fills them in.

use unlade_aead::crc32c;

use crate::l5p::{L5p, Message};
use crate::placement::{Placer, Registration};
use crate::rule::{Rule, holds};

/// Length of the common header, from which a PDU is recognised.
pub const COMMON_BYTES: usize = 8;
/// Length of a digest.
pub const DIGEST_BYTES: usize = 4;
/// Length of the longest header, that of ICReq and ICResp.
pub const HEADER_BYTES_MAX: usize = 128;
/// Maximum alignment of data from the start of its PDU (CPDA, HPDA), bytes.
pub const ALIGNMENT_BYTES_MAX: usize = 128;
/// Default maximum of data bytes in a PDU.
pub const DATA_BYTES_MAX: u32 = 1 << 20;
/// Maximum of bytes after the header of a termination request: the header of the wrong PDU.
const TERM_DATA_BYTES_MAX: u32 = 128;

/// Flag: a header digest follows the header.
pub const FLAG_HDGST: u8 = 1;
/// Flag: a data digest follows the data.
pub const FLAG_DDGST: u8 = 2;
/// Flag: the last data of its transfer.
pub const FLAG_LAST: u8 = 4;
/// Flag: the command succeeded, and no completion follows.
pub const FLAG_SUCCESS: u8 = 8;

/// PDU types.
pub mod types {
    /// Initialize Connection Request.
    pub const IC_REQ: u8 = 0x00;
    /// Initialize Connection Response.
    pub const IC_RESP: u8 = 0x01;
    /// Host to Controller Terminate Connection Request.
    pub const H2C_TERM: u8 = 0x02;
    /// Controller to Host Terminate Connection Request.
    pub const C2H_TERM: u8 = 0x03;
    /// Command Capsule.
    pub const CAPSULE_CMD: u8 = 0x04;
    /// Response Capsule.
    pub const CAPSULE_RESP: u8 = 0x05;
    /// Host to Controller Data Transfer.
    pub const H2C_DATA: u8 = 0x06;
    /// Controller to Host Data Transfer.
    pub const C2H_DATA: u8 = 0x07;
    /// Ready to Transfer.
    pub const R2T: u8 = 0x09;
}

/// Parameters that both ends negotiated: digests, and the maximum of data in a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvme {
    /// Headers have a digest.
    pub header_digest: bool,
    /// Data has a digest.
    pub data_digest: bool,
    /// Maximum of data bytes in a PDU: MAXH2CDATA, the in-capsule limit, or the largest read.
    pub data_bytes_max: u32,
}

/// Bounds of the parts of a PDU, bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// End of the header, and start of its digest if there is one.
    pub header_end: u32,
    /// End of the header's digest.
    pub digest_end: u32,
    /// Start of the data; without data it is the end of the PDU.
    pub data_start: u32,
    /// End of the data; without data it is the end of the PDU.
    pub data_end: u32,
    /// End of the PDU.
    pub pdu_end: u32,
}

impl Layout {
    /// Number of data bytes.
    pub fn data_bytes(&self) -> u32 {
        self.data_end - self.data_start
    }

    /// Returns true if the header has a digest.
    pub fn has_header_digest(&self) -> bool {
        self.digest_end > self.header_end
    }

    /// Returns true if the data has a digest.
    pub fn has_data_digest(&self) -> bool {
        self.pdu_end > self.data_end
    }
}

/// Properties of a PDU type.
struct Kind {
    header_bytes: u8,
    /// Flags that are allowed.
    flags: u8,
    /// Data can follow the header.
    data: bool,
}

fn kind(pdu_type: u8) -> Option<Kind> {
    use types::{C2H_DATA, C2H_TERM, CAPSULE_CMD, CAPSULE_RESP, H2C_DATA, H2C_TERM};
    use types::{IC_REQ, IC_RESP, R2T};
    let both = FLAG_HDGST | FLAG_DDGST;
    let (header_bytes, flags, data) = match pdu_type {
        IC_REQ | IC_RESP => (128, 0, false),
        H2C_TERM | C2H_TERM => (24, 0, true),
        CAPSULE_CMD => (72, both, true),
        CAPSULE_RESP | R2T => (24, FLAG_HDGST, false),
        H2C_DATA => (24, both | FLAG_LAST, true),
        C2H_DATA => (24, both | FLAG_LAST | FLAG_SUCCESS, true),
        _ => return None,
    };
    Some(Kind { header_bytes, flags, data })
}

impl Nvme {
    /// Returns the layout of the PDU with this common header, or `None` if it is malformed: type,
    /// flags and lengths must be consistent with each other and with the negotiated parameters.
    pub fn layout(&self, common: &[u8; COMMON_BYTES]) -> Option<Layout> {
        let &[pdu_type, flags, header_bytes, data_offset, ref length @ ..] = common;
        let kind = kind(pdu_type)?;
        let pdu_end = u32::from_le_bytes(*length);
        let digest = |wanted: bool, flag: u8| u32::from(wanted && kind.flags & flag != 0) * 4;
        let header_digest = digest(self.header_digest, FLAG_HDGST);
        let header_fits = header_bytes == kind.header_bytes
            && flags & !kind.flags == 0
            && (flags & FLAG_HDGST != 0) == (header_digest != 0);
        let header_end = u32::from(kind.header_bytes);
        let digest_end = header_end + header_digest;
        if !header_fits || pdu_end < digest_end {
            return None;
        }
        if pdu_end == digest_end {
            let (data_start, data_end) = (pdu_end, pdu_end);
            return Some(Layout { header_end, digest_end, data_start, data_end, pdu_end });
        }
        // A termination request has no data offset: the header of the wrong PDU follows directly.
        let is_term = kind.flags == 0;
        let data_start = if is_term { header_end } else { u32::from(data_offset) };
        let data_digest = digest(self.data_digest, FLAG_DDGST);
        let data_end = pdu_end.checked_sub(data_digest)?;
        let most = if is_term { TERM_DATA_BYTES_MAX } else { self.data_bytes_max };
        let most = if holds(Rule::Length) { most } else { u32::MAX };
        let fits = kind.data
            && (flags & FLAG_DDGST != 0) == (data_digest != 0)
            && data_start >= digest_end
            && data_start % 4 == 0
            && data_start <= digest_end.next_multiple_of(ALIGNMENT_BYTES_MAX as u32)
            && data_end > data_start
            && data_end - data_start <= most;
        fits.then_some(Layout { header_end, digest_end, data_start, data_end, pdu_end })
    }
}

/// Destination of a PDU's data: a buffer's tag, and the offset in the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The command's identifier in C2HData, the transfer's tag in H2CData.
    pub tag: u16,
    /// DATAO.
    pub offset: u32,
    /// DATAL.
    pub data_bytes: u32,
}

/// Length of the header prefix that holds the target.
const TARGET_END: usize = 20;

/// Returns the target of a PDU, from the first 20 bytes of its header, or `None` if its type has
/// none.
pub fn target(header: &[u8]) -> Option<Target> {
    let header = header.get(..TARGET_END)?;
    let word = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
    let long = |at: usize| u32::from(word(at)) | u32::from(word(at + 2)) << 16;
    let tag = match header[0] {
        types::C2H_DATA => word(8),
        types::H2C_DATA => word(10),
        _ => return None,
    };
    Some(Target { tag, offset: long(12), data_bytes: long(16) })
}

/// State of the processing of one PDU.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// CRC of the header until its digest is complete, then of the data.
    crc: u32,
    /// The digest: its received bytes, or the bytes to send.
    digest: [u8; DIGEST_BYTES],
    /// Bytes 8 to 19 of the header, which hold the target of the data.
    fields: [u8; TARGET_END - COMMON_BYTES],
    /// Generation of the data's registration, once it is resolved.
    generation: Option<u32>,
    sound: bool,
}

/// A part of a PDU, and the offset in the part at which a range begins.
enum Part {
    Header { at: usize },
    HeaderDigest { at: usize },
    Pad,
    Data { at: u32 },
    DataDigest { at: usize },
}

impl Layout {
    /// The part that contains the byte `offset`, and the number of bytes left in the part.
    fn part(&self, offset: u32) -> (Part, u32) {
        if offset < self.header_end {
            (Part::Header { at: offset as usize }, self.header_end - offset)
        } else if offset < self.digest_end {
            let at = (offset - self.header_end) as usize;
            (Part::HeaderDigest { at }, self.digest_end - offset)
        } else if offset < self.data_start {
            (Part::Pad, self.data_start - offset)
        } else if offset < self.data_end {
            (Part::Data { at: offset - self.data_start }, self.data_end - offset)
        } else {
            (Part::DataDigest { at: (offset - self.data_end) as usize }, self.pdu_end - offset)
        }
    }
}

impl Progress {
    /// Processes bytes of the header, `at` bytes after its start.
    fn take_header(&mut self, at: usize, bytes: &[u8]) {
        self.crc = crc32c::update(self.crc, bytes);
        let room = self.fields.len();
        let start = at.saturating_sub(COMMON_BYTES).min(room);
        let end = (at + bytes.len()).saturating_sub(COMMON_BYTES).min(room);
        if start < end {
            self.fields[start..end].copy_from_slice(&bytes[..end - start]);
        }
    }

    /// Resolves the registration of the data, after a complete header with a correct digest.
    fn resolve(&mut self, message: &Message, layout: &Layout, placer: &Placer<'_>) {
        let Some(Target { tag, offset, data_bytes }) = self.target(message) else { return };
        if data_bytes == layout.data_bytes() && (self.sound || !holds(Rule::HeaderFirst)) {
            self.generation = placer.resolve(tag, offset, data_bytes);
        }
    }

    /// The target of the data of a PDU whose header is complete.
    fn target(&self, message: &Message) -> Option<Target> {
        let mut header = [0; TARGET_END];
        header[..COMMON_BYTES].copy_from_slice(&message.header);
        header[COMMON_BYTES..].copy_from_slice(&self.fields);
        target(&header)
    }

    /// Writes data, `from` bytes after its start, to its registered buffer.
    fn place(
        &self,
        message: &Message,
        from: u32,
        (within, bytes): (usize, &[u8]),
        placer: &mut Placer<'_>,
    ) {
        let Some(generation) = self.generation else { return };
        let Some(Target { tag, offset, .. }) = self.target(message) else { return };
        let registration = Registration { tag, generation };
        placer.place(registration, offset.wrapping_add(from), within, bytes);
    }

    /// Processes bytes of a received digest, and compares it after the last byte.
    fn take_digest(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.digest[at..end].copy_from_slice(bytes);
        if end == DIGEST_BYTES {
            self.sound &= u32::from_le_bytes(self.digest) == self.crc;
            self.crc = 0;
        }
    }

    /// Writes bytes of a digest to send.
    fn fill_digest(&mut self, at: usize, bytes: &mut [u8]) {
        if at == 0 {
            self.digest = self.crc.to_le_bytes();
        }
        let end = at + bytes.len();
        bytes.copy_from_slice(&self.digest[at..end]);
        if end == DIGEST_BYTES {
            self.crc = 0;
        }
    }
}

impl L5p for Nvme {
    const HEADER_BYTES: usize = COMMON_BYTES;

    const REWRITES: bool = false;

    type Progress = Progress;

    /// Digests do not cover message numbers.
    fn proves_number(&self) -> bool {
        false
    }

    fn message_bytes(&self, header: &[u8]) -> Option<u32> {
        let common: &[u8; COMMON_BYTES] = header.try_into().ok()?;
        self.layout(common).map(|layout| layout.pdu_end)
    }

    fn begin(&self, message: &Message) -> Progress {
        Progress {
            crc: crc32c::update(0, &message.header),
            digest: [0; DIGEST_BYTES],
            fields: [0; TARGET_END - COMMON_BYTES],
            generation: None,
            sound: true,
        }
    }

    fn receive(
        &self,
        message: &Message,
        at: &mut Progress,
        offset: u32,
        bytes: &[u8],
        _out: Option<&mut [u8]>,
        placer: &mut Placer<'_>,
    ) -> bool {
        // A header without a layout is invalid.
        let Some(layout) = self.layout(&message.header) else { return false };
        let mut done = 0;
        while done < bytes.len() {
            let (part, left) = layout.part(offset + done as u32);
            let taken = (bytes.len() - done).min(left as usize);
            let bytes = &bytes[done..done + taken];
            let ends = taken == left as usize;
            match part {
                Part::Header { at: from } => {
                    at.take_header(from, bytes);
                    if ends && !layout.has_header_digest() {
                        at.crc = 0;
                        at.resolve(message, &layout, placer);
                    }
                }
                Part::HeaderDigest { at: from } => {
                    at.take_digest(from, bytes);
                    if ends {
                        at.resolve(message, &layout, placer);
                    }
                }
                Part::Pad => (),
                Part::Data { at: from } => {
                    if layout.has_data_digest() {
                        at.crc = crc32c::update(at.crc, bytes);
                    }
                    at.place(message, from, (done, bytes), placer);
                }
                Part::DataDigest { at: from } => at.take_digest(from, bytes),
            }
            done += taken;
        }
        at.sound
    }

    fn verify(&self, _message: &Message, at: &Progress) -> bool {
        at.sound
    }

    fn transmit(&self, message: &Message, at: &mut Progress, offset: u32, bytes: &mut [u8]) {
        // A header without a layout is invalid.
        let Some(layout) = self.layout(&message.header) else { return };
        let mut done = 0;
        while done < bytes.len() {
            let (part, left) = layout.part(offset + done as u32);
            let taken = (bytes.len() - done).min(left as usize);
            let ends = taken == left as usize;
            let bytes = &mut bytes[done..done + taken];
            match part {
                Part::Header { .. } => {
                    at.crc = crc32c::update(at.crc, bytes);
                    if ends && !layout.has_header_digest() {
                        at.crc = 0;
                    }
                }
                Part::HeaderDigest { at: from } | Part::DataDigest { at: from } => {
                    at.fill_digest(from, bytes);
                }
                Part::Pad => (),
                Part::Data { .. } if layout.has_data_digest() => {
                    at.crc = crc32c::update(at.crc, bytes);
                }
                Part::Data { .. } => (),
            }
            done += taken;
        }
    }
}
