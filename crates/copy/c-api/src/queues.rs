//! Queues created by the program, by their file descriptors.
//!
//! Each has an eventfd as a number that is unique in the process and can be closed by close(2).
//! The eventfd is readable when handlers of the queue are due. The library does not observe
//! close(2): a queue whose descriptor was closed, or was reused for another file, is found and
//! completed when the next queue is created.

use std::cell::RefCell;
use std::ffi::c_int;
use std::fs;
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::channel::Channel;
use crate::sync_all::sync_all;

/// Maximum number of queues besides the default one.
pub(crate) const QUEUES_MAX: usize = 256;

struct Entry {
    fd: c_int,
    /// The kernel's identifier of the eventfd; `None` if it is not available.
    event: Option<u64>,
    channel: Arc<Channel>,
}

/// Table of queues.
#[derive(Default)]
pub(crate) struct Queues {
    entries: Mutex<Vec<Entry>>,
    /// Counts changes, to invalidate the per-thread cache.
    changes: AtomicU64,
}

/// Cache of a thread's last lookup: table, change counter, and descriptor.
struct Last {
    table: usize,
    change: u64,
    fd: c_int,
    channel: Arc<Channel>,
}

thread_local! {
    static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
}

impl Queues {
    fn entries(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a queue.
    ///
    /// # Errors
    /// EMFILE: there are [`QUEUES_MAX`], or the process has no descriptors left; and errors of
    /// eventfd(2).
    pub fn add(&self, channel: Channel) -> Result<c_int, c_int> {
        let fd = match channel.event() {
            Some(event) => event.into_raw_fd(),
            // SAFETY: no memory is involved.
            None => unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) },
        };
        if fd < 0 {
            return Err(crate::errno::last());
        }
        let event = event_of(fd);
        let mut entries = self.entries();
        // The number is new, so an old queue with it has been closed.
        let (kept, closed): (Vec<Entry>, Vec<Entry>) =
            entries.drain(..).partition(|entry| entry.fd != fd && entry.is_open());
        *entries = kept;
        self.changes.fetch_add(1, Ordering::Release);
        let added = if entries.len() < QUEUES_MAX {
            entries.push(Entry { fd, event, channel: Arc::new(channel) });
            Ok(fd)
        } else {
            close(fd);
            Err(libc::EMFILE)
        };
        drop(entries);
        // Complete without the lock: it may take long, and handlers may use the table.
        for entry in closed {
            // The error belongs to no caller.
            let _ = sync_all(&entry.channel);
        }
        added
    }

    /// Returns the queue of a descriptor. `table` distinguishes this table from those of ancestor
    /// processes.
    ///
    /// # Errors
    /// EBADF: it is not a queue.
    #[inline]
    pub fn find(&self, table: usize, fd: c_int) -> Result<Arc<Channel>, c_int> {
        let change = self.changes.load(Ordering::Acquire);
        let known = LAST.try_with(|last| {
            let last = last.try_borrow().ok()?;
            let last = last.as_ref()?;
            let fits = (last.table, last.change, last.fd) == (table, change, fd);
            fits.then(|| Arc::clone(&last.channel))
        });
        match known {
            Ok(Some(channel)) => Ok(channel),
            _ => self.search(table, change, fd),
        }
    }

    #[cold]
    fn search(&self, table: usize, change: u64, fd: c_int) -> Result<Arc<Channel>, c_int> {
        let found = self.entries().iter().find(|entry| entry.fd == fd).map(|e| e.channel.clone());
        let channel = found.ok_or(libc::EBADF)?;
        let last = Last { table, change, fd, channel: Arc::clone(&channel) };
        // Drop the old value after the borrow: the drop may run handlers.
        let before = LAST.try_with(|slot| slot.try_borrow_mut().ok()?.replace(last));
        drop(before);
        Ok(channel)
    }

    /// Removes a queue, and closes its descriptor.
    ///
    /// # Errors
    /// EBADF: it is not a queue.
    pub fn remove(&self, fd: c_int) -> Result<Arc<Channel>, c_int> {
        let mut entries = self.entries();
        let place = entries.iter().position(|entry| entry.fd == fd).ok_or(libc::EBADF)?;
        let entry = entries.swap_remove(place);
        self.changes.fetch_add(1, Ordering::Release);
        if entry.is_open() {
            close(fd);
        }
        Ok(entry.channel)
    }

    /// All queues of the table.
    pub fn all(&self) -> Vec<Arc<Channel>> {
        self.entries().iter().map(|entry| Arc::clone(&entry.channel)).collect()
    }
}

impl Entry {
    /// Returns true if the descriptor is still the one created for the queue.
    fn is_open(&self) -> bool {
        // SAFETY: no memory is involved.
        let is_open = unsafe { libc::fcntl(self.fd, libc::F_GETFD) } >= 0;
        is_open && event_of(self.fd) == self.event
    }
}

/// Reads `eventfd-id` from /proc, which exists since Linux 5.2.
fn event_of(fd: c_int) -> Option<u64> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("eventfd-id:"))?;
    id.trim().parse().ok()
}

fn close(fd: c_int) {
    // SAFETY: this table owns the descriptor.
    unsafe { libc::close(fd) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_name_queues_until_they_are_closed() {
        let queues = Queues::default();
        let (first, second) = (Channel::new(None), Channel::new(None));
        let (first_id, second_id) = (first.id, second.id);
        let first = queues.add(first).unwrap();
        let second = queues.add(second).unwrap();
        for _ in 0..2 {
            assert_eq!(queues.find(1, first).map(|channel| channel.id), Ok(first_id));
            assert_eq!(queues.find(1, second).map(|channel| channel.id), Ok(second_id));
        }
        assert_eq!(queues.remove(first).map(|channel| channel.id), Ok(first_id));
        assert_eq!(queues.find(1, first).err(), Some(libc::EBADF));
        assert_eq!(queues.remove(first).err(), Some(libc::EBADF));
        close(second);
        let third = queues.add(Channel::new(None)).unwrap();
        assert_eq!(queues.all().len(), 1);
        assert!(queues.remove(third).is_ok());
    }

    #[test]
    fn the_number_of_queues_is_limited() {
        let queues = Queues::default();
        let fds: Vec<c_int> =
            (0..QUEUES_MAX).map(|_| queues.add(Channel::new(None)).unwrap()).collect();
        assert_eq!(queues.add(Channel::new(None)), Err(libc::EMFILE));
        assert!(fds.into_iter().all(|fd| queues.remove(fd).is_ok()));
    }
}
