//! Segment construction and the decision when to send.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use super::{Connection, RecoveryPhase, State, TailProbe};
use crate::payload::Payload;
use crate::rule::{Rule, holds};
use crate::segment::{Header, Range, SackBlocks, Timestamps, Transmit};
use crate::time::Time;

/// Number of segments in flight that suffice for an early acknowledgement, even if it is delayed.
const SEGMENTS_ANSWERED: u32 = 4;

impl<R: Payload, S: Payload + Clone> Connection<R, S> {
    /// Returns the next segment to send, if there is one; `gather` is cleared, and filled with its
    /// payload. Call it until it returns `None`, after any other call.
    #[inline]
    pub fn poll_transmit(&mut self, now: Time, gather: &mut Vec<S>) -> Option<Transmit> {
        gather.clear();
        if let Some(header) = self.due.reset.take() {
            return Some(self.alone(header));
        }
        if self.due.syn {
            return Some(self.transmit_syn(now));
        }
        if self.state < State::Established {
            return None;
        }
        let segment = self
            .transmit_lost(now, gather)
            .or_else(|| self.transmit_tail_probe(now, gather))
            .or_else(|| self.transmit_new(now, gather));
        if segment.is_some() {
            return segment;
        }
        // The acknowledgement in a probe is not processed, since the probe is outside of the
        // window.
        if self.due.ack || (self.due.probe && self.unacked_bytes > 0) {
            let header = self.header(now, self.nxt, TcpFlags::ACK);
            return Some(self.alone(header));
        }
        if core::mem::take(&mut self.due.probe) {
            self.stats.probes += 1;
            let header = self.header(now, self.una - 1, TcpFlags::ACK);
            return Some(self.alone(header));
        }
        None
    }

    /// A segment without payload.
    fn alone(&mut self, header: Header) -> Transmit {
        self.stats.segments_out += 1;
        Transmit { header, payload_bytes: 0, mss_bytes: self.mss as u16, retransmission: false }
    }

    /// A header that acknowledges all received bytes, so that no other acknowledgement is due.
    #[inline]
    fn header(&mut self, now: Time, seq: SeqNumber, flags: TcpFlags) -> Header {
        let ack = self.receive.next();
        let window = self.announce();
        self.due.ack = false;
        self.unacked_bytes = 0;
        self.timers.delayed_ack = Time::NEVER;
        self.acked = ack;
        let timestamps = self
            .agreed
            .timestamps
            .then(|| Timestamps { value: self.clock(now), echo: self.peer_clock });
        let sack = match self.agreed.sack && !self.receive.is_plain() {
            true => self.receive.sack_blocks(),
            false => SackBlocks::default(),
        };
        Header { seq, ack, flags, window, timestamps, sack, ..Header::default() }
    }

    /// The window field. Its right edge never moves back, and moves forward only by a useful
    /// amount (RFC 9293 §3.8.6.2.2).
    #[inline]
    fn announce(&mut self) -> u16 {
        let (next, offer) = (self.receive.next(), self.offer());
        let worth = (self.config.receive_buffer_bytes / 2).min(self.mss).max(1);
        if offer.since(self.edge) >= worth as i32 {
            self.edge = offer;
        }
        let window = self.edge.since(next).max(0) as u32;
        (window >> self.agreed.own_scale).min(u32::from(u16::MAX)) as u16
    }

    /// Number of additional bytes that the congestion window allows.
    #[inline]
    fn congestion_room(&self) -> u32 {
        let mut in_flight = self.board.in_flight();
        if !self.agreed.sack {
            // Each duplicate acknowledgement shows that a segment has left the network (RFC 5681
            // §3.2).
            in_flight = in_flight.saturating_sub(self.repeated_acks.saturating_mul(self.mss));
        }
        self.congestion.window_bytes().saturating_sub(in_flight)
    }

    fn transmit_lost(&mut self, now: Time, gather: &mut Vec<S>) -> Option<Transmit> {
        if self.board.lost() == 0 {
            return None;
        }
        let room = self.congestion_room();
        // The first bytes of a recovery are always sent (RFC 6675 §5, step 4.3).
        if room < self.mss && self.board.in_flight() > 0 {
            return None;
        }
        let most = self.config.super_segment_bytes.min(room).max(self.mss);
        let range = self.board.send_again(now, self.whole_segments(most - most % self.mss))?;
        Some(self.transmit_again(now, range, gather))
    }

    fn transmit_again(&mut self, now: Time, range: Range, gather: &mut Vec<S>) -> Transmit {
        let payload_bytes = self.gather(range, gather);
        let end = range.start + payload_bytes;
        let fin = end == self.send.end() && range.end.since(end) == 1;
        if end != range.end && !fin {
            self.board.cut_short(range, payload_bytes);
        }
        self.stats.retransmitted_bytes += u64::from(payload_bytes);
        if self.timers.retransmit == Time::NEVER {
            self.restart_retransmission(now);
        }
        self.with_payload(now, range.start, payload_bytes, fin, true)
    }

    fn gather(&mut self, range: Range, gather: &mut Vec<S>) -> u32 {
        self.send.gather(range.start, range.end, self.config.gather_pieces_max, gather)
    }

    #[inline]
    fn with_payload(
        &mut self,
        now: Time,
        seq: SeqNumber,
        payload_bytes: u32,
        fin: bool,
        retransmission: bool,
    ) -> Transmit {
        let mut flags = TcpFlags::ACK;
        if seq + payload_bytes == self.send.end() && payload_bytes > 0 {
            flags = flags | TcpFlags::PSH;
        }
        if fin {
            flags = flags | TcpFlags::FIN;
        }
        let header = self.header(now, seq, flags);
        let blocks = header.sack.as_slice().len() as u32;
        let options = if blocks > 0 { 4 + 8 * blocks.min(3) } else { 0 };
        self.stats.segments_out += 1;
        self.sent_at = now;
        let mss_bytes = (self.mss - options) as u16;
        Transmit { header, payload_bytes, mss_bytes, retransmission }
    }

    /// Sends a tail loss probe (RFC 8985 §7.3).
    fn transmit_tail_probe(&mut self, now: Time, gather: &mut Vec<S>) -> Option<Transmit> {
        if !core::mem::take(&mut self.due.tail_probe) || self.phase != RecoveryPhase::Open {
            return None;
        }
        self.stats.tail_probes += 1;
        let unsent = self.send.end().since(self.nxt).max(0) as u32;
        let most = unsent.min(self.mss).min(self.window_room());
        if most > 0 && self.board.has_room() {
            let segment = self.transmit_bytes(now, most, gather);
            self.tail_probe = Some(TailProbe { end: self.nxt, again: false });
            self.timers.tail_probe = Time::NEVER;
            return Some(segment);
        }
        let range = self.board.send_last(now, self.mss)?;
        self.tail_probe = Some(TailProbe { end: self.nxt, again: true });
        let segment = self.transmit_again(now, range, gather);
        self.timers.retransmit = now.after_ns(self.rtt.timeout_ns());
        Some(segment)
    }

    /// Number of bytes that the peer's window allows.
    #[inline]
    fn window_room(&self) -> u32 {
        (self.una + self.window).since(self.nxt).max(0) as u32
    }

    fn transmit_new(&mut self, now: Time, gather: &mut Vec<S>) -> Option<Transmit> {
        let unsent = self.send.end().since(self.nxt).max(0) as u32;
        let fin = self.fin_wanted && !self.fin_sent();
        if unsent == 0 && !fin {
            return None;
        }
        if !self.board.has_room() {
            return None;
        }
        self.restart_after_idleness(now);
        let bytes = self.worth_sending(now, unsent, fin)?;
        Some(self.transmit_bytes(now, bytes, gather))
    }

    /// Resets the congestion window after an idle period (RFC 5681 §4.1).
    fn restart_after_idleness(&mut self, now: Time) {
        if self.nxt == self.una && now.ns_since(self.sent_at) > self.rtt.timeout_ns() {
            self.congestion.idle();
        }
    }

    /// Number of the `unsent` bytes to send now: as many as both windows allow, unless waiting
    /// allows a larger segment soon (RFC 9293 §3.8.6.2.1).
    #[inline]
    fn worth_sending(&mut self, now: Time, unsent: u32, fin: bool) -> Option<u32> {
        let window = self.window_room();
        let congestion = self.congestion_room();
        let limit = window.min(congestion);
        self.window_limited = congestion < unsent && congestion <= window;
        let idle = self.outstanding() == 0;
        let little = core::mem::take(&mut self.due.little);
        if unsent <= limit {
            let nagles = self.config.nagle && !idle && unsent < self.mss && !fin;
            let beyond = unsent == 0 && window == 0;
            if beyond {
                self.wait_for_window(now, idle);
            }
            return (!nagles && !beyond).then(|| self.whole_segments(unsent));
        }
        let most = limit.min(self.config.super_segment_bytes);
        let whole = self.whole_segments(most - most % self.mss);
        if whole == 0 {
            let worth = (little || limit >= self.window_max / 2) && limit > 0;
            if !worth {
                self.wait_for_window(now, idle);
            }
            return worth.then_some(limit);
        }
        let grows = most < self.config.super_segment_bytes
            && self.phase == RecoveryPhase::Open
            && self.board.in_flight() >= SEGMENTS_ANSWERED * self.mss
            && limit < self.congestion.window_bytes().min(self.window) / 3;
        (!grows).then_some(whole)
    }

    /// Limits `bytes` to one super-segment, in which only the last packet may be short.
    #[inline]
    fn whole_segments(&self, bytes: u32) -> u32 {
        let most = self.config.super_segment_bytes;
        if bytes <= most { bytes } else { (most - most % self.mss).max(self.mss) }
    }

    /// Sets the persist timer if no pending event can cause a window update.
    fn wait_for_window(&mut self, now: Time, idle: bool) {
        if idle && self.timers.persist == Time::NEVER && holds(Rule::Probe) {
            self.timers.persist = now.after_ns(self.rtt.timeout_ns());
        }
    }

    /// Builds a segment of `bytes` new bytes; with FIN if they are the last.
    #[inline]
    fn transmit_bytes(&mut self, now: Time, bytes: u32, gather: &mut Vec<S>) -> Transmit {
        let range = Range { start: self.nxt, end: self.nxt + bytes };
        let payload_bytes = self.gather(range, gather);
        let end = range.start + payload_bytes;
        let fin = self.fin_wanted && end == self.send.end() && {
            let room = (self.una + self.window).since(end);
            room > 0 || payload_bytes == 0
        };
        self.nxt = end + u32::from(fin);
        self.board.sent(now, Range { start: range.start, end: self.nxt });
        self.stats.bytes_out += u64::from(payload_bytes);
        if fin {
            self.state = match self.state {
                State::CloseWait => State::LastAck,
                _ => State::FinWait1,
            };
        }
        self.timers.persist = Time::NEVER;
        if self.timers.retransmit == Time::NEVER {
            self.progress_at = now;
            self.restart_retransmission(now);
        } else {
            self.restart_tail_probe(now);
        }
        self.with_payload(now, range.start, payload_bytes, fin, false)
    }
}
