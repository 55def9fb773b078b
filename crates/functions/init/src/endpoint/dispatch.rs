//! The choice between S3 and other services.

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use super::scope::{self, Scope};
use super::{forward, s3};
use crate::http::{self, Body};
use crate::link::Link;

/// The scope of a request.
fn scope_of(request: &Request<Incoming>) -> Scope {
    let authorization =
        request.headers().get("authorization").and_then(|value| value.to_str().ok());
    scope::of(authorization, request.uri().query().unwrap_or_default())
}

/// Answers one request.
pub async fn answer(link: Rc<Link>, request: Request<Incoming>) -> Response<Body> {
    match scope_of(&request) {
        Scope::Signed { service, region } if service == "s3" => {
            s3::answer(&link, request, Some(region)).await
        }
        Scope::Unsigned => s3::answer(&link, request, None).await,
        Scope::Signed { service, region } => forward::answer(&link, request, service, region).await,
        Scope::Other(scheme) => {
            let why = format!("the host carries Signature Version 4 only, not {scheme:?}");
            let body = json!({"__type": "UnsupportedOperation", "message": why});
            http::json(StatusCode::NOT_IMPLEMENTED, &body)
        }
    }
}

/// Refuses a request because all connections are busy.
pub fn refusal(request: &Request<Incoming>) -> Response<Body> {
    match scope_of(request) {
        Scope::Signed { service, .. } if service != "s3" => {
            forward::slow_down(forward::is_form(request.headers()))
        }
        _ => s3::slow_down(request.method() == Method::HEAD),
    }
}
