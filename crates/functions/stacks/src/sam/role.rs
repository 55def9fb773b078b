//! The role that is generated for a function without one.

use serde_json::{Map, Value, json};

use super::base::invalid;
use crate::error::Failure;
use crate::functions::call;

/// The managed policy that each generated role has.
const BASIC: &str = "AWSLambdaBasicExecutionRole";
/// The one of functions that a queue feeds.
pub(super) const QUEUE: &str = "AWSLambdaSQSQueueExecutionRole";
/// Managed policies below `service-role/`.
const SERVICE_ROLES: [&str; 8] = [
    BASIC,
    "AWSLambdaDynamoDBExecutionRole",
    "AWSLambdaENIManagementAccess",
    "AWSLambdaKinesisExecutionRole",
    "AWSLambdaMSKExecutionRole",
    "AWSLambdaRole",
    QUEUE,
    "AWSLambdaVPCAccessExecutionRole",
];

/// A policy template of SAM: its name, parameter, actions, and resources. `@` in a resource is the
/// parameter.
struct PolicyTemplate {
    name: &'static str,
    parameter: &'static str,
    actions: &'static [&'static str],
    resources: &'static [&'static str],
}

const fn template(
    name: &'static str,
    parameter: &'static str,
    actions: &'static [&'static str],
    resources: &'static [&'static str],
) -> PolicyTemplate {
    PolicyTemplate { name, parameter, actions, resources }
}

const BUCKET: &[&str] = &["arn:${AWS::Partition}:s3:::@", "arn:${AWS::Partition}:s3:::@/*"];
const SQS: &[&str] = &["arn:${AWS::Partition}:sqs:${AWS::Region}:${AWS::AccountId}:@"];
const TABLE: &[&str] = &[
    "arn:${AWS::Partition}:dynamodb:${AWS::Region}:${AWS::AccountId}:table/@",
    "arn:${AWS::Partition}:dynamodb:${AWS::Region}:${AWS::AccountId}:table/@/index/*",
];

const TEMPLATES: [PolicyTemplate; 10] = [
    template(
        "DynamoDBCrudPolicy",
        "TableName",
        &[
            "dynamodb:GetItem",
            "dynamodb:DeleteItem",
            "dynamodb:PutItem",
            "dynamodb:Scan",
            "dynamodb:Query",
            "dynamodb:UpdateItem",
            "dynamodb:BatchWriteItem",
            "dynamodb:BatchGetItem",
            "dynamodb:DescribeTable",
            "dynamodb:ConditionCheckItem",
        ],
        TABLE,
    ),
    template(
        "DynamoDBReadPolicy",
        "TableName",
        &[
            "dynamodb:GetItem",
            "dynamodb:Scan",
            "dynamodb:Query",
            "dynamodb:BatchGetItem",
            "dynamodb:DescribeTable",
        ],
        TABLE,
    ),
    template(
        "DynamoDBWritePolicy",
        "TableName",
        &["dynamodb:PutItem", "dynamodb:UpdateItem", "dynamodb:BatchWriteItem"],
        TABLE,
    ),
    template(
        "LambdaInvokePolicy",
        "FunctionName",
        &["lambda:InvokeFunction"],
        &["arn:${AWS::Partition}:lambda:${AWS::Region}:${AWS::AccountId}:function:@*"],
    ),
    template(
        "S3CrudPolicy",
        "BucketName",
        &[
            "s3:GetObject",
            "s3:ListBucket",
            "s3:GetBucketLocation",
            "s3:GetObjectVersion",
            "s3:PutObject",
            "s3:PutObjectAcl",
            "s3:GetLifecycleConfiguration",
            "s3:PutLifecycleConfiguration",
            "s3:DeleteObject",
        ],
        BUCKET,
    ),
    template(
        "S3ReadPolicy",
        "BucketName",
        &[
            "s3:GetObject",
            "s3:ListBucket",
            "s3:GetBucketLocation",
            "s3:GetObjectVersion",
            "s3:GetLifecycleConfiguration",
        ],
        BUCKET,
    ),
    template(
        "S3WritePolicy",
        "BucketName",
        &["s3:PutObject", "s3:PutObjectAcl", "s3:PutLifecycleConfiguration"],
        BUCKET,
    ),
    template(
        "SNSPublishMessagePolicy",
        "TopicName",
        &["sns:Publish"],
        &["arn:${AWS::Partition}:sns:${AWS::Region}:${AWS::AccountId}:@"],
    ),
    template(
        "SQSPollerPolicy",
        "QueueName",
        &[
            "sqs:ChangeMessageVisibility",
            "sqs:ChangeMessageVisibilityBatch",
            "sqs:DeleteMessage",
            "sqs:DeleteMessageBatch",
            "sqs:GetQueueAttributes",
            "sqs:ReceiveMessage",
        ],
        SQS,
    ),
    template("SQSSendMessagePolicy", "QueueName", &["sqs:SendMessage*"], SQS),
];

/// The managed and inline policies of a role.
#[derive(Default)]
pub(super) struct Policies {
    managed: Vec<Value>,
    inline: Vec<Value>,
}

impl Policies {
    /// The policies that a role always has.
    pub fn basic() -> Policies {
        let mut policies = Policies::default();
        policies.add_managed(BASIC);
        policies
    }

    /// Adds a managed policy by its name or ARN.
    pub fn add_managed(&mut self, name: &str) {
        let arn = match name {
            _ if name.starts_with("arn:") => name.to_owned(),
            _ if SERVICE_ROLES.contains(&name) => {
                format!("arn:aws:iam::aws:policy/service-role/{name}")
            }
            _ => format!("arn:aws:iam::aws:policy/{name}"),
        };
        self.add_value(arn.into());
    }

    fn add_value(&mut self, value: Value) {
        if !self.managed.contains(&value) {
            self.managed.push(value);
        }
    }

    /// Adds an inline policy that allows an action on a resource.
    pub fn allow(&mut self, name: String, action: &str, resource: &Value) {
        let statement = json!({"Effect": "Allow", "Action": action, "Resource": resource});
        self.add_inline(name, json!({"Version": "2012-10-17", "Statement": [statement]}));
    }

    fn add_inline(&mut self, name: String, document: Value) {
        self.inline.push(json!({"PolicyName": name, "PolicyDocument": document}));
    }

    /// Adds the property `Policies` of a function: names, ARNs, documents, policy templates.
    ///
    /// # Errors
    /// One is none of these.
    pub fn add(&mut self, function: &str, policies: &Value) -> Result<(), Failure> {
        let one = std::slice::from_ref(policies);
        let all = policies.as_array().map_or(one, Vec::as_slice);
        for (number, policy) in all.iter().enumerate() {
            let name = format!("{function}RolePolicy{number}");
            match policy {
                Value::String(text) => self.add_managed(text),
                _ if call(policy).is_some() => self.add_value(policy.clone()),
                Value::Object(map) if map.contains_key("Statement") => {
                    self.add_inline(name, policy.clone());
                }
                Value::Object(map) if map.len() == 1 => {
                    self.add_inline(name, from_template(function, map)?);
                }
                _ => {
                    let why = "Policies must be names, ARNs, policy documents or policy templates";
                    return Err(invalid(function, why));
                }
            }
        }
        Ok(())
    }

    /// The properties of the role.
    pub fn role(self, properties: &Map<String, Value>, tags: Value) -> Map<String, Value> {
        let trust = properties.get("AssumeRolePolicyDocument").cloned().unwrap_or_else(|| {
            let service = json!({"Service": ["lambda.amazonaws.com"]});
            let statement =
                json!({"Effect": "Allow", "Action": ["sts:AssumeRole"], "Principal": service});
            json!({"Version": "2012-10-17", "Statement": [statement]})
        });
        let mut role = Map::from_iter([
            ("AssumeRolePolicyDocument".to_owned(), trust),
            ("ManagedPolicyArns".to_owned(), self.managed.into()),
            ("Tags".to_owned(), tags),
        ]);
        if !self.inline.is_empty() {
            role.insert("Policies".to_owned(), self.inline.into());
        }
        for (from, to) in [("RolePath", "Path"), ("PermissionsBoundary", "PermissionsBoundary")] {
            if let Some(value) = properties.get(from) {
                role.insert(to.to_owned(), value.clone());
            }
        }
        role
    }
}

fn from_template(function: &str, policy: &Map<String, Value>) -> Result<Value, Failure> {
    let Some((name, parameters)) = policy.iter().next() else {
        return Err(invalid(function, "a policy is empty"));
    };
    let Some(template) = TEMPLATES.iter().find(|template| template.name == name) else {
        let known: Vec<&str> = TEMPLATES.iter().map(|template| template.name).collect();
        let known = known.join(", ");
        let why = format!(
            "The policy template {name} is unknown; known are {known}. Else write a \
                           policy document with Statement"
        );
        return Err(invalid(function, &why));
    };
    let parameter = template.parameter;
    let missing = || invalid(function, &format!("The policy template {name} needs {parameter}"));
    let value = parameters.get(parameter).ok_or_else(missing)?;
    let resource = |text: &&str| {
        let text = text.replace('@', "${Name}");
        json!({"Fn::Sub": [text, {"Name": value}]})
    };
    let mut resources: Vec<Value> = template.resources.iter().map(resource).collect();
    let resources = match resources.len() {
        1 => resources.remove(0),
        _ => resources.into(),
    };
    let statement = json!({"Effect": "Allow", "Action": template.actions, "Resource": resources});
    Ok(json!({"Version": "2012-10-17", "Statement": [statement]}))
}
