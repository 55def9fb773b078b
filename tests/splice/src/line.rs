//! Lines between the hosts, and the packets under way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use bytes::Bytes;
use unlade_research_tcp::{Header, Time};
use unlade_splice::{Rule, Segment};
use unlade_testkit::Random;

/// Treatment of packets; probabilities are per thousand.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// Packets that are lost.
    pub lost: u64,
    /// Packets that arrive twice.
    pub doubled: u64,
    /// Packets that are later than those behind them.
    pub late: u64,
    /// Packets before which a forged one arrives at the balancer: its sender knows the addresses,
    /// and no number.
    pub forged: u64,
    /// Segments that a socket of the balancer refuses, as for lack of memory.
    pub refused: u64,
    /// Segments with bytes that leave the balancer's socket unseen before the first splice of a client's
    /// connection, as if its flow was opened while they left.
    pub unseen: u64,
    /// Packets to a server's host before which it forgets its rule, as if its agent ended.
    pub forgotten: u64,
    /// Delay of every packet, in microseconds.
    pub delay_us: u64,
}

impl Conditions {
    /// Lines that do nothing to packets.
    pub const CLEAN: Conditions = Conditions {
        lost: 0,
        doubled: 0,
        late: 0,
        forged: 0,
        refused: 0,
        unseen: 0,
        forgotten: 0,
        delay_us: 300,
    };
}

/// Destination of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum To {
    /// A client.
    Client(usize),
    /// The balancer, from a client.
    BalancerFromClient(usize),
    /// The balancer, from a server.
    BalancerFromServer(usize),
    /// A server's connection.
    Server(usize),
}

/// A packet.
#[derive(Clone, Debug)]
pub enum Packet {
    /// A segment.
    Segment(Header, Bytes),
    /// A segment that another host got as well.
    Copy(Header, Bytes),
    /// A rule for a server's connection, by which segments go to a client, and an acknowledgement for
    /// the server; newer ones have a larger number.
    Rule(u64, usize, Rule, Option<Segment>),
}

#[derive(Debug)]
struct Due {
    at: Time,
    number: u64,
    to: To,
    packet: Packet,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        self.number == other.number
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// All lines.
#[derive(Debug)]
pub struct Lines {
    conditions: Conditions,
    under_way: BinaryHeap<Reverse<Due>>,
    count: u64,
}

impl Lines {
    /// Creates lines without packets.
    pub fn new(conditions: Conditions) -> Lines {
        Lines { conditions, under_way: BinaryHeap::new(), count: 0 }
    }

    /// Sends a packet.
    pub fn send(&mut self, random: &mut Random, now: Time, to: To, packet: Packet) {
        let Conditions { lost, doubled, late, delay_us, .. } = self.conditions;
        if random.below(1000u64) < lost {
            return;
        }
        let copies = if random.below(1000u64) < doubled { 2 } else { 1 };
        for _ in 0..copies {
            let mut us = delay_us;
            if random.below(1000u64) < late {
                us += random.below(delay_us * 4 + 1);
            }
            self.count += 1;
            let at = now + std::time::Duration::from_micros(us);
            let due = Due { at, number: self.count, to, packet: packet.clone() };
            self.under_way.push(Reverse(due));
        }
    }

    /// Returns when the next packet arrives.
    pub fn next_at(&self) -> Option<Time> {
        self.under_way.peek().map(|Reverse(due)| due.at)
    }

    /// Takes a packet that has arrived.
    pub fn arrived(&mut self, now: Time) -> Option<(To, Packet)> {
        self.under_way.peek().filter(|Reverse(due)| due.at <= now)?;
        let Reverse(due) = self.under_way.pop()?;
        Some((due.to, due.packet))
    }
}
