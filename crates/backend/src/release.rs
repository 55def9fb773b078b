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

use linux::info::TcpInfo;
use linux::repair::{self, Accept, Known, RepairError};
use meter::{Event, Trigger};
use service::stream::Stream;
use wire::frame::{CloseReason, ConnectionId, Epoch, Frame, ReturnReason, Terms, Usage};
use wire::snapshot::{Snapshot, TcpSnapshot};

use crate::agent::{Agent, Peer};

/// Attempts to give back a connection whose send queue is still too long for a snapshot.
const DRAIN_ATTEMPTS_MAX: u32 = 2000;
/// Pause between two attempts.
const DRAIN_PAUSE: Duration = Duration::from_millis(5);

/// What the agent tells the task that has a connection's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Freeze, take a snapshot and send RETURN.
    Return(ReturnReason),
    /// RETURN was taken: send DONE and close silently.
    Taken,
    /// Thaw and go on under the new terms.
    Stay,
    /// Close with a RST.
    Abort,
}

/// The mailbox between a worker's agent and the task of one connection.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    order: Cell<Option<Order>>,
    recall: Cell<Option<ReturnReason>>,
    terms: Cell<Option<Terms>>,
    waker: RefCell<Option<Waker>>,
}

impl Orders {
    pub(crate) fn give(&self, order: Order) {
        // The machine gives one order at a time, and each needs an answer of the task before the
        // next; only an abort may overtake.
        self.order.set(Some(order));
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
    /// It stays: answer on under new terms.
    Stay(Lease),
}

/// An adopted connection.
#[derive(Debug)]
pub struct Lease {
    stream: Stream,
    peer: Rc<Peer>,
    id: ConnectionId,
    epoch: Epoch,
    orders: Rc<Orders>,
    known: Known,
    /// What RETURN carried, until the balancer answers.
    returned: Option<TcpSnapshot>,
    /// Written by the previous owner, not sent yet.
    unsent: Vec<u8>,
    terms: Terms,
    requests: u32,
    ended: bool,
}

impl Lease {
    pub(crate) fn new(
        peer: Rc<Peer>,
        (id, epoch): (ConnectionId, Epoch),
        orders: Rc<Orders>,
        stream: Stream,
        unsent: Vec<u8>,
        known: Known,
    ) -> Lease {
        let none = Terms { scope: 0, requests_max: 1, idle_return_ms: 0 };
        let terms = orders.terms.get().unwrap_or(none);
        Lease {
            stream,
            peer,
            id,
            epoch,
            orders,
            known,
            returned: None,
            unsent,
            terms,
            requests: 0,
            ended: false,
        }
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
        async move { orders.until(|o| (o.order.get() == Some(Order::Abort)).then_some(())).await }
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
        let parts = self.stream.into_parts();
        if let Ok(tcp) = parts.tcp.into_std()
            && let Err(error) = repair::abort(tcp.into())
        {
            tracing::debug!(%error, "abort");
        }
    }

    /// Gives the connection back to the balancer, with the next request if it has come. To be
    /// called only between requests.
    pub async fn give_back(mut self, agent: &Agent, reason: ReturnReason) -> GivenBack {
        agent.step(&self.peer, self.id, |taker| taker.handle_want_return(reason));
        loop {
            let order = self.orders.until(|orders| orders.order.take()).await;
            match order {
                Order::Return(reason) => {
                    if let Err(error) = self.send_return(reason).await {
                        tracing::debug!(flow = %self.known.flow, %error, "cannot be given back");
                        return self.stay_after_failure(agent, &error);
                    }
                }
                Order::Taken => {
                    agent.meter.add(Event::Released(trigger(reason)));
                    self.finish(agent);
                    return GivenBack::Gone;
                }
                Order::Stay => {
                    if repair::thaw(self.stream.tcp()).is_err() {
                        self.end(agent, CloseReason::Broken);
                        return GivenBack::Gone;
                    }
                    self.terms = self.orders.terms.get().unwrap_or(self.terms);
                    self.requests = 0;
                    return GivenBack::Stay(self);
                }
                Order::Abort => {
                    let _ = repair::thaw(self.stream.tcp());
                    self.abort();
                    return GivenBack::Gone;
                }
            }
        }
    }

    fn stay_after_failure(mut self, agent: &Agent, error: &RepairError) -> GivenBack {
        let _ = repair::thaw(self.stream.tcp());
        if let Some(adopted) = self.peer.connections.borrow_mut().get_mut(&self.id) {
            adopted.taker.handle_return_failed();
        }
        match error {
            // Half-closed: what the client asked for is still owed. One more round.
            RepairError::NotEstablished(_) => {
                self.requests = 0;
                GivenBack::Stay(self)
            }
            _ => {
                self.end(agent, CloseReason::Broken);
                GivenBack::Gone
            }
        }
    }

    /// Freezes the connection and sends RETURN with its snapshot.
    async fn send_return(&mut self, reason: ReturnReason) -> Result<(), RepairError> {
        let mut attempts = 0;
        let tcp = loop {
            repair::freeze(self.stream.tcp())?;
            match repair::snapshot(self.stream.tcp(), &self.known, Accept::PeerClosed) {
                Err(RepairError::QueueTooLong { .. }) if attempts < DRAIN_ATTEMPTS_MAX => {
                    // The client has yet to read earlier responses.
                    repair::thaw(self.stream.tcp())?;
                    attempts += 1;
                    tokio::time::sleep(DRAIN_PAUSE).await;
                }
                other => break other?,
            }
        };
        let (id, epoch, usage) = (self.id, self.epoch, self.usage());
        self.returned = Some(tcp.clone());
        let mut snapshot = Vec::new();
        self.whole(tcp).encode(&mut snapshot);
        self.peer.outbox.push(&Frame::Return { id, epoch, reason, usage, snapshot });
        Ok(())
    }

    fn whole(&self, mut tcp: TcpSnapshot) -> Snapshot {
        tcp.peer_closed |= self.stream.has_ended();
        Snapshot {
            tcp,
            tls: self.stream.record().map(record::RecordLayer::to_snapshot),
            plaintext: self.stream.input().to_vec(),
        }
    }

    /// TAKEN came: looks for changes since the snapshot, sends DONE, and closes silently.
    fn finish(mut self, agent: &Agent) {
        self.ended = true;
        let (id, epoch, usage) = (self.id, self.epoch, self.usage());
        let frame = match self.late_change() {
            Ok(late) => {
                agent.bounce(&self.known.flow, self.peer.mac.get());
                Frame::Done { id, epoch, late }
            }
            // A RST came in between: there is nothing left to move.
            Err(error) => {
                tracing::debug!(flow = %self.known.flow, %error, "ended while it was returned");
                Frame::Closed { id, epoch, reason: CloseReason::ByClient, usage }
            }
        };
        self.peer.outbox.push(&frame);
    }

    /// The newer snapshot, where the client's packets changed the frozen socket.
    fn late_change(&self) -> Result<Option<Vec<u8>>, RepairError> {
        let Some(returned) = &self.returned else { return Ok(None) };
        let info = TcpInfo::of(self.stream.tcp())
            .map_err(|source| RepairError::Call { call: "TCP_INFO", source })?;
        if info.segs_in == returned.segments_in {
            return Ok(None);
        }
        let newer = repair::snapshot(self.stream.tcp(), &self.known, Accept::PeerClosed)?;
        if !newer.supersedes(returned) {
            return Ok(None);
        }
        let mut late = Vec::new();
        self.whole(newer).encode(&mut late);
        Ok(Some(late))
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
