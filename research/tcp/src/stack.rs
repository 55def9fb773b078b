//! Connection table: demultiplexing of segments, send scheduling and timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::net::SocketAddr;

use bytes::Bytes;
use thiserror::Error;
use unlade_net::packet::TcpFlags;
use unlade_net::{FlowKey, SeqNumber};

use crate::config::Config;
use crate::connection::{Connection, State};
use crate::id::Id;
use crate::isn::InitialSequence;
pub use crate::listen::ListenError;
use crate::listen::Listener;
use crate::payload::Payload;
use crate::segment::{Header, Transmit};
use crate::time::Time;

/// Maximum number of queued resets for stray segments; further stray segments get no answer.
pub const STRAY_RESETS_MAX: usize = 64;
/// Maximum ratio of queued timers to connections, of which one per connection is valid. Above it,
/// stale timers are removed.
const STALE_TIMERS_MAX: usize = 4;

/// Settings of a stack.
#[derive(Clone, Debug)]
pub struct StackConfig {
    /// Settings of each connection; the timestamp offset is chosen per connection.
    pub connection: Config,
    /// Maximum number of connections, including those that wait for their end.
    pub connections_max: usize,
    /// Maximum number of listening addresses.
    pub listeners_max: usize,
    /// Random bytes that make sequence numbers unpredictable.
    pub secret: [u8; 16],
}

impl StackConfig {
    /// Default limits, with a secret.
    pub fn new(connection: Config, secret: [u8; 16]) -> StackConfig {
        StackConfig { connection, connections_max: 1 << 17, listeners_max: 64, secret }
    }
}

/// Reason why a connection cannot be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConnectError {
    /// There is already a connection between these addresses.
    #[error("the addresses are in use; take another port")]
    InUse,
    /// The maximum number of connections is reached.
    #[error("there are too many connections; close one, or raise the limit")]
    TooMany,
}

/// A segment to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The connection; `None` for a reset that answers a stray segment.
    pub id: Option<Id>,
    /// As seen by the peer: `client` is the peer, `service` this end.
    pub flow: FlowKey,
    /// The segment.
    pub segment: Transmit,
}

/// Statistics of a listening address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepting {
    /// Requests that were refused because the backlog or the stack was full.
    pub refused: u64,
}

struct Slot<R, S> {
    generation: u32,
    held: Option<ConnectionEntry<R, S>>,
}

struct ConnectionEntry<R, S> {
    flow: FlowKey,
    connection: Connection<R, S>,
    /// Index of the listener whose backlog contains it.
    listener: Option<usize>,
    established: bool,
    /// The caller has released it.
    released: bool,
    /// It is in the send queue.
    queued: bool,
    scheduled: Time,
}

/// Connections and listeners. After any other call, call
/// [`poll_transmit`](Stack::poll_transmit) until it returns `None`.
pub struct Stack<R, S = Bytes> {
    config: StackConfig,
    sequence: InitialSequence,
    slots: Vec<Slot<R, S>>,
    free: Vec<u32>,
    flows: HashMap<FlowKey, u32>,
    listeners: Vec<Option<Listener>>,
    queue: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(Time, Id)>>,
    resets: VecDeque<(FlowKey, Header)>,
}

impl<R: Payload, S: Payload + Clone> Stack<R, S> {
    /// Creates an empty stack.
    pub fn new(config: StackConfig) -> Stack<R, S> {
        Stack {
            sequence: InitialSequence::new(config.secret),
            config,
            slots: Vec::new(),
            free: Vec::new(),
            flows: HashMap::new(),
            listeners: Vec::new(),
            queue: VecDeque::new(),
            timers: BinaryHeap::new(),
            resets: VecDeque::new(),
        }
    }

    /// Listens at `address`, whose IP may be unspecified; at most `backlog_max` connections wait
    /// to be accepted.
    ///
    /// # Errors
    /// The address has a listener, or the maximum number of listeners is reached.
    pub fn listen(&mut self, address: SocketAddr, backlog_max: usize) -> Result<(), ListenError> {
        if self.listener(address).is_some() {
            return Err(ListenError::InUse);
        }
        let free = self.listeners.iter().position(Option::is_none);
        let index = free.unwrap_or(self.listeners.len());
        if index >= self.config.listeners_max {
            return Err(ListenError::TooMany);
        }
        if free.is_none() {
            self.listeners.push(None);
        }
        self.listeners[index] = Some(Listener::new(address, backlog_max));
        Ok(())
    }

    fn listener(&self, address: SocketAddr) -> Option<usize> {
        let is = |l: &Option<Listener>| l.as_ref().is_some_and(|l| l.address() == address);
        self.listeners.iter().position(is)
    }

    /// The oldest established connection at the listening `address`.
    pub fn accept(&mut self, address: SocketAddr) -> Option<Id> {
        let index = self.listener(address)?;
        let id = self.listeners[index].as_mut()?.accept()?;
        if let Some(held) = self.held(id) {
            held.listener = None;
        }
        Some(id)
    }

    /// Statistics of a listening address.
    pub fn accepting(&self, address: SocketAddr) -> Option<Accepting> {
        let listener = self.listeners[self.listener(address)?].as_ref()?;
        Some(Accepting { refused: listener.refused })
    }

    /// Opens a connection to `remote`.
    ///
    /// # Errors
    /// The addresses are in use, or the maximum number of connections is reached.
    pub fn connect(
        &mut self,
        now: Time,
        local: SocketAddr,
        remote: SocketAddr,
    ) -> Result<Id, ConnectError> {
        let flow = FlowKey::new(remote, local);
        if self.flows.contains_key(&flow) {
            return Err(ConnectError::InUse);
        }
        let isn = self.sequence.of(&flow, now);
        let connection = Connection::connect(self.config_of(&flow), now, isn);
        let id = self.insert(flow, connection, None).ok_or(ConnectError::TooMany)?;
        self.enqueue(id.index);
        Ok(id)
    }

    fn config_of(&self, flow: &FlowKey) -> Config {
        let timestamp_offset = self.sequence.timestamp_offset(flow);
        Config { timestamp_offset, ..self.config.connection }
    }

    fn insert(
        &mut self,
        flow: FlowKey,
        connection: Connection<R, S>,
        listener: Option<usize>,
    ) -> Option<Id> {
        if self.len() >= self.config.connections_max {
            return None;
        }
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, held: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.held = Some(ConnectionEntry {
            flow,
            connection,
            listener,
            established: false,
            released: false,
            queued: false,
            scheduled: Time::NEVER,
        });
        self.flows.insert(flow, index);
        Some(Id { index, generation: slot.generation })
    }

    /// A connection that the caller has not released.
    pub fn get(&self, id: Id) -> Option<&Connection<R, S>> {
        let slot = self.slots.get(id.index()).filter(|slot| slot.generation == id.generation)?;
        slot.held.as_ref().filter(|held| !held.released).map(|held| &held.connection)
    }

    /// As [`Stack::get`], mutable.
    #[inline]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut Connection<R, S>> {
        self.held(id).filter(|held| !held.released)?;
        self.enqueue(id.index);
        self.held(id).map(|held| &mut held.connection)
    }

    /// Addresses of a connection: `client` is the peer, `service` this end.
    pub fn flow(&self, id: Id) -> Option<FlowKey> {
        let slot = self.slots.get(id.index()).filter(|slot| slot.generation == id.generation)?;
        slot.held.as_ref().map(|held| held.flow)
    }

    /// Unacknowledged bytes of a connection, released or not; see [`Connection::unacknowledged`].
    pub fn unacknowledged(
        &mut self,
        id: Id,
        start: SeqNumber,
        end: SeqNumber,
        out: &mut Vec<S>,
    ) -> u32 {
        self.held(id).map_or(0, |held| held.connection.unacknowledged(start, end, out))
    }

    fn held(&mut self, id: Id) -> Option<&mut ConnectionEntry<R, S>> {
        let slot = self.slots.get_mut(id.index())?;
        if slot.generation != id.generation { None } else { slot.held.as_mut() }
    }

    /// Number of connections, including ended ones that were not released.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if there is no connection.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Releases the connection: it is closed if necessary, and is removed when the peer has
    /// acknowledged all bytes.
    pub fn release(&mut self, id: Id) {
        if let Some(held) = self.held(id) {
            held.released = true;
            held.connection.close();
            self.enqueue(id.index);
        }
    }

    /// Processes a segment with a correct checksum. `flow.client` is its sender. `payload` is as
    /// in [`Connection::receive`]. Returns the segment's connection.
    pub fn receive(
        &mut self,
        now: Time,
        flow: FlowKey,
        header: &Header,
        payload: &mut Vec<R>,
    ) -> Option<Id> {
        let found = self.flows.get(&flow).copied();
        if let Some(index) = found.filter(|&index| !self.is_replaced(index, header)) {
            let id = Id { index, generation: self.slots[index as usize].generation };
            self.receive_for(now, id, header, payload);
            return Some(id);
        }
        if let Some(index) = found {
            self.retire(index);
        }
        let id = self.ask(now, flow, header, payload);
        payload.clear();
        id
    }

    /// As [`Stack::receive`], if the connection is known, for example from the device.
    #[inline]
    pub fn receive_for(&mut self, now: Time, id: Id, header: &Header, payload: &mut Vec<R>) {
        let Some(held) = self.held(id) else { return payload.clear() };
        held.connection.receive(now, header, payload);
        if held.listener.is_some() {
            self.advance(id);
        }
        self.enqueue(id.index);
    }

    /// Returns true if a new connection may replace one that has ended (RFC 9293 §3.10.7.4,
    /// RFC 6191).
    fn is_replaced(&self, index: u32, header: &Header) -> bool {
        let held = self.slots[index as usize].held.as_ref();
        let asks = header.has(TcpFlags::SYN) && !header.has(TcpFlags::ACK);
        held.is_some_and(|held| asks && held.connection.may_be_replaced(header))
    }

    /// Handles a segment without a connection: a request, or a stray segment.
    fn ask(&mut self, now: Time, flow: FlowKey, header: &Header, payload: &[R]) -> Option<Id> {
        let matches = |l: &Option<Listener>| l.as_ref().is_some_and(|l| l.matches(flow.service));
        let listener = self.listeners.iter().position(matches);
        let asks =
            header.has(TcpFlags::SYN) && !header.has(TcpFlags::ACK) && !header.has(TcpFlags::RST);
        let Some(index) = listener.filter(|_| asks) else {
            let bytes = payload.iter().map(Payload::bytes).sum();
            if let Some(reset) = header.reset_answering(bytes)
                && self.resets.len() < STRAY_RESETS_MAX
            {
                self.resets.push_back((flow, reset));
            }
            return None;
        };
        let isn = self.sequence.of(&flow, now);
        let connection = Connection::accept(self.config_of(&flow), now, isn, header)?;
        if !self.listeners[index].as_mut().is_some_and(Listener::ask) {
            return None;
        }
        let Some(id) = self.insert(flow, connection, Some(index)) else {
            if let Some(listener) = self.listeners[index].as_mut() {
                listener.refuse();
            }
            return None;
        };
        self.enqueue(id.index);
        Some(id)
    }

    /// Updates the backlog after a connection was established or has ended.
    fn advance(&mut self, id: Id) {
        let Some(held) = self.held(id) else { return };
        let (state, Some(index)) = (held.connection.state(), held.listener) else { return };
        if state >= State::Established && !held.established {
            held.established = true;
            if let Some(listener) = self.listeners[index].as_mut() {
                listener.establish(id);
            }
        } else if state == State::Closed {
            held.listener = None;
            held.released = true;
            if let Some(listener) = self.listeners[index].as_mut() {
                listener.lose(id);
            }
        }
    }

    #[inline]
    fn enqueue(&mut self, index: u32) {
        if let Some(held) = self.slots[index as usize].held.as_mut()
            && !held.queued
        {
            held.queued = true;
            self.queue.push_back(index);
        }
    }

    /// The next segment to send, of any connection; `gather` is filled with its payload.
    pub fn poll_transmit(&mut self, now: Time, gather: &mut Vec<S>) -> Option<Outgoing> {
        if let Some((flow, header)) = self.resets.pop_front() {
            gather.clear();
            let segment =
                Transmit { header, payload_bytes: 0, mss_bytes: 0, retransmission: false };
            return Some(Outgoing { id: None, flow, segment });
        }
        while let Some(&index) = self.queue.front() {
            let slot = &mut self.slots[index as usize];
            let id = Id { index, generation: slot.generation };
            if let Some(held) = slot.held.as_mut() {
                if let Some(segment) = held.connection.poll_transmit(now, gather) {
                    let flow = held.flow;
                    // Connections take turns, one segment each.
                    self.queue.rotate_left(1);
                    return Some(Outgoing { id: Some(id), flow, segment });
                }
                held.queued = false;
            }
            self.queue.pop_front();
            self.rest(id);
        }
        None
    }

    /// Removes a connection without pending segments from the send queue.
    fn rest(&mut self, id: Id) {
        let Some(held) = self.held(id) else { return };
        if held.listener.is_some() && held.connection.state() == State::Closed {
            self.advance(id);
        }
        let Some(held) = self.held(id) else { return };
        if held.connection.state() == State::Closed {
            let released = held.released;
            self.retire(id.index);
            return if released {
                self.remove(id.index)
            };
        }
        let due = held.connection.poll_timeout().unwrap_or(Time::NEVER);
        if due < held.scheduled {
            held.scheduled = due;
            self.timers.push(Reverse((due, id)));
            self.throw_stale_timers_away();
        }
    }

    /// Frees the addresses of an ended connection. Received bytes can still be read.
    fn retire(&mut self, index: u32) {
        let Some(held) = self.slots[index as usize].held.as_mut() else { return };
        held.connection.finish();
        if self.flows.get(&held.flow) == Some(&index) {
            self.flows.remove(&held.flow);
        }
    }

    fn remove(&mut self, index: u32) {
        self.retire(index);
        let slot = &mut self.slots[index as usize];
        let id = Id { index, generation: slot.generation };
        let Some(held) = slot.held.take() else { return };
        slot.generation = slot.generation.wrapping_add(1);
        if let Some(listener) = held.listener.and_then(|index| self.listeners[index].as_mut()) {
            listener.lose(id);
        }
        if held.queued {
            self.queue.retain(|&other| other != index);
        }
        self.free.push(index);
    }

    fn throw_stale_timers_away(&mut self) {
        if self.timers.len() <= STALE_TIMERS_MAX * (self.len() + 16) {
            return;
        }
        let slots = &self.slots;
        self.timers.retain(|Reverse((due, id))| {
            let slot = &slots[id.index()];
            let held = slot.held.as_ref().filter(|_| slot.generation == id.generation);
            held.is_some_and(|held| held.scheduled == *due)
        });
    }

    /// Time of the next call of [`handle_timeout`](Stack::handle_timeout).
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.peek().map(|Reverse((due, _))| *due)
    }

    /// Handles expired timers. Segments may be due afterwards.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some(&Reverse((due, id))) = self.timers.peek() {
            if due > now {
                return;
            }
            self.timers.pop();
            let Some(held) = self.held(id).filter(|held| held.scheduled == due) else { continue };
            held.scheduled = Time::NEVER;
            held.connection.handle_timeout(now);
            self.enqueue(id.index);
        }
    }
}

#[cfg(test)]
#[path = "stack_tests.rs"]
mod tests;
