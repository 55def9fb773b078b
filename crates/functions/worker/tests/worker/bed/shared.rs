//! Several tenants in one worker.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::{mpsc as queue, oneshot, watch};
use unlade_fn_worker::config::WorkerConfig;
use unlade_fn_worker::scheduler::FairScheduler;
use unlade_fn_worker::serve::Phase;
use unlade_fn_worker::shared::Shared;
use unlade_fn_worker::tenant_list::TenantList;

use super::Running;
use super::gateway::Gateway;

/// A worker of several tenants. Dropping it aborts its work.
pub struct SharedWorker {
    _running: Running,
    tell: queue::UnboundedSender<TenantList>,
}

impl SharedWorker {
    pub fn start(configs: &BTreeMap<String, WorkerConfig>) -> SharedWorker {
        let (tell, mut told) = queue::unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let (said, ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = built.unwrap();
            let ended = FairScheduler::run(&runtime, |scheduler| async move {
                let (_phase, phases) = watch::channel(Phase::Serving);
                let mut shared = Shared::new(scheduler, phases);
                said.send(()).unwrap();
                let apply = async {
                    while let Some(tenant_list) = told.recv().await {
                        shared.apply(tenant_list);
                    }
                };
                tokio::select! {
                    () = apply => {}
                    _ = stopped => {}
                }
            });
            assert!(ended.is_some());
            runtime.shutdown_background();
        });
        ready.recv_timeout(Duration::from_secs(20)).unwrap();
        let running = Running { name: "shared".to_owned(), stop: Some(stop), thread: Some(thread) };
        let worker = SharedWorker { _running: running, tell };
        worker.apply(configs);
        worker
    }

    /// Applies new configurations.
    pub fn apply(&self, configs: &BTreeMap<String, WorkerConfig>) {
        let log = unlade_runtime::logs::LogConfig::default();
        let (tenants, refused) = (configs.clone(), BTreeMap::new());
        let _ = self.tell.send(TenantList { admin: None, log, tenants, refused });
    }
}

/// Connects the gateway of a tenant, once the worker listens for it.
pub fn connect(control: &Path) -> Gateway {
    super::until("the worker listens", || UnixStream::connect(control).is_ok());
    Gateway::connect(control)
}
