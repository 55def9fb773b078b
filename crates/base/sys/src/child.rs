//! Child processes that end with their parent and inherit descriptors.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Configures the command so that its process is killed when the thread that starts it ends, for
/// any reason (`PR_SET_PDEATHSIG`), and inherits `inherited` under the same numbers. The
/// descriptors are closed here when the command is dropped.
pub fn prepare(command: &mut Command, inherited: Vec<OwnedFd>) {
    let parent = rustix::process::getpid();
    let prepare = move || {
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        // The parent may have ended before prctl.
        if rustix::process::getppid() != Some(parent) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        for descriptor in &inherited {
            rustix::io::fcntl_setfd(descriptor, rustix::io::FdFlags::empty())?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec only system calls are made; nothing is allocated, no lock is
    // taken. An error is a number: `io::Error` of an OS error does not allocate.
    unsafe { command.pre_exec(prepare) };
}

/// Configures the command so that its process has no transparent huge pages (`PR_SET_THP_DISABLE`,
/// which execve(2) keeps): for the many processes that touch a large memory sparsely.
pub fn without_huge_pages(command: &mut Command) {
    let prepare = || {
        // SAFETY: this option takes numbers only.
        match unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: as above: one system call between fork and exec.
    unsafe { command.pre_exec(prepare) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::process::{Child, Stdio};

    fn spawn(mut command: Command, inherited: Vec<OwnedFd>) -> io::Result<Child> {
        prepare(&mut command, inherited);
        command.spawn()
    }

    #[test]
    fn descriptors_keep_their_numbers_and_are_closed_here() {
        let (mut reader, writer) = io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        let mut command = Command::new("/bin/sh");
        // A shell's `>&` takes one digit only.
        let path = format!("/proc/self/fd/{}", writer.as_raw_fd());
        command.arg("-c").arg(format!("echo here > {path}"));
        let mut child = spawn(command, vec![writer]).unwrap();
        let mut said = String::new();
        // The stream ends, because the writing end is closed here and in the child.
        reader.read_to_string(&mut said).unwrap();
        assert_eq!(said, "here\n");
        assert!(child.wait().unwrap().success());
    }

    #[test]
    fn other_descriptors_are_not_inherited() {
        let file = File::open("/dev/null").unwrap();
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("test -e /proc/self/fd/{}", file.as_raw_fd()));
        assert!(!spawn(command, Vec::new()).unwrap().wait().unwrap().success());
    }

    #[test]
    fn huge_pages_are_off_after_exec() {
        let mut command = Command::new("/bin/grep");
        command.args(["THP_enabled", "/proc/self/status"]);
        without_huge_pages(&mut command);
        let said = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert_eq!(said.split_whitespace().last(), Some("0"));
    }

    #[test]
    fn the_child_ends_with_the_thread_that_started_it() {
        let thread = std::thread::spawn(|| {
            let mut command = Command::new("/bin/cat");
            command.stdin(Stdio::piped());
            spawn(command, Vec::new()).unwrap()
        });
        let mut child = thread.join().unwrap();
        // Its input stays open: only the signal ends it.
        let mut input = child.stdin.take().unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success());
        assert!(input.write_all(b"x").is_err());
    }
}
