//! Adopting connections: the listener API for servers.
//!
//! [`Handoff`] is opened once for each process and has the certificates, the agent's socket and the
//! steering programs. Each worker thread then has its own [`HandoffListener`], whose `accept`
//! yields connections that a balancer has handed over. docs/adoption.md describes the rules.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, spawn_local};
use unlade_channel::role::{Balancers, NameError};
use unlade_channel::trust::{ServerTrust, TrustError, TrustFiles};
use unlade_metrics::{Meter, Role};
use unlade_runtime::listen;
use unlade_runtime::listen::{ListenError, ListenOptions};
use unlade_steering::load::{Hook, SteeringConfig};
use unlade_steering::{SteerError, Steering, Windows};
use unlade_sys::link::Link;

use crate::agent::{
    self, AdoptedConn, Agent, AgentLimits, Arrival, Inboxes, Queues, SealingArrival,
};
use crate::connection::HandoffStream;
use crate::greet;
use crate::release::Lease;
use crate::scopes::Rings;

/// Error of setting up adoption.
#[derive(Debug, thiserror::Error)]
pub enum HandoffError {
    /// The agent's address cannot be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The pool's certificates cannot be loaded.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// A balancer's name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The interface of client packets cannot be found.
    #[error("{0}; name `interface`")]
    Interface(#[source] io::Error),
    /// The packets of returned connections cannot be redirected.
    #[error("{0}; CAP_NET_ADMIN and CAP_BPF are needed to adopt connections")]
    Steering(#[from] SteerError),
    /// A packet socket cannot be opened.
    #[error("a packet socket: {0}; CAP_NET_RAW is needed")]
    Packets(#[source] io::Error),
    /// The worker does not exist or already has a listener.
    #[error("worker {0} has a listener already, or is not one of `workers`")]
    Worker(usize),
}

/// Configuration of adoption.
#[derive(Clone, Debug)]
pub struct HandoffConfig {
    /// Address to which balancers connect.
    pub address: SocketAddr,
    /// Certificates of the control channels, which are always mutual TLS.
    pub trust: TrustFiles,
    /// Names of the balancers: host names, IP addresses or URIs, one of which is a subject
    /// alternative name of a balancer's certificate. If empty, every certificate with
    /// [`unlade_channel::role::BALANCER_ROLE`] is accepted.
    pub balancers: Vec<String>,
    /// Interface of client packets; by default the one that has `address`.
    pub interface: Option<String>,
    /// Name of this server in logs; `address` by default.
    pub name: Option<String>,
    /// Number of threads that adopt connections.
    pub workers: usize,
    /// Maximum number of connections adopted at once.
    pub adoptions_max: usize,
    /// Upper bound of how long a connection outlives its channel; the balancer may request less.
    pub lease: Duration,
    /// Time without an acknowledged byte of a response after which the connection is closed.
    pub write_timeout: Duration,
}

impl HandoffConfig {
    /// Creates a configuration with one worker and the default limits of `unlade backend`.
    pub fn new(address: SocketAddr, trust: TrustFiles) -> HandoffConfig {
        HandoffConfig {
            address,
            trust,
            balancers: Vec::new(),
            interface: None,
            name: None,
            workers: 1,
            adoptions_max: 16 * 1024,
            lease: Duration::from_secs(5),
            write_timeout: Duration::from_secs(60),
        }
    }
}

/// State that the listeners of all workers share.
#[derive(Clone)]
pub struct Handoff {
    listener: Arc<Mutex<Option<TcpListener>>>,
    trusted: Arc<watch::Sender<Arc<ServerTrust>>>,
    files: TrustFiles,
    balancers: Balancers,
    steering: Arc<Steering>,
    windows: Option<Arc<Windows>>,
    senders: Inboxes,
    receivers: Arc<Mutex<Vec<Option<mpsc::Receiver<Arrival>>>>>,
    limits: AgentLimits,
    rings: Rings,
    meter: Arc<Meter>,
}

impl fmt::Debug for Handoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handoff {{ limits: {:?} }}", self.limits)
    }
}

impl Handoff {
    /// Binds the agent's address and attaches the steering programs to the interface. `meter`
    /// counts the adopted connections.
    ///
    /// # Errors
    /// The first resource that is unavailable.
    pub fn open(config: &HandoffConfig, meter: Arc<Meter>) -> Result<Handoff, HandoffError> {
        let balancers = Balancers::named(&config.balancers)?;
        let gatekeeper = Arc::new(ServerTrust::load(&config.trust, &balancers)?);
        let listener = listen::bind(config.address, &ListenOptions::default())?;
        let interface = match &config.interface {
            Some(name) => name.clone(),
            None => Link::by_address(config.address.ip()).map_err(HandoffError::Interface)?.name,
        };
        let steering = Steering::open(&SteeringConfig {
            interface,
            // A returned connection keeps its entry for a moment.
            flows_max: (config.adoptions_max as u32).saturating_mul(2),
            hold: None,
            hook: Hook::Tc,
        })?;
        let windows = Windows::open().inspect_err(|error| {
            tracing::warn!(%error, "adopted connections start from the initial window");
        });
        let workers = config.workers.max(1);
        let (senders, receivers) = agent::inboxes(workers);
        Ok(Handoff {
            listener: Arc::new(Mutex::new(Some(listener))),
            trusted: Arc::new(watch::Sender::new(gatekeeper)),
            files: config.trust.clone(),
            balancers,
            steering: Arc::new(steering),
            windows: windows.ok().map(Arc::new),
            senders,
            receivers: Arc::new(Mutex::new(receivers.into_iter().map(Some).collect())),
            limits: AgentLimits {
                name: config.name.clone().unwrap_or_else(|| config.address.to_string()),
                adoptions_max: config.adoptions_max.div_ceil(workers),
                lease_ms: config.lease.as_millis().min(u32::MAX.into()) as u32,
                write_timeout: config.write_timeout,
            },
            rings: Rings::default(),
            meter,
        })
    }

    /// Reloads the trust files. They apply to new channels, and channels of balancers that are no
    /// longer trusted are closed.
    ///
    /// # Errors
    /// [`TrustError`] names the file; the previous settings stay in force.
    pub fn reload_trust(&self) -> Result<(), TrustError> {
        let gatekeeper = Arc::new(ServerTrust::load(&self.files, &self.balancers)?);
        self.trusted.send_if_modified(|known| {
            let differs = known.mark != gatekeeper.mark;
            if differs {
                *known = gatekeeper;
                tracing::info!("the certificates of the control channels are new");
            }
            differs
        });
        Ok(())
    }

    /// Creates the listener of one worker, counted from 0. Call it on the worker's thread, on a
    /// tokio
    /// `current_thread` runtime and inside a `LocalSet`. Balancers are served once every worker
    /// has called it.
    ///
    /// # Errors
    /// [`HandoffError`].
    pub fn listen(&self, worker: usize) -> Result<HandoffListener, HandoffError> {
        let mut receivers = self.receivers.lock().unwrap_or_else(PoisonError::into_inner);
        let receiver = receivers.get_mut(worker).and_then(Option::take);
        drop(receivers);
        let receiver = receiver.ok_or(HandoffError::Worker(worker))?;
        let (steering, meter) = (Arc::clone(&self.steering), Arc::clone(&self.meter));
        let trusted = self.trusted.subscribe();
        let (windows, limits) = (self.windows.clone(), self.limits.clone());
        let shared = (self.rings.clone(), trusted);
        let (agent, Queues { adopted, sealing }) =
            Agent::new(steering, windows, meter, limits, shared).map_err(HandoffError::Packets)?;
        let mut tasks = vec![spawn_local(Rc::clone(&agent).run(receiver))];
        let listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(listener) = listener {
            let listener = listen::register(listener)?;
            let (trusted, meter) = (self.trusted.subscribe(), Arc::clone(&self.meter));
            tasks.push(spawn_local(greet::greet(listener, trusted, self.senders.clone(), meter)));
        }
        Ok(HandoffListener { agent, adopted, sealing: Some(sealing), tasks })
    }
}

/// Listener of the connections that balancers hand over to one worker. Dropping it closes the
/// worker's channels; the balancers then recover the connections that they can.
pub struct HandoffListener {
    agent: Rc<Agent>,
    adopted: mpsc::UnboundedReceiver<AdoptedConn>,
    sealing: Option<mpsc::UnboundedReceiver<SealingArrival>>,
    tasks: Vec<JoinHandle<()>>,
}

impl fmt::Debug for HandoffListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandoffListener").field("agent", &self.agent).finish_non_exhaustive()
    }
}

impl HandoffListener {
    /// Creates the listener of a server with one thread. See [`Handoff::listen`] for the context in
    /// which to call it.
    ///
    /// # Errors
    /// [`HandoffError`].
    pub fn bind(config: &HandoffConfig) -> Result<HandoffListener, HandoffError> {
        let config = HandoffConfig { workers: 1, ..config.clone() };
        Handoff::open(&config, Arc::new(Meter::for_role(Role::Backend)))?.listen(0)
    }

    /// Waits for the next live connection, whose input begins with a request.
    pub async fn accept(&mut self) -> HandoffStream {
        // Nobody takes these: they are closed.
        self.sealing = None;
        let lease = self.accept_lease().await;
        HandoffStream::new(lease, Rc::clone(&self.agent))
    }

    pub(crate) async fn accept_lease(&mut self) -> Lease {
        match self.adopted.recv().await {
            Some(adopted) => Lease::new(adopted),
            // The agent owns the sender and lives as long as this value.
            None => std::future::pending().await,
        }
    }

    /// Returns the queue of the connections on which responses are to be sealed, at the first call.
    pub(crate) fn take_sealing(&mut self) -> Option<mpsc::UnboundedReceiver<SealingArrival>> {
        self.sealing.take()
    }

    /// Returns the worker's agent, for example for the number of its adopted connections.
    pub fn agent(&self) -> &Rc<Agent> {
        &self.agent
    }

    /// Refuses further offers and recalls every connection: `next_request` returns None. Returns
    /// when the last connection is gone and the balancers have been notified, or after `limit`.
    pub async fn drain(&mut self, limit: Duration) {
        self.agent.drain();
        // Connections left after the limit end when the caller drops them.
        let _ = tokio::time::timeout(limit, self.agent.drained()).await;
        self.agent.flushed().await;
    }
}

impl Drop for HandoffListener {
    fn drop(&mut self) {
        self.tasks.drain(..).for_each(|task| task.abort());
    }
}
