//! Shared set-up of the whole-system tests: the program under test, labs that are always removed,
//! and skipping with a reason.
//!
//! Every lab has a name of its own, so tests run at the same time. A test that cannot run on this
//! machine prints a line `skipped: REASON`, which `make test` counts.
#![forbid(unsafe_code)]

pub mod admin;
pub mod client;
pub mod counters;
pub mod direct;
pub mod functions;
pub mod moto;
pub mod play;
pub mod pool;
pub mod servers;
pub mod session;
pub mod site;
pub mod variables;
pub mod vm;

use rustix::fs::{FlockOperation, flock};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::ffi::OsStr;
use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns the reason why a test cannot run here; `None` if it can. `tools` are required programs.
pub fn unable(tools: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("labs need root".to_owned());
    }
    let missing: Vec<&str> = tools.iter().copied().filter(|tool| !is_installed(tool)).collect();
    match missing.is_empty() {
        true => None,
        false => Some(format!("not installed: {}", missing.join(", "))),
    }
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(sbin).any(|dir| dir.join(tool).is_file())
}

/// Returns from the test with a message if it cannot run here.
#[macro_export]
macro_rules! needs {
    ($($tool:expr),* $(,)?) => {
        if let Some(reason) = $crate::unable(&[$($tool),*]) {
            println!("skipped: {}: {reason}", module_path!());
            return;
        }
    };
}

/// Returns from the test with a message if functions cannot run here.
#[macro_export]
macro_rules! needs_functions {
    () => {
        if let Some(reason) = $crate::functions::skip_reason() {
            println!("skipped: {}: {reason}", module_path!());
            return;
        }
    };
}

static PROGRAM: OnceLock<PathBuf> = OnceLock::new();

/// The program under test: `$UNLADE_BIN`, or built by cargo with the profile of this test.
///
/// # Panics
/// The build fails.
pub fn unlade() -> &'static Path {
    PROGRAM.get_or_init(|| match std::env::var_os("UNLADE_BIN") {
        Some(path) => path.into(),
        None => build(&["--package", "unlade", "--package", "unlade-lab"]).join("unlade"),
    })
}

/// Returns the program of labs and benchmarks, in the directory of [`unlade`].
pub fn unlade_lab() -> PathBuf {
    unlade().with_file_name("unlade-lab")
}

/// Returns an example program of a crate: the one beside `$UNLADE_BIN`, which `cargo test` of the
/// workspace has built, or one built now. The latter may have other features and take minutes.
///
/// # Panics
/// The build fails.
pub fn example(package: &str, name: &str) -> PathBuf {
    let built = std::env::var_os("UNLADE_BIN")
        .and_then(|program| Some(Path::new(&program).parent()?.join("examples").join(name)))
        .filter(|example| example.exists());
    built.unwrap_or_else(|| {
        build(&["--package", package, "--example", name]).join("examples").join(name)
    })
}

/// Returns `libunlade_copier.a`: the one beside `$UNLADE_BIN`, which `cargo test` of the workspace
/// has built, or one built now.
///
/// # Panics
/// The build fails.
pub fn copier_library() -> PathBuf {
    let name = "libunlade_copier.a";
    let program = std::env::var_os("UNLADE_BIN").map(PathBuf::from);
    let dir = program.as_deref().and_then(Path::parent);
    let candidates = dir.map(|dir| [dir.join(name), dir.join("deps").join(name)]);
    let built = candidates.into_iter().flatten().find(|path| path.exists());
    built.unwrap_or_else(|| build(&["--package", "unlade-copy-capi"]).join(name))
}

/// Builds with the profile of this test and returns the target directory. cargo does nothing if all
/// is up to date.
fn build(what: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("the test knows where it is");
    // target/PROFILE/deps/test
    let profile = test.ancestors().nth(2).expect("a cargo target directory");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet"]).args(what);
    if profile.file_name() == Some(OsStr::new("release")) {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "{what:?} does not build");
    profile.to_owned()
}

/// Runs the program with `args` and returns its output.
///
/// # Panics
/// The program cannot be started.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(unlade()).args(args).output().expect("the program under test starts")
}

/// Returns the standard output of a command.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Returns all output of a command, for messages.
pub fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    format!("{}: {} {}", output.status, text(output), error.trim_end())
}

/// Returns a unique name.
pub fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("test{}_{number}", std::process::id())
}

/// Exclusive lock for tests that load the machine, across processes; see [`turn`].
#[derive(Debug)]
pub struct Turn {
    _file: File,
}

/// Waits until no other test loads the machine. Call this before building a lab, so that the lab is
/// removed before the lock is released.
///
/// # Panics
/// The lock file cannot be created.
pub fn turn() -> Turn {
    let path = std::env::temp_dir().join("unlade-system-tests.lock");
    let file = File::options().create(true).append(true).open(&path).expect("the lock file opens");
    flock(&file, FlockOperation::LockExclusive).expect("the lock is to be had");
    Turn { _file: file }
}

/// A program on a node, killed on drop.
#[derive(Debug)]
pub struct Program(Child);

impl Program {
    /// Returns the process ID.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the status of the program if it has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A lab, removed on drop, also if the test fails.
#[derive(Debug)]
pub struct Lab {
    /// Name of the lab.
    pub name: String,
}

/// Waits until every thread of a process that was sent SIGSTOP has stopped: on a loaded machine a
/// thread can go on for a while.
///
/// # Panics
/// The process ends, or does not stop in time.
pub fn await_stop(pid: u64) {
    let stopped = || {
        let mut threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process runs");
        threads.all(|thread| {
            let stat =
                thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
            // `pid (name) state …`; a thread that has ended meanwhile does not run either.
            stat.is_ok_and(|stat| {
                let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
                state.starts_with(['T', 't'])
            })
        })
    };
    assert!(counters::wait_for(std::time::Duration::from_secs(20), stopped), "{pid} does not stop");
}

impl Lab {
    /// Builds a lab: `unlade lab up` with `args`.
    ///
    /// # Panics
    /// The command fails.
    pub fn up(args: &[&str]) -> Lab {
        let lab = Lab { name: unique_name() };
        let output = lab.run("up", args);
        assert!(output.status.success(), "lab up {args:?}: {}", said(&output));
        lab
    }

    /// Runs `unlade lab VERB --name NAME ARGS…`.
    pub fn run(&self, verb: &str, args: &[&str]) -> Output {
        run(["lab", verb, "--name", &self.name].iter().chain(args))
    }

    /// Runs a command on a node.
    pub fn exec(&self, node: &str, command: &[&str]) -> Output {
        self.run("exec", &[&[node, "--"], command].concat())
    }

    /// Runs a command on a node and returns its standard output.
    ///
    /// # Panics
    /// The command fails.
    pub fn exec_text(&self, node: &str, command: &[&str]) -> String {
        let output = self.exec(node, command);
        assert!(output.status.success(), "{node}: {command:?}: {}", said(&output));
        text(&output)
    }

    /// Returns the output of `unlade lab status --json`.
    ///
    /// # Panics
    /// There is no such lab.
    pub fn status(&self) -> serde_json::Value {
        let output = self.run("status", &["--json"]);
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).expect("the status is JSON")
    }

    /// Moves the calling thread into a node's network namespace, which further sockets and threads
    /// of it use.
    ///
    /// # Panics
    /// There is no such node.
    pub fn enter(&self, node: &str) {
        let path = format!("/run/netns/unlade-{}-{node}", self.name);
        let file = File::open(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .unwrap_or_else(|error| panic!("entering {path}: {error}"));
    }

    /// Returns the nodes without the switch: `client`, `lb`, `s1`, …
    pub fn nodes(&self) -> Vec<String> {
        let servers = self.status()["spec"]["servers"].as_u64().unwrap_or(0);
        let named = ["client", "lb"].map(str::to_owned);
        named.into_iter().chain((1..=servers).map(|number| format!("s{number}"))).collect()
    }

    /// Returns the virtual IPs: IPv4 and IPv6.
    ///
    /// # Panics
    /// The status has no such addresses.
    pub fn virtual_ips(&self) -> [IpAddr; 2] {
        let status = self.status();
        ["virtual_v4", "virtual_v6"]
            .map(|key| status[key].as_str().and_then(|ip| ip.parse().ok()).expect("an address"))
    }

    /// Returns the running processes: name and process ID.
    pub fn processes(&self) -> Vec<(String, u64)> {
        let status = self.status();
        let all = status["processes"].as_array().cloned().unwrap_or_default();
        let alive = all.iter().filter(|process| process["alive"] == true);
        let pair =
            |p: &serde_json::Value| Some((p["process"].as_str()?.to_owned(), p["pid"].as_u64()?));
        alive.filter_map(pair).collect()
    }

    /// Sends a signal to a process of the lab, for example `TERM` or `KILL`, and waits until it
    /// has ended.
    ///
    /// # Panics
    /// The process does not run or does not end.
    pub fn end(&self, process: &str, signal: &str) {
        let running = || self.processes().into_iter().find(|(name, _)| name == process);
        self.signal(process, signal);
        let ended = counters::wait_for(std::time::Duration::from_secs(20), || running().is_none());
        assert!(ended, "{process} does not end");
    }

    /// Sends a signal to a process of the lab, for example `STOP`.
    ///
    /// # Panics
    /// The process does not run.
    pub fn signal(&self, process: &str, signal: &str) {
        let processes = self.processes();
        let found = processes.iter().find(|(name, _)| name == process);
        let (_, pid) = found.unwrap_or_else(|| panic!("{process} does not run"));
        let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status();
        assert!(sent.expect("kill runs").success(), "{process} cannot be signalled");
        if signal == "STOP" {
            await_stop(*pid);
        }
    }

    /// Starts a program on a node.
    ///
    /// # Panics
    /// The program cannot be started.
    pub fn start(&self, node: &str, program: &Path, arguments: &[&str]) -> Program {
        let namespace = format!("unlade-{}-{node}", self.name);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespace]).arg(program).args(arguments);
        Program(command.stdin(Stdio::null()).spawn().expect("a program starts"))
    }

    /// Restarts the object server `s1` without its agent. Returns the program and the agent's
    /// address.
    ///
    /// # Panics
    /// The server cannot be restarted.
    pub fn without_agent(&self) -> (Program, String) {
        let config = std::fs::read_to_string(self.dir().join("config/s1.toml")).expect("a file");
        let mut agent = config.lines().skip_while(|line| *line != "[agent]");
        let address = agent.nth(1).and_then(|line| line.split('"').nth(1));
        let address = address.expect("the agent has an address").to_owned();
        self.end("s1", "TERM");
        let plain = self.dir().join("config/plain.toml");
        let kept = config.split("[agent]").next().unwrap_or_default();
        std::fs::write(&plain, kept).expect("a file is written");
        let plain = plain.display().to_string();
        (self.start("s1", unlade(), &["backend", "--config", &plain]), address)
    }

    /// Waits until every server's control channels are up, so that connections are handed over
    /// from the first request on.
    ///
    /// # Panics
    /// The channels do not come up.
    pub fn wait_channels(&self) {
        let spec = &self.status()["spec"];
        let number = |key: &str| spec[key].as_u64().unwrap_or(0);
        let due = number("servers") * number("lb_workers");
        let mut up = 0;
        let all_up = counters::wait_for(std::time::Duration::from_secs(60), || {
            up = counters::Metrics::read(self, "lb").get("unlade_channels_up");
            up >= due
        });
        assert!(all_up, "{up} of {due} control channels are up");
    }

    /// Returns the lab's directory.
    pub fn dir(&self) -> PathBuf {
        Path::new("/run/unlade/lab").join(&self.name)
    }

    /// Returns everything of the lab outside its directory: namespaces, name files, processes
    /// inside its namespaces.
    pub fn traces(&self) -> Vec<String> {
        let prefix = format!("unlade-{}-", self.name);
        let mut found = Vec::new();
        for dir in ["/run/netns", "/etc/netns"] {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            let paths = entries.map(|entry| entry.path().display().to_string());
            found.extend(paths.filter(|path| path.contains(&prefix)));
        }
        let own = self.dir().display().to_string();
        found.extend(self.dir().exists().then(|| own.clone()));
        for pid in command_lines().iter().filter(|(_, line)| line.contains(&format!("{own}/"))) {
            found.push(format!("process {} {}", pid.0, pid.1));
        }
        found
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let down = ["lab", "down", "--name", &self.name];
        match Command::new(unlade()).args(down).output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => eprintln!("lab {} is not removed: {}", self.name, said(&output)),
            Err(error) => eprintln!("lab {} is not removed: {error}", self.name),
        }
    }
}

/// Returns process ID and command line of every process; a zombie has an empty one.
fn command_lines() -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
        })
        .collect()
}
