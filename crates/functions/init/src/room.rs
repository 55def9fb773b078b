//! The host's slots, as far as this side can know: what is lent to it, and who waits for some.
//!
//! A body that a client opens and does not read holds slots. Others then wait for slots at the host,
//! for a client that may wait for them in turn. Such a body is therefore asked to give its slots back
//! when somebody has waited for a moment and few slots can be free.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Wait of a call after which slots are asked back, if few can be free: longer than a store takes
/// for most answers.
const GRACE: Duration = Duration::from_millis(100);
/// The same, however many can be free: this side does not know all that the host uses.
const PATIENCE: Duration = Duration::from_secs(2);
/// Slots that the host fills at a time, until it has filled more.
const WINDOW_SLOTS: u32 = 16;

/// See the [module](self).
#[derive(Debug)]
pub struct Room {
    slots: u32,
    state: RefCell<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    /// Slots that are lent, and those that the host fills ahead.
    held: u32,
    window: u32,
    /// Slots were asked back, and are until half of them can be free.
    is_relieved: bool,
    waiting: BTreeMap<u64, Instant>,
    next: u64,
}

/// Slots that a body holds, until this is dropped.
#[derive(Debug)]
pub struct Holding {
    room: Rc<Room>,
    slots: u32,
}

impl Drop for Holding {
    fn drop(&mut self) {
        let mut state = self.room.state.borrow_mut();
        state.held -= self.slots;
        state.is_relieved &= state.held > self.room.slots / 2;
    }
}

/// Somebody who waits for slots, until this is dropped.
#[derive(Debug)]
pub struct Waiting {
    room: Rc<Room>,
    number: u64,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut state = self.room.state.borrow_mut();
        state.waiting.remove(&self.number);
        state.is_relieved &= !state.waiting.is_empty();
    }
}

impl Room {
    /// The room of a host with this number of slots.
    pub fn new(slots: u32) -> Rc<Room> {
        let waiting = BTreeMap::new();
        let window = WINDOW_SLOTS;
        let state = State { held: 0, window, is_relieved: false, waiting, next: 0 };
        Rc::new(Room { slots, state: state.into(), changed: Notify::new() })
    }

    /// A body holds slots; if more of it follows, the host fills others ahead.
    pub fn hold(self: &Rc<Room>, slots: u32, more: bool) -> Holding {
        let mut state = self.state.borrow_mut();
        state.window = state.window.max(slots);
        let slots = if more { slots + state.window } else { slots };
        state.held += slots;
        drop(state);
        self.changed.notify_waiters();
        Holding { room: self.clone(), slots }
    }

    /// Somebody waits for slots of the host.
    pub fn wait(self: &Rc<Room>) -> Waiting {
        let mut state = self.state.borrow_mut();
        let number = state.next;
        state.next += 1;
        state.waiting.insert(number, Instant::now());
        drop(state);
        self.changed.notify_waiters();
        Waiting { room: self.clone(), number }
    }

    /// The time from which slots are wanted back, if nothing changes.
    fn due(&self) -> Option<Instant> {
        let state = self.state.borrow();
        // Numbers grow with the time.
        let (_, since) = state.waiting.first_key_value()?;
        let is_scarce = state.is_relieved || state.held + state.window > self.slots;
        Some(*since + if is_scarce { GRACE } else { PATIENCE })
    }

    /// Waits until slots are wanted back.
    pub async fn wanted(&self) {
        loop {
            // Before the check, so that no change is missed.
            let changed = self.changed.notified();
            match self.due() {
                Some(due) if due <= Instant::now() => {
                    let mut state = self.state.borrow_mut();
                    state.is_relieved = state.held > self.slots / 2;
                    return;
                }
                Some(due) => drop(timeout_at(due, changed).await),
                None => changed.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn slots_are_wanted_back_when_somebody_waits_and_few_are_free() {
        run(async {
            let room = Room::new(40);
            assert_eq!(room.due(), None, "nobody waits");
            let waiting = room.wait();
            let since = room.due().unwrap() - PATIENCE;
            let small = room.hold(2, false);
            assert_eq!(room.due(), Some(since + PATIENCE));
            let medium = room.hold(5, false);
            let large = room.hold(9, true);
            assert_eq!(room.due(), Some(since + GRACE), "32 of 40 are held");
            room.wanted().await;
            drop(small);
            assert_eq!(room.due(), Some(since + GRACE), "30 of 40 are held");
            drop(large);
            assert_eq!(room.due(), Some(since + PATIENCE), "5 are held");
            drop((waiting, medium));
            assert_eq!((room.due(), room.state.borrow().held), (None, 0));
        });
    }
}
