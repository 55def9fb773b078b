//! Turns a local connection, between two requests, into a snapshot: freezes the socket, reads its
//! state, and closes it when a server has the connection.

use std::time::Instant;

use unlade_handoff_protocol::snapshot::{EncodedSnapshot, Snapshot};
use unlade_metrics::Stage;
use unlade_migration::late::late_frames;
use unlade_net::state::TcpSnapshot;
use unlade_runtime::stream::{Parts, Stream};
use unlade_sys::info::TcpInfo;
use unlade_sys::repair::{self, Accept, Known, RepairError};

use crate::flows::{Flow, Flows, HandoverResult, Local};

/// A frozen connection.
pub(crate) struct Frozen {
    pub parts: Parts,
    /// The state of its socket.
    pub tcp: TcpSnapshot,
    /// The whole connection, encoded.
    pub snapshot: EncodedSnapshot,
}

impl Flows {
    /// Freezes a connection whose packets are held.
    ///
    /// # Errors
    /// The connection, thawed, and the reason.
    pub(crate) fn freeze(
        &self,
        stream: Stream,
        known: &Known,
    ) -> Result<Frozen, (Box<Stream>, RepairError)> {
        let begin = Instant::now();
        let read = repair::freeze(stream.tcp())
            .and_then(|()| repair::snapshot(stream.tcp(), known, Accept::Established));
        match read {
            Ok(tcp) => {
                self.meter.record(Stage::SerializeTcp, begin.elapsed());
                let parts = stream.into_parts();
                let snapshot = self.encode(&parts, &tcp);
                Ok(Frozen { parts, tcp, snapshot })
            }
            Err(error) => {
                // If the socket does not thaw, the next read or write fails.
                let _ = repair::thaw(stream.tcp());
                Err((Box::new(stream), error))
            }
        }
    }

    fn encode(&self, parts: &Parts, tcp: &TcpSnapshot) -> EncodedSnapshot {
        let begin = Instant::now();
        let whole = Snapshot {
            tcp: tcp.clone(),
            tls: parts.record.as_deref().map(unlade_tls::RecordLayer::to_snapshot),
            plaintext: parts.input.clone(),
        };
        let snapshot = whole.encoded();
        if whole.tls.is_some() {
            self.meter.record(Stage::SerializeTls, begin.elapsed());
        }
        snapshot
    }

    /// Returns the bytes that the frozen socket received since its snapshot (some packets may pass
    /// the steering before it holds them), as frames for the new owner.
    pub(crate) fn late(&self, flow: &Flow) -> Vec<Vec<u8>> {
        let Some(Local { parts, tcp, .. }) = &flow.local else { return Vec::new() };
        if TcpInfo::of(&parts.tcp).is_ok_and(|info| info.segs_in == tcp.segments_in) {
            return Vec::new();
        }
        // A socket that was reset meanwhile cannot be read; the new owner detects the cause.
        let Ok(newer) = repair::snapshot_later(&parts.tcp, &flow.known) else {
            return Vec::new();
        };
        let mac = self.steering.link().mac;
        late_frames(tcp, &newer, mac, mac).unwrap_or_default()
    }

    /// Closes the frozen socket silently, because a server has the connection.
    pub(crate) fn leave(&self, flow: &mut Flow) {
        let Some(Local { parts, reply, .. }) = flow.local.take() else { return };
        // In repair mode a close sends nothing.
        drop(parts);
        // The waiting task may have ended; the connection is away in any case.
        let _ = reply.send(HandoverResult::Gone);
    }
}
