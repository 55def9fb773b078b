//! The running commands of a connection, their share of memory, and their answers.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;
use unlade_nvme_wire::pdu::{Data, InitRequest};
use unlade_nvme_wire::{Completion, Digests, Pdu, Status};

use crate::target::io::Plan;
use crate::target::namespace::{Namespace, Work};
use crate::target::ram::ChunkSlice;
use crate::target::send::{Frame, Outbox};
use crate::target::subsystem::Subsystem;
use crate::target::transfer::{
    Progress, ReceivedData, TransferLimits, TransferViolation, Transfers,
};

/// Concurrent commands before Connect sets the depth of the queue: Connect itself.
const DEPTH_BEFORE_CONNECT: usize = 1;
/// SQHD in the response to a Connect without flow control (NVMe Base §3.3.2.8).
const NO_FLOW_CONTROL: u16 = 0xffff;

/// The result of taking a command in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// It is running.
    Yes,
    /// Its identifier is in use: it is refused, and not running.
    Conflict,
    /// More commands than the queue has entries: a protocol violation of the host.
    TooMany,
    /// The target is shutting down: the command is ignored.
    Draining,
}

/// A command that can start as soon as there is memory for it.
#[derive(Debug)]
struct Job {
    id: u16,
    plan: Plan,
    /// Data that came in the capsule.
    capsule: Option<Vec<u8>>,
}

#[derive(Debug)]
struct QueueState {
    depth: usize,
    has_flow_control: bool,
    /// True if the next response is that of a Connect without flow control, which it must report.
    is_connect_response_due: bool,
    /// Commands taken in, modulo the depth (SQHD).
    head: usize,
    /// Running commands, and the memory that is reserved for them.
    in_work: HashMap<u16, usize>,
    /// Commands that are answered at a later time, or never: event requests.
    kept: HashSet<u16>,
    free_bytes: usize,
    waiting: VecDeque<Job>,
    /// Commands whose data was requested.
    planned: HashMap<u16, Plan>,
    transfers: Transfers,
    is_draining: bool,
    /// Number of jobs that run on threads.
    running: usize,
    /// True at the end of the connection: no further command is started.
    is_over: bool,
}

/// A connection's commands.
#[derive(Debug)]
pub(crate) struct Queue {
    pub subsystem: Arc<Subsystem>,
    pub outbox: Outbox,
    digests: Digests,
    /// Alignment of data to the host in bytes.
    alignment_bytes: usize,
    state: RefCell<QueueState>,
    idle: Notify,
    /// Notified when no job is running.
    rested: Notify,
}

impl Queue {
    /// Creates a queue with the agreed parameters.
    pub fn new(subsystem: Arc<Subsystem>, init: &InitRequest, digests: Digests) -> Queue {
        let config = &subsystem.config;
        let limits = TransferLimits {
            request_bytes_max: config.request_bytes_max.as_usize(),
            requests_max: config.requests_max.min(init.transfers_max) as usize,
            host_data_bytes_max: config.host_data_bytes_max.as_usize(),
        };
        let state = QueueState {
            depth: DEPTH_BEFORE_CONNECT,
            has_flow_control: true,
            is_connect_response_due: false,
            head: 0,
            in_work: HashMap::new(),
            kept: HashSet::new(),
            free_bytes: config.in_flight_bytes_max.as_usize(),
            waiting: VecDeque::new(),
            planned: HashMap::new(),
            transfers: Transfers::new(limits),
            is_draining: false,
            running: 0,
            is_over: false,
        };
        Queue {
            outbox: Outbox::default(),
            digests,
            alignment_bytes: init.alignment_bytes,
            state: RefCell::new(state),
            idle: Notify::new(),
            rested: Notify::new(),
            subsystem,
        }
    }

    /// Sets the depth and the use of SQHD, from Connect.
    pub fn connected(&self, depth: usize, has_flow_control: bool) {
        let mut state = self.state.borrow_mut();
        state.depth = depth;
        state.has_flow_control = has_flow_control;
        state.is_connect_response_due = !has_flow_control;
        state.head = 1 % depth;
    }

    /// Takes a received command in.
    pub fn take(&self, id: u16) -> Admission {
        let mut state = self.state.borrow_mut();
        if state.is_draining {
            return Admission::Draining;
        }
        if state.in_work.len() >= state.depth {
            return Admission::TooMany;
        }
        state.head = (state.head + 1) % state.depth;
        if state.kept.contains(&id) || state.in_work.contains_key(&id) {
            return Admission::Conflict;
        }
        state.in_work.insert(id, 0);
        Admission::Yes
    }

    /// Keeps a command until an event; it does not count as running.
    pub fn keep(&self, id: u16) {
        let mut state = self.state.borrow_mut();
        state.in_work.remove(&id);
        state.kept.insert(id);
    }

    /// Answers a kept command.
    pub fn release_kept(&self, completion: Completion) {
        if self.state.borrow_mut().kept.remove(&completion.command_id) {
            self.respond(completion, None);
        }
    }

    /// Starts a command, or queues it until there is memory.
    pub fn submit(self: &Rc<Self>, id: u16, plan: Plan, capsule: Option<Vec<u8>>) {
        self.state.borrow_mut().waiting.push_back(Job { id, plan, capsule });
        self.pump(true);
    }

    /// Starts the queued commands for which there is memory, in order.
    fn pump(self: &Rc<Self>, is_new: bool) {
        loop {
            let job = {
                let mut state = self.state.borrow_mut();
                let Some(bytes) = state.waiting.front().map(|job| job.plan.data_bytes) else {
                    return;
                };
                if bytes > state.free_bytes {
                    self.subsystem.counters.waits.add(is_new.into());
                    return;
                }
                state.free_bytes -= bytes;
                let Some(job) = state.waiting.pop_front() else { return };
                state.in_work.insert(job.id, bytes);
                job
            };
            self.begin(job);
        }
    }

    fn begin(self: &Rc<Self>, job: Job) {
        let Job { id, plan, capsule } = job;
        match capsule {
            None if plan.takes_data => {
                let requests = {
                    let mut state = self.state.borrow_mut();
                    let requests = state.transfers.begin(id, plan.data_bytes);
                    state.planned.insert(id, plan);
                    requests
                };
                self.ask(requests);
            }
            data => self.execute(id, plan, data.unwrap_or_default()),
        }
    }

    fn ask(&self, requests: Vec<unlade_nvme_wire::pdu::ReadyToTransfer>) {
        for request in requests {
            self.subsystem.counters.data_requests.add(1);
            self.push(&Pdu::ReadyToTransfer(request), Vec::new(), None);
        }
    }

    /// The place of a PDU's data, and the buffer that contains it.
    pub fn place(
        &self,
        data: &Data,
    ) -> Result<(std::ops::Range<usize>, Vec<u8>), TransferViolation> {
        let mut state = self.state.borrow_mut();
        let place = state.transfers.place(data)?;
        Ok((place, state.transfers.take(data.command_id)))
    }

    /// Continues a command after its data was read into `memory`.
    pub fn received(self: &Rc<Self>, data: &Data, memory: Vec<u8>, is_good: bool) {
        let (progress, plan) = {
            let mut state = self.state.borrow_mut();
            state.transfers.put_back(data.command_id, memory);
            let progress = state.transfers.received(data, is_good);
            let plan = match progress {
                Progress::Complete(_) => state.planned.remove(&data.command_id),
                Progress::More(_) => None,
            };
            (progress, plan)
        };
        match (progress, plan) {
            (Progress::More(requests), _) => self.ask(requests),
            (Progress::Complete(ReceivedData { data: _, is_damaged: true }), _) => {
                self.fail(data.command_id, Status::TRANSIENT_TRANSPORT);
            }
            (Progress::Complete(arrived), Some(plan)) => {
                self.execute(data.command_id, plan, arrived.data);
            }
            (Progress::Complete(_), None) => self.fail(data.command_id, Status::INTERNAL),
        }
    }

    fn execute(self: &Rc<Self>, id: u16, plan: Plan, data: Vec<u8>) {
        let work = match plan.work(data) {
            Ok(work) => work,
            Err(status) => return self.fail(id, status.and_final()),
        };
        match plan.namespace.run_now(work) {
            Ok(ended) => self.executed(id, &plan, ended),
            Err(work) => {
                let queue = self.clone();
                tokio::task::spawn_local(async move {
                    let ended = queue.run(plan.namespace.clone(), work).await;
                    queue.executed(id, &plan, ended);
                });
            }
        }
    }

    /// Executes work on a thread, unless the connection ends before one is free.
    async fn run(&self, namespace: Arc<Namespace>, work: Work) -> Result<Vec<ChunkSlice>, Status> {
        self.subsystem.counters.file_jobs.add(1);
        // The semaphore is never closed.
        let _place = self.subsystem.file_jobs.acquire().await;
        if self.state.borrow().is_over {
            return Err(Status::ABORTED);
        }
        self.state.borrow_mut().running += 1;
        let job = tokio::task::spawn_blocking(move || namespace.run(work)).await;
        let running = {
            let mut state = self.state.borrow_mut();
            state.running -= 1;
            state.running
        };
        if running == 0 {
            self.rested.notify_one();
        }
        job.unwrap_or(Err(Status::INTERNAL))
    }

    fn executed(&self, id: u16, plan: &Plan, ended: Result<Vec<ChunkSlice>, Status>) {
        let counters = &self.subsystem.counters;
        match ended {
            Ok(data) => {
                if plan.reads() {
                    counters.reads.add(1);
                    counters.read_bytes.add(plan.data_bytes as u64);
                } else if plan.writes() {
                    counters.writes.add(1);
                    counters.written_bytes.add(plan.data_bytes as u64);
                }
                self.succeed(Completion::new(id, Status::SUCCESS), data);
            }
            Err(status) => self.fail(id, status),
        }
    }

    /// Answers a failed command.
    pub fn fail(&self, id: u16, status: Status) {
        self.fail_with(Completion::new(id, status));
    }

    /// Answers a failed command, with a result.
    pub fn fail_with(&self, completion: Completion) {
        self.subsystem.counters.commands_failed.add(1);
        tracing::debug!(id = completion.command_id, status = %completion.status, "command failed");
        self.respond(completion, Some(completion.command_id));
    }

    /// Refuses a command whose identifier is in use; the command that uses it goes on.
    pub fn refuse_conflict(&self, id: u16) {
        self.subsystem.counters.commands_failed.add(1);
        self.respond(Completion::new(id, Status::ID_CONFLICT.and_final()), None);
    }

    /// Answers a successful command, with data if there is any.
    pub fn succeed(&self, completion: Completion, data: Vec<ChunkSlice>) {
        let id = completion.command_id;
        let total: usize = data.iter().map(|piece| piece.bytes().len()).sum();
        // Without flow control, the response of a read can be omitted (NVMe/TCP §3.3.2.2).
        let is_enough = {
            let state = self.state.borrow();
            !state.has_flow_control && total > 0 && completion.result == 0
        };
        self.send_data(id, data, total, is_enough);
        if !is_enough {
            self.respond(completion, Some(id));
        }
    }

    fn send_data(&self, id: u16, data: Vec<ChunkSlice>, total: usize, is_success: bool) {
        let most = self.subsystem.config.send_bytes_max.as_usize();
        let mut pieces = VecDeque::from(data);
        let mut offset = 0;
        while offset < total {
            let bytes = most.min(total - offset);
            let is_last = offset + bytes == total;
            let header = Data {
                command_id: id,
                transfer_tag: 0,
                offset: offset as u32,
                bytes: bytes as u32,
                is_last,
                is_success: is_last && is_success,
            };
            let ends = (is_last && is_success).then_some(id);
            let part = split(&mut pieces, bytes);
            self.push(&Pdu::ControllerData(header), part, ends);
            offset += bytes;
        }
    }

    fn respond(&self, completion: Completion, ends: Option<u16>) {
        let submission_head = {
            let mut state = self.state.borrow_mut();
            match std::mem::take(&mut state.is_connect_response_due) {
                true => NO_FLOW_CONTROL,
                false if state.has_flow_control => state.head as u16,
                false => 0,
            }
        };
        let completion = Completion { submission_head, ..completion };
        self.push(&Pdu::ResponseCapsule(completion.encode()), Vec::new(), ends);
    }

    fn push(&self, pdu: &Pdu, body: Vec<ChunkSlice>, ends: Option<u16>) {
        let bytes = body.iter().map(|piece| piece.bytes().len()).sum();
        let common = pdu.common(bytes, self.digests, self.alignment_bytes);
        self.outbox.push(Frame::new(pdu, &common, body, ends));
    }

    /// Frees the memory of a command whose answer is written.
    pub fn over(self: &Rc<Self>, id: u16) {
        {
            let mut state = self.state.borrow_mut();
            state.free_bytes += state.in_work.remove(&id).unwrap_or(0);
            if state.in_work.is_empty() {
                self.idle.notify_one();
            }
        }
        self.pump(false);
    }

    /// Stops accepting commands.
    pub fn refuse_more(&self) {
        self.state.borrow_mut().is_draining = true;
    }

    /// Waits until no command is running.
    pub async fn idle(&self) {
        while !self.state.borrow().in_work.is_empty() {
            self.idle.notified().await;
        }
    }

    /// Starts no further command, and waits until the running ones are complete. The host cannot
    /// see their end: it may repeat an unanswered command on another connection, and change the
    /// data then.
    pub async fn end(&self) {
        {
            let mut state = self.state.borrow_mut();
            state.is_over = true;
            state.waiting.clear();
        }
        while self.state.borrow().running > 0 {
            self.rested.notified().await;
        }
    }
}

/// The first `count` bytes of `pieces`; the rest remains.
fn split(pieces: &mut VecDeque<ChunkSlice>, count: usize) -> Vec<ChunkSlice> {
    let mut out = Vec::new();
    let mut left = count;
    while left > 0
        && let Some(first) = pieces.front_mut()
    {
        let part = first.split_to(left);
        left -= part.bytes().len();
        if first.bytes().is_empty() {
            pieces.pop_front();
        }
        out.push(part);
    }
    out
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use unlade_nvme_wire::{Command, DataPlace, IoOpcode};

    use super::*;
    use crate::target::config::{NamespaceConfig, Source, TargetConfig};
    use crate::target::io::plan;
    use crate::target::subsystem::FILE_JOBS_MAX;

    const BLOCK_BYTES: u32 = 512;
    /// Name of the image in its directory.
    const IMAGE: &str = "disk.img";

    /// A queue with a namespace of two blocks in a file.
    struct Rig {
        /// Removed with the image and with the identity that is kept beside it.
        directory: tempfile::TempDir,
        queue: Rc<Queue>,
    }

    impl Rig {
        fn new() -> Rig {
            let directory = tempfile::tempdir().unwrap();
            let image = directory.path().join(IMAGE);
            File::create(&image).unwrap().set_len(2 * u64::from(BLOCK_BYTES)).unwrap();
            let source = Source::File(image);
            let space =
                NamespaceConfig { source, block_bytes: BLOCK_BYTES, read_only: false, uuid: None };
            let config = TargetConfig { namespaces: vec![space], ..TargetConfig::default() };
            let subsystem = Arc::new(Subsystem::open(config, false).unwrap());
            let init = InitRequest {
                version: 0,
                alignment_bytes: 4,
                digests: Digests::NONE,
                transfers_max: 1,
            };
            let queue = Rc::new(Queue::new(subsystem, &init, Digests::NONE));
            queue.connected(8, true);
            Rig { directory, queue }
        }

        /// Simulates a write of one block of ones.
        fn write(&self, id: u16, block: u64) {
            let place = DataPlace::InCapsule { offset: 0, bytes: BLOCK_BYTES };
            let command = Command::build(IoOpcode::Write as u8, id, 1).with_blocks(block, 1);
            let subsystem = &self.queue.subsystem;
            let bytes_max = BLOCK_BYTES as usize;
            let plan = plan(&command.with_data(place), &subsystem.namespaces, bytes_max).unwrap();
            assert_eq!(self.queue.take(id), Admission::Yes);
            self.queue.submit(id, plan, Some(vec![1; bytes_max]));
        }

        /// Content of the file: a number for each block.
        fn blocks(&self) -> Vec<u8> {
            let all = std::fs::read(self.directory.path().join(IMAGE)).unwrap();
            all.chunks(BLOCK_BYTES as usize).map(|block| block[0]).collect()
        }
    }

    fn is_done(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        future.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    /// Runs `test` with one blocking thread.
    fn run(test: impl Future<Output = ()>) {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.max_blocking_threads(1).build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, test);
    }

    #[test]
    fn a_write_that_waits_for_a_thread_is_not_begun_after_the_end() {
        run(async {
            let rig = Rig::new();
            let subsystem = rig.queue.subsystem.clone();
            let all = subsystem.file_jobs.acquire_many(FILE_JOBS_MAX as u32).await.unwrap();
            rig.write(1, 0);
            tokio::task::yield_now().await;
            // No job is running.
            assert!(is_done(pin!(rig.queue.end())));
            drop(all);
            while subsystem.counts().commands_failed == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(rig.blocks(), [0, 0]);
        });
    }

    #[test]
    fn the_end_waits_for_a_write_that_has_begun() {
        run(async {
            let rig = Rig::new();
            let (release, released) = std::sync::mpsc::channel::<()>();
            let blocker = tokio::task::spawn_blocking(move || released.recv());
            rig.write(1, 1);
            while rig.queue.state.borrow().running == 0 {
                tokio::task::yield_now().await;
            }
            let mut end = pin!(rig.queue.end());
            assert!(!is_done(end.as_mut()));
            release.send(()).unwrap();
            end.await;
            assert_eq!(rig.blocks(), [0, 1]);
            blocker.await.unwrap().unwrap();
        });
    }
}
