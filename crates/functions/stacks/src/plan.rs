//! The state machine of a stack's operation: one action after the other towards the target, or back.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::check;
use crate::error::Failure;
use crate::functions::{self, Lookup, Scope, text_of};
use crate::instance::{Deployment, Instance, OutputValue};
use crate::kinds::{self, Kind};
use crate::operation::{
    Action, Difference, Doomed, Object, Operation, OperationKind, Phase, Undo, Work, difference,
};
use crate::parameters;
use crate::stack::Stack;
use crate::status::{OnFailure, Status};
use crate::template::{Declared, Policy, Template};

/// An export of a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Its value.
    pub value: String,
    /// The stack that exports it.
    pub stack_id: String,
    /// The names of the stacks that import it.
    pub importers: Vec<String>,
}

/// Most bytes of the properties of all resources of a stack, whose state is written as a whole.
const PROPERTIES_BYTES_MAX: usize = 8 << 20;

/// The exports of all stacks, by name.
pub type Exports = BTreeMap<String, Export>;

/// The value of a resource: `Ref` without an attribute, else `Fn::GetAtt`.
type Values<'a> = dyn Fn(&str, Option<&str>) -> Result<Value, Failure> + 'a;

/// The values of resources and exports for functions, and the exports that were asked for.
pub(crate) struct Present<'a> {
    pub resources: &'a Values<'a>,
    pub exports: &'a Exports,
    pub imports: RefCell<BTreeSet<String>>,
}

impl Lookup for Present<'_> {
    fn resource(&self, logical_id: &str, attribute: Option<&str>) -> Result<Value, Failure> {
        (self.resources)(logical_id, attribute)
    }

    fn export(&self, name: &str) -> Result<Value, Failure> {
        let missing = || Failure::invalid(format!("No export named {name} found."));
        let export = self.exports.get(name).ok_or_else(missing)?;
        self.imports.borrow_mut().insert(name.to_owned());
        Ok(export.value.clone().into())
    }
}

/// The value of `Ref` or `Fn::GetAtt` of a resource that exists.
pub(crate) fn value_of(
    resources: &BTreeMap<String, Instance>,
    logical_id: &str,
    attribute: Option<&str>,
) -> Result<Value, Failure> {
    let missing =
        || Failure::format(format_args!("Unresolved resource dependencies [{logical_id}]"));
    let instance = resources.get(logical_id).ok_or_else(missing)?;
    match attribute {
        None => Ok(instance.physical_id.clone().into()),
        Some(attribute) => {
            let missing = || {
                let why = format!("the resource {logical_id} has no attribute {attribute} here");
                Failure::template(why)
            };
            instance.attributes.get(attribute).cloned().ok_or_else(missing)
        }
    }
}

/// Resolves the outputs of a target, and the exports that it imports.
pub(crate) fn outputs(
    stack: &Stack,
    target: &Deployment,
    conditions: &BTreeMap<String, bool>,
    present: &Present<'_>,
) -> Result<BTreeMap<String, OutputValue>, Failure> {
    stack.within(target, conditions, present, |scope| {
        outputs_of(&target.template, conditions, scope)
    })
}

fn outputs_of(
    template: &Template,
    conditions: &BTreeMap<String, bool>,
    scope: &Scope<'_>,
) -> Result<BTreeMap<String, OutputValue>, Failure> {
    let mut found = BTreeMap::new();
    let mut exported = BTreeSet::new();
    for (name, output) in &template.outputs {
        if output.condition.as_ref().is_some_and(|name| conditions.get(name) != Some(&true)) {
            continue;
        }
        let error = || {
            Failure::format("The Value field of every Outputs member must evaluate to a String.")
        };
        let text =
            |value: &Value| scope.resolve(value)?.as_ref().and_then(text_of).ok_or_else(error);
        let export = output.export.as_ref().map(text).transpose()?;
        if let Some(export) = &export
            && !exported.insert(export.clone())
        {
            return Err(Failure::format(format_args!("Duplicate Export names [{export}]")));
        }
        let value = text(&output.value)?;
        found.insert(
            name.clone(),
            OutputValue { value, description: output.description.clone(), export },
        );
    }
    Ok(found)
}

impl Stack {
    /// Begins the way to a target that [`crate::changeset::compare`] has accepted.
    ///
    /// # Errors
    /// The conditions or the order of the target's resources cannot be found.
    pub fn begin(
        &mut self,
        kind: OperationKind,
        target: Deployment,
        change_set: Option<String>,
        now_ms: u64,
    ) -> Result<(), Failure> {
        let (conditions, uses, order) = match kind {
            OperationKind::Delete => Default::default(),
            _ => {
                let conditions = self.conditions(&target)?;
                let uses = check::uses(&target.template, Some(&conditions))?;
                let order = check::order(&uses)?;
                (conditions, uses, order)
            }
        };
        let (phase, status) = match kind {
            OperationKind::Create => (Phase::Forward, Status::CreateInProgress),
            OperationKind::Update => (Phase::Forward, Status::UpdateInProgress),
            OperationKind::Delete => (Phase::Cleanup, Status::DeleteInProgress),
        };
        if kind == OperationKind::Create {
            self.deployment = target.clone();
        }
        self.operation = Some(Operation {
            kind,
            phase,
            target,
            conditions,
            uses,
            order,
            done_count: 0,
            journal: Vec::new(),
            doomed: Vec::new(),
            stuck: Vec::new(),
            circular: BTreeSet::new(),
            pending: None,
            step_next: 1,
            failed: Vec::new(),
            not_undone: Vec::new(),
            is_left: false,
            change_set,
            started_ms: now_ms,
        });
        if kind == OperationKind::Update {
            self.updated_ms = Some(now_ms);
        }
        self.enter(status, Some("User Initiated".to_owned()), now_ms);
        Ok(())
    }

    /// Begins the deletion of the stack. Resources in `retained` stay.
    ///
    /// # Errors
    /// None: a deletion has no order to find.
    pub fn begin_delete(
        &mut self,
        retained: &BTreeSet<String>,
        now_ms: u64,
    ) -> Result<(), Failure> {
        self.begin(OperationKind::Delete, self.deployment.clone(), None, now_ms)?;
        let resources = std::mem::take(&mut self.resources).into_values();
        let all = resources.chain(std::mem::take(&mut self.leftovers));
        let doomed = all.map(|instance| {
            let is_kept = instance.deletion_policy != Policy::Delete;
            Doomed { is_kept: is_kept || retained.contains(&instance.logical_id), instance }
        });
        let doomed = doomed.collect();
        if let Some(operation) = &mut self.operation {
            operation.doomed = doomed;
        }
        Ok(())
    }

    /// Evaluates the conditions of a target.
    pub(crate) fn conditions(
        &self,
        target: &Deployment,
    ) -> Result<BTreeMap<String, bool>, Failure> {
        let template = &target.template;
        let parameters = parameters::resolved(&template.parameters, &target.parameters);
        let pseudo = self.pseudo(target);
        functions::conditions(&template.conditions, &parameters, &template.mappings, &pseudo)
    }

    /// The next action of the operation in progress; `None` if there is none, or it ends now. An action whose
    /// outcome is not known yet is returned again. The caller makes the stack durable before it carries out
    /// the action.
    pub fn next(&mut self, exports: &Exports, now_ms: u64) -> Option<Action> {
        let mut operation = self.operation.take()?;
        if let Some((action, _)) = &operation.pending {
            let action = Action { is_repeated: true, ..action.clone() };
            self.operation = Some(operation);
            return Some(action);
        }
        loop {
            let found = match operation.phase {
                Phase::Forward => self.forward(&mut operation, exports, now_ms),
                Phase::Undo => self.undo(&mut operation, now_ms),
                Phase::Cleanup => self.cleanup(&mut operation, now_ms),
                Phase::Finish => {
                    self.finish(operation, now_ms);
                    return None;
                }
            };
            if let Some((work, instance)) = found {
                let action = self.action(&mut operation, work, &instance);
                operation.pending = Some((action.clone(), instance));
                self.operation = Some(operation);
                return Some(action);
            }
        }
    }

    fn action(&self, operation: &mut Operation, work: Work, instance: &Instance) -> Action {
        let step = operation.step_next;
        operation.step_next += 1;
        Action {
            step,
            token: format!("{}#{}", self.id, instance.serial),
            stack_id: self.id.clone(),
            stack_name: self.name.clone(),
            logical_id: instance.logical_id.clone(),
            kind: instance.kind.clone(),
            tags: instance.tags.clone(),
            is_repeated: false,
            work,
        }
    }

    /// The next resource on the way to the target.
    fn forward(
        &mut self,
        operation: &mut Operation,
        exports: &Exports,
        now_ms: u64,
    ) -> Option<(Work, Instance)> {
        let Some(id) = operation.order.get(operation.done_count).cloned() else {
            if let Err(failure) = self.arrive(operation, exports, now_ms) {
                self.turn_back(operation, Some(failure.message), now_ms);
            }
            return None;
        };
        if operation.target.timeout_ms.is_some_and(|most| now_ms > operation.started_ms + most) {
            let why = "Stack creation time exceeded the specified timeout.".to_owned();
            self.turn_back(operation, Some(why), now_ms);
            return None;
        }
        match self.step(operation, &id, exports, now_ms) {
            Ok(found) => found,
            Err(failure) => {
                let current = self.resources.get(&id);
                let status = match current {
                    Some(_) => Status::UpdateFailed,
                    None => Status::CreateFailed,
                };
                let physical_id = current.map_or(String::new(), |one| one.physical_id.clone());
                let kind = operation.target.template.resources[&id].kind.clone();
                self.log((&id, &physical_id, &kind), status, Some(failure.message), now_ms);
                operation.failed.push(id);
                self.turn_back(operation, None, now_ms);
                None
            }
        }
    }

    fn step(
        &mut self,
        operation: &mut Operation,
        id: &str,
        exports: &Exports,
        now_ms: u64,
    ) -> Result<Option<(Work, Instance)>, Failure> {
        let declared = &operation.target.template.resources[id];
        let unknown =
            || Failure::format(format_args!("Unrecognized resource types: [{}]", declared.kind));
        let kind = kinds::find(&declared.kind).ok_or_else(unknown)?;
        let properties = self.resolved(operation, declared, exports)?;
        self.check_size(id, &properties)?;
        let tags = match kind.is_tagged() {
            true => operation.target.tags.clone(),
            false => BTreeMap::new(),
        };
        let used = operation.uses.get(id).into_iter().flatten();
        let used = used.filter_map(|used| Some(self.resources.get(used)?.serial));
        let mut wanted = Instance {
            serial: 0,
            logical_id: id.to_owned(),
            kind: declared.kind.clone(),
            physical_id: String::new(),
            properties,
            attributes: serde_json::Map::new(),
            tags,
            uses: used.collect(),
            deletion_policy: declared.deletion_policy,
            metadata: declared.metadata.clone(),
            is_uncertain: false,
            status: Status::CreateInProgress,
            reason: None,
            changed_ms: now_ms,
        };
        let Some(current) = self.resources.get(id) else {
            self.log((id, "", kind.name), Status::CreateInProgress, None, now_ms);
            return Ok(Some(self.creation(kind, wanted)));
        };
        let difference = match difference(kind.name, &current.properties, &wanted.properties) {
            Difference::Same if current.is_uncertain || current.tags != wanted.tags => {
                Difference::InPlace(BTreeSet::new())
            }
            other => other,
        };
        wanted.attributes = current.attributes.clone();
        match difference {
            Difference::Replacement(_) => {
                if let Some(name) = kinds::chosen_name(kind, &wanted.properties)
                    && kinds::chosen_name(kind, &current.properties) == Some(name)
                {
                    return Err(Failure::invalid(format!(
                        "CloudFormation cannot update a stack when a custom-named resource requires \
                         replacing. Rename {name} and update the stack again."
                    )));
                }
                let why = "Requested update requires the creation of a new physical resource; hence \
                           creating one.";
                let physical_id = current.physical_id.clone();
                let names = (id, physical_id.as_str(), kind.name);
                self.log(names, Status::UpdateInProgress, Some(why.to_owned()), now_ms);
                Ok(Some(self.creation(kind, wanted)))
            }
            Difference::InPlace(_) => {
                wanted.serial = current.serial;
                wanted.physical_id = current.physical_id.clone();
                let work = update(current, &wanted);
                let names = (id, wanted.physical_id.as_str(), kind.name);
                self.log(names, Status::UpdateInProgress, None, now_ms);
                Ok(Some((work, wanted)))
            }
            Difference::Same => {
                let kept = Instance {
                    uses: wanted.uses,
                    deletion_policy: wanted.deletion_policy,
                    metadata: wanted.metadata,
                    ..current.clone()
                };
                let before = self.resources.insert(id.to_owned(), kept);
                operation.journal.push(Undo { logical_id: id.to_owned(), before });
                operation.done_count += 1;
                Ok(None)
            }
        }
    }

    fn check_size(&self, id: &str, properties: &Value) -> Result<(), Failure> {
        let others = self.resources.values().filter(|other| other.logical_id != id);
        let bytes: usize = others.map(|other| functions::bytes_of(&other.properties)).sum();
        check_size(id, bytes + functions::bytes_of(properties))
    }

    fn creation(&mut self, kind: &Kind, mut wanted: Instance) -> (Work, Instance) {
        wanted.serial = self.serial_next;
        self.serial_next += 1;
        let properties = wanted.properties.clone();
        let chosen = kinds::chosen_name(kind, &properties).map(str::to_owned);
        let name = chosen.unwrap_or_else(|| {
            let stack = (self.name.as_str(), self.id.as_str());
            kinds::generated_name(kind, stack, &wanted.logical_id, wanted.serial, &properties)
        });
        let code = Object::of_code(&properties);
        (Work::Create { name, properties, code }, wanted)
    }

    fn resolved(
        &self,
        operation: &Operation,
        declared: &Declared,
        exports: &Exports,
    ) -> Result<Value, Failure> {
        let target = &operation.target;
        let resources =
            |id: &str, attribute: Option<&str>| value_of(&self.resources, id, attribute);
        let present = Present { resources: &resources, exports, imports: RefCell::default() };
        self.properties(target, &operation.conditions, declared, &present)
    }

    /// Resolves the properties of a declared resource.
    pub(crate) fn properties(
        &self,
        target: &Deployment,
        conditions: &BTreeMap<String, bool>,
        declared: &Declared,
        present: &Present<'_>,
    ) -> Result<Value, Failure> {
        let resolve = |scope: &Scope<'_>| scope.resolve(&declared.properties);
        let value = self.within(target, conditions, present, resolve)?;
        Ok(value.unwrap_or_else(|| Value::Object(serde_json::Map::new())))
    }

    /// Resolves values of a target.
    fn within<T>(
        &self,
        target: &Deployment,
        conditions: &BTreeMap<String, bool>,
        present: &Present<'_>,
        resolve: impl FnOnce(&Scope<'_>) -> T,
    ) -> T {
        let template = &target.template;
        resolve(&Scope {
            parameters: &parameters::resolved(&template.parameters, &target.parameters),
            mappings: &template.mappings,
            conditions,
            pseudo: &self.pseudo(target),
            lookup: present,
            spent_bytes: Cell::new(0),
        })
    }

    /// All resources of the target exist: the outputs, then the deletion of what is no longer wanted.
    fn arrive(
        &mut self,
        operation: &mut Operation,
        exports: &Exports,
        now_ms: u64,
    ) -> Result<(), Failure> {
        let resources =
            |id: &str, attribute: Option<&str>| value_of(&self.resources, id, attribute);
        let present = Present { resources: &resources, exports, imports: RefCell::default() };
        let target = &operation.target;
        let outputs = outputs(self, target, &operation.conditions, &present)?;
        self.check_exports(&outputs, exports)?;
        // Imports of the properties: they are resolved once more, now that everything exists.
        for id in &operation.order {
            let declared = &target.template.resources[id];
            self.properties(target, &operation.conditions, declared, &present)?;
        }
        let imports = present.imports.into_inner();
        (self.outputs, self.imports) = (outputs, imports);
        self.dismiss(operation);
        self.deployment = operation.target.clone();
        let status = match operation.kind {
            OperationKind::Create => Status::CreateComplete,
            _ => Status::UpdateCleanup,
        };
        self.enter(status, None, now_ms);
        operation.phase = match operation.kind {
            OperationKind::Create => Phase::Finish,
            _ => Phase::Cleanup,
        };
        Ok(())
    }

    fn check_exports(
        &self,
        outputs: &BTreeMap<String, OutputValue>,
        exports: &Exports,
    ) -> Result<(), Failure> {
        for name in outputs.values().filter_map(|output| output.export.as_ref()) {
            if let Some(other) = exports.get(name).filter(|other| other.stack_id != self.id) {
                let other = &other.stack_id;
                let why = format!("Export with name {name} is already exported by stack {other}.");
                return Err(Failure::invalid(why));
            }
        }
        let old = self.outputs.values();
        for (old, name) in old.filter_map(|output| Some((output, output.export.as_ref()?))) {
            let users = exports.get(name).map_or(&[] as &[String], |export| &export.importers);
            let new = outputs.values().find(|output| output.export.as_ref() == Some(name));
            let change = match new {
                None => "deleted",
                Some(new) if new.value != old.value => "updated",
                Some(_) => continue,
            };
            if !users.is_empty() {
                let users = users.join(" and ");
                let why = format!("Export {name} cannot be {change} as it is in use by {users}");
                return Err(Failure::invalid(why));
            }
        }
        Ok(())
    }

    /// Dooms removed and replaced resources, and those that an earlier operation left.
    fn dismiss(&mut self, operation: &mut Operation) {
        let wanted: BTreeSet<&String> = operation.order.iter().collect();
        let all = std::mem::take(&mut self.resources);
        let (kept, removed) = all.into_iter().partition(|(id, _)| wanted.contains(id));
        self.resources = kept;
        let removed: BTreeMap<String, Instance> = removed;
        for instance in removed.into_values() {
            let is_kept = instance.deletion_policy != Policy::Delete;
            operation.doomed.push(Doomed { instance, is_kept });
        }
        for undo in operation.journal.drain(..) {
            let Some(before) = undo.before else { continue };
            let current = self.resources.get(&undo.logical_id);
            if current.is_some_and(|current| current.serial != before.serial) {
                let declared = &operation.target.template.resources[&undo.logical_id];
                let is_kept = declared.replace_policy != Policy::Delete;
                operation.doomed.push(Doomed { instance: before, is_kept });
            }
        }
        let left = self.leftovers.drain(..);
        operation.doomed.extend(left.map(|instance| Doomed { instance, is_kept: false }));
    }

    /// Begins the way back after a failure.
    pub(crate) fn turn_back(
        &mut self,
        operation: &mut Operation,
        reason: Option<String>,
        now_ms: u64,
    ) {
        let is_create = operation.kind == OperationKind::Create;
        let verb = if is_create { "create" } else { "update" };
        let reason = reason.unwrap_or_else(|| {
            let failed = operation.failed.join(", ");
            format!("The following resource(s) failed to {verb}: [{failed}].")
        });
        let (status, phase, more) = match (operation.target.on_failure, is_create) {
            (OnFailure::DoNothing, true) => (Status::CreateFailed, Phase::Finish, ""),
            (OnFailure::DoNothing, false) => (Status::UpdateFailed, Phase::Finish, ""),
            (OnFailure::Delete, true) => {
                (Status::DeleteInProgress, Phase::Undo, " Delete requested by user.")
            }
            (_, true) => (Status::RollbackInProgress, Phase::Undo, " Rollback requested by user."),
            (_, false) => (Status::UpdateRollbackInProgress, Phase::Undo, ""),
        };
        operation.phase = phase;
        operation.is_left = phase == Phase::Finish;
        self.enter(status, Some(reason + more), now_ms);
    }
}

/// Refuses a resource with which the properties of a stack have this many bytes, if they are too many. Each
/// resource may be short: their sum counts.
///
/// # Errors
/// They are too many.
pub(crate) fn check_size(id: &str, bytes: usize) -> Result<(), Failure> {
    match bytes > PROPERTIES_BYTES_MAX {
        true => Err(Failure::invalid(format!(
            "the properties of all resources of a stack have {PROPERTIES_BYTES_MAX} bytes at most; put {id} \
             into another stack"
        ))),
        false => Ok(()),
    }
}

/// The change of a resource in place.
pub(crate) fn update(current: &Instance, wanted: &Instance) -> Work {
    let has_same_code = current.properties.get("Code") == wanted.properties.get("Code");
    let code = Object::of_code(&wanted.properties);
    Work::Update {
        physical_id: current.physical_id.clone(),
        before: current.properties.clone(),
        tags_before: current.tags.clone(),
        properties: wanted.properties.clone(),
        code: code.filter(|_| !has_same_code || current.is_uncertain),
    }
}
