//! HTTP servers on the loopback.

use std::convert::Infallible;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustix::net::sockopt::set_socket_send_buffer_size;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};

use crate::connections::{Busy, Connection, Connections};

/// Most connections of a server. A slow client occupies its own only.
const CONNECTIONS_MAX: usize = 128;
/// Most new connections that wait for the place of another; more wait in the kernel's backlog.
const WAITING_MAX: usize = 32;
/// Time for the first request of a connection; without it the connection is idle.
const FIRST_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait of a new connection; then its first request is refused.
const PLACE_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time of a connection whose request is refused.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept: descriptors are short.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
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

/// A response that tells its client to try again, with the time.
pub fn again(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}

/// The answers of a server.
pub struct Answers<S, F> {
    /// The state of the server.
    pub state: Rc<S>,
    /// Answers a request.
    pub answer: fn(Rc<S>, Request<Incoming>) -> F,
    /// Refuses a request for which there is no place.
    pub refusal: fn(&Request<Incoming>) -> Response<Body>,
}

/// Serves connections until the process ends. Of more than [`CONNECTIONS_MAX`], the one is closed that
/// has been idle for longest. If all are busy, a new one waits, and its request is refused in the end.
pub async fn serve<S, F>(listener: TcpListener, answers: Answers<S, F>)
where
    S: 'static,
    F: Future<Output = Response<Body>> + 'static,
{
    let connections = Connections::new(CONNECTIONS_MAX);
    let answers = Rc::new(answers);
    let waiting = Arc::new(Semaphore::new(WAITING_MAX));
    // The semaphore is never closed.
    while let Ok(waits) = waiting.clone().acquire_owned().await {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        let (connections, answers) = (connections.clone(), answers.clone());
        tokio::task::spawn_local(async move {
            let _ = stream.set_nodelay(true);
            match timeout(PLACE_TIMEOUT, connections.add()).await {
                Ok(connection) => {
                    drop(waits);
                    converse(stream, connection, &answers).await;
                }
                // A client that takes no answer is its own affair.
                Err(_) => {
                    let refused = refuse(stream, answers.refusal);
                    drop(timeout(REFUSAL_TIMEOUT, refused).await);
                }
            }
        });
    }
}

/// Serves a connection until it ends or has to close.
async fn converse<S, F>(stream: TcpStream, connection: Connection, answers: &Answers<S, F>)
where
    F: Future<Output = Response<Body>>,
{
    // The kernel would hold megabytes for a client that does not read.
    let _ = set_socket_send_buffer_size(&stream, SENT_BYTES);
    let service = service_fn(|request| {
        let busy = connection.begin();
        let response = (answers.answer)(answers.state.clone(), request);
        async move {
            let response = response.await;
            // It is busy until the body has been sent.
            Ok::<_, Infallible>(response.map(|body| Guarded { body, _busy: busy }))
        }
    });
    let server = hyper::server::conn::http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    let closing = async {
        if timeout(FIRST_TIMEOUT, connection.closing()).await.is_err() {
            connection.give_up_waiting();
            connection.closing().await;
        }
    };
    tokio::select! {
        // A request that has come keeps the connection open.
        biased;
        // A client that breaks off is its own affair.
        _ = server => {}
        () = closing => {}
    }
}

/// Refuses the first request of a connection.
async fn refuse(stream: TcpStream, refusal: fn(&Request<Incoming>) -> Response<Body>) {
    let service = service_fn(|request| async move {
        let response = refusal(&request);
        // A client sees the answer only after it has sent its body.
        let mut body = request.into_body();
        tokio::task::spawn_local(async move { while let Some(Ok(_)) = body.frame().await {} });
        Ok::<_, Infallible>(response)
    });
    let server = hyper::server::conn::http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    drop(server.await);
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
