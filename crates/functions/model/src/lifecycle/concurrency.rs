//! Reserved concurrency (most invocations at a time) and provisioned concurrency (instances that
//! are kept warm).

use super::{Provisioned, Qualifier, Record, Stamp, Version};
use crate::lambda::Refusal;

impl Record {
    /// Sets the reserved concurrency, or removes it.
    ///
    /// # Errors
    /// It is less than the provisioned concurrency.
    pub fn reserve(&mut self, reserved: Option<u32>) -> Result<(), Refusal> {
        self.check_concurrency(reserved, self.provisioned_sum())?;
        self.reserved = reserved;
        Ok(())
    }

    /// Sets the provisioned concurrency of a version or an alias.
    ///
    /// # Errors
    /// There is no such version or alias, it is `$LATEST`, its version is provisioned already by
    /// another qualifier, or the sum exceeds the reserved concurrency.
    pub fn provision(
        &mut self,
        qualifier: &Qualifier,
        instances: u32,
        stamp: Stamp,
    ) -> Result<(), Refusal> {
        let wrong = |why: &str| Err(Refusal::Parameter(why.to_owned()));
        if instances == 0 {
            return wrong("ProvisionedConcurrentExecutions must be 1 at least");
        }
        let version = self.resolve(Some(qualifier))?;
        if version == Version::Latest {
            return wrong("Provisioned Concurrency Configs cannot be applied to $LATEST: publish");
        }
        let text = qualifier.to_string();
        let others = self.provisioned.keys().filter(|other| **other != text);
        if let Some(other) = others.into_iter().find(|other| self.target(other) == Some(version)) {
            let why = format!("version {version} is provisioned already, by {other}");
            return Err(Refusal::Conflict(why));
        }
        let before = self.provisioned.get(&text).map_or(0, |own| own.instances);
        let sum = self.provisioned_sum() - u64::from(before) + u64::from(instances);
        self.check_concurrency(self.reserved, sum)?;
        self.provisioned.insert(text, Provisioned { instances, modified: stamp.time });
        Ok(())
    }

    /// The provisioned concurrency of a version or an alias.
    ///
    /// # Errors
    /// There is none.
    pub fn provisioned(&self, qualifier: &Qualifier) -> Result<&Provisioned, Refusal> {
        self.resolve(Some(qualifier))?;
        self.provisioned.get(&qualifier.to_string()).ok_or_else(|| {
            let why = format!("No Provisioned Concurrency Config found for {qualifier}");
            Refusal::NotProvisioned(why)
        })
    }

    /// Removes the provisioned concurrency of a version or an alias, if there is one.
    ///
    /// # Errors
    /// There is no such version or alias.
    pub fn unprovision(&mut self, qualifier: &Qualifier) -> Result<(), Refusal> {
        self.resolve(Some(qualifier))?;
        self.provisioned.remove(&qualifier.to_string());
        Ok(())
    }

    /// The number of instances of a version that are kept warm.
    pub fn warm(&self, version: Version) -> u32 {
        let own = self.provisioned.iter().filter(|(text, _)| self.target(text) == Some(version));
        own.fold(0_u32, |sum, (_, provisioned)| sum.saturating_add(provisioned.instances))
    }

    /// The version of a qualifier with provisioned concurrency.
    fn target(&self, qualifier: &str) -> Option<Version> {
        let version = qualifier.parse().ok();
        version.or_else(|| self.aliases.get(qualifier).map(|alias| alias.version))
    }

    fn provisioned_sum(&self) -> u64 {
        self.provisioned.values().map(|own| u64::from(own.instances)).sum()
    }

    fn check_concurrency(&self, reserved: Option<u32>, provisioned: u64) -> Result<(), Refusal> {
        if reserved.is_none_or(|reserved| provisioned <= u64::from(reserved)) {
            return Ok(());
        }
        let why = format!(
            "the provisioned concurrency ({provisioned}) is greater than the function's reserved \
             concurrency ({}): raise ReservedConcurrentExecutions first",
            reserved.unwrap_or_default()
        );
        Err(Refusal::Parameter(why))
    }
}
