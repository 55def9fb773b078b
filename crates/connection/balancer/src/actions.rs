//! Passes events to the state machines of connections and performs the actions that they decide on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use unlade_handoff_protocol::frame::{CloseReason, ConnectionId, ReturnReason};
use unlade_handoff_protocol::snapshot::{EncodedSnapshot, Snapshot};
use unlade_metrics::{Event, Gauge, Mode, Stage, Trigger};
use unlade_migration::exporter::{Action, Choice};
use unlade_migration::{Millis, ServerId};
use unlade_steering::TrackedState;

use crate::fallback::Declined;
use crate::flows::{Assignment, Flow, Flows};
use crate::placement;

/// Time after which a RECALL without effect is sent again.
const RECALL_AGAIN: Duration = Duration::from_secs(1);

/// How long the client's packets come here after a reset, so that it receives the RST reliably.
const RESET_LOCAL: Duration = Duration::from_millis(300);
/// How long they then go to the unreachable owner. If its process died, its kernel still tries to
/// send, and the client's RST ends that.
const RESET_LINGER: Duration = Duration::from_secs(15);

impl Flows {
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
            let cost = flow.took();
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
        (flow.started, flow.held) = (Instant::now(), Duration::ZERO);
        flow.returned = Some(reason);
        let next = match reason {
            // In a drain a connection that comes home stays.
            _ if self.worker.is_draining() => None,
            // The input is longer than an offer may be: the request is proxied.
            ReturnReason::NextRequest | ReturnReason::TermsUsed if !flow.unread.is_empty() => {
                let declined = Declined::returned_unread(flow.unread.len());
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
        let snapshot = Snapshot::decode(&flow.snapshot).ok()?;
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
        // The counters of the steering are those of all workers.
        if self.worker.info.index == 0 {
            self.steering.report_packets(&self.meter);
            self.steering.report_counts(&self.meter);
        }
        self.meter.gauge_set(Gauge::FlowEntries, self.steering.flows_in_use() as i64);
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
