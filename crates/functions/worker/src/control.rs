//! The control socket, where the gateway attaches instances, hints, invokes, awaits writes, and has
//! requests performed on behalf of functions.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;
use unlade_guest_protocol::InvokeHead;
use unlade_guest_protocol::control::{ControlHead, Message, PerformEnd};
use unlade_runtime::descriptors::receive;
use unlade_s3::{Policy, hint};

use crate::cut::behalf::{self, InFlight};
use crate::gateway::Gateway;
use crate::rights::Rights;
use crate::session::{Memory, Order, Session};
use crate::tenant::Tenant;

/// Most roles that a gateway names.
pub const ROLES_MAX: usize = 4096;
/// Most instances of a worker.
pub const INSTANCES_MAX: usize = 16 * 1024;
/// Limit of the bytes that are written together in one batch.
const BATCH_BYTES: usize = 64 << 10;
/// Pause after a failed accept: descriptors may be exhausted, perhaps by another tenant.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The state of one gateway connection.
struct Connection {
    tenant: Rc<Tenant>,
    gateway: Gateway,
    roles: HashMap<u64, Rc<Rights>>,
    instances: Rc<RefCell<HashMap<u64, mpsc::UnboundedSender<Order>>>>,
    /// Requests on behalf of functions.
    in_flight: InFlight,
}

/// Serves gateways that run as this process's user or as root. Retries a failed accept after a
/// short pause.
pub async fn serve(tenant: Rc<Tenant>, listener: UnixListener) {
    let own = rustix::process::geteuid().as_raw();
    loop {
        let accepted = match listener.accept().await {
            Ok((stream, _)) => stream.peer_cred().map(|peer| (stream, peer.uid())),
            Err(error) => Err(error),
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "control: no connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        if peer != own && peer != 0 {
            tracing::warn!(uid = peer, "control: a user who is not served");
            continue;
        }
        let tenant = tenant.clone();
        tokio::task::spawn_local(async move {
            if let Err(error) = converse(tenant, stream).await {
                tracing::warn!(%error, "control: the gateway is gone");
            }
        });
    }
}

/// Serves one gateway until it disconnects. Its instances end with it.
///
/// # Errors
/// The system call failed, or a message is invalid.
pub async fn converse(tenant: Rc<Tenant>, stream: UnixStream) -> io::Result<()> {
    let (gateway, said) = Gateway::new();
    let (reading, writing) = stream.into_split();
    let writer = tokio::task::spawn_local(write(writing, said));
    let (roles, instances) = (HashMap::new(), Rc::default());
    let in_flight = InFlight::default();
    let mut connection = Connection { tenant, gateway, roles, instances, in_flight };
    let read = connection.read(reading).await;
    drop(connection);
    writer.abort();
    read
}

async fn write(
    mut socket: OwnedWriteHalf,
    mut said: mpsc::UnboundedReceiver<Vec<u8>>,
) -> io::Result<()> {
    while let Some(mut bytes) = said.recv().await {
        // Messages that wait as well are sent in the same write.
        while bytes.len() < BATCH_BYTES {
            let Ok(message) = said.try_recv() else { break };
            bytes.extend_from_slice(&message);
        }
        socket.write_all(&bytes).await?;
    }
    Ok(())
}

impl Connection {
    async fn read(&mut self, socket: OwnedReadHalf) -> io::Result<()> {
        let mut input = Vec::new();
        let mut descriptors = VecDeque::new();
        loop {
            let mut taken = 0;
            while let Some((message, bytes)) =
                Message::decode(&input[taken..]).map_err(io::Error::other)?
            {
                taken += bytes;
                self.on_message(message, &mut descriptors);
            }
            input.drain(..taken);
            let stream: &UnixStream = socket.as_ref();
            let read = || receive(stream, &mut input, &mut descriptors);
            if stream.async_io(Interest::READABLE, read).await? == 0 {
                return Ok(());
            }
        }
    }

    fn on_message(&mut self, message: Message, descriptors: &mut VecDeque<OwnedFd>) {
        let Message { said, bytes } = message;
        let (instance, invocation) = about(&said);
        if let Err(reason) = self.obey(said, bytes, descriptors) {
            self.gateway.say(ControlHead::Refused { instance, invocation, reason });
        }
    }

    fn obey(
        &mut self,
        said: ControlHead,
        bytes: Vec<u8>,
        descriptors: &mut VecDeque<OwnedFd>,
    ) -> Result<(), String> {
        match said {
            ControlHead::Role { role, policy } => {
                if self.roles.len() >= ROLES_MAX && !self.roles.contains_key(&role) {
                    return Err(format!("more than {ROLES_MAX} roles"));
                }
                let policy = Policy::from_value(&policy);
                // A role whose policy is not understood has no rights.
                let wrong = policy.as_ref().err().map(ToString::to_string);
                let rights = self.roles.entry(role).or_default();
                rights.replace(policy.unwrap_or_default());
                return wrong.map_or(Ok(()), Err);
            }
            ControlHead::Forget { role } => drop(self.roles.remove(&role)),
            ControlHead::Attach { instance, role, region_bytes, .. } => {
                let channel = descriptors.pop_front();
                let memory = (region_bytes > 0).then(|| descriptors.pop_front());
                let channel = channel.ok_or("no channel came with it")?;
                let layout = &self.tenant.limits.layout;
                let memory = memory.map(|file| {
                    let file = file.ok_or("no memory came with it")?;
                    Memory::attach(file, region_bytes, layout)
                });
                let rights = self.role(role)?;
                self.attach(instance, rights, channel, memory.transpose()?)?;
            }
            ControlHead::Hint { invocation, role, mut objects } => {
                let policy = self.role(role)?.policy();
                objects.extend(hint::of_event(&bytes));
                self.tenant.prefetches.begin(&invocation, &policy, objects);
            }
            ControlHead::Invoke {
                instance,
                invocation,
                handler,
                function,
                deadline_ms,
                memory_mib,
                writes,
                context,
            } => {
                let event_bytes = u32::try_from(bytes.len()).map_err(|e| e.to_string())?;
                let head = InvokeHead {
                    id: invocation,
                    handler,
                    function,
                    deadline_ms,
                    memory_mib,
                    event_bytes,
                    event_slot: None,
                    context,
                };
                self.order(instance, Order::Invoke(head, writes, bytes))?;
            }
            ControlHead::Settle { invocation } => {
                // An invocation that was hinted at, but never ran.
                self.tenant.prefetches.end(&invocation);
                self.gateway.settle(&self.tenant, invocation);
            }
            ControlHead::Detach { instance } => self.order(instance, Order::Detach)?,
            ControlHead::Perform { call, role, request } => match self.role(role) {
                Ok(rights) => {
                    let policy = rights.policy();
                    let asked = behalf::Asked { call, policy, request, body: bytes };
                    behalf::begin(&self.tenant, &self.gateway, &self.in_flight, asked);
                }
                Err(why) => {
                    let end = PerformEnd::Failed { why };
                    self.gateway.say(ControlHead::Performed { call, end });
                }
            },
            _ => return Err("a gateway does not say this".to_owned()),
        }
        Ok(())
    }

    fn role(&self, role: u64) -> Result<Rc<Rights>, String> {
        self.roles.get(&role).cloned().ok_or_else(|| format!("the role {role} was not said"))
    }

    fn order(&self, instance: u64, order: Order) -> Result<(), String> {
        let instances = self.instances.borrow();
        let orders = instances.get(&instance).ok_or("there is no such instance")?;
        orders.send(order).map_err(|_| "the instance has ended".to_owned())
    }

    fn attach(
        &mut self,
        instance: u64,
        rights: Rc<Rights>,
        channel: OwnedFd,
        memory: Option<Memory>,
    ) -> Result<(), String> {
        let mut instances = self.instances.borrow_mut();
        if instances.len() >= INSTANCES_MAX || instances.contains_key(&instance) {
            return Err("the instance is there already, or there are too many".to_owned());
        }
        let (tenant, gateway) = (self.tenant.clone(), self.gateway.clone());
        let session = Session::new(tenant, rights, gateway, instance, channel, memory);
        let session = session.map_err(|error| error.to_string())?;
        let (orders, obeyed) = mpsc::unbounded_channel();
        instances.insert(instance, orders);
        let all = Rc::downgrade(&self.instances);
        tokio::task::spawn_local(async move {
            session.run(obeyed).await;
            if let Some(all) = all.upgrade() {
                all.borrow_mut().remove(&instance);
            }
        });
        Ok(())
    }
}

fn about(said: &ControlHead) -> (Option<u64>, Option<String>) {
    match said {
        ControlHead::Attach { instance, .. } | ControlHead::Detach { instance } => {
            (Some(*instance), None)
        }
        ControlHead::Invoke { instance, invocation, .. } => {
            (Some(*instance), Some(invocation.clone()))
        }
        ControlHead::Hint { invocation, .. } | ControlHead::Settle { invocation } => {
            (None, Some(invocation.clone()))
        }
        _ => (None, None),
    }
}
