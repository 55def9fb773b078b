//! How to reach a controller, and how to treat it.

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

/// Most I/O queues of one controller.
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
    /// A host with a random identifier, and the name that goes with it.
    ///
    /// # Errors
    /// No randomness.
    pub fn random() -> io::Result<Host> {
        let mut id = [0; 16];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| io::Error::other("no random bytes"))?;
        // Version 4, variant 1 (RFC 9562 §5.4).
        id[6] = id[6] & 0x0f | 0x40;
        id[8] = id[8] & 0x3f | 0x80;
        Host::with_id(id).map_err(io::Error::other)
    }

    /// A host with this identifier, and the name that goes with it.
    ///
    /// # Errors
    /// Never: the name is well formed.
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

/// When a lost connection is made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reconnect {
    /// Attempts in a row before it is given up; 0 never tries.
    pub attempts_max: u32,
    /// Before the second attempt; doubled before each further one.
    pub delay_first: Duration,
    /// The most that it grows to.
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
    /// The pauses before all attempts together.
    pub fn pauses(&self) -> Duration {
        (0..self.attempts_max)
            .fold(Duration::ZERO, |sum, number| sum.saturating_add(self.delay(number)))
    }

    /// How long to wait before attempt `number`, the first of which is 0.
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

/// How to treat a controller.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who we are.
    pub host: Host,
    /// Whom we want.
    pub subsystem: Nqn,
    /// Digests to ask for.
    pub digests: Digests,
    /// A controller that declines one of them is not used; otherwise it is used without.
    pub digests_required: bool,
    /// I/O queues to ask for, each a connection; none for a discovery controller.
    pub queues: u16,
    /// Commands in flight in each.
    pub depth: u16,
    /// After how long without a sign of life the controller gives us up; zero is never.
    pub keep_alive: Duration,
    /// How long a command may take.
    pub command_timeout: Duration,
    /// How long setting up a controller may take.
    pub connect_timeout: Duration,
    /// When lost connections are made again.
    pub reconnect: Reconnect,
    /// How often a command is repeated whose connection was lost: reads, writes and flushes are.
    /// Nobody knows whether the lost one was executed, or will be: a controller that learns late of
    /// the loss may find a write in the old connection after the repeated one was answered, and
    /// put it over what was written to the same blocks since. This crate's target begins nothing
    /// once it knows, and lets the host come again when what it had begun is over.
    pub retries_max: u32,
}

impl Options {
    /// The usual: both digests off, one queue of 127 commands.
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

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The name has no address.
    #[error("{name}: {error}; correct the name, or give an address")]
    Name {
        /// The name.
        name: String,
        /// What the resolver said.
        error: io::Error,
    },
    /// No TCP connection to any address.
    #[error("{}", refusals(.0))]
    Tcp(Vec<(SocketAddr, io::Error)>),
    /// No TLS.
    #[error("{peer}: {error}")]
    Tls {
        /// The address.
        peer: SocketAddr,
        /// What went wrong.
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

/// A connection that is being made.
pub type Connecting<'c> = Pin<Box<dyn Future<Output = Result<BoxStream, StreamError>> + Send + 'c>>;

/// Makes connections to one controller; each queue has its own.
pub trait Connector: Send + Sync + 'static {
    /// Makes one more.
    fn connect(&self) -> Connecting<'_>;
    /// Where to, for messages.
    fn peer(&self) -> String;
}

/// Connections over the kernel's TCP, with TLS where there is a key.
#[derive(Clone, Debug)]
pub struct TcpConnector {
    /// Name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The key, where TLS is wanted.
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
            // A command is one write; none may wait for the answer to another.
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
