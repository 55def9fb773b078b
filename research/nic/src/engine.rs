//! One shard of the device: what is sent goes from its queue to its port, what comes the other way.
//!
//! The hard rules: on receive nothing is kept back, put in another order, dropped or edited. A frame
//! that a machine has worked on has another payload, and says so; one in which a message failed goes
//! up as it came. Only where the host has given no empty buffer is a frame lost, and counted, as a
//! device has to. On transmit what cannot be sealed is dropped.
//!
//! Frames of a flow that come in a row become one segment where they are alike in everything that
//! software sees, the results of the machines above all.

use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;
use unlade_nic_engine::Stats;
use unlade_nic_engine::cache::CacheStats;
use unlade_nic_engine::placement::Registration;
use unlade_nic_engine::software::pdus::PduResult;

use crate::buffers::Withdrawn;
use crate::command::{Addressed, Command};
use crate::flow::{CACHE_BYTES, FlowError, FlowId, Flows, Received, Side};
use crate::port::{Frame, Port};
use crate::queue::{
    BATCH_BYTES, BATCH_SEGMENTS_MAX, DeviceQueue, RxBatch, RxKind, RxSegment, Sent, TxEntry,
    TxPacket,
};
use crate::segment::{self, PAYLOAD_ROOM_BYTES, Template};
use unlade_nic_inline::classify::{Checksums, Kind, Segment, classify};

/// Most entries of the send ring that are worked on before frames that came are looked at.
pub const TX_ENTRIES_AT_ONCE: usize = 8;
/// Most frames that are taken in before the send ring is looked at.
pub const RX_FRAMES_AT_ONCE: usize = 128;
/// Bytes that a segment takes at least: what does not fit behind a batch's last one begins another.
const TCP_OPTIONS_AT: usize = 20;

/// What a shard has counted beside the machines; counters only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Large segments that were worked on.
    pub tx_packets: u64,
    /// Frames that left.
    pub tx_frames: u64,
    /// Bytes in them.
    pub tx_bytes: u64,
    /// Large segments of which not all has left.
    pub tx_dropped: u64,
    /// Those of them that were not as a descriptor has to be, or whose flow is not known.
    pub tx_malformed: u64,
    /// Commands.
    pub commands: u64,
    /// Commands that could not be done.
    pub commands_refused: u64,
    /// Frames that came.
    pub rx_frames: u64,
    /// Bytes in them.
    pub rx_bytes: u64,
    /// Those of them that were damaged.
    pub rx_damaged: u64,
    /// Those of them that were no TCP segments.
    pub rx_other: u64,
    /// Frames that were lost because there was no buffer.
    pub rx_no_buffer: u64,
    /// Segments that went up.
    pub rx_segments: u64,
    /// Frames that became part of another one's segment.
    pub rx_coalesced: u64,
    /// Batches that went up.
    pub rx_batches: u64,
}

impl Counters {
    /// Adds what `other` has counted.
    pub fn add(&mut self, other: &Counters) {
        macro_rules! sum {
            ($($name:ident)*) => { $(self.$name += other.$name;)* };
        }
        sum!(tx_packets tx_frames tx_bytes tx_dropped tx_malformed commands commands_refused
            rx_frames rx_bytes rx_damaged rx_other rx_no_buffer rx_segments rx_coalesced
            rx_batches);
    }
}

/// All that a shard has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The device's.
    pub counters: Counters,
    /// The machines' that do TLS.
    pub machines: Stats,
    /// The machines' that do PDUs.
    pub pdus: Stats,
    /// The cache's of contexts.
    pub cache: CacheStats,
    /// Flows that there are.
    pub flows: u64,
}

impl Report {
    /// Adds another shard's.
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
    /// By flow.
    templates: Vec<Option<Template>>,
    /// Where a payload lies while it leaves.
    payload: Box<[u8]>,
    /// The batch that is filled.
    open: Option<Box<RxBatch>>,
    counters: Counters,
    presumes: bool,
}

impl<P: Port> Engine<P> {
    /// A shard with the usual memory for contexts.
    pub fn new(port: P, queue: DeviceQueue) -> Engine<P> {
        Engine::with_cache(port, queue, CACHE_BYTES)
    }

    /// A shard with so many bytes of memory for contexts.
    pub fn with_cache(port: P, queue: DeviceQueue, cache_bytes: usize) -> Engine<P> {
        let flows = Flows::new(cache_bytes);
        let counters = Counters::default();
        let payload = vec![0; PAYLOAD_ROOM_BYTES].into();
        let (templates, open, presumes) = (Vec::new(), None, true);
        Engine { port, queue, flows, templates, payload, open, counters, presumes }
    }

    /// Whether flows that are created from now on presume numbers of records after a loss
    /// ([`unlade_nic_engine::rx::Rx::presume`]); they do, unless told not to.
    pub fn presume(&mut self, presumes: bool) {
        self.presumes = presumes;
    }

    /// Its port.
    pub fn port(&mut self) -> &mut P {
        &mut self.port
    }

    /// What it has counted.
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

    /// Works on some of what there is, and returns how many things that was: entries, frames and
    /// batches; 0 where there was nothing to do.
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

    /// Whether there is an entry, and the port has room for all its frames.
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
            // What has nothing to be sealed needs no context.
            0 => self.flows.get(packet.flow),
            _ => self.flows.fetch(packet.flow, Side::Tx),
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
        if self.obey(id, command).is_err() {
            self.counters.commands_refused += 1;
        }
    }

    fn obey(&mut self, id: FlowId, command: Command) -> Result<(), FlowError> {
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

    /// A buffer that is not registered goes back at once.
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

    /// Sees to it that a batch is open that has room for a frame.
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

    /// Gives the open batch to the host, if the host has none to look at: as long as it has, the
    /// batch may grow, and nothing waits longer for that.
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

/// Puts a frame that no machine sees into the batch, which has room for it.
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

/// Puts a segment into the batch, which has room for the frame; true where it became part of the
/// last one.
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
    let received = match flow.filter(|_| !reset).and_then(|id| flows.fetch(id, Side::Rx)) {
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
        // It is not like the last one after all: its headers go before it.
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

/// Whether a segment can become part of the last one, so far as its headers say.
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
    // What has been pushed is not to wait for more. A window, an acknowledgement or a clock that is
    // another has to be seen; and so has a mark of congestion.
    old[13] == TcpFlags::ACK.0
        && old[8..13] == new[8..13]
        && old[14..16] == new[14..16]
        && old[TCP_OPTIONS_AT..] == new[TCP_OPTIONS_AT..]
        && before[..16] == raw[..16]
}

/// Makes a payload that is there already a part of the last segment, unless its result is another.
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
