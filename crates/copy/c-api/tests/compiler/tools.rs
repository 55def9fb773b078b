//! The plugin, the library and programs of the tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

pub use crate::support::run;

pub const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Tests run at the same time and share the builds.
static BUILDING: Mutex<()> = Mutex::new(());

/// A build of the plugin.
pub struct Plugin {
    pub path: PathBuf,
}

impl Plugin {
    /// Builds the plugin; `is_for_rules` selects the build in which rules can be disabled.
    pub fn build(is_for_rules: bool) -> Plugin {
        let name = if is_for_rules { "pass-rules" } else { "pass" };
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(Path::new(ROOT).join("compiler"));
        make.arg(format!("BUILD={}", directory.display())).arg("CXXFLAGS=-O1");
        if is_for_rules {
            make.arg("TEST_RULES=1");
        }
        let _one = BUILDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        run(&mut make);
        Plugin { path: directory.join("unlade-copier-pass.so") }
    }
}

/// Directory of the libraries of this build.
pub fn libraries() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let deps = program.parent().unwrap();
    let candidates = [deps, deps.parent().unwrap()];
    let found = candidates.iter().find(|path| path.join("libunlade_copier.so").exists());
    found.expect("cargo builds the library before its tests").to_path_buf()
}

/// Name of a missing program, if there is one.
pub fn missing() -> Option<&'static str> {
    let programs = ["clang-14", "opt-14", "llvm-config-14", "make", "c++"];
    let has = |program: &&str| {
        !Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let header = "/usr/lib/llvm-14/include/llvm/Passes/PassPlugin.h";
    programs.into_iter().find(has).or((!Path::new(header).exists()).then_some("llvm-14-dev"))
}
