//! A request of the S3 REST API to its operation and parameters.

use serde_json::{Map, Value};
use unlade_http::Method;

use crate::encode::unpercent;
use crate::operation::{self, Field, Kind, Member, Operation, Place, Target};
use crate::{value, xml};

/// Fields of a query that belong to a signature, or tell an SDK's name of the operation.
const IGNORED_QUERY: [&str; 8] = [
    "x-id",
    "x-amz-algorithm",
    "x-amz-credential",
    "x-amz-date",
    "x-amz-expires",
    "x-amz-security-token",
    "x-amz-signature",
    "x-amz-signedheaders",
];
/// Header fields of a signature, of a body in transfer, or of an SDK itself.
const IGNORED_HEADERS: [&str; 9] = [
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-decoded-content-length",
    "x-amz-security-token",
    "x-amz-te",
    "x-amz-trailer",
    "x-amz-user-agent",
    "x-amz-source-account",
    "x-amz-source-arn",
];
/// Operations whose requests are those of another one: older forms of it, and one of other hosts.
pub(super) const SHADOWED: [&str; 5] = [
    "GetBucketLifecycle",
    "GetBucketNotification",
    "ListDirectoryBuckets",
    "PutBucketLifecycle",
    "PutBucketNotification",
];
/// Parameters whose header fields are lists in HTTP (RFC 9110 §5.6.1).
const LISTS: [&str; 3] = ["CacheControl", "ContentEncoding", "ContentLanguage"];
/// The content coding of a body in chunks, which ends at the server.
const CHUNKED: &str = "aws-chunked";

/// The reason why a request is not passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServedError {
    /// No operation of the tables has this method, path and query.
    #[error("no operation of S3 has this method, path and query")]
    Operation,
    /// A field that the operation does not have: it cannot be carried.
    #[error("{operation} has no field {field}")]
    Field {
        /// The operation.
        operation: &'static str,
        /// The header field, or the field of the query.
        field: String,
    },
    /// A value that cannot be read.
    #[error("{field} has an invalid value")]
    Value {
        /// The header field, the field of the query, or the parameter.
        field: String,
    },
    /// The body is not the document that the operation has.
    #[error("the body is not the XML of {operation}")]
    Document {
        /// The operation.
        operation: &'static str,
    },
}

/// The head of a request: target and fields as they were sent, and what was found in them.
#[derive(Clone, Debug)]
pub struct Served {
    /// The operation.
    pub operation: &'static Operation,
    /// Its parameters, but those of the body.
    pub parameters: Map<String, Value>,
}

/// The method with this name.
pub fn method(name: &str) -> Method {
    Method::of(name.as_bytes())
}

/// Finds operation and parameters of a request. `path` and `query` are percent-encoded, names of
/// header fields are in small letters. The bucket is in the path.
///
/// # Errors
/// There is no such operation, or it cannot carry all that the request says.
pub fn find(
    method: Method,
    path: &str,
    query: &str,
    headers: &[(String, String)],
) -> Result<Served, ServedError> {
    let query = fields(query);
    let rest = path.strip_prefix('/').ok_or(ServedError::Operation)?;
    let (bucket, key) = match rest.split_once('/') {
        Some((bucket, key)) => (bucket, key),
        None => (rest, ""),
    };
    let target = match (bucket.is_empty(), key.is_empty()) {
        (true, true) => Target::Service,
        (true, false) => return Err(ServedError::Operation),
        (false, true) => Target::Bucket,
        (false, false) => Target::Object,
    };
    let operation = choose(method, target, &query, headers).ok_or(ServedError::Operation)?;
    let mut parameters = Map::new();
    if target != Target::Service {
        parameters.insert("Bucket".to_owned(), exact("Bucket", bucket, false)?.into());
    }
    if target == Target::Object {
        parameters.insert("Key".to_owned(), exact("Key", key, false)?.into());
    }
    take_query(operation, &query, &mut parameters)?;
    take_headers(operation, headers, &mut parameters)?;
    Ok(Served { operation, parameters })
}

fn fields(query: &str) -> Vec<(String, String)> {
    let split = |field: &str| {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        (unpercent(name, true), unpercent(value, true))
    };
    let parts = query.split('&').filter(|field| !field.is_empty()).map(split);
    let ignored = |name: &str| IGNORED_QUERY.iter().any(|known| name.eq_ignore_ascii_case(known));
    parts.filter(|(name, _)| !ignored(name)).collect()
}

/// The operation with most of its own marks in the request: constant fields, and required ones.
fn choose(
    method: Method,
    target: Target,
    query: &[(String, String)],
    headers: &[(String, String)],
) -> Option<&'static Operation> {
    let asked = |name: &str| query.iter().find(|(found, _)| found == name);
    let marks = |operation: &Operation| {
        for (name, value) in operation.query {
            let (_, found) = asked(name)?;
            // A constant without a value may come as `?acl` or `?acl=`.
            if found != value {
                return None;
            }
        }
        let mut count = operation.query.len();
        for field in required(operation) {
            let is_there = match field.place {
                Place::Query(name) => asked(name).is_some(),
                Place::Header(name) => {
                    headers.iter().any(|(found, _)| found.eq_ignore_ascii_case(name))
                }
                _ => continue,
            };
            if !is_there {
                return None;
            }
            count += 1;
        }
        // An operation that knows all fields of the query goes before one that does not.
        let known = query.iter().filter(|(name, _)| is_known(operation, name)).count();
        Some((known, count))
    };
    let is_candidate = |found: &&Operation| {
        found.method == method && found.target == target && !SHADOWED.contains(&found.name)
    };
    let marked = operation::all().filter(is_candidate);
    let marked = marked.filter_map(|found| Some((marks(found)?, found)));
    marked.max_by_key(|(marks, _)| *marks).map(|(_, found)| found)
}

fn required(operation: &Operation) -> impl Iterator<Item = &'static Field> {
    operation.input.iter().copied().flatten().filter(|field| field.required)
}

fn is_known(operation: &Operation, name: &str) -> bool {
    let constant = operation.query.iter().any(|(known, _)| *known == name);
    constant
        || by_place(operation, |place| matches!(place, Place::Query(known) if *known == name))
            .is_some()
}

fn by_place(operation: &Operation, is: impl Fn(&Place) -> bool) -> Option<&'static Field> {
    operation.input.iter().copied().flatten().find(|field| is(&field.place))
}

fn take_query(
    operation: &'static Operation,
    query: &[(String, String)],
    parameters: &mut Map<String, Value>,
) -> Result<(), ServedError> {
    for (name, value) in query {
        if operation.query.iter().any(|(known, _)| known == name) {
            continue;
        }
        let found = by_place(operation, |place| matches!(place, Place::Query(k) if k == name));
        let field = found
            .ok_or_else(|| ServedError::Field { operation: operation.name, field: name.clone() })?;
        put(field, name, value, parameters)?;
    }
    Ok(())
}

/// The header fields; the lines of a field that is a list are joined to one.
fn joined(operation: &Operation, headers: &[(String, String)]) -> Vec<(String, String)> {
    let mut out: Vec<(String, String)> = Vec::new();
    for (name, value) in headers {
        let before = out.iter_mut().find(|(known, _)| known == name);
        match before.zip(separator(operation, name)) {
            Some(((_, held), separator)) => {
                held.push_str(separator);
                held.push_str(value);
            }
            None => out.push((name.clone(), value.clone())),
        }
    }
    out
}

/// The text between the lines of a field that is a list; `None` if it has one line.
fn separator(operation: &Operation, name: &str) -> Option<&'static str> {
    let is_names =
        |place: &Place| matches!(place, Place::Header(k) if k.eq_ignore_ascii_case(name));
    let is_prefixed = |place: &Place| matches!(place, Place::Headers(p) if name.starts_with(p));
    match by_place(operation, is_names) {
        Some(field) if field.kind == Kind::Names => Some(", "),
        Some(field) if LISTS.contains(&field.name) => Some(", "),
        Some(_) => None,
        // S3 combines metadata in this way.
        None => by_place(operation, is_prefixed).map(|_| ","),
    }
}

fn take_headers(
    operation: &'static Operation,
    headers: &[(String, String)],
    parameters: &mut Map<String, Value>,
) -> Result<(), ServedError> {
    for (name, value) in &joined(operation, headers) {
        let named =
            |place: &Place| matches!(place, Place::Header(k) if k.eq_ignore_ascii_case(name));
        if let Some(field) = by_place(operation, named) {
            let coding = (field.name == "ContentEncoding").then(|| without_chunks(value));
            match coding {
                Some(coding) if coding.is_empty() => {}
                Some(coding) => put(field, name, &coding, parameters)?,
                None => put(field, name, value, parameters)?,
            }
            continue;
        }
        let prefixed = |place: &Place| matches!(place, Place::Headers(p) if name.starts_with(p));
        if let Some(field) = by_place(operation, prefixed) {
            let Place::Headers(prefix) = field.place else { continue };
            let entries = parameters.entry(field.name).or_insert_with(|| Map::new().into());
            if let Some(entries) = entries.as_object_mut() {
                let entry = name.get(prefix.len()..).unwrap_or_default();
                entries.insert(entry.to_owned(), value.as_str().into());
            }
            continue;
        }
        // Other fields are those of HTTP, or of a signature. What S3 would obey must not be lost.
        let is_condition = name.starts_with("if-");
        let is_lost = (name.starts_with("x-amz-") || is_condition)
            && !IGNORED_HEADERS.contains(&name.as_str())
            && !name.starts_with("x-amz-sdk-")
            && !name.starts_with("x-amz-checksum-");
        if is_lost {
            return Err(ServedError::Field { operation: operation.name, field: name.clone() });
        }
    }
    Ok(())
}

/// The members of a document. None is left out: what is unknown, occurs twice or cannot be read could
/// be what limits the rest, such as the filter of a rule that removes objects.
fn document(body: &[u8], root: &str, members: &[Member]) -> Option<Map<String, Value>> {
    let read = xml::read(body, members)?;
    let again = xml::write(root, members, &Value::Object(read.clone())).ok()?;
    (xml::elements(body)? == xml::elements(&again)?).then_some(read)
}

/// Decodes percent-encoding. Another text would be another object.
fn exact(field: &str, text: &str, plus_is_space: bool) -> Result<String, ServedError> {
    let decoded = unpercent(text, plus_is_space);
    let is_replaced = decoded.contains('\u{fffd}')
        && !text.contains('\u{fffd}')
        && !text.to_ascii_uppercase().contains("%EF%BF%BD");
    match is_replaced {
        true => Err(ServedError::Value { field: field.to_owned() }),
        false => Ok(decoded),
    }
}

/// The codings of an object, without that of its transfer; empty if there is no other.
pub fn without_chunks(codings: &str) -> String {
    let kept = codings.split(',').map(str::trim);
    kept.filter(|coding| !coding.eq_ignore_ascii_case(CHUNKED)).collect::<Vec<_>>().join(",")
}

fn put(
    field: &Field,
    name: &str,
    text: &str,
    parameters: &mut Map<String, Value>,
) -> Result<(), ServedError> {
    let wrong = || ServedError::Value { field: name.to_owned() };
    let value = match field.kind {
        // The host sends these as they are.
        Kind::HttpDate | Kind::Timestamp => text.into(),
        kind => value::from_text(text, kind).ok_or_else(wrong)?,
    };
    match parameters.insert(field.name.to_owned(), value) {
        None => Ok(()),
        // A field that occurs twice could be read in two ways.
        Some(_) => Err(wrong()),
    }
}

impl Served {
    /// Returns true if the body is the object or a part of it, and not a document.
    pub fn is_stream(&self) -> bool {
        self.operation.has_body
    }

    /// Takes the parameters of the body.
    ///
    /// # Errors
    /// The body is not the operation's document.
    pub fn take_body(&mut self, body: &[u8]) -> Result<(), ServedError> {
        let wrong = ServedError::Document { operation: self.operation.name };
        // The host writes the document anew, so a digest of the text does not fit.
        self.parameters.remove("ContentMD5");
        if let Some((root, members)) = self.operation.document {
            self.parameters.extend(document(body, root, members).ok_or(wrong)?);
            return Ok(());
        }
        let in_body = |place: &Place| matches!(place, Place::Xml(..) | Place::Text);
        let Some(field) = by_place(self.operation, in_body) else { return Ok(()) };
        if body.is_empty() && !field.required {
            return Ok(());
        }
        let value = match field.place {
            Place::Xml(root, members) => Value::Object(document(body, root, members).ok_or(wrong)?),
            _ => std::str::from_utf8(body).map_err(|_| wrong)?.into(),
        };
        self.parameters.insert(field.name.to_owned(), value);
        Ok(())
    }
}
