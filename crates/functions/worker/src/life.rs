//! What lives from a greeting to the next one: the region of an epoch, and what was lent of it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use unlade_guest_protocol::{Completion, Extent};
use unlade_shm::Arena;

use crate::fetch::Held;
use crate::region::{Nonsense, Region, Run};
use crate::stage::Upload;
use crate::stream::{Agains, Inlet};

/// How long a call waits for the guest to release something.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

/// An epoch of a session. What is done in its memory are tasks of its own, which end with it: the
/// memory may be that of the next epoch, too.
#[derive(Debug)]
pub struct Life {
    /// The epoch.
    pub epoch: u64,
    /// The memory.
    pub region: RefCell<Region>,
    /// Calls in flight, by number.
    pub calls: RefCell<HashMap<u64, Flight>>,
    /// Calls that the guest may make again.
    pub agains: Agains,
    /// What the guest has been lent, by token.
    pub tokens: RefCell<HashMap<u64, Held>>,
    /// The guest is to be woken, or has done what no guest does.
    pub attention: Notify,
    bell: Cell<bool>,
    nonsense: RefCell<Option<Nonsense>>,
    room: Notify,
    next_token: Cell<u64>,
    tasks: RefCell<JoinSet<()>>,
}

/// A call that has not been completed.
#[derive(Debug)]
pub enum Flight {
    /// More of its body is to come.
    Uploading(Box<Upload>, Flying),
    /// It is being carried out while its body comes.
    Streaming(Rc<Inlet>, AbortHandle),
    /// It is being carried out.
    Running(AbortHandle),
}

/// A place among an instance's calls, until this is dropped.
#[derive(Debug)]
pub struct Flying(Rc<Cell<usize>>);

impl Flying {
    /// A place, where fewer than so many are taken.
    pub fn begin(calls: &Rc<Cell<usize>>, calls_max: usize) -> Option<Flying> {
        if calls.get() >= calls_max {
            return None;
        }
        calls.set(calls.get() + 1);
        Some(Flying(calls.clone()))
    }
}

impl Drop for Flying {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Life {
    /// A life with a region.
    pub fn new(region: Region) -> Rc<Life> {
        Rc::new(Life {
            epoch: region.header().epoch,
            region: RefCell::new(region),
            calls: RefCell::default(),
            agains: Agains::default(),
            tokens: RefCell::default(),
            attention: Notify::new(),
            bell: Cell::new(false),
            nonsense: RefCell::default(),
            room: Notify::new(),
            next_token: Cell::new(1),
            tasks: RefCell::default(),
        })
    }

    /// Does something that may write into the memory, at most until the epoch ends.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) -> AbortHandle {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(work)
    }

    /// The epoch has ended: no task of it makes another step, nothing is lent.
    pub fn end(&self) {
        self.tasks.borrow_mut().abort_all();
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        let lent = std::mem::take(&mut *self.tokens.borrow_mut());
        drop((calls, lent));
    }

    /// The memory itself, which stays as long as somebody fills it.
    pub fn arena(&self) -> Rc<Arena> {
        self.region.borrow().arena().clone()
    }

    /// The low half of the epoch.
    pub fn epoch_low(&self) -> u32 {
        self.epoch as u32
    }

    /// Completes a submission.
    pub fn complete(&self, completion: &Completion) {
        let pushed = self.region.borrow_mut().push_completion(completion);
        self.note(pushed);
    }

    /// Moves completions that waited for room.
    pub fn flush(&self) {
        let flushed = self.region.borrow_mut().flush();
        self.note(flushed);
    }

    /// What a look at the guest's words gave.
    pub fn note(&self, looked: Result<bool, Nonsense>) {
        match looked {
            Ok(false) => return,
            Ok(true) => self.bell.set(true),
            Err(nonsense) => {
                self.nonsense.borrow_mut().get_or_insert(nonsense);
            }
        }
        self.attention.notify_one();
    }

    /// Whether the guest is to be woken; says so once.
    pub fn take_bell(&self) -> bool {
        self.bell.take()
    }

    /// What no guest does, if it did.
    pub fn nonsense(&self) -> Option<Nonsense> {
        self.nonsense.borrow().clone()
    }

    /// A token that was not given before.
    pub fn next_token(&self) -> u64 {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        token
    }

    /// Slots, `most` or fewer, waiting for the guest to release some; nothing where it does not.
    pub async fn slots(self: &Rc<Life>, most: u32) -> Option<Slots> {
        self.wait(|life| life.try_slots(most)).await
    }

    /// Slots, if there are some.
    pub fn try_slots(self: &Rc<Life>, most: u32) -> Option<Slots> {
        let run = self.region.borrow_mut().take_slots(most)?;
        Some(Slots { life: self.clone(), run })
    }

    /// Exactly so many slots, if there are.
    pub fn try_slots_exactly(self: &Rc<Life>, count: u32) -> Option<Slots> {
        let run = self.region.borrow_mut().take_slots_exactly(count)?;
        Some(Slots { life: self.clone(), run })
    }

    /// Text in the meta arena, waiting for room; nothing where there is none for long, or ever.
    pub async fn meta(self: &Rc<Life>, text: &[u8]) -> Option<Meta> {
        if text.len() > self.region.borrow().header().host_meta_bytes as usize {
            return None;
        }
        self.wait(|life| life.try_meta(text)).await
    }

    /// Text in the meta arena, if there is room.
    pub fn try_meta(self: &Rc<Life>, text: &[u8]) -> Option<Meta> {
        let (run, offset) = self.region.borrow_mut().put_meta(text)?;
        Some(Meta { life: self.clone(), run, offset, bytes: text.len() as u32 })
    }

    async fn wait<T>(self: &Rc<Life>, get: impl Fn(&Rc<Life>) -> Option<T>) -> Option<T> {
        let work = async {
            loop {
                let released = self.room.notified();
                if let Some(got) = get(self) {
                    return got;
                }
                released.await;
            }
        };
        tokio::time::timeout(ROOM_TIMEOUT, work).await.ok()
    }
}

/// Slots of the host's that are lent, until this is dropped.
#[derive(Debug)]
pub struct Slots {
    life: Rc<Life>,
    run: Run,
}

impl Slots {
    /// How many bytes fit.
    pub fn room_bytes(&self) -> usize {
        self.run.count as usize * unlade_guest_protocol::region::SLOT_BYTES as usize
    }

    /// So many bytes from the start on, as a descriptor names them.
    pub fn extent(&self, bytes: usize) -> Extent {
        Extent { first_slot: self.run.first, bytes: bytes as u32 }
    }

    /// Where the first slot begins.
    pub fn offset(&self) -> usize {
        self.life.region.borrow().slot_offset(self.run.first)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.life.region.borrow_mut().give_slots(self.run);
        self.life.room.notify_waiters();
    }
}

/// A place in the meta arena that is lent, until this is dropped.
#[derive(Debug)]
pub struct Meta {
    life: Rc<Life>,
    run: Run,
    /// Where the text is.
    pub offset: u32,
    /// How long it is.
    pub bytes: u32,
}

impl Drop for Meta {
    fn drop(&mut self) {
        self.life.region.borrow_mut().give_meta(self.run);
        self.life.room.notify_waiters();
    }
}
