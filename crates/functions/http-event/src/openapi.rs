//! An HTTP API in an OpenAPI document with API Gateway's extensions (API Gateway developer guide, *Working
//! with OpenAPI definitions for HTTP APIs*): routes whose integrations are functions. A part that would have
//! no effect, and is no description, is refused by its name.

use serde_json::{Map, Value};

use crate::api::{Format, Integration, TIMEOUTS_MS};
use crate::cors::Cors;
use crate::route::{ANY, DEFAULT, check};

/// The extension with the function of an operation.
const INTEGRATION: &str = "x-amazon-apigateway-integration";
/// The extension that is every method.
const ANY_METHOD: &str = "x-amazon-apigateway-any-method";
/// The extension with the configuration of CORS.
const CORS: &str = "x-amazon-apigateway-cors";
/// Beginning of all extensions.
const EXTENSION: &str = "x-amazon-apigateway-";
/// Methods of operations.
const METHODS: [&str; 7] = ["delete", "get", "head", "options", "patch", "post", "put"];

/// The parts of a document that have an effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Document {
    /// The title.
    pub name: Option<String>,
    /// Cross-origin requests.
    pub cors: Option<Cors>,
    /// Keys of routes, with their functions.
    pub routes: Vec<(String, Integration)>,
}

/// Reads a document.
///
/// # Errors
/// A part is invalid or not served, with its place.
pub fn read(document: &Value) -> Result<Document, String> {
    let members = document.as_object().ok_or("the document must be an object")?;
    let mut read = Document::default();
    for (name, value) in members {
        match name.as_str() {
            "openapi" => version(value)?,
            "info" => read.name = value["title"].as_str().map(str::to_owned),
            "paths" => read.routes = paths(value)?,
            CORS => read.cors = Some(Cors::from_value(value)?),
            "components" if value.get("securitySchemes").is_some() => {
                return Err(unserved("components.securitySchemes"));
            }
            "security" if is_empty(value) => {}
            "tags" | "servers" | "components" | "externalDocs" => {}
            other => return Err(unserved(other)),
        }
    }
    Ok(read)
}

fn unserved(name: &str) -> String {
    format!("{name} of the OpenAPI document is not served: leave it out")
}

fn is_empty(value: &Value) -> bool {
    value.is_null() || value.as_array().is_some_and(Vec::is_empty)
}

fn version(value: &Value) -> Result<(), String> {
    match value.as_str().is_some_and(|version| version.starts_with("3.0")) {
        true => Ok(()),
        false => Err(format!("the document must have openapi 3.0.x, and has {value}")),
    }
}

fn paths(value: &Value) -> Result<Vec<(String, Integration)>, String> {
    let paths = value.as_object().ok_or("paths must be an object")?;
    let mut routes = Vec::new();
    for (path, item) in paths {
        let operations = item.as_object().ok_or_else(|| format!("{path} must be an object"))?;
        for (name, operation) in operations {
            let method = match name.as_str() {
                ANY_METHOD => ANY.to_owned(),
                name if METHODS.contains(&name) => name.to_ascii_uppercase(),
                "summary" | "description" | "parameters" => continue,
                other => return Err(unserved(&format!("{path}: {other}"))),
            };
            let key = match path.trim_start_matches('/') {
                DEFAULT if method == ANY => DEFAULT.to_owned(),
                _ => format!("{method} {path}"),
            };
            check(&key).map_err(|error| error.to_string())?;
            let integration = operation_of(operation).map_err(|why| format!("{key}: {why}"))?;
            routes.push((key, integration));
        }
    }
    Ok(routes)
}

fn operation_of(operation: &Value) -> Result<Integration, String> {
    let members = operation.as_object().ok_or("an operation must be an object")?;
    for (name, value) in members {
        let is_served = match name.as_str() {
            "security" => is_empty(value),
            INTEGRATION => true,
            other => !other.starts_with(EXTENSION),
        };
        if !is_served {
            return Err(unserved(name));
        }
    }
    let integration = members.get(INTEGRATION).and_then(Value::as_object);
    integration_of(integration.ok_or_else(|| format!("it has no {INTEGRATION}"))?)
}

fn integration_of(members: &Map<String, Value>) -> Result<Integration, String> {
    let text = |name: &str| members.get(name).and_then(Value::as_str);
    for (name, value) in members {
        let is_served = match name.as_str() {
            "connectionType" => value == "INTERNET",
            "type" => value.as_str().is_some_and(|own| own.eq_ignore_ascii_case("aws_proxy")),
            "httpMethod" | "payloadFormatVersion" | "timeoutInMillis" | "uri" => true,
            _ => false,
        };
        if !is_served {
            return Err(format!(
                "{name} of {INTEGRATION} is {value}: only functions (aws_proxy) are served"
            ));
        }
    }
    if text("type").is_none() {
        return Err(format!("{INTEGRATION} has no type aws_proxy"));
    }
    let function = Integration::function_of(text("uri").unwrap_or_default())?;
    let format = match members.get("payloadFormatVersion") {
        None => Format::V1,
        Some(value) => {
            let format = value.as_str().and_then(Format::parse);
            format.ok_or("payloadFormatVersion must be \"1.0\" or \"2.0\"")?
        }
    };
    let timeout_ms = timeout_ms(members.get("timeoutInMillis"))?;
    Ok(Integration { function, format, timeout_ms })
}

/// The time of an integration, in milliseconds: a number, its digits, or the longest one if absent.
///
/// # Errors
/// It is out of its range.
pub fn timeout_ms(value: Option<&Value>) -> Result<u32, String> {
    let number = match value {
        None | Some(Value::Null) => return Ok(*TIMEOUTS_MS.end()),
        Some(Value::Number(number)) => {
            number.as_u64().and_then(|number| u32::try_from(number).ok())
        }
        Some(Value::String(text)) => text.parse().ok(),
        Some(_) => None,
    };
    let (start, end) = (TIMEOUTS_MS.start(), TIMEOUTS_MS.end());
    let number = number.filter(|number| TIMEOUTS_MS.contains(number));
    number.ok_or_else(|| format!("the time of an integration is {start} to {end} ms"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const ARN: &str = "arn:aws:lambda:us-east-1:000000000000:function:f";

    fn operation() -> Value {
        let uri = format!(
            "arn:aws:apigateway:us-east-1:lambda:path/2015-03-31/functions/{ARN}/invocations"
        );
        let integration = json!({"type": "aws_proxy", "httpMethod": "POST", "uri": uri,
            "payloadFormatVersion": "2.0"});
        json!({"responses": {}, (INTEGRATION): integration})
    }

    #[test]
    fn a_document_has_routes() {
        let mut slow = operation();
        slow[INTEGRATION]["timeoutInMillis"] = 500.into();
        slow[INTEGRATION].as_object_mut().unwrap().remove("payloadFormatVersion");
        let document = json!({
            "openapi": "3.0.1", "info": {"title": "pets", "version": "1.0"}, "tags": [],
            (CORS): {"allowOrigins": ["*"]},
            "paths": {
                "/pets/{id}": {"get": operation(), "parameters": []},
                "/x": {(ANY_METHOD): slow},
                "$default": {(ANY_METHOD): operation()},
            },
        });
        let read = read(&document).unwrap();
        let of = |format, timeout_ms| Integration { function: ARN.to_owned(), format, timeout_ms };
        let due = [
            ("$default".to_owned(), of(Format::V2, 30_000)),
            ("GET /pets/{id}".to_owned(), of(Format::V2, 30_000)),
            ("ANY /x".to_owned(), of(Format::V1, 500)),
        ];
        let mut found = read.routes;
        found.sort_by_key(|(key, _)| key.split(' ').next_back().map(str::to_owned));
        assert_eq!(found, due);
        assert_eq!(read.name.as_deref(), Some("pets"));
        assert_eq!(read.cors.unwrap().allow_origins, ["*"]);
    }

    #[test]
    fn a_part_without_an_effect_is_refused_by_its_name() {
        let of = |path: &str, name: &str, operation: Value| json!({"openapi": "3.0.1", "paths": {path: {name: operation}}});
        let with = |member: &str, value: Value| {
            let mut own = operation();
            own[member] = value;
            own
        };
        let inner = |member: &str, value: Value| {
            let mut own = operation();
            own[INTEGRATION][member] = value;
            own
        };
        for (wrong, word) in [
            (json!({"openapi": "2.0"}), "openapi"),
            (json!({"security": [{"a": []}]}), "security"),
            (json!({"components": {"securitySchemes": {}}}), "securitySchemes"),
            (json!({"x-amazon-apigateway-importexport-version": "1"}), "importexport"),
            (of("/a", "trace", operation()), "trace"),
            (of("a", "get", operation()), "route key"),
            (of("/{a+}/b", "get", operation()), "route key"),
            (of("/a", "get", json!({})), INTEGRATION),
            (of("/a", "get", with("security", json!([{"a": []}]))), "security"),
            (of("/a", "get", with("x-amazon-apigateway-auth", json!({}))), "auth"),
            (of("/a", "get", inner("type", "http_proxy".into())), "http_proxy"),
            (of("/a", "get", inner("requestParameters", json!({}))), "requestParameters"),
            (of("/a", "get", inner("uri", "https://example.com".into())), "example.com"),
            (of("/a", "get", inner("payloadFormatVersion", "3.0".into())), "payloadFormat"),
            (of("/a", "get", inner("timeoutInMillis", 49.into())), "50 to 30000"),
        ] {
            let why = read(&wrong).unwrap_err();
            assert!(why.contains(word), "{wrong}: {why}");
        }
    }
}
