//! The commands of the admin queue: a controller from Connect to its end. Sans-IO.

use std::sync::Arc;
use std::time::{Duration, Instant};

use unlade_nvme_wire::discovery::LOG_DISCOVERY;
use unlade_nvme_wire::fabrics::{Property, PropertyAccess};
use unlade_nvme_wire::identify::{
    ControllerKind, IdentifyController, IdentifyKind, NamespaceNames, ONCS_COMPARE,
    ONCS_DATASET_MANAGEMENT, ONCS_WRITE_ZEROES, SGL_ANY_ALIGNMENT, SGL_OFFSET, SGL_TRANSPORT,
    encode_command_sets, encode_namespaces,
};
use unlade_nvme_wire::opcode::FABRICS;
use unlade_nvme_wire::{AdminOpcode, Command, Completion, FabricsType, Nqn, Status};

use crate::target::counters::Counts;
use crate::target::namespace::Namespace;

/// Largest number of event requests that a controller keeps.
pub(crate) const EVENT_REQUESTS_MAX: usize = 4;
/// Concurrent aborts; each is executed at once.
const ABORTS_MAX: u8 = 4;
/// Entries of the error log. It stays empty: errors are in completions and in the target's log.
const ERROR_ENTRIES: usize = 1;
/// Bytes of an entry of the error log, and of the pages below (NVMe Base §5.16.1).
const ERROR_ENTRY_BYTES: usize = 64;
const HEALTH_BYTES: usize = 512;
const FIRMWARE_BYTES: usize = 512;
/// VS: 1.4.
const VERSION: u32 = 0x0001_0400;
/// CAP.TO: the enable timeout, in units of 500 ms.
const READY_TIMEOUT_HALF_S: u64 = 30;
/// KAS: granularity of the keep alive timer, in units of 100 ms.
const KEEP_ALIVE_GRAIN: u16 = 10;

const LOG_ERRORS: u8 = 0x01;
const LOG_HEALTH: u8 = 0x02;
const LOG_FIRMWARE: u8 = 0x03;

const FEATURE_WRITE_CACHE: u8 = 0x06;
const FEATURE_QUEUES: u8 = 0x07;
const FEATURE_EVENTS: u8 = 0x0b;
const FEATURE_KEEP_ALIVE: u8 = 0x0f;

const ENABLE: u32 = 1;
const READY: u32 = 1;
const FATAL: u32 = 1 << 1;
const SHUTDOWN_MASK: u32 = 3 << 2;
const SHUTDOWN_GOING_ON: u32 = 1 << 2;
const SHUTDOWN_DONE: u32 = 2 << 2;
/// CC: memory page size and arbitration, which must be 0.
const CONFIGURATION_ZERO: u32 = 0x3f80;
/// CC.CSS: the NVM command set, or all supported command sets, which is the same here.
const COMMAND_SETS_MASK: u32 = 7 << 4;
const COMMAND_SET_NVM: u32 = 0;
const COMMAND_SETS_ALL: u32 = 6 << 4;
/// CC: sizes of queue entries, 2^4 and 2^6 bytes.
const ENTRY_SIZES: u32 = 0x46_0000;
const ENTRY_SIZES_MASK: u32 = 0xff_0000;

/// The result of a command of the admin queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// Answered, with data if there is any.
    Done(Completion, Vec<u8>),
    /// Kept: its identifier is answered later, or never.
    Kept,
}

/// The effects of a command beside its answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Effects {
    /// True if I/O queues are to be closed: the controller was reset or shut down.
    pub close_queues: bool,
    /// True if the deadline of the keep alive timer has changed.
    pub deadline_moved: bool,
    /// Kept commands that are completed now.
    pub released: Vec<Completion>,
}

/// The data of a subsystem that a controller reports.
#[derive(Debug)]
pub(crate) struct Description<'a> {
    pub nqn: &'a Nqn,
    pub serial: &'a str,
    /// True if several controllers can exist concurrently, for several paths or hosts.
    pub is_shared: bool,
    pub namespaces: &'a [Arc<Namespace>],
    /// The discovery log page.
    pub discovery: &'a [u8],
    pub queues: u16,
    pub queue_depth: u16,
    /// True if I/O queues are connected; their commands may be running.
    pub has_queues: bool,
    pub in_capsule_bytes: usize,
    pub transfer_bytes_max: usize,
    pub counts: Counts,
}

/// A controller.
#[derive(Debug)]
pub(crate) struct Controller {
    id: u16,
    kind: ControllerKind,
    configuration: u32,
    status: u32,
    /// The keep alive timer: its length and its deadline.
    keep_alive: Duration,
    deadline: Option<Instant>,
    event_configuration: u32,
    event_requests: Vec<u16>,
}

fn done(command: &Command, status: Status) -> CommandOutcome {
    CommandOutcome::Done(Completion::new(command.id(), status), Vec::new())
}

fn result(command: &Command, result: u64) -> CommandOutcome {
    let completion = Completion { result, ..Completion::new(command.id(), Status::SUCCESS) };
    CommandOutcome::Done(completion, Vec::new())
}

fn data(command: &Command, data: Vec<u8>) -> CommandOutcome {
    CommandOutcome::Done(Completion::new(command.id(), Status::SUCCESS), data)
}

fn refuse(command: &Command, status: Status) -> CommandOutcome {
    done(command, status.and_final())
}

impl Controller {
    /// Creates a controller, not yet enabled.
    pub fn new(id: u16, kind: ControllerKind, keep_alive_ms: u32, now: Instant) -> Controller {
        let keep_alive = Duration::from_millis(keep_alive_ms.into());
        let mut controller = Controller {
            id,
            kind,
            configuration: 0,
            status: 0,
            keep_alive,
            deadline: None,
            event_configuration: 0,
            event_requests: Vec::new(),
        };
        controller.restart_timer(now);
        controller
    }

    /// CNTLID.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Returns true if I/O commands are accepted.
    pub fn is_ready(&self) -> bool {
        self.status & READY != 0 && self.status & FATAL == 0
    }

    /// Deadline for the next command of the host.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Executes a command.
    pub fn handle(
        &mut self,
        command: &Command,
        about: &Description<'_>,
        now: Instant,
        effects: &mut Effects,
    ) -> CommandOutcome {
        if command.opcode() == FABRICS {
            return self.fabrics(command, about, effects);
        }
        let Some(opcode) = AdminOpcode::from_number(command.opcode()) else {
            return refuse(command, Status::INVALID_OPCODE);
        };
        if !self.is_ready() {
            return refuse(command, Status::COMMAND_SEQUENCE);
        }
        let for_io = matches!(opcode, AdminOpcode::Abort) && self.kind == ControllerKind::Discovery;
        if command.fused() != 0 || for_io {
            return refuse(command, Status::INVALID_FIELD);
        }
        match opcode {
            AdminOpcode::Identify => self.identify(command, about),
            AdminOpcode::GetLogPage => self.log_page(command, about),
            AdminOpcode::GetFeatures => self.get_feature(command, about),
            AdminOpcode::SetFeatures => self.set_feature(command, about, now, effects),
            AdminOpcode::AsyncEvent => self.event_request(command),
            AdminOpcode::Abort => self.abort(command, effects),
            AdminOpcode::KeepAlive => {
                self.restart_timer(now);
                effects.deadline_moved = true;
                done(command, Status::SUCCESS)
            }
        }
    }

    fn restart_timer(&mut self, now: Instant) {
        self.deadline = (!self.keep_alive.is_zero()).then(|| now + self.keep_alive);
    }

    fn fabrics(
        &mut self,
        command: &Command,
        about: &Description<'_>,
        effects: &mut Effects,
    ) -> CommandOutcome {
        match FabricsType::from_number(command.fabrics_type()) {
            Some(FabricsType::PropertyGet) => self.get_property(command, about),
            Some(FabricsType::PropertySet) => self.set_property(command, effects),
            // A second Connect. The admin queue cannot be disconnected either (NVMe Base §6.4).
            Some(FabricsType::Connect) => refuse(command, Status::COMMAND_SEQUENCE),
            Some(FabricsType::Disconnect) => refuse(command, Status::INVALID_FIELD),
            None => refuse(command, Status::INVALID_OPCODE),
        }
    }

    fn get_property(&self, command: &Command, about: &Description<'_>) -> CommandOutcome {
        let known = PropertyAccess::parse(command)
            .and_then(|access| Some((Property::from_offset(access.offset)?, access.is_wide)));
        let value = match known {
            Some((Property::Capabilities, true)) => capabilities(about.queue_depth),
            Some((Property::Version, false)) => VERSION.into(),
            Some((Property::Configuration, false)) => self.configuration.into(),
            Some((Property::Status, false)) => self.shown_status(about.has_queues).into(),
            _ => return refuse(command, Status::INVALID_FIELD),
        };
        result(command, value)
    }

    /// The value of CSTS. A reset or a shutdown is complete when no command can be running (NVMe
    /// Base §3.1.3.6): the host reuses its memory then.
    fn shown_status(&self, has_queues: bool) -> u32 {
        if !has_queues {
            return self.status;
        }
        let is_reset = self.configuration & ENABLE == 0;
        let status = if is_reset { self.status | READY } else { self.status };
        match status & SHUTDOWN_MASK {
            SHUTDOWN_DONE => status & !SHUTDOWN_MASK | SHUTDOWN_GOING_ON,
            _ => status,
        }
    }

    fn set_property(&mut self, command: &Command, effects: &mut Effects) -> CommandOutcome {
        match PropertyAccess::parse(command) {
            Some(access) if access.offset == Property::Configuration as u32 && !access.is_wide => {
                self.configure(access.value as u32, effects);
                done(command, Status::SUCCESS)
            }
            _ => refuse(command, Status::INVALID_FIELD),
        }
    }

    /// Processes a write of CC (NVMe Base §3.1.3.5).
    fn configure(&mut self, new: u32, effects: &mut Effects) {
        let before = self.configuration;
        self.configuration = new;
        let (was_enabled, is_enabled) = (before & ENABLE != 0, new & ENABLE != 0);
        if is_enabled && !was_enabled {
            let sizes_fit =
                self.kind == ControllerKind::Discovery || new & ENTRY_SIZES_MASK == ENTRY_SIZES;
            let sets_fit = matches!(new & COMMAND_SETS_MASK, COMMAND_SET_NVM | COMMAND_SETS_ALL);
            let is_valid = new & CONFIGURATION_ZERO == 0 && sets_fit && sizes_fit;
            self.status = if is_valid { READY } else { FATAL };
        }
        if was_enabled && !is_enabled {
            self.status = 0;
            self.configuration = 0;
            self.event_configuration = 0;
            // Kept commands are not answered after a reset (§3.7.2).
            self.event_requests.clear();
            effects.close_queues = true;
        }
        let (asked_before, asks) = (before >> 14 & 3, new >> 14 & 3);
        if asks != 0 && asked_before == 0 {
            self.status |= SHUTDOWN_DONE;
            effects.close_queues = true;
        }
    }

    fn identify(&self, command: &Command, about: &Description<'_>) -> CommandOutcome {
        let number = command.namespace();
        let namespace = || about.namespaces.iter().find(|space| space.number == number);
        let command_set = command.dword(11) >> 24;
        let kind = IdentifyKind::from_number(command.dword(10) as u8);
        if self.kind == ControllerKind::Discovery && kind != Some(IdentifyKind::Controller) {
            return refuse(command, Status::INVALID_FIELD);
        }
        match kind {
            Some(IdentifyKind::Controller) => data(command, self.description(about).encode()),
            Some(IdentifyKind::CommandSetNamespaces) if command_set != 0 => {
                refuse(command, Status::INVALID_FIELD)
            }
            Some(IdentifyKind::ActiveNamespaces | IdentifyKind::CommandSetNamespaces)
                if number >= 0xffff_fffe =>
            {
                refuse(command, Status::INVALID_NAMESPACE)
            }
            Some(IdentifyKind::ActiveNamespaces | IdentifyKind::CommandSetNamespaces) => {
                let numbers = about.namespaces.iter().map(|space| space.number);
                data(command, encode_namespaces(numbers, number))
            }
            Some(IdentifyKind::Namespace) => match namespace() {
                Some(space) => data(command, space.identify(about.is_shared).encode()),
                None => refuse(command, Status::INVALID_NAMESPACE),
            },
            Some(IdentifyKind::Descriptors) => match namespace() {
                Some(space) => {
                    let identity = Some(space.uuid.into_bytes());
                    let command_set = Some(0);
                    let names = NamespaceNames { guid: identity, uuid: identity, command_set };
                    data(command, names.encode())
                }
                None => refuse(command, Status::INVALID_NAMESPACE),
            },
            Some(IdentifyKind::CommandSets) => data(command, encode_command_sets()),
            Some(IdentifyKind::CommandSetNamespace) if namespace().is_none() => {
                refuse(command, Status::INVALID_NAMESPACE)
            }
            Some(IdentifyKind::CommandSetNamespace | IdentifyKind::CommandSetController)
                if command_set == 0 =>
            {
                data(command, vec![0; unlade_nvme_wire::identify::IDENTIFY_BYTES])
            }
            _ => refuse(command, Status::INVALID_FIELD),
        }
    }

    fn description(&self, about: &Description<'_>) -> IdentifyController {
        let is_io = self.kind == ControllerKind::Io;
        let capsule_bytes = unlade_nvme_wire::pdu::COMMAND_BYTES + about.in_capsule_bytes;
        IdentifyController {
            serial: about.serial.to_owned(),
            model: "Unlade".to_owned(),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            is_one_of_many: about.is_shared,
            transfer_power: (about.transfer_bytes_max / 4096).trailing_zeros() as u8,
            controller: self.id,
            version: VERSION,
            events: 0,
            kind: self.kind as u8,
            event_requests_zero_based: EVENT_REQUESTS_MAX as u8 - 1,
            aborts_zero_based: ABORTS_MAX - 1,
            // Log pages with offsets and long lengths.
            log_attributes: 1 << 2,
            error_entries_zero_based: ERROR_ENTRIES as u8 - 1,
            keep_alive_grain: KEEP_ALIVE_GRAIN,
            commands_max: about.queue_depth,
            namespaces_max: if is_io { about.namespaces.len() as u32 } else { 0 },
            commands: match is_io {
                true => ONCS_COMPARE | ONCS_DATASET_MANAGEMENT | ONCS_WRITE_ZEROES,
                false => 0,
            },
            // There is a cache; Flush is for one namespace.
            write_cache: if is_io { 0b101 } else { 0 },
            sgl: SGL_ANY_ALIGNMENT | SGL_OFFSET | SGL_TRANSPORT,
            subsystem: Some(about.nqn.clone()),
            command_capsule_16: capsule_bytes as u32 / 16,
            response_capsule_16: 1,
            in_capsule_offset_16: 0,
            descriptors_max: 1,
        }
    }

    fn log_page(&self, command: &Command, about: &Description<'_>) -> CommandOutcome {
        let is_discovery = self.kind == ControllerKind::Discovery;
        let page = match command.dword(10) as u8 {
            LOG_DISCOVERY if is_discovery => about.discovery.to_vec(),
            LOG_ERRORS if !is_discovery => vec![0; ERROR_ENTRIES * ERROR_ENTRY_BYTES],
            LOG_HEALTH if !is_discovery => health(about),
            LOG_FIRMWARE if !is_discovery => firmware(),
            _ => return refuse(command, Status::INVALID_LOG_PAGE),
        };
        let dwords =
            u64::from(command.dword(10) >> 16) | u64::from(command.dword(11) & 0xffff) << 16;
        let bytes = (dwords + 1) * 4;
        let offset = u64::from(command.dword(12)) | u64::from(command.dword(13)) << 32;
        if bytes > about.transfer_bytes_max as u64
            || !offset.is_multiple_of(4)
            || offset > page.len() as u64
        {
            return refuse(command, Status::INVALID_FIELD);
        }
        // Bytes behind the page are undefined; here they are zero.
        let mut part = page[offset as usize..].to_vec();
        part.resize(bytes as usize, 0);
        data(command, part)
    }

    fn get_feature(&self, command: &Command, about: &Description<'_>) -> CommandOutcome {
        let is_io = self.kind == ControllerKind::Io;
        let value = match command.dword(10) as u8 {
            FEATURE_WRITE_CACHE if is_io => 1,
            FEATURE_QUEUES if is_io => queues(about.queues),
            FEATURE_EVENTS => self.event_configuration.into(),
            FEATURE_KEEP_ALIVE => self.keep_alive.as_millis() as u64,
            _ => return refuse(command, Status::INVALID_FIELD),
        };
        match command.dword(10) >> 8 & 7 {
            // Current and default values are the same for all features but two; there are no
            // saved values.
            0 | 1 => result(command, value),
            _ => refuse(command, Status::INVALID_FIELD),
        }
    }

    fn set_feature(
        &mut self,
        command: &Command,
        about: &Description<'_>,
        now: Instant,
        effects: &mut Effects,
    ) -> CommandOutcome {
        if command.dword(10) >> 31 != 0 {
            return refuse(command, Status::FEATURE_NOT_SAVEABLE);
        }
        let value = command.dword(11);
        match command.dword(10) as u8 {
            FEATURE_QUEUES if self.kind == ControllerKind::Io => {
                // 65,536 queues cannot be requested (NVMe Base §5.27.1.5).
                let (submission, completion) = (value & 0xffff, value >> 16);
                if submission == 0xffff || completion == 0xffff {
                    return refuse(command, Status::INVALID_FIELD);
                }
                let asked = submission.min(completion) + 1;
                result(command, queues(about.queues.min(asked as u16)))
            }
            FEATURE_EVENTS => {
                self.event_configuration = value;
                done(command, Status::SUCCESS)
            }
            FEATURE_KEEP_ALIVE => {
                self.keep_alive = Duration::from_millis(value.into());
                self.restart_timer(now);
                effects.deadline_moved = true;
                done(command, Status::SUCCESS)
            }
            FEATURE_WRITE_CACHE if self.kind == ControllerKind::Io => {
                refuse(command, Status::FEATURE_NOT_CHANGEABLE)
            }
            _ => refuse(command, Status::INVALID_FIELD),
        }
    }

    fn event_request(&mut self, command: &Command) -> CommandOutcome {
        if self.event_requests.len() >= EVENT_REQUESTS_MAX {
            return refuse(command, Status::ASYNC_EVENT_LIMIT);
        }
        self.event_requests.push(command.id());
        CommandOutcome::Kept
    }

    /// Aborts a kept command; all other commands are running already. Bit 0 of the result is set
    /// if no command was aborted (NVMe Base §5.1).
    fn abort(&mut self, command: &Command, effects: &mut Effects) -> CommandOutcome {
        let (queue, id) = (command.dword(10) as u16, (command.dword(10) >> 16) as u16);
        let place = self.event_requests.iter().position(|kept| queue == 0 && *kept == id);
        let Some(place) = place else { return result(command, 1) };
        self.event_requests.remove(place);
        effects.released.push(Completion::new(id, Status::ABORTED));
        result(command, 0)
    }
}

/// CAP: entries of a queue, zero-based; queues are contiguous; the NVM command set, and support
/// for the Identify of command sets (CSS bits 0 and 6).
fn capabilities(queue_depth: u16) -> u64 {
    let command_sets = 1 << 37 | 1 << 43;
    u64::from(queue_depth - 1) | 1 << 16 | READY_TIMEOUT_HALF_S << 24 | command_sets
}

fn queues(count: u16) -> u64 {
    let zero_based = u64::from(count.max(1) - 1);
    zero_based | zero_based << 16
}

/// SMART / Health (NVMe Base figure 207). Data is counted in thousands of 512 bytes.
fn health(about: &Description<'_>) -> Vec<u8> {
    let mut page = vec![0; HEALTH_BYTES];
    // 20 °C in kelvin; all of the spare is available, and the warning threshold is 10 %.
    page[1..3].copy_from_slice(&293_u16.to_le_bytes());
    page[3] = 100;
    page[4] = 10;
    let thousands = |bytes: u64| bytes.div_ceil(512 * 1000);
    let counts = &about.counts;
    let values = [
        (32, thousands(counts.read_bytes)),
        (48, thousands(counts.written_bytes)),
        (64, counts.reads),
        (80, counts.writes),
    ];
    for (at, value) in values {
        page[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    page
}

/// Firmware Slot Information: slot 1 is in use.
fn firmware() -> Vec<u8> {
    let mut page = vec![0; FIRMWARE_BYTES];
    page[0] = 1;
    page[8..16].fill(b' ');
    for (to, from) in page[8..16].iter_mut().zip(env!("CARGO_PKG_VERSION").bytes()) {
        *to = from;
    }
    page
}

#[cfg(test)]
mod tests {
    use unlade_nvme_wire::Nqn;
    use unlade_nvme_wire::identify::{IdentifyNamespace, parse_namespaces};
    use uuid::Uuid;

    use super::*;
    use crate::target::config::{NamespaceConfig, Source};
    use crate::target::counters::Counts;
    use crate::target::namespace::Namespace;

    struct Rig {
        nqn: Nqn,
        is_shared: bool,
        namespaces: Vec<std::sync::Arc<Namespace>>,
        controller: Controller,
        now: Instant,
        effects: Effects,
    }

    const ENABLED: u64 = 0x46_0001;

    impl Rig {
        fn new(kind: ControllerKind) -> Rig {
            let nqn = Nqn::new("nqn.2026-01.example:disk").unwrap();
            let source = Source::Ram(unlade_config::ByteSize(8192));
            let config =
                NamespaceConfig { source, block_bytes: 4096, read_only: false, uuid: None };
            let open = |number| Namespace::open(&config, Uuid::new_v4(), number).unwrap().into();
            let namespaces = vec![open(1), open(2)];
            let now = Instant::now();
            let controller = Controller::new(7, kind, 5000, now);
            Rig { nqn, is_shared: true, namespaces, controller, now, effects: Effects::default() }
        }

        fn enabled(kind: ControllerKind) -> Rig {
            let mut rig = Rig::new(kind);
            rig.ok(PropertyAccess::set(Property::Configuration, ENABLED, 1));
            rig
        }

        fn handle(&mut self, command: Command) -> CommandOutcome {
            let about = Description {
                nqn: &self.nqn,
                serial: "serial",
                is_shared: self.is_shared,
                namespaces: &self.namespaces,
                discovery: &[5; 3072],
                queues: 4,
                queue_depth: 128,
                has_queues: false,
                in_capsule_bytes: 8192,
                transfer_bytes_max: 1 << 20,
                counts: Counts::default(),
            };
            self.effects = Effects::default();
            self.controller.handle(&command, &about, self.now, &mut self.effects)
        }

        fn ok(&mut self, command: Command) -> (u64, Vec<u8>) {
            match self.handle(command) {
                CommandOutcome::Done(completion, data) if completion.status.is_success() => {
                    assert_eq!(completion.command_id, command.id());
                    (completion.result, data)
                }
                other => panic!("{other:?}"),
            }
        }

        fn refused(&mut self, command: Command) -> Status {
            match self.handle(command) {
                CommandOutcome::Done(completion, data) => {
                    assert!(completion.status.is_final() && data.is_empty());
                    Status::from_bits(completion.status.bits() & 0x7ff)
                }
                CommandOutcome::Kept => panic!("kept"),
            }
        }

        fn status(&mut self) -> u64 {
            self.ok(PropertyAccess::get(Property::Status, 1)).0
        }
    }

    fn admin(opcode: AdminOpcode) -> Command {
        Command::build(opcode as u8, 9, 0)
    }

    #[test]
    fn a_controller_is_enabled_reset_and_shut_down() {
        let mut rig = Rig::new(ControllerKind::Io);
        let capabilities = rig.ok(PropertyAccess::get(Property::Capabilities, 1)).0;
        assert_eq!((capabilities & 0xffff, capabilities >> 37 & 1), (127, 1));
        assert_eq!(rig.refused(admin(AdminOpcode::Identify)), Status::COMMAND_SEQUENCE);
        let set = |value| PropertyAccess::set(Property::Configuration, value, 1);
        rig.ok(set(ENABLED));
        assert!(rig.controller.is_ready() && !rig.effects.close_queues);
        assert_eq!(rig.status(), 1);
        rig.ok(set(ENABLED | 1 << 14));
        assert!(rig.effects.close_queues);
        assert_eq!(rig.status(), 1 | 2 << 2);
        rig.ok(set(0));
        assert!(rig.effects.close_queues && !rig.controller.is_ready());
        assert_eq!(rig.status(), 0);
        rig.ok(set(0x46_0001 | 1 << 7));
        assert_eq!(rig.status(), 2, "a page size that is not offered");
        rig.ok(set(0));
        rig.ok(set(1));
        assert_eq!(rig.status(), 2, "entries of no size");
    }

    #[test]
    fn a_host_that_asks_for_all_command_sets_gets_the_only_one() {
        let mut rig = Rig::new(ControllerKind::Io);
        let capabilities = rig.ok(PropertyAccess::get(Property::Capabilities, 1)).0;
        assert_eq!(capabilities >> 37 & 0xff, 1 << 6 | 1, "CSS");
        rig.ok(PropertyAccess::set(Property::Configuration, ENABLED | 6 << 4, 1));
        assert_eq!(rig.status(), 1);
        let identify =
            |kind: IdentifyKind| admin(AdminOpcode::Identify).with_dword(10, kind as u32);
        let (_, sets) = rig.ok(identify(IdentifyKind::CommandSets));
        assert_eq!((sets[0], sets[1..].iter().all(|byte| *byte == 0)), (1, true));
        let list = identify(IdentifyKind::CommandSetNamespaces);
        assert_eq!(parse_namespaces(&rig.ok(list).1).unwrap(), [1, 2]);
        assert_eq!(rig.refused(list.with_dword(11, 2 << 24)), Status::INVALID_FIELD);
        for set in [1, 2, 5, 7] {
            let mut rig = Rig::new(ControllerKind::Io);
            rig.ok(PropertyAccess::set(Property::Configuration, ENABLED | set << 4, 1));
            assert_eq!(rig.status(), 2, "command set {set}");
        }
    }

    #[test]
    fn a_target_for_one_controller_does_not_say_that_it_is_shared() {
        for is_shared in [false, true] {
            let mut rig = Rig { is_shared, ..Rig::enabled(ControllerKind::Io) };
            let ask = |kind: IdentifyKind| {
                Command::build(AdminOpcode::Identify as u8, 9, 1).with_dword(10, kind as u32)
            };
            let (_, data) = rig.ok(ask(IdentifyKind::Controller));
            assert_eq!(IdentifyController::parse(&data).unwrap().is_one_of_many, is_shared);
            let (_, data) = rig.ok(ask(IdentifyKind::Namespace));
            assert_eq!(IdentifyNamespace::parse(&data).unwrap().is_shared, is_shared);
        }
    }

    #[test]
    fn properties_have_their_sizes() {
        let mut rig = Rig::new(ControllerKind::Io);
        assert_eq!(rig.ok(PropertyAccess::get(Property::Version, 1)).0, 0x0001_0400);
        let narrow = PropertyAccess::get(Property::Capabilities, 1).with_dword(10, 0);
        assert_eq!(rig.refused(narrow), Status::INVALID_FIELD);
        let reset = PropertyAccess::get(Property::SubsystemReset, 1);
        assert_eq!(rig.refused(reset), Status::INVALID_FIELD);
        let status = PropertyAccess::set(Property::Status, 1, 1);
        assert_eq!(rig.refused(status), Status::INVALID_FIELD);
    }

    #[test]
    fn identify_tells_what_is_there() {
        let mut rig = Rig::enabled(ControllerKind::Io);
        let ask = |kind: IdentifyKind, number| {
            Command::build(AdminOpcode::Identify as u8, 9, number).with_dword(10, kind as u32)
        };
        let (_, controller) = rig.ok(ask(IdentifyKind::Controller, 0));
        let controller = IdentifyController::parse(&controller).unwrap();
        assert_eq!((controller.controller, controller.namespaces_max), (7, 2));
        assert_eq!(controller.transfer_bytes_max(), Some(1 << 20));
        assert_eq!(controller.in_capsule_bytes(), 8192);
        let (_, list) = rig.ok(ask(IdentifyKind::ActiveNamespaces, 1));
        assert_eq!(parse_namespaces(&list).unwrap(), [2]);
        let (_, space) = rig.ok(ask(IdentifyKind::Namespace, 2));
        assert_eq!(space[..8], 2_u64.to_le_bytes());
        let (_, names) = rig.ok(ask(IdentifyKind::Descriptors, 2));
        let names = NamespaceNames::parse(&names).unwrap();
        let identity = Some(rig.namespaces[1].uuid.into_bytes());
        assert_eq!((names.guid, names.uuid), (identity, identity));
        for kind in [IdentifyKind::Namespace, IdentifyKind::Descriptors] {
            assert_eq!(rig.refused(ask(kind, 3)), Status::INVALID_NAMESPACE);
        }
        let all = ask(IdentifyKind::ActiveNamespaces, u32::MAX);
        assert_eq!(rig.refused(all), Status::INVALID_NAMESPACE);
        let unknown = admin(AdminOpcode::Identify).with_dword(10, 0x1d);
        assert_eq!(rig.refused(unknown), Status::INVALID_FIELD);
    }

    #[test]
    fn queues_are_granted_up_to_the_limit() {
        let mut rig = Rig::enabled(ControllerKind::Io);
        let set = |queues: u32| {
            let value = queues << 16 | queues;
            admin(AdminOpcode::SetFeatures).with_dword(10, 7).with_dword(11, value)
        };
        assert_eq!(rig.ok(set(1)).0, 1 << 16 | 1);
        assert_eq!(rig.ok(set(60)).0, 3 << 16 | 3);
        assert_eq!(rig.refused(set(0xffff)), Status::INVALID_FIELD);
        let saved = set(1).with_dword(10, 1 << 31 | 7);
        assert_eq!(rig.refused(saved), Status::FEATURE_NOT_SAVEABLE);
        let cache = admin(AdminOpcode::SetFeatures).with_dword(10, 6);
        assert_eq!(rig.refused(cache), Status::FEATURE_NOT_CHANGEABLE);
    }

    #[test]
    fn the_keep_alive_timer_starts_again_with_each_sign_of_life() {
        let mut rig = Rig::enabled(ControllerKind::Io);
        let start = rig.now;
        let at = |seconds| Some(start + Duration::from_secs(seconds));
        assert_eq!(rig.controller.deadline(), at(5));
        rig.now += Duration::from_secs(3);
        rig.ok(admin(AdminOpcode::KeepAlive));
        assert!(rig.effects.deadline_moved);
        assert_eq!(rig.controller.deadline(), at(8));
        let longer = admin(AdminOpcode::SetFeatures).with_dword(10, 15).with_dword(11, 10_000);
        rig.ok(longer);
        assert_eq!(rig.controller.deadline(), at(13));
        assert_eq!(rig.ok(admin(AdminOpcode::GetFeatures).with_dword(10, 15)).0, 10_000);
        rig.ok(longer.with_dword(11, 0));
        assert_eq!(rig.controller.deadline(), None);
    }

    #[test]
    fn event_requests_are_kept_up_to_a_limit_and_can_be_aborted() {
        let mut rig = Rig::enabled(ControllerKind::Io);
        for id in 0..4 {
            let request = Command::build(AdminOpcode::AsyncEvent as u8, id, 0);
            assert_eq!(rig.handle(request), CommandOutcome::Kept);
        }
        let one_more = admin(AdminOpcode::AsyncEvent);
        assert_eq!(rig.refused(one_more), Status::ASYNC_EVENT_LIMIT);
        let abort =
            |queue: u32, id: u32| admin(AdminOpcode::Abort).with_dword(10, queue | id << 16);
        assert_eq!(rig.ok(abort(0, 2)).0, 0);
        assert_eq!(rig.effects.released, [Completion::new(2, Status::ABORTED)]);
        assert_eq!(rig.ok(abort(0, 2)).0, 1);
        assert_eq!(rig.ok(abort(1, 3)).0, 1);
        assert_eq!(rig.handle(one_more), CommandOutcome::Kept);
    }

    #[test]
    fn log_pages_have_offsets_and_ends() {
        let page = |page: u32, dwords: u32, offset: u32| {
            let ask = admin(AdminOpcode::GetLogPage).with_dword(10, page | (dwords - 1) << 16);
            ask.with_dword(12, offset)
        };
        let mut rig = Rig::enabled(ControllerKind::Discovery);
        let (_, part) = rig.ok(page(0x70, 256, 2560));
        assert_eq!((part[511], part[512], part.len()), (5, 0, 1024));
        assert_eq!(rig.refused(page(0x70, 1, 3073)), Status::INVALID_FIELD);
        assert_eq!(rig.refused(page(0x70, 1, 3076)), Status::INVALID_FIELD);
        assert_eq!(rig.refused(page(2, 1, 0)), Status::INVALID_LOG_PAGE);
        let far = page(0x70, 1, 0).with_dword(13, u32::MAX);
        assert_eq!(rig.refused(far), Status::INVALID_FIELD);
        let mut rig = Rig::enabled(ControllerKind::Io);
        assert_eq!(rig.ok(page(2, 128, 0)).1.len(), 512);
        assert_eq!(rig.ok(page(1, 16, 0)).1.len(), 64);
        assert_eq!(rig.refused(page(0x70, 1, 0)), Status::INVALID_LOG_PAGE);
        let long = page(2, 1, 0).with_dword(11, 0xffff);
        assert_eq!(rig.refused(long), Status::INVALID_FIELD);
    }

    #[test]
    fn discovery_controllers_have_no_namespaces() {
        let mut rig = Rig::enabled(ControllerKind::Discovery);
        let ask = admin(AdminOpcode::Identify).with_dword(10, 2);
        assert_eq!(rig.refused(ask), Status::INVALID_FIELD);
        let (_, data) = rig.ok(ask.with_dword(10, 1));
        let controller = IdentifyController::parse(&data).unwrap();
        assert_eq!((controller.kind, controller.namespaces_max), (2, 0));
    }

    #[test]
    fn unknown_commands_are_refused() {
        let mut rig = Rig::enabled(ControllerKind::Io);
        assert_eq!(rig.refused(Command::build(0x80, 1, 0)), Status::INVALID_OPCODE);
        assert_eq!(rig.refused(Command::build(FABRICS, 1, 0x05)), Status::INVALID_OPCODE);
        assert_eq!(rig.refused(unlade_nvme_wire::fabrics::disconnect(1)), Status::INVALID_FIELD);
        assert_eq!(rig.refused(Command::build(FABRICS, 1, 1)), Status::COMMAND_SEQUENCE);
    }
}
