//! The sending side: PDUs become bytes for TCP, in the clear or as the content of records. Messages
//! that the device processes are kept until they are acknowledged, since all of a message may be
//! needed to retransmit a part of it.
//!
//! ```text
//!  in the clear       │ header, digest │ data ··········································· │ digest │
//!  in records    │ 5 │ header, digest │ data ··· │ type, tag │ 5 │ data ··· │ digest │ type, tag │
//!                └── one buffer ──────┘                                     └─── one buffer ─────┘
//! ```
//! A record contains bytes of one PDU. Data is not copied except for records that software seals,
//! and there only if a record is not all data.

use bytes::{Bytes, BytesMut};
use unlade_net::SeqNumber;
use unlade_nic_engine::Nvme;
use unlade_nic_engine::software::sent::{Extent, Located, Sent};
use unlade_nic_engine::tx::{Found, Messages};
use unlade_nvme_wire::{Digests, Pdu};

use super::frame::{Fill, Framed, Framer, OVERHEAD_BYTES};
use super::kept::{PDUS_MAX, found};
use super::sealed::Sealed;
use crate::driver::Source;
use crate::flow::Protocol;
use crate::queue::InnerRecovery;
use crate::span::Span;
use crate::tls::keys::KeysError;
use crate::tls::send::{CONTENT_BYTES_MAX, Change, SendError, Sender};

/// Largest number of data bytes in a PDU: to retransmit a part of it the device needs the bytes
/// before that part.
pub const PDU_DATA_BYTES_MAX: u32 = 128 << 10;
/// Largest number of spans of a record or of a PDU in the clear.
const PIECES_MAX: usize = 4;
/// Largest number of bytes of a record beside its content.
const RECORD_OVERHEAD_BYTES: usize = 64;

/// The layer below.
enum LowerLayer {
    /// TCP; digests are computed in software.
    Tcp,
    /// TCP; the device fills in digests.
    Device(Sent<Framed>),
    /// Records of another record layer.
    Records,
    /// Records that the device seals, after it has filled in digests.
    Sealed(Box<Sealed>),
}

/// The sending side of one connection.
pub struct PduSender {
    framer: Framer,
    lower: LowerLayer,
    nvme: Nvme,
}

fn digests(nvme: &Nvme) -> Digests {
    Digests { header: nvme.header_digest, data: nvme.data_digest }
}

impl PduSender {
    fn new(nvme: Nvme, fill: Fill, lower: LowerLayer) -> PduSender {
        PduSender { framer: Framer::new(digests(&nvme), fill), lower, nvme }
    }

    /// Creates a sender with digests in software; `records`: a record layer is below.
    pub fn software(nvme: Nvme, records: bool) -> PduSender {
        let lower = if records { LowerLayer::Records } else { LowerLayer::Tcp };
        PduSender::new(nvme, Fill::Software, lower)
    }

    /// Creates a sender with digests by the device from `start` on, where a PDU starts.
    pub fn device(nvme: Nvme, start: SeqNumber) -> PduSender {
        PduSender::new(nvme, Fill::Device, LowerLayer::Device(Sent::new(start, 0, PDUS_MAX)))
    }

    /// Creates a sender with digests and records by the device.
    pub fn sealed(nvme: Nvme, sealed: Sealed) -> PduSender {
        PduSender::new(nvme, Fill::Device, LowerLayer::Sealed(Box::new(sealed)))
    }

    /// Applies digests, limits and the alignment of data (CPDA), from the next PDU on.
    pub fn agree(&mut self, nvme: Nvme, alignment_bytes: usize) {
        self.nvme = nvme;
        self.framer.agree(digests(&nvme), alignment_bytes);
    }

    /// Returns true if the device processes the sent data.
    pub fn offloads(&self) -> bool {
        matches!(self.lower, LowerLayer::Device(_) | LowerLayer::Sealed(_))
    }

    /// The records, if they are built here.
    pub fn records(&mut self) -> Option<&mut Sealed> {
        match &mut self.lower {
            LowerLayer::Sealed(sealed) => Some(sealed),
            _ => None,
        }
    }

    /// Number of bytes and spans that TCP must have room for, for a PDU with `data_bytes` of
    /// data.
    pub fn needs(&self, data_bytes: usize) -> (usize, usize) {
        let pdu_bytes = Framer::bytes_max(data_bytes);
        let records = match self.lower {
            LowerLayer::Tcp | LowerLayer::Device(_) => return (pdu_bytes, PIECES_MAX),
            LowerLayer::Records | LowerLayer::Sealed(_) => pdu_bytes.div_ceil(CONTENT_BYTES_MAX),
        };
        (pdu_bytes + records * RECORD_OVERHEAD_BYTES, records * PIECES_MAX)
    }

    /// Largest number of data bytes in a PDU that fits a TCP buffer of `room_bytes`, a multiple
    /// of four.
    pub fn data_bytes_max(room_bytes: usize) -> u32 {
        let half = (room_bytes / 2).saturating_sub(OVERHEAD_BYTES + RECORD_OVERHEAD_BYTES);
        (half as u32).min(PDU_DATA_BYTES_MAX) & !3
    }

    /// Appends the spans that TCP is to send for a PDU. `sender` builds the records if they are
    /// not built here.
    ///
    /// # Errors
    /// [`SendError`]; nothing is kept.
    pub fn write(
        &mut self,
        (pdu, data): (&Pdu, Bytes),
        sender: Option<&mut Sender>,
        pieces: &mut Vec<Span>,
    ) -> Result<(), SendError> {
        if data.len() > self.nvme.data_bytes_max as usize {
            return Err(SendError::TooLong);
        }
        match &mut self.lower {
            LowerLayer::Tcp => {
                let framed = self.framer.frame(pdu, data);
                push(&framed, pieces);
            }
            LowerLayer::Device(sent) => {
                let framed = self.framer.frame(pdu, data);
                sent.push(framed.clone()).map_err(|_| SendError::Full)?;
                push(&framed, pieces);
            }
            LowerLayer::Records => {
                let framed = self.framer.frame(pdu, data);
                records(&framed, sender.ok_or(SendError::Full)?, pieces)?;
            }
            LowerLayer::Sealed(sealed) => sealed.write(&mut self.framer, (pdu, data), pieces)?,
        }
        Ok(())
    }

    /// As [`Sender::update_keys`], for records that are built here; also returns the protocol for
    /// the device.
    ///
    /// # Errors
    /// [`SendError`].
    pub fn update_keys(&mut self, request: bool) -> Result<(Span, Change, Protocol), SendError> {
        let nvme = self.nvme;
        let sealed = self.records().ok_or(KeysError::NoSecret)?;
        let (record, change) = sealed.update_keys(request)?;
        let tls = change.secrets.tls()?;
        Ok((record, change, Protocol::NvmeTls(Box::new(tls), nvme)))
    }

    /// Notes that the bytes before `acknowledged` have arrived.
    pub fn acknowledge(&mut self, acknowledged: SeqNumber) {
        match &mut self.lower {
            LowerLayer::Tcp | LowerLayer::Records => (),
            LowerLayer::Device(sent) => {
                sent.acknowledge(acknowledged);
            }
            LowerLayer::Sealed(sealed) => sealed.acknowledge(acknowledged),
        }
    }

    /// The key of the oldest kept record.
    pub fn oldest_key(&self) -> Option<u16> {
        match &self.lower {
            LowerLayer::Sealed(sealed) => sealed.oldest_key(),
            _ => None,
        }
    }

    /// Number of kept PDUs.
    pub fn unacknowledged(&self) -> usize {
        match &self.lower {
            LowerLayer::Tcp | LowerLayer::Records => 0,
            LowerLayer::Device(sent) => sent.len(),
            LowerLayer::Sealed(sealed) => sealed.unacknowledged(),
        }
    }
}

fn push(framed: &Framed, pieces: &mut Vec<Span>) {
    let parts = framed.parts().into_iter().filter(|part| !part.is_empty());
    pieces.extend(parts.cloned().map(Span::from));
}

/// Builds records of a PDU. A record of data only is a reference; any other is copied into one
/// buffer.
fn records(framed: &Framed, sender: &mut Sender, pieces: &mut Vec<Span>) -> Result<(), SendError> {
    let pdu_bytes = framed.bytes();
    sender.room_for(pdu_bytes.div_ceil(CONTENT_BYTES_MAX))?;
    let mut start = 0;
    while start < pdu_bytes {
        let end = (start + CONTENT_BYTES_MAX).min(pdu_bytes);
        let mut content = Bytes::new();
        let mut gathered = BytesMut::new();
        framed.each(start, end, |part, from, until| {
            if until - from == end - start {
                content = part.slice(from..until);
            } else {
                gathered.reserve(end - start);
                gathered.extend_from_slice(&part[from..until]);
            }
        });
        let mut content = if content.is_empty() { gathered.freeze() } else { content };
        let envelope = sender.write(&mut content)?;
        pieces.push(Span::record(envelope, content));
        start = end;
    }
    Ok(())
}

impl Messages for PduSender {
    fn find(&self, seq: SeqNumber) -> Found<'_> {
        match &self.lower {
            LowerLayer::Tcp | LowerLayer::Records => Found::Unknown,
            LowerLayer::Device(sent) => found(sent.locate(seq)),
            LowerLayer::Sealed(sealed) => sealed.find(seq),
        }
    }
}

impl Source for PduSender {
    fn under_one_key(&self, seq: SeqNumber, raw: usize) -> Option<(u16, usize)> {
        match &self.lower {
            LowerLayer::Tcp | LowerLayer::Records => None,
            LowerLayer::Device(sent) => sent.under_one_key(seq, raw),
            LowerLayer::Sealed(sealed) => sealed.under_one_key(seq, raw),
        }
    }

    fn gather(&mut self, start: SeqNumber, until: SeqNumber, out: &mut Vec<Span>) {
        let mut raw = Vec::new();
        match &self.lower {
            LowerLayer::Tcp | LowerLayer::Records => (),
            LowerLayer::Device(sent) => {
                if let Located::Message(kept) = sent.locate(start) {
                    kept.held.copy(0, until.since(start).max(0) as usize, &mut raw);
                }
            }
            LowerLayer::Sealed(sealed) => sealed.copy(start, until, &mut raw),
        }
        out.push(Span::from(Bytes::from(raw)));
    }

    fn inner(&self, start: SeqNumber, out: &mut InnerRecovery) -> bool {
        match &self.lower {
            LowerLayer::Sealed(sealed) => sealed.inner(start, out),
            _ => true,
        }
    }
}

#[cfg(test)]
#[path = "send_tests.rs"]
mod tests;
