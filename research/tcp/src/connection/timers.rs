//! Timers: retransmission, tail loss probe, persist, delayed acknowledgement, keepalive,
//! TIME-WAIT.

use super::{Connection, ConnectionError, RecoveryPhase, State};
use crate::payload::Payload;
use crate::time::{Time, ns};

/// Number of unanswered keepalive probes after which the peer is considered dead.
const KEEPALIVE_PROBES_MAX: u64 = 8;
/// Maximum delay of the peer's acknowledgement of a single segment (RFC 8985 §7.2,
/// TLP.max_ack_delay).
const PEER_DELAY_NS: u64 = 200_000_000;
/// Maximum retransmissions of SYN, or of SYN with ACK.
pub const SYN_RETRIES_MAX: u32 = 6;

/// Returns true once after the timer has expired, and clears it.
fn expired(timer: &mut Time, now: Time) -> bool {
    let over = *timer <= now;
    if over {
        *timer = Time::NEVER;
    }
    over
}

impl<R: Payload, S: Payload + Clone> Connection<R, S> {
    /// Time of the next call of [`handle_timeout`](Connection::handle_timeout).
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        let next = self.timers.next();
        (next != Time::NEVER).then_some(next)
    }

    /// Handles expired timers. Segments may be due afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.timers.next() > now {
            return;
        }
        if expired(&mut self.timers.time_wait, now) {
            return self.end(None);
        }
        self.due.ack |= expired(&mut self.timers.delayed_ack, now);
        if expired(&mut self.timers.reorder, now) {
            self.find_losses(now, self.outstanding(), false);
        }
        if expired(&mut self.timers.tail_probe, now) {
            self.due.tail_probe = self.outstanding() > 0;
        }
        if expired(&mut self.timers.persist, now) {
            self.persist(now);
        }
        if expired(&mut self.timers.keepalive, now) {
            self.ask(now);
        }
        if expired(&mut self.timers.retransmit, now) {
            self.retransmit(now);
        }
    }

    /// Handles the retransmission timeout (RFC 6298 §5).
    fn retransmit(&mut self, now: Time) {
        if self.give_up(now) {
            return;
        }
        self.stats.timeouts += 1;
        let first = self.rtt.backoffs() == 0;
        self.rtt.back_off();
        if matches!(self.state, State::SynSent | State::SynReceived) {
            if self.rtt.backoffs() > SYN_RETRIES_MAX {
                return self.end(Some(ConnectionError::TimedOut));
            }
            self.due.syn = true;
            return;
        }
        if first && self.phase != RecoveryPhase::Loss {
            self.congestion.timed_out(now, self.outstanding());
        }
        self.board.lose_all();
        self.phase = RecoveryPhase::Loss;
        self.recover_until = self.nxt;
        self.repeated_acks = 0;
        self.tail_probe = None;
        self.due.tail_probe = false;
        self.timers.reorder = Time::NEVER;
        self.timers.tail_probe = Time::NEVER;
        self.restart_retransmission(now);
    }

    /// Aborts the connection if the user timeout has expired.
    fn give_up(&mut self, now: Time) -> bool {
        let over = now.ns_since(self.progress_at) >= ns(self.config.user_timeout);
        if over {
            self.abort();
            self.error = Some(ConnectionError::TimedOut);
        }
        over
    }

    /// Handles the persist timer: the window is closed, or too small for the queued bytes
    /// (RFC 9293 §3.8.6.1).
    fn persist(&mut self, now: Time) {
        if self.window > 0 {
            self.due.little = true;
            return;
        }
        // A peer that answers may keep its window closed indefinitely.
        self.progress_at = self.progress_at.max(self.heard_at);
        if !self.give_up(now) {
            self.due.probe = true;
            self.rtt.back_off();
            self.timers.persist = now.after_ns(self.rtt.timeout_ns());
        }
    }

    fn ask(&mut self, now: Time) {
        let Some(idle) = self.config.keepalive else { return };
        let silent_ns = now.ns_since(self.heard_at);
        if silent_ns >= ns(idle).saturating_mul(KEEPALIVE_PROBES_MAX) {
            self.abort();
            self.error = Some(ConnectionError::TimedOut);
            return;
        }
        self.due.probe |= silent_ns >= ns(idle);
        self.keep_alive(now);
    }

    pub(super) fn keep_alive(&mut self, now: Time) {
        if let Some(idle) = self.config.keepalive {
            self.timers.keepalive = now + idle;
        }
    }

    pub(super) fn enter_time_wait(&mut self, now: Time) {
        self.state = State::TimeWait;
        self.timers.retransmit = Time::NEVER;
        self.timers.tail_probe = Time::NEVER;
        self.timers.persist = Time::NEVER;
        self.timers.keepalive = Time::NEVER;
        self.timers.time_wait = now + self.config.time_wait;
    }

    /// Sets the retransmission timer (RFC 6298 §5) and the tail loss probe timer (RFC 8985 §7.2)
    /// for bytes in flight.
    #[inline]
    pub(super) fn restart_retransmission(&mut self, now: Time) {
        self.timers.retransmit = now.after_ns(self.rtt.timeout_ns());
        self.restart_tail_probe(now);
    }

    #[inline]
    pub(super) fn restart_tail_probe(&mut self, now: Time) {
        let smoothed_ns = self.rtt.smoothed_ns();
        let probes = self.phase == RecoveryPhase::Open
            && self.agreed.sack
            && self.board.sacked() == 0
            && smoothed_ns > 0
            && self.tail_probe.is_none();
        let lonely = self.outstanding() <= self.mss;
        let wait_ns = 2 * smoothed_ns + if lonely { PEER_DELAY_NS } else { 2_000_000 };
        self.timers.tail_probe = match probes && now.after_ns(wait_ns) < self.timers.retransmit {
            true => now.after_ns(wait_ns),
            false => Time::NEVER,
        };
    }
}
