//! The instance's end of the guest protocol: the channel, the region, and the numbers of calls.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io::{Error, ErrorKind, Result, Write};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};
use unlade_guest_protocol::region::{ENTRY_BYTES, HEADER_USED_BYTES, SLOT_BYTES, word};
use unlade_guest_protocol::{
    Completion, Deframer, Extent, Frame, Header, InvokeHead, Operation, Submission,
};
use unlade_runtime::descriptors::receive;
use unlade_shm::Arena;

use crate::outgoing::{Budget, Lost};
use crate::ranges::Ranges;
use crate::room::Room;

/// Units of the meta arena, in bytes.
const UNIT_BYTES: u32 = 64;
/// Most submissions that wait for room in the ring: all calls at a time have fewer.
const BACKLOG_MAX: usize = 4096;
/// Wait before the next look at a ring that is full.
const BACKLOG_WAIT: Duration = Duration::from_millis(1);
/// Most calls with a body at a time. They depend on the client, which may need the others for it.
const UPLOADS_MAX: usize = 64;
/// Most other calls at a time that have no answer yet.
const CALLS_MAX: usize = 32;
/// Most requests for the rest of an object at a time that have no answer yet.
const RANGES_MAX: usize = 32;
/// Memory for bodies that are kept until the host has taken them: a part of the instance's.
const KEPT_PART: u64 = 8;

fn broken(error: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidData, format!("the host: {error}"))
}

/// Calls that have places of their own: none waits for a place that others hold while they wait for
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Places {
    /// Calls with a body.
    Uploads,
    /// Other calls, until their answer.
    Calls,
    /// Requests for the rest of an object, until their answer.
    Ranges,
}

/// An invocation as it arrived.
pub struct Invoked {
    /// Its head.
    pub head: InvokeHead,
    /// The event.
    pub event: Bytes,
}

/// The channel and the region of one instance, in its only epoch.
pub struct Link {
    arena: Arena,
    header: Header,
    rings: RefCell<Rings>,
    /// Notified when slots or meta are free again.
    freed: Notify,
    places: [Arc<Semaphore>; 3],
    /// The host's slots.
    pub room: Rc<Room>,
    /// Memory for bodies that are kept.
    pub budget: Rc<Budget>,
    /// Calls whose bodies were lost.
    pub lost: RefCell<Lost>,
    /// Notified when submissions wait for room in the ring.
    backlogged: Notify,
    outbox: mpsc::UnboundedSender<Vec<u8>>,
}

struct Rings {
    submissions: u32,
    backlog: VecDeque<Submission>,
    /// A result waits for slots: bodies get none before it.
    result_waits: bool,
    completions: u32,
    next_call: u64,
    waiting: HashMap<u64, mpsc::UnboundedSender<Completion>>,
    slots: Ranges,
    meta: Ranges,
}

impl Rings {
    /// Takes adjacent slots for a part of a body, as many as there are.
    fn for_body(&mut self, most: u32) -> Option<(u32, u32)> {
        if self.result_waits { None } else { self.slots.take_up_to(most) }
    }

    /// Takes adjacent slots for a result; without them it waits for some.
    fn for_result(&mut self, count: u32) -> Option<u32> {
        let taken = self.slots.take(count);
        self.result_waits = taken.is_none();
        taken
    }
}

/// A range that is given back when it is dropped.
pub struct Held {
    link: Rc<Link>,
    /// True: slots; false: units of the meta arena.
    is_slots: bool,
    /// The first unit.
    pub first: u32,
    /// Number of units.
    pub count: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut rings = self.link.rings.borrow_mut();
        let ranges = if self.is_slots { &mut rings.slots } else { &mut rings.meta };
        ranges.give(self.first, self.count);
        self.link.freed.notify_waiters();
    }
}

impl Link {
    /// Greets on the channel, and waits for the region. `memory_bytes` is the instance's limit.
    /// Returns the link, and the service of its channel.
    ///
    /// # Errors
    /// The channel fails, or the host's answer is invalid.
    pub fn greet(channel: OwnedFd, memory_bytes: u64) -> Result<(Rc<Link>, Service)> {
        let channel = std::os::unix::net::UnixStream::from(channel);
        channel.set_nonblocking(false)?;
        let mut nonce = [0; 8];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        let due = u64::from_ne_bytes(nonce);
        let mut bytes = Vec::new();
        Frame::Hello { nonce: due }.encode(&mut bytes).map_err(broken)?;
        (&channel).write_all(&bytes)?;
        let (mut input, mut descriptors) = (Vec::new(), VecDeque::new());
        let (epoch, taken) = loop {
            if receive(&channel, &mut input, &mut descriptors)? == 0 {
                return Err(broken("it has closed the channel"));
            }
            match Frame::decode(&input).map_err(broken)? {
                None => {}
                Some((Frame::Welcome { nonce, epoch, .. }, taken)) if nonce == due => {
                    break (epoch, taken);
                }
                Some((Frame::Bye(why), _)) => return Err(broken(why)),
                Some(_) => return Err(broken("no WELCOME")),
            }
        };
        let memory = descriptors.pop_front().ok_or_else(|| broken("no region"))?;
        let arena = Arena::attach(memory).map_err(broken)?;
        let mut head = [0; HEADER_USED_BYTES];
        arena.copy_out(0, &mut head).map_err(broken)?;
        let header = Header::decode(&head).map_err(broken)?;
        if header.epoch != epoch || header.region_bytes > arena.len_bytes() as u64 {
            return Err(broken("a region of another epoch or size"));
        }
        // The host rings for every completion: nothing here waits in another way.
        arena.store(word::GUEST_SLEEPS, 1, Ordering::SeqCst).map_err(broken)?;
        channel.set_nonblocking(true)?;
        let (outbox, outgoing) = mpsc::unbounded_channel();
        let rings = Rings {
            submissions: 0,
            backlog: VecDeque::new(),
            result_waits: false,
            completions: 0,
            next_call: 1,
            waiting: HashMap::new(),
            slots: Ranges::new(header.guest_slots),
            meta: Ranges::new(header.guest_meta_bytes / UNIT_BYTES),
        };
        let link = Rc::new(Link {
            arena,
            header,
            rings: rings.into(),
            freed: Notify::new(),
            places: [UPLOADS_MAX, CALLS_MAX, RANGES_MAX]
                .map(|places| Arc::new(Semaphore::new(places))),
            room: Room::new(header.host_slots),
            budget: Budget::new(usize::try_from(memory_bytes / KEPT_PART).unwrap_or(usize::MAX)),
            lost: RefCell::default(),
            backlogged: Notify::new(),
            outbox,
        });
        let mut deframer = Deframer::default();
        deframer.push(input.get(taken..).unwrap_or_default());
        Ok((link.clone(), Service { link, channel, deframer, outgoing }))
    }

    /// Waits for a place for one more call.
    ///
    /// # Errors
    /// Never: the semaphores are not closed.
    pub async fn place(&self, kind: Places) -> Result<OwnedSemaphorePermit> {
        let [uploads, calls, ranges] = &self.places;
        let places = match kind {
            Places::Uploads => uploads,
            Places::Calls => calls,
            Places::Ranges => ranges,
        };
        places.clone().acquire_owned().await.map_err(broken)
    }

    /// Queues a frame for the host.
    ///
    /// # Errors
    /// The frame is too long.
    pub fn send(&self, frame: &Frame) -> Result<()> {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).map_err(broken)?;
        // The receiver is gone only when the process ends.
        let _ = self.outbox.send(bytes);
        Ok(())
    }

    /// Number of bytes that fit into the guest's slots.
    pub fn slots_bytes(&self) -> usize {
        self.header.guest_slots as usize * SLOT_BYTES as usize
    }

    /// A new call: its number, and its completions.
    pub fn register(&self) -> (u64, mpsc::UnboundedReceiver<Completion>) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut rings = self.rings.borrow_mut();
        let call = rings.next_call;
        rings.next_call += 1;
        rings.waiting.insert(call, sender);
        (call, receiver)
    }

    /// The call has no further completion.
    pub fn forget(&self, call: u64) {
        self.rings.borrow_mut().waiting.remove(&call);
    }

    /// Copies text into the meta arena; waits for room.
    ///
    /// # Errors
    /// It is longer than the arena: [`ErrorKind::InvalidInput`].
    pub async fn text(self: &Rc<Link>, text: &[u8]) -> Result<Held> {
        let most = self.header.guest_meta_bytes / UNIT_BYTES;
        let count = u32::try_from(text.len()).map_err(broken)?.div_ceil(UNIT_BYTES);
        if count > most {
            let (bytes, most) = (text.len(), most * UNIT_BYTES);
            let why = format!("the request has {bytes} bytes as the text of a call, of {most}");
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
        let held = loop {
            let freed = self.freed.notified();
            let taken = self.rings.borrow_mut().meta.take(count);
            match taken {
                Some(first) => break Held { link: self.clone(), is_slots: false, first, count },
                None => freed.await,
            }
        };
        let at = self.header.guest_meta_offset + held.first * UNIT_BYTES;
        self.arena.copy_in(at as usize, text).map_err(broken)?;
        Ok(held)
    }

    /// The place of a text in the meta arena.
    pub fn text_offset(&self, held: &Held) -> u32 {
        held.first * UNIT_BYTES
    }

    /// Copies the start of `bytes` into slots, as much as fits into the longest free range; waits
    /// for one. Returns the slots and the number of bytes.
    ///
    /// # Errors
    /// The region has no slots.
    pub async fn body(self: &Rc<Link>, bytes: &[u8]) -> Result<(Held, u32)> {
        let most = u32::try_from(bytes.len()).map_err(broken)?.div_ceil(SLOT_BYTES);
        let held = loop {
            let freed = self.freed.notified();
            let taken = self.rings.borrow_mut().for_body(most);
            match taken {
                Some((first, count)) => {
                    break Held { link: self.clone(), is_slots: true, first, count };
                }
                None => freed.await,
            }
        };
        let fits = bytes.len().min(held.count as usize * SLOT_BYTES as usize);
        self.fill(&held, bytes.get(..fits).unwrap_or_default())?;
        Ok((held, fits as u32))
    }

    /// Copies all bytes of a result into adjacent slots. Waits for slots that bodies hold, which get
    /// no others meanwhile; there is one result at a time. `None` if it can never fit.
    pub async fn result(self: &Rc<Link>, bytes: &[u8]) -> Option<Held> {
        let count = u32::try_from(bytes.len()).ok()?.div_ceil(SLOT_BYTES);
        if count > self.header.guest_slots {
            return None;
        }
        let first = loop {
            let freed = self.freed.notified();
            let taken = self.rings.borrow_mut().for_result(count);
            match taken {
                Some(first) => break first,
                None => freed.await,
            }
        };
        // Bodies may have waited for the result.
        self.freed.notify_waiters();
        let held = Held { link: self.clone(), is_slots: true, first, count };
        self.fill(&held, bytes).ok()?;
        Some(held)
    }

    fn fill(&self, held: &Held, bytes: &[u8]) -> Result<()> {
        let at =
            self.header.guest_slots_offset as usize + held.first as usize * SLOT_BYTES as usize;
        self.arena.copy_in(at, bytes).map_err(broken)
    }

    /// Copies bytes out of the host's slots.
    ///
    /// # Errors
    /// The range is outside the region.
    pub fn host_body(&self, extent: Extent) -> Result<Bytes> {
        self.host_bytes(extent, 0, extent.bytes)
    }

    /// Copies `bytes` bytes from the offset `at` of a range of the host's slots.
    ///
    /// # Errors
    /// They are outside the region.
    pub fn host_bytes(&self, extent: Extent, at: u32, bytes: u32) -> Result<Bytes> {
        let start = self.header.host_slots_offset as usize
            + extent.first_slot as usize * SLOT_BYTES as usize;
        let mut out = Vec::new();
        self.arena.append_to(start + at as usize, bytes as usize, &mut out).map_err(broken)?;
        Ok(out.into())
    }

    /// Copies text out of the host's meta arena.
    ///
    /// # Errors
    /// The range is outside the region.
    pub fn host_text(&self, completion: &Completion) -> Result<Vec<u8>> {
        let at = self.header.host_meta_offset as usize + completion.meta_offset as usize;
        let mut out = Vec::new();
        self.arena.append_to(at, completion.meta_bytes as usize, &mut out).map_err(broken)?;
        Ok(out)
    }

    /// The meta of a completion; null if it has none.
    ///
    /// # Errors
    /// It is outside the region, or no JSON.
    pub fn meta(&self, completion: &Completion) -> Result<Value> {
        match completion.meta_bytes {
            0 => Ok(Value::Null),
            _ => serde_json::from_slice(&self.host_text(completion)?).map_err(Error::other),
        }
    }

    /// A descriptor without text and body.
    pub fn submission(&self, call: u64, operation: Operation) -> Submission {
        Submission {
            call,
            operation,
            more: false,
            epoch: self.header.epoch as u32,
            meta_offset: 0,
            meta_bytes: 0,
            body: Extent { first_slot: 0, bytes: 0 },
            token: 0,
        }
    }

    /// Puts a descriptor into the submission ring, or behind those that wait for room in it, and wakes
    /// the host if it sleeps.
    ///
    /// # Errors
    /// The host consumes nothing.
    pub fn submit(&self, submission: &Submission) -> Result<()> {
        let mut rings = self.rings.borrow_mut();
        if rings.backlog.len() >= BACKLOG_MAX {
            return Err(broken("it takes no submission"));
        }
        rings.backlog.push_back(*submission);
        drop(rings);
        self.flush()
    }

    /// Moves descriptors into the ring, as many as have room.
    fn flush(&self) -> Result<()> {
        let mut rings = self.rings.borrow_mut();
        let consumed = self.arena.load(word::SUBMISSION_HEAD, Ordering::Acquire).map_err(broken)?;
        let entries = self.header.submission_entries;
        let used = rings.submissions.wrapping_sub(consumed);
        let room = entries.checked_sub(used).ok_or_else(|| broken("more taken than there were"))?;
        let moved = rings.backlog.len().min(room as usize);
        for submission in rings.backlog.drain(..moved).collect::<Vec<_>>() {
            let index = rings.submissions & (entries - 1);
            let at = self.header.submission_offset + index * ENTRY_BYTES;
            self.arena.copy_in(at as usize, &submission.encode()).map_err(broken)?;
            rings.submissions = rings.submissions.wrapping_add(1);
        }
        if !rings.backlog.is_empty() {
            self.backlogged.notify_one();
        }
        if moved == 0 {
            return Ok(());
        }
        self.arena
            .store(word::SUBMISSION_TAIL, rings.submissions, Ordering::SeqCst)
            .map_err(broken)?;
        drop(rings);
        fence(Ordering::SeqCst);
        match self.arena.load(word::HOST_SLEEPS, Ordering::SeqCst).map_err(broken)? {
            0 => Ok(()),
            _ => self.send(&Frame::Bell),
        }
    }

    /// Moves descriptors that wait for room in the ring, until the process ends.
    async fn relieve(&self) -> Result<()> {
        loop {
            self.backlogged.notified().await;
            // The host does not tell that it has consumed something.
            tokio::time::sleep(BACKLOG_WAIT).await;
            self.flush()?;
        }
    }

    /// Takes all completions, and passes each to its call.
    fn collect(&self) -> Result<()> {
        let mut rings = self.rings.borrow_mut();
        let tail = self.arena.load(word::COMPLETION_TAIL, Ordering::SeqCst).map_err(broken)?;
        let entries = self.header.completion_entries;
        if tail.wrapping_sub(rings.completions) > entries {
            return Err(broken("more completions than its ring has"));
        }
        while rings.completions != tail {
            let index = rings.completions & (entries - 1);
            let at = self.header.completion_offset + index * ENTRY_BYTES;
            let mut bytes = [0; ENTRY_BYTES as usize];
            self.arena.copy_out(at as usize, &mut bytes).map_err(broken)?;
            rings.completions = rings.completions.wrapping_add(1);
            let completion = Completion::decode(&bytes).map_err(broken)?;
            // The owner of a call waits for its end before it forgets it.
            if let Some(call) = rings.waiting.get(&completion.call) {
                let _ = call.send(completion);
            }
        }
        self.arena.store(word::COMPLETION_HEAD, tail, Ordering::SeqCst).map_err(broken)
    }
}

/// The two directions of the channel.
pub struct Service {
    link: Rc<Link>,
    channel: std::os::unix::net::UnixStream,
    deframer: Deframer,
    outgoing: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Service {
    /// Serves the channel until it ends; invocations go to `invoked`.
    ///
    /// # Errors
    /// The reason of its end, except that the host has closed it.
    pub async fn run(self, invoked: mpsc::UnboundedSender<Invoked>) -> Result<()> {
        let Service { link, channel, mut deframer, mut outgoing } = self;
        let channel = tokio::net::UnixStream::from_std(channel)?;
        let (mut reader, mut writer) = channel.into_split();
        let writing = async {
            while let Some(bytes) = outgoing.recv().await {
                writer.write_all(&bytes).await?;
            }
            Ok(())
        };
        let reading = async {
            let mut bytes = vec![0; 64 * 1024];
            loop {
                while let Some(frame) = deframer.next_frame().map_err(broken)? {
                    match frame {
                        Frame::Bell => link.collect()?,
                        Frame::Invoke(head, event) => {
                            let event = match head.slots() {
                                Some(extent) => link.host_body(extent)?,
                                None => event.into(),
                            };
                            let _ = invoked.send(Invoked { head, event });
                        }
                        Frame::Bye(why) => return Err(broken(why)),
                        other => return Err(broken(format!("an unexpected frame: {other:?}"))),
                    }
                }
                match reader.read(&mut bytes).await? {
                    0 => return Ok(()),
                    count => deframer.push(bytes.get(..count).unwrap_or_default()),
                }
            }
        };
        tokio::select! {
            ended = reading => ended,
            ended = writing => ended,
            ended = link.relieve() => ended,
        }
    }
}
