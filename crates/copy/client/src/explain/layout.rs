//! Layout of a table of call sites: words of 64 bits in the order of the machine. A header, the
//! sites, and a ring of changes.
//!
//! The first word of a site and of a change is its sequence number. It is odd during a change of
//! the others, and a reader ignores those that it saw changing.

/// Name of the memfd.
pub const MEMFD_NAME: &str = "unlade-copy-why";
/// First word of a table.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"unladwhy");
/// Version of the layout.
pub(super) const VERSION: u64 = 1;

/// Maximum number of sites of a process, each with one class of lengths.
pub const SITES_MAX: usize = 1024;
/// Maximum number of changes that are kept.
pub const CHANGES_MAX: usize = 256;

pub(super) const HEADER_WORDS: usize = 16;
pub(super) const SITE_WORDS: usize = 64;
pub(super) const CHANGE_WORDS: usize = 8;

/// Words of the header.
pub(super) mod header {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 1;
    /// The process, in its own namespace.
    pub const PID: usize = 2;
    /// Number of sites that there is room for.
    pub const SITES: usize = 3;
    /// Number of changes that there is room for.
    pub const CHANGES: usize = 4;
    /// Number of changes so far.
    pub const CHANGED: usize = 5;
    /// Number of sites for which there was no room.
    pub const UNSHOWN: usize = 6;
    /// Why there is no service; 0 if there is one.
    pub const OFF: usize = 7;
    /// Number of clients so far.
    pub const CLIENTS: usize = 8;
}

/// Words of a site. Those from `AT_ONCE` to `UNREACHABLE` change at any time.
pub(super) mod site {
    pub const SEQUENCE: usize = 0;
    /// Number of the client; 0 if the entry is free.
    pub const CLIENT: usize = 1;
    pub const ADDRESS: usize = 2;
    /// Class, state, cause, serving.
    pub const KIND: usize = 3;
    /// Line, runs.
    pub const LINE_RUNS: usize = 4;
    /// Since when the site has its state, in nanoseconds of the monotonic clock.
    pub const SINCE: usize = 5;
    pub const WAIT_FORECAST: usize = 6;
    pub const ALLOWANCE: usize = 7;
    pub const LOST: usize = 8;
    /// Five times ten half words.
    pub const SAMPLES: usize = 9;
    /// Bytes of the last copy that was decided about.
    pub const BYTES: usize = 34;
    pub const AT_ONCE: usize = 36;
    pub const AT_ONCE_BYTES: usize = 37;
    pub const QUEUED: usize = 38;
    pub const QUEUED_BYTES: usize = 39;
    /// Copies that found the queue full.
    pub const FULL: usize = 40;
    /// Copies whose memory the service cannot access.
    pub const UNREACHABLE: usize = 41;
    pub const NAME: usize = 44;
    pub const NAME_WORDS: usize = 20;
}

/// Words of a change.
pub(super) mod change {
    pub const SEQUENCE: usize = 0;
    /// Nanoseconds of the monotonic clock.
    pub const AT: usize = 1;
    pub const CLIENT: usize = 2;
    pub const ADDRESS: usize = 3;
    /// Class, from, to, cause.
    pub const KIND: usize = 4;
    /// Time of a copy at once, and of a queued one.
    pub const TIMES: usize = 5;
    pub const WINDOW_ALLOWANCE: usize = 6;
}

/// Number of words of a table; `None` if its numbers are not valid.
pub(super) fn words(sites: u64, changes: u64) -> Option<usize> {
    let sites = usize::try_from(sites).ok().filter(|sites| (1..=SITES_MAX).contains(sites))?;
    let changes =
        usize::try_from(changes).ok().filter(|changes| (1..=CHANGES_MAX).contains(changes))?;
    Some(HEADER_WORDS + sites * SITE_WORDS + changes * CHANGE_WORDS)
}

/// First word of a site.
pub(super) fn site_at(number: usize) -> usize {
    HEADER_WORDS + number * SITE_WORDS
}

/// First word of a change's entry.
pub(super) fn change_at(sites: usize, number: usize) -> usize {
    site_at(sites) + number * CHANGE_WORDS
}

/// Sequence number of the change with this number, once it is written.
pub(super) fn written(number: u64) -> u64 {
    number.wrapping_mul(2).wrapping_add(2)
}

pub(super) fn pair(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

pub(super) fn halves(word: u64) -> [u32; 2] {
    [word as u32, (word >> 32) as u32]
}

pub(super) fn floats(low: f32, high: f32) -> u64 {
    pair(low.to_bits(), high.to_bits())
}
