//! Worker threads: one per core, each with its own runtime.

use std::any::Any;
use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::{Arc, Once};
use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tokio::time::Instant;

use crate::control::{Control, Phase, SignalAction, Signals, Watch};

/// Most workers of a process.
pub const WORKERS_MAX: usize = 256;
/// Time limit for workers to stop before the process exits without them.
const STOP_GRACE: Duration = Duration::from_secs(3);

/// The number of workers, and how they end.
#[derive(Debug, Clone)]
pub struct WorkersConfig {
    /// Threads are named `{name}-{index}`.
    pub name: &'static str,
    /// Number of threads, 1 to [`WORKERS_MAX`].
    pub threads: usize,
    /// Pins each worker to one of the CPUs that the process may use.
    pub pin: bool,
    /// Time limit of a drain; after it, everything left is dropped.
    pub drain_timeout: Duration,
    /// Handle SIGTERM, SIGINT and SIGHUP. Off for processes that host several services.
    pub signals: bool,
}

impl WorkersConfig {
    /// One worker for each CPU that the process may use, not pinned, with signal handling.
    pub fn new(name: &'static str) -> WorkersConfig {
        WorkersConfig {
            name,
            threads: cores(),
            pin: false,
            drain_timeout: Duration::from_secs(30),
            signals: true,
        }
    }
}

/// The number of CPUs this process may use, 1 to [`WORKERS_MAX`].
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX)
}

/// The identity of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Index, from 0.
    pub index: usize,
    /// Number of workers.
    pub count: usize,
}

/// The end of a process without an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Every worker finished its work.
    Finished,
    /// The drain's deadline passed, or a second signal arrived: the rest was dropped.
    Dropped,
}

/// The reason why workers ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum WorkersError {
    /// The configured number of threads is out of range.
    #[error("workers = {threads} is outside 1 to {WORKERS_MAX}; omit it for one per core")]
    Threads {
        /// The configured number.
        threads: usize,
    },
    /// The machine cannot start a thread.
    #[error("worker {worker} cannot start: {error}; see the process and thread limits")]
    Start {
        /// Name of the worker.
        worker: String,
        /// The kernel's error.
        #[source]
        error: io::Error,
    },
    /// The machine cannot install signal handlers.
    #[error("signal handlers cannot be installed: {0}")]
    Signals(#[source] io::Error),
    /// A worker's main returned an error.
    #[error("worker {worker}: {message}")]
    Failed {
        /// Name of the worker.
        worker: String,
        /// Its error, with its sources.
        message: String,
    },
    /// A defect of this program. The process does not continue without one of its workers.
    #[error("worker {worker} panicked: {message}; this is a defect, please report it")]
    Panicked {
        /// Name of the worker.
        worker: String,
        /// The panic's message and place.
        message: String,
    },
    /// Workers did not end after the request to stop: something in them blocks.
    #[error("{count} workers did not stop within {grace:?}; the process exits without them")]
    Stuck {
        /// Number of workers.
        count: usize,
        /// The time they had.
        grace: Duration,
    },
}

/// A message from a worker's thread to the process.
enum Report {
    /// The thread has ended; sent once per thread.
    Ended(Result<(), WorkersError>),
    /// Something panicked on a thread, which may continue to run.
    Panicked(WorkersError),
}

/// Runs `main` on every worker until all have returned, and handles signals meanwhile: the first
/// SIGTERM or SIGINT drains (limited by `drain_timeout`), the second stops at once, SIGHUP calls
/// `reload` and sends its configuration to the workers. If `reload` fails, the error is logged and
/// the old configuration stays.
///
/// `main` receives its [`WorkerInfo`] and a [`Watch`]; it should return soon after the phase is
/// [`Phase::Draining`] and its work is done. On [`Phase::Stopping`] it is dropped at its current
/// await point. Tasks that it spawned with `spawn_local` are dropped when it ends.
///
/// # Errors
/// A worker that cannot start, fails, panics (in `main` or any of its tasks) or does not stop. The
/// first such error ends all the others.
pub fn run_workers<C, F, Fut, E, R, Q>(
    config: &WorkersConfig,
    control: &Control<C>,
    reload: R,
    main: F,
) -> Result<Ended, WorkersError>
where
    C: Send + Sync + 'static,
    F: Fn(WorkerInfo, Watch<C>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), E>>,
    E: fmt::Display + fmt::Debug,
    R: FnMut() -> Result<C, Q>,
    Q: fmt::Display,
{
    if config.threads == 0 || config.threads > WORKERS_MAX {
        return Err(WorkersError::Threads { threads: config.threads });
    }
    install_panic_hook();
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| {
        WorkersError::Start { worker: format!("{}-control", config.name), error }
    })?;
    let signals = match config.signals {
        true => {
            let _context = runtime.enter();
            Some(Signals::install().map_err(WorkersError::Signals)?)
        }
        false => None,
    };
    let (reports, inbox) = mpsc::unbounded_channel();
    let main = Arc::new(main);
    for index in 0..config.threads {
        let worker = Worker {
            info: WorkerInfo { index, count: config.threads },
            name: format!("{}-{index}", config.name),
            pin: config.pin,
            reports: reports.clone(),
        };
        if let Err(error) = worker.start(control.watch(), main.clone()) {
            control.stop();
            return Err(error);
        }
    }
    drop(reports);
    runtime.block_on(supervise(config, control, reload, signals, inbox))
}

/// One worker's thread.
struct Worker {
    info: WorkerInfo,
    name: String,
    pin: bool,
    reports: mpsc::UnboundedSender<Report>,
}

impl Worker {
    fn start<C, F, Fut, E>(self, watch: Watch<C>, main: Arc<F>) -> Result<(), WorkersError>
    where
        C: Send + Sync + 'static,
        F: Fn(WorkerInfo, Watch<C>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>>,
        E: fmt::Display + fmt::Debug,
    {
        let name = self.name.clone();
        std::thread::Builder::new()
            .name(name.clone())
            .spawn(move || {
                let reports = self.reports.clone();
                let ended = self.run(watch, &*main);
                let _ = reports.send(Report::Ended(ended));
            })
            .map(drop)
            .map_err(|error| WorkersError::Start { worker: name, error })
    }

    fn run<C, F, Fut, E>(self, watch: Watch<C>, main: &F) -> Result<(), WorkersError>
    where
        F: Fn(WorkerInfo, Watch<C>) -> Fut,
        Fut: Future<Output = Result<(), E>>,
        E: fmt::Display + fmt::Debug,
    {
        let worker = self.name.clone();
        if self.pin
            && let Err(error) = pin_to(self.info.index)
        {
            tracing::warn!(worker, %error, "not pinned to a CPU");
        }
        let watched = PanicWatch::enter(&worker, &self.reports);
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            block_on_local(watch, |watch| main(self.info, watch))
        }));
        drop(watched);
        match ran {
            Ok(Ok(ended)) => ended.map_err(|message| WorkersError::Failed { worker, message }),
            Ok(Err(error)) => Err(WorkersError::Start { worker, error }),
            Err(panic) => {
                let message = panic_text(panic.as_ref());
                Err(WorkersError::Panicked { worker, message })
            }
        }
    }
}

/// Runs a worker's main on a runtime of this thread; the inner error is main's, as text.
fn block_on_local<C, Fut, E>(
    watch: Watch<C>,
    main: impl FnOnce(Watch<C>) -> Fut,
) -> io::Result<Result<(), String>>
where
    Fut: Future<Output = Result<(), E>>,
    E: fmt::Display + fmt::Debug,
{
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let local = LocalSet::new();
    let mut stop = watch.clone();
    let ended = local.block_on(&runtime, async {
        tokio::select! {
            ended = main(watch) => ended.map_err(|error| error.to_string()),
            () = stop.reached(Phase::Stopping) => Ok(()),
        }
    });
    drop(local);
    // Do not wait for blocking calls (fsync) of requests that are gone.
    runtime.shutdown_background();
    Ok(ended)
}

fn pin_to(index: usize) -> io::Result<()> {
    let allowed = sched_getaffinity(None)?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let Some(cpu) = cpus.get(index.checked_rem(cpus.len()).unwrap_or(0)) else { return Ok(()) };
    let mut set = CpuSet::new();
    set.set(*cpu);
    Ok(sched_setaffinity(None, &set)?)
}

async fn supervise<C, R, Q>(
    config: &WorkersConfig,
    control: &Control<C>,
    mut reload: R,
    mut signals: Option<Signals>,
    mut inbox: mpsc::UnboundedReceiver<Report>,
) -> Result<Ended, WorkersError>
where
    R: FnMut() -> Result<C, Q>,
    Q: fmt::Display,
{
    let mut left = config.threads;
    let mut watch = control.watch();
    let mut failure = None;
    let mut seen = Phase::Running;
    let mut deadline = None;
    while left > 0 {
        let phase = control.phase();
        if phase > seen {
            seen = phase;
            let allowed = if phase == Phase::Stopping { STOP_GRACE } else { config.drain_timeout };
            deadline = Some(Instant::now() + allowed);
        }
        tokio::select! {
            Some(report) = inbox.recv() => {
                left -= usize::from(matches!(report, Report::Ended(_)));
                if let Report::Ended(Err(error)) | Report::Panicked(error) = report {
                    tracing::error!(%error, "stopping");
                    failure.get_or_insert(error);
                    control.stop();
                }
            }
            asked = next_signal(&mut signals) => match asked {
                SignalAction::Reload => apply_reload(control, &mut reload),
                SignalAction::End if seen == Phase::Running => {
                    tracing::info!(timeout = ?config.drain_timeout, "draining");
                    control.drain();
                }
                SignalAction::End => control.stop(),
            },
            () = past(&mut watch, seen) => {}
            () = at(deadline) => {
                if seen == Phase::Stopping {
                    let stuck = WorkersError::Stuck { count: left, grace: STOP_GRACE };
                    return Err(failure.unwrap_or(stuck));
                }
                tracing::warn!("the drain's deadline passed; dropping what is left");
                control.stop();
            }
        }
    }
    match failure {
        Some(error) => Err(error),
        None if control.phase() == Phase::Stopping => Ok(Ended::Dropped),
        None => Ok(Ended::Finished),
    }
}

fn apply_reload<C, Q: fmt::Display>(
    control: &Control<C>,
    reload: &mut impl FnMut() -> Result<C, Q>,
) {
    match reload() {
        Ok(config) => {
            tracing::info!("configuration reloaded");
            control.reload(config);
        }
        Err(error) => tracing::error!(%error, "not reloaded: the old configuration stays"),
    }
}

async fn next_signal(signals: &mut Option<Signals>) -> SignalAction {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// Waits for a phase beyond `seen`.
async fn past<C>(watch: &mut Watch<C>, seen: Phase) {
    match seen {
        Phase::Running => watch.reached(Phase::Draining).await,
        Phase::Draining => watch.reached(Phase::Stopping).await,
        Phase::Stopping => std::future::pending().await,
    }
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

thread_local! {
    /// On a worker's thread: its name, and the channel for reports of its panics.
    static WATCHED: RefCell<Option<(String, mpsc::UnboundedSender<Report>)>> =
        const { RefCell::new(None) };
}

/// While this value exists, panics of this thread's tasks end the process: the runtime would
/// otherwise ignore them and continue with the state of a half-done task.
struct PanicWatch;

impl PanicWatch {
    fn enter(worker: &str, reports: &mpsc::UnboundedSender<Report>) -> PanicWatch {
        WATCHED.with_borrow_mut(|slot| *slot = Some((worker.to_owned(), reports.clone())));
        PanicWatch
    }
}

impl Drop for PanicWatch {
    fn drop(&mut self) {
        WATCHED.with_borrow_mut(|slot| *slot = None);
    }
}

fn install_panic_hook() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let place = info.location().map(|l| format!(" at {l}")).unwrap_or_default();
            let message = format!("{}{place}", panic_text(info.payload()));
            let _ = WATCHED.try_with(|slot| {
                if let Ok(slot) = slot.try_borrow()
                    && let Some((worker, reports)) = slot.as_ref()
                {
                    let worker = worker.clone();
                    let panicked = WorkersError::Panicked { worker, message };
                    let _ = reports.send(Report::Panicked(panicked));
                }
            });
            previous(info);
        }));
    });
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    fn config(threads: usize) -> WorkersConfig {
        WorkersConfig { threads, signals: false, ..WorkersConfig::new("test") }
    }

    fn no_reload() -> Result<(), String> {
        Err("not in this test".to_owned())
    }

    #[test]
    fn every_worker_runs_once_on_a_thread_of_its_own_name() {
        let names = Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen = names.clone();
        let main = move |info: WorkerInfo, _| {
            let name = std::thread::current().name().unwrap_or_default().to_owned();
            seen.lock().unwrap().push((info.index, info.count, name));
            std::future::ready(Ok::<(), String>(()))
        };
        let ended = run_workers(&config(3), &Control::new(()), no_reload, main).unwrap();
        assert_eq!(ended, Ended::Finished);
        let mut names = names.lock().unwrap().clone();
        names.sort();
        let expected: Vec<_> = (0..3).map(|i| (i, 3, format!("test-{i}"))).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn a_drain_lets_workers_finish_and_a_stop_drops_them() {
        let finished = Arc::new(AtomicUsize::new(0));
        let count = finished.clone();
        let main = move |_, mut watch: Watch<()>| {
            let count = count.clone();
            async move {
                watch.reached(Phase::Draining).await;
                count.fetch_add(1, Ordering::SeqCst);
                Ok::<(), String>(())
            }
        };
        let control = Control::new(());
        control.drain();
        let ended = run_workers(&config(2), &control, no_reload, main).unwrap();
        assert_eq!((ended, finished.load(Ordering::SeqCst)), (Ended::Finished, 2));

        let control = Control::new(());
        control.stop();
        let forever = |_, _| std::future::pending::<Result<(), String>>();
        let ended = run_workers(&config(2), &control, no_reload, forever).unwrap();
        assert_eq!(ended, Ended::Dropped);
    }

    #[test]
    fn a_drain_that_does_not_end_is_cut_at_its_deadline() {
        let control = Control::new(());
        control.drain();
        let brief = WorkersConfig { drain_timeout: Duration::from_millis(20), ..config(1) };
        let forever = |_, _| std::future::pending::<Result<(), String>>();
        let ended = run_workers(&brief, &control, no_reload, forever).unwrap();
        assert_eq!(ended, Ended::Dropped);
    }

    #[test]
    fn the_first_error_ends_all_and_names_its_worker() {
        let main = |info: WorkerInfo, _: Watch<()>| async move {
            if info.index == 1 {
                return Err("the store is gone");
            }
            std::future::pending().await
        };
        let error = run_workers(&config(2), &Control::new(()), no_reload, main).unwrap_err();
        assert_eq!(error.to_string(), "worker test-1: the store is gone");
    }

    #[test]
    fn a_panic_in_a_task_ends_the_process_with_its_place() {
        let main = |info: WorkerInfo, _: Watch<()>| async move {
            if info.index == 0 {
                tokio::task::spawn_local(async { panic!("slot {} is lost", 7) });
            }
            std::future::pending::<Result<(), String>>().await
        };
        let error = run_workers(&config(2), &Control::new(()), no_reload, main).unwrap_err();
        let message = error.to_string();
        assert!(matches!(error, WorkersError::Panicked { .. }), "{message}");
        assert!(message.contains("test-0 panicked: slot 7 is lost at "), "{message}");
    }

    #[test]
    fn a_worker_that_blocks_does_not_block_the_process() {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let control = Control::new(());
        let stop = control.clone();
        let main = move |_, _| {
            stop.stop();
            let _ = held.lock().unwrap().recv();
            std::future::ready(Ok::<(), String>(()))
        };
        let ended = run_workers(&config(1), &control, no_reload, main);
        assert!(matches!(ended, Err(WorkersError::Stuck { count: 1, .. })), "{ended:?}");
        drop(release);
    }

    #[test]
    fn impossible_numbers_of_workers_are_refused() {
        let main = |_, _| std::future::ready(Ok::<(), String>(()));
        for threads in [0, WORKERS_MAX + 1] {
            let refused = run_workers(&config(threads), &Control::new(()), no_reload, main);
            assert!(matches!(refused, Err(WorkersError::Threads { .. })));
        }
    }

    #[test]
    fn pinning_keeps_to_the_cpus_allowed() {
        std::thread::spawn(|| {
            let before = sched_getaffinity(None).unwrap();
            pin_to(0).unwrap();
            let after = sched_getaffinity(None).unwrap();
            assert_eq!(after.count(), 1);
            let only = (0..CpuSet::MAX_CPU).find(|cpu| after.is_set(*cpu)).unwrap();
            assert!(before.is_set(only));
        })
        .join()
        .unwrap();
    }
}
