//! The sections of a template, their members and their form.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Failure;

/// Most resources of a template, as in CloudFormation.
pub const RESOURCES_MAX: usize = 500;
/// Most parameters, outputs, mappings and conditions, each.
pub const MEMBERS_MAX: usize = 200;
/// Most bytes of a logical name.
const NAME_BYTES_MAX: usize = 255;
const SECTIONS: [&str; 10] = [
    "AWSTemplateFormatVersion",
    "Conditions",
    "Description",
    "Mappings",
    "Metadata",
    "Outputs",
    "Parameters",
    "Resources",
    "Rules",
    "Transform",
];
const VERSION: &str = "2010-09-09";

/// A template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Template {
    /// Its description.
    pub description: Option<String>,
    /// The section `Metadata`.
    pub metadata: Option<Value>,
    /// The parameters that a request gives.
    pub parameters: BTreeMap<String, Parameter>,
    /// Values by two keys.
    pub mappings: Map<String, Value>,
    /// The conditions, not evaluated.
    pub conditions: BTreeMap<String, Value>,
    /// The resources.
    pub resources: BTreeMap<String, Declared>,
    /// The outputs.
    pub outputs: BTreeMap<String, Output>,
}

/// The declaration of a parameter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Parameter {
    /// `String`, `Number`, `CommaDelimitedList` or `List<Number>`.
    pub kind: String,
    /// The value if a request gives none.
    pub default: Option<String>,
    /// The values that are allowed, if only some are.
    pub allowed_values: Vec<String>,
    /// A regular expression that the whole value matches.
    pub allowed_pattern: Option<String>,
    /// Least and most characters, least and most value.
    pub bounds: Bounds,
    /// The message if a value is not allowed.
    pub constraint: Option<String>,
    /// The value is a secret: answers have asterisks.
    pub is_secret: bool,
    /// Its description.
    pub description: Option<String>,
}

/// The bounds of a parameter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    /// Least characters.
    pub length_min: Option<usize>,
    /// Most characters.
    pub length_max: Option<usize>,
    /// Least number.
    pub value_min: Option<f64>,
    /// Most number.
    pub value_max: Option<f64>,
}

/// The end of a resource that is no longer in the template, or replaced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Policy {
    /// It is deleted.
    #[default]
    Delete,
    /// It stays.
    Retain,
    /// It stays, except if the creation of the stack fails.
    RetainExceptOnCreate,
}

/// A declared resource.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Declared {
    /// Its type.
    pub kind: String,
    /// Its properties, not resolved.
    pub properties: Value,
    /// Resources that it comes after.
    pub depends_on: BTreeSet<String>,
    /// The condition without which it does not exist.
    pub condition: Option<String>,
    /// The policy when it goes.
    pub deletion_policy: Policy,
    /// The policy when it is replaced.
    pub replace_policy: Policy,
    /// Its metadata.
    pub metadata: Option<Value>,
}

/// An output.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Output {
    /// Its value, not resolved.
    pub value: Value,
    /// Its description.
    pub description: Option<String>,
    /// The name of the export, not resolved.
    pub export: Option<Value>,
    /// The condition without which it does not exist.
    pub condition: Option<String>,
}

/// The names in the section `Transform`.
///
/// # Errors
/// It is neither a name nor a list of names.
pub fn transforms(root: &Map<String, Value>) -> Result<Vec<String>, Failure> {
    let wrong = || Failure::format("Transform must be a name, or a list of names");
    match root.get("Transform") {
        None => Ok(Vec::new()),
        Some(Value::String(name)) => Ok(vec![name.clone()]),
        Some(Value::Array(list)) => {
            let names = list.iter().map(|name| name.as_str().map(str::to_owned));
            names.collect::<Option<_>>().ok_or_else(wrong)
        }
        Some(_) => Err(wrong()),
    }
}

/// Reads the section `Parameters` alone.
///
/// # Errors
/// A declaration is invalid.
pub fn parameters(root: &Map<String, Value>) -> Result<BTreeMap<String, Parameter>, Failure> {
    members(root, "Parameters", parameter)
}

impl Template {
    /// Reads a tree without transforms.
    ///
    /// # Errors
    /// A section or member is unknown, has the wrong form, or there are too many.
    pub fn from_tree(root: &Map<String, Value>) -> Result<Template, Failure> {
        let unknown: Vec<&str> = root.keys().map(String::as_str).collect();
        let unknown: Vec<_> = unknown.into_iter().filter(|key| !SECTIONS.contains(key)).collect();
        if !unknown.is_empty() {
            let unknown = unknown.join(", ");
            return Err(Failure::format(format_args!(
                "Invalid template property or properties [{unknown}]"
            )));
        }
        if root.get("AWSTemplateFormatVersion").is_some_and(|version| version != VERSION) {
            let why = format!("AWSTemplateFormatVersion must be {VERSION}");
            return Err(Failure::format(why));
        }
        if root.contains_key("Rules") {
            return Err(Failure::format(
                "Rules are not supported; use AllowedValues of parameters",
            ));
        }
        let resources = section(root, "Resources", RESOURCES_MAX)?;
        if resources.is_empty() {
            return Err(Failure::format("At least one Resources member must be defined."));
        }
        let template = Template {
            description: text(root, "", "Description")?,
            metadata: root.get("Metadata").cloned(),
            parameters: parameters(root)?,
            mappings: mappings(root)?,
            conditions: members(root, "Conditions", |_, value| Ok(value.clone()))?,
            resources: members(root, "Resources", declared)?,
            outputs: members(root, "Outputs", output)?,
        };
        let mut names = template.parameters.keys();
        if let Some(name) = names.find(|name| resources.contains_key(*name)) {
            let why = format!("{name} is both a parameter and a resource; rename one");
            return Err(Failure::format(why));
        }
        Ok(template)
    }
}

fn section<'a>(
    root: &'a Map<String, Value>,
    name: &str,
    count_max: usize,
) -> Result<std::borrow::Cow<'a, Map<String, Value>>, Failure> {
    let map = match root.get(name) {
        None => return Ok(std::borrow::Cow::Owned(Map::new())),
        Some(Value::Object(map)) => map,
        Some(Value::Null) => {
            let why = format!("[/{name}] 'null' values are not allowed in templates");
            return Err(Failure::format(why));
        }
        Some(_) => return Err(Failure::format(format_args!("{name} must be an object"))),
    };
    if map.len() > count_max {
        let why = format!("{name} has {} members; at most {count_max} are allowed", map.len());
        return Err(Failure::format(why));
    }
    Ok(std::borrow::Cow::Borrowed(map))
}

fn members<T>(
    root: &Map<String, Value>,
    name: &str,
    read: impl Fn(&str, &Value) -> Result<T, Failure>,
) -> Result<BTreeMap<String, T>, Failure> {
    let count_max = if name == "Resources" { RESOURCES_MAX } else { MEMBERS_MAX };
    let mut found = BTreeMap::new();
    for (key, value) in section(root, name, count_max)?.iter() {
        let is_name = key.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let may_be = is_name && !key.is_empty() && key.len() <= NAME_BYTES_MAX;
        if name != "Conditions" && !may_be {
            let word = name.trim_end_matches('s');
            return Err(Failure::format(format_args!("{word} name {key} is non alphanumeric.")));
        }
        found.insert(key.clone(), read(key, value)?);
    }
    Ok(found)
}

fn object<'a>(
    at: &str,
    value: &'a Value,
    allowed: &[&str],
) -> Result<&'a Map<String, Value>, Failure> {
    let error = || match value {
        Value::Null => {
            Failure::format(format_args!("[{at}] 'null' values are not allowed in templates"))
        }
        _ => Failure::format(format_args!("[{at}] must be an object")),
    };
    let map = value.as_object().ok_or_else(error)?;
    match map.keys().find(|key| !allowed.contains(&key.as_str())) {
        Some(unknown) => {
            let known = allowed.join(", ");
            let why = format!("[{at}] Invalid property {unknown}; known are {known}");
            Err(Failure::format(why))
        }
        None => Ok(map),
    }
}

fn text(map: &Map<String, Value>, at: &str, key: &str) -> Result<Option<String>, Failure> {
    match map.get(key) {
        None => Ok(None),
        Some(value) => match crate::functions::text_of(value) {
            Some(text) => Ok(Some(text)),
            None => Err(Failure::format(format_args!("[{at}/{key}] must be a string"))),
        },
    }
}

fn number<T: std::str::FromStr>(
    map: &Map<String, Value>,
    at: &str,
    key: &str,
) -> Result<Option<T>, Failure> {
    let Some(text) = text(map, at, key)? else { return Ok(None) };
    let error = |_| Failure::format(format_args!("[{at}/{key}] must be a number"));
    text.parse().map(Some).map_err(error)
}

fn parameter(name: &str, value: &Value) -> Result<Parameter, Failure> {
    let at = format!("/Parameters/{name}");
    let allowed = [
        "AllowedPattern",
        "AllowedValues",
        "ConstraintDescription",
        "Default",
        "Description",
        "MaxLength",
        "MaxValue",
        "MinLength",
        "MinValue",
        "NoEcho",
        "Type",
    ];
    let map = object(&at, value, &allowed)?;
    let missing = || Failure::format("Every Parameters object must contain a Type member.");
    let kind = text(map, &at, "Type")?.ok_or_else(missing)?;
    if !["String", "Number", "CommaDelimitedList", "List<Number>"].contains(&kind.as_str()) {
        return Err(Failure::format(format_args!(
            "[{at}/Type] Unrecognized parameter type: {kind}; known are String, Number, CommaDelimitedList, \
             List<Number>"
        )));
    }
    let values = match map.get("AllowedValues") {
        None => Vec::new(),
        Some(Value::Array(list)) => {
            let texts: Option<Vec<_>> = list.iter().map(crate::functions::text_of).collect();
            let why =
                || Failure::format(format_args!("[{at}/AllowedValues] must be a list of strings"));
            texts.ok_or_else(why)?
        }
        Some(_) => {
            return Err(Failure::format(format_args!("[{at}/AllowedValues] must be a list")));
        }
    };
    Ok(Parameter {
        kind,
        default: text(map, &at, "Default")?,
        allowed_values: values,
        allowed_pattern: text(map, &at, "AllowedPattern")?,
        bounds: Bounds {
            length_min: number(map, &at, "MinLength")?,
            length_max: number(map, &at, "MaxLength")?,
            value_min: number(map, &at, "MinValue")?,
            value_max: number(map, &at, "MaxValue")?,
        },
        constraint: text(map, &at, "ConstraintDescription")?,
        is_secret: text(map, &at, "NoEcho")?.is_some_and(|text| text.eq_ignore_ascii_case("true")),
        description: text(map, &at, "Description")?,
    })
}

fn mappings(root: &Map<String, Value>) -> Result<Map<String, Value>, Failure> {
    let found = section(root, "Mappings", MEMBERS_MAX)?;
    for (name, map) in found.iter() {
        let map = map.as_object();
        let is_value = |value: &Value| match value {
            Value::Array(list) => list.iter().all(|item| crate::functions::text_of(item).is_some()),
            other => crate::functions::text_of(other).is_some(),
        };
        let is_level =
            |level: &Value| level.as_object().is_some_and(|map| map.values().all(is_value));
        if !map.is_some_and(|map| map.values().all(is_level)) {
            return Err(Failure::format(format_args!(
                "[/Mappings/{name}] Every Mappings attribute must be a String or a List."
            )));
        }
    }
    Ok(found.into_owned())
}

fn policy(map: &Map<String, Value>, at: &str, key: &str) -> Result<Policy, Failure> {
    match text(map, at, key)?.as_deref() {
        None | Some("Delete") => Ok(Policy::Delete),
        Some("Retain") => Ok(Policy::Retain),
        Some("RetainExceptOnCreate") if key == "DeletionPolicy" => Ok(Policy::RetainExceptOnCreate),
        Some(other) => {
            let known = "use Delete, or Retain";
            Err(Failure::format(format_args!("[{at}/{key}] Unrecognized {key} {other}; {known}")))
        }
    }
}

fn declared(name: &str, value: &Value) -> Result<Declared, Failure> {
    let at = format!("/Resources/{name}");
    let allowed = [
        "Condition",
        "DeletionPolicy",
        "DependsOn",
        "Metadata",
        "Properties",
        "Type",
        "UpdateReplacePolicy",
    ];
    let map = object(&at, value, &allowed)?;
    let missing = || {
        Failure::format(format_args!("[{at}] Every Resources object must contain a Type member."))
    };
    let kind = text(map, &at, "Type")?.ok_or_else(missing)?;
    let depends_on = match map.get("DependsOn") {
        None => BTreeSet::new(),
        Some(Value::String(one)) => BTreeSet::from([one.clone()]),
        Some(Value::Array(list)) => {
            let names = list.iter().map(|name| name.as_str().map(str::to_owned));
            let wrong = "DependsOn must be a string or list of strings.";
            names
                .collect::<Option<_>>()
                .ok_or_else(|| Failure::format(format_args!("[{at}] {wrong}")))?
        }
        Some(_) => {
            let wrong = "DependsOn must be a string or list of strings.";
            return Err(Failure::format(format_args!("[{at}] {wrong}")));
        }
    };
    let properties = match map.get("Properties") {
        None => Value::Object(Map::new()),
        Some(value @ Value::Object(_)) if crate::functions::call(value).is_none() => value.clone(),
        Some(_) => {
            return Err(Failure::format(format_args!("[{at}/Properties] must be an object")));
        }
    };
    if let Some(path) = null_in(&properties) {
        let why = format!("[{at}/Properties{path}] 'null' values are not allowed in templates");
        return Err(Failure::format(why));
    }
    Ok(Declared {
        kind,
        properties,
        depends_on,
        condition: text(map, &at, "Condition")?,
        deletion_policy: policy(map, &at, "DeletionPolicy")?,
        replace_policy: policy(map, &at, "UpdateReplacePolicy")?,
        metadata: map.get("Metadata").cloned(),
    })
}

/// The path of the first null.
fn null_in(value: &Value) -> Option<String> {
    match value {
        Value::Null => Some(String::new()),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .find_map(|(at, item)| null_in(item).map(|rest| format!("/{at}{rest}"))),
        Value::Object(map) => {
            map.iter().find_map(|(key, item)| null_in(item).map(|rest| format!("/{key}{rest}")))
        }
        _ => None,
    }
}

fn output(name: &str, value: &Value) -> Result<Output, Failure> {
    let at = format!("/Outputs/{name}");
    let map = object(&at, value, &["Condition", "Description", "Export", "Value"])?;
    let missing =
        || Failure::format(format_args!("[{at}] Every Outputs member must contain a Value object"));
    let export = match map.get("Export") {
        None => None,
        Some(export) => {
            let export = object(&format!("{at}/Export"), export, &["Name"])?;
            let missing = || Failure::format(format_args!("[{at}/Export] must contain a Name"));
            Some(export.get("Name").cloned().ok_or_else(missing)?)
        }
    };
    Ok(Output {
        value: map.get("Value").filter(|value| !value.is_null()).cloned().ok_or_else(missing)?,
        description: text(map, &at, "Description")?,
        export,
        condition: text(map, &at, "Condition")?,
    })
}
