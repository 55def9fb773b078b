//! The action of a resource, by its type.

use serde_json::Value;
use unlade_fn_stacks::{Outcome, Work};

use super::outcome::{Done, Failed};
use super::task::Task;
use super::{bucket, function, http_api, lambda, log_group, queue, role, table, topic, url};

/// Types whose resources can be deleted by their names.
const NAMED: [&str; 6] = [
    "AWS::DynamoDB::Table",
    "AWS::IAM::Role",
    "AWS::Lambda::Function",
    "AWS::S3::Bucket",
    "AWS::SNS::Topic",
    "AWS::SQS::Queue",
];

/// Carries an action out. `None`: an attempt before has perhaps made the resource, and the state that tells
/// cannot be read. Nothing is decided then, and the action is to be repeated.
pub async fn act(task: &Task<'_>) -> Option<Outcome> {
    let mut result = match &task.action.work {
        Work::Create { name, properties, .. } => create(task, name, properties).await,
        Work::Update { physical_id, before, properties, code, .. } => {
            let both = (before, properties);
            update(task, physical_id, both, code.is_some()).await
        }
        // A creation that has left nothing.
        Work::Delete { physical_id, .. } if physical_id.is_empty() => Ok(Done::default()),
        Work::Delete { physical_id, properties } => {
            delete(task, physical_id, properties).await.map(|()| Done::new(physical_id.as_str()))
        }
    };
    if let (Work::Create { name, .. }, Err(failed)) = (&task.action.work, &mut result)
        && failed.physical_id.is_none()
        && NAMED.contains(&task.action.kind.as_str())
        && task.action.is_repeated
        && !failed.is_of_state
    {
        match task.is_claimed().await {
            // The attempt before a kill may have made it.
            Ok(true) => failed.physical_id = Some(name.clone()),
            Ok(false) => {}
            Err(of_state) => *failed = of_state,
        }
    }
    Some(match result {
        Err(failed) if failed.is_of_state && task.action.is_repeated => {
            tracing::error!(why = failed.reason, "an action of a stack is repeated");
            return None;
        }
        Ok(Done { physical_id, attributes }) => Outcome::Done { physical_id, attributes },
        Err(Failed { reason, physical_id, .. }) => Outcome::Failed { reason, physical_id },
    })
}

fn unknown(task: &Task<'_>) -> Failed {
    Failed::new(format!("{} is not served by this gateway", task.action.kind))
}

async fn create(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    match task.action.kind.as_str() {
        "AWS::Lambda::Function" => function::create(task, name, properties).await,
        "AWS::Lambda::Version" => lambda::create_version(task, properties).await,
        "AWS::Lambda::Alias" => lambda::create_alias(task, properties).await,
        "AWS::Lambda::Permission" => lambda::create_permission(task, name, properties).await,
        "AWS::Lambda::EventInvokeConfig" => lambda::put_events(task, properties, true).await,
        "AWS::Lambda::EventSourceMapping" => lambda::create_mapping(task, properties).await,
        "AWS::IAM::Role" => role::create_role(task, name, properties).await,
        "AWS::IAM::Policy" | "AWS::IAM::ManagedPolicy" => {
            role::create_policy(task, name, properties).await
        }
        "AWS::Logs::LogGroup" => log_group::put(task, name, properties),
        "AWS::S3::Bucket" => bucket::create(task, name, properties).await,
        "AWS::S3::BucketPolicy" => bucket::put_policy(task, None, properties).await,
        "AWS::SQS::Queue" => queue::create(task, name, properties).await,
        "AWS::SNS::Topic" => topic::create(task, name, properties).await,
        "AWS::DynamoDB::Table" => table::create(task, name, properties).await,
        "AWS::Lambda::Url" => url::create(task, properties).await,
        "AWS::ApiGatewayV2::Api" => http_api::create_api(task, properties).await,
        "AWS::ApiGatewayV2::Integration" => http_api::put_integration(task, None, properties).await,
        "AWS::ApiGatewayV2::Route" => http_api::put_route(task, None, properties).await,
        "AWS::ApiGatewayV2::Stage" => http_api::put_stage(task, properties, true).await,
        _ => Err(unknown(task)),
    }
}

async fn update(
    task: &Task<'_>,
    id: &str,
    both: (&Value, &Value),
    has_new_code: bool,
) -> Result<Done, Failed> {
    let properties = both.1;
    match task.action.kind.as_str() {
        "AWS::Lambda::Function" => function::update(task, id, both, has_new_code).await,
        "AWS::Lambda::Version" => lambda::update_version(task, id, both).await,
        "AWS::Lambda::Alias" => lambda::update_alias(task, both).await,
        "AWS::Lambda::EventInvokeConfig" => lambda::put_events(task, properties, false).await,
        "AWS::Lambda::EventSourceMapping" => lambda::update_mapping(task, id, both).await,
        // All of its properties need a replacement: nothing has changed.
        "AWS::Lambda::Permission" => Ok(Done::new(id).with("Id", id)),
        "AWS::IAM::Role" => role::update_role(task, id, properties).await,
        "AWS::IAM::Policy" | "AWS::IAM::ManagedPolicy" => {
            role::update_policy(task, id, properties).await
        }
        "AWS::Logs::LogGroup" => log_group::put(task, id, properties),
        "AWS::S3::Bucket" => bucket::update(task, id, both).await,
        "AWS::S3::BucketPolicy" => bucket::put_policy(task, Some(both.0), properties).await,
        "AWS::SQS::Queue" => queue::update(task, id, both).await,
        "AWS::SNS::Topic" => topic::update(task, id, both).await,
        "AWS::DynamoDB::Table" => table::update(task, id, both).await,
        "AWS::Lambda::Url" => url::update(task, id, properties).await,
        "AWS::ApiGatewayV2::Api" => http_api::update_api(task, id, properties).await,
        "AWS::ApiGatewayV2::Integration" => {
            http_api::put_integration(task, Some(id), properties).await
        }
        "AWS::ApiGatewayV2::Route" => http_api::put_route(task, Some(id), properties).await,
        "AWS::ApiGatewayV2::Stage" => http_api::put_stage(task, properties, false).await,
        _ => Err(unknown(task)),
    }
}

async fn delete(task: &Task<'_>, id: &str, properties: &Value) -> Result<(), Failed> {
    match task.action.kind.as_str() {
        "AWS::Lambda::Function" => function::delete(task, id).await,
        "AWS::Lambda::Version" => lambda::delete_version(task, id).await,
        "AWS::Lambda::Alias" => lambda::delete_alias(task, id).await,
        "AWS::Lambda::Permission" => lambda::delete_permission(task, id, properties).await,
        "AWS::Lambda::EventInvokeConfig" => lambda::delete_events(task, properties).await,
        "AWS::Lambda::EventSourceMapping" => lambda::delete_mapping(task, id).await,
        "AWS::IAM::Role" => role::delete_role(task, id).await,
        "AWS::IAM::Policy" | "AWS::IAM::ManagedPolicy" => role::delete_policy(task, id).await,
        "AWS::Logs::LogGroup" => Ok(()),
        "AWS::S3::Bucket" => bucket::delete(task, id).await,
        "AWS::S3::BucketPolicy" => bucket::delete_policy(task, properties).await,
        "AWS::SQS::Queue" => queue::delete(task, id).await,
        "AWS::SNS::Topic" => topic::delete(task, id).await,
        "AWS::DynamoDB::Table" => table::delete(task, id).await,
        "AWS::Lambda::Url" => url::delete(task, id).await,
        "AWS::ApiGatewayV2::Api" => http_api::delete_api(task, id).await,
        "AWS::ApiGatewayV2::Integration" => {
            http_api::delete_integration(task, id, properties).await
        }
        "AWS::ApiGatewayV2::Route" => http_api::delete_route(task, id, properties).await,
        "AWS::ApiGatewayV2::Stage" => http_api::delete_stage(task, id, properties).await,
        _ => Err(unknown(task)),
    }
}

#[cfg(test)]
mod tests {
    use unlade_fn_stacks::kinds;

    /// A type that the engine accepts and no action knows would fail half-way.
    #[test]
    fn every_type_of_the_engine_has_its_actions() {
        let own = include_str!("resource.rs");
        let (create, rest) = own.split_once("async fn update").unwrap();
        let (update, delete) = rest.split_once("async fn delete").unwrap();
        let delete = delete.split_once("#[cfg(test)]").unwrap().0;
        for kind in kinds::ALL {
            let name = format!("\"{}\"", kind.name);
            for part in [create, update, delete] {
                assert!(part.contains(&name), "{name}");
            }
        }
    }
}
