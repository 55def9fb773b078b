//! Reserved and provisioned concurrency.

use serde_json::{Value, json};
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{Provisioned, Qualifier, Record, Reference, arn, page};

use super::view::{Call, listed};
use crate::answer::{Reply, json_reply};
use crate::config::REGION;
use crate::deploy;
use crate::function::key;

pub async fn reserve(mut call: Call<'_>) -> Result<Reply, Refusal> {
    const KEY: &str = "ReservedConcurrentExecutions";
    let (name, instances_max) = (call.name()?, call.host.config.instances_max as u64);
    let missing = || Refusal::Parameter(format!("{KEY} is missing"));
    let asked = call.parameters.number(KEY, 0..=instances_max)?.ok_or_else(missing)?;
    std::mem::take(&mut call.parameters).done()?;
    let others = call.host.registry.all().into_iter().filter(|(other, _)| *other != name);
    let others: u64 = others.filter_map(|(_, record)| record.reserved).map(u64::from).sum();
    if others + asked > instances_max {
        let why = format!(
            "{KEY}: other functions have {others} reserved, and the gateway has {instances_max} \
             instances at most (`instances_max` in fn.toml)"
        );
        return Err(Refusal::Parameter(why));
    }
    let reserved = u32::try_from(asked).unwrap_or(u32::MAX);
    call.edit(&name, |record| record.reserve(Some(reserved))).await?;
    Ok(json_reply(200, json!({KEY: reserved}).to_string()))
}

pub fn reserved(call: &Call<'_>) -> Result<Reply, Refusal> {
    let record = call.record(&call.name()?)?;
    let reserved = record.reserved.map(|own| json!({"ReservedConcurrentExecutions": own}));
    Ok(json_reply(200, reserved.unwrap_or_else(|| json!({})).to_string()))
}

pub async fn unreserve(call: &Call<'_>) -> Result<Reply, Refusal> {
    call.edit(&call.name()?, |record| record.reserve(None)).await?;
    Ok(json_reply(204, ""))
}

/// The function in the path, and the qualifier that these operations need.
fn qualified(call: &Call<'_>) -> Result<(String, Qualifier), Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    let missing = || Refusal::Parameter("Qualifier is missing: a version or an alias".to_owned());
    Ok((name, qualifier.ok_or_else(missing)?))
}

pub async fn provision(mut call: Call<'_>) -> Result<Reply, Refusal> {
    const KEY: &str = "ProvisionedConcurrentExecutions";
    let ((name, qualifier), instances_max) = (qualified(&call)?, call.host.config.instances_max);
    let missing = || Refusal::Parameter(format!("{KEY} is missing"));
    let asked = call.parameters.number(KEY, 1..=instances_max as u64)?.ok_or_else(missing)?;
    std::mem::take(&mut call.parameters).done()?;
    let instances = u32::try_from(asked).unwrap_or(u32::MAX);
    let act = |record: &mut Record| record.provision(&qualifier, instances, deploy::stamp());
    let (record, ()) = call.edit(&name, act).await?;
    let own = record.provisioned(&qualifier)?;
    Ok(json_reply(202, described(&call, &name, &record, &qualifier, own)?.to_string()))
}

/// The number of instances that are to be warm, and that are.
fn described(
    call: &Call<'_>,
    name: &str,
    record: &Record,
    qualifier: &Qualifier,
    own: &Provisioned,
) -> Result<Value, Refusal> {
    let version = record.resolve(Some(qualifier))?;
    let function = call.host.function(&key(name, version));
    let available = function.as_ref().map_or(0, |function| call.host.available(function));
    let available = available.min(own.instances as usize);
    let status = match &function {
        None => "FAILED",
        Some(_) if available >= own.instances as usize => "READY",
        Some(_) => "IN_PROGRESS",
    };
    let mut description = json!({
        "RequestedProvisionedConcurrentExecutions": own.instances,
        "AvailableProvisionedConcurrentExecutions": available,
        "AllocatedProvisionedConcurrentExecutions": available,
        "Status": status,
        "LastModified": own.modified,
    });
    if function.is_none() {
        description["StatusReason"] = "the version is not served: see its StateReason".into();
    }
    Ok(description)
}

/// `GetProvisionedConcurrencyConfig`, and `ListProvisionedConcurrencyConfigs` on the same path.
pub fn provisioned(call: &Call<'_>) -> Result<Reply, Refusal> {
    if call.query.get("List") == Some("ALL") {
        return list(call);
    }
    let (name, qualifier) = qualified(call)?;
    let record = call.record(&name)?;
    let own = record.provisioned(&qualifier)?;
    Ok(json_reply(200, described(call, &name, &record, &qualifier, own)?.to_string()))
}

fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    let record = call.record(&name)?;
    let items = record.provisioned.iter().map(|(text, own)| (text.clone(), (text, own)));
    let page = page(items, call.query.get("Marker"), call.query.get("MaxItems"))?;
    let mut configs = Vec::new();
    for (text, own) in page.items {
        let qualifier = Qualifier::parse(text)?;
        let mut config = described(call, &name, &record, &qualifier, own)?;
        config["FunctionArn"] = arn(REGION, &name, Some(text)).into();
        configs.push(config);
    }
    Ok(listed("ProvisionedConcurrencyConfigs", configs, page.next))
}

pub async fn unprovision(call: &Call<'_>) -> Result<Reply, Refusal> {
    let (name, qualifier) = qualified(call)?;
    call.edit(&name, |record| record.unprovision(&qualifier)).await?;
    Ok(json_reply(204, ""))
}
