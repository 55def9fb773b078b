//! Handle of one flow's entry: sets the destination of its packets.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use unlade_net::{FlowKey, SeqNumber};

use crate::raw_entry::RawFlowEntry;
use crate::table::Table;
use crate::tracking::TrackedState;

pub use crate::raw_entry::{FlowState, Mac};

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
