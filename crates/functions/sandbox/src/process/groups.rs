//! Control groups: resource limits and accounting of templates and instances.
//!
//! A template has one group in each hierarchy, which contains `zygote` and one group for each
//! instance. The freezer stops an instance between invocations: with version 1 a frozen process
//! ends only after it was thawed, so that each kill is followed by a thaw. With version 1 a process
//! enters a group itself: a thread that writes `0` to `tasks` moves at once, while a move of another
//! one waits for every processor in the kernel (5 ms and more).

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde::{Deserialize, Serialize};

/// The controllers in use.
const WANTED: [&str; 5] = ["memory", "cpu", "cpuacct", "pids", FREEZER];
/// The controller that stops processes. Version 2 has no such controller: every group can be frozen.
pub const FREEZER: &str = "freezer";
/// Most attempts to remove a group of a gateway that no longer runs, and the pause between them.
const SWEEPS_MAX: u32 = 50;
const SWEEP_PAUSE: std::time::Duration = std::time::Duration::from_millis(2);
/// Most bytes of one of their files.
const FILE_BYTES_MAX: usize = 64 * 1024;

/// The limits of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Memory, without the content of `/tmp`.
    pub memory_bytes: u64,
    /// Size of `/tmp`, which the kernel charges to the same group.
    pub scratch_bytes: u64,
    /// Processes and threads.
    pub processes: u32,
    /// Open files of each process.
    pub files: u32,
}

/// A hierarchy of control groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hierarchy {
    /// The mount point.
    pub mount: PathBuf,
    /// True for version 2.
    pub unified: bool,
    /// The controllers in use of this hierarchy.
    pub controllers: BTreeSet<String>,
}

/// The hierarchies of this machine with a controller in use.
pub fn hierarchies() -> Vec<Hierarchy> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let available = |mount: &Path| {
        let mut names =
            std::fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
        if freezes(mount) {
            names.push(' ');
            names.push_str(FREEZER);
        }
        names
    };
    of_mounts(&text, available)
}

/// Returns true if groups of version 2 can be frozen; the root group has no file for that, so that
/// one of its children shows it.
fn freezes(mount: &Path) -> bool {
    let children = std::fs::read_dir(mount).into_iter().flatten().flatten();
    let mut groups = children.filter(|child| child.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.next().is_none_or(|group| group.path().join(FREEZE_V2).exists())
}

fn of_mounts(mounts: &str, available: impl Fn(&Path) -> String) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mounts.lines() {
        let Some((place, kind)) = line.split_once(" - ") else { continue };
        let mut place = place.split(' ').skip(3);
        let (Some(root), Some(mount)) = (place.next(), place.next()) else { continue };
        let mount = PathBuf::from(mount);
        let mut kind = kind.split(' ');
        let (unified, names) = match (kind.next(), kind.nth(1)) {
            (Some("cgroup"), Some(options)) => (false, options.replace(',', " ")),
            (Some("cgroup2"), _) => (true, available(&mount)),
            _ => continue,
        };
        let taken = |name: &&str| found.iter().any(|other| other.controllers.contains(*name));
        let controllers: BTreeSet<String> = names
            .split_whitespace()
            .filter(|name| WANTED.contains(name) && !taken(name))
            .map(str::to_owned)
            .collect();
        // A hierarchy of version 2 for the freezer alone is not worth it: processes would have to be
        // moved there.
        let is_used = match unified {
            false => !controllers.is_empty(),
            true => controllers.iter().any(|name| name != FREEZER),
        };
        if root == "/" && is_used {
            found.push(Hierarchy { mount, unified, controllers });
        }
    }
    found
}

/// The name of a template's group, which contains the process and the function.
pub fn of_template(parent: &str, number: u32, function: &str) -> String {
    format!("{parent}/{}-{number}-{function}", std::process::id())
}

/// The name of an instance's group within its template's.
pub fn of_instance(slot: u32) -> String {
    format!("{INSTANCE}{slot}")
}

/// The beginning of the names of instances' groups.
const INSTANCE: &str = "instance-";

/// The name of the zygote's group.
pub const ZYGOTE: &str = "zygote";

/// Removes groups of gateways that no longer run. Their processes have been killed; those that were
/// frozen end only now.
pub fn sweep(parent: &str) {
    for hierarchy in hierarchies() {
        let Ok(groups) = std::fs::read_dir(hierarchy.mount.join(parent)) else { continue };
        for group in groups.flatten() {
            let name = group.file_name();
            let owner = name.to_str().and_then(|name| name.split('-').next()?.parse::<u32>().ok());
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                sweep_group(&hierarchy, &group.path());
            }
        }
    }
}

/// Removes the group of a template.
fn sweep_group(hierarchy: &Hierarchy, group: &Path) {
    for _ in 0..SWEEPS_MAX {
        let mut is_busy = false;
        for inner in std::fs::read_dir(group).into_iter().flatten().flatten() {
            // The group's other entries are files.
            if !inner.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if hierarchy.controllers.contains(FREEZER) {
                let (file, _, thawed) = freezer_of(hierarchy);
                let _ = write_existing(&inner.path().join(file), thawed);
            }
            is_busy |= std::fs::remove_dir(inner.path()).is_err();
        }
        if !is_busy {
            break;
        }
        std::thread::sleep(SWEEP_PAUSE);
    }
    let _ = std::fs::remove_dir(group);
}

const FREEZE_V2: &str = "cgroup.freeze";

/// Keeps an empty group frozen, which stays. With version 1 the kernel rewrites its code, and waits for
/// every processor, when the first group is frozen and when the last one is thawed: 100 µs each time
/// instead of 20.
pub fn hold_freezer(parent: &str) {
    let all = hierarchies();
    let Some(found) = all.iter().find(|h| !h.unified && h.controllers.contains(FREEZER)) else {
        return;
    };
    let group = found.mount.join(parent).join("frozen");
    let (file, frozen, _) = freezer_of(found);
    let held =
        std::fs::create_dir_all(&group).and_then(|()| write_existing(&group.join(file), frozen));
    if let Err(error) = held {
        // Freezing works without it.
        tracing::debug!(group = %group.display(), %error, "is not kept frozen");
    }
}

/// The file that freezes a group, and its values for frozen and thawed.
fn freezer_of(hierarchy: &Hierarchy) -> (&'static str, &'static str, &'static str) {
    match hierarchy.unified {
        false => ("freezer.state", "FROZEN", "THAWED"),
        true => (FREEZE_V2, "1", "0"),
    }
}

/// Writes to a file that must exist.
fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    use std::io::Write as _;
    std::fs::OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// The groups of a template, as open directories: the supervisor changes its root later.
pub struct Groups {
    template: Vec<(Hierarchy, OwnedFd)>,
    parents: Vec<(OwnedFd, String)>,
}

/// Memory of an instance that is charged to the zygote's group: pages and kernel objects of the
/// fork, from before the child is in its own group, which the kernel does not charge again later.
/// Measured: 1.2 MiB with CPython 3.11 and version 1; with version 2 a child stays for longer.
const FORKED_BYTES: u64 = 4 << 20;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl Groups {
    /// Creates the groups of a template.
    ///
    /// # Errors
    /// The system call failed.
    pub fn make(hierarchies: &[Hierarchy], group: &str) -> io::Result<Groups> {
        let mut made = Groups { template: Vec::new(), parents: Vec::new() };
        let (parent, name) = group.rsplit_once('/').unwrap_or(("", group));
        for hierarchy in hierarchies {
            let mut directory = rustix::fs::open(&hierarchy.mount, DIRECTORY, Mode::empty())?;
            for part in parent.split('/').filter(|part| !part.is_empty()) {
                delegate(hierarchy, &directory);
                directory = entered(&directory, part)?;
                weigh(hierarchy, &directory, cores());
            }
            delegate(hierarchy, &directory);
            let template = entered(&directory, name)?;
            delegate(hierarchy, &template);
            made.parents.push((directory, name.to_owned()));
            made.template.push((hierarchy.clone(), template));
        }
        Ok(made)
    }

    /// Creates a group in all hierarchies, with limits. Returns the files that a process writes to
    /// enter the group itself, where that is possible.
    ///
    /// # Errors
    /// The system call failed: the created groups are removed.
    pub fn add(&self, name: &str, limits: &Limits) -> io::Result<Vec<OwnedFd>> {
        let mut files = Vec::new();
        for (hierarchy, directory) in &self.template {
            let added = entered(directory, name).and_then(|group| {
                limit(hierarchy, &group, limits);
                match name {
                    // Every start waits for it.
                    ZYGOTE => weigh(hierarchy, &group, 1),
                    _ => share(hierarchy, &group, limits),
                }
                if !hierarchy.unified {
                    files.push(opened(&group, "tasks")?);
                }
                Ok(())
            });
            if let Err(error) = added {
                let _ = self.remove(name);
                return Err(error);
            }
        }
        Ok(files)
    }

    /// Raises the limits of the zygote's group, so that this number of instances can live.
    pub fn admit(&self, instances: u32, limits: &Limits) {
        let limits = of_zygote(instances, limits);
        for (hierarchy, directory) in &self.template {
            match rustix::fs::openat(directory, ZYGOTE, DIRECTORY, Mode::empty()) {
                Ok(group) => raise(hierarchy, &group, &limits),
                Err(error) => eprintln!("unlade: the group of a zygote: {error}"),
            }
        }
    }

    /// Moves a process into a group, which may take long in the kernel.
    ///
    /// # Errors
    /// The system call failed.
    pub fn join(&self, name: &str, pid: i32) -> io::Result<()> {
        for (_, directory) in &self.template {
            let file = opened(directory, &format!("{name}/cgroup.procs"))?;
            rustix::io::write(file, pid.to_string().as_bytes())?;
        }
        Ok(())
    }

    /// Lets the processes of all groups go on that are frozen.
    pub fn thaw_all(&self) {
        let is_freezer = |hierarchy: &Hierarchy| hierarchy.controllers.contains(FREEZER);
        let Some((hierarchy, directory)) = self.template.iter().find(|(h, _)| is_freezer(h)) else {
            return;
        };
        let Ok(entries) = rustix::fs::Dir::read_from(directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(INSTANCE) {
                thaw(hierarchy, directory, &name);
            }
        }
    }

    /// Kills the processes of a group.
    pub fn kill(&self, name: &str) {
        if let Some((_, directory)) = self.template.first() {
            let members = || members(directory, name);
            let held: Vec<_> = members()
                .into_iter()
                .filter_map(|pid| {
                    Some((pid, rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?))
                })
                .collect();
            // A number that is still a member after the process was opened refers to that process.
            let still = members();
            for (_, process) in held.iter().filter(|(pid, _)| still.contains(pid)) {
                let _ = rustix::process::pidfd_send_signal(process, Signal::KILL);
            }
        }
        for (hierarchy, directory) in &self.template {
            if hierarchy.controllers.contains(FREEZER) {
                thaw(hierarchy, directory, name);
            }
        }
    }

    /// Removes a group.
    ///
    /// # Errors
    /// EBUSY while a process is in it.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        for (_, directory) in &self.template {
            match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
                Err(error) if error != rustix::io::Errno::NOENT => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes all groups, whose processes have ended.
    pub fn clear(&self) {
        for (_, directory) in &self.template {
            let Ok(entries) = rustix::fs::Dir::read_from(directory) else { continue };
            for entry in entries.flatten() {
                let name = entry.file_name();
                if !matches!(name.to_bytes(), b"." | b"..") {
                    let _ = rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR);
                }
            }
        }
        for (parent, name) in &self.parents {
            let _ = rustix::fs::unlinkat(parent, name.as_str(), AtFlags::REMOVEDIR);
        }
    }
}

/// Opens a directory, which is created if it does not exist.
fn entered(directory: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o755)) {
        Err(error) if error != rustix::io::Errno::EXIST => return Err(error.into()),
        _ => {}
    }
    Ok(rustix::fs::openat(directory, name, DIRECTORY, Mode::empty())?)
}

fn opened(directory: impl AsFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(directory, name, flags, Mode::empty())?)
}

fn written(directory: impl AsFd, name: &str, value: &str) -> io::Result<()> {
    rustix::io::write(opened(directory, name)?, value.as_bytes())?;
    Ok(())
}

/// Lets the processes of a group go on. A group that was removed has none.
fn thaw(hierarchy: &Hierarchy, template: &OwnedFd, name: &str) {
    let (file, _, thawed) = freezer_of(hierarchy);
    let _ = written(template, &format!("{name}/{file}"), thawed);
}

/// Enables the controllers for a group's children; version 2 only.
fn delegate(hierarchy: &Hierarchy, directory: &OwnedFd) {
    if hierarchy.unified {
        for controller in hierarchy.controllers.iter().filter(|name| !is_built_in(name)) {
            // If that fails, the file of a limit is missing, which is reported then.
            let _ = written(directory, "cgroup.subtree_control", &format!("+{controller}"));
        }
    }
}

/// Returns true for what every group of version 2 has.
fn is_built_in(controller: &str) -> bool {
    ["cpuacct", FREEZER].contains(&controller)
}

/// The limits of the zygote's group with this number of instances, which begin in it.
fn of_zygote(instances: u32, limits: &Limits) -> Limits {
    Limits {
        memory_bytes: limits.memory_bytes.saturating_add(u64::from(instances) * FORKED_BYTES),
        processes: limits.processes.saturating_add(instances),
        ..*limits
    }
}

/// The files of the limits, with their values, in the order in which limits are lowered. A full
/// `/tmp` and full memory are within the kernel's limit: the host limits memory without `/tmp`.
fn limits_of(hierarchy: &Hierarchy, limits: &Limits) -> Vec<(&'static str, String)> {
    let memory = limits.memory_bytes.saturating_add(limits.scratch_bytes).to_string();
    let pids = limits.processes.to_string();
    let files = match hierarchy.unified {
        false => [
            ("memory", "memory.limit_in_bytes", memory.clone()),
            ("memory", "memory.memsw.limit_in_bytes", memory),
            ("pids", "pids.max", pids),
        ],
        true => [
            ("memory", "memory.max", memory),
            ("memory", "memory.swap.max", "0".to_owned()),
            ("pids", "pids.max", pids),
        ],
    };
    let present = files.into_iter().filter(|(name, ..)| hierarchy.controllers.contains(*name));
    present.map(|(_, file, value)| (file, value)).collect()
}

/// Sets the limits of a new group, for which a file exists.
fn limit(hierarchy: &Hierarchy, group: &OwnedFd, limits: &Limits) {
    for (file, value) in limits_of(hierarchy, limits) {
        set(group, file, &value);
    }
}

/// Sets higher limits. The limit of memory with swap goes first: that of memory alone may not
/// exceed it.
fn raise(hierarchy: &Hierarchy, group: &OwnedFd, limits: &Limits) {
    for (file, value) in limits_of(hierarchy, limits).iter().rev() {
        set(group, file, value);
    }
}

fn set(group: &OwnedFd, file: &str, value: &str) {
    if let Err(error) = written(group, file, value) {
        // A kernel may lack swap accounting.
        if !file.contains("sw") {
            eprintln!("unlade: {file} = {value}: {error}");
        }
    }
}

/// The weight of all functions together, equal to that number of other busy processes.
fn cores() -> u64 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64)
}

/// Sets the CPU share in proportion to memory, as Lambda does: a whole CPU at 1769 MiB.
fn share(hierarchy: &Hierarchy, group: &OwnedFd, limits: &Limits) {
    let (v1, v2) = (limits.memory_bytes * 1024, limits.memory_bytes * 100);
    let whole = 1769 << 20;
    weight(hierarchy, group, v1 / whole, v2 / whole);
}

fn weigh(hierarchy: &Hierarchy, group: &OwnedFd, processes: u64) {
    weight(hierarchy, group, 1024 * processes, 100 * processes);
}

fn weight(hierarchy: &Hierarchy, group: &OwnedFd, v1: u64, v2: u64) {
    let (file, value) = match hierarchy.unified {
        false => ("cpu.shares", v1.clamp(2, 1 << 18)),
        true => ("cpu.weight", v2.clamp(1, 10_000)),
    };
    if hierarchy.controllers.contains("cpu")
        && let Err(error) = written(group, file, &value.to_string())
    {
        eprintln!("unlade: {file} = {value}: {error}");
    }
}

fn members(directory: &OwnedFd, name: &str) -> Vec<Pid> {
    let file = format!("{name}/cgroup.procs");
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let mut text = vec![0; FILE_BYTES_MAX];
    let read = rustix::fs::openat(directory, file, flags, Mode::empty())
        .and_then(|file| rustix::io::read(file, &mut text))
        .unwrap_or_default();
    pids(&String::from_utf8_lossy(&text[..read]))
}

fn pids(text: &str) -> Vec<Pid> {
    text.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)).collect()
}

/// A group of an instance, as the gateway reads it.
#[derive(Clone, Debug)]
pub struct Account {
    hierarchies: Vec<Hierarchy>,
    group: String,
}

impl Account {
    /// Creates the account of `name` in a template's group.
    pub fn new(hierarchies: &[Hierarchy], group: &str, name: &str) -> Account {
        Account { hierarchies: hierarchies.to_vec(), group: format!("{group}/{name}") }
    }

    fn read(&self, controller: &str, v1: &str, v2: &str) -> Option<String> {
        let found = self.hierarchies.iter().find(|h| h.controllers.contains(controller))?;
        let file = if found.unified { v2 } else { v1 };
        std::fs::read_to_string(found.mount.join(&self.group).join(file)).ok()
    }

    /// The processes in the group; empty without control groups.
    pub fn members(&self) -> Vec<Pid> {
        let Some(first) = self.hierarchies.first() else { return Vec::new() };
        let file = first.mount.join(&self.group).join("cgroup.procs");
        pids(&std::fs::read_to_string(file).unwrap_or_default())
    }

    /// Returns true if a process is in the group, in every hierarchy.
    pub fn has(&self, pid: Pid) -> bool {
        let file = format!("/proc/{}/cgroup", pid.as_raw_nonzero());
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let wanted = |hierarchy: &Hierarchy| {
            text.lines().any(|line| {
                let mut parts = line.splitn(3, ':').skip(1);
                let controllers = parts.next().unwrap_or_default();
                let is_it = match hierarchy.unified {
                    true => controllers.is_empty(),
                    false => {
                        controllers.split(',').any(|name| hierarchy.controllers.contains(name))
                    }
                };
                let path = parts.next().unwrap_or_default();
                is_it && path.trim_start_matches('/') == self.group.trim_start_matches('/')
            })
        };
        self.hierarchies.iter().all(wanted)
    }

    /// CPU time, including that of ended processes.
    pub fn cpu(&self) -> Option<std::time::Duration> {
        let nanoseconds = self.read("cpuacct", "cpuacct.usage", "cpu.stat");
        if let Some(nanoseconds) = nanoseconds.and_then(|text| text.trim().parse().ok()) {
            return Some(std::time::Duration::from_nanos(nanoseconds));
        }
        let text = self.read("cpu", "cpu.stat", "cpu.stat")?;
        value(&text, "usage_usec").map(std::time::Duration::from_micros)
    }

    /// Most memory that the group has had, in bytes; `None` if the kernel does not record it.
    pub fn memory_peak_bytes(&self) -> Option<u64> {
        let text = self.read("memory", "memory.max_usage_in_bytes", "memory.peak")?;
        text.trim().parse().ok()
    }

    /// Memory of the group in bytes, files that were read and `/tmp` included.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.read("memory", "memory.usage_in_bytes", "memory.current")?.trim().parse().ok()
    }

    /// Memory of the group that the kernel cannot take back, in bytes: that of its processes, and
    /// `/tmp`.
    pub fn held_bytes(&self) -> Option<u64> {
        held(&self.read("memory", "memory.stat", "memory.stat")?)
    }

    /// Stops the processes of the group, without waiting for it; false if there is no freezer.
    ///
    /// # Errors
    /// The system call failed.
    pub fn freeze(&self) -> io::Result<bool> {
        self.set_frozen(true)
    }

    /// Lets the processes of the group go on; false if there is no freezer.
    ///
    /// # Errors
    /// The system call failed.
    pub fn thaw(&self) -> io::Result<bool> {
        self.set_frozen(false)
    }

    fn set_frozen(&self, is_frozen: bool) -> io::Result<bool> {
        let Some(found) = self.hierarchies.iter().find(|h| h.controllers.contains(FREEZER)) else {
            return Ok(false);
        };
        let (file, frozen, thawed) = freezer_of(found);
        let value = if is_frozen { frozen } else { thawed };
        write_existing(&found.mount.join(&self.group).join(file), value)?;
        Ok(true)
    }

    /// Returns true if every process of the group is stopped.
    pub fn is_frozen(&self) -> bool {
        let text = self.read(FREEZER, "freezer.state", "cgroup.events").unwrap_or_default();
        text.trim() == "FROZEN" || value(&text, "frozen") == Some(1)
    }

    /// Number of processes that the memory limit killed.
    pub fn killed(&self) -> u64 {
        self.read("memory", "memory.oom_control", "memory.events")
            .and_then(|text| value(&text, "oom_kill"))
            .unwrap_or(0)
    }
}

/// Anonymous and shared memory in `memory.stat`: version 1 calls the first `rss`.
fn held(text: &str) -> Option<u64> {
    let anonymous = value(text, "anon").or_else(|| value(text, "rss"))?;
    Some(anonymous + value(text, "shmem").unwrap_or(0))
}

fn value(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.split(' ').next() == Some(name))?;
    line.split(' ').nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_understood() {
        let text = "30 29 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct\n\
            32 30 0:28 /docker/x /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
            33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
            34 30 0:30 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";
        let found = of_mounts(text, |_| "cpu memory io\n".to_owned());
        let names = |one: &Hierarchy| one.controllers.iter().cloned().collect::<Vec<_>>().join(" ");
        let controllers: Vec<String> = found.iter().map(names).collect();
        assert_eq!(controllers, ["cpu cpuacct", "memory", "freezer"]);
        assert!(!found[0].unified && found[1].unified && !found[2].unified);
        assert!(of_mounts("nothing\n", |_| String::new()).is_empty());
    }

    #[test]
    fn a_zygotes_group_has_room_for_what_its_children_leave_in_it() {
        let limits = Limits { memory_bytes: 64 << 20, scratch_bytes: 0, processes: 5, files: 9 };
        assert_eq!(of_zygote(0, &limits), limits);
        let more = of_zygote(100, &limits);
        assert_eq!((more.memory_bytes, more.processes), ((64 << 20) + 100 * FORKED_BYTES, 105));
        assert_eq!(of_zygote(1, &Limits { memory_bytes: u64::MAX, ..limits }).files, 9);
        let one = |unified, name: &str| {
            let controllers = [name.to_owned()].into();
            let hierarchy = Hierarchy { mount: PathBuf::new(), unified, controllers };
            limits_of(&hierarchy, &limits).into_iter().map(|(file, _)| file).collect::<Vec<_>>()
        };
        assert_eq!(one(false, "memory"), ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]);
        assert_eq!(one(true, "memory"), ["memory.max", "memory.swap.max"]);
        assert_eq!((one(true, "pids"), one(false, "cpu")), (vec!["pids.max"], vec![]));
    }

    #[test]
    fn a_full_tmp_is_within_the_kernels_limit() {
        let limits = Limits { memory_bytes: 64, scratch_bytes: 32, processes: 5, files: 9 };
        let controllers = ["memory".to_owned()].into();
        let hierarchy = Hierarchy { mount: PathBuf::new(), unified: true, controllers };
        assert_eq!(limits_of(&hierarchy, &limits)[0], ("memory.max", "96".to_owned()));
    }

    #[test]
    fn memory_that_is_held_is_found_in_both_versions() {
        let one = "cache 900\nrss 30\nrss_huge 5\nshmem 4\nmapped_file 7\n";
        let two = "anon 30\nfile 900\nkernel 9\nshmem 4\nanon_thp 0\n";
        assert_eq!((held(one), held(two), held("")), (Some(34), Some(34), None));
    }

    #[test]
    fn values_are_found_by_whole_names() {
        let text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        assert_eq!(value(text, "oom_kill"), Some(3));
        assert_eq!(value(text, "oom"), None);
    }

    #[test]
    fn members_are_numbers() {
        let found: Vec<i32> =
            pids("12\nx\n0\n7\n").iter().map(|pid| pid.as_raw_nonzero().get()).collect();
        assert_eq!(found, [12, 7]);
    }
}
