//! Frames of one connection to its servers.

use std::collections::HashMap;
use std::sync::Arc;

use handoff::ServerId;
use wire::frame::{ConnectionId, Epoch, Frame, Scope, Terms};

use crate::flows::{Assignment, Flow, Flows, Remote, SCOPE_NONE, SCOPES_MAX, Scopes};

/// Without a request for this long, a server gives a connection back, milliseconds.
const IDLE_RETURN_MS: u32 = 1000;

impl Flows {
    fn send(&self, to: ServerId, frame: &Frame) {
        if let Some(remote) = self.remote_of(to) {
            // Without a channel the machine hears of it by the channel's end.
            remote.outbox.push(frame);
        }
    }

    fn terms(&self, remote: &Remote, assignment: &Assignment) -> Terms {
        Terms {
            scope: define(remote, assignment),
            requests_max: requests_max(assignment),
            idle_return_ms: IDLE_RETURN_MS,
        }
    }

    pub(crate) fn send_offer(&self, id: ConnectionId, flow: &Flow, to: ServerId, epoch: Epoch) {
        let Some(remote) = self.remote_of(to) else { return };
        let terms = self.terms(&remote, &flow.assignment);
        // The client may hear from the server before the server's READY is heard here.
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

/// Requests that a server may answer before it must ask.
fn requests_max(assignment: &Assignment) -> u32 {
    let candidate = &assignment.candidate;
    let route = candidate.plan.routes.get(candidate.route);
    route.and_then(|route| route.requests_per_migration.limit()).map_or(u32::MAX, |n| n.get())
}

/// The scope of an assignment on the channel that is up; defined where it is new.
fn define(remote: &Remote, assignment: &Assignment) -> u32 {
    let candidate = &assignment.candidate;
    let mut scopes = remote.scopes.borrow_mut();
    if scopes.plan.as_ref().is_none_or(|plan| !Arc::ptr_eq(plan, &candidate.plan)) {
        // Routes have new numbers; connections under old scopes keep them.
        let plan = Some(Arc::clone(&candidate.plan));
        *scopes = Scopes { plan, ids: HashMap::new(), last: scopes.last };
    }
    let key = (candidate.route, candidate.host.clone());
    if let Some(known) = scopes.ids.get(&key) {
        return *known;
    }
    let Some(route) = candidate.plan.routes.get(candidate.route) else { return SCOPE_NONE };
    if scopes.ids.len() >= SCOPES_MAX {
        return SCOPE_NONE;
    }
    let id = scopes.last + 1;
    let scope = candidate.plan.routes.scope(route, candidate.host.as_deref());
    let sharded = candidate.pool.is_sharded();
    remote.outbox.push(&Frame::Scope(Scope {
        id,
        host: scope.host,
        prefix: scope.prefix,
        excluded: scope.excluded,
        ring: sharded.then(|| (candidate.pool.ring_members(), candidate.server as u16)),
    }));
    scopes.ids.insert(key, id);
    scopes.last = id;
    id
}

/// The scope that admits nothing: every path begins with a slash or is `*`.
pub(crate) fn nothing() -> Frame {
    Frame::Scope(Scope {
        id: SCOPE_NONE,
        host: String::new(),
        prefix: "\0".to_owned(),
        excluded: Vec::new(),
        ring: None,
    })
}
