//! An epoch of a session, from one greeting to the next: its region and the resources lent from
//! it.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use unlade_guest_protocol::Completion;
use unlade_shm::Arena;

use crate::flow::LentBody;
use crate::lending::Lender;
use crate::region::{ProtocolViolation, Region};
use crate::stage::Upload;
use crate::stream_input::{RetryTable, StreamInput};

/// An epoch of a session. Work in its memory runs in tasks of its own, which end with the epoch,
/// because the next epoch may use the same memory.
#[derive(Debug)]
pub struct SessionEpoch {
    /// The number of the epoch.
    pub epoch: u64,
    /// The region, and what is lent from it.
    pub lender: Rc<Lender>,
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
    next_token: Cell<u64>,
    /// Bytes to and from the guest that were not reported yet.
    carried: Cell<(u64, u64)>,
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
            lender: Lender::new(region),
            calls: RefCell::default(),
            retry_table: RetryTable::default(),
            tokens: RefCell::default(),
            attention: Notify::new(),
            bell: Cell::new(false),
            violation: RefCell::default(),
            next_token: Cell::new(1),
            carried: Cell::default(),
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
        self.lender.arena()
    }

    /// The region.
    pub fn region(&self) -> &RefCell<Region> {
        &self.lender.region
    }

    /// The low half of the epoch.
    pub fn epoch_low(&self) -> u32 {
        self.epoch as u32
    }

    /// Completes a submission.
    pub fn complete(&self, completion: &Completion) {
        let received = u64::from(completion.meta_bytes) + u64::from(completion.body.bytes);
        self.carry(received, 0);
        let pushed = self.region().borrow_mut().push_completion(completion);
        self.note(pushed);
    }

    /// Counts bytes of texts and bodies to and from the guest.
    pub fn carry(&self, received_bytes: u64, sent_bytes: u64) {
        let (received, sent) = self.carried.get();
        self.carried.set((received + received_bytes, sent + sent_bytes));
    }

    /// The counted bytes to and from the guest since the last call.
    pub fn take_carried(&self) -> (u64, u64) {
        self.carried.take()
    }

    /// Moves completions that waited for room.
    pub fn flush(&self) {
        let flushed = self.region().borrow_mut().flush();
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
}
