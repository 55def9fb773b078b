//! The aliases of a function.

use super::record::check_revision;
use super::reference::is_alias;
use super::{Alias, AliasChange, Qualifier, Record, Stamp, Version};
use crate::lambda::Refusal;

/// Most aliases of a function.
pub const ALIASES_MAX: usize = 1000;
/// Most versions of an alias beside its first one, as in Lambda.
const ADDITIONAL_MAX: usize = 1;

impl Record {
    /// An alias.
    ///
    /// # Errors
    /// There is no such alias.
    pub fn alias(&self, name: &str) -> Result<&Alias, Refusal> {
        let absent = || Refusal::Absent(format!("Cannot find alias: {name}"));
        self.aliases.get(name).ok_or_else(absent)
    }

    /// Creates an alias.
    ///
    /// # Errors
    /// The name is invalid or taken, a version is absent, or a weight is invalid.
    pub fn create_alias(
        &mut self,
        name: &str,
        change: AliasChange,
        stamp: Stamp,
    ) -> Result<(), Refusal> {
        if !is_alias(name) {
            let why = format!("{name:?} is no alias: letters, digits, - and _, and not a number");
            return Err(Refusal::Parameter(why));
        }
        if self.aliases.contains_key(name) {
            return Err(Refusal::Conflict(format!("Alias already exists: {name}")));
        }
        if self.aliases.len() >= ALIASES_MAX {
            let why = format!("a function has {ALIASES_MAX} aliases at most: delete old ones");
            return Err(Refusal::Parameter(why));
        }
        let missing = || Refusal::Parameter("FunctionVersion is missing".to_owned());
        let version = change.version.ok_or_else(missing)?;
        let alias = Alias {
            version,
            weights: change.weights.unwrap_or_default(),
            description: change.description.unwrap_or_default(),
            revision: stamp.revision,
        };
        self.check_alias(&alias)?;
        self.aliases.insert(name.to_owned(), alias);
        Ok(())
    }

    /// Changes an alias.
    ///
    /// # Errors
    /// There is no such alias, it is not the expected revision, a version is absent, or a weight
    /// is invalid.
    pub fn update_alias(
        &mut self,
        name: &str,
        change: AliasChange,
        expected: Option<&str>,
        stamp: Stamp,
    ) -> Result<(), Refusal> {
        let mut alias = self.alias(name)?.clone();
        check_revision(&alias.revision, expected)?;
        alias.version = change.version.unwrap_or(alias.version);
        alias.weights = change.weights.unwrap_or(alias.weights);
        alias.description = change.description.unwrap_or(alias.description);
        alias.revision = stamp.revision;
        self.check_alias(&alias)?;
        self.aliases.insert(name.to_owned(), alias);
        Ok(())
    }

    /// Deletes an alias, with its policy and its provisioned concurrency.
    ///
    /// # Errors
    /// There is no such alias.
    pub fn delete_alias(&mut self, name: &str) -> Result<(), Refusal> {
        self.alias(name)?;
        self.aliases.remove(name);
        self.forget(name);
        Ok(())
    }

    fn check_alias(&self, alias: &Alias) -> Result<(), Refusal> {
        for version in alias.versions() {
            self.resolve(Some(&Qualifier::Version(version)))?;
        }
        let wrong = |why: &str| Err(Refusal::Parameter(format!("RoutingConfig: {why}")));
        if alias.weights.len() > ADDITIONAL_MAX {
            return wrong("one additional version at most");
        }
        if !alias.weights.values().all(|weight| (0.0..=1.0).contains(weight)) {
            return wrong("a weight is from 0.0 to 1.0");
        }
        match alias.version {
            Version::Latest if !alias.weights.is_empty() => {
                wrong("an alias of $LATEST has no weights: publish a version")
            }
            Version::Number(number) if alias.weights.contains_key(&number) => {
                wrong("the additional version is the alias's own version")
            }
            _ => Ok(()),
        }
    }

    /// The version that serves an invocation. `draw` is random, from 0 up to but not including 1.
    ///
    /// # Errors
    /// There is no such version or alias.
    pub fn choose(&self, qualifier: Option<&Qualifier>, draw: f64) -> Result<Version, Refusal> {
        let Some(Qualifier::Alias(name)) = qualifier else { return self.resolve(qualifier) };
        let alias = self.alias(name)?;
        let mut sum = 0.0;
        for (number, weight) in &alias.weights {
            sum += weight;
            if draw < sum {
                return Ok(Version::Number(*number));
            }
        }
        Ok(alias.version)
    }
}
