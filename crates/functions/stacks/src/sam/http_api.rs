//! HTTP APIs of SAM: events of the type `HttpApi`, and resources of the type `AWS::Serverless::HttpApi`. An API
//! becomes an OpenAPI document with a path for each event, and a stage.

use serde_json::{Map, Value, json};

use super::base::{invalid, static_text};
use crate::error::Failure;
use crate::functions::call;

/// The type that is expanded.
pub(super) const TYPE: &str = "AWS::Serverless::HttpApi";
/// The name of the API of events that name none.
pub(super) const IMPLICIT: &str = "ServerlessHttpApi";
/// The path and the key of the route for all other requests.
const DEFAULT: &str = "$default";
/// The tag of what SAM has made.
const CREATED_BY: (&str, &str) = ("httpapi:createdBy", "SAM");
/// Properties of an API that have an effect.
const PROPERTIES: [&str; 8] = [
    "CorsConfiguration",
    "DefinitionBody",
    "Description",
    "FailOnWarnings",
    "Name",
    "StageName",
    "StageVariables",
    "Tags",
];
/// Properties of all APIs, in `Globals`.
const GLOBALS: [&str; 3] = ["CorsConfiguration", "StageVariables", "Tags"];
/// Properties of an event that have an effect.
const OF_EVENT: [&str; 5] = ["ApiId", "Method", "PayloadFormatVersion", "Path", "TimeoutInMillis"];
/// Methods of operations.
const METHODS: [&str; 7] = ["delete", "get", "head", "options", "patch", "post", "put"];
const ANY_METHOD: &str = "x-amazon-apigateway-any-method";

/// An event: a route to a function.
#[derive(Clone, Debug)]
pub(super) struct Event {
    /// The name of the API's resource.
    pub api: String,
    /// The path; `$default` for all other requests.
    path: String,
    /// The name of the operation in the document.
    operation: String,
    /// `Version` of the payload, and other members of the integration.
    format: Value,
    timeout: Option<Value>,
    /// The text for `Fn::Sub` of the function's or alias's ARN.
    target: String,
    /// The condition of the function.
    condition: Option<Value>,
}

impl Event {
    /// Reads an event of a function; `alias` is the resource of its alias.
    ///
    /// # Errors
    /// A property is invalid or not supported.
    pub fn read(
        (function, alias): (&str, Option<&str>),
        name: &str,
        event: &Value,
        (parameters, condition): (&Map<String, Value>, Option<&Value>),
    ) -> Result<Event, Failure> {
        let wrong =
            |why: &str| invalid(function, &format!("Event with id [{name}] is invalid. {why}"));
        let empty = Map::new();
        let properties = match event.get("Properties") {
            None | Some(Value::Null) => &empty,
            Some(own) => own.as_object().ok_or_else(|| wrong("Properties must be a mapping."))?,
        };
        if let Some(other) = properties.keys().find(|key| !OF_EVENT.contains(&key.as_str())) {
            return Err(wrong(&format!("Its property {other} is not supported; leave it out.")));
        }
        let text = |key: &str| properties.get(key).map(|own| static_text(own, parameters));
        let (path, operation) = match (text("Path"), text("Method")) {
            (None, None) => (DEFAULT.to_owned(), ANY_METHOD.to_owned()),
            (Some(Some(path)), Some(Some(method))) => {
                let method = method.to_ascii_lowercase();
                let operation = match method.as_str() {
                    "any" | ANY_METHOD => ANY_METHOD,
                    method if METHODS.contains(&method) => method,
                    _ => return Err(wrong("Its Method is none of HTTP, nor ANY.")),
                };
                (path, operation.to_owned())
            }
            _ => return Err(wrong("Path and Method must be given both, as text, or neither.")),
        };
        let api = match properties.get("ApiId") {
            None => IMPLICIT.to_owned(),
            Some(own) => match call(own) {
                Some(("Ref", name)) => name.as_str().unwrap_or_default().to_owned(),
                _ => return Err(wrong(&format!("ApiId must be Ref of an {TYPE}."))),
            },
        };
        let format = properties.get("PayloadFormatVersion").cloned();
        Ok(Event {
            api,
            path,
            operation,
            format: format.unwrap_or_else(|| "2.0".into()),
            timeout: properties.get("TimeoutInMillis").cloned(),
            target: alias.map_or_else(|| format!("{function}.Arn"), str::to_owned),
            condition: condition.cloned(),
        })
    }

    /// Returns true if the event is of all other requests.
    pub fn is_default(&self) -> bool {
        self.path == DEFAULT
    }

    /// The properties of the permission to invoke the function.
    pub fn permission(&self, function: &str) -> Value {
        let method = match self.operation.as_str() {
            ANY_METHOD => "*".to_owned(),
            method => method.to_ascii_uppercase(),
        };
        let route = match self.is_default() {
            true => "*".to_owned(),
            false => method + &without_variables(&self.path),
        };
        let arn = "arn:${AWS::Partition}:execute-api:${AWS::Region}:${AWS::AccountId}:${__ApiId__}/\
                   ${__Stage__}/";
        let names = json!({"__ApiId__": {"Ref": self.api}, "__Stage__": "*"});
        json!({
            "Action": "lambda:InvokeFunction",
            "FunctionName": {"Ref": function},
            "Principal": "apigateway.amazonaws.com",
            "SourceArn": {"Fn::Sub": [format!("{arn}{route}"), names]},
        })
    }

    /// The operation in an OpenAPI document.
    fn described(&self) -> Value {
        let uri = format!(
            "arn:${{AWS::Partition}}:apigateway:${{AWS::Region}}:lambda:path/2015-03-31/functions/${{{}}}/\
             invocations",
            self.target
        );
        let mut integration = json!({
            "type": "aws_proxy",
            "httpMethod": "POST",
            "payloadFormatVersion": self.format,
            "uri": {"Fn::Sub": uri},
        });
        if let Some(timeout) = &self.timeout {
            integration["timeoutInMillis"] = timeout.clone();
        }
        let mut operation =
            json!({"responses": {}, "x-amazon-apigateway-integration": integration});
        if self.is_default() {
            operation["isDefaultRoute"] = true.into();
        }
        let variables = self.path.split('{').skip(1).filter_map(|rest| rest.split_once('}'));
        let variables: Vec<Value> = variables
            .map(|(name, _)| json!({"name": name, "in": "path", "required": true}))
            .collect();
        if !variables.is_empty() {
            operation["parameters"] = variables.into();
        }
        match &self.condition {
            None => operation,
            Some(condition) => {
                json!({"Fn::If": [condition, operation, {"Ref": "AWS::NoValue"}]})
            }
        }
    }
}

/// A path with `*` in the place of its variables.
fn without_variables(path: &str) -> String {
    let mut parts = path.split('{');
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push('*');
        out.push_str(part.split_once('}').map_or("", |(_, rest)| rest));
    }
    out
}

/// Checks the properties of all APIs, in `Globals`.
///
/// # Errors
/// One has no effect.
pub(super) fn check_globals(globals: &Map<String, Value>) -> Result<(), Failure> {
    match globals.keys().find(|key| !GLOBALS.contains(&key.as_str())) {
        None => Ok(()),
        Some(other) => {
            let why = format!("'{other}' of HttpApi is not supported; leave it out");
            Err(invalid("Globals", &why))
        }
    }
}

/// Expands an API with its events. `resource` is empty for the implicit one; `properties` has those of
/// `Globals`, too.
///
/// # Errors
/// A property is invalid or not supported, or two events have the same route.
pub(super) fn expand(
    id: &str,
    resource: &Map<String, Value>,
    properties: &Map<String, Value>,
    events: &[Event],
    parameters: &Map<String, Value>,
) -> Result<Vec<(String, Value)>, Failure> {
    if let Some(other) = properties.keys().find(|key| !PROPERTIES.contains(&key.as_str())) {
        let why = format!("The property {other} is not supported; leave it out");
        return Err(invalid(id, &why));
    }
    let mut tags = match properties.get("Tags") {
        None => Map::new(),
        Some(own) => {
            own.as_object().cloned().ok_or_else(|| invalid(id, "Tags must be a mapping"))?
        }
    };
    tags.insert(CREATED_BY.0.to_owned(), CREATED_BY.1.into());
    let body = document(id, properties, &tags, events)?;
    let mut own = json!({ "Body": body });
    if let Some(flag) = properties.get("FailOnWarnings") {
        own["FailOnWarnings"] = flag.clone();
    }
    let mut api = resource.clone();
    api.insert("Type".to_owned(), "AWS::ApiGatewayV2::Api".into());
    api.insert("Properties".to_owned(), own);
    let (name, stage) = stage(id, resource, properties, &tags, parameters);
    Ok(vec![(id.to_owned(), Value::Object(api)), (name, stage)])
}

fn document(
    id: &str,
    properties: &Map<String, Value>,
    tags: &Map<String, Value>,
    events: &[Event],
) -> Result<Value, Failure> {
    let mut body = match properties.get("DefinitionBody") {
        None => {
            let mut info = json!({"version": "1.0", "title": {"Ref": "AWS::StackName"}});
            if let Some(name) = properties.get("Name") {
                info["title"] = name.clone();
            }
            json!({"openapi": "3.0.1", "info": info, "paths": {}})
        }
        Some(own) if own.is_object() && call(own).is_none() => own.clone(),
        Some(_) => return Err(invalid(id, "DefinitionBody must be an OpenAPI document")),
    };
    if let Some(description) = properties.get("Description") {
        body["info"]["description"] = description.clone();
    }
    if body.get("paths").is_none_or(Value::is_null) {
        body["paths"] = json!({});
    }
    for event in events {
        let paths = body["paths"].as_object_mut();
        let paths = paths.ok_or_else(|| invalid(id, "paths must be a mapping"))?;
        let path = paths.entry(&event.path).or_insert_with(|| json!({}));
        let path = path.as_object_mut();
        let path = path.ok_or_else(|| invalid(id, "a path must be a mapping"))?;
        if path.insert(event.operation.clone(), event.described()).is_some() {
            let why = format!("The route {} {} is there twice", event.operation, event.path);
            return Err(invalid(id, &why));
        }
    }
    if let Some(cors) = properties.get("CorsConfiguration") {
        body["x-amazon-apigateway-cors"] = cors_of(id, cors)?;
    }
    let tag = |(name, value): (&String, &Value)| json!({"name": name, "x-amazon-apigateway-tag-value": value});
    body["tags"] = tags.iter().map(tag).collect::<Vec<_>>().into();
    Ok(body)
}

/// The configuration of CORS in a document: `true` is every origin.
fn cors_of(id: &str, cors: &Value) -> Result<Value, Failure> {
    match cors {
        Value::Bool(true) => Ok(json!({"allowOrigins": ["*"]})),
        Value::Object(members) if call(cors).is_none() => {
            let lower = |(name, value): (&String, &Value)| {
                let mut name = name.clone();
                if let Some(first) = name.get_mut(..1) {
                    first.make_ascii_lowercase();
                }
                (name, value.clone())
            };
            Ok(Value::Object(members.iter().map(lower).collect()))
        }
        _ => Err(invalid(id, "CorsConfiguration must be true or a mapping")),
    }
}

/// The name and the resource of the stage.
fn stage(
    id: &str,
    resource: &Map<String, Value>,
    properties: &Map<String, Value>,
    tags: &Map<String, Value>,
    parameters: &Map<String, Value>,
) -> (String, Value) {
    let declared = properties.get("StageName");
    let stage = declared.cloned().unwrap_or_else(|| DEFAULT.into());
    let name = match static_text(&stage, parameters) {
        Some(text) if text == DEFAULT => format!("{id}ApiGatewayDefaultStage"),
        // Logical names have letters and digits only.
        Some(text) => {
            let letters: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
            format!("{id}{letters}Stage")
        }
        None => format!("{id}Stage"),
    };
    let mut own =
        json!({"ApiId": {"Ref": id}, "StageName": stage, "AutoDeploy": true, "Tags": tags});
    if let Some(variables) = properties.get("StageVariables") {
        own["StageVariables"] = variables.clone();
    }
    let mut made = json!({"Type": "AWS::ApiGatewayV2::Stage", "Properties": own});
    for key in ["Condition", "DeletionPolicy", "UpdateReplacePolicy"] {
        if let Some(value) = resource.get(key) {
            made[key] = value.clone();
        }
    }
    (name, made)
}
