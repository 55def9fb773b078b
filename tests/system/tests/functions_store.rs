//! The built-in store as a process: its system calls before a response.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use system_tests::functions::ask;
use system_tests::unlade;

/// A store under strace; both end together.
struct Traced {
    strace: Child,
    trace: PathBuf,
}

impl Drop for Traced {
    fn drop(&mut self) {
        let text = std::fs::read_to_string(&self.trace).unwrap_or_default();
        // Every line begins with a process ID; the first one is the store's.
        match text.split(' ').next().filter(|pid| pid.parse::<u32>().is_ok()) {
            Some(pid) => drop(Command::new("kill").args(["-KILL", pid]).status()),
            None => drop(self.strace.kill()),
        }
        let _ = self.strace.wait();
    }
}

/// Finds the first line behind `from` that contains all parts.
fn find(lines: &[&str], from: usize, parts: &[&str]) -> usize {
    let has_all = |line: &&str| parts.iter().all(|part| line.contains(part));
    let found = lines[from..].iter().position(has_all);
    from + found.unwrap_or_else(|| panic!("no {parts:?} behind line {from}:\n{}", lines.join("\n")))
}

/// The order is: sync of the bytes, sync of the name, response.
#[test]
fn an_acknowledged_object_is_synced() {
    let can_trace = Command::new("strace").args(["-f", "true"]).stderr(Stdio::null()).status();
    if !can_trace.is_ok_and(|status| status.success()) {
        println!("skipped: strace does not work here");
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let trace = dir.path().join("trace");
    let calls = "trace=fsync,fdatasync,rename,renameat,renameat2,unlink,mkdir,write,writev,sendto";
    let mut command = Command::new("strace");
    command.args(["-f", "-y", "-e", calls, "-o"]).arg(&trace).arg(unlade());
    command.args(["fn", "store", "--listen", "127.0.0.1:0", "--die-with-parent", "--dir"]);
    command.arg(dir.path().join("objects")).stdout(Stdio::piped());
    let mut store = Traced { strace: command.spawn().expect("strace"), trace: trace.clone() };
    let stdout = store.strace.stdout.take().expect("its output");
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).expect("its address");
    let address = line.trim().trim_start_matches("http://").parse().expect("an address");
    for (method, path, body) in [
        ("PUT", "/box", ""),
        ("PUT", "/box/a/k", "once"),
        ("PUT", "/box/a/k", "again"),
        ("DELETE", "/box/a/k", ""),
    ] {
        let answer = ask(address, method, path, &[], body.as_bytes()).expect("an answer");
        assert!(answer.status < 300, "{method} {path}: {answer:?}");
    }
    drop(store);
    let text = std::fs::read_to_string(&trace).expect("a trace");
    check(&text.lines().collect::<Vec<_>>(), dir.path());
}

fn check(lines: &[&str], dir: &Path) {
    let root = dir.join("objects").display().to_string();
    let made = find(lines, 0, &["mkdir(", "/objects/box\""]);
    let synced = find(lines, made, &["fsync(", &format!("<{root}>")]);
    let mut from = find(lines, synced, &["HTTP/1.1 200"]);
    for _ in 0..2 {
        let placed = find(lines, from, &["rename(", &format!("{root}/box/a/k\"")]);
        let temporary = lines[placed].split('"').nth(1).expect("its first name");
        let bytes = find(lines, from, &["fsync(", &format!("<{temporary}>")]);
        assert!(bytes < placed, "the bytes are synced before they have their name");
        let said = find(lines, from, &["fsync(", "/.unlade/about/box/"]);
        let named = find(lines, from, &["fsync(", "/.unlade/about/box>"]);
        assert!(said.max(named) < placed, "what is said of it is there before");
        let durable = find(lines, placed, &["fsync(", &format!("<{root}/box/a>")]);
        from = find(lines, durable, &["HTTP/1.1 200"]);
    }
    let gone = find(lines, from, &["unlink(", &format!("{root}/box/a/k\"")]);
    let durable = find(lines, gone, &["fsync(", &format!("<{root}/box/a>")]);
    let answered = find(lines, from, &["HTTP/1.1 204"]);
    assert!(durable < answered, "a removal is durable before it is answered");
}
