//! Entries of flows as the eBPF programs see them, in shared memory.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use unlade_net::SeqNumber;

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
    pub(crate) offered_at: AtomicU32,
    pub(crate) mac: [AtomicU8; 12],
    pub(crate) ifindex: AtomicU32,
    pub(crate) held: AtomicU32,
    replayed: AtomicU32,
    pub(crate) packets: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) tracked: RawTrackedState,
    syn: AtomicU32,
    has_syn: AtomicU32,
}
const _: () = assert!(size_of::<RawFlowEntry>() == 88 && align_of::<RawFlowEntry>() == 8);
const _: () = assert!(core::mem::offset_of!(RawFlowEntry, packets) == 32);
const _: () = assert!(core::mem::offset_of!(RawFlowEntry, tracked) == 48);

impl RawTrackedState {
    fn forget(&self) {
        self.known.store(0, Ordering::SeqCst);
    }

    /// Sets the state, which counts as unknown until all of it is set.
    pub(crate) fn set(&self, tracked: &TrackedState) {
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

    /// Returns the state; None before the first `set`.
    pub(crate) fn get(&self) -> Option<TrackedState> {
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

/// An array that is shared with the programs, mapped for the lifetime of the process's steering.
#[derive(Debug)]
pub(crate) struct SharedArray<T> {
    base: NonNull<T>,
    bytes: usize,
    count: u32,
}

// SAFETY: all access to the mapping is through atomics (constructor's contract), which any thread
// may use.
unsafe impl<T> Send for SharedArray<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedArray<T> {}

impl<T> SharedArray<T> {
    /// Takes ownership of a mapping of `count` entries.
    ///
    /// # Safety
    /// `base` must be a shared, writable mapping of `bytes` bytes, at least `count` entries long,
    /// that nothing else unmaps. `T` consists of atomics, and every value of its bytes is valid.
    pub(crate) unsafe fn new(base: NonNull<u8>, bytes: usize, count: u32) -> SharedArray<T> {
        SharedArray { base: base.cast(), bytes, count }
    }

    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        if index >= self.count {
            return None;
        }
        // SAFETY: `index` is inside the mapping (constructor's contract), which is valid as long as
        // `self`; every field is an atomic, so shared access is free of data races.
        Some(unsafe { self.base.add(index as usize).as_ref() })
    }
}

impl<T> Drop for SharedArray<T> {
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
        self.has_syn.store(0, Ordering::Relaxed);
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

    /// Returns true if the owner has this hardware address.
    pub(crate) fn has_owner(&self, owner: &Mac) -> bool {
        let bytes = self.mac.iter().map(|byte| byte.load(Ordering::Relaxed));
        bytes.take(6).eq(owner.iter().copied())
    }

    /// Returns true if the flow is redirected to the host with this hardware address.
    pub(crate) fn is_owner(&self, source: &[u8]) -> bool {
        let owner = source.first_chunk::<6>();
        self.state() == FlowState::Redirect && owner.is_some_and(|owner| self.has_owner(owner))
    }

    pub(crate) fn set_state(&self, state: FlowState) {
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
