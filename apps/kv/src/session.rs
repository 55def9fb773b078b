//! State of a client's session: what commands know of their connection.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::store::Seen;
use crate::table::Command;
use crate::value::Value;

/// Answers that a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    All,
    None,
    /// All except that of the next command.
    SkipNext,
}

/// A command in a transaction.
#[derive(Debug)]
pub(crate) struct Queued<I> {
    pub command: &'static Command,
    pub words: Vec<Vec<u8>>,
    pub apart: Option<Rc<Value<I>>>,
}

/// A transaction whose commands are being queued.
#[derive(Debug)]
pub(crate) struct Transaction<I> {
    pub queue: VecDeque<Queued<I>>,
    /// Number of bytes of the queued commands.
    pub bytes: usize,
    /// A command was refused: `EXEC` is going to fail.
    pub has_failed: bool,
}

impl<I> Default for Transaction<I> {
    fn default() -> Transaction<I> {
        Transaction { queue: VecDeque::new(), bytes: 0, has_failed: false }
    }
}

/// A watched key.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pub database: usize,
    pub key: Rc<[u8]>,
    pub seen: Seen,
}

/// Memory of a connection's buffers, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Buffers {
    /// Input that is not executed, with the current request.
    pub input: usize,
    /// Room for more input.
    pub input_free: usize,
    /// Answers that are not sent.
    pub output: usize,
}

/// A session.
#[derive(Debug)]
pub(crate) struct Session<I> {
    /// Number of the connection since the start of the server, from 1 on.
    pub id: u64,
    /// Number of the connection in the event loop.
    pub client: usize,
    /// File descriptor of the socket.
    pub fd: i32,
    pub peer: String,
    pub local: String,
    pub name: Vec<u8>,
    pub database: usize,
    pub is_resp3: bool,
    pub replies: Replies,
    /// Name of the last command.
    pub last: &'static str,
    pub since_ms: u64,
    pub used_ms: u64,
    pub transaction: Option<Transaction<I>>,
    pub watches: Vec<Watch>,
    pub buffers: Buffers,
    /// The connection ends when its pending answers have been sent.
    pub is_ending: bool,
}

impl<I> Session<I> {
    /// Creates the session of a new connection.
    pub fn new(id: u64, client: usize, now_ms: u64) -> Session<I> {
        Session {
            id,
            client,
            fd: -1,
            peer: String::new(),
            local: String::new(),
            name: Vec::new(),
            database: 0,
            is_resp3: false,
            replies: Replies::All,
            last: "NULL",
            since_ms: now_ms,
            used_ms: now_ms,
            transaction: None,
            watches: Vec::new(),
            buffers: Buffers::default(),
            is_ending: false,
        }
    }
}
