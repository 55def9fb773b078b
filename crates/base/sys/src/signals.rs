//! Signals read from a descriptor, for event loops.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};

/// Blocks SIGTERM and SIGINT in this thread and in those that it starts afterwards; returns a
/// descriptor that becomes readable once one of them is pending.
///
/// # Errors
/// The kernel's.
pub fn terminations() -> io::Result<OwnedFd> {
    // SAFETY: a set of signals is plain data, for which all zeroes is a valid value; the calls
    // below write to it and read it, and it outlives them.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            // The descriptor is new and has no other owner.
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    #[test]
    fn a_signal_makes_it_readable() {
        // A separate thread: the mask belongs to the thread.
        let thread = std::thread::spawn(|| {
            let signals = terminations().unwrap();
            let none = Timespec { tv_sec: 0, tv_nsec: 0 };
            let is_readable = |signals: &OwnedFd| {
                let mut fds = [PollFd::new(signals, PollFlags::IN)];
                poll(&mut fds, Some(&none)).unwrap() == 1
            };
            assert!(!is_readable(&signals));
            // SAFETY: the signal is blocked in this thread, to which it is sent.
            assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGTERM) }, 0);
            assert!(is_readable(&signals));
            // It stays pending in this thread, and ends with it.
        });
        thread.join().unwrap();
    }
}
