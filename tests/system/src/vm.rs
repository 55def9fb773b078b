//! Commands in a virtual machine whose kernel has features that the host's may lack (`scripts/vm`),
//! and a network between it and programs of the host.
//!
//! The machine is emulated in software, so its timing is meaningless.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::said;

/// Maximum number of starts of a machine whose emulator aborts: an assertion in QEMU's MSI-X code
/// fails sporadically. A failure inside the machine is never retried.
const ATTEMPTS_MAX: usize = 3;
/// Exit status of `scripts/vm` for its own failures.
const MACHINE_FAILED: i32 = 125;
/// Message of `scripts/vm` after SIGABRT of the emulator.
const EMULATOR_ABORTED: &str = "(QEMU: 134)";
/// Maximum length of an interface name, in bytes.
const INTERFACE_BYTES_MAX: usize = 15;

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/vm")
}

/// Returns the reason why no virtual machine can run here; `None` if one can.
pub fn skip_reason() -> Option<String> {
    if let Some(reason) = crate::unable(&["ip", "cpio"]) {
        return Some(reason);
    }
    match Command::new(script()).arg("why").output() {
        Ok(output) => Some(crate::text(&output)).filter(|reason| !reason.is_empty()),
        Err(error) => Some(format!("scripts/vm does not run: {error}")),
    }
}

/// A network of one TAP device in its own namespace, with the machine at the other end. Removed on
/// drop, also if the test fails.
#[derive(Debug)]
pub struct Network {
    namespace: String,
    tap: String,
}

impl Network {
    /// Address of the host.
    pub const HOST: &'static str = "192.0.2.1";
    /// Address of the machine.
    pub const MACHINE: &'static str = "192.0.2.2";

    /// Creates a network.
    ///
    /// # Errors
    /// The output of `ip`; without TAP devices a test can only be skipped.
    pub fn new() -> Result<Network, String> {
        let name = format!("unlade-{}", crate::unique_name());
        let tap = name.replace("unlade-test", "vm");
        let tap = tap.get(..tap.len().min(INTERFACE_BYTES_MAX)).unwrap_or(&tap).to_owned();
        let network = Network { namespace: name, tap };
        ip(&["netns", "add", &network.namespace])?;
        network.ip(&["link", "set", "lo", "up"])?;
        network.ip(&["tuntap", "add", "dev", &network.tap, "mode", "tap", "vnet_hdr"])?;
        let address = format!("{}/24", Network::HOST);
        network.ip(&["address", "add", &address, "dev", &network.tap])?;
        network.ip(&["link", "set", &network.tap, "up"])?;
        Ok(network)
    }

    fn ip(&self, arguments: &[&str]) -> Result<(), String> {
        ip(&[&["-n", &self.namespace], arguments].concat())
    }

    /// Returns the name of the network namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns a command that runs in the namespace.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace]).arg(program);
        command
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // Deleting the namespace deletes the device.
        if let Err(error) = ip(&["netns", "delete", &self.namespace]) {
            eprintln!("{} is not removed: {error}", self.namespace);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    match Command::new("ip").args(arguments).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("ip {}: {}", arguments.join(" "), said(&output))),
        Err(error) => Err(format!("ip: {error}")),
    }
}

/// Configuration of a virtual machine.
#[derive(Debug, Default)]
pub struct Vm<'a> {
    modules: Vec<String>,
    network: Option<&'a Network>,
    timeout_s: Option<u32>,
    memory_mib: Option<u32>,
}

impl<'a> Vm<'a> {
    /// Creates a configuration with these kernel modules.
    pub fn new(modules: &[&str]) -> Vm<'a> {
        let modules = modules.iter().map(|name| (*name).to_owned()).collect();
        Vm { modules, ..Vm::default() }
    }

    /// Connects the machine to a network, with the address [`Network::MACHINE`].
    #[must_use]
    pub fn on(mut self, network: &'a Network) -> Vm<'a> {
        self.network = Some(network);
        self
    }

    /// Sets the time limit in seconds, instead of 300.
    #[must_use]
    pub fn timeout_s(mut self, seconds: u32) -> Vm<'a> {
        self.timeout_s = Some(seconds);
        self
    }

    /// Sets the memory size in MiB, instead of 1024.
    #[must_use]
    pub fn memory_mib(mut self, mebibytes: u32) -> Vm<'a> {
        self.memory_mib = Some(mebibytes);
        self
    }

    /// Runs a shell script as root in a new machine and waits for its end. The machine sees the
    /// host's files, except `/tmp`, `/run` and `/dev/shm`; its writes stay private. The script may
    /// start again in another machine.
    ///
    /// # Panics
    /// The machine's script cannot be started.
    pub fn run(&self, script_text: &str) -> Output {
        let mut command = match self.network {
            Some(network) => network.command(script()),
            None => Command::new(script()),
        };
        command.arg("run");
        for module in &self.modules {
            command.args(["--module", module]);
        }
        if let Some(network) = self.network {
            let address = format!("{}/24", Network::MACHINE);
            command.args(["--tap", &network.tap, "--address", &address]);
        }
        if let Some(seconds) = self.timeout_s {
            command.args(["--timeout", &seconds.to_string()]);
        }
        if let Some(mebibytes) = self.memory_mib {
            command.args(["--memory", &mebibytes.to_string()]);
        }
        command.args(["--", "/bin/sh", "-c", script_text]).stdin(Stdio::null());
        let mut output = command.output().expect("scripts/vm runs");
        for _ in 1..ATTEMPTS_MAX {
            let error = String::from_utf8_lossy(&output.stderr);
            if output.status.code() != Some(MACHINE_FAILED) || !error.contains(EMULATOR_ABORTED) {
                break;
            }
            eprintln!("the emulator aborted, once more: {}", error.lines().next().unwrap_or(""));
            output = command.output().expect("scripts/vm runs");
        }
        output
    }
}
