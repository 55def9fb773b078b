//! The requests of SAM CLI, the Serverless Framework and Terraform, from `tests/stacks/recorded`, sent
//! again without the tools: a gateway and its store give the same answers, and nothing is left.
//! `tests/stacks/record` says what a line has.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::SystemTime;

use aws_credential_types::Credentials;
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings,
    UriPathNormalizationMode, sign,
};
use aws_sigv4::sign::v4::SigningParams;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use system_tests::functions::{Answer, Gateway, ask, ask_plainly, keys_of, until};
use system_tests::needs_functions;

const FORM: (&str, &str) = ("content-type", "application/x-www-form-urlencoded; charset=utf-8");
/// Operations of stacks that go on after the answer.
const GOES_ON: [&str; 4] = ["CreateStack", "DeleteStack", "ExecuteChangeSet", "UpdateStack"];

fn encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte);
    let of = |byte: u8| match is_plain(byte) {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(of).collect()
}

/// A text with the values of this run in the place of their names.
fn filled(text: &str, values: &BTreeMap<String, String>) -> String {
    let fill = |text: String, (name, value): (&String, &String)| {
        text.replace(&format!("{{{{{name}}}}}"), &encoded(value))
    };
    let text = values.iter().fold(text.to_owned(), fill);
    // JSON may end with two braces, but does not begin with two.
    assert!(!text.contains("{{"), "a value that no answer had: {text}");
    text
}

/// The value of a field of a form, as it is there.
fn member<'a>(form: &'a str, name: &str) -> Option<&'a str> {
    form.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// The texts of an element.
fn elements(xml: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let texts = xml.split(&open).skip(1).filter_map(|rest| rest.split_once(&close));
    texts.map(|(text, _)| text.to_owned()).collect()
}

/// A gateway, with the address of its store, and the values of this run.
struct Session {
    gateway: Gateway,
    store: SocketAddr,
    values: BTreeMap<String, String>,
}

impl Session {
    fn start() -> Session {
        let gateway = Gateway::start("");
        gateway.bucket("deployments");
        let environment = std::fs::read_to_string(gateway.dir.path().join("env")).unwrap();
        let store =
            environment.lines().find_map(|line| line.split_once("AWS_ENDPOINT_URL_S3=http://"));
        let store = store.unwrap().1.parse().unwrap();
        Session { gateway, store, values: BTreeMap::new() }
    }

    /// Sends a request to the store, signed for S3.
    fn ask_store(&self, method: &str, path: &str, fields: &[(&str, &str)], body: &[u8]) -> Answer {
        let mut settings = SigningSettings::default();
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        let keys = keys_of(self.gateway.address, "default").unwrap();
        let identity =
            Credentials::new(keys.access_key_id, keys.secret_access_key, None, None, "test").into();
        let params = SigningParams::builder().identity(&identity).region("us-east-1").name("s3");
        let params = params.time(SystemTime::now()).settings(settings).build().unwrap().into();
        let url = format!("http://{}{path}", self.store);
        let body_signed = SignableBody::Bytes(body);
        let request = SignableRequest::new(method, url, fields.iter().copied(), body_signed);
        let (signed, _) = sign(request.unwrap(), &params).unwrap().into_parts();
        let all = fields.iter().copied().chain(signed.headers()).collect::<Vec<_>>();
        ask_plainly(self.store, method, path, &all, body).unwrap()
    }

    /// Sends the request of a line, and waits until the operation that it begins has ended.
    fn send(&self, line: &Value) -> Answer {
        let method = line["method"].as_str().unwrap();
        let path = filled(line["path"].as_str().unwrap(), &self.values);
        let text = filled(line["body"].as_str().unwrap_or_default(), &self.values);
        let body = match line["base64"].as_str() {
            Some(packed) => STANDARD.decode(packed).unwrap(),
            None => text.clone().into_bytes(),
        };
        let fields = line["fields"].as_object().into_iter().flatten();
        let mut fields: Vec<(&str, &str)> =
            fields.map(|(name, value)| (name.as_str(), value.as_str().unwrap())).collect();
        if line["to"] == "store" {
            return self.ask_store(method, &path, &fields, &body);
        }
        if path == "/" {
            fields.push(FORM);
        }
        let answer = ask(self.gateway.address, method, &path, &fields, &body).unwrap();
        if answer.status == 200 && member(&text, "Action").is_some_and(|it| GOES_ON.contains(&it)) {
            self.settle(member(&text, "StackName").expect("a stack"));
        }
        answer
    }

    /// Waits until a stack does not change any more, or does not exist.
    fn settle(&self, stack: &str) {
        let form = format!("Action=DescribeStacks&Version=2010-05-15&StackName={stack}");
        until("the operation ends", || {
            let answer = ask(self.gateway.address, "POST", "/", &[FORM], form.as_bytes()).unwrap();
            let statuses = elements(&String::from_utf8_lossy(&answer.body), "StackStatus");
            (!statuses.iter().any(|status| status.ends_with("IN_PROGRESS"))).then_some(())
        });
    }

    /// Sends a line's request, compares the answer, and takes what later lines need of it.
    fn replay(&mut self, number: usize, line: &Value) {
        let answer = self.send(line);
        let place = || format!("line {number}, {} {}: {answer:?}", line["method"], line["path"]);
        assert_eq!(line["status"], answer.status, "{}", place());
        let text = String::from_utf8_lossy(&answer.body);
        if let Some(code) = line["error"].as_str() {
            assert!(text.contains(&format!("<Code>{code}</Code>")), "{}", place());
        }
        if let Some(due) = line.get("answer") {
            assert_eq!(&answer.json(), due, "{}", place());
        }
        for take in line["takes"].as_array().into_iter().flatten() {
            let (name, element) = (take[0].as_str().unwrap(), take[1].as_str().unwrap());
            let mut texts = elements(&text, element);
            let index = take[2].as_u64().unwrap() as usize;
            assert!(index < texts.len(), "{element}: {}", place());
            self.values.insert(name.to_owned(), texts.swap_remove(index));
        }
    }

    /// Nothing is left of what the tool made.
    fn is_clean(&self) {
        let all = ask(self.gateway.address, "GET", "/2015-03-31/functions", &[], b"").unwrap();
        assert_eq!(all.json()["Functions"], json!([]));
        let file = self.gateway.dir.path().join("stacks/default/identities.json");
        // Terraform makes no stack.
        if let Ok(text) = std::fs::read(file) {
            let identities: Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(identities["roles"], json!({}));
            assert_eq!(identities["policies"], json!({}));
        }
        let answer = self.ask_store("GET", "/", &[], b"");
        assert_eq!(answer.status, 200, "{answer:?}");
        let buckets = elements(&String::from_utf8_lossy(&answer.body), "Name");
        assert_eq!(buckets, ["deployments"], "the bucket that was there before");
    }
}

/// Sends what is recorded of a tool; `expected` are the results of its invocations.
fn replay(tool: &str, expected: &[Value]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stacks/recorded").join(tool);
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let results: Vec<&Value> = lines.iter().filter_map(|line| line.get("answer")).collect();
    assert_eq!(results, expected.iter().collect::<Vec<_>>(), "the recording is whole");
    let mut session = Session::start();
    for (number, line) in lines.iter().enumerate() {
        session.replay(number + 1, line);
    }
    session.is_clean();
}

/// A deployment, one without a change, a change of a parameter, a change of code, a deployment that fails,
/// lists, and a removal.
#[test]
fn what_sam_cli_sends_is_served() {
    needs_functions!();
    let one = json!({"word": "one", "objects": true});
    let two = json!({"word": "two", "objects": true});
    let more = json!({"word": "two", "more": true});
    replay("sam.jsonl", &[one.clone(), two, one, more.clone(), more]);
}

/// A deployment, one without a change, a change of a variable, of code alone, a deployment that fails, and a
/// removal.
#[test]
fn what_the_serverless_framework_sends_is_served() {
    needs_functions!();
    let of = |name: &str, word: &str| json!({ name: word });
    let all = [of("word", "one"), of("word", "two"), of("code", "two"), of("word", "two")];
    replay("serverless.jsonl", &all);
}

/// A function with an alias, a permission, settings of events and provisioned concurrency; a change of a
/// variable, one of the code, plans without a change between them, and a removal.
#[test]
fn what_terraform_sends_is_served() {
    needs_functions!();
    let of = |word: &str, version: &str| json!({"word": word, "version": version});
    // Each application, each plan and the removal invoke.
    let (one, two, three) = (of("one", "1"), of("two", "2"), of("two", "3"));
    let all = [&one, &one, &two, &two, &three, &three, &three].map(Clone::clone);
    replay("terraform.jsonl", &all);
}
