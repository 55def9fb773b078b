//! The Lambda Runtime API, version 2018-06-01, for one `bootstrap`.

use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, StatusCode};
use serde_json::{Value, json};
use unlade_guest_protocol::{CallContext, InvokeHead};

use crate::http::{self, Body, Unread};
use crate::instance::Instance;
use crate::invocation::{self, Outcome, RESPONSE_BYTES_MAX, Refusal, Response};

/// The start of all paths.
const BASE: &str = "/2018-06-01/runtime/";
/// Most bytes of an error that `bootstrap` reports.
const ERROR_BYTES_MAX: usize = 256 * 1024;
/// The field with an error's type, also as a trailer of a streamed response.
const ERROR_TYPE: &str = "lambda-runtime-function-error-type";
/// The trailer with an error of a streamed response, in base64.
const ERROR_BODY: &str = "lambda-runtime-function-error-body";

/// Answers one request.
pub async fn answer(instance: Rc<Instance>, request: Request<Incoming>) -> hyper::Response<Body> {
    let path = request.uri().path().to_owned();
    let Some(rest) = path.strip_prefix(BASE) else { return unknown(&path) };
    let parts: Vec<&str> = rest.split('/').collect();
    match (request.method(), parts.as_slice()) {
        (&Method::GET, ["invocation", "next"]) => next(&instance).await,
        (&Method::POST, ["invocation", id, "response"]) => {
            respond(&instance, id, request, Told::Response).await
        }
        (&Method::POST, ["invocation", id, "error"]) => {
            respond(&instance, id, request, Told::Error).await
        }
        (&Method::POST, ["init", "error"]) => init_error(&instance, request).await,
        _ => unknown(&path),
    }
}

/// Refuses a request because all connections are busy.
pub fn refusal(_: &Request<Incoming>) -> hyper::Response<Body> {
    let what = "all connections to the Runtime API are busy";
    http::again(refuse(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", what))
}

fn unknown(path: &str) -> hyper::Response<Body> {
    let what = format!("the Runtime API has no {path}");
    refuse(StatusCode::NOT_FOUND, "InvalidRequest", &what)
}

fn refuse(status: StatusCode, kind: &str, message: &str) -> hyper::Response<Body> {
    http::json(status, &json!({"errorType": kind, "errorMessage": message}))
}

fn refused(why: Refusal) -> hyper::Response<Body> {
    match why {
        Refusal::State => refuse(
            StatusCode::FORBIDDEN,
            "InvalidStateTransition",
            "the state of the runtime does not allow this request",
        ),
        Refusal::Id => refuse(StatusCode::BAD_REQUEST, "InvalidRequestID", "Invalid request ID"),
    }
}

fn accepted() -> hyper::Response<Body> {
    http::json(StatusCode::ACCEPTED, &json!({"status": "OK"}))
}

async fn next(instance: &Rc<Instance>) -> hyper::Response<Body> {
    if let Err(why) = instance.states().ask() {
        return refused(why);
    }
    instance.changed();
    loop {
        // Before the check, so that no change is missed.
        let changed = instance.change();
        let event = instance.states().deliver();
        if let Some((head, event)) = event {
            return delivered(instance, &head, event);
        }
        changed.await;
    }
}

fn delivered(instance: &Instance, head: &InvokeHead, event: Bytes) -> hyper::Response<Body> {
    let region = instance.launch.environment.get("AWS_REGION").map_or("us-east-1", String::as_str);
    let arn = format!("arn:aws:lambda:{region}:000000000000:function:{}", head.function);
    let mut response = hyper::Response::builder()
        .header(CONTENT_TYPE, "application/json")
        .header("Lambda-Runtime-Aws-Request-Id", &head.id)
        .header("Lambda-Runtime-Deadline-Ms", head.deadline_ms)
        .header("Lambda-Runtime-Invoked-Function-Arn", arn);
    let CallContext { trace, client_context } = &head.context;
    if !trace.is_empty() {
        response = response.header("Lambda-Runtime-Trace-Id", trace);
    }
    if let Some(told) = client_context {
        response = response.header("Lambda-Runtime-Client-Context", told);
    }
    // Names, ids and contexts of the gateway are valid values.
    response.body(http::full(event)).unwrap_or_else(|_| unknown("invocation/next"))
}

/// The two ends of an invocation that `bootstrap` tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    Response,
    Error,
}

impl Told {
    fn bytes_max(self) -> usize {
        match self {
            Told::Response => RESPONSE_BYTES_MAX,
            Told::Error => ERROR_BYTES_MAX,
        }
    }
}

async fn respond(
    instance: &Rc<Instance>,
    id: &str,
    request: Request<Incoming>,
    told: Told,
) -> hyper::Response<Body> {
    let checked = instance.states().expects(id);
    if let Err(why) = checked {
        return refused(why);
    }
    let (head, body) = request.into_parts();
    let read = http::whole(body, told.bytes_max()).await;
    let is_long = read == Err(Unread::TooLong);
    let response = match (told, read) {
        // The invocation still waits: `bootstrap` may try again.
        (_, Err(Unread::Broken)) => return broken_off(),
        (Told::Response, Err(Unread::TooLong)) => Response::TooLarge,
        // A streamed response (`Lambda-Runtime-Function-Response-Mode`) is held until its end, where
        // it may have turned into an error.
        (Told::Response, Ok((result, trailers))) => match trailers.get(ERROR_TYPE) {
            None => Response::Result(result),
            Some(_) => Response::Error(streamed_error(&trailers)),
        },
        (Told::Error, read) => Response::Error(reported(&head.headers, read.ok())),
    };
    let outcome = instance.states().respond(id, response);
    ended(instance, outcome, is_long.then_some(told.bytes_max()))
}

fn broken_off() -> hyper::Response<Body> {
    refuse(StatusCode::BAD_REQUEST, "InvalidRequest", "the body breaks off")
}

/// Replies with the outcome; `too_long` is the limit that a body has exceeded.
fn ended(
    instance: &Rc<Instance>,
    outcome: Result<Option<Outcome>, Refusal>,
    too_long: Option<usize>,
) -> hyper::Response<Body> {
    match outcome {
        Ok(outcome) => instance.reply(outcome),
        Err(why) => return refused(why),
    }
    let Some(most) = too_long else { return accepted() };
    let message = format!("Exceeded maximum allowed payload size ({most} bytes).");
    refuse(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &message)
}

fn streamed_error(trailers: &HeaderMap) -> Bytes {
    let body = trailers.get(ERROR_BODY).and_then(|body| STANDARD.decode(body.as_bytes()).ok());
    match body {
        Some(body) if !body.is_empty() => body.into(),
        _ => invocation::error(&error_type(trailers), ""),
    }
}

fn error_type(fields: &HeaderMap) -> String {
    let named = fields.get(ERROR_TYPE).and_then(|kind| kind.to_str().ok());
    named.filter(|kind| !kind.is_empty()).unwrap_or("Runtime.Unknown").to_owned()
}

/// The error in a request, of which `body` is `None` if it is too long. The type is a header field if
/// the body has none.
fn reported(headers: &HeaderMap, body: Option<(Bytes, HeaderMap)>) -> Bytes {
    let kind = error_type(headers);
    let Some((body, _)) = body else {
        let why = format!("the function's error has more than {ERROR_BYTES_MAX} bytes");
        return invocation::error(&kind, &why);
    };
    let is_object = serde_json::from_slice::<Value>(&body).is_ok_and(|value| value.is_object());
    match is_object {
        true => body,
        false => invocation::error(&kind, &String::from_utf8_lossy(&body)),
    }
}

async fn init_error(instance: &Rc<Instance>, request: Request<Incoming>) -> hyper::Response<Body> {
    let (head, body) = request.into_parts();
    let read = http::whole(body, ERROR_BYTES_MAX).await;
    if read == Err(Unread::Broken) {
        return broken_off();
    }
    let too_long = read.is_err().then_some(ERROR_BYTES_MAX);
    let outcome = instance.states().fail(reported(&head.headers, read.ok()));
    ended(instance, outcome, too_long)
}
