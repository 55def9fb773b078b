//! One connection at a server's host: an unmodified program, and the rule for segments that leave.

use bytes::Bytes;
use unlade_net::SeqNumber;
use unlade_research_tcp::Connection;
use unlade_splice::{HostRule, Rule, Segment};

use crate::message::{REQUEST_BYTES, Request};

/// A simulated server's connection.
pub struct Server {
    /// Its socket.
    pub socket: Connection<Bytes>,
    input: Vec<u8>,
    /// The response that is being written, and the next byte of it.
    response: Option<(Request, u32)>,
    /// The rule: its number, the client that segments go to, and what they become.
    pub rule: Option<(u64, usize, HostRule)>,
    /// Behind the last byte that it has sent.
    pub sent_end: SeqNumber,
}

impl Server {
    /// Creates a server's connection; `sent_end` is behind its SYN.
    pub fn new(socket: Connection<Bytes>, sent_end: SeqNumber) -> Server {
        Server { socket, input: Vec::new(), response: None, rule: None, sent_end }
    }

    /// Reads and writes. The second part of a head waits for the next turn.
    pub fn run(&mut self) {
        while let Some((_, bytes)) = self.socket.read() {
            self.input.extend_from_slice(&bytes);
        }
        loop {
            if self.response.is_none()
                && let Some(request) = Request::decode(&self.input)
            {
                self.input.drain(..REQUEST_BYTES);
                self.response = Some((request, 0));
            }
            let Some((request, at)) = &mut self.response else { return };
            let first = request.first_part_bytes().filter(|first| *at < *first);
            let left = first.unwrap_or(request.written_bytes()) - *at;
            let count = left.min(self.socket.send_room_bytes()).min(64 << 10);
            if count == 0 || self.socket.send_room_pieces() == 0 {
                return;
            }
            let piece: Bytes = (*at..*at + count).map(|at| request.written_byte(at)).collect();
            if self.socket.send(piece).is_err() {
                return;
            }
            *at += count;
            if *at == request.written_bytes() {
                self.response = None;
            } else if first == Some(*at) {
                return;
            }
        }
    }

    /// Takes a rule, unless it has a newer one. Returns an acknowledgement for the socket.
    pub fn take_rule(
        &mut self,
        number: u64,
        client: usize,
        (rule, grant): (Rule, Option<Segment>),
    ) -> Option<Segment> {
        if self.rule.is_some_and(|(known, ..)| known >= number) {
            return None;
        }
        let mut rule = HostRule::new(rule, grant);
        let due = rule.take_grant(self.sent_end);
        self.rule = Some((number, client, rule));
        due
    }
}
