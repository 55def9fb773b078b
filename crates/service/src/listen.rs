//! Listening sockets: one a worker on the same address (SO_REUSEPORT), errors that say why.

use std::io;
use std::net::{SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections the kernel keeps for a listener that has not accepted them yet. The kernel caps
/// it at net.core.somaxconn.
pub const BACKLOG_DEFAULT: u32 = 4096;

/// How to listen.
#[derive(Debug, Clone)]
pub struct ListenOptions {
    /// Connections waiting to be accepted.
    pub backlog: u32,
    /// Several sockets share the address and the kernel spreads connections over them.
    pub reuse_port: bool,
    /// Listen on addresses the machine does not have yet (IP_FREEBIND): virtual addresses.
    pub freebind: bool,
    /// The interface that connections must come by and go by (SO_BINDTODEVICE), where there is one.
    pub device: Option<String>,
}

impl Default for ListenOptions {
    fn default() -> Self {
        ListenOptions { backlog: BACKLOG_DEFAULT, reuse_port: true, freebind: false, device: None }
    }
}

/// Why an address cannot be listened on: the operator's to resolve.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {error}; {}", hint(.error, .address))]
pub struct ListenError {
    /// The address asked for.
    pub address: SocketAddr,
    /// What the kernel said.
    #[source]
    pub error: io::Error,
}

fn hint(error: &io::Error, address: &SocketAddr) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("find who has the port with `ss -ltnp sport = :{}`", address.port())
        }
        io::ErrorKind::AddrNotAvailable => {
            format!("no interface has {}: add it, or correct the address", address.ip())
        }
        io::ErrorKind::PermissionDenied => {
            "ports below 1024 need CAP_NET_BIND_SERVICE or root".to_owned()
        }
        _ => "see `ip address` and the limits of the process".to_owned(),
    }
}

/// Binds and listens; the socket is non-blocking, and IPv6 sockets are IPv6 only.
///
/// # Errors
/// What the kernel said, with the address and what to do.
pub fn bind(address: SocketAddr, options: &ListenOptions) -> Result<TcpListener, ListenError> {
    let fail = |error| ListenError { address, error };
    let socket = open(address, options).map_err(fail)?;
    Ok(socket.into())
}

fn open(address: SocketAddr, options: &ListenOptions) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if options.reuse_port {
        socket.set_reuse_port(true)?;
    }
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
    socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
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

/// Hands a socket bound elsewhere (before the workers started) to the current runtime.
///
/// # Errors
/// The runtime's, with the address.
pub fn register(listener: TcpListener) -> Result<tokio::net::TcpListener, ListenError> {
    let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
    let address = listener.local_addr().unwrap_or(unspecified);
    tokio::net::TcpListener::from_std(listener).map_err(|error| ListenError { address, error })
}

/// Binds `count` sockets on one address. Port 0 is chosen once, by the first.
///
/// # Errors
/// As [`bind`].
pub fn bind_shared(
    address: SocketAddr,
    count: usize,
    options: &ListenOptions,
) -> Result<Vec<TcpListener>, ListenError> {
    let mut address = address;
    let mut listeners = Vec::with_capacity(count);
    let options = ListenOptions { reuse_port: true, ..options.clone() };
    for _ in 0..count {
        let listener = bind(address, &options)?;
        address = listener.local_addr().map_err(|error| ListenError { address, error })?;
        listeners.push(listener);
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_several_workers_share_one_free_port() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listeners = bind_shared(any, 3, &ListenOptions::default()).unwrap();
        let ports: Vec<u16> = listeners.iter().map(|l| l.local_addr().unwrap().port()).collect();
        assert_eq!(ports, vec![ports[0]; 3]);
        assert_ne!(ports[0], 0);
    }

    #[test]
    fn an_address_in_use_is_named_with_a_remedy() {
        let options = ListenOptions { reuse_port: false, ..ListenOptions::default() };
        let held = bind(SocketAddr::from(([127, 0, 0, 1], 0)), &options).unwrap();
        let address = held.local_addr().unwrap();
        let message = bind(address, &options).unwrap_err().to_string();
        assert!(message.contains(&address.to_string()), "{message}");
        assert!(message.contains("ss -ltnp"), "{message}");
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
