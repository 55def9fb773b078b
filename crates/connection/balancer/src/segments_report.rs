//! Counts of the programs that translate spliced connections, as metrics.

use unlade_metrics::{Event, Treatment};
use unlade_steering::splice::SpliceCounts;

use crate::worker::Worker;

/// Counts that the meter has already. The programs are one set for all workers, so one worker reports.
#[derive(Debug, Default)]
pub(crate) struct SegmentsReport {
    counted: SpliceCounts,
}

impl SegmentsReport {
    /// Adds the segments since the last call to the worker's meter.
    pub(crate) fn report(&mut self, worker: &Worker) {
        let plan = worker.plan();
        let Some(splicing) = &plan.splicing else { return };
        let now = match splicing.counts() {
            Ok(now) => now,
            Err(error) => return tracing::debug!(%error, "no counts of segments"),
        };
        let old = std::mem::replace(&mut self.counted, now);
        for (treatment, now, old) in [
            (Treatment::Acknowledged, now.acks, old.acks),
            (Treatment::Forwarded, now.forwarded, old.forwarded),
            (Treatment::Dropped, now.dropped + now.unsent, old.dropped + old.unsent),
            (Treatment::Refused, now.refused, old.refused),
            (Treatment::Corrupt, now.corrupt, old.corrupt),
        ] {
            let event = Event::DirectReturnSegments(treatment);
            worker.meter.add_n(event, now.saturating_sub(old));
        }
    }
}
