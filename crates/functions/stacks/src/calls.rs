//! The calls that change stacks, and the dispatch of all calls.

use std::collections::BTreeSet;

use crate::answer;
use crate::change::{ChangeSet, ChangeSetStatus, ExecutionStatus};
use crate::changeset::{NO_CHANGES, compare};
use crate::error::{Failure, Kind};
use crate::given::{Given, Reply};
use crate::instance::Deployment;
use crate::operation::OperationKind;
use crate::prepare::prepare;
use crate::request::{ChangeSetName, ChangeSetRequest, Request, Source, Submission};
use crate::stack::Stack;
use crate::stacks::{Stacks, check_name};
use crate::status::{OnFailure, Status};
use crate::xml::{Xml, answer};

/// Most change sets of a stack. Those that cannot be executed go first.
const CHANGE_SETS_MAX: usize = 10;

impl Stacks {
    /// Carries out a request.
    ///
    /// # Errors
    /// The request is refused; nothing has changed.
    pub fn call(&mut self, request: &Request, given: Given<'_>) -> Result<Reply, Failure> {
        let id = given.unique;
        match request {
            Request::CreateStack(submission) => {
                let stack = self.create_stack(submission, given)?;
                Ok(named("CreateStack", stack, id))
            }
            Request::UpdateStack(submission) => {
                let stack = self.update_stack(submission, given)?;
                Ok(named("UpdateStack", stack, id))
            }
            Request::DeleteStack(stack, retained, token) => {
                let changed = self.delete_stack(stack, retained, token.as_deref(), given)?;
                Ok(Reply { xml: answer("DeleteStack", id, None::<fn(&mut Xml)>), changed })
            }
            Request::CreateChangeSet(request) => {
                let (stack, change_set) = self.create_change_set(request, given)?;
                let result = |xml: &mut Xml| {
                    xml.text("Id", &change_set);
                    xml.text("StackId", &stack);
                };
                let xml = answer("CreateChangeSet", id, Some(result));
                Ok(Reply { xml, changed: Some(stack) })
            }
            Request::ExecuteChangeSet(name, token, on_failure) => {
                let stack = self.execute(name, token.as_deref(), *on_failure, given)?;
                let xml = answer("ExecuteChangeSet", id, Some(|_: &mut Xml| ()));
                Ok(Reply { xml, changed: Some(stack) })
            }
            Request::DeleteChangeSet(name) => {
                let changed = self.delete_change_set(name)?;
                let xml = answer("DeleteChangeSet", id, Some(|_: &mut Xml| ()));
                Ok(Reply { xml, changed })
            }
            Request::UpdateTerminationProtection(name, is_protected) => {
                let stack = self.known(name)?.id.clone();
                self.changed(&stack)?.is_protected = *is_protected;
                Ok(named("UpdateTerminationProtection", stack, id))
            }
            _ => Ok(Reply { xml: answer::read(self, request, given)?, changed: None }),
        }
    }

    fn create_stack(
        &mut self,
        submission: &Submission,
        given: Given<'_>,
    ) -> Result<String, Failure> {
        let name = &submission.stack;
        check_name("stackName", name)?;
        if let Some(stack) = self.living(name) {
            if is_repeated(stack, submission.token.as_deref(), "CreateStack")? {
                return Ok(stack.id.clone());
            }
            let why = format!("Stack [{name}] already exists");
            return Err(Failure::new(Kind::AlreadyExists, why));
        }
        let target = prepare(submission, text(submission, given, None)?, None, false)?;
        let mut stack = self.empty(name, Status::CreateInProgress, given);
        stack.is_protected = submission.is_protected;
        compare(&stack, &target, &self.exports())?;
        stack.remember(submission.token.as_deref(), "CreateStack");
        stack.begin(OperationKind::Create, target, None, given.now_ms)?;
        let id = stack.id.clone();
        self.add(stack)?;
        Ok(id)
    }

    fn empty(&self, name: &str, status: Status, given: Given<'_>) -> Stack {
        let place = self.place().clone();
        let (region, account) = (&place.region, &place.account);
        let id = format!("arn:aws:cloudformation:{region}:{account}:stack/{name}/{}", given.unique);
        Stack::new(id, name.to_owned(), place, status, given.now_ms)
    }

    fn update_stack(
        &mut self,
        submission: &Submission,
        given: Given<'_>,
    ) -> Result<String, Failure> {
        let stack = self.existing(&submission.stack)?;
        let id = stack.id.clone();
        if is_repeated(stack, submission.token.as_deref(), "UpdateStack")? {
            return Ok(id);
        }
        check_update(stack)?;
        let target =
            prepare(submission, text(submission, given, Some(stack))?, Some(stack), false)?;
        if compare(stack, &target, &self.exports())?.is_same {
            return Err(Failure::invalid("No updates are to be performed."));
        }
        let stack = self.changed(&id)?;
        stack.remember(submission.token.as_deref(), "UpdateStack");
        make_obsolete(stack, None);
        stack.begin(OperationKind::Update, target, None, given.now_ms)?;
        Ok(id)
    }

    /// The stack of a name, for calls that say `Stack [X] does not exist`.
    fn existing(&self, name: &str) -> Result<&Stack, Failure> {
        let missing = || Failure::invalid(format!("Stack [{name}] does not exist"));
        self.living(name).ok_or_else(missing)
    }

    fn delete_stack(
        &mut self,
        name: &str,
        retained: &[String],
        token: Option<&str>,
        given: Given<'_>,
    ) -> Result<Option<String>, Failure> {
        let Some(stack) = self.living(name) else { return Ok(None) };
        let id = stack.id.clone();
        if stack.status == Status::DeleteInProgress || is_repeated(stack, token, "DeleteStack")? {
            return Ok(None);
        }
        let status = stack.status;
        if status.is_in_progress() {
            return Err(Failure::invalid(format!(
                "Stack [{id}] cannot be deleted while in status {}; wait for its end",
                status.as_str()
            )));
        }
        if stack.is_protected {
            let why =
                format!("Stack [{name}] cannot be deleted while TerminationProtection is enabled");
            return Err(Failure::invalid(why));
        }
        if !retained.is_empty() && status != Status::DeleteFailed {
            return Err(Failure::invalid(format!(
                "Invalid operation on stack [{id}]. RetainResources can be used for a stack in the \
                 DELETE_FAILED state only"
            )));
        }
        let known = |id: &&String| stack.resources.contains_key(*id);
        if let Some(unknown) = retained.iter().find(|id| !known(id)) {
            let why =
                format!("The specified resource [{unknown}] of RetainResources does not exist");
            return Err(Failure::invalid(why));
        }
        let exports = self.exports();
        let used = exports.iter().find(|(_, one)| one.stack_id == id && !one.importers.is_empty());
        if let Some((export, used)) = used {
            let users = used.importers.join(" and ");
            let why = format!("Export {export} cannot be deleted as it is in use by {users}");
            return Err(Failure::invalid(why));
        }
        let retained: BTreeSet<String> = retained.iter().cloned().collect();
        let stack = self.changed(&id)?;
        stack.remember(token, "DeleteStack");
        make_obsolete(stack, None);
        stack.begin_delete(&retained, given.now_ms)?;
        Ok(Some(id))
    }

    fn create_change_set(
        &mut self,
        request: &ChangeSetRequest,
        given: Given<'_>,
    ) -> Result<(String, String), Failure> {
        check_name("changeSetName", &request.name)?;
        let submission = &request.submission;
        let name = &submission.stack;
        let before = match (self.living(name), request.is_creation) {
            (None, true) => {
                check_name("stackName", name)?;
                None
            }
            (None, false) => {
                return Err(self.existing(name).err().unwrap_or_else(|| missing(name)));
            }
            (Some(stack), is_creation) => {
                let same = stack.change_sets.values().find(|one| one.name == request.name);
                if let Some(same) = same {
                    if same.token.is_some() && same.token == submission.token {
                        return Ok((stack.id.clone(), same.id.clone()));
                    }
                    let why = format!("ChangeSet [{}] already exists", request.name);
                    return Err(Failure::new(Kind::AlreadyExists, why));
                }
                match (is_creation, stack.status) {
                    (true, Status::ReviewInProgress) => {}
                    (true, _) => {
                        let why = format!(
                            "Stack [{name}] already exists and cannot be created again with the changeSet \
                             [{}].",
                            request.name
                        );
                        return Err(Failure::invalid(why));
                    }
                    (false, _) => check_update(stack)?,
                }
                Some(stack)
            }
        };
        let text = text(submission, given, before)?;
        let (target, failure) = match prepare(submission, text, before, true) {
            Ok(target) => (target, None),
            Err(failure) if failure.message.starts_with("Transform") => {
                let target = Deployment { body: text.to_owned(), ..Deployment::default() };
                (target, Some(failure.message))
            }
            Err(failure) => return Err(failure),
        };
        let new = self.empty(name, Status::ReviewInProgress, given);
        let is_new = before.is_none();
        let stack = before.unwrap_or(&new);
        let (changes, failure) = match failure {
            Some(failure) => (Vec::new(), Some(failure)),
            None => match compare(stack, &target, &self.exports()) {
                Ok(found) if found.is_same => (Vec::new(), Some(NO_CHANGES.to_owned())),
                Ok(found) => (found.changes, None),
                Err(failure) => (Vec::new(), Some(failure.message)),
            },
        };
        let place = self.place();
        let (region, account) = (&place.region, &place.account);
        let head = format!("arn:aws:cloudformation:{region}:{account}:changeSet");
        let change_set = ChangeSet {
            id: format!("{head}/{}/{}", request.name, given.unique),
            name: request.name.clone(),
            description: request.description.clone(),
            kind: if request.is_creation { OperationKind::Create } else { OperationKind::Update },
            target,
            changes,
            status: match failure {
                Some(_) => ChangeSetStatus::Failed,
                None => ChangeSetStatus::CreateComplete,
            },
            execution: match failure {
                Some(_) => ExecutionStatus::Unavailable,
                None => ExecutionStatus::Available,
            },
            reason: failure,
            created_ms: given.now_ms,
            token: submission.token.clone(),
        };
        let (stack_id, id) = (stack.id.clone(), change_set.id.clone());
        if is_new {
            let mut stack = new;
            let why = Some("User Initiated".to_owned());
            stack.enter(Status::ReviewInProgress, why, given.now_ms);
            self.add(stack)?;
        }
        let stack = self.changed(&stack_id)?;
        make_room(stack)?;
        stack.change_sets.insert(id.clone(), change_set);
        Ok((stack_id, id))
    }

    /// The change set of a name or ARN, and its stack.
    pub(crate) fn change_set(&self, name: &ChangeSetName) -> Result<(&Stack, &ChangeSet), Failure> {
        let missing = || {
            let why = format!("ChangeSet [{}] does not exist", name.name);
            Failure::new(Kind::ChangeSetNotFound, why)
        };
        let is_arn = name.name.starts_with("arn:");
        if !is_arn && name.stack.is_none() {
            return Err(Failure::invalid(
                "StackName must be specified if ChangeSetName is not an ARN.",
            ));
        }
        let stack = name.stack.as_ref().map(|stack| self.existing(stack)).transpose()?;
        let all = self.alive().filter(|one| stack.is_none_or(|stack| stack.id == one.id));
        let mut all = all.flat_map(|stack| stack.change_sets.values().map(move |set| (stack, set)));
        all.find(|(_, set)| set.id == name.name || !is_arn && set.name == name.name)
            .ok_or_else(missing)
    }

    fn execute(
        &mut self,
        name: &ChangeSetName,
        token: Option<&str>,
        on_failure: Option<OnFailure>,
        given: Given<'_>,
    ) -> Result<String, Failure> {
        let (stack, change_set) = self.change_set(name)?;
        if is_repeated(stack, token, &format!("ExecuteChangeSet {}", change_set.id))? {
            return Ok(stack.id.clone());
        }
        let status = match change_set.execution {
            ExecutionStatus::Available if !stack.status.is_in_progress() => None,
            ExecutionStatus::Available => Some(stack.status.as_str()),
            ExecutionStatus::Unavailable => Some(change_set.status.as_str()),
            other => Some(other.as_str()),
        };
        if let Some(status) = status {
            let id = &change_set.id;
            let why =
                format!("ChangeSet [{id}] cannot be executed in its current status of [{status}]");
            return Err(Failure::new(Kind::InvalidChangeSetStatus, why));
        }
        let (stack_id, id) = (stack.id.clone(), change_set.id.clone());
        let (kind, mut target) = (change_set.kind, change_set.target.clone());
        target.on_failure = on_failure.unwrap_or(target.on_failure);
        let stack = self.changed(&stack_id)?;
        stack.remember(token, &format!("ExecuteChangeSet {id}"));
        make_obsolete(stack, Some(&id));
        stack.begin(kind, target, Some(id), given.now_ms)?;
        Ok(stack_id)
    }

    fn delete_change_set(&mut self, name: &ChangeSetName) -> Result<Option<String>, Failure> {
        let (stack, change_set) = match self.change_set(name) {
            Ok(found) => found,
            // A change set that is gone is deleted.
            Err(failure) if failure.kind == Kind::ChangeSetNotFound => return Ok(None),
            Err(failure) => return Err(failure),
        };
        if change_set.execution == ExecutionStatus::ExecuteInProgress {
            let why = format!("ChangeSet [{}] is being executed; wait for its end", change_set.id);
            return Err(Failure::new(Kind::InvalidChangeSetStatus, why));
        }
        let (stack_id, id) = (stack.id.clone(), change_set.id.clone());
        self.changed(&stack_id)?.change_sets.remove(&id);
        Ok(Some(stack_id))
    }
}

fn missing(name: &str) -> Failure {
    Failure::invalid(format!("Stack [{name}] does not exist"))
}

fn named(operation: &str, stack: String, request_id: &str) -> Reply {
    let xml = answer(operation, request_id, Some(|xml: &mut Xml| xml.text("StackId", &stack)));
    Reply { xml, changed: Some(stack) }
}

/// The text of the template of a submission.
fn text<'a>(
    submission: &'a Submission,
    given: Given<'a>,
    before: Option<&'a Stack>,
) -> Result<&'a str, Failure> {
    match &submission.source {
        Source::Body(text) => Ok(text),
        Source::Url(url) => given.template.ok_or_else(|| {
            Failure::invalid(format!(
                "S3 error: the template {url:.200} was not read; upload it first"
            ))
        }),
        Source::Previous => {
            let body = before.map(|stack| stack.deployment.body.as_str());
            let none = || Failure::invalid("There is no previous template; give TemplateBody");
            body.filter(|body| !body.is_empty()).ok_or_else(none)
        }
    }
}

/// Returns true if the request was carried out before.
fn is_repeated(stack: &Stack, token: Option<&str>, operation: &str) -> Result<bool, Failure> {
    match token.and_then(|token| Some((token, stack.begun_by(token)?))) {
        None => Ok(false),
        Some((_, before)) if before == operation => Ok(true),
        Some((token, before)) => {
            let why =
                format!("The token {token} was used for {before} of this stack; use a new one");
            Err(Failure::new(Kind::TokenAlreadyExists, why))
        }
    }
}

fn check_update(stack: &Stack) -> Result<(), Failure> {
    match stack.status.can_update() {
        true => Ok(()),
        false => Err(Failure::invalid(format!(
            "Stack:{} is in {} state and can not be updated.",
            stack.id,
            stack.status.as_str()
        ))),
    }
}

/// Marks the change sets of a stack that changes: one is being executed, the others are obsolete.
fn make_obsolete(stack: &mut Stack, executed: Option<&str>) {
    for change_set in stack.change_sets.values_mut() {
        if Some(change_set.id.as_str()) == executed {
            change_set.execution = ExecutionStatus::ExecuteInProgress;
        } else if change_set.execution == ExecutionStatus::Available {
            change_set.execution = ExecutionStatus::Obsolete;
        }
    }
}

/// Removes the oldest change set that cannot be executed, if there are too many.
fn make_room(stack: &mut Stack) -> Result<(), Failure> {
    if stack.change_sets.len() < CHANGE_SETS_MAX {
        return Ok(());
    }
    let keeps = [ExecutionStatus::Available, ExecutionStatus::ExecuteInProgress];
    let of_no_use = stack.change_sets.values().filter(|one| !keeps.contains(&one.execution));
    let oldest = of_no_use.min_by_key(|one| one.created_ms).map(|one| one.id.clone());
    let full = || {
        let why = format!("a stack has at most {CHANGE_SETS_MAX} change sets; delete one");
        Failure::new(Kind::LimitExceeded, why)
    };
    let oldest = oldest.ok_or_else(full)?;
    stack.change_sets.remove(&oldest);
    Ok(())
}
