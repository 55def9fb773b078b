//! Processor time: of processes to the scheduler's precision, of their BPF programs as the
//! kernel accounts them, and of the whole machine.

use crate::lab::process::{cpu_ns, session_members};
use anyhow::{Context, Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::collections::BTreeSet;
use std::fs;
use std::time::Instant;

/// Nanoseconds of one clock tick of `/proc/stat` (USER_HZ is 100 on every Linux port).
const TICK_NS: u64 = 10_000_000;

/// Whom a meter watches: the leaders of sessions.
#[derive(Debug, Clone)]
pub struct Meter {
    front: Vec<u32>,
    servers: Vec<u32>,
    /// Numbers of the BPF programs that the front holds.
    programs: BTreeSet<u32>,
}

/// Usage up to a moment.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    at: Instant,
    front_ns: u64,
    bpf_ns: u64,
    servers_ns: u64,
    busy_ns: u64,
}

/// Usage between two readings.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    /// The front's processes.
    pub front_ns: u64,
    /// The front's BPF programs.
    pub bpf_ns: u64,
    pub servers_ns: u64,
    /// Everything on the machine.
    pub busy_ns: u64,
    /// Share of the machine's processors that was busy.
    pub busy_ratio: f64,
}

impl Meter {
    /// Watches the session of `front`, if there is one, and those of `servers`, as they are now.
    pub fn new(front: Option<u32>, servers: &[u32]) -> Meter {
        let members = front.map(session_members).unwrap_or_default();
        Meter {
            programs: members.iter().flat_map(|&pid| programs_of(pid)).collect(),
            front: members,
            servers: servers.iter().flat_map(|&pid| session_members(pid)).collect(),
        }
    }

    pub fn read(&self) -> Reading {
        Reading {
            front_ns: self.front.iter().map(|&pid| cpu_ns(pid)).sum(),
            servers_ns: self.servers.iter().map(|&pid| cpu_ns(pid)).sum(),
            bpf_ns: self.bpf_ns(),
            busy_ns: machine_busy_ns(),
            at: Instant::now(),
        }
    }

    fn bpf_ns(&self) -> u64 {
        if self.programs.is_empty() {
            return 0;
        }
        let costs = unlade_steering::stats::program_costs().unwrap_or_default();
        let own = costs.iter().filter(|cost| self.programs.contains(&cost.id));
        own.map(|cost| u64::try_from(cost.run_time.as_nanos()).unwrap_or(u64::MAX)).sum()
    }
}

impl Reading {
    /// Usage from `self` to `later`.
    pub fn until(&self, later: &Reading) -> Usage {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let wall_ns = later.at.duration_since(self.at).as_nanos() as f64;
        let busy_ns = later.busy_ns.saturating_sub(self.busy_ns);
        Usage {
            front_ns: later.front_ns.saturating_sub(self.front_ns),
            bpf_ns: later.bpf_ns.saturating_sub(self.bpf_ns),
            servers_ns: later.servers_ns.saturating_sub(self.servers_ns),
            busy_ns,
            busy_ratio: (busy_ns as f64 / (wall_ns * cpus).max(1.0)).min(1.0),
        }
    }
}

/// Numbers of the BPF programs that a process holds, directly or through links.
fn programs_of(pid: u32) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fdinfo")) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .filter_map(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("prog_id:"));
            line.and_then(|number| number.trim().parse().ok())
        })
        .collect()
}

fn machine_busy_ns() -> u64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    busy_ticks(&text).unwrap_or(0) * TICK_NS
}

/// Ticks of the first line that were not idle: user, nice, system, irq, softirq, steal.
fn busy_ticks(stat: &str) -> Option<u64> {
    let mut words = stat.lines().next()?.split_ascii_whitespace();
    if words.next()? != "cpu" {
        return None;
    }
    let ticks: Vec<u64> = words.map(|word| word.parse().unwrap_or(0)).collect();
    Some([0, 1, 2, 5, 6, 7].iter().filter_map(|&index| ticks.get(index)).sum())
}

/// Keeps the calling thread, and whatever it starts from now on, on one processor.
///
/// # Errors
/// There is no such processor, or this thread may not run there.
pub fn stay_on(processor: usize) -> Result<()> {
    if processor >= CpuSet::MAX_CPU {
        bail!("there is no processor {processor}");
    }
    let mut set = CpuSet::new();
    set.set(processor);
    sched_setaffinity(None, &set).with_context(|| format!("staying on processor {processor}"))
}

/// The first processor that the calling thread may run on.
pub fn first_processor() -> usize {
    let allowed = sched_getaffinity(None).ok();
    allowed.and_then(|set| (0..CpuSet::MAX_CPU).find(|&cpu| set.is_set(cpu))).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_time_is_not_busy() {
        let stat = "cpu  10 1 20 1000 50 3 4 5 0 0\ncpu0 1 1 1 1\n";
        assert_eq!(busy_ticks(stat), Some(43));
        assert_eq!(busy_ticks("intr 1"), None);
    }

    #[test]
    fn readings_only_grow() {
        let meter = Meter::new(Some(std::process::id()), &[]);
        let first = meter.read();
        let usage = first.until(&meter.read());
        assert!(usage.busy_ratio <= 1.0);
        assert_eq!(usage.bpf_ns, 0);
    }
}
