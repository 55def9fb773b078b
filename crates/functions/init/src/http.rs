//! HTTP servers on the loopback.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Most connections of a server. A slow client occupies its own only.
const CONNECTIONS_MAX: usize = 128;
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// The body of a response.
pub type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// A body that is in memory.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// A JSON response.
pub fn json(status: StatusCode, value: &Value) -> Response<Body> {
    with_type(status, "application/json", value.to_string())
}

/// A response with a type.
pub fn with_type(status: StatusCode, kind: &str, body: impl Into<Bytes>) -> Response<Body> {
    let response = Response::builder().status(status).header(CONTENT_TYPE, kind);
    // Fails for an invalid header field only.
    response.body(full(body)).unwrap_or_else(|_| Response::new(full("")))
}

/// The body of a request as a whole, and its trailers; `None` if it has more than `most` bytes or
/// breaks off. A longer body is received to its end: a client sees an answer only then.
pub async fn whole(mut body: Incoming, most: usize) -> Option<(Bytes, HeaderMap)> {
    let (mut out, mut trailers, mut is_long) = (BytesMut::new(), HeaderMap::new(), false);
    while let Some(frame) = body.frame().await {
        match frame.ok()?.into_data() {
            Ok(bytes) => {
                is_long |= out.len() + bytes.len() > most;
                if !is_long {
                    out.extend_from_slice(&bytes);
                }
            }
            Err(other) => trailers = other.into_trailers().unwrap_or_default(),
        }
    }
    (!is_long).then(|| (out.freeze(), trailers))
}

/// Serves connections until the process ends.
pub async fn serve<S, F>(
    listener: TcpListener,
    state: Rc<S>,
    answer: fn(Rc<S>, Request<Incoming>) -> F,
) where
    S: 'static,
    F: Future<Output = Response<Body>> + 'static,
{
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        // An error belongs to one connection, or descriptors are short: a connection's end frees
        // one, and its process may then connect again.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let state = state.clone();
        tokio::task::spawn_local(async move {
            let _ = stream.set_nodelay(true);
            let service = service_fn(|request| {
                let response = answer(state.clone(), request);
                async move { Ok::<_, Infallible>(response.await) }
            });
            let server = hyper::server::conn::http1::Builder::new()
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            // A client that breaks off is its own affair.
            let _ = server.await;
            drop(place);
        });
    }
}
