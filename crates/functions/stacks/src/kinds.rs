//! The types of resources that a stack may have: their names, attributes, and the properties that make a new
//! resource necessary when they change (CloudFormation's resource reference).

use serde_json::Value;
use sha2::{Digest, Sha256};

/// A type of resources.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// Its name in templates.
    pub name: &'static str,
    /// The property with the name that a template may choose, and the most bytes of a name.
    pub naming: Option<(&'static str, usize)>,
    /// Properties without which no resource is made.
    pub required: &'static [&'static str],
    /// Properties whose change needs a replacement.
    pub create_only: &'static [&'static str],
    /// The attributes of `Fn::GetAtt`.
    pub attributes: &'static [&'static str],
    /// The resource gives rights, so a request has to acknowledge it.
    pub is_identity: bool,
}

const fn kind(
    name: &'static str,
    naming: Option<(&'static str, usize)>,
    required: &'static [&'static str],
    create_only: &'static [&'static str],
    attributes: &'static [&'static str],
) -> Kind {
    Kind { name, naming, required, create_only, attributes, is_identity: false }
}

const fn identity(kind: Kind) -> Kind {
    Kind { is_identity: true, ..kind }
}

/// The functions of Lambda.
pub const FUNCTION: &str = "AWS::Lambda::Function";
const PERMISSION: &[&str] = &[
    "Action",
    "EventSourceToken",
    "FunctionName",
    "FunctionUrlAuthType",
    "InvokedViaFunctionUrl",
    "Principal",
    "PrincipalOrgID",
    "SourceAccount",
    "SourceArn",
];

/// All types, by name.
pub const ALL: &[Kind] = &[
    kind("AWS::ApiGatewayV2::Api", None, &[], &["ProtocolType"], &["ApiEndpoint", "ApiId"]),
    kind(
        "AWS::ApiGatewayV2::Integration",
        None,
        &["ApiId", "IntegrationType"],
        &["ApiId"],
        &["IntegrationId"],
    ),
    kind("AWS::ApiGatewayV2::Route", None, &["ApiId", "RouteKey"], &["ApiId"], &["RouteId"]),
    kind("AWS::ApiGatewayV2::Stage", None, &["ApiId", "StageName"], &["ApiId", "StageName"], &[]),
    kind(
        "AWS::DynamoDB::Table",
        Some(("TableName", 255)),
        &["KeySchema"],
        &["TableName", "KeySchema", "LocalSecondaryIndexes", "ImportSourceSpecification"],
        &["Arn", "StreamArn"],
    ),
    identity(kind(
        "AWS::IAM::ManagedPolicy",
        Some(("ManagedPolicyName", 128)),
        &["PolicyDocument"],
        &["ManagedPolicyName", "Description", "Path"],
        &["PolicyArn"],
    )),
    identity(kind(
        "AWS::IAM::Policy",
        None,
        &["PolicyDocument", "PolicyName"],
        &["PolicyName"],
        &["Id"],
    )),
    identity(kind(
        "AWS::IAM::Role",
        Some(("RoleName", 64)),
        &["AssumeRolePolicyDocument"],
        &["RoleName", "Path"],
        &["Arn", "RoleId"],
    )),
    kind(
        "AWS::Lambda::Alias",
        None,
        &["FunctionName", "FunctionVersion", "Name"],
        &["FunctionName", "Name"],
        &["AliasArn"],
    ),
    kind(
        "AWS::Lambda::EventInvokeConfig",
        None,
        &["FunctionName", "Qualifier"],
        &["FunctionName", "Qualifier"],
        &[],
    ),
    kind(
        "AWS::Lambda::EventSourceMapping",
        None,
        &["FunctionName"],
        &[
            "EventSourceArn",
            "SelfManagedEventSource",
            "StartingPosition",
            "StartingPositionTimestamp",
        ],
        &["Id", "EventSourceMappingArn"],
    ),
    kind(
        FUNCTION,
        Some(("FunctionName", 64)),
        &["Code", "Role"],
        &["FunctionName", "PackageType"],
        &["Arn"],
    ),
    kind(
        "AWS::Lambda::Permission",
        None,
        &["Action", "FunctionName", "Principal"],
        PERMISSION,
        &["Id"],
    ),
    kind(
        "AWS::Lambda::Url",
        None,
        &["AuthType", "TargetFunctionArn"],
        &["Qualifier", "TargetFunctionArn"],
        &["FunctionArn", "FunctionUrl"],
    ),
    kind(
        "AWS::Lambda::Version",
        None,
        &["FunctionName"],
        &["FunctionName", "Description", "CodeSha256"],
        &["Version", "FunctionArn"],
    ),
    kind("AWS::Logs::LogGroup", Some(("LogGroupName", 512)), &[], &["LogGroupName"], &["Arn"]),
    kind(
        "AWS::S3::Bucket",
        Some(("BucketName", 63)),
        &[],
        &["BucketName", "ObjectLockEnabled"],
        &["Arn", "DomainName", "DualStackDomainName", "RegionalDomainName", "WebsiteURL"],
    ),
    kind("AWS::S3::BucketPolicy", None, &["Bucket", "PolicyDocument"], &["Bucket"], &[]),
    kind(
        "AWS::SNS::Topic",
        Some(("TopicName", 256)),
        &[],
        &["TopicName", "FifoTopic"],
        &["TopicArn", "TopicName"],
    ),
    kind(
        "AWS::SQS::Queue",
        Some(("QueueName", 80)),
        &[],
        &["QueueName", "FifoQueue"],
        &["Arn", "QueueName", "QueueUrl"],
    ),
];

/// The types whose resources get the tags of their stack.
const TAGGED: [&str; 7] = [
    "AWS::DynamoDB::Table",
    "AWS::IAM::Role",
    "AWS::Lambda::Function",
    "AWS::Logs::LogGroup",
    "AWS::S3::Bucket",
    "AWS::SNS::Topic",
    "AWS::SQS::Queue",
];

impl Kind {
    /// Returns true if resources of this type get the tags of their stack.
    pub fn is_tagged(&self) -> bool {
        TAGGED.contains(&self.name)
    }
}

/// The type of a name.
pub fn find(name: &str) -> Option<&'static Kind> {
    ALL.iter().find(|kind| kind.name == name)
}

/// The names of all types, for messages.
pub fn names() -> String {
    let names: Vec<_> = ALL.iter().map(|kind| kind.name).collect();
    names.join(", ")
}

/// Bytes of the part of a generated name that differs between two resources.
const SUFFIX_BYTES: usize = 12;

/// The name of a resource whose template gives none: stack, logical name and a hash of the stack's identifier
/// and the resource's number in it. The same resource always gets the same name, so a repeated creation
/// finds the first one.
pub fn generated_name(
    kind: &Kind,
    stack: (&str, &str),
    logical_id: &str,
    serial: u64,
    properties: &Value,
) -> String {
    let (stack_name, stack_id) = stack;
    let digest = Sha256::digest(format!("{stack_id}\n{logical_id}\n{serial}"));
    let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let suffix = digest.iter().take(SUFFIX_BYTES);
    let suffix: String = suffix.map(|byte| char::from(letters[usize::from(byte % 32)])).collect();
    let is_fifo = ["FifoQueue", "FifoTopic"].iter().any(|key| match properties.get(key) {
        Some(Value::Bool(value)) => *value,
        Some(Value::String(text)) => text.eq_ignore_ascii_case("true"),
        _ => false,
    });
    let ending = if is_fifo { ".fifo" } else { "" };
    let rest = SUFFIX_BYTES + 2 + ending.len();
    let bytes_max = kind.naming.map_or(128, |(_, bytes_max)| bytes_max) - rest;
    // Both parts are ASCII: `template.rs` and `stacks.rs` check them.
    let stack_bytes =
        stack_name.len().min(bytes_max.saturating_sub(logical_id.len().min(bytes_max / 2)));
    let logical_bytes = logical_id.len().min(bytes_max - stack_bytes);
    let (stack_part, logical_part) = (&stack_name[..stack_bytes], &logical_id[..logical_bytes]);
    let name = format!("{stack_part}-{logical_part}-{suffix}{ending}");
    if kind.name == "AWS::S3::Bucket" { name.to_ascii_lowercase() } else { name }
}

/// The name that the template chose for a resource.
pub fn chosen_name<'a>(kind: &Kind, properties: &'a Value) -> Option<&'a str> {
    let (property, _) = kind.naming?;
    properties.get(property)?.as_str()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn generated_names_fit_and_differ() {
        let (long, id) = ("s".repeat(128), "L".repeat(255));
        for kind in ALL {
            for (stack, logical) in
                [("app", "Queue"), (long.as_str(), id.as_str()), ("a", id.as_str())]
            {
                let name =
                    |serial| generated_name(kind, (stack, "arn"), logical, serial, &json!({}));
                assert!(name(1).len() <= kind.naming.map_or(128, |(_, max)| max), "{}", name(1));
                assert_eq!(name(1), name(1));
                assert_ne!(name(1), name(2));
            }
        }
        let queue = find("AWS::SQS::Queue").unwrap();
        let name = generated_name(queue, ("app", "arn"), "Q", 1, &json!({"FifoQueue": "true"}));
        assert!(name.starts_with("app-Q-") && name.ends_with(".fifo"), "{name}");
        let bucket = find("AWS::S3::Bucket").unwrap();
        let name = generated_name(bucket, ("App", "arn"), "Photos", 1, &json!({}));
        assert!(name.starts_with("app-photos-"), "{name}");
        assert_eq!(chosen_name(bucket, &json!({"BucketName": "b"})), Some("b"));
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(ALL.is_sorted_by_key(|kind| kind.name));
        assert!(find("AWS::EC2::Instance").is_none());
        assert!(names().contains("AWS::Lambda::Function, "));
    }
}
