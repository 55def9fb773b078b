//! One shard of the device: packets go from its queue to its port, and from its port to its
//! queue.
//!
//! The rules: on receive no frame is delayed, reordered, dropped or edited. A frame that a
//! machine has processed has another payload, and is marked as such; a frame in which a message
//! failed is delivered as it came. A frame is lost, and counted, only if the host has provided no
//! empty buffer, as in any device. On transmit a frame that cannot be sealed is dropped.
//!
//! Consecutive frames of a flow are merged into one segment if all their properties are equal
//! that software sees, in particular the results of the machines.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;
use unlade_nic_engine::Stats;
use unlade_nic_engine::cache::CacheStats;
use unlade_nic_engine::placement::Registration;
use unlade_nic_engine::software::pdus::PduResult;

use crate::buffers::Withdrawn;
use crate::command::{Addressed, Command};
use crate::flow::{CACHE_BYTES, Direction, FlowError, FlowId, Flows, Received};
use crate::port::{Frame, Port};
use crate::queue::{
    BATCH_BYTES, BATCH_SEGMENTS_MAX, DeviceQueue, RxBatch, RxKind, RxSegment, Sent, TxEntry,
    TxPacket,
};
use crate::segment::{self, PAYLOAD_ROOM_BYTES};
use crate::template::Template;
use unlade_nic_inline::classify::{Checksums, Kind, Segment, classify};

/// Largest number of send ring entries that are processed before received frames.
pub const TX_ENTRIES_AT_ONCE: usize = 8;
/// Largest number of frames that are received before the send ring is checked.
pub const RX_FRAMES_AT_ONCE: usize = 128;
/// Offset of the options in a TCP header.
const TCP_OPTIONS_AT: usize = 20;

/// Counters of a shard beside those of the machines; they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Large segments that were processed.
    pub tx_packets: u64,
    /// Frames that were sent.
    pub tx_frames: u64,
    /// Bytes in them.
    pub tx_bytes: u64,
    /// Large segments that were not sent completely.
    pub tx_dropped: u64,
    /// Those of them with an invalid descriptor, or an unknown flow.
    pub tx_malformed: u64,
    /// Commands.
    pub commands: u64,
    /// Commands that failed.
    pub commands_refused: u64,
    /// Frames that were received.
    pub rx_frames: u64,
    /// Bytes in them.
    pub rx_bytes: u64,
    /// Those of them that were damaged.
    pub rx_damaged: u64,
    /// Those of them that were not TCP segments.
    pub rx_other: u64,
    /// Frames that were lost because there was no buffer.
    pub rx_no_buffer: u64,
    /// Segments that were delivered.
    pub rx_segments: u64,
    /// Frames that were merged into another one's segment.
    pub rx_coalesced: u64,
    /// Batches that were delivered.
    pub rx_batches: u64,
}

impl Counters {
    /// Adds the counters of `other`.
    pub fn add(&mut self, other: &Counters) {
        macro_rules! sum {
            ($($name:ident)*) => { $(self.$name += other.$name;)* };
        }
        sum!(tx_packets tx_frames tx_bytes tx_dropped tx_malformed commands commands_refused
            rx_frames rx_bytes rx_damaged rx_other rx_no_buffer rx_segments rx_coalesced
            rx_batches);
    }
}

/// All counters of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Those of the device.
    pub counters: Counters,
    /// Those of the TLS machines.
    pub machines: Stats,
    /// Those of the PDU machines.
    pub pdus: Stats,
    /// Those of the context cache.
    pub cache: CacheStats,
    /// Number of flows.
    pub flows: u64,
}

impl Report {
    /// Adds the report of another shard.
    pub fn add(&mut self, other: &Report) {
        self.counters.add(&other.counters);
        self.machines.add(&other.machines);
        self.pdus.add(&other.pdus);
        self.cache.hits += other.cache.hits;
        self.cache.misses += other.cache.misses;
        self.cache.evictions += other.cache.evictions;
        self.cache.moved_bytes += other.cache.moved_bytes;
        self.flows += other.flows;
    }
}

/// One shard.
pub struct Engine<P> {
    port: P,
    queue: DeviceQueue,
    flows: Flows,
    /// Indexed by flow.
    templates: Vec<Option<Template>>,
    /// Buffer for a payload while it is sent.
    payload: Box<[u8]>,
    /// The batch that is being filled.
    open: Option<Box<RxBatch>>,
    counters: Counters,
    presumes: bool,
}

impl<P: Port> Engine<P> {
    /// Creates a shard with the default memory for contexts.
    pub fn new(port: P, queue: DeviceQueue) -> Engine<P> {
        Engine::with_cache(port, queue, CACHE_BYTES)
    }

    /// Creates a shard with `cache_bytes` of memory for contexts.
    pub fn with_cache(port: P, queue: DeviceQueue, cache_bytes: usize) -> Engine<P> {
        let flows = Flows::new(cache_bytes);
        let counters = Counters::default();
        let payload = vec![0; PAYLOAD_ROOM_BYTES].into();
        let (templates, open, presumes) = (Vec::new(), None, true);
        Engine { port, queue, flows, templates, payload, open, counters, presumes }
    }

    /// Sets if flows that are created from now on presume numbers of records after a loss
    /// ([`unlade_nic_engine::rx::Rx::presume`]); the default is true.
    pub fn presume(&mut self, presumes: bool) {
        self.presumes = presumes;
    }

    /// The port of the shard.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// The counters so far.
    pub fn report(&self) -> Report {
        let both = self.flows.both_stats();
        Report {
            counters: self.counters,
            machines: both.tls,
            pdus: both.nvme,
            cache: self.flows.cache_stats(),
            flows: self.flows.len() as u64,
        }
    }

    /// Processes some of the pending work, and returns the number of entries, frames and batches;
    /// 0 if there was none.
    pub fn poll(&mut self, now_ns: u64) -> usize {
        self.port.advance(now_ns);
        self.transmit() + self.receive() + self.publish()
    }

    fn transmit(&mut self) -> usize {
        for done in 0..TX_ENTRIES_AT_ONCE {
            if !self.next_fits() {
                return done;
            }
            match self.queue.tx.pop() {
                Ok(TxEntry::Packet(packet)) => self.packet(packet),
                Ok(TxEntry::Command(command)) => self.command(*command),
                Ok(TxEntry::Frame(raw)) => self.frame(&raw),
                Err(_) => return done,
            }
        }
        TX_ENTRIES_AT_ONCE
    }

    /// Returns true if there is an entry, and the port has room for all its frames.
    fn next_fits(&mut self) -> bool {
        let needed = match self.queue.tx.peek() {
            Ok(TxEntry::Packet(packet)) => segment::frames(packet).unwrap_or(0),
            Ok(TxEntry::Frame(_)) => 1,
            Ok(TxEntry::Command(_)) => 0,
            Err(_) => return false,
        };
        needed <= self.port.room()
    }

    fn packet(&mut self, mut packet: Box<TxPacket>) {
        self.counters.tx_packets += 1;
        let template = self.templates.get(packet.flow.index()).and_then(Option::as_ref);
        let flow = match packet.payload_bytes {
            // A packet without bytes to seal needs no context.
            0 => self.flows.get(packet.flow),
            _ => self.flows.fetch(packet.flow, Direction::Tx),
        };
        match (flow, template, segment::frames(&packet)) {
            (Some(flow), Some(template), Some(_)) => {
                let (room, port) = (&mut self.payload, &mut self.port);
                let emitted = segment::emit(flow, template, &mut packet, room, port);
                self.counters.tx_frames += emitted.frames;
                self.counters.tx_bytes += emitted.bytes;
            }
            _ => {
                self.counters.tx_malformed += 1;
                packet.sent = Sent::Dropped;
            }
        }
        self.counters.tx_dropped += u64::from(packet.sent == Sent::Dropped);
        // There is room for every descriptor that exists.
        let _ = self.queue.completions.push(packet);
    }

    fn frame(&mut self, raw: &[u8]) {
        let mut frame = self.port.empty();
        if frame.copy_from(raw) && self.port.send(frame) {
            self.counters.tx_frames += 1;
            self.counters.tx_bytes += raw.len() as u64;
        } else {
            self.counters.tx_malformed += 1;
        }
    }

    fn command(&mut self, Addressed { flow: id, command }: Addressed) {
        self.counters.commands += 1;
        if self.execute(id, command).is_err() {
            self.counters.commands_refused += 1;
        }
    }

    fn execute(&mut self, id: FlowId, command: Command) -> Result<(), FlowError> {
        if let Command::Open { name, template } = command {
            self.flows.create(id, name)?;
            let index = id.index();
            if self.templates.len() <= index {
                self.templates.resize(index + 1, None);
            }
            self.templates[index] = Some(template);
            return Ok(());
        }
        if let Command::Register { registration, buffer } = command {
            return self.register(id, registration, buffer);
        }
        let flow = self.flows.get(id).ok_or(FlowError::Unknown)?;
        match command {
            Command::Open { .. } | Command::Register { .. } => (),
            Command::Withdraw(registration) => {
                if let Some(buffer) = flow.withdraw(registration) {
                    let _ = self.queue.withdrawn.push(Withdrawn { flow: id, registration, buffer });
                }
            }
            Command::Close => {
                for (registration, buffer) in flow.withdraw_all() {
                    let _ = self.queue.withdrawn.push(Withdrawn { flow: id, registration, buffer });
                }
                self.flows.destroy(id);
                if let Some(template) = self.templates.get_mut(id.index()) {
                    *template = None;
                }
            }
            Command::CreateRx { protocol, start, number } => {
                flow.create_rx(protocol, start, number);
                flow.presume(self.presumes);
            }
            Command::RestartRx { protocol, start, number, key } => {
                flow.restart_rx(protocol, start, number, key);
            }
            Command::DestroyRx => flow.destroy_rx(),
            Command::CreateTx { protocol, start, number, key } => {
                flow.create_tx(protocol, start, number, key)?;
            }
            Command::DestroyTx { key } => flow.destroy_tx(key),
            Command::AgreePdus(nvme) => flow.agree_pdus(nvme),
            Command::Respond(response) => {
                flow.respond(&response);
            }
            Command::RespondPdu(response) => {
                flow.respond_pdu(&response);
            }
        }
        Ok(())
    }

    /// Registers a buffer; one that cannot be registered is returned at once.
    fn register(
        &mut self,
        flow: FlowId,
        registration: Registration,
        buffer: Box<[u8]>,
    ) -> Result<(), FlowError> {
        let refused = match self.flows.get(flow) {
            Some(flow) => flow.register(registration, buffer).err(),
            None => Some(buffer),
        };
        let Some(buffer) = refused else { return Ok(()) };
        // There is room for every buffer that the host has registered.
        let _ = self.queue.withdrawn.push(Withdrawn { flow, registration, buffer });
        Err(FlowError::Buffer)
    }

    fn receive(&mut self) -> usize {
        for done in 0..RX_FRAMES_AT_ONCE {
            let Some(frame) = self.port.receive() else { return done };
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += frame.as_slice().len() as u64;
            self.take(&frame);
            self.port.recycle(frame);
        }
        RX_FRAMES_AT_ONCE
    }

    fn take(&mut self, frame: &Frame) {
        let raw = frame.as_slice();
        if !self.make_room(raw.len()) {
            self.counters.rx_no_buffer += 1;
            return;
        }
        let Some(batch) = &mut self.open else { return };
        match classify(raw, Checksums::Verify) {
            Kind::Segment(found) => {
                let coalesced = segment_up(&mut self.flows, batch, raw, &found);
                self.counters.rx_coalesced += u64::from(coalesced);
                self.counters.rx_segments += u64::from(!coalesced);
            }
            Kind::Damaged => {
                self.counters.rx_damaged += 1;
                frame_up(batch, raw, RxKind::Damaged);
            }
            Kind::Other => {
                self.counters.rx_other += 1;
                frame_up(batch, raw, RxKind::Other);
            }
        }
    }

    /// Opens a batch with room for a frame, if possible.
    fn make_room(&mut self, bytes: usize) -> bool {
        let fits = |batch: &RxBatch| {
            batch.used_bytes + bytes <= BATCH_BYTES && batch.segments.len() < BATCH_SEGMENTS_MAX
        };
        if self.open.as_deref().is_some_and(fits) {
            return true;
        }
        self.send_up();
        self.open = self.queue.free.pop().ok();
        self.open.as_deref().is_some_and(fits)
    }

    /// Delivers the open batch if the host has no unprocessed batch. Otherwise the batch may
    /// grow, without a longer delay.
    fn publish(&mut self) -> usize {
        let used = self.open.as_deref().is_some_and(|batch| !batch.segments.is_empty());
        if !used {
            return 0;
        }
        let idle = self.queue.rx.slots() == self.queue.rx.buffer().capacity();
        if idle {
            self.send_up();
        }
        1
    }

    fn send_up(&mut self) {
        if let Some(batch) = self.open.take() {
            self.counters.rx_batches += 1;
            // There is room for every batch that exists.
            let _ = self.queue.rx.push(batch);
        }
    }
}

/// Copies a frame that no machine processes into the batch, which has room for it.
fn frame_up(batch: &mut RxBatch, raw: &[u8], kind: RxKind) {
    let start = batch.used_bytes;
    let end = start + raw.len();
    batch.raw[start..end].copy_from_slice(raw);
    batch.used_bytes = end;
    batch.segments.push(RxSegment {
        kind,
        flow: None,
        headers: start..end,
        tcp_at: end,
        seq: SeqNumber(0),
        payload: end..end,
        frames: 1,
        worked: None,
        from: 0,
        request: None,
        pdus: PduResult::default(),
        pdu_request: None,
    });
}

/// Processes a segment into the batch, which has room for the frame. Returns true if it was
/// merged into the last segment.
fn segment_up(flows: &mut Flows, batch: &mut RxBatch, raw: &[u8], found: &Segment) -> bool {
    let flow = flows.find(&found.flow);
    let payload = &raw[found.payload.clone()];
    let headers = &raw[..found.payload.start];
    let seq = found.payload_seq();
    let coalesces = flow.is_some() && follows(batch, flow, raw, found);
    let start = batch.used_bytes;
    let payload_at = if coalesces { start } else { start + headers.len() };
    let place = &mut batch.raw[payload_at..payload_at + payload.len()];
    let reset = found.flags.contains(TcpFlags::RST);
    let received = match flow.filter(|_| !reset).and_then(|id| flows.fetch(id, Direction::Rx)) {
        Some(flow) if flow.receives() => flow.receive(seq, payload, place),
        _ => Received::default(),
    };
    if !received.rewritten {
        place.copy_from_slice(payload);
    }
    if coalesces && extend(batch, received, found, payload.len()) {
        return true;
    }
    let headers_end = start + headers.len();
    if coalesces {
        // It cannot be merged after all: its headers are inserted before it.
        batch.raw.copy_within(start..start + payload.len(), headers_end);
    }
    batch.raw[start..headers_end].copy_from_slice(headers);
    batch.used_bytes = headers_end + payload.len();
    batch.segments.push(RxSegment {
        kind: RxKind::Segment,
        flow,
        headers: start..headers_end,
        tcp_at: start + found.tcp_at,
        seq,
        payload: headers_end..batch.used_bytes,
        frames: 1,
        worked: received.worked,
        from: received.from as usize,
        request: received.request,
        pdus: received.pdus,
        pdu_request: received.pdu_request,
    });
    false
}

/// Returns true if a segment's headers permit to merge it into the last segment.
fn follows(batch: &RxBatch, flow: Option<FlowId>, raw: &[u8], found: &Segment) -> bool {
    const ENDS: u8 = !(TcpFlags::ACK.0 | TcpFlags::PSH.0);
    let Some(last) = batch.segments.last() else { return false };
    let in_line = last.kind == RxKind::Segment
        && last.flow == flow
        && last.request.is_none()
        && last.pdu_request.is_none()
        && !last.payload.is_empty()
        && !found.payload.is_empty()
        && last.payload.end == batch.used_bytes
        && last.seq + last.payload.len() as u32 == found.seq
        && last.headers.len() == found.payload.start
        && last.tcp_at - last.headers.start == found.tcp_at;
    if !in_line || found.flags.0 & ENDS != 0 {
        return false;
    }
    let before = &batch.raw[last.headers.clone()];
    let (old, new) = (&before[found.tcp_at..], &raw[found.tcp_at..found.payload.start]);
    // A segment with PSH is not delayed for more. A change of the window, the acknowledgement,
    // the timestamps or the ECN mark must remain visible.
    old[13] == TcpFlags::ACK.0
        && old[8..13] == new[8..13]
        && old[14..16] == new[14..16]
        && old[TCP_OPTIONS_AT..] == new[TCP_OPTIONS_AT..]
        && before[..16] == raw[..16]
}

/// Merges a payload that is in place already into the last segment, unless its result differs.
fn extend(batch: &mut RxBatch, received: Received, found: &Segment, bytes: usize) -> bool {
    let Some(last) = batch.segments.last_mut() else { return false };
    let asks = received.request.is_some() || received.pdu_request.is_some();
    if asks || received.from > 0 {
        return false;
    }
    let worked = match (last.worked, received.worked) {
        (None, None) => None,
        (Some(before), Some(behind)) => match before.join(behind) {
            Some(both) => Some(both),
            None => return false,
        },
        _ => return false,
    };
    if !last.pdus.append(last.payload.len() as u32, &received.pdus) {
        return false;
    }
    last.worked = worked;
    last.payload.end += bytes;
    last.frames += 1;
    batch.raw[last.tcp_at + 13] |= found.flags.0;
    batch.used_bytes += bytes;
    true
}

#[cfg(test)]
#[path = "engine_tests.rs"]
mod tests;
