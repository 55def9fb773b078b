//! An I/O worker: a process of one tenant or of several, restarted when it ends.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::{Notify, watch};
use unlade_runtime::restart::Restarts;

use crate::child;

/// Timeout of a replaced process for its pending writes.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// The kind of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// For one tenant: the file is its configuration.
    Own,
    /// For several tenants: the file names their configurations.
    Shared,
}

/// See the [module](self).
pub struct Worker {
    /// The kind.
    pub kind: Kind,
    /// The name in the log: the tenant's, or a common one.
    name: String,
    executable: PathBuf,
    file: PathBuf,
    pid: watch::Sender<Option<u32>>,
    is_draining: Cell<bool>,
    /// The process that is to be replaced.
    unwanted: Cell<Option<u32>>,
    replace: Notify,
}

impl Worker {
    /// Creates a worker that [`Worker::supervise`] starts.
    pub fn new(kind: Kind, name: &str, executable: &Path, file: PathBuf) -> Rc<Worker> {
        Rc::new(Worker {
            kind,
            name: name.to_owned(),
            executable: executable.to_owned(),
            file,
            pid: watch::Sender::new(None),
            is_draining: Cell::new(false),
            unwanted: Cell::new(None),
            replace: Notify::new(),
        })
    }

    /// The number of its current process.
    pub fn pid(&self) -> watch::Receiver<Option<u32>> {
        self.pid.subscribe()
    }

    /// Runs the process, and restarts it, until [`Worker::drain`].
    pub async fn supervise(self: Rc<Worker>) {
        let (mut restarts, worker) = (Restarts::default(), self.name.as_str());
        while !self.is_draining.get() {
            let begin = Instant::now();
            let lived = self.live().await;
            self.pid.send_replace(None);
            match lived {
                Ok(_) if self.is_draining.get() => return,
                Ok(why) => tracing::warn!(worker, why, "the I/O worker has ended"),
                Err(error) => tracing::error!(worker, %error, "the I/O worker does not run"),
            }
            tokio::time::sleep(restarts.pause_after(begin)).await;
        }
    }

    /// Runs one process; returns the reason of its end.
    async fn live(&self) -> io::Result<String> {
        let flag = match self.kind {
            Kind::Own => "--config",
            Kind::Shared => "--shared",
        };
        let arguments: [&OsStr; 4] =
            ["fn".as_ref(), "worker".as_ref(), flag.as_ref(), self.file.as_ref()];
        let mut process = child::start(&self.executable, &arguments, Stdio::inherit())?;
        let pid = process.id();
        self.pid.send_replace(pid);
        loop {
            tokio::select! {
                status = process.wait() => return Ok(status?.to_string()),
                () = self.replace.notified() => {}
            }
            if self.unwanted.get() == pid {
                child::end(&mut process, END_TIMEOUT).await;
                return Ok("it was replaced".to_owned());
            }
        }
    }

    /// Replaces the process by a new one, after it has finished its pending writes.
    pub fn replace(&self, pid: u32) {
        self.unwanted.set(Some(pid));
        self.replace.notify_one();
    }

    /// Applies a changed configuration. A shared worker reloads it; a tenant's own worker is
    /// replaced.
    pub fn reload(&self) {
        match (self.kind, *self.pid.borrow()) {
            (_, None) => {}
            (Kind::Own, Some(pid)) => self.replace(pid),
            // A process that has not installed its handler yet ends by the signal; the next one
            // reads the file.
            (Kind::Shared, Some(_)) => self.signal(Signal::HUP),
        }
    }

    /// Ends the worker: the process finishes pending writes and is not restarted.
    pub fn drain(&self) {
        self.is_draining.set(true);
        self.signal(Signal::TERM);
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid.borrow().and_then(|pid| Pid::from_raw(pid as i32));
        if let Some(pid) = pid {
            let _ = kill_process(pid, signal);
        }
    }
}
