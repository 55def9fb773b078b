//! The state that all instances of a tenant share: the transport to the store, and the limits.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use unlade_guest_protocol::Layout;
use unlade_metrics::Meter;
use unlade_s3::retry;

use crate::copies::{Copies, CopyService};
use crate::prefetch::Prefetches;
use crate::quota::Quota;
use crate::scheduler::Turn;
use crate::store::Transport;
use crate::writeback::WriteBack;

/// Limits of one instance, and of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The layout of a region.
    pub layout: Layout,
    /// Most slots of a body that are lent at a time.
    pub window_slots: u32,
    /// Most calls in flight of one instance.
    pub calls_max: usize,
    /// Largest body of one call.
    pub body_bytes_max: u64,
    /// Largest body that is buffered as a whole.
    pub staged_bytes_max: u64,
    /// Smallest body that is streamed even if it could be acknowledged early.
    pub stream_bytes_min: u64,
    /// True if bodies may be streamed.
    pub stream_bodies: bool,
    /// Largest object that is prefetched.
    pub prefetch_bytes_max: u64,
    /// Timeout of a call, without its retries.
    pub call_timeout: Duration,
    /// The copier of long bodies.
    pub copies: CopyService,
}

/// See the [module](self).
pub struct Tenant {
    /// The transport to the store.
    pub transport: Box<dyn Transport>,
    /// Limits of each instance.
    pub limits: Limits,
    /// Limits of all instances together.
    pub quota: Rc<Quota>,
    /// The budget of retries.
    pub retries: RefCell<retry::Quota>,
    /// Copies between regions and the worker's memory.
    pub copies: Rc<Copies>,
    /// Prefetched objects.
    pub prefetches: Prefetches,
    /// Writes that are not durable yet.
    pub writeback: WriteBack,
    /// The metrics.
    pub meter: Arc<Meter>,
    /// The rest of its turn, if other tenants use the same thread.
    pub turn: Rc<Turn>,
    dice: Cell<u64>,
    epoch: Cell<u64>,
}

impl Tenant {
    /// Creates a tenant without instances. `seed` seeds the random waits and the first epoch.
    pub fn new(
        transport: Box<dyn Transport>,
        limits: Limits,
        quota: Rc<Quota>,
        writeback: WriteBack,
        meter: Arc<Meter>,
        turn: Rc<Turn>,
        seed: u64,
    ) -> Rc<Tenant> {
        let copies = Copies::new(limits.copies, quota.clone(), meter.clone());
        Rc::new(Tenant {
            transport,
            limits,
            quota,
            copies,
            retries: RefCell::default(),
            prefetches: Prefetches::default(),
            writeback,
            meter,
            turn,
            dice: Cell::new(seed),
            // A random start: an epoch of a previous worker must not be repeated by chance.
            epoch: Cell::new(seed >> 16 | 1),
        })
    }

    /// A random number (SplitMix64), which is sufficient for the jitter of waits.
    pub fn dice(&self) -> u32 {
        let state = self.dice.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.dice.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    }

    /// An epoch that was not used before.
    pub fn next_epoch(&self) -> u64 {
        let epoch = self.epoch.get();
        self.epoch.set(epoch + 1);
        epoch
    }
}
