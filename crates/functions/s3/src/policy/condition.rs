//! The conditions of a statement: an operator, a key, and the values that are due. All conditions
//! must hold; of the values one suffices.

use serde_json::{Map, Value};

use super::facts::{Facts, Found};
use super::operator::{self, Expected, Is, Operator};

/// Most values of a condition.
const VALUES_MAX: usize = 256;
/// Most conditions of a statement.
const CONDITIONS_MAX: usize = 64;

/// The values of a key with several ones that must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Set {
    All,
    Any,
}

/// See the [module](self).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    /// In small letters.
    key: String,
    operator: Operator,
    is_not: bool,
    if_exists: bool,
    set: Option<Set>,
    expected: Vec<Expected>,
}

/// Parses the member `Condition` of a statement: `{OPERATOR: {KEY: VALUE or [VALUE, …]}}`.
/// `is_known` tells the keys that the host knows; `has_variables` if `${KEY}` is one of them.
///
/// # Errors
/// The reason why it is invalid.
pub(super) fn parse(
    block: &Value,
    has_variables: bool,
    is_known: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Vec<Condition>, String> {
    let object = |value: &Value, name: &str| -> Result<Map<String, Value>, String> {
        value.as_object().cloned().ok_or_else(|| format!("{name} must be an object"))
    };
    let mut all = Vec::new();
    for (name, keys) in object(block, "Condition")? {
        let keys = object(&keys, &name)?;
        if keys.is_empty() {
            return Err(format!("{name} has no key"));
        }
        for (key, values) in keys {
            is_known(&key)?;
            let condition = one(&name, &key, &values, has_variables, is_known);
            all.push(condition.map_err(|why| format!("{name}, {key}: {why}"))?);
        }
    }
    match all.len() {
        ..=CONDITIONS_MAX => Ok(all),
        count => Err(format!("{count} conditions, of {CONDITIONS_MAX} at most")),
    }
}

fn one(
    name: &str,
    key: &str,
    values: &Value,
    has_variables: bool,
    is_known: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Condition, String> {
    let (set, rest) = match name.split_once(':') {
        Some(("ForAllValues", rest)) => (Some(Set::All), rest),
        Some(("ForAnyValue", rest)) => (Some(Set::Any), rest),
        _ => (None, name),
    };
    let (rest, if_exists) = match rest.strip_suffix("IfExists") {
        Some(rest) => (rest, true),
        None => (rest, false),
    };
    let (operator, is_not) = operator::find(rest).ok_or_else(|| unknown(name))?;
    if operator == Operator::Null && (if_exists || set.is_some()) {
        return Err("Null has neither IfExists nor a set".to_owned());
    }
    let values = match values {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    if !(1..=VALUES_MAX).contains(&values.len()) {
        return Err(format!("must have 1 to {VALUES_MAX} values"));
    }
    let is_variable = |key: &str| is_known(key).is_ok();
    let variables: Option<&dyn Fn(&str) -> bool> = has_variables.then_some(&is_variable);
    let parse = |value: &Value| match value {
        Value::String(text) => operator.parse(text, variables),
        Value::Number(number) => operator.parse(&number.to_string(), variables),
        Value::Bool(flag) => operator.parse(&flag.to_string(), variables),
        _ => Err("a value must be a string, a number, true or false".to_owned()),
    };
    let expected = values.iter().map(parse).collect::<Result<_, _>>()?;
    let key = key.to_ascii_lowercase();
    Ok(Condition { key, operator, is_not, if_exists, set, expected })
}

fn unknown(name: &str) -> String {
    format!(
        "{name:?} is no condition operator of this host: StringEquals, StringLike, Numeric…, Date…, \
         Bool, IpAddress, ArnLike, Null and their negations, with IfExists, ForAllValues: or \
         ForAnyValue:"
    )
}

impl Condition {
    /// Returns the result for a request. If the host cannot tell, [`Is::Unknown`].
    pub(super) fn holds(&self, facts: &Facts) -> Is {
        let values = match facts.find(&self.key) {
            Found::Unknown => return Is::Unknown,
            Found::Absent => return self.holds_without().into(),
            Found::Values(values) => values,
        };
        if self.operator == Operator::Null {
            return self.expected.contains(&Expected::Flag(false)).into();
        }
        let one = |value: &String| {
            let all = self.expected.iter();
            let is = Is::any(all.map(|due| self.operator.compare(value, due, facts)));
            if self.is_not { is.not() } else { is }
        };
        match (self.set, self.is_not) {
            (Some(Set::All), _) | (None, true) => Is::all(values.iter().map(one)),
            (Some(Set::Any), _) | (None, false) => Is::any(values.iter().map(one)),
        }
    }

    /// The result for a request that does not have the key.
    fn holds_without(&self) -> bool {
        match (self.operator, self.set) {
            (Operator::Null, _) => self.expected.contains(&Expected::Flag(true)),
            (_, Some(Set::All)) => true,
            (_, Some(Set::Any)) => self.if_exists,
            (_, None) => self.if_exists || self.is_not,
        }
    }
}
