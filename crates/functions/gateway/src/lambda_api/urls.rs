//! `CreateFunctionUrlConfig`, `GetFunctionUrlConfig`, `UpdateFunctionUrlConfig`, `DeleteFunctionUrlConfig`,
//! `ListFunctionUrlConfigs`. [`crate::web`] serves the URLs.

use serde_json::{Value, json};
use unlade_fn_http_event::Cors;
use unlade_fn_model::lambda::Refusal;
use unlade_fn_model::lifecycle::{
    FunctionUrl, Qualifier, Record, Reference, UrlAuth, UrlChange, arn, page,
};

use super::parameters::Parameters;
use super::view::{Call, listed};
use crate::answer::{Reply, json_reply};
use crate::config::REGION;
use crate::deploy;
use crate::host::Host;
use crate::invoke::uuid;

/// The only mode: a response is sent when it is complete.
const BUFFERED: &str = "BUFFERED";

fn change(own: &mut Parameters) -> Result<UrlChange, Refusal> {
    let auth = own.text("AuthType")?.map(|text| UrlAuth::parse(&text)).transpose()?;
    let mode = own.text("InvokeMode")?;
    if let Some(mode) = mode.filter(|mode| mode != BUFFERED) {
        let why = format!("InvokeMode {mode:?} is not served: responses are whole ({BUFFERED})");
        return Err(Refusal::Parameter(why));
    }
    let cors = own.object("Cors")?.map(|cors| {
        let members: Value = Value::Object(cors.rest().collect());
        // An empty configuration removes what is there.
        match members.as_object().is_some_and(serde_json::Map::is_empty) {
            true => Ok(None),
            false => Cors::from_value(&members).map(Some).map_err(Refusal::Parameter),
        }
    });
    let cors = cors.transpose()?;
    if cors.iter().flatten().any(|cors| cors.max_age_s.is_some_and(|age_s| age_s < 0)) {
        return Err(Refusal::Parameter("MaxAge must not be negative".to_owned()));
    }
    std::mem::take(own).done()?;
    Ok(UrlChange { auth, cors })
}

fn described(host: &Host, name: &str, alias: Option<&str>, url: &FunctionUrl) -> Value {
    let mut description = json!({
        "FunctionUrl": host.addresses().function_url(&url.id),
        "FunctionArn": arn(REGION, name, alias),
        "AuthType": url.auth.as_str(),
        "CreationTime": url.created,
        "LastModifiedTime": url.modified,
        "InvokeMode": BUFFERED,
    });
    if let Some(cors) = &url.cors {
        description["Cors"] = cors.to_value();
    }
    description
}

/// The description of the URL in a record.
fn of(
    host: &Host,
    name: &str,
    record: &Record,
    qualifier: Option<&Qualifier>,
) -> Result<Value, Refusal> {
    let text = qualifier.map(ToString::to_string);
    Ok(described(host, name, text.as_deref(), record.url(qualifier)?))
}

pub async fn create(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    let change = change(&mut call.parameters)?;
    call.changeable(&name)?;
    if call.host.config.urls.is_none() {
        let why = "this gateway serves no URLs of functions: set `urls` in fn.toml to an address";
        return Err(Refusal::Parameter(why.to_owned()));
    }
    // As long as Lambda's.
    let id = uuid().replace('-', "");
    let act = |record: &mut Record| {
        record.create_url(qualifier.as_ref(), &id, change, deploy::stamp().time)
    };
    let (record, ()) = call.edit(&name, act).await?;
    Ok(json_reply(201, of(call.host, &name, &record, qualifier.as_ref())?.to_string()))
}

pub fn get(call: &Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    let record = call.record(&name)?;
    Ok(json_reply(200, of(call.host, &name, &record, qualifier.as_ref())?.to_string()))
}

pub async fn update(mut call: Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    let change = change(&mut call.parameters)?;
    let act =
        |record: &mut Record| record.change_url(qualifier.as_ref(), change, deploy::stamp().time);
    let (record, ()) = call.edit(&name, act).await?;
    Ok(json_reply(200, of(call.host, &name, &record, qualifier.as_ref())?.to_string()))
}

pub async fn delete(call: &Call<'_>) -> Result<Reply, Refusal> {
    let Reference { name, qualifier } = call.reference()?;
    call.edit(&name, |record| record.delete_url(qualifier.as_ref())).await?;
    Ok(json_reply(204, ""))
}

pub fn list(call: &Call<'_>) -> Result<Reply, Refusal> {
    let name = call.name()?;
    let record = call.record(&name)?;
    let items = record.urls.iter().map(|(key, url)| (key.clone(), (key, url)));
    let page = page(items, call.query.get("Marker"), call.query.get("MaxItems"))?;
    let configs = page.items.into_iter().map(|(key, url)| {
        let alias = Some(key.as_str()).filter(|key| !key.is_empty());
        described(call.host, &name, alias, url)
    });
    Ok(listed("FunctionUrlConfigs", configs.collect(), page.next))
}
