//! Records of a lab on disk, written before anything else is made, so that everything that an
//! interrupted `up` leaves can be found and removed.

use super::plan::{LABS_MAX, LabName, Plan, STATE_ROOT, Spec};
use super::process::{Identity, Process, identify};
use anyhow::{Context, Result, bail};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The recorded state of a lab.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct State {
    pub name: LabName,
    pub id: u8,
    pub spec: Spec,
    /// The `up` that makes or made it.
    pub builder: Identity,
    /// `up` ended well.
    pub ready: bool,
    pub processes: Vec<Process>,
}

impl State {
    /// A new lab that this process is going to build.
    ///
    /// # Errors
    /// This process cannot find itself in `/proc`.
    pub fn new(plan: &Plan) -> Result<State> {
        let builder = identify(std::process::id()).context("/proc is not mounted")?;
        Ok(State {
            name: plan.name.clone(),
            id: plan.id,
            spec: plan.spec.clone(),
            builder,
            ready: false,
            processes: Vec::new(),
        })
    }

    pub fn plan(&self) -> Plan {
        Plan { name: self.name.clone(), id: self.id, spec: self.spec.clone() }
    }

    /// The process of this name.
    pub fn process(&self, name: &str) -> Option<&Process> {
        self.processes.iter().find(|process| process.name == name)
    }

    /// Writes the state; a reader sees the old or the new one, never half.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self) -> Result<()> {
        let dir = self.name.state_dir();
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let (new, path) = (dir.join("state.json.new"), file(&self.name));
        let text = serde_json::to_string_pretty(self)?;
        fs::write(&new, text + "\n").with_context(|| format!("writing {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("writing {}", path.display()))
    }

    /// Returns true if another process uses or builds a lab of this name: it must not be removed
    /// without being asked to.
    pub fn is_live(&self) -> bool {
        match self.ready {
            true => {
                self.spec.bare || self.processes.iter().any(|process| process.identity.is_alive())
            }
            false => self.builder.is_alive() && self.builder.pid != std::process::id(),
        }
    }
}

fn file(name: &LabName) -> PathBuf {
    name.state_dir().join("state.json")
}

/// The state of a lab; `None` when there is no such lab.
///
/// # Errors
/// The file is there but cannot be read or understood.
pub fn load(name: &LabName) -> Result<Option<State>> {
    let path = file(name);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    let state = serde_json::from_str(&text).with_context(|| {
        format!("{} is damaged; `unlade-lab down --name {name}` removes it", path.display())
    })?;
    Ok(Some(state))
}

/// The state of a lab that must be up.
///
/// # Errors
/// There is no such lab, or its state cannot be read.
pub fn require(name: &LabName) -> Result<State> {
    match load(name)? {
        Some(state) => Ok(state),
        None => bail!("there is no lab `{name}`; `unlade-lab up --name {name}` builds it"),
    }
}

/// Names of the labs that have a state directory.
pub fn names() -> Vec<LabName> {
    let Ok(entries) = fs::read_dir(STATE_ROOT) else { return Vec::new() };
    let mut names: Vec<LabName> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    names.sort_by(|a, b| a.as_str().cmp(b.as_str()));
    names
}

/// Held while labs are counted, made known or removed; released when dropped.
#[derive(Debug)]
pub struct Lock {
    _dir: File,
}

/// Waits for the lock over all labs.
///
/// # Errors
/// The state directory cannot be made: usually for want of root.
pub fn lock() -> Result<Lock> {
    let root = Path::new(STATE_ROOT);
    fs::create_dir_all(root)
        .with_context(|| format!("creating {}; labs need root", root.display()))?;
    let dir = File::open(root)?;
    flock(&dir, FlockOperation::LockExclusive)?;
    Ok(Lock { _dir: dir })
}

/// A number that no other lab has, the same one for a name whenever it is free.
///
/// # Errors
/// Every number is taken.
pub fn free_id(name: &LabName) -> Result<u8> {
    let taken: Vec<u8> = names()
        .iter()
        .filter(|other| *other != name)
        .filter_map(|other| load(other).ok().flatten())
        .map(|state| state.id)
        .collect();
    first_free(name, &taken)
}

fn first_free(name: &LabName, taken: &[u8]) -> Result<u8> {
    // FNV-1a: any spread will do, but it must not change from run to run.
    let hash = name.as_str().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let first = (hash % u64::from(LABS_MAX)) as u16;
    let candidates =
        (0..u16::from(LABS_MAX)).map(|step| ((first + step) % u16::from(LABS_MAX)) as u8 + 1);
    candidates
        .into_iter()
        .find(|id| !taken.contains(id))
        .with_context(|| format!("{LABS_MAX} labs exist; remove one with `unlade-lab down`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_stable_and_distinct() {
        let name: LabName = "lab".parse().unwrap();
        let first = first_free(&name, &[]).unwrap();
        assert_eq!(first_free(&name, &[]).unwrap(), first);
        assert_ne!(first_free(&name, &[first]).unwrap(), first);
        let all: Vec<u8> = (1..=LABS_MAX).collect();
        assert!(first_free(&name, &all).is_err());
    }
}
