//! The process of the gateway: its children, its listener, its drain.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::LocalSet;
use unlade_fn_model::isolation::Isolation;
use unlade_fn_model::manifest::Backend;
use unlade_metrics::{Event, Meter, Role};
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminError, Answer, Health, METRICS_TYPE, Routes};
use unlade_runtime::listen::ListenError;
use unlade_runtime::system::{SystemError, system};

use crate::api::{self, Api};
use crate::auth::Keys;
use crate::config::{Authentication, ConfigError, DEFAULT_TENANT, GatewayConfig, KeyPair, REGION};
use crate::credentials;
use crate::denials::Denials;
use crate::deploy::{self, DeployError, Revision};
use crate::events::Events;
use crate::function::Function;
use crate::function_meter::FunctionMeters;
use crate::guest;
use crate::host::Host;
use crate::notifications;
use crate::source_task;
use crate::stacks::StackService;
use crate::store::{Access, Started, Store};
use crate::tenant::{Tenant, write_private};
use crate::tenants::{Own, Tenants};
use crate::trial;
use crate::web::{self, request::Web};

/// Polling interval of the drain.
const PAUSE: Duration = Duration::from_millis(10);

/// The reason why a gateway does not run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The operator is at fault.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A function cannot be loaded.
    #[error(transparent)]
    Deploy(#[from] DeployError),
    /// The admin endpoint failed.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The address cannot be used.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The machine, or another gateway, is at fault.
    #[error(transparent)]
    System(#[from] SystemError),
}

/// The parts of a gateway beside its configuration.
pub struct Parts {
    /// The isolation backends.
    pub backends: HashMap<Backend, Rc<dyn Isolation>>,
    /// The path of this program: workers and the store are other commands of it.
    pub executable: std::path::PathBuf,
    /// Reads the configuration again, at SIGHUP.
    pub reload: Box<dyn Fn() -> Result<GatewayConfig, ConfigError>>,
}

/// Runs a gateway until SIGTERM or SIGINT. Then it accepts nothing more, running invocations end,
/// and pending writes are finished. A second signal ends it at once. `told` is called with the
/// address once callers can connect.
///
/// # Errors
/// The reason why it cannot run.
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

    let urls = match config.urls {
        None => None,
        Some(address) => {
            let bound = TcpListener::bind(address).await;
            Some(bound.map_err(|error| ListenError::new(address, error))?)
        }
    };
    let urls_address = urls.as_ref().map(TcpListener::local_addr).transpose();
    let urls_address = urls_address.map_err(system("the listener of URLs"))?;

    let meter = Arc::new(Meter::for_role(Role::Gateway));
    let draining = Arc::new(AtomicBool::new(false));
    let (keys, own) = keys(&config).map_err(system("the keys of tenants"))?;
    let store = start_store(&config, &parts.executable, own.as_ref()).await?;
    let (store, store_task, connections) = match store {
        Some(Started { store, child, connections }) => {
            let store = Rc::new(store);
            let own = store.clone();
            let task = tokio::task::spawn_local(async move { own.supervise(child).await });
            (Some(store), Some(task), Some(connections))
        }
        None => (None, None, None),
    };
    let access = store.as_ref().map(|store| store.access.clone());
    let text = client_environment(&config, access.as_ref(), own.as_ref(), address);
    write_private(&state.join("env"), &text).map_err(system("the file env"))?;
    let guest = guest::unpack(&state, &config.python).await.map_err(system("the guest"))?;
    let own = Own { url: of_this_machine(address), keys: keys.clone() };
    let tenants = Tenants::start(&config, &parts.executable, access.clone(), own);
    let tenants = tenants.map_err(system("the tenants"))?;
    let host = Host::new(config, parts.backends, tenants, access, guest, meter.clone());
    let _admin = metrics(&host.config, meter, host.observatory.meters(), draining.clone())?;
    *host.keys.borrow_mut() = keys;
    host.urls_port.set(urls_address.map(|address| address.port()));
    host.apis.load().map_err(system("the HTTP APIs"))?;
    source_task::run(&host);
    // Functions may have roles of stacks.
    let stacks = StackService::open(&host);
    tokio::select! {
        loaded = load(&host) => loaded?,
        _ = terminate.recv() => return end(&host, store, store_task).await,
        _ = interrupt.recv() => return end(&host, store, store_task).await,
    }
    let events = Events::open(&state).map_err(system("the events"))?;
    let replayed = events.replay(&host).map_err(system("the events"))?;
    if replayed > 0 {
        tracing::info!(replayed, "events that a gateway before had accepted");
    }
    if let Some(connections) = connections {
        let taking = notifications::run(host.clone(), events.clone(), connections);
        tokio::task::spawn_local(taking);
    }
    stacks.resume();
    let about = about(store.clone());
    let (stop, ending) = watch::channel(false);
    let web = urls.map(|listener| {
        let web = Rc::new(Web::new(host.clone(), ending.clone()));
        tokio::task::spawn_local(web::serve(web, listener))
    });
    let denials = Denials::default();
    let api = Rc::new(Api { host: host.clone(), events, about, ending, denials, stacks });
    let ticking = tokio::task::spawn_local(host.clone().tick());
    let accepting = tokio::task::spawn_local(api::serve(api, listener));
    told(address).map_err(system("standard output"))?;
    let urls = urls_address.map(|address| address.to_string());
    tracing::info!(%address, urls, functions = host.functions().len(), "gateway");
    // Reloads run one after the other, in the order of the requests.
    let (reloads, read) = (Rc::new(tokio::sync::Mutex::new(())), Rc::new(parts.reload));
    loop {
        tokio::select! {
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
            _ = hangup.recv() => {
                let (host, read, reloads) = (host.clone(), read.clone(), reloads.clone());
                tokio::task::spawn_local(async move {
                    let _turn = reloads.lock().await;
                    reload(&host, &**read).await;
                });
            }
        }
    }
    tracing::info!("draining");
    draining.store(true, Ordering::Relaxed);
    accepting.abort();
    if let Some(web) = &web {
        web.abort();
    }
    stop.send_replace(true);
    tokio::select! {
        () = drain(&host) => {}
        _ = terminate.recv() => tracing::warn!("told twice: what runs is lost"),
        _ = interrupt.recv() => tracing::warn!("told twice: what runs is lost"),
    }
    ticking.abort();
    end(&host, store, store_task).await
}

/// The URL of a listener for clients of this machine.
fn of_this_machine(address: std::net::SocketAddr) -> String {
    let ip = match address.ip() {
        ip if !ip.is_unspecified() => ip,
        ip if ip.is_ipv4() => std::net::Ipv4Addr::LOCALHOST.into(),
        _ => std::net::Ipv6Addr::LOCALHOST.into(),
    };
    format!("http://{}", std::net::SocketAddr::new(ip, address.port()))
}

/// Ends the remaining children: workers that have not been drained, and the store after them.
async fn end(
    host: &Rc<Host>,
    store: Option<Rc<Store>>,
    store_task: Option<tokio::task::JoinHandle<()>>,
) -> Result<(), GatewayError> {
    host.tenants.drain().await;
    if let (Some(store), Some(task)) = (store, store_task) {
        store.drain();
        let _ = tokio::time::timeout(Store::END_TIMEOUT, task).await;
    }
    Ok(())
}

/// Locks the state, which only one gateway may use at a time.
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
    functions: Arc<FunctionMeters>,
    draining: Arc<AtomicBool>,
) -> Result<Option<admin::AdminServer>, GatewayError> {
    let Some(address) = config.admin else { return Ok(None) };
    let health = Health::by_flag(draining);
    let routes = Routes::new(meter.clone(), health, "unlade", env!("CARGO_PKG_VERSION"));
    let routes = routes.route("/metrics", move |_| {
        let mut text = meter.text();
        functions.render(&mut text);
        Answer { status: 200, content_type: METRICS_TYPE, body: text.finish() }
    });
    Ok(Some(admin::start(address, routes)?))
}

/// The keys of callers, and one pair for clients on this machine.
fn keys(config: &GatewayConfig) -> io::Result<(Option<Keys>, Option<KeyPair>)> {
    if config.authentication == Authentication::Keys {
        let (keys, own) = credentials::load(config)?;
        return Ok((Some(keys), own));
    }
    let why = "every client that reaches the gateway can deploy, invoke and remove as any tenant";
    tracing::warn!(why, "authentication is off");
    Ok((None, None))
}

async fn start_store(
    config: &GatewayConfig,
    executable: &Path,
    own: Option<&KeyPair>,
) -> Result<Option<Started>, GatewayError> {
    let of_tenant = config.tenant.get(DEFAULT_TENANT).and_then(|tenant| tenant.store.as_ref());
    if config.store.is_some() || of_tenant.is_some() {
        return Ok(None);
    }
    // Clients use one pair of keys for both. A tenant with limited rights accesses the store
    // through functions.
    let is_bound = config.tenant.get(DEFAULT_TENANT).is_some_and(|tenant| tenant.role.is_some());
    let own = own.filter(|_| !is_bound);
    let started = Store::start(executable, &config.state, config.store_listen, own).await;
    Ok(Some(started.map_err(system(format!("the built-in store, {}", config.store_listen)))?))
}

/// Loads the deployed functions, and those of the directory that can be imported. The others are
/// logged and omitted.
async fn load(host: &Rc<Host>) -> Result<(), GatewayError> {
    host.registry.load()?;
    for (name, _) in host.registry.all() {
        host.reconcile(&name);
    }
    if let Some(directory) = &host.config.functions {
        publish_all(host, deploy::of_directory(directory)?).await;
    }
    Ok(())
}

/// Serves functions of the directory, each after its import. If the import fails, that is logged,
/// and the previous function with the name continues to serve.
async fn publish_all(host: &Rc<Host>, found: Vec<(String, Revision)>) {
    let mut trials = tokio::task::JoinSet::new();
    for (name, revision) in found {
        if is_deployed(host, &name) {
            continue;
        }
        let host = host.clone();
        trials.spawn_local(async move {
            let made = host.make(&name, revision).map_err(|error| error.to_string());
            let tried = match made {
                Ok(function) => tried(&host, &function).await.map(|()| function),
                Err(why) => Err(why),
            };
            match tried {
                // It may have been deployed meanwhile.
                Ok(function) if !is_deployed(&host, &name) => host.publish(&function),
                Ok(_) => {}
                Err(why) => {
                    host.meter.add(Event::FnDeployRefused);
                    let before = host.function(&name).is_some();
                    let then = if before { "stays as it was" } else { "is not served" };
                    tracing::error!(function = name, "{then}: {why}");
                }
            }
        });
    }
    while trials.join_next().await.is_some() {}
}

/// Tries to import a function of the directory, with a temporary template: most functions stay
/// idle for long before their first invocation.
async fn tried(host: &Rc<Host>, function: &Rc<Function>) -> Result<(), String> {
    if !host.config.check_imports {
        return Ok(());
    }
    let template = host.prepare(function).await?;
    trial::check(host, function, template).await
}

/// Returns true if a deployed function has the name of a function in the directory; the deployed
/// one stays.
fn is_deployed(host: &Host, name: &str) -> bool {
    let is_deployed = host.registry.get(name).is_some();
    if is_deployed {
        let why = "a deployed function has this name; remove one of them";
        tracing::error!(function = name, why, "not served from the directory");
    }
    is_deployed
}

/// Reloads limits, tenants, and functions of the directory `functions`. Other changes need a
/// restart.
async fn reload(host: &Rc<Host>, read: &dyn Fn() -> Result<GatewayConfig, ConfigError>) {
    let config = match read() {
        Ok(config) => config,
        Err(error) => return tracing::error!(%error, "not reloaded; all stays as it was"),
    };
    if config.workers != host.config.workers {
        tracing::error!("workers: needs another start of the gateway");
    }
    if config.authentication != host.config.authentication {
        tracing::error!("authentication: needs another start of the gateway");
    } else {
        match keys(&config) {
            Ok((mut keys, _)) => {
                // A tenant that stays keeps its keys, so that its functions can be removed.
                if let (Some(keys), Some(before)) = (&mut keys, &*host.keys.borrow()) {
                    keys.keep(before, |tenant| host.stays(tenant, &config.tenant));
                }
                host.tenants.set_keys(keys.clone());
                *host.keys.borrow_mut() = keys;
            }
            Err(error) => tracing::error!(%error, "keys of tenants are not reloaded"),
        }
    }
    host.limit(config.limits());
    // Functions may belong to new tenants, or no longer to old ones.
    if let Err(error) = host.tenants.apply(&config) {
        tracing::error!(%error, "tenants are not reloaded");
    }
    host.rule(&config.tenant);
    reload_functions(host, &config).await;
    let is_used = |tenant: &Rc<Tenant>| {
        host.functions().iter().any(|function| Rc::ptr_eq(&function.tenant, tenant))
    };
    for tenant in host.tenants.part(&config, is_used) {
        tokio::task::spawn_local(leave(host.clone(), config.clone(), tenant));
    }
}

async fn reload_functions(host: &Rc<Host>, config: &GatewayConfig) {
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
    publish_all(host, found).await;
    tracing::info!(functions = count, "reloaded");
}

/// Removes a tenant after its instances have ended, or after a timeout.
async fn leave(host: Rc<Host>, config: GatewayConfig, tenant: Rc<Tenant>) {
    let end = Instant::now() + config.drain_timeout;
    let is_in_use = || {
        host.attached_instances()
            .iter()
            .any(|attached_instance| Rc::ptr_eq(&attached_instance.function.tenant, &tenant))
    };
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

/// The environment that `aws` and boto3 need, as shell text.
fn client_environment(
    config: &GatewayConfig,
    access: Option<&Access>,
    own: Option<&KeyPair>,
    gateway: std::net::SocketAddr,
) -> String {
    let mut text = String::new();
    for service in ["LAMBDA", "CLOUDFORMATION", "STS"] {
        text += &format!("export AWS_ENDPOINT_URL_{service}=http://{gateway}\n");
    }
    let mut set = |name: &str, value: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.:/+=@%".contains(c);
        let value = match value.chars().all(is_plain) {
            true => value.to_owned(),
            false => format!("'{}'", value.replace('\'', "'\\''")),
        };
        text.push_str(&format!("export {name}={value}\n"));
    };
    if let Some(access) = access {
        set("AWS_ENDPOINT_URL_S3", &access.endpoint);
    }
    // Without authentication the keys of the store are valid for both.
    let store = access.filter(|_| config.authentication == Authentication::Off);
    let store = store.map(|access| (&access.access_key_id, &access.secret_access_key));
    let own = own.map(|pair| (&pair.access_key_id, &pair.secret_access_key));
    if let Some((id, secret)) = own.or(store) {
        set("AWS_ACCESS_KEY_ID", id);
        set("AWS_SECRET_ACCESS_KEY", secret);
    }
    set("AWS_DEFAULT_REGION", access.map_or(REGION, |access| &access.region));
    text
}

/// Waits for running invocations, and for the messages of queues that are on their way; then the workers
/// finish pending writes.
async fn drain(host: &Rc<Host>) {
    let end = Instant::now() + host.config.drain_timeout;
    host.sources.drain();
    let is_busy = || host.running.get() > 0 || host.sources.is_busy();
    while is_busy() && Instant::now() < end {
        tokio::time::sleep(PAUSE).await;
    }
    if is_busy() {
        tracing::error!(running = host.running.get(), "did not end in time");
    }
    for attached_instance in host.attached_instances() {
        attached_instance.stop.notify_one();
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
}
