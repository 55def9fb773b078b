//! Requests to services other than S3: signed and sent as they are; hostile ones are refused, sent
//! nowhere and counted.

use std::net::SocketAddr;

use serde_json::{Value, json};
use unlade_fn_worker::cut::ServicesConfig;
use unlade_guest_protocol::Status;
use unlade_guest_protocol::descriptor::MORE;
use unlade_metrics::{CallEnd, CutRefusal, CutService, Event};

use crate::bed::guest::{Came, Guest};
use crate::bed::script::{Answer, halting, response, script};
use crate::bed::{Bed, ID, SECRET, body_of, until};

/// A configuration in which every service is at one server.
fn services(address: SocketAddr, names: &[&str]) -> ServicesConfig {
    let mut text = format!(
        "credentials = {{ from = \"keys\", access_key_id = \"{ID}\", secret_access_key = \
         \"{SECRET}\" }}\nread_timeout = \"20s\"\n"
    );
    for name in names {
        text.push_str(&format!("[endpoint.{name}]\nurl = \"http://{address}\"\n"));
    }
    unlade_config::parse(&text, "test").unwrap()
}

fn bed_at(address: SocketAddr, names: &[&str]) -> Bed {
    let services = services(address, names);
    Bed::with(|config| config.services = services)
}

/// A request of DynamoDB, with changes.
fn get_item(more: Value) -> Value {
    let mut head = json!({
        "service": "dynamodb", "operation": "GetItem", "region": "eu-west-1", "method": "POST",
        "path": "/", "query": "",
        "headers": [["content-type", "application/x-amz-json-1.0"],
                    ["x-amz-target", "DynamoDB_20120810.GetItem"]],
    });
    for (name, value) in more.as_object().unwrap() {
        head[name] = value.clone();
    }
    head
}

const BODY: &[u8] = br#"{"TableName":"orders"}"#;

fn ask(guest: &mut Guest, more: Value) -> Came {
    let call = guest.begin_request(get_item(more), BODY);
    guest.end(call)
}

#[test]
fn a_request_is_signed_and_its_answer_is_as_it_came() {
    let (address, asked) = script(vec![
        response(200, "x-a: 1\r\nX-B: 2\r\nx-a: 3\r\n", "{\"Item\":{}}"),
        response(400, "", "{\"__type\":\"x#Own\"}"),
        response(200, "", ""),
    ]);
    let mut bed = bed_at(address, &["dynamodb"]);
    let mut guest = bed.guest();
    let came = ask(&mut guest, json!({}));
    assert_eq!((came.status, came.meta["http_status"].as_u64()), (Status::Done, Some(200)));
    assert_eq!(came.body, b"{\"Item\":{}}");
    let due = json!([["x-a", "1, 3"], ["x-b", "2"], ["content-length", "11"]]);
    assert_eq!(came.meta["headers"], due);
    let seen = asked.recv().unwrap();
    assert!(seen.head.starts_with(&format!("POST / HTTP/1.1\r\nhost: {address}\r\n")));
    assert_eq!(seen.body, BODY);
    assert!(seen.head.contains(&format!("Credential={ID}/")), "{}", seen.head);
    assert!(seen.head.contains("/eu-west-1/dynamodb/aws4_request"), "{}", seen.head);
    assert!(seen.head.contains("\r\naccept-encoding: identity\r\n"), "{}", seen.head);
    // An error of the service is an answer, too.
    let came = ask(&mut guest, json!({"unsigned": true}));
    assert_eq!((came.status, came.meta["http_status"].as_u64()), (Status::Done, Some(400)));
    assert!(!asked.recv().unwrap().head.contains("authorization"));
    assert!(ask(&mut guest, json!({})).body.is_empty());
    assert_eq!(bed.meter.value(Event::HostioServiceRequest(CutService::Dynamodb)), 3);
    until("the ends are counted", || {
        bed.meter.value(Event::HostioCall(CallEnd::Done)) == 2
            && bed.meter.value(Event::HostioCall(CallEnd::Service)) == 1
    });
}

/// Each is tried, refused with a reason, counted, and sent nowhere; the guest can go on.
#[test]
fn hostile_requests_are_sent_nowhere_and_counted() {
    let (address, asked) = script(vec![response(200, "", "{}")]);
    let mut bed = bed_at(address, &["dynamodb", "sns", "lambda"]);
    let mut guest = bed.guest();
    let target = ["x-amz-target", "DynamoDB_20120810.GetItem"];
    let json = ["content-type", "application/x-amz-json-1.0"];
    let with = |name: &str, value: &str| json!({ "headers": [target, json, [name, value]] });
    let long = "a".repeat(9000);
    let many = vec![["a", "b"]; 65];
    let tries = [
        // Another host, another request, another body.
        (CutRefusal::Head, with("host", "evil.example")),
        (CutRefusal::Head, with("transfer-encoding", "chunked")),
        (CutRefusal::Head, with("content-length", "0")),
        (CutRefusal::Head, with("connection", "x-amz-date")),
        (CutRefusal::Head, with("upgrade", "h2c")),
        (CutRefusal::Head, with("x-forwarded-host", "evil.example")),
        (CutRefusal::Head, with("a", "b\r\nhost: evil.example")),
        (CutRefusal::Head, with("a\r\nhost", "evil.example")),
        (CutRefusal::Head, with("a: b\r\nhost", "evil.example")),
        // A signature of the guest's.
        (CutRefusal::Head, with("authorization", "AWS4-HMAC-SHA256 Credential=x")),
        (CutRefusal::Head, with("x-amz-date", "20200101T000000Z")),
        (CutRefusal::Head, with("x-amz-security-token", "x")),
        (CutRefusal::Head, with("x-amz-content-sha256", "UNSIGNED-PAYLOAD")),
        (CutRefusal::Head, with("x-aws-ec2-metadata-token", "x")),
        (CutRefusal::Head, json!({"path": "http://169.254.169.254/latest/meta-data/"})),
        (CutRefusal::Head, json!({"path": "//169.254.169.254/"})),
        (CutRefusal::Head, json!({"path": "/ HTTP/1.1\r\nhost: evil.example\r\n\r\n"})),
        (CutRefusal::Head, json!({"path": "/a/../../b"})),
        (CutRefusal::Head, json!({"path": "@evil.example/"})),
        (CutRefusal::Head, json!({"query": "a b"})),
        (CutRefusal::Head, json!({"method": "CONNECT"})),
        (CutRefusal::Head, json!({"method": "GET\r\n"})),
        (CutRefusal::Head, json!({ "path": format!("/{long}") })),
        (CutRefusal::Head, json!({ "headers": many })),
        (CutRefusal::Head, json!({"endpoint": "http://evil.example"})),
        (CutRefusal::Head, json!({"service": "dynamodb.evil.example"})),
        (CutRefusal::Head, json!({"region": "evil.example/"})),
        // Another service or operation.
        (CutRefusal::Service, json!({"service": "metadata"})),
        (CutRefusal::Service, json!({"service": "s3"})),
        (CutRefusal::Operation, json!({"operation": "ListTables"})),
        (CutRefusal::Operation, json!({"service": "sns"})),
        (CutRefusal::Operation, json!({"service": "lambda"})),
        (CutRefusal::Operation, with("x-amz-target", "DynamoDB_20120810.DeleteTable")),
        (CutRefusal::Operation, json!({"query": "Action=DeleteTable"})),
        (CutRefusal::Operation, with("content-encoding", "gzip")),
        (CutRefusal::Region, json!({"region": "s3"})),
        (CutRefusal::Region, json!({"region": "evil"})),
        (
            CutRefusal::Endpoint,
            json!({"service": "sqs", "operation": "", "headers":
            [["x-amz-target", "AmazonSQS.ListQueues"], json]}),
        ),
    ];
    let mut due = std::collections::HashMap::new();
    for (kind, more) in tries {
        let came = ask(&mut guest, more.clone());
        assert_eq!(came.status, Status::HostError, "{more} {}", came.meta);
        assert!(["Invalid", "Unsupported"].contains(&came.code()), "{more} {}", came.meta);
        *due.entry(kind).or_insert(0) += 1;
        assert_eq!(bed.meter.value(Event::HostioServiceRefused(kind)), due[&kind], "{more}");
    }
    assert_eq!(due.len(), CutRefusal::ALL.len(), "every reason was tried");
    assert!(asked.try_recv().is_err(), "nothing was sent");
    assert_eq!(ask(&mut guest, json!({})).status, Status::Done);
    assert_eq!(asked.recv().unwrap().body, BODY);
}

#[test]
fn a_request_that_no_role_allows_is_not_sent() {
    let (address, asked) = script(vec![response(200, "", "{}")]);
    let mut bed = bed_at(address, &["dynamodb"]);
    let statements = json!([
        {"effect": "allow", "actions": ["s3:*"], "resources": ["*"]}]);
    bed.gateway.role(2, json!({ "statements": statements }));
    let mut guest = bed.gateway.attach(2);
    let came = ask(&mut guest, json!({}));
    assert_eq!((came.status, came.meta["http_status"].as_u64()), (Status::Done, Some(400)));
    let said: Value = serde_json::from_slice(&came.body).unwrap();
    assert_eq!(said["__type"], "AccessDeniedException");
    let message = said["message"].as_str().unwrap();
    for line in ["[[role.statements]]", "\"dynamodb:GetItem\"", "\"table/orders\"", "\"s3:*\""] {
        assert!(message.contains(line), "{message}");
    }
    until("the denial is counted", || bed.meter.value(Event::HostioCall(CallEnd::Denied)) == 1);
    assert!(asked.try_recv().is_err(), "nothing was sent");
    let own = json!([
        {"effect": "allow", "actions": ["dynamodb:GetItem"], "resources": ["table/orders"]}]);
    bed.gateway.role(3, json!({ "statements": own }));
    let mut guest = bed.gateway.attach(3);
    assert_eq!(ask(&mut guest, json!({})).meta["http_status"], 200);
}

/// The host's keys are not in it; the role is asked as for any request.
#[test]
fn keys_of_the_functions_own_sign_and_the_role_is_asked() {
    let (address, asked) = script(vec![response(200, "", "{}"), response(200, "", "{}")]);
    let mut bed = bed_at(address, &["dynamodb"]);
    let own = json!([
        {"effect": "allow", "actions": ["dynamodb:GetItem"], "resources": ["table/orders"]}]);
    bed.gateway.role(2, json!({ "statements": own }));
    let mut guest = bed.gateway.attach(2);
    let keys = |id: &str, secret: &str, token: Value| {
        json!({"credentials":
            {"access_key_id": id, "secret_access_key": secret, "session_token": token}})
    };
    let came = ask(&mut guest, keys("OWN", "own/secret", json!("own-token")));
    assert_eq!((came.status, came.meta["http_status"].as_u64()), (Status::Done, Some(200)));
    let seen = asked.recv().unwrap().head;
    assert!(seen.contains("Credential=OWN/") && !seen.contains(ID), "{seen}");
    assert!(seen.contains("\r\nx-amz-security-token: own-token\r\n"), "{seen}");
    assert!(!seen.contains("own/secret"), "{seen}");
    assert_eq!(bed.meter.value(Event::HostioServiceOwnKeys), 1);
    // Another table than the role's.
    let call =
        guest.begin_request(get_item(keys("OWN", "s", Value::Null)), b"{\"TableName\":\"t\"}");
    let came = guest.end(call);
    assert_eq!(came.meta["http_status"], 400);
    assert!(String::from_utf8_lossy(&came.body).contains("AccessDeniedException"));
    // Keys that are none are refused by name, and not shown.
    for (more, what) in [
        (keys("a b", "hidden", Value::Null), "access key"),
        (keys("a", "hidden\r\n", Value::Null), "secret access key"),
        (keys("a", "hidden", json!("t".repeat(8193))), "session token"),
    ] {
        let came = ask(&mut guest, more);
        assert_eq!((came.status, came.code()), (Status::HostError, "Invalid"));
        let said = came.meta.to_string();
        assert!(said.contains(what) && !said.contains("hidden"), "{said}");
    }
    assert!(asked.try_recv().is_err(), "nothing else was sent");
    // The next one without keys is signed by the host.
    assert_eq!(ask(&mut guest, json!({})).meta["http_status"], 200);
    assert!(asked.recv().unwrap().head.contains(&format!("Credential={ID}/")));
    assert_eq!(bed.meter.value(Event::HostioServiceOwnKeys), 1);
}

#[test]
fn each_service_is_counted_and_reaches_its_endpoint() {
    let names: Vec<_> = CutService::ALL.iter().map(|service| service.as_str()).collect();
    let named: Vec<_> =
        names.iter().map(|name| if *name == "other" { "ses" } else { *name }).collect();
    let answers = named.iter().map(|_| response(200, "", "{}")).collect();
    let (address, asked) = script(answers);
    let mut bed = bed_at(address, &named);
    let mut guest = bed.guest();
    for (name, label) in named.iter().zip(CutService::ALL) {
        let target = match *name {
            "dynamodb" => "DynamoDB_20120810.ListTables",
            "events" => "AWSEvents.ListRules",
            "kinesis" => "Kinesis_20131202.ListStreams",
            "logs" => "Logs_20140328.DescribeLogGroups",
            "secretsmanager" => "secretsmanager.ListSecrets",
            "sqs" => "AmazonSQS.ListQueues",
            "ssm" => "AmazonSSM.DescribeParameters",
            _ => "",
        };
        let (mut head, mut body) = (get_item(json!({"service": name, "operation": ""})), BODY);
        head["headers"] =
            json!([["content-type", "application/x-amz-json-1.1"], ["x-amz-target", target]]);
        if target.is_empty() {
            let form = "application/x-www-form-urlencoded; charset=utf-8";
            (head["headers"], body) = (json!([["content-type", form]]), b"Action=ListAll");
        }
        if *name == "lambda" {
            (head["method"], head["path"]) = (json!("GET"), json!("/2015-03-31/functions"));
        }
        let call = guest.begin_request(head, body);
        let came = guest.end(call);
        assert_eq!(came.status, Status::Done, "{name} {}", came.meta);
        let scope = format!("/{}/aws4_request", if *name == "ses" { "ses" } else { *name });
        assert!(asked.recv().unwrap().head.contains(&scope), "{name}");
        assert_eq!(bed.meter.value(Event::HostioServiceRequest(*label)), 1, "{name}");
    }
}

#[test]
fn a_redirect_is_an_answer_like_any_other() {
    let location = "location: http://169.254.169.254/latest/meta-data/\r\n";
    let (address, asked) = script(vec![response(307, location, ""), response(200, "", "{}")]);
    let mut bed = bed_at(address, &["dynamodb"]);
    let mut guest = bed.guest();
    let came = ask(&mut guest, json!({}));
    assert_eq!(came.meta["http_status"], 307);
    assert!(asked.recv().is_ok() && asked.try_recv().is_err(), "one request");
}

#[test]
fn large_bodies_pass_in_slots() {
    let large = String::from_utf8(body_of(3_000_000).iter().map(|b| b'a' + b % 26).collect());
    let large = large.unwrap();
    let (address, asked) = script(vec![response(200, "", &large)]);
    let mut bed = bed_at(address, &["dynamodb"]);
    let mut guest = bed.guest();
    let body = format!("{{\"TableName\":\"t\",\"x\":\"{large}\"}}").into_bytes();
    let call = guest.begin_request(get_item(json!({})), &body);
    let came = guest.end(call);
    assert!(came.body == large.as_bytes() && came.pieces > 1, "{}", came.pieces);
    assert!(asked.recv().unwrap().body == body);
}

/// The server stays silent after the first part of a body whose length it has not said.
#[test]
fn a_body_without_length_is_passed_on_as_it_arrives() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nfirst\r\n";
    let (address, _closed) = halting(head.to_owned());
    let mut bed = bed_at(address, &["dynamodb"]);
    let mut guest = bed.guest();
    let call = guest.begin_request(get_item(json!({})), BODY);
    let first = guest.completion();
    assert_eq!((first.call, first.status), (call, Status::Done));
    assert!(first.flags & MORE != 0);
    assert_eq!(guest.piece(&first), b"first");
    guest.release(first.token);
}

#[test]
fn a_request_is_sent_once() {
    let (address, asked) = script(vec![Answer::Hang, response(200, "", "{}")]);
    let mut bed = bed_at(address, &["dynamodb"]);
    let mut guest = bed.guest();
    let came = ask(&mut guest, json!({}));
    assert_eq!(came.code(), "Broken", "{}", came.meta);
    assert!(asked.recv().is_ok() && asked.try_recv().is_err(), "the SDK decides");
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut bed = bed_at(closed, &["dynamodb"]);
    let mut guest = bed.guest();
    assert_eq!(ask(&mut guest, json!({})).code(), "Unavailable");
}
