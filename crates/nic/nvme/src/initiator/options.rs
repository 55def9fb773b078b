//! Options of a connection to a controller, and the connectors.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use unlade_nvme_wire::{Digests, Nqn};
use unlade_tls::psk::Psk;

use super::address;
use super::driver::BoxStream;
use crate::secure::{self, TlsError};

/// Largest number of I/O queues of one controller.
pub const QUEUES_MAX: u16 = 64;

/// A host: its name and identifier (NVMe Base §4.5, §4.6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// HOSTNQN.
    pub nqn: Nqn,
    /// HOSTID, a UUID.
    pub id: [u8; 16],
}

impl Host {
    /// Creates a host with a random identifier, and the corresponding name.
    ///
    /// # Errors
    /// The system's random source fails.
    pub fn random() -> io::Result<Host> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| io::Error::other("no random bytes"))?;
        // Version 4, variant 1 (RFC 9562 §5.4).
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        Host::with_id(id).map_err(io::Error::other)
    }

    /// Creates a host with this identifier, and the corresponding name.
    ///
    /// # Errors
    /// None: the name is well formed.
    pub fn with_id(id: [u8; 16]) -> Result<Host, unlade_nvme_wire::fabrics::NqnError> {
        let nqn = Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid(&id)))?;
        Ok(Host { nqn, id })
    }
}

/// A UUID as text.
pub fn uuid(id: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (at, byte) in id.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// The policy for reconnections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// Number of consecutive attempts; 0 disables reconnection.
    pub attempts_max: u32,
    /// Pause before the second attempt; doubled before each further one.
    pub delay_first: Duration,
    /// Longest pause.
    pub delay_max: Duration,
}

impl Default for Reconnect {
    fn default() -> Reconnect {
        Reconnect {
            attempts_max: 20,
            delay_first: Duration::from_millis(100),
            delay_max: Duration::from_secs(5),
        }
    }
}

impl Reconnect {
    /// The sum of the pauses before all attempts.
    pub fn pauses(&self) -> Duration {
        (0..self.attempts_max)
            .fold(Duration::ZERO, |sum, number| sum.saturating_add(self.delay(number)))
    }

    /// The pause before attempt `number`, counted from 0.
    pub fn delay(&self, number: u32) -> Duration {
        match number.checked_sub(1) {
            None => Duration::ZERO,
            Some(doublings) => {
                let factor = 1_u32.checked_shl(doublings).unwrap_or(u32::MAX);
                self.delay_first.saturating_mul(factor).min(self.delay_max)
            }
        }
    }
}

/// Options of a connection to a controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// This host.
    pub host: Host,
    /// The subsystem's name.
    pub subsystem: Nqn,
    /// Digests to request.
    pub digests: Digests,
    /// True to refuse a controller that declines one of them; otherwise it is used without.
    pub digests_required: bool,
    /// Number of I/O queues to request, each a connection; 0 for a discovery controller.
    pub queues: u16,
    /// Commands in flight per queue.
    pub depth: u16,
    /// Keep alive timeout, after which the controller drops the host; zero disables it.
    pub keep_alive: Duration,
    /// Timeout of a command.
    pub command_timeout: Duration,
    /// Timeout of a controller's set-up.
    pub connect_timeout: Duration,
    /// The policy for lost connections.
    pub reconnect: Reconnect,
    /// Number of times that a read, write or flush is repeated after its connection was lost. It
    /// is unknown if the lost command was executed, or will be: a controller that detects the
    /// loss late may still execute a write of the old connection after the repeated one was
    /// answered, and overwrite later data in the same blocks. This crate's target starts no
    /// command after it has detected the loss, and accepts the host again only when the running
    /// commands are complete.
    pub retries_max: u32,
}

impl Options {
    /// The defaults: both digests off, one queue of 127 commands.
    pub fn new(host: Host, subsystem: Nqn) -> Options {
        Options {
            host,
            subsystem,
            digests: Digests::NONE,
            digests_required: true,
            queues: 1,
            depth: 127,
            keep_alive: Duration::from_secs(15),
            command_timeout: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(10),
            reconnect: Reconnect::default(),
            retries_max: 5,
        }
    }
}

/// An error while a connection is established.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The name cannot be resolved.
    #[error("{name}: {error}; correct the name, or give an address")]
    Name {
        /// The name.
        name: String,
        /// Error of the resolver.
        error: io::Error,
    },
    /// No address accepts a TCP connection.
    #[error("{}", refusals(.0))]
    Tcp(Vec<(SocketAddr, io::Error)>),
    /// The TLS handshake failed.
    #[error("{peer}: {error}")]
    Tls {
        /// The address.
        peer: SocketAddr,
        /// The error.
        error: TlsError,
    },
    /// Another kind of stream failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// `connection refused by 192.0.2.1:4420; …`, for each address that was tried.
fn refusals(all: &[(SocketAddr, io::Error)]) -> String {
    let one = |(peer, error): &(SocketAddr, io::Error)| match error.kind() {
        io::ErrorKind::ConnectionRefused => format!("connection refused by {peer}"),
        io::ErrorKind::TimedOut => format!("no answer from {peer}"),
        _ => format!("{peer}: {error}"),
    };
    let mut text = all.iter().map(one).collect::<Vec<_>>().join(", ");
    if all.iter().any(|(_, error)| error.kind() == io::ErrorKind::ConnectionRefused) {
        text.push_str("; nothing listens there: is the target running, is the port right?");
    }
    text
}

/// A connection attempt.
pub type Connecting<'c> = Pin<Box<dyn Future<Output = Result<BoxStream, StreamError>> + Send + 'c>>;

/// A factory of connections to one controller; each queue has its own connection.
pub trait Connector: Send + Sync + 'static {
    /// Opens one more connection.
    fn connect(&self) -> Connecting<'_>;
    /// The remote address, for messages.
    fn peer(&self) -> String;
}

/// A connector over the kernel's TCP, with TLS if there is a key.
#[derive(Clone, Debug)]
pub struct TcpConnector {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The key, for TLS.
    pub psk: Option<Psk>,
}

impl TcpConnector {
    /// Connects to the first address that answers.
    async fn tcp(&self) -> Result<(TcpStream, SocketAddr), StreamError> {
        let name = || self.host.clone();
        let found = lookup_host((self.host.as_str(), self.port)).await;
        let addresses = found.map_err(|error| StreamError::Name { name: name(), error })?;
        let mut failures = Vec::new();
        for peer in addresses {
            // A command is one write, which must not wait for the acknowledgement of another.
            let connected = TcpStream::connect(peer).await;
            match connected.and_then(|tcp| tcp.set_nodelay(true).map(|()| tcp)) {
                Ok(tcp) => return Ok((tcp, peer)),
                Err(error) => failures.push((peer, error)),
            }
        }
        if failures.is_empty() {
            let error = io::Error::other("the name has no address");
            return Err(StreamError::Name { name: name(), error });
        }
        Err(StreamError::Tcp(failures))
    }
}

impl Connector for TcpConnector {
    fn connect(&self) -> Connecting<'_> {
        Box::pin(async move {
            let (tcp, peer) = self.tcp().await?;
            match &self.psk {
                None => Ok(Box::new(tcp) as BoxStream),
                Some(psk) => match secure::connect(tcp, psk.clone()).await {
                    Ok(stream) => Ok(Box::new(stream) as BoxStream),
                    Err(error) => Err(StreamError::Tls { peer, error }),
                },
            }
        })
    }

    fn peer(&self) -> String {
        address::peer(&self.host, self.port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit() {
        let reconnect = Reconnect {
            attempts_max: 9,
            delay_first: Duration::from_millis(100),
            delay_max: Duration::from_millis(350),
        };
        let delays: Vec<u128> = (0..5).map(|number| reconnect.delay(number).as_millis()).collect();
        assert_eq!(delays, [0, 100, 200, 350, 350]);
        assert_eq!(reconnect.delay(u32::MAX), Duration::from_millis(350));
        let pauses = Reconnect { attempts_max: 5, ..reconnect }.pauses();
        assert_eq!(pauses.as_millis(), 100 + 200 + 350 + 350);
    }

    #[test]
    fn a_random_host_is_named_by_its_identifier() {
        let host = Host::random().unwrap();
        let name = host.nqn.as_str();
        assert_eq!(name.len(), "nqn.2014-08.org.nvmexpress:uuid:".len() + 36);
        assert!(name.ends_with(&uuid(&host.id)));
        assert_ne!(Host::random().unwrap(), host);
    }
}
