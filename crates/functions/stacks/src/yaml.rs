//! YAML to values. The parser gives events, so nothing here recurses, and depth, size and aliases are
//! bounded while they are read.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag};
use serde_json::{Map, Number, Value};

use crate::error::Failure;

/// Deepest nesting of a template.
pub const DEPTH_MAX: usize = 48;
/// Most bytes of the values of a template after its aliases are written out.
pub const EXPANDED_BYTES_MAX: usize = 4 << 20;
/// Bytes that a value is counted with, besides those of its text.
const NODE_BYTES: usize = 16;
/// Handle of the tags of YAML itself.
const CORE: &str = "tag:yaml.org,2002:";
/// Short forms whose long form begins with `Fn::`.
const FUNCTIONS: [&str; 16] = [
    "Base64",
    "FindInMap",
    "GetAtt",
    "Select",
    "Split",
    "Sub",
    "Join",
    "If",
    "Equals",
    "And",
    "Or",
    "Not",
    "ImportValue",
    "GetAZs",
    "Cidr",
    "Transform",
];

/// An anchored value, its depth and its counted bytes.
struct Anchored(Value, usize, usize);

/// A list or mapping that is not complete.
struct Open {
    items: Items,
    anchor: usize,
    tag: Option<Tag>,
    depth: usize,
    weight: usize,
}

enum Items {
    List(Vec<Value>),
    Map(Map<String, Value>, Option<String>),
}

/// Parses a document of YAML.
///
/// # Errors
/// It is not well formed, has a key twice, more than one document, an unknown tag, or exceeds a limit.
pub fn parse(text: &str) -> Result<Value, Failure> {
    let mut builder = Builder::default();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| malformed(&error))?;
        builder.take(event, span)?;
    }
    builder.root.ok_or_else(|| Failure::format("unsupported structure."))
}

fn malformed(error: &ScanError) -> Failure {
    let mark = error.marker();
    Failure::format(format_args!(
        "YAML not well-formed. (line {}, column {}): {}",
        mark.line(),
        mark.col() + 1,
        error.info()
    ))
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Anchored>,
    root: Option<Value>,
    expanded_bytes: usize,
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Failure> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let tag = tag.map(|tag| tag.into_owned());
                if let Some(Open { items: Items::Map(map, None), .. }) = self.open.last_mut() {
                    if tag.is_some_and(|tag| tag.handle != CORE) {
                        return Err(at(span, "a key has a tag; remove it"));
                    }
                    if map.contains_key(text.as_ref()) {
                        return Err(at(span, format_args!("duplicate key {text:?}; remove one")));
                    }
                    self.count(text.len(), span)?;
                    *key_of(&mut self.open) = Some(text.into_owned());
                    return Ok(());
                }
                let weight = NODE_BYTES + text.len();
                let value = scalar(&text, style, tag.as_ref(), span)?;
                self.count(weight, span)?;
                self.complete(value, anchor, tag, (0, weight), span)
            }
            Event::SequenceStart(anchor, tag) => {
                self.start(Items::List(Vec::new()), anchor, tag.map(|tag| tag.into_owned()), span)
            }
            Event::MappingStart(anchor, tag) => {
                let items = Items::Map(Map::new(), None);
                self.start(items, anchor, tag.map(|tag| tag.into_owned()), span)
            }
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else { return Ok(()) };
                let value = match open.items {
                    Items::List(list) => Value::Array(list),
                    Items::Map(map, _) => Value::Object(map),
                };
                self.complete(value, open.anchor, open.tag, (open.depth + 1, open.weight), span)
            }
            Event::Alias(anchor) => {
                let Some(Anchored(value, depth, weight)) = self.anchors.get(&anchor) else {
                    return Err(at(span, "an alias is within its own anchor; write the value out"));
                };
                let (value, depth, weight) = (value.clone(), *depth, *weight);
                self.count(weight, span)?;
                self.complete(value, 0, None, (depth, weight), span)
            }
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(at(span, "there are two documents; a template is one"))
            }
            _ => Ok(()),
        }
    }

    fn start(
        &mut self,
        items: Items,
        anchor: usize,
        tag: Option<Tag>,
        span: Span,
    ) -> Result<(), Failure> {
        if let Some(Open { items: Items::Map(_, None), .. }) = self.open.last() {
            return Err(at(span, "a key is a list or mapping; keys are strings"));
        }
        self.count(NODE_BYTES, span)?;
        self.check_depth(1, span)?;
        self.open.push(Open { items, anchor, tag, depth: 0, weight: NODE_BYTES });
        Ok(())
    }

    /// Adds a complete value, of a depth and a number of bytes, to its list or mapping.
    fn complete(
        &mut self,
        value: Value,
        anchor: usize,
        tag: Option<Tag>,
        (mut depth, weight): (usize, usize),
        span: Span,
    ) -> Result<(), Failure> {
        let is_long = tag.as_ref().is_some_and(|tag| tag.handle != CORE);
        let value = match tag {
            Some(tag) if is_long => written_out(&tag, value, span)?,
            _ => value,
        };
        depth += usize::from(is_long);
        self.check_depth(depth, span)?;
        if anchor != 0 {
            self.count(weight, span)?;
            self.anchors.insert(anchor, Anchored(value.clone(), depth, weight));
        }
        let Some(open) = self.open.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        open.depth = open.depth.max(depth);
        open.weight += weight;
        match &mut open.items {
            Items::List(list) => list.push(value),
            Items::Map(map, key) => match key.take() {
                Some(key) => drop(map.insert(key, value)),
                None => return Err(at(span, "a key is an alias; write the key out")),
            },
        }
        Ok(())
    }

    fn check_depth(&self, more: usize, span: Span) -> Result<(), Failure> {
        match self.open.len() + more > DEPTH_MAX {
            true => Err(at(span, format_args!("it is nested deeper than {DEPTH_MAX} levels"))),
            false => Ok(()),
        }
    }

    fn count(&mut self, bytes: usize, span: Span) -> Result<(), Failure> {
        self.expanded_bytes += bytes;
        match self.expanded_bytes > EXPANDED_BYTES_MAX {
            true => {
                let why = format!("its values exceed {EXPANDED_BYTES_MAX} bytes with aliases");
                Err(at(span, why))
            }
            false => Ok(()),
        }
    }
}

fn key_of(open: &mut [Open]) -> &mut Option<String> {
    match open.last_mut() {
        Some(Open { items: Items::Map(_, key), .. }) => key,
        _ => unreachable!("the caller has matched a mapping"),
    }
}

fn at(span: Span, why: impl std::fmt::Display) -> Failure {
    Failure::format(format_args!(
        "line {}, column {}: {why}",
        span.start.line(),
        span.start.col() + 1
    ))
}

/// The value of a scalar. Text that another notation would change (`012`, `1.0`) stays text, because
/// CloudFormation's properties and parameters are text.
fn scalar(text: &str, style: ScalarStyle, tag: Option<&Tag>, span: Span) -> Result<Value, Failure> {
    if let Some(tag) = tag {
        match (tag.handle.as_str(), tag.suffix.as_str()) {
            (CORE, "int" | "float" | "bool" | "null") => return Ok(plain(text)),
            (CORE, "str") | ("!", _) => return Ok(Value::String(text.to_owned())),
            _ => return Err(unknown_tag(tag, span)),
        }
    }
    match style {
        ScalarStyle::Plain => Ok(plain(text)),
        _ => Ok(Value::String(text.to_owned())),
    }
}

fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return Value::Bool(true),
        "false" | "False" | "FALSE" => return Value::Bool(false),
        _ => {}
    }
    let number = text.parse::<i64>().map(Number::from).ok();
    let number = number.or_else(|| text.parse::<f64>().ok().and_then(Number::from_f64));
    match number {
        Some(number) if number.to_string() == text => Value::Number(number),
        _ => Value::String(text.to_owned()),
    }
}

/// The long form of a short form.
fn written_out(tag: &Tag, value: Value, span: Span) -> Result<Value, Failure> {
    if tag.handle != "!" {
        return Err(unknown_tag(tag, span));
    }
    let (name, value) = match (tag.suffix.as_str(), value) {
        ("", value) => return Ok(value),
        (name @ ("Ref" | "Condition"), value) => (name.to_owned(), value),
        ("GetAtt", Value::String(text)) => {
            let (resource, attribute) = text.split_once('.').ok_or_else(|| {
                let form = "Fn::GetAtt must be of the form Resource.Attribute";
                at(span, format_args!("{form}, not {text:?}"))
            })?;
            ("Fn::GetAtt".to_owned(), vec![Value::from(resource), attribute.into()].into())
        }
        (name, value) if FUNCTIONS.contains(&name) => (format!("Fn::{name}"), value),
        _ => return Err(unknown_tag(tag, span)),
    };
    Ok(Value::Object(Map::from_iter([(name, value)])))
}

fn unknown_tag(tag: &Tag, span: Span) -> Failure {
    let known = FUNCTIONS.join(", !");
    let name = format!("{}{}", tag.handle, tag.suffix);
    at(span, format_args!("the tag {name} is unknown; known are !Ref, !Condition, !{known}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn short_forms_are_written_out() {
        let text = "
Resources:
  A: !Ref B
  C: !GetAtt D.E.F
  G: !Sub ['${x}', {x: !Join [',', [a, !If [c, 1, !Ref 'AWS::NoValue']]]}]
  H: !GetAtt [I, J]
  K: !Sub |
    text ${L}
  M: {'Fn::Base64': !Sub 'x'}
";
        let join = json!({"Fn::Join": [",", ["a", {"Fn::If": ["c", 1, {"Ref": "AWS::NoValue"}]}]]});
        let expected = json!({"Resources": {
            "A": {"Ref": "B"},
            "C": {"Fn::GetAtt": ["D", "E.F"]},
            "G": {"Fn::Sub": ["${x}", {"x": join}]},
            "H": {"Fn::GetAtt": ["I", "J"]},
            "K": {"Fn::Sub": "text ${L}\n"},
            "M": {"Fn::Base64": {"Fn::Sub": "x"}},
        }});
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn scalars_keep_their_text() {
        let text = "{a: 2012-10-17, b: 012, c: 1.0, d: 1.5, e: -3, f: yes, g: 'true', h: true, i: ~, \
                    j: !!str 5, k: 99999999999999999999, l: '', m: 1e3}";
        let expected = json!({"a": "2012-10-17", "b": "012", "c": 1.0, "d": 1.5, "e": -3, "f": "yes",
            "g": "true", "h": true, "i": null, "j": "5", "k": "99999999999999999999", "l": "",
            "m": "1e3"});
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn malformed_documents_name_the_place() {
        for (text, part) in [
            ("a: [1", "YAML not well-formed. (line"),
            ("a: 1\na: 2\n", "line 2, column 1: duplicate key"),
            ("a: !Foo b", "the tag !Foo is unknown"),
            ("a: !GetAtt b", "Resource.Attribute"),
            ("[a]: b", "a key is a list"),
            ("a: 1\n---\nb: 2", "two documents"),
            ("a: &x [*x]", "within its own anchor"),
            ("", "unsupported structure"),
        ] {
            let message = parse(text).unwrap_err().message;
            assert!(message.contains(part), "{text:?}: {message}");
            assert!(message.starts_with("Template format error: "), "{message}");
        }
    }

    #[test]
    fn aliases_and_depth_are_bounded() {
        let two = parse("a: &x {b: 1}\nc: *x").unwrap();
        assert_eq!(two, json!({"a": {"b": 1}, "c": {"b": 1}}));
        let mut laughs = "a0: &a0 [x, x]\n".to_owned();
        for level in 1..40 {
            let before = level - 1;
            laughs += &format!("a{level}: &a{level} [*a{before}, *a{before}]\n");
        }
        assert!(parse(&laughs).unwrap_err().message.contains("with aliases"));
        let deep = "[".repeat(100) + &"]".repeat(100);
        assert!(parse(&deep).unwrap_err().message.contains("nested deeper"));
        let mut chain = "a0: &a0 [x]\n".to_owned();
        for level in 1..60 {
            chain += &format!("a{level}: &a{level} [*a{}]\n", level - 1);
        }
        assert!(parse(&chain).unwrap_err().message.contains("nested deeper"));
    }
}
