//! Writes what a client decides into the table of the process.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, TryLockError};

use rustix::time::{ClockId, clock_gettime};
use unlade_copy_scheduler::admit::{State, View};

use super::board::{Board, Entry, Written};
use super::names::SiteNames;
use super::report::{Off, Serving};

/// Number of looks at a quiet client before it counts as quiet: short copies until then are noted.
const INTRODUCTION: u32 = 64;
/// Number of short copies that are all noted, and the part that is noted afterwards.
const SHORT_COPIES: u32 = 1024;
const SHORT_EVERY: u32 = 64;
/// Maximum number of sites of a client that are noted for their short copies.
const SHORT_SITES_MAX: usize = 64;

/// Mark of a site for which the table has no room.
const UNSHOWN: Entry = Entry::MAX;

/// The part of a client in the table of its process.
#[derive(Debug, Default)]
pub(crate) struct Explainer {
    board: Option<&'static Board>,
    client: u32,
    serving: Serving,
    names: SiteNames,
    /// Sites with copies that are too short to be queued, by address and class.
    shorts: Mutex<HashMap<(usize, usize), Entry>>,
    short_copies: AtomicU32,
    introduced: AtomicU32,
}

/// Notes that this process has no service, for readers of its table; `None`: it has one.
pub fn note_off(off: Option<Off>) {
    if let Some(board) = Board::of_process() {
        board.set_off(off);
    }
}

/// Nanoseconds of the monotonic clock.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    (now.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec as u64)
}

impl Explainer {
    pub fn new(serving: Serving) -> Explainer {
        let board = Board::of_process();
        Explainer::on(board, serving)
    }

    pub(super) fn on(board: Option<&'static Board>, serving: Serving) -> Explainer {
        let mut explainer = Explainer::default();
        explainer.client = board.map_or(0, Board::new_client);
        (explainer.board, explainer.serving) = (board, serving);
        explainer
    }

    pub fn set_names(&mut self, names: SiteNames) {
        self.names = names;
    }

    /// The table, if this process made it.
    pub fn board(&self) -> Option<&'static Board> {
        self.board.filter(|board| board.is_own())
    }

    /// Writes the state of a site and class, of which `before` was the last one. `bytes`: length
    /// of the copy that was decided about.
    pub fn publish(
        &self,
        entry: &mut Entry,
        (address, class): (usize, usize),
        bytes: Option<u64>,
        before: State,
        view: &View,
    ) {
        let Some(board) = self.board() else { return };
        let is_new = *entry == 0;
        if is_new {
            *entry = board.acquire(self.client).unwrap_or(UNSHOWN);
        }
        let name = if is_new { self.names.resolve(address) } else { None };
        let is_changed = before != view.state;
        let since_ns = (is_new || is_changed).then(now_ns);
        let written = Written {
            client: self.client,
            serving: self.serving,
            address,
            class,
            name: name.as_ref().map(|(file, line)| (file.as_str(), *line)),
            bytes,
            since_ns,
            view,
        };
        if *entry != UNSHOWN {
            board.write(*entry, &written);
        }
        if let Some(at_ns) = since_ns.filter(|_| is_changed) {
            board.note_change(before, at_ns, &written);
        }
    }

    /// Frees the entries of a site.
    pub fn release(&self, entries: &[Entry]) {
        let Some(board) = self.board() else { return };
        entries.iter().filter(|entry| **entry != 0).for_each(|entry| board.release(*entry));
    }

    /// A copy of `bytes` was made at once, since it is too short to be queued.
    pub fn note_short(&self, address: usize, class: usize, bytes: u64) {
        let count = self.short_copies.load(Ordering::Relaxed);
        self.short_copies.store(count.wrapping_add(1), Ordering::Relaxed);
        let is_noted = count < SHORT_COPIES || count.is_multiple_of(SHORT_EVERY);
        if let Some(board) = self.board().filter(|_| is_noted) {
            self.note_short_on(board, address, class, bytes);
        }
    }

    #[cold]
    fn note_short_on(&self, board: &Board, address: usize, class: usize, bytes: u64) {
        let mut shorts = match self.shorts.try_lock() {
            Ok(shorts) => shorts,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // One copy is not worth a wait.
            Err(TryLockError::WouldBlock) => return,
        };
        let has_room = shorts.len() < SHORT_SITES_MAX;
        if !has_room && !shorts.contains_key(&(address, class)) {
            return;
        }
        let entry = shorts.entry((address, class)).or_default();
        if *entry == 0 {
            let view = View::short();
            self.publish(entry, (address, class), Some(bytes), view.state, &view);
        }
        board.count(*entry, false, 1);
    }

    /// Returns true when the client was quiet for some looks. Until then short copies are noted.
    pub fn is_introduced(&self) -> bool {
        let looks = self.introduced.load(Ordering::Relaxed);
        if looks < INTRODUCTION && self.board.is_some() {
            self.introduced.store(looks + 1, Ordering::Relaxed);
            return false;
        }
        true
    }
}

impl Drop for Explainer {
    fn drop(&mut self) {
        let shorts = std::mem::take(&mut self.shorts).into_inner();
        let shorts = shorts.unwrap_or_else(std::sync::PoisonError::into_inner);
        self.release(&shorts.into_values().collect::<Vec<Entry>>());
    }
}
