//! The state that all instances of a tenant share: the client of the store, and the limits.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use unlade_guest_protocol::Layout;
use unlade_metrics::Meter;

use crate::copies::{Copies, CopyService};
use crate::cut::Services;
use crate::perform::StoreClient;
use crate::prefetch::{Prefetches, Resources};
use crate::quota::Quota;
use crate::scheduler::Turn;
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
    /// The client of the store.
    pub store_client: Rc<StoreClient>,
    /// Services other than S3.
    pub services: Services,
    /// Limits of each instance.
    pub limits: Limits,
    /// Limits of all instances together.
    pub quota: Rc<Quota>,
    /// Copies between regions and the worker's memory.
    pub copies: Rc<Copies>,
    /// Prefetched objects.
    pub prefetches: Prefetches,
    /// Writes that are not durable yet.
    pub writeback: Rc<WriteBack>,
    /// The metrics.
    pub meter: Arc<Meter>,
    /// The rest of its turn, if other tenants use the same thread.
    pub turn: Rc<Turn>,
    epoch: Cell<u64>,
}

impl Tenant {
    /// Creates a tenant without instances, with the store of its write-back queue. `seed` seeds the
    /// first epoch.
    pub fn new(
        limits: Limits,
        quota: Rc<Quota>,
        writeback: Rc<WriteBack>,
        services: Services,
        turn: Rc<Turn>,
        seed: u64,
    ) -> Rc<Tenant> {
        let store_client = writeback.store_client().clone();
        let meter = store_client.meter.clone();
        let copies = Copies::new(limits.copies, quota.clone(), meter.clone());
        let prefetches = Prefetches::new(Resources {
            store_client: store_client.clone(),
            writeback: writeback.clone(),
            quota: quota.clone(),
            copies: copies.clone(),
            object_bytes_max: limits.prefetch_bytes_max,
        });
        Rc::new(Tenant {
            store_client,
            services,
            limits,
            quota,
            copies,
            prefetches,
            writeback,
            meter,
            turn,
            // A random start: an epoch of a previous worker must not be repeated by chance.
            epoch: Cell::new(seed >> 16 | 1),
        })
    }

    /// An epoch that was not used before.
    pub fn next_epoch(&self) -> u64 {
        let epoch = self.epoch.get();
        self.epoch.set(epoch + 1);
        epoch
    }
}
