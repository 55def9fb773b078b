//! The file tree of a sandbox: a small tmpfs on which files of the host are mounted read-only.
//! Each instance has a copy of the tree's mounts, with a `/tmp` of its own.

use std::fs;
use std::io::{Error, Result};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, unmount,
};

use super::config::IDS_OF_TEMPLATE;
use super::groups::Limits;
use super::spec::{Bind, Spec};

/// The mount point of the tree while it is built: a directory that every system has.
const BUILT: &str = "/tmp";
/// The directory of the instances' roots; no instance has access to it.
const ROOTS: &str = "/roots";
/// Capacity of the tree itself: small text files.
const TREE_BYTES_MAX: u64 = 4 << 20;
/// Most files in `/tmp` for each MiB of it.
const FILES_OF_MIB: u64 = 256;
/// Devices without state.
const DEVICES: [&str; 5] = ["null", "zero", "full", "random", "urandom"];
const DEVICE_LINKS: [(&str, &str); 4] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
];

const INERT: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV);

/// Adds the failed operation to an error.
fn tried<T>(what: &str, path: &Path, outcome: rustix::io::Result<T>) -> Result<T> {
    outcome.map_err(|error| said(what, path, error.into()))
}

fn said(what: &str, path: &Path, error: Error) -> Error {
    Error::new(error.kind(), format!("{what} {}: {error}", path.display()))
}

/// The path of an instance's root, as the zygote uses it.
pub fn of_instance(slot: u32) -> PathBuf {
    Path::new(ROOTS).join(slot.to_string())
}

/// Builds the tree, and makes it the root of this mount namespace.
///
/// # Errors
/// The failed operation, and the error of the system.
pub fn build(spec: &Spec) -> Result<()> {
    let devices = DEVICES.map(|name| Bind {
        source: Path::new("/dev").join(name),
        target: Path::new("/dev").join(name),
    });
    // The mount hides the previous content of its mount point, so all sources are opened before.
    let sources = opened(&spec.binds)?;
    let devices = opened(&devices)?;
    let tree = Path::new(BUILT);
    memory(tree, 0o755, TREE_BYTES_MAX, 0)?;
    for (source, bind) in &sources {
        seen(tree, source, bind, INERT | MountFlags::RDONLY)?;
    }
    for (source, bind) in &devices {
        seen(tree, source, bind, MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::RDONLY)?;
    }
    let links = spec.links.iter().map(|(link, to)| (link.as_path(), to.as_path()));
    let links = links.chain(DEVICE_LINKS.iter().map(|(link, to)| (Path::new(link), Path::new(to))));
    for (link, to) in links {
        let link = inside(tree, link);
        symlink(to, &link).map_err(|error| said("linking", &link, error))?;
    }
    written(tree, spec)?;
    processes(tree)?;
    scratch(tree, &spec.limits, spec.ids_first)?;
    // Copies of the tree must not contain these.
    for own in ["tmp", "dev/shm"] {
        let own = tree.join(own);
        tried("setting apart", &own, mount_change(&own, MountPropagationFlags::UNBINDABLE))?;
    }
    let roots = inside(tree, Path::new(ROOTS));
    directory(&roots)?;
    memory(&roots, 0o711, TREE_BYTES_MAX, 0)?;
    tried("setting apart", &roots, mount_change(&roots, MountPropagationFlags::UNBINDABLE))?;
    let flags = MountFlags::BIND | INERT | MountFlags::RDONLY;
    tried("fixing", tree, mount_remount(tree, flags, ""))?;
    enter(tree)
}

/// Creates the root of an instance for `user`, in the host's numbering.
///
/// # Errors
/// The failed operation, and the error of the system; the root was removed.
pub fn add(slot: u32, limits: &Limits, user: u32) -> Result<()> {
    let root = of_instance(slot);
    directory(&root)?;
    tried("copying the root to", &root, mount_bind_recursive("/", &root))?;
    scratch(&root, limits, user).inspect_err(|_| {
        let _ = remove(slot);
    })
}

/// Removes the root of an instance.
///
/// # Errors
/// The failed operation, and the error of the system.
pub fn remove(slot: u32) -> Result<()> {
    let root = of_instance(slot);
    tried("unmounting", &root, unmount(&root, UnmountFlags::DETACH))
}

fn opened(binds: &[Bind]) -> Result<Vec<(OwnedFd, &Bind)>> {
    let open = |bind| {
        let Bind { source, .. }: &Bind = bind;
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        Ok((tried("opening", source, rustix::fs::open(source, flags, Mode::empty()))?, bind))
    };
    binds.iter().map(open).collect()
}

/// A path within the tree.
fn inside(tree: &Path, path: &Path) -> PathBuf {
    tree.join(path.strip_prefix("/").unwrap_or(path))
}

fn directory(path: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| said("making", path, error))
}

fn memory(at: &Path, mode: u32, bytes: u64, user: u32) -> Result<()> {
    let files = (bytes >> 20).max(4) * FILES_OF_MIB;
    let options = format!("mode={mode:o},size={bytes},nr_inodes={files},uid={user},gid={user}");
    let options = std::ffi::CString::new(options).map_err(Error::other)?;
    tried("mounting memory at", at, mount("tmpfs", at, "tmpfs", INERT, &*options))
}

/// Mounts `/tmp`, and shared memory within it, so that one limit covers both.
fn scratch(root: &Path, limits: &Limits, user: u32) -> Result<()> {
    let (temporary, shared) = (root.join("tmp"), root.join("dev/shm"));
    if root == Path::new(BUILT) {
        directory(&temporary)?;
        directory(&shared)?;
    }
    memory(&temporary, 0o700, limits.scratch_bytes, user)?;
    tried("mounting", &shared, mount_bind(&temporary, &shared))
}

/// Mounts an opened source.
fn seen(tree: &Path, source: &OwnedFd, bind: &Bind, flags: MountFlags) -> Result<()> {
    let target = inside(tree, &bind.target);
    let kind = tried("looking at", &bind.source, rustix::fs::fstat(source))?.st_mode;
    if rustix::fs::FileType::from_raw_mode(kind).is_dir() {
        directory(&target)?;
    } else {
        directory(target.parent().unwrap_or(tree))?;
        fs::write(&target, "").map_err(|error| said("making", &target, error))?;
    }
    let held = format!("/proc/self/fd/{}", source.as_raw_fd());
    tried("mounting", &bind.source, mount_bind(held.as_str(), &target))?;
    tried("fixing", &target, mount_remount(&target, MountFlags::BIND | flags, ""))
}

/// Writes the files of `/etc` that define users and hosts.
fn written(tree: &Path, spec: &Spec) -> Result<()> {
    directory(&tree.join("etc"))?;
    let hosts = format!("127.0.0.1 localhost {0}\n::1 localhost {0}\n", spec.host);
    let users = (1..IDS_OF_TEMPLATE)
        .map(|user| format!("function{user}:x:{user}:{user}::/tmp:/usr/sbin/nologin\n"))
        .collect::<String>();
    let groups = (1..IDS_OF_TEMPLATE)
        .map(|group| format!("function{group}:x:{group}:\n"))
        .collect::<String>();
    for (name, text) in [
        ("passwd", format!("root:x:0:0:root:/tmp:/usr/sbin/nologin\n{users}")),
        ("group", format!("root:x:0:\n{groups}")),
        ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n".to_owned()),
        ("hosts", hosts),
    ] {
        let path = tree.join("etc").join(name);
        // A file of the host may be mounted there.
        if !path.exists() {
            fs::write(&path, text).map_err(|error| said("writing", &path, error))?;
        }
    }
    Ok(())
}

/// Mounts `/proc` of this PID namespace: a user has access to its own processes only.
fn processes(tree: &Path) -> Result<()> {
    let at = tree.join("proc");
    directory(&at)?;
    let flags = INERT | MountFlags::NOEXEC | MountFlags::RDONLY;
    tried("mounting", &at, mount("proc", &at, "proc", flags, c"hidepid=2"))
}

/// Leaves the host's root irrevocably.
fn enter(tree: &Path) -> Result<()> {
    let moved = rustix::process::chdir(tree)
        // The old root is then mounted over the new one, and is unmounted there.
        .and_then(|()| rustix::process::pivot_root(".", "."))
        .and_then(|()| unmount(".", UnmountFlags::DETACH))
        .and_then(|()| rustix::process::chdir("/"));
    tried("going into", tree, moved)
}
