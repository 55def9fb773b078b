//! `unlade nvme` as two processes: the target, and commands that read and write it.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use system_tests::{run, said, text, unlade};
use unlade_testkit::Random;

const NQN: &str = "nqn.2014-08.org.example:cli";

/// A target on a free port, killed on drop.
struct Target {
    child: Child,
    address: String,
}

impl Target {
    fn start(options: &[&str]) -> Target {
        Target::start_at("127.0.0.1:0", &[&["--namespace", "ram:32MiB"], options].concat())
    }

    fn start_at(listen: &str, options: &[&str]) -> Target {
        let mut child = Command::new(unlade())
            .args(["nvme", "target", "--listen", listen, "--nqn", NQN])
            .args(options)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .env("UNLADE_LOG", "info")
            .spawn()
            .expect("the target starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let address = loop {
            let line = lines.next().expect("it says where it listens").unwrap();
            if let Some((_, rest)) = line.split_once("address=") {
                break rest.split_whitespace().next().unwrap_or_default().to_owned();
            }
        };
        std::thread::spawn(move || lines.for_each(drop));
        Target { child, address }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn nvme(arguments: &[&str]) -> Output {
    run([&["nvme"], arguments].concat())
}

fn done(arguments: &[&str]) -> String {
    let output = nvme(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", said(&output));
    text(&output)
}

/// Writes a file, reads it back, and runs the program's own verification.
fn exercise(address: &str, options: &[&str], directory: &Path) {
    let bytes = Random::new(5).bytes(5 << 20);
    let (source, copy) = (directory.join("in"), directory.join("out"));
    fs::write(&source, &bytes).unwrap();
    let with = |arguments: &[&str]| done(&[arguments, options].concat());
    let (source, copy_name) = (source.to_str().unwrap(), copy.to_str().unwrap());
    with(&["write", address, "--offset", "1MiB", "--in", source]);
    with(&["read", address, "--offset", "1MiB", "--length", "5MiB", "--out", copy_name]);
    assert!(fs::read(&copy).unwrap() == bytes);
    for pattern in ["randread", "randwrite", "mix", "read", "write"] {
        let mut bench = vec!["bench", address, "--pattern", pattern, "--overwrite", "--verify"];
        bench.extend(["--span", "8MiB", "--duration", "200ms", "--queues", "2", "--json"]);
        let line: serde_json::Value = serde_json::from_str(&with(&bench)).unwrap();
        let metrics = &line["metrics"];
        let count = metrics["reads"].as_u64().unwrap() + metrics["writes"].as_u64().unwrap();
        assert!(count > 0 && metrics["retries"] == 0, "{line}");
        assert_eq!(metrics["writes"] == 0, pattern.contains("read"), "{line}");
    }
}

#[test]
fn two_commands_over_tcp() {
    let target = Target::start(&[]);
    let directory = tempfile::tempdir().unwrap();
    let base = format!("nvme+tcp://{}", target.address);
    assert!(done(&["discover", &base]).contains(NQN));
    let shown = done(&["connect", &base, "--digests", "--queues", "3"]);
    assert!(shown.contains("3 I/O queues, header digest yes, data digest yes"), "{shown}");
    assert!(shown.contains("1: 32MiB"), "{shown}");
    exercise(&format!("{base}/1"), &["--digests"], directory.path());
    exercise(&format!("{base}/1?nqn={NQN}"), &[], directory.path());
}

#[test]
fn two_commands_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let (key, other) = (directory.path().join("key"), directory.path().join("other"));
    let (key, other) = (key.to_str().unwrap(), other.to_str().unwrap());
    done(&["key", "--out", key]);
    done(&["key", "--out", other]);
    assert!(!nvme(&["key", "--out", key]).status.success(), "a key is not overwritten");
    let target = Target::start(&["--psk-file", key]);
    let address = format!("nvme+tls://{}/1?nqn={NQN}", target.address);
    exercise(&address, &["--psk-file", key, "--digests"], directory.path());
    exercise(&address, &["--psk-file", key, "--psk-identity", "0"], directory.path());
    let refused = nvme(&["connect", &address, "--psk-file", other]);
    assert!(!refused.status.success());
    assert!(said(&refused).contains("the keys differ"), "{}", said(&refused));
    let plain = nvme(&["connect", &format!("nvme+tcp://{}", target.address), "--nqn", NQN]);
    assert!(!plain.status.success());
}

fn explained(arguments: &[&str], words: &str) {
    let output = nvme(arguments);
    assert!(!output.status.success(), "{arguments:?}: {}", text(&output));
    assert!(said(&output).contains(words), "{arguments:?}: {}", said(&output));
}

/// Returns a private loopback address, whose ports stay free between two targets.
fn own_address() -> String {
    let [.., high, low] = std::process::id().to_be_bytes();
    format!("127.95.{high}.{low}:0")
}

#[test]
fn digests_that_the_target_declines_are_not_dropped_silently() {
    let target = Target::start(&["--digests", "none"]);
    let base = format!("nvme+tcp://{}", target.address);
    let address = format!("{base}/1");
    let declines = "declines digests of headers and of data";
    explained(&["connect", &base, "--nqn", NQN, "--digests"], declines);
    explained(&["read", &address, "--digests", "--out", "/dev/null"], declines);
    explained(&["connect", &base, "--nqn", NQN, "--data-digest"], "declines digests of data");
    let output = nvme(&["connect", &base, "--digests-if-offered"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains(declines), "{}", said(&output));
    assert!(text(&output).contains("header digest no, data digest no"), "{}", text(&output));
}

#[test]
fn a_missing_namespace_is_not_an_invalid_format() {
    let target = Target::start(&["--namespace", "ram:1MiB"]);
    let address = format!("nvme+tcp://{}/7", target.address);
    explained(&["read", &address, "--out", "/dev/null"], "no namespace 7; there are 1, 2");
}

#[test]
fn a_refused_connection_is_not_a_tls_handshake() {
    let target = Target::start_at(&own_address(), &["--namespace", "ram:1MiB"]);
    let address = target.address.clone();
    drop(target);
    let output = nvme(&["connect", &format!("nvme+tcp://{address}"), "--nqn", NQN]);
    assert!(!output.status.success());
    let said = said(&output);
    assert!(said.contains(&format!("connection refused by {address}")), "{said}");
    assert!(!said.contains("TLS"), "{said}");
}

/// A command with data on standard output and lines on standard error, which are read one by one.
/// Killed on drop.
struct Running {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStderr>>,
}

impl Running {
    fn start(arguments: &[&str]) -> Running {
        let mut command = Command::new(unlade());
        command.arg("nvme").args(arguments).stdin(Stdio::null());
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        // The first byte shows that the command is running.
        let mut out = child.stdout.take().expect("a pipe");
        out.read_exact(&mut [0]).expect("it gives something");
        std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        Running { child, lines }
    }

    /// Returns the next line with these words; fails if the command ends.
    fn wait_for(&mut self, words: &str) -> String {
        let line = self.lines.by_ref().map_while(Result::ok).find(|line| line.contains(words));
        line.unwrap_or_else(|| panic!("it ended without a word of {words:?}"))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_lost_target_is_told_and_not_waited_for_in_silence() {
    // Too large to be read before the target is gone; untouched memory is not allocated.
    let target = Target::start_at(&own_address(), &["--namespace", "ram:1TiB"]);
    let peer = target.address.clone();
    let address = format!("nvme+tcp://{peer}/1?nqn={NQN}");
    let mut ended = Running::start(&["read", &address, "--out", "-", "--reconnects", "2"]);
    let mut read = Running::start(&["read", &address, "--out", "-"]);
    drop(target);
    let line = read.wait_for("lost");
    assert!(line.contains(&format!("connection to {peer} lost")), "{line}");
    assert!(line.contains("20 times within 1m 11s"), "{line}");
    assert!(ended.wait_for("lost").contains("2 times"));
    assert!(ended.wait_for("given up").contains(&format!("connection refused by {peer}")));
    assert!(!ended.child.wait().unwrap().success());
    let _target = Target::start_at(&peer, &["--namespace", "ram:1TiB"]);
    let line = read.wait_for("again after");
    assert!(line.contains(&format!("connected to {peer} again")), "{line}");
}

#[test]
fn mistakes_are_explained() {
    explained(&["connect", "127.0.0.1:4420"], "nvme+tcp://");
    explained(&["connect", "nvme+tls://127.0.0.1"], "--nqn");
    explained(&["connect", "nvme+tls://127.0.0.1?nqn=nqn.a"], "--psk-file");
    explained(&["connect", "nvme+tcp://127.0.0.1:1", "--nqn", "nqn.a"], "127.0.0.1:1");
    let target = Target::start(&[]);
    let base = format!("nvme+tcp://{}", target.address);
    explained(&["connect", &base, "--nqn", "nqn.other"], "subsystem's NQN");
    explained(&["read", &base, "--out", "/dev/null"], "names no namespace");
    let address = format!("{base}/1");
    explained(&["bench", &address, "--pattern", "write"], "--overwrite");
    explained(&["read", &address, "--offset", "33MiB", "--out", "/dev/null"], "beyond");
    explained(&["write", &address, "--offset", "1", "--in", "/dev/null"], "whole blocks");
}
