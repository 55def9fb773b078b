//! The agent: the server's end of the control channels, and the connections adopted over them.
//!
//! One acceptor greets balancers (`greet`); the channel then lives on one worker, chosen by the balancer's
//! instance, so that a balancer that reconnects finds its connections. Frames go into each
//! connection's [`Importer`]; what that decides is done here (`adopt`) or by the task that
//! has the connection's stream (`release`).

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
    CloseReason, ConnectionId, Frame, PROTOCOL_VERSION, ReturnReason, Terms, Usage,
};
use unlade_metrics::{Event, Meter};
use unlade_migration::Millis;
use unlade_migration::exporter::server_lease_ms;
use unlade_migration::importer::{Action, Importer};
use unlade_migration::scope::ScopeFilter;
use unlade_net::FlowKey;
use unlade_steering::{Steering, Windows};
use unlade_sys::link::{Link, Mac};
use unlade_sys::raw::FrameSocket;

use crate::release::{Grave, Lease, Orders};
use crate::scopes::{Rings, Scopes};

/// Greeted channels that may wait for their worker.
const GREETED_MAX: usize = 1024;
/// Looks at the outboxes before a drained worker ends in spite of them.
const FLUSH_ROUNDS_MAX: usize = 100;
/// Before what cannot tell of itself is looked at again.
const PAUSE: Duration = Duration::from_millis(10);
/// How long packets are still sent to the balancer after it has heard of the last connection given
/// back: those that were under way here by then have come.
const UNDER_WAY: Duration = Duration::from_millis(100);
/// How long the frozen socket of a connection given back is kept: a packet that was past the
/// steering when the socket was frozen has come by then, and no timer of the socket has run out,
/// so it has sent nothing.
const FROZEN_FOR: Duration = Duration::from_millis(1);

/// What the agent may take on.
#[derive(Clone, Debug)]
pub struct AgentLimits {
    /// This server's name, for logs.
    pub name: String,
    /// Most connections adopted at once, on one worker.
    pub adoptions_max: usize,
    /// How long a connection outlives its channel, milliseconds, if the balancer does not say
    /// less.
    pub lease_ms: u32,
    /// Without the client taking an byte of a response, the connection ends.
    pub write_timeout: Duration,
}

/// A channel whose HELLO has been received, on its way to its worker.
pub struct Greeted {
    pub(crate) channel: DetachedChannel,
    /// Who it is, by its certificate.
    pub(crate) identity: PeerIdentity,
    pub(crate) instance: u64,
    pub(crate) name: String,
    pub(crate) mac: Mac,
    pub(crate) lease_ms: u32,
}

/// Where greeted channels go: one sender a worker.
pub type Inboxes = Vec<mpsc::Sender<Greeted>>;

/// One inbox a worker.
pub fn inboxes(workers: usize) -> (Inboxes, Vec<mpsc::Receiver<Greeted>>) {
    (0..workers).map(|_| mpsc::channel(GREETED_MAX)).unzip()
}

/// Whom the agent trusts, as the files say now.
pub type Trusted = watch::Receiver<Arc<ServerTrust>>;

/// One balancer worker, over the channels it opens one after another.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Whose it is: nobody else may speak for it.
    identity: PeerIdentity,
    pub(crate) outbox: Outbox,
    pub(crate) mac: Cell<Mac>,
    pub(crate) lease_ms: Cell<u32>,
    /// Channels there have been; the last one counts.
    channels: Cell<u64>,
    /// Tells the channel before that there is a newer one.
    replaced: Notify,
    pub(crate) connections: RefCell<HashMap<ConnectionId, Adopted>>,
    scopes: RefCell<Scopes>,
}

/// A connection that this server has, or is about to have.
#[derive(Debug)]
pub(crate) struct Adopted {
    pub(crate) flow: FlowKey,
    pub(crate) taker: Importer,
    /// Reaches the task that has the stream.
    pub(crate) orders: Rc<Orders>,
    /// Once it was given back: what is left of it.
    pub(crate) grave: Option<Box<Grave>>,
}

/// One worker's agent.
#[derive(Debug)]
pub struct Agent {
    /// Sends the packets of connections given back to the balancer.
    pub(crate) steering: Arc<Steering>,
    /// Restores congestion windows, where the machine can.
    pub(crate) windows: Option<Arc<Windows>>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) limits: AgentLimits,
    trusted: Trusted,
    /// The link that packets come in on, and where late ones are sent to the balancer.
    pub(crate) link: Link,
    pub(crate) frames: FrameSocket,
    peers: RefCell<HashMap<u64, Rc<Peer>>>,
    rings: Rings,
    /// Connections given back a moment ago, in order: their sockets are still there.
    returned: RefCell<VecDeque<(Instant, Rc<Peer>, ConnectionId)>>,
    /// Where a flow's grave is: its addresses may come back under another name.
    graves: RefCell<HashMap<FlowKey, (Rc<Peer>, ConnectionId)>>,
    given_back: Notify,
    pub(crate) accepted: mpsc::UnboundedSender<Lease>,
    origin: Instant,
    draining: Cell<bool>,
}

impl Agent {
    /// An agent, and the queue where its adopted connections come out, live.
    ///
    /// # Errors
    /// The kernel refuses a packet socket (CAP_NET_RAW).
    pub(crate) fn new(
        steering: Arc<Steering>,
        windows: Option<Arc<Windows>>,
        meter: Arc<Meter>,
        limits: AgentLimits,
        (rings, trusted): (Rings, Trusted),
    ) -> io::Result<(Rc<Agent>, mpsc::UnboundedReceiver<Lease>)> {
        let (accepted, queue) = mpsc::unbounded_channel();
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
            graves: RefCell::default(),
            given_back: Notify::new(),
            accepted,
            origin: Instant::now(),
            draining: Cell::new(false),
        };
        Ok((Rc::new(agent), queue))
    }

    pub(crate) fn now(&self) -> Millis {
        Millis(self.origin.elapsed().as_millis() as u64)
    }

    /// Serves the channels that come in, and the clock, until the task is dropped.
    pub async fn run(self: Rc<Agent>, mut inbox: mpsc::Receiver<Greeted>) {
        let mut tick = unlade_runtime::ticker::every(unlade_runtime::ticker::TICK);
        loop {
            tokio::select! {
                greeted = inbox.recv() => match greeted {
                    Some(greeted) => {
                        tokio::task::spawn_local(Rc::clone(&self).serve(greeted));
                    }
                    None => std::future::pending().await,
                },
                _ = tick.tick() => self.tick(),
                () = self.close_frozen() => {}
            }
        }
    }

    /// Refuses offers from now on, and asks every adopted connection back.
    pub fn drain(&self) {
        self.draining.set(true);
        for peer in self.peers.borrow().values() {
            peer.outbox.push(&Frame::Drain);
            for adopted in peer.connections.borrow().values() {
                adopted.orders.recall(ReturnReason::Draining);
            }
        }
    }

    /// Waits until every adopted connection has ended or is with its balancer, and the balancers
    /// have read that. To be called after [`Agent::drain`]; the caller bounds the wait.
    pub async fn drained(&self) {
        // What the balancers had sent before they read DRAIN is answered after the first round.
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

    /// Whether no connection is answered here any more, and each balancer has read all that was
    /// said to it.
    async fn is_settled(&self) -> bool {
        if self.live() > 0 {
            return false;
        }
        let peers: Vec<Rc<Peer>> = self.peers.borrow().values().map(Rc::clone).collect();
        for peer in peers {
            // Without a channel, connections given back wait for it, or for the end of the lease.
            let is_concerned = peer.outbox.is_open() || !peer.connections.borrow().is_empty();
            if is_concerned && !peer.outbox.settled().await {
                return false;
            }
        }
        self.live() == 0
    }

    /// Adopted connections that are answered here.
    pub fn live(&self) -> usize {
        let live = |peer: &Rc<Peer>| {
            peer.connections.borrow().values().filter(|adopted| adopted.taker.is_live()).count()
        };
        self.peers.borrow().values().map(live).sum()
    }

    /// Waits until the last frames are on their way, after the last connection went.
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

    /// Connections that this worker has adopted.
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
        // OWNED went out by hand, so what waits for the channel may go on now.
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
        if let ChannelError::Frame(_) | ChannelError::Protocol(_) = error {
            self.meter.add(Event::FrameRefused);
        }
        tracing::warn!(%name, %address, %error, "channel down");
        if peer.channels.get() == turn {
            self.channel_down(&peer, lease_ms);
        }
    }

    /// Waits until the peer with these certificates is trusted no more.
    async fn distrusts(&self, shown: &[CertificateDer<'static>]) {
        let mut trusted = self.trusted.clone();
        while trusted.changed().await.is_ok() {
            if !trusted.borrow_and_update().trusts(shown) {
                return;
            }
        }
        // The process ends.
        std::future::pending().await
    }

    /// A channel that came back replaces the one before, which may not have ended yet: what that
    /// one still has to say is void. The number of the new one.
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

    /// The balancer worker of this instance. Nothing where another certificate has spoken for it:
    /// what is told about its connections, and their keys, is not for others.
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
                    adopted.orders.recall(ReturnReason::Recalled);
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

    /// Puts an event into a connection's machine and does what it says.
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
                Action::Discard => drop(self.bury(peer, id, adopted)),
                Action::Abort => self.abort(id, adopted),
                // Ended and thawed connections are handled where that happens.
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
        // A balancer that is gone and has nothing here any more is forgotten.
        self.peers.borrow_mut().retain(|_, peer| {
            peer.outbox.is_open()
                || !peer.connections.borrow().is_empty()
                || Rc::strong_count(peer) > 2
        });
        self.report_steering();
    }

    /// Adds what the programs counted since any worker did this last.
    fn report_steering(&self) {
        let Ok(counts) = self.steering.take_counts() else { return };
        for (event, count) in [
            (Event::SegmentCorrupt, counts.corrupt),
            (Event::HopsExceeded, counts.hops_exceeded),
            (Event::FragmentDropped, counts.fragments_dropped),
            (Event::ExtensionsExceeded, counts.extensions_dropped),
            (Event::IcmpRedirected, counts.errors_redirected),
            (Event::IcmpRefused, counts.errors_refused),
        ] {
            self.meter.add_n(event, count);
        }
    }

    /// Notes a connection that was given back just now.
    pub(crate) fn note_returned(&self, peer: &Rc<Peer>, id: ConnectionId, flow: FlowKey) {
        self.graves.borrow_mut().insert(flow, (Rc::clone(peer), id));
        self.returned.borrow_mut().push_back((Instant::now(), Rc::clone(peer), id));
        self.given_back.notify_one();
    }

    /// Waits until the frozen socket of a connection given back is due to be closed, and closes
    /// it; or, where there is none, until there is. To be called again and again.
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
            if let Some(grave) = connections.get_mut(&id).and_then(|a| a.grave.as_mut()) {
                self.close_silently(grave, peer.mac.get());
            }
        }
    }

    /// Takes what is left of a flow's connection that was given back under another name: its
    /// socket has the addresses that are wanted now.
    pub(crate) fn exhume(&self, peer: &Rc<Peer>, id: ConnectionId, flow: &FlowKey) {
        let known = self.graves.borrow().get(flow).map(|(peer, id)| (Rc::clone(peer), *id));
        let Some((old_peer, old_id)) = known else { return };
        if old_id == id && Rc::ptr_eq(&old_peer, peer) {
            return;
        }
        self.graves.borrow_mut().remove(flow);
        let mut connections = old_peer.connections.borrow_mut();
        if connections.get(&old_id).is_some_and(|adopted| adopted.grave.is_some())
            && let Some(mut adopted) = connections.remove(&old_id)
        {
            drop(self.bury(&old_peer, old_id, &mut adopted));
        }
    }

    /// The addresses of a flow are wanted for another connection: the client has begun anew, so one
    /// that has them here still is over. Its balancer may be gone, or not have been told.
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

    pub(crate) fn forget_grave(&self, flow: &FlowKey, id: ConnectionId) {
        let mut graves = self.graves.borrow_mut();
        if graves.get(flow).is_some_and(|(_, known)| *known == id) {
            graves.remove(flow);
        }
    }

    /// What the terms of a connection admit.
    pub(crate) fn scope(peer: &Peer, terms: &Terms) -> Option<Rc<ScopeFilter>> {
        peer.scopes.borrow().get(terms.scope)
    }
}
