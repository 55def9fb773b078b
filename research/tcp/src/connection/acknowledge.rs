//! Acknowledgement processing: window updates, release of bytes, loss detection, congestion
//! control.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use super::{Connection, RecoveryPhase, State};
use crate::payload::Payload;
use crate::recover::Delivered;
use crate::segment::Header;
use crate::time::Time;

/// Number of duplicate acknowledgements after which the next bytes are considered lost, if the
/// peer does not acknowledge selectively (RFC 5681 §3.2).
const REPEATED_ACKS: u32 = 3;

impl<R: Payload, S: Payload + Clone> Connection<R, S> {
    /// Returns false if the rest of the segment is ignored (RFC 9293 §3.10.7.4, "check the ACK
    /// field").
    pub(super) fn take_ack(&mut self, now: Time, header: &Header, bytes: u32) -> bool {
        if self.state == State::SynReceived {
            if header.ack != self.iss + 1 || self.nxt == self.iss {
                self.due.reset = self.due.reset.or(header.reset_answering(bytes as usize));
                return false;
            }
            self.establish(now, header);
            return true;
        }
        let beyond = header.ack.since(self.nxt) > 0;
        let ancient = self.una.since(header.ack) > self.window_max as i32;
        if beyond || ancient {
            // RFC 5961 §5.
            self.challenge(now);
            return false;
        }
        if header.ack.since(self.una) >= 0 {
            self.take_current_ack(now, header, bytes);
        }
        self.after_ack(now);
        self.state != State::Closed
    }

    fn take_current_ack(&mut self, now: Time, header: &Header, bytes: u32) {
        let before = self.window;
        self.take_window(header);
        let advanced = header.ack != self.una;
        let repeats = !advanced
            && bytes == 0
            && before == self.window
            && !header.has(TcpFlags::FIN)
            && self.outstanding() > 0;
        let blocks = if self.agreed.sack { header.sack } else { Default::default() };
        let outstanding = self.outstanding();
        let delivered = if self.board.is_clean() && blocks.is_empty() {
            self.board.acknowledge_clean(now, header.ack)
        } else {
            let echo = header.timestamps.filter(|_| self.agreed.timestamps).map(|t| t.echo);
            let offset = self.config.timestamp_offset;
            let clock = move |at: Time| (at.ms() as u32).wrapping_add(offset);
            let is_old = |at| echo.is_some_and(|echo| (echo.wrapping_sub(clock(at)) as i32) < 0);
            self.board.acknowledge(self.path(now), header.ack, blocks.as_slice(), is_old)
        };
        self.repeated_acks = match (advanced, repeats) {
            (true, _) => 0,
            (_, true) => self.repeated_acks + 1,
            _ => self.repeated_acks,
        };
        if delivered.duplicate {
            self.stats.duplicates_reported += 1;
            self.board.wait_longer();
        }
        self.complete_tail_probe(now, header.ack, repeats, &delivered);
        if self.phase != RecoveryPhase::Open && header.ack.since(self.recover_until) >= 0 {
            self.phase = RecoveryPhase::Open;
            self.board.recovered();
        }
        self.find_losses(now, outstanding, advanced);
        if advanced {
            self.acknowledged_new(now, header.ack, &delivered);
        } else if delivered.sacked {
            self.progress_at = now;
        }
    }

    /// The window that a segment without SYN announces.
    #[inline]
    pub(super) fn peer_window(&self, header: &Header) -> u32 {
        u32::from(header.window) << self.agreed.peer_scale
    }

    /// Updates the peer's window (RFC 9293 §3.10.7.4).
    #[inline]
    pub(super) fn take_window(&mut self, header: &Header) {
        let (seq, ack) = self.window_from;
        let newer = header.seq.since(seq) > 0;
        if newer || (header.seq == seq && header.ack.since(ack) >= 0) {
            self.window = self.peer_window(header);
            self.window_max = self.window_max.max(self.window);
            self.window_from = (header.seq, header.ack);
            if self.window > 0 {
                self.timers.persist = Time::NEVER;
            }
        }
    }

    /// Releases bytes up to `ack` that are newly acknowledged.
    #[inline]
    pub(super) fn acknowledged_new(&mut self, now: Time, ack: SeqNumber, delivered: &Delivered) {
        self.una = ack;
        let end = self.send.end();
        self.send.acknowledge(if ack.since(end) > 0 { end } else { ack });
        self.progress_at = now;
        match delivered.rtt_ns {
            Some(rtt_ns) => self.rtt.sample(now, rtt_ns),
            None => self.rtt.progress(),
        }
        let limited = self.window_limited || self.phase == RecoveryPhase::Loss;
        if self.phase != RecoveryPhase::Recovery && limited {
            let rtt_ns = self.rtt.smoothed_ns();
            self.congestion.acknowledged(now, delivered.bytes, rtt_ns);
        }
        if self.una == self.nxt {
            self.timers.retransmit = Time::NEVER;
            self.timers.tail_probe = Time::NEVER;
        } else {
            self.restart_retransmission(now);
        }
    }

    /// Detects losses and reacts to them. `outstanding` bytes were unacknowledged before.
    pub(super) fn find_losses(&mut self, now: Time, outstanding: u32, advanced: bool) {
        let lost = if self.agreed.sack {
            let (lost, next) = self.board.detect(self.path(now));
            self.timers.reorder = next;
            lost
        } else {
            // During recovery, a partial acknowledgement indicates that the next bytes are lost
            // too (RFC 6582 §3.2).
            let asks = match self.phase {
                RecoveryPhase::Open => self.repeated_acks == REPEATED_ACKS,
                RecoveryPhase::Recovery => advanced,
                RecoveryPhase::Loss => false,
            };
            if asks { self.board.lose_front(self.mss) } else { 0 }
        };
        if lost > 0 && self.phase == RecoveryPhase::Open {
            self.begin_recovery(now, outstanding);
        }
    }

    fn begin_recovery(&mut self, now: Time, outstanding: u32) {
        self.phase = RecoveryPhase::Recovery;
        self.recover_until = self.nxt;
        self.congestion.lost(now, outstanding);
        self.stats.recoveries += 1;
        self.timers.tail_probe = Time::NEVER;
    }

    /// Determines if the tail loss probe has repaired a loss (RFC 8985 §7.4.2).
    fn complete_tail_probe(
        &mut self,
        now: Time,
        ack: SeqNumber,
        repeats: bool,
        delivered: &Delivered,
    ) {
        let Some(probe) = self.tail_probe else { return };
        let behind = ack.since(probe.end);
        if behind < 0 {
            return;
        }
        if !probe.again || delivered.duplicate || (repeats && !delivered.sacked) {
            self.tail_probe = None;
        } else if behind > 0 {
            self.tail_probe = None;
            if self.phase == RecoveryPhase::Open {
                let outstanding = self.outstanding();
                self.congestion.lost(now, outstanding);
                self.stats.recoveries += 1;
            }
        }
    }

    /// State changes after FIN is acknowledged.
    fn after_ack(&mut self, now: Time) {
        if !self.fin_sent() || self.una != self.nxt {
            return;
        }
        match self.state {
            State::FinWait1 => self.state = State::FinWait2,
            State::Closing => self.enter_time_wait(now),
            State::LastAck => self.end(None),
            _ => {}
        }
    }
}
