//! A request to an HTTP API: its stage and route, the function behind it, the response.

use std::rc::Rc;
use std::time::Duration;

use hyper::body::Incoming;
use unlade_fn_http_event::cors::Preflight;
use unlade_fn_http_event::{Context, Found, Integration, Response};
use unlade_fn_model::lambda::{Denial, Refusal};
use unlade_fn_model::lifecycle::Reference;
use unlade_fn_model::lifecycle::reference::ACCOUNT;
use unlade_metrics::FnHttpEnd;

use super::apis::Served;
use super::call::{Fault, Order, call};
use super::request::{Ended, Head, Web};
use crate::config::REGION;
use crate::denials::Denied;
use crate::permission::may_integrate;

/// A request within an API.
struct Asked<'a> {
    head: &'a Head,
    /// The path at the API, with its stage.
    path: &'a str,
    served: &'a Served,
}

fn failed(end: FnHttpEnd) -> Ended {
    Ended::message(500, end, "Internal Server Error")
}

/// Serves a request to the API of an identifier, with the path at the API.
///
/// # Errors
/// The request has no response of a function.
pub async fn serve(
    web: &Rc<Web>,
    head: &Head,
    (id, path): (&str, &str),
    body: Incoming,
) -> Result<Ended, Ended> {
    let served = web.host.apis.get(id).ok_or_else(Ended::not_found)?;
    let (stage, about, rest) = served.api.stage(path).ok_or_else(Ended::not_found)?;
    let cors = served.api.cors.as_ref();
    if let (Some(cors), Some(asked)) = (cors, Preflight::of(&head.method, &head.headers))
        && !served.router.names(&head.method, rest)
    {
        let headers = cors.preflight(&asked);
        let response = Response { status: 204, headers, body: Vec::new() };
        return Ok(Ended::response(FnHttpEnd::Preflight, response));
    }
    let found = served.router.find(&head.method, rest).ok_or_else(Ended::not_found)?;
    let asked = Asked { head, path, served: &served };
    let context = Context {
        account: ACCOUNT,
        api_id: id,
        domain_name: &head.domain_name,
        request_id: &head.id,
        time_ms: head.time_ms,
        stage,
        stage_variables: &about.variables,
        route_key: found.key,
        resource: found.resource,
        path_parameters: &found.parameters,
        identity: None,
    };
    let ended = integrate(web, &asked, &found, &context, body).await;
    Ok(ended.unwrap_or_else(|ended| ended).with_cors(cors, head))
}

/// Calls the function of a route.
async fn integrate(
    web: &Rc<Web>,
    asked: &Asked<'_>,
    found: &Found<'_, Option<Integration>>,
    context: &Context<'_>,
    body: Incoming,
) -> Result<Ended, Ended> {
    let unavailable = || failed(FnHttpEnd::Unavailable);
    let integration = found.value.as_ref().ok_or_else(unavailable)?;
    let reference = Reference::parse(&integration.function, None);
    let Reference { name, qualifier } = reference.map_err(|_| unavailable())?;
    // A function of another tenant is none.
    let record = web.host.registry.get(&name);
    let record = record.filter(|record| record.tenant == asked.served.api.tenant);
    let record = record.ok_or_else(unavailable)?;
    let place = (name.as_str(), &*record, qualifier.as_ref());
    let arn = route_arn(asked.head, context);
    if !may_integrate(place, &arn, asked.head.peer.ip()) {
        return Err(denied(web, asked.head, &name, &arn));
    }
    let body = web.body(body).await?;
    let timeout = Some(Duration::from_millis(integration.timeout_ms.into()));
    let order = Order { place, format: integration.format, timeout };
    match call(web, asked.head, (asked.path, &body.bytes), context, order).await {
        Ok(mut response) => {
            response.headers.push(("apigw-requestid".to_owned(), asked.head.id.clone()));
            Ok(Ended::response(FnHttpEnd::Answered, response))
        }
        Err(fault) => Err(of_fault(fault)),
    }
}

/// The ARN of the route that a request has, as permissions name it.
fn route_arn(head: &Head, context: &Context<'_>) -> String {
    let (id, stage) = (context.api_id, context.stage);
    let route = match context.resource.strip_prefix('/') {
        Some(path) => format!("{}/{path}", head.method),
        None => context.resource.to_owned(),
    };
    format!("arn:aws:execute-api:{REGION}:{ACCOUNT}:{id}/{stage}/{route}")
}

/// The end of a request whose API may not invoke the function: a fault of the API, as callers see it.
fn denied(web: &Web, head: &Head, function: &str, arn: &str) -> Ended {
    let why = format!(
        "apigateway.amazonaws.com may not invoke the function {function} for {arn}: AddPermission \
         allows it"
    );
    let refusal = Refusal::Denied(Denial::Access, why);
    let (method, path, peer) = (head.method.as_str(), head.path.as_str(), head.peer);
    web.denials.note(&web.host.meter, &refusal, Denied { method, path, caller: None, peer });
    failed(FnHttpEnd::Denied)
}

fn of_fault(fault: Fault) -> Ended {
    let unavailable = |end| Ended::message(503, end, "Service Unavailable");
    match fault {
        Fault::TooLarge => Ended::message(413, FnHttpEnd::TooLarge, "Request Entity Too Large"),
        Fault::Throttled => unavailable(FnHttpEnd::Throttled),
        Fault::Late => unavailable(FnHttpEnd::Late),
        Fault::Failed => failed(FnHttpEnd::FunctionError),
        Fault::Malformed => failed(FnHttpEnd::Malformed),
        Fault::Unavailable => failed(FnHttpEnd::Unavailable),
    }
}
