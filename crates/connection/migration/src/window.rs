//! Chooses the congestion window that a restored connection starts with.
//!
//! The kernel starts a restored connection from its initial window. The old owner's knowledge of
//! the path is still valid a moment later, and less valid the longer nothing was sent (RFC 9293
//! leaves it to RFC 5681 §4.1: after an idle RTO the window restarts).

use unlade_net::state::Congestion;

/// A window that was idle for longer than this is not restored, milliseconds.
pub const WINDOW_AGE_MS_MAX: u32 = 1000;
/// The largest window restored, segments: enough for 10 Gbit/s at 2 ms.
pub const WINDOW_SEGMENTS_MAX: u32 = 1800;
/// Windows up to the kernel's initial one need not be restored, segments (RFC 6928).
const INITIAL_WINDOW_SEGMENTS: u32 = 10;

/// Returns the segments to start with, if they differ from the kernel's own choice.
///
/// A connection with a known slow-start threshold has had a loss above it: it restarts at the
/// threshold at most, because the threshold itself cannot be restored without a ceiling.
pub fn window_to_restore(learnt: &Congestion) -> Option<u32> {
    if learnt.idle_ms > WINDOW_AGE_MS_MAX {
        return None;
    }
    let segments = learnt.cwnd_segments.min(learnt.ssthresh_segments).min(WINDOW_SEGMENTS_MAX);
    (segments > INITIAL_WINDOW_SEGMENTS).then_some(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learnt(cwnd_segments: u32, ssthresh_segments: u32, idle_ms: u32) -> Congestion {
        Congestion { cwnd_segments, ssthresh_segments, idle_ms, ..Congestion::default() }
    }

    #[test]
    fn only_fresh_and_useful_windows_are_restored() {
        let none_yet = u32::MAX / 2;
        assert_eq!(window_to_restore(&learnt(80, none_yet, 5)), Some(80));
        assert_eq!(window_to_restore(&learnt(80, 40, 5)), Some(40));
        assert_eq!(window_to_restore(&learnt(1_000_000, none_yet, 5)), Some(WINDOW_SEGMENTS_MAX));
        assert_eq!(window_to_restore(&learnt(80, none_yet, WINDOW_AGE_MS_MAX + 1)), None);
        assert_eq!(window_to_restore(&learnt(10, none_yet, 5)), None);
    }
}
