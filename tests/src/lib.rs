//! Shared set-up of the whole-system tests: the program under test, labs that are always removed,
//! and skipping with a reason.
//!
//! Every lab has a name of its own, so tests run at the same time. A test that cannot run on this
//! machine prints a line `skipped: REASON`, which `make test` counts.
#![forbid(unsafe_code)]

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Why a test cannot run here; `None` when it can. `tools` are the programs it needs.
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

/// Returns from the test, saying why, when it cannot run here.
#[macro_export]
macro_rules! needs {
    ($($tool:expr),* $(,)?) => {
        if let Some(reason) = $crate::unable(&[$($tool),*]) {
            println!("skipped: {}: {reason}", module_path!());
            return;
        }
    };
}

/// The program under test: `$UNLADE_BIN`, or built by cargo with the profile of this test.
///
/// # Panics
/// It does not build.
pub fn unlade() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os("UNLADE_BIN") {
        Some(path) => path.into(),
        None => build(),
    })
}

/// Builds the program; cargo does nothing when it is up to date.
fn build() -> PathBuf {
    let test = std::env::current_exe().expect("the test knows where it is");
    // target/PROFILE/deps/test
    let profile = test.ancestors().nth(2).expect("a cargo target directory");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--package", "cli"]);
    if profile.file_name() == Some(OsStr::new("release")) {
        cargo.arg("--release");
    }
    let status = cargo.status().expect("cargo runs");
    assert!(status.success(), "the program under test does not build");
    profile.join("unlade")
}

/// Runs the program with `args` and returns how it ended.
///
/// # Panics
/// It cannot be started.
pub fn run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    Command::new(unlade()).args(args).output().expect("the program under test starts")
}

/// What a command printed.
pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

/// Everything a command said, for messages.
pub fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    format!("{}: {} {}", output.status, text(output), error.trim_end())
}

/// A name that no other test has.
pub fn unique_name() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("test{}_{number}", std::process::id())
}

/// A lab, removed when dropped, also when the test fails.
#[derive(Debug)]
pub struct Lab {
    /// Its name.
    pub name: String,
}

impl Lab {
    /// Builds a lab: `unlade lab up` with `args`.
    ///
    /// # Panics
    /// It does not come up.
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

    /// What a command on a node prints; it must succeed.
    ///
    /// # Panics
    /// It fails.
    pub fn exec_text(&self, node: &str, command: &[&str]) -> String {
        let output = self.exec(node, command);
        assert!(output.status.success(), "{node}: {command:?}: {}", said(&output));
        text(&output)
    }

    /// The lab's state as `unlade lab status --json` tells it.
    ///
    /// # Panics
    /// There is no such lab.
    pub fn status(&self) -> serde_json::Value {
        let output = self.run("status", &["--json"]);
        assert!(output.status.success(), "{}", said(&output));
        serde_json::from_slice(&output.stdout).expect("the status is JSON")
    }

    /// Its directory.
    pub fn dir(&self) -> PathBuf {
        Path::new("/run/unlade/lab").join(&self.name)
    }

    /// Whatever there is of the lab outside its own directory: namespaces, name files, processes
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
        let output = self.run("down", &[]);
        if !output.status.success() {
            eprintln!("lab {} is not removed: {}", self.name, said(&output));
        }
    }
}

/// Number and command line of every process; one that has ended has none.
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
