//! Run time and run count of the programs, from the kernel's accounting.

use std::os::fd::OwnedFd;
use std::time::Duration;

use aya::programs::{ProgramError, loaded_programs};

/// Names of the programs of this crate, in the kernel's form (at most 15 bytes).
const PROGRAMS: [&str; 4] = ["link_ingress", "hold_ingress", "link_xdp", "restore_window"];

/// Run time of one loaded program since accounting was enabled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    /// Kernel-wide identifier of the program.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Time spent in it on all cores.
    pub run_time: Duration,
    /// Number of runs.
    pub runs: u64,
}

/// Enables accounting as long as the descriptor is open (Linux ≥ 5.8).
///
/// # Errors
/// The kernel refuses access; CAP_SYS_ADMIN is needed.
pub fn enable() -> std::io::Result<OwnedFd> {
    aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|error| error.io_error)
}

/// Returns the cost of every steering program loaded on this machine, by any process.
///
/// # Errors
/// The kernel refuses access; CAP_SYS_ADMIN is needed.
pub fn program_costs() -> Result<Vec<ProgramCost>, ProgramError> {
    let mut costs = Vec::new();
    for info in loaded_programs() {
        // A program may be unloaded between the listing and the query.
        let Ok(info) = info else { continue };
        let Some(name) = info.name_as_str().filter(|name| PROGRAMS.contains(name)) else {
            continue;
        };
        costs.push(ProgramCost {
            id: info.id(),
            name: name.to_owned(),
            run_time: info.run_time(),
            runs: info.run_count(),
        });
    }
    Ok(costs)
}
