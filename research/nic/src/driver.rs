//! The host's side of the queues: the interface of the paper (Listings 1 and 2) and its
//! implementation.
//!
//! | paper | here |
//! |---|---|
//! | `l5o_create` | [`Driver::create_rx`], [`Driver::create_tx`] |
//! | `l5o_destroy` | [`Driver::destroy_rx`], [`Driver::destroy_tx`] |
//! | `l5o_resync_rx_resp` | [`Driver::resync_rx_resp`], [`Driver::resync_pdu_resp`] |
//! | `l5o_add_rr_state`, `l5o_del_rr_state` | [`Driver::register`], [`Driver::withdraw`] |
//! | `l5o_resync_rx_req` | [`RxSegment::request`](crate::queue::RxSegment::request) |
//! | `l5o_get_tx_msgstate` | [`Source`], called by [`TxFlow::attach`] |
//!
//! The two directions have separate contexts here, since a KeyUpdate changes one of them.

use std::collections::VecDeque;

use thiserror::Error;
use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::placement::Registration;
use unlade_nic_engine::resync::Response;
use unlade_nic_engine::tx::{MessageState, Messages, Shadow};
use unlade_nic_engine::{Nvme, Stats};

use crate::buffers::{BUFFERS_MAX, Withdrawn};
use crate::command::{Addressed, Command};
use crate::flow::{FLOWS_MAX, FlowId, Protocol, TX_KEYS_MAX};
use crate::queue::{HostQueue, InnerRecovery, RxBatch, Sent, TxEntry, TxPacket};
use crate::span::Span;
use crate::template::Template;

/// Largest number of commands that wait for room in the send ring.
pub const COMMANDS_WAITING_MAX: usize = 8192;

/// The reason that the driver refuses a call. A limit was reached: the caller goes on without the
/// offload, or retries later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DriverError {
    /// There are [`FLOWS_MAX`] flows.
    #[error("the device has no room for another flow; close one")]
    Flows,
    /// [`COMMANDS_WAITING_MAX`] commands wait.
    #[error("the device is behind with its commands; try again later")]
    Commands,
    /// Packets under [`TX_KEYS_MAX`] keys are not acknowledged.
    #[error("a flow has at most {TX_KEYS_MAX} keys to send with; change keys less often")]
    Keys,
    /// The device has [`BUFFERS_MAX`] buffers.
    #[error("the device has {BUFFERS_MAX} buffers; withdraw some")]
    Buffers,
}

/// The host's end of a device's shard.
pub struct Driver {
    queue: HostQueue,
    /// Commands that did not fit into the send ring. While there are some, packets are not
    /// queued.
    waiting: VecDeque<Box<Addressed>>,
    /// Flow ids that may be reused, the least recently used first.
    free: VecDeque<FlowId>,
    next: u32,
    /// Number of buffers that the device has.
    registered: usize,
}

impl Driver {
    /// Creates a driver for a host's end of queues.
    pub fn new(queue: HostQueue) -> Driver {
        Driver { queue, waiting: VecDeque::new(), free: VecDeque::new(), next: 0, registered: 0 }
    }

    /// Opens a flow; received frames have the name `name`.
    ///
    /// # Errors
    /// [`DriverError::Flows`], [`DriverError::Commands`].
    pub fn open(&mut self, name: FlowKey, template: Template) -> Result<FlowId, DriverError> {
        if self.free.is_empty() && self.next as usize >= FLOWS_MAX {
            return Err(DriverError::Flows);
        }
        let flow = self.free.front().copied().unwrap_or(FlowId::new(self.next, 0));
        self.command(flow, Command::Open { name, template })?;
        if self.free.pop_front().is_none() {
            self.next += 1;
        }
        Ok(flow)
    }

    /// Closes the flow. Frames that came for it before the device has executed this still have
    /// its id.
    ///
    /// # Errors
    /// [`DriverError::Commands`]; the flow is still open.
    pub fn close(&mut self, flow: FlowId) -> Result<(), DriverError> {
        self.command(flow, Command::Close)?;
        self.free.push_back(flow.successor());
        Ok(())
    }

    /// Starts processing of received packets from `start` on, where message `number` starts.
    ///
    /// # Errors
    /// [`DriverError::Commands`].
    pub fn create_rx(
        &mut self,
        flow: FlowId,
        protocol: Protocol,
        start: SeqNumber,
        number: u64,
    ) -> Result<(), DriverError> {
        self.command(flow, Command::CreateRx { protocol, start, number })
    }

    /// Switches their processing to another key from `start` on.
    ///
    /// # Errors
    /// [`DriverError::Commands`].
    pub fn restart_rx(
        &mut self,
        flow: FlowId,
        protocol: Protocol,
        (start, number): (SeqNumber, u64),
        key: u16,
    ) -> Result<(), DriverError> {
        self.command(flow, Command::RestartRx { protocol, start, number, key })
    }

    /// Ends their processing: packets are delivered as they come.
    ///
    /// # Errors
    /// [`DriverError::Commands`].
    pub fn destroy_rx(&mut self, flow: FlowId) -> Result<(), DriverError> {
        self.command(flow, Command::DestroyRx)
    }

    /// Starts sealing under `key` from `start` on, where message `number` starts.
    ///
    /// # Errors
    /// [`DriverError::Commands`].
    pub fn create_tx(
        &mut self,
        flow: FlowId,
        protocol: Protocol,
        (start, number): (SeqNumber, u64),
        key: u16,
    ) -> Result<(), DriverError> {
        self.command(flow, Command::CreateTx { protocol, start, number, key })
    }

    /// Ends sending under `key`.
    ///
    /// # Errors
    /// [`DriverError::Commands`].
    pub fn destroy_tx(&mut self, flow: FlowId, key: u16) -> Result<(), DriverError> {
        self.command(flow, Command::DestroyTx { key })
    }

    /// Applies digests and limits from the next PDUs on, in both directions.
    ///
    /// # Errors
    /// [`DriverError::Commands`].
    pub fn agree_pdus(&mut self, flow: FlowId, nvme: Nvme) -> Result<(), DriverError> {
        self.command(flow, Command::AgreePdus(nvme))
    }

    /// Answers the device's question.
    ///
    /// # Errors
    /// [`DriverError::Commands`]; the device will ask again.
    pub fn resync_rx_resp(&mut self, flow: FlowId, response: Response) -> Result<(), DriverError> {
        self.command(flow, Command::Respond(response))
    }

    /// Answers a question of the machine above TLS.
    ///
    /// # Errors
    /// [`DriverError::Commands`]; the device will ask again.
    pub fn resync_pdu_resp(&mut self, flow: FlowId, response: Response) -> Result<(), DriverError> {
        self.command(flow, Command::RespondPdu(response))
    }

    /// Registers `buffer` for data of the registration's tag. The device has the buffer until
    /// [`Driver::withdrawn`] returns it: after [`Driver::withdraw`], when the flow is closed, or
    /// at once if the device cannot use it.
    ///
    /// # Errors
    /// [`DriverError::Buffers`], [`DriverError::Commands`]; with the buffer.
    pub fn register(
        &mut self,
        flow: FlowId,
        registration: Registration,
        buffer: Box<[u8]>,
    ) -> Result<(), (DriverError, Box<[u8]>)> {
        self.flush();
        if self.registered >= BUFFERS_MAX {
            return Err((DriverError::Buffers, buffer));
        }
        if self.waiting.len() >= COMMANDS_WAITING_MAX {
            return Err((DriverError::Commands, buffer));
        }
        self.registered += 1;
        // There is room.
        let _ = self.command(flow, Command::Register { registration, buffer });
        Ok(())
    }

    /// Requests the return of the registration's buffer.
    ///
    /// # Errors
    /// [`DriverError::Commands`].
    pub fn withdraw(
        &mut self,
        flow: FlowId,
        registration: Registration,
    ) -> Result<(), DriverError> {
        self.command(flow, Command::Withdraw(registration))
    }

    /// Takes a buffer that the device has returned, with all data that was placed in it.
    pub fn withdrawn(&mut self) -> Option<Withdrawn> {
        let withdrawn = self.queue.withdrawn.pop().ok()?;
        self.registered -= 1;
        Some(withdrawn)
    }

    fn command(&mut self, flow: FlowId, command: Command) -> Result<(), DriverError> {
        self.flush();
        let command = Box::new(Addressed { flow, command });
        if self.waiting.is_empty() {
            match self.queue.tx.push(TxEntry::Command(command)) {
                Ok(()) => {}
                Err(rtrb::PushError::Full(TxEntry::Command(command))) => {
                    self.waiting.push_back(command);
                }
                Err(_) => {}
            }
            return Ok(());
        }
        if self.waiting.len() >= COMMANDS_WAITING_MAX {
            return Err(DriverError::Commands);
        }
        self.waiting.push_back(command);
        Ok(())
    }

    /// Sends the waiting commands first.
    fn flush(&mut self) {
        while let Some(command) = self.waiting.pop_front() {
            let pushed = self.queue.tx.push(TxEntry::Command(command));
            if let Err(rtrb::PushError::Full(TxEntry::Command(command))) = pushed {
                self.waiting.push_front(command);
                return;
            }
        }
    }

    /// Takes an empty descriptor to fill and send, or to return with [`Driver::unused`]; `None`
    /// if the device has no room for one now.
    pub fn packet(&mut self) -> Option<Box<TxPacket>> {
        self.flush();
        match self.waiting.is_empty() && !self.queue.tx.is_full() {
            true => self.queue.spare.pop(),
            false => None,
        }
    }

    /// Returns a descriptor that is not sent.
    pub fn unused(&mut self, mut packet: Box<TxPacket>) {
        packet.clear();
        self.queue.spare.push(packet);
    }

    /// Sends a descriptor from [`Driver::packet`], which must be before any later command. If a
    /// command has taken its place in the ring, it is dropped, as if it had been lost.
    pub fn send(&mut self, packet: Box<TxPacket>) {
        let pushed = self.queue.tx.push(TxEntry::Packet(packet));
        if let Err(rtrb::PushError::Full(TxEntry::Packet(packet))) = pushed {
            self.unused(packet);
        }
    }

    /// Sends a frame without a flow; it is lost if there is no room.
    pub fn send_frame(&mut self, frame: Vec<u8>) {
        if self.waiting.is_empty() {
            let _ = self.queue.tx.push(TxEntry::Frame(frame));
        }
    }

    /// Takes a completed descriptor: its flow, key and result. Its references are released.
    pub fn completion(&mut self) -> Option<(FlowId, u16, Sent)> {
        let packet = self.queue.completions.pop().ok()?;
        let completion = (packet.flow, packet.key, packet.sent);
        self.unused(packet);
        Some(completion)
    }

    /// Takes a batch of received frames; [`Driver::recycle`] returns it.
    pub fn receive(&mut self) -> Option<Box<RxBatch>> {
        self.queue.rx.pop().ok()
    }

    /// Returns a batch to the device.
    pub fn recycle(&mut self, mut batch: Box<RxBatch>) {
        batch.segments.clear();
        batch.used_bytes = 0;
        // There is room for every batch that exists.
        let _ = self.queue.free.push(batch);
    }
}

/// Sent messages, as the driver looks them up: the message that contains a byte
/// ([`Messages::find`]), and its bytes.
pub trait Source: Messages {
    /// The key that seals the byte `seq`, and how many of the `raw` bytes from there on it seals; see
    /// [`under_one_key`](unlade_nic_engine::software::runs::Runs::under_one_key).
    fn under_one_key(&self, seq: SeqNumber, raw: usize) -> Option<(u16, usize)>;

    /// Appends references to the bytes from `start` up to `until`, of one message, to `out`.
    fn gather(&mut self, start: SeqNumber, until: SeqNumber, out: &mut Vec<Span>);

    /// Writes to `out` the inner state of the record that starts at `start`, if records contain
    /// PDUs that the device processes too. Returns false if it is unknown: the packet must not be
    /// sent.
    fn inner(&self, start: SeqNumber, out: &mut InnerRecovery) -> bool {
        let _ = (start, out);
        true
    }
}

/// The driver's view of a flow's send contexts: one [`Shadow`] for each key.
#[derive(Debug, Default)]
pub struct TxFlow {
    shadows: Vec<(u16, Shadow)>,
}

impl TxFlow {
    /// Adds a context for `key`, in a stream whose next byte is `start`.
    ///
    /// # Errors
    /// [`DriverError::Keys`].
    pub fn add(&mut self, key: u16, start: SeqNumber) -> Result<(), DriverError> {
        if self.shadows.len() >= TX_KEYS_MAX {
            return Err(DriverError::Keys);
        }
        self.shadows.push((key, Shadow::new(start)));
        Ok(())
    }

    /// Removes one key before `oldest`, and returns it; the caller destroys its context in the
    /// device.
    pub fn retire(&mut self, oldest: u16) -> Option<u16> {
        let index = self.shadows.iter().position(|(key, _)| *key != oldest)?;
        // Keys are in order, the newest last.
        let before = self.shadows.iter().position(|(key, _)| *key == oldest)?;
        (index < before).then(|| self.shadows.remove(index).0)
    }

    /// Returns true if no further key can be added.
    pub fn is_full(&self) -> bool {
        self.shadows.len() >= TX_KEYS_MAX
    }

    /// Returns true if there is a context.
    pub fn seals(&self) -> bool {
        !self.shadows.is_empty()
    }

    /// Notes that the device has dropped a descriptor of `key`.
    pub fn forget(&mut self, key: u16) {
        if let Some((_, shadow)) = self.shadows.iter_mut().find(|(other, _)| *other == key) {
            shadow.forget();
        }
    }

    /// The number of bytes from `seq` on that one descriptor may contain, so that one key seals
    /// them all; `None` if they must not be sent.
    pub fn limit(&self, source: &impl Source, seq: SeqNumber, raw: usize) -> Option<usize> {
        match self.shadows.len() {
            0 | 1 => Some(raw),
            _ => source.under_one_key(seq, raw).map(|(_, raw)| raw),
        }
    }

    /// Adds the sealing state to `packet`, which is otherwise complete. Returns false if it must
    /// not be sent.
    pub fn attach(
        &mut self,
        source: &mut impl Source,
        stats: &mut Stats,
        packet: &mut TxPacket,
    ) -> bool {
        let (seq, raw) = (packet.seq, packet.payload_bytes);
        if raw == 0 {
            return true;
        }
        let key = match self.shadows.as_slice() {
            [] => return true,
            [(key, _)] => *key,
            _ => match source.under_one_key(seq, raw) {
                Some((key, whole)) if whole == raw => key,
                _ => return false,
            },
        };
        let shadow = self.shadows.iter_mut().find(|(other, _)| *other == key);
        let Some((_, shadow)) = shadow else { return false };
        let Some(prepared) = shadow.prepare(source, stats, seq, raw) else { return false };
        packet.key = key;
        packet.clear_bytes = prepared.clear_bytes;
        if let Some(MessageState { start, number, .. }) = prepared.recovery {
            let first = seq + prepared.clear_bytes as u32;
            packet.recovery.wanted = true;
            (packet.recovery.start, packet.recovery.number) = (start, number);
            source.gather(start, first, &mut packet.recovery.pieces);
            if !source.inner(start, &mut packet.recovery.inner) {
                shadow.forget();
                return false;
            }
        }
        true
    }
}
