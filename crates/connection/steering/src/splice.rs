//! Splices at a balancer: segments of two connections are translated into each other.
//!
//! A *slot* is the state of one connection in memory that the programs share. A connection that never
//! takes part in a splice has none, and its packets pass unchanged.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aya::maps::{HashMap, PerCpuArray};
use aya::programs::{ProgramError, SchedClassifier, TcAttachType, TestRun, TestRunOptions};
use aya::{Btf, EbpfLoader};
use thiserror::Error;
use unlade_net::FlowKey;
use unlade_splice::Unfit;
use unlade_splice::datagram::Key;
use unlade_splice::head::Head;
use unlade_splice::raw::unfit;

use crate::error::SteerError;
use crate::load::{attach_classifier, map_array, program, take};
pub use crate::splice_counts::SpliceCounts;
use crate::splice_frames::{BLANK, RuleFrame, ack_frame, rule_frame};
pub use crate::splice_memory::WORKERS_MAX;
use crate::splice_memory::{
    ACKED, AWAITS_HEAD, CLIENT_HAS_CLOCK, END, FIRST, FORWARDED_BYTES, HEAD_BYTES, HOLD,
    HOLD_ARMED, HOLD_KEPT, HOLD_OFF, IS_ACTIVE, IS_COMPLETE, IS_SEALED, NONE, OWES_ACK, RawRequest,
    SERVER_HAS_CLOCK, SERVER_LIMIT, STATUS, Shared, Slots, Table, WISH_BEGUN, WISH_MADE, WISH_NONE,
    WISH_UNFIT,
};

static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/splice.bpf.o"));
const INGRESS: &str = "splice_ingress";
const EGRESS: &str = "splice_egress";
const CONTROL: &str = "splice_control";
/// Elements of `splice_ports` in bpf/splice.bpf.c.
const PORTS: u32 = 1 << 16;
/// `enum splice_operation` of bpf/splice_control.h.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Operation {
    OpenClient,
    OpenServer,
    Begin,
    Length,
    Settle,
    End,
    Abort,
    Extend,
    Ack,
    Limit,
}

/// `enum splice_result` of bpf/splice_control.h.
const DONE: u32 = 0;
const NO_SOCKET: u32 = 1;
const NOT_OPEN: u32 = 2;
const BUSY: u32 = 3;
const OWING: u32 = 4;
const UNFIT: u32 = 5;

/// The reason why a splice does not begin, or does not go on.
#[derive(Debug, Error)]
pub enum SpliceError {
    /// The response has to go through the sockets.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// A connection is not established any more.
    #[error("a connection of the splice is closed")]
    Closed,
    /// A map is full, or refuses.
    #[error(transparent)]
    Steer(#[from] SteerError),
    /// The kernel does not run the program.
    #[error("running {CONTROL}: {0}")]
    Run(#[source] ProgramError),
}

/// The beginning of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The request is not sent yet. If the response's head is fit ([`unlade_splice::head::fit`]), the
    /// client gets all of it past the sockets, and the process learns of it by [`ClientSlot::head`].
    /// Otherwise it comes to the server's socket.
    Early {
        /// Bytes of the request.
        request_bytes: u32,
        /// Bytes of the response that are expected, its head included.
        expected_bytes: u32,
    },
    /// A part of the response was relayed; it has so many bytes more, at most 1 GiB. If the server
    /// may send more than it has sent, other bytes would overtake them ([`Unfit::Granted`]).
    Late(u32),
}

/// The end of a splice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The client has not acknowledged everything yet, or a socket has bytes under way.
    NotYet,
    /// Both connections can be used for other responses.
    Reusable,
    /// The client's can; the server's has to be closed, because its socket refused bytes.
    CloseServer,
}

/// The programs at a balancer's link; dropping the last reference detaches them.
#[derive(Debug)]
pub struct Splicing {
    shared: Arc<Shared>,
}

impl Splicing {
    /// Loads the programs and attaches them to an interface, with slots for so many connections of
    /// clients and of servers.
    ///
    /// # Errors
    /// [`SteerError`]; nothing stays attached.
    pub fn open(
        interface: &str,
        clients_max: u32,
        servers_max: u32,
    ) -> Result<Splicing, SteerError> {
        let btf = Btf::from_sys_fs().ok();
        let mut ebpf = EbpfLoader::new()
            .btf(btf.as_ref())
            .map_max_entries("splice_flows", clients_max.saturating_add(servers_max))
            .map_max_entries("splice_clients", clients_max)
            .map_max_entries("splice_servers", servers_max)
            .load(OBJECT)?;
        for name in [INGRESS, EGRESS, CONTROL] {
            let classifier: &mut SchedClassifier = program(&mut ebpf, name)?;
            classifier.load().map_err(|source| SteerError::Program { name, source })?;
        }
        // SAFETY: the three types are the structures of the arrays, all of atomic integers.
        let clients = unsafe { map_array(&mut ebpf, "splice_clients", clients_max) }?;
        // SAFETY: as above.
        let servers = unsafe { map_array(&mut ebpf, "splice_servers", servers_max) }?;
        // SAFETY: as above.
        let requests = unsafe { map_array(&mut ebpf, "splice_requests", WORKERS_MAX) }?;
        // SAFETY: the values are integers of 64 bits.
        let ports = unsafe { map_array(&mut ebpf, "splice_ports", PORTS) }?;
        let flows = take(&mut ebpf, "splice_flows")?;
        let flows = HashMap::try_from(flows).map_err(SteerError::Map)?;
        let counts = take(&mut ebpf, "splice_counts")?;
        let counts = PerCpuArray::try_from(counts).map_err(SteerError::Map)?;
        attach_classifier(&mut ebpf, INGRESS, interface, TcAttachType::Ingress)?;
        attach_classifier(&mut ebpf, EGRESS, interface, TcAttachType::Egress)?;
        let (clients_slots, servers_slots) = (Slots::new(clients_max), Slots::new(servers_max));
        let table = Table { flows, clients: clients_slots, servers: servers_slots };
        let workers = std::array::from_fn(|_| AtomicBool::new(false));
        let table = Mutex::new(table);
        let shared = Shared { ebpf, clients, servers, requests, ports, table, workers, counts };
        Ok(Splicing { shared: Arc::new(shared) })
    }

    /// Returns what a thread begins and ends splices with. The two connections of a splice are of
    /// one worker. `None`: there are [`WORKERS_MAX`] already.
    pub fn worker(&self) -> Option<SpliceWorker> {
        let number = self.shared.workers.iter().position(|is_taken| {
            is_taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        Some(SpliceWorker { shared: Arc::clone(&self.shared), number: number as u32 })
    }

    /// Returns the segments since the start.
    ///
    /// # Errors
    /// [`SteerError::Map`]
    pub fn counts(&self) -> Result<SpliceCounts, SteerError> {
        SpliceCounts::read(&self.shared.counts)
    }
}

/// Begins and ends splices.
#[derive(Debug)]
pub struct SpliceWorker {
    shared: Arc<Shared>,
    number: u32,
}

impl SpliceWorker {
    /// Opens the slot of a client's connection, which is established.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn open_client(&mut self, flow: &FlowKey) -> Result<ClientSlot, SpliceError> {
        let index = self.shared.acquire(flow, false, self.number)?;
        let (shared, frame) = (Arc::clone(&self.shared), Vec::new());
        let mut slot = ClientSlot { shared, index, flow: *flow, frame };
        self.run(Operation::OpenClient, index, NONE, None, &BLANK)?;
        let has_clock = self.shared.client(index).flow[CLIENT_HAS_CLOCK].load(Ordering::Relaxed);
        slot.frame = ack_frame(&FlowKey::new(flow.service, flow.client), has_clock != 0);
        self.shared.client(index).sent_ns.store(now_ns(), Ordering::Relaxed);
        Ok(slot)
    }

    /// Opens the slot of a connection to a server, which is established: the balancer is the
    /// flow's client. After a request, the server may send `limit_bytes` until a splice begins
    /// (0: as many as the socket has room for). Its host takes rules at a UDP port.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn open_server(
        &mut self,
        flow: &FlowKey,
        limit_bytes: u32,
        rules_port: u16,
    ) -> Result<ServerSlot, SpliceError> {
        let index = self.shared.acquire(flow, true, self.number)?;
        let rule = rule_frame(flow, rules_port);
        let shared = Arc::clone(&self.shared);
        let mut slot = ServerSlot { shared, index, flow: *flow, frame: Vec::new(), rule };
        self.request().limit_bytes.store(limit_bytes, Ordering::Relaxed);
        self.run(Operation::OpenServer, NONE, index, None, &BLANK)?;
        let has_clock = self.shared.server(index).flow[SERVER_HAS_CLOCK].load(Ordering::Relaxed);
        slot.frame = ack_frame(flow, has_clock != 0);
        Ok(slot)
    }

    /// Begins a splice: the bytes that the process has not read from the server's socket may go to
    /// the client directly, behind all bytes that it has written to the client's socket.
    ///
    /// The server's host gets the rule in a datagram of this key and number; a late one has the
    /// client's window with it. If it is lost, the bytes come here, and go to the client as packets,
    /// after [`SpliceWorker::settle`] has sent a late one's window again. Without an agent all of them do.
    ///
    /// # Errors
    /// [`SpliceError::Unfit`], and others; no splice has begun.
    pub fn begin(
        &mut self,
        client: &ClientSlot,
        server: &ServerSlot,
        when: When,
        agent: Option<(&Key, u64)>,
    ) -> Result<(), SpliceError> {
        let request = self.request();
        let (expected, length, unsent_bytes) = match when {
            When::Early { request_bytes, expected_bytes } => {
                (Some(expected_bytes), None, request_bytes)
            }
            When::Late(bytes) => (None, Some(bytes), 0),
        };
        request.unsent_bytes.store(unsent_bytes, Ordering::Relaxed);
        request.is_ordered.store(length.is_some().into(), Ordering::Relaxed);
        request.awaits_head.store(expected.is_some().into(), Ordering::Relaxed);
        request.expected_bytes.store(expected.unwrap_or_default(), Ordering::Relaxed);
        request.has_agent.store(agent.is_some().into(), Ordering::Relaxed);
        if let Some((key, counter)) = agent {
            let (low, high) = key.secret.split_at(8);
            for (word, bytes) in request.secret.iter().zip([low, high]) {
                let bytes = bytes.first_chunk().copied().unwrap_or_default();
                word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
            }
            request.counter.store(counter, Ordering::Relaxed);
            request.key.store(key.number, Ordering::Relaxed);
            request.udp_sum.store(server.rule.sum, Ordering::Relaxed);
        }
        let frame = if agent.is_some() { &server.rule.frame } else { &server.frame };
        self.run(Operation::Begin, client.index, server.index, length, frame).map(drop)
    }

    /// Changes the limit of [`SpliceWorker::open_server`]. Without one, the server is told of the
    /// socket's room at once.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn limit(&mut self, server: &ServerSlot, limit_bytes: u32) -> Result<(), SpliceError> {
        self.request().limit_bytes.store(limit_bytes, Ordering::Relaxed);
        self.run(Operation::Limit, NONE, server.index, None, &server.frame).map(drop)
    }

    /// Lets a server with a limit send `rest_bytes` bytes, from the next one on that the process reads:
    /// the rest of a response that is relayed.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn extend(&mut self, server: &ServerSlot, rest_bytes: u32) -> Result<(), SpliceError> {
        self.run(Operation::Extend, NONE, server.index, Some(rest_bytes), &server.frame).map(drop)
    }

    /// Sets the response's length, from the first byte of the splice on: the head of an early one came
    /// to the socket, and is fit although the program has not found it so, because it came in parts. The
    /// server gets the acknowledgement that was kept until then.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn set_length(
        &mut self,
        client: &ClientSlot,
        server: &ServerSlot,
        length_bytes: u32,
    ) -> Result<(), SpliceError> {
        let (client, frame) = (client.index, &server.frame);
        self.run(Operation::Length, client, server.index, Some(length_bytes), frame).map(drop)
    }

    /// Sends the server the acknowledgement that it lacks, if it lacks one: when the client sends
    /// bytes of its own during a splice. `is_forced`: also if none is known to be lacking, because
    /// the datagram of the beginning may be lost. Not more often than twice for the same bytes: the
    /// server takes a third one for a loss.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn settle(
        &mut self,
        client: &ClientSlot,
        server: &ServerSlot,
        is_forced: bool,
    ) -> Result<(), SpliceError> {
        self.request().is_forced.store(is_forced.into(), Ordering::Relaxed);
        self.run(Operation::Settle, client.index, server.index, None, &server.frame).map(drop)
    }

    /// Ends a complete splice. The process has read all bytes that came to the server's socket. If there
    /// were none, the program has ended the splice, and nothing is run.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn end(&mut self, client: &ClientSlot, server: &ServerSlot) -> Result<End, SpliceError> {
        if client.has_ended() {
            return Ok(End::Reusable);
        }
        let result = self.run(Operation::End, client.index, server.index, None, &server.frame)?;
        let is_reusable = self.request().is_reusable.load(Ordering::Relaxed) != 0;
        Ok(match result {
            BUSY if client.has_ended() => End::Reusable,
            BUSY => End::NotYet,
            _ if is_reusable => End::Reusable,
            _ => End::CloseServer,
        })
    }

    /// Ends a splice that is not complete. Both connections have to be closed, unless no byte was
    /// direct: that is sure of an early one whose head is not fit.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn abort(&mut self, client: &ClientSlot, server: &ServerSlot) -> Result<(), SpliceError> {
        self.run(Operation::Abort, client.index, server.index, None, &server.frame).map(drop)
    }

    /// Sends the client the acknowledgement that is kept ([`ClientSlot::hold`]), if one is.
    ///
    /// # Errors
    /// [`SpliceError`]
    pub fn acknowledge(&mut self, client: &ClientSlot) -> Result<(), SpliceError> {
        self.run(Operation::Ack, client.index, NONE, None, &client.frame).map(drop)
    }

    fn request(&self) -> &RawRequest {
        self.shared.requests.get(self.number).expect("numbers are below WORKERS_MAX")
    }

    fn run(
        &mut self,
        operation: Operation,
        client: u32,
        server: u32,
        length_bytes: Option<u32>,
        frame: &[u8],
    ) -> Result<u32, SpliceError> {
        let request = self.request();
        request.operation.store(operation as u32, Ordering::Relaxed);
        request.client.store(client, Ordering::Relaxed);
        request.server.store(server, Ordering::Relaxed);
        request.has_length.store(length_bytes.is_some().into(), Ordering::Relaxed);
        request.length_bytes.store(length_bytes.unwrap_or_default(), Ordering::Relaxed);
        // `mark` of struct __sk_buff, behind `len` and `pkt_type`.
        let mut context = [0; 12];
        context[8..].copy_from_slice(&self.number.to_ne_bytes());
        let options = TestRunOptions {
            data_in: Some(frame),
            ctx_in: Some(&context),
            ..TestRunOptions::default()
        };
        let program = self.shared.ebpf.program(CONTROL).ok_or(SteerError::Missing(CONTROL))?;
        let program: &SchedClassifier =
            program.try_into().map_err(|source| SteerError::Program { name: CONTROL, source })?;
        let ran = program.test_run(options).map_err(SpliceError::Run)?;
        match ran.return_value {
            result @ (DONE | BUSY | OWING) => Ok(result),
            NO_SOCKET | NOT_OPEN => Err(SpliceError::Closed),
            code => Err(unfit(code - UNFIT).map_or(SpliceError::Closed, SpliceError::Unfit)),
        }
    }
}

impl Drop for SpliceWorker {
    fn drop(&mut self) {
        if let Some(is_taken) = self.shared.workers.get(self.number as usize) {
            is_taken.store(false, Ordering::Release);
        }
    }
}

/// The slot of a client's connection. Dropping it ends the translation, at once or, if other hosts
/// have sent bytes of the connection, when TIME-WAIT is over.
#[derive(Debug)]
pub struct ClientSlot {
    shared: Arc<Shared>,
    index: u32,
    flow: FlowKey,
    /// An acknowledgement without numbers.
    frame: Vec<u8>,
}

impl ClientSlot {
    /// Returns true if the client has acknowledged the whole response of the splice.
    pub fn is_complete(&self) -> bool {
        self.shared.client(self.index).splice[IS_COMPLETE].load(Ordering::Acquire) != 0
    }

    /// Returns true if a complete splice has ended.
    fn has_ended(&self) -> bool {
        let splice = &self.shared.client(self.index).splice;
        self.is_complete() && splice[IS_ACTIVE].load(Ordering::Acquire) == 0
    }

    /// Returns the head of a response that began early, if a program has read it: the client gets it past
    /// the sockets.
    pub fn head(&self) -> Option<Head> {
        let splice = &self.shared.client(self.index).splice;
        let get = |at: usize| splice[at].load(Ordering::Acquire);
        if get(AWAITS_HEAD) != 0 || get(HEAD_BYTES) == 0 {
            return None;
        }
        let (response_bytes, head_bytes) = (get(END).wrapping_sub(get(FIRST)), get(HEAD_BYTES));
        let body_bytes = response_bytes.wrapping_sub(head_bytes);
        Some(Head { status: get(STATUS) as u16, head_bytes, body_bytes })
    }

    /// Returns true if the header of a sealed response has come, and the records behind it are the client's.
    /// To be asked after the header was read from the server's socket.
    pub fn has_header(&self) -> bool {
        let splice = &self.shared.client(self.index).splice;
        splice[AWAITS_HEAD].load(Ordering::Acquire) == 0
            && splice[IS_SEALED].load(Ordering::Relaxed) != 0
    }

    /// Returns the time for which the head of [`ClientSlot::head`] has been known.
    pub fn head_age(&self) -> Duration {
        since(&self.shared.client(self.index).head_ns)
    }

    /// Returns the time since the client's newest segment with bytes came, or since the slot was opened.
    pub fn request_age(&self) -> Duration {
        since(&self.shared.client(self.index).sent_ns)
    }

    /// Returns the time since the splice is complete.
    pub fn end_age(&self) -> Duration {
        since(&self.shared.client(self.index).end_ns)
    }

    /// Returns true if the client has acknowledged bytes that the socket has not sent: it got them from
    /// another host.
    pub fn is_ahead(&self) -> bool {
        self.shared.is_ahead(self.index)
    }

    /// Returns true if the server lacks an acknowledgement that [`SpliceWorker::settle`] sends.
    pub fn owes_ack(&self) -> bool {
        self.shared.client(self.index).splice[OWES_ACK].load(Ordering::Relaxed) != 0
    }

    /// Keeps the acknowledgement that the kernel sends when the next request is read: the first segment of a
    /// response that goes to the client past the sockets will acknowledge the request. For a response
    /// that does not come soon, [`SpliceWorker::acknowledge`] sends it.
    pub fn hold(&self) {
        self.shared.client(self.index).flow[HOLD].store(HOLD_ARMED, Ordering::Release);
    }

    /// Ends [`ClientSlot::hold`] after a read. Returns true if an acknowledgement is kept.
    pub fn end_hold(&self) -> bool {
        let hold = &self.shared.client(self.index).flow[HOLD];
        // If the program keeps one at this moment, it stays kept.
        let order = Ordering::AcqRel;
        let found = hold.compare_exchange(HOLD_ARMED, HOLD_OFF, order, Ordering::Acquire);
        found == Err(HOLD_KEPT)
    }

    /// Returns true if an acknowledgement is kept.
    pub fn is_ack_kept(&self) -> bool {
        self.shared.client(self.index).flow[HOLD].load(Ordering::Acquire) == HOLD_KEPT
    }

    /// Returns the bytes of the newest splice that came here and went to the client as packets: the
    /// server's host had no rule. Bytes that were sent again count again.
    pub fn forwarded_bytes(&self) -> u32 {
        self.shared.client(self.index).splice[FORWARDED_BYTES].load(Ordering::Acquire)
    }

    /// Returns the client's newest acknowledgement.
    pub fn acknowledged(&self) -> u32 {
        self.shared.client(self.index).flow[ACKED].load(Ordering::Relaxed)
    }

    /// Returns the connection.
    pub fn flow(&self) -> &FlowKey {
        &self.flow
    }
}

/// Returns the time by the clock of bpf_ktime_get_ns.
fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(now.tv_nsec as u64)
}

/// Returns the time since a point of that clock.
fn since(at_ns: &AtomicU64) -> Duration {
    Duration::from_nanos(now_ns().saturating_sub(at_ns.load(Ordering::Relaxed)))
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.shared.release(&self.flow, self.index, false);
    }
}

/// The slot of a connection to a server. Dropping it ends the translation, as for a client's.
#[derive(Debug)]
pub struct ServerSlot {
    shared: Arc<Shared>,
    index: u32,
    flow: FlowKey,
    /// An acknowledgement without numbers.
    frame: Vec<u8>,
    rule: RuleFrame,
}

impl ServerSlot {
    /// Returns the connection; the balancer is its client.
    pub fn flow(&self) -> &FlowKey {
        &self.flow
    }

    /// Changes the limit of [`SpliceWorker::open_server`], which is not 0 before or after, for the
    /// next request.
    pub fn set_limit(&self, limit_bytes: u32) {
        let limit = &self.shared.server(self.index).flow[SERVER_LIMIT];
        limit.store(limit_bytes, Ordering::Relaxed);
    }

    /// Begins a splice when the next request leaves the socket, without an agent: as
    /// [`SpliceWorker::begin`] with [`When::Early`], but without a system call. Both slots are of one
    /// worker. [`ServerSlot::wished`] tells the outcome, [`SpliceWorker::abort`] takes the wish back.
    /// `is_sealed`: in place of a head, the response begins with the header of a sealed one.
    pub fn wish(
        &self,
        client: &ClientSlot,
        (request_bytes, expected_bytes): (u32, u32),
        is_sealed: bool,
    ) {
        let wish = &self.shared.server(self.index).wish;
        wish.is_sealed.store(is_sealed.into(), Ordering::Relaxed);
        wish.client.store(client.index, Ordering::Relaxed);
        wish.request_bytes.store(request_bytes, Ordering::Relaxed);
        wish.expected_bytes.store(expected_bytes, Ordering::Relaxed);
        wish.state.store(WISH_MADE, Ordering::Release);
    }

    /// Returns the outcome of [`ServerSlot::wish`]; `None`: no byte of the request has left yet.
    pub fn wished(&self) -> Option<Result<(), SpliceError>> {
        match self.shared.server(self.index).wish.state.load(Ordering::Acquire) {
            WISH_NONE | WISH_MADE => None,
            WISH_BEGUN => Some(Ok(())),
            code => Some(Err(unfit(code - WISH_UNFIT).map_or(SpliceError::Closed, Into::into))),
        }
    }
}

impl Drop for ServerSlot {
    fn drop(&mut self) {
        self.shared.release(&self.flow, self.index, true);
    }
}
