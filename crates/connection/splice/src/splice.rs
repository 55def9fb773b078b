//! One response that bypasses the balancer's sockets.

use thiserror::Error;
use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;

use crate::client::ClientFlow;
use crate::clock::{CLOCK_MARGIN_MS, is_after};
use crate::head::Head;
use crate::pooled::{ServerFlow, Spliced};
use crate::rule::Rule;
pub use crate::segment::LENGTH_BYTES_MAX;
use crate::segment::{Segment, Timestamps, earlier, is_plain, later};

/// Bytes of the request that the server may not have acknowledged when it sends its response. More shows
/// that the sender does not know the connection (RFC 5961 §5.2).
const ACK_BEHIND_BYTES_MAX: u32 = 1 << 16;

/// The reason why a response goes through the sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Unfit {
    /// The server may already send more than the client has room for.
    #[error("the client's window is smaller than the one that the server was granted")]
    Window,
    /// The server may still send bytes to the balancer, which direct ones would overtake.
    #[error("the server was granted more bytes than it has sent")]
    Granted,
    /// The client's connection uses timestamps, and the server's does not.
    #[error("the client's connection uses timestamps, the server's does not")]
    Timestamps,
    /// The socket lacks bytes that were given to it, or has bytes behind a gap.
    #[error("the server's bytes did not arrive in order")]
    Gap,
    /// Nothing of the response is left.
    #[error("the response is relayed already")]
    Over,
    /// The response is longer than [`LENGTH_BYTES_MAX`].
    #[error("more than {LENGTH_BYTES_MAX} bytes of the response are left")]
    Long,
    /// The caller knows the lengths of segments: those of the server are too long for the client.
    #[error("the client takes shorter segments than the server sends")]
    Segments,
}

/// A response of which bytes from a number on may go to the client directly. It exists at the
/// balancer, between [`Splice::begin`] and [`Splice::end`].
#[derive(Clone, Copy, Debug)]
pub struct Splice {
    /// The server's number of the first byte that may bypass.
    pub(crate) first: SeqNumber,
    /// The server's number behind the last byte of the response.
    pub(crate) end: Option<SeqNumber>,
    /// The client's number of a byte less the server's.
    pub(crate) delta: u32,
    /// The client has acknowledged the whole response.
    pub(crate) is_complete: bool,
    /// The server lacks an acknowledgement: it came with the client's bytes, or the client's window
    /// is larger than the one that the server was granted.
    pub(crate) owes_ack: bool,
    /// The response's head is not known yet. Nothing is acknowledged meanwhile: the server would
    /// forget bytes that the balancer may not have seen.
    pub(crate) awaits_head: bool,
    /// The response's head, if it was awaited and a program has read it: the client gets it past the
    /// sockets, and their application learns of it here.
    pub(crate) head: Option<Head>,
    /// The balancer's clock in the client's connection less the server's clock, ms; 0: timestamps are
    /// not used.
    pub(crate) clock_offset: u32,
    /// Bytes that came here and were sent to the client.
    pub(crate) forwarded_bytes: u32,
    /// Bytes that the request grants of an early response, since no host grants them behind its head; 0:
    /// the server's host does, or the head was relayed.
    pub(crate) early_bytes: u32,
    /// The acknowledgement in direct segments.
    pub(crate) rule_ack: SeqNumber,
    /// The server has ended its connection; the socket may not know it yet.
    pub(crate) has_fin: bool,
    /// In place of the head there is the header of a sealed response.
    pub(crate) is_sealed: bool,
}

/// Where a segment of a server goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FromServer {
    /// Nowhere.
    Dropped,
    /// To the server's socket.
    Socket(Segment),
    /// To the client: its host has not sent it there, since it has no rule (yet, or any more).
    Client(Segment),
    /// The head of an early response.
    Head {
        /// To the client, unless its host has sent it there.
        client: Option<Segment>,
        /// To the server's socket, without the payload: it acknowledges the request.
        socket: Segment,
    },
}

/// Segments for a client's segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrived {
    /// For the client's socket.
    pub socket: Option<Segment>,
    /// For the server.
    pub server: Option<Segment>,
    /// For the client: a reset.
    pub client: Option<Segment>,
}

impl Splice {
    /// Begins a splice, from the byte on that the balancer's application has not taken from the
    /// server's socket: `next` is the socket's number of it, and the client's number of the same
    /// byte is the one behind all bytes that the application has written to the client's socket,
    /// `written_end` in the socket's numbers.
    ///
    /// `socket_next` is the next byte that the server's socket expects from the network.
    ///
    /// # Errors
    /// The reason why the response must go through the sockets; nothing has changed.
    pub fn begin(
        client: &mut ClientFlow,
        server: &mut ServerFlow,
        at: Start,
        now_ms: u64,
    ) -> Result<(Splice, Rule), Unfit> {
        if at.socket_next != server.socket_next() {
            return Err(Unfit::Gap);
        }
        match at.length_bytes.or(at.expected_bytes) {
            Some(0) => return Err(Unfit::Over),
            Some(bytes) if bytes > LENGTH_BYTES_MAX => return Err(Unfit::Long),
            _ => {}
        }
        let first = at.next + server.bypassed;
        let written = at.written_end + client.bypassed;
        let delta = written.0.wrapping_sub(first.0);
        // A request that is not sent yet takes the client's window to the server: nothing is owed.
        let is_early = server.request_end.before(at.request_end);
        let granted = u32::try_from(server.told.since(server.passed_end)).unwrap_or(0);
        if !is_early && at.segment_bytes > 0 && granted >= at.segment_bytes {
            return Err(Unfit::Granted);
        }
        // A request that is sent while bytes wait for the client's window could not take the window of
        // the time behind them.
        let sent_end = client.sent_by_socket(written);
        let is_waiting = at.expected_bytes.is_some() && sent_end.before(written);
        if is_waiting || client.edge().before(server.granted + delta) {
            return Err(Unfit::Window);
        }
        let clock = match client.clock.is_used() {
            true => {
                let theirs = server.peer_clock.now(now_ms).ok_or(Unfit::Timestamps)?;
                // Values of the server's host are ahead of those before.
                let ours = client.clock.now(now_ms).wrapping_add(CLOCK_MARGIN_MS);
                Some((ours.wrapping_sub(theirs), client.clock.peer()))
            }
            false => None,
        };
        let end = at.length_bytes.map(|bytes| first + bytes);
        let awaits_head = at.expected_bytes.is_some();
        let rule = Rule {
            first,
            end,
            request_end: at.request_end,
            delta,
            // The socket may have more than it has acknowledged.
            ack: later(client.received, at.received),
            window: client.window,
            clock,
            awaits_head,
        };
        client.sent_end = sent_end;
        let splice = Splice {
            first,
            end,
            delta,
            is_complete: false,
            // A late rule finds a server that waits for a window: the next acknowledgement has it.
            owes_ack: !is_early,
            awaits_head,
            head: None,
            clock_offset: clock.unwrap_or_default().0,
            forwarded_bytes: 0,
            early_bytes: at.expected_bytes.filter(|_| at.is_judged_here).unwrap_or_default(),
            rule_ack: rule.ack,
            has_fin: false,
            is_sealed: awaits_head && at.is_sealed,
        };
        Ok((splice, rule))
    }

    /// Sets the response's end, `length_bytes` behind the first byte of the splice. Its head is
    /// known from here on; [`Splice::owed_ack`] has what was kept from the server meanwhile.
    pub fn set_length(&mut self, client: &ClientFlow, length_bytes: u32) {
        self.learn_length(client, length_bytes, false);
    }

    /// `is_granted`: the server may send the response already.
    fn learn_length(&mut self, client: &ClientFlow, length_bytes: u32, is_granted: bool) {
        let end = self.first + length_bytes;
        self.end = Some(end);
        self.owes_ack |= self.awaits_head && !is_granted;
        self.awaits_head = false;
        self.is_complete |= !client.acked.before(end + self.delta);
    }

    /// Returns the acknowledgement that lets the server send a response whose head is fit: as much as
    /// the client has room for, and as is expected, since what is granted beyond the response stays
    /// for the next one. The server's host gives it to the server when that head leaves.
    pub fn grant_early(
        &self,
        client: &ClientFlow,
        server: &mut ServerFlow,
        expected_bytes: u32,
        now_ms: u64,
    ) -> Segment {
        let expected_end = self.first + expected_bytes + server.limit_bytes;
        let edge = earlier(client.edge() - self.delta, expected_end);
        let window = server.window_to(edge, self.first);
        server.grant(self.first, window);
        server.ack(self.first, window, now_ms)
    }

    /// Returns true if the splice began early, and the head is not known yet.
    pub fn awaits_head(&self) -> bool {
        self.awaits_head
    }

    /// Returns the head that went past the sockets: see [`Splice::receive_head`].
    pub fn head(&self) -> Option<Head> {
        self.head
    }

    /// Returns true if the client has acknowledged the whole response.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// Translates a segment of the client.
    pub fn receive_from_client(
        &mut self,
        client: &mut ClientFlow,
        server: &mut ServerFlow,
        segment: &Segment,
        now_ms: u64,
    ) -> Arrived {
        // A reset for bytes that came after the client's end, or the SYN of another connection. The socket
        // judges its number, which is not translated. That of a reset is what the bytes acknowledged: the
        // socket may have more, at least the client's FIN.
        if segment.has_any(TcpFlags::RST | TcpFlags::SYN) && !segment.has_any(TcpFlags::ACK) {
            client.is_reset &= !segment.has_any(TcpFlags::SYN);
            let is_exact = segment.has_any(TcpFlags::RST) && segment.seq == self.rule_ack;
            let seq = if is_exact { client.received } else { segment.seq };
            return Arrived { socket: Some(Segment { seq, ..*segment }), ..Arrived::default() };
        }
        if let Some(reset) = client.reset_again(segment) {
            return Arrived { client: Some(reset), ..Arrived::default() };
        }
        // An acknowledgement of another host's bytes is hidden from the socket, so it must be judged
        // here.
        if !client.is_acceptable(segment) {
            return Arrived::default();
        }
        let is_newest = client.note(segment);
        client.clock.received(segment.timestamps);
        let direct = self.first + self.delta;
        client.sent_end = client.sent_by_socket(direct);
        let sent_end = client.sent_end;
        let is_for_socket = !segment.is_pure_ack()
            || !sent_end.before(segment.ack)
            || client.socket_acked.before(sent_end)
            || !is_newest;
        let socket = is_for_socket.then(|| client.for_socket(segment));
        if self.end.is_some_and(|end| !client.acked.before(end + self.delta)) {
            self.is_complete = true;
        }
        let ack = later(server.acked, later(segment.ack, direct) - self.delta);
        // The client gets bytes that the server's socket has from here: for the server they are no gap.
        let relayed = server.passed_end + self.delta;
        let lacks_relayed = direct.before(relayed) && segment.ack.before(relayed);
        let sack = match lacks_relayed {
            true => crate::segment::Sack::default(),
            false => segment.sack.from(later(direct, segment.ack)).less(self.delta),
        };
        // Also an equal acknowledgement: it has another window, or tells of a loss.
        let is_news = !segment.ack.before(direct) || !sack.is_empty();
        if !segment.is_pure_ack() {
            self.owes_ack |= server.acked.before(ack);
            return Arrived { socket, ..Arrived::default() };
        }
        if !is_news || !is_newest {
            return Arrived { socket, ..Arrived::default() };
        }
        if self.awaits_head {
            self.owes_ack = true;
            return Arrived { socket, ..Arrived::default() };
        }
        self.owes_ack = false;
        let server = Some(self.ack_for(client, server, ack, sack, now_ms));
        Arrived { socket, server, client: None }
    }

    /// Returns the acknowledgement that the server lacks, if there is one: it came with bytes of the
    /// client, or the splice began late. Call it after the client's segment was given to the socket,
    /// and after the rule was sent. If the socket has not sent all bytes before the splice yet, the
    /// client's acknowledgement of them has the window.
    pub fn owed_ack(
        &mut self,
        client: &ClientFlow,
        server: &mut ServerFlow,
        now_ms: u64,
    ) -> Option<Segment> {
        if !self.owes_ack || self.awaits_head || !self.is_ahead(client) {
            return None;
        }
        self.owes_ack = false;
        let ack = later(server.acked, client.acked - self.delta);
        Some(self.ack_for(client, server, ack, crate::segment::Sack::default(), now_ms))
    }

    /// Returns true if the client's socket has sent all bytes before the splice.
    fn is_ahead(&self, client: &ClientFlow) -> bool {
        !client.sent_end.before(self.first + self.delta)
    }

    /// Returns the number behind the last byte that the server may send. It gets the client's window
    /// when the socket has sent what is before: direct bytes would overtake it.
    fn edge(&self, client: &ClientFlow, server: &ServerFlow) -> SeqNumber {
        let edge = client.edge() - self.delta;
        if !self.is_ahead(client) {
            return earlier(edge, server.granted);
        }
        if self.awaits_head {
            // If the head is not fit, all of it comes to the socket. With a limit it is little, so that
            // the first segment is short: the server's host grants the rest. If the head is judged here,
            // it is what is expected, since what is granted beyond the response stays for the next one.
            let edge = earlier(edge, server.socket_edge);
            return match (server.limit_bytes, self.early_bytes) {
                (0, _) => edge,
                (limit_bytes, bytes) => earlier(edge, self.first + bytes + limit_bytes),
            };
        }
        // A window cannot become smaller again: the next response has the limit.
        match self.end.filter(|_| server.limit_bytes > 0) {
            Some(end) => earlier(edge, end + server.limit_bytes),
            None => edge,
        }
    }

    fn ack_for(
        &self,
        client: &ClientFlow,
        server: &mut ServerFlow,
        ack: SeqNumber,
        sack: crate::segment::Sack,
        now_ms: u64,
    ) -> Segment {
        let window = server.window_to(self.edge(client, server), ack);
        server.grant(ack, window);
        let echo = self.echo(client, server, now_ms);
        let made = server.ack(ack, window, now_ms);
        let timestamps = made.timestamps.map(|times| times.with_newer_echo(echo));
        Segment { sack, timestamps, ..made }
    }

    /// Returns the newest value of the server's clock that has arrived: segments that went to the client
    /// directly were seen by nobody here, but the client echoes their values. An older echo would make a
    /// retransmission seem needless to the server (RFC 3522), and its round trips long.
    fn echo(&self, client: &ClientFlow, server: &ServerFlow, now_ms: u64) -> Option<u32> {
        let echoed = client.clock.echoed()?.wrapping_sub(self.clock_offset);
        let theirs = server.peer_clock.now(now_ms)?;
        Some(if is_after(echoed, theirs) { theirs } else { echoed })
    }

    /// Translates a segment of the client's socket. None is kept during a splice.
    pub fn send_to_client(
        &self,
        client: &mut ClientFlow,
        segment: &Segment,
        now_ms: u64,
    ) -> Option<Segment> {
        let is_ahead = self.is_ahead(client);
        client.for_client(segment, true, is_ahead, now_ms)
    }

    /// Translates a segment that the server has sent to the balancer.
    pub fn receive_from_server(
        &mut self,
        client: &ClientFlow,
        server: &mut ServerFlow,
        segment: &Segment,
        now_ms: u64,
    ) -> FromServer {
        let is_old = self.is_complete && segment.payload_bytes > 0;
        if is_old && self.end.is_some_and(|end| segment.seq.before(end)) {
            return FromServer::Dropped;
        }
        // The client has been sent the bytes of a copy. Only a socket that was given the beginning of the
        // head has to have the rest.
        let is_copied = segment.is_copy && segment.payload_bytes > 0;
        if is_copied && !self.awaits_head && !segment.seq.before(self.first) {
            return FromServer::Dropped;
        }
        self.has_fin |= segment.has_any(TcpFlags::FIN)
            && !segment.seq.before(self.first)
            && server.request_end.0.wrapping_sub(segment.ack.0) <= ACK_BEHIND_BYTES_MAX;
        if self.is_past_socket(server, segment) {
            if segment.payload_bytes == 0 && segment.has_any(TcpFlags::FIN) {
                // Behind what the socket has, it would wait there for bytes that went to the client.
                return FromServer::Socket(Segment { seq: server.socket_next(), ..*segment });
            }
            if self.is_for_client(client, segment) {
                return FromServer::Client(self.forward(client, server, segment));
            }
        }
        match server.for_socket(segment, true, now_ms) {
            Some(passed) => FromServer::Socket(passed),
            None => FromServer::Dropped,
        }
    }

    /// Takes the first segment of a response that began early, with a fit head at its start, or the copy
    /// of that head from the server's host. The payload is not for the socket: its application learns of the
    /// response by [`Splice::head`]. `None`: the segment is one for [`Splice::receive_from_server`].
    pub fn receive_head(
        &mut self,
        client: &ClientFlow,
        server: &mut ServerFlow,
        segment: &Segment,
        head: Head,
        now_ms: u64,
    ) -> Option<FromServer> {
        let has_head = match segment.is_copy {
            true => segment.payload_bytes == head.head_bytes,
            false => {
                (head.head_bytes..=head.response_bytes()).contains(&segment.payload_bytes)
                    && self.is_for_client(client, segment)
            }
        };
        if !has_head {
            return None;
        }
        let is_first = self.awaits_head
            && segment.seq == self.first
            && server.passed_end == self.first
            && is_plain(TcpFlags(segment.flags.0 & !TcpFlags::FIN.0))
            && server.request_end.0.wrapping_sub(segment.ack.0) <= ACK_BEHIND_BYTES_MAX
            && !server.socket_edge.before(segment.end());
        if !is_first {
            return None;
        }
        let flags = TcpFlags(segment.flags.0 & !TcpFlags::FIN.0);
        let ack = Segment { payload_bytes: 0, is_copy: false, flags, ..*segment };
        let socket = server.for_socket(&ack, true, now_ms)?;
        self.head = Some(head);
        self.has_fin |= segment.has_any(TcpFlags::FIN);
        // The server's host has granted the rest behind a copied head; the request all of it otherwise.
        let is_granted = segment.is_copy || self.early_bytes > 0;
        self.learn_length(client, head.response_bytes(), is_granted);
        let shown = (!segment.is_copy).then(|| self.forward(client, server, segment));
        Some(FromServer::Head { client: shown, socket })
    }

    /// Takes the header of a sealed response that began early: a segment of its own, which goes to the
    /// server's socket. The `records_bytes` bytes behind it are the client's. Returns the segment for the
    /// socket; `None`: the segment is one for [`Splice::receive_from_server`].
    pub fn receive_header(
        &mut self,
        client: &ClientFlow,
        server: &mut ServerFlow,
        segment: &Segment,
        records_bytes: u32,
        now_ms: u64,
    ) -> Option<Segment> {
        let is_first = self.awaits_head
            && self.is_sealed
            && !segment.is_copy
            && segment.payload_bytes > 0
            && segment.seq == self.first
            && server.passed_end == self.first
            && is_plain(segment.flags)
            && server.request_end.0.wrapping_sub(segment.ack.0) <= ACK_BEHIND_BYTES_MAX
            && !server.socket_edge.before(segment.end());
        if !is_first {
            return None;
        }
        let socket = server.for_socket(segment, true, now_ms)?;
        self.first = segment.end();
        self.delta = self.delta.wrapping_sub(segment.payload_bytes);
        self.learn_length(client, records_bytes, self.early_bytes > 0);
        Some(socket)
    }

    /// Returns true if the segment is of the response, and ends behind what the socket has of it.
    fn is_past_socket(&self, server: &ServerFlow, segment: &Segment) -> bool {
        let Some(end) = self.end.filter(|_| !self.awaits_head) else { return false };
        let is_last_fin = segment.payload_bytes == 0 && segment.seq == end;
        is_plain(TcpFlags(segment.flags.0 & !TcpFlags::FIN.0))
            && !segment.seq.before(self.first)
            && server.passed_end.before(segment.end())
            && !end.before(segment.end())
            && !is_last_fin
            && server.request_end.0.wrapping_sub(segment.ack.0) <= ACK_BEHIND_BYTES_MAX
    }

    /// Returns true if the segment has bytes that the client can have as they are.
    fn is_for_client(&self, client: &ClientFlow, segment: &Segment) -> bool {
        segment.payload_bytes > 0
            && !segment.is_copy
            && segment.sack.is_empty()
            && (segment.timestamps.is_some() || !client.clock.is_used())
    }

    /// Makes a segment of the server the client's, as its host does with a [`Rule`].
    fn forward(
        &mut self,
        client: &ClientFlow,
        server: &mut ServerFlow,
        segment: &Segment,
    ) -> Segment {
        server.clock.received(segment.timestamps);
        self.forwarded_bytes = self.forwarded_bytes.wrapping_add(segment.payload_bytes);
        Segment {
            seq: segment.seq + self.delta,
            // The socket had the whole request, and may not have acknowledged it yet.
            ack: later(client.received, self.rule_ack),
            window: client.window,
            // The server sends it again, when the socket can take it.
            flags: TcpFlags(segment.flags.0 & !TcpFlags::FIN.0),
            timestamps: segment.timestamps.filter(|_| client.clock.is_used()).map(|own| {
                Timestamps {
                    value: own.value.wrapping_add(self.clock_offset),
                    echo: client.clock.peer(),
                }
            }),
            ..*segment
        }
    }

    /// Returns the number of bytes that came here and were sent to the client.
    pub fn forwarded_bytes(&self) -> u32 {
        self.forwarded_bytes
    }

    /// Translates a segment of the server's socket.
    pub fn send_to_server(
        &self,
        client: &ClientFlow,
        server: &mut ServerFlow,
        segment: &Segment,
        now_ms: u64,
    ) -> Segment {
        server.note_room(segment);
        let edge = self.edge(client, server);
        let acked = later(self.first, client.acked - self.delta);
        let acked = earlier(acked, self.end.unwrap_or(acked));
        let acked = if self.awaits_head { self.first } else { acked };
        let echo = self.echo(client, server, now_ms);
        server.for_server(segment, Some(Spliced { edge, acked, echo }), now_ms)
    }

    /// Ends a complete splice: both sockets skip the bytes that bypassed them. The application has
    /// taken and discarded all bytes of the response from the server's socket, and the client has
    /// acknowledged all bytes that it wrote: `socket_next` is the next byte that the server's
    /// socket expects, `written_end` is behind the last byte written to the client's socket, both
    /// in the sockets' numbers.
    ///
    /// # Errors
    /// The splice, if it is not complete, or the client's socket has bytes under way.
    pub fn end(
        self,
        client: &mut ClientFlow,
        server: &mut ServerFlow,
        socket_next: SeqNumber,
        written_end: SeqNumber,
        now_ms: u64,
    ) -> Result<Ended, Splice> {
        let Some(end) = self.end.filter(|_| self.is_complete) else { return Err(self) };
        let written = written_end + client.bypassed;
        if written != client.sent_end {
            return Err(self);
        }
        // A socket can refuse a segment that it was given (RFC 7323 §5.3, memory). The server will
        // not send these bytes again, so the socket's later numbers are unknown.
        let is_reusable = socket_next == server.socket_next() && !self.has_fin;
        let is_owed = server.acked.before(end);
        let owed = is_owed
            .then(|| self.ack_for(client, server, end, crate::segment::Sack::default(), now_ms));
        let at_client = end + self.delta;
        client.bypassed = client.bypassed.wrapping_add(at_client.0.wrapping_sub(written.0));
        (client.sent_end, client.socket_acked) = (at_client, at_client);
        client.clock.advance(2 * CLOCK_MARGIN_MS);
        server.bypassed = server.bypassed.wrapping_add(end.0.wrapping_sub(server.passed_end.0));
        server.passed_end = end;
        // Until the next request, too: without a window the server could not even end its connection.
        server.limit_end = end + server.limit_bytes;
        Ok(Ended { ack: owed, is_reusable })
    }

    /// Ends a splice without the sockets, if nothing else is left to do: the client has acknowledged
    /// everything, the server has got that acknowledgement, and the server's socket was given nothing
    /// since the beginning. Its connection can take another request.
    ///
    /// # Errors
    /// The splice, if it has to go on, or to end with [`Splice::end`].
    pub fn end_if_over(
        self,
        client: &mut ClientFlow,
        server: &mut ServerFlow,
        now_ms: u64,
    ) -> Result<(), Splice> {
        let Some(end) = self.end.filter(|_| self.is_complete) else { return Err(self) };
        let is_silent = client.sent_end == self.first + self.delta;
        if server.passed_end != self.first || !is_silent || self.has_fin || server.acked.before(end)
        {
            return Err(self);
        }
        let (socket_next, written_end) = (server.socket_next(), client.sent_end - client.bypassed);
        self.end(client, server, socket_next, written_end, now_ms).map(drop)
    }
}

/// The end of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The acknowledgement that the server lacks.
    pub ack: Option<Segment>,
    /// The server's connection can take another request. Otherwise it must be closed.
    pub is_reusable: bool,
}

/// Where a splice starts, in the numbers of the balancer's sockets.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// Next byte that the application takes from the server's socket.
    pub next: SeqNumber,
    /// Next byte that the server's socket expects from the network.
    pub socket_next: SeqNumber,
    /// Behind the last byte that the application has written to the client's socket.
    pub written_end: SeqNumber,
    /// Next byte that the client's socket expects from the network.
    pub received: SeqNumber,
    /// Behind the last byte of the request, sent or not.
    pub request_end: SeqNumber,
    /// Length of the server's segments. A server sends nothing if it was granted less. 0: bytes that
    /// are under way do not matter.
    pub segment_bytes: u32,
    /// Bytes of the response from `next` on, if they are known.
    pub length_bytes: Option<u32>,
    /// The response has not begun: bytes that are expected, head included. The server's host looks
    /// at its head, and sends it to the client only if it is fit ([`crate::head::fit`]).
    pub expected_bytes: Option<u32>,
    /// The server's host takes no rule: the balancer looks at that head when it comes.
    pub is_judged_here: bool,
    /// In place of a head, the response begins with the header of a sealed one.
    pub is_sealed: bool,
}

/// Translates a segment of a client without a splice, for its socket or, with a reset, for the client.
pub fn receive_from_client(client: &mut ClientFlow, segment: &Segment) -> Arrived {
    match client.reset_again(segment) {
        Some(reset) => Arrived { client: Some(reset), ..Arrived::default() },
        None => Arrived { socket: Some(for_socket(client, segment)), ..Arrived::default() },
    }
}

fn for_socket(client: &mut ClientFlow, segment: &Segment) -> Segment {
    if !client.is_acceptable(segment) {
        return client.unchecked_for_socket(segment);
    }
    client.note(segment);
    if client.sent_end.before(segment.ack) {
        return client.unchecked_for_socket(segment);
    }
    client.for_socket(segment)
}

/// Translates a segment of a client's socket without a splice. `None`: it is an acknowledgement that is kept
/// ([`ClientFlow::hold`]).
pub fn send_to_client(client: &mut ClientFlow, segment: &Segment, now_ms: u64) -> Option<Segment> {
    client.for_client(segment, false, false, now_ms)
}

/// Translates a segment of a server without a splice for its socket.
pub fn receive_from_server(
    server: &mut ServerFlow,
    segment: &Segment,
    now_ms: u64,
) -> Option<Segment> {
    server.for_socket(segment, false, now_ms)
}

/// Translates a segment of a server's socket without a splice.
pub fn send_to_server(server: &mut ServerFlow, segment: &Segment, now_ms: u64) -> Segment {
    server.note_room(segment);
    server.for_server(segment, None, now_ms)
}
