//! The connections that are away from this worker or moving, and the servers that have them.
//!
//! Each has an [`Exporter`], which makes the decisions. This file has the state; the stages carry the
//! decisions out, each in another `impl Flows`. A stage calls only those before it:
//! `frames` (frames to servers), `freeze` (home → snapshot), `reclaim` (snapshot → home), `actions`
//! (event → decision → the stages before), `handover` (begins a handover), `channel` (the servers'
//! frames).

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use unlade_channel::channel::Outbox;
use unlade_handoff_protocol::frame::{ClientBytes, ConnectionId, Epoch, ReturnReason};
use unlade_handoff_protocol::snapshot::EncodedSnapshot;
use unlade_metrics::{GaugeGuard, Meter};
use unlade_migration::exporter::{Exporter, Timing};
use unlade_migration::{Millis, ServerId};
use unlade_net::SeqNumber;
use unlade_net::state::TcpSnapshot;
use unlade_runtime::Stream;
use unlade_runtime::stream::Parts;
use unlade_steering::{FlowEntry, Steering, Windows};
use unlade_sys::link::Mac;
use unlade_sys::repair::Known;

use crate::fallback::FallbackContext;
use crate::journal::{Journal, JournalEntry};
use crate::lingering::Lingering;
use crate::machine::Machine;
use crate::offload::{Candidate, Kept, ReturnInfo};
use crate::scopes::Scopes;
use crate::server::{AtServer, Server};
use crate::worker::Worker;

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
    /// Part of the time since then for which READY waited at the server.
    pub held: Duration,
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
    /// Returns how long the present migration took.
    pub(crate) fn took(&self) -> Duration {
        self.started.elapsed().saturating_sub(self.held)
    }

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
    pub waiting: RefCell<HashSet<ConnectionId>>,
    pub lingering: RefCell<Lingering<FlowEntry>>,
    /// Flows of connections that were reset, and the owners they had.
    pub orphaned: RefCell<VecDeque<(Instant, FlowEntry, Mac)>>,
    /// Those whose packets go to these owners again.
    pub refused: RefCell<VecDeque<(Instant, FlowEntry)>>,
    remotes: RefCell<Vec<Rc<Remote>>>,
    /// Connections to be recalled, whatever their terms.
    pub to_recall: RefCell<HashSet<ConnectionId>>,
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

    /// Ends the recall of a connection that has come back.
    pub(crate) fn end_recall(&self, id: ConnectionId) {
        self.to_recall.borrow_mut().remove(&id);
    }

    /// Returns the number of connections that are away or moving.
    pub(crate) fn away(&self) -> usize {
        self.flows.borrow().len()
    }

    /// Returns the ids of all connections that are away or moving.
    pub(crate) fn ids(&self) -> Vec<ConnectionId> {
        self.flows.borrow().keys().copied().collect()
    }
}
