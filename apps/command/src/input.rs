//! Standard input as a sign of life: the process that started this program holds the other end.

use std::io::Read;

/// Waits until standard input ends: the process that started this program closes it, or is gone.
pub fn wait_for_end() {
    let mut input = std::io::stdin().lock();
    let mut ignored = [0; 256];
    // An error is an end, too.
    while input.read(&mut ignored).is_ok_and(|bytes| bytes > 0) {}
}
