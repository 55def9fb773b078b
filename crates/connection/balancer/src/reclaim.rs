//! Brings connections home: thaws a frozen socket, rebuilds a returned snapshot, or, where neither
//! is possible, resets the connection towards the client.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpStream;
use unlade_handoff_protocol::frame::ReturnReason;
use unlade_handoff_protocol::snapshot::Snapshot;
use unlade_metrics::{Event, Stage};
use unlade_migration::exporter::MigrationFailure;
use unlade_migration::window::window_to_restore;
use unlade_net::SeqNumber;
use unlade_net::packet::{Direction, Segment, TcpFlags};
use unlade_runtime::stream::{Parts, Stream};
use unlade_sys::raw;
use unlade_sys::repair::{self, RepairError};
use unlade_tls::RecordLayer;

use crate::fallback::Declined;
use crate::flows::{Flow, Flows, HandoverResult, Local};
use crate::offload::{Kept, ReturnInfo};

#[derive(Debug, Error)]
enum RebuildError {
    #[error("the snapshot: {0}")]
    Snapshot(#[from] unlade_bytes::DecodeError),
    #[error("the snapshot is of another connection")]
    Foreign,
    #[error("its server died while it answered")]
    AnsweredElsewhere,
    #[error("the record layer: {0}")]
    Record(#[from] unlade_tls::RecordError),
    #[error("the socket: {0}")]
    Socket(#[from] RepairError),
    #[error("the runtime: {0}")]
    Runtime(#[from] io::Error),
}

impl Flows {
    /// Returns true if another host has served the client since `send_end`. If an offer was out
    /// when the channel broke, the server may have begun to answer before it died. The client's
    /// acknowledgements show that, because its packets come here while the flow is held.
    fn was_served(flow: &Flow, send_end: SeqNumber) -> bool {
        // Believed only within the window: no stranger's packet decides over the connection.
        flow.slot.counters().tracked.is_some_and(|known| send_end.before(known.last_ack))
    }

    /// Continues a connection that never left. Returns false if that is impossible because a
    /// server has answered on it.
    pub(crate) fn thaw(&self, flow: &mut Flow, failure: MigrationFailure) -> bool {
        if Flows::was_served(flow, flow.send_end) {
            tracing::info!(flow = %flow.slot.flow(), "its server died while it answered");
            self.leave(flow);
            return false;
        }
        let Some(local) = flow.local.take() else { return true };
        self.meter.add(Event::MigrationRestored);
        let (route, cost) = (flow.assignment.candidate.route, flow.started.elapsed());
        self.worker.offload.learn_migration(route, flow.tls, cost, false);
        let Local { parts, reply, .. } = local;
        // If the socket does not thaw, the next read or write fails.
        let _ = repair::thaw(&parts.tcp);
        flow.slot.local();
        self.steering.replay(&flow.slot);
        let stream = Stream::from_parts(parts);
        // The waiting task has ended only if the worker ends.
        let is_ambiguous = failure.is_ambiguous();
        let why = Declined::failed(failure);
        let _ = reply.send(HandoverResult::Kept(Kept { is_ambiguous, ..Kept::new(stream, why) }));
        true
    }

    /// Restores a returned connection as a local socket.
    pub(crate) fn rebuild(
        &self,
        flow: &mut Flow,
        failure: Option<MigrationFailure>,
    ) -> Option<Stream> {
        flow.is_ambiguous = failure.is_some_and(MigrationFailure::is_ambiguous);
        if let Some(failure) = failure {
            let declined = Declined::failed(failure);
            self.worker.fallbacks.report(&self.meter, &declined, &flow.context());
        }
        match self.restore(flow) {
            Ok(connection) => {
                self.meter.add(Event::Reclaimed);
                let cost = flow.started.elapsed();
                self.meter.record(Stage::Reclaim, cost);
                if failure.is_none() {
                    self.worker.offload.learn_reclaim(flow.tls, cost);
                }
                Some(connection)
            }
            Err(error) => {
                tracing::warn!(flow = %flow.slot.flow(), %error, "a returned connection is lost");
                self.meter.add(Event::MigrationLost);
                self.reset(flow);
                None
            }
        }
    }

    /// Passes a connection that came home on to the request loop.
    pub(crate) fn go_on(&self, flow: Flow, stream: Stream) {
        let candidate = &flow.assignment.candidate;
        let idle = flow.returned == Some(ReturnReason::Idle);
        let back = ReturnInfo {
            origin: candidate.origin,
            route: Some(candidate.route),
            idle: if idle { flow.idle_return } else { Duration::ZERO },
            is_ambiguous: flow.is_ambiguous,
        };
        drop(flow);
        (self.home)(stream, back);
    }

    fn restore(&self, flow: &mut Flow) -> Result<Stream, RebuildError> {
        let mut snapshot = Snapshot::decode(&flow.snapshot)?;
        if snapshot.tcp.flow != *flow.slot.flow() {
            return Err(RebuildError::Foreign);
        }
        if Flows::was_served(flow, snapshot.tcp.send_end()) {
            return Err(RebuildError::AnsweredElsewhere);
        }
        snapshot.tcp.set_clock_forward(flow.started.elapsed());
        let record = snapshot.tls.as_ref().map(RecordLayer::from_snapshot).transpose()?;
        let restored = repair::restore(&snapshot.tcp, || {
            let segments = window_to_restore(&snapshot.tcp.congestion);
            if let (Some(windows), Some(segments)) = (&self.windows, segments) {
                windows.expect(flow.slot.flow(), segments);
            }
        })?;
        let fd = restored.activate()?;
        let tcp = TcpStream::from_std(fd.into())?;
        // Packets may come only now that there is a socket.
        flow.slot.local();
        self.steering.replay(&flow.slot);
        let mut input = std::mem::take(&mut snapshot.plaintext);
        input.extend_from_slice(&std::mem::take(&mut flow.unread));
        let (record, ended) = (record.map(Box::new), snapshot.tcp.peer_closed);
        let parts = Parts { tcp, record, input, ended };
        let key = flow.slot.flow();
        Ok(Stream::with_addresses(parts, key.client, key.service))
    }

    /// Resets the connection towards the client. Its owner is gone, so the sequence number of the
    /// RST is the last one that the client acknowledged. A client that has received more than it
    /// acknowledged ignores this RST. Therefore it also receives a probe like a keep-alive (RFC
    /// 9293 §3.8.4): its answer meets this host's stack without a socket, and gets the right RST
    /// from there.
    pub(crate) fn reset(&self, flow: &mut Flow) {
        flow.slot.local();
        self.steering.replay(&flow.slot);
        let key = *flow.slot.flow();
        let (seq, ack) = match flow.slot.counters().tracked {
            Some(known) => (known.last_ack, known.last_seq),
            None => (flow.send_end, SeqNumber(0)),
        };
        let reset = Segment::reset(key, Direction::ToClient, seq);
        let probe = Segment { seq: seq - 1, ack, flags: TcpFlags::ACK, ..reset };
        for segment in [reset, probe] {
            let packet = segment.ip_packet().map_err(io::Error::other);
            let sent = packet.and_then(|packet| raw::send_packet(&packet, key.client.ip()));
            if let Err(error) = sent {
                return tracing::warn!(flow = %key, %error, "no reset sent");
            }
        }
        self.meter.add(Event::ResetSent);
    }
}
