//! One instance: a child of the zygote.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::sync::watch;
use unlade_fn_model::isolation::{Instance, Local, Usage};

use super::groups::Account;
use super::usage;

/// Memory above the limit that is tolerated: the kernel counts pages late.
const SLACK_BYTES: u64 = 1 << 20;

/// The owner of instances' slots: a template, which stays while it has an instance.
pub trait SlotOwner {
    /// Releases the resources of an instance that has ended.
    fn release(&self, slot: u32);
}

/// A living instance. Dropping it kills its processes and removes its resources.
pub struct Sandboxed {
    owner: Arc<dyn SlotOwner>,
    slot: u32,
    pid: Pid,
    process: OwnedFd,
    account: Account,
    memory_bytes_max: u64,
    /// True once it was killed for its memory.
    exceeded: Cell<bool>,
    ended: watch::Receiver<Option<String>>,
    /// The reading end of its output, until it is taken: without a reader, printing would fail.
    output: RefCell<Option<OwnedFd>>,
    freeze_after: Option<Duration>,
}

/// Waits until the reason of an instance's end is known.
pub async fn known(ended: &mut watch::Receiver<Option<String>>) -> String {
    let how = ended.wait_for(Option::is_some).await.ok().and_then(|how| how.clone());
    how.unwrap_or_else(|| "its template was lost".to_owned())
}

impl Sandboxed {
    /// Creates an instance that has greeted.
    pub fn new(
        owner: Arc<dyn SlotOwner>,
        slot: u32,
        pid: Pid,
        process: OwnedFd,
        account: Account,
        memory_bytes_max: u64,
        ended: watch::Receiver<Option<String>>,
    ) -> Sandboxed {
        let (output, exceeded, freeze_after) = (RefCell::default(), Cell::default(), None);
        Sandboxed {
            owner,
            slot,
            pid,
            process,
            account,
            memory_bytes_max,
            exceeded,
            ended,
            output,
            freeze_after,
        }
    }

    /// Adds the reading end of its output.
    pub fn with_output(mut self, output: OwnedFd) -> Sandboxed {
        *self.output.get_mut() = Some(output);
        self
    }

    /// Sets the idle time after which it is to be frozen.
    pub fn frozen_after(mut self, freeze_after: Option<Duration>) -> Sandboxed {
        self.freeze_after = freeze_after;
        self
    }

    async fn end(&self) -> String {
        let how = known(&mut self.ended.clone()).await;
        if !self.exceeded.get() && self.account.killed() == 0 {
            return how;
        }
        format!("{how}: it met its memory limit of {} MiB", self.memory_bytes_max >> 20)
    }

    /// Returns true if its processes have more memory than its limit. The kernel's limit has room
    /// for `/tmp`, too.
    fn exceeds_memory(&self) -> bool {
        let is_more = |bytes: u64| bytes > self.memory_bytes_max + SLACK_BYTES;
        if !self.account.memory_bytes().is_some_and(is_more) {
            return false;
        }
        // Files may come and go meanwhile.
        let before = self.scratch_used_bytes();
        let Some(held) = self.account.held_bytes() else { return false };
        is_more(held.saturating_sub(before.max(self.scratch_used_bytes())))
    }
}

impl Instance for Sandboxed {
    fn ended(&self) -> Local<'_, String> {
        Box::pin(self.end())
    }

    fn usage(&self) -> io::Result<Usage> {
        let mut pids = self.account.members();
        // The function's own process is first: its end is the instance's end.
        pids.retain(|pid| *pid != self.pid);
        pids.insert(0, self.pid);
        usage::of(&pids, self.account.cpu())
    }

    fn kill(&self) {
        // This fails if the process has ended already.
        let _ = rustix::process::pidfd_send_signal(&self.process, Signal::KILL);
        // A frozen process would not end: the signal is there before it goes on.
        let _ = self.account.thaw();
    }

    fn freeze_after(&self) -> Option<Duration> {
        self.freeze_after
    }

    fn freeze(&self) -> io::Result<()> {
        match self.account.freeze()? {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "there are no control groups that freeze; `unlade doctor` says what is there",
            )),
        }
    }

    fn thaw(&self) -> io::Result<()> {
        self.account.thaw().map(|_| ())
    }

    fn is_frozen(&self) -> bool {
        self.account.is_frozen()
    }

    fn scratch_used_bytes(&self) -> u64 {
        usage::scratch_bytes(self.pid)
    }

    fn limit_memory(&self) -> bool {
        if self.exceeds_memory() {
            self.exceeded.set(true);
            self.kill();
        }
        self.exceeded.get()
    }

    fn memory_peak_bytes(&self) -> Option<u64> {
        let peak = || self.account.memory_peak_bytes().or_else(|| usage::peak_bytes(self.pid));
        match self.scratch_used_bytes() {
            0 => peak(),
            // The kernel's peak has the files, too.
            used => self.account.held_bytes().map(|held| held.saturating_sub(used)).or_else(peak),
        }
    }

    fn take_output(&self) -> Option<OwnedFd> {
        self.output.take()
    }
}

impl Drop for Sandboxed {
    fn drop(&mut self) {
        self.kill();
        self.owner.release(self.slot);
    }
}
