//! Sockets that a client has passed to its daemon, and the positions of its tasks in their streams.
//!
//! A task that the daemon was at when it was killed may have moved some bytes without a report. The
//! kernel's counters of the connection tell how many: they count the bytes that were taken out of the
//! stream, or accepted for it, by whatever process. A task's position is where its first byte is in
//! that count. It is known because the tasks of a socket follow one another, and nobody else uses the
//! socket meanwhile.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unlade_shm::{Ticket, segment};
use unlade_sys::stream;

/// One direction of a socket.
#[derive(Debug, Default)]
struct Direction {
    /// Position behind the last task.
    end: u64,
    /// The last task, and its segments.
    last: Option<(Ticket, u32)>,
    /// The positions of pending tasks are not known: one of them did not move all of its bytes.
    is_broken: bool,
}

/// A socket that the daemon has, too.
#[derive(Debug)]
pub(crate) struct Passed {
    number: u16,
    /// Identity of the socket: the program may have closed it, and given its descriptor's number to
    /// another one.
    cookie: u64,
    receives: Mutex<Direction>,
    sends: Mutex<Direction>,
}

impl Passed {
    pub fn number(&self) -> u16 {
        self.number
    }

    fn direction(&self, is_send: bool) -> MutexGuard<'_, Direction> {
        let direction = if is_send { &self.sends } else { &self.receives };
        direction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a task of `len` bytes: returns the result of `acquire`, which is called with its
    /// position. `None` if the position is not known.
    pub fn begin(
        &self,
        fd: BorrowedFd<'_>,
        is_send: bool,
        len: usize,
        is_done: impl Fn(Ticket, u32) -> bool,
        acquire: impl FnOnce(u64) -> Option<Ticket>,
    ) -> Option<Ticket> {
        let mut direction = self.direction(is_send);
        let start = match direction.last.is_none_or(|(ticket, bits)| is_done(ticket, bits)) {
            true => position(fd, is_send)?,
            false if direction.is_broken => return None,
            false => direction.end,
        };
        let ticket = acquire(start)?;
        let bits = segment::bits_for(len as u32, segment::granule_shift_for(len as u32));
        let end = start + len as u64;
        *direction = Direction { end, last: Some((ticket, bits)), is_broken: false };
        Some(ticket)
    }

    /// A task does not move all of its bytes, so the positions of those behind it are not known.
    pub fn break_off(&self, is_send: bool) {
        self.direction(is_send).is_broken = true;
    }

    pub fn is_broken(&self, is_send: bool) -> bool {
        self.direction(is_send).is_broken
    }
}

/// Number of bytes that were moved through the socket; `None` if it is not known.
pub(crate) fn position(fd: BorrowedFd<'_>, is_send: bool) -> Option<u64> {
    let read = if is_send { stream::sent_bytes } else { stream::received_bytes };
    read(&fd).ok().flatten()
}

fn cookie(fd: BorrowedFd<'_>) -> Option<u64> {
    rustix::net::sockopt::socket_cookie(fd).ok()
}

/// The passed sockets of a client, by descriptor.
#[derive(Debug, Default)]
pub(crate) struct PassedSockets(Mutex<BTreeMap<i32, Arc<Passed>>>);

impl PassedSockets {
    fn table(&self) -> MutexGuard<'_, BTreeMap<i32, Arc<Passed>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the socket with this descriptor, if it is passed and still the same.
    pub fn find(&self, fd: BorrowedFd<'_>) -> Option<Arc<Passed>> {
        let passed = self.named(fd.as_raw_fd())?;
        (cookie(fd) == Some(passed.cookie)).then_some(passed)
    }

    /// Returns the socket with this descriptor's number, whether it is still the same or not.
    pub fn named(&self, fd: i32) -> Option<Arc<Passed>> {
        self.table().get(&fd).map(Arc::clone)
    }

    /// Smallest number that no socket has.
    pub fn free_number(&self) -> Option<u16> {
        let table = self.table();
        (1..=u16::MAX).find(|number| table.values().all(|passed| passed.number != *number))
    }

    /// Adds a socket under its number. Returns false if the kernel does not identify it.
    pub fn add(&self, fd: BorrowedFd<'_>, number: u16) -> bool {
        let Some(cookie) = cookie(fd) else { return false };
        let (receives, sends) = Default::default();
        let passed = Passed { number, cookie, receives, sends };
        self.table().insert(fd.as_raw_fd(), Arc::new(passed));
        true
    }

    pub fn remove(&self, fd: i32) -> Option<Arc<Passed>> {
        self.table().remove(&fd)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, OwnedFd};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn another_socket_under_the_same_descriptor_is_not_passed() {
        let ((one, _peer), (other, _other_peer)) = (pair(), pair());
        let sockets = PassedSockets::default();
        assert_eq!(sockets.free_number(), Some(1));
        assert!(sockets.add(one.as_fd(), 1));
        assert_eq!(sockets.find(one.as_fd()).map(|it| it.number()), Some(1));
        assert!(sockets.find(other.as_fd()).is_none());
        let fd = one.as_raw_fd();
        let mut one = OwnedFd::from(one);
        rustix::io::dup2(&other, &mut one).unwrap();
        assert_eq!(one.as_raw_fd(), fd);
        assert!(sockets.find(one.as_fd()).is_none());
        assert!(sockets.named(fd).is_some() && sockets.free_number() == Some(2));
        assert!(sockets.remove(fd).is_some() && sockets.remove(fd).is_none());
    }

    #[test]
    fn tasks_of_a_direction_follow_one_another() {
        let (one, _peer) = pair();
        let sockets = PassedSockets::default();
        sockets.add(one.as_fd(), 1);
        let passed = sockets.find(one.as_fd()).unwrap();
        let base = position(one.as_fd(), true).unwrap();
        let begin = |ticket, is_done: bool, expected: Option<u64>| {
            let begun = passed.begin(
                one.as_fd(),
                true,
                100,
                |_, _| is_done,
                |start| {
                    assert_eq!(Some(start), expected);
                    Some(Ticket(ticket))
                },
            );
            assert_eq!(begun.is_some(), expected.is_some());
        };
        begin(1, false, Some(base));
        begin(2, false, Some(base + 100));
        passed.break_off(true);
        begin(3, false, None);
        // All are over: the kernel knows.
        begin(3, true, Some(base));
        begin(4, false, Some(base + 100));
        assert!(passed.is_broken(false) == passed.is_broken(true));
    }
}
