//! The memory that the programs of a balancer's splices share with this process, and the slots in it.

use std::collections::{HashMap as StdHashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use aya::Ebpf;
use aya::maps::{HashMap, MapData, PerCpuArray};
use unlade_net::FlowKey;

use crate::error::SteerError;
use crate::raw_entry::SharedArray;
use crate::table::RawKey;

/// Most workers: `LOCKS_MAX` of bpf/splice.bpf.c.
pub const WORKERS_MAX: u32 = 256;
/// `NONE` of bpf/splice.bpf.c.
pub(crate) const NONE: u32 = u32::MAX;
/// Time for which the addresses of a closed connection keep its state: segments of its end are
/// translated, and TIME-WAIT is over (RFC 9293 §3.6.1; Linux waits for 60 s).
const LINGER: Duration = Duration::from_secs(61);

/// `struct splice_head` of bpf/splice.bpf.c.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawHead {
    pub(crate) key: [AtomicU32; 10],
    pub(crate) lock: AtomicU32,
    pub(crate) is_open: AtomicU32,
    pub(crate) peer: AtomicU32,
    pub(crate) ifindex: AtomicU32,
    pub(crate) mac: [AtomicU8; 12],
    pub(crate) reserved: AtomicU32,
}

/// `struct splice_client_slot`: the flow is a `RawClient`, the splice a `RawSplice`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawClientSlot {
    pub(crate) head: RawHead,
    pub(crate) flow: [AtomicU32; 20],
    pub(crate) splice: [AtomicU32; 16],
    pub(crate) head_ns: AtomicU64,
    pub(crate) end_ns: AtomicU64,
    pub(crate) sent_ns: AtomicU64,
}

/// `struct splice_server_slot`: the flow is a `RawServer`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawServerSlot {
    pub(crate) head: RawHead,
    pub(crate) flow: [AtomicU32; 22],
    pub(crate) wish: RawWish,
}

/// `struct splice_wish`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawWish {
    pub(crate) state: AtomicU32,
    pub(crate) client: AtomicU32,
    pub(crate) request_bytes: AtomicU32,
    pub(crate) expected_bytes: AtomicU32,
    pub(crate) is_sealed: AtomicU32,
    pub(crate) reserved: AtomicU32,
}

/// `struct splice_request` of bpf/splice_control.h.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawRequest {
    pub(crate) operation: AtomicU32,
    pub(crate) result: AtomicU32,
    pub(crate) client: AtomicU32,
    pub(crate) server: AtomicU32,
    pub(crate) has_length: AtomicU32,
    pub(crate) length_bytes: AtomicU32,
    pub(crate) is_reusable: AtomicU32,
    pub(crate) limit_bytes: AtomicU32,
    pub(crate) is_ordered: AtomicU32,
    pub(crate) is_forced: AtomicU32,
    pub(crate) awaits_head: AtomicU32,
    pub(crate) expected_bytes: AtomicU32,
    pub(crate) unsent_bytes: AtomicU32,
    pub(crate) has_agent: AtomicU32,
    pub(crate) rule: [AtomicU32; 12],
    pub(crate) secret: [AtomicU64; 2],
    pub(crate) counter: AtomicU64,
    pub(crate) key: AtomicU32,
    pub(crate) udp_sum: AtomicU32,
}

const _: () = assert!(size_of::<RawHead>() == 72 && size_of::<RawClientSlot>() == 240);
const _: () = assert!(size_of::<RawServerSlot>() == 184 && size_of::<RawRequest>() == 136);
/// Words of `flow` and `splice` that the process reads.
pub(crate) const BYPASSED: usize = 0;
pub(crate) const SENT_END: usize = 1;
pub(crate) const ACKED: usize = 2;
pub(crate) const HOLD: usize = 11;
pub(crate) const CLIENT_HAS_CLOCK: usize = 12;
pub(crate) const SERVER_HAS_CLOCK: usize = 14;
pub(crate) const SERVER_LIMIT: usize = 9;
pub(crate) const CLIENT_SHIFT: usize = 13;
pub(crate) const SERVER_SHIFT: usize = 15;
pub(crate) const IS_ACTIVE: usize = 0;
pub(crate) const FIRST: usize = 1;
pub(crate) const END: usize = 2;
pub(crate) const IS_COMPLETE: usize = 5;
pub(crate) const OWES_ACK: usize = 6;
pub(crate) const AWAITS_HEAD: usize = 7;
pub(crate) const HEAD_BYTES: usize = 8;
pub(crate) const FORWARDED_BYTES: usize = 10;
pub(crate) const STATUS: usize = 14;
pub(crate) const IS_SEALED: usize = 15;

/// `enum splice_hold` of bpf/splice_types.h.
pub(crate) const HOLD_OFF: u32 = 0;
pub(crate) const HOLD_ARMED: u32 = 1;
pub(crate) const HOLD_KEPT: u32 = 2;

/// `enum wish_state` of bpf/splice.bpf.c.
pub(crate) const WISH_NONE: u32 = 0;
pub(crate) const WISH_MADE: u32 = 1;
pub(crate) const WISH_BEGUN: u32 = 2;
pub(crate) const WISH_UNFIT: u32 = 3;

#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) flows: HashMap<MapData, RawKey, u32>,
    pub(crate) clients: Slots,
    pub(crate) servers: Slots,
}

/// Numbers of the slots of one kind.
#[derive(Debug)]
pub(crate) struct Slots {
    pub(crate) free: Vec<u32>,
    /// Slots of connections that are open, and of those that have ended.
    pub(crate) current: StdHashMap<FlowKey, u32>,
    pub(crate) ended: VecDeque<(Instant, FlowKey, u32)>,
}

impl Slots {
    pub(crate) fn new(count: u32) -> Slots {
        let free = (0..count).rev().collect();
        Slots { free, current: StdHashMap::new(), ended: VecDeque::new() }
    }
}

pub(crate) struct Shared {
    pub(crate) ebpf: Ebpf,
    pub(crate) clients: SharedArray<RawClientSlot>,
    pub(crate) servers: SharedArray<RawServerSlot>,
    pub(crate) requests: SharedArray<RawRequest>,
    pub(crate) ports: SharedArray<AtomicU64>,
    pub(crate) table: Mutex<Table>,
    pub(crate) workers: [AtomicBool; WORKERS_MAX as usize],
    pub(crate) counts: PerCpuArray<MapData, u64>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("table", &self.table).finish_non_exhaustive()
    }
}

/// Returns the key of a connection's packets that arrive.
fn arriving(flow: &FlowKey, is_server: bool) -> RawKey {
    if is_server {
        RawKey::from(&FlowKey::new(flow.service, flow.client))
    } else {
        RawKey::from(flow)
    }
}

impl Shared {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Table> {
        // A panic leaves the table consistent, since every change is one insertion or removal.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn client(&self, index: u32) -> &RawClientSlot {
        self.clients.get(index).expect("numbers come from acquire")
    }

    pub(crate) fn server(&self, index: u32) -> &RawServerSlot {
        self.servers.get(index).expect("numbers come from acquire")
    }

    pub(crate) fn head(&self, index: u32, is_server: bool) -> &RawHead {
        if is_server { &self.server(index).head } else { &self.client(index).head }
    }

    /// Returns true if the connection of the slot bypassed bytes or time, or its client has bytes of
    /// another host that the socket does not know of.
    pub(crate) fn has_bypassed(&self, index: u32, is_server: bool) -> bool {
        let (flow, shift): (&[AtomicU32], usize) = if is_server {
            (&self.server(index).flow, SERVER_SHIFT)
        } else {
            (&self.client(index).flow, CLIENT_SHIFT)
        };
        [BYPASSED, shift].iter().any(|at| flow[*at].load(Ordering::Relaxed) != 0)
            || (!is_server && self.is_ahead(index))
    }

    /// Returns true if the client has acknowledged bytes that its socket has not sent.
    pub(crate) fn is_ahead(&self, index: u32) -> bool {
        let flow = &self.client(index).flow;
        let [acked, sent_end] = [ACKED, SENT_END].map(|at| flow[at].load(Ordering::Relaxed));
        sent_end.wrapping_sub(acked) > u32::MAX / 2
    }

    /// Returns a slot: that of earlier connections of the same addresses, or a free one.
    pub(crate) fn acquire(
        &self,
        flow: &FlowKey,
        is_server: bool,
        worker: u32,
    ) -> Result<u32, SteerError> {
        let mut table = self.lock();
        let now = Instant::now();
        let Table { flows, clients, servers } = &mut *table;
        let slots = if is_server { servers } else { clients };
        while let Some((since, _, _)) = slots.ended.front()
            && (now.duration_since(*since) > LINGER || slots.free.is_empty())
        {
            let (_, flow, index) = slots.ended.pop_front().expect("it has a front");
            if slots.current.get(&flow) == Some(&index) {
                slots.current.remove(&flow);
                self.remove(flows, &flow, is_server);
                slots.free.push(index);
            }
        }
        if let Some(index) = slots.current.get(flow).copied() {
            slots.ended.retain(|(_, _, ended)| *ended != index);
            self.head(index, is_server).lock.store(worker, Ordering::SeqCst);
            return Ok(index);
        }
        let index = slots.free.pop().ok_or(SteerError::TableFull)?;
        self.reset(index, is_server, &arriving(flow, is_server), worker);
        let value = index << 1 | u32::from(is_server);
        if let Err(error) = flows.insert(arriving(flow, is_server), value, 0) {
            slots.free.push(index);
            return Err(SteerError::Map(error));
        }
        self.connections_of(flow).fetch_add(1, Ordering::SeqCst);
        slots.current.insert(*flow, index);
        Ok(index)
    }

    /// Returns the number of connections with the ports of this one, or with others that are not
    /// told apart: an element of `splice_ports` in bpf/splice.bpf.c.
    pub(crate) fn connections_of(&self, flow: &FlowKey) -> &AtomicU64 {
        let ports = flow.client.port().to_be() ^ flow.service.port().to_be();
        self.ports.get(ports.into()).expect("there is one for each number of 16 bits")
    }

    pub(crate) fn remove(
        &self,
        flows: &mut HashMap<MapData, RawKey, u32>,
        flow: &FlowKey,
        is_server: bool,
    ) {
        // An absent key is not an error here.
        let _ = flows.remove(&arriving(flow, is_server));
        self.connections_of(flow).fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn reset(&self, index: u32, is_server: bool, key: &RawKey, worker: u32) {
        let head = self.head(index, is_server);
        head.is_open.store(0, Ordering::SeqCst);
        head.key.iter().zip(key.words()).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        head.lock.store(worker, Ordering::Relaxed);
        head.peer.store(NONE, Ordering::Relaxed);
        head.ifindex.store(0, Ordering::Relaxed);
        let clear = |words: &[AtomicU32]| {
            words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        };
        if is_server {
            clear(&self.server(index).flow);
            self.server(index).wish.state.store(WISH_NONE, Ordering::Relaxed);
        } else {
            let slot = self.client(index);
            clear(&slot.flow);
            clear(&slot.splice);
        }
    }

    pub(crate) fn release(&self, flow: &FlowKey, index: u32, is_server: bool) {
        let mut table = self.lock();
        let Table { flows, clients, servers } = &mut *table;
        let slots = if is_server { servers } else { clients };
        if self.has_bypassed(index, is_server) {
            // Another connection can have the same addresses soon.
            self.head(index, is_server).peer.store(NONE, Ordering::SeqCst);
            match is_server {
                true => {
                    self.server(index).wish.state.store(WISH_NONE, Ordering::SeqCst);
                    self.server(index).flow[SERVER_LIMIT].store(0, Ordering::SeqCst);
                }
                false => self.client(index).splice[IS_ACTIVE].store(0, Ordering::SeqCst),
            }
            slots.ended.push_back((Instant::now(), *flow, index));
            return;
        }
        self.head(index, is_server).is_open.store(0, Ordering::SeqCst);
        slots.current.remove(flow);
        self.remove(flows, flow, is_server);
        slots.free.push(index);
    }
}
