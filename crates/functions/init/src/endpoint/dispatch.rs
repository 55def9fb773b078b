//! The choice between S3 and other services.

use std::collections::BTreeMap;
use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use super::scope::{self, Scope};
use super::{forward, keys, s3};
use crate::http::{self, Body};
use crate::link::Link;

/// The scope of a request.
fn scope_of(request: &Request<Incoming>) -> Scope {
    let authorization =
        request.headers().get("authorization").and_then(|value| value.to_str().ok());
    scope::of(authorization, request.uri().query().unwrap_or_default())
}

/// The endpoint of an instance.
pub struct Endpoint {
    /// The channel to the worker.
    pub link: Rc<Link>,
    /// True if keys of the function's own are ignored.
    pub ignores_keys: bool,
}

impl Endpoint {
    /// The endpoint of a function with this environment.
    pub fn new(link: Rc<Link>, environment: &BTreeMap<String, String>) -> Rc<Endpoint> {
        Rc::new(Endpoint { link, ignores_keys: keys::are_ignored(environment) })
    }
}

/// Answers one request.
pub async fn answer(endpoint: Rc<Endpoint>, request: Request<Incoming>) -> Response<Body> {
    let link = &endpoint.link;
    match scope_of(&request) {
        Scope::Signed { key, service, .. } if keys::is_own(&key) && !endpoint.ignores_keys => {
            let why = keys::message(&key);
            match service == "s3" {
                true => s3::error(403, keys::CODE, &why, request.method() == Method::HEAD),
                false => forward::error(403, keys::CODE, &why, forward::is_form(request.headers())),
            }
        }
        Scope::Signed { service, region, .. } if service == "s3" => {
            s3::answer(link, request, Some(region)).await
        }
        Scope::Unsigned => s3::answer(link, request, None).await,
        Scope::Signed { service, region, .. } => {
            forward::answer(link, request, service, region).await
        }
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
