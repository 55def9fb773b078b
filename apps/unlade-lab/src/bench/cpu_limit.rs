//! Processes with a part of a processor, by a control group (version 2, or `cpu` of version 1).

use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

/// Length of a period in which the group gets its part, µs: short, so that a pause is not much longer
/// than a request takes.
const PERIOD_US: u64 = 10_000;
/// Attempts to remove a group whose processes are ending.
const REMOVALS_MAX: u32 = 200;

/// A control group with a part of a processor; dropping it lets its processes go, and removes it.
#[derive(Debug)]
pub struct CpuLimit {
    group: PathBuf,
}

impl CpuLimit {
    /// Moves processes into a new group with `share` of a processor.
    ///
    /// # Errors
    /// The kernel has no such controller here, or a file cannot be written.
    pub fn new(name: &str, share: f64, processes: &[u32]) -> Result<CpuLimit> {
        let quota = format!("{}", (share * PERIOD_US as f64) as u64);
        let (root, settings) = match Path::new("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").exists() {
            true => {
                let period = ("cpu.cfs_period_us", PERIOD_US.to_string());
                ("/sys/fs/cgroup/cpu", vec![period, ("cpu.cfs_quota_us", quota)])
            }
            false => ("/sys/fs/cgroup", vec![("cpu.max", format!("{quota} {PERIOD_US}"))]),
        };
        let limit = CpuLimit { group: Path::new(root).join(name) };
        let group = limit.group.display();
        fs::create_dir_all(&limit.group).with_context(|| format!("creating {group}"))?;
        for (file, value) in settings {
            let path = limit.group.join(file);
            if !path.exists() {
                bail!("{} is missing: does {root} have the controller `cpu`?", path.display());
            }
            fs::write(&path, value).with_context(|| format!("writing {}", path.display()))?;
        }
        for pid in processes {
            fs::write(limit.group.join("cgroup.procs"), pid.to_string())
                .with_context(|| format!("moving process {pid} to {group}"))?;
        }
        Ok(limit)
    }
}

impl Drop for CpuLimit {
    fn drop(&mut self) {
        let members = fs::read_to_string(self.group.join("cgroup.procs")).unwrap_or_default();
        if let Some(parent) = self.group.parent() {
            for pid in members.lines() {
                // It may have ended.
                let _ = fs::write(parent.join("cgroup.procs"), pid);
            }
        }
        // A process that was killed is a member until it has ended.
        let removed = (0..REMOVALS_MAX).find_map(|_| match fs::remove_dir(&self.group) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(10));
                None
            }
            other => Some(other),
        });
        match removed {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                eprintln!("unlade: {} is not removed: {error}", self.group.display());
            }
            None => eprintln!("unlade: {} still has processes", self.group.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_is_limited_and_the_group_goes() {
        let mut child =
            Command::new("sleep").arg("60").stdout(Stdio::null()).spawn().expect("sleep runs");
        let name = format!("unlade-test-{}", std::process::id());
        match CpuLimit::new(&name, 0.25, &[child.id()]) {
            Ok(limit) => {
                let group = limit.group.clone();
                let members = fs::read_to_string(group.join("cgroup.procs")).unwrap();
                assert_eq!(members.trim(), child.id().to_string());
                drop(limit);
                assert!(!group.exists());
            }
            Err(error) => println!("skipped: {error:#}"),
        }
        child.kill().expect("it runs");
        child.wait().expect("it has ended");
    }
}
