//! A function of SAM: the function of Lambda, and the resources around it.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::base::{Generated, invalid, static_text};
use super::notifications::{self, Notification, Target};
use super::role::{self, Policies};
use super::{events, globals, http_api};
use crate::error::Failure;

/// Properties that the function of Lambda has by the same name.
const SAME: [&str; 14] = [
    "Architectures",
    "Description",
    "EphemeralStorage",
    "FileSystemConfigs",
    "FunctionName",
    "Handler",
    "Layers",
    "LoggingConfig",
    "MemorySize",
    "PackageType",
    "ReservedConcurrentExecutions",
    "Runtime",
    "SnapStart",
    "VpcConfig",
];
/// Properties that are read otherwise.
const OTHER: [&str; 21] = [
    "AssumeRolePolicyDocument",
    "AutoPublishAlias",
    "AutoPublishAliasAllProperties",
    "AutoPublishCodeSha256",
    "CodeUri",
    "DeadLetterQueue",
    "Environment",
    "EventInvokeConfig",
    "Events",
    "FunctionUrlConfig",
    "InlineCode",
    "KmsKeyArn",
    "PermissionsBoundary",
    "Policies",
    "ProvisionedConcurrencyConfig",
    "Role",
    "RolePath",
    "Tags",
    "Timeout",
    "Tracing",
    "VersionDescription",
];
/// Attributes of the resource that the generated ones get, too.
const INHERITED: [&str; 3] = ["Condition", "DeletionPolicy", "UpdateReplacePolicy"];
/// Characters of the hash in the name of a version.
const HASH_CHARS: usize = 10;

/// A function that is being expanded.
struct Expansion<'a> {
    id: &'a str,
    resource: &'a Map<String, Value>,
    properties: Map<String, Value>,
    parameters: &'a Map<String, Value>,
    /// The generated resources.
    made: Vec<(String, Value)>,
    /// Routes of HTTP APIs to the function.
    routes: Vec<http_api::Event>,
}

/// A function that was expanded.
pub(super) struct Expanded {
    /// Its resources.
    pub resources: Vec<(String, Value)>,
    /// Routes of HTTP APIs to it.
    pub routes: Vec<http_api::Event>,
}

/// Expands a function.
///
/// # Errors
/// A property is invalid or not supported.
pub(super) fn expand(
    id: &str,
    resource: &Value,
    globals: &Map<String, Value>,
    parameters: &Map<String, Value>,
    (generated, notifications): (&mut Generated, &mut Vec<Notification>),
) -> Result<Expanded, Failure> {
    let Value::Object(resource) = resource else {
        return Err(invalid(id, "it must be a mapping"));
    };
    let empty = Value::Object(Map::new());
    let own = resource.get("Properties").unwrap_or(&empty).as_object();
    let own = own.ok_or_else(|| invalid(id, "Properties must be a mapping"))?;
    let properties = globals::merged(globals, own);
    let (made, routes) = (Vec::new(), Vec::new());
    let mut expansion = Expansion { id, resource, properties, parameters, made, routes };
    expansion.check()?;
    let function = expansion.function()?;
    let alias = expansion.alias(&function, generated)?;
    let mut policies = Policies::basic();
    expansion.events(alias.as_deref(), &mut policies, notifications)?;
    expansion.url(alias.as_deref())?;
    expansion.dead_letters(&mut policies)?;
    expansion.event_config(alias.as_deref(), &mut policies)?;
    expansion.role(policies)?;
    let mut declared = resource.clone();
    declared.insert("Type".to_owned(), crate::kinds::FUNCTION.into());
    declared.insert("Properties".to_owned(), Value::Object(function));
    let mut resources = vec![(id.to_owned(), Value::Object(declared))];
    resources.append(&mut expansion.made);
    Ok(Expanded { resources, routes: expansion.routes })
}

impl Expansion<'_> {
    fn invalid(&self, why: &str) -> Failure {
        invalid(self.id, why)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.properties.get(key)
    }

    fn check(&self) -> Result<(), Failure> {
        let is_known = |key: &str| SAME.contains(&key) || OTHER.contains(&key);
        match self.properties.keys().find(|key| !is_known(key)) {
            None => Ok(()),
            Some(unknown) => {
                let advice = match unknown.as_str() {
                    "ImageUri" | "ImageConfig" => "functions are archives here: use CodeUri",
                    "DeploymentPreference" => "the alias moves at once: use AutoPublishAlias alone",
                    _ => "leave it out",
                };
                Err(self.invalid(&format!("The property {unknown} is not supported; {advice}")))
            }
        }
    }

    fn text(&self, key: &str) -> Result<Option<String>, Failure> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let text = static_text(value, self.parameters);
        let why = || self.invalid(&format!("{key} must be a string, or Ref of a parameter"));
        text.map(Some).ok_or_else(why)
    }

    fn function(&self) -> Result<Map<String, Value>, Failure> {
        let mut function = Map::new();
        for key in SAME.iter().chain(&["Timeout", "KmsKeyArn", "Environment"]) {
            if let Some(value) = self.get(key) {
                function.insert((*key).to_owned(), value.clone());
            }
        }
        function.insert("Code".to_owned(), self.code()?);
        function.insert("Tags".to_owned(), self.tags()?);
        let role = json!({"Fn::GetAtt": [format!("{}Role", self.id), "Arn"]});
        let role = self.get("Role").cloned().unwrap_or(role);
        function.insert("Role".to_owned(), role);
        if let Some(mode) = self.get("Tracing") {
            function.insert("TracingConfig".to_owned(), json!({"Mode": mode}));
        }
        if let Some(queue) = self.get("DeadLetterQueue") {
            let target = queue.get("TargetArn");
            let target = target.ok_or_else(|| self.invalid("DeadLetterQueue needs TargetArn"))?;
            function.insert("DeadLetterConfig".to_owned(), json!({"TargetArn": target}));
        }
        Ok(function)
    }

    fn code(&self) -> Result<Value, Failure> {
        match (self.get("InlineCode"), self.get("CodeUri")) {
            (Some(_), Some(_)) => {
                Err(self.invalid("Only one of InlineCode and CodeUri may be given."))
            }
            (Some(code), None) => {
                let runtime = self.text("Runtime")?.unwrap_or_default();
                match runtime.starts_with("python") {
                    true => Ok(json!({"ZipFile": code})),
                    false => Err(self.invalid("InlineCode is for Python only; use CodeUri")),
                }
            }
            (None, Some(Value::String(uri))) => self.code_of(uri),
            (None, Some(Value::Object(map))) => {
                let (Some(bucket), Some(key)) = (map.get("Bucket"), map.get("Key")) else {
                    return Err(self.invalid("CodeUri requires Bucket and Key properties"));
                };
                let mut code = json!({"S3Bucket": bucket, "S3Key": key});
                if let Some(version) = map.get("Version") {
                    code["S3ObjectVersion"] = version.clone();
                }
                Ok(code)
            }
            _ => {
                Err(self.invalid("One of InlineCode and CodeUri must be given: run `sam package`"))
            }
        }
    }

    fn code_of(&self, uri: &str) -> Result<Value, Failure> {
        let object = uri.starts_with("s3://").then(|| crate::query::object_of(uri));
        let Some(Ok(object)) = object else {
            return Err(self.invalid(
                "'CodeUri' is not a valid S3 Uri of the form 's3://bucket/key' with optional versionId \
                 query parameter.",
            ));
        };
        let mut code = json!({"S3Bucket": object.bucket, "S3Key": object.key});
        if let Some(version) = object.version {
            code["S3ObjectVersion"] = version.into();
        }
        Ok(code)
    }

    fn tags(&self) -> Result<Value, Failure> {
        let mut tags = vec![json!({"Key": "lambda:createdBy", "Value": "SAM"})];
        if let Some(own) = self.get("Tags") {
            let own = own.as_object().ok_or_else(|| self.invalid("Tags must be a mapping"))?;
            tags.extend(own.iter().map(|(key, value)| json!({"Key": key, "Value": value})));
        }
        Ok(tags.into())
    }

    /// Adds a generated resource with the attributes that it inherits.
    fn make(&mut self, id: String, kind: &str, properties: Value, more: &[(&str, Value)]) {
        let mut resource = Map::from_iter([
            ("Type".to_owned(), Value::from(kind)),
            ("Properties".to_owned(), properties),
        ]);
        for key in INHERITED {
            if let Some(value) = self.resource.get(key) {
                resource.insert(key.to_owned(), value.clone());
            }
        }
        for (key, value) in more {
            resource.insert((*key).to_owned(), value.clone());
        }
        self.made.push((id, Value::Object(resource)));
    }

    /// The version and the alias; returns the name of the alias's resource.
    fn alias(
        &mut self,
        function: &Map<String, Value>,
        generated: &mut Generated,
    ) -> Result<Option<String>, Failure> {
        let Some(name) = self.text("AutoPublishAlias")? else {
            return match self.get("ProvisionedConcurrencyConfig") {
                None => Ok(None),
                Some(_) => Err(self.invalid(
                    "To set ProvisionedConcurrencyConfig AutoPublishAlias must be defined on the function",
                )),
            };
        };
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_name) {
            let why = format!("AutoPublishAlias {name:?} must have letters, digits, - and _ only");
            return Err(self.invalid(&why));
        }
        let all = self.text("AutoPublishAliasAllProperties")?.is_some_and(|text| text == "true");
        let code = match all {
            true => Value::Object(function.clone()).to_string(),
            false => function.get("Code").map(Value::to_string).unwrap_or_default(),
        };
        let hashed = self.text("AutoPublishCodeSha256")?.filter(|_| !all).unwrap_or(code);
        let digest = Sha256::digest(hashed);
        let hash: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let version = format!("{}Version{}", self.id, &hash[..HASH_CHARS]);
        let mut properties = json!({"FunctionName": {"Ref": self.id}});
        if let Some(description) = self.get("VersionDescription") {
            properties["Description"] = description.clone();
        }
        // An old version stays: callers may name it.
        let kept = [("DeletionPolicy", Value::from("Retain"))];
        self.make(version.clone(), "AWS::Lambda::Version", properties, &kept);
        let mut properties = json!({
            "FunctionName": {"Ref": self.id},
            "FunctionVersion": {"Fn::GetAtt": [version, "Version"]},
            "Name": name,
        });
        if let Some(provisioned) = self.get("ProvisionedConcurrencyConfig") {
            properties["ProvisionedConcurrencyConfig"] = provisioned.clone();
        }
        // Logical names have letters and digits only.
        let alias = format!("{}Alias{}", self.id, name.replace('-', "D").replace('_', "U"));
        self.make(alias.clone(), "AWS::Lambda::Alias", properties, &[]);
        generated.insert(format!("{}.Version", self.id), version);
        generated.insert(format!("{}.Alias", self.id), alias.clone());
        Ok(Some(alias))
    }

    /// The permission of a bucket to invoke the function, and its notification.
    fn notification(
        &mut self,
        alias: Option<&str>,
        (name, event): (&str, &Value),
    ) -> Result<Notification, Failure> {
        let permission = format!("{}{name}Permission", self.id);
        let arn = match alias {
            Some(alias) => json!({ "Ref": alias }),
            None => json!({"Fn::GetAtt": [self.id, "Arn"]}),
        };
        let condition = self.resource.get("Condition");
        let target = Target { id: self.id, condition, arn };
        let notification = notifications::of_event(target, name, event, permission.clone())?;
        let properties = json!({
            "Action": "lambda:InvokeFunction",
            "FunctionName": {"Ref": alias.unwrap_or(self.id)},
            "Principal": "s3.amazonaws.com",
            "SourceAccount": {"Ref": "AWS::AccountId"},
        });
        self.make(permission, "AWS::Lambda::Permission", properties, &[]);
        Ok(notification)
    }

    fn events(
        &mut self,
        alias: Option<&str>,
        policies: &mut Policies,
        notifications: &mut Vec<Notification>,
    ) -> Result<(), Failure> {
        let Some(all) = self.get("Events").cloned() else { return Ok(()) };
        let all = all.as_object().ok_or_else(|| self.invalid("Events must be a mapping"))?;
        let is_route = |event: &Value| event.get("Type").and_then(Value::as_str) == Some("HttpApi");
        let (routes, others): (Vec<_>, Vec<_>) = all.iter().partition(|(_, event)| is_route(event));
        self.routes(alias, &routes)?;
        for (name, event) in others {
            if event.get("Type").is_some_and(|kind| kind == "S3") {
                notifications.push(self.notification(alias, (name, event))?);
                continue;
            }
            let mut mapping = events::mapping(self.id, name, event)?;
            let function = json!({"Ref": alias.unwrap_or(self.id)});
            mapping.insert("FunctionName".to_owned(), function);
            policies.add_managed(role::QUEUE);
            let kind = "AWS::Lambda::EventSourceMapping";
            self.make(format!("{}{name}", self.id), kind, Value::Object(mapping), &[]);
        }
        Ok(())
    }

    /// The routes of HTTP APIs to the function, with permissions.
    fn routes(&mut self, alias: Option<&str>, all: &[(&String, &Value)]) -> Result<(), Failure> {
        let mut read = Vec::new();
        for (name, event) in all {
            let about = (self.parameters, self.resource.get("Condition"));
            read.push((*name, http_api::Event::read((self.id, alias), name, event, about)?));
        }
        for (name, event) in &read {
            // The permission of a default route is one for all routes of its API.
            let is_covered = !event.is_default()
                && read.iter().any(|(_, other)| other.is_default() && other.api == event.api);
            if !is_covered {
                let permission = event.permission(alias.unwrap_or(self.id));
                let id = format!("{}{name}Permission", self.id);
                self.make(id, "AWS::Lambda::Permission", permission, &[]);
            }
        }
        self.routes = read.into_iter().map(|(_, event)| event).collect();
        Ok(())
    }

    /// The URL, with the permissions of one without authentication.
    fn url(&mut self, alias: Option<&str>) -> Result<(), Failure> {
        let Some(config) = self.get("FunctionUrlConfig").cloned() else { return Ok(()) };
        let config = config
            .as_object()
            .ok_or_else(|| self.invalid("FunctionUrlConfig must be a mapping with AuthType"))?;
        let auth = config.get("AuthType").ok_or_else(|| {
            self.invalid("AuthType is required to configure function property `FunctionUrlConfig`")
        })?;
        let function = json!({"Ref": alias.unwrap_or(self.id)});
        let mut properties = json!({"TargetFunctionArn": function});
        for (key, value) in config {
            if !["AuthType", "Cors", "InvokeMode"].contains(&key.as_str()) {
                let why = format!("FunctionUrlConfig: {key} is not supported; leave it out");
                return Err(self.invalid(&why));
            }
            properties[key] = value.clone();
        }
        self.make(format!("{}Url", self.id), "AWS::Lambda::Url", properties, &[]);
        let text = static_text(auth, self.parameters);
        let text = text.ok_or_else(|| self.invalid("AuthType must be NONE or AWS_IAM"))?;
        if text != "NONE" {
            return Ok(());
        }
        let kind = "AWS::Lambda::Permission";
        let url = json!({"Action": "lambda:InvokeFunctionUrl", "FunctionName": function,
            "Principal": "*", "FunctionUrlAuthType": auth});
        self.make(format!("{}UrlPublicPermissions", self.id), kind, url, &[]);
        let by_url = json!({"Action": "lambda:InvokeFunction", "FunctionName": function,
            "Principal": "*", "InvokedViaFunctionUrl": true});
        self.make(format!("{}URLInvokeAllowPublicAccess", self.id), kind, by_url, &[]);
        Ok(())
    }

    fn dead_letters(&self, policies: &mut Policies) -> Result<(), Failure> {
        let Some(queue) = self.get("DeadLetterQueue") else { return Ok(()) };
        let action = match queue.get("Type").and_then(Value::as_str) {
            Some("SQS") => "sqs:SendMessage",
            Some("SNS") => "sns:Publish",
            _ => {
                return Err(
                    self.invalid("DeadLetterQueue requires Type and TargetArn; Type is SQS or SNS")
                );
            }
        };
        let target = queue.get("TargetArn").unwrap_or(&Value::Null);
        policies.allow("DeadLetterQueuePolicy".to_owned(), action, target);
        Ok(())
    }

    fn event_config(
        &mut self,
        alias: Option<&str>,
        policies: &mut Policies,
    ) -> Result<(), Failure> {
        let Some(config) = self.get("EventInvokeConfig").cloned() else { return Ok(()) };
        let id = format!("{}EventInvokeConfig", self.id);
        let mut properties = json!({"FunctionName": {"Ref": self.id}, "Qualifier": "$LATEST"});
        for key in ["MaximumEventAgeInSeconds", "MaximumRetryAttempts"] {
            if let Some(value) = config.get(key) {
                properties[key] = value.clone();
            }
        }
        for when in ["OnSuccess", "OnFailure"] {
            let Some(one) = config.get("DestinationConfig").and_then(|all| all.get(when)) else {
                continue;
            };
            let kind = one.get("Type").and_then(Value::as_str).unwrap_or_default();
            let action = match kind {
                "SQS" => "sqs:SendMessage",
                "SNS" => "sns:Publish",
                "Lambda" => "lambda:InvokeFunction",
                "EventBridge" => "events:PutEvents",
                _ => {
                    let why = "must be SQS, SNS, Lambda or EventBridge";
                    return Err(self.invalid(&format!("Type of EventInvokeConfig's {when} {why}")));
                }
            };
            let Some(destination) = one.get("Destination") else {
                let why = format!(
                    "EventInvokeConfig's {when} needs Destination: declare a queue or topic, \
                                   and name its ARN"
                );
                return Err(self.invalid(&why));
            };
            policies.allow(format!("{id}{when}{kind}Policy"), action, destination);
            properties["DestinationConfig"][when] = json!({"Destination": destination});
        }
        let mut more = Vec::new();
        if let Some(alias) = alias {
            properties["Qualifier"] = self.text("AutoPublishAlias")?.unwrap_or_default().into();
            more.push(("DependsOn", json!([alias])));
        }
        self.make(id, "AWS::Lambda::EventInvokeConfig", properties, &more);
        Ok(())
    }

    fn role(&mut self, mut policies: Policies) -> Result<(), Failure> {
        if self.get("Role").is_some() {
            return Ok(());
        }
        if let Some(own) = self.get("Policies") {
            policies.add(self.id, own)?;
        }
        let tags = self.tags()?;
        let properties = Value::Object(policies.role(&self.properties, tags));
        self.make(format!("{}Role", self.id), "AWS::IAM::Role", properties, &[]);
        Ok(())
    }
}
