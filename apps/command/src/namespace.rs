//! Work inside a named network namespace.

use anyhow::{Context, Result, anyhow};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// The directory with a file for each named namespace.
pub const NETNS_DIR: &str = "/run/netns";

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
