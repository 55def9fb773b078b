//! Set-up of a controller, from its address to ready: ICReq, Connect, properties, Identify,
//! queues (NVMe/TCP §3.4.1; NVMe Base §3.5.3, §6.3).

use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;
use unlade_net::SeqNumber;
use unlade_nvme_wire::fabrics::{
    CONTROLLER_DYNAMIC, Connect, ConnectData, Property, PropertyAccess,
};
use unlade_nvme_wire::identify::{IDENTIFY_BYTES, IdentifyController, IdentifyError, IdentifyKind};
use unlade_nvme_wire::pdu::{InitRequest, InitResponse};
use unlade_nvme_wire::{AdminOpcode, Command, CommonHeader, Digests, Pdu, PduError, Status};

use super::driver::{BoxStream, CommandError, ConnectionError, Driver, Handle};
use super::options::{Connector, Options, QUEUES_MAX, StreamError};
use super::queue::{DEPTH_MAX, Failure, Payload, Queue, Request, Settings};

/// Bytes of ICResp.
const INIT_BYTES: usize = 128;
/// Number of outstanding R2Ts that the initiator allows for one command.
const TRANSFERS_MAX: u32 = 16;
/// Largest data in the capsule of any admin or fabrics command (NVMe/TCP §3.3.2.2).
const ADMIN_IN_CAPSULE_BYTES: u32 = 8192;
/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// CC: enabled, NVM commands, pages of 4 KiB, entries of 64 and 16 bytes.
const CC_ENABLE: u64 = 0x0046_0001;
/// CC: the same with a normal shutdown.
const CC_SHUTDOWN: u64 = CC_ENABLE | 1 << 14;
const CSTS_READY: u64 = 1;
const CSTS_FATAL: u64 = 1 << 1;
const CSTS_SHUTDOWN_DONE: u64 = 2 << 2;
/// Interval of the reads of CSTS during a state change.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// How long a controller may take to shut down.
const SHUTDOWN_MAX: Duration = Duration::from_secs(2);
/// FID: Number of Queues.
const FEATURE_QUEUES: u32 = 0x07;

/// An error during the set-up of a controller.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The TCP or TLS connection cannot be established.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// The connection was not initialised.
    #[error(
        "the far end ends the connection instead of answering; is it an NVMe/TCP controller, does \
         it want TLS, and can it do the digests that were asked for?"
    )]
    NotNvme,
    /// ICResp is invalid.
    #[error("ICResp: {0}")]
    Init(#[from] PduError),
    /// The controller declines required digests.
    #[error(
        "the controller declines {}, so damage on the way would not be noticed; switch digests on \
         at the target, or go on without: ask for none, or only if offered", declined(*.wanted, *.agreed)
    )]
    Digests {
        /// The required digests.
        wanted: Digests,
        /// The digests that the controller accepts.
        agreed: Digests,
    },
    /// ICResp accepts a feature that was not requested.
    #[error("ICResp: {0}")]
    Agreement(&'static str),
    /// Connect was refused.
    #[error("the controller refuses queue {queue}: {status}{}", connect_hint(*.status))]
    Refused {
        /// Number of the queue; 0 is the admin queue.
        queue: u16,
        /// The controller's status.
        status: Status,
    },
    /// The controller requires authentication.
    #[error("the controller requires in-band authentication, which is not supported")]
    Authentication,
    /// It did not become ready.
    #[error("the controller is not ready: {0}")]
    NotReady(&'static str),
    /// The Identify data is invalid.
    #[error("the controller's identification: {0}")]
    Identify(#[from] IdentifyError),
    /// A command of the set-up failed.
    #[error("{what}: {source}")]
    Command {
        /// The command.
        what: &'static str,
        /// Its error.
        source: CommandError,
    },
    /// The set-up took too long.
    #[error("no controller after {0:?}")]
    Timeout(Duration),
    /// A stream failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Names the required digests that the controller declines.
pub fn declined(wanted: Digests, agreed: Digests) -> &'static str {
    match (wanted.header && !agreed.header, wanted.data && !agreed.data) {
        (true, true) => "digests of headers and of data",
        (true, false) => "digests of headers",
        (false, true) => "digests of data",
        (false, false) => "no digests",
    }
}

fn connect_hint(status: Status) -> &'static str {
    if status.is(Status::CONNECT_INVALID) {
        "; is the subsystem's NQN right? `unlade nvme discover` lists them"
    } else if status.is(Status::CONNECT_INVALID_HOST) {
        "; it does not allow this host's NQN (--host-nqn)"
    } else {
        ""
    }
}

fn failed(what: &'static str) -> impl FnOnce(CommandError) -> ConnectError {
    move |source| ConnectError::Command { what, source }
}

/// The tasks of a controller's queues; dropping it ends them.
pub(super) type Tasks = JoinSet<Result<(), ConnectionError>>;

/// A controller whose queues run.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) admin: Handle,
    pub(super) io: Vec<Handle>,
    pub(super) identity: IdentifyController,
    /// CNTLID.
    pub(super) id: u16,
    pub(super) digests: Digests,
    /// VS.
    pub(super) version: u32,
}

impl Live {
    /// Returns true if one of its connections has ended: the others will end too.
    pub(super) fn is_over(&self) -> bool {
        self.admin.is_over() || self.io.iter().any(Handle::is_over)
    }
}

/// Exchanges ICReq and ICResp; returns the agreed parameters.
async fn initialise(stream: &mut BoxStream, wanted: Digests) -> Result<InitResponse, ConnectError> {
    let request = Pdu::InitRequest(InitRequest {
        version: 0,
        alignment_bytes: 4,
        digests: wanted,
        transfers_max: TRANSFERS_MAX,
    });
    stream.write_all(&request.without_data(Digests::NONE)).await?;
    stream.flush().await?;
    let mut answer = [0; INIT_BYTES];
    stream.read_exact(&mut answer).await.map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => ConnectError::NotNvme,
        _ => ConnectError::Io(error),
    })?;
    let common = CommonHeader::parse(&answer)?;
    let Pdu::InitResponse(agreed) = Pdu::parse(&common, &answer)? else {
        return Err(ConnectError::NotNvme);
    };
    if agreed.version != 0 {
        return Err(ConnectError::Agreement("a version of the protocol that is not supported"));
    }
    if agreed.digests.and(wanted) != agreed.digests {
        return Err(ConnectError::Agreement("digests that were not requested"));
    }
    Ok(agreed)
}

/// Parameters of a new queue.
struct Opening<'o> {
    options: &'o Options,
    number: u16,
    entries: u16,
    controller: u16,
    in_capsule_bytes: u32,
}

/// Opens one queue, starts its task, and sends Connect; returns the controller's id.
async fn open(
    connector: &dyn Connector,
    opening: &Opening<'_>,
    tasks: &mut Tasks,
) -> Result<(Handle, u16, Digests), ConnectError> {
    let Opening { options, number, entries, .. } = *opening;
    let mut stream = connector.connect().await?;
    let agreed = initialise(&mut stream, options.digests).await?;
    if options.digests_required && agreed.digests != options.digests {
        let (wanted, agreed) = (options.digests, agreed.digests);
        return Err(ConnectError::Digests { wanted, agreed });
    }
    let settings = Settings {
        // A ring of `entries` entries holds one less.
        depth: entries - 1,
        digests: agreed.digests,
        alignment_bytes: agreed.alignment_bytes,
        data_bytes_max: agreed.data_bytes_max & !3,
        in_capsule_bytes: opening.in_capsule_bytes,
        transfers_max: TRANSFERS_MAX,
    };
    let queue = Queue::new(settings, SeqNumber(0));
    let (handle, driver) = Driver::new(stream, queue);
    tasks.spawn(driver.run());
    let keep_alive = if number == 0 { options.keep_alive } else { Duration::ZERO };
    let connect = Connect {
        format: 0,
        queue: number,
        queue_size_zero_based: entries - 1,
        attributes: 0,
        keep_alive_ms: keep_alive.as_millis().min(u32::MAX.into()) as u32,
    };
    let data = ConnectData {
        host_id: options.host.id,
        controller: opening.controller,
        subsystem: options.subsystem.clone(),
        host: options.host.nqn.clone(),
    };
    let request = Request {
        command: connect.command(0),
        payload: Payload::Out(Bytes::from(data.encode())),
        timeout: Some(options.connect_timeout),
    };
    let answer = handle.execute(request).await.map_err(|source| match source {
        CommandError::Failed(Failure::Status(status)) => {
            ConnectError::Refused { queue: number, status }
        }
        source => ConnectError::Command { what: "Connect", source },
    })?;
    if answer.result >> 16 & 3 != 0 {
        return Err(ConnectError::Authentication);
    }
    Ok((handle, answer.result as u16, agreed.digests))
}

pub(super) fn request(command: Command, payload: Payload, options: &Options) -> Request {
    Request { command, payload, timeout: Some(options.command_timeout) }
}

async fn property(
    admin: &Handle,
    property: Property,
    options: &Options,
) -> Result<u64, ConnectError> {
    let get = request(PropertyAccess::get(property, 0), Payload::None, options);
    Ok(admin.execute(get).await.map_err(failed("Property Get"))?.result)
}

async fn set_configuration(
    admin: &Handle,
    value: u64,
    options: &Options,
) -> Result<(), ConnectError> {
    let set = PropertyAccess::set(Property::Configuration, value, 0);
    let set = request(set, Payload::None, options);
    admin.execute(set).await.map_err(failed("Property Set"))?;
    Ok(())
}

/// Enables the controller and waits until it is ready (NVMe Base §3.5.3); returns CAP.
async fn enable(admin: &Handle, options: &Options) -> Result<u64, ConnectError> {
    let capabilities = property(admin, Property::Capabilities, options).await?;
    set_configuration(admin, CC_ENABLE, options).await?;
    // CAP.TO is in units of 500 ms.
    let units = (capabilities >> 24 & 0xff).max(1) as u32;
    let wait = async {
        loop {
            let status = property(admin, Property::Status, options).await?;
            if status & CSTS_FATAL != 0 {
                return Err(ConnectError::NotReady("it reports a fatal error (CSTS.CFS)"));
            }
            if status & CSTS_READY != 0 {
                return Ok(());
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    };
    match tokio::time::timeout(Duration::from_millis(500) * units, wait).await {
        Ok(ready) => ready.map(|()| capabilities),
        Err(_) => Err(ConnectError::NotReady("CSTS.RDY was not set within the time of CAP.TO")),
    }
}

/// Sends Identify; returns its data.
pub(super) async fn identify(
    admin: &Handle,
    kind: IdentifyKind,
    namespace: u32,
    options: &Options,
) -> Result<Vec<u8>, CommandError> {
    let command = Command::build(AdminOpcode::Identify as u8, 0, namespace)
        .with_dword(10, u32::from(kind as u8));
    let payload = Payload::In(vec![0; IDENTIFY_BYTES]);
    Ok(admin.execute(request(command, payload, options)).await?.data)
}

/// Requests the configured number of I/O queues; returns the granted number.
async fn agree_on_queues(admin: &Handle, options: &Options) -> Result<u16, ConnectError> {
    let wanted = options.queues.clamp(1, QUEUES_MAX);
    let both = u32::from(wanted - 1);
    let command = Command::build(AdminOpcode::SetFeatures as u8, 0, 0)
        .with_dword(10, FEATURE_QUEUES)
        .with_dword(11, both << 16 | both);
    let set = request(command, Payload::None, options);
    let granted = admin.execute(set).await.map_err(failed("Set Features: queues"))?.result;
    let least = (granted & 0xffff).min(granted >> 16 & 0xffff) as u16;
    Ok(least.saturating_add(1).min(wanted))
}

/// Sets up a controller with all its queues.
///
/// # Errors
/// [`ConnectError`].
pub(super) async fn controller(
    connector: &dyn Connector,
    options: &Options,
) -> Result<(Live, Tasks), ConnectError> {
    let limit = options.connect_timeout;
    match tokio::time::timeout(limit, set_up(connector, options)).await {
        Ok(done) => done,
        Err(_) => Err(ConnectError::Timeout(limit)),
    }
}

async fn set_up(
    connector: &dyn Connector,
    options: &Options,
) -> Result<(Live, Tasks), ConnectError> {
    let mut tasks = Tasks::new();
    let mut opening = Opening {
        options,
        number: 0,
        entries: ADMIN_ENTRIES,
        controller: CONTROLLER_DYNAMIC,
        in_capsule_bytes: ADMIN_IN_CAPSULE_BYTES,
    };
    let (admin, id, digests) = open(connector, &opening, &mut tasks).await?;
    let capabilities = enable(&admin, options).await?;
    let version = property(&admin, Property::Version, options).await? as u32;
    let identity = identify(&admin, IdentifyKind::Controller, 0, options).await;
    let identity = IdentifyController::parse(&identity.map_err(failed("Identify"))?)?;
    let mut io = Vec::new();
    if options.queues > 0 {
        let queues = agree_on_queues(&admin, options).await?;
        // CAP.MQES is zero-based; MAXCMD, if present, counts commands.
        let entries = (capabilities as u16).saturating_add(1).max(2);
        let commands = if identity.commands_max == 0 { u16::MAX } else { identity.commands_max };
        let depth = options.depth.clamp(1, DEPTH_MAX).min(entries - 1).min(commands);
        opening.entries = depth + 1;
        opening.controller = id;
        opening.in_capsule_bytes = in_capsule_bytes(&identity);
        for number in 1..=queues {
            opening.number = number;
            io.push(open(connector, &opening, &mut tasks).await?.0);
        }
    }
    Ok((Live { admin, io, identity, id, digests, version }, tasks))
}

/// Largest data in the capsule of an I/O command; 0 if the controller requires an offset, which
/// NVMe/TCP does not have.
fn in_capsule_bytes(identity: &IdentifyController) -> u32 {
    match identity.in_capsule_offset_16 {
        0 => identity.in_capsule_bytes().min(u64::from(super::queue::DATA_BYTES_MAX)) as u32,
        _ => 0,
    }
}

/// Shuts the controller down in order (NVMe Base §3.6.1), if it answers.
pub(super) async fn shut_down(admin: &Handle, options: &Options) -> Result<(), ConnectError> {
    let shut = async {
        set_configuration(admin, CC_SHUTDOWN, options).await?;
        loop {
            let status = property(admin, Property::Status, options).await?;
            if status & CSTS_SHUTDOWN_DONE != 0 {
                return Ok(());
            }
            tokio::time::sleep(POLL_EVERY).await;
        }
    };
    match tokio::time::timeout(SHUTDOWN_MAX, shut).await {
        Ok(done) => done,
        Err(_) => Err(ConnectError::NotReady("it did not report the end of its shutdown")),
    }
}
