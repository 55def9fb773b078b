//! The connections that go through: where their streams begin, and whether they are offloaded.
//!
//! A stream's octet 0 has the number behind the SYN's. Ours is read from the SYN, or the SYN with
//! ACK, that the kernel sends; the peer's from what the kernel acknowledges with it, or, where the
//! kernel opened the connection, from the SYN that acknowledges ours: nobody beside the way can
//! know that number. So numbers cannot be planted from afar.
//!
//! A connection whose socket was built from a snapshot has no SYN; the snapshot says the numbers, and
//! who has built the socket is trusted with them. What the kernel may have received before the device
//! heard of it counts as delivered as it came.
//!
//! A connection can be released: what the kernel sends from then on was sealed in software, and goes
//! through; what is older than that does not leave any more.
//!
//! A connection that was offloaded is remembered after its end: payload that the kernel still sends
//! would leave in the clear, and is dropped until the kernel opens another one of that name.

use std::collections::HashMap;
use std::sync::Arc;

use record::device::{Begin, Refused};
use wire::packet::TcpFlags;
use wire::{FlowKey, SeqNumber};

use super::sides::{Flow, Receiving, RxSide, TxSide};
use crate::classify::Segment;
use offload::Tls;

/// Most connections that are known; others go through, and cannot be offloaded.
pub const CONNECTIONS_MAX: usize = 65_536;
/// A connection that is not offloaded is forgotten after so long without a packet.
pub const IDLE_MS: u64 = 60_000;
/// One that was offloaded and has lost its software, without having ended, becomes an ended one.
pub const ORPHANED_MS: u64 = 600_000;
/// An ended one is forgotten after so long without a packet of the kernel's. Longer than the kernel
/// ever sends one again.
pub const ENDED_MS: u64 = 3_600_000;
/// The largest window of TCP (RFC 7323 §2.3): nothing is sent again that is further back.
const WINDOW_BYTES_MAX: i32 = 1 << 30;

/// What software asks for: records of both directions, from these places on.
pub struct Offer {
    /// The connection; its client is this host's end, whoever opened it.
    pub name: FlowKey,
    /// Where the octets 0 of its streams are.
    pub begin: Begin,
    /// Octets that were written to the socket; the next one starts a record in the clear.
    pub sent_bytes: u64,
    /// How many records were before it under its key.
    pub sent_number: u64,
    /// The key for sending.
    pub sending: Tls,
    /// What is received.
    pub receiving: Receiving,
}

/// What is done with a connection.
enum Use {
    /// It goes through.
    Through,
    /// Offloaded.
    Offload(Arc<Flow>),
    /// It was, and software seals again: octets from here on. What came before may still be read.
    Released(Arc<Flow>, SeqNumber),
    /// It was, and has ended.
    Ended,
}

/// A connection.
pub struct Connection {
    /// Where the kernel's stream begins.
    local: SeqNumber,
    /// Where the peer's begins, once that is known.
    remote: Option<SeqNumber>,
    /// The end of what the peer has sent.
    frontier: Option<SeqNumber>,
    /// Behind the kernel's FIN, once it has sent it.
    finished: Option<SeqNumber>,
    /// The peer has acknowledged that.
    over: bool,
    used: Use,
    heard_ms: u64,
}

/// What is to be done with the payload of a segment.
pub enum Verdict<'t> {
    /// Nothing.
    Through,
    /// Its flow works on it.
    Work(&'t Flow),
    /// It would leave in the clear.
    Drop,
}

/// All connections, by name; the client of a name is this host's end.
#[derive(Default)]
pub struct Table {
    connections: HashMap<FlowKey, Connection>,
    offloaded: usize,
    /// Connections that were not remembered, since there were too many.
    pub refused: u64,
}

impl Table {
    /// Connections that are or were offloaded.
    pub fn offloaded(&self) -> usize {
        self.offloaded
    }

    /// All that are known.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// None is known.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// A segment that the kernel sends.
    pub fn host_segment(&mut self, now_ms: u64, segment: &Segment) -> Verdict<'_> {
        let flags = segment.flags;
        if flags.contains(TcpFlags::SYN) {
            self.open(now_ms, segment);
        }
        let Some(connection) = self.connections.get_mut(&segment.flow) else {
            return Verdict::Through;
        };
        connection.heard_ms = now_ms;
        if flags.contains(TcpFlags::FIN) {
            let end = segment.payload_seq() + segment.payload.len() as u32;
            connection.finished = Some(end + 1);
        }
        if flags.contains(TcpFlags::RST) {
            connection.end();
        }
        match &mut connection.used {
            Use::Through => Verdict::Through,
            Use::Released(flow, from) => {
                if flags.contains(TcpFlags::ACK) {
                    flow.rx().settle(segment.ack);
                }
                let ahead = segment.payload_seq().since(*from);
                if ahead > WINDOW_BYTES_MAX {
                    *from = segment.payload_seq() - WINDOW_BYTES_MAX as u32;
                }
                if ahead < 0 { Verdict::Drop } else { Verdict::Through }
            }
            Use::Offload(flow) => {
                if flags.contains(TcpFlags::ACK) {
                    flow.rx().settle(segment.ack);
                }
                Verdict::Work(flow)
            }
            Use::Ended => Verdict::Drop,
        }
    }

    /// The kernel sends a SYN: a connection begins, unless it is one sent again.
    fn open(&mut self, now_ms: u64, segment: &Segment) {
        let known = self.connections.get(&segment.flow);
        let local = segment.seq + 1;
        if known.is_some_and(|known| known.local == local) {
            return;
        }
        if known.is_none() && self.connections.len() == CONNECTIONS_MAX {
            self.refused += 1;
            return;
        }
        let remote = segment.flags.contains(TcpFlags::ACK).then_some(segment.ack);
        let connection = Connection { remote, frontier: remote, ..Connection::new(local, now_ms) };
        let before = self.connections.insert(segment.flow, connection);
        self.offloaded -= usize::from(before.is_some_and(|before| before.was_offloaded()));
    }

    /// A segment that the peer sends, with good checksums. Nothing where it goes through.
    pub fn wire_segment(&mut self, now_ms: u64, segment: &Segment) -> Option<&Flow> {
        let connection = self.connections.get_mut(&segment.reversed())?;
        let flags = segment.flags;
        let acknowledges = flags.contains(TcpFlags::ACK);
        if flags.contains(TcpFlags::SYN) {
            if connection.remote.is_none() && acknowledges && segment.ack == connection.local {
                connection.remote = Some(segment.seq + 1);
                connection.frontier = connection.remote;
            }
            return None;
        }
        let end = segment.seq + segment.payload.len() as u32;
        if let Use::Through = connection.used {
            connection.heard_ms = now_ms;
        }
        match connection.frontier {
            Some(frontier) if frontier.before(end) => connection.frontier = Some(end),
            _ => (),
        }
        connection.over |= acknowledges && connection.finished == Some(segment.ack);
        match &connection.used {
            Use::Offload(flow) => Some(flow),
            // Until software has read what came before, how octets come has to be noted.
            Use::Released(flow, _) if Arc::strong_count(flow) > 1 => Some(flow),
            Use::Released(..) | Use::Through | Use::Ended => None,
        }
    }

    /// Starts to offload a connection.
    ///
    /// # Errors
    /// [`Refused`].
    pub fn create(&mut self, now_ms: u64, offer: Offer) -> Result<Arc<Flow>, Refused> {
        if let Begin::Restored { send_seq, receive_seq, delivered_bytes_max } = offer.begin {
            let frontier = receive_seq + delivered_bytes_max as u32;
            let begun = Connection {
                remote: Some(receive_seq),
                frontier: Some(frontier),
                ..Connection::new(send_seq, now_ms)
            };
            self.restore(offer.name, begun)?;
        }
        let connection = self.connections.get_mut(&offer.name).ok_or(Refused::Unknown)?;
        let (Some(remote), Some(frontier)) = (connection.remote, connection.frontier) else {
            return Err(Refused::Unknown);
        };
        let Use::Through = connection.used else { return Err(Refused::Twice) };
        let Offer { sent_bytes, sent_number, sending, receiving, .. } = offer;
        let tx = TxSide::new(connection.local, sent_bytes, sent_number, sending);
        let rx = RxSide::new(remote, receiving, frontier);
        let flow = Arc::new(Flow::new(tx, rx));
        connection.used = Use::Offload(flow.clone());
        self.offloaded += 1;
        Ok(flow)
    }

    /// The kernel has a socket of this name that was built from a snapshot; an earlier one of that
    /// name is gone, unless its software is still there.
    fn restore(&mut self, name: FlowKey, connection: Connection) -> Result<(), Refused> {
        match self.connections.get(&name).map(|known| &known.used) {
            Some(Use::Offload(flow)) if Arc::strong_count(flow) > 1 => return Err(Refused::Twice),
            None if self.connections.len() == CONNECTIONS_MAX => {
                self.refused += 1;
                return Err(Refused::Unknown);
            }
            _ => (),
        }
        let before = self.connections.insert(name, connection);
        self.offloaded -= usize::from(before.is_some_and(|before| before.was_offloaded()));
        Ok(())
    }

    /// Ends the offload of a connection that goes on: what was written up to `end` is acknowledged,
    /// and what is received from now on is delivered as it comes.
    pub fn release(&mut self, name: &FlowKey, flow: &Arc<Flow>, end: SeqNumber) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        match &connection.used {
            Use::Offload(known) if Arc::ptr_eq(known, flow) => {
                flow.rx().stop();
                connection.used = Use::Released(flow.clone(), end);
                self.offloaded -= 1;
            }
            _ => (),
        }
    }

    /// Forgets connections that have been silent for long.
    pub fn sweep(&mut self, now_ms: u64) {
        let offloaded = &mut self.offloaded;
        self.connections.retain(|_, connection| {
            let silent_ms = now_ms.saturating_sub(connection.heard_ms);
            match &connection.used {
                Use::Through => silent_ms < IDLE_MS,
                Use::Released(flow, _) => Arc::strong_count(flow) > 1 || silent_ms < IDLE_MS,
                Use::Offload(flow) => {
                    let done = connection.over || silent_ms >= ORPHANED_MS;
                    if Arc::strong_count(flow) == 1 && done {
                        connection.end();
                    }
                    true
                }
                Use::Ended => {
                    let kept = silent_ms < ENDED_MS;
                    *offloaded -= usize::from(!kept);
                    kept
                }
            }
        });
    }
}

impl Connection {
    /// One that goes through, and of whose peer nothing is known.
    fn new(local: SeqNumber, now_ms: u64) -> Connection {
        Connection {
            local,
            remote: None,
            frontier: None,
            finished: None,
            over: false,
            used: Use::Through,
            heard_ms: now_ms,
        }
    }

    /// Counts as offloaded: something of it may be in the clear.
    fn was_offloaded(&self) -> bool {
        matches!(self.used, Use::Offload(_) | Use::Ended)
    }

    /// No context is kept, and payload is dropped from now on, if it was offloaded.
    fn end(&mut self) {
        if self.was_offloaded() {
            self.used = Use::Ended;
        }
    }
}
