//! Associations: a host's admin queue and its I/O queues form one, which has one controller. The
//! workers share them; the path of an I/O command takes no lock of theirs.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, Semaphore, watch};
use unlade_nvme_wire::discovery::{DiscoveryEntry, EntryKind, Security, encode_page};
use unlade_nvme_wire::fabrics::{
    ATTRIBUTE_NO_FLOW_CONTROL, CONTROLLER_DYNAMIC, Connect, ConnectData, DISCOVERY_NQN,
    invalid_parameter,
};
use unlade_nvme_wire::identify::ControllerKind;
use unlade_nvme_wire::{Command, Nqn, Status};

use crate::target::config::{ADMIN_QUEUE_DEPTH, ConfigError, TargetConfig};
use crate::target::controller::{CommandOutcome, Controller, Description, Effects};
use crate::target::counters::{Counters, Counts};
use crate::target::identity::{Identities, IdentityError, serial};
use crate::target::namespace::{Namespace, OpenError};

/// Largest number of threads that block on files, over all workers.
pub(crate) const FILE_JOBS_MAX: usize = 32;

/// The reason that a subsystem cannot be served, for the operator to correct.
#[derive(Debug, thiserror::Error)]
pub enum SubsystemError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The identities of the namespaces cannot be determined.
    #[error(transparent)]
    Identity(#[from] Box<IdentityError>),
    /// A namespace cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
}

/// The subsystem with the namespaces, and the discovery subsystem.
#[derive(Debug)]
pub struct Subsystem {
    pub(crate) config: TargetConfig,
    pub(crate) namespaces: Vec<Arc<Namespace>>,
    pub(crate) counters: Counters,
    /// Permits for threads that may block on files.
    pub(crate) file_jobs: Semaphore,
    nqn: Nqn,
    discovery_nqn: Nqn,
    serial: String,
    security: Security,
    associations: Mutex<HashMap<u16, Arc<Association>>>,
    /// Associations that have ended and still have connected I/O queues.
    leaving: Mutex<Vec<Arc<Association>>>,
    /// Notified when such an association has lost its last queue.
    left: Notify,
}

/// The reason that Connect is refused: the status, and the invalid field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub status: Status,
    pub result: u64,
}

fn refusal(status: Status) -> Refusal {
    Refusal { status: status.and_final(), result: 0 }
}

fn invalid_command(offset: u16) -> Refusal {
    let result = invalid_parameter(offset, false);
    Refusal { result, ..refusal(Status::CONNECT_INVALID) }
}

fn invalid_data(offset: u16) -> Refusal {
    let result = invalid_parameter(offset, true);
    Refusal { result, ..refusal(Status::CONNECT_INVALID) }
}

/// Offsets of fields, for refusals.
const AT_QUEUE: u16 = 42;
const AT_QUEUE_SIZE: u16 = 44;
const AT_CONTROLLER: u16 = 16;
const AT_SUBSYSTEM: u16 = 256;
const AT_HOST: u16 = 512;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Subsystem {
    /// Opens the namespaces. `is_secure` is true if connections use TLS.
    ///
    /// # Errors
    /// The configuration is invalid, or a namespace cannot be opened.
    pub fn open(config: TargetConfig, is_secure: bool) -> Result<Subsystem, SubsystemError> {
        config.check()?;
        let (config, Identities { nqn, namespaces: uuids }) =
            config.identified().map_err(Box::new)?;
        let serial = serial(uuids.first().copied().unwrap_or_default());
        let numbered = (1..).zip(config.namespaces.iter().zip(uuids));
        let namespaces = numbered
            .map(|(number, (space, uuid))| Ok(Arc::new(Namespace::open(space, uuid, number)?)))
            .collect::<Result<Vec<_>, OpenError>>()?;
        let discovery_nqn = Nqn::new(DISCOVERY_NQN)
            .map_err(|error| ConfigError::Name { name: DISCOVERY_NQN.to_owned(), error })?;
        let security = if is_secure { Security::Tls13 } else { Security::None };
        Ok(Subsystem {
            config,
            namespaces,
            counters: Counters::default(),
            file_jobs: Semaphore::new(FILE_JOBS_MAX),
            nqn,
            discovery_nqn,
            serial,
            security,
            associations: Mutex::new(HashMap::new()),
            leaving: Mutex::new(Vec::new()),
            left: Notify::new(),
        })
    }

    /// Its name.
    pub fn nqn(&self) -> &Nqn {
        &self.nqn
    }

    /// The counters so far.
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// Waits until the ended associations of a host have no I/O queue left. The host repeats
    /// their unanswered commands, and no old command may be executed after that.
    pub(crate) async fn former_gone(&self, data: &ConnectData) {
        let is_former = |old: &Arc<Association>| old.host == data.host;
        loop {
            // Registered before the check, so that no notification is lost.
            let left = self.left.notified();
            if !lock(&self.leaving).iter().any(is_former) {
                return;
            }
            left.await;
        }
    }

    /// Processes Connect; `local` is the address that the host connected to.
    pub(crate) fn connect(
        self: &Arc<Self>,
        connect: &Connect,
        data: &ConnectData,
        local: SocketAddr,
        now: Instant,
    ) -> Result<Membership, Refusal> {
        let membership = match connect.queue {
            _ if connect.format != 0 => Err(refusal(Status::CONNECT_FORMAT)),
            0 => self.connect_admin(connect, data, local, now),
            _ => self.connect_io(connect, data),
        };
        let counters = &self.counters;
        match membership {
            Ok(_) => counters.connects.add(1),
            Err(_) => counters.connects_refused.add(1),
        }
        membership
    }

    fn connect_admin(
        self: &Arc<Self>,
        connect: &Connect,
        data: &ConnectData,
        local: SocketAddr,
        now: Instant,
    ) -> Result<Membership, Refusal> {
        let kind = match &data.subsystem {
            name if *name == self.nqn => ControllerKind::Io,
            name if *name == self.discovery_nqn => ControllerKind::Discovery,
            _ => return Err(invalid_data(AT_SUBSYSTEM)),
        };
        if data.controller != CONTROLLER_DYNAMIC {
            return Err(invalid_data(AT_CONTROLLER));
        }
        let depth_max = self.config.queue_depth.max(ADMIN_QUEUE_DEPTH);
        check_size(connect, depth_max)?;
        let mut associations = lock(&self.associations);
        if associations.len() >= self.config.controllers_max.into() {
            return Err(refusal(Status::CONNECT_BUSY));
        }
        let free = (1..=u16::MAX - 16).find(|id| !associations.contains_key(id));
        let id = free.ok_or(refusal(Status::CONNECT_BUSY))?;
        let association = Arc::new(Association {
            subsystem: self.clone(),
            id,
            kind,
            host: data.host.clone(),
            discovery: self.discovery_page(local),
            controller: Mutex::new(Controller::new(id, kind, connect.keep_alive_ms, now)),
            queues: Mutex::new(HashSet::new()),
            state: watch::Sender::new(AssociationState::default()),
            deadline_moved: Notify::new(),
            queue_gone: Notify::new(),
        });
        associations.insert(id, association.clone());
        self.counters.controllers.add(1);
        tracing::info!(controller = id, host = %data.host, ?kind, "host connected");
        Ok(Membership::new(association, connect))
    }

    fn connect_io(
        self: &Arc<Self>,
        connect: &Connect,
        data: &ConnectData,
    ) -> Result<Membership, Refusal> {
        let association = lock(&self.associations).get(&data.controller).cloned();
        let association = association.ok_or(invalid_data(AT_CONTROLLER))?;
        if association.kind != ControllerKind::Io || data.subsystem != self.nqn {
            return Err(invalid_data(AT_SUBSYSTEM));
        }
        // HOSTID is not compared: some hosts choose another one for each queue, and nothing here
        // depends on it.
        if association.host != data.host {
            return Err(invalid_data(AT_HOST));
        }
        if connect.queue > self.config.queues {
            return Err(invalid_command(AT_QUEUE));
        }
        check_size(connect, self.config.queue_depth)?;
        if !lock(&association.controller).is_ready() {
            return Err(refusal(Status::COMMAND_SEQUENCE));
        }
        if !lock(&association.queues).insert(connect.queue) {
            return Err(refusal(Status::COMMAND_SEQUENCE));
        }
        Ok(Membership::new(association, connect))
    }

    fn discovery_page(&self, local: SocketAddr) -> Vec<u8> {
        let entry = |kind, subsystem: &Nqn| DiscoveryEntry {
            kind,
            is_tcp: true,
            secure_channel: if self.security == Security::None { 2 } else { 1 },
            port_id: 1,
            controller: CONTROLLER_DYNAMIC,
            admin_queue_size: ADMIN_QUEUE_DEPTH,
            service: local.port().to_string(),
            subsystem: subsystem.clone(),
            address: local.ip().to_canonical().to_string(),
            security: self.security,
        };
        let current = entry(EntryKind::Current, &self.discovery_nqn);
        encode_page(1, &[current, entry(EntryKind::Nvm, &self.nqn)])
    }
}

fn check_size(connect: &Connect, depth_max: u16) -> Result<(), Refusal> {
    match connect.queue_size_zero_based {
        0 => Err(invalid_command(AT_QUEUE_SIZE)),
        size if size >= depth_max => Err(invalid_command(AT_QUEUE_SIZE)),
        _ => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct AssociationState {
    is_over: bool,
    resets: u64,
}

/// A host and its controller.
#[derive(Debug)]
pub(crate) struct Association {
    subsystem: Arc<Subsystem>,
    id: u16,
    kind: ControllerKind,
    host: Nqn,
    discovery: Vec<u8>,
    controller: Mutex<Controller>,
    /// Connected I/O queues.
    queues: Mutex<HashSet<u16>>,
    state: watch::Sender<AssociationState>,
    deadline_moved: Notify,
    /// Notified when an I/O queue has disconnected.
    queue_gone: Notify,
}

impl Association {
    /// Executes a command of the admin queue, and applies its effects; the completions that they
    /// release are returned.
    pub fn handle(&self, command: &Command, now: Instant) -> (CommandOutcome, Effects) {
        let subsystem = &self.subsystem;
        let config = &subsystem.config;
        let is_io = self.kind == ControllerKind::Io;
        let about = Description {
            nqn: if is_io { &subsystem.nqn } else { &subsystem.discovery_nqn },
            serial: &subsystem.serial,
            is_shared: config.controllers_max > 1,
            namespaces: &subsystem.namespaces,
            discovery: &self.discovery,
            queues: config.queues,
            queue_depth: config.queue_depth,
            has_queues: !lock(&self.queues).is_empty(),
            in_capsule_bytes: config.in_capsule_bytes.as_usize(),
            transfer_bytes_max: config.transfer_bytes_max.as_usize(),
            counts: subsystem.counts(),
        };
        let mut effects = Effects::default();
        let outcome = lock(&self.controller).handle(command, &about, now, &mut effects);
        if effects.close_queues {
            self.state.send_modify(|state| state.resets += 1);
        }
        if effects.deadline_moved {
            self.deadline_moved.notify_one();
        }
        (outcome, effects)
    }

    /// Removes an I/O queue that has disconnected.
    fn leave(self: &Arc<Self>, queue: u16) {
        let mut leaving = lock(&self.subsystem.leaving);
        let mut queues = lock(&self.queues);
        queues.remove(&queue);
        if queues.is_empty() {
            leaving.retain(|old| !Arc::ptr_eq(old, self));
            self.subsystem.left.notify_waiters();
        }
        drop((queues, leaving));
        self.queue_gone.notify_one();
    }

    /// Waits until the host has been silent for too long.
    async fn silent(&self) {
        loop {
            let deadline = lock(&self.controller).deadline();
            let Some(deadline) = deadline else {
                self.deadline_moved.notified().await;
                continue;
            };
            if deadline <= Instant::now() {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep_until(deadline.into()) => {}
                () = self.deadline_moved.notified() => {}
            }
        }
    }

    /// Frees the place before the queues close: a host may reconnect when it sees them closed.
    fn end(self: &Arc<Self>) {
        let mut leaving = lock(&self.subsystem.leaving);
        if !lock(&self.queues).is_empty() {
            leaving.push(self.clone());
        }
        drop(leaving);
        if lock(&self.subsystem.associations).remove(&self.id).is_some() {
            self.subsystem.counters.controllers.subtract(1);
            tracing::info!(controller = self.id, host = %self.host, "host disconnected");
        }
        self.state.send_modify(|state| state.is_over = true);
    }
}

/// A connection's membership in an association; dropping it leaves the association. Dropping that
/// of the admin queue ends the association.
#[derive(Debug)]
pub(crate) struct Membership {
    pub association: Arc<Association>,
    /// QID.
    pub queue: u16,
    /// Number of entries.
    pub depth: usize,
    /// True if the host uses SQHD.
    pub has_flow_control: bool,
    resets: u64,
}

impl Membership {
    fn new(association: Arc<Association>, connect: &Connect) -> Membership {
        let resets = association.state.borrow().resets;
        Membership {
            queue: connect.queue,
            depth: usize::from(connect.queue_size_zero_based) + 1,
            has_flow_control: connect.attributes & ATTRIBUTE_NO_FLOW_CONTROL == 0,
            resets,
            association,
        }
    }

    /// CNTLID.
    pub fn controller_id(&self) -> u16 {
        lock(&self.association.controller).id()
    }

    /// On the admin queue: waits until no I/O queue is connected.
    pub async fn others_gone(&self) {
        while self.queue == 0 && !lock(&self.association.queues).is_empty() {
            self.association.queue_gone.notified().await;
        }
    }

    /// Waits for the end of the connection: the association has ended, its controller was reset
    /// (which closes I/O queues), or the host is silent (detected by the admin queue).
    pub async fn ended(&self) {
        let mut state = self.association.state.subscribe();
        let is_io = self.queue != 0;
        let over = state.wait_for(|s| s.is_over || (is_io && s.resets != self.resets));
        if is_io {
            // The sender lives as long as the association.
            let _ = over.await;
            return;
        }
        tokio::select! {
            _ = over => {}
            () = self.association.silent() => {
                self.association.subsystem.counters.keep_alive_expiries.add(1);
                tracing::warn!(controller = self.association.id, "the host is silent; ending");
            }
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        match self.queue {
            0 => self.association.end(),
            queue => self.association.leave(queue),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Waker};

    use unlade_nvme_wire::fabrics::{Property, PropertyAccess};

    use super::*;
    use crate::target::config::{NamespaceConfig, Source};

    fn subsystem() -> Arc<Subsystem> {
        let source = Source::Ram(unlade_config::ByteSize(8192));
        let namespace = NamespaceConfig { source, block_bytes: 512, read_only: false, uuid: None };
        let config = TargetConfig {
            namespaces: vec![namespace],
            controllers_max: 2,
            queues: 2,
            ..TargetConfig::default()
        };
        Arc::new(Subsystem::open(config, false).unwrap())
    }

    fn data(subsystem: &Subsystem, controller: u16) -> ConnectData {
        let host = Nqn::new("nqn.2026-01.example:host").unwrap();
        ConnectData { host_id: [1; 16], controller, subsystem: subsystem.nqn.clone(), host }
    }

    fn connect(queue: u16) -> Connect {
        let (queue_size_zero_based, keep_alive_ms) = (31, 0);
        Connect { format: 0, queue, queue_size_zero_based, attributes: 0, keep_alive_ms }
    }

    fn join(
        s: &Arc<Subsystem>,
        connect: Connect,
        data: &ConnectData,
    ) -> Result<Membership, Refusal> {
        s.connect(&connect, data, SocketAddr::from(([192, 0, 2, 1], 4420)), Instant::now())
    }

    fn enable(membership: &Membership) {
        let set = PropertyAccess::set(Property::Configuration, 0x46_0001, 1);
        membership.association.handle(&set, Instant::now());
    }

    #[test]
    fn queues_join_their_controller() {
        let subsystem = subsystem();
        let admin = join(&subsystem, connect(0), &data(&subsystem, 0xffff)).unwrap();
        let id = admin.controller_id();
        let early = join(&subsystem, connect(1), &data(&subsystem, id)).unwrap_err();
        assert!(early.status.is(Status::COMMAND_SEQUENCE));
        enable(&admin);
        let first = join(&subsystem, connect(1), &data(&subsystem, id)).unwrap();
        let again = join(&subsystem, connect(1), &data(&subsystem, id)).unwrap_err();
        assert!(again.status.is(Status::COMMAND_SEQUENCE));
        drop(first);
        assert!(join(&subsystem, connect(1), &data(&subsystem, id)).is_ok());
        let third = join(&subsystem, connect(3), &data(&subsystem, id)).unwrap_err();
        assert_eq!(third, invalid_command(AT_QUEUE));
        let host = Nqn::new("nqn.2026-01.example:other").unwrap();
        let other = ConnectData { host, ..data(&subsystem, id) };
        assert_eq!(join(&subsystem, connect(1), &other).unwrap_err(), invalid_data(AT_HOST));
        let renumbered = ConnectData { host_id: [2; 16], ..data(&subsystem, id) };
        assert!(join(&subsystem, connect(1), &renumbered).is_ok());
        let nobody = data(&subsystem, id + 1);
        assert_eq!(join(&subsystem, connect(1), &nobody).unwrap_err(), invalid_data(AT_CONTROLLER));
        drop(admin);
        assert_eq!(subsystem.counts().controllers, 0);
        let late = join(&subsystem, connect(1), &data(&subsystem, id)).unwrap_err();
        assert_eq!(late, invalid_data(AT_CONTROLLER));
    }

    #[test]
    fn controllers_have_a_limit_and_names_must_be_right() {
        let subsystem = subsystem();
        let all = data(&subsystem, 0xffff);
        let kept: Vec<_> = (0..2).map(|_| join(&subsystem, connect(0), &all).unwrap()).collect();
        let full = join(&subsystem, connect(0), &all).unwrap_err();
        assert!(full.status.is(Status::CONNECT_BUSY));
        assert_ne!(kept[0].controller_id(), kept[1].controller_id());
        drop(kept);
        let named = Nqn::new("nqn.2026-01.example:other").unwrap();
        let other = ConnectData { subsystem: named, ..all.clone() };
        assert_eq!(join(&subsystem, connect(0), &other).unwrap_err(), invalid_data(AT_SUBSYSTEM));
        let fixed = ConnectData { controller: 1, ..all.clone() };
        assert_eq!(join(&subsystem, connect(0), &fixed).unwrap_err(), invalid_data(AT_CONTROLLER));
        let long = Connect { queue_size_zero_based: 128, ..connect(0) };
        assert_eq!(join(&subsystem, long, &all).unwrap_err(), invalid_command(AT_QUEUE_SIZE));
        let strange = Connect { format: 1, ..connect(0) };
        let strange = join(&subsystem, strange, &all).unwrap_err();
        assert!(strange.status.is(Status::CONNECT_FORMAT));
        assert_eq!((subsystem.counts().connects, subsystem.counts().connects_refused), (2, 5));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_ends_a_controller() {
        let subsystem = subsystem();
        let quick = Connect { keep_alive_ms: 50, ..connect(0) };
        let admin = join(&subsystem, quick, &data(&subsystem, 0xffff)).unwrap();
        admin.ended().await;
        assert_eq!(subsystem.counts().keep_alive_expiries, 1);
    }

    #[tokio::test]
    async fn a_reset_ends_the_queues_there_are_and_none_that_come() {
        let subsystem = subsystem();
        let admin = join(&subsystem, connect(0), &data(&subsystem, 0xffff)).unwrap();
        enable(&admin);
        let own = data(&subsystem, admin.controller_id());
        let queue = join(&subsystem, connect(1), &own).unwrap();
        let set = PropertyAccess::set(Property::Configuration, 0, 1);
        admin.association.handle(&set, Instant::now());
        queue.ended().await;
        drop(queue);
        enable(&admin);
        let queue = join(&subsystem, connect(1), &own).unwrap();
        tokio::select! {
            biased;
            () = queue.ended() => panic!("it is new"),
            () = std::future::ready(()) => {}
        }
        drop(admin);
        queue.ended().await;
    }

    #[test]
    fn a_host_that_comes_again_waits_for_its_old_queues() {
        let subsystem = subsystem();
        let ask = data(&subsystem, 0xffff);
        let admin = join(&subsystem, connect(0), &ask).unwrap();
        enable(&admin);
        let own = data(&subsystem, admin.controller_id());
        let queues = [1, 2].map(|queue| join(&subsystem, connect(queue), &own).unwrap());
        let is_done = |waiting: Pin<&mut dyn Future<Output = ()>>| {
            waiting.poll(&mut Context::from_waker(Waker::noop())).is_ready()
        };
        // While it is connected, it may connect again at any time.
        assert!(is_done(pin!(subsystem.former_gone(&ask))));
        drop(admin);
        let mut waiting = pin!(subsystem.former_gone(&ask));
        assert!(!is_done(waiting.as_mut()));
        let [first, second] = queues;
        drop(first);
        assert!(!is_done(waiting.as_mut()));
        let host = Nqn::new("nqn.2026-01.example:other").unwrap();
        let other = ConnectData { host, ..ask.clone() };
        assert!(is_done(pin!(subsystem.former_gone(&other))));
        // It may have chosen another host identifier.
        let again = ConnectData { host_id: [2; 16], ..ask.clone() };
        assert!(!is_done(pin!(subsystem.former_gone(&again))));
        drop(second);
        assert!(is_done(waiting));
        assert!(is_done(pin!(subsystem.former_gone(&ask))));
    }

    #[test]
    fn a_controller_is_reset_and_shut_down_when_its_queues_are_gone() {
        let subsystem = subsystem();
        let admin = join(&subsystem, connect(0), &data(&subsystem, 0xffff)).unwrap();
        let own = data(&subsystem, admin.controller_id());
        let ask = |command: Command| match admin.association.handle(&command, Instant::now()).0 {
            CommandOutcome::Done(completion, _) => completion.result,
            CommandOutcome::Kept => panic!("kept"),
        };
        let set = |value| ask(PropertyAccess::set(Property::Configuration, value, 1));
        let status = || ask(PropertyAccess::get(Property::Status, 1));
        enable(&admin);
        let queue = join(&subsystem, connect(1), &own).unwrap();
        set(0x46_4001);
        assert_eq!(status(), 1 | 1 << 2, "it is being shut down");
        set(0);
        assert_eq!(status(), 1, "it is being reset");
        drop(queue);
        assert_eq!(status(), 0);
        enable(&admin);
        let queue = join(&subsystem, connect(1), &own).unwrap();
        set(0x46_4001);
        drop(queue);
        assert_eq!(status(), 1 | 2 << 2);
    }

    #[test]
    fn discovery_names_where_the_host_connected() {
        let subsystem = subsystem();
        let name = subsystem.discovery_nqn.clone();
        let ask = ConnectData { subsystem: name, ..data(&subsystem, 0xffff) };
        let membership = join(&subsystem, connect(0), &ask).unwrap();
        let page = &membership.association.discovery;
        let (_, entries) = unlade_nvme_wire::discovery::parse_page(page).unwrap();
        assert_eq!(
            (entries[1].address.as_str(), entries[1].service.as_str()),
            ("192.0.2.1", "4420")
        );
        assert_eq!((entries[0].kind, entries[1].kind), (EntryKind::Current, EntryKind::Nvm));
        enable(&membership);
        let io = ConnectData { controller: membership.controller_id(), ..ask };
        assert_eq!(join(&subsystem, connect(1), &io).unwrap_err(), invalid_data(AT_SUBSYSTEM));
    }
}
