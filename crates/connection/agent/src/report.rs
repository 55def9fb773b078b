//! Counts of the programs as metrics.

use unlade_metrics::{Event, Gauge, Meter, RuleResult};
use unlade_steering::SteerError;
use unlade_steering::direct::{DirectCounts, DirectReturn, SentDirectly};

/// Counts that a meter has already.
#[derive(Debug, Default)]
pub(crate) struct Reported {
    counts: DirectCounts,
    sent: SentDirectly,
}

impl Reported {
    /// Adds the events since the last call to the meter.
    pub(crate) fn add_to(
        &mut self,
        meter: &Meter,
        direct: &DirectReturn,
    ) -> Result<(), SteerError> {
        let (counts, sent) = (direct.counts()?, direct.sent_directly()?);
        let (old, old_sent) = (&self.counts, &self.sent);
        for (event, now, before) in [
            (Event::AgentRule(RuleResult::Taken), counts.taken, old.taken),
            (Event::AgentRule(RuleResult::Forged), counts.forged, old.forged),
            (Event::AgentRule(RuleResult::Full), counts.full, old.full),
            (Event::AgentRule(RuleResult::Old), counts.old, old.old),
            (Event::AgentSegments, sent.segments, old_sent.segments),
            (Event::AgentBytes, sent.bytes, old_sent.bytes),
        ] {
            meter.add_n(event, now.saturating_sub(before));
        }
        (self.counts, self.sent) = (counts, sent);
        meter.gauge_set(Gauge::AgentConnections, direct.flows()? as i64);
        Ok(())
    }
}
