//! PDUs of NVMe/TCP (NVM Express over TCP Transport Specification 1.0 and 1.1, §3.6 of 1.1).
//!
//! ```text
//!  type │ flags │ HLEN │ PDO │ PLEN, 4 bytes │ rest of the header │ HDGST │ pad │ data │ DDGST
//!  └──────────── common header ───────────────┘                    ▲             ▲
//!  └────────────────────── HLEN ───────────────────────────────────┘             │
//!  └────────────────────── PDO ──────────────────────────────────────────────────┘
//! ```
//! Digests are CRC32C: HDGST of the header, DDGST of the data. On receive the device checks those
//! that are there, and puts data where it belongs ([`placement`](crate::placement)); the bytes
//! stay as they are. On transmit software leaves four bytes for each digest, and the device fills
//! them in.

use unlade_aead::crc32c;

use crate::l5p::{L5p, Message};
use crate::placement::{Placer, Registration};
use crate::rule::{Rule, holds};

/// Bytes of the common header, by which a PDU is recognised.
pub const COMMON_BYTES: usize = 8;
/// Bytes of a digest.
pub const DIGEST_BYTES: usize = 4;
/// Bytes of the longest header, that of ICReq and ICResp.
pub const HEADER_BYTES_MAX: usize = 128;
/// Data is aligned to at most so many bytes from the start of its PDU (CPDA, HPDA).
pub const ALIGNMENT_BYTES_MAX: usize = 128;
/// Most bytes of data in a PDU, unless somebody agreed on less.
pub const DATA_BYTES_MAX: u32 = 1 << 20;
/// Most bytes behind the header of a termination request: the header that was wrong.
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

/// What both ends agreed on: which digests there are, and how much data is in a PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nvme {
    /// Headers have a digest.
    pub header_digest: bool,
    /// Data has one.
    pub data_digest: bool,
    /// Most bytes of data in a PDU: MAXH2CDATA, the in-capsule limit, or the largest read.
    pub data_bytes_max: u32,
}

/// Where in a PDU its parts are, bytes from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The header ends, and its digest starts where there is one.
    pub header_end: u32,
    /// The header's digest ends.
    pub digest_end: u32,
    /// Data starts and ends; where there is none both are the end of the PDU.
    pub data_start: u32,
    /// See [`Layout::data_start`].
    pub data_end: u32,
    /// The PDU ends.
    pub pdu_end: u32,
}

impl Layout {
    /// Bytes of data.
    pub fn data_bytes(&self) -> u32 {
        self.data_end - self.data_start
    }

    /// True where the header has a digest.
    pub fn has_header_digest(&self) -> bool {
        self.digest_end > self.header_end
    }

    /// True where the data has one.
    pub fn has_data_digest(&self) -> bool {
        self.pdu_end > self.data_end
    }
}

/// What is fixed for a type of PDU.
struct Kind {
    header_bytes: u8,
    /// Flags that it can have.
    flags: u8,
    /// Data can follow.
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
    /// Where the parts of a PDU with this common header are; nothing where it cannot be one: its
    /// type, flags and lengths must fit together, and what was agreed on.
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
        // A termination request has no offset: what was wrong follows the header.
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

/// Which buffer a PDU's data is for, and where in it the data begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The command's identifier in C2HData, the transfer's tag in H2CData.
    pub tag: u16,
    /// DATAO.
    pub offset: u32,
    /// DATAL.
    pub data_bytes: u32,
}

/// Bytes of a header up to which a target is told.
const TARGET_END: usize = 20;

/// The target of a PDU, from the first 20 bytes of its header; nothing where its type has none.
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

/// How far the work on one PDU has come.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// Of the header until its digest is behind us, then of the data.
    crc: u32,
    /// The digest: what was received of it, or what is to be sent.
    digest: [u8; DIGEST_BYTES],
    /// Bytes 8 to 19 of the header, which say where data goes.
    fields: [u8; TARGET_END - COMMON_BYTES],
    /// Of the registration that data goes to, once that is known and allowed.
    generation: Option<u32>,
    sound: bool,
}

/// A part of a PDU, and where in it a range of the PDU begins.
enum Part {
    Header { at: usize },
    HeaderDigest { at: usize },
    Pad,
    Data { at: u32 },
    DataDigest { at: usize },
}

impl Layout {
    /// The part that the byte `offset` is in, and how many bytes are left of it.
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
    /// Takes bytes of the header, `at` bytes behind its start.
    fn take_header(&mut self, at: usize, bytes: &[u8]) {
        self.crc = crc32c::update(self.crc, bytes);
        let room = self.fields.len();
        let start = at.saturating_sub(COMMON_BYTES).min(room);
        let end = (at + bytes.len()).saturating_sub(COMMON_BYTES).min(room);
        if start < end {
            self.fields[start..end].copy_from_slice(&bytes[..end - start]);
        }
    }

    /// The header is complete, and right as far as can be known.
    fn resolve(&mut self, message: &Message, layout: &Layout, placer: &Placer<'_>) {
        let Some(Target { tag, offset, data_bytes }) = self.target(message) else { return };
        if data_bytes == layout.data_bytes() && (self.sound || !holds(Rule::HeaderFirst)) {
            self.generation = placer.resolve(tag, offset, data_bytes);
        }
    }

    /// Where the data of a PDU goes whose header is complete.
    fn target(&self, message: &Message) -> Option<Target> {
        let mut header = [0; TARGET_END];
        header[..COMMON_BYTES].copy_from_slice(&message.header);
        header[COMMON_BYTES..].copy_from_slice(&self.fields);
        target(&header)
    }

    /// Puts data, `from` bytes behind its start, where it belongs.
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

    /// Takes bytes of a received digest; with the last one it is compared.
    fn take_digest(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        self.digest[at..end].copy_from_slice(bytes);
        if end == DIGEST_BYTES {
            self.sound &= u32::from_le_bytes(self.digest) == self.crc;
            self.crc = 0;
        }
    }

    /// Writes bytes of a digest that is sent.
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

    /// Numbers are in no digest.
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
        // Without a layout it is no header, and no message.
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
        // Without a layout it is no header, and no message.
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
