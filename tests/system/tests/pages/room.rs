//! A place in which the commands of a page run: a fresh directory, and namespaces of their own for
//! the network, mounts and processes. Fixed addresses, ports and names of a page collide with
//! nothing, and nothing outlives the place.

use crate::markdown::{Block, Kind};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use system_tests::{copier_library, unlade, unlade_lab};

/// Directories outside of the fresh one that commands of the pages write to. Each is an empty
/// file system of its own in the place.
const WRITTEN: [&str; 6] =
    ["/run/netns", "/run/unlade", "/etc/netns", "/etc/unlade", "/var/lib/unlade", "/srv/objects"];
/// Commands whose status is not 0 in the ordinary course.
const STATUS_FREE: &str = "wait*|kill*";
/// Pause between two looks at a running page.
const PAUSE: Duration = Duration::from_millis(50);

/// The outcome of one block.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Standard output.
    pub output: String,
    /// Standard error.
    pub errors: String,
    /// Commands that failed: status and command.
    pub failed: Vec<String>,
}

/// A place that is removed on drop.
#[derive(Debug)]
pub struct Room {
    dir: tempfile::TempDir,
    /// Directories that did not exist before.
    made: Vec<PathBuf>,
}

impl Room {
    /// Makes a place whose directory has a link to `crates` of the repository at `root`.
    ///
    /// # Panics
    /// A file cannot be written.
    pub fn new(root: &Path) -> Room {
        let dir = tempfile::Builder::new().prefix("pages-").tempdir().expect("a directory");
        let made = WRITTEN.iter().map(PathBuf::from).filter(|path| !path.exists()).collect();
        for name in ["bin", "work", "log"] {
            fs::create_dir(dir.path().join(name)).expect("a directory is made");
        }
        let bin = dir.path().join("bin");
        symlink(unlade(), bin.join("unlade")).expect("a link is made");
        symlink(unlade_lab(), bin.join("unlade-lab")).expect("a link is made");
        symlink(root.join("crates"), dir.path().join("work/crates")).expect("a link is made");
        // Not every machine has sudo, and the pages run as root anyway.
        script(&bin.join("sudo"), "exec \"$@\"\n");
        Room { dir, made }
    }

    /// Lets `cargo build --release -p PACKAGE…` of the page take the programs and the library that
    /// are built already, with the profile of this test.
    ///
    /// # Panics
    /// The library cannot be built, or a file cannot be written.
    pub fn with_cargo(&self) {
        let library = copier_library();
        let lines = format!(
            "[ \"$1 $2\" = 'build --release' ] || exit 1\n\
             shift 2; mkdir -p target/release; cd target/release\n\
             while [ $# -gt 0 ]; do case \"$1 $2\" in\n\
             '-p unlade') ln -sf {} unlade ;;\n\
             '-p unlade-lab') ln -sf {} unlade-lab ;;\n\
             '-p unlade-copy-capi') ln -sf {} libunlade_copier.a ;;\n\
             *) echo \"cargo: $*\" >&2; exit 1 ;;\n\
             esac; shift 2; done\n",
            unlade().display(),
            unlade_lab().display(),
            library.display(),
        );
        script(&self.dir.path().join("bin/cargo"), &lines);
    }

    /// Runs `setup`, then the blocks of commands in one shell, and returns their outcomes in order.
    /// Files of the page are written before the commands that follow them.
    ///
    /// # Panics
    /// The page does not end within `limit`, leaves jobs or network namespaces, or the place cannot
    /// be made.
    pub fn play(&self, page: &str, setup: &str, blocks: &[Block], limit: Duration) -> Vec<Outcome> {
        let log = self.dir.path().join("log");
        let path = log.join("script");
        fs::write(&path, self.text(setup, blocks)).expect("the script is written");
        let mut command = Command::new("unshare");
        command
            .args(["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
            .args(["--", "bash"])
            .arg(&path)
            .current_dir(self.dir.path().join("work"))
            .env("PATH", self.programs())
            .stdin(Stdio::null())
            .stdout(fs::File::create(log.join("room.out")).expect("a file"))
            .stderr(fs::File::create(log.join("room.err")).expect("a file"));
        for name in variables() {
            command.env_remove(name);
        }
        let ended = wait(command.spawn().expect("unshare runs"), limit);
        let read = |name: &str| fs::read_to_string(log.join(name)).unwrap_or_default();
        let outcome = |number: usize| Outcome {
            output: read(&format!("{number}.out")),
            errors: read(&format!("{number}.err")),
            failed: read(&format!("{number}.failed")).lines().map(str::to_owned).collect(),
        };
        let at: usize = read("at").trim().parse().unwrap_or(0);
        let last = || {
            let line = blocks.get(at).map_or(0, |block| block.line);
            let Outcome { output, errors, failed } = outcome(at);
            format!("{page}:{line}\n{output}{errors}{failed:?}\n{}", read("room.err"))
        };
        assert!(ended.is_some(), "not done after {} s: {}", limit.as_secs(), last());
        assert_eq!(read("end").trim(), "end", "the shell ended early: {}", last());
        assert_eq!(read("left"), "", "{page} leaves jobs or namespaces; end them in the page");
        (0..blocks.len()).map(outcome).collect()
    }

    fn programs(&self) -> String {
        let path = std::env::var("PATH").unwrap_or_default();
        format!("{}:{path}:/usr/sbin:/sbin", self.dir.path().join("bin").display())
    }

    /// The script of a page.
    fn text(&self, setup: &str, blocks: &[Block]) -> String {
        let log = self.dir.path().join("log").display().to_string();
        let mut text = "set -e\n".to_owned();
        for dir in WRITTEN {
            let _ = writeln!(text, "mkdir -p {dir}; mount -t tmpfs none {dir}");
        }
        let _ = writeln!(text, "ip link set lo up\n{setup}\nset +e; set -m -E");
        let _ = writeln!(
            text,
            "_failed() {{ case $2 in {STATUS_FREE}) ;; *) echo \"$1: $2\" >>{log}/$(cat {log}/at).failed ;; \
             esac; }}\ntrap '_failed $? \"$BASH_COMMAND\"' ERR"
        );
        for (number, block) in blocks.iter().enumerate() {
            let _ = writeln!(text, "echo {number} >{log}/at");
            let _ = writeln!(text, "exec >{log}/{number}.out 2>{log}/{number}.err");
            match &block.kind {
                Kind::Commands { .. } => text.push_str(&block.text),
                Kind::File(name) => {
                    let _ =
                        writeln!(text, "cat >{name} <<'END OF FILE'\n{}END OF FILE", block.text);
                }
                Kind::NotRun(_) | Kind::Other => {}
            }
        }
        let _ = writeln!(
            text,
            "trap - ERR\n{{ jobs -r; ls /run/netns; }} >{log}/left\necho end >{log}/end"
        );
        text
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // Mount points that were made for the place; a directory in use stays.
        for path in &self.made {
            let _ = fs::remove_dir(path);
        }
    }
}

/// Variables of this process that would change what the commands of a page do.
fn variables() -> Vec<String> {
    let names = std::env::vars().map(|(name, _)| name);
    let changes = |name: &String| {
        let lower = name.to_lowercase();
        lower.ends_with("_proxy")
            || lower.starts_with("aws_")
            || lower.starts_with("copier_")
            || (lower.starts_with("unlade_") && lower != "unlade_bin")
    };
    names.filter(changes).collect()
}

fn script(path: &Path, lines: &str) {
    fs::write(path, format!("#!/bin/sh\nset -e\n{lines}")).expect("a script is written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a script is executable");
}

/// Waits for the end of a process, and kills it after `limit`. Its namespace of processes ends with
/// it. Returns `None` if it was killed.
fn wait(mut child: Child, limit: Duration) -> Option<()> {
    let deadline = Instant::now() + limit;
    while child.try_wait().expect("a child can be waited for").is_none() {
        if Instant::now() >= deadline {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(PAUSE);
    }
    Some(())
}
