//! PUT and DELETE: changes of the store. The response is sent after the change is durable.

use unlade_http::{BodyFraming, RequestHead};
use unlade_metrics::Event;
use unlade_runtime::Stream;

use crate::body::{Body, BodyError};
use crate::condition::{Conditions, Verdict};
use crate::exchange::{Exchange, ServeError, Served, object_status};
use crate::name::ObjectName;
use crate::objects::Objects;
use crate::reply;
use crate::session::Session;
use crate::store::{Object, ObjectError};
use crate::transfer;
use crate::upload::{Committed, Upload};

/// Error that stopped an upload.
#[derive(Debug, thiserror::Error)]
enum UploadError {
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(transparent)]
    Object(#[from] ObjectError),
}

/// Target and conditions of a change, read from the head before the body.
struct PutTarget {
    name: ObjectName,
    conditions: Conditions,
}

/// Serves a PUT whose head is at the front of the stream's input.
pub(crate) async fn put(
    stream: &mut Stream,
    session: &mut Session,
    head: &RequestHead,
    mut exchange: Exchange,
    objects: &Objects,
) -> Result<Served, ServeError> {
    let read = read_put(session, objects, head, stream.input());
    stream.consume(head.head_bytes());
    let (wanted, mut body) = match read {
        Ok(read) => read,
        Err(status) => return exchange.refuse_unread(stream, session, status).await,
    };
    if head.expects_continue() && stream.input().is_empty() && !body.ended() {
        transfer::send(stream, session, reply::CONTINUE, false).await?;
    }
    let mut upload = match Upload::begin(&objects.store) {
        Ok(upload) => upload,
        Err(error) => {
            let status = object_status(&error);
            return exchange.refuse_unread(stream, session, status).await;
        }
    };
    let came =
        body.read(stream, session, |piece| Ok::<(), UploadError>(upload.write(piece)?)).await;
    if let Err(stopped) = came {
        // The rest of the body is not read, so the response ends the connection.
        let status = match stopped {
            UploadError::Body(BodyError::TooLarge) => 413,
            UploadError::Body(BodyError::Malformed(error)) => error.status(),
            UploadError::Body(BodyError::Stalled) => 408,
            UploadError::Body(error) => return Err(error.into()),
            UploadError::Object(error) => object_status(&error),
        };
        return exchange.refuse(stream, session, status).await;
    }
    exchange.body_left = false;
    session.context().meter.add_n(Event::ObjectBytesStored, upload.bytes());
    let PutTarget { name, conditions } = wanted;
    // fsync blocks, so it runs outside the worker's thread.
    match on_disk(move || upload.commit(&name, &conditions)).await {
        Ok(committed) => answer_put(stream, session, exchange, &committed).await,
        Err(error) => {
            let status = object_status(&error);
            exchange.refuse(stream, session, status).await
        }
    }
}

/// Performs the checks that need no body. The error is the response's status.
fn read_put(
    session: &Session,
    objects: &Objects,
    head: &RequestHead,
    input: &[u8],
) -> Result<(PutTarget, Body), u16> {
    if !objects.writable() {
        return Err(405);
    }
    let name = ObjectName::from_path(head.path(input)).map_err(|error| error.status())?;
    // Bodies are stored as received: neither partial PUT (RFC 9110 §14.5) nor content codings are
    // supported.
    if head.header(input, "content-range").is_some() {
        return Err(400);
    }
    if head.header(input, "content-encoding").is_some() {
        return Err(415);
    }
    if matches!(head.framing(), BodyFraming::None) {
        return Err(411);
    }
    let body = Body::new(head.framing(), session.context().limits().object_bytes_max)
        .map_err(|_| 413u16)?;
    let conditions = Conditions::read(head.headers(input));
    if conditions != Conditions::default() {
        let current = objects.get(head.path(input)).ok();
        let validators = current.as_ref().map(|entry| Object::validators(&entry.object));
        match conditions.evaluate(validators, false) {
            Verdict::Proceed => {}
            Verdict::Malformed => return Err(400),
            Verdict::Failed | Verdict::NotModified => return Err(412),
        }
    }
    Ok((PutTarget { name, conditions }, body))
}

async fn answer_put(
    stream: &mut Stream,
    session: &mut Session,
    exchange: Exchange,
    committed: &Committed,
) -> Result<Served, ServeError> {
    let status = if committed.created { 201 } else { 204 };
    exchange.answer_empty(stream, session, status, Some(committed.etag.as_bytes())).await
}

/// Serves a DELETE whose head is at the front of the stream's input.
pub(crate) async fn delete(
    stream: &mut Stream,
    session: &mut Session,
    head: &RequestHead,
    mut exchange: Exchange,
    objects: &Objects,
) -> Result<Served, ServeError> {
    let name = ObjectName::from_path(head.path(stream.input()));
    let conditions = Conditions::read(head.headers(stream.input()));
    stream.consume(head.head_bytes());
    exchange.discard_body(stream, session).await?;
    let name = match name {
        _ if !objects.writable() => return exchange.refuse(stream, session, 405).await,
        Ok(name) => name,
        Err(error) => return exchange.refuse(stream, session, error.status()).await,
    };
    let store = objects.store.clone();
    match on_disk(move || store.delete(&name, &conditions)).await {
        Ok(()) => exchange.answer_empty(stream, session, 204, None).await,
        Err(error) => {
            let status = object_status(&error);
            exchange.refuse(stream, session, status).await
        }
    }
}

/// Runs blocking disk operations outside the worker's thread.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ObjectError> + Send + 'static,
) -> Result<T, ObjectError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(ObjectError::Io(std::io::Error::other(error))),
    }
}
