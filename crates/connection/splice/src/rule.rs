//! The server's host: which segments of a server go to a client, and as what.

use unlade_net::SeqNumber;

use crate::segment::{Segment, Timestamps, is_plain};

/// The rule for one response of a server's connection. It comes from the balancer, and holds for
/// segments that leave the server's host.
///
/// A rule can be late or lost: its segments then go to the balancer, which passes them on. It can
/// outlive its response: segments of a later response acknowledge bytes behind `request_end`, and
/// are not of this rule. So no order between a rule and the segments of a connection is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Number of the response's first byte that may go to the client directly.
    pub first: SeqNumber,
    /// Number behind the response's last byte, if it is known.
    pub end: Option<SeqNumber>,
    /// Number behind the last byte of the request; the balancer's side of the connection.
    pub request_end: SeqNumber,
    /// A number of the client's connection less the number of the same byte at the server.
    pub delta: u32,
    /// Next byte that the balancer expects of the client.
    pub ack: SeqNumber,
    /// Window field that the balancer has sent to the client.
    pub window: u16,
    /// The client's connection uses timestamps: the balancer's clock in it less the server's clock,
    /// ms, and the client's newest value.
    pub clock: Option<(u32, u32)>,
}

impl Rule {
    /// Returns the segment for the client; `None` if the segment goes to the balancer unchanged.
    ///
    /// `sent_end` is the number behind the last byte that the server has sent: a segment without
    /// payload before it is a probe of the client's window, or a keepalive.
    pub fn translate(&self, segment: &Segment, sent_end: SeqNumber) -> Option<Segment> {
        let is_probe = segment.payload_bytes == 0 && segment.seq.before(sent_end);
        if !is_plain(segment.flags) || (segment.payload_bytes == 0 && !is_probe) {
            return None;
        }
        // A probe has the number before the first byte that is not acknowledged.
        let from = if is_probe { self.first - 1 } else { self.first };
        // Its blocks are of the request: numbers that the client does not know.
        if !segment.sack.is_empty() {
            return None;
        }
        if segment.seq.before(from) || self.request_end.before(segment.ack) {
            return None;
        }
        if self.end.is_some_and(|end| end.before(segment.end())) {
            return None;
        }
        let timestamps = match (segment.timestamps, self.clock) {
            (Some(own), Some((offset, echo))) => {
                Some(Timestamps { value: own.value.wrapping_add(offset), echo })
            }
            // Without timestamps the client's window could not be kept from old segments.
            (None, Some(_)) => return None,
            // The caller overwrites the option with NOPs.
            (_, None) => None,
        };
        Some(Segment {
            seq: segment.seq + self.delta,
            ack: self.ack,
            window: self.window,
            timestamps,
            ..*segment
        })
    }
}
