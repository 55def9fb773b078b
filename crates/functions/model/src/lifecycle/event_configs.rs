//! The event invoke configurations of a function.

use super::{EventConfig, EventConfigChange, Qualifier, Record, Version};
use crate::lambda::Refusal;

/// Most retries after an error of the function, as in Lambda.
pub const RETRIES_MAX: u32 = 2;
/// Shortest and longest age up to which an event is tried, in seconds, as in Lambda.
pub const AGES_S: std::ops::RangeInclusive<u32> = 60..=21_600;

/// The key of a qualifier: no qualifier is `$LATEST`.
fn key(qualifier: Option<&Qualifier>) -> String {
    qualifier.map_or_else(|| Version::Latest.to_string(), ToString::to_string)
}

impl Record {
    /// The configuration of a qualifier.
    ///
    /// # Errors
    /// There is none, or there is no such version or alias.
    pub fn event_config(&self, qualifier: Option<&Qualifier>) -> Result<&EventConfig, Refusal> {
        self.resolve(qualifier)?;
        let key = key(qualifier);
        let absent =
            || Refusal::Absent(format!("The function {key} doesn't have an EventInvokeConfig"));
        self.event_configs.get(&key).ok_or_else(absent)
    }

    /// Replaces the configuration of a qualifier, or changes it.
    ///
    /// # Errors
    /// A value is out of its range, no value is given, there is no such version or alias, or there is
    /// no configuration to change.
    pub fn configure_events(
        &mut self,
        qualifier: Option<&Qualifier>,
        change: EventConfigChange,
        replace: bool,
        modified_ms: u64,
    ) -> Result<(), Refusal> {
        let wrong = |why: &str| Err(Refusal::Parameter(why.to_owned()));
        if change == EventConfigChange::default() {
            return wrong("You must specify at least one option");
        }
        if change.retries.is_some_and(|retries| retries > RETRIES_MAX) {
            return wrong("MaximumRetryAttempts must be from 0 to 2");
        }
        if change.age_s.is_some_and(|age_s| !AGES_S.contains(&age_s)) {
            return wrong("MaximumEventAgeInSeconds must be from 60 to 21600");
        }
        let mut config = match replace {
            true => {
                self.resolve(qualifier)?;
                EventConfig::default()
            }
            false => self.event_config(qualifier)?.clone(),
        };
        config.retries = change.retries.or(config.retries);
        config.age_s = change.age_s.or(config.age_s);
        config.on_success = change.on_success.unwrap_or(config.on_success);
        config.on_failure = change.on_failure.unwrap_or(config.on_failure);
        config.modified_ms = modified_ms;
        self.event_configs.insert(key(qualifier), config);
        Ok(())
    }

    /// Removes the configuration of a qualifier.
    ///
    /// # Errors
    /// There is none, or there is no such version or alias.
    pub fn unconfigure_events(&mut self, qualifier: Option<&Qualifier>) -> Result<(), Refusal> {
        self.event_config(qualifier)?;
        self.event_configs.remove(&key(qualifier));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::Target;
    use crate::lifecycle::event_config::AGE_MAX;
    use crate::lifecycle::tests::{edition, number, record};

    fn queue() -> Target {
        Target::parse("arn:aws:sqs:us-east-1:123456789012:q").unwrap()
    }

    #[test]
    fn a_configuration_is_replaced_changed_and_removed() {
        let mut record = record();
        let change = EventConfigChange { retries: Some(1), ..EventConfigChange::default() };
        let absent = record.configure_events(None, change.clone(), false, 1).unwrap_err();
        assert_eq!(absent.status(), 404);
        record.configure_events(None, change, true, 1).unwrap();
        let own = record.event_config(None).unwrap();
        assert_eq!((own.retries(), own.age_max()), (1, AGE_MAX));
        let to = EventConfigChange {
            age_s: Some(60),
            on_failure: Some(Some(queue())),
            ..EventConfigChange::default()
        };
        record.configure_events(None, to.clone(), false, 2).unwrap();
        let own = record.event_config(None).unwrap();
        assert_eq!((own.retries(), own.age_s, own.modified_ms), (1, Some(60), 2));
        assert_eq!(own.on_failure, Some(queue()));
        let off = EventConfigChange { on_failure: Some(None), ..EventConfigChange::default() };
        record.configure_events(None, off, false, 3).unwrap();
        assert_eq!(record.event_config(None).unwrap().on_failure, None);
        record.configure_events(None, to, true, 4).unwrap();
        assert_eq!(record.event_config(None).unwrap().retries, None, "replaced as a whole");
        assert_eq!(record.event_config(Some(&number(1))).unwrap_err().status(), 404);
        record.unconfigure_events(None).unwrap();
        assert_eq!(record.unconfigure_events(None).unwrap_err().status(), 404);
    }

    #[test]
    fn values_have_ranges_and_versions_take_their_configuration_with_them() {
        let mut record = record();
        for wrong in [
            EventConfigChange::default(),
            EventConfigChange { retries: Some(3), ..EventConfigChange::default() },
            EventConfigChange { age_s: Some(59), ..EventConfigChange::default() },
            EventConfigChange { age_s: Some(21_601), ..EventConfigChange::default() },
        ] {
            let refused = record.configure_events(None, wrong, true, 1).unwrap_err();
            assert_eq!(refused.status(), 400);
        }
        let change = EventConfigChange { retries: Some(0), ..EventConfigChange::default() };
        record.configure_events(Some(&number(1)), change.clone(), true, 1).unwrap();
        let absent = record.configure_events(Some(&number(9)), change, true, 1).unwrap_err();
        assert_eq!(absent.status(), 404);
        record.delete_version(&number(1)).unwrap();
        assert!(record.event_configs.is_empty());
        // A record of an earlier release has none.
        let mut text = serde_json::to_value(Record::new("t", edition(1))).unwrap();
        text.as_object_mut().unwrap().remove("event_configs");
        text.as_object_mut().unwrap().remove("sources");
        text["latest"].as_object_mut().unwrap().remove("dead_letter");
        let old: Record = serde_json::from_value(text).unwrap();
        assert_eq!(old, Record::new("t", edition(1)));
    }
}
