//! Splices of a worker: slots of connections, limits of servers, rules for the servers' hosts.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use unlade_net::FlowKey;
use unlade_splice::datagram::Key;
use unlade_splice::splice::LENGTH_BYTES_MAX;
use unlade_steering::splice::{
    ClientSlot, End, ServerSlot, SpliceError, SpliceWorker, Splicing, When,
};

use crate::direct_pool::{DirectPool, LARGE_LIMIT_BYTES, fits, is_used_up};

/// Paths whose responses are remembered: a power of two.
const PATHS_MAX: usize = 4096;
/// So many responses in sequence that came here although they were to be direct have one reason.
const STRAYS_MAX: u32 = 4;
/// More bytes than can be under way when a server's host takes a rule: it has no agent, or another key.
const STRAY_BYTES_MAX: u64 = 256 << 10;
/// Time without rules for a server's host that did not take one.
const BACKOFF: Duration = Duration::from_secs(30);

/// The slot of a connection to a server.
#[derive(Debug)]
pub(crate) struct ServerEnd {
    slot: ServerSlot,
    /// 0: there is no limit.
    limit_bytes: u32,
    /// The splice of the newest request begins when that leaves the socket.
    is_wish: bool,
}

/// The state of a splice that began early, after its request was written.
pub(crate) enum Beginning {
    /// It has begun.
    Begun,
    /// It has not: no byte of the request has left the socket.
    Awaited,
    /// It will not: the response comes to the socket.
    Refused(SpliceError),
}

impl ServerEnd {
    /// Returns true if the server may send little before a splice begins.
    pub(crate) fn is_limited(&self) -> bool {
        self.limit_bytes > 0
    }

    /// Returns the state of a splice that began early.
    pub(crate) fn beginning(&self) -> Beginning {
        if !self.is_wish {
            return Beginning::Begun;
        }
        match self.slot.wished() {
            Some(Ok(())) => Beginning::Begun,
            None => Beginning::Awaited,
            Some(Err(error)) => Beginning::Refused(error),
        }
    }

    /// Returns true if the server may send a response of so many bytes.
    pub(crate) fn fits(&self, bytes: u64) -> bool {
        self.limit_bytes == 0 || fits(self.limit_bytes, bytes)
    }

    /// Returns true if so many bytes of a longer response came that the server may wait for more room.
    pub(crate) fn is_used_up(&self, came_bytes: u64) -> bool {
        is_used_up(self.limit_bytes, came_bytes)
    }
}

/// Lengths of recent responses by the path of the request. Two paths can have one place: the later
/// one has it.
struct Lengths(Vec<Cell<Option<(u64, u64)>>>);

impl Lengths {
    fn place(&self, path: u64) -> Option<&Cell<Option<(u64, u64)>>> {
        self.0.get(path as usize & (PATHS_MAX - 1))
    }

    fn note(&self, path: u64, bytes: u64) {
        self.place(path).into_iter().for_each(|place| place.set(Some((path, bytes))));
    }

    fn expected(&self, path: u64) -> Option<u64> {
        let (known, bytes) = self.place(path)?.get()?;
        (known == path).then_some(bytes)
    }
}

/// The splices of a worker.
pub(crate) struct Splices {
    programs: RefCell<SpliceWorker>,
    lengths: Lengths,
    hasher: RandomState,
    counter: Cell<u64>,
}

impl Splices {
    /// `None`: there are too many workers.
    pub(crate) fn new(splicing: &Splicing) -> Option<Splices> {
        let programs = RefCell::new(splicing.worker()?);
        let lengths = Lengths(vec![Cell::new(None); PATHS_MAX]);
        Some(Splices { programs, lengths, hasher: RandomState::new(), counter: Cell::new(0) })
    }

    /// Returns the number by which a path's responses are remembered.
    pub(crate) fn path(&self, path: &str) -> u64 {
        self.hasher.hash_one(path)
    }

    /// Notes the length of a response.
    pub(crate) fn note_length(&self, path: u64, bytes: u64) {
        self.lengths.note(path, bytes);
    }

    /// Returns the next number: later than those of earlier processes.
    fn next_counter(&self) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.counter.set(now.max(self.counter.get() + 1));
        self.counter.get()
    }

    /// Opens the slot of a client's connection.
    ///
    /// # Errors
    /// As those of [`SpliceWorker::open_client`].
    pub(crate) fn open_client(&self, flow: &FlowKey) -> Result<ClientSlot, SpliceError> {
        self.programs.borrow_mut().open_client(flow)
    }

    /// Opens the slot of a connection to a server, and limits what it may send after the next request,
    /// which is for a path. The balancer is the client of `flow`.
    ///
    /// # Errors
    /// As those of [`SpliceWorker::open_server`].
    pub(crate) fn open_server(
        &self,
        flow: &FlowKey,
        pool: &DirectPool,
        path: u64,
    ) -> Result<ServerEnd, SpliceError> {
        let limit_bytes = pool.limit_bytes(self.lengths.expected(path));
        let mut programs = self.programs.borrow_mut();
        let slot = programs.open_server(flow, limit_bytes, pool.rules_port)?;
        Ok(ServerEnd { slot, limit_bytes, is_wish: false })
    }

    /// Limits what a server may send after the next request, which is for a path.
    ///
    /// # Errors
    /// As those of [`SpliceWorker::limit`].
    pub(crate) fn limit(
        &self,
        end: &mut ServerEnd,
        pool: &DirectPool,
        path: u64,
    ) -> Result<(), SpliceError> {
        let limit_bytes = pool.limit_bytes(self.lengths.expected(path));
        match end.limit_bytes {
            0 => self.programs.borrow_mut().limit(&end.slot, limit_bytes)?,
            _ => end.slot.set_limit(limit_bytes),
        }
        end.limit_bytes = limit_bytes;
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

    /// Returns the length of the last response for a path.
    pub(crate) fn expected_bytes(&self, path: u64) -> Option<u64> {
        self.lengths.expected(path)
    }

    /// Begins a splice before a request of so many bytes is sent, for which as many of a response are
    /// expected. Without an agent it begins when the request leaves the socket:
    /// [`ServerEnd::beginning`]. `is_sealed`: the response begins with the header of a sealed one.
    ///
    /// # Errors
    /// As those of [`SpliceWorker::begin`].
    pub(crate) fn begin_early(
        &self,
        client: &ClientSlot,
        end: &mut ServerEnd,
        (request_bytes, expected_bytes): (u32, u32),
        secret: Option<[u8; 16]>,
        is_sealed: bool,
    ) -> Result<(), SpliceError> {
        if end.limit_bytes > 0 {
            // Of the next response, whatever this one is.
            end.slot.set_limit(LARGE_LIMIT_BYTES);
            end.limit_bytes = LARGE_LIMIT_BYTES;
        }
        end.is_wish = secret.is_none();
        if end.is_wish {
            end.slot.wish(client, (request_bytes, expected_bytes), is_sealed);
            return Ok(());
        }
        self.begin_when(client, end, When::Early { request_bytes, expected_bytes }, secret)
    }

    /// Notes the length of a response that began early, with its head, which came to the socket.
    pub(crate) fn set_length(&self, client: &ClientSlot, end: &ServerEnd, bytes: u32) {
        if let Err(error) = self.programs.borrow_mut().set_length(client, &end.slot, bytes) {
            tracing::debug!(%error, "the length of a response");
        }
    }

    /// Begins a splice of `rest_bytes` bytes, or of 1 GiB of them: the server's host gets a rule, with
    /// the client's window for the server. Returns the number of bytes.
    ///
    /// # Errors
    /// As those of [`SpliceWorker::begin`].
    pub(crate) fn begin(
        &self,
        client: &ClientSlot,
        end: &ServerEnd,
        rest_bytes: u64,
        secret: Option<[u8; 16]>,
    ) -> Result<u64, SpliceError> {
        let bytes = u32::try_from(rest_bytes).unwrap_or(u32::MAX).min(LENGTH_BYTES_MAX);
        self.begin_when(client, end, When::Late(bytes), secret)?;
        Ok(bytes.into())
    }

    fn begin_when(
        &self,
        client: &ClientSlot,
        end: &ServerEnd,
        when: When,
        secret: Option<[u8; 16]>,
    ) -> Result<(), SpliceError> {
        // Keys of one pool differ by the balancer that uses them.
        let number = match end.slot.flow().client.ip() {
            IpAddr::V4(ip) => ip.octets()[3],
            IpAddr::V6(ip) => ip.octets()[15],
        };
        let key = secret.map(|secret| Key { number: number.into(), secret });
        let agent = key.as_ref().map(|key| (key, self.next_counter()));
        self.programs.borrow_mut().begin(client, &end.slot, when, agent)
    }

    /// Sends the acknowledgement that the server lacks; `is_forced`: also if none is known to be
    /// lacking.
    pub(crate) fn settle(&self, client: &ClientSlot, end: &ServerEnd, is_forced: bool) {
        if let Err(error) = self.programs.borrow_mut().settle(client, &end.slot, is_forced) {
            tracing::debug!(%error, "acknowledging");
        }
    }

    /// Sends the client an acknowledgement that was kept.
    pub(crate) fn acknowledge(&self, client: &ClientSlot) {
        if let Err(error) = self.programs.borrow_mut().acknowledge(client) {
            tracing::debug!(%error, "acknowledging a request");
        }
    }

    /// Ends a splice that is complete. `None`: a connection is closed.
    pub(crate) fn end(&self, client: &ClientSlot, end: &ServerEnd) -> Option<End> {
        self.programs.borrow_mut().end(client, &end.slot).ok()
    }

    /// Gives up a splice; both connections are closed afterwards, unless no byte was direct.
    pub(crate) fn abort(&self, client: &ClientSlot, end: &ServerEnd) {
        // Without the slots there is no splice either.
        let _ = self.programs.borrow_mut().abort(client, &end.slot);
    }
}

/// Servers whose hosts may take no rules.
#[derive(Debug, Default)]
pub(crate) struct Backoffs(RefCell<HashMap<SocketAddr, Strays>>);

#[derive(Debug)]
enum Strays {
    /// Responses in sequence of which most came here although they were to be direct.
    Some(u32),
    /// The host gets no rules until then.
    Until(Instant),
}

impl Backoffs {
    /// Returns true if the server's host gets no rules for now: the first bytes of a response would wait
    /// for a window that it does not give.
    pub(crate) fn is_on(&self, server: SocketAddr) -> bool {
        let mut all = self.0.borrow_mut();
        match all.get(&server) {
            Some(Strays::Until(end)) if *end > Instant::now() => true,
            Some(Strays::Until(_)) => {
                all.remove(&server);
                false
            }
            _ => false,
        }
    }

    /// Notes the end of a response of `bytes` bytes, of which `stray_bytes` came here although they were
    /// to be direct.
    pub(crate) fn note(&self, server: SocketAddr, stray_bytes: u64, bytes: u64) {
        if self.is_on(server) {
            return;
        }
        let mut all = self.0.borrow_mut();
        if 2 * stray_bytes <= bytes {
            all.remove(&server);
            return;
        }
        let before = match all.get(&server) {
            Some(Strays::Some(count)) => *count,
            _ => 0,
        };
        let count = before + if stray_bytes > STRAY_BYTES_MAX { STRAYS_MAX } else { 1 };
        if count < STRAYS_MAX {
            all.insert(server, Strays::Some(count));
            return;
        }
        all.insert(server, Strays::Until(Instant::now() + BACKOFF));
        tracing::warn!(
            %server,
            "the server's host does not take rules, so its responses pass through this host: is \
             `unlade agent` running there, with the same key?"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_begins_early_after_strays_in_sequence() {
        let (backoffs, server) = (Backoffs::default(), "10.0.0.3:80".parse().unwrap());
        for _ in 0..10 {
            (1..STRAYS_MAX).for_each(|_| backoffs.note(server, 51, 100));
            backoffs.note(server, 50, 100);
        }
        assert!(!backoffs.is_on(server), "half of one in between was direct");
        (0..STRAYS_MAX).for_each(|_| backoffs.note(server, 51, 100));
        assert!(backoffs.is_on(server));
    }

    #[test]
    fn a_long_stray_shows_at_once_that_there_is_no_agent() {
        let (backoffs, server) = (Backoffs::default(), "10.0.0.3:80".parse().unwrap());
        backoffs.note(server, STRAY_BYTES_MAX + 1, 4 * STRAY_BYTES_MAX);
        assert!(!backoffs.is_on(server), "most of it was direct");
        backoffs.note(server, STRAY_BYTES_MAX + 1, STRAY_BYTES_MAX + 1);
        assert!(backoffs.is_on(server));
    }

    #[test]
    fn the_last_length_of_a_path_is_expected() {
        let lengths = Lengths(vec![Cell::new(None); PATHS_MAX]);
        lengths.note(7, 100);
        lengths.note(7, 200);
        assert_eq!((lengths.expected(7), lengths.expected(8)), (Some(200), None));
        lengths.note(7 + PATHS_MAX as u64, 300);
        assert_eq!(lengths.expected(7), None, "another path has the place");
    }
}
