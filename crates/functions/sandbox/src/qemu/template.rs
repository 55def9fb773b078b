//! A machine that was saved after it had imported its function; instances resume from there.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::future::{Future, pending};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use unlade_fn_model::isolation::{
    Instance, IsolationError, Local, Origin, Started, Template, Unpreloaded, Usage,
};

use super::config::QemuConfig;
use super::error::system;
use super::machine::{Files, From, Machine, Plan, memory, seal, sized_memory};
use super::{holes, usage};

const REGION: &str = "unlade-region";
const STATE: &str = "unlade-state";
/// The block size of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// A saved machine.
#[derive(Debug)]
struct Snapshot {
    ram: OwnedFd,
    state: OwnedFd,
    /// CPU time of the machine until the save.
    cpu: Duration,
    unpreloaded: Option<Unpreloaded>,
}

/// Machines that map a snapshot.
type Machines = Rc<RefCell<BTreeSet<u32>>>;

/// The template of a function's machines.
pub(super) struct QemuTemplate {
    plan: Plan,
    config: QemuConfig,
    snapshot: Option<Snapshot>,
    machines: Machines,
}

impl QemuTemplate {
    /// Boots a machine, and saves it.
    ///
    /// # Errors
    /// The system call failed, the machine does not start, or it takes longer than `boot_timeout`.
    pub async fn new(plan: Plan, config: QemuConfig) -> Result<QemuTemplate, IsolationError> {
        let mut template =
            QemuTemplate { plan, config, snapshot: None, machines: Machines::default() };
        let what = format!("a virtual machine ({})", template.plan.accelerator.name());
        template.snapshot = Some(template.save().await.map_err(system(what))?);
        Ok(template)
    }

    async fn save(&self) -> io::Result<Snapshot> {
        let ram = memory(usage::RAM, self.plan.memory.ram_bytes())?;
        let region = sized_memory(REGION, self.plan.memory.region_bytes)?;
        let state = memory(STATE, 0)?;
        let files = Files { ram: &ram, region: &region, state: Some(&state) };
        let (mut machine, ends) = Machine::start(&self.plan, "template", From::Kernel, files)?;
        let booted = within(self.config.boot_timeout, machine.ready()).await;
        let unpreloaded = said_before(&machine, booted)?;
        let saved = within(self.config.boot_timeout, machine.save(ends)).await;
        said_before(&machine, saved)?;
        let cpu = usage::cpu_of_process(machine.number())?;
        machine.kill();
        machine.ended().await;
        let file = File::from(ram);
        let freed_bytes = holes::punch(&file)?;
        tracing::debug!(freed_bytes, "qemu: zero pages of a snapshot");
        let ram = OwnedFd::from(file);
        seal(&ram)?;
        seal(&state)?;
        Ok(Snapshot { ram, state, cpu, unpreloaded })
    }

    async fn restore(&self, name: &str, snapshot: &Snapshot) -> io::Result<Started> {
        let region = sized_memory(REGION, self.plan.memory.region_bytes)?;
        let state = Some(&snapshot.state);
        let files = Files { ram: &snapshot.ram, region: &region, state };
        let (mut machine, ends) = Machine::start(&self.plan, name, From::State, files)?;
        let restoring = machine.restore(ends);
        let channel = within(self.config.restore_timeout, restoring).await?;
        machine.resume().await?;
        Ok(self.started(machine, channel, region, Origin::Restored))
    }

    async fn boot(&self, name: &str) -> io::Result<Started> {
        let ram = memory(usage::RAM, self.plan.memory.ram_bytes())?;
        let region = sized_memory(REGION, self.plan.memory.region_bytes)?;
        let files = Files { ram: &ram, region: &region, state: None };
        let (mut machine, ends) = Machine::start(&self.plan, name, From::Kernel, files)?;
        let booted = within(self.config.boot_timeout, machine.ready()).await;
        said_before(&machine, booted)?;
        machine.resume().await?;
        Ok(self.started(machine, ends.channel, region, Origin::Cold))
    }

    fn started(
        &self,
        machine: Machine,
        channel: OwnedFd,
        region: OwnedFd,
        origin: Origin,
    ) -> Started {
        self.machines.borrow_mut().insert(machine.number());
        let instance = Rc::new(QemuInstance { machine, machines: self.machines.clone() });
        Started { channel, region: Some(region), origin, instance }
    }
}

impl Template for QemuTemplate {
    fn start<'a>(&'a self, name: &'a str) -> Local<'a, Result<Started, IsolationError>> {
        Box::pin(async move {
            let started = match &self.snapshot {
                Some(snapshot) if self.config.snapshot => self.restore(name, snapshot).await,
                _ => self.boot(name).await,
            };
            started.map_err(system(format!("the virtual machine of {name}")))
        })
    }

    fn unpreloaded(&self) -> Option<&Unpreloaded> {
        self.snapshot.as_ref().and_then(|snapshot| snapshot.unpreloaded.as_ref())
    }

    fn usage(&self) -> io::Result<Usage> {
        let Some(snapshot) = &self.snapshot else { return Ok(Usage::default()) };
        let held = held_bytes(&snapshot.ram)? + held_bytes(&snapshot.state)?;
        // The part that instances map is in their share.
        let machines = self.machines.borrow();
        let found = machines.iter().filter_map(|number| usage::of_process(*number).ok());
        let shared: u64 = found.map(|found| found.snapshot_bytes).sum();
        let pss_bytes = held.saturating_sub(shared);
        Ok(Usage { pss_bytes, private_bytes: pss_bytes, cpu: snapshot.cpu })
    }

    /// Never completes: the template needs no process.
    fn ended(&self) -> Local<'_, String> {
        Box::pin(pending())
    }
}

struct QemuInstance {
    machine: Machine,
    machines: Machines,
}

impl Instance for QemuInstance {
    fn ended(&self) -> Local<'_, String> {
        Box::pin(async move {
            let why = self.machine.ended().await;
            self.machines.borrow_mut().remove(&self.machine.number());
            why
        })
    }

    fn usage(&self) -> io::Result<Usage> {
        usage::of_process(self.machine.number()).map(|found| found.usage)
    }

    fn kill(&self) {
        self.machine.kill();
    }
}

impl Drop for QemuInstance {
    fn drop(&mut self) {
        self.machines.borrow_mut().remove(&self.machine.number());
    }
}

fn held_bytes(file: &OwnedFd) -> io::Result<u64> {
    Ok(rustix::fs::fstat(file)?.st_blocks as u64 * BLOCK_BYTES)
}

async fn within<T>(limit: Duration, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("not done within {limit:?}"));
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| Err(late()))
}

/// Adds the machine's output to an error.
fn said_before<T>(machine: &Machine, result: io::Result<T>) -> io::Result<T> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => io::Error::new(
            error.kind(),
            format!("{error}; it said last:\n{}", machine.console.tail()),
        ),
        _ => error,
    })
}
