//! Callers that speak plain HTTP: function URLs and HTTP APIs, asked by Python's `http.client` and curl, with
//! boto3 as the client of Lambda's API and of CloudFormation.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::json;
use system_tests::functions::{Gateway, ask, ask_plainly, keys_of, signal, until};
use system_tests::needs_functions;

/// Time limit of a read from the listener.
const PATIENCE: Duration = Duration::from_secs(60);
const URLS: &str = "urls = \"127.0.0.1:0\"\n";

/// The interpreter with boto3; `None`, and a message, where it cannot be had.
fn boto3() -> Option<PathBuf> {
    let prepare = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/prepare");
    let output = Command::new(prepare).output().expect("a shell");
    if !output.status.success() {
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr).trim());
        return None;
    }
    let venv = String::from_utf8(output.stdout).expect("a path");
    Some(Path::new(venv.trim()).join("bin/python"))
}

/// A gateway with a listener for URLs, and the address of its metrics.
fn start(config: &str) -> (Gateway, SocketAddr) {
    let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    (Gateway::start(&format!("admin = \"{metrics}\"\n{URLS}{config}")), metrics)
}

/// The number of requests with an end.
fn count(metrics: SocketAddr, end: &str) -> u64 {
    let text = ask_plainly(metrics, "GET", "/metrics", &[], b"").unwrap().body;
    let sample = format!("unlade_fn_http_requests_total{{end=\"{end}\"}} ");
    let text = String::from_utf8(text).unwrap();
    let found = text.lines().find_map(|line| line.strip_prefix(&sample));
    found.map_or(0, |number| number.parse().unwrap())
}

/// Waits until requests with these ends are counted.
fn counted(metrics: SocketAddr, ends: &[&str]) {
    for end in ends {
        until(end, || (count(metrics, end) > 0).then_some(()));
    }
}

/// Runs a case of `clients/python/function_urls.py`.
fn run(python: &Path, gateway: &Gateway, case: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/function_urls.py");
    let mut command = Command::new(python);
    for service in ["LAMBDA", "CLOUDFORMATION", "STS"] {
        command.env(format!("AWS_ENDPOINT_URL_{service}"), format!("http://{}", gateway.address));
    }
    for (tenant, prefix) in [("default", "AWS"), ("other", "OTHER")] {
        if let Some(keys) = keys_of(gateway.address, tenant) {
            command.env(format!("{prefix}_ACCESS_KEY_ID"), keys.access_key_id);
            command.env(format!("{prefix}_SECRET_ACCESS_KEY"), keys.secret_access_key);
        }
    }
    command.env("AWS_DEFAULT_REGION", "us-east-1").env("AWS_CONFIG_FILE", "/dev/null");
    command.env("AWS_EC2_METADATA_DISABLED", "true");
    let output = command.arg(script).arg(case).output().expect("python runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{case}: {said}");
}

#[test]
fn a_function_is_reached_by_its_url() {
    needs_functions!();
    let Some(python) = boto3() else { return };
    let (gateway, metrics) = start("");
    run(&python, &gateway, "urls");
    counted(
        metrics,
        &[
            "answered",
            "denied",
            "function_error",
            "malformed",
            "not_found",
            "preflight",
            "throttled",
            "too_large",
        ],
    );
}

#[test]
fn a_signed_url_knows_its_callers() {
    needs_functions!();
    let Some(python) = boto3() else { return };
    let (gateway, metrics) = start("[tenant.default]\n[tenant.other]\n");
    run(&python, &gateway, "signed");
    counted(metrics, &["answered", "denied"]);
}

#[test]
fn http_apis_of_a_stack_lead_to_its_functions() {
    needs_functions!();
    let Some(python) = boto3() else { return };
    let (gateway, metrics) = start("");
    run(&python, &gateway, "stack");
    counted(metrics, &["answered", "denied", "late", "malformed", "preflight", "unavailable"]);
}

const SLEEPS: &str = "import time\ndef handler(event, context):\n    if event['rawPath'] == '/slow':\n        \
                      time.sleep(2)\n    return 'done'\n";

/// Makes a public URL of a function; returns its host name and the address of the listener.
fn public(gateway: &Gateway, name: &str) -> (String, SocketAddr) {
    let post = |path: &str, body: serde_json::Value| {
        let body = body.to_string();
        let answer = ask(gateway.address, "POST", path, &[], body.as_bytes()).unwrap();
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()
    };
    let policy = format!("/2015-03-31/functions/{name}/policy");
    post(
        &policy,
        json!({"StatementId": "a", "Action": "lambda:InvokeFunctionUrl",
        "Principal": "*", "FunctionUrlAuthType": "NONE"}),
    );
    post(
        &policy,
        json!({"StatementId": "b", "Action": "lambda:InvokeFunction",
        "Principal": "*", "InvokedViaFunctionUrl": true}),
    );
    let made = post(&format!("/2021-10-31/functions/{name}/url"), json!({"AuthType": "NONE"}));
    let url = made["FunctionUrl"].as_str().unwrap();
    let host = url.strip_prefix("http://").unwrap().trim_end_matches('/').to_owned();
    let port = host.rsplit(':').next().unwrap().parse().unwrap();
    (host, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// Sends bytes on a new connection.
fn send(address: SocketAddr, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
    stream
}

/// Reads a response, as far as its end, or that of the connection.
fn read(stream: &mut TcpStream) -> String {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let known = String::from_utf8_lossy(&text).into_owned();
        if let Some((head, body)) = known.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if length.is_some_and(|length| body.len() >= length.parse().unwrap()) {
                return known;
            }
        }
        match stream.read(&mut part) {
            Ok(0) | Err(_) => return known,
            Ok(count) => text.extend_from_slice(&part[..count]),
        }
    }
}

#[test]
fn a_request_beyond_a_limit_is_refused_and_the_next_one_is_served() {
    needs_functions!();
    let (gateway, metrics) = start("urls_timeout = \"1s\"\nurls_connections_max = 2\n");
    gateway.deploy("f", "", SLEEPS);
    let (host, listener) = public(&gateway, "f");
    let get = format!("GET / HTTP/1.1\r\nhost: {host}\r\n\r\n");
    let status = |text: String| text.split(' ').nth(1).unwrap_or_default().to_owned();
    let of = |text: &str| status(read(&mut send(listener, text)));
    assert_eq!(of(&get), "200");
    let post = |length: usize| {
        format!("POST / HTTP/1.1\r\nhost: {host}\r\ncontent-length: {length}\r\n\r\n")
    };
    assert_eq!(of(&post((6 << 20) + 1)), "413");
    assert_eq!(of(&post(1)), "408", "the body does not come");
    assert_eq!(of("nonsense\r\n\r\n"), "400");
    assert_eq!(of("GET / HTTP/1.1\r\n\r\n"), "400", "no host");
    let long = format!("GET / HTTP/1.1\r\nhost: {host}\r\nx: {}\r\n\r\n", "x".repeat(33_000));
    assert_eq!(of(&long), "431");
    counted(metrics, &["invalid", "slow", "too_large"]);
    // Two connections have the places; they go on.
    let mut first = until("a place", || {
        let mut stream = send(listener, &get);
        (status(read(&mut stream)) == "200").then_some(stream)
    });
    let mut second = until("a place", || {
        let mut stream = send(listener, &get);
        (status(read(&mut stream)) == "200").then_some(stream)
    });
    let third = read(&mut send(listener, &get));
    assert!(third.starts_with("HTTP/1.1 503 ") && third.contains("Unavailable"), "{third}");
    counted(metrics, &["full"]);
    for stream in [&mut first, &mut second] {
        stream.write_all(get.as_bytes()).unwrap();
        assert_eq!(status(read(stream)), "200");
    }
    drop(first);
    until("the place is free", || (of(&get) == "200").then_some(()));
}

#[test]
fn a_gateway_that_ends_answers_first() {
    needs_functions!();
    let (mut gateway, _) = start("");
    gateway.deploy("f", "timeout = \"30s\"\n", SLEEPS);
    let (host, listener) = public(&gateway, "f");
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n\r\n");
    assert!(read(&mut send(listener, &get("/"))).contains("200 OK"));
    let mut slow = send(listener, &get("/slow"));
    until("it runs", || {
        let busy =
            gateway.state()["instances"].as_array()?.iter().any(|own| own["state"] == "busy");
        busy.then_some(())
    });
    signal(gateway.pid(), "TERM");
    let answer = read(&mut slow);
    assert!(answer.contains("200 OK") && answer.ends_with("done"), "{answer}");
    assert_eq!(gateway.ended(), Some(0));
}

#[test]
fn urls_are_off_without_an_address_and_say_so() {
    needs_functions!();
    let gateway = Gateway::start("");
    gateway.deploy("f", "", SLEEPS);
    let path = "/2021-10-31/functions/f/url";
    let answer = ask(gateway.address, "POST", path, &[], b"{\"AuthType\": \"NONE\"}").unwrap();
    assert_eq!(answer.status, 400);
    assert!(answer.json()["message"].as_str().unwrap().contains("set `urls`"), "{answer:?}");
}

#[test]
fn a_url_survives_the_gateway() {
    needs_functions!();
    let (mut gateway, _) = start("");
    gateway.deploy("f", "", SLEEPS);
    let (host, listener) = public(&gateway, "f");
    let name = host.split(':').next().unwrap().to_owned();
    let ask = |address: SocketAddr| {
        read(&mut send(address, &format!("GET / HTTP/1.1\r\nhost: {name}\r\n\r\n")))
    };
    assert!(ask(listener).contains("200 OK"));
    gateway.restart();
    let path = "/2021-10-31/functions/f/url";
    let found = system_tests::functions::ask(gateway.address, "GET", path, &[], b"").unwrap();
    let url = found.json()["FunctionUrl"].as_str().unwrap().to_owned();
    let port = url.trim_end_matches('/').rsplit(':').next().unwrap().parse().unwrap();
    assert!(url.contains(&name), "{url}");
    assert!(ask(SocketAddr::from(([127, 0, 0, 1], port))).contains("200 OK"));
}
