//! The configuration of sandboxes.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most instances of one template: each has a number, a user and a root.
pub const INSTANCES_MAX: u32 = 1023;
/// Users of one template: one for the zygote and one for each instance.
pub(super) const IDS_OF_TEMPLATE: u32 = INSTANCES_MAX + 1;
/// End of the range of users, where allocation wraps around: below the users of machines
/// (`qemu::config`), and below the values that some programs treat as negative.
pub(super) const IDS_END: u32 = (1 << 31) - (1 << 16);

/// The executable that creates sandboxes, and its leading arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Its path.
    pub program: PathBuf,
    /// For example `["fn", "sandbox"]`.
    pub arguments: Vec<String>,
    /// The arguments with which the executable is the first process of a sandbox for
    /// [`Runtime::Provided`](unlade_fn_model::isolation::Runtime::Provided), for example
    /// `["fn", "init"]`.
    pub init: Vec<String>,
}

/// `[isolation.process]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessConfig {
    /// The parent control group of templates and instances.
    pub cgroup: String,
    /// The first of a range of otherwise unused users and groups of the host; each template takes
    /// 1024.
    pub ids_first: u32,
    /// Most processes and threads of an instance.
    pub processes_max: u32,
    /// Most open files of a process.
    pub files_max: u32,
    /// Number of roots and groups that are created in advance.
    pub spares: u32,
    /// True if the processes of an idle instance are stopped until its next invocation.
    pub freeze: bool,
    /// Idle time after which they are stopped.
    pub freeze_after_ms: u64,
    /// Timeout of a function's import and of an instance's greeting.
    #[serde(with = "unlade_config::duration")]
    pub start_timeout: Duration,
}

impl ProcessConfig {
    /// The idle time after which instances are frozen; `None` if they never are.
    pub(super) fn freeze_after(&self) -> Option<Duration> {
        self.freeze.then(|| Duration::from_millis(self.freeze_after_ms))
    }
}

impl Default for ProcessConfig {
    fn default() -> ProcessConfig {
        ProcessConfig {
            cgroup: "unlade".to_owned(),
            // After the range that systemd assigns to containers.
            ids_first: 1_879_048_192,
            processes_max: 256,
            files_max: 1024,
            spares: 2,
            freeze: true,
            freeze_after_ms: 10,
            start_timeout: Duration::from_secs(60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_default_and_unknown_keys_are_refused() {
        let config: ProcessConfig = unlade_config::parse("", "fn.toml").unwrap();
        assert_eq!(config, ProcessConfig::default());
        let text = "processes_max = 5\nstart_timeout = \"2s\"\n";
        let config: ProcessConfig = unlade_config::parse(text, "fn.toml").unwrap();
        assert_eq!((config.processes_max, config.start_timeout), (5, Duration::from_secs(2)));
        assert!(unlade_config::parse::<ProcessConfig>("process_max = 5\n", "fn.toml").is_err());
    }
}
