//! Freeze, snapshot and restore one TCP connection through TCP_REPAIR (Linux ≥ 3.5).
//!
//! The kernel prescribes the order of calls: sequence numbers can be set only in state CLOSE,
//! options only in ESTABLISHED before anything was sent, windows last. A socket in repair mode is
//! closed silently: no FIN, no RST.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use socket2::{Domain, SockAddr, Socket, Type};
use thiserror::Error;
use unlade_net::state::{
    Congestion, NegotiatedOptions, QUEUE_BYTES_MAX, SocketOptions, TcpSnapshot, Windows,
};
use unlade_net::{FlowKey, SeqNumber};

use crate::info::{STATE_CLOSE_WAIT, STATE_ESTABLISHED, TcpInfo};
use crate::sockopt;

// linux/tcp.h
const TCP_REPAIR_ON: i32 = 1;
/// Off without a window probe: nothing is sent (Linux ≥ 4.18).
const TCP_REPAIR_OFF_NO_WP: i32 = -1;
const TCP_RECV_QUEUE: i32 = 1;
const TCP_SEND_QUEUE: i32 = 2;
const TCPOPT_MAXSEG: u32 = 2;
const TCPOPT_WINDOW: u32 = 3;
const TCPOPT_SACK_PERM: u32 = 4;
const TCPOPT_TIMESTAMP: u32 = 8;
/// Amount by which the timestamp clock is advanced at a restore, ticks. The clock stood still
/// between snapshot and restore, and the frozen socket may have sent a last, delayed
/// acknowledgement (after 40 ms at most): a value below one that the peer has seen would be taken
/// for an old segment (RFC 7323 §5). The lowest bit of a value selects the unit of its clock:
/// milliseconds, or microseconds.
const TIMESTAMP_STEPS: [u32; 2] = [50, 50_000];
/// Largest buffer of a send queue.
const BUFFER_BYTES_MAX: usize = 64 * 1024;
/// Most attempts to read a receive queue that still receives packets.
const READ_ATTEMPTS_MAX: u32 = 8;
/// Smallest part of a queue that is offered to the kernel before giving up.
const QUEUE_CHUNK_BYTES_MIN: usize = 1024;

/// `struct tcp_repair_window`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RepairWindow {
    snd_wl1: u32,
    snd_wnd: u32,
    max_window: u32,
    rcv_wnd: u32,
    rcv_wup: u32,
}
// SAFETY: repr(C), five u32, no padding.
unsafe impl sockopt::Plain for RepairWindow {}

/// `struct tcp_repair_opt`.
#[derive(Clone, Copy)]
#[repr(C)]
struct RepairOption {
    code: u32,
    value: u32,
}
// SAFETY: repr(C), two u32, no padding.
unsafe impl sockopt::Plain for RepairOption {}

/// One of a connection's two queues in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// Written, not acknowledged by the peer: becomes shorter as the peer acknowledges.
    Send,
    /// Received, not read: becomes shorter only as this end reads.
    Receive,
}

impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Queue::Send => "send",
            Queue::Receive => "receive",
        })
    }
}

/// The reason why a connection was not frozen or not restored.
#[derive(Debug, Error)]
pub enum RepairError {
    /// CAP_NET_ADMIN is missing, or the socket cannot be repaired (MPTCP).
    #[error("TCP_REPAIR is refused: {0}; it needs CAP_NET_ADMIN and a plain TCP socket")]
    Refused(#[source] io::Error),
    /// Only established connections move; this one is half-closed, closed or opening.
    #[error("the connection is in TCP state {0}, not ESTABLISHED")]
    NotEstablished(u8),
    /// The kernel has bytes that it has not sent yet, and would send by itself when the peer
    /// acknowledges others: the snapshot would not include that. Wait for [`unsent_bytes`] to be
    /// 0.
    #[error("{0} bytes of the send queue are not sent yet")]
    Unsent(u32),
    /// The address of the service is not one of this machine.
    #[error("the address {0} is not configured on this machine; add it to lo")]
    AddressNotLocal(std::net::IpAddr),
    /// Another socket of this machine has the connection's addresses and ports.
    #[error("a socket of this machine has the addresses of the connection to {0} already")]
    FlowInUse(SocketAddr),
    /// A queue is longer than a snapshot may carry.
    #[error("{bytes} bytes in the {queue} queue exceed the limit of {QUEUE_BYTES_MAX}")]
    QueueTooLong {
        /// The queue.
        queue: Queue,
        /// Its length.
        bytes: usize,
    },
    /// One of the calls failed.
    #[error("{call}: {source}")]
    Call {
        /// The option or system call.
        call: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

trait At<T> {
    fn at(self, call: &'static str) -> Result<T, RepairError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, call: &'static str) -> Result<T, RepairError> {
        self.map_err(|source| RepairError::Call { call, source })
    }
}

impl<T> At<T> for rustix::io::Result<T> {
    fn at(self, call: &'static str) -> Result<T, RepairError> {
        self.map_err(|errno| RepairError::Call { call, source: errno.into() })
    }
}

fn set_tcp(fd: BorrowedFd<'_>, option: i32, value: i32) -> io::Result<()> {
    sockopt::set(fd, libc::IPPROTO_TCP, option, &value)
}

fn get_u32(fd: BorrowedFd<'_>, option: i32) -> io::Result<u32> {
    sockopt::get(fd, libc::IPPROTO_TCP, option).map(|(value, _)| value)
}

/// The owner's information about a connection, which need not be read from the kernel again.
#[derive(Clone, Debug)]
pub struct Known {
    /// The connection.
    pub flow: FlowKey,
    /// Options that the owner itself set.
    pub socket: SocketOptions,
    /// Clamp of the segment size, if an earlier snapshot contains it.
    pub mss_bytes: Option<u16>,
    /// Name of the congestion control algorithm.
    pub algorithm: String,
}

/// Puts a connection into repair mode: it still receives packets, calls send nothing, and closing
/// is silent.
///
/// # Errors
/// [`RepairError::Refused`].
pub fn freeze(socket: &impl AsFd) -> Result<(), RepairError> {
    set_tcp(socket.as_fd(), libc::TCP_REPAIR, TCP_REPAIR_ON).map_err(RepairError::Refused)
}

/// Takes a connection out of repair mode without sending anything: it becomes live again.
///
/// # Errors
/// [`RepairError::Call`].
pub fn thaw(socket: &impl AsFd) -> Result<(), RepairError> {
    let fd = socket.as_fd();
    set_tcp(fd, libc::TCP_REPAIR, TCP_REPAIR_OFF_NO_WP).at("TCP_REPAIR off")?;
    // Repair mode clears the option; without it the service's address could not be listened on
    // again while this connection exists.
    sockopt::set(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &1i32).at("SO_REUSEADDR")
}

/// The states of connections that may be snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// Established.
    Established,
    /// Also with a FIN from the peer: such a connection is restored as established, and its reader
    /// takes [`TcpSnapshot::peer_closed`] for the end of the input.
    PeerClosed,
}

/// Reads the state of a frozen connection. The socket does not change, so this can be repeated.
///
/// # Errors
/// [`RepairError`]; the caller thaws the socket and continues with it.
pub fn snapshot(
    socket: &impl AsFd,
    known: &Known,
    accept: Accept,
) -> Result<TcpSnapshot, RepairError> {
    read_state(socket.as_fd(), known, accept, QUEUE_BYTES_MAX)
}

/// As [`snapshot`], for a connection that was frozen and read before: the state is for comparison,
/// not for encoding. The receive queue may exceed the limit of a snapshot.
///
/// # Errors
/// [`RepairError`].
pub fn snapshot_later(socket: &impl AsFd, known: &Known) -> Result<TcpSnapshot, RepairError> {
    // The kernel limits the queue to the socket's buffer.
    read_state(socket.as_fd(), known, Accept::PeerClosed, usize::MAX)
}

fn read_state(
    fd: BorrowedFd<'_>,
    known: &Known,
    accept: Accept,
    receive_bytes_max: usize,
) -> Result<TcpSnapshot, RepairError> {
    let info = TcpInfo::of_fd(fd).at("TCP_INFO")?;
    let peer_closed = info.state == STATE_CLOSE_WAIT && accept == Accept::PeerClosed;
    if info.state != STATE_ESTABLISHED && !peer_closed {
        return Err(RepairError::NotEstablished(info.state));
    }
    if info.notsent_bytes > 0 {
        return Err(RepairError::Unsent(info.notsent_bytes));
    }
    let timestamp = match info.has_timestamps() {
        true => Some(get_u32(fd, libc::TCP_TIMESTAMP).at("TCP_TIMESTAMP")?),
        false => None,
    };
    let mss_bytes = match known.mss_bytes {
        Some(mss) => mss,
        None => get_u32(fd, libc::TCP_MAXSEG).at("TCP_MAXSEG")?.min(u16::MAX.into()) as u16,
    };
    let (receive_end, receive_queue) = read_receive_queue(fd, receive_bytes_max)?;
    let (send_end, send_queue) = read_send_queue(fd, info.unacked_segments > 0)?;
    // Last, because reading the receive queue may have opened the window towards the peer.
    let windows: RepairWindow =
        sockopt::get(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW).at("TCP_REPAIR_WINDOW")?.0;
    let (rcv_wup, rcv_wnd) = receive_window(&windows, receive_end);
    Ok(TcpSnapshot {
        flow: known.flow,
        options: NegotiatedOptions {
            mss_bytes,
            window_scale: info.window_scale(),
            sack: info.has_sack(),
            timestamp,
            ecn: info.has_ecn(),
        },
        send_seq: send_end - send_queue.len() as u32,
        receive_seq: receive_end - receive_queue.len() as u32,
        send_queue,
        receive_queue,
        windows: Windows {
            snd_wl1: windows.snd_wl1,
            snd_wnd: windows.snd_wnd,
            max_window: windows.max_window,
            rcv_wnd,
            rcv_wup: rcv_wup.0,
        },
        congestion: Congestion {
            cwnd_segments: info.snd_cwnd_segments,
            ssthresh_segments: info.snd_ssthresh_segments,
            rtt_us: info.rtt_us,
            idle_ms: info.last_data_sent_ms,
            algorithm: known.algorithm.clone(),
        },
        socket: known.socket,
        segments_in: info.segs_in,
        peer_closed,
    })
}

/// Start and length of the window that the peer was granted. The start cannot be after the bytes
/// of the snapshot, though the kernel may have acknowledged one more segment since: then it moves
/// back, and the end stays where the peer expects it.
fn receive_window(windows: &RepairWindow, receive_end: SeqNumber) -> (SeqNumber, u32) {
    let start = SeqNumber(windows.rcv_wup);
    match start.since(receive_end) {
        ahead @ 1.. => (receive_end, windows.rcv_wnd.wrapping_add(ahead as u32)),
        _ => (start, windows.rcv_wnd),
    }
}

fn queued(fd: BorrowedFd<'_>, request: libc::c_ulong) -> io::Result<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD (SIOCINQ), TIOCOUTQ (SIOCOUTQ) and SIOCOUTQNSD write one int to the given
    // address.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request, &mut count) };
    if result == 0 { Ok(count.max(0) as usize) } else { Err(io::Error::last_os_error()) }
}

/// Reads the receive queue: the sequence number after its last byte, and its content.
fn read_receive_queue(
    fd: BorrowedFd<'_>,
    bytes_max: usize,
) -> Result<(SeqNumber, Vec<u8>), RepairError> {
    let end = || get_u32(fd, libc::TCP_QUEUE_SEQ).at("TCP_QUEUE_SEQ").map(SeqNumber);
    set_tcp(fd, libc::TCP_REPAIR_QUEUE, TCP_RECV_QUEUE).at("TCP_REPAIR_QUEUE")?;
    let mut before = end()?;
    for _ in 0..READ_ATTEMPTS_MAX {
        let bytes = queued(fd, libc::FIONREAD).at("SIOCINQ")?;
        let after = end()?;
        // A packet arrived in between: number and length are inconsistent.
        if after != before {
            before = after;
            continue;
        }
        check_length(Queue::Receive, bytes, bytes_max)?;
        let content = peek(fd, bytes)?;
        if content.len() == bytes {
            return Ok((after, content));
        }
    }
    Err(RepairError::Call {
        call: "recv(MSG_PEEK)",
        source: io::Error::other("the receive queue does not keep still"),
    })
}

/// Reads the send queue: the sequence number after its last byte, and its unacknowledged content.
fn read_send_queue(
    fd: BorrowedFd<'_>,
    unacknowledged: bool,
) -> Result<(SeqNumber, Vec<u8>), RepairError> {
    set_tcp(fd, libc::TCP_REPAIR_QUEUE, TCP_SEND_QUEUE).at("TCP_REPAIR_QUEUE")?;
    let end = SeqNumber(get_u32(fd, libc::TCP_QUEUE_SEQ).at("TCP_QUEUE_SEQ")?);
    if !unacknowledged {
        return Ok((end, Vec::new()));
    }
    let bytes = queued(fd, libc::TIOCOUTQ).at("SIOCOUTQ")?;
    check_length(Queue::Send, bytes, QUEUE_BYTES_MAX)?;
    // The kernel returns its first buffer whole, even if the peer has acknowledged a part of it:
    // read more than needed, and use only the end.
    let mut content = peek(fd, bytes + BUFFER_BYTES_MAX)?;
    content.drain(..content.len().saturating_sub(bytes));
    Ok((end, content))
}

fn check_length(queue: Queue, bytes: usize, bytes_max: usize) -> Result<(), RepairError> {
    match bytes <= bytes_max {
        true => Ok(()),
        false => Err(RepairError::QueueTooLong { queue, bytes }),
    }
}

/// Reads the content of the chosen queue, from its start, at most `bytes`.
fn peek(fd: BorrowedFd<'_>, bytes: usize) -> Result<Vec<u8>, RepairError> {
    use rustix::net::RecvFlags;
    let mut content = vec![0; bytes];
    if bytes > 0 {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let (filled, _) = rustix::net::recv(fd, &mut content[..], flags).at("recv(MSG_PEEK)")?;
        content.truncate(filled);
    }
    Ok(content)
}

/// A restored connection, still in repair mode: it receives, but sends nothing until it is
/// [`thaw`]ed. Dropping it closes it silently.
#[derive(Debug)]
pub struct Restored {
    socket: Socket,
}

impl Restored {
    /// Makes the connection live and returns its socket.
    ///
    /// # Errors
    /// [`RepairError::Call`]; the socket is closed silently.
    pub fn activate(self) -> Result<OwnedFd, RepairError> {
        thaw(&self.socket)?;
        Ok(self.socket.into())
    }

    /// The kernel's socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }
}

/// Rebuilds a connection from its snapshot.
///
/// `on_connect` runs just before connect(2), when a sockops program reads the congestion window to
/// restore.
///
/// # Errors
/// [`RepairError`]; no socket remains.
pub fn restore(tcp: &TcpSnapshot, on_connect: impl FnOnce()) -> Result<Restored, RepairError> {
    let domain = if tcp.flow.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::STREAM.nonblocking().cloexec(), None).at("socket")?;
    let fd = socket.as_fd();
    freeze(&socket)?;
    bind(&socket, tcp.flow.service)?;
    set_sequence(fd, TCP_SEND_QUEUE, tcp.send_seq)?;
    set_sequence(fd, TCP_RECV_QUEUE, tcp.receive_seq)?;
    limit_segments(fd, tcp)?;
    on_connect();
    connect(&socket, tcp.flow.client)?;
    set_options(fd, &tcp.options)?;
    // The receive queue is still selected.
    write_queue(fd, &tcp.receive_queue)?;
    if !tcp.send_queue.is_empty() {
        make_room(fd, tcp.send_queue.len())?;
        set_tcp(fd, libc::TCP_REPAIR_QUEUE, TCP_SEND_QUEUE).at("TCP_REPAIR_QUEUE")?;
        write_queue(fd, &tcp.send_queue)?;
    }
    let windows = RepairWindow {
        snd_wl1: tcp.windows.snd_wl1,
        snd_wnd: tcp.windows.snd_wnd,
        max_window: tcp.windows.max_window,
        rcv_wnd: tcp.windows.rcv_wnd,
        rcv_wup: tcp.windows.rcv_wup,
    };
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_WINDOW, &windows)
        .at("TCP_REPAIR_WINDOW")?;
    set_socket_options(fd, &tcp.socket)?;
    // A new socket acknowledges its first segments at once; to the peer this socket is not new.
    sockopt::delay_acknowledgements(&socket).at("TCP_QUICKACK")?;
    Ok(Restored { socket })
}

/// Sets the segment size limit. The kernel sizes segments at connect(2), from SYN and SYN-ACK,
/// which were not exchanged here. Without this limit it takes the minimum that every host must
/// accept, 536 bytes, and keeps it. The option that sets the size later changes only the upper
/// limit.
fn limit_segments(fd: BorrowedFd<'_>, tcp: &TcpSnapshot) -> Result<(), RepairError> {
    // The values that TCP_MAXSEG accepts.
    const RANGE: std::ops::RangeInclusive<u32> = 88..=32_767;
    let mss = first_mss_bytes(&tcp.options, tcp.windows.max_window);
    let mss = mss.clamp(*RANGE.start(), *RANGE.end()) as i32;
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_MAXSEG, &mss).at("TCP_MAXSEG")
}

/// Size of the first segments, options included: at most half of the largest window, as the kernel
/// does for its own connections. If the window is smaller than a segment, only the persist timer
/// sends, five times a second. The kernel recomputes the size when the window becomes larger.
fn first_mss_bytes(options: &NegotiatedOptions, max_window_bytes: u32) -> u32 {
    const TIMESTAMP_BYTES: u32 = 12;
    // RFC 9293 §3.7.1; below it halves would be too small.
    const MSS_DEFAULT_BYTES: u32 = 536;
    let most = match max_window_bytes {
        0 => u32::MAX,
        1..=MSS_DEFAULT_BYTES => max_window_bytes,
        _ => max_window_bytes / 2,
    };
    let option_bytes = if options.timestamp.is_some() { TIMESTAMP_BYTES } else { 0 };
    u32::from(options.mss_bytes).min(most.saturating_add(option_bytes))
}

fn bind(socket: &Socket, service: SocketAddr) -> Result<(), RepairError> {
    match socket.bind(&SockAddr::from(service)) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            Err(RepairError::AddressNotLocal(service.ip()))
        }
        other => other.at("bind to the service's address"),
    }
}

/// Names the peer. The kernel answers EADDRNOTAVAIL here when a socket with the same addresses and
/// ports exists: the address itself is local, because bind(2) has accepted it.
fn connect(socket: &Socket, client: SocketAddr) -> Result<(), RepairError> {
    match socket.connect(&SockAddr::from(client)) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
            Err(RepairError::FlowInUse(client))
        }
        other => other.at("connect in repair mode"),
    }
}

fn set_sequence(fd: BorrowedFd<'_>, queue: i32, seq: SeqNumber) -> Result<(), RepairError> {
    set_tcp(fd, libc::TCP_REPAIR_QUEUE, queue).at("TCP_REPAIR_QUEUE")?;
    sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_QUEUE_SEQ, &seq.0).at("TCP_QUEUE_SEQ")
}

fn set_options(fd: BorrowedFd<'_>, options: &NegotiatedOptions) -> Result<(), RepairError> {
    let mut list = [RepairOption { code: 0, value: 0 }; 4];
    let mut count = 0;
    let mut push = |code, value| {
        list[count] = RepairOption { code, value };
        count += 1;
    };
    push(TCPOPT_MAXSEG, options.mss_bytes.into());
    // Otherwise the kernel would keep the scale that it chose at connect(2), and announce windows
    // with it: a connection without scaling has shifts of 0.
    let (send, receive) = options.window_scale.unwrap_or((0, 0));
    push(TCPOPT_WINDOW, u32::from(send) | u32::from(receive) << 16);
    if options.sack {
        push(TCPOPT_SACK_PERM, 0);
    }
    if options.timestamp.is_some() {
        push(TCPOPT_TIMESTAMP, 0);
    }
    let list = &list[..count];
    sockopt::set_slice(fd, libc::IPPROTO_TCP, libc::TCP_REPAIR_OPTIONS, list)
        .at("TCP_REPAIR_OPTIONS")?;
    if let Some(clock) = options.timestamp {
        let clock = clock.wrapping_add(TIMESTAMP_STEPS[clock as usize & 1]);
        sockopt::set(fd, libc::IPPROTO_TCP, libc::TCP_TIMESTAMP, &clock).at("TCP_TIMESTAMP")?;
    }
    Ok(())
}

/// Makes space for a queue that is longer than a new socket's buffer, and lets the kernel size the
/// buffer itself again afterwards (SO_BUF_LOCK, Linux ≥ 5.16; older kernels keep the size).
fn make_room(fd: BorrowedFd<'_>, bytes: usize) -> Result<(), RepairError> {
    const FRESH_BUFFER_BYTES: usize = 8 * 1024;
    const SO_BUF_LOCK: i32 = 72;
    if bytes <= FRESH_BUFFER_BYTES {
        return Ok(());
    }
    let size = bytes.saturating_mul(2).min(i32::MAX as usize / 4) as i32;
    sockopt::set(fd, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, &size).at("SO_SNDBUFFORCE")?;
    // Older kernels lack the option: the buffer keeps its size, which is harmless.
    let _ = sockopt::set(fd, libc::SOL_SOCKET, SO_BUF_LOCK, &0i32);
    Ok(())
}

/// Bytes written to a connection and not acknowledged by its peer.
///
/// # Errors
/// The kernel's.
pub fn unacknowledged_bytes(socket: &impl AsFd) -> io::Result<usize> {
    queued(socket.as_fd(), libc::TIOCOUTQ)
}

/// Bytes received on a connection and not read.
///
/// # Errors
/// The kernel's.
pub fn unread_bytes(socket: &impl AsFd) -> io::Result<usize> {
    queued(socket.as_fd(), libc::FIONREAD)
}

/// Bytes written to a connection that the kernel has not sent yet.
///
/// # Errors
/// The kernel's.
pub fn unsent_bytes(socket: &impl AsFd) -> io::Result<usize> {
    // linux/sockios.h
    const SIOCOUTQNSD: libc::c_ulong = 0x894b;
    queued(socket.as_fd(), SIOCOUTQNSD)
}

/// Writes a queue's content; in halves, if the kernel lacks the memory for one large buffer.
fn write_queue(fd: BorrowedFd<'_>, mut content: &[u8]) -> Result<(), RepairError> {
    let mut piece = content.len();
    while !content.is_empty() {
        let part = &content[..piece.min(content.len())];
        match rustix::net::send(fd, part, rustix::net::SendFlags::NOSIGNAL) {
            Ok(count) => content = &content[count..],
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if piece > QUEUE_CHUNK_BYTES_MIN => piece /= 2,
            Err(errno) => return Err(errno).at("restoring a queue"),
        }
    }
    Ok(())
}

fn set_socket_options(fd: BorrowedFd<'_>, options: &SocketOptions) -> Result<(), RepairError> {
    if options.nodelay {
        set_tcp(fd, libc::TCP_NODELAY, 1).at("TCP_NODELAY")?;
    }
    if options.user_timeout_ms > 0 {
        let timeout = options.user_timeout_ms.min(i32::MAX as u32) as i32;
        set_tcp(fd, libc::TCP_USER_TIMEOUT, timeout).at("TCP_USER_TIMEOUT")?;
    }
    if let Some((idle, interval, probes)) = options.keepalive_s {
        sockopt::set(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, &1).at("SO_KEEPALIVE")?;
        set_tcp(fd, libc::TCP_KEEPIDLE, idle as i32).at("TCP_KEEPIDLE")?;
        set_tcp(fd, libc::TCP_KEEPINTVL, interval as i32).at("TCP_KEEPINTVL")?;
        set_tcp(fd, libc::TCP_KEEPCNT, probes as i32).at("TCP_KEEPCNT")?;
    }
    Ok(())
}

/// Closes a connection with a RST (SO_LINGER 0), which notifies the peer at once.
///
/// # Errors
/// The kernel's.
pub fn abort(socket: OwnedFd) -> io::Result<()> {
    Socket::from(socket).set_linger(Some(std::time::Duration::ZERO))
}
