//! Where received messages start: software's side of the resynchronisation.
//!
//! Software reads the stream in order and late; the device has read on, out of order. So a
//! question may be about a message that software has still to read, or one that it has read
//! already: it remembers some. Each question is answered, unless a later one makes it void.

use wire::SeqNumber;

use crate::resync::{Request, Response};

/// How many starts of messages are remembered.
pub const REMEMBERED_MAX: usize = 64;

/// The starts of a flow's messages.
#[derive(Clone, Debug)]
pub struct Boundaries {
    /// Where the current message starts, and how many were before it. Everything before has been
    /// authenticated: it is true, whatever follows.
    start: SeqNumber,
    number: u64,
    /// The ones before, in a ring.
    remembered: [(SeqNumber, u64); REMEMBERED_MAX],
    passed: usize,
    pending: Option<Request>,
}

impl Boundaries {
    /// A message starts at `start`, after `number` others.
    pub fn new(start: SeqNumber, number: u64) -> Boundaries {
        let remembered = [(start, number); REMEMBERED_MAX];
        Boundaries { start, number, remembered, passed: 0, pending: None }
    }

    /// The current message was authentic and `message_bytes` long: the next one starts behind it.
    /// Returns the answer that this gives.
    pub fn advance(&mut self, message_bytes: u32) -> Option<Response> {
        self.remembered[self.passed % REMEMBERED_MAX] = (self.start, self.number);
        self.passed += 1;
        self.start = self.start + message_bytes;
        self.number += 1;
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
        let ahead = request.tcpsn.since(self.start);
        if ahead > 0 {
            self.pending = Some(request);
            return None;
        }
        let number = match ahead {
            0 => Some(self.number),
            _ => {
                let known = &self.remembered[..self.passed.min(REMEMBERED_MAX)];
                known.iter().find(|(start, _)| *start == request.tcpsn).map(|(_, number)| *number)
            }
        };
        Some(Response { request, number })
    }
}
