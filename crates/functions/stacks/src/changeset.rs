//! Change sets: the differences between a stack and a target, found without making anything.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::change::{Change, ChangeAction, Replacement};
use crate::check;
use crate::error::Failure;
use crate::functions::{UNKNOWN, bytes_of, has_unknown};
use crate::instance::{Deployment, Instance};
use crate::kinds;
use crate::operation::{Difference, difference};
use crate::plan::{Exports, Present, check_size, outputs, value_of};
use crate::stack::Stack;

/// The reason of a change set without changes, which tools look for.
pub const NO_CHANGES: &str = "The submitted information didn't contain changes. Submit different \
                              information to create a change set.";

/// The differences between a stack and a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// The changes of resources.
    pub changes: Vec<Change>,
    /// Nothing changes, neither resources nor outputs.
    pub is_same: bool,
}

/// Compares a stack with a target.
///
/// # Errors
/// The target cannot be resolved, or changes the type of a resource.
pub fn compare(
    stack: &Stack,
    target: &Deployment,
    exports: &Exports,
) -> Result<Comparison, Failure> {
    let conditions = stack.conditions(target)?;
    let uses = check::uses(&target.template, Some(&conditions))?;
    let order = check::order(&uses)?;
    check_kinds(stack, target, &order)?;
    let mut new: BTreeSet<String> = BTreeSet::new();
    let (mut changes, mut bytes) = (Vec::new(), 0);
    for id in &order {
        let declared = &target.template.resources[id];
        let resources = |id: &str, attribute: Option<&str>| match new.contains(id) {
            true => Ok(UNKNOWN.into()),
            false => value_of(&stack.resources, id, attribute),
        };
        let present = Present { resources: &resources, exports, imports: RefCell::default() };
        let properties = stack.properties(target, &conditions, declared, &present)?;
        bytes += bytes_of(&properties);
        check_size(id, bytes)?;
        let Some(current) = stack.resources.get(id) else {
            changes.push(added(id, &declared.kind));
            new.insert(id.clone());
            continue;
        };
        let is_tagged = kinds::find(&declared.kind).is_some_and(kinds::Kind::is_tagged);
        let mut scope = BTreeSet::new();
        if is_tagged && current.tags != target.tags {
            scope.insert("Tags".to_owned());
        }
        if current.metadata != declared.metadata {
            scope.insert("Metadata".to_owned());
        }
        if current.deletion_policy != declared.deletion_policy {
            scope.insert("DeletionPolicy".to_owned());
        }
        let change = modified(current, &properties, scope);
        if change.replacement.is_some_and(|replacement| replacement != Replacement::False) {
            new.insert(id.clone());
        }
        let is_change = !change.properties.is_empty() || !change.scope.is_empty();
        if is_change || current.is_uncertain {
            changes.push(change);
        }
    }
    let wanted: BTreeSet<&String> = order.iter().collect();
    let removed = stack.resources.values().filter(|current| !wanted.contains(&current.logical_id));
    changes.extend(removed.map(removal));
    let resources = |id: &str, attribute: Option<&str>| match new.contains(id) {
        true => Ok(UNKNOWN.into()),
        false => value_of(&stack.resources, id, attribute),
    };
    let present = Present { resources: &resources, exports, imports: RefCell::default() };
    let outputs = outputs(stack, target, &conditions, &present)?;
    let is_same = changes.is_empty()
        && outputs == stack.outputs
        && target.tags == stack.deployment.tags
        && stack.leftovers.is_empty();
    Ok(Comparison { changes, is_same })
}

fn check_kinds(stack: &Stack, target: &Deployment, order: &[String]) -> Result<(), Failure> {
    let differs = |id: &&String| {
        let declared = &target.template.resources[*id];
        stack.resources.get(*id).is_some_and(|current| current.kind != declared.kind)
    };
    let other: Vec<_> = order.iter().filter(differs).cloned().collect();
    match other.is_empty() {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "Update of resource type is not permitted. The new template modifies resource type of the \
             following resources: [{}]",
            other.join(", ")
        ))),
    }
}

fn added(logical_id: &str, kind: &str) -> Change {
    Change {
        action: ChangeAction::Add,
        logical_id: logical_id.to_owned(),
        physical_id: None,
        kind: kind.to_owned(),
        replacement: None,
        properties: BTreeMap::new(),
        scope: BTreeSet::new(),
    }
}

fn removal(current: &Instance) -> Change {
    Change {
        action: ChangeAction::Remove,
        physical_id: Some(current.physical_id.clone()),
        ..added(&current.logical_id, &current.kind)
    }
}

fn modified(current: &Instance, properties: &Value, scope: BTreeSet<String>) -> Change {
    let changed = match difference(&current.kind, &current.properties, properties) {
        Difference::Same => BTreeSet::new(),
        Difference::InPlace(changed) | Difference::Replacement(changed) => changed,
    };
    let create_only = kinds::find(&current.kind).map_or(&[] as &[&str], |kind| kind.create_only);
    let with_need = |name: String| {
        let needs_new = create_only.contains(&name.as_str());
        (name, needs_new)
    };
    let changed: BTreeMap<String, bool> = changed.into_iter().map(with_need).collect();
    let is_known = |name: &String| !properties.get(name).is_some_and(has_unknown);
    let mut needing = changed.iter().filter(|(_, needs_new)| **needs_new).peekable();
    let replacement = match (needing.peek().is_some(), needing.any(|(name, _)| is_known(name))) {
        (false, _) => Replacement::False,
        (true, false) => Replacement::Conditional,
        (true, true) => Replacement::True,
    };
    Change {
        action: ChangeAction::Modify,
        physical_id: Some(current.physical_id.clone()),
        replacement: Some(replacement),
        properties: changed,
        scope,
        ..added(&current.logical_id, &current.kind)
    }
}
