//! The files of an interpreter, and the disk image with them: shared by all functions, built once.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use unlade_fn_model::isolation::IsolationError;

use super::disk;
use super::error::{system, unusable};
use super::stage::Staged;

/// The version of the disk's layout; a change causes a rebuild.
const FORMAT: u32 = 1;
/// The script that an interpreter runs to describe itself.
const QUESTION: &str = "import json, os, sys, sysconfig
print(json.dumps({'program': os.path.realpath(sys.executable), 'version': sys.version,
    'path': sys.path, 'library': sysconfig.get_path('stdlib')}))";
/// Omitted parts of the standard library that no function uses, and packages of the host.
const LEFT_OUT: [&str; 9] = [
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "site-packages",
    "dist-packages",
];
/// Libraries that packages expect on their system (PEP 600, the common ones).
const EXPECTED: [&str; 9] = [
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libm.so.6",
    "libdl.so.2",
    "librt.so.1",
    "libpthread.so.0",
    "libutil.so.1",
    "libresolv.so.2",
    "libz.so.1",
];
const LIBRARY_DIRS: [&str; 4] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"];
/// Mount points and directories that are created.
const DIRECTORIES: [&str; 9] =
    ["proc", "sys", "dev", "tmp", "function", "var", "etc", "root", "opt"];
const USERS: &str = "root:x:0:0:root:/root:/bin/false\n\
    function:x:1000:1000:function:/tmp:/bin/false\n";
const GROUPS: &str = "root:x:0:\nfunction:x:1000:\n";
const HOSTS: &str = "127.0.0.1 localhost\n";

/// An interpreter.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Python {
    pub program: PathBuf,
    version: String,
    path: Vec<PathBuf>,
    library: PathBuf,
}

impl Python {
    /// Runs the interpreter at a path to describe itself.
    ///
    /// # Errors
    /// It does not start, or a machine's script cannot use its path.
    pub fn ask(path: &Path) -> Result<Python, IsolationError> {
        let mut command = Command::new(path);
        command.args(["-I", "-S", "-c", QUESTION]).stdin(Stdio::null());
        let what = format!("{}", path.display());
        let output = command.output().map_err(system(what.clone()))?;
        let wrong = |why: &str| unusable(format!("{what} is no interpreter that works: {why}"));
        if !output.status.success() {
            return Err(wrong(String::from_utf8_lossy(&output.stderr).trim()));
        }
        let found: Python =
            serde_json::from_slice(&output.stdout).map_err(|error| wrong(&error.to_string()))?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
        match found.program.to_str().is_some_and(|program| program.chars().all(is_plain)) {
            true => Ok(found),
            false => Err(wrong("its path has unusual characters")),
        }
    }

    /// The directories of its `sys.path`, in order.
    pub fn path(&self) -> &[PathBuf] {
        &self.path
    }

    /// The disk image with the interpreter, in `cache`: built if it does not exist. Blocks.
    ///
    /// # Errors
    /// The system call failed.
    pub fn disk(&self, cache: &Path) -> Result<File, IsolationError> {
        let path = cache.join(format!("python-{:016x}.ext4", self.key()));
        if let Ok(file) = File::open(&path) {
            return Ok(file);
        }
        tracing::info!(program = %self.program.display(), "qemu: building a disk, once");
        self.build(cache, &path).map_err(system("building the disk of the interpreter"))?;
        File::open(&path).map_err(system(path.display().to_string()))
    }

    /// The cache key of the interpreter's disk.
    fn key(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (FORMAT, &self.program, &self.version, &self.path).hash(&mut hasher);
        let found = fs::metadata(&self.program);
        let time = found.and_then(|found| found.modified()).ok();
        (time, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        hasher.finish()
    }

    fn build(&self, cache: &Path, path: &Path) -> io::Result<()> {
        fs::create_dir_all(cache)?;
        let work = tempfile::Builder::new().prefix("build-").tempdir_in(cache)?;
        let root = work.path().join("root");
        let staged = self.stage(&root)?;
        let built = work.path().join("disk");
        disk::make(&root, staged, &built)?;
        // A concurrent builder produces the same content.
        fs::rename(&built, path)
    }

    fn stage(&self, root: &Path) -> io::Result<Staged> {
        let mut staged = Staged::default();
        for name in DIRECTORIES {
            fs::create_dir_all(root.join(name))?;
            staged.entries += 1;
        }
        symlink("/function/code", root.join("var/task"))?;
        for (name, content) in [("passwd", USERS), ("group", GROUPS), ("hosts", HOSTS)] {
            fs::write(root.join("etc").join(name), content)?;
            staged.entries += 1;
        }
        staged.file(&self.program, &inside(root, &self.program))?;
        let wanted = |name: &str| !LEFT_OUT.contains(&name) && !name.starts_with("config-");
        let mut copied: Vec<&Path> = Vec::new();
        for directory in [self.library.as_path()].into_iter().chain(self.path.iter().map(|p| &**p))
        {
            let is_there = copied.iter().any(|above| directory.starts_with(above));
            if directory.is_dir() && !is_there {
                staged.tree(directory, &inside(root, directory), &wanted)?;
                copied.push(directory);
            }
        }
        for library in self.libraries()? {
            let target = inside(root, &library);
            if !target.exists() {
                staged.file(&library, &target)?;
            }
        }
        Ok(staged)
    }

    /// Shared libraries of the interpreter and of its modules. All of these are the host's files,
    /// so that ldd(1) may execute them.
    fn libraries(&self) -> io::Result<BTreeSet<PathBuf>> {
        let mut command = Command::new("ldd");
        command.arg(&self.program).stdin(Stdio::null()).stderr(Stdio::null());
        for directory in &self.path {
            for entry in fs::read_dir(directory).into_iter().flatten() {
                let path = entry?.path();
                if path.extension().is_some_and(|extension| extension == "so") {
                    command.arg(path);
                }
            }
        }
        let output = command.output()?;
        let mut found = paths_of_ldd(&String::from_utf8_lossy(&output.stdout));
        let expected = EXPECTED.iter().filter_map(|name| {
            LIBRARY_DIRS.iter().map(|dir| Path::new(dir).join(name)).find(|path| path.exists())
        });
        found.extend(expected);
        match found.is_empty() {
            true => Err(io::Error::other("ldd names no libraries")),
            false => Ok(found),
        }
    }
}

/// A path of the host, below the disk's root.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Parses `NAME => PATH (ADDRESS)` and `PATH (ADDRESS)`.
fn paths_of_ldd(text: &str) -> BTreeSet<PathBuf> {
    let lines = text.lines().filter_map(|line| line.trim().split_once(" (0x"));
    let paths = lines.map(|(left, _)| left.rsplit("=> ").next().unwrap_or(left).trim());
    paths.filter(|path| path.starts_with('/')).map(PathBuf::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ldds_lines_are_read() {
        let text = "/usr/bin/python3.11:\n\tlinux-vdso.so.1 (0x00007ffd)\n\
            \tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibx.so => not found\n\
            /x/y.so:\n\tstatically linked\n";
        let found: Vec<String> =
            paths_of_ldd(text).iter().map(|path| path.display().to_string()).collect();
        assert_eq!(found, ["/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }

    #[test]
    fn an_interpreter_says_what_it_is_and_others_do_not() {
        let path = Path::new("/usr/bin/python3");
        if !path.exists() {
            println!("skipped: {} is not installed", path.display());
            return;
        }
        let python = Python::ask(path).unwrap();
        assert!(python.program.is_file() && !python.program.is_symlink());
        assert!(python.path().contains(&python.library));
        assert!(python.libraries().unwrap().iter().any(|path| path.ends_with("libc.so.6")));
        assert!(Python::ask(Path::new("/bin/false")).is_err());
        assert!(Python::ask(Path::new("/nowhere/python")).is_err());
    }
}
