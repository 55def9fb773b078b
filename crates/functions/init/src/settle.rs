//! The way of a new instance to its place: control groups, root, limits, user.

use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;

use rustix::fs::{Gid, Uid};
use rustix::process::{Resource, Rlimit};
use serde::Deserialize;
use unlade_sys::descriptors::{self, DESCRIPTORS_MAX};

use crate::first::{REQUEST_BYTES_MAX, socket};

/// The request for an instance, as the gateway sends it to a zygote.
#[derive(Debug, Deserialize)]
struct Place {
    /// The environment of the function's `bootstrap`.
    #[serde(default)]
    environment: BTreeMap<String, String>,
    /// Number of attached descriptors that are files of control groups: the last ones.
    #[serde(default)]
    groups: usize,
    root: Option<String>,
    user: Option<u32>,
    processes: Option<u32>,
}

/// An instance in its place.
pub struct Settled {
    /// The channel to the worker.
    pub channel: OwnedFd,
    /// The environment of the function's `bootstrap`.
    pub environment: BTreeMap<String, String>,
}

/// Receives the request, and goes to the place that it names. Two descriptors beside the channel are
/// standard output and standard error. The user is last: it has no right to the rest.
///
/// # Errors
/// The operation that failed.
pub fn settled() -> Result<Settled> {
    let invalid = |why: &str| Error::new(ErrorKind::InvalidData, format!("the request: {why}"));
    let mut request = vec![0; REQUEST_BYTES_MAX];
    let received = descriptors::receive(socket()?, &mut request, DESCRIPTORS_MAX)?;
    let text = request.get(..received.len_bytes).unwrap_or_default();
    let place: Place = serde_json::from_slice(text).map_err(|error| invalid(&error.to_string()))?;
    let mut beside = received.descriptors;
    let others = beside.len().checked_sub(place.groups).ok_or_else(|| invalid("groups"))?;
    for group in beside.split_off(others) {
        rustix::io::write(&group, b"0")?;
    }
    let mut beside = beside.into_iter();
    let channel = beside.next().ok_or_else(|| invalid("no channel"))?;
    if let (Some(output), Some(errors)) = (beside.next(), beside.next()) {
        rustix::stdio::dup2_stdout(output)?;
        rustix::stdio::dup2_stderr(errors)?;
    }
    if let Some(root) = &place.root {
        let directory = std::env::current_dir()?;
        rustix::process::chroot(root.as_str())?;
        rustix::process::chdir(&directory)?;
    }
    if let Some(most) = place.processes {
        // The first process's own limit has room for children that are not yet their own user.
        let held = rustix::process::getrlimit(Resource::Nproc).maximum.unwrap_or(u64::MAX);
        let most = Some(u64::from(most).min(held));
        rustix::process::setrlimit(Resource::Nproc, Rlimit { current: most, maximum: most })?;
    }
    if let Some(user) = place.user {
        become_user(user)?;
    }
    Ok(Settled { channel, environment: place.environment })
}

/// Becomes a user and its group. The process has one thread yet.
fn become_user(user: u32) -> Result<()> {
    use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
    let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    Ok(())
}
