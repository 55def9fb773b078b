//! The life cycle of functions by Lambda's API, as boto3, the command line of AWS and Terraform use
//! it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use system_tests::functions::{Gateway, ask, ask_as, ask_plainly, keys_of, until};
use system_tests::needs_functions;

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

/// The environment of a client of the tenant `default`.
fn client(program: &Path, gateway: &Gateway) -> Command {
    let keys = keys_of(gateway.address, "default").unwrap();
    let mut command = Command::new(program);
    command.env("AWS_ENDPOINT_URL_LAMBDA", format!("http://{}", gateway.address));
    command.env("AWS_ACCESS_KEY_ID", keys.access_key_id);
    command.env("AWS_SECRET_ACCESS_KEY", keys.secret_access_key);
    command.env("AWS_DEFAULT_REGION", "us-east-1").env("AWS_CONFIG_FILE", "/dev/null");
    command.env("AWS_EC2_METADATA_DISABLED", "true").env("AWS_PAGER", "");
    command
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

/// Runs a case of `clients/python/lambda_api.py`; returns its output.
fn run(python: &Path, gateway: &Gateway, case: &str) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/lambda_api.py");
    let output = client(python, gateway).arg(script).arg(case).output().expect("python runs");
    assert!(output.status.success(), "{case}: {}", said(&output));
    String::from_utf8(output.stdout).expect("text")
}

fn case(name: &str) {
    let Some(python) = boto3() else { return };
    run(&python, &Gateway::start(""), name);
}

#[test]
fn functions_are_created_changed_and_deleted_by_boto3() {
    needs_functions!();
    case("functions");
}

#[test]
fn lists_have_pages() {
    needs_functions!();
    case("lists");
}

#[test]
fn what_does_not_start_or_is_not_served_is_refused_and_the_version_before_goes_on() {
    needs_functions!();
    case("refusals");
}

#[test]
fn an_alias_divides_invocations_among_versions() {
    needs_functions!();
    case("versions");
}

#[test]
fn concurrency_is_reserved_and_provisioned() {
    needs_functions!();
    case("concurrency");
}

/// Runs until the object `go` is there, and says with `begun` that it runs.
const WAITS: &str = r#"
import time
import boto3
s3 = boto3.client("s3")

def handler(event, context):
    s3.put_object(Bucket="box", Key="begun", Body=b"x")
    while True:
        try:
            return s3.get_object(Bucket="box", Key="go")["Body"].read().decode()
        except s3.exceptions.NoSuchKey:
            time.sleep(0.01)
"#;

#[test]
fn no_more_invocations_run_than_are_reserved() {
    needs_functions!();
    let gateway = Gateway::start("");
    gateway.bucket("box");
    gateway.deploy("waits", "writes = \"sync\"\ntimeout = \"10m\"\n", WAITS);
    let path = "/2017-10-31/functions/waits/concurrency";
    let body = json!({"ReservedConcurrentExecutions": 1}).to_string();
    assert_eq!(ask(gateway.address, "PUT", path, &[], body.as_bytes()).unwrap().status, 200);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| gateway.invoke("waits", &json!(1)));
        until("it runs", || gateway.object("box", "begun"));
        let second = gateway.invoke("waits", &json!(2));
        assert_eq!(second.status, 429, "{second:?}");
        let reason = "ReservedFunctionConcurrentInvocationLimitExceeded";
        assert_eq!(second.json()["Reason"], reason);
        gateway.put("box", "go", b"gone");
        assert_eq!(first.join().unwrap().json(), "gone");
    });
    assert!(gateway.invoke("waits", &json!(3)).is_success(), "its place is free again");
}

#[test]
fn tags_and_policies_are_kept() {
    needs_functions!();
    case("tags_and_permissions");
}

#[test]
fn a_role_is_one_that_the_operator_configures() {
    needs_functions!();
    let Some(python) = boto3() else { return };
    let gateway = Gateway::start(
        "[[tenant.default.roles.reader.statements]]\neffect = \"allow\"\n\
         actions = [\"s3:GetObject\"]\nresources = [\"box/*\"]\n",
    );
    for bucket in ["box", "secret"] {
        gateway.bucket(bucket);
        gateway.put(bucket, "k", b"x");
    }
    run(&python, &gateway, "role");
}

#[test]
fn versions_aliases_and_concurrency_survive_a_killed_gateway() {
    needs_functions!();
    let Some(python) = boto3() else { return };
    let mut gateway = Gateway::start("");
    run(&python, &gateway, "prepare");
    let before = run(&python, &gateway, "describe");
    gateway.restart();
    assert_eq!(run(&python, &gateway, "describe"), before);
    let warm = || {
        let state = gateway.state();
        let instances = state["instances"].as_array()?;
        instances.iter().any(|own| own["function"] == "f").then_some(())
    };
    until("a warm instance", warm);
}

#[test]
fn files_of_a_function_are_removed_with_its_last_version() {
    needs_functions!();
    let Some(python) = boto3() else { return };
    let gateway = Gateway::start("");
    run(&python, &gateway, "prepare");
    let home = gateway.dir.path().join("functions/f");
    let codes = || {
        let entries = std::fs::read_dir(&home).into_iter().flatten().flatten();
        entries.filter(|entry| entry.path().is_dir()).count()
    };
    assert_eq!(codes(), 3, "two versions and $LATEST");
    let ask = |method: &str, path: &str| {
        let path = format!("/2015-03-31/functions/f{path}");
        ask(gateway.address, method, &path, &[], b"").unwrap().status
    };
    assert_eq!(ask("DELETE", "/aliases/prod"), 204);
    assert_eq!(ask("DELETE", "?Qualifier=1"), 204);
    until("version 1 has gone", || (codes() == 2).then_some(()));
    assert_eq!(ask("DELETE", ""), 204);
    until("all has gone", || (codes() == 0).then_some(()));
}

#[test]
fn a_key_of_another_tenant_neither_sees_nor_changes_a_function() {
    needs_functions!();
    let gateway = Gateway::start("[tenant.other]\n");
    gateway.deploy("echo", "", "def handler(event, context):\n    return event\n");
    let other = keys_of(gateway.address, "other").unwrap();
    let arn = "arn%3Aaws%3Alambda%3Aus-east-1%3A000000000000%3Afunction%3Aecho";
    let [archive, _] = zips();
    let permission = json!({"StatementId": "s", "Action": "lambda:*", "Principal": "*"});
    let own = |rest: &str| format!("/2015-03-31/functions/echo{rest}");
    for (method, path, body) in [
        ("GET", own(""), json!({})),
        ("GET", own("/configuration"), json!({})),
        ("DELETE", own(""), json!({})),
        ("DELETE", own("?Qualifier=1"), json!({})),
        ("PUT", own("/code"), json!({ "ZipFile": archive })),
        ("PUT", own("/configuration"), json!({"Timeout": 5})),
        ("GET", own("/versions"), json!({})),
        ("POST", own("/versions"), json!({})),
        ("POST", own("/aliases"), json!({"Name": "a", "FunctionVersion": "$LATEST"})),
        ("GET", own("/aliases"), json!({})),
        ("GET", own("/aliases/a"), json!({})),
        ("PUT", own("/aliases/a"), json!({"FunctionVersion": "$LATEST"})),
        ("DELETE", own("/aliases/a"), json!({})),
        ("POST", own("/policy"), permission),
        ("GET", own("/policy"), json!({})),
        ("DELETE", own("/policy/s"), json!({})),
        ("POST", own("/invocations"), json!({})),
        ("GET", "/2019-09-30/functions/echo/concurrency".to_owned(), json!({})),
        (
            "PUT",
            "/2017-10-31/functions/echo/concurrency".to_owned(),
            json!({"ReservedConcurrentExecutions": 0}),
        ),
        ("DELETE", "/2017-10-31/functions/echo/concurrency".to_owned(), json!({})),
        (
            "PUT",
            "/2019-09-30/functions/echo/provisioned-concurrency?Qualifier=a".to_owned(),
            json!({"ProvisionedConcurrentExecutions": 1}),
        ),
        (
            "GET",
            "/2019-09-30/functions/echo/provisioned-concurrency?List=ALL".to_owned(),
            json!({}),
        ),
        (
            "DELETE",
            "/2019-09-30/functions/echo/provisioned-concurrency?Qualifier=a".to_owned(),
            json!({}),
        ),
        ("GET", "/2020-06-30/functions/echo/code-signing-config".to_owned(), json!({})),
        ("GET", format!("/2017-03-31/tags/{arn}"), json!({})),
        ("POST", format!("/2017-03-31/tags/{arn}"), json!({"Tags": {"a": "b"}})),
        ("DELETE", format!("/2017-03-31/tags/{arn}?tagKeys=a"), json!({})),
    ] {
        let body = body.to_string();
        let answer = ask_as(&other, gateway.address, method, &path, &[], body.as_bytes()).unwrap();
        assert_eq!(
            (answer.status, answer.error().as_str()),
            (404, "ResourceNotFoundException"),
            "{method} {path}: {answer:?}"
        );
        let unsigned = ask_plainly(gateway.address, method, &path, &[], body.as_bytes()).unwrap();
        assert_eq!(unsigned.status, 403, "{method} {path}: {unsigned:?}");
    }
    assert_eq!(gateway.invoke("echo", &json!(7)).json(), 7, "it is as it was");
    let settings = ask_as(&other, gateway.address, "GET", "/2016-08-19/account-settings", &[], b"");
    assert_eq!(settings.unwrap().json()["AccountUsage"]["FunctionCount"], 0);
}

#[test]
fn a_function_of_the_directory_is_shown_and_not_changed() {
    needs_functions!();
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("echo");
    std::fs::create_dir(&own).unwrap();
    std::fs::write(own.join("app.py"), "def handler(event, context):\n    return event\n").unwrap();
    std::fs::write(own.join("function.toml"), "handler = \"app.handler\"\n").unwrap();
    let gateway = Gateway::start(&format!("functions = {:?}\n", directory.path()));
    let ask = |method: &str, path: &str, body: &[u8]| {
        let path = format!("/2015-03-31/functions/echo{path}");
        ask(gateway.address, method, &path, &[], body).unwrap()
    };
    let shown = ask("GET", "", b"");
    assert_eq!((shown.status, &shown.json()["Configuration"]["State"]), (200, &json!("Active")));
    assert_eq!(ask("GET", "", b"").json(), shown.json());
    assert_eq!(ask("GET", "/versions", b"").json()["Versions"][0]["Version"], "$LATEST");
    assert_eq!(ask("POST", "/invocations?Qualifier=%24LATEST", b"7").json(), 7);
    assert_eq!(ask("POST", "/invocations?Qualifier=1", b"7").status, 404);
    for (method, path, body) in [
        ("POST", "/versions", &b"{}"[..]),
        ("DELETE", "", b""),
        ("PUT", "/configuration", b"{}"),
        ("POST", "/aliases", br#"{"Name": "a", "FunctionVersion": "$LATEST"}"#),
    ] {
        let answer = ask(method, path, body);
        assert_eq!(answer.status, 409, "{method} {path}: {answer:?}");
        assert!(answer.json()["message"].as_str().unwrap().contains("directory"), "{answer:?}");
    }
}

#[test]
fn the_command_line_of_aws_deploys_and_invokes() {
    needs_functions!();
    if !Command::new("aws").arg("--version").output().is_ok_and(|said| said.status.success()) {
        println!("skipped: no command line of AWS");
        return;
    }
    let gateway = Gateway::start("");
    let directory = gateway.dir.path().join("cli");
    std::fs::create_dir(&directory).unwrap();
    let archive = base64_decoded(&zips()[0]);
    std::fs::write(directory.join("code.zip"), archive).unwrap();
    let aws = |arguments: &[&str]| {
        let mut command = client(Path::new("aws"), &gateway);
        command.current_dir(&directory).arg("lambda").args(arguments);
        let output = command.output().expect("aws runs");
        assert!(output.status.success(), "{arguments:?}: {}", said(&output));
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default()
    };
    let role = "arn:aws:iam::000000000000:role/default";
    let made = aws(&[
        "create-function",
        "--function-name",
        "cli",
        "--runtime",
        "python3.11",
        "--role",
        role,
        "--handler",
        "app.handler",
        "--zip-file",
        "fileb://code.zip",
        "--publish",
        "--environment",
        "Variables={WORD=one}",
    ]);
    assert_eq!((&made["Version"], &made["State"]), (&json!("1"), &json!("Active")));
    aws(&["wait", "function-active-v2", "--function-name", "cli"]);
    aws(&["create-alias", "--function-name", "cli", "--name", "live", "--function-version", "1"]);
    let invoked = aws(&["invoke", "--function-name", "cli:live", "out.json"]);
    assert_eq!(invoked["ExecutedVersion"], "1");
    let result = std::fs::read(directory.join("out.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&result).unwrap(), json!({"v": 1, "word": "one"}));
    aws(&["update-function-configuration", "--function-name", "cli", "--timeout", "9"]);
    aws(&["wait", "function-updated", "--function-name", "cli"]);
    let listed = aws(&["list-functions"]);
    assert_eq!(listed["Functions"][0]["Timeout"], 9);
    aws(&["delete-function", "--function-name", "cli"]);
    assert_eq!(aws(&["list-functions"])["Functions"], json!([]));
}

/// Two archives, in base64.
fn zips() -> [String; 2] {
    [1, 2].map(|number| {
        let code = format!(
            "import os\ndef handler(event, context):\n    return {{'v': {number}, \
             'word': os.environ['WORD']}}\n"
        );
        let python = "import base64, io, sys, zipfile\nout = io.BytesIO()\n\
                      made = zipfile.ZipFile(out, 'w', zipfile.ZIP_DEFLATED)\n\
                      made.writestr('app.py', sys.argv[1])\nmade.close()\n\
                      print(base64.b64encode(out.getvalue()).decode())";
        let output = Command::new("/usr/bin/python3").args(["-c", python, &code]).output();
        String::from_utf8(output.expect("python runs").stdout).unwrap().trim().to_owned()
    })
}

fn base64_decoded(text: &str) -> Vec<u8> {
    let python = "import base64, sys\nsys.stdout.buffer.write(base64.b64decode(sys.argv[1]))";
    let output = Command::new("/usr/bin/python3").args(["-c", python, text]).output();
    output.expect("python runs").stdout
}

/// Checks that an answer has the expected fields.
fn has(found: &Value, expected: &Value, place: &str) {
    match expected {
        Value::Object(fields) => {
            for (name, expected) in fields {
                let place = format!("{place}.{name}");
                if let Some(list) = name.strip_prefix("last of ") {
                    let last = found[list].as_array().and_then(|items| items.last());
                    has(last.unwrap_or(&Value::Null), expected, &place);
                } else if let Some(text) = name.strip_prefix("json of ") {
                    let text = found[text].as_str().unwrap_or_default();
                    has(&serde_json::from_str(text).unwrap_or_default(), expected, &place);
                } else {
                    has(&found[name], expected, &place);
                }
            }
            assert!(found.is_object(), "{place}: {found}");
        }
        Value::Array(items) => {
            assert_eq!(found.as_array().map(Vec::len), Some(items.len()), "{place}: {found}");
            for (number, expected) in items.iter().enumerate() {
                has(&found[number], expected, &format!("{place}[{number}]"));
            }
        }
        _ => assert_eq!(found, expected, "{place}"),
    }
}

#[test]
fn the_requests_of_terraform_create_change_and_destroy_a_function() {
    needs_functions!();
    let gateway = Gateway::start("");
    let text = include_str!("../recordings/terraform.json");
    let [first, second] = zips();
    let text = text.replace("$zip1", &first).replace("$zip2", &second);
    let steps: Vec<Value> = serde_json::from_str(&text).unwrap();
    for (number, step) in steps.iter().enumerate() {
        let word = |name: &str| step[name].as_str().unwrap();
        let body = step.get("body").map(Value::to_string).unwrap_or_default();
        let (method, path) = (word("method"), word("path"));
        let answer = ask(gateway.address, method, path, &[], body.as_bytes()).unwrap();
        let place = format!("{number} {}", word("call"));
        assert_eq!(json!(answer.status), step["status"], "{place}: {answer:?}");
        if answer.status == 404 {
            assert_eq!(answer.error(), "ResourceNotFoundException", "{place}");
        }
        if let Some(expected) = step.get("expect") {
            has(&answer.json(), expected, &place);
        }
    }
    assert_eq!(steps.len(), 40, "all of them");
}
