//! Direct return at a server's host: segments of a response go to the client instead of the
//! balancer.

use std::collections::HashMap as StdHashMap;
use std::fmt;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{Array, HashMap, MapData};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use unlade_net::FlowKey;
use unlade_splice::Rule;
use unlade_splice::datagram::Key;

use crate::error::SteerError;
use crate::load::{attach_classifier, map_array, program, take};
use crate::raw_entry::SharedArray;
use crate::table::{RawKey, address_bytes};

pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/direct.bpf.o"));
pub(crate) const EGRESS: &str = "direct_egress";
pub(crate) const INGRESS: &str = "direct_ingress";
/// Number of keys: `KEYS_MAX` of bpf/direct.bpf.c.
pub const KEYS_MAX: u32 = 256;

/// `struct direct_rule` of bpf/direct.bpf.c.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct RawRule {
    version: AtomicU32,
    first: AtomicU32,
    end: AtomicU32,
    request_end: AtomicU32,
    delta: AtomicU32,
    ack: AtomicU32,
    clock_offset: AtomicU32,
    echo: AtomicU32,
    window: AtomicU16,
    has_end: AtomicU8,
    has_clock: AtomicU8,
    service: [AtomicU8; 16],
    client: [AtomicU8; 16],
    service_port: [AtomicU8; 2],
    client_port: [AtomicU8; 2],
    sent_end: AtomicU32,
    sent_known: AtomicU32,
    owner: AtomicU32,
    counter: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
}
const _: () = assert!(size_of::<RawRule>() == 112 && align_of::<RawRule>() == 8);
const _: () = assert!(core::mem::offset_of!(RawRule, service) == 36);
const _: () = assert!(core::mem::offset_of!(RawRule, counter) == 88);

impl RawRule {
    fn reset(&self, owner: u32, counter: u64) {
        self.version.store(0, Ordering::SeqCst);
        self.owner.store(owner, Ordering::Relaxed);
        self.counter.store(counter, Ordering::Relaxed);
        self.sent_known.store(0, Ordering::Relaxed);
        self.packets.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Writes a rule. The version is odd meanwhile, and another one afterwards: a program that
    /// reads fields of two rules notices it.
    fn set(&self, rule: &Rule, flow: &FlowKey) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version | 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let words = [
            (&self.first, rule.first.0),
            (&self.end, rule.end.unwrap_or_default().0),
            (&self.request_end, rule.request_end.0),
            (&self.delta, rule.delta),
            (&self.ack, rule.ack.0),
            (&self.clock_offset, rule.clock.unwrap_or_default().0),
            (&self.echo, rule.clock.unwrap_or_default().1),
        ];
        words.into_iter().for_each(|(field, value)| field.store(value, Ordering::Relaxed));
        self.window.store(rule.window, Ordering::Relaxed);
        self.has_end.store(rule.end.is_some().into(), Ordering::Relaxed);
        self.has_clock.store(rule.clock.is_some().into(), Ordering::Relaxed);
        let texts: [(&[AtomicU8], &[u8]); 4] = [
            (&self.service, &address_bytes(&flow.service)),
            (&self.client, &address_bytes(&flow.client)),
            (&self.service_port, &flow.service.port().to_be_bytes()),
            (&self.client_port, &flow.client.port().to_be_bytes()),
        ];
        for (fields, bytes) in texts {
            fields
                .iter()
                .zip(bytes)
                .for_each(|(field, byte)| field.store(*byte, Ordering::Relaxed));
        }
        fence(Ordering::SeqCst);
        // 0 stands for no rule.
        let next = (version | 1).wrapping_add(1);
        self.version.store(if next == 0 { 2 } else { next }, Ordering::SeqCst);
    }

    fn clear(&self) {
        self.version.store(0, Ordering::SeqCst);
    }
}

/// `struct direct_key` of bpf/direct.bpf.c.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct RawDirectKey {
    secret: [u64; 2],
    is_valid: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<RawDirectKey>() == 24);

// SAFETY: repr(C), integers only, and the assertion above shows that there is no padding.
unsafe impl aya::Pod for RawDirectKey {}

/// Datagrams with rules that a host has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounts {
    /// They are the rules of their connections.
    pub taken: u64,
    /// Wrong tags, and keys of other balancers.
    pub forged: u64,
    /// No such connection.
    pub unknown: u64,
    /// Older than the rule that the connection has.
    pub old: u64,
}

#[derive(Debug)]
struct Inner {
    flows: HashMap<MapData, RawKey, u32>,
    /// Index of each connection's rule.
    current: StdHashMap<FlowKey, u32>,
    free: Vec<u32>,
}

/// The rules of a host's connections.
pub(crate) struct Rules {
    slots: SharedArray<RawRule>,
    inner: Mutex<Inner>,
    keys: Mutex<Array<MapData, RawDirectKey>>,
    counts: Array<MapData, u64>,
}

impl fmt::Debug for Rules {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl Rules {
    pub(crate) fn new(ebpf: &mut Ebpf, flows_max: u32) -> Result<Rules, SteerError> {
        // SAFETY: `RawRule` is `struct direct_rule` of the array, all of atomic integers.
        let slots = unsafe { map_array(ebpf, "direct_rules", flows_max) }?;
        let flows = HashMap::try_from(take(ebpf, "direct_flows")?).map_err(SteerError::Map)?;
        let free = (0..flows_max).rev().collect();
        let inner = Mutex::new(Inner { flows, current: StdHashMap::new(), free });
        let keys = Array::try_from(take(ebpf, "direct_keys")?).map_err(SteerError::Map)?;
        let counts = Array::try_from(take(ebpf, "direct_counts")?).map_err(SteerError::Map)?;
        Ok(Rules { slots, inner, keys: Mutex::new(keys), counts })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic leaves the table consistent, since every change is one insertion or removal.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, index: u32) -> &RawRule {
        self.slots.get(index).expect("numbers come from acquire")
    }

    pub(crate) fn set_key(&self, key: &Key) -> Result<(), SteerError> {
        let word = |at: usize| {
            let bytes = key.secret[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        let raw = RawDirectKey { secret: [word(0), word(8)], is_valid: 1, reserved: 0 };
        self.write_key(key.number, raw)
    }

    pub(crate) fn remove_key(&self, number: u32) -> Result<(), SteerError> {
        self.write_key(number, RawDirectKey::default())
    }

    fn write_key(&self, number: u32, raw: RawDirectKey) -> Result<(), SteerError> {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.set(number, raw, 0).map_err(SteerError::Map)
    }

    /// Returns how many datagrams were taken, forged, of unknown connections, and old.
    pub(crate) fn counts(&self) -> Result<DirectCounts, SteerError> {
        let get = |number: u32| self.counts.get(&number, 0).map_err(SteerError::Map);
        Ok(DirectCounts { taken: get(0)?, forged: get(1)?, unknown: get(2)?, old: get(3)? })
    }

    pub(crate) fn acquire(
        self: &Arc<Self>,
        flow: &FlowKey,
        owner: u32,
        counter: u64,
    ) -> Result<DirectFlow, SteerError> {
        let outgoing = FlowKey::new(flow.service, flow.client);
        let mut inner = self.lock();
        let index = inner.free.pop().ok_or(SteerError::TableFull)?;
        self.slot(index).reset(owner, counter);
        if let Err(error) = inner.flows.insert(RawKey::from(&outgoing), index, 0) {
            inner.free.push(index);
            return Err(SteerError::Map(error));
        }
        inner.current.insert(outgoing, index);
        Ok(DirectFlow { rules: Arc::clone(self), index, outgoing })
    }
}

/// Direct return of one interface; dropping the last reference detaches the program.
#[derive(Debug)]
pub struct DirectReturn {
    rules: Arc<Rules>,
    /// Keeps program and link alive.
    _ebpf: Ebpf,
}

impl DirectReturn {
    /// Attaches to an interface, for at most `flows_max` connections of balancers. Rules come in
    /// datagrams to UDP port `port`; no socket gets them.
    ///
    /// # Errors
    /// [`SteerError`]; nothing stays attached.
    pub fn open(interface: &str, port: u16, flows_max: u32) -> Result<DirectReturn, SteerError> {
        let mut ebpf = load(port, flows_max)?;
        let rules = Arc::new(Rules::new(&mut ebpf, flows_max)?);
        attach_classifier(&mut ebpf, EGRESS, interface, TcAttachType::Egress)?;
        attach_classifier(&mut ebpf, INGRESS, interface, TcAttachType::Ingress)?;
        Ok(DirectReturn { rules, _ebpf: ebpf })
    }

    /// Accepts rules with a key. Its number is below [`KEYS_MAX`].
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn set_key(&self, key: &Key) -> Result<(), SteerError> {
        self.rules.set_key(key)
    }

    /// Accepts no more rules with a key.
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn remove_key(&self, number: u32) -> Result<(), SteerError> {
        self.rules.remove_key(number)
    }

    /// Returns the datagrams since the start.
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn counts(&self) -> Result<DirectCounts, SteerError> {
        self.rules.counts()
    }

    /// Allocates the rule of a connection: the balancer is its client, the server its service.
    /// Rules come from the balancer with key `owner`, and have numbers above `counter`. Until a
    /// rule comes, all segments go to the balancer.
    ///
    /// # Errors
    /// [`SteerError::TableFull`], [`SteerError::Map`].
    pub fn acquire(
        &self,
        flow: &FlowKey,
        owner: u32,
        counter: u64,
    ) -> Result<DirectFlow, SteerError> {
        self.rules.acquire(flow, owner, counter)
    }
}

/// Loads the programs.
pub(crate) fn load(port: u16, flows_max: u32) -> Result<Ebpf, SteerError> {
    let mut ebpf = EbpfLoader::new()
        .override_global("direct_port", &port.to_be(), true)
        .map_max_entries("direct_flows", flows_max)
        .map_max_entries("direct_rules", flows_max)
        .load(OBJECT)?;
    for name in [EGRESS, INGRESS] {
        let classifier: &mut SchedClassifier = program(&mut ebpf, name)?;
        classifier.load().map_err(|source| SteerError::Program { name, source })?;
    }
    Ok(ebpf)
}

/// The rule of one connection; dropping it sends all segments to the balancer.
#[derive(Debug)]
pub struct DirectFlow {
    rules: Arc<Rules>,
    index: u32,
    outgoing: FlowKey,
}

impl DirectFlow {
    /// Sets the rule: segments of the response become segments of `client`'s connection, in which
    /// the balancer is the service. Both connections have addresses of one family.
    pub fn set(&self, rule: &Rule, client: &FlowKey) {
        if client.is_ipv6() == self.outgoing.is_ipv6() {
            self.rules.slot(self.index).set(rule, client);
        }
    }

    /// Removes the rule.
    pub fn clear(&self) {
        self.rules.slot(self.index).clear();
    }

    /// Returns the number of segments and of payload bytes that went to clients. A segment can be
    /// several packets.
    pub fn sent_directly(&self) -> (u64, u64) {
        let slot = self.rules.slot(self.index);
        (slot.packets.load(Ordering::Relaxed), slot.bytes.load(Ordering::Relaxed))
    }
}

impl Drop for DirectFlow {
    fn drop(&mut self) {
        self.clear();
        let mut inner = self.rules.lock();
        if inner.current.get(&self.outgoing) == Some(&self.index) {
            inner.current.remove(&self.outgoing);
            // An absent key is not an error here.
            let _ = inner.flows.remove(&RawKey::from(&self.outgoing));
        }
        inner.free.push(self.index);
    }
}
