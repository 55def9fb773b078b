//! Connection establishment (RFC 9293 §3.5): active, passive, or simultaneous open.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use super::{Connection, ConnectionError, NegotiatedOptions, State};
use crate::config::{Config, MSS_BYTES_MIN};
use crate::options::TIMESTAMPS_BYTES;
use crate::payload::Payload;
use crate::receive::Receive;
use crate::recover::Scoreboard;
use crate::segment::{Header, Timestamps, Transmit};
use crate::time::Time;

/// MSS of a peer that does not send the option (RFC 9293 §3.7.1).
const MSS_BYTES_DEFAULT: u16 = 536;
/// The maximum unscaled window, as in segments with SYN.
const WINDOW_UNSCALED_MAX: u32 = 65_535;

impl<R: Payload, S: Payload + Clone> Connection<R, S> {
    /// Opens a connection whose initial sequence number is `isn`.
    pub fn connect(config: Config, now: Time, isn: SeqNumber) -> Connection<R, S> {
        Connection::new(config, now, isn, State::SynSent)
    }

    /// Accepts the connection of a segment with SYN, or returns `None` if the segment has no valid
    /// SYN. Payload of the SYN is ignored; the peer retransmits it.
    pub fn accept(
        config: Config,
        now: Time,
        isn: SeqNumber,
        syn: &Header,
    ) -> Option<Connection<R, S>> {
        if !syn.has(TcpFlags::SYN) || syn.has(TcpFlags::ACK) || syn.has(TcpFlags::RST) {
            return None;
        }
        let mut connection = Connection::new(config, now, isn, State::SynReceived);
        connection.meet(now, syn);
        Some(connection)
    }

    /// Returns true if the SYN of a new connection may replace this one, which has ended
    /// (RFC 6191 §2).
    pub(crate) fn may_be_replaced(&self, syn: &Header) -> bool {
        let later = match syn.timestamps.filter(|_| self.agreed.timestamps) {
            Some(timestamps) => (timestamps.value.wrapping_sub(self.peer_clock) as i32) > 0,
            None => syn.seq.since(self.receive.next()) > 0,
        };
        self.state == State::Closed || (self.state == State::TimeWait && later)
    }

    /// Processes the peer's SYN: determines the negotiated options.
    fn meet(&mut self, now: Time, syn: &Header) {
        self.irs = syn.seq;
        self.receive = Receive::new(syn.seq + 1, self.config.receive_buffer_bytes);
        self.acked = syn.seq + 1;
        self.edge = self.acked + self.config.receive_buffer_bytes.min(WINDOW_UNSCALED_MAX);
        self.agreed = NegotiatedOptions {
            timestamps: self.config.timestamps && syn.timestamps.is_some(),
            sack: self.config.sack && syn.sack_permitted,
            peer_scale: syn.window_scale.unwrap_or(0),
            own_scale: syn.window_scale.map_or(0, |_| self.config.window_scale()),
        };
        if let Some(timestamps) = syn.timestamps {
            self.peer_clock = timestamps.value;
            self.peer_clock_at = now;
        }
        let takes = syn.mss.unwrap_or(MSS_BYTES_DEFAULT).max(MSS_BYTES_MIN);
        self.mss = u32::from(takes.min(self.config.mss_bytes));
        if self.agreed.timestamps {
            self.mss -= TIMESTAMPS_BYTES as u32;
        }
        self.mss = self.mss.min(self.config.super_segment_bytes);
        self.board = Scoreboard::new(self.iss + 1, self.mss);
        self.congestion = self.config.algorithm.start(self.mss);
        self.window = u32::from(syn.window);
        self.window_max = self.window;
        self.window_from = (syn.seq, syn.ack);
        self.heard_at = now;
    }

    /// Processes a segment in SYN-SENT (RFC 9293 §3.10.7.3).
    pub(super) fn arrive_asked(&mut self, now: Time, header: &Header, payload: &mut Vec<R>) {
        let acks = header.has(TcpFlags::ACK);
        if acks && (header.ack != self.iss + 1 || self.nxt == self.iss) {
            // A segment of an old connection is answered with a reset.
            self.due.reset = self.due.reset.or(header.reset_answering(0));
            return;
        }
        if header.has(TcpFlags::RST) {
            if acks {
                self.end(Some(ConnectionError::Refused));
            }
            return;
        }
        if !header.has(TcpFlags::SYN) {
            return;
        }
        self.meet(now, header);
        if acks {
            self.establish(now, header);
            self.due.ack = true;
            self.take_bytes(header.seq + 1, header.has(TcpFlags::FIN), payload);
            self.after_bytes(now);
        } else {
            // Simultaneous open.
            self.state = State::SynReceived;
            self.due.syn = true;
        }
    }

    /// Processes the acknowledgement of SYN.
    pub(super) fn establish(&mut self, now: Time, header: &Header) {
        self.state = State::Established;
        self.una = header.ack;
        self.due.syn = false;
        if self.rtt.backoffs() == 0 {
            self.rtt.sample(now, now.ns_since(self.sent_at));
        }
        self.rtt.progress();
        self.timers.retransmit = Time::NEVER;
        self.progress_at = now;
        let scale = if header.has(TcpFlags::SYN) { 0 } else { self.agreed.peer_scale };
        self.window = u32::from(header.window) << scale;
        self.window_max = self.window_max.max(self.window);
        self.window_from = (header.seq, header.ack);
        self.keep_alive(now);
    }

    /// Builds SYN, or SYN with ACK.
    pub(super) fn transmit_syn(&mut self, now: Time) -> Transmit {
        let answers = self.state == State::SynReceived;
        let agreed = |wanted: bool, agreed: bool| wanted && (agreed || !answers);
        let header = Header {
            seq: self.iss,
            ack: if answers { self.receive.next() } else { SeqNumber(0) },
            flags: if answers { TcpFlags::SYN | TcpFlags::ACK } else { TcpFlags::SYN },
            window: self.config.receive_buffer_bytes.min(WINDOW_UNSCALED_MAX) as u16,
            mss: Some(self.config.mss_bytes),
            window_scale: agreed(true, self.agreed.own_scale > 0 || self.agreed.peer_scale > 0)
                .then(|| self.config.window_scale()),
            sack_permitted: agreed(self.config.sack, self.agreed.sack),
            timestamps: agreed(self.config.timestamps, self.agreed.timestamps).then(|| {
                let echo = if answers { self.peer_clock } else { 0 };
                Timestamps { value: self.clock(now), echo }
            }),
            ..Header::default()
        };
        self.due.syn = false;
        self.due.ack = false;
        self.nxt = self.iss + 1;
        self.sent_at = now;
        self.stats.segments_out += 1;
        self.timers.retransmit = now.after_ns(self.rtt.timeout_ns());
        Transmit {
            header,
            payload_bytes: 0,
            mss_bytes: self.mss as u16,
            retransmission: self.rtt.backoffs() > 0,
        }
    }
}
