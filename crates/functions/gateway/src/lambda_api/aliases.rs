//! `CreateAlias`, `GetAlias`, `UpdateAlias`, `DeleteAlias`, `ListAliases`.

use std::collections::BTreeMap;

use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{AliasChange, Record, Version, page};

use super::parameters::Parameters;
use super::view::{Call, View, listed};
use crate::answer::{Reply, json_reply};
use crate::deploy;

/// Takes the parameters of an alias.
fn change(own: &mut Parameters) -> Result<AliasChange, Refusal> {
    let wrong = |why: String| Refusal::Parameter(format!("FunctionVersion: {why}"));
    let version = own.text("FunctionVersion")?.map(|text| text.parse().map_err(wrong));
    let weights = own.object("RoutingConfig")?.map(weights);
    Ok(AliasChange {
        version: version.transpose()?,
        weights: weights.transpose()?,
        description: own.text("Description")?,
    })
}

fn weights(mut routing: Parameters) -> Result<BTreeMap<u64, f64>, Refusal> {
    let weights = routing.object("AdditionalVersionWeights")?.unwrap_or_default();
    routing.done()?;
    let weight = |(version, weight): (String, serde_json::Value)| {
        let number = version.parse().ok();
        number.zip(weight.as_f64()).ok_or_else(|| {
            let why = format!("RoutingConfig: {version:?}: {weight} is no weight of a version");
            Refusal::Parameter(why)
        })
    };
    weights.rest().map(weight).collect()
}

fn described(call: &Call<'_>, status: u16, name: &str, alias: &str) -> Result<Reply, Refusal> {
    let record = call.record(name)?;
    let view = View { host: call.host, name, record: &record };
    Ok(json_reply(status, view.alias(alias, record.alias(alias)?).to_string()))
}

pub async fn create(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let (name, alias) = (call.name()?, call.parameters.required("Name")?);
    let change = change(&mut call.parameters)?;
    std::mem::take(&mut call.parameters).done()?;
    call.edit(&name, |record| record.create_alias(&alias, change, deploy::stamp())).await?;
    described(&call, 201, &name, &alias)
}

pub fn get(call: &Call<'_>) -> Result<Reply, Refusal> {
    described(call, 200, &call.name()?, &call.item)
}

pub async fn update(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let (name, alias) = (call.name()?, call.item.clone());
    let change = change(&mut call.parameters)?;
    let expected = call.parameters.text("RevisionId")?;
    std::mem::take(&mut call.parameters).done()?;
    let act = |record: &mut Record| {
        record.update_alias(&alias, change, expected.as_deref(), deploy::stamp())
    };
    call.edit(&name, act).await?;
    described(&call, 200, &name, &alias)
}

pub async fn delete(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    // As in Lambda: an alias that is not there is as good as deleted.
    if call.changeable(&name)?.aliases.contains_key(&call.item) {
        call.edit(&name, |record| record.delete_alias(&call.item)).await?;
    }
    Ok(json_reply(204, ""))
}

pub fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    let record = call.record(&name)?;
    let of = call.query.get("FunctionVersion").map(str::parse::<Version>).transpose();
    let of = of.map_err(|why| Refusal::Parameter(format!("FunctionVersion: {why}")))?;
    let is_asked = |version| of.is_none_or(|of| of == version);
    let items = record.aliases.iter().filter(|(_, alias)| alias.versions().any(is_asked));
    let items = items.map(|(name, alias)| (name.clone(), (name, alias)));
    let page = page(items, call.query.get("Marker"), call.query.get("MaxItems"))?;
    let view = View { host: call.host, name: &name, record: &record };
    let aliases: Vec<_> =
        page.items.into_iter().map(|(name, alias)| view.alias(name, alias)).collect();
    Ok(listed("Aliases", aliases, page.next))
}
