//! The execution of a call whose body is complete: a local answer, or a request to the store.

use std::rc::Rc;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value, json};
use unlade_guest_protocol::descriptor::{PENDING, PREFETCHED};
use unlade_metrics::{Event, PrefetchEnd};
use unlade_s3::failure::HostCode;
use unlade_s3::retry::Attempts;
use unlade_s3::{Call, Head, Request};

use crate::answer::Answer;
use crate::authorise::Authorised;
use crate::caller::Caller;
use crate::fetch;
use crate::flow::Flow;
use crate::invalidation::CacheInvalidation;
use crate::parsed::invalid;
use crate::perform::{Failed, Performed, perform, wait};
use crate::prefetch::Bytes;
use crate::quota::HeldBytes;
use crate::store::{Body, Form, Reader};
use crate::tenant::Tenant;
use crate::writeback::{Acknowledged, Candidate};

/// Longest validity of a presigned address (S3: seven days).
const EXPIRES_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// Executes a call that the role allows. An early acknowledgement takes `held`.
///
/// # Errors
/// The failure of the call, after its last attempt.
pub async fn act(
    caller: &Caller,
    call: &Call,
    authorised: Authorised,
    body: &Rc<Body>,
    held: &mut Option<HeldBytes>,
    attempts: &mut Attempts,
) -> Result<Answer, Failed> {
    let parameters = &call.parameters;
    let request = match authorised {
        Authorised::Operation(request) => request,
        Authorised::Url(request) => return presign(caller, parameters, &request),
        Authorised::Form => return presign_post(caller, parameters, call.region.as_deref()),
    };
    let _outdates = CacheInvalidation::begin(&caller.tenant, &request);
    if let Some(answer) = answer_here(caller, &request, parameters).await? {
        return Ok(answer);
    }
    caller.tenant.writeback.barrier(&request, parameters).await;
    if let Some(answer) = acknowledge(caller, &request, parameters, body, held).await {
        return Ok(answer);
    }
    let sent = match &request.xml {
        Some(xml) => Rc::new(Body::from(xml.clone())),
        None => body.clone(),
    };
    let answer = at_store(caller, &request, &sent, attempts).await?;
    if let Answer::Result { result, head, .. } = &answer {
        caller.tenant.writeback.learn(&request, &sent, result, head);
    }
    Ok(answer)
}

/// Answers reads that need no store: from a pending write, or from a prefetched object.
async fn answer_here(
    caller: &Caller,
    request: &Rc<Request>,
    parameters: &Map<String, Value>,
) -> Result<Option<Answer>, Failed> {
    if request.unsigned {
        // An unsigned read is decided by the store, so it is not answered here.
        return Ok(None);
    }
    if let Some((seen, body)) = caller.tenant.writeback.overlay(request, parameters) {
        caller.tenant.meter.add(Event::HostioOverlay);
        let Acknowledged { result, head } = seen;
        let head = identified(&caller.tenant, head);
        if request.operation.name != "GetObject" {
            return Ok(Some(Answer::Result { result, head, flags: PENDING }));
        }
        let reader = Box::new(Bytes::all(&caller.tenant.copies, &body));
        return deliver(caller, result, head, reader, PENDING).await.map(Some);
    }
    if request.operation.name == "GetObject" {
        let taken = caller.tenant.prefetches.take(&caller.invocation, parameters).await;
        if let Some(taken) = taken {
            let done = deliver(caller, taken.result, taken.head, taken.reader, PREFETCHED).await;
            // A prefetch that failed is no error: the object is requested again.
            if let Ok(done) = done {
                caller.tenant.meter.add(Event::HostioPrefetch(PrefetchEnd::Used));
                return Ok(Some(done));
            }
            caller.tenant.meter.add(Event::HostioPrefetch(PrefetchEnd::Failed));
        }
    }
    Ok(None)
}

async fn deliver(
    caller: &Caller,
    result: Map<String, Value>,
    head: Head,
    reader: Box<dyn Reader>,
    flags: u16,
) -> Result<Answer, Failed> {
    let flow = Flow::new(reader, caller.tenant.limits.window_slots);
    Ok(match fetch::first(&caller.session_epoch, flow).await? {
        Some(filled) => Answer::Object { result, head, filled, flags },
        None => Answer::Refused,
    })
}

async fn acknowledge(
    caller: &Caller,
    request: &Rc<Request>,
    parameters: &Map<String, Value>,
    body: &Rc<Body>,
    held: &mut Option<HeldBytes>,
) -> Option<Answer> {
    // The store may refuse an unsigned write, which is known only after the request; and no
    // call waits for the result of a write whose invocation is over.
    if request.unsigned || caller.is_over.get() {
        return None;
    }
    let (invocation, mode) = (&*caller.invocation, caller.writes);
    let candidate = Candidate { request, parameters, body, invocation, mode };
    let Acknowledged { result, head } =
        caller.tenant.writeback.acknowledge(candidate, held).await?;
    let head = identified(&caller.tenant, head);
    Some(Answer::Result { result, head, flags: PENDING })
}

async fn at_store(
    caller: &Caller,
    request: &Rc<Request>,
    body: &Rc<Body>,
    attempts: &mut Attempts,
) -> Result<Answer, Failed> {
    loop {
        let work = perform(&caller.tenant.store_client, request, body, attempts);
        let limit = caller.tenant.limits.call_timeout;
        let performed = tokio::time::timeout(limit, work).await.map_err(|_| {
            Failed::host(HostCode::Timeout, format!("the call took longer than {limit:?}"))
        })??;
        let Performed { result, head, object } = performed;
        let Some(reader) = object else {
            return Ok(Answer::Result { result, head, flags: 0 });
        };
        match deliver(caller, result, head, reader, 0).await {
            Ok(done) => return Ok(done),
            // The guest has not been answered yet.
            Err(failed) => wait(&caller.tenant.store_client, attempts, failed).await?,
        }
    }
}

fn presign(
    caller: &Caller,
    parameters: &Map<String, Value>,
    request: &Request,
) -> Result<Answer, Failed> {
    check_version(parameters)?;
    let transport = &caller.tenant.store_client.transport;
    let url = transport.presign(request, expires(parameters)?)?;
    Ok(made_here(json!({ "Url": url })))
}

fn presign_post(
    caller: &Caller,
    parameters: &Map<String, Value>,
    region: Option<&str>,
) -> Result<Answer, Failed> {
    let text = |name: &str| parameters.get(name).and_then(Value::as_str).unwrap_or_default();
    let (bucket, key) = (text("Bucket"), text("Key"));
    let (none, empty) = (Vec::new(), Map::new());
    let fields = parameters.get("Fields").and_then(Value::as_object).unwrap_or(&empty);
    let conditions = parameters.get("Conditions").and_then(Value::as_array).unwrap_or(&none);
    let expires = expires(parameters)?;
    check_version(parameters)?;
    let form = Form { bucket, key, fields, conditions, expires, region };
    let (url, fields) = caller.tenant.store_client.transport.presign_post(form)?;
    let fields: Map<String, Value> = fields.into_iter().map(|(k, v)| (k, v.into())).collect();
    Ok(made_here(json!({"url": url, "fields": fields})))
}

fn expires(parameters: &Map<String, Value>) -> Result<Duration, Failed> {
    let seconds = parameters.get("ExpiresIn").map_or(Some(3600), Value::as_u64);
    let expires = seconds.map(Duration::from_secs).filter(|expires| *expires <= EXPIRES_MAX);
    expires.ok_or_else(|| invalid("ExpiresIn is at most seven days, in seconds"))
}

/// Refuses every signature version but 4, under the names that SDKs use. A client that chooses none
/// gets Version 4: a URL of Version 2 does not contain all that a policy decides about.
fn check_version(parameters: &Map<String, Value>) -> Result<(), Failed> {
    match parameters.get("SignatureVersion") {
        None => Ok(()),
        Some(version) if matches!(version.as_str(), Some("s3v4" | "v4")) => Ok(()),
        Some(version) => {
            let why = format!(
                "the host does not sign URLs and forms with the signature version {version}, only \
                 with Version 4: give the client config=Config(signature_version=\"s3v4\"), or no \
                 version"
            );
            Err(Failed::host(HostCode::Unsupported, why))
        }
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

fn made_here(result: Value) -> Answer {
    let result = result.as_object().cloned().unwrap_or_default();
    Answer::Result { result, head: Head { status: 200, headers: Vec::new() }, flags: 0 }
}
