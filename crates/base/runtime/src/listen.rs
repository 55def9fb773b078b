//! Listening sockets: one per worker on the same address, no second process on it, errors with
//! their cause.
//!
//! Workers share an address with SO_REUSEPORT. The kernel would let every other process of the
//! same user join with SO_REUSEPORT, and would spread connections over both. Therefore the first
//! socket of an address is bound, and listens, without it: the kernel refuses that while any other
//! socket listens there, with any options. Only then is the option set, for the sockets of the
//! other workers. No lock remains after a killed process, and the kernel distinguishes network
//! namespaces, interfaces and address families.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::holder::{self, Holder};

/// Default backlog: connections that the kernel keeps until the listener accepts them. The kernel
/// limits it to net.core.somaxconn.
pub const BACKLOG_DEFAULT: u32 = 4096;
/// Most attempts if processes start at the same time on one address: the kernel may refuse both.
const ATTEMPTS_MAX: u32 = 6;
/// The longest pause between two of them.
const PAUSE_MS_MAX: u64 = 16;
/// Maximum time to wait for a socket that belongs to no visible process. The kernel closes the
/// sockets of a killed process some time after its descriptors are gone, and those used by
/// io_uring even later.
const CLOSING_MAX: Duration = Duration::from_secs(2);

/// Options for listening.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// Most connections waiting to be accepted.
    pub backlog: u32,
    /// Listen on addresses that the machine does not have yet (IP_FREEBIND): virtual addresses.
    pub freebind: bool,
    /// The interface for the connections in both directions (SO_BINDTODEVICE), if any.
    pub device: Option<String>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions { backlog: BACKLOG_DEFAULT, freebind: false, device: None }
    }
}

/// The reason why an address cannot be listened on; the operator can resolve it.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}{}", advice(.error, .address, .holder.as_deref()))]
pub struct ListenError {
    /// The requested address.
    pub address: SocketAddr,
    /// The error of the kernel.
    #[source]
    pub error: io::Error,
    /// The process that uses the address, if it is in use and visible.
    pub holder: Option<Box<Holder>>,
}

impl ListenError {
    /// The error of listening on `address`; if it is in use, finds the process.
    pub fn new(address: SocketAddr, error: io::Error) -> ListenError {
        let is_in_use = error.kind() == io::ErrorKind::AddrInUse;
        let holder = if is_in_use { holder::find(address).map(Box::new) } else { None };
        ListenError { address, error, holder }
    }
}

fn advice(error: &io::Error, address: &SocketAddr, holder: Option<&Holder>) -> String {
    let search = format!("`ss -ltnp sport = :{}`", address.port());
    match (error.kind(), holder) {
        (io::ErrorKind::AddrInUse, Some(holder)) => {
            let remedy = match &holder.process {
                Some((pid, _)) if *pid == std::process::id() => {
                    "give one of the two another address".to_owned()
                }
                Some(_) => "end that process, or choose another address".to_owned(),
                None => format!("{search} as root shows it"),
            };
            format!(" {holder}; {remedy}")
        }
        (io::ErrorKind::AddrInUse, None) => format!("; find the process with {search}"),
        (io::ErrorKind::AddrNotAvailable, _) => {
            format!("; no interface has {}: add it, or correct the address", address.ip())
        }
        (io::ErrorKind::PermissionDenied, _) => {
            "; ports below 1024 need CAP_NET_BIND_SERVICE or root".to_owned()
        }
        _ => "; see `ip address` and the limits of the process".to_owned(),
    }
}

/// Binds and listens; no other socket can listen there at the same time. The socket is
/// non-blocking, and IPv6 sockets are IPv6 only. Waits briefly if other processes try the same,
/// and up to 2 s if no visible process has the address: the kernel is closing a killed process's
/// socket.
///
/// # Errors
/// The kernel's error, with the address, its user, and a remedy.
pub fn bind(address: SocketAddr, options: &ListenOptions) -> Result<TcpListener, ListenError> {
    let mut attempts = 1;
    let deadline = Instant::now() + CLOSING_MAX;
    loop {
        match open(address, options, false) {
            Ok(socket) => return Ok(socket.into()),
            Err(Refused::Bind(error))
                if is_in_use(&error) && Instant::now() < deadline && !has_process(address) =>
            {
                std::thread::sleep(pause());
            }
            // Nothing listened when the address was bound, and something does now: another process
            // is at the same step, and may have been refused as well.
            Err(Refused::Listen(error)) if is_in_use(&error) && attempts < ATTEMPTS_MAX => {
                attempts += 1;
                std::thread::sleep(pause());
            }
            Err(Refused::Bind(error) | Refused::Listen(error)) => {
                return Err(ListenError::new(address, error));
            }
        }
    }
}

/// Returns true if a visible process has the address.
fn has_process(address: SocketAddr) -> bool {
    holder::find(address).is_some_and(|holder| holder.process.is_some())
}

fn is_in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// A random pause, so that two processes that collided do not collide again.
fn pause() -> Duration {
    let random = RandomState::new().build_hasher().finish();
    Duration::from_millis(1 + random % PAUSE_MS_MAX)
}

/// The step at which the kernel refused.
enum Refused {
    Bind(io::Error),
    Listen(io::Error),
}

fn open(address: SocketAddr, options: &ListenOptions, is_shared: bool) -> Result<Socket, Refused> {
    let socket = bound(address, options, is_shared).map_err(Refused::Bind)?;
    let backlog = i32::try_from(options.backlog).unwrap_or(i32::MAX);
    socket.listen(backlog).map_err(Refused::Listen)?;
    Ok(socket)
}

fn bound(address: SocketAddr, options: &ListenOptions, is_shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a process that has ended do not prevent the next one from listening.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
        if options.freebind {
            socket.set_freebind_v6(true)?;
        }
    } else if options.freebind {
        socket.set_freebind_v4(true)?;
    }
    if let Some(device) = &options.device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// [`bind`] for the runtime of the current thread.
///
/// # Errors
/// As [`bind`].
pub fn tcp(
    address: SocketAddr,
    options: &ListenOptions,
) -> Result<tokio::net::TcpListener, ListenError> {
    register(bind(address, options)?)
}

/// Registers a socket that was bound elsewhere (before the workers started) with the current
/// runtime.
///
/// # Errors
/// The runtime's, with the address.
pub fn register(listener: TcpListener) -> Result<tokio::net::TcpListener, ListenError> {
    let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
    let address = listener.local_addr().unwrap_or(unspecified);
    tokio::net::TcpListener::from_std(listener).map_err(|error| ListenError::new(address, error))
}

/// Binds `count` sockets on one address; the kernel spreads connections over them. Sockets of
/// other processes cannot bind there, and these fail if others exist. Port 0 is chosen once, by
/// the first socket.
///
/// # Errors
/// As [`bind`].
pub fn bind_shared(
    address: SocketAddr,
    count: usize,
    options: &ListenOptions,
) -> Result<Vec<TcpListener>, ListenError> {
    let mut listeners = Vec::with_capacity(count);
    if count == 0 {
        return Ok(listeners);
    }
    let first = bind(address, options)?;
    let address = first.local_addr().map_err(|error| ListenError::new(address, error))?;
    if count > 1 {
        let shared = SockRef::from(&first).set_reuse_port(true);
        shared.map_err(|error| ListenError::new(address, error))?;
    }
    listeners.push(first);
    while listeners.len() < count {
        match open(address, options, true) {
            Ok(socket) => listeners.push(socket.into()),
            Err(Refused::Bind(error) | Refused::Listen(error)) => {
                return Err(ListenError::new(address, error));
            }
        }
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn sockets_of_several_workers_share_one_free_port() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners = bind_shared(any, 3, &ListenOptions::default()).unwrap();
        let ports: Vec<u16> = listeners.iter().map(|l| l.local_addr().unwrap().port()).collect();
        assert_eq!(ports, vec![ports[0]; 3]);
        assert_ne!(ports[0], 0);
    }

    /// A free port at a loopback address that no other test uses.
    fn own(number: u8) -> SocketAddr {
        let [.., high, low] = std::process::id().to_be_bytes();
        SocketAddr::from(([127, 100 + number, high, low], 0))
    }

    /// Accepts `count` connections; returns the number that each listener received.
    fn accept_all(listeners: &[TcpListener], count: usize) -> Vec<usize> {
        let mut counts = vec![0; listeners.len()];
        let mut accepted = Vec::new();
        // A client's connect may return before the listener has its connection.
        for _ in 0..10_000_000 {
            for (listener, count) in listeners.iter().zip(&mut counts) {
                accepted.extend(listener.accept().inspect(|_| *count += 1));
            }
            if accepted.len() == count {
                return counts;
            }
            std::thread::yield_now();
        }
        panic!("{} of {count} connections were accepted: {counts:?}", accepted.len());
    }

    #[test]
    fn a_second_listener_on_a_shared_address_is_refused() {
        let held = bind_shared(own(1), 2, &ListenOptions::default()).unwrap();
        let address = held[0].local_addr().unwrap();
        let wildcard = SocketAddr::from(([0, 0, 0, 0], address.port()));
        for (at, count) in [(address, 1), (address, 2), (wildcard, 1), (wildcard, 2)] {
            let error = bind_shared(at, count, &ListenOptions::default()).unwrap_err();
            assert_eq!(error.error.kind(), io::ErrorKind::AddrInUse, "{error}");
        }
        drop(held);
        assert!(bind_shared(address, 2, &ListenOptions::default()).is_ok());
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let held = bind_shared(any, 2, &ListenOptions::default()).unwrap();
        let covered = SocketAddr::new(address.ip(), held[0].local_addr().unwrap().port());
        assert!(bind_shared(covered, 2, &ListenOptions::default()).is_err());
    }

    #[test]
    fn a_socket_with_reuseport_conflicts_too() {
        let held = open(own(2), &ListenOptions::default(), true).ok().unwrap();
        let address = held.local_addr().unwrap().as_socket().unwrap();
        assert!(bind_shared(address, 2, &ListenOptions::default()).is_err());
    }

    #[test]
    fn the_same_port_of_the_other_family_is_another_address() {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        let held = bind_shared(any, 2, &ListenOptions::default()).unwrap();
        let port = held[0].local_addr().unwrap().port();
        let other = SocketAddr::from(([0_u16; 8], port));
        match bind_shared(other, 2, &ListenOptions::default()) {
            Ok(other) => {
                let error = bind(other[0].local_addr().unwrap(), &ListenOptions::default());
                assert!(error.unwrap_err().to_string().contains("this process itself"));
            }
            Err(error) if error.error.kind() != io::ErrorKind::AddrInUse => {
                println!("skipped: no IPv6: {error}");
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn connections_are_spread_over_the_workers_of_one_process() {
        let listeners = bind_shared(own(3), 3, &ListenOptions::default()).unwrap();
        let address = listeners[0].local_addr().unwrap();
        // The kernel chooses by a hash of the ports: one of three listeners getting none of 200 is
        // not a coincidence.
        let connect = |_| std::net::TcpStream::connect(address).unwrap();
        let clients: Vec<_> = (0..200).map(connect).collect();
        let counts = accept_all(&listeners, clients.len());
        assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    }

    #[test]
    fn connections_of_a_listener_that_is_gone_do_not_block_the_next_one() {
        let held = bind_shared(own(4), 2, &ListenOptions::default()).unwrap();
        let address = held[0].local_addr().unwrap();
        let _client = std::net::TcpStream::connect(address).unwrap();
        let accepted = (0..10_000_000).find_map(|_| {
            std::thread::yield_now();
            held.iter().find_map(|listener| listener.accept().ok())
        });
        assert!(accepted.is_some());
        drop(held);
        let next = bind_shared(address, 2, &ListenOptions::default());
        assert!(next.is_ok(), "{next:?}");
    }

    /// A listener in transit through a Unix socket is in no process's descriptors, as with a
    /// process whose exit the kernel has not finished.
    #[test]
    fn a_socket_that_is_closing_is_waited_for() {
        let held = bind(own(6), &ListenOptions::default()).unwrap();
        let address = held.local_addr().unwrap();
        let (here, there) = std::os::unix::net::UnixStream::pair().unwrap();
        unlade_sys::descriptors::send(&here, b"a listener", &[held.as_fd()]).unwrap();
        drop(held);
        assert!(!has_process(address));
        assert!(open(address, &ListenOptions::default(), false).is_err());
        let next = std::thread::scope(|scope| {
            let next = scope.spawn(|| bind(address, &ListenOptions::default()));
            std::thread::sleep(Duration::from_millis(100));
            drop((here, there));
            next.join().unwrap()
        });
        assert!(next.is_ok(), "{next:?}");
    }

    #[test]
    fn of_many_that_start_at_once_one_listens() {
        let mut winners = 0;
        for _ in 0..50 {
            let free = bind(own(5), &ListenOptions::default()).unwrap();
            let address = free.local_addr().unwrap();
            drop(free);
            let gate = std::sync::Barrier::new(4);
            let start = || {
                gate.wait();
                bind_shared(address, 2, &ListenOptions::default()).ok()
            };
            // All are kept until the last one has tried.
            let ends: Vec<_> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let held = ends.iter().flatten().count();
            assert!(held <= 1, "{held} listen on {address}");
            winners += held;
        }
        assert!(winners > 0);
    }

    #[test]
    fn an_address_in_use_is_named_with_its_process_and_a_remedy() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let held = bind(any, &ListenOptions::default()).unwrap();
        let address = held.local_addr().unwrap();
        let message = bind(address, &ListenOptions::default()).unwrap_err().to_string();
        assert!(message.contains(&format!("cannot listen on {address}")), "{message}");
        assert!(message.contains(&format!("(PID {})", std::process::id())), "{message}");
        assert!(message.contains("another address"), "{message}");
        let unseen = Holder { address, is_listening: true, process: None, user: 33 };
        let error = io::Error::from_raw_os_error(rustix::io::Errno::ADDRINUSE.raw_os_error());
        let error = ListenError { address, error, holder: Some(Box::new(unseen)) };
        let message = error.to_string();
        assert!(message.contains("user 33") && message.contains("ss -ltnp"), "{message}");
    }

    #[test]
    fn a_foreign_address_is_named_and_freebind_allows_it() {
        let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
        let message = bind(foreign, &ListenOptions::default()).unwrap_err().to_string();
        assert!(message.contains("no interface has 192.0.2.1"), "{message}");
        let options = ListenOptions { freebind: true, ..ListenOptions::default() };
        assert!(bind(foreign, &options).is_ok());
    }
}
