//! One controller: its queues, keep alive, events, and reconnection after a loss.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tracing::{debug, info, warn};
use unlade_nvme_wire::identify::{
    IDENTIFY_BYTES, IdentifyController, IdentifyKind, LIST_ENTRIES_MAX, parse_namespaces,
};
use unlade_nvme_wire::{AdminOpcode, Command, Digests};

use super::connect::{self, ConnectError, Live, Tasks};
use super::driver::{CommandError, Handle, Pending};
use super::error::{DeviceError, Gone};
use super::options::{Connector, Options};
use super::queue::{Failure, Payload, Request};

/// Largest number of namespaces that are listed.
pub const NAMESPACES_MAX: usize = 16 * 1024;
/// Outstanding asynchronous event requests.
const EVENTS_OUTSTANDING: usize = 1;
/// Largest number of events of one connection; above it no further event is requested.
const EVENTS_MAX: u32 = 4096;

/// The state of a controller.
#[derive(Clone, Debug)]
enum LinkState {
    Live(Arc<Live>),
    /// The initiator is reconnecting.
    Lost(Loss),
    Gone(Gone),
}

/// A lost connection that is being re-established.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The reason of the loss, or the error of the last attempt to reconnect.
    pub reason: Arc<str>,
    /// Number of failed attempts.
    pub attempts: u32,
}

/// The state of the connection to a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    /// Connected.
    Up,
    /// Lost; the initiator is reconnecting.
    Lost(Loss),
    /// Lost for good.
    Gone(Arc<str>),
}

/// A watch on the connection to a controller.
#[derive(Clone, Debug)]
pub struct LinkWatch(watch::Receiver<LinkState>);

impl LinkWatch {
    /// Waits for the next change, and returns the new state; `None` once the controller is no
    /// longer used.
    pub async fn changed(&mut self) -> Option<Link> {
        self.0.changed().await.ok()?;
        Some(match &*self.0.borrow_and_update() {
            LinkState::Live(_) => Link::Up,
            LinkState::Lost(loss) => Link::Lost(loss.clone()),
            LinkState::Gone(Gone(reason)) => Link::Gone(reason.clone()),
        })
    }
}

/// Counters of a controller since the first connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerStats {
    /// Commands sent.
    pub commands: u64,
    /// Data bytes received.
    pub received_bytes: u64,
    /// Data bytes sent.
    pub sent_bytes: u64,
    /// Wrong data digests.
    pub data_digest_errors: u64,
    /// Reconnections after a loss.
    pub reconnects: u64,
    /// Repeated commands.
    pub retries: u64,
    /// Answered Keep Alive commands.
    pub keep_alives: u64,
    /// Asynchronous events.
    pub events: u64,
}

#[derive(Debug, Default)]
struct Totals {
    /// Counters of past connections: commands, received, sent, digest errors.
    past: [AtomicU64; 4],
    reconnects: AtomicU64,
    retries: AtomicU64,
    keep_alives: AtomicU64,
    events: AtomicU64,
}

struct Inner {
    options: Options,
    state: watch::Receiver<LinkState>,
    stop: watch::Sender<bool>,
    totals: Arc<Totals>,
    /// Index of the queue for the next command.
    next: AtomicUsize,
    supervisor: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(task) = self.supervisor.get_mut().take() {
            task.abort();
        }
    }
}

/// A controller. Clones refer to the same one; its connections end when the last clone is
/// dropped.
#[derive(Clone)]
pub struct Controller(Arc<Inner>);

impl core::fmt::Debug for Controller {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let subsystem = &self.0.options.subsystem;
        f.debug_struct("Controller").field("subsystem", subsystem).finish_non_exhaustive()
    }
}

impl Controller {
    /// Connects to a controller, and maintains the connection.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub async fn connect(
        connector: Arc<dyn Connector>,
        options: Options,
    ) -> Result<Controller, ConnectError> {
        let (live, tasks) = connect::controller(&*connector, &options).await?;
        let live = Arc::new(live);
        let (state_sender, state) = watch::channel(LinkState::Live(live.clone()));
        let (stop, stopped) = watch::channel(false);
        let totals = Arc::new(Totals::default());
        let supervisor = Supervisor {
            connector,
            options: options.clone(),
            state: state_sender,
            stopped,
            totals: totals.clone(),
        };
        let task = tokio::spawn(supervisor.run(live, tasks));
        let supervisor = tokio::sync::Mutex::new(Some(task));
        let next = AtomicUsize::new(0);
        Ok(Controller(Arc::new(Inner { options, state, stop, totals, next, supervisor })))
    }

    /// Shuts the controller down in order. Commands in flight are lost.
    pub async fn close(&self) {
        // An error means that the supervisor has ended already.
        let _ = self.0.stop.send(true);
        let task = self.0.supervisor.lock().await.take();
        if let Some(task) = task {
            let _ = task.await;
        }
    }

    /// The options of the connection.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Waits until the controller is connected, and returns its current connections.
    async fn live(&self) -> Result<Arc<Live>, Gone> {
        let mut state = self.0.state.clone();
        loop {
            match &*state.borrow_and_update() {
                LinkState::Live(live) if !live.is_over() => return Ok(live.clone()),
                LinkState::Gone(gone) => return Err(gone.clone()),
                // The supervisor will notice the end soon.
                LinkState::Live(_) | LinkState::Lost(_) => {}
            }
            if state.changed().await.is_err() {
                return Err(Gone("it was closed".into()));
            }
        }
    }

    /// A watch that reports losses and reconnections from now on.
    pub fn link(&self) -> LinkWatch {
        let mut state = self.0.state.clone();
        state.mark_unchanged();
        LinkWatch(state)
    }

    /// The controller's Identify data.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn identity(&self) -> Result<IdentifyController, Gone> {
        Ok(self.live().await?.identity.clone())
    }

    /// The parameters of the current connections: CNTLID, VS, digests, number of I/O queues.
    ///
    /// # Errors
    /// [`Gone`].
    pub async fn agreed(&self) -> Result<(u16, u32, Digests, usize), Gone> {
        let live = self.live().await?;
        Ok((live.id, live.version, live.digests, live.io.len()))
    }

    /// The counters so far.
    pub fn stats(&self) -> ControllerStats {
        let totals = &self.0.totals;
        let mut counts = totals.past.each_ref().map(|count| count.load(Ordering::Relaxed));
        if let LinkState::Live(live) = &*self.0.state.borrow() {
            add_counts(&mut counts, live);
        }
        let [commands, received_bytes, sent_bytes, data_digest_errors] = counts;
        ControllerStats {
            commands,
            received_bytes,
            sent_bytes,
            data_digest_errors,
            reconnects: totals.reconnects.load(Ordering::Relaxed),
            retries: totals.retries.load(Ordering::Relaxed),
            keep_alives: totals.keep_alives.load(Ordering::Relaxed),
            events: totals.events.load(Ordering::Relaxed),
        }
    }

    /// Runs an admin command; it is repeated if the connection is lost, so it must be idempotent.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub async fn admin(&self, command: Command, payload: Payload) -> Result<Vec<u8>, DeviceError> {
        let mut attempts = 0;
        loop {
            let live = self.live().await?;
            let request = connect::request(command, payload.clone(), &self.0.options);
            match live.admin.execute(request).await {
                Ok(answer) => return Ok(answer.data),
                Err(error) => self.check_retry(error, &mut attempts)?,
            }
        }
    }

    /// Returns `Ok` if a command is to be repeated, and otherwise its final error.
    pub(super) fn check_retry(
        &self,
        error: CommandError,
        attempts: &mut u32,
    ) -> Result<(), DeviceError> {
        let can_be_repeated = match &error {
            CommandError::Lost(_) | CommandError::Failed(Failure::DataDigest) => true,
            CommandError::Failed(Failure::Status(status)) => is_transient(*status),
            CommandError::TooLarge => false,
        };
        if !can_be_repeated || *attempts >= self.0.options.retries_max {
            return Err(error.into());
        }
        *attempts += 1;
        self.0.totals.retries.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Submits an I/O command to the next queue in turn.
    pub(super) async fn submit(&self, command: Command, payload: Payload) -> Result<Pending, Gone> {
        let live = self.live().await?;
        let turn = self.0.next.fetch_add(1, Ordering::Relaxed);
        let queue = live.io.get(turn % live.io.len().max(1));
        let queue = queue.ok_or_else(|| Gone("it has no I/O queues".into()))?;
        let timeout = Some(self.0.options.command_timeout);
        Ok(queue.submit(Request { command, payload, timeout }).await)
    }

    /// The numbers of the existing namespaces, in order.
    ///
    /// # Errors
    /// [`DeviceError`].
    pub async fn namespaces(&self) -> Result<Vec<u32>, DeviceError> {
        let mut numbers: Vec<u32> = Vec::new();
        loop {
            let after = numbers.last().copied().unwrap_or(0);
            let data = self.identify(IdentifyKind::ActiveNamespaces, after).await?;
            let list = parse_namespaces(&data)?;
            let is_ordered = list.first().is_none_or(|first| *first > after)
                && list.windows(2).all(|pair| pair[0] < pair[1]);
            if !is_ordered || numbers.len() + list.len() > NAMESPACES_MAX {
                return Err(DeviceError::Misbehaved("its list of namespaces is not in order"));
            }
            let is_full = list.len() == LIST_ENTRIES_MAX;
            numbers.extend(list);
            if !is_full {
                return Ok(numbers);
            }
        }
    }

    pub(super) async fn identify(
        &self,
        kind: IdentifyKind,
        namespace: u32,
    ) -> Result<Vec<u8>, DeviceError> {
        let command = Command::build(AdminOpcode::Identify as u8, 0, namespace)
            .with_dword(10, u32::from(kind as u8));
        self.admin(command, Payload::In(vec![0; IDENTIFY_BYTES])).await
    }

    /// The error for a namespace that does not exist.
    pub(super) async fn no_namespace(&self, number: u32) -> DeviceError {
        match self.namespaces().await {
            Ok(there) => DeviceError::NoNamespace { number, there },
            Err(error) => error,
        }
    }
}

fn is_transient(status: unlade_nvme_wire::Status) -> bool {
    use unlade_nvme_wire::Status;
    let transient = [Status::TRANSIENT_TRANSPORT, Status::NOT_READY, Status::QUEUE_DELETED];
    !status.is_final() && transient.into_iter().any(|one| status.is(one))
}

fn add_counts(counts: &mut [u64; 4], live: &Live) {
    for queue in live.io.iter().chain([&live.admin]) {
        for (count, more) in counts.iter_mut().zip(queue.counts()) {
            *count += more;
        }
    }
}

/// The task that maintains a controller's connections.
struct Supervisor {
    connector: Arc<dyn Connector>,
    options: Options,
    state: watch::Sender<LinkState>,
    stopped: watch::Receiver<bool>,
    totals: Arc<Totals>,
}

impl Supervisor {
    async fn run(mut self, mut live: Arc<Live>, mut tasks: Tasks) {
        loop {
            let reason = self.watch(&live, &mut tasks).await;
            // All connections of a controller end together (NVMe Base §3.3.1.4).
            tasks.shutdown().await;
            self.keep_counts(&live);
            let Some(reason) = reason else {
                self.state.send_replace(LinkState::Gone(Gone("it was closed".into())));
                return;
            };
            warn!(peer = %self.connector.peer(), %reason, "the controller was lost");
            self.state.send_replace(LinkState::Lost(Loss { reason: reason.clone(), attempts: 0 }));
            match self.again(reason).await {
                Ok((next, next_tasks)) => {
                    live = Arc::new(next);
                    tasks = next_tasks;
                    self.totals.reconnects.fetch_add(1, Ordering::Relaxed);
                    self.state.send_replace(LinkState::Live(live.clone()));
                    info!(peer = %self.connector.peer(), "the controller is there again");
                }
                Err(gone) => {
                    self.state.send_replace(LinkState::Gone(gone));
                    return;
                }
            }
        }
    }

    fn keep_counts(&self, live: &Live) {
        let mut counts = [0; 4];
        add_counts(&mut counts, live);
        for (past, count) in self.totals.past.iter().zip(counts) {
            past.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Waits until the controller is lost, and returns the reason; `None` if it was closed.
    async fn watch(&mut self, live: &Live, tasks: &mut Tasks) -> Option<Arc<str>> {
        let Supervisor { options, totals, stopped, .. } = self;
        tokio::select! {
            biased;
            () = stop_wanted(stopped) => {
                if let Err(error) = connect::shut_down(&live.admin, options).await {
                    debug!(%error, "the controller was not shut down in order");
                }
                None
            }
            ended = tasks.join_next() => Some(match ended {
                Some(Ok(Err(error))) => error.to_string().into(),
                Some(Err(error)) => error.to_string().into(),
                Some(Ok(Ok(()))) | None => "its queues have ended".into(),
            }),
            reason = keep_alive(&live.admin, options, totals) => Some(reason),
            () = events(live, options, totals) => Some("it sends too many events".into()),
        }
    }

    /// Reconnects, with growing pauses.
    async fn again(&mut self, lost: Arc<str>) -> Result<(Live, Tasks), Gone> {
        let reconnect = self.options.reconnect;
        let mut last: Arc<str> = lost;
        for attempt in 0..reconnect.attempts_max {
            let pause = tokio::time::sleep(reconnect.delay(attempt));
            let connecting = async {
                pause.await;
                connect::controller(&*self.connector, &self.options).await
            };
            let connected = tokio::select! {
                biased;
                () = stop_wanted(&mut self.stopped) => {
                    return Err(Gone("it was closed".into()));
                }
                connected = connecting => connected,
            };
            match connected {
                Ok(done) => return Ok(done),
                Err(error) => {
                    debug!(attempt, %error, "the controller is not there");
                    last = error.to_string().into();
                    let loss = Loss { reason: last.clone(), attempts: attempt + 1 };
                    self.state.send_replace(LinkState::Lost(loss));
                }
            }
        }
        let attempts = reconnect.attempts_max;
        Err(match attempts {
            0 => Gone(last),
            _ => Gone(format!("{last} (given up after {attempts} attempts)").into()),
        })
    }
}

/// Waits until the controller is to be closed, or all handles are dropped.
async fn stop_wanted(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}

/// Sends Keep Alive twice per keep alive timeout; returns the reason of its end.
async fn keep_alive(admin: &Handle, options: &Options, totals: &Totals) -> Arc<str> {
    if options.keep_alive.is_zero() {
        return std::future::pending().await;
    }
    let every = options.keep_alive / 2;
    loop {
        tokio::time::sleep(every).await;
        let request = Request {
            command: Command::build(AdminOpcode::KeepAlive as u8, 0, 0),
            payload: Payload::None,
            timeout: Some(options.keep_alive),
        };
        match admin.execute(request).await {
            Ok(_) => {
                totals.keep_alives.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => return format!("keep alive: {error}").into(),
        }
    }
}

/// Requests events and counts them; returns if there are too many.
async fn events(live: &Live, options: &Options, totals: &Totals) {
    // A discovery controller need not support them, and is not kept for long.
    if options.queues == 0 {
        return std::future::pending().await;
    }
    let ask = || Request {
        command: Command::build(AdminOpcode::AsyncEvent as u8, 0, 0),
        payload: Payload::None,
        timeout: None,
    };
    let mut count = 0;
    let mut waiting = Vec::with_capacity(EVENTS_OUTSTANDING);
    loop {
        while waiting.len() < EVENTS_OUTSTANDING {
            waiting.push(live.admin.submit(ask()).await);
        }
        let Some(pending) = waiting.pop() else { continue };
        match pending.answer().await {
            Ok(answer) => {
                count += 1;
                totals.events.fetch_add(1, Ordering::Relaxed);
                // Type, information and log page (NVMe Base figure 146).
                let (kind, information) = (answer.result & 7, answer.result >> 8 & 0xff);
                info!(kind, information, page = answer.result >> 16 & 0xff, "controller event");
                if count == EVENTS_MAX {
                    return;
                }
            }
            // The command is not supported, or the connection is lost, which other tasks detect.
            Err(_) => return std::future::pending().await,
        }
    }
}

impl Options {
    /// The same options for a discovery controller: no I/O queues, no keep alive, no
    /// reconnection.
    #[must_use]
    pub fn for_discovery(mut self, subsystem: unlade_nvme_wire::Nqn) -> Options {
        self.subsystem = subsystem;
        self.queues = 0;
        self.keep_alive = Duration::ZERO;
        self.reconnect.attempts_max = 0;
        self
    }
}
