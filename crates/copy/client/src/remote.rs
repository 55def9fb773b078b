//! The service in another process: `unlade copyd`.
//!
//! ```no_run
//! let remote = unlade_copy::Remote::connect("/run/unlade/copyd.sock".as_ref())?;
//! let (source, mut destination) = (remote.memory(1 << 20)?, remote.memory(1 << 20)?);
//! let copier = unlade_copy::Copier::new(remote);
//! copier.scope(|scope| {
//!     let pending = scope.copy(&source, &mut destination);
//!     pending.sync(0..64).map(|bytes| assert_eq!(bytes, [0; 64]))
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//! Memory that is not shared is copied synchronously by the caller. The same holds for all memory
//! once the daemon is gone: segments that it had claimed are released and copied here. To use a
//! new daemon, make a new [`Remote`].

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};
use unlade_copy_service::daemon::message::{Class, Limits, MessageError, Refusal, Reply, Request};
use unlade_copy_service::daemon::socket;
use unlade_shm::{Arena, LayoutError, Memory, Queue, Task, Ticket};

use crate::client_tasks::{ClientTasks, Left};
use crate::failures::Failures;
use crate::passed::{self, PassedSockets, TaskState};
use crate::pending::{Kind, Queued};

/// Timeout of a request to the daemon.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Default number of slots of a queue.
const SLOTS_DEFAULT: u32 = 1024;

/// How to connect; [`Options::default`] is what [`Remote::connect`] uses.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tasks that may be pending: a power of two, 16 to 4096.
    pub slots: u32,
    /// Service class among clients of the same weight.
    pub class: Class,
    /// User whose daemon is trusted with the shared memory, besides root and this process's user.
    pub trusted_uid: Option<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options { slots: SLOTS_DEFAULT, class: Class::Normal, trusted_uid: None }
    }
}

/// Reason why there is no connection, or no shared memory.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A system call failed; most often no daemon listens.
    #[error("{call}: {source}; does the copy daemon run, and listen there?")]
    System {
        /// The system call.
        call: &'static str,
        /// The error of the call.
        source: io::Error,
    },
    /// The daemon refused the request.
    #[error("the copy daemon refuses: {0}")]
    Refused(#[from] Refusal),
    /// The daemon could read and change the shared memory.
    #[error("the copy daemon runs as user {uid}, neither root nor this user; trust it expressly")]
    Untrusted {
        /// User of the daemon.
        uid: u32,
    },
    /// The daemon's answer is malformed.
    #[error("the copy daemon's answer is malformed: {0}; use the same build")]
    Message(#[from] MessageError),
    /// The daemon gave an unexpected answer, or closed the connection.
    #[error("the copy daemon gave an unexpected answer; use the same build")]
    Answer,
    /// The machine has no memory, or the caller's length is invalid.
    #[error("no memory to share: {0}")]
    Memory(#[from] unlade_shm::MemoryError),
    /// The caller's number of slots is invalid.
    #[error("the queue: {0}")]
    Layout(#[from] LayoutError),
    /// Too many shared regions: share fewer and larger ones.
    #[error("{0} regions are shared, which is the daemon's limit; share fewer and larger ones")]
    Regions(u16),
}

fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> RemoteError {
    move |errno| RemoteError::System { call, source: errno.into() }
}

/// State of the requests on a connection.
#[derive(Debug, Default)]
struct Asking {
    /// A reply is missing or was wrong. No further request is made: a late reply would be taken for
    /// that of the next one. The daemon ends the session.
    is_over: bool,
}

/// A connection to the daemon: a queue and shared memory.
#[derive(Debug)]
pub struct Remote {
    queue: Queue,
    tasks: ClientTasks,
    /// Wakes the daemon.
    bell: OwnedFd,
    limits: Limits,
    /// Regions that the daemon has mapped, by number minus one. They are not unmapped before the
    /// end of the connection, so that an address stays unique.
    regions: Box<[OnceLock<Arc<Arena>>]>,
    regions_count: AtomicUsize,
    /// Index of the region that was found last.
    regions_hint: AtomicUsize,
    passed: PassedSockets,
    socket: OwnedFd,
    /// Held during a request on the socket.
    asking: Mutex<Asking>,
    /// The daemon is gone.
    is_lost: AtomicBool,
    taken_back: AtomicU64,
}

impl Remote {
    /// Connects to the daemon that listens at `path`, most often
    /// [`SOCKET`](unlade_copy_service::daemon::SOCKET).
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn connect(path: &Path) -> Result<Remote, RemoteError> {
        Remote::connect_with(path, &Options::default())
    }

    /// As [`Remote::connect`], with options.
    ///
    /// # Errors
    /// [`RemoteError`].
    pub fn connect_with(path: &Path, options: &Options) -> Result<Remote, RemoteError> {
        let socket = reach(path)?;
        check_peer(&socket, options.trusted_uid)?;
        let limits = match ask(&socket, &Request::hello(options.class), &[])? {
            Reply::Welcome(limits) => limits,
            Reply::Refused(why) => return Err(why.into()),
            _ => return Err(RemoteError::Answer),
        };
        let arena = Arena::create("unlade-queue", Queue::bytes_for(options.slots)?)?;
        let queue = Queue::create(Memory::from(arena), options.slots)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let bell = bell.map_err(system("eventfd"))?;
        let memory = queue.memory().fd().ok_or(RemoteError::Answer)?;
        match ask(&socket, &Request::Queue, &[memory, bell.as_fd()])? {
            Reply::Served => {}
            Reply::Refused(why) => return Err(why.into()),
            _ => return Err(RemoteError::Answer),
        }
        Ok(Remote {
            tasks: ClientTasks::new(queue.slots()),
            queue,
            bell,
            limits,
            regions: (0..limits.regions_max).map(|_| OnceLock::new()).collect(),
            regions_count: AtomicUsize::new(0),
            regions_hint: AtomicUsize::new(0),
            passed: PassedSockets::default(),
            socket,
            asking: Mutex::default(),
            is_lost: AtomicBool::new(false),
            taken_back: AtomicU64::new(0),
        })
    }

    /// Limits and identity of the daemon.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of segments that were released after the daemon had died while copying them.
    pub fn taken_back(&self) -> u64 {
        self.taken_back.load(Ordering::Relaxed)
    }

    /// Allocates `len` zeroed bytes that the daemon can copy from and to. They stay shared until
    /// the connection ends, even if the value is dropped: allocate few and large areas. Once the
    /// daemon is gone, this is ordinary memory.
    ///
    /// # Errors
    /// [`RemoteError::Memory`], [`RemoteError::Regions`], or the daemon's refusal.
    pub fn memory(&self, len: usize) -> Result<SharedMemory, RemoteError> {
        self.arena(len).map(SharedMemory)
    }

    /// As [`Remote::memory`], for memory that other processes may have and that is not lent as a
    /// reference.
    pub(crate) fn arena(&self, len: usize) -> Result<Arc<Arena>, RemoteError> {
        let arena = Arc::new(Arena::create("unlade-shared", len)?);
        let mut asking = self.asking();
        if asking.is_over || !self.is_served() {
            return Ok(arena);
        }
        let count = self.regions_count.load(Ordering::Relaxed);
        let full = RemoteError::Regions(self.limits.regions_max);
        let (Some(place), Ok(region)) = (self.regions.get(count), u16::try_from(count + 1)) else {
            return Err(full);
        };
        let request = Request::Segment { region, bytes: len as u64 };
        match self.ask(&mut asking, &request, &[arena.fd()]) {
            Ok(Reply::Added { region: added }) if added == region => {
                // Set once: the lock is held.
                let _ = place.set(Arc::clone(&arena));
                self.regions_count.store(count + 1, Ordering::Release);
                Ok(arena)
            }
            Ok(Reply::Refused(why)) => Err(why.into()),
            Ok(_) => Err(RemoteError::Answer),
            Err(_) if !self.is_served() => Ok(arena),
            Err(error) => Err(error),
        }
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request. If its reply is missing or wrong, it is the last one.
    fn ask(
        &self,
        asking: &mut Asking,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Reply, RemoteError> {
        let reply = ask(&self.socket, request, descriptors);
        if !reply.as_ref().is_ok_and(|reply| is_answer(request, reply)) {
            asking.is_over = true;
            // The daemon ends the session and closes the connection, which tells when it has stopped.
            // Fails if it has closed it already.
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Write);
        }
        reply
    }

    /// Passes a connected TCP socket to the daemon. See [`Copier::pass_socket`](crate::Copier::pass_socket).
    pub(crate) fn pass_socket(&self, fd: BorrowedFd<'_>) -> Result<(), RemoteError> {
        let mut asking = self.asking();
        if self.passed.find(fd).is_some() || asking.is_over || !self.is_served() {
            return Ok(());
        }
        // The counters of such a socket are not those of its bytes. The daemon checks the rest.
        if unlade_sys::sockopt::has_upper_protocol(&fd).unwrap_or(false) {
            return Err(Refusal::Socket.into());
        }
        self.forget_now(&mut asking, fd.as_raw_fd())?;
        let number = self.passed.free_number().ok_or(RemoteError::Answer)?;
        match self.ask(&mut asking, &Request::Socket { socket: number }, &[fd]) {
            Ok(Reply::Passed { socket }) if socket == number => match self.passed.add(fd, number) {
                true => Ok(()),
                false => Err(RemoteError::Answer),
            },
            Ok(Reply::Refused(why)) => Err(why.into()),
            Ok(_) => Err(RemoteError::Answer),
            Err(_) if !self.is_served() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the daemon has the socket with this descriptor.
    pub(crate) fn has_passed(&self, fd: BorrowedFd<'_>) -> bool {
        self.passed.find(fd).is_some()
    }

    /// Has the daemon close its descriptor of a socket. All tasks of the socket are over.
    pub(crate) fn forget_socket(&self, fd: BorrowedFd<'_>) -> Result<(), RemoteError> {
        self.forget_now(&mut self.asking(), fd.as_raw_fd())
    }

    fn forget_now(&self, asking: &mut Asking, fd: i32) -> Result<(), RemoteError> {
        let Some(passed) = self.passed.remove(fd) else { return Ok(()) };
        if asking.is_over {
            return Ok(());
        }
        let socket = passed.number();
        match self.ask(asking, &Request::Forget { socket }, &[]) {
            Ok(Reply::Forgotten { .. }) => Ok(()),
            Ok(_) => Err(RemoteError::Answer),
            Err(_) if !self.is_served() => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Acquires a ticket for a receive or send of `len` bytes at `address`, if the daemon has the
    /// socket and the memory. `failures` has the errors of tasks whose slots were reused.
    pub(crate) fn acquire(
        &self,
        fd: BorrowedFd<'_>,
        is_send: bool,
        (address, len): (usize, usize),
        failures: &Failures,
    ) -> Option<Ticket> {
        if len == 0 || self.is_lost.load(Ordering::Relaxed) || self.find(address, len).is_none() {
            return None;
        }
        let passed = self.passed.find(fd)?;
        let state = |ticket, bits| self.state_of(ticket, bits, failures);
        passed.begin(fd, is_send, len, state, |position| {
            let ticket = self.queue.try_acquire()?;
            self.tasks.set_position(ticket, position);
            Some(ticket)
        })
    }

    fn state_of(&self, ticket: Ticket, bits: u32, failures: &Failures) -> TaskState {
        let progress = self.queue.progress(ticket);
        if !progress.is_done(bits) {
            return TaskState::Pending;
        }
        // `None`: the slot was reused, and an error is among the failures.
        let failure = progress.ending().map_or_else(|| failures.find(ticket), Result::err);
        if failure.is_some() { TaskState::Failed } else { TaskState::Moved }
    }

    /// A send is aborted, so those behind it have no known position.
    pub(crate) fn note_abort(&self, queued: &Queued) {
        let fd = queued.destination_socket().and_then(|fd| i32::try_from(fd).ok());
        if let Some(passed) = fd.and_then(|fd| self.passed.named(fd)) {
            passed.break_off(true);
        }
    }

    #[inline]
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    #[inline]
    pub(crate) fn tasks(&self) -> &ClientTasks {
        &self.tasks
    }

    /// Returns true if the daemon polls the queue; a hint.
    #[inline]
    pub fn is_awake(&self) -> bool {
        !self.is_lost.load(Ordering::Relaxed) && self.queue.doorbell().is_awake()
    }

    /// Returns true if the daemon lives. The kernel closes the socket of a killed process after
    /// the last of its threads has run, and a daemon that stops closes it when none of its threads
    /// touches the queue any more. So nothing changes after the socket is seen closed.
    pub fn is_served(&self) -> bool {
        if self.is_lost.load(Ordering::Acquire) {
            return false;
        }
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error of the call itself gives no information about the daemon.
        let found = poll(&mut polled, Some(&now)).unwrap_or(0);
        let is_closed =
            found > 0 && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR);
        if is_closed {
            self.is_lost.store(true, Ordering::Release);
        }
        !is_closed
    }

    pub(crate) fn ring(&self) {
        if !self.is_lost.load(Ordering::Relaxed) && self.queue.doorbell().ring() {
            // The counter is full if the daemon has not read it: the daemon is awake, or dead.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// The region of `len` bytes from `address` on, and the offset in it.
    fn find(&self, address: usize, len: usize) -> Option<(u16, u64)> {
        let count = self.regions_count.load(Ordering::Acquire);
        let at = |number: usize| {
            let arena = self.regions.get(number)?.get()?;
            let offset = address.checked_sub(arena.as_ptr().addr())?;
            let fits = offset.checked_add(len)? <= arena.len_bytes();
            fits.then_some((number as u16 + 1, offset as u64))
        };
        let hint = self.regions_hint.load(Ordering::Relaxed);
        at(hint).or_else(|| {
            let found = (0..count).find_map(at)?;
            self.regions_hint.store(usize::from(found.0) - 1, Ordering::Relaxed);
            Some(found)
        })
    }

    pub(crate) fn reaches(&self, dst: usize, src: usize, len: usize) -> bool {
        !self.is_lost.load(Ordering::Relaxed)
            && self.find(dst, len).is_some()
            && self.find(src, len).is_some()
    }

    /// Replaces addresses by regions and offsets, and removes the handler: see
    /// [`crate::client_tasks`].
    pub(crate) fn translate(&self, ticket: Ticket, task: &mut Task) {
        // The daemon refuses region 0. The caller has checked that the memory is shared.
        let len = task.len_bytes as usize;
        let place = |address: u64| self.find(address as usize, len).unwrap_or((0, 0));
        (task.dst_region, task.dst) = place(task.dst);
        (task.src_region, task.src) = place(task.src);
        if task.fd >= 0 {
            // The daemon refuses number 0. The caller has checked that the socket is passed.
            task.fd = self.passed.named(task.fd).map_or(0, |passed| passed.number().into());
        }
        let has_handler = task.flags.contains(unlade_shm::Flags::HANDLER);
        let handler = has_handler.then_some((task.handler as usize, task.argument as usize));
        (task.handler, task.argument) = (0, 0);
        self.tasks.begin(ticket, handler);
    }

    /// Releases all segments that the dead daemon had claimed and not done. Returns the tasks at
    /// sockets of which nobody knows how many bytes are moved, with the segments to be failed.
    pub(crate) fn take_back(
        &self,
        queued: impl Fn(Ticket) -> Option<Queued>,
        failures: &Failures,
    ) -> Vec<(Ticket, Queued, u32)> {
        let mut lost = Vec::new();
        let (tail, head) = (self.queue.tail().0, self.queue.head().0);
        let count = head.wrapping_sub(tail).min(self.queue.slots().into());
        for ticket in (0..count).map(|at| Ticket(tail.wrapping_add(at))) {
            let progress = self.queue.progress(ticket);
            // `None`: not published, so the daemon has not seen it.
            let Some(task) = queued(ticket) else { continue };
            let shape = (task.len_bytes, task.granule_shift);
            let left = |was_claimed| self.left_of(ticket, &task, was_claimed, failures);
            let (segments, bits) = self.tasks.take_back(ticket, progress, shape, left);
            self.taken_back.fetch_add(segments.into(), Ordering::Relaxed);
            if bits != 0 {
                lost.push((ticket, task, bits));
            }
        }
        lost
    }

    /// Returns how many bytes of a task are moved, by the kernel's counters. No thread of this
    /// process goes on with it before that is recorded.
    fn left_of(
        &self,
        ticket: Ticket,
        task: &Queued,
        was_claimed: bool,
        failures: &Failures,
    ) -> Left {
        let (fd, is_send) = match task.kind {
            Kind::Receive => (task.src, false),
            Kind::Send => (task.dst, true),
            Kind::Copy | Kind::Forward => return Left::Moved(0),
        };
        let Ok(socket) = crate::blocking::socket(Some(fd)) else { return Left::Unknown };
        let Some(passed) = self.passed.find(socket) else { return Left::Unknown };
        if !passed.is_known(is_send, ticket, |older, bits| self.state_of(older, bits, failures)) {
            return Left::Unknown;
        }
        if !was_claimed {
            return Left::Moved(0);
        }
        // Below its position if a task before it did not move all of its bytes.
        match passed::position(socket, is_send)
            .and_then(|at| at.checked_sub(self.tasks.position(ticket)))
        {
            Some(moved) => Left::Moved(moved.min(task.len_bytes.into()) as u32),
            None => {
                passed.break_off(is_send);
                Left::Unknown
            }
        }
    }
}

/// Connects a socket to the listener at `path`.
fn reach(path: &Path) -> Result<OwnedFd, RemoteError> {
    let address = SocketAddrUnix::new(path).map_err(system("the socket's path"))?;
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).map_err(system("socket"))?;
    for direction in [Timeout::Recv, Timeout::Send] {
        sockopt::set_socket_timeout(&socket, direction, Some(ANSWER_TIMEOUT))
            .map_err(system("setsockopt"))?;
    }
    connect(&socket, &address).map_err(system("connect"))?;
    Ok(socket)
}

/// Checks the daemon's user: it can read and write the shared memory, so allow only users that
/// could do so anyway.
fn check_peer(socket: &OwnedFd, trusted_uid: Option<u32>) -> Result<(), RemoteError> {
    let peer = sockopt::socket_peercred(socket).map_err(system("SO_PEERCRED"))?;
    let uid = peer.uid.as_raw();
    let own = rustix::process::geteuid().as_raw();
    match uid == 0 || uid == own || Some(uid) == trusted_uid {
        true => Ok(()),
        false => Err(RemoteError::Untrusted { uid }),
    }
}

/// Returns true if a request can have such a reply.
fn is_answer(request: &Request, reply: &Reply) -> bool {
    match (request, reply) {
        (Request::Hello { .. }, Reply::Welcome(_)) | (Request::Queue, Reply::Served) => true,
        (Request::Segment { region, .. }, Reply::Added { region: added }) => region == added,
        (Request::Socket { socket }, Reply::Passed { socket: passed }) => socket == passed,
        (Request::Forget { socket }, Reply::Forgotten { socket: forgotten }) => socket == forgotten,
        (_, Reply::Refused(_)) => true,
        _ => false,
    }
}

/// Sends one request and receives its reply.
fn ask(
    socket: &OwnedFd,
    request: &Request,
    descriptors: &[BorrowedFd<'_>],
) -> Result<Reply, RemoteError> {
    let failed = |call| move |source| RemoteError::System { call, source };
    let sent = socket::send(socket.as_fd(), request.encode().as_slice(), descriptors);
    // A refusal may already be queued. It is more specific than the broken pipe, and than the
    // reset, which the kernel reports first, and once.
    let received = match socket::receive(socket.as_fd()) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
            socket::receive(socket.as_fd())
        }
        received => received,
    };
    match received.map_err(failed("recvmsg"))? {
        Some(received) => Ok(Reply::decode(received.bytes())?),
        None => sent.map_err(failed("sendmsg")).and(Err(RemoteError::Answer)),
    }
}

/// Memory that the daemon can copy from and to; access is as fast as to ordinary memory.
///
/// The daemon has this memory, too, and changes it only for submitted copies. The daemon runs as
/// root or as this process's user, or was trusted explicitly, see [`Options::trusted_uid`]; such a
/// process can change any byte of this one anyway.
#[derive(Debug)]
pub struct SharedMemory(Arc<Arena>);

impl Deref for SharedMemory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is as long and lives as long as the arena; the bytes are
        // initialised, as zeros. Only copies write them, whose submitters promise that the bytes
        // are not used meanwhile, and the daemon on behalf of these copies.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len_bytes()) }
    }
}

impl DerefMut for SharedMemory {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and no other value lends these bytes: a connection keeps the arena
        // only for its address.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len_bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::Place;
    use crate::copier::Part;
    use crate::{Copier, CopyError, CopyOptions, TaskFailure};
    use std::time::Instant;
    use unlade_copy_service::daemon::{Daemon, DaemonConfig};

    #[test]
    fn what_the_daemon_refused_is_found_however_late_it_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copyd.sock");
        let config = DaemonConfig { socket: path.clone(), ..DaemonConfig::default() };
        let daemon = Daemon::bind(config.clone()).unwrap();
        let control = daemon.control();
        let thread = std::thread::spawn(move || {
            daemon.run(false, move || Ok(config.clone())).unwrap();
        });
        let remote = Remote::connect_with(&path, &Options { slots: 16, ..Options::default() });
        let remote = remote.unwrap();
        let mut memory = remote.memory(1 << 20).unwrap();
        let copier = Copier::new(remote);
        let base = memory.as_mut_ptr();
        let made = |dst: usize, src: usize| {
            let options = CopyOptions { queued: true, ..CopyOptions::default() };
            // Bypasses the checks of `submit`.
            let (dst, src) = (base.wrapping_add(dst), base.wrapping_add(src).cast_const());
            let ticket = copier.acquire_for(dst, src, 4000).unwrap();
            let (hint, place) = (unlade_copy_kernels::Hint::Reuse, Place::of(0, 4000));
            let part = Part { dst, src, len: 4000, hint, place };
            let token = copier.enqueue(ticket, part, &options);
            copier.ring();
            let begin = Instant::now();
            while !copier.is_ready(&token, 0..4000) {
                assert!(begin.elapsed() < Duration::from_secs(30), "the daemon serves");
                std::thread::yield_now();
            }
            token
        };
        let others = || (0..20).for_each(|_| copier.sync(&made(9000, 5000), 0..4000).unwrap());
        let refused = Err(CopyError::Failed(TaskFailure::Refused));
        others();
        let bad = made(100, 0);
        others();
        assert_eq!(copier.sync_range(base.addr() + 100, 4000), refused);
        assert_eq!(copier.sync_range(base.addr() + 100, 4000), Ok(()));
        assert_eq!(copier.sync(&bad, 0..10), refused);
        others();
        assert_eq!(copier.sync(&bad, 3999..4000), refused);
        assert_eq!(copier.sync_all(), Ok(()));
        drop((copier, memory));
        control.drain();
        thread.join().unwrap();
    }
}
