//! State that the threads of a service and its attachments share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use unlade_copy_kernels::thread;
use unlade_copy_scheduler::Micros;

use crate::config::Config;
use crate::counters::Counters;
use crate::mailbox::Mailbox;
use crate::scaling::{LOOK_US, Scaling, Threads};
use crate::units::Devices;

/// State shared by the threads and the attachments.
pub(crate) struct ServiceState {
    pub config: Config,
    pub counters: Arc<Counters>,
    pub devices: Devices,
    /// Origin of the threads' time.
    pub origin: Instant,
    pub mailboxes: Box<[Mailbox]>,
    pub threads: Mutex<Vec<JoinHandle<()>>>,
    pub scaling: Mutex<Scaling>,
    /// Time of the next load check, in microseconds.
    look_at_us: AtomicU64,
    pub stopping: AtomicBool,
    /// A thread has panicked.
    pub broken: AtomicBool,
    pub scenarios: AtomicUsize,
    pub clients: AtomicUsize,
    pub next_client: AtomicU32,
    pub next_group: AtomicU32,
    /// Runs a thread until it ends.
    run: fn(usize, Arc<ServiceState>),
}

impl ServiceState {
    /// Creates the state without threads; `run` is what a thread does.
    pub fn new(
        config: Config,
        devices: Devices,
        run: fn(usize, Arc<ServiceState>),
    ) -> ServiceState {
        ServiceState {
            config,
            counters: Arc::default(),
            devices,
            origin: Instant::now(),
            mailboxes: (0..config.threads_max).map(|_| Mailbox::default()).collect(),
            threads: Mutex::default(),
            scaling: Mutex::new(Scaling::new(&config)),
            look_at_us: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            scenarios: AtomicUsize::new(0),
            clients: AtomicUsize::new(0),
            next_client: AtomicU32::new(0),
            next_group: AtomicU32::new(0),
            run,
        }
    }

    pub fn mailbox(&self, thread: usize) -> &Mailbox {
        &self.mailboxes[thread]
    }

    pub fn scaling(&self) -> MutexGuard<'_, Scaling> {
        self.scaling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the number of threads can change.
    pub fn scales(&self) -> bool {
        self.config.threads_max > 1
    }

    /// Checks the load if that is due and no other thread does it.
    pub fn look(self: &Arc<Self>, now: Micros) {
        if now.0 < self.look_at_us.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut scaling) = self.scaling.try_lock() else { return };
        self.look_at_us.store(now.0.saturating_add(LOOK_US), Ordering::Relaxed);
        let start = |number| self.start_thread(number);
        let threads =
            Threads { mailboxes: &self.mailboxes, counters: &self.counters, start: &start };
        scaling.look(&threads, now);
    }

    /// Starts the thread with this number; returns false if that is impossible, or not possible
    /// yet.
    pub fn start_thread(self: &Arc<Self>, number: usize) -> bool {
        match self.spawn(number) {
            Ok(is_started) => is_started,
            Err(error) => {
                tracing::warn!(%error, "no other thread can be had: those that run go on");
                false
            }
        }
    }

    /// As [`ServiceState::start_thread`], with the error.
    pub fn spawn(self: &Arc<Self>, number: usize) -> io::Result<bool> {
        let mut threads = self.threads();
        // A drop of the service sets the stop flag before it collects the threads.
        if self.is_stopping() || !self.mailbox(number).open() {
            return Ok(false);
        }
        // Drop the handles of finished threads.
        threads.retain(|thread| !thread.is_finished());
        let shared = Arc::clone(self);
        let run = self.run;
        match thread::spawn(format!("copyd-{number}"), move || run(number, shared)) {
            Ok(thread) => {
                threads.push(thread);
                self.counters.threads_started.add(1);
                Ok(true)
            }
            Err(error) => {
                self.mailbox(number).close();
                Err(error)
            }
        }
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub fn scenario_is_on(&self) -> bool {
        self.scenarios.load(Ordering::Relaxed) > 0
    }
}
