//! Receives and sends that a daemon makes at sockets that were passed to it: the bytes are those of
//! recv(2) and send(2), also if the daemon is killed, and a client that lies harms nobody else.
//!
//! `UNLADE_KILL_ROUNDS` is the number of kills; `UNLADE_SEED` repeats a failed seed.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use unlade_copy::{
    Class, Copier, CopyError, CopyOptions, Refusal, Remote, RemoteError, SharedMemory, TaskFailure,
};
use unlade_copy_service::daemon::message::{Reply, Request};
use unlade_copy_service::daemon::{Daemon, DaemonConfig, socket};
use unlade_shm::{Arena, Kind, Memory, Queue, Task, Ticket};
use unlade_sys::stream::sent_bytes;
use unlade_testkit::{Random, seed, setting};

/// Variable with a directory, which turns this test binary into a daemon.
const DAEMON: &str = "UNLADE_PASSED_DAEMON";
/// Longest wait for something that happens for certain.
const PATIENCE: Duration = Duration::from_secs(120);
const QUEUED: CopyOptions = CopyOptions { lazy_us: None, queued: true, handler: None, site: 0 };
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const MEMORY_BYTES: usize = 1 << 20;

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

fn config(directory: &Path) -> DaemonConfig {
    DaemonConfig {
        socket: directory.join("copyd.sock"),
        admin: Some("127.0.0.1:0".parse().unwrap()),
        ..DaemonConfig::default()
    }
}

/// A daemon on a thread of this process.
struct Running {
    stop: Box<dyn Fn() + Send>,
    thread: Option<JoinHandle<()>>,
    admin: std::net::SocketAddr,
    directory: tempfile::TempDir,
}

impl Running {
    fn start(change: impl FnOnce(&mut DaemonConfig)) -> Running {
        let directory = tempfile::tempdir().unwrap();
        let mut config = config(directory.path());
        change(&mut config);
        let daemon = Daemon::bind(config.clone()).unwrap();
        let (control, admin) = (daemon.control(), daemon.admin().unwrap());
        let thread = std::thread::spawn(move || {
            daemon.run(false, move || Ok(config.clone())).unwrap();
        });
        let stop = Box::new(move || control.drain());
        Running { stop, thread: Some(thread), admin, directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("copyd.sock")
    }

    fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.admin).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).trim().parse().unwrap()
    }

    /// Ends the daemon as SIGTERM does.
    fn end(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

/// A daemon in a process of its own, killed on drop.
struct Process {
    child: Child,
    directory: tempfile::TempDir,
}

impl Process {
    fn start() -> Process {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "daemon_process", "--nocapture"]).env(DAEMON, directory.path());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let process = Process { child, directory };
        eventually("the daemon listens", || Remote::connect(&process.path()).is_ok());
        process
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("copyd.sock")
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The daemon process that tests kill; not a test of its own.
#[test]
fn daemon_process() {
    let Some(directory) = std::env::var_os(DAEMON) else { return };
    let config = config(Path::new(&directory));
    // The parent's end closes nothing here, so look for it.
    let parent = std::os::unix::process::parent_id();
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(Duration::from_millis(100));
        }
        std::process::exit(0);
    });
    let daemon = Daemon::bind(config.clone()).unwrap();
    daemon.run(false, move || Ok(config.clone())).unwrap();
}

/// Returns true if the socket accepts bytes now.
fn is_writable(socket: &TcpStream) -> bool {
    let mut polled = [PollFd::new(socket, PollFlags::OUT)];
    poll(&mut polled, Some(&NOW)).unwrap() == 1
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

/// The byte of a stream at this position.
fn byte(at: usize) -> u8 {
    (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0]
}

fn bytes(from: usize, len: usize) -> Vec<u8> {
    (from..from + len).map(byte).collect()
}

/// A client with a passed socket, and the positions of its streams.
struct Client {
    copier: Copier,
    memory: SharedMemory,
    socket: TcpStream,
    received: usize,
    sent: usize,
}

impl Client {
    fn connect(path: &Path, socket: TcpStream) -> Client {
        let remote = Remote::connect(path).unwrap();
        let memory = remote.memory(2 * MEMORY_BYTES).unwrap();
        let copier = Copier::new(remote);
        copier.pass_socket(socket.as_fd()).unwrap();
        Client { copier, memory, socket, received: 0, sent: 0 }
    }

    /// Receives a random number of messages, with up to four receives pending, and compares.
    fn receive(&mut self, random: &mut Random, until: usize) {
        let base = self.memory.as_mut_ptr();
        let mut pending = Vec::new();
        let mut room = 0;
        for _ in 0..1 + random.below(4_usize) {
            let most = 1 + random.below(MEMORY_BYTES / 4).min(until - self.received - 1);
            // SAFETY: the memory is not used before all receives are synced below.
            let received =
                unsafe { self.copier.receive(self.socket.as_fd(), base.add(room), most, &QUEUED) };
            let (count, token) = received.unwrap();
            assert!(count > 0, "the stream ended at {}", self.received);
            pending.push((room, count, token, self.received));
            room += MEMORY_BYTES / 4;
            self.received += count;
            if self.received == until {
                break;
            }
        }
        for (room, count, token, from) in pending {
            // A part first, as a parser does.
            self.copier.sync(&token, 0..count.min(100)).unwrap();
            self.copier.sync(&token, 0..count).unwrap();
            assert!(self.memory[room..room + count] == bytes(from, count), "from {from}");
        }
    }

    fn send(&mut self, random: &mut Random, until: usize) {
        let mut tokens = Vec::new();
        for at in 0..1 + random.below(4_usize) {
            let len = (1 + random.below(MEMORY_BYTES / 4)).min(until - self.sent);
            let room = MEMORY_BYTES + at * MEMORY_BYTES / 4;
            self.memory[room..room + len].copy_from_slice(&bytes(self.sent, len));
            let from = self.memory[room..].as_ptr();
            // SAFETY: the memory is not changed before all sends are synced below.
            let token = unsafe { self.copier.send(self.socket.as_fd(), from, len, &QUEUED) };
            tokens.push((len, token.unwrap()));
            self.sent += len;
            if self.sent == until {
                break;
            }
        }
        for (len, token) in tokens {
            self.copier.sync(&token, 0..len).unwrap();
        }
    }
}

/// A peer that sends and receives `len` bytes in random pieces, and compares.
fn peer(socket: TcpStream, len: usize, number: u64) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut reader = socket.try_clone().unwrap();
        let reads = std::thread::spawn(move || {
            let mut random = Random::new(number);
            let mut at = 0;
            let mut buffer = vec![0; MEMORY_BYTES];
            while at < len {
                let most = 1 + random.below(MEMORY_BYTES);
                let count = reader.read(&mut buffer[..most]).unwrap();
                assert!(count > 0, "the stream ended at {at}");
                assert!(buffer[..count] == bytes(at, count), "from {at}");
                at += count;
            }
            assert_eq!(at, len);
        });
        let mut random = Random::new(number + 1);
        let mut at = 0;
        while at < len {
            let count = (1 + random.below(MEMORY_BYTES / 2)).min(len - at);
            (&socket).write_all(&bytes(at, count)).unwrap();
            at += count;
        }
        reads.join().unwrap();
    })
}

/// Moves `len` bytes in each direction, with what the oracle of a plain peer sends and expects.
fn exchange(client: &mut Client, len: usize, random: &mut Random) {
    while client.received < len || client.sent < len {
        let is_send = random.chance(1, 2);
        if client.received < len && (!is_send || client.sent == len) {
            client.receive(random, len);
        } else {
            client.send(random, len);
        }
    }
}

#[test]
fn random_messages_are_those_of_recv_and_send() {
    let running = Running::start(|_| {});
    let mut random = Random::new(seed());
    for _ in 0..4 {
        let (socket, other) = pair();
        let len = 4 * MEMORY_BYTES + random.below(MEMORY_BYTES);
        let peer = peer(other, len, random.next());
        let mut client = Client::connect(&running.path(), socket);
        exchange(&mut client, len, &mut random);
        assert!(client.copier.stats().read().queued > 0);
        client.copier.forget_socket(client.socket.as_fd()).unwrap();
        peer.join().unwrap();
    }
    // A waiter helps with receives, never with sends.
    assert!(running.metric("unlade_copyd_socket_bytes_total") >= 4 * MEMORY_BYTES as u64);
}

#[test]
fn a_daemon_that_is_killed_loses_and_doubles_no_byte() {
    let mut random = Random::new(seed());
    let mut stranded = 0;
    for _ in 0..setting("UNLADE_KILL_ROUNDS").unwrap_or(25) {
        let mut process = Process::start();
        let (socket, other) = pair();
        let len = 8 * MEMORY_BYTES + random.below(MEMORY_BYTES);
        let peer = peer(other, len, random.next());
        let mut client = Client::connect(&process.path(), socket);
        let delay = Duration::from_micros(random.below(15_000));
        let killer = std::thread::spawn(move || {
            // A random moment of the transfers.
            std::thread::sleep(delay);
            process.kill();
        });
        exchange(&mut client, len, &mut random);
        peer.join().unwrap();
        killer.join().unwrap();
        eventually("the daemon is gone", || !client.copier.is_served());
        assert_eq!(client.copier.sync_all(), Ok(()));
        stranded += client.copier.remote().unwrap().taken_back();
    }
    println!("{stranded} segments were taken back");
}

/// Sends more than both sockets hold to a peer that does not read, so that the daemon waits with a part
/// sent; then calls `end`, and compares what the peer gets. Returns the number of segments that the
/// daemon left.
fn end_within_a_send(path: &Path, end: impl FnOnce()) -> u64 {
    let (socket, other) = pair();
    let mut client = Client::connect(path, socket);
    // Dropped before the client, which waits for its sends.
    let mut other = other;
    let len = 2 * MEMORY_BYTES;
    client.memory.copy_from_slice(&bytes(0, len));
    let base = sent_bytes(&client.socket).unwrap().unwrap();
    let mut tokens = Vec::new();
    for _ in 0..4 {
        for at in [0, MEMORY_BYTES] {
            let from = client.memory[at..].as_ptr();
            // SAFETY: the memory is not changed before the sends are synced below.
            let token =
                unsafe { client.copier.send(client.socket.as_fd(), from, MEMORY_BYTES, &QUEUED) };
            tokens.push(token.unwrap());
        }
    }
    client.copier.ring();
    // In the middle of a task, so the daemon has claimed the rest of it.
    let sent = || (sent_bytes(&client.socket).unwrap().unwrap() - base) as usize;
    eventually("the daemon waits within a send", || {
        !is_writable(&client.socket) && !sent().is_multiple_of(MEMORY_BYTES)
    });
    end();
    let peer = std::thread::spawn(move || {
        let mut all = vec![0; 4 * len];
        other.read_exact(&mut all).unwrap();
        all
    });
    for token in tokens {
        client.copier.sync(&token, 0..MEMORY_BYTES).unwrap();
    }
    let expected = bytes(0, len);
    assert!(peer.join().unwrap().chunks(len).all(|part| part == expected));
    client.copier.remote().unwrap().taken_back()
}

#[test]
fn a_send_goes_on_where_a_daemon_has_left_it() {
    let mut running = Running::start(|_| {});
    let left = end_within_a_send(&running.path(), || running.end());
    assert!(left > 0, "a daemon that ends in order leaves a send undone");
    let mut process = Process::start();
    let left = end_within_a_send(&process.path(), || process.kill());
    assert!(left > 0, "a killed daemon leaves a send undone");
}

#[test]
fn an_aborted_send_ends_and_the_next_ones_have_no_wrong_position() {
    let running = Running::start(|_| {});
    let (socket, other) = pair();
    let client = Client::connect(&running.path(), socket);
    let _other = other;
    let send = || {
        let from = client.memory.as_ptr();
        // SAFETY: the memory is not changed.
        unsafe { client.copier.send(client.socket.as_fd(), from, MEMORY_BYTES, &QUEUED) }.unwrap()
    };
    // The peer does not read, so some of these stay.
    let tokens: Vec<_> = (0..16).map(|_| send()).collect();
    client.copier.ring();
    eventually("the daemon sends", || running.metric("unlade_copyd_socket_bytes_total") > 0);
    for token in tokens.iter().rev() {
        client.copier.abort(token);
    }
    assert!(client.copier.is_ready(&tokens[15], 0..MEMORY_BYTES));
    client.copier.forget_socket(client.socket.as_fd()).unwrap();
    assert_eq!(running.metric("unlade_copyd_sockets"), 0);
}

#[test]
fn the_daemon_holds_a_connection_until_it_is_forgotten_or_shut_down() {
    let running = Running::start(|_| {});
    let (socket, mut other) = pair();
    let client = Client::connect(&running.path(), socket);
    assert_eq!(running.metric("unlade_copyd_sockets"), 1);
    client.copier.pass_socket(client.socket.as_fd()).unwrap();
    assert_eq!(running.metric("unlade_copyd_sockets"), 1, "it is passed once");
    client.copier.forget_socket(client.socket.as_fd()).unwrap();
    client.copier.forget_socket(client.socket.as_fd()).unwrap();
    let Client { copier, socket, .. } = client;
    drop(socket);
    assert_eq!(other.read(&mut [0; 8]).unwrap(), 0, "closed after the forget");
    // A shutdown ends the connection though the daemon holds it.
    let (socket, mut other) = pair();
    copier.pass_socket(socket.as_fd()).unwrap();
    socket.shutdown(Shutdown::Both).unwrap();
    assert_eq!(other.read(&mut [0; 8]).unwrap(), 0);
    drop(socket);
    // The number of a closed descriptor may come back for another socket.
    let (again, mut peer) = pair();
    peer.write_all(&bytes(0, 1000)).unwrap();
    let mut memory = copier.remote().unwrap().memory(4096).unwrap();
    copier.pass_socket(again.as_fd()).unwrap();
    // SAFETY: the memory is not used before the sync.
    let received = unsafe { copier.receive(again.as_fd(), memory.as_mut_ptr(), 1000, &QUEUED) };
    let (count, token) = received.unwrap();
    copier.sync(&token, 0..count).unwrap();
    assert_eq!(memory[..count], bytes(0, count));
    // The end of the client closes what it has not forgotten.
    drop((copier, again));
    assert_eq!(peer.read(&mut [0; 8]).unwrap(), 0);
    eventually("all is closed", || running.metric("unlade_copyd_sockets") == 0);
}

#[test]
fn a_reset_is_an_error_of_the_task() {
    let running = Running::start(|_| {});
    let (socket, other) = pair();
    let client = Client::connect(&running.path(), socket);
    let other = other;
    let from = client.memory.as_ptr();
    let tokens: Vec<_> = (0..16)
        // SAFETY: the memory is not changed.
        .map(|_| unsafe { client.copier.send(client.socket.as_fd(), from, MEMORY_BYTES, &QUEUED) })
        .collect();
    client.copier.ring();
    eventually("the daemon sends", || running.metric("unlade_copyd_socket_bytes_total") > 0);
    // Unread bytes make the close a reset.
    drop(other);
    let last = client.copier.sync(tokens[15].as_ref().unwrap(), 0..MEMORY_BYTES);
    assert!(matches!(last, Err(CopyError::Failed(TaskFailure::Socket(_)))), "{last:?}");
}

#[test]
fn a_descriptor_of_another_kind_is_refused_and_the_client_goes_on() {
    let running = Running::start(|config| config.sockets_max = 2);
    let copier = Copier::new(Remote::connect(&running.path()).unwrap());
    let refused = |fd: BorrowedFd<'_>| match copier.pass_socket(fd) {
        Err(RemoteError::Refused(why)) => why,
        other => panic!("{other:?}"),
    };
    let (unix, _other) = UnixStream::pair().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let file = tempfile::tempfile().unwrap();
    let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let all = [unix.as_fd(), listener.as_fd(), datagrams.as_fd(), file.as_fd(), event.as_fd()];
    for fd in all {
        assert_eq!(refused(fd), Refusal::Socket);
    }
    let pairs: Vec<_> = (0..3).map(|_| pair()).collect();
    copier.pass_socket(pairs[0].0.as_fd()).unwrap();
    copier.pass_socket(pairs[1].0.as_fd()).unwrap();
    assert_eq!(refused(pairs[2].0.as_fd()), Refusal::SocketLimit);
    copier.forget_socket(pairs[0].0.as_fd()).unwrap();
    copier.pass_socket(pairs[2].0.as_fd()).unwrap();
    assert!(copier.is_served());
    assert_eq!(running.metric("unlade_copyd_refused_total"), 6);
}

/// A client that writes its messages and lines itself.
struct Hostile {
    socket: OwnedFd,
    queue: Queue,
    bell: OwnedFd,
}

impl Hostile {
    fn attach(path: &Path) -> Hostile {
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
        let arena = Arena::create("hostile", Queue::bytes_for(64).unwrap()).unwrap();
        let queue = Queue::create(Memory::from(arena), 64).unwrap();
        let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let hostile = Hostile { socket, queue, bell };
        let hello = hostile.ask(&Request::hello(Class::Normal), &[]);
        assert!(matches!(hello, Some(Reply::Welcome(_))), "{hello:?}");
        let region = Arena::create("own", MEMORY_BYTES).unwrap();
        let segment = Request::Segment { region: 1, bytes: MEMORY_BYTES as u64 };
        assert_eq!(hostile.ask(&segment, &[region.fd()]), Some(Reply::Added { region: 1 }));
        let memory = hostile.queue.memory().fd().unwrap();
        let served = hostile.ask(&Request::Queue, &[memory, hostile.bell.as_fd()]);
        assert_eq!(served, Some(Reply::Served));
        hostile
    }

    fn ask(&self, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Option<Reply> {
        socket::send(self.socket.as_fd(), request.encode().as_slice(), descriptors).unwrap();
        let received = socket::receive(self.socket.as_fd()).ok()??;
        Some(Reply::decode(received.bytes()).unwrap())
    }

    fn submit(&self, task: &Task) -> Ticket {
        let ticket = self.queue.try_acquire().unwrap();
        self.queue.publish(ticket, task);
        self.queue.doorbell().ring();
        rustix::io::write(&self.bell, &1u64.to_ne_bytes()).unwrap();
        ticket
    }

    fn end_of(&self, task: &Task) -> Option<u16> {
        let progress = self.queue.progress(self.submit(task));
        let mut error = None;
        eventually("the task ends", || {
            error = progress.error().or(error);
            progress.is_done(task.bits())
        });
        progress.error().or(error).map(std::num::NonZeroU16::get)
    }
}

fn receive_at(fd: i32, region: u16, dst: u64, len: u32) -> Task {
    Task { kind: Kind::Receive, fd, dst_region: region, ..Task::copy(dst, 0, len) }
}

fn send_at(fd: i32, region: u16, src: u64, len: u32) -> Task {
    Task { kind: Kind::Send, fd, src_region: region, ..Task::copy(0, src, len) }
}

/// A neighbour that is served by the daemon.
fn is_served(path: &Path) {
    let remote = Remote::connect(path).unwrap();
    let (mut source, mut destination) =
        (remote.memory(MEMORY_BYTES).unwrap(), remote.memory(MEMORY_BYTES).unwrap());
    source.copy_from_slice(&bytes(0, MEMORY_BYTES));
    let copier = Copier::new(remote);
    copier.scope(|scope| {
        let copy = scope.queue(&source, &mut destination);
        copier.ring();
        // Nobody helps: the daemon copies all.
        eventually("the neighbour is served", || copy.is_ready(0..MEMORY_BYTES));
    });
    assert!(source[..] == destination[..]);
}

#[test]
fn tasks_that_lie_are_refused_and_those_that_wait_delay_nobody() {
    let running = Running::start(|_| {});
    let hostile = Hostile::attach(&running.path());
    let refused = Some(TaskFailure::Refused.code().get());
    // Both ends in blocking mode, and nothing to receive.
    let (socket, mut other) = pair();
    let passed = hostile.ask(&Request::Socket { socket: 3 }, &[socket.as_fd()]);
    assert_eq!(passed, Some(Reply::Passed { socket: 3 }));
    let again = hostile.ask(&Request::Socket { socket: 3 }, &[socket.as_fd()]);
    assert_eq!(again, Some(Reply::Refused(Refusal::SocketLimit)));
    let none = hostile.ask(&Request::Socket { socket: 0 }, &[socket.as_fd()]);
    assert_eq!(none, Some(Reply::Refused(Refusal::SocketLimit)));
    for bad in [
        receive_at(4, 1, 0, 100),
        receive_at(0, 1, 0, 100),
        receive_at(-1, 1, 0, 100),
        receive_at(i32::MAX, 1, 0, 100),
        receive_at(3, 2, 0, 100),
        receive_at(3, 0, 0, 100),
        receive_at(3, 1, MEMORY_BYTES as u64 - 99, 100),
        send_at(1, 1, 0, 100),
        send_at(3, 1, u64::MAX - 10, 100),
        send_at(3, 7, 0, 100),
        Task { kind: Kind::Forward, extra: 3, ..receive_at(3, 1, 0, 100) },
    ] {
        assert_eq!(hostile.end_of(&bad), refused, "{bad:?}");
    }
    // More than there can be at sockets, in both directions.
    let waiting: Vec<_> = (0..40).map(|_| hostile.submit(&receive_at(3, 1, 0, 1000))).collect();
    is_served(&running.path());
    other.write_all(&[7; 500]).unwrap();
    is_served(&running.path());
    assert!(!hostile.queue.progress(waiting[0]).is_done(1), "half of it has come");
    // It forgets a socket with tasks, and names it again.
    let forgotten = hostile.ask(&Request::Forget { socket: 3 }, &[]);
    assert_eq!(forgotten, Some(Reply::Forgotten { socket: 3 }));
    assert_eq!(hostile.end_of(&receive_at(3, 1, 0, 100)), refused);
    is_served(&running.path());
    assert_eq!(
        hostile.ask(&Request::Forget { socket: 3 }, &[]),
        Some(Reply::Refused(Refusal::Protocol))
    );
    drop((hostile, socket));
    assert_eq!(other.read(&mut [0; 8]).unwrap_or(0), 0, "all descriptors are closed");
    eventually("its tasks are dropped", || running.metric("unlade_copyd_clients") == 0);
    is_served(&running.path());
}

/// Memory of one page whose faults wait until the value is dropped.
struct Missing {
    faults: OwnedFd,
    address: usize,
}

impl Missing {
    const BYTES: usize = 4096;

    /// `Err` with the reason if this process may not.
    fn create() -> Result<Missing, String> {
        let faults = unlade_sys::fault::userfaultfd(unlade_sys::fault::Faults::All);
        let faults = faults.map_err(|error| format!("userfaultfd: {error}"))?;
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let page =
            unsafe { libc::mmap(std::ptr::null_mut(), Missing::BYTES, protection, flags, -1, 0) };
        assert_ne!(page, libc::MAP_FAILED);
        // Version, features, calls; then start, length, mode (missing pages), calls.
        let mut api = [0xaa_u64, 0, 0];
        let mut register = [page as u64, Missing::BYTES as u64, 1, 0];
        let fd = std::os::fd::AsRawFd::as_raw_fd(&faults);
        // SAFETY: both calls read and write structures of this size; the range is the mapping.
        let made = unsafe {
            libc::ioctl(fd, 0xc018_aa3f, api.as_mut_ptr()) == 0
                && libc::ioctl(fd, 0xc020_aa00, register.as_mut_ptr()) == 0
        };
        match made {
            true => Ok(Missing { faults, address: page as usize }),
            false => Err(format!("userfaultfd: {}", std::io::Error::last_os_error())),
        }
    }

    /// Returns true if a thread waits for the page.
    fn is_awaited(&self) -> bool {
        let mut polled = [PollFd::new(&self.faults, PollFlags::IN)];
        poll(&mut polled, Some(&NOW)).unwrap() == 1
    }
}

#[test]
fn a_client_that_holds_the_lock_of_its_socket_delays_nobody() {
    let missing = match Missing::create() {
        Ok(missing) => missing,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let running = Running::start(|_| {});
    let hostile = Hostile::attach(&running.path());
    let (socket, mut other) = pair();
    let passed = hostile.ask(&Request::Socket { socket: 1 }, &[socket.as_fd()]);
    assert_eq!(passed, Some(Reply::Passed { socket: 1 }));
    other.write_all(&bytes(0, 8000)).unwrap();
    let (own, address) = (socket.try_clone().unwrap(), missing.address);
    let holder = std::thread::spawn(move || {
        let fd = std::os::fd::AsRawFd::as_raw_fd(&own);
        // SAFETY: the page is mapped and used by nobody else.
        unsafe { libc::recv(fd, address as *mut libc::c_void, Missing::BYTES, 0) }
    });
    eventually("the client's own receive faults, with the lock", || missing.is_awaited());
    let task = hostile.submit(&receive_at(1, 1, 0, 1000));
    is_served(&running.path());
    // The control thread answers, also this client.
    let (second, _peer) = pair();
    let passed = hostile.ask(&Request::Socket { socket: 2 }, &[second.as_fd()]);
    assert_eq!(passed, Some(Reply::Passed { socket: 2 }));
    assert_eq!(
        hostile.ask(&Request::Forget { socket: 1 }, &[]),
        Some(Reply::Forgotten { socket: 1 })
    );
    assert!(!hostile.queue.progress(task).is_done(1));
    // The daemon closes what else this client gives up.
    for _ in 0..1000 {
        let asked = hostile.ask(&Request::Socket { socket: 0 }, &[second.as_fd()]);
        assert_eq!(asked, Some(Reply::Refused(Refusal::SocketLimit)));
    }
    drop(hostile);
    eventually("the session ends", || running.metric("unlade_copyd_clients") == 0);
    is_served(&running.path());
    drop(missing);
    assert_eq!(holder.join().unwrap(), Missing::BYTES as isize);
    is_served(&running.path());
}
