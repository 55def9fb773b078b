//! `PutFunctionEventInvokeConfig`, `UpdateFunctionEventInvokeConfig`, `GetFunctionEventInvokeConfig`,
//! `DeleteFunctionEventInvokeConfig`, `ListFunctionEventInvokeConfigs`.

use std::time::SystemTime;

use serde_json::{Value, json};
use unlade_fn_model::destination::Target;
use unlade_fn_model::lambda::{LATEST, Refusal};
use unlade_fn_model::lifecycle::{EventConfig, EventConfigChange, Reference, arn, page};

use super::parameters::Parameters;
use super::view::{Call, listed, seconds};
use crate::answer::{Reply, json_reply};
use crate::config::REGION;
use crate::deploy::time_ms;

/// Takes a destination: an empty one removes what is there.
fn destination(own: &mut Parameters, name: &str) -> Result<Option<Option<Target>>, Refusal> {
    let Some(mut of) = own.object(name)? else { return Ok(None) };
    let arn = of.text("Destination")?.filter(|arn| !arn.is_empty());
    of.done()?;
    let wrong = |why| Refusal::Parameter(format!("DestinationConfig.{name}: {why}"));
    Ok(Some(arn.map(|arn| Target::parse(&arn)).transpose().map_err(wrong)?))
}

fn change(own: &mut Parameters) -> Result<EventConfigChange, Refusal> {
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let retries = own.number("MaximumRetryAttempts", 0..=2)?.map(small);
    let age_s = own.number("MaximumEventAgeInSeconds", 60..=21_600)?.map(small);
    let mut change = EventConfigChange { retries, age_s, ..EventConfigChange::default() };
    if let Some(mut destinations) = own.object("DestinationConfig")? {
        change.on_success = destination(&mut destinations, "OnSuccess")?;
        change.on_failure = destination(&mut destinations, "OnFailure")?;
        destinations.done()?;
    }
    std::mem::take(own).done()?;
    Ok(change)
}

fn described(name: &str, qualifier: &str, config: &EventConfig) -> Value {
    let of = |target: &Option<Target>| match target {
        Some(target) => json!({"Destination": target.arn}),
        None => json!({}),
    };
    let mut description = json!({
        "FunctionArn": arn(REGION, name, Some(qualifier)),
        "LastModified": seconds(config.modified_ms),
        "DestinationConfig": {
            "OnSuccess": of(&config.on_success),
            "OnFailure": of(&config.on_failure),
        },
    });
    if let Some(retries) = config.retries {
        description["MaximumRetryAttempts"] = retries.into();
    }
    if let Some(age_s) = config.age_s {
        description["MaximumEventAgeInSeconds"] = age_s.into();
    }
    description
}

/// The key of the request's qualifier.
fn key(reference: &Reference) -> String {
    reference.qualifier.as_ref().map_or_else(|| LATEST.to_owned(), ToString::to_string)
}

/// Replaces the configuration, or changes it.
pub async fn put(mut call: Call<'_>, replace: bool) -> Result<Reply, Refusal> {
    let reference = call.reference()?;
    let change = change(&mut call.parameters)?;
    let (name, qualifier) = (&reference.name, reference.qualifier.as_ref());
    let (record, ()) = call
        .edit(name, |record| {
            record.configure_events(qualifier, change, replace, time_ms(SystemTime::now()))
        })
        .await?;
    let config = record.event_config(qualifier)?;
    Ok(json_reply(200, described(name, &key(&reference), config).to_string()))
}

pub fn get(call: &Call<'_>) -> Result<Reply, Refusal> {
    let reference = call.reference()?;
    let record = call.record(&reference.name)?;
    let config = record.event_config(reference.qualifier.as_ref())?;
    Ok(json_reply(200, described(&reference.name, &key(&reference), config).to_string()))
}

pub async fn delete(call: &Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    call.edit(&name, |record| record.unconfigure_events(qualifier.as_ref())).await?;
    Ok(json_reply(204, ""))
}

pub fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    let record = call.record(&name)?;
    let items = record.event_configs.iter().map(|(key, config)| (key.clone(), (key, config)));
    let page = page(items, call.query.get("Marker"), call.query.get("MaxItems"))?;
    let configs = page.items.into_iter().map(|(key, config)| described(&name, key, config));
    Ok(listed("FunctionEventInvokeConfigs", configs.collect(), page.next))
}
