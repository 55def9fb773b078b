//! Direct return at a server's host: segments of a response go to the client instead of the
//! balancer.
//!
//! Rules come in datagrams from balancers, and the program makes an entry for each connection that
//! they name. User space sets the keys, and removes the entries of connections that are idle.

use std::collections::HashMap as StdHashMap;
use std::fmt;
use std::time::{Duration, Instant};

use aya::maps::{Array, HashMap, MapData, MapError, PerCpuArray};
use aya::programs::{SchedClassifier, TcAttachType};
use aya::{Ebpf, EbpfLoader};
use unlade_splice::datagram::Key;
use unlade_sys::link::Link;

use crate::error::SteerError;
use crate::load::{attach_classifier, program, take};
use crate::table::RawKey;

pub(crate) static OBJECT: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/direct.bpf.o"));
pub(crate) const EGRESS: &str = "direct_egress";
pub(crate) const INGRESS: &str = "direct_ingress";
/// Number of keys: `KEYS_MAX` of bpf/direct.bpf.c.
pub const KEYS_MAX: u32 = 256;

/// `struct direct_rule` of bpf/direct.bpf.c.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct RawRule {
    /// Fields for the programs only.
    rule: [u32; 28],
    owner: u32,
    reserved: u32,
    counter: u64,
    packets: u64,
}
const _: () = assert!(size_of::<RawRule>() == 136);

// SAFETY: repr(C), integers only, and the assertion above shows that there is no padding.
unsafe impl aya::Pod for RawRule {}

/// `struct direct_key` of bpf/direct.bpf.c.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct RawDirectKey {
    secret: [u64; 2],
    floor: u64,
    is_valid: u32,
    reserved: u32,
}
const _: () = assert!(size_of::<RawDirectKey>() == 32);

// SAFETY: repr(C), integers only, and the assertion above shows that there is no padding.
unsafe impl aya::Pod for RawDirectKey {}

/// Datagrams with rules that a host has got.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectCounts {
    /// They are the rules of their connections.
    pub taken: u64,
    /// Wrong tags, and keys of other balancers.
    pub forged: u64,
    /// No place for another connection.
    pub full: u64,
    /// Not newer than the rule that the connection has, or than one of a removed connection.
    pub old: u64,
}

/// Segments and bytes that a host has sent to clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SentDirectly {
    /// A segment can be several packets.
    pub segments: u64,
    /// Bytes of payload.
    pub bytes: u64,
}

/// Elements of `direct_counts`: `enum direct_count` of bpf/direct.bpf.c.
#[derive(Clone, Copy)]
enum Count {
    Taken,
    Forged,
    Full,
    Old,
    Flows,
    Segments,
    Bytes,
}

/// An entry as an earlier sweep has seen it.
#[derive(Clone, Copy, Debug)]
struct Seen {
    counter: u64,
    packets: u64,
    since: Instant,
}

/// The rules of a host's connections.
pub(crate) struct Rules {
    flows: HashMap<MapData, RawKey, RawRule>,
    flows_max: u32,
    keys: Array<MapData, RawDirectKey>,
    counts: PerCpuArray<MapData, u64>,
    seen: StdHashMap<RawKey, Seen>,
    removed: u64,
}

impl fmt::Debug for Rules {
    /// Without the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules").field("flows_max", &self.flows_max).finish_non_exhaustive()
    }
}

impl Rules {
    pub(crate) fn new(ebpf: &mut Ebpf, flows_max: u32) -> Result<Rules, SteerError> {
        let flows = HashMap::try_from(take(ebpf, "direct_flows")?).map_err(SteerError::Map)?;
        let keys = Array::try_from(take(ebpf, "direct_keys")?).map_err(SteerError::Map)?;
        let counts =
            PerCpuArray::try_from(take(ebpf, "direct_counts")?).map_err(SteerError::Map)?;
        Ok(Rules { flows, flows_max, keys, counts, seen: StdHashMap::new(), removed: 0 })
    }

    pub(crate) fn set_key(&mut self, key: &Key) -> Result<(), SteerError> {
        let word = |at: usize| {
            let bytes = key.secret[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(bytes)
        };
        self.change_key(key.number, |raw| (raw.secret, raw.is_valid) = ([word(0), word(8)], 1))
    }

    pub(crate) fn remove_key(&mut self, number: u32) -> Result<(), SteerError> {
        self.change_key(number, |raw| (raw.secret, raw.is_valid) = ([0; 2], 0))
    }

    pub(crate) fn raise_floor(&mut self, number: u32, counter: u64) -> Result<(), SteerError> {
        self.change_key(number, |raw| raw.floor = raw.floor.max(counter))
    }

    fn change_key(
        &mut self,
        number: u32,
        change: impl FnOnce(&mut RawDirectKey),
    ) -> Result<(), SteerError> {
        let mut raw = self.keys.get(&number, 0).map_err(SteerError::Map)?;
        change(&mut raw);
        self.keys.set(number, raw, 0).map_err(SteerError::Map)
    }

    fn count(&self, count: Count) -> Result<u64, SteerError> {
        let values = self.counts.get(&(count as u32), 0).map_err(SteerError::Map)?;
        Ok(values.iter().sum())
    }

    pub(crate) fn counts(&self) -> Result<DirectCounts, SteerError> {
        Ok(DirectCounts {
            taken: self.count(Count::Taken)?,
            forged: self.count(Count::Forged)?,
            full: self.count(Count::Full)?,
            old: self.count(Count::Old)?,
        })
    }

    pub(crate) fn sent_directly(&self) -> Result<SentDirectly, SteerError> {
        Ok(SentDirectly {
            segments: self.count(Count::Segments)?,
            bytes: self.count(Count::Bytes)?,
        })
    }

    pub(crate) fn flows(&self) -> Result<u64, SteerError> {
        // The count of an entry follows the entry.
        Ok(self.count(Count::Flows)?.saturating_sub(self.removed))
    }

    pub(crate) fn sweep(&mut self, idle: Duration, now: Instant) -> Result<(), SteerError> {
        let mut ended = Vec::new();
        // The programs insert meanwhile, so the walk has a limit of its own.
        for element in self.flows.iter().take(self.flows_max as usize) {
            let (key, RawRule { owner, counter, packets, .. }) =
                element.map_err(SteerError::Map)?;
            let seen =
                self.seen.entry(key).or_insert_with(|| Seen { counter, packets, since: now });
            if (seen.counter, seen.packets) != (counter, packets) {
                *seen = Seen { counter, packets, since: now };
            }
            if now.duration_since(seen.since) >= idle {
                ended.push((key, owner, counter));
            }
        }
        for (key, owner, counter) in ended {
            // First, so that no replayed datagram makes the entry again. One that comes in this
            // very moment is the newest of its connection, and its rule could as well have stayed.
            self.raise_floor(owner, counter)?;
            match self.flows.remove(&key) {
                Ok(()) => self.removed += 1,
                Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(SteerError::Map(error)),
            }
            self.seen.remove(&key);
        }
        Ok(())
    }
}

/// Direct return of one interface; dropping it detaches the programs.
#[derive(Debug)]
pub struct DirectReturn {
    rules: Rules,
    /// Keeps programs and links alive.
    _ebpf: Ebpf,
}

impl DirectReturn {
    /// Attaches to an interface, for at most `flows_max` connections of balancers. Rules come in
    /// datagrams to UDP port `port`; no socket gets them.
    ///
    /// # Errors
    /// [`SteerError`]; nothing stays attached.
    pub fn open(interface: &str, port: u16, flows_max: u32) -> Result<DirectReturn, SteerError> {
        let link = Link::by_name(interface).map_err(SteerError::Link)?;
        let mut ebpf = load(port, flows_max)?;
        let rules = Rules::new(&mut ebpf, flows_max)?;
        attach_classifier(&mut ebpf, EGRESS, &link.name, TcAttachType::Egress)?;
        attach_classifier(&mut ebpf, INGRESS, &link.name, TcAttachType::Ingress)?;
        Ok(DirectReturn { rules, _ebpf: ebpf })
    }

    /// Accepts rules with a key. Its number is below [`KEYS_MAX`].
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn set_key(&mut self, key: &Key) -> Result<(), SteerError> {
        self.rules.set_key(key)
    }

    /// Accepts no more rules with a key. Rules that were taken stay.
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn remove_key(&mut self, number: u32) -> Result<(), SteerError> {
        self.rules.remove_key(number)
    }

    /// Refuses datagrams with the key of this number whose own numbers are at most `counter`, as
    /// old ones: also those that name a connection without an entry.
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn raise_floor(&mut self, number: u32, counter: u64) -> Result<(), SteerError> {
        self.rules.raise_floor(number, counter)
    }

    /// Returns the datagrams since the start.
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn counts(&self) -> Result<DirectCounts, SteerError> {
        self.rules.counts()
    }

    /// Returns the segments and bytes of all connections since the start.
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn sent_directly(&self) -> Result<SentDirectly, SteerError> {
        self.rules.sent_directly()
    }

    /// Returns the number of connections with an entry.
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn flows(&self) -> Result<u64, SteerError> {
        self.rules.flows()
    }

    /// Removes the entries of connections that got no rule and sent no segment directly for a
    /// time. Changes are noticed from one call to the next, so calls are several to an `idle`.
    ///
    /// An entry takes two system calls. Datagrams that are not newer than the newest one of a
    /// removed entry are old from then on.
    ///
    /// # Errors
    /// [`SteerError::Map`]; the next call does the rest.
    pub fn sweep(&mut self, idle: Duration) -> Result<(), SteerError> {
        self.rules.sweep(idle, Instant::now())
    }
}

/// Loads the programs.
pub(crate) fn load(port: u16, flows_max: u32) -> Result<Ebpf, SteerError> {
    let mut ebpf = EbpfLoader::new()
        .override_global("direct_port", &port.to_be(), true)
        .map_max_entries("direct_flows", flows_max)
        .load(OBJECT)?;
    for name in [EGRESS, INGRESS] {
        let classifier: &mut SchedClassifier = program(&mut ebpf, name)?;
        classifier.load().map_err(|source| SteerError::Program { name, source })?;
    }
    Ok(ebpf)
}
