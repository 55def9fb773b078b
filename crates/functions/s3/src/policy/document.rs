//! Policy documents in AWS's JSON (IAM user guide, *IAM JSON policy element reference*). What the
//! host cannot evaluate is refused when a document is loaded: no statement is silently weaker.

use std::collections::BTreeSet;
use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::condition;
use super::error::{PATTERN_BYTES_MAX, PATTERNS_MAX, PolicyError, STATEMENTS_MAX};
use super::facts::Vocabulary;
use super::operator::ARN_PARTS;
use super::pattern::{Template, tokens};
use super::statement::{ArnPattern, Principals, ResourcePattern, Selection, Statement, Verdict};

/// Most bytes of a document.
pub const DOCUMENT_BYTES_MAX: usize = 20 * 1024;
/// The version with policy variables.
const WITH_VARIABLES: &str = "2012-10-17";
/// The version without.
const WITHOUT_VARIABLES: &str = "2008-10-17";
/// Deepest nesting of a document.
const DEPTH_MAX: usize = 16;

fn wrong(at: &str, why: impl fmt::Display) -> PolicyError {
    PolicyError::Document(format!("{at}{why}"))
}

/// Parses the text of a document, which has no member twice.
///
/// # Errors
/// It is too long, or no such JSON.
pub fn from_text(text: &str) -> Result<Value, PolicyError> {
    if text.len() > DOCUMENT_BYTES_MAX {
        return Err(wrong("", format_args!("it is longer than {DOCUMENT_BYTES_MAX} bytes")));
    }
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = Unique(DEPTH_MAX).deserialize(&mut parser);
    let value = value.and_then(|value| parser.end().map(|()| value));
    value.map_err(|error| wrong("", error))
}

/// Parses the statements of a document. Other members than those of documents are left to the
/// caller.
///
/// # Errors
/// The first part that the host cannot evaluate, and its place.
pub(super) fn statements(
    document: &Map<String, Value>,
    vocabulary: Vocabulary,
) -> Result<Vec<Statement>, PolicyError> {
    let has_variables = match document.get("Version") {
        None => false,
        Some(Value::String(text)) if text == WITHOUT_VARIABLES => false,
        Some(Value::String(text)) if text == WITH_VARIABLES => true,
        Some(other) => {
            let why = format!("Version {other} is none of {WITH_VARIABLES}, {WITHOUT_VARIABLES}");
            return Err(wrong("", why));
        }
    };
    if document.get("Id").is_some_and(|id| !id.is_string()) {
        return Err(wrong("", "Id must be a string"));
    }
    let all = match document.get("Statement") {
        Some(Value::Array(all)) => all.as_slice(),
        Some(one @ Value::Object(_)) => std::slice::from_ref(one),
        _ => return Err(wrong("", "Statement must be an object, or a list of objects")),
    };
    if all.len() > STATEMENTS_MAX {
        return Err(PolicyError::TooMuch { what: "statements", limit: STATEMENTS_MAX });
    }
    let (mut sids, mut found) = (BTreeSet::new(), Vec::new());
    for (number, own) in all.iter().enumerate() {
        let at = match own.get("Sid").and_then(Value::as_str) {
            Some(sid) => format!("Statement {} ({sid}): ", number + 1),
            None => format!("Statement {}: ", number + 1),
        };
        let statement = Reader { has_variables, vocabulary }.statement(own);
        let statement = statement.map_err(|why| wrong(&at, why))?;
        if statement.sid.clone().is_some_and(|sid| !sids.insert(sid)) {
            return Err(wrong(&at, "another statement has this Sid"));
        }
        found.push(statement);
    }
    Ok(found)
}

struct Reader {
    has_variables: bool,
    vocabulary: Vocabulary,
}

impl Reader {
    fn statement(&self, own: &Value) -> Result<Statement, String> {
        let own = own.as_object().ok_or("must be an object")?;
        let of_resource = self.vocabulary == Vocabulary::Invocation;
        let mut members =
            vec!["Sid", "Effect", "Action", "NotAction", "Resource", "NotResource", "Condition"];
        members.extend(of_resource.then_some("Principal"));
        if let Some(name) = own.keys().find(|name| !members.contains(&name.as_str())) {
            return Err(format!("{name:?} is not evaluated here; the members are {members:?}"));
        }
        let sid = match own.get("Sid") {
            None => None,
            Some(Value::String(sid)) => Some(sid.clone()),
            Some(_) => return Err("Sid must be a string".to_owned()),
        };
        let effect = match own.get("Effect").and_then(Value::as_str) {
            Some("Allow") => Verdict::Allow,
            Some("Deny") => Verdict::Deny,
            _ => return Err("Effect must be \"Allow\" or \"Deny\"".to_owned()),
        };
        let (texts, is_negated) = either(own, "Action")?;
        let actions = texts.iter().map(|text| action(text)).collect::<Result<_, _>>()?;
        let actions = Selection { patterns: actions, is_negated };
        let (texts, is_negated) = either(own, "Resource")?;
        let patterns = texts.iter().map(|text| self.resource(text)).collect::<Result<_, _>>()?;
        let resources = Selection { patterns, is_negated };
        let conditions = match own.get("Condition") {
            None => Vec::new(),
            Some(block) => condition::parse(block, self.has_variables, &|key| self.known(key))?,
        };
        let principals = match (of_resource, own.get("Principal")) {
            (false, _) => None,
            (true, Some(value)) => Some(principals(value)?),
            (true, None) => return Err("Principal is missing".to_owned()),
        };
        Ok(Statement { sid, effect, actions, resources, conditions, principals })
    }

    fn known(&self, key: &str) -> Result<(), String> {
        if self.vocabulary.knows(key) {
            return Ok(());
        }
        let all: Vec<_> = self.vocabulary.keys().collect();
        Err(format!(
            "the host does not know the condition key {key:?}; it knows {}",
            all.join(", ")
        ))
    }

    fn resource(&self, text: &str) -> Result<ResourcePattern, String> {
        if text == "*" {
            return Ok(ResourcePattern::Every);
        }
        let parts: Vec<&str> = text.splitn(ARN_PARTS, ':').collect();
        let ["arn", partition, service, region, account, name] = parts[..] else {
            return Err(format!(
                "Resource {text:?} is no ARN of six parts, as arn:aws:s3:::BUCKET/*, and not \"*\""
            ));
        };
        if partition.is_empty() || service.is_empty() || name.is_empty() {
            return Err(format!("Resource {text:?} has an empty part"));
        }
        let is_service = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !service.chars().all(is_service) {
            return Err(format!("Resource {text:?}: the service must be a name"));
        }
        if partition != "*" && partition != "aws" && !partition.starts_with("aws-") {
            return Err(format!("Resource {text:?}: {partition:?} is no partition of AWS"));
        }
        if [region, account].iter().any(|part| part.contains(['$', '{', '}'])) {
            return Err(format!("Resource {text:?}: a variable may be in the last part only"));
        }
        let is_known = |key: &str| self.known(key).is_ok();
        let plain = |text: &str| Template::parse(text, true, None);
        let variables: Option<&dyn Fn(&str) -> bool> = self.has_variables.then_some(&is_known);
        Ok(ResourcePattern::Arn(Box::new(ArnPattern {
            service: plain(service)?,
            region: plain(region)?,
            account: plain(account)?,
            name: Template::parse(name, true, variables)?,
        })))
    }
}

/// The member `Action` or `NotAction`, and the like of `Resource`: exactly one, with one text at
/// least. True for the second.
fn either(own: &Map<String, Value>, name: &str) -> Result<(Vec<String>, bool), String> {
    let not = format!("Not{name}");
    let (value, is_negated) = match (own.get(name), own.get(&not)) {
        (Some(value), None) => (value, false),
        (None, Some(value)) => (value, true),
        _ => return Err(format!("exactly one of {name} and {not} must be there")),
    };
    let texts = texts(value).ok_or_else(|| format!("{name} must be a string or a list of them"))?;
    if !(1..=PATTERNS_MAX).contains(&texts.len()) {
        return Err(format!("{name} must have 1 to {PATTERNS_MAX} entries"));
    }
    match texts.iter().find(|text| text.len() > PATTERN_BYTES_MAX) {
        Some(_) => Err(format!("an entry of {name} is longer than {PATTERN_BYTES_MAX} bytes")),
        None => Ok((texts, is_negated)),
    }
}

fn texts(value: &Value) -> Option<Vec<String>> {
    match value {
        Value::String(text) => Some(vec![text.clone()]),
        Value::Array(all) => all.iter().map(|text| text.as_str().map(str::to_owned)).collect(),
        _ => None,
    }
}

fn action(text: &str) -> Result<Vec<super::pattern::Token>, String> {
    let is_name = |text: &str, more: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let is_action = text == "*"
        || text
            .split_once(':')
            .is_some_and(|(service, name)| is_name(service, "-") && is_name(name, "*?"));
    match is_action {
        true => Ok(tokens(&text.to_ascii_lowercase())),
        false => {
            Err(format!("Action {text:?} is not SERVICE:NAME, as s3:GetObject, and not \"*\""))
        }
    }
}

fn principals(value: &Value) -> Result<Principals, String> {
    let wrong = || {
        "Principal must be \"*\", {\"AWS\": …} or {\"Service\": …}, with a string or a list"
            .to_owned()
    };
    let Some(own) = value.as_object() else {
        return if value == "*" { Ok(Principals::Every) } else { Err(wrong()) };
    };
    let (mut aws, mut services) = (Vec::new(), Vec::new());
    for (kind, value) in own {
        let names = texts(value).filter(|names| names.len() <= PATTERNS_MAX).ok_or_else(wrong)?;
        match kind.as_str() {
            "AWS" if names.iter().any(|name| name == "*") => return Ok(Principals::Every),
            "AWS" => aws.extend(names),
            "Service" => services.extend(names),
            _ => return Err(wrong()),
        }
    }
    match aws.len() + services.len() {
        0 => Err(wrong()),
        _ => Ok(Principals::Some { aws, services }),
    }
}

/// JSON whose objects have no member twice, of a depth.
struct Unique(usize);

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        from.deserialize_any(self)
    }
}

impl Unique {
    fn deeper<E: de::Error>(&self) -> Result<Unique, E> {
        let depth = self.0.checked_sub(1);
        depth.map(Unique).ok_or_else(|| E::custom(format_args!("nested deeper than {DEPTH_MAX}")))
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(value) = from.next_element_seed(self.deeper()?)? {
            all.push(value);
        }
        Ok(all.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(name) = from.next_key::<String>()? {
            let value = from.next_value_seed(self.deeper()?)?;
            if all.insert(name.clone(), value).is_some() {
                return Err(de::Error::custom(format_args!("{name:?} is there twice")));
            }
        }
        Ok(all.into())
    }
}
