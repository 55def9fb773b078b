//! Weight of a client (`copier.shares` of Copier, SOSP 2025, §4.5.2).
//!
//! The weight of a cgroup may change, and a client may move to another cgroup. Neither is reported
//! for every hierarchy and every mount, so a session reads the files again while its client copies.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::net::UCred;
use unlade_copy_scheduler::share::WEIGHT_MAX;

use crate::daemon::config::Weights;
use crate::daemon::message::Class;

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

/// Returns the weight of a client.
pub(crate) fn weight_of(
    files: &KernelFiles,
    weights: &Weights,
    client: &UCred,
    class: Class,
) -> u32 {
    let by_user = weights.uid.get(&client.uid.as_raw().to_string());
    let by_group = || weights.gid.get(&client.gid.as_raw().to_string());
    let named = by_user.or_else(by_group).copied();
    let by_cgroup = || weights.cgroup.then(|| cgroup_weight(files, client)).flatten();
    let weight = named.or_else(by_cgroup).unwrap_or(weights.default);
    match class {
        Class::Normal => weight,
        Class::Background => (weight / BACKGROUND_DIVISOR).max(1),
    }
}

/// Returns the weight of the client's cgroup: `cpu.weight` of version 2, which has the same range
/// and default as weights here, or `cpu.shares` of version 1. A cgroup without the file has that of
/// its nearest ancestor with one. `None` without a hierarchy with the cpu controller at the usual
/// place. If another process has the client's PID by now, the only effect is a wrong weight.
fn cgroup_weight(files: &KernelFiles, client: &UCred) -> Option<u32> {
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
) -> Option<u32> {
    let cgroup = root.join(path);
    let ancestors = cgroup.ancestors().take_while(|it| it.starts_with(root)).take(DEPTH_MAX);
    let mut values = ancestors.filter_map(|it| fs::read_to_string(it.join(file)).ok());
    values.next().and_then(|text| parse(&text))
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
            cgroup_weight(&self.files(), &own())
        }
    }

    #[test]
    fn the_user_goes_before_the_group_before_the_cgroup_before_the_default() {
        let tree = Tree::new();
        let files = tree.files();
        let (uid, gid) = (getuid().as_raw().to_string(), getgid().as_raw().to_string());
        let mut weights = Weights { cgroup: true, default: 7, ..Weights::default() };
        let weight = |weights: &Weights, class| weight_of(&files, weights, &own(), class);
        assert_eq!(weight(&weights, Class::Normal), 7);
        assert_eq!(weight(&weights, Class::Background), 1);
        tree.place("0::/a\n");
        tree.write("cgroup/a/cpu.weight", "200\n");
        assert_eq!(weight(&weights, Class::Normal), 200);
        let without = Weights { cgroup: false, ..weights.clone() };
        assert_eq!(weight(&without, Class::Normal), 7);
        weights.gid.insert(gid, 50);
        assert_eq!(weight(&weights, Class::Normal), 50);
        weights.uid.insert(uid, 300);
        assert_eq!(weight(&weights, Class::Normal), 300);
        assert_eq!(weight(&weights, Class::Background), 75);
        let real = weight_of(&KernelFiles::default(), &Weights::default(), &own(), Class::Normal);
        assert!((1..=WEIGHT_MAX).contains(&real));
    }

    #[test]
    fn the_nearest_cgroup_with_a_weight_counts() {
        let tree = Tree::new();
        assert_eq!(tree.weight(), None);
        tree.place("0::/user.slice/a\n");
        assert_eq!(tree.weight(), None);
        tree.write("cgroup/user.slice/cpu.weight", "300\n");
        assert_eq!(tree.weight(), Some(300));
        tree.write("cgroup/user.slice/a/cpu.weight", "20\n");
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
