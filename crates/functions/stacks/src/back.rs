//! The other half of an operation: the outcomes of actions, the way back, the deletion of resources, and
//! the end.

use std::collections::BTreeSet;

use crate::change::ExecutionStatus;
use crate::functions::is_same;
use crate::graph::{self, Uses};
use crate::instance::Instance;
use crate::operation::{Doomed, Operation, OperationKind, Outcome, Phase, Stale, Undo, Work};
use crate::plan::update;
use crate::stack::Stack;
use crate::status::{OnFailure, Status};
use crate::template::Policy;

impl Stack {
    /// Takes the outcome of the action that was handed out.
    ///
    /// # Errors
    /// It is that of another action.
    pub fn outcome(&mut self, step: u64, outcome: Outcome, now_ms: u64) -> Result<(), Stale> {
        let pending = self.operation.as_ref().and_then(|operation| operation.pending.as_ref());
        let expected = pending.map(|(action, _)| action.step);
        let stale = Stale { given: step, expected };
        let mut operation = self.operation.take_if(|_| expected == Some(step)).ok_or(stale)?;
        let (action, mut instance) = operation.pending.take().ok_or(stale)?;
        instance.changed_ms = now_ms;
        match (operation.phase, &action.work) {
            (Phase::Forward, Work::Create { .. }) => {
                self.created(&mut operation, instance, outcome, now_ms);
            }
            (Phase::Forward, _) => self.updated(&mut operation, instance, outcome, now_ms),
            (Phase::Undo, _) => self.restored(&mut operation, instance, outcome, now_ms),
            (Phase::Cleanup | Phase::Finish, _) => {
                self.deleted(&mut operation, instance, outcome, now_ms);
            }
        }
        self.operation = Some(operation);
        Ok(())
    }

    /// Sets the status of a resource, with an event.
    fn mark(
        &mut self,
        instance: &mut Instance,
        status: Status,
        reason: Option<String>,
        now_ms: u64,
    ) {
        instance.status = status;
        instance.reason = reason.clone();
        instance.changed_ms = now_ms;
        let names =
            (instance.logical_id.as_str(), instance.physical_id.as_str(), instance.kind.as_str());
        self.log(names, status, reason, now_ms);
    }

    /// Puts a resource in the place of the one before, which the journal keeps.
    fn place(&mut self, operation: &mut Operation, instance: Instance) {
        let logical_id = instance.logical_id.clone();
        let before = self.resources.insert(logical_id.clone(), instance);
        operation.journal.push(Undo { logical_id, before });
    }

    fn created(
        &mut self,
        operation: &mut Operation,
        mut instance: Instance,
        outcome: Outcome,
        now_ms: u64,
    ) {
        let is_replacement = self.resources.contains_key(&instance.logical_id);
        let (complete, failed) = match is_replacement {
            true => (Status::UpdateComplete, Status::UpdateFailed),
            false => (Status::CreateComplete, Status::CreateFailed),
        };
        match outcome {
            Outcome::Done { physical_id, attributes } => {
                (instance.physical_id, instance.attributes) = (physical_id, attributes);
                self.mark(&mut instance, complete, None, now_ms);
                self.place(operation, instance);
                operation.done_count += 1;
            }
            Outcome::Failed { reason, physical_id } => {
                operation.failed.push(instance.logical_id.clone());
                instance.physical_id = physical_id.unwrap_or_default();
                self.mark(&mut instance, failed, Some(reason), now_ms);
                if !instance.physical_id.is_empty() {
                    // A part of a resource is of no use to anyone.
                    instance.deletion_policy = Policy::Delete;
                    instance.is_uncertain = true;
                    self.place(operation, instance);
                }
                self.turn_back(operation, None, now_ms);
            }
        }
    }

    fn updated(
        &mut self,
        operation: &mut Operation,
        mut instance: Instance,
        outcome: Outcome,
        now_ms: u64,
    ) {
        match outcome {
            Outcome::Done { attributes, .. } => {
                instance.attributes = attributes;
                self.mark(&mut instance, Status::UpdateComplete, None, now_ms);
                self.place(operation, instance);
                operation.done_count += 1;
            }
            Outcome::Failed { reason, .. } => {
                operation.failed.push(instance.logical_id.clone());
                instance.is_uncertain = true;
                self.mark(&mut instance, Status::UpdateFailed, Some(reason), now_ms);
                self.place(operation, instance);
                self.turn_back(operation, None, now_ms);
            }
        }
    }

    /// Undoes the last change of the journal.
    pub(crate) fn undo(
        &mut self,
        operation: &mut Operation,
        now_ms: u64,
    ) -> Option<(Work, Instance)> {
        let Some(Undo { logical_id, before }) = operation.journal.pop() else {
            operation.phase = Phase::Cleanup;
            if operation.kind == OperationKind::Update && operation.not_undone.is_empty() {
                self.enter(Status::UpdateRollbackCleanup, None, now_ms);
            }
            return None;
        };
        let current = self.resources.remove(&logical_id)?;
        let Some(before) = before else {
            self.doom_new(operation, current);
            return None;
        };
        if before.serial != current.serial {
            self.doom_new(operation, current);
            self.resources.insert(logical_id, before);
            return None;
        }
        let is_changed = current.is_uncertain
            || current.tags != before.tags
            || !is_same(&current.properties, &before.properties);
        if !is_changed {
            self.resources.insert(logical_id, before);
            return None;
        }
        let work = update(&current, &before);
        let names = (logical_id.as_str(), current.physical_id.as_str(), current.kind.as_str());
        self.log(names, Status::UpdateInProgress, None, now_ms);
        self.resources.insert(logical_id, current);
        Some((work, before))
    }

    /// Dooms a resource that the operation has made.
    fn doom_new(&self, operation: &mut Operation, instance: Instance) {
        let is_kept = instance.deletion_policy == Policy::Retain && !operation.target.deletes_new;
        operation.doomed.push(Doomed { instance, is_kept });
    }

    fn restored(
        &mut self,
        operation: &mut Operation,
        mut instance: Instance,
        outcome: Outcome,
        now_ms: u64,
    ) {
        let logical_id = instance.logical_id.clone();
        match outcome {
            Outcome::Done { attributes, .. } => {
                instance.attributes = attributes;
                self.mark(&mut instance, Status::UpdateComplete, None, now_ms);
                self.resources.insert(logical_id, instance);
            }
            Outcome::Failed { reason, .. } => {
                operation.not_undone.push(logical_id.clone());
                if let Some(mut current) = self.resources.remove(&logical_id) {
                    current.is_uncertain = true;
                    // It may have the old properties or the new ones, and use what either names.
                    current.uses.extend(instance.uses);
                    self.mark(&mut current, Status::UpdateFailed, Some(reason), now_ms);
                    self.resources.insert(logical_id, current);
                }
            }
        }
    }

    /// The next resource that is deleted: one that no other uses.
    pub(crate) fn cleanup(
        &mut self,
        operation: &mut Operation,
        now_ms: u64,
    ) -> Option<(Work, Instance)> {
        let (kept, doomed) =
            operation.doomed.drain(..).partition::<Vec<_>, _>(|doomed| doomed.is_kept);
        operation.doomed = doomed;
        for Doomed { mut instance, .. } in kept {
            self.mark(&mut instance, Status::DeleteSkipped, None, now_ms);
        }
        operation.doomed.retain(|doomed| !doomed.instance.physical_id.is_empty());
        self.set_blocked_aside(operation, now_ms);
        let doomed = operation.doomed.iter().map(|doomed| &doomed.instance);
        let uses: Uses<u64> = doomed.map(|one| (one.serial, one.uses.clone())).collect();
        let Some((serial, is_free)) = graph::removable(&uses) else {
            operation.phase = Phase::Finish;
            return None;
        };
        let is_used = operation.stuck.iter().any(|stuck| stuck.uses.contains(&serial));
        if !is_free || is_used {
            operation.circular.insert(serial);
        }
        let at = operation.doomed.iter().position(|doomed| doomed.instance.serial == serial)?;
        let mut instance = operation.doomed.remove(at).instance;
        self.mark(&mut instance, Status::DeleteInProgress, None, now_ms);
        let (physical_id, properties) = (instance.physical_id.clone(), instance.properties.clone());
        Some((Work::Delete { physical_id, properties }, instance))
    }

    /// Sets aside what is used by resources that stay.
    fn set_blocked_aside(&mut self, operation: &mut Operation, now_ms: u64) {
        // One of a circle does not hold the others up: else none of them could ever go.
        let is_last = |instance: &&Instance| !operation.circular.contains(&instance.serial);
        let stuck = operation.stuck.iter().filter(is_last);
        let staying = self.resources.values().chain(stuck);
        let mut used: BTreeSet<u64> =
            staying.flat_map(|instance| instance.uses.iter().copied()).collect();
        let mut open: Vec<u64> = used.iter().copied().collect();
        while let Some(serial) = open.pop() {
            let found = operation.doomed.iter().find(|doomed| doomed.instance.serial == serial);
            for more in found.iter().flat_map(|doomed| doomed.instance.uses.iter()) {
                if used.insert(*more) {
                    open.push(*more);
                }
            }
        }
        let (blocked, free) = operation
            .doomed
            .drain(..)
            .partition::<Vec<_>, _>(|doomed| used.contains(&doomed.instance.serial));
        operation.doomed = free;
        for Doomed { mut instance, .. } in blocked {
            let why = "a resource that uses it could not be deleted or restored".to_owned();
            self.mark(&mut instance, Status::DeleteFailed, Some(why), now_ms);
            operation.stuck.push(instance);
        }
    }

    fn deleted(
        &mut self,
        operation: &mut Operation,
        mut instance: Instance,
        outcome: Outcome,
        now_ms: u64,
    ) {
        match outcome {
            Outcome::Done { .. } => self.mark(&mut instance, Status::DeleteComplete, None, now_ms),
            Outcome::Failed { reason, .. } => {
                self.mark(&mut instance, Status::DeleteFailed, Some(reason), now_ms);
                operation.stuck.push(instance);
            }
        }
    }

    /// Ends the operation.
    pub(crate) fn finish(&mut self, mut operation: Operation, now_ms: u64) {
        let stuck: Vec<String> = operation.stuck.iter().map(|one| one.logical_id.clone()).collect();
        let is_deleted = operation.kind == OperationKind::Delete
            || self.status == Status::DeleteInProgress
                && operation.target.on_failure == OnFailure::Delete;
        self.keep(&mut operation);
        let not_deleted = || {
            let names = stuck.join(", ");
            (!stuck.is_empty())
                .then(|| format!("The following resource(s) failed to delete: [{names}]."))
        };
        let (status, reason) = match (operation.kind, self.status) {
            _ if operation.is_left => (self.status, None),
            _ if is_deleted && stuck.is_empty() => (Status::DeleteComplete, None),
            _ if is_deleted => (Status::DeleteFailed, not_deleted()),
            (OperationKind::Create, Status::CreateComplete) => (Status::CreateComplete, None),
            (OperationKind::Create, _) if stuck.is_empty() => (Status::RollbackComplete, None),
            (OperationKind::Create, _) => (Status::RollbackFailed, not_deleted()),
            (_, Status::UpdateCleanup) => (Status::UpdateComplete, not_deleted()),
            _ if operation.not_undone.is_empty() => (Status::UpdateRollbackComplete, not_deleted()),
            _ => {
                let names = operation.not_undone.join(", ");
                let reason = format!("The following resource(s) failed to update: [{names}].");
                (Status::UpdateRollbackFailed, Some(reason))
            }
        };
        if status != self.status {
            self.enter(status, reason, now_ms);
        }
        if status == Status::DeleteComplete {
            self.deleted_ms = Some(now_ms);
            self.outputs.clear();
            self.imports.clear();
            self.change_sets.clear();
            self.forget_secrets();
        }
        let is_executed = matches!(status, Status::CreateComplete | Status::UpdateComplete);
        let change_set = operation.change_set.and_then(|id| self.change_sets.get_mut(&id));
        if let Some(change_set) = change_set {
            change_set.execution = match is_executed {
                true => ExecutionStatus::ExecuteComplete,
                false => ExecutionStatus::ExecuteFailed,
            };
        }
    }

    /// Forgets the values of secret parameters: nothing needs them any more.
    fn forget_secrets(&mut self) {
        let declared = &self.deployment.template.parameters;
        let is_secret = |name: &str| declared.get(name).is_some_and(|own| own.is_secret);
        let all = self.deployment.parameters.iter_mut();
        for (_, value) in all.filter(|(name, _)| is_secret(name)) {
            value.clear();
        }
    }

    /// Keeps what could not be deleted, and what a failed update without a way back has replaced.
    fn keep(&mut self, operation: &mut Operation) {
        let is_update = operation.kind == OperationKind::Update;
        for undo in operation.journal.drain(..).filter(|_| operation.is_left) {
            let Some(before) = undo.before else { continue };
            let current = self.resources.get(&undo.logical_id);
            if current.is_none_or(|current| current.serial != before.serial) {
                self.leftovers.push(before);
            }
        }
        for instance in operation.stuck.drain(..) {
            match is_update || self.resources.contains_key(&instance.logical_id) {
                true => self.leftovers.push(instance),
                false => drop(self.resources.insert(instance.logical_id.clone(), instance)),
            }
        }
    }
}
