//! Sockets that a client has passed, and the thread that uses them.
//!
//! A client can make a system call on a shared socket wait, even one that does not wait for the peer:
//! it holds the kernel's lock of the socket while its own call faults on a page that it never
//! provides. So a thread for this client alone makes all calls, and waits for the sockets by poll(2).
//! The copy threads post the calls and look for their results; until then they see a socket that would
//! block. The client's closer closes the sockets.
//!
//! A result is not lost: the client reads the position of its streams from the kernel's counters when
//! the daemon is gone. It sees the daemon's end after this thread's, which holds the session's socket.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketType, sockopt};
use unlade_copy_kernels::space::{Address, Cancelled};
use unlade_copy_kernels::{Fault, Reach, Regions, Space};
use unlade_sys::sockopt::unacknowledged_bytes;

use crate::daemon::closer::{ClientDescriptor, Connection};
use crate::daemon::message::Refusal;
use crate::service::Ringer;

/// A socket's number, and true for a send.
type Key = (i32, bool);
/// Number of bytes, or the kernel's error number.
type Outcome = Result<u64, i32>;

/// Number of looks at a socket that may be connected.
const LOOKS: usize = 3;
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
    socket: Arc<ClientDescriptor>,
    place: u64,
    len: u64,
    state: State,
}

/// A call that the thread makes.
struct Begun {
    key: Key,
    socket: Arc<ClientDescriptor>,
    place: u64,
    len: u64,
}

#[derive(Debug, Default)]
struct Table {
    sockets: BTreeMap<i32, Arc<ClientDescriptor>>,
    calls: BTreeMap<Key, Call>,
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
    sockets_max: u16,
}

impl ClientSpace {
    /// Creates the space of a client with these regions, for a number of sockets.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(regions: Arc<Regions>, sockets_max: u16) -> io::Result<Arc<ClientSpace>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(ClientSpace {
            regions,
            table: Mutex::default(),
            bell,
            ringer: OnceLock::new(),
            results: AtomicU64::new(0),
            sockets_max,
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
    /// The descriptor is not a connected TCP socket, the number is in use, there are too many sockets,
    /// or the system has no threads left.
    pub fn add(
        self: &Arc<Self>,
        number: u16,
        socket: ClientDescriptor,
        session: &Arc<Connection>,
    ) -> Result<(), Refusal> {
        if !is_tcp(&socket) {
            return Err(Refusal::Socket);
        }
        if !is_connected(&socket) {
            return Err(Refusal::Unconnected);
        }
        let mut table = self.table();
        let is_free = number != 0 && !table.sockets.contains_key(&number.into());
        if !is_free || table.sockets.len() >= self.sockets_max.into() {
            return Err(Refusal::SocketLimit);
        }
        if !table.has_thread {
            let (space, session) = (Arc::clone(self), Arc::clone(session));
            let thread = std::thread::Builder::new().name("copyd-sockets".to_owned());
            thread.spawn(move || space.run(session)).map_err(|_| Refusal::Exhausted)?;
            table.has_thread = true;
        }
        table.sockets.insert(number.into(), Arc::new(socket));
        self.wake(table);
        Ok(())
    }

    /// Removes a socket; its call, if one is left, ends first. Returns false if there is none.
    pub fn forget(&self, number: u16) -> bool {
        let mut table = self.table();
        let is_known = table.sockets.remove(&number.into()).is_some();
        self.wake(table);
        is_known
    }

    /// Number of sockets.
    pub fn sockets(&self) -> usize {
        self.table().sockets.len()
    }

    /// Ends the thread, which gives up the sockets.
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
            table.calls.remove(&key);
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
    fn run(&self, session: Arc<Connection>) {
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
        drop(table);
        drop((sockets, calls));
        drop(session);
    }

    /// Begins the due calls. `None` at the end.
    fn begin(&self) -> Option<Vec<Begun>> {
        let mut table = self.table();
        if table.is_closed {
            return None;
        }
        let due = table.calls.iter_mut().filter(|(_, call)| call.state == State::Due);
        let calls = due.map(|(key, call)| {
            call.state = State::Calling;
            Begun { key: *key, socket: Arc::clone(&call.socket), place: call.place, len: call.len }
        });
        Some(calls.collect())
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
        if table.is_closed || table.calls.values().any(is_due) {
            return;
        }
        let waiting = table.calls.iter().filter(|(_, call)| call.state == State::Waiting);
        let waiting: Vec<(Key, Arc<ClientDescriptor>)> =
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
    }
}

/// These system calls do not take the lock of the socket.
fn is_tcp(socket: &impl AsFd) -> bool {
    let is_stream = sockopt::socket_type(socket) == Ok(SocketType::STREAM);
    let families = [AddressFamily::INET, AddressFamily::INET6];
    let is_ip = sockopt::socket_domain(socket).is_ok_and(|family| families.contains(&family));
    let is_tcp = sockopt::socket_protocol(socket) == Ok(Some(rustix::net::ipproto::TCP));
    let is_listening = sockopt::socket_acceptconn(socket).unwrap_or(true);
    is_stream && is_ip && is_tcp && !is_listening
}

/// Returns true if a TCP socket is connected, and not closed in both directions. getpeername(2) and
/// TCP_INFO take the lock of the socket, which the client can hold; poll(2) and SIOCOUTQ do not.
fn is_connected(socket: &impl AsFd) -> bool {
    (0..LOOKS).any(|_| {
        // A socket that still connects has sent nothing and is not writable. One whose connection is
        // full has sent something, unless all of it is acknowledged between the two calls.
        let sent_bytes = unacknowledged_bytes(socket).unwrap_or(0);
        let mut polled = [PollFd::new(socket, PollFlags::IN | PollFlags::OUT)];
        let is_polled = poll(&mut polled, Some(&Timespec::default())).is_ok();
        let events = polled[0].revents();
        let is_ready = events.intersects(PollFlags::IN | PollFlags::OUT);
        is_polled && !events.contains(PollFlags::HUP) && (is_ready || sent_bytes > 0)
    })
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
        table.calls.remove(&key);
        match state {
            State::Done(Ok(bytes)) => Cancelled::Moved(bytes),
            _ => Cancelled::Moved(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::closer::Closer;
    use rustix::net::{Shutdown, SocketFlags, connect, listen, shutdown, socket_with};
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixStream;
    use unlade_sys::info::TcpInfo;

    /// `tcpi_state` of a socket that connects.
    const SYN_SENT: u8 = 2;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn unconnected() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).unwrap()
    }

    /// Sockets of which the last one connects for ever: the queue of the listener is full.
    fn connecting() -> (OwnedFd, Vec<OwnedFd>) {
        let listener = unconnected();
        rustix::net::bind(&listener, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        listen(&listener, 0).unwrap();
        let address: SocketAddr = rustix::net::getsockname(&listener).unwrap().try_into().unwrap();
        let mut sockets = Vec::new();
        for _ in 0..16 {
            let socket = unconnected();
            // In progress, or done at once.
            let _ = connect(&socket, &address);
            sockets.push(socket);
            if TcpInfo::of(&sockets[sockets.len() - 1]).unwrap().state == SYN_SENT {
                return (listener, sockets);
            }
        }
        panic!("a listener without a queue takes all");
    }

    #[test]
    fn sockets_are_checked_before_the_thread_starts() {
        let guard = unlade_copy_kernels::guard::install().unwrap();
        let closer = Closer::start(&Arc::default()).unwrap();
        let session = Arc::new(Connection::new(UnixStream::pair().unwrap().0.into(), &closer));
        let space = |sockets_max| {
            ClientSpace::new(Arc::new(Regions::new(guard, 1, 4096)), sockets_max).unwrap()
        };
        let add = |space: &Arc<ClientSpace>, number, socket: OwnedFd| {
            space.add(number, closer.own(socket), &session)
        };
        let (none, one) = (space(0), space(1));
        assert_eq!(add(&none, 1, pair().0.into()), Err(Refusal::SocketLimit));
        assert_eq!(add(&one, 0, pair().0.into()), Err(Refusal::SocketLimit));
        let unix = UnixStream::pair().unwrap().0;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        for other in [OwnedFd::from(unix), listener.into(), datagrams.into()] {
            assert_eq!(add(&one, 1, other), Err(Refusal::Socket));
        }
        let (_listener, mut sockets) = connecting();
        let (closed, _peer) = pair();
        shutdown(&closed, Shutdown::Both).unwrap();
        for socket in [unconnected(), sockets.pop().unwrap(), closed.into()] {
            assert_eq!(add(&one, 1, socket), Err(Refusal::Unconnected));
        }
        assert!(!none.table().has_thread && !one.table().has_thread);
        // One direction is enough.
        let (half, _peer) = pair();
        shutdown(&half, Shutdown::Write).unwrap();
        assert_eq!(add(&one, 1, half.into()), Ok(()));
        assert!(one.table().has_thread);
        assert_eq!(add(&one, 2, pair().0.into()), Err(Refusal::SocketLimit));
        one.close();
    }
}
