//! `[isolation.qemu]` of a configuration.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The cache of `scripts/vm`, with QEMU and its kernel.
const SHARED_CACHE: &str = "/var/cache/unlade/vm";

/// Root's cache, readable by processes of other users.
const ROOTS_CACHE: &str = "/var/cache/unlade";

/// The choice of an accelerator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// KVM if a machine starts with it, else software emulation.
    #[default]
    Auto,
    /// KVM; an error if it does not work.
    Kvm,
    /// Software emulation.
    Tcg,
}

/// The configuration of virtual machines. Everything has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QemuConfig {
    /// A tree that contains `usr/bin/qemu-system-x86_64` (version 8.2 or later), its firmware,
    /// `boot/vmlinuz-VERSION`, `lib/modules/VERSION` and `bin/busybox` (static). `/` is this
    /// machine's own. If absent: Debian's packages, downloaded once.
    pub root: Option<PathBuf>,
    /// True if they may be downloaded.
    pub fetch: bool,
    /// The directory of files that are built once; if absent, `/var/cache/unlade` for root and
    /// `~/.cache/unlade` for others.
    pub cache: Option<PathBuf>,
    /// The accelerator.
    pub accelerator: Choice,
    /// Timeout of a boot until the machine can be saved.
    #[serde(with = "unlade_config::duration")]
    pub boot_timeout: Duration,
    /// Timeout of a restore until the machine runs.
    #[serde(with = "unlade_config::duration")]
    pub restore_timeout: Duration,
    /// The first of 65536 otherwise unused users and groups of the host: if the gateway is root,
    /// each machine's QEMU runs as another one of them.
    pub user_first: u32,
    /// True if instances are restored from a snapshot; if false each one boots: the baseline.
    pub snapshot: bool,
}

impl Default for QemuConfig {
    fn default() -> QemuConfig {
        QemuConfig {
            root: None,
            fetch: true,
            cache: None,
            accelerator: Choice::Auto,
            boot_timeout: Duration::from_secs(120),
            restore_timeout: Duration::from_secs(30),
            user_first: 2_147_418_112,
            snapshot: true,
        }
    }
}

impl QemuConfig {
    /// The directory of files that are built once.
    pub fn cache(&self) -> PathBuf {
        let home = || env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
        let own = || match env::var_os("XDG_CACHE_HOME") {
            Some(cache) => PathBuf::from(cache).join("unlade"),
            None => home().join(".cache/unlade"),
        };
        let is_root = rustix::process::geteuid().is_root();
        let kept = || if is_root { PathBuf::from(ROOTS_CACHE) } else { own() };
        self.cache.clone().unwrap_or_else(kept).join("vm")
    }

    /// The tree with QEMU and a kernel, or the target of the download.
    pub(super) fn fetched(&self) -> PathBuf {
        let shared = env::var_os("UNLADE_VM_CACHE").map_or(SHARED_CACHE.into(), PathBuf::from);
        match shared.join("ready").exists() {
            true => shared,
            false => self.cache(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_has_a_default_and_the_rest_is_refused() {
        let config: QemuConfig = unlade_config::parse("", "fn.toml").unwrap();
        assert_eq!(config, QemuConfig::default());
        let text = "accelerator = \"tcg\"\nboot_timeout = \"5m\"\ncache = \"/x\"\n";
        let config: QemuConfig = unlade_config::parse(text, "fn.toml").unwrap();
        assert_eq!(config.accelerator, Choice::Tcg);
        assert_eq!(config.boot_timeout, Duration::from_secs(300));
        assert_eq!(config.cache(), PathBuf::from("/x/vm"));
        assert!(unlade_config::parse::<QemuConfig>("acelerator = \"tcg\"", "fn.toml").is_err());
    }
}
