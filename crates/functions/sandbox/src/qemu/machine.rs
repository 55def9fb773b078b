//! One process of QEMU: start, communication, end.

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

use super::command::{Accelerator, Beginning, KVM, Numbers, command};
use super::console::Console;
use super::memory::Memory;
use super::monitor::Monitor;
use super::parts::Parts;
use super::user::Users;

/// The line of the machine's first process when it can be saved (`unlade_guest.machine`).
const READY: &[u8] = b"ready";
/// Longest line of that process.
const LINE_BYTES_MAX: usize = 4096;
/// Seed of the random number generator of a resumed machine.
const ENTROPY_BYTES: usize = 64;

/// The preceding line, if instances import the function themselves.
#[derive(Debug, Deserialize)]
struct PreloadReport {
    unpreloaded: String,
    modules: bool,
}

/// The common parameters of a template's machines.
#[derive(Debug)]
pub(super) struct Plan {
    /// The function's name.
    pub function: String,
    pub parts: Parts,
    pub accelerator: Accelerator,
    pub memory: Memory,
    pub initramfs: PathBuf,
    /// The path of the interpreter.
    pub python: PathBuf,
    pub scratch_bytes: u64,
    /// True if it has a network: the baseline.
    pub has_network: bool,
    /// The users that run QEMU.
    pub users: Rc<Users>,
    /// The disks of the interpreter and of the function.
    pub disks: [File; 2],
}

/// The way in which a machine starts.
#[derive(Clone, Copy, Debug)]
pub(super) enum From {
    /// A kernel.
    Kernel,
    /// A saved state.
    State,
}

/// The memory files of a machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Files<'a> {
    pub ram: &'a OwnedFd,
    pub region: &'a OwnedFd,
    /// The saved device state, read at a restore, or written at a save.
    pub state: Option<&'a OwnedFd>,
}

/// A running machine; dropping it kills it.
pub(super) struct Machine {
    number: u32,
    control: UnixStream,
    /// Its output.
    pub console: Console,
    stop: Rc<Notify>,
    ended: watch::Receiver<Option<String>>,
}

/// The descriptors of a started machine that belong to the caller.
pub(super) struct Ends {
    /// The host's end of its channel.
    pub channel: OwnedFd,
    /// The host's end of its monitor.
    pub monitor: Socket,
    /// The number of the state file's descriptor in QEMU.
    pub state: Option<RawFd>,
}

/// Creates an anonymous memory file.
///
/// # Errors
/// The system call failed.
pub(super) fn memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, bytes)?;
    Ok(file)
}

/// Creates an anonymous memory file of a fixed size.
///
/// # Errors
/// The system call failed.
pub(super) fn sized_memory(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let file = memory(name, bytes)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(file)
}

/// Seals a memory file against changes, because a machine has a descriptor of it.
///
/// # Errors
/// The system call failed: the file is mapped for writing.
pub(super) fn seal(file: &OwnedFd) -> io::Result<()> {
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    Ok(fcntl_add_seals(file, seals)?)
}

impl Machine {
    /// Starts QEMU.
    ///
    /// # Errors
    /// The system call failed.
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
            // The translated code is sparse in its buffer, so huge pages would increase the
            // private memory of the machine.
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

    /// The number of the process.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Waits until the machine can be saved. Returns the reason why its instances import the
    /// function themselves, if they do.
    ///
    /// # Errors
    /// It has ended, or has sent an unexpected line; with the end of its output.
    pub async fn ready(&mut self) -> io::Result<Option<Unpreloaded>> {
        let mut unpreloaded = None;
        loop {
            let line = self.line().await;
            match line.as_deref() {
                Ok(READY) => return Ok(unpreloaded),
                Ok(line) if unpreloaded.is_none() => {
                    let said: PreloadReport =
                        serde_json::from_slice(line).map_err(io::Error::other)?;
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

    /// Reads a line of the control port, without its end.
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

    /// Resumes the instance, with the current time and a random seed of its own.
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

    /// Saves the state of its devices; its memory is in its file. The machine stays stopped.
    ///
    /// # Errors
    /// QEMU's error.
    pub async fn save(&mut self, ends: Ends) -> io::Result<()> {
        let state = ends.state.ok_or(io::ErrorKind::InvalidInput)?;
        Monitor::new(ends.monitor).await?.migrate("migrate", state).await
    }

    /// Resumes from a saved state; returns the channel.
    ///
    /// # Errors
    /// QEMU's error, with the end of the output.
    pub async fn restore(&mut self, ends: Ends) -> io::Result<OwnedFd> {
        let restored = async {
            let state = ends.state.ok_or(io::ErrorKind::InvalidInput)?;
            Monitor::new(ends.monitor).await?.migrate("migrate-incoming", state).await
        };
        let said = |error| io::Error::other(format!("{error}: {}", self.console.tail()));
        restored.await.map_err(said)?;
        Ok(ends.channel)
    }

    /// Waits until it has ended; returns the reason.
    pub async fn ended(&self) -> String {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await {
            Ok(why) => why.clone().unwrap_or_default(),
            Err(_) => "its task has ended".to_owned(),
        }
    }

    /// Kills it.
    pub fn kill(&self) {
        self.stop.notify_one();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for a process, and kills it on request.
async fn attend(
    mut child: Child,
    stop: Rc<Notify>,
    console: Console,
    say: watch::Sender<Option<String>>,
) {
    let status = tokio::select! {
        status = child.wait() => status,
        () = stop.notified() => {
            // The process may have ended already.
            let _ = child.start_kill();
            child.wait().await
        }
    };
    let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
    // The end of the output may still be in its socket.
    console.closed().await;
    let why = match console.last_line() {
        line if line.is_empty() => status,
        line => format!("{status}; it said last: {line}"),
    };
    let _ = say.send(Some(why));
}
