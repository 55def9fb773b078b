//! The resource usage of processes, from `/proc`.

use std::io;
use std::time::Duration;

use rustix::process::Pid;
use unlade_fn_model::isolation::Usage;

/// Sum of the usage of these processes; ended ones count as zero.
///
/// # Errors
/// The first process has ended.
pub fn of(pids: &[Pid], cpu: Option<Duration>) -> io::Result<Usage> {
    let mut sum = Usage::default();
    for (number, pid) in pids.iter().enumerate() {
        let read = |name| std::fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero()));
        let one = read("smaps_rollup").and_then(|memory| Ok((memory, read("stat")?)));
        match one {
            Ok((memory, stat)) => {
                sum.pss_bytes += kibibytes(&memory, &["Pss:"]);
                sum.private_bytes +=
                    kibibytes(&memory, &["Private_Clean:", "Private_Dirty:", "Private_Hugetlb:"]);
                sum.cpu += processor(&stat);
            }
            Err(error) if number == 0 => return Err(error),
            Err(_) => {}
        }
    }
    sum.cpu = cpu.unwrap_or(sum.cpu);
    Ok(sum)
}

/// Most memory that a process has had, in bytes; `None` if it has ended.
pub fn peak_bytes(pid: Pid) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    Some(kibibytes(&text, &["VmHWM:"]))
}

/// Bytes in the `/tmp` of a process; 0 if it has ended.
pub fn scratch_bytes(pid: Pid) -> u64 {
    let path = format!("/proc/{}/root/tmp", pid.as_raw_nonzero());
    rustix::fs::statvfs(path)
        .map_or(0, |found| found.f_blocks.saturating_sub(found.f_bfree) * found.f_frsize)
}

fn kibibytes(text: &str, names: &[&str]) -> u64 {
    let value = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        names.contains(&name).then(|| words.next()?.parse::<u64>().ok()).flatten()
    };
    text.lines().filter_map(value).sum::<u64>() * 1024
}

/// Its own CPU time, and that of its children that it has waited for.
fn processor(stat: &str) -> Duration {
    // The preceding name may contain any character.
    let Some((_, rest)) = stat.rsplit_once(')') else { return Duration::ZERO };
    let ticks: u64 = rest
        .split_whitespace()
        .skip(11)
        .take(4)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum();
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_micros(ticks.saturating_mul(1_000_000) / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_of_the_right_lines() {
        let text = "55-7f ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss: 300 kB\n\
            Pss_Dirty: 200 kB\nPrivate_Clean: 10 kB\nPrivate_Dirty: 90 kB\n";
        assert_eq!(kibibytes(text, &["Pss:"]), 300 * 1024);
        assert_eq!(kibibytes(text, &["Private_Clean:", "Private_Dirty:"]), 100 * 1024);
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 1 2 3 4 100 50 25 25 20 0 1 0 5 6 7";
        let second =
            Duration::from_micros(200 * 1_000_000 / rustix::param::clock_ticks_per_second());
        assert_eq!(processor(stat), second);
        assert_eq!(processor("nothing"), Duration::ZERO);
    }

    #[test]
    fn this_process_uses_something_and_none_nothing() {
        let own = of(&[rustix::process::getpid()], None).unwrap();
        assert!(own.pss_bytes > own.private_bytes / 2 && own.private_bytes > 0);
        assert!(of(&[Pid::from_raw(i32::MAX).unwrap()], None).is_err());
        assert!(peak_bytes(rustix::process::getpid()) >= Some(own.private_bytes));
        assert_eq!(peak_bytes(Pid::from_raw(i32::MAX).unwrap()), None);
        assert_eq!(scratch_bytes(Pid::from_raw(i32::MAX).unwrap()), 0);
    }
}
