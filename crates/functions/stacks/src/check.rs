//! The names that a template uses: each must exist. The order of its resources.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::error::Failure;
use crate::functions::{PSEUDO, Reference, references};
use crate::graph::{self, Uses};
use crate::kinds;
use crate::template::Template;

/// Checks types, required properties, and every name that a template uses.
///
/// # Errors
/// The first problem, in the words of CloudFormation.
pub fn check(template: &Template) -> Result<(), Failure> {
    let unknown = template.resources.values().map(|declared| declared.kind.as_str());
    let unknown: BTreeSet<&str> = unknown.filter(|kind| kinds::find(kind).is_none()).collect();
    if !unknown.is_empty() {
        let unknown = Vec::from_iter(unknown).join(", ");
        return Err(Failure::format(format_args!(
            "Unrecognized resource types: [{unknown}]. This server has {}",
            kinds::names()
        )));
    }
    for (name, declared) in &template.resources {
        let kind = kinds::find(&declared.kind);
        let mut required = kind.iter().flat_map(|kind| kind.required);
        if let Some(missing) = required.find(|key| declared.properties.get(key).is_none()) {
            return Err(Failure::invalid(format!(
                "Properties validation failed for resource {name} with message: #: required key \
                 [{missing}] not found"
            )));
        }
        check_condition(template, declared.condition.as_deref(), "Resources")?;
        check_value(template, &declared.properties, "Resources")?;
        let missing = declared.depends_on.iter().filter(|on| !template.resources.contains_key(*on));
        unresolved(missing.map(String::as_str).collect(), "Resources")?;
    }
    for output in template.outputs.values() {
        check_condition(template, output.condition.as_deref(), "Outputs")?;
        check_value(template, &output.value, "Outputs")?;
        if let Some(export) = &output.export {
            check_value(template, export, "Outputs")?;
        }
    }
    order(&uses(template, None)?).map(drop)
}

/// The resources whose conditions hold.
pub fn active(template: &Template, conditions: &BTreeMap<String, bool>) -> BTreeSet<String> {
    let holds = |name: &String| conditions.get(name).copied().unwrap_or(false);
    let all = template.resources.iter();
    let all = all.filter(|(_, declared)| declared.condition.as_ref().is_none_or(holds));
    all.map(|(name, _)| name.clone()).collect()
}

/// The resources that each resource uses. With the values of the conditions, those whose condition does not
/// hold are left out.
///
/// # Errors
/// A resource uses one whose condition does not hold.
pub fn uses(
    template: &Template,
    conditions: Option<&BTreeMap<String, bool>>,
) -> Result<Uses<String>, Failure> {
    let active = conditions.map(|conditions| active(template, conditions));
    let is_active = |name: &str| active.as_ref().is_none_or(|active| active.contains(name));
    let mut all = Uses::new();
    for (name, declared) in &template.resources {
        if !is_active(name) {
            continue;
        }
        let mut found = Vec::new();
        references(&declared.properties, conditions, &mut found)?;
        let named = found.iter().filter_map(|reference| match reference {
            Reference::Ref(name) | Reference::GetAtt(name, _) => Some(*name),
            Reference::Condition(_) => None,
        });
        let named: BTreeSet<&str> =
            named.filter(|name| template.resources.contains_key(*name)).collect();
        unresolved(named.iter().copied().filter(|name| !is_active(name)).collect(), "Resources")?;
        let on = declared.depends_on.iter().map(String::as_str).filter(|on| is_active(on));
        all.insert(name.clone(), named.iter().copied().chain(on).map(str::to_owned).collect());
    }
    Ok(all)
}

/// The order in which resources are made.
///
/// # Errors
/// Resources use each other in a circle.
pub fn order(uses: &Uses<String>) -> Result<Vec<String>, Failure> {
    let circle = |names: Vec<String>| {
        let names = names.join(", ");
        Failure::invalid(format!("Circular dependency between resources: [{names}]"))
    };
    graph::order(uses).map_err(circle)
}

fn check_condition(template: &Template, name: Option<&str>, block: &str) -> Result<(), Failure> {
    match name {
        Some(name) if !template.conditions.contains_key(name) => {
            Err(Failure::format(format_args!(
                "Unresolved condition dependency {name} in the {block} block of the template"
            )))
        }
        _ => Ok(()),
    }
}

fn unresolved(names: Vec<&str>, block: &str) -> Result<(), Failure> {
    match names.is_empty() {
        true => Ok(()),
        false => Err(Failure::format(format_args!(
            "Unresolved resource dependencies [{}] in the {block} block of the template",
            names.join(", ")
        ))),
    }
}

fn check_value(template: &Template, value: &Value, block: &str) -> Result<(), Failure> {
    let mut found = Vec::new();
    references(value, None, &mut found)?;
    let mut missing = Vec::new();
    for reference in found {
        match reference {
            Reference::Condition(name) => check_condition(template, Some(name), block)?,
            Reference::Ref(name) => {
                let is_known = PSEUDO.contains(&name)
                    || template.parameters.contains_key(name)
                    || template.resources.contains_key(name);
                if !is_known {
                    missing.push(name);
                }
            }
            Reference::GetAtt(name, attribute) => {
                let declared = template.resources.get(name).ok_or_else(|| {
                    let why = "instance of Fn::GetAtt references undefined resource";
                    Failure::template(format_args!("{why} {name}"))
                })?;
                let kind = kinds::find(&declared.kind);
                let known = kind.map_or(&[] as &[&str], |kind| kind.attributes);
                if !known.contains(&attribute) {
                    return Err(Failure::template(format_args!(
                        "resource {name} does not support attribute type {attribute} in Fn::GetAtt; it has \
                         [{}]",
                        known.join(", ")
                    )));
                }
            }
        }
    }
    unresolved(missing, block)
}
