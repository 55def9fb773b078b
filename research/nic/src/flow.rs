//! The flows of a shard: their contexts in the device, and the processing of their packets.
//!
//! A flow has the name that received frames have: the peer is the client. A context has static
//! state (keys), which stays in the host's memory, and dynamic state (at most
//! [`CONTEXT_BYTES_MAX`] bytes), for which the device has a cache ([`unlade_nic_engine::cache`]):
//! its use is counted, since fetches from the host's memory would cost a device time.
//!
//! [`CONTEXT_BYTES_MAX`]: unlade_nic_engine::context::CONTEXT_BYTES_MAX

use std::collections::HashMap;

use thiserror::Error;
use unlade_net::{FlowKey, SeqNumber};
use unlade_nic_engine::cache::{Cache, CacheStats};
use unlade_nic_engine::composed::tx::InnerState;
use unlade_nic_engine::placement::{Placer, Registration};
use unlade_nic_engine::resync::{Request, Response, Worked};
use unlade_nic_engine::rx::{self, Rx};
use unlade_nic_engine::software::composed::ComposedResult;
use unlade_nic_engine::software::pdus::PduResult;
use unlade_nic_engine::tx::{MessageState, Tx, Verdict};
use unlade_nic_engine::{Nvme, Stats, Tls, composed, nvme, tls};

use crate::buffers::Registered;
pub use crate::flow_id::{FLOWS_MAX, FlowId};

/// Largest number of keys of a flow for sending: after a KeyUpdate packets under the previous key
/// are retransmitted until they are acknowledged.
pub const TX_KEYS_MAX: usize = 4;
/// Bytes of a device's memory for dynamic state (§6.5 of the paper).
pub const CACHE_BYTES: usize = 4 << 20;

/// The reason that a flow or a context is not created. It is an error of the caller, or a limit
/// was reached: the caller goes on without the offload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FlowError {
    /// The index or the name has a flow already.
    #[error("the flow exists already; destroy it first")]
    Exists,
    /// There is no flow with this id.
    #[error("there is no such flow; create it first")]
    Unknown,
    /// The flow has contexts for [`TX_KEYS_MAX`] keys.
    #[error("a flow has at most {TX_KEYS_MAX} keys to send with; go on without the offload")]
    Keys,
    /// The registration's identifier has a buffer already, or is out of bounds.
    #[error("the buffer is not registered; it is given back")]
    Buffer,
}

/// The protocol above TCP in one direction of a flow, with its static state.
pub enum Protocol {
    /// Records under AES-GCM.
    Tls(Box<Tls>),
    /// PDUs of NVMe/TCP in the clear.
    Nvme(Nvme),
    /// PDUs in the application data of records.
    NvmeTls(Box<Tls>, Nvme),
}

/// The receive context.
enum RxContext {
    Tls { l5p: Box<Tls>, rx: Rx<tls::Progress> },
    Nvme { l5p: Nvme, rx: Rx<nvme::Progress> },
    NvmeTls { l5p: (Box<Tls>, Nvme), rx: composed::rx::Rx },
}

/// The result for a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// True if the processed payload is in the output buffer; otherwise the packet is as it came.
    pub rewritten: bool,
    /// The pass in which it was decrypted as TLS.
    pub worked: Option<Worked>,
    /// Number of bytes before the decrypted ones, which are as they came.
    pub from: u32,
    /// A question to software, from the machine next to TCP.
    pub request: Option<Request>,
    /// The results for PDUs in it.
    pub pdus: PduResult,
    /// A question to software, from the machine above TLS.
    pub pdu_request: Option<Request>,
}

impl RxContext {
    fn new(protocol: Protocol, start: SeqNumber, number: u64) -> RxContext {
        match protocol {
            Protocol::Tls(l5p) => RxContext::Tls { l5p, rx: Rx::new(start, number) },
            Protocol::Nvme(l5p) => RxContext::Nvme { l5p, rx: Rx::new(start, number) },
            Protocol::NvmeTls(tls, nvme) => {
                RxContext::NvmeTls { l5p: (tls, nvme), rx: composed::rx::Rx::new(start, number) }
            }
        }
    }
}

/// The send context of one key.
enum TxContext {
    Tls { l5p: Box<Tls>, tx: Tx<tls::Progress> },
    Nvme { l5p: Nvme, tx: Tx<nvme::Progress> },
    NvmeTls { l5p: (Box<Tls>, Nvme), tx: Box<composed::tx::Tx> },
}

impl TxContext {
    fn new(protocol: Protocol, start: SeqNumber, number: u64, key: u16) -> TxContext {
        match protocol {
            Protocol::Tls(l5p) => TxContext::Tls { l5p, tx: Tx::new(start, number, key) },
            Protocol::Nvme(l5p) => TxContext::Nvme { l5p, tx: Tx::new(start, number, key) },
            Protocol::NvmeTls(tls, nvme) => {
                let tx = Box::new(composed::tx::Tx::new(start, number, key));
                TxContext::NvmeTls { l5p: (tls, nvme), tx }
            }
        }
    }
}

/// Copies `pieces` to `out`; false if their total length differs from that of `out`.
fn gather<'p>(pieces: impl Iterator<Item = &'p [u8]>, out: &mut [u8]) -> bool {
    let mut done = 0;
    for piece in pieces {
        let Some(place) = out.get_mut(done..done + piece.len()) else { return false };
        place.copy_from_slice(piece);
        done += piece.len();
    }
    done == out.len()
}

/// One flow's state in the device.
pub struct Flow {
    id: FlowId,
    name: FlowKey,
    rx: Option<RxContext>,
    /// Contexts with their keys, oldest first.
    tx: Vec<(u16, TxContext)>,
    /// True if the flow seals or has sealed: nothing is sent in the clear any more, except bytes
    /// that are declared to be from before the offload.
    seals: bool,
    /// Registered buffers for data.
    buffers: Option<Box<Registered>>,
    /// Counters of the TLS and PDU machines.
    stats: composed::Stats,
}

impl Flow {
    fn new(id: FlowId, name: FlowKey) -> Flow {
        let stats = composed::Stats::default();
        Flow { id, name, rx: None, tx: Vec::new(), seals: false, buffers: None, stats }
    }

    /// Its id.
    pub fn id(&self) -> FlowId {
        self.id
    }

    /// The name of the flow in received frames: the peer is the client.
    pub fn name(&self) -> &FlowKey {
        &self.name
    }

    /// Counters of its machines.
    pub fn stats(&self) -> &composed::Stats {
        &self.stats
    }

    /// Registers `buffer` for data of the registration's tag (`l5o_add_rr_state`).
    ///
    /// # Errors
    /// The buffer, if it cannot be registered.
    pub fn register(
        &mut self,
        registration: Registration,
        buffer: Box<[u8]>,
    ) -> Result<(), Box<[u8]>> {
        self.buffers.get_or_insert_default().add(registration, buffer)
    }

    /// Removes a registration and returns its buffer (`l5o_del_rr_state`).
    pub fn withdraw(&mut self, registration: Registration) -> Option<Box<[u8]>> {
        self.buffers.as_mut()?.remove(registration)
    }

    /// Removes all registrations and returns their buffers.
    pub fn withdraw_all(&mut self) -> impl Iterator<Item = (Registration, Box<[u8]>)> {
        self.buffers.iter_mut().flat_map(|buffers| buffers.drain())
    }

    /// Returns true if received packets are processed.
    pub fn receives(&self) -> bool {
        self.rx.is_some()
    }

    /// Returns true if sent data must be sealed: there is a context to send, or there was one.
    pub fn seals(&self) -> bool {
        self.seals
    }

    /// Creates the receive context (`l5o_create`): from the byte `start` on, where a message with
    /// `number` others before it starts, packets are processed. It replaces an earlier context.
    pub fn create_rx(&mut self, protocol: Protocol, start: SeqNumber, number: u64) {
        self.rx = Some(RxContext::new(protocol, start, number));
    }

    /// Sets if records whose number can be presumed are decrypted at once ([`Rx::presume`]); the
    /// default is false. Records with PDUs never are: data that is decrypted wrongly must not get
    /// into buffers.
    pub fn presume(&mut self, presumes: bool) {
        if let Some(RxContext::Tls { rx, .. }) = &mut self.rx {
            rx.presume(presumes);
        }
    }

    /// Switches the receive context to another key, numbered `key` by software, from `start` on
    /// with message `number`. Has no effect without a context, which was destroyed in the
    /// meantime.
    pub fn restart_rx(&mut self, protocol: Protocol, start: SeqNumber, number: u64, key: u16) {
        match (&mut self.rx, protocol) {
            (Some(RxContext::Tls { l5p, rx }), Protocol::Tls(fresh)) => {
                *l5p = fresh;
                rx.restart(start, number, key);
            }
            (Some(RxContext::NvmeTls { l5p, rx }), Protocol::Tls(fresh)) => {
                l5p.0 = fresh;
                rx.restart(&mut self.stats, start, number, key);
            }
            // PDUs have no keys.
            (Some(_) | None, _) => (),
        }
    }

    /// Destroys the receive context: packets are delivered as they come (`l5o_destroy`).
    pub fn destroy_rx(&mut self) {
        self.rx = None;
    }

    /// Passes software's answer to a question; true if the question is still open
    /// (`l5o_resync_rx_resp`).
    pub fn respond(&mut self, response: &Response) -> bool {
        match &mut self.rx {
            Some(RxContext::Tls { rx, .. }) => rx.respond(&mut self.stats.tls, response),
            Some(RxContext::Nvme { rx, .. }) => rx.respond(&mut self.stats.nvme, response),
            Some(RxContext::NvmeTls { rx, .. }) => rx.respond(&mut self.stats, response),
            None => false,
        }
    }

    /// Passes software's answer to the machine above TLS.
    pub fn respond_pdu(&mut self, response: &Response) -> bool {
        match &mut self.rx {
            Some(RxContext::NvmeTls { rx, .. }) => rx.respond_nvme(&mut self.stats, response),
            _ => false,
        }
    }

    /// Processes the payload of a packet with correct checksums; `seq` is the number of its first
    /// byte. If it is rewritten, `out` (at least as long) has the result for software.
    pub fn receive(&mut self, seq: SeqNumber, payload: &[u8], out: &mut [u8]) -> Received {
        let Flow { rx, buffers, stats, .. } = self;
        let mut placer = match buffers {
            Some(buffers) => buffers.placer(),
            None => Placer::none(),
        };
        match rx {
            Some(RxContext::Tls { l5p, rx }) => {
                let found = rx.receive(&**l5p, &mut stats.tls, seq, payload, out);
                let (worked, request) = (found.worked(), found.request);
                let rewritten = show_head(&found, payload, out);
                Received { rewritten, worked, from: found.from, request, ..Received::default() }
            }
            Some(RxContext::Nvme { l5p, rx }) => {
                let packet = (seq, payload);
                let found = rx.receive_placing(l5p, &mut stats.nvme, packet, &mut [], &mut placer);
                let (pass, boundary) = (found.pass, found.boundary);
                let pdus = PduResult { pass, boundary, placed: placer.take() };
                Received { request: found.request, pdus, ..Received::default() }
            }
            Some(RxContext::NvmeTls { l5p: (tls, nvme), rx }) => {
                let found = rx.receive((tls, nvme), stats, (seq, payload), out, &mut placer);
                let said = ComposedResult::of(&found, placer.take());
                Received {
                    rewritten: show_head(&found.tls, payload, out),
                    worked: said.tls,
                    from: found.tls.from,
                    request: found.tls.request,
                    pdus: said.nvme,
                    pdu_request: found.nvme_request,
                }
            }
            None => Received::default(),
        }
    }

    /// Creates a send context: data under `key` is sealed from `start` on, where message `number`
    /// starts (`l5o_create`).
    ///
    /// # Errors
    /// [`FlowError::Keys`]; [`FlowError::Exists`] if the key has a context.
    pub fn create_tx(
        &mut self,
        protocol: Protocol,
        start: SeqNumber,
        number: u64,
        key: u16,
    ) -> Result<(), FlowError> {
        self.seals = true;
        if self.tx.iter().any(|(other, _)| *other == key) {
            return Err(FlowError::Exists);
        }
        if self.tx.len() >= TX_KEYS_MAX {
            return Err(FlowError::Keys);
        }
        self.tx.push((key, TxContext::new(protocol, start, number, key)));
        Ok(())
    }

    /// Applies digests and limits from the next PDUs on, in both directions. Earlier PDUs have no
    /// digests (ICReq and ICResp), and are parsed as before.
    pub fn agree_pdus(&mut self, nvme: Nvme) {
        match &mut self.rx {
            Some(RxContext::Nvme { l5p, .. } | RxContext::NvmeTls { l5p: (_, l5p), .. }) => {
                *l5p = nvme;
            }
            Some(RxContext::Tls { .. }) | None => (),
        }
        for (_, context) in &mut self.tx {
            match context {
                TxContext::Nvme { l5p, .. } | TxContext::NvmeTls { l5p: (_, l5p), .. } => {
                    *l5p = nvme;
                }
                TxContext::Tls { .. } => (),
            }
        }
    }

    /// Destroys a send context (`l5o_destroy`). The flow still sends nothing that is not sealed.
    pub fn destroy_tx(&mut self, key: u16) {
        self.tx.retain(|(other, _)| *other != key);
    }

    /// Advances the context of `message`'s key to `seq` by a replay; `inner` is the content of
    /// the message if it is a record with PDUs. Returns false if that is not possible: nothing
    /// can be sent then.
    pub fn recover(
        &mut self,
        message: &MessageState<'_>,
        inner: Option<&InnerState<'_>>,
        seq: SeqNumber,
    ) -> bool {
        match under(&mut self.tx, message.key) {
            Some(TxContext::Tls { l5p, tx }) => {
                tx.recover(&**l5p, &mut self.stats.tls, message, seq)
            }
            Some(TxContext::Nvme { l5p, tx }) => {
                tx.recover(l5p, &mut self.stats.nvme, message, seq)
            }
            Some(TxContext::NvmeTls { l5p: (tls, nvme), tx }) => match inner {
                Some(inner) => tx.recover((&**tls, &*nvme), &mut self.stats, (message, inner), seq),
                None => {
                    tx.fail();
                    false
                }
            },
            None => false,
        }
    }

    /// The same if the message's bytes up to `seq` are in `pieces`.
    pub fn recover_pieces<'p>(
        &mut self,
        message: &MessageState<'_>,
        inner: Option<&InnerState<'_>>,
        seq: SeqNumber,
        pieces: impl Iterator<Item = &'p [u8]>,
    ) -> bool {
        match under(&mut self.tx, message.key) {
            Some(TxContext::Tls { l5p, tx }) => {
                tx.recover_pieces(&**l5p, &mut self.stats.tls, message, seq, pieces)
            }
            Some(TxContext::Nvme { l5p, tx }) => {
                tx.recover_pieces(l5p, &mut self.stats.nvme, message, seq, pieces)
            }
            Some(TxContext::NvmeTls { .. }) => {
                let raw: Vec<u8> = pieces.flatten().copied().collect();
                self.recover(&MessageState { bytes: &raw, ..*message }, inner, seq)
            }
            None => false,
        }
    }

    /// Seals the payload of a packet in place with the context of `key`. A dropped packet must
    /// not be sent.
    pub fn transmit(&mut self, key: u16, seq: SeqNumber, payload: &mut [u8]) -> Verdict {
        match under(&mut self.tx, key) {
            Some(TxContext::Tls { l5p, tx }) => {
                tx.transmit(&**l5p, &mut self.stats.tls, seq, payload)
            }
            Some(TxContext::Nvme { l5p, tx }) => {
                tx.transmit(l5p, &mut self.stats.nvme, seq, payload)
            }
            Some(TxContext::NvmeTls { l5p: (tls, nvme), tx }) => {
                tx.transmit((&**tls, &*nvme), &mut self.stats, seq, payload)
            }
            None => {
                self.stats.tls.tx_tls_drop_no_sync_data += 1;
                Verdict::Drop
            }
        }
    }

    /// The same for a payload in several `pieces`, into `out` of the same total length. If the
    /// packet is dropped, `out` may contain bytes in the clear.
    pub fn transmit_pieces<'p>(
        &mut self,
        key: u16,
        seq: SeqNumber,
        pieces: impl Iterator<Item = &'p [u8]>,
        out: &mut [u8],
    ) -> Verdict {
        match under(&mut self.tx, key) {
            Some(TxContext::Tls { l5p, tx }) => {
                tx.transmit_pieces(&**l5p, &mut self.stats.tls, seq, pieces, out)
            }
            Some(TxContext::Nvme { l5p, tx }) => {
                tx.transmit_pieces(l5p, &mut self.stats.nvme, seq, pieces, out)
            }
            Some(TxContext::NvmeTls { l5p: (tls, nvme), tx }) => {
                if !gather(pieces, out) {
                    tx.fail();
                }
                tx.transmit((&**tls, &*nvme), &mut self.stats, seq, out)
            }
            None => {
                self.stats.tls.tx_tls_drop_no_sync_data += 1;
                Verdict::Drop
            }
        }
    }

    /// Counts the frames of the last sealed packet, under the context of `key`; counters count
    /// each frame as a packet.
    pub fn sealed_as(&mut self, key: u16, frames: u64) {
        let stats = match under(&mut self.tx, key) {
            Some(TxContext::Tls { .. } | TxContext::NvmeTls { .. }) => &mut self.stats.tls,
            Some(TxContext::Nvme { .. }) => &mut self.stats.nvme,
            None => return,
        };
        stats.tx_tls_encrypted_packets += frames.saturating_sub(1);
    }
}

/// Returns true if the payload was rewritten; copies the bytes before the rewritten ones to
/// `out`.
fn show_head(found: &rx::Received, payload: &[u8], out: &mut [u8]) -> bool {
    if found.pass.is_some() {
        let from = found.from as usize;
        out[..from].copy_from_slice(&payload[..from]);
    }
    found.pass.is_some()
}

/// The context of `key`.
fn under(contexts: &mut [(u16, TxContext)], key: u16) -> Option<&mut TxContext> {
    contexts.iter_mut().find(|(other, _)| *other == key).map(|(_, context)| context)
}

/// One of a flow's two directions, as an index of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Receiving.
    Rx,
    /// Sending.
    Tx,
}

/// The flows of a shard.
pub struct Flows {
    flows: Vec<Option<Box<Flow>>>,
    names: HashMap<FlowKey, FlowId>,
    /// The last lookup: consecutive packets are often of one flow.
    last: Option<(FlowKey, FlowId)>,
    cache: Cache,
    /// Counters of destroyed flows.
    past: composed::Stats,
}

impl Flows {
    /// Creates an empty table, and a device with `cache_bytes` for dynamic state; [`CACHE_BYTES`]
    /// is the default.
    pub fn new(cache_bytes: usize) -> Flows {
        let cache = Cache::new(cache_bytes);
        let (flows, names) = (Vec::new(), HashMap::new());
        Flows { flows, names, last: None, cache, past: composed::Stats::default() }
    }

    /// Creates a flow without contexts; `name` is its name in received frames.
    ///
    /// # Errors
    /// [`FlowError::Exists`].
    pub fn create(&mut self, id: FlowId, name: FlowKey) -> Result<&mut Flow, FlowError> {
        let index = id.index();
        let taken = self.flows.get(index).is_some_and(Option::is_some);
        if taken || self.names.contains_key(&name) {
            return Err(FlowError::Exists);
        }
        if self.flows.len() <= index {
            self.flows.resize_with(index + 1, || None);
        }
        self.names.insert(name, id);
        Ok(self.flows[index].insert(Box::new(Flow::new(id, name))))
    }

    /// Destroys a flow with its contexts; its counters are kept in [`Flows::stats`].
    pub fn destroy(&mut self, id: FlowId) {
        if self.get(id).is_none() {
            return;
        }
        let Some(flow) = self.flows.get_mut(id.index()).and_then(Option::take) else { return };
        self.names.remove(&flow.name);
        self.last = None;
        self.past.add(&flow.stats);
        self.cache.remove(context(id, Direction::Rx));
        self.cache.remove(context(id, Direction::Tx));
    }

    /// The flow with this name.
    pub fn find(&mut self, name: &FlowKey) -> Option<FlowId> {
        if let Some((last, id)) = &self.last
            && last == name
        {
            return Some(*id);
        }
        let id = *self.names.get(name)?;
        self.last = Some((*name, id));
        Some(id)
    }

    /// The flow, without use of its context.
    pub fn get(&mut self, id: FlowId) -> Option<&mut Flow> {
        self.flows.get_mut(id.index())?.as_deref_mut().filter(|flow| flow.id == id)
    }

    /// The flow, for processing of a packet: its context is fetched if it is not in the device.
    pub fn fetch(&mut self, id: FlowId, side: Direction) -> Option<&mut Flow> {
        let flow = self.flows.get_mut(id.index())?.as_deref_mut().filter(|flow| flow.id == id)?;
        let present = match side {
            Direction::Rx => flow.rx.is_some(),
            Direction::Tx => !flow.tx.is_empty(),
        };
        if present {
            self.cache.access(context(id, side));
        }
        Some(flow)
    }

    /// Number of flows.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Counters of the TLS machines, including those of destroyed flows.
    pub fn stats(&self) -> Stats {
        self.both_stats().tls
    }

    /// Counters of the TLS and PDU machines, including those of destroyed flows.
    pub fn both_stats(&self) -> composed::Stats {
        let mut sum = self.past;
        self.flows.iter().flatten().for_each(|flow| sum.add(&flow.stats));
        sum
    }

    /// Counters of the context cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }
}

fn context(id: FlowId, side: Direction) -> u32 {
    (id.index() as u32) << 1 | u32::from(side == Direction::Tx)
}

#[cfg(test)]
mod tests {
    use unlade_nic_engine::context::CONTEXT_BYTES_MAX;
    use unlade_nic_engine::tls::Version;

    use super::*;

    fn name(port: u16) -> FlowKey {
        FlowKey::new(([10, 0, 0, 1], port).into(), ([10, 0, 0, 2], 443).into())
    }

    fn protocol() -> Protocol {
        Protocol::Tls(Box::new(Tls::new(Version::Tls13, &[7; 16], [9; 12]).unwrap()))
    }

    /// A record of TLS 1.3 with room for its tag, as software writes it.
    fn record(content: &[u8]) -> Vec<u8> {
        let mut record = vec![23, 3, 3];
        record.extend((content.len() as u16 + 17).to_be_bytes());
        record.extend(content);
        record.push(23);
        record.extend([0; 16]);
        record
    }

    #[test]
    fn what_one_flow_seals_the_other_opens() {
        let mut flows = Flows::new(CACHE_BYTES);
        let sender = flows.create(FlowId(3), name(1)).unwrap();
        sender.create_tx(protocol(), SeqNumber(100), 0, 0).unwrap();
        flows.create(FlowId(0), name(2)).unwrap().create_rx(protocol(), SeqNumber(100), 0);
        let plain = record(b"hello");
        let mut packet = plain.clone();
        let verdict =
            flows.fetch(FlowId(3), Direction::Tx).unwrap().transmit(0, SeqNumber(100), &mut packet);
        assert_eq!(verdict, Verdict::Send);
        assert_ne!(packet[5..11], plain[5..11]);
        let mut out = vec![0; packet.len()];
        let id = flows.find(&name(2)).unwrap();
        let result =
            flows.fetch(id, Direction::Rx).unwrap().receive(SeqNumber(100), &packet, &mut out);
        assert!(result.worked.is_some());
        assert_eq!(out[..11], plain[..11]);
        let stats = flows.stats();
        assert_eq!((stats.tx_tls_encrypted_packets, stats.rx_tls_decrypted_packets), (1, 1));
        assert_eq!(flows.cache_stats().misses, 2);
        flows.destroy(FlowId(3));
        assert_eq!(flows.stats(), stats);
        assert_eq!((flows.len(), flows.find(&name(1))), (1, None));
    }

    #[test]
    fn a_flow_whose_context_is_gone_seals_nothing_and_sends_nothing() {
        let mut flows = Flows::new(CACHE_BYTES);
        let flow = flows.create(FlowId(0), name(1)).unwrap();
        assert!(!flow.seals());
        flow.create_tx(protocol(), SeqNumber(0), 0, 0).unwrap();
        flow.destroy_tx(0);
        let mut packet = record(b"secret");
        assert_eq!(flow.transmit(0, SeqNumber(0), &mut packet), Verdict::Drop);
        assert!(flow.seals());
        assert_eq!(flow.stats().tls.tx_tls_drop_no_sync_data, 1);
    }

    #[test]
    fn limits_are_refused_in_order() {
        let mut flows = Flows::new(CACHE_BYTES);
        flows.create(FlowId(1), name(1)).unwrap();
        assert_eq!(flows.create(FlowId(1), name(2)).err(), Some(FlowError::Exists));
        assert_eq!(flows.create(FlowId(2), name(1)).err(), Some(FlowError::Exists));
        let successor = FlowId(1).successor();
        assert_eq!(successor, FlowId::new(1, 1));
        assert_eq!(flows.create(successor, name(2)).err(), Some(FlowError::Exists));
        assert!(flows.get(successor).is_none(), "it is another flow");
        flows.destroy(successor);
        let flow = flows.get(FlowId(1)).unwrap();
        for key in 0..TX_KEYS_MAX as u16 {
            flow.create_tx(protocol(), SeqNumber(0), 0, key).unwrap();
        }
        assert_eq!(flow.create_tx(protocol(), SeqNumber(0), 0, 1), Err(FlowError::Exists));
        assert_eq!(flow.create_tx(protocol(), SeqNumber(0), 0, 9), Err(FlowError::Keys));
        flow.destroy_tx(0);
        assert_eq!(flow.create_tx(protocol(), SeqNumber(0), 0, 9), Ok(()));
    }

    #[test]
    fn contexts_beyond_the_devices_memory_are_fetched_again() {
        let mut flows = Flows::new(2 * CONTEXT_BYTES_MAX);
        for id in 0..3 {
            flows.create(FlowId(id), name(id as u16)).unwrap().create_rx(
                protocol(),
                SeqNumber(0),
                0,
            );
        }
        for id in [0, 1, 2, 0] {
            flows.fetch(FlowId(id), Direction::Rx).unwrap();
            flows.fetch(FlowId(id), Direction::Tx).unwrap();
        }
        let stats = flows.cache_stats();
        assert_eq!((stats.hits, stats.misses, stats.evictions), (0, 4, 2));
    }

    /// Data for command `tag` whose digests are left to the device.
    fn data(tag: u16, data: &[u8]) -> Vec<u8> {
        let mut pdu = vec![7, 3 | 4 | 8, 24, 28];
        pdu.extend((28 + data.len() as u32 + 4).to_le_bytes());
        pdu.extend(tag.to_le_bytes());
        pdu.extend([0; 6]);
        pdu.extend((data.len() as u32).to_le_bytes());
        pdu.extend([0; 8]);
        pdu.extend(data);
        pdu.extend([0; 4]);
        pdu
    }

    #[test]
    fn digests_are_filled_in_then_checked_and_data_is_placed() {
        let nvme = Nvme { header_digest: true, data_digest: true, data_bytes_max: 1 << 20 };
        let mut flows = Flows::new(CACHE_BYTES);
        let flow = flows.create(FlowId(0), name(1)).unwrap();
        let start = SeqNumber(u32::MAX - 20);
        flow.create_tx(Protocol::Nvme(nvme), start, 0, 0).unwrap();
        let pdu = data(5, b"what was read");
        let mut packet = pdu.clone();
        assert_eq!(flow.transmit(0, start, &mut packet), Verdict::Send);
        assert_eq!(packet[24..28], crc32c::crc32c(&pdu[..24]).to_le_bytes());
        assert_eq!(packet[41..], crc32c::crc32c(b"what was read").to_le_bytes());
        let flow = flows.create(FlowId(1), name(2)).unwrap();
        flow.create_rx(Protocol::Nvme(nvme), start, 0);
        let registration = Registration { tag: 5, generation: 1 };
        flow.register(registration, vec![0; 13].into()).unwrap();
        let result = flow.receive(start, &packet, &mut []);
        assert!(!result.rewritten && result.worked.is_none() && result.pdus.pass.is_some());
        let placed = result.pdus.placed;
        assert_eq!(placed.as_slice().len(), 1);
        assert_eq!((placed.as_slice()[0].start, placed.as_slice()[0].end), (28, 41));
        assert_eq!(flow.withdraw(registration).unwrap()[..], *b"what was read");
        // The same again, damaged: no pass, and no buffer to write to.
        packet[30] ^= 1;
        let result = flow.receive(start + 45, &packet, &mut []);
        assert!(result.pdus.pass.is_none() && result.pdus.placed.is_empty());
    }

    #[test]
    fn a_record_with_pdus_is_sent_again_only_where_its_pdu_is_known() {
        let nvme = Nvme { header_digest: true, data_digest: true, data_bytes_max: 1 << 20 };
        // A PDU of 24 + 4 + 40 + 4 bytes, the last 44 of them in a second record.
        let mut pdu = vec![nvme::types::H2C_DATA, 3, 24, 28];
        pdu.extend(72_u32.to_le_bytes());
        pdu.resize(72, 7);
        let (first, second) = (record(&pdu[..28]), record(&pdu[28..]));
        let mut flows = Flows::new(CACHE_BYTES);
        let flow = flows.create(FlowId(0), name(1)).unwrap();
        let tls = || Box::new(Tls::new(Version::Tls13, &[7; 16], [9; 12]).unwrap());
        let start = SeqNumber(u32::MAX - 30);
        flow.create_tx(Protocol::NvmeTls(tls(), nvme), start, 0, 0).unwrap();
        let mut packet = [first.clone(), second.clone()].concat();
        let at = start + first.len() as u32;
        assert_eq!(flow.transmit(0, start, &mut packet), Verdict::Send);
        let sealed = packet[first.len()..].to_vec();

        let message = MessageState { start: at, number: 1, key: 0, bytes: &[] };
        assert!(!flow.recover(&message, None, at));
        assert_eq!(flow.transmit(0, at, &mut second.clone()), Verdict::Drop);
        // The bytes of another PDU, or too few of them.
        for bytes in [&[][..], &pdu[..27], &second[..]] {
            let before = MessageState { start: SeqNumber(0), number: 0, key: 0, bytes };
            let inner = InnerState { start: SeqNumber(28), pdu: before };
            assert!(!flow.recover(&message, Some(&inner), at), "{} bytes", bytes.len());
            assert_eq!(flow.transmit(0, at, &mut second.clone()), Verdict::Drop);
        }
        let before = MessageState { start: SeqNumber(0), number: 0, key: 0, bytes: &pdu[..28] };
        let inner = InnerState { start: SeqNumber(28), pdu: before };
        assert!(flow.recover(&message, Some(&inner), at));
        let mut out = vec![0; second.len()];
        let pieces = second.chunks(5);
        assert_eq!(flow.transmit_pieces(0, at, pieces, &mut out), Verdict::Send);
        assert_eq!(out, sealed);
        // The pieces are shorter than declared.
        assert!(flow.recover(&message, Some(&inner), at));
        let pieces = second[..9].chunks(5);
        assert_eq!(flow.transmit_pieces(0, at, pieces, &mut out), Verdict::Drop);
        let report = flow.stats();
        assert!(report.tls.tx_tls_err >= 5);
    }
}
