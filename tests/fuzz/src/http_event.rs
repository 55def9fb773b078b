//! Requests in front of functions, and results of functions.

use std::collections::BTreeMap;

use serde_json::Value;
use unlade_fn_http_event::cors::Preflight;
use unlade_fn_http_event::{Context, Cors, HttpRequest, Response, Router, event, openapi, result};

/// Lines of a method, a target and header fields, an empty line, a body. Each part may have any text: the
/// event is JSON with the body in it, a found route's variables are parts of the path, and an OpenAPI
/// document in the body is read into routes, or refused with a reason.
pub fn http_event(data: &[u8]) {
    let end = data.windows(2).position(|two| two == b"\n\n").unwrap_or(data.len());
    let body = data.get(end + 2..).unwrap_or_default();
    let Ok(head) = std::str::from_utf8(&data[..end]) else { return };
    let mut lines = head.lines();
    let (method, target) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let field = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_ascii_lowercase(), value.to_owned()))
    };
    let headers: Vec<(String, String)> = lines.filter_map(field).collect();
    let protocol = "HTTP/1.1";
    let source_ip = "192.0.2.1";
    let request = HttpRequest { method, path, query, protocol, headers: &headers, body, source_ip };
    let mut router = Router::default();
    for key in ["GET /a/{b}", "ANY /a/{rest+}", path, &format!("GET {path}")] {
        let _ = router.insert(key, ());
    }
    let found = router.find(method, path);
    let parameters = found.map(|found| found.parameters).unwrap_or_default();
    for (name, value) in &parameters {
        assert!(!name.is_empty() && value.len() <= path.len());
    }
    let context = Context {
        account: "anonymous",
        api_id: "id",
        domain_name: request.header("host").unwrap_or_default(),
        request_id: "request",
        time_ms: data.len() as u64 * 1_000_000_007,
        stage: "$default",
        stage_variables: &BTreeMap::new(),
        route_key: "$default",
        resource: "$default",
        path_parameters: &parameters,
        identity: None,
    };
    for make in [event::v1, event::v2] {
        let event: Value = serde_json::from_slice(&make(&request, &context)).expect("JSON");
        match (event["body"].as_str(), event["isBase64Encoded"].as_bool()) {
            (None, Some(false)) => assert!(body.is_empty()),
            (Some(text), Some(false)) => assert_eq!(text.as_bytes(), body),
            (Some(text), Some(true)) => assert_eq!(text.len(), body.len().div_ceil(3) * 4),
            other => panic!("{other:?}"),
        }
    }
    let Ok(document) = serde_json::from_slice::<Value>(body) else { return };
    match openapi::read(&document) {
        Ok(read) => {
            for (key, integration) in read.routes {
                unlade_fn_http_event::route::check(&key).expect("a checked key");
                assert!(integration.function.starts_with("arn:aws:lambda:"));
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
    if let (Ok(cors), Some(asked)) = (Cors::from_value(&document), Preflight::of(method, &headers))
    {
        cors.preflight(&asked);
    }
}

/// A result is a response whose fields end no line, or it is refused with a reason.
pub fn function_result(data: &[u8]) {
    for of in [result::of_v1, result::of_v2] {
        match of(data) {
            Ok(Response { status, headers, .. }) => {
                assert!((200..=599).contains(&status));
                for (name, value) in headers {
                    assert!(!name.is_empty() && !name.contains(['\r', '\n', ':', ' ']), "{name:?}");
                    assert!(!value.contains(['\r', '\n', '\0']), "{value:?}");
                }
            }
            Err(malformed) => assert!(!malformed.to_string().is_empty()),
        }
    }
}

/// The seeds: the target, the name, the content.
pub fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let all = [
        ("http_event", "get", "GET\n/a/b%20c?d=e+f&g\nhost: id.localhost\ncookie: a=1; b=2\n\n"),
        ("http_event", "post", "POST\n/a/b/c\ncontent-type: application/json\n\n{\"k\": [1]}"),
        ("http_event", "binary", "PUT\n/\ncontent-type: image/png\n\n\u{7f}PNG"),
        ("http_event", "preflight", PREFLIGHT),
        ("http_event", "openapi", OPENAPI),
        ("function_result", "plain", "{\"message\": \"done\"}"),
        ("function_result", "text", "\"done\""),
        ("function_result", "structured", STRUCTURED),
        ("function_result", "lists", LISTS),
        ("function_result", "field-with-a-line-end", LINE_END),
    ];
    all.map(|(target, name, text)| (target, name, text.as_bytes().to_vec())).into()
}

const PREFLIGHT: &str = "OPTIONS\n/\norigin: https://a.example\naccess-control-request-method: PUT\n\n\
                         {\"AllowOrigins\": [\"https://*\"], \"MaxAge\": 5, \"AllowCredentials\": true}";
const OPENAPI: &str = "POST\n/\n\n{\"openapi\": \"3.0.1\", \"paths\": {\"/p/{id}\": {\"get\": \
                       {\"x-amazon-apigateway-integration\": {\"type\": \"aws_proxy\", \"uri\": \
                       \"arn:aws:lambda:us-east-1:000000000000:function:f\", \
                       \"payloadFormatVersion\": \"2.0\", \"timeoutInMillis\": 500}}}}}";
const STRUCTURED: &str = "{\"statusCode\": 201, \"headers\": {\"X-A\": 1}, \"cookies\": [\"a=1\"], \
                          \"body\": \"/wA=\", \"isBase64Encoded\": true}";
const LISTS: &str = "{\"statusCode\": \"200\", \"headers\": {\"x-a\": \"0\"}, \"multiValueHeaders\": \
                     {\"X-A\": [\"1\", 2]}, \"body\": \"x\"}";
const LINE_END: &str = "{\"statusCode\": 200, \"headers\": {\"a\": \"b\\r\\nc: d\"}}";
