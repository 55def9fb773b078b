//! Serves the requests of one connection in sequence: reads the head, dispatches, answers.
//!
//! [`next_head`] parses the next head without consuming it, so a connection can move to another
//! server with the request unread; [`serve_head`] serves it.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use unlade_http::{HeadError, Method, RequestHead, head_end};
use unlade_metrics::{Event, FinalClass, Stage};
use unlade_runtime::Stream;

use crate::body::BodyError;
use crate::context::{Context, Service};
use crate::exchange::Exchange;
use crate::objects::Objects;
use crate::session::{ConnectionOrigin, Interrupted, OnDrain, Session};
use crate::transfer::{self, SendError};
use crate::upstream::failure::Failed;
use crate::{change, get, upstream};

pub use crate::exchange::{ServeError, Served};

/// A head shorter than twice this is parsed after each read.
const PARSE_ALWAYS_BYTES: usize = 256;
/// Number of requests of one connection that are served before the task yields to others.
const REQUESTS_IN_A_ROW: u32 = 32;

/// Result of waiting for the next request.
#[derive(Debug)]
pub enum Next {
    /// A request, whose head is at the front of the stream's input, not consumed.
    Request(RequestHead),
    /// The client ended the connection between requests.
    Ended,
    /// The client ended the connection within a head.
    Truncated,
    /// No request began within the idle time.
    Idle,
    /// A head was not complete in time: 408.
    Slow,
    /// The server drains, and no request has begun.
    Draining,
    /// The head is invalid.
    Invalid(HeadError),
}

/// Waits for the next request: up to `idle` for its first byte, then up to the head timeout for
/// its last. Nothing is consumed.
///
/// # Errors
/// The connection broke.
pub async fn next_head(
    stream: &mut Stream,
    session: &mut Session,
    idle: Duration,
) -> io::Result<Next> {
    let limits = session.context().limits();
    let mut started = None;
    // Parsing a long head after every byte would take quadratic time.
    let mut parse_at = 1;
    loop {
        let arrived = stream.input().len();
        if arrived >= parse_at || head_end(stream.input(), 0).is_some() {
            parse_at = arrived + (arrived / 2).saturating_sub(PARSE_ALWAYS_BYTES) + 1;
            match RequestHead::parse(stream.input(), &limits.head) {
                Ok(Some(head)) => return Ok(Next::Request(head)),
                Ok(None) => {}
                Err(error) => return Ok(Next::Invalid(error)),
            }
        }
        let begun = !stream.input().is_empty();
        let (limit, on_drain) = match begun {
            false => (idle, OnDrain::GiveUp),
            true => {
                let started = *started.get_or_insert_with(Instant::now);
                (limits.head_timeout.saturating_sub(started.elapsed()), OnDrain::Finish)
            }
        };
        match session.within(limit, on_drain, stream.fill()).await {
            Ok(Ok(0)) if begun => return Ok(Next::Truncated),
            Ok(Ok(0)) => return Ok(Next::Ended),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error),
            Err(Interrupted::Draining) => return Ok(Next::Draining),
            Err(Interrupted::Timeout) if begun => return Ok(Next::Slow),
            Err(Interrupted::Timeout) => return Ok(Next::Idle),
        }
    }
}

/// Serves the request whose head [`next_head`] returned, which is at the front of the stream's
/// input. Afterwards the input begins with the next request, if it has arrived.
///
/// # Errors
/// The connection broke or stalled, before or during the response.
pub async fn serve_head(
    stream: &mut Stream,
    session: &mut Session,
    head: RequestHead,
) -> Result<Served, ServeError> {
    session.in_a_row += 1;
    if session.in_a_row >= REQUESTS_IN_A_ROW {
        session.in_a_row = 0;
        tokio::task::yield_now().await;
    }
    let started = Instant::now();
    let service = session.context().service().clone();
    let served = match &service {
        Service::Objects(objects) => serve_object(stream, session, &head, objects).await,
        Service::Upstream(upstreams) => {
            upstream::serve::serve(stream, session, &head, upstreams).await
        }
    }?;
    count(session, &served);
    session.context().meter.record(Stage::RequestServed, started.elapsed());
    Ok(served)
}

/// Serves a request for an object.
async fn serve_object(
    stream: &mut Stream,
    session: &mut Session,
    head: &RequestHead,
    objects: &Objects,
) -> Result<Served, ServeError> {
    let exchange = Exchange::new(head);
    match head.method() {
        Method::Get | Method::Head => get::serve(stream, session, head, exchange, objects).await,
        Method::Put => change::put(stream, session, head, exchange, objects).await,
        Method::Delete => change::delete(stream, session, head, exchange, objects).await,
        method => {
            stream.consume(head.head_bytes());
            let mut exchange = exchange;
            exchange.discard_body(stream, session).await?;
            match method {
                Method::Options => exchange.answer_empty(stream, session, 204, None).await,
                Method::Other => exchange.refuse(stream, session, 501).await,
                _ => exchange.refuse(stream, session, 405).await,
            }
        }
    }
}

/// Sends the error response that `next` requires, if any (408, or a 4xx for an invalid head). The
/// connection must be closed afterwards.
///
/// # Errors
/// The connection broke or stalled.
pub async fn refuse(
    stream: &mut Stream,
    session: &mut Session,
    next: &Next,
) -> Result<Option<Served>, ServeError> {
    let meter = &session.context().meter;
    let status = match next {
        Next::Invalid(error) => {
            meter.add(Event::ObjectHeadRefused(error.reason().into()));
            error.status()
        }
        Next::Slow => {
            meter.add(Event::BackendHeadTimeout);
            408
        }
        Next::Idle => {
            meter.add(Event::BackendIdleTimeout);
            return Ok(None);
        }
        _ => return Ok(None),
    };
    let served = Exchange::unread().refuse(stream, session, status).await?;
    count(session, &served);
    Ok(Some(served))
}

/// Waits for the next request and serves it. Returns None if no request arrived. An invalid head
/// is answered and reported with `keep_alive` false.
///
/// # Errors
/// The connection broke or stalled.
pub async fn serve_request(
    stream: &mut Stream,
    session: &mut Session,
    idle: Duration,
) -> Result<Option<Served>, ServeError> {
    match next_head(stream, session, idle).await? {
        Next::Request(head) => serve_head(stream, session, head).await.map(Some),
        other => refuse(stream, session, &other).await,
    }
}

/// Serves a connection until it ends or the server drains.
pub async fn serve_connection(mut stream: Stream, context: Rc<Context>) {
    let mut session = Session::new(&context, ConnectionOrigin::Accepted);
    loop {
        let idle = context.limits().idle_timeout;
        match serve_request(&mut stream, &mut session, idle).await {
            Ok(Some(served)) if served.keep_alive => {}
            Ok(_) => break,
            Err(error) => {
                count_failure(&context, &error);
                tracing::debug!(peer = %stream.peer(), %error, "connection dropped");
                return;
            }
        }
    }
    transfer::finish(&mut stream, &mut session).await;
}

/// Counts a response.
fn count(session: &mut Session, served: &Served) {
    session.note_served();
    let meter = &session.context().meter;
    meter.add(Event::ObjectRequest(FinalClass::of(served.status)));
    let bytes = match session.origin() {
        ConnectionOrigin::Accepted => Event::ObjectBytesOrdinary,
        ConnectionOrigin::Adopted => Event::ObjectBytesDirect,
    };
    meter.add_n(bytes, served.body_bytes);
}

/// Counts a connection that was dropped within a request or a response.
pub fn count_failure(context: &Context, error: &ServeError) {
    context.meter.add(match error {
        ServeError::Body(BodyError::Stalled)
        | ServeError::Send(SendError::Stalled)
        | ServeError::Upstream(Failed::ClientStalled) => Event::BackendStalled,
        _ => Event::BackendBroken,
    });
}
