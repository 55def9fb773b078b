//! SIGHUP to services, and their log: changed keys that wait for a restart are named, and a service
//! that has nothing to reload continues.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

const PATIENCE: Duration = Duration::from_secs(30);

/// A running service, and the lines of its log. It is killed when dropped.
struct Service {
    child: Child,
    log: Receiver<String>,
}

impl Service {
    fn start(args: &[&str]) -> Service {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unlade"));
        command.args(args).env_remove("UNLADE_LOG").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let log = lines(child.stderr.take().unwrap());
        Service { child, log }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends SIGHUP when the process handles it: before, it would end the process.
    fn hang_up(&self) {
        let (path, start) = (format!("/proc/{}/status", self.child.id()), Instant::now());
        loop {
            let status = std::fs::read_to_string(&path).unwrap();
            let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
            // SIGHUP is signal 1: the lowest bit (proc(5)).
            if u64::from_str_radix(caught.trim(), 16).unwrap() & 1 == 1 {
                return self.signal(Signal::HUP);
            }
            assert!(start.elapsed() < PATIENCE, "SIGHUP is not handled");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a line with all of `words`.
    fn wait_for(&self, words: &[&str]) {
        let (deadline, mut seen) = (Instant::now() + PATIENCE, String::new());
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.log.recv_timeout(left) {
                Ok(line) if words.iter().all(|word| line.contains(word)) => return,
                Ok(line) => seen.push_str(&format!("{line}\n")),
                Err(error) => panic!("no line with {words:?}: {error}\n{seen}"),
            }
        }
    }

    /// Ends it in order.
    fn end(mut self) {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(log: ChildStderr) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_balancer_names_the_changed_keys_that_wait_for_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("lb.toml");
    let rest = "[[listener]]\naddress = \"127.0.0.1:0\"\n[[route]]\npool = \"p\"\n\
                [pool.p]\nservers = [\"127.0.0.1:1\"]\n";
    write(&file, &format!("workers = 1\n{rest}"));
    let service = Service::start(&["lb", "--config", file.to_str().unwrap()]);
    service.wait_for(&["listening"]);
    let rest = rest.replace(":0\"", ":0\"\nfreebind = true");
    write(&file, &format!("workers = 1\ndrain_timeout = \"7s\"\n{rest}[log]\nlevel = \"warn\"\n"));
    service.hang_up();
    for key in ["\"log\"", "drain_timeout", "freebind"] {
        service.wait_for(&["WARN", "until a restart", key]);
    }
    // The old filter of the log is still in force: this line is not a warning.
    service.wait_for(&["INFO", "configuration reloaded"]);
    service.end();
}

#[test]
fn a_backend_names_ineffective_keys_and_those_that_wait_for_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backend.toml");
    let root = directory.path().display().to_string();
    let least = format!("http = \"127.0.0.1:0\"\nroot = \"{root}\"\nworkers = 1\n");
    write(&file, &format!("{least}idle_return = \"1s\"\n"));
    let service = Service::start(&["backend", "--config", file.to_str().unwrap()]);
    service.wait_for(&["WARN", "idle_return", "has no effect"]);
    service.wait_for(&["serving objects"]);
    write(&file, &format!("{least}adoptions_max = 7\nlease = \"9s\"\n"));
    service.hang_up();
    for key in ["adoptions_max", "lease"] {
        service.wait_for(&["WARN", "until a restart", key]);
    }
    service.end();
}

#[test]
fn a_worker_and_a_store_have_nothing_to_reload_and_continue() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("worker.toml");
    let control = directory.path().join("control");
    write(
        &file,
        &format!(
            "control = \"{}\"\n[store]\nendpoint = \"http://127.0.0.1:1\"\n\
             credentials = {{ from = \"anonymous\" }}\n",
            control.display()
        ),
    );
    let worker = Service::start(&["fn", "worker", "--config", file.to_str().unwrap()]);
    worker.wait_for(&["worker", "control="]);
    worker.hang_up();
    worker.wait_for(&["WARN", "SIGHUP", "nothing to reload"]);
    worker.end();

    let objects = directory.path().join("objects");
    let mut command = Command::new(env!("CARGO_BIN_EXE_unlade"));
    command.args(["fn", "store", "--listen", "127.0.0.1:0", "--dir"]).arg(&objects);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The address is printed when the signal handlers are installed.
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    assert!(address.starts_with("http://"), "{address}");
    let log = lines(child.stderr.take().unwrap());
    let store = Service { child, log };
    store.hang_up();
    store.wait_for(&["WARN", "SIGHUP", "nothing to reload"]);
    store.end();
}
