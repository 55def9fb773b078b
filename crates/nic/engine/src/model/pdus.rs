//! NVMe/TCP PDUs of the peer, with digests from another library.

use unlade_testkit::Random;

use crate::model::peer::random_bytes;
use crate::nvme::{FLAG_DDGST, FLAG_HDGST, FLAG_LAST, FLAG_SUCCESS, Nvme, types};

/// A PDU of a stream.
#[derive(Clone, Debug)]
pub(crate) struct Pdu {
    pub header: Vec<u8>,
    pub data: Vec<u8>,
    /// In the form that software writes, with room for digests.
    pub written: Vec<u8>,
    /// In the form on the wire.
    pub wire: Vec<u8>,
    /// Ends of its parts: header, header digest, padding, data.
    pub ends: [usize; 4],
}

/// Builds a PDU of `pdu_type` with `fields` after the common header, and `data` after `pad_bytes`
/// of padding.
pub(crate) fn pdu(nvme: &Nvme, pdu_type: u8, fields: &[u8], data: &[u8], pad_bytes: usize) -> Pdu {
    let header_bytes = match pdu_type {
        types::IC_REQ | types::IC_RESP => 128,
        types::CAPSULE_CMD => 72,
        _ => 24,
    };
    let plain = matches!(pdu_type, 0..=3);
    let header_digest = nvme.header_digest && !plain;
    let data_digest = nvme.data_digest && !plain && !data.is_empty();
    let mut flags = 0;
    flags |= if header_digest { FLAG_HDGST } else { 0 };
    flags |= if data_digest { FLAG_DDGST } else { 0 };
    flags |= match pdu_type {
        types::C2H_DATA => FLAG_LAST | FLAG_SUCCESS,
        types::H2C_DATA => FLAG_LAST,
        _ => 0,
    };
    let digest_end = header_bytes + if header_digest { 4 } else { 0 };
    let data_start = digest_end + pad_bytes;
    let data_end = if data.is_empty() { digest_end } else { data_start + data.len() };
    let pdu_end = data_end + if data_digest { 4 } else { 0 };
    let data_offset = if data.is_empty() || plain { 0 } else { data_start };
    let mut header = vec![pdu_type, flags, header_bytes as u8, data_offset as u8];
    header.extend((pdu_end as u32).to_le_bytes());
    header.extend(fields);
    header.resize(header_bytes, 0);
    let mut written = header.clone();
    written.resize(digest_end, 0);
    if !data.is_empty() {
        written.resize(data_start, 0);
        written.extend(data);
    }
    written.resize(pdu_end, 0);
    let mut wire = written.clone();
    if header_digest {
        wire[header_bytes..digest_end].copy_from_slice(&crc32c::crc32c(&header).to_le_bytes());
    }
    if data_digest {
        wire[data_end..].copy_from_slice(&crc32c::crc32c(data).to_le_bytes());
    }
    let ends = [header_bytes, digest_end, data_start.min(data_end), data_end];
    Pdu { header, data: data.to_vec(), written, wire, ends }
}

/// Builds a data PDU, C2HData or H2CData, for `tag`, at `offset`.
pub(crate) fn data(nvme: &Nvme, pdu_type: u8, tag: u16, offset: u32, data: &[u8]) -> Pdu {
    let [low, high] = tag.to_le_bytes();
    let mut fields = match pdu_type {
        types::C2H_DATA => vec![low, high, 0xee, 0xee],
        _ => vec![0xee, 0xee, low, high],
    };
    fields.extend(offset.to_le_bytes());
    fields.extend((data.len() as u32).to_le_bytes());
    pdu(nvme, pdu_type, &fields, data, 0)
}

/// Builds a PDU of a random type and content, with `data_bytes` of data if the type allows data.
pub(crate) fn any(random: &mut Random, nvme: &Nvme, data_bytes: usize) -> Pdu {
    let kinds = [types::CAPSULE_CMD, types::CAPSULE_RESP, types::R2T, types::CAPSULE_CMD];
    let pdu_type = kinds[random.below(4) as usize];
    let has_data = pdu_type == types::CAPSULE_CMD && data_bytes > 0 && random.once_in(2);
    let content = random_bytes(random, if has_data { data_bytes } else { 0 });
    let fields = random_bytes(random, if pdu_type == types::CAPSULE_CMD { 64 } else { 16 });
    let pad_bytes = 4 * random.below(9) as usize;
    pdu(nvme, pdu_type, &fields, &content, pad_bytes)
}

/// Random negotiated parameters.
pub(crate) fn agreed(random: &mut Random) -> Nvme {
    let digests = random.below(4);
    Nvme { header_digest: digests & 1 != 0, data_digest: digests & 2 != 0, data_bytes_max: 1 << 20 }
}
