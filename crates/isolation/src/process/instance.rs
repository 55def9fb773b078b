//! One instance: a child of the zygote's.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use function::isolation::{Instance, Local, Usage};
use rustix::process::{Pid, Signal};
use tokio::sync::{Mutex, oneshot};

use super::groups::{self, Account};
use super::template::Held;
use super::usage;

/// A living instance. What is left of it is removed when it is dropped.
pub struct Sandboxed {
    held: Arc<Held>,
    slot: u32,
    pid: Pid,
    process: OwnedFd,
    account: Account,
    end: Mutex<End>,
}

enum End {
    Waited(oneshot::Receiver<String>),
    Known(String),
}

impl Sandboxed {
    /// One that has greeted.
    pub fn new(
        held: Arc<Held>,
        slot: u32,
        pid: Pid,
        process: OwnedFd,
        ended: oneshot::Receiver<String>,
    ) -> Sandboxed {
        let account = held.account(&groups::of_instance(slot));
        Sandboxed { held, slot, pid, process, account, end: Mutex::new(End::Waited(ended)) }
    }

    async fn end(&self) -> String {
        let mut end = self.end.lock().await;
        if let End::Waited(ended) = &mut *end {
            let how = ended.await.unwrap_or_else(|_| "its template was lost".to_owned());
            let how = match self.account.killed() {
                0 => how,
                _ => format!(
                    "{how}: it met its memory limit of {} MiB",
                    self.held.limits.memory_bytes >> 20
                ),
            };
            *end = End::Known(how);
        }
        match &*end {
            End::Known(how) => how.clone(),
            End::Waited(_) => String::new(),
        }
    }
}

impl Instance for Sandboxed {
    fn ended(&self) -> Local<'_, String> {
        Box::pin(self.end())
    }

    fn usage(&self) -> io::Result<Usage> {
        let mut pids = self.account.members();
        // The function's own process first: without it there is no instance.
        pids.retain(|pid| *pid != self.pid);
        pids.insert(0, self.pid);
        usage::of(&pids, self.account.cpu())
    }

    fn kill(&self) {
        // One that has ended already has nobody to be killed.
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
    }
}

impl Drop for Sandboxed {
    fn drop(&mut self) {
        self.kill();
        self.held.release(self.slot);
    }
}
