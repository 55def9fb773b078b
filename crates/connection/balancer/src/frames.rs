//! Sends frames of connections to their servers.

use std::time::Duration;

use unlade_handoff_protocol::frame::{ConnectionId, Epoch, Frame, Scope, Terms};
use unlade_migration::ServerId;

use crate::flows::{Assignment, Flow, Flows, Remote};
use crate::scopes::SCOPE_NONE;

impl Flows {
    fn send(&self, to: ServerId, frame: &Frame) {
        if let Some(remote) = self.remote_of(to) {
            // Without a channel the frame is dropped; the state machine handles the end of the
            // channel.
            remote.outbox.push(frame);
        }
    }

    fn terms(&self, remote: &Remote, assignment: &Assignment, idle_return: Duration) -> Terms {
        Terms {
            scope: define(remote, assignment),
            requests_max: requests_max(assignment),
            idle_return_ms: idle_return.as_millis().min(u32::MAX.into()) as u32,
        }
    }

    /// Returns how long a server keeps a connection whose client is idle.
    pub(crate) fn idle_return(&self, assignment: &Assignment) -> Duration {
        let candidate = &assignment.candidate;
        let offload = &candidate.plan.config.offload;
        if let Some(idle_return) = offload.idle_return {
            return idle_return;
        }
        let listener = candidate.plan.listeners.get(candidate.origin.listener);
        let most = listener.map_or(Duration::ZERO, |listener| listener.timeouts.idle);
        let occupancy = self.steering.flows_in_use() as f64 / f64::from(offload.flows_max);
        self.worker.offload.idle_return(candidate.route, occupancy, most)
    }

    pub(crate) fn send_offer(&self, id: ConnectionId, flow: &mut Flow, to: ServerId, epoch: Epoch) {
        let Some(remote) = self.remote_of(to) else { return };
        flow.idle_return = self.idle_return(&flow.assignment);
        let terms = self.terms(&remote, &flow.assignment, flow.idle_return);
        // The client may receive packets from the server before READY arrives here.
        flow.slot.offer(remote.mac.get(), flow.send_end);
        remote.outbox.push(&Frame::Offer { id, epoch, terms, snapshot: flow.snapshot.clone() });
    }

    pub(crate) fn send_recall(&self, id: ConnectionId, to: ServerId, epoch: Epoch) {
        self.send(to, &Frame::Recall { id, epoch });
    }

    pub(crate) fn send_abandon(&self, id: ConnectionId, to: ServerId, epoch: Epoch) {
        self.send(to, &Frame::Abandon { id, epoch });
    }
}

/// Returns the number of requests that a server may answer before it must ask.
fn requests_max(assignment: &Assignment) -> u32 {
    let candidate = &assignment.candidate;
    let route = candidate.plan.routes.get(candidate.route);
    route.and_then(|route| route.requests_per_migration.limit()).map_or(u32::MAX, |n| n.get())
}

/// Returns the scope of an assignment on the present channel; defines a new one.
fn define(remote: &Remote, assignment: &Assignment) -> u32 {
    let candidate = &assignment.candidate;
    let key = (candidate.scope, candidate.server);
    let (id, is_new) = remote.scopes.borrow_mut().number(&candidate.plan.routing, key);
    if !is_new {
        return id;
    }
    let Some(scope) = candidate.plan.routes.scope(candidate.scope) else { return SCOPE_NONE };
    let sharded = candidate.pool.is_sharded();
    remote.outbox.push(&Frame::Scope(Scope {
        id,
        host: scope.host,
        excluded_hosts: scope.excluded_hosts,
        prefix: scope.prefix,
        excluded: scope.excluded,
        ring: sharded.then(|| (candidate.pool.ring_members(), candidate.server as u16)),
    }));
    id
}

/// Returns the definition of the scope that admits nothing: every path begins with a slash or is
/// `*`.
pub(crate) fn nothing() -> Frame {
    Frame::Scope(Scope {
        id: SCOPE_NONE,
        host: String::new(),
        excluded_hosts: Vec::new(),
        prefix: "\0".to_owned(),
        excluded: Vec::new(),
        ring: None,
    })
}
