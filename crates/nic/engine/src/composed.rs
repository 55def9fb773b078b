//! NVMe/TCP over TLS (§5.3 of the paper): on the way up TLS first, then NVMe/TCP on the application
//! data of the records; on the way down digests first, then TLS.
//!
//! ```text
//!  TCP    │ header │ ciphertext ················· │ type │ tag │ header │ ciphertext ···
//!  inner           │ ···· PDU ··· │ PDU ··········│              │ ··· PDU ·· │ PDU ···
//! ```
//! Each protocol has its own machine, context and recovery. The stream of the inner one is the
//! application data; TCP's numbers are its names for places in it, so that a candidate of its
//! search can be asked for like any other.
//!
//! A record of TLS 1.3 says what it holds in its last byte. The device knows where that is, and
//! keeps it back from the inner machine. A record that holds something else, or is padded, has made
//! the inner machine take what is not its own: it loses its place.
//!
//! - [`rx`]: received packets;
//! - [`tx`]: packets to send.

pub mod rx;
pub mod tx;

use crate::framing::{Framing, Step};
use crate::l5p::Message;
use crate::tls::Tls;

/// What both machines of a flow count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The outer machine, and records.
    pub tls: crate::Stats,
    /// The inner one, and PDUs.
    pub nvme: crate::Stats,
}

impl Stats {
    /// Adds what `other` has counted.
    pub fn add(&mut self, other: &Stats) {
        self.tls.add(&other.tls);
        self.nvme.add(&other.nvme);
    }
}

/// Something in bytes of a stream of records.
enum Piece {
    /// A record's header is complete.
    Record,
    /// Application data, if its record is: so many bytes of the packet, from the first on.
    Content { start: usize, end: usize },
    /// The byte at this place says what the record held.
    Type { at: usize },
}

/// Looks at what is next in `bytes` after `done` of them: what is of interest in it, and where it
/// ends. Nothing where there is no record.
fn step(
    tls: &Tls,
    framing: &mut Framing,
    bytes: &[u8],
    done: usize,
) -> Option<(usize, Option<Message>, [Option<Piece>; 2])> {
    match framing.step(tls, &bytes[done..]) {
        Step::Header { bytes, complete } => {
            let piece = complete.then_some(Piece::Record);
            Some((done + bytes, None, [piece, None]))
        }
        Step::Body { bytes: count, offset, .. } => {
            let message = framing.message();
            let content = tls.content(&message, offset, count);
            let (start, end) = (done + content.range.start, done + content.range.end);
            let piece = (start < end).then_some(Piece::Content { start, end });
            let type_at = content.type_at.map(|at| Piece::Type { at: done + at });
            framing.pass(count);
            Some((done + count, Some(message), [piece, type_at]))
        }
        Step::Alien => None,
    }
}
