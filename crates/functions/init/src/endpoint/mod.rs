//! The endpoint for SDKs of all languages: `AWS_ENDPOINT_URL` in the function's environment. The
//! signature of a request is a placeholder, and tells service and region.
//!
//! - [`scope`]: service and region; [`body`], [`chunked`]: the body;
//! - [`s3`]: calls of S3, by the tables of `unlade-s3`;
//! - [`forward`]: requests to all other services.

mod body;
pub mod chunked;
mod forward;
mod s3;
pub mod scope;

use std::io::Result;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{HeaderMap, Request, Response, StatusCode};
use serde_json::json;
use tokio::sync::mpsc;

use self::scope::Scope;
use crate::http::{self, Body};
use crate::link::Link;

/// Answers one request.
pub(crate) async fn answer(link: Rc<Link>, request: Request<Incoming>) -> Response<Body> {
    let authorization =
        request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let query = request.uri().query().unwrap_or_default();
    match scope::of(authorization, query) {
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

/// Header fields with values that are text.
fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
    let text = |(name, value): (&HeaderName, &HeaderValue)| {
        Some((name.as_str().to_owned(), String::from_utf8(value.as_bytes().to_vec()).ok()?))
    };
    headers.iter().filter_map(text).collect()
}

/// A response with the header fields of a service; invalid ones are left out.
fn response(status: u16, fields: Vec<(String, String)>, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in fields {
        let pair = (HeaderName::try_from(name), HeaderValue::try_from(value));
        if let (Ok(name), Ok(value)) = pair {
            response.headers_mut().append(name, value);
        }
    }
    response
}

/// The body of an answer, as its pieces arrive. A body that breaks off ends its connection.
struct Pieces(mpsc::Receiver<Result<Bytes>>);

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>>>> {
        self.0.poll_recv(context).map(|piece| piece.map(|bytes| bytes.map(Frame::data)))
    }
}

/// A body that arrives.
fn arriving(pieces: mpsc::Receiver<Result<Bytes>>) -> Body {
    Pieces(pieces).boxed_unsync()
}
