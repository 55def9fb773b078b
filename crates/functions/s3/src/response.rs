//! Conversion of the store's responses to the results of an SDK.

use serde_json::{Map, Value, json};

use crate::encode::unpercent;
use crate::failure::ServiceError;
use crate::operation::{Output, ResponseHeader};
use crate::request::Request;
use crate::retry::ATTEMPTS_MAX;
use crate::{value, xml};

/// Status and header fields of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The status.
    pub status: u16,
    /// Names in their original case, and values.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// The value of the first field of this name, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Adds the request id to a meta, if there is one.
    fn identify(&self, meta: &mut Value) {
        let id = self.header("x-amzn-requestid").or_else(|| self.header("x-amz-request-id"));
        if let Some(id) = id {
            meta["request_id"] = id.into();
        }
    }

    /// All fields, with names in lower case; fields of the same name are joined (RFC 9110 §5.3).
    fn headers_json(&self) -> Map<String, Value> {
        let mut map = Map::new();
        for (name, value) in &self.headers {
            let entry = map.entry(name.to_ascii_lowercase());
            entry
                .and_modify(|held| {
                    *held = format!("{}, {value}", held.as_str().unwrap_or_default()).into();
                })
                .or_insert_with(|| value.as_str().into());
        }
        map
    }
}

/// The interpretation of a response.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Success, with the members of the result.
    Done(Map<String, Value>),
    /// The service returned an error.
    Failed(ServiceError),
    /// A success status with a body that cannot be parsed.
    Garbled,
}

/// Interprets a response; `body` is empty for an object's content.
pub fn understand(request: &Request, head: &Head, body: &[u8]) -> Answer {
    if !(200..300).contains(&head.status) {
        return Answer::Failed(ServiceError::read(head.status, body));
    }
    let operation = request.operation;
    let is_document = matches!(operation.output, Output::Xml(_) | Output::Text(_));
    let may_fail_late = operation.may_fail_late || (is_document && head.status == 200);
    if may_fail_late && xml::read_error(body).is_some() {
        return Answer::Failed(ServiceError::late(body));
    }
    // An SDK does not accept an invalid document as a response either: it retries.
    if is_document && head.status == 200 && !body.is_empty() && !xml::is_document(body) {
        return Answer::Failed(ServiceError::late(body));
    }
    // SDKs treat an empty body as a document without members.
    let document = if body.is_empty() { b"<none/>" } else { body };
    let mut result = match operation.output {
        Output::None | Output::Object => Map::new(),
        Output::Text(name) => match xml::root_text(document) {
            Some(text) => Map::from_iter([(name.to_owned(), text.into())]),
            None => return Answer::Garbled,
        },
        Output::Raw(name) => match std::str::from_utf8(body) {
            Ok(text) => Map::from_iter([(name.to_owned(), text.into())]),
            Err(_) => return Answer::Garbled,
        },
        Output::Xml(members) => match xml::read(document, members) {
            Some(result) => result,
            None => return Answer::Garbled,
        },
    };
    for expected in operation.response_headers.iter().copied().flatten() {
        if let Some(value) = field(head, expected) {
            result.insert(expected.name.to_owned(), value);
        }
    }
    // SDKs always return the entries of an object, an empty map if there are none.
    if operation
        .response_headers
        .iter()
        .copied()
        .flatten()
        .any(|expected| expected.name == "Metadata")
    {
        result.entry("Metadata").or_insert_with(|| Map::new().into());
    }
    let encoded = result.get("EncodingType").and_then(Value::as_str) == Some("url");
    if request.decodes && encoded {
        operation.encoded.iter().for_each(|path| decode(&mut result, path));
    }
    Answer::Done(result)
}

fn field(head: &Head, expected: &ResponseHeader) -> Option<Value> {
    let Some(prefix) = expected.header.strip_suffix('*') else {
        return value::from_text(head.header(expected.header)?, expected.kind);
    };
    let mut map = Map::new();
    for (name, value) in &head.headers {
        let Some((start, rest)) = name.split_at_checked(prefix.len()) else { continue };
        if start.eq_ignore_ascii_case(prefix) {
            map.insert(rest.to_owned(), value.as_str().into());
        }
    }
    // A single name that begins with `$` would be decoded as an instant or as bytes.
    let lone = map.keys().next().filter(|name| map.len() == 1 && name.starts_with('$'));
    if let Some(name) = lone.cloned() {
        let value = map.remove(&name);
        map.extend(value.map(|value| (format!("${name}"), value)));
    }
    (!map.is_empty()).then(|| map.into())
}

/// Decodes `Prefix`, or `Contents.Key` in every entry.
fn decode(result: &mut Map<String, Value>, path: &str) {
    let undo = |value: &mut Value| {
        if let Some(text) = value.as_str() {
            *value = unpercent(text, true).into();
        }
    };
    match path.split_once('.') {
        None => result.get_mut(path).map(undo).unwrap_or_default(),
        Some((list, member)) => {
            let entries = result.get_mut(list).and_then(Value::as_array_mut);
            entries.into_iter().flatten().filter_map(|entry| entry.get_mut(member)).for_each(undo);
        }
    }
}

/// The meta of a successful completion; `checked` is the algorithm by which the body is compared
/// with its checksum.
pub fn done_meta(
    result: &Map<String, Value>,
    head: &Head,
    retries: u32,
    checked: Option<&str>,
) -> Vec<u8> {
    let mut meta = json!({
        "result": result,
        "headers": head.headers_json(),
        "http_status": head.status,
        "retries": retries,
    });
    head.identify(&mut meta);
    if let Some(algorithm) = checked {
        meta["checksum_algorithm"] = algorithm.into();
    }
    count(&mut meta, retries);
    meta.to_string().into_bytes()
}

/// SDKs always report that the last attempt has no further retry.
fn count(meta: &mut Value, retries: u32) {
    if retries + 1 >= ATTEMPTS_MAX {
        meta["max_attempts_reached"] = true.into();
    }
}

/// The meta of a completion that is an error of the service.
pub fn error_meta(operation: &str, error: &ServiceError, head: &Head, retries: u32) -> Vec<u8> {
    let mut meta = json!({
        "error": error.error,
        "operation": operation,
        "http_status": error.status,
        "headers": head.headers_json(),
        "retries": retries,
    });
    if error.of_status {
        meta["request_id"] = "".into();
    }
    head.identify(&mut meta);
    let members: Map<String, Value> = modelled(error.code())
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), error.error.get(*name)?.clone())))
        .collect();
    if !members.is_empty() {
        meta["members"] = members.into();
    }
    count(&mut meta, retries);
    meta.to_string().into_bytes()
}

/// The members of an error in addition to code and message, by the service's model.
fn modelled(code: &str) -> &'static [&'static str] {
    match code {
        "InvalidObjectState" => &["StorageClass", "AccessTier"],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::find;

    fn head(status: u16, headers: &[(&str, &str)]) -> Head {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Head { status, headers: headers.iter().map(own).collect() }
    }

    fn request(operation: &str, parameters: Value) -> Request {
        Request::new(find(operation).unwrap(), parameters.as_object().unwrap()).unwrap()
    }

    #[test]
    fn an_object_is_described_by_its_fields() {
        let request = request("GetObject", json!({"Bucket": "b", "Key": "k"}));
        let head = head(
            200,
            &[
                ("Content-Length", "3"),
                ("ETag", "\"e\""),
                ("x-amz-meta-Who", "me"),
                ("Last-Modified", "Fri, 02 Jan 2026 03:04:05 GMT"),
                ("Expires", "never"),
                ("X-Amz-Request-Id", "r"),
            ],
        );
        let Answer::Done(result) = understand(&request, &head, b"") else { panic!() };
        let due = json!({"ContentLength": 3, "ETag": "\"e\"", "Metadata": {"Who": "me"},
            "ExpiresString": "never",
            "LastModified": {"$instant": "2026-01-02T03:04:05.000Z"}});
        assert_eq!(Value::Object(result.clone()), due);
        let meta: Value = serde_json::from_slice(&done_meta(&result, &head, 1, None)).unwrap();
        assert_eq!(meta["headers"]["x-amz-meta-who"], "me");
        assert_eq!((&meta["request_id"], &meta["retries"]), (&json!("r"), &json!(1)));
    }

    #[test]
    fn an_entry_that_looks_like_an_instant_is_told_from_one() {
        let request = request("HeadObject", json!({"Bucket": "b", "Key": "k"}));
        let metadata = |fields: &[(&str, &str)]| {
            let Answer::Done(result) = understand(&request, &head(200, fields), b"") else {
                panic!()
            };
            result["Metadata"].clone()
        };
        let alone = [("x-amz-meta-$instant", "never")];
        assert_eq!(metadata(&alone), json!({"$$instant": "never"}));
        let two = [alone[0], ("x-amz-meta-$octets", "")];
        assert_eq!(metadata(&two), json!({"$instant": "never", "$octets": ""}));
        assert_eq!(metadata(&[("x-amz-meta-a$", "b")]), json!({"a$": "b"}));
    }

    #[test]
    fn lists_come_decoded_where_this_end_asked_for_encoding() {
        let body = b"<R><EncodingType>url</EncodingType><Prefix>a%2F</Prefix>
            <Contents><Key>a%2Fb+c</Key></Contents>
            <CommonPrefixes><Prefix>a%2Fd%2F</Prefix></CommonPrefixes></R>";
        let answer = |parameters| {
            let request = request("ListObjectsV2", parameters);
            let Answer::Done(result) = understand(&request, &head(200, &[]), body) else {
                panic!()
            };
            Value::Object(result)
        };
        let decoded = answer(json!({"Bucket": "b"}));
        assert_eq!(decoded["Contents"][0]["Key"], "a/b c");
        assert_eq!(decoded["CommonPrefixes"][0]["Prefix"], "a/d/");
        assert_eq!(decoded["Prefix"], "a/");
        let raw = answer(json!({"Bucket": "b", "EncodingType": "url"}));
        assert_eq!(raw["Contents"][0]["Key"], "a%2Fb+c");
    }

    #[test]
    fn errors_are_those_of_sdks() {
        let get = request("GetObject", json!({"Bucket": "b", "Key": "k"}));
        let body = b"<Error><Code>NoSuchKey</Code><Message>none</Message><Key>k</Key>
            <RequestId>r</RequestId></Error>";
        let Answer::Failed(error) = understand(&get, &head(404, &[]), body) else { panic!() };
        assert_eq!((error.code(), error.message(), error.status), ("NoSuchKey", "none", 404));
        assert!(!error.error.contains_key("RequestId"));
        let heading = request("HeadObject", json!({"Bucket": "b", "Key": "k"}));
        let Answer::Failed(error) = understand(&heading, &head(404, &[]), b"") else { panic!() };
        assert_eq!((error.code(), error.message()), ("404", "Not Found"));
        // SDKs return ids for it, possibly empty ones, unless an intermediary has responded.
        let meta = |status, body: &[u8]| {
            let error = ServiceError::read(status, body);
            let text = error_meta("HeadObject", &error, &head(status, &[]), 0);
            serde_json::from_slice::<Value>(&text).unwrap()
        };
        assert_eq!(meta(404, b"")["request_id"], "");
        assert_eq!(meta(500, b"what")["request_id"], "");
        assert!(meta(503, b"").get("request_id").is_none());
        assert!(meta(502, b" <html>").get("request_id").is_none());
    }

    #[test]
    fn a_good_status_can_hide_an_error_or_nonsense() {
        let copy = json!({"Bucket": "b", "Key": "k", "CopySource": "b/o"});
        let copy = request("CopyObject", copy);
        let late = b"<Error><Code>InternalError</Code></Error>";
        let answer = understand(&copy, &head(200, &[]), late);
        assert!(matches!(answer, Answer::Failed(error) if error.status == 500));
        // An invalid document is an error as well; an empty body has no members.
        let answer = understand(&copy, &head(200, &[]), b"<half");
        assert!(matches!(answer, Answer::Failed(error) if error.status == 500 && error.of_status));
        assert_eq!(understand(&copy, &head(204, &[]), b"<half"), Answer::Garbled);
        let none = understand(&copy, &head(200, &[]), b"");
        assert!(matches!(none, Answer::Done(_)));
        let good = b"<CopyObjectResult><ETag>e</ETag></CopyObjectResult>";
        let Answer::Done(result) = understand(&copy, &head(200, &[]), good) else { panic!() };
        assert_eq!(result["CopyObjectResult"]["ETag"], "e");
    }

    #[test]
    fn a_location_may_be_nothing() {
        let request = request("GetBucketLocation", json!({"Bucket": "b"}));
        let answer = |body: &[u8]| understand(&request, &head(200, &[]), body);
        let none = answer(b"<LocationConstraint/>");
        assert_eq!(
            none,
            Answer::Done(Map::from_iter([("LocationConstraint".into(), Value::Null)]))
        );
        let some = answer(b"<LocationConstraint>eu</LocationConstraint>");
        assert!(matches!(some, Answer::Done(result) if result["LocationConstraint"] == "eu"));
    }
}
