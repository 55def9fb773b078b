//! A request: to a function URL, here, or to an HTTP API.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::SystemTime;

use hyper::Request;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use unlade_fn_http_event::cors::Preflight;
use unlade_fn_http_event::{Context, Format, Identity, Response};
use unlade_fn_model::lambda::{Denial, Refusal};
use unlade_fn_model::lifecycle::reference::ACCOUNT;
use unlade_fn_model::lifecycle::{FunctionUrl, Qualifier, UrlAuth};
use unlade_metrics::FnHttpEnd;

use super::address::Kind;
use super::body::Held;
use super::call::{Fault, Order, call};
use super::http_api;
use super::request::{Ended, HEAD_BYTES_MAX, Head, Web, head_bytes};
use crate::answer::{Reply, json_reply};
use crate::auth::{self, Caller, sha256};
use crate::denials::Denied;
use crate::permission::{Place, may_use_url, tenant_arn};

/// The account in events of URLs without authentication, as in Lambda.
const ANONYMOUS: &str = "anonymous";
/// The stage and the route of every URL.
const DEFAULT: &str = "$default";

/// Answers a request, and counts its end.
pub async fn answer(web: Rc<Web>, request: Request<Incoming>, peer: SocketAddr) -> Reply {
    let ended = route(&web, request, peer).await.unwrap_or_else(|ended| ended);
    web.count(ended.end);
    ended.reply
}

async fn route(
    web: &Rc<Web>,
    request: Request<Incoming>,
    peer: SocketAddr,
) -> Result<Ended, Ended> {
    let (parts, body) = request.into_parts();
    if head_bytes(&parts) > HEAD_BYTES_MAX {
        let text = "Request Header Fields Too Large";
        return Err(Ended::message(431, FnHttpEnd::Invalid, text));
    }
    let addresses = web.host.addresses();
    let head = Head::new(&parts, peer, addresses.port);
    let head = head.ok_or_else(|| Ended::message(400, FnHttpEnd::Invalid, "Bad Request"))?;
    let target = addresses.target(&head.domain_name, &head.path);
    let target = target.ok_or_else(Ended::not_found)?;
    match target.kind {
        Kind::Api => http_api::serve(web, &head, (target.id, target.path), body).await,
        Kind::Url => url(web, &head, (target.id, target.path), (&parts, body)).await,
    }
}

/// Serves a request to the URL of an identifier, with the path at the URL.
async fn url(
    web: &Rc<Web>,
    head: &Head,
    (id, path): (&str, &str),
    (parts, body): (&Parts, Incoming),
) -> Result<Ended, Ended> {
    let (name, alias) = web.host.registry.url(id).ok_or_else(Ended::not_found)?;
    let record = web.host.registry.get(&name).ok_or_else(Ended::not_found)?;
    let qualifier = Some(alias).filter(|alias| !alias.is_empty()).map(Qualifier::Alias);
    let found = record.url(qualifier.as_ref()).map_err(|_| Ended::not_found())?;
    let cors = found.cors.as_ref();
    if let (Some(cors), Some(asked)) = (cors, Preflight::of(&head.method, &head.headers)) {
        let response = Response { status: 200, headers: cors.preflight(&asked), body: Vec::new() };
        return Ok(Ended::response(FnHttpEnd::Preflight, response));
    }
    let place = (name.as_str(), &*record, qualifier.as_ref());
    let ended = invoked(web, head, path, (found, place), (parts, body)).await;
    Ok(ended.unwrap_or_else(|ended| ended).with_cors(cors, head))
}

/// Invokes the function of a URL for a caller who may.
async fn invoked(
    web: &Rc<Web>,
    head: &Head,
    path: &str,
    (found, place): (&FunctionUrl, Place<'_>),
    (parts, body): (&Parts, Incoming),
) -> Result<Ended, Ended> {
    let source = head.peer.ip();
    let refused = |caller: Option<&Caller>| {
        let action = may_use_url(caller, place, (found.auth, source)).err()?;
        Some(denied(web, head, caller, &forbidden(place, action)))
    };
    let (identity, body) = match found.auth {
        UrlAuth::None => {
            if let Some(ended) = refused(None) {
                return Err(ended);
            }
            (None, web.body(body).await?)
        }
        UrlAuth::Iam => {
            let (caller, key, body) = authenticated(web, head, parts, body).await?;
            if let Some(ended) = refused(Some(&caller)) {
                return Err(ended);
            }
            (identity(&caller, key), body)
        }
    };
    let nothing = BTreeMap::new();
    let context = Context {
        account: if found.auth == UrlAuth::None { ANONYMOUS } else { ACCOUNT },
        api_id: &found.id,
        domain_name: &head.domain_name,
        request_id: &head.id,
        time_ms: head.time_ms,
        stage: DEFAULT,
        stage_variables: &nothing,
        route_key: DEFAULT,
        resource: DEFAULT,
        path_parameters: &nothing,
        identity: identity.as_ref(),
    };
    let order = Order { place, format: Format::V2, timeout: None };
    match call(web, head, (path, &body.bytes), &context, order).await {
        Ok(mut response) => {
            response.headers.push(("x-amzn-requestid".to_owned(), head.id.clone()));
            Ok(Ended::response(FnHttpEnd::Answered, response))
        }
        Err(fault) => Err(of_fault(fault)),
    }
}

fn of_fault(fault: Fault) -> Ended {
    let failed = |end| Ended::message(502, end, "Internal Server Error");
    match fault {
        Fault::TooLarge => Ended::message(413, FnHttpEnd::TooLarge, "Request Entity Too Large"),
        Fault::Throttled => Ended::message(429, FnHttpEnd::Throttled, "Rate Exceeded"),
        Fault::Late => failed(FnHttpEnd::Late),
        Fault::Failed => failed(FnHttpEnd::FunctionError),
        Fault::Malformed => failed(FnHttpEnd::Malformed),
        Fault::Unavailable => failed(FnHttpEnd::Unavailable),
    }
}

type Authenticated = (Caller, Option<String>, Held);

/// Reads the body of a signed request; returns the caller and the access key with it.
async fn authenticated(
    web: &Rc<Web>,
    head: &Head,
    parts: &Parts,
    body: Incoming,
) -> Result<Authenticated, Ended> {
    let refused = |refusal: Refusal| denied(web, head, None, &refusal);
    let target = parts.uri.path_and_query().map_or("/", |target| target.as_str());
    let signed = auth::Head { method: &head.method, target, headers: &parts.headers };
    let claim = match &*web.host.keys.borrow() {
        Some(keys) => Some(keys.claim_at_url(signed, SystemTime::now()).map_err(refused)?),
        None => None,
    };
    let Some(claim) = claim else {
        return Ok((Caller::Anyone, None, web.body(body).await?));
    };
    let announced = claim.announced().map_err(refused)?.map(str::to_owned);
    let key = Some(claim.access_key().to_owned());
    // The signature of a hash in a field is verified before the body is read.
    if let Some(hash) = announced {
        let caller = claim.verify(signed, &hash).map_err(refused)?;
        let body = web.body(body).await?;
        crate::request::compare(&body.bytes, Some(&hash)).map_err(refused)?;
        return Ok((caller, key, body));
    }
    let body = web.body(body).await?;
    let caller = claim.verify(signed, &sha256(&body.bytes)).map_err(refused)?;
    Ok((caller, key, body))
}

fn identity(caller: &Caller, key: Option<String>) -> Option<Identity> {
    let (name, arn) = match caller {
        Caller::Anyone => return None,
        Caller::Tenant(name) => (name.clone(), tenant_arn(name)),
        Caller::Service(name) => (name.clone(), name.clone()),
    };
    let (access_key, account) = (key.unwrap_or_default(), ACCOUNT.to_owned());
    Some(Identity { access_key, account, arn, name })
}

fn forbidden((name, ..): Place<'_>, action: &str) -> Refusal {
    let why = format!(
        "the resource policy of the function {name} does not allow {action} at its URL: AddPermission \
         with FunctionUrlAuthType (lambda:InvokeFunctionUrl) and with InvokedViaFunctionUrl \
         (lambda:InvokeFunction) allows it"
    );
    Refusal::Denied(Denial::Access, why)
}

/// The end of a request that is denied. The log has the reason; a caller without a right gets none.
fn denied(web: &Web, head: &Head, caller: Option<&Caller>, refusal: &Refusal) -> Ended {
    let (method, path, peer) = (head.method.as_str(), head.path.as_str(), head.peer);
    web.denials.note(&web.host.meter, refusal, Denied { method, path, caller, peer });
    match refusal {
        Refusal::Denied(Denial::Access | Denial::Missing, _) => {
            Ended::message(403, FnHttpEnd::Denied, "Forbidden")
        }
        _ => Ended { end: FnHttpEnd::Denied, reply: json_reply(refusal.status(), refusal.body()) },
    }
}
