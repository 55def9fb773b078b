//! Parameters of an operation as a request of the S3 REST API.

use serde_json::{Map, Value};

use crate::encode::percent;
use crate::operation::{Digest, Kind, Operation, Place, Target};
use crate::{value, xml};

/// Most bytes of a key that is sent. The service enforces its own limit of 1024.
pub const KEY_BYTES_MAX: usize = 4096;
/// Most bytes of the header fields.
pub const HEADERS_BYTES_MAX: usize = 8 * 1024;

/// The reason why parameters are invalid. The function, or its guest, is at fault.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The operation has no such parameter.
    #[error("{operation} has no parameter {parameter}")]
    Unknown {
        /// The operation.
        operation: &'static str,
        /// The parameter.
        parameter: String,
    },
    /// A required parameter is missing.
    #[error("{operation} needs {parameter}")]
    Missing {
        /// The operation.
        operation: &'static str,
        /// The parameter.
        parameter: &'static str,
    },
    /// The value of a parameter has a wrong type.
    #[error("{parameter} has a value of another type")]
    Type {
        /// The parameter.
        parameter: String,
    },
    /// A value cannot be sent.
    #[error("{parameter} cannot be sent: {why}")]
    Value {
        /// The parameter.
        parameter: String,
        /// The reason.
        why: &'static str,
    },
}

/// A request without its body, address and signature.
#[derive(Clone, Debug)]
pub struct Request {
    /// The operation.
    pub operation: &'static Operation,
    /// The bucket.
    pub bucket: Option<String>,
    /// The key.
    pub key: Option<String>,
    /// Fields of the query, not encoded.
    pub query: Vec<(&'static str, String)>,
    /// Header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, if it is derived from parameters.
    pub xml: Option<Vec<u8>>,
    /// True if the response's keys are percent-encoded only because this end asked for that.
    pub decodes: bool,
    /// The region of the function's client.
    pub region: Option<String>,
    /// True if it is sent without a signature.
    pub unsigned: bool,
}

impl Request {
    /// Creates a request from parameters.
    ///
    /// # Errors
    /// The invalid parameter, and the reason.
    pub fn new(
        operation: &'static Operation,
        parameters: &Map<String, Value>,
    ) -> Result<Request, RequestError> {
        let mut request = Request {
            operation,
            bucket: None,
            key: None,
            query: operation.query.iter().map(|(k, v)| (*k, (*v).to_owned())).collect(),
            headers: Vec::new(),
            xml: None,
            decodes: false,
            region: None,
            unsigned: false,
        };
        for (name, value) in parameters.iter().filter(|(_, value)| !value.is_null()) {
            request.take(name, value)?;
        }
        request.complete(parameters)?;
        Ok(request)
    }

    fn take(&mut self, name: &str, value: &Value) -> Result<(), RequestError> {
        let wrong = || RequestError::Type { parameter: name.to_owned() };
        match (name, self.operation.target) {
            ("Bucket", Target::Bucket | Target::Object) => {
                self.bucket = Some(checked_bucket(value.as_str().ok_or_else(wrong)?)?);
                return Ok(());
            }
            ("Key", Target::Object) => {
                self.key = Some(checked_key(value.as_str().ok_or_else(wrong)?)?);
                return Ok(());
            }
            _ => {}
        }
        let field = self.operation.field(name).ok_or_else(|| RequestError::Unknown {
            operation: self.operation.name,
            parameter: name.to_owned(),
        })?;
        let text = || value::to_text(value, field.kind).ok_or_else(wrong);
        match field.place {
            Place::Header(header) => {
                // A customer's key may be given as bytes; the field has base64.
                self.header(name, header, text()?)?;
            }
            Place::Query(key) => self.query.push((key, text()?)),
            Place::Headers(prefix) => {
                for (entry, value) in value.as_object().ok_or_else(wrong)? {
                    let text = value::to_text(value, Kind::Text).ok_or_else(wrong)?;
                    self.header(name, &format!("{prefix}{entry}"), text)?;
                }
            }
            Place::Xml(root, members) => {
                let written = xml::write(root, members, value);
                self.xml = Some(written.map_err(|parameter| RequestError::Type { parameter })?);
            }
            Place::Text => self.xml = Some(text()?.into_bytes()),
            Place::Element | Place::Nowhere => {}
        }
        Ok(())
    }

    fn header(&mut self, name: &str, header: &str, value: String) -> Result<(), RequestError> {
        let refuse = |why| Err(RequestError::Value { parameter: name.to_owned(), why });
        let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if header.is_empty() || !header.bytes().all(token) {
            return refuse("its name is no name of a header field");
        }
        if value.bytes().any(|byte| (byte < 0x20 && byte != b'\t') || byte == 0x7f) {
            return refuse("it has control characters");
        }
        let held: usize = self.headers.iter().map(|(n, v)| n.len() + v.len()).sum();
        if held + header.len() + value.len() > HEADERS_BYTES_MAX {
            return refuse("the header fields are too long");
        }
        self.headers.push((header.to_ascii_lowercase(), value));
        Ok(())
    }

    fn complete(&mut self, parameters: &Map<String, Value>) -> Result<(), RequestError> {
        let operation = self.operation;
        let missing = |parameter| RequestError::Missing { operation: operation.name, parameter };
        if operation.target != Target::Service && self.bucket.is_none() {
            return Err(missing("Bucket"));
        }
        if operation.target == Target::Object && self.key.is_none() {
            return Err(missing("Key"));
        }
        let is_there = |name: &str| parameters.get(name).is_some_and(|value| !value.is_null());
        for field in operation.input.iter().copied().flatten() {
            if field.required && !is_there(field.name) {
                return Err(missing(field.name));
            }
        }
        if let Some((root, members)) = operation.document {
            let is_element = |name: &str| members.iter().any(|member| member.name == name);
            let elements = parameters.iter().filter(|(name, _)| is_element(name));
            let elements: Map<_, _> = elements.map(|(n, v)| (n.clone(), v.clone())).collect();
            let written = xml::write(root, members, &elements.into());
            self.xml = Some(written.map_err(|parameter| RequestError::Type { parameter })?);
        }
        let lists = operation.field("EncodingType").is_some() && !operation.encoded.is_empty();
        if lists && !is_there("EncodingType") {
            self.query.push(("encoding-type", "url".to_owned()));
            self.decodes = true;
        }
        if operation.name == "GetObject" && !is_there("ChecksumMode") {
            self.headers.push(("x-amz-checksum-mode".to_owned(), "ENABLED".to_owned()));
        }
        Ok(())
    }

    /// Sets the region of the function's client; `None` is the worker's own.
    ///
    /// # Errors
    /// The name of the region is invalid.
    pub fn in_region(&mut self, region: Option<&str>) -> Result<(), RequestError> {
        let Some(region) = region.filter(|region| !region.is_empty()) else { return Ok(()) };
        let known = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if region.len() > 32 || !region.bytes().all(known) {
            let why = "a region has small letters, digits and hyphens";
            return Err(RequestError::Value { parameter: "region".to_owned(), why });
        }
        self.region = Some(region.to_owned());
        Ok(())
    }

    /// The algorithm of the checksum that the sender has to add: one is required, and none was
    /// given.
    pub fn wanted_digest(&self) -> Option<&str> {
        let given = |(name, _): &(String, String)| name.starts_with("x-amz-checksum-");
        if self.operation.digest == Digest::None || self.headers.iter().any(given) {
            return None;
        }
        self.header_value("x-amz-sdk-checksum-algorithm").or(Some("CRC32"))
    }

    /// The value of a header field.
    pub fn header_value(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    /// The path, encoded; starts with the bucket if the host name does not contain it.
    pub fn path(&self, with_bucket: bool) -> String {
        let mut path = String::from("/");
        if let (Some(bucket), true) = (&self.bucket, with_bucket) {
            path.push_str(bucket);
            if self.key.is_some() {
                path.push('/');
            }
        }
        if let Some(key) = &self.key {
            path.push_str(&percent(key, b"/"));
        }
        path
    }

    /// The query, encoded, without the question mark.
    pub fn query_text(&self) -> String {
        let field = |(key, value): &(&str, String)| match value.is_empty() {
            true if self.operation.query.iter().any(|(fixed, _)| fixed == key) => (*key).to_owned(),
            _ => format!("{key}={}", percent(value, b"")),
        };
        self.query.iter().map(field).collect::<Vec<_>>().join("&")
    }
}

/// Checks that a bucket's name cannot be resolved to another place than the one that the policy
/// allowed.
fn checked_bucket(name: &str) -> Result<String, RequestError> {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let fine = (1..=255).contains(&name.len())
        && name.bytes().all(known)
        && name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    match fine {
        true => Ok(name.to_owned()),
        false => Err(RequestError::Value {
            parameter: "Bucket".to_owned(),
            why: "a bucket has letters, digits, dots, hyphens and underscores",
        }),
    }
}

/// Checks that no intermediary can resolve a key to another key or bucket.
fn checked_key(key: &str) -> Result<String, RequestError> {
    let refuse = |why| Err(RequestError::Value { parameter: "Key".to_owned(), why });
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return refuse("a key has 1 to 4096 bytes");
    }
    if key.split('/').any(|part| part == "." || part == "..") {
        return refuse("a part of it is . or .., which servers resolve differently");
    }
    Ok(key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::find;
    use serde_json::json;

    fn request(operation: &str, parameters: Value) -> Result<Request, RequestError> {
        Request::new(find(operation).unwrap(), parameters.as_object().unwrap())
    }

    #[test]
    fn parameters_go_where_the_tables_say() {
        let made = request(
            "PutObject",
            json!({"Bucket": "b", "Key": "a b/ü", "Metadata": {"Who": "me"}, "ContentType": "x/y",
                "BucketKeyEnabled": true, "ContentLength": 5, "ACL": null}),
        )
        .unwrap();
        assert_eq!(made.path(true), "/b/a%20b/%C3%BC");
        assert_eq!(made.path(false), "/a%20b/%C3%BC");
        assert_eq!(made.header_value("x-amz-meta-who"), Some("me"));
        assert_eq!(made.header_value("content-type"), Some("x/y"));
        let flag = "x-amz-server-side-encryption-bucket-key-enabled";
        assert_eq!(made.header_value(flag), Some("true"));
        assert_eq!(made.header_value("x-amz-acl"), None);
        assert_eq!(made.wanted_digest(), Some("CRC32"));
        let part = json!({"Bucket": "b", "Key": "k", "UploadId": "u/1", "PartNumber": 3});
        let part = request("UploadPart", part).unwrap();
        assert!(part.query_text().contains("uploadId=u%2F1"));
        assert!(part.query_text().contains("partNumber=3"));
    }

    #[test]
    fn lists_are_asked_for_encoded_unless_the_function_does() {
        let asked = request("ListObjectsV2", json!({"Bucket": "b", "Prefix": ""})).unwrap();
        assert_eq!(asked.query_text(), "list-type=2&prefix=&encoding-type=url");
        assert!(asked.decodes);
        let own = json!({"Bucket": "b", "EncodingType": "url"});
        assert!(!request("ListObjectsV2", own).unwrap().decodes);
        let uploads = request("ListMultipartUploads", json!({"Bucket": "b"})).unwrap();
        assert_eq!(uploads.query_text(), "uploads");
    }

    #[test]
    fn nothing_is_smuggled() {
        let put = |more: Value| {
            let mut parameters = json!({"Bucket": "b", "Key": "k"});
            parameters.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            request("PutObject", parameters)
        };
        assert!(put(json!({"ContentType": "a\r\nx-amz-acl: public-read"})).is_err());
        assert!(put(json!({"Metadata": {"a: b\r\nc": "d"}})).is_err());
        assert!(put(json!({"Metadata": {"a": "é"}})).is_ok());
        assert!(put(json!({"Metadata": {"a": "x".repeat(HEADERS_BYTES_MAX)}})).is_err());
        for bucket in ["", "..", ".", "a/b", "a?b", "a b", "a%2f", "-a"] {
            assert!(put(json!({"Bucket": bucket})).is_err(), "{bucket}");
        }
        for key in ["", "../b/k", "a/../../b", "./a", "a/.."] {
            assert!(put(json!({"Key": key})).is_err(), "{key}");
        }
        assert!(put(json!({"Key": "a/...b/..c"})).is_ok());
    }

    #[test]
    fn parameters_can_be_elements_of_one_body() {
        let mut parameters = json!({"Bucket": "b", "Key": "k", "Expression": "SELECT 1 < 2",
            "ExpressionType": "SQL", "InputSerialization": {"CSV": {"FileHeaderInfo": "USE"}},
            "OutputSerialization": {"JSON": {}}, "ScanRange": null});
        let made = request("SelectObjectContent", parameters.clone()).unwrap();
        assert_eq!(made.query_text(), "select&select-type=2");
        let body = String::from_utf8(made.xml.unwrap()).unwrap();
        let due = "<Expression>SELECT 1 &lt; 2</Expression><ExpressionType>SQL</ExpressionType>\
                   <InputSerialization><CSV><FileHeaderInfo>USE</FileHeaderInfo></CSV>\
                   </InputSerialization><OutputSerialization><JSON></JSON></OutputSerialization>";
        let start =
            "<SelectObjectContentRequest xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">";
        assert_eq!(body, format!("{start}{due}</SelectObjectContentRequest>"));
        parameters["InputSerialization"]["CSV"] = json!({"Colour": "red"});
        let wrong = request("SelectObjectContent", parameters.clone());
        assert!(matches!(wrong, Err(RequestError::Type { parameter }) if parameter == "Colour"));
        parameters.as_object_mut().unwrap().remove("Expression");
        let missing = request("SelectObjectContent", parameters);
        assert!(matches!(missing, Err(RequestError::Missing { parameter: "Expression", .. })));
    }

    #[test]
    fn what_is_wrong_is_named() {
        let unknown = request("GetObject", json!({"Bucket": "b", "Key": "k", "Colour": "red"}));
        assert!(
            matches!(unknown, Err(RequestError::Unknown { parameter, .. }) if parameter == "Colour")
        );
        let missing = request("UploadPart", json!({"Bucket": "b", "Key": "k", "PartNumber": 1}));
        assert!(matches!(missing, Err(RequestError::Missing { parameter: "UploadId", .. })));
        let service = request("ListBuckets", json!({"Bucket": "b"}));
        assert!(matches!(service, Err(RequestError::Unknown { .. })));
        let wrong = request("ListParts", json!({"Bucket": "b", "Key": "k", "UploadId": 1}));
        assert!(matches!(wrong, Err(RequestError::Type { .. })));
    }
}
