//! The stacks of one account and region: names, exports, limits, and operations in progress.

use std::collections::BTreeMap;

use crate::error::{Failure, Kind};
use crate::operation::{Action, Outcome, Stale, Work};
use crate::plan::{Export, Exports};
use crate::stack::{Place, Stack};
use crate::status::Status;

/// Most stacks.
pub const STACKS_MAX: usize = 500;
/// Most deleted stacks that are remembered.
pub const DELETED_MAX: usize = 100;
/// Most bytes of the name of a stack or change set.
const NAME_BYTES_MAX: usize = 128;

/// The stacks of one account and region.
#[derive(Clone, Debug, Default)]
pub struct Stacks {
    place: Place,
    stacks: BTreeMap<String, Stack>,
}

impl Stacks {
    /// The stacks that were made durable before.
    pub fn new(place: Place, stacks: impl IntoIterator<Item = Stack>) -> Stacks {
        let stacks = stacks.into_iter().map(|stack| (stack.id.clone(), stack));
        Stacks { place, stacks: stacks.collect() }
    }

    /// The region and account.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The stack of an ARN, and what the caller makes durable.
    pub fn get(&self, id: &str) -> Option<&Stack> {
        self.stacks.get(id)
    }

    /// All stacks, deleted ones too.
    pub fn all(&self) -> impl Iterator<Item = &Stack> {
        self.stacks.values()
    }

    /// The stacks that are not deleted.
    pub fn alive(&self) -> impl Iterator<Item = &Stack> {
        self.all().filter(|stack| stack.status != Status::DeleteComplete)
    }

    /// The ARNs of stacks with an operation in progress.
    pub fn running(&self) -> Vec<String> {
        let running = self.all().filter(|stack| stack.operation.is_some());
        running.map(|stack| stack.id.clone()).collect()
    }

    /// The next action of a stack: see [`Stack::next`].
    pub fn next(&mut self, id: &str, now_ms: u64) -> Option<Action> {
        let exports = self.exports();
        self.stacks.get_mut(id)?.next(&exports, now_ms)
    }

    /// Takes the outcome of an action: see [`Stack::outcome`].
    ///
    /// # Errors
    /// It is that of another action, or there is no such stack.
    pub fn outcome(
        &mut self,
        id: &str,
        step: u64,
        outcome: Outcome,
        now_ms: u64,
    ) -> Result<(), Stale> {
        let stack = self.stacks.get_mut(id).ok_or(Stale { given: step, expected: None })?;
        stack.outcome(step, outcome, now_ms)
    }

    /// Adds an event about an action, for what its user has to know beside its outcome.
    pub fn note(&mut self, id: &str, action: &Action, reason: String, now_ms: u64) {
        let Some(stack) = self.stacks.get_mut(id) else { return };
        let (status, physical_id) = match &action.work {
            Work::Create { name, .. } => (Status::CreateInProgress, name),
            Work::Update { physical_id, .. } => (Status::UpdateInProgress, physical_id),
            Work::Delete { physical_id, .. } => (Status::DeleteInProgress, physical_id),
        };
        let names = (action.logical_id.as_str(), physical_id.as_str(), action.kind.as_str());
        stack.log(names, status, Some(reason), now_ms);
    }

    /// Puts a stack in the place of what is there under its ARN: that of the disk, after a change could not
    /// be made durable.
    pub fn put_back(&mut self, id: &str, durable: Option<Stack>) {
        match durable {
            Some(stack) => self.stacks.insert(id.to_owned(), stack),
            None => self.stacks.remove(id),
        };
    }

    /// The exports of all stacks.
    pub fn exports(&self) -> Exports {
        let mut exports = Exports::new();
        for stack in self.alive() {
            for output in stack.outputs.values() {
                if let Some(name) = &output.export {
                    let (value, stack_id) = (output.value.clone(), stack.id.clone());
                    exports.insert(name.clone(), Export { value, stack_id, importers: Vec::new() });
                }
            }
        }
        for stack in self.alive() {
            for name in &stack.imports {
                if let Some(export) = exports.get_mut(name) {
                    export.importers.push(stack.name.clone());
                }
            }
        }
        exports
    }

    /// The stack of a name or ARN, if it is not deleted.
    pub(crate) fn living(&self, name: &str) -> Option<&Stack> {
        self.alive().find(|stack| stack.name == name || stack.id == name)
    }

    /// The stack of a name or ARN. A deleted one is found by its ARN.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn known(&self, name: &str) -> Result<&Stack, Failure> {
        let missing = || Failure::invalid(format!("Stack with id {name} does not exist"));
        self.living(name).or_else(|| self.get(name)).ok_or_else(missing)
    }

    /// The stack of an ARN, to change it.
    pub(crate) fn changed(&mut self, id: &str) -> Result<&mut Stack, Failure> {
        let missing = || Failure::invalid(format!("Stack with id {id} does not exist"));
        self.stacks.get_mut(id).ok_or_else(missing)
    }

    /// Adds a stack. The oldest deleted ones go if there are too many.
    ///
    /// # Errors
    /// There are too many stacks.
    pub(crate) fn add(&mut self, stack: Stack) -> Result<(), Failure> {
        if self.alive().count() >= STACKS_MAX {
            let why = format!("Limit for stack has been exceeded: {STACKS_MAX}; delete one");
            return Err(Failure::new(Kind::LimitExceeded, why));
        }
        self.stacks.insert(stack.id.clone(), stack);
        Ok(())
    }

    /// Forgets the deleted stacks that are too many; returns their ARNs, so that the caller removes what it
    /// has made durable.
    pub fn forget(&mut self) -> Vec<String> {
        let deleted = self.all().filter(|stack| stack.status == Status::DeleteComplete);
        let mut deleted: Vec<(Option<u64>, String)> =
            deleted.map(|stack| (stack.deleted_ms, stack.id.clone())).collect();
        deleted.sort();
        let count = deleted.len().saturating_sub(DELETED_MAX);
        let gone: Vec<String> = deleted.drain(..count).map(|(_, id)| id).collect();
        for id in &gone {
            self.stacks.remove(id);
        }
        gone
    }
}

/// Checks the name of a new stack or change set; `member` is its name in the request.
///
/// # Errors
/// It has other characters, or is too long.
pub(crate) fn check_name(member: &str, name: &str) -> Result<(), Failure> {
    let is_first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphabetic());
    let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    match is_first && is_name && name.len() <= NAME_BYTES_MAX {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "1 validation error detected: Value '{name:.200}' at '{member}' failed to satisfy constraint: \
             Member must satisfy regular expression pattern: [a-zA-Z][-a-zA-Z0-9]*, of at most \
             {NAME_BYTES_MAX} characters"
        ))),
    }
}
