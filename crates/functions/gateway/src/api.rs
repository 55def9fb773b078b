//! The HTTP server: Lambda's Invoke API, and the own API of `unlade fn`. The life cycle of functions
//! is in [`lambda_api`], and CloudFormation's API in [`form`].

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use unlade_fn_model::lambda::{
    ASYNC_EVENT_BYTES_MAX, Denial, EVENT_BYTES_MAX, InvocationType, Refusal, UNHANDLED,
};
use unlade_fn_model::lifecycle::{Qualifier, Reference, Version};
use unlade_fn_model::log::Wanted;
use unlade_fn_model::manifest::is_name;
use unlade_fn_stacks::query::FORM_BYTES_MAX;
use unlade_guest_protocol::control::ObjectName;

use crate::answer::{Reply, json_reply, refuse, set};
use crate::archive::CODE_BYTES_MAX;
use crate::auth::Caller;
use crate::call_context::{self, CLIENT_CONTEXT_HEADER, TRACE_HEADER};
use crate::denials::{Denials, Denied};
use crate::draw::draw;
use crate::events::Events;
use crate::function::{Function, key};
use crate::host::Host;
use crate::install;
use crate::invoke::{Answer, Input, invoke};
use crate::lambda_api::{self, Operation, View};
use crate::permission::may_invoke;
use crate::request::{AuthenticatedRequest, Query, compare, header, identify, unpercent};
use crate::stacks::{StackService, form};

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
    /// The count and the log of denied requests.
    pub denials: Denials,
    /// Stacks of CloudFormation.
    pub stacks: Rc<StackService>,
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
            let work = tokio::task::spawn_local(answer(api, request, peer));
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

/// The operation of a request: its method and path.
enum Route {
    /// One of the life cycle.
    Life(Operation),
    /// The invocation of this function; the name is percent-encoded.
    Invocation(String),
    /// The deployment of this function by `unlade fn`.
    Deployment(String),
    /// The log of this function.
    Logs(String),
    /// The state of the gateway.
    State,
    /// An operation in a form: of CloudFormation, or STS.
    Form,
}

impl Route {
    /// The route of a request; `None` if it is not served.
    fn of(method: &Method, path: &str) -> Option<Route> {
        let parts: Vec<&str> = path.trim_end_matches('/').split('/').skip(1).collect();
        if let Some(operation) = Operation::of(method, &parts) {
            return Some(Route::Life(operation));
        }
        Some(match (method, parts.as_slice()) {
            (&Method::POST, ["2015-03-31", "functions", name, "invocations"]) => {
                Route::Invocation((*name).to_owned())
            }
            (&Method::PUT, ["unlade", "v1", "functions", name]) => {
                Route::Deployment((*name).to_owned())
            }
            (&Method::GET, ["unlade", "v1", "functions", name, "logs"]) => {
                Route::Logs((*name).to_owned())
            }
            (&Method::GET, ["unlade", "v1", "state"]) => Route::State,
            (&Method::POST, []) => Route::Form,
            _ => return None,
        })
    }
}

async fn answer(api: Rc<Api>, request: Request<Incoming>, peer: SocketAddr) -> Reply {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut caller = None;
    let routed = route(&api, request, peer, &mut caller).await;
    routed.unwrap_or_else(|refusal| {
        let denied = Denied { method: method.as_str(), path: &path, caller: caller.as_ref(), peer };
        api.denials.note(&api.host.meter, &refusal, denied);
        match Route::of(&method, &path) {
            Some(Route::Form) => form::refuse(&refusal),
            _ => refuse(&refusal),
        }
    })
}

async fn route(
    api: &Rc<Api>,
    request: Request<Incoming>,
    peer: SocketAddr,
    caller: &mut Option<Caller>,
) -> Result<Reply, Refusal> {
    if request.headers().contains_key("origin") {
        // A web page in a browser on this machine is not a valid caller.
        return Err(Refusal::Unsupported("requests of browsers are not served".to_owned()));
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let route = Route::of(&method, &path);
    let bytes_max = match &route {
        Some(Route::Life(operation)) => operation.body_bytes_max(),
        Some(Route::Form) => FORM_BYTES_MAX,
        _ => EVENT_BYTES_MAX,
    };
    let asked = identify(&api.host, request, bytes_max).await?;
    *caller = Some(asked.caller.clone());
    let may_invoke_only = matches!(asked.caller, Caller::Service(_));
    if may_invoke_only && !matches!(route, Some(Route::Invocation(_))) {
        let why = format!("{} may invoke functions, and nothing else", asked.caller);
        return Err(Refusal::Denied(Denial::Access, why));
    }
    match route {
        Some(Route::Life(operation)) => lambda_api::serve(&api.host, operation, asked).await,
        Some(Route::Invocation(name)) => invocation(api, &unpercent(&name)?, asked, peer).await,
        Some(Route::Deployment(name)) => deployment(api, &unpercent(&name)?, asked).await,
        Some(Route::Logs(name)) => logs(api, &unpercent(&name)?, asked).await,
        Some(Route::Form) => form::serve(&api.host, &api.stacks, asked).await,
        Some(Route::State) => {
            asked.body.signed(EVENT_BYTES_MAX).await?;
            Ok(json_reply(200, state(api, &asked.caller).await.to_string()))
        }
        None => Err(Refusal::Unsupported(format!(
            "{method} {path} is not served here; the reference of the API lists what is"
        ))),
    }
}

/// Finds the version of a function that serves an invocation. Another tenant's function is
/// reported as absent, unless its resource policy allows the invocation.
fn find(
    host: &Host,
    caller: &Caller,
    (text, qualifier): (&str, Option<&str>),
    request: (&HeaderMap, IpAddr),
) -> Result<Rc<Function>, Refusal> {
    let Reference { name, qualifier } = Reference::parse(text, qualifier)?;
    let absent = || Refusal::NotFound(name.clone());
    let mut is_allowed = false;
    let version = match host.registry.get(&name) {
        Some(record) if !caller.is(&record.tenant) => {
            is_allowed = may_invoke(caller, (&name, &record, qualifier.as_ref()), request);
            if !is_allowed {
                return Err(Refusal::Foreign(name));
            }
            record.choose(qualifier.as_ref(), draw())?
        }
        Some(record) => record.choose(qualifier.as_ref(), draw())?,
        None if matches!(qualifier, None | Some(Qualifier::Version(Version::Latest))) => {
            Version::Latest
        }
        None => return Err(absent()),
    };
    let found = host.function(&key(&name, version)).ok_or_else(absent)?;
    match is_allowed || caller.is(&found.tenant.name) {
        true => Ok(found),
        false => Err(Refusal::Foreign(name)),
    }
}

async fn invocation(
    api: &Rc<Api>,
    name: &str,
    asked: AuthenticatedRequest,
    peer: SocketAddr,
) -> Result<Reply, Refusal> {
    let AuthenticatedRequest { caller, head, body } = asked;
    let query = Query::parse(head.uri.query().unwrap_or_default())?;
    let place = (name, query.get("Qualifier"));
    let function = find(&api.host, &caller, place, (&head.headers, peer.ip()))?;
    let kind = InvocationType::parse(header(&head.headers, "x-amz-invocation-type"))?;
    let wants_log = header(&head.headers, "x-amz-log-type") == Some("Tail");
    // A caller of another tenant names no objects that the host reads for the function.
    let objects = match caller.is(&function.tenant.name) {
        true => hinted(&head.headers)?,
        false => Vec::new(),
    };
    let client_context = head.headers.get(CLIENT_CONTEXT_HEADER).map(|value| value.as_bytes());
    let client_context = client_context.map(call_context::client_context).transpose()?;
    let trace = header(&head.headers, TRACE_HEADER).filter(|trace| call_context::is_trace(trace));
    let trace = trace.map(str::to_owned);
    let bytes_max = match kind {
        InvocationType::Event => ASYNC_EVENT_BYTES_MAX,
        _ => EVENT_BYTES_MAX,
    };
    let event = body.signed(bytes_max).await.map_err(|refusal| match (kind, refusal) {
        (InvocationType::Event, Refusal::TooLarge(limit)) => Refusal::EventTooLarge(limit),
        (_, refusal) => refusal,
    })?;
    if !event.is_empty() {
        let parsed = serde_json::from_slice::<serde::de::IgnoredAny>(&event);
        parsed.map_err(|error| Refusal::Content(error.to_string()))?;
    }
    let input = Input { event: event.into(), objects, client_context, trace, invocation: None };
    match kind {
        InvocationType::DryRun => Ok(json_reply(204, "")),
        InvocationType::Event => {
            let qualifier = Reference::parse(place.0, place.1)?.qualifier;
            let accepted = api.events.accept(&api.host, &function, qualifier.as_ref(), input);
            let number = accepted.await?;
            let mut reply = json_reply(202, "");
            set(&mut reply, "x-amzn-requestid", &number);
            Ok(reply)
        }
        InvocationType::RequestResponse => {
            let answer = invoke(&api.host, &function, input).await?;
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
    let Answer { invocation, result, is_error, log_tail, served, timings, .. } = answer;
    let mut reply = json_reply(200, result);
    set(&mut reply, "x-amzn-requestid", &invocation);
    set(&mut reply, "x-amz-executed-version", &function.version.to_string());
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
    if wants_log {
        let log = base64::engine::general_purpose::STANDARD.encode(log_tail);
        set(&mut reply, "x-amz-log-result", &log);
    }
    reply
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
    install::free(&api.host, &caller, name)?;
    let (archive, due) = body.collect(CODE_BYTES_MAX as usize).await?;
    compare_off_thread(&archive, due).await?;
    let record = install::deploy_tar(&api.host, &caller, name, archive).await?;
    let view = View { host: &api.host, name, record: &record };
    Ok(json_reply(200, view.configuration(Version::Latest)?.to_string()))
}

/// A part of the log of a function, over all of its versions.
async fn logs(api: &Api, name: &str, asked: AuthenticatedRequest) -> Result<Reply, Refusal> {
    let AuthenticatedRequest { caller, head, body } = asked;
    body.signed(EVENT_BYTES_MAX).await?;
    let query = Query::parse(head.uri.query().unwrap_or_default())?;
    let number = |key: &str| {
        let text = query.get(key).unwrap_or("0");
        text.parse().map_err(|_| Refusal::Parameter(format!("{key}: {text:?} is no number")))
    };
    let (after, since_ms) = (number("after")?, number("since_ms")?);
    let wanted = Wanted { after, since_ms, request: query.get("request").map(str::to_owned) };
    let functions = api.host.functions();
    let found = functions.iter().find(|function| function.name == name);
    match found.ok_or_else(|| Refusal::NotFound(name.to_owned()))? {
        found if caller.is(&found.tenant.name) => {
            let page = found.observed.log.page(&wanted);
            let page = serde_json::to_vec(&page).map_err(|e| Refusal::Service(e.to_string()))?;
            Ok(json_reply(200, page))
        }
        _ => Err(Refusal::Foreign(name.to_owned())),
    }
}

/// Compares a long body with the signed hash, beside the requests of others.
async fn compare_off_thread(archive: &Bytes, due: Option<String>) -> Result<(), Refusal> {
    let archive = archive.clone();
    let compared = tokio::task::spawn_blocking(move || compare(&archive, due.as_deref())).await;
    compared.map_err(|error| Refusal::Service(error.to_string()))?
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
            "frozen": attached_instance.instance.is_frozen(),
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
        "functions": figures(host, caller),
        "starting": census.starting,
        "waiting": census.waiting,
    });
    if let (Some(state), Value::Object(about)) = (state.as_object_mut(), (api.about)()) {
        state.extend(about);
    }
    state
}

/// The figures of the caller's functions, each over all of its versions.
fn figures(host: &Host, caller: &Caller) -> Vec<Value> {
    let functions = host.functions();
    let own = functions.iter().filter(|function| caller.is(&function.tenant.name));
    let mut instances: BTreeMap<String, usize> = BTreeMap::new();
    for attached_instance in host.attached_instances() {
        *instances.entry(attached_instance.function.name.clone()).or_default() += 1;
    }
    let mut by_name = BTreeMap::new();
    for function in own {
        by_name.entry(function.name.clone()).or_insert_with(|| {
            let mut figures = function.observed.figures();
            figures["instances"] = instances.get(&function.name).copied().unwrap_or(0).into();
            figures
        });
    }
    by_name.into_values().collect()
}

#[cfg(test)]
mod denied;

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
