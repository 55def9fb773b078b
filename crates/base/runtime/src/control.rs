//! Run, drain, stop, reload: what a process tells its workers, and the signals that say so.

use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

/// How far the process is in its life. It only ever grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Accepting and serving.
    Running,
    /// Not accepting; requests in flight are finished.
    Draining,
    /// Everything is dropped now.
    Stopping,
}

/// The sending half: one a process, cloned freely. `C` is the configuration workers run by.
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
    /// A process that is running by `config`.
    pub fn new(config: C) -> Control<C> {
        Control {
            phase: Arc::new(watch::Sender::new(Phase::Running)),
            config: Arc::new(watch::Sender::new(Arc::new(config))),
        }
    }

    /// Stop accepting, finish what is in flight.
    pub fn drain(&self) {
        self.advance(Phase::Draining);
    }

    /// Drop everything now.
    pub fn stop(&self) {
        self.advance(Phase::Stopping);
    }

    /// Hands a new configuration to the workers.
    pub fn reload(&self, config: C) {
        self.config.send_replace(Arc::new(config));
    }

    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The configuration now.
    pub fn config(&self) -> Arc<C> {
        self.config.borrow().clone()
    }

    /// A receiving half.
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
    /// The phase now.
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// The configuration now.
    pub fn config(&self) -> Arc<C> {
        self.config.borrow().clone()
    }

    /// Waits until the phase is at least `phase`. A process without a [`Control`] left counts as
    /// stopping.
    pub async fn reached(&mut self, phase: Phase) {
        let _ = self.phase.wait_for(|now| *now >= phase).await;
    }

    /// Waits for the next configuration. Never returns where there is no [`Control`] left.
    pub async fn reloaded(&mut self) -> Arc<C> {
        match self.config.changed().await {
            Ok(()) => self.config.borrow_and_update().clone(),
            Err(_) => std::future::pending().await,
        }
    }
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// SIGTERM or SIGINT.
    End,
    /// SIGHUP.
    Reload,
}

/// The signals a long-running command obeys.
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

    pub(crate) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.terminate.recv() => Asked::End,
            _ = self.interrupt.recv() => Asked::End,
            _ = self.hangup.recv() => Asked::Reload,
        }
    }
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
