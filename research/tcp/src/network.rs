//! Two connections joined by a network that loses, duplicates, delays and reorders: every byte
//! arrives once, in order, with the metadata of its packet.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use bytes::Bytes;
use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;
use unlade_testkit::Random;

use crate::segment::{Header, Transmit};
use crate::{Config, Connection, Marked, Payload, State, Time};

pub(crate) mod runs;

/// Metadata of a packet's bytes: the packet's start in the stream, and its length.
pub(crate) type Mark = (SeqNumber, u32);
pub(crate) type Buffer = Marked<Bytes, Mark>;

/// The byte of a stream at an offset.
pub(crate) fn byte(direction: usize, offset: u64) -> u8 {
    let mixed = (offset + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ (direction as u64) << 17);
    (mixed >> 40) as u8
}

fn bytes(direction: usize, offset: u64, count: usize) -> Bytes {
    (offset..offset + count as u64).map(|at| byte(direction, at)).collect()
}

/// Packet treatment of the network; probabilities are per thousand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkConditions {
    pub(crate) lost: u64,
    pub(crate) doubled: u64,
    pub(crate) late: u64,
    pub(crate) delay_us: u64,
    pub(crate) jitter_us: u64,
    /// Packets that arrive together are coalesced, as by a device.
    pub(crate) coalesced: bool,
}

impl NetworkConditions {
    pub(crate) const FAIR: NetworkConditions = NetworkConditions {
        lost: 0,
        doubled: 0,
        late: 0,
        delay_us: 500,
        jitter_us: 0,
        coalesced: false,
    };
}

/// Behaviour of an application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Number of bytes that it sends before it closes.
    pub(crate) total: u64,
    /// Maximum number of bytes in a chunk.
    pub(crate) piece_max: usize,
    /// Interval between reads; 0 reads immediately.
    pub(crate) read_every_us: u64,
    /// Number of buffers per read.
    pub(crate) read_buffers: usize,
    /// It closes after the peer.
    pub(crate) closes_last: bool,
}

struct Packet {
    header: Header,
    pieces: Vec<Buffer>,
}

pub(crate) struct End {
    pub(crate) connection: Connection<Buffer>,
    habits: Habits,
    sent: u64,
    read: u64,
    first_read: Option<SeqNumber>,
    read_at: Time,
    closed: bool,
}

pub(crate) struct Network {
    pub(crate) ends: [End; 2],
    pub(crate) now: Time,
    weather: NetworkConditions,
    random: Random,
    packets: BTreeMap<u64, (usize, Packet)>,
    due: BinaryHeap<Reverse<(Time, u64)>>,
    count: u64,
    pub(crate) packets_sent: u64,
}

impl Network {
    /// Creates two ends; the first opens, or both do at once.
    pub(crate) fn new(
        configs: [Config; 2],
        habits: [Habits; 2],
        weather: NetworkConditions,
        both_ask: bool,
        seed: u64,
    ) -> Network {
        let mut random = Random::new(seed);
        let now = Time::from_ms(random.below(1 << 40));
        // Numbers that wrap soon.
        let mut isn = || SeqNumber(0u32.wrapping_sub(random.below(300_000) as u32));
        let isns = [isn(), isn()];
        let mut gather = Vec::new();
        let mut first = Connection::connect(configs[0], now, isns[0]);
        let second = if both_ask {
            Connection::connect(configs[1], now, isns[1])
        } else {
            let syn = first.poll_transmit(now, &mut gather).unwrap();
            Connection::accept(configs[1], now, isns[1], &syn.header).unwrap()
        };
        let end = |connection, habits| End {
            connection,
            habits,
            sent: 0,
            read: 0,
            first_read: None,
            read_at: now,
            closed: false,
        };
        let mut network = Network {
            ends: [end(first, habits[0]), end(second, habits[1])],
            now,
            weather,
            random,
            packets: BTreeMap::new(),
            due: BinaryHeap::new(),
            count: 0,
            packets_sent: 0,
        };
        network.work();
        network
    }

    /// Runs both applications and both connections until they have no work.
    fn work(&mut self) {
        for index in 0..2 {
            self.read(index);
            self.write(index);
            self.transmit(index);
        }
    }

    fn transmit(&mut self, index: usize) {
        let mut gather = Vec::new();
        let mut burst = Vec::new();
        while let Some(segment) = self.ends[index].connection.poll_transmit(self.now, &mut gather) {
            self.cut(segment, &gather, &mut burst);
            assert!(burst.len() < 100_000, "segments without end");
        }
        self.packets_sent += burst.len() as u64;
        self.ship(1 - index, burst);
    }

    fn write(&mut self, index: usize) {
        let Network { ends, random, .. } = self;
        let end = &mut ends[index];
        if end.connection.state() == State::Closed {
            return;
        }
        while end.sent < end.habits.total {
            let left = end.habits.total - end.sent;
            let most = left.min(u64::from(end.connection.send_room_bytes()));
            let count = 1 + random.below(end.habits.piece_max as u64);
            let count = count.min(most) as usize;
            if count == 0 || end.connection.send(bytes(index, end.sent, count)).is_err() {
                return;
            }
            end.sent += count as u64;
        }
        let may_close = end.connection.is_established()
            && (!end.habits.closes_last || end.connection.is_read_to_end());
        if !end.closed && may_close {
            end.closed = true;
            end.connection.close();
        }
    }

    fn read(&mut self, index: usize) {
        let now = self.now;
        let end = &mut self.ends[index];
        let lazy = end.habits.read_every_us > 0;
        if lazy && now < end.read_at {
            return;
        }
        let most = if lazy { end.habits.read_buffers } else { usize::MAX };
        for _ in 0..most {
            let Some((at, buffer)) = end.connection.read() else { break };
            let start = *end.first_read.get_or_insert(at);
            assert_eq!(at, start + end.read as u32, "out of order");
            assert!(buffer.bytes() > 0);
            let (packet_at, packet_bytes) = buffer.mark;
            let within = at.since(packet_at);
            assert!(within >= 0, "the mark is another packet's");
            assert!(within as u32 + buffer.bytes() as u32 <= packet_bytes, "another's mark");
            for byte_in in &buffer.buffer {
                assert_eq!(*byte_in, byte(1 - index, end.read), "byte {}", end.read);
                end.read += 1;
            }
        }
        if lazy && end.connection.readable_bytes() > 0 {
            let wait = core::time::Duration::from_micros(end.habits.read_every_us);
            end.read_at = now + wait;
        }
    }

    /// Segments a super-segment as a device does.
    fn cut(&mut self, segment: Transmit, gather: &[Bytes], out: &mut Vec<Packet>) {
        let payload: Vec<u8> = gather.concat();
        assert_eq!(payload.len(), segment.payload_bytes as usize);
        if payload.is_empty() {
            out.push(Packet { header: segment.header, pieces: Vec::new() });
            return;
        }
        let mss = usize::from(segment.mss_bytes);
        assert!(mss > 0);
        let parts = payload.len().div_ceil(mss);
        for (number, part) in payload.chunks(mss).enumerate() {
            let mut header = segment.header;
            header.seq = segment.header.seq + (number * mss) as u32;
            if number + 1 < parts {
                header.flags = TcpFlags(header.flags.0 & !(TcpFlags::FIN.0 | TcpFlags::PSH.0));
            }
            let mark = (header.seq, part.len() as u32);
            let buffer = Marked { buffer: Bytes::copy_from_slice(part), mark };
            out.push(Packet { header, pieces: vec![buffer] });
        }
    }

    fn ship(&mut self, to: usize, packets: Vec<Packet>) {
        for packet in packets {
            let copies = 1 + u64::from(self.random.below(1000) < self.weather.doubled);
            for _ in 0..copies {
                if self.random.below(1000) < self.weather.lost {
                    continue;
                }
                let mut us = self.weather.delay_us + self.random.below(self.weather.jitter_us);
                if self.random.below(1000) < self.weather.late {
                    us += self.random.below(4 * self.weather.delay_us);
                }
                // Packets of the same time stay in order.
                self.count += 1;
                let at = Time::from_ns(self.now.ns() + us * 1000);
                let copy = Packet { header: packet.header, pieces: packet.pieces.clone() };
                self.packets.insert(self.count, (to, copy));
                self.due.push(Reverse((at, self.count)));
            }
        }
    }

    fn deliver(&mut self) {
        let mut waiting: Option<(usize, Packet)> = None;
        while let Some(&Reverse((at, number))) = self.due.peek() {
            if at > self.now {
                break;
            }
            self.due.pop();
            let (to, packet) = self.packets.remove(&number).unwrap();
            match &mut waiting {
                Some((last_to, last)) if self.weather.coalesced && *last_to == to => {
                    if !coalesce(last, &packet) {
                        let before = core::mem::replace(last, packet);
                        self.give(to, before);
                    }
                }
                _ => {
                    if let Some((to, before)) = waiting.replace((to, packet)) {
                        self.give(to, before);
                    }
                }
            }
        }
        if let Some((to, packet)) = waiting {
            self.give(to, packet);
        }
    }

    fn give(&mut self, to: usize, mut packet: Packet) {
        self.ends[to].connection.receive(self.now, &packet.header, &mut packet.pieces);
        assert!(packet.pieces.is_empty());
        self.transmit(to);
    }

    /// Advances time to the next event. Returns false if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let mut next = self.due.peek().map_or(Time::NEVER, |Reverse((at, _))| *at);
        for end in &self.ends {
            next = next.min(end.connection.poll_timeout().unwrap_or(Time::NEVER));
            if end.habits.read_every_us > 0 && end.connection.readable_bytes() > 0 {
                next = next.min(end.read_at);
            }
        }
        if next == Time::NEVER {
            return false;
        }
        self.now = self.now.max(next);
        self.deliver();
        for end in &mut self.ends {
            end.connection.handle_timeout(self.now);
        }
        self.work();
        true
    }

    /// Runs until both have closed, at most `seconds_max` simulated seconds.
    pub(crate) fn run(&mut self, seconds_max: u64) {
        let end = Time::from_ns(self.now.ns() + seconds_max * 1_000_000_000);
        let mut idle = 0;
        while !self.is_done() {
            let before = self.now;
            assert!(self.step(), "both wait for ever: {}", self.describe());
            idle = if self.now == before { idle + 1 } else { 0 };
            assert!(idle < 10_000, "time stands still: {}", self.describe());
            assert!(self.now < end, "it takes too long: {}", self.describe());
        }
        for index in 0..2 {
            let end = &self.ends[index];
            assert_eq!(end.connection.error(), None, "{}", self.describe());
            assert_eq!(end.sent, end.habits.total);
            assert_eq!(end.read, self.ends[1 - index].habits.total, "{}", self.describe());
        }
    }

    fn is_done(&self) -> bool {
        let over = |end: &End| {
            matches!(end.connection.state(), State::Closed | State::TimeWait)
                && end.connection.readable_bytes() == 0
        };
        self.ends.iter().all(over)
    }

    fn describe(&self) -> String {
        let one = |end: &End| {
            format!(
                "{:?} {:?} sent {} read {} {:?}",
                end.connection.state(),
                end.connection.error(),
                end.sent,
                end.read,
                end.connection.stats()
            )
        };
        format!("{}\n{}", one(&self.ends[0]), one(&self.ends[1]))
    }
}

/// Coalesces `next` into `last` under a device's conditions.
fn coalesce(last: &mut Packet, next: &Packet) -> bool {
    let bytes: usize = last.pieces.iter().map(Payload::bytes).sum();
    let plain = |header: &Header| {
        header.flags.0 & !TcpFlags::PSH.0 == TcpFlags::ACK.0 && header.sack.is_empty()
    };
    let follows = next.header.seq == last.header.seq + bytes as u32;
    let fits = !next.pieces.is_empty() && bytes > 0 && bytes < 60_000;
    let joins = plain(&last.header)
        && plain(&next.header)
        && follows
        && fits
        && next.header.ack.since(last.header.ack) >= 0;
    if joins {
        last.pieces.extend(next.pieces.iter().cloned());
        last.header = Header { seq: last.header.seq, ..next.header };
    }
    joins
}
