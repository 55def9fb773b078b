//! The host's own TCP over the device: connections of crate `tcp`, with records above them if
//! they are secured. One thread owns a stack, and calls [`Stack::poll`] in a loop.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use thiserror::Error;
use unlade_net::packet::{Direction, Segment, TcpFlags, TcpOptions, classify};
use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::Stats;
use unlade_research_tcp::{Header, Id, StackConfig, Time, Transmit};

use crate::driver::{Driver, DriverError, TxFlow};
use crate::flow::{FlowId, Protocol};
use crate::queue::{RxBatch, RxKind, RxSegment, SUPER_SEGMENT_FRAMES_MAX, Sent, TcpHeader};
use crate::rx_bytes::{Returned, RxBytes, SharedBatch};
use crate::span::{Envelope, Span};
use crate::storage::sealed::Sealed;
use crate::template::Template;
use crate::tls::Mode;
use crate::tls::keys::{KeysError, Secrets};
use crate::tls::receive::{Chunk, Event, ReceiveError, Receiver, Restart};
use crate::tls::send::{CONTENT_BYTES_MAX, SendError, Sender};

mod keys;
mod pdu_state;
mod pdus;
mod sent;

use pdu_state::PduState;
pub use pdu_state::Question;
use sent::SentRecords;

/// Largest number of batches that are processed in one poll.
const BATCHES_AT_ONCE: usize = 16;
/// Largest number of large segments that are sent in one poll.
const SEGMENTS_AT_ONCE: usize = 32;
/// Number of released connections that one poll checks for their end.
const RELEASED_AT_ONCE: usize = 16;
/// Payloads below this length are copied: each would keep a whole batch from the device.
const COPIED_BYTES_MAX: usize = 256;
/// Largest number of bytes of a record beside its content.
const RECORD_OVERHEAD_BYTES: u32 = 64;

/// Settings of a stack.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings of TCP.
    pub tcp: StackConfig,
    /// This end's hardware address, and that of the next hop to all peers.
    pub hardware: ([u8; 6], [u8; 6]),
    /// Batches of the queues: when most are in use, payloads are copied.
    pub rx_batches: usize,
}

/// The reason that a connection is not secured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SecureError {
    /// There is no such connection, or it has ended.
    #[error("there is no such connection")]
    Unknown,
    /// It is secured already.
    #[error("the connection is secured already")]
    Twice,
    /// The keys do not fit the cipher.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The device has no room.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The reason that a write is refused; nothing was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WriteError {
    /// Too much is unacknowledged.
    #[error("too much is unacknowledged; write when some of it is")]
    Full,
    /// The connection is gone, or this end has closed.
    #[error("the connection takes no more bytes")]
    Closed,
    /// The connection sends PDUs only.
    #[error("the connection sends PDUs only; use write_pdu")]
    Framed,
    /// The record layer refuses the write.
    #[error(transparent)]
    Record(#[from] SendError),
    /// The device is behind; the keys are unchanged.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

/// The state of one connection beside that of TCP.
struct Connection {
    id: Id,
    name: FlowKey,
    flow: Option<FlowId>,
    tx: TxFlow,
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    plain: VecDeque<Chunk>,
    pdus: PduState,
    /// True if the peer's request for new keys is not yet answered.
    answer_due: bool,
    failed: Option<ReceiveError>,
    ended: bool,
}

/// Counters of the host's side; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames that were damaged, and were dropped here.
    pub damaged: u64,
    /// Frames that are no TCP segments.
    pub other: u64,
    /// Segments that were not sent because their sealing state is unknown.
    pub unsealable: u64,
    /// Large segments that the device has dropped.
    pub dropped: u64,
    /// Payloads that were copied.
    pub copied: u64,
}

/// Connections over one shard of a device.
pub struct Stack {
    tcp: unlade_research_tcp::Stack<RxBytes, Span>,
    driver: Driver,
    config: Config,
    connections: Vec<Option<Box<Connection>>>,
    /// Indexed by the flow's index.
    flows: Vec<Option<(FlowId, Id)>>,
    names: HashMap<FlowKey, FlowId>,
    released: VecDeque<Id>,
    returned: Returned,
    /// Number of batches that the device does not have.
    held_batches: usize,
    pieces: Vec<RxBytes>,
    stats: Stats,
    counters: Counters,
    /// Buffer for the parts of a PDU.
    written: Vec<Span>,
}

impl Stack {
    /// Creates a stack without connections.
    pub fn new(config: Config, driver: Driver) -> Stack {
        Stack {
            tcp: unlade_research_tcp::Stack::new(config.tcp.clone()),
            driver,
            config,
            connections: Vec::new(),
            flows: Vec::new(),
            names: HashMap::new(),
            released: VecDeque::new(),
            returned: Returned::default(),
            held_batches: 0,
            pieces: Vec::new(),
            stats: Stats::default(),
            counters: Counters::default(),
            written: Vec::new(),
        }
    }

    /// TCP, for listening, accepting, and the states of connections.
    pub fn tcp(&mut self) -> &mut unlade_research_tcp::Stack<RxBytes, Span> {
        &mut self.tcp
    }

    /// Counters of the host's part of the machines.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Further counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Opens a connection to `remote`.
    ///
    /// # Errors
    /// Errors of TCP.
    pub fn connect(
        &mut self,
        now: Time,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Id, unlade_research_tcp::ConnectError> {
        let id = self.tcp.connect(now, local, remote)?;
        self.open_connection(id);
        Ok(id)
    }

    /// Opens a flow in the device for a new connection.
    fn open_connection(&mut self, id: Id) {
        let Some(name) = self.tcp.flow(id) else { return };
        let index = id.index();
        if self.connections.len() <= index {
            self.connections.resize_with(index + 1, || None);
        }
        if let Some(before) = self.connections[index].take() {
            self.forget(&before);
        }
        if let Some(flow) = self.names.get(&name).copied() {
            // TCP has reused the name for another connection.
            self.close_flow(flow, &name);
        }
        let mut connection = Box::new(Connection {
            id,
            name,
            flow: None,
            tx: TxFlow::default(),
            sender: None,
            receiver: None,
            plain: VecDeque::new(),
            pdus: PduState::default(),
            answer_due: false,
            failed: None,
            ended: false,
        });
        connection.flow = self.open_flow(id, name);
        self.connections[index] = Some(connection);
    }

    fn open_flow(&mut self, id: Id, name: FlowKey) -> Option<FlowId> {
        let (own, peer) = self.config.hardware;
        let flow = self.driver.open(name, Template::new(own, peer, &name)?).ok()?;
        if self.flows.len() <= flow.index() {
            self.flows.resize(flow.index() + 1, None);
        }
        self.flows[flow.index()] = Some((flow, id));
        self.names.insert(name, flow);
        Some(flow)
    }

    fn close_flow(&mut self, flow: FlowId, name: &FlowKey) {
        // Without room for the command the flow stays in the device, and its index is not reused.
        let _ = self.driver.close(flow);
        if let Some(place) = self.flows.get_mut(flow.index()) {
            *place = None;
        }
        if self.names.get(name) == Some(&flow) {
            self.names.remove(name);
        }
    }

    fn forget(&mut self, connection: &Connection) {
        if let Some(flow) = connection.flow
            && self.names.get(&connection.name) == Some(&flow)
        {
            self.close_flow(flow, &connection.name);
        }
    }

    fn connection(&mut self, id: Id) -> Option<&mut Connection> {
        let connection = self.connections.get_mut(id.index())?.as_deref_mut()?;
        (connection.id == id).then_some(connection)
    }

    /// Secures the connection: from the next bytes in both directions on there are TLS records,
    /// sealed with `tx` and opened with `rx`; each with the number of earlier records under its
    /// key. With [`Mode::Offload`] the device processes them, if it supports the suite.
    ///
    /// # Errors
    /// [`SecureError`]; the connection is unchanged, and should be closed.
    pub fn secure(
        &mut self,
        id: Id,
        mode: Mode,
        (tx, tx_number): (Secrets, u64),
        (rx, rx_number): (Secrets, u64),
    ) -> Result<(), SecureError> {
        self.secure_pdus(id, mode, (tx, tx_number), (rx, rx_number), None)
    }

    /// Secures the connection, with PDUs in the application data of records if `nvme` is given.
    /// The device processes these too, in both directions, and the caller sends with
    /// [`Stack::write_pdu`].
    ///
    /// # Errors
    /// As [`Stack::secure`].
    pub fn secure_pdus(
        &mut self,
        id: Id,
        mode: Mode,
        (tx, tx_number): (Secrets, u64),
        (rx, rx_number): (Secrets, u64),
        nvme: Option<unlade_nic_engine::Nvme>,
    ) -> Result<(), SecureError> {
        let tcp = self.tcp.get(id).ok_or(SecureError::Unknown)?;
        let (tx_start, rx_start) = (tcp.send_end(), tcp.read_at());
        let connection = self.connection(id).ok_or(SecureError::Unknown)?;
        if connection.receiver.is_some() || connection.pdus.frames() {
            return Err(SecureError::Twice);
        }
        let flow = connection.flow;
        if let Some(nvme) = nvme.filter(|_| mode == Mode::Offload && Sealed::fits(&tx)) {
            let receiver = Receiver::new(mode, rx, rx_start, rx_number)?;
            let sent = (tx, tx_start, tx_number);
            return self.secure_both(id, nvme, sent, (receiver, rx_start, rx_number));
        }
        let sender = Sender::new(mode, tx, tx_start, tx_number)?;
        let receiver = Receiver::new(mode, rx, rx_start, rx_number)?;
        if mode == Mode::Offload {
            let flow = flow.ok_or(DriverError::Flows)?;
            if let Some(protocol) = sender.secrets().protocol()? {
                self.driver.create_tx(flow, protocol, (tx_start, tx_number), 0)?;
                if let Some(connection) = self.connection(id) {
                    connection.tx.add(0, tx_start)?;
                }
            }
            if let Some(protocol) = receiver.protocol()? {
                let protocol = match (protocol, nvme) {
                    (Protocol::Tls(tls), Some(nvme)) => Protocol::NvmeTls(tls, nvme),
                    (protocol, _) => protocol,
                };
                self.driver.create_rx(flow, protocol, rx_start, rx_number)?;
            }
        }
        let connection = self.connection(id).ok_or(SecureError::Unknown)?;
        connection.sender = Some(sender);
        connection.receiver = Some(receiver);
        Ok(())
    }

    /// Number of bytes that [`Stack::write`] accepts now, in one call.
    pub fn write_room_bytes(&self, id: Id) -> usize {
        let Some(tcp) = self.tcp.get(id) else { return 0 };
        let room = tcp.send_room_bytes().saturating_sub(RECORD_OVERHEAD_BYTES);
        if tcp.send_room_pieces() == 0 { 0 } else { room as usize }
    }

    /// Sends `content`; if the connection is secured, as one record of at most 16 KiB. It is not
    /// copied, and must fit into [`Stack::write_room_bytes`].
    ///
    /// # Errors
    /// [`WriteError`]; nothing was written.
    pub fn write(&mut self, id: Id, mut content: Bytes) -> Result<(), WriteError> {
        if content.len() > self.write_room_bytes(id) {
            return match self
                .tcp
                .get(id)
                .is_some_and(unlade_research_tcp::Connection::is_established)
            {
                true => Err(WriteError::Full),
                false => Err(WriteError::Closed),
            };
        }
        let connection = self.connection(id).ok_or(WriteError::Closed)?;
        let envelope = match &mut connection.sender {
            _ if connection.pdus.frames() => return Err(WriteError::Framed),
            Some(sender) => sender.write(&mut content)?,
            None => Envelope::NONE,
        };
        self.send(id, Span::record(envelope, content))
    }

    /// Passes bytes to TCP, which has room for them.
    #[inline]
    fn send(&mut self, id: Id, raw: Span) -> Result<(), WriteError> {
        let tcp = self.tcp.get_mut(id).ok_or(WriteError::Closed)?;
        tcp.send(raw).map(|_| ()).map_err(|_| WriteError::Closed)
    }

    /// Passes several spans to TCP, which has room for them.
    fn send_all(&mut self, id: Id, spans: &mut Vec<Span>) -> Result<(), WriteError> {
        spans.drain(..).try_for_each(|span| self.send(id, span))
    }

    /// Ends the sent stream; if the connection is secured, with an authenticated close_notify.
    pub fn close(&mut self, id: Id) {
        let close_notify = self.connection(id).map(|connection| connection.close_notify());
        // Without room the peer sees an end without close_notify.
        if let Some(Ok(Some(record))) = close_notify {
            let _ = self.send(id, record);
        }
        if let Some(tcp) = self.tcp.get_mut(id) {
            tcp.close();
        }
    }

    /// Releases the connection: the caller no longer uses it.
    pub fn release(&mut self, id: Id) {
        self.tcp.release(id);
        self.released.push_back(id);
    }

    /// Reads the next received bytes, as plaintext if the connection is secured.
    ///
    /// # Errors
    /// The stream of records has ended; the connection is to be aborted.
    pub fn read(&mut self, id: Id) -> Result<Option<Chunk>, ReceiveError> {
        let Some(connection) = self.connection(id) else { return Ok(None) };
        if let Some(chunk) = connection.plain.pop_front() {
            return Ok(Some(chunk));
        }
        connection.failed.map_or(Ok(()), Err)?;
        if connection.receiver.is_none() {
            let read = self.tcp.get_mut(id).and_then(unlade_research_tcp::Connection::read);
            return Ok(read.map(|(_, piece)| Chunk::Placed(piece)));
        }
        if let Err(error) = self.pump(id)
            && let Some(connection) = self.connection(id)
        {
            connection.failed = Some(error);
        }
        let Some(connection) = self.connection(id) else { return Ok(None) };
        match connection.plain.pop_front() {
            Some(chunk) => Ok(Some(chunk)),
            None => connection.failed.map_or(Ok(None), Err),
        }
    }

    /// Returns true if the peer's stream has ended, and all was read. If the connection is
    /// secured, the end is authenticated by a close_notify.
    pub fn is_read_to_end(&self, id: Id) -> bool {
        let connection = self.connections.get(id.index()).and_then(Option::as_deref);
        let Some(connection) = connection.filter(|found| found.id == id) else { return true };
        match connection.receiver {
            Some(_) => connection.ended && connection.plain.is_empty(),
            None => self.tcp.get(id).is_none_or(unlade_research_tcp::Connection::is_read_to_end),
        }
    }

    /// Opens records until there is plaintext, or no record is complete.
    fn pump(&mut self, id: Id) -> Result<(), ReceiveError> {
        let index = id.index();
        let Some(connection) = self.connections[index].as_deref_mut() else { return Ok(()) };
        let Some(receiver) = &mut connection.receiver else { return Ok(()) };
        let mut more = true;
        while connection.plain.is_empty() {
            match receiver.next(&mut self.stats, &mut connection.plain)? {
                Some(event) => {
                    let response = receiver.response();
                    let (driver, flow) = (&mut self.driver, connection.flow);
                    if let (Some(response), Some(flow)) = (response, flow) {
                        // Without room the answer is lost, and the device asks again.
                        let _ = driver.resync_rx_resp(flow, response);
                    }
                    match event {
                        Event::Data | Event::Nothing => (),
                        Event::Closed => connection.ended = true,
                        Event::KeyUpdate { answer, device } => {
                            connection.answer_due |= answer;
                            if let (Some(device), Some(flow)) = (device, flow) {
                                restart(driver, flow, device)?;
                            }
                        }
                    }
                }
                None if !more => break,
                None => {
                    more = false;
                    let Some(tcp) = self.tcp.get_mut(id) else { break };
                    while let Some((_, piece)) = tcp.read() {
                        receiver.push(piece);
                        more = true;
                        if receiver.pending_bytes() >= CONTENT_BYTES_MAX {
                            break;
                        }
                    }
                }
            }
        }
        if connection.answer_due
            && self.update_keys(id, false).is_ok()
            && let Some(connection) = self.connection(id)
        {
            connection.answer_due = false;
        }
        Ok(())
    }

    /// Processes all pending work: received batches, sends, timers. Returns the number of items.
    pub fn poll(&mut self, now: Time) -> usize {
        let mut done = self.completions() + self.withdrawals();
        for _ in 0..BATCHES_AT_ONCE {
            let Some(batch) = self.driver.receive() else { break };
            done += 1;
            self.held_batches += 1;
            self.batch(now, batch);
        }
        self.give_back();
        if self.tcp.poll_timeout().is_some_and(|due| due <= now) {
            self.tcp.handle_timeout(now);
        }
        done += self.transmit(now);
        self.sweep();
        done
    }

    /// Deadline of the next [`Stack::poll`] if no frame comes before.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.tcp.poll_timeout()
    }

    fn completions(&mut self) -> usize {
        let mut done = 0;
        while let Some((flow, key, sent)) = self.driver.completion() {
            done += 1;
            if sent == Sent::Dropped {
                self.counters.dropped += 1;
                let id = self.flow_owner(flow);
                if let Some(connection) = id.and_then(|id| self.connection(id)) {
                    connection.tx.forget(key);
                }
            }
        }
        done
    }

    fn give_back(&mut self) {
        while let Some(batch) = self.returned.pop() {
            self.held_batches -= 1;
            self.driver.recycle(batch);
        }
    }

    fn flow_owner(&self, flow: FlowId) -> Option<Id> {
        let (found, id) = self.flows.get(flow.index()).copied().flatten()?;
        (found == flow).then_some(id)
    }

    fn batch(&mut self, now: Time, batch: Box<RxBatch>) {
        let held = SharedBatch::new(batch, &self.returned);
        let Some(batch) = held.batch() else { return };
        for (index, segment) in batch.segments.iter().enumerate() {
            match segment.kind {
                RxKind::Segment => self.segment(now, &held, (batch, index), segment),
                RxKind::Damaged => self.counters.damaged += 1,
                RxKind::Other => self.counters.other += 1,
            }
        }
    }

    fn segment(
        &mut self,
        now: Time,
        held: &Rc<SharedBatch>,
        (batch, index): (&RxBatch, usize),
        segment: &RxSegment,
    ) {
        let raw = &batch.raw[segment.tcp_at..segment.headers.end];
        let Some((header, _)) = Header::decode(raw) else { return };
        let mut pieces = std::mem::take(&mut self.pieces);
        if !segment.payload.is_empty() {
            let copies = self.copies(segment);
            RxBytes::append(&mut pieces, held, (batch, index), copies);
        }
        let owner = segment.flow.and_then(|flow| self.flow_owner(flow));
        match owner.filter(|_| !header.has(TcpFlags::SYN)) {
            Some(id) => {
                if let Some(request) = segment.request {
                    self.request(id, request);
                }
                if let Some(request) = segment.pdu_request {
                    self.ask(id, Question::Above(request));
                }
                self.tcp.receive_for(now, id, &header, &mut pieces);
                self.acknowledged(id);
            }
            None => self.first(now, batch, segment, &header, &mut pieces),
        }
        pieces.clear();
        self.pieces = pieces;
    }

    /// Returns true if a segment's payload is copied, so that its batch can be returned.
    fn copies(&mut self, segment: &RxSegment) -> bool {
        let scarce = self.held_batches > self.config.rx_batches / 2;
        let copies = scarce || segment.payload.len() < COPIED_BYTES_MAX;
        self.counters.copied += u64::from(copies);
        copies
    }

    /// Processes a segment of a connection without a flow in the device, or one that may open a
    /// connection.
    fn first(
        &mut self,
        now: Time,
        batch: &RxBatch,
        segment: &RxSegment,
        header: &Header,
        pieces: &mut Vec<RxBytes>,
    ) {
        let frame = &batch.raw[segment.headers.start..segment.payload.end];
        let Some(found) = classify(frame) else { return };
        let Some(id) = self.tcp.receive(now, found.flow, header, pieces) else { return };
        if self.connection(id).is_none() {
            self.open_connection(id);
        }
        self.acknowledged(id);
    }

    /// Processes the device's question about the start of a record.
    fn request(&mut self, id: Id, request: unlade_nic_engine::resync::Request) {
        let Some(connection) = self.connection(id) else { return };
        let flow = connection.flow;
        let Some(receiver) = &mut connection.receiver else {
            return self.ask(id, Question::Next(request));
        };
        receiver.request(request);
        if let (Some(response), Some(flow)) = (receiver.response(), flow) {
            let _ = self.driver.resync_rx_resp(flow, response);
        }
    }

    /// Drops records that have arrived completely, and keys without other records.
    fn acknowledged(&mut self, id: Id) {
        let Some(tcp) = self.tcp.get(id) else { return };
        let acknowledged = tcp.acknowledged();
        let Some(connection) = self.connections[id.index()].as_deref_mut() else { return };
        let Some(oldest) = connection.acknowledge(acknowledged) else { return };
        while let Some(key) = connection.tx.retire(oldest) {
            if let Some(flow) = connection.flow {
                let _ = self.driver.destroy_tx(flow, key);
            }
        }
    }

    fn transmit(&mut self, now: Time) -> usize {
        for done in 0..SEGMENTS_AT_ONCE {
            let Some(mut packet) = self.driver.packet() else { return done };
            let Some(outgoing) = self.tcp.poll_transmit(now, &mut packet.pieces) else {
                self.driver.unused(packet);
                return done;
            };
            let Some(id) = outgoing.id else {
                self.driver.unused(packet);
                self.send_reset(&outgoing.flow, &outgoing.segment.header);
                continue;
            };
            if self.connection(id).is_none() {
                self.open_connection(id);
            }
            self.send_segment(id, &outgoing.segment, packet);
        }
        SEGMENTS_AT_ONCE
    }

    /// Sends the reset that answers a segment without a connection.
    fn send_reset(&mut self, flow: &FlowKey, header: &Header) {
        let &Header { seq, ack, flags, window, .. } = header;
        let (own, peer) = self.config.hardware;
        let reset = Segment {
            flow: *flow,
            direction: Direction::ToClient,
            seq,
            ack,
            flags,
            window,
            options: TcpOptions::default(),
            payload: &[],
        };
        if let Ok(frame) = reset.ethernet_frame(own, peer) {
            self.driver.send_frame(frame);
        }
    }

    /// Builds descriptors for a large segment: one, unless it has bytes under several keys, or
    /// too many frames.
    fn send_segment(&mut self, id: Id, segment: &Transmit, packet: Box<crate::queue::TxPacket>) {
        let mut next = Some(packet);
        let mut rest: Vec<Span> = Vec::new();
        let mut at = 0;
        let total = segment.payload_bytes as usize;
        let mss_bytes = usize::from(segment.mss_bytes).max(1);
        let syn = segment.header.has(TcpFlags::SYN);
        loop {
            let Some(mut packet) = next.take().or_else(|| self.driver.packet()) else {
                // The effect is that of a loss.
                return;
            };
            if at > 0 {
                packet.pieces.append(&mut rest);
            }
            let left = total - at;
            let seq: SeqNumber = segment.header.seq + at as u32 + u32::from(syn);
            let index = id.index();
            let Some(connection) = self.connections[index].as_deref_mut() else { return };
            let most = left.min(mss_bytes.saturating_mul(SUPER_SEGMENT_FRAMES_MAX));
            let mut sent = connection.sender.as_ref().map(|sender| SentRecords {
                sender,
                tcp: &mut self.tcp,
                id,
            });
            let taken = match (&sent, connection.pdus.sender()) {
                (Some(sent), _) if left > 0 => connection.tx.limit(sent, seq, most),
                (None, Some(pdus)) if left > 0 => connection.tx.limit(pdus, seq, most),
                _ => Some(most),
            };
            let (Some(flow), Some(taken)) = (connection.flow, taken) else {
                self.counters.unsealable += 1;
                return self.driver.unused(packet);
            };
            if taken < left {
                split(&mut packet.pieces, taken, &mut rest);
            }
            let last = taken == left;
            packet.flow = flow;
            packet.seq = seq;
            packet.payload_bytes = taken;
            packet.mss_bytes = mss_bytes;
            packet.header = header(segment, at as u32, last, &connection.name);
            let attached = match (&mut sent, connection.pdus.sender_mut()) {
                (Some(sent), _) => connection.tx.attach(sent, &mut self.stats, &mut packet),
                (None, Some(pdus)) => connection.tx.attach(pdus, &mut self.stats, &mut packet),
                (None, None) => true,
            };
            if attached {
                self.driver.send(packet);
            } else {
                self.counters.unsealable += 1;
                self.driver.unused(packet);
            }
            at += taken;
            if last {
                return;
            }
        }
    }

    /// Closes the flows of connections that have ended.
    fn sweep(&mut self) {
        for _ in 0..self.released.len().min(RELEASED_AT_ONCE) {
            let Some(id) = self.released.pop_front() else { return };
            if self.tcp.flow(id).is_some() {
                self.released.push_back(id);
                continue;
            }
            let place = self.connections.get_mut(id.index());
            let gone = place.and_then(|place| place.take_if(|found| found.id == id));
            if let Some(connection) = gone {
                self.forget(&connection);
            }
        }
    }
}

/// The TCP header of the part that starts `at` bytes behind the start of the payload.
fn header(segment: &Transmit, at: u32, last: bool, name: &FlowKey) -> TcpHeader {
    let mut header = segment.header;
    header.seq = header.seq + at;
    if !last {
        header.flags = TcpFlags(header.flags.0 & !(TcpFlags::FIN.0 | TcpFlags::PSH.0));
    }
    let mut raw = [0; unlade_research_tcp::HEADER_BYTES_MAX];
    let bytes = header.emit((name.service.port(), name.client.port()), &mut raw);
    TcpHeader::new(raw, bytes)
}

/// Moves the bytes behind the first `raw` bytes of `pieces` to `rest`.
fn split(pieces: &mut Vec<Span>, raw: usize, rest: &mut Vec<Span>) {
    let mut left = raw;
    for index in 0..pieces.len() {
        if pieces[index].len() > left {
            let behind = pieces[index].split_off(left);
            rest.push(behind);
            rest.extend(pieces.drain(index + 1..));
            pieces.retain(|piece| !piece.is_empty());
            return;
        }
        left -= pieces[index].len();
    }
}

/// Switches the device's receive context to other keys.
fn restart(driver: &mut Driver, flow: FlowId, device: Restart) -> Result<(), ReceiveError> {
    let Restart { start, key, secrets } = device;
    if let Some(protocol) = secrets.protocol()? {
        // Without room the device goes on with the previous key, and software undoes its work.
        let _ = driver.restart_rx(flow, protocol, (start, 0), key);
    }
    Ok(())
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
