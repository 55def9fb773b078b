//! `unlade fn worker` and `unlade fn store` as processes that are stopped and killed.

#[path = "../../../crates/functions/worker/tests/worker/bed/gateway.rs"]
#[allow(dead_code, reason = "the worker's own tests use all of it")]
mod gateway;
#[path = "../../../crates/functions/worker/tests/worker/bed/guest.rs"]
#[allow(dead_code, reason = "the worker's own tests use all of it")]
mod guest;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gateway::Gateway;
use guest::Guest;
use serde_json::{Value, json};
use system_tests::unlade;
use unlade_guest_protocol::control::{ControlHead, WriteMode};
use unlade_guest_protocol::descriptor::PENDING;

/// A process, killed on drop.
struct Process(Child);

impl Process {
    fn signal(&self, name: &str) {
        let pid = self.0.id().to_string();
        let status = Command::new("kill").arg(format!("-{name}")).arg(pid).status();
        assert!(status.unwrap().success());
    }

    fn exit_code(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "it ends");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already; SIGKILL also ends a stopped one.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Host {
    store: Process,
    worker: Process,
    gateway: Gateway,
    dir: tempfile::TempDir,
}

fn worker(dir: &Path) -> (Process, Gateway) {
    let control = dir.join("control");
    let _ = std::fs::remove_file(&control);
    let mut command = Command::new(unlade());
    command.args(["fn", "worker", "--config"]).arg(dir.join("worker.toml"));
    let process = Process(command.stdin(Stdio::null()).spawn().expect("the worker starts"));
    let begin = Instant::now();
    while std::os::unix::net::UnixStream::connect(&control).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(30), "the worker listens");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut gateway = Gateway::connect(&control);
    gateway.role(
        1,
        json!({"statements": [
        {"effect": "allow", "actions": ["*"], "resources": ["*"]}]}),
    );
    (process, gateway)
}

impl Host {
    fn start() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "s/e+c=ret\n").unwrap();
        let mut command = Command::new(unlade());
        command.args(["fn", "store", "--listen", "127.0.0.1:0", "--access-key", "AKID"]);
        command.arg("--dir").arg(dir.path().join("objects"));
        command.arg("--secret-key-file").arg(&secret).stdout(Stdio::piped());
        let mut store = Process(command.stdin(Stdio::null()).spawn().expect("the store starts"));
        let mut url = String::new();
        BufReader::new(store.0.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let text = format!(
            "control = \"{}\"\n[store]\nendpoint = \"{}\"\n[store.credentials]\nfrom = \"keys\"\n\
             access_key_id = \"AKID\"\nsecret_access_key = \"s/e+c=ret\"\n[tenant]\n\
             journal = \"{}\"\n[log]\nlevel = \"warn\"\n",
            dir.path().join("control").display(),
            url.trim(),
            dir.path().join("journal").display(),
        );
        std::fs::write(dir.path().join("worker.toml"), text).unwrap();
        let (worker, gateway) = worker(dir.path());
        Host { store, worker, gateway, dir }
    }

    /// Returns a guest within an invocation, after the worker has measured the bucket's latency.
    fn invoked(&mut self, writes: WriteMode) -> Guest {
        let mut guest = self.gateway.attach(1);
        guest.call("CreateBucket", json!({"Bucket": "box"}), b"");
        guest.call("PutObject", name("first"), b"1").done();
        self.gateway.invoke(&guest, "i", writes, b"{}");
        guest.invoked();
        guest
    }

    fn file(&self, key: &str) -> PathBuf {
        self.dir.path().join("objects/box").join(key)
    }
}

fn name(key: &str) -> Value {
    json!({"Bucket": "box", "Key": key})
}

#[test]
fn an_early_reply_survives_the_worker() {
    let mut host = Host::start();
    let mut guest = host.invoked(WriteMode::EarlyReply);
    host.store.signal("STOP");
    let body = vec![7; 150_000];
    let put = guest.call("PutObject", name("k"), &body);
    assert_eq!(put.flags, PENDING);
    put.done();
    guest.reply("i", b"");
    assert!(host.gateway.settle("i").is_empty());
    host.worker.signal("KILL");
    assert_eq!(host.worker.exit_code(), None);
    host.store.signal("CONT");
    let (again, mut gateway) = worker(host.dir.path());
    host.worker = again;
    let mut guest = gateway.attach(1);
    assert!(guest.call("GetObject", name("k"), b"").body == body);
}

#[test]
fn nobody_hears_of_success_when_the_worker_is_killed_before_a_write_is_durable() {
    let mut host = Host::start();
    let mut guest = host.invoked(WriteMode::DurableReply);
    host.store.signal("STOP");
    let put = guest.call("PutObject", name("k"), b"not yet");
    assert_eq!(put.flags, PENDING);
    guest.reply("i", b"");
    let replied = host.gateway.replied("i");
    assert!(matches!(replied.said, ControlHead::Replied { pending_writes: 1, .. }));
    host.worker.signal("KILL");
    assert_eq!(host.worker.exit_code(), None);
    assert_eq!(host.gateway.rest(), [], "it must not be settled");
}

#[test]
fn a_worker_that_is_told_to_end_writes_what_is_pending_first() {
    let mut host = Host::start();
    let mut guest = host.invoked(WriteMode::DurableReply);
    host.store.signal("STOP");
    let put = guest.call("PutObject", name("k"), b"in time");
    assert_eq!(put.flags, PENDING);
    host.worker.signal("TERM");
    assert!(!host.file("k").exists());
    host.store.signal("CONT");
    assert_eq!(host.worker.exit_code(), Some(0));
    assert_eq!(std::fs::read(host.file("k")).unwrap(), b"in time");
}

#[test]
fn a_configuration_that_is_wrong_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("worker.toml");
    std::fs::write(&file, "control = \"/run/x\"\n[store]\nendpont = \"http://a\"\n").unwrap();
    let mut command = Command::new(unlade());
    let output = command.args(["fn", "worker", "--check", "--config"]).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("did you mean `endpoint`?"), "{said}");
}
