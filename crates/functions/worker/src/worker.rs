//! The process of one tenant.

use std::rc::Rc;
use std::sync::Arc;

use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::LocalSet;
use unlade_metrics::{Meter, Role};
use unlade_runtime::control::log_hangups;
use unlade_runtime::system::system;

use crate::config::WorkerConfig;
use crate::open::WorkerError;
use crate::serve::{Phase, serve};

/// Runs a worker until SIGTERM or SIGINT. Then it accepts no gateway and finishes pending writes.
/// A second signal ends it at once. SIGHUP is logged and has no other effect.
///
/// # Errors
/// The reason why it cannot run.
pub fn run(config: &WorkerConfig) -> Result<(), WorkerError> {
    let runtime = runtime()?;
    LocalSet::new().block_on(&runtime, async {
        let (tell, told) = watch::channel(Phase::Serving);
        let phases = phases(tell)?;
        let hangups = log_hangups().map_err(system("SIGHUP"))?;
        let meter = Arc::new(Meter::of_thread(Role::Worker));
        tokio::select! {
            served = serve(config, meter, Rc::default(), told) => served,
            () = phases => Err(WorkerError::Ended),
            never = hangups => match never {},
        }
    })
}

pub(crate) fn runtime() -> Result<Runtime, WorkerError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(built.map_err(system("the runtime"))?)
}

/// Maps signals to phases: the first one requests a drain, the second the end.
///
/// # Errors
/// The system call failed.
pub(crate) fn phases(tell: watch::Sender<Phase>) -> Result<impl Future<Output = ()>, WorkerError> {
    let mut terminate = signal(SignalKind::terminate()).map_err(system("SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("SIGINT"))?;
    Ok(async move {
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tell.send_modify(|phase| *phase = phase.next());
        }
    })
}
