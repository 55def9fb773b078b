//! Finds the process that uses an address, for messages about addresses in use.
//!
//! The kernel's tables of this thread's network namespace identify sockets by inode; the
//! descriptors of each process list its sockets. A process without privileges cannot see the
//! descriptors of other users' processes, and no process here can see those of another PID
//! namespace.

use std::fmt;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Most sockets of a table that are examined; a table of a busy machine has millions.
const SOCKETS_MAX: usize = 200_000;
/// `TCP_LISTEN`, `TCP_TIME_WAIT` (include/net/tcp_states.h).
const STATE_LISTEN: u8 = 0x0a;
const STATE_TIME_WAIT: u8 = 0x06;

/// The socket that prevents listening on an address, and its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The address of that socket.
    pub address: SocketAddr,
    /// True if the socket listens; otherwise it is a connection or only bound.
    pub is_listening: bool,
    /// The process and its name, if visible.
    pub process: Option<(u32, String)>,
    /// The user that created the socket.
    pub user: u32,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.process {
            Some((pid, _)) if *pid == std::process::id() => {
                write!(f, "by this process itself (PID {pid})")?;
            }
            Some((pid, name)) => write!(f, "by PID {pid} ({name})")?,
            None => write!(f, "by a process of user {} that cannot be seen from here", self.user)?,
        }
        match self.is_listening {
            true => write!(f, ", which listens on {}", self.address),
            false => write!(f, ", which has a connection from {}", self.address),
        }
    }
}

/// Finds the user of `address`, or of an overlapping address. `None` if no such socket is visible.
pub fn find(address: SocketAddr) -> Option<Holder> {
    let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
    let sockets = tables.iter().filter_map(|table| conflicting(table, address));
    // Of several, the last one is used: an IPv6 socket conflicts with IPv6 in any case.
    let socket = sockets.max_by_key(|socket| socket.state == STATE_LISTEN)?;
    Some(Holder {
        address: socket.address,
        is_listening: socket.state == STATE_LISTEN,
        process: process_with(socket.inode),
        user: socket.user,
    })
}

/// A line of the kernel's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Socket {
    address: SocketAddr,
    state: u8,
    user: u32,
    inode: u64,
}

/// The first socket that conflicts with `address`. The kernel lists listeners before connections.
fn conflicting(table: &str, address: SocketAddr) -> Option<Socket> {
    let lines = BufReader::new(File::open(table).ok()?).lines().map_while(Result::ok);
    let sockets = lines.skip(1).take(SOCKETS_MAX).filter_map(|line| parse(&line));
    let mut ours = sockets.filter(|socket| socket.state != STATE_TIME_WAIT);
    ours.find(|socket| overlap(socket.address, address))
}

/// Returns true if a socket at `there` can conflict with `wanted`. The IPv6 wildcard accepts IPv4
/// connections too, unless IPV6_V6ONLY is set, which the table does not show.
fn overlap(there: SocketAddr, wanted: SocketAddr) -> bool {
    let (there_ip, wanted_ip) = (there.ip().to_canonical(), wanted.ip().to_canonical());
    let covers =
        |any: IpAddr, other: IpAddr| any.is_unspecified() && (any.is_ipv6() || other.is_ipv4());
    there.port() == wanted.port()
        && (there_ip == wanted_ip || covers(there_ip, wanted_ip) || covers(wanted_ip, there_ip))
}

/// `sl local remote state queues timer retransmits uid timeout inode …`.
fn parse(line: &str) -> Option<Socket> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let address = parse_address(words.next()?)?;
    let state = u8::from_str_radix(words.nth(1)?, 16).ok()?;
    let user = words.nth(3)?.parse().ok()?;
    let inode = words.nth(1)?.parse().ok()?;
    Some(Socket { address, state, user, inode })
}

/// `ADDRESS:PORT` in hexadecimal; the address in 32-bit words, each in the machine's byte order.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| {
        let digits = ip.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    let ip = match ip.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, place) in bytes.chunks_exact_mut(4).enumerate() {
                place.copy_from_slice(&word(at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes))
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

/// The process that has the socket, preferably this one, and its name.
fn process_with(inode: u64) -> Option<(u32, String)> {
    let has = |pid: u32| has_socket(pid, inode);
    let others = fs::read_dir("/proc").ok().into_iter().flatten().flatten();
    let mut others = others.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id();
    let pid = if has(own) { own } else { others.find(|pid| has(*pid))? };
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    Some((pid, name.trim_end().to_owned()))
}

fn has_socket(pid: u32, inode: u64) -> bool {
    let wanted = format!("socket:[{inode}]");
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok();
    let mut links = descriptors.into_iter().flatten().flatten();
    links.any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to.as_os_str() == &*wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn lines_of_the_kernels_table_are_read() {
        if cfg!(target_endian = "big") {
            println!("skipped: the lines are of a little-endian machine");
            return;
        }
        let line = "   3: 0100007F:1144 00000000:0000 0A 00000000:00000000 00:00000000 00000000  \
                    1000        0 39871 1 00000000ec57 100 0 0 10 0";
        let socket = parse(line).unwrap();
        assert_eq!(socket.address, address("127.0.0.1:4420"));
        assert_eq!((socket.state, socket.user, socket.inode), (STATE_LISTEN, 1000, 39871));
        let six = "00000000000000000000000001000000:01BB";
        assert_eq!(parse_address(six), Some(address("[::1]:443")));
        for wrong in ["", "0100007F", "0100007F:x", "01:1144", "\u{e9}\u{e9}\u{e9}\u{e9}:1144"] {
            assert_eq!(parse_address(wrong), None, "{wrong}");
        }
        assert_eq!(parse("  sl  local_address rem_address   st tx_queue"), None);
    }

    #[test]
    fn wildcards_overlap_addresses_of_their_family() {
        let in_the_way = |there: &str, wanted: &str| overlap(address(there), address(wanted));
        assert!(in_the_way("0.0.0.0:80", "127.0.0.1:80"));
        assert!(in_the_way("127.0.0.1:80", "0.0.0.0:80"));
        assert!(in_the_way("[::]:80", "127.0.0.1:80"));
        assert!(in_the_way("[::ffff:127.0.0.1]:80", "127.0.0.1:80"));
        assert!(in_the_way("[::]:80", "[::1]:80"));
        assert!(!in_the_way("127.0.0.2:80", "127.0.0.1:80"));
        assert!(!in_the_way("127.0.0.1:81", "127.0.0.1:80"));
        assert!(!in_the_way("0.0.0.0:80", "[::1]:80"));
        assert!(!in_the_way("[::1]:80", "0.0.0.0:80"));
    }

    #[test]
    fn a_socket_of_this_process_is_found_with_its_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let holder = find(at).expect("the listener is in the kernel's table");
        assert_eq!((holder.address, holder.is_listening), (at, true));
        assert_eq!(holder.process.as_ref().map(|(pid, _)| *pid), Some(std::process::id()));
        let text = holder.to_string();
        assert!(text.contains("this process itself"), "{text}");
        let wildcard = SocketAddr::from(([0, 0, 0, 0], at.port()));
        assert_eq!(find(wildcard).map(|holder| holder.address), Some(at));
    }
}
