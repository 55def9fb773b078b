//! The hosts, their lines, and the time.

use std::collections::VecDeque;

use bytes::Bytes;
use unlade_net::SeqNumber;
use unlade_net::packet::TcpFlags;
use unlade_research_tcp::{Config, Connection, Header, Time, Transmit};
use unlade_splice::{ClientFlow, FromServer, Opened, Segment, Sent, ServerFlow, splice};
use unlade_testkit::Random;

use crate::balancer::{Back, Balancer, Front, header_of, segment_of};
use crate::client::Client;
use crate::line::{Conditions, Lines, Packet, To};
use crate::message::Request;
use crate::server::Server;

/// Events after which a simulation is taken as one that does not end.
const EVENTS_MAX: u64 = 3_000_000;

/// A simulation.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Number of clients.
    pub clients: usize,
    /// Number of servers' connections.
    pub servers: usize,
    /// Requests of each client.
    pub requests: usize,
    /// Longest body, bytes.
    pub body_bytes_max: u64,
    /// Requests of a client without a complete response.
    pub depth: usize,
    /// Mean time between reads of a client, in microseconds; 0 reads at once.
    pub read_every_us: u64,
    /// The balancer splices responses; otherwise it relays all.
    pub splices: bool,
    /// The lines.
    pub conditions: Conditions,
    /// Sockets of clients.
    pub client: Config,
    /// The balancer's sockets to clients.
    pub front: Config,
    /// The balancer's sockets to servers.
    pub back: Config,
    /// Sockets of servers.
    pub server: Config,
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Complete responses.
    pub responses: usize,
    /// Splices begun.
    pub spliced: u64,
    /// Connections to servers that could not be used again.
    pub closed: u64,
    /// Splices that were refused.
    pub unfit: u64,
    /// Bytes that bypassed the balancer's sockets.
    pub bypassed_bytes: u64,
    /// Segments that went from a server to a client.
    pub direct_segments: u64,
    /// Copies of heads that a server's host has sent to the balancer.
    pub copies: u64,
    /// Responses whose head went past the balancer's sockets.
    pub untouched: u64,
    /// Splices that ended with the client's last acknowledgement.
    pub over: u64,
    /// Those of sealed responses.
    pub sealed: u64,
    /// Segments of servers that the balancer has sent to clients.
    pub forwarded: u64,
    /// Those that made a response's head known.
    pub heads: u64,
    /// Copies that made a response's head known.
    pub noted: u64,
    /// Acknowledgements that were kept.
    pub kept: u64,
    /// Segments of the balancer's sockets that its flows did not see.
    pub unseen: u64,
    /// Responses that ended before the server had acknowledged the request to the balancer's socket.
    pub unacknowledged: u64,
    /// Bytes that servers and the balancer sent again.
    pub retransmitted: u64,
    /// Virtual time, ms.
    pub took_ms: u64,
}

/// Hosts and lines.
pub struct Simulation {
    clients: Vec<Client>,
    balancer: Balancer,
    servers: Vec<Server>,
    lines: Lines,
    random: Random,
    now: Time,
    direct_segments: u64,
    copies: u64,
    forwarded: u64,
    heads: u64,
    noted: u64,
    kept: u64,
    unseen: u64,
    /// The last byte that each client has offered room for, and its window scale.
    edges: Vec<SeqNumber>,
    scales: Vec<u8>,
    plan: Plan,
}

/// Opens a connection. Returns both ends, and the headers of SYN and SYN-ACK.
fn opened(
    near: Config,
    far: Config,
    now: Time,
    random: &mut Random,
) -> (Connection<Bytes>, Connection<Bytes>, Header, Header) {
    // Numbers that wrap soon.
    let mut isn = || SeqNumber(0u32.wrapping_sub(random.below(200_000u64) as u32));
    let mut gather = Vec::new();
    let mut a: Connection<Bytes> = Connection::connect(near, now, isn());
    let syn = a.poll_transmit(now, &mut gather).expect("a SYN").header;
    let mut b: Connection<Bytes> = Connection::accept(far, now, isn(), &syn).expect("a SYN");
    let syn_ack = b.poll_transmit(now, &mut gather).expect("a SYN-ACK").header;
    a.receive(now, &syn_ack, &mut Vec::new());
    (a, b, syn, syn_ack)
}

/// Opens a connection of the balancer to a server.
fn connected(plan: &Plan, now: Time, random: &mut Random) -> (Back, Server) {
    let (near, far, syn, syn_ack) = opened(plan.back, plan.server, now, random);
    let scale = syn.window_scale.unwrap_or(0);
    let mut flow = ServerFlow::new(syn_ack.seq + 1, syn.seq + 1, scale);
    splice::receive_from_server(&mut flow, &segment_of(&syn_ack, 0), now.ms());
    let back = Back { socket: near, flow, client: None, is_closed: false };
    (back, Server::new(far, syn_ack.seq + 1))
}

impl Simulation {
    /// Creates the hosts and opens their connections.
    pub fn new(plan: Plan, random: Random) -> Simulation {
        let mut random = random;
        let now = Time::from_ms(1000 + random.below(1u64 << 33));
        let mut id = 0;
        let (mut clients, mut fronts) = (Vec::new(), Vec::new());
        let (mut edges, mut scales) = (Vec::new(), Vec::new());
        for _ in 0..plan.clients {
            let (near, far, syn, syn_ack) = opened(plan.client, plan.front, now, &mut random);
            let scale = syn.window_scale.unwrap_or(0);
            edges.push(syn_ack.seq + 1 + u32::from(syn.window));
            scales.push(scale);
            let mut flow = ClientFlow::new(Opened {
                sent_end: syn_ack.seq + 1,
                received: syn.seq + 1,
                window_bytes: u32::from(syn.window),
                scale,
                receive_bytes: u32::from(syn_ack.window),
                receive_scale: syn_ack.window_scale.unwrap_or(0),
            });
            let shown = splice::send_to_client(&mut flow, &segment_of(&syn_ack, 0), now.ms());
            assert!(shown.is_some(), "nothing is held");
            fronts.push(Front::new(far, flow));
            let mut request = |random: &mut Random| {
                id += 1;
                let most = 1 + random.below(plan.body_bytes_max);
                let body_bytes = random.below(most) as u32;
                Request { id, body_bytes, is_sealed: false }
            };
            let todo: VecDeque<Request> =
                (0..plan.requests).map(|_| request(&mut random)).collect();
            clients.push(Client::new(near, todo, plan.depth, plan.read_every_us));
        }
        let (mut backs, mut servers) = (Vec::new(), Vec::new());
        for _ in 0..plan.servers {
            let (back, server) = connected(&plan, now, &mut random);
            backs.push(back);
            servers.push(server);
        }
        let segment_bytes = plan.server.mss_bytes.max(plan.back.mss_bytes);
        let mut balancer = Balancer::new(fronts, backs, plan.splices, segment_bytes.into());
        balancer.waits_for_clients = plan.conditions.unseen > 0 && random.below(2u32) == 0;
        Simulation {
            clients,
            balancer,
            servers,
            lines: Lines::new(plan.conditions),
            random,
            now,
            direct_segments: 0,
            copies: 0,
            forwarded: 0,
            heads: 0,
            noted: 0,
            kept: 0,
            unseen: 0,
            edges,
            scales,
            plan,
        }
    }

    /// Runs until every client has every response.
    ///
    /// # Panics
    /// Panics if a byte is wrong, or if it does not end.
    pub fn run(mut self) -> Outcome {
        let start = self.now;
        for _ in 0..EVENTS_MAX {
            self.work();
            if self.clients.iter().all(Client::is_done) {
                return self.outcome(start);
            }
            self.wait();
            while let Some((to, packet)) = self.lines.arrived(self.now) {
                if self.random.below(1000u64) < self.plan.conditions.forged {
                    self.forge(to);
                }
                self.deliver(to, packet);
            }
        }
        panic!("it does not end: {:?}, {:?} {}", self.outcome(start), self.plan, self.state());
    }

    fn outcome(&self, start: Time) -> Outcome {
        let sockets = self.servers.iter().map(|server| &server.socket);
        let sockets = sockets.chain(self.clients.iter().map(|client| &client.socket));
        let sockets = sockets.chain(self.balancer.fronts.iter().map(|front| &front.socket));
        let sockets = sockets.chain(self.balancer.backs.iter().map(|back| &back.socket));
        Outcome {
            responses: self.clients.iter().map(|client| client.complete).sum(),
            spliced: self.balancer.spliced,
            closed: self.balancer.closed,
            unfit: self.balancer.unfit,
            bypassed_bytes: self.balancer.bypassed_bytes,
            direct_segments: self.direct_segments,
            copies: self.copies,
            untouched: self.balancer.untouched,
            over: self.balancer.over,
            sealed: self.balancer.sealed,
            unacknowledged: self.balancer.unacknowledged,
            forwarded: self.forwarded,
            heads: self.heads,
            noted: self.noted,
            kept: self.kept,
            unseen: self.unseen,
            retransmitted: sockets.map(|socket| socket.stats().retransmitted_bytes).sum(),
            took_ms: self.now.ms() - start.ms(),
        }
    }

    /// Describes all hosts, for a failure.
    fn state(&self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        for (index, client) in self.clients.iter().enumerate() {
            let front = &self.balancer.fronts[index];
            let _ = write!(
                text,
                "\nclient {index}: {} complete, {:?}, at {:?}; front {:?}, acknowledged {:?} of {:?}, {:?}, {:?}",
                client.complete,
                client.socket.state(),
                client.socket.read_at(),
                front.socket.state(),
                front.socket.acknowledged(),
                front.socket.send_end(),
                front.flow,
                front.describe(),
            );
        }
        for (index, server) in self.servers.iter().enumerate() {
            let back = &self.balancer.backs[index];
            let _ = write!(
                text,
                "\nserver {index}: {:?}, acknowledged {:?} of {:?}, {:?}; back of {:?}, {:?}, at {:?}, sent {:?} of {:?}, {:?}, {:?}",
                server.socket.state(),
                server.socket.acknowledged(),
                server.socket.send_end(),
                server.rule,
                back.client,
                back.socket.state(),
                back.socket.read_at(),
                back.socket.acknowledged(),
                back.socket.send_end(),
                back.flow,
                back.socket.stats(),
            );
        }
        text
    }

    /// Advances the time to the next event.
    fn wait(&mut self) {
        let sockets = (self.clients.iter().map(|client| &client.socket))
            .chain(self.servers.iter().map(|server| &server.socket))
            .chain(self.balancer.fronts.iter().map(|front| &front.socket))
            .chain(self.balancer.backs.iter().map(|back| &back.socket));
        let timers = sockets.filter_map(Connection::poll_timeout);
        let readers = self.clients.iter().filter_map(Client::wakes_at);
        let looks = self.balancer.fronts.iter().filter_map(Front::looks_at);
        let next = timers.chain(readers).chain(looks).chain(self.lines.next_at()).min();
        let Some(next) = next else { panic!("nothing is due: {}", self.state()) };
        self.now = self.now.max(next);
        let now = self.now;
        self.clients.iter_mut().for_each(|client| client.socket.handle_timeout(now));
        self.servers.iter_mut().for_each(|server| server.socket.handle_timeout(now));
        self.balancer.fronts.iter_mut().for_each(|front| front.socket.handle_timeout(now));
        self.balancer.backs.iter_mut().for_each(|back| back.socket.handle_timeout(now));
    }

    /// Runs all programs and sends what is due.
    fn work(&mut self) {
        let now = self.now;
        for client in &mut self.clients {
            client.run(now, &mut self.random);
        }
        self.balancer.run(now, &mut self.random);
        while self.servers.len() < self.plan.servers + self.balancer.closed as usize {
            let (back, server) = connected(&self.plan, now, &mut self.random);
            self.balancer.backs.push(back);
            self.servers.push(server);
            self.balancer.run(now, &mut self.random);
        }
        self.servers.iter_mut().for_each(Server::run);
        for (number, back, client, rule, grant) in std::mem::take(&mut self.balancer.rules) {
            self.send(To::Server(back), Packet::Rule(number, client, rule, grant));
        }
        for (back, ack) in std::mem::take(&mut self.balancer.acks) {
            let header = header_of(&ack, &Header::default());
            self.send(To::Server(back), Packet::Segment(header, Bytes::new()));
        }
        for index in 0..self.clients.len() {
            let mss = self.plan.client.mss_bytes;
            while let Some((segment, payload)) = polled(&mut self.clients[index].socket, now) {
                let Header { ack, window, .. } = segment.header;
                let edge = ack + (u32::from(window) << self.scales[index]);
                if self.edges[index].before(edge) {
                    self.edges[index] = edge;
                }
                self.cut(&segment, payload, mss, To::BalancerFromClient(index));
            }
            self.transmit_front(index);
        }
        for index in 0..self.servers.len() {
            self.transmit_back(index);
            self.transmit_server(index);
        }
    }

    fn transmit_front(&mut self, index: usize) {
        let now = self.now;
        while let Some((segment, payload)) = polled(&mut self.balancer.fronts[index].socket, now) {
            let front = &mut self.balancer.fronts[index];
            let seen = segment_of(&segment.header, payload.len() as u32);
            let is_spliced = front.splice().map(|(_, splice)| *splice);
            let may_be_unseen = !front.was_spliced && !payload.is_empty();
            if may_be_unseen && self.random.below(1000u64) < self.plan.conditions.unseen {
                let mss = segment.mss_bytes;
                self.cut(&segment, payload, mss, To::Client(index));
                self.unseen += 1;
                continue;
            }
            let shown = match is_spliced {
                Some(splice) => splice.send_to_client(&mut front.flow, &seen, now.ms()),
                None => splice::send_to_client(&mut front.flow, &seen, now.ms()),
            };
            let Some(shown) = shown else {
                front.keeps_since = Some(now);
                self.kept += 1;
                continue;
            };
            let header = header_of(&shown, &segment.header);
            let mss = segment.mss_bytes;
            self.cut(&Transmit { header, ..segment }, payload, mss, To::Client(index));
        }
        if let Some(ack) = self.balancer.fronts[index].due_ack(now) {
            let header = header_of(&ack, &Header::default());
            self.send(To::Client(index), Packet::Segment(header, Bytes::new()));
        }
    }

    fn transmit_back(&mut self, index: usize) {
        let now = self.now;
        while let Some((segment, payload)) = polled(&mut self.balancer.backs[index].socket, now) {
            let Balancer { fronts, backs, .. } = &mut self.balancer;
            let back = &mut backs[index];
            let seen = segment_of(&segment.header, payload.len() as u32);
            let front = back.client.map(|client| &mut fronts[client]);
            let spliced = front.and_then(|front| {
                let splice = front.splice().map(|(_, splice)| *splice)?;
                Some((splice, &front.flow))
            });
            let shown = match spliced {
                Some((splice, client)) => {
                    splice.send_to_server(client, &mut back.flow, &seen, now.ms())
                }
                None => splice::send_to_server(&mut back.flow, &seen, now.ms()),
            };
            let header = header_of(&shown, &segment.header);
            let mss = segment.mss_bytes;
            self.cut(&Transmit { header, ..segment }, payload, mss, To::Server(index));
        }
    }

    fn transmit_server(&mut self, index: usize) {
        let now = self.now;
        while let Some((segment, payload)) = polled(&mut self.servers[index].socket, now) {
            let server = &mut self.servers[index];
            let seen = segment_of(&segment.header, payload.len() as u32);
            let mss = segment.mss_bytes;
            let sent = match &mut server.rule {
                Some((_, client, rule)) => (*client, rule.send(&seen, &payload, server.sent_end)),
                None => (0, Sent::Balancer),
            };
            if server.sent_end.before(seen.end()) {
                server.sent_end = seen.end();
            }
            let sent_end = server.sent_end;
            let grant = server.rule.as_mut().and_then(|(_, _, rule)| rule.take_grant(sent_end));
            if let Some(ack) = grant {
                let header = header_of(&ack, &Header::default());
                server.socket.receive(now, &header, &mut Vec::new());
            }
            match sent {
                (client, Sent::Client(shown)) => {
                    self.send_directly(&segment, &shown, payload, client);
                }
                (client, Sent::Both(shown, bytes)) => {
                    self.copies += 1;
                    let copy = payload.slice(..bytes as usize);
                    self.send(To::BalancerFromServer(index), Packet::Copy(segment.header, copy));
                    self.send_directly(&segment, &shown, payload, client);
                }
                (_, Sent::Balancer) => {
                    self.cut(&segment, payload, mss, To::BalancerFromServer(index));
                }
            }
        }
    }

    fn send_directly(
        &mut self,
        segment: &Transmit,
        shown: &Segment,
        payload: Bytes,
        client: usize,
    ) {
        self.direct_segments += 1;
        self.check_room(shown, client);
        let header = header_of(shown, &segment.header);
        let mss = segment.mss_bytes;
        self.cut(&Transmit { header, ..*segment }, payload, mss, To::Client(client));
    }

    fn check_room(&self, shown: &Segment, client: usize) {
        let beyond = shown.end().since(self.edges[client]);
        // A probe of the window has no bytes.
        assert!(
            shown.payload_bytes == 0 || beyond <= 0,
            "{beyond} bytes more than client {client} has room for: {shown:?} {}",
            self.state()
        );
    }

    /// Sends a segment as packets.
    fn cut(&mut self, segment: &Transmit, payload: Bytes, mss_bytes: u16, to: To) {
        let most = usize::from(mss_bytes.max(1));
        let mut header = segment.header;
        let mut rest = payload;
        loop {
            let piece = rest.split_to(rest.len().min(most));
            let count = piece.len() as u32;
            self.send(to, Packet::Segment(header, piece));
            header.seq = header.seq + count;
            if rest.is_empty() {
                return;
            }
        }
    }

    fn send(&mut self, to: To, packet: Packet) {
        self.lines.send(&mut self.random, self.now, to, packet);
    }

    /// Delivers a forged segment to the balancer, from a client or a server.
    fn forge(&mut self, to: To) {
        let payload = vec![0x66; self.random.below(3u64) as usize * 700];
        let far = |random: &mut Random, number: SeqNumber| {
            number + (1 << 28) + random.below(7u64 << 29) as u32
        };
        let mut header = Header {
            seq: SeqNumber(self.random.next() as u32),
            ack: SeqNumber(self.random.next() as u32),
            flags: TcpFlags::ACK,
            window: self.random.next() as u16,
            ..Header::default()
        };
        match to {
            To::BalancerFromClient(index) => {
                let flow = &self.balancer.fronts[index].flow;
                header.ack = far(&mut self.random, flow.acked());
            }
            To::BalancerFromServer(index) => {
                let flow = &self.balancer.backs[index].flow;
                header.seq = far(&mut self.random, flow.passed_end());
            }
            To::Client(_) | To::Server(_) => return,
        }
        self.deliver(to, Packet::Segment(header, payload.into()));
    }

    fn deliver(&mut self, to: To, packet: Packet) {
        let now = self.now;
        let is_copy = matches!(packet, Packet::Copy(..));
        let (header, payload) = match (to, packet) {
            (To::Server(index), Packet::Rule(number, client, rule, grant)) => {
                let server = &mut self.servers[index];
                if let Some(ack) = server.take_rule(number, client, (rule, grant)) {
                    let header = header_of(&ack, &Header::default());
                    server.socket.receive(now, &header, &mut Vec::new());
                }
                return;
            }
            (_, Packet::Rule(..)) => unreachable!("rules go to servers"),
            (_, Packet::Segment(header, payload) | Packet::Copy(header, payload)) => {
                (header, payload)
            }
        };
        let give = |socket: &mut Connection<Bytes>, header: &Header, payload: Bytes| {
            let mut pieces = if payload.is_empty() { Vec::new() } else { vec![payload] };
            socket.receive(now, header, &mut pieces);
        };
        match to {
            To::Client(index) => give(&mut self.clients[index].socket, &header, payload),
            To::Server(index) => {
                let server = &mut self.servers[index];
                if self.random.below(1000u64) < self.plan.conditions.forgotten {
                    server.rule = None;
                }
                give(&mut server.socket, &header, payload);
            }
            To::BalancerFromClient(index) => self.arrive_from_client(index, &header, payload),
            To::BalancerFromServer(index) => {
                let Balancer { fronts, backs, .. } = &mut self.balancer;
                let back = &mut backs[index];
                let seen = segment_of(&header, payload.len() as u32);
                let seen = Segment { is_copy, ..seen };
                let front = back.client.map(|client| &mut fronts[client]);
                let came = match front.filter(|front| front.is_spliced()) {
                    Some(front) => front.receive_from_server(&mut back.flow, &seen, &payload, now),
                    None => match splice::receive_from_server(&mut back.flow, &seen, now.ms()) {
                        Some(shown) => FromServer::Socket(shown),
                        None => FromServer::Dropped,
                    },
                };
                let is_refused = self.random.below(1000u64) < self.plan.conditions.refused;
                match came {
                    FromServer::Socket(shown) if !is_refused => {
                        give(&mut back.socket, &header_of(&shown, &header), payload);
                    }
                    FromServer::Socket(_) | FromServer::Dropped => {}
                    FromServer::Head { client, socket } => {
                        if !is_refused {
                            give(&mut back.socket, &header_of(&socket, &header), Bytes::new());
                        }
                        let Some(shown) = client else { return self.noted += 1 };
                        let client = back.client.expect("it is spliced");
                        (self.forwarded, self.heads) = (self.forwarded + 1, self.heads + 1);
                        self.check_room(&shown, client);
                        let packet = Packet::Segment(header_of(&shown, &header), payload);
                        self.send(To::Client(client), packet);
                    }
                    FromServer::Client(shown) => {
                        let client = back.client.expect("it is spliced");
                        self.forwarded += 1;
                        self.check_room(&shown, client);
                        let packet = Packet::Segment(header_of(&shown, &header), payload);
                        self.send(To::Client(client), packet);
                    }
                }
            }
        }
    }

    fn arrive_from_client(&mut self, index: usize, header: &Header, payload: Bytes) {
        let now = self.now;
        let Balancer { fronts, backs, .. } = &mut self.balancer;
        let front = &mut fronts[index];
        let seen = segment_of(header, payload.len() as u32);
        let mut acks: Vec<(usize, Segment)> = Vec::new();
        let mut over = None;
        let spliced = front.splice().map(|(back, splice)| (back, *splice));
        let shown = match spliced {
            Some((back, mut splice)) => {
                let server = &mut backs[back].flow;
                let arrived = splice.receive_from_client(&mut front.flow, server, &seen, now.ms());
                acks.extend(arrived.server.map(|ack| (back, ack)));
                let owed = splice.owed_ack(&front.flow, server, now.ms());
                acks.extend(owed.map(|ack| (back, ack)));
                if let Some((_, kept)) = front.splice() {
                    *kept = splice;
                }
                over = front.end_if_over(server, now);
                arrived.socket
            }
            None => splice::receive_from_client(&mut front.flow, &seen).socket,
        };
        if let Some(shown) = shown {
            let mut pieces = if payload.is_empty() { Vec::new() } else { vec![payload] };
            front.socket.receive(now, &header_of(&shown, header), &mut pieces);
        }
        self.balancer.bypassed_bytes += u64::from(over.unwrap_or(0));
        for (back, ack) in acks {
            let header = header_of(&ack, &Header::default());
            self.send(To::Server(back), Packet::Segment(header, Bytes::new()));
        }
    }
}

/// Returns the next segment of a socket with its payload.
fn polled(socket: &mut Connection<Bytes>, now: Time) -> Option<(Transmit, Bytes)> {
    let mut gather: Vec<Bytes> = Vec::new();
    let segment = socket.poll_transmit(now, &mut gather)?;
    Some((segment, gather.concat().into()))
}
