//! The control channels of one worker, one a server: kept up, and their frames brought to the
//! connections they are about.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use meter::{Event, Gauge, Mode, Stage};
use rustls::ClientConfig;
use service::channel::{Channel, ChannelError, Late, Opened};
use service::trust::server_name;
use wire::frame::{
    ClientOctets, ConnectionId, Epoch, Frame, PROTOCOL_VERSION, ReturnReason, UNREAD_BYTES_MAX,
    Usage,
};

use crate::flows::{Flow, Flows, Remote, Scopes, Unread};
use crate::pace::Way;
use crate::ship;

/// Pause before the first attempt to reconnect; doubled with every failure. Long enough for a client
/// to acknowledge what a server may have sent before it died: then it shows in the flow.
const RETRY_MIN: Duration = Duration::from_millis(250);
/// Longest pause between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// Who this worker is to its servers.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    /// Random number of this run of this worker.
    pub instance: u64,
    /// For the servers' logs.
    pub name: String,
}

impl Flows {
    /// Keeps the channel to one server up until the task is dropped.
    pub(crate) async fn keep_channel(
        self: Rc<Self>,
        remote: Rc<Remote>,
        tls: Arc<ClientConfig>,
        identity: Identity,
    ) {
        let mut pause = RETRY_MIN;
        loop {
            let error = match self.open_channel(&remote, &tls, &identity).await {
                Ok((channel, _open)) => {
                    pause = RETRY_MIN;
                    self.serve_channel(&remote, channel).await
                }
                Err(error) => error,
            };
            if error.is_untrusted() {
                self.meter.add(Event::PeerUntrusted);
            }
            tracing::warn!(agent = %remote.agent, %error, retry = ?pause, "channel down");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(RETRY_MAX);
        }
    }

    async fn open_channel(
        &self,
        remote: &Remote,
        tls: &Arc<ClientConfig>,
        identity: &Identity,
    ) -> Result<(Channel, Opened), ChannelError> {
        let name = server_name(remote.agent.ip());
        let mut channel = Channel::connect(remote.agent, name, Arc::clone(tls)).await?;
        let hello = Frame::Hello {
            version: PROTOCOL_VERSION,
            instance: identity.instance,
            name: identity.name.clone(),
            mac: self.steering.link().mac,
            lease_ms: self.timing.lease_ms,
        };
        channel.send(&hello).await?;
        match channel.receive().await? {
            Frame::Hello { mac, .. } => remote.mac.set(mac),
            _ => return Err(ChannelError::Protocol("the first frame is not HELLO")),
        }
        let owned = match channel.receive().await? {
            Frame::Owned(list) => list.into_iter().collect::<HashMap<_, _>>(),
            _ => return Err(ChannelError::Protocol("the second frame is not OWNED")),
        };
        channel.send(&ship::nothing()).await?;
        let open = remote.outbox.open();
        self.channel_up(remote, &owned);
        Ok((channel, open))
    }

    fn channel_up(&self, remote: &Remote, owned: &HashMap<ConnectionId, Epoch>) {
        *remote.scopes.borrow_mut() = Scopes::default();
        *remote.unread.borrow_mut() = None;
        for id in self.ids() {
            let epoch = owned.get(&id).copied();
            self.step(id, |flow, _| flow.giver.handle_channel_up(remote.id, epoch));
        }
        let flows = self.flows.borrow();
        for (id, epoch) in owned {
            let is_there = |flow: &Flow| flow.giver.has(remote.id, *epoch);
            if !flows.get(id).is_some_and(is_there) {
                self.send_abandon(*id, remote.id, *epoch);
            }
        }
    }

    async fn serve_channel(&self, remote: &Remote, mut channel: Channel) -> ChannelError {
        tracing::info!(agent = %remote.agent, "channel up");
        self.meter.add(Event::ChannelConnected);
        self.meter.gauge_add(Gauge::ChannelsUp, 1);
        remote.ready.set(true);
        let error = tokio::select! {
            error = channel.serve(&remote.outbox, Late::Handle, |frame| self.handle(remote, frame)) => error,
            () = remote.suspect.notified() => ChannelError::Silent,
        };
        remote.ready.set(false);
        self.meter.gauge_add(Gauge::ChannelsUp, -1);
        self.meter.add(Event::ChannelBroken);
        for id in self.ids() {
            self.step(id, |flow, now| flow.giver.handle_channel_down(remote.id, now));
        }
        error
    }

    fn handle(&self, remote: &Remote, frame: Frame) -> Result<(), ChannelError> {
        let from = remote.id;
        match frame {
            Frame::Ready { id, epoch, restore_tcp_ns, restore_tls_ns } => {
                self.step(id, |flow, _| {
                    self.meter.record(Stage::Ship, flow.started.elapsed());
                    self.meter
                        .record(Stage::RestoreTcp, Duration::from_nanos(restore_tcp_ns.into()));
                    if flow.tls {
                        self.meter
                            .record(Stage::RestoreTls, Duration::from_nanos(restore_tls_ns.into()));
                    }
                    flow.giver.handle_ready(from, epoch)
                });
            }
            Frame::Refuse { id, epoch, reason } => {
                self.meter.add(Event::MigrationRefused);
                self.step(id, |flow, _| flow.giver.handle_refuse(from, epoch, reason));
            }
            Frame::Unread { id, epoch, at_bytes, octets } => {
                keep_unread(remote, (id, epoch), at_bytes, &octets)?;
            }
            Frame::Return { id, epoch, reason, usage, unread_bytes, snapshot } => {
                let unread = take_unread(remote, (id, epoch), unread_bytes)?;
                self.meter.add_n(Event::BytesDirect, usage.sent_bytes);
                self.step(id, |flow, _| {
                    if !flow.giver.expects_return(from, epoch) {
                        return Vec::new();
                    }
                    flow.snapshot = snapshot;
                    flow.unread = unread;
                    self.learn(flow, &usage, reason == ReturnReason::NextRequest);
                    self.learn_pace(flow, &usage, reason);
                    flow.giver.handle_return(from, epoch, reason)
                });
            }
            Frame::Closed { id, epoch, reason, usage } => {
                self.meter.add_n(Event::BytesDirect, usage.sent_bytes);
                self.step(id, |flow, _| {
                    self.learn(flow, &usage, true);
                    flow.giver.handle_closed(from, epoch, reason)
                });
            }
            Frame::Drain => remote.ready.set(false),
            _ => return Err(ChannelError::Protocol("a frame that only balancers send")),
        }
        Ok(())
    }

    /// A server reports what it did with a connection.
    fn learn(&self, flow: &mut Flow, usage: &Usage, departed: bool) {
        let candidate = &mut flow.assignment.candidate;
        candidate.home.requests += u64::from(usage.requests);
        let more = usage.requests.saturating_sub(1);
        self.meter.add_n(Event::Request(Mode::Stay), more.into());
        let (requests, bytes) = (u64::from(usage.requests), usage.sent_bytes);
        self.worker.offload.learn_returned(candidate.key, requests, bytes, departed);
    }

    /// How long the client needed for each request, where the connection is back because of one
    /// more.
    fn learn_pace(&self, flow: &Flow, usage: &Usage, reason: ReturnReason) {
        let next = matches!(reason, ReturnReason::NextRequest | ReturnReason::TermsUsed);
        let took = next.then(|| flow.started.elapsed());
        let served = (u64::from(usage.requests), usage.sent_bytes);
        let route = flow.assignment.candidate.route;
        self.worker.offload.learn_pace(route, Way::Direct, served, took);
    }

    /// Asks every connection that is away to come home.
    pub(crate) fn recall_all(&self) {
        let flows = self.flows.borrow();
        for (id, flow) in flows.iter() {
            if let (true, Some(server)) = (flow.giver.is_owned(), flow.giver.server()) {
                self.send_recall(*id, server, flow.giver.epoch());
            }
        }
    }
}

/// UNREAD: keeps the octets until RETURN. Only one connection's are kept for a channel.
fn keep_unread(
    remote: &Remote,
    of: (ConnectionId, Epoch),
    at_bytes: u32,
    octets: &[u8],
) -> Result<(), ChannelError> {
    let mut kept = remote.unread.borrow_mut();
    if at_bytes == 0 {
        *kept = Some(Unread { id: of.0, epoch: of.1, octets: ClientOctets::default() });
    }
    let fits = |kept: &&mut Unread| {
        (kept.id, kept.epoch) == of
            && kept.octets.len() == at_bytes as usize
            && kept.octets.len() + octets.len() <= UNREAD_BYTES_MAX
    };
    match kept.as_mut().filter(fits) {
        Some(kept) => {
            kept.octets.append(octets);
            Ok(())
        }
        None => Err(ChannelError::Protocol("UNREAD out of order or beyond its limit")),
    }
}

/// What the UNREAD frames before a RETURN brought.
fn take_unread(
    remote: &Remote,
    of: (ConnectionId, Epoch),
    bytes: u32,
) -> Result<ClientOctets, ChannelError> {
    if bytes == 0 {
        return Ok(ClientOctets::default());
    }
    let kept = remote.unread.borrow_mut().take();
    let fits = |kept: &Unread| (kept.id, kept.epoch) == of && kept.octets.len() == bytes as usize;
    let kept = kept.filter(fits).map(|kept| kept.octets);
    kept.ok_or(ChannelError::Protocol("RETURN without the UNREAD that it announces"))
}
