//! Encoding of a PDU to send: its header with its digest, a reference to the caller's data, and
//! the data's digest (NVMe/TCP Transport Specification 1.0 §3.3.1, §3.6). If the device computes
//! digests, there is room for them.

use bytes::{Bytes, BytesMut};
use unlade_aead::crc32c;
use unlade_nic_engine::nvme::{ALIGNMENT_BYTES_MAX, DIGEST_BYTES};
use unlade_nic_engine::software::sent::Extent;
use unlade_nvme_wire::{Digests, Pdu};

/// Size of the shared buffer for headers.
const ARENA_BYTES: usize = 16 << 10;
/// Room for a digest that the device fills in.
static DIGEST_ROOM: [u8; DIGEST_BYTES] = [0; DIGEST_BYTES];

/// Largest number of bytes of a PDU beside its data: header, digests, padding.
pub const OVERHEAD_BYTES: usize = ALIGNMENT_BYTES_MAX + DIGEST_BYTES;

/// The side that computes digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// Software.
    Software,
    /// The device; the digests' places are left empty.
    Device,
}

/// An encoded PDU in its parts.
#[derive(Clone, Debug)]
pub struct Framed {
    /// Header, its digest, padding.
    pub head: Bytes,
    /// The data.
    pub data: Bytes,
    /// The data's digest, if there is one.
    pub tail: Bytes,
}

impl Extent for Framed {
    fn bytes(&self) -> usize {
        self.head.len() + self.data.len() + self.tail.len()
    }
}

impl Framed {
    /// The parts, in order.
    pub fn parts(&self) -> [&Bytes; 3] {
        [&self.head, &self.data, &self.tail]
    }

    /// Calls `take` with the range of each part between `start` and `end`, without a copy.
    pub fn each(&self, start: usize, end: usize, mut take: impl FnMut(&Bytes, usize, usize)) {
        let mut before = 0;
        for part in self.parts() {
            let from = start.saturating_sub(before).min(part.len());
            let until = end.saturating_sub(before).min(part.len());
            if from < until {
                take(part, from, until);
            }
            before += part.len();
        }
    }

    /// Appends the bytes from `start` up to `end` to `out`.
    pub fn copy(&self, start: usize, end: usize, out: &mut Vec<u8>) {
        self.each(start, end, |part, from, until| out.extend_from_slice(&part[from..until]));
    }
}

/// Encoder of PDUs.
pub struct Framer {
    digests: Digests,
    /// CPDA: alignment of data in bytes.
    alignment_bytes: usize,
    fill: Fill,
    arena: BytesMut,
    scratch: Vec<u8>,
}

impl Framer {
    /// Creates an encoder with these digests.
    pub fn new(digests: Digests, fill: Fill) -> Framer {
        let (arena, scratch) = (BytesMut::new(), Vec::new());
        Framer { digests, alignment_bytes: 4, fill, arena, scratch }
    }

    /// Changes digests and alignment, from the next PDU on.
    pub fn agree(&mut self, digests: Digests, alignment_bytes: usize) {
        self.digests = digests;
        self.alignment_bytes = alignment_bytes;
    }

    /// Encodes the PDU with this header and data.
    pub fn frame(&mut self, pdu: &Pdu, data: Bytes) -> Framed {
        self.frame_behind(pdu, data, |_| []).1
    }

    /// Encodes a PDU with a prefix in one buffer with its header: `prefix` builds the prefix from
    /// the PDU's length. Returns the buffer and the PDU.
    pub fn frame_behind<const N: usize>(
        &mut self,
        pdu: &Pdu,
        data: Bytes,
        prefix: impl FnOnce(usize) -> [u8; N],
    ) -> (Bytes, Framed) {
        let common = pdu.common(data.len(), self.digests, self.alignment_bytes);
        let layout = common.layout();
        self.scratch.clear();
        pdu.write(&common, &mut self.scratch);
        if layout.has_header_digest {
            let digest = match self.fill {
                Fill::Software => crc32c::update(0, &self.scratch),
                Fill::Device => 0,
            };
            self.scratch.extend(digest.to_le_bytes());
        }
        let head_bytes = if data.is_empty() { self.scratch.len() } else { layout.data.start };
        self.scratch.resize(head_bytes, 0);
        let tail = match (layout.has_data_digest, self.fill) {
            (false, _) => Bytes::new(),
            (true, Fill::Device) => Bytes::from_static(&DIGEST_ROOM),
            (true, Fill::Software) => {
                let digest = crc32c::update(0, &data).to_le_bytes();
                self.piece(&[&digest])
            }
        };
        let scratch = std::mem::take(&mut self.scratch);
        let piece = self.piece(&[&prefix(layout.bytes), &scratch]);
        self.scratch = scratch;
        let head = piece.slice(N..);
        (piece, Framed { head, data, tail })
    }

    /// One buffer with a copy of all `parts`.
    fn piece(&mut self, parts: &[&[u8]]) -> Bytes {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        if self.arena.capacity() < bytes {
            self.arena = BytesMut::with_capacity(ARENA_BYTES.max(bytes));
        }
        for part in parts {
            self.arena.extend_from_slice(part);
        }
        self.arena.split().freeze()
    }

    /// Largest number of bytes of a PDU with `data_bytes` of data.
    pub fn bytes_max(data_bytes: usize) -> usize {
        OVERHEAD_BYTES + data_bytes + DIGEST_BYTES
    }
}
