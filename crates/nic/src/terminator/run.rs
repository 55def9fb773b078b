//! The process: devices, the engine's thread, listeners, one thread for all connections.

use std::cell::Cell;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use service::admin::{self, AdminError, AdminServer, Answer, Health, Routes};
use service::listen::ListenError;
use service::{Control, Phase, Watch, WorkersConfig, WorkersError};
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use thiserror::Error;
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use super::config::{Config, ConfigError, Originate, Terminate};
use super::devices::{self, DeviceError};
use super::handshake::{self, Established};
use super::metrics::{self, Connections};
use super::relay::relay;
use super::stream;
use crate::bump::Device;

/// Connections that wait for their turn in the kernel.
const BACKLOG: i32 = 1024;
/// Pause after a failed accept (descriptors exhausted), so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Pause between two looks at the last connections.
const DRAIN_PAUSE: Duration = Duration::from_millis(10);

/// Why the process cannot start, or ended before it was told to.
#[derive(Debug, Error)]
pub enum RunError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The devices.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The log.
    #[error(transparent)]
    Log(#[from] service::logs::LogError),
    /// The admin endpoint.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The thread of connections.
    #[error(transparent)]
    Workers(#[from] WorkersError),
    /// A listener.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A file.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// A file's contents.
    #[error("{}: {said}", path.display())]
    Tls {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        said: String,
    },
    /// A name.
    #[error("name = {0:?} is not a server's name")]
    Name(String),
    /// A processor.
    #[error("host_core = {core}: {error}")]
    Core {
        /// Which.
        core: usize,
        /// What the kernel said.
        error: io::Error,
    },
}

/// What a listener does with a connection.
#[derive(Clone)]
enum Role {
    /// TLS comes in; goes on in the clear to the server.
    Terminate(Arc<ServerConfig>, SocketAddr),
    /// Comes in in the clear; goes on by TLS, to the server of this name.
    Originate(Arc<ClientConfig>, ServerName<'static>, SocketAddr),
}

/// What all connections share.
struct Shared {
    config: Config,
    device: Option<Device>,
    connections: Arc<Connections>,
}

/// Runs until SIGTERM or SIGINT, on which connections are finished.
///
/// # Errors
/// [`RunError`].
pub fn run(config: Config) -> Result<(), RunError> {
    config.check()?;
    service::logs::init(&config.log)?;
    if let Some(core) = config.host_core {
        let mut cores = CpuSet::new();
        cores.set(core);
        let pinned = sched_setaffinity(None, &cores);
        pinned.map_err(|error| RunError::Core { core, error: error.into() })?;
    }
    let roles = roles(&config)?;
    let device = Device::new().map_err(DeviceError::Engine)?;
    let engine = devices::start(&config, &device)?;
    let mut listeners = Vec::new();
    for (address, role) in roles {
        listeners.push((listen(&config, address, &role)?, role));
    }
    let connections = Arc::new(Connections::default());
    let control = Control::new(());
    let admin = start_admin(&config, &control, &connections, &device)?;
    let offloads = engine.is_some() && !config.software;
    let drain_timeout = config.drain_timeout;
    let shared = Arc::new(Shared { config, device: offloads.then_some(device), connections });
    let workers = WorkersConfig { threads: 1, drain_timeout, ..WorkersConfig::new("nic") };
    let listeners = Mutex::new(Some(listeners));
    service::run_workers(
        &workers,
        &control,
        || Ok::<(), &str>(()),
        move |_, watch| {
            let listeners = listeners.lock().unwrap_or_else(PoisonError::into_inner).take();
            serve(listeners.unwrap_or_default(), shared.clone(), watch)
        },
    )?;
    drop(admin);
    drop(engine);
    Ok(())
}

fn start_admin(
    config: &Config,
    control: &Control<()>,
    connections: &Arc<Connections>,
    device: &Device,
) -> Result<Option<AdminServer>, RunError> {
    let Some(address) = config.admin else { return Ok(None) };
    let (control, connections, device) = (control.clone(), connections.clone(), device.clone());
    let health = move || match control.phase() {
        Phase::Running => Health::Ok,
        _ => Health::Draining,
    };
    let metrics = move |_: Option<&str>| Answer {
        status: 200,
        content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
        body: metrics::render(&connections, &device.counted()),
    };
    let meter = Arc::new(meter::Meter::new());
    let routes = Routes::new(meter, health, "unlade nic", env!("CARGO_PKG_VERSION"));
    Ok(Some(admin::start(address, routes.route("/metrics", metrics))?))
}

fn roles(config: &Config) -> Result<Vec<(SocketAddr, Role)>, RunError> {
    let mut roles = Vec::new();
    for terminate in &config.terminate {
        let role = Role::Terminate(server_config(terminate)?, terminate.backend);
        roles.push((terminate.listen, role));
    }
    for originate in &config.originate {
        let name = ServerName::try_from(originate.name.clone())
            .map_err(|_| RunError::Name(originate.name.clone()))?;
        let role = Role::Originate(client_config(originate)?, name, originate.connect);
        roles.push((originate.listen, role));
    }
    Ok(roles)
}

fn read(path: &PathBuf) -> Result<Vec<u8>, RunError> {
    std::fs::read(path).map_err(|error| RunError::File { path: path.clone(), error })
}

fn server_config(terminate: &Terminate) -> Result<Arc<ServerConfig>, RunError> {
    let failed = |error: record::ConfigError| RunError::Tls {
        path: terminate.certificate.clone(),
        said: error.to_string(),
    };
    let (certificate, key) = (read(&terminate.certificate)?, read(&terminate.key)?);
    let (chain, key) = record::config::identity_from_pem(&certificate, &key).map_err(failed)?;
    let alpn: Vec<&[u8]> = terminate.alpn.iter().map(|name| name.as_bytes()).collect();
    record::server_config(chain, key, &alpn).map_err(failed)
}

fn client_config(originate: &Originate) -> Result<Arc<ClientConfig>, RunError> {
    let failed = |said: String| RunError::Tls { path: originate.ca.clone(), said };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&read(&originate.ca)?) {
        let certificate = certificate.map_err(|error| failed(error.to_string()))?;
        roots.add(certificate).map_err(|error| failed(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(failed("holds no certificate".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| failed(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = originate.alpn.iter().map(|name| name.clone().into_bytes()).collect();
    Ok(Arc::new(config))
}

/// A socket of the TLS side. It is bound to the TAP device, where there is one: nothing of its
/// connections can take another way, on which it would not be sealed.
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

/// Accepts until told to end, and waits for the connections then.
async fn serve(
    listeners: Vec<(StdListener, Role)>,
    shared: Arc<Shared>,
    mut watch: Watch<()>,
) -> io::Result<()> {
    let active = Rc::new(Cell::new(0usize));
    let mut accepting = Vec::new();
    for (listener, role) in listeners {
        let listener = TcpListener::from_std(listener)?;
        let (shared, active) = (shared.clone(), active.clone());
        accepting.push(tokio::task::spawn_local(accept(listener, role, shared, active)));
    }
    watch.reached(Phase::Draining).await;
    accepting.iter().for_each(tokio::task::JoinHandle::abort);
    while active.get() > 0 {
        tokio::time::sleep(DRAIN_PAUSE).await;
    }
    Ok(())
}

async fn accept(listener: TcpListener, role: Role, shared: Arc<Shared>, active: Rc<Cell<usize>>) {
    loop {
        // What is beyond the limit waits in the kernel.
        if active.get() >= shared.config.connections_max {
            tokio::time::sleep(DRAIN_PAUSE).await;
            continue;
        }
        let tcp = match listener.accept().await {
            Ok((tcp, _)) => tcp,
            Err(error) => {
                tracing::warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        Connections::add(&shared.connections.accepted);
        let place = Place::take(&active, &shared.connections);
        let (role, shared) = (role.clone(), shared.clone());
        tokio::task::spawn_local(async move {
            connection(tcp, role, &shared).await;
            drop(place);
        });
    }
}

/// One of the connections that there may be.
struct Place {
    active: Rc<Cell<usize>>,
    connections: Arc<Connections>,
}

impl Place {
    fn take(active: &Rc<Cell<usize>>, connections: &Arc<Connections>) -> Place {
        active.set(active.get() + 1);
        connections.active.fetch_add(1, Ordering::Relaxed);
        Place { active: active.clone(), connections: connections.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.active.set(self.active.get() - 1);
        self.connections.active.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(tcp: TcpStream, role: Role, shared: &Shared) {
    let connections = &shared.connections;
    let joined = tokio::time::timeout(shared.config.handshake_timeout, join(tcp, role, shared));
    let (established, plain) = match joined.await {
        Ok(Ok(joined)) => joined,
        failed => {
            let why = match failed {
                Ok(Err(error)) => error.to_string(),
                _ => "timed out".to_owned(),
            };
            tracing::debug!(why, "no connection");
            return Connections::add(&connections.handshakes_failed);
        }
    };
    let relayed = async {
        let opened = stream::open(established, shared.device.as_ref()).await?;
        if opened.offloaded {
            Connections::add(&connections.offloaded);
        }
        relay(opened, plain).await
    };
    match relayed.await {
        Ok(relayed) => {
            tracing::debug!(?relayed, "finished");
            Connections::add(&connections.finished);
        }
        Err(error) => {
            tracing::debug!(%error, "failed");
            Connections::add(&connections.failed);
        }
    }
}

/// Makes the connection's other side, and the handshake of the one with TLS.
async fn join(
    tcp: TcpStream,
    role: Role,
    shared: &Shared,
) -> Result<(Established, TcpStream), handshake::Failed> {
    tcp.set_nodelay(true)?;
    match role {
        Role::Terminate(config, backend) => {
            let established = handshake::accept(tcp, config).await?;
            Ok((established, TcpStream::connect(backend).await?))
        }
        Role::Originate(config, name, server) => {
            let socket = tls_socket(&shared.config, server)?;
            SockRef::from(&socket).set_tcp_nodelay(true)?;
            let socket = TcpSocket::from_std_stream(socket.into());
            let there = socket.connect(server).await?;
            Ok((handshake::connect(there, &config, name).await?, tcp))
        }
    }
}
