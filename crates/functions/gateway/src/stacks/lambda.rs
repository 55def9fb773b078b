//! Resources of a function: versions, aliases, permissions, event configurations, mappings. By the
//! operations of Lambda's API.

use serde_json::{Map, Value};
use unlade_fn_model::lifecycle::{Reference, arn};

use super::outcome::{Done, Failed, deleted};
use super::properties::{required, text_of, typed};
use super::task::Task;
use crate::auth::sha256;
use crate::config::REGION;
use crate::lambda_api::{self, OperationKind, Order};

/// The name and the qualifier of the function in a property.
fn function(properties: &Value) -> Result<Reference, Failed> {
    Ok(Reference::parse(&required(properties, "FunctionName")?, None)?)
}

/// The properties without these.
fn without(properties: &Value, names: &[&str]) -> Map<String, Value> {
    let mut own = typed(properties);
    own.retain(|name, _| !names.contains(&name.as_str()));
    own
}

/// Sets the provisioned concurrency of a version or an alias, or takes it away.
async fn provision(
    task: &Task<'_>,
    (name, qualifier): (&str, &str),
    (before, after): (&Value, &Value),
) -> Result<(), Failed> {
    const KEY: &str = "ProvisionedConcurrencyConfig";
    let query = [("Qualifier", qualifier)];
    let (kind, parameters) = match (before.get(KEY), typed(after).remove(KEY)) {
        (_, Some(Value::Object(own))) => (OperationKind::PutProvisionedConcurrencyConfig, own),
        (Some(_), None) => (OperationKind::DeleteProvisionedConcurrencyConfig, Map::new()),
        (None, None) => return Ok(()),
        (_, Some(_)) => return Err(Failed::new(format!("{KEY} must be an object"))),
    };
    let order = Order { kind: Some(kind), target: name, item: "", query: &query, parameters };
    lambda_api::perform(task.host, task.tenant, order).await?;
    Ok(())
}

/// The number of the last version of a function.
fn last_version(task: &Task<'_>, name: &str) -> Result<u64, Failed> {
    let record = task.record(name);
    let absent = || Failed::new(format!("Function not found: {}", arn(REGION, name, None)));
    Ok(record.ok_or_else(absent)?.last_version)
}

fn version_done(name: &str, number: &str) -> Done {
    let arn = arn(REGION, name, Some(number));
    Done::new(arn.clone()).with("Version", number).with("FunctionArn", arn)
}

/// Publishes a version.
///
/// # Errors
/// Nothing has changed since the last one, or it is refused.
pub async fn create_version(task: &Task<'_>, properties: &Value) -> Result<Done, Failed> {
    let name = function(properties)?.name;
    let before = task.begin(last_version(task, &name)?.into()).await?;
    let parameters = without(properties, &["FunctionName", "ProvisionedConcurrencyConfig"]);
    let made = task.lambda(OperationKind::PublishVersion, (&name, ""), parameters).await?;
    let number = made["Version"].as_str().unwrap_or_default();
    // Another resource has that version, and would lose it with this one.
    if number.parse::<u64>().ok() <= before.as_u64() {
        return Err(Failed::new(format!(
            "A version for this Lambda function exists ( {number} ). Modify the function to create a new \
             version."
        )));
    }
    let done = version_done(&name, number);
    let provisioned = provision(task, (&name, number), (&Value::Null, properties)).await;
    provisioned.map_err(|failed| failed.left(&done.physical_id))?;
    Ok(done)
}

/// Changes the provisioned concurrency of a version.
///
/// # Errors
/// It is refused.
pub async fn update_version(
    task: &Task<'_>,
    physical_id: &str,
    both: (&Value, &Value),
) -> Result<Done, Failed> {
    let Reference { name, qualifier } = Reference::parse(physical_id, None)?;
    let number = qualifier.map(|qualifier| qualifier.to_string()).unwrap_or_default();
    provision(task, (&name, &number), both).await?;
    Ok(version_done(&name, &number))
}

/// Deletes a version.
///
/// # Errors
/// An alias refers to it.
pub async fn delete_version(task: &Task<'_>, physical_id: &str) -> Result<(), Failed> {
    let Reference { name, qualifier } = Reference::parse(physical_id, None)?;
    let Some(qualifier) = qualifier else {
        return Err(Failed::new(format!("{physical_id} is no version")));
    };
    let qualifier = qualifier.to_string();
    deleted(task.lambda_of(OperationKind::DeleteFunction, &name, &qualifier, Map::new()).await)
}

/// The parameters of an alias: weights are a list in templates.
fn alias_parameters(properties: &Value) -> Result<Map<String, Value>, Failed> {
    let mut own = without(properties, &["FunctionName", "Name", "ProvisionedConcurrencyConfig"]);
    if let Some(version) = own.get("FunctionVersion").and_then(text_of) {
        own.insert("FunctionVersion".to_owned(), version.into());
    }
    let weights =
        own.get_mut("RoutingConfig").and_then(|own| own.get_mut("AdditionalVersionWeights"));
    if let Some(weights) = weights
        && let Value::Array(list) = &*weights
    {
        let wrong = || {
            Failed::new(
                "RoutingConfig: AdditionalVersionWeights has FunctionVersion and FunctionWeight",
            )
        };
        let pair = |one: &Value| {
            Some((text_of(one.get("FunctionVersion")?)?, one.get("FunctionWeight")?.clone()))
        };
        let all: Option<Map<String, Value>> = list.iter().map(pair).collect();
        *weights = Value::Object(all.ok_or_else(wrong)?);
    }
    Ok(own)
}

fn alias_done(name: &str, alias: &str) -> Done {
    let arn = arn(REGION, name, Some(alias));
    Done::new(arn.clone()).with("AliasArn", arn)
}

/// Makes an alias.
///
/// # Errors
/// The name is taken, or it is refused.
pub async fn create_alias(task: &Task<'_>, properties: &Value) -> Result<Done, Failed> {
    let (name, alias) = (function(properties)?.name, required(properties, "Name")?);
    let mut parameters = alias_parameters(properties)?;
    let record = task.record(&name);
    let is_there = record.is_some_and(|record| record.aliases.contains_key(&alias));
    task.claim(&format!("the alias {name}:{alias}"), is_there).await?;
    if !is_there {
        parameters.insert("Name".to_owned(), alias.as_str().into());
        task.lambda(OperationKind::CreateAlias, (&name, ""), parameters).await?;
    }
    let done = alias_done(&name, &alias);
    let provisioned = provision(task, (&name, &alias), (&Value::Null, properties)).await;
    provisioned.map_err(|failed| failed.left(&done.physical_id))?;
    Ok(done)
}

/// Changes an alias.
///
/// # Errors
/// It is refused.
pub async fn update_alias(task: &Task<'_>, both: (&Value, &Value)) -> Result<Done, Failed> {
    let (before, after) = both;
    let (name, alias) = (function(after)?.name, required(after, "Name")?);
    let mut parameters = alias_parameters(after)?;
    if before.get("RoutingConfig").is_some() && after.get("RoutingConfig").is_none() {
        parameters.insert("RoutingConfig".to_owned(), Map::new().into());
    }
    if before.get("Description").is_some() && after.get("Description").is_none() {
        parameters.insert("Description".to_owned(), "".into());
    }
    task.lambda(OperationKind::UpdateAlias, (&name, &alias), parameters).await?;
    provision(task, (&name, &alias), both).await?;
    Ok(alias_done(&name, &alias))
}

/// Deletes an alias.
///
/// # Errors
/// It cannot be deleted.
pub async fn delete_alias(task: &Task<'_>, physical_id: &str) -> Result<(), Failed> {
    let Reference { name, qualifier } = Reference::parse(physical_id, None)?;
    let alias = qualifier.map(|qualifier| qualifier.to_string()).unwrap_or_default();
    deleted(task.lambda(OperationKind::DeleteAlias, (&name, &alias), Map::new()).await)
}

/// Adds a statement to the policy of a function, version or alias. Its name is the generated one.
///
/// # Errors
/// It is refused.
pub async fn create_permission(
    task: &Task<'_>,
    sid: &str,
    properties: &Value,
) -> Result<Done, Failed> {
    let target = required(properties, "FunctionName")?;
    let Reference { name, qualifier } = function(properties)?;
    let record = task.record(&name);
    let has = |policy: &unlade_fn_model::lifecycle::ResourcePolicy| {
        policy.statements.iter().any(|statement| statement.sid == sid)
    };
    let is_there = record.is_some_and(|record| record.policy(qualifier.as_ref()).is_ok_and(has));
    task.claim(&format!("the statement {sid}"), is_there).await?;
    if !is_there {
        let mut parameters = without(properties, &["FunctionName"]);
        parameters.insert("StatementId".to_owned(), sid.into());
        task.lambda(OperationKind::AddPermission, (&target, ""), parameters).await?;
    }
    Ok(Done::new(sid).with("Id", sid))
}

/// Removes a statement.
///
/// # Errors
/// It cannot be removed.
pub async fn delete_permission(
    task: &Task<'_>,
    sid: &str,
    properties: &Value,
) -> Result<(), Failed> {
    let target = required(properties, "FunctionName")?;
    deleted(task.lambda(OperationKind::RemovePermission, (&target, sid), Map::new()).await)
}

/// The function and the qualifier of an event configuration.
fn events_of(properties: &Value) -> Result<(String, String), Failed> {
    Ok((function(properties)?.name, required(properties, "Qualifier")?))
}

/// Makes or changes the configuration of asynchronous invocations.
///
/// # Errors
/// There is one already, or it is refused.
pub async fn put_events(task: &Task<'_>, properties: &Value, is_new: bool) -> Result<Done, Failed> {
    let (name, qualifier) = events_of(properties)?;
    if is_new {
        let parsed = Reference::parse(&name, Some(&qualifier))?.qualifier;
        let record = task.record(&name);
        let is_there = record.is_some_and(|record| record.event_config(parsed.as_ref()).is_ok());
        let what = format!("an event configuration of {name}:{qualifier}");
        task.claim(&what, is_there).await?;
    }
    let parameters = without(properties, &["FunctionName", "Qualifier"]);
    let kind = OperationKind::PutFunctionEventInvokeConfig;
    task.lambda_of(kind, &name, &qualifier, parameters).await?;
    Ok(Done::new(format!("{name}|{qualifier}")))
}

/// Deletes the configuration of asynchronous invocations.
///
/// # Errors
/// It cannot be deleted.
pub async fn delete_events(task: &Task<'_>, properties: &Value) -> Result<(), Failed> {
    let (name, qualifier) = events_of(properties)?;
    let kind = OperationKind::DeleteFunctionEventInvokeConfig;
    deleted(task.lambda_of(kind, &name, &qualifier, Map::new()).await)
}

/// The UUID of a mapping, from the token of its resource: a repeated creation finds the first one.
fn mapping_uuid(token: &str) -> String {
    let hash = sha256(token.as_bytes());
    let part = |from: usize, to: usize| &hash[from..to];
    // The version and the variant of a UUID that is made of a name (RFC 9562).
    format!("{}-{}-8{}-a{}-{}", part(0, 8), part(8, 12), part(13, 16), part(17, 20), part(20, 32))
}

fn mapping_done(uuid: &str) -> Done {
    let account = unlade_fn_model::lifecycle::reference::ACCOUNT;
    let arn = format!("arn:aws:lambda:{REGION}:{account}:event-source-mapping:{uuid}");
    Done::new(uuid).with("Id", uuid).with("EventSourceMappingArn", arn)
}

/// Makes a mapping of a queue to a function.
///
/// # Errors
/// It is refused.
pub async fn create_mapping(task: &Task<'_>, properties: &Value) -> Result<Done, Failed> {
    let uuid = mapping_uuid(&task.action.token);
    let mut all = task.host.registry.all().into_iter();
    // No one else can choose an identifier.
    if !all.any(|(_, record)| record.sources.contains_key(&uuid)) {
        let parameters = typed(properties);
        task.lambda(OperationKind::CreateEventSourceMapping, ("", &uuid), parameters).await?;
    }
    Ok(mapping_done(&uuid))
}

/// Changes a mapping.
///
/// # Errors
/// It is refused.
pub async fn update_mapping(
    task: &Task<'_>,
    uuid: &str,
    (before, after): (&Value, &Value),
) -> Result<Done, Failed> {
    let mut parameters = typed(after);
    for (name, default) in [
        ("BatchSize", Value::from(10)),
        ("MaximumBatchingWindowInSeconds", 0.into()),
        ("Enabled", true.into()),
        ("FunctionResponseTypes", Vec::<Value>::new().into()),
        ("ScalingConfig", Map::new().into()),
    ] {
        if before.get(name).is_some() && after.get(name).is_none() {
            parameters.insert(name.to_owned(), default);
        }
    }
    task.lambda(OperationKind::UpdateEventSourceMapping, (uuid, ""), parameters).await?;
    Ok(mapping_done(uuid))
}

/// Deletes a mapping.
///
/// # Errors
/// It cannot be deleted.
pub async fn delete_mapping(task: &Task<'_>, uuid: &str) -> Result<(), Failed> {
    deleted(task.lambda(OperationKind::DeleteEventSourceMapping, (uuid, ""), Map::new()).await)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn weights_are_a_list_in_templates() {
        let own = json!({
            "FunctionName": "f", "Name": "live", "FunctionVersion": 2,
            "RoutingConfig": {"AdditionalVersionWeights": [
                {"FunctionVersion": "1", "FunctionWeight": "0.25"}]},
        });
        let due = json!({
            "FunctionVersion": "2",
            "RoutingConfig": {"AdditionalVersionWeights": {"1": 0.25}},
        });
        assert_eq!(Value::Object(alias_parameters(&own).unwrap()), due);
        let wrong =
            json!({"RoutingConfig": {"AdditionalVersionWeights": [{"FunctionVersion": "1"}]}});
        assert!(alias_parameters(&wrong).is_err());
    }

    #[test]
    fn a_mapping_has_one_identifier() {
        let uuid = mapping_uuid("arn:stack#1");
        assert_eq!(uuid, mapping_uuid("arn:stack#1"));
        assert_ne!(uuid, mapping_uuid("arn:stack#2"));
        assert!(uuid::Uuid::parse_str(&uuid).is_ok(), "{uuid}");
    }
}
