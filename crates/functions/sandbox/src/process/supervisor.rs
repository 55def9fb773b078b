//! The first stage of the launcher: it stays outside of the sandbox with the rights of root, and
//! creates the roots and control groups of instances. It ends when its gateway ends for any
//! reason, because its socket becomes readable then, and removes everything that it created.

use std::fs::File;
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, PidfdFlags};
use unlade_sys::namespaces::{Namespace, unshare};

use super::config::{IDS_OF_TEMPLATE, INSTANCES_MAX};
use super::groups::{self, Groups};
use super::message::{FromSupervisor, FromZygote, ToSupervisor, ToZygote};
use super::spec::Spec;
use super::{packet, root};

/// The argument of the launcher's second start.
pub const CONFINED: &str = "--confined";
/// Interval of attempts to remove a group that was not empty.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// Number of such intervals after which a zygote that has closed its socket is killed.
const ENDING_MAX: u32 = 500;
/// Number of instances by which the limits of the zygote's group are raised.
const ADMITTED_STEP: u32 = 32;

/// Runs a sandbox until it ends or the gateway ends.
///
/// # Errors
/// The reason why there is none, which was also sent to the gateway.
pub fn run(gateway: OwnedFd) -> Result<()> {
    let Some((spec, beside)) = packet::receive::<Spec>(&gateway)? else { return Ok(()) };
    let outcome =
        Supervisor::start(&spec, beside).and_then(|supervisor| supervisor.launched(&gateway));
    match outcome {
        Ok(supervisor) => supervisor.serve(&gateway),
        Err(error) => {
            packet::send(&gateway, &FromSupervisor::Failed { why: error.to_string() }, &[])?;
            Err(error)
        }
    }
}

struct Supervisor {
    spec: Spec,
    groups: Groups,
    zygote: Zygote,
    /// Number of instances for which the zygote's group has room.
    admitted: u32,
    /// Instances that are removed once they are empty.
    leaving: Vec<u32>,
    /// Intervals until the zygote is killed, once it is ending.
    ending: Option<u32>,
}

/// The zygote's process; dropping it kills it and all processes of its namespace.
struct Zygote {
    child: Child,
    ended: OwnedFd,
    socket: OwnedFd,
}

impl Zygote {
    /// Kills it and all processes of its namespace, frozen ones included.
    fn end(mut self, groups: &Groups) {
        let _ = self.child.kill();
        // An instance that was frozen meanwhile has the signal, and goes on to end.
        loop {
            groups.thaw_all();
            match poll(&mut [PollFd::new(&self.ended, PollFlags::IN)], Some(&AGAIN)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                _ => return,
            }
        }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Returns when the last process of the namespace has ended.
        let _ = self.child.wait();
    }
}

impl Supervisor {
    fn start(spec: &Spec, beside: Vec<OwnedFd>) -> Result<Supervisor> {
        let Some(control) = beside.into_iter().next() else {
            return Err(Error::new(ErrorKind::InvalidData, "no control socket beside the sandbox"));
        };
        // Signals of the gateway's terminal must not reach this process.
        let _ = rustix::process::setsid();
        rustix::process::chdir("/")?;
        let groups = Groups::make(&spec.hierarchies, &spec.group)
            .map_err(|error| Error::new(error.kind(), format!("making cgroups: {error}")))?;
        match launched(spec, &groups, &control) {
            Ok(zygote) => {
                let spec = spec.clone();
                let (admitted, leaving, ending) = (0, Vec::new(), None);
                Ok(Supervisor { spec, groups, zygote, admitted, leaving, ending })
            }
            Err(error) => {
                groups.clear();
                Err(error)
            }
        }
    }

    /// Waits until the zygote has become the interpreter.
    fn launched(self, gateway: &OwnedFd) -> Result<Supervisor> {
        let failed = match packet::receive::<FromZygote>(&self.zygote.socket) {
            // The socket was closed by the exec.
            Ok(None) => None,
            Ok(Some((FromZygote::Failed { why }, _))) => Some(why),
            Ok(Some((FromZygote::Unmapped, _))) => Some("the zygote said it twice".to_owned()),
            Err(error) => Some(error.to_string()),
        };
        if let Some(why) = failed {
            let Supervisor { groups, zygote, .. } = self;
            drop(zygote);
            groups.clear();
            return Err(Error::other(why));
        }
        let pid = self.zygote.child.id().cast_signed();
        packet::send(gateway, &FromSupervisor::Launched { pid }, &[])?;
        Ok(self)
    }

    fn serve(mut self, gateway: &OwnedFd) -> Result<()> {
        let how = self.hear(gateway);
        // Runs for every end, also if the gateway ended within a message.
        let Supervisor { groups, zygote, .. } = self;
        zygote.end(&groups);
        groups.clear();
        if let Some(how) = how? {
            // The gateway may have ended.
            let _ = packet::send(gateway, &FromSupervisor::Ended { how }, &[]);
        }
        Ok(())
    }

    /// Executes the gateway's requests until the gateway or the zygote has ended; returns the
    /// zygote's status.
    fn hear(&mut self, gateway: &OwnedFd) -> Result<Option<String>> {
        loop {
            let is_waiting = !self.leaving.is_empty() || self.ending.is_some();
            let wait = is_waiting.then_some(&AGAIN);
            let mut polled = [
                PollFd::new(gateway, PollFlags::IN),
                PollFd::new(&self.zygote.ended, PollFlags::IN),
            ];
            match poll(&mut polled, wait) {
                Err(rustix::io::Errno::INTR) => continue,
                outcome => outcome?,
            };
            let [said, ended] = polled.map(|one| !one.revents().is_empty());
            if ended {
                return Ok(Some(words(self.zygote.child.wait()?)));
            }
            self.remove(gateway);
            self.hasten();
            if said {
                match packet::receive::<ToSupervisor>(gateway) {
                    Ok(Some((message, _))) => self.obey(message, gateway)?,
                    Ok(None) | Err(rustix::io::Errno::CONNRESET) => return Ok(None),
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }

    fn obey(&mut self, message: ToSupervisor, gateway: &OwnedFd) -> Result<()> {
        match message {
            ToSupervisor::Make { slot } => match self.make(slot) {
                Ok(files) => {
                    let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                    packet::send(gateway, &FromSupervisor::Made { slot }, &files)?;
                }
                Err(error) => {
                    let why = error.to_string();
                    packet::send(gateway, &FromSupervisor::NotMade { slot, why }, &[])?;
                }
            },
            ToSupervisor::Join { slot, pid } => {
                let joined = self.groups.join(&groups::of_instance(slot), pid);
                let why = joined.err().map(|error| error.to_string());
                packet::send(gateway, &FromSupervisor::Joined { slot, why }, &[])?;
            }
            ToSupervisor::Remove { slot } => {
                self.groups.kill(&groups::of_instance(slot));
                self.leaving.push(slot);
                self.remove(gateway);
            }
            ToSupervisor::Ending => self.ending = Some(ENDING_MAX),
        }
        Ok(())
    }

    /// Lets the instances of an ending zygote go on, and kills it if it does not end by itself.
    fn hasten(&mut self) {
        let Some(left) = &mut self.ending else { return };
        self.groups.thaw_all();
        *left = left.saturating_sub(1);
        if *left == 0 {
            let _ = self.zygote.child.kill();
        }
    }

    fn make(&mut self, slot: u32) -> Result<Vec<OwnedFd>> {
        if slot >= INSTANCES_MAX {
            return Err(Error::new(ErrorKind::InvalidInput, "there is no such instance"));
        }
        // Numbers are used again, so that the highest one limits the number of the living.
        if slot >= self.admitted {
            self.admitted = (slot + 1).next_multiple_of(ADMITTED_STEP);
            self.groups.admit(self.admitted, &self.spec.limits);
        }
        let files = self.groups.add(&groups::of_instance(slot), &self.spec.limits)?;
        // The zygote has the first of the users.
        match root::add(slot, &self.spec.limits, self.spec.ids_first + 1 + slot) {
            Ok(()) => Ok(files),
            Err(error) => {
                let _ = self.groups.remove(&groups::of_instance(slot));
                Err(error)
            }
        }
    }

    /// Removes the instances that are empty by now.
    fn remove(&mut self, gateway: &OwnedFd) {
        let groups = &self.groups;
        self.leaving.retain(|slot| {
            let name = groups::of_instance(*slot);
            if groups.remove(&name).is_err() {
                groups.kill(&name);
                return true;
            }
            if let Err(error) = root::remove(*slot) {
                eprintln!("unlade: {error}");
            }
            // If this fails, the gateway has ended: the next receive returns that.
            let _ = packet::send(gateway, &FromSupervisor::Removed { slot: *slot }, &[]);
            false
        });
    }
}

/// Starts the zygote, and maps the users of its user namespace.
fn launched(spec: &Spec, groups: &Groups, control: &OwnedFd) -> Result<Zygote> {
    // Access to the host's processes after the change of the root.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let processes = rustix::fs::open("/proc", flags, Mode::empty())?;
    let files = groups.add(groups::ZYGOTE, &spec.limits)?;
    let mut namespaces = vec![Namespace::Mount, Namespace::Pid, Namespace::Ipc, Namespace::Uts];
    if !spec.network {
        namespaces.push(Namespace::Network);
    }
    unshare(&namespaces).map_err(|error| Error::other(format!("new namespaces: {error}")))?;
    if spec.loopback && !spec.network {
        unlade_sys::link::bring_up("lo")
            .map_err(|error| Error::other(format!("the loopback interface: {error}")))?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let kind = SocketType::SEQPACKET;
    let (socket, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1)).arg(CONFINED).stdin(Stdio::from(other));
    let child = command.spawn()?;
    // This process's copy of the other end must be closed, so that the zygote's is the last one.
    drop(command);
    let pid = Pid::from_child(&child);
    let ended = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let zygote = Zygote { child, ended, socket };
    let mut beside = vec![control.as_fd()];
    beside.extend(files.iter().map(AsFd::as_fd));
    packet::send(&zygote.socket, spec, &beside)?;
    if files.is_empty() {
        groups.join(groups::ZYGOTE, pid.as_raw_nonzero().get())?;
    }
    match packet::receive::<FromZygote>(&zygote.socket)? {
        Some((FromZygote::Unmapped, _)) => {}
        Some((FromZygote::Failed { why }, _)) => return Err(Error::other(why)),
        None => return Err(Error::other("the launcher ended before it was in its root")),
    }
    for map in ["uid_map", "gid_map"] {
        let path = format!("{}/{map}", pid.as_raw_nonzero());
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&processes, path, flags, Mode::empty())?;
        let line = format!("0 {} {IDS_OF_TEMPLATE}\n", spec.ids_first);
        File::from(file).write_all(line.as_bytes())?;
    }
    packet::send(&zygote.socket, &ToZygote::Mapped, &[])?;
    Ok(zygote)
}

fn words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("it ended with status {code}"),
        (None, Some(signal)) => format!("signal {signal} ended it"),
        _ => "it ended".to_owned(),
    }
}
