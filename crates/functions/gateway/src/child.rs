//! A child process that receives SIGTERM when its parent ends for any reason.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// The flag of our own commands that requests SIGTERM at the parent's end.
pub const DIE_WITH_PARENT: &str = "--die-with-parent";

/// Starts a command of this program.
///
/// # Errors
/// The system call failed.
pub fn start(executable: &Path, arguments: &[&OsStr], stdout: Stdio) -> io::Result<Child> {
    start_with(executable, arguments, (Stdio::null(), stdout))
}

/// Starts a command of this program with an input.
///
/// # Errors
/// The system call failed.
pub fn start_with(
    executable: &Path,
    arguments: &[&OsStr],
    (stdin, stdout): (Stdio, Stdio),
) -> io::Result<Child> {
    let mut command = Command::new(executable);
    // Bodies are allocated and freed often: memory that glibc returns to the kernel is faulted in
    // again for the next one, which costs more than copying (mallopt(3)).
    command.env("MALLOC_MMAP_THRESHOLD_", "33554432").env("MALLOC_TRIM_THRESHOLD_", "134217728");
    command.args(arguments).arg(DIE_WITH_PARENT).stdin(stdin).stdout(stdout);
    command.kill_on_drop(true).spawn()
}

/// Sends SIGTERM to a process and waits for its end; kills it after a timeout.
pub async fn end(child: &mut Child, patience: Duration) {
    if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(patience, child.wait()).await.is_err() {
        tracing::error!(?patience, "a process did not end in time and is killed");
        let _ = child.kill().await;
    }
}

/// Requests that the kernel sends SIGTERM to this process when its parent ends; used by commands
/// with the flag [`DIE_WITH_PARENT`].
///
/// # Errors
/// The system call failed, or the parent has ended already.
pub fn die_with_parent() -> io::Result<()> {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    // The parent may have ended before the request; then the process has a new parent.
    if rustix::process::getppid() != parent {
        return Err(io::Error::other("the parent has ended"));
    }
    Ok(())
}
