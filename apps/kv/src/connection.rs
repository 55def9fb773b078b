//! One client: reads, has requests answered, sends the answers; and then, where a value was left in
//! the socket, receives that.
//!
//! A `SET` is answered before its value is received only if all of it waits in the socket's queue:
//! from there on no peer and no network can keep it from being received. A value that is not all
//! there is received as it comes, and answered when the rest of it waits.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use unlade_copy::ReceiveError;

use crate::command::{Arguments, Flow, execute};
use crate::copies::{Arrival, Copies};
use crate::output::{Flushed, Output};
use crate::parse::{Open, Parser, Progress, ProtocolError};
use crate::server::State;
use crate::value::{CRLF, Value};

/// What a read has room for at least.
const READ_BYTES: usize = 16 << 10;
/// An input buffer that grew above this is let go of when it is empty.
const INPUT_KEPT_BYTES: usize = 1 << 20;
/// While the socket has more, a client is read from so often before another has its turn.
const READS_MAX: u32 = 4;
/// Answers that wait for the client, from which on no more of its requests are read.
const OUTPUT_PAUSE_BYTES: usize = 1 << 20;
/// Bytes that a client is sent before another has its turn.
const SEND_BYTES: usize = 1 << 20;
/// Looks at a value that the service receives before it is waited for.
const LOOKS_MAX: u32 = 64;

/// Why a connection ends before the client ends it.
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

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The socket has to be waited for.
    Done,
    /// It need not.
    More,
    /// The connection is over.
    Ended,
}

/// A value that arrives, not all of which is in the socket's queue.
struct Body<I> {
    incoming: I,
    len: usize,
    /// The request is complete but for it.
    is_last: bool,
}

/// A connection.
pub(crate) struct Connection<C: Copies> {
    socket: Arc<OwnedFd>,
    input: Vec<u8>,
    parser: Parser,
    body: Option<Body<C::Incoming>>,
    /// The value of the request that is being read, whether it has arrived or not.
    apart: Option<Rc<Value<C::Incoming>>>,
    /// A value that was answered for, and has to be received before anything behind it.
    owed: Option<Rc<Value<C::Incoming>>>,
    looks: u32,
    output: Output<C::Incoming>,
    /// The socket takes no answers for now.
    is_blocked: bool,
    /// Where the request being read begins in the input.
    start: usize,
    /// Bytes that its argument being read lacks.
    missing: usize,
    /// Bytes of arguments that it has announced, of those that the state counts; and the last one.
    announced: usize,
    announced_index: Option<usize>,
    /// The last request had a value that was received in place.
    expects_value: bool,
    /// Nothing is read any more: the answers are sent, and that is all.
    is_ending: bool,
}

impl<C: Copies> Connection<C> {
    pub fn new(socket: OwnedFd, state: &State<C>) -> Connection<C> {
        Connection {
            socket: Arc::new(socket),
            input: Vec::new(),
            parser: Parser::new(state.limits.parse()),
            body: None,
            apart: None,
            owed: None,
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

    /// Whether there are answers that the socket did not take.
    pub fn wants_to_write(&self) -> bool {
        self.is_blocked && self.output.len() > 0
    }

    /// Whether requests are read at present.
    pub fn wants_to_read(&self) -> bool {
        !self.is_ending && self.output.len() < OUTPUT_PAUSE_BYTES
    }

    /// The socket is ready for something, or there was more to do.
    pub fn turn(&mut self, state: &mut State<C>) -> Turn {
        match self.work(state) {
            Ok(()) if self.output.len() == 0 && self.is_ending => Turn::Ended,
            Ok(()) if self.output.len() == 0 || self.is_blocked => Turn::Done,
            Ok(()) => Turn::More,
            Err(error) => self.end(&error, state),
        }
    }

    /// Sends answers.
    fn flush(&mut self, most: usize) -> io::Result<Flushed> {
        let flushed = self.output.flush(self.socket.as_fd(), most)?;
        self.is_blocked = flushed == Flushed::Blocked;
        Ok(flushed)
    }

    /// Tells the client why, if it can be told.
    fn end(&mut self, error: &ClientError, state: &mut State<C>) -> Turn {
        let is_told = matches!(
            error,
            ClientError::Protocol(_) | ClientError::Input(_) | ClientError::Memory(_)
        );
        self.is_ending = true;
        self.release(state);
        if !is_told {
            return Turn::Ended;
        }
        self.output.error(&match error {
            ClientError::Memory(_) => format!("OOM {error}"),
            _ => format!("ERR {error}"),
        });
        match self.flush(usize::MAX) {
            Ok(Flushed::Blocked) => Turn::Done,
            _ => Turn::Ended,
        }
    }

    fn work(&mut self, state: &mut State<C>) -> Result<(), ClientError> {
        let before = self.output.len();
        self.flush(SEND_BYTES)?;
        let may_send = SEND_BYTES - (before - self.output.len());
        if self.is_elsewhere() {
            return Ok(());
        }
        self.settle()?;
        // What was left unanswered when too many answers waited.
        self.answer(state)?;
        for _ in 0..READS_MAX {
            if self.owed.is_some() || !self.wants_to_read() || !self.read(state)? {
                break;
            }
        }
        if !self.is_blocked {
            self.flush(may_send)?;
        }
        if !self.is_elsewhere() {
            self.settle()?;
        }
        if self.output.len() > state.limits.output_bytes_max {
            return Err(ClientError::Output(self.output.len()));
        }
        Ok(())
    }

    /// Whether the service is at what is owed, and need not be waited for yet.
    fn is_elsewhere(&mut self) -> bool {
        self.looks += 1;
        self.looks < LOOKS_MAX && self.owed.as_ref().is_some_and(|value| value.is_elsewhere())
    }

    /// Receives what was answered for.
    fn settle(&mut self) -> Result<(), ClientError> {
        self.looks = 0;
        let Some(value) = self.owed.take() else { return Ok(()) };
        value.sync()?;
        if value.has_bad_end() { Err(ProtocolError::Tail.into()) } else { Ok(()) }
    }

    /// Reads once, and answers what is complete. True where the socket may have more.
    fn read(&mut self, state: &mut State<C>) -> Result<bool, ClientError> {
        if self.body.is_some() {
            self.receive(state)?;
            self.answer(state)?;
            return Ok(false);
        }
        let room = self.make_room(state)?;
        match unlade_copy::receive_some(self.socket.as_fd(), &mut self.input, room) {
            Ok(0) => Err(ClientError::Closed),
            Ok(count) => {
                let in_place = state.stats.in_place;
                self.answer(state)?;
                let is_full = count == room;
                // Small requests one behind the other: more is read of them at a time.
                self.expects_value &= !is_full || in_place != state.stats.in_place;
                Ok(is_full && self.body.is_none())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// Room in the input: for how many bytes.
    fn make_room(&mut self, state: &State<C>) -> Result<usize, ClientError> {
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
                let mut larger = state.pool.take(have + wanted);
                larger.extend_from_slice(&self.input);
                state.pool.give(std::mem::replace(&mut self.input, larger));
            }
        }
        let room = self.input.capacity() - self.input.len();
        Ok(head_bytes.map_or(room, |head_bytes| room.min(head_bytes)))
    }

    /// Answers what is complete.
    fn answer(&mut self, state: &mut State<C>) -> Result<(), ClientError> {
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

    fn execute(&mut self, state: &mut State<C>) {
        let input = &self.input[self.start..];
        let words = Arguments { parsed: self.parser.arguments(), input };
        self.expects_value |= self.apart.is_some();
        if execute(state, words, self.apart.take(), &mut self.output) == Flow::Quit {
            self.is_ending = true;
        }
        self.start += self.parser.finish();
        self.missing = 0;
        self.release(state);
    }

    /// An argument is to come: is there memory for it?
    fn announce(&mut self, open: &Open, state: &mut State<C>) -> Result<(), ClientError> {
        if self.announced_index == Some(open.index) {
            return Ok(());
        }
        if state.store.bytes() + state.arriving_bytes + open.len > state.limits.memory_bytes_max {
            return Err(ClientError::Memory(open.len));
        }
        self.announced_index = Some(open.index);
        self.announced += open.len;
        state.arriving_bytes += open.len;
        Ok(())
    }

    /// What was announced has come, or will not.
    pub fn release(&mut self, state: &mut State<C>) {
        state.arriving_bytes -= std::mem::take(&mut self.announced);
        self.announced_index = None;
    }

    fn is_kept(&self, open: &Open, state: &State<C>) -> bool {
        let input = &self.input[self.start..];
        let words = Arguments { parsed: self.parser.arguments(), input };
        state.copies.receives_in_place(open.len) && words.keeps(open.index)
    }

    /// Takes a value out of the input: the rest of it goes where it is kept.
    fn take(&mut self, open: &Open, state: &mut State<C>) {
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

    /// Goes on with a value that arrives.
    fn receive(&mut self, state: &mut State<C>) -> Result<(), ClientError> {
        let Some(mut body) = self.body.take() else { return Ok(()) };
        if body.is_last && body.incoming.has_arrived()? {
            state.copies.offer(&mut body.incoming);
            state.stats.answered_first += 1;
            state.stats.by_service += u64::from(body.incoming.is_elsewhere());
            let value = Rc::new(Value::arriving(body.incoming, body.len, &state.pool));
            self.owed = Some(Rc::clone(&value));
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
