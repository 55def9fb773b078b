//! `unlade fn serve` from the point of view of its callers.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::json;
use system_tests::functions::{Gateway, ask, signal, signed, until};
use system_tests::needs_functions;

/// Reads an object and writes its copy in upper case.
const UPPER: &str = r#"
import boto3
s3 = boto3.client("s3")

def handler(event, context):
    body = s3.get_object(Bucket="box", Key=event["key"])["Body"].read()
    s3.put_object(Bucket="box", Key=event["key"] + ".up", Body=body.upper())
    print("hello from", context.function_name)
    return {"bytes": len(body), "left_ms": context.get_remaining_time_in_millis() > 0}
"#;

/// Performs the action that the event names.
const OBEDIENT: &str = r#"
import os, sys, time
import boto3
s3 = boto3.client("s3")
calls = 0

def handler(event, context):
    global calls
    calls += 1
    for step in event.get("steps", []):
        name, value = step
        if name == "sleep":
            time.sleep(value)
        elif name == "put":
            s3.put_object(Bucket="box", Key=value, Body=value.encode())
        elif name == "exit":
            os._exit(value)
        elif name == "raise":
            raise ValueError(value)
        elif name == "fail_until":
            if s3.get_object(Bucket="box", Key=value)["Body"].read() != b"go":
                raise ValueError("not yet")
    return {"calls": calls, "big": "x" * event.get("big", 0), "variable": os.environ.get("V")}
"#;

#[test]
fn a_function_is_deployed_invoked_and_removed() {
    needs_functions!();
    let gateway = Gateway::start("");
    gateway.bucket("box");
    gateway.put("box", "a.txt", b"hello");
    gateway.deploy("upper", "", UPPER);
    let event = json!({"key": "a.txt"});
    let answer = gateway.try_invoke("upper", &event, &[("x-amz-log-type", "Tail")]).unwrap();
    assert!(answer.is_success(), "{answer:?}");
    assert_eq!(answer.json(), json!({"bytes": 5, "left_ms": true}));
    assert_eq!(gateway.object("box", "a.txt.up").as_deref(), Some(b"HELLO".as_slice()));
    assert_eq!(answer.header("x-unlade-origin"), Some("restored"));
    assert_eq!(answer.header("x-amz-executed-version"), Some("$LATEST"));
    assert!(answer.header("x-amz-log-result").is_some());
    let again = gateway.invoke("upper", &event);
    assert_eq!(again.header("x-unlade-origin"), Some("warm"));
    let missing = gateway.invoke("upper", &json!({"key": "nothing"}));
    assert!(!missing.is_success());
    assert_eq!(missing.error(), "NoSuchKey");
    let list = ask(gateway.address, "GET", "/2015-03-31/functions/", &[], b"").unwrap();
    assert_eq!(list.json()["Functions"][0]["FunctionName"], "upper");
    let gone = ask(gateway.address, "DELETE", "/2015-03-31/functions/upper", &[], b"").unwrap();
    assert_eq!(gone.status, 204);
    let answer = gateway.invoke("upper", &event);
    assert_eq!((answer.status, answer.error().as_str()), (404, "ResourceNotFoundException"));
}

#[test]
fn what_cannot_be_invoked_is_refused_as_by_lambda() {
    needs_functions!();
    let gateway = Gateway::start("waiting_max = 1\nwaiting_timeout = \"1m\"\n");
    gateway.bucket("box");
    gateway.deploy("obedient", "concurrency = 1\ntimeout = \"1m\"\n", OBEDIENT);
    let path = "/2015-03-31/functions/obedient/invocations";
    let post = |headers: &[(&str, &str)], body: &[u8]| {
        let answer = ask(gateway.address, "POST", path, headers, body).unwrap();
        (answer.status, answer.error())
    };
    assert_eq!(post(&[], b"{"), (400, "InvalidRequestContentException".to_owned()));
    let kind = [("x-amz-invocation-type", "Wrong")];
    assert_eq!(post(&kind, b"{}"), (400, "InvalidParameterValueException".to_owned()));
    assert_eq!(post(&[("x-amz-invocation-type", "DryRun")], b"{}").0, 204);
    let large = vec![b' '; 6 * 1024 * 1024 + 1];
    assert_eq!(post(&[], &large), (413, "RequestTooLargeException".to_owned()));
    let event = post(&[("x-amz-invocation-type", "Event")], &large[..1024 * 1024 + 1]);
    assert_eq!(event, (413, "RequestEntityTooLargeException".to_owned()));
    assert_eq!(post(&[("origin", "http://page.example")], b"{}").0, 501);
    let other = ask(gateway.address, "POST", &path.replace("obedient", "o:7"), &[], b"{}").unwrap();
    assert_eq!(other.status, 404);
    let sleep = json!({"steps": [["sleep", 5.0]]});
    std::thread::scope(|scope| {
        let calls: Vec<_> =
            (0..4).map(|_| scope.spawn(|| gateway.invoke("obedient", &sleep))).collect();
        let answers: Vec<_> = calls.into_iter().map(|call| call.join().unwrap()).collect();
        let throttled = answers.iter().filter(|answer| answer.status == 429).count();
        assert_eq!(throttled, 2, "one runs, one waits: {answers:?}");
        assert_eq!(answers.iter().filter(|answer| answer.is_success()).count(), 2);
    });
}

#[test]
fn failures_of_functions_are_errors_that_say_what_happened() {
    needs_functions!();
    let gateway = Gateway::start("");
    gateway.bucket("box");
    gateway.deploy("obedient", "[environment]\nV = \"v\"\n", OBEDIENT);
    gateway.deploy("late", "timeout = \"1s\"\n", OBEDIENT);
    let invoke = |steps: serde_json::Value| gateway.invoke("obedient", &json!({ "steps": steps }));
    let raised = invoke(json!([["raise", "why"]]));
    assert_eq!(raised.error(), "ValueError");
    assert_eq!(raised.json()["errorMessage"], "why");
    let late = gateway.invoke("late", &json!({"steps": [["sleep", 30]]}));
    assert_eq!(late.error(), "Sandbox.Timedout");
    let message = late.json()["errorMessage"].as_str().unwrap().to_owned();
    assert!(message.ends_with("Task timed out after 1.00 seconds"), "{message}");
    assert_eq!(invoke(json!([["exit", 3]])).error(), "Runtime.ExitError");
    let fine = invoke(json!([]));
    assert_eq!(fine.json(), json!({"calls": 1, "big": "", "variable": "v"}), "a fresh instance");
    assert_eq!(fine.header("x-unlade-origin"), Some("restored"));
    let large = gateway.invoke("obedient", &json!({"big": 5_000_000}));
    assert_eq!(large.json()["big"].as_str().map(str::len), Some(5_000_000));
    let too_large = gateway.invoke("obedient", &json!({"big": 7_000_000}));
    assert_eq!(too_large.error(), "Function.ResponseSizeTooLarge");
}

#[test]
fn a_function_that_does_not_start_is_told_when_it_is_deployed() {
    needs_functions!();
    let gateway = Gateway::start("");
    let output = gateway.try_deploy("f", "mod = \"sdk\"\n", UPPER);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("mode"), "{said}");
    let output = gateway.try_deploy("f", "tenant = \"nobody\"\n", UPPER);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("nobody"), "{said}");
}

/// Modules that cannot be imported, and the expected messages.
const BROKEN: [(&str, &str); 6] = [
    ("import not_there\n", "No module named 'not_there'"),
    ("def handler(event, context:\n", "Syntax error in module 'app'"),
    ("def other(event, context):\n    return 1\n", "Handler 'handler' missing on module 'app'"),
    ("def bad():\n    raise ValueError('at import')\nbad()\n", "in bad"),
    ("import os\nos._exit(3)\n", "status 3"),
    ("import boto3\nX = boto3.client('s3').get_object(Bucket='box', Key='absent')\n", "NoSuchKey"),
];

#[test]
fn a_broken_deployment_is_refused_and_the_one_before_goes_on() {
    needs_functions!();
    let mut gateway = Gateway::start("");
    gateway.bucket("box");
    let good = "def handler(event, context):\n    return 'good'\n";
    gateway.deploy("f", "", good);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                let answer = gateway.invoke("f", &json!({}));
                assert_eq!(answer.json(), "good", "{answer:?}");
            }
        });
        for preload in ["", "[preload]\nhandler = false\n"] {
            for (code, why) in BROKEN {
                let output = gateway.try_deploy("f", preload, code);
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(!output.status.success() && said.contains(why), "{code}: {said}");
                assert!(output.stdout.is_empty(), "{output:?}");
            }
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        caller.join().unwrap();
    });
    assert_eq!(gateway.try_deploy("new", "", BROKEN[0].0).status.code(), Some(1));
    assert_eq!(gateway.invoke("new", &json!({})).status, 404);
    gateway.restart();
    assert_eq!(gateway.invoke("f", &json!({})).json(), "good", "it is kept");
}

#[test]
fn an_import_is_made_as_in_an_instance_and_within_a_time() {
    needs_functions!();
    let gateway = Gateway::start("start_timeout = \"5s\"\n");
    gateway.bucket("box");
    gateway.put("box", "config", b"7");
    let reads = "import boto3\ns3 = boto3.client('s3')\n\
                 X = int(s3.get_object(Bucket='box', Key='config')['Body'].read())\n\
                 def handler(event, context):\n    return X\n";
    let own = "[preload]\nhandler = false\n";
    gateway.deploy("reads", own, reads);
    assert_eq!(gateway.invoke("reads", &json!({})).json(), 7);
    let endless =
        gateway.try_deploy("reads", &format!("timeout = \"1s\"\n{own}"), "while True: pass\n");
    let said = String::from_utf8_lossy(&endless.stderr).into_owned();
    assert!(!endless.status.success() && said.contains("its import took more than 5 s"), "{said}");
    assert_eq!(gateway.invoke("reads", &json!({})).json(), 7);
    assert_eq!(gateway.state()["instances"].as_array().map(Vec::len), Some(1), "none is left");
}

#[test]
fn a_broken_function_of_the_directory_is_left_out_and_the_others_serve() {
    needs_functions!();
    let source = tempfile::tempdir().unwrap();
    let write = |name: &str, manifest: &str, code: &str| {
        let directory = source.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("function.toml"), manifest).unwrap();
        std::fs::write(directory.join("app.py"), code).unwrap();
    };
    let handler = "handler = \"app.handler\"\n";
    let code = |number: u32| format!("def handler(event, context):\n    return {number}\n");
    write("good", handler, &code(1));
    write("broken", handler, BROKEN[0].0);
    write("unread", "handler = 7\n", &code(2));
    write("stock", &format!("{handler}mode = \"stock\"\n"), &code(3));
    let gateway = Gateway::start(&format!("functions = \"{}\"\n", source.path().display()));
    let read = |name: &str| gateway.invoke(name, &json!({})).json();
    assert_eq!(read("good"), 1);
    for name in ["broken", "unread", "stock"] {
        assert_eq!(gateway.invoke(name, &json!({})).status, 404, "{name}");
    }
    write("good", handler, BROKEN[1].0);
    write("broken", handler, &code(4));
    signal(gateway.pid(), "HUP");
    until("the other one is mended", || (read("broken") == 4).then_some(()));
    write("broken", handler, &code(5));
    signal(gateway.pid(), "HUP");
    until("it was read twice", || (read("broken") == 5).then_some(()));
    assert_eq!(read("good"), 1, "it stays as it was");
}

#[test]
fn a_function_may_take_longer_to_import_than_an_instance_to_start() {
    needs_functions!();
    let mut gateway = Gateway::start("start_timeout = \"10s\"\n");
    let slow = "import time\ntime.sleep(12)\ndef handler(event, context):\n    return event\n";
    gateway.deploy("slow", "", slow);
    // Now the first caller must wait for the template.
    gateway.restart();
    let answer = gateway.invoke("slow", &json!(7));
    assert!(answer.is_success(), "{answer:?}");
    assert_eq!(answer.json(), json!(7));
}

#[test]
fn an_instance_that_does_not_start_is_counted_and_the_next_one_serves() {
    needs_functions!();
    let admin = free_address();
    let mut gateway = Gateway::start(&format!("admin = \"{admin}\"\n"));
    let failed = || counter(admin, "unlade_fn_starts_failed_total");
    // The process of a template's second instance ends before it has greeted its worker.
    let code = "import os\nforks = 0\n\
                def before():\n    global forks\n    forks += 1\n\
                def in_child():\n    if forks == 2: os._exit(3)\n\
                os.register_at_fork(before=before, after_in_child=in_child)\n\
                def handler(event, context):\n    \
                if event == 'exit': os._exit(0)\n    \
                return forks\n";
    gateway.deploy("f", "", code);
    gateway.restart();
    assert_eq!(gateway.invoke("f", &json!(null)).json(), 1);
    assert_eq!(failed(), 0);
    assert!(!gateway.invoke("f", &json!("exit")).is_success());
    // The gateway may start another instance for the waiting caller, or answer with the error.
    let answer = gateway.invoke("f", &json!(null));
    assert!(answer.status >= 500 || answer.json() == 3, "{answer:?}");
    assert_eq!(failed(), 1);
    assert_eq!(gateway.invoke("f", &json!(null)).json(), 3);
}

#[test]
fn another_deployment_takes_over_without_a_failure() {
    needs_functions!();
    let gateway = Gateway::start("");
    let code = |number: u32| format!("def handler(event, context):\n    return {number}\n");
    gateway.deploy("f", "", &code(0));
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            let mut seen = Vec::new();
            while seen.last() != Some(&3) {
                let answer = gateway.invoke("f", &json!({}));
                assert!(answer.is_success(), "{answer:?}");
                seen.push(answer.json().as_u64().unwrap());
            }
            seen
        });
        for number in 1..=3 {
            gateway.deploy("f", "", &code(number));
        }
        let seen = caller.join().unwrap();
        assert!(seen.is_sorted(), "no old one after a new one: {seen:?}");
    });
    let mut gateway = gateway;
    gateway.restart();
    assert_eq!(gateway.invoke("f", &json!({})).json(), 3, "it is kept");
}

#[test]
fn an_accepted_event_is_made_also_when_the_gateway_is_killed() {
    needs_functions!();
    let mut gateway = Gateway::start("");
    gateway.bucket("box");
    gateway.put("box", "gate", b"wait");
    gateway.deploy("obedient", "", OBEDIENT);
    let event = json!({"steps": [["sleep", 3], ["fail_until", "gate"], ["put", "made"]]});
    let kind = [("x-amz-invocation-type", "Event")];
    let accepted = gateway.try_invoke("obedient", &event, &kind).unwrap();
    assert_eq!(accepted.status, 202);
    signal(gateway.pid(), "KILL");
    gateway.ended();
    assert!(gateway.object("box", "made").is_none());
    gateway.put("box", "gate", b"go");
    gateway.restart();
    until("the event is made", || gateway.object("box", "made"));
    let events = gateway.dir.path().join("events");
    until("it is forgotten", || (std::fs::read_dir(&events).unwrap().count() == 0).then_some(()));
}

#[test]
fn an_event_whose_function_fails_each_time_is_given_up_and_counted() {
    needs_functions!();
    let admin = free_address();
    let gateway = Gateway::start(&format!("admin = \"{admin}\"\n"));
    gateway.bucket("box");
    let lost = || counter(admin, "unlade_fn_events_lost_total");
    gateway.deploy("obedient", "", OBEDIENT);
    assert_eq!(lost(), 0);
    let event = json!({"steps": [["put", "tried"], ["raise", "never"]]});
    let kind = [("x-amz-invocation-type", "Event")];
    assert_eq!(gateway.try_invoke("obedient", &event, &kind).unwrap().status, 202);
    let events = gateway.dir.path().join("events");
    until("it is forgotten", || (std::fs::read_dir(&events).unwrap().count() == 0).then_some(()));
    assert_eq!(lost(), 1);
    assert!(gateway.object("box", "tried").is_some(), "it was made");
    // One that succeeds is not lost.
    let event = json!({"steps": [["put", "made"]]});
    assert_eq!(gateway.try_invoke("obedient", &event, &kind).unwrap().status, 202);
    until("the event is made", || gateway.object("box", "made"));
    until("it is forgotten", || (std::fs::read_dir(&events).unwrap().count() == 0).then_some(()));
    assert_eq!(lost(), 1);
}

#[test]
fn a_role_is_all_that_a_function_may_do_and_hints_cannot_borrow_another() {
    needs_functions!();
    let gateway = Gateway::start("[tenant.other]\n");
    gateway.bucket("box");
    gateway.bucket("secret");
    gateway.put("box", "a.txt", b"a");
    gateway.put("secret", "s.txt", b"s");
    let role = "[[role.statements]]\neffect = \"allow\"\nactions = [\"s3:GetObject\"]\n\
                resources = [\"box/*\"]\n";
    let code = "import boto3\ns3 = boto3.client('s3')\ndef handler(event, context):\n    \
                return s3.get_object(**event)['Body'].read().decode()\n";
    gateway.deploy("reader", &format!("tenant = \"other\"\n{role}"), code);
    let read = |bucket: &str, key: &str, hint: &str| {
        let event = json!({"Bucket": bucket, "Key": key});
        gateway.try_invoke("reader", &event, &[("x-unlade-hint", hint)]).unwrap()
    };
    assert_eq!(read("box", "a.txt", "box/a.txt").json(), "a");
    for hint in ["secret/s.txt", "box/a.txt"] {
        let denied = read("secret", "s.txt", hint);
        let said = denied.json()["errorMessage"].as_str().unwrap_or_default().to_owned();
        assert!(said.contains("AccessDenied"), "{denied:?}");
    }
}

/// A keep-alive connection.
struct KeptAlive(std::net::TcpStream, std::net::SocketAddr);

impl KeptAlive {
    fn connect(address: std::net::SocketAddr) -> KeptAlive {
        KeptAlive(std::net::TcpStream::connect(address).unwrap(), address)
    }

    /// Sends a request and returns the response, empty if the connection has ended.
    fn asks(&mut self) -> String {
        let path = "/2015-03-31/functions";
        let mut asked = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n", self.1);
        for (name, value) in signed(self.1, "GET", path, &[], b"") {
            asked.push_str(&format!("{name}: {value}\r\n"));
        }
        asked.push_str("\r\n");
        let (mut answer, mut bytes) = (Vec::new(), [0; 65536]);
        let _ = self.0.write_all(asked.as_bytes());
        while !answer.ends_with(b"}") {
            match self.0.read(&mut bytes) {
                Ok(0) | Err(_) => break,
                Ok(read) => answer.extend_from_slice(&bytes[..read]),
            }
        }
        String::from_utf8_lossy(&answer).into_owned()
    }
}

#[test]
fn what_runs_ends_before_the_gateway_does() {
    needs_functions!();
    let mut gateway = Gateway::start("");
    gateway.bucket("box");
    gateway.deploy("obedient", "", OBEDIENT);
    let pids = [gateway.worker("default"), gateway.store()];
    let address = gateway.address;
    let event = json!({"steps": [["sleep", 5], ["put", "late"]]});
    let running = std::thread::spawn(move || {
        system_tests::functions::invoke(address, "obedient", &event, &[]).unwrap()
    });
    let busy = || {
        let state = gateway.state();
        let instances = state["instances"].as_array()?;
        instances.iter().any(|instance| instance["state"] == "busy").then_some(())
    };
    until("it runs", busy);
    let mut kept = KeptAlive::connect(address);
    assert!(kept.asks().starts_with("HTTP/1.1 200"));
    signal(gateway.pid(), "TERM");
    until("nobody is let in", || std::net::TcpStream::connect(address).is_err().then_some(()));
    assert_eq!(kept.asks(), "", "nor who is in already");
    assert_eq!(gateway.ended(), Some(0));
    assert!(running.join().unwrap().is_success());
    assert_eq!(gateway.object("box", "late").as_deref(), Some(b"late".as_slice()));
    for pid in pids {
        let gone = || (!std::path::Path::new(&format!("/proc/{pid}/cwd")).exists()).then_some(());
        until("its processes are gone", gone);
    }
}

#[test]
fn idle_instances_end_and_memory_is_shared_by_need() {
    needs_functions!();
    let gateway = Gateway::start("memory_max = \"256MiB\"\n");
    let code = "def handler(event, context):\n    return 1\n";
    gateway.deploy("first", "keep_alive = \"1s\"\n", code);
    gateway.deploy("second", "keep_alive = \"1s\"\nmemory = \"256MiB\"\n", code);
    gateway.deploy("third", "memory = \"257MiB\"\n", code);
    assert!(gateway.invoke("first", &json!({})).is_success());
    assert!(gateway.invoke("second", &json!({})).is_success(), "the first one makes room");
    let refused = gateway.invoke("third", &json!({}));
    assert_eq!((refused.status, refused.error().as_str()), (429, "TooManyRequestsException"));
    assert!(gateway.invoke("first", &json!({})).is_success());
    let count = || gateway.state()["instances"].as_array().map(Vec::len);
    until("they have grown old", || {
        std::thread::sleep(Duration::from_millis(100));
        count().filter(|count| *count == 0)
    });
}

#[test]
fn a_directory_of_functions_is_read_anew_at_sighup() {
    needs_functions!();
    let source = tempfile::tempdir().unwrap();
    let write = |name: &str, number: u32| {
        let directory = source.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("function.toml"), "handler = \"app.handler\"\n").unwrap();
        let code = format!("def handler(event, context):\n    return {number}\n");
        std::fs::write(directory.join("app.py"), code).unwrap();
    };
    write("first", 1);
    let gateway = Gateway::start(&format!("functions = \"{}\"\n", source.path().display()));
    assert_eq!(gateway.invoke("first", &json!({})).json(), 1);
    assert_eq!(gateway.invoke("second", &json!({})).status, 404);
    write("first", 10);
    write("second", 2);
    signal(gateway.pid(), "HUP");
    let read = |name: &str| gateway.invoke(name, &json!({})).json();
    until("both are new", || (read("first") == 10 && read("second") == 2).then_some(()));
    std::fs::remove_dir_all(source.path().join("second")).unwrap();
    signal(gateway.pid(), "HUP");
    until("it is gone", || (gateway.invoke("second", &json!({})).status == 404).then_some(()));
}

#[test]
fn neither_a_deployed_function_nor_one_of_the_directory_replaces_the_other() {
    needs_functions!();
    let source = tempfile::tempdir().unwrap();
    let code = |number: u32| format!("def handler(event, context):\n    return {number}\n");
    let write = |name: &str, number: u32| {
        let directory = source.path().join(name);
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("function.toml"), "handler = \"app.handler\"\n").unwrap();
        std::fs::write(directory.join("app.py"), code(number)).unwrap();
    };
    write("theirs", 1);
    let mut gateway = Gateway::start(&format!("functions = \"{}\"\n", source.path().display()));
    let output = gateway.try_deploy("theirs", "", &code(2));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("directory"), "{said}");
    assert_eq!(gateway.invoke("theirs", &json!({})).json(), 1);
    gateway.deploy("own", "", &code(3));
    write("own", 4);
    write("theirs", 5);
    signal(gateway.pid(), "HUP");
    let read = |gateway: &Gateway, name: &str| gateway.invoke(name, &json!({})).json();
    until("it is read anew", || (read(&gateway, "theirs") == 5).then_some(()));
    assert_eq!(read(&gateway, "own"), 3);
    gateway.restart();
    assert_eq!((read(&gateway, "own"), read(&gateway, "theirs")), (json!(3), json!(5)));
}

/// Reads its configuration from an object, with a default if that fails.
const CONFIGURED: &str = r#"
import boto3
s3 = boto3.client("s3")
try:
    CONFIG = s3.get_object(Bucket="box", Key="config")["Body"].read().decode()
except Exception:
    CONFIG = "DEFAULT"

def handler(event, context):
    return {"mode": CONFIG}
"#;

#[test]
fn a_configuration_read_at_import_is_not_silently_the_default() {
    needs_functions!();
    let admin = free_address();
    let gateway = Gateway::start(&format!("admin = \"{admin}\"\n"));
    gateway.bucket("box");
    gateway.put("box", "config", b"production");
    let counted = || counter(admin, "unlade_fn_templates_unpreloaded_total");
    gateway.deploy("upper", "", UPPER);
    assert_eq!(counted(), 0, "a client that is made at import is no reason");
    gateway.deploy("configured", "", CONFIGURED);
    let answer = gateway.invoke("configured", &json!({}));
    assert_eq!(answer.json(), json!({"mode": "production"}));
    assert_eq!(counted(), 1);
    // Another template of the same deployment is not tried.
    let keepers = children(gateway.pid()).into_iter();
    for keeper in keepers.filter(|pid| command(*pid).contains("sandbox")) {
        signal(keeper, "KILL");
    }
    gateway.put("box", "config", b"changed");
    let changed = json!({"mode": "changed"});
    until("another instance", || {
        let answer = gateway.invoke("configured", &json!({}));
        (answer.json() == changed).then_some(())
    });
    assert_eq!(counted(), 1);
}

#[test]
fn a_client_of_another_store_is_refused_and_not_misdirected() {
    needs_functions!();
    let gateway = Gateway::start("");
    gateway.bucket("box");
    let puts = "import boto3\n\
                def handler(event, context):\n    \
                    keys = dict(aws_access_key_id='k', aws_secret_access_key='s')\n    \
                    s3 = boto3.client('s3', endpoint_url=event['endpoint'], **keys)\n    \
                    s3.put_object(Bucket='box', Key='out', Body=b'x')\n";
    gateway.deploy("puts", "", puts);
    let answer = gateway.invoke("puts", &json!({"endpoint": "http://other.example:9000"}));
    assert_eq!(answer.error(), "HostError");
    let said = answer.json()["errorMessage"].to_string();
    assert!(said.contains("other.example") && said.contains("mode = "), "{said}");
    assert_eq!(gateway.object("box", "out"), None);
    let own = gateway.state()["store"]["endpoint"].clone();
    let answer = gateway.invoke("puts", &json!({"endpoint": own}));
    assert!(answer.is_success(), "{answer:?}");
    assert_eq!(gateway.object("box", "out").as_deref(), Some(b"x".as_slice()));
}

fn free_address() -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

/// Returns a counter without labels of the gateway's `/metrics`.
fn counter(admin: std::net::SocketAddr, name: &str) -> u64 {
    let text = String::from_utf8(ask(admin, "GET", "/metrics", &[], b"").unwrap().body).unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or_else(|| panic!("{name} is not in the metrics")).parse().unwrap()
}

/// Returns the child processes of all threads of a process.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let text: Vec<String> = lists.collect();
    text.iter()
        .flat_map(|list| list.split_whitespace())
        .filter_map(|pid| pid.parse().ok())
        .collect()
}

fn command(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    text.replace('\0', " ")
}
