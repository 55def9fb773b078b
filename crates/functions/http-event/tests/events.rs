//! Events and responses: the examples of AWS's documentation, and the cases that they leave open.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use unlade_fn_http_event::result::HEADERS_BYTES_MAX;
use unlade_fn_http_event::{Context, HttpRequest, Identity, Malformed, Response, event, result};

fn fields(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

struct Place {
    headers: Vec<(String, String)>,
    variables: BTreeMap<String, String>,
    parameters: BTreeMap<String, String>,
    identity: Option<Identity>,
}

impl Place {
    fn new(headers: &[(&str, &str)]) -> Place {
        let (variables, parameters) = (BTreeMap::new(), BTreeMap::new());
        Place { headers: fields(headers), variables, parameters, identity: None }
    }

    fn made(
        &self,
        make: fn(&HttpRequest<'_>, &Context<'_>) -> Vec<u8>,
        (path, query): (&str, &str),
        body: &[u8],
    ) -> Value {
        let request = HttpRequest {
            method: "POST",
            path,
            query,
            protocol: "HTTP/1.1",
            headers: &self.headers,
            body,
            source_ip: "192.0.2.1",
        };
        let context = Context {
            account: "anonymous",
            api_id: "id",
            domain_name: "id.lambda-url.us-east-1.localhost",
            request_id: "request",
            time_ms: 1_583_348_638_390,
            stage: "$default",
            stage_variables: &self.variables,
            route_key: "POST /a/{b}",
            resource: "/a/{b}",
            path_parameters: &self.parameters,
            identity: self.identity.as_ref(),
        };
        serde_json::from_slice(&make(&request, &context)).unwrap()
    }
}

#[test]
fn an_event_of_format_2_has_the_documented_members() {
    let mut place = Place::new(&[
        ("content-type", "application/json"),
        ("x-a", "1"),
        ("cookie", "a=1; b=2"),
        ("x-a", "2"),
        ("cookie", "c=3"),
        ("user-agent", "agent"),
    ]);
    place.parameters.insert("b".to_owned(), "7".to_owned());
    place.variables.insert("v".to_owned(), "w".to_owned());
    let made = place.made(event::v2, ("/a/%37", "p=1&p=2&q=a+b%21&r&=x&bad=%zz"), b"{\"k\": 1}");
    let due = json!({
        "version": "2.0",
        "routeKey": "POST /a/{b}",
        "rawPath": "/a/%37",
        "rawQueryString": "p=1&p=2&q=a+b%21&r&=x&bad=%zz",
        "cookies": ["a=1", "b=2", "c=3"],
        "headers": {"content-type": "application/json", "x-a": "1,2", "user-agent": "agent"},
        "queryStringParameters": {"": "x", "p": "1,2", "q": "a b!", "r": "", "bad": "%zz"},
        "pathParameters": {"b": "7"},
        "stageVariables": {"v": "w"},
        "requestContext": {
            "accountId": "anonymous",
            "apiId": "id",
            "domainName": "id.lambda-url.us-east-1.localhost",
            "domainPrefix": "id",
            "http": {"method": "POST", "path": "/a/%37", "protocol": "HTTP/1.1",
                "sourceIp": "192.0.2.1", "userAgent": "agent"},
            "requestId": "request",
            "routeKey": "POST /a/{b}",
            "stage": "$default",
            "time": "04/Mar/2020:19:03:58 +0000",
            "timeEpoch": 1_583_348_638_390_u64,
        },
        "body": "{\"k\": 1}",
        "isBase64Encoded": false,
    });
    assert_eq!(made, due);
}

#[test]
fn what_a_request_does_not_have_is_absent_in_format_2_and_null_in_format_1() {
    let place = Place::new(&[]);
    let second = place.made(event::v2, ("/", ""), b"");
    for absent in ["body", "cookies", "queryStringParameters", "pathParameters", "stageVariables"] {
        assert!(second.get(absent).is_none(), "{absent}");
    }
    assert_eq!(second["isBase64Encoded"], false);
    let first = place.made(event::v1, ("/", ""), b"");
    for null in [
        "body",
        "queryStringParameters",
        "multiValueQueryStringParameters",
        "pathParameters",
        "stageVariables",
    ] {
        assert_eq!(first.get(null), Some(&Value::Null), "{null}");
    }
}

#[test]
fn an_event_of_format_1_has_all_values_and_the_last_one() {
    let mut place = Place::new(&[("x-a", "1"), ("x-a", "2"), ("cookie", "a=1")]);
    place.identity = Some(Identity {
        access_key: "KEY".to_owned(),
        account: "000000000000".to_owned(),
        arn: "arn:aws:iam::000000000000:user/shop".to_owned(),
        name: "shop".to_owned(),
    });
    let made = place.made(event::v1, ("/a/7", "p=1&p=2"), &[0xff, 0]);
    assert_eq!((&made["version"], &made["resource"]), (&json!("1.0"), &json!("/a/{b}")));
    assert_eq!((&made["path"], &made["httpMethod"]), (&json!("/a/7"), &json!("POST")));
    assert_eq!(made["headers"], json!({"x-a": "2", "cookie": "a=1"}));
    assert_eq!(made["multiValueHeaders"], json!({"x-a": ["1", "2"], "cookie": ["a=1"]}));
    assert_eq!(made["queryStringParameters"], json!({"p": "2"}));
    assert_eq!(made["multiValueQueryStringParameters"], json!({"p": ["1", "2"]}));
    assert_eq!((&made["body"], &made["isBase64Encoded"]), (&json!("/wA="), &json!(true)));
    let identity = &made["requestContext"]["identity"];
    assert_eq!(
        (&identity["accessKey"], &identity["sourceIp"]),
        (&json!("KEY"), &json!("192.0.2.1"))
    );
    assert_eq!(made["requestContext"]["requestTime"], "04/Mar/2020:19:03:58 +0000");
    let second = place.made(event::v2, ("/", ""), b"");
    let arn = &second["requestContext"]["authorizer"]["iam"]["userArn"];
    assert_eq!(arn, "arn:aws:iam::000000000000:user/shop");
}

fn of_v2(value: &Value) -> Result<Response, Malformed> {
    result::of_v2(value.to_string().as_bytes())
}

fn of_v1(value: &Value) -> Result<Response, Malformed> {
    result::of_v1(value.to_string().as_bytes())
}

fn response(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Response {
    Response { status, headers: fields(headers), body: body.to_vec() }
}

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn a_result_without_a_status_is_a_body() {
    assert_eq!(of_v2(&json!("Hello")), Ok(response(200, &[JSON], b"Hello")));
    assert_eq!(result::of_v2(b"{ \"a\": 1 }"), Ok(response(200, &[JSON], b"{ \"a\": 1 }")));
    assert_eq!(of_v2(&Value::Null), Ok(response(200, &[JSON], b"null")));
    assert_eq!(of_v2(&json!([1])), Ok(response(200, &[JSON], b"[1]")));
    for wrong in [json!("Hello"), json!({"a": 1}), Value::Null] {
        assert_eq!(of_v1(&wrong), Err(Malformed::NoStatus));
    }
    assert_eq!(result::of_v2(b"nothing"), Err(Malformed::Json));
    assert_eq!(result::of_v1(b""), Err(Malformed::Json));
}

#[test]
fn a_result_with_a_status_has_fields_cookies_and_a_body() {
    let own = json!({"statusCode": "201", "headers": {"X-A": 1, "x-b": true, "x-c": null,
        "Content-Type": "image/png", "Content-Length": "7", "Connection": "close"},
        "cookies": ["a=1; Secure", "b=2"], "body": "/wA=", "isBase64Encoded": true});
    let due = [
        ("content-type", "image/png"),
        ("x-a", "1"),
        ("x-b", "true"),
        ("set-cookie", "a=1; Secure"),
        ("set-cookie", "b=2"),
    ];
    let mut found = of_v2(&own).unwrap();
    found.headers[..3].sort();
    assert_eq!(found, response(201, &due, &[0xff, 0]));
    let own = json!({"statusCode": 200, "headers": {"x-a": "0", "x-b": "1"},
        "multiValueHeaders": {"X-A": ["1", 2]}, "body": "x"});
    let due = [("x-b", "1"), ("x-a", "1"), ("x-a", "2"), JSON];
    assert_eq!(of_v1(&own), Ok(response(200, &due, b"x")));
    assert_eq!(of_v2(&json!({"statusCode": 204, "body": "x"})), Ok(response(204, &[], b"")));
    assert_eq!(of_v2(&json!({"statusCode": 404})), Ok(response(404, &[], b"")));
}

#[test]
fn a_malformed_result_is_refused_with_the_reason() {
    let long = "x".repeat(HEADERS_BYTES_MAX);
    for (wrong, why) in [
        (json!({"statusCode": 99}), Malformed::Status),
        (json!({"statusCode": 101}), Malformed::Status),
        (json!({"statusCode": 600}), Malformed::Status),
        (json!({"statusCode": null}), Malformed::Status),
        (json!({"statusCode": 200.5}), Malformed::Status),
        (json!({"statusCode": 200, "headers": []}), Malformed::Headers),
        (json!({"statusCode": 200, "headers": {"a": []}}), Malformed::Headers),
        (json!({"statusCode": 200, "headers": {"a b": "c"}}), Malformed::Field),
        (json!({"statusCode": 200, "headers": {"": "c"}}), Malformed::Field),
        (json!({"statusCode": 200, "headers": {"a": "b\r\nc: d"}}), Malformed::Field),
        (json!({"statusCode": 200, "headers": {"a": long}}), Malformed::Field),
        (json!({"statusCode": 200, "body": {}}), Malformed::Body),
        (json!({"statusCode": 200, "body": "!", "isBase64Encoded": true}), Malformed::Base64),
        (json!({"statusCode": 200, "isBase64Encoded": "yes"}), Malformed::Base64),
    ] {
        assert_eq!(of_v2(&wrong), Err(why), "{wrong}");
        assert_eq!(of_v1(&wrong), Err(why), "{wrong}");
        assert!(!why.to_string().is_empty());
    }
    let cookies = json!({"statusCode": 200, "cookies": "a=1"});
    assert_eq!(of_v2(&cookies), Err(Malformed::Cookies));
    let cookies = json!({"statusCode": 200, "cookies": ["a=1\r\nx: y"]});
    assert_eq!(of_v2(&cookies), Err(Malformed::Field));
    let several = json!({"statusCode": 200, "multiValueHeaders": {"a": "b"}});
    assert_eq!(of_v1(&several), Err(Malformed::Headers));
}
