//! `AWS::S3::Bucket` and `AWS::S3::BucketPolicy`, in the tenant's store, by its worker.

use serde_json::{Map, Value, json};

use super::outcome::{Done, Failed};
use super::properties::{only, required, typed};
use super::task::Task;
use crate::behalf::CallError;
use crate::config::REGION;
use crate::service_request::of_store;

pub const PROPERTIES: &[&str] = &[
    "BucketEncryption",
    "BucketName",
    "NotificationConfiguration",
    "OwnershipControls",
    "PublicAccessBlockConfiguration",
    "Tags",
    "VersioningConfiguration",
];
const NOTIFICATIONS: &str = "NotificationConfiguration";
pub const POLICY: &[&str] = &["Bucket", "PolicyDocument"];
pub const ADVICE: &str =
    "Make a bucket with it outside of the stack, and give its name as a parameter";

async fn ask(task: &Task<'_>, operation: &str, parameters: &Value) -> Result<Vec<u8>, CallError> {
    task.call(of_store(REGION, operation, parameters)).await
}

/// Returns true if the store does not have an operation.
fn is_not_served(error: &CallError) -> bool {
    match error {
        CallError::Service { status: 405 | 501, .. } => true,
        CallError::Service { text, .. } => text.contains("NotImplemented"),
        _ => false,
    }
}

fn has_status(error: &CallError, due: u16) -> bool {
    matches!(error, CallError::Service { status, .. } if *status == due)
}

/// Sets a property of a bucket; a store that does not have it is noted.
async fn set(
    task: &Task<'_>,
    (property, operation): (&str, &str),
    parameters: &Value,
) -> Result<(), Failed> {
    match ask(task, operation, parameters).await {
        Ok(_) => Ok(()),
        // A stack whose functions are never invoked is none.
        Err(error) if is_not_served(&error) && property != NOTIFICATIONS => {
            task.note(format!("{property} has no effect: the store does not serve {operation}"));
            Ok(())
        }
        Err(error) => Err(Failed::new(format!("{property}: {error}"))),
    }
}

/// Refuses an encryption that is not the store's own: the gateway must not promise keys.
fn check_encryption(properties: &Value) -> Result<(), Failed> {
    let rules = properties.pointer("/BucketEncryption/ServerSideEncryptionConfiguration");
    for rule in rules.and_then(Value::as_array).into_iter().flatten() {
        let algorithm = rule.pointer("/ServerSideEncryptionByDefault/SSEAlgorithm");
        if algorithm.is_some_and(|name| name != "AES256") {
            return Err(Failed::new(format!(
                "BucketEncryption: only AES256 is accepted. {ADVICE}"
            )));
        }
    }
    Ok(())
}

/// The configuration of notifications for the store, from that of CloudFormation.
fn notifications(own: &Value) -> Result<Value, Failed> {
    let mut all = Map::new();
    for (list, target, of_store, of_target) in [
        ("LambdaConfigurations", "Function", "LambdaFunctionConfigurations", "LambdaFunctionArn"),
        ("QueueConfigurations", "Queue", "QueueConfigurations", "QueueArn"),
        ("TopicConfigurations", "Topic", "TopicConfigurations", "TopicArn"),
    ] {
        let Some(configurations) = own.get(list).and_then(Value::as_array) else { continue };
        let one = |one: &Value| {
            let (Some(event), Some(arn)) = (one.get("Event"), one.get(target)) else {
                let why = format!("{NOTIFICATIONS}: a member of {list} needs Event and {target}");
                return Err(Failed::new(why));
            };
            let mut of_one = json!({"Events": [event], of_target: arn});
            if let Some(rules) = one.pointer("/Filter/S3Key/Rules") {
                of_one["Filter"] = json!({"Key": {"FilterRules": rules}});
            }
            Ok(of_one)
        };
        let made: Result<Vec<Value>, Failed> = configurations.iter().map(one).collect();
        all.insert(of_store.to_owned(), made?.into());
    }
    if let Some(bridge) = own.get("EventBridgeConfiguration") {
        let enabled = bridge.get("EventBridgeEnabled");
        if enabled.is_none_or(|enabled| *enabled == true || *enabled == "true") {
            all.insert("EventBridgeConfiguration".to_owned(), json!({}));
        }
    }
    Ok(Value::Object(all))
}

/// The settings of a bucket, with the operation and its parameters.
fn settings(
    task: &Task<'_>,
    bucket: &str,
    properties: &Value,
) -> Result<Vec<(&'static str, &'static str, Value)>, Failed> {
    only("AWS::S3::Bucket", properties, PROPERTIES, ADVICE)?;
    check_encryption(properties)?;
    let own = typed(properties);
    let mut all = Vec::new();
    let labels = task.labels(properties)?;
    if !labels.is_empty() {
        let set: Vec<Value> =
            labels.iter().map(|(key, value)| json!({"Key": key, "Value": value})).collect();
        let parameters = json!({"Bucket": bucket, "Tagging": {"TagSet": set}});
        all.push(("Tags", "PutBucketTagging", parameters));
    }
    if let Some(versions) = own.get("VersioningConfiguration") {
        let parameters = json!({"Bucket": bucket, "VersioningConfiguration": versions});
        all.push(("VersioningConfiguration", "PutBucketVersioning", parameters));
    }
    if let Some(own) = own.get(NOTIFICATIONS) {
        let parameters = json!({"Bucket": bucket, NOTIFICATIONS: notifications(own)?});
        all.push((NOTIFICATIONS, "PutBucketNotificationConfiguration", parameters));
    }
    if let Some(block) = own.get("PublicAccessBlockConfiguration") {
        let parameters = json!({"Bucket": bucket, "PublicAccessBlockConfiguration": block});
        all.push(("PublicAccessBlockConfiguration", "PutPublicAccessBlock", parameters));
    }
    if let Some(owners) = own.get("OwnershipControls") {
        let parameters = json!({"Bucket": bucket, "OwnershipControls": owners});
        all.push(("OwnershipControls", "PutBucketOwnershipControls", parameters));
    }
    if let Some(encryption) = own.get("BucketEncryption") {
        let rules = encryption.get("ServerSideEncryptionConfiguration").cloned();
        let rules: Vec<Value> =
            rules.and_then(|rules| rules.as_array().cloned()).unwrap_or_default();
        let rule = |rule: &Value| {
            let default = rule.get("ServerSideEncryptionByDefault").cloned().unwrap_or_default();
            json!({"ApplyServerSideEncryptionByDefault": default})
        };
        let rules: Vec<Value> = rules.iter().map(rule).collect();
        let configuration = json!({"Rules": rules});
        let parameters =
            json!({"Bucket": bucket, "ServerSideEncryptionConfiguration": configuration});
        all.push(("BucketEncryption", "PutBucketEncryption", parameters));
    }
    Ok(all)
}

fn done(bucket: &str) -> Done {
    Done::new(bucket)
        .with("Arn", format!("arn:aws:s3:::{bucket}"))
        .with("DomainName", format!("{bucket}.s3.amazonaws.com"))
        .with("RegionalDomainName", format!("{bucket}.s3.{REGION}.amazonaws.com"))
        .with("DualStackDomainName", format!("{bucket}.s3.dualstack.{REGION}.amazonaws.com"))
}

/// Makes a bucket.
///
/// # Errors
/// The name is taken, the store refuses it, or it does not have a setting.
pub async fn create(task: &Task<'_>, bucket: &str, properties: &Value) -> Result<Done, Failed> {
    let settings = settings(task, bucket, properties)?;
    let named = json!({ "Bucket": bucket });
    let is_there = match ask(task, "HeadBucket", &named).await {
        Ok(_) => true,
        // Someone else has the name.
        Err(error) if has_status(&error, 403) => true,
        Err(error) if has_status(&error, 404) => false,
        Err(error) => return Err(Failed::new(format!("HeadBucket of {bucket}: {error}"))),
    };
    task.claim(&format!("the bucket {bucket}"), is_there).await?;
    if !is_there {
        let made = ask(task, "CreateBucket", &named).await;
        made.map_err(|error| Failed::creation("CreateBucket", bucket, &error))?;
    }
    for (property, operation, parameters) in settings {
        let set = set(task, (property, operation), &parameters).await;
        set.map_err(|failed| failed.left(bucket))?;
    }
    Ok(done(bucket))
}

/// Changes the settings of a bucket.
///
/// # Errors
/// The store refuses one.
pub async fn update(
    task: &Task<'_>,
    bucket: &str,
    (before, after): (&Value, &Value),
) -> Result<Done, Failed> {
    let new = settings(task, bucket, after)?;
    let named = json!({ "Bucket": bucket });
    for (property, operation) in [
        ("Tags", "DeleteBucketTagging"),
        ("PublicAccessBlockConfiguration", "DeletePublicAccessBlock"),
        ("OwnershipControls", "DeleteBucketOwnershipControls"),
        ("BucketEncryption", "DeleteBucketEncryption"),
    ] {
        let is_kept = new.iter().any(|(kept, ..)| *kept == property);
        let was_set = match property {
            // Also those of the stack.
            "Tags" => !task.labels_gone(before, after)?.is_empty(),
            _ => before.get(property).is_some(),
        };
        if was_set && !is_kept {
            set(task, (property, operation), &named).await?;
        }
    }
    if before.get("VersioningConfiguration").is_some()
        && after.get("VersioningConfiguration").is_none()
    {
        let parameters =
            json!({"Bucket": bucket, "VersioningConfiguration": {"Status": "Suspended"}});
        set(task, ("VersioningConfiguration", "PutBucketVersioning"), &parameters).await?;
    }
    if before.get(NOTIFICATIONS).is_some() && after.get(NOTIFICATIONS).is_none() {
        let parameters = json!({"Bucket": bucket, NOTIFICATIONS: {}});
        set(task, (NOTIFICATIONS, "PutBucketNotificationConfiguration"), &parameters).await?;
    }
    for (property, operation, parameters) in new {
        set(task, (property, operation), &parameters).await?;
    }
    Ok(done(bucket))
}

/// Deletes a bucket, which must be empty, as in CloudFormation.
///
/// # Errors
/// It has objects, or the store refuses it.
pub async fn delete(task: &Task<'_>, bucket: &str) -> Result<(), Failed> {
    match ask(task, "DeleteBucket", &json!({ "Bucket": bucket })).await {
        Ok(_) => Ok(()),
        Err(error) if has_status(&error, 404) => Ok(()),
        Err(error) if has_status(&error, 409) => Err(Failed::new(format!(
            "The bucket you tried to delete is not empty: {bucket}. Delete its objects, and delete the \
             stack again"
        ))),
        Err(error) => Err(Failed::new(format!("DeleteBucket of {bucket}: {error}"))),
    }
}

/// Returns true if a policy does nothing but deny requests without TLS.
fn only_demands_tls(document: &Value) -> bool {
    let statements = match document.get("Statement") {
        Some(Value::Array(all)) => all.as_slice(),
        Some(one) => std::slice::from_ref(one),
        None => return false,
    };
    let is_tls = |statement: &Value| {
        let condition = statement.get("Condition").and_then(Value::as_object);
        let only = condition.filter(|all| all.len() == 1).and_then(|all| all.get("Bool"));
        let value = only.and_then(Value::as_object).filter(|keys| keys.len() == 1);
        let value = value.and_then(|keys| keys.get("aws:SecureTransport"));
        statement["Effect"] == "Deny"
            && value.is_some_and(|value| *value == false || *value == "false")
    };
    !statements.is_empty() && statements.iter().all(is_tls)
}

/// Sets the policy of a bucket, in place of the one in `before`. One that only demands TLS is not set: the
/// operator decides how the store is reached, and the policy would lock out all callers of a store that has
/// none.
///
/// # Errors
/// The store refuses it, or has no policies.
pub async fn put_policy(
    task: &Task<'_>,
    before: Option<&Value>,
    properties: &Value,
) -> Result<Done, Failed> {
    let kind = "AWS::S3::BucketPolicy";
    only(kind, properties, POLICY, ADVICE)?;
    let bucket = required(properties, "Bucket")?;
    let document = properties.get("PolicyDocument").cloned().unwrap_or_default();
    if before.is_none() {
        let is_there = match ask(task, "GetBucketPolicy", &json!({ "Bucket": bucket })).await {
            Ok(_) => true,
            Err(error) if has_status(&error, 404) || is_not_served(&error) => false,
            Err(error) => {
                return Err(Failed::new(format!("GetBucketPolicy of {bucket}: {error}")));
            }
        };
        task.claim(&format!("a policy of the bucket {bucket}"), is_there).await?;
    }
    if only_demands_tls(&document) {
        task.note(
            "PolicyDocument: it only denies requests without TLS, and has no effect: the operator \
             decides how the store is reached",
        );
        if let Some(before) = before {
            delete_policy(task, before).await?;
        }
        return Ok(Done::new(bucket));
    }
    let parameters = json!({"Bucket": bucket, "Policy": document.to_string()});
    let set = ask(task, "PutBucketPolicy", &parameters).await;
    set.map_err(|error| match is_not_served(&error) {
        true => Failed::new(format!(
            "PolicyDocument: the store has no policies of buckets ({error}); limit tenants and roles in \
             fn.toml"
        )),
        false => Failed::creation("PutBucketPolicy", &bucket, &error),
    })?;
    Ok(Done::new(bucket))
}

/// Removes the policy of a bucket.
///
/// # Errors
/// The store refuses it.
pub async fn delete_policy(task: &Task<'_>, properties: &Value) -> Result<(), Failed> {
    let document = properties.get("PolicyDocument").cloned().unwrap_or_default();
    if only_demands_tls(&document) {
        return Ok(());
    }
    let bucket = required(properties, "Bucket")?;
    match ask(task, "DeleteBucketPolicy", &json!({ "Bucket": bucket })).await {
        Ok(_) => Ok(()),
        Err(error) if has_status(&error, 404) || is_not_served(&error) => Ok(()),
        Err(error) => Err(Failed::new(format!("DeleteBucketPolicy of {bucket}: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_demands_tls_is_told_from_others() {
        let of = |condition: Value, effect: &str| {
            json!({"Statement": [{"Effect": effect, "Principal": "*", "Action": "s3:*",
                                  "Resource": "*", "Condition": condition}]})
        };
        let tls = json!({"Bool": {"aws:SecureTransport": false}});
        assert!(only_demands_tls(&of(tls.clone(), "Deny")));
        assert!(only_demands_tls(&of(json!({"Bool": {"aws:SecureTransport": "false"}}), "Deny")));
        assert!(!only_demands_tls(&of(tls.clone(), "Allow")));
        assert!(!only_demands_tls(&of(json!({"Bool": {"aws:SecureTransport": true}}), "Deny")));
        let more = json!({"Bool": {"aws:SecureTransport": false}, "StringEquals": {"a": "b"}});
        assert!(!only_demands_tls(&of(more, "Deny")));
        let mut two = of(tls, "Deny");
        let other = json!({"Effect": "Deny", "Principal": "*", "Action": "*", "Resource": "*"});
        two["Statement"].as_array_mut().unwrap().push(other);
        assert!(!only_demands_tls(&two) && !only_demands_tls(&json!({"Statement": []})));
    }

    #[test]
    fn notifications_are_those_of_the_store() {
        let own = json!({
            "LambdaConfigurations": [
                {"Event": "s3:ObjectCreated:*", "Function": "arn:f",
                 "Filter": {"S3Key": {"Rules": [{"Name": "suffix", "Value": ".jpg"}]}}},
                {"Event": "s3:ObjectRemoved:*", "Function": "arn:g"}],
            "QueueConfigurations": [{"Event": "e", "Queue": "arn:q"}],
            "EventBridgeConfiguration": {"EventBridgeEnabled": false}});
        let due = json!({
            "LambdaFunctionConfigurations": [
                {"Events": ["s3:ObjectCreated:*"], "LambdaFunctionArn": "arn:f",
                 "Filter": {"Key": {"FilterRules": [{"Name": "suffix", "Value": ".jpg"}]}}},
                {"Events": ["s3:ObjectRemoved:*"], "LambdaFunctionArn": "arn:g"}],
            "QueueConfigurations": [{"Events": ["e"], "QueueArn": "arn:q"}]});
        assert_eq!(notifications(&own).unwrap(), due);
        let bridge = json!({"EventBridgeConfiguration": {}});
        assert_eq!(notifications(&bridge).unwrap(), json!({"EventBridgeConfiguration": {}}));
        let wrong = json!({"LambdaConfigurations": [{"Event": "e"}]});
        assert!(notifications(&wrong).unwrap_err().reason.contains("Function"));
    }

    #[test]
    fn keys_of_others_are_not_promised() {
        let of = |algorithm: &str| {
            json!({"BucketEncryption": {"ServerSideEncryptionConfiguration": [
                {"ServerSideEncryptionByDefault": {"SSEAlgorithm": algorithm}}]}})
        };
        assert_eq!(check_encryption(&of("AES256")), Ok(()));
        assert!(check_encryption(&of("aws:kms")).is_err());
    }
}
