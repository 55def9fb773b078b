//! A client connection: reads, executes requests, sends the answers; then, if a value was left in
//! the socket, receives that value.
//!
//! A `SET` is answered before its value is received only if the complete value is in the socket's
//! receive queue: from then on no peer and no network can prevent its receipt. A value that is not
//! complete there is received as it comes, and answered when the rest of it is in the queue.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use unlade_copy::ReceiveError;

use crate::arguments::Arguments;
use crate::command::execute;
use crate::copies::{Arrival, Copies};
use crate::output::{Flushed, Output};
use crate::parse::{Open, Parser, Progress, ProtocolError};
use crate::session::Buffers;
use crate::state::ServerState;
use crate::value::{CRLF, Value};

/// Minimum room for a read.
const READ_BYTES: usize = 16 << 10;
/// Input buffers with more capacity are freed when they are empty.
const INPUT_KEPT_BYTES: usize = 1 << 20;
/// Input buffers with more capacity are made smaller if less than half of it was used lately.
const INPUT_SMALL_BYTES: usize = 32 << 10;
/// Time without a read after which an empty input buffer is freed.
const IDLE_MS: u64 = 2000;
/// Minimum length of an argument that is counted before it arrives; shorter ones are within the
/// input buffer.
const ANNOUNCED_BYTES_MIN: usize = READ_BYTES;
/// Maximum number of reads from a client before another client's turn.
const READS_MAX: u32 = 4;
/// Number of pending answer bytes from which on no more requests of the client are read.
const OUTPUT_PAUSE_BYTES: usize = 1 << 20;
/// Maximum number of bytes sent to a client before another client's turn.
const SEND_BYTES: usize = 1 << 20;
/// Number of polls of a value that the service receives, before the connection waits for it.
const LOOKS_MAX: u32 = 64;

/// Reason why the server ends a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("the client closed the connection")]
    Closed,
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    #[error("{0} bytes of requests wait: more than a client may send ahead")]
    Input(usize),
    #[error("{0} bytes of answers wait: the client does not read them")]
    Output(usize),
    #[error("no memory for a value of {0} bytes: 'maxmemory' is reached")]
    Memory(usize),
    #[error("{0}")]
    Socket(#[from] io::Error),
    #[error("a value did not arrive: {0}")]
    Value(#[from] ReceiveError),
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TurnResult {
    /// The connection has to wait for its socket.
    Done,
    /// There is more work at once.
    More,
    /// The connection is over.
    Ended,
}

/// A value that is arriving and not complete in the socket's queue.
struct Body<I> {
    incoming: I,
    len: usize,
    /// The request is complete except for this value.
    is_last: bool,
}

/// A connection.
pub(crate) struct Connection<C: Copies> {
    socket: Arc<OwnedFd>,
    /// Number of its session.
    session: usize,
    input: Vec<u8>,
    /// Largest number of bytes in the input since the last review.
    input_peak: usize,
    read_ms: u64,
    parser: Parser,
    body: Option<Body<C::Incoming>>,
    /// Value of the request that is being read, even if it has arrived.
    apart: Option<Rc<Value<C::Incoming>>>,
    /// An acknowledged value, which must be received before any later bytes.
    acknowledged: Option<Rc<Value<C::Incoming>>>,
    looks: u32,
    output: Output<C::Incoming>,
    /// The socket does not accept answers at present.
    is_blocked: bool,
    /// Start of the current request in the input.
    start: usize,
    /// Number of bytes that its current argument lacks.
    missing: usize,
    /// Number of argument bytes that the request has announced and that the state counts; and
    /// those of the last argument.
    announced: usize,
    announced_index: Option<usize>,
    /// The last request had a value that was received in place.
    expects_value: bool,
    /// No more requests are read; only the pending answers are sent.
    is_ending: bool,
}

impl<C: Copies> Connection<C> {
    pub fn new(socket: OwnedFd, session: usize, state: &ServerState<C>) -> Connection<C> {
        Connection {
            socket: Arc::new(socket),
            session,
            input: Vec::new(),
            input_peak: 0,
            read_ms: state.now_ms,
            parser: Parser::new(state.limits.parse()),
            body: None,
            apart: None,
            acknowledged: None,
            looks: 0,
            output: Output::new(&state.pool),
            is_blocked: false,
            start: 0,
            missing: 0,
            announced: 0,
            announced_index: None,
            expects_value: false,
            is_ending: false,
        }
    }

    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    pub fn session(&self) -> usize {
        self.session
    }

    /// Returns true if there are answers that the socket did not accept.
    pub fn wants_to_write(&self) -> bool {
        self.is_blocked && self.output.len() > 0
    }

    /// Returns true if the connection reads requests at present.
    pub fn wants_to_read(&self) -> bool {
        !self.is_ending && self.output.len() < OUTPUT_PAUSE_BYTES
    }

    /// Runs a turn, when the socket is ready or there was more work.
    pub fn turn(&mut self, state: &mut ServerState<C>) -> TurnResult {
        // Another client may have ended this one.
        self.is_ending |= state.sessions[self.session].is_ending;
        let result = self.work(state);
        self.show_buffers(state);
        match result {
            Ok(()) if self.output.len() == 0 && self.is_ending => TurnResult::Ended,
            Ok(()) if self.output.len() == 0 || self.is_blocked => TurnResult::Done,
            Ok(()) => TurnResult::More,
            Err(error) => self.end(&error, state),
        }
    }

    /// Notes the memory of the buffers in the session.
    fn show_buffers(&self, state: &mut ServerState<C>) {
        let input = self.input.len() - self.start;
        let buffers =
            Buffers { input, input_free: self.input.capacity() - input, output: self.output.len() };
        state.sessions[self.session].buffers = buffers;
    }

    /// Frees room in the input that the client does not need any more. Returns true if there is a
    /// buffer to look at again.
    pub fn review(&mut self, state: &mut ServerState<C>) -> bool {
        let len = self.input.len() - self.start;
        let is_idle = state.now_ms.saturating_sub(self.read_ms) >= IDLE_MS;
        let is_large = self.input.capacity() > INPUT_SMALL_BYTES;
        if len == 0 && is_idle {
            self.replace_input(0, state);
        } else if is_large && 2 * self.input_peak.max(len + self.missing) < self.input.capacity() {
            let wanted = self.input_peak.max(len + self.missing).max(READ_BYTES);
            self.replace_input(wanted, state);
        }
        self.input_peak = len;
        self.show_buffers(state);
        self.input.capacity() > 0
    }

    /// Moves the input to a buffer with this capacity; the old one goes to the pool.
    fn replace_input(&mut self, capacity: usize, state: &ServerState<C>) {
        let mut other = if capacity > 0 { state.pool.take(capacity) } else { Vec::new() };
        other.extend_from_slice(&self.input[self.start..]);
        self.start = 0;
        state.pool.give(std::mem::replace(&mut self.input, other));
    }

    /// Sends pending answers.
    fn flush(&mut self, most: usize) -> io::Result<Flushed> {
        let flushed = self.output.flush(self.socket.as_fd(), most)?;
        self.is_blocked = flushed == Flushed::Blocked;
        Ok(flushed)
    }

    /// Sends the reason to the client if possible, and ends the connection.
    fn end(&mut self, error: &ClientError, state: &mut ServerState<C>) -> TurnResult {
        let is_told = matches!(
            error,
            ClientError::Protocol(_) | ClientError::Input(_) | ClientError::Memory(_)
        );
        self.is_ending = true;
        self.release(state);
        if !is_told {
            return TurnResult::Ended;
        }
        self.output.is_muted = false;
        self.output.error(&match error {
            ClientError::Memory(_) => format!("OOM {error}"),
            _ => format!("ERR {error}"),
        });
        match self.flush(usize::MAX) {
            Ok(Flushed::Blocked) => TurnResult::Done,
            _ => TurnResult::Ended,
        }
    }

    fn work(&mut self, state: &mut ServerState<C>) -> Result<(), ClientError> {
        let before = self.output.len();
        self.flush(SEND_BYTES)?;
        let may_send = SEND_BYTES - (before - self.output.len());
        if self.is_in_service() {
            return Ok(());
        }
        self.receive_acknowledged()?;
        // Answer the requests that were left when too many answers were pending.
        self.answer(state)?;
        for _ in 0..READS_MAX {
            if self.acknowledged.is_some() || !self.wants_to_read() || !self.read(state)? {
                break;
            }
        }
        if !self.is_blocked {
            self.flush(may_send)?;
        }
        if !self.is_in_service() {
            self.receive_acknowledged()?;
        }
        if self.output.len() > state.limits.output_bytes_max {
            return Err(ClientError::Output(self.output.len()));
        }
        Ok(())
    }

    /// Returns true if the service is receiving the acknowledged value and the connection need not
    /// wait yet.
    fn is_in_service(&mut self) -> bool {
        self.looks += 1;
        self.looks < LOOKS_MAX
            && self.acknowledged.as_ref().is_some_and(|value| value.is_in_service())
    }

    /// Receives the acknowledged value.
    fn receive_acknowledged(&mut self) -> Result<(), ClientError> {
        self.looks = 0;
        let Some(value) = self.acknowledged.take() else { return Ok(()) };
        value.sync()?;
        if value.has_bad_end() { Err(ProtocolError::Tail.into()) } else { Ok(()) }
    }

    /// Reads once, and answers complete requests. Returns true if the socket may have more.
    fn read(&mut self, state: &mut ServerState<C>) -> Result<bool, ClientError> {
        if self.body.is_some() {
            self.receive(state)?;
            self.answer(state)?;
            return Ok(false);
        }
        let room = self.make_room(state)?;
        match unlade_copy::receive_some(self.socket.as_fd(), &mut self.input, room) {
            Ok(0) => Err(ClientError::Closed),
            Ok(count) => {
                self.read_ms = state.now_ms;
                self.input_peak = self.input_peak.max(self.input.len() - self.start);
                let in_place = state.stats.in_place;
                self.answer(state)?;
                let is_full = count == room;
                // Small requests follow one another: read more of them at a time.
                self.expects_value &= !is_full || in_place != state.stats.in_place;
                Ok(is_full && self.body.is_none())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes room in the input, and returns the number of bytes for it.
    fn make_room(&mut self, state: &ServerState<C>) -> Result<usize, ClientError> {
        if self.start == self.input.len() {
            self.start = 0;
            self.input.clear();
            if self.input.capacity() > INPUT_KEPT_BYTES {
                state.pool.give(std::mem::take(&mut self.input));
            }
        }
        let have = self.input.len() - self.start;
        let head_bytes = state.copies.head_bytes().filter(|_| self.expects_value && have == 0);
        let wanted = head_bytes.unwrap_or(READ_BYTES).max(self.missing);
        if have + wanted > state.limits.input_bytes_max {
            return Err(ClientError::Input(have));
        }
        if self.input.capacity() - self.input.len() < wanted {
            if self.start > 0 {
                self.input.drain(..self.start);
                self.start = 0;
            }
            if self.input.capacity() < have + wanted {
                self.replace_input(have + wanted, state);
            }
        }
        let room = self.input.capacity() - self.input.len();
        Ok(head_bytes.map_or(room, |head_bytes| room.min(head_bytes)))
    }

    /// Answers complete requests.
    fn answer(&mut self, state: &mut ServerState<C>) -> Result<(), ClientError> {
        self.parser.set_limits(state.limits.parse());
        while self.body.is_none() && self.wants_to_read() {
            match self.parser.advance(&self.input[self.start..])? {
                Progress::Partial => {
                    self.start += self.parser.skip();
                    self.missing = 0;
                    return Ok(());
                }
                Progress::Open(open) => {
                    self.announce(&open, state)?;
                    let shown = self.input.len() - self.start;
                    self.missing = open.start + open.len + CRLF.len() - shown;
                    if !self.is_kept(&open, state) {
                        return Ok(());
                    }
                    self.take(&open, state);
                    self.receive(state)?;
                }
                Progress::Complete => self.execute(state),
            }
        }
        Ok(())
    }

    fn execute(&mut self, state: &mut ServerState<C>) {
        let input = &self.input[self.start..];
        let words = Arguments { parsed: self.parser.arguments(), input };
        self.expects_value |= self.apart.is_some();
        let buffers = Buffers {
            input: input.len(),
            input_free: self.input.capacity() - input.len(),
            output: self.output.len(),
        };
        state.sessions[self.session].buffers = buffers;
        execute(state, self.session, words, self.apart.take(), &mut self.output);
        self.is_ending |= state.sessions[self.session].is_ending;
        self.start += self.parser.finish();
        self.missing = 0;
        self.release(state);
    }

    /// Counts a coming argument, if there is memory for it.
    fn announce(&mut self, open: &Open, state: &mut ServerState<C>) -> Result<(), ClientError> {
        if self.announced_index == Some(open.index) || open.len < ANNOUNCED_BYTES_MIN {
            return Ok(());
        }
        if state.databases.bytes() + state.arriving_bytes + open.len > state.limits.memory_bytes_max
        {
            return Err(ClientError::Memory(open.len));
        }
        self.announced_index = Some(open.index);
        self.announced += open.len;
        state.arriving_bytes += open.len;
        Ok(())
    }

    /// Ends the count of the announced bytes, which have come or will not.
    pub fn release(&mut self, state: &mut ServerState<C>) {
        state.arriving_bytes -= std::mem::take(&mut self.announced);
        self.announced_index = None;
    }

    fn is_kept(&self, open: &Open, state: &ServerState<C>) -> bool {
        let input = &self.input[self.start..];
        let words = Arguments { parsed: self.parser.arguments(), input };
        state.copies.receives_in_place(open.len) && words.keeps(open.index)
    }

    /// Takes a value out of the input; the rest of it goes to its final buffer.
    fn take(&mut self, open: &Open, state: &mut ServerState<C>) {
        let at = self.start + open.start;
        let mut buffer = state.pool.take(open.len + CRLF.len());
        buffer.extend_from_slice(&self.input[at..]);
        self.input.truncate(at);
        let left = open.len + CRLF.len() - buffer.len();
        let incoming = state.copies.receive(&self.socket, buffer, left);
        let is_last = self.parser.take_open();
        self.body = Some(Body { incoming, len: open.len, is_last });
        self.missing = 0;
        state.stats.in_place += 1;
    }

    /// Continues with a value that is arriving.
    fn receive(&mut self, state: &mut ServerState<C>) -> Result<(), ClientError> {
        let Some(mut body) = self.body.take() else { return Ok(()) };
        if body.is_last && body.incoming.has_arrived()? {
            state.copies.offer(&mut body.incoming);
            state.stats.answered_first += 1;
            state.stats.by_service += u64::from(body.incoming.is_in_service());
            let value = Rc::new(Value::arriving(body.incoming, body.len, &state.pool));
            self.acknowledged = Some(Rc::clone(&value));
            self.apart = Some(value);
        } else if body.incoming.advance()? {
            let value = Value::arriving(body.incoming, body.len, &state.pool);
            value.sync()?;
            if value.has_bad_end() {
                return Err(ProtocolError::Tail.into());
            }
            self.apart = Some(Rc::new(value));
        } else {
            self.body = Some(body);
        }
        Ok(())
    }
}
