//! Network namespaces: list, enter for the length of a closure, find who lives in one.

use super::plan::LabName;
use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const NETNS_DIR: &str = "/run/netns";

/// The file that stands for a namespace.
pub fn path(namespace: &str) -> PathBuf {
    Path::new(NETNS_DIR).join(namespace)
}

/// Runs `work` on a thread of its own inside `namespace`. A namespace belongs to a thread, so
/// the caller stays where it is.
///
/// # Errors
/// The namespace is absent or may not be entered, or what `work` reports.
pub fn inside<T: Send>(namespace: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let file = File::open(path(namespace))
        .with_context(|| format!("no namespace {namespace}; is the lab up?"))?;
    std::thread::scope(|scope| {
        let entered = scope.spawn(move || {
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .with_context(|| format!("entering {namespace}"))?;
            work()
        });
        entered.join().map_err(|_| anyhow!("a thread inside {namespace} panicked"))?
    })
}

/// Names of the namespaces of one lab, or of every lab.
pub fn of_labs(only: Option<&LabName>) -> Vec<(LabName, String)> {
    let Ok(entries) = fs::read_dir(NETNS_DIR) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|namespace| Some((LabName::of_namespace(&namespace)?, namespace)))
        .filter(|(lab, _)| only.is_none_or(|only| only == lab))
        .collect()
}

/// Every process that is inside one of `namespaces`.
pub fn inhabitants(namespaces: &[String]) -> Vec<u32> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let wanted: Vec<_> = namespaces.iter().filter_map(|name| identity(&path(name))).collect();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .filter(|pid| {
            identity(Path::new(&format!("/proc/{pid}/ns/net")))
                .is_some_and(|found| wanted.contains(&found))
        })
        .collect()
}

/// Writes `/proc/sys/net` settings as seen inside the calling thread's namespace.
///
/// # Errors
/// A setting is absent or refused; the message names it.
pub fn write_sysctls(settings: &[(String, &str)]) -> Result<()> {
    for (key, value) in settings {
        let path = format!("/proc/sys/net/{key}");
        fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))?;
    }
    Ok(())
}
