//! `unlade fn serve` with one I/O worker for all tenants.

use std::thread::JoinHandle;

use serde_json::json;
use system_tests::functions::{Answer, Gateway, ask, invoke, signal, until};
use system_tests::needs_functions;

/// Reads an object and writes its copy in upper case, in the bucket that the event names.
const UPPER: &str = r#"
import boto3
s3 = boto3.client("s3")

def handler(event, context):
    bucket, key = event["bucket"], event["key"]
    body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    s3.put_object(Bucket=bucket, Key=key + ".up", Body=body.upper())
    return body.decode()
"#;

/// Returns a role for one bucket.
fn role(bucket: &str) -> String {
    format!(
        "[[role.statements]]\neffect = \"allow\"\nactions = [\"s3:GetObject\", \
         \"s3:PutObject\"]\nresources = [\"{bucket}/*\"]\n"
    )
}

/// Starts a gateway with two tenants, each with a function and a bucket, and one worker.
fn pair(more: &str, manifest: &str) -> Gateway {
    let gateway = Gateway::start(&format!("workers = \"shared\"\n{more}[tenant.other]\n"));
    for (tenant, bucket) in [("default", "box"), ("other", "others")] {
        gateway.bucket(bucket);
        gateway.put(bucket, "k", bucket.as_bytes());
        let role = role(bucket);
        let manifest = format!("tenant = \"{tenant}\"\nhints = [\"{bucket}/k\"]\n{manifest}{role}");
        gateway.deploy(bucket, &manifest, UPPER);
    }
    gateway
}

fn read(gateway: &Gateway, function: &str, bucket: &str) -> Answer {
    gateway.invoke(function, &json!({"bucket": bucket, "key": "k"}))
}

#[test]
fn tenants_of_one_worker_are_told_apart_and_served_again_after_its_end() {
    needs_functions!();
    let gateway = pair("", "");
    let serves = || {
        for (bucket, other) in [("box", "others"), ("others", "box")] {
            let answer = read(&gateway, bucket, bucket);
            assert_eq!(answer.json(), bucket, "{answer:?}");
            let copy = gateway.object(bucket, "k.up").unwrap();
            assert_eq!(copy, bucket.to_uppercase().as_bytes());
            let denied = read(&gateway, bucket, other);
            let said = denied.json()["errorMessage"].as_str().unwrap_or_default().to_owned();
            assert!(said.contains("AccessDenied"), "{denied:?}");
        }
    };
    serves();
    let worker = gateway.worker("default");
    assert_eq!(gateway.worker("other"), worker);
    signal(worker, "KILL");
    let another = || {
        let pids = ["default", "other"].map(|tenant| gateway.worker(tenant));
        (pids[0] == pids[1] && pids[0] != worker).then_some(())
    };
    until("another worker", another);
    for bucket in ["box", "others"] {
        until("it is served again", || read(&gateway, bucket, bucket).is_success().then_some(()));
    }
    serves();
}

#[test]
fn early_replies_of_all_tenants_outlive_a_shared_worker() {
    needs_functions!();
    let gateway = pair("", "writes = \"early-reply\"\n");
    for bucket in ["box", "others"] {
        // The worker measures the bucket's latency and caches the object.
        assert!(read(&gateway, bucket, bucket).is_success());
        std::fs::remove_file(gateway.objects().join(bucket).join("k.up")).unwrap();
    }
    // Cached objects are served without the store; writes wait for it.
    let writer = "import boto3\ns3 = boto3.client('s3')\ndef handler(event, context):\n    \
                  s3.put_object(Bucket=event['bucket'], Key='early', Body=b'x' * 70000)\n";
    for (tenant, bucket) in [("default", "box"), ("other", "others")] {
        let manifest = format!("tenant = \"{tenant}\"\nwrites = \"early-reply\"\n");
        gateway.deploy(&format!("{bucket}-writer"), &manifest, writer);
    }
    signal(gateway.store(), "STOP");
    for bucket in ["box", "others"] {
        let answer = gateway.invoke(&format!("{bucket}-writer"), &json!({"bucket": bucket}));
        assert!(answer.is_success(), "{answer:?}");
        assert!(gateway.object(bucket, "early").is_none());
    }
    signal(gateway.worker("default"), "KILL");
    signal(gateway.store(), "CONT");
    for bucket in ["box", "others"] {
        until("it is written", || gateway.object(bucket, "early").filter(|o| o.len() == 70_000));
    }
}

#[test]
fn tenants_come_and_go_without_another_worker() {
    needs_functions!();
    let mut gateway = pair("", "");
    let worker = gateway.worker("default");
    let third = |gateway: &Gateway| {
        let manifest = format!("tenant = \"third\"\n{}", role("box"));
        gateway.try_deploy("third", &manifest, UPPER).status.success()
    };
    assert!(!third(&gateway), "there is no such tenant yet");
    gateway.reload("workers = \"shared\"\n[tenant.other]\n[tenant.third]\n");
    until("it is there", || third(&gateway).then_some(()));
    assert_eq!(read(&gateway, "third", "box").json(), "box");
    // A tenant stays until its last function is removed.
    gateway.reload("workers = \"shared\"\n[tenant.other]\n");
    assert_eq!(read(&gateway, "third", "box").json(), "box");
    let gone = ask(gateway.address, "DELETE", "/2015-03-31/functions/third", &[], b"").unwrap();
    assert_eq!(gone.status, 204);
    gateway.reload("workers = \"shared\"\n[tenant.other]\n");
    let control = gateway.dir.path().join("tenants/third/control");
    until("it is gone", || (!control.exists()).then_some(()));
    // Changed limits restart the tenant; the others are not affected.
    gateway.reload("workers = \"shared\"\n[tenant.other.limits]\nbody_bytes_max = \"1MiB\"\n");
    until("it is served again", || read(&gateway, "others", "others").is_success().then_some(()));
    assert_eq!(read(&gateway, "box", "box").json(), "box");
    assert_eq!(gateway.worker("default"), worker);
}

#[test]
fn one_tenants_flood_leaves_others_their_turns() {
    needs_functions!();
    let gateway = pair("", "concurrency = 8\n");
    let flood = r#"
import boto3, threading
s3 = boto3.client("s3")

def handler(event, context):
    def work():
        for _ in range(event["rounds"]):
            s3.list_objects_v2(Bucket="box")
    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return len(threads)
"#;
    gateway.deploy("flood", "timeout = \"1m\"\n", flood);
    let address = gateway.address;
    let call = move || invoke(address, "flood", &json!({"rounds": 60}), &[]);
    let floods: Vec<JoinHandle<_>> = (0..4).map(|_| std::thread::spawn(call)).collect();
    let mut served = 0;
    while floods.iter().any(|flood| !flood.is_finished()) {
        let answer = read(&gateway, "others", "others");
        assert_eq!(answer.json(), "others", "{answer:?}");
        served += 1;
    }
    for flood in floods {
        assert_eq!(flood.join().unwrap().unwrap().json(), 8);
    }
    println!("{served} invocations beside the flood");
    assert!(served > 0);
}

/// The worker's metrics have a label for the tenant.
#[test]
fn metrics_name_the_tenant() {
    needs_functions!();
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap()
    };
    let gateway = pair(&format!("workers_admin = \"{port}\"\n"), "");
    for _ in 0..3 {
        assert!(read(&gateway, "others", "others").is_success());
    }
    let text = ask(port, "GET", "/metrics", &[], b"").unwrap();
    let text = String::from_utf8(text.body).unwrap();
    let greetings = |tenant: &str| {
        let start = format!("unlade_hostio_greetings_total{{tenant=\"{tenant}\"}} ");
        let line = text.lines().find_map(|line| line.strip_prefix(&start));
        line.and_then(|count| count.parse::<u64>().ok())
    };
    assert!(greetings("other").is_some_and(|count| count > 0), "{text}");
    assert!(greetings("default").is_some(), "{text}");
    assert!(text.ends_with("# EOF\n"));
}
