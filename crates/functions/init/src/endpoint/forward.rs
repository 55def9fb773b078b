//! Requests to services other than S3, as REQUESTs of the guest protocol.

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{HeaderMap, Request, Response};
use serde_json::json;
use unlade_guest_protocol::request::is_of_the_host;
use unlade_guest_protocol::{AnswerHead, Operation, RequestHead, RequestMethod, Status};
use unlade_s3::served::request::without_chunks;

use super::body;
use super::reply::{arriving, fields, response};
use crate::call::{self, Answer};
use crate::http::{self, Body};
use crate::link::Link;
use crate::outgoing::{Source, Whole};

/// Most bytes of a body without an announced length.
const BODY_BYTES_MAX: usize = 16 << 20;
/// Header fields of a body in chunks of its own.
const OF_CHUNKS: [&str; 2] = ["x-amz-decoded-content-length", "x-amz-trailer"];
/// Header fields of a service's answer that belong to its connection with the host.
const OF_A_CONNECTION: [&str; 4] = ["connection", "keep-alive", "transfer-encoding", "upgrade"];

/// Answers a request to a service, by its name in signatures.
pub async fn answer(
    link: &Rc<Link>,
    request: Request<Incoming>,
    service: String,
    region: String,
) -> Response<Body> {
    let (head, incoming) = request.into_parts();
    let is_form = is_form(&head.headers);
    let Some(method) = method(head.method.as_str()) else {
        return error(501, "NotImplemented", "the host does not carry this method", is_form);
    };
    let kept = fields(&head.headers).into_iter().filter_map(of_the_service);
    let text = RequestHead {
        service,
        signing_name: true,
        operation: String::new(),
        region,
        method,
        path: head.uri.path().to_owned(),
        query: head.uri.query().unwrap_or_default().to_owned(),
        headers: kept.collect(),
        body_bytes: 0,
        inline: false,
        unsigned: false,
        read_timeout_ms: None,
    };
    let text = match serde_json::to_value(&text) {
        Ok(text) => text,
        Err(why) => return error(400, "InvalidRequest", &why.to_string(), is_form),
    };
    let (arriving, length) = body::of(&head.headers, incoming);
    let begun = match length {
        Some(length) => begin(link, text, length, arriving),
        None => match arriving.whole(BODY_BYTES_MAX).await {
            Some(body) => begin(link, text, body.len() as u64, Whole(Some(body))),
            None => {
                let why = format!("the body breaks off, or has more than {BODY_BYTES_MAX} bytes");
                return error(400, "InvalidRequest", &why, is_form);
            }
        },
    };
    match begun.await {
        Ok(Ok(answer)) => shown(answer, is_form),
        Ok(Err(why)) => error(400, "InvalidRequest", &why.to_string(), is_form),
        Err(_) => error(500, "InternalFailure", "the request was given up", is_form),
    }
}

fn begin<S: Source + 'static>(
    link: &Rc<Link>,
    text: serde_json::Value,
    body_bytes: u64,
    body: S,
) -> tokio::sync::oneshot::Receiver<std::io::Result<Answer>> {
    call::begin(link, call::Request { operation: Operation::Request, text, body_bytes, body })
}

/// A header field as the service gets it; `None` for those of the host, and of a body in chunks, which
/// ends here.
fn of_the_service((name, value): (String, String)) -> Option<(String, String)> {
    if is_of_the_host(&name) || OF_CHUNKS.contains(&name.as_str()) {
        return None;
    }
    if name == "content-encoding" {
        let codings = without_chunks(&value);
        return (!codings.is_empty()).then_some((name, codings));
    }
    Some((name, value))
}

/// Returns true for a request of a protocol whose answers are XML.
pub fn is_form(headers: &HeaderMap) -> bool {
    headers
        .get("content-type")
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/x-www-form-urlencoded"))
}

/// Refuses a request for want of room.
pub fn slow_down(is_form: bool) -> Response<Body> {
    http::again(error(503, "SlowDown", "too many requests: try again", is_form))
}

fn method(name: &str) -> Option<RequestMethod> {
    use RequestMethod::{Delete, Get, Head, Patch, Post, Put};
    [Delete, Get, Head, Patch, Post, Put].into_iter().find(|method| method.as_str() == name)
}

fn shown(answer: Answer, is_form: bool) -> Response<Body> {
    match answer.status {
        Status::Done => match serde_json::from_value::<AnswerHead>(answer.meta) {
            Ok(AnswerHead { http_status, headers }) => {
                let is_kept =
                    |(name, _): &(String, String)| !OF_A_CONNECTION.contains(&name.as_str());
                let kept = headers.into_iter().filter(is_kept).collect();
                response(http_status, kept, arriving(answer.body))
            }
            Err(why) => error(500, "InternalFailure", &why.to_string(), is_form),
        },
        Status::Refused => slow_down(is_form),
        Status::ServiceError | Status::HostError => {
            let text =
                |name: &str| answer.meta["error"][name].as_str().unwrap_or_default().to_owned();
            let status = match text("Code").as_str() {
                "Invalid" | "TooLarge" => 400,
                "Denied" => 403,
                "Unsupported" => 501,
                _ => 503,
            };
            error(status, &text("Code"), &text("Message"), is_form)
        }
    }
}

/// An error in the form of the request's protocol: XML for forms, JSON for all others.
fn error(status: u16, code: &str, message: &str, is_form: bool) -> Response<Body> {
    if is_form {
        let fields = vec![("content-type".to_owned(), "text/xml".to_owned())];
        let error = unlade_s3::served::response::query_error(code, message);
        return response(status, fields, http::full(error));
    }
    let fields = [("content-type", "application/x-amz-json-1.1"), ("x-amzn-errortype", code)];
    let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    let body = json!({"__type": code, "message": message}).to_string();
    response(status, fields, http::full(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_gets_no_coding_that_ends_here() {
        let shown = |name: &str, value: &str| {
            of_the_service((name.to_owned(), value.to_owned())).map(|(_, value)| value)
        };
        assert_eq!(shown("content-encoding", "aws-chunked"), None);
        assert_eq!(shown("content-encoding", "gzip, AWS-Chunked").as_deref(), Some("gzip"));
        assert_eq!(shown("content-encoding", "gzip").as_deref(), Some("gzip"));
        assert_eq!(shown("x-amz-decoded-content-length", "5"), None);
        assert_eq!(shown("authorization", "AWS4-HMAC-SHA256 x"), None);
        assert_eq!(shown("x-amz-target", "a.B").as_deref(), Some("a.B"));
    }
}
