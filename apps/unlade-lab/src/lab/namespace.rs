//! The network namespaces of labs: list them, find the processes inside.

use super::plan::LabName;
use super::process;
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use unlade_command::namespace::{NETNS_DIR, path};

/// Where `ip netns exec` looks for files to show inside a namespace.
const NETNS_FILES: &str = "/etc/netns";

/// The directory with the files that a namespace sees instead of those in `/etc`.
pub fn name_files_dir(namespace: &str) -> PathBuf {
    Path::new(NETNS_FILES).join(namespace)
}

/// Names of the namespaces of one lab, or of every lab.
pub fn of_labs(only: Option<&LabName>) -> Vec<(LabName, String)> {
    let Ok(entries) = fs::read_dir(NETNS_DIR) else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter_map(|namespace| Some((LabName::of_namespace(&namespace)?, namespace)))
        .filter(|(lab, _)| only.is_none_or(|only| only == lab))
        .collect()
}

/// Every process that is inside one of `namespaces`.
pub fn inhabitants(namespaces: &[String]) -> Vec<u32> {
    let identity = |path: &Path| fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
    let wanted: Vec<_> = namespaces.iter().filter_map(|name| identity(&path(name))).collect();
    let lives_there = |pid: &u32| {
        identity(Path::new(&format!("/proc/{pid}/ns/net")))
            .is_some_and(|found| wanted.contains(&found))
    };
    process::numbers().filter(lives_there).collect()
}

/// Every `ip` that is told to do something in a namespace of `lab`, or is about to make one: a tool
/// outlives the `up` that started it and was killed.
pub fn tools_at_work(lab: &LabName) -> Vec<u32> {
    let command_line = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    process::numbers().filter(|pid| works_on(&command_line(*pid), lab)).collect()
}

/// Returns true if a command line (words that each end in a zero) is `ip` on a namespace of `lab`.
/// A process of the lab is `setsid`, then `ip`, before it is itself.
fn works_on(command_line: &[u8], lab: &LabName) -> bool {
    let mut words = command_line.split(|byte| *byte == 0).map(String::from_utf8_lossy);
    let program = words.next().unwrap_or_default();
    matches!(program.rsplit('/').next(), Some("ip" | "setsid"))
        && words.any(|word| LabName::of_namespace(&word).as_ref() == Some(lab))
}

/// Writes `/proc/sys/net` settings as seen inside the calling thread's namespace.
///
/// # Errors
/// A setting is absent or refused; the message names it.
pub fn write_sysctls(settings: &[(String, &str)]) -> Result<()> {
    for (key, value) in settings {
        let path = format!("/proc/sys/net/{key}");
        fs::write(&path, value).with_context(|| format!("writing {value} to {path}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn a_tool_is_known_by_what_it_works_on() {
        let lab: LabName = "some_lab".parse().unwrap();
        for (line, expected) in [
            ("ip\0netns\0add\0unlade-some_lab-sw\0", true),
            ("/usr/sbin/ip\0-n\0unlade-some_lab-s1\0-batch\0-\0", true),
            ("setsid\0ip\0netns\0exec\0unlade-some_lab-lb\0unlade\0", true),
            ("ip\0netns\0add\0unlade-another-sw\0", false),
            ("ip\0netns\0add\0unlade-some_lab-printer\0", false),
            ("grep\0unlade-some_lab-sw\0", false),
            ("ip", false),
            ("", false),
        ] {
            assert_eq!(works_on(line.as_bytes(), &lab), expected, "{line:?}");
        }
    }

    #[test]
    fn tools_of_one_lab_are_found() {
        let lab: LabName = format!("tools{}", std::process::id()).parse().unwrap();
        let mut tool = Command::new("sh")
            .arg0("ip")
            .args(["-c", "read line; exit", &format!("unlade-{lab}-sw")])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        // Its words are to be read a moment after it has begun.
        let deadline = Instant::now() + Duration::from_secs(60);
        while tools_at_work(&lab) != [tool.id()] {
            assert!(Instant::now() < deadline, "the tool is not found");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(tools_at_work(&"another".parse().unwrap()).is_empty());
        tool.kill().unwrap();
        tool.wait().unwrap();
        assert!(tools_at_work(&lab).is_empty());
    }
}
