//! Share of a client (`copier.shares` of Copier, SOSP 2025, §4.5.2): its owner, and the owner's
//! weight. All clients of an owner share its share.
//!
//! The weight of a cgroup may change, and a client may move to another cgroup. Neither is reported
//! for every hierarchy and every mount, so a session reads the files again while its client copies.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::net::UCred;
use unlade_copy_scheduler::share::{WEIGHT_DEFAULT, WEIGHT_MAX};

use crate::daemon::config::Weights;
use crate::daemon::message::Class;
use crate::group::Group;

/// Divisor for the weight of a background client.
const BACKGROUND_DIVISOR: u32 = 4;
/// `cpu.shares` of version 1 that is as much as [`WEIGHT_USUAL`]: both are the defaults.
const SHARES_USUAL: u64 = 1024;
const WEIGHT_USUAL: u64 = 100;
/// Maximum depth of a cgroup whose ancestors are looked at.
const DEPTH_MAX: usize = 64;

/// Directories of the kernel's files.
#[derive(Clone, Debug)]
pub struct KernelFiles {
    /// `/proc`, with a directory for each process.
    pub processes: PathBuf,
    /// `/sys/fs/cgroup`, with the hierarchies of cgroups.
    pub cgroups: PathBuf,
}

impl Default for KernelFiles {
    fn default() -> KernelFiles {
        KernelFiles { processes: "/proc".into(), cgroups: "/sys/fs/cgroup".into() }
    }
}

/// Owner of a share: that which gave the weight.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// A user of the configuration.
    User(u32),
    /// A primary group of the configuration.
    Group(u32),
    /// The directory with the weight.
    Cgroup(PathBuf),
    /// The client itself, with the number of its session.
    Client(u64),
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::User(uid) => write!(f, "user {uid}"),
            Owner::Group(gid) => write!(f, "group {gid}"),
            Owner::Cgroup(path) => write!(f, "cgroup {}", path.display()),
            Owner::Client(number) => write!(f, "client {number}"),
        }
    }
}

/// The share that is due to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub owner: Owner,
    /// Weight of the owner.
    pub weight: u32,
}

/// Returns the share that is due to the client of session `number`: that of its user, of its group,
/// of its cgroup, or else the default for itself.
pub(crate) fn due_to(files: &KernelFiles, weights: &Weights, client: &UCred, number: u64) -> Due {
    let (uid, gid) = (client.uid.as_raw(), client.gid.as_raw());
    let user = weights.uid.get(&uid.to_string()).map(|weight| (Owner::User(uid), *weight));
    let group = || weights.gid.get(&gid.to_string()).map(|weight| (Owner::Group(gid), *weight));
    let cgroup = || {
        let (path, weight) = weights.cgroup.then(|| cgroup_weight(files, client)).flatten()?;
        Some((Owner::Cgroup(path), weight))
    };
    let found = user.or_else(group).or_else(cgroup);
    let (owner, weight) = found.unwrap_or((Owner::Client(number), weights.default));
    Due { owner, weight }
}

/// Weight of a client among the clients of its owner.
pub(crate) fn weight_in_group(class: Class) -> u32 {
    match class {
        Class::Normal => WEIGHT_DEFAULT,
        Class::Background => WEIGHT_DEFAULT / BACKGROUND_DIVISOR,
    }
}

/// Groups of the sessions that are served, each with the number of its sessions.
#[derive(Debug, Default)]
pub(crate) struct Groups(BTreeMap<Owner, (Group, usize)>);

impl Groups {
    /// Returns the owner's group, with the weight that is due; `create` makes one of that weight.
    pub fn enter(&mut self, due: &Due, create: impl FnOnce(u32) -> Group) -> Group {
        let (group, sessions) = match self.0.entry(due.owner.clone()) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert((create(due.weight), 0)),
        };
        *sessions += 1;
        group.set_weight(due.weight);
        group.clone()
    }

    pub fn leave(&mut self, owner: &Owner) {
        if let Some((_, sessions)) = self.0.get_mut(owner) {
            *sessions -= 1;
            if *sessions == 0 {
                self.0.remove(owner);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }
}

/// Returns the weight of the client's cgroup, and the directory that has it: `cpu.weight` of version
/// 2, which has the same range and default as weights here, or `cpu.shares` of version 1. A cgroup
/// without the file has that of its nearest ancestor with one. `None` without a hierarchy with the
/// cpu controller at the usual place. If another process has the client's PID by now, the only effect
/// is a wrong weight.
fn cgroup_weight(files: &KernelFiles, client: &UCred) -> Option<(PathBuf, u32)> {
    let pid = client.pid.as_raw_nonzero().to_string();
    let text = fs::read_to_string(files.processes.join(pid).join("cgroup")).ok()?;
    let unified = || {
        let path = unified_path(&text)?;
        let roots = [files.cgroups.clone(), files.cgroups.join("unified")];
        roots.iter().find_map(|root| nearest(root, path, "cpu.weight", parse_weight))
    };
    let by_shares = || {
        let (controllers, path) = cpu_path(&text)?;
        let roots = [files.cgroups.join(controllers), files.cgroups.join("cpu")];
        roots.iter().find_map(|root| nearest(root, path, "cpu.shares", parse_shares))
    };
    unified().or_else(by_shares)
}

/// Value of a file of the cgroup at `path`, or of its nearest ancestor that has the file.
fn nearest(
    root: &Path,
    path: &str,
    file: &str,
    parse: impl Fn(&str) -> Option<u32>,
) -> Option<(PathBuf, u32)> {
    let cgroup = root.join(path);
    let ancestors = cgroup.ancestors().take_while(|it| it.starts_with(root)).take(DEPTH_MAX);
    let mut values = ancestors.filter_map(|it| {
        let text = fs::read_to_string(it.join(file)).ok()?;
        Some((it.to_owned(), text))
    });
    values.next().and_then(|(path, text)| Some((path, parse(&text)?)))
}

/// Returns the version 2 path in `/proc/PID/cgroup`, if it is below the visible root.
fn unified_path(cgroups: &str) -> Option<&str> {
    visible(cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?)
}

/// Returns the controllers and the path of the version 1 hierarchy that has the cpu controller.
fn cpu_path(cgroups: &str) -> Option<(&str, &str)> {
    cgroups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(":/")?;
        let has_cpu = controllers.split(',').any(|name| name == "cpu");
        let is_plain = controllers.split(',').all(|name| !name.contains(['/', '.']));
        (has_cpu && is_plain).then_some((controllers, visible(path)?))
    })
}

fn visible(path: &str) -> Option<&str> {
    path.split('/').all(|part| part != "..").then_some(path)
}

fn parse_weight(text: &str) -> Option<u32> {
    text.trim().parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight))
}

fn parse_shares(text: &str) -> Option<u32> {
    let shares: u64 = text.trim().parse().ok()?;
    let weight = (shares.checked_mul(WEIGHT_USUAL)? + SHARES_USUAL / 2) / SHARES_USUAL;
    u32::try_from(weight.clamp(1, WEIGHT_MAX.into())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{getgid, getpid, getuid};
    use unlade_copy_scheduler::share::GroupId;

    fn own() -> UCred {
        UCred { pid: getpid(), uid: getuid(), gid: getgid() }
    }

    /// A tree of the kernel's files, with one process: this one.
    struct Tree {
        directory: tempfile::TempDir,
    }

    impl Tree {
        fn new() -> Tree {
            Tree { directory: tempfile::tempdir().unwrap() }
        }

        fn files(&self) -> KernelFiles {
            let at = |name: &str| self.directory.path().join(name);
            KernelFiles { processes: at("proc"), cgroups: at("cgroup") }
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Moves the process, as the kernel tells it.
        fn place(&self, cgroups: &str) {
            self.write(&format!("proc/{}/cgroup", getpid().as_raw_nonzero()), cgroups);
        }

        fn weight(&self) -> Option<u32> {
            self.owner().map(|owner| owner.1)
        }

        /// The directory that gives the weight, and the weight.
        fn owner(&self) -> Option<(PathBuf, u32)> {
            cgroup_weight(&self.files(), &own())
        }
    }

    #[test]
    fn the_user_goes_before_the_group_before_the_cgroup_before_the_default() {
        let tree = Tree::new();
        let files = tree.files();
        let (uid, gid) = (getuid().as_raw().to_string(), getgid().as_raw().to_string());
        let mut weights = Weights { cgroup: true, default: 7, ..Weights::default() };
        let due = |weights: &Weights| {
            let Due { owner, weight } = due_to(&files, weights, &own(), 3);
            (owner, weight)
        };
        assert_eq!(due(&weights), (Owner::Client(3), 7));
        tree.place("0::/a\n");
        tree.write("cgroup/a/cpu.weight", "200\n");
        assert_eq!(due(&weights), (Owner::Cgroup(files.cgroups.join("a")), 200));
        let without = Weights { cgroup: false, ..weights.clone() };
        assert_eq!(due(&without), (Owner::Client(3), 7));
        weights.gid.insert(gid, 50);
        assert_eq!(due(&weights), (Owner::Group(getgid().as_raw()), 50));
        weights.uid.insert(uid, 300);
        assert_eq!(due(&weights), (Owner::User(getuid().as_raw()), 300));
        let real = due_to(&KernelFiles::default(), &Weights::default(), &own(), 3);
        assert!((1..=WEIGHT_MAX).contains(&real.weight));
    }

    #[test]
    fn the_nearest_cgroup_with_a_weight_counts() {
        let tree = Tree::new();
        assert_eq!(tree.weight(), None);
        tree.place("0::/user.slice/a\n");
        assert_eq!(tree.weight(), None);
        tree.write("cgroup/user.slice/cpu.weight", "300\n");
        assert_eq!(tree.weight(), Some(300));
        let slice = tree.files().cgroups.join("user.slice");
        assert_eq!(tree.owner(), Some((slice.clone(), 300)));
        tree.write("cgroup/user.slice/a/cpu.weight", "20\n");
        assert_eq!(tree.owner(), Some((slice.join("a"), 20)));
        assert_eq!(tree.weight(), Some(20));
        tree.write("cgroup/user.slice/a/cpu.weight", "40\n");
        assert_eq!(tree.weight(), Some(40));
        // It moves.
        tree.place("0::/user.slice/b\n");
        assert_eq!(tree.weight(), Some(300));
        tree.place("0::/../a\n");
        assert_eq!(tree.weight(), None);
        tree.place("0::/\n");
        assert_eq!(tree.weight(), None);
    }

    #[test]
    fn clients_of_an_owner_are_in_its_group_while_one_is_served() {
        let mut groups = Groups::default();
        let mut made = 0;
        let mut enter = |groups: &mut Groups, owner, weight| {
            let due = Due { owner, weight };
            groups.enter(&due, |weight| {
                made += 1;
                Group::new(GroupId(made), weight)
            })
        };
        let first = enter(&mut groups, Owner::User(1), 100);
        let second = enter(&mut groups, Owner::User(1), 300);
        assert_eq!((first.weight(), second.weight(), groups.len()), (300, 300, 1));
        let client = enter(&mut groups, Owner::Client(1), 7);
        assert_eq!((first.weight(), client.weight(), groups.len()), (300, 7, 2));
        groups.leave(&Owner::User(1));
        assert_eq!(groups.len(), 2);
        groups.leave(&Owner::User(1));
        groups.leave(&Owner::User(1));
        assert_eq!(groups.len(), 1);
        enter(&mut groups, Owner::User(1), 5);
        assert_eq!((first.weight(), made), (300, 3));
        let classes = [Class::Normal, Class::Background].map(weight_in_group);
        assert_eq!(classes, [100, 25]);
        assert_eq!(Owner::Cgroup("/c".into()).to_string(), "cgroup /c");
    }

    #[test]
    fn shares_of_version_1_count_by_their_default() {
        let tree = Tree::new();
        // As systemd mounts them, with an empty version 2 beside.
        tree.place("4:memory:/m\n3:cpu,cpuacct:/a/b\n1:name=systemd:/s\n0::/s\n");
        tree.write("cgroup/cpu,cpuacct/a/b/cpu.shares", "2048\n");
        assert_eq!(tree.weight(), Some(200));
        tree.write("cgroup/cpu,cpuacct/a/b/cpu.shares", "2\n");
        assert_eq!(tree.weight(), Some(1));
        tree.write("cgroup/cpu,cpuacct/a/b/cpu.shares", "262144\n");
        assert_eq!(tree.weight(), Some(WEIGHT_MAX));
        tree.place("3:cpuacct,cpu:/c\n0::/s\n");
        tree.write("cgroup/cpu/c/cpu.shares", "1024\n");
        assert_eq!(tree.weight(), Some(100));
        // Version 2 goes before, where it has the controller.
        tree.write("cgroup/unified/s/cpu.weight", "7\n");
        assert_eq!(tree.weight(), Some(7));
        tree.place("3:cpu/../../x:/c\n");
        assert_eq!(tree.weight(), None);
    }

    #[test]
    fn a_file_with_anything_else_has_no_weight() {
        assert_eq!(unified_path("1:cpu:/x\n0::/user.slice/a\n"), Some("user.slice/a"));
        assert_eq!(unified_path("1:cpu:/x\n"), None);
        assert_eq!(cpu_path("1:cpuset:/x\n2:cpu\nx\n"), None);
        assert_eq!((parse_weight("100\n"), parse_shares("1024\n")), (Some(100), Some(100)));
        for text in ["", "0", "10001", "-1", "x"] {
            assert_eq!(parse_weight(text), None, "{text}");
        }
        for text in ["", "-1", "x", "18446744073709551615"] {
            assert_eq!(parse_shares(text), None, "{text}");
        }
    }
}
