//! Begins the handover of a local connection to a server, or returns the obstacle.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use unlade_metrics::{Event, Gauge, GaugeGuard, Stage};
use unlade_migration::exporter::Exporter;
use unlade_net::FlowKey;
use unlade_net::state::{QUEUE_BYTES_MAX, SocketOptions};
use unlade_runtime::stream::Stream;
use unlade_steering::{FlowEntry, TrackedState};
use unlade_sys::repair::{self, Known};

use crate::fallback::Declined;
use crate::flows::{Assignment, Flow, Flows, HandoverResult, Local};
use crate::freeze::Frozen;
use crate::journal::JournalEntry;
use crate::offload::Kept;

/// How long a handover waits for the client to acknowledge earlier responses; then the request is
/// proxied.
const SENT_WITHIN: Duration = Duration::from_millis(20);

/// Most bytes in the receive queue of a connection that is to move. Bytes that arrive before the
/// queue is read fit in the rest of [`QUEUE_BYTES_MAX`].
const UNREAD_BYTES_MAX: usize = QUEUE_BYTES_MAX / 4 * 3;

impl Flows {
    /// Hands a connection to a server, with the request at the start of its input unconsumed.
    /// Returns when the server has it; returns the connection if it could not be moved.
    pub(crate) async fn move_away(
        &self,
        stream: Stream,
        assignment: Assignment,
    ) -> Result<(), Kept> {
        let remote = self.remote(assignment.agent);
        if !remote.ready.get() {
            return Err(Kept::new(stream, Declined::channel_down()));
        }
        if !remote.outbox.has_room() {
            return Err(Kept::new(stream, Declined::outbox_full()));
        }
        if let Some(obstacle) = obstacle(&stream) {
            return Err(Kept::new(stream, obstacle));
        }
        // Bytes that the kernel sends after the snapshot would be unknown to the server.
        if !stream.sent(SENT_WITHIN).await {
            return Err(Kept::new(stream, Declined::unacknowledged()));
        }
        let started = Instant::now();
        let flow = FlowKey::new(stream.peer(), stream.local());
        let slot = match self.steering.acquire(&flow) {
            Ok(slot) => slot,
            Err(error) => return Err(Kept::new(stream, Declined::steering(&error))),
        };
        let known = Known {
            flow,
            socket: SocketOptions { nodelay: true, ..SocketOptions::default() },
            mss_bytes: None,
            algorithm: String::new(),
        };
        let noted = self.journal.as_ref().and_then(|journal| journal.note(&flow));
        slot.hold();
        self.meter.record(Stage::Hold, started.elapsed());
        let frozen = match self.freeze(stream, &known) {
            Ok(frozen) => frozen,
            Err((stream, error)) => {
                slot.local();
                self.steering.replay(&slot);
                return Err(Kept::new(stream, Declined::socket(&error)));
            }
        };
        let outcome = self.start((slot, noted), known, frozen, assignment, started);
        match outcome.await {
            Ok(HandoverResult::Gone) => Ok(()),
            Ok(HandoverResult::Kept(kept)) => Err(kept),
            // The worker ends, and the connection with it.
            Err(_) => Ok(()),
        }
    }

    fn start(
        &self,
        (slot, noted): (FlowEntry, Option<JournalEntry>),
        known: Known,
        frozen: Frozen,
        assignment: Assignment,
        started: Instant,
    ) -> oneshot::Receiver<HandoverResult> {
        self.meter.add(Event::MigrationStarted);
        let (reply, outcome) = oneshot::channel();
        let to = self.remote(assignment.agent).id;
        let (exporter, actions) = Exporter::start(to, self.timing.get(), self.now());
        let Frozen { parts, tcp, snapshot } = frozen;
        slot.track(&TrackedState::of(&tcp), tcp.send_end());
        let flow = Flow {
            gauge: GaugeGuard::new(Arc::clone(&self.meter), Gauge::MigrationsInFlight),
            exporter,
            slot,
            _noted: noted,
            known,
            snapshot,
            unread: Default::default(),
            send_end: tcp.send_end(),
            tls: parts.record.is_some(),
            assignment,
            local: Some(Local { parts, tcp, reply }),
            started,
            held: Duration::ZERO,
            stays: false,
            linger: false,
            reset: None,
            idle_return: Duration::ZERO,
            returned: None,
            is_ambiguous: false,
            recalled: None,
        };
        let id = self.new_id();
        self.flows.borrow_mut().insert(id, flow);
        self.step(id, |_, _| actions);
        outcome
    }
}

/// Returns the obstacle to moving a connection now, apart from its TCP state.
fn obstacle(stream: &Stream) -> Option<Declined> {
    if stream.has_ended() {
        return Some(Declined::half_closed());
    }
    let queued_bytes = repair::unread_bytes(stream.tcp()).unwrap_or_default();
    if stream.input().len() > QUEUE_BYTES_MAX || queued_bytes > UNREAD_BYTES_MAX {
        return Some(Declined::unread(stream.input().len(), queued_bytes));
    }
    match stream.record() {
        Some(record) if !record.is_movable() => Some(Declined::record_layer()),
        _ => None,
    }
}
