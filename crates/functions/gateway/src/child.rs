//! A process that is one's own: it is told to end when its parent has ended, however that was.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::{Child, Command};

/// The flag by which our own commands ask to be told of their parent's end.
pub const DIE_WITH_PARENT: &str = "--die-with-parent";

/// Starts a command of this very program.
///
/// # Errors
/// The system's.
pub fn start(executable: &Path, arguments: &[&OsStr], stdout: Stdio) -> io::Result<Child> {
    let mut command = Command::new(executable);
    // Bodies come and go: memory that glibc gives back is faulted in again for the next one, which
    // costs more than copying does (mallopt(3)).
    command.env("MALLOC_MMAP_THRESHOLD_", "33554432").env("MALLOC_TRIM_THRESHOLD_", "134217728");
    command.args(arguments).arg(DIE_WITH_PARENT).stdin(Stdio::null()).stdout(stdout);
    command.kill_on_drop(true).spawn()
}

/// Tells a process to end, and waits for that; kills it where it takes too long.
pub async fn end(child: &mut Child, patience: Duration) {
    if let Some(pid) = child.id().and_then(|pid| rustix::process::Pid::from_raw(pid as i32)) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    }
    if tokio::time::timeout(patience, child.wait()).await.is_err() {
        tracing::error!(?patience, "a process did not end in time and is killed");
        let _ = child.kill().await;
    }
}

/// Asks the kernel to send this process SIGTERM when its parent has ended; what a command does that
/// was given [`DIE_WITH_PARENT`].
///
/// # Errors
/// The system's; or the parent has ended already.
pub fn die_with_parent() -> io::Result<()> {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
    // It may have ended before the kernel was asked; then another one is the parent now.
    if rustix::process::getppid() != parent {
        return Err(io::Error::other("the parent has ended"));
    }
    Ok(())
}
