//! Report on the call sites of a process.

use unlade_copy_scheduler::admit::{Cause, State, View};

/// Report on the call sites of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The process, in its own namespace.
    pub pid: u32,
    /// Set if the process has no service.
    pub off: Option<Off>,
    /// Number of clients (queues) that the process made so far.
    pub clients: u64,
    /// The sites, those with most bytes first.
    pub sites: Vec<Site>,
    /// The last changes of states, oldest first.
    pub changes: Vec<Change>,
    /// Number of changes so far, of which the last are kept.
    pub changes_total: u64,
    /// Number of sites for which the table had no room.
    pub unshown: u64,
    /// Number of entries that were being written.
    pub unsettled: u64,
}

/// Reason why a process has no service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Off {
    /// The program or its user has switched it off.
    Disabled = 1,
    /// It did not start.
    Failed = 2,
}

/// Service of a site's client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Serving {
    /// Threads of the process.
    #[default]
    Threads = 0,
    /// A daemon, `unlade copyd`.
    Daemon = 1,
}

/// Counts of a site, in copies and bytes; see the module for their precision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Copies that were made at once.
    pub at_once: u64,
    /// Their bytes, about.
    pub at_once_bytes: u64,
    /// Copies for which queueing was chosen.
    pub queued: u64,
    /// Their bytes, about.
    pub queued_bytes: u64,
    /// Of these, copies that found the queue full and were made at once.
    pub full: u64,
    /// Of these, copies of memory that the service cannot access, which were made at once.
    pub unreachable: u64,
}

/// A call site, for one class of lengths.
#[derive(Clone, Debug, PartialEq)]
pub struct Site {
    /// Number of the client whose copies these are.
    pub client: u32,
    /// Its service.
    pub serving: Serving,
    /// Address that identifies the site; 0 if the program does not name it.
    pub address: u64,
    /// Source file, or its end, where it is known.
    pub file: Option<String>,
    /// Line in the file; 0 without one.
    pub line: u32,
    /// Class of lengths; see [`Site::lengths`].
    pub class: usize,
    /// Since when the site has its state, in nanoseconds of CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// Copies and bytes.
    pub counts: Counts,
    /// State, cause and measurements.
    pub view: View,
}

/// A change of a site's state.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Number of the change in its process, from 0.
    pub number: u64,
    /// Time of the change, in nanoseconds of CLOCK_MONOTONIC.
    pub at_ns: u64,
    /// Number of the client.
    pub client: u32,
    /// Address of the site.
    pub address: u64,
    /// Class of lengths.
    pub class: usize,
    /// State before.
    pub from: State,
    /// State since then.
    pub to: State,
    /// Cause of the new state.
    pub cause: Cause,
    /// Time of a copy at once, in nanoseconds; 0 if it was not measured yet.
    pub inline_ns: f32,
    /// Time of a queued copy in nanoseconds, as measured; expected before a trial.
    pub queued_ns: f32,
    /// The window that counted, in nanoseconds; 0 if none was measured.
    pub window_ns: f32,
    /// Time that could still be lost, in nanoseconds.
    pub allowance_ns: f32,
}

impl Report {
    /// A report without sites.
    pub fn empty(pid: u32) -> Report {
        Report {
            pid,
            off: None,
            clients: 0,
            sites: Vec::new(),
            changes: Vec::new(),
            changes_total: 0,
            unshown: 0,
            unsettled: 0,
        }
    }

    /// The site of a change; that of another client with the same place if its own client has ended.
    pub fn site_of(&self, change: &Change) -> Option<&Site> {
        let is_its = |site: &&Site| (site.client, site.address) == (change.client, change.address);
        let mut sites = self.sites.iter().filter(is_its);
        let class = sites.clone().find(|site| site.class == change.class);
        let its_place = || self.sites.iter().find(|site| site.address == change.address);
        class.or_else(|| sites.next()).or_else(its_place)
    }
}

impl Site {
    /// Lengths of the class in bytes: the shortest one, and the first one that is longer; none for
    /// the last class, which has no end.
    pub fn lengths(&self) -> (u64, Option<u64>) {
        unlade_copy_scheduler::admit::lengths_of(self.class)
    }

    /// Part of the copies for which queueing was chosen, 0 to 1.
    pub fn queued_part(&self) -> f64 {
        let all = self.counts.at_once.saturating_add(self.counts.queued);
        if all == 0 { 0.0 } else { self.counts.queued as f64 / all as f64 }
    }
}

impl Off {
    pub(super) fn from_code(code: u64) -> Option<Option<Off>> {
        match code {
            0 => Some(None),
            1 => Some(Some(Off::Disabled)),
            2 => Some(Some(Off::Failed)),
            _ => None,
        }
    }
}

impl Serving {
    pub(super) fn from_code(code: u8) -> Option<Serving> {
        match code {
            0 => Some(Serving::Threads),
            1 => Some(Serving::Daemon),
            _ => None,
        }
    }
}
