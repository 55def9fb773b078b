//! One connection, from ICReq to its end (NVMe/TCP §3.2).

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::time::timeout;
use unlade_nvme_wire::fabrics::{Connect, ConnectData};
use unlade_nvme_wire::opcode::{Direction, FABRICS};
use unlade_nvme_wire::pdu::{
    COMMAND_BYTES, FatalStatus, HEADER_BYTES_MAX, InitRequest, InitResponse, Terminate,
};
use unlade_nvme_wire::{
    Command, Completion, DataPlace, Digests, FabricsType, Pdu, PduKind, Status,
};

use crate::target::config::ADMIN_CAPSULE_BYTES;
use crate::target::controller::CommandOutcome;
use crate::target::io::plan;
use crate::target::queue::{Admission, Queue};
use crate::target::ram::ChunkSlice;
use crate::target::receive::{Fault, Head, ProtocolViolation, Receiver};
use crate::target::send::Frame;
use crate::target::subsystem::{Membership, Subsystem};

/// How long a host may take to read the termination of its connection.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);
/// Largest number of bytes that the host may send in that time.
const LINGER_BYTES_MAX: usize = 16 << 20;

/// The byte stream of a connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> ByteStream for S {}

/// The result of an accept.
pub type Accepted<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + 'a>>;

/// A factory of secure streams over TCP connections, shared by all workers.
pub trait Acceptor: Send + Sync {
    /// Runs the server's side of the handshake.
    fn accept(&self, tcp: TcpStream) -> Accepted<'_>;
}

/// Serves a host on `stream` until it disconnects, violates the protocol, or `draining` is done;
/// in the last case running commands are answered first. `local` is the address that the host
/// connected to. Runs in a `LocalSet`.
pub async fn serve_stream<S: ByteStream>(
    stream: S,
    local: SocketAddr,
    subsystem: Arc<Subsystem>,
    draining: impl Future<Output = ()>,
) {
    let (read, mut write) = tokio::io::split(stream);
    let mut receiver = Receiver::new(read);
    let mut draining = pin!(draining);
    let limit = subsystem.config.connect_timeout;
    let agreed = tokio::select! {
        agreed = timeout(limit, agree(&mut receiver, &subsystem)) => {
            agreed.unwrap_or(Err(Fault::Slow))
        }
        () = &mut draining => Err(Fault::Over),
    };
    let (init, digests) = match agreed {
        Ok(agreed) => agreed,
        Err(fault) => return end(fault, None, receiver, write, &subsystem).await,
    };
    receiver.digests = digests;
    let queue = Rc::new(Queue::new(subsystem.clone(), &init, digests));
    queue.outbox.push(plain(&welcome(&subsystem, digests)));
    let mut connection = Connection { queue: queue.clone(), receiver, local };
    let sending = queue.outbox.send(&mut write, |id| queue.over(id));
    let fault = connection.converse(sending, draining).await;
    end(fault, Some(&queue), connection.receiver, write, &subsystem).await;
}

/// Receives ICReq, and agrees on its parameters.
async fn agree<R: AsyncRead + Unpin>(
    receiver: &mut Receiver<R>,
    subsystem: &Subsystem,
) -> Result<(InitRequest, Digests), Fault> {
    let head = receiver.head(|_| HEADER_BYTES_MAX).await?;
    match head.pdu {
        Pdu::InitRequest(init) if init.version == 0 => {
            Ok((init, init.digests.and(subsystem.config.digests())))
        }
        Pdu::InitRequest(_) => Err(head.fault(
            FatalStatus::Unsupported,
            8,
            "a version of NVMe/TCP that is not supported",
        )),
        _ => Err(head.fault(FatalStatus::Sequence, 0, "a PDU before ICReq")),
    }
}

fn welcome(subsystem: &Subsystem, digests: Digests) -> Pdu {
    Pdu::InitResponse(InitResponse {
        version: 0,
        alignment_bytes: 4,
        digests,
        data_bytes_max: subsystem.config.host_data_bytes_max.as_usize() as u32,
    })
}

/// Creates a PDU without digests and data.
fn plain(pdu: &Pdu) -> Frame {
    Frame::new(pdu, &pdu.common(0, Digests::NONE, 4), Vec::new(), None)
}

/// Counts and logs the reason of a connection's end, notifies the host if due, and closes it.
async fn end<S: ByteStream>(
    fault: Fault,
    queue: Option<&Rc<Queue>>,
    mut receiver: Receiver<ReadHalf<S>>,
    mut write: WriteHalf<S>,
    subsystem: &Subsystem,
) {
    let counters = &subsystem.counters;
    let mut farewell = None;
    match fault {
        Fault::Closed | Fault::Over => {}
        Fault::Io(error) => tracing::debug!(%error, "connection broken"),
        Fault::Slow => {
            counters.timeouts.add(1);
            tracing::info!("a host did not connect in time");
        }
        Fault::HostTerminated(Terminate { status, information }) => {
            counters.host_terminations.add(1);
            let known = FatalStatus::from_number(status);
            tracing::warn!(status, ?known, information, "the host ended the connection");
        }
        Fault::Broken(broken) => {
            counters.protocol_errors.add(1);
            if broken.status == FatalStatus::HeaderDigest {
                counters.header_digest_errors.add(1);
            }
            tracing::warn!(why = broken.why, "the host broke the protocol");
            farewell = Some(termination(broken));
        }
    }
    let lingering = async {
        if let Some(queue) = queue {
            if let Some(frame) = farewell.take() {
                queue.outbox.push(frame);
            }
            queue.outbox.flush(&mut write, |_| {}).await?;
        } else if let Some(frame) = farewell.take() {
            let outbox = crate::target::send::Outbox::default();
            outbox.push(frame);
            outbox.flush(&mut write, |_| {}).await?;
        }
        write.shutdown().await?;
        // Unread bytes at a socket's close cause a reset, which would overtake the pending
        // output.
        receiver.drain(LINGER_BYTES_MAX).await;
        io::Result::Ok(())
    };
    let _ = timeout(LINGER_TIMEOUT, lingering).await;
}

/// Creates C2HTermReq (NVMe/TCP §3.6.2.4).
fn termination(broken: ProtocolViolation) -> Frame {
    let end = Terminate { status: broken.status as u16, information: broken.information };
    let pdu = Pdu::ControllerTerminate(end);
    let common = pdu.common(broken.header.len(), Digests::NONE, 4);
    Frame::new(&pdu, &common, vec![ChunkSlice::new(broken.header)], None)
}

struct Connection<R> {
    queue: Rc<Queue>,
    receiver: Receiver<R>,
    local: SocketAddr,
}

impl<R: AsyncRead + Unpin> Connection<R> {
    /// Processes Connect, and then commands until the connection ends. After `draining`, it ends
    /// when the running commands are answered, on the admin queue also those of the controller's
    /// other queues. Its place in the association is freed when no job that it has started is
    /// running.
    async fn converse(
        &mut self,
        sending: impl Future<Output = io::Result<()>>,
        draining: impl Future<Output = ()>,
    ) -> Fault {
        let (mut sending, mut draining) = (pin!(sending), pin!(draining));
        let limit = self.queue.subsystem.config.connect_timeout;
        let membership = tokio::select! {
            membership = timeout(limit, self.connect()) => membership.unwrap_or(Err(Fault::Slow)),
            Err(error) = &mut sending => return Fault::Io(error),
            () = &mut draining => return Fault::Over,
        };
        let membership = match membership {
            Ok(membership) => membership,
            Err(fault) => return fault,
        };
        let queue = self.queue.clone();
        let drained = async {
            draining.await;
            queue.refuse_more();
            membership.others_gone().await;
            queue.idle().await;
        };
        let fault = tokio::select! {
            Err(fault) = self.commands(&membership) => fault,
            Err(error) = sending => Fault::Io(error),
            () = membership.ended() => Fault::Over,
            () = drained => Fault::Over,
        };
        queue.end().await;
        fault
    }

    /// Processes commands until a Connect succeeds.
    async fn connect(&mut self) -> Result<Membership, Fault> {
        loop {
            let head = self.receiver.head(|_| ADMIN_CAPSULE_BYTES).await?;
            let Pdu::CommandCapsule(entry) = head.pdu else {
                return Err(misplaced(&head));
            };
            let (command, capsule) = self.command(&head, entry).await?;
            let Some(capsule) = capsule else { continue };
            let is_connect =
                command.opcode() == FABRICS && command.fabrics_type() == FabricsType::Connect as u8;
            if !is_connect {
                self.queue.fail(command.id(), Status::COMMAND_SEQUENCE.and_final());
                continue;
            }
            if let Some(membership) = self.join(&command, capsule).await {
                return Ok(membership);
            }
        }
    }

    async fn join(&mut self, command: &Command, capsule: Capsule) -> Option<Membership> {
        let queue = &self.queue;
        let data = match in_capsule(command, capsule) {
            Ok(data) => data,
            Err(status) => {
                queue.fail(command.id(), status.and_final());
                return None;
            }
        };
        let connect = Connect::parse(command);
        let membership = match ConnectData::parse(&data) {
            Ok(data) => {
                if connect.queue == 0 {
                    queue.subsystem.former_gone(&data).await;
                }
                let membership =
                    queue.subsystem.connect(&connect, &data, self.local, Instant::now());
                membership.map_err(|refusal| (refusal.status, refusal.result))
            }
            Err(error) => {
                tracing::info!(%error, "connect refused");
                let result = unlade_nvme_wire::fabrics::invalid_parameter(error.offset, true);
                Err((Status::CONNECT_INVALID.and_final(), result))
            }
        };
        match membership {
            Ok(membership) => {
                queue.connected(membership.depth, membership.has_flow_control);
                let result = membership.controller_id().into();
                let done = Completion::new(command.id(), Status::SUCCESS);
                queue.succeed(Completion { result, ..done }, Vec::new());
                Some(membership)
            }
            Err((status, result)) => {
                tracing::info!(%status, queue = connect.queue, "connect refused");
                let refused = Completion::new(command.id(), status);
                queue.fail_with(Completion { result, ..refused });
                None
            }
        }
    }

    async fn commands(&mut self, membership: &Membership) -> Result<(), Fault> {
        let config = &self.queue.subsystem.config;
        let host_data_bytes_max = config.host_data_bytes_max.as_usize();
        let capsule_bytes_max = match membership.queue {
            0 => ADMIN_CAPSULE_BYTES,
            _ => config.in_capsule_bytes.as_usize().max(ADMIN_CAPSULE_BYTES),
        };
        loop {
            let head = self
                .receiver
                .head(|kind| match kind {
                    PduKind::HostData => host_data_bytes_max,
                    PduKind::HostTerminate => HEADER_BYTES_MAX,
                    _ => capsule_bytes_max,
                })
                .await?;
            match head.pdu {
                Pdu::CommandCapsule(entry) => {
                    let (command, capsule) = self.command(&head, entry).await?;
                    let Some(capsule) = capsule else { continue };
                    match membership.queue {
                        0 => self.admin(membership, &command, capsule),
                        _ => self.io(&command, capsule)?,
                    }
                }
                Pdu::HostData(_) => self.data(&head).await?,
                _ => return Err(misplaced(&head)),
            }
        }
    }

    /// Reads a command and its capsule; without a capsule the command is not to be executed.
    async fn command(
        &mut self,
        head: &Head,
        entry: [u8; COMMAND_BYTES],
    ) -> Result<(Command, Option<Capsule>), Fault> {
        let command = Command::new(entry);
        let mut data = vec![0; head.layout.data.len()];
        let is_good = self.receiver.data(&head.layout, &mut data).await?;
        self.queue.subsystem.counters.in_capsule_bytes.add(data.len() as u64);
        let capsule = Capsule { data, is_good };
        match self.queue.take(command.id()) {
            Admission::Yes => {}
            Admission::Draining => return Ok((command, None)),
            Admission::Conflict => {
                self.queue.refuse_conflict(command.id());
                return Ok((command, None));
            }
            Admission::TooMany => {
                let why = "more commands than the queue has entries";
                return Err(head.fault(FatalStatus::Sequence, 0, why));
            }
        }
        if !capsule.is_good {
            self.queue.subsystem.counters.data_digest_errors.add(1);
            self.queue.fail(command.id(), Status::TRANSIENT_TRANSPORT);
            return Ok((command, None));
        }
        Ok((command, Some(capsule)))
    }

    fn admin(&self, membership: &Membership, command: &Command, capsule: Capsule) {
        let queue = &self.queue;
        queue.subsystem.counters.admin_commands.add(1);
        // On the admin queue only Connect takes data.
        let is_strange = !capsule.data.is_empty();
        let (outcome, effects) = match is_strange {
            true => return queue.fail(command.id(), Status::INVALID_FIELD.and_final()),
            false => membership.association.handle(command, Instant::now()),
        };
        match outcome {
            CommandOutcome::Kept => queue.keep(command.id()),
            CommandOutcome::Done(completion, _) if !completion.status.is_success() => {
                queue.fail_with(completion);
            }
            CommandOutcome::Done(completion, data) => match sized(command, data) {
                Ok(data) => queue.succeed(completion, data),
                Err(status) => queue.fail(command.id(), status.and_final()),
            },
        }
        effects.released.into_iter().for_each(|completion| queue.release_kept(completion));
    }

    fn io(&self, command: &Command, capsule: Capsule) -> Result<(), Fault> {
        let queue = &self.queue;
        let id = command.id();
        queue.subsystem.counters.io_commands.add(1);
        if command.opcode() == FABRICS {
            return self.fabrics(command);
        }
        let subsystem = &queue.subsystem;
        let transfer_bytes_max = subsystem.config.transfer_bytes_max.as_usize();
        let plan = match plan(command, &subsystem.namespaces, transfer_bytes_max) {
            Ok(plan) => plan,
            Err(status) => {
                queue.fail(id, status.and_final());
                return Ok(());
            }
        };
        let is_in_capsule = matches!(command.data(), Ok(DataPlace::InCapsule { .. }));
        let data = match (plan.takes_data, is_in_capsule) {
            (true, true) => in_capsule(command, capsule).map(Some),
            (_, false) if capsule.data.is_empty() => Ok(None),
            // The descriptor of a command without data is ignored.
            (false, true) if plan.data_bytes == 0 && capsule.data.is_empty() => Ok(None),
            // Data to the host does not go into a capsule, and unannounced data is an error.
            _ => Err(Status::SGL_TYPE),
        };
        match data {
            Ok(data) => queue.submit(id, plan, data),
            Err(status) => queue.fail(id, status.and_final()),
        }
        Ok(())
    }

    /// Processes fabrics commands of an I/O queue: Disconnect (NVMe Base §6.4) ends it.
    fn fabrics(&self, command: &Command) -> Result<(), Fault> {
        let status = match FabricsType::from_number(command.fabrics_type()) {
            Some(FabricsType::Disconnect) => {
                let done = Completion::new(command.id(), Status::SUCCESS);
                self.queue.succeed(done, Vec::new());
                return Err(Fault::Over);
            }
            Some(FabricsType::Connect) => Status::COMMAND_SEQUENCE,
            Some(_) => Status::INVALID_FIELD,
            None => Status::INVALID_OPCODE,
        };
        self.queue.fail(command.id(), status.and_final());
        Ok(())
    }

    async fn data(&mut self, head: &Head) -> Result<(), Fault> {
        let Pdu::HostData(data) = head.pdu else { return Err(misplaced(head)) };
        let placed = self.queue.place(&data);
        let (place, mut memory) =
            placed.map_err(|error| head.fault(error.status, error.offset, error.why))?;
        let into = memory.get_mut(place).unwrap_or_default();
        let is_good = self.receiver.data(&head.layout, into).await?;
        if !is_good {
            self.queue.subsystem.counters.data_digest_errors.add(1);
        }
        self.queue.received(&data, memory, is_good);
        Ok(())
    }
}

/// The content of a capsule beside the command.
struct Capsule {
    data: Vec<u8>,
    is_good: bool,
}

/// The data of a command from its capsule.
fn in_capsule(command: &Command, capsule: Capsule) -> Result<Vec<u8>, Status> {
    match command.data() {
        Ok(DataPlace::InCapsule { offset, bytes }) => {
            let mut data = capsule.data;
            let start = usize::try_from(offset).map_err(|_| Status::SGL_OFFSET)?;
            let end = start.checked_add(bytes as usize).ok_or(Status::SGL_OFFSET)?;
            if end > data.len() {
                return Err(Status::SGL_OFFSET);
            }
            data.truncate(end);
            data.drain(..start);
            Ok(data)
        }
        Ok(DataPlace::Transport { .. }) => Err(Status::SGL_TYPE),
        Err(_) => Err(Status::SGL_TYPE),
    }
}

/// The answer's data, cut to the host's buffer (commands of the admin queue).
fn sized(command: &Command, data: Vec<u8>) -> Result<Vec<ChunkSlice>, Status> {
    if data.is_empty() {
        return Ok(Vec::new());
    }
    match command.data() {
        Ok(DataPlace::Transport { bytes }) if bytes as usize == data.len() => {
            Ok(vec![ChunkSlice::new(data)])
        }
        Ok(DataPlace::Transport { .. }) if command.direction() == Direction::ToHost => {
            Err(Status::SGL_DATA_LENGTH)
        }
        _ => Err(Status::SGL_TYPE),
    }
}

fn misplaced(head: &Head) -> Fault {
    match head.pdu {
        Pdu::HostTerminate(end) => Fault::HostTerminated(end),
        _ => head.fault(
            FatalStatus::Sequence,
            0,
            format!("{:?} in the wrong state", head.pdu.kind()),
        ),
    }
}
