//! State of one flow, in memory shared with the eBPF programs.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use unlade_net::{FlowKey, SeqNumber};

use crate::table::Table;
use crate::tracking::TrackedState;

/// A hardware address.
pub type Mac = [u8; 6];

/// State of a flow: `enum flow_state` of bpf/maps.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum FlowState {
    /// Packets go to this host's stack.
    Local = 0,
    /// Packets wait in the hold device.
    Hold = 1,
    /// Packets go to another host on the link.
    Redirect = 2,
    /// Like `Redirect`, but a new SYN goes to this host's stack.
    Linger = 3,
    /// Like `Hold` until the client acknowledges data that only the next owner can have sent; then
    /// packets go to that owner.
    Offered = 4,
}

/// `struct tracked_state` of bpf/maps.h.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct RawTrackedState {
    known: AtomicU32,
    last_ack: AtomicU32,
    last_seq: AtomicU32,
    last_window: AtomicU32,
    window_max: AtomicU32,
    receive_window: AtomicU32,
    receive_max: AtomicU32,
    shift: AtomicU32,
}

/// `struct flow_entry` of bpf/maps.h.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct RawFlowEntry {
    state: AtomicU32,
    offered_at: AtomicU32,
    mac: [AtomicU8; 12],
    ifindex: AtomicU32,
    held: AtomicU32,
    replayed: AtomicU32,
    packets: AtomicU64,
    bytes: AtomicU64,
    tracked: RawTrackedState,
}
const _: () = assert!(size_of::<RawFlowEntry>() == 80 && align_of::<RawFlowEntry>() == 8);
const _: () = assert!(core::mem::offset_of!(RawFlowEntry, packets) == 32);
const _: () = assert!(core::mem::offset_of!(RawFlowEntry, tracked) == 48);

impl RawTrackedState {
    fn forget(&self) {
        self.known.store(0, Ordering::SeqCst);
    }

    fn set(&self, tracked: &TrackedState) {
        self.forget();
        let fields = [
            (&self.last_ack, tracked.last_ack.0),
            (&self.last_seq, tracked.last_seq.0),
            (&self.last_window, tracked.last_window.into()),
            (&self.window_max, tracked.window_max_bytes),
            (&self.receive_window, tracked.receive_window_bytes),
            (&self.receive_max, tracked.receive_max_bytes),
            (&self.shift, tracked.shift.into()),
        ];
        for (field, value) in fields {
            field.store(value, Ordering::Relaxed);
        }
        self.known.store(1, Ordering::SeqCst);
    }

    fn get(&self) -> Option<TrackedState> {
        let read = |field: &AtomicU32| field.load(Ordering::Relaxed);
        (self.known.load(Ordering::Acquire) != 0).then(|| TrackedState {
            last_ack: SeqNumber(read(&self.last_ack)),
            last_seq: SeqNumber(read(&self.last_seq)),
            last_window: read(&self.last_window) as u16,
            window_max_bytes: read(&self.window_max),
            receive_window_bytes: read(&self.receive_window),
            receive_max_bytes: read(&self.receive_max),
            shift: read(&self.shift) as u8,
        })
    }
}

/// The shared array, mapped for the lifetime of the process's steering.
#[derive(Debug)]
pub(crate) struct FlowEntryArray {
    base: NonNull<RawFlowEntry>,
    bytes: usize,
    count: u32,
}

// SAFETY: all access to the mapping is through atomics, which any thread may use.
unsafe impl Send for FlowEntryArray {}
// SAFETY: as above.
unsafe impl Sync for FlowEntryArray {}

impl FlowEntryArray {
    /// Takes ownership of a mapping of `count` entries.
    ///
    /// # Safety
    /// `base` must be a shared, writable mapping of `bytes` bytes, at least `count` entries long,
    /// that nothing else unmaps.
    pub(crate) unsafe fn new(base: NonNull<u8>, bytes: usize, count: u32) -> FlowEntryArray {
        FlowEntryArray { base: base.cast(), bytes, count }
    }

    pub(crate) fn get(&self, index: u32) -> Option<&RawFlowEntry> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `index` is inside the mapping (constructor's contract), which is valid as long as
        // `self`; every field is an atomic, so shared access is free of data races.
        Some(unsafe { self.base.add(index as usize).as_ref() })
    }
}

impl Drop for FlowEntryArray {
    fn drop(&mut self) {
        // SAFETY: this value owns the mapping, and no reference outlives it.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

impl RawFlowEntry {
    pub(crate) fn reset(&self) {
        self.state.store(FlowState::Local as u32, Ordering::Release);
        self.tracked.forget();
        self.held.store(0, Ordering::Relaxed);
        self.replayed.store(0, Ordering::Relaxed);
        self.packets.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Returns the number of redirected packets and bytes.
    pub(crate) fn redirected(&self) -> (u64, u64) {
        (self.packets.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn state(&self) -> FlowState {
        match self.state.load(Ordering::Acquire) {
            1 => FlowState::Hold,
            2 => FlowState::Redirect,
            3 => FlowState::Linger,
            4 => FlowState::Offered,
            _ => FlowState::Local,
        }
    }

    /// Returns true if packets of the flow wait for an owner.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.state(), FlowState::Hold | FlowState::Offered)
    }

    fn has_owner(&self, owner: &Mac) -> bool {
        let bytes = self.mac.iter().map(|byte| byte.load(Ordering::Relaxed));
        bytes.take(6).eq(owner.iter().copied())
    }

    /// Returns true if the flow is redirected to the host with this hardware address.
    pub(crate) fn is_owner(&self, source: &[u8]) -> bool {
        let owner = source.first_chunk::<6>();
        self.state() == FlowState::Redirect && owner.is_some_and(|owner| self.has_owner(owner))
    }

    fn set_state(&self, state: FlowState) {
        self.state.store(state as u32, Ordering::SeqCst);
    }

    /// Returns the weight of the frames in the hold device or queue: their bytes of payload, and 1
    /// for a frame without payload.
    pub(crate) fn waiting(&self) -> u32 {
        let replayed = self.replayed.load(Ordering::Acquire);
        self.held.load(Ordering::Acquire).wrapping_sub(replayed)
    }

    /// Counts frames of this weight as no longer waiting, because they were written back or lost. A
    /// frame that arrives after it was counted as lost must not count twice: the sum is limited to
    /// the waiting weight, as the programs would otherwise hold the flow for ever.
    pub(crate) fn count_replayed(&self, weight: u32) {
        let count = |replayed: u32| {
            let waiting = self.held.load(Ordering::Acquire).wrapping_sub(replayed);
            Some(replayed.wrapping_add(weight.min(waiting)))
        };
        // This cannot fail, since `count` always returns a value.
        let _ = self.replayed.fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
    }
}

/// Counters of a flow and its tracked state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCounters {
    /// Number of redirected packets.
    pub packets: u64,
    /// Number of redirected bytes, including headers.
    pub bytes: u64,
    /// Weight of the packets sent to the hold device since the entry was allocated: bytes of
    /// payload, and 1 for a packet without payload.
    pub held: u32,
    /// Tracked state of the connection; None before [`FlowEntry::track`].
    pub tracked: Option<TrackedState>,
}

/// Handle of a flow's entry, which controls the destination of its packets. Dropping it returns the
/// flow to the local stack and frees the entry.
#[derive(Debug)]
pub struct FlowEntry {
    table: Arc<Table>,
    index: u32,
    flow: FlowKey,
}

impl FlowEntry {
    pub(crate) fn new(table: Arc<Table>, index: u32, flow: FlowKey) -> FlowEntry {
        FlowEntry { table, index, flow }
    }

    fn raw(&self) -> &RawFlowEntry {
        self.table.entry(self.index)
    }

    /// Returns the flow.
    pub fn flow(&self) -> &FlowKey {
        &self.flow
    }

    /// Returns the state. A lingering flow becomes local when its client reconnects.
    pub fn state(&self) -> FlowState {
        self.raw().state()
    }

    /// Holds further packets in the hold device.
    pub fn hold(&self) {
        self.raw().set_state(FlowState::Hold);
    }

    /// Sends further packets to this host's stack, after the waiting ones are replayed.
    pub fn local(&self) {
        self.raw().set_state(FlowState::Local);
    }

    /// Sends further packets to `owner` on the link, after the waiting ones are replayed.
    ///
    /// The programs read the address without a lock in other states than `Hold` and `Local`. If it
    /// changes, the flow is therefore held for a moment.
    pub fn redirect(&self, owner: Mac) {
        let raw = self.raw();
        if raw.state() != FlowState::Offered || !raw.has_owner(&owner) {
            self.set_owner(owner);
        }
        raw.set_state(FlowState::Redirect);
    }

    /// Holds further packets until `owner` has the flow: until [`FlowEntry::redirect`] is called,
    /// or the client acknowledges data beyond `sent`.
    pub fn offer(&self, owner: Mac, sent: SeqNumber) {
        let raw = self.raw();
        self.set_owner(owner);
        raw.offered_at.store(sent.0, Ordering::Relaxed);
        raw.set_state(FlowState::Offered);
    }

    fn set_owner(&self, owner: Mac) {
        let raw = self.raw();
        if !matches!(raw.state(), FlowState::Hold | FlowState::Local) {
            raw.set_state(FlowState::Hold);
        }
        let addresses = owner.iter().chain(self.table.link_mac());
        for (to, from) in raw.mac.iter().zip(addresses) {
            to.store(*from, Ordering::Relaxed);
        }
        raw.ifindex.store(self.table.link_index(), Ordering::Relaxed);
    }

    /// Sets the tracked state from a snapshot; the programs validate further packets with it.
    /// Without it they update nothing. `send_end` is behind the last sent byte; a newer tracked
    /// acknowledgement up to there is kept.
    pub fn track(&self, tracked: &TrackedState, send_end: SeqNumber) {
        let mut tracked = *tracked;
        let sent_bytes = send_end.since(tracked.last_ack);
        if let Some(known) = self.raw().tracked.get()
            && (1..=sent_bytes).contains(&known.last_ack.since(tracked.last_ack))
        {
            tracked.last_ack = known.last_ack;
            tracked.last_window = known.last_window;
            tracked.window_max_bytes = tracked.window_max_bytes.max(known.window_max_bytes);
        }
        self.raw().tracked.set(&tracked);
    }

    /// Marks the connection as over: its last packets still go to the owner, a new SYN to this
    /// host.
    pub fn linger(&self) {
        let raw = self.raw();
        if raw.state() == FlowState::Redirect {
            raw.set_state(FlowState::Linger);
        }
    }

    /// Returns the weight of the packets in the hold device or queue: bytes of payload, and 1 for a
    /// packet without payload.
    pub fn waiting(&self) -> u32 {
        self.raw().waiting()
    }

    /// Counts a frame that user space injects at the hold device as held.
    pub(crate) fn count_injected(&self, weight: u32) {
        self.raw().held.fetch_add(weight, Ordering::AcqRel);
    }

    /// See [`RawFlowEntry::count_replayed`].
    pub(crate) fn count_replayed(&self, weight: u32) {
        self.raw().count_replayed(weight);
    }

    /// Returns the counters and the tracked state.
    pub fn counters(&self) -> FlowCounters {
        let raw = self.raw();
        FlowCounters {
            packets: raw.packets.load(Ordering::Relaxed),
            bytes: raw.bytes.load(Ordering::Relaxed),
            held: raw.held.load(Ordering::Relaxed),
            tracked: raw.tracked.get(),
        }
    }
}

impl Drop for FlowEntry {
    fn drop(&mut self) {
        self.table.release(&self.flow, self.index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(held: u32, replayed: u32) -> RawFlowEntry {
        RawFlowEntry { held: held.into(), replayed: replayed.into(), ..RawFlowEntry::default() }
    }

    #[test]
    fn a_frame_that_comes_after_it_was_written_off_is_counted_once() {
        // The second case: both counters are about to wrap.
        for before in [0, u32::MAX - 700] {
            let entry = entry(before.wrapping_add(1000), before);
            entry.count_replayed(entry.waiting());
            entry.count_replayed(1000);
            assert_eq!(entry.waiting(), 0);
            // It does not count for more than the waiting weight either.
            entry.held.fetch_add(100, Ordering::AcqRel);
            entry.count_replayed(1000);
            assert_eq!(entry.waiting(), 0);
            entry.held.fetch_add(100, Ordering::AcqRel);
            entry.count_replayed(40);
            assert_eq!(entry.waiting(), 60);
        }
    }
}
