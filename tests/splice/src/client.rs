//! A client: requests, and the check of every byte of the responses.

use std::collections::VecDeque;

use bytes::Bytes;
use unlade_research_tcp::{Connection, Time};
use unlade_testkit::Random;

use crate::message::Request;

/// A simulated client.
pub struct Client {
    /// Its socket.
    pub socket: Connection<Bytes>,
    todo: VecDeque<Request>,
    sent: VecDeque<Request>,
    /// Bytes of the first response in `sent` that have arrived.
    got: u32,
    /// Most requests without a complete response.
    depth: usize,
    /// It reads at these intervals; 0: at once.
    read_every_us: u64,
    read_at: Time,
    /// Responses that are complete.
    pub complete: usize,
}

impl Client {
    /// Creates a client with requests to send.
    pub fn new(
        socket: Connection<Bytes>,
        todo: VecDeque<Request>,
        depth: usize,
        read_every_us: u64,
    ) -> Client {
        let sent = VecDeque::new();
        Client {
            socket,
            todo,
            sent,
            got: 0,
            depth,
            read_every_us,
            read_at: Time::default(),
            complete: 0,
        }
    }

    /// Returns true when all responses are complete.
    pub fn is_done(&self) -> bool {
        self.todo.is_empty() && self.sent.is_empty()
    }

    /// Returns when it wants to run.
    pub fn wakes_at(&self) -> Option<Time> {
        (self.read_every_us > 0 && self.socket.readable_bytes() > 0).then_some(self.read_at)
    }

    /// Reads and writes.
    ///
    /// # Panics
    /// Panics if a byte is not that of the response.
    pub fn run(&mut self, now: Time, random: &mut Random) {
        while self.read_every_us == 0 || now >= self.read_at {
            let Some((_, bytes)) = self.socket.read() else { break };
            self.check(&bytes);
            if self.read_every_us > 0 {
                let us = random.below(self.read_every_us * 2);
                self.read_at = now + std::time::Duration::from_micros(us);
            }
        }
        while self.sent.len() < self.depth {
            let Some(request) = self.todo.pop_front() else { break };
            let bytes = Bytes::copy_from_slice(&request.encode());
            self.socket.send(bytes).expect("room for a request");
            self.sent.push_back(request);
        }
    }

    fn check(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let request = *self.sent.front().expect("a byte behind the last response");
            let due = request.response_byte(self.got);
            assert_eq!(*byte, due, "{request:?}, byte {}", self.got);
            self.got += 1;
            if self.got == request.response_bytes() {
                self.got = 0;
                self.sent.pop_front();
                self.complete += 1;
            }
        }
    }
}
