//! One call of the guest protocol: its text and body to the host, its answer and body back. It runs
//! as a task of its own, so that a client that disconnects leaves nothing behind.

use std::io::{Error, Result};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use unlade_guest_protocol::descriptor::{MORE, PART};
use unlade_guest_protocol::{Completion, Extent, Operation, Status, Submission};

use crate::link::{Held, Link};

/// Largest body that follows the text of a call.
const INLINE_BYTES_MAX: usize = 4096;
/// Bytes of a body that are collected before they are copied into slots.
const PIECE_BYTES: usize = 256 * 1024;

/// A body on its way to the host.
pub trait Source {
    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The body breaks off.
    async fn next(&mut self) -> Result<Option<Bytes>>;
}

/// A body that is in memory.
pub struct Whole(pub Option<Bytes>);

impl Source for Whole {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        Ok(self.0.take())
    }
}

/// The host's answer to a call.
pub struct Answer {
    /// The status of the completion.
    pub status: Status,
    /// Its meta; null if there is none.
    pub meta: Value,
    /// The body of the answer, as it arrives: at most one piece is in memory.
    pub body: mpsc::Receiver<Result<Bytes>>,
}

/// The text and the body of a call.
pub struct Request<S> {
    /// CALL or REQUEST.
    pub operation: Operation,
    /// The text, without the members that describe the body.
    pub text: Value,
    /// Length of the body.
    pub body_bytes: u64,
    /// The body.
    pub body: S,
}

/// Begins a call; the receiver gets its answer. Dropping the receiver ends the call.
pub fn begin<S: Source + 'static>(
    link: &Rc<Link>,
    request: Request<S>,
) -> oneshot::Receiver<Result<Answer>> {
    let (sender, receiver) = oneshot::channel();
    let link = link.clone();
    tokio::task::spawn_local(async move {
        let Ok(place) = link.place().await else { return };
        drive(&link, request, sender).await;
        drop(place);
    });
    receiver
}

/// Memory that the host has lent until it is released.
struct Lent {
    link: Rc<Link>,
    token: u64,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.token != 0 {
            let plain = self.link.submission(0, Operation::Release);
            // A host that takes nothing more has ended, or ends this instance.
            let _ = self.link.submit(&Submission { token: self.token, ..plain });
        }
    }
}

async fn drive<S: Source + 'static>(
    link: &Rc<Link>,
    mut request: Request<S>,
    answer: oneshot::Sender<Result<Answer>>,
) {
    let (call, mut completions) = link.register();
    let sent = send(link, call, &mut completions, &mut request).await;
    let last = match sent {
        Ok(completion) => Ok(completion),
        Err(Unsent::Before(error)) => Err(error),
        Err(Unsent::Within(error)) => {
            // The host knows the call: it has one completion left.
            let cancelled = link.submit(&link.submission(call, Operation::Cancel));
            while cancelled.is_ok() {
                match completions.recv().await {
                    Some(completion) if completion.flags & PART == 0 => {
                        drop(Lent { link: link.clone(), token: completion.token });
                        break;
                    }
                    Some(_) => {}
                    None => break,
                }
            }
            Err(error)
        }
    };
    // A call may be answered before its body has arrived. A client sees the answer only after it has
    // sent the rest.
    tokio::task::spawn_local(async move { while let Ok(Some(_)) = request.body.next().await {} });
    match last.and_then(|completion| Ok((completion, meta(link, &completion)?))) {
        Ok((completion, meta)) => {
            let (pieces, body) = mpsc::channel(1);
            let _ = answer.send(Ok(Answer { status: completion.status, meta, body }));
            receive(link, completion, &pieces).await;
        }
        Err(error) => drop(answer.send(Err(error))),
    }
    link.forget(call);
}

/// The reason why a call was not sent whole.
enum Unsent {
    /// The host knows nothing of it.
    Before(Error),
    /// It was begun.
    Within(Error),
}

/// Sends the text and the body; returns the completion that ends the call.
async fn send<S: Source>(
    link: &Rc<Link>,
    call: u64,
    completions: &mut mpsc::UnboundedReceiver<Completion>,
    request: &mut Request<S>,
) -> std::result::Result<Completion, Unsent> {
    let Request { operation, text, body_bytes, body } = request;
    let mut left = *body_bytes;
    let mut buffer = BytesMut::new();
    let inline = (1..=INLINE_BYTES_MAX as u64).contains(&left);
    fill(body, &mut buffer, left).await.map_err(Unsent::Before)?;
    (text["body_bytes"], text["inline"]) = (left.into(), inline.into());
    let mut meta = text.to_string().into_bytes();
    if inline {
        meta.push(0);
        meta.extend_from_slice(&buffer);
        left = 0;
        buffer.clear();
    }
    let held = link.text(&meta).await.map_err(Unsent::Before)?;
    let mut first = Some(Submission {
        meta_offset: link.text_offset(&held),
        meta_bytes: meta.len() as u32,
        ..link.submission(call, *operation)
    });
    loop {
        let failed = |error| match first {
            Some(_) => Unsent::Before(error),
            None => Unsent::Within(error),
        };
        let (slots, bytes) = match buffer.is_empty() {
            true => (None, 0),
            false => {
                let (slots, bytes) = link.body(&buffer).await.map_err(failed)?;
                (Some(slots), bytes)
            }
        };
        left -= u64::from(bytes);
        let _ = buffer.split_to(bytes as usize);
        let first_slot = slots.as_ref().map_or(0, |slots: &Held| slots.first);
        let plain = first.unwrap_or_else(|| link.submission(call, Operation::Body));
        let body_of = Extent { first_slot, bytes };
        link.submit(&Submission { more: left > 0, body: body_of, ..plain }).map_err(failed)?;
        first = None;
        loop {
            let gone = || Unsent::Before(Error::other("the host has ended"));
            let completion = completions.recv().await.ok_or_else(gone)?;
            match completion.flags & PART {
                0 => return Ok(completion),
                // The answer to the last descriptor of a body is followed by the call's.
                _ if left == 0 => {}
                _ => break,
            }
        }
        drop(slots);
        fill(body, &mut buffer, left).await.map_err(Unsent::Within)?;
    }
}

/// Fills the buffer up to the size of a piece, or with all that is left: then the body has to end.
async fn fill<S: Source>(body: &mut S, buffer: &mut BytesMut, left: u64) -> Result<()> {
    let due = left.min(PIECE_BYTES as u64) as usize;
    while buffer.len() < due {
        match body.next().await? {
            Some(bytes) => buffer.extend_from_slice(&bytes),
            None => return Err(Error::other("the body is shorter than announced")),
        }
    }
    let is_whole = buffer.len() as u64 >= left;
    // The end may be behind more bytes of its coding.
    if buffer.len() as u64 > left || (is_whole && body.next().await?.is_some()) {
        return Err(Error::other("the body is longer than announced"));
    }
    Ok(())
}

fn meta(link: &Link, completion: &Completion) -> Result<Value> {
    if completion.meta_bytes == 0 {
        return Ok(Value::Null);
    }
    let text = link.host_text(completion)?;
    serde_json::from_slice(&text).map_err(Error::other)
}

/// Passes the pieces of an answer's body on, until the last one or until nobody wants them.
async fn receive(link: &Rc<Link>, first: Completion, pieces: &mpsc::Sender<Result<Bytes>>) {
    let lent = Lent { link: link.clone(), token: first.token };
    let mut piece = link.host_body(first.body).map(|bytes| (bytes, first.flags & MORE != 0));
    loop {
        let more = matches!(piece, Ok((_, true)));
        let bytes = piece.map(|(bytes, _)| bytes);
        let is_empty = bytes.as_ref().is_ok_and(Bytes::is_empty);
        if (!is_empty && pieces.send(bytes).await.is_err()) || !more {
            return;
        }
        piece = read(link, lent.token).await;
    }
}

/// The next piece of a body, and whether another one follows it.
async fn read(link: &Rc<Link>, token: u64) -> Result<(Bytes, bool)> {
    let (call, mut completions) = link.register();
    let plain = link.submission(call, Operation::Read);
    let submitted = link.submit(&Submission { token, ..plain });
    let completion = match submitted {
        Ok(()) => completions.recv().await,
        Err(_) => None,
    };
    link.forget(call);
    match completion {
        Some(completion) if completion.status == Status::Done => {
            Ok((link.host_body(completion.body)?, completion.flags & MORE != 0))
        }
        _ => Err(Error::other("the body breaks off")),
    }
}
