//! A client and a daemon in one process, over the socket: refusals, isolation, and the state after
//! the daemon's end. Killed daemons are in the system tests.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use unlade_copy::{
    Class, Copier, CopyError, CopyOptions, Options, Refusal, Remote, RemoteError, TaskFailure,
};
use unlade_copy_service::daemon::message::{Reply, Request};
use unlade_copy_service::daemon::{Daemon, DaemonConfig, socket};
use unlade_shm::{Arena, Flags, Memory, Queue, Task};
use unlade_testkit::{Random, seed};

/// A daemon on a thread of this process.
struct Running {
    stop: Box<dyn Fn() + Send>,
    thread: Option<JoinHandle<()>>,
    directory: tempfile::TempDir,
}

impl Running {
    fn start(change: impl FnOnce(&mut DaemonConfig)) -> Running {
        let directory = tempfile::tempdir().unwrap();
        let mut config =
            DaemonConfig { socket: directory.path().join("copyd.sock"), ..DaemonConfig::default() };
        change(&mut config);
        let daemon = Daemon::bind(config.clone()).unwrap();
        let control = daemon.control();
        let thread = std::thread::spawn(move || {
            daemon.run(false, move || Ok(config.clone())).unwrap();
        });
        Running { stop: Box::new(move || control.drain()), thread: Some(thread), directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("copyd.sock")
    }

    fn connect(&self) -> Remote {
        Remote::connect(&self.path()).unwrap()
    }

    /// Ends the daemon as SIGTERM does.
    fn end(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::yield_now();
    }
}

fn raw(path: &Path) -> OwnedFd {
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let socket = socket.unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    socket
}

fn say(socket: &OwnedFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
    // The daemon may have closed already.
    let _ = unlade_sys::descriptors::send(socket, bytes, descriptors);
}

/// The next reply; none if the daemon has closed.
fn reply(socket: &OwnedFd) -> Option<Reply> {
    let received = socket::receive(socket.as_fd()).ok().flatten()?;
    Some(Reply::decode(received.bytes()).expect("the daemon makes sense"))
}

fn greeted(path: &Path) -> OwnedFd {
    let socket = raw(path);
    say(&socket, Request::hello(Class::Normal).encode().as_slice(), &[]);
    assert!(matches!(reply(&socket), Some(Reply::Welcome(_))));
    socket
}

const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };

#[test]
fn copies_between_shared_regions_are_made_by_the_daemon() {
    let running = Running::start(|_| {});
    let remote = running.connect();
    let (mut source, mut middle, mut end) = (
        remote.memory(1 << 20).unwrap(),
        remote.memory(1 << 20).unwrap(),
        remote.memory(1 << 20).unwrap(),
    );
    let copier = Copier::new(remote);
    for round in 0..50u8 {
        source.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8 ^ round);
        copier.scope(|scope| {
            let first = scope.queue(&source, &mut middle);
            let second = scope.copy_on(&first, &mut end);
            assert_eq!(second.sync(1000..1010).unwrap(), &source[1000..1010]);
        });
        assert_eq!(*middle, *source);
        assert_eq!(*end, *source);
    }
    let mut private = vec![0u8; 1 << 20];
    copier.scope(|scope| {
        let pending = scope.queue(&source, &mut private);
        assert!(pending.is_ready(0..1 << 20), "what is not shared is copied at once");
    });
    assert_eq!(private, *source);
    assert!(copier.remote().unwrap().is_served());
    let stats = copier.stats().read();
    assert!(stats.queued >= 50, "{stats:?}");
}

#[test]
fn the_daemon_copies_by_itself_and_wakes_from_sleep() {
    let running = Running::start(|config| config.sleep_max = Duration::from_secs(60));
    let remote = running.connect();
    let (source, mut destination) = (remote.memory(1 << 19).unwrap(), remote.memory(1 << 19));
    let destination = destination.as_mut().unwrap();
    let copier = Copier::new(remote);
    for _ in 0..5 {
        // It does not wake up by itself in time.
        eventually("the daemon sleeps", || !copier.remote().unwrap().is_awake());
        // SAFETY: neither buffer is accessed before the copy is done.
        let token =
            unsafe { copier.submit(destination.as_mut_ptr(), source.as_ptr(), 1 << 19, &QUEUED) };
        eventually("the copy is made", || copier.is_ready(&token, 0..1 << 19));
    }
    assert_eq!(copier.stats().read().helped_bytes, 0);
}

static CALLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count(argument: usize) {
    CALLED.fetch_add(argument, Ordering::SeqCst);
}

#[test]
fn pending_copies_complete_after_the_daemons_end_and_handlers_run_once() {
    let mut running = Running::start(|_| {});
    let remote = running.connect();
    let (mut source, mut destination) =
        (remote.memory(1 << 20).unwrap(), remote.memory(1 << 20).unwrap());
    source.fill(5);
    let copier = Copier::new(remote);
    let options = CopyOptions { handler: Some((count as *const () as usize, 1)), ..QUEUED };
    let lazy = CopyOptions { lazy_us: Some(u32::MAX), ..options };
    for part in 0..200 {
        let (at, options) = (part * 5000, if part % 3 == 0 { &lazy } else { &options });
        let (dst, src) = (destination[at..].as_mut_ptr(), source[at..].as_ptr());
        // SAFETY: neither buffer is accessed before all are synced.
        let _ = unsafe { copier.submit(dst, src, 5000, options) };
        if part == 120 {
            running.end();
        }
    }
    copier.sync_all().unwrap();
    assert_eq!(destination[..1_000_000], source[..1_000_000]);
    assert_eq!(CALLED.load(Ordering::SeqCst), 200);
    assert!(!copier.remote().unwrap().is_served());
    let mut more = copier.remote().unwrap().memory(100_000).unwrap();
    copier.scope(|scope| {
        assert!(scope.queue(&source[..100_000], &mut more).is_ready(0..100_000));
    });
    assert_eq!(more[..], source[..100_000]);
    assert!(matches!(Remote::connect(&running.path()), Err(RemoteError::System { .. })));
}

/// A queue whose lines the test writes itself, like a hostile client.
struct Hostile {
    queue: Queue,
    bell: OwnedFd,
    _socket: OwnedFd,
}

impl Hostile {
    fn attach(socket: OwnedFd) -> Hostile {
        let arena = Arena::create("hostile", Queue::bytes_for(64).unwrap()).unwrap();
        let queue = Queue::create(Memory::from(arena), 64).unwrap();
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let memory = queue.memory().fd().unwrap();
        say(&socket, Request::Queue.encode().as_slice(), &[memory, bell.as_fd()]);
        assert_eq!(reply(&socket), Some(Reply::Served));
        Hostile { queue, bell, _socket: socket }
    }

    /// Waits for the end of the task; returns its error code, if any.
    fn end_of(&self, task: &Task) -> Option<u16> {
        let ticket = self.queue.try_acquire().unwrap();
        self.queue.publish(ticket, task);
        self.queue.doorbell().ring();
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
        let progress = self.queue.progress(ticket);
        let mut error = None;
        eventually("the task ends", || {
            error = progress.error().or(error);
            progress.is_done(task.bits())
        });
        progress.error().or(error).map(std::num::NonZeroU16::get)
    }
}

#[test]
fn a_client_reaches_its_own_regions_only() {
    let running = Running::start(|_| {});
    let neighbour = running.connect();
    let mut theirs = neighbour.memory(1 << 16).unwrap();
    theirs.fill(9);
    let socket = greeted(&running.path());
    let own = Arena::create("own", 1 << 16).unwrap();
    say(&socket, Request::Segment { region: 1, bytes: 1 << 16 }.encode().as_slice(), &[own.fd()]);
    assert_eq!(reply(&socket), Some(Reply::Added { region: 1 }));
    let hostile = Hostile::attach(socket);
    let task = |dst_region, dst, src_region, src, len| Task {
        dst_region,
        src_region,
        ..Task::copy(dst, src, len)
    };
    let refused = Some(TaskFailure::Refused.code().get());
    assert_eq!(hostile.end_of(&task(1, 0, 1, 1 << 15, 1 << 15)), None);
    for bad in [
        task(0, 0, 1, 0, 100),
        task(2, 0, 1, 0, 100),
        task(1, 0, 2, 0, 100),
        task(u16::MAX, 0, 1, 0, 100),
        task(1, 1 << 15, 1, 0, (1 << 15) + 1),
        task(1, 0, 1, (1 << 16) - 99, 100),
        task(1, 1 << 48, 1, 0, 100),
        task(1, 0, 1, theirs.as_ptr().addr() as u64, 100),
        task(1, u64::MAX - 200, 1, 0, 100),
        // Overlapping.
        task(1, 0, 1, 50, 100),
        // The daemon's descriptors are not the client's.
        Task { kind: unlade_shm::Kind::Send, fd: 1, ..task(1, 0, 1, 0, 100) },
        Task { kind: unlade_shm::Kind::Receive, fd: 0, ..task(1, 0, 1, 0, 100) },
        Task { kind: unlade_shm::Kind::Barrier, flags: Flags::PRIVILEGED, ..task(1, 0, 1, 0, 100) },
    ] {
        assert_eq!(hostile.end_of(&bad), refused, "{bad:?}");
    }
    assert_eq!(hostile.end_of(&task(1, 0, 1, 1 << 15, 1 << 15)), None);
    assert!(theirs.iter().all(|byte| *byte == 9));
    assert!(neighbour.is_served());
}

#[test]
fn what_is_sent_wrongly_is_refused() {
    let running = Running::start(|config| config.region_bytes_max.0 = 1 << 20);
    let path = running.path();
    let file = File::open("/dev/null").unwrap();
    let refused = |bytes: &[u8], descriptors: &[BorrowedFd<'_>], why: Refusal| {
        let socket = greeted(&path);
        say(&socket, bytes, descriptors);
        assert_eq!(reply(&socket), Some(Reply::Refused(why)), "{bytes:?}");
    };
    let segment = |region, bytes| Request::Segment { region, bytes }.encode();
    let one = Arena::create("one", 4096).unwrap();
    refused(segment(1, 4096).as_slice(), &[], Refusal::Protocol);
    refused(segment(1, 4096).as_slice(), &[one.fd(), one.fd()], Refusal::Protocol);
    refused(segment(1, 4096).as_slice(), &[one.fd(); 8], Refusal::Protocol);
    refused(segment(1, 8192).as_slice(), &[one.fd()], Refusal::Region);
    refused(segment(1, 4096).as_slice(), &[file.as_fd()], Refusal::Region);
    refused(segment(0, 4096).as_slice(), &[one.fd()], Refusal::RegionLimit);
    refused(segment(65, 4096).as_slice(), &[one.fd()], Refusal::RegionLimit);
    let large = Arena::create("large", 2 << 20).unwrap();
    refused(segment(1, 2 << 20).as_slice(), &[large.fd()], Refusal::RegionLimit);
    let unsealed = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&unsealed, 4096).unwrap();
    refused(segment(1, 4096).as_slice(), &[unsealed.as_fd()], Refusal::Region);
    refused(Request::hello(Class::Normal).encode().as_slice(), &[], Refusal::Protocol);
    let queue = Request::Queue.encode();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    refused(queue.as_slice(), &[bell.as_fd()], Refusal::Protocol);
    refused(queue.as_slice(), &[one.fd(), one.fd()], Refusal::Doorbell);
    refused(queue.as_slice(), &[one.fd(), file.as_fd()], Refusal::Doorbell);
    refused(queue.as_slice(), &[one.fd(), bell.as_fd()], Refusal::Queue);
    refused(queue.as_slice(), &[bell.as_fd(), bell.as_fd()], Refusal::Queue);
    let version = raw(&path);
    say(&version, Request::Hello { version: 3, class: Class::Normal }.encode().as_slice(), &[]);
    assert_eq!(reply(&version), Some(Reply::Refused(Refusal::Version)));
    assert_eq!(reply(&version), None);
    assert!(running.connect().is_served(), "others are served");
}

#[test]
fn regions_and_clients_have_limits() {
    let running = Running::start(|config| {
        config.regions_max = 3;
        config.clients_max = 2;
    });
    let first = running.connect();
    for _ in 0..3 {
        first.memory(4096).unwrap();
    }
    assert!(matches!(first.memory(4096), Err(RemoteError::Regions(3))));
    let second = running.connect();
    let full = Remote::connect(&running.path());
    assert!(matches!(full, Err(RemoteError::Refused(Refusal::Full))), "{full:?}");
    drop(second);
    eventually("there is room again", || Remote::connect(&running.path()).is_ok());
    let strict = Options { slots: 17, ..Options::default() };
    let wrong = Remote::connect_with(&running.path(), &strict);
    assert!(
        matches!(wrong, Err(RemoteError::Layout(_) | RemoteError::Refused(Refusal::Full))),
        "{wrong:?}"
    );
    assert!(first.is_served());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn random_messages_end_in_a_refusal_or_an_answer(
        scripts in prop::collection::vec(
            prop::collection::vec(
                (0u8..6, prop::collection::vec(any::<u8>(), 1..50), 0usize..4),
                1..6,
            ),
            1..20,
        ),
    ) {
        let running = Running::start(|_| {});
        let one = Arena::create("one", 4096).unwrap();
        for script in scripts {
            let socket = raw(&running.path());
            say(&socket, Request::hello(Class::Normal).encode().as_slice(), &[]);
            for (kind, mut bytes, descriptors) in script {
                if kind < 4 {
                    bytes[0] = kind;
                }
                say(&socket, &bytes, &vec![one.fd(); descriptors]);
            }
        }
        let remote = running.connect();
        prop_assert!(remote.memory(4096).is_ok());
    }
}

#[test]
fn a_client_without_shared_memory_copies_synchronously() {
    let running = Running::start(|_| {});
    let copier = Copier::new(running.connect());
    let source = vec![1u8; 1 << 20];
    let mut destination = vec![0u8; 1 << 20];
    let copied: Result<(), CopyError> =
        copier.scope(|scope| scope.queue(&source, &mut destination).sync(0..1 << 20).map(|_| ()));
    copied.unwrap();
    assert_eq!(destination, source);
    assert_eq!(copier.stats().read().queued, 0);
}

#[test]
fn ranges_that_overlap_are_refused_before_a_daemon_sees_them() {
    let running = Running::start(|_| {});
    let remote = running.connect();
    let mut memory = remote.memory(1 << 20).unwrap();
    let copier = Copier::new(remote);
    let base = memory.as_mut_ptr();
    let refused = Err(CopyError::Failed(TaskFailure::Refused));
    // SAFETY: the ranges overlap on purpose: nothing is copied.
    let bad = unsafe { copier.submit(base.add(100), base, 4000, &QUEUED) };
    assert!(bad.has_failed_at_once());
    assert_eq!(copier.sync_range(base.addr() + 100, 4000), refused);
    assert_eq!(copier.sync_range(base.addr() + 100, 4000), Ok(()));
    assert_eq!(copier.sync(&bad, 3999..4000), refused);
    assert_eq!(copier.sync_all(), Ok(()));
}

fn listen(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let listening = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&listening, &SocketAddrUnix::new(path).unwrap()).unwrap();
    rustix::net::listen(&listening, 1).unwrap();
    listening
}

fn welcome(version: u16) -> Reply {
    Reply::Welcome(unlade_copy::Limits {
        version,
        regions_max: 8,
        sockets_max: 0,
        pid: 1,
        region_bytes_max: 1 << 30,
        epoch: 1,
    })
}

#[test]
fn after_a_wrong_reply_the_daemon_gets_no_request_and_is_served_until_it_closes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("copyd.sock");
    let listening = listen(&path);
    let (close, closed) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let socket = rustix::net::accept(&listening).unwrap();
            let answer = |reply: Reply| say(&socket, reply.encode().as_slice(), &[]);
            loop {
                // The client says when it has no more to say.
                let Some(received) = socket::receive(socket.as_fd()).unwrap() else { break };
                match Request::decode(received.bytes()).unwrap() {
                    Request::Hello { version, .. } => answer(welcome(version)),
                    Request::Queue => answer(Reply::Served),
                    // The second one is late.
                    Request::Segment { region: 1, .. } => {
                        [3, 1].into_iter().for_each(|region| answer(Reply::Added { region }));
                    }
                    other => panic!("{other:?}"),
                }
            }
            closed.recv().unwrap();
        });
        let remote = Remote::connect(&path).unwrap();
        assert!(matches!(remote.memory(8192), Err(RemoteError::Answer)));
        let mut memory = remote.memory(8192).unwrap();
        let copier = Copier::new(remote);
        // It may be at work until it closes the connection.
        assert!(copier.is_served());
        memory[..4096].fill(7);
        let base = memory.as_mut_ptr();
        // SAFETY: the memory is not used before the sync.
        let token = unsafe { copier.submit(base.add(4096), base, 4096, &QUEUED) };
        copier.sync(&token, 0..4096).unwrap();
        assert_eq!(memory[4096..], [7; 4096]);
        assert_eq!(copier.stats().read().queued, 0, "the memory is not shared");
        close.send(()).unwrap();
        eventually("the connection is closed", || !copier.is_served());
    });
}

/// A daemon that serves one client, accepts `tasks` tasks, and dies: of each it has claimed random
/// segments, and done some of these. Returns the number of segments left claimed.
fn die_at_random(listening: &OwnedFd, tasks: u64, random: &mut Random) -> u64 {
    let socket = rustix::net::accept(listening).unwrap();
    let answer = |reply: Reply| say(&socket, reply.encode().as_slice(), &[]);
    let (mut regions, mut queue) = (Vec::new(), None);
    while queue.is_none() || regions.len() < 2 {
        let mut received = socket::receive(socket.as_fd()).unwrap().unwrap();
        match Request::decode(received.bytes()).unwrap() {
            Request::Hello { version, .. } => answer(welcome(version)),
            Request::Segment { region, .. } => {
                regions.push(Arena::attach(received.descriptors.pop().unwrap()).unwrap());
                answer(Reply::Added { region });
            }
            Request::Queue => {
                let memory = Arena::attach(received.descriptors.swap_remove(0)).unwrap();
                queue = Some(Queue::attach(Memory::from(memory)).unwrap());
                answer(Reply::Served);
            }
            other => panic!("{other:?}"),
        }
    }
    let queue = queue.unwrap();
    (0..tasks)
        .map(|number| {
            let ticket = unlade_shm::Ticket(number);
            eventually("the task comes", || queue.peek(ticket).is_some());
            let task = queue.peek(ticket).unwrap().unwrap();
            let progress = queue.progress(ticket);
            let claimed = progress.claim(random.next() as u32 & task.bits());
            let done = claimed & random.next() as u32;
            let place = |region: u16, at: u64| {
                regions[usize::from(region) - 1].as_ptr().wrapping_add(at as usize)
            };
            for run in unlade_shm::segment::runs(done) {
                let bytes = unlade_shm::segment::bytes_of(run, task.len_bytes, task.granule_shift);
                let (dst, src) =
                    (place(task.dst_region, task.dst), place(task.src_region, task.src));
                // SAFETY: the client is the test's own and honest; it waits meanwhile.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        src.add(bytes.start as usize),
                        dst.add(bytes.start as usize),
                        (bytes.end - bytes.start) as usize,
                    );
                }
            }
            progress.finish(done);
            if done == task.bits() && task.flags.contains(Flags::HANDLER) && progress.handler_due()
            {
                queue.push_handler(ticket).unwrap();
            }
            u64::from((claimed & !done).count_ones())
        })
        .sum()
}

static DUE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_due(argument: usize) {
    DUE.fetch_add(argument, Ordering::SeqCst);
}

#[test]
fn what_a_killed_daemon_had_claimed_is_taken_back_and_done_once() {
    const TASKS: usize = 100;
    let mut random = Random::new(seed());
    for _ in 0..20 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("copyd.sock");
        let listening = listen(&path);
        let mut daemons = Random::new(random.next());
        DUE.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let daemon = scope.spawn(move || die_at_random(&listening, TASKS as u64, &mut daemons));
            let remote = Remote::connect(&path).unwrap();
            let (mut source, mut end) =
                (remote.memory(1 << 20).unwrap(), remote.memory(1 << 20).unwrap());
            source.iter_mut().for_each(|byte| *byte = random.next() as u8);
            let copier = Copier::new(remote);
            let options =
                CopyOptions { handler: Some((count_due as *const () as usize, 1)), ..QUEUED };
            for part in 0..TASKS {
                let (at, len) = (part * 10_000, 1 + (random.next() % 10_000) as usize);
                let (dst, src) = (end[at..].as_mut_ptr(), source[at..].as_ptr());
                // SAFETY: neither buffer is accessed before all are synced.
                let _ = unsafe { copier.submit(dst, src, len, &options) };
                // Bytes that are not copied are equal in source and destination.
                end[at + len..at + 10_000].copy_from_slice(&source[at + len..at + 10_000]);
            }
            let claimed = daemon.join().unwrap();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| copier.sync_all().unwrap());
                }
            });
            let all = TASKS * 10_000;
            assert!(source[..all] == end[..all]);
            copier.run_handlers();
            assert_eq!(DUE.load(Ordering::SeqCst), TASKS);
            assert!(claimed > 0);
            assert_eq!(copier.remote().unwrap().taken_back(), claimed);
        });
    }
}
