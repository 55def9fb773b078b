//! The table of connections: the start of their streams, and their offload.
//!
//! The sequence number of a stream's byte 0 follows the number of the SYN. The host's number is
//! read from the SYN or SYN-ACK that the kernel sends. The peer's number is read from the
//! kernel's acknowledgement, or, if the kernel opened the connection, from the SYN that
//! acknowledges the host's number: an off-path attacker cannot know that number, and therefore
//! cannot plant a number.
//!
//! A connection whose socket was restored from a snapshot has no SYN. The snapshot has the
//! numbers, and the restoring software is trusted with them. Bytes that the kernel may have
//! received before the request to the device count as delivered as they came.
//!
//! A connection can be released: bytes that the kernel sends from then on were sealed in
//! software, and pass. Older bytes are not sent any more.
//!
//! A connection that was offloaded has its place until its software has dropped it and it has
//! ended: by FIN, by RST, or because nothing is left to send. Its name is kept for longer
//! ([`ended`]): payload that the kernel still sends would leave in the clear, and is dropped. An
//! idle connection keeps its place.
//!
//! [`ended`]: super::ended

use std::collections::HashMap;
use std::sync::Arc;

use unlade_net::packet::TcpFlags;
use unlade_net::{FlowKey, SeqNumber};
use unlade_tls::device::{Begin, Refused};

use super::ended::{EndedFlows, Retention, SPENT_MS};
use super::flow::{Flow, Receiving, RxSide, TxSide};
use crate::classify::Segment;
use unlade_nic_engine::Tls;

/// Largest number of connections in the table; others pass, and cannot be offloaded.
pub const CONNECTIONS_MAX: usize = 65_536;
/// How long a connection that is not offloaded is kept without a packet.
pub const IDLE_MS: u64 = 60_000;
/// How long an offloaded connection that has lost its software, without having ended, is kept
/// before it counts as ended.
pub const ORPHANED_MS: u64 = 600_000;
/// Interval of the search for ended connections while all places are taken.
const CROWDED_MS: u64 = 20;
/// The largest window of TCP (RFC 7323 §2.3): no retransmission is from further back.
const WINDOW_BYTES_MAX: i32 = 1 << 30;

/// An offload request of software: records of both directions, from these positions on.
pub struct Offer {
    /// The connection; its client is this host's end, whichever end opened it.
    pub name: FlowKey,
    /// Sequence numbers of the bytes 0 of its streams.
    pub begin: Begin,
    /// Bytes that were written to the socket; the next one starts a record in the clear.
    pub sent_bytes: u64,
    /// Number of records before it under its key.
    pub sent_number: u64,
    /// The key for sending.
    pub sending: Tls,
    /// The receiving direction.
    pub receiving: Receiving,
}

/// The treatment of a connection.
enum FlowMode {
    /// It passes.
    Through,
    /// Offloaded.
    Offload(Arc<Flow>),
    /// It was offloaded, and software seals again: bytes from here on. Earlier bytes may still be
    /// read.
    Released(Arc<Flow>, SeqNumber),
    /// It was offloaded, and has ended; its name is to be kept elsewhere.
    Ended(Retention),
}

/// A connection.
pub struct Connection {
    /// Start of the kernel's stream.
    local: SeqNumber,
    /// Start of the peer's stream, once it is known.
    remote: Option<SeqNumber>,
    /// End of the bytes that the peer has sent.
    frontier: Option<SeqNumber>,
    /// Sequence number behind the kernel's FIN, once it was sent.
    finished: Option<SeqNumber>,
    /// True if the peer has acknowledged that.
    over: bool,
    /// Sequence number behind the peer's FIN, once it was sent.
    peer_finished: Option<SeqNumber>,
    /// True if the kernel has acknowledged that.
    peer_over: bool,
    /// The last acknowledgement of the kernel.
    acknowledged: Option<SeqNumber>,
    /// True if either side has sent a RST; the peer's had the next number.
    reset: bool,
    used: FlowMode,
    heard_ms: u64,
}

/// The treatment of a segment's payload.
pub enum Verdict<'t> {
    /// It passes.
    Through,
    /// Its flow processes it.
    Work(&'t Flow),
    /// It is dropped: it would leave in the clear.
    Drop,
}

/// All connections, by name; the client of a name is this host's end.
pub struct FlowTable {
    connections: HashMap<FlowKey, Connection>,
    /// Largest number of connections.
    places: usize,
    offloaded: usize,
    /// Number of connections in `connections` that have ended.
    ending: usize,
    ended: EndedFlows,
    /// All that the kernel sent before this time was seen.
    seen_ms: u64,
    /// Time of the last search for places while there was none.
    crowded_ms: u64,
    /// Connections that were not recorded, since there were too many.
    pub refused: u64,
}

impl Default for FlowTable {
    fn default() -> FlowTable {
        FlowTable::with_places(CONNECTIONS_MAX)
    }
}

impl FlowTable {
    /// Creates a table for `places` connections.
    pub fn with_places(places: usize) -> FlowTable {
        FlowTable {
            connections: HashMap::new(),
            places,
            offloaded: 0,
            ending: 0,
            ended: EndedFlows::default(),
            seen_ms: 0,
            crowded_ms: 0,
            refused: 0,
        }
    }

    /// Connections that are offloaded.
    pub fn offloaded(&self) -> usize {
        self.offloaded
    }

    /// Connections that were offloaded, and whose names are kept.
    pub fn ended(&self) -> usize {
        self.ending + self.ended.len()
    }

    /// Number of connections that have a place.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Returns true if the table is empty.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Processes a segment that the kernel sends.
    pub fn host_segment(&mut self, now_ms: u64, segment: &Segment) -> Verdict<'_> {
        let flags = segment.flags;
        if flags.contains(TcpFlags::SYN) {
            self.open(now_ms, segment);
        }
        let Some(connection) = self.connections.get_mut(&segment.flow) else {
            return match self.ended.hear(now_ms, &segment.flow) {
                true => Verdict::Drop,
                false => Verdict::Through,
            };
        };
        connection.heard_ms = now_ms;
        if flags.contains(TcpFlags::FIN) {
            let end = segment.payload_seq() + segment.payload.len() as u32;
            connection.finished = Some(end + 1);
        }
        if flags.contains(TcpFlags::ACK) {
            connection.acknowledged = Some(segment.ack);
            connection.peer_over |= connection.peer_finished == Some(segment.ack);
        }
        if flags.contains(TcpFlags::RST) {
            connection.reset = true;
            if let FlowMode::Offload(flow) = &connection.used {
                connection.used = FlowMode::Ended(flow.retention());
                self.offloaded -= 1;
                self.ending += 1;
            }
        }
        match &mut connection.used {
            FlowMode::Through => Verdict::Through,
            FlowMode::Released(flow, from) => {
                if flags.contains(TcpFlags::ACK) {
                    flow.rx().acknowledge(segment.ack);
                }
                let ahead = segment.payload_seq().since(*from);
                if ahead > WINDOW_BYTES_MAX {
                    *from = segment.payload_seq() - WINDOW_BYTES_MAX as u32;
                }
                if ahead < 0 { Verdict::Drop } else { Verdict::Through }
            }
            FlowMode::Offload(flow) => {
                if flags.contains(TcpFlags::ACK) {
                    flow.rx().acknowledge(segment.ack);
                }
                Verdict::Work(flow)
            }
            FlowMode::Ended(_) => Verdict::Drop,
        }
    }

    /// Processes a SYN of the kernel: a connection begins, unless it is a retransmission.
    fn open(&mut self, now_ms: u64, segment: &Segment) {
        let known = self.connections.get(&segment.flow);
        let local = segment.seq + 1;
        if known.is_some_and(|known| known.local == local) {
            return;
        }
        // The kernel has one connection of a name at a time: the previous one is gone.
        self.ended.forget(&segment.flow);
        if known.is_none() && !self.has_room(now_ms) {
            self.refused += 1;
            return;
        }
        let remote = segment.flags.contains(TcpFlags::ACK).then_some(segment.ack);
        let connection = Connection { remote, frontier: remote, ..Connection::new(local, now_ms) };
        self.place(segment.flow, connection);
    }

    /// Returns true if there is a place. If all are taken, frees those of ended connections
    /// first.
    fn has_room(&mut self, now_ms: u64) -> bool {
        if self.connections.len() < self.places {
            return true;
        }
        if now_ms >= self.crowded_ms + CROWDED_MS {
            self.crowded_ms = now_ms;
            self.sweep(self.seen_ms);
        }
        self.connections.len() < self.places
    }

    /// Gives a connection its place, and that of an earlier one of its name.
    fn place(&mut self, name: FlowKey, connection: Connection) {
        match self.connections.insert(name, connection).map(|before| before.used) {
            Some(FlowMode::Offload(_)) => self.offloaded -= 1,
            Some(FlowMode::Ended(_)) => self.ending -= 1,
            Some(FlowMode::Through | FlowMode::Released(..)) | None => (),
        }
    }

    /// Processes a segment that the peer sends, with good checksums. Returns `None` if it passes.
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
        if let FlowMode::Through = connection.used {
            connection.heard_ms = now_ms;
        }
        match connection.frontier {
            Some(frontier) if frontier.before(end) => connection.frontier = Some(end),
            _ => (),
        }
        connection.over |= acknowledges && connection.finished == Some(segment.ack);
        if flags.contains(TcpFlags::FIN) {
            connection.peer_finished = Some(end + 1);
        }
        // The kernel does not obey any other RST (RFC 5961 §3.2).
        let is_next = Some(segment.seq) == connection.acknowledged.or(connection.remote);
        connection.reset |= flags.contains(TcpFlags::RST) && is_next;
        match &connection.used {
            FlowMode::Offload(flow) => Some(flow),
            // Until software has read the earlier bytes, deliveries have to be noted.
            FlowMode::Released(flow, _) if Arc::strong_count(flow) > 1 => Some(flow),
            FlowMode::Released(..) | FlowMode::Through | FlowMode::Ended(_) => None,
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
            self.restore(now_ms, offer.name, begun)?;
        }
        let connection = self.connections.get_mut(&offer.name).ok_or(Refused::Unknown)?;
        let (Some(remote), Some(frontier)) = (connection.remote, connection.frontier) else {
            return Err(Refused::Unknown);
        };
        let FlowMode::Through = connection.used else { return Err(Refused::Duplicate) };
        let Offer { sent_bytes, sent_number, sending, receiving, .. } = offer;
        let tx = TxSide::new(connection.local, sent_bytes, sent_number, sending);
        let rx = RxSide::new(remote, receiving, frontier);
        let flow = Arc::new(Flow::new(tx, rx));
        connection.used = FlowMode::Offload(flow.clone());
        self.offloaded += 1;
        Ok(flow)
    }

    /// Adds the connection of a socket that was restored from a snapshot. An earlier connection
    /// of that name is gone, unless its software is still there.
    fn restore(
        &mut self,
        now_ms: u64,
        name: FlowKey,
        connection: Connection,
    ) -> Result<(), Refused> {
        let known = self.connections.get(&name).map(|known| &known.used);
        let is_known = known.is_some();
        if let Some(FlowMode::Offload(flow)) = known
            && Arc::strong_count(flow) > 1
        {
            return Err(Refused::Duplicate);
        }
        if !is_known && !self.has_room(now_ms) {
            self.refused += 1;
            return Err(Refused::Unknown);
        }
        self.ended.forget(&name);
        self.place(name, connection);
        Ok(())
    }

    /// Ends the offload of a connection that goes on: all bytes written up to `end` are
    /// acknowledged, and bytes received from now on are delivered as they come.
    pub fn release(&mut self, name: &FlowKey, flow: &Arc<Flow>, end: SeqNumber) {
        let Some(connection) = self.connections.get_mut(name) else { return };
        match &connection.used {
            FlowMode::Offload(known) if Arc::ptr_eq(known, flow) => {
                flow.rx().stop();
                connection.used = FlowMode::Released(flow.clone(), end);
                self.offloaded -= 1;
            }
            _ => (),
        }
    }

    /// Notes that all that the kernel sent before `seen_ms` was seen.
    pub fn has_seen(&mut self, seen_ms: u64) {
        self.seen_ms = self.seen_ms.max(seen_ms);
    }

    /// Frees the places of connections that have ended or have been silent for long. All that the
    /// kernel sent before `seen_ms` was seen.
    pub fn sweep(&mut self, seen_ms: u64) {
        self.has_seen(seen_ms);
        let FlowTable { connections, offloaded, ending, ended, .. } = self;
        connections.retain(|name, connection| {
            let silent_ms = seen_ms.saturating_sub(connection.heard_ms);
            let heard_ms = connection.heard_ms;
            match &connection.used {
                FlowMode::Through => silent_ms < IDLE_MS && !connection.has_ended(),
                FlowMode::Released(flow, _) => {
                    let ended = connection.has_ended() && silent_ms >= SPENT_MS;
                    Arc::strong_count(flow) > 1 || silent_ms < IDLE_MS && !ended
                }
                FlowMode::Offload(flow) => {
                    let is_done = connection.over
                        || connection.reset
                        || flow.is_spent()
                        || silent_ms >= ORPHANED_MS;
                    if Arc::strong_count(flow) > 1 || !is_done {
                        return true;
                    }
                    *offloaded -= 1;
                    let kept = flow.retention();
                    if ended.insert(heard_ms, *name, kept) {
                        return false;
                    }
                    connection.used = FlowMode::Ended(kept);
                    *ending += 1;
                    true
                }
                FlowMode::Ended(kept) => {
                    let is_kept = ended.insert(heard_ms, *name, *kept);
                    *ending -= usize::from(is_kept);
                    !is_kept
                }
            }
        });
        self.ended.sweep(seen_ms);
    }
}

impl Connection {
    /// Creates a connection that passes, and whose peer's numbers are unknown.
    fn new(local: SeqNumber, now_ms: u64) -> Connection {
        Connection {
            local,
            remote: None,
            frontier: None,
            finished: None,
            over: false,
            peer_finished: None,
            peer_over: false,
            acknowledged: None,
            reset: false,
            used: FlowMode::Through,
            heard_ms: now_ms,
        }
    }

    /// Returns true if neither end will send any data.
    fn has_ended(&self) -> bool {
        self.reset || self.over && self.peer_over
    }
}
