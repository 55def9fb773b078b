//! Direct return at a server's host: segments of a response go to the client instead of the
//! balancer.

use std::collections::HashMap as StdHashMap;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::maps::{HashMap, MapData};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use unlade_net::FlowKey;
use unlade_splice::Rule;

use crate::error::SteerError;
use crate::load::{attach_classifier, map_array, program, take};
use crate::raw_entry::SharedArray;
use crate::table::{RawKey, address_bytes};

pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/direct.bpf.o"));
pub(crate) const PROGRAM: &str = "direct_egress";

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
    reserved: AtomicU32,
    packets: AtomicU64,
    bytes: AtomicU64,
}
const _: () = assert!(size_of::<RawRule>() == 104 && align_of::<RawRule>() == 8);
const _: () = assert!(core::mem::offset_of!(RawRule, service) == 36);
const _: () = assert!(core::mem::offset_of!(RawRule, packets) == 88);

impl RawRule {
    fn reset(&self) {
        self.version.store(0, Ordering::SeqCst);
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

#[derive(Debug)]
struct Inner {
    flows: HashMap<MapData, RawKey, u32>,
    /// Index of each connection's rule.
    current: StdHashMap<FlowKey, u32>,
    free: Vec<u32>,
}

/// The rules of a host's connections.
#[derive(Debug)]
pub(crate) struct Rules {
    slots: SharedArray<RawRule>,
    inner: Mutex<Inner>,
}

impl Rules {
    pub(crate) fn new(ebpf: &mut Ebpf, flows_max: u32) -> Result<Rules, SteerError> {
        // SAFETY: `RawRule` is `struct direct_rule` of the array, all of atomic integers.
        let slots = unsafe { map_array(ebpf, "direct_rules", flows_max) }?;
        let flows = HashMap::try_from(take(ebpf, "direct_flows")?).map_err(SteerError::Map)?;
        let free = (0..flows_max).rev().collect();
        let inner = Mutex::new(Inner { flows, current: StdHashMap::new(), free });
        Ok(Rules { slots, inner })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic leaves the table consistent, since every change is one insertion or removal.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn slot(&self, index: u32) -> &RawRule {
        self.slots.get(index).expect("numbers come from acquire")
    }

    pub(crate) fn acquire(self: &Arc<Self>, flow: &FlowKey) -> Result<DirectFlow, SteerError> {
        let outgoing = FlowKey::new(flow.service, flow.client);
        let mut inner = self.lock();
        let index = inner.free.pop().ok_or(SteerError::TableFull)?;
        self.slot(index).reset();
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
    /// Attaches to an interface, for at most `flows_max` connections of balancers.
    ///
    /// # Errors
    /// [`SteerError`]; nothing stays attached.
    pub fn open(interface: &str, flows_max: u32) -> Result<DirectReturn, SteerError> {
        let mut ebpf = load(flows_max)?;
        let rules = Arc::new(Rules::new(&mut ebpf, flows_max)?);
        attach_classifier(&mut ebpf, PROGRAM, interface, TcAttachType::Egress)?;
        Ok(DirectReturn { rules, _ebpf: ebpf })
    }

    /// Allocates the rule of a connection: the balancer is its client, the server its service.
    /// Until a rule is set, all segments go to the balancer.
    ///
    /// # Errors
    /// [`SteerError::TableFull`], [`SteerError::Map`].
    pub fn acquire(&self, flow: &FlowKey) -> Result<DirectFlow, SteerError> {
        self.rules.acquire(flow)
    }
}

/// Loads the program.
pub(crate) fn load(flows_max: u32) -> Result<Ebpf, SteerError> {
    let mut ebpf = EbpfLoader::new()
        .map_max_entries("direct_flows", flows_max)
        .map_max_entries("direct_rules", flows_max)
        .load(OBJECT)?;
    let classifier: &mut SchedClassifier = program(&mut ebpf, PROGRAM)?;
    classifier.load().map_err(|source| SteerError::Program { name: PROGRAM, source })?;
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
