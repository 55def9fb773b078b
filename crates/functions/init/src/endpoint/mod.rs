//! The endpoint for SDKs of all languages.

use std::rc::Rc;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};

use crate::http::{self, Body};
use crate::link::Link;

/// Answers one request.
pub async fn answer(_link: Rc<Link>, _request: Request<Incoming>) -> Response<Body> {
    http::with_type(StatusCode::NOT_IMPLEMENTED, "text/plain", "not yet")
}
