//! One instance: its channel, its region, its calls.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use unlade_guest_protocol::control::{Said, WriteMode};
use unlade_guest_protocol::descriptor::PART;
use unlade_guest_protocol::region::SLOT_BYTES;
use unlade_guest_protocol::{
    Completion, Frame, InvokeHead, Layout, Operation, ReplyHead, Status, Submission,
};
use unlade_metrics::{CallEnd, Event};
use unlade_s3::failure::HostCode;
use unlade_s3::{Call, Policy};
use unlade_shm::Arena;

use crate::call::Caller;
use crate::channel::{Channel, ChannelError};
use crate::control::Gateway;
use crate::fetch;
use crate::life::{Flight, Flying, Life, Slots};
use crate::region::{Nonsense, Region};
use crate::stage::Upload;
use crate::stream::{self, Inlet, Streamed};
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
    Nonsense(#[from] Nonsense),
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
    policy: Rc<Policy>,
    gateway: Gateway,
    instance: u64,
    channel: Channel,
    /// The memory that the instance brought, if it did.
    memory: Option<Memory>,
    life: Option<Rc<Life>>,
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
        policy: Rc<Policy>,
        gateway: Gateway,
        instance: u64,
        socket: OwnedFd,
        memory: Option<Memory>,
    ) -> std::io::Result<Session> {
        let channel = Channel::new(socket)?;
        let calls = Rc::default();
        let (life, running, discard_at) = (None, None, None);
        Ok(Session {
            tenant,
            policy,
            gateway,
            instance,
            channel,
            memory,
            life,
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
        if matches!(end, End::Nonsense(_) | End::Channel(ChannelError::Frame(_))) {
            self.tenant.meter.add(Event::HostioNonsense);
            tracing::warn!(instance = self.instance, %end, "the guest broke the protocol");
        }
        let reason = end.to_string();
        let _ = self.channel.send(&Frame::Bye(reason.clone()));
        self.leave();
        self.gateway.say(Said::Gone { instance: self.instance, reason });
    }

    /// Ends the epoch and drops its resources; calls in flight end without a receiver.
    fn leave(&mut self) {
        if let Some(running) = self.running.take() {
            self.tenant.prefetches.end(&self.tenant, &running.id);
        }
        if let Some(life) = self.life.take() {
            life.end();
            // Its tasks end later; the copies for them end now.
            self.tenant.copies.end(&life.arena());
        }
    }

    async fn turn(&mut self, orders: &mut mpsc::UnboundedReceiver<Order>) -> Result<(), End> {
        let Some(life) = self.life.clone() else {
            self.tenant.turn.begin().await;
            return tokio::select! {
                frame = self.channel.next() => self.on_frame(frame?).await,
                order = orders.recv() => self.on_order(order),
            };
        };
        if let Some(nonsense) = life.nonsense() {
            return Err(nonsense.into());
        }
        if life.take_bell() {
            self.channel.send(&Frame::Bell)?;
        }
        life.region.borrow().sleeps(false);
        self.tenant.turn.begin().await;
        if self.drain(&life).await? {
            // Other tasks run before the next batch.
            tokio::task::yield_now().await;
            return Ok(());
        }
        life.region.borrow().sleeps(true);
        // The guest may have submitted before it saw the word.
        if self.drain(&life).await? {
            return Ok(());
        }
        let is_full = life.region.borrow().is_full();
        let discard_at = self.discard_at.unwrap_or_else(Instant::now);
        tokio::select! {
            frame = self.channel.next() => self.on_frame(frame?).await,
            order = orders.recv() => self.on_order(order),
            () = life.attention.notified() => Ok(()),
            () = tokio::time::sleep(RING_PAUSE), if is_full => {
                life.flush();
                Ok(())
            }
            () = tokio::time::sleep_until(discard_at), if self.discard_at.is_some() => {
                self.discard_at = None;
                life.region.borrow().discard_idle();
                Ok(())
            }
        }
    }

    /// Takes submissions; returns true if there were any.
    async fn drain(&mut self, life: &Rc<Life>) -> Result<bool, End> {
        let (mut taken, mut bytes) = (0, 0);
        while taken < BATCH && bytes < BATCH_BYTES {
            let submission = life.region.borrow_mut().poll_submission()?;
            let Some(submission) = submission else { break };
            taken += 1;
            bytes += u64::from(submission.body.bytes);
            self.on_submission(life, submission).await?;
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
                Err(Nonsense::Turn("a guest does not say this").into())
            }
        }
    }

    async fn on_hello(&mut self, nonce: u64) -> Result<(), End> {
        if let Some(running) = &self.running {
            let invocation = Some(running.id.to_string());
            let reason = "the instance greeted again before it replied".to_owned();
            self.gateway.say(Said::Refused { instance: Some(self.instance), invocation, reason });
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
        self.life = Some(Life::new(region));
        self.gateway.say(Said::Ready { instance: self.instance, epoch });
        Ok(())
    }

    fn on_order(&mut self, order: Option<Order>) -> Result<(), End> {
        match order {
            None | Some(Order::Detach) => Err(End::Detached),
            Some(Order::Invoke(head, writes, event)) => {
                if let Err(reason) = self.invoke(head.clone(), writes, event)? {
                    let (instance, invocation) = (Some(self.instance), Some(head.id));
                    let reason = reason.to_owned();
                    self.gateway.say(Said::Refused { instance, invocation, reason });
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
        let Some(life) = &self.life else { return Ok(Err("the instance has not greeted")) };
        if self.running.is_some() {
            return Ok(Err("the instance is running another invocation"));
        }
        let mut slots = None;
        let mut inline = Vec::new();
        if event.len() <= INLINE_EVENT_BYTES {
            inline = event;
        } else {
            let count = event.len().div_ceil(SLOT_BYTES as usize);
            let Some(lent) = life.try_slots_exactly(count as u32) else {
                return Ok(Err("the event does not fit into the instance's region"));
            };
            // The slots were lent for the event, so it fits.
            let _ = life.arena().copy_in(lent.offset(), &event);
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
        let (Some(life), true) = (&self.life, is_running) else {
            return Err(Nonsense::Turn("a REPLY to what is not running").into());
        };
        let mut result = bytes;
        if let Some(slots) = head.slots() {
            life.region.borrow().guest_body(slots, &mut result)?;
        }
        self.running = None;
        let timings = self.tenant.prefetches.end(&self.tenant, &head.id);
        let microseconds = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let pending = self.tenant.writeback.unsettled(&head.id);
        let said = Said::Replied {
            instance: self.instance,
            invocation: head.id.clone(),
            status: head.status,
            log_tail: head.log_tail,
            pending_writes: u32::try_from(pending).unwrap_or(u32::MAX),
            prefetch_us: microseconds(timings.total),
            prefetch_waited_us: microseconds(timings.waited),
        };
        if self.gateway.say_with(said, result).is_err() {
            return Err(Nonsense::Turn("a REPLY is longer than a message to the gateway").into());
        }
        if pending > 0 {
            self.gateway.settle(&self.tenant, head.id);
        }
        self.discard_at = Some(Instant::now() + DISCARD_AFTER);
        Ok(())
    }

    async fn on_submission(&mut self, life: &Rc<Life>, submission: Submission) -> Result<(), End> {
        let number = submission.call;
        match submission.operation {
            Operation::Call => self.on_call(life, &submission).await?,
            Operation::Body => self.on_body(life, &submission).await?,
            Operation::Read => {
                let (tenant, life) = (self.tenant.clone(), life.clone());
                let Some(flying) = self.fly() else {
                    refuse(&self.tenant, &life, number);
                    return Ok(());
                };
                let owner = life.clone();
                owner.spawn(async move {
                    let _flying = flying;
                    let wanted = submission.body.bytes;
                    fetch::read(&tenant, &life, number, submission.token, wanted).await;
                });
            }
            Operation::Release => {
                let released = life.tokens.borrow_mut().remove(&submission.token);
                drop(released);
            }
            Operation::Cancel => self.on_cancel(life, number),
        }
        Ok(())
    }

    async fn on_call(&mut self, life: &Rc<Life>, submission: &Submission) -> Result<(), End> {
        let number = submission.call;
        if life.calls.borrow().contains_key(&number) {
            return Err(Nonsense::Number(number).into());
        }
        let meta = (submission.meta_offset, submission.meta_bytes);
        let text = life.region.borrow().guest_meta(meta.0, meta.1)?;
        let (call, inline) = match Call::decode(&text) {
            Ok(decoded) => decoded,
            Err(error) => {
                self.complain(life, number, HostCode::Invalid, error.to_string());
                return Ok(());
            }
        };
        let caller = self.caller(life);
        let before = life.agains.look(call.again);
        let streams = caller.streams(&call, before);
        let limits = &self.tenant.limits;
        let most = if streams { limits.body_bytes_max } else { limits.staged_bytes_max };
        let most = most.min(limits.body_bytes_max);
        if call.body_bytes > most {
            let why = format!("a body of {} bytes, {most} at most", call.body_bytes);
            self.complain(life, number, HostCode::TooLarge, why);
            return Ok(());
        }
        let body_bytes = if streams { stream::HELD_BYTES } else { call.body_bytes };
        let quota = &self.tenant.quota;
        let (Some(room), Some(held), Some(flying)) =
            (quota.call(), quota.hold_call(text.len(), body_bytes), self.fly())
        else {
            refuse(&self.tenant, life, number);
            return Ok(());
        };
        life.agains.forget(call.again);
        if streams {
            let inlet = Inlet::new(call.body_bytes, &life.region.borrow());
            let streamed = Streamed { call, inlet, attempts: before.attempts, room, held };
            return begin_stream(life, submission, caller, streamed, flying);
        }
        let mut upload = Upload::new(call, inline, room, held);
        let place = life.region.borrow().guest_place(submission.body)?;
        // Other tasks run while the bytes are copied.
        if let Err(error) = upload.take(&self.tenant.copies, place).await {
            self.complain(life, number, HostCode::Invalid, error.to_string());
            return Ok(());
        }
        self.go_on(life, submission, upload, flying);
        Ok(())
    }

    async fn on_body(&mut self, life: &Rc<Life>, submission: &Submission) -> Result<(), End> {
        let number = submission.call;
        if let Some(Flight::Streaming(inlet, _)) = life.calls.borrow().get(&number) {
            return Ok(inlet.push(&life.region.borrow(), submission, true)?);
        }
        let flight = {
            let mut calls = life.calls.borrow_mut();
            match calls.get(&number) {
                Some(Flight::Uploading(..)) => calls.remove(&number),
                // The call has ended already, or its body has.
                _ => None,
            }
        };
        let Some(Flight::Uploading(mut upload, flying)) = flight else { return Ok(()) };
        let place = life.region.borrow().guest_place(submission.body)?;
        match upload.take(&self.tenant.copies, place).await {
            Ok(()) => self.go_on(life, submission, *upload, flying),
            Err(error) => self.complain(life, number, HostCode::Invalid, error.to_string()),
        }
        Ok(())
    }

    /// Continues after the slots of a descriptor were copied: waits for more, or starts the call.
    fn go_on(&mut self, life: &Rc<Life>, submission: &Submission, upload: Upload, flying: Flying) {
        let number = submission.call;
        if submission.more || submission.operation == Operation::Body {
            let part = Completion::bare(number, Status::Done, life.epoch_low());
            life.complete(&Completion { flags: PART, ..part });
        }
        if submission.more {
            let flight = Flight::Uploading(Box::new(upload), flying);
            life.calls.borrow_mut().insert(number, flight);
            return;
        }
        let staged = match upload.finish() {
            Ok(staged) => staged,
            Err(error) => {
                return self.complain(life, number, HostCode::Invalid, error.to_string());
            }
        };
        let caller = self.caller(life);
        let task = life.spawn(async move {
            let _flying = flying;
            caller.run(number, staged).await;
        });
        life.calls.borrow_mut().insert(number, Flight::Running(task));
    }

    fn caller(&self, life: &Rc<Life>) -> Caller {
        let (invocation, writes, is_over) = match &self.running {
            Some(running) => (running.id.clone(), running.writes, running.is_over.clone()),
            None => (Rc::from(""), WriteMode::Sync, Rc::default()),
        };
        let (tenant, policy, life) = (self.tenant.clone(), self.policy.clone(), life.clone());
        Caller { tenant, policy, life, invocation, is_over, writes }
    }

    fn on_cancel(&mut self, life: &Rc<Life>, number: u64) {
        let flight = life.calls.borrow_mut().remove(&number);
        match flight {
            // The call was completed, or never existed.
            None => return,
            Some(Flight::Running(task) | Flight::Streaming(_, task)) => task.abort(),
            Some(Flight::Uploading(upload, flying)) => drop((upload, flying)),
        }
        let why = "cancelled; it may have happened".to_owned();
        self.complain(life, number, HostCode::Ending, why);
    }

    /// Takes a permit of the instance's calls.
    fn fly(&self) -> Option<Flying> {
        Flying::begin(&self.calls, self.tenant.limits.calls_max)
    }

    /// Completes a call with an error of the host. If the guest leaves no room for the text, it
    /// waits like a call. The text is omitted when the limit of waiting calls is reached.
    fn complain(&self, life: &Rc<Life>, number: u64, code: HostCode, message: String) {
        if fetch::try_complain(life, number, code, &message) {
            return;
        }
        let Some(flying) = self.fly() else {
            let bare = Completion::bare(number, Status::HostError, life.epoch_low());
            return life.complete(&bare);
        };
        let own = life.clone();
        life.spawn(async move {
            let _flying = flying;
            fetch::complain(&own, number, code, &message).await;
        });
    }
}

/// Starts a call whose body is sent to the store while it arrives.
fn begin_stream(
    life: &Rc<Life>,
    submission: &Submission,
    caller: Caller,
    streamed: Streamed,
    flying: Flying,
) -> Result<(), End> {
    let number = submission.call;
    let inlet = streamed.inlet.clone();
    inlet.push(&life.region.borrow(), submission, submission.more)?;
    let task = life.spawn(async move {
        let _flying = flying;
        caller.run_stream(number, streamed).await;
    });
    life.calls.borrow_mut().insert(number, Flight::Streaming(inlet, task));
    Ok(())
}

fn refuse(tenant: &Tenant, life: &Life, number: u64) {
    tenant.meter.add(Event::HostioCall(CallEnd::Refused));
    life.complete(&Completion::bare(number, Status::Refused, life.epoch_low()));
}

#[cfg(test)]
mod tests;
