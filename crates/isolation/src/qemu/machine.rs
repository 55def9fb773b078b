//! One process of QEMU: started, talked to, ended.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream as Socket;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde_json::json;
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;

use super::command::{Accelerator, Beginning, Numbers, command};
use super::console::Console;
use super::memory::Memory;
use super::monitor::Monitor;
use super::parts::Parts;

/// What the machine's first process says when it may be saved (`unlade_guest.machine`).
const READY: &[u8] = b"ready\n";
/// Octets for the generator of random numbers of a machine that goes on.
const ENTROPY_BYTES: usize = 64;

/// What all machines of a template have.
#[derive(Debug)]
pub(super) struct Plan {
    pub parts: Parts,
    pub accelerator: Accelerator,
    pub memory: Memory,
    pub initramfs: PathBuf,
    /// The interpreter's program.
    pub python: PathBuf,
    pub scratch_bytes: u64,
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
    child: Option<Child>,
    process: AsyncFd<OwnedFd>,
    number: u32,
    control: UnixStream,
    /// What it said.
    pub console: Console,
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
    let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&file, bytes)?;
    Ok(file)
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
        let mut command = command(&plan.parts, plan.accelerator, plan.memory, numbers, beginning);
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
        let child = linux::child::spawn(&mut command, inherited)?;
        // Its copies of the console's end would keep the console open.
        drop(command);
        let machine = Machine::of_child(child, control, Console::listen(console, name)?)?;
        Ok((machine, ends))
    }

    fn of_child(child: Child, control: Socket, console: Console) -> io::Result<Machine> {
        let number = child.id();
        // From here on the machine ends with this value.
        let mut guard = Reaper(Some(child));
        let id = i32::try_from(number).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| io::Error::other("a process without a number"))?;
        let process = pidfd_open(id, PidfdFlags::empty())?;
        let process = AsyncFd::register_with_interest(process, Interest::READABLE)?;
        control.set_nonblocking(true)?;
        let control = UnixStream::from_std(control)?;
        Ok(Machine { child: guard.0.take(), process, number, control, console })
    }

    /// The process's number.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Waits until the machine has imported its function and may be saved.
    ///
    /// # Errors
    /// It has ended instead; what it said last.
    pub async fn ready(&mut self) -> io::Result<()> {
        let mut said = [0; READY.len()];
        let read = self.control.read_exact(&mut said).await;
        if read.is_ok() && said == READY {
            return Ok(());
        }
        Err(io::Error::other(format!("the machine ended; it said last:\n{}", self.console.tail())))
    }

    /// Lets the instance go on, with the time and with randomness of its own.
    ///
    /// # Errors
    /// It has ended.
    pub async fn resume(&mut self) -> io::Result<()> {
        let mut entropy = [0; ENTROPY_BYTES];
        let bytes = rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())?;
        if bytes != ENTROPY_BYTES {
            return Err(io::Error::other("too few random octets"));
        }
        let hex: String = entropy.iter().map(|octet| format!("{octet:02x}")).collect();
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
    pub async fn ended(&mut self) -> String {
        // The number stays readable once the process has ended.
        if let Err(error) = self.process.readable().await {
            return error.to_string();
        }
        let status = match self.child.as_mut().map(Child::try_wait) {
            Some(Ok(Some(status))) => {
                self.child = None;
                status.to_string()
            }
            _ => "the machine was reaped".to_owned(),
        };
        // What it said last may still be in its socket.
        tokio::task::yield_now().await;
        match self.console.last_line() {
            line if line.is_empty() => status,
            line => format!("{status}; it said last: {line}"),
        }
    }

    /// Ends it.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            // It may have ended already.
            let _ = child.kill();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        drop(Reaper(self.child.take()));
    }
}

/// Ends a process, and waits for it where nothing else waits.
struct Reaper(Option<Child>);

impl Drop for Reaper {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        let _ = child.kill();
        if matches!(child.try_wait(), Ok(Some(_))) {
            return;
        }
        let wait = move || child.wait();
        if let Err(error) = std::thread::Builder::new().spawn(wait) {
            tracing::warn!(%error, "qemu: a process that ended is not reaped");
        }
    }
}
