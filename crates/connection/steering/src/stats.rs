//! What the programs cost: run time and run count, as the kernel accounts them.

use std::os::fd::OwnedFd;
use std::time::Duration;

use aya::programs::{ProgramError, loaded_programs};

/// Names of the programs of this crate, as the kernel shows them (15 bytes at most).
const PROGRAMS: [&str; 4] = ["link_ingress", "hold_ingress", "link_xdp", "restore_window"];

/// Run time of one loaded program since accounting was switched on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramCost {
    /// Kernel-wide number of the program.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// Time spent in it on all cores.
    pub run_time: Duration,
    /// Times it ran.
    pub runs: u64,
}

/// Switches accounting on, for as long as the descriptor is open (Linux ≥ 5.8).
///
/// # Errors
/// The kernel's; CAP_SYS_ADMIN is needed.
pub fn enable() -> std::io::Result<OwnedFd> {
    aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|error| error.io_error)
}

/// The cost of every steering program loaded on this machine, of this process or another.
///
/// # Errors
/// The kernel's; CAP_SYS_ADMIN is needed.
pub fn program_costs() -> Result<Vec<ProgramCost>, ProgramError> {
    let mut costs = Vec::new();
    for info in loaded_programs() {
        // A program may vanish between listing and asking.
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
