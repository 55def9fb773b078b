//! The intrinsic functions: `Ref`, `Fn::Sub` and the others. A value is resolved against parameters,
//! mappings, conditions and the resources that exist.

use std::cell::Cell;
use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::Failure;

/// The text of a value that is known after another resource is made. Only change sets see it.
pub const UNKNOWN: &str = "{{changeSet:KNOWN_AFTER_APPLY}}";
/// Most bytes of a resolved text, and of all results of functions in one value.
const TEXT_BYTES_MAX: usize = 1 << 20;

/// The values of pseudo parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pseudo {
    /// `AWS::Region`.
    pub region: String,
    /// `AWS::AccountId`.
    pub account: String,
    /// `AWS::StackName`.
    pub stack_name: String,
    /// `AWS::StackId`.
    pub stack_id: String,
    /// `AWS::NotificationARNs`.
    pub notification_arns: Vec<String>,
}

impl Pseudo {
    /// The value of a pseudo parameter. `AWS::NoValue` is `None` within.
    fn get(&self, name: &str) -> Option<Option<Value>> {
        let text = match name {
            "AWS::NoValue" => return Some(None),
            "AWS::NotificationARNs" => return Some(Some(self.notification_arns.clone().into())),
            "AWS::Region" => self.region.as_str(),
            "AWS::AccountId" => &self.account,
            "AWS::StackName" => &self.stack_name,
            "AWS::StackId" => &self.stack_id,
            "AWS::Partition" => "aws",
            "AWS::URLSuffix" => "amazonaws.com",
            _ => return None,
        };
        Some(Some(text.into()))
    }
}

/// The names of pseudo parameters.
pub const PSEUDO: [&str; 8] = [
    "AWS::AccountId",
    "AWS::NoValue",
    "AWS::NotificationARNs",
    "AWS::Partition",
    "AWS::Region",
    "AWS::StackId",
    "AWS::StackName",
    "AWS::URLSuffix",
];

/// The values of resources and exports.
pub trait Lookup {
    /// The value of `Ref` (no attribute) or `Fn::GetAtt` of a resource.
    ///
    /// # Errors
    /// The resource or the attribute does not exist.
    fn resource(&self, logical_id: &str, attribute: Option<&str>) -> Result<Value, Failure>;

    /// The value of an export of another stack.
    ///
    /// # Errors
    /// There is none.
    fn export(&self, name: &str) -> Result<Value, Failure>;
}

/// The place where a value is resolved.
pub struct Scope<'a> {
    /// The values of parameters: text, or lists of text.
    pub parameters: &'a Map<String, Value>,
    /// The section `Mappings`.
    pub mappings: &'a Map<String, Value>,
    /// The values of the conditions.
    pub conditions: &'a BTreeMap<String, bool>,
    /// The pseudo parameters.
    pub pseudo: &'a Pseudo,
    /// Resources and exports.
    pub lookup: &'a dyn Lookup,
    /// The bytes of all results so far; 0 at the beginning.
    pub spent_bytes: Cell<usize>,
}

/// The function that a value is a call of, and its argument.
pub fn call(value: &Value) -> Option<(&str, &Value)> {
    let map = value.as_object().filter(|map| map.len() == 1)?;
    let (name, argument) = map.iter().next()?;
    (name == "Ref" || name.starts_with("Fn::")).then_some((name, argument))
}

/// A part of the text of `Fn::Sub`.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Text that is taken as it is.
    Text(&'a str),
    /// A variable, parameter, resource, or attribute.
    Name(&'a str),
}

/// Splits the text of `Fn::Sub`.
///
/// # Errors
/// A name is not complete, or has other characters than names.
pub fn parts(text: &str) -> Result<Vec<Part<'_>>, Failure> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(start) = rest.find("${") {
        found.push(Part::Text(&rest[..start]));
        let inner = &rest[start + 2..];
        let end = inner.find('}').ok_or_else(|| wrong_name(inner))?;
        match inner[..end].strip_prefix('!') {
            Some(literal) => found.extend([Part::Text("${"), Part::Text(literal), Part::Text("}")]),
            None => {
                let name = inner[..end].trim();
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b":._".contains(&byte);
                if name.is_empty() || !name.bytes().all(is_name) {
                    return Err(wrong_name(name));
                }
                found.push(Part::Name(name));
            }
        }
        rest = &inner[end + 1..];
    }
    found.push(Part::Text(rest));
    Ok(found)
}

fn wrong_name(name: &str) -> Failure {
    let name: String = name.chars().take(40).collect();
    Failure::template(format_args!(
        "variable names in Fn::Sub syntax must contain only alphanumeric characters, underscores, \
         periods, and colons, not {name:?}; write ${{!…}} for text"
    ))
}

/// A name that a value uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference<'a> {
    /// A parameter, pseudo parameter or resource.
    Ref(&'a str),
    /// An attribute of a resource.
    GetAtt(&'a str, &'a str),
    /// A condition.
    Condition(&'a str),
}

/// Collects the names that a value uses, except the variables of `Fn::Sub`. With the values of the
/// conditions, only the chosen branches of `Fn::If` count.
///
/// # Errors
/// A function's argument has the wrong form.
pub fn references<'a>(
    value: &'a Value,
    chosen: Option<&BTreeMap<String, bool>>,
    found: &mut Vec<Reference<'a>>,
) -> Result<(), Failure> {
    match call(value) {
        Some(("Ref", name)) => {
            found.push(Reference::Ref(text_argument("Ref", name)?));
            Ok(())
        }
        Some(("Fn::GetAtt", argument)) => {
            let (resource, attribute) = attribute_argument(argument)?;
            found.push(Reference::GetAtt(resource, attribute));
            Ok(())
        }
        Some(("Fn::Sub", argument)) => {
            let (text, variables) = sub_argument(argument)?;
            for part in parts(text)? {
                if let Part::Name(name) = part
                    && variables.is_none_or(|map| !map.contains_key(name))
                {
                    found.push(match name.split_once('.') {
                        Some((resource, attribute)) => Reference::GetAtt(resource, attribute),
                        None => Reference::Ref(name),
                    });
                }
            }
            for value in variables.into_iter().flat_map(Map::values) {
                references(value, chosen, found)?;
            }
            Ok(())
        }
        Some(("Fn::If", argument)) => {
            let (condition, branches) = if_argument(argument)?;
            found.push(Reference::Condition(condition));
            match chosen.and_then(|chosen| chosen.get(condition)) {
                Some(is_true) => references(branches[usize::from(!is_true)], chosen, found),
                None => branches.into_iter().try_for_each(|b| references(b, chosen, found)),
            }
        }
        Some((name, _)) if !KNOWN.contains(&name) => Err(unsupported(name)),
        _ => match value {
            Value::Array(list) => list.iter().try_for_each(|v| references(v, chosen, found)),
            Value::Object(map) => map.values().try_for_each(|v| references(v, chosen, found)),
            _ => Ok(()),
        },
    }
}

fn text_argument<'a>(function: &str, value: &'a Value) -> Result<&'a str, Failure> {
    let error = || Failure::template(format_args!("the argument of {function} must be a string"));
    value.as_str().filter(|text| !text.is_empty()).ok_or_else(error)
}

fn attribute_argument(value: &Value) -> Result<(&str, &str), Failure> {
    let error = "every Fn::GetAtt object requires two non-empty parameters, the resource name and the \
                 resource attribute";
    let found = match value {
        Value::String(text) => text.split_once('.'),
        Value::Array(list) => match list.as_slice() {
            [Value::String(resource), Value::String(attribute)] => {
                Some((&**resource, &**attribute))
            }
            _ => None,
        },
        _ => None,
    };
    let found = found.filter(|(resource, attribute)| !resource.is_empty() && !attribute.is_empty());
    found.ok_or_else(|| Failure::template(error))
}

type Variables<'a> = Option<&'a Map<String, Value>>;

fn sub_argument(value: &Value) -> Result<(&str, Variables<'_>), Failure> {
    match value {
        Value::String(text) => Ok((text, None)),
        Value::Array(list) => match list.as_slice() {
            [Value::String(text)] => Ok((text, None)),
            [Value::String(text), Value::Object(map)] => Ok((text, Some(map))),
            _ => Err(wrong_sub()),
        },
        _ => Err(wrong_sub()),
    }
}

fn wrong_sub() -> Failure {
    Failure::template(
        "One or more Fn::Sub intrinsic functions don't specify expected arguments. Specify a string as \
         first argument, and an optional second argument to specify a mapping of values to replace in \
         the string",
    )
}

fn if_argument(value: &Value) -> Result<(&str, [&Value; 2]), Failure> {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::String(condition), yes, no]) => Ok((condition, [yes, no])),
        _ => Err(Failure::template("every Fn::If object requires a condition and two values")),
    }
}

/// The text of a resolved scalar.
pub fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        _ => None,
    }
}

/// Returns true if two resolved values are the same: numbers and truth values compare as text, because
/// parameters are text.
pub fn is_same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            let same = |(key, a): (&String, &Value)| b.get(key).is_some_and(|b| is_same(a, b));
            a.len() == b.len() && a.iter().all(same)
        }
        _ => one == other || text_of(one).is_some_and(|a| text_of(other).is_some_and(|b| a == b)),
    }
}

/// The bytes of the texts in a value.
pub(crate) fn bytes_of(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(bytes_of).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + bytes_of(value)).sum(),
        _ => 1,
    }
}

/// Returns true if a value depends on a resource that is not made yet.
pub fn has_unknown(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(UNKNOWN),
        Value::Array(list) => list.iter().any(has_unknown),
        Value::Object(map) => map.values().any(has_unknown),
        _ => false,
    }
}

impl Scope<'_> {
    /// Resolves a value. `None` is `AWS::NoValue`: the property is left out.
    ///
    /// # Errors
    /// A name does not exist, or an argument has the wrong form.
    pub fn resolve(&self, value: &Value) -> Result<Option<Value>, Failure> {
        if let Some((function, argument)) = call(value) {
            return self.function(function, argument);
        }
        match value {
            Value::Array(list) => {
                let items = list.iter().map(|item| self.resolve(item));
                let items = items.filter_map(Result::transpose);
                Ok(Some(Value::Array(items.collect::<Result<_, _>>()?)))
            }
            Value::Object(map) => {
                let mut resolved = Map::new();
                for (key, member) in map {
                    if let Some(member) = self.resolve(member)? {
                        resolved.insert(key.clone(), member);
                    }
                }
                Ok(Some(Value::Object(resolved)))
            }
            other => Ok(Some(other.clone())),
        }
    }

    /// Evaluates a function. The bytes of all results are bounded: a short template can repeat a long
    /// parameter many times.
    fn function(&self, function: &str, argument: &Value) -> Result<Option<Value>, Failure> {
        let result = self.evaluate(function, argument)?;
        let bytes = self.spent_bytes.get() + result.as_ref().map_or(0, bytes_of);
        self.spent_bytes.set(bytes);
        match bytes > TEXT_BYTES_MAX {
            true => Err(Failure::template(format!(
                "the functions of one resource give more than {TEXT_BYTES_MAX} bytes"
            ))),
            false => Ok(result),
        }
    }

    fn evaluate(&self, function: &str, argument: &Value) -> Result<Option<Value>, Failure> {
        let text = match function {
            "Ref" => return self.reference(text_argument("Ref", argument)?),
            "Fn::GetAtt" => {
                let (resource, attribute) = attribute_argument(argument)?;
                return self.lookup.resource(resource, Some(attribute)).map(Some);
            }
            "Fn::If" => {
                let (condition, branches) = if_argument(argument)?;
                return self.resolve(branches[usize::from(!self.condition(condition)?)]);
            }
            "Fn::Select" => return self.select(argument),
            "Fn::Split" => return self.split(argument).map(Some),
            "Fn::FindInMap" => return self.find_in_map(argument).map(Some),
            "Fn::ImportValue" => return self.lookup.export(&self.text(argument)?).map(Some),
            "Fn::Sub" => self.sub(argument)?,
            "Fn::Join" => self.join(argument)?,
            "Fn::Base64" => STANDARD.encode(self.text(argument)?),
            other => return Err(unsupported(other)),
        };
        match text.len() > TEXT_BYTES_MAX {
            true => Err(Failure::template(format!("a text exceeds {TEXT_BYTES_MAX} bytes"))),
            false => Ok(Some(Value::String(text))),
        }
    }

    fn reference(&self, name: &str) -> Result<Option<Value>, Failure> {
        if let Some(value) = self.parameters.get(name) {
            return Ok(Some(value.clone()));
        }
        match self.pseudo.get(name) {
            Some(value) => Ok(value),
            None => self.lookup.resource(name, None).map(Some),
        }
    }

    fn condition(&self, name: &str) -> Result<bool, Failure> {
        let error = || Failure::format(format_args!("Unresolved condition dependency {name}"));
        self.conditions.get(name).copied().ok_or_else(error)
    }

    /// The text that a value resolves to.
    fn text(&self, value: &Value) -> Result<String, Failure> {
        let resolved = self.resolve(value)?;
        let error = || {
            let shown: String = value.to_string().chars().take(80).collect();
            Failure::template(format_args!("{shown} must resolve to a string"))
        };
        resolved.as_ref().and_then(text_of).ok_or_else(error)
    }

    fn list(&self, value: &Value) -> Result<Option<Vec<Value>>, Failure> {
        Ok(match self.resolve(value)? {
            Some(Value::Array(list)) => Some(list),
            _ => None,
        })
    }

    fn sub(&self, argument: &Value) -> Result<String, Failure> {
        let (text, variables) = sub_argument(argument)?;
        let mut out = String::new();
        for part in parts(text)? {
            let name = match part {
                Part::Text(text) => {
                    out.push_str(text);
                    continue;
                }
                Part::Name(name) => name,
            };
            let value = match (variables.and_then(|map| map.get(name)), name.split_once('.')) {
                (Some(value), _) => self.resolve(value)?,
                (None, Some((resource, attribute))) => {
                    Some(self.lookup.resource(resource, Some(attribute))?)
                }
                (None, None) => self.reference(name)?,
            };
            let text = match &value {
                Some(Value::Array(list)) => {
                    let texts: Option<Vec<_>> = list.iter().map(text_of).collect();
                    texts.map(|texts| texts.join(","))
                }
                Some(value) => text_of(value),
                None => Some(String::new()),
            };
            let error = || {
                let why = "in Fn::Sub expression does not resolve to a string";
                Failure::template(format_args!("variable {name} {why}"))
            };
            out.push_str(&text.ok_or_else(error)?);
            if out.len() > TEXT_BYTES_MAX {
                return Err(Failure::template(format!("a text exceeds {TEXT_BYTES_MAX} bytes")));
            }
        }
        Ok(out)
    }

    fn join(&self, argument: &Value) -> Result<String, Failure> {
        let error = || {
            Failure::template(
                "every Fn::Join object requires two parameters, (1) a string delimiter and (2) a list of \
                 strings to be joined or a function that returns a list of strings to be joined",
            )
        };
        let [Value::String(delimiter), list] = pair(argument).ok_or_else(error)? else {
            return Err(error());
        };
        let Some(list) = self.list(list)? else {
            return Err(error());
        };
        let texts: Option<Vec<String>> = list.iter().map(text_of).collect();
        let texts = texts.ok_or_else(error)?;
        let bytes: usize = texts.iter().map(|text| text.len() + delimiter.len()).sum();
        match bytes > TEXT_BYTES_MAX {
            true => Err(Failure::template(format!("a text exceeds {TEXT_BYTES_MAX} bytes"))),
            false => Ok(texts.join(delimiter)),
        }
    }

    fn split(&self, argument: &Value) -> Result<Value, Failure> {
        let error = || {
            Failure::template(
                "every Fn::Split object requires two parameters, (1) a string delimiter and (2) a string \
                 to be split or a function that returns a string to be split",
            )
        };
        let [Value::String(delimiter), text] = pair(argument).ok_or_else(error)? else {
            return Err(error());
        };
        if delimiter.is_empty() {
            return Err(error());
        }
        let text = self.text(text)?;
        if text.contains(UNKNOWN) {
            return Ok(UNKNOWN.into());
        }
        Ok(text.split(delimiter.as_str()).map(Value::from).collect::<Vec<_>>().into())
    }

    fn select(&self, argument: &Value) -> Result<Option<Value>, Failure> {
        let error =
            || Failure::template("every Fn::Select object requires an index and a list of values");
        let [index, list] = pair(argument).ok_or_else(error)?;
        let index: usize = self.text(index)?.parse().map_err(|_| error())?;
        match self.resolve(list)? {
            Some(Value::String(text)) if text == UNKNOWN => Ok(Some(UNKNOWN.into())),
            Some(Value::Array(list)) => {
                let missing = "Fn::Select cannot select nonexistent value at index";
                let missing = || Failure::template(format_args!("{missing} {index}"));
                list.into_iter().nth(index).map(Some).ok_or_else(missing)
            }
            _ => Err(error()),
        }
    }

    fn find_in_map(&self, argument: &Value) -> Result<Value, Failure> {
        let error = || {
            Failure::template(
                "every Fn::FindInMap object requires three parameters, the map name, map \
                               key and the attribute for return value",
            )
        };
        let [map, key, attribute] = argument.as_array().map(Vec::as_slice).ok_or_else(error)?
        else {
            return Err(error());
        };
        let (map, key, attribute) = (self.text(map)?, self.text(key)?, self.text(attribute)?);
        let found = self.mappings.get(&map).and_then(|map| map.get(&key)?.get(&attribute));
        let missing = format!("Unable to get mapping for {map}::{key}::{attribute}");
        found.cloned().ok_or_else(|| Failure::template(missing))
    }
}

fn pair(value: &Value) -> Option<&[Value; 2]> {
    value.as_array()?.as_slice().try_into().ok()
}

/// The functions of properties and outputs.
const KNOWN: [&str; 10] = [
    "Ref",
    "Fn::Base64",
    "Fn::FindInMap",
    "Fn::GetAtt",
    "Fn::If",
    "Fn::ImportValue",
    "Fn::Join",
    "Fn::Select",
    "Fn::Split",
    "Fn::Sub",
];

fn unsupported(function: &str) -> Failure {
    match function {
        "Fn::GetAZs" => Failure::template(
            "Fn::GetAZs is refused: this server has no availability zones; write the names out",
        ),
        "Fn::Equals" | "Fn::And" | "Fn::Or" | "Fn::Not" => Failure::template(format_args!(
            "{function} stands in Conditions only; name a condition in Fn::If"
        )),
        _ => {
            let known = KNOWN.join(", ");
            Failure::template(format_args!("{function} is not supported; known are {known}"))
        }
    }
}

/// No resources and exports: the place of conditions.
pub struct NoLookup;

impl Lookup for NoLookup {
    fn resource(&self, logical_id: &str, _: Option<&str>) -> Result<Value, Failure> {
        Err(Failure::format(format_args!(
            "Unresolved dependencies [{logical_id}]. Cannot reference resources in the Conditions block of \
             the template"
        )))
    }

    fn export(&self, _: &str) -> Result<Value, Failure> {
        Err(Failure::template("Fn::ImportValue cannot stand in Conditions"))
    }
}

/// Evaluates the section `Conditions`.
///
/// # Errors
/// A condition refers to itself, to a resource or to another one that does not exist, or has the wrong form.
pub fn conditions(
    section: &BTreeMap<String, Value>,
    parameters: &Map<String, Value>,
    mappings: &Map<String, Value>,
    pseudo: &Pseudo,
) -> Result<BTreeMap<String, bool>, Failure> {
    let none = BTreeMap::new();
    let scope = Scope {
        parameters,
        mappings,
        conditions: &none,
        pseudo,
        lookup: &NoLookup,
        spent_bytes: Cell::new(0),
    };
    let mut evaluation = Evaluation { section, scope, known: BTreeMap::new(), open: Vec::new() };
    for name in section.keys() {
        evaluation.named(name)?;
    }
    Ok(evaluation.known)
}

struct Evaluation<'a> {
    section: &'a BTreeMap<String, Value>,
    scope: Scope<'a>,
    known: BTreeMap<String, bool>,
    open: Vec<&'a str>,
}

/// Longest chain of conditions that name each other.
const CHAIN_MAX: usize = 32;

impl<'a> Evaluation<'a> {
    fn named(&mut self, name: &str) -> Result<bool, Failure> {
        if let Some(known) = self.known.get(name) {
            return Ok(*known);
        }
        let Some((name, value)) = self.section.get_key_value(name) else {
            let block = "in the Conditions block of the template";
            let why = format!("Unresolved condition dependency {name} {block}");
            return Err(Failure::format(why));
        };
        if self.open.contains(&name.as_str()) || self.open.len() >= CHAIN_MAX {
            let why = format!(
                "Found circular condition dependency, or a chain longer than {CHAIN_MAX}: "
            );
            return Err(Failure::template(why + name));
        }
        self.open.push(name);
        let result = self.value(value)?;
        self.open.pop();
        self.known.insert(name.clone(), result);
        Ok(result)
    }

    fn value(&mut self, value: &'a Value) -> Result<bool, Failure> {
        let error = |function: &str| {
            Failure::format(format_args!("a condition must be a boolean function, not {function}"))
        };
        let map = value.as_object().filter(|map| map.len() == 1).ok_or_else(|| error("a value"))?;
        let (function, argument) = map.iter().next().ok_or_else(|| error("a value"))?;
        if function == "Condition" {
            return self.named(text_argument("Condition", argument)?);
        }
        let list = argument.as_array().map(Vec::as_slice).ok_or_else(|| error(function))?;
        match (function.as_str(), list) {
            ("Fn::Equals", [one, other]) => {
                let one = self.scope.resolve(one)?.unwrap_or(Value::Null);
                let other = self.scope.resolve(other)?.unwrap_or(Value::Null);
                Ok(is_same(&one, &other))
            }
            ("Fn::Not", [one]) => Ok(!self.value(one)?),
            ("Fn::And" | "Fn::Or", list) if (2..=10).contains(&list.len()) => {
                let mut all = list.iter().map(|one| self.value(one));
                // Every member is evaluated, so that an error in the last one is found.
                let all = all.by_ref().collect::<Result<Vec<_>, _>>()?;
                Ok(match function.as_str() {
                    "Fn::And" => all.into_iter().all(|one| one),
                    _ => all.into_iter().any(|one| one),
                })
            }
            ("Fn::And" | "Fn::Or", _) => Err(Failure::template(format_args!(
                "every {function} object requires a list of at least 2 and at most 10 boolean parameters"
            ))),
            ("Fn::Equals" | "Fn::Not", _) => {
                let count = if function == "Fn::Not" { "one parameter" } else { "two parameters" };
                Err(Failure::template(format_args!("every {function} object requires {count}")))
            }
            _ => Err(error(function)),
        }
    }
}
