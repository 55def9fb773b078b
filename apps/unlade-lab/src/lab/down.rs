//! `unlade-lab down`: nothing of a lab stays. Works from what is really there (processes inside
//! the namespaces, namespaces by name), so it also removes what an interrupted `up` left.

use super::namespace::name_files_dir;
use super::plan::LabName;
use super::process::{Identity, identify, session_members, stop};
use super::{namespace, state};
use anyhow::{Context, Result};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use unlade_command::tools::run;

/// Removes a lab; a lab that does not exist is removed already.
///
/// # Errors
/// A process does not end or a namespace, directory or file cannot be removed. Everything else
/// is removed all the same.
pub fn remove(name: &LabName) -> Result<()> {
    // First, so that no process makes another namespace meanwhile.
    let stopped = stop(&processes(name), Signal::TERM);
    let mut problems: Vec<String> = stopped.err().iter().map(|e| format!("{e:#}")).collect();
    for (_, namespace) in namespace::of_labs(Some(name)) {
        if let Err(error) = run("ip", &["netns", "del", &namespace]) {
            problems.push(format!("{error:#}"));
        }
    }
    for dir in leftover_dirs(name) {
        if let Err(error) = remove_dir(&dir) {
            problems.push(format!("{error:#}"));
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(anyhow::anyhow!("{}", problems.join("; "))),
    }
}

/// Every process that belongs to the lab: recorded ones with their children, those in
/// its namespaces, and tools that are still at work on these.
fn processes(name: &LabName) -> Vec<Identity> {
    let recorded = state::load(name).ok().flatten().map(|state| state.processes);
    let alive = recorded.into_iter().flatten().filter(|process| process.identity.is_alive());
    let mut pids: Vec<u32> =
        alive.flat_map(|process| session_members(process.identity.pid)).collect();
    let namespaces: Vec<String> =
        namespace::of_labs(Some(name)).into_iter().map(|(_, namespace)| namespace).collect();
    pids.extend(namespace::inhabitants(&namespaces));
    pids.extend(namespace::tools_at_work(name));
    pids.retain(|&pid| pid != std::process::id());
    pids.sort_unstable();
    pids.dedup();
    pids.into_iter().filter_map(identify).collect()
}

fn leftover_dirs(name: &LabName) -> Vec<std::path::PathBuf> {
    let mut dirs = vec![name.state_dir()];
    let root = name_files_dir("");
    if let Ok(entries) = fs::read_dir(&root) {
        let namespaces = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let own = namespaces.filter(|ns| LabName::of_namespace(ns).as_ref() == Some(name));
        dirs.extend(own.map(|namespace| name_files_dir(&namespace)));
    }
    dirs
}

fn remove_dir(dir: &Path) -> Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", dir.display()))
        }
        _ => Ok(()),
    }
}

/// Removes every lab there is a trace of; returns their names.
///
/// # Errors
/// See [`remove`].
pub fn remove_all() -> Result<Vec<LabName>> {
    let mut names = state::names();
    for (name, _) in namespace::of_labs(None) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    for name in &names {
        remove(name).with_context(|| format!("lab `{name}`"))?;
    }
    Ok(names)
}
