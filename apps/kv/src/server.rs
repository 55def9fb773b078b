//! The event loop: accepts, runs the clients' turns, expires keys, reviews buffers, ends.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrAny, SocketFlags, SocketType, acceptfrom_with, bind,
    getsockname, listen, send, socket_with, sockopt,
};
use slab::Slab;

use crate::connection::{Connection, TurnResult};
use crate::copies::Copies;
use crate::state::{Limits, ServerState};

/// Maximum number of events per call.
const EVENTS_MAX: usize = 128;
/// Maximum number of accepted connections before the clients' turns.
const ACCEPTS_MAX: usize = 64;
/// Length of the kernel's accept queue.
const BACKLOG: i32 = 511;
/// Pause after a failed accept, if the process or the machine has too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time between two reviews of the clients' buffers, while there are some.
const REVIEW_MS: u64 = 250;
/// Maximum time between two looks at the deadlines.
const WAIT_MAX: Duration = Duration::from_secs(3600);
/// Event key of the listener; connections are numbered from 0.
const LISTENER: u64 = u64::MAX;
const STOP: u64 = u64::MAX - 1;

/// Configuration of a server.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Listening address; port 0 selects a free port.
    pub listen: SocketAddr,
    /// See [`Limits`].
    pub limits: Limits,
    /// Clients may use `DEBUG`, which stops the server for a time, among others.
    pub allows_debug: bool,
}

/// Error of a server's start or run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The address is in use, or not this machine's.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The error.
        error: io::Error,
    },
    /// The event loop failed.
    #[error("the event loop: {0}")]
    Events(#[from] io::Error),
    /// The copy service does not start.
    #[error(transparent)]
    Service(#[from] unlade_copy::StartError),
    /// The copy service does not accept the server as a client.
    #[error(transparent)]
    Attach(#[from] unlade_copy::AttachError),
}

/// A connection, and its registered events.
struct Client<C: Copies> {
    connection: Connection<C>,
    watched: epoll::EventFlags,
    /// The connection has more work that needs no wait for its socket.
    is_busy: bool,
    /// The connection is removed when all events of this call are processed.
    has_ended: bool,
}

/// A key-value server.
pub struct Server<C: Copies> {
    state: ServerState<C>,
    epoll: OwnedFd,
    listener: OwnedFd,
    address: SocketAddr,
    clients: Slab<Client<C>>,
    /// Clients that have more work that needs no wait for their sockets.
    busy: Vec<usize>,
    /// Time until which no connection is accepted.
    pause: Option<Instant>,
    /// Time of the next review of the clients' buffers, in milliseconds since 1970.
    review_ms: Option<u64>,
}

impl<C: Copies> Server<C> {
    /// Creates a server that listens.
    ///
    /// # Errors
    /// [`ServerError`].
    pub fn new(config: &Config, copies: C) -> Result<Server<C>, ServerError> {
        let told =
            |error: Errno| ServerError::Listen { address: config.listen, error: error.into() };
        let (listener, address) = listener(config.listen).map_err(told)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?;
        watch(&epoll, listener.as_fd(), LISTENER, epoll::EventFlags::IN)?;
        let mut state = ServerState::new(copies, config.limits);
        state.allows_debug = config.allows_debug;
        Ok(Server {
            state,
            epoll,
            listener,
            address,
            clients: Slab::new(),
            busy: Vec::new(),
            pause: None,
            review_ms: None,
        })
    }

    /// Returns the listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is readable or its other end is closed. All answered requests are
    /// executed then; connections end.
    ///
    /// # Errors
    /// [`ServerError::Events`].
    pub fn run(mut self, stop: BorrowedFd<'_>) -> Result<(), ServerError> {
        watch(&self.epoll, stop, STOP, epoll::EventFlags::IN)?;
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            let timeout = self.timeout();
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            self.state.read_clock();
            self.state.sweep();
            self.review();
            // The number of an ended client must not be reused before all events are processed.
            let mut ended = Vec::new();
            let mut has_callers = false;
            let busy = std::mem::take(&mut self.busy);
            for event in &events {
                match event.data.u64() {
                    STOP => return Ok(()),
                    LISTENER => has_callers = true,
                    number => self.turn(number as usize, &mut ended)?,
                }
            }
            for number in busy {
                if let Some(client) = self.clients.get_mut(number) {
                    client.is_busy = false;
                }
                self.turn(number, &mut ended)?;
            }
            ended.append(&mut self.state.killed);
            ended.into_iter().for_each(|number| self.remove(number));
            if has_callers || self.pause.is_some_and(|pause| pause <= Instant::now()) {
                self.accept()?;
            }
        }
    }

    /// Returns the time until the next key expires or accepting resumes.
    fn timeout(&self) -> Option<Timespec> {
        if !self.busy.is_empty() {
            return Some(Timespec { tv_sec: 0, tv_nsec: 0 });
        }
        let now_ms = self.state.clock_ms();
        let next_ms = [self.state.next_deadline_ms(), self.review_ms].into_iter().flatten().min();
        let next = next_ms.map(|at| Duration::from_millis(at.saturating_sub(now_ms)));
        let pause = self.pause.map(|pause| pause.saturating_duration_since(Instant::now()));
        let wait = [next, pause].into_iter().flatten().min()?;
        Timespec::try_from(wait.min(WAIT_MAX)).ok()
    }

    /// Reviews the clients' buffers, if it is time.
    fn review(&mut self) {
        let now_ms = self.state.now_ms;
        if self.review_ms.is_none_or(|review_ms| now_ms < review_ms) {
            return;
        }
        let mut has_buffers = false;
        for (_, client) in &mut self.clients {
            has_buffers |= client.connection.review(&mut self.state);
        }
        self.review_ms = has_buffers.then_some(now_ms + REVIEW_MS);
    }

    /// Runs a client's turn.
    fn turn(&mut self, number: usize, ended: &mut Vec<usize>) -> Result<(), ServerError> {
        let Some(client) = self.clients.get_mut(number) else { return Ok(()) };
        // A turn may allocate a buffer.
        self.review_ms = self.review_ms.or(Some(self.state.now_ms + REVIEW_MS));
        // A client with more work has its turn after the events.
        if client.has_ended || client.is_busy {
            return Ok(());
        }
        match client.connection.turn(&mut self.state) {
            TurnResult::Ended => {
                client.has_ended = true;
                ended.push(number);
                return Ok(());
            }
            TurnResult::More => {
                client.is_busy = true;
                self.busy.push(number);
            }
            TurnResult::Done => {}
        }
        let mut wanted = epoll::EventFlags::empty();
        wanted.set(epoll::EventFlags::IN, client.connection.wants_to_read());
        wanted.set(epoll::EventFlags::OUT, client.connection.wants_to_write());
        if wanted != client.watched {
            client.watched = wanted;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::modify(&self.epoll, client.connection.socket(), data, wanted)
                .map_err(io::Error::from)?;
        }
        Ok(())
    }

    fn remove(&mut self, number: usize) {
        if let Some(mut client) = self.clients.try_remove(number) {
            client.connection.release(&mut self.state);
            self.state.close_session(client.connection.session());
            self.state.stats.clients -= 1;
        }
    }

    fn accept(&mut self) -> Result<(), ServerError> {
        if self.pause.take().is_some() {
            watch(&self.epoll, self.listener.as_fd(), LISTENER, epoll::EventFlags::IN)?;
        }
        for _ in 0..ACCEPTS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (socket, peer) = match acceptfrom_with(&self.listener, flags) {
                Ok(accepted) => accepted,
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // A wait for the listener would return at once, without effect.
                    epoll::delete(&self.epoll, &self.listener).map_err(io::Error::from)?;
                    self.pause = Some(Instant::now() + ACCEPT_PAUSE);
                    break;
                }
                // An error of one connection, which has closed again.
                Err(_) => continue,
            };
            self.welcome(socket, peer)?;
        }
        Ok(())
    }

    fn welcome(&mut self, socket: OwnedFd, peer: Option<SocketAddrAny>) -> Result<(), ServerError> {
        self.state.stats.accepted += 1;
        if self.clients.len() >= self.state.limits.clients_max {
            self.state.stats.rejected += 1;
            // The client may not read this.
            let said = b"-ERR max number of clients reached\r\n";
            let _ = send(&socket, said, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            return Ok(());
        }
        // If this fails, answers are delayed, but correct.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let entry = self.clients.vacant_entry();
        let number = self.state.open_session(entry.key());
        let session = &mut self.state.sessions[number];
        session.fd = socket.as_raw_fd();
        session.peer = shown(peer);
        session.local = shown(getsockname(&socket).ok());
        let connection = Connection::new(socket, number, &self.state);
        let watched = epoll::EventFlags::IN;
        watch(&self.epoll, connection.socket().as_fd(), entry.key() as u64, watched)?;
        entry.insert(Client { connection, watched, is_busy: false, has_ended: false });
        self.state.stats.clients += 1;
        Ok(())
    }
}

/// Returns an address as text; empty if it is not known.
fn shown(address: Option<SocketAddrAny>) -> String {
    let address = address.and_then(|address| SocketAddr::try_from(address).ok());
    address.map_or_else(String::new, |address| address.to_string())
}

fn listener(address: SocketAddr) -> rustix::io::Result<(OwnedFd, SocketAddr)> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener = socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    bind(&listener, &address)?;
    listen(&listener, BACKLOG)?;
    let bound = SocketAddr::try_from(getsockname(&listener)?)?;
    Ok((listener, bound))
}

fn watch(
    epoll: &OwnedFd,
    fd: BorrowedFd<'_>,
    number: u64,
    flags: epoll::EventFlags,
) -> io::Result<()> {
    Ok(epoll::add(epoll, fd, epoll::EventData::new_u64(number), flags)?)
}
