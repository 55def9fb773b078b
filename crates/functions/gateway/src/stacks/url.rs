//! `AWS::Lambda::Url`, by the operations of Lambda's API.

use serde_json::{Map, Value};
use unlade_fn_model::lifecycle::{Reference, arn};

use super::outcome::{Done, Failed, deleted};
use super::properties::{only, required, text_of, typed};
use super::task::Task;
use crate::config::REGION;
use crate::lambda_api::{self, OperationKind, Order};

/// The advice about other properties.
pub const ADVICE: &str = "Lambda's API at this server does not serve it";
/// Properties of a URL.
pub const PROPERTIES: &[&str] =
    &["AuthType", "Cors", "InvokeMode", "Qualifier", "TargetFunctionArn"];
/// Properties that name the function.
const TARGET: [&str; 2] = ["Qualifier", "TargetFunctionArn"];

async fn perform(
    task: &Task<'_>,
    kind: OperationKind,
    reference: &Reference,
    parameters: Map<String, Value>,
) -> Result<Value, unlade_fn_model::lambda::Refusal> {
    let qualifier = reference.qualifier.as_ref().map(ToString::to_string);
    let query = qualifier.as_deref().map(|qualifier| ("Qualifier", qualifier));
    let query: Vec<(&str, &str)> = query.into_iter().collect();
    let order =
        Order { kind: Some(kind), target: &reference.name, item: "", query: &query, parameters };
    lambda_api::perform(task.host, task.tenant, order).await
}

fn parameters(properties: &Value) -> Result<Map<String, Value>, Failed> {
    only("AWS::Lambda::Url", properties, PROPERTIES, ADVICE)?;
    let mut own = typed(properties);
    own.retain(|name, _| !TARGET.contains(&name.as_str()));
    Ok(own)
}

fn done(reference: &Reference, described: &Value) -> Done {
    let qualifier = reference.qualifier.as_ref().map(ToString::to_string);
    let arn = arn(REGION, &reference.name, qualifier.as_deref());
    let url = described["FunctionUrl"].clone();
    Done::new(arn.clone()).with("FunctionArn", arn).with("FunctionUrl", url)
}

/// Makes a URL.
///
/// # Errors
/// The function has one already, or it is refused.
pub async fn create(task: &Task<'_>, properties: &Value) -> Result<Done, Failed> {
    let parameters = parameters(properties)?;
    let target = required(properties, "TargetFunctionArn")?;
    let qualifier = properties.get("Qualifier").and_then(text_of);
    let reference = Reference::parse(&target, qualifier.as_deref())?;
    let record = task.record(&reference.name);
    let is_there = record.is_some_and(|own| own.url(reference.qualifier.as_ref()).is_ok());
    task.claim(&format!("the URL of {target}"), is_there).await?;
    let described = match is_there {
        true => perform(task, OperationKind::GetFunctionUrlConfig, &reference, Map::new()).await?,
        false => {
            perform(task, OperationKind::CreateFunctionUrlConfig, &reference, parameters).await?
        }
    };
    Ok(done(&reference, &described))
}

/// Changes a URL, whose address stays.
///
/// # Errors
/// It is refused.
pub async fn update(task: &Task<'_>, id: &str, properties: &Value) -> Result<Done, Failed> {
    let mut parameters = parameters(properties)?;
    // An empty configuration takes away what is there.
    parameters.entry("Cors").or_insert_with(|| Map::new().into());
    let reference = Reference::parse(id, None)?;
    let kind = OperationKind::UpdateFunctionUrlConfig;
    let described = perform(task, kind, &reference, parameters).await?;
    Ok(done(&reference, &described))
}

/// Deletes a URL.
///
/// # Errors
/// It cannot be stored.
pub async fn delete(task: &Task<'_>, id: &str) -> Result<(), Failed> {
    let reference = Reference::parse(id, None)?;
    let kind = OperationKind::DeleteFunctionUrlConfig;
    deleted(perform(task, kind, &reference, Map::new()).await)
}
