//! Requests of S3 as calls of the guest protocol, with all that the host does for them: the role's
//! rights, prefetched objects, early acknowledgements, attempts.

use std::io::ErrorKind;
use std::rc::Rc;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{Method, Request, Response};
use serde_json::{Value, json};
use unlade_guest_protocol::{Operation, Status};
use unlade_s3::served::request::{Served, ServedError, find};
use unlade_s3::served::response::{self as shown, Shown};

use super::body;
use super::reply::{arriving, fields, response};
use crate::call::{self, Answer};
use crate::http::{self, Body};
use crate::link::Link;
use crate::outgoing::{Source, Whole};

/// Most bytes of a document in a request: a call's text has 512 KiB.
const DOCUMENT_BYTES_MAX: usize = 1 << 20;
const XML: &str = "application/xml";

/// Answers a request; without a region it is unsigned.
pub async fn answer(
    link: &Rc<Link>,
    request: Request<Incoming>,
    region: Option<String>,
) -> Response<Body> {
    let (head, incoming) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    let method = unlade_s3::served::request::method(head.method.as_str());
    let query = head.uri.query().unwrap_or_default();
    let found = find(method, head.uri.path(), query, &fields(&head.headers));
    let mut served = match found {
        Ok(served) => served,
        Err(why @ ServedError::Value { .. }) => {
            return error(400, "InvalidArgument", &why.to_string(), is_head);
        }
        Err(why) => return error(501, "NotImplemented", &why.to_string(), is_head),
    };
    let (arriving, length) = body::of(&head.headers, incoming);
    let begun = match (served.is_stream(), length) {
        (true, Some(length)) => begin(link, &served, region, length, arriving),
        (true, None) => {
            let why = "You must provide the Content-Length HTTP header.";
            return error(411, "MissingContentLength", why, is_head);
        }
        (false, _) => {
            let Some(document) = arriving.whole(DOCUMENT_BYTES_MAX).await else {
                let why =
                    format!("the body breaks off, or has more than {DOCUMENT_BYTES_MAX} bytes");
                return error(400, "IncompleteBody", &why, is_head);
            };
            if let Err(why) = served.take_body(&document) {
                return error(400, "MalformedXML", &why.to_string(), is_head);
            }
            begin(link, &served, region, 0, Whole(None))
        }
    };
    match begun.await {
        Ok(Ok(answer)) => shown(&served, answer, is_head),
        Ok(Err(why)) if why.kind() == ErrorKind::InvalidInput => {
            error(400, "EntityTooLarge", &why.to_string(), is_head)
        }
        Ok(Err(why)) => error(400, "IncompleteBody", &why.to_string(), is_head),
        Err(_) => error(500, "InternalError", "the call was given up", is_head),
    }
}

fn begin<S: Source + 'static>(
    link: &Rc<Link>,
    served: &Served,
    region: Option<String>,
    body_bytes: u64,
    body: S,
) -> tokio::sync::oneshot::Receiver<std::io::Result<Answer>> {
    let mut text = json!({
        "service": "s3",
        "operation": served.operation.name,
        "parameters": Value::Object(served.parameters.clone()),
    });
    match region {
        Some(region) => text["region"] = region.into(),
        None => text["unsigned"] = true.into(),
    }
    call::begin(link, call::Request { operation: Operation::Call, text, body_bytes, body })
}

fn shown(served: &Served, answer: Answer, is_head: bool) -> Response<Body> {
    if answer.is_lost {
        // SDKs send a body again after this status, for as many attempts as they are configured to.
        let error = &answer.meta["error"];
        let text = |name: &str| error[name].as_str().unwrap_or_default();
        let why = format!("Send the body again: {}: {}", text("Code"), text("Message"));
        return self::error(503, "ServiceUnavailable", &why, is_head);
    }
    match answer.status {
        Status::Done => {
            let status = answer.meta["http_status"].as_u64().unwrap_or(200) as u16;
            let (fields, body) =
                shown::done(served.operation, &served.parameters, &answer.meta, is_head);
            match body {
                Shown::Object => response(status, fields, arriving(answer.body)),
                Shown::Whole(body) => response(status, fields, http::full(body)),
            }
        }
        Status::ServiceError => {
            let (status, mut fields, body) = shown::failed(&answer.meta);
            fields.push(("content-type".to_owned(), XML.to_owned()));
            response(status, fields, http::full(without(body, is_head || status == 304)))
        }
        Status::HostError => {
            let (status, body) = shown::unmade(&answer.meta);
            let fields = vec![("content-type".to_owned(), XML.to_owned())];
            response(status, fields, http::full(without(body, is_head)))
        }
        Status::Refused => slow_down(is_head),
    }
}

/// Refuses a request for want of room.
pub fn slow_down(is_head: bool) -> Response<Body> {
    http::again(error(503, "SlowDown", "Please reduce your request rate.", is_head))
}

fn without(body: Vec<u8>, is_left_out: bool) -> Bytes {
    if is_left_out { Bytes::new() } else { body.into() }
}

fn error(status: u16, code: &str, message: &str, is_head: bool) -> Response<Body> {
    let fields = vec![("content-type".to_owned(), XML.to_owned())];
    let body = without(shown::error(code, message), is_head);
    response(status, fields, http::full(body))
}
