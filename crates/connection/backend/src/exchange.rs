//! One request and its response: the properties that decide on the connection's persistence,
//! short answers, and the errors that end a connection.

use std::io;

use unlade_http::{BodyFraming, Method, RequestHead};
use unlade_runtime::Stream;

use crate::body::{Body, BodyError};
use crate::cache::LookupError;
use crate::clock::DATE_BYTES;
use crate::context::Context;
use crate::reply::{self, Persistence};
use crate::session::Session;
use crate::store::ObjectError;
use crate::transfer::{self, SendError};
use crate::upstream::failure::Failed;

/// Largest unwanted request body that is read and discarded to keep the connection.
const DISCARD_BYTES_MAX: u64 = 64 * 1024;

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
    /// Forwarding to a local server failed within the response, or the client left.
    #[error(transparent)]
    Upstream(#[from] Failed),
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
    pub(crate) fn new(head: &RequestHead) -> Exchange {
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
    pub(crate) fn unread() -> Exchange {
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
        stream.announce(out.len() as u64, persistence.end_of(status)).await?;
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
