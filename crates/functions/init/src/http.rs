//! HTTP servers on the loopback.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::set_socket_send_buffer_size;
use serde_json::Value;
use tokio::net::TcpListener;

use crate::connections::{Busy, Connections};

/// Most connections of a server. A slow client occupies its own only.
const CONNECTIONS_MAX: usize = 128;
/// Most bytes of a request's head.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Size of a connection's buffer for what its client has not read.
const SENT_BYTES: usize = 128 * 1024;

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

/// The reason why a body is not there as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// It has more bytes than allowed.
    TooLong,
    /// It breaks off.
    Broken,
}

/// The body of a request as a whole, and its trailers. A body of more than `most` bytes is received to
/// its end: a client sees an answer only then.
///
/// # Errors
/// It is too long, or breaks off.
pub async fn whole(mut body: Incoming, most: usize) -> Result<(Bytes, HeaderMap), Unread> {
    let (mut out, mut trailers, mut is_long) = (BytesMut::new(), HeaderMap::new(), false);
    while let Some(frame) = body.frame().await {
        match frame.map_err(|_| Unread::Broken)?.into_data() {
            Ok(bytes) => {
                is_long |= out.len() + bytes.len() > most;
                if !is_long {
                    out.extend_from_slice(&bytes);
                }
            }
            Err(other) => trailers = other.into_trailers().unwrap_or_default(),
        }
    }
    if is_long { Err(Unread::TooLong) } else { Ok((out.freeze(), trailers)) }
}

/// Serves connections until the process ends. Of more than [`CONNECTIONS_MAX`], the one is closed that
/// has been idle for longest.
pub async fn serve<S, F>(
    listener: TcpListener,
    state: Rc<S>,
    answer: fn(Rc<S>, Request<Incoming>) -> F,
) where
    S: 'static,
    F: Future<Output = Response<Body>> + 'static,
{
    let connections = Connections::new(CONNECTIONS_MAX);
    loop {
        // An error belongs to one connection, or descriptors are short: a connection's end frees
        // one, and its process may then connect again.
        let Ok((stream, _)) = listener.accept().await else { continue };
        let connection = connections.add().await;
        let state = state.clone();
        tokio::task::spawn_local(async move {
            let _ = stream.set_nodelay(true);
            // The kernel would hold megabytes for a client that does not read.
            let _ = set_socket_send_buffer_size(&stream, SENT_BYTES);
            let service = service_fn(|request| {
                let busy = connection.begin();
                let response = answer(state.clone(), request);
                async move {
                    let response = response.await;
                    // It is busy until the body has been sent.
                    Ok::<_, Infallible>(response.map(|body| Guarded { body, _busy: busy }))
                }
            });
            let server = hyper::server::conn::http1::Builder::new()
                .max_buf_size(HEAD_BYTES_MAX)
                .serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                // A client that breaks off is its own affair.
                _ = server => {}
                () = connection.closing() => {}
            }
        });
    }
}

/// A body with the mark that its connection is busy.
struct Guarded {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Guarded {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
