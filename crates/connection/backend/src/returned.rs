//! A connection that was given back, until the balancer or another server owns it.

use unlade_handoff_protocol::frame::{ClientBytes, Usage};
use unlade_handoff_protocol::snapshot::{EncodedSnapshot, Snapshot};
use unlade_net::SeqNumber;
use unlade_net::state::TcpSnapshot;
use unlade_runtime::Stream;
use unlade_steering::FlowEntry;
use unlade_sys::info::TcpInfo;
use unlade_sys::repair::{self, Known};

use crate::unread;

/// State of a connection that was given back.
#[derive(Debug)]
pub(crate) struct ReturnedConn {
    /// Flow entry that redirects the packets to the balancer.
    pub(crate) entry: FlowEntry,
    /// Snapshot for a retransmission of RETURN.
    pub(crate) snapshot: EncodedSnapshot,
    /// Input behind the snapshot's plaintext.
    pub(crate) unread: ClientBytes,
    pub(crate) usage: Usage,
    /// Sequence number behind the last sent byte, for a RST.
    pub(crate) send_end: SeqNumber,
    /// The frozen socket, until it is closed.
    pub(crate) frozen: Option<Frozen>,
}

/// The socket of a returned connection, and the state that RETURN reported.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) stream: Stream,
    pub(crate) known: Known,
    pub(crate) returned: TcpSnapshot,
}

impl Frozen {
    /// Encodes the state for RETURN.
    pub(crate) fn encode(&self) -> EncodedSnapshot {
        let whole = Snapshot {
            tcp: TcpSnapshot {
                peer_closed: self.returned.peer_closed || self.stream.has_ended(),
                ..self.returned.clone()
            },
            tls: self.stream.record().map(unlade_tls::RecordLayer::to_snapshot),
            plaintext: unread::split(&self.stream).0.to_vec(),
        };
        whole.encoded()
    }

    /// Returns the input that exceeds the snapshot.
    pub(crate) fn unread(&self) -> ClientBytes {
        unread::split(&self.stream).1.to_vec().into()
    }

    /// Returns the socket's state if it supersedes the returned state.
    pub(crate) fn newer(&self) -> Option<TcpSnapshot> {
        let info = TcpInfo::of(self.stream.tcp()).ok()?;
        if info.segs_in == self.returned.segments_in {
            return None;
        }
        // A socket that was reset in the meantime cannot be read; the new owner receives the cause
        // of the reset itself.
        let newer = repair::snapshot_later(self.stream.tcp(), &self.known).ok()?;
        newer.supersedes(&self.returned).then_some(newer)
    }
}
