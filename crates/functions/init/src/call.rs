//! One call of the guest protocol: its text and body to the host, its answer and body back. It runs
//! as a task of its own, so that a client that disconnects leaves nothing behind.

use std::io::{Error, Result};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep};
use unlade_guest_protocol::descriptor::{AGAIN, PART};
use unlade_guest_protocol::{Completion, Extent, Operation, Status, Submission};

use crate::download::{self, Lent, Object, longer};
use crate::link::{Held, Link, Places};
use crate::outgoing::{Outgoing, Source};

/// Largest body that follows the text of a call.
const INLINE_BYTES_MAX: u64 = 4096;
/// Most attempts that the host asks for: it counts them, and has a smaller limit.
const REPEATS_MAX: u32 = 16;
/// Longest wait before one of them.
const REPEAT_WAIT_MAX: Duration = Duration::from_secs(60);
/// Longest time of attempts of what the host refuses for want of room: then the client decides.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(60);

/// The host's answer to a call.
pub struct Answer {
    /// The status of the completion.
    pub status: Status,
    /// Its meta; null if there is none.
    pub meta: Value,
    /// The host asks for the body again, and it is not kept here: the client has to send it.
    pub is_lost: bool,
    /// The body of the answer, as it arrives.
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

/// A call on its way.
struct Sending<S> {
    operation: Operation,
    text: Value,
    body: Outgoing<S>,
}

/// Begins a call; the receiver gets its answer. Dropping the receiver ends the call.
pub fn begin<S: Source + 'static>(
    link: &Rc<Link>,
    request: Request<S>,
) -> oneshot::Receiver<Result<Answer>> {
    let (sender, receiver) = oneshot::channel();
    let link = link.clone();
    let Request { operation, text, body_bytes, body } = request;
    let body = Outgoing::new(body, body_bytes, &link.budget);
    tokio::task::spawn_local(async move {
        drive(&link, Sending { operation, text, body }, sender).await;
    });
    receiver
}

async fn drive<S: Source + 'static>(
    link: &Rc<Link>,
    mut sending: Sending<S>,
    answer: oneshot::Sender<Result<Answer>>,
) {
    let kind = if sending.body.length_bytes() > 0 { Places::Uploads } else { Places::Calls };
    let Ok(place) = link.place(kind).await else { return };
    let last = attempts(link, &mut sending, &answer).await;
    let Sending { text, body, .. } = sending;
    // A call may be answered before its body has arrived. A client sees the answer only after it has
    // sent the rest.
    tokio::task::spawn_local(body.drain());
    // Its answer is here: what follows waits for the client.
    drop(place);
    match last.and_then(|(last, is_lost)| Ok((link.meta(&last)?, last, is_lost))) {
        Ok((meta, last, is_lost)) => {
            let object = Object::of(&text, &meta);
            let (pieces, body) = mpsc::channel(1);
            let _ = answer.send(Ok(Answer { status: last.status, meta, is_lost, body }));
            download::pass(link, last, object, &pieces).await;
        }
        Err(error) => drop(answer.send(Err(error))),
    }
}

/// Makes a call until it has its answer; returns the completion, and true if its body was lost.
async fn attempts<S: Source>(
    link: &Rc<Link>,
    sending: &mut Sending<S>,
    answer: &oneshot::Sender<Result<Answer>>,
) -> Result<(Completion, bool)> {
    // A client that repeats a call with a lost body makes the next attempt of the same call.
    let name = format!("{} {}", sending.body.length_bytes(), sending.text);
    let is_upload = sending.body.length_bytes() > 0;
    let mut again = if is_upload { link.lost.borrow_mut().take(&name) } else { None };
    let (begin, mut wait, mut repeats) = (Instant::now(), None, 0);
    loop {
        let (call, last) = once(link, sending, again).await?;
        let is_again = last.flags & AGAIN != 0 && repeats < REPEATS_MAX;
        let is_refused = last.status == Status::Refused && begin.elapsed() < REFUSED_TIMEOUT;
        if !(is_again || is_refused) || answer.is_closed() {
            return Ok((last, false));
        }
        if !sending.body.rewind() {
            if is_again {
                link.lost.borrow_mut().put(name, call);
            }
            return Ok((last, is_again));
        }
        let due = match is_again {
            true => {
                repeats += 1;
                again = Some(call);
                let due_ms = link.meta(&last)?["again_after_ms"].as_u64().unwrap_or_default();
                Duration::from_millis(due_ms).min(REPEAT_WAIT_MAX)
            }
            false => *wait.insert(longer(wait)),
        };
        drop(Lent::new(link, &last));
        sleep(due).await;
    }
}

/// Makes one attempt; returns its number and the completion that ends it.
async fn once<S: Source>(
    link: &Rc<Link>,
    sending: &mut Sending<S>,
    again: Option<u64>,
) -> Result<(u64, Completion)> {
    let (call, mut completions) = link.register();
    let sent = send(link, call, &mut completions, sending, again).await;
    let last = match sent {
        Ok(completion) => Ok((call, completion)),
        Err(Unsent::Before(error)) => Err(error),
        Err(Unsent::Within(error)) => {
            // The host knows the call: it has one completion left.
            let cancelled = link.submit(&link.submission(call, Operation::Cancel));
            while cancelled.is_ok() {
                match completions.recv().await {
                    Some(completion) if completion.flags & PART == 0 => {
                        drop(Lent::new(link, &completion));
                        break;
                    }
                    Some(_) => {}
                    None => break,
                }
            }
            Err(error)
        }
    };
    link.forget(call);
    last
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
    sending: &mut Sending<S>,
    again: Option<u64>,
) -> std::result::Result<Completion, Unsent> {
    let Sending { operation, text, body } = sending;
    let length_bytes = body.length_bytes();
    body.collect().await.map_err(Unsent::Before)?;
    let inline = (1..=INLINE_BYTES_MAX).contains(&length_bytes);
    let mut text = text.clone();
    (text["body_bytes"], text["inline"]) = (length_bytes.into(), inline.into());
    if let Some(again) = again {
        text["again"] = again.into();
    }
    let mut meta = text.to_string().into_bytes();
    if inline {
        meta.push(0);
        meta.extend_from_slice(body.ready());
        body.sent(body.ready().len());
    }
    // The answer has a body, or an error's text: it may wait for the host's memory.
    let _waiting = (body.left_bytes() == 0).then(|| link.room.wait());
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
        let (slots, bytes) = match body.ready().is_empty() {
            true => (None, 0),
            false => {
                let (slots, bytes) = link.body(body.ready()).await.map_err(failed)?;
                (Some(slots), bytes)
            }
        };
        body.sent(bytes as usize);
        let more = body.left_bytes() > 0;
        let first_slot = slots.as_ref().map_or(0, |slots: &Held| slots.first);
        let plain = first.unwrap_or_else(|| link.submission(call, Operation::Body));
        let body_of = Extent { first_slot, bytes };
        link.submit(&Submission { more, body: body_of, ..plain }).map_err(failed)?;
        first = None;
        loop {
            let gone = || Unsent::Before(Error::other("the host has ended"));
            let completion = completions.recv().await.ok_or_else(gone)?;
            match completion.flags & PART {
                0 => return Ok(completion),
                // The answer to the last descriptor of a body is followed by the call's.
                _ if !more => {}
                _ => break,
            }
        }
        drop(slots);
        body.collect().await.map_err(Unsent::Within)?;
    }
}
