//! The first process of the sandbox. It answers the request for an instance as a zygote does
//! (`docs/guest-protocol.md`), with a new process instead of a fork: nothing of a function runs in
//! it, and it has one instance in its life.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
use rustix::process::{Pid, PidfdFlags, WaitOptions, pidfd_open, wait};
use serde_json::{Value, json};
use unlade_sys::descriptors::{self, DESCRIPTORS_MAX};

/// The argument of the program that makes it an instance.
pub const INSTANCE: &str = "--instance";
/// Most bytes of a request, which has the function's environment.
pub(crate) const REQUEST_BYTES_MAX: usize = 128 * 1024;
/// Bytes of an answer's texts from errors.
const WHY_CHARS_MAX: usize = 512;

/// Standard input, which is a socket.
pub(crate) fn socket() -> Result<OwnedFd> {
    std::io::stdin().as_fd().try_clone_to_owned()
}

/// Serves the control socket until its other end is closed or the instance has ended.
///
/// # Errors
/// The socket fails.
pub fn run() -> Result<u8> {
    let control = socket()?;
    say(&control, &json!({"ready": true}))?;
    let mut instance: Option<(Child, OwnedFd)> = None;
    loop {
        let mut polled = vec![PollFd::new(&control, PollFlags::IN)];
        if let Some((_, ended)) = &instance {
            polled.push(PollFd::new(ended, PollFlags::IN));
        }
        match poll(&mut polled, None) {
            Err(rustix::io::Errno::INTR) => continue,
            outcome => outcome?,
        };
        let ready: Vec<bool> = polled.iter().map(|one| !one.revents().is_empty()).collect();
        if ready.get(1) == Some(&true) {
            let Some((mut child, _)) = instance.take() else { continue };
            let status = child.wait()?;
            say(&control, &json!({"exited": child.id(), "status": code(status)}))?;
            // Orphans of the instance; the namespace ends with this process, and they with it.
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        }
        if ready.first() == Some(&true) {
            let mut request = vec![0; REQUEST_BYTES_MAX];
            let received = descriptors::receive(&control, &mut request, DESCRIPTORS_MAX)?;
            request.truncate(received.len_bytes);
            if request.is_empty() {
                return Ok(0);
            }
            let name = serde_json::from_slice::<Value>(&request).unwrap_or_default()["fork"].take();
            let started = match instance {
                None => start(&request, &received.descriptors),
                Some(_) => Err(Error::new(ErrorKind::AlreadyExists, "it has its instance")),
            };
            match started {
                Ok(child) => {
                    let pid = Pid::from_child(&child);
                    let ended = pidfd_open(pid, PidfdFlags::empty())?;
                    say(&control, &json!({"forked": name, "pid": child.id()}))?;
                    instance = Some((child, ended));
                }
                Err(error) => {
                    let why: String = error.to_string().chars().take(WHY_CHARS_MAX).collect();
                    say(&control, &json!({"error": why, "fork": name}))?;
                }
            }
        }
    }
}

fn say(control: &OwnedFd, what: &Value) -> Result<()> {
    send(control, what.to_string().as_bytes(), SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Starts the instance, and passes the request on.
fn start(request: &[u8], beside: &[OwnedFd]) -> Result<Child> {
    let kind = SocketType::SEQPACKET;
    let (own, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None)?;
    let mut command = Command::new("/proc/self/exe");
    command.args(std::env::args_os().skip(1)).arg(INSTANCE).stdin(Stdio::from(other));
    // A variable such as LD_PRELOAD would bring code of the function into this program.
    command.env_clear();
    let child = command.spawn()?;
    let beside: Vec<_> = beside.iter().map(AsFd::as_fd).collect();
    descriptors::send(&own, request, &beside)?;
    Ok(child)
}

/// The exit status of a child; -1 if a signal ended it.
fn code(status: ExitStatus) -> i32 {
    match status.signal() {
        Some(_) => -1,
        None => status.code().unwrap_or(-1),
    }
}
