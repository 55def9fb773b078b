//! Adoption: restores a live connection from a balancer's offer.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thiserror::Error;
use tokio::net::TcpStream;
use unlade_handoff_protocol::frame::{ConnectionId, Epoch, Frame, RefuseReason, Terms};
use unlade_handoff_protocol::snapshot::Snapshot;
use unlade_metrics::{AdoptionRefusal, Event, Gauge, GaugeGuard, Stage};
use unlade_migration::importer::{Importer, Offered};
use unlade_migration::window::window_to_restore;
use unlade_runtime::stream::{Parts, Stream};
use unlade_steering::{FlowEntry, SteerError, TrackedState};
use unlade_sys::repair::{self, Known, RepairError};
use unlade_tls::RecordLayer;
use unlade_tls::device::Begin;

use crate::agent::{Adopted, AdoptedConn, Agent, Peer, RestoredConn};
use crate::returned::Frozen;
use crate::signals::ControlSignals;

/// Reason for refusing an offer.
#[derive(Debug, Error)]
enum AdoptError {
    #[error("the server drains")]
    Draining,
    #[error("{0} connections are adopted already; raise `adoptions_max` (restart) or add servers")]
    Overloaded(usize),
    #[error("the flow table is full; raise `adoptions_max` (restart), which sizes it")]
    TableFull,
    #[error("the scope {0} is unknown")]
    Scope(u32),
    #[error("the snapshot: {0}")]
    Snapshot(#[from] unlade_bytes::DecodeError),
    #[error("the record layer: {0}")]
    Record(#[from] unlade_tls::RecordError),
    #[error("the socket: {0}")]
    Socket(#[from] RepairError),
    #[error("the runtime: {0}")]
    Runtime(#[from] io::Error),
    #[error("steering: {0}")]
    Steering(SteerError),
    #[error("the connection is live, or the offer is an old one")]
    Stale,
}

impl From<SteerError> for AdoptError {
    /// A server has no key `flows_max`: the message of a full table names the one that it has.
    fn from(error: SteerError) -> AdoptError {
        match error {
            SteerError::TableFull => AdoptError::TableFull,
            other => AdoptError::Steering(other),
        }
    }
}

impl AdoptError {
    fn reason(&self) -> (RefuseReason, AdoptionRefusal) {
        match self {
            AdoptError::Draining => (RefuseReason::Draining, AdoptionRefusal::Draining),
            AdoptError::Overloaded(_) | AdoptError::TableFull => {
                (RefuseReason::Overloaded, AdoptionRefusal::Overloaded)
            }
            AdoptError::Scope(_) => (RefuseReason::UnknownScope, AdoptionRefusal::Scope),
            AdoptError::Snapshot(_) => (RefuseReason::BadSnapshot, AdoptionRefusal::BadSnapshot),
            AdoptError::Record(_) => (RefuseReason::BadSnapshot, AdoptionRefusal::Tls),
            AdoptError::Stale => (RefuseReason::BadSnapshot, AdoptionRefusal::Epoch),
            AdoptError::Socket(RepairError::AddressNotLocal(_)) => {
                (RefuseReason::AddressNotLocal, AdoptionRefusal::Address)
            }
            AdoptError::Socket(RepairError::FlowInUse(_)) => {
                (RefuseReason::RestoreFailed, AdoptionRefusal::FlowInUse)
            }
            AdoptError::Steering(_) => (RefuseReason::RestoreFailed, AdoptionRefusal::Steer),
            AdoptError::Socket(_) | AdoptError::Runtime(_) => {
                (RefuseReason::RestoreFailed, AdoptionRefusal::Tcp)
            }
        }
    }
}

/// Longest time for which READY waits for another frame to leave with.
const READY_HELD_MAX: Duration = Duration::from_millis(1);

/// A completed restore.
#[derive(Clone, Copy, Debug, Default)]
struct Restoration {
    /// Durations, in nanoseconds.
    tcp_ns: u32,
    tls_ns: u32,
    /// READY may wait for RETURN or another frame: until the response, the client has nothing to
    /// send that the balancer would hold.
    may_wait: bool,
}

impl Agent {
    /// Handles OFFER: restores the connection and answers READY or REFUSE.
    pub(crate) fn handle_offer(
        &self,
        peer: &Rc<Peer>,
        id: ConnectionId,
        epoch: Epoch,
        terms: Terms,
        snapshot: &[u8],
    ) {
        let begin = Instant::now();
        let answer = match self.adopt(peer, id, epoch, terms, snapshot) {
            Ok(Restoration { tcp_ns: restore_tcp_ns, tls_ns: restore_tls_ns, may_wait }) => {
                self.meter.add(Event::Adopted);
                self.meter.record(Stage::Adopt, begin.elapsed());
                let ready = Frame::Ready { id, epoch, restore_tcp_ns, restore_tls_ns, held_ns: 0 };
                if may_wait {
                    peer.outbox.push_within(ready, READY_HELD_MAX);
                    return;
                }
                ready
            }
            Err(error) => {
                let (reason, label) = error.reason();
                if label == AdoptionRefusal::FlowInUse
                    && let Ok(wanted) = Snapshot::decode(snapshot)
                {
                    // This does not help the current offer: a socket closes when its task next
                    // runs.
                    self.supersede(&wanted.tcp.flow);
                }
                self.meter.add(Event::AdoptionRefused(label));
                tracing::info!(
                    ?id,
                    ?epoch,
                    reason = label.as_str(),
                    %error,
                    "offer refused"
                );
                Frame::Refuse { id, epoch, reason }
            }
        };
        peer.outbox.push(&answer);
    }

    fn adopt(
        &self,
        peer: &Rc<Peer>,
        id: ConnectionId,
        epoch: Epoch,
        terms: Terms,
        snapshot: &[u8],
    ) -> Result<Restoration, AdoptError> {
        if self.is_draining() {
            return Err(AdoptError::Draining);
        }
        let adopted = self.adopted();
        if adopted >= self.limits.adoptions_max {
            return Err(AdoptError::Overloaded(adopted));
        }
        if Agent::scope(peer, &terms).is_none() {
            return Err(AdoptError::Scope(terms.scope));
        }
        let snapshot = Snapshot::decode(snapshot)?;
        let may_wait = is_one_request(&snapshot);
        self.discard_same_flow(peer, id, &snapshot.tcp.flow);
        let mut connections = peer.connections.borrow_mut();
        let mut entry = None;
        if let Some(known) = connections.get_mut(&id) {
            let offered = known.taker.handle_offer(epoch);
            if offered == Offered::Stale {
                return Err(AdoptError::Stale);
            }
            if offered == Offered::Thaw && self.thaw(peer, id, terms, known)? {
                return Ok(Restoration { may_wait, ..Restoration::default() });
            }
            // The old socket, if it still exists, is bound to the addresses of the new one and must
            // be closed first.
            entry = self.discard(peer, id, known);
            connections.remove(&id);
        }
        let entry = match entry.filter(|entry| *entry.flow() == snapshot.tcp.flow) {
            Some(entry) => entry,
            None => self.steering.acquire(&snapshot.tcp.flow)?,
        };
        let (restored, restoration) = self.restore(snapshot, entry)?;
        let adopted = Adopted {
            flow: *restored.entry.flow(),
            taker: Importer::adopted(epoch),
            signals: Rc::default(),
            returned_conn: None,
        };
        adopted.signals.set_terms(terms);
        let signals = Rc::clone(&adopted.signals);
        connections.insert(id, adopted);
        self.deliver((Rc::clone(peer), id), signals, restored);
        Ok(Restoration { may_wait, ..restoration })
    }

    /// Gives a live connection to the worker's server.
    fn deliver(
        &self,
        (peer, id): (Rc<Peer>, ConnectionId),
        signals: Rc<ControlSignals>,
        socket: RestoredConn,
    ) {
        let none = Terms { scope: 0, requests_max: 1, idle_return_ms: 0 };
        let terms = signals.terms.get().unwrap_or(none);
        let scope = Agent::scope(&peer, &terms);
        let owned = GaugeGuard::new(Arc::clone(&self.meter), Gauge::AdoptedConnections);
        let begun = Instant::now();
        let adopted = AdoptedConn { peer, id, signals, socket, terms, scope, begun, owned };
        // The receiver exists for the lifetime of the worker.
        let _ = self.accepted.send(adopted);
    }

    /// Resumes the frozen socket of a connection that is offered again before another server
    /// adopted it. Returns false if that socket is closed.
    fn thaw(
        &self,
        peer: &Rc<Peer>,
        id: ConnectionId,
        terms: Terms,
        adopted: &mut Adopted,
    ) -> Result<bool, AdoptError> {
        if adopted.returned_conn.as_ref().is_none_or(|returned_conn| returned_conn.frozen.is_none())
        {
            return Ok(false);
        }
        let Some(returned_conn) = adopted.returned_conn.take() else { return Ok(false) };
        let Some(Frozen { stream, known, .. }) = returned_conn.frozen else { return Ok(false) };
        self.forget_returned(&known.flow, id);
        repair::thaw(stream.tcp())?;
        returned_conn.entry.local();
        adopted.signals.set_terms(terms);
        let signals = Rc::clone(&adopted.signals);
        let restored = RestoredConn { stream, entry: returned_conn.entry, known, begin: None };
        self.deliver((Rc::clone(peer), id), signals, restored);
        Ok(true)
    }

    fn restore(
        &self,
        mut snapshot: Snapshot,
        entry: FlowEntry,
    ) -> Result<(RestoredConn, Restoration), AdoptError> {
        let flow = snapshot.tcp.flow;
        // Drops a client that acknowledges nothing for this long. The option also stops the
        // kernel's retransmissions after this process has died.
        snapshot.tcp.socket.user_timeout_ms = self.limits.write_timeout.as_millis() as u32;
        let place = place_of(&snapshot);
        let begin = Instant::now();
        let record = snapshot.tls.as_ref().map(RecordLayer::from_snapshot).transpose()?;
        let middle = Instant::now();
        let restored = repair::restore(&snapshot.tcp, || {
            let segments = window_to_restore(&snapshot.tcp.congestion);
            if let (Some(windows), Some(segments)) = (&self.windows, segments) {
                windows.expect(&flow, segments);
            }
        })?;
        let fd = restored.activate()?;
        let tcp = TcpStream::from_std(fd.into())?;
        entry.track(&TrackedState::of(&snapshot.tcp), snapshot.tcp.send_end());
        entry.local();
        let end = Instant::now();
        if record.is_some() {
            self.meter.record(Stage::RestoreTls, middle - begin);
        }
        self.meter.record(Stage::RestoreTcp, end - middle);
        let restoration = Restoration {
            tls_ns: (middle - begin).as_nanos().min(u32::MAX.into()) as u32,
            tcp_ns: (end - middle).as_nanos().min(u32::MAX.into()) as u32,
            may_wait: false,
        };
        let known = Known {
            flow,
            socket: snapshot.tcp.socket,
            mss_bytes: Some(snapshot.tcp.options.mss_bytes),
            algorithm: std::mem::take(&mut snapshot.tcp.congestion.algorithm),
        };
        let input = std::mem::take(&mut snapshot.plaintext);
        let (record, ended) = (record.map(Box::new), snapshot.tcp.peer_closed);
        let stream =
            Stream::with_addresses(Parts { tcp, record, input, ended }, flow.client, flow.service);
        Ok((RestoredConn { stream, entry, known, begin: Some(place) }, restoration))
    }
}

/// Returns true if the client's input is exactly one request without a body.
fn is_one_request(snapshot: &Snapshot) -> bool {
    const END: &[u8] = b"\r\n\r\n";
    let input = &snapshot.plaintext[..];
    let is_whole = snapshot.tcp.receive_queue.is_empty()
        && snapshot.tls.as_ref().is_none_or(|tls| tls.ciphertext.is_empty());
    let is_bodyless = input.starts_with(b"GET ") || input.starts_with(b"HEAD ");
    is_whole
        && is_bodyless
        && input.windows(END.len()).position(|bytes| bytes == END) == Some(input.len() - END.len())
}

/// Stream positions of a connection that is restored from a snapshot: the sequence numbers of both
/// streams' first bytes, the number of bytes read, and the number of bytes written.
fn place_of(snapshot: &Snapshot) -> (Begin, (u64, u64)) {
    let tcp = &snapshot.tcp;
    // The stream begins with the part of a record that an earlier owner has read.
    let read_bytes = snapshot.tls.as_ref().map_or(0, |tls| tls.ciphertext.len());
    let received_bytes = read_bytes + tcp.receive_queue.len();
    let begin = Begin::Restored {
        send_seq: tcp.send_seq,
        receive_seq: tcp.receive_seq - read_bytes as u32,
        // The client may fill the receive window before the device is attached.
        delivered_bytes_max: received_bytes as u64 + u64::from(tcp.windows.rcv_wnd),
    };
    (begin, (read_bytes as u64, tcp.send_queue.len() as u64))
}

#[cfg(test)]
mod tests {
    use unlade_net::state::TcpSnapshot;
    use unlade_net::{FlowKey, SeqNumber};

    use super::*;

    #[test]
    fn one_request_without_a_body_lets_ready_wait() {
        let may_wait = |plaintext: &str, queue: &[u8]| {
            let tcp = TcpSnapshot {
                flow: FlowKey::new(([10, 0, 0, 1], 40_000).into(), ([10, 0, 0, 2], 80).into()),
                options: Default::default(),
                send_seq: SeqNumber(0),
                receive_seq: SeqNumber(0),
                send_queue: Vec::new(),
                receive_queue: queue.to_vec(),
                windows: Default::default(),
                congestion: Default::default(),
                socket: Default::default(),
                segments_in: 0,
                peer_closed: false,
            };
            is_one_request(&Snapshot { tcp, tls: None, plaintext: plaintext.into() })
        };
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        assert!(may_wait(get, b"") && may_wait(&get.replace("GET", "HEAD"), b""));
        for other in [&get.repeat(2), &get.replace("GET", "PUT"), "GET / HTTP/1.1\r\n", ""] {
            assert!(!may_wait(other, b""), "{other}");
        }
        assert!(!may_wait(get, b"GET"), "another one is on its way");
    }
}
