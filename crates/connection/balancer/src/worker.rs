//! State of one worker that its connections share without a lock. Every stage may use it; it starts
//! none and depends on none.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use unlade_metrics::Meter;
use unlade_runtime::WorkerInfo;

use crate::bodies::RecentBodies;
use crate::buffer::{Buffers, Pipes};
use crate::clients::Clients;
use crate::fallback::Fallbacks;
use crate::offload::Offload;
use crate::plan::Plan;
use crate::retries::Retries;
use crate::splices::{Backoffs, Splices};
use crate::upstream::Upstreams;

/// Idle time after which a drain closes a connection: longer than a request is in transit.
pub(crate) const DRAIN_QUIET: Duration = Duration::from_millis(500);

/// State that all workers share.
#[derive(Debug)]
pub(crate) struct SharedState {
    /// Counters.
    pub meter: Arc<Meter>,
    /// Connections by listener and client.
    pub clients: Arc<Clients>,
}

/// One worker.
pub(crate) struct Worker {
    /// Its index among the workers.
    pub info: WorkerInfo,
    /// Counters.
    pub meter: Arc<Meter>,
    /// Connections by listener and client.
    pub clients: Arc<Clients>,
    /// Idle connections to servers.
    pub upstreams: Upstreams,
    /// Buffers for bodies.
    pub buffers: Buffers,
    /// Pipes for bodies.
    pub pipes: Pipes,
    /// Lengths of recent bodies.
    pub recent_bodies: RecentBodies,
    /// The policy for handing connections over, and the means to do it.
    pub offload: Offload,
    /// Servers whose hosts do not take rules.
    pub backoffs: Backoffs,
    /// Agents that do not seal responses.
    pub sealing_retries: Retries,
    splices: OnceCell<Option<Splices>>,
    /// Counts and logs requests that are proxied although their route offloads.
    pub fallbacks: Fallbacks,
    /// Grows by one with every request: the `turn` of `Policy::choose`.
    pub turn: Cell<usize>,
    plan: RefCell<Rc<PlanRef>>,
    draining: Cell<bool>,
    drain: Notify,
    open: Cell<usize>,
    ended: Notify,
}

/// A plan that the connections of one worker share: cloning it touches no cache line that another
/// core writes.
#[derive(Debug)]
pub(crate) struct PlanRef(Arc<Plan>);

impl std::ops::Deref for PlanRef {
    type Target = Plan;
    fn deref(&self) -> &Plan {
        &self.0
    }
}

impl PlanRef {
    /// Returns the plan for use outside of this worker.
    pub(crate) fn shared(&self) -> Arc<Plan> {
        self.0.clone()
    }
}

impl Worker {
    /// Creates a worker without connections.
    pub(crate) fn new(info: WorkerInfo, shared: &SharedState, plan: Arc<Plan>) -> Worker {
        Worker {
            info,
            meter: shared.meter.clone(),
            clients: shared.clients.clone(),
            upstreams: Upstreams::new(shared.meter.clone()),
            buffers: Buffers::default(),
            pipes: Pipes::default(),
            offload: Offload::new(info, &plan),
            backoffs: Backoffs::default(),
            sealing_retries: Retries::default(),
            splices: OnceCell::new(),
            fallbacks: Fallbacks::default(),
            recent_bodies: RecentBodies::default(),
            // Workers start at different servers.
            turn: Cell::new(info.index),
            plan: RefCell::new(Rc::new(PlanRef(plan))),
            draining: Cell::new(false),
            drain: Notify::new(),
            open: Cell::new(0),
            ended: Notify::new(),
        }
    }

    /// Returns the plan for the next request.
    pub(crate) fn plan(&self) -> Rc<PlanRef> {
        self.plan.borrow().clone()
    }

    /// Returns the worker's splices, if a pool has direct return and the machine can do it.
    pub(crate) fn splices(&self) -> Option<&Splices> {
        let plan = self.plan.borrow();
        let splicing = plan.splicing.as_ref()?;
        self.splices.get_or_init(|| Splices::new(splicing)).as_ref()
    }

    /// Returns true if the process drains: no connection is kept beyond its request.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.get()
    }

    /// Waits for the start of the drain.
    pub(crate) async fn drained(&self) {
        // No other thread and no await between the check and the registration.
        if !self.draining.get() {
            self.drain.notified().await;
        }
    }

    /// Waits for the drain, and then until a connection without a request since `quiet` has been
    /// idle for [`DRAIN_QUIET`]: a client that was busy a moment ago may have sent a request
    /// already.
    pub(crate) async fn drained_since(&self, quiet: Instant) {
        self.drained().await;
        tokio::time::sleep_until(quiet + DRAIN_QUIET).await;
    }

    /// Counts a connection task of this worker while the value lives.
    pub(crate) fn enter(self: &Rc<Self>) -> Entered {
        self.open.set(self.open.get() + 1);
        Entered { worker: self.clone() }
    }

    /// Puts another plan into force for the following requests.
    pub(crate) fn adopt(&self, plan: Arc<Plan>) {
        if !Arc::ptr_eq(&plan.routing, &self.plan().routing) {
            self.offload.replan(&plan);
        }
        *self.plan.borrow_mut() = Rc::new(PlanRef(plan));
    }

    /// Starts the drain: no connection is kept beyond its request.
    pub(crate) fn begin_drain(&self) {
        self.draining.set(true);
        self.drain.notify_waiters();
    }

    /// Waits until no connection is left.
    pub(crate) async fn all_ended(&self) {
        while self.open.get() > 0 {
            self.ended.notified().await;
        }
    }
}

/// A connection task that the drain waits for.
pub(crate) struct Entered {
    worker: Rc<Worker>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        let open = self.worker.open.get().saturating_sub(1);
        self.worker.open.set(open);
        if open == 0 {
            self.worker.ended.notify_one();
        }
    }
}
