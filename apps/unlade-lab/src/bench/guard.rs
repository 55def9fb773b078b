//! A lab for the length of an experiment: removed when the experiment ends, fails or is
//! interrupted; what a killed one left is removed by the next.

use crate::lab::interrupt::{self, Interruptible};
use crate::lab::plan::{LabName, Spec};
use crate::lab::state::{self, State};
use crate::lab::{down, up};
use anyhow::Result;

/// How labs of experiments are called, before the number of their process.
const PREFIX: &str = "bench_";

/// A lab that goes when this does.
pub struct LabGuard {
    pub state: State,
    gone: bool,
    _interruptible: Interruptible,
}

impl LabGuard {
    /// Builds a lab for `purpose`.
    ///
    /// # Errors
    /// As for `unlade-lab up`.
    pub fn up(purpose: &str, spec: Spec) -> Result<LabGuard> {
        remove_orphans();
        let name: LabName = format!("{PREFIX}{purpose}_{}", std::process::id())
            .parse()
            .map_err(|error: String| anyhow::anyhow!(error))?;
        let state = up::up(name.clone(), spec, true)?;
        let interruptible = interrupt::remove_on_interrupt(&name)?;
        Ok(LabGuard { state, gone: false, _interruptible: interruptible })
    }

    /// Removes the lab, and says when that fails.
    ///
    /// # Errors
    /// As for `unlade-lab down`.
    pub fn down(mut self) -> Result<()> {
        self.gone = true;
        let _lock = state::lock()?;
        down::remove(&self.state.name)
    }
}

impl Drop for LabGuard {
    fn drop(&mut self) {
        if self.gone {
            return;
        }
        let removed = state::lock().and_then(|_lock| down::remove(&self.state.name));
        if let Err(error) = removed {
            eprintln!("unlade: lab `{}` is not removed: {error:#}", self.state.name);
        }
    }
}

/// Labs of experiments whose process is gone.
fn remove_orphans() {
    let Ok(_lock) = state::lock() else { return };
    for name in state::names().into_iter().filter(|name| name.as_str().starts_with(PREFIX)) {
        let orphan = match state::load(&name) {
            Ok(Some(state)) => !state.builder.is_alive(),
            _ => true,
        };
        if orphan && let Err(error) = down::remove(&name) {
            eprintln!("unlade: lab `{name}` of an earlier run is not removed: {error:#}");
        }
    }
}
