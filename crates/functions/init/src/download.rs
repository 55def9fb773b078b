//! The body of an answer on its way to the client, at the client's pace. Its bytes stay in the host's
//! slots until the client takes them. If others wait for slots meanwhile, an object gives its slots
//! back, and the rest is fetched by range when the client goes on (`docs/functions/runtimes.md`).

use std::io::{Error, Result};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::mpsc::{Permit, Sender};
use tokio::time::{Instant, sleep, timeout};
use unlade_guest_protocol::descriptor::MORE;
use unlade_guest_protocol::{Completion, Extent, Operation, Status, Submission};

use crate::link::{Link, Places};
use crate::room::Holding;

/// Bytes that are copied out of slots at a time: so many are in memory while a client does not read.
const FRAME_BYTES: u32 = 128 * 1024;
/// Bytes of a range: no more than the host lends at a time, so that nothing is fetched ahead.
const RANGE_BYTES: u64 = 1 << 20;
/// Time after which a client that takes nothing may lose its slots to others.
const STALLED: Duration = Duration::from_millis(20);
/// Waits between attempts of what the host refuses for want of room.
const REFUSED_WAITS: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];
/// Longest time of such attempts: the longest invocation.
const REFUSED_TIMEOUT: Duration = Duration::from_secs(900);
/// Parameters that the request for a range of an object does not repeat.
const OF_THE_WHOLE: [&str; 7] = [
    "Range",
    "PartNumber",
    "IfMatch",
    "IfNoneMatch",
    "IfModifiedSince",
    "IfUnmodifiedSince",
    "ChecksumMode",
];

/// The wait before the next attempt, after this one.
pub fn longer(wait: Option<Duration>) -> Duration {
    let [first, most] = REFUSED_WAITS;
    wait.map_or(first, |wait| (wait * 2).min(most))
}

/// Memory that the host has lent until it is released.
pub struct Lent {
    link: Rc<Link>,
    token: u64,
}

impl Lent {
    /// The memory that a completion has lent.
    pub fn new(link: &Rc<Link>, completion: &Completion) -> Lent {
        Lent { link: link.clone(), token: completion.token }
    }
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

/// The object of an answer, of which a part can be fetched again.
#[derive(Debug)]
pub struct Object {
    /// The text of the call, without a range.
    text: Value,
    /// Offset of the body's first byte in the object.
    first: u64,
    length_bytes: u64,
}

impl Object {
    /// The object of a call and its answer; `None` if another request could have another body.
    pub fn of(text: &Value, meta: &Value) -> Option<Object> {
        let is_object = text["service"] == "s3" && text["operation"] == "GetObject";
        let result = &meta["result"];
        let tag = result["ETag"].as_str().filter(|tag| is_object && !tag.starts_with("W/"))?;
        let first = match result.get("ContentRange") {
            None => 0,
            Some(range) => first_of(range.as_str()?)?,
        };
        let length_bytes = result["ContentLength"].as_u64()?;
        let mut text = text.clone();
        let parameters = text["parameters"].as_object_mut()?;
        OF_THE_WHOLE.iter().for_each(|name| drop(parameters.remove(*name)));
        parameters.insert("IfMatch".to_owned(), tag.into());
        (text["body_bytes"], text["inline"]) = (0.into(), false.into());
        Some(Object { text, first, length_bytes })
    }

    /// The text of the call for the bytes from `passed` on, and the start of their range.
    fn rest(&self, passed: u64) -> (Value, u64) {
        let first = self.first + passed;
        let bytes = (self.length_bytes - passed).min(RANGE_BYTES);
        let mut text = self.text.clone();
        text["parameters"]["Range"] = format!("bytes={first}-{}", first + bytes - 1).into();
        (text, first)
    }
}

/// The first number of `bytes 5-9/20`.
fn first_of(range: &str) -> Option<u64> {
    range.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}

/// Bytes in slots of the host.
struct Piece {
    lent: Lent,
    _holding: Holding,
    extent: Extent,
    /// Bytes that were passed on.
    passed: u32,
    more: bool,
}

/// A body on its way.
struct Download<'a> {
    link: &'a Rc<Link>,
    pieces: &'a Sender<Result<Bytes>>,
    /// `None` after the slots were given back.
    piece: Option<Piece>,
    /// Bytes of the body that were passed on.
    passed: u64,
    object: Option<Object>,
}

/// Passes the body of an answer on, until its end or until nobody wants it.
pub async fn pass(
    link: &Rc<Link>,
    first: Completion,
    object: Option<Object>,
    pieces: &Sender<Result<Bytes>>,
) {
    let mut download = Download { link, pieces, piece: None, passed: 0, object };
    download.piece = Some(download.piece(Lent::new(link, &first), &first));
    if let Err(error) = download.run().await {
        download.piece = None;
        let _ = pieces.send(Err(error)).await;
    }
}

impl<'a> Download<'a> {
    fn piece(&self, lent: Lent, completion: &Completion) -> Piece {
        let (extent, more) = (completion.body, completion.flags & MORE != 0);
        let _holding = self.link.room.hold(extent.slots(), more);
        Piece { lent, _holding, extent, passed: 0, more }
    }

    async fn run(&mut self) -> Result<()> {
        loop {
            self.copy_the_last().await;
            match &self.piece {
                Some(piece) if piece.passed < piece.extent.bytes => {}
                Some(piece) if piece.more => {
                    self.read().await?;
                    continue;
                }
                // The end of the body, or of a range.
                _ => {
                    self.piece = None;
                    if self.is_whole() {
                        return Ok(());
                    }
                }
            }
            let Some(permit) = self.demand().await else { return Ok(()) };
            if self.piece.is_some() {
                permit.send(Ok(self.frame()?));
                continue;
            }
            drop(permit);
            self.fetch().await?;
        }
    }

    /// True behind the last byte.
    fn is_whole(&self) -> bool {
        self.object.as_ref().is_none_or(|object| self.passed >= object.length_bytes)
    }

    /// Copies the last piece of a body that cannot be fetched again: its slots are free at once.
    async fn copy_the_last(&mut self) {
        let is_last = self.piece.as_ref().is_some_and(|piece| !piece.more);
        if !is_last || self.object.is_some() {
            return;
        }
        let Some(piece) = self.piece.take() else { return };
        let bytes = self.link.host_body(piece.extent);
        drop(piece);
        if !bytes.as_ref().is_ok_and(Bytes::is_empty) {
            let _ = self.pieces.send(bytes).await;
        }
    }

    /// Waits until the client takes more; `None` if it never will. A piece that waits is given back
    /// if others need its slots.
    async fn demand(&mut self) -> Option<Permit<'a, Result<Bytes>>> {
        let pieces = self.pieces;
        if let Ok(permit) = timeout(STALLED, pieces.reserve()).await {
            return permit.ok();
        }
        if self.piece.is_some() && self.object.is_some() {
            tokio::select! {
                biased;
                permit = pieces.reserve() => return permit.ok(),
                () = self.link.room.wanted() => self.piece = None,
            }
        }
        pieces.reserve().await.ok()
    }

    /// The next bytes of the piece.
    fn frame(&mut self) -> Result<Bytes> {
        let Some(piece) = &mut self.piece else { return Ok(Bytes::new()) };
        let bytes = (piece.extent.bytes - piece.passed).min(FRAME_BYTES);
        let frame = self.link.host_bytes(piece.extent, piece.passed, bytes)?;
        piece.passed += bytes;
        self.passed += u64::from(bytes);
        Ok(frame)
    }

    /// The next piece. A host without room refuses it, and has kept the rest of the body.
    async fn read(&mut self) -> Result<()> {
        let Some(Piece { lent, .. }) = self.piece.take() else { return Ok(()) };
        let _waiting = self.link.room.wait();
        let begin = Instant::now();
        let mut wait = None;
        loop {
            let (call, mut completions) = self.link.register();
            let plain = self.link.submission(call, Operation::Read);
            let submitted = self.link.submit(&Submission { token: lent.token, ..plain });
            let completion = match submitted {
                Ok(()) => completions.recv().await,
                Err(_) => None,
            };
            self.link.forget(call);
            match completion {
                Some(completion) if completion.status == Status::Done => {
                    self.piece = Some(self.piece(lent, &completion));
                    return Ok(());
                }
                Some(completion)
                    if completion.status == Status::Refused
                        && begin.elapsed() < REFUSED_TIMEOUT
                        && !self.pieces.is_closed() =>
                {
                    let next = longer(wait);
                    wait = Some(next);
                    sleep(next).await;
                }
                // Its error has memory of its own.
                Some(completion) if completion.token != lent.token => {
                    drop(Lent::new(self.link, &completion));
                    return Err(Error::other("the body breaks off"));
                }
                _ => return Err(Error::other("the body breaks off")),
            }
        }
    }

    /// Fetches the next range of an object whose slots were given back.
    async fn fetch(&mut self) -> Result<()> {
        let Some(object) = &self.object else { return Err(Error::other("it was given back")) };
        let (text, first) = object.rest(self.passed);
        let _waiting = self.link.room.wait();
        let begin = Instant::now();
        let mut wait = None;
        loop {
            let (completion, lent) = self.asked(&text).await?;
            let is_refused = completion.status == Status::Refused;
            if is_refused && begin.elapsed() < REFUSED_TIMEOUT && !self.pieces.is_closed() {
                let next = longer(wait);
                wait = Some(next);
                sleep(next).await;
                continue;
            }
            let meta = self.link.meta(&completion)?;
            let range = meta["result"]["ContentRange"].as_str().and_then(first_of);
            if completion.status != Status::Done
                || range != Some(first)
                || completion.body.bytes == 0
            {
                let why = format!("the rest of the object cannot be fetched: {}", meta["error"]);
                return Err(Error::other(why));
            }
            self.piece = Some(self.piece(lent, &completion));
            return Ok(());
        }
    }

    /// One call without a body, to its completion.
    async fn asked(&self, text: &Value) -> Result<(Completion, Lent)> {
        let link = self.link;
        let _place = link.place(Places::Ranges).await?;
        let text = text.to_string();
        let held = link.text(text.as_bytes()).await?;
        let (call, mut completions) = link.register();
        let (meta_offset, meta_bytes) = (link.text_offset(&held), text.len() as u32);
        let plain = link.submission(call, Operation::Call);
        link.submit(&Submission { meta_offset, meta_bytes, ..plain })?;
        let completion = completions.recv().await;
        link.forget(call);
        let completion = completion.ok_or_else(|| Error::other("the host has ended"))?;
        Ok((completion, Lent::new(link, &completion)))
    }
}
