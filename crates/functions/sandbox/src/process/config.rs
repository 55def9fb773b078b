//! What an operator can say of sandboxes.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most instances of one template: they have numbers, users and roots.
pub const INSTANCES_MAX: u32 = 1023;
/// Users of one template: the zygote's and its instances'.
pub(super) const IDS_OF_TEMPLATE: u32 = INSTANCES_MAX + 1;
/// Where the range of users starts over: below those of machines (`qemu::config`), which end below
/// what some programs take for negative.
pub(super) const IDS_END: u32 = (1 << 31) - (1 << 16);

/// The executable that makes sandboxes, and what comes before its own arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Its path.
    pub program: PathBuf,
    /// As `["fn", "sandbox"]`.
    pub arguments: Vec<String>,
}

/// `[isolation.process]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProcessConfig {
    /// The control group that holds those of templates and instances.
    pub cgroup: String,
    /// The first of the host's users and groups that nobody else has; each template takes 1024.
    pub ids_first: u32,
    /// Most processes and threads of an instance.
    pub processes_max: u32,
    /// Most open files of a process.
    pub files_max: u32,
    /// Roots and groups that are made before an instance wants them.
    pub spares: u32,
    /// How long a function may take to be imported, and an instance to greet.
    #[serde(with = "unlade_config::duration")]
    pub start_timeout: Duration,
}

impl Default for ProcessConfig {
    fn default() -> ProcessConfig {
        ProcessConfig {
            cgroup: "unlade".to_owned(),
            // Behind the range that systemd gives to containers.
            ids_first: 1_879_048_192,
            processes_max: 256,
            files_max: 1024,
            spares: 2,
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
