//! A connection that was given back, until the balancer or another server owns it.

use unlade_handoff_protocol::frame::{ClientBytes, Usage};
use unlade_handoff_protocol::snapshot::{EncodedSnapshot, Snapshot};
use unlade_metrics::{Event, Meter};
use unlade_migration::late::late_frames;
use unlade_net::SeqNumber;
use unlade_net::state::TcpSnapshot;
use unlade_runtime::Stream;
use unlade_steering::FlowEntry;
use unlade_sys::info::TcpInfo;
use unlade_sys::link::Mac;
use unlade_sys::raw::FrameSocket;
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

    /// Forwards what the socket received after the returned state, in packets that had already
    /// passed the steering program. `macs` are those of this host and of the balancer.
    pub(crate) fn forward_late(&self, meter: &Meter, frames: &FrameSocket, macs: (Mac, Mac)) {
        let Some(newer) = self.newer() else { return };
        let late = late_frames(&self.returned, &newer, macs.0, macs.1);
        for frame in late.unwrap_or_default() {
            meter.add(Event::LateForwarded);
            if let Err(error) = frames.send(&frame) {
                tracing::warn!(flow = %self.known.flow, %error, "late packet lost");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write};
    use std::net::{TcpListener, TcpStream};
    use std::process::Command;
    use std::time::{Duration, Instant};

    use unlade_net::FlowKey;
    use unlade_net::packet::classify;
    use unlade_net::state::SocketOptions;
    use unlade_sys::link::Link;
    use unlade_sys::namespaces::{Namespace, unshare};
    use unlade_sys::packet::PacketPort;
    use unlade_sys::repair::Accept;
    use unlade_sys::vnet::FRAME_BYTES_MAX;

    use super::*;

    /// Time limit of a wait.
    const PATIENCE: Duration = Duration::from_secs(60);
    const LATE: &[u8] = b"sent before the client's packets went elsewhere";

    fn ip(arguments: &str) {
        let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
        assert!(output.status.success(), "ip {arguments}: {output:?}");
    }

    fn wait_for<T>(what: &str, find: impl Fn() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = find() {
                return found;
            }
            assert!(begin.elapsed() < PATIENCE, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// A connection within this namespace, frozen at its server.
    fn frozen() -> (TcpStream, Frozen) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, peer) = listener.accept().unwrap();
        let known = Known {
            flow: FlowKey::new(peer, server.local_addr().unwrap()),
            socket: SocketOptions::default(),
            mss_bytes: None,
            algorithm: String::new(),
        };
        server.set_nonblocking(true).unwrap();
        let stream = Stream::plain(tokio::net::TcpStream::from_std(server).unwrap());
        repair::freeze(stream.tcp()).unwrap();
        let returned = repair::snapshot(stream.tcp(), &known, Accept::PeerClosed).unwrap();
        (client, Frozen { stream, known, returned })
    }

    fn late_bytes_go_to_the_balancer() {
        ip("link set lo up");
        ip("link add here type veth peer name balancer");
        ip("link set here up");
        ip("link set balancer up");
        // The kernel drops what is sent before it has noticed that both ends are up.
        for name in ["here", "balancer"] {
            wait_for("the carrier", || {
                let output = Command::new("ip").args(["-o", "link", "show", name]).output();
                String::from_utf8_lossy(&output.ok()?.stdout).contains("state UP").then_some(())
            });
        }
        let link = |name| Link::by_name(name).unwrap();
        let (here, balancer) = (link("here"), link("balancer"));
        let port = PacketPort::open(balancer.clone()).unwrap();
        let (frames, macs) = (FrameSocket::open(&here).unwrap(), (here.mac, balancer.mac));
        let meter = Meter::new();
        let (mut client, frozen) = frozen();
        frozen.forward_late(&meter, &frames, macs);
        assert_eq!(meter.value(Event::LateForwarded), 0, "nothing is late yet");
        // No steering redirects these packets, as if they had passed it before the freeze.
        client.write_all(LATE).unwrap();
        let newer = wait_for("the late bytes", || frozen.newer());
        assert_eq!(newer.receive_queue, LATE);
        frozen.forward_late(&meter, &frames, macs);
        assert_eq!(meter.value(Event::LateForwarded), 1);
        let received = wait_for("the forwarded segment", || {
            let mut frame = vec![0; FRAME_BYTES_MAX];
            match port.receive(&mut frame) {
                Ok((_, bytes)) => {
                    frame.truncate(bytes);
                    // The kernel sends frames of its own here.
                    classify(&frame).is_some().then_some(frame)
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    None
                }
            }
        });
        let segment = classify(&received).unwrap();
        assert_eq!((&received[..6], &received[6..12]), (&balancer.mac[..], &here.mac[..]));
        assert_eq!(segment.seq, frozen.returned.receive_seq);
        assert!(received.ends_with(LATE));
    }

    #[test]
    fn what_a_frozen_socket_receives_late_is_forwarded() {
        // A network namespace is a property of a thread.
        let tested = std::thread::spawn(|| match unshare(&[Namespace::Network]) {
            Ok(()) => {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.unwrap().block_on(async { late_bytes_go_to_the_balancer() });
            }
            Err(error) => println!("skipped: no network namespace: {error}"),
        });
        tested.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}
