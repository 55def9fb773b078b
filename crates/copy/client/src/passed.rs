//! Sockets that a client has passed to its daemon, and the positions of its tasks in their streams.
//!
//! A task that the daemon was at when it was killed may have moved some bytes without a report. The
//! kernel's counters of the connection tell how many: they count the bytes that were taken out of the
//! stream, or accepted for it, by whatever process. A task's position is where its first byte is in
//! that count. It is known because the tasks of a socket follow one another, and nobody else uses the
//! socket meanwhile. Behind a task that has failed or was aborted, no position is known until all
//! tasks of the direction are over.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use unlade_shm::{Ticket, segment};
use unlade_sys::stream;

/// State of a task at a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TaskState {
    /// Some of its segments are not done.
    Pending,
    /// All of its bytes were moved, as far as it is not aborted.
    Moved,
    /// It has failed, before or after some bytes.
    Failed,
}

/// One direction of a socket.
#[derive(Debug, Default)]
struct Direction {
    /// Position behind the last task.
    end: u64,
    /// The tasks, oldest first, with their segments, since all were over last. The oldest ones are
    /// removed when they are over, so there are at most as many as the queue has slots.
    tasks: VecDeque<(Ticket, u32)>,
    /// The positions of pending tasks are not known: one of them did not move all of its bytes.
    is_broken: bool,
}

impl Direction {
    /// Removes tasks that are over from the old end.
    fn settle(&mut self, state: &impl Fn(Ticket, u32) -> TaskState) {
        while let Some((ticket, bits)) = self.tasks.front() {
            match state(*ticket, *bits) {
                TaskState::Pending => break,
                TaskState::Moved => {}
                TaskState::Failed => self.is_broken = true,
            }
            self.tasks.pop_front();
        }
    }
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
    /// position. `None` if the position is not known. `state` is that of an older task.
    pub fn begin(
        &self,
        fd: BorrowedFd<'_>,
        is_send: bool,
        len: usize,
        state: impl Fn(Ticket, u32) -> TaskState,
        acquire: impl FnOnce(u64) -> Option<Ticket>,
    ) -> Option<Ticket> {
        let mut direction = self.direction(is_send);
        direction.settle(&state);
        let start = match direction.tasks.is_empty() {
            true => position(fd, is_send)?,
            false if direction.is_broken => return None,
            false => direction.end,
        };
        let ticket = acquire(start)?;
        let bits = segment::bits_for(len as u32, segment::granule_shift_for(len as u32));
        direction.is_broken = false;
        direction.end = start + len as u64;
        direction.tasks.push_back((ticket, bits));
        Some(ticket)
    }

    /// A task does not move all of its bytes, so the positions of those behind it are not known.
    pub fn break_off(&self, is_send: bool) {
        self.direction(is_send).is_broken = true;
    }

    /// Returns true if the position of a pending task is known.
    pub fn is_known(
        &self,
        is_send: bool,
        ticket: Ticket,
        state: impl Fn(Ticket, u32) -> TaskState,
    ) -> bool {
        let direction = self.direction(is_send);
        let mut older = direction.tasks.iter().take_while(|(older, _)| *older < ticket);
        let is_short = |(older, bits): &(Ticket, u32)| state(*older, *bits) == TaskState::Failed;
        !direction.is_broken && !older.any(is_short)
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

    /// Begins a task of 100 bytes to be sent, number `ticket`. Older ones are in these states.
    fn begin(
        (passed, one): (&Passed, &TcpStream),
        ticket: u64,
        states: &[TaskState],
        expected: Option<u64>,
    ) {
        let state = |older: Ticket, _| states[older.0 as usize];
        let begun = passed.begin(one.as_fd(), true, 100, state, |start| {
            assert_eq!(Some(start), expected);
            Some(Ticket(ticket))
        });
        assert_eq!(begun.is_some(), expected.is_some());
    }

    fn passed() -> (TcpStream, TcpStream, Arc<Passed>, u64) {
        let (one, peer) = pair();
        let sockets = PassedSockets::default();
        sockets.add(one.as_fd(), 1);
        let passed = sockets.find(one.as_fd()).unwrap();
        let base = position(one.as_fd(), true).unwrap();
        (one, peer, passed, base)
    }

    #[test]
    fn tasks_of_a_direction_follow_one_another() {
        use TaskState::{Moved, Pending};
        let (one, _peer, passed, base) = passed();
        let at = (&*passed, &one);
        begin(at, 0, &[], Some(base));
        begin(at, 1, &[Pending], Some(base + 100));
        assert!(passed.is_known(true, Ticket(1), |_, _| Pending));
        passed.break_off(true);
        begin(at, 2, &[Pending; 2], None);
        begin(at, 2, &[Moved, Pending], None);
        assert!(!passed.is_known(true, Ticket(1), |_, _| Moved));
        assert!(passed.is_known(false, Ticket(1), |_, _| Moved));
        // All are over: the kernel knows.
        begin(at, 2, &[Moved; 2], Some(base));
        begin(at, 3, &[Moved, Moved, Pending], Some(base + 100));
        assert!(passed.is_known(true, Ticket(3), |_, _| Pending));
    }

    #[test]
    fn behind_a_task_that_failed_no_position_is_known() {
        use TaskState::{Failed, Moved, Pending};
        let (one, _peer, passed, base) = passed();
        let at = (&*passed, &one);
        (0..3).for_each(|ticket| begin(at, ticket, &[Pending; 2], Some(base + 100 * ticket)));
        // The second fails, and the daemon goes on with the third.
        let states = [Moved, Failed, Pending];
        let is_known =
            |ticket| passed.is_known(true, Ticket(ticket), |it, _| states[it.0 as usize]);
        assert!(is_known(0) && is_known(1) && !is_known(2));
        begin(at, 3, &states, None);
        // The failure is remembered when its task is forgotten.
        assert!(!passed.is_known(true, Ticket(2), |_, _| Moved));
        begin(at, 3, &[Moved; 3], Some(base));
    }
}
