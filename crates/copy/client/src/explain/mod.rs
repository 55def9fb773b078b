//! Explanations: why copies of a call site are queued, or made at once.
//!
//! Each process has a table of its call sites, in a memfd. The library writes to it where it
//! decides, never on the way of a copy whose decision is known. A reader opens the memfd through
//! `/proc/PID/fd`, so the kernel permits root and the process's own user, and nobody else. The
//! process does not take part: it may be busy, stopped, or hang.
//!
//! - [`of_this_process`] and [`of_process`] give a [`Report`];
//! - [`Site::reason`] and [`Change::reason`] are the explanation in words.
//!
//! Copies are counted when the decision for them has been used up, so a count lags by at most one
//! run of each thread (127 copies). Copies that are too short to be queued are only noted while
//! something else is pending, and at first; their number is a lower bound.

#[allow(unsafe_code)]
pub(crate) mod board;
mod decode;
pub(crate) mod explainer;
mod layout;
#[allow(unsafe_code)]
mod names;
mod peer;
mod reason;
mod report;
mod settle;
#[cfg(test)]
#[allow(unsafe_code)]
mod tests;

pub use board::Board;
pub use decode::{DecodeError, decode};
pub use explainer::note_off;
pub use layout::{CHANGES_MAX, MEMFD_NAME, SITES_MAX};
pub use names::SiteNames;
pub use peer::{ExplainError, of_process};
pub use reason::time_text;
pub use report::{Change, Counts, Off, Report, Serving, Site};
pub use unlade_copy_scheduler::admit::{Cause, State, View, lengths_of};

/// Returns a report on this process.
///
/// # Errors
/// [`DecodeError`]: a bug, or another process has changed the table.
pub fn of_this_process() -> Result<Report, DecodeError> {
    match Board::of_process() {
        Some(board) => decode(&board.image()),
        None => Ok(Report::empty(std::process::id())),
    }
}
