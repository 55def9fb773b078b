//! Lambda's REST API for the life cycle of functions, as SDKs and tools call it. One file for each
//! family of operations; `docs/functions/api.md` lists all of them.

mod account;
mod aliases;
mod concurrency;
mod create;
mod event_configs;
mod functions;
mod operation;
mod parameters;
mod permissions;
mod settings;
mod sources;
mod tags;
mod update;
mod urls;
mod versions;
mod view;

use std::rc::Rc;

use http_body_util::BodyExt as _;
use serde_json::{Map, Value};
use unlade_fn_model::lambda::Refusal;

use crate::answer::Reply;
use crate::auth::Caller;
use crate::host::Host;
use crate::request::{AuthenticatedRequest, Query, unpercent};

pub(crate) use operation::Kind as OperationKind;
pub use operation::Operation;
#[cfg(test)]
pub(crate) use operation::example;
use parameters::Parameters;
use view::Call;
pub use view::View;

/// Serves a request of an authenticated caller.
///
/// # Errors
/// The request is refused.
pub async fn serve(
    host: &Rc<Host>,
    operation: Operation,
    asked: AuthenticatedRequest,
) -> Result<Reply, Refusal> {
    let bytes_max = operation.body_bytes_max();
    let parameters = Parameters::read(asked.body, bytes_max).await?;
    let query = Query::parse(asked.head.uri.query().unwrap_or_default())?;
    let Operation { kind, target, item } = operation;
    let (target, item) = (unpercent(&target)?, unpercent(&item)?);
    act(kind, Call { host, caller: asked.caller, target, item, query, parameters }).await
}

/// An operation that the gateway itself asks for, in the name of a tenant.
pub(crate) struct Order<'a> {
    /// The operation; `None` changes code and configuration of a function in one step.
    pub kind: Option<OperationKind>,
    /// The function, or the UUID of a mapping.
    pub target: &'a str,
    /// The alias, the statement, or the UUID of a new mapping.
    pub item: &'a str,
    /// The query.
    pub query: &'a [(&'a str, &'a str)],
    /// The body.
    pub parameters: Map<String, Value>,
}

/// Performs an operation as for a request of a tenant; returns the body of the response.
///
/// # Errors
/// As for the request.
pub(crate) async fn perform(
    host: &Rc<Host>,
    tenant: &str,
    order: Order<'_>,
) -> Result<Value, Refusal> {
    let call = Call {
        host,
        caller: Caller::Tenant(tenant.to_owned()),
        target: order.target.to_owned(),
        item: order.item.to_owned(),
        query: Query::of(order.query),
        parameters: Parameters::of(order.parameters),
    };
    let reply = match order.kind {
        Some(kind) => act(kind, call).await?,
        None => update::whole(call).await?,
    };
    let Ok(body) = reply.into_body().collect().await;
    let body = body.to_bytes();
    match body.is_empty() {
        true => Ok(Value::Null),
        false => serde_json::from_slice(&body).map_err(|e| Refusal::Service(e.to_string())),
    }
}

async fn act(kind: OperationKind, call: Call<'_>) -> Result<Reply, Refusal> {
    use self::operation::Kind;
    match kind {
        Kind::CreateFunction => create::create(call).await,
        Kind::ListFunctions => functions::list(&call),
        Kind::GetFunction => functions::get(&call),
        Kind::GetFunctionConfiguration => functions::configuration(&call),
        Kind::DeleteFunction => functions::delete(&call).await,
        Kind::UpdateFunctionCode => update::code(call).await,
        Kind::UpdateFunctionConfiguration => update::configuration(call).await,
        Kind::PublishVersion => versions::publish(call).await,
        Kind::ListVersionsByFunction => versions::list(&call),
        Kind::CreateAlias => aliases::create(call).await,
        Kind::GetAlias => aliases::get(&call),
        Kind::UpdateAlias => aliases::update(call).await,
        Kind::DeleteAlias => aliases::delete(&call).await,
        Kind::ListAliases => aliases::list(&call),
        Kind::PutFunctionConcurrency => concurrency::reserve(call).await,
        Kind::GetFunctionConcurrency => concurrency::reserved(&call),
        Kind::DeleteFunctionConcurrency => concurrency::unreserve(&call).await,
        Kind::PutProvisionedConcurrencyConfig => concurrency::provision(call).await,
        Kind::GetProvisionedConcurrencyConfig => concurrency::provisioned(&call),
        Kind::DeleteProvisionedConcurrencyConfig => concurrency::unprovision(&call).await,
        Kind::TagResource => tags::tag(call).await,
        Kind::UntagResource => tags::untag(&call).await,
        Kind::ListTags => tags::list(&call),
        Kind::AddPermission => permissions::add(call).await,
        Kind::RemovePermission => permissions::remove(&call).await,
        Kind::GetPolicy => permissions::get(&call),
        Kind::PutFunctionEventInvokeConfig => event_configs::put(call, true).await,
        Kind::UpdateFunctionEventInvokeConfig => event_configs::put(call, false).await,
        Kind::GetFunctionEventInvokeConfig => event_configs::get(&call),
        Kind::DeleteFunctionEventInvokeConfig => event_configs::delete(&call).await,
        Kind::ListFunctionEventInvokeConfigs => event_configs::list(&call),
        Kind::CreateEventSourceMapping => sources::create(call).await,
        Kind::GetEventSourceMapping => sources::get(&call),
        Kind::ListEventSourceMappings => sources::list(&call),
        Kind::UpdateEventSourceMapping => sources::update(call).await,
        Kind::DeleteEventSourceMapping => sources::delete(&call).await,
        Kind::CreateFunctionUrlConfig => urls::create(call).await,
        Kind::GetFunctionUrlConfig => urls::get(&call),
        Kind::UpdateFunctionUrlConfig => urls::update(call).await,
        Kind::DeleteFunctionUrlConfig => urls::delete(&call).await,
        Kind::ListFunctionUrlConfigs => urls::list(&call),
        Kind::GetAccountSettings => Ok(account::settings(&call)),
        Kind::GetFunctionCodeSigningConfig => account::code_signing(&call),
    }
}
