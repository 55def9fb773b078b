//! The result or the error of an operation to a response of the S3 REST API.

use serde_json::{Map, Value};

use crate::operation::{Member, Operation, Output, Shape};
use crate::{value, xml};

/// Header fields that belong to the connection between host and store.
const OF_A_CONNECTION: [&str; 7] = [
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The body of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A document, or nothing.
    Whole(Vec<u8>),
    /// The object: it follows the answer.
    Object,
}

/// The response to a successful operation: header fields and body. `parameters` are those of the
/// request, `meta` the host's; `is_head` for a response to HEAD.
pub fn done(
    operation: &Operation,
    parameters: &Map<String, Value>,
    meta: &Value,
    is_head: bool,
) -> (Vec<(String, String)>, Shown) {
    let result = &meta["result"];
    let mut fields = headers(meta);
    add_of_result(operation, result, &mut fields);
    let is_length = |(name, _): &(String, String)| name == "content-length";
    if !is_head && !matches!(operation.output, Output::Object) {
        // That of the store's document, which is written anew.
        fields.retain(|field| !is_length(field));
    }
    let body = match operation.output {
        Output::None => Vec::new(),
        Output::Object => return (fields, Shown::Object),
        Output::Raw(name) => result[name].as_str().unwrap_or_default().as_bytes().to_vec(),
        Output::Text(name) => {
            let text = result[name].as_str().unwrap_or_default();
            xml::write_text(name, text)
        }
        Output::Xml(members) => document(operation, members, parameters, result),
    };
    (fields, Shown::Whole(body))
}

fn document(
    operation: &Operation,
    members: &[Member],
    parameters: &Map<String, Value>,
    result: &Value,
) -> Vec<u8> {
    let mut root = root(operation.name);
    let mut members = members;
    let mut value = result.clone();
    // The members of a structure without an element are those of the root.
    if let [Member { name, element: "", shape: Shape::Structure(inner) }] = members {
        (root, members, value) = (name, inner, result[*name].clone());
    }
    let held = value.as_object().cloned().unwrap_or_default();
    let is_own = |name: &String| members.iter().any(|member| member.name == name);
    let mut own: Map<_, _> = held.into_iter().filter(|(name, _)| is_own(name)).collect();
    own.values_mut().for_each(as_s3_writes);
    // The host asks for encoded keys, and decodes them, unless the request did.
    if !parameters.contains_key("EncodingType") {
        own.remove("EncodingType");
    }
    // Members come from the same table, so that they have its shapes.
    xml::write(root, members, &own.into()).unwrap_or_default()
}

/// Instants as text, with the three decimal digits that the service has.
fn as_s3_writes(value: &mut Value) {
    if let Some(instant) = value.get("$instant") {
        *value = instant.clone();
        return;
    }
    match value {
        Value::Array(values) => values.iter_mut().for_each(as_s3_writes),
        Value::Object(members) => members.values_mut().for_each(as_s3_writes),
        _ => {}
    }
}

/// The root of a document. SDKs that check it know these; others take any.
fn root(operation: &'static str) -> &'static str {
    match operation {
        "ListBuckets" => "ListAllMyBucketsResult",
        "ListDirectoryBuckets" => "ListAllMyDirectoryBucketsResult",
        "ListObjects" | "ListObjectsV2" => "ListBucketResult",
        "ListObjectVersions" => "ListVersionsResult",
        "ListParts" => "ListPartsResult",
        "ListMultipartUploads" => "ListMultipartUploadsResult",
        "CreateMultipartUpload" => "InitiateMultipartUploadResult",
        "CompleteMultipartUpload" => "CompleteMultipartUploadResult",
        "DeleteObjects" => "DeleteResult",
        "GetObjectAttributes" => "GetObjectAttributesResponse",
        "GetObjectTagging" | "GetBucketTagging" => "Tagging",
        "GetObjectAcl" | "GetBucketAcl" => "AccessControlPolicy",
        "GetBucketVersioning" => "VersioningConfiguration",
        "GetBucketCors" => "CORSConfiguration",
        "GetBucketLifecycleConfiguration" => "LifecycleConfiguration",
        "GetBucketLogging" => "BucketLoggingStatus",
        "GetBucketNotificationConfiguration" => "NotificationConfiguration",
        "GetBucketRequestPayment" => "RequestPaymentConfiguration",
        "GetBucketWebsite" => "WebsiteConfiguration",
        "GetBucketAccelerateConfiguration" => "AccelerateConfiguration",
        other => other,
    }
}

/// Adds header fields whose values are members of the result only: an answer that the host has made
/// itself has no fields of the store.
fn add_of_result(operation: &Operation, result: &Value, fields: &mut Vec<(String, String)>) {
    for own in operation.response_headers.iter().copied().flatten() {
        let is_there = fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(own.header));
        let (false, Some(value)) = (is_there, result.get(own.name)) else { continue };
        match own.header.strip_suffix('*') {
            Some(prefix) => {
                let has_any = fields.iter().any(|(name, _)| name.starts_with(prefix));
                let entries = value.as_object().into_iter().flatten();
                let entries = entries.filter_map(|(name, value)| Some((name, value.as_str()?)));
                if !has_any {
                    fields.extend(entries.map(|(name, text)| {
                        let name =
                            name.strip_prefix("$$").map_or(name.clone(), |n| format!("${n}"));
                        (format!("{prefix}{name}"), text.to_owned())
                    }));
                }
            }
            None => {
                let text = value::to_text(value, own.kind);
                fields.extend(text.map(|text| (own.header.to_owned(), text)));
            }
        }
    }
}

/// The header fields of the store.
fn headers(meta: &Value) -> Vec<(String, String)> {
    let Some(held) = meta["headers"].as_object() else { return Vec::new() };
    let kept = held.iter().filter(|(name, _)| !OF_A_CONNECTION.contains(&name.as_str()));
    kept.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
}

/// The response to an operation that has failed at the store: status, header fields and body.
pub fn failed(meta: &Value) -> (u16, Vec<(String, String)>, Vec<u8>) {
    let status = meta["http_status"].as_u64().and_then(|status| u16::try_from(status).ok());
    // An error in a response that began well is sent as one that did not.
    let status = status.filter(|status| (300..600).contains(status)).unwrap_or(500);
    let error = meta["error"].as_object().cloned().unwrap_or_default();
    let fields =
        headers(meta).into_iter().filter(|(name, _)| !name.starts_with("content-")).collect();
    (status, fields, error_document(&error, meta["request_id"].as_str().unwrap_or_default()))
}

/// The response to an operation that the host has not carried out.
pub fn unmade(meta: &Value) -> (u16, Vec<u8>) {
    let error = meta["error"].as_object().cloned().unwrap_or_default();
    let code = error.get("Code").and_then(Value::as_str).unwrap_or_default();
    let (status, shown) = match code {
        "Invalid" => (400, "InvalidRequest"),
        "Denied" => (403, "AccessDenied"),
        "TooLarge" => (400, "EntityTooLarge"),
        "Unsupported" => (501, "NotImplemented"),
        "Unavailable" | "Timeout" => (503, "ServiceUnavailable"),
        _ => (500, "InternalError"),
    };
    let mut error = error.clone();
    error.insert("Code".to_owned(), shown.into());
    (status, error_document(&error, ""))
}

/// An error as S3 writes it.
pub fn error(code: &str, message: &str) -> Vec<u8> {
    let members = [("Code", code), ("Message", message)];
    let members = members.map(|(name, text)| (name.to_owned(), Value::from(text)));
    error_document(&Map::from_iter(members), "")
}

/// An error as services write it whose requests are forms.
pub fn query_error(code: &str, message: &str) -> Vec<u8> {
    let mut out = String::from("<ErrorResponse><Error><Type>Receiver</Type>");
    xml::element_of_text("Code", code, &mut out);
    xml::element_of_text("Message", message, &mut out);
    out.push_str("</Error></ErrorResponse>");
    out.into_bytes()
}

fn error_document(error: &Map<String, Value>, request_id: &str) -> Vec<u8> {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error>");
    let pairs = error.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
    for (name, text) in pairs.chain([("RequestId", request_id)]) {
        // Names come from the store: only words are elements.
        if !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()) {
            xml::element_of_text(name, text, &mut out);
        }
    }
    out.push_str("</Error>");
    out.into_bytes()
}
