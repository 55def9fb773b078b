//! `invocations_per_function_md.anon.dNN.csv`: number of invocations of each function per minute.

use crate::lines::{Reader, Row, RowError, TraceError};

/// Number of minutes in a day, and the maximum in a file. Excerpts have fewer.
pub const MINUTES_MAX: usize = 1440;

/// Trigger of a function, in the groups of the data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// HTTP request.
    Http,
    /// Timer.
    Timer,
    /// Event hub or event grid.
    Event,
    /// Queue or bus.
    Queue,
    /// Object or row in a store.
    Storage,
    /// Workflow.
    Orchestration,
    /// Any other trigger.
    Others,
}

impl Trigger {
    /// All triggers.
    pub const ALL: [Trigger; 7] = [
        Trigger::Http,
        Trigger::Timer,
        Trigger::Event,
        Trigger::Queue,
        Trigger::Storage,
        Trigger::Orchestration,
        Trigger::Others,
    ];

    /// Returns the name in files.
    pub fn name(self) -> &'static str {
        match self {
            Trigger::Http => "http",
            Trigger::Timer => "timer",
            Trigger::Event => "event",
            Trigger::Queue => "queue",
            Trigger::Storage => "storage",
            Trigger::Orchestration => "orchestration",
            Trigger::Others => "others",
        }
    }

    fn parse(text: &str) -> Option<Trigger> {
        Trigger::ALL.into_iter().find(|trigger| trigger.name() == text)
    }
}

/// One day of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invocations {
    /// Owner of the application.
    pub owner: String,
    /// The application.
    pub app: String,
    /// The function, within its application.
    pub function: String,
    /// The trigger.
    pub trigger: Trigger,
    /// Number of invocations in each minute.
    pub per_minute: Vec<u32>,
}

impl Invocations {
    /// Returns the total number of invocations.
    pub fn total(&self) -> u64 {
        self.per_minute.iter().copied().map(u64::from).sum()
    }
}

impl Row for Invocations {
    const COLUMNS: &'static [&'static str] = &["HashOwner", "HashApp", "HashFunction", "Trigger"];
    const NUMBERED_MAX: usize = MINUTES_MAX;

    fn read(reader: &mut Reader<'_, '_>) -> Result<Invocations, TraceError> {
        Ok(Invocations {
            owner: reader.name()?,
            app: reader.name()?,
            function: reader.name()?,
            trigger: reader.parsed(Trigger::parse, RowError::Trigger)?,
            per_minute: {
                let minutes = reader.columns() - Self::COLUMNS.len();
                (0..minutes).map(|_| reader.count()).collect::<Result<_, _>>()?
            },
        })
    }

    fn write(&self, out: &mut String) {
        out.push_str(&self.owner);
        for text in [self.app.as_str(), &self.function, self.trigger.name()] {
            out.push(',');
            out.push_str(text);
        }
        for count in &self.per_minute {
            out.push_str(&format!(",{count}"));
        }
    }

    fn numbered(&self) -> usize {
        self.per_minute.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lines::{Rows, write};

    #[test]
    fn a_day_of_a_function() {
        let header: String = (1..=MINUTES_MAX).map(|minute| format!(",{minute}")).collect();
        let counts: String = (0..MINUTES_MAX).map(|minute| format!(",{}", minute % 3)).collect();
        let text = format!(
            "HashOwner,HashApp,HashFunction,Trigger{header}\nabc,def,0123,orchestration{counts}\n"
        );
        let rows: Vec<Invocations> =
            Rows::of(text.as_bytes()).unwrap().collect::<Result<_, _>>().unwrap();
        assert_eq!(rows[0].trigger, Trigger::Orchestration);
        assert_eq!((rows[0].per_minute.len(), rows[0].total()), (1440, 1440));
        assert_eq!(write(&rows), text);
    }
}
