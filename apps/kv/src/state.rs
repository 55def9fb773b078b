//! State that all connections share: data, limits, statistics, the time.

use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::copies::Copies;
use crate::parse;
use crate::pool::Pool;
use crate::store::Store;

/// Limits of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections.
    pub clients_max: usize,
    /// Maximum number of words in a request.
    pub arguments_max: usize,
    /// Maximum length of a key.
    pub key_bytes_max: usize,
    /// Maximum length of a value or any other word.
    pub value_bytes_max: usize,
    /// Maximum number of bytes in a request and the input behind it, without values that are
    /// received in place.
    pub input_bytes_max: usize,
    /// Maximum number of answer bytes that a client has not read.
    pub output_bytes_max: usize,
    /// Maximum number of bytes in all keys and values, including announced values.
    pub memory_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            clients_max: 10_000,
            arguments_max: 1 << 20,
            key_bytes_max: 1 << 20,
            value_bytes_max: 512 << 20,
            input_bytes_max: 1 << 30,
            output_bytes_max: 1 << 30,
            memory_bytes_max: 4 << 30,
        }
    }
}

impl Limits {
    pub(crate) fn parse(&self) -> parse::Limits {
        parse::Limits { arguments_max: self.arguments_max, bulk_bytes_max: self.value_bytes_max }
    }
}

/// Statistics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stats {
    pub clients: usize,
    pub accepted: u64,
    pub rejected: u64,
    pub requests: u64,
    pub hits: u64,
    pub misses: u64,
    /// Number of values that were received in place.
    pub in_place: u64,
    /// Number of these that were answered before they were received.
    pub answered_first: u64,
    /// Number of these that the copy service received.
    pub by_service: u64,
}

/// State shared by all connections.
pub(crate) struct ServerState<C: Copies> {
    pub copies: C,
    pub store: Store<C::Incoming>,
    pub pool: Rc<Pool>,
    pub limits: Limits,
    pub stats: Stats,
    /// Number of bytes that clients have announced and not sent.
    pub arriving_bytes: usize,
    /// Milliseconds since 1970, from a monotonic clock.
    pub now_ms: u64,
    origin: Instant,
    origin_ms: u64,
}

impl<C: Copies> ServerState<C> {
    pub fn new(copies: C, limits: Limits) -> ServerState<C> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin_ms = since.as_millis() as u64;
        ServerState {
            copies,
            store: Store::default(),
            pool: Rc::default(),
            limits,
            stats: Stats::default(),
            arriving_bytes: 0,
            now_ms: origin_ms,
            origin: Instant::now(),
            origin_ms,
        }
    }

    /// The time now, in milliseconds since 1970; [`ServerState::now_ms`] is that of the last call
    /// of [`ServerState::read_clock`].
    pub fn clock_ms(&self) -> u64 {
        self.origin_ms + self.origin.elapsed().as_millis() as u64
    }

    pub fn read_clock(&mut self) {
        self.now_ms = self.clock_ms();
    }

    pub fn uptime_s(&self) -> u64 {
        (self.now_ms - self.origin_ms) / 1000
    }
}
