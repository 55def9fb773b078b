//! One instance: its channel, its epochs, its invocations; its submissions are taken here.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use unlade_guest_protocol::control::{ControlHead, WriteMode};
use unlade_guest_protocol::region::SLOT_BYTES;
use unlade_guest_protocol::{Frame, InvokeHead, Layout, Operation, ReplyHead};
use unlade_metrics::Event;
use unlade_shm::Arena;

use crate::caller::Caller;
use crate::channel::{Channel, ChannelError};
use crate::gateway::Gateway;
use crate::lending::Slots;
use crate::region::{ProtocolViolation, Region};
use crate::rights::Rights;
use crate::session_epoch::SessionEpoch;
use crate::submission::submit;
use crate::tenant::Tenant;

/// Largest event that is sent in a frame; larger ones are sent in slots.
const INLINE_EVENT_BYTES: usize = 48 * 1024;
/// Polling interval of a full completion ring.
const RING_PAUSE: Duration = Duration::from_millis(1);
/// How long memory that is not lent is kept for the next invocation. Faulting it in again costs
/// more than filling it.
const DISCARD_AFTER: Duration = Duration::from_secs(1);
/// Most submissions that are taken before other tasks run.
const BATCH: usize = 64;
/// Cost of a greeting in submissions, charged to the tenant's turn, because it creates a region.
const HELLO_UNITS: u32 = 32;
/// Bytes of bodies after which other tasks run.
const BATCH_BYTES: u64 = 1024 * 1024;

/// A command of the gateway to a session.
#[derive(Debug)]
pub enum Order {
    /// Invoke the function, with the bytes of the event.
    Invoke(InvokeHead, WriteMode, Vec<u8>),
    /// End the session.
    Detach,
}

/// The reason why a session ended.
#[derive(Debug, thiserror::Error)]
enum End {
    #[error("{0}")]
    Channel(#[from] ChannelError),
    #[error("{0}")]
    ProtocolViolation(#[from] ProtocolViolation),
    #[error("the guest said goodbye: {0}")]
    Bye(String),
    #[error("detached")]
    Detached,
    #[error("there is no memory for a region: {0}")]
    Memory(#[from] unlade_shm::MemoryError),
}

/// An invocation that is running.
struct Running {
    id: Rc<str>,
    writes: WriteMode,
    /// Set when the invocation is over; its calls may outlive it.
    is_over: Rc<Cell<bool>>,
    /// The slots of a large event, until the REPLY.
    _event: Option<Slots>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.is_over.set(true);
    }
}

/// Memory that an instance brings: every epoch uses it.
#[derive(Clone, Debug)]
pub struct Memory {
    arena: Rc<Arena>,
    layout: Layout,
}

impl Memory {
    /// Maps the memory of `region_bytes` in a sealed memfd, with as much of a layout as fits.
    ///
    /// # Errors
    /// The reason for the refusal; the gateway is at fault.
    pub fn attach(file: OwnedFd, region_bytes: u64, layout: &Layout) -> Result<Memory, String> {
        let arena = Arena::attach(file).map_err(|error| error.to_string())?;
        let found = arena.len_bytes() as u64;
        if found < region_bytes {
            return Err(format!("the region has {found} bytes, {region_bytes} were said"));
        }
        let layout = layout.within(region_bytes);
        let layout = layout.ok_or_else(|| format!("{region_bytes} bytes are no region"))?;
        Ok(Memory { arena: Rc::new(arena), layout })
    }
}

/// See the [module](self).
pub struct Session {
    tenant: Rc<Tenant>,
    rights: Rc<Rights>,
    gateway: Gateway,
    instance: u64,
    channel: Channel,
    /// The memory that the instance brought, if it did.
    memory: Option<Memory>,
    session_epoch: Option<Rc<SessionEpoch>>,
    running: Option<Running>,
    /// Time at which memory that is not lent is returned to the kernel.
    discard_at: Option<Instant>,
    /// Calls in flight of all epochs of the instance.
    calls: Rc<Cell<usize>>,
}

impl Session {
    /// Creates a session over an instance's channel, in the instance's memory if it brings some.
    ///
    /// # Errors
    /// The descriptor is not a usable socket.
    pub fn new(
        tenant: Rc<Tenant>,
        rights: Rc<Rights>,
        gateway: Gateway,
        instance: u64,
        socket: OwnedFd,
        memory: Option<Memory>,
    ) -> std::io::Result<Session> {
        let channel = Channel::new(socket)?;
        let calls = Rc::default();
        let (session_epoch, running, discard_at) = (None, None, None);
        Ok(Session {
            tenant,
            rights,
            gateway,
            instance,
            channel,
            memory,
            session_epoch,
            running,
            discard_at,
            calls,
        })
    }

    /// Serves the instance until its channel ends.
    pub async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>) {
        let end = loop {
            match self.turn(&mut orders).await {
                Ok(()) => {}
                Err(end) => break end,
            }
        };
        if matches!(end, End::ProtocolViolation(_) | End::Channel(ChannelError::Frame(_))) {
            self.tenant.meter.add(Event::HostioProtocolViolation);
            tracing::warn!(instance = self.instance, %end, "the guest broke the protocol");
        }
        let reason = end.to_string();
        let _ = self.channel.send(&Frame::Bye(reason.clone()));
        self.leave();
        self.gateway.say(ControlHead::Gone { instance: self.instance, reason });
    }

    /// Ends the epoch and drops its resources; calls in flight end without a receiver.
    fn leave(&mut self) {
        if let Some(running) = self.running.take() {
            self.tenant.prefetches.end(&running.id);
        }
        if let Some(session_epoch) = self.session_epoch.take() {
            session_epoch.end();
            // Its tasks end later; the copies for them end now.
            self.tenant.copies.end(&session_epoch.arena());
        }
    }

    async fn turn(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) -> Result<(), End> {
        let Some(session_epoch) = self.session_epoch.clone() else {
            self.tenant.turn.begin().await;
            return tokio::select! {
                frame = self.channel.next() => self.on_frame(frame?).await,
                order = orders.recv() => self.on_order(order),
            };
        };
        if let Some(violation) = session_epoch.violation() {
            return Err(violation.into());
        }
        if session_epoch.take_bell() {
            self.channel.send(&Frame::Bell)?;
        }
        session_epoch.region().borrow().sleeps(false);
        self.tenant.turn.begin().await;
        if self.drain(&session_epoch).await? {
            // Other tasks run before the next batch.
            tokio::task::yield_now().await;
            return Ok(());
        }
        session_epoch.region().borrow().sleeps(true);
        // The guest may have submitted before it saw the word.
        if self.drain(&session_epoch).await? {
            return Ok(());
        }
        let is_full = session_epoch.region().borrow().is_full();
        let discard_at = self.discard_at.unwrap_or_else(Instant::now);
        tokio::select! {
            frame = self.channel.next() => self.on_frame(frame?).await,
            order = orders.recv() => self.on_order(order),
            () = session_epoch.attention.notified() => Ok(()),
            () = tokio::time::sleep(RING_PAUSE), if is_full => {
                session_epoch.flush();
                Ok(())
            }
            () = tokio::time::sleep_until(discard_at), if self.discard_at.is_some() => {
                self.discard_at = None;
                session_epoch.region().borrow().discard_idle();
                Ok(())
            }
        }
    }

    /// Takes submissions; returns true if there were any.
    async fn drain(&self, session_epoch: &Rc<SessionEpoch>) -> Result<bool, End> {
        let caller = self.caller(session_epoch);
        let (mut taken, mut bytes) = (0, 0);
        while taken < BATCH && bytes < BATCH_BYTES {
            let submission = session_epoch.region().borrow_mut().poll_submission()?;
            let Some(submission) = submission else { break };
            taken += 1;
            bytes += u64::from(submission.body.bytes);
            // The length of a READ is asked for, not sent.
            let is_read = submission.operation == Operation::Read;
            let body_bytes = if is_read { 0 } else { submission.body.bytes };
            session_epoch.carry(0, u64::from(submission.meta_bytes) + u64::from(body_bytes));
            submit(&caller, &submission).await?;
        }
        self.tenant.turn.spend(taken as u32, bytes);
        Ok(taken > 0)
    }

    async fn on_frame(&mut self, frame: Frame) -> Result<(), End> {
        let is_hello = matches!(frame, Frame::Hello { .. });
        self.tenant.turn.spend(if is_hello { HELLO_UNITS } else { 1 }, 0);
        match frame {
            Frame::Hello { nonce } => self.on_hello(nonce).await,
            Frame::Bell => Ok(()),
            Frame::Reply(head, bytes) => self.on_reply(head, bytes),
            Frame::Bye(why) => Err(End::Bye(why)),
            Frame::Welcome { .. } | Frame::Invoke(..) => {
                Err(ProtocolViolation::Turn("a guest does not say this").into())
            }
        }
    }

    async fn on_hello(&mut self, nonce: u64) -> Result<(), End> {
        if let Some(running) = &self.running {
            let invocation = Some(running.id.to_string());
            let reason = "the instance greeted again before it replied".to_owned();
            self.gateway.say(ControlHead::Refused {
                instance: Some(self.instance),
                invocation,
                reason,
            });
        }
        self.leave();
        self.tenant.meter.add(Event::HostioGreeting);
        let epoch = self.tenant.next_epoch();
        let region = match &self.memory {
            None => Region::create(self.tenant.limits.layout, epoch)?,
            Some(memory) => Region::over(memory.arena.clone(), memory.layout, epoch)?,
        };
        let region_bytes = region.header().region_bytes;
        let welcome = Frame::Welcome { nonce, epoch, region_bytes };
        match self.memory {
            None => self.channel.welcome(&welcome, region.fd()).await?,
            Some(_) => self.channel.send(&welcome)?,
        }
        self.session_epoch = Some(SessionEpoch::new(region));
        self.gateway.say(ControlHead::Ready { instance: self.instance, epoch });
        Ok(())
    }

    fn on_order(&mut self, order: Option<Order>) -> Result<(), End> {
        match order {
            None | Some(Order::Detach) => Err(End::Detached),
            Some(Order::Invoke(head, writes, event)) => {
                if let Err(reason) = self.invoke(head.clone(), writes, event)? {
                    let (instance, invocation) = (Some(self.instance), Some(head.id));
                    let reason = reason.to_owned();
                    self.gateway.say(ControlHead::Refused { instance, invocation, reason });
                }
                Ok(())
            }
        }
    }

    /// Passes an invocation to the instance. An inner error is the gateway's fault.
    fn invoke(
        &mut self,
        mut head: InvokeHead,
        writes: WriteMode,
        event: Vec<u8>,
    ) -> Result<Result<(), &'static str>, End> {
        let Some(session_epoch) = &self.session_epoch else {
            return Ok(Err("the instance has not greeted"));
        };
        if self.running.is_some() {
            return Ok(Err("the instance is running another invocation"));
        }
        let mut slots = None;
        let mut inline = Vec::new();
        if event.len() <= INLINE_EVENT_BYTES {
            inline = event;
        } else {
            let count = event.len().div_ceil(SLOT_BYTES as usize);
            let Some(lent) = session_epoch.lender.try_slots_exactly(count as u32) else {
                return Ok(Err("the event does not fit into the instance's region"));
            };
            // The slots were lent for the event, so it fits.
            let _ = session_epoch.arena().copy_in(lent.offset(), &event);
            head.event_slot = Some(lent.extent(event.len()).first_slot);
            slots = Some(lent);
        }
        let id = Rc::from(head.id.as_str());
        let sent = self.channel.send(&Frame::Invoke(head, inline));
        if matches!(sent, Err(ChannelError::Frame(_))) {
            return Ok(Err("the invocation's head is too long"));
        }
        sent?;
        self.running = Some(Running { id, writes, is_over: Rc::default(), _event: slots });
        self.discard_at = None;
        Ok(Ok(()))
    }

    fn on_reply(&mut self, head: ReplyHead, bytes: Vec<u8>) -> Result<(), End> {
        let is_running = self.running.as_ref().is_some_and(|running| *running.id == *head.id);
        let (Some(session_epoch), true) = (&self.session_epoch, is_running) else {
            return Err(ProtocolViolation::Turn("a REPLY to what is not running").into());
        };
        let mut result = bytes;
        if let Some(slots) = head.slots() {
            session_epoch.region().borrow().guest_body(slots, &mut result)?;
        }
        self.running = None;
        let timings = self.tenant.prefetches.end(&head.id);
        let (received_bytes, sent_bytes) = session_epoch.take_carried();
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let pending = self.tenant.writeback.unsettled(&head.id);
        let said = ControlHead::Replied {
            instance: self.instance,
            invocation: head.id.clone(),
            status: head.status,
            log_tail: head.log_tail,
            pending_writes: u32::try_from(pending).unwrap_or(u32::MAX),
            prefetch_us: microseconds(timings.total),
            prefetch_waited_us: microseconds(timings.waited),
            received_bytes,
            sent_bytes,
        };
        if self.gateway.say_with(said, result).is_err() {
            return Err(
                ProtocolViolation::Turn("a REPLY is longer than a message to the gateway").into()
            );
        }
        if pending > 0 {
            self.gateway.settle(&self.tenant, head.id);
        }
        self.discard_at = Some(Instant::now() + DISCARD_AFTER);
        Ok(())
    }

    /// The context of submissions.
    fn caller(&self, session_epoch: &Rc<SessionEpoch>) -> Caller {
        let (invocation, writes, is_over) = match &self.running {
            Some(running) => (running.id.clone(), running.writes, running.is_over.clone()),
            None => (Rc::from(""), WriteMode::Sync, Rc::default()),
        };
        let (tenant, rights, session_epoch, calls) =
            (self.tenant.clone(), self.rights.clone(), session_epoch.clone(), self.calls.clone());
        Caller { tenant, rights, session_epoch, invocation, is_over, writes, calls }
    }
}

#[cfg(test)]
mod tests;
