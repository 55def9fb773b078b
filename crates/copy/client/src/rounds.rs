//! Whether it pays to have the service receive for an [`Inbound`](crate::Inbound): from the first
//! receive into its buffer until that is emptied, whole rounds are compared. What the other core's
//! cache costs who reads is in there too, which neither the receive nor a sync would show.

use std::time::Instant;

use unlade_copy_scheduler::admit::{CallSite, Costs, QueuedTiming, Verdict};

use crate::site::nanos;

/// Rounds count by what they take for so many bytes.
const UNIT_BYTES: u64 = 64 << 10;
/// Of rounds of which enough is known, or that say nothing, one in so many is looked at.
const SAMPLE_EVERY: u8 = 8;

/// What was seen of earlier rounds, and the one that is under way.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    site: CallSite,
    /// How it is received; none between two rounds.
    way: Option<Verdict>,
    /// Where it is timed.
    began: Option<Instant>,
    bytes: usize,
    until_sample: u8,
}

impl Rounds {
    /// How the next bytes are to be received: all of a round in the same way. `can_queue`: whether
    /// the service is awake; that is not asked where it is known not to matter, for it is in
    /// another core's cache.
    #[inline]
    pub(crate) fn way(&mut self, can_queue: impl FnOnce() -> bool) -> Verdict {
        if let Some(way) = self.way {
            return way;
        }
        let way = if self.passes() || !can_queue() { Verdict::Inline } else { self.decide() };
        self.way = Some(way);
        way
    }

    /// Whether a round is received at once without further thought.
    fn passes(&mut self) -> bool {
        let passes = self.until_sample > 0 && self.usual() == Verdict::Inline;
        self.until_sample -= u8::from(passes);
        passes
    }

    fn decide(&mut self) -> Verdict {
        let way = self.site.decide(&Costs::default(), UNIT_BYTES, true, 0);
        if self.until_sample > 0 {
            self.until_sample -= 1;
            return way;
        }
        let is_known = self.site.usual(UNIT_BYTES, true).is_some();
        if is_known && !self.site.is_trying(UNIT_BYTES, true) {
            self.until_sample = SAMPLE_EVERY - 1;
        }
        self.began = Some(Instant::now());
        way
    }

    /// What is usually better; at once while that is not known.
    pub(crate) fn usual(&self) -> Verdict {
        self.site.usual(UNIT_BYTES, true).unwrap_or_default()
    }

    /// Whether the round is timed.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.began.is_some()
    }

    /// So many bytes more are there, or on their way.
    #[inline]
    pub(crate) fn received(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// The round says nothing: how long the peer takes is the same either way. The next ones may be
    /// like it.
    #[cold]
    pub(crate) fn spoil(&mut self) {
        self.began = None;
        self.until_sample = SAMPLE_EVERY - 1;
    }

    /// The bytes were used; a round of fewer than `worth_bytes` says nothing.
    #[inline]
    pub(crate) fn end(&mut self, worth_bytes: usize) {
        if let Some((way, began)) = self.way.zip(self.began.take()) {
            match self.bytes >= worth_bytes {
                true => self.learn(way, nanos(began), self.bytes),
                false => self.spoil(),
            }
        }
        (self.way, self.bytes) = (None, 0);
    }

    #[cold]
    fn learn(&mut self, way: Verdict, took_ns: u32, bytes: usize) {
        let unit_ns = u64::from(took_ns) * UNIT_BYTES / (bytes as u64).max(1);
        let unit_ns = u32::try_from(unit_ns).unwrap_or(u32::MAX);
        match way {
            Verdict::Inline => self.site.observe_inline(UNIT_BYTES, true, unit_ns, None),
            Verdict::Queue => {
                // It is all in one figure, and nothing of it was a window.
                let seen = QueuedTiming {
                    submit_ns: unit_ns,
                    window_ns: u32::MAX,
                    wait_ns: 0,
                    line_ns: Some(0.0),
                };
                self.site.observe_queued(&Costs::default(), UNIT_BYTES, true, &seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rounds of many lengths, at so many nanoseconds for 64 KiB; how many were queued at the end.
    fn queued(at_once_ns: u32, queued_ns: u32) -> usize {
        let mut rounds = Rounds::default();
        let mut queued = 0;
        for round in 0..20_000 {
            let way = rounds.way(|| true);
            queued += usize::from(round >= 10_000 && way == Verdict::Queue);
            if rounds.is_timed() {
                let bytes = 20_000 + round * 7919 % 100_000;
                let unit_ns = if way == Verdict::Queue { queued_ns } else { at_once_ns };
                let took = u64::from(unit_ns) * bytes as u64 / UNIT_BYTES;
                rounds.learn(way, took as u32, bytes);
            }
            (rounds.way, rounds.began) = (None, None);
        }
        queued
    }

    #[test]
    fn what_is_faster_as_a_whole_is_done_and_the_other_tried_ever_more_rarely() {
        assert!(queued(10_000, 8_000) > 9_900);
        assert!(queued(10_000, 10_000) < 100);
        assert!(queued(10_000, 30_000) < 100);
    }

    #[test]
    fn rounds_that_say_nothing_teach_nothing() {
        let mut rounds = Rounds::default();
        for round in 0..1000 {
            assert_eq!(rounds.way(|| true), Verdict::Inline);
            rounds.received(1000);
            if rounds.is_timed() && round % 2 == 0 {
                rounds.spoil();
            }
            rounds.end(4000);
        }
        assert_eq!(rounds.site.usual(UNIT_BYTES, true), None);
        // A service that sleeps is not counted on, and a round goes on as it began.
        rounds.until_sample = 0;
        assert_eq!(rounds.way(|| false), Verdict::Inline);
        assert_eq!(rounds.way(|| unreachable!()), Verdict::Inline);
        assert!(!rounds.is_timed());
    }
}
