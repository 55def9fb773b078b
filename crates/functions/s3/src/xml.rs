//! XML of the S3 REST API, according to the shapes of [`crate::operation`].

use roxmltree::{Document, Node, ParsingOptions};
use serde_json::{Map, Value};

use crate::operation::{Kind, Member, Shape};
use crate::value;

/// The namespace of requests.
const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
/// The namespace of `xsi:type`.
const XSI: &str = "http://www.w3.org/2001/XMLSchema-instance";
/// Most nodes of a parsed document: a page of a list has 1000 objects of a dozen elements.
const NODES_MAX: u32 = 200_000;

/// Writes a document.
///
/// # Errors
/// The name of an unknown member, or of one whose value does not match its shape.
pub fn write(root: &str, members: &[Member], value: &Value) -> Result<Vec<u8>, String> {
    let mut out = format!("<{root} xmlns=\"{NAMESPACE}\">");
    structure(members, value, root, &mut out)?;
    out.push_str(&format!("</{root}>"));
    Ok(out.into_bytes())
}

fn structure(
    members: &[Member],
    value: &Value,
    name: &str,
    out: &mut String,
) -> Result<(), String> {
    let map = value.as_object().ok_or_else(|| name.to_owned())?;
    if let Some(unknown) = map.keys().find(|key| members.iter().all(|m| m.name != **key)) {
        return Err(unknown.clone());
    }
    for member in members {
        match map.get(member.name) {
            None | Some(Value::Null) => {}
            Some(value) => element(member, value, out)?,
        }
    }
    Ok(())
}

fn element(member: &Member, value: &Value, out: &mut String) -> Result<(), String> {
    let name = member.element;
    let entries = || value.as_array().ok_or_else(|| member.name.to_owned());
    match member.shape {
        // The start tag contains it already.
        Shape::XsiType => Ok(()),
        Shape::Flat(shape) => {
            for value in entries()? {
                one(name, member.name, shape, value, out)?;
            }
            Ok(())
        }
        Shape::List(entry, shape) => {
            out.push_str(&format!("<{name}>"));
            for value in entries()? {
                one(entry, member.name, shape, value, out)?;
            }
            out.push_str(&format!("</{name}>"));
            Ok(())
        }
        ref shape => one(name, member.name, shape, value, out),
    }
}

fn one(
    element: &str,
    name: &str,
    shape: &Shape,
    value: &Value,
    out: &mut String,
) -> Result<(), String> {
    match shape {
        Shape::Leaf(kind) => {
            let text = value::to_text(value, *kind).ok_or_else(|| name.to_owned())?;
            // The format of SDKs: checksums of requests are then equal.
            if text.is_empty() {
                out.push_str(&format!("<{element} />"));
                return Ok(());
            }
            out.push_str(&format!("<{element}>"));
            escape(&text, out);
            out.push_str(&format!("</{element}>"));
        }
        Shape::Structure(members) => {
            out.push_str(&format!("<{element}"));
            let named = members.iter().find(|m| matches!(m.shape, Shape::XsiType));
            let kind = named.and_then(|member| value.get(member.name)).and_then(Value::as_str);
            if let Some(kind) = kind {
                out.push_str(&format!(" xmlns:xsi=\"{XSI}\" xsi:type=\""));
                escape(kind, out);
                out.push('"');
            }
            out.push('>');
            structure(members, value, name, out)?;
            out.push_str(&format!("</{element}>"));
        }
        _ => return Err(name.to_owned()),
    }
    Ok(())
}

/// Writes a document whose root has text only.
pub fn write_text(root: &str, text: &str) -> Vec<u8> {
    let mut out = format!("<{root} xmlns=\"{NAMESPACE}\">");
    escape(text, &mut out);
    out.push_str(&format!("</{root}>"));
    out.into_bytes()
}

/// Appends an element that has text only.
pub fn element_of_text(element: &str, text: &str, out: &mut String) {
    out.push_str(&format!("<{element}>"));
    escape(text, out);
    out.push_str(&format!("</{element}>"));
}

/// Escapes text (XML 1.0 §2.4); characters that XML cannot contain become U+FFFD.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // A parser would normalise these (XML 1.0 §2.11).
            '\r' => out.push_str("&#13;"),
            '\n' => out.push_str("&#10;"),
            '\t' => out.push_str("&#9;"),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
}

/// Reads the members of a document; `None` if it is not XML, or the root's name is not accepted.
pub fn read(text: &[u8], members: &[Member]) -> Option<Map<String, Value>> {
    with_root(text, |root| members_of(root, members))
}

/// The text of the root; an inner `None` if it is empty.
pub fn root_text(text: &[u8]) -> Option<Option<String>> {
    with_root(text, |root| match leaf(root) {
        text if text.is_empty() => None,
        text => Some(text),
    })
}

/// The children of an `<Error>`, as text; `None` if the root has another name.
pub fn read_error(text: &[u8]) -> Option<Map<String, Value>> {
    with_root(text, |root| {
        if root.tag_name().name() != "Error" {
            return None;
        }
        let children = root.children().filter(Node::is_element);
        let pairs = children.map(|child| (child.tag_name().name().to_owned(), leaf(child).into()));
        Some(pairs.collect())
    })?
}

/// Number of elements of a document; `None` if it is not XML.
pub fn elements(text: &[u8]) -> Option<usize> {
    with_root(text, |root| root.descendants().filter(Node::is_element).count())
}

/// Returns true if the text is XML.
pub fn is_document(text: &[u8]) -> bool {
    with_root(text, |_| ()).is_some()
}

fn with_root<T>(text: &[u8], then: impl FnOnce(Node<'_, '_>) -> T) -> Option<T> {
    let text = std::str::from_utf8(text).ok()?;
    let options = ParsingOptions { allow_dtd: false, nodes_limit: NODES_MAX, ..Default::default() };
    // Some stores send blank lines first, to keep the connection alive during the operation.
    let document = Document::parse_with_options(text.trim_start(), options).ok()?;
    Some(then(document.root_element()))
}

fn members_of(node: Node<'_, '_>, members: &[Member]) -> Map<String, Value> {
    let mut map = Map::new();
    for member in members {
        if let Some(value) = member_of(node, member) {
            map.insert(member.name.to_owned(), value);
        }
    }
    map
}

fn member_of(node: Node<'_, '_>, member: &Member) -> Option<Value> {
    let mut named = node.children().filter(|child| child.tag_name().name() == member.element);
    match member.shape {
        Shape::XsiType => node.attribute((XSI, "type")).map(Value::from),
        Shape::Structure(members) if member.element.is_empty() => {
            Some(members_of(node, members).into())
        }
        Shape::Flat(shape) => {
            let entries: Vec<Value> = named.filter_map(|child| one_of(child, shape)).collect();
            (!entries.is_empty()).then(|| entries.into())
        }
        Shape::List(entry, shape) => {
            let list = named.next()?;
            let entries = list.children().filter(|child| child.tag_name().name() == entry);
            Some(entries.filter_map(|child| one_of(child, shape)).collect())
        }
        ref shape => one_of(named.next()?, shape),
    }
}

fn one_of(node: Node<'_, '_>, shape: &Shape) -> Option<Value> {
    match shape {
        Shape::Leaf(Kind::Text) => Some(leaf(node).into()),
        Shape::Leaf(kind) => value::from_text(&leaf(node), *kind),
        Shape::Structure(members) => Some(members_of(node, members).into()),
        _ => None,
    }
}

fn leaf(node: Node<'_, '_>) -> String {
    node.children().filter_map(|child| child.text().filter(|_| child.is_text())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Output, Place, find};
    use serde_json::json;

    fn shape_of(operation: &str, parameter: &str) -> (&'static str, &'static [Member]) {
        match find(operation).unwrap().field(parameter).unwrap().place {
            Place::Xml(root, members) => (root, members),
            _ => panic!("no body"),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for (operation, parameter, value) in [
            (
                "DeleteObjects",
                "Delete",
                json!({"Objects": [{"Key": "a<&>\"ü\r\n"}, {"Key": "b", "VersionId": "1"}],
                    "Quiet": true}),
            ),
            (
                "CompleteMultipartUpload",
                "MultipartUpload",
                json!({"Parts": [{"ETag": "\"e\"", "PartNumber": 1}]}),
            ),
            (
                "PutObjectAcl",
                "AccessControlPolicy",
                json!({"Owner": {"ID": "o"}, "Grants": [{"Permission": "READ",
                    "Grantee": {"Type": "CanonicalUser", "ID": "g"}}]}),
            ),
            ("PutObjectTagging", "Tagging", json!({"TagSet": []})),
        ] {
            let (root, members) = shape_of(operation, parameter);
            let text = write(root, members, &value).unwrap();
            assert_eq!(Value::Object(read(&text, members).unwrap()), value, "{operation}");
        }
    }

    #[test]
    fn what_has_another_shape_is_named() {
        let (root, members) = shape_of("DeleteObjects", "Delete");
        let wrong = json!({"Objects": [{"Key": 5}]});
        assert_eq!(write(root, members, &wrong).unwrap_err(), "Key");
        let unknown = json!({"Objects": [], "Loud": true});
        assert_eq!(write(root, members, &unknown).unwrap_err(), "Loud");
    }

    #[test]
    fn a_list_is_read_as_sdks_read_it() {
        let Output::Xml(members) = find("ListObjectsV2").unwrap().output else { panic!() };
        let text = br#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
            <Name>b</Name><Prefix></Prefix><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated>
            <Contents><Key>a%20b</Key><Size>7</Size>
            <LastModified>2026-01-02T03:04:05.000Z</LastModified></Contents>
            </ListBucketResult>"#;
        let due = json!({"Name": "b", "Prefix": "", "KeyCount": 1, "IsTruncated": false,
            "Contents": [{"Key": "a%20b", "Size": 7,
                "LastModified": {"$instant": "2026-01-02T03:04:05.000Z"}}]});
        assert_eq!(Value::Object(read(text, members).unwrap()), due);
    }

    #[test]
    fn entities_of_a_document_are_not_expanded() {
        let bomb = br#"<!DOCTYPE a [<!ENTITY b "bbbb">]><Error><Code>&b;</Code></Error>"#;
        assert_eq!(read_error(bomb), None);
        let plain = b"\n <Error><Code>NoSuchKey</Code><Key>k</Key></Error>";
        assert_eq!(read_error(plain).unwrap()["Key"], "k");
    }
}
