//! `AWS::DynamoDB::Table`, at the tenant's service.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::outcome::{Done, Failed};
use super::properties::{changed, only, typed};
use super::task::Task;
use crate::behalf::CallError;
use crate::config::REGION;
use crate::service_request::of_json;

pub const PROPERTIES: &[&str] = &[
    "AttributeDefinitions",
    "BillingMode",
    "DeletionProtectionEnabled",
    "GlobalSecondaryIndexes",
    "KeySchema",
    "LocalSecondaryIndexes",
    "ProvisionedThroughput",
    "SSESpecification",
    "StreamSpecification",
    "TableName",
    "Tags",
    "TimeToLiveSpecification",
];
/// Properties that can change in place here.
const CHANGEABLE: [&str; 4] =
    ["BillingMode", "ProvisionedThroughput", "Tags", "TimeToLiveSpecification"];
pub const ADVICE: &str = "Make the table outside of the stack, and give its name as a parameter";
/// Interval of the looks at a table that changes.
const PAUSE: Duration = Duration::from_secs(1);
/// Most looks.
const LOOKS_MAX: usize = 900;

async fn ask(task: &Task<'_>, operation: &str, parameters: &Value) -> Result<Value, CallError> {
    let request = of_json(("dynamodb", "DynamoDB_20120810", "1.0"), REGION, operation, parameters);
    let answer = task.call(request).await?;
    Ok(serde_json::from_slice(&answer).unwrap_or_default())
}

fn failed(operation: &str, error: &CallError) -> Failed {
    Failed::new(format!("{operation}: {error}"))
}

fn is_absent(error: &CallError) -> bool {
    matches!(error, CallError::Service { text, .. } if text.contains("ResourceNotFoundException"))
}

/// The description of a table; `None` if there is none.
async fn look(task: &Task<'_>, name: &str) -> Result<Option<Value>, Failed> {
    match ask(task, "DescribeTable", &json!({ "TableName": name })).await {
        Ok(found) => Ok(Some(found["Table"].clone())),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(failed("DescribeTable", &error)),
    }
}

/// Waits until a table is active, or gone.
async fn settled(task: &Task<'_>, name: &str) -> Result<Option<Value>, Failed> {
    for _ in 0..LOOKS_MAX {
        match look(task, name).await? {
            None => return Ok(None),
            Some(table) if table["TableStatus"] == "ACTIVE" => return Ok(Some(table)),
            Some(_) => tokio::time::sleep(PAUSE).await,
        }
    }
    Err(Failed::new(format!("the table {name} has not become active or gone within {LOOKS_MAX} s")))
}

fn done(name: &str, table: &Value) -> Done {
    let done = Done::new(name).with("Arn", table["TableArn"].clone());
    match table.get("LatestStreamArn") {
        Some(stream) => done.with("StreamArn", stream.clone()),
        None => done,
    }
}

/// Tags as the service has them.
fn listed(labels: &BTreeMap<String, String>) -> Value {
    labels.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect()
}

/// Sets the tags of a table, and takes others away.
async fn retag(
    task: &Task<'_>,
    table: &Value,
    (before, after): (&Value, &Value),
) -> Result<(), Failed> {
    let (arn, gone) = (&table["TableArn"], task.labels_gone(before, after)?);
    if !gone.is_empty() {
        let untagged =
            ask(task, "UntagResource", &json!({"ResourceArn": arn, "TagKeys": gone})).await;
        untagged.map_err(|error| failed("UntagResource", &error))?;
    }
    let labels = task.labels(after)?;
    if !labels.is_empty() {
        let parameters = json!({"ResourceArn": arn, "Tags": listed(&labels)});
        let tagged = ask(task, "TagResource", &parameters).await;
        tagged.map_err(|error| failed("TagResource", &error))?;
    }
    Ok(())
}

/// The parameters of `CreateTable`.
fn parameters(task: &Task<'_>, name: &str, properties: &Value) -> Result<Value, Failed> {
    only("AWS::DynamoDB::Table", properties, PROPERTIES, ADVICE)?;
    let mut own = typed(properties);
    own.remove("TimeToLiveSpecification");
    own.insert("TableName".to_owned(), name.into());
    // In the API it says so itself.
    if let Some(Value::Object(stream)) = own.get_mut("StreamSpecification") {
        stream.insert("StreamEnabled".to_owned(), true.into());
    }
    if let Some(Value::Object(encryption)) = own.get_mut("SSESpecification")
        && let Some(enabled) = encryption.remove("SSEEnabled")
    {
        encryption.insert("Enabled".to_owned(), enabled);
    }
    let labels = task.labels(properties)?;
    own.remove("Tags");
    if !labels.is_empty() {
        own.insert("Tags".to_owned(), listed(&labels));
    }
    Ok(Value::Object(own))
}

/// Makes a table, and waits until it is active.
///
/// # Errors
/// The name is taken, or the service refuses it.
pub async fn create(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    let parameters = parameters(task, name, properties)?;
    let is_there = look(task, name).await?.is_some();
    task.claim(&format!("the table {name}"), is_there).await?;
    if !is_there {
        let made = ask(task, "CreateTable", &parameters).await;
        made.map_err(|error| Failed::creation("CreateTable", name, &error))?;
    }
    let table = settled(task, name).await.map_err(|failed| failed.left(name))?;
    let gone = || Failed::new(format!("the table {name} was deleted by someone else"));
    let table = table.ok_or_else(gone)?;
    let set = set_lifetime(task, name, (&Value::Null, properties)).await;
    set.map_err(|failed| failed.left(name))?;
    Ok(done(name, &table))
}

/// Sets the attribute with the end of an item's life. Setting it again is refused by the service, so it is
/// compared first.
async fn set_lifetime(
    task: &Task<'_>,
    name: &str,
    (before, after): (&Value, &Value),
) -> Result<(), Failed> {
    const KEY: &str = "TimeToLiveSpecification";
    let (old, new) = (typed(before).remove(KEY), typed(after).remove(KEY));
    let wanted = match (old, new) {
        (_, Some(new)) => new,
        (Some(mut old), None) => {
            old["Enabled"] = false.into();
            old
        }
        (None, None) => return Ok(()),
    };
    let about = ask(task, "DescribeTimeToLive", &json!({ "TableName": name })).await;
    let about = about.map_err(|error| failed("DescribeTimeToLive", &error))?;
    let about = &about["TimeToLiveDescription"];
    let is_on = about["TimeToLiveStatus"].as_str().is_some_and(|text| text.starts_with("ENABL"));
    let is_wanted = wanted["Enabled"] == true;
    let is_same =
        is_on == is_wanted && (!is_on || about["AttributeName"] == wanted["AttributeName"]);
    if is_same {
        return Ok(());
    }
    let parameters = json!({"TableName": name, KEY: wanted});
    let set = ask(task, "UpdateTimeToLive", &parameters).await;
    set.map(drop).map_err(|error| failed("UpdateTimeToLive", &error))
}

/// Changes the throughput, the lifetime of items, or tags.
///
/// # Errors
/// Another property is to change, or the service refuses it.
pub async fn update(
    task: &Task<'_>,
    name: &str,
    (before, after): (&Value, &Value),
) -> Result<Done, Failed> {
    let changed = changed(before, after);
    if let Some(other) = changed.iter().find(|own| !CHANGEABLE.contains(&own.as_str())) {
        return Err(Failed::new(format!(
            "{other} of a table cannot be changed here; change it at the service, or give the table \
             another name"
        )));
    }
    let table = settled(task, name).await?;
    let gone = || Failed::new(format!("the table {name} does not exist any more"));
    let mut table = table.ok_or_else(gone)?;
    let own = typed(after);
    let mode = own.get("BillingMode").cloned().unwrap_or_else(|| "PROVISIONED".into());
    let is_throughput =
        changed.contains("BillingMode") || changed.contains("ProvisionedThroughput");
    if is_throughput && !has(&table, &mode, own.get("ProvisionedThroughput")) {
        let mut parameters = json!({"TableName": name, "BillingMode": mode});
        if let Some(throughput) = own.get("ProvisionedThroughput") {
            parameters["ProvisionedThroughput"] = throughput.clone();
        }
        let updated = ask(task, "UpdateTable", &parameters).await;
        updated.map_err(|error| failed("UpdateTable", &error))?;
        table = settled(task, name).await?.ok_or_else(gone)?;
    }
    set_lifetime(task, name, (before, after)).await?;
    retag(task, &table, (before, after)).await?;
    Ok(done(name, &table))
}

/// Returns true if a table has this throughput: the service refuses a change to the same one.
fn has(table: &Value, mode: &Value, throughput: Option<&Value>) -> bool {
    let own = table.pointer("/BillingModeSummary/BillingMode");
    let is_mode = own.unwrap_or(&Value::from("PROVISIONED")) == mode;
    let units = |name: &str| {
        throughput.is_none_or(|wanted| table["ProvisionedThroughput"][name] == wanted[name])
    };
    is_mode && units("ReadCapacityUnits") && units("WriteCapacityUnits")
}

/// Deletes a table, and waits until it is gone.
///
/// # Errors
/// The service refuses it.
pub async fn delete(task: &Task<'_>, name: &str) -> Result<(), Failed> {
    // One that is still being made cannot be deleted.
    if settled(task, name).await?.is_none() {
        return Ok(());
    }
    match ask(task, "DeleteTable", &json!({ "TableName": name })).await {
        Ok(_) => {}
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(failed("DeleteTable", &error)),
    }
    for _ in 0..LOOKS_MAX {
        if look(task, name).await?.is_none() {
            return Ok(());
        }
        tokio::time::sleep(PAUSE).await;
    }
    Err(Failed::new(format!("the table {name} is not gone within {LOOKS_MAX} s")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throughput_that_is_there_is_not_set_again() {
        let table =
            json!({"ProvisionedThroughput": {"ReadCapacityUnits": 5, "WriteCapacityUnits": 6}});
        let units = |read, write| json!({"ReadCapacityUnits": read, "WriteCapacityUnits": write});
        let provisioned = Value::from("PROVISIONED");
        assert!(has(&table, &provisioned, Some(&units(5, 6))));
        assert!(!has(&table, &provisioned, Some(&units(5, 7))));
        assert!(!has(&table, &"PAY_PER_REQUEST".into(), None));
        let on_demand = json!({"BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}});
        assert!(has(&on_demand, &"PAY_PER_REQUEST".into(), None));
    }
}
