//! Writes that are acknowledged before the store has them.
//!
//! A PutObject is acknowledged when its bytes are in the worker's memory and its bucket is known
//! to give predictable responses to writes: the entity tag is the MD5 of the body, and there are
//! no versions. The first write to a bucket determines that and is synchronous. Writes whose
//! response matters are synchronous too: conditional ones, those with keys or retention, copies,
//! deletes, parts.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::SystemTime;

use serde_json::{Map, Value};
use tokio::sync::Notify;
use unlade_guest_protocol::control::{FailedWrite, WriteMode};
use unlade_metrics::Event;
use unlade_s3::copy_source::{self, COPY_SOURCE};
use unlade_s3::operation::{Effect, Target, find};
use unlade_s3::pending::{Name, Pending, Scope};
use unlade_s3::response::{Answer, understand};
use unlade_s3::retry::Attempts;
use unlade_s3::{Head, Request};

use crate::journal::Journal;
use crate::perform::{Failed, Performed, StoreClient, perform};
use crate::quota::HeldBytes;
use crate::store::Body;

/// Most failures that are reported for one invocation.
pub const FAILURES_MAX: usize = 64;
/// Most characters of the store's message that a failure keeps.
const SAID_CHARS_MAX: usize = 1024;
/// Most buckets whose responses are remembered.
const BUCKETS_MAX: usize = 4096;
/// Parameters of a PutObject whose response can be predicted.
const PLAIN: &[&str] = &[
    "Bucket",
    "Key",
    "ACL",
    "CacheControl",
    "ContentDisposition",
    "ContentEncoding",
    "ContentLanguage",
    "ContentLength",
    "ContentType",
    "Expires",
    "Metadata",
    "StorageClass",
    "Tagging",
    "WebsiteRedirectLocation",
];
/// Response fields that are equal for every object of a bucket.
const CONSTANT: &[&str] = &["x-amz-server-side-encryption", "x-amz-checksum-type"];
/// Members of a result that can be predicted.
const PREDICTABLE: &[&str] = &["ETag", "ChecksumCRC32", "ChecksumType", "ServerSideEncryption"];

/// A pending write.
#[derive(Debug)]
pub struct Write {
    request: Rc<Request>,
    body: Rc<Body>,
    at: SystemTime,
    journal_id: Option<u64>,
    held: Option<HeldBytes>,
}

/// The class of a bucket's responses to writes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ResponseClass {
    /// Predictable, with these fields beside the entity tag.
    Predictable { constant: Vec<(String, String)>, has_crc32: bool },
    /// Not predictable.
    Unpredictable,
}

/// See the [module](self).
#[derive(Debug)]
pub struct WriteBack {
    pending: RefCell<Pending<Rc<Write>>>,
    buckets: RefCell<HashMap<String, ResponseClass>>,
    failed: RefCell<HashMap<String, Vec<FailedWrite>>>,
    changed: Notify,
    journal: Option<Journal>,
    store_client: Rc<StoreClient>,
}

/// The result of a write that was acknowledged early.
pub struct Acknowledged {
    /// The result that an SDK would return.
    pub result: Map<String, Value>,
    /// Status and header fields, as the store would send them.
    pub head: Head,
}

/// A write that may be acknowledged early.
pub struct Candidate<'a> {
    /// The request.
    pub request: &'a Rc<Request>,
    /// Its parameters.
    pub parameters: &'a Map<String, Value>,
    /// Its body.
    pub body: &'a Rc<Body>,
    /// The invocation of the write.
    pub invocation: &'a str,
    /// The write mode of that invocation's function.
    pub mode: WriteMode,
}

impl WriteBack {
    /// Creates a write-back queue without pending writes, to a store.
    pub fn new(
        limits: unlade_s3::pending::Limits,
        journal: Option<Journal>,
        store_client: Rc<StoreClient>,
    ) -> Rc<WriteBack> {
        Rc::new(WriteBack {
            pending: RefCell::new(Pending::new(limits)),
            buckets: RefCell::default(),
            failed: RefCell::default(),
            changed: Notify::new(),
            journal,
            store_client,
        })
    }

    /// The client of the store that gets the writes.
    pub fn store_client(&self) -> &Rc<StoreClient> {
        &self.store_client
    }

    /// Acknowledges a write, if it qualifies. The part of `held` that is returned stays with the
    /// caller.
    pub async fn acknowledge(
        self: &Rc<WriteBack>,
        candidate: Candidate<'_>,
        held: &mut Option<HeldBytes>,
    ) -> Option<Acknowledged> {
        let Candidate { request, parameters, body, invocation, mode } = candidate;
        let early = mode == WriteMode::EarlyReply;
        let may = self.may_acknowledge(request.operation.name, parameters, invocation, mode);
        let bucket = request.bucket.as_deref().filter(|_| may)?;
        let answers = self.buckets.borrow().get(bucket).cloned()?;
        let ResponseClass::Predictable { constant, has_crc32 } = answers else { return None };
        let (result, head) = predict(request, body, &constant, has_crc32)?;
        let name = (bucket.to_owned(), request.key.clone()?);
        let write = Write {
            request: request.clone(),
            body: body.clone(),
            at: SystemTime::now(),
            journal_id: None,
            held: held.take(),
        };
        let pushed = match early {
            false => self.push(name, invocation, write),
            true => begin(self, name, parameters.clone(), invocation.to_owned(), write).await,
        };
        match pushed {
            Ok(()) => Some(Acknowledged { result, head }),
            Err(given_back) => {
                *held = given_back;
                None
            }
        }
    }

    /// Adds a pending write; if there is no room, its reserved bytes are returned.
    fn push(
        self: &Rc<WriteBack>,
        name: Name,
        invocation: &str,
        write: Write,
    ) -> Result<(), Option<HeldBytes>> {
        let bytes = write.body.bytes().len() as u64;
        let write = Rc::new(write);
        let pushed = self.pending.borrow_mut().push(name, invocation, bytes, write.clone());
        if pushed.is_err() {
            return Err(Rc::into_inner(write).and_then(|write| write.held));
        }
        self.store_client.meter.add(Event::HostioWritePending);
        self.pump();
        Ok(())
    }

    /// Returns true if a write may be acknowledged early, in a bucket whose class is known or not
    /// yet known.
    pub fn may_acknowledge(
        &self,
        operation: &str,
        parameters: &Map<String, Value>,
        invocation: &str,
        mode: WriteMode,
    ) -> bool {
        let plain =
            |(name, value): (&String, &Value)| value.is_null() || PLAIN.contains(&name.as_str());
        let bucket = parameters.get("Bucket").and_then(Value::as_str).unwrap_or_default();
        operation == "PutObject"
            && mode != WriteMode::Sync
            && !invocation.is_empty()
            && (mode != WriteMode::EarlyReply || self.journal.is_some())
            && parameters.iter().all(plain)
            && self.buckets.borrow().get(bucket) != Some(&ResponseClass::Unpredictable)
    }

    /// Resumes writes that a previous worker had acknowledged.
    pub fn replay(self: &Rc<WriteBack>, begun: Vec<unlade_s3::journal::UnfinishedWrite>) {
        for begun in begun {
            let operation = find(&begun.write.operation);
            let request = operation.and_then(|op| Request::new(op, &begun.write.parameters).ok());
            let Some(request) = request.map(Rc::new) else { continue };
            let (Some(bucket), Some(key)) = (request.bucket.clone(), request.key.clone()) else {
                continue;
            };
            let bytes = begun.body.len() as u64;
            let write = Rc::new(Write {
                request,
                body: Rc::new(Body::from(begun.body)),
                at: SystemTime::now(),
                journal_id: Some(begun.id),
                held: None,
            });
            let pushed = self.pending.borrow_mut().push((bucket, key), "", bytes, write);
            if pushed.is_err() {
                tracing::error!(id = begun.id, "journal: no room for a write; it stays there");
            }
        }
        self.pump();
    }

    /// Sends the writes that may be sent.
    fn pump(self: &Rc<WriteBack>) {
        loop {
            let mut pending = self.pending.borrow_mut();
            let Some((id, write)) = pending.poll_ready() else { return };
            let (write, writeback) = (write.clone(), self.clone());
            drop(pending);
            tokio::task::spawn_local(async move {
                let mut attempts = Attempts::default();
                let client = &writeback.store_client;
                let done = perform(client, &write.request, &write.body, &mut attempts).await;
                writeback.ended(id, &write, done).await;
            });
        }
    }

    async fn ended(self: &Rc<WriteBack>, id: u64, write: &Write, done: Result<Performed, Failed>) {
        // The journal entry ends before the write stops being pending: a replay must not overwrite
        // a later write.
        if let (Some(id), Some(journal)) = (write.journal_id, &self.journal) {
            journal.ended(id).await;
        }
        let Some((_, invocation)) = self.pending.borrow_mut().ended(id) else { return };
        match &done {
            Ok(performed) => {
                self.store_client.meter.add(Event::HostioWriteDurable);
                self.check(write, &performed.result);
            }
            Err(failed) => {
                self.store_client.meter.add(Event::HostioWriteLost);
                self.fail(write, &invocation, failed);
            }
        }
        self.changed.notify_waiters();
        self.pump();
    }

    /// Compares the response with the prediction; on a difference the bucket's responses are no
    /// longer predicted.
    fn check(&self, write: &Write, result: &Map<String, Value>) {
        let Some(bucket) = write.request.bucket.as_deref() else { return };
        if learn(&write.body, result, &[]) == ResponseClass::Unpredictable {
            tracing::warn!(
                bucket,
                "the store's response differs from the predicted one; writes to the bucket are \
                 no longer acknowledged early"
            );
            self.buckets.borrow_mut().insert(bucket.to_owned(), ResponseClass::Unpredictable);
        }
    }

    fn fail(&self, write: &Write, invocation: &str, failed: &Failed) {
        let (code, message) = failed.said();
        let request = &write.request;
        let failure = FailedWrite {
            operation: request.operation.name.to_owned(),
            bucket: request.bucket.clone().unwrap_or_default(),
            key: request.key.clone().unwrap_or_default(),
            code: shortened(code),
            message: shortened(message),
        };
        let (bucket, key) = (&failure.bucket, &failure.key);
        tracing::error!(bucket, key, code = failure.code, "a write was lost");
        // A write without an invocation is not reported, so no failure is kept.
        if invocation.is_empty() {
            return;
        }
        let mut all = self.failed.borrow_mut();
        let own = all.entry(invocation.to_owned()).or_default();
        if own.len() < FAILURES_MAX {
            own.push(failure);
        }
    }

    /// Learns the class of a bucket from a synchronous write.
    pub fn learn(&self, request: &Request, body: &Body, result: &Map<String, Value>, head: &Head) {
        let mut buckets = self.buckets.borrow_mut();
        let Some(bucket) = request.bucket.clone() else { return };
        if request.operation.name != "PutObject" || buckets.len() >= BUCKETS_MAX {
            return;
        }
        buckets.entry(bucket).or_insert_with(|| learn(body, result, &head.headers));
    }

    /// Forgets the class of a bucket whose configuration may have changed.
    pub fn unlearn(&self, bucket: &str) {
        self.buckets.borrow_mut().remove(bucket);
    }

    /// Waits until no pending write conflicts with a request.
    pub async fn barrier(&self, request: &Request, parameters: &Map<String, Value>) {
        for scope in scopes(request, parameters) {
            let blocks = || match &scope {
                Wait::Object(bucket, key) => {
                    self.pending.borrow().blocks(Scope::Object(bucket, key))
                }
                Wait::Bucket(bucket) => self.pending.borrow().blocks(Scope::Bucket(bucket)),
                Wait::Everything => self.pending.borrow().blocks(Scope::Everything),
            };
            self.until(|| !blocks()).await;
        }
    }

    /// Waits until every write of an invocation has ended; returns those that were lost.
    pub async fn settle(&self, invocation: &str) -> Vec<FailedWrite> {
        self.until(|| self.of_invocation(invocation) == 0).await;
        self.failed.borrow_mut().remove(invocation).unwrap_or_default()
    }

    /// Waits until no write is pending.
    pub async fn empty(&self) {
        self.until(|| self.pending.borrow().is_empty()).await;
    }

    async fn until(&self, is_so: impl Fn() -> bool) {
        loop {
            let changed = self.changed.notified();
            if is_so() {
                return;
            }
            changed.await;
        }
    }

    /// Number of pending writes of an invocation.
    pub fn of_invocation(&self, invocation: &str) -> usize {
        self.pending.borrow().of_invocation(invocation)
    }

    /// Number of writes of an invocation that are pending, or have failed and were not reported.
    pub fn unsettled(&self, invocation: &str) -> usize {
        let failed = self.failed.borrow().get(invocation).map_or(0, Vec::len);
        self.of_invocation(invocation) + failed
    }

    /// The response to a GET or HEAD of an object with a pending write; `None` if there is none,
    /// or if the store has to be asked.
    pub fn overlay(
        &self,
        request: &Request,
        parameters: &Map<String, Value>,
    ) -> Option<(Acknowledged, Rc<Body>)> {
        let asks = |(name, value): (&String, &Value)| {
            value.is_null() || ["Bucket", "Key", "ChecksumMode"].contains(&name.as_str())
        };
        let reads = matches!(request.operation.name, "GetObject" | "HeadObject");
        if !reads || !parameters.iter().all(asks) {
            return None;
        }
        let name = (request.bucket.clone()?, request.key.clone()?);
        let pending = self.pending.borrow();
        let write = pending.newest(&name)?;
        let answers = self.buckets.borrow().get(&name.0)?.clone();
        let ResponseClass::Predictable { constant, has_crc32 } = answers else { return None };
        // Stores differ in the content type of an object that was written without one.
        write.request.header_value("content-type")?;
        let head = described(write, &constant, has_crc32);
        match understand(request, &head, &[]) {
            Answer::Done(result) => Some((Acknowledged { result, head }, write.body.clone())),
            _ => None,
        }
    }
}

/// Makes the start of a write durable, and adds the write. This runs in a task of its own that
/// continues if the call is cancelled: a record in progress is awaited, and a written record gets
/// its end.
async fn begin(
    writeback: &Rc<WriteBack>,
    name: Name,
    parameters: Map<String, Value>,
    invocation: String,
    write: Write,
) -> Result<(), Option<HeldBytes>> {
    let writeback = writeback.clone();
    let task = tokio::task::spawn_local(async move {
        let Some(journal) = &writeback.journal else { return Err(write.held) };
        let Some(id) = journal.begun(&parameters, &invocation, &write.body).await else {
            return Err(write.held);
        };
        // Its invocation does not wait for it.
        let pushed = writeback.push(name, "", Write { journal_id: Some(id), ..write });
        if pushed.is_err() {
            journal.ended(id).await;
        }
        pushed
    });
    task.await.unwrap_or(Err(None))
}

fn shortened(said: &str) -> String {
    said.chars().take(SAID_CHARS_MAX).collect()
}

/// The writes that a request has to wait for.
enum Wait {
    Object(String, String),
    Bucket(String),
    Everything,
}

fn scopes(request: &Request, parameters: &Map<String, Value>) -> Vec<Wait> {
    let bucket = request.bucket.clone().unwrap_or_default();
    let mut all = vec![match (request.operation.target, &request.key) {
        (Target::Service, _) => Wait::Everything,
        (Target::Object, Some(key)) => Wait::Object(bucket, key.clone()),
        _ => Wait::Bucket(bucket),
    }];
    // The object's name depends on how the store reads the source: wait for the bucket's writes.
    if let Some(source) = parameters.get(COPY_SOURCE).and_then(Value::as_str) {
        all.push(Wait::Bucket(copy_source::bucket(source)));
    }
    debug_assert!(request.operation.effect != Effect::ChangeBucket || request.key.is_none());
    all
}

/// Derives the class of a bucket from one response.
fn learn(body: &Body, result: &Map<String, Value>, headers: &[(String, String)]) -> ResponseClass {
    let tag = result.get("ETag").and_then(Value::as_str).unwrap_or_default();
    let known: HashSet<&str> = PREDICTABLE.iter().copied().collect();
    let plain = result.keys().all(|name| known.contains(name.as_str()));
    let encryption = result.get("ServerSideEncryption").and_then(Value::as_str);
    if tag.trim_matches('"') != body.md5() || !plain || encryption.is_some_and(|e| e != "AES256") {
        return ResponseClass::Unpredictable;
    }
    let is_constant = |(name, _): &&(String, String)| {
        CONSTANT.iter().any(|constant| name.eq_ignore_ascii_case(constant))
    };
    let constant = headers.iter().filter(is_constant).cloned().collect();
    ResponseClass::Predictable { constant, has_crc32: result.contains_key("ChecksumCRC32") }
}

/// Predicts the response of the store.
fn predict(
    request: &Request,
    body: &Body,
    constant: &[(String, String)],
    has_crc32: bool,
) -> Option<(Map<String, Value>, Head)> {
    let mut headers = constant.to_vec();
    headers.push(("etag".to_owned(), format!("\"{}\"", body.md5())));
    if has_crc32 {
        headers.push(("x-amz-checksum-crc32".to_owned(), body.crc32().to_owned()));
    }
    headers.push(("content-length".to_owned(), "0".to_owned()));
    let head = Head { status: 200, headers };
    match understand(request, &head, &[]) {
        Answer::Done(result) => Some((result, head)),
        _ => None,
    }
}

/// The response head of a GET of a pending write.
fn described(write: &Write, constant: &[(String, String)], has_crc32: bool) -> Head {
    let mut headers = constant.to_vec();
    if has_crc32 {
        headers.push(("x-amz-checksum-crc32".to_owned(), write.body.crc32().to_owned()));
    }
    let (_, date) = unlade_s3::value::of_time(write.at);
    for (name, value) in [
        ("accept-ranges", "bytes".to_owned()),
        ("last-modified", date),
        ("etag", format!("\"{}\"", write.body.md5())),
        ("content-length", write.body.bytes().len().to_string()),
    ] {
        headers.push((name.to_owned(), value));
    }
    let kept = |name: &str| {
        name.starts_with("x-amz-meta-")
            || name.starts_with("content-")
            || ["cache-control", "expires", "x-amz-website-redirect-location"].contains(&name)
    };
    headers.extend(write.request.headers.iter().filter(|(name, _)| kept(name)).cloned());
    Head { status: 200, headers }
}

#[cfg(test)]
mod tests;
