//! Requests to services that the gateway makes on behalf of functions, without signatures: to queues,
//! topics, event buses and functions.

use serde_json::{Value, json};
use unlade_fn_model::destination::{Kind, Target};
use unlade_guest_protocol::RequestHead;
use unlade_s3::encode::percent;

/// Longest silence of a service before a request is given up, in milliseconds. A request for messages
/// waits for 20 seconds.
const READ_TIMEOUT_MS: u64 = 35_000;

/// A request: its head, and its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRequest {
    /// The head.
    pub head: RequestHead,
    /// The body.
    pub body: Vec<u8>,
}

/// A text with a name and a type, beside a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// The name.
    pub name: &'static str,
    /// `String` or `Number`.
    pub data_type: &'static str,
    /// The value.
    pub value: String,
}

fn head(service: &str, region: &str, operation: &str, fields: &[(&str, &str)]) -> RequestHead {
    let field = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    RequestHead {
        headers: fields.iter().map(field).collect(),
        read_timeout_ms: Some(READ_TIMEOUT_MS),
        ..RequestHead::post(service, region, operation)
    }
}

/// An operation of the store: its parameters are in JSON, as boto3 has them.
pub fn of_store(region: &str, operation: &str, parameters: &Value) -> ServiceRequest {
    let head = head("s3", region, operation, &[]);
    ServiceRequest { head, body: parameters.to_string().into_bytes() }
}

/// An operation of a service with JSON bodies; `target` is the value of `X-Amz-Target` before the dot.
pub fn of_json(
    (service, target, version): (&str, &str, &str),
    region: &str,
    operation: &str,
    parameters: &Value,
) -> ServiceRequest {
    let kind = format!("application/x-amz-json-{version}");
    let target = format!("{target}.{operation}");
    let fields = [("content-type", kind.as_str()), ("x-amz-target", &target)];
    let head = head(service, region, operation, &fields);
    ServiceRequest { head, body: parameters.to_string().into_bytes() }
}

/// An operation of SNS, whose parameters are a form.
pub fn of_topics(region: &str, operation: &str, parameters: &[(String, String)]) -> ServiceRequest {
    let mut form = format!("Action={operation}&Version=2010-03-31");
    for (name, value) in parameters {
        form += &format!("&{name}={}", percent(value, b""));
    }
    let fields = [("content-type", "application/x-www-form-urlencoded; charset=utf-8")];
    let head = head("sns", region, operation, &fields);
    ServiceRequest { head, body: form.into_bytes() }
}

/// The head of an operation of SQS.
pub fn queue(region: &str, operation: &str) -> RequestHead {
    let target = format!("AmazonSQS.{operation}");
    let fields = [("content-type", "application/x-amz-json-1.0"), ("x-amz-target", &target)];
    head("sqs", region, operation, &fields)
}

/// An operation of SQS on a queue.
pub fn of_queue(target: &Target, operation: &str, mut parameters: Value) -> ServiceRequest {
    let Target { region, account, name, .. } = target;
    // A server of the operator's reads account and name out of it, and is reached where it is.
    let url = format!("https://sqs.{region}.amazonaws.com/{account}/{name}");
    parameters["QueueUrl"] = url.into();
    ServiceRequest { head: queue(region, operation), body: parameters.to_string().into_bytes() }
}

/// A message to a queue.
fn send(target: &Target, message: &str, attributes: &[Attribute]) -> ServiceRequest {
    let mut parameters = json!({ "MessageBody": message });
    if !attributes.is_empty() {
        let of = |own: &Attribute| {
            let value = json!({"DataType": own.data_type, "StringValue": own.value});
            (own.name.to_owned(), value)
        };
        parameters["MessageAttributes"] = Value::Object(attributes.iter().map(of).collect());
    }
    of_queue(target, "SendMessage", parameters)
}

/// A message to a topic.
fn publish(target: &Target, message: &str, attributes: &[Attribute]) -> ServiceRequest {
    let mut form = "Action=Publish&Version=2010-03-31".to_owned();
    let mut add = |name: &str, value: &str| {
        form.push('&');
        form.push_str(name);
        form.push('=');
        form.push_str(&percent(value, b""));
    };
    add("TopicArn", &target.arn);
    add("Message", message);
    for (own, number) in attributes.iter().zip(1..) {
        let entry = format!("MessageAttributes.entry.{number}");
        add(&format!("{entry}.Name"), own.name);
        add(&format!("{entry}.Value.DataType"), own.data_type);
        add(&format!("{entry}.Value.StringValue"), &own.value);
    }
    let fields = [("content-type", "application/x-www-form-urlencoded; charset=utf-8")];
    let head = head("sns", &target.region, "Publish", &fields);
    ServiceRequest { head, body: form.into_bytes() }
}

/// A message to an event bus.
fn put_events(target: &Target, message: &str, about: &About<'_>) -> ServiceRequest {
    let entry = json!({
        "Source": "lambda",
        "DetailType": about.detail_type,
        "Detail": message,
        "Resources": [about.function_arn, target.arn],
        "EventBusName": target.arn,
    });
    let fields =
        [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", "AWSEvents.PutEvents")];
    let head = head("events", &target.region, "PutEvents", &fields);
    ServiceRequest { head, body: json!({"Entries": [entry]}).to_string().into_bytes() }
}

/// An asynchronous invocation.
fn invoke(target: &Target, message: &str) -> ServiceRequest {
    let fields = [("content-type", "application/json"), ("x-amz-invocation-type", "Event")];
    let mut head = head("lambda", &target.region, "Invoke", &fields);
    head.path = format!("/2015-03-31/functions/{}/invocations", percent(&target.name, b""));
    ServiceRequest { head, body: message.as_bytes().to_vec() }
}

/// The event that a message is about.
#[derive(Clone, Copy, Debug)]
pub struct About<'a> {
    /// The ARN of the function whose event has ended.
    pub function_arn: &'a str,
    /// The detail type for an event bus.
    pub detail_type: &'a str,
}

/// The request that brings a message to a destination. Attributes are those of queues and topics.
pub fn message(
    target: &Target,
    message: &str,
    attributes: &[Attribute],
    about: &About<'_>,
) -> ServiceRequest {
    match target.kind {
        Kind::Queue => send(target, message, attributes),
        Kind::Topic => publish(target, message, attributes),
        Kind::Bus => put_events(target, message, about),
        Kind::Function => invoke(target, message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOUT: About<'static> = About { function_arn: "arn:f", detail_type: "D" };

    fn made(arn: &str) -> (ServiceRequest, String) {
        let attribute =
            Attribute { name: "ErrorCode", data_type: "Number", value: "200".to_owned() };
        let target = Target::parse(arn).unwrap();
        let request = message(&target, "{\"a\": \"é&\"}", &[attribute], &ABOUT);
        request.head.check().unwrap();
        let body = String::from_utf8(request.body.clone()).unwrap();
        (request, body)
    }

    #[test]
    fn each_destination_gets_its_request() {
        let (request, body) = made("arn:aws:sqs:eu-west-1:123456789012:q");
        let due = json!({
            "QueueUrl": "https://sqs.eu-west-1.amazonaws.com/123456789012/q",
            "MessageBody": "{\"a\": \"é&\"}",
            "MessageAttributes": {"ErrorCode": {"DataType": "Number", "StringValue": "200"}},
        });
        assert_eq!(serde_json::from_str::<Value>(&body).unwrap(), due);
        assert_eq!(request.head.header("x-amz-target"), Some("AmazonSQS.SendMessage"));
        let (request, body) = made("arn:aws:sns:eu-west-1:123456789012:t");
        assert_eq!(
            (request.head.service.as_str(), request.head.operation.as_str()),
            ("sns", "Publish")
        );
        assert_eq!(
            body,
            "Action=Publish&Version=2010-03-31&TopicArn=arn%3Aaws%3Asns%3Aeu-west-1%3A123456789012%3At\
             &Message=%7B%22a%22%3A%20%22%C3%A9%26%22%7D&MessageAttributes.entry.1.Name=ErrorCode\
             &MessageAttributes.entry.1.Value.DataType=Number\
             &MessageAttributes.entry.1.Value.StringValue=200"
        );
        let bus = "arn:aws:events:eu-west-1:123456789012:event-bus/b";
        let (request, body) = made(bus);
        assert_eq!(request.head.header("x-amz-target"), Some("AWSEvents.PutEvents"));
        let body: Value = serde_json::from_str(&body).unwrap();
        let entry = &body["Entries"][0];
        assert_eq!(entry["Resources"], json!(["arn:f", bus]));
        assert_eq!((&entry["Source"], &entry["DetailType"]), (&json!("lambda"), &json!("D")));
        let (request, body) = made("arn:aws:lambda:eu-west-1:000000000000:function:g:live");
        assert_eq!(request.head.path, "/2015-03-31/functions/g%3Alive/invocations");
        assert_eq!(request.head.header("x-amz-invocation-type"), Some("Event"));
        assert_eq!(body, "{\"a\": \"é&\"}");
    }
}
