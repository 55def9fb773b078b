//! A request's template, parameters and settings become the target of an operation.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::check;
use crate::document;
use crate::error::{Failure, Kind};
use crate::instance::Deployment;
use crate::kinds;
use crate::parameters;
use crate::request::Submission;
use crate::sam;
use crate::stack::Stack;
use crate::template::{self, Template};

/// A read template, before transforms are applied.
pub struct Summary {
    /// The template. With transforms, resources of unknown types are not refused.
    pub template: Template,
    /// The names of the transforms.
    pub transforms: Vec<String>,
    /// The capabilities that a request needs.
    pub capabilities: BTreeSet<&'static str>,
    /// The types that need them.
    pub reasons: BTreeSet<String>,
}

/// Reads a template without parameters.
///
/// # Errors
/// It is invalid.
pub fn summary(text: &str) -> Result<Summary, Failure> {
    let mut root = document::parse(text)?;
    let transforms = known_transforms(&root)?;
    if !transforms.is_empty() {
        root.remove("Globals");
    }
    let template = Template::from_tree(&root)?;
    if transforms.is_empty() {
        check::check(&template)?;
    }
    let (mut capabilities, reasons) = capabilities(&template);
    if !transforms.is_empty() {
        capabilities.insert("CAPABILITY_AUTO_EXPAND");
        if !capabilities.contains("CAPABILITY_NAMED_IAM") {
            capabilities.insert("CAPABILITY_IAM");
        }
    }
    Ok(Summary { template, transforms, capabilities, reasons })
}

fn known_transforms(root: &Map<String, Value>) -> Result<Vec<String>, Failure> {
    let transforms = template::transforms(root)?;
    match transforms.iter().find(|name| *name != sam::TRANSFORM) {
        Some(unknown) => Err(Failure::invalid(format!(
            "No transform named {unknown} found. This server has {}",
            sam::TRANSFORM
        ))),
        None => Ok(transforms),
    }
}

/// The capabilities that a template needs, and the types that need them.
fn capabilities(template: &Template) -> (BTreeSet<&'static str>, BTreeSet<String>) {
    let (mut found, mut reasons) = (BTreeSet::new(), BTreeSet::new());
    for declared in template.resources.values() {
        let Some(kind) = kinds::find(&declared.kind).filter(|kind| kind.is_identity) else {
            continue;
        };
        reasons.insert(kind.name.to_owned());
        let is_named = kind.naming.is_some_and(|(name, _)| declared.properties.get(name).is_some());
        found.insert(if is_named { "CAPABILITY_NAMED_IAM" } else { "CAPABILITY_IAM" });
    }
    if found.contains("CAPABILITY_NAMED_IAM") {
        found.remove("CAPABILITY_IAM");
    }
    (found, reasons)
}

/// Prepares a target; `text` is that of the template, `before` the stack if it exists.
///
/// # Errors
/// The template or a parameter is invalid, or a capability is not acknowledged. Messages of the transform
/// begin with `Transform`.
pub fn prepare(
    submission: &Submission,
    text: &str,
    before: Option<&Stack>,
    is_change_set: bool,
) -> Result<Deployment, Failure> {
    let root = document::parse(text)?;
    let transforms = known_transforms(&root)?;
    let declared = template::parameters(&root)?;
    let previous = before.map(|stack| &stack.deployment.parameters);
    let values = parameters::values(&declared, &submission.parameters, previous)?;
    let acknowledged = |name: &str| submission.capabilities.iter().any(|one| one == name);
    let mut processed = None;
    let root = match transforms.is_empty() {
        true => root,
        false => {
            if !is_change_set && !acknowledged("CAPABILITY_AUTO_EXPAND") {
                let why = "Requires capabilities : [CAPABILITY_AUTO_EXPAND]";
                return Err(Failure::new(Kind::InsufficientCapabilities, why));
            }
            let root = sam::expand(root, &parameters::resolved(&declared, &values))?;
            processed = Some(Value::Object(root.clone()).to_string());
            root
        }
    };
    let template = Template::from_tree(&root)?;
    check::check(&template)?;
    let (needed, _) = capabilities(&template);
    for name in needed {
        if !acknowledged(name) && !acknowledged("CAPABILITY_NAMED_IAM") {
            let why = format!("Requires capabilities : [{name}]");
            return Err(Failure::new(Kind::InsufficientCapabilities, why));
        }
    }
    let tags = || before.map_or_else(BTreeMap::new, |stack| stack.deployment.tags.clone());
    Ok(Deployment {
        body: text.to_owned(),
        processed,
        transforms,
        template,
        parameters: values,
        tags: submission.tags.clone().unwrap_or_else(tags),
        capabilities: submission.capabilities.clone(),
        role_arn: submission.role_arn.clone(),
        notification_arns: submission.notification_arns.clone(),
        on_failure: submission.on_failure,
        deletes_new: submission.deletes_new,
        timeout_ms: submission.timeout_minutes.map(|minutes| minutes.saturating_mul(60_000)),
    })
}
