//! Adoption: from an offer to a restored, silent connection, and from GO to a live one.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

use handoff::taker::Taker;
use handoff::window::window_to_restore;
use linux::repair::{self, Known, RepairError, Restored};
use meter::{AdoptionRefusal, Event, Stage};
use record::RecordLayer;
use service::stream::{Parts, Stream};
use thiserror::Error;
use tokio::net::TcpStream;
use wire::frame::{ConnectionId, Epoch, Frame, RefuseReason, Terms};
use wire::snapshot::Snapshot;

use crate::agent::{Adopted, Agent, Peer};
use crate::release::{Lease, Orders};

/// How long a restored connection waits for GO, milliseconds. The balancer answers READY at
/// once, so only a dead one leaves it waiting, and a dead one breaks the channel earlier.
const SILENT_MS: u32 = 5000;

/// A restored connection that waits for GO. Dropping it closes the socket silently.
#[derive(Debug)]
pub(crate) struct Silent {
    restored: Restored,
    record: Option<Box<RecordLayer>>,
    plaintext: Vec<u8>,
    ended: bool,
    known: Known,
}

/// Why an offer is not taken.
#[derive(Debug, Error)]
enum AdoptError {
    #[error("the server drains")]
    Draining,
    #[error("{0} connections are adopted already")]
    Overloaded(usize),
    #[error("the scope {0} is unknown")]
    Scope(u32),
    #[error("the snapshot: {0}")]
    Snapshot(#[from] wire::codec::DecodeError),
    #[error("the record layer: {0}")]
    Record(#[from] record::RecordError),
    #[error("the socket: {0}")]
    Socket(#[from] RepairError),
    #[error("the connection is live, or the offer is an old one")]
    Stale,
}

impl AdoptError {
    fn reason(&self) -> (RefuseReason, AdoptionRefusal) {
        match self {
            AdoptError::Draining => (RefuseReason::Draining, AdoptionRefusal::Draining),
            AdoptError::Overloaded(_) => (RefuseReason::Overloaded, AdoptionRefusal::Overloaded),
            AdoptError::Scope(_) => (RefuseReason::UnknownScope, AdoptionRefusal::Epoch),
            AdoptError::Snapshot(_) => (RefuseReason::BadSnapshot, AdoptionRefusal::BadSnapshot),
            AdoptError::Record(_) => (RefuseReason::BadSnapshot, AdoptionRefusal::Tls),
            AdoptError::Stale => (RefuseReason::BadSnapshot, AdoptionRefusal::Epoch),
            AdoptError::Socket(RepairError::Call { source, .. })
                if source.kind() == io::ErrorKind::AddrNotAvailable =>
            {
                (RefuseReason::AddressNotLocal, AdoptionRefusal::Address)
            }
            AdoptError::Socket(_) => (RefuseReason::RestoreFailed, AdoptionRefusal::Tcp),
        }
    }
}

/// What restoring took, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    tcp_ns: u32,
    tls_ns: u32,
}

impl Agent {
    /// OFFER: restores the connection and answers READY or REFUSE.
    pub(crate) fn handle_offer(
        &self,
        peer: &Rc<Peer>,
        id: ConnectionId,
        epoch: Epoch,
        terms: Terms,
        snapshot: &[u8],
    ) {
        let answer = match self.adopt(peer, id, epoch, terms, snapshot) {
            Ok(spent) => {
                self.meter.add(Event::Adopted);
                let Spent { tcp_ns: restore_tcp_ns, tls_ns: restore_tls_ns } = spent;
                Frame::Ready { id, epoch, restore_tcp_ns, restore_tls_ns }
            }
            Err(error) => {
                let (reason, label) = error.reason();
                self.meter.add(Event::AdoptionRefused(label));
                tracing::info!(?id, ?epoch, %error, "offer refused");
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
    ) -> Result<Spent, AdoptError> {
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
        let mut connections = peer.connections.borrow_mut();
        if let Some(known) = connections.get_mut(&id) {
            if !known.taker.handle_offer(epoch, SILENT_MS, self.now()) {
                return Err(AdoptError::Stale);
            }
            // The older restoration has the same addresses: it must go first.
            known.silent = None;
        }
        match self.restore(snapshot) {
            Ok((silent, spent)) => {
                let adopted = connections.entry(id).or_insert_with(|| Adopted {
                    taker: Taker::offered(epoch, SILENT_MS, self.now()),
                    silent: None,
                    orders: Rc::default(),
                });
                adopted.orders.set_terms(terms);
                adopted.silent = Some(Box::new(silent));
                Ok(spent)
            }
            Err(error) => {
                connections.remove(&id);
                Err(error)
            }
        }
    }

    fn restore(&self, mut snapshot: Snapshot) -> Result<(Silent, Spent), AdoptError> {
        let flow = snapshot.tcp.flow;
        // Its stragglers, if any, come to the new socket from now on.
        self.unbounce(&flow);
        let begin = Instant::now();
        let record = snapshot.tls.as_ref().map(RecordLayer::from_snapshot).transpose()?;
        let middle = Instant::now();
        let restored = repair::restore(&snapshot.tcp, || {
            if let Some(segments) = window_to_restore(&snapshot.tcp.congestion) {
                self.steering.expect_window(&flow, segments);
            }
        })?;
        let end = Instant::now();
        if record.is_some() {
            self.meter.record(Stage::RestoreTls, middle - begin);
        }
        self.meter.record(Stage::RestoreTcp, end - middle);
        let spent = Spent {
            tls_ns: (middle - begin).as_nanos().min(u32::MAX.into()) as u32,
            tcp_ns: (end - middle).as_nanos().min(u32::MAX.into()) as u32,
        };
        let known = Known {
            flow,
            socket: snapshot.tcp.socket,
            mss_bytes: Some(snapshot.tcp.options.mss_bytes),
            algorithm: std::mem::take(&mut snapshot.tcp.congestion.algorithm),
        };
        let plaintext = std::mem::take(&mut snapshot.plaintext);
        let (record, ended) = (record.map(Box::new), snapshot.tcp.peer_closed);
        Ok((Silent { restored, record, plaintext, ended, known }, spent))
    }
}

impl Silent {
    /// GO: the connection is live.
    pub(crate) fn activate(
        self,
        peer: &Rc<Peer>,
        id: ConnectionId,
        epoch: Epoch,
        orders: Rc<Orders>,
    ) -> io::Result<Lease> {
        let (fd, unsent): (OwnedFd, Vec<u8>) =
            self.restored.activate().map_err(io::Error::other)?;
        let tcp = TcpStream::from_std(fd.into())?;
        let parts = Parts { tcp, record: self.record, input: self.plaintext, ended: self.ended };
        let stream = Stream::from_parts(parts);
        Ok(Lease::new(Rc::clone(peer), (id, epoch), orders, stream, unsent, self.known))
    }
}
