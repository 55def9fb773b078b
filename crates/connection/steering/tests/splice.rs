//! Splices responses between a client, a balancer and a server, each in a network namespace of its
//! own, with the kernel's TCP. Needs CAP_NET_ADMIN and CAP_BPF.

mod splice_hosts;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{self, AddressFamily, SocketType};
use unlade_net::FlowKey;
use unlade_splice::datagram::Key;
use unlade_splice::head::fit;
use unlade_steering::direct::{DirectReturn, SentDirectly};
use unlade_steering::splice::{
    ClientSlot, End, ServerSlot, SpliceError, SpliceWorker, Splicing, When,
};
use unlade_testkit::Random;

use splice_hosts::{IPV4, IPV6, Plan, in_namespaces};

const RULES: u16 = 7901;
const KEY: Key = Key { number: 3, secret: [7; 16] };
const LIMIT_BYTES: u32 = 16 << 10;
/// Time limit of a wait.
const PATIENCE: Duration = Duration::from_secs(30);

/// The byte of a response at an offset.
fn byte_at(request: usize, offset: usize) -> u8 {
    (request.wrapping_mul(31) ^ offset ^ (offset >> 8) ^ (offset >> 16)) as u8
}

/// Returns a response. Those of odd numbers have a head of HTTP, one of four of them with a status
/// by which it is not fit for a client.
fn response(request: usize, bytes: usize) -> Vec<u8> {
    let head = match request % 8 {
        0 | 2 | 4 | 6 => String::new(),
        7 => format!("HTTP/1.1 404 Not Found\r\nContent-Length: {bytes}\r\n\r\n"),
        _ => format!("HTTP/1.1 200 OK\r\nContent-Length: {bytes}\r\n\r\n"),
    };
    let mut response = head.into_bytes();
    response.extend((0..bytes).map(|offset| byte_at(request, offset)));
    response
}

/// Answers lines of a number and a length with as many bytes.
fn serve(stream: TcpStream) {
    let mut output = stream.try_clone().expect("a descriptor");
    for line in BufReader::new(stream).lines() {
        let Ok(line) = line else { return };
        let mut words = line.split(' ').map(|word| word.parse().expect("a number"));
        let (request, bytes) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
        if output.write_all(&response(request, bytes)).is_err() {
            return;
        }
    }
}

/// Segments that a socket sent again.
fn retransmitted(stream: &TcpStream) -> u32 {
    let mut info = [0u8; 256];
    let mut bytes = info.len() as libc::socklen_t;
    // SAFETY: the buffer has `bytes` bytes, and the kernel writes at most as many.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            info.as_mut_ptr().cast(),
            &mut bytes,
        )
    };
    assert_eq!(status, 0);
    // tcpi_total_retrans of struct tcp_info.
    u32::from_ne_bytes(info[100..104].try_into().expect("four bytes"))
}

/// Bytes in the send queue of a socket.
fn unacknowledged_bytes(stream: &TcpStream) -> i32 {
    let mut bytes = 0;
    // SAFETY: the request writes one int.
    let status = unsafe { libc::ioctl(stream.as_raw_fd(), libc::TIOCOUTQ, &mut bytes) };
    assert_eq!(status, 0);
    bytes
}

fn to_server_line(mut server: &TcpStream, line: &str) {
    server.write_all(format!("{line}\n").as_bytes()).expect("the server reads");
}

/// The part of a balancer that the test needs: one client after the other, a pool of one
/// connection.
struct Balancer {
    worker: SpliceWorker,
    has_agent: bool,
    counter: u64,
    spliced: usize,
    /// Of them, those whose head went past the sockets.
    early: usize,
    relayed: usize,
    /// Requests whose acknowledgement was kept.
    kept: usize,
}

/// A request under way.
struct Exchange<'e> {
    client: &'e TcpStream,
    server: &'e TcpStream,
    slot: &'e mut Option<ClientSlot>,
    server_slot: &'e ServerSlot,
    /// Bytes of the response.
    bytes: usize,
}

impl Balancer {
    fn new(worker: SpliceWorker, has_agent: bool) -> Balancer {
        Balancer { worker, has_agent, counter: 0, spliced: 0, early: 0, relayed: 0, kept: 0 }
    }

    /// Returns the bytes that the socket has, at most `bytes`; none if it has none.
    fn read_some(mut from: &TcpStream, bytes: usize) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        match from.read(&mut buffer) {
            Ok(count) => buffer.truncate(count),
            Err(error) if error.kind() == ErrorKind::WouldBlock => buffer.clear(),
            Err(error) => panic!("{error}"),
        }
        buffer
    }

    fn open_client(&mut self, client: &TcpStream, slot: &mut Option<ClientSlot>) {
        if slot.is_none() {
            let from = client.peer_addr().expect("an address");
            let flow = FlowKey::new(from, client.local_addr().expect("an address"));
            *slot = Some(self.worker.open_client(&flow).expect("a slot"));
        }
    }

    /// Returns true if the splice has begun.
    fn begin(&mut self, exchange: &Exchange<'_>, when: When) -> bool {
        let client_slot = exchange.slot.as_ref().expect("it is open");
        self.counter += 1;
        let agent = self.has_agent.then_some((&KEY, self.counter));
        match self.worker.begin(client_slot, exchange.server_slot, when, agent) {
            Ok(()) => true,
            Err(SpliceError::Unfit(reason)) => {
                if self.counter < 30 {
                    println!("{when:?}: {reason}");
                }
                false
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// Decides about the start of a response, which the client may have from the server's host.
    /// Returns false if the splice is over, and the bytes that are to be relayed.
    fn judge(&mut self, exchange: &Exchange<'_>, held: &mut Vec<u8>) -> (bool, Vec<u8>) {
        if !held.windows(4).any(|four| four == b"\r\n\r\n") {
            return (true, Vec::new());
        }
        let slot = exchange.slot.as_ref().expect("it is open");
        let Some(head) = fit(held) else {
            assert!(!slot.is_ahead());
            self.worker.abort(slot, exchange.server_slot).expect("the slots are open");
            let left = exchange.bytes - held.len();
            self.worker.extend(exchange.server_slot, left as u32).expect("a slot");
            return (false, std::mem::take(held));
        };
        assert_eq!(head.response_bytes() as usize, exchange.bytes);
        let (server_slot, bytes) = (exchange.server_slot, head.response_bytes());
        self.worker.set_length(slot, server_slot, bytes).expect("the slots are open");
        (true, std::mem::take(held))
    }

    /// Passes one response on: early, or the first part through the sockets and the rest directly.
    fn pass(&mut self, line: &str, is_early: bool, exchange: &mut Exchange<'_>) {
        let Exchange { client, server, server_slot, bytes, .. } = *exchange;
        let (mut to_client, mut from_server) = (client, server);
        let (mut relayed, mut is_spliced, mut is_over, mut held) = (0, false, false, None);
        if let Some(slot) = &*exchange.slot
            && slot.end_hold()
        {
            self.kept += 1;
            if !is_early {
                self.worker.acknowledge(slot).expect("the slot is open");
            }
        }
        if is_early {
            self.open_client(client, exchange.slot);
            let (request_bytes, expected_bytes) = (line.len() as u32 + 1, bytes as u32);
            if self.has_agent {
                is_spliced = self.begin(exchange, When::Early { request_bytes, expected_bytes });
                to_server_line(server, line);
            } else {
                let slot = exchange.slot.as_ref().expect("it is open");
                server_slot.wish(slot, (request_bytes, expected_bytes), false);
                assert!(server_slot.wished().is_none());
                let is_taken_back = bytes % 8 == 7;
                if is_taken_back {
                    self.worker.abort(slot, server_slot).expect("the slots are open");
                }
                to_server_line(server, line);
                let wished = server_slot.wished();
                assert_eq!(wished.is_none(), is_taken_back, "the request has left");
                is_spliced = wished.is_some_and(|begun| begun.is_ok());
            }
            held = is_spliced.then(Vec::new);
        } else {
            to_server_line(server, line);
        }
        let deadline = Instant::now() + PATIENCE;
        server.set_read_timeout(Some(Duration::from_millis(1))).expect("a time");
        let is_complete =
            |slot: &Option<ClientSlot>| slot.as_ref().is_some_and(ClientSlot::is_complete);
        while relayed < bytes && !(is_spliced && is_complete(exchange.slot)) {
            assert!(Instant::now() < deadline, "{relayed} of {bytes}, spliced: {is_spliced}");
            let mut buffer = vec![0; 16 << 10];
            match from_server.read(&mut buffer) {
                Ok(0) => panic!("the server's end, {relayed} of {bytes}"),
                Ok(count) => {
                    relayed += count;
                    let mut due = buffer[..count].to_vec();
                    if let Some(held) = &mut held {
                        held.extend_from_slice(&due);
                        (is_spliced, due) = self.judge(exchange, held);
                        is_over |= !is_spliced;
                    }
                    if held.as_ref().is_some_and(|held| held.is_empty()) {
                        held = None;
                    }
                    to_client.write_all(&due).expect("the client reads");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => panic!("{error}"),
            }
            let left = bytes - relayed;
            if is_spliced || is_over || relayed == 0 || left == 0 {
                continue;
            }
            // The first time, no segment has passed since the slot is open.
            self.open_client(client, exchange.slot);
            is_spliced = self.begin(exchange, When::Late(left as u32));
        }
        let slot = &*exchange.slot;
        if !is_spliced {
            self.relayed += 1;
            return;
        }
        self.spliced += 1;
        if is_early && let Some(head) = slot.as_ref().and_then(ClientSlot::head) {
            assert_eq!(head.response_bytes() as usize, bytes);
            assert_eq!((head.status, relayed), (200, 0));
            self.early += 1;
            slot.iter().for_each(ClientSlot::hold);
        }
        loop {
            assert!(Instant::now() < deadline, "the splice does not end");
            while !Self::read_some(server, 65536).is_empty() {}
            let client_slot = slot.as_ref().expect("it is open");
            let end = self.worker.end(client_slot, server_slot);
            match end.expect("the slots are open") {
                End::NotYet => std::thread::yield_now(),
                End::Reusable => return,
                End::CloseServer => panic!("the socket refused bytes"),
            }
        }
    }

    fn run(&mut self, listener: &TcpListener, server: &TcpStream, clients: usize) {
        let flow = FlowKey::new(
            server.local_addr().expect("an address"),
            server.peer_addr().expect("an address"),
        );
        let server_slot = self.worker.open_server(&flow, LIMIT_BYTES, RULES).expect("a slot");
        for _ in 0..clients {
            let (client, _) = listener.accept().expect("a client");
            client.set_nodelay(true).expect("an option");
            let mut client_slot = None;
            for line in BufReader::new(client.try_clone().expect("a descriptor")).lines() {
                let Ok(line) = line else { break };
                let numbers: Vec<usize> =
                    line.split(' ').map(|word| word.parse().expect("a number")).collect();
                let mut exchange = Exchange {
                    client: &client,
                    server,
                    slot: &mut client_slot,
                    server_slot: &server_slot,
                    bytes: response(numbers[0], numbers[1]).len(),
                };
                let is_early = numbers[0] % 2 == 1;
                self.pass(&line, is_early, &mut exchange);
            }
            assert_eq!(retransmitted(&client), 0);
        }
        assert_eq!(retransmitted(server), 0);
    }
}

/// Asks for responses of random lengths, and compares every byte.
fn ask(to: SocketAddr, length_bits: u32, seed: u64, requests: usize) {
    let mut random = Random::new(seed);
    let mut stream = TcpStream::connect(to).expect("the balancer listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    for request in 0..requests {
        let size = random.below(length_bits);
        let bytes = 1 + random.below(1usize << size);
        let number = request + seed as usize;
        stream.write_all(format!("{number} {bytes}\n").as_bytes()).expect("the balancer reads");
        let due = response(number, bytes);
        let mut found = vec![0; due.len()];
        stream.read_exact(&mut found).unwrap_or_else(|e| panic!("{number}, {bytes} bytes: {e}"));
        assert!(found == due, "{number}: other bytes, of {bytes}");
    }
}

fn responses_are_spliced(plan: Plan) {
    const CLIENTS: usize = 3;
    const REQUESTS: usize = 60;
    let (share, shared): (Sender<DirectReturn>, Receiver<_>) = channel();
    let (ended, wait) = channel::<()>();
    let (listening, listens) = channel::<()>();
    let client = move || {
        listens.recv().expect("the balancer starts");
        for seed in 0..CLIENTS {
            ask(plan.address(1, 80), plan.length_bits, seed as u64, REQUESTS);
        }
    };
    let balancer = move || {
        let direct = shared.recv().expect("the server starts");
        let splicing = Splicing::open("near", 8, 8).expect("the programs load");
        let listener = TcpListener::bind(plan.address(1, 80)).expect("a free port");
        let server = TcpStream::connect(plan.address(2, 8080)).expect("the server listens");
        server.set_nodelay(true).expect("an option");
        let mut balancer = Balancer::new(splicing.worker().expect("the first"), plan.has_agent);
        listening.send(()).expect("the client waits");
        balancer.run(&listener, &server, CLIENTS);
        let counts = splicing.counts().expect("counts");
        let SentDirectly { segments, bytes } = direct.sent_directly().expect("counts");
        println!(
            "{} spliced, {} of them early, {} relayed, {} kept, {counts:?}, {:?}, {segments} segments, {bytes} bytes",
            balancer.spliced,
            balancer.early,
            balancer.relayed,
            balancer.kept,
            direct.counts().unwrap()
        );
        assert!(counts.acks > 20 && balancer.spliced > balancer.early + 5, "{counts:?}");
        assert!(balancer.kept > 5, "{} kept", balancer.kept);
        // Of the responses with a head, those that the balancer is too late for are not counted.
        assert!(balancer.early > 5, "{counts:?}");
        assert!(counts.over > 0 || !plan.offloads, "{counts:?}");
        if plan.has_agent {
            assert!(bytes > 1 << 20, "{counts:?}");
        } else {
            assert!(counts.forwarded > 100 && bytes == 0, "{counts:?}");
        }
        assert_eq!((counts.refused, counts.corrupt, counts.unsent), (0, 0, 0), "{counts:?}");
        drop(ended);
    };
    let server = move || {
        let listener = TcpListener::bind(plan.address(2, 8080)).expect("a free port");
        let mut direct = DirectReturn::open("near", RULES, 8).expect("the programs load");
        direct.set_key(&KEY).expect("a key");
        share.send(direct).expect("the balancer waits");
        let (stream, _) = listener.accept().expect("the balancer");
        stream.set_nodelay(true).expect("an option");
        let seen = stream.try_clone().expect("a descriptor");
        serve(stream);
        let _ = wait.recv();
        assert_eq!(retransmitted(&seen), 0);
    };
    in_namespaces(plan, client, balancer, server);
}

/// The cause of an end within a response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    /// The balancer gives up.
    Balancer,
    /// The server closes, with a FIN.
    Server,
}

/// The response that ends early, and the part of it that its server sends.
const BROKEN_BYTES: usize = 400_000;
const SENT_BYTES: usize = 250_000;

/// Relays the start of a response of `BROKEN_BYTES` bytes, and lets its rest be direct.
fn begin_broken(balancer: &mut Balancer, exchange: &Exchange<'_>) {
    let (mut client, deadline, mut relayed) = (exchange.client, Instant::now() + PATIENCE, 0);
    loop {
        assert!(Instant::now() < deadline, "{relayed} bytes");
        let bytes = Balancer::read_some(exchange.server, 16 << 10);
        client.write_all(&bytes).expect("the client reads");
        relayed += bytes.len();
        let left = (BROKEN_BYTES - relayed) as u32;
        if relayed > 0 && balancer.begin(exchange, When::Late(left)) {
            return;
        }
    }
}

/// A response ends early, after the client has acknowledged all that was sent of it: nothing is under way
/// that would show it the end.
fn both_connections_end(cause: Cause, plan: Plan, complete: usize) {
    let (share, shared): (Sender<DirectReturn>, Receiver<_>) = channel();
    let (listening, listens) = channel::<()>();
    let client = move || {
        listens.recv().expect("the balancer starts");
        let mut stream = TcpStream::connect(plan.address(1, 80)).expect("the balancer listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        for _ in 0..complete {
            stream.write_all(b"2 100000\n").expect("the balancer reads");
            stream.read_exact(&mut vec![0; 100_000]).expect("a whole response");
        }
        stream.write_all(b"2 400000\n").expect("the balancer reads");
        stream.read_exact(&mut vec![0; SENT_BYTES]).expect("a part of a response");
        let end = stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
    };
    let balancer = move || {
        let _direct = shared.recv().expect("the server starts");
        let splicing = Splicing::open("near", 8, 8).expect("the programs load");
        let listener = TcpListener::bind(plan.address(1, 80)).expect("a free port");
        let server = TcpStream::connect(plan.address(2, 8080)).expect("the server listens");
        server.set_nodelay(true).expect("an option");
        let mut balancer = Balancer::new(splicing.worker().expect("the first"), plan.has_agent);
        listening.send(()).expect("the client waits");
        let (client, _) = listener.accept().expect("a client");
        let [near, far] = [server.local_addr(), server.peer_addr()].map(|a| a.expect("an address"));
        let flow = FlowKey::new(near, far);
        let server_slot = balancer.worker.open_server(&flow, LIMIT_BYTES, RULES).expect("a slot");
        let mut slot = None;
        balancer.open_client(&client, &mut slot);
        let before = slot.as_ref().expect("it is open").acknowledged();
        let mut lines = BufReader::new(client.try_clone().expect("a descriptor")).lines();
        let mut exchange = Exchange {
            client: &client,
            server: &server,
            slot: &mut slot,
            server_slot: &server_slot,
            bytes: 100_000,
        };
        for _ in 0..complete {
            let line = lines.next().expect("a request").expect("a line");
            balancer.pass(&line, false, &mut exchange);
        }
        let line = lines.next().expect("a request").expect("a line");
        to_server_line(&server, &line);
        server.set_read_timeout(Some(Duration::from_millis(1))).expect("a time");
        begin_broken(&mut balancer, &exchange);
        let due = before.wrapping_add((complete * 100_000 + SENT_BYTES) as u32);
        let deadline = Instant::now() + PATIENCE;
        let client_slot = slot.as_ref().expect("it is open");
        while client_slot.acknowledged() != due {
            assert!(Instant::now() < deadline, "{} of {due}", client_slot.acknowledged());
            std::thread::yield_now();
        }
        if cause == Cause::Server {
            server.set_read_timeout(Some(PATIENCE)).expect("a time");
            assert_eq!((&server).read(&mut [0]).expect("the server's end"), 0);
        }
        balancer.worker.abort(client_slot, &server_slot).expect("the slots are open");
        // In this order, since a process may end in any.
        drop((slot, server_slot));
        for socket in [&client, &server] {
            set_socket_linger(socket, Some(Duration::ZERO)).expect("an option");
        }
        drop((lines, client, server));
    };
    let server = move || {
        let listener = TcpListener::bind(plan.address(2, 8080)).expect("a free port");
        let mut direct = DirectReturn::open("near", RULES, 8).expect("the programs load");
        direct.set_key(&KEY).expect("a key");
        share.send(direct).expect("the balancer waits");
        let (mut stream, _) = listener.accept().expect("the balancer");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time");
        let mut lines = BufReader::new(stream.try_clone().expect("a descriptor"));
        let mut line = String::new();
        for _ in 0..complete {
            lines.read_line(&mut line).expect("a request");
            stream.write_all(&response(2, 100_000)).expect("the balancer reads");
        }
        lines.read_line(&mut line).expect("a request");
        stream.write_all(&response(2, BROKEN_BYTES)[..SENT_BYTES]).expect("the client reads");
        if cause == Cause::Server {
            // With the last bytes, the FIN would reach the balancer when it is sent again.
            let deadline = Instant::now() + PATIENCE;
            while unacknowledged_bytes(&stream) > 0 {
                assert!(Instant::now() < deadline, "the client acknowledges");
                std::thread::yield_now();
            }
            stream.shutdown(std::net::Shutdown::Write).expect("it is open");
        }
        let end = stream.read(&mut [0]).map_err(|error| error.kind());
        assert_eq!(end, Err(ErrorKind::ConnectionReset));
    };
    in_namespaces(plan, client, balancer, server);
}

#[test]
fn a_splice_that_is_given_up_ends_both_connections() {
    for (has_agent, complete) in [(true, 0), (true, 1), (false, 0), (false, 2)] {
        both_connections_end(Cause::Balancer, Plan { has_agent, ..USUAL }, complete);
    }
}

#[test]
fn a_server_that_ends_within_a_response_ends_the_clients_connection() {
    for (has_agent, complete) in [(true, 0), (true, 1), (false, 0), (false, 2)] {
        both_connections_end(Cause::Server, Plan { has_agent, ..USUAL }, complete);
    }
}

#[test]
fn an_acknowledgement_is_kept_until_it_is_sent() {
    let (hold, is_held) = channel::<()>();
    let (keep, is_kept) = channel::<()>();
    let (see, is_seen) = channel::<()>();
    let client = move || {
        is_held.recv().expect("the balancer listens");
        let mut stream = TcpStream::connect(USUAL.address(1, 80)).expect("the balancer listens");
        let acknowledged = |stream: &TcpStream| {
            let deadline = Instant::now() + PATIENCE;
            while unacknowledged_bytes(stream) > 0 {
                assert!(Instant::now() < deadline, "an acknowledgement comes");
                std::thread::yield_now();
            }
        };
        is_held.recv().expect("the balancer holds");
        stream.write_all(b"1").expect("room");
        is_kept.recv().expect("the balancer keeps it");
        assert_eq!(unacknowledged_bytes(&stream), 1);
        see.send(()).expect("the balancer waits");
        acknowledged(&stream);
        is_held.recv().expect("the balancer has ended the hold");
        stream.write_all(b"2").expect("room");
        acknowledged(&stream);
        assert_eq!(retransmitted(&stream), 0);
    };
    let balancer = move || {
        let splicing = Splicing::open("near", 8, 8).expect("the programs load");
        let mut worker = splicing.worker().expect("the first");
        let listener = TcpListener::bind(USUAL.address(1, 80)).expect("a free port");
        hold.send(()).expect("the client waits");
        let (mut stream, from) = listener.accept().expect("a client");
        let flow = FlowKey::new(from, stream.local_addr().expect("an address"));
        let slot = worker.open_client(&flow).expect("a slot");
        slot.hold();
        hold.send(()).expect("the client waits");
        stream.read_exact(&mut [0]).expect("a byte");
        let deadline = Instant::now() + PATIENCE;
        while !slot.is_ack_kept() {
            assert!(Instant::now() < deadline, "the kernel acknowledges");
            std::thread::yield_now();
        }
        keep.send(()).expect("the client waits");
        is_seen.recv().expect("the client has none");
        assert!(slot.end_hold());
        worker.acknowledge(&slot).expect("the slot is open");
        assert!(!slot.is_ack_kept());
        slot.hold();
        assert!(!slot.end_hold());
        hold.send(()).expect("the client waits");
        stream.read_exact(&mut [0]).expect("a byte");
        assert_eq!(stream.read(&mut [0]).expect("an end"), 0);
    };
    in_namespaces(USUAL, client, balancer, || {});
}

/// Connects from a port that an earlier connection may have had.
fn connect_from(from: SocketAddr, to: SocketAddr) -> TcpStream {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    net::sockopt::set_socket_reuseaddr(&socket, true).expect("an option");
    net::bind(&socket, &from).expect("the port is free");
    net::connect(&socket, &to).expect("the balancer listens");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    stream
}

/// The slot of a connection that has ended lingers, and a connection with the same addresses outlasts it.
#[test]
fn a_connection_outlasts_the_slot_of_an_earlier_one() {
    let plan = Plan { has_agent: false, ..USUAL };
    let (listening, listens) = channel::<()>();
    let client = move || {
        let (from, to) = (plan.address(0, 7000), plan.address(1, 80));
        listens.recv().expect("the balancer starts");
        let mut earlier = connect_from(from, to);
        earlier.write_all(b"2 100000\n").expect("the balancer reads");
        earlier.read_exact(&mut vec![0; response(2, 100_000).len()]).expect("a whole response");
        set_socket_linger(&earlier, Some(Duration::ZERO)).expect("an option");
        drop(earlier);
        let mut later = connect_from(from, to);
        for number in 0..3 {
            let _another = (number == 2).then(|| TcpStream::connect(to));
            later.write_all(b"?").expect("the balancer reads");
            later.read_exact(&mut [0; 1000]).expect("an answer");
        }
    };
    let balancer = move || {
        // Another client's slot takes the place of the one that lingers.
        let splicing = Splicing::open("near", 1, 8).expect("the programs load");
        let listener = TcpListener::bind(plan.address(1, 80)).expect("a free port");
        let server = TcpStream::connect(plan.address(2, 8080)).expect("the server listens");
        let mut balancer = Balancer::new(splicing.worker().expect("the first"), false);
        let [from, to] = [server.local_addr(), server.peer_addr()].map(|it| it.expect("it is"));
        let server_slot = &balancer.worker.open_server(&FlowKey::new(from, to), LIMIT_BYTES, RULES);
        let server_slot = server_slot.as_ref().expect("a slot");
        listening.send(()).expect("the client waits");
        let (mut earlier, _) = listener.accept().expect("a client");
        earlier.read_exact(&mut [0; 9]).expect("a request");
        let (mut slot, bytes) = (None, response(2, 100_000).len());
        let (client, server) = (&earlier, &server);
        let mut exchange = Exchange { client, server, slot: &mut slot, server_slot, bytes };
        balancer.pass("2 100000", false, &mut exchange);
        assert_eq!(balancer.spliced, 1);
        earlier.read_exact(&mut [0]).expect_err("a reset");
        drop((slot, earlier));
        let (mut later, _) = listener.accept().expect("a client");
        for number in 0..3 {
            let another = (number == 2).then(|| listener.accept().expect("a client").0);
            another.iter().for_each(|client| balancer.open_client(client, &mut None));
            later.read_exact(&mut [0]).expect("a request");
            later.write_all(&[1; 1000]).expect("the client reads");
        }
    };
    let server = move || {
        let listener = TcpListener::bind(plan.address(2, 8080)).expect("a free port");
        serve(listener.accept().expect("the balancer").0);
    };
    in_namespaces(plan, client, balancer, server);
}

const USUAL: Plan = Plan { addresses: IPV4, offloads: true, length_bits: 22, has_agent: true };

#[test]
fn responses_of_any_length_go_to_the_client_directly() {
    responses_are_spliced(USUAL);
}

#[test]
fn over_ipv6_it_is_the_same() {
    responses_are_spliced(Plan { addresses: IPV6, ..USUAL });
}

#[test]
fn without_offloads_it_is_the_same() {
    responses_are_spliced(Plan { offloads: false, length_bits: 19, ..USUAL });
}

#[test]
fn without_an_agent_packets_pass_the_balancer() {
    responses_are_spliced(Plan { has_agent: false, ..USUAL });
}

#[test]
fn without_an_agent_packets_pass_the_balancer_over_ipv6() {
    responses_are_spliced(Plan { addresses: IPV6, has_agent: false, ..USUAL });
}

#[test]
fn without_an_agent_and_offloads_packets_pass_the_balancer() {
    responses_are_spliced(Plan { offloads: false, length_bits: 19, has_agent: false, ..USUAL });
}
