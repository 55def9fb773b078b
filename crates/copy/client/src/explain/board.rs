//! The table of call sites of this process, which other processes may read.
//!
//! Each entry has one writer at a time: its client, which holds the lock of its sites. Counters
//! may have several. The library never uses a value that it reads here, except to see if an entry
//! is free.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};
use unlade_copy_scheduler::admit::{State, View};

use super::layout::{
    CHANGE_WORDS, CHANGES_MAX, HEADER_WORDS, MAGIC, MEMFD_NAME, SITE_WORDS, SITES_MAX, VERSION,
    change, change_at, floats, header, pair, site, site_at, words, written,
};
use super::report::{Change, Counts, Off, Report, Serving};
use super::settle::settled;
use crate::fork;

/// A table of call sites.
#[derive(Debug)]
pub struct Board {
    memory: Memory,
    sites: usize,
    changes: usize,
    /// Generation of the process that writes here.
    born: u32,
}

#[derive(Debug)]
enum Memory {
    Shared(Mapping),
    /// No other process can read it.
    Private(Box<[AtomicU64]>),
}

/// A mapped memfd.
#[derive(Debug)]
struct Mapping {
    base: NonNull<AtomicU64>,
    words: usize,
    /// Kept open, because others find it by this descriptor.
    file: Option<OwnedFd>,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only used through atomics.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn create(words: usize) -> io::Result<Mapping> {
        let bytes = words * size_of::<u64>();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(MEMFD_NAME, flags)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe {
            rustix::mm::mmap(ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0)
        }?;
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        let mapping = Mapping { base, words, file: Some(file) };
        mapping.seal()?;
        Ok(mapping)
    }

    /// Fixes the size, and allows no other process to write. Kernels before 5.1 lack the latter.
    fn seal(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let size = SealFlags::SHRINK | SealFlags::GROW;
        let all = size | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(file, all)
            .or_else(|_| rustix::fs::fcntl_add_seals(file, size | SealFlags::SEAL))?;
        Ok(())
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has this number of words, is aligned to a page, and lives as long as
        // `self`. It was zeroed, and any bytes are valid. The file is as long as the mapping and
        // sealed against shrinking. Nothing accesses it but through atomics.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.words) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let bytes = self.words * size_of::<u64>();
        // SAFETY: the mapping belongs to this value and has this length; references into it borrow
        // the value.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// The table of the process; it is never freed, because any thread may use it at any time.
static BOARD: AtomicPtr<Board> = AtomicPtr::new(ptr::null_mut());

/// Entry of a site; 0 for none.
pub(crate) type Entry = u32;

/// An entry of a table, as it is written.
pub(crate) struct Written<'a> {
    pub client: u32,
    pub serving: Serving,
    pub address: usize,
    pub class: usize,
    /// Name of the file and line, if the entry is new.
    pub name: Option<(&'a str, u32)>,
    /// Bytes of the last copy.
    pub bytes: Option<u64>,
    /// The state changed now.
    pub since_ns: Option<u64>,
    pub view: &'a View,
}

impl Board {
    /// Returns the table of this process; creates it if there is none. `None` if forks cannot be
    /// observed: a child would write to the table of its parent.
    pub fn of_process() -> Option<&'static Board> {
        fork::watch().ok()?;
        loop {
            let current = BOARD.load(Ordering::Acquire);
            // SAFETY: null, or a value that is never freed.
            if let Some(board) = unsafe { current.as_ref() }
                && board.is_own()
            {
                return Some(board);
            }
            let fresh = Box::into_raw(Box::new(Board::shared()));
            let ours = BOARD.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire);
            if ours.is_err() {
                // Another thread was faster.
                // SAFETY: made above, and nothing else has this pointer.
                drop(unsafe { Box::from_raw(fresh) });
                continue;
            }
            // SAFETY: made above; from now on it is never freed.
            let board = unsafe { &*fresh };
            return Some(board);
        }
    }

    /// A table that other processes can read, if the kernel gives a memfd.
    fn shared() -> Board {
        // Both numbers are valid.
        let count = words(SITES_MAX as u64, CHANGES_MAX as u64).unwrap_or(HEADER_WORDS);
        let memory = match Mapping::create(count) {
            Ok(mapping) => Memory::Shared(mapping),
            Err(_) => Memory::Private(zeroed(count)),
        };
        Board::begin(memory, std::process::id(), SITES_MAX, CHANGES_MAX)
    }

    /// A table in private memory, for `sites` sites and `changes` changes: to test readers.
    ///
    /// # Panics
    /// Panics if a number is 0, or above [`SITES_MAX`] or [`CHANGES_MAX`].
    pub fn private(pid: u32, sites: usize, changes: usize) -> Board {
        let count = words(sites as u64, changes as u64);
        let count = count.unwrap_or_else(|| panic!("{sites} sites, {changes} changes"));
        Board::begin(Memory::Private(zeroed(count)), pid, sites, changes)
    }

    /// A table in private memory with the content of a report, as far as there is room for it: to
    /// test readers.
    ///
    /// # Panics
    /// As for [`Board::private`].
    pub fn of_report(report: &Report, sites: usize, changes: usize) -> Board {
        let board = Board::private(report.pid, sites, changes);
        let header = [
            (header::OFF, report.off.map_or(0, |off| off as u64)),
            (header::CLIENTS, report.clients),
            (header::UNSHOWN, report.unshown),
            (header::CHANGED, report.changes_total),
        ];
        header.into_iter().for_each(|(at, word)| board.words()[at].store(word, Ordering::Relaxed));
        for site in &report.sites {
            let Some(entry) = board.acquire(site.client.max(1)) else { continue };
            let name = site.file.as_deref().unwrap_or_default();
            let written = Written {
                client: site.client,
                serving: site.serving,
                address: site.address as usize,
                class: site.class,
                name: Some((name, site.line)),
                bytes: None,
                since_ns: Some(site.since_ns),
                view: &site.view,
            };
            board.write(entry, &written);
            board.write_counts(entry, &site.counts);
        }
        report.changes.iter().for_each(|change| board.write_change(change));
        board
    }

    fn write_counts(&self, entry: Entry, counts: &Counts) {
        let Some(words) = self.entry(entry) else { return };
        let counts = [
            (site::AT_ONCE, counts.at_once),
            (site::AT_ONCE_BYTES, counts.at_once_bytes),
            (site::QUEUED, counts.queued),
            (site::QUEUED_BYTES, counts.queued_bytes),
            (site::FULL, counts.full),
            (site::UNREACHABLE, counts.unreachable),
        ];
        counts.into_iter().for_each(|(at, word)| words[at].store(word, Ordering::Relaxed));
    }

    fn begin(memory: Memory, pid: u32, sites: usize, changes: usize) -> Board {
        let board = Board { memory, sites, changes, born: fork::generation() };
        let header = [
            (header::VERSION, VERSION),
            (header::PID, pid.into()),
            (header::SITES, sites as u64),
            (header::CHANGES, changes as u64),
        ];
        header.into_iter().for_each(|(at, word)| board.words()[at].store(word, Ordering::Relaxed));
        // Last: a reader that sees it sees the rest.
        board.words()[header::MAGIC].store(MAGIC, Ordering::Release);
        board
    }

    fn words(&self) -> &[AtomicU64] {
        match &self.memory {
            Memory::Shared(mapping) => mapping.words(),
            Memory::Private(words) => words,
        }
    }

    /// Returns true if this process made the table. A child must not write to that of its parent.
    pub(crate) fn is_own(&self) -> bool {
        self.born == fork::generation()
    }

    /// Numbers a new client, from 1.
    pub(crate) fn new_client(&self) -> u32 {
        let number = self.words()[header::CLIENTS].fetch_add(1, Ordering::Relaxed);
        (number as u32).wrapping_add(1).max(1)
    }

    /// Notes that the process has no service, or has one again.
    pub(crate) fn set_off(&self, off: Option<Off>) {
        self.words()[header::OFF].store(off.map_or(0, |off| off as u64), Ordering::Relaxed);
    }

    /// Takes a free entry for a client; none if there is none.
    pub(crate) fn acquire(&self, client: u32) -> Option<Entry> {
        let free = (0..self.sites).find(|number| {
            let owner = &self.words()[site_at(*number) + site::CLIENT];
            // The entry may still have the words of another site.
            let begin = |_| self.begin_site(*number);
            owner.load(Ordering::Relaxed) == 0
                && owner
                    .compare_exchange(0, client.into(), Ordering::Acquire, Ordering::Relaxed)
                    .map(begin)
                    .is_ok()
        });
        if free.is_none() {
            self.words()[header::UNSHOWN].fetch_add(1, Ordering::Relaxed);
        }
        free.map(|number| number as Entry + 1)
    }

    /// Clears an entry. It counts as changing until it is written.
    fn begin_site(&self, number: usize) {
        let words = &self.words()[site_at(number)..][..SITE_WORDS];
        let sequence = words[site::SEQUENCE].load(Ordering::Relaxed) | 1;
        words[site::SEQUENCE].store(sequence, Ordering::Relaxed);
        fence(Ordering::Release);
        words[site::ADDRESS..].iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    /// Frees an entry.
    pub(crate) fn release(&self, entry: Entry) {
        if let Some(words) = self.entry(entry) {
            words[site::CLIENT].store(0, Ordering::Release);
        }
    }

    fn entry(&self, entry: Entry) -> Option<&[AtomicU64]> {
        let number = (entry as usize).checked_sub(1).filter(|number| *number < self.sites)?;
        Some(&self.words()[site_at(number)..][..SITE_WORDS])
    }

    /// Writes an entry.
    pub(crate) fn write(&self, entry: Entry, written: &Written<'_>) {
        let Some(words) = self.entry(entry) else { return };
        let set = |at: usize, word: u64| words[at].store(word, Ordering::Relaxed);
        let sequence = words[site::SEQUENCE].load(Ordering::Relaxed) | 1;
        set(site::SEQUENCE, sequence);
        fence(Ordering::Release);
        let view = written.view;
        let kind =
            [written.class as u8, view.state.code(), view.cause.code(), written.serving as u8];
        set(site::ADDRESS, written.address as u64);
        set(site::KIND, u32::from_le_bytes(kind).into());
        let old = words[site::LINE_RUNS].load(Ordering::Relaxed) as u32;
        let line = written.name.map_or(old, |(_, line)| line);
        set(site::LINE_RUNS, pair(line, view.runs.into()));
        set(site::WAIT_FORECAST, floats(view.wait_ns.max(0.0), view.forecast_ns.max(0.0)));
        set(site::ALLOWANCE, floats(view.allowance_ns, 0.0));
        set(site::LOST, view.lost_ns.to_bits());
        let recents = [view.copy, view.inline, view.window, view.base, view.submit];
        let samples = recents.iter().flat_map(|recent| {
            let words = recent.to_words();
            [0, 2, 4, 6, 8].map(|at| pair(words[at], words[at + 1]))
        });
        samples.zip(site::SAMPLES..).for_each(|(word, at)| set(at, word));
        written.bytes.iter().for_each(|bytes| set(site::BYTES, *bytes));
        written.since_ns.iter().for_each(|since| set(site::SINCE, *since));
        if let Some((name, _)) = written.name {
            name_words(name).zip(site::NAME..).for_each(|(word, at)| set(at, word));
        }
        words[site::SEQUENCE].store(sequence.wrapping_add(1), Ordering::Release);
    }

    /// Counts copies of the length that was decided about last.
    pub(crate) fn count(&self, entry: Entry, is_queued: bool, copies: u64) {
        let Some(words) = self.entry(entry) else { return };
        let bytes = words[site::BYTES].load(Ordering::Relaxed).wrapping_mul(copies);
        let (count, sum) = match is_queued {
            true => (site::QUEUED, site::QUEUED_BYTES),
            false => (site::AT_ONCE, site::AT_ONCE_BYTES),
        };
        words[count].fetch_add(copies, Ordering::Relaxed);
        words[sum].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a copy that was to be queued, and could not be.
    pub(crate) fn count_unqueued(&self, entry: Entry, is_reachable: bool) {
        let Some(words) = self.entry(entry) else { return };
        let at = if is_reachable { site::FULL } else { site::UNREACHABLE };
        words[at].fetch_add(1, Ordering::Relaxed);
    }

    /// Notes a change of the state of a site.
    pub(crate) fn note_change(&self, from: State, at_ns: u64, now: &Written<'_>) {
        let view = now.view;
        self.write_change(&Change {
            number: self.words()[header::CHANGED].fetch_add(1, Ordering::Relaxed),
            at_ns,
            client: now.client,
            address: now.address as u64,
            class: now.class,
            from,
            to: view.state,
            cause: view.cause,
            inline_ns: view.inline.median().unwrap_or(0.0),
            queued_ns: view.queued_ns().unwrap_or(view.forecast_ns),
            window_ns: view.window_ns().unwrap_or(0.0),
            allowance_ns: view.allowance_ns,
        });
    }

    fn write_change(&self, change: &Change) {
        let entry = (change.number % self.changes as u64) as usize;
        let words = &self.words()[change_at(self.sites, entry)..][..CHANGE_WORDS];
        let old = words[change::SEQUENCE].load(Ordering::Relaxed);
        let done = written(change.number);
        // Another thread may still be writing an older change there: then this one is lost.
        let begins = old.is_multiple_of(2)
            && words[change::SEQUENCE]
                .compare_exchange(old, done - 1, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if !begins {
            return;
        }
        fence(Ordering::Release);
        let set = |at: usize, word: u64| words[at].store(word, Ordering::Relaxed);
        let kind = [change.class as u8, change.from.code(), change.to.code(), change.cause.code()];
        set(change::AT, change.at_ns);
        set(change::CLIENT, change.client.into());
        set(change::ADDRESS, change.address);
        set(change::KIND, u32::from_le_bytes(kind).into());
        set(change::TIMES, floats(change.inline_ns.max(0.0), change.queued_ns.max(0.0)));
        set(change::WINDOW_ALLOWANCE, floats(change.window_ns.max(0.0), change.allowance_ns));
        words[change::SEQUENCE].store(done, Ordering::Release);
    }

    /// Copies the table. Entries that change meanwhile are marked as changing.
    pub fn image(&self) -> Vec<u8> {
        let read = || {
            fence(Ordering::SeqCst);
            let bytes =
                self.words().iter().flat_map(|word| word.load(Ordering::Acquire).to_ne_bytes());
            Ok::<Vec<u8>, std::convert::Infallible>(bytes.collect())
        };
        match settled(read) {
            Ok(image) => image,
            Err(never) => match never {},
        }
    }

    /// The file in which other processes find the table; `None` if it is private.
    pub fn file(&self) -> Option<File> {
        let Memory::Shared(mapping) = &self.memory else { return None };
        mapping.file.as_ref()?.as_fd().try_clone_to_owned().ok().map(File::from)
    }
}

fn zeroed(words: usize) -> Box<[AtomicU64]> {
    std::iter::repeat_with(AtomicU64::default).take(words).collect()
}

/// The end of a name in words, without control characters.
fn name_words(name: &str) -> impl Iterator<Item = u64> {
    let plain: String =
        name.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect();
    let excess = plain.len().saturating_sub(8 * site::NAME_WORDS);
    let start = (excess..=plain.len()).find(|at| plain.is_char_boundary(*at)).unwrap_or(0);
    let mut bytes = [0; 8 * site::NAME_WORDS];
    let end = &plain.as_bytes()[start..];
    bytes[..end.len()].copy_from_slice(end);
    let words: Vec<u64> =
        bytes.as_chunks::<8>().0.iter().map(|it| u64::from_le_bytes(*it)).collect();
    words.into_iter()
}
