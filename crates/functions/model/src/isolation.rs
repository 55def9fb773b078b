//! Isolation backends: a sandboxed process or a virtual machine. The trait hides guest memory, the
//! control channel and snapshots.
//!
//! A backend creates a [`Template`] from an [`Image`] once: a zygote that has imported the
//! function, or a snapshot of a machine's memory. Instances start from it. Each has a channel that
//! carries the guest protocol (`docs/guest-protocol.md`); the channel alone identifies the
//! instance at its other end.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A future that need not be `Send`.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// The program that runs the function's code.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// The host's Python interpreter, with a synthetic boto3.
    #[default]
    Python,
    /// The function's own executable `bootstrap`, in any language, which speaks Lambda's Runtime
    /// API.
    Provided,
    /// The host's Node.js, with Lambda's programming model, and a stub in the place of the
    /// function's S3 client.
    #[serde(rename = "nodejs")]
    Node,
}

impl Runtime {
    /// The name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Python => "python",
            Runtime::Provided => "provided",
            Runtime::Node => "nodejs",
        }
    }
}

/// The I/O path between the function and its objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// The function's own boto3, with TLS and TCP in the instance: the baseline.
    Stock,
    /// The function's own boto3; its TCP connections are relayed by the host, over a stream
    /// without shared memory.
    Tcp,
    /// boto3 is the stub; there is no prefetch, and a write is acknowledged when it is durable.
    Sdk,
    /// As `Sdk`, and inputs are prefetched.
    Prefetch,
    /// As `Prefetch`, and outputs are written back.
    #[default]
    Offload,
}

impl Mode {
    /// All modes; each adds one technique to the previous one.
    pub const ALL: [Mode; 5] = [Mode::Stock, Mode::Tcp, Mode::Sdk, Mode::Prefetch, Mode::Offload];

    /// The name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Stock => "stock",
            Mode::Tcp => "tcp",
            Mode::Sdk => "sdk",
            Mode::Prefetch => "prefetch",
            Mode::Offload => "offload",
        }
    }

    /// Returns true if boto3 is the stub.
    pub fn is_offloaded(self) -> bool {
        !matches!(self, Mode::Stock | Mode::Tcp)
    }

    /// Returns true if inputs are prefetched.
    pub fn prefetches(self) -> bool {
        matches!(self, Mode::Prefetch | Mode::Offload)
    }
}

/// Modules that a template imports before instances start from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preload {
    /// True for the function's own module.
    pub handler: bool,
    /// Other modules.
    pub modules: Vec<String>,
}

/// The reason why a template does not preload the requested modules: each instance would have a
/// copy of state that must be unique, or a wrong copy. The instances import the modules
/// themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpreloaded {
    /// The reason in the guest's words: a line of text of at most [`REASON_CHARS_MAX`] characters.
    pub why: String,
    /// True if [`Preload::modules`] are not imported either.
    pub modules: bool,
}

/// Longest reason of an [`Unpreloaded`], in characters.
pub const REASON_CHARS_MAX: usize = 500;

impl Unpreloaded {
    /// Sanitizes untrusted text of a guest.
    pub fn new(why: &str, modules: bool) -> Unpreloaded {
        let line = why.chars().map(|c| if c.is_control() { ' ' } else { c });
        Unpreloaded { why: line.take(REASON_CHARS_MAX).collect(), modules }
    }
}

impl Preload {
    /// Removes the modules that cannot be preloaded.
    pub fn without(&mut self, unpreloaded: &Unpreloaded) {
        self.handler = false;
        if unpreloaded.modules {
            self.modules.clear();
        }
    }

    /// Returns true if there is a module to preload.
    pub fn is_any(&self) -> bool {
        self.handler || !self.modules.is_empty()
    }
}

/// The input of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The function's name: `[a-zA-Z0-9-_]`, 64 at most.
    pub function: String,
    /// `module.function`.
    pub handler: String,
    /// The function's files: read-only, at `/var/task`, first on `sys.path`.
    pub code: PathBuf,
    /// The directory that contains the package `unlade_guest`, and `unlade_node`, read-only.
    pub guest: PathBuf,
    /// The program that runs the code.
    pub runtime: Runtime,
    /// The Python interpreter's path on this machine.
    pub python: PathBuf,
    /// The path of Node.js on this machine.
    pub node: PathBuf,
    /// Directories of packages, read-only, after the code on `sys.path`.
    pub packages: Vec<PathBuf>,
    /// Environment variables, in addition to those of the runtime.
    pub environment: BTreeMap<String, String>,
    /// Memory limit of an instance.
    pub memory_bytes: u64,
    /// Size of the writable `/tmp`: memory of the host, beside that of the instance.
    pub scratch_bytes: u64,
    /// The I/O path between the function and its objects.
    pub mode: Mode,
    /// The modules to preload.
    pub preload: Preload,
    /// The host's socket for connections of [`Mode::Tcp`]. It may be created again later, so its
    /// directory is visible inside.
    pub relay: Option<PathBuf>,
    /// True if the instance has the host's network: [`Mode::Stock`] only.
    pub network: bool,
    /// The bytes of a region that the backend provides; otherwise the worker creates it.
    pub region_bytes: u64,
}

/// The reason why a template or an instance could not be created.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// This machine does not support the backend.
    #[error("isolation {backend}: {why}")]
    Unusable {
        /// The backend.
        backend: &'static str,
        /// The missing requirement, and the remedy.
        why: String,
    },
    /// The function did not start. The function is at fault.
    #[error("{function}: {why}")]
    Function {
        /// The function.
        function: String,
        /// Its output.
        why: String,
    },
    /// The system call failed.
    #[error("{what}: {source}")]
    System {
        /// The operation.
        what: String,
        /// The error.
        #[source]
        source: io::Error,
    },
}

/// The way in which an instance was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// From the start.
    Cold,
    /// From a zygote or a snapshot.
    Restored,
}

/// The resources that an instance has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Proportional set size: private memory and its share of shared memory.
    pub pss_bytes: u64,
    /// Private memory.
    pub private_bytes: u64,
    /// Its processor time.
    pub cpu: Duration,
}

/// An isolation backend.
pub trait Isolation {
    /// `process`, `qemu`.
    fn name(&self) -> &'static str;

    /// Checks that it works on this machine.
    ///
    /// # Errors
    /// The missing requirement, and the remedy.
    fn probe(&self) -> Result<(), IsolationError>;

    /// Creates a template: the work that is done once for all instances.
    fn prepare<'a>(
        &'a self,
        image: &'a Image,
    ) -> Local<'a, Result<Rc<dyn Template>, IsolationError>>;
}

/// The starting point of a function's instances. Dropping it removes it, but not its instances.
pub trait Template {
    /// Starts an instance with a name that no other living instance has.
    fn start<'a>(&'a self, name: &'a str) -> Local<'a, Result<Started, IsolationError>>;

    /// The reason why the template has not preloaded the modules of its image, if it has not.
    fn unpreloaded(&self) -> Option<&Unpreloaded>;

    /// The resources that the template itself uses.
    ///
    /// # Errors
    /// The system call failed.
    fn usage(&self) -> io::Result<Usage>;

    /// Waits until the template can no longer start instances; returns the reason.
    fn ended(&self) -> Local<'_, String>;

    /// The end of what the template itself has printed, for example while it imported the function.
    fn printed(&self) -> String {
        String::new()
    }
}

/// A started instance; it greets when its channel is served.
pub struct Started {
    /// The worker's end of its channel.
    pub channel: OwnedFd,
    /// The memory that it shares with the worker, if the backend provides it.
    pub region: Option<OwnedFd>,
    /// The way in which it was started.
    pub origin: Origin,
    /// The instance.
    pub instance: Rc<dyn Instance>,
}

/// A living instance; killed when dropped.
pub trait Instance {
    /// Waits until the instance has ended; returns the reason.
    fn ended(&self) -> Local<'_, String>;

    /// The resources that it has used.
    ///
    /// # Errors
    /// The instance has ended.
    fn usage(&self) -> io::Result<Usage>;

    /// Kills the instance, also a frozen one; [`Instance::ended`] then completes.
    fn kill(&self);

    /// The idle time after which an instance is to be frozen; `None` if it never is.
    fn freeze_after(&self) -> Option<Duration> {
        None
    }

    /// Stops the instance's processes until [`Instance::thaw`]; returns without waiting for it.
    ///
    /// # Errors
    /// There is no freezer, or the system call failed: the instance goes on.
    fn freeze(&self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets the instance's processes go on.
    ///
    /// # Errors
    /// The system call failed.
    fn thaw(&self) -> io::Result<()> {
        Ok(())
    }

    /// Returns true if every process of the instance is stopped.
    fn is_frozen(&self) -> bool {
        false
    }

    /// Bytes in the instance's `/tmp`, if they are not part of its memory.
    fn scratch_used_bytes(&self) -> u64 {
        0
    }

    /// Kills the instance if it has more memory than its limit and no kernel limit does so; returns
    /// true if it did. The caller asks during invocations and at their ends.
    fn limit_memory(&self) -> bool {
        false
    }

    /// Most memory that the instance has had, in bytes; `None` if it is not known.
    fn memory_peak_bytes(&self) -> Option<u64> {
        None
    }

    /// Takes the reading end of the pipe that has what the instance prints, which does not block.
    /// `None` if it was taken, or if the output goes elsewhere.
    fn take_output(&self) -> Option<OwnedFd> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_reason_is_one_short_line() {
        let said = Unpreloaded::new(&format!("a\nb\u{1b}[2J{}", "x".repeat(9000)), false);
        assert!(said.why.starts_with("a b [2Jxx"), "{}", said.why);
        assert_eq!(said.why.chars().count(), REASON_CHARS_MAX);
    }

    #[test]
    fn what_cannot_be_shared_is_not_imported_ahead() {
        let all = Preload { handler: true, modules: vec!["json".to_owned()] };
        let mut left = all.clone();
        left.without(&Unpreloaded::new("", false));
        assert_eq!(left, Preload { handler: false, ..all });
        assert!(left.is_any());
        left.without(&Unpreloaded::new("", true));
        assert!(!left.is_any());
    }
}
