//! Serves the requests of one connection in sequence: reads the head, dispatches, answers.
//!
//! [`next_head`] parses the next head without consuming it, so a connection can move to another
//! server with the request unread; [`serve_head`] serves it.

use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use unlade_http::{BodyFraming, HeadError, Method, RequestHead, head_end};
use unlade_metrics::{Event, Stage, StatusClass};
use unlade_runtime::Stream;

use crate::body::{Body, BodyError};
use crate::cache::LookupError;
use crate::clock::DATE_BYTES;
use crate::context::Context;
use crate::reply::{self, Persistence};
use crate::session::{ConnectionOrigin, Interrupted, OnDrain, Session};
use crate::store::ObjectError;
use crate::transfer::{self, SendError};
use crate::{change, get};

/// Largest unwanted request body that is read and discarded to keep the connection.
const DISCARD_BYTES_MAX: u64 = 64 * 1024;
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

/// Summary of a served request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The connection can carry another request.
    pub keep_alive: bool,
    /// The request's method.
    pub method: Method,
    /// The response's status.
    pub status: u16,
    /// Bytes of the response's body.
    pub body_bytes: u64,
}

/// Error that stopped serving a request; the connection cannot be used any more.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The connection broke while a head was read.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// Reading a body failed.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// Sending a response failed.
    #[error(transparent)]
    Send(#[from] SendError),
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
    let exchange = Exchange::new(&head);
    let served = match head.method() {
        Method::Get | Method::Head => get::serve(stream, session, &head, exchange).await,
        Method::Put => change::put(stream, session, &head, exchange).await,
        Method::Delete => change::delete(stream, session, &head, exchange).await,
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
    }?;
    count(session, &served);
    session.context().meter.record(Stage::RequestServed, started.elapsed());
    Ok(served)
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
    meter.add(Event::ObjectRequest(StatusClass::of(served.status)));
    let bytes = match session.origin() {
        ConnectionOrigin::Accepted => Event::ObjectBytesOrdinary,
        ConnectionOrigin::Adopted => Event::ObjectBytesDirect,
    };
    meter.add_n(bytes, served.body_bytes);
}

/// Counts a connection that was dropped within a request or a response.
pub fn count_failure(context: &Context, error: &ServeError) {
    context.meter.add(match error {
        ServeError::Body(BodyError::Stalled) | ServeError::Send(SendError::Stalled) => {
            Event::BackendStalled
        }
        _ => Event::BackendBroken,
    });
}

/// Properties of a request that its response depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) method: Method,
    framing: BodyFraming,
    expects_continue: bool,
    keep_alive: bool,
    http10: bool,
    /// Bytes of the request may be unread, so the connection cannot carry another request.
    pub(crate) body_left: bool,
}

impl Exchange {
    fn new(head: &RequestHead) -> Exchange {
        Exchange {
            method: head.method(),
            framing: head.framing(),
            expects_continue: head.expects_continue(),
            keep_alive: head.keep_alive(),
            http10: head.is_http10(),
            body_left: !matches!(head.framing(), BodyFraming::None | BodyFraming::Length(0)),
        }
    }

    /// Properties of a request that could not be parsed.
    fn unread() -> Exchange {
        Exchange {
            method: Method::Other,
            framing: BodyFraming::None,
            expects_continue: false,
            keep_alive: false,
            http10: false,
            body_left: true,
        }
    }

    /// Reads and discards a small, unwanted body. A large one, or one behind `Expect:
    /// 100-continue`, stays unread, and the connection ends after the response.
    pub(crate) async fn discard_body(
        &mut self,
        stream: &mut Stream,
        session: &mut Session,
    ) -> Result<(), ServeError> {
        if !self.body_left || self.expects_continue {
            return Ok(());
        }
        let Ok(mut body) = Body::new(self.framing, DISCARD_BYTES_MAX) else { return Ok(()) };
        match body.read(stream, session, |_| Ok::<(), BodyError>(())).await {
            Ok(()) => self.body_left = false,
            Err(BodyError::TooLarge | BodyError::Malformed(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Returns the persistence of the connection after the response.
    pub(crate) fn persistence(&self, context: &Context) -> Persistence {
        match self.keep_alive && !self.body_left && !context.gate.draining() {
            false => Persistence::Close,
            true if self.http10 => Persistence::KeepSaid,
            true => Persistence::Keep,
        }
    }

    /// Summarizes a sent response.
    pub(crate) fn served(&self, persistence: Persistence, status: u16, body_bytes: u64) -> Served {
        let keep_alive = persistence != Persistence::Close;
        Served { keep_alive, method: self.method, status, body_bytes }
    }

    /// Sends a response without a body.
    pub(crate) async fn answer_empty(
        self,
        stream: &mut Stream,
        session: &mut Session,
        status: u16,
        etag: Option<&[u8]>,
    ) -> Result<Served, ServeError> {
        self.answer(stream, session, status, |out, context| {
            if let Some(etag) = etag {
                reply::field(out, "ETag", etag);
            }
            if status != 204 {
                reply::length(out, 0);
            } else if self.method == Method::Options {
                reply::field(out, "Allow", allow(context));
            }
            None
        })
        .await
    }

    /// Sends an error response with its reason as text.
    pub(crate) async fn refuse(
        self,
        stream: &mut Stream,
        session: &mut Session,
        status: u16,
    ) -> Result<Served, ServeError> {
        self.answer(stream, session, status, |out, context| {
            if status == 405 {
                reply::field(out, "Allow", allow(context));
            }
            Some(())
        })
        .await
    }

    /// Sends 416 with the object's size.
    pub(crate) async fn refuse_range(
        self,
        stream: &mut Stream,
        session: &mut Session,
        object_bytes: u64,
    ) -> Result<Served, ServeError> {
        self.answer(stream, session, 416, |out, _| {
            reply::content_range(out, None, object_bytes);
            Some(())
        })
        .await
    }

    /// Sends an error response before the body was read. A small body is read and discarded, to
    /// keep the connection; otherwise the connection ends.
    pub(crate) async fn refuse_unread(
        mut self,
        stream: &mut Stream,
        session: &mut Session,
        status: u16,
    ) -> Result<Served, ServeError> {
        self.discard_body(stream, session).await?;
        self.refuse(stream, session, status).await
    }

    async fn answer(
        self,
        stream: &mut Stream,
        session: &mut Session,
        status: u16,
        fields: impl FnOnce(&mut Vec<u8>, &Context) -> Option<()>,
    ) -> Result<Served, ServeError> {
        let context = session.context().clone();
        let persistence = self.persistence(&context);
        let mut out = std::mem::take(&mut session.out);
        out.clear();
        reply::begin(&mut out, status);
        let text = fields(&mut out, &context).map(|()| reply::reason(status));
        if let Some(text) = text {
            reply::field(&mut out, "Content-Type", b"text/plain; charset=utf-8");
            reply::length(&mut out, text.len() as u64 + 1);
        }
        let date: [u8; DATE_BYTES] = context.clock.now().1;
        reply::finish(&mut out, &date, persistence);
        let mut body_bytes = 0;
        if let Some(text) = text.filter(|_| self.method != Method::Head) {
            out.extend_from_slice(text.as_bytes());
            out.push(b'\n');
            body_bytes = text.len() as u64 + 1;
        }
        let sent = transfer::send(stream, session, &out, false).await;
        session.out = out;
        sent?;
        Ok(self.served(persistence, status, body_bytes))
    }
}

fn allow(context: &Context) -> &'static [u8] {
    if context.writable() { reply::ALLOW } else { reply::ALLOW_READ_ONLY }
}

/// Returns the status for a failed lookup; logs errors of the server.
pub(crate) fn status_of(error: &LookupError) -> u16 {
    if let LookupError::Object(error) = error {
        return object_status(error);
    }
    error.status()
}

/// Returns the status for an error of the store; logs errors of the server.
pub(crate) fn object_status(error: &ObjectError) -> u16 {
    let status = error.status();
    if status >= 500 {
        tracing::warn!(%error, "store");
    }
    status
}
