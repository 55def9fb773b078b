//! An adopted connection in the hands of the server that answers it, and its way back.
//!
//! A [`Lease`] is the right to answer one client. It ends in one of three ways: the connection
//! ends here ([`Lease::close`]), it is given back ([`Lease::give_back`]), or the balancer is not
//! heard of for too long ([`Lease::aborted`]).

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use handoff::late::late_frames;
use linux::info::TcpInfo;
use linux::link::Mac;
use linux::repair::{self, Accept, Known, RepairError};
use meter::{Event, Trigger};
use service::stream::Stream;
use wire::frame::{CloseReason, ConnectionId, Epoch, Frame, ReturnReason, Terms, Usage};
use wire::snapshot::{Snapshot, TcpSnapshot};

use crate::agent::{Adopted, Agent, Peer};

/// Looks at the send queue before a connection is given back with data in flight.
const DRAIN_TURNS_MAX: u32 = 64;
/// How many of them follow each other as fast as other connections let them.
const DRAIN_YIELDS: u32 = 24;
/// Attempts to give back a connection whose send queue is still too long for a snapshot.
const DRAIN_ATTEMPTS_MAX: u32 = 2000;
/// Pause between two attempts.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);

/// What reaches the task that has a connection's stream.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    abort: Cell<bool>,
    recall: Cell<Option<ReturnReason>>,
    terms: Cell<Option<Terms>>,
    waker: RefCell<Option<Waker>>,
}

/// A connection that was given back: its frozen socket, and what RETURN said of it.
#[derive(Debug)]
pub(crate) struct Grave {
    pub(crate) stream: Stream,
    pub(crate) known: Known,
    returned: TcpSnapshot,
    usage: Usage,
}

impl Orders {
    /// The lease is over.
    pub(crate) fn abort(&self) {
        self.abort.set(true);
        self.wake();
    }

    pub(crate) fn recall(&self, reason: ReturnReason) {
        self.recall.set(Some(reason));
        self.wake();
    }

    pub(crate) fn set_terms(&self, terms: Terms) {
        self.terms.set(Some(terms));
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits until `ready` yields something.
    async fn until<T>(&self, mut ready: impl FnMut(&Orders) -> Option<T>) -> T {
        poll_fn(|context| match ready(self) {
            Some(value) => Poll::Ready(value),
            None => {
                *self.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

/// What became of a connection that was to be given back.
#[derive(Debug)]
pub enum GivenBack {
    /// It is gone.
    Gone,
    /// It cannot be given back now: answer one more request.
    Stay(Box<Lease>),
}

/// An adopted connection.
#[derive(Debug)]
pub struct Lease {
    stream: Stream,
    peer: Rc<Peer>,
    id: ConnectionId,
    orders: Rc<Orders>,
    known: Known,
    /// Written by the previous owner, not sent yet.
    unsent: Vec<u8>,
    terms: Terms,
    requests: u32,
    ended: bool,
}

impl Lease {
    pub(crate) fn new(
        peer: Rc<Peer>,
        id: ConnectionId,
        orders: Rc<Orders>,
        stream: Stream,
        unsent: Vec<u8>,
        known: Known,
    ) -> Lease {
        let none = Terms { scope: 0, requests_max: 1, idle_return_ms: 0 };
        let terms = orders.terms.get().unwrap_or(none);
        Lease { stream, peer, id, orders, known, unsent, terms, requests: 0, ended: false }
    }

    /// The connection's stream. Between requests its input is where the next request starts.
    pub fn stream(&mut self) -> &mut Stream {
        &mut self.stream
    }

    /// The client's address.
    pub fn peer_address(&self) -> SocketAddr {
        self.stream.peer()
    }

    /// Sends what the previous owner had written and could not send. To be called once, before
    /// anything else is written.
    ///
    /// # Errors
    /// The socket's.
    pub async fn begin(&mut self) -> io::Result<()> {
        let unsent = std::mem::take(&mut self.unsent);
        if unsent.is_empty() {
            return Ok(());
        }
        // Already sealed where there is TLS: it goes out as it is.
        self.stream.write_raw(&unsent).await
    }

    /// Without a request for this long, the connection is to be given back.
    pub fn idle_return(&self) -> Duration {
        Duration::from_millis(self.terms.idle_return_ms.into())
    }

    /// Whether a request for `path` on `host` may be answered here; otherwise the reason to give
    /// the connection back. The first request of an adoption always may: the balancer chose.
    pub fn admits(&self, host: Option<&str>, path: &str) -> Result<(), ReturnReason> {
        if self.requests == 0 {
            return Ok(());
        }
        if self.requests >= self.terms.requests_max {
            return Err(ReturnReason::TermsUsed);
        }
        match Agent::scope(&self.peer, &self.terms) {
            Some(scope) if scope.admits(host, path) => Ok(()),
            _ => Err(ReturnReason::NextRequest),
        }
    }

    /// Counts a request as answered.
    pub fn count_request(&mut self) {
        self.requests = self.requests.saturating_add(1);
    }

    /// Waits until the balancer wants the connection back.
    pub fn recalled(&self) -> impl Future<Output = ReturnReason> + 'static {
        let orders = Rc::clone(&self.orders);
        async move { orders.until(|orders| orders.recall.take()).await }
    }

    /// Waits until the lease is over: the balancer was not heard of, so the client's packets do
    /// not come here any more. The caller drops what it does and calls [`Lease::abort`].
    pub fn aborted(&self) -> impl Future<Output = ()> + 'static {
        let orders = Rc::clone(&self.orders);
        async move { orders.until(|orders| orders.abort.get().then_some(())).await }
    }

    fn usage(&self) -> Usage {
        Usage {
            requests: self.requests,
            sent_bytes: self.stream.sent_bytes(),
            received_bytes: self.stream.received_bytes(),
        }
    }

    /// The connection ended here; the stream is closed by dropping it.
    pub fn close(mut self, agent: &Agent, reason: CloseReason) {
        self.end(agent, reason);
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
            if let handoff::taker::Action::Closed(epoch, reason) = action {
                let (id, usage) = (self.id, self.usage());
                self.peer.outbox.push(&Frame::Closed { id, epoch, reason, usage });
            }
        }
    }

    /// Closes the connection with a RST, so that the client knows at once.
    pub fn abort(self) {
        reset(self.stream);
    }

    /// Gives the connection back to the balancer, with the next request if it has come. To be
    /// called only between requests.
    pub async fn give_back(mut self, agent: &Agent, reason: ReturnReason) -> GivenBack {
        let returned = match self.freeze().await {
            Ok(tcp) => tcp,
            Err(error) => {
                tracing::debug!(flow = %self.known.flow, %error, "cannot be given back");
                let _ = repair::thaw(self.stream.tcp());
                // What the client asked for is still owed.
                self.requests = 0;
                return GivenBack::Stay(Box::new(self));
            }
        };
        agent.meter.add(Event::Released(trigger(reason)));
        self.ended = true;
        let (usage, id, peer) = (self.usage(), self.id, Rc::clone(&self.peer));
        let grave = Grave { stream: self.stream, known: self.known, returned, usage };
        match peer.connections.borrow_mut().get_mut(&id) {
            Some(adopted) => adopted.grave = Some(Box::new(grave)),
            // Aborted in this very turn.
            None => return GivenBack::Gone,
        }
        let now = agent.now();
        agent.step(&peer, id, |taker| taker.handle_want_return(reason, now));
        agent.note_returned(&peer, id);
        GivenBack::Gone
    }

    /// Waits a moment for the client to acknowledge the last response: what is acknowledged need
    /// not move, and a frozen socket with data in flight would send it again.
    async fn drained(&self) {
        for turn in 0..DRAIN_TURNS_MAX {
            match repair::unacknowledged_bytes(self.stream.tcp()) {
                Ok(1..) => {}
                _ => return,
            }
            match turn {
                0..DRAIN_YIELDS => tokio::task::yield_now().await,
                _ => tokio::time::sleep(DRAIN_PAUSE).await,
            }
        }
    }

    /// Freezes the connection and reads its state.
    async fn freeze(&mut self) -> Result<TcpSnapshot, RepairError> {
        self.drained().await;
        let mut attempts = 0;
        loop {
            repair::freeze(self.stream.tcp())?;
            match repair::snapshot(self.stream.tcp(), &self.known, Accept::PeerClosed) {
                Err(RepairError::QueueTooLong { .. }) if attempts < DRAIN_ATTEMPTS_MAX => {
                    // The client has yet to read earlier responses.
                    repair::thaw(self.stream.tcp())?;
                    attempts += 1;
                    tokio::time::sleep(DRAIN_PAUSE).await;
                }
                other => return other,
            }
        }
    }
}

impl Agent {
    /// RETURN, with the state of the frozen socket as it is now.
    pub(crate) fn send_return(
        &self,
        peer: &Peer,
        id: ConnectionId,
        adopted: &mut Adopted,
        epoch: Epoch,
        reason: ReturnReason,
    ) {
        let Some(grave) = adopted.grave.as_mut() else { return };
        if let Some(newer) = grave.newer() {
            grave.returned = newer;
        }
        let mut snapshot = Vec::with_capacity(512 + grave.stream.input().len());
        let whole = Snapshot {
            tcp: TcpSnapshot {
                peer_closed: grave.returned.peer_closed || grave.stream.has_ended(),
                ..grave.returned.clone()
            },
            tls: grave.stream.record().map(record::RecordLayer::to_snapshot),
            plaintext: grave.stream.input().to_vec(),
        };
        whole.encode(&mut snapshot);
        let usage = grave.usage;
        peer.outbox.push(&Frame::Return { id, epoch, reason, usage, snapshot });
    }

    /// Forwards what a frozen socket received since it was last looked at.
    pub(crate) fn forward_late(&self, grave: &mut Grave, balancer: Mac) {
        let Some(newer) = grave.newer() else { return };
        let frames = late_frames(&grave.returned, &newer, self.link.mac, balancer);
        for frame in frames.unwrap_or_default() {
            self.meter.add(Event::LateForwarded);
            if let Err(error) = self.frames.send(&frame) {
                tracing::warn!(flow = %grave.known.flow, %error, "late packet lost");
            }
        }
        grave.returned = newer;
    }

    /// Closes the frozen socket of a connection that is elsewhere, silently.
    pub(crate) fn bury(&self, peer: &Peer, adopted: &mut Adopted) {
        if let Some(mut grave) = adopted.grave.take() {
            self.forward_late(&mut grave, peer.mac.get());
        }
    }

    /// The lease is over: the client is told by a RST.
    pub(crate) fn abort(&self, adopted: &mut Adopted) {
        self.meter.add(Event::AdoptedExpired);
        match adopted.grave.take() {
            None => adopted.orders.abort(),
            Some(grave) => {
                let _ = repair::thaw(grave.stream.tcp());
                reset(grave.stream);
            }
        }
    }
}

impl Grave {
    /// The socket's state, where it differs from what is known in a way that matters.
    fn newer(&self) -> Option<TcpSnapshot> {
        let info = TcpInfo::of(self.stream.tcp()).ok()?;
        if info.segs_in == self.returned.segments_in {
            return None;
        }
        // A socket that was reset meanwhile cannot be read; the new owner meets the RST's cause.
        let newer = repair::snapshot(self.stream.tcp(), &self.known, Accept::PeerClosed).ok()?;
        newer.supersedes(&self.returned).then_some(newer)
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

fn trigger(reason: ReturnReason) -> Trigger {
    match reason {
        ReturnReason::NextRequest => Trigger::OtherServer,
        ReturnReason::TermsUsed => Trigger::Granted,
        ReturnReason::Idle => Trigger::Idle,
        ReturnReason::Draining => Trigger::Drain,
        ReturnReason::Recalled => Trigger::Recalled,
    }
}
