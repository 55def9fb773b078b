//! The process: its children, its listener, its drain.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use function::isolation::Isolation;
use function::manifest::Backend;
use meter::{Meter, Role};
use serde_json::json;
use service::admin::{self, AdminError, Health, Routes};
use service::listen::ListenError;
use service::system::{SystemError, system};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::LocalSet;

use crate::api::{self, Api};
use crate::config::{ConfigError, DEFAULT_TENANT, GatewayConfig, TenantConfig};
use crate::deploy::{self, DeployError, Revision};
use crate::events::Events;
use crate::guest;
use crate::host::Host;
use crate::store::{Access, Store};
use crate::tenant::{Tenant, write_private};
use crate::tenants::Tenants;

/// How often it is looked whether what runs has ended.
const PAUSE: Duration = Duration::from_millis(10);

/// Why a gateway does not run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The operator's.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A function.
    #[error(transparent)]
    Deploy(#[from] DeployError),
    /// The admin endpoint.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The address.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The machine's, or another gateway's.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// What a gateway is given beside its configuration.
pub struct Parts {
    /// What instances run in.
    pub backends: HashMap<Backend, Rc<dyn Isolation>>,
    /// This program: workers and the store are other commands of it.
    pub executable: std::path::PathBuf,
    /// Reads the configuration anew, at SIGHUP.
    pub reload: Box<dyn Fn() -> Result<GatewayConfig, ConfigError>>,
}

/// Runs a gateway until SIGTERM or SIGINT; then nothing is accepted, what runs ends, what is
/// pending is written. A second signal ends at once. `told` is called with the address when callers
/// can come.
///
/// # Errors
/// What keeps it from running.
pub fn run(
    config: GatewayConfig,
    parts: Parts,
    told: impl FnOnce(std::net::SocketAddr) -> io::Result<()>,
) -> Result<(), GatewayError> {
    config.check()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(system("the runtime"))?;
    LocalSet::new().block_on(&runtime, serve(config, parts, told))
}

async fn serve(
    config: GatewayConfig,
    parts: Parts,
    told: impl FnOnce(std::net::SocketAddr) -> io::Result<()>,
) -> Result<(), GatewayError> {
    let state = config.state.clone();
    let _lock = lock(&state)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(system("SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("SIGINT"))?;
    let mut hangup = signal(SignalKind::hangup()).map_err(system("SIGHUP"))?;
    let listener = TcpListener::bind(config.listen).await;
    let listener = listener.map_err(|error| ListenError::new(config.listen, error))?;
    let address = listener.local_addr().map_err(system("the listener"))?;

    let meter = Arc::new(Meter::for_role(Role::Gateway));
    let draining = Arc::new(AtomicBool::new(false));
    let _admin = metrics(&config, meter.clone(), draining.clone())?;
    let store = start_store(&config, &parts.executable).await?;
    let (store, store_task) = match store {
        Some((store, child)) => {
            let store = Rc::new(store);
            let own = store.clone();
            let task = tokio::task::spawn_local(async move { own.supervise(child).await });
            (Some(store), Some(task))
        }
        None => (None, None),
    };
    let access = store.as_ref().map(|store| store.access.clone());
    if let Some(access) = &access {
        let text = client_environment(access, address);
        write_private(&state.join("env"), &text).map_err(system("the file env"))?;
    }
    let guest = guest::unpack(&state, &config.python).await.map_err(system("the guest"))?;
    let tenants = Tenants::start(&config, &parts.executable, access.clone());
    let tenants = tenants.map_err(system("the tenants"))?;
    let host = Host::new(config, parts.backends, tenants, access, guest, meter);
    load(&host)?;
    let events = Events::open(&state).map_err(system("the events"))?;
    let replayed = events.replay(&host).map_err(system("the events"))?;
    if replayed > 0 {
        tracing::info!(replayed, "events that a gateway before had accepted");
    }
    let about = about(store.clone());
    let (end, ending) = watch::channel(false);
    let api = Rc::new(Api { host: host.clone(), events, about, ending });
    let ticking = tokio::task::spawn_local(host.clone().tick());
    let accepting = tokio::task::spawn_local(api::serve(api, listener));
    told(address).map_err(system("standard output"))?;
    tracing::info!(%address, functions = host.functions().len(), "gateway");
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => reload(&host, &*parts.reload),
        }
    }
    tracing::info!("draining");
    draining.store(true, Ordering::Relaxed);
    accepting.abort();
    end.send_replace(true);
    tokio::select! {
        () = drain(&host) => {}
        _ = terminate.recv() => tracing::warn!("told twice: what runs is lost"),
        _ = interrupt.recv() => tracing::warn!("told twice: what runs is lost"),
    }
    ticking.abort();
    if let (Some(store), Some(task)) = (store, store_task) {
        store.drain();
        let _ = tokio::time::timeout(Store::END_TIMEOUT, task).await;
    }
    Ok(())
}

/// The state, which is of one gateway at a time.
fn lock(state: &Path) -> Result<fs::File, GatewayError> {
    let failed = || system(format!("the state {}", state.display()));
    fs::DirBuilder::new().recursive(true).mode(0o755).create(state).map_err(failed())?;
    let file = fs::File::create(state.join("lock")).map_err(failed())?;
    rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| failed()(io::Error::other("another gateway has it; name another --state")))?;
    Ok(file)
}

fn metrics(
    config: &GatewayConfig,
    meter: Arc<Meter>,
    draining: Arc<AtomicBool>,
) -> Result<Option<admin::AdminServer>, GatewayError> {
    let Some(address) = config.admin else { return Ok(None) };
    let routes = Routes::new(meter, Health::by_flag(draining), "unlade", env!("CARGO_PKG_VERSION"));
    Ok(Some(admin::start(address, routes)?))
}

async fn start_store(
    config: &GatewayConfig,
    executable: &Path,
) -> Result<Option<(Store, tokio::process::Child)>, GatewayError> {
    let of_tenant = config.tenant.get(DEFAULT_TENANT).and_then(|tenant| tenant.store.as_ref());
    if config.store.is_some() || of_tenant.is_some() {
        return Ok(None);
    }
    let started = Store::start(executable, &config.state, config.store_listen).await;
    Ok(Some(started.map_err(system(format!("the built-in store, {}", config.store_listen)))?))
}

/// What a tenant's worker is told: its own, else the gateway's, else the built-in store.
pub(crate) fn worker_table(
    config: &GatewayConfig,
    tenant: &TenantConfig,
    access: Option<&Access>,
) -> toml::Table {
    let mut table = toml::Table::new();
    let builtin = || access.map(Access::table).unwrap_or_default();
    let store = tenant.store.clone().or_else(|| config.store.clone()).unwrap_or_else(builtin);
    table.insert("store".to_owned(), store.into());
    let parts =
        [("instance", &tenant.instance), ("copies", &tenant.copies), ("tenant", &tenant.limits)];
    for (key, part) in parts {
        if let Some(part) = part {
            table.insert(key.to_owned(), part.clone().into());
        }
    }
    if let Some(admin) = tenant.admin {
        table.insert("admin".to_owned(), admin.to_string().into());
    }
    let drain = format!("{}s", config.drain_timeout.as_secs().max(1));
    table.insert("drain_timeout".to_owned(), drain.into());
    let mut log = toml::Table::new();
    log.insert("level".to_owned(), config.log.level.clone().into());
    table.insert("log".to_owned(), log.into());
    table
}

fn load(host: &Rc<Host>) -> Result<(), GatewayError> {
    deploy::sweep(&host.config.state)?;
    let publish = |name: &str, revision: Revision| -> Result<(), DeployError> {
        host.publish(&host.make(name, revision.manifest, revision.code)?);
        Ok(())
    };
    for (name, revision) in deploy::deployed(&host.config.state)? {
        publish(&name, revision)?;
    }
    let Some(directory) = &host.config.functions else { return Ok(()) };
    for (name, revision) in deploy::of_directory(directory)? {
        if !is_deployed(host, &name) {
            publish(&name, revision)?;
        }
    }
    Ok(())
}

/// Whether a function of the directory has the name of one that was deployed, which stays.
fn is_deployed(host: &Host, name: &str) -> bool {
    let is_deployed = host.function(name).is_some_and(|function| function.is_deployed);
    if is_deployed {
        let why = "a deployed function has this name; remove one of them";
        tracing::error!(function = name, why, "not served from the directory");
    }
    is_deployed
}

/// Limits, tenants, and functions of the directory `functions`, as the configuration says now. The
/// rest of it needs another start.
fn reload(host: &Rc<Host>, read: &dyn Fn() -> Result<GatewayConfig, ConfigError>) {
    let config = match read() {
        Ok(config) => config,
        Err(error) => return tracing::error!(%error, "not reloaded; all stays as it was"),
    };
    if config.workers != host.config.workers {
        tracing::error!("workers: needs another start of the gateway");
    }
    host.limit(config.limits());
    // Functions may be of new ones, and no more of old ones.
    if let Err(error) = host.tenants.apply(&config) {
        tracing::error!(%error, "tenants are not reloaded");
    }
    reload_functions(host, &config);
    let is_used = |tenant: &Rc<Tenant>| {
        host.functions().iter().any(|function| Rc::ptr_eq(&function.tenant, tenant))
    };
    for tenant in host.tenants.part(&config, is_used) {
        tokio::task::spawn_local(leave(host.clone(), config.clone(), tenant));
    }
}

fn reload_functions(host: &Rc<Host>, config: &GatewayConfig) {
    let Some(directory) = &config.functions else { return };
    let found = match deploy::of_directory(directory) {
        Ok(found) => found,
        Err(error) => return tracing::error!(%error, "functions are not reloaded"),
    };
    for function in host.functions() {
        let is_there = found.iter().any(|(name, _)| *name == function.name);
        if !is_there && !function.is_deployed {
            host.remove(&function.name);
        }
    }
    let count = found.len();
    for (name, revision) in found {
        if is_deployed(host, &name) {
            continue;
        }
        match host.make(&name, revision.manifest, revision.code) {
            Ok(function) => host.publish(&function),
            Err(error) => tracing::error!(function = name, %error, "stays as it was"),
        }
    }
    tracing::info!(functions = count, "reloaded");
}

/// A tenant goes when its instances have gone, or have had their time.
async fn leave(host: Rc<Host>, config: GatewayConfig, tenant: Rc<Tenant>) {
    let end = Instant::now() + config.drain_timeout;
    let is_in_use =
        || host.members().iter().any(|member| Rc::ptr_eq(&member.function.tenant, &tenant));
    while is_in_use() && Instant::now() < end {
        tokio::time::sleep(PAUSE).await;
    }
    if let Err(error) = host.tenants.leave(&config, &tenant) {
        tracing::error!(%error, tenant = %tenant.name, "is still served");
    }
}

fn about(store: Option<Rc<Store>>) -> Box<dyn Fn() -> serde_json::Value> {
    Box::new(move || match &store {
        Some(store) => {
            json!({"store": {"endpoint": store.access.endpoint, "pid": store.pid()}})
        }
        None => json!({}),
    })
}

/// What `aws` and boto3 need to know, as shell text.
fn client_environment(access: &Access, gateway: std::net::SocketAddr) -> String {
    let Access { endpoint, region, access_key_id, secret_access_key } = access;
    format!(
        "export AWS_ENDPOINT_URL_LAMBDA=http://{gateway}\nexport AWS_ENDPOINT_URL_S3={endpoint}\n\
         export AWS_ACCESS_KEY_ID={access_key_id}\nexport AWS_SECRET_ACCESS_KEY={secret_access_key}\n\
         export AWS_DEFAULT_REGION={region}\n"
    )
}

/// What runs ends; then workers write what is pending.
async fn drain(host: &Rc<Host>) {
    let end = Instant::now() + host.config.drain_timeout;
    while host.running.get() > 0 && Instant::now() < end {
        tokio::time::sleep(PAUSE).await;
    }
    if host.running.get() > 0 {
        tracing::error!(running = host.running.get(), "did not end in time");
    }
    for member in host.members() {
        member.stop.notify_one();
    }
    host.tenants.drain().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_one_gateway() {
        let state = tempfile::tempdir().unwrap();
        let first = lock(state.path()).unwrap();
        let second = lock(state.path()).unwrap_err().to_string();
        assert!(second.contains("another gateway"), "{second}");
        drop(first);
        lock(state.path()).unwrap();
    }

    #[test]
    fn tenants_have_their_own_store_or_the_common_one() {
        let access = Access {
            endpoint: "http://127.0.0.1:9000".to_owned(),
            region: "us-east-1".to_owned(),
            access_key_id: "a".to_owned(),
            secret_access_key: "b".to_owned(),
        };
        let config = GatewayConfig::default();
        let common = worker_table(&config, &TenantConfig::default(), Some(&access));
        assert_eq!(common["store"]["endpoint"].as_str(), Some("http://127.0.0.1:9000"));
        let own: toml::Table = toml::from_str("endpoint = \"https://s3.example\"").unwrap();
        let copies = Some(toml::from_str("service = \"off\"").unwrap());
        let tenant = TenantConfig { store: Some(own), copies, ..TenantConfig::default() };
        let own = worker_table(&config, &tenant, Some(&access));
        assert_eq!(own["store"]["endpoint"].as_str(), Some("https://s3.example"));
        assert_eq!(own["copies"]["service"].as_str(), Some("off"));
    }
}
