//! One process of QEMU: started, talked to, ended.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::rc::Rc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use serde::Deserialize;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::sync::{Notify, watch};
use unlade_fn_model::isolation::Unpreloaded;

use super::KVM;
use super::command::{Accelerator, Beginning, Numbers, command};
use super::console::Console;
use super::memory::Memory;
use super::monitor::Monitor;
use super::parts::Parts;
use super::user::Users;

/// What the machine's first process says when it may be saved (`unlade_guest.machine`).
const READY: &[u8] = b"ready";
/// Longest line of its.
const LINE_BYTES_MAX: usize = 4096;
/// Bytes for the generator of random numbers of a machine that goes on.
const ENTROPY_BYTES: usize = 64;

/// What it says before, where instances import the function themselves.
#[derive(Debug, Deserialize)]
struct Said {
    unpreloaded: String,
    modules: bool,
}

/// What all machines of a template have.
#[derive(Debug)]
pub(super) struct Plan {
    /// The function's name.
    pub function: String,
    pub parts: Parts,
    pub accelerator: Accelerator,
    pub memory: Memory,
    pub initramfs: PathBuf,
    /// The interpreter's program.
    pub python: PathBuf,
    pub scratch_bytes: u64,
    /// Whether it has a network: the baseline.
    pub has_network: bool,
    /// Who runs QEMU.
    pub users: Rc<Users>,
    /// The interpreter's and the function's.
    pub disks: [File; 2],
}

/// How a machine begins.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    /// A kernel.
    Kernel,
    /// A saved state.
    State,
}

/// What a machine has in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    pub ram: &'a OwnedFd,
    pub region: &'a OwnedFd,
    /// What it is restored from, or saved to.
    pub state: Option<&'a OwnedFd>,
}

/// A machine; it is killed when dropped.
pub(super) struct Machine {
    number: u32,
    control: UnixStream,
    /// What it said.
    pub console: Console,
    stop: Rc<Notify>,
    ended: watch::Receiver<Option<String>>,
}

/// What a machine is started with, and is not its own.
pub(super) struct Ends {
    /// Of its channel.
    pub channel: OwnedFd,
    /// Of its monitor.
    pub monitor: Socket,
    /// Number of its saved state's file, in it.
    pub state: Option<RawFd>,
}

/// Memory without a name, as a file.
///
/// # Errors
/// The system's.
pub(super) fn memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Likewise, of a size that nobody changes.
///
/// # Errors
/// The system's.
pub(super) fn sized_memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = memory(name, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Makes a file in memory one that nobody changes: a machine has a descriptor of it.
///
/// # Errors
/// The system's: somebody has it mapped for writing.
pub(super) fn seal(file: &OwnedFd) -> io::Result<()> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    Ok(fcntl_add_seals(file, seals)?)
}

impl Machine {
    /// Starts QEMU.
    ///
    /// # Errors
    /// The system's.
    pub fn start(
        plan: &Plan,
        name: &str,
        from: From,
        files: Files<'_>,
    ) -> io::Result<(Machine, Ends)> {
        let name = format!("{}/{name}", plan.function);
        let (ram, region) = (files.ram.try_clone()?, files.region.try_clone()?);
        let state = files.state.map(OwnedFd::try_clone).transpose()?;
        let disks = [plan.disks[0].try_clone()?, plan.disks[1].try_clone()?];
        let (monitor, monitor_end) = Socket::pair()?;
        let (console, console_end) = Socket::pair()?;
        let (control, control_end) = Socket::pair()?;
        let (channel, channel_end) = Socket::pair()?;
        let numbers = Numbers {
            ram: ram.as_raw_fd(),
            region: region.as_raw_fd(),
            disks: [disks[0].as_raw_fd(), disks[1].as_raw_fd()],
            monitor: monitor_end.as_raw_fd(),
            console: console_end.as_raw_fd(),
            control: control_end.as_raw_fd(),
            channel: channel_end.as_raw_fd(),
        };
        let beginning = match from {
            From::State => Beginning::Restore,
            From::Kernel => Beginning::Boot {
                initramfs: &plan.initramfs,
                python: &plan.python,
                scratch_bytes: plan.scratch_bytes,
            },
        };
        let (parts, network) = (&plan.parts, plan.has_network);
        let mut command =
            command(parts, plan.accelerator, plan.memory, numbers, network, beginning, &name);
        let said = || console_end.try_clone().map(OwnedFd::from).map(Stdio::from);
        command.stdin(Stdio::null()).stdout(said()?).stderr(said()?);
        let ends = Ends {
            channel: channel.into(),
            monitor,
            state: state.as_ref().map(AsRawFd::as_raw_fd),
        };
        let mut inherited = vec![ram, region];
        inherited.extend(state);
        inherited.extend(disks.map(OwnedFd::from));
        let sockets = [monitor_end, console_end, control_end, channel_end];
        inherited.extend(sockets.map(OwnedFd::from));
        let files: [&Path; 4] =
            [&plan.parts.qemu, &plan.parts.firmware[0], &plan.parts.kernel, &plan.initramfs];
        let device = (plan.accelerator == Accelerator::Kvm).then_some(Path::new(KVM));
        plan.users.assign(&mut command, &files, device);
        unlade_sys::child::prepare(&mut command, inherited);
        if plan.accelerator == Accelerator::Tcg {
            // Its translated code lies here and there in a buffer, of which huge pages would make the
            // machine's own all.
            unlade_sys::child::without_huge_pages(&mut command);
        }
        let child = Command::from(command).kill_on_drop(true).spawn()?;
        Ok((Machine::of_child(child, control, Console::listen(console, &name)?)?, ends))
    }

    fn of_child(child: Child, control: Socket, console: Console) -> io::Result<Machine> {
        let number = child.id().ok_or_else(|| io::Error::other("a process without a number"))?;
        control.set_nonblocking(true)?;
        let control = UnixStream::from_std(control)?;
        let (say, ended) = watch::channel(None);
        let stop = Rc::new(Notify::new());
        tokio::task::spawn_local(attend(child, stop.clone(), console.clone(), say));
        Ok(Machine { number, control, console, stop, ended })
    }

    /// The process's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Waits until the machine may be saved; why its instances import the function themselves, where
    /// they do.
    ///
    /// # Errors
    /// It has ended instead, or said something else; what it said last.
    pub async fn ready(&mut self) -> io::Result<Option<Unpreloaded>> {
        let mut unpreloaded = None;
        loop {
            let line = self.line().await;
            match line.as_deref() {
                Ok(READY) => return Ok(unpreloaded),
                Ok(line) if unpreloaded.is_none() => {
                    let said: Said = serde_json::from_slice(line).map_err(io::Error::other)?;
                    unpreloaded = Some(Unpreloaded::new(&said.unpreloaded, said.modules));
                }
                _ => {
                    let last = self.console.tail();
                    let why = format!("the machine ended; it said last:\n{last}");
                    return Err(io::Error::other(why));
                }
            }
        }
    }

    /// A line of the control port, without its end.
    async fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        while line.len() < LINE_BYTES_MAX {
            match self.control.read_u8().await? {
                b'\n' => return Ok(line),
                byte => line.push(byte),
            }
        }
        Err(io::Error::other("a line that is too long"))
    }

    /// Lets the instance go on, with the time and with randomness of its own.
    ///
    /// # Errors
    /// It has ended.
    pub async fn resume(&mut self) -> io::Result<()> {
        let mut entropy = [0; ENTROPY_BYTES];
        let bytes = rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())?;
        if bytes != ENTROPY_BYTES {
            return Err(io::Error::other("too few random bytes"));
        }
        let hex: String = entropy.iter().map(|byte| format!("{byte:02x}")).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let said = json!({"time_ns": now.as_nanos() as u64, "entropy": hex});
        self.control.write_all(format!("{said}\n").as_bytes()).await
    }

    /// Saves the state of its devices; what it has in memory is in its file. It does not run on.
    ///
    /// # Errors
    /// QEMU's.
    pub async fn save(&mut self, ends: Ends) -> io::Result<()> {
        let state = ends.state.ok_or(io::ErrorKind::InvalidInput)?;
        Monitor::new(ends.monitor).await?.migrate("migrate", state).await
    }

    /// Goes on from a saved state; its channel.
    ///
    /// # Errors
    /// QEMU's; what it said last.
    pub async fn restore(&mut self, ends: Ends) -> io::Result<OwnedFd> {
        let restored = async {
            let state = ends.state.ok_or(io::ErrorKind::InvalidInput)?;
            Monitor::new(ends.monitor).await?.migrate("migrate-incoming", state).await
        };
        let said = |error| io::Error::other(format!("{error}: {}", self.console.tail()));
        restored.await.map_err(said)?;
        Ok(ends.channel)
    }

    /// Waits until it has ended; why.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "nobody attends to it any more".to_owned(),
        }
    }

    /// Ends it.
    pub fn kill(&self) {
        self.stop.notify_one();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a process, and kills it where it is told to.
async fn attend(
    mut child: Child,
    stop: Rc<Notify>,
    console: Console,
    say: watch::Sender<Option<String>>,
) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.notified() => {
            // It may have ended already.
            let _ = child.start_kill();
            child.wait().await
        }
    };
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    // What it said last may still be in its socket.
    console.closed().await;
    let why = match console.last_line() {
        line if line.is_empty() => status,
        line => format!("{status}; it said last: {line}"),
    };
    let _ = say.send(Some(why));
}
