//! NVMe/TCP over TLS (§5.3 of the paper). On receive, TLS comes first, then NVMe/TCP on the
//! application data of the records; on transmit, digests come first, then TLS.
//!
//! ```text
//!  TCP    │ header │ ciphertext ················· │ type │ tag │ header │ ciphertext ···
//!  inner           │ ···· PDU ··· │ PDU ··········│              │ ··· PDU ·· │ PDU ···
//! ```
//! Each protocol has its own state machine, context and recovery. The stream of the inner machine
//! is the application data. Positions in it are named by TCP sequence numbers, so a candidate of
//! the inner search is confirmed with the same request as any other.
//!
//! The last byte of a TLS 1.3 record is its content type. The device computes the position of that
//! byte and does not pass it to the inner machine. If a record holds another type, or is padded,
//! the inner machine has processed bytes that are no PDUs, and it loses synchronisation.
//!
//! - [`rx`]: received packets;
//! - [`tx`]: packets to send.

pub mod rx;
pub mod tx;

use crate::framing::{Framing, Step};
use crate::l5p::Message;
use crate::tls::Tls;

/// Counters of both state machines of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The outer machine, and records.
    pub tls: crate::Stats,
    /// The inner machine, and PDUs.
    pub nvme: crate::Stats,
}

impl Stats {
    /// Adds the counters of `other`.
    pub fn add(&mut self, other: &Stats) {
        self.tls.add(&other.tls);
        self.nvme.add(&other.nvme);
    }
}

/// A part of a stream of records that is of interest to the inner machine.
enum RecordPart {
    /// A record's header is complete.
    Record,
    /// Application data, if the record's type is application data: a range of the packet's bytes.
    Content { start: usize, end: usize },
    /// The position of the record's content type byte.
    Type { at: usize },
}

/// Parses the next part of `bytes`, after the first `done` bytes. Returns the end of the part, its
/// message and its chunks, or `None` if no record starts where one must.
fn step(
    tls: &Tls,
    framing: &mut Framing,
    bytes: &[u8],
    done: usize,
) -> Option<(usize, Option<Message>, [Option<RecordPart>; 2])> {
    match framing.step(tls, &bytes[done..]) {
        Step::Header { bytes, complete } => {
            let part = complete.then_some(RecordPart::Record);
            Some((done + bytes, None, [part, None]))
        }
        Step::Body { bytes: count, offset, .. } => {
            let message = framing.message();
            let content = tls.content(&message, offset, count);
            let (start, end) = (done + content.range.start, done + content.range.end);
            let part = (start < end).then_some(RecordPart::Content { start, end });
            let type_at = content.type_at.map(|at| RecordPart::Type { at: done + at });
            framing.pass(count);
            Some((done + count, Some(message), [part, type_at]))
        }
        Step::Malformed => None,
    }
}
