//! What happens when nothing does.

use super::{Connection, ConnectionError, Phase, State};
use crate::payload::Payload;
use crate::time::{Time, ns};

/// Probes of a silent peer before it is taken for dead.
const KEEPALIVE_PROBES_MAX: u64 = 8;
/// Longest that a peer lets a single segment wait for its acknowledgement (RFC 8985 §7.2,
/// TLP.max_ack_delay).
const PEER_DELAY_NS: u64 = 200_000_000;
/// Most requests for a connection, or answers to one, that are sent.
pub const SYN_RETRIES_MAX: u32 = 6;

/// When something is to happen; never where it is not to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timers {
    pub(super) retransmit: Time,
    pub(super) tail_probe: Time,
    pub(super) reorder: Time,
    pub(super) persist: Time,
    pub(super) delayed_ack: Time,
    pub(super) keepalive: Time,
    pub(super) time_wait: Time,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            retransmit: Time::NEVER,
            tail_probe: Time::NEVER,
            reorder: Time::NEVER,
            persist: Time::NEVER,
            delayed_ack: Time::NEVER,
            keepalive: Time::NEVER,
            time_wait: Time::NEVER,
        }
    }
}

impl Timers {
    #[inline]
    fn next(&self) -> Time {
        self.retransmit
            .min(self.tail_probe)
            .min(self.reorder)
            .min(self.persist)
            .min(self.delayed_ack)
            .min(self.keepalive)
            .min(self.time_wait)
    }
}

/// True once: the timer was set, and is over.
fn expired(timer: &mut Time, now: Time) -> bool {
    let over = *timer <= now;
    if over {
        *timer = Time::NEVER;
    }
    over
}

impl<R: Payload, S: Payload + Clone> Connection<R, S> {
    /// When [`handle_timeout`](Connection::handle_timeout) is to be called, if nothing happens before.
    #[inline]
    pub fn poll_timeout(&self) -> Option<Time> {
        let next = self.timers.next();
        (next != Time::NEVER).then_some(next)
    }

    /// Does what is due. Segments may have to leave after it.
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

    /// RFC 6298 §5.
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
        if first && self.phase != Phase::Loss {
            self.congestion.timed_out(now, self.outstanding());
        }
        self.board.lose_all();
        self.phase = Phase::Loss;
        self.recover_until = self.nxt;
        self.repeated_acks = 0;
        self.tail_probe = None;
        self.due.tail_probe = false;
        self.timers.reorder = Time::NEVER;
        self.timers.tail_probe = Time::NEVER;
        self.restart_retransmission(now);
    }

    /// The peer has not answered for too long.
    fn give_up(&mut self, now: Time) -> bool {
        let over = now.ns_since(self.progress_at) >= ns(self.config.user_timeout);
        if over {
            self.abort();
            self.error = Some(ConnectionError::TimedOut);
        }
        over
    }

    /// The window is closed, or too small for what waits (RFC 9293 §3.8.6.1).
    fn persist(&mut self, now: Time) {
        if self.window > 0 {
            self.due.little = true;
            return;
        }
        // A peer that answers may keep its window closed as long as it likes.
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

    /// Something is on its way: when it is sent again (RFC 6298 §5), and when its tail is asked for
    /// (RFC 8985 §7.2).
    #[inline]
    pub(super) fn restart_retransmission(&mut self, now: Time) {
        self.timers.retransmit = now.after_ns(self.rtt.timeout_ns());
        self.restart_tail_probe(now);
    }

    #[inline]
    pub(super) fn restart_tail_probe(&mut self, now: Time) {
        let smoothed_ns = self.rtt.smoothed_ns();
        let probes = self.phase == Phase::Open
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
