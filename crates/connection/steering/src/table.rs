//! Allocation of entries to flows. A full table refuses new flows; live flows are never evicted.

use std::collections::HashMap as StdHashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::{HashMap, Map, MapData, MapError};
use unlade_net::FlowKey;

use crate::error::SteerError;
use crate::raw_entry::{Mac, RawFlowEntry, SharedArray};

/// `struct flow_key` of bpf/flow_key.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct RawKey {
    client: [u8; 16],
    service: [u8; 16],
    client_port: [u8; 2],
    service_port: [u8; 2],
    family: u32,
}
const _: () = assert!(size_of::<RawKey>() == 40);

// SAFETY: repr(C), integers only, and the assertion above shows that there is no padding.
unsafe impl aya::Pod for RawKey {}

impl From<&FlowKey> for RawKey {
    fn from(flow: &FlowKey) -> RawKey {
        RawKey {
            client: address_bytes(&flow.client),
            service: address_bytes(&flow.service),
            client_port: flow.client.port().to_be_bytes(),
            service_port: flow.service.port().to_be_bytes(),
            family: if flow.is_ipv6() { 6 } else { 4 },
        }
    }
}

impl RawKey {
    /// Returns the bytes as words of memory.
    pub(crate) fn words(&self) -> [u32; 10] {
        let ports =
            [self.client_port[0], self.client_port[1], self.service_port[0], self.service_port[1]];
        let mut words = [0; 10];
        let addresses = self.client.chunks_exact(4).chain(self.service.chunks_exact(4));
        for (word, bytes) in words.iter_mut().zip(addresses.chain([&ports[..]])) {
            *word = u32::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        words[9] = self.family;
        words
    }
}

pub(crate) fn address_bytes(address: &SocketAddr) -> [u8; 16] {
    match address.ip() {
        IpAddr::V6(ip) => ip.octets(),
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
    }
}

/// `struct ipv4_key` of bpf/maps.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
struct RawIpv4Key {
    client: [u8; 4],
    service: [u8; 4],
    ports: u32,
}
const _: () = assert!(size_of::<RawIpv4Key>() == 12);

// SAFETY: repr(C), integers only, and the assertion above shows that there is no padding.
unsafe impl aya::Pod for RawIpv4Key {}

/// The maps from flows to the indices of their entries, one for each version of IP.
#[derive(Debug)]
pub(crate) struct FlowMaps {
    ipv4: HashMap<MapData, RawIpv4Key, u32>,
    ipv6: HashMap<MapData, RawKey, u32>,
}

impl FlowMaps {
    /// Names of the maps in the object.
    pub(crate) const IPV4: &str = "flows_ipv4";
    pub(crate) const IPV6: &str = "flows_ipv6";

    /// Takes the maps of these names.
    ///
    /// # Errors
    /// One is of another kind.
    pub(crate) fn new(ipv4: Map, ipv6: Map) -> Result<FlowMaps, MapError> {
        Ok(FlowMaps { ipv4: HashMap::try_from(ipv4)?, ipv6: HashMap::try_from(ipv6)? })
    }

    fn insert(&mut self, flow: &FlowKey, index: u32) -> Result<(), MapError> {
        match ipv4_key(flow) {
            Some(key) => self.ipv4.insert(key, index, 0),
            None => self.ipv6.insert(RawKey::from(flow), index, 0),
        }
    }

    fn remove(&mut self, flow: &FlowKey) -> Result<(), MapError> {
        match ipv4_key(flow) {
            Some(key) => self.ipv4.remove(&key),
            None => self.ipv6.remove(&RawKey::from(flow)),
        }
    }
}

/// Returns the key of a flow of IPv4.
fn ipv4_key(flow: &FlowKey) -> Option<RawIpv4Key> {
    let (IpAddr::V4(client), IpAddr::V4(service)) = (flow.client.ip(), flow.service.ip()) else {
        return None;
    };
    let [client_port, service_port] = [flow.client.port(), flow.service.port()].map(u16::to_be);
    let ports = u32::from(client_port) | u32::from(service_port) << 16;
    Some(RawIpv4Key { client: client.octets(), service: service.octets(), ports })
}

#[derive(Debug)]
struct Inner {
    flows: FlowMaps,
    /// Index of each flow's current entry.
    current: StdHashMap<FlowKey, u32>,
    free: Vec<u32>,
}

/// The table of flows, shared by all workers of a process.
#[derive(Debug)]
pub(crate) struct Table {
    slots: SharedArray<RawFlowEntry>,
    link_index: u32,
    link_mac: Mac,
    inner: Mutex<Inner>,
    redirected: Redirected,
}

/// Packets and bytes that released entries had redirected.
#[derive(Debug, Default)]
pub(crate) struct Redirected {
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Table {
    pub(crate) fn new(
        flows: FlowMaps,
        slots: SharedArray<RawFlowEntry>,
        count: u32,
        link_index: u32,
        link_mac: Mac,
    ) -> Table {
        let free = (0..count).rev().collect();
        let inner = Mutex::new(Inner { flows, current: StdHashMap::new(), free });
        Table { slots, link_index, link_mac, inner, redirected: Redirected::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic leaves the table consistent, since every change is one insertion or removal.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn link_index(&self) -> u32 {
        self.link_index
    }

    pub(crate) fn link_mac(&self) -> &Mac {
        &self.link_mac
    }

    /// Returns an entry by index.
    ///
    /// # Panics
    /// On an index that `acquire` did not return.
    pub(crate) fn entry(&self, index: u32) -> &RawFlowEntry {
        self.slots.get(index).expect("entry numbers come from acquire")
    }

    pub(crate) fn entry_of(&self, flow: &FlowKey) -> Option<&RawFlowEntry> {
        let index = *self.lock().current.get(flow)?;
        self.slots.get(index)
    }

    pub(crate) fn acquire(&self, flow: &FlowKey) -> Result<u32, SteerError> {
        let mut inner = self.lock();
        let index = inner.free.pop().ok_or(SteerError::TableFull)?;
        self.entry(index).reset();
        if let Err(error) = inner.flows.insert(flow, index) {
            inner.free.push(index);
            return Err(SteerError::Map(error));
        }
        // An older entry of the flow (a lingering connection) keeps its index until its handle is
        // dropped, but the key refers to the new one.
        inner.current.insert(*flow, index);
        Ok(index)
    }

    pub(crate) fn redirected(&self) -> &Redirected {
        &self.redirected
    }

    pub(crate) fn release(&self, flow: &FlowKey, index: u32) {
        let (packets, bytes) = self.entry(index).redirected();
        self.redirected.packets.fetch_add(packets, Ordering::Relaxed);
        self.redirected.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut inner = self.lock();
        if inner.current.get(flow) == Some(&index) {
            inner.current.remove(flow);
            // An absent key is not an error here.
            let _ = inner.flows.remove(flow);
        }
        inner.free.push(index);
    }

    pub(crate) fn in_use(&self) -> usize {
        self.lock().current.len()
    }
}
