//! Shared by the tests: the libraries of this build, and commands.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Directory of this crate.
pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Directory of the libraries of this build.
pub fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let deps = program.parent().unwrap();
    let candidates = [deps, deps.parent().unwrap()];
    let found = candidates.iter().find(|path| path.join("libunlade_copier.so").exists());
    found.expect("cargo builds the library before its tests").to_path_buf()
}

/// Runs a command to its end.
///
/// # Panics
/// Panics if it fails, with its output.
#[track_caller]
pub fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Returns true if a program runs here.
pub fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Runs a test program; a hang is ended and counts as a failure.
pub fn program(path: &Path) -> Command {
    let mut command = Command::new("timeout");
    command.args(["--signal=ABRT", "120"]).arg(path);
    command
}
