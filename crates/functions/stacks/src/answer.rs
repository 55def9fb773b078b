//! The calls that read stacks, and their answers.

use serde_json::Value;

use crate::change::{Change, ChangeAction, ChangeSet};
use crate::error::Failure;
use crate::given::Given;
use crate::instance::{Deployment, Instance};
use crate::prepare::{Summary, summary};
use crate::request::{ChangeSetName, Request, Source};
use crate::stack::{Event, Stack};
use crate::stacks::Stacks;
use crate::status::{OnFailure, Status};
use crate::template::Parameter;
use crate::xml::{Xml, answer};

/// Most items of a page.
const PAGE_MAX: usize = 100;
/// The value of a secret parameter in answers.
const SECRET: &str = "****";

/// Answers a request that changes nothing.
///
/// # Errors
/// The request is refused.
pub(crate) fn read(
    stacks: &Stacks,
    request: &Request,
    given: Given<'_>,
) -> Result<String, Failure> {
    let id = given.unique;
    match request {
        Request::DescribeStacks(name, page) => describe_stacks(stacks, name.as_deref(), page, id),
        Request::ListStacks(statuses, page) => list_stacks(stacks, statuses, page, id),
        Request::DescribeStackEvents(name, page) => events(known(stacks, name)?, page, id),
        Request::DescribeStackResource(name, resource) => {
            let stack = stacks.known(name)?;
            let instance = instance_of(stack, resource)?;
            Ok(answer(
                "DescribeStackResource",
                id,
                Some(|xml: &mut Xml| {
                    xml.within("StackResourceDetail", |xml| {
                        named(xml, stack);
                        xml.time("LastUpdatedTimestamp", instance.changed_ms);
                        resource_members(xml, instance);
                        xml.maybe(
                            "Metadata",
                            instance.metadata.as_ref().map(Value::to_string).as_deref(),
                        );
                    });
                }),
            ))
        }
        Request::DescribeStackResources(name, physical, logical) => {
            let names = (name.as_deref(), physical.as_deref(), logical.as_deref());
            describe_resources(stacks, names, id)
        }
        Request::ListStackResources(name, page) => list_resources(stacks.known(name)?, page, id),
        Request::GetTemplate(name, change_set, is_processed) => {
            get_template(stacks, name.as_deref(), change_set.as_ref(), *is_processed, id)
        }
        Request::GetTemplateSummary(source) => {
            let summary = summary(source_text(source, given)?)?;
            Ok(answer(
                "GetTemplateSummary",
                id,
                Some(|xml: &mut Xml| summarised(xml, &summary, true)),
            ))
        }
        Request::GetStackSummary(name) => {
            let summary = summary(&stacks.known(name)?.deployment.body)?;
            Ok(answer(
                "GetTemplateSummary",
                id,
                Some(|xml: &mut Xml| summarised(xml, &summary, true)),
            ))
        }
        Request::ValidateTemplate(source) => {
            let summary = summary(source_text(source, given)?)?;
            Ok(answer(
                "ValidateTemplate",
                id,
                Some(|xml: &mut Xml| summarised(xml, &summary, false)),
            ))
        }
        Request::DescribeChangeSet(name, page) => {
            let (stack, change_set) = stacks.change_set(name)?;
            describe_change_set(stack, change_set, page, id)
        }
        Request::ListChangeSets(name, page) => list_change_sets(known(stacks, name)?, page, id),
        Request::ListExports(page) => list_exports(stacks, page, id),
        Request::CreateStack(_)
        | Request::UpdateStack(_)
        | Request::DeleteStack(..)
        | Request::CreateChangeSet(_)
        | Request::ExecuteChangeSet(..)
        | Request::DeleteChangeSet(_)
        | Request::UpdateTerminationProtection(..) => {
            Err(Failure::invalid("the request changes a stack"))
        }
    }
}

/// The stack of a call that says `Stack [X] does not exist`.
fn known<'a>(stacks: &'a Stacks, name: &str) -> Result<&'a Stack, Failure> {
    stacks.known(name).map_err(|_| Failure::invalid(format!("Stack [{name}] does not exist")))
}

fn source_text<'a>(source: &'a Source, given: Given<'a>) -> Result<&'a str, Failure> {
    let unread = || Failure::invalid("S3 error: the template was not read; upload it first");
    match source {
        Source::Body(text) => Ok(text),
        Source::Url(_) | Source::Previous => given.template.ok_or_else(unread),
    }
}

/// A page of items in order, and the token of the next one. A token is the key of the last item of the page
/// before: items that come or go meanwhile move no other.
fn page<T>(
    items: impl IntoIterator<Item = (String, T)>,
    token: &Option<String>,
) -> Result<(Vec<T>, Option<String>), Failure> {
    let mut items = items.into_iter().peekable();
    if let Some(token) = token {
        // The token is consumed with the item that it names.
        if !items.by_ref().any(|(key, _)| key == *token) {
            return Err(Failure::invalid("NextToken is invalid; begin with the first page"));
        }
    }
    let (mut found, mut last) = (Vec::new(), None);
    for (key, item) in items.by_ref().take(PAGE_MAX) {
        found.push(item);
        last = Some(key);
    }
    let next = items.peek().and(last);
    Ok((found, next))
}

fn named(xml: &mut Xml, stack: &Stack) {
    xml.text("StackName", &stack.name);
    xml.text("StackId", &stack.id);
}

fn describe_stacks(
    stacks: &Stacks,
    name: Option<&str>,
    token: &Option<String>,
    id: &str,
) -> Result<String, Failure> {
    let (found, next) = match name {
        Some(name) => (vec![stacks.known(name)?], None),
        None => page(stacks.alive().map(|stack| (stack.id.clone(), stack)), token)?,
    };
    Ok(answer(
        "DescribeStacks",
        id,
        Some(|xml: &mut Xml| {
            xml.list("Stacks", found, describe_stack);
            xml.maybe("NextToken", next.as_deref());
        }),
    ))
}

fn describe_stack(xml: &mut Xml, stack: &Stack) {
    let deployment = &stack.deployment;
    named(xml, stack);
    let change_set = stack.change_sets.values().max_by_key(|one| one.created_ms);
    xml.maybe("ChangeSetId", change_set.map(|one| one.id.as_str()));
    xml.maybe("Description", deployment.template.description.as_deref());
    parameters(xml, deployment);
    times(xml, stack);
    xml.text("StackStatus", stack.status.as_str());
    xml.maybe("StackStatusReason", stack.reason.as_deref());
    xml.flag("DisableRollback", deployment.on_failure == OnFailure::DoNothing);
    xml.texts("NotificationARNs", &deployment.notification_arns);
    if let Some(timeout_ms) = deployment.timeout_ms {
        xml.text("TimeoutInMinutes", &(timeout_ms / 60_000).to_string());
    }
    xml.texts("Capabilities", &deployment.capabilities);
    xml.list("Outputs", &stack.outputs, |xml, (name, output)| {
        xml.text("OutputKey", name);
        xml.text("OutputValue", &output.value);
        xml.maybe("Description", output.description.as_deref());
        xml.maybe("ExportName", output.export.as_deref());
    });
    xml.maybe("RoleARN", deployment.role_arn.as_deref());
    tags(xml, deployment);
    xml.flag("EnableTerminationProtection", stack.is_protected);
    not_checked(xml, "StackDriftStatus");
}

fn not_checked(xml: &mut Xml, name: &str) {
    xml.within("DriftInformation", |xml| xml.text(name, "NOT_CHECKED"));
}

fn times(xml: &mut Xml, stack: &Stack) {
    xml.time("CreationTime", stack.created_ms);
    if let Some(time_ms) = stack.updated_ms {
        xml.time("LastUpdatedTime", time_ms);
    }
    if let Some(time_ms) = stack.deleted_ms {
        xml.time("DeletionTime", time_ms);
    }
}

fn parameters(xml: &mut Xml, deployment: &Deployment) {
    xml.list("Parameters", &deployment.parameters, |xml, (name, value)| {
        let declared = deployment.template.parameters.get(name);
        let is_secret = declared.is_some_and(|declared| declared.is_secret);
        xml.text("ParameterKey", name);
        xml.text("ParameterValue", if is_secret { SECRET } else { value });
    });
}

fn tags(xml: &mut Xml, deployment: &Deployment) {
    xml.list("Tags", &deployment.tags, |xml, (key, value)| {
        xml.text("Key", key);
        xml.text("Value", value);
    });
}

fn list_stacks(
    stacks: &Stacks,
    statuses: &[Status],
    token: &Option<String>,
    id: &str,
) -> Result<String, Failure> {
    let is_wanted = |stack: &&Stack| statuses.is_empty() || statuses.contains(&stack.status);
    let found = stacks.all().filter(is_wanted).map(|stack| (stack.id.clone(), stack));
    let (found, next) = page(found, token)?;
    Ok(answer(
        "ListStacks",
        id,
        Some(|xml: &mut Xml| {
            xml.list("StackSummaries", found, |xml, stack| {
                named(xml, stack);
                let description = stack.deployment.template.description.as_deref();
                xml.maybe("TemplateDescription", description);
                times(xml, stack);
                xml.text("StackStatus", stack.status.as_str());
                xml.maybe("StackStatusReason", stack.reason.as_deref());
                not_checked(xml, "StackDriftStatus");
            });
            xml.maybe("NextToken", next.as_deref());
        }),
    ))
}

fn events(stack: &Stack, token: &Option<String>, id: &str) -> Result<String, Failure> {
    let newest_first = stack.events.iter().rev().map(|event| (event.number.to_string(), event));
    let (found, next) = page(newest_first, token)?;
    Ok(answer(
        "DescribeStackEvents",
        id,
        Some(|xml: &mut Xml| {
            xml.list("StackEvents", found, |xml, event| describe_event(xml, stack, event));
            xml.maybe("NextToken", next.as_deref());
        }),
    ))
}

fn describe_event(xml: &mut Xml, stack: &Stack, event: &Event) {
    let (status, number) = (event.status.as_str(), event.number);
    named(xml, stack);
    xml.text("EventId", &format!("{}-{status}-{number}", event.logical_id));
    xml.text("LogicalResourceId", &event.logical_id);
    xml.text("PhysicalResourceId", &event.physical_id);
    xml.text("ResourceType", &event.kind);
    xml.time("Timestamp", event.time_ms);
    xml.text("ResourceStatus", status);
    xml.maybe("ResourceStatusReason", event.reason.as_deref());
    xml.maybe("ClientRequestToken", event.token.as_deref());
}

fn instance_of<'a>(stack: &'a Stack, resource: &str) -> Result<&'a Instance, Failure> {
    let missing = || {
        let name = &stack.name;
        Failure::invalid(format!("Resource {resource} does not exist for stack {name}"))
    };
    stack.instances().find(|instance| instance.logical_id == resource).ok_or_else(missing)
}

fn resource_members(xml: &mut Xml, instance: &Instance) {
    xml.text("LogicalResourceId", &instance.logical_id);
    xml.text("PhysicalResourceId", &instance.physical_id);
    xml.text("ResourceType", &instance.kind);
    xml.text("ResourceStatus", instance.status.as_str());
    xml.maybe("ResourceStatusReason", instance.reason.as_deref());
    not_checked(xml, "StackResourceDriftStatus");
}

fn describe_resources(
    stacks: &Stacks,
    (name, physical, logical): (Option<&str>, Option<&str>, Option<&str>),
    id: &str,
) -> Result<String, Failure> {
    let stack = match (name, physical) {
        (Some(name), None) => known(stacks, name)?,
        (None, Some(physical)) => {
            let has_it = |stack: &&Stack| stack.instances().any(|one| one.physical_id == physical);
            let missing = || Failure::invalid(format!("Stack for {physical} does not exist"));
            stacks.alive().find(has_it).ok_or_else(missing)?
        }
        _ => {
            return Err(Failure::invalid(
                "StackName or PhysicalResourceId must be given, not both",
            ));
        }
    };
    let is_wanted = |one: &&Instance| logical.is_none_or(|logical| one.logical_id == logical);
    // One answer has them all, as in CloudFormation: at most 100.
    let found = stack.instances().filter(is_wanted).take(PAGE_MAX);
    Ok(answer(
        "DescribeStackResources",
        id,
        Some(|xml: &mut Xml| {
            xml.list("StackResources", found, |xml, instance| {
                named(xml, stack);
                xml.time("Timestamp", instance.changed_ms);
                resource_members(xml, instance);
            });
        }),
    ))
}

fn list_resources(stack: &Stack, token: &Option<String>, id: &str) -> Result<String, Failure> {
    let all = stack.instances().map(|one| (format!("{}-{}", one.logical_id, one.serial), one));
    let (found, next) = page(all, token)?;
    Ok(answer(
        "ListStackResources",
        id,
        Some(|xml: &mut Xml| {
            xml.list("StackResourceSummaries", found, |xml, instance| {
                xml.time("LastUpdatedTimestamp", instance.changed_ms);
                resource_members(xml, instance);
            });
            xml.maybe("NextToken", next.as_deref());
        }),
    ))
}

fn get_template(
    stacks: &Stacks,
    name: Option<&str>,
    change_set: Option<&ChangeSetName>,
    is_processed: bool,
    id: &str,
) -> Result<String, Failure> {
    let deployment = match (change_set, name) {
        (Some(change_set), _) => &stacks.change_set(change_set)?.1.target,
        (None, Some(name)) => &stacks.known(name)?.deployment,
        (None, None) => return Err(Failure::invalid("StackName or ChangeSetName must be given")),
    };
    let processed = deployment.processed.as_ref().filter(|_| is_processed);
    Ok(answer(
        "GetTemplate",
        id,
        Some(|xml: &mut Xml| {
            xml.text("TemplateBody", processed.unwrap_or(&deployment.body));
            xml.texts("StagesAvailable", ["Original", "Processed"]);
        }),
    ))
}

fn summarised(xml: &mut Xml, summary: &Summary, is_summary: bool) {
    let template = &summary.template;
    xml.list("Parameters", &template.parameters, |xml, (name, parameter)| {
        declared(xml, name, parameter, is_summary);
    });
    xml.maybe("Description", template.description.as_deref());
    xml.texts("Capabilities", &summary.capabilities);
    if !summary.reasons.is_empty() {
        let types: Vec<&str> = summary.reasons.iter().map(String::as_str).collect();
        let why = format!("The following resource(s) require capabilities: [{}]", types.join(", "));
        xml.text("CapabilitiesReason", &why);
    }
    xml.texts("DeclaredTransforms", &summary.transforms);
    if is_summary {
        xml.texts("ResourceTypes", template.resources.values().map(|one| one.kind.as_str()));
        xml.text("Version", "2010-09-09");
        xml.maybe("Metadata", template.metadata.as_ref().map(Value::to_string).as_deref());
    }
}

fn declared(xml: &mut Xml, name: &str, parameter: &Parameter, is_summary: bool) {
    xml.text("ParameterKey", name);
    xml.maybe("DefaultValue", parameter.default.as_deref());
    xml.flag("NoEcho", parameter.is_secret);
    xml.maybe("Description", parameter.description.as_deref());
    if is_summary {
        xml.text("ParameterType", &parameter.kind);
        xml.within("ParameterConstraints", |xml| {
            xml.texts("AllowedValues", &parameter.allowed_values);
        });
    }
}

fn describe_change_set(
    stack: &Stack,
    change_set: &ChangeSet,
    token: &Option<String>,
    id: &str,
) -> Result<String, Failure> {
    let all = change_set.changes.iter().map(|change| (change.logical_id.clone(), change));
    let (changes, next) = page(all, token)?;
    let target = &change_set.target;
    Ok(answer(
        "DescribeChangeSet",
        id,
        Some(|xml: &mut Xml| {
            xml.text("ChangeSetName", &change_set.name);
            xml.text("ChangeSetId", &change_set.id);
            named(xml, stack);
            xml.maybe("Description", change_set.description.as_deref());
            parameters(xml, target);
            xml.time("CreationTime", change_set.created_ms);
            xml.text("ExecutionStatus", change_set.execution.as_str());
            xml.text("Status", change_set.status.as_str());
            xml.maybe("StatusReason", change_set.reason.as_deref());
            xml.texts("NotificationARNs", &target.notification_arns);
            xml.within("RollbackConfiguration", |_| ());
            xml.texts("Capabilities", &target.capabilities);
            tags(xml, target);
            xml.list("Changes", changes, describe_change);
            xml.maybe("NextToken", next.as_deref());
            xml.flag("IncludeNestedStacks", false);
            xml.text("OnStackFailure", target.on_failure.as_str());
        }),
    ))
}

fn describe_change(xml: &mut Xml, change: &Change) {
    xml.text("Type", "Resource");
    xml.within("ResourceChange", |xml| {
        xml.text("Action", change.action.as_str());
        xml.text("LogicalResourceId", &change.logical_id);
        xml.maybe("PhysicalResourceId", change.physical_id.as_deref());
        xml.text("ResourceType", &change.kind);
        xml.maybe("Replacement", change.replacement.map(|one| one.as_str()));
        let properties = (!change.properties.is_empty()).then_some("Properties");
        let scope = change.scope.iter().map(String::as_str);
        xml.texts("Scope", scope.clone().chain(properties));
        if change.action != ChangeAction::Modify {
            return xml.within("Details", |_| ());
        }
        let properties = change.properties.iter().map(|(name, needs_new)| {
            let needed = if *needs_new { "Always" } else { "Never" };
            ("Properties", Some(name.as_str()), needed)
        });
        let all = properties.chain(scope.map(|attribute| (attribute, None, "Never")));
        xml.list("Details", all, |xml, (attribute, name, needed)| {
            xml.within("Target", |xml| {
                xml.text("Attribute", attribute);
                xml.maybe("Name", name);
                xml.text("RequiresRecreation", needed);
            });
            xml.text("Evaluation", "Static");
            xml.text("ChangeSource", "DirectModification");
        });
    });
}

fn list_change_sets(stack: &Stack, token: &Option<String>, id: &str) -> Result<String, Failure> {
    let all = stack.change_sets.values().map(|one| (one.id.clone(), one));
    let (found, next) = page(all, token)?;
    Ok(answer(
        "ListChangeSets",
        id,
        Some(|xml: &mut Xml| {
            xml.list("Summaries", found, |xml, change_set| {
                named(xml, stack);
                xml.text("ChangeSetId", &change_set.id);
                xml.text("ChangeSetName", &change_set.name);
                xml.text("ExecutionStatus", change_set.execution.as_str());
                xml.text("Status", change_set.status.as_str());
                xml.maybe("StatusReason", change_set.reason.as_deref());
                xml.time("CreationTime", change_set.created_ms);
                xml.maybe("Description", change_set.description.as_deref());
            });
            xml.maybe("NextToken", next.as_deref());
        }),
    ))
}

fn list_exports(stacks: &Stacks, token: &Option<String>, id: &str) -> Result<String, Failure> {
    let exports = stacks.exports();
    let (found, next) = page(exports.iter().map(|(name, one)| (name.clone(), (name, one))), token)?;
    Ok(answer(
        "ListExports",
        id,
        Some(|xml: &mut Xml| {
            xml.list("Exports", found, |xml, (name, export)| {
                xml.text("ExportingStackId", &export.stack_id);
                xml.text("Name", name);
                xml.text("Value", &export.value);
            });
            xml.maybe("NextToken", next.as_deref());
        }),
    ))
}
