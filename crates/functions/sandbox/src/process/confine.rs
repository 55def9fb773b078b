//! The second stage of the launcher: the zygote, until it becomes the interpreter. It is the first
//! process of its PID namespace, shares the mount namespace with the supervisor, and starts with
//! the rights of root, which it drops step by step.

use std::convert::Infallible;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, IntoRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::process::{Resource, Rlimit, Signal};
use rustix::thread::{CapabilitySet, CapabilitySets};
use unlade_sys::namespaces::{Namespace, unshare};

use super::config::INSTANCES_MAX;
use super::message::{FromZygote, ToZygote};
use super::spec::{Spec, TASK};
use super::{packet, root, syscalls};

/// The zygote's capabilities in its own user namespace: a child can become another user, in
/// another root.
const KEPT: CapabilitySet =
    CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::SYS_CHROOT);

/// Becomes the interpreter; `supervisor` is the socket to the supervisor.
///
/// # Errors
/// The failed operation, which was also reported to the supervisor.
pub fn run(supervisor: OwnedFd) -> Result<Infallible> {
    let error = match confined(&supervisor) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    packet::send(&supervisor, &FromZygote::Failed { why: error.to_string() }, &[])?;
    Err(error)
}

fn confined(supervisor: &OwnedFd) -> Result<Infallible> {
    let ended = || Error::new(ErrorKind::UnexpectedEof, "the supervisor has gone");
    let (spec, mut beside) = packet::receive::<Spec>(supervisor)?.ok_or_else(ended)?;
    if beside.is_empty() {
        return Err(Error::new(ErrorKind::InvalidData, "no control socket beside the sandbox"));
    }
    let control = beside.remove(0);
    for group in beside {
        rustix::io::write(&group, b"0").map_err(|error| tried("going into a group", error))?;
    }
    unshare(&[Namespace::Cgroup]).map_err(|error| tried("leaving cgroups", error))?;
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let host = rustix::system::sethostname(spec.host.as_bytes());
    host.map_err(|error| tried("naming the host", error))?;
    root::build(&spec)?;
    unshare(&[Namespace::User]).map_err(|error| tried("leaving users", error))?;
    packet::send(supervisor, &FromZygote::Unmapped, &[])?;
    packet::receive::<ToZygote>(supervisor)?.ok_or_else(ended)?;
    limit(&spec)?;
    give_up().map_err(|error| tried("giving rights up", error))?;
    // Set after the change of users, which resets it. SIGKILL is the only signal that ends the
    // supervisor early.
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    rustix::process::chdir(TASK).map_err(|error| tried(TASK, error))?;
    syscalls::confine(spec.network || spec.loopback)?;
    become_interpreter(&spec, control)
}

fn tried(what: &str, error: rustix::io::Errno) -> Error {
    let error = Error::from(error);
    Error::new(error.kind(), format!("{what}: {error}"))
}

/// Sets the limits of each process: resources without a control group are limited for each user,
/// which belongs to one instance. A child begins as the zygote's user: it sets its own limit of
/// processes when it becomes another one.
fn limit(spec: &Spec) -> Result<()> {
    for (resource, value) in [
        (Resource::Core, 0),
        (Resource::Nofile, u64::from(spec.limits.files)),
        (Resource::Nproc, u64::from(spec.limits.processes) + u64::from(INSTANCES_MAX)),
        (Resource::Memlock, 64 << 10),
        (Resource::Msgqueue, 1 << 20),
    ] {
        let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX).min(value);
        let both = Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(resource, both).map_err(|error| tried("a limit", error))?;
    }
    Ok(())
}

/// Becomes user 0 of the user namespace, which has no rights outside, with [`KEPT`] and no way to
/// gain more.
fn give_up() -> rustix::io::Result<()> {
    use rustix::thread;
    let (user, group) = (rustix::fs::Uid::ROOT, rustix::fs::Gid::ROOT);
    thread::set_thread_groups(&[])?;
    thread::set_thread_res_gid(group, group, group)?;
    thread::set_thread_res_uid(user, user, user)?;
    for number in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << number);
        // A capability unknown to this kernel gives INVAL.
        if !KEPT.contains(capability) && thread::capability_is_in_bounding_set(capability).is_ok() {
            thread::remove_capability_from_bounding_set(capability)?;
        }
    }
    thread::clear_ambient_capability_set()?;
    let inheritable = CapabilitySet::empty();
    thread::set_capabilities(
        None,
        CapabilitySets { effective: KEPT, permitted: KEPT, inheritable },
    )?;
    thread::set_no_new_privs(true)
}

fn become_interpreter(spec: &Spec, control: OwnedFd) -> Result<Infallible> {
    if spec.control_is_stdin {
        let mut command = Command::new(&spec.program);
        command.args(&spec.arguments).env_clear().envs(&spec.environment);
        let error = command.stdin(Stdio::from(control)).exec();
        return Err(Error::new(error.kind(), format!("{}: {error}", spec.program.display())));
    }
    // The copy has no CLOEXEC; the interpreter inherits it, and this process does not close it.
    let inherited = rustix::io::dup(control.as_fd())?;
    let number = inherited.as_raw_fd().to_string();
    let _ = inherited.into_raw_fd();
    drop(control);
    let mut command = Command::new(&spec.program);
    command.args(&spec.arguments).args(["--control", &number]);
    command.env_clear().envs(&spec.environment).stdin(Stdio::null());
    let error = command.exec();
    Err(Error::new(error.kind(), format!("{}: {error}", spec.program.display())))
}
