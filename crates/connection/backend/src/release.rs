//! An adopted connection, owned by the server that answers it, and its return to the balancer.
//!
//! A [`Lease`] is the right to answer one client. It ends in one of three ways: the connection
//! ends here ([`Lease::close`]), it is given back ([`Lease::give_back`]), or the balancer stays
//! silent for too long ([`Lease::aborted`]).

use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use unlade_channel::channel::QUIET_MAX;
use unlade_handoff_protocol::frame::{
    CloseReason, ConnectionId, Epoch, Frame, ReturnReason, Terms, Usage,
};
use unlade_http::RequestHead;
use unlade_metrics::{Event, GaugeGuard, Trigger};
use unlade_migration::scope::ScopeFilter;
use unlade_net::packet::{Direction, Segment};
use unlade_net::state::{QUEUE_BYTES_MAX, TcpSnapshot};
use unlade_net::{FlowKey, SeqNumber};
use unlade_runtime::stream::{Stream, TakeBack};
use unlade_steering::FlowEntry;
use unlade_sys::info::{STATE_CLOSE, TcpInfo};
use unlade_sys::link::Mac;
use unlade_sys::raw;
use unlade_sys::repair::{self, Accept, Known, RepairError};
use unlade_tls::device::Begin;

use crate::agent::{Adopted, AdoptedConn, Agent, Peer, RestoredConn};
use crate::context::Context;
use crate::returned::{Frozen, ReturnedConn};
use crate::signals::ControlSignals;
use crate::tls;
use crate::unread::{self, ReadAhead};

/// Number of polls of the send queue before a connection is given back with data in flight. The
/// task yields to other connections between two polls.
const DRAIN_YIELDS: u32 = 24;
/// How long a connection waits for its client between two checks of the lease.
const SENT_ROUND: Duration = Duration::from_millis(100);
/// How long to wait for the rest of a record that a device has decrypted in part.
const RECORD_WAIT: Duration = Duration::from_millis(100);
/// Pause between two attempts.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

/// Result of [`Lease::give_back`].
#[derive(Debug)]
pub enum GivenBack {
    /// The connection is gone.
    Gone,
    /// The connection cannot be given back now: answer one more request.
    Stay(Box<Lease>),
}

/// An adopted connection.
#[derive(Debug)]
pub struct Lease {
    stream: Stream,
    /// Flow entry: packets are delivered here, or to the balancer while the connection is frozen.
    entry: FlowEntry,
    peer: Rc<Peer>,
    id: ConnectionId,
    signals: Rc<ControlSignals>,
    known: Known,
    begin: Option<(Begin, (u64, u64))>,
    terms: Terms,
    /// The scope of the terms at the time of adoption.
    scope: Option<Rc<ScopeFilter>>,
    begun: Instant,
    requests: u32,
    /// The next request is answered here regardless of the terms, because the connection cannot
    /// move now.
    owed: bool,
    /// Reason of the next attempt to give back, after that request is answered.
    again: Option<ReturnReason>,
    /// The last checked request is in the scope.
    in_scope: Cell<bool>,
    ended: bool,
    /// Counts the connection in the gauge of adopted connections.
    _owned: GaugeGuard,
}

/// Result of an attempt to freeze a connection.
enum Freezing {
    Frozen(TcpSnapshot),
    /// More input is unread than a snapshot can carry, and its requests may be answered here.
    Unread,
    Failed(RepairError),
    /// The client acknowledged nothing for too long, the connection broke, or the lease is over.
    Over,
}

impl Lease {
    pub(crate) fn new(adopted: AdoptedConn) -> Lease {
        let AdoptedConn { peer, id, signals, socket, terms, scope, begun, owned } = adopted;
        let RestoredConn { stream, entry, known, begin } = socket;
        Lease {
            stream,
            entry,
            peer,
            id,
            signals,
            known,
            begin,
            terms,
            scope,
            begun,
            requests: 0,
            owed: false,
            again: None,
            in_scope: Cell::new(true),
            ended: false,
            _owned: owned,
        }
    }

    /// Offloads the records to the device, if there is one and the stream positions are known from
    /// a snapshot. Call this before any read or write, and do not cancel it.
    pub(crate) async fn offload(&mut self, context: &Context) {
        if let Some((begin, bytes)) = self.begin.take()
            && self.stream.is_tls()
        {
            tls::offload(&mut self.stream, context, begin, bytes).await;
        }
    }

    /// Returns the connection's stream. Between requests its input begins with the next request.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// Like [`Lease::stream`], for shared access.
    pub fn stream_ref(&self) -> &Stream {
        &self.stream
    }

    /// Returns true once [`Lease::aborted`] has resolved.
    pub fn is_aborted(&self) -> bool {
        self.signals.abort.get()
    }

    /// Returns the client's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.stream.peer()
    }

    /// Returns the idle time after which the connection must be given back.
    pub fn idle_return(&self) -> Duration {
        Duration::from_millis(self.terms.idle_return_ms.into())
    }

    /// Checks that the request of `head`, at the front of `input`, may be answered here. The first
    /// request of an adoption always may, because the balancer chose this server for it.
    ///
    /// # Errors
    /// The reason to give the connection back.
    pub fn admits(&self, head: &RequestHead, input: &[u8]) -> Result<(), ReturnReason> {
        if self.requests == 0 || self.owed {
            return Ok(());
        }
        self.in_scope.set(self.is_in_scope(head, input));
        // A client that pipelines requests leaves no pause in which a recall would be noticed.
        if let Some(reason) = self.signals.recall.take() {
            return Err(reason);
        }
        match self.in_scope.get() {
            _ if self.requests >= self.terms.requests_max => Err(ReturnReason::TermsUsed),
            true => Ok(()),
            false => Err(ReturnReason::NextRequest),
        }
    }

    /// Returns true if the balancer would have sent the request here. An upgrade to another
    /// protocol needs the proxy, which decides on the allowed protocols.
    fn is_in_scope(&self, head: &RequestHead, input: &[u8]) -> bool {
        if head.is_upgrade() {
            return false;
        }
        // A scope that was redefined since the adoption does not apply to this connection.
        match (Agent::scope(&self.peer, &self.terms), &self.scope) {
            (Some(now), Some(scope)) => {
                Rc::ptr_eq(&now, scope) && scope.admits(head.host(input), head.path(input))
            }
            _ => false,
        }
    }

    /// Returns true if the balancer has been silent for longer than the lease. The balancer may
    /// have resumed the connection, so nothing may be sent on it any more. Timers do not detect
    /// this after the process was stopped.
    pub fn is_over(&self) -> bool {
        let lease = Duration::from_millis(self.peer.lease_ms.get().into());
        // A silent balancer is probed, and answers, within twice this time.
        let lease = lease.max(3 * QUIET_MAX);
        self.peer.outbox.was_silent(lease, self.begun.into())
    }

    /// Counts a request as answered; makes the next attempt to give back, if one is pending.
    pub fn count_request(&mut self) {
        self.requests = self.requests.saturating_add(1);
        self.owed = false;
        if let Some(reason) = self.again.take() {
            self.signals.recall(reason);
        }
    }

    /// Waits until the balancer recalls the connection.
    pub fn recalled(&self) -> impl Future<Output = ReturnReason> + 'static {
        let signals = Rc::clone(&self.signals);
        async move { signals.until(|signals| signals.recall.take()).await }
    }

    /// Waits until the lease is over: the balancer was silent, so the client's packets no longer
    /// arrive here. The caller cancels its operation and calls [`Lease::abort`].
    pub fn aborted(&self) -> impl Future<Output = ()> + 'static {
        let signals = Rc::clone(&self.signals);
        async move { signals.until(|signals| signals.abort.get().then_some(())).await }
    }

    fn usage(&self) -> Usage {
        Usage {
            requests: self.requests,
            sent_bytes: self.stream.sent_bytes(),
            received_bytes: self.stream.received_bytes(),
        }
    }

    /// Ends the connection on this server; dropping the stream closes it. A separate task first
    /// waits until the client has acknowledged all sent data: once the balancer learns of the end
    /// it forgets the flow, and a later acknowledgement would find no socket.
    pub fn close(mut self, agent: &Rc<Agent>, reason: CloseReason) {
        if reason == CloseReason::Broken || self.outstanding_bytes().is_none() {
            return self.end(agent, reason);
        }
        let agent = Rc::clone(agent);
        tokio::task::spawn_local(async move { self.close_when_taken(&agent, reason).await });
    }

    async fn close_when_taken(mut self, agent: &Agent, reason: CloseReason) {
        let taken = self.taken(agent.limits.write_timeout).await;
        if self.signals.abort.get() {
            self.abort();
        } else if self.is_over() {
            self.expire(agent);
        } else if taken {
            self.end(agent, reason);
        } else {
            // After a normal close the kernel would keep retransmitting, although no
            // acknowledgement can reach it any more.
            agent.meter.add(Event::BackendStalled);
            self.end(agent, CloseReason::Broken);
            self.abort();
        }
    }

    /// Returns the number of bytes that the client has not acknowledged, or None if there are none
    /// besides a FIN. A FIN is acknowledged while the flow's entry lingers.
    fn outstanding_bytes(&self) -> Option<usize> {
        let fin_bytes = 1;
        repair::unacknowledged_bytes(self.stream.tcp()).ok().filter(|bytes| *bytes > fin_bytes)
    }

    /// Waits until the client has acknowledged all sent data, the connection is gone, or the lease
    /// is over. Returns false if the client acknowledges nothing for `limit`.
    async fn taken(&self, limit: Duration) -> bool {
        let (mut since, mut least_bytes, mut pause) = (Instant::now(), usize::MAX, DRAIN_PAUSE);
        while let Some(bytes) = self.outstanding_bytes() {
            let gone = TcpInfo::of(self.stream.tcp()).is_ok_and(|info| info.state == STATE_CLOSE);
            if gone || self.signals.abort.get() || self.is_over() {
                break;
            }
            if bytes < least_bytes {
                (since, least_bytes) = (Instant::now(), bytes);
            } else if since.elapsed() >= limit {
                return false;
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(SENT_ROUND);
        }
        true
    }

    /// Ends an expired lease with a RST to the client. If the balancer has resumed the connection,
    /// the client ignores the RST, because its sequence number is outdated by then.
    pub fn expire(mut self, agent: &Agent) {
        agent.meter.add(Event::AdoptedExpired);
        self.end(agent, CloseReason::Broken);
        self.abort();
    }

    fn end(&mut self, agent: &Agent, reason: CloseReason) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if reason == CloseReason::ByClient {
            agent.meter.add(Event::AdoptedClosed);
        }
        let Some(mut adopted) = self.peer.connections.borrow_mut().remove(&self.id) else { return };
        for action in adopted.taker.handle_ended(reason) {
            if let unlade_migration::importer::Action::Closed(epoch, reason) = action {
                let (id, usage) = (self.id, self.usage());
                self.peer.outbox.push(&Frame::Closed { id, epoch, reason, usage });
            }
        }
    }

    /// Closes the connection with a RST, or without one if another host owns the connection.
    pub fn abort(self) {
        match self.signals.silent.get() {
            // A socket that is closed in repair mode sends no packet.
            true => drop(repair::freeze(self.stream.tcp())),
            false => reset(self.stream),
        }
    }

    /// Gives the connection back to the balancer, together with the next request if it has arrived.
    /// Call this only between requests.
    pub async fn give_back(mut self, agent: &Agent, reason: ReturnReason) -> GivenBack {
        match self.take_back(agent).await {
            Some(true) => {}
            Some(false) => {
                agent.meter.add(Event::RecordsUnmovable);
                return self.stay(reason);
            }
            None => return self.give_up(agent),
        }
        let returned = match self.freeze_when_sent(agent, reason).await {
            Freezing::Frozen(tcp) => tcp,
            Freezing::Unread => {
                agent.meter.add(Event::UnreadKept);
                return self.stay(reason);
            }
            Freezing::Failed(error) => {
                tracing::debug!(flow = %self.known.flow, %error, "cannot be given back");
                if !is_about_request(reason) {
                    // No request is pending, so the next attempt can wait.
                    tokio::time::sleep(SENT_ROUND).await;
                }
                return self.stay(reason);
            }
            Freezing::Over => return self.give_up(agent),
        };
        agent.meter.add(Event::Released(trigger(reason)));
        self.ended = true;
        let (usage, id, peer) = (self.usage(), self.id, Rc::clone(&self.peer));
        if !peer.connections.borrow().contains_key(&id) {
            // The lease ended while this task was waiting.
            self.thaw();
            self.abort();
            return GivenBack::Gone;
        }
        let flow = self.known.flow;
        let send_end = returned.send_end();
        let frozen = Frozen { stream: self.stream, known: self.known, returned };
        let returned_conn = ReturnedConn {
            entry: self.entry,
            snapshot: frozen.encode(),
            unread: frozen.unread(),
            usage,
            send_end,
            frozen: Some(frozen),
        };
        if !returned_conn.unread.is_empty() {
            agent.meter.add(Event::UnreadMoved);
        }
        if let Some(adopted) = peer.connections.borrow_mut().get_mut(&id) {
            adopted.returned_conn = Some(Box::new(returned_conn));
        }
        let now = agent.now();
        agent.step(&peer, id, |taker| taker.handle_want_return(reason, now));
        agent.note_returned(&peer, id, flow);
        GivenBack::Gone
    }

    /// Keeps the connection here. A pending request is answered before the next attempt to give the
    /// connection back.
    fn stay(mut self, reason: ReturnReason) -> GivenBack {
        match is_about_request(reason) {
            true => self.owed = true,
            false if reason != ReturnReason::Idle => self.again = Some(reason),
            false => {}
        }
        GivenBack::Stay(Box::new(self))
    }

    fn give_up(mut self, agent: &Agent) -> GivenBack {
        self.end(agent, CloseReason::Broken);
        self.abort();
        GivenBack::Gone
    }

    /// Returns true if a connection that should be given back for `reason` may stay here instead.
    /// It may not if the next request belongs to another server; a request that has not been
    /// checked yet is checked later.
    fn may_stay(&self, reason: ReturnReason) -> bool {
        match reason {
            ReturnReason::NextRequest => false,
            ReturnReason::TermsUsed => self.in_scope.get(),
            ReturnReason::Idle | ReturnReason::Draining | ReturnReason::Recalled => true,
        }
    }

    /// Takes the records back from a device, if one has them: the kernel's queues of an offloaded
    /// connection are plaintext, which must not enter a snapshot. Returns false if the device has
    /// decrypted a part of a record whose rest does not arrive, and None if the client acknowledges
    /// nothing for too long, the connection broke, or the lease is over.
    async fn take_back(&mut self, agent: &Agent) -> Option<bool> {
        let (begin, offloaded) = (Instant::now(), self.stream.is_offloaded());
        loop {
            let limit = match self.stream.take_back().await.ok()? {
                TakeBack::Done => {
                    if offloaded {
                        agent.meter.add(Event::RecordsTakenBack);
                    }
                    return Some(true);
                }
                TakeBack::Unacknowledged => agent.limits.write_timeout,
                TakeBack::Receiving if begin.elapsed() >= RECORD_WAIT => return Some(false),
                TakeBack::Receiving => RECORD_WAIT,
            };
            if self.signals.abort.get() || self.is_over() || begin.elapsed() >= limit {
                return None;
            }
            tokio::time::sleep(DRAIN_PAUSE).await;
        }
    }

    /// Freezes the connection and reads its state. Packets are redirected to the balancer first,
    /// because no process reads the input of a frozen socket.
    async fn freeze(&self) -> Result<TcpSnapshot, RepairError> {
        for _ in 0..DRAIN_YIELDS {
            // Data that the client acknowledges at once need not move. A delayed acknowledgement is
            // not waited for.
            match repair::unacknowledged_bytes(self.stream.tcp()) {
                Ok(1..) => tokio::task::yield_now().await,
                _ => break,
            }
        }
        self.entry.redirect(self.peer.mac.get());
        let frozen = repair::freeze(self.stream.tcp())
            .and_then(|()| repair::snapshot(self.stream.tcp(), &self.known, Accept::PeerClosed));
        if frozen.is_err() {
            self.thaw();
        }
        frozen
    }

    /// Like [`Lease::freeze`], once all written data is sent. Waiting does not shorten the receive
    /// queue: if it is too long and the connection cannot stay, its front is read into user space.
    async fn freeze_when_sent(&mut self, agent: &Agent, reason: ReturnReason) -> Freezing {
        let (begin, limit) = (Instant::now(), agent.limits.write_timeout);
        let may_stay = self.may_stay(reason);
        while begin.elapsed() < limit && !self.signals.abort.get() && !self.is_over() {
            if may_stay && unread::is_too_much(&self.stream) {
                return Freezing::Unread;
            }
            if !self.stream.sent(SENT_ROUND).await {
                continue;
            }
            let outstanding = repair::unacknowledged_bytes(self.stream.tcp()).unwrap_or_default();
            if outstanding > QUEUE_BYTES_MAX || !self.peer.outbox.has_room() {
                tokio::time::sleep(DRAIN_PAUSE).await;
                continue;
            }
            if unread::is_too_much(&self.stream) {
                if may_stay {
                    return Freezing::Unread;
                }
                // The balancer holds the packets, so the queue does not grow while it is read.
                self.entry.redirect(self.peer.mac.get());
                if let ReadAhead::Failed = unread::read_ahead(&mut self.stream).await {
                    return Freezing::Over;
                }
            }
            match self.freeze().await {
                Ok(tcp) => return Freezing::Frozen(tcp),
                // The client has not acknowledged earlier responses, or has sent more in the
                // meantime.
                Err(RepairError::QueueTooLong { .. } | RepairError::Unsent(_)) => {
                    tokio::time::sleep(DRAIN_PAUSE).await;
                }
                Err(error) => return Freezing::Failed(error),
            }
        }
        Freezing::Over
    }

    fn thaw(&self) {
        // If this fails, the next read or write reports it.
        let _ = repair::thaw(self.stream.tcp());
        self.entry.local();
    }
}

impl Agent {
    /// Sends RETURN with the current state of the connection.
    pub(crate) fn send_return(
        &self,
        peer: &Peer,
        id: ConnectionId,
        adopted: &mut Adopted,
        epoch: Epoch,
        reason: ReturnReason,
    ) {
        let Some(returned_conn) = adopted.returned_conn.as_mut() else { return };
        if let Some(frozen) = &mut returned_conn.frozen
            && let Some(newer) = frozen.newer()
            // A longer queue is forwarded when the socket is closed.
            && newer.receive_queue.len() <= QUEUE_BYTES_MAX
        {
            frozen.returned = newer;
            returned_conn.snapshot = frozen.encode();
        }
        for frame in unread::frames(id, epoch, &returned_conn.unread) {
            peer.outbox.push(&frame);
        }
        let (usage, snapshot) = (returned_conn.usage, returned_conn.snapshot.clone());
        let unread_bytes = returned_conn.unread.len() as u32;
        peer.outbox.push(&Frame::Return { id, epoch, reason, usage, unread_bytes, snapshot });
    }

    /// Closes the frozen socket of a returned connection. Forwards the data that it received after
    /// its snapshot, in packets that had already passed the steering program.
    pub(crate) fn close_silently(&self, returned_conn: &mut ReturnedConn, balancer: Mac) {
        let Some(frozen) = returned_conn.frozen.take() else { return };
        frozen.forward_late(&self.meter, &self.frames, (self.link.mac, balancer));
    }

    /// Discards the state of a returned connection, which another host now owns. Returns its flow
    /// entry, for reuse.
    pub(crate) fn discard(
        &self,
        peer: &Peer,
        id: ConnectionId,
        adopted: &mut Adopted,
    ) -> Option<FlowEntry> {
        let mut returned_conn = adopted.returned_conn.take()?;
        self.forget_returned(returned_conn.entry.flow(), id);
        self.close_silently(&mut returned_conn, peer.mac.get());
        Some(returned_conn.entry)
    }

    /// Discards a connection that the balancer has abandoned, without a RST.
    pub(crate) fn abandon(&self, id: ConnectionId, adopted: &mut Adopted) {
        match adopted.returned_conn.take() {
            None => adopted.signals.abandon(),
            Some(returned_conn) => self.forget_returned(returned_conn.entry.flow(), id),
        }
    }

    /// Ends an expired lease with a RST to the client.
    pub(crate) fn abort(&self, id: ConnectionId, adopted: &mut Adopted) {
        self.meter.add(Event::AdoptedExpired);
        let Some(returned_conn) = adopted.returned_conn.take() else {
            return adopted.signals.abort();
        };
        let flow = *returned_conn.entry.flow();
        self.forget_returned(&flow, id);
        match returned_conn.frozen {
            Some(frozen) => {
                let _ = repair::thaw(frozen.stream.tcp());
                reset(frozen.stream);
            }
            None => reset_from_nothing(flow, returned_conn.send_end),
        }
    }
}

/// Closes a connection with a RST.
fn reset(stream: Stream) {
    if let Ok(tcp) = stream.into_parts().tcp.into_std()
        && let Err(error) = repair::abort(tcp.into())
    {
        tracing::debug!(%error, "abort");
    }
}

/// Sends a RST to a client whose connection has no socket any more.
fn reset_from_nothing(flow: FlowKey, seq: SeqNumber) {
    let sent = Segment::reset(flow, Direction::ToClient, seq)
        .ip_packet()
        .map_err(io::Error::other)
        .and_then(|packet| raw::send_packet(&packet, flow.client.ip()));
    if let Err(error) = sent {
        tracing::warn!(%flow, %error, "no reset sent");
    }
}

/// Returns true if the reason implies that a request is pending.
fn is_about_request(reason: ReturnReason) -> bool {
    matches!(reason, ReturnReason::NextRequest | ReturnReason::TermsUsed)
}

fn trigger(reason: ReturnReason) -> Trigger {
    match reason {
        ReturnReason::NextRequest => Trigger::OtherServer,
        ReturnReason::TermsUsed => Trigger::Granted,
        ReturnReason::Idle => Trigger::Idle,
        ReturnReason::Draining => Trigger::Drain,
        ReturnReason::Recalled => Trigger::Recalled,
    }
}
