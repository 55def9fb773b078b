//! The text of a template as a tree of values: JSON, or YAML.

use std::fmt;

use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::error::Failure;
use crate::yaml;

/// Most bytes of a template, as in CloudFormation.
pub const TEMPLATE_BYTES_MAX: usize = 1 << 20;

/// Parses the text of a template.
///
/// # Errors
/// It is too long, not well formed, or no mapping.
pub fn parse(text: &str) -> Result<Map<String, Value>, Failure> {
    if text.len() > TEMPLATE_BYTES_MAX {
        let why = format!("the template is longer than {TEMPLATE_BYTES_MAX} bytes");
        return Err(Failure::format(why));
    }
    let value = match text.trim_start().starts_with('{') {
        true => json(text)?,
        false => yaml::parse(text)?,
    };
    match value {
        Value::Object(map) => Ok(map),
        _ => Err(Failure::format("unsupported structure.")),
    }
}

fn json(text: &str) -> Result<Value, Failure> {
    let mut parser = serde_json::Deserializer::from_str(text);
    let value = Unique(yaml::DEPTH_MAX).deserialize(&mut parser);
    let value = value.and_then(|value| parser.end().map(|()| value));
    value.map_err(|error| Failure::format(format_args!("JSON not well-formed: {error}")))
}

/// JSON without a member twice, of a limited depth.
struct Unique(usize);

impl<'de> DeserializeSeed<'de> for Unique {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, parser: D) -> Result<Value, D::Error> {
        parser.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let depth = deeper::<A::Error>(self.0)?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(Unique(depth))? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Value, A::Error> {
        let depth = deeper::<A::Error>(self.0)?;
        let mut map = Map::new();
        while let Some(key) = members.next_key::<String>()? {
            let value = members.next_value_seed(Unique(depth))?;
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!("duplicate key {key:?}; remove one")));
            }
            map.insert(key, value);
        }
        Ok(map.into())
    }
}

fn deeper<E: de::Error>(depth: usize) -> Result<usize, E> {
    let error = || E::custom(format_args!("it is nested deeper than {} levels", yaml::DEPTH_MAX));
    depth.checked_sub(1).ok_or_else(error)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_and_yaml_give_the_same_tree() {
        let yaml = parse("Resources:\n  Q: {Type: 'AWS::SQS::Queue', N: [1, !Ref P]}\n").unwrap();
        let text = r#" {"Resources": {"Q": {"Type": "AWS::SQS::Queue", "N": [1, {"Ref": "P"}]}}}"#;
        assert_eq!(parse(text).unwrap(), yaml);
        assert_eq!(Value::Object(yaml)["Resources"]["Q"]["N"], json!([1, {"Ref": "P"}]));
    }

    #[test]
    fn malformed_json_names_the_place() {
        let deep = format!("{{\"a\": {}{}}}", "[".repeat(90), "]".repeat(90));
        for (text, part) in [
            ("{\"a\": 1", "JSON not well-formed: EOF"),
            ("{\"a\": 1} x", "trailing characters at line 1 column 10"),
            ("{\"a\": 1, \"a\": 2}", "duplicate key \"a\""),
            (deep.as_str(), "nested deeper"),
            ("- a\n", "unsupported structure."),
        ] {
            let message = parse(text).unwrap_err().message;
            assert!(message.contains(part), "{text:.20}: {message}");
        }
        let long = " ".repeat(TEMPLATE_BYTES_MAX + 1);
        assert!(parse(&long).unwrap_err().message.contains("longer than"));
    }
}
