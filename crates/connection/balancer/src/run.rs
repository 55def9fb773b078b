//! Starts the balancer's process from a configuration, and the stages of each worker. No other file
//! of the crate uses this one.

use std::fmt::Write as _;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use unlade_metrics::{Meter, Role};
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminError, AdminServer, Answer, Health, Routes};
use unlade_runtime::listen;
use unlade_runtime::listen::{ListenError, ListenOptions};
use unlade_runtime::{Control, Phase, Watch, WorkerInfo, WorkersConfig, WorkersError, run_workers};

use crate::accept;
use crate::clients::Clients;
use crate::config::BalancerConfig;
use crate::health;
use crate::machine::{Machine, open_splicing};
use crate::migration_manager::MigrationManager;
use crate::plan::{Plan, PlanError};
use crate::segments_report::SegmentsReport;
use crate::server::KnownServers;
use crate::worker::{SharedState, Worker};

/// Time between two clean-ups of idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Error that prevents the start of a balancer, or ends it.
#[derive(Debug, thiserror::Error)]
pub enum BalancerError {
    /// An unusable configuration.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// An address that cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The admin endpoint.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// A worker.
    #[error(transparent)]
    Workers(#[from] WorkersError),
}

/// Checks that a balancer can run with `config`: values, references between them, and the files
/// named. No address is bound.
///
/// # Errors
/// The first problem found.
pub fn check(config: BalancerConfig) -> Result<(), BalancerError> {
    Plan::new(config, &mut KnownServers::default())?;
    Ok(())
}

/// Runs a balancer until SIGTERM or SIGINT. The caller has set up the log.
///
/// # Errors
/// The configuration, an address, or a worker that failed.
pub fn run(config: BalancerConfig) -> Result<(), BalancerError> {
    Balancer::bind(config)?.run(true)
}

/// A balancer with bound addresses that does not serve yet.
#[derive(Debug)]
pub struct Balancer {
    control: Control<Plan>,
    shared: Arc<SharedState>,
    /// By listener, one socket per worker.
    listeners: Vec<Vec<TcpListener>>,
    addresses: Vec<SocketAddr>,
    admin: Option<AdminServer>,
    workers: usize,
}

/// Controls a running balancer from another thread.
#[derive(Debug, Clone)]
pub struct Handle {
    control: Control<Plan>,
    meter: Arc<Meter>,
}

impl Handle {
    /// Stops accepting, finishes the requests in flight, and ends.
    pub fn drain(&self) {
        self.control.drain();
    }

    /// Drops everything and ends.
    pub fn stop(&self) {
        self.control.stop();
    }

    /// Puts another configuration into force for the following requests.
    ///
    /// # Errors
    /// The configuration is unusable; the old one stays.
    pub fn reload(&self, config: BalancerConfig) -> Result<(), BalancerError> {
        let plan = self.control.config().reload(config, &self.meter)?;
        self.control.reload(plan);
        Ok(())
    }

    /// Returns the counters.
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }
}

impl Balancer {
    /// Validates `config`, loads what it names, and binds its addresses.
    ///
    /// # Errors
    /// The configuration, or an address.
    pub fn bind(config: BalancerConfig) -> Result<Balancer, BalancerError> {
        let mut plan = Plan::new(config, &mut KnownServers::default())?;
        // A proxied connection needs two descriptors, and pipes for its body.
        unlade_runtime::limits::raise_descriptor_limit();
        let workers = plan.config.workers.unwrap_or_else(unlade_runtime::workers::cores);
        let mut listeners = Vec::new();
        for listener in &plan.config.listeners {
            let options = ListenOptions { freebind: listener.freebind, ..ListenOptions::default() };
            listeners.push(listen::bind_shared(listener.address, workers, &options)?);
        }
        let addresses = listeners
            .iter()
            .zip(&plan.listeners)
            .map(|(sockets, plan)| {
                sockets.first().and_then(|s| s.local_addr().ok()).unwrap_or(plan.address)
            })
            .collect();
        let meter = Arc::new(Meter::for_role(Role::Balancer));
        plan.machine = Machine::open(&plan.config, &meter);
        plan.splicing = open_splicing(&plan.config);
        let clients = Arc::new(Clients::new(listeners.len()));
        let admin_address = plan.config.admin;
        let control = Control::new(plan);
        let admin = admin_address
            .map(|address| admin::start(address, routes(&meter, &control)))
            .transpose()?;
        let shared = Arc::new(SharedState { meter, clients });
        Ok(Balancer { control, shared, listeners, addresses, admin, workers })
    }

    /// Returns the listening addresses, in the order of the configuration, with the ports that
    /// were chosen.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the address of its admin endpoint.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(AdminServer::address)
    }

    /// Returns the handle that controls it.
    pub fn handle(&self) -> Handle {
        Handle { control: self.control.clone(), meter: self.shared.meter.clone() }
    }

    /// Serves until the [`Handle`], or a signal if `signals` is set, ends it.
    ///
    /// # Errors
    /// A worker that failed.
    pub fn run(self, signals: bool) -> Result<(), BalancerError> {
        let plan = self.control.config();
        let config = WorkersConfig {
            threads: self.workers,
            pin: plan.config.pin_workers,
            drain_timeout: plan.config.drain_timeout,
            signals,
            ..WorkersConfig::new("lb")
        };
        for (listener, address) in plan.config.listeners.iter().zip(&self.addresses) {
            tracing::info!(%address, tls = listener.tls.is_some(), "listening");
        }
        drop(plan);
        let shared = self.shared.clone();
        // Each worker takes its own socket of every listener.
        let sockets = Mutex::new(self.listeners);
        let main = move |info: WorkerInfo, watch: Watch<Plan>| {
            let mut sockets = sockets.lock().unwrap_or_else(PoisonError::into_inner);
            let own: Vec<TcpListener> = sockets.iter_mut().filter_map(Vec::pop).collect();
            work(info, watch, shared.clone(), own)
        };
        let (control, meter) = (self.control.clone(), self.shared.meter.clone());
        let reload = move || -> Result<Plan, PlanError> {
            let plan = control.config();
            let Some(origin) = &plan.config.origin else {
                let what = "there is no file to read again; the configuration's origin";
                return Err(PlanError::Restart { what });
            };
            plan.reload(BalancerConfig::load(origin)?, &meter)
        };
        let ended = run_workers(&config, &self.control, reload, main)?;
        tracing::info!(?ended, "ended");
        Ok(())
    }
}

/// Serves the listening sockets of one worker.
async fn work(
    info: WorkerInfo,
    watch: Watch<Plan>,
    shared: Arc<SharedState>,
    sockets: Vec<TcpListener>,
) -> Result<(), ListenError> {
    let listeners =
        sockets.into_iter().map(listen::register).collect::<Result<Vec<_>, ListenError>>()?;
    let worker = Rc::new(Worker::new(info, &shared, watch.config()));
    serve(worker, watch, listeners).await;
    Ok(())
}

/// Accepts on `listeners` until the process drains, then waits for what is in flight.
async fn serve(
    worker: Rc<Worker>,
    mut watch: Watch<Plan>,
    listeners: Vec<tokio::net::TcpListener>,
) {
    let install = || {
        let machine = worker.plan().machine.clone()?;
        let home = Rc::clone(&worker);
        let home = Box::new(move |stream, back| accept::resume(Rc::clone(&home), stream, back));
        Some(MigrationManager::install(&worker, machine, home))
    };
    let mut mover = install();
    let accepting: Vec<_> = listeners
        .into_iter()
        .enumerate()
        .map(|(index, tcp)| tokio::task::spawn_local(accept::accept(worker.clone(), index, tcp)))
        .collect();
    let mut checks = health::Checks::default();
    let is_first = worker.info.index == 0;
    if is_first {
        checks.start(&worker);
    }
    let mut segments = SegmentsReport::default();
    let mut sweep = unlade_runtime::ticker::every(SWEEP_INTERVAL);
    let mut phases = watch.clone();
    let mut draining = std::pin::pin!(phases.reached(Phase::Draining));
    loop {
        tokio::select! {
            () = &mut draining => break,
            plan = watch.reloaded() => {
                worker.adopt(plan);
                match &mover {
                    Some(mover) => mover.follow(&worker.plan()),
                    None => mover = install(),
                }
                if is_first {
                    checks.start(&worker);
                }
            }
            _ = sweep.tick() => {
                worker.upstreams.sweep(Instant::now());
                if is_first {
                    segments.report(&worker);
                }
            }
        }
    }
    // This comes first: connections that come home from now on stay.
    worker.begin_drain();
    for task in accepting {
        // A task that failed has accepted what it could.
        let _ = task.await;
    }
    if let Some(mover) = &mover {
        mover.drain().await;
    }
    worker.all_ended().await;
    if let Some(mover) = &mover {
        mover.wait_until_quiet().await;
    }
}

/// Returns the responses of the admin endpoint.
fn routes(meter: &Arc<Meter>, control: &Control<Plan>) -> Routes {
    let health = control.clone();
    let health = move || Health::from(health.phase());
    let (servers, stages) = (control.clone(), meter.clone());
    Routes::new(meter.clone(), health, "unlade lb", env!("CARGO_PKG_VERSION"))
        .route("/servers", move |_| Answer::json(servers_json(&servers.config())))
        .route("/stages", move |_| Answer::json(stages.stages_json()))
}

/// Returns every server with its state as JSON. Only the names of pools need escapes.
fn servers_json(plan: &Plan) -> String {
    let mut out = String::from("[");
    for pool in &plan.pools {
        for server in &pool.servers {
            let comma = if out.len() > 1 { "," } else { "" };
            // Writing to a String does not fail.
            let _ = write!(
                out,
                "{comma}\n{{\"pool\":{},\"address\":\"{}\",\"healthy\":{},\"silent\":{},\
                 \"in_flight\":{},\"connections\":{}}}",
                json_text(&pool.name),
                server.address,
                server.is_healthy(),
                server.is_silent(),
                server.in_flight(),
                server.adopted(),
            );
        }
    }
    out.push_str("\n]\n");
    out
}

fn json_text(text: &str) -> String {
    let mut out = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            c if c.is_control() => drop(write!(out, "\\u{:04x}", u32::from(c))),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}
