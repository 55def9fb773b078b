//! The resource usage of a machine: proc(5), `smaps` and `stat`.

use std::fs;
use std::io;
use std::time::Duration;

use unlade_fn_model::isolation::Usage;

/// The name of a machine's RAM file in `smaps`.
pub(super) const RAM: &str = "unlade-ram";
/// USER_HZ, which is constant on all supported machines.
const TICKS_PER_SECOND: u64 = 100;

/// The usage of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MachineUsage {
    /// The total.
    pub usage: Usage,
    /// Its share of the snapshot: pages of the template's file that it maps and has not written.
    pub snapshot_bytes: u64,
}

/// The usage of a process.
///
/// # Errors
/// The process has ended.
pub(super) fn of_process(process: u32) -> io::Result<MachineUsage> {
    let mut found = memory(&fs::read_to_string(format!("/proc/{process}/smaps"))?);
    found.usage.cpu = cpu_of_process(process)?;
    Ok(found)
}

/// The CPU time of a process.
///
/// # Errors
/// The process has ended.
pub(super) fn cpu_of_process(process: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    cpu(&text).ok_or_else(|| io::Error::other("the process's stat is not understood"))
}

fn memory(smaps: &str) -> MachineUsage {
    let mut found = MachineUsage::default();
    let mut is_ram = false;
    let (mut ram_pss, mut ram_own) = (0, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let Some(first) = words.next() else { continue };
        let Some(name) = first.strip_suffix(':') else {
            is_ram = line.contains(RAM);
            continue;
        };
        let kib: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        match (name, is_ram) {
            ("Pss", true) => ram_pss += kib,
            // A page of the snapshot that only this machine maps at the moment is not its own.
            ("Anonymous", true) => ram_own += kib,
            ("Pss", false) => found.usage.pss_bytes += kib << 10,
            ("Private_Clean" | "Private_Dirty", false) => found.usage.private_bytes += kib << 10,
            _ => {}
        }
    }
    found.usage.pss_bytes += ram_pss << 10;
    found.usage.private_bytes += ram_own << 10;
    found.snapshot_bytes = ram_pss.saturating_sub(ram_own) << 10;
    found
}

/// `utime` and `stime` are fields 14 and 15; the name in field 2 may contain any character.
fn cpu(stat: &str) -> Option<Duration> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * 1000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_the_snapshot_are_not_the_machines_own() {
        let smaps = "7f00-7f01 rw-p 00000000 00:01 1  /memfd:unlade-ram (deleted)\n\
            Rss: 100 kB\nPss: 60 kB\nPss_Dirty: 60 kB\nPrivate_Clean: 0 kB\n\
            Private_Dirty: 50 kB\nAnonymous: 20 kB\nAnonHugePages: 0 kB\n\
            7f02-7f03 rw-s 00000000 00:01 2  /memfd:unlade-region (deleted)\n\
            Pss: 8 kB\nPrivate_Dirty: 0 kB\nAnonymous: 0 kB\n\
            7f04-7f05 rw-p 00000000 00:00 0 \n\
            Pss: 30 kB\nPrivate_Clean: 1 kB\nPrivate_Dirty: 29 kB\nAnonymous: 29 kB\n";
        let found = memory(smaps);
        assert_eq!(found.usage.pss_bytes, 98 << 10);
        assert_eq!(found.usage.private_bytes, 50 << 10);
        assert_eq!(found.snapshot_bytes, 40 << 10);
    }

    #[test]
    fn time_is_read_behind_any_name() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0";
        assert_eq!(cpu(stat), Some(Duration::from_secs(3)));
        assert_eq!(cpu("7 (a"), None);
    }

    #[test]
    fn this_process_has_used_something() {
        let found = of_process(std::process::id()).unwrap();
        assert!(found.usage.private_bytes > 0);
        assert!(found.usage.pss_bytes >= found.usage.private_bytes);
        assert_eq!(found.snapshot_bytes, 0);
    }
}
