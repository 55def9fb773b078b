//! Sandboxes of function instances.

use std::process::{Command, Stdio};

use unlade_fn_model::isolation::{Isolation, IsolationError};
use unlade_fn_sandbox::process::{FREEZER, Launcher, Process, ProcessConfig, limits};
use unlade_fn_sandbox::qemu::{Qemu, QemuConfig};

use super::finding::{Finding, Outcome, Part};

const PART: Part = Part::Functions;

/// Everything about functions.
pub fn all() -> Vec<Finding> {
    vec![process(), groups(), freezer(), machines(), python(), node()]
}

fn found(feature: &'static str, outcome: Outcome, detail: impl Into<String>) -> Finding {
    Finding { part: PART, feature, outcome, detail: detail.into() }
}

/// Sandboxed processes.
fn process() -> Finding {
    let feature = "sandboxed processes";
    let launcher =
        Launcher { program: "/proc/self/exe".into(), arguments: Vec::new(), init: Vec::new() };
    match Process::new(ProcessConfig::default(), launcher).probe() {
        Ok(()) => found(
            feature,
            Outcome::Works,
            "namespaces, users of their own, a filter of system calls",
        ),
        Err(IsolationError::Unusable { why, .. }) => found(feature, Outcome::Missing, why),
        Err(error) => found(feature, Outcome::Missing, error.to_string()),
    }
}

/// Their limits.
fn groups() -> Finding {
    let feature = "limits of instances";
    let found_limits = limits();
    let has = |name: &str| found_limits.iter().any(|(controller, _)| controller == name);
    let words: Vec<String> = found_limits
        .iter()
        .filter(|(controller, _)| controller != FREEZER)
        .map(|(controller, version)| format!("{controller} (cgroup v{version})"))
        .collect();
    match has("memory") && has("pids") {
        true => found(feature, Outcome::Works, words.join(", ")),
        false => {
            let there = if words.is_empty() { "nothing".to_owned() } else { words.join(", ") };
            let why = "no control groups of memory and pids; memory is then not limited, processes \
                       are by their user";
            found(feature, Outcome::FallsBack, format!("{why}; there is: {there}"))
        }
    }
}

/// Their stop between invocations.
fn freezer() -> Finding {
    let feature = "frozen idle instances";
    match limits().iter().find(|(controller, _)| controller == FREEZER) {
        Some((_, version)) => {
            found(feature, Outcome::Works, format!("the freezer (cgroup v{version})"))
        }
        None => {
            let why = "no control group can stop processes, so threads of idle instances go on \
                       between invocations; mount the freezer: mkdir -p /sys/fs/cgroup/freezer && \
                       mount -t cgroup -o freezer none /sys/fs/cgroup/freezer";
            found(feature, Outcome::FallsBack, why)
        }
    }
}

/// Virtual machines.
fn machines() -> Finding {
    let feature = "virtual machines";
    let qemu = Qemu::new(QemuConfig::default());
    match (qemu.probe(), qemu.found()) {
        (Ok(()), Some(parts)) => found(feature, Outcome::Works, parts),
        (Ok(()), None) => {
            let detail = "QEMU and a kernel are fetched from Debian with the first function that \
                          wants one (about 130 MB, once)";
            found(feature, Outcome::FallsBack, detail)
        }
        (Err(IsolationError::Unusable { why, .. }), _) => found(feature, Outcome::Missing, why),
        (Err(error), _) => found(feature, Outcome::Missing, error.to_string()),
    }
}

/// Node.js, which functions with this runtime need.
fn node() -> Finding {
    let feature = "Node.js";
    let output = Command::new("node").arg("--version").stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let mut version = said.trim_start_matches('v').split('.').map_while(|n| n.parse().ok());
            let is_recent = (version.next(), version.next()) >= (Some(20u32), Some(15));
            let outcome = if is_recent { Outcome::Works } else { Outcome::Missing };
            let needs = if is_recent { "" } else { "; 20.15 is needed at least" };
            found(feature, outcome, format!("{said}{needs}"))
        }
        Ok(_) => found(feature, Outcome::Missing, "node does not run"),
        Err(error) => {
            let detail = format!("node: {error}; apt-get install nodejs");
            found(feature, Outcome::Missing, detail)
        }
    }
}

/// The interpreter.
fn python() -> Finding {
    let feature = "Python";
    let asked = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.executable)";
    let mut command = Command::new("python3");
    let output = command.args(["-I", "-S", "-c", asked]).stdin(Stdio::null()).output();
    match output {
        Ok(output) if output.status.success() => {
            let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            let mut version = said.split('.').map_while(|part| part.parse::<u32>().ok());
            let recent = (version.next(), version.next()) >= (Some(3), Some(9));
            let outcome = if recent { Outcome::Works } else { Outcome::Missing };
            let needs = if recent { "" } else { "; 3.9 is needed at least" };
            found(feature, outcome, format!("{said}{needs}"))
        }
        Ok(_) => found(feature, Outcome::Missing, "python3 does not run"),
        Err(error) => {
            let detail = format!("python3: {error}; apt-get install python3");
            found(feature, Outcome::Missing, detail)
        }
    }
}
