//! The lock of the store's directory: one process serves it.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::names::OWN;

/// The file of the lock, in the store's own directory. It has no content.
const LOCK: &str = "lock";
/// A process that ends may hold the lock that long: its last writes are in progress.
const WAIT: Duration = Duration::from_secs(5);
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// The lock of a directory. The kernel releases it when this value is dropped, or the process ends.
pub struct Held {
    _file: File,
}

impl Held {
    /// Locks a directory, which must exist, and waits a little for a process that is ending.
    ///
    /// # Errors
    /// Another process has the lock (`ResourceBusy`), or the system call failed.
    pub fn take(root: &Path) -> io::Result<Held> {
        Held::take_within(root, WAIT)
    }

    fn take_within(root: &Path, wait: Duration) -> io::Result<Held> {
        let own = root.join(OWN);
        std::fs::create_dir_all(&own)?;
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(own.join(LOCK))?;
        let begin = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Held { _file: file }),
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if begin.elapsed() < wait => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::ResourceBusy.into()),
                // A file system without locks.
                Err(error @ (Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK)) => {
                    tracing::warn!(%error, "store: not locked; let no other process serve it");
                    return Ok(Held { _file: file });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_locked_until_its_holder_has_gone() {
        let dir = tempfile::tempdir().unwrap();
        let first = Held::take(dir.path()).unwrap();
        let why = Held::take_within(dir.path(), Duration::ZERO).err().unwrap();
        assert_eq!(why.kind(), io::ErrorKind::ResourceBusy);
        let path = dir.path().to_owned();
        let second =
            std::thread::spawn(move || Held::take_within(&path, Duration::from_secs(3600)));
        drop(first);
        assert!(second.join().unwrap().is_ok());
    }
}
