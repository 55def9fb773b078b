//! Session of one client, from its HELLO to its end.
//!
//! No input is trusted: messages are decoded strictly, descriptors are checked by their actual
//! type, and everything has a limit. The doorbell is never read, because a peer can make a read
//! block; the kernel reports each write to it once. No descriptor is closed here, and no call is made
//! on one that can wait for its client: fstat(2) of a file, only if it has the seals of a memfd.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::UCred;
use tokio::io::unix::AsyncFd;
use tokio::time::Instant;
use unlade_copy_kernels::{Guard, RegionError, Regions};
use unlade_shm::layout::SLOTS_MAX;
use unlade_shm::{Arena, Memory, Queue, Ticket};

use crate::daemon::closer::{ClientDescriptor, Connection, Places};
use crate::daemon::config::DaemonConfig;
use crate::daemon::message::{Class, Limits, Refusal, Reply, Request, VERSION};
use crate::daemon::metrics::Sessions;
use crate::daemon::socket::{self, Received};
use crate::daemon::sockets::ClientSpace;
use crate::daemon::weight::{self, Due, Groups, KernelFiles};
use crate::group::{Group, Share};
use crate::service::{AttachError, Attachment, Service};

/// Interval at which the weight of a client that copies is read again.
const WEIGHT_EVERY: Duration = Duration::from_secs(1);
/// Maximum time for which a client has too many descriptors that are not closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum page size: a file is rounded up to whole pages.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// State shared by all sessions; they run on one thread.
pub(crate) struct Context {
    /// `None` when the daemon is ending.
    pub service: RefCell<Option<Service>>,
    pub config: RefCell<Arc<DaemonConfig>>,
    pub sessions: Arc<Sessions>,
    pub guard: Guard,
    pub epoch: u64,
    pub files: KernelFiles,
    pub groups: RefCell<Groups>,
    pub next_session: Cell<u64>,
    /// Connections of clients that are served, or that were.
    pub clients: Places,
    /// Connections that are refused when they are accepted.
    pub turned_away: Places,
}

/// End of a session.
#[derive(Debug)]
enum End {
    /// The client closed, or cannot be reached.
    Gone,
    /// The client received this refusal.
    Refused(Refusal),
}

impl From<Refusal> for End {
    fn from(why: Refusal) -> End {
        End::Refused(why)
    }
}

/// A client's session. The order of the fields matters: the serving thread drops the last handle
/// of the connection, so the client sees the end only when no more copies are made for it.
struct Session {
    bell: Option<AsyncFd<Arc<ClientDescriptor>>>,
    attachment: Option<Attachment>,
    class: Class,
    number: u64,
    /// Share of the client, once it is served.
    due: RefCell<Option<Due>>,
    /// Tasks that the client had submitted when its share was read.
    seen: Cell<Ticket>,
    regions: Arc<Regions>,
    space: Arc<ClientSpace>,
    /// Number of region bytes that are counted in the metrics.
    counted_bytes: Cell<u64>,
    /// Time since which too many descriptors of the client are not closed.
    behind_since: Cell<Option<Instant>>,
    socket: AsyncFd<Arc<Connection>>,
    peer: UCred,
    context: Rc<Context>,
}

/// Serves the client behind `socket` until its end.
pub(crate) async fn run(socket: Connection, peer: UCred, context: Rc<Context>) {
    let pid = peer.pid.as_raw_nonzero();
    let Ok(mut session) = Session::new(socket, peer, context) else { return };
    match session.live().await {
        End::Gone => tracing::debug!(pid, "a client is gone"),
        End::Refused(why) => {
            tracing::info!(pid, %why, "a client is refused");
            session.refuse(why);
        }
    }
}

impl Session {
    fn new(socket: Connection, peer: UCred, context: Rc<Context>) -> io::Result<Session> {
        let socket = socket::watch(Arc::new(socket))?;
        let (regions, space) = {
            let config = context.config.borrow();
            let bytes_max = config.region_bytes_max.bytes();
            let regions = Arc::new(Regions::new(context.guard, config.regions_max, bytes_max));
            let space = ClientSpace::new(Arc::clone(&regions), config.sockets_max)?;
            (regions, space)
        };
        context.sessions.open.add(1);
        let counted_bytes = Cell::new(0);
        Ok(Session {
            bell: None,
            attachment: None,
            class: Class::Normal,
            number: context.next_session.replace(context.next_session.get() + 1),
            due: RefCell::new(None),
            seen: Cell::new(Ticket(0)),
            regions,
            space,
            counted_bytes,
            behind_since: Cell::new(None),
            socket,
            peer,
            context,
        })
    }

    async fn live(&mut self) -> End {
        let patience = self.context.config.borrow().hello_timeout;
        match tokio::time::timeout(patience, self.handshake()).await {
            Ok(Ok(())) => {}
            Ok(Err(end)) => return end,
            Err(_) => return End::Refused(Refusal::Protocol),
        }
        match self.attend().await {
            Ok(()) => End::Gone,
            Err(end) => end,
        }
    }

    /// Runs up to the answer to QUEUE.
    async fn handshake(&mut self) -> Result<(), End> {
        let (request, _) = self.next().await?;
        let Request::Hello { version, class } = request else {
            return Err(Refusal::Protocol.into());
        };
        if version != VERSION {
            return Err(Refusal::Version.into());
        }
        self.reply(&Reply::Welcome(self.limits()))?;
        loop {
            let (request, mut descriptors) = self.next().await?;
            match (request, descriptors.pop(), descriptors.pop()) {
                (Request::Segment { region, bytes }, Some(file), None) => {
                    self.add_region(region, bytes, file)?;
                }
                (Request::Queue, Some(bell), Some(memory)) => {
                    self.attach(memory, bell, class)?;
                    return self.reply(&Reply::Served);
                }
                _ => return Err(Refusal::Protocol.into()),
            }
        }
    }

    /// Handles further regions and the doorbell while the client is served.
    async fn attend(&mut self) -> Result<(), End> {
        let mut weight_due = unlade_runtime::ticker::every(WEIGHT_EVERY);
        loop {
            let (Some(bell), Some(attachment)) = (&self.bell, &self.attachment) else {
                return Ok(());
            };
            tokio::select! {
                message = self.next() => match message? {
                    (Request::Segment { region, bytes }, mut descriptors) => {
                        let file = descriptors.pop().ok_or(Refusal::Protocol)?;
                        self.add_region(region, bytes, file)?;
                    }
                    (Request::Socket { socket }, mut descriptors) => {
                        let descriptor = descriptors.pop().ok_or(Refusal::Protocol)?;
                        self.add_socket(socket, descriptor)?;
                    }
                    (Request::Forget { socket }, _) => self.forget(socket)?,
                    _ => return Err(Refusal::Protocol.into()),
                },
                ready = bell.readable() => {
                    ready.map_err(|_| End::Gone)?.clear_ready();
                    self.context.sessions.rings.add(1);
                    attachment.ring();
                    tokio::task::yield_now().await;
                }
                _ = weight_due.tick() => self.follow_weight(attachment),
            }
        }
    }

    /// Reads the share of the client again, if it has submitted tasks since the last time.
    fn follow_weight(&self, attachment: &Attachment) {
        let head = attachment.queue().head();
        if self.seen.replace(head) == head {
            return;
        }
        let due = self.read_due();
        let Some(before) = self.due.borrow().clone() else { return };
        if before == due {
            // Another session of the group may have seen another weight meanwhile.
            attachment.set_weight(due.weight);
            return;
        }
        let pid = self.peer.pid.as_raw_nonzero();
        if before.owner == due.owner {
            attachment.set_weight(due.weight);
        } else {
            // The service is absent when the daemon is ending.
            let Ok(group) = self.enter(&due) else { return };
            attachment.set_share(self.share(group));
            self.leave_group();
        }
        self.context.sessions.weight_changes.add(1);
        let (weight, owner) = (due.weight, &due.owner);
        tracing::info!(pid, before = before.weight, weight, %owner, "a client has another share");
        self.due.replace(Some(due));
    }

    fn read_due(&self) -> Due {
        let config = self.context.config.borrow();
        weight::due_to(&self.context.files, &config.weights, &self.peer, self.number)
    }

    fn share(&self, group: Group) -> Share {
        Share { group, weight: weight::weight_in_group(self.class) }
    }

    /// Enters the group of the share's owner.
    fn enter(&self, due: &Due) -> Result<Group, Refusal> {
        let service = self.context.service.borrow();
        let service = service.as_ref().ok_or(Refusal::Stopping)?;
        let create = |weight| service.group(weight);
        Ok(self.with_groups(|groups| groups.enter(due, create)))
    }

    /// Leaves the group, if the client is in one.
    fn leave_group(&self) {
        if let Some(due) = self.due.take() {
            self.with_groups(|groups| groups.leave(&due.owner));
        }
    }

    fn with_groups<T>(&self, change: impl FnOnce(&mut Groups) -> T) -> T {
        let mut groups = self.context.groups.borrow_mut();
        let before = groups.len();
        let result = change(&mut groups);
        let gauge = &self.context.sessions.groups;
        match groups.len().checked_sub(before) {
            Some(more) => gauge.add(more as u64),
            None => gauge.subtract((before - groups.len()) as u64),
        }
        result
    }

    /// Waits while many descriptors of the client are not closed yet; a close that lingers ends the
    /// session.
    async fn keep_up(&self) -> Result<(), End> {
        let closer = self.socket.get_ref().closer();
        if !closer.is_behind() {
            self.behind_since.set(None);
            return Ok(());
        }
        // This call is made anew after each ring.
        let since = self.behind_since.get().unwrap_or_else(Instant::now);
        self.behind_since.set(Some(since));
        let caught_up = tokio::time::timeout_at(since + CLOSE_TIMEOUT, closer.catch_up()).await;
        caught_up.map_err(|_| End::Refused(Refusal::Exhausted))
    }

    /// Receives the next message and checks its number of descriptors.
    async fn next(&self) -> Result<(Request, Vec<ClientDescriptor>), End> {
        // Other sessions get their turn even if this client sends without a pause.
        tokio::task::yield_now().await;
        self.keep_up().await?;
        let received = loop {
            let mut ready = self.socket.readable().await.map_err(|_| End::Gone)?;
            if let Ok(received) =
                ready.try_io(|socket| socket::receive_from_client(socket.get_ref()))
            {
                break received;
            }
        };
        match received {
            Ok(Some(received)) => understand(received).ok_or(End::Refused(Refusal::Protocol)),
            // Too many descriptors to be received.
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                Err(End::Refused(Refusal::Protocol))
            }
            Ok(None) | Err(_) => Err(End::Gone),
        }
    }

    fn limits(&self) -> Limits {
        let config = self.context.config.borrow();
        Limits {
            version: VERSION,
            regions_max: config.regions_max,
            sockets_max: config.sockets_max,
            pid: std::process::id(),
            region_bytes_max: config.region_bytes_max.bytes(),
            epoch: self.context.epoch,
        }
    }

    /// Sends a reply. A client that does not read its replies is treated as gone.
    fn reply(&self, reply: &Reply) -> Result<(), End> {
        let socket = self.socket.get_ref().as_fd();
        socket::send(socket, reply.encode().as_slice(), &[]).map_err(|_| End::Gone)
    }

    fn refuse(&self, why: Refusal) {
        self.context.sessions.refused.add(1);
        // The client may have closed already.
        let _ = self.reply(&Reply::Refused(why));
    }

    fn add_region(&self, region: u16, bytes: u64, file: ClientDescriptor) -> Result<(), End> {
        match self.regions.add(region, bytes, file) {
            Ok(()) => {
                self.context.sessions.region_bytes.add(bytes);
                self.counted_bytes.set(self.counted_bytes.get() + bytes);
                self.reply(&Reply::Added { region })
            }
            Err(error) => {
                tracing::info!(pid = self.peer.pid.as_raw_nonzero(), %error, "a region is refused");
                self.context.sessions.refused.add(1);
                self.reply(&Reply::Refused(region_refusal(&error)))
            }
        }
    }

    fn add_socket(&self, number: u16, descriptor: ClientDescriptor) -> Result<(), End> {
        match self.space.add(number, descriptor, self.socket.get_ref()) {
            Ok(()) => {
                self.context.sessions.sockets.add(1);
                self.reply(&Reply::Passed { socket: number })
            }
            Err(why) => {
                tracing::info!(pid = self.peer.pid.as_raw_nonzero(), %why, "a socket is refused");
                self.context.sessions.refused.add(1);
                self.reply(&Reply::Refused(why))
            }
        }
    }

    fn forget(&self, number: u16) -> Result<(), End> {
        if !self.space.forget(number) {
            return Err(Refusal::Protocol.into());
        }
        self.context.sessions.sockets.subtract(1);
        self.reply(&Reply::Forgotten { socket: number })
    }

    fn attach(
        &mut self,
        memory: ClientDescriptor,
        bell: ClientDescriptor,
        class: Class,
    ) -> Result<(), Refusal> {
        if !is_eventfd(&bell) {
            return Err(Refusal::Doorbell);
        }
        self.bell = Some(socket::watch(Arc::new(bell)).map_err(|_| Refusal::Exhausted)?);
        let bytes = Arena::check(memory.as_fd()).map_err(|_| Refusal::Queue)?;
        let most = Queue::bytes_for(SLOTS_MAX).map_err(|_| Refusal::Queue)? + PAGE_BYTES_MAX;
        if bytes > most {
            return Err(Refusal::Queue);
        }
        // A memfd, whose close waits for nobody: a copy thread may have to do it.
        let memory = memory.as_fd().try_clone_to_owned().map_err(|_| Refusal::Exhausted)?;
        let memory = Arena::attach(memory).map_err(|_| Refusal::Queue)?;
        let queue = Queue::attach(Memory::from(memory)).map_err(|_| Refusal::Queue)?;
        self.class = class;
        let due = self.read_due();
        let group = self.enter(&due)?;
        let weight = due.weight;
        self.due.replace(Some(due));
        let service = self.context.service.borrow();
        let service = service.as_ref().ok_or(Refusal::Stopping)?;
        let held = Arc::clone(self.socket.get_ref());
        let attached =
            service.attach_remote(queue, Arc::clone(&self.space) as _, self.share(group), held);
        self.attachment = Some(attached.map_err(|error| match error {
            AttachError::Full => Refusal::Full,
            AttachError::Stopping => Refusal::Stopping,
            AttachError::Memory(_) | AttachError::Layout(_) => Refusal::Exhausted,
        })?);
        self.space.set_ringer(self.attachment.as_ref().ok_or(Refusal::Exhausted)?.ringer());
        self.context.sessions.served.add(1);
        tracing::debug!(pid = self.peer.pid.as_raw_nonzero(), weight, "a client is served");
        Ok(())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.leave_group();
        let sessions = &self.context.sessions;
        sessions.open.subtract(1);
        sessions.sockets.subtract(self.space.sockets() as u64);
        self.space.close();
        sessions.region_bytes.subtract(self.counted_bytes.get());
        if self.attachment.is_some() {
            sessions.served.subtract(1);
        }
    }
}

/// Decodes a message, and checks its descriptors.
fn understand(received: Received<ClientDescriptor>) -> Option<(Request, Vec<ClientDescriptor>)> {
    let request = Request::decode(received.bytes()).ok()?;
    let is_whole = received.descriptors.len() == request.descriptors();
    is_whole.then_some((request, received.descriptors))
}

fn region_refusal(error: &RegionError) -> Refusal {
    match error {
        RegionError::Number(_) | RegionError::Size { .. } => Refusal::RegionLimit,
        RegionError::System { .. } => Refusal::Exhausted,
        RegionError::Length { .. } | RegionError::NotMemfd | RegionError::Unsealed => {
            Refusal::Region
        }
    }
}

/// Returns true if the descriptor is an eventfd, which only a write makes readable.
fn is_eventfd(fd: &ClientDescriptor) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
}
