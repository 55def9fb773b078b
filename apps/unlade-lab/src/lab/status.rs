//! `unlade-lab status`: what runs, where, and what it uses.

use super::process::{cpu_ns, resident_bytes, session_members};
use super::state::State;
use anyhow::Result;
use serde::Serialize;
use unlade_command::output::line as out;

/// One line of the table.
#[derive(Debug, Serialize)]
struct Line<'s> {
    process: &'s str,
    namespace: &'s str,
    pid: u32,
    alive: bool,
    resident_bytes: u64,
    cpu_ms: u64,
}

/// Prints the lab's processes as a table, or as one JSON object.
///
/// # Errors
/// Standard output cannot be written.
pub fn print(state: &State, json: bool) -> Result<()> {
    let lines: Vec<Line<'_>> = state.processes.iter().map(line).collect();
    if json {
        let whole = serde_json::json!({
            "name": state.name, "id": state.id, "ready": state.ready, "spec": state.spec,
            "virtual_v4": state.plan().virtual_v4(), "virtual_v6": state.plan().virtual_v6(),
            "processes": lines,
        });
        return out(whole);
    }
    let plan = state.plan();
    let ready = if state.ready { "up" } else { "not completely up" };
    let (v4, v6) = (plan.virtual_v4(), plan.virtual_v6());
    out(format_args!("lab {}: {ready}, virtual IP {v4} and {v6}", state.name))?;
    out(format_args!(
        "{:<10} {:<24} {:>8} {:<6} {:>9} {:>10}",
        "process", "namespace", "pid", "alive", "rss MiB", "cpu s"
    ))?;
    for line in lines {
        out(format_args!(
            "{:<10} {:<24} {:>8} {:<6} {:>9.1} {:>10.2}",
            line.process,
            line.namespace,
            line.pid,
            if line.alive { "yes" } else { "no" },
            line.resident_bytes as f64 / 1_048_576.0,
            line.cpu_ms as f64 / 1e3
        ))?;
    }
    Ok(())
}

fn line(process: &super::process::Process) -> Line<'_> {
    let pid = process.identity.pid;
    let alive = process.identity.is_alive();
    let members = if alive { session_members(pid) } else { Vec::new() };
    Line {
        process: &process.name,
        namespace: &process.namespace,
        pid,
        alive,
        resident_bytes: members.iter().map(|&pid| resident_bytes(pid)).sum(),
        cpu_ms: members.iter().map(|&pid| cpu_ns(pid)).sum::<u64>() / 1_000_000,
    }
}
