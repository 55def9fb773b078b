//! A PDU to be sent, in bytes: its header with its digest, the caller's data where it lies, and the
//! data's digest (NVMe/TCP Transport Specification 1.0 §3.3.1, §3.6). Where the device fills digests in
//! there is room for them.

use bytes::{Bytes, BytesMut};
use unlade_aead::crc32c;
use unlade_nic_engine::nvme::{ALIGNMENT_BYTES_MAX, DIGEST_BYTES};
use unlade_nic_engine::software::sent::Extent;
use unlade_nvme_wire::{Digests, Pdu};

/// Bytes that headers are put into together.
const ARENA_BYTES: usize = 16 << 10;
/// Room for a digest that the device fills in.
static DIGEST_ROOM: [u8; DIGEST_BYTES] = [0; DIGEST_BYTES];

/// Most bytes of a PDU beside its data: header, digests, padding.
pub const OVERHEAD_BYTES: usize = ALIGNMENT_BYTES_MAX + DIGEST_BYTES;

/// Who computes digests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// They are here.
    Software,
    /// There is room for them.
    Device,
}

/// A PDU in its parts.
#[derive(Clone, Debug)]
pub struct Framed {
    /// Header, its digest, padding.
    pub head: Bytes,
    /// The data.
    pub data: Bytes,
    /// Its digest, where there is one.
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

    /// Calls `take` with each part's piece of the bytes from `start` up to `end`; without copying.
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

/// Makes bytes of PDUs.
pub struct Framer {
    digests: Digests,
    /// CPDA: data is aligned to so many bytes.
    alignment_bytes: usize,
    fill: Fill,
    arena: BytesMut,
    scratch: Vec<u8>,
}

impl Framer {
    /// With these digests.
    pub fn new(digests: Digests, fill: Fill) -> Framer {
        let (arena, scratch) = (BytesMut::new(), Vec::new());
        Framer { digests, alignment_bytes: 4, fill, arena, scratch }
    }

    /// From the next PDU on.
    pub fn agree(&mut self, digests: Digests, alignment_bytes: usize) {
        self.digests = digests;
        self.alignment_bytes = alignment_bytes;
    }

    /// The PDU with this header and data.
    pub fn frame(&mut self, pdu: &Pdu, data: Bytes) -> Framed {
        self.frame_behind(pdu, data, |_| []).1
    }

    /// The same, with what `prefix` makes of the PDU's bytes in one piece with its header, before it:
    /// that piece, and the PDU.
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

    /// A piece with all of `parts`.
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

    /// Bytes of such a PDU with `data_bytes` of data, at most.
    pub fn bytes_max(data_bytes: usize) -> usize {
        OVERHEAD_BYTES + data_bytes + DIGEST_BYTES
    }
}
