//! `AWS::SNS::Topic`, at the tenant's service.

use std::collections::BTreeMap;

use serde_json::Value;

use super::outcome::{Done, Failed};
use super::properties::{only, text_of};
use super::task::Task;
use crate::behalf::CallError;
use crate::config::REGION;
use crate::service_request::of_topics;

/// The advice about other properties.
pub const ADVICE: &str = "Subscriptions are made outside of the stack";
/// Properties that are attributes of a topic, and their values without a property.
const ATTRIBUTES: [(&str, Option<&str>); 5] = [
    ("ContentBasedDeduplication", Some("false")),
    ("DisplayName", Some("")),
    ("FifoTopic", None),
    ("KmsMasterKeyId", Some("")),
    ("SignatureVersion", Some("1")),
];
/// Most pages of the list of topics.
const PAGES_MAX: usize = 1000;

type Form = Vec<(String, String)>;

async fn ask(
    task: &Task<'_>,
    operation: &str,
    form: &[(String, String)],
) -> Result<String, CallError> {
    let answer = task.call(of_topics(REGION, operation, form)).await?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn failed(operation: &str, error: &CallError) -> Failed {
    Failed::new(format!("{operation}: {error}"))
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

/// The texts of an element in an answer. ARNs and tokens need no decoding.
fn elements<'a>(xml: &'a str, name: &str) -> Vec<&'a str> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = xml;
    let mut found = Vec::new();
    while let Some((_, after)) = rest.split_once(&open) {
        let Some((text, after)) = after.split_once(&close) else { break };
        found.push(text);
        rest = after;
    }
    found
}

/// The properties that are served.
pub fn known() -> Vec<&'static str> {
    ATTRIBUTES.iter().map(|(name, _)| *name).chain(["TopicName", "Tags"]).collect()
}

/// The attributes of properties.
fn attributes(properties: &Value) -> Result<Form, Failed> {
    only("AWS::SNS::Topic", properties, &known(), ADVICE)?;
    let mut all = Vec::new();
    for (name, _) in ATTRIBUTES {
        let Some(value) = properties.get(name) else { continue };
        let text = text_of(value).ok_or_else(|| Failed::new(format!("{name} must be a text")))?;
        all.push(pair(name, &text));
    }
    Ok(all)
}

/// The ARN of a topic that exists.
async fn find(task: &Task<'_>, name: &str) -> Result<Option<String>, Failed> {
    let (mut form, end) = (Form::new(), format!(":{name}"));
    for _ in 0..PAGES_MAX {
        let page = ask(task, "ListTopics", &form).await;
        let page = page.map_err(|error| failed("ListTopics", &error))?;
        let arns = elements(&page, "TopicArn");
        if let Some(arn) = arns.into_iter().find(|arn| arn.ends_with(&end)) {
            return Ok(Some(arn.to_owned()));
        }
        match elements(&page, "NextToken").first() {
            Some(token) if !token.is_empty() => form = vec![pair("NextToken", token)],
            _ => return Ok(None),
        }
    }
    Err(Failed::new("ListTopics: there are too many topics to tell if one has the name"))
}

fn done(arn: &str) -> Done {
    let name = arn.rsplit(':').next().unwrap_or_default();
    Done::new(arn).with("TopicArn", arn).with("TopicName", name)
}

/// Makes a topic.
///
/// # Errors
/// The name is taken, or the service refuses it.
pub async fn create(task: &Task<'_>, name: &str, properties: &Value) -> Result<Done, Failed> {
    let attributes = attributes(properties)?;
    let labels = task.labels(properties)?;
    let found = find(task, name).await?;
    task.claim(&format!("the topic {name}"), found.is_some()).await?;
    if let Some(arn) = found {
        return Ok(done(&arn));
    }
    let mut form = vec![pair("Name", name)];
    for ((key, value), number) in attributes.iter().zip(1..) {
        form.push((format!("Attributes.entry.{number}.key"), key.clone()));
        form.push((format!("Attributes.entry.{number}.value"), value.clone()));
    }
    form.extend(labelled(&labels));
    let made = ask(task, "CreateTopic", &form).await;
    let made = made.map_err(|error| Failed::creation("CreateTopic", name, &error))?;
    let arn = elements(&made, "TopicArn").first().map(|arn| done(arn));
    arn.ok_or_else(|| Failed::new("CreateTopic: the answer has no TopicArn"))
}

/// The members of a form with tags.
fn labelled(labels: &BTreeMap<String, String>) -> Form {
    let of = |((key, value), number): ((&String, &String), u32)| {
        [("Key", key), ("Value", value)]
            .map(|(part, text)| (format!("Tags.member.{number}.{part}"), text.clone()))
    };
    labels.iter().zip(1..).flat_map(of).collect()
}

/// Changes the attributes and the tags of a topic.
///
/// # Errors
/// The service refuses it.
pub async fn update(
    task: &Task<'_>,
    arn: &str,
    (before, after): (&Value, &Value),
) -> Result<Done, Failed> {
    let mut new = attributes(after)?;
    new.retain(|(name, _)| name != "FifoTopic");
    for (name, default) in ATTRIBUTES {
        if let Some(default) = default
            && before.get(name).is_some()
            && after.get(name).is_none()
        {
            new.push(pair(name, default));
        }
    }
    for (name, value) in new {
        let form =
            [pair("TopicArn", arn), pair("AttributeName", &name), pair("AttributeValue", &value)];
        let set = ask(task, "SetTopicAttributes", &form).await;
        set.map_err(|error| failed("SetTopicAttributes", &error))?;
    }
    let (gone, labels) = (task.labels_gone(before, after)?, task.labels(after)?);
    if !gone.is_empty() {
        let mut form = vec![pair("ResourceArn", arn)];
        let keys = gone.into_iter().zip(1..);
        form.extend(keys.map(|(key, number)| (format!("TagKeys.member.{number}"), key)));
        let untagged = ask(task, "UntagResource", &form).await;
        untagged.map_err(|error| failed("UntagResource", &error))?;
    }
    if !labels.is_empty() {
        let mut form = vec![pair("ResourceArn", arn)];
        form.extend(labelled(&labels));
        let tagged = ask(task, "TagResource", &form).await;
        tagged.map_err(|error| failed("TagResource", &error))?;
    }
    Ok(done(arn))
}

/// Deletes a topic: its ARN, or the name of one that a failed creation may have left.
///
/// # Errors
/// The service refuses it.
pub async fn delete(task: &Task<'_>, arn: &str) -> Result<(), Failed> {
    let found = match arn.starts_with("arn:") {
        true => Some(arn.to_owned()),
        false => find(task, arn).await?,
    };
    let Some(arn) = found else { return Ok(()) };
    match ask(task, "DeleteTopic", &[pair("TopicArn", &arn)]).await {
        Ok(_) => Ok(()),
        Err(CallError::Service { status: 404, .. }) => Ok(()),
        Err(error) => Err(failed("DeleteTopic", &error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_of_an_answer_are_found() {
        let page =
            "<A><TopicArn>arn:1</TopicArn><TopicArn>arn:2</TopicArn></A><NextToken>t</NextToken>";
        assert_eq!(elements(page, "TopicArn"), ["arn:1", "arn:2"]);
        assert_eq!(elements(page, "NextToken"), ["t"]);
        assert!(elements("<TopicArn>cut", "TopicArn").is_empty());
    }

    #[test]
    fn subscriptions_are_refused() {
        let own = json!({"DisplayName": "d", "FifoTopic": true, "TopicName": "t.fifo"});
        let due = [pair("DisplayName", "d"), pair("FifoTopic", "true")];
        assert_eq!(attributes(&own).unwrap(), due);
        let why = attributes(&json!({"Subscription": []})).unwrap_err().reason;
        assert!(why.contains("outside of the stack"), "{why}");
    }
}
