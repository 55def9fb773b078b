//! The parts of a machine: QEMU, its firmware, a kernel with its modules, busybox.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use unlade_fn_model::isolation::IsolationError;

use super::config::QemuConfig;
use super::error::{system, unusable};

/// The script that downloads Debian's packages into a tree; also used by the project's tests.
const SCRIPT: &str = include_str!("../../../../../scripts/vm");
/// The directory of its tree, below its cache.
const TREE: &str = "root";

/// The paths of the parts.
#[derive(Clone, Debug)]
pub(super) struct Parts {
    pub qemu: PathBuf,
    pub libraries: OsString,
    pub firmware: Vec<PathBuf>,
    pub kernel: PathBuf,
    pub modules: PathBuf,
    pub busybox: PathBuf,
    /// The version of the kernel.
    pub version: String,
}

impl Parts {
    /// The parts in a tree; an error names a missing one.
    pub fn of_tree(root: &Path) -> Result<Parts, String> {
        let existing = |names: &[&str]| {
            let mut found = names.iter().map(|name| root.join(name));
            let missing = || format!("{} is missing", root.join(names[0]).display());
            found.find(|path| path.exists()).ok_or_else(missing)
        };
        let version = kernel_version(root)?;
        let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
        let libraries = libraries.map(|name| root.join(name).into_os_string());
        Ok(Parts {
            qemu: existing(&["usr/bin/qemu-system-x86_64"])?,
            libraries: libraries.join(std::ffi::OsStr::new(":")),
            firmware: vec![
                existing(&["usr/share/seabios", "usr/share/qemu"])?,
                existing(&["usr/share/qemu"])?,
            ],
            kernel: root.join(format!("boot/vmlinuz-{version}")),
            modules: existing(&[
                &format!("lib/modules/{version}"),
                &format!("usr/lib/modules/{version}"),
            ])?,
            busybox: existing(&["bin/busybox", "usr/bin/busybox"])?,
            version,
        })
    }

    /// The parts of the configuration, without a download.
    pub fn find(config: &QemuConfig) -> Result<Parts, String> {
        match &config.root {
            Some(root) => Parts::of_tree(root),
            None => Parts::of_tree(&config.fetched().join(TREE)),
        }
    }

    /// The parts of the configuration, downloaded if they do not exist. Blocks.
    pub fn get(config: &QemuConfig) -> Result<Parts, IsolationError> {
        if let Ok(parts) = Parts::find(config) {
            return Ok(parts);
        }
        if let Some(why) = unfetchable(config) {
            return Err(unusable(why));
        }
        tracing::info!(to = %config.cache().display(), "qemu: fetching QEMU and a kernel, once");
        script(config, "fetch").map_err(system("fetching QEMU and a kernel"))?;
        Parts::find(config).map_err(unusable)
    }
}

/// The reason why parts are missing and cannot be downloaded; `None` if they exist or can be.
pub(super) fn unfetchable(config: &QemuConfig) -> Option<String> {
    let missing = Parts::find(config).err()?;
    if config.root.is_some() {
        return Some(format!("{missing}: see `root` of [isolation.qemu]"));
    }
    if !config.fetch {
        return Some(format!("{missing}, and `fetch` of [isolation.qemu] is false"));
    }
    match script(config, "why") {
        Ok(why) if why.trim().is_empty() => None,
        Ok(why) => Some(why.trim().to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

/// Runs the script; returns its output.
fn script(config: &QemuConfig, what: &str) -> io::Result<String> {
    let cache = config.cache();
    fs::create_dir_all(&cache)?;
    let mut command = Command::new("/bin/bash");
    command.args(["-c", SCRIPT, "vm", what]).env("UNLADE_VM_CACHE", cache);
    let output = command.stdin(Stdio::null()).output()?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
    }
}

/// The newest kernel that has modules.
fn kernel_version(root: &Path) -> Result<String, String> {
    let boot = root.join("boot");
    let none = || format!("no vmlinuz-VERSION with modules in {}", boot.display());
    let entries = fs::read_dir(&boot).map_err(|_| none())?;
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let versions = names.filter_map(|name| Some(name.strip_prefix("vmlinuz-")?.to_owned()));
    let has_modules = |version: &String| {
        let below = |name: &str| root.join(name).join(version).join("modules.dep").exists();
        below("lib/modules") || below("usr/lib/modules")
    };
    versions.filter(has_modules).max().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(root: &Path, name: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    #[test]
    fn what_is_missing_is_said() {
        let root = tempfile::tempdir().unwrap();
        let said = |root: &Path| Parts::of_tree(root).err().unwrap_or_default();
        assert!(said(root.path()).contains("vmlinuz"));
        touch(root.path(), "boot/vmlinuz-6.1");
        assert!(said(root.path()).contains("vmlinuz"), "its modules are missing");
        touch(root.path(), "lib/modules/6.1/modules.dep");
        assert!(said(root.path()).contains("qemu-system-x86_64"));
        touch(root.path(), "usr/bin/qemu-system-x86_64");
        touch(root.path(), "usr/share/qemu/x");
        assert!(said(root.path()).contains("busybox"));
        touch(root.path(), "bin/busybox");
        let parts = Parts::of_tree(root.path()).unwrap();
        assert_eq!(parts.version, "6.1");
        let config = QemuConfig { root: Some("/nowhere".into()), ..QemuConfig::default() };
        assert!(unfetchable(&config).unwrap().contains("[isolation.qemu]"));
    }
}
