//! `CreateEventSourceMapping`, `GetEventSourceMapping`, `ListEventSourceMappings`,
//! `UpdateEventSourceMapping`, `DeleteEventSourceMapping`. [`crate::sources`] takes the messages.

use std::rc::Rc;
use std::time::SystemTime;

use serde_json::{Value, json};
use unlade_fn_model::destination::Target;
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{Record, Reference, arn, page};
use unlade_fn_model::source::{Mapping, MappingChange};

use super::functions::own;
use super::parameters::Parameters;
use super::view::{Call, listed, seconds};
use crate::answer::{Reply, json_reply};
use crate::config::REGION;
use crate::deploy::time_ms;
use crate::invoke::uuid;

/// Most mappings of a tenant: each has a request open at its worker.
const SOURCES_MAX: usize = 64;

/// Parameters of sources that are not served; the reason is part of the error.
const UNSERVED: [(&str, &str); 12] = [
    ("FilterCriteria", "messages are not filtered: the function gets all"),
    ("KMSKeyArn", "there are no filters to encrypt"),
    ("StartingPosition", "a queue has no position"),
    ("StartingPositionTimestamp", "a queue has no position"),
    ("ParallelizationFactor", "only streams have it"),
    ("MaximumRecordAgeInSeconds", "only streams have it: use the queue's retention"),
    ("MaximumRetryAttempts", "only streams have it: use the queue's redrive policy"),
    ("BisectBatchOnFunctionError", "only streams have it: use FunctionResponseTypes"),
    ("TumblingWindowInSeconds", "only streams have it"),
    ("DestinationConfig", "only streams have it: use the queue's redrive policy"),
    ("MetricsConfig", "the gateway's metrics count messages"),
    ("ProvisionedPollerConfig", "each mapping has one poller"),
];

fn wrong(why: impl Into<String>) -> Refusal {
    Refusal::Parameter(why.into())
}

/// Takes the parameters that a request may change.
fn change(own: &mut Parameters) -> Result<MappingChange, Refusal> {
    for (name, why) in UNSERVED {
        if own.value(name).is_some_and(|value| !super::parameters::is_empty(&value)) {
            return Err(wrong(format!("{name}: {why}")));
        }
    }
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let enabled = match own.value("Enabled") {
        None => None,
        Some(value) => Some(value.as_bool().ok_or_else(|| wrong("Enabled must be true or false"))?),
    };
    let concurrency = match own.object("ScalingConfig")? {
        None => None,
        Some(mut scaling) => {
            let most = scaling.number("MaximumConcurrency", 2..=1000)?.map(small);
            scaling.done()?;
            Some(most)
        }
    };
    Ok(MappingChange {
        batch_size: own.number("BatchSize", 1..=10_000)?.map(small),
        window_s: own.number("MaximumBatchingWindowInSeconds", 0..=300)?.map(small),
        enabled,
        concurrency,
        reports_failures: response_types(own)?,
        qualifier: None,
    })
}

fn response_types(own: &mut Parameters) -> Result<Option<bool>, Refusal> {
    match own.value("FunctionResponseTypes") {
        None => Ok(None),
        Some(Value::Array(types)) if types.is_empty() => Ok(Some(false)),
        Some(Value::Array(types)) if types == ["ReportBatchItemFailures"] => Ok(Some(true)),
        Some(other) => {
            let why =
                format!("FunctionResponseTypes: {other} is not [\"ReportBatchItemFailures\"]");
            Err(wrong(why))
        }
    }
}

/// The description of a mapping.
fn described(call: &Call<'_>, name: &str, uuid: &str, mapping: &Mapping) -> Value {
    let status = call.host.sources.status(uuid);
    let is_busy = status.as_ref().is_some_and(|status| status.is_busy.get());
    let state = match (mapping.enabled, is_busy) {
        (true, _) => "Enabled",
        (false, true) => "Disabling",
        (false, false) => "Disabled",
    };
    let text = status.map_or_else(|| "No records processed".to_owned(), |status| status.text());
    let types: &[&str] = if mapping.reports_failures { &["ReportBatchItemFailures"] } else { &[] };
    let mut description = json!({
        "UUID": uuid,
        "BatchSize": mapping.batch_size,
        "MaximumBatchingWindowInSeconds": mapping.window_s,
        "EventSourceArn": mapping.queue.arn,
        "FunctionArn": arn(REGION, name, mapping.qualifier.as_deref()),
        "LastModified": seconds(mapping.modified_ms),
        "LastProcessingResult": text,
        "State": state,
        "StateTransitionReason": "USER_INITIATED",
        "FunctionResponseTypes": types,
    });
    if let Some(most) = mapping.concurrency {
        description["ScalingConfig"] = json!({ "MaximumConcurrency": most });
    }
    description
}

/// The mappings of the caller, by UUID, with their functions.
fn all(call: &Call<'_>) -> Vec<(String, String, Mapping)> {
    let of = |(name, record): (String, Rc<Record>)| {
        let sources = record.sources.clone().into_iter();
        sources.map(move |(uuid, mapping)| (uuid, name.clone(), mapping))
    };
    let mut all: Vec<_> = own(call).into_iter().flat_map(of).collect();
    all.sort_by(|one, other| one.0.cmp(&other.0));
    all
}

/// The function that has a mapping. That of another tenant is reported as absent.
fn function(call: &Call<'_>, uuid: &str) -> Result<(String, Rc<Record>), Refusal> {
    let has = |(_, record): &(String, Rc<Record>)| record.sources.contains_key(uuid);
    let found = call.host.registry.all().into_iter().find(has);
    let (name, record) = found.ok_or_else(|| {
        Refusal::Absent(format!("The resource you requested does not exist: mapping {uuid}"))
    })?;
    call.check_owner(&name, &record)?;
    Ok((name, record))
}

pub async fn create(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } =
        Reference::parse(&call.parameters.required("FunctionName")?, None)?;
    let source = call.parameters.required("EventSourceArn")?;
    let mut change = change(&mut call.parameters)?;
    std::mem::take(&mut call.parameters).done()?;
    call.changeable(&name)?;
    let queue = Target::parse(&source).map_err(|why| wrong(format!("EventSourceArn: {why}")))?;
    let mapping = Mapping::new(queue)?;
    if all(&call).len() >= SOURCES_MAX {
        return Err(wrong(format!("a tenant has {SOURCES_MAX} event source mappings at most")));
    }
    change.qualifier = Some(qualifier);
    // Requests have no identifier; a stack gives one that a repeated creation has again.
    let uuid = if call.item.is_empty() { uuid() } else { call.item.clone() };
    let add = |record: &mut Record| {
        record.add_source(&uuid, &mapping, change, time_ms(SystemTime::now()))
    };
    let (record, ()) = call.edit(&name, add).await?;
    let mapping = record.source(&uuid)?;
    Ok(json_reply(202, described(&call, &name, &uuid, mapping).to_string()))
}

pub fn get(call: &Call<'_>) -> Result<Reply, Refusal> {
    let (name, record) = function(call, &call.target)?;
    let mapping = record.source(&call.target)?;
    Ok(json_reply(200, described(call, &name, &call.target, mapping).to_string()))
}

pub async fn update(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let (name, record) = function(&call, &call.target)?;
    let before = record.source(&call.target)?;
    let mut change = change(&mut call.parameters)?;
    if let Some(text) = call.parameters.text("FunctionName")? {
        let Reference { name: other, qualifier } = Reference::parse(&text, None)?;
        if other != name {
            let why = format!(
                "FunctionName: the mapping is one of {name}: delete it, and create one of {other}"
            );
            return Err(wrong(why));
        }
        change.qualifier = Some(qualifier);
    }
    if let Some(other) = call.parameters.text("EventSourceArn")?
        && other != before.queue.arn
    {
        return Err(wrong("EventSourceArn: the queue of a mapping cannot be changed"));
    }
    std::mem::take(&mut call.parameters).done()?;
    let uuid = call.target.clone();
    let act = |record: &mut Record| record.change_source(&uuid, change, time_ms(SystemTime::now()));
    let (record, ()) = call.edit(&name, act).await?;
    Ok(json_reply(202, described(&call, &name, &uuid, record.source(&uuid)?).to_string()))
}

pub async fn delete(call: &Call<'_>) -> Result<Reply, Refusal> {
    let (name, _) = function(call, &call.target)?;
    let (_, mapping) = call.edit(&name, |record| record.remove_source(&call.target)).await?;
    let mut description = described(call, &name, &call.target, &mapping);
    description["State"] = "Deleting".into();
    Ok(json_reply(202, description.to_string()))
}

pub fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let mut found = all(call);
    if let Some(text) = call.query.get("FunctionName") {
        let Reference { name, qualifier } = Reference::parse(text, None)?;
        call.record(&name)?;
        let qualifier = qualifier.map(|qualifier| qualifier.to_string());
        found.retain(|(_, own, mapping)| {
            *own == name && (qualifier.is_none() || qualifier == mapping.qualifier)
        });
    }
    if let Some(source) = call.query.get("EventSourceArn") {
        found.retain(|(_, _, mapping)| mapping.queue.arn == source);
    }
    let items = found.iter().map(|(uuid, name, mapping)| (uuid.clone(), (uuid, name, mapping)));
    let page = page(items, call.query.get("Marker"), call.query.get("MaxItems"))?;
    let mappings = page.items.into_iter();
    let mappings = mappings.map(|(uuid, name, mapping)| described(call, name, uuid, mapping));
    Ok(listed("EventSourceMappings", mappings.collect(), page.next))
}
