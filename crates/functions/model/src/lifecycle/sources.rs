//! The event source mappings of a function.

use super::{Qualifier, Record};
use crate::lambda::Refusal;
use crate::source::{Mapping, MappingChange};

/// Most mappings of a function.
pub const SOURCES_MAX: usize = 16;

impl Record {
    /// A mapping.
    ///
    /// # Errors
    /// There is no such mapping.
    pub fn source(&self, uuid: &str) -> Result<&Mapping, Refusal> {
        let absent = || {
            Refusal::Absent("The resource you requested does not exist: no such mapping".to_owned())
        };
        self.sources.get(uuid).ok_or_else(absent)
    }

    /// Adds a mapping.
    ///
    /// # Errors
    /// A value is out of its range, there is no such version or alias, the queue feeds the same
    /// qualifier already, or there are [`SOURCES_MAX`] mappings.
    pub fn add_source(
        &mut self,
        uuid: &str,
        mapping: &Mapping,
        change: MappingChange,
        modified_ms: u64,
    ) -> Result<(), Refusal> {
        if self.sources.len() >= SOURCES_MAX {
            let why = format!("a function has {SOURCES_MAX} event source mappings at most");
            return Err(Refusal::Parameter(why));
        }
        let mapping = mapping.changed(change, modified_ms)?;
        self.check_source(uuid, &mapping)?;
        self.sources.insert(uuid.to_owned(), mapping);
        Ok(())
    }

    /// Changes a mapping.
    ///
    /// # Errors
    /// As [`Record::add_source`], or there is no such mapping.
    pub fn change_source(
        &mut self,
        uuid: &str,
        change: MappingChange,
        modified_ms: u64,
    ) -> Result<(), Refusal> {
        let mapping = self.source(uuid)?.changed(change, modified_ms)?;
        self.check_source(uuid, &mapping)?;
        self.sources.insert(uuid.to_owned(), mapping);
        Ok(())
    }

    /// Removes a mapping, and returns it.
    ///
    /// # Errors
    /// There is no such mapping.
    pub fn remove_source(&mut self, uuid: &str) -> Result<Mapping, Refusal> {
        self.source(uuid)?;
        self.sources.remove(uuid).ok_or_else(|| Refusal::Absent(uuid.to_owned()))
    }

    fn check_source(&self, uuid: &str, mapping: &Mapping) -> Result<(), Refusal> {
        let qualifier = mapping.qualifier.as_deref().map(Qualifier::parse).transpose()?;
        self.resolve(qualifier.as_ref())?;
        let is_same = |(other, own): (&String, &Mapping)| {
            other != uuid && own.queue == mapping.queue && own.qualifier == mapping.qualifier
        };
        if let Some((other, _)) = self.sources.iter().find(|source| is_same(*source)) {
            let why = format!(
                "The event source arn ({}) and function provided mapping already exists. Please \
                 update or delete the existing mapping with UUID {other}",
                mapping.queue
            );
            return Err(Refusal::Conflict(why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::destination::Target;
    use crate::lifecycle::tests::{number, record};

    fn mapping(name: &str) -> Mapping {
        let arn = format!("arn:aws:sqs:us-east-1:123456789012:{name}");
        Mapping::new(Target::parse(&arn).unwrap()).unwrap()
    }

    #[test]
    fn a_queue_feeds_a_qualifier_once() {
        let mut record = record();
        let none = MappingChange::default;
        record.add_source("u-1", &mapping("q"), none(), 1).unwrap();
        let again = record.add_source("u-2", &mapping("q"), none(), 1).unwrap_err();
        assert_eq!(again.status(), 409);
        assert!(again.message().contains("u-1"));
        let to = |qualifier| MappingChange { qualifier: Some(qualifier), ..none() };
        record.add_source("u-2", &mapping("q"), to(Some(number(1))), 1).unwrap();
        assert_eq!(record.change_source("u-2", to(None), 2).unwrap_err().status(), 409);
        assert_eq!(record.change_source("u-2", to(Some(number(9))), 2).unwrap_err().status(), 404);
        let off = MappingChange { enabled: Some(false), ..none() };
        record.change_source("u-2", off, 2).unwrap();
        let own = record.source("u-2").unwrap();
        assert_eq!((own.enabled, own.modified_ms, own.qualifier.as_deref()), (false, 2, Some("1")));
        assert!(!record.remove_source("u-2").unwrap().enabled);
        assert_eq!(record.remove_source("u-2").unwrap_err().status(), 404);
        assert_eq!(record.change_source("u-2", none(), 3).unwrap_err().status(), 404);
        for at in 1..SOURCES_MAX {
            record.add_source(&format!("v-{at}"), &mapping(&format!("q{at}")), none(), 1).unwrap();
        }
        let full = record.add_source("w", &mapping("w"), none(), 1).unwrap_err();
        assert_eq!(full.status(), 400);
    }
}
