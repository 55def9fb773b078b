//! Operations of functions: frozen idle instances, metrics, logs.

use std::path::PathBuf;

use base64::Engine as _;
use serde_json::{Value, json};
use system_tests::functions::{Gateway, ask, invoke, signal, until};
use system_tests::needs_functions;

/// A thread that puts objects and notes the times; an invocation waits until it has gone on, and
/// returns the times after the one in its event.
const BEATS: &str = r#"
import threading
import time
import boto3

s3 = boto3.client("s3")
beats = []

def beat():
    while True:
        s3.put_object(Bucket="box", Key="beat", Body=b"x")
        beats.append(time.monotonic())
        time.sleep(0.001)

threads = []

def handler(event, context):
    if not threads:
        threads.append(threading.Thread(target=beat, daemon=True))
        threads[0].start()
    before = len(beats)
    while len(beats) == before:
        time.sleep(0.001)
    return [at for at in beats if at > event]
"#;

/// The clock that the threads use.
const CLOCK: &str = "import time\n\ndef handler(event, context):\n    return time.monotonic()\n";

/// Ends as its event says.
const ENDS: &str = r#"
import os
import time

def handler(event, context):
    if event == "sleep":
        time.sleep(600)
    if event == "exit":
        os._exit(3)
    return os.getpid()
"#;

fn time(gateway: &Gateway) -> f64 {
    gateway.invoke("clock", &json!(0)).json().as_f64().expect("a time")
}

/// Times within an interval.
fn within(beats: &Value, from: f64, to: f64) -> usize {
    let beats = beats.as_array().expect("times").iter().filter_map(Value::as_f64);
    beats.filter(|at| (from..to).contains(at)).count()
}

/// The instances of a function.
fn instances(gateway: &Gateway, function: &str) -> Vec<Value> {
    let state = gateway.state();
    let all = state["instances"].as_array().cloned().unwrap_or_default();
    all.into_iter().filter(|instance| instance["function"] == function).collect()
}

fn until_frozen(gateway: &Gateway, function: &str) {
    until("its instance is frozen", || {
        let found = instances(gateway, function);
        (!found.is_empty() && found.iter().all(|one| one["frozen"] == true)).then_some(())
    });
}

/// Prints the reason, and returns true, if this machine cannot freeze.
fn cannot_freeze() -> bool {
    let limits = unlade_fn_sandbox::process::limits();
    let can = limits.iter().any(|(name, _)| name == unlade_fn_sandbox::process::FREEZER);
    if !can {
        println!("skipped: there is no freezer");
    }
    !can
}

/// The control groups of a gateway's templates.
fn groups(gateway: u32) -> Vec<PathBuf> {
    let mounts = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten();
    let roots = mounts.map(|mount| mount.path()).chain([PathBuf::from("/sys/fs/cgroup")]);
    let whose = format!("{gateway}-");
    let is_own = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&whose))
    };
    let all = roots.filter_map(|root| std::fs::read_dir(root.join("unlade")).ok()).flatten();
    all.flatten().map(|group| group.path()).filter(is_own).collect()
}

fn until_no_group(gateway: u32) {
    until("its control groups are removed", || groups(gateway).is_empty().then_some(()));
}

/// The children of a process whose command has a word.
fn children(pid: u32, word: &str) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).ok();
    let text = tasks.filter_map(of).collect::<String>();
    let has_word = |pid: &u32| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.split('\0').any(|found| found == word)
    };
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(has_word).collect()
}

#[test]
fn a_thread_goes_on_in_invocations_only() {
    needs_functions!();
    if cannot_freeze() {
        return;
    }
    let gateway = Gateway::start("");
    gateway.bucket("box");
    gateway.deploy("beats", "", BEATS);
    gateway.deploy("clock", "", CLOCK);
    assert!(gateway.invoke("beats", &json!(0)).is_success());
    until_frozen(&gateway, "beats");
    let from = time(&gateway);
    // Other functions go on.
    let to = (0..50).fold(from, |_, _| time(&gateway));
    let beats = gateway.invoke("beats", &json!(from)).json();
    assert_eq!(within(&beats, from, to), 0, "{from} {to}: {beats}");
    assert!(within(&beats, to, f64::MAX) > 0, "it went on in the invocation");
}

#[test]
fn without_freezing_a_thread_goes_on_between_invocations() {
    needs_functions!();
    let gateway = Gateway::start("[isolation.process]\nfreeze = false\n");
    gateway.bucket("box");
    gateway.deploy("beats", "", BEATS);
    gateway.deploy("clock", "", CLOCK);
    assert!(gateway.invoke("beats", &json!(0)).is_success());
    until("a beat between two invocations", || {
        let from = time(&gateway);
        let to = (0..50).fold(from, |_, _| time(&gateway));
        let beats = gateway.invoke("beats", &json!(from)).json();
        (within(&beats, from, to) > 0).then_some(())
    });
    assert!(instances(&gateway, "beats").iter().all(|instance| instance["frozen"] == false));
}

/// Puts an object of 8 MiB, which is acknowledged before it is durable.
const PUTS: &str = r#"
import boto3

s3 = boto3.client("s3")

def handler(event, context):
    s3.put_object(Bucket="box", Key=event, Body=b"p" * (8 << 20), ContentType="a/b")
"#;

#[test]
fn writes_of_a_frozen_instance_become_durable() {
    needs_functions!();
    if cannot_freeze() {
        return;
    }
    let gateway = Gateway::start("[isolation.process]\nfreeze_after_ms = 0\n");
    gateway.bucket("box");
    gateway.deploy("puts", "writes = \"early-reply\"\n", PUTS);
    for key in ["one", "two", "three"] {
        assert!(gateway.invoke("puts", &json!(key)).is_success());
        until_frozen(&gateway, "puts");
        let body = until("its object is durable", || gateway.object("box", key));
        assert!(body.len() == 8 << 20 && body.iter().all(|byte| *byte == b'p'), "{}", body.len());
        until_frozen(&gateway, "puts");
    }
}

/// Runs its arguments where the freezer of version 1 is not mounted.
const WITHOUT_FREEZER: [&str; 6] =
    ["unshare", "--mount", "sh", "-c", "umount /sys/fs/cgroup/freezer; exec \"$@\"", "sh"];

#[test]
fn without_a_freezer_instances_go_on_and_are_counted() {
    needs_functions!();
    if !std::path::Path::new("/sys/fs/cgroup/freezer/cgroup.procs").exists() {
        println!("skipped: the freezer of version 2 cannot be taken away");
        return;
    }
    let port = free_port();
    let config = format!("admin = \"127.0.0.1:{port}\"\n");
    let gateway = Gateway::start_by(&WITHOUT_FREEZER, &config);
    gateway.deploy("ends", "", ENDS);
    let process = gateway.invoke("ends", &json!("")).json();
    let value = |name: &str| samples(port).get(name).copied().unwrap_or(0.0);
    until("it is counted", || (value("unlade_fn_instances_unfrozen_total") == 1.0).then_some(()));
    assert_eq!(gateway.invoke("ends", &json!("")).json(), process, "it serves");
    assert_eq!(value("unlade_fn_instances_frozen_total"), 0.0);
    assert!(instances(&gateway, "ends").iter().all(|instance| instance["frozen"] == false));
}

#[test]
fn frozen_instances_end_when_they_have_to() {
    needs_functions!();
    if cannot_freeze() {
        return;
    }
    let mut gateway = Gateway::start("");
    gateway.deploy("ends", "timeout = \"2s\"\nkeep_alive = \"1s\"\n", ENDS);
    assert!(gateway.invoke("ends", &json!("")).is_success());
    until_frozen(&gateway, "ends");
    // Thawed for an invocation that does not end, and for one that ends the process.
    assert_eq!(gateway.invoke("ends", &json!("sleep")).error(), "Sandbox.Timedout");
    assert!(gateway.invoke("ends", &json!("")).is_success());
    until_frozen(&gateway, "ends");
    assert_eq!(gateway.invoke("ends", &json!("exit")).error(), "Runtime.ExitError");
    assert!(gateway.invoke("ends", &json!("")).is_success());
    // Its age.
    until("the instance is stopped", || instances(&gateway, "ends").is_empty().then_some(()));
    // Its function.
    gateway.deploy("other", "", CLOCK);
    assert!(gateway.invoke("other", &json!("")).is_success());
    until_frozen(&gateway, "other");
    let path = "/2015-03-31/functions/other";
    assert_eq!(ask(gateway.address, "DELETE", path, &[], b"").unwrap().status, 204);
    until("the instance is stopped", || instances(&gateway, "other").is_empty().then_some(()));
    // Its gateway.
    assert!(gateway.invoke("ends", &json!("")).is_success());
    until_frozen(&gateway, "ends");
    let pid = gateway.pid();
    assert!(!groups(pid).is_empty());
    signal(pid, "TERM");
    assert_eq!(gateway.ended(), Some(0));
    until_no_group(pid);
}

#[test]
fn frozen_instances_end_with_whoever_is_killed() {
    needs_functions!();
    if cannot_freeze() {
        return;
    }
    let mut gateway = Gateway::start("");
    gateway.deploy("ends", "", ENDS);
    assert!(gateway.invoke("ends", &json!("")).is_success());
    until_frozen(&gateway, "ends");
    // The zygote: the kernel waits for all processes of its namespace.
    let id = instances(&gateway, "ends")[0]["id"].clone();
    let supervisor = children(gateway.pid(), "sandbox")[0];
    let zygote = children(supervisor, "unlade_guest.zygote")[0];
    signal(zygote, "KILL");
    until("the instance has ended", || {
        instances(&gateway, "ends").iter().all(|instance| instance["id"] != id).then_some(())
    });
    assert!(gateway.invoke("ends", &json!("")).is_success(), "there is another template");
    until_frozen(&gateway, "ends");
    // The gateway alone: its supervisors remove everything.
    let pid = gateway.pid();
    gateway.restart();
    until_no_group(pid);
    // Both: the next gateway does.
    assert!(gateway.invoke("ends", &json!("")).is_success());
    until_frozen(&gateway, "ends");
    let (pid, supervisors) = (gateway.pid(), children(gateway.pid(), "sandbox"));
    assert!(!supervisors.is_empty());
    signal(pid, "STOP");
    for supervisor in supervisors {
        signal(supervisor, "KILL");
    }
    gateway.restart();
    until_no_group(pid);
    assert!(gateway.invoke("ends", &json!("")).is_success());
}

#[test]
fn a_provisioned_instance_is_frozen_and_serves() {
    needs_functions!();
    if cannot_freeze() {
        return;
    }
    let gateway = Gateway::start("");
    gateway.deploy("ends", "", ENDS);
    let versions = "/2015-03-31/functions/ends/versions";
    let published = ask(gateway.address, "POST", versions, &[], b"{}").unwrap();
    assert_eq!(published.status, 201, "{published:?}");
    let path = "/2019-09-30/functions/ends/provisioned-concurrency?Qualifier=1";
    let body = json!({"ProvisionedConcurrentExecutions": 1}).to_string();
    assert_eq!(ask(gateway.address, "PUT", path, &[], body.as_bytes()).unwrap().status, 202);
    until_frozen(&gateway, "ends");
    let id = instances(&gateway, "ends")[0]["id"].clone();
    let path = "/2015-03-31/functions/ends/invocations?Qualifier=1";
    let answer = ask(gateway.address, "POST", path, &[], b"\"\"").unwrap();
    assert!(answer.is_success(), "{answer:?}");
    assert_eq!(instances(&gateway, "ends")[0]["id"], id);
    until_frozen(&gateway, "ends");
}

/// Prints what the event says, moves an object, and waits for another one if the event names it.
const TELLS: &str = r#"
import sys
import time
import boto3

s3 = boto3.client("s3")
print("imported")

def handler(event, context):
    for line in event.get("print", []):
        print(line)
    for number in range(event.get("lines", 0)):
        print("line %d" % number)
    if "error" in event:
        print("to stderr", file=sys.stderr)
        raise ValueError(event["error"])
    if "wait" in event:
        s3.put_object(Bucket="box", Key="begun", Body=b"x")
        while True:
            try:
                return s3.get_object(Bucket="box", Key=event["wait"])["Body"].read().decode()
            except s3.exceptions.NoSuchKey:
                time.sleep(0.01)
    body = s3.get_object(Bucket="box", Key="in")["Body"].read()
    s3.put_object(Bucket="box", Key="out", Body=body)
    return len(body)
"#;

/// The number of bytes of the object that [`TELLS`] moves.
const BODY_BYTES: usize = 300_000;

/// The samples of a gateway.
fn samples(port: u16) -> std::collections::BTreeMap<String, f64> {
    let text = system_tests::admin::get(port, "/metrics").expect("the metrics");
    let parsed = unlade_testkit::openmetrics::parse(&text);
    parsed.unwrap_or_else(|error| panic!("{error}\n{text}")).into_iter().collect()
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

/// A gateway with these lines of configuration, the function `tells`, and a port for its metrics.
fn tells(config: &str, manifest: &str) -> (Gateway, u16) {
    let port = free_port();
    let gateway = Gateway::start(&format!("admin = \"127.0.0.1:{port}\"\n{config}"));
    gateway.bucket("box");
    gateway.put("box", "in", &vec![b'i'; BODY_BYTES]);
    gateway.deploy("tells", manifest, TELLS);
    (gateway, port)
}

#[test]
fn every_metric_of_a_function_counts() {
    needs_functions!();
    let (gateway, port) = tells("[function_log]\nlines_per_s = 100\n", "writes = \"sync\"\n");
    let of = |name: &str| {
        let labels = "{tenant=\"default\",function=\"tells\"}";
        samples(port).get(&format!("unlade_fn_function_{name}{labels}")).copied()
    };
    let value = |name: &str| of(name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(gateway.invoke("tells", &json!({})).json(), BODY_BYTES);
    assert_eq!(gateway.invoke("tells", &json!({"error": "no"})).error(), "ValueError");
    assert!(gateway.invoke("tells", &json!({"lines": 5000})).is_success());
    assert_eq!(value("invocations_total"), 3.0);
    assert_eq!(value("errors_total"), 1.0);
    assert_eq!(value("duration_seconds_count"), 3.0);
    assert!(value("duration_seconds_sum") > 0.0);
    assert_eq!(value("init_duration_seconds_count"), 1.0);
    assert!(value("init_duration_seconds_sum") > 0.0);
    assert!(value("memory_peak_bytes") > (1 << 20) as f64);
    for name in ["received_bytes_total", "sent_bytes_total"] {
        assert!(value(name) >= (2 * BODY_BYTES) as f64, "{name}: {}", value(name));
        assert!(value(name) < (3 * BODY_BYTES) as f64, "{name}: {}", value(name));
    }
    assert!(value("log_lines_total") >= 5000.0);
    assert!(value("log_lines_dropped_total") > 0.0);
    // One runs, and the next one finds no place.
    let path = "/2017-10-31/functions/tells/concurrency";
    let body = json!({"ReservedConcurrentExecutions": 1}).to_string();
    assert_eq!(ask(gateway.address, "PUT", path, &[], body.as_bytes()).unwrap().status, 200);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| gateway.invoke("tells", &json!({"wait": "go"})));
        until("it runs", || gateway.object("box", "begun"));
        assert_eq!(value("concurrent_executions"), 1.0);
        assert_eq!(gateway.invoke("tells", &json!({})).status, 429);
        assert_eq!(value("throttles_total"), 1.0);
        gateway.put("box", "go", b"gone");
        assert_eq!(first.join().unwrap().json(), "gone");
    });
    assert_eq!(value("concurrent_executions"), 0.0);
    if !cannot_freeze() {
        let frozen = "unlade_fn_instances_frozen_total";
        until("its instance is frozen", || (samples(port).get(frozen)? > &0.0).then_some(()));
    }
    // A deployment goes on counting, a removal ends it.
    gateway.deploy("tells", "writes = \"sync\"\n", TELLS);
    assert_eq!(value("invocations_total"), 4.0);
    let path = "/2015-03-31/functions/tells";
    assert_eq!(ask(gateway.address, "DELETE", path, &[], b"").unwrap().status, 204);
    until("its samples are removed", || of("invocations_total").is_none().then_some(()));
}

#[test]
fn functions_beyond_the_limit_share_their_metrics() {
    needs_functions!();
    let (gateway, port) = tells("metrics_functions_max = 1\n", "");
    gateway.deploy("clock", "", CLOCK);
    assert!(gateway.invoke("clock", &json!(0)).is_success());
    assert!(gateway.invoke("tells", &json!({})).is_success());
    let found = samples(port);
    let of = |tenant: &str, function: &str| {
        format!(
            "unlade_fn_function_invocations_total{{tenant=\"{tenant}\",function=\"{function}\"}}"
        )
    };
    assert_eq!(found[&of("default", "tells")], 1.0);
    assert_eq!(found[&of("other", "other")], 1.0);
    assert!(!found.contains_key(&of("default", "clock")));
}

/// Runs `unlade fn` with the gateway and state of a gateway; returns what it prints.
fn command(gateway: &Gateway, arguments: &[&str]) -> std::process::Output {
    let mut command = std::process::Command::new(system_tests::unlade());
    command.arg("fn").args(arguments).arg("--gateway");
    command.arg(format!("http://{}", gateway.address)).arg("--state").arg(gateway.dir.path());
    command.output().expect("the command runs")
}

fn stdout(output: &std::process::Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).expect("text")
}

/// The log that comes with an answer.
fn tail(answer: &system_tests::functions::Answer) -> String {
    let text = answer.header("x-amz-log-result").expect("a log");
    let bytes = base64::engine::general_purpose::STANDARD.decode(text).expect("base64");
    String::from_utf8(bytes).expect("text")
}

#[test]
fn an_invocation_has_the_log_of_lambda() {
    needs_functions!();
    let (gateway, _) = tells("", "memory = \"192MiB\"\n");
    let tailed = [("x-amz-log-type", "Tail")];
    let invoke = |event: &Value| invoke(gateway.address, "tells", event, &tailed).unwrap();
    let answer = invoke(&json!({"print": ["one", "two"]}));
    let id = answer.header("x-amzn-requestid").unwrap().to_owned();
    let log = tail(&answer);
    let lines: Vec<&str> = log.lines().collect();
    assert_eq!(lines[0], format!("START RequestId: {id} Version: $LATEST"));
    assert_eq!(lines[1..4], ["one", "two", format!("END RequestId: {id}").as_str()]);
    let report: Vec<&str> = lines[4].split('\t').collect();
    assert_eq!(report[0], format!("REPORT RequestId: {id}"));
    let names = ["Duration: ", "Billed Duration: ", "Memory Size: 192 MB", "Max Memory Used: "];
    for (found, name) in report[1..].iter().zip(names.iter().chain(&["Init Duration: "])) {
        assert!(found.starts_with(name), "{log}");
    }
    assert!(!tail(&invoke(&json!({}))).contains("Init Duration"), "it is warm");
    let failed = tail(&invoke(&json!({"error": "broken"})));
    assert!(failed.contains("to stderr\n") && failed.contains("ValueError: broken"), "{failed}");
    let long = tail(&invoke(&json!({"lines": 2000})));
    assert!(long.len() <= 4096 && long.len() > 4000, "{}", long.len());
    assert!(long.contains("line 1999\nEND RequestId: "), "{long}");
}

#[test]
fn a_function_has_a_log_that_its_tenant_reads() {
    needs_functions!();
    let (gateway, _) = tells("", "");
    let ids: Vec<String> = (0..2)
        .map(|number| {
            let answer = gateway.invoke("tells", &json!({"print": [format!("say {number}")]}));
            answer.header("x-amzn-requestid").unwrap().to_owned()
        })
        .collect();
    let all = stdout(&command(&gateway, &["logs", "tells"]));
    let line = |text: &str| {
        let found = all.lines().find(|line| line.ends_with(text));
        let words = found.unwrap_or_else(|| panic!("{text}: {all}")).split(' ');
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(line("imported")[2..4], ["template", "-"]);
    for (number, id) in ids.iter().enumerate() {
        let words = line(&format!("say {number}"));
        assert_eq!(words[1..4], ["$LATEST", &words[2], id], "{all}");
        assert!(words[2].parse::<u64>().is_ok() && words[0].ends_with('Z'), "{all}");
    }
    let one = stdout(&command(&gateway, &["logs", "tells", "--request", &ids[1]]));
    assert!(one.lines().all(|line| line.contains(&ids[1])) && one.contains("say 1"), "{one}");
    assert!(one.contains("START") && one.contains("REPORT"), "{one}");
    let later = stdout(&command(&gateway, &["logs", "tells", "--since", "1h"]));
    assert_eq!(later, all);
    let absent = command(&gateway, &["logs", "nothing"]);
    assert!(!absent.status.success(), "{absent:?}");
}

#[test]
fn lines_are_followed_and_two_thousand_in_a_second_are_kept() {
    use std::io::{BufRead as _, BufReader};
    needs_functions!();
    let (gateway, _) = tells("", "");
    let mut command = std::process::Command::new(system_tests::unlade());
    command.args(["fn", "logs", "tells", "-f", "--gateway"]);
    command.arg(format!("http://{}", gateway.address)).arg("--state").arg(gateway.dir.path());
    let mut following = command.stdout(std::process::Stdio::piped()).spawn().expect("it starts");
    let lines = BufReader::new(following.stdout.take().expect("its output")).lines();
    assert!(gateway.invoke("tells", &json!({"lines": 1990})).is_success());
    let mut due = 0;
    for line in lines.map_while(Result::ok) {
        if line.ends_with(&format!("line {due}")) {
            due += 1;
        }
        if line.contains("REPORT") {
            break;
        }
    }
    let _ = following.kill();
    let _ = following.wait();
    assert_eq!(due, 1990, "no line is missing, and they are in order");
}

#[test]
fn top_has_a_line_for_each_function() {
    needs_functions!();
    let (gateway, _) = tells("", "");
    gateway.deploy("clock", "", CLOCK);
    for _ in 0..3 {
        assert!(gateway.invoke("tells", &json!({})).is_success());
    }
    assert_eq!(gateway.invoke("tells", &json!({"error": "no"})).error(), "ValueError");
    let table = stdout(&command(&gateway, &["top", "--once"]));
    let rows: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 3, "{table}");
    assert!(!table.contains('\u{1b}'), "{table}");
    let row = rows.iter().find(|row| row[0] == "tells").unwrap_or_else(|| panic!("{table}"));
    // Its invocations and errors are the last columns.
    assert_eq!(row[row.len() - 2..], ["4", "1"], "{table}");
    assert!(rows.iter().any(|row| row[0] == "clock"), "{table}");
}

/// Fills `/tmp`, holds memory until it is killed, or tells the size of `/tmp` and its process.
const FILLS: &str = r#"
import os
import time

def handler(event, context):
    if event == "fill":
        file, count = os.open("/tmp/full", os.O_WRONLY | os.O_CREAT), 0
        try:
            while True:
                count += os.write(file, bytes(1 << 16))
        except OSError as error:
            return [count, error.errno, os.getpid()]
        finally:
            os.close(file)
    if event == "hold":
        os.unlink("/tmp/full")
        held = b"x" * (200 << 20)
        while held:
            time.sleep(0.01)
    about = os.statvfs("/tmp")
    return [about.f_blocks * about.f_frsize, 0, os.getpid()]
"#;

#[test]
fn a_full_tmp_does_not_end_an_instance_and_memory_without_it_is_limited() {
    needs_functions!();
    let gateway = Gateway::start("");
    let (scratch, enospc) = (256_u64 << 20, 28);
    let manifest = "memory = \"64MiB\"\nscratch = \"256MiB\"\ntimeout = \"1m\"\n";
    gateway.deploy("fills", manifest, FILLS);
    let full = gateway.invoke("fills", &json!("fill")).json();
    assert_eq!(full, json!([scratch, enospc, full[2]]));
    let next = gateway.invoke("fills", &json!("")).json();
    assert_eq!(next, json!([scratch, 0, full[2]]), "the same process goes on");
    if !unlade_fn_sandbox::process::limits().iter().any(|(name, _)| name == "memory") {
        println!("skipped in part: memory is not limited");
        return;
    }
    // There is room for it where the files were.
    let held = gateway.invoke("fills", &json!("hold"));
    assert_eq!(held.error(), "Runtime.ExitError", "{held:?}");
    let text = String::from_utf8_lossy(&held.body).into_owned();
    assert!(text.contains("memory limit of 64 MiB"), "{text}");
    assert_ne!(gateway.invoke("fills", &json!("")).json()[2], full[2]);
}

#[test]
fn ephemeral_storage_is_kept_and_enforced() {
    needs_functions!();
    let mut gateway = Gateway::start("");
    gateway.deploy("fills", "", FILLS);
    let path = "/2015-03-31/functions/fills/configuration";
    let size = |gateway: &Gateway| {
        let asked = ask(gateway.address, "GET", path, &[], b"").unwrap();
        asked.json()["EphemeralStorage"]["Size"].clone()
    };
    let tmp = |gateway: &Gateway| gateway.invoke("fills", &json!("")).json()[0].clone();
    assert_eq!((size(&gateway), tmp(&gateway)), (json!(512), json!(512_u64 << 20)));
    let put = |size: u64| {
        let body = json!({"EphemeralStorage": {"Size": size}}).to_string();
        ask(gateway.address, "PUT", path, &[], body.as_bytes()).unwrap()
    };
    for wrong in [511, 10_241] {
        let refused = put(wrong);
        assert_eq!(refused.status, 400, "{refused:?}");
        assert!(String::from_utf8_lossy(&refused.body).contains("512 to 10240"), "{refused:?}");
    }
    let changed = put(640);
    assert_eq!(changed.status, 200, "{changed:?}");
    assert_eq!(changed.json()["EphemeralStorage"], json!({"Size": 640}));
    // Another change leaves it.
    let body = json!({"Timeout": 9}).to_string();
    assert_eq!(ask(gateway.address, "PUT", path, &[], body.as_bytes()).unwrap().status, 200);
    assert_eq!((size(&gateway), tmp(&gateway)), (json!(640), json!(640_u64 << 20)));
    gateway.restart();
    assert_eq!((size(&gateway), tmp(&gateway)), (json!(640), json!(640_u64 << 20)));
}
