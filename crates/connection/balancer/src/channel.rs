//! Control channels of one worker, one per server: keeps them connected and passes their frames to
//! the connections.

use std::cell::Cell;
use std::collections::HashMap;
use std::io::ErrorKind;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::timeout;
use unlade_channel::channel::{Channel, ChannelError, ESTABLISH_TIMEOUT, LateFrames};
use unlade_channel::trust::{Membership, server_name};
use unlade_handoff_protocol::frame::{
    ClientBytes, ConnectionId, Epoch, Frame, PROTOCOL_VERSION, ReturnReason, UNREAD_BYTES_MAX,
    Usage,
};
use unlade_metrics::{Event, Gauge, Mode, Stage};
use unlade_sys::link::Mac;

use crate::auto::LeaveReason;
use crate::flows::{Flow, Flows, Remote, Unread};
use crate::frames;
use crate::pace::AnsweredBy;
use crate::scopes::Scopes;

/// Pause before the first attempt to reconnect; doubled after every failure. It is long enough for
/// a client to acknowledge bytes that a server sent before it died, so that the flow's counters
/// show the acknowledgement.
const RETRY_MIN: Duration = Duration::from_millis(250);
/// Longest pause between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Identity of this worker towards its servers.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Random number of this run of this worker.
    pub instance: u64,
    /// Name in the servers' logs.
    pub name: String,
}

/// Membership of the balancer in the server's pool, for which a channel is kept; `None` where the
/// server is in no pool any more.
pub(crate) type Wanted = Option<Arc<Membership>>;

/// A channel on which the server has answered, and the connections that it reports.
struct GreetedChannel {
    channel: Channel,
    mac: Mac,
    owned: HashMap<ConnectionId, Epoch>,
}

/// Reason for leaving a channel.
enum ChannelEnd {
    /// Another channel is open already.
    Next(Box<GreetedChannel>),
    /// The channel broke.
    Broken(ChannelError),
    /// The server is in no pool any more, and no connection is at it.
    Retired,
}

impl Flows {
    /// Keeps the channel to one server connected until it is unwanted and no connection is at the
    /// server.
    pub(crate) async fn keep_channel(
        self: Rc<Self>,
        remote: Rc<Remote>,
        mut wanted: watch::Receiver<Wanted>,
        identity: Identity,
    ) {
        let Some(mut member) = wanted.borrow_and_update().clone() else { return };
        let mut pause = RETRY_MIN;
        loop {
            if let Some(newer) = wanted.borrow_and_update().clone() {
                member = newer;
            } else if !self.involve(remote.id) {
                return self.retire(&remote);
            }
            let mut after = match self.greet(&remote, &member, &identity).await {
                Ok(greeted) => {
                    pause = RETRY_MIN;
                    ChannelEnd::Next(Box::new(greeted))
                }
                Err(error) => ChannelEnd::Broken(error),
            };
            while let ChannelEnd::Next(greeted) = after {
                after = self.serve_channel(&remote, *greeted, &mut wanted, &identity).await;
            }
            let ChannelEnd::Broken(error) = after else { return self.retire(&remote) };
            if error.is_untrusted() {
                self.meter.add(Event::PeerUntrusted);
            }
            tracing::warn!(agent = %remote.agent, %error, retry = ?pause, "channel down");
            self.update_silence(&remote, &error);
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
                // An attempt with another identity may succeed at once.
                Ok(()) = wanted.changed() => {}
            }
        }
    }

    fn retire(&self, remote: &Remote) {
        self.set_silent(remote, false);
        tracing::info!(agent = %remote.agent, "channel closed: its server was removed from its pools");
    }

    /// Updates the silence of a server after a channel ended or could not be opened.
    fn update_silence(&self, remote: &Remote, error: &ChannelError) {
        match error {
            _ if error.is_silence() => self.set_silent(remote, true),
            // Still no answer, or no answer yet: the recorded silence stays as it is.
            ChannelError::Establish => {}
            ChannelError::Io(error) if error.kind() == ErrorKind::TimedOut => {}
            // Any other error proves that the server is alive.
            _ => self.set_silent(remote, false),
        }
    }

    /// Opens a channel and exchanges HELLO. The server replaces the previous channel with it.
    async fn greet(
        &self,
        remote: &Remote,
        member: &Membership,
        identity: &Identity,
    ) -> Result<GreetedChannel, ChannelError> {
        let (name, tls) = (server_name(remote.agent.ip()), Arc::clone(&member.client));
        let mut channel = Channel::connect(remote.agent, name, tls).await?;
        let hello = Frame::Hello {
            version: PROTOCOL_VERSION,
            instance: identity.instance,
            name: identity.name.clone(),
            mac: self.steering.link().mac,
            lease_ms: self.timing.get().lease_ms,
        };
        channel.send(&hello).await?;
        let Frame::Hello { mac, .. } = channel.receive().await? else {
            return Err(ChannelError::Protocol("the first frame is not HELLO"));
        };
        let Frame::Owned(owned) = channel.receive().await? else {
            return Err(ChannelError::Protocol("the second frame is not OWNED"));
        };
        channel.send(&frames::nothing()).await?;
        Ok(GreetedChannel { channel, mac, owned: owned.into_iter().collect() })
    }

    fn channel_up(&self, remote: &Remote, owned: &HashMap<ConnectionId, Epoch>) {
        *remote.scopes.borrow_mut() = Scopes::default();
        *remote.unread.borrow_mut() = None;
        for id in self.ids() {
            let epoch = owned.get(&id).copied();
            self.step(id, |flow, _| flow.exporter.handle_channel_up(remote.id, epoch));
        }
        let flows = self.flows.borrow();
        for (id, epoch) in owned {
            let is_there = |flow: &Flow| flow.exporter.has(remote.id, *epoch);
            if !flows.get(id).is_some_and(is_there) {
                self.send_abandon(*id, remote.id, *epoch);
            }
        }
    }

    /// Serves a channel until it breaks or is replaced.
    async fn serve_channel(
        &self,
        remote: &Remote,
        greeted: GreetedChannel,
        wanted: &mut watch::Receiver<Wanted>,
        identity: &Identity,
    ) -> ChannelEnd {
        let GreetedChannel { mut channel, mac, owned } = greeted;
        remote.mac.set(mac);
        let _open = remote.outbox.open();
        self.channel_up(remote, &owned);
        tracing::info!(agent = %remote.agent, "channel up");
        self.meter.add(Event::ChannelConnected);
        self.meter.gauge_add(Gauge::ChannelsUp, 1);
        self.set_silent(remote, false);
        remote.ready.set(wanted.borrow().is_some());
        let greeting = Cell::new(false);
        let mut following = std::pin::pin!(self.follow(remote, wanted, identity, &greeting));
        let mut after = tokio::select! {
            error = channel.serve(&remote.outbox, LateFrames::Handle, |frame| self.handle(remote, frame)) => {
                ChannelEnd::Broken(error)
            }
            () = remote.suspect.notified() => ChannelEnd::Broken(ChannelError::Silent),
            after = &mut following => after,
        };
        // The server closes this channel when it receives HELLO on the next one.
        if let (ChannelEnd::Broken(ChannelError::Closed | ChannelError::Io(_)), true) =
            (&after, greeting.get())
            && let Ok(next @ ChannelEnd::Next(_)) = timeout(ESTABLISH_TIMEOUT, following).await
        {
            after = next;
        }
        remote.ready.set(false);
        self.meter.gauge_add(Gauge::ChannelsUp, -1);
        self.meter.add(Event::ChannelBroken);
        for id in self.ids() {
            self.step(id, |flow, now| flow.exporter.handle_channel_down(remote.id, now));
        }
        after
    }

    /// Waits until the channel is wanted under another identity and opens one under it, while the
    /// present one stays in use; or waits until it is unwanted and no connection is at the server.
    /// `greeting` is true while the server may replace this channel with the next one.
    async fn follow(
        &self,
        remote: &Remote,
        wanted: &mut watch::Receiver<Wanted>,
        identity: &Identity,
        greeting: &Cell<bool>,
    ) -> ChannelEnd {
        let mut pause = RETRY_MIN;
        let mut is_new = false;
        loop {
            if !is_new && wanted.changed().await.is_err() {
                // The worker ends.
                std::future::pending::<()>().await;
            }
            let member = wanted.borrow_and_update().clone();
            let Some(member) = member else {
                remote.ready.set(false);
                tokio::select! {
                    () = self.wait_until_empty(remote) => return ChannelEnd::Retired,
                    Ok(()) = wanted.changed() => {
                        is_new = true;
                        continue;
                    }
                }
            };
            greeting.set(true);
            let greeted = self.greet(remote, &member, identity).await;
            greeting.set(false);
            let error = match greeted {
                Ok(greeted) => return ChannelEnd::Next(Box::new(greeted)),
                // A channel to an untrusted server is not kept.
                Err(error) if error.is_distrust() => return ChannelEnd::Broken(error),
                Err(error) => error,
            };
            let agent = remote.agent;
            tracing::warn!(%agent, %error, "the new identity is not accepted; the old channel stays");
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
                Ok(()) = wanted.changed() => {}
            }
            is_new = true;
        }
    }

    /// Waits until no connection is at a server that is in no pool.
    async fn wait_until_empty(&self, remote: &Remote) {
        let mut tick = unlade_runtime::ticker::every(unlade_runtime::ticker::TICK);
        while self.involve(remote.id) {
            tick.tick().await;
        }
    }

    fn handle(&self, remote: &Remote, frame: Frame) -> Result<(), ChannelError> {
        let from = remote.id;
        match frame {
            Frame::Ready { id, epoch, restore_tcp_ns, restore_tls_ns, held_ns } => {
                self.step(id, |flow, _| {
                    // The frame may have waited, although the connection was live.
                    flow.held = Duration::from_nanos(held_ns.into());
                    self.meter.record(Stage::Ship, flow.took());
                    self.meter
                        .record(Stage::RestoreTcp, Duration::from_nanos(restore_tcp_ns.into()));
                    if flow.tls {
                        self.meter
                            .record(Stage::RestoreTls, Duration::from_nanos(restore_tls_ns.into()));
                    }
                    flow.exporter.handle_ready(from, epoch)
                });
            }
            Frame::Refuse { id, epoch, reason } => {
                self.meter.add(Event::MigrationRefused);
                self.step(id, |flow, _| flow.exporter.handle_refuse(from, epoch, reason));
            }
            Frame::Unread { id, epoch, at_bytes, bytes } => {
                keep_unread(remote, (id, epoch), at_bytes, &bytes)?;
            }
            Frame::Return { id, epoch, reason, usage, unread_bytes, snapshot } => {
                let unread = take_unread(remote, (id, epoch), unread_bytes)?;
                self.meter.add_n(Event::BytesDirect, usage.sent_bytes);
                self.step(id, |flow, _| {
                    if !flow.exporter.expects_return(from, epoch) {
                        return Vec::new();
                    }
                    self.end_recall(id);
                    flow.snapshot = snapshot;
                    flow.unread = unread;
                    self.learn(flow, &usage, left(reason));
                    self.learn_pace(flow, &usage, reason);
                    flow.exporter.handle_return(from, epoch, reason)
                });
            }
            Frame::Closed { id, epoch, reason, usage } => {
                self.meter.add_n(Event::BytesDirect, usage.sent_bytes);
                self.step(id, |flow, _| {
                    self.learn(flow, &usage, LeaveReason::Done);
                    let candidate = &flow.assignment.candidate;
                    self.worker
                        .offload
                        .learn_connection(candidate.route, candidate.origin.requests);
                    flow.exporter.handle_closed(from, epoch, reason)
                });
            }
            Frame::Drain => remote.ready.set(false),
            _ => return Err(ChannelError::Protocol("a frame that only balancers send")),
        }
        Ok(())
    }

    /// Learns from a server's report about a connection.
    fn learn(&self, flow: &mut Flow, usage: &Usage, left: LeaveReason) {
        let idle_return = flow.idle_return;
        let candidate = &mut flow.assignment.candidate;
        candidate.origin.requests += u64::from(usage.requests);
        let more = u64::from(usage.requests.saturating_sub(1));
        self.meter.add_n(Event::Request(Mode::Stay), more);
        let (requests, bytes) = (u64::from(usage.requests), usage.sent_bytes);
        let offload = &self.worker.offload;
        offload.learn_returned(candidate.key, requests, bytes, left);
        offload.learn_idle_times_below(candidate.route, more, idle_return);
    }

    /// Learns the time that the client needed for each request, if the connection is back because
    /// of a further request.
    fn learn_pace(&self, flow: &Flow, usage: &Usage, reason: ReturnReason) {
        let next = matches!(reason, ReturnReason::NextRequest | ReturnReason::TermsUsed);
        let took = next.then(|| flow.started.elapsed());
        let served = (u64::from(usage.requests), usage.sent_bytes);
        let route = flow.assignment.candidate.route;
        self.worker.offload.learn_pace(route, AnsweredBy::Direct, served, took, Duration::ZERO);
    }
}

/// Returns the reason for leaving that the policy learns from a return.
fn left(reason: ReturnReason) -> LeaveReason {
    match reason {
        ReturnReason::NextRequest => LeaveReason::OtherServer,
        ReturnReason::Idle => LeaveReason::Idle,
        // The limit of the terms, or an operator's command.
        ReturnReason::TermsUsed | ReturnReason::Draining | ReturnReason::Recalled => {
            LeaveReason::Done
        }
    }
}

/// Handles UNREAD: keeps the bytes until RETURN. A channel keeps the bytes of one connection only.
fn keep_unread(
    remote: &Remote,
    of: (ConnectionId, Epoch),
    at_bytes: u32,
    bytes: &[u8],
) -> Result<(), ChannelError> {
    let mut kept = remote.unread.borrow_mut();
    if at_bytes == 0 {
        *kept = Some(Unread { id: of.0, epoch: of.1, bytes: ClientBytes::default() });
    }
    let fits = |kept: &&mut Unread| {
        (kept.id, kept.epoch) == of
            && kept.bytes.len() == at_bytes as usize
            && kept.bytes.len() + bytes.len() <= UNREAD_BYTES_MAX
    };
    match kept.as_mut().filter(fits) {
        Some(kept) => {
            kept.bytes.append(bytes);
            Ok(())
        }
        None => Err(ChannelError::Protocol("UNREAD out of order or beyond its limit")),
    }
}

/// Returns the bytes of the UNREAD frames before a RETURN.
fn take_unread(
    remote: &Remote,
    of: (ConnectionId, Epoch),
    bytes: u32,
) -> Result<ClientBytes, ChannelError> {
    if bytes == 0 {
        return Ok(ClientBytes::default());
    }
    let kept = remote.unread.borrow_mut().take();
    let fits = |kept: &Unread| (kept.id, kept.epoch) == of && kept.bytes.len() == bytes as usize;
    let kept = kept.filter(fits).map(|kept| kept.bytes);
    kept.ok_or(ChannelError::Protocol("RETURN without the UNREAD that it announces"))
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use tokio::sync::Notify;
    use unlade_migration::ServerId;

    use super::*;

    fn remote() -> Remote {
        Remote {
            id: ServerId(0),
            agent: "10.0.0.21:7900".parse().unwrap(),
            outbox: Default::default(),
            mac: Cell::default(),
            ready: Cell::new(true),
            suspect: Notify::new(),
            scopes: RefCell::default(),
            unread: RefCell::default(),
        }
    }

    #[test]
    fn unread_bytes_come_in_order_within_their_limit_and_with_their_return() {
        let (remote, one, two) =
            (remote(), (ConnectionId(1), Epoch(1)), (ConnectionId(2), Epoch(1)));
        assert!(take_unread(&remote, one, 0).unwrap().is_empty());
        keep_unread(&remote, one, 0, b"abc").unwrap();
        keep_unread(&remote, one, 3, b"de").unwrap();
        assert_eq!(&take_unread(&remote, one, 5).unwrap()[..], b"abcde");
        // The bytes are taken once only, and completely.
        assert!(take_unread(&remote, one, 5).is_err());
        keep_unread(&remote, one, 0, b"abc").unwrap();
        assert!(take_unread(&remote, one, 4).is_err());
        // A gap, and bytes of another connection.
        assert!(keep_unread(&remote, one, 3, b"de").is_err());
        keep_unread(&remote, one, 0, b"abc").unwrap();
        assert!(keep_unread(&remote, two, 3, b"de").is_err());
        assert!(take_unread(&remote, two, 3).is_err());
        // No more than a connection may have.
        let piece = vec![0; UNREAD_BYTES_MAX / 4];
        for at in 0..4 {
            keep_unread(&remote, two, (at * piece.len()) as u32, &piece).unwrap();
        }
        assert!(keep_unread(&remote, two, UNREAD_BYTES_MAX as u32, b"x").is_err());
    }
}
