//! What an instance runs in: a sandboxed process, a virtual machine. Guest memory, the control
//! channel and snapshots are behind this trait.
//!
//! A backend makes a [`Template`] of an [`Image`] once: a zygote that has imported the function, a
//! snapshot of a machine's memory. Instances start from it. Each has a channel that speaks the guest
//! protocol (`docs/guest-protocol.md`); who is at its other end is known from the channel alone.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Work of one thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What stands between the function and its objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Its own boto3, with TLS and TCP in the instance: the baseline.
    Stock,
    /// Its own boto3; its TCP connections are the host's, over a stream without shared memory.
    Tcp,
    /// boto3 is the stub; nothing is fetched ahead, a write is acknowledged when it is durable.
    Sdk,
    /// And inputs are fetched ahead.
    Prefetch,
    /// And outputs are written back.
    #[default]
    Offload,
}

impl Mode {
    /// All, in the order in which they add up.
    pub const ALL: [Mode; 5] = [Mode::Stock, Mode::Tcp, Mode::Sdk, Mode::Prefetch, Mode::Offload];

    /// As in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Stock => "stock",
            Mode::Tcp => "tcp",
            Mode::Sdk => "sdk",
            Mode::Prefetch => "prefetch",
            Mode::Offload => "offload",
        }
    }

    /// Whether boto3 is the stub.
    pub fn is_offloaded(self) -> bool {
        !matches!(self, Mode::Stock | Mode::Tcp)
    }

    /// Whether inputs are fetched ahead.
    pub fn prefetches(self) -> bool {
        matches!(self, Mode::Prefetch | Mode::Offload)
    }
}

/// What a template imports before instances start from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preload {
    /// The function's own module.
    pub handler: bool,
    /// Others.
    pub modules: Vec<String>,
}

/// Why a template does not import what it was told to: each instance would have had the same copy of
/// something that has to be its own, or a wrong one. Its instances import it themselves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unpreloaded {
    /// The reason, in words of the guest's: a line of text, not longer than [`REASON_CHARS_MAX`].
    pub why: String,
    /// Whether [`Preload::modules`] are not imported either.
    pub modules: bool,
}

/// Longest reason of an [`Unpreloaded`], in characters.
pub const REASON_CHARS_MAX: usize = 500;

impl Unpreloaded {
    /// Out of a guest's words, which may be anything.
    pub fn new(why: &str, modules: bool) -> Unpreloaded {
        let line = why.chars().map(|c| if c.is_control() { ' ' } else { c });
        Unpreloaded { why: line.take(REASON_CHARS_MAX).collect(), modules }
    }
}

impl Preload {
    /// What is left to import ahead.
    pub fn without(&mut self, unpreloaded: &Unpreloaded) {
        self.handler = false;
        if unpreloaded.modules {
            self.modules.clear();
        }
    }

    /// Whether there is anything to import ahead.
    pub fn is_any(&self) -> bool {
        self.handler || !self.modules.is_empty()
    }
}

/// What a template is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// The function's name: `[a-zA-Z0-9-_]`, 64 at most.
    pub function: String,
    /// `module.function`.
    pub handler: String,
    /// The function's files: read-only, at `/var/task`, first on `sys.path`.
    pub code: PathBuf,
    /// The directory that has the package `unlade_guest`, read-only.
    pub guest: PathBuf,
    /// The interpreter, as this machine names it.
    pub python: PathBuf,
    /// Directories of packages, read-only, behind the code on `sys.path`.
    pub packages: Vec<PathBuf>,
    /// What it is given, beside what the runtime needs.
    pub environment: BTreeMap<String, String>,
    /// What an instance may use.
    pub memory_bytes: u64,
    /// What is writable: `/tmp`, in memory.
    pub scratch_bytes: u64,
    /// What stands between the function and its objects.
    pub mode: Mode,
    /// What is imported before.
    pub preload: Preload,
    /// Where connections of [`Mode::Tcp`] end: a socket of the host's, which may be made anew; its
    /// directory is made visible inside.
    pub relay: Option<PathBuf>,
    /// Whether it sees the host's network: [`Mode::Stock`] only.
    pub network: bool,
    /// The bytes of a region whose memory the backend provides; else the worker makes it.
    pub region_bytes: u64,
}

/// Why there is no template or instance.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    /// This machine cannot.
    #[error("isolation {backend}: {why}")]
    Unusable {
        /// Which.
        backend: &'static str,
        /// What is missing, and what to do.
        why: String,
    },
    /// The function's fault: it did not start.
    #[error("{function}: {why}")]
    Function {
        /// Which.
        function: String,
        /// What it said.
        why: String,
    },
    /// The machine's.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// How an instance came to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// From nothing.
    Cold,
    /// From a zygote or a snapshot.
    Restored,
}

/// What an instance has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Its memory, with its share of what it shares.
    pub pss_bytes: u64,
    /// Its memory that nobody else has.
    pub private_bytes: u64,
    /// Its processor time.
    pub cpu: Duration,
}

/// What an instance runs in.
pub trait Isolation {
    /// `process`, `qemu`.
    fn name(&self) -> &'static str;

    /// Whether it works on this machine.
    ///
    /// # Errors
    /// Why not, and what to do.
    fn probe(&self) -> Result<(), IsolationError>;

    /// Makes a template: whatever is done once for all instances.
    fn prepare<'a>(
        &'a self,
        image: &'a Image,
    ) -> Local<'a, Result<Rc<dyn Template>, IsolationError>>;
}

/// What instances of a function start from. Dropped, it is removed; its instances are not.
pub trait Template {
    /// Starts an instance, by a name that no other living one has.
    fn start<'a>(&'a self, name: &'a str) -> Local<'a, Result<Started, IsolationError>>;

    /// Why the template has not imported what its image says, where it has not.
    fn unpreloaded(&self) -> Option<&Unpreloaded>;

    /// What the template itself holds.
    ///
    /// # Errors
    /// The system's.
    fn usage(&self) -> io::Result<Usage>;

    /// Ends when the template cannot start instances any more; says why.
    fn ended(&self) -> Local<'_, String>;
}

/// An instance that has started; it greets when its channel is served.
pub struct Started {
    /// The worker's end of its channel.
    pub channel: OwnedFd,
    /// The memory that it shares with the worker, where the backend provides it.
    pub region: Option<OwnedFd>,
    /// How it came to be.
    pub origin: Origin,
    /// The instance.
    pub instance: Rc<dyn Instance>,
}

/// A living instance; killed when dropped.
pub trait Instance {
    /// Ends when the instance has ended; says why.
    fn ended(&self) -> Local<'_, String>;

    /// What it has used.
    ///
    /// # Errors
    /// The system's: it has gone.
    fn usage(&self) -> io::Result<Usage>;

    /// Kills it; [`Instance::ended`] follows.
    fn kill(&self);
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
