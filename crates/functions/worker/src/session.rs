//! One instance: its channel, its region, its calls.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::Instant;
use unlade_guest_protocol::control::{ControlHead, WriteMode};
use unlade_guest_protocol::descriptor::PART;
use unlade_guest_protocol::region::SLOT_BYTES;
use unlade_guest_protocol::{
    Completion, Frame, InvokeHead, Layout, Operation, ReplyHead, Status, Submission,
};
use unlade_metrics::{CallEnd, Event};
use unlade_s3::failure::HostCode;
use unlade_s3::{Call, Policy};
use unlade_shm::Arena;

use crate::caller::Caller;
use crate::channel::{Channel, ChannelError};
use crate::fetch;
use crate::gateway::Gateway;
use crate::lending::Slots;
use crate::region::{ProtocolViolation, Region};
use crate::session_epoch::{CallPermit, CallState, SessionEpoch};
use crate::stage::Upload;
use crate::stream::{self, Streamed};
use crate::stream_input::StreamInput;
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
    policy: Rc<Policy>,
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
        policy: Rc<Policy>,
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
            policy,
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
    async fn drain(&mut self, session_epoch: &Rc<SessionEpoch>) -> Result<bool, End> {
        let (mut taken, mut bytes) = (0, 0);
        while taken < BATCH && bytes < BATCH_BYTES {
            let submission = session_epoch.region().borrow_mut().poll_submission()?;
            let Some(submission) = submission else { break };
            taken += 1;
            bytes += u64::from(submission.body.bytes);
            self.on_submission(session_epoch, submission).await?;
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

    async fn on_submission(
        &mut self,
        session_epoch: &Rc<SessionEpoch>,
        submission: Submission,
    ) -> Result<(), End> {
        let number = submission.call;
        match submission.operation {
            Operation::Call => self.on_call(session_epoch, &submission).await?,
            Operation::Body => self.on_body(session_epoch, &submission).await?,
            Operation::Read => {
                let (tenant, session_epoch) = (self.tenant.clone(), session_epoch.clone());
                let Some(permit) = self.fly() else {
                    refuse(&self.tenant, &session_epoch, number);
                    return Ok(());
                };
                let owner = session_epoch.clone();
                owner.spawn(async move {
                    let _flying = permit;
                    let wanted = submission.body.bytes;
                    fetch::read(&tenant, &session_epoch, number, submission.token, wanted).await;
                });
            }
            Operation::Release => {
                let released = session_epoch.tokens.borrow_mut().remove(&submission.token);
                drop(released);
            }
            Operation::Cancel => self.on_cancel(session_epoch, number),
        }
        Ok(())
    }

    async fn on_call(
        &mut self,
        session_epoch: &Rc<SessionEpoch>,
        submission: &Submission,
    ) -> Result<(), End> {
        let number = submission.call;
        if session_epoch.calls.borrow().contains_key(&number) {
            return Err(ProtocolViolation::Number(number).into());
        }
        let meta = (submission.meta_offset, submission.meta_bytes);
        let text = session_epoch.region().borrow().guest_meta(meta.0, meta.1)?;
        let (call, inline) = match Call::decode(&text) {
            Ok(decoded) => decoded,
            Err(error) => {
                self.complain(session_epoch, number, HostCode::Invalid, error.to_string());
                return Ok(());
            }
        };
        let caller = self.caller(session_epoch);
        let before = session_epoch.retry_table.look(call.again);
        let streams = caller.streams(&call, before);
        let limits = &self.tenant.limits;
        let most = if streams { limits.body_bytes_max } else { limits.staged_bytes_max };
        let most = most.min(limits.body_bytes_max);
        if call.body_bytes > most {
            let why = format!("a body of {} bytes, {most} at most", call.body_bytes);
            self.complain(session_epoch, number, HostCode::TooLarge, why);
            return Ok(());
        }
        let body_bytes = if streams { stream::HELD_BYTES } else { call.body_bytes };
        let quota = &self.tenant.quota;
        let (Some(room), Some(held), Some(permit)) =
            (quota.call(), quota.hold_call(text.len(), body_bytes), self.fly())
        else {
            refuse(&self.tenant, session_epoch, number);
            return Ok(());
        };
        session_epoch.retry_table.forget(call.again);
        if streams {
            let stream_input = StreamInput::new(call.body_bytes, &session_epoch.region().borrow());
            let streamed = Streamed { call, stream_input, attempts: before.attempts, room, held };
            return begin_stream(session_epoch, submission, caller, streamed, permit);
        }
        let mut upload = Upload::new(call, inline, room, held);
        let place = session_epoch.region().borrow().guest_range(submission.body)?;
        // Other tasks run while the bytes are copied.
        if let Err(error) = upload.take(&self.tenant.copies, place).await {
            self.complain(session_epoch, number, HostCode::Invalid, error.to_string());
            return Ok(());
        }
        self.go_on(session_epoch, submission, upload, permit);
        Ok(())
    }

    async fn on_body(
        &mut self,
        session_epoch: &Rc<SessionEpoch>,
        submission: &Submission,
    ) -> Result<(), End> {
        let number = submission.call;
        if let Some(CallState::Streaming(stream_input, _)) =
            session_epoch.calls.borrow().get(&number)
        {
            return Ok(stream_input.push(&session_epoch.region().borrow(), submission, true)?);
        }
        let call_state = {
            let mut calls = session_epoch.calls.borrow_mut();
            match calls.get(&number) {
                Some(CallState::Uploading(..)) => calls.remove(&number),
                // The call has ended already, or its body has.
                _ => None,
            }
        };
        let Some(CallState::Uploading(mut upload, permit)) = call_state else { return Ok(()) };
        let place = session_epoch.region().borrow().guest_range(submission.body)?;
        match upload.take(&self.tenant.copies, place).await {
            Ok(()) => self.go_on(session_epoch, submission, *upload, permit),
            Err(error) => {
                self.complain(session_epoch, number, HostCode::Invalid, error.to_string())
            }
        }
        Ok(())
    }

    /// Continues after the slots of a descriptor were copied: waits for more, or starts the call.
    fn go_on(
        &mut self,
        session_epoch: &Rc<SessionEpoch>,
        submission: &Submission,
        upload: Upload,
        permit: CallPermit,
    ) {
        let number = submission.call;
        if submission.more || submission.operation == Operation::Body {
            let part = Completion::bare(number, Status::Done, session_epoch.epoch_low());
            session_epoch.complete(&Completion { flags: PART, ..part });
        }
        if submission.more {
            let call_state = CallState::Uploading(Box::new(upload), permit);
            session_epoch.calls.borrow_mut().insert(number, call_state);
            return;
        }
        let staged = match upload.finish() {
            Ok(staged) => staged,
            Err(error) => {
                return self.complain(session_epoch, number, HostCode::Invalid, error.to_string());
            }
        };
        let caller = self.caller(session_epoch);
        let task = session_epoch.spawn(async move {
            let _flying = permit;
            caller.run(number, staged).await;
        });
        session_epoch.calls.borrow_mut().insert(number, CallState::Running(task));
    }

    fn caller(&self, session_epoch: &Rc<SessionEpoch>) -> Caller {
        let (invocation, writes, is_over) = match &self.running {
            Some(running) => (running.id.clone(), running.writes, running.is_over.clone()),
            None => (Rc::from(""), WriteMode::Sync, Rc::default()),
        };
        let (tenant, policy, session_epoch, calls) =
            (self.tenant.clone(), self.policy.clone(), session_epoch.clone(), self.calls.clone());
        Caller { tenant, policy, session_epoch, invocation, is_over, writes, calls }
    }

    fn on_cancel(&mut self, session_epoch: &Rc<SessionEpoch>, number: u64) {
        let call_state = session_epoch.calls.borrow_mut().remove(&number);
        match call_state {
            // The call was completed, or never existed.
            None => return,
            Some(CallState::Running(task) | CallState::Streaming(_, task)) => task.abort(),
            Some(CallState::Uploading(upload, permit)) => drop((upload, permit)),
        }
        let why = "cancelled; it may have happened".to_owned();
        self.complain(session_epoch, number, HostCode::Ending, why);
    }

    /// Takes a permit of the instance's calls.
    fn fly(&self) -> Option<CallPermit> {
        CallPermit::begin(&self.calls, self.tenant.limits.calls_max)
    }

    /// Completes a call with an error of the host. If the guest leaves no room for the text, it
    /// waits like a call. The text is omitted when the limit of waiting calls is reached.
    fn complain(
        &self,
        session_epoch: &Rc<SessionEpoch>,
        number: u64,
        code: HostCode,
        message: String,
    ) {
        if fetch::try_complain(session_epoch, number, code, &message) {
            return;
        }
        let Some(permit) = self.fly() else {
            let bare = Completion::bare(number, Status::HostError, session_epoch.epoch_low());
            return session_epoch.complete(&bare);
        };
        let own = session_epoch.clone();
        session_epoch.spawn(async move {
            let _flying = permit;
            fetch::complain(&own, number, code, &message).await;
        });
    }
}

/// Starts a call whose body is sent to the store while it arrives.
fn begin_stream(
    session_epoch: &Rc<SessionEpoch>,
    submission: &Submission,
    caller: Caller,
    streamed: Streamed,
    permit: CallPermit,
) -> Result<(), End> {
    let number = submission.call;
    let stream_input = streamed.stream_input.clone();
    stream_input.push(&session_epoch.region().borrow(), submission, submission.more)?;
    let task = session_epoch.spawn(async move {
        let _flying = permit;
        caller.run_stream(number, streamed).await;
    });
    session_epoch.calls.borrow_mut().insert(number, CallState::Streaming(stream_input, task));
    Ok(())
}

fn refuse(tenant: &Tenant, session_epoch: &SessionEpoch, number: u64) {
    tenant.meter.add(Event::HostioCall(CallEnd::Refused));
    session_epoch.complete(&Completion::bare(number, Status::Refused, session_epoch.epoch_low()));
}

#[cfg(test)]
mod tests;
