//! Counters of the process.

use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicU64, Ordering};

/// Copies made by `rep movsb`, and their bytes.
pub const COPIES_REP: usize = 0;
/// Bytes of copies made by `rep movsb`.
pub const COPIED_REP_BYTES: usize = 1;
/// Finished contests of loops.
pub const LOOP_CONTESTS: usize = 2;
/// Contests that `rep movsb` has won.
pub const LOOP_CONTESTS_WON: usize = 3;
/// Moves of received bytes down over a header.
pub const SHIFTS: usize = 4;
/// Shortened reads.
pub const READS_SHORTENED: usize = 5;
/// Bytes that were read to their place behind a shortened read.
pub const PLACED_BYTES: usize = 6;
/// Finished contests of shortened reads.
pub const READ_CONTESTS: usize = 7;
/// Contests that shortened reads have won.
pub const READ_CONTESTS_WON: usize = 8;
/// Reads that were not shortened because the descriptor is no stream socket.
pub const NOT_STREAM: usize = 9;
/// Calls that asked for edge-triggered events: reads are not shortened from then on.
pub const EDGE_TRIGGERED: usize = 10;
/// Calls that set SO_RCVLOWAT: reads are not shortened from then on.
pub const LOW_WATER_MARKS: usize = 11;
/// Descriptors that are too high for the table.
pub const DESCRIPTORS_REFUSED: usize = 12;
/// Calls at sites for which the table has no place.
pub const SITES_REFUSED: usize = 13;

/// Sum of the median ratios of contests of loops, in 1/1000.
pub const LOOP_RATIOS_PERMILLE: usize = 14;
/// Sum of the median ratios of contests of shortened reads, in 1/1000.
pub const READ_RATIOS_PERMILLE: usize = 15;

/// Names, in the order of the numbers above.
pub const NAMES: [&str; 16] = [
    "copies_rep",
    "copied_rep_bytes",
    "loop_contests",
    "loop_contests_won",
    "shifts",
    "reads_shortened",
    "placed_bytes",
    "read_contests",
    "read_contests_won",
    "not_stream",
    "edge_triggered",
    "low_water_marks",
    "descriptors_refused",
    "sites_refused",
    "loop_ratios_permille",
    "read_ratios_permille",
];

static VALUES: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];

/// Adds to a counter.
pub fn add(counter: usize, amount: u64) {
    VALUES[counter].fetch_add(amount, Ordering::Relaxed);
}

/// Value of a counter.
pub fn get(counter: usize) -> u64 {
    VALUES[counter].load(Ordering::Relaxed)
}

/// Value of the counter with this name; `u64::MAX` if there is none.
///
/// # Safety
/// `name` is a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn unlade_preload_counter(name: *const c_char) -> u64 {
    // SAFETY: guaranteed by the caller.
    let name = unsafe { CStr::from_ptr(name) };
    let counter = NAMES.iter().position(|known| known.as_bytes() == name.to_bytes());
    counter.map_or(u64::MAX, get)
}

/// All counters as text, `NAME VALUE` a line.
pub fn text() -> String {
    let lines = NAMES.iter().enumerate();
    lines.map(|(counter, name)| format!("unlade_preload_{name} {}\n", get(counter))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name() {
        add(SHIFTS, 3);
        // SAFETY: both are C strings.
        let (known, unknown) = unsafe {
            (unlade_preload_counter(c"shifts".as_ptr()), unlade_preload_counter(c"x".as_ptr()))
        };
        assert!(known >= 3 && known != u64::MAX);
        assert_eq!(unknown, u64::MAX);
        assert_eq!(text().lines().count(), NAMES.len());
    }
}
