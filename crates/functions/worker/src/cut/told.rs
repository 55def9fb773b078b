//! The operation that a request really is, read from it by the rules of its protocol. The guest's
//! claim only has to agree.

use unlade_guest_protocol::{RequestHead, RequestMethod};
use unlade_metrics::CutRefusal;

use super::form;
use super::members::{self, Kept, Unreadable};
use super::refusal::Refusal;
use super::services::{Service, by_path};

const TARGET: &str = "x-amz-target";
const CBOR: &str = "smithy-protocol";

/// The protocol of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// JSON with `x-amz-target`.
    Json,
    /// A form.
    Query,
    /// Method and path.
    Rest,
    /// CBOR, with the operation in the path.
    Cbor,
}

/// The parameters that the host can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// Members of a JSON body.
    Json(Kept),
    /// Fields of a form.
    Form(Vec<(String, String)>),
    /// Variable segments of the path.
    Path(Vec<(&'static str, String)>),
    /// None.
    None,
}

/// The meaning of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Its protocol.
    pub protocol: Protocol,
    /// Its operation; `None` if the request does not tell it.
    pub operation: Option<String>,
    /// Its parameters.
    pub parameters: Parameters,
}

fn refusal(why: impl Into<String>) -> Refusal {
    Refusal::new(CutRefusal::Operation, why)
}

impl From<Unreadable> for Refusal {
    fn from(unreadable: Unreadable) -> Refusal {
        refusal(format!("the request's body cannot be checked: {}", unreadable.0))
    }
}

/// Reads a request.
///
/// # Errors
/// It is not of the service's protocols, could be read in two ways, or is not what it claims.
pub fn tell(service: &Service, head: &RequestHead, body: &[u8]) -> Result<Told, Refusal> {
    let content_type = head.header("content-type").unwrap_or_default();
    let is_form = content_type.starts_with("application/x-www-form-urlencoded");
    let told = if head.has_header(TARGET) {
        json(service, head, body)?
    } else if head.has_header(CBOR) {
        cbor(service, head)?
    } else if service.speaks("query") && is_form {
        query(head, body)?
    } else if service.speaks("rest") {
        rest(service, head)
    } else {
        return Err(refusal(format!("the request is of no protocol of {}", service.name)));
    };
    match &told.operation {
        Some(is) if !head.operation.is_empty() && *is != head.operation => {
            Err(refusal(format!("the request is {is} and claims to be {}", head.operation)))
        }
        _ => Ok(told),
    }
}

/// Requests whose meaning is in their body have one address and no encoding of their own.
fn plain(head: &RequestHead, path: &str) -> Result<(), Refusal> {
    let is_plain = head.method == RequestMethod::Post && head.path == path && head.query.is_empty();
    if !is_plain {
        return Err(refusal(format!("the request is not a POST of {path}")));
    }
    if head.has_header("content-encoding") {
        let why = "a compressed body cannot be checked: disable_request_compression=True in \
                   botocore's Config";
        return Err(refusal(why));
    }
    Ok(())
}

fn json(service: &Service, head: &RequestHead, body: &[u8]) -> Result<Told, Refusal> {
    plain(head, "/")?;
    let content_type = head.header("content-type").unwrap_or_default();
    if !service.speaks("json") || !content_type.starts_with("application/x-amz-json-1.") {
        return Err(refusal(format!("{TARGET} is not of this request's protocol")));
    }
    let target = head.header(TARGET).and_then(|target| target.rsplit_once('.'));
    let operation = match target {
        Some((prefix, operation)) if Some(prefix) == service.target && is_word(operation) => {
            operation
        }
        _ => return Err(refusal(format!("{TARGET} is not of {}", service.name))),
    };
    let wanted = members::wanted(service.name);
    let parameters = match wanted.is_empty() {
        true => Parameters::None,
        false => Parameters::Json(members::read(body, wanted)?),
    };
    let operation = Some(operation.to_owned());
    Ok(Told { protocol: Protocol::Json, operation, parameters })
}

fn query(head: &RequestHead, body: &[u8]) -> Result<Told, Refusal> {
    plain(head, "/")?;
    let fields = form::fields(body)?;
    let action = form::only(&fields, "Action").filter(|action| is_word(action));
    let operation = action.ok_or_else(|| refusal("the form has not one Action"))?.to_owned();
    let parameters = Parameters::Form(fields);
    Ok(Told { protocol: Protocol::Query, operation: Some(operation), parameters })
}

fn cbor(service: &Service, head: &RequestHead) -> Result<Told, Refusal> {
    let is_cbor = head.header(CBOR) == Some("rpc-v2-cbor") && service.speaks("cbor");
    let segments: Vec<_> = head.path.split('/').collect();
    let ["", "service", shape, "operation", operation] = segments[..] else {
        return Err(refusal("the path names no operation of CBOR"));
    };
    // A service with two shapes at one address does not exist; the target's is its own.
    let is_shape = service.target.map_or(is_word(shape), |target| target == shape);
    if !is_cbor || !is_shape || !is_word(operation) {
        return Err(refusal(format!("{CBOR} is not of {}", service.name)));
    }
    plain(head, &head.path)?;
    let operation = Some(operation.to_owned());
    Ok(Told { protocol: Protocol::Cbor, operation, parameters: Parameters::None })
}

fn rest(service: &Service, head: &RequestHead) -> Told {
    match by_path(service, head) {
        Some(found) => Told {
            protocol: Protocol::Rest,
            operation: Some(found.operation.to_owned()),
            parameters: Parameters::Path(found.segments),
        },
        None => Told { protocol: Protocol::Rest, operation: None, parameters: Parameters::None },
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::services::find;
    use super::*;

    /// A request of DynamoDB.
    pub fn head(service: &str, operation: &str, headers: &[(&str, &str)]) -> RequestHead {
        let field = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        RequestHead {
            service: service.into(),
            signing_name: false,
            operation: operation.into(),
            region: "us-east-1".into(),
            method: RequestMethod::Post,
            path: "/".into(),
            query: String::new(),
            headers: headers.iter().map(field).collect(),
            body_bytes: 0,
            inline: false,
            unsigned: false,
            credentials: None,
            read_timeout_ms: None,
        }
    }

    const JSON: (&str, &str) = ("content-type", "application/x-amz-json-1.0");
    const GET: (&str, &str) = ("x-amz-target", "DynamoDB_20120810.GetItem");
    const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");

    fn operation(head: &RequestHead, body: &str) -> Result<Option<String>, String> {
        let service = find(&head.service).unwrap();
        let told = tell(service, head, body.as_bytes());
        told.map(|told| told.operation).map_err(|refusal| {
            assert_eq!(refusal.kind, CutRefusal::Operation);
            refusal.why
        })
    }

    #[test]
    fn the_request_tells_its_operation() {
        let get = head("dynamodb", "GetItem", &[JSON, GET]);
        assert_eq!(operation(&get, r#"{"TableName":"t"}"#), Ok(Some("GetItem".into())));
        let publish = head("sns", "Publish", &[FORM]);
        assert_eq!(operation(&publish, "Action=Publish&Version=1"), Ok(Some("Publish".into())));
        let mut cbor = head("cloudwatch", "PutMetricData", &[("smithy-protocol", "rpc-v2-cbor")]);
        cbor.path = "/service/GraniteServiceVersion20100801/operation/PutMetricData".into();
        assert_eq!(operation(&cbor, "x"), Ok(Some("PutMetricData".into())));
        let mut rest = head("lambda", "Invoke", &[]);
        rest.path = "/2015-03-31/functions/f/invocations".into();
        assert_eq!(operation(&rest, "{}"), Ok(Some("Invoke".into())));
        let mut other = head("apigateway", "GetRestApis", &[]);
        other.path = "/restapis".into();
        assert_eq!(operation(&other, ""), Ok(None));
    }

    #[test]
    fn a_claim_that_is_not_true_is_refused() {
        let mut rest = head("lambda", "ListFunctions", &[]);
        rest.path = "/2015-03-31/functions/f/invocations".into();
        for (head, body) in [
            (
                head("dynamodb", "GetItem", &[JSON, ("x-amz-target", "DynamoDB_20120810.PutItem")]),
                "",
            ),
            (head("sns", "ListTopics", &[FORM]), "Action=Publish"),
            (rest, ""),
        ] {
            let why = operation(&head, body).unwrap_err();
            assert!(why.contains("claims to be"), "{why}");
        }
    }

    #[test]
    fn what_two_readers_could_take_for_two_operations_is_refused() {
        let put = ("x-amz-target", "DynamoDB_20120810.PutItem");
        let at = |path: &str, query: &str| RequestHead {
            path: path.into(),
            query: query.into(),
            ..head("dynamodb", "", &[JSON, GET])
        };
        for (head, body) in [
            (head("dynamodb", "", &[JSON, GET, put]), ""),
            (head("dynamodb", "", &[FORM, GET]), "Action=PutItem"),
            (head("dynamodb", "", &[GET]), ""),
            (head("dynamodb", "", &[JSON, JSON, GET]), ""),
            (head("dynamodb", "", &[JSON, ("x-amz-target", "AmazonSQS.GetItem")]), ""),
            (head("dynamodb", "", &[JSON, ("x-amz-target", "GetItem")]), ""),
            (head("dynamodb", "", &[JSON, ("x-amz-target", "DynamoDB_20120810.")]), ""),
            (head("dynamodb", "", &[JSON, GET, ("content-encoding", "gzip")]), ""),
            (head("dynamodb", "", &[JSON]), ""),
            (head("dynamodb", "", &[JSON, GET]), r#"{"TableName":"a","TableName":"b"}"#),
            (head("dynamodb", "", &[("smithy-protocol", "rpc-v2-cbor")]), ""),
            (at("/x", ""), ""),
            (at("/", "Action=PutItem"), ""),
            (RequestHead { method: RequestMethod::Get, ..at("/", "") }, ""),
            (head("sns", "", &[FORM]), "Action=Publish&Action=DeleteTopic"),
            (head("sns", "", &[FORM]), "Action=Publish&action=DeleteTopic"),
            (head("sns", "", &[FORM]), "Version=1"),
            (head("sns", "", &[FORM]), "Action=a%2Fb"),
            (head("sns", "", &[JSON, ("x-amz-target", "x.Publish")]), "Action=Publish"),
            (head("sns", "", &[]), "Action=Publish"),
            (head("sns", "", &[FORM, ("content-encoding", "gzip")]), "Action=Publish"),
        ] {
            assert!(operation(&head, body).is_err(), "{head:?} {body}");
        }
        let mut cbor = head("cloudwatch", "", &[("smithy-protocol", "rpc-v2-cbor")]);
        for path in ["/", "/service/Other/operation/A", "/service/x/operation/A/b"] {
            cbor.path = path.into();
            assert!(operation(&cbor, "").is_err(), "{path}");
        }
    }
}
