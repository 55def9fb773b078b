//! Responses of the HTTP API.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{Response, StatusCode};
use unlade_fn_model::lambda::Refusal;

/// A response.
pub type Reply = Response<Full<Bytes>>;

/// A response with a JSON body.
pub fn json_reply(status: u16, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    set(&mut reply, "content-type", "application/json");
    reply
}

/// The response to a refused request, from which SDKs derive an exception.
pub fn refuse(refusal: &Refusal) -> Reply {
    let mut reply = json_reply(refusal.status(), refusal.body());
    set(&mut reply, "x-amzn-errortype", refusal.code());
    reply
}

/// Sets a header field; a value that cannot be in one is omitted.
pub fn set(reply: &mut Reply, name: &'static str, value: &str) {
    if let Ok(value) = value.parse() {
        reply.headers_mut().insert(name, value);
    }
}

/// A response with an XML body.
pub fn xml_reply(status: u16, body: impl Into<Bytes>) -> Reply {
    let mut reply = json_reply(status, body);
    set(&mut reply, "content-type", "text/xml");
    reply
}
