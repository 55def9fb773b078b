//! The connections that are away from this worker or moving, and the servers that have them.
//!
//! Each has an [`Exporter`], which makes the decisions. This module and the stages around it carry
//! them out: [`crate::freeze`] (home → snapshot), [`crate::frames`] (frames), [`crate::reclaim`]
//! (snapshot → home). [`crate::channel`] passes the servers' frames on.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use unlade_channel::channel::Outbox;
use unlade_handoff_protocol::frame::{ClientBytes, CloseReason, ConnectionId, Epoch, ReturnReason};
use unlade_handoff_protocol::snapshot::EncodedSnapshot;
use unlade_metrics::{Event, Fallback, Gauge, GaugeGuard, Meter, Mode, Stage, Trigger};
use unlade_migration::exporter::{Action, Choice, Exporter, MigrationFailure, Timing};
use unlade_migration::{Millis, ServerId};
use unlade_net::SeqNumber;
use unlade_net::state::TcpSnapshot;
use unlade_runtime::Stream;
use unlade_runtime::stream::Parts;
use unlade_steering::{FlowEntry, Steering, TrackedState, Windows};
use unlade_sys::link::Mac;
use unlade_sys::repair::Known;

use crate::fallback::{Declined, FallbackContext};
use crate::journal::{Journal, JournalEntry};
use crate::lingering::Lingering;
use crate::machine::Machine;
use crate::offload::{Candidate, Kept, ReturnInfo};
use crate::placement;
use crate::pool::{AtServer, Server};
use crate::scopes::Scopes;
use crate::worker::Worker;

/// Time after which a RECALL without effect is sent again.
const RECALL_AGAIN: Duration = Duration::from_secs(1);

/// How long the client's packets come here after a reset, so that it receives the RST reliably.
const RESET_LOCAL: Duration = Duration::from_millis(300);
/// How long they then go to the unreachable owner. If its process died, its kernel still tries to
/// send, and the client's RST ends that.
const RESET_LINGER: Duration = Duration::from_secs(15);

/// The server chosen for a connection, and the request that it was chosen for.
#[derive(Debug)]
pub(crate) struct Assignment {
    /// The request, its route and its server.
    pub candidate: Candidate,
    /// The server's agent.
    pub agent: SocketAddr,
    /// Counts towards the server's load while the server has the connection.
    _at_server: AtServer,
}

impl Assignment {
    /// Returns `None` where the server has no agent.
    pub(crate) fn new(candidate: Candidate) -> Option<Assignment> {
        let server = candidate.pool.servers.get(candidate.server)?;
        let agent = server.agent?;
        let at_server = AtServer::begin(Arc::clone(server));
        Some(Assignment { candidate, agent, _at_server: at_server })
    }
}

/// A server as seen by this worker.
#[derive(Debug)]
pub(crate) struct Remote {
    pub id: ServerId,
    pub agent: SocketAddr,
    pub outbox: Outbox,
    pub mac: Cell<Mac>,
    /// HELLO was exchanged, and the server does not drain: offers may be sent.
    pub ready: Cell<bool>,
    /// Notified when the server does not answer, to end the channel.
    pub suspect: Notify,
    /// Scopes that are defined to the server on the present channel.
    pub scopes: RefCell<Scopes>,
    /// Bytes of the UNREAD frames for the RETURN that follows them.
    pub unread: RefCell<Option<Unread>>,
}

/// Input of a connection that is about to come back, behind the plaintext of its snapshot.
#[derive(Debug)]
pub(crate) struct Unread {
    pub id: ConnectionId,
    pub epoch: Epoch,
    pub bytes: ClientBytes,
}

/// The result of handing over a local connection.
pub(crate) enum HandoverResult {
    /// The server has it.
    Gone,
    /// The connection is still here.
    Kept(Kept),
}

/// A connection that is away or moving.
pub(crate) struct Flow {
    /// Counts it in the gauge that fits its state.
    pub gauge: GaugeGuard,
    pub exporter: Exporter,
    pub slot: FlowEntry,
    /// As long as it has no socket here.
    pub _noted: Option<JournalEntry>,
    pub known: Known,
    /// The newest snapshot, encoded.
    pub snapshot: EncodedSnapshot,
    /// Input behind the snapshot's plaintext.
    pub unread: ClientBytes,
    /// Sequence number behind the last byte that its owners have sent, according to the newest
    /// snapshot.
    pub send_end: SeqNumber,
    pub tls: bool,
    pub assignment: Assignment,
    /// While the socket is still here: the frozen connection, and the receiver of the result.
    pub local: Option<Local>,
    /// Start of the present migration.
    pub started: Instant,
    /// The present offer goes to the server that returned the connection.
    pub stays: bool,
    /// The connection is over, but its last packets are still redirected.
    pub linger: bool,
    /// The owner of a connection that was reset.
    pub reset: Option<ServerId>,
    /// Idle time of the client after which the server returns the connection.
    pub idle_return: Duration,
    /// Reason of the last return.
    pub returned: Option<ReturnReason>,
    /// A server was sent the request at the front of the input and has not reported if it answered
    /// it.
    pub is_ambiguous: bool,
    /// Epoch and time of the last RECALL.
    pub recalled: Option<(Epoch, Instant)>,
}

impl Flow {
    /// Returns the request and the server that the connection was last offered for.
    pub(crate) fn context(&self) -> FallbackContext<'_> {
        let candidate = &self.assignment.candidate;
        FallbackContext {
            route: candidate.plan.routes.get(candidate.route),
            server: candidate.pool.servers.get(candidate.server).map(|server| &**server),
            client: self.slot.flow().client,
        }
    }
}

/// The local part of a flow.
pub(crate) struct Local {
    pub parts: Parts,
    /// The state that the newest snapshot describes.
    pub tcp: TcpSnapshot,
    pub reply: oneshot::Sender<HandoverResult>,
}

/// Receives a connection that comes home; must not wait.
pub(crate) type Home = Box<dyn Fn(Stream, ReturnInfo)>;

/// One worker's connections that are away.
pub(crate) struct Flows {
    pub worker: Rc<Worker>,
    pub home: Home,
    pub steering: Arc<Steering>,
    /// Restores congestion windows, if the machine supports it.
    pub windows: Option<Arc<Windows>>,
    /// Records connections that have no socket here.
    pub journal: Option<Arc<Journal>>,
    pub meter: Arc<Meter>,
    pub timing: Cell<Timing>,
    origin: Instant,
    first_id: u64,
    next_id: Cell<u64>,
    pub flows: RefCell<HashMap<ConnectionId, Flow>>,
    /// Connections whose state machine has a deadline. A tick checks only these.
    waiting: RefCell<HashSet<ConnectionId>>,
    /// Values of the steering's counters that are in the meter already.
    reported: Cell<[u64; 5]>,
    lingering: RefCell<Lingering<FlowEntry>>,
    /// Flows of connections that were reset, and the owners they had.
    orphaned: RefCell<VecDeque<(Instant, FlowEntry, Mac)>>,
    /// Those whose packets go to these owners again.
    refused: RefCell<VecDeque<(Instant, FlowEntry)>>,
    remotes: RefCell<Vec<Rc<Remote>>>,
    /// Connections to be recalled, whatever their terms.
    to_recall: RefCell<HashSet<ConnectionId>>,
}

impl Flows {
    pub(crate) fn new(
        worker: Rc<Worker>,
        machine: Machine,
        timing: Timing,
        linger: Duration,
        home: Home,
    ) -> Rc<Flows> {
        Rc::new(Flows {
            meter: Arc::clone(&worker.meter),
            first_id: (worker.info.index as u64) << 48,
            journal: machine.journal,
            worker,
            home,
            steering: machine.steering,
            windows: machine.windows,
            timing: Cell::new(timing),
            origin: Instant::now(),
            next_id: Cell::new(0),
            flows: RefCell::default(),
            waiting: RefCell::default(),
            reported: Cell::default(),
            lingering: RefCell::new(Lingering::new(linger)),
            orphaned: RefCell::default(),
            refused: RefCell::default(),
            remotes: RefCell::default(),
            to_recall: RefCell::default(),
        })
    }

    pub(crate) fn now(&self) -> Millis {
        Millis(self.origin.elapsed().as_millis() as u64)
    }

    pub(crate) fn new_id(&self) -> ConnectionId {
        let next = self.next_id.get();
        self.next_id.set(next + 1);
        ConnectionId(self.first_id + next)
    }

    /// Returns the server whose agent is at `agent`; registers a new one.
    pub(crate) fn remote(&self, agent: SocketAddr) -> Rc<Remote> {
        let mut remotes = self.remotes.borrow_mut();
        if let Some(known) = remotes.iter().find(|remote| remote.agent == agent) {
            return Rc::clone(known);
        }
        let remote = Rc::new(Remote {
            id: ServerId(remotes.len() as u16),
            agent,
            outbox: Outbox::default(),
            mac: Cell::default(),
            ready: Cell::new(false),
            suspect: Notify::new(),
            scopes: RefCell::default(),
            unread: RefCell::default(),
        });
        remotes.push(Rc::clone(&remote));
        remote
    }

    pub(crate) fn remote_of(&self, id: ServerId) -> Option<Rc<Remote>> {
        self.remotes.borrow().get(usize::from(id.0)).map(Rc::clone)
    }

    /// Returns true if a connection can be offered to the server now.
    pub(crate) fn is_ready(&self, server: &Server) -> bool {
        let Some(agent) = server.agent else { return false };
        self.remotes.borrow().iter().any(|remote| remote.agent == agent && remote.ready.get())
    }

    /// Returns true while flows of connections that ended at a server may still carry a last
    /// packet.
    pub(crate) fn is_lingering(&self) -> bool {
        !self.lingering.borrow().is_empty()
    }

    /// Sets how long such a flow must be quiet before it is removed.
    pub(crate) fn set_linger(&self, linger: Duration) {
        self.lingering.borrow_mut().set_quiet(linger);
    }

    /// Returns true while a connection is at `server`, or on its way to or from there.
    pub(crate) fn involve(&self, server: ServerId) -> bool {
        self.flows.borrow().values().any(|flow| flow.exporter.server() == Some(server))
    }

    /// Records that `remote` is silent, or that it is not.
    pub(crate) fn set_silent(&self, remote: &Remote, silent: bool) {
        let plan = self.worker.plan();
        let servers = plan.pools.iter().flat_map(|pool| &pool.servers);
        for server in servers.filter(|server| server.agent == Some(remote.agent)) {
            server.set_silent(silent);
        }
    }

    /// Recalls the connections that `which` selects, as soon as they have an owner.
    pub(crate) fn request_recall(&self, which: impl Fn(&Flow) -> bool) {
        let flows = self.flows.borrow();
        let wanted = flows.iter().filter(|(_, flow)| which(flow)).map(|(id, _)| *id);
        self.to_recall.borrow_mut().extend(wanted);
        drop(flows);
        self.send_recalls();
    }

    /// Sends RECALL for the connections to be recalled: once for each, and again if it had no
    /// effect because the channel broke or the connection has another owner.
    fn send_recalls(&self) {
        let mut flows = self.flows.borrow_mut();
        let mut to_recall = self.to_recall.borrow_mut();
        to_recall.retain(|id| flows.contains_key(id));
        for id in to_recall.iter() {
            let Some(flow) = flows.get_mut(id) else { continue };
            let (true, Some(server)) = (flow.exporter.is_owned(), flow.exporter.server()) else {
                continue;
            };
            let epoch = flow.exporter.epoch();
            let asked = flow
                .recalled
                .is_some_and(|(recalled, when)| recalled == epoch && when.elapsed() < RECALL_AGAIN);
            if !asked {
                flow.recalled = Some((epoch, Instant::now()));
                self.send_recall(*id, server, epoch);
            }
        }
    }

    /// Ends the recall of a connection that has come back.
    pub(crate) fn end_recall(&self, id: ConnectionId) {
        self.to_recall.borrow_mut().remove(&id);
    }

    /// Returns the number of connections that are away or moving.
    pub(crate) fn away(&self) -> usize {
        self.flows.borrow().len()
    }

    /// Passes an event to a connection's state machine and performs its actions until none is
    /// left.
    pub(crate) fn step(
        &self,
        id: ConnectionId,
        event: impl FnOnce(&mut Flow, Millis) -> Vec<Action>,
    ) {
        let now = self.now();
        let mut flows = self.flows.borrow_mut();
        let Some(flow) = flows.get_mut(&id) else {
            self.meter.add(Event::FrameStale);
            return;
        };
        let server = flow.exporter.server();
        let mut actions = VecDeque::from(event(flow, now));
        let mut resumed = None;
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Choose(reason) => actions.extend(self.choose(flow, reason, now)),
                Action::Rebuild(failure) => {
                    resumed = self.rebuild(flow, failure);
                    flow.reset = server.filter(|_| resumed.is_none());
                }
                Action::ThawLocal(failure) if self.thaw(flow, failure) => {}
                Action::ThawLocal(_) => {
                    self.reset(flow);
                    flow.reset = server;
                }
                Action::Reset => {
                    self.meter.add(Event::LeaseExpired);
                    self.reset(flow);
                    flow.reset = server;
                }
                other => self.perform(id, flow, other),
            }
        }
        flow.gauge.move_to(match flow.exporter.is_with_server() {
            true => Gauge::FlowsOwned,
            false => Gauge::MigrationsInFlight,
        });
        let owner = flow.reset.take().and_then(|owner| self.remote_of(owner));
        let waits = flow.exporter.deadline().is_some();
        let over = flow.exporter.is_over();
        let ended = if over { flows.remove(&id) } else { None };
        drop(flows);
        let mut waiting = self.waiting.borrow_mut();
        if waits && !over {
            waiting.insert(id);
        } else {
            waiting.remove(&id);
        }
        drop(waiting);
        let Some(flow) = ended else { return };
        if flow.linger {
            let packets = flow.slot.counters().packets;
            self.lingering.borrow_mut().push(flow.slot, packets, Instant::now());
            return;
        }
        if let Some(owner) = owner {
            self.orphaned.borrow_mut().push_back((Instant::now(), flow.slot, owner.mac.get()));
            return;
        }
        // Outside of every borrow: the request loop may call this module at once.
        if let Some(stream) = resumed {
            self.go_on(flow, stream);
        }
    }

    fn perform(&self, id: ConnectionId, flow: &mut Flow, action: Action) {
        match action {
            Action::Hold => flow.slot.hold(),
            Action::Offer(to, epoch) => self.send_offer(id, flow, to, epoch),
            Action::Redirect(to) => self.redirect(flow, to),
            Action::CloseLocal => self.leave(flow),
            Action::Suspect(to) => {
                if let Some(remote) = self.remote_of(to) {
                    tracing::warn!(agent = %remote.agent, "no answer to an offer");
                    // Set at once: no connection may be offered to the server while the channel
                    // ends.
                    remote.ready.set(false);
                    self.set_silent(&remote, true);
                    remote.suspect.notify_one();
                }
            }
            Action::Forget(reason) => self.forget(flow, reason),
            Action::Choose(_) | Action::Rebuild(_) | Action::ThawLocal(_) | Action::Reset => {}
        }
    }

    /// Redirects the packets to the server that has the connection.
    fn redirect(&self, flow: &mut Flow, to: ServerId) {
        let Some(remote) = self.remote_of(to) else { return };
        let begin = Instant::now();
        let late = self.late(flow);
        self.steering.redirect(&flow.slot, remote.mac.get(), &late);
        self.meter.record(Stage::Redirect, begin.elapsed());
        if !flow.stays {
            let cost = flow.started.elapsed();
            self.meter.record(Stage::Total, cost);
            self.meter.add(Event::MigrationCompleted);
            let route = flow.assignment.candidate.route;
            self.worker.offload.learn_migration(route, flow.tls, cost, true);
        }
        // The state that it describes is now at the server; it holds secrets and request bytes.
        flow.snapshot = EncodedSnapshot::default();
    }

    /// Chooses the destination of a returned connection.
    fn choose(&self, flow: &mut Flow, reason: ReturnReason, now: Millis) -> Vec<Action> {
        self.meter.add(Event::Returned(trigger(reason)));
        flow.started = Instant::now();
        flow.returned = Some(reason);
        let next = match reason {
            // In a drain a connection that comes home stays.
            _ if self.worker.is_draining() => None,
            // The input is longer than an offer may be: the request is proxied.
            ReturnReason::NextRequest | ReturnReason::TermsUsed if !flow.unread.is_empty() => {
                let cause = format!("{} bytes follow those of an offer", flow.unread.len());
                let declined = Declined::because(Fallback::QueueTooLong, cause);
                self.worker.fallbacks.report(&self.meter, &declined, &flow.context());
                None
            }
            ReturnReason::NextRequest | ReturnReason::TermsUsed => self.assign(flow),
            ReturnReason::Idle | ReturnReason::Draining | ReturnReason::Recalled => None,
        };
        let Some(assignment) = next else { return flow.exporter.choose(Choice::Home, now) };
        let remote = self.remote(assignment.agent);
        flow.assignment = assignment;
        flow.stays = flow.exporter.server() == Some(remote.id);
        if flow.stays {
            self.meter.add(Event::Request(Mode::Stay));
        } else {
            self.meter.add(Event::Request(Mode::Relay));
            self.meter.add(Event::Relayed);
        }
        flow.exporter.choose(Choice::Relay(remote.id), now)
    }

    fn assign(&self, flow: &mut Flow) -> Option<Assignment> {
        // The snapshot is hostile until decoded, and it must describe this connection.
        let snapshot = unlade_handoff_protocol::snapshot::Snapshot::decode(&flow.snapshot).ok()?;
        if snapshot.tcp.flow != *flow.slot.flow() {
            return None;
        }
        flow.send_end = snapshot.tcp.send_end();
        flow.slot.track(&TrackedState::of(&snapshot.tcp), flow.send_end);
        let origin = flow.assignment.candidate.origin;
        let candidate = placement::place_returned(&self.worker, &snapshot.plaintext, origin)?;
        let assignment = Assignment::new(candidate)?;
        let remote = self.remote(assignment.agent);
        (remote.ready.get() && remote.outbox.has_room()).then_some(assignment)
    }

    fn forget(&self, flow: &mut Flow, reason: CloseReason) {
        if reason == CloseReason::ByClient {
            self.meter.add(Event::ClientLeft);
        }
        flow.slot.linger();
        flow.linger = true;
    }

    /// Handles deadlines, lingering flows and counters. To be called a few times a second at
    /// least.
    pub(crate) fn tick(&self) {
        let now = self.now();
        let due: Vec<ConnectionId> = {
            let flows = self.flows.borrow();
            let is_due = |id: &&ConnectionId| {
                let deadline = flows.get(id).and_then(|flow| flow.exporter.deadline());
                deadline.is_some_and(|deadline| deadline <= now)
            };
            self.waiting.borrow().iter().filter(is_due).copied().collect()
        };
        for id in due {
            self.step(id, |flow, now| flow.exporter.handle_tick(now));
        }
        self.send_recalls();
        self.lingering.borrow_mut().forget(Instant::now(), |slot| slot.counters().packets);
        let mut orphaned = self.orphaned.borrow_mut();
        while orphaned.front().is_some_and(|(since, ..)| since.elapsed() >= RESET_LOCAL) {
            let Some((_, slot, owner)) = orphaned.pop_front() else { break };
            slot.redirect(owner);
            slot.linger();
            self.refused.borrow_mut().push_back((Instant::now(), slot));
        }
        drop(orphaned);
        let mut refused = self.refused.borrow_mut();
        while refused.front().is_some_and(|(since, _)| since.elapsed() >= RESET_LINGER) {
            refused.pop_front();
        }
        drop(refused);
        if self.worker.info.index == 0 {
            self.report_steering();
        }
        self.meter.gauge_set(Gauge::FlowEntries, self.steering.flows_in_use() as i64);
    }

    /// Adds the counters of the steering of all workers to the meter.
    fn report_steering(&self) {
        let hold = self.steering.hold_counters();
        let (packets, bytes) = self.steering.redirected();
        let now = [
            (Event::PacketsHeld, hold.held),
            (Event::PacketsReplayed, hold.replayed),
            (Event::PacketsLost, hold.lost),
            (Event::PacketsRedirected, packets),
            (Event::BytesRedirected, bytes),
        ];
        let before = self.reported.replace(now.map(|(_, count)| count));
        for ((event, count), before) in now.into_iter().zip(before) {
            self.meter.add_n(event, count.saturating_sub(before));
        }
        self.meter.gauge_set(Gauge::HeldBytes, hold.waiting_bytes as i64);
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

    /// Returns the ids of all connections that are away or moving.
    pub(crate) fn ids(&self) -> Vec<ConnectionId> {
        self.flows.borrow().keys().copied().collect()
    }
}

/// Returns the fallback that a failure is counted and logged as.
pub(crate) fn declined(failure: MigrationFailure) -> Declined {
    use unlade_handoff_protocol::frame::RefuseReason;
    let reason = match failure {
        MigrationFailure::Refused(RefuseReason::Overloaded) => Fallback::Overloaded,
        MigrationFailure::Refused(RefuseReason::Draining) => Fallback::Draining,
        MigrationFailure::Refused(RefuseReason::AddressNotLocal) => {
            let cause = "the virtual IP is not configured on the server; add it there to lo";
            return Declined::because(Fallback::AddressNotLocal, cause);
        }
        MigrationFailure::Refused(other) => {
            let cause = format!("the server refused: {other:?}; its log has the error");
            return Declined::because(Fallback::RestoreFailed, cause);
        }
        MigrationFailure::ChannelDown => Fallback::ChannelDown,
        MigrationFailure::Deadline => Fallback::Deadline,
    };
    reason.into()
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
