//! Loans from a region: slots and ranges of the meta arena, until they are dropped.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use unlade_guest_protocol::Extent;
use unlade_guest_protocol::region::SLOT_BYTES;
use unlade_shm::Arena;

use crate::region::{Region, Run};

/// Longest time that a call waits for the guest to release memory.
const ROOM_TIMEOUT: Duration = Duration::from_secs(30);

/// The lender of a region's memory.
#[derive(Debug)]
pub struct Lender {
    /// The region.
    pub region: RefCell<Region>,
    room: Notify,
}

impl Lender {
    /// Creates a lender of which nothing is lent.
    pub fn new(region: Region) -> Rc<Lender> {
        Rc::new(Lender { region: RefCell::new(region), room: Notify::new() })
    }

    /// The memory itself, which lives until its last writer has ended.
    pub fn arena(&self) -> Rc<Arena> {
        self.region.borrow().arena().clone()
    }

    /// Takes at most `most` slots; waits for the guest to release some. `None` on timeout.
    pub async fn slots(self: &Rc<Lender>, most: u32) -> Option<Slots> {
        self.wait(|lender| lender.try_slots(most)).await
    }

    /// Takes slots, if some are free.
    pub fn try_slots(self: &Rc<Lender>, most: u32) -> Option<Slots> {
        let run = self.region.borrow_mut().take_slots(most)?;
        Some(Slots { lender: self.clone(), run })
    }

    /// Takes exactly `count` slots, if they are free.
    pub fn try_slots_exactly(self: &Rc<Lender>, count: u32) -> Option<Slots> {
        let run = self.region.borrow_mut().take_slots_exactly(count)?;
        Some(Slots { lender: self.clone(), run })
    }

    /// Puts text into the meta arena, waits for room; `None` on timeout, or if it can never fit.
    pub async fn meta(self: &Rc<Lender>, text: &[u8]) -> Option<Meta> {
        if text.len() > self.region.borrow().header().host_meta_bytes as usize {
            return None;
        }
        self.wait(|lender| lender.try_meta(text)).await
    }

    /// Puts text into the meta arena, if there is room.
    pub fn try_meta(self: &Rc<Lender>, text: &[u8]) -> Option<Meta> {
        let (run, offset) = self.region.borrow_mut().put_meta(text)?;
        Some(Meta { lender: self.clone(), run, offset, bytes: text.len() as u32 })
    }

    async fn wait<T>(self: &Rc<Lender>, get: impl Fn(&Rc<Lender>) -> Option<T>) -> Option<T> {
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
    lender: Rc<Lender>,
    run: Run,
}

impl Slots {
    /// Capacity in bytes.
    pub fn room_bytes(&self) -> usize {
        self.run.count as usize * SLOT_BYTES as usize
    }

    /// The extent of the first `bytes` bytes, as a descriptor encodes it.
    pub fn extent(&self, bytes: usize) -> Extent {
        Extent { first_slot: self.run.first, bytes: bytes as u32 }
    }

    /// Offset of the first slot.
    pub fn offset(&self) -> usize {
        self.lender.region.borrow().slot_offset(self.run.first)
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.lender.region.borrow_mut().give_slots(self.run);
        self.lender.room.notify_waiters();
    }
}

/// A lent range of the meta arena, released when this is dropped.
#[derive(Debug)]
pub struct Meta {
    lender: Rc<Lender>,
    run: Run,
    /// Offset of the text.
    pub offset: u32,
    /// Length of the text.
    pub bytes: u32,
}

impl Drop for Meta {
    fn drop(&mut self) {
        self.lender.region.borrow_mut().give_meta(self.run);
        self.lender.room.notify_waiters();
    }
}
