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
//! Memory that is not shared is copied at once, by the caller. So is everything when the daemon
//! is gone: what it had claimed is taken back and done here. For a new daemon make a new
//! [`Remote`].

use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use unlade_copy_service::daemon::message::{Class, Limits, MessageError, Refusal, Reply, Request};
use unlade_copy_service::daemon::socket;
use unlade_shm::{Arena, LayoutError, Memory, Queue, Task, Ticket};

use crate::ledger::Ledger;

/// How long the daemon may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Slots of a queue, unless it is told otherwise.
const SLOTS_DEFAULT: u32 = 1024;

/// How to connect; [`Options::default`] is what [`Remote::connect`] uses.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Tasks that may be pending: a power of two, 16 to 4096.
    pub slots: u32,
    /// How to be served beside others of the same weight.
    pub class: Class,
    /// A user whose daemon is trusted with what is shared, beside root and this process's own.
    pub trusted_uid: Option<u32>,
}

impl Default for Options {
    fn default() -> Options {
        Options { slots: SLOTS_DEFAULT, class: Class::Normal, trusted_uid: None }
    }
}

/// Why there is no connection, or no memory to share.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The kernel's: most often nobody listens.
    #[error("{call}: {source}; does the copy daemon run, and listen there?")]
    System {
        /// The system call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The daemon's.
    #[error("the copy daemon refuses: {0}")]
    Refused(#[from] Refusal),
    /// Whoever listens could read and change what is shared.
    #[error("the copy daemon runs as user {uid}, neither root nor this user; trust it expressly")]
    Untrusted {
        /// Its user.
        uid: u32,
    },
    /// The daemon said what makes no sense.
    #[error("the copy daemon's answer makes no sense: {0}")]
    Message(#[from] MessageError),
    /// The daemon said something else than was asked, or closed.
    #[error("the copy daemon did not answer as it should; use the same build")]
    Answer,
    /// The machine's, or the caller's length.
    #[error("no memory to share: {0}")]
    Memory(#[from] unlade_shm::MemoryError),
    /// The caller's.
    #[error("the queue: {0}")]
    Layout(#[from] LayoutError),
    /// The caller's: share fewer and larger regions.
    #[error("{0} regions are shared: the daemon takes no more of this client")]
    Regions(u16),
}

fn system(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> RemoteError {
    move |errno| RemoteError::System { call, source: errno.into() }
}

/// A connection to the daemon: a queue, and memory that both have.
#[derive(Debug)]
pub struct Remote {
    queue: Queue,
    ledger: Ledger,
    /// Wakes the daemon.
    bell: OwnedFd,
    limits: Limits,
    /// What the daemon has mapped, by number less one. Never unmapped here before the end, so that
    /// an address means one thing.
    regions: Box<[OnceLock<Arc<Arena>>]>,
    regions_count: AtomicUsize,
    /// Where the last address was found.
    regions_hint: AtomicUsize,
    socket: OwnedFd,
    /// Held while something is asked on the socket.
    asking: Mutex<()>,
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

    /// As [`Remote::connect`].
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
            ledger: Ledger::new(queue.slots()),
            queue,
            bell,
            limits,
            regions: (0..limits.regions_max).map(|_| OnceLock::new()).collect(),
            regions_count: AtomicUsize::new(0),
            regions_hint: AtomicUsize::new(0),
            socket,
            asking: Mutex::new(()),
            is_lost: AtomicBool::new(false),
            taken_back: AtomicU64::new(0),
        })
    }

    /// What the daemon allows, and which it is.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Segments that were taken back from a daemon that died at them.
    pub fn taken_back(&self) -> u64 {
        self.taken_back.load(Ordering::Relaxed)
    }

    /// Makes `len` bytes of zeros that the daemon can copy from and to. They stay shared until the
    /// connection ends, also when the value is dropped: ask for large ones, seldom. When the daemon
    /// is gone, it is memory like any other.
    ///
    /// # Errors
    /// [`RemoteError::Memory`], [`RemoteError::Regions`], or the daemon's refusal.
    pub fn memory(&self, len: usize) -> Result<Shared, RemoteError> {
        self.arena(len).map(Shared)
    }

    /// As [`Remote::memory`], and not to be lent as a reference: others may have it, too.
    pub(crate) fn arena(&self, len: usize) -> Result<Arc<Arena>, RemoteError> {
        let arena = Arc::new(Arena::create("unlade-shared", len)?);
        let _asking = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.is_served() {
            return Ok(arena);
        }
        let count = self.regions_count.load(Ordering::Relaxed);
        let full = RemoteError::Regions(self.limits.regions_max);
        let (Some(place), Ok(region)) = (self.regions.get(count), u16::try_from(count + 1)) else {
            return Err(full);
        };
        let request = Request::Segment { region, bytes: len as u64 };
        match ask(&self.socket, &request, &[arena.fd()]) {
            Ok(Reply::Added { region: added }) if added == region => {
                // Nobody else adds while we ask.
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

    #[inline]
    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    #[inline]
    pub(crate) fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Whether the daemon looks at the queue by itself; a hint.
    #[inline]
    pub fn is_awake(&self) -> bool {
        !self.is_lost.load(Ordering::Relaxed) && self.queue.doorbell().is_awake()
    }

    /// Whether the daemon lives. The kernel closes the socket of a process that was killed after
    /// the last of its threads has run, and the daemon closes it when no thread of it touches the
    /// queue any more: so who sees it closed finds nothing changing.
    pub fn is_served(&self) -> bool {
        if self.is_lost.load(Ordering::Acquire) {
            return false;
        }
        let mut polled = [PollFd::new(&self.socket, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // An error of the call itself says nothing of the daemon.
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
            // Full: the daemon has not heard the last 2^64 yet. It is awake, or dead.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Where `len` bytes from `address` on are shared: the region, and the offset in it.
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

    /// Regions and offsets instead of addresses, and no handler: see [`crate::ledger`].
    pub(crate) fn translate(&self, ticket: Ticket, task: &mut Task) {
        // What is not shared the daemon refuses, as region 0; it was asked for before.
        let len = task.len_bytes as usize;
        let place = |address: u64| self.find(address as usize, len).unwrap_or((0, 0));
        (task.dst_region, task.dst) = place(task.dst);
        (task.src_region, task.src) = place(task.src);
        let has_handler = task.flags.contains(unlade_shm::Flags::HANDLER);
        let handler = has_handler.then_some((task.handler as usize, task.argument as usize));
        (task.handler, task.argument) = (0, 0);
        self.ledger.begin(ticket, handler);
    }

    /// Takes back all that the dead daemon had claimed and not done.
    pub(crate) fn take_back(&self) {
        let (tail, head) = (self.queue.tail().0, self.queue.head().0);
        let count = head.wrapping_sub(tail).min(self.queue.slots().into());
        for ticket in (0..count).map(|at| Ticket(tail.wrapping_add(at))) {
            let progress = self.queue.progress(ticket);
            let segments = self.ledger.take_back(ticket, progress);
            self.taken_back.fetch_add(segments.into(), Ordering::Relaxed);
        }
    }
}

/// A socket that is connected to whoever listens at `path`.
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

/// Whoever listens gets to read and write what is shared: only users that could do so anyway.
fn check_peer(socket: &OwnedFd, trusted_uid: Option<u32>) -> Result<(), RemoteError> {
    let peer = sockopt::socket_peercred(socket).map_err(system("SO_PEERCRED"))?;
    let uid = peer.uid.as_raw();
    let own = rustix::process::geteuid().as_raw();
    match uid == 0 || uid == own || Some(uid) == trusted_uid {
        true => Ok(()),
        false => Err(RemoteError::Untrusted { uid }),
    }
}

/// One request, one reply.
fn ask(
    socket: &OwnedFd,
    request: &Request,
    descriptors: &[std::os::fd::BorrowedFd<'_>],
) -> Result<Reply, RemoteError> {
    let failed = |call| move |source| RemoteError::System { call, source };
    let sent = socket::send(socket.as_fd(), request.encode().as_slice(), descriptors);
    // A refusal may be there already: it says more than the broken pipe, and than the reset, which
    // the kernel tells of first, and once.
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

/// Bytes that the daemon can copy from and to; they are like any others, and slower nowhere.
///
/// Others have them too: the daemon, which changes them only as it is asked to. It is root's or
/// this user's, or was trusted expressly, see [`Options::trusted_uid`]; such a process can change
/// any byte of this one.
#[derive(Debug)]
pub struct Shared(Arc<Arena>);

impl Deref for Shared {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is as long and lives as long as the arena; the bytes are initialised,
        // as zeros. Who writes them are copies, whose submitters promise that nobody looks
        // meanwhile, and the daemon on behalf of these.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len_bytes()) }
    }
}

impl DerefMut for Shared {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; and no other value lends these bytes: what a connection keeps of the
        // arena is there to know its address.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_ptr(), self.0.len_bytes()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copier::Part;
    use crate::{Copier, CopyError, How, TaskFailure};
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
            let how = How { queued: true, ..How::default() };
            // Past the checks of `submit`.
            let (dst, src) = (base.wrapping_add(dst), base.wrapping_add(src).cast_const());
            let ticket = copier.acquire_for(dst, src, 4000).unwrap();
            let part = Part { dst, src, len: 4000, hint: unlade_copy_kernels::Hint::Reuse };
            let token = copier.enqueue(ticket, part, &how);
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
