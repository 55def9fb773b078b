//! Moves connections whose clients lack TCP options, one option or all of them, in a network
//! namespace of its own. Needs CAP_NET_ADMIN and CAP_BPF.

use std::fmt;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::thread::{UnshareFlags, unshare_unsafe};
use unlade_net::FlowKey;
use unlade_net::state::{SocketOptions, TcpSnapshot};
use unlade_steering::strip::Strip;
use unlade_sys::info::TcpInfo;
use unlade_sys::repair::{self, Accept, Known};

/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// Option kinds: MSS, window scale, SACK permitted, timestamps.
const KINDS: [u8; 4] = [2, 3, 4, 8];
/// Default MSS without the option (RFC 9293 §3.7.1), for IPv4 and IPv6.
const DEFAULT_MSS_BYTES: [u32; 2] = [536, 1220];
/// Half of the largest window that needs no scaling.
const WINDOW_BYTES_MIN: u32 = 32_768;

/// Absent options and other parameters of a case.
struct Case {
    absent: Vec<u8>,
    ecn: bool,
    address: &'static str,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, without options {:?}, ECN {}", self.address, self.absent, self.ecn)
    }
}

impl Case {
    fn has(&self, kind: u8) -> bool {
        !self.absent.contains(&kind)
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("ip runs");
    assert!(output.status.success(), "ip {arguments}: {output:?}");
}

/// Returns the window that a socket's peer offers, in bytes: `tcpi_snd_wnd` (Linux 6.2), or `None`
/// on older kernels.
fn offered_bytes(socket: &TcpStream) -> Option<u32> {
    const SEND_WINDOW_AT: usize = 228;
    let mut info = [0u8; 256];
    let mut length = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `info`, and their number to `length`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut length,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    let field = info[..length as usize].get(SEND_WINDOW_AT..SEND_WINDOW_AT + 4)?;
    Some(u32::from_ne_bytes(field.try_into().unwrap()))
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pair(address: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(address).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
    }
    (client, server)
}

/// Moves a connection to another socket through a snapshot, as between hosts.
fn moved(server: TcpStream) -> (TcpStream, TcpSnapshot) {
    let known = Known {
        flow: FlowKey::new(server.peer_addr().unwrap(), server.local_addr().unwrap()),
        socket: SocketOptions { nodelay: true, ..SocketOptions::default() },
        mss_bytes: None,
        algorithm: String::new(),
    };
    repair::freeze(&server).unwrap();
    let snapshot = repair::snapshot(&server, &known, Accept::Established).unwrap();
    drop(server);
    let restored = repair::restore(&snapshot, || ()).unwrap();
    let stream = TcpStream::from(restored.activate().unwrap());
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    (stream, snapshot)
}

/// Sends one byte in each direction.
fn ping(from: &mut TcpStream, to: &mut TcpStream) {
    let mut byte = [0];
    from.write_all(&[1]).unwrap();
    to.read_exact(&mut byte).unwrap();
    to.write_all(&[2]).unwrap();
    from.read_exact(&mut byte).unwrap();
}

fn transfer(mut from: &TcpStream, mut to: &TcpStream, what: &str) {
    let body: Vec<u8> = (0..400_000u32).map(|at| (at ^ at >> 9) as u8).collect();
    let mut received = vec![0; body.len()];
    std::thread::scope(|scope| {
        scope.spawn(|| from.write_all(&body).unwrap());
        to.read_exact(&mut received).unwrap();
    });
    assert!(received == body, "{what}: other bytes");
}

fn check(case: &Case) {
    let (mut client, mut server) = pair(case.address);
    ping(&mut client, &mut server);
    let before = TcpInfo::of(&server).unwrap();
    let has = (before.has_sack(), before.has_timestamps(), before.window_scale().is_some());
    assert_eq!(has, (case.has(4), case.has(8), case.has(3)), "{case}: the handshake");
    assert_eq!(before.has_ecn(), case.ecn, "{case}");
    let timestamp_bytes = if case.has(8) { 12 } else { 0 };
    if !case.has(2) {
        let expected = DEFAULT_MSS_BYTES[usize::from(case.address.starts_with('['))];
        assert_eq!(before.snd_mss_bytes, expected - timestamp_bytes, "{case}");
    }

    // Twice: to the server and back.
    for _ in 0..2 {
        let (stream, snapshot) = moved(server);
        server = stream;
        let after = TcpInfo::of(&server).unwrap();
        let has = (after.has_sack(), after.has_timestamps());
        assert_eq!(has, (case.has(4), case.has(8)), "{case}: restored");
        assert_eq!(snapshot.options.ecn && !after.has_ecn(), snapshot.options.ecn, "{case}");
        let scale = |info: &TcpInfo| info.window_scale().unwrap_or((0, 0));
        assert_eq!(scale(&after), scale(&before), "{case}: restored");
        // From connect(2) on the kernel reserves room for a timestamp, and uses it for data if
        // timestamps are absent.
        let smaller_bytes = before.snd_mss_bytes.checked_sub(after.snd_mss_bytes);
        let spare_bytes = if case.has(8) { 0 } else { 12 };
        assert!(smaller_bytes.is_some_and(|bytes| bytes <= spare_bytes), "{case}: {after:?}");
        ping(&mut client, &mut server);
        let offered = [&client, &server].map(offered_bytes);
        if let [Some(to_client), Some(to_server)] = offered {
            assert!(to_client >= WINDOW_BYTES_MIN, "{case}: the server offers {to_client} bytes");
            assert!(to_server >= WINDOW_BYTES_MIN, "{case}: the client offers {to_server} bytes");
        }
        transfer(&client, &server, "upload");
        transfer(&server, &client, "download");
        wait_until("the window is open again", || {
            offered_bytes(&client).is_none_or(|bytes| bytes >= WINDOW_BYTES_MIN)
        });
    }
}

#[test]
fn a_connection_without_an_option_moves_with_its_windows() {
    // SAFETY: a network namespace is a property of the thread and does not affect memory.
    if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::NEWNET) } {
        println!("skipped: no network namespace: {error}");
        return;
    }
    ip("link set lo mtu 1500 up");
    for mask in 0..1 << KINDS.len() {
        let absent: Vec<u8> =
            (0..KINDS.len()).filter(|bit| mask >> bit & 1 == 1).map(|bit| KINDS[bit]).collect();
        let _strip = match Strip::open("lo", &absent) {
            Ok(strip) => strip,
            Err(error) => return println!("skipped: {error}"),
        };
        for (ecn, address) in
            [false, true].into_iter().flat_map(|ecn| [(ecn, "127.0.0.1:0"), (ecn, "[::1]:0")])
        {
            let value = if ecn { "1" } else { "0" };
            std::fs::write("/proc/sys/net/ipv4/tcp_ecn", value).unwrap();
            check(&Case { absent: absent.clone(), ecn, address });
        }
    }
}
