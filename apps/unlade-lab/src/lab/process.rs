//! The lab's processes: start them inside a namespace, recognise them later, stop them, and
//! read what they use. A process is its number *and* its start time: numbers are reused.

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end after SIGTERM before it is killed.
const TERM_WAIT: Duration = Duration::from_millis(1500);
/// How long the kernel may take to end a killed process.
const KILL_WAIT: Duration = Duration::from_secs(5);
/// Part of a log that is shown when its process fails.
const LOG_TAIL_BYTES: u64 = 4096;

/// A process, told apart from any later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    pub pid: u32,
    /// Clock ticks from boot to its start.
    pub start_ticks: u64,
}

/// A process of a lab, as its state records it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Process {
    /// `lb`, `lb-proxy`, `nginx`, `haproxy`, `s1`, …
    pub name: String,
    pub namespace: String,
    pub command: Vec<String>,
    pub log: PathBuf,
    pub identity: Identity,
}

/// The fields of `/proc/PID/stat` after the name, which may itself hold spaces and brackets.
/// The first is the state, field 3 of the manual page.
fn stat_fields(pid: u32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_ascii_whitespace().map(str::to_owned).collect())
}

/// Identity of a running process; `None` if there is none or it only waits to be reaped. A process whose
/// first thread has ended runs as long as another one does: that one may load a program into the kernel,
/// and keeps the sockets open.
pub fn identify(pid: u32) -> Option<Identity> {
    let fields = stat_fields(pid)?;
    let threads: u32 = fields.get(17)?.parse().ok()?;
    if matches!(fields.first()?.as_str(), "Z" | "X") && threads <= 1 {
        return None;
    }
    Some(Identity { pid, start_ticks: fields.get(19)?.parse().ok()? })
}

impl Identity {
    pub fn is_alive(self) -> bool {
        identify(self.pid) == Some(self)
    }

    /// Sends `signal`, never to another process that got the number since.
    fn send(self, signal: Signal) {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else { return };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
        // The handle pins the process; only now is the start time proof of who it is.
        if self.is_alive() {
            let _ = pidfd_send_signal(&handle, signal);
        }
    }
}

/// Starts `command` inside `namespace` with a session of its own, its output in `log`.
///
/// # Errors
/// The log cannot be written or `ip` cannot be run. What `command` does later is for the
/// caller to watch.
pub fn start(namespace: &str, name: &str, command: &[String], log: &Path) -> Result<Process> {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("opening {}", log.display()))?;
    // setsid and `ip netns exec` replace themselves, so the child's number is the command's:
    // the session's number too, by which its own children are found.
    let child = Command::new("setsid")
        .args(["ip", "netns", "exec", namespace])
        .args(command)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("starting {name}"))?;
    let pid = child.id();
    let Some(identity) = identify(pid) else {
        bail!("{name} ended at once; its log says:\n{}", log_tail(log));
    };
    Ok(Process {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        command: command.to_owned(),
        log: log.to_owned(),
        identity,
    })
}

/// Ends all of `processes`: politely, then by force.
///
/// # Errors
/// One is still there after SIGKILL and a long wait.
pub fn stop(processes: &[Identity], first: Signal) -> Result<()> {
    processes.iter().for_each(|process| process.send(first));
    if wait_gone(processes, TERM_WAIT) {
        return Ok(());
    }
    processes.iter().for_each(|process| process.send(Signal::KILL));
    if !wait_gone(processes, KILL_WAIT) {
        let left = processes.iter().filter(|p| p.is_alive()).map(|p| p.pid.to_string());
        bail!("processes {} do not end", left.collect::<Vec<_>>().join(", "));
    }
    Ok(())
}

fn wait_gone(processes: &[Identity], wait: Duration) -> bool {
    let deadline = Instant::now() + wait;
    loop {
        if !processes.iter().any(|process| process.is_alive()) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The process and everything it started: all that are in its session.
pub fn session_members(leader: u32) -> Vec<u32> {
    let session = leader.to_string();
    let is_member =
        |pid: &u32| stat_fields(*pid).is_some_and(|fields| fields.get(3) == Some(&session));
    numbers().filter(is_member).collect()
}

/// The numbers of all processes.
pub fn numbers() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Processor time of a process's threads, in nanoseconds, to the scheduler's own precision.
pub fn cpu_ns(pid: u32) -> u64 {
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else { return 0 };
    tasks
        .flatten()
        .filter_map(|task| fs::read_to_string(task.path().join("schedstat")).ok())
        .filter_map(|text| text.split_ascii_whitespace().next()?.parse::<u64>().ok())
        .sum()
}

/// Memory that a process has in use.
pub fn resident_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// The end of a log.
pub fn log_tail(log: &Path) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match read() {
        Ok(text) if text.trim().is_empty() => "(its log is empty)".to_owned(),
        Ok(text) => text.trim_end().to_owned(),
        Err(error) => format!("(its log {} cannot be read: {error})", log.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_recognised() {
        let me = identify(std::process::id()).unwrap();
        assert!(me.is_alive());
        let impostor = Identity { start_ticks: me.start_ticks + 1, ..me };
        assert!(!impostor.is_alive());
        // Nothing is sent to a process that is not the one meant.
        impostor.send(Signal::KILL);
        assert!(resident_bytes(me.pid) > 0);
    }

    #[test]
    fn a_process_lives_as_long_as_one_of_its_threads() {
        let script = "import ctypes, threading, time\n\
            threading.Thread(target=time.sleep, args=(600,)).start()\n\
            ctypes.CDLL(None).pthread_exit(None)";
        let mut child = Command::new("python3").args(["-c", script]).spawn().unwrap();
        let state = || stat_fields(child.id()).and_then(|fields| fields.first().cloned());
        let deadline = Instant::now() + Duration::from_secs(30);
        while state().as_deref() != Some("Z") {
            assert!(Instant::now() < deadline, "the first thread does not end: {:?}", state());
            std::thread::sleep(Duration::from_millis(10));
        }
        let identity = identify(child.id()).expect("a thread of it sleeps");
        stop(&[identity], Signal::TERM).unwrap();
        assert!(!identity.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn stop_forces_what_does_not_listen() {
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0u8; 6];
        child.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        let identity = identify(child.id()).unwrap();
        stop(&[identity], Signal::TERM).unwrap();
        assert!(!identity.is_alive());
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn tail_of_a_log() {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().join("x.log");
        assert!(log_tail(&log).contains("cannot be read"));
        fs::write(&log, "a".repeat(10_000) + "end\n").unwrap();
        let tail = log_tail(&log);
        assert!(tail.ends_with("end") && tail.len() <= 4096);
    }
}
