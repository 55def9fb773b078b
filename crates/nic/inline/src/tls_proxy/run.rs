//! The process: devices, the engine's thread, listeners, one thread for all connections.

use std::cell::Cell;
use std::fmt::Display;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout_at;
use unlade_runtime::admin;
use unlade_runtime::admin::{AdminServer, Answer, Health, Routes};
use unlade_runtime::listen::ListenError;
use unlade_runtime::{Control, Phase, Watch, WorkersConfig};

use super::config::Config;
use super::devices::{self, DeviceError};
use super::error::RunError;
use super::handshake::{self, Established};
use super::live::{Live, Reloader, Role};
use super::metrics::{self, Connections};
use super::rate_limit::RateLimit;
use super::relay::relay;
use super::stream;
use crate::device::Device;

/// Backlog of a listener in the kernel.
const BACKLOG: i32 = 1024;
/// Pause after a failed accept (out of descriptors), to avoid a busy loop.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Interval of the checks for the last connections.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);

/// Rate-limited log lines of failed connections.
#[derive(Default)]
struct Failures {
    handshakes: RateLimit,
    connects: RateLimit,
}

/// The state that all connections share.
struct ProxyState {
    config: Config,
    device: Option<Device>,
    connections: Arc<Connections>,
    failures: Failures,
}

/// Runs until SIGTERM or SIGINT, on which connections are finished. On SIGHUP `read` returns a
/// new configuration: new connections use its certificates, servers and limits. An invalid
/// configuration is refused. The caller has set up the log.
///
/// # Errors
/// [`RunError`].
pub fn run<E: Display>(
    config: Config,
    read: impl FnMut() -> Result<Config, E>,
) -> Result<(), RunError> {
    config.check()?;
    if let Some(core) = config.host_core {
        let mut cores = CpuSet::new();
        cores.set(core);
        let pinned = sched_setaffinity(None, &cores);
        pinned.map_err(|error| RunError::Core { core, error: error.into() })?;
    }
    let live = Live::load(&config)?;
    let device = Device::new().map_err(DeviceError::Engine)?;
    let engine = devices::start(&config, &device)?;
    let mut listeners = Vec::new();
    for (address, role) in live.listeners() {
        listeners.push(listen(&config, address, role)?);
    }
    let mut reloader = Reloader::new(config.clone(), &live, read);
    let reload = move || -> Result<Live, RunError> {
        let (live, changes) = reloader.reload()?;
        changes.log();
        Ok(live)
    };
    let connections = Arc::new(Connections::default());
    let control = Control::new(live);
    let admin = start_admin(&config, &control, &connections, &device)?;
    #[cfg(debug_assertions)]
    let counted = (connections.clone(), device.clone());
    let offloads = engine.is_some() && !config.software;
    let drain_timeout = config.drain_timeout;
    let device = offloads.then_some(device);
    let shared =
        Arc::new(ProxyState { config, device, connections, failures: Failures::default() });
    let workers = WorkersConfig { threads: 1, drain_timeout, ..WorkersConfig::new("nic") };
    let listeners = Mutex::new(Some(listeners));
    unlade_runtime::run_workers(&workers, &control, reload, move |_, watch| {
        let listeners = listeners.lock().unwrap_or_else(PoisonError::into_inner).take();
        serve(listeners.unwrap_or_default(), shared.clone(), watch)
    })?;
    drop(admin);
    drop(engine);
    // Debug builds record the text for a check of the tests.
    #[cfg(debug_assertions)]
    metrics::render(&counted.0, &counted.1.counters());
    Ok(())
}

fn start_admin(
    config: &Config,
    control: &Control<Live>,
    connections: &Arc<Connections>,
    device: &Device,
) -> Result<Option<AdminServer>, RunError> {
    let Some(address) = config.admin else { return Ok(None) };
    let (control, connections, device) = (control.clone(), connections.clone(), device.clone());
    let health = move || Health::from(control.phase());
    let metrics = move |_: Option<&str>| Answer {
        status: 200,
        content_type: admin::METRICS_TYPE,
        body: metrics::render(&connections, &device.counters()),
    };
    let meter = Arc::new(unlade_metrics::Meter::new());
    let routes = Routes::new(meter, health, "unlade nic", env!("CARGO_PKG_VERSION"));
    Ok(Some(admin::start(address, routes.route("/metrics", metrics))?))
}

/// Opens a socket of the TLS side. It is bound to the TAP device, if there is one: its
/// connections cannot use another route, on which they would not be sealed.
fn tls_socket(config: &Config, address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if !config.wire.is_empty() {
        socket.bind_device(Some(config.tap.as_bytes()))?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn listen(config: &Config, address: SocketAddr, role: &Role) -> Result<StdListener, RunError> {
    let open = || -> io::Result<Socket> {
        let socket = match role {
            Role::Terminate(..) => tls_socket(config, address)?,
            Role::Originate(..) => {
                Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?
            }
        };
        socket.set_nonblocking(true)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    let socket = open().map_err(|error| ListenError::new(address, error))?;
    let listener: StdListener = socket.into();
    if let Ok(address) = listener.local_addr() {
        tracing::info!(%address, "listening");
    }
    Ok(listener)
}

/// Accepts until shutdown, and then waits for the connections.
async fn serve(
    listeners: Vec<StdListener>,
    shared: Arc<ProxyState>,
    mut watch: Watch<Live>,
) -> io::Result<()> {
    let active = Rc::new(Cell::new(0usize));
    let mut accepting = Vec::new();
    for (number, listener) in listeners.into_iter().enumerate() {
        let listener = TcpListener::from_std(listener)?;
        let (shared, active, watch) = (shared.clone(), active.clone(), watch.clone());
        let accept = accept(listener, number, shared, active, watch);
        accepting.push(tokio::task::spawn_local(accept));
    }
    watch.reached(Phase::Draining).await;
    accepting.iter().for_each(tokio::task::JoinHandle::abort);
    while active.get() > 0 {
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
    Ok(())
}

/// Accepts connections of the listener with this number.
async fn accept(
    listener: TcpListener,
    number: usize,
    shared: Arc<ProxyState>,
    active: Rc<Cell<usize>>,
    watch: Watch<Live>,
) {
    loop {
        // Connections beyond the limit wait in the kernel's backlog.
        if active.get() >= watch.config().connections_max {
            tokio::time::sleep(DRAIN_PAUSE).await;
            continue;
        }
        let (tcp, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        // The current configuration, not the one from before the wait.
        let live = watch.config();
        let Some(role) = live.role(number).cloned() else { continue };
        shared.connections.accepted.add(1);
        let place = ConnectionSlot::take(&active, &shared.connections);
        let shared = shared.clone();
        tokio::task::spawn_local(async move {
            connection(tcp, peer, role, live.handshake_timeout, &shared).await;
            drop(place);
        });
    }
}

/// One slot of the limit of concurrent connections.
struct ConnectionSlot {
    active: Rc<Cell<usize>>,
    connections: Arc<Connections>,
}

impl ConnectionSlot {
    fn take(active: &Rc<Cell<usize>>, connections: &Arc<Connections>) -> ConnectionSlot {
        active.set(active.get() + 1);
        connections.active.add(1);
        ConnectionSlot { active: active.clone(), connections: connections.clone() }
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.active.set(self.active.get() - 1);
        self.connections.active.subtract(1);
    }
}

async fn connection(
    tcp: TcpStream,
    peer: SocketAddr,
    role: Role,
    timeout: Duration,
    shared: &ProxyState,
) {
    let connections = &shared.connections;
    let (established, plain) = match join(tcp, role, timeout, shared).await {
        Ok(joined) => joined,
        Err(failure) => return failure.note(peer, shared).await,
    };
    let relayed = async {
        let opened = stream::open(established, shared.device.as_ref()).await?;
        if opened.offloaded {
            connections.offloaded.add(1);
        }
        relay(opened, plain).await
    };
    match relayed.await {
        Ok(relayed) => {
            tracing::debug!(?relayed, "finished");
            connections.finished.add(1);
        }
        Err(error) => {
            tracing::debug!(%peer, %error, "failed");
            connections.failed.add(1);
        }
    }
}

/// The reason that a connection does not reach its other side.
enum Failure {
    /// The handshake failed, with the server of this address or, without one, with the client.
    Handshake(handshake::Failure, Option<SocketAddr>),
    /// The handshake took too long.
    Late(handshake::Failed, Option<SocketAddr>),
    /// The connection to the other side failed.
    Connect { what: &'static str, key: &'static str, address: SocketAddr, error: io::Error },
    /// The client's socket failed.
    Client(io::Error),
}

impl Failure {
    /// Counts and logs the failure; then the peer is notified.
    async fn note(self, peer: SocketAddr, shared: &ProxyState) {
        let ProxyState { connections, failures, .. } = shared;
        let handshake = |failed: &handshake::Failed, server: Option<SocketAddr>| {
            connections.handshakes_failed.add(1);
            let Some(others) = failures.handshakes.permit(Instant::now()) else { return };
            let (with, reason) = (server.unwrap_or(peer), failed.reason());
            match server {
                None => tracing::warn!(peer = %with, reason, others, "no TLS: {failed}"),
                Some(_) => {
                    let client = peer;
                    tracing::warn!(server = %with, %client, reason, others, "no TLS: {failed}");
                }
            }
        };
        match self {
            Failure::Handshake(failure, server) => {
                handshake(&failure.failed, server);
                failure.linger().await;
            }
            Failure::Late(failed, server) => handshake(&failed, server),
            Failure::Connect { what, key, address, error } => {
                connections.connects_failed.add(1);
                if let Some(others) = failures.connects.permit(Instant::now()) {
                    tracing::warn!(
                        client = %peer,
                        others,
                        "the {what} {address} cannot be reached: {error}; is it running, and is \
                         `{key}` right?"
                    );
                }
            }
            Failure::Client(error) => {
                tracing::debug!(%peer, %error, "failed before it began");
                connections.failed.add(1);
            }
        }
    }
}

/// Connects to the other side, and runs the handshake of the TLS side, all within `timeout`.
async fn join(
    tcp: TcpStream,
    role: Role,
    timeout: Duration,
    shared: &ProxyState,
) -> Result<(Established, TcpStream), Failure> {
    let deadline = tokio::time::Instant::now() + timeout;
    let late = || handshake::Failed::TimedOut(timeout);
    tcp.set_nodelay(true).map_err(Failure::Client)?;
    match role {
        Role::Terminate(config, backend) => {
            let established = timeout_at(deadline, handshake::accept(tcp, config)).await;
            let established = established
                .map_err(|_| Failure::Late(late(), None))?
                .map_err(|failure| Failure::Handshake(failure, None))?;
            let plain = reach(deadline, TcpStream::connect(backend)).await;
            let (what, key) = ("backend", "backend");
            let failed = |error| Failure::Connect { what, key, address: backend, error };
            Ok((established, plain.map_err(failed)?))
        }
        Role::Originate(config, name, address) => {
            let there = async {
                let socket = tls_socket(&shared.config, address)?;
                SockRef::from(&socket).set_tcp_nodelay(true)?;
                let socket = TcpSocket::from_std_stream(socket.into());
                reach(deadline, socket.connect(address)).await
            };
            let (what, key) = ("server", "connect");
            let failed = |error| Failure::Connect { what, key, address, error };
            let there = there.await.map_err(failed)?;
            let established = timeout_at(deadline, handshake::connect(there, &config, name)).await;
            let established = established
                .map_err(|_| Failure::Late(late(), Some(address)))?
                .map_err(|failure| Failure::Handshake(failure, Some(address)))?;
            Ok((established, tcp))
        }
    }
}

/// Connects until `deadline`.
async fn reach(
    deadline: tokio::time::Instant,
    connect: impl Future<Output = io::Result<TcpStream>>,
) -> io::Result<TcpStream> {
    match timeout_at(deadline, connect).await {
        Ok(connected) => connected,
        Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer (handshake_timeout)")),
    }
}
