//! The execution of a call, from its text to its completion.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use unlade_guest_protocol::descriptor::{PENDING, PREFETCHED};
use unlade_guest_protocol::{Completion, Status};
use unlade_metrics::{CallEnd, Event, PrefetchEnd};
use unlade_s3::failure::{HostCode, ServiceError};
use unlade_s3::response::{done_meta, error_meta};
use unlade_s3::retry::Attempts;
use unlade_s3::{Head, Request};

use crate::authorise::{Authorised, authorise, invalid};
use crate::caller::Caller;
use crate::fetch::{self, deliver};
use crate::flow::Flow;
use crate::invalidation::CacheInvalidation;
use crate::perform::{Failed, Performed, perform, wait};
use crate::prefetch::Bytes;
use crate::stage::Staged;
use crate::store::checked;
use crate::store::{Body, Form, Reader, Version};
use crate::tenant::Tenant;
use crate::writeback::{Acknowledged, Candidate};

/// Longest validity of a presigned address (S3: seven days).
const EXPIRES_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

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
        let done = self.carry_out(&call, &body, &mut held, &mut attempts).await;
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
        let request = match authorise(&self.policy, call)? {
            Authorised::Operation(request) => request,
            Authorised::Url(request) => return self.presign(parameters, &request),
            Authorised::Form => return self.presign_post(parameters, call.region.as_deref()),
        };
        let _outdates = CacheInvalidation::begin(&self.tenant, &request);
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

    fn presign(&self, parameters: &Map<String, Value>, request: &Request) -> Result<Done, Failed> {
        let version = version(parameters)?;
        let transport = &self.tenant.store_client.transport;
        let url = transport.presign(request, expires(parameters)?, version)?;
        Ok(made_here(json!({ "Url": url })))
    }

    fn presign_post(
        &self,
        parameters: &Map<String, Value>,
        region: Option<&str>,
    ) -> Result<Done, Failed> {
        let text = |name: &str| parameters.get(name).and_then(Value::as_str).unwrap_or_default();
        let (bucket, key) = (text("Bucket"), text("Key"));
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
