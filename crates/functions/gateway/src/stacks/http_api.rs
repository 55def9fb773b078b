//! `AWS::ApiGatewayV2::Api`, `Integration`, `Route` and `Stage`: HTTP APIs whose integrations are functions.

use std::collections::BTreeMap;

use serde_json::Value;
use unlade_fn_http_event::api::{STAGES_MAX, is_stage};
use unlade_fn_http_event::{Api, Cors, Format, Integration, Route, Stage, openapi, route};

use super::outcome::{Done, Failed};
use super::properties::{only, required, text_of};
use super::task::Task;
use crate::auth::sha256;

/// The advice about other properties.
pub const ADVICE: &str = "HTTP APIs have routes to functions, CORS and stages here";
/// Properties of an API.
pub const API: &[&str] = &[
    "Body",
    "CorsConfiguration",
    "Description",
    "DisableExecuteApiEndpoint",
    "FailOnWarnings",
    "Name",
    "ProtocolType",
    "Tags",
];
/// Properties of an integration.
pub const INTEGRATION: &[&str] = &[
    "ApiId",
    "ConnectionType",
    "Description",
    "IntegrationMethod",
    "IntegrationType",
    "IntegrationUri",
    "PayloadFormatVersion",
    "TimeoutInMillis",
];
/// Properties of a route.
pub const ROUTE: &[&str] =
    &["ApiId", "ApiKeyRequired", "AuthorizationType", "OperationName", "RouteKey", "Target"];
/// Properties of a stage.
pub const STAGE: &[&str] =
    &["ApiId", "AutoDeploy", "Description", "StageName", "StageVariables", "Tags"];
/// Length of an identifier, as API Gateway's.
const ID_CHARS: usize = 10;
/// The type of APIs.
const API_KIND: &str = "AWS::ApiGatewayV2::Api";

/// The identifier of the resource of a token: a repeated creation finds the first one.
fn id_of(token: &str) -> String {
    let hash = sha256(token.as_bytes());
    hash[..ID_CHARS].to_owned()
}

/// Refuses a property with another value than the one that is served.
fn must_be(properties: &Value, name: &str, served: &str) -> Result<(), Failed> {
    match properties.get(name).and_then(text_of) {
        Some(other) if !other.eq_ignore_ascii_case(served) => {
            Err(Failed::new(format!("{name} {other} is not served: only {served}. {ADVICE}")))
        }
        _ => Ok(()),
    }
}

/// Puts the properties of an API into its definition.
fn define(api: &mut Api, properties: &Value) -> Result<(), Failed> {
    only(API_KIND, properties, API, ADVICE)?;
    must_be(properties, "ProtocolType", "HTTP")?;
    must_be(properties, "DisableExecuteApiEndpoint", "false")?;
    let document = match properties.get("Body") {
        None | Some(Value::Null) => {
            required(properties, "Name")?;
            required(properties, "ProtocolType")?;
            openapi::Document::default()
        }
        Some(body) => openapi::read(body).map_err(Failed::new)?,
    };
    let cors = properties.get("CorsConfiguration").filter(|cors| !cors.is_null());
    let cors = cors.map(Cors::from_value).transpose().map_err(Failed::new)?.or(document.cors);
    let is_public = |cors: &Cors| cors.allow_origins.iter().any(|origin| origin == "*");
    if cors.as_ref().is_some_and(|cors| cors.allow_credentials == Some(true) && is_public(cors)) {
        return Err(Failed::new("AllowCredentials needs origins by name, not *"));
    }
    let name = properties.get("Name").and_then(text_of).or(document.name);
    (api.name, api.cors, api.body) = (name.unwrap_or_default(), cors, document.routes);
    Ok(())
}

fn api_done(task: &Task<'_>, id: &str) -> Done {
    let endpoint = task.host.addresses().api_endpoint(id);
    Done::new(id).with("ApiId", id).with("ApiEndpoint", endpoint)
}

/// Makes an API.
///
/// # Errors
/// A property is invalid, or the gateway has no listener for it.
pub async fn create_api(task: &Task<'_>, properties: &Value) -> Result<Done, Failed> {
    if task.host.config.urls.is_none() {
        let why = "this gateway serves no HTTP APIs: set `urls` in fn.toml to an address";
        return Err(Failed::new(why));
    }
    let (id, token) = (id_of(&task.action.token), task.action.token.clone());
    let mut api = Api { tenant: task.tenant.to_owned(), token, ..Api::default() };
    define(&mut api, properties)?;
    let act = |found: Option<Api>| match found {
        Some(found) if found.token != api.token => Err(format!("the identifier {id} is taken")),
        _ => Ok(Some(api)),
    };
    task.host.apis.change(&id, act).await.map_err(Failed::new)?;
    Ok(api_done(task, &id))
}

/// Changes an API of the tenant.
async fn change<T>(
    task: &Task<'_>,
    id: &str,
    act: impl FnOnce(&mut Api) -> Result<T, Failed>,
) -> Result<(), Failed> {
    let changed = |found: Option<Api>| {
        let found = found.filter(|api| api.tenant == task.tenant);
        let mut api = found.ok_or_else(|| format!("there is no HTTP API {id}"))?;
        act(&mut api).map_err(|failed| failed.reason)?;
        Ok(Some(api))
    };
    task.host.apis.change(id, changed).await.map_err(Failed::new)
}

/// Changes an API.
///
/// # Errors
/// A property is invalid.
pub async fn update_api(task: &Task<'_>, id: &str, properties: &Value) -> Result<Done, Failed> {
    change(task, id, |api| define(api, properties)).await?;
    Ok(api_done(task, id))
}

/// Deletes an API, with its routes and stages.
///
/// # Errors
/// It cannot be stored.
pub async fn delete_api(task: &Task<'_>, id: &str) -> Result<(), Failed> {
    let act = |found: Option<Api>| Ok(found.filter(|api| api.tenant != task.tenant));
    task.host.apis.change(id, act).await.map_err(Failed::new)
}

/// Deletes a part of an API; one whose API does not exist any more is deleted.
async fn delete_part(
    task: &Task<'_>,
    properties: &Value,
    act: impl FnOnce(&mut Api),
) -> Result<(), Failed> {
    let id = required(properties, "ApiId")?;
    let is_there = task.host.apis.get(&id).is_some_and(|own| own.api.tenant == task.tenant);
    if !is_there {
        return Ok(());
    }
    change(task, &id, |api| {
        act(api);
        Ok(())
    })
    .await
}

fn integration(properties: &Value) -> Result<Integration, Failed> {
    only("AWS::ApiGatewayV2::Integration", properties, INTEGRATION, ADVICE)?;
    must_be(properties, "IntegrationType", "AWS_PROXY")?;
    must_be(properties, "ConnectionType", "INTERNET")?;
    let uri = required(properties, "IntegrationUri")?;
    let function = Integration::function_of(&uri).map_err(Failed::new)?;
    let format = match properties.get("PayloadFormatVersion").and_then(text_of) {
        None => Format::V1,
        Some(text) => {
            let wrong = || Failed::new(format!("PayloadFormatVersion {text} is not 1.0 or 2.0"));
            Format::parse(&text).ok_or_else(wrong)?
        }
    };
    let timeout_ms = openapi::timeout_ms(properties.get("TimeoutInMillis")).map_err(Failed::new)?;
    Ok(Integration { function, format, timeout_ms })
}

/// Makes or changes an integration.
///
/// # Errors
/// A property is invalid, or there is no such API.
pub async fn put_integration(
    task: &Task<'_>,
    id: Option<&str>,
    properties: &Value,
) -> Result<Done, Failed> {
    let own = integration(properties)?;
    let id = id.map_or_else(|| id_of(&task.action.token), str::to_owned);
    change(task, &required(properties, "ApiId")?, |api| {
        api.integrations.insert(id.clone(), own);
        Ok(())
    })
    .await?;
    Ok(Done::new(id.as_str()).with("IntegrationId", id.as_str()))
}

/// Deletes an integration.
///
/// # Errors
/// It cannot be stored.
pub async fn delete_integration(
    task: &Task<'_>,
    id: &str,
    properties: &Value,
) -> Result<(), Failed> {
    delete_part(task, properties, |api| {
        api.integrations.remove(id);
    })
    .await
}

/// Makes or changes a route.
///
/// # Errors
/// A property is invalid, or there is no such API or integration.
pub async fn put_route(
    task: &Task<'_>,
    id: Option<&str>,
    properties: &Value,
) -> Result<Done, Failed> {
    only("AWS::ApiGatewayV2::Route", properties, ROUTE, ADVICE)?;
    must_be(properties, "AuthorizationType", "NONE")?;
    must_be(properties, "ApiKeyRequired", "false")?;
    let key = required(properties, "RouteKey")?;
    route::check(&key).map_err(|error| Failed::new(error.to_string()))?;
    let target = required(properties, "Target")?;
    let wrong = || Failed::new(format!("Target {target:?} is not integrations/ID"));
    let integration = target.strip_prefix("integrations/").ok_or_else(wrong)?.to_owned();
    let id = id.map_or_else(|| id_of(&task.action.token), str::to_owned);
    change(task, &required(properties, "ApiId")?, |api| {
        if !api.integrations.contains_key(&integration) {
            return Err(Failed::new(format!("there is no integration {integration}")));
        }
        api.routes.insert(id.clone(), Route { key, integration });
        Ok(())
    })
    .await?;
    Ok(Done::new(id.as_str()).with("RouteId", id.as_str()))
}

/// Deletes a route.
///
/// # Errors
/// It cannot be stored.
pub async fn delete_route(task: &Task<'_>, id: &str, properties: &Value) -> Result<(), Failed> {
    delete_part(task, properties, |api| {
        api.routes.remove(id);
    })
    .await
}

/// Makes or changes a stage.
///
/// # Errors
/// A property is invalid, there is no such API, or it has such a stage already.
pub async fn put_stage(task: &Task<'_>, properties: &Value, is_new: bool) -> Result<Done, Failed> {
    only("AWS::ApiGatewayV2::Stage", properties, STAGE, ADVICE)?;
    let (api, name) = (required(properties, "ApiId")?, required(properties, "StageName")?);
    if !is_stage(&name) {
        return Err(Failed::new(format!("StageName {name:?} has letters, digits, - and _ only")));
    }
    let wrong = || Failed::new("StageVariables must be an object of texts");
    let variables: BTreeMap<String, String> = match properties.get("StageVariables") {
        None | Some(Value::Null) => BTreeMap::new(),
        Some(Value::Object(all)) => {
            let pair = |(name, value): (&String, &Value)| Some((name.clone(), text_of(value)?));
            all.iter().map(pair).collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    if is_new {
        let served = task.host.apis.get(&api);
        let is_there = served.is_some_and(|own| own.api.stages.contains_key(&name));
        task.claim(&format!("the stage {name} of the HTTP API {api}"), is_there).await?;
    }
    change(task, &api, |own| {
        own.stages.insert(name.clone(), Stage { variables });
        match own.stages.len() > STAGES_MAX {
            true => Err(Failed::new(format!("an HTTP API has {STAGES_MAX} stages at most"))),
            false => Ok(()),
        }
    })
    .await?;
    Ok(Done::new(name))
}

/// Deletes a stage.
///
/// # Errors
/// It cannot be stored.
pub async fn delete_stage(task: &Task<'_>, name: &str, properties: &Value) -> Result<(), Failed> {
    delete_part(task, properties, |api| {
        api.stages.remove(name);
    })
    .await
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(properties: Value) -> String {
        define(&mut Api::default(), &properties).unwrap_err().reason
    }

    #[test]
    fn an_api_is_declared_or_has_a_document() {
        let mut api = Api::default();
        let own = json!({"Name": "pets", "ProtocolType": "HTTP",
            "CorsConfiguration": {"AllowOrigins": ["*"], "MaxAge": "5"}});
        define(&mut api, &own).unwrap();
        assert_eq!((api.name.as_str(), api.cors.clone().unwrap().max_age_s), ("pets", Some(5)));
        let body = json!({"openapi": "3.0.1", "info": {"title": "own"},
            "x-amazon-apigateway-cors": {"allowOrigins": ["https://a.example"]}});
        define(&mut api, &json!({ "Body": body })).unwrap();
        assert_eq!((api.name.as_str(), api.cors.unwrap().max_age_s), ("own", None));
        for (wrong, word) in [
            (json!({"Name": "pets"}), "ProtocolType"),
            (json!({"Name": "pets", "ProtocolType": "WEBSOCKET"}), "WEBSOCKET"),
            (json!({"Name": "pets", "ProtocolType": "HTTP", "Target": "arn"}), "Target"),
            (json!({"Body": {"openapi": "3.0.1"}, "DisableExecuteApiEndpoint": true}), "Disable"),
            (
                json!({"Name": "p", "ProtocolType": "HTTP", "CorsConfiguration":
                    {"AllowOrigins": ["*"], "AllowCredentials": true}}),
                "AllowCredentials",
            ),
        ] {
            let why = refusal(wrong);
            assert!(why.contains(word), "{why}");
        }
    }

    #[test]
    fn an_integration_is_a_function() {
        let arn = "arn:aws:lambda:us-east-1:000000000000:function:f";
        let own = json!({"ApiId": "a", "IntegrationType": "AWS_PROXY", "IntegrationUri": arn,
            "PayloadFormatVersion": "2.0", "TimeoutInMillis": "500"});
        let due = Integration { function: arn.to_owned(), format: Format::V2, timeout_ms: 500 };
        assert_eq!(integration(&own).unwrap(), due);
        for (name, wrong) in [
            ("IntegrationType", "HTTP_PROXY"),
            ("IntegrationUri", "https://example.com"),
            ("PayloadFormatVersion", "3.0"),
            ("TimeoutInMillis", "10"),
            ("CredentialsArn", "arn"),
        ] {
            let mut other = own.clone();
            other[name] = wrong.into();
            assert!(integration(&other).is_err(), "{name}");
        }
        assert_eq!(id_of("arn#1").len(), ID_CHARS);
        assert_ne!(id_of("arn#1"), id_of("arn#2"));
    }
}
