//! Sockets that a client has passed, and the thread that uses them.
//!
//! A client can make a system call on a shared socket wait, even one that does not wait for the peer:
//! it holds the kernel's lock of the socket while its own call faults on a page that it never
//! provides. A close can linger. So a thread for this client alone makes all calls, the close
//! included, and waits for the sockets by poll(2). The copy threads post the calls and look for their
//! results; until then they see a socket that would block.
//!
//! A result is not lost: the client reads the position of its streams from the kernel's counters when
//! the daemon is gone. It sees the daemon's end after this thread's, which holds the session's socket.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{AddressFamily, SocketType, sockopt};
use unlade_copy_kernels::space::{Address, Cancelled};
use unlade_copy_kernels::{Fault, Reach, Regions, Space};

use crate::daemon::message::Refusal;
use crate::service::Ringer;

/// A socket's number, and true for a send.
type Key = (i32, bool);
/// Number of bytes, or the kernel's error number.
type Outcome = Result<u64, i32>;

/// Maximum number of given up descriptors besides three for each socket of the client's limit: itself,
/// and the calls in both directions. A client for which there are more holds the lock of a socket, so
/// that the thread does not close them.
const CLOSING_MAX: usize = 16;
/// Time between two looks at sockets of which one has an entry in its error queue.
const ERROR_QUEUE_EVERY: Duration = Duration::from_millis(10);

/// State of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// To be made.
    Due,
    /// The socket was not ready.
    Waiting,
    /// The thread makes it.
    Calling,
    Done(Outcome),
}

/// A call for a transfer. A socket has one in each direction, since its tasks follow one another.
#[derive(Debug)]
struct Call {
    socket: Arc<OwnedFd>,
    place: u64,
    len: u64,
    state: State,
}

/// A call that the thread makes.
struct Begun {
    key: Key,
    socket: Arc<OwnedFd>,
    place: u64,
    len: u64,
}

/// The threads for sockets of all clients. One can outlive its session, if a client holds the lock of
/// a socket.
#[derive(Clone, Debug, Default)]
pub(crate) struct Threads(Arc<AtomicUsize>);

impl Threads {
    /// Counts another thread, unless there are `most`.
    fn begin(&self, most: usize) -> Option<Counted> {
        let add = |count: usize| (count < most).then_some(count + 1);
        let added = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        added.ok().map(|_| Counted(Arc::clone(&self.0)))
    }
}

/// A thread that is counted while this value lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Limits of a client's sockets.
#[derive(Debug)]
pub(crate) struct Limits {
    pub sockets_max: u16,
    pub threads: Threads,
    pub threads_max: usize,
}

#[derive(Debug, Default)]
struct Table {
    sockets: BTreeMap<i32, Arc<OwnedFd>>,
    calls: BTreeMap<Key, Call>,
    /// Given up; the thread closes them.
    closing: Vec<Arc<OwnedFd>>,
    has_thread: bool,
    is_polling: bool,
    is_closed: bool,
}

/// Memory and sockets of one client.
#[derive(Debug)]
pub(crate) struct ClientSpace {
    regions: Arc<Regions>,
    table: Mutex<Table>,
    /// Wakes the thread while it polls.
    bell: OwnedFd,
    /// Wakes the copy thread of the client.
    ringer: OnceLock<Ringer>,
    /// Number of results.
    results: AtomicU64,
    limits: Limits,
}

impl ClientSpace {
    /// Creates the space of a client with these regions.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(regions: Arc<Regions>, limits: Limits) -> io::Result<Arc<ClientSpace>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(ClientSpace {
            regions,
            table: Mutex::default(),
            bell,
            ringer: OnceLock::new(),
            results: AtomicU64::new(0),
            limits,
        }))
    }

    /// The lock is never held during a system call on a socket.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets how the client's copy thread is woken.
    pub fn set_ringer(&self, ringer: Ringer) {
        // A session attaches its queue once.
        let _ = self.ringer.set(ringer);
    }

    /// Adds a socket, and starts the thread with the first one, which holds `session` until its end.
    ///
    /// # Errors
    /// The descriptor is not a connected TCP socket, the number is in use, or there are too many
    /// sockets or threads.
    pub fn add(
        self: &Arc<Self>,
        number: u16,
        socket: OwnedFd,
        session: &Arc<OwnedFd>,
    ) -> Result<(), Refusal> {
        let mut table = self.table();
        if !table.has_thread {
            let (space, session) = (Arc::clone(self), Arc::clone(session));
            let counted = self.limits.threads.begin(self.limits.threads_max);
            let counted = counted.ok_or(Refusal::Exhausted)?;
            let run = move || {
                space.run(session);
                drop(counted);
            };
            let thread = std::thread::Builder::new().name("copyd-sockets".to_owned());
            thread.spawn(run).map_err(|_| Refusal::Exhausted)?;
            table.has_thread = true;
        }
        let is_free = number != 0 && !table.sockets.contains_key(&number.into());
        let refusal = if !is_connected_tcp(&socket) {
            Some(Refusal::Socket)
        } else {
            (!is_free || table.sockets.len() >= self.limits.sockets_max.into())
                .then_some(Refusal::SocketLimit)
        };
        let socket = Arc::new(socket);
        match refusal {
            None => _ = table.sockets.insert(number.into(), socket),
            Some(_) => table.closing.push(socket),
        }
        self.wake(table);
        refusal.map_or(Ok(()), Err)
    }

    /// Removes a socket; its call, if one is left, ends first. Returns false if there is none.
    pub fn forget(&self, number: u16) -> bool {
        let mut table = self.table();
        let Some(socket) = table.sockets.remove(&number.into()) else { return false };
        table.closing.push(socket);
        self.wake(table);
        true
    }

    /// Returns true if the thread does not close as many descriptors as the client gives up.
    pub fn is_behind(&self) -> bool {
        self.table().closing.len() > CLOSING_MAX + 3 * usize::from(self.limits.sockets_max)
    }

    /// Number of sockets.
    pub fn sockets(&self) -> usize {
        self.table().sockets.len()
    }

    /// Ends the thread, which closes the sockets.
    pub fn close(&self) {
        let mut table = self.table();
        table.is_closed = true;
        self.wake(table);
    }

    fn wake(&self, table: MutexGuard<'_, Table>) {
        let is_polling = table.is_polling;
        drop(table);
        if is_polling {
            // The counter is full only if the thread has not read it: it will look.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Takes the result of a call, or posts it. Until it is there the socket seems to block.
    fn post(&self, key: Key, place: u64, len: u64) -> io::Result<u64> {
        let blocked = || io::Error::from(io::ErrorKind::WouldBlock);
        let mut table = self.table();
        if let Some(call) = table.calls.get(&key) {
            let State::Done(outcome) = call.state else { return Err(blocked()) };
            let removed = table.calls.remove(&key);
            table.closing.extend(removed.map(|call| call.socket));
            return outcome.map_err(io::Error::from_raw_os_error);
        }
        if table.is_closed {
            // The client ends its tasks itself.
            return Err(blocked());
        }
        let Some(socket) = table.sockets.get(&key.0) else {
            return Err(rustix::io::Errno::BADF.into());
        };
        let socket = Arc::clone(socket);
        table.calls.insert(key, Call { socket, place, len, state: State::Due });
        self.wake(table);
        Err(blocked())
    }

    /// Makes calls until the client is gone.
    fn run(&self, session: Arc<OwnedFd>) {
        while let Some(calls) = self.begin() {
            for Begun { key, socket, place, len } in calls {
                let moved = match key.1 {
                    true => self.regions.send_to(socket.as_fd(), place, len),
                    false => self.regions.receive_from(socket.as_fd(), place, len),
                };
                self.end(key, &moved);
            }
            self.wait();
        }
        let mut table = self.table();
        let sockets = std::mem::take(&mut table.sockets);
        let calls = std::mem::take(&mut table.calls);
        let closing = std::mem::take(&mut table.closing);
        drop(table);
        drop((sockets, calls, closing));
        drop(session);
    }

    /// Begins the due calls, and closes the sockets that were given up. `None` at the end.
    fn begin(&self) -> Option<Vec<Begun>> {
        let mut table = self.table();
        let closing = std::mem::take(&mut table.closing);
        let is_closed = table.is_closed;
        let due = table.calls.iter_mut().filter(|(_, call)| call.state == State::Due);
        let calls = due.map(|(key, call)| {
            call.state = State::Calling;
            Begun { key: *key, socket: Arc::clone(&call.socket), place: call.place, len: call.len }
        });
        let calls = calls.collect();
        drop(table);
        drop(closing);
        (!is_closed).then_some(calls)
    }

    fn end(&self, key: Key, moved: &io::Result<u64>) {
        let state = match moved {
            Ok(bytes) => State::Done(Ok(*bytes)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => State::Waiting,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => State::Due,
            Err(error) => State::Done(Err(error.raw_os_error().unwrap_or(0))),
        };
        if let Some(call) = self.table().calls.get_mut(&key) {
            call.state = state;
        }
        if matches!(state, State::Done(_)) {
            self.results.fetch_add(1, Ordering::Release);
            if let Some(ringer) = self.ringer.get() {
                ringer.ring();
            }
        }
    }

    /// Waits until a call is due.
    fn wait(&self) {
        let mut table = self.table();
        let is_due = |call: &Call| call.state == State::Due;
        if table.is_closed || !table.closing.is_empty() || table.calls.values().any(is_due) {
            return;
        }
        let waiting = table.calls.iter().filter(|(_, call)| call.state == State::Waiting);
        let waiting: Vec<(Key, Arc<OwnedFd>)> =
            waiting.map(|(key, call)| (*key, Arc::clone(&call.socket))).collect();
        table.is_polling = true;
        drop(table);
        let mut polled: Vec<PollFd<'_>> = waiting
            .iter()
            .map(|((_, is_send), socket)| {
                PollFd::new(socket, if *is_send { PollFlags::OUT } else { PollFlags::IN })
            })
            .collect();
        polled.push(PollFd::new(&self.bell, PollFlags::IN));
        // After an error of the call itself all sockets are tried.
        let has_failed = poll(&mut polled, None).is_err();
        if polled.iter().any(|polled| polled.revents() == PollFlags::ERR) {
            // An entry of the error queue, such as a time stamp, ends each poll, and lets no call go on.
            std::thread::sleep(ERROR_QUEUE_EVERY);
        }
        let ready: Vec<Key> = waiting
            .iter()
            .zip(&polled)
            .filter(|(_, polled)| has_failed || !polled.revents().is_empty())
            .map(|((key, _), _)| *key)
            .collect();
        let mut table = self.table();
        table.is_polling = false;
        // The bell does not block, and nothing depends on its number.
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        for key in ready {
            if let Some(call) = table.calls.get_mut(&key).filter(|it| it.state == State::Waiting) {
                call.state = State::Due;
            }
        }
        // A socket that was forgotten meanwhile is closed here, and not by another thread.
        drop(polled);
        drop(table);
        drop(waiting);
    }
}

/// These system calls do not take the lock of the socket.
fn is_connected_tcp(socket: &OwnedFd) -> bool {
    let is_stream = sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    let families = [AddressFamily::INET, AddressFamily::INET6];
    let is_ip = sockopt::socket_domain(socket).is_ok_and(|family| families.contains(&family));
    let is_tcp = sockopt::socket_protocol(socket) == Ok(Some(rustix::net::ipproto::TCP));
    let is_listening = sockopt::socket_acceptconn(socket).unwrap_or(true);
    is_stream && is_ip && is_tcp && !is_listening
}

impl Space for ClientSpace {
    fn place(&self, region: u16, offset: u64, len: u64) -> Option<u64> {
        self.regions.place(region, offset, len)
    }

    fn copy(&self, dst: u64, src: u64, len: u64) -> Result<(), Fault> {
        self.regions.copy(dst, src, len)
    }

    fn reach(self: Arc<Self>) -> Option<Arc<dyn Reach>> {
        Arc::clone(&self.regions).reach()
    }

    fn address(&self, place: u64, len: u64) -> Option<Address> {
        self.regions.address(place, len)
    }

    fn has_socket(&self, fd: i32) -> bool {
        self.table().sockets.contains_key(&fd)
    }

    fn results(&self) -> u64 {
        self.results.load(Ordering::Acquire)
    }

    fn receive(&self, fd: i32, dst: u64, len: u64) -> io::Result<u64> {
        self.post((fd, false), dst, len)
    }

    fn send(&self, fd: i32, src: u64, len: u64) -> io::Result<u64> {
        self.post((fd, true), src, len)
    }

    fn cancel(&self, fd: i32, is_send: bool) -> Cancelled {
        let mut table = self.table();
        let key = (fd, is_send);
        let Some(state) = table.calls.get(&key).map(|call| call.state) else {
            return Cancelled::Moved(0);
        };
        if state == State::Calling {
            return Cancelled::Busy;
        }
        let removed = table.calls.remove(&key);
        table.closing.extend(removed.map(|call| call.socket));
        match state {
            State::Done(Ok(bytes)) => Cancelled::Moved(bytes),
            _ => Cancelled::Moved(0),
        }
    }
}
