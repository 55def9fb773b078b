//! The answer to a request that the role does not allow: the service's own error, in its protocol,
//! which says what would allow the request.

use std::fmt::Write as _;

use serde_json::json;
use unlade_guest_protocol::{AnswerHead, RequestHead};
use unlade_s3::policy::Decision;
use unlade_s3::policy::services::NotAllowed;

use super::told::{Protocol, Told};

const CODE: &str = "AccessDeniedException";
/// Services with XML errors of the REST protocol.
const REST_XML: &[&str] = &["cloudfront", "route53"];

/// The answer: its head and body.
pub fn answer(head: &RequestHead, told: &Told, not: &NotAllowed) -> (AnswerHead, Vec<u8>) {
    let message = message(not);
    let of = |status: u16, content: &str, body: Vec<u8>| {
        let fields = [
            ("content-type", content),
            ("x-amzn-requestid", "unlade-denied"),
            ("x-amzn-errortype", CODE),
        ];
        let headers = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        (AnswerHead { http_status: status, headers: headers.to_vec() }, body)
    };
    let xml = |around: (&str, &str)| {
        let code = if head.service == "ec2" { "UnauthorizedOperation" } else { "AccessDenied" };
        let text = escaped(&message);
        let error = format!("<Error><Code>{code}</Code><Message>{text}</Message></Error>");
        format!("{}{error}{}", around.0, around.1).into_bytes()
    };
    match told.protocol {
        Protocol::Json => {
            let body = json!({"__type": CODE, "message": message}).to_string();
            of(400, "application/x-amz-json-1.0", body.into_bytes())
        }
        Protocol::Query if head.service == "ec2" => {
            of(403, "text/xml", xml(("<Response><Errors>", "</Errors></Response>")))
        }
        Protocol::Query => of(403, "text/xml", xml(("<ErrorResponse>", "</ErrorResponse>"))),
        Protocol::Rest if REST_XML.contains(&head.service.as_str()) => {
            of(403, "text/xml", xml(("<ErrorResponse>", "</ErrorResponse>")))
        }
        Protocol::Rest => {
            let body = json!({ "message": message }).to_string();
            of(403, "application/json", body.into_bytes())
        }
        Protocol::Cbor => {
            let (mut head, body) = of(403, "application/cbor", cbor(&message));
            head.headers.push(("smithy-protocol".to_owned(), "rpc-v2-cbor".to_owned()));
            (head, body)
        }
    }
}

/// The message, with the lines to add.
pub fn message(not: &NotAllowed) -> String {
    let (action, resource) = (not.asked.action.text(), not.asked.resource.text());
    let what = format!("{action} on {resource}");
    if not.decision == Decision::Denied {
        let whose =
            if not.by_boundary { "operator's role of the tenant" } else { "function's role" };
        return format!("a statement of the {whose} denies {what}");
    }
    if not.is_document {
        let whose = if not.by_boundary { "operator's" } else { "function's" };
        let resource = not.asked.resource.arn();
        let lines = json!({"Effect": "Allow", "Action": action, "Resource": resource});
        return format!(
            "the policy document of the {whose} role does not allow {what}; add to it:\n{lines}"
        );
    }
    if not.by_boundary {
        let lines = statement("tenant.NAME.role.statements", &action, resource);
        return format!(
            "the operator's role of the tenant does not allow {what}; the operator adds to fn.toml:\n\
             {lines}"
        );
    }
    let mut out = format!(
        "the function's role does not allow {what}; add to function.toml, or to its role in fn.toml:\n"
    );
    out.push_str(&statement("role.statements", &action, resource));
    if not.is_default {
        out.push_str(&statement("role.statements", "s3:*", "*"));
    }
    out
}

fn statement(table: &str, action: &str, resource: &str) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "[[{table}]]");
    let _ = writeln!(out, "effect = \"allow\"");
    let _ = writeln!(out, "actions = [{action:?}]");
    let _ = writeln!(out, "resources = [{resource:?}]");
    out
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A map of two texts in CBOR (RFC 8949 §3).
fn cbor(message: &str) -> Vec<u8> {
    let mut out = vec![0xa2];
    for text in ["__type", CODE, "message", message] {
        out.push(0x7a);
        out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_be_bytes());
        out.extend_from_slice(text.as_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::services::find;
    use super::super::told::tests::head;
    use super::super::{resources, told};
    use super::*;
    use unlade_s3::Policy;
    use unlade_s3::policy::facts::Environment;

    fn denied(policy: &Policy) -> Box<NotAllowed> {
        let target = ("x-amz-target", "DynamoDB_20120810.GetItem");
        let json = ("content-type", "application/x-amz-json-1.0");
        let head = head("dynamodb", "GetItem", &[target, json]);
        let service = find("dynamodb").unwrap();
        let told = told::tell(service, &head, br#"{"TableName":"orders"}"#).unwrap();
        let asked = resources::asked(service, true, &head, &told);
        policy.decide_on(&asked, &Environment::of_tests()).unwrap_err()
    }

    /// The lines of a message are TOML; added to a manifest, they allow the request.
    #[test]
    fn the_lines_of_a_message_allow_the_request() {
        let not = denied(&Policy::of_store());
        let message = message(&not);
        assert!(message.contains("dynamodb:GetItem on table/orders"), "{message}");
        let (_, lines) = message.split_once('\n').unwrap();
        let table: toml::Table = lines.parse().unwrap();
        let role = serde_json::to_value(&table["role"]).unwrap();
        let policy = Policy::from_value(&role).unwrap();
        let decided = policy.decide_on(std::slice::from_ref(&not.asked), &Environment::of_tests());
        assert_eq!(decided, Ok(()));
        assert_eq!(table["role"]["statements"].as_array().unwrap().len(), 2, "S3 stays allowed");
        let own = json!({"statements": [
            {"effect": "allow", "actions": ["s3:GetObject"], "resources": ["*"]}]});
        let message = super::message(&denied(&Policy::from_value(&own).unwrap()));
        assert!(!message.contains("s3:*"), "{message}");
    }

    #[test]
    fn the_lines_for_a_document_allow_the_request() {
        let mut document = json!({"Version": "2012-10-17", "Statement": [
            {"Effect": "Allow", "Action": "s3:*", "Resource": "arn:aws:s3:::b"}]});
        let not = denied(&Policy::from_value(&document).unwrap());
        let message = message(&not);
        let (why, lines) = message.split_once('\n').unwrap();
        assert!(why.starts_with("the policy document of the function's role"), "{why}");
        let statement = serde_json::from_str(lines).unwrap();
        document["Statement"].as_array_mut().unwrap().push(statement);
        let policy = Policy::from_value(&document).unwrap();
        let decided = policy.decide_on(std::slice::from_ref(&not.asked), &Environment::of_tests());
        assert_eq!(decided, Ok(()));
    }

    #[test]
    fn a_message_names_who_decides() {
        let everything = json!([{"effect": "allow", "actions": ["*"], "resources": ["*"]}]);
        let bound = json!({"statements": everything, "boundary": {"statements": []}});
        let text = message(&denied(&Policy::from_value(&bound).unwrap()));
        assert!(text.contains("[[tenant.NAME.role.statements]]"), "{text}");
        let deny = json!({"statements": [
            {"effect": "deny", "actions": ["*"], "resources": ["table/*"]}]});
        let text = message(&denied(&Policy::from_value(&deny).unwrap()));
        assert_eq!(
            text,
            "a statement of the function's role denies dynamodb:GetItem on table/orders"
        );
    }

    #[test]
    fn the_answer_is_of_the_services_protocol() {
        let not = denied(&Policy::default());
        let of = |service: &str, protocol| {
            let parameters = told::Parameters::None;
            let told = Told { protocol, operation: None, parameters };
            answer(&head(service, "", &[]), &told, &not)
        };
        let (head, body) = of("dynamodb", Protocol::Json);
        let said: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((head.http_status, &said["__type"]), (400, &json!(CODE)));
        let (head, body) = of("sns", Protocol::Query);
        let text = String::from_utf8(body).unwrap();
        assert_eq!(head.http_status, 403);
        assert!(text.starts_with("<ErrorResponse><Error><Code>AccessDenied<"), "{text}");
        let text = String::from_utf8(of("ec2", Protocol::Query).1).unwrap();
        assert!(text.contains("UnauthorizedOperation"), "{text}");
        let text = String::from_utf8(of("route53", Protocol::Rest).1).unwrap();
        assert!(text.contains("<Code>AccessDenied"), "{text}");
        let (head, body) = of("lambda", Protocol::Rest);
        assert_eq!((head.http_status, body[0]), (403, b'{'));
        let (head, body) = of("cloudwatch", Protocol::Cbor);
        assert!(head.headers.iter().any(|(name, _)| name == "smithy-protocol"));
        assert!(body.starts_with(b"\xa2\x7a\0\0\0\x06__type\x7a"), "{body:?}");
    }
}
