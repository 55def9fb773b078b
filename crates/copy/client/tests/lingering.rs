//! Clients that pass descriptors whose close waits: the daemon serves the others meanwhile.
//!
//! The descriptor is a full TCP socket with SO_LINGER, of which the daemon gets the last reference: the
//! messages are sent before it runs, and the client closes its own descriptor.

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::sockopt::{
    Timeout, set_socket_linger, set_socket_recv_buffer_size, set_socket_timeout,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket_with,
};
use unlade_copy::{Class, Copier, Refusal, Remote, RemoteError};
use unlade_copy_service::daemon::message::{Reply, Request};
use unlade_copy_service::daemon::{Daemon, DaemonConfig, socket};
use unlade_shm::{Arena, Memory, Queue};
use unlade_sys::sockopt::unacknowledged_bytes;

/// Longest wait for something that happens for certain.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than any test.
const LINGER: Duration = Duration::from_secs(3600);
const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
const REGION_BYTES: usize = 1 << 20;
/// More descriptors in a message than the daemon receives.
const TOO_MANY: usize = 20;
/// Number of refused connections that the daemon closes at a time.
const TURNED_AWAY_MAX: usize = 64;

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// A daemon that is bound, and then runs on a thread of this process.
struct Running {
    daemon: Option<(Daemon, DaemonConfig)>,
    stop: Box<dyn Fn() + Send>,
    thread: Option<JoinHandle<()>>,
    admin: SocketAddr,
    directory: tempfile::TempDir,
}

impl Running {
    /// Clients can connect and send already.
    fn bind(change: impl FnOnce(&mut DaemonConfig)) -> Running {
        let directory = tempfile::tempdir().unwrap();
        let mut config = DaemonConfig {
            socket: directory.path().join("copyd.sock"),
            admin: Some("127.0.0.1:0".parse().unwrap()),
            ..DaemonConfig::default()
        };
        change(&mut config);
        let daemon = Daemon::bind(config.clone()).unwrap();
        let (control, admin) = (daemon.control(), daemon.admin().unwrap());
        let stop = Box::new(move || control.drain());
        Running { daemon: Some((daemon, config)), stop, thread: None, admin, directory }
    }

    fn run(&mut self) {
        let (daemon, config) = self.daemon.take().unwrap();
        self.thread = Some(std::thread::spawn(move || {
            daemon.run(false, move || Ok(config.clone())).unwrap();
        }));
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

    fn closing(&self) -> u64 {
        self.metric("unlade_copyd_closing")
    }

    /// A close lingers, and another client is served meanwhile.
    fn serves_while_closing(&self, name: &str, close: &Lingering) {
        eventually(&format!("{name}: the daemon closes"), || close.is_closing());
        is_served(&self.path());
        assert!(close.is_closing(), "{name}");
        assert!(self.closing() > 0, "{name}: the close lingers");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        (self.stop)();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

/// The peer and the addresses of a socket whose close lingers until this value is dropped.
struct Lingering {
    _peer: TcpStream,
    near: SocketAddr,
    far: SocketAddr,
}

/// A full socket with SO_LINGER. Its peer has room for a part of what is written to it.
fn lingering() -> (OwnedFd, Lingering) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    set_socket_recv_buffer_size(&listener, 1024).unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let peer = listener.accept().unwrap().0;
    set_socket_linger(&socket, Some(LINGER)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let full = loop {
        if let Err(error) = socket.write(&[1; 64 << 10]) {
            break error;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    assert!(unacknowledged_bytes(&socket).unwrap() > 0);
    let (near, far) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
    (socket.into(), Lingering { _peer: peer, near, far })
}

impl Lingering {
    /// Returns true if the last reference is closed, with bytes left to send.
    fn is_closing(&self) -> bool {
        const FIN_WAIT1: &str = "04";
        let loopback = u32::from_le_bytes([127, 0, 0, 1]);
        let address = |address: SocketAddr| format!("{loopback:08X}:{:04X}", address.port());
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let ends = [address(self.near), address(self.far)];
        sockets.lines().any(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            fields[1..3] == ends && fields[3] == FIN_WAIT1
        })
    }
}

fn raw(path: &Path) -> OwnedFd {
    let kind = SocketType::SEQPACKET;
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    // No reply comes later than this from a daemon that is not held up.
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE)).unwrap();
    socket
}

fn say(socket: &OwnedFd, request: &Request, descriptors: &[BorrowedFd<'_>]) {
    unlade_sys::descriptors::send(socket, request.encode().as_slice(), descriptors).unwrap();
}

/// The next reply; none if the daemon has closed.
fn reply(socket: &OwnedFd) -> Option<Reply> {
    let received = socket::receive(socket.as_fd()).ok().flatten()?;
    Some(Reply::decode(received.bytes()).unwrap())
}

fn ask(socket: &OwnedFd, request: &Request, descriptors: &[BorrowedFd<'_>]) -> Option<Reply> {
    say(socket, request, descriptors);
    reply(socket)
}

/// A connection that has sent HELLO.
fn hello(path: &Path) -> OwnedFd {
    let socket = raw(path);
    say(&socket, &Request::hello(Class::Normal), &[]);
    socket
}

fn is_welcome(socket: &OwnedFd) {
    let welcome = reply(socket);
    assert!(matches!(welcome, Some(Reply::Welcome(_))), "{welcome:?}");
}

fn say_queue(socket: &OwnedFd) -> Queue {
    let arena = Arena::create("queue", Queue::bytes_for(64).unwrap()).unwrap();
    let queue = Queue::create(Memory::from(arena), 64).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    say(socket, &Request::Queue, &[queue.memory().fd().unwrap(), bell.as_fd()]);
    queue
}

/// Another client, served by the daemon.
fn is_served(path: &Path) {
    let remote = Remote::connect(path).unwrap();
    let mut source = remote.memory(REGION_BYTES).unwrap();
    let mut destination = remote.memory(REGION_BYTES).unwrap();
    source.iter_mut().enumerate().for_each(|(at, byte)| *byte = at as u8);
    let copier = Copier::new(remote);
    copier.scope(|scope| {
        let copy = scope.queue(&source, &mut destination);
        copier.ring();
        // Nobody helps: the daemon copies all.
        eventually("the copy is made", || copy.is_ready(0..REGION_BYTES));
    });
    assert!(source[..] == destination[..]);
}

const SEGMENT: Request = Request::Segment { region: 1, bytes: 4096 };

#[test]
fn a_refused_segment_that_lingers_delays_nobody() {
    let mut running = Running::bind(|_| {});
    let client = hello(&running.path());
    let (socket, close) = lingering();
    say(&client, &SEGMENT, &[socket.as_fd()]);
    drop(socket);
    running.run();
    is_welcome(&client);
    assert_eq!(reply(&client), Some(Reply::Refused(Refusal::Region)));
    running.serves_while_closing("segment", &close);
    // The client goes on, too.
    let file = Arena::create("own", 4096).unwrap();
    assert_eq!(ask(&client, &SEGMENT, &[file.fd()]), Some(Reply::Added { region: 1 }));
    drop(close);
    eventually("all is closed", || running.closing() == 0);
}

#[test]
fn a_socket_beyond_the_limit_or_forgotten_that_lingers_delays_nobody() {
    let mut running = Running::bind(|config| config.sockets_max = 1);
    let client = hello(&running.path());
    let _queue = say_queue(&client);
    let (first, first_close) = lingering();
    say(&client, &Request::Socket { socket: 1 }, &[first.as_fd()]);
    let (second, second_close) = lingering();
    say(&client, &Request::Socket { socket: 2 }, &[second.as_fd()]);
    drop((first, second));
    running.run();
    is_welcome(&client);
    assert_eq!(reply(&client), Some(Reply::Served));
    assert_eq!(reply(&client), Some(Reply::Passed { socket: 1 }), "a full socket is connected");
    assert_eq!(reply(&client), Some(Reply::Refused(Refusal::SocketLimit)));
    running.serves_while_closing("limit", &second_close);
    drop(second_close);
    eventually("it is closed", || running.closing() == 0);
    let forgotten = ask(&client, &Request::Forget { socket: 1 }, &[]);
    assert_eq!(forgotten, Some(Reply::Forgotten { socket: 1 }));
    running.serves_while_closing("forget", &first_close);
}

#[test]
fn a_message_with_wrong_descriptors_that_linger_delays_nobody() {
    let file = Arena::create("one", 4096).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let again = Request::hello(Class::Normal);
    // Letters of the descriptors: of a file, a bell, and the socket that lingers.
    for (name, request, letters, why) in [
        ("two for one", SEGMENT, "fs", Refusal::Protocol),
        ("sixteen for one", SEGMENT, "ssssssssssssssss", Refusal::Protocol),
        ("one for none", again, "s", Refusal::Protocol),
        ("a socket before the queue", Request::Socket { socket: 1 }, "s", Refusal::Protocol),
        ("no bell", Request::Queue, "fs", Refusal::Doorbell),
        ("no memory", Request::Queue, "sb", Refusal::Queue),
    ] {
        let mut running = Running::bind(|_| {});
        let client = hello(&running.path());
        let (socket, close) = lingering();
        let descriptors = letters.chars().map(|letter| match letter {
            'f' => file.fd(),
            'b' => bell.as_fd(),
            _ => socket.as_fd(),
        });
        say(&client, &request, &descriptors.collect::<Vec<_>>());
        drop(socket);
        running.run();
        is_welcome(&client);
        assert_eq!(reply(&client), Some(Reply::Refused(why)), "{name}");
        assert_eq!(reply(&client), None, "{name}: the session ends though the close lingers");
        running.serves_while_closing(name, &close);
        drop(close);
        eventually("all is closed", || running.closing() == 0);
    }
}

/// Sends a message with more descriptors than the daemon receives.
fn say_many(client: &OwnedFd, descriptor: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOO_MANY))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor; TOO_MANY];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let message = SEGMENT.encode();
    let message = [IoSlice::new(message.as_slice())];
    sendmsg(client, &message, &mut control, SendFlags::NOSIGNAL).unwrap();
}

#[test]
fn descriptors_in_the_queue_of_an_ending_session_delay_nobody() {
    // A message that the daemon leaves in the queue.
    let mut running = Running::bind(|_| {});
    let client = hello(&running.path());
    let (socket, close) = lingering();
    say_many(&client, socket.as_fd());
    drop(socket);
    running.run();
    running.serves_while_closing("too many", &close);
    drop((client, close));
    eventually("all is closed", || running.closing() == 0);
    // Messages behind one that ends the session.
    let mut running = Running::bind(|_| {});
    let client = raw(&running.path());
    let (socket, close) = lingering();
    say(&client, &Request::Queue, &[]);
    say(&client, &SEGMENT, &[socket.as_fd()]);
    say(&client, &SEGMENT, &[socket.as_fd(); 16]);
    drop(socket);
    running.run();
    running.serves_while_closing("behind", &close);
    drop((client, close));
    eventually("all is closed", || running.closing() == 0);
}

#[test]
fn a_client_whose_descriptors_pile_up_is_ended_and_counted_until_they_are_closed() {
    let mut running = Running::bind(|config| config.clients_max = 3);
    let client = hello(&running.path());
    let _queue = say_queue(&client);
    let (socket, close) = lingering();
    say(&client, &SEGMENT, &[socket.as_fd()]);
    drop(socket);
    running.run();
    is_welcome(&client);
    assert_eq!(reply(&client), Some(Reply::Served));
    assert_eq!(reply(&client), Some(Reply::Refused(Refusal::Region)));
    eventually("the daemon closes", || close.is_closing());
    let (other, _peer) = lingering();
    let region = Reply::Refused(Refusal::Region);
    let end = (0..1000).find_map(|_| {
        let answer = ask(&client, &SEGMENT, &[other.as_fd()]);
        (answer != Some(region)).then_some(answer)
    });
    assert_eq!(end, Some(Some(Reply::Refused(Refusal::Exhausted))));
    assert_eq!(reply(&client), None);
    drop(client);
    running.serves_while_closing("piled up", &close);
    let mut others = Vec::new();
    // The client of `is_served` has left a moment ago.
    eventually("two others are served", || {
        others.extend(Remote::connect(&running.path()));
        others.len() == 2
    });
    let full = Remote::connect(&running.path());
    assert!(matches!(full, Err(RemoteError::Refused(Refusal::Full))), "{full:?}");
    drop(close);
    eventually("there is room again", || Remote::connect(&running.path()).is_ok());
}

#[test]
fn refused_connections_whose_descriptors_linger_delay_no_client() {
    let mut running = Running::bind(|config| config.clients_max = 1);
    // The first connection takes the place. The others have sent a descriptor before they are accepted.
    let first = hello(&running.path());
    let closes: Vec<_> = (0..TURNED_AWAY_MAX)
        .map(|_| {
            let refused = raw(&running.path());
            let (socket, close) = lingering();
            say(&refused, &SEGMENT, &[socket.as_fd()]);
            (refused, close)
        })
        .collect();
    let last = raw(&running.path());
    running.run();
    let accepted = 1 + TURNED_AWAY_MAX as u64;
    let (_, close) = &closes[TURNED_AWAY_MAX - 1];
    eventually("all are refused", || close.is_closing());
    // Its message is not read, which is an error of the connection before the reply.
    let answer = reply(&closes[0].0).or_else(|| reply(&closes[0].0));
    assert_eq!(answer, Some(Reply::Refused(Refusal::Full)));
    is_welcome(&first);
    let file = Arena::create("own", 4096).unwrap();
    assert_eq!(ask(&first, &SEGMENT, &[file.fd()]), Some(Reply::Added { region: 1 }));
    let mut polled = [PollFd::new(&last, PollFlags::IN)];
    assert_eq!(poll(&mut polled, Some(&NOW)).unwrap(), 0, "none is accepted meanwhile");
    assert_eq!(running.metric("unlade_copyd_accepted_total"), accepted);
    assert!(running.closing() >= TURNED_AWAY_MAX as u64);
    drop(closes);
    assert_eq!(reply(&last), Some(Reply::Refused(Refusal::Full)));
    eventually("all is closed", || running.closing() == 0);
}
