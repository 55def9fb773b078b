//! Splices of a worker: slots of connections, limits of servers, rules for the servers' hosts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use unlade_config::{KeyFileError, read_key};
use unlade_net::FlowKey;
use unlade_splice::Rule;
use unlade_splice::datagram::{Datagram, Key, encode};
use unlade_splice::splice::LENGTH_BYTES_MAX;
use unlade_steering::splice::{ClientSlot, End, ServerSlot, SpliceError, SpliceWorker, Splicing};

use crate::config::DirectReturnConfig;

/// Most bytes that a server may send after a request before a splice begins: what it could send at
/// the start of a connection anyway (RFC 6928).
const LIMIT_BYTES_MAX: u64 = 16 << 10;
/// Fewest such bytes: a head, and segments of a usual length.
const LIMIT_BYTES_MIN: u64 = 4 << 10;
/// The part of the limit that a server may leave unused: a segment, and the granularity of windows.
const LIMIT_SLACK_BYTES: u64 = 2560;
/// Time without direct return after a server's host did not take a rule.
const BACKOFF: Duration = Duration::from_secs(30);

/// Direct return of a pool.
#[derive(Debug)]
pub(crate) struct DirectPool {
    secret: [u8; 16],
    rules_port: u16,
    /// Responses of fewer bytes are relayed.
    pub from_bytes: u64,
}

impl DirectPool {
    /// Reads the key of a pool.
    ///
    /// # Errors
    /// The file is unusable.
    pub(crate) fn load(config: &DirectReturnConfig) -> Result<DirectPool, KeyFileError> {
        let DirectReturnConfig { key_file, rules_port, from_bytes } = config;
        let (rules_port, from_bytes) = (*rules_port, from_bytes.bytes());
        Ok(DirectPool { secret: read_key(key_file)?, rules_port, from_bytes })
    }

    /// Returns the bytes that a server may send after a request before a splice begins.
    fn limit_bytes(&self) -> u32 {
        (self.from_bytes / 2).clamp(LIMIT_BYTES_MIN, LIMIT_BYTES_MAX) as u32
    }
}

/// The slot of a connection to a server.
#[derive(Debug)]
pub(crate) struct ServerEnd {
    slot: ServerSlot,
    /// 0: there is no limit.
    limit_bytes: u32,
}

impl ServerEnd {
    /// Returns true if the server may send little before a splice begins.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit_bytes > 0
    }

    /// Returns true if the server may send a response of so many bytes.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        let limit = u64::from(self.limit_bytes);
        limit == 0 || bytes <= limit.saturating_sub(LIMIT_SLACK_BYTES)
    }
}

/// The splices of a worker.
pub(crate) struct Splices {
    programs: RefCell<SpliceWorker>,
    sockets: [Option<UdpSocket>; 2],
    counter: Cell<u64>,
}

impl Splices {
    /// `None`: there are too many workers.
    pub(crate) fn new(splicing: &Splicing) -> Option<Splices> {
        let programs = RefCell::new(splicing.worker()?);
        let unspecified: [IpAddr; 2] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let sockets = unspecified.map(|ip| {
            let socket = UdpSocket::bind(SocketAddr::new(ip, 0)).ok()?;
            socket.set_nonblocking(true).ok().map(|()| socket)
        });
        Some(Splices { programs, sockets, counter: Cell::new(0) })
    }

    /// Returns the next number: later than those of earlier processes.
    fn next_counter(&self) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.counter.set(now.max(self.counter.get() + 1));
        self.counter.get()
    }

    /// Sends a rule to the server's host. A rule that is lost costs time only: the bytes come here.
    fn send(&self, rule: Rule, client: &ClientSlot, server: &ServerSlot, pool: &DirectPool) {
        let flow = *server.flow();
        let datagram =
            Datagram { counter: self.next_counter(), server: flow, client: *client.flow(), rule };
        // Keys of one pool differ by the balancer that uses them.
        let number = match flow.client.ip() {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        let key = Key { number: number.into(), secret: pool.secret };
        let socket = &self.sockets[usize::from(flow.is_ipv6())];
        let to = SocketAddr::new(flow.service.ip(), pool.rules_port);
        if let Some(socket) = socket
            && let Err(error) = socket.send_to(&encode(&datagram, &key), to)
        {
            tracing::debug!(server = %to, %error, "sending a rule");
        }
    }

    /// Opens the slot of a client's connection.
    ///
    /// # Errors
    /// As those of [`SpliceWorker::open_client`].
    pub(crate) fn open_client(&self, flow: &FlowKey) -> Result<ClientSlot, SpliceError> {
        self.programs.borrow_mut().open_client(flow)
    }

    /// Limits what a server may send after a request; opens the slot of its connection first if
    /// there is none. The balancer is the client of `flow`.
    ///
    /// # Errors
    /// As those of [`SpliceWorker::open_server`].
    pub(crate) fn limit(
        &self,
        end: &mut Option<ServerEnd>,
        flow: &FlowKey,
        pool: &DirectPool,
    ) -> Result<(), SpliceError> {
        let limit_bytes = pool.limit_bytes();
        let mut programs = self.programs.borrow_mut();
        match end {
            Some(end) => {
                programs.limit(&end.slot, limit_bytes)?;
                end.limit_bytes = limit_bytes;
            }
            None => {
                let slot = programs.open_server(flow, limit_bytes)?;
                *end = Some(ServerEnd { slot, limit_bytes });
            }
        }
        Ok(())
    }

    /// Lets a server send the rest of a response that is relayed, `rest_bytes` from the bytes on
    /// that have come. The limit ends if the length is not known, or too long.
    pub(crate) fn relay(&self, end: &mut Option<ServerEnd>, rest_bytes: u64) {
        let Some(end) = end.as_mut().filter(|end| end.is_limited()) else { return };
        let mut programs = self.programs.borrow_mut();
        let rest_bytes = u32::try_from(rest_bytes).ok().filter(|bytes| *bytes <= LENGTH_BYTES_MAX);
        match rest_bytes {
            // Without a slot there is no limit either.
            Some(bytes) => drop(programs.extend(&end.slot, bytes)),
            None if programs.limit(&end.slot, 0).is_ok() => end.limit_bytes = 0,
            None => {}
        }
    }

    /// Begins a splice of `rest_bytes` bytes, or of 1 GiB of them: the server's host gets a rule,
    /// and the server the client's window. Returns the number of bytes.
    ///
    /// # Errors
    /// As those of [`SpliceWorker::begin`].
    pub(crate) fn begin(
        &self,
        client: &ClientSlot,
        end: &ServerEnd,
        rest_bytes: u64,
        pool: &DirectPool,
    ) -> Result<u64, SpliceError> {
        let bytes = u32::try_from(rest_bytes).unwrap_or(u32::MAX).min(LENGTH_BYTES_MAX);
        let rule = self.programs.borrow_mut().begin(client, &end.slot, Some(bytes), true)?;
        self.send(rule, client, &end.slot, pool);
        self.settle(client, end);
        Ok(bytes.into())
    }

    /// Sends the acknowledgement that the server lacks.
    pub(crate) fn settle(&self, client: &ClientSlot, end: &ServerEnd) {
        if let Err(error) = self.programs.borrow_mut().settle(client, &end.slot) {
            tracing::debug!(%error, "acknowledging");
        }
    }

    /// Ends a splice that is complete. `None`: a connection is closed.
    pub(crate) fn end(&self, client: &ClientSlot, end: &ServerEnd) -> Option<End> {
        self.programs.borrow_mut().end(client, &end.slot).ok()
    }

    /// Gives up a splice; both connections are closed afterwards.
    pub(crate) fn abort(&self, client: &ClientSlot, end: &ServerEnd) {
        // Without the slots there is no splice either.
        let _ = self.programs.borrow_mut().abort(client, &end.slot);
    }
}

/// Servers whose hosts do not take rules.
#[derive(Debug, Default)]
pub(crate) struct Backoffs {
    until: RefCell<HashMap<SocketAddr, Instant>>,
}

impl Backoffs {
    /// Returns true if responses of the server are relayed for now.
    pub(crate) fn is_on(&self, server: SocketAddr) -> bool {
        let mut until = self.until.borrow_mut();
        match until.get(&server) {
            Some(end) if *end > Instant::now() => true,
            Some(_) => {
                until.remove(&server);
                false
            }
            None => false,
        }
    }

    /// Relays the server's responses for a while.
    pub(crate) fn begin(&self, server: SocketAddr) {
        tracing::warn!(%server, "the server's host does not take rules: is `unlade agent` running there, with the same key?");
        self.until.borrow_mut().insert(server, Instant::now() + BACKOFF);
    }
}
