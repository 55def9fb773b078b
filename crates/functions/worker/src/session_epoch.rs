//! An epoch of a session, from one greeting to the next: its region and the resources lent from
//! it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use unlade_guest_protocol::{Completion, Extent};
use unlade_shm::Arena;

use crate::fetch::LentBody;
use crate::region::{ProtocolViolation, Region, Run};
use crate::stage::Upload;
use crate::stream::{RetryTable, StreamInput};

/// Longest time that a call waits for the guest to release memory.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

/// An epoch of a session. Work in its memory runs in tasks of its own, which end with the epoch,
/// because the next epoch may use the same memory.
#[derive(Debug)]
pub struct SessionEpoch {
    /// The number of the epoch.
    pub epoch: u64,
    /// The memory.
    pub region: RefCell<Region>,
    /// Calls in flight, by number.
    pub calls: RefCell<HashMap<u64, CallState>>,
    /// Calls that the guest may retry.
    pub retry_table: RetryTable,
    /// Resources lent to the guest, by token.
    pub tokens: RefCell<HashMap<u64, LentBody>>,
    /// Notified when the guest must be woken, or has violated the protocol.
    pub attention: Notify,
    bell: Cell<bool>,
    violation: RefCell<Option<ProtocolViolation>>,
    room: Notify,
    next_token: Cell<u64>,
    tasks: RefCell<JoinSet<()>>,
}

/// A call that has not been completed.
#[derive(Debug)]
pub enum CallState {
    /// More of its body is expected.
    Uploading(Box<Upload>, CallPermit),
    /// It is executed while its body arrives.
    Streaming(Rc<StreamInput>, AbortHandle),
    /// It is executed.
    Running(AbortHandle),
}

/// A permit of an instance's calls, held until this is dropped.
#[derive(Debug)]
pub struct CallPermit(Rc<Cell<usize>>);

impl CallPermit {
    /// Takes a permit, if fewer than `calls_max` are taken.
    pub fn begin(calls: &Rc<Cell<usize>>, calls_max: usize) -> Option<CallPermit> {
        if calls.get() >= calls_max {
            return None;
        }
        calls.set(calls.get() + 1);
        Some(CallPermit(calls.clone()))
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl SessionEpoch {
    /// Creates an epoch with a region.
    pub fn new(region: Region) -> Rc<SessionEpoch> {
        Rc::new(SessionEpoch {
            epoch: region.header().epoch,
            region: RefCell::new(region),
            calls: RefCell::default(),
            retry_table: RetryTable::default(),
            tokens: RefCell::default(),
            attention: Notify::new(),
            bell: Cell::new(false),
            violation: RefCell::default(),
            room: Notify::new(),
            next_token: Cell::new(1),
            tasks: RefCell::default(),
        })
    }

    /// Spawns a task that may write into the memory; it ends with the epoch at the latest.
    pub fn spawn(&self, work: impl Future<Output = ()> + 'static) -> AbortHandle {
        let mut tasks = self.tasks.borrow_mut();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_local(work)
    }

    /// Ends the epoch: no task of it makes another step, and nothing stays lent.
    pub fn end(&self) {
        self.tasks.borrow_mut().abort_all();
        let calls = std::mem::take(&mut *self.calls.borrow_mut());
        let lent = std::mem::take(&mut *self.tokens.borrow_mut());
        drop((calls, lent));
    }

    /// The memory itself, which lives until its last writer has ended.
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

    /// Records the result of a check of the guest's words.
    pub fn note(&self, looked: Result<bool, ProtocolViolation>) {
        match looked {
            Ok(false) => return,
            Ok(true) => self.bell.set(true),
            Err(violation) => {
                self.violation.borrow_mut().get_or_insert(violation);
            }
        }
        self.attention.notify_one();
    }

    /// Returns true once if the guest must be woken.
    pub fn take_bell(&self) -> bool {
        self.bell.take()
    }

    /// The guest's protocol violation, if there was one.
    pub fn violation(&self) -> Option<ProtocolViolation> {
        self.violation.borrow().clone()
    }

    /// A token that was not used before.
    pub fn next_token(&self) -> u64 {
        let token = self.next_token.get();
        self.next_token.set(token + 1);
        token
    }

    /// Takes at most `most` slots; waits for the guest to release some. `None` on timeout.
    pub async fn slots(self: &Rc<SessionEpoch>, most: u32) -> Option<Slots> {
        self.wait(|session_epoch| session_epoch.try_slots(most)).await
    }

    /// Takes slots, if some are free.
    pub fn try_slots(self: &Rc<SessionEpoch>, most: u32) -> Option<Slots> {
        let run = self.region.borrow_mut().take_slots(most)?;
        Some(Slots { session_epoch: self.clone(), run })
    }

    /// Takes exactly `count` slots, if they are free.
    pub fn try_slots_exactly(self: &Rc<SessionEpoch>, count: u32) -> Option<Slots> {
        let run = self.region.borrow_mut().take_slots_exactly(count)?;
        Some(Slots { session_epoch: self.clone(), run })
    }

    /// Puts text into the meta arena, waits for room; `None` on timeout, or if it can never fit.
    pub async fn meta(self: &Rc<SessionEpoch>, text: &[u8]) -> Option<Meta> {
        if text.len() > self.region.borrow().header().host_meta_bytes as usize {
            return None;
        }
        self.wait(|session_epoch| session_epoch.try_meta(text)).await
    }

    /// Puts text into the meta arena, if there is room.
    pub fn try_meta(self: &Rc<SessionEpoch>, text: &[u8]) -> Option<Meta> {
        let (run, offset) = self.region.borrow_mut().put_meta(text)?;
        Some(Meta { session_epoch: self.clone(), run, offset, bytes: text.len() as u32 })
    }

    async fn wait<T>(
        self: &Rc<SessionEpoch>,
        get: impl Fn(&Rc<SessionEpoch>) -> Option<T>,
    ) -> Option<T> {
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

/// Lent slots of the host, released when this is dropped.
#[derive(Debug)]
pub struct Slots {
    session_epoch: Rc<SessionEpoch>,
    run: Run,
}

impl Slots {
    /// Capacity in bytes.
    pub fn room_bytes(&self) -> usize {
        self.run.count as usize * unlade_guest_protocol::region::SLOT_BYTES as usize
    }

    /// The extent of the first `bytes` bytes, as a descriptor encodes it.
    pub fn extent(&self, bytes: usize) -> Extent {
        Extent { first_slot: self.run.first, bytes: bytes as u32 }
    }

    /// Offset of the first slot.
    pub fn offset(&self) -> usize {
        self.session_epoch.region.borrow().slot_offset(self.run.first)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.session_epoch.region.borrow_mut().give_slots(self.run);
        self.session_epoch.room.notify_waiters();
    }
}

/// A lent range of the meta arena, released when this is dropped.
#[derive(Debug)]
pub struct Meta {
    session_epoch: Rc<SessionEpoch>,
    run: Run,
    /// Offset of the text.
    pub offset: u32,
    /// Length of the text.
    pub bytes: u32,
}

impl Drop for Meta {
    fn drop(&mut self) {
        self.session_epoch.region.borrow_mut().give_meta(self.run);
        self.session_epoch.room.notify_waiters();
    }
}
