//! GET and HEAD: evaluates conditions and ranges, and sends the object.

use std::rc::Rc;

use unlade_http::{Method, RequestHead};
use unlade_runtime::Stream;

use crate::cache::OpenObject;
use crate::condition::{self, Conditions, Verdict};
use crate::context::Context;
use crate::exchange::{Exchange, ServeError, Served, status_of};
use crate::objects::Objects;
use crate::range::{self, Selection};
use crate::reply;
use crate::session::Session;
use crate::transfer;

/// Response to a GET or HEAD.
enum Answer {
    /// 200 with the whole object.
    Whole(Rc<OpenObject>),
    /// 206 with `bytes` bytes from `offset`.
    Part { entry: Rc<OpenObject>, offset: u64, bytes: u64 },
    /// 304.
    NotModified(Rc<OpenObject>),
    /// 416, with the object's size.
    Unsatisfiable(u64),
    /// A refusal with this status.
    Refused(u16),
}

/// Selects the response from the head and the store.
fn decide(context: &Context, objects: &Objects, head: &RequestHead, input: &[u8]) -> Answer {
    let entry = match objects.get(head.path(input)) {
        Ok(entry) => entry,
        Err(error) => return Answer::Refused(status_of(&error)),
    };
    let get = head.method() == Method::Get;
    let (mut conditional, mut range) = (false, None);
    for (name, value) in head.headers(input) {
        if name.len() == 5 && get && range.is_none() && name.eq_ignore_ascii_case("range") {
            range = Some(value);
        }
        conditional |= condition::is_condition(name);
    }
    if !conditional && range.is_none() {
        return Answer::Whole(entry);
    }
    let conditions = Conditions::read(head.headers(input));
    let current = entry.object.validators();
    match conditions.evaluate(Some(current), true) {
        Verdict::Proceed => {}
        Verdict::NotModified => return Answer::NotModified(entry),
        Verdict::Failed => return Answer::Refused(412),
        Verdict::Malformed => return Answer::Refused(400),
    }
    let range = range.filter(|_| conditions.range_applies(current, context.clock.now().0));
    let bytes = entry.object.bytes;
    match range.map_or(Selection::Full, |range| range::select(range, bytes)) {
        Selection::Full => Answer::Whole(entry),
        Selection::Part { offset, bytes } => Answer::Part { entry, offset, bytes },
        Selection::Unsatisfiable => Answer::Unsatisfiable(bytes),
    }
}

/// Serves a GET or HEAD whose head is at the front of the stream's input.
pub(crate) async fn serve(
    stream: &mut Stream,
    session: &mut Session,
    head: &RequestHead,
    mut exchange: Exchange,
    objects: &Objects,
) -> Result<Served, ServeError> {
    let answer = decide(session.context(), objects, head, stream.input());
    stream.consume(head.head_bytes());
    exchange.discard_body(stream, session).await?;
    let mut out = std::mem::take(&mut session.out);
    out.clear();
    let (status, body) = match &answer {
        Answer::Whole(entry) => {
            out.extend_from_slice(&entry.head_200);
            (200, Some((entry, 0, entry.object.bytes)))
        }
        Answer::Part { entry, offset, bytes } => {
            reply::begin(&mut out, 206);
            reply::content_range(&mut out, Some((*offset, *bytes)), entry.object.bytes);
            reply::length(&mut out, *bytes);
            out.extend_from_slice(&entry.fields);
            (206, Some((entry, *offset, *bytes)))
        }
        Answer::NotModified(entry) => {
            reply::begin(&mut out, 304);
            out.extend_from_slice(&entry.fields);
            (304, None)
        }
        Answer::Unsatisfiable(bytes) => {
            session.out = out;
            return exchange.refuse_range(stream, session, *bytes).await;
        }
        Answer::Refused(status) => {
            session.out = out;
            return exchange.refuse(stream, session, *status).await;
        }
    };
    let date = session.context().clock.now().1;
    let persistence = exchange.persistence(session.context());
    reply::finish(&mut out, &date, persistence);
    let body = body.filter(|(_, _, bytes)| exchange.method == Method::Get && *bytes > 0);
    let body_bytes = body.map_or(0, |(.., bytes)| bytes);
    stream.announce(out.len() as u64 + body_bytes, persistence.end_of(status)).await?;
    let sent = transfer::send(stream, session, &out, body.is_some()).await;
    session.out = out;
    sent?;
    if let Some((entry, offset, bytes)) = body {
        transfer::send_file(stream, session, &entry.object.file, offset, bytes).await?;
    }
    Ok(exchange.served(persistence, status, body_bytes))
}
