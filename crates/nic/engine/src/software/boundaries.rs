//! Boundaries of received messages: software's side of the resynchronisation.
//!
//! Software reads the stream in order and late; the device has processed later bytes, out of
//! order. A request may therefore refer to a message that software has not read yet, or has
//! already read. Some past boundaries are kept. Each request is answered, unless a later one
//! supersedes it.

use std::collections::VecDeque;

use unlade_net::SeqNumber;

use crate::resync::{Request, Response};

/// Number of message starts that are kept. If messages are so small that more of them pass while a
/// request is in flight, the device cannot resynchronise.
pub const REMEMBERED_MAX: usize = 1024;

/// The message boundaries of a flow.
#[derive(Clone, Debug)]
pub struct Boundaries {
    /// Start of the current message, and its number. Everything before it has been authenticated,
    /// so the boundary is correct whatever follows.
    start: SeqNumber,
    number: u64,
    /// Starts of the messages before it, oldest first.
    remembered: VecDeque<SeqNumber>,
    pending: Option<Request>,
}

impl Boundaries {
    /// Creates boundaries for a stream in which message `number` starts at `start`.
    pub fn new(start: SeqNumber, number: u64) -> Boundaries {
        Boundaries { start, number, remembered: VecDeque::new(), pending: None }
    }

    /// Moves behind the current message, which was authentic and `message_bytes` long. Returns the
    /// response to a pending request, if this answers it.
    pub fn advance(&mut self, message_bytes: u32) -> Option<Response> {
        self.advance_to(self.start + message_bytes)
    }

    /// As [`Boundaries::advance`], if the next message cannot start before `start`.
    pub fn advance_to(&mut self, start: SeqNumber) -> Option<Response> {
        if self.remembered.len() == REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back(self.start);
        self.number += 1;
        self.move_to(start)
    }

    /// Moves the start of the current message to `start`, because other bytes precede it. Returns
    /// the response to a pending request, if this answers it.
    pub fn move_to(&mut self, start: SeqNumber) -> Option<Response> {
        self.start = start;
        let request = self.pending.take()?;
        self.request(request)
    }

    /// Restarts under a new key: the current message has `number`. Earlier boundaries and pending
    /// requests are discarded.
    pub fn restart(&mut self, number: u64) {
        *self = Boundaries::new(self.start, number);
    }

    /// Start of the current message.
    pub fn start(&self) -> SeqNumber {
        self.start
    }

    /// Answers a request. A response that is not known yet comes from [`Boundaries::advance`].
    pub fn request(&mut self, request: Request) -> Option<Response> {
        if self.start.before(request.tcpsn) {
            self.pending = Some(request);
            return None;
        }
        self.pending = None;
        let number = match request.tcpsn == self.start {
            true => Some(self.number),
            false => self.number_of(request.tcpsn),
        };
        Some(Response { request, number })
    }

    /// Number of the message that started at `tcpsn`, if it is kept.
    fn number_of(&self, tcpsn: SeqNumber) -> Option<u64> {
        let before = self.remembered.partition_point(|start| start.before(tcpsn));
        let known = self.remembered.get(before).is_some_and(|start| *start == tcpsn);
        known.then(|| self.number - (self.remembered.len() - before) as u64)
    }
}
