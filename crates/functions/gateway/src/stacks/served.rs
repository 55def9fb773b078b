//! The properties that have an effect, by type: a template with others is refused before anything is made.
//! Values that are functions may be absent in the end; the action of the resource looks at those.

use serde_json::Value;
use unlade_fn_stacks::template::Template;

use super::{bucket, http_api, log_group, queue, role, table, topic, url};

const OF_API: &str = "Lambda's API at this server does not serve it";
const FUNCTION: &[&str] = &[
    "Architectures",
    "Code",
    "DeadLetterConfig",
    "Description",
    "Environment",
    "EphemeralStorage",
    "FunctionName",
    "Handler",
    "LoggingConfig",
    "MemorySize",
    "PackageType",
    "ReservedConcurrentExecutions",
    "Role",
    "Runtime",
    "SnapStart",
    "Tags",
    "Timeout",
    "TracingConfig",
];
const VERSION: &[&str] =
    &["CodeSha256", "Description", "FunctionName", "ProvisionedConcurrencyConfig"];
const ALIAS: &[&str] = &[
    "Description",
    "FunctionName",
    "FunctionVersion",
    "Name",
    "ProvisionedConcurrencyConfig",
    "RoutingConfig",
];
const EVENTS: &[&str] = &[
    "DestinationConfig",
    "FunctionName",
    "MaximumEventAgeInSeconds",
    "MaximumRetryAttempts",
    "Qualifier",
];
const MAPPING: &[&str] = &[
    "BatchSize",
    "Enabled",
    "EventSourceArn",
    "FunctionName",
    "FunctionResponseTypes",
    "MaximumBatchingWindowInSeconds",
    "ScalingConfig",
];

/// The properties of a type, and what to do about others; `None` if all are.
fn known(kind: &str) -> Option<(Vec<&'static str>, &'static str)> {
    Some(match kind {
        "AWS::Lambda::Function" => (FUNCTION.to_vec(), OF_API),
        "AWS::Lambda::Version" => (VERSION.to_vec(), OF_API),
        "AWS::Lambda::Alias" => (ALIAS.to_vec(), OF_API),
        "AWS::Lambda::EventInvokeConfig" => (EVENTS.to_vec(), OF_API),
        "AWS::Lambda::EventSourceMapping" => (MAPPING.to_vec(), OF_API),
        "AWS::IAM::Role" => (role::ROLE.to_vec(), role::ADVICE),
        "AWS::IAM::Policy" => (role::POLICY.to_vec(), role::ADVICE),
        "AWS::IAM::ManagedPolicy" => (role::MANAGED.to_vec(), role::ADVICE),
        "AWS::Logs::LogGroup" => (log_group::PROPERTIES.to_vec(), log_group::ADVICE),
        "AWS::S3::Bucket" => (bucket::PROPERTIES.to_vec(), bucket::ADVICE),
        "AWS::S3::BucketPolicy" => (bucket::POLICY.to_vec(), bucket::ADVICE),
        "AWS::SQS::Queue" => (queue::known(), queue::ADVICE),
        "AWS::SNS::Topic" => (topic::known(), topic::ADVICE),
        "AWS::Lambda::Url" => (url::PROPERTIES.to_vec(), url::ADVICE),
        "AWS::ApiGatewayV2::Api" => (http_api::API.to_vec(), http_api::ADVICE),
        "AWS::ApiGatewayV2::Integration" => (http_api::INTEGRATION.to_vec(), http_api::ADVICE),
        "AWS::ApiGatewayV2::Route" => (http_api::ROUTE.to_vec(), http_api::ADVICE),
        "AWS::ApiGatewayV2::Stage" => (http_api::STAGE.to_vec(), http_api::ADVICE),
        "AWS::DynamoDB::Table" => (table::PROPERTIES.to_vec(), table::ADVICE),
        _ => return None,
    })
}

/// Returns true for a value that is nothing, or may be nothing once it is resolved.
fn may_be_absent(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => {
            members.is_empty() || members.contains_key("Ref") || members.contains_key("Fn::If")
        }
        _ => false,
    }
}

/// The first property of a template that would have no effect, and what to do.
pub fn first_unserved(template: &Template) -> Option<String> {
    for (name, declared) in &template.resources {
        let kind = declared.kind.as_str();
        let Some((known, advice)) = known(kind) else { continue };
        let members = declared.properties.as_object().into_iter().flatten();
        let mut others =
            members.filter(|(own, value)| !known.contains(&own.as_str()) && !may_be_absent(value));
        if let Some((other, _)) = others.next() {
            return Some(format!(
                "Properties validation failed for resource {name} with message: {other} of {kind} has \
                 no effect on this server: leave it out. {advice}"
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use unlade_fn_stacks::kinds;
    use unlade_fn_stacks::template::Declared;

    use super::*;

    fn template(kind: &str, properties: Value) -> Template {
        let text = json!({"kind": kind, "properties": properties, "depends_on": [],
            "condition": null, "deletion_policy": "Delete", "replace_policy": "Delete",
            "metadata": null});
        let declared: Declared = serde_json::from_value(text).unwrap();
        let resources = [("R".to_owned(), declared)].into();
        Template { resources, ..Template::default() }
    }

    #[test]
    fn a_property_without_an_effect_is_refused_unless_it_may_be_absent() {
        let of = |value: Value| {
            first_unserved(&template("AWS::SNS::Topic", json!({"Subscription": value})))
        };
        let why = of(json!([{"Protocol": "sqs"}])).unwrap();
        assert!(why.contains("resource R") && why.contains("Subscription"), "{why}");
        for absent in
            [json!([]), json!(null), json!({"Ref": "AWS::NoValue"}), json!({"Fn::If": []})]
        {
            assert_eq!(of(absent), None);
        }
        let layers = json!({"Handler": "a.b", "Layers": ["arn"]});
        assert!(first_unserved(&template("AWS::Lambda::Function", layers)).is_some());
    }

    #[test]
    fn properties_that_a_type_needs_or_is_named_by_are_served() {
        for kind in kinds::ALL {
            let Some((known, _)) = known(kind.name) else {
                assert_eq!(kind.name, "AWS::Lambda::Permission");
                continue;
            };
            let named = kind.naming.map(|(property, _)| property);
            for property in kind.required.iter().copied().chain(named) {
                assert!(known.contains(&property), "{}: {property}", kind.name);
            }
        }
    }
}
