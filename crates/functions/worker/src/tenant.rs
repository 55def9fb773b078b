//! What all instances of a tenant share: the way to the store, and what limits them together.

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
use crate::store::Transport;
use crate::turns::Turn;
use crate::writeback::WriteBack;

/// Limits of one instance, and of what is done for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What a region has.
    pub layout: Layout,
    /// Slots of a body that are lent at once.
    pub window_slots: u32,
    /// Calls of one instance in flight.
    pub calls_max: usize,
    /// Largest body of one call.
    pub body_bytes_max: u64,
    /// Largest body that is held whole.
    pub staged_bytes_max: u64,
    /// Smallest body that is sent to the store while it comes, though it could be acknowledged
    /// early.
    pub stream_bytes_min: u64,
    /// Whether any body is.
    pub stream_bodies: bool,
    /// Largest object that is fetched ahead.
    pub prefetch_bytes_max: u64,
    /// How long a call may take, without its retries.
    pub call_timeout: Duration,
    /// Who makes long copies.
    pub copies: CopyService,
}

/// See the [module](self).
pub struct Tenant {
    /// The way to the store.
    pub transport: Box<dyn Transport>,
    /// Limits of each instance.
    pub limits: Limits,
    /// Limits of all together.
    pub quota: Rc<Quota>,
    /// What retries may cost.
    pub retries: RefCell<retry::Quota>,
    /// Copies between regions and the worker's memory.
    pub copies: Rc<Copies>,
    /// Objects on their way before they were asked for.
    pub prefetches: Prefetches,
    /// Writes that are not durable yet.
    pub writeback: WriteBack,
    /// What is counted.
    pub meter: Arc<Meter>,
    /// What is left of its turn, where others use the same thread.
    pub turn: Rc<Turn>,
    dice: Cell<u64>,
    epoch: Cell<u64>,
}

impl Tenant {
    /// A tenant without instances. `seed` is for the lengths of waits, and the first epoch.
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
            // An epoch of a worker before is not met again by chance.
            epoch: Cell::new(seed >> 16 | 1),
        })
    }

    /// A number that nobody foretells; waits need no better one (SplitMix64).
    pub fn dice(&self) -> u32 {
        let state = self.dice.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.dice.set(state);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed >> 32) as u32
    }

    /// An epoch that no instance was given before.
    pub fn next_epoch(&self) -> u64 {
        let epoch = self.epoch.get();
        self.epoch.set(epoch + 1);
        epoch
    }
}
