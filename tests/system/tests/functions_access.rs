//! Access control of a gateway, and the limits of a deployment's settings.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use serde_json::json;
use system_tests::functions::{Answer, Gateway, ask, ask_as, ask_plainly, keys_of, signed, until};
use system_tests::needs_functions;

const ECHO: &str = "def handler(event, context):\n    return event\n";
const INVOKE: &str = "/2015-03-31/functions/echo/invocations";

/// All kinds of requests.
const REQUESTS: [(&str, &str); 7] = [
    ("POST", INVOKE),
    ("GET", "/2015-03-31/functions/"),
    ("GET", "/2015-03-31/functions/echo"),
    ("GET", "/2015-03-31/functions/echo/configuration"),
    ("DELETE", "/2015-03-31/functions/echo"),
    ("PUT", "/unlade/v1/functions/echo"),
    ("GET", "/unlade/v1/state"),
];

fn assert_counted(admin: SocketAddr, metric: &str, count: usize) {
    let metrics = ask_plainly(admin, "GET", "/metrics", &[], b"").unwrap();
    let line = format!("{metric} {count}\n");
    assert!(String::from_utf8_lossy(&metrics.body).contains(&line), "{line}{metrics:?}");
}

#[test]
fn a_request_without_a_valid_signature_is_refused() {
    needs_functions!();
    let admin = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::start(&format!("admin = \"{admin}\"\n"));
    gateway.deploy("echo", "", ECHO);
    let denied = |answer: &Answer, code: &str| {
        assert_eq!((answer.status, answer.error().as_str()), (403, code), "{answer:?}");
        assert!(answer.json()["message"].is_string(), "{answer:?}");
    };
    for (method, path) in REQUESTS {
        let answer = ask_plainly(gateway.address, method, path, &[], b"{}").unwrap();
        denied(&answer, "MissingAuthenticationTokenException");
    }
    let mut keys = keys_of(gateway.address, "default").unwrap();
    let good = signed(gateway.address, "POST", INVOKE, &[], b"{}");
    let good: Vec<_> = good.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let post = |body: &[u8]| ask_plainly(gateway.address, "POST", INVOKE, &good, body).unwrap();
    assert!(post(b"{}").is_success());
    denied(&post(b"[]"), "InvalidSignatureException");
    keys.secret_access_key.push('0');
    let guessed = ask_as(&keys, gateway.address, "POST", INVOKE, &[], b"{}").unwrap();
    denied(&guessed, "InvalidSignatureException");
    keys.access_key_id = "AKIDNOBODY".to_owned();
    let stranger = ask_as(&keys, gateway.address, "POST", INVOKE, &[], b"{}").unwrap();
    denied(&stranger, "UnrecognizedClientException");
    assert!(gateway.invoke("echo", &json!(1)).is_success(), "it is still there");
    for (reason, count) in [("missing", REQUESTS.len()), ("signature", 2), ("unrecognised", 1)] {
        let metric = format!("unlade_fn_requests_denied_total{{reason=\"{reason}\"}}");
        assert_counted(admin, &metric, count);
    }
    let file = gateway.dir.path().join("credentials");
    let mode = std::fs::metadata(file).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else reads the keys");
}

#[test]
fn a_key_is_good_for_the_functions_of_its_tenant_only() {
    needs_functions!();
    let mut gateway = Gateway::start("[tenant.other]\n");
    gateway.deploy("echo", "", ECHO);
    let other = keys_of(gateway.address, "other").unwrap();
    let as_other = |gateway: &Gateway, method: &str, path: &str| {
        ask_as(&other, gateway.address, method, path, &[], b"{}").unwrap()
    };
    for (method, path) in &REQUESTS[2..5] {
        let answer = as_other(&gateway, method, path);
        assert_eq!((answer.status, answer.error().as_str()), (404, "ResourceNotFoundException"));
    }
    assert_eq!(as_other(&gateway, "POST", INVOKE).status, 404);
    assert_eq!(as_other(&gateway, "GET", REQUESTS[1].1).json(), json!({"Functions": []}));
    let workers = as_other(&gateway, "GET", "/unlade/v1/state").json()["workers"].clone();
    assert!(workers.as_array().unwrap().iter().all(|worker| worker["tenant"] == "other"));
    let taken = as_other(&gateway, "PUT", "/unlade/v1/functions/echo");
    assert_eq!((taken.status, taken.error().as_str()), (409, "ResourceConflictException"));
    // The tenant in the manifest is not trusted.
    let source = gateway.dir.path().join("source/borrowed");
    std::fs::create_dir_all(&source).unwrap();
    std::fs::write(source.join("app.py"), ECHO).unwrap();
    let text = "handler = \"app.handler\"\ntenant = \"other\"\n";
    std::fs::write(source.join("function.toml"), text).unwrap();
    let deploy = |tenant: &str| {
        let mut command = Command::new(system_tests::unlade());
        command.args(["fn", "deploy", "--gateway", &format!("http://{}", gateway.address)]);
        command.args(["--state"]).arg(gateway.dir.path()).arg(&source);
        let keys = keys_of(gateway.address, tenant).unwrap();
        command.env("AWS_ENDPOINT_URL_LAMBDA", format!("http://{}", gateway.address));
        command.env("AWS_ACCESS_KEY_ID", keys.access_key_id);
        command.env("AWS_SECRET_ACCESS_KEY", keys.secret_access_key);
        command.output().unwrap()
    };
    let output = deploy("default");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("tenant other"), "{said}");
    gateway.deploy("theirs", "tenant = \"other\"\n", ECHO);
    let theirs = "/2015-03-31/functions/theirs/invocations";
    assert!(as_other(&gateway, "POST", theirs).is_success());
    let own = keys_of(gateway.address, "default").unwrap();
    let as_default = ask_as(&own, gateway.address, "POST", theirs, &[], b"{}").unwrap();
    assert_eq!(as_default.status, 404);
    gateway.restart();
    assert!(as_other(&gateway, "POST", theirs).is_success(), "it is still whose it was");
}

/// Signs a request to the gateway with the credentials of its environment, as AWS documents it.
const INTRUDER: &str = r#"
import hashlib, hmac, os, time, urllib.error, urllib.request

def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()

def handler(event, context):
    address, path, method = event["address"], event["path"], event["method"]
    date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    body = b"{}"
    digest = hashlib.sha256(body).hexdigest()
    fields = {"host": address, "x-amz-content-sha256": digest, "x-amz-date": date}
    if event["signed"]:
        names = ";".join(sorted(fields))
        lines = "".join("%s:%s\n" % (name, fields[name]) for name in sorted(fields))
        canonical = "\n".join([method, path, "", lines, names, digest])
        scope = "%s/us-east-1/lambda/aws4_request" % date[:8]
        text = "AWS4-HMAC-SHA256\n%s\n%s\n%s" % (
            date, scope, hashlib.sha256(canonical.encode()).hexdigest())
        key = ("AWS4" + os.environ["AWS_SECRET_ACCESS_KEY"]).encode()
        for part in scope.split("/"):
            key = sign(key, part)
        signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        fields["authorization"] = "AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, " \
            "Signature=%s" % (os.environ["AWS_ACCESS_KEY_ID"], scope, names, signature)
    request = urllib.request.Request(
        "http://%s%s" % (address, path), data=body, headers=fields, method=method)
    try:
        return urllib.request.urlopen(request, timeout=20).status
    except urllib.error.HTTPError as error:
        return error.code
"#;

#[test]
fn a_function_with_the_hosts_network_can_neither_deploy_nor_invoke() {
    needs_functions!();
    let gateway =
        Gateway::start("[tenant.default]\nmodes = [\"offload\", \"stock\"]\n[tenant.other]\n");
    gateway.deploy("echo", "", ECHO);
    gateway.deploy("intruder", "mode = \"stock\"\n", INTRUDER);
    for (method, path) in REQUESTS {
        for signed in [false, true] {
            let address = gateway.address.to_string();
            let event = json!({
                "address": address, "method": method, "path": path, "signed": signed
            });
            let answer = gateway.invoke("intruder", &event);
            assert_eq!(answer.json(), 403, "{method} {path}: {answer:?}");
        }
    }
    assert!(gateway.invoke("echo", &json!(1)).is_success());
}

#[test]
fn clients_that_sign_as_aws_does_are_let_in() {
    needs_functions!();
    let version = Command::new("curl").args(["--aws-sigv4", "", "--version"]).output();
    if !version.is_ok_and(|output| output.status.success()) {
        println!("skipped: no curl that signs");
        return;
    }
    let gateway = Gateway::start("");
    gateway.deploy("echo", "", ECHO);
    let keys = keys_of(gateway.address, "default").unwrap();
    let curl = |secret: &str, path: &str| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--max-time", "60", "--aws-sigv4", "aws:amz:us-east-1:lambda"]);
        command.args(["--user", &format!("{}:{secret}", keys.access_key_id), "-d", "[1]"]);
        command.arg(format!("http://{}{path}", gateway.address)).output().unwrap().stdout
    };
    for path in [INVOKE.to_owned(), format!("{INVOKE}?Qualifier=%24LATEST")] {
        let said = curl(&keys.secret_access_key, &path);
        assert_eq!(String::from_utf8_lossy(&said), "[1]", "{path}");
    }
    let said = curl("guessed", INVOKE);
    assert!(String::from_utf8_lossy(&said).contains("does not match"));
}

#[test]
fn authentication_can_be_switched_off_and_not_for_other_machines() {
    needs_functions!();
    let gateway = Gateway::start("authentication = \"off\"\n");
    gateway.deploy("echo", "", ECHO);
    let answer = ask_plainly(gateway.address, "POST", INVOKE, &[], b"3").unwrap();
    assert_eq!((answer.status, answer.json()), (200, json!(3)));
    let file = gateway.dir.path().join("remote.toml");
    std::fs::write(&file, "authentication = \"off\"\nallow_remote = true\n").unwrap();
    let mut command = Command::new(system_tests::unlade());
    let output = command.args(["fn", "serve", "--check", "--config"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("authentication"), "{said}");
}

#[test]
fn a_manifest_chooses_only_what_the_operator_allows() {
    needs_functions!();
    let admin = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let base = format!("admin = \"{admin}\"\n");
    let mut gateway = Gateway::start(&base);
    let refused = |gateway: &Gateway, manifest: &str, line: &str| {
        let output = gateway.try_deploy("f", manifest, ECHO);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(line), "{manifest}: {said}");
        assert!(said.contains("[tenant.default]"), "{said}");
    };
    let all = [
        ("mode = \"stock\"\n", "modes = [\"offload\", \"prefetch\", \"sdk\", \"stock\"]"),
        ("mode = \"tcp\"\n", "modes = [\"offload\", \"prefetch\", \"sdk\", \"tcp\"]"),
        ("packages = [\"/etc\"]\n", "packages = [\"/etc\"]"),
        ("python = \"/bin/true\"\n", "pythons = [\"/bin/true\"]"),
    ];
    for (manifest, line) in all {
        refused(&gateway, manifest, line);
    }
    assert_counted(admin, "unlade_fn_deployments_refused_total", all.len());
    for mode in ["offload", "prefetch", "sdk"] {
        gateway.deploy("f", &format!("mode = \"{mode}\"\n"), ECHO);
    }
    let wide = "[tenant.default]\nmodes = [\"offload\", \"stock\"]\npackages = [\"/opt\"]\n";
    gateway.reload(&format!("{base}{wide}"));
    let manifest = "mode = \"stock\"\npackages = [\"/opt\"]\n";
    until("the rules are wider", || {
        gateway.try_deploy("f", manifest, ECHO).status.success().then_some(())
    });
    assert!(gateway.invoke("f", &json!(1)).is_success());
    // A function that is no longer allowed is not served; the others are.
    gateway.deploy("g", "", ECHO);
    gateway.reload(&base);
    until("it has gone", || (gateway.invoke("f", &json!(1)).status == 404).then_some(()));
    assert!(gateway.invoke("g", &json!(1)).is_success());
    gateway.restart();
    assert_eq!(gateway.invoke("f", &json!(1)).status, 404);
    assert!(gateway.invoke("g", &json!(1)).is_success());
}

#[test]
fn a_role_is_no_wider_than_the_operators() {
    needs_functions!();
    let allow = "effect = \"allow\"\nactions = [\"s3:GetObject\"]\nresources = ";
    let operators = format!("[[tenant.default.role.statements]]\n{allow}[\"box/*\"]\n");
    let gateway = Gateway::start(&operators);
    for bucket in ["box", "secret"] {
        gateway.bucket(bucket);
        gateway.put(bucket, "k", b"x");
    }
    let code = "import boto3\ns3 = boto3.client('s3')\ndef handler(event, context):\n    \
                return s3.get_object(**event)['Body'].read().decode()\n";
    for (name, role) in
        [("silent", String::new()), ("greedy", format!("[[role.statements]]\n{allow}[\"*\"]\n"))]
    {
        gateway.deploy(name, &role, code);
        let read = |bucket: &str| gateway.invoke(name, &json!({"Bucket": bucket, "Key": "k"}));
        assert_eq!(read("box").json(), "x");
        let denied = read("secret");
        let said = denied.json()["errorMessage"].as_str().unwrap_or_default().to_owned();
        assert!(said.contains("AccessDenied"), "{name}: {denied:?}");
    }
    let wider = "[role]\nstatements = []\n[role.boundary]\nstatements = []\n";
    let output = gateway.try_deploy("silent", wider, code);
    assert!(!output.status.success(), "a boundary is not the author's");
    let store = std::fs::read_to_string(gateway.dir.path().join("store.keys")).unwrap();
    assert_eq!(store.lines().count(), 1, "nor does its key open the store");
    let answer = ask(gateway.address, "GET", "/2015-03-31/functions/", &[], b"").unwrap();
    assert_eq!(answer.json()["Functions"].as_array().map(Vec::len), Some(2));
}

/// A handler that says which instance runs it, and what it may read before and after the gate.
const GATE: &str = "\
import os, time
import boto3
from botocore.exceptions import ClientError

s3 = boto3.client('s3')
instance = []

def read(bucket):
    try:
        return s3.get_object(Bucket=bucket, Key='k')['Body'].read().decode()
    except ClientError as error:
        return error.response['Error']['Code']

def handler(event, context):
    if not instance:
        instance.append(os.urandom(8).hex())
    first = read('box')
    if event:
        s3.put_object(Bucket='gate', Key='started', Body=b'')
    while event and read('gate') == 'closed':
        time.sleep(0.005)
    return [instance[0], first, read('box')]
";

/// A role that is narrowed or removed decides about instances that are warm and about invocations
/// that run, and no invocation is lost.
#[test]
fn a_changed_role_is_that_of_instances_that_run() {
    needs_functions!();
    let statement = |table: &str, buckets: &str| {
        format!(
            "[[tenant.default.{table}.statements]]\neffect = \"allow\"\n\
             actions = [\"s3:GetObject\", \"s3:PutObject\"]\nresources = [{buckets}]\n"
        )
    };
    let (wide, narrow) = ("\"box/*\", \"gate/*\"", "\"gate/*\"");
    let reader = statement("roles.reader", wide);
    let config = |operators: &str| format!("{}{reader}", statement("role", operators));
    let mut gateway = Gateway::start(&config(wide));
    for bucket in ["box", "gate"] {
        gateway.bucket(bucket);
    }
    gateway.put("box", "k", b"x");
    gateway.put("gate", "k", b"closed");
    gateway.deploy("f", "timeout = \"120s\"\nmode = \"sdk\"\n", GATE);
    let invoke = |gateway: &Gateway| gateway.invoke("f", &json!(null)).json();
    let first = invoke(&gateway);
    assert_eq!((&first[1], &first[2]), (&json!("x"), &json!("x")));
    gateway.reload(&config(narrow));
    let denied =
        until("the role is narrower", || Some(invoke(&gateway)).filter(|answer| answer[1] != "x"));
    assert_eq!(denied, json!([first[0], "AccessDenied", "AccessDenied"]), "the same instance");
    gateway.reload(&config(wide));
    let again = until("it is wider", || Some(invoke(&gateway)).filter(|answer| answer[1] == "x"));
    assert_eq!(again, first);

    // An invocation runs while the operator's role is narrowed.
    let begin = |gateway: &Gateway| {
        let address = gateway.address;
        let running = std::thread::spawn(move || {
            system_tests::functions::invoke(address, "f", &json!(1), &[]).unwrap()
        });
        until("it runs", || gateway.object("gate", "started"));
        running
    };
    let running = begin(&gateway);
    gateway.reload(&config(narrow));
    until("the role is narrower", || (invoke(&gateway)[1] != "x").then_some(()));
    gateway.put("gate", "k", b"open");
    let answer = running.join().unwrap();
    assert!(answer.is_success(), "{answer:?}");
    assert_eq!((&answer.json()[1], &answer.json()[2]), (&json!("x"), &json!("AccessDenied")));

    // The same while the function's role is removed: it is served no more, and has no rights.
    gateway.reload(&config(wide));
    gateway.put("gate", "k", b"closed");
    std::fs::remove_file(gateway.objects().join("gate/started")).unwrap();
    let role = json!({"Role": "arn:aws:iam::000000000000:role/reader"}).to_string();
    let path = "/2015-03-31/functions/f/configuration";
    until("it has a role", || {
        let put = ask(gateway.address, "PUT", path, &[], role.as_bytes()).unwrap();
        put.is_success().then_some(())
    });
    until("it may read again", || (invoke(&gateway)[1] == "x").then_some(()));
    let running = begin(&gateway);
    gateway.reload(&statement("role", wide));
    until("its role is gone", || (gateway.invoke("f", &json!(null)).status == 404).then_some(()));
    let answer = running.join().unwrap();
    assert!(answer.is_success(), "{answer:?}");
    assert_eq!((&answer.json()[1], &answer.json()[2]), (&json!("x"), &json!("AccessDenied")));
}
