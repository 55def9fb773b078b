//! Control of a process's workers: run, drain, stop, reload, and the signals for them.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// Log line of a process that reads its configuration only at start.
const NOTHING_TO_RELOAD: &str =
    "SIGHUP: there is nothing to reload; a restart reads the configuration";

/// The phase of a process. It never decreases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Accepting and serving.
    Running,
    /// Not accepting; finishing the requests in flight.
    Draining,
    /// Dropping everything now.
    Stopping,
}

/// The sending half: one per process, can be cloned. `C` is the configuration of the workers.
#[derive(Debug)]
pub struct Control<C> {
    phase: Arc<watch::Sender<Phase>>,
    config: Arc<watch::Sender<Arc<C>>>,
}

impl<C> Clone for Control<C> {
    fn clone(&self) -> Self {
        Control { phase: self.phase.clone(), config: self.config.clone() }
    }
}

impl<C> Control<C> {
    /// Makes the control of a process that runs with `config`.
    pub fn new(config: C) -> Control<C> {
        Control {
            phase: Arc::new(watch::Sender::new(Phase::Running)),
            config: Arc::new(watch::Sender::new(Arc::new(config))),
        }
    }

    /// Stops accepting and finishes the requests in flight.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Drops everything now.
    pub fn stop(&self) {
        self.advance(Phase::Stopping);
    }

    /// Sends a new configuration to the workers.
    pub fn reload(&self, config: C) {
        self.config.send_replace(Arc::new(config));
    }

    /// The current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The current configuration.
    pub fn config(&self) -> Arc<C> {
        self.config.borrow().clone()
    }

    /// Makes a receiving half.
    pub fn watch(&self) -> Watch<C> {
        Watch { phase: self.phase.subscribe(), config: self.config.subscribe() }
    }

    fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let advanced = to > *phase;
            *phase = to.max(*phase);
            advanced
        });
    }
}

/// The receiving half of a [`Control`].
#[derive(Debug)]
pub struct Watch<C> {
    phase: watch::Receiver<Phase>,
    config: watch::Receiver<Arc<C>>,
}

impl<C> Clone for Watch<C> {
    fn clone(&self) -> Self {
        Watch { phase: self.phase.clone(), config: self.config.clone() }
    }
}

impl<C> Watch<C> {
    /// The current phase.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The current configuration.
    pub fn config(&self) -> Arc<C> {
        self.config.borrow().clone()
    }

    /// Waits until the phase is at least `phase`. A process without a remaining [`Control`] counts
    /// as stopping.
    pub async fn reached(&mut self, phase: Phase) {
        let _ = self.phase.wait_for(|now| *now >= phase).await;
    }

    /// Waits for the next configuration. Never returns if no [`Control`] remains.
    pub async fn reloaded(&mut self) -> Arc<C> {
        match self.config.changed().await {
            Ok(()) => self.config.borrow_and_update().clone(),
            Err(_) => std::future::pending().await,
        }
    }
}

/// The request of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalAction {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

/// The signals that a long-running command handles.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Signals {
    pub(crate) fn install() -> std::io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) -> SignalAction {
        tokio::select! {
            _ = self.terminate.recv() => SignalAction::End,
            _ = self.interrupt.recv() => SignalAction::End,
            _ = self.hangup.recv() => SignalAction::Reload,
        }
    }
}

/// Handles the signals of a process that has nothing to drain: the returned future completes on
/// SIGTERM or SIGINT; SIGHUP is logged while it is polled.
///
/// # Errors
/// A handler cannot be installed.
pub fn ended_by_signal() -> io::Result<impl Future<Output = ()>> {
    let mut signals = Signals::install()?;
    Ok(async move {
        while signals.next().await == SignalAction::Reload {
            tracing::warn!("{NOTHING_TO_RELOAD}");
        }
    })
}

/// Handles SIGHUP in a process that reads its configuration only at start: without a handler the
/// signal would end the process. Each signal is logged while the returned future is polled; the
/// future never completes.
///
/// # Errors
/// The handler cannot be installed.
pub fn log_hangups() -> io::Result<impl Future<Output = Infallible>> {
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(async move {
        loop {
            if hangup.recv().await.is_none() {
                std::future::pending::<()>().await;
            }
            tracing::warn!("{NOTHING_TO_RELOAD}");
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_only_grows() {
        let control = Control::new(());
        assert_eq!(control.phase(), Phase::Running);
        control.stop();
        control.drain();
        assert_eq!(control.watch().phase(), Phase::Stopping);
    }

    #[tokio::test]
    async fn a_reload_reaches_every_watch() {
        let control = Control::new(1);
        let (mut first, mut second) = (control.watch(), control.watch());
        control.reload(2);
        assert_eq!((*first.reloaded().await, *second.reloaded().await), (2, 2));
        assert_eq!(*control.config(), 2);
    }

    #[tokio::test]
    async fn a_watch_outlives_its_control_as_stopping() {
        let control = Control::new(());
        let mut watch = control.watch();
        drop(control);
        watch.reached(Phase::Stopping).await;
    }
}
