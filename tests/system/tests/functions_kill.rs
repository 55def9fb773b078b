//! Kills every process of a function at every stage of an invocation: there is no success without
//! its object, every failure is a clear error, and no tenant receives another's bytes.
//!
//! `UNLADE_KILL_RUNS` is the number of runs of each stage.

use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use system_tests::functions::{Answer, Gateway, invoke, signal, until};
use system_tests::needs_functions;
use unlade_testkit::Random;

/// Reads a token and writes a token; pauses or kills itself on demand.
const TOKEN: &str = r#"
import os, threading, time
import boto3
s3 = boto3.client("s3")

def at(event, stage):
    if event.get("die") == stage:
        os.kill(os.getpid(), 9)
    if event.get("pause") == stage:
        time.sleep(0.02)

def handler(event, context):
    at(event, "begin")
    if "in" in event:
        body = s3.get_object(Bucket=event["bucket"], Key=event["in"])["Body"].read()
        if body != event["bucket"].encode() * 5000:
            raise AssertionError("other bytes")
    at(event, "read")
    s3.put_object(Bucket=event["bucket"], Key=event["out"], Body=event["token"].encode() * 1000)
    at(event, "written")
    if event.get("die") == "settling":
        # The handler returns before that.
        threading.Timer(0.005, os.kill, (os.getpid(), 9)).start()
    return event["token"]
"#;
/// Error types that a caller may receive after a kill.
const ERRORS: [&str; 11] = [
    "Runtime.ExitError",
    "Unlade.WorkerLost",
    "Unlade.WriteFailed",
    "ServiceException",
    "InvalidRuntimeException",
    "TooManyRequestsException",
    // Error of botocore without a store.
    "EndpointConnectionError",
    "ConnectionClosedError",
    "IncompleteReadError",
    "ResponseStreamingError",
    "ClientError",
];
const STAGES: [&str; 4] = ["begin", "read", "written", "settling"];
const VICTIMS: [&str; 4] = ["instance", "worker", "store", "gateway"];

struct Bed {
    gateway: Gateway,
    /// True if both tenants use the same worker.
    is_shared: bool,
    random: Random,
    runs: u64,
    successes: u64,
    failures: u64,
}

impl Bed {
    fn new(random: Random) -> Bed {
        Bed::with(random, false)
    }

    fn with(random: Random, is_shared: bool) -> Bed {
        let workers = if is_shared { "workers = \"shared\"\n" } else { "" };
        let gateway = Gateway::start(&format!("{workers}[tenant.other]\n"));
        for (bucket, tenant) in [("box", "default"), ("others", "other")] {
            gateway.bucket(bucket);
            gateway.put(bucket, "in", bucket.repeat(5000).as_bytes());
            let manifest = format!("tenant = \"{tenant}\"\nhints = [\"{bucket}/in\"]\n");
            gateway.deploy(bucket, &manifest, TOKEN);
            // The worker measures the bucket's latency.
            let event = json!({"bucket": bucket, "out": "first", "token": "t"});
            assert!(gateway.invoke(bucket, &event).is_success());
        }
        let is_one = gateway.worker("default") == gateway.worker("other");
        assert_eq!(is_one, is_shared, "one process for both: {is_shared}");
        Bed { gateway, is_shared, random, runs: 0, successes: 0, failures: 0 }
    }

    /// Performs one kill and compares the caller's result with the store.
    fn run(&mut self, stage: &str, victim: &str) {
        self.runs += 1;
        let token = format!("{:016x}", self.random.next());
        let out = format!("out-{token}");
        let mut event = json!({"bucket": "box", "out": out, "token": token});
        match (stage, victim) {
            ("settling", "instance") => event["die"] = stage.into(),
            ("settling", _) => {}
            (_, "instance") => {
                event["in"] = "in".into();
                event["die"] = stage.into();
            }
            _ => {
                event["in"] = "in".into();
                event["pause"] = stage.into();
            }
        }
        let address = self.gateway.address;
        if stage == "settling" {
            signal(self.gateway.store(), "STOP");
        }
        let caller = std::thread::spawn(move || invoke(address, "box", &event, &[]));
        let beside = self.is_shared.then(|| self.beside());
        let delay = Duration::from_micros(self.random.below(30_000));
        std::thread::sleep(delay);
        let stopped = (stage == "settling").then(|| self.gateway.store());
        self.kill(victim);
        if let Some(pid) = stopped.filter(|_| victim != "store") {
            // If the gateway was killed, the process was asked to end.
            let _ = std::process::Command::new("kill").args(["-CONT", &pid.to_string()]).output();
        }
        if victim == "gateway" {
            self.gateway.ended();
            self.gateway.restart();
        }
        let answer = caller.join().expect("the caller lives").ok();
        self.judge(stage, victim, answer.as_ref(), ("box", &token, &out));
        if let Some((token, caller)) = beside {
            let answer = caller.join().expect("the caller lives").ok();
            self.judge(stage, victim, answer.as_ref(), ("others", &token, "beside"));
        }
        self.others();
    }

    /// Starts a concurrent invocation of another tenant; returns its token and its caller.
    fn beside(&mut self) -> (String, JoinHandle<std::io::Result<Answer>>) {
        let token = format!("{:016x}", self.random.next());
        let event = json!({"bucket": "others", "in": "in", "out": "beside", "token": token});
        let address = self.gateway.address;
        (token, std::thread::spawn(move || invoke(address, "others", &event, &[])))
    }

    /// Kills the victim; an instance kills itself.
    fn kill(&self, victim: &str) {
        match victim {
            "worker" => signal(self.gateway.worker("default"), "KILL"),
            "store" => signal(self.gateway.store(), "KILL"),
            "gateway" => signal(self.gateway.pid(), "KILL"),
            _ => {}
        }
    }

    fn judge(
        &mut self,
        stage: &str,
        victim: &str,
        answer: Option<&Answer>,
        (bucket, token, out): (&str, &str, &str),
    ) {
        let context = format!("{victim} killed at {stage}, run {}: {answer:?}", self.runs);
        let object = self.gateway.object(bucket, out);
        match answer {
            Some(answer) if answer.is_success() => {
                self.successes += 1;
                assert_eq!(answer.json(), token, "{context}");
                let due = token.repeat(1000).into_bytes();
                assert!(object.is_some_and(|found| found == due), "no object: {context}");
            }
            Some(answer) => {
                self.failures += 1;
                assert!(ERRORS.contains(&answer.error().as_str()), "{context}");
            }
            // A broken connection is a valid error.
            None => {
                self.failures += 1;
                assert_eq!(victim, "gateway", "{context}");
            }
        }
    }

    /// Asserts that another tenant's function works after recovery and reads its own bytes.
    fn others(&mut self) {
        let token = format!("{:016x}", self.random.next());
        let event = json!({"bucket": "others", "in": "in", "out": "o", "token": token});
        let answer = until("the others are served", || {
            let answer = self.gateway.try_invoke("others", &event, &[]).ok()?;
            let seen = String::from_utf8_lossy(&answer.body).into_owned();
            assert!(!seen.contains("other bytes"), "{seen}");
            answer.is_success().then_some(answer)
        });
        assert_eq!(answer.json(), Value::from(token));
    }
}

fn runs() -> u64 {
    std::env::var("UNLADE_KILL_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(16)
}

fn kill_at(stage: &str) {
    needs_functions!();
    let mut bed = Bed::new(Random::new(unlade_testkit::seed()));
    for run in 0..runs() {
        let victim = VICTIMS[run as usize % VICTIMS.len()];
        bed.run(stage, victim);
    }
    println!("{stage}: {} runs, {} successes, {} errors", bed.runs, bed.successes, bed.failures);
    assert!(bed.runs < 8 || bed.failures > 0, "nothing was hit");
}

#[test]
fn no_success_without_its_object_when_killed_at_the_beginning() {
    kill_at(STAGES[0]);
}

#[test]
fn no_success_without_its_object_when_killed_behind_a_read() {
    kill_at(STAGES[1]);
}

#[test]
fn no_success_without_its_object_when_killed_behind_a_write() {
    kill_at(STAGES[2]);
}

#[test]
fn no_success_without_its_object_when_killed_while_settling() {
    kill_at(STAGES[3]);
}

/// Kills every victim at every stage, with one worker and concurrent calls of both tenants.
#[test]
fn no_success_without_its_object_when_a_shared_worker_is_killed() {
    needs_functions!();
    let mut bed = Bed::with(Random::new(unlade_testkit::seed()), true);
    for run in 0..runs() as usize {
        let stage = STAGES[run / VICTIMS.len() % STAGES.len()];
        bed.run(stage, VICTIMS[run % VICTIMS.len()]);
    }
    println!("shared: {} runs, {} successes, {} errors", bed.runs, bed.successes, bed.failures);
    assert!(bed.runs < 8 || bed.failures > 0, "nothing was hit");
}

#[test]
fn pending_writes_survive_their_instance() {
    needs_functions!();
    let bed = Bed::new(Random::new(unlade_testkit::seed()));
    let address = bed.gateway.address;
    signal(bed.gateway.store(), "STOP");
    let event = json!({"bucket": "box", "out": "kept", "token": "t", "die": "written"});
    let answer = invoke(address, "box", &event, &[]).unwrap();
    assert_eq!(answer.error(), "Runtime.ExitError");
    assert!(bed.gateway.object("box", "kept").is_none());
    signal(bed.gateway.store(), "CONT");
    let kept =
        until("it is written", || bed.gateway.object("box", "kept").filter(|o| o.len() > 999));
    assert_eq!(kept, b"t".repeat(1000));
}
