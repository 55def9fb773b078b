//! Objects of the built-in store that invoke functions, with boto3 as the client: configurations, each kind
//! of change, a function that makes a copy of each upload, and kills of the store and of the gateway.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use system_tests::functions::{Gateway, ask_plainly, keys_of, signal, until};
use system_tests::needs_functions;
use unlade_testkit::Random;

/// Writes the beginning of each uploaded object.
const THUMB: &str = r#"
from urllib.parse import unquote_plus
import boto3
s3 = boto3.client("s3")
def handler(event, context):
    for record in event["Records"]:
        bucket = record["s3"]["bucket"]["name"]
        key = unquote_plus(record["s3"]["object"]["key"])
        body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        s3.put_object(Bucket=bucket, Key="out/" + key.split("/")[-1], Body=body[:7])
"#;
/// Writes each record, by its sequencer.
const SEEN: &str = r#"
import json
import boto3
s3 = boto3.client("s3")
def handler(event, context):
    for record in event["Records"]:
        own = record["s3"]
        key = "seen/%s/%s" % (own["bucket"]["name"], own["object"]["sequencer"])
        s3.put_object(Bucket="records", Key=key, Body=json.dumps(record).encode())
"#;

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

struct Bed {
    python: PathBuf,
    gateway: Gateway,
    metrics: SocketAddr,
}

impl Bed {
    fn start() -> Option<Bed> {
        let python = boto3()?;
        let metrics = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let gateway = Gateway::start(&format!("admin = \"{metrics}\"\n"));
        gateway.bucket("box");
        gateway.bucket("records");
        gateway.deploy("thumb", "writes = \"early-reply\"\n", THUMB);
        gateway.deploy("seen", "", SEEN);
        Some(Bed { python, gateway, metrics })
    }

    fn client(&self, case: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python/notifications.py");
        let keys = keys_of(self.gateway.address, "default").unwrap();
        let store = until("a store", || {
            Some(self.gateway.state()["store"]["endpoint"].as_str()?.to_owned())
        });
        let mut command = Command::new(&self.python);
        command.arg(script).args(case);
        command.env("AWS_ENDPOINT_URL_S3", store);
        command.env("AWS_ENDPOINT_URL_LAMBDA", format!("http://{}", self.gateway.address));
        let gateway = format!("http://{}", self.gateway.address);
        command.env("AWS_ENDPOINT_URL_CLOUDFORMATION", gateway);
        command.env("AWS_ACCESS_KEY_ID", keys.access_key_id);
        command.env("AWS_SECRET_ACCESS_KEY", keys.secret_access_key);
        command.env("AWS_DEFAULT_REGION", "us-east-1").env("AWS_CONFIG_FILE", "/dev/null");
        command.env("AWS_EC2_METADATA_DISABLED", "true");
        command
    }

    fn run(&self, case: &[&str]) -> String {
        let output = self.client(case).output().expect("python runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "{case:?}: {}", text(&output.stderr));
        text(&output.stdout)
    }

    /// The value of `unlade_fn_notifications_total` for a result.
    fn count(&self, result: &str) -> u64 {
        let text = ask_plainly(self.metrics, "GET", "/metrics", &[], b"").unwrap().body;
        let text = String::from_utf8(text).unwrap();
        let sample = format!("unlade_fn_notifications_total{{result=\"{result}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(sample.as_str()));
        line.map_or(0, |value| value.parse().unwrap())
    }

    /// The records of a bucket's changes, in the order of their sequencers.
    fn records(&self, bucket: &str, count: usize) -> Vec<Value> {
        let dir = self.gateway.objects().join("records/seen").join(bucket);
        let names = || -> BTreeSet<PathBuf> {
            let found = std::fs::read_dir(&dir).into_iter().flatten();
            found.map(|entry| entry.unwrap().path()).collect()
        };
        let found = until("all records", || Some(names()).filter(|names| names.len() >= count));
        let read = |path: &PathBuf| serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        found.iter().map(read).collect()
    }
}

#[test]
fn configurations_are_checked_and_come_back() {
    needs_functions!();
    let Some(bed) = Bed::start() else { return };
    bed.run(&["configurations"]);
}

#[test]
fn each_kind_of_change_invokes_its_function() {
    needs_functions!();
    let Some(bed) = Bed::start() else { return };
    let versions = bed.run(&["all_events"]);
    let names = |records: &[Value]| -> Vec<String> {
        let name = |record: &Value| record["eventName"].as_str().unwrap().to_owned();
        records.iter().map(name).collect()
    };
    let all = bed.records("all", 4);
    assert_eq!(
        names(&all),
        [
            "ObjectCreated:Put",
            "ObjectCreated:Copy",
            "ObjectCreated:CompleteMultipartUpload",
            "ObjectRemoved:Delete",
        ]
    );
    let object = &all[0]["s3"]["object"];
    assert_eq!((&object["key"], &object["size"]), (&"a+b%2B%C3%BC".into(), &5.into()));
    assert_eq!(object["eTag"], "5d41402abc4b2a76b9719d911017c592");
    let keys = keys_of(bed.gateway.address, "default").unwrap();
    let principal = format!("AWS:{}", keys.access_key_id);
    assert_eq!(all[0]["userIdentity"]["principalId"], principal.as_str());
    let versioned = bed.records("versions", 3);
    assert_eq!(
        names(&versioned),
        ["ObjectCreated:Put", "ObjectRemoved:DeleteMarkerCreated", "ObjectRemoved:Delete"]
    );
    let (version, marker) = versions.trim().split_once(' ').unwrap();
    let ids: Vec<&Value> =
        versioned.iter().map(|record| &record["s3"]["object"]["versionId"]).collect();
    assert_eq!(ids, [version, marker, version]);
    assert!(bed.count("accepted") >= 7);
}

/// The function writes early: its copies are objects, and invoke the other function, once they are durable.
#[test]
fn uploads_are_copied_over_kills_of_store_and_gateway() {
    needs_functions!();
    let Some(mut bed) = Bed::start() else { return };
    let mut random = Random::new(unlade_testkit::seed());
    bed.run(&["prepare"]);
    let mut client = bed.client(&["upload", "60"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut acknowledged = Vec::new();
    let mut next_kill = 3 + random.below(8);
    for line in BufReader::new(client.stdout.take().unwrap()).lines() {
        acknowledged.push(line.unwrap());
        if acknowledged.len() >= next_kill {
            next_kill += 3 + random.below(12);
            match random.below(3) {
                0 => bed.gateway.restart(),
                _ => signal(bed.gateway.store(), "KILL"),
            }
        }
    }
    assert!(client.wait().unwrap().success());
    assert_eq!(acknowledged.len(), 60);
    for name in &acknowledged {
        let key = format!("out/{name}");
        let copy = until(&format!("a copy of {name}"), || bed.gateway.object("box", &key));
        assert_eq!(copy, b"picture");
    }
    // Each copy has invoked the other function.
    let due: BTreeSet<String> = acknowledged.iter().map(|name| format!("out/{name}")).collect();
    until("each copy is seen", || {
        let seen: BTreeSet<String> = bed.records("box", 1).iter().map(key_of).collect();
        due.is_subset(&seen).then_some(())
    });
    assert!(bed.records("box", 60).iter().all(|record| key_of(record).starts_with("out/")));
    // No event is left at the store.
    let outbox = bed.gateway.objects().join(".unlade/outbox");
    until("the outbox is empty", || {
        (std::fs::read_dir(&outbox).unwrap().count() == 0).then_some(())
    });
}

fn key_of(record: &Value) -> String {
    record["s3"]["object"]["key"].as_str().unwrap().to_owned()
}

#[test]
fn a_function_that_no_longer_permits_it_or_is_gone_is_not_invoked() {
    needs_functions!();
    let Some(bed) = Bed::start() else { return };
    bed.run(&["prepare"]);
    bed.run(&["upload", "1"]);
    until("it was invoked", || bed.gateway.object("box", "out/n-1.jpg"));
    bed.run(&["forbid"]);
    bed.run(&["upload", "1"]);
    until("it is counted", || (bed.count("denied") == 1).then_some(()));
    bed.run(&["delete", "thumb"]);
    bed.run(&["upload", "1"]);
    until("it is counted", || (bed.count("absent") == 1).then_some(()));
}

/// A bucket and its function of one stack, as SAM has them.
#[test]
fn a_stack_connects_a_bucket_and_a_function() {
    needs_functions!();
    let Some(bed) = Bed::start() else { return };
    bed.run(&["stack"]);
    let record = bed.records("uploads", 1).remove(0);
    assert_eq!(key_of(&record), "in/cat.jpg");
}
