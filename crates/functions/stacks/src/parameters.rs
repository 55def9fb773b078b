//! The values of a template's parameters.

use std::collections::BTreeMap;

use regex_lite::RegexBuilder;
use serde_json::{Map, Value};

use crate::error::Failure;
use crate::template::Parameter;

/// Most bytes of a value, as in CloudFormation.
const VALUE_BYTES_MAX: usize = 4096;
/// Most bytes of a compiled pattern.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// A parameter of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Its name.
    pub key: String,
    /// Its value.
    pub value: Option<String>,
    /// The value is that of the stack before the update.
    pub is_previous: bool,
}

/// The value of each declared parameter.
///
/// # Errors
/// A value is missing, given twice, for no parameter, or not allowed.
pub fn values(
    declared: &BTreeMap<String, Parameter>,
    given: &[Given],
    previous: Option<&BTreeMap<String, String>>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut asked = BTreeMap::new();
    for one in given {
        let value = match (&one.value, one.is_previous) {
            (Some(_), true) => {
                let key = &one.key;
                let why = format!(
                    "Invalid input for parameter key {key}. Cannot specify usePreviousValue \
                                   as true and a parameter value"
                );
                return Err(Failure::invalid(why));
            }
            (Some(value), false) => value.clone(),
            (None, false) => String::new(),
            (None, true) => {
                let key = &one.key;
                let why = format!(
                    "Invalid input for parameter key {key}. Cannot specify usePreviousValue \
                                   as true for a parameter key not in the previous template"
                );
                let error = || Failure::invalid(why.clone());
                previous.and_then(|all| all.get(key)).ok_or_else(error)?.clone()
            }
        };
        if asked.insert(one.key.clone(), value).is_some() {
            return Err(Failure::invalid(format!("Duplicate parameter key {}", one.key)));
        }
    }
    let unknown: Vec<_> =
        asked.keys().filter(|key| !declared.contains_key(*key)).cloned().collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        let why = format!("Parameters: [{unknown}] do not exist in the template");
        return Err(Failure::invalid(why));
    }
    let (mut found, mut missing) = (BTreeMap::new(), Vec::new());
    for (name, parameter) in declared {
        match asked.remove(name).or_else(|| parameter.default.clone()) {
            Some(value) => {
                check(name, parameter, &value)?;
                found.insert(name.clone(), value);
            }
            None => missing.push(name.as_str()),
        }
    }
    match missing.is_empty() {
        true => Ok(found),
        false => {
            let missing = missing.join(", ");
            Err(Failure::invalid(format!("Parameters: [{missing}] must have values")))
        }
    }
}

/// The values as `Ref` gives them: text, or a list of text.
pub fn resolved(
    declared: &BTreeMap<String, Parameter>,
    values: &BTreeMap<String, String>,
) -> Map<String, Value> {
    let value = |(name, text): (&String, &String)| {
        let is_list = declared.get(name).is_some_and(is_list);
        let value = match is_list {
            true => items(text).map(Value::from).collect::<Vec<_>>().into(),
            false => Value::from(text.as_str()),
        };
        (name.clone(), value)
    };
    values.iter().map(value).collect()
}

fn is_list(parameter: &Parameter) -> bool {
    parameter.kind == "CommaDelimitedList" || parameter.kind == "List<Number>"
}

fn items(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(move |_| !text.is_empty())
}

fn check(name: &str, parameter: &Parameter, value: &str) -> Result<(), Failure> {
    let refuse = |why: String| match &parameter.constraint {
        Some(constraint) => {
            let why = format!("Parameter {name} failed to satisfy constraint: {constraint}");
            Err(Failure::invalid(why))
        }
        None => Err(Failure::invalid(why)),
    };
    if value.len() > VALUE_BYTES_MAX {
        return refuse(format!(
            "Parameter '{name}' must contain at most {VALUE_BYTES_MAX} characters"
        ));
    }
    let each: Vec<&str> = if is_list(parameter) { items(value).collect() } else { vec![value] };
    if parameter.kind.contains("Number") && each.iter().any(|item| item.parse::<f64>().is_err()) {
        return refuse(format!("Parameter '{name}' must be a number"));
    }
    if !parameter.allowed_values.is_empty() {
        let allowed = &parameter.allowed_values;
        if each.iter().any(|item| !allowed.iter().any(|one| one == item)) {
            let all = allowed.join(", ");
            return refuse(format!("Parameter '{name}' must be one of AllowedValues: [{all}]"));
        }
    }
    if let Some(pattern) = &parameter.allowed_pattern {
        let whole = format!("^(?:{pattern})$");
        let regex = RegexBuilder::new(&whole).size_limit(PATTERN_BYTES_MAX).build();
        let regex = regex.map_err(|error| {
            let why = format!("[/Parameters/{name}/AllowedPattern] is not supported: {error}");
            Failure::format(why)
        })?;
        if !regex.is_match(value) {
            return refuse(format!("Parameter '{name}' must match pattern {pattern}"));
        }
    }
    let (bounds, length) = (&parameter.bounds, value.chars().count());
    if bounds.length_min.is_some_and(|least| length < least) {
        let least = bounds.length_min.unwrap_or_default();
        return refuse(format!("Parameter '{name}' must contain at least {least} characters"));
    }
    if bounds.length_max.is_some_and(|most| length > most) {
        let most = bounds.length_max.unwrap_or_default();
        return refuse(format!("Parameter '{name}' must contain at most {most} characters"));
    }
    let outside = |item: &&str| {
        let number: f64 = item.parse().unwrap_or(f64::NAN);
        bounds.value_min.is_some_and(|least| number < least)
            || bounds.value_max.is_some_and(|most| number > most)
    };
    if parameter.kind.contains("Number") && each.iter().any(outside) {
        let bound = |value: Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
        let (least, most) = (bound(bounds.value_min), bound(bounds.value_max));
        return refuse(format!("Parameter '{name}' must be a number from {least} to {most}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::template::Template;

    fn declared() -> BTreeMap<String, Parameter> {
        let root = json!({
            "Parameters": {
                "Stage": {"Type": "String", "Default": "dev", "AllowedValues": ["dev", "live"]},
                "Name": {"Type": "String", "AllowedPattern": "[a-z]+", "MinLength": 2, "MaxLength": 4},
                "Size": {"Type": "Number", "Default": 3, "MinValue": 1, "MaxValue": "9"},
                "All": {"Type": "CommaDelimitedList", "Default": "a, b",
                        "ConstraintDescription": "at most two"},
            },
            "Resources": {"Q": {"Type": "AWS::SQS::Queue"}},
        });
        Template::from_tree(root.as_object().unwrap()).unwrap().parameters
    }

    fn given(all: &[(&str, &str)]) -> Vec<Given> {
        let one = |(key, value): &(&str, &str)| Given {
            key: (*key).to_owned(),
            value: Some((*value).to_owned()),
            is_previous: false,
        };
        all.iter().map(one).collect()
    }

    #[test]
    fn defaults_and_values_are_joined() {
        let all = values(&declared(), &given(&[("Name", "abc"), ("Stage", "live")]), None).unwrap();
        let resolved = resolved(&declared(), &all);
        let expected = json!({"All": ["a", "b"], "Name": "abc", "Size": "3", "Stage": "live"});
        assert_eq!(Value::Object(resolved), expected);
        let previous = BTreeMap::from([("Name".to_owned(), "old".to_owned())]);
        let same = [Given { key: "Name".into(), value: None, is_previous: true }];
        assert_eq!(values(&declared(), &same, Some(&previous)).unwrap()["Name"], "old");
        assert!(values(&declared(), &same, None).unwrap_err().message.contains("usePreviousValue"));
    }

    #[test]
    fn values_that_are_not_allowed_name_the_parameter() {
        for (all, part) in [
            (vec![], "Parameters: [Name] must have values"),
            (vec![("Nme", "x"), ("Name", "ab")], "Parameters: [Nme] do not exist in the template"),
            (
                vec![("Name", "ab"), ("Stage", "x")],
                "'Stage' must be one of AllowedValues: [dev, live]",
            ),
            (vec![("Name", "aB")], "Parameter 'Name' must match pattern [a-z]+"),
            (vec![("Name", "a")], "at least 2 characters"),
            (vec![("Name", "abcde")], "at most 4 characters"),
            (vec![("Name", "ab"), ("Size", "x")], "Parameter 'Size' must be a number"),
            (vec![("Name", "ab"), ("Size", "0")], "from 1 to 9"),
            (vec![("Name", "ab"), ("Name", "ac")], "Duplicate parameter key Name"),
        ] {
            let message = values(&declared(), &given(&all), None).unwrap_err().message;
            assert!(message.contains(part), "{message}");
        }
        let long = "x".repeat(VALUE_BYTES_MAX + 1);
        let error =
            values(&declared(), &given(&[("Name", "ab"), ("All", &long)]), None).unwrap_err();
        assert_eq!(error.message, "Parameter All failed to satisfy constraint: at most two");
    }
}
