//! The server's host: which segments of a server go to a client, and as what.

use unlade_net::SeqNumber;

use crate::head::fit;
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
    /// The response begins at `first`, and its head must be fit: see [`HostRule`].
    pub awaits_head: bool,
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

/// A rule at the server's host, with its conclusion about the head.
///
/// A rule that awaits a head holds for no segment until the one with the head leaves. If that head
/// is fit, the rule holds up to the end of the response, and the balancer gets copies of the head.
/// Otherwise everything goes to the balancer.
#[derive(Clone, Copy, Debug)]
pub struct HostRule {
    rule: Rule,
    head: HeadState,
    grant: Option<Segment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeadState {
    NotAwaited,
    Awaited,
    /// The rule has the end of the response; this is the number behind its head.
    Fit(SeqNumber),
    Unfit,
}

/// Where a segment of the server goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// To the balancer, unchanged.
    Balancer,
    /// To the client.
    Client(Segment),
    /// To the client, and to the balancer as a copy of so many bytes of the payload
    /// ([`Segment::is_copy`]).
    Both(Segment, u32),
}

impl HostRule {
    /// Creates the state of a rule that has come with an acknowledgement for the server.
    pub fn new(rule: Rule, grant: Option<Segment>) -> HostRule {
        let head = if rule.awaits_head { HeadState::Awaited } else { HeadState::NotAwaited };
        HostRule { rule, head, grant }
    }

    /// Returns the acknowledgement that the server gets now. Call it when the rule has come, and after
    /// each segment: behind a fit head, unless all of the response has left.
    pub fn take_grant(&mut self, sent_end: SeqNumber) -> Option<Segment> {
        match self.head {
            HeadState::Awaited | HeadState::Unfit => None,
            HeadState::Fit(_) if self.rule.end == Some(sent_end) => {
                self.grant = None;
                None
            }
            HeadState::NotAwaited | HeadState::Fit(_) => self.grant.take(),
        }
    }

    /// Decides about a segment with the payload at least up to
    /// [`HEAD_BYTES_MAX`](crate::head::HEAD_BYTES_MAX) bytes; `sent_end` as for
    /// [`Rule::translate`].
    pub fn send(&mut self, segment: &Segment, payload: &[u8], sent_end: SeqNumber) -> Sent {
        let is_first = segment.payload_bytes > 0 && segment.seq == self.rule.first;
        if self.head == HeadState::Awaited
            && is_first
            && self.rule.translate(segment, sent_end).is_some()
        {
            self.judge(segment, payload);
        }
        let head_end = match self.head {
            HeadState::NotAwaited => self.rule.first,
            HeadState::Fit(head_end) => head_end,
            HeadState::Awaited | HeadState::Unfit => return Sent::Balancer,
        };
        match self.rule.translate(segment, sent_end) {
            None => Sent::Balancer,
            Some(shown) if segment.payload_bytes > 0 && segment.seq.before(head_end) => {
                let left = head_end.0.wrapping_sub(segment.seq.0);
                Sent::Both(shown, left.min(segment.payload_bytes))
            }
            Some(shown) => Sent::Client(shown),
        }
    }

    fn judge(&mut self, segment: &Segment, payload: &[u8]) {
        self.head = HeadState::Unfit;
        if let Some(head) = fit(payload) {
            let end = self.rule.first + head.response_bytes();
            // More than the response is no response.
            if !end.before(segment.end()) {
                self.head = HeadState::Fit(self.rule.first + head.head_bytes);
                self.rule.end = Some(end);
            }
        }
    }
}
