//! The balancer: a relay with a pool of connections to servers, and the splices between both.

use std::collections::VecDeque;

use bytes::Bytes;
use unlade_research_tcp::{Connection, Header, Range, SackBlocks, Time, Timestamps};
use unlade_splice::head::fit;
use unlade_splice::segment::{Range as Block, Timestamps as Values};
use unlade_splice::{
    ClientFlow, Ended, FromServer, Rule, Segment, ServerFlow, Splice, Start, Unfit,
};
use unlade_testkit::Random;

use crate::message::{HEAD_BYTES, HEADER_BYTES, REQUEST_BYTES, Request, is_header};

/// Bytes that a server with a limit may send before a splice begins.
const LIMIT_BYTES: u32 = 16 << 10;
/// Time after which an acknowledgement is kept no longer.
const LOOK_MS: u64 = 4;

/// A client's connection.
pub struct Front {
    /// The balancer's socket.
    pub socket: Connection<Bytes>,
    /// Its flow.
    pub flow: ClientFlow,
    input: Vec<u8>,
    /// Bytes for the client that the socket had no room for.
    output: VecDeque<Bytes>,
    exchange: Option<Exchange>,
    /// Time since which an acknowledgement for the client is kept.
    pub keeps_since: Option<Time>,
    /// A response was spliced.
    pub was_spliced: bool,
}

/// A connection to a server.
pub struct Back {
    /// The balancer's socket.
    pub socket: Connection<Bytes>,
    /// Its flow.
    pub flow: ServerFlow,
    /// The client that has it.
    pub client: Option<usize>,
    /// It takes no request any more.
    pub is_closed: bool,
}

/// A request under way.
struct Exchange {
    request: Request,
    back: usize,
    /// Bytes of the response that were relayed.
    relayed: u32,
    way: Way,
    splice: Option<Splice>,
    /// Bytes of the response that the client may have from the server's host.
    held: Option<Vec<u8>>,
    /// The head went past the sockets.
    has_passed: bool,
    /// The splice has ended before the program looked.
    is_over: bool,
    /// The head is judged here.
    is_judged_here: bool,
    /// Bytes of the header that were not read; 0 without one.
    header_left: u32,
}

impl Exchange {
    /// Returns true if a program has read the head, or the header.
    fn is_known(&self) -> bool {
        let is_known = |splice: &Splice| {
            splice.head().is_some() || (self.request.is_sealed && !splice.awaits_head())
        };
        self.way == Way::Early && self.splice.as_ref().is_some_and(is_known)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Relay,
    Early,
    /// After so many bytes.
    Late(u32),
}

/// The simulated balancer.
pub struct Balancer {
    /// Connections to clients.
    pub fronts: Vec<Front>,
    /// Connections to servers.
    pub backs: Vec<Back>,
    /// Rules to send: number, server's connection, client, rule, acknowledgement for the server.
    pub rules: Vec<(u64, usize, usize, Rule, Option<Segment>)>,
    /// Segments to send to servers beside those of the sockets.
    pub acks: Vec<(usize, Segment)>,
    rules_sent: u64,
    /// A late splice waits until the client has acknowledged what the socket has sent.
    pub waits_for_clients: bool,
    /// It splices responses.
    splices: bool,
    /// The longest segment of a server.
    segment_bytes: u32,
    /// Connections to servers that were closed because they could not be used again.
    pub closed: u64,
    /// Splices begun.
    pub spliced: u64,
    /// Reasons against a splice, counted.
    pub unfit: u64,
    /// Bytes that no socket of the balancer has carried.
    pub bypassed_bytes: u64,
    /// Responses of which the balancer wrote nothing.
    pub untouched: u64,
    /// Splices that ended with the client's last acknowledgement.
    pub over: u64,
    /// Those of sealed responses.
    pub sealed: u64,
    /// Responses that ended before the server had acknowledged the request to the balancer's socket.
    pub unacknowledged: u64,
}

impl Front {
    /// Creates a client's connection.
    pub fn new(socket: Connection<Bytes>, flow: ClientFlow) -> Front {
        Front {
            socket,
            flow,
            input: Vec::new(),
            output: VecDeque::new(),
            exchange: None,
            keeps_since: None,
            was_spliced: false,
        }
    }

    /// Returns the splice, if there is one, with its server's connection.
    pub fn splice(&mut self) -> Option<(usize, &mut Splice)> {
        let Exchange { back, splice, .. } = self.exchange.as_mut()?;
        Some((*back, splice.as_mut()?))
    }

    /// Ends the splice if nothing is left to do. Returns the bytes that bypassed the sockets.
    pub fn end_if_over(&mut self, server: &mut ServerFlow, now: Time) -> Option<u32> {
        let exchange = self.exchange.as_mut()?;
        let before = self.flow.sent_end();
        exchange.splice?.end_if_over(&mut self.flow, server, now.ms()).ok()?;
        exchange.has_passed |= exchange.is_known();
        (exchange.splice, exchange.is_over) = (None, true);
        Some(self.flow.sent_end().0.wrapping_sub(before.0))
    }

    /// Returns the time at which an acknowledgement that is kept has to be sent.
    pub fn looks_at(&self) -> Option<Time> {
        let since = self.keeps_since.filter(|_| self.flow.is_ack_kept())?;
        Some(Time::from_ms(since.ms() + LOOK_MS))
    }

    /// Returns the acknowledgement that was kept for long enough.
    pub fn due_ack(&mut self, now: Time) -> Option<Segment> {
        self.looks_at().filter(|at| *at <= now)?;
        self.flow.kept_ack(now.ms())
    }

    /// Returns true if there is a splice.
    pub fn is_spliced(&self) -> bool {
        self.exchange.as_ref().is_some_and(|exchange| exchange.splice.is_some())
    }

    /// Translates a segment of a server during the splice. If it is the head of an early response, or a
    /// copy of it, the length of the response is known at once.
    pub fn receive_from_server(
        &mut self,
        server: &mut ServerFlow,
        segment: &Segment,
        payload: &[u8],
        now: Time,
    ) -> FromServer {
        let Some(exchange) = self.exchange.as_mut() else { return FromServer::Dropped };
        let Some(splice) = exchange.splice.as_mut() else { return FromServer::Dropped };
        let (flow, now_ms) = (&self.flow, now.ms());
        if exchange.request.is_sealed {
            let bytes = exchange.request.response_bytes();
            let taken = is_header(payload)
                .then(|| splice.receive_header(flow, server, segment, bytes, now_ms))
                .flatten();
            return taken.map_or_else(
                || splice.receive_from_server(flow, server, segment, now_ms),
                FromServer::Socket,
            );
        }
        fit(payload)
            .and_then(|head| splice.receive_head(flow, server, segment, head, now_ms))
            .unwrap_or_else(|| splice.receive_from_server(flow, server, segment, now_ms))
    }

    /// Describes the request under way, for a failure.
    pub fn describe(&self) -> String {
        let Some(Exchange { request, back, relayed, splice, .. }) = &self.exchange else {
            return "idle".to_owned();
        };
        let bytes = request.response_bytes();
        format!("{request:?} on {back}: {relayed} of {bytes} relayed, {splice:?}")
    }

    /// Writes to the client.
    fn flush(&mut self) {
        while let Some(front) = self.output.front() {
            let room = self.socket.send_room_bytes() as usize;
            if room == 0 || self.socket.send_room_pieces() == 0 {
                return;
            }
            let piece = front.slice(..front.len().min(room));
            let count = piece.len();
            if self.socket.send(piece).is_err() {
                return;
            }
            match self.output.front_mut() {
                Some(front) if count < front.len() => drop(front.split_to(count)),
                _ => drop(self.output.pop_front()),
            }
        }
    }
}

impl Balancer {
    /// Creates a balancer.
    pub fn new(
        fronts: Vec<Front>,
        backs: Vec<Back>,
        splices: bool,
        segment_bytes: u32,
    ) -> Balancer {
        Balancer {
            splices,
            segment_bytes,
            fronts,
            backs,
            rules: Vec::new(),
            acks: Vec::new(),
            rules_sent: 0,
            waits_for_clients: false,
            closed: 0,
            spliced: 0,
            unfit: 0,
            bypassed_bytes: 0,
            untouched: 0,
            over: 0,
            sealed: 0,
            unacknowledged: 0,
        }
    }

    /// Runs the program: reads, relays, begins and ends splices.
    pub fn run(&mut self, now: Time, random: &mut Random) {
        // A response that ends lets another client have the server's connection.
        let mut is_freed = true;
        while is_freed {
            is_freed = false;
            for client in 0..self.fronts.len() {
                while self.step(client, now, random) {
                    is_freed = true;
                }
            }
        }
    }

    fn step(&mut self, client: usize, now: Time, random: &mut Random) -> bool {
        let front = &mut self.fronts[client];
        while let Some((_, bytes)) = front.socket.read() {
            front.input.extend_from_slice(&bytes);
        }
        if front.exchange.is_none() && !self.begin_request(client, now, random) {
            return false;
        }
        self.settle(client, now);
        self.relay(client, now);
        self.begin_late(client, now);
        self.finish(client, now)
    }

    fn begin_request(&mut self, client: usize, now: Time, random: &mut Random) -> bool {
        let Some(request) = Request::decode(&self.fronts[client].input) else { return false };
        let is_free = |back: &usize| {
            let back = &self.backs[*back];
            back.client.is_none() && !back.is_closed
        };
        let free: Vec<usize> = (0..self.backs.len()).filter(is_free).collect();
        let Some(&back) = free.get(random.below(free.len().max(1) as u64) as usize) else {
            return false;
        };
        self.backs[back].client = Some(client);
        self.fronts[client].input.drain(..REQUEST_BYTES);
        let way = match random.below(3u64) {
            _ if !self.splices => Way::Relay,
            0 => Way::Relay,
            1 => Way::Early,
            _ => Way::Late(random.below(u64::from(request.response_bytes()) + 1) as u32),
        };
        // One of three servers that are spliced seals.
        let is_sealed = way != Way::Relay && random.below(3u32) == 0;
        let request = Request { is_sealed, ..request };
        let exchange = Exchange {
            request,
            back,
            relayed: 0,
            way,
            splice: None,
            held: None,
            has_passed: false,
            is_over: false,
            is_judged_here: way == Way::Early && (is_sealed || random.below(2u32) == 0),
            header_left: if is_sealed { HEADER_BYTES } else { 0 },
        };
        self.fronts[client].exchange = Some(exchange);
        // Half of the servers that are spliced have a limit: late, they wait for the beginning.
        let is_limited = way != Way::Relay && random.below(2u32) == 0;
        self.backs[back].flow.limit(if is_limited { LIMIT_BYTES } else { 0 });
        if way == Way::Early {
            let expected = match random.below(3u64) {
                0 => request.written_bytes(),
                _ => 1 + random.below(100_000u64) as u32,
            };
            let begun = self.begin_splice(client, REQUEST_BYTES as u32, 0, Some(expected), now);
            match (begun, &mut self.fronts[client].exchange) {
                (Ok(()), Some(exchange)) => exchange.held = (!is_sealed).then(Vec::new),
                // It is relayed.
                _ => self.backs[back].flow.limit(0),
            }
        }
        let bytes = Bytes::copy_from_slice(&request.encode());
        self.backs[back].socket.send(bytes).expect("room for a request");
        true
    }

    fn begin_late(&mut self, client: usize, now: Time) {
        let Some(exchange) = &self.fronts[client].exchange else { return };
        let Way::Late(from) = exchange.way else { return };
        let back = exchange.back;
        let left = exchange.request.response_bytes() - exchange.relayed;
        let is_limited = self.backs[back].flow.is_limited();
        // A server with a limit sends no more, wherever the splice was to begin.
        let is_due = exchange.relayed >= if is_limited { 1 } else { from.max(1) };
        if exchange.splice.is_some() || !is_due || exchange.header_left > 0 {
            return;
        }
        let socket = &self.fronts[client].socket;
        if self.waits_for_clients && socket.acknowledged().before(socket.send_end()) {
            return;
        }
        let segment_bytes = if is_limited { self.segment_bytes } else { 0 };
        match self.begin_splice(client, 0, segment_bytes, None, now) {
            Err(Unfit::Granted) => return,
            Err(_) if is_limited => {
                let Back { socket, flow, .. } = &mut self.backs[back];
                if self.rules_sent.is_multiple_of(2) {
                    flow.limit(0)
                } else {
                    flow.extend(socket.read_at(), left)
                }
                let room = flow.room(now.ms());
                self.acks.push((back, room));
            }
            // Also without a limit: the next turn tries again.
            Err(_) => return,
            Ok(()) => {}
        }
        self.fronts[client].exchange.as_mut().expect("it exists").way = Way::Relay;
    }

    /// Begins a splice before `unsent_bytes` of a request are written.
    fn begin_splice(
        &mut self,
        client: usize,
        unsent_bytes: u32,
        segment_bytes: u32,
        expected_bytes: Option<u32>,
        now: Time,
    ) -> Result<(), Unfit> {
        let Front { socket, flow, output, exchange: Some(exchange), was_spliced, .. } =
            &mut self.fronts[client]
        else {
            return Err(Unfit::Over);
        };
        let Back { socket: theirs, flow: server, .. } = &mut self.backs[exchange.back];
        let waiting: usize = output.iter().map(Bytes::len).sum();
        let start = Start {
            next: theirs.read_at(),
            socket_next: theirs.read_at() + theirs.readable_bytes(),
            written_end: socket.send_end() + waiting as u32,
            received: socket.read_at() + socket.readable_bytes(),
            request_end: theirs.send_end() + unsent_bytes,
            segment_bytes,
            length_bytes: match expected_bytes {
                None => Some(exchange.request.response_bytes() - exchange.relayed),
                Some(_) => None,
            },
            expected_bytes,
            is_judged_here: exchange.is_judged_here,
            is_sealed: exchange.request.is_sealed,
        };
        match Splice::begin(flow, server, start, now.ms()) {
            Ok((mut splice, mut rule)) => {
                // In half of all cases the server waits for the client's next acknowledgement.
                if self.rules_sent % 4 < 2 {
                    let owed = splice.owed_ack(flow, server, now.ms());
                    self.acks.extend(owed.map(|ack| (exchange.back, ack)));
                }
                // Half of the rules are for a length that is not known yet.
                if self.rules_sent % 2 == 1 {
                    rule.end = None;
                }
                let grant = expected_bytes
                    .filter(|_| !exchange.is_judged_here)
                    .map(|bytes| splice.grant_early(flow, server, bytes, now.ms()))
                    .map(|grant| Segment { seq: start.request_end, ..grant });
                exchange.splice = Some(splice);
                *was_spliced = true;
                self.spliced += 1;
                self.rules_sent += 1;
                if !exchange.is_judged_here {
                    self.rules.push((self.rules_sent, exchange.back, client, rule, grant));
                }
                Ok(())
            }
            Err(reason) => {
                self.unfit += u64::from(reason != Unfit::Granted);
                Err(reason)
            }
        }
    }

    /// Sends the acknowledgement that was kept until the head is known.
    fn settle(&mut self, client: usize, now: Time) {
        let Front { flow, exchange: Some(exchange), .. } = &mut self.fronts[client] else { return };
        let is_known = exchange.is_known();
        let Some(splice) = exchange.splice.as_mut().filter(|_| is_known) else { return };
        (exchange.has_passed, exchange.held) = (true, None);
        let owed = splice.owed_ack(flow, &mut self.backs[exchange.back].flow, now.ms());
        self.acks.extend(owed.map(|ack| (exchange.back, ack)));
    }

    fn relay(&mut self, client: usize, now: Time) {
        let front = &mut self.fronts[client];
        let Some(exchange) = &mut front.exchange else { return };
        if exchange.is_over || exchange.splice.as_ref().is_some_and(Splice::is_complete) {
            return;
        }
        front.flush();
        let front = &mut self.fronts[client];
        let Some(exchange) = &mut front.exchange else { return };
        if front.output.is_empty()
            && let Some((_, bytes)) = self.backs[exchange.back].socket.read()
        {
            let (count, left) = (bytes.len() as u32, exchange.header_left);
            let bytes = bytes.slice(left.min(count) as usize..);
            exchange.header_left = left - left.min(count);
            if left > 0 && exchange.header_left == 0 {
                self.judge_header(client, now);
            }
            let Front { output, exchange: Some(exchange), .. } = &mut self.fronts[client] else {
                return;
            };
            exchange.relayed += bytes.len() as u32;
            assert!(
                exchange.relayed <= exchange.request.response_bytes(),
                "more than the response"
            );
            match &mut exchange.held {
                None if bytes.is_empty() => {}
                None => output.push_back(bytes),
                Some(held) => {
                    held.extend_from_slice(&bytes);
                    self.judge(client, now);
                }
            }
            self.relay(client, now);
        }
    }

    /// Decides about records behind a header: they are direct, or the splice is given up.
    fn judge_header(&mut self, client: usize, now: Time) {
        let Front { exchange: Some(exchange), .. } = &mut self.fronts[client] else { return };
        if exchange.way != Way::Early || exchange.is_known() || exchange.splice.is_none() {
            return;
        }
        exchange.splice = None;
        let back = &mut self.backs[exchange.back];
        if back.flow.is_limited() {
            back.flow.extend(back.socket.read_at(), exchange.request.response_bytes());
        }
        self.acks.push((exchange.back, back.flow.room(now.ms())));
    }

    /// Decides about bytes that the client may have from the server's host.
    fn judge(&mut self, client: usize, now: Time) {
        let Front { flow, output, exchange: Some(exchange), .. } = &mut self.fronts[client] else {
            return;
        };
        let (Some(held), Some(splice)) = (&exchange.held, &mut exchange.splice) else { return };
        if held.len() < HEAD_BYTES {
            return;
        }
        let back = &mut self.backs[exchange.back];
        let head = fit(held);
        assert_eq!(head.is_none(), exchange.request.id.is_multiple_of(4));
        if let Some(head) = head {
            assert_eq!(head.response_bytes(), exchange.request.response_bytes());
            if splice.awaits_head() {
                splice.set_length(flow, head.response_bytes());
            }
            let owed = splice.owed_ack(flow, &mut back.flow, now.ms());
            self.acks.extend(owed.map(|ack| (exchange.back, ack)));
        } else {
            assert_eq!(splice.head(), None, "the server's host comes to the same conclusion");
            exchange.splice = None;
            let left = exchange.request.response_bytes() - exchange.relayed;
            if back.flow.is_limited() {
                back.flow.extend(back.socket.read_at(), left);
            }
            self.acks.push((exchange.back, back.flow.room(now.ms())));
        }
        output.extend(exchange.held.take().map(Bytes::from));
        self.fronts[client].flush();
    }

    /// Ends the exchange if it is over. Returns true if the next one may begin.
    fn finish(&mut self, client: usize, now: Time) -> bool {
        let front = &mut self.fronts[client];
        let Some(exchange) = &mut front.exchange else { return false };
        let back = &mut self.backs[exchange.back];
        if exchange.is_over {
            while back.socket.read().is_some() {}
            // It was given nothing, or a header, which it can refuse.
            let is_reusable = back.socket.read_at() == back.flow.socket_next();
            assert!(is_reusable || exchange.request.is_sealed);
            self.over += 1;
            self.sealed += u64::from(exchange.request.is_sealed);
            self.release(client, is_reusable);
            return true;
        }
        let Some(splice) = exchange.splice else {
            if exchange.relayed < exchange.request.response_bytes() || !front.output.is_empty() {
                return false;
            }
            back.client = None;
            front.exchange = None;
            return true;
        };
        if !splice.is_complete() {
            return false;
        }
        // The client has all bytes: those that were not written to it are discarded.
        front.output.clear();
        while back.socket.read().is_some() {}
        let before = front.flow.sent_end();
        if front.socket.acknowledged() != front.socket.send_end() {
            return false;
        }
        let written_end = front.socket.send_end();
        let (next, now_ms) = (back.socket.read_at(), now.ms());
        match splice.end(&mut front.flow, &mut back.flow, next, written_end, now_ms) {
            Ok(Ended { ack, is_reusable }) => {
                self.bypassed_bytes += u64::from(front.flow.sent_end().0.wrapping_sub(before.0));
                self.acks.extend(ack.map(|ack| (exchange.back, ack)));
                self.release(client, is_reusable);
                true
            }
            Err(_) => false,
        }
    }

    /// Ends the exchange of a splice that has ended.
    fn release(&mut self, client: usize, is_reusable: bool) {
        let Some(exchange) = self.fronts[client].exchange.take() else { return };
        let back = &mut self.backs[exchange.back];
        let is_acknowledged = back.socket.acknowledged() == back.socket.send_end();
        self.unacknowledged += u64::from(!is_acknowledged);
        back.client = None;
        self.untouched += u64::from(exchange.has_passed);
        if exchange.has_passed && exchange.request.id.is_multiple_of(2) {
            self.fronts[client].flow.hold();
        }
        if !is_reusable {
            back.is_closed = true;
            back.socket.abort();
            self.closed += 1;
        }
    }
}

/// Returns a header as a segment.
pub fn segment_of(header: &Header, payload_bytes: u32) -> Segment {
    let mut segment = Segment {
        seq: header.seq,
        ack: header.ack,
        flags: header.flags,
        window: header.window,
        payload_bytes,
        timestamps: header.timestamps.map(|Timestamps { value, echo }| Values { value, echo }),
        ..Segment::default()
    };
    for Range { start, end } in header.sack.as_slice() {
        segment.sack.push(Block { start: *start, end: *end });
    }
    segment
}

/// Returns a header with the fields of a segment; options of a SYN are those of `base`.
pub fn header_of(segment: &Segment, base: &Header) -> Header {
    let mut sack = SackBlocks::default();
    for Block { start, end } in segment.sack.blocks() {
        sack.push(Range { start: *start, end: *end });
    }
    Header {
        seq: segment.seq,
        ack: segment.ack,
        flags: segment.flags,
        window: segment.window,
        timestamps: segment.timestamps.map(|Values { value, echo }| Timestamps { value, echo }),
        sack,
        ..*base
    }
}
