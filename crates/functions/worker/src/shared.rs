//! The process of several tenants: each is started, replaced and drained independently.
//!
//! Tenants share the process: if it is killed, the work of all ends. Each tenant reads its journal
//! again in the next process.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use unlade_metrics::{Meter, Role};
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminServer, Answer, Health, Routes};
use unlade_runtime::restart::Restarts;
use unlade_runtime::system::system;

use crate::config::WorkerConfig;
use crate::open::WorkerError;
use crate::scheduler::{FairScheduler, Turn};
use crate::serve::{Phase, reached, serve};
use crate::tenant_list::TenantList;
use crate::worker::{phases, runtime};

/// Runs a worker of the tenants of a file until SIGTERM or SIGINT, as [`run`](crate::run) does for
/// one. SIGHUP reloads the file: new tenants are served, removed or changed ones drain, and the
/// others are not affected.
///
/// # Errors
/// The reason why it cannot run. A tenant that cannot be served is logged and retried.
pub fn run_shared(path: &Path) -> Result<(), WorkerError> {
    let tenant_list = TenantList::load(path)?;
    unlade_runtime::limits::raise_descriptor_limit();
    let (runtime, path) = (runtime()?, path.to_owned());
    let ended = FairScheduler::run(&runtime, |scheduler| async move {
        supervise(scheduler, &path, tenant_list).await
    });
    ended.unwrap_or(Err(WorkerError::Ended))
}

/// The metrics of each tenant, by name.
type Meters = Arc<Mutex<BTreeMap<String, Arc<Meter>>>>;

async fn supervise(
    scheduler: Rc<FairScheduler>,
    path: &Path,
    tenant_list: TenantList,
) -> Result<(), WorkerError> {
    let mut hangup = signal(SignalKind::hangup()).map_err(system("SIGHUP"))?;
    let (tell, mut told) = watch::channel(Phase::Serving);
    tokio::task::spawn_local(phases(tell)?);
    let draining = Arc::new(AtomicBool::new(false));
    let mut shared = Shared::new(scheduler, told.clone());
    let _admin = metrics(&tenant_list, shared.meters.clone(), draining.clone())?;
    shared.apply(tenant_list);
    tracing::info!(tenants = shared.kept.len(), "shared worker");
    loop {
        tokio::select! {
            _ = hangup.recv() => match TenantList::load(path) {
                Ok(tenant_list) => shared.apply(tenant_list),
                Err(error) => tracing::error!(%error, "not reloaded; all stays as it was"),
            },
            () = reached(&mut told, Phase::Draining) => break,
        }
    }
    draining.store(true, Ordering::Relaxed);
    shared.ended().await;
    Ok(())
}

fn metrics(
    tenant_list: &TenantList,
    meters: Meters,
    draining: Arc<AtomicBool>,
) -> Result<Option<AdminServer>, WorkerError> {
    let Some(address) = tenant_list.admin else { return Ok(None) };
    let none = Arc::new(Meter::for_role(Role::Worker));
    let routes = Routes::new(none, Health::by_flag(draining), "unlade", env!("CARGO_PKG_VERSION"));
    let routes = routes.route("/metrics", move |_| {
        let meters = meters.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let each = meters.iter().map(|(name, meter)| (name.as_str(), &**meter));
        let body = unlade_metrics::render_each(Role::Worker, "tenant", each);
        Answer { status: 200, content_type: admin::METRICS_TYPE, body }
    });
    Ok(Some(admin::start(address, routes)?))
}

/// A tenant of the worker.
struct ServedTenant {
    /// The wanted configuration; `None` ends the tenant.
    wanted: watch::Sender<Option<WorkerConfig>>,
    task: JoinHandle<()>,
}

/// The tenants of a worker, which can be added and removed.
pub struct Shared {
    scheduler: Rc<FairScheduler>,
    told: watch::Receiver<Phase>,
    kept: BTreeMap<String, ServedTenant>,
    meters: Meters,
}

impl Shared {
    /// Creates a worker without tenants. All of them drain when `told` requests it. Must be called
    /// within a [`LocalSet`](tokio::task::LocalSet).
    pub fn new(scheduler: Rc<FairScheduler>, told: watch::Receiver<Phase>) -> Shared {
        Shared { scheduler, told, kept: BTreeMap::new(), meters: Meters::default() }
    }

    /// Waits until all tenants have drained.
    pub async fn ended(self) {
        for kept in self.kept.into_values() {
            let _ = kept.task.await;
        }
    }

    /// Applies a new list of tenants. A tenant whose new configuration is invalid keeps the old
    /// one.
    pub fn apply(&mut self, tenant_list: TenantList) {
        for (tenant, error) in &tenant_list.refused {
            tracing::error!(tenant, %error, "stays as it was");
        }
        for (name, kept) in &self.kept {
            if !tenant_list.tenants.contains_key(name) && !tenant_list.refused.contains_key(name) {
                kept.wanted.send_if_modified(|wanted| wanted.take().is_some());
            }
        }
        // Removes the tenants that have drained since.
        self.kept.retain(|_, kept| !kept.task.is_finished());
        for (name, config) in tenant_list.tenants {
            match self.kept.get(&name) {
                Some(kept) => drop(kept.wanted.send_if_modified(|wanted| {
                    let is_other = wanted.as_ref() != Some(&config);
                    *wanted = Some(config);
                    is_other
                })),
                None => self.keep(name, config),
            }
        }
        let mut meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        meters.retain(|name, _| self.kept.contains_key(name));
    }

    fn keep(&mut self, name: String, config: WorkerConfig) {
        let mut meters = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = || Arc::new(Meter::of_thread(Role::Worker));
        let meter = meters.entry(name.clone()).or_insert_with(fresh).clone();
        let (wanted, due) = watch::channel(Some(config));
        let (scheduler, told) = (self.scheduler.clone(), self.told.clone());
        let task = tokio::task::spawn_local(keep(scheduler, name.clone(), meter, due, told));
        self.kept.insert(name, ServedTenant { wanted, task });
    }
}

/// Serves a tenant with its wanted configuration; returns when the tenant is removed and has
/// drained.
async fn keep(
    scheduler: Rc<FairScheduler>,
    name: String,
    meter: Arc<Meter>,
    mut wanted: watch::Receiver<Option<WorkerConfig>>,
    mut told: watch::Receiver<Phase>,
) {
    let mut restarts = Restarts::default();
    while *told.borrow() == Phase::Serving {
        let Some(config) = wanted.borrow_and_update().clone() else { return };
        let begin = Instant::now();
        let (tell, phase) = watch::channel(Phase::Serving);
        let (turn, meter) = (Turn::bounded(), meter.clone());
        let work = {
            let turn = turn.clone();
            async move {
                if let Err(error) = serve(&config, meter, turn, phase).await {
                    tracing::error!(%error, "is not served");
                }
            }
        };
        let mut ended = scheduler.add(tracing::error_span!("tenant", name), turn, work);
        tokio::select! {
            _ = &mut ended => {
                tokio::select! {
                    () = tokio::time::sleep(restarts.pause_after(begin)) => {}
                    _ = wanted.changed() => {}
                    () = reached(&mut told, Phase::Draining) => {}
                }
                continue;
            }
            _ = wanted.changed() => {}
            () = reached(&mut told, Phase::Draining) => {}
        }
        let _ = tell.send(Phase::Draining);
        tokio::select! {
            _ = &mut ended => {}
            () = reached(&mut told, Phase::Ending) => {
                let _ = tell.send(Phase::Ending);
                let _ = ended.await;
            }
        }
    }
}
