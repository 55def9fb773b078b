//! The parameters in a request's body. One that no code takes is refused: a tool must not believe
//! that a setting is in effect.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde_json::{Map, Value};
use unlade_fn_model::lambda::Refusal;

use crate::request::{Payload, compare};

/// See the [module](self).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    all: Map<String, Value>,
}

fn wrong(name: &str, due: &str) -> Refusal {
    Refusal::Parameter(format!("{name} must be {due}"))
}

impl Parameters {
    /// Reads a body, beside the requests of others.
    ///
    /// # Errors
    /// The body is too long, not the signed one, or no JSON object.
    pub async fn read(body: Payload, bytes_max: usize) -> Result<Parameters, Refusal> {
        let (bytes, due) = body.collect(bytes_max).await?;
        let parse = move || {
            compare(&bytes, due.as_deref())?;
            Parameters::parse(&bytes)
        };
        let parsed = tokio::task::spawn_blocking(parse).await;
        parsed.map_err(|error| Refusal::Service(error.to_string()))?
    }

    /// Parses a body; an empty one has no parameters.
    ///
    /// # Errors
    /// It is no JSON object.
    pub fn parse(bytes: &Bytes) -> Result<Parameters, Refusal> {
        if bytes.is_empty() {
            return Ok(Parameters::default());
        }
        let all = serde_json::from_slice(bytes);
        Ok(Parameters { all: all.map_err(|error| Refusal::Content(error.to_string()))? })
    }

    /// The parameters of an object.
    pub fn of(all: Map<String, Value>) -> Parameters {
        Parameters { all }
    }

    /// Takes a parameter; null is none.
    pub fn value(&mut self, name: &str) -> Option<Value> {
        self.all.remove(name).filter(|value| !value.is_null())
    }

    /// Takes a text.
    ///
    /// # Errors
    /// It is no text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Refusal> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(wrong(name, "a string")),
        }
    }

    /// Takes a text that must be there.
    ///
    /// # Errors
    /// It is no text, or absent.
    pub fn required(&mut self, name: &str) -> Result<String, Refusal> {
        let text = self.text(name)?;
        text.ok_or_else(|| Refusal::Parameter(format!("{name} is missing")))
    }

    /// Takes a number.
    ///
    /// # Errors
    /// It is no number of the range.
    pub fn number(
        &mut self,
        name: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, Refusal> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let number = value.as_u64().filter(|number| range.contains(number));
        let due = || wrong(name, &format!("from {} to {}", range.start(), range.end()));
        number.map(Some).ok_or_else(due)
    }

    /// Takes a truth value; false if absent.
    ///
    /// # Errors
    /// It is none.
    pub fn flag(&mut self, name: &str) -> Result<bool, Refusal> {
        match self.value(name) {
            None => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(wrong(name, "true or false")),
        }
    }

    /// Takes an object as parameters of its own.
    ///
    /// # Errors
    /// It is no object.
    pub fn object(&mut self, name: &str) -> Result<Option<Parameters>, Refusal> {
        match self.value(name) {
            None => Ok(None),
            Some(Value::Object(all)) => Ok(Some(Parameters { all })),
            Some(_) => Err(wrong(name, "an object")),
        }
    }

    /// Takes an object of texts.
    ///
    /// # Errors
    /// It is none.
    pub fn texts(&mut self, name: &str) -> Result<Option<BTreeMap<String, String>>, Refusal> {
        let Some(object) = self.object(name)? else { return Ok(None) };
        let text = |(key, value): (String, Value)| match value {
            Value::String(text) => Ok((key, text)),
            _ => Err(wrong(&format!("{name}.{key}"), "a string")),
        };
        object.all.into_iter().map(text).collect::<Result<_, _>>().map(Some)
    }

    /// Takes all parameters that are left.
    pub fn rest(self) -> impl Iterator<Item = (String, Value)> {
        self.all.into_iter()
    }

    /// Refuses parameters that are left.
    ///
    /// # Errors
    /// The first one.
    pub fn done(self) -> Result<(), Refusal> {
        let left = self.all.into_iter().find(|(_, value)| !is_empty(value));
        left.map_or(Ok(()), |(name, _)| {
            let why = format!("the parameter {name} is not served: leave it out");
            Err(Refusal::Parameter(why))
        })
    }
}

/// Returns true for null, and for texts, lists and objects with nothing in them.
pub fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(_) => false,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_empty),
        Value::Object(members) => members.values().all(is_empty),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parsed(value: Value) -> Parameters {
        Parameters::parse(&value.to_string().into()).unwrap()
    }

    #[test]
    fn parameters_have_types() {
        let mut own = parsed(json!({
            "a": "x", "n": 7, "f": true, "o": {"k": "v"}, "t": {"k": 1}, "z": null
        }));
        assert_eq!(own.number("a", 0..=9).unwrap_err().status(), 400);
        assert_eq!(own.number("n", 0..=9), Ok(Some(7)));
        assert_eq!((own.flag("f"), own.flag("absent")), (Ok(true), Ok(false)));
        assert_eq!(own.texts("o").unwrap().unwrap()["k"], "v");
        assert_eq!(own.texts("t").unwrap_err().message(), "t.k must be a string");
        assert_eq!(own.text("z"), Ok(None));
        assert_eq!(own.required("z").unwrap_err().message(), "z is missing");
        own.done().unwrap();
        assert_eq!(parsed(json!({"n": 10})).number("n", 0..=9).unwrap_err().status(), 400);
        assert_eq!(Parameters::parse(&"[1]".into()).unwrap_err().status(), 400);
    }

    #[test]
    fn a_parameter_that_no_code_takes_is_refused() {
        for fine in [json!({}), json!({"A": null, "B": [], "C": {"D": [], "E": ""}, "F": false})] {
            parsed(fine).done().unwrap();
        }
        let refused = parsed(json!({"KmsKey": "arn"})).done().unwrap_err();
        assert!(refused.message().contains("KmsKey"), "{refused:?}");
    }
}
