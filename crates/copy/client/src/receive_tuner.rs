//! Decides if the service should receive for an [`Inbound`](crate::Inbound). It compares whole
//! rounds: a round is the time from the first receive into the buffer until the buffer is emptied.
//! This includes the cost of reading bytes from another core's cache, which neither a receive nor
//! a sync shows.

use std::time::Instant;

use unlade_copy_scheduler::admit::{CallSite, Costs, QueuedTiming, Request, Verdict, class_of};

use crate::admission::nanos;

/// Times of rounds are scaled to this number of bytes.
const UNIT_BYTES: u64 = 64 << 10;
/// If the costs are known, or rounds cannot be measured, one round in this number is timed.
const SAMPLE_EVERY: u16 = 8;

/// Measurements of earlier rounds, and the current round.
#[derive(Debug, Default)]
pub(crate) struct ReceiveTuner {
    site: CallSite,
    /// How it is received; none between two rounds.
    way: Option<Verdict>,
    /// Start of the current round, if it is timed.
    began: Option<Instant>,
    bytes: usize,
    until_sample: u16,
}

impl ReceiveTuner {
    /// Decision for the next bytes; it does not change within a round. `can_queue` returns true if
    /// the service is awake. It is called only if it matters, since it reads another core's cache.
    #[inline]
    pub(crate) fn way(&mut self, can_queue: impl FnOnce() -> bool) -> Verdict {
        if let Some(way) = self.way {
            return way;
        }
        let way = if self.passes() || !can_queue() { Verdict::Inline } else { self.decide() };
        self.way = Some(way);
        way
    }

    /// Returns true if this round is synchronous without a new decision.
    fn passes(&mut self) -> bool {
        let passes = self.until_sample > 0 && self.usual() == Verdict::Inline;
        self.until_sample -= u16::from(passes);
        passes
    }

    fn decide(&mut self) -> Verdict {
        if self.until_sample > 0 {
            self.until_sample -= 1;
            return self.usual();
        }
        let (class, bytes) = (class_of(UNIT_BYTES), UNIT_BYTES);
        let request = Request { class, bytes, pending_bytes: 0, is_awake: true, run: SAMPLE_EVERY };
        let choice = self.site.decide(&Costs::default(), &request);
        self.until_sample = choice.copies;
        self.began = Some(Instant::now());
        choice.verdict
    }

    /// The usually better decision; synchronous while that is unknown.
    pub(crate) fn usual(&self) -> Verdict {
        self.site.usual(class_of(UNIT_BYTES)).unwrap_or_default()
    }

    /// Returns true if the round is timed.
    #[inline]
    pub(crate) fn is_timed(&self) -> bool {
        self.began.is_some()
    }

    /// Adds bytes that were received or queued.
    #[inline]
    pub(crate) fn received(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Stops timing the round, and the next ones: they measure mainly the peer.
    #[cold]
    pub(crate) fn spoil(&mut self) {
        self.began = None;
        self.until_sample = SAMPLE_EVERY - 1;
    }

    /// Ends a round, when its bytes were used. A round of fewer than `worth_bytes` is not
    /// measured.
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
        let class = class_of(UNIT_BYTES);
        match way {
            Verdict::Inline => {
                self.site.observe_inline(class, UNIT_BYTES, unit_ns, None);
                // A round is measured as a whole: the program does not wait for the service apart.
                self.site.observe_window(class, u32::MAX);
            }
            Verdict::Queue => {
                // It is all in one figure, and nothing of it was a window.
                let seen = QueuedTiming {
                    submit_ns: unit_ns,
                    window_ns: u32::MAX,
                    wait_ns: 0,
                    line_ns: Some(0.0),
                };
                self.site.observe_queued(class, UNIT_BYTES, true, &seen);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds of many lengths, with the given nanoseconds for 64 KiB. Returns how many of the
    /// later rounds were queued.
    fn queued(at_once_ns: u32, queued_ns: u32) -> usize {
        let mut tuner = ReceiveTuner::default();
        let mut queued = 0;
        for round in 0..20_000 {
            let way = tuner.way(|| true);
            queued += usize::from(round >= 10_000 && way == Verdict::Queue);
            if tuner.is_timed() {
                let bytes = 20_000 + round * 7919 % 100_000;
                let unit_ns = if way == Verdict::Queue { queued_ns } else { at_once_ns };
                let took = u64::from(unit_ns) * bytes as u64 / UNIT_BYTES;
                tuner.learn(way, took as u32, bytes);
            }
            (tuner.way, tuner.began) = (None, None);
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
        let mut tuner = ReceiveTuner::default();
        for round in 0..1000 {
            assert_eq!(tuner.way(|| true), Verdict::Inline);
            tuner.received(1000);
            if tuner.is_timed() && round % 2 == 0 {
                tuner.spoil();
            }
            tuner.end(4000);
        }
        assert_eq!(tuner.site.usual(class_of(UNIT_BYTES)), None);
        // A sleeping service is not used, and a round does not change its decision.
        tuner.until_sample = 0;
        assert_eq!(tuner.way(|| false), Verdict::Inline);
        assert_eq!(tuner.way(|| unreachable!()), Verdict::Inline);
        assert!(!tuner.is_timed());
    }
}
