//! A snapshot by fork(2), for measurements: what a program without another means does.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// A child that writes bytes out as they were at the fork. Its drop waits for it.
#[derive(Debug)]
pub struct Forked {
    child: libc::pid_t,
    /// The status of a child that has ended.
    status: Option<libc::c_int>,
}

impl Forked {
    /// Forks. The child writes `bytes` to `out` from its start on, and ends.
    ///
    /// # Errors
    /// The system call fails.
    pub fn writing(bytes: &[u8], out: &File) -> io::Result<Forked> {
        let out = out.as_raw_fd();
        // SAFETY: the child makes async-signal-safe calls only, and ends by one.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            // SAFETY: as above.
            0 => unsafe { libc::_exit(libc::c_int::from(!write_all(bytes, out))) },
            child => Ok(Forked { child, status: None }),
        }
    }

    /// Returns true if the child has ended.
    ///
    /// # Errors
    /// It ended without having written all bytes.
    pub fn is_over(&mut self) -> io::Result<bool> {
        self.wait(libc::WNOHANG);
        match self.status {
            None => Ok(false),
            Some(0) => Ok(true),
            Some(status) => Err(io::Error::other(format!("the child ended with status {status}"))),
        }
    }

    fn wait(&mut self, flags: libc::c_int) {
        if self.status.is_none() {
            let mut status = 0;
            // SAFETY: a child of this value that nobody else waits for.
            let ended = unsafe { libc::waitpid(self.child, &raw mut status, flags) };
            self.status = (ended == self.child).then_some(status);
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        self.wait(0);
    }
}

/// Writes all bytes; async-signal-safe.
fn write_all(bytes: &[u8], out: libc::c_int) -> bool {
    let mut done = 0;
    while done < bytes.len() {
        let rest = &bytes[done..];
        // SAFETY: `rest` is readable.
        let written =
            unsafe { libc::pwrite(out, rest.as_ptr().cast(), rest.len(), done as libc::off_t) };
        match usize::try_from(written) {
            Ok(written) if written > 0 => done += written,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::Forked;

    #[test]
    fn a_child_writes_what_was_there_at_the_fork() {
        let mut file = tempfile::tempfile().unwrap();
        let mut bytes = vec![3; 100_000];
        let mut forked = Forked::writing(&bytes, &file).unwrap();
        bytes.fill(4);
        while !forked.is_over().unwrap() {
            std::thread::yield_now();
        }
        let mut seen = Vec::new();
        file.read_to_end(&mut seen).unwrap();
        assert_eq!(seen, vec![3; 100_000]);
    }
}
