//! Processing of a received segment (RFC 9293 §3.10.7).

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use super::{CHALLENGES_PER_S_MAX, Connection, ConnectionError, RecoveryPhase, State};
use crate::payload::Payload;
use crate::segment::{Header, Timestamps};
use crate::time::Time;

/// Time without a segment after which the peer's clock may have wrapped (RFC 7323 §5.5).
const CLOCK_NS_MAX: u64 = 24 * 24 * 3600 * 1_000_000_000;

impl<R: Payload, S: Payload + Clone> Connection<R, S> {
    /// Processes a segment of this connection with a correct checksum. `payload` holds its bytes
    /// in order, or those of several coalesced segments with equal flags, with the sequence number
    /// of the first and the other fields of the last. It is empty afterwards.
    #[inline]
    pub fn receive(&mut self, now: Time, header: &Header, payload: &mut Vec<R>) {
        self.stats.segments_in += 1;
        self.heard_at = now;
        let bytes = payload.iter().map(|part| part.bytes() as u32).sum();
        if self.is_predicted(header, bytes) && self.receive_predicted(now, header, bytes, payload) {
            self.stats.predicted_in += 1;
        } else {
            match self.state {
                State::Closed => self.answer_stray(header, bytes),
                State::SynSent => self.arrive_asked(now, header, payload),
                _ => self.arrive(now, header, bytes, payload),
            }
        }
        payload.clear();
    }

    /// Fast path: the segment is in order or acknowledges sent bytes, and needs no further
    /// decision.
    #[inline]
    fn is_predicted(&self, header: &Header, bytes: u32) -> bool {
        const EXPECTED: u8 = TcpFlags::ACK.0 | TcpFlags::PSH.0;
        let timely = match header.timestamps {
            Some(Timestamps { value, .. }) => {
                !self.agreed.timestamps || (value.wrapping_sub(self.peer_clock) as i32) >= 0
            }
            None => !self.agreed.timestamps,
        };
        self.state == State::Established
            && header.flags.0 & !TcpFlags::PSH.0 == EXPECTED & !TcpFlags::PSH.0
            && timely
            && header.sack.is_empty()
            && self.phase == RecoveryPhase::Open
            && self.board.is_clean()
            && self.tail_probe.is_none()
            && header.seq == self.receive.next()
            && self.receive.is_plain()
            && bytes as i32 <= self.edge.since(header.seq)
            && self.nxt.since(header.ack) >= 0
            && match header.ack.since(self.una) {
                0 => bytes > 0 || self.peer_window(header) != self.window,
                new => new > 0,
            }
    }

    #[inline]
    fn receive_predicted(
        &mut self,
        now: Time,
        header: &Header,
        bytes: u32,
        payload: &mut Vec<R>,
    ) -> bool {
        if bytes > 0 && !self.receive.append(bytes, payload) {
            return false;
        }
        self.note_clock(now, header);
        self.take_window(header);
        if header.ack != self.una {
            let delivered = self.board.acknowledge_clean(now, header.ack);
            self.acknowledged_new(now, header.ack, &delivered);
        }
        if bytes > 0 {
            self.received(now, bytes);
        }
        true
    }

    /// Processes a segment in any state but CLOSED and SYN-SENT.
    fn arrive(&mut self, now: Time, header: &Header, bytes: u32, payload: &mut Vec<R>) {
        if self.state == State::SynReceived && self.arrive_again(now, header) {
            return;
        }
        if !self.is_timely(now, header) || !self.is_acceptable(now, header, bytes) {
            return;
        }
        if header.has(TcpFlags::RST) {
            return self.arrive_reset(now, header);
        }
        if header.has(TcpFlags::SYN) {
            return self.challenge(now);
        }
        if !header.has(TcpFlags::ACK) || !self.take_ack(now, header, bytes) {
            return;
        }
        self.note_clock(now, header);
        match self.state {
            State::Established | State::FinWait1 | State::FinWait2 => {
                let fin = header.has(TcpFlags::FIN);
                if bytes > 0 || fin {
                    let before = self.receive.next();
                    let in_order = self.take_bytes(header.seq, fin, payload);
                    self.received(now, in_order);
                    self.due.ack |= self.receive.next() == before;
                }
            }
            State::TimeWait if header.has(TcpFlags::FIN) => {
                self.due.ack = true;
                self.enter_time_wait(now);
            }
            _ => {}
        }
        self.after_bytes(now);
    }

    /// Handles a repeated SYN: our answer was lost, or both ends opened at once and this is the
    /// answer.
    fn arrive_again(&mut self, now: Time, header: &Header) -> bool {
        let again =
            header.has(TcpFlags::SYN) && !header.has(TcpFlags::RST) && header.seq == self.irs;
        if again && !header.has(TcpFlags::ACK) {
            self.due.syn = true;
        } else if again && header.ack == self.iss + 1 && self.nxt == header.ack {
            self.establish(now, header);
            self.due.ack = true;
        }
        again
    }

    /// PAWS check (RFC 7323 §5.3).
    fn is_timely(&mut self, now: Time, header: &Header) -> bool {
        if !self.agreed.timestamps || header.has(TcpFlags::RST) {
            return true;
        }
        let Some(timestamps) = header.timestamps else { return false };
        let is_old = (timestamps.value.wrapping_sub(self.peer_clock) as i32) < 0;
        if is_old && now.ns_since(self.peer_clock_at) < CLOCK_NS_MAX {
            self.stats.old_timestamps_in += 1;
            self.due.ack = true;
            return false;
        }
        if is_old {
            self.peer_clock = timestamps.value;
        }
        true
    }

    /// Returns true if the segment is acceptable (RFC 9293 §3.4).
    fn is_acceptable(&mut self, now: Time, header: &Header, bytes: u32) -> bool {
        let next = self.receive.next();
        let window = self.edge.since(next).max(0);
        let from = header.seq.since(next);
        let length = (bytes + header.control_bytes()) as i32;
        let acceptable = match (length, window) {
            // The acknowledgement is used even if the bytes do not fit into the window.
            (_, 0) => from == 0,
            (0, _) => (0..window).contains(&from),
            _ => from < window && from + length > 0,
        };
        if !acceptable {
            self.stats.unacceptable_in += 1;
            if header.has(TcpFlags::RST) {
                return false;
            }
            if bytes > 0 && from < 0 {
                self.receive.note_old(header.seq, header.seq + bytes);
            }
            match (length, self.state) {
                (0, _) => self.challenge(now),
                (_, State::TimeWait) => {
                    self.due.ack = true;
                    self.enter_time_wait(now);
                }
                _ => self.due.ack = true,
            }
        }
        acceptable
    }

    /// Handles a reset (RFC 5961 §3.2); in TIME-WAIT it is ignored (RFC 1337).
    fn arrive_reset(&mut self, now: Time, header: &Header) {
        if self.state == State::TimeWait {
            return;
        }
        if header.seq != self.receive.next() {
            return self.challenge(now);
        }
        let error = match self.state {
            State::SynReceived => ConnectionError::Refused,
            _ => ConnectionError::Reset,
        };
        self.end(Some(error));
    }

    /// Sends a challenge acknowledgement: a peer that has lost the connection answers it with a
    /// reset, and it is of no use to an attacker (RFC 5961).
    pub(super) fn challenge(&mut self, now: Time) {
        const SECOND_NS: u64 = 1_000_000_000;
        if now.ns_since(self.challenges.0) >= SECOND_NS {
            self.challenges = (now, 0);
        }
        if self.challenges.1 < CHALLENGES_PER_S_MAX {
            self.challenges.1 += 1;
            self.stats.challenges_out += 1;
            self.due.ack = true;
        }
    }

    fn answer_stray(&mut self, header: &Header, bytes: u32) {
        self.due.reset = self.due.reset.or(header.reset_answering(bytes as usize));
    }

    /// Records the peer's timestamp, from a segment not after the last acknowledgement (RFC 7323
    /// §4.3).
    #[inline]
    fn note_clock(&mut self, now: Time, header: &Header) {
        let Some(Timestamps { value, .. }) = header.timestamps else { return };
        let newer = value.wrapping_sub(self.peer_clock) as i32 >= 0;
        if newer && header.seq.since(self.acked) <= 0 {
            self.peer_clock = value;
            self.peer_clock_at = now;
        }
    }

    /// Processes bytes from `seq` on. Returns the number of bytes that became readable.
    pub(super) fn take_bytes(&mut self, seq: SeqNumber, fin: bool, payload: &mut Vec<R>) -> u32 {
        let arrived = self.receive.insert(seq, self.edge, payload, fin);
        if arrived.urgent {
            self.stats.out_of_order_in += 1;
            self.due.ack = true;
        }
        self.stats.refused_pieces += u64::from(arrived.refused);
        self.due.ack |= arrived.refused > 0;
        arrived.in_order
    }

    /// Schedules the acknowledgement of in-order bytes (RFC 5681 §4.2): immediately for two full
    /// segments, otherwise delayed.
    #[inline]
    fn received(&mut self, now: Time, bytes: u32) {
        self.stats.bytes_in += u64::from(bytes);
        self.unacked_bytes += bytes;
        self.largest_in = self.largest_in.max(bytes.min(u32::from(self.config.mss_bytes)));
        if self.unacked_bytes >= 2 * self.largest_in || self.quick_acks > 0 {
            self.quick_acks = self.quick_acks.saturating_sub(1);
            self.due.ack = true;
        } else if self.timers.delayed_ack == Time::NEVER {
            self.timers.delayed_ack = now + self.config.delayed_ack;
        }
        if self.config.keepalive.is_some() {
            self.keep_alive(now);
        }
    }

    /// State changes after the peer's FIN, once all earlier bytes have arrived.
    pub(super) fn after_bytes(&mut self, now: Time) {
        if !self.receive.finished() {
            return;
        }
        let acknowledged = self.fin_sent() && self.una == self.nxt;
        match self.state {
            State::Established | State::SynReceived => self.state = State::CloseWait,
            State::FinWait1 if !acknowledged => self.state = State::Closing,
            State::FinWait1 | State::FinWait2 => self.enter_time_wait(now),
            _ => return,
        }
        self.due.ack = true;
    }
}
