//! State that all connections share: data, sessions, limits, statistics, the time.

use std::rc::Rc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use slab::Slab;

use crate::copies::Copies;
use crate::databases::Databases;
use crate::parse;
use crate::pool::Pool;
use crate::session::Session;

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
    pub expired: u64,
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
    pub databases: Databases<C::Incoming>,
    pub sessions: Slab<Session<C::Incoming>>,
    /// Clients of the event loop that another client has ended.
    pub killed: Vec<usize>,
    pub pool: Rc<Pool>,
    /// The present limits, and those that the server was started with.
    pub limits: Limits,
    pub start_limits: Limits,
    /// Keys are removed when they expire, not only when they are used.
    pub expires_actively: bool,
    pub allows_debug: bool,
    pub stats: Stats,
    /// Number of bytes that clients have announced and not sent.
    pub arriving_bytes: usize,
    /// Milliseconds since 1970, from a monotonic clock.
    pub now_ms: u64,
    origin: Instant,
    origin_us: u64,
    random: u64,
    last_id: u64,
}

impl<C: Copies> ServerState<C> {
    pub fn new(copies: C, limits: Limits) -> ServerState<C> {
        // The clock must not be behind that of clients, which send absolute times.
        let origin = Instant::now();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin_us = since.as_micros() as u64;
        ServerState {
            copies,
            databases: Databases::new(),
            sessions: Slab::new(),
            killed: Vec::new(),
            pool: Rc::default(),
            limits,
            start_limits: limits,
            expires_actively: true,
            allows_debug: false,
            stats: Stats::default(),
            arriving_bytes: 0,
            now_ms: origin_us / 1000,
            origin,
            origin_us,
            random: since.as_nanos() as u64,
            last_id: 0,
        }
    }

    /// Adds a session for the connection `client` of the event loop. Returns its number.
    pub fn open_session(&mut self, client: usize) -> usize {
        self.last_id += 1;
        self.sessions.insert(Session::new(self.last_id, client, self.now_ms))
    }

    /// Removes a session.
    pub fn close_session(&mut self, number: usize) {
        self.unwatch(number);
        self.sessions.try_remove(number);
    }

    /// Ends the watches of a session.
    pub fn unwatch(&mut self, number: usize) {
        let Some(session) = self.sessions.get_mut(number) else { return };
        for watch in std::mem::take(&mut session.watches) {
            self.databases.get(watch.database).unwatch(&watch.key);
        }
    }

    /// Removes expired keys, a limited number at a time.
    pub fn sweep(&mut self) {
        if self.expires_actively {
            self.databases.sweep(self.now_ms);
        }
    }

    /// Returns the next time at which a key expires, if it is removed then.
    pub fn next_deadline_ms(&self) -> Option<u64> {
        self.expires_actively.then(|| self.databases.next_deadline_ms()).flatten()
    }

    /// Adds the expired keys that were removed since the last call to the statistics.
    pub fn count_expired(&mut self) {
        self.stats.expired += self.databases.take_expired();
    }

    /// Returns a random number (SplitMix64).
    pub fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ self.random >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// The time now, in microseconds since 1970.
    pub fn clock_us(&self) -> u64 {
        self.origin_us + self.origin.elapsed().as_micros() as u64
    }

    /// The time now, in milliseconds since 1970; [`ServerState::now_ms`] is that of the last call
    /// of [`ServerState::read_clock`].
    pub fn clock_ms(&self) -> u64 {
        self.clock_us() / 1000
    }

    pub fn read_clock(&mut self) {
        self.now_ms = self.clock_ms();
    }

    pub fn uptime_s(&self) -> u64 {
        (self.now_ms - self.origin_us / 1000) / 1000
    }
}
