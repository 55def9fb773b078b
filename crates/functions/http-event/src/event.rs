//! The events of HTTP requests: payload format 2.0 (function URLs, HTTP APIs) and 1.0 (HTTP APIs).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use time::format_description::FormatItem;
use time::macros::format_description;

use crate::body::encoded;
use crate::request::{Context, HttpRequest};

/// The form of a time in events: `12/Mar/2020:19:03:58 +0000`.
const TIME: &[FormatItem<'static>] =
    format_description!("[day]/[month repr:short]/[year]:[hour]:[minute]:[second] +0000");
/// The field whose values are in `cookies`, in format 2.0.
const COOKIE: &str = "cookie";

/// The event in payload format 2.0, as JSON.
pub fn v2(request: &HttpRequest<'_>, context: &Context<'_>) -> Vec<u8> {
    let mut event = json!({
        "version": "2.0",
        "routeKey": context.route_key,
        "rawPath": request.path,
        "rawQueryString": request.query,
        "headers": joined(request.headers.iter().filter(|(name, _)| name != COOKIE)),
        "requestContext": context_v2(request, context),
        "isBase64Encoded": false,
    });
    let cookies: Vec<&str> = cookies(request).collect();
    if !cookies.is_empty() {
        event["cookies"] = cookies.into();
    }
    let parameters = parameters(request.query);
    if !parameters.is_empty() {
        event["queryStringParameters"] = Value::Object(joined(parameters.iter()));
    }
    if !context.path_parameters.is_empty() {
        event["pathParameters"] = json!(context.path_parameters);
    }
    if !context.stage_variables.is_empty() {
        event["stageVariables"] = json!(context.stage_variables);
    }
    if !request.body.is_empty() {
        let (text, is_base64) = body(request);
        event["body"] = text.into();
        event["isBase64Encoded"] = is_base64.into();
    }
    event.to_string().into_bytes()
}

fn context_v2(request: &HttpRequest<'_>, context: &Context<'_>) -> Value {
    let mut own = json!({
        "accountId": context.account,
        "apiId": context.api_id,
        "domainName": context.domain_name,
        "domainPrefix": prefix(context.domain_name),
        "http": {
            "method": request.method,
            "path": request.path,
            "protocol": request.protocol,
            "sourceIp": request.source_ip,
            "userAgent": request.header("user-agent").unwrap_or_default(),
        },
        "requestId": context.request_id,
        "routeKey": context.route_key,
        "stage": context.stage,
        "time": time_text(context.time_ms),
        "timeEpoch": context.time_ms,
    });
    if let Some(identity) = context.identity {
        own["authorizer"] = json!({"iam": {
            "accessKey": identity.access_key,
            "accountId": identity.account,
            "callerId": identity.name,
            "cognitoIdentity": null,
            "principalOrgId": null,
            "userArn": identity.arn,
            "userId": identity.name,
        }});
    }
    own
}

/// The event in payload format 1.0, as JSON. Absent maps and bodies are null.
pub fn v1(request: &HttpRequest<'_>, context: &Context<'_>) -> Vec<u8> {
    let parameters = parameters(request.query);
    let (body, is_base64) = match request.body.is_empty() {
        true => (Value::Null, false),
        false => {
            let (text, is_base64) = body(request);
            (text.into(), is_base64)
        }
    };
    let or_null = |map: &BTreeMap<String, String>| match map.is_empty() {
        true => Value::Null,
        false => json!(map),
    };
    let event = json!({
        "version": "1.0",
        "resource": context.resource,
        "path": request.path,
        "httpMethod": request.method,
        "headers": last(request.headers.iter()),
        "multiValueHeaders": all(request.headers.iter()),
        "queryStringParameters": none_if_empty(last(parameters.iter())),
        "multiValueQueryStringParameters": none_if_empty(all(parameters.iter())),
        "requestContext": context_v1(request, context),
        "pathParameters": or_null(context.path_parameters),
        "stageVariables": or_null(context.stage_variables),
        "body": body,
        "isBase64Encoded": is_base64,
    });
    event.to_string().into_bytes()
}

fn context_v1(request: &HttpRequest<'_>, context: &Context<'_>) -> Value {
    let identity = context.identity;
    json!({
        "accountId": context.account,
        "apiId": context.api_id,
        "domainName": context.domain_name,
        "domainPrefix": prefix(context.domain_name),
        "extendedRequestId": context.request_id,
        "httpMethod": request.method,
        "identity": {
            "accessKey": identity.map(|own| &own.access_key),
            "accountId": identity.map(|own| &own.account),
            "caller": identity.map(|own| &own.name),
            "cognitoAmr": null,
            "cognitoAuthenticationProvider": null,
            "cognitoAuthenticationType": null,
            "cognitoIdentityId": null,
            "cognitoIdentityPoolId": null,
            "principalOrgId": null,
            "sourceIp": request.source_ip,
            "user": identity.map(|own| &own.name),
            "userAgent": request.header("user-agent").unwrap_or_default(),
            "userArn": identity.map(|own| &own.arn),
        },
        "path": request.path,
        "protocol": request.protocol,
        "requestId": context.request_id,
        "requestTime": time_text(context.time_ms),
        "requestTimeEpoch": context.time_ms,
        "resourceId": context.route_key,
        "resourcePath": context.resource,
        "stage": context.stage,
    })
}

fn body(request: &HttpRequest<'_>) -> (String, bool) {
    encoded(request.body, request.header("content-type"), request.header("content-encoding"))
}

/// The first label of a host name.
fn prefix(domain_name: &str) -> &str {
    domain_name.split('.').next().unwrap_or_default()
}

fn time_text(time_ms: u64) -> String {
    let seconds = i64::try_from(time_ms / 1000).unwrap_or(i64::MAX);
    let time = OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    time.format(TIME).unwrap_or_default()
}

/// The cookies of all `Cookie` fields (RFC 6265 §4.2.1).
fn cookies<'a>(request: &HttpRequest<'a>) -> impl Iterator<Item = &'a str> {
    let fields = request.headers.iter().filter(|(name, _)| name == COOKIE);
    let all = fields.flat_map(|(_, value)| value.split(';'));
    all.map(str::trim).filter(|cookie| !cookie.is_empty())
}

/// The parameters of a query, decoded; `+` is a space. A text that is not in percent notation stays as it is.
pub fn parameters(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (form_decoded(name), form_decoded(value))
    };
    pairs.map(pair).collect()
}

fn form_decoded(text: &str) -> String {
    decoded(&text.replace('+', " "))
}

/// Decodes percent notation; a text that is not in it, or not UTF-8 then, stays as it is.
pub fn decoded(text: &str) -> String {
    let bytes = unlade_http::percent::decoded(text);
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_else(|| text.to_owned())
}

type Pairs<'a> = &'a (String, String);

/// Values of the same name joined by commas.
fn joined<'a>(pairs: impl Iterator<Item = Pairs<'a>>) -> Map<String, Value> {
    let mut map: BTreeMap<&str, String> = BTreeMap::new();
    for (name, value) in pairs {
        let joined = map.entry(name).and_modify(|joined| joined.push(',')).or_default();
        joined.push_str(value);
    }
    map.into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

/// The last value of each name.
fn last<'a>(pairs: impl Iterator<Item = Pairs<'a>>) -> Map<String, Value> {
    pairs.map(|(name, value)| (name.clone(), value.as_str().into())).collect()
}

/// All values of each name.
fn all<'a>(pairs: impl Iterator<Item = Pairs<'a>>) -> Map<String, Value> {
    let mut map: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, value) in pairs {
        map.entry(name).or_default().push(value);
    }
    map.into_iter().map(|(name, values)| (name.to_owned(), values.into())).collect()
}

fn none_if_empty(map: Map<String, Value>) -> Value {
    if map.is_empty() { Value::Null } else { Value::Object(map) }
}
