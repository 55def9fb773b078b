//! The resource policies of a function.

use super::record::check_revision;
use super::{Qualifier, Record, ResourcePolicy, Stamp, Statement, arn};
use crate::lambda::Refusal;

/// Longest policy document, in bytes, as in Lambda.
pub const POLICY_BYTES_MAX: usize = 20 * 1024;

fn key(qualifier: Option<&Qualifier>) -> String {
    qualifier.map(Qualifier::to_string).unwrap_or_default()
}

impl Record {
    /// The policy of a qualifier, or of the function itself.
    ///
    /// # Errors
    /// There is none, or there is no such version or alias.
    pub fn policy(&self, qualifier: Option<&Qualifier>) -> Result<&ResourcePolicy, Refusal> {
        self.resolve(qualifier)?;
        let absent = || {
            let why = "The resource you requested does not exist: there is no policy";
            Refusal::Absent(why.to_owned())
        };
        self.policies.get(&key(qualifier)).ok_or_else(absent)
    }

    /// Adds a statement.
    ///
    /// # Errors
    /// The statement is invalid, its name is taken, the policy is not the expected revision or too
    /// long, or there is no such version or alias.
    pub fn add_permission(
        &mut self,
        qualifier: Option<&Qualifier>,
        statement: Statement,
        expected: Option<&str>,
        stamp: Stamp,
    ) -> Result<(), Refusal> {
        self.resolve(qualifier)?;
        statement.check()?;
        let own = key(qualifier);
        let mut policy = self.policies.get(&own).cloned().unwrap_or_default();
        check_revision(&policy.revision, expected)?;
        if policy.statements.iter().any(|other| other.sid == statement.sid) {
            let sid = &statement.sid;
            let why = format!("The statement id ({sid}) provided already exists");
            return Err(Refusal::Conflict(why));
        }
        policy.statements.push(statement);
        policy.revision = stamp.revision;
        // The resource has the longest possible name.
        let resource = arn("us-gov-central-1", &"x".repeat(64), Some(&own));
        if policy.document(&resource).to_string().len() > POLICY_BYTES_MAX {
            return Err(Refusal::PolicyTooLong(POLICY_BYTES_MAX));
        }
        self.policies.insert(own, policy);
        Ok(())
    }

    /// Removes a statement; the last one with its policy.
    ///
    /// # Errors
    /// There is no such statement, version or alias, or the policy is not the expected revision.
    pub fn remove_permission(
        &mut self,
        qualifier: Option<&Qualifier>,
        sid: &str,
        expected: Option<&str>,
        stamp: Stamp,
    ) -> Result<(), Refusal> {
        let mut policy = self.policy(qualifier)?.clone();
        check_revision(&policy.revision, expected)?;
        let count = policy.statements.len();
        policy.statements.retain(|statement| statement.sid != sid);
        if policy.statements.len() == count {
            let why = format!("Statement {sid} is not found in resource policy");
            return Err(Refusal::Absent(why));
        }
        policy.revision = stamp.revision;
        match policy.statements.is_empty() {
            true => self.policies.remove(&key(qualifier)),
            false => self.policies.insert(key(qualifier), policy),
        };
        Ok(())
    }
}
