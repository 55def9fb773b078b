//! `ListFunctions`, `GetFunction`, `GetFunctionConfiguration`, `DeleteFunction`.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{Record, Reference, Version, page};

use super::view::{self, Call, View, listed};
use crate::answer::{Reply, json_reply};

/// All functions of the caller, deployed ones and those of the directory, by name.
pub fn own(call: &Call<'_>) -> BTreeMap<String, Rc<Record>> {
    let deployed = call.host.registry.all().into_iter();
    let of_directory = call.host.functions().into_iter().filter_map(|function| {
        let record = view::record(call.host, &function.name)?;
        Some((function.name.clone(), record))
    });
    let all = deployed.chain(of_directory);
    all.filter(|(_, record)| call.caller.is(&record.tenant)).collect()
}

pub fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let with_versions = match call.query.get("FunctionVersion") {
        None => false,
        Some("ALL") => true,
        Some(other) => {
            return Err(Refusal::Parameter(format!("FunctionVersion: {other:?} is not ALL")));
        }
    };
    let own = own(call);
    let items = own.iter().flat_map(|(name, record)| {
        let versions = record.editions().map(|(version, _)| version);
        let versions =
            versions.take_while(move |version| with_versions || *version == Version::Latest);
        versions.map(move |version| (Key(name.clone(), version), (name, record, version)))
    });
    let page = page(items, call.query.get("Marker"), call.query.get("MaxItems"))?;
    let mut functions = Vec::new();
    for (name, record, version) in page.items {
        let mut description = View { host: call.host, name, record }.configuration(version)?;
        // As in Lambda, lists have no state, which would have to be asked for.
        for field in ["State", "StateReason", "StateReasonCode", "LastUpdateStatus"] {
            description.as_object_mut().and_then(|fields| fields.remove(field));
        }
        functions.push(description);
    }
    Ok(listed("Functions", functions, page.next))
}

/// The place of a version in the list of all functions.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Key(String, Version);

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.0, self.1)
    }
}

impl std::str::FromStr for Key {
    type Err = String;

    fn from_str(text: &str) -> Result<Key, String> {
        let (name, version) = text.split_once(':').ok_or("no version")?;
        Ok(Key(name.to_owned(), version.parse()?))
    }
}

pub fn configuration(call: &Call<'_>) -> Result<Reply, Refusal> {
    Ok(json_reply(200, described(call)?.1.to_string()))
}

/// The record of the function in the path, and its description.
fn described(call: &Call<'_>) -> Result<(Rc<Record>, Value), Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    let record = call.record(&name)?;
    let view = View { host: call.host, name: &name, record: &record };
    let description = view.qualified(qualifier.as_ref())?;
    Ok((record, description))
}

pub fn get(call: &Call<'_>) -> Result<Reply, Refusal> {
    let (record, description) = described(call)?;
    // The archive is not kept: there is no location from which it could be had.
    let mut body = json!({"Configuration": description, "Code": {"RepositoryType": "Unlade"}});
    if !record.tags.is_empty() {
        body["Tags"] = json!(record.tags);
    }
    if let (Some(reserved), None) = (record.reserved, call.query.get("Qualifier")) {
        body["Concurrency"] = json!({ "ReservedConcurrentExecutions": reserved });
    }
    Ok(json_reply(200, body.to_string()))
}

pub async fn delete(call: &Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    call.changeable(&name)?;
    match qualifier {
        Some(qualifier) => {
            call.edit(&name, |record| record.delete_version(&qualifier)).await?;
        }
        None => {
            let _deploying = call.host.registry.deploying(&name)?;
            let absent = || Refusal::NotFound(name.clone());
            let removed = call.host.registry.change(&name, |record| {
                call.check_owner(&name, &record.ok_or_else(absent)?)?;
                Ok((None, ()))
            });
            removed.await?;
            call.host.reconcile(&name);
        }
    }
    Ok(json_reply(204, ""))
}
