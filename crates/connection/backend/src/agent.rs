//! The agent: the server side of the control channels, and the connections adopted over them.
//!
//! One acceptor authenticates balancers (`greet`). One worker then serves the channel. The
//! balancer's instance selects the worker, so a balancer that reconnects finds its connections.
//! Frames go into each connection's [`Importer`]; `adopt`, or the task that owns the connection's
//! stream (`release`), performs the actions that it returns.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use tokio::sync::{Notify, mpsc, watch};
use unlade_channel::channel::{Channel, ChannelError, DetachedChannel, LateFrames, Outbox};
use unlade_channel::role::PeerIdentity;
use unlade_channel::trust::ServerTrust;
use unlade_handoff_protocol::frame::{
    ClientBytes, CloseReason, ConnectionId, Frame, PROTOCOL_VERSION, ReturnReason, Terms, Usage,
};
use unlade_metrics::{Event, GaugeGuard, Meter};
use unlade_migration::Millis;
use unlade_migration::exporter::server_lease_ms;
use unlade_migration::importer::{Action, Importer};
use unlade_migration::scope::ScopeFilter;
use unlade_net::FlowKey;
use unlade_runtime::Stream;
use unlade_steering::{FlowEntry, Steering, Windows};
use unlade_sys::link::{Link, Mac};
use unlade_sys::raw::FrameSocket;
use unlade_sys::repair::Known;
use unlade_tls::device::Begin;

use crate::returned::ReturnedConn;
use crate::scopes::{Rings, Scopes};
use crate::signals::ControlSignals;

/// Maximum number of authenticated channels that wait for their worker.
const GREETED_MAX: usize = 1024;
/// Number of polls of the outboxes before a drained worker ends although they are not empty.
const FLUSH_ROUNDS_MAX: usize = 100;
/// Interval between polls of a state that has no notification.
const PAUSE: Duration = Duration::from_millis(10);
/// How long packets are still forwarded to the balancer after it has received the last returned
/// connection. Packets that were in flight to this server arrive within this time.
const UNDER_WAY: Duration = Duration::from_millis(100);
/// How long the frozen socket of a returned connection is kept. A packet that had passed the
/// steering program when the socket was frozen arrives within this time, and no timer of the socket
/// expires, so the socket sends nothing.
const FROZEN_FOR: Duration = Duration::from_millis(1);

/// Limits of the agent.
#[derive(Clone, Debug)]
pub struct AgentLimits {
    /// Name of this server in logs.
    pub name: String,
    /// Maximum number of connections that one worker has adopted at once.
    pub adoptions_max: usize,
    /// Upper bound of how long a connection outlives its channel, in milliseconds; the balancer
    /// may request less.
    pub lease_ms: u32,
    /// Time without an acknowledged byte of a response after which the connection is closed.
    pub write_timeout: Duration,
}

/// A channel whose HELLO has been received, before its worker attaches it.
pub struct Greeted {
    pub(crate) channel: DetachedChannel,
    /// Identity of the balancer, from its certificate.
    pub(crate) identity: PeerIdentity,
    pub(crate) instance: u64,
    pub(crate) name: String,
    pub(crate) mac: Mac,
    pub(crate) lease_ms: u32,
}

/// A connection of a balancer that has said what it is for.
pub enum Arrival {
    /// A control channel.
    Handoff(Greeted),
    /// A connection on which responses are sealed.
    Sealing(SealingArrival),
}

/// A connection on which responses are sealed, after its first frame.
pub struct SealingArrival {
    pub(crate) channel: DetachedChannel,
    /// Key of the proofs in the headers of pieces.
    pub(crate) key: ClientBytes,
}

/// Senders of authenticated connections, one for each worker.
pub type Inboxes = Vec<mpsc::Sender<Arrival>>;

/// Creates one inbox for each worker.
pub fn inboxes(workers: usize) -> (Inboxes, Vec<mpsc::Receiver<Arrival>>) {
    (0..workers).map(|_| mpsc::channel(GREETED_MAX)).unzip()
}

/// Current trust settings, which follow the files on a reload.
pub type Trusted = watch::Receiver<Arc<ServerTrust>>;

/// One balancer worker, with the state that it keeps across successive channels.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Identity of the balancer. A channel with another identity is refused.
    identity: PeerIdentity,
    pub(crate) outbox: Outbox,
    pub(crate) mac: Cell<Mac>,
    pub(crate) lease_ms: Cell<u32>,
    /// Number of channels so far; only the latest one is valid.
    channels: Cell<u64>,
    /// Notifies the previous channel that a newer one replaces it.
    replaced: Notify,
    pub(crate) connections: RefCell<HashMap<ConnectionId, Adopted>>,
    scopes: RefCell<Scopes>,
}

/// A connection that this server owns or is about to own.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub(crate) flow: FlowKey,
    pub(crate) taker: Importer,
    /// Signals to the task that owns the stream.
    pub(crate) signals: Rc<ControlSignals>,
    /// State that remains after the connection was given back.
    pub(crate) returned_conn: Option<Box<ReturnedConn>>,
}

/// A connection that was just restored on this server.
#[derive(Debug)]
pub(crate) struct RestoredConn {
    pub(crate) stream: Stream,
    pub(crate) entry: FlowEntry,
    pub(crate) known: Known,
    /// Stream positions for a device; None if they are no longer known.
    pub(crate) begin: Option<(Begin, (u64, u64))>,
}

/// An adopted, live connection on its way to its server.
#[derive(Debug)]
pub(crate) struct AdoptedConn {
    pub(crate) peer: Rc<Peer>,
    pub(crate) id: ConnectionId,
    pub(crate) signals: Rc<ControlSignals>,
    pub(crate) socket: RestoredConn,
    pub(crate) terms: Terms,
    /// The scope of the terms at the time of adoption.
    pub(crate) scope: Option<Rc<ScopeFilter>>,
    pub(crate) begun: Instant,
    /// Counts the connection in the gauge of adopted connections.
    pub(crate) owned: GaugeGuard,
}

/// Queues of an agent, for its server.
pub(crate) struct Queues {
    /// Adopted, live connections.
    pub(crate) adopted: mpsc::UnboundedReceiver<AdoptedConn>,
    /// Connections on which responses are sealed.
    pub(crate) sealing: mpsc::UnboundedReceiver<SealingArrival>,
}

/// The agent of one worker.
#[derive(Debug)]
pub struct Agent {
    /// Redirects the packets of returned connections to the balancer.
    pub(crate) steering: Arc<Steering>,
    /// Restores congestion windows, if the kernel supports it.
    pub(crate) windows: Option<Arc<Windows>>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) limits: AgentLimits,
    trusted: Trusted,
    /// The link on which packets arrive and on which late ones are sent to the balancer.
    pub(crate) link: Link,
    pub(crate) frames: FrameSocket,
    peers: RefCell<HashMap<u64, Rc<Peer>>>,
    rings: Rings,
    /// Recently returned connections whose sockets are still open, oldest first.
    returned: RefCell<VecDeque<(Instant, Rc<Peer>, ConnectionId)>>,
    /// Owner of each flow's returned connection. A new connection may use the same addresses with
    /// another connection identifier.
    returned_by_flow: RefCell<HashMap<FlowKey, (Rc<Peer>, ConnectionId)>>,
    given_back: Notify,
    pub(crate) accepted: mpsc::UnboundedSender<AdoptedConn>,
    sealing: mpsc::UnboundedSender<SealingArrival>,
    origin: Instant,
    draining: Cell<bool>,
}

impl Agent {
    /// Creates an agent, and the queues of its connections.
    ///
    /// # Errors
    /// The kernel refuses a packet socket (CAP_NET_RAW).
    pub(crate) fn new(
        steering: Arc<Steering>,
        windows: Option<Arc<Windows>>,
        meter: Arc<Meter>,
        limits: AgentLimits,
        (rings, trusted): (Rings, Trusted),
    ) -> io::Result<(Rc<Agent>, Queues)> {
        let (accepted, adopted) = mpsc::unbounded_channel();
        let (sealing, channels) = mpsc::unbounded_channel();
        let link = steering.link().clone();
        let agent = Agent {
            frames: FrameSocket::open(&link)?,
            link,
            steering,
            windows,
            meter,
            limits,
            trusted,
            peers: RefCell::default(),
            rings,
            returned: RefCell::default(),
            returned_by_flow: RefCell::default(),
            given_back: Notify::new(),
            accepted,
            sealing,
            origin: Instant::now(),
            draining: Cell::new(false),
        };
        Ok((Rc::new(agent), Queues { adopted, sealing: channels }))
    }

    pub(crate) fn now(&self) -> Millis {
        Millis(self.origin.elapsed().as_millis() as u64)
    }

    /// Serves incoming channels and timers until the task is dropped.
    pub async fn run(self: Rc<Agent>, mut inbox: mpsc::Receiver<Arrival>) {
        let mut tick = unlade_runtime::ticker::every(unlade_runtime::ticker::TICK);
        loop {
            tokio::select! {
                arrival = inbox.recv() => match arrival {
                    Some(Arrival::Handoff(greeted)) => {
                        tokio::task::spawn_local(Rc::clone(&self).serve(greeted));
                    }
                    // Without a receiver the connection is closed.
                    Some(Arrival::Sealing(arrival)) => drop(self.sealing.send(arrival)),
                    None => std::future::pending().await,
                },
                _ = tick.tick() => self.tick(),
                () = self.close_frozen() => {}
            }
        }
    }

    /// Refuses further offers and recalls every adopted connection.
    pub fn drain(&self) {
        self.draining.set(true);
        for peer in self.peers.borrow().values() {
            peer.outbox.push(&Frame::Drain);
            for adopted in peer.connections.borrow().values() {
                adopted.signals.recall(ReturnReason::Draining);
            }
        }
    }

    /// Waits until every adopted connection has ended or has returned to its balancer, and the
    /// balancers have read the corresponding frames. Call [`Agent::drain`] first; the caller bounds
    /// the wait.
    pub async fn drained(&self) {
        // The first round answers frames that the balancers sent before they read DRAIN.
        let mut rounds = 0;
        while rounds < 2 {
            rounds = if self.is_settled().await { rounds + 1 } else { 0 };
            if rounds == 0 {
                tokio::time::sleep(PAUSE).await;
            }
        }
        if self.adopted() > 0 {
            tokio::time::sleep(UNDER_WAY).await;
        }
    }

    /// Returns true if this worker serves no adopted connection any more and each balancer has read
    /// every frame.
    async fn is_settled(&self) -> bool {
        if self.live() > 0 {
            return false;
        }
        let peers: Vec<Rc<Peer>> = self.peers.borrow().values().map(Rc::clone).collect();
        for peer in peers {
            // Without a channel, returned connections wait for the next channel or for the end of
            // the lease.
            let is_concerned = peer.outbox.is_open() || !peer.connections.borrow().is_empty();
            if is_concerned && !peer.outbox.settled().await {
                return false;
            }
        }
        self.live() == 0
    }

    /// Returns the number of adopted connections that this worker serves.
    pub fn live(&self) -> usize {
        let live = |peer: &Rc<Peer>| {
            peer.connections.borrow().values().filter(|adopted| adopted.taker.is_live()).count()
        };
        self.peers.borrow().values().map(live).sum()
    }

    /// Waits until the outboxes are empty, after the last connection has ended.
    pub async fn flushed(&self) {
        for _ in 0..FLUSH_ROUNDS_MAX {
            if self.peers.borrow().values().all(|peer| peer.outbox.is_empty()) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Returns the number of connections that this worker has adopted.
    pub fn adopted(&self) -> usize {
        self.peers.borrow().values().map(|peer| peer.connections.borrow().len()).sum()
    }

    async fn serve(self: Rc<Agent>, greeted: Greeted) {
        let Greeted { channel, identity, instance, name, mac, lease_ms } = greeted;
        let mut channel = match channel.attach() {
            Ok(channel) => channel,
            Err(error) => return tracing::warn!(%name, %error, "channel lost"),
        };
        let lease_ms = server_lease_ms(lease_ms).min(self.limits.lease_ms);
        let shown = channel.peer_certificates();
        let address = channel.peer();
        let Some(peer) = self.peer(instance, identity, mac, lease_ms) else {
            self.meter.add(Event::PeerUntrusted);
            let why = "its instance is another certificate's";
            return tracing::warn!(%name, %address, instance, why, "balancer refused");
        };
        tracing::info!(%name, %address, instance, "channel up");
        self.meter.add(Event::ChannelConnected);
        let turn = self.replace_channel(&peer, lease_ms).await;
        if let Err(error) = self.hello(&mut channel, &peer).await {
            return tracing::warn!(%name, %address, %error, "channel down");
        }
        let handle = |frame| match peer.channels.get() == turn {
            true => self.handle(&peer, frame),
            false => Err(ChannelError::Closed),
        };
        let queue = peer.outbox.clone();
        let _open = queue.open();
        // OWNED has been sent, so connections that wait for the channel can continue.
        self.channel_up(&peer);
        if self.is_draining() {
            queue.push(&Frame::Drain);
        }
        let error = tokio::select! {
            error = channel.serve(&queue, LateFrames::Drop, handle) => error,
            () = peer.replaced.notified() => ChannelError::Closed,
            () = self.distrusts(&shown) => {
                self.meter.add(Event::PeerUntrusted);
                tracing::warn!(%name, %address, "its certificate is not of the pool's CA any more");
                ChannelError::Closed
            }
        };
        self.meter.add(Event::ChannelBroken);
        if error.is_violation() {
            self.meter.add(Event::FrameRefused);
        }
        tracing::warn!(%name, %address, %error, "channel down");
        if peer.channels.get() == turn {
            self.channel_down(&peer, lease_ms);
        }
    }

    /// Waits until the peer with these certificates is no longer trusted.
    async fn distrusts(&self, shown: &[CertificateDer<'static>]) {
        let mut trusted = self.trusted.clone();
        while trusted.changed().await.is_ok() {
            if !trusted.borrow_and_update().trusts(shown) {
                return;
            }
        }
        // The sender is gone: the process is ending.
        std::future::pending().await
    }

    /// Replaces the previous channel of a balancer that reconnected. The old channel may not have
    /// ended yet; its further frames are ignored. Returns the number of the new channel.
    async fn replace_channel(&self, peer: &Rc<Peer>, lease_ms: u32) -> u64 {
        let turn = peer.channels.get() + 1;
        peer.channels.set(turn);
        peer.replaced.notify_waiters();
        for _ in 0..FLUSH_ROUNDS_MAX {
            if !peer.outbox.is_open() {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.channel_down(peer, lease_ms);
        turn
    }

    /// Returns the balancer worker of this instance. Returns None if the instance belongs to
    /// another certificate, which must not receive this worker's connections and their keys.
    fn peer(
        &self,
        instance: u64,
        identity: PeerIdentity,
        mac: Mac,
        lease_ms: u32,
    ) -> Option<Rc<Peer>> {
        let mut peers = self.peers.borrow_mut();
        if peers.get(&instance).is_some_and(|known| known.identity != identity) {
            return None;
        }
        let peer = peers.entry(instance).or_insert_with(|| {
            Rc::new(Peer {
                identity,
                outbox: Outbox::default(),
                mac: Cell::new(mac),
                lease_ms: Cell::new(lease_ms),
                channels: Cell::new(0),
                replaced: Notify::new(),
                connections: RefCell::default(),
                scopes: RefCell::new(Scopes::new(self.rings.clone())),
            })
        });
        peer.mac.set(mac);
        peer.lease_ms.set(lease_ms);
        Some(Rc::clone(peer))
    }

    async fn hello(&self, channel: &mut Channel, peer: &Peer) -> Result<(), ChannelError> {
        let hello = Frame::Hello {
            version: PROTOCOL_VERSION,
            instance: 0,
            name: self.limits.name.clone(),
            mac: self.link.mac,
            lease_ms: peer.lease_ms.get(),
        };
        channel.send(&hello).await?;
        let owned = {
            let connections = peer.connections.borrow();
            connections.iter().map(|(id, adopted)| (*id, adopted.taker.epoch())).collect()
        };
        channel.send(&Frame::Owned(owned)).await
    }

    fn handle(&self, peer: &Rc<Peer>, frame: Frame) -> Result<(), ChannelError> {
        match frame {
            Frame::Scope(scope) => {
                if !peer.scopes.borrow_mut().define(&scope) {
                    self.meter.add(Event::ScopeRefused);
                }
            }
            Frame::Offer { id, epoch, terms, snapshot } => {
                self.handle_offer(peer, id, epoch, terms, &snapshot);
            }
            Frame::Recall { id, epoch } => {
                let connections = peer.connections.borrow();
                if let Some(adopted) = connections.get(&id).filter(|a| a.taker.epoch() == epoch) {
                    adopted.signals.recall(ReturnReason::Recalled);
                }
            }
            Frame::Abandon { id, epoch } => {
                let mut connections = peer.connections.borrow_mut();
                if connections.get(&id).is_some_and(|adopted| adopted.taker.epoch() == epoch)
                    && let Some(mut adopted) = connections.remove(&id)
                {
                    self.abandon(id, &mut adopted);
                }
            }
            _ => return Err(ChannelError::Protocol("a frame that only servers send")),
        }
        Ok(())
    }

    /// Applies an event to a connection's state machine and performs the resulting actions.
    pub(crate) fn step(
        &self,
        peer: &Rc<Peer>,
        id: ConnectionId,
        event: impl FnOnce(&mut Importer) -> Vec<Action>,
    ) {
        let mut connections = peer.connections.borrow_mut();
        let Some(adopted) = connections.get_mut(&id) else {
            self.meter.add(Event::FrameStale);
            return;
        };
        for action in event(&mut adopted.taker) {
            match action {
                Action::Return(epoch, reason) => self.send_return(peer, id, adopted, epoch, reason),
                Action::Discard => drop(self.discard(peer, id, adopted)),
                Action::Abort => self.abort(id, adopted),
                // The caller handles connections that end or thaw.
                Action::Closed(..) | Action::Thaw => {}
            }
        }
        if adopted.taker.is_over() {
            connections.remove(&id);
        }
    }

    fn each(
        &self,
        peer: &Rc<Peer>,
        filter: impl Fn(&Importer) -> bool,
        event: impl Fn(&mut Importer) -> Vec<Action>,
    ) {
        let ids: Vec<ConnectionId> = {
            let connections = peer.connections.borrow();
            connections.iter().filter(|(_, a)| filter(&a.taker)).map(|(id, _)| *id).collect()
        };
        for id in ids {
            self.step(peer, id, &event);
        }
    }

    fn channel_up(&self, peer: &Rc<Peer>) {
        let now = self.now();
        self.each(peer, |_| true, |taker| taker.handle_channel_up(now));
    }

    fn channel_down(&self, peer: &Rc<Peer>, lease_ms: u32) {
        let now = self.now();
        peer.scopes.borrow_mut().clear();
        self.each(peer, |_| true, |taker| taker.handle_channel_down(lease_ms, now));
    }

    fn tick(&self) {
        let now = self.now();
        let peers: Vec<Rc<Peer>> = self.peers.borrow().values().map(Rc::clone).collect();
        for peer in &peers {
            let due = |taker: &Importer| taker.deadline().is_some_and(|deadline| deadline <= now);
            self.each(peer, due, |taker| taker.handle_tick(now));
        }
        // Forgets a balancer that has no channel and no connection.
        self.peers.borrow_mut().retain(|_, peer| {
            peer.outbox.is_open()
                || !peer.connections.borrow().is_empty()
                || Rc::strong_count(peer) > 2
        });
        // The programs' counts are those of all workers; each call adds those since the last.
        self.steering.report_counts(&self.meter);
    }

    /// Records a connection that was just given back.
    pub(crate) fn note_returned(&self, peer: &Rc<Peer>, id: ConnectionId, flow: FlowKey) {
        self.returned_by_flow.borrow_mut().insert(flow, (Rc::clone(peer), id));
        self.returned.borrow_mut().push_back((Instant::now(), Rc::clone(peer), id));
        self.given_back.notify_one();
    }

    /// Waits until the oldest frozen socket of a returned connection is due, and closes it. Without
    /// one, waits until a connection is given back. The caller calls this in a loop.
    async fn close_frozen(&self) {
        let first = self.returned.borrow().front().map(|(since, ..)| *since);
        let Some(since) = first else { return self.given_back.notified().await };
        tokio::time::sleep_until((since + FROZEN_FOR).into()).await;
        loop {
            let mut returned = self.returned.borrow_mut();
            if returned.front().is_none_or(|(since, ..)| since.elapsed() < FROZEN_FOR) {
                return;
            }
            let Some((_, peer, id)) = returned.pop_front() else { return };
            drop(returned);
            let mut connections = peer.connections.borrow_mut();
            if let Some(returned_conn) =
                connections.get_mut(&id).and_then(|a| a.returned_conn.as_mut())
            {
                self.close_silently(returned_conn, peer.mac.get());
            }
        }
    }

    /// Removes a returned connection of the same flow with another identifier, because its socket
    /// is bound to the addresses of the new connection.
    pub(crate) fn discard_same_flow(&self, peer: &Rc<Peer>, id: ConnectionId, flow: &FlowKey) {
        let known =
            self.returned_by_flow.borrow().get(flow).map(|(peer, id)| (Rc::clone(peer), *id));
        let Some((old_peer, old_id)) = known else { return };
        if old_id == id && Rc::ptr_eq(&old_peer, peer) {
            return;
        }
        self.returned_by_flow.borrow_mut().remove(flow);
        let mut connections = old_peer.connections.borrow_mut();
        if connections.get(&old_id).is_some_and(|adopted| adopted.returned_conn.is_some())
            && let Some(mut adopted) = connections.remove(&old_id)
        {
            drop(self.discard(&old_peer, old_id, &mut adopted));
        }
    }

    /// Ends connections of this flow, because a new connection needs its addresses. The client has
    /// opened a new connection, so the old one is over. The old balancer may be gone or may not
    /// have learnt of that.
    pub(crate) fn supersede(&self, flow: &FlowKey) {
        for peer in self.peers.borrow().values() {
            let mut connections = peer.connections.borrow_mut();
            let of_flow = connections.iter().filter(|(_, adopted)| adopted.flow == *flow);
            let ids: Vec<ConnectionId> = of_flow.map(|(id, _)| *id).collect();
            for id in ids {
                let Some(mut adopted) = connections.remove(&id) else { continue };
                for action in adopted.taker.handle_ended(CloseReason::Broken) {
                    if let Action::Closed(epoch, reason) = action {
                        let usage = Usage::default();
                        peer.outbox.push(&Frame::Closed { id, epoch, reason, usage });
                    }
                }
                self.abandon(id, &mut adopted);
            }
        }
    }

    pub(crate) fn forget_returned(&self, flow: &FlowKey, id: ConnectionId) {
        let mut returned_by_flow = self.returned_by_flow.borrow_mut();
        if returned_by_flow.get(flow).is_some_and(|(_, known)| *known == id) {
            returned_by_flow.remove(flow);
        }
    }

    /// Returns the filter of the requests that the terms of a connection admit.
    pub(crate) fn scope(peer: &Peer, terms: &Terms) -> Option<Rc<ScopeFilter>> {
        peer.scopes.borrow().get(terms.scope)
    }
}
