//! The execution of a call, from its text to its completion.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use unlade_guest_protocol::control::WriteMode;
use unlade_guest_protocol::descriptor::{PENDING, PREFETCHED};
use unlade_guest_protocol::{Completion, Status};
use unlade_metrics::{CallEnd, Event, PrefetchEnd};
use unlade_s3::failure::{HostCode, ServiceError};
use unlade_s3::operation::{Effect, Operation, find};
use unlade_s3::policy::Decision;
use unlade_s3::response::{done_meta, error_meta};
use unlade_s3::retry::Attempts;
use unlade_s3::{Head, Policy, Request};

use crate::fetch::{self, deliver};
use crate::flow::Flow;
use crate::perform::{Failed, Performed, perform, wait};
use crate::prefetch::Bytes;
use crate::session_epoch::SessionEpoch;
use crate::stage::Staged;
use crate::store::checked;
use crate::store::{Body, Form, Reader, Version};
use crate::tenant::Tenant;
use crate::writeback::{Acknowledged, Candidate};

/// Longest validity of a presigned address (S3: seven days).
const EXPIRES_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The context of a call: tenant, rights, epoch and invocation.
#[derive(Clone)]
pub struct Caller {
    /// The tenant.
    pub tenant: Rc<Tenant>,
    /// The rights of the function.
    pub policy: Rc<Policy>,
    /// The epoch in whose memory the call was submitted.
    pub session_epoch: Rc<SessionEpoch>,
    /// The invocation that is running; empty if there is none.
    pub invocation: Rc<str>,
    /// True once the invocation is over.
    pub is_over: Rc<Cell<bool>>,
    /// How its writes are acknowledged.
    pub writes: WriteMode,
}

/// The result of a call before it is completed.
pub(crate) enum Done {
    /// A result without a body.
    Result { result: Map<String, Value>, head: Head, flags: u16 },
    /// An object whose first part is in slots.
    Object { result: Map<String, Value>, head: Head, first: fetch::First, flags: u16 },
    /// The guest has no room.
    NoRoom,
}

impl Caller {
    /// Executes a call and completes it.
    pub async fn run(&self, number: u64, staged: Staged) {
        let Staged { call, room: _room, held, bytes } = staged;
        let mut attempts = Attempts::default();
        let mut held = Some(held);
        let body = Rc::new(Body::from(bytes));
        let done = match call.service.as_str() {
            "s3" => self.carry_out(&call, &body, &mut held, &mut attempts).await,
            other => Err(unsupported(&format!("the service {other}"))),
        };
        let retries = attempts.retries();
        self.session_epoch.calls.borrow_mut().remove(&number);
        self.finish(number, &call.operation, done, retries).await;
    }

    /// Completes a call.
    pub(crate) async fn finish(
        &self,
        number: u64,
        operation: &str,
        done: Result<Done, Failed>,
        retries: u32,
    ) {
        let (session_epoch, meter) = (&self.session_epoch, &self.tenant.meter);
        let end = match done {
            Ok(Done::Result { result, head, flags }) => {
                let text = done_meta(&result, &head, retries, None);
                fetch::say(session_epoch, number, Status::Done, &text, flags).await;
                CallEnd::Done
            }
            Ok(Done::Object { result, head, first, flags }) => {
                let algorithm = checked::stated(&head).map(|(algorithm, _)| algorithm);
                let text = done_meta(&result, &head, retries, algorithm);
                deliver(&self.tenant, session_epoch, number, &text, first, flags).await;
                CallEnd::Done
            }
            Ok(Done::NoRoom) => {
                session_epoch.complete(&Completion::bare(
                    number,
                    Status::Refused,
                    session_epoch.epoch_low(),
                ));
                CallEnd::Refused
            }
            Err(Failed::Service { error, head }) => {
                let text = error_meta(operation, &error, &head, retries);
                fetch::say(session_epoch, number, Status::ServiceError, &text, 0).await;
                if error == ServiceError::denied() { CallEnd::Denied } else { CallEnd::Service }
            }
            Err(Failed::Host { code, message, .. }) => {
                fetch::complain(session_epoch, number, code, &message).await;
                CallEnd::Host
            }
        };
        meter.add(Event::HostioCall(end));
    }

    async fn carry_out(
        &self,
        call: &unlade_s3::Call,
        body: &Rc<Body>,
        held: &mut Option<crate::quota::HeldBytes>,
        attempts: &mut Attempts,
    ) -> Result<Done, Failed> {
        let parameters = &call.parameters;
        match call.operation.as_str() {
            "GeneratePresignedUrl" => return self.presign(parameters, call.region.as_deref()),
            "GeneratePresignedPost" => {
                return self.presign_post(parameters, call.region.as_deref());
            }
            _ => {}
        }
        let request = self.asked(call)?;
        let _outdates = self.invalidation(&request);
        if let Some(done) = self.answer_here(&request, parameters).await? {
            return Ok(done);
        }
        self.tenant.writeback.barrier(&request, parameters).await;
        if let Some(done) = self.acknowledge(&request, parameters, body, held).await {
            return Ok(done);
        }
        let sent = match &request.xml {
            Some(xml) => Rc::new(Body::from(xml.clone())),
            None => body.clone(),
        };
        let done = self.at_store(&request, &sent, attempts).await?;
        if let Done::Result { result, head, .. } = &done {
            self.tenant.writeback.learn(&request, &sent, result, head);
        }
        Ok(done)
    }

    /// Builds the request of a call, if the role allows it.
    pub(crate) fn asked(&self, call: &unlade_s3::Call) -> Result<Rc<Request>, Failed> {
        let (operation, mut request) = self.request(&call.operation, &call.parameters)?;
        request.in_region(call.region.as_deref()).map_err(|e| invalid(&e.to_string()))?;
        request.unsigned = call.unsigned;
        if !operation.has_body && call.body_bytes > 0 {
            return Err(invalid(&format!("{} has no body", operation.name)));
        }
        Ok(Rc::new(request))
    }

    /// Builds the request of an operation, if it is valid and the role allows it.
    fn request(
        &self,
        operation: &str,
        parameters: &Map<String, Value>,
    ) -> Result<(&'static Operation, Request), Failed> {
        let operation = find(operation)
            .ok_or_else(|| unsupported(&format!("the operation {operation} of s3")))?;
        let request = Request::new(operation, parameters).map_err(|e| invalid(&e.to_string()))?;
        if self.policy.decide(operation, parameters) != Decision::Allowed {
            return Err(Failed::Service { error: ServiceError::denied(), head: denied_head() });
        }
        Ok((operation, request))
    }

    /// Invalidates what a call makes stale: now, and again when it ends, because others may read
    /// meanwhile.
    pub(crate) fn invalidation<'a>(&'a self, request: &'a Request) -> CacheInvalidation<'a> {
        let invalidation = CacheInvalidation { tenant: &self.tenant, request };
        invalidation.forget();
        invalidation
    }

    /// Answers reads that need no store: from a pending write, or from a prefetched object.
    async fn answer_here(
        &self,
        request: &Rc<Request>,
        parameters: &Map<String, Value>,
    ) -> Result<Option<Done>, Failed> {
        if request.unsigned {
            // An unsigned read is decided by the store, so it is not answered here.
            return Ok(None);
        }
        if let Some((seen, body)) = self.tenant.writeback.overlay(request, parameters) {
            self.tenant.meter.add(Event::HostioOverlay);
            let Acknowledged { result, head } = seen;
            let head = identified(&self.tenant, head);
            if request.operation.name != "GetObject" {
                return Ok(Some(Done::Result { result, head, flags: PENDING }));
            }
            let reader = Box::new(Bytes::all(&self.tenant.copies, &body));
            return self.object(result, head, reader, PENDING).await.map(Some);
        }
        if request.operation.name == "GetObject" {
            let taken = self.tenant.prefetches.take(&self.invocation, parameters).await;
            if let Some(taken) = taken {
                let done = self.object(taken.result, taken.head, taken.reader, PREFETCHED).await;
                // A prefetch that failed is no error: the object is requested again.
                if let Ok(done) = done {
                    self.tenant.meter.add(Event::HostioPrefetch(PrefetchEnd::Used));
                    return Ok(Some(done));
                }
                self.tenant.meter.add(Event::HostioPrefetch(PrefetchEnd::Failed));
            }
        }
        Ok(None)
    }

    async fn object(
        &self,
        result: Map<String, Value>,
        head: Head,
        reader: Box<dyn Reader>,
        flags: u16,
    ) -> Result<Done, Failed> {
        let flow = Flow::new(reader, self.tenant.limits.window_slots);
        Ok(match fetch::first(&self.session_epoch, flow).await? {
            Some(first) => Done::Object { result, head, first, flags },
            None => Done::NoRoom,
        })
    }

    async fn acknowledge(
        &self,
        request: &Rc<Request>,
        parameters: &Map<String, Value>,
        body: &Rc<Body>,
        held: &mut Option<crate::quota::HeldBytes>,
    ) -> Option<Done> {
        // The store may refuse an unsigned write, which is known only after the request; and no
        // call waits for the result of a write whose invocation is over.
        if request.unsigned || self.is_over.get() {
            return None;
        }
        let (invocation, mode) = (&*self.invocation, self.writes);
        let candidate = Candidate { request, parameters, body, invocation, mode };
        let Acknowledged { result, head } =
            self.tenant.writeback.acknowledge(candidate, held).await?;
        let head = identified(&self.tenant, head);
        Some(Done::Result { result, head, flags: PENDING })
    }

    async fn at_store(
        &self,
        request: &Rc<Request>,
        body: &Rc<Body>,
        attempts: &mut Attempts,
    ) -> Result<Done, Failed> {
        loop {
            let work = perform(&self.tenant.store_client, request, body, attempts);
            let limit = self.tenant.limits.call_timeout;
            let performed = tokio::time::timeout(limit, work).await.map_err(|_| {
                Failed::host(HostCode::Timeout, format!("the call took longer than {limit:?}"))
            })??;
            let Performed { result, head, object } = performed;
            let Some(reader) = object else {
                return Ok(Done::Result { result, head, flags: 0 });
            };
            match self.object(result, head, reader, 0).await {
                Ok(done) => return Ok(done),
                // The guest has not been answered yet.
                Err(failed) => wait(&self.tenant.store_client, attempts, failed).await?,
            }
        }
    }

    fn presign(
        &self,
        parameters: &Map<String, Value>,
        region: Option<&str>,
    ) -> Result<Done, Failed> {
        let empty = Map::new();
        let inner = parameters.get("Parameters").and_then(Value::as_object).unwrap_or(&empty);
        let name = parameters.get("Operation").and_then(Value::as_str).unwrap_or_default();
        let (_, mut request) = self.request(name, inner)?;
        request.in_region(region).map_err(|e| invalid(&e.to_string()))?;
        let version = version(parameters)?;
        let url =
            self.tenant.store_client.transport.presign(&request, expires(parameters)?, version)?;
        Ok(made_here(json!({ "Url": url })))
    }

    fn presign_post(
        &self,
        parameters: &Map<String, Value>,
        region: Option<&str>,
    ) -> Result<Done, Failed> {
        let text = |name: &str| parameters.get(name).and_then(Value::as_str).unwrap_or_default();
        let (bucket, key) = (text("Bucket"), text("Key"));
        // The holder of the form chooses the end of the key: the role must allow every end.
        let starts = key.strip_suffix("${filename}");
        let asked =
            json!({"Bucket": bucket, "Key": starts.map_or(key.to_owned(), |s| format!("{s}*"))});
        let asked = asked.as_object().cloned().unwrap_or_default();
        let (_, mut request) = self.request("PutObject", &asked)?;
        request.in_region(region).map_err(|e| invalid(&e.to_string()))?;
        let (none, empty) = (Vec::new(), Map::new());
        let fields = parameters.get("Fields").and_then(Value::as_object).unwrap_or(&empty);
        let conditions = parameters.get("Conditions").and_then(Value::as_array).unwrap_or(&none);
        let expires = expires(parameters)?;
        let version = version(parameters)?;
        let form = Form { bucket, key, fields, conditions, expires, region, version };
        let (url, fields) = self.tenant.store_client.transport.presign_post(form)?;
        let fields: Map<String, Value> = fields.into_iter().map(|(k, v)| (k, v.into())).collect();
        Ok(made_here(json!({"url": url, "fields": fields})))
    }
}

/// Guard of a call in progress. It drops prefetched copies of the objects that the call writes,
/// and cached facts of a bucket that it changes, when the call begins and again when it ends or is
/// cancelled.
#[must_use]
pub(crate) struct CacheInvalidation<'a> {
    tenant: &'a Tenant,
    request: &'a Request,
}

impl CacheInvalidation<'_> {
    fn forget(&self) {
        let CacheInvalidation { tenant, request } = self;
        let Some(bucket) = request.bucket.as_deref() else { return };
        match request.operation.effect {
            Effect::ChangeObject => {
                tenant.prefetches.forget(bucket, request.key.as_deref());
            }
            Effect::ChangeBucket => {
                tenant.prefetches.forget(bucket, None);
                tenant.writeback.unlearn(bucket);
            }
            Effect::ReadObject | Effect::ReadBucket => {}
        }
    }
}

impl Drop for CacheInvalidation<'_> {
    fn drop(&mut self) {
        self.forget();
    }
}

fn expires(parameters: &Map<String, Value>) -> Result<Duration, Failed> {
    let seconds = parameters.get("ExpiresIn").map_or(Some(3600), Value::as_u64);
    let expires = seconds.map(Duration::from_secs).filter(|expires| *expires <= EXPIRES_MAX);
    expires.ok_or_else(|| invalid("ExpiresIn is at most seven days, in seconds"))
}

/// Parses the signature version that the function requests, under the name that SDKs use.
fn version(parameters: &Map<String, Value>) -> Result<Option<Version>, Failed> {
    match parameters.get("SignatureVersion").map(Value::as_str) {
        None => Ok(None),
        Some(Some("s3")) => Ok(Some(Version::Two)),
        Some(Some("v4" | "s3v4")) => Ok(Some(Version::Four)),
        Some(_) => Err(invalid("SignatureVersion is s3 or s3v4")),
    }
}

/// Completes the head of a response that the host generates in place of the store: functions
/// expect a date and a request id to log.
fn identified(tenant: &Tenant, mut head: Head) -> Head {
    let (_, date) = unlade_s3::value::of_time(SystemTime::now());
    let dice = || tenant.store_client.dice();
    let id = format!("{:08X}{:08X}", dice(), dice());
    head.headers.push(("date".to_owned(), date));
    head.headers.push(("x-amz-request-id".to_owned(), id));
    head
}

fn made_here(result: Value) -> Done {
    let result = result.as_object().cloned().unwrap_or_default();
    Done::Result { result, head: Head { status: 200, headers: Vec::new() }, flags: 0 }
}

fn denied_head() -> Head {
    Head { status: 403, headers: Vec::new() }
}

fn unsupported(what: &str) -> Failed {
    Failed::host(HostCode::Unsupported, format!("the host does not carry {what}"))
}

fn invalid(why: &str) -> Failed {
    Failed::host(HostCode::Invalid, why)
}
