//! Functions in Node.js, as their authors write them for Lambda: deployed unmodified, with the stub
//! in the place of AWS's SDK, or with the SDK. `guest/node/test` compares the two call by call.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::json;
use system_tests::functions::{Answer, Gateway, ask, ask_plainly, zip};
use system_tests::needs_functions;

const NODE: &str = "/usr/bin/node";

/// Returns from the test with a message if functions in Node.js cannot run here.
macro_rules! needs_node {
    () => {
        needs_functions!();
        if !Path::new(NODE).exists() {
            println!("skipped: {}: no {NODE}", module_path!());
            return;
        }
    };
}

/// A function as the tutorials have it: nothing of Unlade, and no package beside it.
const CJS: &str = r#"
const { S3Client, GetObjectCommand, PutObjectCommand, ListObjectsV2Command, NoSuchKey }
    = require("@aws-sdk/client-s3");
const { Upload } = require("@aws-sdk/lib-storage");
const s3 = new S3Client({});
exports.handler = async (event, context) => {
    if (event.fail) throw new RangeError(event.fail);
    const { Body } = await s3.send(new GetObjectCommand({ Bucket: "box", Key: event.key }));
    const text = await Body.transformToString();
    await s3.send(new PutObjectCommand({ Bucket: "box", Key: "out", Body: text.toUpperCase() }));
    const Body2 = Buffer.alloc(6 << 20, "x");
    await new Upload({ client: s3, params: { Bucket: "box", Key: "large", Body: Body2 } }).done();
    const { Contents } = await s3.send(new ListObjectsV2Command({ Bucket: "box" }));
    let missing;
    try { await s3.send(new GetObjectCommand({ Bucket: "box", Key: "none" })) }
    catch (error) { missing = [error.name, error instanceof NoSuchKey, error.$metadata.httpStatusCode] }
    console.log("done", text);
    return { keys: Contents.map((one) => [one.Key, one.Size]), missing, name: context.functionName,
        runtime: process.env.AWS_EXECUTION_ENV.startsWith("AWS_Lambda_nodejs") };
};
"#;

const ESM: &str = r#"
import { S3 } from "@aws-sdk/client-s3";
import { readFile } from "node:fs/promises";
const s3 = new S3();
const greeting = (await readFile(new URL("./greeting.txt", import.meta.url), "utf8")).trim();
export const handler = async (event) => {
    await s3.putObject({ Bucket: "box", Key: "esm", Body: `${greeting} ${event.who}` });
    const got = await s3.getObject({ Bucket: "box", Key: "esm" });
    return got.Body.transformToString();
};
"#;

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A directory of the gateway with these files.
fn source(gateway: &Gateway, name: &str, files: &[(&str, &str)]) -> PathBuf {
    let source = gateway.dir.path().join("source").join(name);
    std::fs::create_dir_all(&source).unwrap();
    for (file, content) in files {
        std::fs::write(source.join(file), content).unwrap();
    }
    source
}

/// Deploys a directory with the command.
fn deploy(gateway: &Gateway, name: &str, source: &Path, manifest: &str) -> Output {
    let manifest = format!("runtime = \"nodejs\"\n{manifest}");
    std::fs::write(source.join("function.toml"), manifest).unwrap();
    let mut command = Command::new(system_tests::unlade());
    command.args(["fn", "deploy", "--gateway", &format!("http://{}", gateway.address)]);
    command.args(["--name", name, "--state"]).arg(gateway.dir.path());
    command.arg(source).output().expect("the command runs")
}

fn deployed(gateway: &Gateway, name: &str, files: &[(&str, &str)], manifest: &str) {
    let output = deploy(gateway, name, &source(gateway, name, files), manifest);
    assert!(output.status.success(), "{}", text(&output));
}

/// Creates a function by Lambda's API with a Zip archive of a directory.
fn create(gateway: &Gateway, name: &str, runtime: &str, source: &Path) -> Answer {
    let body = json!({"FunctionName": name, "Runtime": runtime, "Handler": "index.handler",
        "Timeout": 60, "Role": "arn:aws:iam::000000000000:role/default",
        "Code": {"ZipFile": zip(source)}});
    ask(gateway.address, "POST", "/2015-03-31/functions", &[], body.to_string().as_bytes()).unwrap()
}

#[test]
fn an_unmodified_function_is_created_by_lambdas_api() {
    needs_node!();
    let admin = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let gateway = Gateway::start(&format!("admin = \"{admin}\"\n"));
    gateway.bucket("box");
    gateway.put("box", "in", b"hello");
    let commonjs = source(&gateway, "cjs", &[("index.js", CJS)]);
    let module = source(&gateway, "esm", &[("index.mjs", ESM), ("greeting.txt", "hello\n")]);
    for runtime in ["nodejs20.x", "nodejs22.x"] {
        let name = runtime.replace('.', "-");
        let answer = create(&gateway, &name, runtime, &commonjs);
        assert_eq!(answer.status, 201, "{answer:?}");
        assert_eq!(answer.json()["Runtime"], runtime);
        let answer = gateway.invoke(&name, &json!({"key": "in"}));
        let due = json!({"keys": [["in", 5], ["large", 6 << 20], ["out", 5]],
            "missing": ["NoSuchKey", true, 404], "name": name, "runtime": true});
        assert_eq!(answer.json(), due, "{answer:?}");
        assert_eq!(gateway.object("box", "out"), Some(b"HELLO".to_vec()));
        assert_eq!(gateway.object("box", "large").map(|body| body.len()), Some(6 << 20));
        // The errors of the function are Lambda's, and the instance goes on.
        let failed = gateway.invoke(&name, &json!({"fail": "on purpose"}));
        assert_eq!(failed.header("x-amz-function-error"), Some("Unhandled"), "{failed:?}");
        assert_eq!(failed.error(), "RangeError");
        assert!(failed.json()["trace"][0].as_str().unwrap().contains("on purpose"), "{failed:?}");
        std::fs::remove_file(gateway.objects().join("box/large")).unwrap();
        std::fs::remove_file(gateway.objects().join("box/out")).unwrap();
    }
    let answer = create(&gateway, "module", "nodejs22.x", &module);
    assert_eq!(answer.status, 201, "{answer:?}");
    assert_eq!(gateway.invoke("module", &json!({"who": "you"})).json(), "hello you");
    let metrics = ask_plainly(admin, "GET", "/metrics", &[], b"").unwrap();
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let counted = "unlade_fn_invocations_answered_total{runtime=\"nodejs\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(counted));
    assert_eq!(count, Some("5"), "{metrics}");
    let answer = create(&gateway, "old", "nodejs20", &commonjs);
    assert_eq!(answer.error(), "InvalidParameterValueException", "{answer:?}");
}

#[test]
fn a_function_that_does_not_start_is_refused_with_the_reason() {
    needs_node!();
    let gateway = Gateway::start("");
    let refused = |files: &[(&str, &str)], manifest: &str, due: &[&str]| {
        let output = deploy(&gateway, "bad", &source(&gateway, "bad", files), manifest);
        assert!(!output.status.success(), "{manifest}");
        let said = text(&output);
        assert!(due.iter().all(|due| said.contains(due)), "{due:?}: {said}");
    };
    let handler = "handler = \"index.handler\"\n";
    refused(&[], handler, &["no file", "index.js"]);
    refused(&[("index.js", "(")], handler, &["Runtime.UserCodeSyntaxError"]);
    refused(
        &[("index.js", "require('left-out')")],
        handler,
        &["Runtime.ImportModuleError", "left-out"],
    );
    refused(&[("index.js", "exports.other = 1")], handler, &["Runtime.HandlerNotFound"]);
    let dynamo = "require('@aws-sdk/client-dynamodb')";
    refused(&[("index.js", dynamo)], handler, &["add it to the function's package"]);
    refused(&[("index.js", "")], "handler = \"index\"\n", &["FILE.FUNCTION"]);
    let machine = format!("{handler}isolation = \"qemu\"\n");
    refused(&[("index.js", "")], &machine, &["machines run Python functions only"]);
}

#[test]
fn without_node_it_is_said_what_to_do() {
    needs_functions!();
    let gateway = Gateway::start("node = \"/nowhere/node\"\n");
    let source = source(&gateway, "f", &[("index.js", "exports.handler = () => {}")]);
    let output = deploy(&gateway, "f", &source, "handler = \"index.handler\"\n");
    let said = text(&output);
    for due in ["/nowhere/node", "apt-get install nodejs", "node = "] {
        assert!(!output.status.success() && said.contains(due), "{said}");
    }
}

#[test]
fn a_role_decides_about_the_calls_of_the_stub() {
    needs_node!();
    let gateway = Gateway::start("");
    gateway.bucket("box/in");
    gateway.put("box", "in/a", b"allowed");
    let code = r#"const { S3 } = require("@aws-sdk/client-s3");
        exports.handler = async ({ Key, Body }) => {
            const s3 = new S3({});
            const call = Body ? s3.putObject({ Bucket: "box", Key, Body }) : s3.getObject({ Bucket: "box", Key });
            try { return await (await call).Body.transformToString() }
            catch (error) { return [error.name, error.$metadata.httpStatusCode, error.$fault] }
        };"#;
    let role = "handler = \"index.handler\"\nwrites = \"sync\"\n[[role.statements]]\n\
                effect = \"allow\"\nactions = [\"s3:GetObject\"]\nresources = [\"box/in/*\"]\n";
    deployed(&gateway, "f", &[("index.js", code)], role);
    let denied = json!(["AccessDenied", 403, "client"]);
    assert_eq!(gateway.invoke("f", &json!({"Key": "in/a"})).json(), "allowed");
    assert_eq!(gateway.invoke("f", &json!({"Key": "b"})).json(), denied);
    assert_eq!(gateway.invoke("f", &json!({"Key": "in/b", "Body": "x"})).json(), denied);
    assert_eq!(gateway.object("box", "in/b"), None);
}

#[test]
fn a_crash_a_timeout_and_too_much_memory_are_lambdas_errors() {
    needs_node!();
    let gateway = Gateway::start("");
    let code = r#"exports.handler = async (event) => {
        if (event === "reject") { Promise.reject(new Error("lost")); await new Promise(() => setTimeout(() => {}, 1e6)) }
        if (event === "exit") process.exit(7);
        if (event === "sleep") await new Promise((resolve) => setTimeout(resolve, 1e6));
        if (event === "memory") { const all = []; for (;;) all.push(new Array(1e6).fill(all.length)) }
        return process.pid;
    };"#;
    let manifest = "handler = \"index.handler\"\ntimeout = \"20s\"\nmemory = \"96MiB\"\n";
    deployed(&gateway, "f", &[("index.js", code)], manifest);
    let error = |event: &str| gateway.invoke("f", &json!(event)).error();
    assert_eq!(error("reject"), "Runtime.UnhandledPromiseRejection");
    assert_eq!(error("exit"), "Runtime.ExitError");
    assert_eq!(error("memory"), "Runtime.ExitError");
    assert!(gateway.invoke("f", &json!("on")).is_success());
    deployed(&gateway, "f", &[("index.js", code)], &manifest.replace("20s", "2s"));
    assert_eq!(error("sleep"), "Sandbox.Timedout");
}

/// The function of `tests/runtimes/node` with the SDK of npm; `None`, and a message, without it.
fn built() -> Option<PathBuf> {
    let prepare = Path::new(env!("CARGO_MANIFEST_DIR")).join("../runtimes/prepare");
    let output = Command::new(prepare).arg("node").output().expect("a shell");
    if !output.status.success() {
        println!("skipped: {}", text(&output).trim());
        return None;
    }
    Some(PathBuf::from(String::from_utf8(output.stdout).expect("a path").trim()))
}

#[test]
#[ignore = "installs packages of npm: make runtimes"]
fn the_stub_and_the_sdk_compute_the_same_in_the_sandbox() {
    needs_node!();
    let Some(built) = built() else { return };
    let gateway = Gateway::start("");
    let mut results = Vec::new();
    for (bucket, more) in [("with-stub", ""), ("with--sdk", "NODE_SDK_STUB = \"off\"\n")] {
        gateway.bucket(bucket);
        let copy = gateway.dir.path().join(bucket);
        let copied = Command::new("cp").arg("-r").arg(&built).arg(&copy).status();
        assert!(copied.is_ok_and(|status| status.success()));
        let manifest = format!(
            "handler = \"index.handler\"\nmemory = \"512MiB\"\ntimeout = \"2m\"\n[environment]\n{more}"
        );
        let output = deploy(&gateway, bucket, &copy, &manifest);
        assert!(output.status.success(), "{}", text(&output));
        let answer = gateway.invoke(bucket, &json!({ "bucket": bucket }));
        assert!(answer.is_success(), "{answer:?}");
        results.push(answer.json().to_string().replace(bucket, "BUCKET"));
    }
    assert_eq!(results.first(), results.last());
}
