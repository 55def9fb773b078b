//! A store, a worker, a gateway and a guest, in one process.

pub mod gateway;
pub mod guest;
pub mod script;
pub mod shared;
pub mod sink;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::LocalSet;
use unlade_fn_worker::config::{InstanceConfig, StoreConfig, TenantConfig, WorkerConfig};
use unlade_metrics::Meter;

/// A thread with a runtime, which is aborted when this is dropped.
pub struct Running {
    /// The unique name of the thread.
    pub name: String,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn start<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send + 'static) -> Running {
    let (stop, stopped) = oneshot::channel::<()>();
    static STARTED: AtomicUsize = AtomicUsize::new(0);
    let name = format!("bed-{:07}", STARTED.fetch_add(1, Ordering::Relaxed));
    let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let local = LocalSet::new();
        local.block_on(&runtime, async {
            tokio::select! {
                () = work() => {}
                _ = stopped => {}
            }
        });
        drop(local);
        runtime.shutdown_background();
    });
    Running { name, stop: Some(stop), thread: Some(thread.unwrap()) }
}

/// The keys of the test's store.
pub const ID: &str = "AKIDTEST";
/// The keys of the test's store.
pub const SECRET: &str = "a/secret+of=tests";

/// The embedded store over a directory.
pub fn store(root: &Path) -> (Running, SocketAddr) {
    store_at(root, (Ipv4Addr::LOCALHOST, 0).into())
}

/// The embedded store at an address.
pub fn store_at(root: &Path, address: SocketAddr) -> (Running, SocketAddr) {
    let (said, address_of) = mpsc::channel();
    let root = root.to_owned();
    let running = start(move || async move {
        let keys =
            unlade_s3_store::Keys { access_key_id: ID.into(), secret_access_key: SECRET.into() };
        let store = unlade_s3_store::Store::listen(address, &root, Some(keys)).await.unwrap();
        said.send(store.address().unwrap()).unwrap();
        store.serve().await.unwrap();
    });
    let address = address_of.recv_timeout(Duration::from_secs(20)).unwrap();
    (running, address)
}

/// A worker's configuration.
pub fn config(dir: &Path, store: SocketAddr) -> WorkerConfig {
    let text = format!(
        "endpoint = \"http://{store}\"\nread_timeout = \"10s\"\nconnect_timeout = \"10s\"\n\
         [credentials]\nfrom = \"keys\"\naccess_key_id = \"{ID}\"\n\
         secret_access_key = \"{SECRET}\"\n"
    );
    let store: StoreConfig = unlade_config::parse(&text, "test").unwrap();
    WorkerConfig {
        control: dir.join("control"),
        admin: None,
        copies: unlade_fn_worker::config::CopiesConfig::default(),
        relay: None,
        store,
        services: unlade_fn_worker::cut::ServicesConfig::default(),
        instance: InstanceConfig { guest_slots: 16, host_slots: 32, ..InstanceConfig::default() },
        tenant: TenantConfig::default(),
        drain_timeout: Duration::from_secs(10),
        log: unlade_runtime::logs::LogConfig::default(),
    }
}

/// Starts a worker; returns the path of its control socket.
pub fn worker(config: WorkerConfig) -> (Running, PathBuf) {
    worker_with(config, Arc::new(Meter::new()))
}

fn worker_with(config: WorkerConfig, meter: Arc<Meter>) -> (Running, PathBuf) {
    let control = config.control.clone();
    let _ = std::fs::remove_file(&control);
    let (said, ready) = mpsc::channel();
    let path = control.clone();
    let running = start(move || async move {
        let tenant = unlade_fn_worker::open::tenant(&config, meter).unwrap();
        if let Some(route) = config.route().unwrap() {
            let listener = unlade_fn_worker::relay::listen(&route.path).unwrap();
            tokio::task::spawn_local(unlade_fn_worker::relay::serve(
                tenant.clone(),
                listener,
                route,
            ));
        }
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        said.send(()).unwrap();
        unlade_fn_worker::control::serve(tenant, listener).await;
    });
    ready.recv_timeout(Duration::from_secs(20)).unwrap();
    (running, control)
}

/// A complete environment: a store, a worker, a gateway with a role that has all rights.
pub struct Bed {
    pub gateway: gateway::Gateway,
    pub store: Option<Running>,
    pub store_address: SocketAddr,
    pub worker: Option<Running>,
    pub config: WorkerConfig,
    /// The metrics of the first worker.
    pub meter: Arc<Meter>,
    pub dir: tempfile::TempDir,
}

impl Bed {
    pub fn new() -> Bed {
        Bed::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut WorkerConfig)) -> Bed {
        let dir = tempfile::tempdir().unwrap();
        let (store, store_address) = store(&dir.path().join("objects"));
        let mut config = config(dir.path(), store_address);
        change(&mut config);
        let meter = Arc::new(Meter::new());
        let (worker, control) = worker_with(config.clone(), meter.clone());
        let mut gateway = gateway::Gateway::connect(&control);
        gateway.role(1, everything());
        let (store, worker) = (Some(store), Some(worker));
        Bed { gateway, store, store_address, worker, config, meter, dir }
    }

    /// Attaches a guest with the role that has all rights.
    pub fn guest(&mut self) -> guest::Guest {
        self.gateway.attach(1)
    }
}

/// A policy that allows everything.
pub fn everything() -> serde_json::Value {
    serde_json::json!({"statements": [
        {"effect": "allow", "actions": ["*"], "resources": ["*"]}]})
}

/// Waits until a condition is true.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..10_000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("{what}");
}

/// A byte pattern without repetition.
pub fn body_of(bytes: usize) -> Vec<u8> {
    let mut state = 0x1234_5678_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    (0..bytes).map(|_| next()).collect()
}
