//! The HTTP server: Lambda's Invoke API, the management calls that `aws lambda` needs, and
//! deployment.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine as _;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::http::request;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use unlade_fn_model::lambda::{
    ASYNC_EVENT_BYTES_MAX, Denial, EVENT_BYTES_MAX, InvocationType, LATEST, Refusal, UNHANDLED,
    function_name,
};
use unlade_fn_model::manifest::is_name;
use unlade_guest_protocol::control::ObjectName;
use unlade_metrics::Event;

use crate::auth::{CONTENT_SHA256, Caller, Head, sha256};
use crate::deploy;
use crate::events::Events;
use crate::function::Function;
use crate::host::Host;
use crate::invoke::{self, Answer, invoke};
use crate::trial;

/// Most connections at a time; more wait in the kernel's backlog.
pub const CONNECTIONS_MAX: usize = 4096;
/// Timeout of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// The header field that names objects which an invocation will read, as `bucket/key`; may occur
/// several times.
pub const HINT_HEADER: &str = "x-unlade-hint";
/// Most hints of a request.
const HINTS_MAX: usize = unlade_fn_model::manifest::HINTS_MAX;
/// Pause after a failed accept (descriptors exhausted), so as not to spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

type Reply = Response<Full<Bytes>>;

/// The state that requests need.
pub struct Api {
    /// Functions and instances.
    pub host: Rc<Host>,
    /// Asynchronous invocations.
    pub events: Rc<Events>,
    /// State to report beside the host's.
    pub about: Box<dyn Fn() -> Value>,
    /// True while the gateway is ending: each connection then ends after its current request.
    pub ending: watch::Receiver<bool>,
}

/// Serves connections until it is dropped; connections in progress continue.
pub async fn serve(api: Rc<Api>, listener: TcpListener) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "accept");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let api = api.clone();
        tokio::task::spawn_local(async move {
            let _place = place;
            if let Err(error) = converse(api, stream, peer).await {
                tracing::debug!(%error, %peer, "a connection");
            }
        });
    }
}

async fn converse(
    api: Rc<Api>,
    stream: TcpStream,
    peer: SocketAddr,
) -> Result<(), Box<dyn std::error::Error>> {
    stream.set_nodelay(true)?;
    let mut ending = api.ending.clone();
    let service = service_fn(move |request| {
        let api = api.clone();
        async move {
            // A request that was begun continues, even if its caller has disconnected.
            let work = tokio::task::spawn_local(answer(api, request));
            let failed = |_| refuse(&Refusal::Service("the gateway is ending".to_owned()));
            Ok::<_, Infallible>(work.await.unwrap_or_else(failed))
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let served = tokio::select! {
        biased;
        _ = async { ending.wait_for(|is_ending| *is_ending).await.is_ok() } => {
            // The current request is answered, and no further one.
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        served = connection.as_mut() => served,
    };
    tracing::trace!(%peer, "a connection has ended");
    Ok(served?)
}

async fn answer(api: Rc<Api>, request: Request<Incoming>) -> Reply {
    let routed = route(&api, request).await;
    if let Err(Refusal::Denied(..)) = &routed {
        api.host.meter.add(Event::FnDenied);
    }
    routed.unwrap_or_else(|refusal| refuse(&refusal))
}

fn refuse(refusal: &Refusal) -> Reply {
    let mut reply = json_reply(refusal.status(), refusal.body());
    set(&mut reply, "x-amzn-errortype", refusal.code());
    reply
}

fn json_reply(status: u16, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(body.into()));
    *reply.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
    set(&mut reply, "content-type", "application/json");
    reply
}

fn set(reply: &mut Reply, name: &'static str, value: &str) {
    if let Ok(value) = value.parse() {
        reply.headers_mut().insert(name, value);
    }
}

/// Decodes percent encoding (RFC 3986 §2.1).
fn unpercent(text: &str) -> Result<String, Refusal> {
    let wrong = || Refusal::Parameter(format!("{text:?} is not in percent notation"));
    let decoded = unlade_http::percent::decoded(text).ok_or_else(wrong)?;
    String::from_utf8(decoded).map_err(|_| wrong())
}

/// A request of an authenticated caller, and its body.
struct AuthenticatedRequest {
    caller: Caller,
    head: request::Parts,
    body: Payload,
}

/// A body that was read, because its hash is signed, or that is still unread.
enum Payload {
    Taken(Bytes),
    Coming {
        body: Incoming,
        /// The hash in the caller's signature.
        sha256: Option<String>,
    },
}

impl Payload {
    /// Reads the bytes; returns the SHA-256 if it is still to be compared.
    async fn collect(self, bytes_max: usize) -> Result<(Bytes, Option<String>), Refusal> {
        match self {
            Payload::Taken(bytes) if bytes.len() > bytes_max => Err(Refusal::TooLarge(bytes_max)),
            Payload::Taken(bytes) => Ok((bytes, None)),
            Payload::Coming { body, sha256 } => Ok((collect(body, bytes_max).await?, sha256)),
        }
    }

    /// Reads the bytes and compares them with the signed hash.
    async fn signed(self, bytes_max: usize) -> Result<Bytes, Refusal> {
        let (bytes, due) = self.collect(bytes_max).await?;
        compare(&bytes, due.as_deref())?;
        Ok(bytes)
    }
}

fn compare(bytes: &[u8], due: Option<&str>) -> Result<(), Refusal> {
    if due.is_none_or(|due| due == sha256(bytes)) {
        return Ok(());
    }
    let why = format!("the body is not the one whose SHA-256 {CONTENT_SHA256} gives");
    Err(Refusal::Denied(Denial::Signature, why))
}

/// Authenticates the caller. No large body is read before that.
async fn identify(api: &Api, request: Request<Incoming>) -> Result<AuthenticatedRequest, Refusal> {
    let (parts, body) = request.into_parts();
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let head = Head { method: parts.method.as_str(), target, headers: &parts.headers };
    let claim = match &*api.host.keys.borrow() {
        Some(keys) => keys.claim(head, SystemTime::now())?,
        None => {
            let body = Payload::Coming { body, sha256: None };
            return Ok(AuthenticatedRequest { caller: Caller::Anyone, head: parts, body });
        }
    };
    let announced = claim.announced()?.map(str::to_owned);
    let (caller, body) = match announced {
        Some(hash) => (claim.verify(head, &hash)?, Payload::Coming { body, sha256: Some(hash) }),
        None => {
            let bytes = collect(body, EVENT_BYTES_MAX).await?;
            (claim.verify(head, &sha256(&bytes))?, Payload::Taken(bytes))
        }
    };
    Ok(AuthenticatedRequest { caller, head: parts, body })
}

async fn route(api: &Rc<Api>, request: Request<Incoming>) -> Result<Reply, Refusal> {
    if request.headers().contains_key("origin") {
        // A web page in a browser on this machine is not a valid caller.
        return Err(Refusal::Unsupported("requests of browsers are not served".to_owned()));
    }
    let asked = identify(api, request).await.inspect_err(|refusal| {
        tracing::debug!(code = refusal.code(), why = refusal.message(), "request denied");
    })?;
    let path = asked.head.uri.path().to_owned();
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').skip(1).collect();
    let method = asked.head.method.clone();
    match (&method, parts.as_slice()) {
        (&Method::POST, ["2015-03-31", "functions", name, "invocations"]) => {
            let name = unpercent(name)?;
            invocation(api, &name, asked).await
        }
        (&Method::GET, ["2015-03-31", "functions"]) => {
            asked.body.signed(EVENT_BYTES_MAX).await?;
            let all = api.host.functions();
            let own = all.iter().filter(|function| asked.caller.is(&function.tenant.name));
            let functions: Vec<_> = own.map(|function| configuration(function)).collect();
            Ok(json_reply(200, json!({ "Functions": functions }).to_string()))
        }
        (&Method::GET, ["2015-03-31", "functions", name, rest @ ..]) => {
            let function = find(api, &asked.caller, &unpercent(name)?, None)?;
            asked.body.signed(EVENT_BYTES_MAX).await?;
            match rest {
                [] => {
                    let body = json!({"Configuration": configuration(&function)});
                    Ok(json_reply(200, body.to_string()))
                }
                ["configuration"] => Ok(json_reply(200, configuration(&function).to_string())),
                _ => Err(Refusal::Unsupported(format!("{method} {path} is not done here"))),
            }
        }
        (&Method::DELETE, ["2015-03-31", "functions", name]) => {
            let function = find(api, &asked.caller, &unpercent(name)?, None)?;
            asked.body.signed(EVENT_BYTES_MAX).await?;
            remove(api, &function)
        }
        (&Method::PUT, ["unlade", "v1", "functions", name]) => {
            let name = unpercent(name)?;
            deployment(api, &name, asked).await
        }
        (&Method::GET, ["unlade", "v1", "state"]) => {
            asked.body.signed(EVENT_BYTES_MAX).await?;
            Ok(json_reply(200, state(api, &asked.caller).await.to_string()))
        }
        _ => Err(Refusal::Unsupported(format!("{method} {path} is not done here"))),
    }
}

/// Finds a function of the caller. Another tenant's function is reported as absent.
fn find(
    api: &Api,
    caller: &Caller,
    text: &str,
    qualifier: Option<&str>,
) -> Result<Rc<Function>, Refusal> {
    let name = function_name(text, qualifier)?;
    let found = api.host.function(&name).filter(|function| caller.is(&function.tenant.name));
    found.ok_or(Refusal::NotFound(name))
}

async fn collect(body: Incoming, bytes_max: usize) -> Result<Bytes, Refusal> {
    let collected = Limited::new(body, bytes_max).collect().await;
    let collected =
        collected.map_err(|error| match error.is::<http_body_util::LengthLimitError>() {
            true => Refusal::TooLarge(bytes_max),
            false => Refusal::Content(error.to_string()),
        })?;
    Ok(collected.to_bytes())
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

async fn invocation(
    api: &Rc<Api>,
    name: &str,
    asked: AuthenticatedRequest,
) -> Result<Reply, Refusal> {
    let AuthenticatedRequest { caller, head, body } = asked;
    let query = head.uri.query().unwrap_or_default();
    let qualifier = query.split('&').find_map(|pair| pair.strip_prefix("Qualifier="));
    let qualifier = qualifier.map(unpercent).transpose()?;
    let function = find(api, &caller, name, qualifier.as_deref())?;
    let kind = InvocationType::parse(header(&head.headers, "x-amz-invocation-type"))?;
    let wants_log = header(&head.headers, "x-amz-log-type") == Some("Tail");
    let objects = hinted(&head.headers)?;
    let bytes_max = match kind {
        InvocationType::Event => ASYNC_EVENT_BYTES_MAX,
        _ => EVENT_BYTES_MAX,
    };
    let event = body.signed(bytes_max).await?;
    if !event.is_empty() {
        let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(&event);
        parsed.map_err(|error| Refusal::Content(error.to_string()))?;
    }
    match kind {
        InvocationType::DryRun => Ok(json_reply(204, "")),
        InvocationType::Event => {
            let number = api.events.accept(&api.host, &function, event.into()).await?;
            let mut reply = json_reply(202, "");
            set(&mut reply, "x-amzn-requestid", &number);
            Ok(reply)
        }
        InvocationType::RequestResponse => {
            let answer = invoke(&api.host, &function, event.into(), objects).await?;
            Ok(answered(answer, &function, wants_log))
        }
    }
}

fn hinted(headers: &HeaderMap) -> Result<Vec<ObjectName>, Refusal> {
    let mut objects = Vec::new();
    for value in headers.get_all(HINT_HEADER).iter().take(HINTS_MAX) {
        let text = unpercent(value.to_str().unwrap_or_default())?;
        let wrong = || Refusal::Parameter(format!("{HINT_HEADER}: {text:?} is not BUCKET/KEY"));
        let (bucket, key) = text.split_once('/').ok_or_else(wrong)?;
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        objects.push(ObjectName { bucket, key, version: None, range: None });
    }
    Ok(objects)
}

fn answered(answer: Answer, function: &Function, wants_log: bool) -> Reply {
    let log = wants_log.then(|| invoke::log(&answer, function));
    let Answer { invocation, result, is_error, served, timings, .. } = answer;
    let mut reply = json_reply(200, result);
    set(&mut reply, "x-amzn-requestid", &invocation);
    set(&mut reply, "x-amz-executed-version", LATEST);
    set(&mut reply, "x-unlade-origin", served.name());
    let text = format!(
        "queued_us={},start_us={},handler_us={},settled_us={},prefetch_us={},prefetch_waited_us={}",
        timings.queued.as_micros(),
        timings.start.as_micros(),
        timings.handler.as_micros(),
        timings.settled.as_micros(),
        timings.prefetch.as_micros(),
        timings.prefetch_waited.as_micros()
    );
    set(&mut reply, "x-unlade-timings", &text);
    if is_error {
        set(&mut reply, "x-amz-function-error", UNHANDLED);
    }
    if let Some(log) = log {
        set(&mut reply, "x-amz-log-result", &base64::engine::general_purpose::STANDARD.encode(log));
    }
    reply
}

fn configuration(function: &Function) -> Value {
    let manifest = &function.manifest;
    json!({
        "FunctionName": function.name,
        "FunctionArn": format!("arn:aws:lambda:us-east-1:000000000000:function:{}", function.name),
        "Handler": manifest.handler,
        "Runtime": "python3",
        "MemorySize": manifest.memory.0 >> 20,
        "Timeout": manifest.timeout.as_secs(),
        "Version": LATEST,
        "PackageType": "Zip",
        "State": "Active",
    })
}

/// Refuses changes of a function that the gateway does not own.
fn owned(function: &Function) -> Result<(), Refusal> {
    if function.is_deployed {
        return Ok(());
    }
    let why = "it is served from the directory `functions`: change or remove it there, and reload";
    Err(Refusal::Conflict(why.to_owned()))
}

/// Refuses a name that another tenant uses, or a function of the directory uses, because that one
/// would return at the next reload.
fn free(api: &Api, caller: &Caller, name: &str) -> Result<(), Refusal> {
    match api.host.function(name) {
        Some(function) if !caller.is(&function.tenant.name) => {
            let why = format!("another tenant has a function {name}; choose another name");
            Err(Refusal::Conflict(why))
        }
        Some(function) => owned(&function),
        None => Ok(()),
    }
}

fn remove(api: &Api, function: &Function) -> Result<Reply, Refusal> {
    owned(function)?;
    let forgotten = deploy::forget(&api.host.config.state, &function.name);
    forgotten.map_err(|error| Refusal::Service(error.to_string()))?;
    api.host.remove(&function.name);
    Ok(json_reply(204, ""))
}

async fn deployment(
    api: &Rc<Api>,
    name: &str,
    asked: AuthenticatedRequest,
) -> Result<Reply, Refusal> {
    let AuthenticatedRequest { caller, body, .. } = asked;
    if !is_name(name) {
        let why = format!("{name:?} is no name: letters, digits, - and _, 64 at most");
        return Err(Refusal::Parameter(why));
    }
    free(api, &caller, name)?;
    let (archive, due) = body.collect(deploy::CODE_BYTES_MAX as usize).await?;
    let state = api.host.config.state.clone();
    let refusal = |error: deploy::DeployError| match error.is_callers() {
        true => Refusal::Parameter(error.to_string()),
        false => Refusal::Service(error.to_string()),
    };
    let (own, function_name) = (state.clone(), name.to_owned());
    let tenant = match &caller {
        Caller::Tenant(tenant) => Some(tenant.clone()),
        Caller::Anyone => None,
    };
    let unpack = move || {
        compare(&archive, due.as_deref())?;
        let archive = archive.as_ref();
        deploy::unpack(&own, &function_name, archive, tenant.as_deref()).map_err(refusal)
    };
    let unpacked = tokio::task::spawn_blocking(unpack).await;
    let revision = unpacked.map_err(|error| Refusal::Service(error.to_string()))??;
    let deployed = publish(api, &caller, name, &revision).await;
    if deployed.is_err() {
        api.host.meter.add(Event::FnDeployRefused);
        deploy::discard(&revision.code);
    }
    let function = deployed?;
    Ok(json_reply(200, configuration(&function).to_string()))
}

/// Publishes a deployment. An import error is reported now, to the deployer; the previous revision
/// continues to serve then.
async fn publish(
    api: &Rc<Api>,
    caller: &Caller,
    name: &str,
    revision: &deploy::Revision,
) -> Result<Rc<Function>, Refusal> {
    if let Some(other) = revision.manifest.tenant.as_ref().filter(|named| !caller.is(named)) {
        let why = format!(
            "tenant: the key is one of tenant {}, which cannot deploy for tenant {other}; leave \
             tenant out of the manifest, or sign with a key of {other}",
            revision.tenant
        );
        return Err(Refusal::Denied(Denial::Access, why));
    }
    let made = api.host.make(name, revision.clone());
    let function = made.map_err(|error| Refusal::Parameter(error.to_string()))?;
    let wrong = |why| Refusal::Parameter(format!("{name} does not start: {why}"));
    let template = api.host.template(&function).await.map_err(wrong)?;
    if api.host.config.check_imports {
        trial::check(&api.host, &function, template).await.map_err(wrong)?;
    }
    // Another deployment may have been published meanwhile, and the rules may have changed.
    free(api, caller, name)?;
    api.host.permit(&function).map_err(|error| Refusal::Parameter(error.to_string()))?;
    deploy::commit(revision).map_err(|error| Refusal::Service(error.to_string()))?;
    api.host.publish(&function);
    Ok(function)
}

async fn state(api: &Api, caller: &Caller) -> Value {
    let host = &api.host;
    let mut instances = Vec::new();
    let is_own = |function: &Function| caller.is(&function.tenant.name);
    for attached_instance in host
        .attached_instances()
        .into_iter()
        .filter(|attached_instance| is_own(&attached_instance.function))
    {
        instances.push(json!({
            "id": attached_instance.id,
            "function": attached_instance.function.name,
            "state": if attached_instance.is_running() { "busy" } else { "idle" },
            "origin": attached_instance.origin,
            "usage": attached_instance.usage(),
        }));
        // The measurement of one instance takes time: invocations continue in between.
        tokio::task::yield_now().await;
    }
    let templates: Vec<Value> = host
        .functions()
        .iter()
        .filter(|function| is_own(function))
        .filter_map(|function| {
            let usage = Host::template_usage(function)?;
            Some(json!({"function": function.name, "usage": usage}))
        })
        .collect();
    let tenants = host.tenants.all().into_iter().filter(|tenant| caller.is(&tenant.name));
    let workers: Vec<Value> =
        tenants.map(|tenant| json!({"tenant": tenant.name, "pid": tenant.pid()})).collect();
    let census = host.census();
    let mut state = json!({
        "gateway_pid": std::process::id(),
        "workers": workers,
        "templates": templates,
        "instances": instances,
        "charged_bytes": census.charged_bytes,
        "starting": census.starting,
        "waiting": census.waiting,
    });
    if let (Some(state), Value::Object(about)) = (state.as_object_mut(), (api.about)()) {
        state.extend(about);
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_objects() {
        let mut headers = HeaderMap::new();
        headers.append(HINT_HEADER, "in/a%20b".parse().unwrap());
        headers.append(HINT_HEADER, "in/c".parse().unwrap());
        let keys: Vec<_> = hinted(&headers).unwrap().into_iter().map(|o| o.key).collect();
        assert_eq!(keys, ["a b", "c"]);
        headers.append(HINT_HEADER, "bucket".parse().unwrap());
        assert_eq!(hinted(&headers).unwrap_err().status(), 400);
    }
}
