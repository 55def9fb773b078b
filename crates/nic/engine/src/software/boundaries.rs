//! Where received messages start: software's side of the resynchronisation.
//!
//! Software reads the stream in order and late; the device has read on, out of order. So a
//! question may be about a message that software has still to read, or one that it has read
//! already: it remembers some. Each question is answered, unless a later one makes it void.

use std::collections::VecDeque;

use unlade_net::SeqNumber;

use crate::resync::{Request, Response};

/// How many starts of messages are remembered. Where messages are so small that more of them pass
/// while a question is on its way, the device does not find back.
pub const REMEMBERED_MAX: usize = 1024;

/// The starts of a flow's messages.
#[derive(Clone, Debug)]
pub struct Boundaries {
    /// Where the current message starts, and how many were before it. Everything before has been
    /// authenticated: it is true, whatever follows.
    start: SeqNumber,
    number: u64,
    /// Where those before it start, oldest first.
    remembered: VecDeque<SeqNumber>,
    pending: Option<Request>,
}

impl Boundaries {
    /// A message starts at `start`, after `number` others.
    pub fn new(start: SeqNumber, number: u64) -> Boundaries {
        Boundaries { start, number, remembered: VecDeque::new(), pending: None }
    }

    /// The current message was authentic and `message_bytes` long: the next one starts behind it.
    /// Returns the answer that this gives.
    pub fn advance(&mut self, message_bytes: u32) -> Option<Response> {
        self.advance_to(self.start + message_bytes)
    }

    /// The same, where the next message is not known to start before `start`.
    pub fn advance_to(&mut self, start: SeqNumber) -> Option<Response> {
        if self.remembered.len() == REMEMBERED_MAX {
            self.remembered.pop_front();
        }
        self.remembered.push_back(self.start);
        self.number += 1;
        self.move_to(start)
    }

    /// The current message starts at `start`: between it and the one before is something else.
    /// Returns the answer that this gives.
    pub fn move_to(&mut self, start: SeqNumber) -> Option<Response> {
        self.start = start;
        let request = self.pending.take()?;
        self.request(request)
    }

    /// Starts under a new key: from the current message on it is counted from `number`. What was
    /// before, and what was asked before, is void.
    pub fn restart(&mut self, number: u64) {
        *self = Boundaries::new(self.start, number);
    }

    /// Where the current message starts.
    pub fn start(&self) -> SeqNumber {
        self.start
    }

    /// The device asks. Where the answer is not known yet, [`Boundaries::advance`] gives it.
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

    /// The number of the message that started at `tcpsn`, if it is remembered.
    fn number_of(&self, tcpsn: SeqNumber) -> Option<u64> {
        let before = self.remembered.partition_point(|start| start.before(tcpsn));
        let known = self.remembered.get(before).is_some_and(|start| *start == tcpsn);
        known.then(|| self.number - (self.remembered.len() - before) as u64)
    }
}
