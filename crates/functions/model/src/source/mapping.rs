//! An event source mapping: the queue, and how its messages are taken.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::poller::Settings;
use crate::destination::{Kind, Target};
use crate::lambda::Refusal;
use crate::lifecycle::Qualifier;

/// Messages of a batch, where the mapping names no number.
const BATCH_SIZE: u32 = 10;
/// Most messages of a batch without a window, as in Lambda.
const BATCH_SIZE_MAX: u32 = 10;
/// Most messages of a batch with a window, as in Lambda.
const BATCH_SIZE_MAX_WINDOW: u32 = 10_000;
/// Longest window in seconds, as in Lambda.
const WINDOW_S_MAX: u32 = 300;
/// Smallest and largest maximum concurrency, as in Lambda.
const CONCURRENCIES: std::ops::RangeInclusive<u32> = 2..=1000;
/// Batches at a time, where the mapping names no number: Lambda's start.
const CONCURRENCY: u32 = 5;
/// Most bytes of the messages of a batch: an event, less its frame.
const BATCH_BYTES_MAX: usize = crate::lambda::EVENT_BYTES_MAX - 64;

/// See the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mapping {
    /// The queue.
    pub queue: Target,
    /// The version or alias that is invoked; `$LATEST` if absent.
    #[serde(default)]
    pub qualifier: Option<String>,
    /// Most messages of a batch.
    pub batch_size: u32,
    /// Longest wait for a full batch, in seconds.
    pub window_s: u32,
    /// True if messages are taken.
    pub enabled: bool,
    /// Most batches at a time.
    #[serde(default)]
    pub concurrency: Option<u32>,
    /// True if the function reports the messages that it could not handle.
    #[serde(default)]
    pub reports_failures: bool,
    /// The time of the last change, in milliseconds since the UNIX epoch.
    pub modified_ms: u64,
}

/// The parameters of a new or changed mapping. Absent ones stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MappingChange {
    /// Most messages of a batch.
    pub batch_size: Option<u32>,
    /// Longest wait for a full batch, in seconds.
    pub window_s: Option<u32>,
    /// True if messages are taken.
    pub enabled: Option<bool>,
    /// Most batches at a time; `Some(None)` removes the limit.
    pub concurrency: Option<Option<u32>>,
    /// True if the function reports the messages that it could not handle.
    pub reports_failures: Option<bool>,
    /// The version or alias that is invoked; `Some(None)` is `$LATEST`.
    pub qualifier: Option<Option<Qualifier>>,
}

impl Mapping {
    /// A mapping of a queue with the default values.
    ///
    /// # Errors
    /// The source is no queue.
    pub fn new(queue: Target) -> Result<Mapping, Refusal> {
        if queue.kind != Kind::Queue {
            let why = format!("EventSourceArn: {queue}: only queues of SQS are served as sources");
            return Err(Refusal::Parameter(why));
        }
        Ok(Mapping {
            queue,
            qualifier: None,
            batch_size: BATCH_SIZE,
            window_s: 0,
            enabled: true,
            concurrency: None,
            reports_failures: false,
            modified_ms: 0,
        })
    }

    /// The mapping with changes.
    ///
    /// # Errors
    /// A value is out of its range.
    pub fn changed(&self, change: MappingChange, modified_ms: u64) -> Result<Mapping, Refusal> {
        let mut own = self.clone();
        own.batch_size = change.batch_size.unwrap_or(own.batch_size);
        own.window_s = change.window_s.unwrap_or(own.window_s);
        own.enabled = change.enabled.unwrap_or(own.enabled);
        own.concurrency = change.concurrency.unwrap_or(own.concurrency);
        own.reports_failures = change.reports_failures.unwrap_or(own.reports_failures);
        if let Some(qualifier) = change.qualifier {
            own.qualifier = qualifier.map(|qualifier| qualifier.to_string());
        }
        own.modified_ms = modified_ms;
        let wrong = |why: String| Err(Refusal::Parameter(why));
        if own.window_s > WINDOW_S_MAX {
            return wrong(format!("MaximumBatchingWindowInSeconds: {WINDOW_S_MAX} at most"));
        }
        let largest = if own.window_s > 0 { BATCH_SIZE_MAX_WINDOW } else { BATCH_SIZE_MAX };
        if !(1..=largest).contains(&own.batch_size) {
            let why = format!(
                "BatchSize: from 1 to {largest}; more than {BATCH_SIZE_MAX} need a \
                 MaximumBatchingWindowInSeconds of 1 at least"
            );
            return wrong(why);
        }
        if own.concurrency.is_some_and(|most| !CONCURRENCIES.contains(&most)) {
            return wrong("ScalingConfig.MaximumConcurrency: from 2 to 1000".to_owned());
        }
        Ok(own)
    }

    /// The settings of its poller.
    pub fn settings(&self) -> Settings {
        Settings {
            batch_size: self.batch_size as usize,
            window: Duration::from_secs(u64::from(self.window_s)),
            concurrency: self.concurrency.unwrap_or(CONCURRENCY) as usize,
            bytes_max: BATCH_BYTES_MAX,
        }
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn values_have_ranges() {
        let queue = Target::parse("arn:aws:sqs:us-east-1:123456789012:q").unwrap();
        let own = Mapping::new(queue).unwrap();
        let settings = own.settings();
        assert_eq!((settings.batch_size, settings.concurrency), (10, 5));
        let with = |batch, window, most| MappingChange {
            batch_size: Some(batch),
            window_s: Some(window),
            concurrency: Some(most),
            ..MappingChange::default()
        };
        for fine in [with(1, 0, None), with(10_000, 1, Some(2)), with(10, 300, Some(1000))] {
            own.changed(fine, 1).unwrap();
        }
        for wrong in [
            with(0, 0, None),
            with(11, 0, None),
            with(10_001, 1, None),
            with(1, 301, None),
            with(1, 0, Some(1)),
            with(1, 0, Some(1001)),
        ] {
            assert_eq!(own.changed(wrong, 1).unwrap_err().status(), 400);
        }
        let topic = Target::parse("arn:aws:sns:us-east-1:123456789012:t").unwrap();
        assert_eq!(Mapping::new(topic).unwrap_err().status(), 400);
    }
}
