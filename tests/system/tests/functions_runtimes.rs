//! Functions with a runtime of their own: Lambda's Runtime API, and the endpoint for SDKs. The
//! runtimes here are shell scripts with curl, as in the tutorials of AWS; `tests/runtimes` has those
//! of other languages.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};
use system_tests::functions::{Answer, Gateway, ask_plainly, until, zip};
use system_tests::needs_functions;

/// A runtime that does what the event says. `$API` is the Runtime API, `$ID` the invocation,
/// `$EVENT` the event; the code of the event responds.
const SHELL: &str = r#"#!/bin/bash
set -u
API="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime"
respond() { curl -sS -o /tmp/answer -w '%{http_code}' "$API/invocation/$1/response" --data-binary "$2"; }
while true; do
  EVENT=$(curl -sS -D /tmp/headers "$API/invocation/next") || exit 9
  field() { grep -i "^$1:" /tmp/headers | cut -d' ' -f2 | tr -d '\r\n'; }
  ID=$(field Lambda-Runtime-Aws-Request-Id)
  CODE=$(printf '%s' "$EVENT" | sed 's/^"//; s/"$//; s/\\"/"/g; s/\\\\/\\/g')
  eval "$CODE"
done
"#;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn deploy(gateway: &Gateway, name: &str, manifest: &str, bootstrap: &[u8]) {
    let output = gateway.try_deploy_bootstrap(name, manifest, bootstrap);
    assert!(output.status.success(), "{}", text(&output));
}

/// A gateway with the shell as a function.
fn shell(manifest: &str) -> Gateway {
    let gateway = Gateway::start("");
    deploy(&gateway, "shell", manifest, SHELL.as_bytes());
    gateway
}

fn run(gateway: &Gateway, code: &str) -> Answer {
    gateway.invoke("shell", &json!(code))
}

/// Runs code that prints its result; returns it.
fn printed(gateway: &Gateway, code: &str) -> String {
    let answer = run(gateway, &format!("{{ {code} ; }} > /tmp/out 2>&1; respond $ID @/tmp/out"));
    assert!(answer.is_success(), "{code}: {answer:?}");
    String::from_utf8_lossy(&answer.body).into_owned()
}

#[test]
fn a_shell_script_is_a_runtime() {
    needs_functions!();
    let gateway = shell("[environment]\nCOLOUR = \"red\"\n");
    let answer = run(&gateway, r#"respond $ID "{\"a\": [1, 2]}""#);
    assert_eq!(answer.json(), json!({"a": [1, 2]}), "{answer:?}");
    let variables = printed(&gateway, "env");
    let variables: BTreeSet<&str> = variables.lines().collect();
    for due in [
        "_HANDLER=bootstrap",
        "LAMBDA_TASK_ROOT=/var/task",
        "AWS_LAMBDA_FUNCTION_NAME=shell",
        "AWS_LAMBDA_FUNCTION_VERSION=$LATEST",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=128",
        "AWS_LAMBDA_RUNTIME_API=127.0.0.1:9001",
        "AWS_ENDPOINT_URL=http://127.0.0.1:9002",
        "COLOUR=red",
        "PWD=/var/task",
    ] {
        assert!(variables.contains(due), "{due}: {variables:?}");
    }
    let fields = printed(&gateway, "cat /tmp/headers; date +%s%3N").to_ascii_lowercase();
    let field = |name: &str| {
        let line = fields.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{name}: {fields}")).trim().to_owned()
    };
    let now: u64 = fields.lines().last().unwrap().parse().unwrap();
    let deadline: u64 = field("lambda-runtime-deadline-ms:").parse().unwrap();
    assert!(deadline > now && deadline - now <= 30_000, "{deadline} {now}");
    assert_eq!(field("lambda-runtime-aws-request-id:").len(), 36);
    let arn = field("lambda-runtime-invoked-function-arn:");
    assert!(arn.starts_with("arn:aws:lambda:") && arn.ends_with(":function:shell"), "{arn}");
    assert!(field("lambda-runtime-trace-id:").starts_with("root=1-"));
}

/// Invokes a function with these header fields.
fn invoke_with(gateway: &Gateway, name: &str, headers: &[(&str, &str)], event: &Value) -> Answer {
    let path = format!("/2015-03-31/functions/{name}/invocations");
    let body = event.to_string();
    system_tests::functions::ask(gateway.address, "POST", &path, headers, body.as_bytes()).unwrap()
}

#[test]
fn a_client_context_and_a_trace_reach_functions_of_every_language() {
    needs_functions!();
    let gateway = shell("");
    let python = "import os\ndef handler(event, context):\n    \
        told = context.client_context\n    \
        return [told and [told.custom, told.env, told.client.app_title], \
        os.environ['_X_AMZN_TRACE_ID']]\n";
    gateway.deploy("python", "", python);
    let given = json!({"custom": {"a": "\u{e9}\u{1f600}"}, "env": {"locale": "de"},
        "client": {"app_title": "t\\\"", "installation_id": "i"}});
    let encoded = base64(&serde_json::to_string_pretty(&given).unwrap());
    let trace = "Root=1-5bef4de7-ad49b0e87f6ef6c87fc2e700;Parent=9a9197af755a6419;Sampled=1";
    let fields = [("x-amz-client-context", encoded.as_str()), ("x-amzn-trace-id", trace)];
    let answer = invoke_with(&gateway, "shell", &fields, &json!("respond $ID @/tmp/headers"));
    let text = String::from_utf8_lossy(&answer.body).into_owned();
    let field = |name: &str| {
        let found = text.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
        found.map(|line| line[name.len()..].trim().to_owned())
    };
    assert_eq!(field("lambda-runtime-trace-id:").as_deref(), Some(trace), "{text}");
    let told = field("lambda-runtime-client-context:").unwrap();
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), given);
    let answer = invoke_with(&gateway, "python", &fields, &json!(1));
    assert_eq!(answer.json(), json!([[given["custom"], given["env"], "t\\\""], trace]));

    // An event has its trace, and no context, as with Lambda.
    gateway.bucket("box");
    let put = format!("{CURL} -T /tmp/headers $AWS_ENDPOINT_URL/box/headers; respond $ID 1");
    let with_event = [&fields[..], &[("x-amz-invocation-type", "Event")]].concat();
    let answer = invoke_with(&gateway, "shell", &with_event, &json!(put));
    assert_eq!(answer.status, 202, "{answer:?}");
    let said = until("the headers of an event", || gateway.object("box", "headers"));
    let said = String::from_utf8_lossy(&said).to_ascii_lowercase();
    let due = format!("lambda-runtime-trace-id: {}", trace.to_ascii_lowercase());
    assert!(said.contains(&due) && !said.contains("client-context"), "{said}");

    // Without them, there is no context, and a trace of its own.
    let said = printed(&gateway, "cat /tmp/headers").to_ascii_lowercase();
    assert!(!said.contains("client-context") && said.contains("lambda-runtime-trace-id: root=1-"));
    let answer = gateway.invoke("python", &json!(1)).json();
    assert_eq!(answer[0], Value::Null);
    let own = answer[1].as_str().unwrap();
    assert!(own.starts_with("Root=1-") && own.ends_with(";Sampled=0") && own != trace, "{own}");
    for wrong in ["%", &base64("5"), &"e30K".repeat(900)] {
        let fields = [("x-amz-client-context", wrong)];
        let answer = invoke_with(&gateway, "python", &fields, &json!(1));
        assert_eq!(
            (answer.status, answer.error().as_str()),
            (400, "InvalidRequestContentException")
        );
    }
}

/// Text in base64.
fn base64(text: &str) -> String {
    let script = "import base64, sys; print(base64.b64encode(sys.argv[1].encode()).decode())";
    let output = Command::new("/usr/bin/python3").args(["-c", script, text]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn large_events_and_results_pass() {
    needs_functions!();
    let gateway = Gateway::start("");
    let echo = r#"#!/bin/bash
API="http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/invocation"
while curl -sS -D /tmp/headers -o /tmp/event "$API/next"; do
  ID=$(grep -i '^Lambda-Runtime-Aws-Request-Id:' /tmp/headers | cut -d' ' -f2 | tr -d '\r\n')
  curl -sS "$API/$ID/response" -H 'Expect:' --data-binary @/tmp/event
done
"#;
    deploy(&gateway, "echo", "", echo.as_bytes());
    for count in [0, 1, 40_000, 70_000, 5 << 20] {
        let event = json!("e".repeat(count));
        let answer = gateway.invoke("echo", &event);
        assert!(answer.is_success() && answer.json() == event, "{count}: {answer:?}");
    }
}

#[test]
fn errors_are_lambdas() {
    needs_functions!();
    let gateway = shell("timeout = \"3s\"\n");
    let post =
        |path: &str, body: &str| format!("curl -sS -o /dev/null \"$API/{path}\" -d '{body}'");
    let failure = r#"{"errorType": "Mine", "errorMessage": "why", "stackTrace": ["a"]}"#;
    let answer = run(&gateway, &post("invocation/$ID/error", failure));
    assert_eq!(answer.header("x-amz-function-error"), Some("Unhandled"), "{answer:?}");
    assert_eq!(answer.json()["errorType"], "Mine");
    assert_eq!(answer.json()["stackTrace"], json!(["a"]));
    let typed = "curl -sS \"$API/invocation/$ID/error\" -d oops \
                 -H 'Lambda-Runtime-Function-Error-Type: Runtime.Typed'";
    assert_eq!(run(&gateway, typed).error(), "Runtime.Typed");

    // Of the requests that a runtime must not make, each is refused as Lambda does.
    let codes = "S=$(curl -sS -o /tmp/a -w '%{http_code}' \"$API/invocation/next\"); \
                 U=$(respond other 1); cat /tmp/answer > /tmp/u; \
                 I=$(curl -sS -o /tmp/i -w '%{http_code}' \"$API/init/error\" -d '{}'); \
                 N=$(curl -sS -o /tmp/n -w '%{http_code}' \"$API/nothing\"); \
                 A=$(respond $ID 1); B=$(respond $ID 2); \
                 echo $S $U $I $N $A $B > /tmp/codes";
    assert_eq!(run(&gateway, codes).json(), json!(1), "the first response counts");
    assert_eq!(printed(&gateway, "cat /tmp/codes").trim(), "403 400 403 404 202 400");
    assert!(printed(&gateway, "cat /tmp/u").contains("InvalidRequestID"));
    assert!(printed(&gateway, "cat /tmp/a").contains("InvalidStateTransition"));

    // Lambda's limit, and its answers to both sides.
    let long =
        "head -c 6291457 /dev/zero | tr '\\0' 1 > /tmp/long; respond $ID @/tmp/long > /tmp/code";
    let answer = run(&gateway, long);
    assert_eq!(answer.error(), "Function.ResponseSizeTooLarge", "{answer:?}");
    assert_eq!(printed(&gateway, "cat /tmp/code"), "413");
    let most = "head -c 6291456 /dev/zero | tr '\\0' 1 > /tmp/long; respond $ID @/tmp/long";
    assert_eq!(run(&gateway, most).body.len(), 6 << 20);

    // A streamed response is held until its end, where it may turn into an error.
    let streamed = "{ printf 'POST /2018-06-01/runtime/invocation/%s/response HTTP/1.1\\r\\n' $ID; \
        printf 'Host: a\\r\\nConnection: close\\r\\nTransfer-Encoding: chunked\\r\\n'; \
        printf 'Lambda-Runtime-Function-Response-Mode: streaming\\r\\n'; \
        printf 'Trailer: Lambda-Runtime-Function-Error-Type\\r\\n\\r\\n2\\r\\n\"a\\r\\n2\\r\\nb\"\\r\\n0\\r\\n'; \
        printf \"$T\\r\\n\"; } > /tmp/raw; \
        exec 5<>/dev/tcp/127.0.0.1/9001; cat /tmp/raw >&5; cat <&5 > /dev/null; exec 5<&-";
    assert_eq!(run(&gateway, &format!("T=; {streamed}")).json(), json!("ab"));
    let error = format!("T='Lambda-Runtime-Function-Error-Type: Half\\r\\n'; {streamed}");
    let answer = run(&gateway, &error);
    assert_eq!(answer.error(), "Half", "{answer:?}");

    let answer = run(&gateway, "sleep 60");
    assert_eq!(answer.error(), "Sandbox.Timedout", "{answer:?}");
    for (code, why) in
        [("exit 7", "status 7"), ("kill -SEGV $$", "status 139"), ("exit 0", "status 0")]
    {
        let answer = run(&gateway, code);
        assert_eq!(answer.error(), "Runtime.ExitError", "{code}: {answer:?}");
        assert!(answer.json()["errorMessage"].as_str().unwrap().contains(why), "{answer:?}");
    }
    assert_eq!(printed(&gateway, "echo on"), "on\n", "another instance serves");
}

#[test]
fn what_does_not_start_is_refused_at_its_deployment() {
    needs_functions!();
    let gateway = Gateway::start("");
    let refused = |bootstrap: &str, due: &[&str]| {
        let output = gateway.try_deploy_bootstrap("bad", "", bootstrap.as_bytes());
        assert!(!output.status.success(), "{bootstrap}");
        let said = text(&output);
        assert!(due.iter().all(|due| said.contains(due)), "{bootstrap}: {said}");
    };
    refused("#!/bin/sh\necho no config >&2; exit 3\n", &["status: 3", "no config"]);
    refused("#!/nowhere/sh\n", &["/var/task/bootstrap"]);
    refused("\u{7f}ELF", &["/var/task/bootstrap"]);
    let init_error = "#!/bin/sh\ncurl -s \"http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/init/error\" \
        -d '{\"errorType\": \"Config\", \"errorMessage\": \"no table\"}'\nsleep 1000\n";
    refused(init_error, &["Config", "no table"]);
    // Nor is a setting that it would not obey.
    let output = gateway.try_deploy_bootstrap("bad", "isolation = \"qemu\"\n", SHELL.as_bytes());
    assert!(text(&output).contains("machines run Python functions only"), "{}", text(&output));
}

#[test]
fn a_runtime_that_cannot_start_is_started_again() {
    needs_functions!();
    let gateway = Gateway::start("check_imports = false\n");
    // It fails at its first start in each instance, and keeps /tmp.
    let flaky = format!(
        "#!/bin/bash\nif [ ! -e /tmp/begun ]; then touch /tmp/begun\n\
         curl -s \"http://$AWS_LAMBDA_RUNTIME_API/2018-06-01/runtime/init/error\" \
         -d '{{\"errorType\": \"Early\", \"errorMessage\": \"not yet\"}}'\nexit 1\nfi\n{SHELL}"
    );
    deploy(&gateway, "shell", "concurrency = 1\n", flaky.as_bytes());
    let first = run(&gateway, "respond $ID 1");
    // The error belongs to the invocation that waits for it; without one the start is repeated.
    assert!(first.is_success() || first.error() == "Early", "{first:?}");
    assert_eq!(run(&gateway, "respond $ID 2").json(), json!(2));
}

#[test]
fn nothing_but_the_two_ports_is_reachable() {
    needs_functions!();
    let gateway = shell("");
    let address = gateway.address.to_string();
    let reached = |host: &str, port: &str| {
        printed(&gateway, &format!("(exec 5<>/dev/tcp/{host}/{port}) && echo yes || echo no"))
    };
    let (host, port) = address.split_once(':').unwrap();
    assert!(reached(host, port).ends_with("no\n"), "the gateway's own loopback");
    assert!(reached("192.0.2.1", "80").ends_with("no\n"));
    assert!(reached("127.0.0.1", "9002").ends_with("yes\n"));
    // Each instance has a loopback of its own.
    let interfaces = printed(&gateway, "cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '");
    assert_eq!(interfaces, "lo\n");
    assert!(printed(&gateway, "id -u").trim().parse::<u32>().unwrap() > 0);
    assert!(printed(&gateway, "touch /var/task/x || echo refused").contains("refused"));
}

#[test]
fn memory_of_a_runtime_is_limited_and_a_hostile_one_harms_itself_only() {
    needs_functions!();
    let gateway = shell("memory = \"64MiB\"\n");
    deploy(&gateway, "other", "", SHELL.as_bytes());
    let answer = run(&gateway, "X=$(head -c 300000000 /dev/zero | tr '\\0' x); respond $ID 1");
    assert_eq!(answer.error(), "Runtime.ExitError", "{answer:?}");
    // Endless heads, slow senders and garbage at both ports, then a response as ever.
    let hostile = "for P in 9001 9002; do \
        (exec 5<>/dev/tcp/127.0.0.1/$P; head -c 300000 /dev/zero | tr '\\0' a >&5; cat <&5 | head -c 99) \
        2>/dev/null >/dev/null; \
        for N in $(seq 40); do (exec 6<>/dev/tcp/127.0.0.1/$P; printf 'GET /' >&6; sleep 100) & done; \
        curl -s -o /dev/null -T /dev/zero -H 'Content-Length: 5' http://127.0.0.1:$P/b/k; \
        curl -s -o /dev/null -X PUT -H 'x-amz-content-sha256: STREAMING-X' \
            -H 'x-amz-decoded-content-length: 999' -d 'zz' http://127.0.0.1:$P/b/k; done; \
        kill $(jobs -p); respond $ID 3";
    let answer = run(&gateway, hostile);
    assert_eq!(answer.json(), json!(3), "{answer:?}");
    let answer = gateway.invoke("other", &json!("respond $ID 4"));
    assert_eq!(answer.json(), json!(4), "{answer:?}");
}

/// Requests of curl, which signs with the placeholder keys.
const CURL: &str = "curl -sS --aws-sigv4 \"aws:amz:$AWS_REGION:s3\" \
                    --user \"$AWS_ACCESS_KEY_ID:$AWS_SECRET_ACCESS_KEY\"";

#[test]
fn curl_moves_objects_through_the_endpoint() {
    needs_functions!();
    let gateway = shell("");
    gateway.bucket("box");
    let url = "$AWS_ENDPOINT_URL/box";
    let body = vec![b'x'; 3 << 20];
    gateway.put("box", "in", &body);
    let said = printed(
        &gateway,
        &format!(
            "{CURL} {url}/in -o /tmp/in; {CURL} -T /tmp/in {url}/out/a%20b -H 'x-amz-meta-who: me'; \
         {CURL} -I {url}/out/a%20b; {CURL} \"{url}?list-type=2&prefix=out\"; sha256sum < /tmp/in; \
         {CURL} {url}/none; {CURL} -r 1-3 {url}/in"
        ),
    );
    assert!(said.contains("HTTP/1.1 200") && said.contains("x-amz-meta-who: me"), "{said}");
    assert!(said.contains("content-length: 3145728"), "{said}");
    assert!(said.contains("<Key>out/a b</Key>") && said.contains("<ListBucketResult"), "{said}");
    assert!(said.contains("<Code>NoSuchKey</Code>"), "{said}");
    assert!(said.ends_with("xxx"), "{said}");
    assert_eq!(gateway.object("box", "out/a b"), Some(body));
    // In pieces, as an SDK that signs each, or sends a checksum behind them.
    let chunked = "printf '5;chunk-signature=00\\r\\nhello\\r\\n0;chunk-signature=00\\r\\nx-amz-checksum-crc32:NhCmhg==\\r\\n\\r\\n' > /tmp/c; \
        curl -sS -w '%{http_code}' -X PUT --data-binary @/tmp/c -H 'Content-Encoding: aws-chunked' \
        -H 'Authorization: AWS4-HMAC-SHA256 Credential=U/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=00' \
        -H 'x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER' \
        -H 'x-amz-decoded-content-length: 5' -H 'x-amz-trailer: x-amz-checksum-crc32' \
        -H 'Content-Type: text/plain' $AWS_ENDPOINT_URL/box/chunked";
    assert_eq!(printed(&gateway, chunked), "200");
    assert_eq!(gateway.object("box", "chunked"), Some(b"hello".to_vec()));
}

#[test]
fn a_role_decides_about_requests_of_every_language() {
    needs_functions!();
    let admin = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::start(&format!("admin = \"{admin}\"\n"));
    let role = "[[role.statements]]\neffect = \"allow\"\nactions = [\"s3:GetObject\", \
                \"lambda:InvokeFunction\"]\nresources = [\"box/in/*\", \"function:other\"]\n";
    deploy(&gateway, "shell", role, SHELL.as_bytes());
    deploy(&gateway, "other", "", SHELL.as_bytes());
    gateway.bucket("box/in");
    gateway.put("box", "in/a", b"allowed");
    gateway.put("box", "b", b"secret");
    let url = "$AWS_ENDPOINT_URL/box";
    assert_eq!(printed(&gateway, &format!("{CURL} {url}/in/a")), "allowed");
    for denied in [format!("{url}/b"), format!("-T /etc/hosts {url}/in/a"), url.to_owned()] {
        let said = printed(&gateway, &format!("{CURL} {denied}"));
        assert!(said.contains("<Code>AccessDenied</Code>"), "{denied}: {said}");
    }
    // Another service: the gateway's own API, by its name in signatures.
    let call = |function: &str| {
        let signed = CURL.replace(":s3", ":lambda");
        let path = format!("2015-03-31/functions/{function}/invocations");
        printed(&gateway, &format!("{signed} -d '\"respond $ID 5\"' $AWS_ENDPOINT_URL/{path}"))
    };
    let said = call("other");
    assert_eq!(said, "5", "{said}");
    let said = call("shell");
    assert!(said.contains("does not allow lambda:InvokeFunction"), "{said}");
    for (service, due) in [("evil", "does not carry"), ("s3express", "does not carry")] {
        let said = printed(
            &gateway,
            &format!("{} $AWS_ENDPOINT_URL/", CURL.replace(":s3", &format!(":{service}"))),
        );
        assert!(said.contains(due), "{service}: {said}");
    }
    let metrics = ask_plainly(admin, "GET", "/metrics", &[], b"").unwrap();
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let counted = "unlade_fn_invocations_answered_total{runtime=\"provided\"} ";
    assert!(metrics.lines().any(|line| line.starts_with(counted)), "{metrics}");
}

/// The function of a language with AWS's own packages; `None`, and a message, where it cannot be
/// built.
fn built(language: &str) -> Option<PathBuf> {
    let prepare = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtimes/prepare");
    let output = Command::new(prepare).arg(language).output().expect("a shell");
    if !output.status.success() {
        println!("skipped: {language}: {}", text(&output).trim());
        return None;
    }
    Some(PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim()))
}

/// Runs the function of a language in a sandbox, and the same program outside with the store's
/// address and keys; compares.
fn compare(language: &str, program: &[&str]) {
    needs_functions!();
    let Some(built) = built(language) else { return };
    let gateway = Gateway::start("");
    gateway.bucket("inside");
    gateway.bucket("stock");
    let source = gateway.dir.path().join("built");
    let copied = Command::new("cp").arg("-r").arg(&built).arg(&source).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let manifest = "memory = \"512MiB\"\ntimeout = \"2m\"\n";
    let output = gateway.try_deploy_source("sdk", &source, manifest);
    assert!(output.status.success(), "{}", text(&output));
    let inside = gateway.invoke("sdk", &json!({"bucket": "inside"}));
    assert!(inside.is_success(), "{inside:?}");
    let keys = Command::new(system_tests::unlade());
    let stock = stock(&gateway, &source, program, keys);
    let bare = |value: Value| value.to_string().replace("\"inside\"", "\"stock\"");
    assert_eq!(bare(inside.json()), bare(stock));
    for name in ["inside", "stock"] {
        assert_eq!(gateway.object(name, "a b/ü+%").map(|body| body.len()), Some(6000), "{name}");
    }
    let failed = gateway.invoke("sdk", &json!({"fail": "on purpose", "bucket": "inside"}));
    assert!(failed.json()["errorMessage"].as_str().is_some_and(|why| why.contains("on purpose")));
    assert_eq!(failed.header("x-amz-function-error"), Some("Unhandled"), "{failed:?}");
}

/// The result of a program outside.
fn stock(gateway: &Gateway, source: &Path, program: &[&str], mut keys: Command) -> Value {
    let output = keys.args(["fn", "env", "--state"]).arg(gateway.dir.path()).output().unwrap();
    let variables = String::from_utf8(output.stdout).unwrap();
    let mut command = Command::new(program[0]);
    command.args(&program[1..]).arg("stock").current_dir(source);
    for line in variables.lines().filter_map(|line| line.strip_prefix("export ")) {
        let (name, value) = line.split_once('=').unwrap();
        command.env(name, value.trim_matches(['"', '\'']));
    }
    command.env("AWS_REGION", "us-east-1").env("PYTHONPATH", "lib");
    let output = command.output().expect("the program runs");
    assert!(output.status.success(), "{}", text(&output));
    serde_json::from_slice(&output.stdout).expect("its result")
}

#[test]
#[ignore = "builds with the packages of Go: make runtimes"]
fn go_with_its_runtime_and_sdk_is_as_outside() {
    compare("go", &["./bootstrap"]);
}

#[test]
#[ignore = "builds with the crates of AWS, for minutes: make runtimes"]
fn rust_with_its_runtime_and_sdk_is_as_outside() {
    compare("rust", &["./bootstrap"]);
}

#[test]
#[ignore = "installs packages of npm: make runtimes"]
fn node_with_its_sdk_is_as_outside() {
    compare("node", &["/usr/bin/node", "index.mjs"]);
}

#[test]
#[ignore = "installs packages of PyPI: make runtimes"]
fn python_with_its_runtime_client_and_sdk_is_as_outside() {
    compare("python", &["/usr/bin/python3", "app.py"]);
}

#[test]
fn lambdas_api_creates_functions_with_a_runtime_of_their_own() {
    needs_functions!();
    let gateway = Gateway::start("");
    let source = gateway.dir.path().join("zipped");
    std::fs::create_dir_all(&source).unwrap();
    let program = source.join("bootstrap");
    std::fs::write(&program, SHELL).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let archive = zip(&source);
    let create = |name: &str, runtime: &str| {
        let body = json!({"FunctionName": name, "Runtime": runtime, "Handler": "hello.handler",
            "Role": "arn:aws:iam::000000000000:role/default", "Code": {"ZipFile": archive}});
        let path = "/2015-03-31/functions";
        let body = body.to_string();
        system_tests::functions::ask(gateway.address, "POST", path, &[], body.as_bytes()).unwrap()
    };
    for runtime in ["provided.al2023", "provided.al2", "provided"] {
        let name = runtime.replace('.', "-");
        let answer = create(&name, runtime);
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.json()["Runtime"], runtime);
        let answer = gateway.invoke(&name, &json!("respond $ID \\\"$_HANDLER\\\""));
        assert_eq!(answer.json(), json!("hello.handler"), "{answer:?}");
    }
    let answer = create("java", "java21");
    assert_eq!(answer.error(), "InvalidParameterValueException", "{answer:?}");
    assert!(answer.json()["message"].as_str().unwrap().contains("provided.al2023"), "{answer:?}");
}
