//! `FUNCTION.Version` and `FUNCTION.Alias` in `Ref`, `Fn::GetAtt` and `Fn::Sub`: the names of the resources
//! that were generated.

use serde_json::Value;

use super::base::Generated;

/// Replaces the names in a value.
pub(super) fn rename(value: &mut Value, generated: &Generated) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(|item| rename(item, generated)),
        Value::Object(map) => {
            for (key, member) in map.iter_mut() {
                match key.as_str() {
                    "Ref" => rename_text(member, generated),
                    "Fn::GetAtt" => rename_attribute(member, generated),
                    "Fn::Sub" => rename_sub(member, generated),
                    _ => {}
                }
                rename(member, generated);
            }
        }
        _ => {}
    }
}

fn rename_text(value: &mut Value, generated: &Generated) {
    if let Some(name) = value.as_str().and_then(|name| generated.get(name)) {
        *value = name.clone().into();
    }
}

/// `[F, Version.X]`, `[F.Version, X]`.
fn rename_attribute(value: &mut Value, generated: &Generated) {
    let Some([Value::String(resource), Value::String(attribute)]) =
        value.as_array().map(Vec::as_slice)
    else {
        return;
    };
    let whole = format!("{resource}.{attribute}");
    if let Some((name, attribute)) = split(&whole, generated) {
        *value = vec![Value::from(name), attribute.into()].into();
    }
}

/// The generated name that a dotted name begins with, and the rest.
fn split(whole: &str, generated: &Generated) -> Option<(String, String)> {
    let (head, attribute) = whole.rsplit_once('.')?;
    Some((generated.get(head)?.clone(), attribute.to_owned()))
}

fn rename_sub(value: &mut Value, generated: &Generated) {
    let text = match value {
        Value::Array(list) => list.first_mut(),
        value => Some(value),
    };
    if let Some(Value::String(text)) = text {
        *text = renamed(text, generated);
    }
}

fn renamed(text: &str, generated: &Generated) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        out.push_str(before);
        out.push_str("${");
        let Some((name, after)) = after.split_once('}') else {
            rest = after;
            break;
        };
        match (generated.get(name), split(name, generated)) {
            (Some(new), _) => out.push_str(new),
            (None, Some((new, attribute))) => out.push_str(&format!("{new}.{attribute}")),
            (None, None) => out.push_str(name),
        }
        out.push('}');
        rest = after;
    }
    out + rest
}
