//! One queue of a controller: commands out, completions and data in. Sans-IO: no socket, no
//! clock.
//!
//! ```text
//!  submit ─► slot (its number and generation are the CID) ─► outgoing ─► the connection
//!  the connection ─► receive ─► Pdus ─► data into the slot's buffer, R2T into outgoing
//!                                       completion ─► completed
//! ```
//! The controller is not trusted. A read completes when all of its bytes have come, each once,
//! and every digest was correct; a write when all data was requested and sent. A PDU that
//! contradicts this, or names a command that is not in flight, ends the connection. A wrong data
//! digest fails only its command.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use unlade_aead::crc32c;
use unlade_net::SeqNumber;
use unlade_nic_engine::nvme::Nvme;
use unlade_nic_engine::software::pdus::{self, Event, Input, Pdus};
use unlade_nvme_wire::pdu::{COMPLETION_BYTES, Data, FatalStatus, ReadyToTransfer, Terminate};
use unlade_nvme_wire::{
    Command, CommonHeader, Completion, DataPlace, Digests, Pdu, PduKind, Status,
};

use super::ranges::{RangeError, Ranges};

/// Largest number of commands in flight in one queue.
pub const DEPTH_MAX: u16 = 1 << SLOT_BITS;
/// Largest number of data bytes of one command.
pub const DATA_BYTES_MAX: u32 = 8 << 20;
/// A command identifier is the slot's number, with the slot's generation above it.
const SLOT_BITS: u32 = 10;
/// Data of at most this length is copied behind its header into one buffer.
const COPY_BYTES_MAX: usize = 4096;

/// The agreed parameters of a queue.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Largest number of commands in flight, up to [`DEPTH_MAX`]; one less than the queue's
    /// entries.
    pub depth: u16,
    /// The digests in use.
    pub digests: Digests,
    /// CPDA: alignment of the data that the initiator sends, in bytes.
    pub alignment_bytes: usize,
    /// MAXH2CDATA: largest number of data bytes in one PDU of the initiator.
    pub data_bytes_max: u32,
    /// Largest number of data bytes in a command's capsule.
    pub in_capsule_bytes: u32,
    /// MAXR2T of the initiator: number of outstanding R2Ts of one command.
    pub transfers_max: u32,
}

/// Data of a command.
#[derive(Clone, Debug)]
pub enum Payload {
    /// None.
    None,
    /// Data to the controller.
    Out(Bytes),
    /// Data from the controller; it fills this buffer.
    In(Vec<u8>),
}

/// A command to send; the queue fills in the identifier and the data pointer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Opcode, namespace and dwords.
    pub command: Command,
    /// Its data.
    pub payload: Payload,
    /// Timeout; none if absent.
    pub timeout: Option<Duration>,
}

/// The result of a successful command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Dwords 0 and 1 of the completion.
    pub result: u64,
    /// The filled buffer of a read; otherwise empty.
    pub data: Vec<u8>,
}

/// The error of a command whose connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Failure {
    /// The controller returned an error status.
    #[error("{0}")]
    Status(Status),
    /// A data digest was wrong.
    #[error("a data digest is wrong: data was changed on the way")]
    DataDigest,
}

/// A completed command. `T` is the tag of its submission.
#[derive(Debug)]
pub struct Completed<T> {
    /// The tag of its submission.
    pub tag: T,
    /// Its result.
    pub outcome: Result<Answer, Failure>,
}

/// An error that ends a connection. The cause is the controller, or damage on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// The received bytes are not a valid PDU.
    #[error("the controller sent bytes that are not a valid PDU")]
    Malformed,
    /// A header digest is wrong.
    #[error("the digest of a PDU's header is wrong")]
    HeaderDigest,
    /// The controller sent a PDU that is not valid in this state.
    #[error("the controller sent an unexpected PDU: {0:?}")]
    Unexpected(PduKind),
    /// The command is not in flight.
    #[error("the controller answers command {0:#06x}, which is not in flight")]
    UnknownCommand(u16),
    /// Data outside the command's range, or a second time.
    #[error("the controller transfers data of command {0:#06x} that was not requested, or twice")]
    OutOfRange(u16),
    /// More outstanding R2Ts, or more parts, than allowed.
    #[error("the controller transfers data of command {0:#06x} in too many parts")]
    LimitExceeded(u16),
    /// A success status while data is missing.
    #[error("the controller reports success of command {0:#06x}, but its data is incomplete")]
    Incomplete(u16),
    /// A command timed out.
    #[error("command {0:#06x} was not answered in time")]
    Timeout(u16),
    /// The controller ended the connection.
    #[error("the controller ended the connection: {} (information {information:#x})",
        fatal_name(*.status))]
    Terminated {
        /// FES.
        status: u16,
        /// FEI.
        information: u32,
    },
}

fn fatal_name(status: u16) -> String {
    match FatalStatus::from_number(status) {
        Some(known) => format!("{known:?}"),
        None => format!("status {status:#x}"),
    }
}

impl QueueError {
    /// The status for a termination request, if one is due.
    fn fatal(&self) -> Option<FatalStatus> {
        Some(match self {
            QueueError::Malformed => FatalStatus::InvalidHeader,
            QueueError::HeaderDigest => FatalStatus::HeaderDigest,
            QueueError::Unexpected(_)
            | QueueError::UnknownCommand(_)
            | QueueError::Incomplete(_) => FatalStatus::Sequence,
            QueueError::OutOfRange(_) => FatalStatus::DataOutOfRange,
            QueueError::LimitExceeded(_) => FatalStatus::LimitExceeded,
            QueueError::Timeout(_) | QueueError::Terminated { .. } => return None,
        })
    }
}

impl From<pdus::PduError> for QueueError {
    fn from(error: pdus::PduError) -> QueueError {
        match error {
            pdus::PduError::Malformed => QueueError::Malformed,
            pdus::PduError::HeaderDigest => QueueError::HeaderDigest,
        }
    }
}

/// The reason that a command was not accepted; the command is returned.
#[derive(Debug)]
pub enum Refused<T> {
    /// The queue is full.
    Full(Request, T),
    /// Its data is longer than [`DATA_BYTES_MAX`].
    TooLarge(Request, T),
    /// The connection is over.
    Over(Request, T),
}

/// Counts of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Commands sent.
    pub commands: u64,
    /// Data bytes received into buffers.
    pub received_bytes: u64,
    /// Data bytes sent.
    pub sent_bytes: u64,
    /// Data digests that were wrong.
    pub data_digest_errors: u64,
}

/// A command in flight.
struct InFlight<T> {
    /// `None` once the completion was delivered.
    tag: Option<T>,
    payload: Payload,
    /// Bytes that were received, or that the controller requested.
    moved: Ranges,
    /// True if a data digest was wrong.
    corrupt: bool,
    deadline: Option<Duration>,
    /// Number of R2Ts whose data has not been sent.
    transfers: u32,
    /// Number of chunks of its data that wait in `outgoing`.
    pieces: u32,
}

struct CommandSlot<T> {
    generation: u16,
    in_flight: Option<InFlight<T>>,
}

/// Bytes to be sent.
struct OutgoingChunk {
    bytes: Bytes,
    /// The slot of the data.
    slot: Option<u16>,
    /// True if it is the last chunk of a transfer.
    ends_transfer: bool,
}

/// The PDU with data that is being received.
#[derive(Clone, Copy)]
struct CurrentPdu {
    slot: u16,
    data: Data,
}

/// One queue.
pub struct Queue<T> {
    pdus: Pdus,
    core: Core<T>,
    failed: Option<QueueError>,
}

struct Core<T> {
    settings: Settings,
    slots: Vec<CommandSlot<T>>,
    /// Free slots, the least recently used first.
    free: VecDeque<u16>,
    outgoing: VecDeque<OutgoingChunk>,
    /// Number of bytes of the first chunk that were sent.
    sent: usize,
    current: Option<CurrentPdu>,
    completed: VecDeque<Completed<T>>,
    stats: QueueStats,
}

impl<T> core::fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Queue")
            .field("settings", &self.core.settings)
            .field("in_flight", &self.in_flight())
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

impl<T> Queue<T> {
    /// Creates a queue on an initialised connection. The next byte to receive is the first of a
    /// PDU, and has the TCP sequence number `start` if a device uses it.
    pub fn new(settings: Settings, start: SeqNumber) -> Queue<T> {
        let depth = settings.depth.clamp(1, DEPTH_MAX);
        let nvme = Nvme {
            header_digest: settings.digests.header,
            data_digest: settings.digests.data,
            data_bytes_max: DATA_BYTES_MAX,
        };
        let slots = (0..depth).map(|_| CommandSlot { generation: 0, in_flight: None }).collect();
        Queue {
            pdus: Pdus::new(nvme, start),
            core: Core {
                settings: Settings { depth, ..settings },
                slots,
                free: (0..depth).collect(),
                outgoing: VecDeque::new(),
                sent: 0,
                current: None,
                completed: VecDeque::new(),
                stats: QueueStats::default(),
            },
            failed: None,
        }
    }

    /// Number of further commands that can be submitted.
    pub fn free(&self) -> usize {
        if self.failed.is_some() { 0 } else { self.core.free.len() }
    }

    /// Number of commands that are not answered, or whose slots are still in use.
    pub fn in_flight(&self) -> usize {
        self.core.slots.len() - self.core.free.len()
    }

    /// The counters so far.
    pub fn stats(&self) -> QueueStats {
        self.core.stats
    }

    /// Submits a command; `tag` is returned with its completion.
    ///
    /// # Errors
    /// [`Refused`], with request and tag.
    pub fn submit(&mut self, request: Request, tag: T, now: Duration) -> Result<(), Refused<T>> {
        if self.failed.is_some() {
            return Err(Refused::Over(request, tag));
        }
        let bytes = match &request.payload {
            Payload::None => 0,
            Payload::Out(content) => content.len(),
            Payload::In(buffer) => buffer.len(),
        };
        if bytes > DATA_BYTES_MAX as usize {
            return Err(Refused::TooLarge(request, tag));
        }
        let Some(slot) = self.core.free.pop_front() else {
            return Err(Refused::Full(request, tag));
        };
        self.core.send_command(slot, request, tag, now);
        Ok(())
    }

    /// The bytes to send, in order, as slices.
    pub fn outgoing(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.core.sent;
        self.core.outgoing.iter().map(move |piece| &piece.bytes[core::mem::take(&mut skip)..])
    }

    /// Returns true if there are bytes to send.
    pub fn wants_to_send(&self) -> bool {
        !self.core.outgoing.is_empty()
    }

    /// Notes that `bytes` bytes of [`Queue::outgoing`] were sent.
    pub fn sent(&mut self, bytes: usize) {
        self.core.advance(bytes);
    }

    /// Processes received bytes. Completions are then available from [`Queue::completed`].
    ///
    /// # Errors
    /// The connection is over; [`Queue::terminate`] notifies the controller.
    pub fn receive(&mut self, input: &mut Input<'_>) -> Result<(), QueueError> {
        match self.failed {
            Some(error) => Err(error),
            None => {
                let received = self.events(input);
                self.failed = received.err();
                received
            }
        }
    }

    fn events(&mut self, input: &mut Input<'_>) -> Result<(), QueueError> {
        while let Some(event) = self.pdus.next(input)? {
            match event {
                Event::Header { header, .. } => self.core.header(header)?,
                Event::Data { offset, bytes, .. } => self.core.data(offset, bytes),
                Event::Recheck { data_bytes } => {
                    let placed = self.core.placed(data_bytes);
                    self.pdus.recheck(placed);
                }
                Event::End => self.core.end(false)?,
                Event::Corrupt => self.core.end(true)?,
            }
        }
        Ok(())
    }

    /// Takes the next completed command.
    pub fn completed(&mut self) -> Option<Completed<T>> {
        self.core.completed.pop_front()
    }

    /// Ends the connection if a command has timed out.
    ///
    /// # Errors
    /// [`QueueError::Timeout`].
    pub fn check_timeouts(&mut self, now: Duration) -> Result<(), QueueError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        for (number, slot) in self.core.slots.iter().enumerate() {
            let Some(command) = &slot.in_flight else { continue };
            let late = command.deadline.is_some_and(|deadline| deadline <= now);
            if late && command.tag.is_some() {
                let error = QueueError::Timeout(id_of(number as u16, slot.generation));
                self.failed = Some(error);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Replaces all pending output by a termination request, if the queue has failed in a way
    /// that the controller is to be notified of.
    pub fn terminate(&mut self) {
        let Some(fatal) = self.failed.and_then(|error| error.fatal()) else { return };
        // A partly sent chunk would have to be completed before a PDU can start; that is not
        // worth a wait.
        if self.core.sent > 0 {
            return;
        }
        self.core.outgoing.clear();
        let pdu = Pdu::HostTerminate(Terminate { status: fatal as u16, information: 0 });
        let bytes = Bytes::from(pdu.without_data(Digests::NONE));
        self.core.outgoing.push_back(OutgoingChunk { bytes, slot: None, ends_transfer: false });
    }

    /// Abandons every command in flight: the connection is over.
    pub fn abandon(&mut self) -> Vec<T> {
        self.failed.get_or_insert(QueueError::Malformed);
        let slots = self.core.slots.iter_mut();
        slots.filter_map(|slot| slot.in_flight.take()?.tag).collect()
    }
}

fn id_of(slot: u16, generation: u16) -> u16 {
    generation << SLOT_BITS | slot
}

impl<T> Core<T> {
    fn send_command(&mut self, number: u16, request: Request, tag: T, now: Duration) {
        let slot = &mut self.slots[usize::from(number)];
        slot.generation = (slot.generation + 1) % (1 << (u16::BITS - SLOT_BITS));
        let id = id_of(number, slot.generation);
        let mut moved = Ranges::default();
        let mut in_capsule = Bytes::new();
        let place = match &request.payload {
            Payload::None => DataPlace::Transport { bytes: 0 },
            Payload::In(buffer) => DataPlace::Transport { bytes: buffer.len() as u32 },
            Payload::Out(content) if content.len() <= self.settings.in_capsule_bytes as usize => {
                in_capsule = content.clone();
                let bytes = content.len() as u32;
                // All of the data is in the capsule: no R2T may request it.
                let _ = moved.add(0, bytes, bytes);
                match bytes {
                    0 => DataPlace::Transport { bytes },
                    _ => DataPlace::InCapsule { offset: 0, bytes },
                }
            }
            Payload::Out(content) => DataPlace::Transport { bytes: content.len() as u32 },
        };
        slot.in_flight = Some(InFlight {
            tag: Some(tag),
            payload: request.payload,
            moved,
            corrupt: false,
            deadline: request.timeout.map(|timeout| now + timeout),
            transfers: 0,
            pieces: 0,
        });
        let mut entry = *request.command.with_data(place).as_bytes();
        entry[2..4].copy_from_slice(&id.to_le_bytes());
        self.stats.commands += 1;
        self.send(&Pdu::CommandCapsule(entry), in_capsule, number, false);
    }

    /// Appends a PDU with its digests to `outgoing`. Its data belongs to slot `number`.
    fn send(&mut self, pdu: &Pdu, data: Bytes, number: u16, ends_transfer: bool) {
        let Settings { digests, alignment_bytes, .. } = self.settings;
        let common = pdu.common(data.len(), digests, alignment_bytes);
        let layout = common.layout();
        let copied = data.len() <= COPY_BYTES_MAX;
        let room = if copied { layout.bytes } else { layout.head_bytes() };
        let mut head = Vec::with_capacity(room);
        pdu.write(&common, &mut head);
        if layout.has_header_digest {
            let digest = crc32c::update(0, &head);
            head.extend_from_slice(&digest.to_le_bytes());
        }
        head.resize(layout.head_bytes(), 0);
        let digest = layout.has_data_digest.then(|| crc32c::update(0, &data).to_le_bytes());
        self.stats.sent_bytes += data.len() as u64;
        if copied {
            head.extend_from_slice(&data);
            head.extend_from_slice(digest.as_ref().map_or(&[], |digest| &digest[..]));
            self.push(head.into(), number, ends_transfer);
            return;
        }
        self.push(head.into(), number, false);
        match digest {
            None => self.push(data, number, ends_transfer),
            Some(digest) => {
                self.push(data, number, false);
                self.push(Bytes::copy_from_slice(&digest), number, ends_transfer);
            }
        }
    }

    fn push(&mut self, bytes: Bytes, number: u16, ends_transfer: bool) {
        if let Some(command) = &mut self.slots[usize::from(number)].in_flight {
            command.pieces += 1;
        }
        self.outgoing.push_back(OutgoingChunk { bytes, slot: Some(number), ends_transfer });
    }

    fn advance(&mut self, bytes: usize) {
        self.sent += bytes;
        while let Some(first) = self.outgoing.front() {
            if self.sent < first.bytes.len() {
                return;
            }
            self.sent -= first.bytes.len();
            let Some(OutgoingChunk { slot, ends_transfer, .. }) = self.outgoing.pop_front() else {
                return;
            };
            if let Some(number) = slot {
                self.piece_sent(number, ends_transfer);
            }
        }
    }

    fn piece_sent(&mut self, number: u16, ends_transfer: bool) {
        let slot = &mut self.slots[usize::from(number)];
        let Some(command) = &mut slot.in_flight else { return };
        command.pieces -= 1;
        command.transfers -= u32::from(ends_transfer);
        if command.pieces == 0 && command.tag.is_none() {
            slot.in_flight = None;
            self.free.push_back(number);
        }
    }

    /// The slot of an unanswered command in flight.
    fn find(&mut self, id: u16) -> Result<(u16, &mut InFlight<T>), QueueError> {
        let number = id & (DEPTH_MAX - 1);
        let unknown = QueueError::UnknownCommand(id);
        let slot = self.slots.get_mut(usize::from(number)).ok_or(unknown)?;
        let command = slot.in_flight.as_mut().filter(|command| command.tag.is_some());
        match command {
            Some(command) if id_of(number, slot.generation) == id => Ok((number, command)),
            _ => Err(unknown),
        }
    }

    fn header(&mut self, header: &[u8]) -> Result<(), QueueError> {
        let common = CommonHeader::parse(header).map_err(|_| QueueError::Malformed)?;
        match Pdu::parse(&common, header).map_err(|_| QueueError::Malformed)? {
            Pdu::ResponseCapsule(entry) => self.completion(&entry),
            Pdu::ControllerData(data) => self.data_header(data),
            Pdu::ReadyToTransfer(transfer) => self.ready(&transfer),
            Pdu::ControllerTerminate(Terminate { status, information }) => {
                Err(QueueError::Terminated { status, information })
            }
            other => Err(QueueError::Unexpected(other.kind())),
        }
    }

    fn data_header(&mut self, data: Data) -> Result<(), QueueError> {
        let id = data.command_id;
        let (slot, command) = self.find(id)?;
        let Payload::In(buffer) = &command.payload else { return Err(QueueError::OutOfRange(id)) };
        if data.is_success && !data.is_last {
            return Err(QueueError::Malformed);
        }
        let added = command.moved.add(data.offset, data.bytes, buffer.len() as u32);
        added.map_err(|error| range_error(error, id))?;
        self.current = Some(CurrentPdu { slot, data });
        Ok(())
    }

    /// The buffer for the PDU's data, from the position of the PDU on.
    fn target(&mut self) -> Option<&mut [u8]> {
        let CurrentPdu { slot, data } = self.current?;
        let command = self.slots[usize::from(slot)].in_flight.as_mut()?;
        let Payload::In(buffer) = &mut command.payload else { return None };
        buffer.get_mut(data.offset as usize..)?.get_mut(..data.bytes as usize)
    }

    fn data(&mut self, offset: u32, bytes: &[u8]) {
        let Some(target) = self.target() else { return };
        let Some(place) = target.get_mut(offset as usize..) else { return };
        let count = place.len().min(bytes.len());
        place[..count].copy_from_slice(&bytes[..count]);
        self.stats.received_bytes += count as u64;
    }

    /// Data that is in its place, for a digest that the device did not check.
    fn placed(&mut self, bytes: u32) -> &[u8] {
        self.target().and_then(|target| target.get(..bytes as usize)).unwrap_or_default()
    }

    /// Processes the end of a PDU.
    fn end(&mut self, corrupt: bool) -> Result<(), QueueError> {
        let Some(CurrentPdu { slot, data }) = self.current.take() else { return Ok(()) };
        if corrupt {
            self.stats.data_digest_errors += 1;
            if let Some(command) = &mut self.slots[usize::from(slot)].in_flight {
                command.corrupt = true;
            }
        }
        if !data.is_success {
            return Ok(());
        }
        self.complete(&Completion::new(data.command_id, Status::SUCCESS))
    }

    fn ready(&mut self, ready: &ReadyToTransfer) -> Result<(), QueueError> {
        let id = ready.command_id;
        let (transfers_max, pdu_max) = (self.settings.transfers_max, self.settings.data_bytes_max);
        let (number, command) = self.find(id)?;
        let Payload::Out(content) = &command.payload else {
            return Err(QueueError::OutOfRange(id));
        };
        let limit = content.len() as u32;
        if ready.bytes == 0 {
            return Err(QueueError::OutOfRange(id));
        }
        let added = command.moved.add(ready.offset, ready.bytes, limit);
        added.map_err(|error| range_error(error, id))?;
        if command.transfers == transfers_max.max(1) {
            return Err(QueueError::LimitExceeded(id));
        }
        command.transfers += 1;
        let start = ready.offset as usize;
        let content = content.slice(start..start + ready.bytes as usize);
        let mut offset = 0;
        while offset < ready.bytes {
            let bytes = pdu_max.max(1).min(ready.bytes - offset);
            let is_last = offset + bytes == ready.bytes;
            let part = content.slice(offset as usize..(offset + bytes) as usize);
            let data = Data {
                command_id: id,
                transfer_tag: ready.transfer_tag,
                offset: ready.offset + offset,
                bytes,
                is_last,
                is_success: false,
            };
            self.send(&Pdu::HostData(data), part, number, is_last);
            offset += bytes;
        }
        Ok(())
    }

    fn completion(&mut self, entry: &[u8; COMPLETION_BYTES]) -> Result<(), QueueError> {
        self.complete(&Completion::parse(entry))
    }

    fn complete(&mut self, completion: &Completion) -> Result<(), QueueError> {
        let id = completion.command_id;
        let (number, command) = self.find(id)?;
        let outcome = match completion.status.is_success() {
            false => Err(Failure::Status(completion.status)),
            true => {
                let expected = match &command.payload {
                    Payload::None => 0,
                    Payload::Out(bytes) => bytes.len(),
                    Payload::In(buffer) => buffer.len(),
                };
                // A write whose data was not sent or requested cannot have succeeded.
                let is_whole = command.moved.total_bytes() as usize == expected;
                if !is_whole || command.pieces > 0 {
                    return Err(QueueError::Incomplete(id));
                }
                match command.corrupt {
                    true => Err(Failure::DataDigest),
                    false => {
                        let data = match core::mem::replace(&mut command.payload, Payload::None) {
                            Payload::In(buffer) => buffer,
                            _ => Vec::new(),
                        };
                        Ok(Answer { result: completion.result, data })
                    }
                }
            }
        };
        let tag = command.tag.take();
        let is_free = command.pieces == 0;
        // The controller still expects the data that it requested, so the identifier stays in
        // use.
        if is_free {
            self.slots[usize::from(number)].in_flight = None;
            self.free.push_back(number);
        }
        self.completed.extend(tag.map(|tag| Completed { tag, outcome }));
        Ok(())
    }
}

fn range_error(error: RangeError, id: u16) -> QueueError {
    match error {
        RangeError::Overlap => QueueError::OutOfRange(id),
        RangeError::TooMany => QueueError::LimitExceeded(id),
    }
}
