//! `unlade fn serve` with virtual machines, emulated in software, so times are meaningless.

use serde_json::json;
use system_tests::functions::{Gateway, signal, skip_reason, until};

macro_rules! needs_machines {
    () => {
        if let Some(reason) = skip_reason().or_else(system_tests::vm::skip_reason) {
            println!("skipped: {}: {reason}", module_path!());
            return;
        }
    };
}

/// A machine boots once, slowly on a busy host.
const CONFIG: &str = "start_timeout = \"2m\"\n";
const MANIFEST: &str = "isolation = \"qemu\"\ntimeout = \"1m\"\nconcurrency = 2\n";

/// Copies an object and returns data that differs between instances.
const MOVER: &str = r#"
import os, random, time
import boto3
s3 = boto3.client("s3")

def handler(event, context):
    time.sleep(event.get("sleep", 0))
    body = s3.get_object(Bucket="box", Key=event["from"])["Body"].read()
    s3.put_object(Bucket="box", Key=event["to"], Body=body[::-1])
    return {"bytes": len(body), "octets": os.urandom(16).hex(), "random": random.random(),
        "kernel": os.uname().release, "left_ms": context.get_remaining_time_in_millis()}
"#;

/// Returns processes whose arguments contain these consecutive words.
fn processes(words: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let has_words = |name: &String| {
        let command = std::fs::read_to_string(format!("/proc/{name}/cmdline")).unwrap_or_default();
        command.replace('\0', " ").contains(words)
    };
    names.filter(|name| name.parse::<u32>().is_ok()).filter(has_words).collect()
}

#[test]
fn functions_run_in_machines_restored_from_one_snapshot() {
    needs_machines!();
    let mut gateway = Gateway::start(CONFIG);
    gateway.bucket("box");
    let input: Vec<u8> =
        (0..1 << 20).map(|at: u32| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    gateway.put("box", "in", &input);
    let reversed: Vec<u8> = input.iter().rev().copied().collect();
    // The name is unique among all tests.
    let name = format!("mover-{}", std::process::id());
    gateway.deploy(&name, MANIFEST, MOVER);
    let answers: Vec<_> = std::thread::scope(|scope| {
        let call = |to: &'static str| {
            let event = json!({"from": "in", "to": to, "sleep": 1});
            let (gateway, name) = (&gateway, &name);
            scope.spawn(move || gateway.invoke(name, &event))
        };
        let calls = [call("one"), call("two")];
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    let host = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    for answer in &answers {
        assert!(answer.is_success(), "{answer:?}");
        assert_eq!(answer.header("x-unlade-origin"), Some("restored"));
        assert_eq!(answer.json()["bytes"], 1 << 20);
        assert_ne!(answer.json()["kernel"], host.trim(), "it has a kernel of its own");
        let left_ms = answer.json()["left_ms"].as_i64().unwrap();
        assert!((1..=60_000).contains(&left_ms), "its clock is the host's: {left_ms}");
    }
    for member in ["octets", "random"] {
        assert_ne!(answers[0].json()[member], answers[1].json()[member], "{member}");
    }
    for key in ["one", "two"] {
        assert!(gateway.object("box", key).is_some_and(|found| found == reversed), "{key}");
    }
    let warm = gateway.invoke(&name, &json!({"from": "one", "to": "three"}));
    assert_eq!(warm.header("x-unlade-origin"), Some("warm"));
    assert!(gateway.object("box", "three").is_some_and(|found| found == input));

    let state = gateway.state();
    let instances = state["instances"].as_array().unwrap();
    assert_eq!(instances.len(), 2, "{state}");
    for instance in instances {
        assert!(instance["usage"]["private_bytes"].as_u64().unwrap() > 0, "{instance}");
    }
    let words = format!("-name {name}/");
    assert_eq!(processes(&words).len(), 2);
    // The machines end with the gateway, also after SIGKILL.
    signal(gateway.pid(), "KILL");
    gateway.ended();
    until("its machines end", || processes(&words).is_empty().then_some(()));
}
